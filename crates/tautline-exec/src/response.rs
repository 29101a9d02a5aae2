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
//! SCHED_FIFO runs tasks of one priority in the order in which they became ready. The bound counts the others of the
//! task's own priority as more urgent, which holds in whichever order they come.

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
            sum.saturating_add(load(set, other, window))
        })
    };
    let base = ns(charged) + ns(blocking);
    let window_max = ns(declared.period) * WINDOW_PERIODS_MAX;
    let window = fixed_point(base, window_max, |window| {
        base.saturating_add(others(window))
            .saturating_add(receive(window))
    });
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

/// Time that the jobs of a task take that become ready before the end of a window, in nanoseconds.
fn load(set: &TaskSet, task: usize, window: u64) -> u64 {
    let early = set.early(task);
    let jitter = ns(set.release_jitter(task) + early);
    let jobs = window
        .saturating_add(jitter)
        .div_ceil(ns(set.tasks()[task].period));
    jobs.saturating_mul(ns(set.charged(task) + early))
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

    #[test]
    fn others_of_the_same_priority_count_as_more_urgent() {
        let task = |name: &str, period, worst_case, priority| {
            let mut task = Task::periodic(name, us(period), us(worst_case));
            task.priority = Some(priority);
            task
        };
        for slow in [49, 50] {
            let tasks = vec![
                task("above", 500, 100, 60),
                task("fast", 1_000, 200, 50),
                task("slow", 4_000, 700, slow),
            ];
            let (machine, scheduling) = (Machine::default(), Scheduling::Declared);
            let set = TaskSet::declare(scheduling, machine, vec![], vec![], tasks).unwrap();
            // 700 + 2 · 200 + 3 · 100.
            assert_eq!(responses(&set)[2], Some(us(1_400)));
        }
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
