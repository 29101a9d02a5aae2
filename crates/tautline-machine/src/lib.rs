//! The fingerprint of a machine: what about it decides how well it can keep time.
//!
//! Every result of Tautline carries one, so that a figure can be judged and compared. Nothing is
//! changed and nothing is guessed: a value that cannot be read is the word `unknown`, in JSON too.
//! It is read from `/proc`, `/sys` and `/run` below a root directory, so that the tests can bring a
//! machine of their own.

pub mod other_work;
mod tree;
pub mod verdict;

use std::fmt;
use std::path::Path;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The word that stands for a value that could not be read.
pub const UNKNOWN: &str = "unknown";

/// A value that was read, or the knowledge that it could not be.
///
/// Serialised as the value itself, or as the string `unknown`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading<T>(pub Option<T>);

impl<T> Reading<T> {
    /// The value, where it is known.
    pub fn known(&self) -> Option<&T> {
        self.0.as_ref()
    }
}

impl<T> Default for Reading<T> {
    fn default() -> Self {
        Reading(None)
    }
}

impl<T> From<Option<T>> for Reading<T> {
    fn from(value: Option<T>) -> Self {
        Reading(value)
    }
}

impl<T: fmt::Display> fmt::Display for Reading<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(value) => value.fmt(f),
            None => f.write_str(UNKNOWN),
        }
    }
}

impl<T: Serialize> Serialize for Reading<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0 {
            Some(value) => value.serialize(serializer),
            None => serializer.serialize_str(UNKNOWN),
        }
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Reading<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        enum Marker {
            #[serde(rename = "unknown")]
            Unknown,
        }
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Either<T> {
            Unknown(#[allow(dead_code)] Marker),
            Known(T),
        }
        Ok(Reading(match Either::deserialize(deserializer)? {
            Either::Unknown(_) => None,
            Either::Known(value) => Some(value),
        }))
    }
}

/// One idle state (C-state) that the kernel may put a CPU into.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdleState {
    /// The driver's name for it, such as `C6` or `haltpoll`.
    pub name: String,
    /// Worst-case time to leave it, as the driver states it, in microseconds.
    pub exit_latency_us: u64,
    /// Whether it is switched off on the first CPU.
    pub disabled: bool,
}

/// Settings that decide how well a machine keeps time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Kernel release, such as `6.18.44`.
    pub kernel_release: Reading<String>,
    /// Kernel build string, such as `#1 SMP PREEMPT_DYNAMIC …`.
    pub kernel_version: Reading<String>,
    /// Instruction set, in the kernel's spelling.
    pub architecture: Reading<String>,
    /// Name of the first processor, or of the board where the processor has none.
    pub cpu_model: Reading<String>,
    /// CPUs that are online.
    pub cpu_count: Reading<usize>,
    /// Memory that the kernel manages, in bytes.
    pub memory_bytes: Reading<u64>,
    /// Whether this is a virtual machine.
    pub is_virtual: Reading<bool>,
    /// The hypervisor's name where it tells it; `none` on hardware.
    pub hypervisor: Reading<String>,
    /// Preemption model: `none`, `voluntary`, `lazy`, `full` or `rt`.
    pub preemption: Reading<String>,
    /// Where the preemption model was read.
    pub preemption_source: Reading<String>,
    /// Those parameters of the kernel's command line that change timing.
    pub kernel_parameters: Reading<Vec<String>>,
    /// Clock source in use.
    pub clock_source: Reading<String>,
    /// Frequency governors in use, comma-separated where CPUs differ; `none` where the kernel does not set frequencies.
    pub frequency_governor: Reading<String>,
    /// Idle driver and governor, such as `intel_idle/menu`; `none` where the kernel has no idle driver.
    pub idle_driver: Reading<String>,
    /// Idle states of the first CPU.
    pub idle_states: Reading<Vec<IdleState>>,
    /// Simultaneous multithreading: `on`, `off`, `forceoff`, `notsupported` or `notimplemented`.
    pub smt: Reading<String>,
    /// CPUs kept away from the scheduler, as a list; `none` where there are none.
    pub isolated_cpus: Reading<String>,
    /// CPUs without a periodic tick, as a list; `none` where there are none.
    pub tickless_cpus: Reading<String>,
    /// Share of a period that real-time threads may take: `950000/1000000 us`, or `off`.
    pub realtime_throttling: Reading<String>,
    /// State of the kernel's mitigations for vulnerabilities that this processor has.
    pub mitigations: Reading<Vec<String>>,
}

impl Machine {
    /// Reads the machine that this process runs on.
    pub fn read() -> Machine {
        Machine::read_below(Path::new("/"))
    }

    /// Reads a machine whose `/proc` and `/sys` lie below `root`.
    pub fn read_below(root: &Path) -> Machine {
        tree::read(root)
    }

    /// Label and text of every value, in the order of reports.
    pub fn rows(&self) -> Vec<(&'static str, String)> {
        vec![
            ("Kernel", self.kernel_release.to_string()),
            ("Kernel build", self.kernel_version.to_string()),
            ("Preemption", self.preemption_text()),
            ("Architecture", self.architecture.to_string()),
            ("Processor", self.cpu_model.to_string()),
            ("CPUs online", self.cpu_count.to_string()),
            (
                "Memory",
                text_or_unknown(&self.memory_bytes, |bytes| {
                    format!("{:.1} GiB", *bytes as f64 / f64::from(1 << 30))
                }),
            ),
            ("Virtual machine", self.virtual_text()),
            (
                "Kernel parameters",
                text_or_unknown(&self.kernel_parameters, |list| list_text(list)),
            ),
            ("Clock source", self.clock_source.to_string()),
            ("Frequency governor", self.frequency_governor.to_string()),
            ("Idle driver", self.idle_driver.to_string()),
            (
                "Idle states",
                text_or_unknown(&self.idle_states, |states| {
                    list_text(&states.iter().map(idle_state_text).collect::<Vec<_>>())
                }),
            ),
            ("SMT", self.smt.to_string()),
            ("Isolated CPUs", self.isolated_cpus.to_string()),
            ("Tickless CPUs", self.tickless_cpus.to_string()),
            ("Real-time throttling", self.realtime_throttling.to_string()),
            (
                "Mitigations",
                text_or_unknown(&self.mitigations, |list| list_text(list)),
            ),
        ]
    }

    /// One line for the top of a table: processor, kernel, preemption, virtual or not.
    pub fn summary(&self) -> String {
        format!(
            "{} x {}, Linux {}, preemption {}, {}",
            self.cpu_count,
            self.cpu_model,
            self.kernel_release,
            self.preemption,
            match self.is_virtual.known() {
                Some(true) => format!("virtual machine ({})", self.hypervisor),
                Some(false) => "hardware".to_owned(),
                None => "virtual or not: unknown".to_owned(),
            }
        )
    }

    fn preemption_text(&self) -> String {
        match (self.preemption.known(), self.preemption_source.known()) {
            (Some(model), Some(source)) => format!("{model} (from {source})"),
            (Some(model), None) => model.clone(),
            (None, _) => UNKNOWN.to_owned(),
        }
    }

    fn virtual_text(&self) -> String {
        match self.is_virtual.known() {
            Some(true) => format!("yes, hypervisor {}", self.hypervisor),
            Some(false) => "no".to_owned(),
            None => UNKNOWN.to_owned(),
        }
    }
}

fn text_or_unknown<T>(reading: &Reading<T>, text: impl Fn(&T) -> String) -> String {
    reading.known().map_or(UNKNOWN.to_owned(), text)
}

fn list_text(list: &[String]) -> String {
    if list.is_empty() {
        "none".to_owned()
    } else {
        list.join(", ")
    }
}

fn idle_state_text(state: &IdleState) -> String {
    format!(
        "{} ({} us{})",
        state.name,
        state.exit_latency_us,
        if state.disabled { ", off" } else { "" }
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_survives_json() {
        let machine = Machine::read();
        assert!(machine.kernel_release.known().is_some());
        assert!(machine.architecture.known().is_some());
        assert!(machine.cpu_count.known().is_some_and(|count| *count > 0));
        let text = serde_json::to_string(&machine).unwrap();
        assert_eq!(serde_json::from_str::<Machine>(&text).unwrap(), machine);
        assert!(machine.summary().contains("Linux"));
    }
}
