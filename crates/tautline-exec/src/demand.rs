//! Analysis of earliest deadline first on one CPU, by processor demand (Baruah, Rosier and Howell).
//!
//! In each interval, the jobs that are released and due within it must fit into it:
//!
//! ```text
//! Σ (⌊(t - D') / T⌋ + 1) · C + B(t) + receive(t) ≤ t        D' = D - J
//! ```
//!
//! over the tasks with `D' ≤ t`, for each `t` that is a deadline, up to a horizon beyond which a miss would have been
//! preceded by another. `C` is the charged time with the machine's overhead, `J` the release jitter of task and
//! machine,
//! `B` the machine's blocking and the longest critical section of a task with a later deadline. Receive processing
//! counts where it runs in interrupts: threads with priorities are below. If all deadlines hold, each is the bound of
//! its task's response time.

use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use crate::analysis::TaskResponse;
use crate::response::{STEPS_MAX, distance_ns, fixed_point, receive_time};
use crate::task::{HYPERPERIOD_MAX, Receive, TaskSet, ns};

/// Deadlines of each task whose excess is looked at once one is missed. Lower: a refusal says less than it could.
/// Higher: it takes longer.
const DEADLINES_LOOKED_AT: u64 = 1_000;
/// The whole CPU, in the unit of shares: a share is rounded up by less than a part in a billion.
const WHOLE: u128 = 1 << 40;

/// A task, in nanoseconds.
struct Demand {
    task: usize,
    charged: u64,
    period: u64,
    /// From the moment at which a late job is ready to its deadline.
    deadline: u64,
    jitter: u64,
    section: u64,
}

impl Demand {
    /// The last of its deadlines up to a time.
    fn last_due(&self, until: u64) -> Option<u64> {
        let since = until.checked_sub(self.deadline)?;
        Some(until - since % self.period)
    }
}

/// Responses of a mode under earliest deadline first.
pub(crate) fn earliest_deadline(set: &TaskSet, mode: &str) -> Vec<TaskResponse> {
    let demands: Vec<Demand> = set.members(mode).map(|task| demand(set, task)).collect();
    let excess = excesses(set, &demands);
    let responses = demands.iter().enumerate().map(|(index, one)| {
        let declared = &set.tasks()[one.task];
        let (charged, jitter) = (set.charged(one.task), set.release_jitter(one.task));
        let blocking = Duration::from_nanos(blocking(set, &demands, one.deadline));
        let late = excess.as_ref().map(|excess| excess[index]);
        let own = charged + jitter + blocking;
        TaskResponse {
            task: one.task,
            priority: None,
            charged,
            jitter,
            blocking,
            receive: Duration::ZERO,
            interference: declared.deadline.saturating_sub(own),
            response: late.map(|late| declared.deadline + Duration::from_nanos(late)),
            deadline: declared.deadline,
        }
    });
    responses.collect()
}

fn demand(set: &TaskSet, task: usize) -> Demand {
    let declared = &set.tasks()[task];
    let jitter = ns(set.release_jitter(task));
    Demand {
        task,
        charged: ns(set.charged(task)),
        period: ns(declared.period),
        deadline: ns(declared.deadline).saturating_sub(jitter),
        jitter,
        section: ns(declared.critical_section),
    }
}

/// By how much the jobs of each task can be late at the least; `None` if the CPU may never come to a pause.
fn excesses(set: &TaskSet, demands: &[Demand]) -> Option<Vec<u64>> {
    let horizon = horizon(set, demands)?;
    let mut excess = vec![0; demands.len()];
    let Some(missed) = missed(set, demands, horizon)? else {
        return Some(excess);
    };
    for (index, one) in demands.iter().enumerate() {
        let first = (0..DEADLINES_LOOKED_AT).map(|number| one.deadline + number * one.period);
        let first = first.take_while(|due| *due <= horizon);
        for due in first.chain(one.last_due(missed)) {
            excess[index] = excess[index].max(needed(set, demands, due).saturating_sub(due));
        }
    }
    Some(excess)
}

/// Time by which the first deadline is missed, if one is missed at all; `None` if that has no bound, for the tasks take
/// the whole CPU or more.
///
/// Demand grows with the tasks' share of the CPU, so a share below one leaves it behind from some time on (George,
/// Rivierre and Spuri). With the whole CPU in use, it is the end of the longest time without a pause. Critical
/// sections delay deadlines up to the longest one only, so they do not prolong that time.
fn horizon(set: &TaskSet, demands: &[Demand]) -> Option<u64> {
    let (mut load, mut ahead) = (0, u128::from(blocking(set, demands, 0)) * WHOLE);
    for one in demands {
        let share = (u128::from(one.charged) * WHOLE).div_ceil(u128::from(one.period));
        load += share;
        ahead += share * u128::from(one.period.saturating_sub(one.deadline));
    }
    for one in receive_above(set) {
        load += (u128::from(ns(one.worst_case)) * WHOLE).div_ceil(u128::from(distance_ns(one)));
        ahead += u128::from(receive_time(one, 0)) * WHOLE;
    }
    let longest = demands.iter().map(|one| one.deadline).max()?;
    match WHOLE.checked_sub(load) {
        Some(left) if left > 0 => u64::try_from(ahead.div_ceil(left)).ok(),
        _ => Some(busy_time(set, demands)?.max(longest)),
    }
}

/// The longest time for which the CPU can be busy without a pause, but for critical sections.
fn busy_time(set: &TaskSet, demands: &[Demand]) -> Option<u64> {
    let work = |window: u64| {
        let jobs = |one: &Demand| (window.saturating_add(one.jitter)).div_ceil(one.period);
        let tasks = demands
            .iter()
            .map(|one| jobs(one).saturating_mul(one.charged));
        let all = tasks.fold(ns(set.machine().blocking), u64::saturating_add);
        all.saturating_add(receive(set, window))
    };
    let longest = demands.iter().map(|one| one.period).max()?;
    let max = 2 * ns(HYPERPERIOD_MAX).max(longest);
    fixed_point(work(1), max, work)
}

/// A time by which more is needed than there is, if there is one up to the horizon. `None` if it takes too many steps
/// to tell.
///
/// Looked for from the end (Zhang and Burns): if the demand by `t` is `h`, no time from `h` to `t` has a larger one.
/// That holds where the blocking is the same, so between one task's first deadline and the next.
fn missed(set: &TaskSet, demands: &[Demand], horizon: u64) -> Option<Option<u64>> {
    let mut firsts: Vec<u64> = demands.iter().map(|one| one.deadline).collect();
    firsts.sort_unstable();
    let last_due = |until: u64| demands.iter().filter_map(|one| one.last_due(until)).max();
    let mut steps = 0;
    let mut until = horizon;
    for first in firsts.into_iter().rev() {
        let mut next = last_due(until);
        while let Some(time) = next.filter(|time| *time >= first) {
            steps += 1;
            if steps > STEPS_MAX {
                return None;
            }
            let needed = needed(set, demands, time);
            if needed > time {
                return Some(Some(time));
            }
            next = last_due(needed.min(time.saturating_sub(1)));
        }
        until = until.min(first.saturating_sub(1));
    }
    Some(None)
}

/// Time that is needed by a moment which is a deadline, from the beginning of a busy time.
fn needed(set: &TaskSet, demands: &[Demand], due: u64) -> u64 {
    let in_time = demands.iter().filter(|one| one.deadline <= due);
    let jobs = |one: &Demand| (due - one.deadline) / one.period + 1;
    let tasks = in_time.map(|one| jobs(one).saturating_mul(one.charged));
    let all = tasks.fold(blocking(set, demands, due), u64::saturating_add);
    all.saturating_add(receive(set, due))
}

/// Longest time for which a job with a later deadline, or the kernel, keeps one with this deadline waiting.
fn blocking(set: &TaskSet, demands: &[Demand], due: u64) -> u64 {
    let later = demands.iter().filter(|one| one.deadline > due);
    let section = later.map(|one| one.section).max().unwrap_or_default();
    section + ns(set.machine().blocking)
}

/// Receive processing above all tasks.
fn receive_above(set: &TaskSet) -> impl Iterator<Item = &Receive> {
    set.receive().iter().filter(|one| one.priority.is_none())
}

fn receive(set: &TaskSet, window: u64) -> u64 {
    receive_above(set).fold(0, |sum: u64, one| {
        sum.saturating_add(receive_time(one, window))
    })
}

#[cfg(test)]
mod tests {
    use crate::analysis::Analysis;
    use crate::task::{Machine, Scheduling, Task, TaskSet};
    use alloc::vec;
    use alloc::vec::Vec;
    use core::time::Duration;

    fn us(number: u64) -> Duration {
        Duration::from_micros(number)
    }

    fn set_of(machine: Machine, tasks: Vec<Task>) -> TaskSet {
        let scheduling = Scheduling::EarliestDeadline;
        TaskSet::declare(scheduling, machine, Vec::new(), Vec::new(), tasks).unwrap()
    }

    fn late(set: &TaskSet) -> Vec<(usize, Option<Duration>)> {
        let analysis = Analysis::of(set, "").unwrap();
        let refused = analysis.refusals(set).map(|one| (one.task, one.excess()));
        refused.collect()
    }

    #[test]
    fn the_whole_cpu_may_be_used_where_priorities_fail() {
        // 1/2 + 1/2: refused with rate-monotonic priorities, for which 2.5 ms are too short.
        let tasks = vec![
            Task::periodic("a", us(2_000), us(1_000)),
            Task::periodic("b", us(5_000), us(2_500)),
        ];
        let set = set_of(Machine::default(), tasks.clone());
        assert_eq!(late(&set), []);
        let analysis = Analysis::of(&set, "").unwrap();
        assert_eq!(analysis.headroom_permille(&set), 1_000);
        assert_eq!(analysis.responses[1].response, Some(us(5_000)));
        let priorities = TaskSet::new(tasks).unwrap();
        let refused = Analysis::of(&priorities, "").unwrap();
        assert!(!refused.is_admitted(&priorities));
    }

    #[test]
    fn a_refusal_names_the_deadline_and_by_how_much() {
        let mut tasks = vec![
            Task::periodic("a", us(4_000), us(2_000)),
            Task::periodic("b", us(8_000), us(2_000)),
        ];
        tasks[0].deadline = us(2_000);
        tasks[1].deadline = us(3_000);
        let set = set_of(Machine::default(), tasks.clone());
        assert_eq!(late(&set), [(1, Some(us(1_000)))]);
        tasks[1].deadline = us(4_000);
        let set = set_of(Machine::default(), tasks.clone());
        assert_eq!(late(&set), []);
        let machine = Machine {
            release_jitter: us(10),
            blocking: us(5),
            ..Machine::default()
        };
        let set = set_of(machine, tasks);
        let found = late(&set);
        assert_eq!(found, [(0, Some(us(15))), (1, Some(us(15)))]);
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
    fn the_whole_cpu_may_be_used_beside_a_critical_section() {
        let mut tasks = vec![
            Task::periodic("a", us(2_000), us(1_000)),
            Task::periodic("b", us(4_000), us(2_000)),
        ];
        tasks[1].critical_section = us(500);
        assert_eq!(late(&set_of(Machine::default(), tasks.clone())), []);
        // The kernel's sections delay every deadline, and there is no time to make up for one.
        let machine = Machine {
            blocking: us(1),
            ..Machine::default()
        };
        assert_eq!(late(&set_of(machine, tasks)), [(0, None), (1, None)]);
    }

    #[test]
    fn many_periods_without_a_common_divisor_need_no_hyperperiod() {
        let primes = (500..).filter(|number: &u64| (2..30).all(|one| !number.is_multiple_of(one)));
        let tasks: Vec<Task> = primes
            .take(64)
            .map(|prime| {
                Task::periodic(
                    &alloc::format!("p{prime}"),
                    us(10 * prime),
                    us(10 * prime) / 64,
                )
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

    #[test]
    fn a_critical_section_delays_earlier_deadlines_only() {
        let mut tasks = vec![
            Task::periodic("a", us(2_000), us(1_000)),
            Task::periodic("b", us(8_000), us(2_000)),
        ];
        tasks[0].deadline = us(1_100);
        tasks[1].critical_section = us(200);
        let set = set_of(Machine::default(), tasks);
        assert_eq!(late(&set), [(0, Some(us(100)))]);
    }
}
