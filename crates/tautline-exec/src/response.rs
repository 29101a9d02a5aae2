//! Response-time analysis of fixed priorities on one CPU.
//!
//! The response time of a task is the time from an activation to the end of its job. For fixed priorities its bound
//! is the least solution of the recurrence of Joseph and Pandya, with the blocking of Sha, Rajkumar and Lehoczky and
//! the release jitter of Audsley and others:
//!
//! ```text
//! w = C + B + Σ ⌈(w + J') / T'⌉ · C' + receive(w)      R = J + w
//! ```
//!
//! The sum is over the other tasks of the same or a higher priority. `C` is the charged time with the machine's
//! overhead, `B` the longest critical section of a less urgent task and the machine's blocking, `J` the release
//! jitter of task and machine. `receive(w)` is the receive processing at the same priority or above, a burst at once,
//! then its rate, and the looks of the watchdog at budgets of programs. Deadlines are within periods, so a bound that
//! holds its deadline is the bound of every job. Phases are left out: the bound holds for all of them. The jobs of a
//! task that is awake before its releases have `C' + E` and `J' + E` for all others ([`TaskSet::awake`]).
//!
//! SCHED_FIFO runs tasks of one priority in the order in which they became ready. So a job that becomes ready at `t`
//! after the beginning of a busy time waits for jobs of its own priority that are ready by then, and not for later ones
//! (the analysis of FP/FIFO by Martin, Minet and George):
//!
//! ```text
//! q(t) = B + O + ⌊(t + J) / T⌋ · C + Σ (⌊(t + J') / T'⌋ + 1) · C' + Σ (⌊(q + J") / T"⌋ + 1) · C" + receive(q)
//! W(t) = B + (⌊(t + J) / T⌋ + 1) · C + Σ (⌊(q + J') / T'⌋ + 1) · C' + Σ ⌈(W + J") / T"⌉ · C" + receive(W)
//! R = J + max (W(t) - t)
//! ```
//!
//! `'` are the others of this priority, `"` those above, and `O` is the machine's overhead. At `q` the job has the CPU
//! for the first time. If another thread then holds the executive's lock, the job queues once more, behind those that
//! are ready by then. A job that can wait for other locks, and a program, whose process queues by itself, can wait for
//! any job of their priority: there the first recurrence is the bound.

use alloc::vec::Vec;
use core::time::Duration;

use crate::task::{TaskSet, ns};

/// Bound of the response time of one task, and its parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskResponse {
    /// Index in the set.
    pub task: usize,
    /// Its priority; `None` in a table and with earliest deadline first.
    pub priority: Option<u8>,
    /// Budget or worst case, with the machine's overhead.
    pub charged: Duration,
    /// Release jitter of the task and the machine.
    pub jitter: Duration,
    /// Longest wait for a less urgent task or the kernel.
    pub blocking: Duration,
    /// Receive processing within the response time.
    pub receive: Duration,
    /// Other tasks within the response time; in a table, the wait for the window.
    pub interference: Duration,
    /// Time from an activation until the job is done, at most. `None` if there is no bound, or no window.
    pub response: Option<Duration>,
    /// Time by which it must be done.
    pub deadline: Duration,
}

impl TaskResponse {
    /// Whether every job is done by its deadline.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.slack().is_some()
    }

    /// Time between the latest end of a job and its deadline; `None` if it can miss it.
    #[must_use]
    pub fn slack(&self) -> Option<Duration> {
        self.deadline.checked_sub(self.response?)
    }

    /// Time by which a job can miss its deadline at the least; `None` if it holds, or if there is no bound.
    #[must_use]
    pub fn excess(&self) -> Option<Duration> {
        let excess = self.response?.checked_sub(self.deadline)?;
        (!excess.is_zero()).then_some(excess)
    }
}

/// Longest window that is looked at, in periods of the task. Lower: a refusal could not say by how much a slow task
/// is late. Higher: an overloaded set takes longer to refuse.
const WINDOW_PERIODS_MAX: u64 = 8;
/// Most steps of one recurrence. Lower: sets with very different periods would be refused although they hold. Higher:
/// a hostile file could keep the analysis busy for minutes.
pub(crate) const STEPS_MAX: u32 = 200_000;
/// Most moments at which a job of a task is looked at among others of its priority. Lower: more of them are taken for
/// more urgent ones. Higher: a set of many equal tasks that nearly fills the CPU takes seconds.
const MOMENTS_MAX: u64 = 1_000;

/// Response of one task of a mode under fixed priorities.
pub(crate) fn fixed_priority(set: &TaskSet, mode: &str, task: usize) -> TaskResponse {
    let declared = &set.tasks()[task];
    let own = set.priority(task);
    let urgent = |other: &usize| *other != task && set.priority(*other) >= own;
    let blocking = set
        .members(mode)
        .filter(|other| set.priority(*other) < own)
        .map(|other| set.tasks()[other].critical_section)
        .max()
        .unwrap_or_default()
        + set.machine().blocking;
    let (jitter, charged) = (set.release_jitter(task), set.charged(task));
    let receive = |window: u64| set.time_from(own, window);
    let others = |window: u64| {
        let tasks = set.members(mode).filter(urgent);
        tasks.fold(0, |sum: u64, other| {
            sum.saturating_add(Load::of(set, other).before(window))
        })
    };
    let base = ns(charged) + ns(blocking);
    let window_max = ns(declared.period) * WINDOW_PERIODS_MAX;
    let window = fixed_point(base, window_max, |window| {
        base.saturating_add(others(window))
            .saturating_add(receive(window))
    });
    let in_order = Queue::of(set, mode, task, &receive).and_then(|queue| queue.longest());
    let window = match (window, in_order) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    };
    let parts = window.unwrap_or_default();
    let received = receive(parts);
    TaskResponse {
        task,
        priority: own,
        charged,
        jitter,
        blocking,
        receive: Duration::from_nanos(received),
        interference: Duration::from_nanos(parts.saturating_sub(base.saturating_add(received))),
        response: window.map(|window| Duration::from_nanos(window) + jitter),
        deadline: declared.deadline,
    }
}

/// A task among others of its priority, first in, first out.
struct Queue<'a, R> {
    own: Load,
    equals: Vec<Load>,
    above: Vec<Load>,
    blocking: u64,
    overhead: u64,
    receive: &'a R,
    /// Longest busy time that is looked at.
    busy_max: u64,
}

/// Jobs of a task, in nanoseconds.
#[derive(Clone, Copy)]
struct Load {
    period: u64,
    jitter: u64,
    charged: u64,
}

impl Load {
    fn of(set: &TaskSet, task: usize) -> Load {
        Load {
            period: ns(set.tasks()[task].period),
            jitter: ns(set.release_jitter(task) + set.early(task)),
            charged: ns(set.charged(task) + set.early(task)),
        }
    }

    /// Time of the jobs that become ready before the end of a time.
    fn before(&self, time: u64) -> u64 {
        let jobs = time.saturating_add(self.jitter).div_ceil(self.period);
        jobs.saturating_mul(self.charged)
    }

    /// Time of the jobs that become ready until the end of a time, with one at its end.
    fn until(&self, time: u64) -> u64 {
        let jobs = time.saturating_add(self.jitter) / self.period + 1;
        jobs.saturating_mul(self.charged)
    }

    /// Moments of a time at which one more job can become ready.
    fn moments(&self, time: u64) -> impl Iterator<Item = u64> {
        let (first, jitter) = (self.jitter / self.period + 1, self.jitter);
        let last = time.saturating_add(jitter) / self.period;
        let period = self.period;
        (first..=last).map(move |job| job * period - jitter)
    }
}

impl<'a, R: Fn(u64) -> u64> Queue<'a, R> {
    /// `None` where the task has no equals, or does not queue once and in order.
    fn of(set: &TaskSet, mode: &str, task: usize, receive: &'a R) -> Option<Self> {
        let own = set.priority(task);
        let loads = |is_wanted: &dyn Fn(usize) -> bool| -> Vec<Load> {
            let wanted = set.members(mode).filter(|other| is_wanted(*other));
            wanted.map(|other| Load::of(set, other)).collect()
        };
        let equals = loads(&|other| other != task && set.priority(other) == own);
        let has_locks = set.members(mode).any(|other| {
            set.priority(other) <= own && !set.tasks()[other].critical_section.is_zero()
        });
        if equals.is_empty() || has_locks || set.tasks()[task].is_program {
            return None;
        }
        let above = loads(&|other| set.priority(other) > own);
        let own = Load::of(set, task);
        let all = equals.iter().chain(&above).chain([&own]);
        let longest = all.map(|load| load.period).max().unwrap_or_default();
        Some(Queue {
            busy_max: longest.saturating_mul(WINDOW_PERIODS_MAX),
            blocking: ns(set.machine().blocking),
            overhead: ns(set.machine().overhead),
            own,
            equals,
            above,
            receive,
        })
    }

    /// Longest time from the moment at which a job is ready to its end. `None` if there are too many moments to look
    /// at.
    fn longest(&self) -> Option<u64> {
        let busy = self.busy()?;
        let queued = || self.equals.iter().chain([&self.own]);
        let moments = queued().map(|load| busy / load.period + 1).sum::<u64>();
        if moments > MOMENTS_MAX {
            return None;
        }
        let moments = queued().flat_map(|load| load.moments(busy - 1));
        core::iter::once(0)
            .chain(moments)
            .try_fold(0, |longest: u64, ready| {
                Some(longest.max(self.end(ready)? - ready))
            })
    }

    /// Longest time for which jobs of this priority and above have the CPU without a pause.
    fn busy(&self) -> Option<u64> {
        let all = || self.equals.iter().chain(&self.above).chain([&self.own]);
        let next = |time| self.sum(self.blocking, time, all().map(|load| load.before(time)));
        fixed_point(next(1), self.busy_max, next)
    }

    /// End of the job that is ready at this moment of a busy time.
    fn end(&self, ready: u64) -> Option<u64> {
        let sum_of = |loads: &[Load], time| {
            let each = loads.iter().map(|load: &Load| load.until(time));
            each.fold(0, u64::saturating_add)
        };
        let own = self.own.until(ready);
        let own_and_blocking = self.blocking.saturating_add(own);
        let earlier = own_and_blocking.saturating_sub(self.own.charged);
        let waits = earlier
            .saturating_add(self.overhead)
            .saturating_add(sum_of(&self.equals, ready));
        let start = fixed_point(waits, self.busy_max, |time| {
            let above = self.above.iter().map(|load| load.until(time));
            self.sum(waits, time, above)
        })?;
        let queued = sum_of(&self.equals, start.max(ready));
        let work = own_and_blocking.saturating_add(queued);
        let end = fixed_point(work, self.busy_max, |time| {
            let above = self.above.iter().map(|load| load.before(time));
            self.sum(work, time, above)
        })?;
        Some(end.max(ready))
    }

    /// Sum of loads and receive processing.
    fn sum(&self, base: u64, time: u64, loads: impl Iterator<Item = u64>) -> u64 {
        loads.fold(
            base.saturating_add((self.receive)(time)),
            u64::saturating_add,
        )
    }
}

/// Least solution of `window = next(window)` from `start` on; `None` if it is beyond `max`, or too many steps away.
pub(crate) fn fixed_point(start: u64, max: u64, next: impl Fn(u64) -> u64) -> Option<u64> {
    let mut window = start;
    for _ in 0..STEPS_MAX {
        if window > max {
            return None;
        }
        let longer = next(window);
        if longer <= window {
            return Some(window);
        }
        window = longer;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::{Machine, Receive, Scheduling, Task};
    use alloc::vec;
    use alloc::vec::Vec;

    fn us(number: u64) -> Duration {
        Duration::from_micros(number)
    }

    fn set_of(machine: Machine, receive: Vec<Receive>, tasks: Vec<Task>) -> TaskSet {
        TaskSet::declare(
            Scheduling::RateMonotonic,
            machine,
            receive,
            Vec::new(),
            tasks,
        )
        .unwrap()
    }

    /// Buttazzo, Hard Real-Time Computing Systems, the textbook's shape: (C, T) of (1, 4), (2, 5), (5, 20).
    fn three() -> Vec<Task> {
        vec![
            Task::periodic("a", us(400), us(100)),
            Task::periodic("b", us(500), us(200)),
            Task::periodic("c", us(2_000), us(500)),
        ]
    }

    fn responses(set: &TaskSet) -> Vec<Option<Duration>> {
        let tasks = 0..set.tasks().len();
        tasks
            .map(|task| fixed_priority(set, "", task).response)
            .collect()
    }

    #[test]
    fn the_recurrence_by_hand() {
        // w(c) = 5: 5+1+2 = 8, 5+2+4 = 11, 5+3+6 = 14, 5+4+6 = 15, 5+4+6 = 15.
        let set = set_of(Machine::default(), Vec::new(), three());
        assert_eq!(
            responses(&set),
            [Some(us(100)), Some(us(300)), Some(us(1_500))]
        );
    }

    #[test]
    fn blocking_jitter_and_overhead_by_hand() {
        let machine = Machine {
            release_jitter: us(10),
            blocking: us(5),
            overhead: us(2),
        };
        let mut tasks = three();
        tasks[2].critical_section = us(50);
        tasks[0].release_jitter = us(20);
        let set = set_of(machine, Vec::new(), tasks);
        // a: 102 + 50 + 5, released 30 late. b: 202 + 55 + 102, released 10 late.
        assert_eq!(responses(&set)[..2], [Some(us(187)), Some(us(369))]);
        let a = fixed_priority(&set, "", 0);
        assert_eq!((a.jitter, a.blocking, a.charged), (us(30), us(55), us(102)));
        assert_eq!(a.slack(), Some(us(213)));
    }

    /// Tasks of (name, period, worst case, priority).
    fn with_priorities(tasks: &[(&str, u64, u64, u8)]) -> TaskSet {
        let tasks = tasks.iter().map(|(name, period, worst_case, priority)| {
            let mut task = Task::periodic(name, us(*period), us(*worst_case));
            task.priority = Some(*priority);
            task
        });
        let tasks = tasks.collect();
        let (machine, scheduling) = (Machine::default(), Scheduling::Declared);
        TaskSet::declare(scheduling, machine, Vec::new(), Vec::new(), tasks).unwrap()
    }

    #[test]
    fn a_job_waits_for_equals_that_came_before_it_and_for_no_later_ones() {
        let of_slow = |slow: u8| {
            let set = with_priorities(&[
                ("above", 500, 100, 60),
                ("fast", 1_000, 200, 50),
                ("slow", 4_000, 700, slow),
            ]);
            fixed_priority(&set, "", 2).response
        };
        // Below: 700 + 2 · 200 + 3 · 100. Among equals the second job of `fast` comes later.
        assert_eq!(of_slow(49), Some(us(1_400)));
        assert_eq!(of_slow(50), Some(us(1_200)));
    }

    #[test]
    fn a_job_queues_once_more_when_it_finds_the_lock_taken() {
        let tasks = [
            ("long", 2_000, 400, 50),
            ("short", 300, 50, 50),
            ("own", 2_000, 400, 50),
        ];
        let set = with_priorities(&tasks);
        // At 450 it has the CPU, and a second job of `short` is ready.
        assert_eq!(fixed_priority(&set, "", 2).response, Some(us(900)));
        // With a lock that others may hold, and as a program, it waits for all that come until it ends.
        let all = Some(us(1_000));
        let program = set.clone().with_program(2).unwrap();
        assert_eq!(fixed_priority(&program, "", 2).response, all);
        let mut tasks = set.tasks().to_vec();
        tasks[0].critical_section = us(10);
        let machine = Machine::default();
        let set = TaskSet::declare(Scheduling::Declared, machine, vec![], vec![], tasks);
        assert_eq!(fixed_priority(&set.unwrap(), "", 2).response, all);
    }

    #[test]
    fn a_busy_time_goes_on_beyond_the_first_job_of_equals() {
        // `c` gets the CPU at 700, when the second job of `a` is ready.
        let set = with_priorities(&[
            ("a", 500, 350, 50),
            ("b", 2_000, 350, 50),
            ("c", 9_000, 200, 50),
        ]);
        assert_eq!(fixed_priority(&set, "", 0).response, Some(us(900)));
        assert_eq!(fixed_priority(&set, "", 2).response, Some(us(1_250)));
    }

    #[test]
    fn receive_processing_is_a_burst_and_then_a_rate() {
        let receive = Receive {
            name: "eth0".into(),
            rate: 10_000,
            burst: 3,
            worst_case: us(10),
            priority: None,
        };
        assert_eq!(receive.time(0), 30_000);
        assert_eq!(receive.time(99_999), 30_000);
        assert_eq!(receive.time(100_000), 40_000);
        let set = set_of(Machine::default(), vec![receive.clone()], three());
        // a: 100 + 30 = 130, which is beyond 100: 140, and 140 again.
        assert_eq!(responses(&set)[0], Some(us(140)));
        // Below the thread that receives, and above it.
        for (priority, response) in [(98, 140), (97, 100)] {
            let receive = Receive {
                priority: Some(priority),
                ..receive.clone()
            };
            let set = set_of(Machine::default(), vec![receive], three());
            assert_eq!(responses(&set)[0], Some(us(response)));
        }
    }

    #[test]
    fn a_budget_is_what_others_reckon_with() {
        let mut tasks = three();
        tasks[0].budget = Some(us(150));
        let set = set_of(Machine::default(), Vec::new(), tasks);
        assert_eq!(responses(&set)[1], Some(us(350)));
    }

    #[test]
    fn the_budget_of_a_program_takes_switches_and_looks() {
        let machine = Machine {
            overhead: us(2),
            ..Machine::default()
        };
        let mut tasks = three();
        tasks[1].budget = Some(us(220));
        let set = set_of(machine, Vec::new(), tasks).with_program(1).unwrap();
        // Above all: three looks of 2 at each of two jobs of b. a: 100 + 2, and two looks of 2 for the delay of b.
        // b: 220 + 3 switches of 2 + 20 of the enforcement, and a.
        assert_eq!(responses(&set)[..2], [Some(us(118)), Some(us(364))]);
        let charged = |task| fixed_priority(&set, "", task).charged;
        assert_eq!(
            [charged(0), charged(1), charged(2)],
            [us(106), us(246), us(502)]
        );
    }

    #[test]
    fn overload_has_no_bound() {
        let tasks = vec![
            Task::periodic("a", us(100), us(60)),
            Task::periodic("b", us(200), us(80)),
            Task::periodic("c", us(1_000), us(1)),
        ];
        let set = set_of(Machine::default(), Vec::new(), tasks);
        assert_eq!(responses(&set), [Some(us(60)), Some(us(200)), None]);
        let burst = Receive {
            name: "flood".into(),
            rate: 14_880_952,
            burst: u32::MAX >> 9,
            worst_case: Duration::from_secs(3_600),
            priority: None,
        };
        let set = set_of(Machine::default(), vec![burst], three());
        assert_eq!(responses(&set), [None, None, None]);
    }
}
