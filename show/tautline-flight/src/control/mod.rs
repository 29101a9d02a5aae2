//! The flight controller: three loops that speak by messages alone.
//!
//! | loop | times a second | reads | writes |
//! |---|---|---|---|
//! | [`RateLoop`] | 1,000 | inertial units, [`RateTarget`] | [`Motors`], [`Turned`] |
//! | [`AttitudeLoop`] | 500 | [`Turned`], [`AttitudeTarget`] | [`RateTarget`], [`Attitude`] |
//! | [`Navigator`] | 100 | [`Sensors`], [`Attitude`], [`Companion`], [`Mission`], [`Sighting`] | [`AttitudeTarget`], [`Status`] |
//!
//! Each notices by the messages' counts when another one has fallen silent, and does the best that it can alone.
//!
//! [`RateTarget`]: crate::message::RateTarget
//! [`Motors`]: crate::message::Motors
//! [`Turned`]: crate::message::Turned
//! [`AttitudeTarget`]: crate::message::AttitudeTarget
//! [`Attitude`]: crate::message::Attitude
//! [`Sensors`]: crate::message::Sensors
//! [`Companion`]: crate::message::Companion
//! [`Mission`]: crate::message::Mission
//! [`Sighting`]: crate::scenery::Sighting
//! [`Status`]: crate::message::Status

mod attitude;
mod landmark;
mod navigator;
mod place;
mod rate;
mod track;

pub use attitude::AttitudeLoop;
pub use navigator::{Navigator, Seen, Tuning};
pub use rate::RateLoop;

/// Time since a counted value was new.
#[derive(Clone, Copy, Debug, Default)]
struct Freshness {
    count: u32,
    age: f64,
}

impl Freshness {
    /// Looks at the count after so many seconds; returns whether there is a new value.
    fn look(&mut self, count: u32, seconds: f64) -> bool {
        let is_new = count != self.count;
        self.count = count;
        self.age = if is_new { 0.0 } else { self.age + seconds };
        is_new
    }

    /// Seconds since there was a new value.
    fn age(&self) -> f64 {
        self.age
    }

    /// Whether there has ever been one.
    fn has_spoken(&self) -> bool {
        self.count > 0
    }
}
