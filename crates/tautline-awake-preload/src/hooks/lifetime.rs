//! How descriptors begin and end, and what else the library must know of the program: signal handlers, options of
//! sockets, seccomp filters.
#![allow(unsafe_code)] // Exported functions with the C library's names.

use std::ffi::{c_int, c_long, c_uint, c_ulong, c_void};

use libc::{FILE, sigaction as Action, sighandler_t, socklen_t};

use crate::{handlers, look, next, options, table};

fn closing(fd: c_int) {
    if let Ok(fd) = c_uint::try_from(fd) {
        table::closing(fd, fd);
    }
}

/// close(2).
#[unsafe(no_mangle)]
pub extern "C-unwind" fn close(fd: c_int) -> c_int {
    closing(fd);
    // SAFETY: no pointers.
    unsafe { next::close(fd) }
}

/// fclose(3), which closes without close(2).
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fclose(file: *mut FILE) -> c_int {
    if !file.is_null() {
        // SAFETY: the caller's promise: a stream. A thread's own errno.
        unsafe {
            let errno = libc::__errno_location();
            let before = *errno;
            closing(libc::fileno(file));
            *errno = before;
        }
    }
    // SAFETY: the caller's promise.
    unsafe { next::fclose(file) }
}

/// close_range(2).
#[unsafe(no_mangle)]
pub extern "C-unwind" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    if flags & libc::CLOSE_RANGE_CLOEXEC as c_int == 0 && first <= last {
        table::closing(first, last);
    }
    // SAFETY: no pointers.
    unsafe { next::close_range(first, last, flags) }
}

/// closefrom(3).
#[unsafe(no_mangle)]
pub extern "C-unwind" fn closefrom(first: c_int) {
    table::closing(c_uint::try_from(first).unwrap_or(0), c_uint::MAX);
    // SAFETY: no pointers.
    unsafe { next::closefrom(first) }
}

/// dup2(2).
#[unsafe(no_mangle)]
pub extern "C-unwind" fn dup2(fd: c_int, to: c_int) -> c_int {
    if fd != to {
        closing(to);
    }
    // SAFETY: no pointers.
    unsafe { next::dup2(fd, to) }
}

/// dup3(2).
#[unsafe(no_mangle)]
pub extern "C-unwind" fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
    if fd != to {
        closing(to);
    }
    // SAFETY: no pointers.
    unsafe { next::dup3(fd, to, flags) }
}

/// Both ends of a pipe or a pair are this program's.
///
/// # Safety
/// Two descriptors, if `result` is 0.
unsafe fn own_ends(result: c_int, ends: *const c_int) -> c_int {
    if result == 0 {
        // SAFETY: the caller's promise.
        let ends = unsafe { ends.cast::<[c_int; 2]>().read() };
        ends.into_iter().for_each(table::is_own);
    }
    result
}

/// pipe(2).
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pipe(ends: *mut c_int) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { own_ends(next::pipe(ends), ends) }
}

/// pipe2(2).
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pipe2(ends: *mut c_int, flags: c_int) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { own_ends(next::pipe2(ends, flags), ends) }
}

/// socketpair(2).
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn socketpair(
    domain: c_int,
    kind: c_int,
    protocol: c_int,
    ends: *mut c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { own_ends(next::socketpair(domain, kind, protocol, ends), ends) }
}

/// eventfd(2): threads of this program write there.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn eventfd(value: c_uint, flags: c_int) -> c_int {
    // SAFETY: no pointers.
    let fd = unsafe { next::eventfd(value, flags) };
    table::is_own(fd);
    fd
}

/// timerfd_create(2).
#[unsafe(no_mangle)]
pub extern "C-unwind" fn timerfd_create(clock: c_int, flags: c_int) -> c_int {
    // SAFETY: no pointers.
    let fd = unsafe { next::timerfd_create(clock, flags) };
    table::is_foreign(fd);
    fd
}

/// sigaction(2).
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sigaction(
    signal: c_int,
    action: *const Action,
    before: *mut Action,
) -> c_int {
    // SAFETY: the caller's promise.
    let result = unsafe { next::sigaction(signal, action, before) };
    handlers::changed();
    result
}

/// signal(2).
#[unsafe(no_mangle)]
pub extern "C-unwind" fn signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
    // SAFETY: a handler of the program's.
    let before = unsafe { next::signal(signal, handler) };
    handlers::changed();
    before
}

/// siginterrupt(3).
#[unsafe(no_mangle)]
pub extern "C-unwind" fn siginterrupt(signal: c_int, interrupts: c_int) -> c_int {
    // SAFETY: no pointers.
    let result = unsafe { next::siginterrupt(signal, interrupts) };
    handlers::changed();
    result
}

/// setsockopt(2): a socket may ask for more than its datagrams now.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    bytes: socklen_t,
) -> c_int {
    // SAFETY: the caller's promise.
    let result = unsafe { next::setsockopt(fd, level, name, value, bytes) };
    look::option_changed(level, name);
    result
}

/// prctl(2): a seccomp filter may be installed with it.
///
/// # Safety
/// As the C library's. Arguments that the caller does not give are whatever its registers hold; they are passed on.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn prctl(
    option: c_int,
    a: c_ulong,
    b: c_ulong,
    c: c_ulong,
    d: c_ulong,
) -> c_int {
    if option == libc::PR_SET_SECCOMP {
        options::turn_off();
    }
    // SAFETY: the caller's promise.
    unsafe { next::prctl(option, a, b, c, d) }
}

/// syscall(2): a seccomp filter may be installed with it, and descriptors may be closed.
///
/// # Safety
/// As the C library's. Arguments that the caller does not give are whatever its registers and its stack hold; they are
/// passed on, and the kernel does not look at them.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn syscall(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    match number {
        libc::SYS_seccomp => options::turn_off(),
        libc::SYS_close => closing(a as c_int),
        _ => {}
    }
    // SAFETY: the caller's promise.
    unsafe { next::syscall(number, a, b, c, d, e, f) }
}
