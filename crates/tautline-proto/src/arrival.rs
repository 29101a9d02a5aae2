//! Prediction of arrivals: when the next message of a flow comes, learned from when the earlier ones came.
//!
//! A thread that sleeps until a message comes is late by its wake-up. A thread that knows when the message comes wakes
//! up shortly before, looks until the message is there, and is not late. [`Predictor`] finds out: it takes the stamps
//! of arrivals and of one's own sends, and answers with a [`Window`] in which looking pays, or with none.
//!
//! Three models compete. Up to [`RHYTHMS_MAX`] senders with a period each, whose phase and period are followed by a
//! phase-locked loop; and a peer that answers one's own sends after a usual delay. A model earns looks by arrivals that
//! come when it expects them, and loses them otherwise. A flow without rhythm gets no window.
//!
//! Looking can harm: a thread that looks can hold up the very thread that brings its message. So a flow begins with a
//! trial. A model's times are known from sleeping; arrivals that are looked for must be found earlier than that. If
//! they are not, looking pauses. A wrong prediction costs a wake-up and loses nothing.
//!
//! ```
//! use core::time::Duration;
//! use tautline_proto::arrival::{Predictor, Seen};
//! use tautline_proto::time::Instant;
//!
//! let mut predictor = Predictor::new();
//! let arrival = |k: u64| Instant::from_nanos(1_000_000 * k);
//! for k in 1..=30 {
//!     predictor.arrived(arrival(k), Seen::Asleep);
//! }
//! let now = arrival(30) + Duration::from_micros(10);
//! let window = predictor.window(now, Duration::from_micros(50)).unwrap();
//! assert!(window.from > now && window.from < arrival(31) && window.until > arrival(31));
//! ```
//!
//! Not here: clocks, waiting, and how much of a CPU may be spent ([`share`] keeps that account for the caller).

use core::time::Duration;

use crate::time::Instant;

mod answer;
pub mod quantile;
mod rhythm;
pub mod share;
mod track;

use answer::Answer;
use rhythm::{ARRIVALS_MAX, Rhythm};

/// Senders with a period that are followed in one flow. Lower: a socket that several devices send to has no rhythm.
/// Higher: each arrival is compared with more.
pub const RHYTHMS_MAX: usize = 3;
/// Shortest period. Lower: the wake-up takes longer than the sleep.
pub const PERIOD_NS_MIN: i64 = 100_000;
/// Longest period, and longest delay of an answer. Higher: learning takes minutes.
pub const PERIOD_NS_MAX: i64 = 250_000_000;
/// Arrivals closer than this belong to one burst; the first one counts. Lower: a frame of video has many arrivals.
/// Higher: senders of 10 kHz are one burst.
const BURST_NS: i64 = 40_000;
/// An arrival this soon after a look in vain may have been held up by the look. Lower: one that was is learned from.
/// Higher: arrivals of chance teach nothing.
const AFTER_NS: i64 = 200_000;
/// Arrivals between two searches for a rhythm. Lower: flows without one cost more. Higher: it is found later.
const SEARCH_EVERY: u8 = 4;
/// An arrival asleep corrects what looking gains by a thirty-second of its error, which counts up to this. Lower: a
/// machine whose wake-ups become slow is followed late. Higher: a stall is believed.
const GAIN_ERROR_NS: i64 = 50_000;
/// A search after which nothing was found doubles the distance to the next, up to this.
const SEARCH_PAUSE_MAX: u16 = 1_024;

/// How the stamp of an arrival came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// The kernel woke the thread: the stamp is late by the wake-up.
    Asleep,
    /// Found while looking.
    Looking,
    /// The message was there when the wait began: it came at an unknown time before the stamp.
    Before,
}

/// Meaning of a stamp to one model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stamp {
    Asleep,
    Looking,
    /// Looked for as a trial: it is not known yet whether that pays.
    Trial,
    /// The kernel woke the thread just after a look in vain.
    AfterLooking {
        /// The look was not cut short by what the thread may spend.
        was_whole: bool,
    },
    Before,
}

/// When to be awake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// When the timer of the sleep should go off, the wake-up allowed for. It may have passed.
    pub from: Instant,
    /// When it should come. It may have passed.
    pub expected: Instant,
    /// When looking ends, whatever came.
    pub until: Instant,
}

/// Kind of a flow, for a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// No rhythm was found.
    None,
    /// The sender has a period.
    Periodic {
        /// The period.
        period: Duration,
        /// How far arrivals scatter around it: between the 2nd and the 98th percentile.
        spread: Duration,
    },
    /// The peer answers after this delay.
    Answers {
        /// From the send to the answer.
        delay: Duration,
        /// How far the delays scatter.
        spread: Duration,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Rhythm(usize),
    Answer,
}

/// A model's next window, and the spread of its errors.
struct Bounds {
    from_ns: i64,
    expected_ns: i64,
    until_ns: i64,
    spread_ns: i64,
}

/// A window that was handed out: whose it is, and its end.
#[derive(Clone, Copy, Debug)]
struct Offer {
    source: Source,
    until_ns: i64,
    /// Not cut short by what the thread may spend.
    is_whole: bool,
}

/// Predictor of one flow: of the messages that arrive at one descriptor.
///
/// Nothing is allocated. Each call takes a bounded number of steps, below a microsecond; a search for a rhythm, at most
/// every fourth arrival while none is known, some microseconds.
#[derive(Clone, Debug)]
pub struct Predictor {
    rhythms: [Option<Rhythm>; RHYTHMS_MAX],
    answer: Answer,
    /// By how much looking finds arrivals earlier than sleeping, once a trial of one model has shown it. Then the times
    /// of all models are those of looking; before, they are those of sleeping.
    gain_ns: Option<i64>,
    /// Arrivals that no rhythm explains, oldest first.
    unexplained: [i64; ARRIVALS_MAX],
    unexplained_count: usize,
    search_in: u16,
    search_pause: u16,
    last_ns: i64,
    /// The window that the thread was told last.
    offer: Option<Offer>,
    /// The last one that ended in vain.
    vain: Option<Offer>,
}

impl Default for Predictor {
    fn default() -> Self {
        Self::new()
    }
}

impl Predictor {
    /// A flow of which nothing is known.
    pub const fn new() -> Self {
        Self {
            rhythms: [None; RHYTHMS_MAX],
            answer: Answer::new(),
            gain_ns: None,
            unexplained: [0; ARRIVALS_MAX],
            unexplained_count: 0,
            search_in: 0,
            search_pause: SEARCH_EVERY as u16,
            last_ns: i64::MIN / 2,
            offer: None,
            vain: None,
        }
    }

    /// The program sent something over this flow.
    #[inline]
    pub fn sent(&mut self, at: Instant) {
        let at_ns = nanos(at);
        self.settle(at_ns);
        self.answer.sent(at_ns);
    }

    /// A message came.
    pub fn arrived(&mut self, at: Instant, seen: Seen) {
        let at_ns = nanos(at);
        if seen == Seen::Asleep {
            self.settle(at_ns);
        }
        let offer = self.offer.take();
        let since_last_ns = at_ns - self.last_ns;
        self.last_ns = at_ns;
        let looked_for = match seen {
            Seen::Looking => offer,
            Seen::Asleep => self.vain.filter(|vain| at_ns - vain.until_ns < AFTER_NS),
            Seen::Before => None,
        };
        let stamp = |source| self.stamp(source, seen, looked_for);
        let stamps = core::array::from_fn(|index| stamp(Source::Rhythm(index)));
        let at_ns = match seen {
            Seen::Asleep => at_ns - self.gain_ns.unwrap_or(0),
            Seen::Looking | Seen::Before => at_ns,
        };
        let answer_error = self.answer.takes(at_ns, stamp(Source::Answer));
        let mut errors = [None; RHYTHMS_MAX];
        if since_last_ns >= BURST_NS {
            errors = self.rhythms_take(at_ns, stamps);
            // An answer may have a rhythm as well, and a sharper one: a server's requests come some time after its
            // replies.
            if errors == [None; RHYTHMS_MAX] && seen != Seen::Before {
                self.note(at_ns);
            }
        }
        match (self.gain_ns, looked_for) {
            (None, Some(offer)) => self.tried(offer.source, errors, answer_error),
            (Some(gain_ns), None) if seen == Seen::Asleep => {
                let error_ns = errors.into_iter().flatten().next().or(answer_error);
                let moved_ns = error_ns.unwrap_or(0).clamp(-GAIN_ERROR_NS, GAIN_ERROR_NS) / 32;
                self.gain_ns = Some((gain_ns + moved_ns).max(0));
            }
            _ => {}
        }
    }

    /// An arrival of a trial: its errors, by model, and whose window it was looked for in.
    fn tried(
        &mut self,
        source: Source,
        errors: [Option<i64>; RHYTHMS_MAX],
        answer_error: Option<i64>,
    ) {
        let gain_ns = match source {
            Source::Rhythm(index) => {
                let rhythm = self.rhythms[index].as_mut().zip(errors[index]);
                rhythm.and_then(|(rhythm, error_ns)| rhythm.track.tried(error_ns))
            }
            Source::Answer => answer_error.and_then(|error_ns| self.answer.track.tried(error_ns)),
        };
        if let Some(gain_ns) = gain_ns {
            self.gains(gain_ns);
        }
    }

    /// Looking finds arrivals earlier by so much: the times of all models become those of looking.
    fn gains(&mut self, gain_ns: i64) {
        self.gain_ns = Some(gain_ns);
        self.answer.shift(-gain_ns);
        for rhythm in self.rhythms.iter_mut().flatten() {
            rhythm.shift(-gain_ns);
        }
    }

    /// Errors of the rhythms to which an arrival belongs.
    fn rhythms_take(
        &mut self,
        at_ns: i64,
        stamps: [Stamp; RHYTHMS_MAX],
    ) -> [Option<i64>; RHYTHMS_MAX] {
        let mut errors = [None; RHYTHMS_MAX];
        for ((place, error), stamp) in self.rhythms.iter_mut().zip(&mut errors).zip(stamps) {
            let Some(rhythm) = place else { continue };
            *error = rhythm.takes(at_ns, stamp);
            if rhythm.track.is_over() {
                *place = None;
                self.search_pause = SEARCH_EVERY.into();
            }
        }
        errors
    }

    /// Meaning of an arrival's stamp to a model; `looked_for`: the window in which the thread looked for it.
    fn stamp(&self, source: Source, seen: Seen, looked_for: Option<Offer>) -> Stamp {
        match (seen, looked_for) {
            (Seen::Before, _) => Stamp::Before,
            (Seen::Looking, _) | (_, Some(_)) if self.gain_ns.is_none() => Stamp::Trial,
            (Seen::Looking, _) => Stamp::Looking,
            (Seen::Asleep, Some(offer)) if offer.source == source => Stamp::AfterLooking {
                was_whole: offer.is_whole,
            },
            (Seen::Asleep, _) => Stamp::Asleep,
        }
    }

    /// When to be awake for the next arrival, seen from `now`, when a wait begins. `waking` is how long this machine
    /// takes to wake a thread up.
    pub fn window(&mut self, now: Instant, waking: Duration) -> Option<Window> {
        self.settle(nanos(now));
        let (source, window) = self.best(now, waking)?;
        self.offer = Some(Offer {
            source,
            until_ns: nanos(window.until),
            is_whole: true,
        });
        Some(window)
    }

    /// Like [`Self::window`], for a caller that will not look.
    pub fn expected(&mut self, now: Instant, waking: Duration) -> Option<Window> {
        self.best(now, waking).map(|(_, window)| window)
    }

    fn best(&mut self, now: Instant, waking: Duration) -> Option<(Source, Window)> {
        let now_ns = nanos(now);
        let waking_ns = waking.as_nanos().min(1_000_000) as i64;
        let mut best: Option<(Source, Bounds)> = None;
        for source in (0..RHYTHMS_MAX).map(Source::Rhythm).chain([Source::Answer]) {
            let Some(mut bounds) = self.window_of(source, now_ns) else {
                continue;
            };
            bounds.from_ns -= waking_ns;
            let is_better = best.as_ref().is_none_or(|(_, other)| {
                match bounds.from_ns < other.until_ns && other.from_ns < bounds.until_ns {
                    // Both expect the same arrival: the more precise one knows better.
                    true => bounds.spread_ns < other.spread_ns,
                    false => bounds.from_ns < other.from_ns,
                }
            });
            if is_better {
                best = Some((source, bounds));
            }
        }
        let (source, bounds) = best?;
        Some((
            source,
            Window {
                from: instant(bounds.from_ns.max(now_ns)),
                expected: instant(bounds.expected_ns),
                until: instant(bounds.until_ns),
            },
        ))
    }

    /// A model's next window.
    fn window_of(&mut self, source: Source, now_ns: i64) -> Option<Bounds> {
        let (next_ns, again_ns, track) = match source {
            Source::Answer if self.are_requests() => return None,
            Source::Answer => (self.answer.next_ns()?, None, &self.answer.track),
            Source::Rhythm(index) => {
                let rhythm = self.rhythms[index].as_mut()?;
                rhythm.advance(now_ns);
                (rhythm.next_ns(), Some(rhythm.period_ns()), &rhythm.track)
            }
        };
        let (early, late) = track.window_ns(self.gain_ns.is_none())?;
        let passed = next_ns + late <= now_ns;
        let next_ns = match (passed, again_ns) {
            (false, _) => next_ns,
            (true, Some(period_ns)) => next_ns + period_ns,
            (true, None) => return None,
        };
        Some(Bounds {
            from_ns: next_ns + early,
            expected_ns: next_ns,
            until_ns: next_ns + late,
            spread_ns: track.spread_ns(),
        })
    }

    /// The thread has looked until `at`, and found nothing. That may be before the end of the window: its share or the
    /// CPU's is spent, or it was moved to another CPU.
    pub fn looked_in_vain(&mut self, at: Instant) {
        let at_ns = nanos(at);
        if let Some(offer) = self.offer.as_mut().filter(|offer| offer.until_ns > at_ns) {
            offer.until_ns = at_ns;
            offer.is_whole = false;
        }
        self.settle(at_ns);
    }

    /// The wait for an arrival ended early, for another reason: the open window teaches nothing.
    pub fn interrupted(&mut self) {
        self.offer = None;
    }

    /// A window that ended without any arrival was a look in vain. A rhythm counts what does not come by itself.
    fn settle(&mut self, now_ns: i64) {
        if let Some(offer) = self.offer.take_if(|offer| offer.until_ns <= now_ns) {
            self.vain = Some(offer);
            match offer.source {
                Source::Rhythm(index) => {
                    if let Some(rhythm) = &mut self.rhythms[index] {
                        rhythm.track.in_vain();
                    }
                }
                Source::Answer => {
                    self.answer.track.in_vain();
                    self.answer.track.missed(1);
                }
            }
        }
    }

    /// Keeps an arrival that no model explains, and searches for a rhythm now and then.
    fn note(&mut self, at_ns: i64) {
        if self.unexplained_count == ARRIVALS_MAX {
            self.unexplained.copy_within(1.., 0);
            self.unexplained_count -= 1;
        }
        self.unexplained[self.unexplained_count] = at_ns;
        self.unexplained_count += 1;
        self.search_in = self.search_in.saturating_sub(1);
        if self.search_in == 0 && self.unexplained_count >= 3 * ARRIVALS_MAX / 4 {
            self.search();
        }
    }

    fn search(&mut self) {
        let found = Rhythm::find(&self.unexplained[..self.unexplained_count]);
        let place = self.rhythms.iter().position(Option::is_none);
        let (Some(rhythm), Some(place)) = (found, place) else {
            self.search_in = self.search_pause;
            self.search_pause = (self.search_pause * 2).min(SEARCH_PAUSE_MAX);
            return;
        };
        self.search_pause = SEARCH_EVERY.into();
        self.search_in = SEARCH_EVERY.into();
        let mut kept = 0;
        for index in 0..self.unexplained_count {
            let at = self.unexplained[index];
            if !rhythm.explains(at) {
                self.unexplained[kept] = at;
                kept += 1;
            }
        }
        self.unexplained_count = kept;
        self.rhythms[place] = Some(rhythm);
    }

    /// Whether a rhythm is followed.
    pub fn has_rhythm(&self) -> bool {
        self.rhythms.iter().any(Option::is_some)
    }

    /// The best model, for a report.
    pub fn pattern(&self) -> Pattern {
        let rhythm = self
            .rhythms
            .iter()
            .flatten()
            .filter(|rhythm| rhythm.track.is_good())
            .min_by_key(|rhythm| rhythm.track.spread_ns());
        let is_answered = self.answer.next_is_known() && !self.are_requests();
        let answer = is_answered.then_some(&self.answer);
        match (rhythm, answer) {
            (rhythm, Some(answer))
                if rhythm
                    .is_none_or(|rhythm| answer.track.spread_ns() < rhythm.track.spread_ns()) =>
            {
                Pattern::Answers {
                    delay: duration(answer.delay_ns()),
                    spread: duration(answer.track.spread_ns()),
                }
            }
            (Some(rhythm), _) => Pattern::Periodic {
                period: duration(rhythm.period_ns()),
                spread: duration(rhythm.track.spread_ns()),
            },
            (None, _) => Pattern::None,
        }
    }

    /// By how much arrivals are found earlier by looking than asleep, where that is known.
    pub fn gain(&self) -> Option<Duration> {
        self.gain_ns.map(duration)
    }

    /// Whether arrivals come later after a send than the next one of a rhythm: then they are requests, and the times of
    /// one's own replies only blur them.
    fn are_requests(&self) -> bool {
        let mut rhythms = self.rhythms.iter().flatten();
        rhythms
            .any(|rhythm| rhythm.track.is_good() && 2 * self.answer.delay_ns() > rhythm.period_ns())
    }
}

/// Times up to four years after the clock's zero, so that no sum of them overflows.
fn nanos(at: Instant) -> i64 {
    at.as_nanos().min(1 << 57) as i64
}

fn instant(ns: i64) -> Instant {
    Instant::from_nanos(ns.max(0) as u64)
}

fn duration(ns: i64) -> Duration {
    Duration::from_nanos(ns.max(0) as u64)
}

#[cfg(test)]
mod tests;
