//! A set and the code of its tasks, before it runs: the set is admitted, and each task gets its code, its program, or
//! the messages that activate it.

mod start;

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::partition::PartitionConfig;
use tautline_exec::{Activation, Analysis, TaskResponse, TaskSet};

use crate::error::RunError;
use crate::execution::Body;
use crate::file::{self, TaskFile, TaskGuest};
use crate::message::MessageSource;
use crate::program::Program;
use crate::thread::TaskBody;

/// A set with the code of its tasks, before it runs.
pub struct Executive {
    set: TaskSet,
    partition: Option<PartitionConfig>,
    /// For who looks at the run from outside.
    name: String,
    /// Longest response times by the analysis.
    bounds: Vec<Option<Duration>>,
    bodies: Vec<Option<Body>>,
    /// By task.
    sources: Vec<Option<MessageSource>>,
    /// File of the node whose ports activate tasks.
    node: Option<PathBuf>,
    /// Guests that tasks work with.
    guests: Vec<TaskGuest>,
    /// Whether threads are awake before releases.
    is_awake: bool,
}

impl Executive {
    /// Admits a set, whose most urgent task is awake before its releases if the others can be charged for it
    /// ([`TaskSet::awake`]).
    ///
    /// # Errors
    /// [`RunError::Refused`]; [`RunError::Set`] for a table with wrong windows.
    pub fn new(set: TaskSet) -> Result<Executive, RunError> {
        Executive::admit(set.awake(), true)
    }

    fn admit(set: TaskSet, is_awake: bool) -> Result<Executive, RunError> {
        Ok(Executive {
            is_awake,
            name: own_name(),
            bounds: admitted(&set)?,
            bodies: set.tasks().iter().map(|_| None).collect(),
            sources: set.tasks().iter().map(|_| None).collect(),
            node: None,
            guests: Vec::new(),
            partition: None,
            set,
        })
    }

    /// Admits the set of a file, the one that `taut task check` analyses.
    ///
    /// # Errors
    /// [`RunError::File`], [`RunError::Refused`].
    pub fn from_file(path: impl AsRef<Path>) -> Result<Executive, RunError> {
        let TaskFile {
            set,
            programs,
            partition,
            node,
            guests,
            is_awake,
        } = file::read(path.as_ref())?;
        let mut executive = Executive::admit(set, is_awake)?;
        executive.partition = partition;
        executive.node = node;
        let text = path.as_ref().to_string_lossy();
        executive.name = text.chars().take(NAME_CHARS_MAX).collect();
        for (body, program) in executive.bodies.iter_mut().zip(programs) {
            *body = program.map(Body::Program);
        }
        executive.guests = guests;
        Ok(executive)
    }

    /// Runs the set in a partition, which is made at the start and removed at the end. One of that name that is there
    /// already is entered, and stays.
    #[must_use]
    pub fn in_partition(self, partition: PartitionConfig) -> Executive {
        Executive {
            partition: Some(partition),
            ..self
        }
    }

    /// The partition in which the set will run, if there is one.
    #[must_use]
    pub fn partition(&self) -> Option<&PartitionConfig> {
        self.partition.as_ref()
    }

    /// Guests that tasks of the file work with. The program reports the end of one: [`crate::Running::guest_ended`].
    #[must_use]
    pub fn guests(&self) -> &[TaskGuest] {
        &self.guests
    }

    /// The set.
    #[must_use]
    pub fn set(&self) -> &TaskSet {
        &self.set
    }

    /// Names of the tasks that have neither code nor a program yet.
    pub fn without_code(&self) -> impl Iterator<Item = &str> {
        let tasks = self.set.tasks().iter().zip(&self.bodies);
        tasks
            .filter(|(_, body)| body.is_none())
            .map(|(task, _)| task.name.as_str())
    }

    /// Gives a task its code: a closure that is called for each job, or anything that implements [`TaskBody`].
    ///
    /// # Errors
    /// [`RunError::UnknownTask`], [`RunError::BodyRepeated`].
    pub fn task(&mut self, name: &str, body: impl TaskBody + 'static) -> Result<(), RunError> {
        self.give(name, Body::Code(Box::new(body)))
    }

    /// Gives a task a program, whose process does its jobs; `exec` in a file does the same. A program has more
    /// wake-ups than code, so the set is admitted again.
    ///
    /// # Errors
    /// [`RunError::UnknownTask`], [`RunError::BodyRepeated`], [`RunError::Refused`], [`RunError::Set`].
    pub fn program(&mut self, name: &str, program: Program) -> Result<(), RunError> {
        let mut set = self.set.clone().with_program(index_of(&self.set, name)?)?;
        if self.is_awake {
            set = set.awake();
        }
        let bounds = admitted(&set)?;
        self.give(name, Body::Program(program))?;
        (self.set, self.bounds) = (set, bounds);
        Ok(())
    }

    /// Has a port's messages activate a task: a job for each, not sooner than the task's period allows. The task's
    /// thread takes them, and waits for them by the descriptor. A source that was given before gives way.
    ///
    /// # Errors
    /// [`RunError::UnknownTask`], [`RunError::NotByMessage`].
    pub fn messages(&mut self, task: &str, source: MessageSource) -> Result<(), RunError> {
        let index = by_message(&self.set, task)?;
        self.sources[index] = Some(source);
        Ok(())
    }

    /// File of the node whose ports activate tasks, if the set's file names one. The caller opens
    /// it: this crate knows no ports.
    #[must_use]
    pub fn node(&self) -> Option<&Path> {
        self.node.as_deref()
    }

    fn give(&mut self, name: &str, body: Body) -> Result<(), RunError> {
        let body_of_task = &mut self.bodies[index_of(&self.set, name)?];
        if body_of_task.is_some() {
            return Err(RunError::BodyRepeated {
                task: name.to_owned(),
            });
        }
        *body_of_task = Some(body);
        Ok(())
    }
}

/// Longest name of a run. Lower: paths of files are cut. Higher: lists of runs have long lines.
const NAME_CHARS_MAX: usize = 64;

/// Name of this program.
fn own_name() -> String {
    let name = std::env::args_os().next().unwrap_or_default();
    let name = Path::new(&name).file_name().unwrap_or_default();
    name.to_string_lossy()
        .chars()
        .take(NAME_CHARS_MAX)
        .collect()
}

/// Bounds of the tasks of a set that is admitted.
fn admitted(set: &TaskSet) -> Result<Vec<Option<Duration>>, RunError> {
    let modes = Analysis::of_all(set)?;
    for analysis in &modes {
        if let Some(refused) = analysis.refusals(set).next() {
            return Err(RunError::Refused {
                task: set.tasks()[refused.task].name.clone(),
                by: TaskResponse::excess(refused),
            });
        }
    }
    let tasks = 0..set.tasks().len();
    Ok(tasks.map(|task| bound(&modes, task)).collect())
}

/// Longest response time of a task over all modes; `None` if one has no bound.
fn bound(modes: &[Analysis], task: usize) -> Option<Duration> {
    let of_task = modes.iter().flat_map(|mode| &mode.responses);
    let responses = of_task.filter(|one| one.task == task);
    responses
        .map(|one| one.response)
        .try_fold(Duration::ZERO, |longest, one| Some(longest.max(one?)))
}

pub(crate) fn index_of(set: &TaskSet, name: &str) -> Result<usize, RunError> {
    let found = set.tasks().iter().position(|task| task.name == name);
    found.ok_or_else(|| RunError::UnknownTask {
        task: name.to_owned(),
    })
}

/// Index of a task that messages activate.
pub(crate) fn by_message(set: &TaskSet, task: &str) -> Result<usize, RunError> {
    let index = index_of(set, task)?;
    match set.tasks()[index].activation {
        Activation::Message { .. } => Ok(index),
        Activation::Time { .. } => Err(RunError::NotByMessage {
            task: task.to_owned(),
        }),
    }
}
