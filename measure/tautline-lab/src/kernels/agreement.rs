//! Whether the probe and cyclictest say the same of a guest.
//!
//! The worst of a few thousand wake-ups is a matter of which wake-up met which stretch of the kernel, so measuring
//! one after the other compares two draws of a lottery. Here both wait at the same time for the same moments, a few
//! microseconds apart: what delays one delays the other. They take turns at being first. Each one's disagreement with
//! itself, its even turns against its odd ones, is the control: no two tools can agree better than one with itself.

use std::io;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::episodes::Episodes;
use crate::measured::Series;
use crate::probe::{self, Plan, Span};
use crate::sys;

/// Average and maximum agree within this share…
pub const TOLERANCE_SHARE: f64 = 0.1;

/// …or within this time, whichever is more.
pub const TOLERANCE_NS: f64 = 1_000.0;

/// How well the two agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Average and maximum within the tolerance.
    Agree,
    /// Beyond the tolerance, and no further apart than one is from itself.
    NoFurther,
    /// Further apart than either is from itself.
    Differ,
}

impl Answer {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Answer::Agree => "agree",
            Answer::NoFurther => "within control",
            Answer::Differ => "DIFFER",
        }
    }
}

/// Figures of both tools under one load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Agreement {
    /// The load.
    pub load: String,
    /// The turns in order; in even ones the probe is due first.
    pub turns: Vec<Turn>,
}

/// One turn: both at once.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Turn {
    /// The probe's.
    pub probe: Figures,
    /// cyclictest's.
    pub cyclictest: Figures,
}

/// Wake-ups of one tool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// How many.
    pub count: u64,
    /// Their average latency.
    pub mean_ns: f64,
    /// Their worst.
    pub max_ns: u64,
}

impl Figures {
    /// All of them as one.
    fn of_all(figures: impl Iterator<Item = Figures>) -> Figures {
        figures.fold(Figures::default(), |all, one| {
            let count = all.count + one.count;
            Figures {
                count,
                mean_ns: (all.mean_ns * all.count as f64 + one.mean_ns * one.count as f64)
                    / count.max(1) as f64,
                max_ns: all.max_ns.max(one.max_ns),
            }
        })
    }

    /// Whether average and maximum are within the tolerance of another's.
    pub fn agrees_with(&self, other: &Figures) -> bool {
        is_near(self.mean_ns, other.mean_ns) && is_near(self.max_ns as f64, other.max_ns as f64)
    }
}

fn is_near(one: f64, other: f64) -> bool {
    (one - other).abs() <= TOLERANCE_NS.max(one.max(other) * TOLERANCE_SHARE)
}

impl Agreement {
    /// All turns of the probe.
    pub fn probe(&self) -> Figures {
        Figures::of_all(self.turns.iter().map(|turn| turn.probe))
    }

    /// All turns of cyclictest.
    pub fn cyclictest(&self) -> Figures {
        Figures::of_all(self.turns.iter().map(|turn| turn.cyclictest))
    }

    /// How well the two agree.
    pub fn answer(&self) -> Answer {
        let (probe, cyclictest) = (self.probe(), self.cyclictest());
        if probe.agrees_with(&cyclictest) {
            return Answer::Agree;
        }
        let controls = [
            self.halves(|turn| turn.probe),
            self.halves(|turn| turn.cyclictest),
        ];
        let is_no_further = |of: fn(&Figures) -> f64| {
            let between = (of(&probe) - of(&cyclictest)).abs();
            let within = controls
                .iter()
                .map(|[one, other]| (of(one) - of(other)).abs());
            is_near(of(&probe), of(&cyclictest)) || within.fold(0.0, f64::max) >= between
        };
        if is_no_further(|figures| figures.mean_ns)
            && is_no_further(|figures| figures.max_ns as f64)
        {
            Answer::NoFurther
        } else {
            Answer::Differ
        }
    }

    /// The control: one tool's even turns and its odd ones.
    pub fn halves(&self, of: impl Fn(&Turn) -> Figures) -> [Figures; 2] {
        [0, 1].map(|first| Figures::of_all(self.turns.iter().skip(first).step_by(2).map(&of)))
    }
}

/// How far the two are apart. Nearer, and the second would be woken while the first still runs, and so measure the
/// first; further, and a stretch that delays the first is over when the second is due.
const DISTANCE_NS: u64 = 10_000;

/// cyclictest begins at the next full second if it has come so far when 0.9 s of this one are over.
const SECOND_NS: u64 = 1_000_000_000;

/// SCHED_FIFO priority of the probe: above the interrupt threads (50) of a PREEMPT_RT kernel.
pub(super) const PRIORITY: u8 = 80;

/// Under any load both must begin in time, so they are started at this SCHED_FIFO priority.
const STARTER_PRIORITY: u8 = 10;

/// One turn of both in the guest, on its only CPU, and the probe's series of it.
pub(super) fn take_turn(
    plan: Plan,
    duration: Duration,
    episodes: &Arc<Episodes>,
    cyclictest_first: bool,
) -> io::Result<(Turn, Series)> {
    sys::set_fifo(STARTER_PRIORITY)?;
    let turn = both_at_once(plan, duration, episodes, cyclictest_first);
    sys::set_other()?;
    turn
}

fn both_at_once(
    plan: Plan,
    duration: Duration,
    episodes: &Arc<Episodes>,
    cyclictest_first: bool,
) -> io::Result<(Turn, Series)> {
    let (probe_offset_ns, cyclictest_offset_ns) = if cyclictest_first {
        (DISTANCE_NS, 0)
    } else {
        (0, DISTANCE_NS)
    };
    let second_ns = sys::monotonic_ns().next_multiple_of(SECOND_NS);
    sys::sleep_until(second_ns);
    let count = duration.as_nanos() as u64 / plan.period_ns.max(1);
    let cyclictest = start_cyclictest(plan.period_ns, count, cyclictest_offset_ns)?;
    let span = Span {
        start_ns: Some(second_ns + SECOND_NS),
        duration,
    };
    let plan = Plan {
        offset_ns: probe_offset_ns,
        ..plan
    };
    let stop = Arc::new(AtomicBool::new(false));
    let measured = probe::measure(&[plan], span, episodes, &stop, None, &mut |_, _| {});
    let cyclictest = figures_of(cyclictest)?;
    let series = measured.series.into_iter().next().ok_or_else(|| {
        io::Error::other(format!("the probe could not run: {:?}", measured.refused))
    })?;
    let probe = Figures {
        count: series.summary.count,
        mean_ns: series.summary.mean_ns,
        max_ns: series.summary.max_ns,
    };
    Ok((Turn { probe, cyclictest }, series))
}

fn start_cyclictest(period_ns: u64, count: u64, offset_ns: u64) -> io::Result<Child> {
    Command::new(GUEST_PATH)
        // Quiet, in nanoseconds, memory locked, on the probe's CPU and at its priority.
        .args(["-q", "-N", "-m", "-a0", "-t1"])
        .arg(format!("-p{}", PRIORITY))
        .arg(format!("-i{}", period_ns / 1_000))
        .arg(format!("-l{count}"))
        .arg(format!("--secaligned={}", offset_ns / 1_000))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
}

fn figures_of(cyclictest: Child) -> io::Result<Figures> {
    let output = cyclictest.wait_with_output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().find_map(parse_summary).ok_or_else(|| {
        io::Error::other(format!(
            "cyclictest did not measure ({}): {}{}",
            output.status,
            text.trim(),
            String::from_utf8_lossy(&output.stderr).trim()
        ))
    })
}

/// Where cyclictest lies in the guest.
pub(super) const GUEST_PATH: &str = "/usr/bin/cyclictest";

/// `T: 0 (   77) P:80 I:1000 C:   3000 Min:   2177 Act: 2300 Avg: 2401 Max:    5260`
fn parse_summary(line: &str) -> Option<Figures> {
    let number = |name: &str| {
        let rest = &line[line.find(name)? + name.len()..];
        rest.split_whitespace().next()?.parse::<u64>().ok()
    };
    Some(Figures {
        count: number(" C:")?,
        mean_ns: number("Avg:")? as f64,
        max_ns: number("Max:")?,
    })
    .filter(|figures| line.starts_with("T:") && figures.count > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(mean_ns: f64, max_ns: u64) -> Figures {
        Figures {
            count: 10,
            mean_ns,
            max_ns,
        }
    }

    #[test]
    fn the_summary_of_cyclictest_is_understood() {
        let line =
            "T: 0 (   77) P:80 I:1000 C:   3000 Min:   2177 Act:   2300 Avg:   2401 Max:    5260";
        let expected = Figures {
            count: 3000,
            mean_ns: 2401.0,
            max_ns: 5260,
        };
        assert_eq!(parse_summary(line), Some(expected));
        for other in [
            "",
            "# /dev/cpu_dma_latency set to 0us",
            "T: 0 (77) P:80 I:1000 C:0 Min: 1000000 Act: 0 Avg: 0 Max: 0",
            "T: 0 Avg: x Max: 1",
        ] {
            assert_eq!(parse_summary(other), None, "{other}");
        }
    }

    #[test]
    fn near_is_a_tenth_or_a_microsecond() {
        for (one, other, near) in [
            (figures(2_000.0, 4_200), figures(2_900.0, 5_100), true),
            (figures(2_000.0, 4_200), figures(2_000.0, 5_260), false),
            (figures(9_000.0, 123_000), figures(8_200.0, 134_000), true),
            (figures(9_000.0, 123_000), figures(9_000.0, 142_000), false),
            (figures(20_000.0, 30_000), figures(25_000.0, 30_000), false),
        ] {
            assert_eq!(one.agrees_with(&other), near, "{one:?} {other:?}");
            assert_eq!(other.agrees_with(&one), near, "{one:?} {other:?}");
        }
    }

    #[test]
    fn turns_are_put_together_and_halved() {
        let turn = |probe, cyclictest| Turn { probe, cyclictest };
        let agreement = Agreement {
            load: "idle".to_owned(),
            turns: vec![
                turn(figures(2_000.0, 4_000), figures(2_200.0, 9_000)),
                turn(figures(3_000.0, 9_500), figures(2_600.0, 4_000)),
            ],
        };
        assert_eq!(agreement.probe().mean_ns, 2_500.0);
        assert_eq!(agreement.probe().count, 20);
        assert_eq!(agreement.answer(), Answer::Agree);
        let halves = agreement.halves(|turn| turn.probe);
        assert_eq!([halves[0].max_ns, halves[1].max_ns], [4_000, 9_500]);
        assert!(!halves[0].agrees_with(&halves[1]));
    }

    #[test]
    fn what_is_beyond_the_tolerance_is_held_against_the_control() {
        let answer = |probe: [u64; 2], cyclictest: [u64; 2]| {
            let turns = (0..2).map(|index| Turn {
                probe: figures(4_000.0, probe[index]),
                cyclictest: figures(4_000.0, cyclictest[index]),
            });
            let load = "idle".to_owned();
            let turns = turns.collect();
            Agreement { load, turns }.answer()
        };
        assert_eq!(answer([6_000, 6_500], [6_100, 8_000]), Answer::NoFurther);
        assert_eq!(answer([6_000, 6_500], [8_100, 8_000]), Answer::Differ);
        assert_eq!(answer([6_000, 6_500], [6_100, 7_400]), Answer::Agree);
    }
}
