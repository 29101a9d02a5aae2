//! Time that a message has waited on its way, without a comparison of clocks. Never reads one.
//!
//! Clocks of two sites may differ by hours, so times of one are never compared with times of the other. A receiver
//! compares differences: a message that takes longer than the quickest of its source has waited for that long on the
//! way. The quickest is that of the last [`BASELINE_WINDOW_NS`] to twice that, so a clock that drifts is followed.

/// Time for which the quickest message stays the reference at least. Lower: a queue that stands for as long is taken
/// for the way's own time. Higher: clocks that drift by 100 millionths are a millisecond apart after ten seconds, and
/// old by as much are values taken for that are not.
pub const BASELINE_WINDOW_NS: u64 = 10_000_000_000;

/// The quickest way of a source's messages, of late.
#[derive(Clone, Copy, Debug)]
pub struct Baseline {
    window_began_ns: u64,
    quickest_ns: i64,
    quickest_before_ns: i64,
}

impl Baseline {
    /// Begins with the first message of a source.
    #[must_use]
    pub fn new(published_ns: u64, now_ns: u64) -> Self {
        let way_ns = way(published_ns, now_ns);
        Self {
            window_began_ns: now_ns,
            quickest_ns: way_ns,
            quickest_before_ns: way_ns,
        }
    }

    /// Time that a message has waited on its way, beyond the quickest.
    pub fn delay_ns(&mut self, published_ns: u64, now_ns: u64) -> u64 {
        let way_ns = way(published_ns, now_ns);
        if now_ns.wrapping_sub(self.window_began_ns) > BASELINE_WINDOW_NS {
            self.window_began_ns = now_ns;
            self.quickest_before_ns = self.quickest_ns;
            self.quickest_ns = way_ns;
        }
        self.quickest_ns = self.quickest_ns.min(way_ns);
        let quickest_ns = self.quickest_ns.min(self.quickest_before_ns);
        way_ns.wrapping_sub(quickest_ns).max(0).unsigned_abs()
    }
}

/// Difference of two clocks that have nothing to do with each other: only differences of it mean something.
fn way(published_ns: u64, now_ns: u64) -> i64 {
    now_ns.wrapping_sub(published_ns).cast_signed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_that_waited_is_told_whatever_the_clocks_say() {
        // The sender's clock is three hours ahead, or behind.
        for offset_ns in [
            10_800_000_000_000_u64,
            10_800_000_000_000_u64.wrapping_neg(),
        ] {
            let sent = |at_ns: u64| at_ns.wrapping_add(offset_ns);
            let mut baseline = Baseline::new(sent(1_000), 1_500);
            assert_eq!(baseline.delay_ns(sent(2_000), 2_400), 0);
            assert_eq!(baseline.delay_ns(sent(3_000), 900_003_400), 900_000_000);
            assert_eq!(baseline.delay_ns(sent(900_004_000), 900_004_401), 1);
        }
    }

    #[test]
    fn a_clock_that_drifts_is_followed() {
        let mut baseline = Baseline::new(0, 0);
        let mut now_ns = 0;
        let mut largest_ns = 0;
        for step in 1..600_u64 {
            now_ns = step * 100_000_000;
            // 100 millionths slower.
            let sent_ns = now_ns - now_ns / 10_000;
            largest_ns = largest_ns.max(baseline.delay_ns(sent_ns, now_ns));
        }
        assert!(now_ns > 59_000_000_000);
        // Two windows of it.
        assert!(largest_ns < 2_200_000, "{largest_ns}");
    }
}
