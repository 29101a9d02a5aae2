//! A set and the code of its tasks, before it runs: the set is admitted, and each task gets its code, its program, or
//! the messages that activate it.

mod start;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::partition::PartitionConfig;
use tautline_exec::{Activation, Analysis, Job, TaskResponse, TaskSet};

use crate::error::RunError;
use crate::execution::Body;
use crate::file::{self, TaskFile, TaskGuest, TaskPorts};
use crate::logical::{self, Exchanged, First, Home, Logical};
use crate::message::MessageSource;
use crate::program::Program;
use crate::thread::TaskBody;
use crate::values::ProgramValues;

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
    /// File of the node whose ports activate tasks or hold their values.
    node: Option<PathBuf>,
    /// By task; none without a file.
    ports: Vec<TaskPorts>,
    /// Guests that tasks work with.
    guests: Vec<TaskGuest>,
    /// Tasks with logical execution time.
    logical: Vec<(usize, Arc<dyn Exchanged>)>,
    home: Home,
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
            ports: Vec::new(),
            guests: Vec::new(),
            logical: Vec::new(),
            home: Home::default(),
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
            ports,
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
            *body = program.map(|program| Body::Program(program, None));
        }
        executive.ports = ports;
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

    /// Gives a task its code with logical execution time: inputs are read at the release of each job, and its outputs
    /// are written at its deadline. Outputs of a job that ends after its deadline are left out.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tautline_exec::{Job, Task, TaskSet};
    /// use tautline_tasks::{Executive, Logical, Options};
    ///
    /// let ms = Duration::from_millis;
    /// let mut executive = Executive::new(TaskSet::new(vec![Task::periodic("control", ms(5), ms(1))])?)?;
    /// executive.logical_task("control", Logical {
    ///     read: |position: &mut f64| *position = 0.5,           // a sampling port
    ///     run: |_: &Job, position: &f64, force: &mut f64| *force = -100.0 * position,
    ///     write: |force: &f64| assert!(*force == -50.0),        // another one
    ///     safe_state: || {},
    /// })?;
    /// let running = executive.start(&Options::default())?;
    /// std::thread::sleep(ms(20));
    /// assert!(running.stop(ms(1_000)).tasks[0].jobs > 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`RunError::UnknownTask`], [`RunError::BodyRepeated`], [`RunError::NotByTime`], [`RunError::System`].
    pub fn logical_task<I, O, R, J, W, S>(
        &mut self,
        name: &str,
        parts: Logical<R, J, W, S>,
    ) -> Result<(), RunError>
    where
        I: Clone + Default + Send + 'static,
        O: Clone + Default + Send + 'static,
        R: FnMut(&mut I) + Send + 'static,
        J: FnMut(&Job, &I, &mut O) + Send + 'static,
        W: FnMut(&O) + Send + 'static,
        S: FnMut() + Send + 'static,
    {
        self.logical_task_from(name, parts, I::default(), O::default())
    }

    /// The same with first values of the inputs and outputs, for types that have no default.
    ///
    /// # Errors
    /// As [`logical_task`](Executive::logical_task).
    pub fn logical_task_from<I, O, R, J, W, S>(
        &mut self,
        name: &str,
        parts: Logical<R, J, W, S>,
        input: I,
        output: O,
    ) -> Result<(), RunError>
    where
        I: Clone + Send + 'static,
        O: Clone + Send + 'static,
        R: FnMut(&mut I) + Send + 'static,
        J: FnMut(&Job, &I, &mut O) + Send + 'static,
        W: FnMut(&O) + Send + 'static,
        S: FnMut() + Send + 'static,
    {
        let first = First {
            inputs: [input.clone(), input],
            outputs: [output.clone(), output],
        };
        let index = by_time(&self.set, name)?;
        let (read, write) = (Box::new(parts.read), Box::new(parts.write));
        let (side, values) = logical::sides(read, write, first, self.home.clone())?;
        let body = logical::Body {
            side,
            run: parts.run,
            safe_state: parts.safe_state,
        };
        self.task(name, body)?;
        self.logical.push((index, values));
        Ok(())
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
        self.give(name, Body::Program(program, None))?;
        (self.set, self.bounds) = (set, bounds);
        Ok(())
    }

    /// Gives the program of a task logical execution time: its inputs are read at the release of each job and stand in
    /// the job's line; its outputs stand in the answer and are written at the deadline.
    ///
    /// # Errors
    /// [`RunError::UnknownTask`], [`RunError::NotByTime`], [`RunError::NoProgram`], [`RunError::System`].
    pub fn program_values(&mut self, name: &str, values: ProgramValues) -> Result<(), RunError> {
        let index = by_time(&self.set, name)?;
        let Some(Body::Program(_, side)) = &mut self.bodies[index] else {
            return Err(RunError::NoProgram {
                task: name.to_owned(),
            });
        };
        let (read, write, first) = values.parts();
        let (own, values) = logical::sides(read, write, first, self.home.clone())?;
        *side = Some(own);
        self.logical.retain(|(task, _)| *task != index);
        self.logical.push((index, values));
        Ok(())
    }

    /// Tasks whose programs have inputs or outputs in ports, by the set's file. The caller opens the ports and calls
    /// [`program_values`](Executive::program_values) before the start.
    pub fn ports(&self) -> impl Iterator<Item = (&str, &TaskPorts)> {
        let tasks = self.set.tasks().iter().zip(&self.ports);
        let tasks = tasks.filter(|(_, ports)| !ports.is_empty());
        tasks.map(|(task, ports)| (task.name.as_str(), ports))
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

    /// File of the node whose ports activate tasks or hold their values, if the set's file names one. The caller opens
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

/// Index of a task that time activates.
fn by_time(set: &TaskSet, task: &str) -> Result<usize, RunError> {
    let index = index_of(set, task)?;
    match set.tasks()[index].activation {
        Activation::Time { .. } => Ok(index),
        Activation::Message { .. } => Err(RunError::NotByTime {
            task: task.to_owned(),
        }),
    }
}
