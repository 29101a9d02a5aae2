//! The loops as threads with a timer each, as an ordinary program has them.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use tautline_testbed::sys::{lock_memory, monotonic_ns, set_fifo, sleep_until};

use crate::loops::Job;

/// Priorities by hand, the fastest loop first: below the watchdogs of the kernel, above everything ordinary.
const PRIORITIES: [u8; 3] = [82, 81, 80];

/// Threads that run until they are told to stop.
pub(crate) struct Threads {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

/// Starts a thread for each job; with real-time priorities and locked memory if wanted.
pub(crate) fn start(jobs: Vec<Job>, is_fifo: bool) -> io::Result<Threads> {
    if is_fifo {
        lock_memory()?;
    }
    let stop = Arc::new(AtomicBool::new(false));
    let mut threads = Vec::new();
    for (job, priority) in jobs.into_iter().zip(PRIORITIES) {
        let stop = stop.clone();
        let builder = thread::Builder::new().name(job.which.name().to_owned());
        threads.push(builder.spawn(move || run(job, is_fifo.then_some(priority), &stop))?);
    }
    Ok(Threads { stop, threads })
}

fn run(mut job: Job, priority: Option<u8>, stop: &AtomicBool) {
    if let Some(priority) = priority
        && let Err(error) = set_fifo(priority)
    {
        eprintln!("{}: no priority {priority}: {error}", job.which.name());
    }
    let period = job.which.period_ns();
    let start = monotonic_ns() + period;
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        // Releases whose whole period has passed are left out.
        let passed = monotonic_ns().saturating_sub(start) / period;
        number = (number + 1).max(passed);
        let release = start + number * period;
        sleep_until(release);
        job.run(number, release);
    }
}

impl Threads {
    /// Ends the threads after their jobs.
    pub(crate) fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            // A thread that panicked has told why.
            let _ = thread.join();
        }
    }
}
