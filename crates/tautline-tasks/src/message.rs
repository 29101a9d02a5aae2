//! Messages that activate a task, such as those of a Tautline port. The task's own thread waits on the descriptor and
//! takes them, so nothing stands between the arrival and the job but the wake-up.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tautline_exec::Job;
use tautline_state::Event;

use crate::thread::TaskBody;

/// Wake-ups without a message after which a descriptor counts as broken: it would keep the CPU from all others. Lower:
/// a message that another thread took is mistaken for a fault. Higher: more of the CPU is lost.
const WAKES_FRUITLESS_MAX: u32 = 16;
/// Distance of looks at a broken source. Lower: more of the CPU is lost. Higher: its messages, should there be some,
/// come later.
const PAUSE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 1_000_000,
};

/// Times that are kept of messages that are only counted. Lower: after a short stall, latencies are counted from
/// earlier messages. Higher: more memory for each task.
const TIMES_MAX: usize = 64;

/// Length and arrival time of a message whose bytes are in a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageHead {
    /// Bytes of the message, from the start of the buffer.
    pub length: usize,
    /// Time of its arrival, on `CLOCK_MONOTONIC`. A source that does not know it gives the time of the call; the time
    /// for which the message waited until then is not seen, and delays later releases.
    pub arrival: Duration,
}

impl MessageHead {
    /// A message of this length that arrived at this time, in nanoseconds of `CLOCK_MONOTONIC`.
    #[must_use]
    pub const fn new(length: usize, arrival_ns: u64) -> Self {
        Self {
            length,
            arrival: Duration::from_nanos(arrival_ns),
        }
    }
}

/// Takes the next message into a buffer.
type Take = Box<dyn FnMut(&mut [u8]) -> Option<MessageHead> + Send>;

/// Source of the messages that activate a task.
///
/// ```no_run
/// # struct Port(std::net::UdpSocket);
/// # impl Port {
/// #     fn receive(&mut self, buffer: &mut [u8]) -> Option<(usize, u64)> { None }
/// # }
/// # fn attach(executive: &mut tautline_tasks::Executive, mut port: Port) -> Result<(), Box<dyn std::error::Error>> {
/// use tautline_tasks::{MessageHead, MessageSource, OnMessage};
///
/// let descriptor = port.0.try_clone()?;
/// let source = MessageSource::new(descriptor, 1_500, move |buffer| {
///     let (length, arrival_ns) = port.receive(buffer)?; // never waits
///     Some(MessageHead::new(length, arrival_ns))
/// })?;
/// executive.messages("command", source)?;
/// executive.task("command", OnMessage(|_job: &tautline_exec::Job, bytes: &[u8]| println!("{bytes:?}")))?;
/// # Ok(())
/// # }
/// ```
pub struct MessageSource {
    descriptor: OwnedFd,
    bytes_max: usize,
    take: Take,
}

impl MessageSource {
    /// A source of messages of at most so many bytes. The descriptor becomes readable when a message comes after a
    /// `take` that found none: a port's does, and a socket's. `take` never waits.
    ///
    /// # Errors
    /// The descriptor cannot be copied.
    pub fn new(
        descriptor: impl AsFd,
        bytes_max: usize,
        take: impl FnMut(&mut [u8]) -> Option<MessageHead> + Send + 'static,
    ) -> io::Result<MessageSource> {
        Ok(MessageSource {
            descriptor: descriptor.as_fd().try_clone_to_owned()?,
            bytes_max,
            take: Box::new(take),
        })
    }
}

/// A closure that is called for each message with its bytes. Without a message, as after
/// [`Trigger::fire`](crate::Trigger::fire), they are empty.
pub struct OnMessage<F>(pub F);

impl<F: FnMut(&Job, &[u8]) + Send> TaskBody for OnMessage<F> {
    fn run(&mut self, job: &Job) {
        (self.0)(job, &[]);
    }

    fn run_on_message(&mut self, job: &Job, message: &[u8]) {
        (self.0)(job, message);
    }
}

/// The source in the hands of the task's thread, with room for one message.
pub(crate) struct Inbox {
    source: MessageSource,
    buffer: Vec<u8>,
    /// The message that waits in the buffer.
    waiting: Option<MessageHead>,
    /// Wake-ups in a row after which there was no message.
    wakes_fruitless: u32,
}

impl Inbox {
    pub(crate) fn new(source: MessageSource) -> Inbox {
        Inbox {
            buffer: vec![1; source.bytes_max], // written, and so resident
            waiting: None,
            wakes_fruitless: 0,
            source,
        }
    }

    /// Arrival of the message that waits; takes one if none does.
    pub(crate) fn look(&mut self) -> Option<Duration> {
        if self.waiting.is_none() {
            self.waiting = (self.source.take)(&mut self.buffer);
        }
        let waiting = self.waiting?;
        self.wakes_fruitless = 0;
        Some(waiting.arrival)
    }

    /// Hands the message that waits to a job. Returns its length if there was one.
    pub(crate) fn hand_over(&mut self) -> Option<usize> {
        let message = self.waiting.take()?;
        Some(message.length.min(self.buffer.len()))
    }

    /// Bytes of a message that was handed over.
    pub(crate) fn bytes(&self, length: usize) -> &[u8] {
        &self.buffer[..length]
    }

    /// Waits for a message after a look that found none, or for the bell.
    pub(crate) fn wait(&mut self, bell: &Event) {
        let mut watched = [
            PollFd::new(bell, PollFlags::IN),
            PollFd::new(&self.source.descriptor, PollFlags::IN),
        ];
        let is_broken = self.wakes_fruitless >= WAKES_FRUITLESS_MAX;
        let (count, time) = if is_broken {
            (1, Some(&PAUSE))
        } else {
            (2, None)
        };
        // A message, the bell, the time, or an interruption: the caller looks again in each case.
        let _ = poll(&mut watched[..count], time);
        if !watched[1].revents().is_empty() {
            self.wakes_fruitless += 1;
        }
        if watched[0].revents().contains(PollFlags::IN) {
            bell.quiet();
        }
    }
}

/// Arrivals of messages that are only counted: those of a [`Trigger`](crate::Trigger).
pub(crate) struct Arrivals {
    times: VecDeque<Duration>,
    /// Messages after those, whose times are not kept.
    beyond: u64,
    /// Arrival of the last message before them.
    last: Duration,
}

impl Arrivals {
    pub(crate) fn new() -> Arrivals {
        Arrivals {
            times: VecDeque::with_capacity(TIMES_MAX),
            beyond: 0,
            last: Duration::ZERO,
        }
    }

    /// Adds a message. Takes no memory.
    pub(crate) fn push(&mut self, arrival: Duration) {
        if self.beyond > 0 || self.times.len() == TIMES_MAX {
            self.beyond += 1;
        } else {
            self.times.push_back(arrival);
            self.last = arrival;
        }
    }

    /// Arrival of the oldest message. If it was not kept, that of an earlier one: a latency never looks shorter than it
    /// is.
    pub(crate) fn first(&self) -> Option<Duration> {
        let kept = self.times.front().copied();
        kept.or_else(|| (self.beyond > 0).then_some(self.last))
    }

    /// Removes the oldest message.
    pub(crate) fn take(&mut self) {
        if self.times.pop_front().is_none() {
            self.beyond = self.beyond.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_are_kept_in_order_and_counted_beyond() {
        let at = |number: usize| Duration::from_millis(number as u64);
        let mut arrivals = Arrivals::new();
        assert_eq!(arrivals.first(), None);
        for number in 1..=TIMES_MAX + 3 {
            arrivals.push(at(number));
        }
        for number in 1..=TIMES_MAX {
            assert_eq!(arrivals.first(), Some(at(number)));
            arrivals.take();
        }
        // One more behind those whose times are not kept.
        arrivals.push(at(900));
        for _ in 0..4 {
            assert_eq!(arrivals.first(), Some(at(TIMES_MAX)));
            arrivals.take();
        }
        assert_eq!(arrivals.first(), None);
        arrivals.push(at(901));
        assert_eq!(arrivals.first(), Some(at(901)));
    }
}
