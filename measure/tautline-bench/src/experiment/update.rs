//! RTDiP, figures 4 to 6: what it costs to bring the newest state into the application's buffer, over the period of
//! sending and the period of updating; over TCP, a queuing port and a sampling port.
//!
//! One thread sends each state on all three paths; three threads update, one for each path, woken at moments of their
//! own, so that each wake-up finds the caches as the sleep left them. Sender and readers keep to one timetable and
//! never speak about it.

mod ends;
mod result;

use std::io::ErrorKind;
use std::thread;
use std::time::Duration;

use tautline::LinkKind;
use tautline::link::XdpMode;
use tautline_lab::tuning;
use tautline_report::plot::latency_text;
use tautline_testbed::hosts::{Host, Hosts};
use tautline_testbed::sys::{monotonic_ns, sleep_until};

use self::ends::{STATE_BYTES, Sender, open};
use self::result::Measured;
use super::side_cpus::{SideCpus, joined, settle};
use super::{
    Experiment, ExperimentError, Figure, Outcome, Progress, Request, Scale, go_on, receive,
};
use crate::path::End;
use crate::path::nodes::NodePair;
use crate::path::sides::{self, DEMUX_CABLE, KERNEL_CABLE};

pub(super) const EXPERIMENT: Experiment = Experiment {
    figures: &FIGURES,
    parameters: &[],
    run,
};

const FIGURES: [Figure; 3] = [
    Figure {
        name: "rtdip-fig4",
        source: "RTDiP, figure 4",
        title: "cost of updating to the newest state over TCP",
        found: "TCP/IP takes longer the more states have queued up since the last update",
    },
    Figure {
        name: "rtdip-fig5",
        source: "RTDiP, figure 5",
        title: "the same over a queuing port",
        found: "RTDiP send/recv takes longer the more states have queued up since the last update",
    },
    Figure {
        name: "rtdip-fig6",
        source: "RTDiP, figure 6",
        title: "the same over a sampling port",
        found: "RTDiP sync stays below 90 µs whatever the periods",
    },
];

/// The paths in the order of the figures.
const PATHS: [&str; 3] = ["tcp", "queuing", "sampling"];

/// Updates at the start of a turn that are not counted: they find what the last turn left.
const WARM_UP: u64 = 1;
/// From the threads' start to the first turn.
const LEAD_NS: u64 = 50_000_000;
/// From the wake-up to the second update. Lower: the kernel's own work after a wake-up may reach into it. Higher:
/// less of the CPU is left to receive.
const AWAKE_NS: u64 = 150_000;
/// Between two turns: longer than an update takes.
const PAUSE_NS: u64 = 2_000_000;

/// One turn of a pair of periods.
#[derive(Clone, Copy, Debug)]
struct Turn {
    /// Index of the pair.
    pair: usize,
    sending_ns: u64,
    updating_ns: u64,
    start_ns: u64,
    end_ns: u64,
}

/// How much is measured, over which periods.
#[derive(Clone, Debug)]
struct Plan {
    periods: Vec<u64>,
    /// Turns of each pair, spread over the run, so that a disturbance does not hit one pair alone.
    rounds: usize,
    /// Updates of a turn that are counted.
    updates: u64,
}

impl Plan {
    fn of(scale: Scale) -> Plan {
        let unit_ns = scale.pick(100_000_000, 2_000_000, 1_000_000);
        Plan {
            periods: (1..=scale.pick(10, 10, 2)).map(|n| n * unit_ns).collect(),
            rounds: scale.pick(4, 5, 2),
            updates: 5,
        }
    }

    fn pairs(&self) -> usize {
        self.periods.len() * self.periods.len()
    }

    /// The periods of sending and of updating of a pair, and the pair of two periods by their places.
    fn pair(&self, index: usize) -> [u64; 2] {
        let count = self.periods.len();
        [self.periods[index / count], self.periods[index % count]]
    }

    /// Turns one after the other, in an order in which neither period stays the same for long.
    fn timetable(&self, first_ns: u64) -> Vec<Turn> {
        let count = self.periods.len();
        let mut start_ns = first_ns;
        let mut turns = Vec::with_capacity(self.pairs() * self.rounds);
        for _ in 0..self.rounds {
            for shift in 0..count {
                for place in 0..count {
                    let pair = (place + shift) % count * count + place;
                    let [sending_ns, updating_ns] = self.pair(pair);
                    let end_ns = start_ns + updating_ns * (self.updates + WARM_UP + 1) + PAUSE_NS;
                    turns.push(Turn {
                        pair,
                        sending_ns,
                        updating_ns,
                        start_ns,
                        end_ns,
                    });
                    start_ns = end_ns;
                }
            }
        }
        turns
    }
}

/// The two updates of each wake-up: the first as the paper has it, the second with all that the first has warmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    /// Straight from sleep, as cold as the sleep left it.
    Woken,
    /// [`AWAKE_NS`] after the wake-up, which the reader spent reading the clock.
    Awake,
}

impl Moment {
    const ALL: [Moment; 2] = [Moment::Woken, Moment::Awake];

    fn name(self) -> &'static str {
        match self {
            Moment::Woken => "woken",
            Moment::Awake => "awake",
        }
    }
}

/// Results of a thread for one pair: at each [`Moment`], the cost of each update and the states that had come.
#[derive(Clone, Debug, Default)]
struct PairUpdates([Vec<(u64, u32)>; 2]);

fn run(request: &Request, progress: &mut Progress<'_>) -> Result<Vec<Outcome>, ExperimentError> {
    let place = SideCpus::choose()?;
    let plan = Plan::of(request.scale);
    let hosts = Hosts::create(&sides::compared())?;
    let nodes = NodePair::on_cable(&hosts, DEMUX_CABLE, LinkKind::Xdp, Some(XdpMode::Native))?;
    // Above the readers, as an interrupt would be: a state that has come is there when they look.
    let above = place.fifo.map(|priority| priority + 1);
    // No demux makes TCP's dearer.
    receive::with_poll(&hosts, Host::B, KERNEL_CABLE)?;
    receive::in_thread(&hosts, Host::B, KERNEL_CABLE, place.receiver_cpu, above)?;
    let processing = receive::in_thread(&hosts, Host::B, DEMUX_CABLE, place.receiver_cpu, above)?;
    let idle = tuning::hold_off_idle_states();
    let (mut sender, mut readers) = open(&hosts, &nodes)?;
    let clock_ns = clock_cost();
    let turns = plan.timetable(monotonic_ns() + LEAD_NS);
    let found = thread::scope(|scope| {
        let sending = scope.spawn(|| send_all(&mut sender, &turns, place));
        let reading: Vec<_> = readers
            .iter_mut()
            .enumerate()
            .map(|(index, reader)| {
                let (plan, turns) = (&plan, &turns);
                scope.spawn(move || read_all(reader.as_mut(), index as u64, plan, turns, place))
            })
            .collect();
        watch(&turns, progress);
        let found: Result<Vec<_>, _> = reading
            .into_iter()
            .map(|thread| joined(thread.join()))
            .collect();
        joined(sending.join())?;
        found
    })?;
    go_on()?;
    let measured = Measured { plan, found };
    Ok(FIGURES
        .iter()
        .enumerate()
        .map(|(path, figure)| {
            let mut outcome = Outcome::of(figure);
            settings(&mut outcome, request.scale, &measured.plan, clock_ns, place);
            outcome.set(
                "idle_states",
                match &idle {
                    Ok(_) => "held off (/dev/cpu_dma_latency 0)".to_owned(),
                    Err(error) => format!("as they are: {error}"),
                },
            );
            let link = format!("link {}", nodes.describe());
            outcome.active = vec![
                ("tcp".to_owned(), "kernel TCP without delay, non-blocking, no demux on its cable; reads states one by one until there is none".to_owned()),
                ("queuing".to_owned(), format!("queuing port, receives until there is nothing; {link}")),
                ("sampling".to_owned(), format!("sampling port, one read; {link}")),
                ("receiving".to_owned(), format!("on the reader's CPU for all three: {processing}")),
            ];
            measured.tell(&mut outcome, path);
            outcome
        })
        .collect())
}

fn settings(outcome: &mut Outcome, scale: Scale, plan: &Plan, clock_ns: u64, place: SideCpus) {
    outcome.set("state_bytes", STATE_BYTES);
    outcome.set(
        "updates_of_each_path_and_pair",
        plan.updates * plan.rounds as u64,
    );
    outcome.set("turns_of_each_pair", plan.rounds);
    outcome.set("clock", "CLOCK_MONOTONIC");
    outcome.set("clock_cost_ns", clock_ns);
    outcome.set("reader_cpu", place.receiver_cpu);
    outcome.set("sender_cpu", place.sender_cpu);
    outcome.set("scheduling", place.scheduling());
    outcome.set("link", "veth between two network namespaces");
    outcome.set("offloads", "kernel default");
    outcome.remarks.push(format!(
        "Timed: the calls until the newest state is copied into the application's buffer; the clock's own {clock_ns} ns are in it. \
         Each wake-up updates twice. Woken: as the first thing after the sleep, with code, page tables and data as cold as the sleep \
         left them; this is what the paper measured. Awake: the same again {} later, which the reader spent reading the clock; what is new \
         then came meanwhile, and a sampling port is read whether it is new or not.",
        latency_text(AWAKE_NS)
    ));
    if scale != Scale::Full {
        outcome.remarks.push(
            "Periods are scaled down: the shorter sleep leaves the caches warmer than the paper's 100 ms to 1 s.".to_owned(),
        );
    }
}

/// Tells how far the timetable is, on the calling thread.
fn watch(turns: &[Turn], progress: &mut Progress<'_>) {
    let (first, end) = (turns[0].start_ns, turns[turns.len() - 1].end_ns);
    let milliseconds = |ns: u64| ns / 1_000_000;
    loop {
        let now = monotonic_ns().clamp(first, end);
        progress(milliseconds(now - first), milliseconds(end - first));
        if now >= end || go_on().is_err() {
            return;
        }
        thread::sleep(Duration::from_nanos(end - now).min(Duration::from_millis(200)));
    }
}

/// Median of what reading the clock twice takes.
fn clock_cost() -> u64 {
    let mut costs: Vec<u64> = (0..1_001)
        .map(|_| {
            let before = monotonic_ns();
            monotonic_ns() - before
        })
        .collect();
    costs.sort_unstable();
    costs[costs.len() / 2]
}

fn send_all(sender: &mut Sender, turns: &[Turn], place: SideCpus) -> Result<(), ExperimentError> {
    settle(place.sender_cpu, place.fifo)?;
    for turn in turns {
        for number in 0.. {
            let due = turn.start_ns + number * turn.sending_ns + shift_ns(number, turn.sending_ns);
            if due >= turn.end_ns {
                break;
            }
            sleep_until(due);
            if go_on().is_err() {
                return Ok(());
            }
            sender.send().map_err(ExperimentError::io("send a state"))?;
        }
    }
    Ok(())
}

/// How far a send is moved within its period: evenly over all of it, so that no pair of periods is locked in step.
fn shift_ns(number: u64, period_ns: u64) -> u64 {
    // The golden ratio's multiples are as even as can be (Weyl), and the same in each run.
    let share = (number as f64 * 0.618_033_988_749_895).fract();
    (period_ns as f64 * share) as u64
}

fn read_all(
    reader: &mut dyn End,
    index: u64,
    plan: &Plan,
    turns: &[Turn],
    place: SideCpus,
) -> Result<Vec<PairUpdates>, ExperimentError> {
    settle(place.receiver_cpu, place.fifo)?;
    let updates = plan.rounds * plan.updates as usize;
    let empty = || PairUpdates(Moment::ALL.map(|_| Vec::with_capacity(updates)));
    let mut all: Vec<PairUpdates> = (0..plan.pairs()).map(|_| empty()).collect();
    let mut sequence = 0;
    for turn in turns {
        let phase_ns = turn.updating_ns * index / PATHS.len() as u64;
        for number in 0..WARM_UP + plan.updates {
            let due = turn.start_ns + phase_ns + number * turn.updating_ns;
            sleep_until(due);
            for updates in &mut all[turn.pair].0 {
                let begin = monotonic_ns();
                let states = reader.update(STATE_BYTES);
                let cost_ns = monotonic_ns() - begin;
                let states = states.map_err(ExperimentError::io("update to the newest state"))?;
                sequence = in_order(sequence, reader.message())?;
                if number >= WARM_UP {
                    updates.push((cost_ns, states));
                }
                // Reads the clock and nothing else.
                while monotonic_ns() < due + AWAKE_NS {}
            }
        }
        if go_on().is_err() {
            break;
        }
    }
    Ok(all)
}

/// The sequence number of a state, which must not be older than the last one.
fn in_order(last: u64, state: &[u8]) -> Result<u64, ExperimentError> {
    // Nothing has come yet.
    let Some(number) = state.first_chunk() else {
        return Ok(last);
    };
    let sequence = u64::from_le_bytes(*number);
    if sequence < last {
        return Err(ExperimentError::Io {
            operation: "keep the states in order".to_owned(),
            source: ErrorKind::InvalidData.into(),
        });
    }
    Ok(sequence)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_timetable_has_every_pair_in_every_round_and_no_overlap() {
        let plan = Plan {
            periods: vec![1, 2, 3],
            rounds: 2,
            updates: 5,
        };
        let turns = plan.timetable(100);
        for round in turns.chunks(9) {
            let mut pairs: Vec<usize> = round.iter().map(|turn| turn.pair).collect();
            pairs.sort_unstable();
            assert_eq!(pairs, [0, 1, 2, 3, 4, 5, 6, 7, 8]);
        }
        assert!(turns.windows(2).all(|two| two[0].end_ns == two[1].start_ns));
        assert_eq!((turns.len(), turns[0].start_ns), (18, 100));
        assert_eq!(plan.pair(5), [2, 3]);
    }

    #[test]
    fn sends_keep_within_their_periods() {
        let shifts: Vec<u64> = (0..100).map(|number| shift_ns(number, 1_000)).collect();
        assert!(shifts.iter().all(|shift| *shift < 1_000));
        assert!(
            shifts
                .iter()
                .filter(|shift| **shift < 500)
                .count()
                .abs_diff(50)
                <= 2
        );
    }

    #[test]
    fn an_older_state_is_an_error() {
        let state = 5u64.to_le_bytes();
        assert_eq!(in_order(5, &state).unwrap(), 5);
        assert!(in_order(6, &state).is_err());
    }
}
