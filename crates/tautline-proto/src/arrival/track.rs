//! Errors and success of one model: the spread of its errors, whether its arrivals come, and whether looking for them
//! pays.

use super::Stamp;
use super::quantile::Quantile;

/// Score of a model that was just found. Lower: the first losses end it. Higher: a wrong one lives for longer.
const SCORE_FIRST: i32 = 12;
/// Highest score, and the most that looking can have earned. Lower: a short disturbance ends a good model. Higher: a
/// sender that changed is awaited for longer at its old times.
const SCORE_MAX: i32 = 32;
/// Score below which nobody looks.
const SCORE_LOOK_MIN: i32 = 8;
/// Cost of an arrival that did not come: a model lives on while two of three come.
const SCORE_MISSED: i32 = 2;
/// Cost of a look in vain: looking goes on while three of four find something.
const EARNED_IN_VAIN: i32 = 3;
/// Arrivals of a trial. Lower: jitter decides instead of the machine. Higher: looking that harms goes on for longer.
const TRIAL_LOOKS: u8 = 16;
/// Arrivals must be found this much earlier by looking than asleep. A wake-up takes several times as long everywhere.
const TRIAL_GAIN_NS_MIN: i64 = 1_000;
/// How long before the time known from sleeping a trial looks: longer than most wake-ups take. Lower: arrivals come
/// before a trial looks, and it never ends. Higher: a trial costs more.
const TRIAL_LEAD_NS: i64 = 120_000;
/// Arrivals without looking after a first trial that failed, and after many.
const PAUSE_MIN: u32 = 256;
const PAUSE_MAX: u32 = 65_536;
/// Added on both sides of the errors seen so far.
const GUARD_EARLY_NS: i64 = 2_000;
const GUARD_LATE_NS: i64 = 10_000;

#[derive(Clone, Copy, Debug)]
enum Looking {
    /// Looking did not pay; arrivals left until the next trial.
    Paused { arrivals: u32 },
    /// Errors of the first arrivals that were looked for. The model's times are still those of sleeping.
    Trial { looks: u8, sum_ns: i64 },
    /// Found earlier by looking, by this much. The model's times are those of looking.
    Pays { gain_ns: i64 },
}

/// Errors and success of one model.
#[derive(Clone, Copy, Debug)]
pub(super) struct Track {
    early: Quantile,
    late: Quantile,
    score: i32,
    earned: i32,
    pause: u32,
    looking: Looking,
}

impl Track {
    /// A model whose errors lay between `early_ns` and `late_ns` so far.
    pub(super) const fn new(early_ns: i64, late_ns: i64) -> Self {
        Self {
            early: Quantile::new(10, early_ns),
            late: Quantile::new(990, late_ns),
            score: SCORE_FIRST,
            earned: SCORE_MAX / 2,
            pause: PAUSE_MIN,
            looking: Looking::Trial {
                looks: 0,
                sum_ns: 0,
            },
        }
    }

    /// Needs no trial: its times are those of looking already, which another model of the flow has tried.
    pub(super) const fn trust(&mut self, gain_ns: i64) {
        self.looking = Looking::Pays { gain_ns };
    }

    /// Takes the error of an arrival that came. Returns by how much the model's time moves.
    pub(super) fn came(&mut self, error_ns: i64, stamp: Stamp) -> i64 {
        self.score = (self.score + 1).min(SCORE_MAX);
        match (self.looking, stamp) {
            (_, Stamp::Before) => 0,
            (Looking::Paused { arrivals }, _) => {
                self.looking = match arrivals.checked_sub(1) {
                    Some(arrivals) => Looking::Paused { arrivals },
                    None => Looking::Trial {
                        looks: 0,
                        sum_ns: 0,
                    },
                };
                self.correct(error_ns, 8)
            }
            (Looking::Trial { .. }, Stamp::Asleep) => self.correct(error_ns, 8),
            (Looking::Trial { looks, sum_ns }, Stamp::Looking | Stamp::AfterLooking) => {
                self.tried(looks + 1, sum_ns + error_ns, error_ns)
            }
            (Looking::Pays { .. }, Stamp::Looking) => {
                self.earned = (self.earned + 1).min(SCORE_MAX);
                self.correct(error_ns, 16)
            }
            (Looking::Pays { gain_ns }, Stamp::Asleep) => self.correct(error_ns - gain_ns, 16),
            // Perhaps the look itself held this arrival up: its time teaches nothing.
            (Looking::Pays { .. }, Stamp::AfterLooking) => 0,
        }
    }

    /// An arrival of a trial that was looked for.
    fn tried(&mut self, looks: u8, sum_ns: i64, error_ns: i64) -> i64 {
        self.early.add(error_ns);
        self.late.add(error_ns);
        if looks < TRIAL_LOOKS {
            self.looking = Looking::Trial { looks, sum_ns };
            return 0;
        }
        let mean_ns = sum_ns / i64::from(TRIAL_LOOKS);
        if mean_ns > -TRIAL_GAIN_NS_MIN {
            self.pause();
            return 0;
        }
        self.earned = SCORE_MAX / 2;
        self.looking = Looking::Pays { gain_ns: -mean_ns };
        self.early.shift(-mean_ns);
        self.late.shift(-mean_ns);
        mean_ns
    }

    /// Learns from an error: the part of it by which the model's time moves.
    fn correct(&mut self, error_ns: i64, divisor: i64) -> i64 {
        let spread = self.spread_ns().max(5_000);
        let bounded = error_ns.clamp(-spread, spread);
        let moved = bounded / divisor;
        self.early.add(error_ns - moved);
        self.late.add(error_ns - moved);
        moved
    }

    /// Looked, and nothing came. A look that was cut short says less about the model.
    pub(super) fn in_vain(&mut self, is_whole: bool) {
        self.earned -= if is_whole { EARNED_IN_VAIN } else { 1 };
        if self.earned <= 0 {
            self.pause();
        }
    }

    fn pause(&mut self) {
        // The times of looking go on as those of sleeping: a gain later.
        self.looking = Looking::Paused {
            arrivals: self.pause,
        };
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        self.earned = SCORE_MAX / 2;
    }

    /// An arrival that was due did not come.
    pub(super) fn missed(&mut self, count: i64) {
        self.score -= SCORE_MISSED * count.min(2) as i32;
    }

    /// Whether the model has failed.
    pub(super) const fn is_over(&self) -> bool {
        self.score <= 0
    }

    /// First and last moment at which the arrival is looked for, relative to its expected time. `None` while looking
    /// does not pay.
    pub(super) fn window_ns(&self) -> Option<(i64, i64)> {
        if self.score < SCORE_LOOK_MIN {
            return None;
        }
        let lead_ns = match self.looking {
            Looking::Paused { .. } => return None,
            Looking::Trial { .. } => TRIAL_LEAD_NS,
            Looking::Pays { .. } => GUARD_EARLY_NS,
        };
        let early = self.early.value_ns() - lead_ns;
        Some((early, self.late.value_ns() + GUARD_LATE_NS))
    }

    /// Distance between the early and the late errors.
    pub(super) const fn spread_ns(&self) -> i64 {
        self.late.value_ns() - self.early.value_ns()
    }

    /// By how much looking finds arrivals earlier than sleeping, if it pays.
    pub(super) const fn gain_ns(&self) -> Option<i64> {
        match self.looking {
            Looking::Pays { gain_ns } => Some(gain_ns),
            _ => None,
        }
    }
}
