//! A pool of small numbers, each free or taken: the indices of a pool's buffers.
//!
//! Any number of threads take and give back. An index has one holder at a time, and a new holder sees
//! everything that its last holder did before giving it back.
//!
//! Progress: lock-free. An attempt to take fails only because another thread has taken or given back
//! meanwhile. Giving back is wait-free.

use crate::sync::AtomicU64;
use crate::sync::Ordering::{Acquire, Relaxed, Release};

/// Most indices: the bits of a word. More would need several words, and a search over them.
pub const INDICES_MAX: u32 = u64::BITS;

/// The indices, of which each is free or taken.
#[derive(Debug)]
pub struct IndexPool {
    /// Bit i: index i is free.
    free: AtomicU64,
    count: u32,
}

impl IndexPool {
    /// This many indices, all free, at most [`INDICES_MAX`].
    #[must_use]
    pub fn new(count: u32) -> Self {
        let count = count.min(INDICES_MAX);
        Self {
            free: AtomicU64::new(u64::MAX.checked_shr(INDICES_MAX - count).unwrap_or(0)),
            count,
        }
    }

    /// Takes a free index, the lowest: it was in use last, so its memory is more likely in a cache. `None` if
    /// all are taken.
    #[inline]
    #[must_use]
    pub fn take(&self) -> Option<u32> {
        let mut free = self.free.load(Relaxed);
        while free != 0 {
            let index = free.trailing_zeros();
            // Acquire: partner is the release in `give_back`; the last holder is done with the index.
            match self
                .free
                .compare_exchange(free, free & (free - 1), Acquire, Relaxed)
            {
                Ok(_) => return Some(index),
                Err(now) => free = now,
            }
        }
        None
    }

    /// Gives back an index that [`take`](Self::take) returned.
    #[inline]
    pub fn give_back(&self, index: u32) {
        debug_assert!(index < self.count);
        // Release: partner is the acquire in `take`.
        let before = self.free.fetch_or(1 << index, Release);
        debug_assert!(before & 1 << index == 0, "index {index} was free already");
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
    fn each_index_has_one_holder() {
        for count in [0, 1, 7, 64] {
            let indices = IndexPool::new(count);
            let taken: [Option<u32>; 65] = core::array::from_fn(|_| indices.take());
            for (at, index) in taken.into_iter().enumerate() {
                let at = at as u32;
                assert_eq!(index, (at < count).then_some(at));
            }
            assert_eq!(indices.taken(), count);
            for index in 0..count {
                indices.give_back(index);
            }
            assert_eq!(indices.taken(), 0);
        }
        assert_eq!(IndexPool::new(65).count(), 64);
    }

    #[test]
    fn what_is_given_back_is_taken_next() {
        let indices = IndexPool::new(3);
        assert_eq!([indices.take(), indices.take()], [Some(0), Some(1)]);
        indices.give_back(0);
        assert_eq!([indices.take(), indices.take()], [Some(0), Some(2)]);
        assert_eq!(indices.take(), None);
    }
}
