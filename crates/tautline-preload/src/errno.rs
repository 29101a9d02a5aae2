//! `errno`, which a call that succeeds must leave alone.
#![allow(unsafe_code)] // The C library's variable.

use std::ffi::c_int;

/// Its value in this thread.
pub(crate) fn get() -> c_int {
    // SAFETY: the C library's own variable of this thread.
    unsafe { *libc::__errno_location() }
}

pub(crate) fn set(value: c_int) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = value }
}

/// Sets it and gives the result of a call that failed.
pub(crate) fn fail(value: c_int) -> isize {
    set(value);
    -1
}

/// Puts the value back when dropped.
pub(crate) struct Kept(c_int);

impl Kept {
    pub(crate) fn new() -> Self {
        Self(get())
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        set(self.0);
    }
}
