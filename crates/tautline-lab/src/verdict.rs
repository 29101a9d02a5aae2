//! The judgement: whether a deadline was held, how strong the evidence is, and what it is a statement about.
//!
//! A measurement proves that a deadline is missed; it never proves that it is held. That no wake-up out of N
//! was late bounds the share of late ones only to 3/N (95 % confidence, the "rule of three"), and only under
//! the loads that were run. Every verdict says so in figures.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::result::{LabResult, ProbeKind, State, TimeBase};
use tautline_report::plot::latency_text;

/// Below this many wake-ups nothing is concluded: the bound 3/N would be above 0.3 %.
pub const SAMPLES_MIN: u64 = 1_000;

/// Wake-ups from which the evidence is moderate (3/N = 0.003 %) and strong (0.0003 %).
pub const SAMPLES_MODERATE: u64 = 100_000;
/// See [`SAMPLES_MODERATE`].
pub const SAMPLES_STRONG: u64 = 1_000_000;

/// Time from which evidence can be strong: shorter runs miss what comes once an hour (log rotation, timers).
pub const STRONG_DURATION_NS: u64 = 3_600 * 1_000_000_000;

/// Class that a machine is judged for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// The Emblix paper's first: multimedia and networking devices, above 100 ms.
    Multimedia,
    /// The paper's second: electronic musical instruments, 1 ms whatever the load.
    Instrument,
    /// The paper's third: A/D conversion, tens of microseconds (below 100 µs).
    FastIo,
    /// LinuxCNC's limit for software stepping, 100 µs; with its grade in words.
    Linuxcnc,
    /// A deadline that the user gave, in nanoseconds.
    Deadline(u64),
}

impl Class {
    /// The greatest latency that the class allows.
    pub fn deadline_ns(self) -> u64 {
        match self {
            Class::Multimedia => 100_000_000,
            Class::Instrument => 1_000_000,
            Class::FastIo | Class::Linuxcnc => 100_000,
            Class::Deadline(ns) => ns,
        }
    }

    /// The paper's three, most demanding last.
    pub const PAPER: [Class; 3] = [Class::Multimedia, Class::Instrument, Class::FastIo];
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Class::Multimedia => f.write_str("multimedia and networking devices (100 ms)"),
            Class::Instrument => f.write_str("electronic musical instruments (1 ms)"),
            Class::FastIo => f.write_str("A/D conversion, tens of microseconds (100 µs)"),
            Class::Linuxcnc => f.write_str("LinuxCNC software stepping (100 µs)"),
            Class::Deadline(ns) => write!(f, "a deadline of {}", latency_text(*ns)),
        }
    }
}

/// The text is neither a class nor a duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' is no class: use multimedia, instrument, fast-io, linuxcnc, or a deadline such as 250us or 2ms"
)]
pub struct UnknownClass(String);

impl FromStr for Class {
    type Err = UnknownClass;

    fn from_str(text: &str) -> Result<Class, UnknownClass> {
        match text {
            "multimedia" => Ok(Class::Multimedia),
            "instrument" => Ok(Class::Instrument),
            "fast-io" => Ok(Class::FastIo),
            "linuxcnc" => Ok(Class::Linuxcnc),
            _ => parse_duration_ns(text)
                .map(Class::Deadline)
                .ok_or_else(|| UnknownClass(text.to_owned())),
        }
    }
}

/// Reads `250us`, `2ms`, `1.5s`, `800ns`, `2min`, `1h`; nothing for zero, no unit, or anything else.
pub fn parse_duration_ns(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| c != '.' && !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(digits);
    let scale = match unit.trim_start() {
        "ns" => 1.0,
        "us" | "µs" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        "min" => 60e9,
        "h" => 3_600e9,
        _ => return None,
    };
    let ns = number.parse::<f64>().ok()? * scale;
    (ns >= 1.0 && ns <= u64::MAX as f64).then_some(ns.round() as u64)
}

/// Value that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// No wake-up was late.
    Held,
    /// At least one wake-up was late.
    Exceeded,
    /// Too little was measured.
    Inconclusive,
}

/// How much the evidence is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Strength {
    /// Too few wake-ups, or something is missing that matters.
    Weak,
    /// Enough to plan with.
    Moderate,
    /// An hour and a million wake-ups under the combined load, with nothing missing.
    Strong,
}

/// The judgement of one state of the machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Judgement {
    /// Untouched or tuned.
    pub state: State,
    /// Value that was found.
    pub outcome: Outcome,
    /// Wake-ups judged.
    pub samples: u64,
    /// Wake-ups later than the deadline.
    pub late: u64,
    /// The greatest latency.
    pub max_ns: u64,
    /// Measured time.
    pub duration_ns: u64,
    /// With 95 % confidence at most this share of wake-ups is late under these loads.
    pub late_share_max: f64,
    /// How much that is worth.
    pub strength: Strength,
}

/// The judgement of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// Value that was asked for.
    pub class: Class,
    /// The deadline.
    pub deadline_ns: u64,
    /// Each state that was measured.
    pub judgements: Vec<Judgement>,
    /// Whether this says something about hardware. Never for a virtual machine.
    pub about_hardware: bool,
    /// Subject of the statement, in words.
    pub subject: String,
    /// The loads that it holds under.
    pub loads: Vec<String>,
    /// The LinuxCNC grade of the best state.
    pub linuxcnc_grade: String,
    /// Why the evidence is no stronger.
    pub weakened_by: Vec<String>,
}

impl Verdict {
    /// Judges a result against a class.
    pub fn of(result: &LabResult, class: Class) -> Verdict {
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

    /// The best outcome over the states: a machine that holds when tuned can be used tuned.
    pub fn outcome(&self) -> Outcome {
        let has = |outcome| {
            self.judgements
                .iter()
                .any(|judgement| judgement.outcome == outcome)
        };
        if has(Outcome::Held) {
            Outcome::Held
        } else if has(Outcome::Exceeded) {
            Outcome::Exceeded
        } else {
            Outcome::Inconclusive
        }
    }

    /// For scripts: 0 held (and about hardware), 3 exceeded, 4 no verdict: too little was measured, or it was
    /// held on a virtual machine, which says nothing about hardware.
    pub fn exit_status(&self) -> u8 {
        match self.outcome() {
            Outcome::Held if self.about_hardware => 0,
            Outcome::Exceeded => 3,
            _ => 4,
        }
    }

    /// The judgement in sentences, the most important first.
    pub fn sentences(&self) -> Vec<String> {
        let mut sentences = vec![self.headline()];
        for judgement in &self.judgements {
            sentences.push(judgement.sentence(self.deadline_ns));
        }
        sentences.push(format!(
            "Loads: {}. LinuxCNC grade: {}.",
            self.loads.join(", "),
            self.linuxcnc_grade
        ));
        if !self.weakened_by.is_empty() {
            sentences.push(format!("Weaker because: {}.", self.weakened_by.join("; ")));
        }
        sentences
    }

    fn headline(&self) -> String {
        let held_tuned_only = self.outcome() == Outcome::Held
            && self
                .judgements
                .iter()
                .any(|judgement| judgement.outcome != Outcome::Held);
        let what = match self.outcome() {
            Outcome::Held if held_tuned_only => "HELD in one of the two states",
            Outcome::Held => "HELD during this run",
            Outcome::Exceeded => "NOT HELD",
            Outcome::Inconclusive => "NO VERDICT, too little was measured",
        };
        format!(
            "{}: {what} ({}).",
            capitalised(&self.class.to_string()),
            self.subject
        )
    }
}

impl Judgement {
    fn sentence(&self, deadline_ns: u64) -> String {
        let state = match self.state {
            State::Untouched => "Untouched",
            State::Tuned => "Tuned",
        };
        let measured = format!(
            "{} of {} wake-ups later than {} in {}, worst {}",
            self.late,
            self.samples,
            latency_text(deadline_ns),
            latency_text(self.duration_ns),
            latency_text(self.max_ns),
        );
        match self.outcome {
            Outcome::Held => format!(
                "{state}: {measured}; so at most {:.2e} of all are late, with 95 % confidence (3/N), under these loads; {} evidence.",
                self.late_share_max,
                match self.strength {
                    Strength::Weak => "weak",
                    Strength::Moderate => "moderate",
                    Strength::Strong => "strong",
                }
            ),
            _ => format!("{state}: {measured}."),
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

fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| {
        first.to_uppercase().chain(letters).collect()
    })
}

fn judge(result: &LabResult, state: State, deadline_ns: u64, weakened_by: &[String]) -> Judgement {
    let all = result.wakeups(Some(state), None);
    let (samples, max_ns) = (all.count(), all.summary().max_ns);
    // A bucket that straddles the deadline is late: at most 0.1 % of the latency on the safe side. Only the
    // exact maximum can clear it.
    let late = if max_ns <= deadline_ns {
        0
    } else {
        all.buckets()
            .iter()
            .filter(|b| b.to_ns > deadline_ns)
            .map(|b| b.count)
            .sum::<u64>()
            .max(1)
    };
    let duration_ns = result
        .phases
        .iter()
        .filter(|phase| phase.state == state)
        .filter(|phase| phase.series.iter().any(|series| series.probe.is_wakeup()))
        .map(|phase| phase.duration_ns)
        .sum();
    let outcome = match (late, samples) {
        (1.., _) => Outcome::Exceeded,
        (0, ..SAMPLES_MIN) => Outcome::Inconclusive,
        _ => Outcome::Held,
    };
    let strength = if samples < SAMPLES_MODERATE || !weakened_by.is_empty() {
        Strength::Weak
    } else if samples < SAMPLES_STRONG || duration_ns < STRONG_DURATION_NS {
        Strength::Moderate
    } else {
        Strength::Strong
    };
    let late_share_max = if late == 0 {
        (3.0 / samples.max(1) as f64).min(1.0)
    } else {
        upper_bound(late, samples)
    };
    Judgement {
        state,
        outcome,
        samples,
        late,
        max_ns,
        duration_ns,
        late_share_max,
        strength,
    }
}

/// Normal approximation of the one-sided 95 % bound of a Poisson count, good enough above 0 late ones.
fn upper_bound(late: u64, samples: u64) -> f64 {
    let late = late as f64;
    ((late + 1.645 * late.sqrt() + 1.7) / samples.max(1) as f64).min(1.0)
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
pub fn linuxcnc_grade(max_ns: u64) -> &'static str {
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
    use crate::machine::{Machine, Reading};
    use crate::result::{Missing, Phase, sleeper};
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
        let verdict = Verdict::of(&result(500_000, 80_000, false), Class::FastIo);
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
    }

    #[test]
    fn one_late_wakeup_is_enough_and_the_limit_itself_is_not_late() {
        let verdict = Verdict::of(&result(500_000, 100_001, false), Class::FastIo);
        assert_eq!(
            (verdict.outcome(), verdict.exit_status()),
            (Outcome::Exceeded, 3)
        );
        assert_eq!(verdict.judgements[0].late, 2);
        let verdict = Verdict::of(&result(500_000, 100_000, false), Class::FastIo);
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
            let verdict = Verdict::of(&virtual_machine, Class::Multimedia);
            assert!(!verdict.about_hardware);
            assert_eq!(verdict.exit_status(), 4);
            assert!(verdict.sentences()[0].contains("no verdict on hardware"));
        }
        let mut unknown = result(500_000, 5_000, false);
        unknown.machine.is_virtual = Reading(None);
        assert_eq!(Verdict::of(&unknown, Class::Multimedia).exit_status(), 4);
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
        let verdict = Verdict::of(&weak, Class::Instrument);
        assert_eq!(verdict.judgements[0].strength, Strength::Weak);
        assert!(
            verdict
                .sentences()
                .last()
                .unwrap()
                .contains("memory locking")
        );
        let few = Verdict::of(&result(400, 5_000, false), Class::Instrument);
        assert_eq!(
            (few.outcome(), few.exit_status()),
            (Outcome::Inconclusive, 4)
        );
    }

    #[test]
    fn durations_and_classes_are_read() {
        for (text, ns) in [
            ("250us", 250_000),
            ("1.5ms", 1_500_000),
            ("2s", 2_000_000_000),
            ("800ns", 800),
            ("10 us", 10_000),
        ] {
            assert_eq!(parse_duration_ns(text), Some(ns), "{text}");
        }
        for text in ["", "5", "us", "-1us", "0us", "1.2.3us", "1 fortnight"] {
            assert_eq!(parse_duration_ns(text), None, "{text}");
        }
        assert_eq!("linuxcnc".parse(), Ok(Class::Linuxcnc));
        assert_eq!("40us".parse(), Ok(Class::Deadline(40_000)));
        assert!("soon".parse::<Class>().is_err());
    }
}
