//! Ends over Tautline's ports, on whichever link their node has.

use std::io;
use std::time::Duration;

use tautline::port::{BATCH_FRAMES, Outgoing};
use tautline::{
    Destination, Instant, PortNumber, Priority, QueuingPort, ReceiveError, SamplingPort, SendError,
    UdpPort, Wait,
};

use super::{Arrival, End, OwnLines, Sends, Stamp};

/// Small messages between two flushes of a merging sender: enough for several full frames of the smallest ones.
const MERGED: usize = 256;

/// A port number that is a constant of the program.
///
/// # Panics
/// If it is out of range.
pub fn port_number(number: u16) -> PortNumber {
    PortNumber::new(number).expect("the program's own port numbers are in range")
}

/// A message that a port received.
#[derive(Clone, Copy)]
pub struct Received {
    length: usize,
    arrival: Instant,
}

/// The three kinds of ports, as far as an end needs them.
pub trait Port: Send {
    /// Bytes that a receive buffer must have.
    fn buffer_bytes(&self) -> usize;

    /// Sends a message.
    fn send(
        &mut self,
        to: Destination,
        priority: Priority,
        message: &[u8],
    ) -> Result<(), SendError>;

    /// Sends several with as few system calls as it can; returns how many.
    fn send_batch(&mut self, batch: &[Outgoing<'_>]) -> Result<usize, SendError>;

    /// Adds a message to a frame that [`Port::flush`] sends. A port that merges nothing sends at once.
    fn merge(
        &mut self,
        to: Destination,
        priority: Priority,
        message: &[u8],
    ) -> Result<(), SendError> {
        self.send(to, priority, message)
    }

    /// Sends what is merged.
    fn flush(&mut self) -> Result<(), SendError> {
        Ok(())
    }

    /// Takes the next message, if one is there.
    fn receive(&mut self, buffer: &mut [u8]) -> Result<Option<Received>, ReceiveError>;

    /// The same, waiting until the deadline.
    fn receive_until(
        &mut self,
        deadline: Instant,
        buffer: &mut [u8],
    ) -> Result<Option<Received>, ReceiveError>;

    /// Takes all messages that are there, of which the newest stays in the buffer; returns how many, and the newest.
    fn receive_newest(
        &mut self,
        buffer: &mut [u8],
    ) -> Result<(u32, Option<Received>), ReceiveError> {
        let (mut count, mut newest) = (0, None);
        while let Some(received) = self.receive(buffer)? {
            (count, newest) = (count + 1, Some(received));
        }
        Ok((count, newest))
    }

    /// Reads the last value, whether it is new or not; nothing where a port keeps none.
    fn read_last(&mut self, _buffer: &mut [u8]) -> Result<Option<Received>, ReceiveError> {
        Ok(None)
    }
}

impl Port for QueuingPort {
    fn buffer_bytes(&self) -> usize {
        self.message_bytes_max()
    }

    #[inline(always)]
    fn send(
        &mut self,
        to: Destination,
        priority: Priority,
        message: &[u8],
    ) -> Result<(), SendError> {
        QueuingPort::send(self, to, priority, message)
    }

    fn send_batch(&mut self, batch: &[Outgoing<'_>]) -> Result<usize, SendError> {
        QueuingPort::send_batch(self, batch)
    }

    fn merge(
        &mut self,
        to: Destination,
        priority: Priority,
        message: &[u8],
    ) -> Result<(), SendError> {
        QueuingPort::merge(self, to, priority, message)
    }

    fn flush(&mut self) -> Result<(), SendError> {
        QueuingPort::flush(self)
    }

    #[inline(always)]
    fn receive(&mut self, buffer: &mut [u8]) -> Result<Option<Received>, ReceiveError> {
        let message = QueuingPort::receive_into(self, buffer, Wait::Poll)?;
        Ok(message.map(|message| Received {
            length: message.length,
            arrival: message.arrival,
        }))
    }

    fn receive_until(
        &mut self,
        deadline: Instant,
        buffer: &mut [u8],
    ) -> Result<Option<Received>, ReceiveError> {
        let message = QueuingPort::receive_into(self, buffer, Wait::Until(deadline))?;
        Ok(message.map(|message| Received {
            length: message.length,
            arrival: message.arrival,
        }))
    }
}

impl Port for UdpPort {
    fn buffer_bytes(&self) -> usize {
        self.message_bytes_max()
    }

    fn send(
        &mut self,
        to: Destination,
        priority: Priority,
        message: &[u8],
    ) -> Result<(), SendError> {
        self.send_to(to, priority, message)
    }

    fn send_batch(&mut self, batch: &[Outgoing<'_>]) -> Result<usize, SendError> {
        UdpPort::send_batch(self, batch)
    }

    fn receive(&mut self, buffer: &mut [u8]) -> Result<Option<Received>, ReceiveError> {
        let datagram = UdpPort::receive_into(self, buffer, Wait::Poll)?;
        Ok(datagram.map(|datagram| Received {
            length: datagram.length,
            arrival: datagram.arrival,
        }))
    }

    fn receive_until(
        &mut self,
        deadline: Instant,
        buffer: &mut [u8],
    ) -> Result<Option<Received>, ReceiveError> {
        let datagram = UdpPort::receive_into(self, buffer, Wait::Until(deadline))?;
        Ok(datagram.map(|datagram| Received {
            length: datagram.length,
            arrival: datagram.arrival,
        }))
    }
}

/// Its messages are the values that are new.
impl Port for SamplingPort {
    fn buffer_bytes(&self) -> usize {
        self.value_bytes_max()
    }

    #[inline(always)]
    fn send(
        &mut self,
        to: Destination,
        priority: Priority,
        message: &[u8],
    ) -> Result<(), SendError> {
        SamplingPort::send(self, to, priority, message)
    }

    fn send_batch(&mut self, batch: &[Outgoing<'_>]) -> Result<usize, SendError> {
        SamplingPort::send_batch(self, batch)
    }

    #[inline(always)]
    fn receive(&mut self, buffer: &mut [u8]) -> Result<Option<Received>, ReceiveError> {
        if !self.fresh() {
            return Ok(None);
        }
        let sample = self.read_into(buffer)?.filter(|sample| sample.new);
        Ok(sample.map(|sample| Received {
            length: sample.length,
            arrival: sample.arrival,
        }))
    }

    fn receive_until(
        &mut self,
        deadline: Instant,
        buffer: &mut [u8],
    ) -> Result<Option<Received>, ReceiveError> {
        let sample = self.next_into(buffer, Wait::Until(deadline))?;
        Ok(sample.map(|sample| Received {
            length: sample.length,
            arrival: sample.arrival,
        }))
    }

    /// One read, which copies the value whether it is new or not.
    fn receive_newest(
        &mut self,
        buffer: &mut [u8],
    ) -> Result<(u32, Option<Received>), ReceiveError> {
        let Some(sample) = self.read_into(buffer)? else {
            return Ok((0, None));
        };
        let count = match sample.new {
            true => sample.overwritten as u32 + 1,
            false => 0,
        };
        let received = Received {
            length: sample.length,
            arrival: sample.arrival,
        };
        Ok((count, Some(received)))
    }

    #[inline(always)]
    fn read_last(&mut self, buffer: &mut [u8]) -> Result<Option<Received>, ReceiveError> {
        let sample = self.read_into(buffer)?;
        Ok(sample.map(|sample| Received {
            length: sample.length,
            arrival: sample.arrival,
        }))
    }
}

/// One end: a port, and where it sends to.
pub struct PortEnd<P> {
    port: P,
    to: Destination,
    priority: Priority,
    sends: Sends,
    buffer: OwnLines,
    length: usize,
}

impl<P> PortEnd<P> {
    /// The port itself, and where it sends to.
    pub fn into_parts(self) -> (P, Destination) {
        (self.port, self.to)
    }
}

impl<P: Port> PortEnd<P> {
    /// An end that sends one by one, with the highest priority.
    pub fn new(port: P, to: Destination) -> PortEnd<P> {
        PortEnd {
            buffer: OwnLines::new(port.buffer_bytes()),
            length: 0,
            port,
            to,
            priority: Priority::HIGHEST,
            sends: Sends::OneByOne,
        }
    }

    /// Another way of [`End::send_many`].
    #[must_use]
    pub fn with_sends(mut self, sends: Sends) -> PortEnd<P> {
        self.sends = sends;
        self
    }

    /// The same, with the lowest priority, as streams have it.
    #[must_use]
    pub fn streaming(self, sends: Sends) -> PortEnd<P> {
        PortEnd {
            priority: Priority::LOWEST,
            ..self.with_sends(sends)
        }
    }

    #[inline(always)]
    fn arrived(&mut self, received: Option<Received>) -> Option<Arrival> {
        let received = received?;
        self.length = received.length;
        Some(Arrival {
            stamp: Some(Stamp::Monotonic(received.arrival.as_nanos())),
        })
    }

    fn send_batches(&mut self, messages: &[u8], message_bytes: usize) -> io::Result<usize> {
        let mut sent = 0;
        for part in messages.chunks(message_bytes * BATCH_FRAMES) {
            let count = part.len() / message_bytes;
            let batch: [Outgoing<'_>; BATCH_FRAMES] = std::array::from_fn(|index| Outgoing {
                to: self.to,
                priority: self.priority,
                message: part
                    .get(index * message_bytes..(index + 1) * message_bytes)
                    .unwrap_or_default(),
            });
            let taken = went(self.port.send_batch(&batch[..count]))?.unwrap_or(0);
            sent += taken;
            if taken < count {
                break;
            }
        }
        Ok(sent)
    }

    fn merge(&mut self, messages: &[u8], message_bytes: usize) -> io::Result<usize> {
        let mut merged = 0;
        for message in messages.chunks(message_bytes) {
            if went(self.port.merge(self.to, self.priority, message))?.is_none() {
                break;
            }
            merged += 1;
        }
        // Messages that stay merged go with the next ones.
        let _later = went(self.port.flush())?;
        Ok(merged)
    }
}

/// Result of a send; nothing where there was no room, which the port counts.
#[inline(always)]
pub(crate) fn went<T>(result: Result<T, SendError>) -> io::Result<Option<T>> {
    match result {
        Ok(sent) => Ok(Some(sent)),
        Err(SendError::TransmitQueueFull | SendError::ReceiverFull) => Ok(None),
        Err(error) => Err(io::Error::other(error)),
    }
}

impl<P: Port> End for PortEnd<P> {
    #[inline(always)]
    fn send(&mut self, message: &[u8]) -> io::Result<bool> {
        Ok(went(self.port.send(self.to, self.priority, message))?.is_some())
    }

    #[inline(always)]
    fn send_back(&mut self) -> io::Result<bool> {
        let message = &self.buffer[..self.length];
        Ok(went(self.port.send(self.to, self.priority, message))?.is_some())
    }

    #[inline(always)]
    fn take(&mut self, _bytes: usize) -> io::Result<Option<Arrival>> {
        let received = self.port.receive(&mut self.buffer);
        let received = received.map_err(io::Error::other)?;
        Ok(self.arrived(received))
    }

    #[inline(always)]
    fn message(&self) -> &[u8] {
        &self.buffer[..self.length]
    }

    fn wait(&mut self, bytes: usize, limit: Duration) -> io::Result<Option<Arrival>> {
        // As the kernel's sockets are waited for: a message that is there costs no reading of the clock.
        if let Some(arrival) = self.take(bytes)? {
            return Ok(Some(arrival));
        }
        let deadline = tautline::now() + limit;
        let received = self.port.receive_until(deadline, &mut self.buffer);
        let received = received.map_err(io::Error::other)?;
        Ok(self.arrived(received))
    }

    fn send_many(&mut self, messages: &[u8], message_bytes: usize) -> io::Result<usize> {
        match self.sends {
            Sends::OneByOne => super::send_one_by_one(self, messages, message_bytes),
            Sends::Batches => self.send_batches(messages, message_bytes),
            Sends::Merged => self.merge(messages, message_bytes),
        }
    }

    fn batch(&self) -> usize {
        match self.sends {
            Sends::OneByOne => 1,
            Sends::Batches => BATCH_FRAMES,
            Sends::Merged => MERGED,
        }
    }

    fn update(&mut self, _bytes: usize) -> io::Result<u32> {
        let newest = self.port.receive_newest(&mut self.buffer);
        let (count, received) = newest.map_err(io::Error::other)?;
        self.arrived(received);
        Ok(count)
    }

    #[inline(always)]
    fn read_last(&mut self) -> io::Result<()> {
        let received = self.port.read_last(&mut self.buffer);
        let received = received.map_err(io::Error::other)?;
        self.arrived(received);
        Ok(())
    }
}
