//! The least that the machine can do: hand a cache line to another core, and wake a thread there.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::thread::futex::{self, Timespec};

use super::Failure;
use super::ends::End;

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
    sent: u64,
}

/// Both ends on one line, which goes there and back.
pub(super) fn one_line() -> (LineEnd, LineEnd) {
    let line = Arc::new(Line::default());
    ends(Arc::clone(&line), line)
}

/// Both ends with a line for each direction, as between two sides that write nothing of each other's.
pub(super) fn a_line_each_way() -> (LineEnd, LineEnd) {
    ends(Arc::default(), Arc::default())
}

fn ends(there: Arc<Line>, back: Arc<Line>) -> (LineEnd, LineEnd) {
    let end = |outward: &Arc<Line>, inward: &Arc<Line>, side| LineEnd {
        outward: Arc::clone(outward),
        inward: Arc::clone(inward),
        side,
        seen: 0,
        sent: 0,
    };
    (end(&there, &back, 0), end(&back, &there, 1))
}

impl End for LineEnd {
    #[inline]
    fn try_send(&mut self, tag: u64, _bytes: usize) -> Result<bool, Failure> {
        self.sent = tag << 1 | self.side;
        // Release: partner is the Acquire in `try_take`.
        self.outward.0.store(self.sent, Ordering::Release);
        Ok(true)
    }

    #[inline]
    fn try_take(&mut self) -> Result<Option<u64>, Failure> {
        // Acquire: partner is the Release in `try_send`.
        let found = self.inward.0.load(Ordering::Acquire);
        if found == self.seen || found & 1 == self.side || found == 0 {
            return Ok(None);
        }
        self.seen = found;
        Ok(Some(found >> 1))
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
}

/// Both ends.
pub(super) fn futex() -> (FutexEnd, FutexEnd) {
    let [there, back] = [Arc::<Bell>::default(), Arc::default()];
    let end = |outward: &Arc<Bell>, inward: &Arc<Bell>| FutexEnd {
        outward: Arc::clone(outward),
        inward: Arc::clone(inward),
        seen: 0,
    };
    (end(&there, &back), end(&back, &there))
}

impl End for FutexEnd {
    fn try_send(&mut self, tag: u64, _bytes: usize) -> Result<bool, Failure> {
        self.outward.tag.store(tag, Ordering::Relaxed);
        // Release: partner is the Acquire in `try_take`.
        self.outward.rung.fetch_add(1, Ordering::Release);
        // Not private: the bench stands for two processes.
        futex::wake(&self.outward.rung, futex::Flags::empty(), 1)
            .map_err(|error| Failure::new(format!("cannot wake: {error}")))?;
        Ok(true)
    }

    fn try_take(&mut self) -> Result<Option<u64>, Failure> {
        // Acquire: partner is the Release in `try_send`.
        let rung = self.inward.rung.load(Ordering::Acquire);
        if rung == self.seen {
            return Ok(None);
        }
        self.seen = rung;
        Ok(Some(self.inward.tag.load(Ordering::Relaxed)))
    }

    fn take_waiting(&mut self, limit: Duration) -> Result<Option<u64>, Failure> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(tag) = self.try_take()? {
                return Ok(Some(tag));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            let left = Timespec::try_from(left).ok();
            let word = &self.inward.rung;
            match futex::wait(word, futex::Flags::empty(), self.seen, left.as_ref()) {
                Ok(()) | Err(Errno::AGAIN | Errno::INTR | Errno::TIMEDOUT) => {}
                Err(error) => return Err(Failure::new(format!("cannot wait: {error}"))),
            }
        }
    }
}
