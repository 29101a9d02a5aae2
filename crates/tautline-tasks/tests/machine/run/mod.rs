//! Task sets in threads: what happens, to whom, what is done. Nothing here says how fast.

mod deadlines;
mod jobs;
mod messages;
mod modes;
mod programs;
mod refusals;
mod seen;
mod tables;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tautline_exec::{Activation, Job, Machine, Scheduling, TablePlan, Task, TaskSet, Window};
use tautline_state::TemporaryDirectory;
use tautline_tasks::{Options, Program, Running, Summary};

/// Far longer than any step takes; only ends a test that would hang.
const PATIENCE: Duration = Duration::from_secs(30);

fn ms(number: u64) -> Duration {
    Duration::from_millis(number)
}

fn us(number: u64) -> Duration {
    Duration::from_micros(number)
}

/// `CLOCK_MONOTONIC`, as the executive reads it.
fn now() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

fn wait_until(mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "waited too long");
        std::thread::sleep(ms(1));
    }
}

/// The scheduling that may be had; without privileges, that of ordinary threads.
fn options() -> Options {
    Options::default()
}

fn compute(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        std::hint::spin_loop();
    }
}

/// A counter, and a task that counts its jobs.
fn counter() -> (Arc<AtomicU64>, impl FnMut(&Job) + Send) {
    let count = Arc::new(AtomicU64::new(0));
    let jobs = count.clone();
    (count, move |_: &Job| {
        jobs.fetch_add(1, Ordering::Relaxed);
    })
}

/// A flag, and a task whose jobs do not return before it is set.
fn endless_jobs() -> (Arc<AtomicBool>, impl FnMut(&Job) + Send) {
    let is_over = Arc::new(AtomicBool::new(false));
    let over = is_over.clone();
    (is_over, move |_: &Job| {
        while !over.load(Ordering::Relaxed) {
            std::hint::spin_loop();
        }
    })
}

fn task(name: &str, period: Duration) -> Task {
    Task::periodic(name, period, us(50))
}

fn count_of(count: &AtomicU64) -> u64 {
    count.load(Ordering::Relaxed)
}

fn stopped(running: Running) -> Summary {
    let summary = running.stop(PATIENCE);
    println!("{summary}");
    summary
}

/// Scheduling policy of the calling thread, field 41 of proc(5) stat; 0 is SCHED_OTHER, 1 is SCHED_FIFO.
fn policy() -> u32 {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
    let after_name = stat.rsplit(')').next().unwrap();
    after_name
        .split_whitespace()
        .nth(38)
        .unwrap()
        .parse()
        .unwrap()
}

fn by_messages(name: &str, distance: Duration) -> Task {
    let mut command = task(name, distance);
    command.activation = Activation::Message { port: name.into() };
    command
}

/// The same task in one mode alone.
fn in_mode(mut task: Task, mode: &str) -> Task {
    task.modes = vec![mode.into()];
    task
}

/// Tasks of two modes, in deadline-monotonic order. The first of the modes runs.
fn set_of_modes(modes: [&str; 2], tasks: Vec<Task>) -> TaskSet {
    let modes = modes.map(str::to_owned).to_vec();
    let (scheduling, machine) = (Scheduling::default(), Machine::default());
    TaskSet::declare(scheduling, machine, Vec::new(), modes, tasks).unwrap()
}

fn table_of(tasks: Vec<Task>, modes: Vec<String>, plan: TablePlan) -> TaskSet {
    let machine = Machine::default();
    TaskSet::declare(Scheduling::Table, machine, Vec::new(), modes, tasks)
        .and_then(|set| set.with_table(plan))
        .unwrap()
}

fn window_at(task: usize, offset: Duration, duration: Duration) -> Window {
    Window {
        task,
        offset,
        duration,
    }
}

/// A script in a directory of its own, and the program that it is.
fn script(name: &str, text: &str) -> (TemporaryDirectory, Program) {
    let directory = TemporaryDirectory::make("tautline-tasks-test").unwrap();
    std::fs::write(directory.path().join(name), text).unwrap();
    let program = Program {
        words: vec!["sh".to_owned(), name.to_owned()],
        safe_words: None,
        directory: directory.path().to_owned(),
    };
    (directory, program)
}

const ANSWERS: &str = "while read number release deadline; do echo $number; done";

/// Long enough for a shell on a busy machine.
fn of_shells(name: &str) -> Task {
    Task::periodic(name, ms(20), ms(5))
}
