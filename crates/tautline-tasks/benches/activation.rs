//! Cost of an activation without its sleep: a task falls behind and makes up for thousands of releases, one
//! after the other. All that remains between two jobs is the executive. `cargo bench -p tautline-tasks`.

use std::sync::mpsc::channel;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tautline_exec::{Job, OverrunPolicy, Task, TaskSet};
use tautline_tasks::{Executive, Options};

/// The shortest period, so that a short pause leaves many releases behind.
const PERIOD: Duration = Duration::from_micros(10);
const BEHIND: u64 = 20_000;
/// Releases between two readings: few enough that the task has not caught up.
const MEASURED: u64 = 10_000;
const ROUNDS: usize = 9;

fn main() {
    let mut rounds: Vec<u64> = (0..ROUNDS).map(|_| cost_ns()).collect();
    rounds.sort_unstable();
    println!("CPU time of an activation without its sleep, {ROUNDS} rounds of {MEASURED} jobs:");
    println!(
        "  least {} ns, median {} ns, most {} ns",
        rounds[0],
        rounds[ROUNDS / 2],
        rounds[ROUNDS - 1]
    );
}

fn cpu_ns() -> u64 {
    let used = clock_gettime(ClockId::ThreadCPUTime);
    used.tv_sec as u64 * 1_000_000_000 + used.tv_nsec as u64
}

fn cost_ns() -> u64 {
    let mut task = Task::periodic("behind", PERIOD, PERIOD / 4);
    task.overrun = OverrunPolicy::CatchUp { jobs_max: u32::MAX };
    let set = TaskSet::new(vec![task]).expect("a set");
    let mut executive = Executive::new(set).expect("admitted");
    let (tell, told) = channel();
    let mut start = None;
    let body = move |job: &Job| match job.number {
        1 => std::thread::sleep(PERIOD * BEHIND as u32),
        number if number == MEASURED / 10 => start = Some(cpu_ns()),
        number if number == MEASURED / 10 + MEASURED => {
            let start = start.expect("every release is made up for");
            let _ = tell.send((cpu_ns() - start) / MEASURED);
        }
        _ => {}
    };
    executive.task("behind", body).expect("its name");
    let options = Options::default().without_real_time();
    let running = executive.start(&options).expect("threads");
    let cost = told.recv().expect("it runs");
    let _ = running.stop(Duration::from_secs(1));
    cost
}
