//! Counts of this node's own sending: how much went out in real time, and how much of other traffic to each receiver.
//!
//! Real-time frames do not pass a filter: they go to the driver directly. But the interface counts them. So real time
//! is the rest: everything that the interface sent, less the frames that left the classes, less other frames that
//! passed.

use std::io;

use tautline_proto::smoother::WIRE_OVERHEAD_BYTES;
use tautline_state::netlink::Route;

use crate::interface_counts::InterfaceCounts;
use crate::program::{OtherBytes, Programs};
use crate::queue::{Class, ClassCounts};

/// Counts since the beginning of this run.
#[derive(Debug)]
pub(crate) struct SendCounts {
    interface: InterfaceCounts,
    classes: Vec<Class>,
    /// Counts of each class when last read.
    pub(crate) of_class: Vec<ClassCounts>,
    /// Whether something came into each class between the last two readings.
    was_used: Vec<bool>,
    first_sent: Option<u64>,
    /// May fall a little, because the counts are not read at one moment. Kept from falling, it would stand still after
    /// a reading that was interrupted, and the receiver would grant what real time needs.
    real_time_bytes: u64,
    /// Other traffic when last read.
    other: OtherBytes,
}

impl SendCounts {
    pub(crate) fn new(
        interface: InterfaceCounts,
        classes: Vec<Class>,
        programs: &Programs,
    ) -> Self {
        Self {
            interface,
            of_class: vec![ClassCounts::default(); classes.len()],
            was_used: vec![false; classes.len()],
            other: programs.counts(),
            classes,
            first_sent: None,
            real_time_bytes: 0,
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

    /// Reads the interface, and those classes into which something came or in which something waits.
    pub(crate) fn read(&mut self, route: &mut Route, programs: &Programs) -> io::Result<()> {
        let other = programs.counts();
        for node in 0..self.classes.len() {
            // A frame is counted a moment before it is in the class, so the class is read once more afterwards.
            let is_used = other.held(node) != self.other.held(node);
            let was_used = std::mem::replace(&mut self.was_used[node], is_used);
            if is_used || was_used || self.of_class[node].backlog_bytes > 0 {
                self.read_class(route, node)?;
            }
        }
        self.other = other;
        // The interface last: what left meanwhile counts as real time for a moment, and not as a negative amount.
        let passed = programs.counts().passed();
        let sent = self.interface.read()?.sent;
        let first = *self.first_sent.get_or_insert(sent);
        let held: u64 = self.of_class.iter().map(other_bytes).sum();
        self.real_time_bytes = sent
            .saturating_sub(first)
            .saturating_sub(held)
            .saturating_sub(passed);
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
