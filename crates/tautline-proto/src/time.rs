//! Time as the protocol core sees it: a number of nanoseconds on a clock that the caller reads.
//!
//! Nothing here reads a clock. On Linux the caller passes `CLOCK_MONOTONIC`, in the simulation the
//! virtual clock; the core only compares and subtracts, so it works the same on both.

use core::ops::Add;
use core::time::Duration;

/// A moment on the caller's clock, in nanoseconds since that clock's own zero.
///
/// 64 bits of nanoseconds last 584 years. Instants of different clocks must not be compared; the
/// type cannot tell them apart.
///
/// ```
/// use core::time::Duration;
/// use tautline_proto::time::Instant;
///
/// let start = Instant::from_nanos(1_000);
/// let end = start + Duration::from_micros(3);
/// assert_eq!(end.as_nanos(), 4_000);
/// assert_eq!(end.saturating_duration_since(start), Duration::from_micros(3));
/// assert_eq!(start.saturating_duration_since(end), Duration::ZERO);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    /// The clock's zero.
    pub const ZERO: Self = Self(0);

    /// The last instant that can be expressed; a deadline that never comes.
    pub const FAR_FUTURE: Self = Self(u64::MAX);

    /// The instant `nanos` nanoseconds after the clock's zero.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the clock's zero.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The time from `earlier` to `self`, zero if `earlier` is later.
    ///
    /// Arrival stamps taken on several CPUs can run backwards by a little; zero is then the honest age.
    pub const fn saturating_duration_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// `self + duration`, or `None` past [`Instant::FAR_FUTURE`].
    pub fn checked_add(self, duration: Duration) -> Option<Self> {
        let nanos = u64::try_from(duration.as_nanos()).ok()?;
        self.0.checked_add(nanos).map(Self)
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    /// Saturates at [`Instant::FAR_FUTURE`]: `now + Duration::MAX` is a deadline that never comes, not a panic.
    fn add(self, duration: Duration) -> Self {
        self.checked_add(duration).unwrap_or(Self::FAR_FUTURE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addition_saturates() {
        let late = Instant::from_nanos(u64::MAX - 1);
        assert_eq!(late + Duration::from_nanos(1), Instant::FAR_FUTURE);
        assert_eq!(late + Duration::from_nanos(2), Instant::FAR_FUTURE);
        assert_eq!(Instant::ZERO + Duration::MAX, Instant::FAR_FUTURE);
        assert_eq!(late.checked_add(Duration::from_nanos(2)), None);
        assert_eq!(Instant::ZERO.checked_add(Duration::MAX), None);
    }

    #[test]
    fn order_is_that_of_the_clock() {
        assert!(Instant::from_nanos(1) < Instant::from_nanos(2));
        assert_eq!(Instant::default(), Instant::ZERO);
    }
}
