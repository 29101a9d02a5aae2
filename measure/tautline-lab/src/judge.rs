//! Judging of a result against a class.
//!
//! A measurement proves that a deadline is missed; it never proves that it is held. That no wake-up out of N
//! was late bounds the share of late ones only to 3/N (95 % confidence, the "rule of three"), and only under
//! the loads that were run. The bound assumes that each wake-up is late by itself. Stalls make several late at once,
//! so episodes are bounded as well: none in a time T means that they are T/3 apart or more on average. Every verdict
//! says both in figures.

use crate::measured::{Phase, ProbeKind, Series, TimeBase};
use crate::result::LabResult;
use tautline_machine::verdict::State;
use tautline_machine::verdict::{Class, Judgement, Outcome, Strength, Verdict};

/// Below this many wake-ups nothing is concluded: the bound 3/N would be above 0.3 %.
const SAMPLES_MIN: u64 = 1_000;

/// Wake-ups from which the evidence is moderate (3/N = 0.003 %) and strong (0.0003 %).
const SAMPLES_MODERATE: u64 = 100_000;
/// See [`SAMPLES_MODERATE`].
const SAMPLES_STRONG: u64 = 1_000_000;

/// Time from which evidence can be strong: shorter runs miss what comes once an hour (log rotation, timers).
const STRONG_DURATION_NS: u64 = 3_600 * 1_000_000_000;

impl LabResult {
    /// Judges the result against a class.
    pub fn judged(&self, class: Class) -> Verdict {
        let result = self;
        let deadline_ns = class.deadline_ns();
        let mut loads: Vec<String> = Vec::new();
        for phase in &result.phases {
            if !loads.contains(&phase.load) {
                loads.push(phase.load.clone());
            }
        }
        let weakened_by = weaknesses(result, &loads);
        let judgements: Vec<Judgement> = [State::Untouched, State::Tuned]
            .into_iter()
            .filter(|state| result.phases.iter().any(|phase| phase.state == *state))
            .map(|state| judge(result, state, deadline_ns, &weakened_by))
            .collect();
        let best_ns = judgements
            .iter()
            .filter(|j| j.samples > 0)
            .map(|j| j.max_ns)
            .min();
        Verdict {
            class,
            deadline_ns,
            judgements,
            about_hardware: result.time == TimeBase::Real
                && result.machine.is_virtual.known() == Some(&false),
            subject: subject(result),
            loads,
            linuxcnc_grade: best_ns
                .map_or("none: nothing measured", linuxcnc_grade)
                .to_owned(),
            weakened_by,
        }
    }
}

fn subject(result: &LabResult) -> String {
    let machine = &result.machine;
    match (result.time, machine.is_virtual.known()) {
        (TimeBase::Real, Some(false)) => "this machine".to_owned(),
        (TimeBase::Real, Some(true)) => {
            format!(
                "in a virtual machine ({}): no verdict on hardware",
                machine.hypervisor
            )
        }
        (TimeBase::Real, None) => "virtual or not is unknown: no verdict on hardware".to_owned(),
        (TimeBase::Virtual, _) => "in virtual time: no verdict on hardware".to_owned(),
        (TimeBase::Guest, _) => "in a guest: no verdict on hardware".to_owned(),
        (TimeBase::Imported, _) => {
            "imported, the machine is unknown: no verdict on hardware".to_owned()
        }
    }
}

fn judge(result: &LabResult, state: State, deadline_ns: u64, weakened_by: &[String]) -> Judgement {
    let phases: Vec<&Phase> = result
        .phases
        .iter()
        .filter(|phase| phase.state == state)
        .filter(|phase| phase.series.iter().any(|series| series.probe.is_wakeup()))
        .collect();
    let (mut samples, mut late, mut max_ns) = (0, 0, 0);
    let series = phases.iter().flat_map(|phase| &phase.series);
    for series in series.filter(|series| series.probe.is_wakeup()) {
        samples += series.summary.count + series.overruns;
        late += late_of(series, deadline_ns);
        max_ns = max_ns.max(series.summary.max_ns);
    }
    let duration_ns = phases.iter().map(|phase| phase.duration_ns).sum();
    let episodes = match late {
        0 => Some(0),
        _ => phases
            .iter()
            .map(|phase| episodes_of(phase, deadline_ns))
            .sum(),
    };
    let outcome = outcome(late, samples);
    let strength = strength(samples, duration_ns, !weakened_by.is_empty());
    Judgement {
        state,
        outcome,
        samples,
        late,
        max_ns,
        duration_ns,
        late_share_max: late_share_max(late, samples),
        episodes,
        between_episodes_ns_min: episodes
            .filter(|_| samples > 0 && duration_ns > 0)
            .map(|count| between_episodes_ns_min(count, duration_ns)),
        strength,
    }
}

/// Late wake-ups of a series. A wake-up that was skipped during a stall is late as well: by one period less than the
/// one that came, the next one by two less, and so on.
fn late_of(series: &Series, deadline_ns: u64) -> u64 {
    // A bucket that straddles the deadline is late: at most 0.1 % of the latency on the safe side. Only the
    // exact maximum can clear it.
    let max_ns = series.summary.max_ns;
    if max_ns <= deadline_ns {
        return 0;
    }
    let (mut late, mut skipped) = (series.unplaced, 0);
    for bucket in series.buckets.iter().filter(|b| b.to_ns > deadline_ns) {
        late += bucket.count;
        let beyond_ns = bucket.to_ns.min(max_ns).saturating_sub(deadline_ns + 1);
        skipped += bucket.count * (beyond_ns / series.period_ns.max(1));
    }
    late.max(1) + skipped.min(series.overruns)
}

fn episodes_of(phase: &Phase, deadline_ns: u64) -> Option<u64> {
    let counted = phase.episodes.iter();
    let mut counted = counted.filter(|one| one.deadline_ns == deadline_ns);
    counted.next().map(|one| one.count)
}

/// Whether a deadline was held in so many samples.
pub fn outcome(late: u64, samples: u64) -> Outcome {
    match (late, samples) {
        (1.., _) => Outcome::Exceeded,
        (0, ..SAMPLES_MIN) => Outcome::Inconclusive,
        _ => Outcome::Held,
    }
}

/// How much so many samples in a time are worth, and whether something is missing that matters.
pub fn strength(samples: u64, duration_ns: u64, is_weakened: bool) -> Strength {
    if samples < SAMPLES_MODERATE || is_weakened {
        Strength::Weak
    } else if samples < SAMPLES_STRONG || duration_ns < STRONG_DURATION_NS {
        Strength::Moderate
    } else {
        Strength::Strong
    }
}

/// Share of late ones that is not exceeded with 95 % confidence, if each is late by itself.
pub fn late_share_max(late: u64, samples: u64) -> f64 {
    (upper_bound(late) / samples.max(1) as f64).min(1.0)
}

/// Time between two episodes, on average, that is not undercut with 95 % confidence.
pub fn between_episodes_ns_min(episodes: u64, duration_ns: u64) -> u64 {
    (duration_ns as f64 / upper_bound(episodes)) as u64
}

/// One-sided 95 % bound of a Poisson count: 3 where none was seen, above that a normal approximation.
fn upper_bound(count: u64) -> f64 {
    match count {
        0 => 3.0,
        _ => count as f64 + 1.645 * (count as f64).sqrt() + 1.7,
    }
}

fn weaknesses(result: &LabResult, loads: &[String]) -> Vec<String> {
    let mut found: Vec<String> = result
        .missing
        .iter()
        .filter(|missing| missing.weakens_verdict)
        .map(|missing| format!("{}: {}", missing.what, missing.reason))
        .collect();
    if !loads.iter().any(|load| load == "combined") {
        found.push("the combined load was not run".to_owned());
    }
    let wakeups = || {
        result
            .phases
            .iter()
            .flat_map(|phase| &phase.series)
            .filter(|s| s.probe.is_wakeup())
    };
    let faults: u64 = wakeups().map(|series| series.page_faults).sum();
    if faults > 0 {
        found.push(format!(
            "the probes had {faults} page faults while they measured"
        ));
    }
    if wakeups().any(|s| s.probe != ProbeKind::Imported && s.scheduling == "SCHED_OTHER") {
        found.push("some probes had no real-time priority".to_owned());
    }
    if result.time == TimeBase::Virtual {
        found.push("virtual time counts instructions, not caches, memory or devices".to_owned());
    }
    found
}

/// The LinuxCNC community's grades of a machine's worst latency.
fn linuxcnc_grade(max_ns: u64) -> &'static str {
    match max_ns {
        0..=20_000 => "very good (up to 20 µs)",
        20_001..=50_000 => "usable (up to 50 µs)",
        50_001..=100_000 => "poor for software stepping (up to 100 µs)",
        100_001..=1_000_000 => "not for software stepping (above 100 µs)",
        _ => "not usable (above 1 ms)",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::episodes::EpisodeCount;
    use crate::measured::{Missing, sleeper};
    use tautline_machine::{Machine, Reading};
    use tautline_report::histogram::LatencyHistogram;

    fn result(samples: u64, max_ns: u64, is_virtual: bool) -> LabResult {
        let machine = Machine {
            is_virtual: Reading(Some(is_virtual)),
            ..Machine::default()
        };
        let mut result = LabResult::new("x", TimeBase::Real, machine);
        let mut histogram = LatencyHistogram::new();
        histogram.record_many(5_000, samples - 1);
        histogram.record(max_ns);
        for load in ["idle", "combined"] {
            let series = vec![sleeper(&histogram)];
            result.phases.push(Phase::new(
                State::Untouched,
                load,
                STRONG_DURATION_NS,
                series,
            ));
        }
        result
    }

    #[test]
    fn the_rule_of_three_is_stated() {
        let verdict = result(500_000, 80_000, false).judged(Class::FastIo);
        let judgement = &verdict.judgements[0];
        assert_eq!(
            (judgement.outcome, judgement.strength),
            (Outcome::Held, Strength::Strong)
        );
        assert_eq!((judgement.samples, judgement.late), (1_000_000, 0));
        assert!((judgement.late_share_max - 3e-6).abs() < 1e-12);
        assert_eq!(verdict.exit_status(), 0);
        assert!(
            verdict.sentences()[1].contains("3.00e-6"),
            "{}",
            verdict.sentences()[1]
        );
        // Two hours without an episode.
        assert_eq!(judgement.episodes, Some(0));
        let apart_ns = judgement.between_episodes_ns_min;
        assert_eq!(apart_ns, Some(2 * STRONG_DURATION_NS / 3));
        assert!(verdict.sentences()[1].contains("2400 s apart"));
    }

    #[test]
    fn no_time_lies_between_the_episodes_of_a_file_without_a_duration() {
        let mut result = result(500_000, 80_000, false);
        for phase in &mut result.phases {
            phase.duration_ns = 0;
        }
        let verdict = result.judged(Class::FastIo);
        assert_eq!(verdict.judgements[0].between_episodes_ns_min, None);
        let sentence = &verdict.sentences()[1];
        assert!(
            sentence.contains(" in an unknown time, worst 80.0 µs"),
            "{sentence}"
        );
        assert!(!sentence.contains("apart"), "{sentence}");
    }

    #[test]
    fn wakeups_that_a_stall_skipped_are_late() {
        let late = |overruns, class| {
            let mut result = result(10_000, 4_600_000, false);
            result.phases[1].series[0] = sleeper(&LatencyHistogram::new());
            result.phases[0].series[0].overruns = overruns;
            let judgement = &result.judged(class).judgements[0];
            (judgement.late, judgement.samples)
        };
        // A period of 1 ms and a latency of 4.6 ms: the skipped ones are 3.6, 2.6, 1.6 and 0.6 ms late.
        assert_eq!(late(4, Class::FastIo), (5, 10_004));
        assert_eq!(late(4, Class::Instrument), (4, 10_004));
        assert_eq!(late(4, Class::Deadline(4_000_000)), (1, 10_004));
        assert_eq!(late(4, Class::Multimedia), (0, 10_004));
        // Exactly the number that the probe found to be skipped.
        assert_eq!(late(0, Class::FastIo), (1, 10_000));
    }

    #[test]
    fn episodes_are_said_beside_late_wakeups_where_they_were_counted() {
        let mut result = result(500_000, 200_000, false);
        let unknown = result.judged(Class::FastIo);
        assert_eq!(unknown.judgements[0].episodes, None);
        assert_eq!(unknown.judgements[0].between_episodes_ns_min, None);
        for (phase, count) in result.phases.iter_mut().zip([1, 2]) {
            phase.episodes = vec![EpisodeCount {
                deadline_ns: 100_000,
                count,
            }];
        }
        let verdict = result.judged(Class::FastIo);
        assert_eq!(verdict.judgements[0].episodes, Some(3));
        assert!(verdict.sentences()[1].contains("than 100 µs (3 episodes) in"));
        let other = result.judged(Class::Deadline(150_000));
        assert_eq!(other.judgements[0].episodes, None);
    }

    #[test]
    fn one_late_wakeup_is_enough_and_the_limit_itself_is_not_late() {
        let verdict = result(500_000, 100_001, false).judged(Class::FastIo);
        assert_eq!(
            (verdict.outcome(), verdict.exit_status()),
            (Outcome::Exceeded, 3)
        );
        assert_eq!(verdict.judgements[0].late, 2);
        let verdict = result(500_000, 100_000, false).judged(Class::FastIo);
        assert_eq!(verdict.outcome(), Outcome::Held);
    }

    #[test]
    fn a_virtual_machine_never_gets_a_hardware_verdict() {
        for time in [
            TimeBase::Real,
            TimeBase::Virtual,
            TimeBase::Guest,
            TimeBase::Imported,
        ] {
            let mut virtual_machine = result(500_000, 5_000, true);
            virtual_machine.time = time;
            let verdict = virtual_machine.judged(Class::Multimedia);
            assert!(!verdict.about_hardware);
            assert_eq!(verdict.exit_status(), 4);
            assert!(verdict.sentences()[0].contains("no verdict on hardware"));
        }
        let mut unknown = result(500_000, 5_000, false);
        unknown.machine.is_virtual = Reading(None);
        assert_eq!(unknown.judged(Class::Multimedia).exit_status(), 4);
    }

    #[test]
    fn what_is_missing_weakens() {
        let mut weak = result(500_000, 5_000, false);
        weak.missing.push(Missing {
            what: "memory locking".to_owned(),
            reason: "not permitted".to_owned(),
            remedy: "run as root".to_owned(),
            weakens_verdict: true,
        });
        let verdict = weak.judged(Class::Instrument);
        assert_eq!(verdict.judgements[0].strength, Strength::Weak);
        assert!(
            verdict
                .sentences()
                .last()
                .unwrap()
                .contains("memory locking")
        );
        let few = result(400, 5_000, false).judged(Class::Instrument);
        assert_eq!(
            (few.outcome(), few.exit_status()),
            (Outcome::Inconclusive, 4)
        );
    }
}
