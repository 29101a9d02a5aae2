//! The nodes on the same switch, and the messages to and from them.

use std::sync::atomic::{AtomicU32, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tautline_proto::smoother::message::{Grant, Message, Report};
use tautline_proto::time::Instant;
use tautline_proto::wire::MacAddress;

use crate::SmootherError;
use crate::control::{self, Ends, Frame};
use crate::sys::{self, ControlSocket};

/// Messages taken in one go. More would delay the grants when the port is flooded.
const MESSAGES_MAX: usize = 64;

/// Addresses and numbers of the messages of this run, for both halves.
#[derive(Debug)]
pub(crate) struct Peers {
    own: MacAddress,
    macs: Vec<MacAddress>,
    sequences: Vec<AtomicU32>,
}

impl Peers {
    pub(crate) fn new(own: MacAddress, macs: Vec<MacAddress>) -> Self {
        Self {
            own,
            sequences: macs.iter().map(|_| AtomicU32::new(0)).collect(),
            macs,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.macs.len()
    }

    fn ends(&self, node: usize) -> Ends {
        Ends {
            from: self.own,
            to: self.macs[node],
        }
    }

    fn next_sequence(&self, node: usize) -> u32 {
        self.sequences[node].fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn send_grant(&self, socket: &ControlSocket, node: usize, grant: &Grant) {
        let frame = Frame::grant(self.ends(node), self.next_sequence(node), grant);
        // A frame that is not sent is one of those that may be lost.
        let _sent = socket.send(frame.bytes());
    }

    pub(crate) fn send_report(&self, socket: &ControlSocket, node: usize, report: &Report) {
        let frame = Frame::report(self.ends(node), self.next_sequence(node), report);
        let _sent = socket.send(frame.bytes());
    }

    /// Hands the messages that are there to `each`, with the node and the time of arrival. Returns the number of those
    /// that were no node's, or could not be read.
    pub(crate) fn receive(
        &self,
        socket: &ControlSocket,
        mut each: impl FnMut(usize, Instant, Message),
    ) -> Result<u64, SmootherError> {
        let mut bytes = [0; sys::FRAME_BYTES];
        let mut strange = 0;
        for _ in 0..MESSAGES_MAX {
            let received = match socket.receive(&mut bytes) {
                Ok(received) => received,
                // The interface is down; it may come up again.
                Err(error) if error.raw_os_error() == Some(libc::ENETDOWN) => None,
                Err(error) => return Err(SmootherError::of("receive a message")(error)),
            };
            let Some((length, arrival)) = received else {
                break;
            };
            let message = control::parse(&bytes[..length.min(bytes.len())]);
            let message = message.and_then(|(source, message)| {
                let node = self.macs.iter().position(|mac| *mac == source)?;
                Some((node, message))
            });
            match message {
                Some((node, message)) => each(node, arrival, message),
                None => strange += 1,
            }
        }
        Ok(strange)
    }
}

/// Waits until a message is there, or it is time; whether one is there.
pub(crate) fn wait(socket: &ControlSocket, due: Instant) -> Result<bool, SmootherError> {
    let left = due.saturating_duration_since(sys::now());
    let timeout = Timespec::try_from(left).unwrap_or_default();
    let descriptor = socket.descriptor();
    let mut polled = [PollFd::new(&descriptor, PollFlags::IN)];
    match poll(&mut polled, Some(&timeout)) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(SmootherError::of("wait for messages")(error.into())),
    }
}
