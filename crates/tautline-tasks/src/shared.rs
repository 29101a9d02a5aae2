//! State that the threads of a run share, and the signals by which they wake each other.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use rustix::thread::futex;
use tautline_exec::TaskSet;
use tautline_state::Event;
use tautline_state::fork::OwnerProcess;

use crate::execution::Worker;
use crate::message::{Arrivals, MessageSource};
use crate::program;
use crate::run_file::RunFile;
use crate::sys::PriorityMutex;

/// State that all threads of a run share.
pub(crate) struct Shared {
    pub(crate) set: TaskSet,
    pub(crate) decisions: PriorityMutex<Decisions>,
    /// By task.
    pub(crate) signals: Vec<Signal>,
    /// Tasks, the most urgent first.
    pub(crate) by_urgency: Vec<usize>,
    pub(crate) watchdog: Signal,
    /// Wakes the thread that keeps the CPU from idling.
    pub(crate) idle: Signal,
    /// By task: the release until which its thread sleeps, or slept last; 0 before the first sleep.
    pub(crate) releases_ns: Vec<AtomicU64>,
    pub(crate) is_stopping: AtomicBool,
    pub(crate) limits: Mutex<Vec<String>>,
    /// Handles of the tasks' processes, by task.
    pub(crate) programs: Mutex<Vec<Option<OwnedFd>>>,
    pub(crate) run_file: RunFile,
    /// The process that the threads are in: a forked one has none.
    pub(crate) process: OwnerProcess,
}

/// The executive's core, and the jobs that run.
pub(crate) struct Decisions {
    pub(crate) executive: tautline_exec::Executive,
    pub(crate) jobs: Vec<Option<RunningJob>>,
    /// Messages of triggers that have not yet begun a job, by task.
    pub(crate) triggered: Vec<Arrivals>,
    /// Whether the next end of a job lets one with a budget go on, which the watchdog has to look at then.
    pub(crate) wakes_watchdog: bool,
}

/// A job that runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunningJob {
    /// When it began.
    pub(crate) at: Duration,
    /// CPU time of the worker: of a thread at the end of its last job, of a process when this one began.
    pub(crate) cpu_time: Duration,
    /// Whether the worker is below all others.
    pub(crate) is_demoted: bool,
}

impl RunningJob {
    /// Execution time by `now`, when the CPU time of the worker is `cpu_time`. For a thread that has had the CPU all
    /// the time it is the time that passed, exactly; after a preemption it counts the thread's sleep and wake-up before
    /// the job, too, which are some microseconds. For a process it is exact.
    pub(crate) fn used(&self, worker: Worker, cpu_time: Duration, now: Duration) -> Duration {
        let used = cpu_time.saturating_sub(self.cpu_time);
        match worker {
            Worker::Thread(_) => used.min(now.saturating_sub(self.at)),
            // Its threads may run at the same time.
            Worker::Process { .. } => used,
        }
    }
}

/// Wakes one thread: a futex whose value changes with each signal.
#[derive(Debug, Default)]
pub(crate) struct Signal {
    value: AtomicU32,
    /// Wakes a thread that waits for messages of a source.
    pub(crate) bell: Option<Event>,
}

impl Signal {
    /// Signal of a task with a source of messages, or without one.
    pub(crate) fn of(source: &Option<MessageSource>) -> io::Result<Signal> {
        Ok(Signal {
            bell: source.as_ref().map(|_| Event::new()).transpose()?,
            ..Signal::default()
        })
    }

    /// Value to look at before deciding to wait.
    pub(crate) fn value(&self) -> u32 {
        // Pairs with `wake`: what was written before a signal is seen by who sees its value.
        self.value.load(Ordering::Acquire)
    }

    /// Waits for a signal after `seen`, or for an absolute time.
    pub(crate) fn wait(&self, seen: u32, until: Option<Duration>) {
        let until = until.map(|until| rustix::thread::futex::Timespec {
            tv_sec: i64::try_from(until.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: until.subsec_nanos().into(),
        });
        let flags = futex::Flags::PRIVATE;
        let all = std::num::NonZeroU32::MAX;
        // A signal, the time, or an interruption: the caller looks again in each case.
        let _ = futex::wait_bitset(&self.value, flags, seen, until.as_ref(), all);
    }

    pub(crate) fn wake(&self) {
        // Pairs with `value`.
        self.value.fetch_add(1, Ordering::Release);
        // A wake-up without a sleeper is no error, and no other is possible: the address is valid.
        let _ = futex::wake(&self.value, futex::Flags::PRIVATE, 1);
        if let Some(bell) = &self.bell {
            bell.ring();
        }
    }
}

impl Shared {
    /// Wakes all threads, to look at what has changed: the most urgent first, since a thread that is woken may run its
    /// job before the caller wakes the next.
    pub(crate) fn wake_all(&self) {
        for task in &self.by_urgency {
            self.signals[*task].wake();
        }
        self.watchdog.wake();
        self.idle.wake();
    }

    /// Lets a requested mode take effect, if nothing stands against it. The caller wakes all threads if it does, once
    /// the decisions are no longer locked.
    pub(crate) fn switch(&self, decisions: &mut Decisions, now: Duration) -> bool {
        let has_switched = decisions.executive.switch(now);
        if has_switched {
            self.run_file.set_mode(decisions.executive.mode());
        }
        has_switched
    }

    /// Kills the process of a task; `false` where code does its jobs.
    pub(crate) fn kill_program(&self, task: usize) -> bool {
        let programs = self.programs.lock();
        let programs = programs.unwrap_or_else(|error| error.into_inner());
        programs[task].iter().for_each(program::kill);
        programs[task].is_some()
    }

    pub(crate) fn is_stopping(&self) -> bool {
        // Pairs with `stop`; nothing else is published by it.
        self.is_stopping.load(Ordering::Acquire)
    }

    pub(crate) fn stop(&self) {
        // Pairs with `is_stopping`.
        self.is_stopping.store(true, Ordering::Release);
        self.wake_all();
    }

    pub(crate) fn limit(&self, text: String) {
        // A thread that panicked while it held the list left it whole: a push does not panic halfway.
        let mut limits = self
            .limits
            .lock()
            .unwrap_or_else(|error| error.into_inner());
        if !limits.contains(&text) {
            limits.push(text);
        }
    }
}

/// Reports of threads that have made their settings, or failed to. Each tells once.
pub(crate) struct Ready<T> {
    told: Mutex<Vec<T>>,
    changed: Condvar,
}

impl<T> Ready<T> {
    pub(crate) fn new() -> Self {
        Self {
            told: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    pub(crate) fn tell(&self, report: T) {
        let mut told = self.told.lock().unwrap_or_else(|error| error.into_inner());
        told.push(report);
        self.changed.notify_one();
    }

    pub(crate) fn wait_for(&self, count: usize) -> Vec<T> {
        let told = self.told.lock().unwrap_or_else(|error| error.into_inner());
        let all = self.changed.wait_while(told, |told| told.len() < count);
        std::mem::take(&mut *all.unwrap_or_else(|error| error.into_inner()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const US: Duration = Duration::from_micros(1);

    #[test]
    fn a_thread_is_charged_for_its_sleep_only_after_a_preemption() {
        let thread = Worker::Thread(1);
        let job = RunningJob {
            at: 100 * MS,
            cpu_time: 10 * MS,
            is_demoted: false,
        };
        // 3 us of sleep and wake-up before the job.
        let used =
            |executed, passed| job.used(thread, 10 * MS + 3 * US + executed, 100 * MS + passed);
        assert_eq!(used(20 * US, 20 * US), 20 * US);
        assert_eq!(used(20 * US, 500 * US), 23 * US);
        assert_eq!(job.used(thread, 9 * MS, 99 * MS), Duration::ZERO);
    }

    #[test]
    fn threads_of_a_process_execute_for_longer_than_passes() {
        let process = Worker::Process {
            thread: 1,
            process: 2,
        };
        let job = RunningJob {
            at: 100 * MS,
            cpu_time: 10 * MS,
            is_demoted: false,
        };
        assert_eq!(job.used(process, 18 * MS, 105 * MS), 8 * MS);
    }
}
