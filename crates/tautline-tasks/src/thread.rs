//! The thread of one task.

use std::cell::Cell;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Once};
use std::time::Duration;

use tautline_awake::thread as awake;
use tautline_exec::{Action, Job, Scheduling};

use crate::error::RunError;
use crate::execution::{Body, Execution, Running, Started, Worker};
use crate::figures::{Figures, JobTimes, TaskState, TracedJob, instant, ns};
use crate::message::{Inbox, MessageSource};
use crate::options::Options;
use crate::policy::{of_program, policy};
use crate::program::{self, Process};
use crate::shared::{Ready, RunningJob, Shared};
use crate::sys::{self, Policy};

/// Stack that is made resident in advance. With less, the first deep call of a job takes page faults; more would come
/// near the end of the stack.
const RESIDENT_BYTES: usize = 128 * 1024;

/// Longest time to the next release in which a thread may find that it is over before it sleeps. Lower: its next job
/// takes the CPU from tasks with earlier deadlines. Higher: a system call after more jobs.
const WITHOUT_SLEEP_MAX: Duration = Duration::from_micros(50);

/// Sleep of a thread whose next release has come, so that the kernel counts a new deadline. Lower: the timer ends it
/// before it has begun, and the deadline stays. Higher: the job begins later.
const RENEWAL: Duration = Duration::from_micros(10);

/// Code of a task.
pub trait TaskBody: Send {
    /// One job. It should return by `job.deadline`, a time on `CLOCK_MONOTONIC`, and make no call that can block for
    /// longer than its worst case says.
    fn run(&mut self, job: &Job);

    /// One job that a message has activated, with the message. Without an implementation it is [`run`](TaskBody::run).
    fn run_on_message(&mut self, job: &Job, message: &[u8]) {
        let _ = message;
        self.run(job);
    }

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

/// A job that has begun.
struct Begun {
    job: Job,
    running: RunningJob,
    /// Length of the message that activated it.
    message: Option<usize>,
}

/// State of the worker after a job.
struct Ended {
    /// CPU time of the worker.
    cpu_time: Duration,
    /// Value of the signal and time of the next release, if nothing is to do until then.
    sleep: Option<(u32, Duration)>,
}

/// Everything that a thread takes with it.
pub(crate) struct TaskThread {
    pub(crate) shared: Arc<Shared>,
    pub(crate) index: usize,
    pub(crate) options: Options,
    /// Longest time by which the thread is awake before a release.
    pub(crate) early: Duration,
    /// Tells that the settings are made.
    pub(crate) ready: Arc<Ready<(usize, Started)>>,
}

impl TaskThread {
    /// Runs jobs until the set stops or the task is stopped.
    pub(crate) fn run(self, body: Body, source: Option<MessageSource>) {
        let mut inbox = source.map(Inbox::new);
        if let Err(error) = self.apply_settings(&body) {
            return self.ready.tell((self.index, Err(error)));
        }
        IS_REAL_TIME.set(self.options.real_time);
        make_stack_resident();
        let (worker, mut execution) = match self.prepare(body) {
            Ok(prepared) => prepared,
            Err(error) => return self.ready.tell((self.index, Err(error))),
        };
        self.ready.tell((self.index, Ok(worker)));
        let shared = self.shared.clone();
        let figures = shared.run_file.figures(self.index);
        let is_by_message = self.is_by_message();
        let mut ended = Ended {
            cpu_time: own_time(worker),
            sleep: None,
        };
        while let Some(begun) = self.next_job(worker, ended, figures, &mut inbox) {
            let message = inbox.as_ref().zip(begun.message);
            let message = message.map(|(inbox, length)| inbox.bytes(length));
            let result = execution.run(&begun.job, message);
            let now = sys::monotonic();
            let cpu_time = own_time(worker);
            let used = begun.running.used(worker, cpu_time, now);
            let job = TracedJob {
                release: begun.job.release,
                deadline: begun.job.deadline,
                begin: begun.running.at,
                end: now,
            };
            let times = JobTimes {
                lateness: job.begin.saturating_sub(begun.job.ready),
                execution: used,
                latency: is_by_message.then(|| now.saturating_sub(begun.job.arrival)),
            };
            figures.end(&job, &times);
            let (action, sleep) = self.end(worker, now, used, result.is_err());
            ended = Ended { cpu_time, sleep };
            if action == Some(Action::Stopped) {
                figures.set_state(TaskState::Stopped);
                if let Err(Some(reason)) = result {
                    self.report(&format!("{reason}, and it was stopped"));
                }
                self.go_to_safe_state(execution);
                return;
            }
        }
        if let Execution::Program(running) = execution {
            running.process.end();
        }
    }

    /// Starts the program, if it is one.
    fn prepare(&self, body: Body) -> Result<(Worker, Execution), RunError> {
        let thread = sys::own_number();
        match body {
            Body::Code(code) => Ok((Worker::Thread(thread), Execution::Code(code))),
            Body::Program(program) => {
                let started = Process::start(&program).and_then(|process| {
                    let handle = process.handle()?;
                    Ok((process, handle))
                });
                let (process, handle) = started.map_err(|error| {
                    let name = program.words.first().map_or("", String::as_str);
                    RunError::Program {
                        task: self.name(),
                        reason: format!("`{}`: {}", name.escape_debug(), program::reason(&error)),
                    }
                })?;
                let handles = self.shared.programs.lock();
                handles.unwrap_or_else(|error| error.into_inner())[self.index] = Some(handle);
                let worker = Worker::Process {
                    thread,
                    process: process.number(),
                };
                // It has inherited the priority of its thread, but no deadline.
                let (_, policy) = of_program(&self.shared.set, self.index);
                if matches!(policy, Policy::Deadline(_)) && self.options.real_time {
                    let scheduled = sys::schedule(process.number(), Some(policy));
                    scheduled.map_err(|error| self.deadline_refused(error))?;
                }
                let running = Running { program, process };
                Ok((worker, Execution::Program(Box::new(running))))
            }
        }
    }

    /// Waits until a job may begin; `None` when the set stops. To read the CPU time takes a system call, so that of the
    /// last job's end stands for that of the next one's begin, unless more than one sleep lies between, or it is of a
    /// process, which does more at the begin of a job.
    fn next_job(
        &self,
        worker: Worker,
        ended: Ended,
        figures: Figures<'_>,
        inbox: &mut Option<Inbox>,
    ) -> Option<Begun> {
        let signal = &self.shared.signals[self.index];
        let is_by_message = self.is_by_message();
        let is_thread = matches!(worker, Worker::Thread(_));
        let mut cpu_time = is_thread.then_some(ended.cpu_time);
        let mut has_slept = false;
        // The set may have stopped during the job, before `seen` was read.
        if let Some((seen, until)) = ended.sleep.filter(|_| !self.shared.is_stopping()) {
            let spun = self.sleep(seen, Some(until));
            cpu_time = cpu_time.map(|before| spun.unwrap_or(before));
            has_slept = true;
        }
        loop {
            let seen = signal.value();
            if self.shared.is_stopping() {
                return None;
            }
            // Before the lock: it may take a system call.
            let taken = inbox.as_mut().and_then(Inbox::look);
            let mut decisions = self.shared.decisions.lock();
            let now = sys::monotonic();
            let arrival = match is_by_message {
                true => taken.or_else(|| decisions.triggered[self.index].first()),
                false => Some(now),
            };
            let next = decisions
                .executive
                .next_release(self.index, now)
                .filter(|_| arrival.is_some());
            let job = arrival.and_then(|arrival| {
                let executive = &mut decisions.executive;
                executive.begin_message(self.index, arrival, now)
            });
            let Some(job) = job else {
                drop(decisions);
                let has_message = arrival.is_some();
                cpu_time = cpu_time.filter(|_| !has_slept);
                match (&mut *inbox, &signal.bell) {
                    (Some(inbox), Some(bell)) if !has_message => inbox.wait(bell),
                    _ => {
                        let spun = self.sleep(seen, next).filter(|_| is_thread);
                        cpu_time = spun.or(cpu_time);
                    }
                }
                has_slept = true;
                continue;
            };
            let running = RunningJob {
                at: now,
                cpu_time: cpu_time.unwrap_or_else(|| own_time(worker)),
                is_demoted: job.is_background,
            };
            decisions.jobs[self.index] = Some(running);
            let message = inbox.as_mut().and_then(Inbox::hand_over);
            if is_by_message && message.is_none() {
                decisions.triggered[self.index].take();
            }
            drop(decisions);
            figures.begin(job.release);
            if job.is_background {
                self.demote(worker);
            }
            return Some(Begun {
                job,
                running,
                message,
            });
        }
    }

    /// Sleeps until a signal after `seen`, or until a release. The most urgent task is awake before it and spins: then
    /// the CPU time of the thread at the release is returned, without a system call after it.
    fn sleep(&self, seen: u32, release: Option<Duration>) -> Option<Duration> {
        let signal = &self.shared.signals[self.index];
        let own_release = &self.shared.releases_ns[self.index];
        own_release.store(release.map_or(0, ns), Ordering::Relaxed);
        let (Some(release), false) = (release, self.early.is_zero()) else {
            signal.wait(seen, release);
            return None;
        };
        let now = sys::monotonic();
        let waking = awake::waking(instant(release)).unwrap_or_default();
        let due = release.saturating_sub(waking.min(self.early));
        if now < due {
            signal.wait(seen, Some(due));
            let woken = sys::monotonic();
            if signal.value() != seen || woken < due {
                return None;
            }
            awake::woke(instant(due), instant(woken));
        }
        let (woken, cpu_time) = (sys::monotonic(), sys::own_cpu_time());
        if woken >= release {
            return None;
        }
        while sys::monotonic() < release && signal.value() == seen {
            std::hint::spin_loop();
        }
        let ended = sys::monotonic();
        awake::spend(instant(woken), instant(ended));
        Some(cpu_time + ended.saturating_sub(woken))
    }

    /// Ends a job. Returns what follows, and how long to sleep if that is known.
    fn end(
        &self,
        worker: Worker,
        now: Duration,
        used: Duration,
        has_failed: bool,
    ) -> (Option<Action>, Option<(u32, Duration)>) {
        let signal = &self.shared.signals[self.index];
        let seen = signal.value();
        let mut decisions = self.shared.decisions.lock();
        let ended = decisions.jobs[self.index].take();
        let action = if has_failed {
            Some(decisions.executive.fail(self.index, now))
        } else {
            decisions.executive.finish(self.index, now, used)
        };
        let has_switched = self.shared.switch(&mut decisions, now);
        let wakes_watchdog = std::mem::take(&mut decisions.wakes_watchdog);
        let next = decisions.executive.next_release(self.index, now);
        drop(decisions);
        if ended.is_some_and(|job| job.is_demoted) {
            self.shared
                .run_file
                .figures(self.index)
                .set_state(TaskState::Active);
            self.promote(worker);
        }
        if has_switched {
            self.shared.wake_all();
        } else if wakes_watchdog || ended.is_some_and(|job| job.is_demoted) {
            self.shared.watchdog.wake();
        }
        if self.options.real_time
            && self.shared.set.scheduling() == Scheduling::EarliestDeadline
            && next.is_some_and(|next| next <= now + WITHOUT_SLEEP_MAX)
        {
            // Without a wake-up the next job would run with the deadline of this one, before all others. To yield would
            // hold the thread back until that deadline, long after the releases of a new mode.
            std::thread::sleep(RENEWAL);
        }
        let sleeps = next.filter(|next| *next > now && !self.is_by_message());
        (action, sleeps.map(|next| (seen, next)))
    }

    fn is_by_message(&self) -> bool {
        self.shared.set.tasks()[self.index].is_by_message()
    }

    fn go_to_safe_state(&self, execution: Execution) {
        // However long it takes, no task waits for it.
        self.demote(Worker::Thread(sys::own_number()));
        if let Err(reason) = execution.go_to_safe_state() {
            self.report(&format!("its safe state {reason}: look at its outputs"));
        }
    }

    fn promote(&self, worker: Worker) {
        if self.options.real_time {
            // A refusal was reported at the start already.
            let _ = worker.promote(&self.shared.set, self.index);
        }
    }

    fn demote(&self, worker: Worker) {
        if self.options.real_time {
            // It was allowed to take the priority, so it may give it back.
            let _ = worker.demote();
        }
    }

    /// Tells the user of something about this task.
    fn report(&self, text: &str) {
        self.shared.limit(format!("`{}`: {text}", self.name()));
    }

    fn name(&self) -> String {
        self.shared.set.tasks()[self.index].name.clone()
    }

    fn deadline_refused(&self, error: io::Error) -> RunError {
        RunError::DeadlineRefused {
            task: self.name(),
            error,
        }
    }

    fn apply_settings(&self, body: &Body) -> Result<(), RunError> {
        if let Some(cpu) = self.options.cpu
            && !sys::stay_on(cpu)
        {
            self.shared.limit(format!(
                "not restricted to CPU {cpu}: name one that this process may run on (taskset -p)"
            ));
        }
        // Without SCHED_FIFO, the kernel's default of 50 µs makes each wake-up late by as much.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
        if !self.options.real_time {
            return Ok(());
        }
        let policy = match body {
            Body::Code(_) => policy(&self.shared.set, self.index),
            Body::Program(_) => of_program(&self.shared.set, self.index).0,
        };
        match (policy, sys::schedule(sys::own_number(), Some(policy))) {
            (_, Ok(())) => {}
            (Policy::Fifo(_), Err(error)) => self.shared.limit(format!(
                "SCHED_FIFO is refused ({error}): raise RLIMIT_RTPRIO (ulimit -r 99) or grant CAP_SYS_NICE"
            )),
            // Below the tasks that have it, the task would miss the deadlines that the analysis promises.
            (Policy::Deadline(_), Err(error)) => return Err(self.deadline_refused(error)),
        }
        Ok(())
    }
}

/// Execution time of this task's worker. For its own thread without the detour of a number.
fn own_time(worker: Worker) -> Duration {
    match worker {
        Worker::Thread(_) => sys::own_cpu_time(),
        Worker::Process { .. } => worker.cpu_time().unwrap_or_default(),
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
