//! Counts of this node's own sending: how much went out in real time, and how much of other traffic to each receiver.
//!
//! Real-time frames do not pass a filter: they go to the driver directly. But the interface counts them. So real time
//! is the rest: everything that the interface sent, less the frames that left the classes, less other frames that
//! passed.

use std::io;

use tautline_proto::smoother::WIRE_OVERHEAD_BYTES;
use tautline_state::netlink::Route;

use crate::program::{OtherBytes, Programs};
use crate::queue::{Class, ClassCounts, InterfaceStats, WireBytes};

/// Counts since the beginning of this run.
#[derive(Debug)]
pub(crate) struct SendCounts {
    stats: InterfaceStats,
    classes: Vec<Class>,
    /// Counts of each class when last read.
    pub(crate) of_class: Vec<ClassCounts>,
    first_sent: Option<u64>,
    /// May fall a little, because the counts are not read at one moment. Kept from falling, it would stand still after
    /// a reading that was interrupted, and the receiver would grant what real time needs.
    real_time_bytes: u64,
    pub(crate) interface: WireBytes,
    /// Other traffic when last read.
    pub(crate) other: OtherBytes,
}

impl SendCounts {
    pub(crate) fn new(interface: u32, classes: Vec<Class>, programs: &Programs) -> Self {
        Self {
            stats: InterfaceStats::of(interface),
            of_class: vec![ClassCounts::default(); classes.len()],
            other: programs.counts(),
            classes,
            first_sent: None,
            real_time_bytes: 0,
            interface: WireBytes::default(),
        }
    }

    pub(crate) fn class(&mut self, node: usize) -> &mut Class {
        &mut self.classes[node]
    }

    /// Reads the class of a node.
    pub(crate) fn read_class(&mut self, route: &mut Route, node: usize) -> io::Result<ClassCounts> {
        let counts = self.classes[node].counts(route)?;
        self.of_class[node] = counts;
        Ok(counts)
    }

    /// Reads the interface, and the classes to which something was sent.
    pub(crate) fn read(
        &mut self,
        route: &mut Route,
        programs: &Programs,
        is_used: impl Fn(usize) -> bool,
    ) -> io::Result<()> {
        for node in 0..self.classes.len() {
            if is_used(node) {
                self.read_class(route, node)?;
            }
        }
        // The interface last: what left meanwhile counts as real time for a moment, and not as a negative amount.
        self.other = programs.counts();
        self.interface = self.stats.read(route)?;
        let first = *self.first_sent.get_or_insert(self.interface.sent);
        let held: u64 = self.of_class.iter().map(other_bytes).sum();
        let sent = self.interface.sent.saturating_sub(first);
        let real_time = sent
            .saturating_sub(held)
            .saturating_sub(self.other.passed());
        self.real_time_bytes = self.real_time_bytes.max(real_time);
        Ok(())
    }

    /// Bytes sent in real time, on the wire, to all receivers together: the interface does not tell them apart.
    pub(crate) fn real_time_bytes(&self) -> u64 {
        self.real_time_bytes
    }
}

/// Bytes of other traffic that left a class, on the wire.
pub(crate) fn other_bytes(counts: &ClassCounts) -> u64 {
    counts.bytes + counts.packets * WIRE_OVERHEAD_BYTES
}
