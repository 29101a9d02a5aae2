//! The system calls that the library makes, each wrapped once: what Rust's standard library does
//! not offer. Nothing here knows what a port is.
#![allow(unsafe_code)] // System calls take pointers; each wrapper says what it hands over.

pub(crate) mod bpf;
pub(crate) mod clock;
pub(crate) mod descriptor_kind;
pub(crate) mod interface;
pub(crate) mod memory;
pub(crate) mod namespace;
pub(crate) mod packet;
pub(crate) mod pin;
pub(crate) mod random;
pub(crate) mod seqpacket;
pub(crate) mod shared;
pub(crate) mod socket;
pub(crate) mod tap;
pub(crate) mod ticks;
pub(crate) mod unix;
pub(crate) mod wait;
pub(crate) mod xsk;

use std::io;

/// Turns the -1 of a system call into the error that it left in `errno`.
fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// The same for calls that return a size.
fn check_size(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}
