//! The judgement: whether a deadline was held, how strong the evidence is, and what it is a statement about.
//! The judging itself is in `judge`.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use tautline_report::plot::latency_text;
use tautline_state::text::clean;
use tautline_state::{Others, units};

/// The value of `format` in every result file of the lab.
pub const FORMAT: &str = "tautline-lab";
/// The version of the schema. Raised when a reader of the old one would misread the new one.
pub const VERSION: u32 = 1;
/// Longest result file. A week's result takes less than a megabyte: lower, and a list of many kernels would be
/// refused; higher, and a file of another kind takes memory before it is refused.
pub const FILE_BYTES_MAX: usize = 64 << 20;
/// Longest text in a result that is shown. The kernel's command line has up to 4,096 bytes: lower, and it is cut;
/// higher, and a file from elsewhere fills the terminal.
pub const TEXT_CHARS_MAX: usize = 4096;

/// How the machine was set while it was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// Without changes.
    Untouched,
    /// With the changes listed in the result.
    Tuned,
    /// The probe in a partition, and everything else out of it.
    Partition,
}

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

/// Deadlines whose episodes are counted while a run measures: those of the paper's classes and of the one asked for.
pub fn deadlines_ns(class: Option<Class>) -> Vec<u64> {
    let mut all: Vec<u64> = Class::PAPER
        .into_iter()
        .chain(class)
        .map(Class::deadline_ns)
        .collect();
    all.sort_unstable();
    all.dedup();
    all
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
    "unknown class '{0}': use multimedia, instrument, fast-io, linuxcnc, or a deadline such as 250us or 2ms"
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
            _ => units::time(text)
                .map(|time| time.as_nanos() as u64)
                .filter(|ns| *ns > 0)
                .map(Class::Deadline)
                .ok_or_else(|| UnknownClass(text.to_owned())),
        }
    }
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
    /// Wake-ups judged, with those that were skipped because the one before came too late.
    pub samples: u64,
    /// Wake-ups later than the deadline, skipped ones among them.
    pub late: u64,
    /// The greatest latency.
    pub max_ns: u64,
    /// Measured time.
    pub duration_ns: u64,
    /// With 95 % confidence at most this share of wake-ups is late under these loads, if each is late by itself.
    pub late_share_max: f64,
    /// Stretches of time in which wake-ups were late, where they were counted for this deadline.
    pub episodes: Option<u64>,
    /// With 95 % confidence as much time or more lies between two episodes on average, under these loads.
    pub between_episodes_ns_min: Option<u64>,
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

/// A run of the lab by which a machine is judged: the fields of its result that a view shows.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Judged {
    /// Name of the run.
    pub label: String,
    /// Start in seconds since 1970 (CLOCK_REALTIME); 0 where time is virtual.
    pub started_unix_s: u64,
    /// The judgement, where one was asked for.
    pub verdict: Option<Verdict>,
}

impl Judged {
    /// Reads a file that `taut lab run` wrote; others may have written it, and its texts are made fit to be shown.
    ///
    /// # Errors
    /// The reason, as text that begins with the path: the file cannot be read, or is no result of this version.
    pub fn read(path: &Path) -> Result<Judged, String> {
        let told = |why: &dyn fmt::Display| format!("{}: {why}", path.display());
        let bytes = tautline_state::read_bytes(path, FILE_BYTES_MAX, Others::MayWrite);
        let bytes = bytes.map_err(|error| told(&error))?;
        Judged::parse(&bytes).map_err(|why| told(&why))
    }

    fn parse(bytes: &[u8]) -> Result<Judged, String> {
        let no_result = |error| format!("no result of taut lab run: {error}");
        let mut value: serde_json::Value = serde_json::from_slice(bytes).map_err(no_result)?;
        if value["format"] != FORMAT {
            return Err("no result of taut lab run".to_owned());
        }
        if value["version"] != VERSION {
            let found = &value["version"];
            return Err(format!(
                "result version {found}, this program reads {VERSION}"
            ));
        }
        clean(&mut value, TEXT_CHARS_MAX, usize::MAX);
        serde_json::from_value(value).map_err(no_result)
    }
}

impl Verdict {
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
            State::Partition => "In a partition",
        };
        let episodes = match self.episodes {
            Some(1) => " (1 episode)".to_owned(),
            Some(count @ 2..) => format!(" ({count} episodes)"),
            _ => String::new(),
        };
        let measured = format!(
            "{} of {} wake-ups later than {}{episodes} in {}, worst {}",
            self.late,
            self.samples,
            latency_text(deadline_ns),
            match self.duration_ns {
                0 => "an unknown time".to_owned(), // of a file that another tool wrote
                ns => latency_text(ns),
            },
            latency_text(self.max_ns),
        );
        match self.outcome {
            Outcome::Held => format!(
                "{state}: {measured}; so at most {:.2e} of all are late if each is late by itself (3/N){}, with 95 % confidence, under these loads; {} evidence.",
                self.late_share_max,
                self.between_episodes_ns_min
                    .map_or(String::new(), |ns| format!(
                        ", and episodes of late ones are {} apart or more on average (T/3)",
                        latency_text(ns)
                    )),
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

fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| {
        first.to_uppercase().chain(letters).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn episodes_are_counted_for_each_class_once() {
        assert_eq!(deadlines_ns(None), [100_000, 1_000_000, 100_000_000]);
        assert_eq!(deadlines_ns(Some(Class::Linuxcnc)), deadlines_ns(None));
        assert_eq!(deadlines_ns(Some(Class::Deadline(7)))[0], 7);
    }

    #[test]
    fn classes_are_read() {
        assert_eq!("linuxcnc".parse(), Ok(Class::Linuxcnc));
        assert_eq!("40us".parse(), Ok(Class::Deadline(40_000)));
        assert!("soon".parse::<Class>().is_err());
    }
}
