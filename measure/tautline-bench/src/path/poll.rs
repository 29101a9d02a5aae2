//! Polls of a cable's end: a poll of its own, and the thread of the kernel that it runs in.

use std::io;

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_setaffinity};
use tautline_state::interface::Polls;
use tautline_testbed::child;
use tautline_testbed::hosts::{Host, Hosts};

use super::PathError;

/// Gives a cable's end a poll of its own without a demux: the kernel does so while it merges segments (GRO).
pub fn with_poll(hosts: &Hosts, host: Host, cable: usize) -> Result<(), PathError> {
    let interface = hosts.end(host, cable).interface();
    Ok(hosts.run(host, "ethtool", &["-K", &interface, "gro", "on"])?)
}

/// Puts the poll of a cable's end into a thread on `cpu`, at `priority` of SCHED_FIFO or as an ordinary thread. There
/// must be a poll already: after the demux is attached. Says what took effect.
pub fn in_thread(
    hosts: &Hosts,
    host: Host,
    cable: usize,
    cpu: usize,
    priority: Option<u8>,
) -> Result<String, PathError> {
    hosts.set_interface(host, cable, "threaded", "1")?;
    let interface = hosts.end(host, cable).interface();
    let threads = hosts
        .inside(host, || Polls::of(&interface))?
        .map_err(PathError::io("find the poll threads of an interface"))?
        .threads;
    if threads.is_empty() {
        return Err(PathError::Io {
            operation: "put the poll of an interface into a thread",
            source: io::ErrorKind::NotFound.into(),
        });
    }
    for thread in &threads {
        let thread = *thread as i32;
        let mut set = CpuSet::new();
        set.set(cpu);
        sched_setaffinity(Pid::from_raw(thread), &set)
            .map_err(io::Error::from)
            .map_err(PathError::io("keep a poll thread on its CPU"))?;
        if let Some(priority) = priority {
            child::schedule_fifo_of(thread, priority)
                .map_err(PathError::io("give a poll thread its priority"))?;
        }
    }
    let scheduling = priority.map_or("ordinary priority".to_owned(), |priority| {
        format!("SCHED_FIFO {priority}")
    });
    Ok(format!("poll in a thread on CPU {cpu}, {scheduling}"))
}
