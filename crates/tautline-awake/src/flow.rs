//! A flow: the predictor of what arrives at one descriptor, and counters of its arrivals.

use std::fmt;
use std::time::Duration;

use tautline_proto::arrival::{Pattern, Predictor};
pub use tautline_proto::arrival::{Seen, Window};
use tautline_proto::time::Instant;

use crate::thread;

/// A wait shorter than this found its message there: below it lie system calls, above it sleeps.
const SLEPT_MIN: Duration = Duration::from_micros(4);

/// Wake-up assumed for the windows of a flow that is only watched.
const WAKING_USUAL: Duration = Duration::from_micros(60);

/// Predictor and counters of one descriptor, or of one set of descriptors.
#[derive(Clone, Debug)]
pub struct Flow {
    predictor: Predictor,
    counts: Counts,
    /// Arrivals in a window while no thread looks, and all of them since there were windows.
    within: (u64, u64),
    /// A wait for a set counted an arrival that no receive has taken yet.
    is_announced: bool,
}

/// Arrivals of a flow, by how they were found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Found by a thread that was awake.
    pub awake: u64,
    /// The kernel woke the thread.
    pub asleep: u64,
    /// There before the wait began.
    pub before: u64,
    /// Looks that found nothing.
    pub in_vain: u64,
    /// Time spent looking, in nanoseconds.
    pub looked_ns: u64,
}

impl Default for Flow {
    fn default() -> Self {
        Self::new()
    }
}

impl Flow {
    /// A flow of which nothing is known.
    pub const fn new() -> Self {
        Self {
            predictor: Predictor::new(),
            counts: Counts {
                awake: 0,
                asleep: 0,
                before: 0,
                in_vain: 0,
                looked_ns: 0,
            },
            within: (0, 0),
            is_announced: false,
        }
    }

    /// The program sent something over this flow.
    pub fn sent(&mut self, at: Instant) {
        self.predictor.sent(at);
    }

    /// Whether an arrival is expected for which looking pays.
    pub fn expects(&mut self, now: Instant) -> bool {
        self.expected(now, Duration::ZERO).is_some()
    }

    /// When to be awake for the next arrival, if looking for it pays.
    pub(crate) fn expected(&mut self, now: Instant, waking: Duration) -> Option<Window> {
        self.predictor.expected(now, waking)
    }

    /// The window of [`Self::expected`], for a thread that will look there.
    pub(crate) fn window(&mut self, now: Instant, waking: Duration) -> Option<Window> {
        self.predictor.window(now, waking)
    }

    /// An ordinary call that began then returns now: whether it could have been met awake is counted.
    pub fn watched(&mut self, began: Instant, now: Instant) {
        if let Some(window) = self.expected(began, WAKING_USUAL) {
            self.within.0 += u64::from((window.from..window.until).contains(&now));
            self.within.1 += 1;
        }
    }

    /// A wait for a set of descriptors found a message here, which was counted: poll(2) before recv(2).
    pub fn announce(&mut self) {
        self.is_announced = true;
    }

    /// Whether a message that was announced is still to be received.
    pub fn is_announced(&self) -> bool {
        self.is_announced
    }

    /// A receive has returned. Whether it took the message that was announced, which is counted already.
    pub fn takes_announced(&mut self) -> bool {
        std::mem::take(&mut self.is_announced)
    }

    /// An ordinary call that may have waited returned with a message.
    pub fn returned(&mut self, began: Instant, now: Instant) {
        let seen = match now.saturating_duration_since(began) < SLEPT_MIN {
            true => Seen::Before,
            false => Seen::Asleep,
        };
        self.arrived(now, seen);
    }

    /// A message came.
    pub fn arrived(&mut self, at: Instant, seen: Seen) {
        self.predictor.arrived(at, seen);
        match seen {
            Seen::Looking => self.counts.awake += 1,
            Seen::Asleep => self.counts.asleep += 1,
            Seen::Before => self.counts.before += 1,
        }
    }

    /// The thread looked from `began` to `ended`. How long that was.
    pub fn looked(&mut self, began: Instant, ended: Instant, found: bool) -> Duration {
        let time = ended.saturating_duration_since(began);
        thread::spend(began, ended);
        self.counts.looked_ns += time.as_nanos() as u64;
        if !found {
            self.counts.in_vain += 1;
            self.predictor.looked_in_vain(ended);
        }
        time
    }

    /// A wait ended without an arrival of this flow: the window that was open says nothing.
    pub fn interrupted(&mut self) {
        self.predictor.interrupted();
    }

    /// Arrivals so far, by how they were found.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Rhythm of the sender, as far as it is known.
    pub fn pattern(&self) -> Pattern {
        self.predictor.pattern()
    }

    /// Whether the sender has a rhythm.
    pub fn has_rhythm(&self) -> bool {
        self.predictor.has_rhythm()
    }

    /// All of this at once.
    pub fn figures(&self) -> Figures {
        Figures {
            pattern: self.predictor.pattern(),
            counts: self.counts,
            gain: self.predictor.gain(),
            could_be_met: self.within.0 * 100 / self.within.1.max(1),
        }
    }
}

/// A time in microseconds with one digit.
#[derive(Clone, Copy, Debug)]
pub struct Micros(pub Duration);

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tenths = (self.0.as_nanos() + 50) / 100;
        write!(f, "{}.{} us", tenths / 10, tenths % 10)
    }
}

/// Figures of a flow at some time, for a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figures {
    /// Rhythm of the sender.
    pub pattern: Pattern,
    /// Arrivals, by how they were found.
    pub counts: Counts,
    /// By how much looking finds arrivals earlier.
    pub gain: Option<Duration>,
    /// Share in per cent of the arrivals of ordinary calls that lay in a window.
    pub could_be_met: u64,
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pattern {
            Pattern::None => write!(f, "no rhythm")?,
            Pattern::Periodic { period, spread } => {
                write!(f, "every {}, spread {}", Micros(period), Micros(spread))?;
            }
            Pattern::Answers { delay, spread } => {
                write!(
                    f,
                    "answers after {}, spread {}",
                    Micros(delay),
                    Micros(spread)
                )?;
            }
        }
        let counts = self.counts;
        write!(
            f,
            "; {} met awake, {} woken by the kernel, {} there before",
            counts.awake, counts.asleep, counts.before
        )?;
        if let Some(gain) = self.gain {
            write!(f, "; {} earlier", Micros(gain))?;
        }
        write!(f, "; {} looks in vain", counts.in_vain)
    }
}

/// Rhythm and counters, for a report.
impl fmt::Display for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.figures().fmt(f)
    }
}
