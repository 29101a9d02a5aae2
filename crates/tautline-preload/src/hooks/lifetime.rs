//! How sockets begin, what they are bound and connected to, and how their descriptors are copied and closed.
#![allow(unsafe_code)] // Exported functions with the C library's names.

use std::ffi::{c_int, c_long, c_uint, c_ulong, c_void};

use libc::{FILE, sockaddr, socklen_t};

use super::{receiving, sending};
use crate::decide;
use crate::errno::{self, Kept};
use crate::{memory, next, node, process, table, watched};

/// socket(2).
#[unsafe(no_mangle)]
pub extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: no pointers.
    let fd = unsafe { next::socket(domain, kind, protocol) };
    if fd >= 0 {
        // Closed in a way that this library does not see, and used again.
        gone(fd);
        decide::after_socket(fd, domain, kind);
    }
    fd
}

/// bind(2).
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bind(fd: c_int, address: *const sockaddr, bytes: socklen_t) -> c_int {
    // SAFETY: the caller's promise.
    let result = unsafe { next::bind(fd, address, bytes) };
    if result == 0 {
        decide::after_bind(fd);
    }
    result
}

/// connect(2).
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn connect(fd: c_int, address: *const sockaddr, bytes: socklen_t) -> c_int {
    // SAFETY: the caller's promise.
    let result = unsafe { next::connect(fd, address, bytes) };
    if result == 0 && (table::is_unknown(fd) || table::place(fd).is_some()) {
        decide::after_connect(fd, decide::address(address, bytes));
    }
    result
}

/// shutdown(2), which on a UDP socket without a peer fails and has its effect all the same.
#[unsafe(no_mangle)]
pub extern "C" fn shutdown(fd: c_int, how: c_int) -> c_int {
    // SAFETY: no pointers.
    let result = unsafe { next::shutdown(fd, how) };
    if let Some(place) = table::place(fd).filter(|place| !place.is_packet()) {
        let _kept = Kept::new();
        place.with(|taken| {
            taken.is_shut.reading |= matches!(how, libc::SHUT_RD | libc::SHUT_RDWR);
            taken.is_shut.writing |= matches!(how, libc::SHUT_WR | libc::SHUT_RDWR);
            taken.ask_kernel();
        });
    }
    result
}

/// setsockopt(2).
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    bytes: socklen_t,
) -> c_int {
    // SAFETY: the caller's promise.
    let result = unsafe { next::setsockopt(fd, level, name, value, bytes) };
    if result == 0 {
        decide::after_option(fd, level, name);
    }
    result
}

/// A descriptor is about to be something else, or nothing.
fn gone(fd: c_int) {
    if table::place(fd).is_some() && process::is_other() {
        return;
    }
    watched::closed(fd);
    table::closed(fd);
}

/// close(2). A descriptor of this library's is none of the program's.
#[unsafe(no_mangle)]
pub extern "C" fn close(fd: c_int) -> c_int {
    if node::is_ours(fd) && !node::is_at_work() {
        return errno::fail(libc::EBADF) as c_int;
    }
    gone(fd);
    // SAFETY: no pointers.
    unsafe { next::close(fd) }
}

/// syscall(2), for the calls that libuv makes in this way. All others are the kernel's.
///
/// # Safety
/// As the C library's. Arguments that the caller does not give are whatever its registers and its stack hold; they are
/// passed on, and the kernel does not look at them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syscall(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    let fd = a as c_int;
    let pointer = std::ptr::with_exposed_provenance_mut::<c_void>(b as usize);
    let (count, flags) = (c as c_uint, d as c_int);
    match number {
        libc::SYS_close => return c_long::from(close(fd)),
        libc::SYS_sendmmsg if table::place(fd).is_some() => {
            // SAFETY: the caller's promise, with the system call's arguments.
            return c_long::from(unsafe { sending::sendmmsg(fd, pointer.cast(), count, flags) });
        }
        libc::SYS_recvmmsg if table::place(fd).is_some() => {
            let timeout = std::ptr::with_exposed_provenance_mut(e as usize);
            // SAFETY: the caller's promise, with the system call's arguments.
            let received =
                unsafe { receiving::recvmmsg(fd, pointer.cast(), count, flags, timeout) };
            return c_long::from(received);
        }
        _ => {}
    }
    // SAFETY: the caller's promise.
    unsafe { next::syscall(number, a, b, c, d, e, f) }
}

/// fclose(3), which closes without close(2).
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fclose(file: *mut FILE) -> c_int {
    if !file.is_null() {
        let _kept = Kept::new();
        // SAFETY: the caller's promise: a stream.
        let fd = unsafe { libc::fileno(file) };
        if table::place(fd).is_some() {
            gone(fd);
        }
    }
    // SAFETY: the caller's promise.
    unsafe { next::fclose(file) }
}

/// close_range(2).
#[unsafe(no_mangle)]
pub extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    let closes = flags & libc::CLOSE_RANGE_CLOEXEC as c_int == 0 && first <= last;
    if !closes || process::is_other() {
        // SAFETY: no pointers.
        return unsafe { next::close_range(first, last, flags) };
    }
    table::taken_within(first, last).for_each(gone);
    let mut from = first;
    // Around each of this library's own.
    while let Some(ours) = node::next_of_ours(from, last) {
        if ours > from {
            // SAFETY: no pointers.
            let result = unsafe { next::close_range(from, ours - 1, flags) };
            if result != 0 {
                return result;
            }
        }
        if ours == last {
            return 0;
        }
        from = ours + 1;
    }
    // SAFETY: no pointers.
    unsafe { next::close_range(from, last, flags) }
}

/// closefrom(3).
#[unsafe(no_mangle)]
pub extern "C" fn closefrom(first: c_int) {
    if node::next_of_ours(0, c_uint::MAX).is_none() || process::is_other() {
        // SAFETY: no pointers.
        return unsafe { next::closefrom(first) };
    }
    close_range(c_uint::try_from(first).unwrap_or(0), c_uint::MAX, 0);
}

/// dup(2).
#[unsafe(no_mangle)]
pub extern "C" fn dup(fd: c_int) -> c_int {
    // SAFETY: no pointers.
    duplicated(fd, unsafe { next::dup(fd) })
}

/// dup2(2).
#[unsafe(no_mangle)]
pub extern "C" fn dup2(fd: c_int, to: c_int) -> c_int {
    if fd == to {
        // SAFETY: no pointers.
        return unsafe { next::dup2(fd, to) };
    }
    // SAFETY: no pointers.
    replaced(fd, to, || unsafe { next::dup2(fd, to) })
}

/// dup3(2).
#[unsafe(no_mangle)]
pub extern "C" fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
    // SAFETY: no pointers.
    replaced(fd, to, || unsafe { next::dup3(fd, to, flags) })
}

/// A copy over another descriptor, which the kernel closes if that works.
fn replaced(fd: c_int, to: c_int, work: impl FnOnce() -> c_int) -> c_int {
    if node::is_ours(to) {
        return errno::fail(libc::EBADF) as c_int;
    }
    let result = work();
    if result >= 0 && fd != to && !process::is_other() {
        gone(to);
        table::duplicated(fd, to);
    }
    result
}

fn duplicated(fd: c_int, copy: c_int) -> c_int {
    if copy >= 0 && !process::is_other_for(fd) {
        gone(copy);
        table::duplicated(fd, copy);
    }
    copy
}

/// fcntl(2).
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcntl(fd: c_int, command: c_int, argument: c_ulong) -> c_int {
    // SAFETY: the caller's promise.
    after_fcntl(fd, command, unsafe { next::fcntl(fd, command, argument) })
}

/// fcntl(2), by its name for large files.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcntl64(fd: c_int, command: c_int, argument: c_ulong) -> c_int {
    // SAFETY: the caller's promise.
    after_fcntl(fd, command, unsafe { next::fcntl64(fd, command, argument) })
}

fn after_fcntl(fd: c_int, command: c_int, result: c_int) -> c_int {
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => duplicated(fd, result),
        libc::F_SETFL => {
            if let Some(place) = table::place(fd) {
                let _kept = Kept::new();
                place.set_non_blocking(decide::is_non_blocking(fd));
            }
            result
        }
        _ => result,
    }
}

/// ioctl(2).
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: c_ulong) -> c_int {
    if let Some(place) = table::place(fd) {
        if request == libc::FIONREAD {
            let kept = Kept::new();
            let waiting = place.with(|taken| taken.waiting_bytes()).flatten();
            drop(kept);
            if let Some(bytes) = waiting {
                let to = std::ptr::with_exposed_provenance_mut::<c_int>(argument as usize);
                return match memory::put(to, &(bytes as c_int)) {
                    true => 0,
                    false => errno::fail(libc::EFAULT) as c_int,
                };
            }
        }
        // SAFETY: the caller's promise.
        let result = unsafe { next::ioctl(fd, request, argument) };
        if request == libc::FIONBIO && result == 0 {
            let _kept = Kept::new();
            place.set_non_blocking(decide::is_non_blocking(fd));
        }
        return result;
    }
    // SAFETY: the caller's promise.
    unsafe { next::ioctl(fd, request, argument) }
}
