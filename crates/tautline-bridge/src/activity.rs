//! The right of the active program of a cell to publish and deliver: one thread decides, and all others ask before they
//! do either.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use tautline::Instant;

/// A decision of the election, which ends by itself unless it is renewed: a program that was stopped is not active when
/// it goes on.
#[derive(Debug)]
pub struct Activity {
    process: u64,
    cell: AtomicU64,
    term: AtomicU32,
    since_ns: AtomicU64,
    /// Written last, read first: 0 while the others change.
    until_ns: AtomicU64,
}

/// A program's right to publish and deliver.
#[derive(Clone, Copy, Debug)]
pub struct Grant {
    /// Number of the process.
    pub process: u64,
    /// Number of the cell.
    pub cell: u64,
    /// Number of the takeover.
    pub term: u32,
    /// Values that arrived before belong to whoever was active then.
    pub since: Instant,
}

impl Activity {
    /// Not active yet.
    #[must_use]
    pub fn new(process: u64) -> Self {
        Self {
            process,
            cell: AtomicU64::new(process),
            term: AtomicU32::new(0),
            since_ns: AtomicU64::new(u64::MAX),
            until_ns: AtomicU64::new(0),
        }
    }

    /// Active without end: there is no other program.
    #[must_use]
    pub fn alone(process: u64) -> Self {
        let activity = Self::new(process);
        activity.grant(process, 1, Instant::from_nanos(0), Instant::FAR_FUTURE);
        activity
    }

    /// Begins or renews the time in which this program is active. One thread calls this and [`end`](Self::end).
    pub fn grant(&self, cell: u64, term: u32, since: Instant, until: Instant) {
        if self.since_ns.load(Ordering::Relaxed) != since.as_nanos() {
            self.end(cell);
            self.term.store(term, Ordering::Relaxed);
            self.since_ns.store(since.as_nanos(), Ordering::Relaxed);
        }
        // Release: pairs with the acquire in `now`.
        self.until_ns.store(until.as_nanos(), Ordering::Release);
    }

    /// Ends it.
    pub fn end(&self, cell: u64) {
        self.until_ns.store(0, Ordering::Release);
        self.since_ns.store(u64::MAX, Ordering::Release);
        self.cell.store(cell, Ordering::Relaxed);
    }

    /// The right, if this program has it now.
    #[inline]
    #[must_use]
    pub fn now(&self, now: Instant) -> Option<Grant> {
        (now.as_nanos() < self.until_ns.load(Ordering::Acquire)).then(|| Grant {
            process: self.process,
            cell: self.cell(),
            term: self.term(),
            since: Instant::from_nanos(self.since_ns.load(Ordering::Acquire)),
        })
    }

    /// Number of the cell.
    #[must_use]
    pub fn cell(&self) -> u64 {
        self.cell.load(Ordering::Relaxed)
    }

    /// Number of this process.
    #[must_use]
    pub fn process(&self) -> u64 {
        self.process
    }

    /// The last term in which it was active.
    #[must_use]
    pub fn term(&self) -> u32 {
        self.term.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_right_ends_by_itself_and_begins_anew_with_the_next_term() {
        let at = Instant::from_nanos;
        let always = Activity::alone(7).now(at(1));
        assert_eq!(
            always.map(|grant| (grant.term, grant.since)),
            Some((1, at(0)))
        );
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
