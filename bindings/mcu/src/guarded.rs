//! Inputs that end where readable memory ends.
#![allow(unsafe_code)] // a page is mapped, and written through its address

use std::ffi::c_void;
use std::ptr::{self, NonNull};

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

/// Longest input. Lower: full frames do not fit. Higher: nothing is gained.
pub const INPUT_BYTES_MAX: usize = 64 * 1024;
/// At least a page of any machine that we run on.
const GUARD_BYTES: usize = 64 * 1024;

/// Memory whose end is followed by pages that cannot be read.
#[derive(Debug)]
pub struct Guarded {
    base: NonNull<u8>,
}

impl Default for Guarded {
    fn default() -> Self {
        Self::new()
    }
}

impl Guarded {
    /// Maps the memory.
    ///
    /// # Panics
    /// If the kernel refuses.
    pub fn new() -> Self {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let bytes = INPUT_BYTES_MAX + GUARD_BYTES;
        // SAFETY: the kernel chooses an address that nothing else has.
        let base = unsafe { mmap_anonymous(ptr::null_mut(), bytes, access, MapFlags::PRIVATE) };
        let base = NonNull::new(base.expect("memory").cast::<u8>()).expect("not at zero");
        // SAFETY: the second part of what was mapped above, which nothing refers to.
        let guard = unsafe { base.as_ptr().add(INPUT_BYTES_MAX) }.cast::<c_void>();
        // SAFETY: as above.
        unsafe { mprotect(guard, GUARD_BYTES, MprotectFlags::empty()) }.expect("a guard");
        Self { base }
    }

    /// A copy of the input whose last byte is the last that can be read.
    ///
    /// # Panics
    /// If it has more than [`INPUT_BYTES_MAX`] bytes.
    pub fn place(&mut self, input: &[u8]) -> &[u8] {
        assert!(input.len() <= INPUT_BYTES_MAX);
        // SAFETY: the copy ends where the first part of the mapping ends and begins within it; `self` is borrowed
        // mutably, so no earlier copy is referred to.
        unsafe {
            let start = self.base.as_ptr().add(INPUT_BYTES_MAX - input.len());
            ptr::copy_nonoverlapping(input.as_ptr(), start, input.len());
            std::slice::from_raw_parts(start, input.len())
        }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        let base = self.base.as_ptr().cast::<c_void>();
        // SAFETY: mapped in `new` with this length, and no copy outlives `self`.
        let _unmapped = unsafe { munmap(base, INPUT_BYTES_MAX + GUARD_BYTES) };
    }
}
