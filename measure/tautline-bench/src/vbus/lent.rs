//! Ends over ports of a bus whose messages are filled and looked at in place. Of a message they touch its number, the
//! first eight bytes; the rest is what an application would fill or read where it lies.

use std::io;

use tautline::port::{LentBytes, Loan};
use tautline::{Destination, Priority, QueuingPort, SamplingPort, SendError, Wait};

use crate::path::port::{PortEnd, went};
use crate::path::{Arrival, End};

const PRIORITY: Priority = Priority::HIGHEST;
const NUMBER_BYTES: usize = 8;

/// One end, on a queuing port or on a sampling port.
pub(super) struct LentEnd<P> {
    port: P,
    to: Destination,
    /// Number of the message that was taken last, and the message's length.
    number: [u8; NUMBER_BYTES],
    length: usize,
}

/// Both ends of a path, used in place.
pub(super) fn lent<P>(ends: [PortEnd<P>; 2]) -> [LentEnd<P>; 2] {
    ends.map(|end| {
        let (port, to) = end.into_parts();
        LentEnd {
            port,
            to,
            number: [0; NUMBER_BYTES],
            length: NUMBER_BYTES,
        }
    })
}

/// Sends a loan with a number in it; a full receiver is no failure.
#[inline(always)]
fn send(loan: Result<Loan<'_>, SendError>, number: &[u8]) -> io::Result<bool> {
    let Some(mut loan) = went(loan)? else {
        return Ok(false);
    };
    loan[..NUMBER_BYTES].copy_from_slice(&number[..NUMBER_BYTES]);
    loan.send().map_err(io::Error::other)?;
    Ok(true)
}

#[inline(always)]
fn number_in(bytes: LentBytes<'_>) -> [u8; NUMBER_BYTES] {
    let mut number = [0; NUMBER_BYTES];
    bytes.copy_out(0, &mut number);
    number
}

impl End for LentEnd<QueuingPort> {
    #[inline(always)]
    fn send(&mut self, message: &[u8]) -> io::Result<bool> {
        send(self.port.lend(self.to, PRIORITY, message.len()), message)
    }

    #[inline(always)]
    fn send_back(&mut self) -> io::Result<bool> {
        let loan = self.port.lend(self.to, PRIORITY, self.length);
        send(loan, &self.number)
    }

    #[inline(always)]
    fn take(&mut self, bytes: usize) -> io::Result<Option<Arrival>> {
        let Some(message) = self
            .port
            .receive_in_place(Wait::Poll)
            .map_err(io::Error::other)?
        else {
            return Ok(None);
        };
        (self.number, self.length) = (number_in(message.bytes()), bytes);
        Ok(Some(Arrival { stamp: None }))
    }

    #[inline(always)]
    fn message(&self) -> &[u8] {
        &self.number
    }
}

impl End for LentEnd<SamplingPort> {
    #[inline(always)]
    fn send(&mut self, message: &[u8]) -> io::Result<bool> {
        send(self.port.lend(self.to, PRIORITY, message.len()), message)
    }

    #[inline(always)]
    fn send_back(&mut self) -> io::Result<bool> {
        let loan = self.port.lend(self.to, PRIORITY, self.length);
        send(loan, &self.number)
    }

    #[inline(always)]
    fn take(&mut self, bytes: usize) -> io::Result<Option<Arrival>> {
        if !self.port.fresh() {
            return Ok(None);
        }
        let sample = self.port.read_in_place().map_err(io::Error::other)?;
        let Some(sample) = sample.filter(|sample| sample.new) else {
            return Ok(None);
        };
        (self.number, self.length) = (number_in(sample.bytes), bytes);
        Ok(Some(Arrival { stamp: None }))
    }

    #[inline(always)]
    fn message(&self) -> &[u8] {
        &self.number
    }

    #[inline]
    fn read_last(&mut self) -> io::Result<()> {
        if let Some(sample) = self.port.read_in_place().map_err(io::Error::other)? {
            self.number = number_in(sample.bytes);
        }
        Ok(())
    }
}
