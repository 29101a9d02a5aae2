//! Counters of the kernel's side for the whole node, mapped: reading them is no system call, and needs no privilege.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering::Relaxed;

use tautline_proto::wire::ParseError;

use crate::link::NodeCounters;
use crate::sys::memory::{Mapping, page_bytes};

/// The counters of one demux, or one program of link `xsk`.
#[derive(Debug)]
pub(crate) struct Counters(Mapping);

impl Counters {
    /// Maps the array `node_counters` of `bpf/node.bpf.h`, which fits a page.
    pub(crate) fn map(array: BorrowedFd<'_>) -> io::Result<Self> {
        Mapping::shared_read_only(array, page_bytes(), 0).map(Self)
    }

    /// `enum tl_node_counter` of `bpf/tautline.h` gives the order.
    pub(crate) fn read(&self) -> NodeCounters {
        let read = |index: usize| self.0.load(index, Relaxed);
        NodeCounters {
            malformed: std::array::from_fn(read),
            no_port: read(ParseError::COUNT),
            socket_full: 0,
            out_of_order_fragments: read(ParseError::COUNT + 1),
            joined_datagrams: read(ParseError::COUNT + 2),
        }
    }
}
