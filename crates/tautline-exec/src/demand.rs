//! Analysis of earliest deadline first on one CPU, by processor demand (Baruah, Rosier and Howell), as SCHED_DEADLINE
//! schedules.
//!
//! The kernel knows no releases. It counts a deadline from each wake-up of a thread, on a clock of its own, so the
//! deadline that it is given has to leave room for a late wake-up and for a slewed `CLOCK_MONOTONIC`:
//!
//! ```text
//! K = D - D/2000 - J          at most 4.19 s, the kernel's longest period
//! ```
//!
//! `J` is the release jitter of task and machine. A job that ends by `K` after its wake-up has held its deadline `D`.
//! In each interval, the jobs that wake up and are due within it must fit into it:
//!
//! ```text
//! Σ (⌊(t + J - K) / T'⌋ + 1) · C + B + receive(t) ≤ t          T' = T - T/2000
//! ```
//!
//! over the tasks with `K ≤ t`, for each `t` at which a job can be due, up to a horizon beyond which a miss would have
//! been preceded by another. `C` is the charged time with the machine's overhead, `B` the machine's blocking. Receive
//! processing counts where it runs in interrupts: threads with priorities are below. If all deadlines hold, each is
//! the bound of its task's response time.
//!
//! A program has three wake-ups a job: the thread that waits for it wakes at the release, then the program, and then
//! the thread again, to read the answer. Each is a demand of its own, with a part of the deadline.

use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use crate::error::{Fault, Location, SetError};
use crate::limits::{HYPERPERIOD_MAX, KERNEL_DEADLINE_MIN};
use crate::response::{STEPS_MAX, TaskResponse, fixed_point};
use crate::task::{Scheduling, TaskSet, ns};

/// Part of a time by which `CLOCK_MONOTONIC` can be ahead of the kernel's clock for deadlines at its end: 500 ppm,
/// the fastest that the kernel slews.
const SLEW_PART: u32 = 2_000;
/// Part of a program's deadline for each of the two wake-ups of the thread that waits for it. Lower: less time is left
/// for the program. Higher: few programs find room beside each other.
const RELAY_PART: u32 = 16;
/// Longest deadline that the kernel takes, with `sched_deadline_period_max_us` as it comes.
const KERNEL_DEADLINE_MAX: Duration = Duration::from_micros(1 << 22);
/// Deadlines of each task whose excess is looked at once one is missed. Lower: a refusal says less than it could.
/// Higher: it takes longer.
const DEADLINES_LOOKED_AT: usize = 1_000;
/// The whole CPU, in the unit of shares: a share is rounded up by less than a part in a billion.
const WHOLE: u128 = 1 << 40;

impl TaskSet {
    /// Under earliest deadline first, the deadline that the kernel counts from each wake-up of the thread or program
    /// that does the jobs of a task.
    #[must_use]
    pub fn kernel_deadline(&self, task: usize) -> Duration {
        let declared = self.tasks()[task].deadline;
        let relays = 2 * self.relay_deadline(task);
        shortened(declared)
            .saturating_sub(self.release_jitter(task) + relays)
            .min(KERNEL_DEADLINE_MAX)
    }

    /// Under earliest deadline first, the deadline that the kernel counts from each wake-up of the thread that waits
    /// for a program; zero for a task that is code.
    #[must_use]
    pub fn relay_deadline(&self, task: usize) -> Duration {
        let declared = &self.tasks()[task];
        match declared.is_program {
            true => (declared.deadline / RELAY_PART).max(KERNEL_DEADLINE_MIN),
            false => Duration::ZERO,
        }
    }

    /// Refuses what SCHED_DEADLINE cannot do.
    pub(crate) fn check_kernel_deadline(&self, task: usize) -> Result<(), SetError> {
        if self.scheduling() != Scheduling::EarliestDeadline {
            return Ok(());
        }
        let at = |key, fault| Err(SetError::new(Location::Task(task, key), fault));
        let left = self.kernel_deadline(task);
        if left < KERNEL_DEADLINE_MIN {
            return at("deadline", Fault::DeadlineTooShort { left });
        }
        match self.tasks()[task].critical_section.is_zero() {
            true => Ok(()),
            false => at("critical_section", Fault::SectionByDeadline),
        }
    }
}

/// A time on the kernel's clock for deadlines while `CLOCK_MONOTONIC` is slewed.
fn shortened(time: Duration) -> Duration {
    time - time / SLEW_PART
}

/// Jobs of a task, or one of the wake-ups of each, in nanoseconds.
struct Demand {
    task: usize,
    charged: u64,
    period: u64,
    /// From the wake-up.
    deadline: u64,
    /// Longest time from the release to the wake-up.
    jitter: u64,
}

impl Demand {
    /// Most jobs that wake up and are due in a time.
    fn jobs(&self, time: u64) -> u64 {
        match time.checked_sub(self.deadline) {
            Some(left) => left.saturating_add(self.jitter) / self.period + 1,
            None => 0,
        }
    }

    /// Times at which one more job can be due: the first after the latest wake-up, and then the others in time.
    fn dues(&self) -> impl Iterator<Item = u64> {
        let next = |due: &u64| Some(self.deadline + self.jobs(*due) * self.period - self.jitter);
        core::iter::successors(Some(self.deadline), next)
    }

    /// The last of them up to a time.
    fn last_due(&self, until: u64) -> Option<u64> {
        let left = until.checked_sub(self.deadline)?;
        let since = left.saturating_add(self.jitter) % self.period;
        Some(until.saturating_sub(since).max(self.deadline))
    }
}

/// Responses of a mode under earliest deadline first.
pub(crate) fn earliest_deadline(set: &TaskSet, mode: &str) -> Vec<TaskResponse> {
    let demands: Vec<Demand> = set
        .members(mode)
        .flat_map(|task| demands(set, task))
        .collect();
    let excess = excesses(set, &demands);
    let responses = set.members(mode).map(|task| {
        let declared = &set.tasks()[task];
        let (charged, jitter) = (set.charged(task), set.release_jitter(task));
        let blocking = set.machine().blocking;
        let of_task = |excess: &Vec<u64>| {
            let each = demands.iter().zip(excess);
            each.filter(|(one, _)| one.task == task)
                .map(|(_, late)| late)
                .sum()
        };
        TaskResponse {
            task,
            priority: None,
            charged,
            jitter,
            blocking,
            receive: Duration::ZERO,
            interference: declared
                .deadline
                .saturating_sub(charged + jitter + blocking),
            response: excess
                .as_ref()
                .map(|excess| declared.deadline + Duration::from_nanos(of_task(excess))),
            deadline: declared.deadline,
        }
    });
    responses.collect()
}

/// The demand of a task; those of the three wake-ups of a program.
fn demands(set: &TaskSet, task: usize) -> Vec<Demand> {
    let (relay, own) = (set.relay_deadline(task), set.kernel_deadline(task));
    let demand = |charged, deadline, jitter| Demand {
        task,
        charged: ns(charged),
        period: ns(shortened(set.tasks()[task].period)),
        deadline: ns(deadline),
        jitter: ns(jitter),
    };
    let (overhead, released) = (set.machine().overhead, set.release_jitter(task));
    let mut all = vec![demand(set.charged(task), own, released + relay)];
    if !relay.is_zero() {
        all.push(demand(overhead, relay, released));
        all.push(demand(overhead, relay, released + relay + own));
    }
    all
}

/// Times by which the jobs of each demand can be late at the least; `None` if the CPU may never come to a pause.
fn excesses(set: &TaskSet, demands: &[Demand]) -> Option<Vec<u64>> {
    let horizon = horizon(set, demands)?;
    let mut excess = vec![0; demands.len()];
    let Some(missed) = missed(set, demands, horizon)? else {
        return Some(excess);
    };
    for (excess, one) in excess.iter_mut().zip(demands) {
        let first = one.dues().take(DEADLINES_LOOKED_AT);
        let first = first.take_while(|due| *due <= horizon);
        for due in first.chain(one.last_due(missed)) {
            *excess = needed(set, demands, due).saturating_sub(due).max(*excess);
        }
    }
    Some(excess)
}

/// Time by which the first deadline is missed, if one is missed at all; `None` if that has no bound, for the tasks take
/// the whole CPU or more.
///
/// Demand grows with the tasks' share of the CPU, so a share below one leaves it behind from some time on (George,
/// Rivierre and Spuri). With the whole CPU in use, it is the end of the longest time without a pause.
fn horizon(set: &TaskSet, demands: &[Demand]) -> Option<u64> {
    let (mut load, mut ahead) = (0, u128::from(ns(set.machine().blocking)) * WHOLE);
    for one in demands {
        let share = (u128::from(one.charged) * WHOLE).div_ceil(u128::from(one.period));
        load += share;
        ahead += share * u128::from((one.period + one.jitter).saturating_sub(one.deadline));
    }
    for one in set.receive().iter().filter(|one| one.priority.is_none()) {
        load += (u128::from(ns(one.worst_case)) * WHOLE).div_ceil(u128::from(one.distance_ns()));
    }
    for one in set.watched() {
        load += (u128::from(set.look_ns()) * WHOLE).div_ceil(u128::from(ns(one.period)));
    }
    ahead += u128::from(set.time_above(0)) * WHOLE;
    let longest = demands.iter().map(|one| one.deadline).max()?;
    match WHOLE.checked_sub(load) {
        Some(left) if left > 0 => u64::try_from(ahead.div_ceil(left)).ok(),
        _ => Some(busy_time(set, demands)?.max(longest)),
    }
}

/// The longest time for which the CPU can be busy without a pause.
fn busy_time(set: &TaskSet, demands: &[Demand]) -> Option<u64> {
    let work = |window: u64| {
        let jobs = |one: &Demand| (window.saturating_add(one.jitter)).div_ceil(one.period);
        let tasks = demands
            .iter()
            .map(|one| jobs(one).saturating_mul(one.charged));
        let all = tasks.fold(ns(set.machine().blocking), u64::saturating_add);
        all.saturating_add(set.time_above(window))
    };
    let longest = demands.iter().map(|one| one.period).max()?;
    let max = 2 * ns(HYPERPERIOD_MAX).max(longest);
    fixed_point(work(1), max, work)
}

/// A time by which more is needed than there is, if there is one up to the horizon. `None` if it takes too many steps
/// to tell.
///
/// Looked for from the end (Zhang and Burns): if the demand by `t` is `h`, no time from `h` to `t` has a larger one.
fn missed(set: &TaskSet, demands: &[Demand], horizon: u64) -> Option<Option<u64>> {
    let last_due = |until: u64| demands.iter().filter_map(|one| one.last_due(until)).max();
    let mut next = last_due(horizon);
    for _ in 0..STEPS_MAX {
        let Some(time) = next else {
            return Some(None);
        };
        let needed = needed(set, demands, time);
        if needed > time {
            return Some(Some(time));
        }
        next = last_due(needed.min(time.saturating_sub(1)));
    }
    None
}

/// Time that is needed by a moment at which a job is due, from the beginning of a busy time.
fn needed(set: &TaskSet, demands: &[Demand], due: u64) -> u64 {
    let tasks = demands
        .iter()
        .map(|one| one.jobs(due).saturating_mul(one.charged));
    let all = tasks.fold(ns(set.machine().blocking), u64::saturating_add);
    all.saturating_add(set.time_above(due))
}

#[cfg(test)]
mod tests {
    use crate::analysis::Analysis;
    use crate::error::Fault;
    use crate::task::{Machine, Scheduling, Task, TaskSet};
    use alloc::vec;
    use alloc::vec::Vec;
    use core::time::Duration;

    fn us(number: u64) -> Duration {
        Duration::from_micros(number)
    }

    fn set_of(machine: Machine, tasks: Vec<Task>) -> TaskSet {
        declare(machine, tasks).unwrap()
    }

    fn declare(machine: Machine, tasks: Vec<Task>) -> Result<TaskSet, crate::SetError> {
        let scheduling = Scheduling::EarliestDeadline;
        TaskSet::declare(scheduling, machine, Vec::new(), Vec::new(), tasks)
    }

    fn late(set: &TaskSet) -> Vec<(usize, Option<Duration>)> {
        let analysis = Analysis::of(set, "").unwrap();
        let refused = analysis.refusals(set).map(|one| (one.task, one.excess()));
        refused.collect()
    }

    #[test]
    fn nearly_the_whole_cpu_may_be_used_where_priorities_fail() {
        // 1/2 + 1/2 less 600 ppm: refused with rate-monotonic priorities, for which 2.5 ms are too short.
        let tasks = vec![
            Task::periodic("a", us(20_000), us(9_994)),
            Task::periodic("b", us(50_000), us(24_985)),
        ];
        let set = set_of(Machine::default(), tasks.clone());
        assert_eq!(late(&set), []);
        let analysis = Analysis::of(&set, "").unwrap();
        assert_eq!(analysis.headroom_permille(&set), 1_000);
        assert_eq!(analysis.responses[1].response, Some(us(50_000)));
        let priorities = TaskSet::new(tasks).unwrap();
        let refused = Analysis::of(&priorities, "").unwrap();
        assert!(!refused.is_admitted(&priorities));
    }

    #[test]
    fn the_kernels_deadline_leaves_room_for_a_late_wake_up_and_a_slewed_clock() {
        let mut tasks = vec![
            Task::periodic("a", us(20_000), us(500)),
            Task::periodic("b", us(10_000_000), us(500)),
        ];
        tasks[0].deadline = us(4_000);
        let machine = Machine {
            release_jitter: us(200),
            overhead: us(60),
            ..Machine::default()
        };
        let set = set_of(machine, tasks);
        assert_eq!(set.kernel_deadline(0), us(4_000 - 2 - 200));
        assert_eq!(set.kernel_deadline(1), us(4_194_304), "the longest");
        let set = set.with_program(0).unwrap();
        assert_eq!(set.relay_deadline(0), us(250));
        assert_eq!(set.kernel_deadline(0), us(4_000 - 2 - 200 - 500));
        assert_eq!(late(&set), []);
    }

    #[test]
    fn a_refusal_names_the_deadline_and_by_how_much() {
        let mut tasks = vec![
            Task::periodic("a", us(4_000), us(2_000)),
            Task::periodic("b", us(8_000), us(2_000)),
        ];
        tasks[0].deadline = us(2_000);
        tasks[1].deadline = us(4_000);
        // The clock may be ahead by 2 us at 4 ms, and by 3 us at the second deadline of the first task.
        let set = set_of(Machine::default(), tasks.clone());
        assert_eq!(late(&set), [(0, Some(us(3))), (1, Some(us(2)))]);
        for task in &mut tasks {
            task.worst_case -= us(1); // thrice within 6 ms
        }
        let set = set_of(Machine::default(), tasks.clone());
        assert_eq!(late(&set), []);
        let machine = Machine {
            release_jitter: us(10),
            blocking: us(5),
            ..Machine::default()
        };
        let set = set_of(machine, tasks);
        // The second job of the first task is due 10 us sooner after a late first one.
        assert_eq!(late(&set), [(0, Some(us(25))), (1, Some(us(15)))]);
    }

    /// A late job and the next one, which is in time, are due within 3.99 ms, and one of the other task as well.
    #[test]
    fn release_jitter_takes_from_the_deadline_and_brings_jobs_together() {
        let mut late_one = Task::periodic("a", us(10_000), us(1_000));
        late_one.release_jitter = us(8_000);
        let other = Task::periodic("b", us(3_000), us(2_000));
        let set = set_of(Machine::default(), vec![late_one, other]);
        assert_eq!(set.kernel_deadline(0), us(1_995));
        assert_eq!(late(&set), [(0, Some(us(10))), (1, Some(us(3)))]);
    }

    #[test]
    fn sched_deadline_takes_no_short_deadlines_and_no_sections() {
        let fault = |task| declare(Machine::default(), vec![task]).unwrap_err().fault;
        let left = Duration::from_nanos(99_950);
        assert_eq!(
            fault(Task::periodic("a", us(100), us(1))),
            Fault::DeadlineTooShort { left }
        );
        let mut task = Task::periodic("a", us(1_000), us(100));
        task.critical_section = us(10);
        assert_eq!(fault(task), Fault::SectionByDeadline);
    }

    #[test]
    fn an_overloaded_set_has_no_bound() {
        let tasks = vec![
            Task::periodic("a", us(2_000), us(1_500)),
            Task::periodic("b", us(4_000), us(1_500)),
        ];
        let set = set_of(Machine::default(), tasks);
        assert_eq!(late(&set), [(0, None), (1, None)]);
    }

    #[test]
    fn many_periods_without_a_common_divisor_need_no_hyperperiod() {
        let primes = (500..).filter(|number: &u64| (2..30).all(|one| !number.is_multiple_of(one)));
        let tasks: Vec<Task> = primes
            .take(64)
            .map(|prime| {
                let period = us(10 * prime);
                // All that the slewed clock leaves.
                let share = (period - period / 2_000) / 64;
                Task::periodic(&alloc::format!("p{prime}"), period, share)
            })
            .collect();
        let set = set_of(Machine::default(), tasks.clone());
        assert_eq!(late(&set), []);
        let analysis = Analysis::of(&set, "").unwrap();
        assert_eq!(
            (analysis.hyperperiod, analysis.headroom_permille(&set)),
            (None, 1_000)
        );
        // Together they come close to the whole CPU, and one more takes it all.
        let mut more = tasks;
        more[0].worst_case += us(1);
        assert_eq!(late(&set_of(Machine::default(), more)).len(), 64);
    }
}
