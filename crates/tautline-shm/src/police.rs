//! Policing: how many frames a port takes in a time. A token bucket in one word, so that several
//! CPUs may deliver at once without a lock, and a frame too many costs as little as can be.
//!
//! The word is the moment until which all admitted frames are paid for (the "theoretical arrival
//! time" of the generic cell rate algorithm, ITU-T I.371). Each admitted frame moves it by the
//! interval; a frame that finds it more than the tolerance ahead of its own arrival is dropped. So a
//! burst of `tolerance / interval + 1` frames passes at once, and after it one in each interval.
//!
//! Progress and exactness: admission is one compare-and-swap, so never more than rate and burst allow are admitted,
//! whatever the number of CPUs. A CPU that loses the swap [`CLAIM_ATTEMPTS`] times in a row drops its frame as policed:
//! at least as many others were admitted meanwhile, so at most one frame in each nine that meet within nanoseconds is
//! dropped although there was a token. Dropping is one load and one addition.
//!
//! Times are compared by their difference, so neither a wrapped clock nor arrivals out of order nor
//! a word that another process overwrote do worse than to admit a burst or to drop until it is paid.

use crate::layout::Control;
use crate::queue::CLAIM_ATTEMPTS;
use crate::sync::Ordering::Relaxed;

/// Shortest interval, in nanoseconds: ten million frames a second. Lower: the rounding of a rate to
/// whole nanoseconds would be felt.
pub const INTERVAL_NS_MIN: u64 = 100;
/// Longest interval, in nanoseconds: an hour. Higher: interval times burst would no longer be half
/// of what 64 bits hold.
pub const INTERVAL_NS_MAX: u64 = 3_600_000_000_000;
/// Largest burst. Higher: as above, and a burst that no queue holds is none.
pub const BURST_MAX: u32 = 1_000_000;

const _: () = assert!(INTERVAL_NS_MAX * (BURST_MAX as u64 + 1) < i64::MAX as u64);

/// Admission limits of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    interval_ns: u64,
    tolerance_ns: u64,
}

impl Bucket {
    /// One frame in each interval, and `burst` (from 1) at once after a pause. `None` beyond the limits above.
    #[must_use]
    pub const fn new(interval_ns: u64, burst: u32) -> Option<Self> {
        if interval_ns < INTERVAL_NS_MIN
            || interval_ns > INTERVAL_NS_MAX
            || burst == 0
            || burst > BURST_MAX
        {
            return None;
        }
        Some(Self {
            interval_ns,
            tolerance_ns: interval_ns * (burst as u64 - 1),
        })
    }

    /// New value of the word after a frame that arrives at `now_ns`; `None`: the frame is one too many.
    #[inline]
    #[must_use]
    pub const fn admit(self, paid_ns: u64, now_ns: u64) -> Option<u64> {
        let ahead_ns = paid_ns.wrapping_sub(now_ns).cast_signed();
        if ahead_ns > self.tolerance_ns.cast_signed() {
            return None;
        }
        let from = if ahead_ns > 0 { paid_ns } else { now_ns };
        Some(from.wrapping_add(self.interval_ns))
    }
}

/// Sets what the port may take; `None` takes everything. By the port's process, best before any
/// producer sees the port: frames that arrive meanwhile are judged by either rule.
pub fn set(control: &Control, bucket: Option<Bucket>) {
    let bucket = bucket.unwrap_or(Bucket {
        interval_ns: 0,
        tolerance_ns: 0,
    });
    let identity = &control.identity;
    identity
        .police_tolerance_ns
        .store(bucket.tolerance_ns, Relaxed);
    identity
        .police_interval_ns
        .store(bucket.interval_ns, Relaxed);
}

/// Limits of the port: interval and burst; `None`: everything is admitted. For observers.
#[must_use]
pub fn limits(control: &Control) -> Option<(u64, u32)> {
    let interval_ns = control.identity.police_interval_ns.load(Relaxed);
    let tolerance_ns = control.identity.police_tolerance_ns.load(Relaxed);
    let burst = tolerance_ns.checked_div(interval_ns)?.saturating_add(1);
    Some((interval_ns, u32::try_from(burst).unwrap_or(u32::MAX)))
}

/// Producer: whether a frame that arrived at `now_ns` is one too many; then it has been counted.
#[inline]
pub fn policed(control: &Control, now_ns: u64) -> bool {
    let bucket = Bucket {
        interval_ns: control.identity.police_interval_ns.load(Relaxed),
        tolerance_ns: control.identity.police_tolerance_ns.load(Relaxed),
    };
    if bucket.interval_ns == 0 {
        return false;
    }
    let word = &control.police.paid_ns;
    let mut paid_ns = word.load(Relaxed);
    for _ in 0..CLAIM_ATTEMPTS {
        let Some(next_ns) = bucket.admit(paid_ns, now_ns) else {
            break;
        };
        // Relaxed: the word announces nothing but itself.
        match word.compare_exchange(paid_ns, next_ns, Relaxed, Relaxed) {
            Ok(_) => return false,
            Err(seen_ns) => paid_ns = seen_ns,
        }
    }
    control.police.policed.fetch_add(1, Relaxed);
    true
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Which of these arrivals are admitted.
    fn admitted(bucket: Bucket, mut paid_ns: u64, arrivals: &[u64]) -> Vec<bool> {
        let admit = |now_ns: &u64| match bucket.admit(paid_ns, *now_ns) {
            Some(next_ns) => {
                paid_ns = next_ns;
                true
            }
            None => false,
        };
        arrivals.iter().map(admit).collect()
    }

    #[test]
    fn a_burst_passes_then_one_an_interval() {
        let bucket = Bucket::new(1_000, 3).unwrap();
        let arrivals = [
            5_000, 5_000, 5_000, 5_000, 5_999, 6_000, 6_000, 7_500, 8_000, 8_000,
        ];
        let expected = [
            true, true, true, false, false, true, false, true, true, false,
        ];
        assert_eq!(admitted(bucket, 0, &arrivals), expected);
        let strict = Bucket::new(1_000, 1).unwrap();
        let arrivals = [0, 999, 1_000, 2_500, 3_499, 3_500];
        let expected = [true, false, true, true, false, true];
        assert_eq!(admitted(strict, 0, &arrivals), expected);
    }

    #[test]
    fn no_more_than_rate_and_burst_in_any_span() {
        let bucket = Bucket::new(700, 5).unwrap();
        let arrivals: Vec<u64> = (0..20_000u64)
            .map(|step| step * step % 311 + step * 37)
            .collect();
        let mut sorted = arrivals;
        sorted.sort_unstable();
        let kept = admitted(bucket, 0, &sorted);
        let kept: Vec<u64> = sorted
            .into_iter()
            .zip(kept)
            .filter(|(_, kept)| *kept)
            .map(|(at, _)| at)
            .collect();
        assert!(kept.len() > 900);
        for first in 0..kept.len() {
            for last in first..kept.len().min(first + 40) {
                let span_ns = kept[last] - kept[first];
                assert!(
                    (last - first + 1) as u64 <= 5 + span_ns / 700 + 1,
                    "{first} to {last}"
                );
            }
        }
    }

    #[test]
    fn clocks_may_wrap_and_go_back() {
        let bucket = Bucket::new(1_000, 2).unwrap();
        let near = u64::MAX - 500;
        let arrivals = [near, near, near, 499, 400, 1_499];
        assert_eq!(
            admitted(bucket, near - 10_000, &arrivals),
            [true, true, false, true, false, true]
        );
    }

    #[test]
    fn a_scribbled_word_ends_no_worse_than_it_says() {
        let bucket = Bucket::new(1_000, 2).unwrap();
        assert!(bucket.admit(u64::MAX, 7).is_some(), "far behind is paid");
        assert!(bucket.admit(1 << 62, 7).is_none(), "far ahead is owed");
        let widest = Bucket::new(INTERVAL_NS_MAX, BURST_MAX).unwrap();
        let mut paid_ns = 0;
        for _ in 0..BURST_MAX {
            paid_ns = widest.admit(paid_ns, 1).unwrap();
        }
        assert_eq!(widest.admit(paid_ns, 1), None);
    }

    #[test]
    fn limits_are_kept() {
        assert_eq!(Bucket::new(99, 1), None);
        assert_eq!(Bucket::new(INTERVAL_NS_MAX + 1, 1), None);
        assert_eq!(Bucket::new(100, 0), None);
        assert_eq!(Bucket::new(100, BURST_MAX + 1), None);
        assert!(Bucket::new(100, 1).is_some());
    }
}
