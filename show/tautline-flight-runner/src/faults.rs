//! Faults and loads that the lab does not have, each in a process of its own that ends by itself.

use std::hint::{black_box, spin_loop};
use std::io;
use std::thread;
use std::time::{Duration, Instant};

use tautline_testbed::child::{allowed_cpus, pin};
use tautline_testbed::sys::{fork, set_fifo, wait_for};

/// Priority of the runaway: the highest that there is.
const RUNAWAY_PRIORITY: u8 = 99;
/// Children of the fork storm at a time. Lower: the storm is a breeze. Higher: it takes more memory than it is worth.
const STORM_CHILDREN: usize = 64;
/// Memory that comes and goes, in all.
const PRESSURE_BYTES: usize = 512 << 20;
const PAGE_BYTES: usize = 4_096;

/// Computes at the highest priority on every CPU that this process may use, as a program does whose loop has lost its
/// end.
pub(crate) fn run_away(length: Duration) -> io::Result<()> {
    let end = Instant::now() + length;
    thread::scope(|scope| {
        for cpu in allowed_cpus()? {
            scope.spawn(move || {
                // Where it may not have the priority, it is only a busy program; the record shows that nothing fell.
                let _ = pin(cpu).and_then(|()| set_fifo(RUNAWAY_PRIORITY));
                while Instant::now() < end {
                    spin_loop();
                }
            });
        }
        Ok(())
    })
}

/// Starts processes as fast as it can, many at a time.
pub(crate) fn storm(length: Duration) -> io::Result<()> {
    let end = Instant::now() + length;
    while Instant::now() < end {
        let mut children = Vec::with_capacity(STORM_CHILDREN);
        for _ in 0..STORM_CHILDREN {
            children.push(fork(|| drop(black_box(vec![1u8; 1 << 20])))?);
        }
        children.into_iter().for_each(wait_for);
    }
    Ok(())
}

/// Takes memory, touches each page, and gives it back, again and again.
pub(crate) fn press(length: Duration) -> io::Result<()> {
    let end = Instant::now() + length;
    while Instant::now() < end {
        let mut block = vec![0u8; PRESSURE_BYTES];
        for page in block.chunks_mut(PAGE_BYTES) {
            page[0] = 1;
            if Instant::now() > end {
                break;
            }
        }
        black_box(&block);
    }
    Ok(())
}
