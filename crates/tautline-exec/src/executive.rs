//! Decisions at run time: when a job begins, what an overrun or an exhausted budget leads to, and when a mode takes
//! effect.
//!
//! The caller runs the tasks: it reports each beginning and end of a job with the time, and asks meanwhile about the
//! budget. Every call is bounded and takes no memory.

use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use crate::error::{Fault, Place, SetError};
use crate::monitor::{Action, Event, HealthMonitor, HealthRecord};
use crate::task::{Activation, OverrunPolicy, TaskSet};

/// One job of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    /// Number of the release since the mode began, from 1. Releases that are left out have numbers too.
    pub number: u64,
    /// Time of the release.
    pub release: Duration,
    /// Time by which the job must be done.
    pub deadline: Duration,
    /// Whether the job runs below all tasks that are within their budgets: it makes up for a release that passed
    /// while a job without budget ran, and at its own priority it would come on top of the analysed load.
    pub is_background: bool,
}

/// Change of the mode that has taken effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switch {
    /// Index of the mode before.
    pub from: usize,
    /// Index of the mode that runs now.
    pub to: usize,
    /// Time at which it was asked for.
    pub requested: Duration,
    /// Time at which its tasks started.
    pub at: Duration,
}

/// Tasks of a set at run time.
///
/// A change of mode follows the idle-time protocol: from the request on no job is released; when the last job that
/// runs has ended, the tasks of the new mode start together, each with its phase. So no job of one mode ever delays
/// a job of another, and the analysis of each mode holds by itself. The wait is at most
/// [`Analysis::switch_time`](crate::Analysis::switch_time).
#[derive(Clone, Debug)]
pub struct Executive {
    modes: Vec<String>,
    safe_mode: Option<usize>,
    mode: usize,
    requested: Option<(usize, Duration)>,
    tasks: Vec<TaskState>,
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
    running: Option<Running>,
    is_stopped: bool,
}

#[derive(Clone, Copy, Debug)]
struct Running {
    job: Job,
    deadline_noted: bool,
    budget_noted: bool,
}

impl Executive {
    /// The tasks of a set, in its first mode from `start` on.
    #[must_use]
    pub fn new(set: &TaskSet, start: Duration) -> Executive {
        let modes: Vec<String> = set.mode_names().map(str::to_owned).collect();
        let safe_mode = set.safe_mode();
        let tasks = set.tasks().iter().map(|task| TaskState {
            period: task.period,
            phase: task.phase(),
            deadline: task.deadline,
            budget: task.budget,
            by_message: matches!(task.activation, Activation::Message { .. }),
            policy: task.overrun,
            runs_in: modes.iter().map(|mode| task.runs_in(mode)).collect(),
            next: start + task.phase(),
            number: 0,
            background: 0,
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
            requested: None,
            monitor: HealthMonitor::new(),
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

    /// Time at which the next job of a task may begin; for a task activated by messages, the earliest. `None` while a
    /// job runs, in a mode without this task, during a change of mode, and once it is stopped.
    #[must_use]
    pub fn next_release(&self, task: usize) -> Option<Duration> {
        let state = &self.tasks[task];
        let is_due = self.requested.is_none()
            && state.runs_in[self.mode]
            && state.running.is_none()
            && !state.is_stopped;
        is_due.then_some(state.next)
    }

    /// Begins a job, if one may begin at `now`. For a task activated by messages `now` is the arrival.
    pub fn begin(&mut self, task: usize, now: Duration) -> Option<Job> {
        self.next_release(task).filter(|next| *next <= now)?;
        let state = &mut self.tasks[task];
        if state.by_message {
            state.next = now;
        }
        state.number += 1;
        let job = Job {
            number: state.number,
            release: state.next,
            deadline: state.next + state.deadline,
            is_background: state.background > 0,
        };
        state.background = state.background.saturating_sub(1);
        state.next += state.period;
        state.running = Some(Running {
            job,
            deadline_noted: false,
            budget_noted: false,
        });
        Some(job)
    }

    /// Looks at a job that runs and has used so much execution time, without the machine's overhead. Each fault is
    /// recorded once. [`Action::Demoted`] asks the caller to let the job go on below all others; it is the answer for
    /// a budget that is used up, even when the deadline is missed as well.
    pub fn check(&mut self, task: usize, now: Duration, used: Duration) -> Option<Action> {
        let budget = self.tasks[task].budget;
        let is_over = budget.is_some_and(|budget| used >= budget);
        self.look(task, now, used, is_over)
    }

    fn look(
        &mut self,
        task: usize,
        now: Duration,
        used: Duration,
        is_over: bool,
    ) -> Option<Action> {
        let state = &mut self.tasks[task];
        let running = state.running.as_mut()?;
        let mut done = None;
        if now > running.job.deadline && !running.deadline_noted {
            running.deadline_noted = true;
            done = Some((Event::DeadlineMissed, Action::Recorded));
        }
        let is_new = is_over && !running.budget_noted;
        running.budget_noted |= is_over;
        if let Some((event, action)) = done {
            self.note(now, task, event, action);
        }
        if is_new {
            self.note(now, task, Event::BudgetExceeded { used }, Action::Demoted);
            return Some(Action::Demoted);
        }
        done.map(|(_, action)| action)
    }

    /// Ends a job that used so much execution time, and says what follows from an overrun, if there was one. The
    /// caller lifts a demotion first.
    pub fn finish(&mut self, task: usize, now: Duration, used: Duration) -> Option<Action> {
        // A job that ends with its budget just used up has kept it.
        let budget = self.tasks[task].budget;
        self.look(task, now, used, budget.is_some_and(|budget| used > budget));
        let state = &mut self.tasks[task];
        let running = state.running.take()?;
        let releases = state.passed(now);
        if releases == 0 || state.by_message {
            return None;
        }
        let action = state.overrun(releases);
        if let Action::CatchingUp { releases, .. } = action
            && (running.budget_noted || running.job.is_background)
        {
            state.background = releases;
        }
        self.note(now, task, Event::Overrun { releases }, action);
        if action == Action::SafeMode {
            self.requested = self.safe_mode.map(|mode| (mode, now));
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

    /// Whether a task was stopped.
    #[must_use]
    pub fn is_stopped(&self, task: usize) -> bool {
        self.tasks[task].is_stopped
    }

    /// Asks for another mode. A later request replaces one that has not taken effect.
    ///
    /// # Errors
    /// A mode that the set does not have.
    pub fn request_mode(&mut self, mode: &str, now: Duration) -> Result<(), SetError> {
        let found = self.modes.iter().position(|one| one == mode);
        let to = found.ok_or_else(|| {
            let mode = mode.to_owned();
            SetError::new(Place::Set("modes"), Fault::UnknownMode { mode })
        })?;
        self.requested = Some((to, now));
        Ok(())
    }

    /// Lets a requested mode take effect once no job runs any more. Call it after each end of a job and each request.
    pub fn switch(&mut self, now: Duration) -> Option<Switch> {
        let (to, requested) = self.requested?;
        if self.tasks.iter().any(|state| state.running.is_some()) {
            return None;
        }
        self.requested = None;
        let from = core::mem::replace(&mut self.mode, to);
        for state in &mut self.tasks {
            state.next = now + state.phase;
            state.number = 0;
            state.background = 0;
        }
        Some(Switch {
            from,
            to,
            requested,
            at: now,
        })
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
    use crate::task::{Machine, Scheduling, Task};
    use alloc::vec;

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
        assert_eq!(executive.next_release(0), Some(ms(11)));
        assert_eq!(executive.monitor().total(), 0);
        let job = executive.begin(0, ms(11) + us(5)).unwrap();
        assert_eq!((job.number, job.release, job.deadline), (2, ms(11), ms(12)));
        assert_eq!(executive.next_release(0), None, "while it runs");
    }

    #[test]
    fn each_policy_does_as_it_says() {
        let lasts = us(3_500);
        let mut executive = with_policy(OverrunPolicy::Skip);
        assert_eq!(
            first_job(&mut executive, lasts),
            Some(Action::Skipped { releases: 3 })
        );
        assert_eq!(executive.next_release(0), Some(ms(14)));
        assert_eq!(executive.begin(0, ms(14)).unwrap().number, 5);

        let mut executive = with_policy(OverrunPolicy::CatchUp { jobs_max: 2 });
        let caught = Action::CatchingUp {
            releases: 2,
            skipped: 1,
        };
        assert_eq!(first_job(&mut executive, lasts), Some(caught));
        assert_eq!(executive.next_release(0), Some(ms(12)));
        let job = executive.begin(0, us(13_500)).unwrap();
        assert_eq!((job.number, job.deadline), (3, ms(13)));

        let mut executive = with_policy(OverrunPolicy::Stop);
        assert_eq!(first_job(&mut executive, lasts), Some(Action::Stopped));
        assert_eq!(executive.next_release(0), None);

        let mut executive = with_policy(OverrunPolicy::SafeMode);
        assert_eq!(first_job(&mut executive, lasts), Some(Action::SafeMode));
        assert_eq!(
            executive.next_release(0),
            None,
            "until the mode takes effect"
        );
        let switch = executive.switch(us(13_500)).unwrap();
        assert_eq!((switch.from, switch.to, switch.at), (0, 1, us(13_500)));
        assert_eq!(executive.next_release(0), Some(us(13_500)));
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
    fn a_failed_task_stops_alone() {
        let tasks = vec![
            Task::periodic("a", ms(1), us(100)),
            Task::periodic("b", ms(1), us(100)),
        ];
        let mut executive = Executive::new(&TaskSet::new(tasks).unwrap(), Duration::ZERO);
        executive.begin(0, Duration::ZERO).unwrap();
        assert_eq!(executive.fail(0, us(50)), Action::Stopped);
        assert!(executive.is_stopped(0) && !executive.is_stopped(1));
        assert!(executive.begin(0, ms(1)).is_none());
        assert!(executive.begin(1, ms(1)).is_some());
    }

    #[test]
    fn messages_keep_their_distance() {
        let mut task = Task::periodic("a", ms(1), us(100));
        task.activation = Activation::Message {
            port: "command".into(),
        };
        let set = TaskSet::new(vec![task]).unwrap();
        let mut executive = Executive::new(&set, Duration::ZERO);
        let job = executive.begin(0, us(5_500)).unwrap();
        assert_eq!(job.deadline, us(6_500));
        assert_eq!(executive.finish(0, us(5_600), us(100)), None);
        assert_eq!(executive.begin(0, us(5_700)), None, "too soon");
        assert_eq!(executive.next_release(0), Some(us(6_500)));
        assert!(executive.begin(0, us(6_500)).is_some());
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
        assert_eq!(executive.next_release(1), None, "not in this mode");
        executive.begin(0, Duration::ZERO).unwrap();
        executive.begin(2, us(250)).unwrap();
        assert!(executive.request_mode("orbit", us(300)).is_err());
        executive.request_mode("flight", us(300)).unwrap();
        assert_eq!(executive.switch(us(300)), None);
        executive.finish(0, us(350), us(100));
        assert_eq!(executive.next_release(0), None);
        assert_eq!(executive.switch(us(350)), None);
        executive.finish(2, us(400), us(100));
        let switch = executive.switch(us(400)).unwrap();
        assert_eq!((switch.requested, switch.at), (us(300), us(400)));
        assert_eq!(executive.next_release(0), Some(us(400)));
        assert_eq!(executive.next_release(1), Some(us(400)));
        assert_eq!(executive.next_release(2), None);
    }
}
