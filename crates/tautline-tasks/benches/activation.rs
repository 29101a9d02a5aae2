//! Cost of an activation. Without its sleep: a task falls behind and makes up for thousands of releases, one after the
//! other; all that remains between two jobs is the executive. With its sleep: the CPU time of the thread of a task of 1
//! kHz, beside that of a bare loop of clock_nanosleep. `cargo bench -p tautline-tasks`.

use std::num::NonZeroU32;
use std::sync::atomic::AtomicU32;
use std::sync::mpsc::channel;
use std::time::Duration;

use rustix::thread::{clock_nanosleep_absolute, futex};
use rustix::time::{ClockId, Timespec, clock_gettime};
use tautline_exec::{Job, OverrunPolicy, Task, TaskSet};
use tautline_tasks::{Executive, Options};

/// The shortest period, so that a short pause leaves many releases behind.
const PERIOD: Duration = Duration::from_micros(10);
const BEHIND: u64 = 20_000;
/// Releases between two readings: few enough that the task has not caught up.
const MEASURED: u64 = 10_000;
const ROUNDS: usize = 9;
/// With their sleep.
const SLOW_PERIOD: Duration = Duration::from_millis(1);
const SLOW_MEASURED: u64 = 500;

fn main() {
    println!("CPU time of an activation without its sleep, {ROUNDS} rounds of {MEASURED} jobs:");
    print(cost_ns);
    println!("With its sleep, {ROUNDS} rounds of {SLOW_MEASURED} jobs of 1 kHz:");
    print(cost_with_sleep_ns);
    println!("A loop of clock_nanosleep at the same times:");
    print(|| cost_of_bare_loop_ns(sleep));
    println!("A loop of futex waits, by which a task sleeps, at the same times:");
    print(|| cost_of_bare_loop_ns(wait));
}

fn print(cost_ns: impl Fn() -> u64) {
    let mut rounds: Vec<u64> = (0..ROUNDS).map(|_| cost_ns()).collect();
    rounds.sort_unstable();
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

fn cost_with_sleep_ns() -> u64 {
    let task = Task::periodic("slow", SLOW_PERIOD, SLOW_PERIOD / 4);
    let mut executive = Executive::new(TaskSet::new(vec![task]).expect("a set")).expect("admitted");
    let (tell, told) = channel();
    let (mut jobs, mut start) = (0, 0);
    // Jobs and not releases, of which some may be left out.
    let body = move |_: &Job| {
        jobs += 1;
        if jobs == 1 {
            start = cpu_ns();
        } else if jobs == SLOW_MEASURED + 1 {
            let _ = tell.send((cpu_ns() - start) / SLOW_MEASURED);
        }
    };
    executive.task("slow", body).expect("its name");
    let options = Options::default().without_real_time();
    let running = executive.start(&options).expect("threads");
    let cost = told.recv().expect("it runs");
    let _ = running.stop(Duration::from_secs(1));
    cost
}

fn sleep(until: &Timespec) {
    clock_nanosleep_absolute(ClockId::Monotonic, until).expect("no signal comes");
}

fn wait(until: &Timespec) {
    let (word, all) = (AtomicU32::new(0), NonZeroU32::MAX);
    let waited = futex::wait_bitset(&word, futex::Flags::PRIVATE, 0, Some(until), all);
    assert!(waited.is_err(), "nobody wakes it");
}

fn cost_of_bare_loop_ns(sleep_until: fn(&Timespec)) -> u64 {
    let round = move || {
        let slack = std::num::NonZeroU64::new(1);
        rustix::thread::set_current_timer_slack(slack).expect("of this thread");
        let mut next = clock_gettime(ClockId::Monotonic);
        let start = cpu_ns();
        for _ in 0..SLOW_MEASURED {
            next.tv_nsec += SLOW_PERIOD.as_nanos() as i64;
            if next.tv_nsec >= 1_000_000_000 {
                (next.tv_sec, next.tv_nsec) = (next.tv_sec + 1, next.tv_nsec - 1_000_000_000);
            }
            sleep_until(&next);
        }
        (cpu_ns() - start) / SLOW_MEASURED
    };
    // A thread of its own, as the task's.
    std::thread::spawn(round).join().expect("it ends")
}
