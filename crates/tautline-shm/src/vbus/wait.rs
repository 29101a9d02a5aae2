//! How a consumer sleeps without missing a message, and is woken no more often than needed.
//!
//! The consumer numbers its sleeps. Before one it writes number and wake mode into its own memory, makes a full
//! barrier, remembers each producer's kick count, and looks for messages once more. A producer publishes, makes a full
//! barrier, and checks whether the consumer sleeps: one of the two sees the other. A producer that sees a sleep it has
//! not kicked yet changes its kick count and wakes. The consumer sleeps only while the counts are as it remembers them,
//! which the kernel checks (`futex_waitv`), so a kick that comes in between is not lost either.

use super::layout::{KickLine, WaitLine};
use crate::sync::Ordering::{Acquire, Relaxed, Release, SeqCst};
use crate::sync::fence;

/// Lowest bits of `waiting`: how to wake. The rest is the number of the sleep.
pub const WAKE_MODE: u64 = 3;

/// Way to wake a sleeping consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeMode {
    /// `FUTEX_WAKE` on the producer's own kick word.
    Futex,
    /// By writing to the event descriptor that the consumer handed over.
    Descriptor,
}

impl WakeMode {
    const fn number(self) -> u64 {
        match self {
            Self::Futex => 1,
            Self::Descriptor => 2,
        }
    }
}

/// The consumer's sleeps.
#[derive(Debug, Default)]
pub struct Sleeper {
    count: u64,
}

impl Sleeper {
    /// A consumer that has never slept.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Announces a sleep. After this, read each producer's [`kicks`], look for messages once more,
    /// and sleep only if there are none and while the counts are the same.
    pub fn arm(&mut self, own: &WaitLine, wake_mode: WakeMode) {
        self.count = self.count.wrapping_add(1);
        let word = self.count << 2 | wake_mode.number();
        own.waiting.store(word, Relaxed);
        // Partner: the fence in `Kicker::wanted`.
        fence(SeqCst);
    }

    /// It is awake. A kick that is already on its way is harmless.
    pub fn disarm(&self, own: &WaitLine) {
        own.waiting.store(self.count << 2, Relaxed);
    }
}

/// How often this producer has kicked.
#[inline]
#[must_use]
pub fn kicks(producer: &KickLine) -> u32 {
    // Acquire: partner is the Release in `Kicker::wanted`; a consumer that sees a kick sees the message that it
    // was for.
    producer.kick.load(Acquire)
}

/// Sleeps that a producer has kicked already.
#[derive(Debug, Default)]
pub struct Kicker {
    kicked: u64,
}

impl Kicker {
    /// A producer that has never kicked.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// After publishing, once for all that was published: how the consumer is to be woken, if it
    /// sleeps and has not been kicked for this sleep. A full barrier.
    #[inline]
    pub fn wanted(&mut self, own: &KickLine, consumer: &WaitLine) -> Option<WakeMode> {
        // Partner: the fence in `Sleeper::arm`.
        fence(SeqCst);
        let word = consumer.waiting.load(Relaxed);
        if word & WAKE_MODE == 0 {
            return None;
        }
        self.kick(own, word)
    }

    /// One of many consumers, after [`barrier`]: how it is to be woken, if it sleeps and has not been kicked for this
    /// sleep. Then comes [`kick_all`], once for all of them.
    #[inline]
    pub fn wanted_by_one(&mut self, consumer: &WaitLine) -> Option<WakeMode> {
        let word = consumer.waiting.load(Relaxed);
        if word & WAKE_MODE == 0 || word == self.kicked {
            return None;
        }
        self.kicked = word;
        Some(mode_of(word))
    }

    #[cold]
    fn kick(&mut self, own: &KickLine, word: u64) -> Option<WakeMode> {
        if word == self.kicked {
            return None;
        }
        self.kicked = word;
        kick_all(own);
        Some(mode_of(word))
    }
}

/// Barrier between publishing for many consumers and [`Kicker::wanted_by_one`] of each. A list of them that may grow is
/// read after this, too: a consumer that was added before it slept is seen.
#[inline]
pub fn barrier() {
    // Partner: the fence in `Sleeper::arm`.
    fence(SeqCst);
}

/// Counts a kick, before anybody is woken.
pub fn kick_all(own: &KickLine) {
    let count = own.kick.load(Relaxed);
    // Release: partner is the Acquire in `kicks`.
    own.kick.store(count.wrapping_add(1), Release);
}

/// Wake mode in the word of a consumer that sleeps.
fn mode_of(word: u64) -> WakeMode {
    match word & WAKE_MODE {
        2 => WakeMode::Descriptor,
        // A wake mode that there is not: the harmless one.
        _ => WakeMode::Futex,
    }
}
