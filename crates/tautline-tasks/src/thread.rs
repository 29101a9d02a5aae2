//! The thread of one task.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Once};
use std::time::Duration;

use rustix::thread::CpuSet;
use tautline_exec::{Action, Activation, Job};

use crate::run::{Options, RunningJob, Shared};
use crate::summary::Recorder;
use crate::sys::{self, ThreadNumber};

/// Stack that is made resident in advance. With less, the first deep call of a job takes page faults; more would come
/// near the end of the stack.
const RESIDENT_BYTES: usize = 128 * 1024;

/// Code of a task.
pub trait TaskBody: Send {
    /// One job. It should return by `job.deadline`, a time on `CLOCK_MONOTONIC`, and make no call that can block for
    /// longer than its worst case says.
    fn run(&mut self, job: &Job);

    /// Sets the outputs to their safe values. Called once when the task is stopped, also after a panic of
    /// [`run`](TaskBody::run), in the task's thread below all others.
    fn safe_state(&mut self) {}
}

impl<F: FnMut(&Job) + Send> TaskBody for F {
    fn run(&mut self, job: &Job) {
        self(job);
    }
}

/// Two closures: one for each job, and one for the safe state.
///
/// ```
/// use tautline_exec::Job;
/// use tautline_tasks::{TaskBody, WithSafeState};
///
/// let mut body = WithSafeState(|_job: &Job| {}, || println!("valve closed"));
/// body.safe_state();
/// ```
pub struct WithSafeState<R, S>(pub R, pub S);

impl<R: FnMut(&Job) + Send, S: FnMut() + Send> TaskBody for WithSafeState<R, S> {
    fn run(&mut self, job: &Job) {
        (self.0)(job);
    }

    fn safe_state(&mut self) {
        (self.1)();
    }
}

/// Times of the jobs of one task.
pub(crate) struct Record {
    pub(crate) lateness: Recorder,
    pub(crate) response: Recorder,
    pub(crate) execution: Recorder,
}

impl Record {
    pub(crate) fn new() -> Self {
        Self {
            lateness: Recorder::new(),
            response: Recorder::new(),
            execution: Recorder::new(),
        }
    }
}

/// A job that has begun.
struct Begun {
    job: Job,
    at: Duration,
    /// Execution time of the thread by then.
    cpu_time: Duration,
}

/// Everything that a thread takes with it.
pub(crate) struct TaskThread {
    pub(crate) shared: Arc<Shared>,
    pub(crate) index: usize,
    pub(crate) body: Box<dyn TaskBody>,
    pub(crate) options: Options,
    /// Tells that the settings are made, with the thread's number.
    pub(crate) ready: Sender<(usize, ThreadNumber)>,
}

impl TaskThread {
    /// Runs jobs until the set stops or the task is stopped.
    pub(crate) fn run(mut self) -> Record {
        let mut record = Record::new();
        self.apply_settings();
        IS_REAL_TIME.set(self.options.real_time);
        make_stack_resident();
        // The receiver waits for as many messages as there are threads.
        let _ = self.ready.send((self.index, sys::own_number()));
        while let Some(Begun { job, at, cpu_time }) = self.next_job() {
            let body = &mut self.body;
            let result = catch_unwind(AssertUnwindSafe(|| body.run(&job)));
            let used = sys::own_cpu_time().saturating_sub(cpu_time);
            let now = sys::monotonic();
            record.lateness.record(at.saturating_sub(job.release));
            record.response.record(now.saturating_sub(job.release));
            record.execution.record(used);
            if self.end(now, used, result.is_err()) == Some(Action::Stopped) {
                self.go_to_safe_state();
                break;
            }
        }
        record
    }

    /// Waits until a job may begin; `None` when the set stops.
    fn next_job(&self) -> Option<Begun> {
        let signal = &self.shared.signals[self.index];
        let is_by_message = matches!(
            self.shared.set.tasks()[self.index].activation,
            Activation::Message { .. }
        );
        loop {
            let seen = signal.value();
            if self.shared.is_stopping() {
                return None;
            }
            let mut decisions = self.shared.decisions.lock();
            let now = sys::monotonic();
            // Pairs with `Trigger::fire`.
            let has_message = !is_by_message || signal.messages.load(Ordering::Acquire) > 0;
            let next = decisions
                .executive
                .next_release(self.index)
                .filter(|_| has_message);
            let job = next.and_then(|_| decisions.executive.begin(self.index, now));
            let Some(job) = job else {
                drop(decisions);
                signal.wait(seen, next);
                continue;
            };
            // Read once, for the watchdog and for the record: it is a system call, unlike the time.
            let cpu_time = sys::own_cpu_time();
            decisions.jobs[self.index] = Some(RunningJob {
                cpu_time,
                is_demoted: job.is_background,
            });
            drop(decisions);
            if is_by_message {
                signal.messages.fetch_sub(1, Ordering::Relaxed); // only this thread takes any
            }
            if job.is_background {
                self.schedule(None);
            }
            return Some(Begun {
                job,
                at: now,
                cpu_time,
            });
        }
    }

    /// Ends a job, and says what follows.
    fn end(&self, now: Duration, used: Duration, has_panicked: bool) -> Option<Action> {
        let mut decisions = self.shared.decisions.lock();
        let ended = decisions.jobs[self.index].take();
        let action = if has_panicked {
            Some(decisions.executive.fail(self.index, now))
        } else {
            decisions.executive.finish(self.index, now, used)
        };
        let has_switched = decisions.executive.switch(now).is_some();
        drop(decisions);
        if ended.is_some_and(|job| job.is_demoted) {
            self.schedule(self.shared.set.priority(self.index));
        }
        if has_switched {
            self.shared.wake_all();
        }
        action
    }

    fn go_to_safe_state(&mut self) {
        // However long it takes, nobody waits for it.
        self.schedule(None);
        let body = &mut self.body;
        if catch_unwind(AssertUnwindSafe(|| body.safe_state())).is_err() {
            let name = &self.shared.set.tasks()[self.index].name;
            self.shared.limit(format!(
                "the safe state of `{name}` panicked: look at its outputs"
            ));
        }
    }

    fn schedule(&self, fifo_priority: Option<u8>) {
        if self.options.real_time {
            // A refusal was reported at the start already.
            let _ = sys::schedule(sys::own_number(), fifo_priority);
        }
    }

    fn apply_settings(&self) {
        if let Some(cpu) = self.options.cpu {
            let restricted = cpu < CpuSet::MAX_CPU && {
                let mut only = CpuSet::new();
                only.set(cpu);
                rustix::thread::sched_setaffinity(None, &only).is_ok()
            };
            if !restricted {
                self.shared.limit(format!(
                    "not restricted to CPU {cpu}: name one that this process may run on (taskset -p)"
                ));
            }
        }
        // Without SCHED_FIFO, the kernel's default of 50 µs makes each wake-up late by as much.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
        if self.options.real_time
            && let Err(error) =
                sys::schedule(sys::own_number(), self.shared.set.priority(self.index))
        {
            self.shared.limit(format!(
                "SCHED_FIFO is refused ({error}): raise RLIMIT_RTPRIO (ulimit -r 99) or grant CAP_SYS_NICE"
            ));
        }
    }
}

thread_local! {
    /// Whether this thread runs a task under SCHED_FIFO.
    static IS_REAL_TIME: Cell<bool> = const { Cell::new(false) };
}

/// Puts a hook before the process's panic hook: a task that panics first loses its priority. The message and the
/// backtrace of the usual hook take milliseconds, for which less urgent tasks would wait.
pub(crate) fn demote_on_panic() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if IS_REAL_TIME.get() {
                // It was allowed to take the priority, so it may give it back.
                let _ = sys::schedule(sys::own_number(), None);
            }
            usual(panic);
        }));
    });
}

/// Writes to the stack that later calls will use.
#[inline(never)]
fn make_stack_resident() {
    let stack = [1u8; RESIDENT_BYTES];
    std::hint::black_box(&stack);
}
