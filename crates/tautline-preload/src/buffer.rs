//! Room for a call's own copy of a list: on the stack, or mapped if the list is long. Never from a heap, so that a
//! signal handler may poll.
#![allow(unsafe_code)] // Mapped memory as a slice.

use std::mem::MaybeUninit;

/// Entries that fit the stack. Higher: more stack for every wait; lower: more waits that map memory (about a
/// microsecond).
const ON_STACK: usize = 192;

/// Room for up to `count` plain entries.
pub(crate) struct Room<T: Copy> {
    stack: [MaybeUninit<T>; ON_STACK],
    mapped: *mut T,
    count: usize,
}

impl<T: Copy> Room<T> {
    /// `None` if the kernel has no memory.
    pub(crate) fn new(count: usize) -> Option<Self> {
        let mut room = Self {
            stack: [const { MaybeUninit::uninit() }; ON_STACK],
            mapped: std::ptr::null_mut(),
            count,
        };
        if count > ON_STACK {
            // SAFETY: a new mapping of our own.
            let start = unsafe {
                libc::mmap(
                    std::ptr::null_mut(),
                    count.checked_mul(size_of::<T>())?,
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                    -1,
                    0,
                )
            };
            if start == libc::MAP_FAILED {
                return None;
            }
            room.mapped = start.cast();
        }
        Some(room)
    }

    /// All entries, filled with one value.
    pub(crate) fn filled(&mut self, with: T) -> &mut [T] {
        let start = match self.mapped.is_null() {
            true => self.stack.as_mut_ptr().cast::<T>(),
            false => self.mapped,
        };
        // SAFETY: `start` has room for `count` entries, which are written before the slice is made.
        unsafe {
            (0..self.count).for_each(|index| start.add(index).write(with));
            std::slice::from_raw_parts_mut(start, self.count)
        }
    }
}

impl<T: Copy> Drop for Room<T> {
    fn drop(&mut self) {
        if !self.mapped.is_null() {
            // SAFETY: the mapping of `new`, of which no slice outlives this.
            unsafe { libc::munmap(self.mapped.cast(), self.count * size_of::<T>()) };
        }
    }
}
