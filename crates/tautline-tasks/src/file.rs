//! The file format of task sets (`docs/executive.md`). Mistakes are reported with file, line, column, key and remedy.
//!
//! ```
//! let text = "[[task]]\nname = \"control\"\nperiod = \"1ms\"\nworst_case = \"100us\"\n";
//! let file = tautline_tasks::file::parse(text, "set.toml")?;
//! assert_eq!(file.set.tasks()[0].name, "control");
//! # Ok::<(), tautline_tasks::file::FileError>(())
//! ```

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::{Error as _, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};
use tautline_exec::{
    Activation, Location, Machine, OverrunPolicy, Receive, Scheduling, SetError, TablePlan, Task,
    TaskSet, Window,
};
use tautline_partition::{PartitionConfig, memory_from_text};
use tautline_state::cpus::CpuList;
use tautline_state::mistake;
use toml::de::{DeTable, DeValue};

use crate::program::Program;

/// Longest file. Lower: a table of thousands of windows does not fit. Higher: a file that is none, such as a disk
/// image, is read before it is refused.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// Remedy where the file says what is missing or too much by itself.
const SEE_DOCUMENTATION: &str = "docs/executive.md lists every key with its limits";

/// A mistake in a file.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct FileError {
    /// File, location and mistake.
    pub message: String,
    /// Remedy, in a sentence.
    pub remedy: String,
}

/// Message and remedy: this is how a program shows the error that it returns from `main`.
impl fmt::Debug for FileError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{self}\n  what to do: {}", self.remedy)
    }
}

/// Content of a file.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TaskFile {
    /// The set.
    pub set: TaskSet,
    /// Programs of the tasks, in the order of the set; none for a task without `exec`.
    pub programs: Vec<Option<Program>>,
    /// Partition in which the set runs, if the file has one.
    pub partition: Option<PartitionConfig>,
    /// Ports of the programs' inputs and outputs, in the order of the set.
    pub ports: Vec<TaskPorts>,
    /// File of the node whose ports activate tasks or hold their values, if the file names one.
    pub node: Option<PathBuf>,
}

/// Ports of a task with logical execution time: its inputs and its outputs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TaskPorts {
    /// Names of the sampling ports that are read.
    pub reads: Vec<String>,
    /// Outputs.
    pub writes: Vec<TaskOutput>,
}

impl TaskPorts {
    /// Whether the task has neither inputs nor outputs.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.reads.is_empty() && self.writes.is_empty()
    }
}

/// Output of a task: a port of the node, and the port of a peer that it sends to.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct TaskOutput {
    /// Name of the sampling port that sends.
    pub port: String,
    /// Name of the peer.
    pub to: String,
    /// Number of the peer's port.
    pub number: u16,
}

/// Reads a task set from a file. Its programs start in the file's directory.
///
/// # Errors
/// A file that cannot be read, or the first mistake in it.
pub fn read(path: &Path) -> Result<TaskFile, FileError> {
    let unreadable = |reason: String| FileError {
        message: format!("cannot read {}: {reason}", path.display()),
        remedy: "name a file with a task set, such as examples/three_rates.toml".to_owned(),
    };
    let length = std::fs::metadata(path).map_err(|error| unreadable(error.to_string()))?;
    if !length.is_file() {
        return Err(unreadable("it is not a regular file".to_owned()));
    }
    if length.len() > FILE_BYTES_MAX {
        return Err(unreadable(format!(
            "it has more than {FILE_BYTES_MAX} bytes"
        )));
    }
    let text = std::fs::read_to_string(path).map_err(|error| unreadable(error.to_string()))?;
    let mut file = parse(&text, &path.display().to_string())?;
    let directory = path.parent().unwrap_or(Path::new(""));
    for program in file.programs.iter_mut().flatten() {
        program.directory = directory.to_owned();
    }
    file.node = file.node.map(|node| directory.join(node));
    Ok(file)
}

/// Reads a task set from text. `name` is the file's in messages; programs start in the current directory.
///
/// # Errors
/// The first mistake in the text.
pub fn parse(text: &str, name: &str) -> Result<TaskFile, FileError> {
    let document: Document = toml::from_str(text).map_err(|error| FileError {
        message: at(
            text,
            name,
            error.span().unwrap_or_default(),
            &mistake::in_words(error.message()),
        ),
        remedy: SEE_DOCUMENTATION.to_owned(),
    })?;
    document.declare().map_err(|error| FileError {
        message: at(text, name, span(text, &error.location), &error.to_string()),
        remedy: error.remedy,
    })
}

/// `FILE:LINE:COLUMN: MESSAGE`.
fn at(text: &str, name: &str, span: Range<usize>, message: &str) -> String {
    let (line, column) = mistake::position(text, span.start);
    format!("{name}:{line}:{column}: {message}")
}

/// Range of the value of a key; that of the section if the key is not there.
fn span(text: &str, location: &Location) -> Range<usize> {
    let Ok(document) = DeTable::parse(text) else {
        return 0..0;
    };
    let value = |table: &DeTable<'_>, key: &str| table.get(key).map(toml::Spanned::span);
    let entry = |section: &str, index: usize, key: &str| {
        let DeValue::Array(entries) = document.get_ref().get(section)?.get_ref() else {
            return None;
        };
        let entry = entries.get(index)?;
        let table = entry.get_ref().as_table()?;
        Some(value(table, key).unwrap_or(entry.span()))
    };
    let found = match *location {
        Location::Set(key) => value(document.get_ref(), key),
        Location::Machine(key) => document.get_ref().get("machine").and_then(|machine| {
            let table = machine.get_ref().as_table()?;
            Some(value(table, key).unwrap_or(machine.span()))
        }),
        Location::Receive(index, key) => entry("receive", index, key),
        Location::Task(index, key) => entry("task", index, key),
        Location::Window(index, key) => entry("window", index, key),
    };
    found.unwrap_or_default()
}

/// A mistake, before its location in the text is known.
struct Mistake {
    location: Location,
    subject: String,
    message: String,
    remedy: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = self.location.key();
        write!(formatter, "{}`{key}`: {}", self.subject, self.message)
    }
}

/// A time with its unit, such as `"250us"`.
#[derive(Clone, Copy, Debug, Default)]
struct Time(Duration);

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;

        impl Visitor<'_> for Text {
            type Value = Time;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(
                    formatter,
                    "a time with its unit, such as \"1ms\" or \"250us\""
                )
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Time, E> {
                with_unit(text)
                    .map(Time)
                    .ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
            }
        }

        deserializer.deserialize_str(Text)
    }
}

/// Units of times, in nanoseconds.
const UNITS: [(&str, u64); 7] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("min", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// A time such as `1.5ms`, exact to the nanosecond; finer digits are left out.
fn with_unit(text: &str) -> Option<Duration> {
    let digits = text.find(|one: char| one != '.' && !one.is_ascii_digit())?;
    let (number, unit) = text.split_at(digits);
    let (_, scale) = UNITS.iter().find(|(name, _)| *name == unit.trim_start())?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let whole = whole.parse::<u64>().ok()?.checked_mul(*scale)?;
    let mut place = *scale;
    let mut ns = whole;
    for digit in fraction.chars() {
        place /= 10;
        ns = ns.checked_add(u64::from(digit.to_digit(10)?) * place)?;
    }
    Some(Duration::from_nanos(ns))
}

/// A priority or number that may be written wrongly: its range is checked with the set, which names the limits.
fn small<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u8>, D::Error> {
    let number = i64::deserialize(deserializer)?;
    let fits = u8::try_from(number);
    fits.map(Some)
        .map_err(|_| D::Error::custom(format!("{number} is out of range (1 to 98)")))
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Schedule {
    RateMonotonic,
    DeadlineMonotonic,
    Fixed,
    EarliestDeadline,
    Table,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Overrun {
    Skip,
    CatchUp,
    Stop,
    SafeMode,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    schedule: Option<Schedule>,
    #[serde(default)]
    modes: Vec<String>,
    safe_mode: Option<String>,
    minor_frame: Option<Time>,
    node: Option<PathBuf>,
    partition: Option<PartitionSection>,
    #[serde(default)]
    machine: MachineSection,
    #[serde(default)]
    receive: Vec<ReceiveEntry>,
    #[serde(default)]
    task: Vec<TaskEntry>,
    #[serde(default)]
    window: Vec<WindowEntry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PartitionSection {
    /// A configuration without CPUs: the name is checked where its location in the file is known.
    #[serde(deserialize_with = "partition_name")]
    name: PartitionConfig,
    #[serde(deserialize_with = "cpu_list")]
    cpus: CpuList,
    #[serde(default, deserialize_with = "memory")]
    memory: u64,
}

impl PartitionSection {
    fn config(self) -> PartitionConfig {
        let mut config = self.name.with_memory(self.memory);
        config.cpus = self.cpus;
        config
    }
}

fn partition_name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PartitionConfig, D::Error> {
    let name = String::deserialize(deserializer)?;
    let config = PartitionConfig::new(&name, CpuList::default());
    config.map_err(|error| D::Error::custom(format!("{error}: {}", error.remedy())))
}

fn cpu_list<'de, D: Deserializer<'de>>(deserializer: D) -> Result<CpuList, D::Error> {
    let text = String::deserialize(deserializer)?;
    text.parse().map_err(D::Error::custom)
}

fn memory<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let text = String::deserialize(deserializer)?;
    let refused = || {
        let text = text.escape_debug();
        D::Error::custom(format!("`{text}` is no size such as \"64M\" or \"1G\""))
    };
    memory_from_text(&text).ok_or_else(refused)
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct MachineSection {
    #[serde(default)]
    release_jitter: Time,
    #[serde(default)]
    blocking: Time,
    #[serde(default)]
    overhead: Time,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ReceiveEntry {
    name: String,
    rate: u32,
    burst: Option<u32>,
    worst_case: Time,
    #[serde(default, deserialize_with = "small")]
    priority: Option<u8>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TaskEntry {
    name: String,
    period: Time,
    phase: Option<Time>,
    port: Option<String>,
    deadline: Option<Time>,
    worst_case: Time,
    budget: Option<Time>,
    #[serde(default, deserialize_with = "small")]
    priority: Option<u8>,
    #[serde(default)]
    critical_section: Time,
    #[serde(default)]
    release_jitter: Time,
    #[serde(default)]
    modes: Vec<String>,
    overrun: Option<Overrun>,
    catch_up_max: Option<u32>,
    accept: Option<String>,
    exec: Option<String>,
    safe_exec: Option<String>,
    #[serde(default)]
    reads: Vec<String>,
    #[serde(default)]
    writes: Vec<TaskOutput>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WindowEntry {
    task: String,
    offset: Time,
    duration: Time,
}

/// Releases that a task makes up for where none are named. Higher: one long overrun fills the next periods.
const CATCH_UP_DEFAULT: u32 = 1;

/// Inputs and outputs of a program. Lower: programs pack what does not belong together. Higher: lines that do not fit
/// into a pipe.
const VALUES_MAX: usize = 16;

/// Frames of a burst where none are named: the burst of a policed port.
const BURST_DEFAULT: u32 = 16;

impl Document {
    fn declare(self) -> Result<TaskFile, Mistake> {
        let scheduling = match self.schedule {
            None | Some(Schedule::DeadlineMonotonic) => Scheduling::DeadlineMonotonic,
            Some(Schedule::RateMonotonic) => Scheduling::RateMonotonic,
            Some(Schedule::Fixed) => Scheduling::Declared,
            Some(Schedule::EarliestDeadline) => Scheduling::EarliestDeadline,
            Some(Schedule::Table) => Scheduling::Table,
        };
        self.check_table(scheduling)?;
        self.check_safe_mode()?;
        self.check_node()?;
        let names: Vec<String> = self.task.iter().map(|task| task.name.clone()).collect();
        let plan = TablePlan {
            minor_frame: self.minor_frame.map(|time| time.0),
            windows: windows(self.window, &names)?,
        };
        let machine = Machine {
            release_jitter: self.machine.release_jitter.0,
            blocking: self.machine.blocking.0,
            overhead: self.machine.overhead.0,
        };
        let receive = self.receive.into_iter().map(|entry| Receive {
            name: entry.name,
            rate: entry.rate,
            burst: entry.burst.unwrap_or(BURST_DEFAULT),
            worst_case: entry.worst_case.0,
            priority: entry.priority,
        });
        let programs = self.task.iter().enumerate().map(program);
        let programs = programs.collect::<Result<_, _>>()?;
        let ports = self.task.iter().map(|task| TaskPorts {
            reads: task.reads.clone(),
            writes: task.writes.clone(),
        });
        let ports = ports.collect();
        let tasks = self.task.into_iter().enumerate();
        let tasks: Vec<Task> = tasks.map(task).collect::<Result<_, _>>()?;
        let set = TaskSet::declare(scheduling, machine, receive.collect(), self.modes, tasks)
            .and_then(|set| set.with_table(plan))
            .and_then(|set| match &self.safe_mode {
                Some(mode) => set.with_safe_mode(mode),
                None => Ok(set),
            })
            .and_then(|set| match scheduling {
                // Windows are checked against the frames of each mode.
                Scheduling::Table => tautline_exec::Analysis::of_all(&set).map(|_| set),
                _ => Ok(set),
            })
            .map_err(|error| mistake(&error, &names))?;
        Ok(TaskFile {
            set,
            programs,
            ports,
            partition: self.partition.map(PartitionSection::config),
            node: self.node,
        })
    }

    /// A node is there for the tasks that its ports activate or whose values they hold.
    fn check_node(&self) -> Result<(), Mistake> {
        let has_values = |task: &TaskEntry| !task.reads.is_empty() || !task.writes.is_empty();
        let has_port = self
            .task
            .iter()
            .any(|task| task.port.is_some() || has_values(task));
        if self.node.is_some() && !has_port {
            return Err(Mistake {
                location: Location::Set("node"),
                subject: String::new(),
                message: "has no effect, because no task has a port".to_owned(),
                remedy: "remove it, or write port = \"NAME\" for a task".to_owned(),
            });
        }
        let tasks = self.task.iter().enumerate();
        tasks
            .filter(|(_, task)| has_values(task))
            .try_for_each(|(index, task)| {
                let key = if task.reads.is_empty() {
                    "writes"
                } else {
                    "reads"
                };
                let (message, remedy) = if task.exec.is_none() {
                    (
                        "is for tasks with a program",
                        "name the program with `exec`; code reads and writes ports by itself",
                    )
                } else if task.port.is_some() {
                    (
                        "is for tasks that time activates",
                        "remove `port`, and read that port instead",
                    )
                } else if self.node.is_none() {
                    (
                        "the set has no node",
                        "name the file of the node with the ports: node = \"FILE\"",
                    )
                } else if task.reads.len().max(task.writes.len()) > VALUES_MAX {
                    (
                        "has more than 16 ports",
                        "put what belongs together into one value",
                    )
                } else {
                    return Ok(());
                };
                Err(Mistake {
                    location: Location::Task(index, key),
                    subject: format!("task `{}`, ", task.name.escape_debug()),
                    message: message.to_owned(),
                    remedy: remedy.to_owned(),
                })
            })
    }

    /// A task may go to the safe mode only if there is one, and there is one only for such a task.
    fn check_safe_mode(&self) -> Result<(), Mistake> {
        let goes = |task: &TaskEntry| task.overrun == Some(Overrun::SafeMode);
        let first = self.task.iter().position(goes);
        let (location, message, remedy) = match (first, &self.safe_mode) {
            (Some(index), None) => (
                Location::Task(index, "overrun"),
                "the set has no safe mode",
                "name one of the modes with `safe_mode` at the top of the file",
            ),
            (None, Some(_)) => (
                Location::Set("safe_mode"),
                "has no effect, because no task goes to it",
                "remove it, or write overrun = \"safe-mode\" for a task",
            ),
            _ => return Ok(()),
        };
        Err(Mistake {
            location,
            subject: String::new(),
            message: message.to_owned(),
            remedy: remedy.to_owned(),
        })
    }

    /// Keys of tables have no meaning elsewhere.
    fn check_table(&self, scheduling: Scheduling) -> Result<(), Mistake> {
        let location = match (&self.minor_frame, self.window.first()) {
            (Some(_), _) => Location::Set("minor_frame"),
            (None, Some(_)) => Location::Window(0, "task"),
            (None, None) => return Ok(()),
        };
        if scheduling == Scheduling::Table {
            return Ok(());
        }
        Err(Mistake {
            location,
            subject: String::new(),
            message: "has no effect without a table".to_owned(),
            remedy: "remove it, or write schedule = \"table\"".to_owned(),
        })
    }
}

fn task((index, entry): (usize, TaskEntry)) -> Result<Task, Mistake> {
    let activation = match (entry.port, entry.phase) {
        (None, phase) => Activation::Time {
            phase: phase.unwrap_or_default().0,
        },
        (Some(port), None) => Activation::Message { port },
        (Some(_), Some(_)) => {
            return Err(Mistake {
                location: Location::Task(index, "phase"),
                subject: format!("task `{}`, ", entry.name),
                message: "a task that messages activate has no phase".to_owned(),
                remedy: "remove either `phase` or `port`".to_owned(),
            });
        }
    };
    let overrun = overrun(index, &entry.name, entry.overrun, entry.catch_up_max)?;
    Ok(Task {
        name: entry.name,
        activation,
        period: entry.period.0,
        deadline: entry.deadline.unwrap_or(entry.period).0,
        worst_case: entry.worst_case.0,
        budget: entry.budget.map(|time| time.0),
        priority: entry.priority,
        critical_section: entry.critical_section.0,
        release_jitter: entry.release_jitter.0,
        modes: entry.modes,
        overrun,
        accept: entry.accept,
    })
}

/// Words are parted by spaces; a program with spaces in its name needs a script around it.
fn program((index, entry): (usize, &TaskEntry)) -> Result<Option<Program>, Mistake> {
    let wrong = |key, message: &str, remedy: &str| Mistake {
        location: Location::Task(index, key),
        subject: format!("task `{}`, ", entry.name.escape_debug()),
        message: message.to_owned(),
        remedy: remedy.to_owned(),
    };
    let words = |key, text: &str| -> Result<Vec<String>, Mistake> {
        let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        if words.is_empty() || text.contains('\0') {
            return Err(wrong(
                key,
                "no program is named",
                "write its path and its arguments",
            ));
        }
        Ok(words)
    };
    let safe_words = entry.safe_exec.as_deref();
    let safe_words = safe_words
        .map(|text| words("safe_exec", text))
        .transpose()?;
    match &entry.exec {
        Some(text) => Ok(Some(Program {
            words: words("exec", text)?,
            safe_words,
            directory: PathBuf::new(),
        })),
        None if safe_words.is_some() => Err(wrong(
            "safe_exec",
            "has no effect without a program",
            "remove it, or name the program with `exec`",
        )),
        None => Ok(None),
    }
}

fn overrun(
    index: usize,
    name: &str,
    overrun: Option<Overrun>,
    jobs_max: Option<u32>,
) -> Result<OverrunPolicy, Mistake> {
    if jobs_max.is_some() && overrun != Some(Overrun::CatchUp) {
        return Err(Mistake {
            location: Location::Task(index, "catch_up_max"),
            subject: format!("task `{}`, ", name.escape_debug()),
            message: "has no effect unless the task catches up".to_owned(),
            remedy: "remove it, or write overrun = \"catch-up\"".to_owned(),
        });
    }
    Ok(match overrun {
        None | Some(Overrun::Skip) => OverrunPolicy::Skip,
        Some(Overrun::CatchUp) => OverrunPolicy::CatchUp {
            jobs_max: jobs_max.unwrap_or(CATCH_UP_DEFAULT),
        },
        Some(Overrun::Stop) => OverrunPolicy::Stop,
        Some(Overrun::SafeMode) => OverrunPolicy::SafeMode,
    })
}

fn windows(entries: Vec<WindowEntry>, names: &[String]) -> Result<Vec<Window>, Mistake> {
    let entries = entries.into_iter().enumerate();
    let windows = entries.map(|(index, entry)| {
        let found = names.iter().position(|name| *name == entry.task);
        let task = found.ok_or_else(|| Mistake {
            location: Location::Window(index, "task"),
            subject: String::new(),
            message: format!("no task is called `{}`", entry.task.escape_debug()),
            remedy: "name a task of the file".to_owned(),
        })?;
        Ok(Window {
            task,
            offset: entry.offset.0,
            duration: entry.duration.0,
        })
    });
    windows.collect()
}

fn mistake(error: &SetError, names: &[String]) -> Mistake {
    let subject = match error.location {
        Location::Task(index, _) => format!("task `{}`, ", names[index].escape_debug()),
        _ => String::new(),
    };
    Mistake {
        location: error.location,
        subject,
        message: error.fault.to_string(),
        remedy: error.remedy().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        parse(text, "f.toml").unwrap_err().message
    }

    const TASK: &str = "[[task]]\nname = \"a\"\nperiod = \"1ms\"\nworst_case = \"100us\"\n";

    #[test]
    fn reads_every_key() {
        let text = "schedule = \"fixed\"\nmodes = [\"ground\", \"flight\"]\n\
             [machine]\nrelease_jitter = \"20us\"\nblocking = \"5us\"\noverhead = \"1.5us\"\n\
             [[receive]]\nname = \"eth0\"\nrate = 10000\nburst = 4\nworst_case = \"2us\"\npriority = 50\n\
             [[task]]\nname = \"a\"\nperiod = \"1ms\"\nphase = \"100us\"\ndeadline = \"800us\"\n\
             worst_case = \"100us\"\nbudget = \"120us\"\npriority = 90\ncritical_section = \"3us\"\n\
             release_jitter = \"1us\"\nmodes = [\"flight\"]\naccept = \"why not\"\n\
             [[task]]\nname = \"b\"\nperiod = \"2ms\"\nport = \"command\"\nworst_case = \"100us\"\npriority = 80\n";
        let set = parse(text, "f.toml").unwrap().set;
        let a = &set.tasks()[0];
        assert_eq!(a.phase(), Duration::from_micros(100));
        assert_eq!(a.deadline, Duration::from_micros(800));
        assert_eq!(a.budget, Some(Duration::from_micros(120)));
        assert_eq!(a.accept.as_deref(), Some("why not"));
        assert_eq!(set.priority(1), Some(80));
        assert_eq!(set.machine().overhead, Duration::from_nanos(1_500));
        assert_eq!(set.receive()[0].burst, 4);
        assert_eq!(set.mode_names().collect::<Vec<_>>(), ["ground", "flight"]);
        assert_eq!(set.members("ground").collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn mistakes_have_file_line_key_and_remedy() {
        let with = |line: &str| error(&format!("{TASK}{line}\n"));
        let period = |value: &str| {
            error(&format!(
                "[[task]]\nname = \"a\"\nperiod = {value}\nworst_case = \"1us\"\n"
            ))
        };
        assert_eq!(
            period("\"0us\""),
            "f.toml:3:10: task `a`, `period`: 0ns is out of range (10µs to 3600s)"
        );
        assert_eq!(
            period("1000"),
            "f.toml:3:10: expected a time with its unit, such as \"1ms\" or \"250us\", not the number `1000`"
        );
        assert_eq!(
            period("\"soon\""),
            "f.toml:3:10: expected a time with its unit, such as \"1ms\" or \"250us\", not the text \"soon\""
        );
        assert!(period("\"400 years\"").contains("expected a time"));
        assert!(period("\"2h\"").contains("out of range"));
        assert_eq!(
            with("deadline = \"2ms\""),
            "f.toml:5:12: task `a`, `deadline`: 2ms is out of range (1ns to 1ms)"
        );
        assert_eq!(
            with("budget = \"50us\""),
            "f.toml:5:10: task `a`, `budget`: 50µs is out of range (100µs to 1ms)"
        );
        assert_eq!(
            with("priority = 5"),
            "f.toml:5:12: task `a`, `priority`: has no effect unless priorities are declared"
        );
        for priority in ["0", "99"] {
            assert_eq!(
                error(&format!(
                    "schedule = \"fixed\"\n{TASK}priority = {priority}\n"
                )),
                format!("f.toml:6:12: task `a`, `priority`: {priority} is out of range (1 to 98)")
            );
        }
        for priority in ["-1", "1000", "9223372036854775807"] {
            let message = with(&format!("priority = {priority}"));
            assert_eq!(
                message,
                format!("f.toml:5:12: {priority} is out of range (1 to 98)")
            );
        }
        assert_eq!(
            error(&format!("schedule = \"fixed\"\n{TASK}")),
            "f.toml:2:1: task `a`, `priority`: declared priorities, and this task has none"
        );
        assert_eq!(
            with("modes = [\"flight\"]"),
            "f.toml:5:9: task `a`, `modes`: no mode is called `flight`"
        );
        assert_eq!(
            with("port = \"p\"\nphase = \"1us\""),
            "f.toml:6:9: task `a`, `phase`: a task that messages activate has no phase"
        );
        assert_eq!(
            error(&format!("{TASK}{TASK}")),
            "f.toml:6:8: task `a`, `name`: this name is taken already"
        );
        assert_eq!(
            error(&format!("minor_frame = \"1ms\"\n{TASK}")),
            "f.toml:1:15: `minor_frame`: has no effect without a table"
        );
        let missing = error("[[task]]\nname = \"a\"\nperiod = \"1ms\"\n");
        assert_eq!(missing, "f.toml:1:1: the key `worst_case` is missing");
        assert!(with("wcet = \"1us\"").contains("there is no key `wcet`; expected `name`, "));
        assert_eq!(
            error("schedule = \"edf\"\n"),
            "f.toml:1:12: `edf` is unknown; expected `rate-monotonic`, `deadline-monotonic`, `fixed`, \
             `earliest-deadline` or `table`"
        );
        assert_eq!(error(""), "f.toml:1:1: `task`: at least one is needed");
        assert!(error("task = [").starts_with("f.toml:1:"));
    }

    #[test]
    fn a_partition_is_read_and_checked() {
        let with = |lines: &str| parse(&format!("[partition]\n{lines}\n{TASK}"), "f.toml");
        let partition = |lines: &str| with(lines).unwrap().partition.unwrap();
        let whole = partition("name = \"control\"\ncpus = \"1,3\"\nmemory = \"64M\"");
        assert_eq!(
            (whole.name.as_str(), whole.memory_bytes),
            ("control", 64 << 20)
        );
        assert_eq!(whole.cpus.to_string(), "1,3");
        let small = partition("name = \"a\"\ncpus = \"1\"");
        assert_eq!(small.memory_bytes, 0);
        assert!(parse(TASK, "f.toml").unwrap().partition.is_none());
        let wrong = |lines: &str| with(lines).unwrap_err().message;
        assert_eq!(
            wrong("name = \"a\"\ncpus = \"1-\""),
            "f.toml:3:8: `1-` is no list of CPUs such as 1 or 0-2,5"
        );
        let name = wrong("name = \"../a\"\ncpus = \"1\"");
        assert!(name.starts_with("f.toml:2:8: `../a` is no name"), "{name}");
        assert!(wrong("name = \"a\"\ncpus = \"\"").contains("no list of CPUs"));
        let memory = wrong("name = \"a\"\ncpus = \"1\"\nmemory = \"much\"");
        assert!(memory.contains("no size such as"), "{memory}");
        assert!(wrong("cpus = \"1\"").contains("the key `name` is missing"));
        assert!(
            wrong("name = \"a\"\ncpu = \"1\"").contains("there is no key `cpu`; is `cpus` meant?")
        );
    }

    #[test]
    fn times_are_exact() {
        for (text, ns) in [
            ("1ms", 1_000_000),
            ("1.5us", 1_500),
            ("250 µs", 250_000),
            ("0us", 0),
            ("0.0000000019s", 1),
            ("2min", 120_000_000_000),
            ("1h", 3_600_000_000_000),
        ] {
            assert_eq!(with_unit(text), Some(Duration::from_nanos(ns)), "{text}");
        }
        for text in [
            "",
            "5",
            "us",
            "-1us",
            ".5us",
            "1.2.3us",
            "1 day",
            "99999999999999999h",
        ] {
            assert_eq!(with_unit(text), None, "{text}");
        }
    }

    #[test]
    fn overruns_are_declared_with_what_they_need() {
        let with = |top: &str, rest: &str| parse(&format!("{top}{TASK}{rest}"), "f.toml");
        let policy = |top: &str, rest: &str| with(top, rest).unwrap().set.tasks()[0].overrun;
        let catch_up = |jobs_max| OverrunPolicy::CatchUp { jobs_max };
        assert_eq!(policy("", ""), OverrunPolicy::Skip);
        assert_eq!(policy("", "overrun = \"stop\""), OverrunPolicy::Stop);
        assert_eq!(policy("", "overrun = \"catch-up\""), catch_up(1));
        assert_eq!(
            policy("", "overrun = \"catch-up\"\ncatch_up_max = 4"),
            catch_up(4)
        );
        let modes = "modes = [\"run\", \"safe\"]\nsafe_mode = \"safe\"\n";
        let file = with(modes, "overrun = \"safe-mode\"").unwrap();
        assert_eq!(file.set.safe_mode(), Some("safe"));
        let wrong = |top: &str, rest: &str| with(top, rest).unwrap_err().message;
        assert_eq!(
            wrong("", "overrun = \"safe-mode\""),
            "f.toml:5:11: `overrun`: the set has no safe mode"
        );
        assert_eq!(
            wrong(modes, ""),
            "f.toml:2:13: `safe_mode`: has no effect, because no task goes to it"
        );
        assert_eq!(
            wrong(
                &modes.replace("= \"safe\"", "= \"sofa\""),
                "overrun = \"safe-mode\""
            ),
            "f.toml:2:13: `safe_mode`: no mode is called `sofa`"
        );
        assert_eq!(
            wrong("", "catch_up_max = 4"),
            "f.toml:5:16: task `a`, `catch_up_max`: has no effect unless the task catches up"
        );
        assert_eq!(
            wrong("", "overrun = \"catch-up\"\ncatch_up_max = 0"),
            "f.toml:5:11: task `a`, `overrun`: at least one is needed"
        );
    }

    #[test]
    fn programs_are_words_and_nothing_else() {
        let with = |rest: &str| parse(&format!("{TASK}{rest}"), "f.toml");
        let program = |rest: &str| with(rest).unwrap().programs.remove(0);
        assert_eq!(program(""), None);
        let found = program("exec = \"./camera  --rate 50\"\nsafe_exec = \"./off\"").unwrap();
        assert_eq!(found.words, ["./camera", "--rate", "50"]);
        assert_eq!(found.safe_words.unwrap(), ["./off"]);
        let wrong = |rest: &str| with(rest).unwrap_err().message;
        assert_eq!(
            wrong("exec = \" \""),
            "f.toml:5:8: task `a`, `exec`: no program is named"
        );
        assert_eq!(
            wrong("safe_exec = \"./off\""),
            "f.toml:5:13: task `a`, `safe_exec`: has no effect without a program"
        );
    }

    #[test]
    fn a_hyperperiod_of_years_is_refused_in_a_sentence() {
        let periods = ["99991us", "99989us", "99971us"];
        let tasks = periods.iter().enumerate().map(|(index, period)| {
            format!("[[task]]\nname = \"t{index}\"\nperiod = \"{period}\"\nworst_case = \"1us\"\n")
        });
        let wrong = parse(&tasks.collect::<String>(), "f.toml").unwrap_err();
        assert_eq!(
            wrong.message,
            "f.toml:7:10: task `t1`, `period`: the hyperperiod, the least common multiple of the periods, is longer \
             than 60s"
        );
        assert_eq!(
            wrong.remedy,
            "choose periods that divide each other, such as 1, 2, 5 and 10 ms"
        );
    }

    #[test]
    fn tables_are_read_and_checked() {
        let table = |rest: &str| parse(&format!("schedule = \"table\"\n{rest}"), "f.toml");
        let window = "[[window]]\ntask = \"a\"\noffset = \"0us\"\nduration = \"200us\"\n";
        let set = table(&format!("{TASK}{window}")).unwrap();
        assert_eq!(set.set.plan().windows.len(), 1);
        let wrong = |rest: &str| table(rest).unwrap_err().message;
        assert_eq!(
            wrong(&format!(
                "{TASK}[[window]]\ntask = \"b\"\noffset = \"0us\"\nduration = \"1us\"\n"
            )),
            "f.toml:7:8: `task`: no task is called `b`"
        );
        assert_eq!(
            wrong(&format!("{TASK}{window}{window}")),
            "f.toml:12:10: `offset`: the window before lasts until 200µs"
        );
        assert_eq!(
            wrong(&format!("minor_frame = \"300us\"\n{TASK}")),
            "f.toml:2:15: `minor_frame`: does not divide the hyperperiod, which is 1ms"
        );
        assert!(wrong(&format!("{TASK}port = \"p\"\n")).contains("a table has fixed windows"));
    }

    #[test]
    fn hostile_files_are_refused_quickly() {
        let many: String = (0..10_000)
            .map(|index| {
                format!("[[task]]\nname = \"t{index}\"\nperiod = \"1ms\"\nworst_case = \"1us\"\n")
            })
            .collect();
        assert!(error(&many).contains("10000 are too many (at most 64)"));
        assert!(error(&TASK.replace("\"a\"", "\"\\u001b[2J\"")).contains("not a name"));
        assert!(error(&"[".repeat(100_000)).starts_with("f.toml:"));
        let jobs = format!("{TASK}[[task]]\nname = \"b\"\nperiod = \"1h\"\nworst_case = \"1us\"\n");
        assert!(error(&jobs).contains("hyperperiod"), "{}", error(&jobs));
    }
}
