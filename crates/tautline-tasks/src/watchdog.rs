//! The watchdog: a thread above all tasks that looks at the jobs that run, and takes the priority from one that has
//! used up its budget, or in a table its window. It gives the priority back when the next window of the task opens.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::thread::CpuSet;
use tautline_exec::{Action, BUDGET_STEP, Executive, Scheduling, TaskSet};

use crate::execution::Worker;
use crate::figures::TaskState;
use crate::options::Options;
use crate::policy::rise_above_tasks;
use crate::shared::{Decisions, Ready, Shared};
use crate::sys;

/// Longest distance of two looks. Lower: more wake-ups for nothing, on the CPU of the tasks if the set has no other.
/// Higher: a job that never returns is recorded later.
const LOOK_MAX: Duration = Duration::from_millis(10);
/// Distance of two looks at a job that waits for a more urgent one. The end of that one wakes the watchdog; the
/// distance counts if it sleeps inside its job. Lower: the watchdog takes the CPU for nothing. Higher: a job beside
/// such a one exceeds its budget by more.
const LOOK_DELAYED: Duration = Duration::from_millis(1);

/// Time from the start of the watchdog to the first release. Lower: on a busy machine the first jobs are late. Higher:
/// programs start later.
const START_DELAY: Duration = Duration::from_millis(5);

/// Starts the watchdog of these tasks, and with it the tasks: a thread with an ordinary priority can be held up between
/// the choice of the first release and the wake-up of the tasks. Returns the time of the first release.
pub(crate) fn start(
    shared: &Arc<Shared>,
    workers: Vec<(usize, Worker)>,
    options: &Options,
) -> io::Result<(JoinHandle<()>, Duration)> {
    let (shared, options) = (shared.clone(), options.clone());
    let started = Arc::new(Ready::new());
    let tells = started.clone();
    let builder = std::thread::Builder::new().name("taut-watchdog".to_owned());
    let handle = builder.spawn(move || {
        if options.real_time {
            rise_above_tasks(&shared);
        }
        match options.cpu {
            Some(cpu) if belongs_to_tasks(&shared.set, &workers) => {
                sys::stay_on(cpu);
            }
            Some(cpu) => leave(cpu),
            None => {}
        }
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
        let start = sys::monotonic() + START_DELAY;
        shared.decisions.lock().executive.start_at(start);
        shared.wake_all();
        tells.tell(start);
        watch(&shared, &workers, &options);
    })?;
    let start = started.wait_for(1)[0];
    Ok((handle, start))
}

/// Whether the watchdog runs on the CPU of the tasks. The end of a window must not wait for whatever runs elsewhere.
/// The clock of another process that runs advances at the kernel's ticks alone, until something takes the CPU from it:
/// a watchdog that does reads it exactly. And a thread with a deadline that waits for a lock which is held elsewhere
/// has a later deadline when it wakes.
fn belongs_to_tasks(set: &TaskSet, workers: &[(usize, Worker)]) -> bool {
    let has_budget = |(task, worker): &(usize, Worker)| {
        matches!(worker, Worker::Process { .. }) && set.tasks()[*task].budget.is_some()
    };
    match set.scheduling() {
        Scheduling::Table | Scheduling::EarliestDeadline => true,
        _ => workers.iter().any(has_budget),
    }
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

/// Looks when a budget can be used up, in a table also when a window ends, and now and then beside.
fn watch(shared: &Shared, workers: &[(usize, Worker)], options: &Options) {
    let has_budgets = shared.set.tasks().iter().any(|task| task.budget.is_some());
    while !shared.is_stopping() {
        let seen = shared.watchdog.value();
        let ends = workers
            .iter()
            .filter_map(|worker| look(shared, *worker, options))
            .min();
        let now = sys::monotonic();
        let decisions = shared.decisions.lock();
        let boundary = decisions.executive.next_boundary(now);
        let spare = now_and_then(&shared.set, &decisions.executive, now);
        drop(decisions);
        let next_look = ends
            .map_or(spare, |ends| ends.min(spare))
            .max(now + BUDGET_STEP);
        let until = match boundary {
            None => next_look,
            // On the CPU of the tasks, so not more often than windows end.
            Some(boundary) if !has_budgets => boundary,
            Some(boundary) => boundary.min(next_look),
        };
        shared.watchdog.wait(seen, Some(until));
    }
    // A job that does not end may not keep others from the CPU after the set has stopped.
    if options.real_time {
        for (_, worker) in workers {
            let _ = worker.demote();
        }
    }
}

/// When to look although no budget ends: at most [`LOOK_MAX`] from now, and as far as can be from the releases of the
/// most frequent task, which a look on its CPU would delay.
fn now_and_then(set: &TaskSet, executive: &Executive, now: Duration) -> Duration {
    let latest = now + LOOK_MAX;
    let next_release = |task: usize| {
        let (_, next) = executive.releases(task, latest)?;
        Some((set.tasks()[task].period, next))
    };
    let Some((period, next)) = (0..set.tasks().len()).filter_map(next_release).min() else {
        return latest;
    };
    // The period in equal steps of at most LOOK_MAX, a look in the middle of each.
    let parts = period.as_nanos().div_ceil(LOOK_MAX.as_nanos());
    let step = period.as_nanos() / parts;
    let steps_back = ((next - latest).as_nanos() + step / 2).saturating_sub(1) / step;
    next - ns(step / 2 + steps_back * step)
}

fn ns(number: u128) -> Duration {
    Duration::from_nanos(u64::try_from(number).unwrap_or(u64::MAX))
}

/// Looks at one task. Returns when the budget can be used up of the job that runs, or of the next one.
fn look(shared: &Shared, (task, worker): (usize, Worker), options: &Options) -> Option<Duration> {
    let budget = shared.set.tasks()[task].budget;
    let mut decisions = shared.decisions.lock();
    let Some(job) = decisions.jobs[task] else {
        let now = sys::monotonic();
        let release = decisions.executive.next_release(task, now)?;
        return Some(release.max(now) + budget?);
    };
    let cpu_time = worker.cpu_time()?;
    let now = sys::monotonic();
    let used = job.used(worker, cpu_time, now);
    let action = decisions.executive.check(task, now, used);
    let is_below = decisions.executive.is_below(task, now);
    if is_below != job.is_demoted {
        decisions.jobs[task].as_mut()?.is_demoted = is_below;
        // Under the lock, which the thread takes before it lifts the demotion.
        if options.real_time {
            let _ = match is_below {
                true => worker.demote(),
                false => worker.promote(&shared.set, task),
            };
        }
    }
    if action == Some(Action::Stopped) || is_below != job.is_demoted {
        shared.run_file.figures(task).set_state(match is_below {
            _ if decisions.executive.is_stopped(task) => TaskState::Stopped,
            true => TaskState::Demoted,
            false => TaskState::Active,
        });
    }
    let has_switched = action.is_some() && shared.switch(&mut decisions, now);
    let is_delayed = budget.is_some() && is_delayed(shared, &decisions, task);
    decisions.wakes_watchdog |= is_delayed;
    let looks_again = is_below && !job.is_demoted && std::mem::take(&mut decisions.wakes_watchdog);
    drop(decisions);
    if looks_again {
        // A job that has been looked at may go on now.
        shared.watchdog.wake();
    }
    if action == Some(Action::Stopped) {
        // Code stops when it returns; a program need not.
        shared.kill_program(task);
    }
    if has_switched {
        shared.wake_all();
    }
    // The end of a job that is below all others wakes the watchdog.
    let left = budget?.saturating_sub(used);
    match (is_below, is_delayed) {
        (true, _) => None,
        (false, true) => Some(now + left.max(LOOK_DELAYED)),
        (false, false) => Some(now + left),
    }
}

/// Whether the job of a task waits for one that is more urgent and has begun.
fn is_delayed(shared: &Shared, decisions: &Decisions, task: usize) -> bool {
    let policy = |task: usize| {
        let job = decisions.jobs[task].filter(|job| !job.is_demoted)?;
        Some(match shared.set.scheduling() {
            // One window is open at a time.
            Scheduling::Table => (0, Duration::ZERO),
            Scheduling::EarliestDeadline => (0, job.at + shared.set.kernel_deadline(task)),
            _ => (u8::MAX - shared.set.priority(task)?, Duration::ZERO),
        })
    };
    let own = policy(task);
    let tasks = 0..decisions.jobs.len();
    let mut others = tasks.filter_map(policy);
    own.is_some_and(|own| others.any(|other| other < own))
}
