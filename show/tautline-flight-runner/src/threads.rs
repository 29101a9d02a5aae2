//! The loops as threads with a timer each, as an ordinary program has them.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use tautline_state::memory::lock_all;
use tautline_testbed::sys::{monotonic_ns, set_fifo, sleep_until};

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
        lock_all()?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::course::{self, Course};
    use crate::loops::jobs;
    use crate::wire::{Means, Role};
    use crate::world::{self, WorldSettings};

    /// Long enough to arm and to leave the ground.
    const SECONDS: f64 = 1.6;

    #[test]
    fn a_craft_takes_off_over_the_kernels_sockets() {
        let means = Means::sockets().unwrap();
        let settings = WorldSettings {
            means: means.clone(),
            seed: 1,
            course: Course::Schedule,
            has_pilot: false,
            seconds_max: SECONDS,
        };
        let world = thread::spawn(move || {
            let mut record = None;
            world::run(&settings, |_| {}, |ended| record = Some(ended.clone())).unwrap();
            record.unwrap()
        });
        let wires = means.open(Role::Controller).unwrap();
        let jobs = jobs(&wires, course::mission()).unwrap();
        let log = jobs[0].log.clone();
        let threads = start(jobs, false).unwrap();
        let record = world.join().unwrap();
        threads.stop();
        println!("{:?}, latest step {} ns", record.policy, record.late_ns_max);
        assert_eq!(record.steps, 6_400);
        assert!(log.record().0.releases > 1_000);
        if record.void().is_none() {
            let height = record.samples.last().unwrap().position.z;
            assert!(height > 0.1, "{height}");
        }
    }
}
