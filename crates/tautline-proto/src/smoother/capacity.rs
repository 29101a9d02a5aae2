//! Capacity of a switch port as its receiver believes it, corrected from delay.
//!
//! A capacity that is configured too high fills the queue of the port a little in each interval, until it overflows.
//! Before that, everything through the queue gets later. A report goes through the queue; the grant that it answers
//! goes the other way, where there is room. So the time from grant to report, less the time that the sender held the
//! report, less the shortest such time seen, is the time in the queue. No clocks need to agree for that.
//!
//! A queue that is short now and then is normal. Where every report of all nodes waits longer than a few frames, many
//! times in a row, the queue stands, and the capacity is lowered below the rate that came through. Then it rises again
//! slowly, up to the configured one, because the network may have changed.

use core::time::Duration;

use super::{EFFICIENCY_PPM, FRAME_BYTES, INTERVAL, parts, time_on_wire};
use crate::time::Instant;

/// Frame times of waiting that a standing queue has at least, and one more for so many senders. Lower, and the frames
/// of a few senders that happen to meet count as a standing queue; higher, and a queue of 32 frames is half full
/// before anything is done.
const STANDING_FRAMES: u64 = 2;
const SENDERS_PER_FRAME: u64 = 4;

/// Time that hosts may add to an echo without a queue. Lower, and a busy processor looks like a queue; higher, and at
/// a gigabit a second a queue of tens of frames is overlooked.
const HOST_TIME: Duration = Duration::from_micros(50);

/// Reports in a row that must be late. Fewer may be a coincidence, or reports that are late for another reason; each
/// more lets the queue grow on.
const LATE_REPORTS: u32 = 10;

/// Share of the believed capacity that must come through for its delay to say something about the capacity.
const BUSY_PPM: u64 = 800_000;

/// Share of what came through that is believed after a standing queue, and after a loss: below 1, so that the queue
/// drains. Lower wastes more of the port while the capacity rises again.
const STANDING_PPM: u64 = 960_000;
const LOSS_PPM: u64 = 950_000;

/// Intervals after a correction in which none is made: the queue needs time to drain.
const REST_INTERVALS: u32 = 20;

/// Rise of the believed capacity in each interval. Lower, and a wrong correction costs more; higher, and the queue has
/// grown more before it is seen to stand.
const RISE_PPM: u64 = 300;

/// Lowest share of the configured capacity that is believed, whatever the delays say: a host that delays its reports
/// must not be able to stop everybody's traffic.
const BELIEVED_PPM_MIN: u64 = 100_000;

/// Time after which the shortest delay is measured anew: paths change. Shorter than a standing queue lasts would take
/// the queue for the path.
const BASE_TIME: Duration = Duration::from_secs(10);

/// The believed capacity.
#[derive(Clone, Debug)]
pub struct Capacity {
    configured_bps: u64,
    believed_bps: u64,
    sender_count: usize,
    rest: u32,
    corrections: u64,
}

/// Signs of a queue in one interval.
#[derive(Clone, Copy, Debug, Default)]
pub struct QueueSigns {
    /// Reports in a row, of any node, that waited longer than [`Capacity::standing_wait`].
    pub late_reports: u32,
    /// Whether frames were lost on the way to this port.
    pub lost: bool,
    /// Bits a second that came through, of all kinds.
    pub arrived_bps: u64,
}

impl Capacity {
    /// Believes what is configured, for so many senders.
    #[must_use]
    pub const fn new(configured_bps: u64, sender_count: usize) -> Self {
        Self {
            configured_bps,
            believed_bps: configured_bps,
            sender_count,
            rest: 0,
            corrections: 0,
        }
    }

    /// Takes another configured capacity: the link has another speed now.
    pub(super) const fn configure(&mut self, configured_bps: u64) {
        if configured_bps != self.configured_bps {
            self.configured_bps = configured_bps;
            self.believed_bps = configured_bps;
        }
    }

    /// Capacity that is believed now.
    #[must_use]
    pub const fn bps(&self) -> u64 {
        self.believed_bps
    }

    /// Capacity as configured.
    #[must_use]
    pub const fn configured_bps(&self) -> u64 {
        self.configured_bps
    }

    /// Times that it was lowered.
    #[must_use]
    pub const fn corrections(&self) -> u64 {
        self.corrections
    }

    /// Wait above which a queue stands.
    #[must_use]
    pub fn standing_wait(&self) -> Duration {
        let frames = STANDING_FRAMES + self.sender_count as u64 / SENDERS_PER_FRAME;
        time_on_wire(frames * FRAME_BYTES, self.believed_bps) + HOST_TIME
    }

    /// Looks at the signs of one interval.
    pub fn correct(&mut self, signs: QueueSigns) {
        let given_out_bps = parts(self.believed_bps, EFFICIENCY_PPM);
        let is_busy = signs.arrived_bps > parts(given_out_bps, BUSY_PPM);
        if self.rest > 0 {
            self.rest -= 1;
        } else if is_busy && (signs.lost || signs.late_reports >= LATE_REPORTS) {
            let believed = if signs.lost { LOSS_PPM } else { STANDING_PPM };
            let through_bps =
                u128::from(signs.arrived_bps) * 1_000_000 / u128::from(EFFICIENCY_PPM);
            let through_bps = u64::try_from(through_bps).unwrap_or(u64::MAX);
            let lowered = parts(through_bps, believed).min(self.believed_bps);
            self.believed_bps = lowered.max(parts(self.configured_bps, BELIEVED_PPM_MIN));
            self.rest = REST_INTERVALS;
            self.corrections += 1;
        } else if signs.late_reports == 0 {
            let raised = self.believed_bps + parts(self.believed_bps, RISE_PPM);
            self.believed_bps = raised.min(self.configured_bps);
        }
    }
}

/// Waiting time of one node's reports, from the echo of its grants.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waits {
    /// Shortest echo of this window and of the one before.
    base: [Option<Duration>; 2],
    window_end: Instant,
}

impl Waits {
    pub(super) const NONE: Self = Self {
        base: [None; 2],
        window_end: Instant::ZERO,
    };

    /// Takes the time from a grant to its report, less the time that the sender held the report. Returns the time in
    /// the queue.
    pub(super) fn record(&mut self, now: Instant, echo: Duration) -> Duration {
        if now >= self.window_end {
            self.base = [None, self.base[0]];
            self.window_end = now + BASE_TIME;
        }
        self.base[0] = Some(self.base[0].map_or(echo, |base| base.min(echo)));
        let base = self.base.iter().flatten().min().copied().unwrap_or(echo);
        echo.saturating_sub(base)
    }
}

const _: () = assert!(BASE_TIME.as_nanos() > 100 * INTERVAL.as_nanos());

#[cfg(test)]
mod tests {
    use super::*;

    const MEGABIT: u64 = 1_000_000;

    fn signs(late_reports: u32, arrived_bps: u64) -> QueueSigns {
        QueueSigns {
            late_reports,
            lost: false,
            arrived_bps,
        }
    }

    #[test]
    fn a_standing_queue_lowers_it_and_quiet_raises_it() {
        let mut capacity = Capacity::new(100 * MEGABIT, 3);
        capacity.correct(signs(LATE_REPORTS - 1, 88 * MEGABIT));
        assert_eq!(capacity.corrections(), 0, "it did not stand for long");
        capacity.correct(signs(LATE_REPORTS, 88 * MEGABIT));
        assert_eq!(capacity.corrections(), 1);
        assert!(capacity.bps() < 88 * MEGABIT && capacity.bps() > 84 * MEGABIT);
        for _ in 0..REST_INTERVALS {
            capacity.correct(signs(LATE_REPORTS, 88 * MEGABIT));
        }
        assert_eq!(
            capacity.corrections(),
            1,
            "the queue is given time to drain"
        );
        for _ in 0..2000 {
            capacity.correct(signs(0, 10 * MEGABIT));
        }
        assert_eq!(capacity.bps(), 100 * MEGABIT);
    }

    #[test]
    fn late_reports_on_an_idle_port_change_nothing() {
        let mut capacity = Capacity::new(100 * MEGABIT, 3);
        for _ in 0..1000 {
            capacity.correct(signs(1000, 30 * MEGABIT));
        }
        assert_eq!(capacity.bps(), 100 * MEGABIT);
    }

    #[test]
    fn whatever_the_signs_something_is_left() {
        let mut capacity = Capacity::new(100 * MEGABIT, 3);
        for arrived_bps in (0..10_000).map(|step| step * 13_007 % 110_000_000) {
            capacity.correct(QueueSigns {
                lost: true,
                ..signs(1000, arrived_bps)
            });
            assert!(capacity.bps() >= 10 * MEGABIT && capacity.bps() <= 100 * MEGABIT);
        }
    }

    #[test]
    fn the_shortest_echo_is_the_path_and_is_measured_anew() {
        let mut waits = Waits::NONE;
        let at = |seconds| Instant::ZERO + Duration::from_secs(seconds);
        let us = Duration::from_micros;
        assert_eq!(waits.record(at(1), us(80)), us(0));
        assert_eq!(waits.record(at(2), us(50)), us(0));
        assert_eq!(waits.record(at(3), us(350)), us(300));
        // A longer path from now on: the old one is forgotten after two windows.
        assert_eq!(waits.record(at(12), us(150)), us(100));
        assert_eq!(waits.record(at(23), us(150)), us(0));
    }
}
