//! Errors and success of one model: the spread of its errors, whether its arrivals come, and whether they come when it
//! says.

use super::quantile::Quantile;
use super::{GAIN_ERROR_NS, Stamp};

/// Score of a model that was just found. Lower: the first losses end it. Higher: a wrong one lives for longer.
const SCORE_FIRST: i32 = 12;
/// Highest score, and the most that looking can have earned. Lower: a short disturbance ends a good model. Higher: a
/// sender that changed is awaited for longer at its old times.
const SCORE_MAX: i32 = 32;
/// Score below which waits do not look.
const SCORE_LOOK_MIN: i32 = 8;
/// Cost of an arrival that did not come: a model lives on while two of three come.
const SCORE_MISSED: i32 = 2;
/// Score of looking at the start, and after a pause.
const EARNED_FIRST: i32 = SCORE_MAX / 2;
/// Cost of a look in vain. Higher: the looks that find nothing while a sender has stopped end in a pause, and looking
/// goes on late when the sender does.
const EARNED_IN_VAIN: i32 = 1;
/// Cost of an arrival just after a look in vain, besides: looking goes on while three of four find something.
const EARNED_JUST_AFTER: i32 = 2;
/// Arrivals without looking after looks in vain, and after many of them.
const PAUSE_MIN: u32 = 256;
const PAUSE_MAX: u32 = 65_536;
/// Looks of a trial. Lower: jitter decides instead of the machine. Higher: looking that harms goes on for longer.
const TRIAL_LOOKS: u8 = 16;
/// Arrivals must be found this much earlier by looking than asleep. A wake-up takes several times as long everywhere.
const TRIAL_GAIN_NS_MIN: i64 = 1_000;
/// How long before the time known from sleeping a trial looks: longer than most wake-ups take. Lower: arrivals come
/// before a trial looks, and it never ends. Higher: a trial costs more.
const TRIAL_LEAD_NS: i64 = 120_000;
/// Added on both sides of the errors seen so far.
const GUARD_EARLY_NS: i64 = 2_000;
const GUARD_LATE_NS: i64 = 10_000;
/// Part of an error by which the model's time moves. Lower: one late message moves it far. Higher: drift is followed
/// slowly.
const MOVED_DIVISOR: i64 = 16;

/// Errors and success of one model.
#[derive(Clone, Copy, Debug)]
pub(super) struct Track {
    early: Quantile,
    late: Quantile,
    score: i32,
    earned: i32,
    /// Arrivals left until looking goes on.
    paused: u32,
    /// Arrivals of the next pause.
    pause: u32,
    /// Looks of a trial so far, and by how much their arrivals came later than those before them, which were slept for.
    trial: (u8, i64),
    /// Error of the last arrival, if it was slept for.
    asleep_ns: Option<i64>,
}

impl Track {
    /// A model whose errors lay between `early_ns` and `late_ns` so far.
    pub(super) const fn new(early_ns: i64, late_ns: i64) -> Self {
        Self {
            early: Quantile::new(10, early_ns),
            late: Quantile::new(999, late_ns),
            score: SCORE_FIRST,
            earned: EARNED_FIRST,
            paused: 0,
            pause: PAUSE_MIN,
            trial: (0, 0),
            asleep_ns: None,
        }
    }

    /// Takes the error of an arrival that came. Returns by how much the model's time moves.
    pub(super) fn came(&mut self, error_ns: i64, stamp: Stamp) -> i64 {
        self.score = (self.score + 1).min(SCORE_MAX);
        self.paused = self.paused.saturating_sub(1);
        match stamp {
            Stamp::Before => 0,
            Stamp::Asleep => {
                let moved_ns = self.correct(error_ns);
                self.asleep_ns = Some(error_ns - moved_ns);
                moved_ns
            }
            Stamp::Looking => {
                self.earn();
                self.correct(error_ns)
            }
            // The model's time is that of sleeping until the trial is over.
            Stamp::Trial => {
                self.early.add(error_ns);
                self.late.add(error_ns);
                0
            }
            // Perhaps the look itself held this arrival up: its time teaches nothing. A look that was cut short says
            // less about the model.
            Stamp::AfterLooking { was_whole } => {
                self.lose(if was_whole { EARNED_JUST_AFTER } else { 0 });
                0
            }
        }
    }

    /// The model's time has moved by `by_ns`, not because of an error.
    pub(super) fn shift(&mut self, by_ns: i64) {
        self.early.shift(-by_ns);
        self.late.shift(-by_ns);
    }

    /// Learns from an error: the part of it by which the model's time moves.
    fn correct(&mut self, error_ns: i64) -> i64 {
        let spread = self.spread_ns().max(5_000);
        let bounded = error_ns.clamp(-spread, spread);
        let moved = bounded / MOVED_DIVISOR;
        self.early.add(error_ns - moved);
        self.late.add(error_ns - moved);
        moved
    }

    /// A look found its arrival.
    fn earn(&mut self) {
        self.earned += 1;
        if self.earned >= SCORE_MAX {
            self.earned = SCORE_MAX;
            self.pause = PAUSE_MIN;
        }
    }

    /// Looked, and nothing came.
    pub(super) fn in_vain(&mut self) {
        self.lose(EARNED_IN_VAIN);
    }

    fn lose(&mut self, cost: i32) {
        self.earned -= cost;
        if self.earned <= 0 {
            self.pause();
        }
    }

    fn pause(&mut self) {
        self.paused = self.pause;
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        self.earned = EARNED_FIRST;
        self.trial = (0, 0);
    }

    /// A trial: an arrival was looked for before it was known whether looking pays. It is compared with the one before,
    /// which was slept for: over some arrivals more, the error of a period that was just found would exceed the gain.
    /// Returns the gain at the end of a successful trial; after a failed one, looking pauses.
    pub(super) fn tried(&mut self, error_ns: i64) -> Option<i64> {
        let later_ns = error_ns - self.asleep_ns.take()?;
        let (looks, sum_ns) = &mut self.trial;
        *looks += 1;
        // A stall of the machine says nothing about looking.
        *sum_ns += later_ns.clamp(-GAIN_ERROR_NS, GAIN_ERROR_NS);
        if *looks < TRIAL_LOOKS {
            return None;
        }
        let gain_ns = -*sum_ns / i64::from(TRIAL_LOOKS);
        if gain_ns < TRIAL_GAIN_NS_MIN {
            self.pause();
            return None;
        }
        Some(gain_ns)
    }

    /// An arrival that was due did not come.
    pub(super) fn missed(&mut self, count: i64) {
        self.score -= SCORE_MISSED * count.min(2) as i32;
    }

    /// Whether the model has failed.
    pub(super) const fn is_over(&self) -> bool {
        self.score <= 0
    }

    /// Whether arrivals come when the model says, so that looking for them pays.
    pub(super) const fn is_good(&self) -> bool {
        self.score >= SCORE_LOOK_MIN && self.paused == 0
    }

    /// First and last moment at which the arrival is looked for, relative to its expected time. `None` while looking
    /// does not pay. A trial looks for every other arrival.
    pub(super) fn window_ns(&self, is_trial: bool) -> Option<(i64, i64)> {
        let lead_ns = if is_trial {
            TRIAL_LEAD_NS
        } else {
            GUARD_EARLY_NS
        };
        let bounds = (
            self.early.value_ns() - lead_ns,
            self.late.value_ns() + GUARD_LATE_NS,
        );
        let is_next = !is_trial || self.asleep_ns.is_some();
        (is_next && self.is_good()).then_some(bounds)
    }

    /// Distance between the early and the late errors.
    pub(super) const fn spread_ns(&self) -> i64 {
        self.late.value_ns() - self.early.value_ns()
    }
}
