//! Analysis of earliest deadline first on one CPU, by processor demand (Baruah, Rosier and Howell).
//!
//! In each interval, the jobs that are released and due within it must fit into it:
//!
//! ```text
//! Σ (⌊(t - D') / T⌋ + 1) · C + B(t) + receive(t) ≤ t        D' = D - J
//! ```
//!
//! over the tasks with `D' ≤ t`, for each `t` that is a deadline, up to the longest time for which the CPU can be busy
//! without a pause. `C` is the charged time with the machine's overhead, `J` the release jitter of task and machine,
//! `B` the machine's blocking and the longest critical section of a task with a later deadline. Receive processing
//! counts where it runs in interrupts: threads with priorities are below. If all deadlines hold, each is the bound of
//! its task's response time.

use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use crate::analysis::TaskResponse;
use crate::response::{fixed_point, receive_time};
use crate::task::{HYPERPERIOD_MAX, TaskSet, ns};

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
    let busy = busy_time(set, demands)?;
    let mut excess = vec![0; demands.len()];
    for (index, one) in demands.iter().enumerate() {
        let mut due = one.deadline;
        while due <= busy {
            let needed = needed(set, demands, due);
            excess[index] = excess[index].max(needed.saturating_sub(due));
            due += one.period;
        }
        // A task whose deadline is beyond the busy time has at least its own job to do.
        let least = needed(set, demands, one.deadline);
        excess[index] = excess[index].max(least.saturating_sub(one.deadline));
    }
    Some(excess)
}

/// The longest time for which the CPU can be busy without a pause.
fn busy_time(set: &TaskSet, demands: &[Demand]) -> Option<u64> {
    let blocking = blocking(set, demands, 0);
    let work = |window: u64| {
        let jobs = |one: &Demand| (window.saturating_add(one.jitter)).div_ceil(one.period);
        let tasks = demands
            .iter()
            .map(|one| jobs(one).saturating_mul(one.charged));
        let all = tasks.fold(blocking, u64::saturating_add);
        all.saturating_add(receive(set, window))
    };
    let longest = demands.iter().map(|one| one.period).max()?;
    let max = 2 * ns(HYPERPERIOD_MAX).max(longest);
    fixed_point(work(1), max, work)
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

fn receive(set: &TaskSet, window: u64) -> u64 {
    let above = set.receive().iter().filter(|one| one.priority.is_none());
    above.fold(0, |sum: u64, one| {
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
