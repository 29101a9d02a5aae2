//! The functions that this library stands in front of, as the next library has them: the C library's, or another
//! preloaded one's.
#![allow(unsafe_code)] // Looks functions up by name.

use std::ffi::{CStr, c_char, c_int, c_long, c_uint, c_ulong, c_void};
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::Relaxed;

use libc::{
    FILE, clockid_t, epoll_event, fd_set, iovec, mmsghdr, msghdr, nfds_t, pollfd,
    sigaction as Action, sighandler_t, sigset_t, sockaddr, socklen_t, timespec, timeval,
    useconds_t,
};

/// A function that was looked up.
struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    const fn new(name: &'static [u8]) -> Self {
        match CStr::from_bytes_with_nul(name) {
            Ok(name) => Self {
                name,
                found: AtomicPtr::new(std::ptr::null_mut()),
            },
            Err(_) => panic!("a name without a zero byte at its end"),
        }
    }

    /// Looked up at the start, or here by a library that runs before that.
    #[inline]
    fn get(&self) -> *mut c_void {
        match self.found.load(Relaxed) {
            found if found.is_null() => self.find(),
            found => found,
        }
    }

    #[cold]
    fn find(&self) -> *mut c_void {
        // SAFETY: the name ends with a zero byte. RTLD_NEXT: the libraries after this one.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr().cast::<c_char>()) };
        self.found.store(found, Relaxed);
        found
    }
}

/// Makes a function for each of the C library's, and `find_all`, which looks all of them up.
macro_rules! real {
    ($($name:ident($($argument:ident: $kind:ty),*) -> $result:ty;)*) => {
        $(
            /// The next function of this name. A cancelled thread unwinds through it.
            ///
            /// # Safety
            /// As the C library's.
            #[inline]
            pub(crate) unsafe fn $name($($argument: $kind),*) -> $result {
                let function = all::$name.get();
                // SAFETY: the C library's function of this name has this signature. One that it lacks is not called by
                // a program that was linked to it.
                let function = unsafe {
                    std::mem::transmute::<*mut c_void, unsafe extern "C-unwind" fn($($kind),*) -> $result>(function)
                };
                // SAFETY: the caller's promise.
                unsafe { function($($argument),*) }
            }
        )*

        /// Looks all of them up, so that no signal handler has to.
        pub(crate) fn find_all() {
            $(all::$name.find();)*
        }

        #[allow(non_upper_case_globals)] // Named after the functions.
        mod all {
            use super::Next;
            $(pub(super) static $name: Next = Next::new(concat!(stringify!($name), "\0").as_bytes());)*
        }
    };
}

real! {
    recv(fd: c_int, buffer: *mut c_void, length: usize, flags: c_int) -> isize;
    recvfrom(fd: c_int, buffer: *mut c_void, length: usize, flags: c_int, from: *mut sockaddr, from_bytes: *mut socklen_t) -> isize;
    recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> isize;
    recvmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int;
    read(fd: c_int, buffer: *mut c_void, length: usize) -> isize;
    readv(fd: c_int, parts: *const iovec, count: c_int) -> isize;
    __read_chk(fd: c_int, buffer: *mut c_void, length: usize, room: usize) -> isize;
    __recv_chk(fd: c_int, buffer: *mut c_void, length: usize, room: usize, flags: c_int) -> isize;
    __recvfrom_chk(fd: c_int, buffer: *mut c_void, length: usize, room: usize, flags: c_int, from: *mut sockaddr, from_bytes: *mut socklen_t) -> isize;
    send(fd: c_int, bytes: *const c_void, length: usize, flags: c_int) -> isize;
    sendto(fd: c_int, bytes: *const c_void, length: usize, flags: c_int, to: *const sockaddr, to_bytes: socklen_t) -> isize;
    sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> isize;
    sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int;
    write(fd: c_int, bytes: *const c_void, length: usize) -> isize;
    writev(fd: c_int, parts: *const iovec, count: c_int) -> isize;
    poll(entries: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int;
    ppoll(entries: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    __poll_chk(entries: *mut pollfd, count: nfds_t, timeout_ms: c_int, room: usize) -> c_int;
    __ppoll_chk(entries: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t, room: usize) -> c_int;
    select(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval) -> c_int;
    pselect(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    epoll_ctl(epoll: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
    epoll_wait(epoll: c_int, events: *mut epoll_event, count: c_int, timeout_ms: c_int) -> c_int;
    epoll_pwait(epoll: c_int, events: *mut epoll_event, count: c_int, timeout_ms: c_int, mask: *const sigset_t) -> c_int;
    epoll_pwait2(epoll: c_int, events: *mut epoll_event, count: c_int, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    nanosleep(time: *const timespec, left: *mut timespec) -> c_int;
    clock_nanosleep(clock: clockid_t, flags: c_int, time: *const timespec, left: *mut timespec) -> c_int;
    usleep(microseconds: useconds_t) -> c_int;
    close(fd: c_int) -> c_int;
    close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int;
    closefrom(first: c_int) -> ();
    fclose(file: *mut FILE) -> c_int;
    dup2(fd: c_int, to: c_int) -> c_int;
    dup3(fd: c_int, to: c_int, flags: c_int) -> c_int;
    pipe(ends: *mut c_int) -> c_int;
    pipe2(ends: *mut c_int, flags: c_int) -> c_int;
    socketpair(domain: c_int, kind: c_int, protocol: c_int, ends: *mut c_int) -> c_int;
    eventfd(value: c_uint, flags: c_int) -> c_int;
    timerfd_create(clock: c_int, flags: c_int) -> c_int;
    sigaction(signal: c_int, action: *const Action, before: *mut Action) -> c_int;
    signal(signal: c_int, handler: sighandler_t) -> sighandler_t;
    siginterrupt(signal: c_int, interrupts: c_int) -> c_int;
    setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, bytes: socklen_t) -> c_int;
    prctl(option: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int;
    syscall(number: c_long, a: c_long, b: c_long, c: c_long, d: c_long, e: c_long, f: c_long) -> c_long;
}
