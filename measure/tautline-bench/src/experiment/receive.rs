//! Where a cable's end does its receive processing: demux, protocol stack, whatever comes before the application.
//!
//! By itself a virtual cable does it on the sender's CPU, inside the call that sends. A board with one NIC does it
//! where the interrupt goes, which on one core is where the application runs; so it is placed there.

use tautline_testbed::hosts::{Host, Hosts};

use super::ExperimentError;
pub(super) use crate::path::poll::{in_thread, with_poll};

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
