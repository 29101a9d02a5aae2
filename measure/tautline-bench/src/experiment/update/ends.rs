//! The ends of the three paths: one thread sends each state on all of them, and each has a reader.

use std::io;

use tautline::port::{QueuingOptions, SamplingOptions};
use tautline_testbed::hosts::Hosts;

use crate::path::nodes::NodePair;
use crate::path::sides::{KERNEL_CABLE, Sides};
use crate::path::{End, PathError, Waiting, tcp};

/// Bytes of a state, as in the paper.
pub(super) const STATE_BYTES: usize = 1024;
const TCP_PORT: u16 = 7300;
const QUEUING: u16 = 1;
const SAMPLING: u16 = 2;

/// The sending ends of all paths.
pub(super) struct Sender {
    ends: [Box<dyn End>; 3],
    state: [u8; STATE_BYTES],
    sequence: u64,
}

/// The receiving ends.
pub(super) type Readers = [Box<dyn End>; 3];

pub(super) fn open(hosts: &Hosts, nodes: &NodePair<'_>) -> Result<(Sender, Readers), PathError> {
    let tcp = tcp::pair(Sides::Hosts(hosts, KERNEL_CABLE), TCP_PORT, Waiting::Spin)?;
    let queuing = nodes.queuing(QUEUING, &QueuingOptions::default())?;
    let sampling = nodes.sampling(SAMPLING, &SamplingOptions::default())?;
    let ([tcp_a, tcp_b], [queuing_a, queuing_b], [sampling_a, sampling_b]) =
        (tcp, queuing, sampling);
    let sender = Sender {
        ends: [Box::new(tcp_a), Box::new(queuing_a), Box::new(sampling_a)],
        state: [0; STATE_BYTES],
        sequence: 0,
    };
    let readers: Readers = [Box::new(tcp_b), Box::new(queuing_b), Box::new(sampling_b)];
    Ok((sender, readers))
}

impl Sender {
    /// Sends the next state on all paths.
    pub(super) fn send(&mut self) -> io::Result<()> {
        self.sequence += 1;
        self.state[..8].copy_from_slice(&self.sequence.to_le_bytes());
        for end in &mut self.ends {
            if !end.send(&self.state)? {
                return Err(io::Error::other("there was no room for a state"));
            }
        }
        Ok(())
    }
}
