//! The watchdog: a thread above all tasks that looks at the jobs that run, and takes the priority from one that has
//! used up its budget.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::thread::CpuSet;
use tautline_exec::Action;

use crate::figures::TaskState;
use crate::run::{Options, Shared};
use crate::sys;
use crate::thread::Worker;

/// Longest distance of two looks. Lower: more wake-ups for nothing. Higher: a job that never returns is recorded later.
const LOOK_MAX: Duration = Duration::from_millis(1);
/// Shortest distance. Lower: near the end of a budget the watchdog would do nothing but look. Higher: a budget is
/// exceeded by more.
const LOOK_MIN: Duration = Duration::from_micros(20);
/// Above [`tautline_exec::task::PRIORITY_MAX`].
const PRIORITY: u8 = 99;

/// Starts the watchdog of these tasks.
pub(crate) fn start(
    shared: &Arc<Shared>,
    workers: Vec<(usize, Worker)>,
    options: &Options,
) -> io::Result<JoinHandle<()>> {
    let (shared, options) = (shared.clone(), options.clone());
    let builder = std::thread::Builder::new().name("taut-watchdog".to_owned());
    builder.spawn(move || {
        if options.real_time {
            // Refused as it is for the tasks, which report it.
            let _ = sys::schedule(sys::own_number(), Some(PRIORITY));
        }
        if let Some(cpu) = options.cpu {
            leave(cpu);
        }
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
        watch(&shared, &workers, &options);
    })
}

/// Leaves the CPU of the tasks to them, if there is another one.
fn leave(cpu: usize) {
    let Ok(mut cpus) = rustix::thread::sched_getaffinity(None) else {
        return;
    };
    if cpu < CpuSet::MAX_CPU {
        cpus.unset(cpu);
    }
    if cpus.count() > 0 {
        let _ = rustix::thread::sched_setaffinity(None, &cpus);
    }
}

/// A job that begins after a look has its whole budget left, so no budget ends before the next look as long as looks
/// are not farther apart than the shortest budget.
fn watch(shared: &Shared, workers: &[(usize, Worker)], options: &Options) {
    let budgets = shared.set.tasks().iter().filter_map(|task| task.budget);
    let look_max = budgets.min().unwrap_or(LOOK_MAX).clamp(LOOK_MIN, LOOK_MAX);
    while !shared.is_stopping() {
        let seen = shared.watchdog.value();
        let left = workers
            .iter()
            .filter_map(|worker| look(shared, *worker, options))
            .min();
        let pause = left.unwrap_or(look_max).clamp(LOOK_MIN, look_max);
        shared.watchdog.wait(seen, Some(sys::monotonic() + pause));
    }
    // A job that does not end may not keep others from the CPU after the set has stopped.
    if options.real_time {
        for (_, worker) in workers {
            let _ = worker.schedule(None);
        }
    }
}

/// Looks at one task. Returns what is left of the budget of its job.
fn look(shared: &Shared, (task, worker): (usize, Worker), options: &Options) -> Option<Duration> {
    let mut decisions = shared.decisions.lock();
    let job = decisions.jobs[task]?;
    let used = worker.cpu_time()?.saturating_sub(job.cpu_time);
    let action = decisions.executive.check(task, sys::monotonic(), used);
    if action == Some(Action::Demoted) {
        decisions.jobs[task].as_mut()?.is_demoted = true;
        shared.segment.figures(task).set_state(TaskState::Demoted);
        // Under the lock, which the thread takes before it lifts the demotion.
        if options.real_time {
            let _ = worker.schedule(None);
        }
    }
    let budget = shared.set.tasks()[task].budget?;
    budget.checked_sub(used).filter(|left| !left.is_zero())
}
