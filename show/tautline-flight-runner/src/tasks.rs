//! The loops as tasks of the executive, in a partition that was made before.

use std::time::Duration;

use tautline_exec::{Machine, OverrunPolicy, Task, TaskSet};
use tautline_tasks::partition::PartitionConfig;
use tautline_tasks::{Executive, Options, RunError, Running};

use crate::loops::Job;
use crate::record::Loop;

/// Declared worst cases: measured a tenth of them, with a margin for a virtual machine.
const WORST_CASES_US: [u64; 3] = [200, 200, 400];
/// Budget of the navigator: a job that takes longer goes on below the other loops.
const NAVIGATOR_BUDGET: Duration = Duration::from_millis(2);

/// The set of tasks that flies the craft.
pub(crate) fn set() -> Result<TaskSet, tautline_exec::SetError> {
    let tasks = Loop::ALL.iter().zip(WORST_CASES_US).map(|(which, us)| {
        let period = Duration::from_nanos(which.period_ns());
        let mut task = Task::periodic(which.name(), period, Duration::from_micros(us));
        task.overrun = OverrunPolicy::Skip;
        if *which == Loop::Navigator {
            task.budget = Some(NAVIGATOR_BUDGET);
        }
        task
    });
    let set = TaskSet::new(tasks.collect())?;
    debug_assert_eq!(set.machine(), &Machine::default());
    Ok(set)
}

/// Starts the jobs in a partition; without one, on a CPU.
pub(crate) fn start(
    jobs: Vec<Job>,
    partition: Option<PartitionConfig>,
) -> Result<Running, RunError> {
    let mut executive = Executive::new(set()?)?;
    for mut job in jobs {
        let name = job.which.name();
        executive.task(name, move |due: &tautline_exec::Job| {
            job.run(due.number, due.release.as_nanos() as u64);
        })?;
    }
    if let Some(partition) = partition {
        executive = executive.in_partition(partition);
    }
    executive.start(&Options::default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tautline_exec::Analysis;

    #[test]
    fn the_set_holds_its_deadlines_by_the_analysis() {
        let set = set().unwrap();
        let analysis = Analysis::of(&set, "").unwrap();
        assert!(analysis.is_admitted(&set));
        let response = analysis.responses[2].response.unwrap();
        assert!(response < Duration::from_millis(6), "{response:?}");
    }
}
