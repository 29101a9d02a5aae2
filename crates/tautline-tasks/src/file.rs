//! The file format of task sets (`docs/reference/executive.md`). Mistakes are reported with file, line, column, key and
//! remedy.
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

use crate::partition::PartitionConfig;
use serde::de::{Error as _, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};
use tautline_exec::{
    Activation, Location, Machine, OverrunPolicy, Receive, Scheduling, SetError, TablePlan, Task,
    TaskSet, Window,
};
use tautline_state::cpus::CpuList;
use tautline_state::{Others, parse_error, units};
use toml::de::{DeTable, DeValue};

use crate::program::Program;

/// Longest file. Lower: a table of thousands of windows does not fit. Higher: a file that is none, such as a disk
/// image, is read before it is refused.
const FILE_BYTES_MAX: usize = 4 << 20;

/// Remedy where the file says what is missing or too much by itself.
const SEE_DOCUMENTATION: &str = "docs/reference/executive.md lists every key with its limits";

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
    /// File of the node whose ports activate tasks, if the file names one.
    pub node: Option<PathBuf>,
    /// Guests that tasks work with.
    pub guests: Vec<TaskGuest>,
    /// Whether threads are awake before releases, of which the analysis of the set knows.
    pub is_awake: bool,
}

/// Guest that a task works with (`taut guest run`).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TaskGuest {
    /// Index of the task in the set.
    pub task: usize,
    /// Name of the guest.
    pub name: String,
    /// Whether the set goes to its safe mode when the guest ends; otherwise that is recorded.
    pub is_grave: bool,
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
    let text = tautline_state::read_text(path, FILE_BYTES_MAX, Others::MayWrite);
    let text = text.map_err(|error| unreadable(error.to_string()))?;
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
            &parse_error::in_words(error.message()),
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
    let (line, column) = parse_error::position(text, span.start);
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

impl Mistake {
    fn at(location: Location, message: impl Into<String>, remedy: &str) -> Mistake {
        Mistake {
            location,
            subject: String::new(),
            message: message.into(),
            remedy: remedy.to_owned(),
        }
    }

    /// About the task of this name.
    fn of_task(self, name: &str) -> Mistake {
        let subject = format!("task `{}`, ", name.escape_debug());
        Mistake { subject, ..self }
    }
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
                units::time(text)
                    .map(Time)
                    .ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
            }
        }

        deserializer.deserialize_str(Text)
    }
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum GuestEnd {
    Record,
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
    awake: Option<bool>,
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
}

impl PartitionSection {
    fn config(self) -> PartitionConfig {
        PartitionConfig {
            cpus: self.cpus,
            ..self.name
        }
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
    guest: Option<String>,
    on_guest_end: Option<GuestEnd>,
    exec: Option<String>,
    safe_exec: Option<String>,
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
        let guests = self.task.iter().enumerate().filter_map(guest);
        let guests = guests.collect::<Result<_, _>>()?;
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
        let is_awake = self.awake.unwrap_or(true);
        Ok(TaskFile {
            set: if is_awake { set.awake() } else { set },
            is_awake,
            programs,
            partition: self.partition.map(PartitionSection::config),
            node: self.node,
            guests,
        })
    }

    /// A node is there for the tasks that its ports activate.
    fn check_node(&self) -> Result<(), Mistake> {
        if self.node.is_none() || self.task.iter().any(|task| task.port.is_some()) {
            return Ok(());
        }
        Err(Mistake::at(
            Location::Set("node"),
            "has no effect, because no task has a port",
            "remove it, or write port = \"NAME\" for a task",
        ))
    }

    /// A task may go to the safe mode only if there is one, and there is one only for such a task.
    fn check_safe_mode(&self) -> Result<(), Mistake> {
        let key = |task: &TaskEntry| match (task.overrun, task.on_guest_end) {
            (Some(Overrun::SafeMode), _) => Some("overrun"),
            (_, Some(GuestEnd::SafeMode)) => Some("on_guest_end"),
            _ => None,
        };
        let mut tasks = self.task.iter().enumerate();
        let first = tasks.find_map(|(index, task)| Some((index, key(task)?)));
        let (location, message, remedy) = match (first, &self.safe_mode) {
            (Some((index, key)), None) => (
                Location::Task(index, key),
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
        Err(Mistake::at(location, message, remedy))
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
        Err(Mistake::at(
            location,
            "has no effect without a table",
            "remove it, or write schedule = \"table\"",
        ))
    }
}

fn task((index, entry): (usize, TaskEntry)) -> Result<Task, Mistake> {
    let activation = match (entry.port, entry.phase) {
        (None, phase) => Activation::Time {
            phase: phase.unwrap_or_default().0,
        },
        (Some(port), None) => Activation::Message { port },
        (Some(_), Some(_)) => {
            let mistake = Mistake::at(
                Location::Task(index, "phase"),
                "a task that messages activate has no phase",
                "remove either `phase` or `port`",
            );
            return Err(mistake.of_task(&entry.name));
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
        is_program: entry.exec.is_some(),
    })
}

/// Words are parted by spaces; a program with spaces in its name needs a script around it.
fn program((index, entry): (usize, &TaskEntry)) -> Result<Option<Program>, Mistake> {
    let wrong = |key, message, remedy| {
        Mistake::at(Location::Task(index, key), message, remedy).of_task(&entry.name)
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
        let mistake = Mistake::at(
            Location::Task(index, "catch_up_max"),
            "has no effect unless the task catches up",
            "remove it, or write overrun = \"catch-up\"",
        );
        return Err(mistake.of_task(name));
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

/// Most bytes in the name of a guest, which is that of its node.
const GUEST_NAME_BYTES_MAX: usize = 31;

/// The guest that a task works with, if it names one.
fn guest((index, task): (usize, &TaskEntry)) -> Option<Result<TaskGuest, Mistake>> {
    let wrong = |key, message, remedy| {
        let mistake = Mistake::at(Location::Task(index, key), message, remedy);
        Some(Err(mistake.of_task(&task.name)))
    };
    let Some(name) = &task.guest else {
        task.on_guest_end?;
        return wrong(
            "on_guest_end",
            "has no effect without a guest",
            "remove it, or name the guest: guest = \"NAME\"",
        );
    };
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let is_name = (1..=GUEST_NAME_BYTES_MAX).contains(&name.len())
        && !name.starts_with('.')
        && name.bytes().all(is_plain);
    if !is_name {
        return wrong(
            "guest",
            "not a valid name of a guest",
            "write the name that `taut guest show` shows: 1 to 31 letters, digits, `-`, `_` and `.`",
        );
    }
    Some(Ok(TaskGuest {
        task: index,
        name: name.clone(),
        is_grave: task.on_guest_end == Some(GuestEnd::SafeMode),
    }))
}

fn windows(entries: Vec<WindowEntry>, names: &[String]) -> Result<Vec<Window>, Mistake> {
    let entries = entries.into_iter().enumerate();
    let windows = entries.map(|(index, entry)| {
        let found = names.iter().position(|name| *name == entry.task);
        let task = found.ok_or_else(|| {
            let message = format!("no task is called `{}`", entry.task.escape_debug());
            Mistake::at(
                Location::Window(index, "task"),
                message,
                "name a task of the file",
            )
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
    let mistake = Mistake::at(error.location, error.fault.to_string(), error.remedy());
    match error.location {
        Location::Task(index, _) => mistake.of_task(&names[index]),
        _ => mistake,
    }
}

#[cfg(test)]
mod tests;
