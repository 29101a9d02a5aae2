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

hooks! {
    /// close(2).
    close(fd: c_int) -> c_int {
        closing(fd);
        next::close(fd)
    }

    /// fclose(3), which closes without close(2).
    fclose(file: *mut FILE) -> c_int {
        if !file.is_null() {
            let errno = libc::__errno_location();
            let before = *errno;
            closing(libc::fileno(file));
            *errno = before;
        }
        next::fclose(file)
    }

    /// close_range(2).
    close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
        if flags & libc::CLOSE_RANGE_CLOEXEC as c_int == 0 && first <= last {
            table::closing(first, last);
        }
        next::close_range(first, last, flags)
    }

    /// closefrom(3).
    closefrom(first: c_int) {
        table::closing(c_uint::try_from(first).unwrap_or(0), c_uint::MAX);
        next::closefrom(first)
    }

    /// dup2(2).
    dup2(fd: c_int, to: c_int) -> c_int {
        if fd != to {
            closing(to);
        }
        next::dup2(fd, to)
    }

    /// dup3(2).
    dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
        if fd != to {
            closing(to);
        }
        next::dup3(fd, to, flags)
    }

    /// pipe(2).
    pipe(ends: *mut c_int) -> c_int {
        own_ends(next::pipe(ends), ends)
    }

    /// pipe2(2).
    pipe2(ends: *mut c_int, flags: c_int) -> c_int {
        own_ends(next::pipe2(ends, flags), ends)
    }

    /// socketpair(2).
    socketpair(domain: c_int, kind: c_int, protocol: c_int, ends: *mut c_int) -> c_int {
        own_ends(next::socketpair(domain, kind, protocol, ends), ends)
    }

    /// eventfd(2): threads of this program write there.
    eventfd(value: c_uint, flags: c_int) -> c_int {
        let fd = next::eventfd(value, flags);
        table::is_own(fd);
        fd
    }

    /// timerfd_create(2).
    timerfd_create(clock: c_int, flags: c_int) -> c_int {
        let fd = next::timerfd_create(clock, flags);
        table::is_foreign(fd);
        fd
    }

    /// sigaction(2).
    sigaction(signal: c_int, action: *const Action, before: *mut Action) -> c_int {
        let result = next::sigaction(signal, action, before);
        handlers::changed();
        result
    }

    /// signal(2).
    signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
        let before = next::signal(signal, handler);
        handlers::changed();
        before
    }

    /// siginterrupt(3).
    siginterrupt(signal: c_int, interrupts: c_int) -> c_int {
        let result = next::siginterrupt(signal, interrupts);
        handlers::changed();
        result
    }

    /// setsockopt(2): a socket may ask for more than its datagrams now.
    setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, bytes: socklen_t) -> c_int {
        let result = next::setsockopt(fd, level, name, value, bytes);
        look::option_changed(level, name);
        result
    }

    /// prctl(2): a seccomp filter may be installed with it. Arguments that the caller does not give are whatever its
    /// registers hold; they are passed on.
    prctl(option: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int {
        if option == libc::PR_SET_SECCOMP {
            options::turn_off();
        }
        next::prctl(option, a, b, c, d)
    }

    /// syscall(2): a seccomp filter may be installed with it, and descriptors may be closed. Arguments that the caller
    /// does not give are whatever its registers and its stack hold; they are passed on, and the kernel does not look at
    /// them.
    syscall(number: c_long, a: c_long, b: c_long, c: c_long, d: c_long, e: c_long, f: c_long) -> c_long {
        match number {
            libc::SYS_seccomp => options::turn_off(),
            libc::SYS_close => closing(a as c_int),
            _ => {}
        }
        next::syscall(number, a, b, c, d, e, f)
    }
}
