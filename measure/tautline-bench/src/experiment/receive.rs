//! Where a cable's end does its receive processing: demux, protocol stack, whatever comes before the application.
//!
//! By itself a virtual cable does it on the sender's CPU, inside the call that sends. A board with one NIC does it
//! where the interrupt goes, which on one core is where the application runs; so it is placed there.

use std::io;

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_setaffinity};
use tautline_testbed::child;
use tautline_testbed::hosts::{Host, Hosts};

use super::ExperimentError;
use tautline_testbed::interface::Polls;

/// Steers the protocol stack's part to a CPU, where it runs in soft interrupts: receive packet steering
/// (Documentation/networking/scaling.rst). For an end without a poll of its own.
pub(super) fn steered(
    hosts: &Hosts,
    host: Host,
    cable: usize,
    cpu: usize,
) -> Result<(), ExperimentError> {
    // Groups of 32 CPUs, the first last, as the kernel's bitmaps are written.
    let mut mask = format!("{:x}", 1u32 << (cpu % 32));
    for _ in 0..cpu / 32 {
        mask.push_str(",00000000");
    }
    Ok(hosts.set_interface(host, cable, "queues/rx-0/rps_cpus", &mask)?)
}

/// Gives a cable's end a poll of its own without a demux: the kernel does so while it merges segments (GRO).
pub(super) fn with_poll(hosts: &Hosts, host: Host, cable: usize) -> Result<(), ExperimentError> {
    let interface = hosts.end(host, cable).interface();
    Ok(hosts.run(host, "ethtool", &["-K", &interface, "gro", "on"])?)
}

/// Puts the poll of a cable's end into a thread on `cpu`, at `priority` of SCHED_FIFO or as an ordinary thread. There
/// must be a poll already: after the demux is attached. Says what took effect.
pub(super) fn in_thread(
    hosts: &Hosts,
    host: Host,
    cable: usize,
    cpu: usize,
    priority: Option<u8>,
) -> Result<String, ExperimentError> {
    hosts.set_interface(host, cable, "threaded", "1")?;
    let interface = hosts.end(host, cable).interface();
    let threads = hosts
        .inside(host, || Polls::of(&interface))?
        .map_err(ExperimentError::io(format!(
            "find the poll threads of {interface}"
        )))?
        .threads;
    if threads.is_empty() {
        return Err(ExperimentError::Io {
            operation: format!("put the poll of {interface} into a thread"),
            source: io::ErrorKind::NotFound.into(),
        });
    }
    for thread in &threads {
        let thread = *thread as i32;
        let mut set = CpuSet::new();
        set.set(cpu);
        sched_setaffinity(Pid::from_raw(thread), &set)
            .map_err(io::Error::from)
            .map_err(ExperimentError::io(format!(
                "keep the poll thread on CPU {cpu}"
            )))?;
        if let Some(priority) = priority {
            child::schedule_fifo_of(thread, priority)
                .map_err(ExperimentError::io("give the poll thread its priority"))?;
        }
    }
    let scheduling = priority.map_or("ordinary priority".to_owned(), |priority| {
        format!("SCHED_FIFO {priority}")
    });
    Ok(format!("poll in a thread on CPU {cpu}, {scheduling}"))
}
