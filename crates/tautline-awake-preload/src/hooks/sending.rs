//! send(2), sendto(2), sendmsg(2), sendmmsg(2), write(2), writev(2): when the program sent, since peers answer.
#![allow(unsafe_code)] // Exported functions with the C library's names.

use std::cell::Cell;
use std::ffi::{c_int, c_uint, c_void};

use libc::{iovec, mmsghdr, msghdr, sockaddr, socklen_t};
use tautline_awake::raw;
use tautline_proto::time::Instant;

use crate::{next, options, table};

thread_local! {
    /// When this thread sent last, for sets of descriptors; none since its last wait for a set.
    static LAST: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// When this thread sent last, since the last call of this.
pub(crate) fn last_sent() -> Option<Instant> {
    LAST.with(Cell::take)
}

/// Notes a send that is about to be made. Before it: the answer may come during the call.
#[inline]
fn note(fd: c_int) {
    if options::is_off() {
        return;
    }
    if let Some(slot) = table::slot(fd) {
        let now = raw::now();
        LAST.with(|last| last.set(Some(now)));
        if let Some(mut held) = slot.hold() {
            held.flow().sent(now);
        }
    }
}

macro_rules! sends {
    ($($(#[$text:meta])* $name:ident($fd:ident: c_int, $($argument:ident: $kind:ty),*) -> $result:ty;)*) => {
        $(
            $(#[$text])*
            ///
            /// # Safety
            /// As the C library's.
            #[unsafe(no_mangle)]
            pub unsafe extern "C-unwind" fn $name($fd: c_int, $($argument: $kind),*) -> $result {
                note($fd);
                // SAFETY: the caller's promise.
                unsafe { next::$name($fd, $($argument),*) }
            }
        )*
    };
}

sends! {
    /// send(2).
    send(fd: c_int, bytes: *const c_void, length: usize, flags: c_int) -> isize;
    /// sendto(2).
    sendto(fd: c_int, bytes: *const c_void, length: usize, flags: c_int, to: *const sockaddr, to_bytes: socklen_t) -> isize;
    /// sendmsg(2).
    sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> isize;
    /// sendmmsg(2).
    sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int;
    /// write(2).
    write(fd: c_int, bytes: *const c_void, length: usize) -> isize;
    /// writev(2).
    writev(fd: c_int, parts: *const iovec, count: c_int) -> isize;
}
