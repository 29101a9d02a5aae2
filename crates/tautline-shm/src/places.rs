//! Which of a few numbered places are taken: what a pool of buffers is kept with.
//!
//! Any number of threads take and give back. A place has one holder at a time, and who takes it sees
//! everything that its last holder did before giving it back.
//!
//! Progress: lock-free. An attempt to take fails only because another thread has taken or given back
//! meanwhile. Giving back is wait-free.

use crate::sync::AtomicU64;
use crate::sync::Ordering::{Acquire, Relaxed, Release};

/// Most places: the bits of a word. More would need several words, and a search over them.
pub const PLACES_MAX: u32 = u64::BITS;

/// The places, of which each is free or taken.
#[derive(Debug)]
pub struct Places {
    /// Bit i: place i is free.
    free: AtomicU64,
    count: u32,
}

impl Places {
    /// This many places, all free, at most [`PLACES_MAX`].
    #[must_use]
    pub fn new(count: u32) -> Self {
        let count = count.min(PLACES_MAX);
        Self {
            free: AtomicU64::new(u64::MAX.checked_shr(PLACES_MAX - count).unwrap_or(0)),
            count,
        }
    }

    /// Takes a free place, the lowest: it was in use last, so its memory is more likely in a cache. `None` if
    /// all are taken.
    #[inline]
    #[must_use]
    pub fn take(&self) -> Option<u32> {
        let mut free = self.free.load(Relaxed);
        while free != 0 {
            let place = free.trailing_zeros();
            // Acquire: partner is the release in `give_back`; the last holder is done with the place.
            match self
                .free
                .compare_exchange(free, free & (free - 1), Acquire, Relaxed)
            {
                Ok(_) => return Some(place),
                Err(now) => free = now,
            }
        }
        None
    }

    /// Gives back a place that [`take`](Self::take) returned.
    #[inline]
    pub fn give_back(&self, place: u32) {
        debug_assert!(place < self.count);
        // Release: partner is the acquire in `take`.
        let before = self.free.fetch_or(1 << place, Release);
        debug_assert!(before & 1 << place == 0, "place {place} was free already");
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// How many are taken, for observers.
    #[must_use]
    pub fn taken(&self) -> u32 {
        self.count - self.free.load(Relaxed).count_ones()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_place_has_one_holder() {
        for count in [0, 1, 7, 64] {
            let places = Places::new(count);
            let taken: [Option<u32>; 65] = core::array::from_fn(|_| places.take());
            for (index, place) in taken.into_iter().enumerate() {
                let index = index as u32;
                assert_eq!(place, (index < count).then_some(index));
            }
            assert_eq!(places.taken(), count);
            for place in 0..count {
                places.give_back(place);
            }
            assert_eq!(places.taken(), 0);
        }
        assert_eq!(Places::new(65).count(), 64);
    }

    #[test]
    fn what_is_given_back_is_taken_next() {
        let places = Places::new(3);
        assert_eq!([places.take(), places.take()], [Some(0), Some(1)]);
        places.give_back(0);
        assert_eq!([places.take(), places.take()], [Some(0), Some(2)]);
        assert_eq!(places.take(), None);
    }
}
