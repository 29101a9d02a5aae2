//! The least that the machine can do: hand a cache line to another core, and wake a thread there.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::thread::futex::{self, Timespec};

use crate::path::{Arrival, End};

/// A cache line of its own. Twice 64 bytes, because processors fetch lines in pairs.
#[derive(Default)]
#[repr(align(128))]
struct Line(AtomicU64);

/// A message is a number in a line, and nothing else. The number's lowest bit says from which end it is, so that one
/// line serves both directions.
pub(super) struct LineEnd {
    outward: Arc<Line>,
    inward: Arc<Line>,
    /// Value of the lowest bit that the end sends.
    side: u64,
    seen: u64,
    /// Of the message that was taken last.
    number: [u8; 8],
}

/// Both ends on one line, which goes there and back.
pub(super) fn one_line() -> [LineEnd; 2] {
    let line = Arc::new(Line::default());
    ends(Arc::clone(&line), line)
}

/// Both ends with a line for each direction, as between two sides that write nothing of each other's.
pub(super) fn a_line_each_way() -> [LineEnd; 2] {
    ends(Arc::default(), Arc::default())
}

fn ends(there: Arc<Line>, back: Arc<Line>) -> [LineEnd; 2] {
    let end = |outward: &Arc<Line>, inward: &Arc<Line>, side| LineEnd {
        outward: Arc::clone(outward),
        inward: Arc::clone(inward),
        side,
        seen: 0,
        number: [0; 8],
    };
    [end(&there, &back, 0), end(&back, &there, 1)]
}

/// The number at the start of a message.
#[inline(always)]
fn number_of(message: &[u8]) -> u64 {
    message
        .first_chunk()
        .map_or(0, |number| u64::from_le_bytes(*number))
}

impl End for LineEnd {
    #[inline(always)]
    fn send(&mut self, message: &[u8]) -> io::Result<bool> {
        let sent = number_of(message) << 1 | self.side;
        // Release: partner is the Acquire in `take`.
        self.outward.0.store(sent, Ordering::Release);
        Ok(true)
    }

    #[inline]
    fn send_back(&mut self) -> io::Result<bool> {
        let number = self.number;
        self.send(&number)
    }

    #[inline(always)]
    fn take(&mut self, _bytes: usize) -> io::Result<Option<Arrival>> {
        // Acquire: partner is the Release in `send`.
        let found = self.inward.0.load(Ordering::Acquire);
        if found == self.seen || found & 1 == self.side || found == 0 {
            return Ok(None);
        }
        self.seen = found;
        self.number = (found >> 1).to_le_bytes();
        Ok(Some(Arrival { stamp: None }))
    }

    #[inline(always)]
    fn message(&self) -> &[u8] {
        &self.number
    }
}

/// A number in a line, and a futex beside it.
#[derive(Default)]
#[repr(align(128))]
struct Bell {
    tag: AtomicU64,
    rung: AtomicU32,
}

/// A receiver that sleeps in `futex`, and a sender that wakes it: two system calls and nothing around them.
pub(super) struct FutexEnd {
    outward: Arc<Bell>,
    inward: Arc<Bell>,
    seen: u32,
    /// Of the message that was taken last.
    number: [u8; 8],
}

/// Both ends.
pub(super) fn futex() -> [FutexEnd; 2] {
    let [there, back] = [Arc::<Bell>::default(), Arc::default()];
    let end = |outward: &Arc<Bell>, inward: &Arc<Bell>| FutexEnd {
        outward: Arc::clone(outward),
        inward: Arc::clone(inward),
        seen: 0,
        number: [0; 8],
    };
    [end(&there, &back), end(&back, &there)]
}

impl End for FutexEnd {
    fn send(&mut self, message: &[u8]) -> io::Result<bool> {
        self.outward
            .tag
            .store(number_of(message), Ordering::Relaxed);
        // Release: partner is the Acquire in `take`.
        self.outward.rung.fetch_add(1, Ordering::Release);
        // Not private: the bench stands for two processes.
        futex::wake(&self.outward.rung, futex::Flags::empty(), 1)?;
        Ok(true)
    }

    fn send_back(&mut self) -> io::Result<bool> {
        let number = self.number;
        self.send(&number)
    }

    fn take(&mut self, _bytes: usize) -> io::Result<Option<Arrival>> {
        // Acquire: partner is the Release in `send`.
        let rung = self.inward.rung.load(Ordering::Acquire);
        if rung == self.seen {
            return Ok(None);
        }
        self.seen = rung;
        self.number = self.inward.tag.load(Ordering::Relaxed).to_le_bytes();
        Ok(Some(Arrival { stamp: None }))
    }

    fn message(&self) -> &[u8] {
        &self.number
    }

    fn wait(&mut self, bytes: usize, limit: Duration) -> io::Result<Option<Arrival>> {
        let deadline = Instant::now() + limit;
        loop {
            let arrival = self.take(bytes)?;
            if arrival.is_some() {
                return Ok(arrival);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            let left = Timespec::try_from(left).ok();
            let word = &self.inward.rung;
            match futex::wait(word, futex::Flags::empty(), self.seen, left.as_ref()) {
                Ok(()) | Err(Errno::AGAIN | Errno::INTR | Errno::TIMEDOUT) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}
