//! The right of the active gateway of a cell to publish and deliver: one thread decides, and all others ask before they
//! do either.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use tautline::Instant;

/// A decision of the election, which ends by itself unless it is renewed: a gateway that was stopped is not active when
/// it goes on.
#[derive(Debug)]
pub(crate) struct Activity {
    gateway: u64,
    cell: AtomicU64,
    term: AtomicU32,
    since_ns: AtomicU64,
    /// Written last, read first: 0 while the others change.
    until_ns: AtomicU64,
}

/// A gateway's right to publish and deliver.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grant {
    pub(crate) gateway: u64,
    pub(crate) cell: u64,
    pub(crate) term: u32,
    /// Values that arrived before belong to whoever was active then.
    pub(crate) since: Instant,
}

impl Activity {
    /// Not active yet.
    pub(crate) fn new(gateway: u64) -> Self {
        Self {
            gateway,
            cell: AtomicU64::new(gateway),
            term: AtomicU32::new(0),
            since_ns: AtomicU64::new(u64::MAX),
            until_ns: AtomicU64::new(0),
        }
    }

    /// Begins or renews the time in which this gateway is active. One thread calls this and [`end`](Self::end).
    pub(crate) fn grant(&self, cell: u64, term: u32, since: Instant, until: Instant) {
        if self.since_ns.load(Ordering::Relaxed) != since.as_nanos() {
            self.end(cell);
            self.term.store(term, Ordering::Relaxed);
            self.since_ns.store(since.as_nanos(), Ordering::Relaxed);
        }
        // Release: pairs with the acquire in `now`.
        self.until_ns.store(until.as_nanos(), Ordering::Release);
    }

    /// Ends it.
    pub(crate) fn end(&self, cell: u64) {
        self.until_ns.store(0, Ordering::Release);
        self.since_ns.store(u64::MAX, Ordering::Release);
        self.cell.store(cell, Ordering::Relaxed);
    }

    /// The right, if this gateway has it now.
    #[inline]
    pub(crate) fn now(&self, now: Instant) -> Option<Grant> {
        (now.as_nanos() < self.until_ns.load(Ordering::Acquire)).then(|| Grant {
            gateway: self.gateway,
            cell: self.cell(),
            term: self.term(),
            since: Instant::from_nanos(self.since_ns.load(Ordering::Acquire)),
        })
    }

    /// Number of the cell.
    pub(crate) fn cell(&self) -> u64 {
        self.cell.load(Ordering::Relaxed)
    }

    /// Number of this process.
    pub(crate) fn gateway(&self) -> u64 {
        self.gateway
    }

    /// The last term in which it was active.
    pub(crate) fn term(&self) -> u32 {
        self.term.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_right_ends_by_itself_and_begins_anew_with_the_next_term() {
        let at = Instant::from_nanos;
        let activity = Activity::new(7);
        assert!(activity.now(at(0)).is_none());
        activity.grant(7, 1, at(10), at(40));
        let grant = activity.now(at(39)).unwrap();
        assert_eq!((grant.term, grant.since), (1, at(10)));
        assert!(activity.now(at(40)).is_none());
        activity.grant(7, 1, at(10), at(60));
        assert!(activity.now(at(59)).is_some());
        activity.end(8);
        assert!(activity.now(at(12)).is_none());
        assert_eq!(activity.cell(), 8);
        activity.grant(8, 2, at(100), at(200));
        assert_eq!(activity.now(at(150)).unwrap().term, 2);
    }
}
