//! A value that tasks share.

use core::cell::UnsafeCell;

use super::tasks::masked;

/// A value that tasks share, as a `static`: a reader gets the newest one, whole. It is copied while no
/// interrupt is served, so keep it to some hundred bytes.
#[derive(Debug)]
pub struct SharedValue<T>(UnsafeCell<T>);

// SAFETY: one processor, and all accesses happen while interrupts are masked.
unsafe impl<T: Send> Sync for SharedValue<T> {}

impl<T: Copy> SharedValue<T> {
    /// A value before the first write.
    #[must_use]
    pub const fn new(first: T) -> SharedValue<T> {
        SharedValue(UnsafeCell::new(first))
    }

    /// Copies the newest value.
    #[must_use]
    pub fn read(&self) -> T {
        // SAFETY: no other code writes while interrupts are masked.
        masked(|| unsafe { *self.0.get() })
    }

    /// Replaces the value.
    pub fn write(&self, value: T) {
        // SAFETY: no other code reads while interrupts are masked.
        masked(|| unsafe { *self.0.get() = value });
    }
}
