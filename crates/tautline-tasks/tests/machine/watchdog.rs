//! How often the watchdog wakes: on a CPU that it shares with the tasks, each look can make a job late. One test alone,
//! so that the process has one watchdog at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tautline_exec::{Job, Task, TaskSet};
use tautline_tasks::{Executive, Options};

const JOBS: u64 = 250;
/// Far longer than the jobs take; only ends a test that would hang.
const PATIENCE: Duration = Duration::from_secs(30);

#[test]
fn the_watchdog_looks_when_a_budget_can_end_and_seldom_beside() {
    let (jobs, looks) = looks_beside(None);
    println!("{looks} looks beside {jobs} jobs without a budget");
    assert!(looks * 2 < jobs, "one in 10 ms, and jobs each 2 ms");
    assert!(looks * 20 > jobs, "it still looks");
    let (jobs, looks) = looks_beside(Some(Duration::from_micros(500)));
    println!("{looks} looks beside {jobs} jobs with a budget");
    assert!(
        looks * 2 > jobs && looks < jobs * 3,
        "one a job, when its budget could be used up"
    );
}

/// Jobs of a task with this budget, each 2 ms, and the watchdog's sleeps meanwhile.
fn looks_beside(budget: Option<Duration>) -> (u64, u64) {
    let mut task = Task::periodic("short", Duration::from_millis(2), Duration::from_micros(50));
    task.budget = budget;
    let mut executive = Executive::new(TaskSet::new(vec![task]).unwrap()).unwrap();
    let count = Arc::new(AtomicU64::new(0));
    let jobs = count.clone();
    let body = move |_: &Job| {
        jobs.fetch_add(1, Ordering::Relaxed);
    };
    executive.task("short", body).unwrap();
    let running = executive.start(&Options::default()).unwrap();
    let start = Instant::now();
    let wait_for_jobs = |number: u64| {
        while count.load(Ordering::Relaxed) < number {
            assert!(start.elapsed() < PATIENCE, "waited too long");
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    // By then all threads have begun.
    wait_for_jobs(10);
    let (jobs_before, sleeps_before) = (count.load(Ordering::Relaxed), watchdogs_sleeps());
    wait_for_jobs(jobs_before + JOBS);
    let jobs = count.load(Ordering::Relaxed) - jobs_before;
    let sleeps = watchdogs_sleeps() - sleeps_before;
    let _ = running.stop(PATIENCE);
    (jobs, sleeps)
}

/// Times that the thread of the watchdog went to sleep, by its line in proc(5) status.
pub(crate) fn watchdogs_sleeps() -> u64 {
    let of_thread = |entry: std::io::Result<std::fs::DirEntry>| {
        let directory = entry.unwrap().path();
        // A thread that ends meanwhile is not the watchdog.
        let name = std::fs::read_to_string(directory.join("comm")).ok()?;
        if name.trim() != "taut-watchdog" {
            return None;
        }
        let status = std::fs::read_to_string(directory.join("status")).ok()?;
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        line.trim().parse().ok()
    };
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    threads
        .filter_map(of_thread)
        .next()
        .expect("the watchdog's thread")
}
