//! Three rates on one CPU: a control loop, its estimator, and vision that exceeds its budget and upsets neither.
//!
//! The set is that of `three_rates.toml`, which `taut task check` analyses. Vision takes too long now and then: it
//! goes on below the others, and the summary names it.
//!
//! Arguments: the file, and for how many milliseconds to run.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tautline_exec::Job;
use tautline_tasks::{Executive, Options, WithSafeState};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let file = arguments
        .next()
        .unwrap_or("examples/three_rates.toml".to_owned());
    let run_ms: u64 = arguments.next().unwrap_or("2000".to_owned()).parse()?;

    let mut executive = Executive::from_file(file)?; // refused if a task could miss its deadline
    let force = Arc::new(AtomicU64::new(0));
    let (output, safe) = (force.clone(), force.clone());
    let steer = move |job: &Job| output.store(job.number, Ordering::Relaxed);
    let stop = move || safe.store(0, Ordering::Relaxed);
    executive.task("control", WithSafeState(steer, stop))?;
    executive.task("estimate", |_: &Job| compute_us(300))?;
    executive.task("vision", |job: &Job| {
        let is_hard = job.number.is_multiple_of(5);
        compute_us(if is_hard { 25_000 } else { 3_000 });
    })?;

    let running = executive.start(&Options::default())?;
    for limit in running.limits() {
        println!("limited: {limit}");
    }
    std::thread::sleep(Duration::from_millis(run_ms));
    println!("{}", running.stop(Duration::from_secs(1)));
    Ok(())
}

fn compute_us(time_us: u64) {
    let start = Instant::now();
    while start.elapsed() < Duration::from_micros(time_us) {}
}
