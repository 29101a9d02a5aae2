//! Cost of waking a stranger. The kernel walks over all who watch an event when it is signalled, at the expense of
//! whoever signals it: of a port that has its event watched by 15,000 epolls, 2 ms. So the sender takes the time, and a
//! receiver that is dear is woken late (decision 0045; the demux does the same, `TL_RING_…` of `bpf/tautline.h`).

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire};
use std::time::Duration;

use tautline_proto::time::Instant;

use super::service::ServiceHandle;
use crate::statistics::Statistics;
use crate::sys::aio::PeerEvent;
use crate::sys::clock;

/// Time for which waking is free. Lower: an honest receiver is charged on a slow machine. Higher: a hostile one costs
/// as much more each time.
const FREE_NS: u64 = 10_000;
/// Most that one time is charged. Lower: one that costs more is charged too little. Higher: a few interruptions of the
/// sender are held against the receiver.
const CHARGE_NS_MAX: u64 = 2_000_000;
/// Charged time in this multiple is how long the receiver is in debt: 2 % of the sender's time. Lower: more of it.
/// Higher: a receiver that was dear once waits for longer.
const SHARE: u64 = 50;
/// Debt up to which it is woken. Lower: as with [`CHARGE_NS_MAX`]. Higher: a hostile one begins with more.
const DEBT_NS_MAX: u64 = 1_000_000_000;

/// Debt of one receiver.
#[derive(Debug, Default)]
pub(super) struct WakeDebt {
    until_ns: u64,
}

impl WakeDebt {
    /// Whether the receiver is worth waking now.
    pub(super) fn allows(&self, now: Instant) -> bool {
        self.until_ns.saturating_sub(now.as_nanos()) <= DEBT_NS_MAX
    }

    /// When it is worth waking again.
    pub(super) fn allowed_at(&self) -> Instant {
        Instant::from_nanos(self.until_ns.saturating_sub(DEBT_NS_MAX))
    }

    /// Charges the time that waking it has taken.
    pub(super) fn charge(&mut self, began: Instant, ended: Instant) {
        let took = ended.as_nanos().saturating_sub(began.as_nanos());
        let charged = took.min(CHARGE_NS_MAX).saturating_sub(FREE_NS);
        if charged > 0 {
            self.until_ns = self.until_ns.max(began.as_nanos()) + charged * SHARE;
        }
    }
}

/// A wake-up that the sender withheld and the service thread makes up for, so that no receiver sleeps for ever: the
/// sender may be waiting for its answer.
#[derive(Debug, Default)]
pub(super) struct LateWake {
    /// 0: none is due.
    at_ns: AtomicU64,
}

impl LateWake {
    /// Sender: asks for it. Whether the service thread must be told.
    pub(super) fn ask(&self, at: Instant) -> bool {
        self.at_ns.swap(at.as_nanos().max(1), AcqRel) == 0
    }

    /// Service: time until it is due, if one is asked for.
    pub(super) fn wait(&self, now: Instant) -> Option<Duration> {
        let at = self.at_ns.load(Acquire);
        (at > 0).then(|| Instant::from_nanos(at).saturating_duration_since(now))
    }

    /// Service: whether to wake the receiver now.
    pub(super) fn take(&self, now: Instant) -> bool {
        let is_due = self.wait(now).is_some_and(|wait| wait.is_zero());
        is_due && self.at_ns.swap(0, AcqRel) > 0
    }
}

/// The event of a peer that waits for its descriptor, and a wake-up that is due to it.
#[derive(Debug)]
pub(super) struct PeerBell {
    event: PeerEvent,
    late: LateWake,
}

impl PeerBell {
    pub(super) fn new(event: PeerEvent) -> Self {
        Self {
            event,
            late: LateWake::default(),
        }
    }

    /// Sender: wakes the peer. If it is another user's, who decides how long that takes, this may be left to the
    /// service thread: `false` then.
    pub(super) fn ring(
        &self,
        debt: &mut WakeDebt,
        statistics: &Statistics,
        service: &ServiceHandle,
    ) -> bool {
        if self.event.is_trusted() {
            self.event.ring();
            return true;
        }
        let began = clock::monotonic();
        if !debt.allows(began) {
            statistics.wakes_withheld.add(1);
            if self.late.ask(debt.allowed_at()) {
                service.look();
            }
            return false;
        }
        self.event.ring();
        debt.charge(began, clock::monotonic());
        true
    }

    /// Service: time until the peer is to be woken because the sender has not done it.
    pub(super) fn late_wake(&self, now: Instant) -> Option<Duration> {
        self.late.wait(now)
    }

    /// Service: wakes the peer if that is due.
    pub(super) fn wake_late(&self, now: Instant) {
        if self.late.take(now) {
            self.event.ring();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_wake_is_made_once() {
        let late = LateWake::default();
        let at = Instant::from_nanos;
        assert_eq!(late.wait(at(5)), None);
        assert!(late.ask(at(10)));
        assert!(!late.ask(at(12)), "it has been told");
        assert!(!late.take(at(11)));
        assert_eq!(late.wait(at(11)), Some(Duration::from_nanos(1)));
        assert!(late.take(at(12)));
        assert!(!late.take(at(13)));
        assert!(late.ask(at(20)));
    }

    /// Wakes for as long as it is allowed in turn after turn of this length; returns the share of time that it took.
    fn share(took_ns: u64, between_ns: u64, turns: u64) -> f64 {
        let (mut debt, mut now, mut spent) = (WakeDebt::default(), 1_u64, 0);
        for _ in 0..turns {
            if debt.allows(Instant::from_nanos(now)) {
                let ended = now + took_ns;
                debt.charge(Instant::from_nanos(now), Instant::from_nanos(ended));
                now = ended;
                spent += took_ns;
            }
            now += between_ns;
        }
        spent as f64 / now as f64
    }

    #[test]
    fn an_honest_receiver_is_always_woken() {
        assert!(share(5_000, 1_000, 1_000_000) > 0.8);
        assert!(share(10_000, 1_000, 1_000_000) > 0.9);
    }

    #[test]
    fn a_dear_one_takes_two_percent() {
        for took_ns in [100_000, 2_000_000] {
            let share = share(took_ns, 10_000, 20_000_000);
            assert!((0.015..0.025).contains(&share), "{took_ns} ns: {share}");
        }
    }

    #[test]
    fn nine_long_interruptions_are_forgiven() {
        let mut debt = WakeDebt::default();
        for number in 0..9 {
            let began = Instant::from_nanos(1 + number);
            assert!(debt.allows(began), "{number}");
            debt.charge(began, Instant::from_nanos(1 + number + 50_000_000));
        }
        assert!(debt.allows(Instant::from_nanos(10)));
    }
}
