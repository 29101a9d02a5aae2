//! recv(2), recvfrom(2), recvmsg(2), recvmmsg(2), read(2), readv(2).
#![allow(unsafe_code)] // Exported functions with the C library's names.

use std::ffi::{c_int, c_uint, c_void};
use std::time::Duration;

use libc::{
    MSG_DONTWAIT, MSG_ERRQUEUE, MSG_OOB, iovec, mmsghdr, msghdr, pollfd, sockaddr, socklen_t,
    timespec, timeval,
};
use tautline_awake::raw::{self, Polled};
use tautline_awake::wait::{self, Beside, Waited};
use tautline_proto::time::Instant;

use super::pthread_testcancel;
use crate::deliver::Asked;
use crate::handlers::{self, Interrupted};
use crate::look::Place;
use crate::table::Slot;
use crate::{next, options, report, table};

/// Step after the wait.
enum Next {
    /// The program's call, on this descriptor: the program's own, or a copy that keeps a closed file open.
    Call(c_int),
    /// A datagram is beside the socket, whose descriptor this is.
    Take(Place, c_int),
    Fail(c_int),
}

/// Waits as predicted, makes the program's call, and learns from when it returned. `take` answers instead of the call
/// where a datagram is beside the socket, unless it is the kernel's turn.
#[inline]
fn receive<T: Copy + PartialOrd + From<i8>>(
    fd: c_int,
    flags: c_int,
    call: impl Fn(c_int) -> T,
    take: impl Fn(Place, c_int) -> Option<T>,
) -> T {
    if let Some(place) = table::place(fd)
        && flags & (MSG_OOB | MSG_ERRQUEUE) == 0
    {
        place.read();
        if place.is_full()
            && let Some(result) = take(place, fd)
        {
            counted(table::slot(fd));
            return result;
        }
    }
    let slot = match flags & (MSG_DONTWAIT | MSG_OOB | MSG_ERRQUEUE) {
        0 if !options::is_off() => table::slot(fd).filter(|_| raw::is_blocking(fd)),
        _ => None,
    };
    let Some(slot) = slot else {
        return call(fd);
    };
    let began = raw::now();
    match predicted(fd, slot, began) {
        None => learned(slot, began, call(fd)),
        Some(Next::Call(number)) => finish(fd, slot, number, call(number)),
        Some(Next::Take(place, number)) => {
            let result = take(place, number).unwrap_or_else(|| call(number));
            counted(Some(slot));
            finish(fd, slot, number, result)
        }
        Some(Next::Fail(error)) => {
            // SAFETY: a thread's own errno.
            unsafe { *libc::__errno_location() = error };
            T::from(-1)
        }
    }
}

/// A datagram was taken: the report counts it when the flow is released.
fn counted(slot: Option<&'static Slot>) {
    if report::is_wanted() {
        drop(slot.and_then(Slot::hold));
    }
}

/// The call has returned. Where another thread closed the descriptor meanwhile, the copy of it ends.
fn finish<T>(fd: c_int, slot: &'static Slot, number: c_int, result: T) -> T {
    if number != fd {
        slot.beside.release();
        // SAFETY: the copy is this library's.
        unsafe { next::close(number) };
    }
    result
}

/// The socket that is polled while the thread waits, and the place beside it.
struct Socket {
    fd: c_int,
    slot: &'static Slot,
    place: Option<Place>,
    /// Whether this thread looks there.
    looks: bool,
}

impl Beside for Socket {
    fn renumber(&mut self, entries: &mut [pollfd]) -> bool {
        let before = std::mem::replace(&mut entries[0].fd, self.slot.number(self.fd));
        before != entries[0].fd
    }

    fn begin(&mut self) -> bool {
        self.looks = self.place.is_some_and(Place::begin);
        self.looks
    }

    fn is_there(&self) -> bool {
        self.place.is_some_and(Place::is_full)
    }

    fn end(&mut self, entries: &mut [pollfd]) -> bool {
        let is_there = std::mem::take(&mut self.looks) && self.place.is_some_and(Place::end);
        if is_there {
            entries[0].revents |= libc::POLLIN;
        }
        is_there
    }
}

/// The call has returned: learns from when it did, if it has a message.
fn learned<T: PartialOrd + From<i8>>(slot: &'static Slot, began: Instant, result: T) -> T {
    if result > T::from(-1)
        && let Some(mut held) = slot.hold()
    {
        held.received(began, raw::now());
    }
    result
}

/// Waits if an arrival is expected. `None`: none is, and the program's call waits as ever.
fn predicted(fd: c_int, slot: &'static Slot, began: Instant) -> Option<Next> {
    if !options::is_awake() {
        return None;
    }
    let mut held = slot.hold()?;
    if held.flow().is_announced() || !held.flow().expects(began) {
        return None;
    }
    let handling = handlers::interrupted();
    if handling == Interrupted::Depends {
        return None;
    }
    let timeout = receive_timeout(fd);
    let deadline = timeout.map(|timeout| began + timeout);
    let place = slot.beside.ask(fd);
    let waited = loop {
        let mut entries = [entry(fd)];
        let mut flows = [Some(held.flow())];
        let beside = Socket {
            fd,
            slot,
            place,
            looks: false,
        };
        match wait::until_ready(&mut entries, &mut flows, deadline, std::ptr::null(), beside) {
            // Goes on, unless there is a timeout: then the kernel fails whatever the handlers say (signal(7)).
            Waited::Interrupted if timeout.is_none() && handling == Interrupted::GoesOn => {}
            waited => break waited,
        }
    };
    let number = slot.number(fd);
    slot.forget_copy();
    drop(held);
    match (waited, deadline) {
        (Waited::Interrupted, _) => {
            // SAFETY: no arguments. The thread may be cancelled here: nothing is held.
            unsafe { pthread_testcancel() };
            Some(Next::Fail(libc::EINTR))
        }
        (Waited::Ready, _) => Some(match place.filter(|place| place.is_full()) {
            Some(place) => Next::Take(place, number),
            None => Next::Call(number),
        }),
        (Waited::TimedOut, _) => Some(Next::Fail(libc::EAGAIN)),
        (Waited::Unknown, Some(deadline)) => match wait_for_rest(number, deadline) {
            Ok(()) => Some(Next::Call(number)),
            Err(error) => Some(Next::Fail(error)),
        },
        (Waited::Unknown, None) if number == fd => None,
        (Waited::Unknown, None) => Some(Next::Call(number)),
    }
}

fn entry(fd: c_int) -> pollfd {
    pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    }
}

/// A socket's own timeout began with the program's call: what is left of it is waited for here.
fn wait_for_rest(fd: c_int, deadline: Instant) -> Result<(), c_int> {
    let mut entries = [entry(fd)];
    match raw::poll(&mut entries, Some(deadline), raw::now(), std::ptr::null()) {
        Polled::Ready | Polled::Refused => Ok(()),
        Polled::Nothing => Err(libc::EAGAIN),
        Polled::Interrupted => Err(libc::EINTR),
    }
}

fn receive_timeout(fd: c_int) -> Option<Duration> {
    let none = timeval {
        tv_sec: 0,
        tv_usec: 0,
    };
    let time = raw::socket_option(fd, (libc::SOL_SOCKET, libc::SO_RCVTIMEO), none)?;
    let time = Duration::from_secs(time.tv_sec as u64) + Duration::from_micros(time.tv_usec as u64);
    (!time.is_zero()).then_some(time)
}

macro_rules! receives {
    ($($(#[$text:meta])* $name:ident($fd:ident: c_int, $($argument:ident: $kind:ty),*; $flags:expr; $asked:expr) -> isize;)*) => {
        $(
            $(#[$text])*
            ///
            /// # Safety
            /// As the C library's.
            #[unsafe(no_mangle)]
            pub unsafe extern "C-unwind" fn $name($fd: c_int, $($argument: $kind),*) -> isize {
                // SAFETY: the caller's promise.
                let call = |fd| unsafe { next::$name(fd, $($argument),*) };
                // SAFETY: the same.
                let take = |place, fd| unsafe {
                    let asked: Option<Asked> = $asked;
                    asked?.take(place, fd, $flags)
                };
                receive($fd, $flags, call, take)
            }
        )*
    };
}

const NO_NAME: (*mut sockaddr, *mut socklen_t) = (std::ptr::null_mut(), std::ptr::null_mut());

receives! {
    /// recv(2).
    recv(fd: c_int, buffer: *mut c_void, length: usize, flags: c_int; flags; Some(Asked::receive(buffer, length, NO_NAME))) -> isize;
    /// recvfrom(2).
    recvfrom(fd: c_int, buffer: *mut c_void, length: usize, flags: c_int, from: *mut sockaddr, from_bytes: *mut socklen_t; flags; Some(Asked::receive(buffer, length, (from, from_bytes)))) -> isize;
    /// recvmsg(2).
    recvmsg(fd: c_int, message: *mut msghdr, flags: c_int; flags; Some(Asked::message(message))) -> isize;
    /// read(2).
    read(fd: c_int, buffer: *mut c_void, length: usize; 0; Some(Asked::read(buffer, length))) -> isize;
    /// readv(2).
    readv(fd: c_int, parts: *const iovec, count: c_int; 0; Some(Asked::parts(parts, count))) -> isize;
    /// read(2) of a program that was compiled with checks of its buffers.
    __read_chk(fd: c_int, buffer: *mut c_void, length: usize, room: usize; 0; (length <= room).then(|| Asked::read(buffer, length))) -> isize;
    /// recv(2) of a program that was compiled with checks of its buffers.
    __recv_chk(fd: c_int, buffer: *mut c_void, length: usize, room: usize, flags: c_int; flags; (length <= room).then(|| Asked::receive(buffer, length, NO_NAME))) -> isize;
    /// recvfrom(2) of a program that was compiled with checks of its buffers.
    __recvfrom_chk(fd: c_int, buffer: *mut c_void, length: usize, room: usize, flags: c_int, from: *mut sockaddr, from_bytes: *mut socklen_t; flags; (length <= room).then(|| Asked::receive(buffer, length, (from, from_bytes)))) -> isize;
}

/// Takes what is beside a socket as the first of several messages. The kernel answers for the rest, if there is one at
/// once or the call is to wait for all.
///
/// # Safety
/// As recvmmsg(2).
unsafe fn take_first(
    (place, fd): (Place, c_int),
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> Option<c_int> {
    if count == 0 {
        return None;
    }
    // SAFETY: the caller's promise.
    unsafe {
        let asked = Asked::message(&raw mut (*messages).msg_hdr);
        (*messages).msg_len = asked.take(place, fd, flags)? as c_uint;
        let is_over = !timeout.is_null() && (*timeout).tv_sec == 0 && (*timeout).tv_nsec == 0;
        if count == 1 || is_over {
            return Some(1);
        }
        let mut flags = flags;
        if flags & libc::MSG_WAITFORONE != 0 {
            flags |= MSG_DONTWAIT;
        }
        let rest = next::recvmmsg(fd, messages.add(1), count - 1, flags, timeout);
        Some(1 + rest.max(0))
    }
}

hooks! {
    /// recvmmsg(2). The kernel begins to count its timeout with the call: a call that has one is not waited for here.
    recvmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int {
        let waits = if timeout.is_null() { flags } else { flags | MSG_DONTWAIT };
        let call = |fd| next::recvmmsg(fd, messages, count, flags, timeout);
        let take = |place, fd| take_first((place, fd), messages, count, flags, timeout);
        receive(fd, waits, call, take)
    }
}
