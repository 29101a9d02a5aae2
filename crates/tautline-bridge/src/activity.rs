//! The right of the active program of a cell to publish and deliver: one thread decides, and all others ask before they
//! do either.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tautline::Instant;

use crate::clocks::boottime;

/// A decision of the election, which ends by itself unless it is renewed: a program that was stopped, or whose machine
/// was suspended, is not active when it goes on.
#[derive(Debug)]
pub struct Activity {
    process: u64,
    /// The lock is held for a copy, and never while anything waits.
    lease: Mutex<Lease>,
}

/// The last decision. All of it changes at once, so that a takeover cannot mix two of them.
#[derive(Clone, Copy, Debug)]
struct Lease {
    cell: u64,
    term: u32,
    since: Instant,
    /// On CLOCK_BOOTTIME.
    until: Instant,
}

/// End of a lease that was ended before its time.
const PAST: Instant = Instant::from_nanos(0);

/// A program's right to publish and deliver.
#[derive(Clone, Copy, Debug)]
pub struct Grant {
    /// Number of the process.
    pub process: u64,
    /// Number of the cell.
    pub cell: u64,
    /// Number of the takeover.
    pub term: u32,
    /// Values that arrived before belong to the program that was active then.
    pub since: Instant,
}

impl Activity {
    /// Not active yet.
    #[must_use]
    pub fn new(process: u64) -> Self {
        Self {
            process,
            lease: Mutex::new(Lease {
                cell: process,
                term: 0,
                since: Instant::FAR_FUTURE,
                until: PAST,
            }),
        }
    }

    /// Active without end: there is no other program.
    #[must_use]
    pub fn alone(process: u64) -> Self {
        let activity = Self::new(process);
        activity.grant(process, 1, Instant::from_nanos(0), Instant::FAR_FUTURE);
        activity
    }

    /// Begins or renews the time in which this program is active. It ends at `until` on CLOCK_BOOTTIME;
    /// [`Instant::FAR_FUTURE`] is no end.
    pub fn grant(&self, cell: u64, term: u32, since: Instant, until: Instant) {
        *self.lease() = Lease {
            cell,
            term,
            since,
            until,
        };
    }

    /// Ends it.
    pub fn end(&self, cell: u64) {
        let mut lease = self.lease();
        (lease.cell, lease.until) = (cell, PAST);
    }

    /// The right, if this program has it now. Looks at the clock last, and not at all if the right has no end.
    #[must_use]
    pub fn now(&self) -> Option<Grant> {
        self.at(boottime)
    }

    /// The grant by a clock of the caller.
    pub(crate) fn at(&self, now: impl FnOnce() -> Instant) -> Option<Grant> {
        let lease = *self.lease();
        (lease.until == Instant::FAR_FUTURE || now() < lease.until).then_some(Grant {
            process: self.process,
            cell: lease.cell,
            term: lease.term,
            since: lease.since,
        })
    }

    fn lease(&self) -> MutexGuard<'_, Lease> {
        self.lease.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of the cell.
    #[must_use]
    pub fn cell(&self) -> u64 {
        self.lease().cell
    }

    /// Number of this process.
    #[must_use]
    pub fn process(&self) -> u64 {
        self.process
    }

    /// The last term in which it was active.
    #[must_use]
    pub fn term(&self) -> u32 {
        self.lease().term
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn a_takeover_mixes_no_two_decisions() {
        let activity = Activity::new(0);
        thread::scope(|scope| {
            let takeovers = scope.spawn(|| {
                for term in 1..2_000_000 {
                    let since = Instant::from_nanos(term.into());
                    activity.grant(term.into(), term, since, Instant::FAR_FUTURE);
                }
            });
            while !takeovers.is_finished() {
                if let Some(grant) = activity.now() {
                    let term = u64::from(grant.term);
                    assert_eq!((grant.cell, grant.since.as_nanos()), (term, term));
                }
            }
        });
    }

    #[test]
    fn a_right_ends_by_itself_and_begins_anew_with_the_next_term() {
        let at = Instant::from_nanos;
        let right = |activity: &Activity, now: u64| activity.at(|| at(now));
        let always = Activity::alone(7).now();
        assert_eq!(
            always.map(|grant| (grant.term, grant.since)),
            Some((1, at(0)))
        );
        let activity = Activity::new(7);
        assert!(right(&activity, 0).is_none());
        activity.grant(7, 1, at(10), at(40));
        let grant = right(&activity, 39).unwrap();
        assert_eq!((grant.term, grant.since), (1, at(10)));
        assert!(right(&activity, 40).is_none());
        activity.grant(7, 1, at(10), at(60));
        assert!(right(&activity, 59).is_some());
        activity.end(8);
        assert!(right(&activity, 12).is_none());
        assert_eq!(activity.cell(), 8);
        activity.grant(8, 2, at(100), at(200));
        assert_eq!(right(&activity, 150).unwrap().term, 2);
    }
}
