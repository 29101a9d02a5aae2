//! Where the jobs of a task are done: code in its thread, or a process that its thread waits for.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use tautline_exec::{Job, TaskSet};

use crate::error::RunError;
use crate::policy::{of_program, policy};
use crate::program::{self, Process, Program};
use crate::sys::{self, Policy, ThreadNumber};
use crate::thread::TaskBody;

/// Code or program of a task.
pub(crate) enum Body {
    /// Code, which the task's thread runs.
    Code(Box<dyn TaskBody>),
    /// A program, whose process does the jobs; the task's thread waits for it.
    Program(Program),
}

/// Where the jobs of a task are done: its thread, or its process.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Worker {
    Thread(ThreadNumber),
    Process {
        /// The thread that waits for the process.
        thread: ThreadNumber,
        process: ThreadNumber,
    },
}

impl Worker {
    /// Execution time so far; `None` once it has ended.
    pub(crate) fn cpu_time(self) -> Option<Duration> {
        match self {
            Worker::Thread(thread) => sys::cpu_time_of(thread),
            Worker::Process { process, .. } => sys::cpu_time_of_process(process),
        }
    }

    /// Gives it the scheduling of its task.
    pub(crate) fn promote(self, set: &TaskSet, task: usize) -> io::Result<()> {
        match self {
            Worker::Thread(thread) => sys::schedule(thread, Some(policy(set, task))),
            Worker::Process { thread, process } => {
                let (of_thread, of_process) = of_program(set, task);
                sys::schedule(thread, Some(of_thread))?;
                match of_process {
                    Policy::Fifo(_) => sys::schedule_process(process, Some(of_process)),
                    // Each further thread would have a deadline of its own, and the analysis knows of one.
                    Policy::Deadline(_) => sys::schedule(process, Some(of_process)),
                }
            }
        }
    }

    /// Puts it below all tasks.
    pub(crate) fn demote(self) -> io::Result<()> {
        match self {
            Worker::Thread(thread) => sys::schedule(thread, None),
            Worker::Process { thread, process } => {
                sys::schedule(thread, None)?;
                sys::schedule_process(process, None)
            }
        }
    }
}

/// A task whose settings are made, or the reason why it cannot do its jobs.
pub(crate) type Started = Result<Worker, RunError>;

/// Code or process that does the jobs, in the hands of the task's thread.
pub(crate) enum Execution {
    Code(Box<dyn TaskBody>),
    Program(Box<Running>),
}

/// A program that runs.
pub(crate) struct Running {
    pub(crate) program: Program,
    pub(crate) process: Process,
}

impl Running {
    fn run(&mut self, job: &Job, message: Option<&[u8]>) -> Result<(), String> {
        let done = self.process.run(job, message);
        done.map_err(|error| program::reason(&error))
    }

    fn go_to_safe_state(self) -> Result<(), String> {
        // It may not write to the outputs any more.
        drop(self.process);
        let safe = self.program.go_to_safe_state();
        safe.map_err(|error| format!("failed ({error})"))
    }
}

impl Execution {
    /// Does a job. An error says why the task has failed; a panic has told its own.
    pub(crate) fn run(&mut self, job: &Job, message: Option<&[u8]>) -> Result<(), Option<String>> {
        match self {
            Execution::Code(body) => {
                let job = AssertUnwindSafe(|| match message {
                    Some(message) => body.run_on_message(job, message),
                    None => body.run(job),
                });
                catch_unwind(job).map_err(|_| None)
            }
            Execution::Program(running) => running.run(job, message).map_err(Some),
        }
    }

    pub(crate) fn go_to_safe_state(self) -> Result<(), String> {
        match self {
            Execution::Code(mut body) => catch_unwind(AssertUnwindSafe(|| body.safe_state()))
                .map_err(|_| "panicked".to_owned()),
            Execution::Program(running) => running.go_to_safe_state(),
        }
    }
}
