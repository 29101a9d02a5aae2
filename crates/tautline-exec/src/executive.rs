//! Decisions at run time: when a job begins, what an overrun or an exhausted budget leads to, and when a mode takes
//! effect.
//!
//! The caller runs the tasks: it reports each beginning and end of a job with the time, and asks meanwhile about the
//! budget and, in a table, about the window. Every call is bounded and takes no memory.

use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use crate::error::{Fault, Location, SetError};
use crate::monitor::{Action, Event, HealthMonitor, HealthRecord};
use crate::table::table_responses;
use crate::task::{OverrunPolicy, Scheduling, TaskSet, ns};
use crate::windows::{Opening, Windows};

/// Most periods by which a message's job may begin after its release. Lower: after a stall that is longer, each later
/// job is late by the rest of it. Higher: more jobs follow one another without distance after a longer stall, or for a
/// sender with wrong time stamps.
const BEHIND_PERIODS_MAX: u32 = 64;

/// One job of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    /// Number of the release since the mode began, from 1. Releases that are left out have numbers too.
    pub number: u64,
    /// Arrival of the message that activates the job; of a job that time activates, its release.
    pub arrival: Duration,
    /// Time of the release. For messages the arrival, or a period after the previous release if that is later.
    pub release: Duration,
    /// Time from which the job could run: its release, or in a table the start of its window.
    pub ready: Duration,
    /// Time by which the job must be done.
    pub deadline: Duration,
    /// Whether the job runs below all tasks that are within their budgets: it makes up for a release that passed
    /// while a job without budget ran, and at its own priority it would come on top of the analysed load.
    pub is_background: bool,
}

/// Tasks of a set at run time.
///
/// A change of mode follows the idle-time protocol: from the request on no job is released; when the last job that
/// runs has ended, the tasks of the new mode start together, each with its phase. So no job of one mode ever delays
/// a job of another, and the analysis of each mode holds by itself. The wait is at most
/// [`Analysis::switch_time`](crate::Analysis::switch_time). A job that has used up its budget, or its windows in a
/// table, goes on below all others, and the change does not wait for it.
///
/// In a table, a job runs in the windows of its task that open between its release and the next one, and goes on
/// below all others between them. A job that has used up the last of them is handled as its overrun policy says.
#[derive(Clone, Debug)]
pub struct Executive {
    modes: Vec<String>,
    safe_mode: Option<usize>,
    mode: usize,
    /// Start of the mode that runs.
    start: Duration,
    requested: Option<usize>,
    tasks: Vec<TaskState>,
    /// Windows by mode; none with priorities.
    windows: Vec<Windows>,
    monitor: HealthMonitor,
}

#[derive(Clone, Debug)]
struct TaskState {
    period: Duration,
    phase: Duration,
    deadline: Duration,
    budget: Option<Duration>,
    by_message: bool,
    policy: OverrunPolicy,
    /// By mode.
    runs_in: Vec<bool>,
    /// The next release; for messages, the earliest one.
    next: Duration,
    number: u64,
    /// Releases that are made up for in the background.
    background: u64,
    messages: Pace,
    running: Option<Running>,
    is_stopped: bool,
}

/// Arrivals of messages against the period of their task.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    /// Arrival of the last message that was released at once.
    in_time: Duration,
    /// Messages since then.
    messages: u32,
    /// Time from the arrival to the release when that was last recorded.
    behind_noted: Duration,
}

impl Pace {
    fn since(in_time: Duration) -> Pace {
        Pace {
            in_time,
            ..Pace::default()
        }
    }

    /// Takes note of a message. Returns the event if its release is late by more than a period, and by twice the time
    /// that was recorded before: a sender that stays too fast leaves a few records.
    fn note(&mut self, arrival: Duration, release: Duration, period: Duration) -> Option<Event> {
        let behind = release.saturating_sub(arrival);
        if behind.is_zero() {
            *self = Pace::since(arrival);
            return None;
        }
        self.messages = self.messages.saturating_add(1);
        let distance = arrival.saturating_sub(self.in_time) / self.messages;
        if distance >= period || behind <= period.max(2 * self.behind_noted) {
            return None;
        }
        self.behind_noted = behind;
        Some(Event::MessagesTooFast { distance, behind })
    }
}

#[derive(Clone, Copy, Debug)]
struct Running {
    job: Job,
    deadline_noted: bool,
    budget_noted: bool,
    window_noted: bool,
    /// Whether it began in a mode that has ended since.
    is_left_over: bool,
}

impl Running {
    /// Whether no other job waits for it any more.
    fn is_abandoned(&self) -> bool {
        self.budget_noted || self.window_noted
    }
}

/// Faults of a job at a check.
#[derive(Clone, Copy, Debug)]
struct Excess {
    used: Duration,
    of_budget: bool,
    of_windows: bool,
}

impl Executive {
    /// The tasks of a set, in its first mode from `start` on. A table whose windows are declared wrongly has none, and
    /// its tasks never run: [`Analysis::of`](crate::Analysis::of) names the mistake.
    #[must_use]
    pub fn new(set: &TaskSet, start: Duration) -> Executive {
        let modes: Vec<String> = set.mode_names().map(str::to_owned).collect();
        let safe_mode = set.safe_mode();
        let windows = modes.iter().map(|mode| {
            let table = table_responses(set, mode).map(|(table, _)| table);
            Windows::of(&table.unwrap_or_default(), set.tasks().len())
        });
        let windows = match set.scheduling() {
            Scheduling::Table => windows.collect(),
            _ => Vec::new(),
        };
        let tasks = set.tasks().iter().map(|task| TaskState {
            period: task.period,
            phase: task.phase(),
            deadline: task.deadline,
            budget: task.budget,
            by_message: task.is_by_message(),
            policy: task.overrun,
            runs_in: modes.iter().map(|mode| task.runs_in(mode)).collect(),
            next: start + task.phase(),
            number: 0,
            background: 0,
            messages: Pace::since(start),
            running: None,
            is_stopped: false,
        });
        Executive {
            tasks: tasks.collect(),
            safe_mode: modes
                .iter()
                .position(|mode| Some(mode.as_str()) == safe_mode),
            modes,
            mode: 0,
            start,
            requested: None,
            windows,
            monitor: HealthMonitor::new(),
        }
    }

    /// Moves the start of a set of which no job has begun.
    pub fn start_at(&mut self, start: Duration) {
        self.start = start;
        for state in &mut self.tasks {
            state.next = start + state.phase;
            state.messages = Pace::since(start);
        }
    }

    /// Index of the mode that runs.
    #[must_use]
    pub fn mode(&self) -> usize {
        self.mode
    }

    /// Records of what happened.
    #[must_use]
    pub fn monitor(&self) -> &HealthMonitor {
        &self.monitor
    }

    /// Time at which the next job of a task may begin; for a task activated by messages, the earliest. In a table, the
    /// start of the window that is open at `now` or of the one that opens next. `None` while a job runs, in a mode
    /// without this task, during a change of mode, and once it is stopped.
    #[must_use]
    pub fn next_release(&self, task: usize, now: Duration) -> Option<Duration> {
        let state = &self.tasks[task];
        let is_due = self.requested.is_none()
            && state.runs_in[self.mode]
            && state.running.is_none()
            && !state.is_stopped;
        if !is_due || !self.is_table() {
            return is_due.then_some(state.next);
        }
        Some(self.at(self.usable_window(task, now)?.start))
    }

    /// Releases of a task in the mode that runs: the last one that is not after `now`, and the next one, whether its
    /// jobs keep up or not. `None` for a task that messages activate, during a change of mode, in a mode without this
    /// task, and once it is stopped.
    #[must_use]
    pub fn releases(&self, task: usize, now: Duration) -> Option<(Option<Duration>, Duration)> {
        let state = &self.tasks[task];
        let has_releases = self.requested.is_none()
            && state.runs_in[self.mode]
            && !state.by_message
            && !state.is_stopped;
        let first = self.start + state.phase;
        match now.checked_sub(first) {
            _ if !has_releases => None,
            None => Some((None, first)),
            Some(since) => {
                let into = Duration::from_nanos(ns(since) % ns(state.period));
                let last = now - into;
                Some((Some(last), last + state.period))
            }
        }
    }

    /// Begins a job, if one may begin at `now`. For a task activated by messages, see
    /// [`begin_message`](Executive::begin_message).
    pub fn begin(&mut self, task: usize, now: Duration) -> Option<Job> {
        self.begin_message(task, now, now)
    }

    /// Begins the job of a message that arrived at `arrival`, if one may begin at `now`. Its release is the arrival, or
    /// a period after the previous release if that is later, and its deadline counts from the release: however late the
    /// task has the processor, the lateness of a job delays no release. Messages that keep coming sooner than the
    /// period allows are recorded. For a task activated by time the arrival is of no account.
    pub fn begin_message(&mut self, task: usize, arrival: Duration, now: Duration) -> Option<Job> {
        let next = self.next_release(task, now).filter(|next| *next <= now)?;
        let state = &mut self.tasks[task];
        let mut too_fast = None;
        let arrival = match state.by_message {
            true => arrival.min(now),
            false => state.next,
        };
        if state.by_message {
            let behind_max = state.period * BEHIND_PERIODS_MAX;
            state.next = state.next.max(arrival).max(now.saturating_sub(behind_max));
            let since_start = arrival.max(self.start);
            too_fast = state.messages.note(since_start, state.next, state.period);
        }
        state.number += 1;
        let job = Job {
            number: state.number,
            arrival,
            release: state.next,
            ready: next.max(state.next),
            deadline: state.next + state.deadline,
            is_background: state.background > 0,
        };
        state.background = state.background.saturating_sub(1);
        state.next += state.period;
        state.running = Some(Running {
            job,
            deadline_noted: false,
            budget_noted: false,
            window_noted: false,
            is_left_over: false,
        });
        if let Some(event) = too_fast {
            self.note(now, task, event, Action::Recorded);
        }
        Some(job)
    }

    /// Looks at a job that runs and has used so much execution time, without the machine's overhead. Each fault is
    /// recorded once. After a call, [`is_below`](Executive::is_below) says whether the job has to let all others go
    /// first, and [`switch`](Executive::switch) whether another mode begins. If several things follow, the gravest is
    /// the answer.
    pub fn check(&mut self, task: usize, now: Duration, used: Duration) -> Option<Action> {
        let budget = self.tasks[task].budget;
        let excess = Excess {
            used,
            of_budget: budget.is_some_and(|budget| used >= budget),
            of_windows: self.has_used_up_windows(task, now),
        };
        self.look(task, now, excess)
    }

    /// Whether the job that runs has to go on below all tasks that are within their budgets and windows. Without a
    /// job, no.
    #[must_use]
    pub fn is_below(&self, task: usize, now: Duration) -> bool {
        let state = &self.tasks[task];
        state.running.is_some_and(|running| {
            running.budget_noted
                || running.job.is_background
                || state.is_stopped
                || (self.is_table() && self.open_window(task, now).is_none())
        })
    }

    /// In a table, the next time after `now` at which a job may have to go below all others, or may come back from
    /// there: ends of windows, and starts of windows of jobs that wait for one. `None` with priorities, and if nothing
    /// is to come.
    #[must_use]
    pub fn next_boundary(&self, now: Duration) -> Option<Duration> {
        let tasks = 0..self.tasks.len();
        let boundary = |task: usize| match self.tasks[task].running {
            Some(_) => match self.open_window(task, now) {
                Some(open) => Some(open.end),
                None => Some(self.windows()?.opening(task, self.since_start(now))?.start),
            },
            None => {
                self.next_release(task, now)?;
                Some(self.usable_window(task, now)?.end)
            }
        };
        let first = self
            .windows()
            .and_then(|_| tasks.filter_map(boundary).min())?;
        Some(self.at(first))
    }

    fn is_table(&self) -> bool {
        !self.windows.is_empty()
    }

    /// Windows of the mode that runs.
    fn windows(&self) -> Option<&Windows> {
        self.windows.get(self.mode)
    }

    fn open_window(&self, task: usize, now: Duration) -> Option<Opening> {
        let since_start = now.checked_sub(self.start)?;
        self.windows()?.open_at(task, ns(since_start))
    }

    /// The window of the next job.
    fn usable_window(&self, task: usize, now: Duration) -> Option<Opening> {
        let release = self.since_start(self.tasks[task].next);
        self.windows()?.usable(task, release, self.since_start(now))
    }

    /// Whether a job has outlasted the windows between its release and the next one.
    fn has_used_up_windows(&self, task: usize, now: Duration) -> bool {
        let state = &self.tasks[task];
        let is_waiting = self.is_table()
            && state.running.is_some_and(|running| !running.is_left_over)
            && self.open_window(task, now).is_none();
        let next = || self.windows()?.opening(task, self.since_start(now));
        is_waiting && next().is_none_or(|next| next.start >= self.since_start(state.next))
    }

    /// Time on the clock of the table's windows; before the start, zero.
    fn since_start(&self, time: Duration) -> u64 {
        ns(time.saturating_sub(self.start))
    }

    fn at(&self, since_start: u64) -> Duration {
        self.start + Duration::from_nanos(since_start)
    }

    fn look(&mut self, task: usize, now: Duration, excess: Excess) -> Option<Action> {
        let used = excess.used;
        let state = &mut self.tasks[task];
        let running = state.running.as_mut()?;
        let is_late = now > running.job.deadline && !running.deadline_noted;
        let is_over_budget = excess.of_budget && !running.budget_noted;
        let is_over_window = excess.of_windows && !running.window_noted;
        running.deadline_noted |= is_late;
        running.budget_noted |= is_over_budget;
        running.window_noted |= is_over_window;
        let mut answer = None;
        if is_late {
            answer = Some(Action::Recorded);
            self.note(now, task, Event::DeadlineMissed, Action::Recorded);
        }
        if is_over_budget {
            answer = Some(Action::Demoted);
            self.note(now, task, Event::BudgetExceeded { used }, Action::Demoted);
        }
        if is_over_window {
            let action = self.leave_window(task);
            answer = Some(action);
            self.note(now, task, Event::WindowsExceeded { used }, action);
        }
        answer
    }

    /// The safe mode, if there is one, and the set is in another. To begin it once more would put off the releases of
    /// its own tasks.
    fn other_safe_mode(&self) -> Option<usize> {
        self.safe_mode.filter(|mode| *mode != self.mode)
    }

    /// Handles a job that has used up its windows, as its policy says.
    fn leave_window(&mut self, task: usize) -> Action {
        match (self.tasks[task].policy, self.other_safe_mode()) {
            (OverrunPolicy::Stop, _) => {
                self.tasks[task].is_stopped = true;
                Action::Stopped
            }
            (OverrunPolicy::SafeMode, Some(mode)) => {
                self.requested = Some(mode);
                Action::SafeMode
            }
            _ => Action::Demoted,
        }
    }

    /// Ends a job that used so much execution time, and says what follows from an overrun, if there was one. The
    /// caller lifts a demotion first.
    pub fn finish(&mut self, task: usize, now: Duration, used: Duration) -> Option<Action> {
        // A job that ends with its budget just used up has kept it, and so for its window.
        let budget = self.tasks[task].budget;
        let last_moment = now.saturating_sub(Duration::from_nanos(1));
        let excess = Excess {
            used,
            of_budget: budget.is_some_and(|budget| used > budget),
            of_windows: self.has_used_up_windows(task, last_moment),
        };
        self.look(task, now, excess);
        let is_table = self.is_table();
        let safe_mode = self.other_safe_mode();
        let state = &mut self.tasks[task];
        let running = state.running.take()?;
        if state.is_stopped {
            return Some(Action::Stopped);
        }
        if state.by_message && running.budget_noted {
            // Messages that came meanwhile would be released at once, on top of the analysed load.
            state.next = state.next.max(now);
        }
        let releases = state.passed(now);
        if releases == 0 || state.by_message || !state.runs_in[self.mode] {
            return None;
        }
        // A policy concerns the mode of the job, and the safe mode is asked for once, and not within itself.
        let is_answered = running.is_left_over
            || (state.policy == OverrunPolicy::SafeMode
                && (running.window_noted || safe_mode.is_none()));
        let action = match is_answered {
            true => {
                state.leave_out(releases);
                Action::Skipped { releases }
            }
            false => state.overrun(releases),
        };
        if let Action::CatchingUp { releases, .. } = action
            && (running.budget_noted || running.job.is_background)
            && !is_table
        {
            state.background = releases;
        }
        self.note(now, task, Event::Overrun { releases }, action);
        if action == Action::SafeMode {
            self.requested = safe_mode;
        }
        Some(action)
    }

    /// Stops a task that panicked or whose process ended. The others go on.
    pub fn fail(&mut self, task: usize, now: Duration) -> Action {
        let state = &mut self.tasks[task];
        state.running = None;
        state.is_stopped = true;
        self.note(now, task, Event::Failed, Action::Stopped);
        Action::Stopped
    }

    /// Notes that something has ended that a task works with and that is not in the set. Asks for the safe mode if
    /// `is_grave`, there is one, and the set is in another. The task goes on.
    pub fn partner_ended(&mut self, task: usize, now: Duration, is_grave: bool) -> Action {
        let safe_mode = self.other_safe_mode();
        let action = match safe_mode.filter(|_| is_grave) {
            Some(mode) => {
                self.requested = Some(mode);
                Action::SafeMode
            }
            None => Action::Recorded,
        };
        self.note(now, task, Event::PartnerEnded, action);
        action
    }

    /// Whether a task was stopped.
    #[must_use]
    pub fn is_stopped(&self, task: usize) -> bool {
        self.tasks[task].is_stopped
    }

    /// Asks for another mode. A later request replaces one that has not taken effect.
    ///
    /// # Errors
    /// A mode that the set does not have.
    pub fn request_mode(&mut self, mode: &str) -> Result<(), SetError> {
        let found = self.modes.iter().position(|one| one == mode);
        let to = found.ok_or_else(|| {
            let mode = mode.to_owned();
            SetError::new(Location::Set("modes"), Fault::UnknownMode { mode })
        })?;
        self.requested = Some(to);
        Ok(())
    }

    /// Lets a requested mode take effect once no job runs any more within its budget and its windows; whether it does.
    /// Call it after each end of a job, each request, and each look at a job that found something.
    pub fn switch(&mut self, now: Duration) -> bool {
        let is_awaited =
            |state: &TaskState| state.running.is_some_and(|running| !running.is_abandoned());
        if self.requested.is_none() || self.tasks.iter().any(is_awaited) {
            return false;
        }
        self.mode = self.requested.take().unwrap_or(self.mode);
        self.start_at(now);
        for state in &mut self.tasks {
            state.number = 0;
            state.background = 0;
            if let Some(running) = &mut state.running {
                running.is_left_over = true;
            }
        }
        true
    }

    fn note(&mut self, at: Duration, task: usize, event: Event, action: Action) {
        self.monitor.record(HealthRecord {
            at,
            task,
            event,
            action,
        });
    }
}

impl TaskState {
    /// Releases that have passed before `now`.
    fn passed(&self, now: Duration) -> u64 {
        let Some(behind) = now
            .checked_sub(self.next)
            .filter(|behind| !behind.is_zero())
        else {
            return 0;
        };
        u64::try_from((behind.as_nanos() - 1) / self.period.as_nanos() + 1).unwrap_or(u64::MAX)
    }

    /// Leaves out releases, and says what was done.
    fn overrun(&mut self, releases: u64) -> Action {
        match self.policy {
            OverrunPolicy::Skip => {
                self.leave_out(releases);
                Action::Skipped { releases }
            }
            OverrunPolicy::CatchUp { jobs_max } => {
                let kept = releases.min(u64::from(jobs_max));
                let skipped = releases - kept;
                self.leave_out(skipped);
                Action::CatchingUp {
                    releases: kept,
                    skipped,
                }
            }
            OverrunPolicy::Stop => {
                self.is_stopped = true;
                Action::Stopped
            }
            OverrunPolicy::SafeMode => {
                self.leave_out(releases);
                Action::SafeMode
            }
        }
    }

    fn leave_out(&mut self, releases: u64) {
        // A clock that jumped by centuries leaves the task where it is; it never comes to that on a monotonic one.
        let nanos = u64::try_from(self.period.as_nanos()).unwrap_or(u64::MAX);
        self.next += Duration::from_nanos(nanos.saturating_mul(releases));
        self.number += releases;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{TablePlan, Window};
    use crate::task::{Activation, Machine, Scheduling, Task};
    use alloc::vec;

    /// No matter to priorities.
    const LATER: Duration = Duration::from_secs(9);

    fn ms(number: u64) -> Duration {
        Duration::from_millis(number)
    }

    fn us(number: u64) -> Duration {
        Duration::from_micros(number)
    }

    fn with_policy(overrun: OverrunPolicy) -> Executive {
        let mut task = Task::periodic("a", ms(1), us(100));
        task.overrun = overrun;
        let modes = vec!["run".to_owned(), "safe".to_owned()];
        let set = TaskSet::declare(
            Scheduling::default(),
            Machine::default(),
            Vec::new(),
            modes,
            vec![task],
        );
        let set = set.unwrap().with_safe_mode("safe").unwrap();
        Executive::new(&set, ms(10))
    }

    /// Runs the first job for so long, and returns what followed.
    fn first_job(executive: &mut Executive, lasts: Duration) -> Option<Action> {
        executive.begin(0, ms(10)).unwrap();
        executive.finish(0, ms(10) + lasts, us(100))
    }

    #[test]
    fn a_job_in_time_is_followed_by_the_next_release() {
        let mut executive = with_policy(OverrunPolicy::Skip);
        assert_eq!(executive.begin(0, us(9_999)), None);
        assert_eq!(first_job(&mut executive, ms(1)), None);
        assert_eq!(executive.next_release(0, LATER), Some(ms(11)));
        assert_eq!(executive.monitor().total(), 0);
        let job = executive.begin(0, ms(11) + us(5)).unwrap();
        assert_eq!((job.number, job.release, job.deadline), (2, ms(11), ms(12)));
        assert_eq!(executive.next_release(0, LATER), None, "while it runs");
    }

    #[test]
    fn each_policy_does_as_it_says() {
        let lasts = us(3_500);
        let mut executive = with_policy(OverrunPolicy::Skip);
        assert_eq!(
            first_job(&mut executive, lasts),
            Some(Action::Skipped { releases: 3 })
        );
        assert_eq!(executive.next_release(0, LATER), Some(ms(14)));
        assert_eq!(executive.begin(0, ms(14)).unwrap().number, 5);

        let mut executive = with_policy(OverrunPolicy::CatchUp { jobs_max: 2 });
        let caught = Action::CatchingUp {
            releases: 2,
            skipped: 1,
        };
        assert_eq!(first_job(&mut executive, lasts), Some(caught));
        assert_eq!(executive.next_release(0, LATER), Some(ms(12)));
        let job = executive.begin(0, us(13_500)).unwrap();
        assert_eq!((job.number, job.deadline), (3, ms(13)));

        // A machine that slept for an hour makes no storm of jobs.
        let mut executive = with_policy(OverrunPolicy::CatchUp { jobs_max: 2 });
        let caught = Action::CatchingUp {
            releases: 2,
            skipped: 3_599_997,
        };
        let hour = Duration::from_secs(3_600);
        assert_eq!(first_job(&mut executive, hour), Some(caught));

        let mut executive = with_policy(OverrunPolicy::Stop);
        assert_eq!(first_job(&mut executive, lasts), Some(Action::Stopped));
        assert_eq!(executive.next_release(0, LATER), None);

        let mut executive = with_policy(OverrunPolicy::SafeMode);
        assert_eq!(first_job(&mut executive, lasts), Some(Action::SafeMode));
        assert_eq!(
            executive.next_release(0, LATER),
            None,
            "until the mode takes effect"
        );
        assert!(executive.switch(us(13_500)) && executive.mode() == 1);
        assert_eq!(executive.next_release(0, LATER), Some(us(13_500)));
    }

    #[test]
    fn every_fault_is_recorded_once_with_what_was_done() {
        let mut task = Task::periodic("a", ms(1), us(100));
        task.budget = Some(us(200));
        let set = TaskSet::new(vec![task]).unwrap();
        let mut executive = Executive::new(&set, Duration::ZERO);
        executive.begin(0, Duration::ZERO).unwrap();
        assert_eq!(executive.check(0, us(150), us(199)), None);
        assert_eq!(executive.check(0, us(260), us(250)), Some(Action::Demoted));
        assert_eq!(executive.check(0, us(300), us(290)), None);
        assert_eq!(
            executive.check(0, us(1_001), us(290)),
            Some(Action::Recorded)
        );
        assert_eq!(executive.check(0, us(1_002), us(290)), None);
        executive.finish(0, us(1_003), us(290));
        let found: Vec<(Event, Action)> = executive
            .monitor()
            .records()
            .map(|record| (record.event, record.action))
            .collect();
        let used = us(250);
        assert_eq!(
            found,
            [
                (Event::BudgetExceeded { used }, Action::Demoted),
                (Event::DeadlineMissed, Action::Recorded),
                (
                    Event::Overrun { releases: 1 },
                    Action::Skipped { releases: 1 }
                ),
            ]
        );
    }

    #[test]
    fn releases_go_on_while_a_job_runs() {
        let mut task = Task::periodic("a", ms(4), us(100));
        task.activation = Activation::Time { phase: ms(1) };
        let mut executive = Executive::new(&TaskSet::new(vec![task]).unwrap(), ms(10));
        assert_eq!(executive.releases(0, ms(10)), Some((None, ms(11))));
        assert_eq!(executive.releases(0, ms(11)), Some((Some(ms(11)), ms(15))));
        executive.begin(0, ms(11)).unwrap();
        assert_eq!(
            executive.releases(0, us(22_999)),
            Some((Some(ms(19)), ms(23)))
        );
        executive.fail(0, ms(23));
        assert_eq!(executive.releases(0, ms(23)), None);
    }

    fn by_message(budget: Option<Duration>) -> Executive {
        let mut task = Task::periodic("a", ms(1), us(100));
        task.budget = budget;
        task.activation = Activation::Message {
            port: "command".into(),
        };
        Executive::new(&TaskSet::new(vec![task]).unwrap(), ms(10))
    }

    /// Runs the job of a message from `begin` on, and returns its release.
    fn job_of(executive: &mut Executive, arrival: Duration, begin: Duration) -> Duration {
        let job = executive.begin_message(0, arrival, begin).unwrap();
        assert_eq!(job.deadline, job.release + ms(1));
        executive.finish(0, begin + us(100), us(100));
        job.release
    }

    #[test]
    fn a_message_is_released_at_its_arrival_or_a_period_after_the_one_before() {
        let mut executive = by_message(None);
        let before_the_start = job_of(&mut executive, ms(7), us(10_020));
        assert_eq!(before_the_start, ms(10));
        // A more urgent task had the CPU for 0.4 ms.
        let job = executive.begin_message(0, us(15_500), us(15_900)).unwrap();
        assert_eq!((job.arrival, job.release), (us(15_500), us(15_500)));
        assert_eq!(job.deadline, us(16_500));
        executive.finish(0, ms(16), us(100));
        let early = us(16_100);
        assert_eq!(executive.begin_message(0, early, us(16_400)), None);
        assert_eq!(executive.next_release(0, LATER), Some(us(16_500)));
        let job = executive.begin_message(0, early, us(16_900)).unwrap();
        assert_eq!((job.arrival, job.release), (early, us(16_500)));
        assert_eq!(executive.monitor().total(), 0);
    }

    #[test]
    fn late_begins_add_up_to_nothing() {
        let mut executive = by_message(None);
        for number in 0..5_000 {
            let arrival = ms(20 + number);
            let late = us(number % 900);
            assert_eq!(job_of(&mut executive, arrival, arrival + late), arrival);
        }
        assert_eq!(executive.monitor().total(), 0);
        // A stall of 5 ms: each job that ends after its deadline is noted, and those after them are in time again.
        for number in 0..10 {
            let arrival = ms(6_000 + number);
            let begin = arrival.max(ms(6_005) + us(100 * number));
            assert_eq!(job_of(&mut executive, arrival, begin), arrival);
        }
        let events = executive.monitor().records().map(|record| record.event);
        assert!(events.eq([Event::DeadlineMissed; 5]));
    }

    #[test]
    fn messages_that_keep_coming_too_fast_are_recorded() {
        let mut executive = by_message(None);
        // Each 0.9 ms, with jobs each 1 ms.
        for number in 0..25 {
            let release = ms(20 + number);
            let arrival = ms(20) + us(900 * number);
            assert_eq!(job_of(&mut executive, arrival, release), release);
        }
        let events = executive.monitor().records().map(|record| record.event);
        let event = |behind| Event::MessagesTooFast {
            distance: us(900),
            behind: us(behind),
        };
        assert!(events.eq([event(1_100), event(2_300)]));
        // After a pause, none is behind.
        assert_eq!(job_of(&mut executive, ms(90), ms(90)), ms(90));
        // Three at once, and one more within the last one's period.
        for (number, arrival) in [95_000, 95_000, 95_000, 97_500].into_iter().enumerate() {
            let release = ms(95 + number as u64);
            assert_eq!(job_of(&mut executive, us(arrival), release), release);
        }
        let last = executive.monitor().records().last().unwrap();
        let burst = Event::MessagesTooFast {
            distance: Duration::ZERO,
            behind: ms(2),
        };
        assert_eq!((executive.monitor().total(), last.event), (3, burst));
    }

    #[test]
    fn wrong_stamps_of_a_sender_have_bounds() {
        let mut executive = by_message(None);
        assert_eq!(job_of(&mut executive, ms(900), ms(500)), ms(500));
        assert_eq!(job_of(&mut executive, ms(0), ms(900)), ms(836));
        assert_eq!(job_of(&mut executive, Duration::MAX, ms(901)), ms(901));
    }

    #[test]
    fn messages_that_came_while_a_job_without_budget_ran_keep_their_distance_from_its_end() {
        let mut executive = by_message(Some(us(200)));
        executive.begin_message(0, ms(20), ms(20)).unwrap();
        let action = executive.check(0, us(20_200), us(200));
        assert_eq!(action, Some(Action::Demoted));
        executive.finish(0, us(24_500), us(300));
        assert_eq!(job_of(&mut executive, ms(21), us(24_500)), us(24_500));
        assert_eq!(executive.next_release(0, LATER), Some(us(25_500)));
    }

    #[test]
    fn a_mode_waits_for_the_jobs_of_the_one_before() {
        let mut tasks = vec![
            Task::periodic("both", ms(1), us(100)),
            Task::periodic("flight", ms(2), us(100)),
            Task::periodic("ground", ms(4), us(100)),
        ];
        tasks[1].modes = vec!["flight".into()];
        tasks[2].modes = vec!["ground".into()];
        tasks[2].activation = Activation::Time { phase: us(250) };
        let modes = vec!["ground".to_owned(), "flight".to_owned()];
        let set = TaskSet::declare(
            Scheduling::default(),
            Machine::default(),
            Vec::new(),
            modes,
            tasks,
        )
        .unwrap();
        let mut executive = Executive::new(&set, Duration::ZERO);
        assert_eq!(executive.next_release(1, LATER), None, "not in this mode");
        executive.begin(0, Duration::ZERO).unwrap();
        executive.begin(2, us(250)).unwrap();
        assert!(executive.request_mode("orbit").is_err());
        executive.request_mode("flight").unwrap();
        assert!(!executive.switch(us(300)));
        executive.finish(0, us(350), us(100));
        assert_eq!(executive.next_release(0, LATER), None);
        assert!(!executive.switch(us(350)));
        executive.finish(2, us(400), us(100));
        assert!(executive.switch(us(400)));
        assert_eq!(executive.next_release(0, LATER), Some(us(400)));
        assert_eq!(executive.next_release(1, LATER), Some(us(400)));
        assert_eq!(executive.next_release(2, LATER), None);
    }

    /// Windows of `a` at 0 to 1 and 4 to 5 ms, and of `b` at 1 to 2 ms, again each 8 ms. Both have periods of 8 ms.
    fn with_windows(policy: OverrunPolicy) -> Executive {
        let mut tasks = vec![
            Task::periodic("a", ms(8), us(1_500)),
            Task::periodic("b", ms(8), us(500)),
        ];
        tasks[0].overrun = policy;
        let window = |task, offset| Window {
            task,
            offset: ms(offset),
            duration: ms(1),
        };
        let plan = TablePlan {
            minor_frame: Some(ms(4)),
            windows: vec![window(0, 0), window(1, 1), window(0, 4)],
        };
        let modes = vec!["run".to_owned(), "safe".to_owned()];
        let machine = Machine::default();
        let set = TaskSet::declare(Scheduling::Table, machine, Vec::new(), modes, tasks);
        let set = set.unwrap().with_table(plan).unwrap();
        let set = set.with_safe_mode("safe").unwrap();
        Executive::new(&set, ms(100))
    }

    #[test]
    fn a_job_runs_in_its_windows_and_below_all_others_between_them() {
        let mut executive = with_windows(OverrunPolicy::Skip);
        assert_eq!(executive.next_release(1, ms(0)), Some(ms(101)));
        assert_eq!(executive.next_boundary(ms(0)), Some(ms(101)));
        let job = executive.begin(0, ms(100) + us(20)).unwrap();
        assert_eq!((job.release, job.ready), (ms(100), ms(100)));
        assert_eq!(executive.check(0, us(100_999), us(900)), None);
        assert!(!executive.is_below(0, us(100_999)));
        assert_eq!(executive.check(0, ms(101), us(980)), None);
        assert!(executive.is_below(0, ms(101)), "its window has ended");
        let job = executive.begin(1, ms(101)).unwrap();
        assert_eq!((job.release, job.ready), (ms(100), ms(101)));
        assert_eq!(executive.next_boundary(us(101_100)), Some(ms(102)));
        executive.finish(1, us(101_400), us(400));
        assert_eq!(executive.next_boundary(us(101_400)), Some(ms(104)));
        assert!(!executive.is_below(0, ms(104)), "its second window");
        executive.finish(0, us(104_500), us(1_480));
        // The rest of the second window belongs to no job.
        assert_eq!(executive.next_release(0, us(104_500)), Some(ms(108)));
        assert_eq!(executive.begin(0, us(104_600)), None);
        assert_eq!(executive.monitor().total(), 0);
    }

    #[test]
    fn a_job_that_is_late_begins_in_the_window_and_never_behind_it() {
        let mut executive = with_windows(OverrunPolicy::Skip);
        assert_eq!(
            executive.begin(1, us(102_000)),
            None,
            "the window has ended"
        );
        assert_eq!(executive.next_release(1, us(102_000)), Some(ms(109)));
        let job = executive.begin(0, us(104_700)).unwrap();
        assert_eq!((job.release, job.ready), (ms(100), ms(104)));
        assert_eq!(executive.finish(0, ms(105), us(300)), None, "just in time");
    }

    #[test]
    fn a_job_that_never_ends_uses_up_its_windows_and_no_others() {
        let mut executive = with_windows(OverrunPolicy::Skip);
        executive.begin(0, ms(100)).unwrap();
        assert_eq!(executive.check(0, ms(101), ms(1)), None, "one is left");
        let used = ms(2);
        assert_eq!(executive.check(0, ms(105), used), Some(Action::Demoted));
        let last = *executive.monitor().records().last().unwrap();
        assert_eq!(last.event, Event::WindowsExceeded { used });
        assert_eq!(executive.check(0, ms(106), used), None, "recorded once");
        assert!(executive.is_below(0, ms(109)));
        assert!(executive.begin(1, ms(109)).is_some(), "on time");
        assert!(
            !executive.is_below(0, ms(112)),
            "its own window harms nobody"
        );
        assert_eq!(
            executive.finish(0, ms(113), ms(3)),
            Some(Action::Skipped { releases: 1 })
        );
        assert_eq!(executive.next_release(0, ms(113)), Some(ms(116)));
    }

    #[test]
    fn a_partner_that_ends_is_recorded_and_brings_the_safe_mode_once() {
        let mut executive = with_policy(OverrunPolicy::SafeMode);
        assert_eq!(executive.partner_ended(0, ms(1), false), Action::Recorded);
        assert!(!executive.switch(ms(1)));
        assert_eq!(executive.partner_ended(0, ms(2), true), Action::SafeMode);
        assert!(executive.switch(ms(2)) && executive.mode() == 1);
        assert_eq!(executive.partner_ended(0, ms(3), true), Action::Recorded);
        assert!(!executive.switch(ms(3)) && !executive.is_stopped(0));
        let last = executive.monitor().records().last().unwrap();
        assert_eq!((last.task, last.event), (0, Event::PartnerEnded));
    }

    #[test]
    fn used_up_windows_stop_a_task_or_bring_the_safe_mode_at_once() {
        let mut executive = with_windows(OverrunPolicy::Stop);
        executive.begin(0, ms(100)).unwrap();
        assert_eq!(executive.check(0, ms(105), ms(2)), Some(Action::Stopped));
        assert!(executive.is_stopped(0) && executive.is_below(0, ms(108)));
        assert_eq!(executive.finish(0, ms(109), ms(2)), Some(Action::Stopped));

        let mut executive = with_windows(OverrunPolicy::SafeMode);
        executive.begin(0, ms(100)).unwrap();
        assert_eq!(executive.check(0, ms(105), ms(2)), Some(Action::SafeMode));
        assert!(executive.switch(ms(105)), "it waits for no such job");
        assert_eq!(executive.mode(), 1);
        assert_eq!(executive.next_release(1, ms(105)), Some(ms(106)));
        // The job of the mode before ends within the new one, and asks for nothing again.
        let left_out = Action::Skipped { releases: 1 };
        assert_eq!(executive.finish(0, us(105_500), ms(3)), Some(left_out));
        assert!(!executive.switch(us(105_500)));
        assert_eq!(executive.next_release(0, us(105_500)), Some(ms(113)));
    }

    #[test]
    fn a_mode_does_not_wait_for_a_job_beyond_its_budget() {
        let mut task = Task::periodic("a", ms(1), us(100));
        task.budget = Some(us(200));
        let modes = vec!["one".to_owned(), "two".to_owned()];
        let machine = Machine::default();
        let set = TaskSet::declare(
            Scheduling::default(),
            machine,
            Vec::new(),
            modes,
            vec![task],
        );
        let mut executive = Executive::new(&set.unwrap(), Duration::ZERO);
        executive.begin(0, Duration::ZERO).unwrap();
        executive.request_mode("two").unwrap();
        assert!(!executive.switch(us(150)));
        assert_eq!(executive.check(0, us(210), us(200)), Some(Action::Demoted));
        assert!(executive.switch(us(210)));
        assert!(executive.is_below(0, us(300)));
        assert_eq!(
            executive.finish(0, us(250), us(220)),
            Some(Action::Skipped { releases: 1 })
        );
    }
}
