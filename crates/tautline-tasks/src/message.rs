//! Messages that activate a task, such as those of a Tautline port. The task's own thread waits on the descriptor and
//! takes them, so nothing stands between the arrival and the job but the wake-up.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, poll};
use tautline_exec::Job;

use crate::thread::TaskBody;

/// Wake-ups without a message after which a descriptor counts as broken: it would keep the CPU from all others. Lower:
/// a message that somebody else took is mistaken for a fault. Higher: more of the CPU is lost.
const WAKES_FRUITLESS_MAX: u32 = 16;
/// Distance of looks at a broken source. Lower: more of the CPU is lost. Higher: its messages, should there be some,
/// come later.
const PAUSE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 1_000_000,
};

/// Takes the next message into a buffer, and returns its length.
type Take = Box<dyn FnMut(&mut [u8]) -> Option<usize> + Send>;

/// Source of the messages that activate a task.
///
/// ```no_run
/// # fn attach(executive: &mut tautline_tasks::Executive, receiver: std::os::unix::net::UnixDatagram)
/// # -> Result<(), Box<dyn std::error::Error>> {
/// use tautline_tasks::{MessageSource, OnMessage};
///
/// receiver.set_nonblocking(true)?;
/// let descriptor = receiver.try_clone()?;
/// let source = MessageSource::new(descriptor, 1_500, move |buffer| receiver.recv(buffer).ok())?;
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
        take: impl FnMut(&mut [u8]) -> Option<usize> + Send + 'static,
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
    /// Length of the message that waits in the buffer.
    waiting: Option<usize>,
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

    /// Whether a message waits; takes one if none does.
    pub(crate) fn look(&mut self) -> bool {
        if self.waiting.is_none() {
            let length = (self.source.take)(&mut self.buffer);
            self.waiting = length.map(|length| length.min(self.buffer.len()));
        }
        if self.waiting.is_some() {
            self.wakes_fruitless = 0;
        }
        self.waiting.is_some()
    }

    /// Hands the message that waits to a job. Returns whether there was one.
    pub(crate) fn hand_over(&mut self) -> Option<usize> {
        self.waiting.take()
    }

    /// Bytes of a message that was handed over.
    pub(crate) fn bytes(&self, length: usize) -> &[u8] {
        &self.buffer[..length]
    }

    /// Waits for a message after a look that found none, or for the bell.
    pub(crate) fn wait(&mut self, bell: &OwnedFd) {
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
            let _ = rustix::io::read(bell, &mut [0; size_of::<u64>()]); // it was readable a moment ago
        }
    }
}

/// Descriptor by which a thread that waits for messages is woken for something else.
pub(crate) fn bell() -> io::Result<OwnedFd> {
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    Ok(rustix::event::eventfd(0, flags)?)
}

pub(crate) fn ring(bell: &OwnedFd) {
    // It fails only if it has been rung 2^64 times and nobody has looked.
    let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
}
