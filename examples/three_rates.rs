//! Three rates on one CPU: a control loop, its estimator, and vision that exceeds its budget and upsets neither.
//!
//! The set is that of `three_rates.toml`, which `taut task check` analyses. Vision takes too long now and then: it
//! goes on below the others, and the summary names it.
//!
//! Arguments: for how many milliseconds to run.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tautline_exec::{Job, Machine, Scheduling, Task, TaskSet};
use tautline_tasks::{Executive, Options, WithSafeState};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let run_ms: u64 = std::env::args()
        .nth(1)
        .unwrap_or("2000".to_owned())
        .parse()?;
    let (ms, us) = (Duration::from_millis, Duration::from_micros);

    let mut control = Task::periodic("control", ms(1), us(150));
    control.deadline = us(500);
    let mut estimate = Task::periodic("estimate", ms(4), us(900));
    estimate.critical_section = us(30);
    let mut vision = Task::periodic("vision", ms(20), ms(6));
    vision.budget = Some(ms(7));
    let machine = Machine {
        release_jitter: us(60),
        blocking: us(20),
        overhead: us(4),
    };
    let tasks = vec![control, estimate, vision];
    let set = TaskSet::declare(
        Scheduling::DeadlineMonotonic,
        machine,
        vec![],
        vec![],
        tasks,
    )?;

    let mut executive = Executive::new(set)?; // refused if a task could miss its deadline
    let force = Arc::new(AtomicU64::new(0));
    let (output, safe) = (force.clone(), force.clone());
    let steer = move |job: &Job| output.store(job.number, Ordering::Relaxed);
    let stop = move || safe.store(0, Ordering::Relaxed);
    executive.task("control", WithSafeState(steer, stop))?;
    executive.task("estimate", move |_: &Job| compute(us(300)))?;
    executive.task("vision", move |job: &Job| {
        let is_hard = job.number.is_multiple_of(5);
        compute(if is_hard { ms(25) } else { ms(3) });
    })?;

    let running = executive.start(&Options::default())?;
    for limit in running.limits() {
        println!("limited: {limit}");
    }
    std::thread::sleep(ms(run_ms));
    println!("{}", running.stop(ms(1_000)));
    Ok(())
}

fn compute(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {}
}
