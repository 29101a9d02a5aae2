//! poll(2), ppoll(2), select(2), pselect(2), epoll_wait(2), epoll_pwait(2), epoll_pwait2(2): waits for several
//! descriptors.
#![allow(unsafe_code)] // Exported functions with the C library's names.

use std::ffi::c_int;
use std::time::Duration;

use libc::{POLLIN, epoll_event, fd_set, nfds_t, pollfd, sigset_t, timespec, timeval};
use tautline_awake::flow::Flow;
use tautline_awake::raw;
use tautline_awake::wait::{self, Waited};
use tautline_proto::time::Instant;

use super::sending;
use crate::table::{self, Held, Slot};
use crate::{options, real};

/// Descriptors in a set that are predicted. The kernel alone waits for larger ones: each look goes through the list.
const MEMBERS_MAX: usize = 8;

/// A set of descriptors that a call waits for.
struct Members {
    entries: [pollfd; MEMBERS_MAX],
    slots: [Option<&'static Slot>; MEMBERS_MAX],
    count: usize,
}

impl Members {
    const fn new() -> Self {
        const NOTHING: pollfd = pollfd {
            fd: -1,
            events: 0,
            revents: 0,
        };
        Self {
            entries: [NOTHING; MEMBERS_MAX],
            slots: [None; MEMBERS_MAX],
            count: 0,
        }
    }

    /// Adds a descriptor; `false` if there is no room.
    fn add(&mut self, entry: pollfd, slot: Option<&'static Slot>) -> bool {
        let Some(place) = self.entries.get_mut(self.count) else {
            return false;
        };
        *place = pollfd {
            revents: 0,
            ..entry
        };
        self.slots[self.count] = slot;
        self.count += 1;
        true
    }

    fn is_predictable(&self) -> bool {
        self.slots.iter().any(Option::is_some)
    }

    /// Waits as predicted, until `deadline`; what the program's call is to do then.
    fn wait(&mut self, began: Instant, deadline: Option<Instant>, mask: *const sigset_t) -> Before {
        if !options::is_awake() {
            return Before::Untouched;
        }
        let mut held: [Option<Held>; MEMBERS_MAX] = [const { None }; MEMBERS_MAX];
        for (held, slot) in held.iter_mut().zip(self.slots) {
            *held = slot.and_then(Slot::hold);
        }
        let sent = sending::last_sent();
        let mut flows: [Option<&mut Flow>; MEMBERS_MAX] =
            held.each_mut().map(|held| held.as_mut().map(Held::flow));
        if let (Some(at), 1) = (sent, self.count)
            && let Some(flow) = flows[0].as_mut()
        {
            flow.sent(at);
        }
        if !flows.iter_mut().flatten().any(|flow| flow.expects(began)) {
            return Before::Untouched;
        }
        let entries = &mut self.entries[..self.count];
        match wait::until_ready(entries, &mut flows, deadline, mask, |_| {}) {
            Waited::Ready => Before::Found,
            Waited::Interrupted => Before::Interrupted,
            Waited::TimedOut | Waited::Unknown => Before::Untouched,
        }
    }

    /// The program's call has returned: learns from what it found.
    fn learn(&self, began: Instant, is_ready: impl Fn(usize) -> bool) {
        let now = raw::now();
        for (index, slot) in self.slots[..self.count].iter().enumerate() {
            if let Some(mut held) = slot.filter(|_| is_ready(index)).and_then(Slot::hold) {
                held.returned(began, now);
            }
        }
    }
}

/// Outcome of the wait before the program's call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Before {
    /// Nothing is expected now; the call waits for what is left of its time, and teaches.
    Untouched,
    /// Something is there, and was learned from.
    Found,
    Interrupted,
}

/// A call on a set: the wait before it, the call with the time that is left, and the lesson. `ready` says of a member
/// whether the call found it.
fn waited(
    members: &mut Members,
    timeout: Option<Duration>,
    mask: *const sigset_t,
    call: impl Fn(Option<Duration>) -> c_int,
    ready: impl Fn(usize) -> bool,
) -> c_int {
    let began = raw::now();
    let deadline = timeout.map(|timeout| began + timeout);
    let before = members.wait(began, deadline, mask);
    if before == Before::Interrupted {
        return interrupted();
    }
    let left = deadline.map(|deadline| deadline.saturating_duration_since(raw::now()));
    let result = call(left);
    if result > 0 && before == Before::Untouched {
        members.learn(began, ready);
    }
    result
}

unsafe extern "C-unwind" {
    fn pthread_testcancel();
}

fn interrupted() -> c_int {
    // SAFETY: no arguments; a thread's own errno. The thread may be cancelled here: nothing is held.
    unsafe {
        pthread_testcancel();
        *libc::__errno_location() = libc::EINTR;
    }
    -1
}

/// The members of a list of poll(2), if they can be predicted: a short list that the program may read.
fn members_of(entries: *const pollfd, count: nfds_t, timeout: Option<Duration>) -> Option<Members> {
    let is_short = (1..=MEMBERS_MAX as nfds_t).contains(&count);
    if options::is_off()
        || !is_short
        || entries.is_null()
        || timeout.is_some_and(|time| time.is_zero())
    {
        return None;
    }
    let mut members = Members::new();
    for index in 0..count as usize {
        // SAFETY: the caller's promise: a list of that many entries.
        let entry = unsafe { entries.add(index).read() };
        let slot = (entry.events & POLLIN != 0)
            .then(|| table::slot(entry.fd))
            .flatten();
        members.add(entry, slot);
    }
    members.is_predictable().then_some(members)
}

/// Whole milliseconds, rounded up: no call returns before its time.
fn milliseconds(time: Option<Duration>) -> c_int {
    time.map_or(-1, |time| {
        let ms = time.as_nanos().div_ceil(1_000_000);
        c_int::try_from(ms).unwrap_or(c_int::MAX)
    })
}

fn time_of_milliseconds(time: c_int) -> Option<Duration> {
    u64::try_from(time).ok().map(Duration::from_millis)
}

/// A C time; `Err` for one that the kernel must judge.
///
/// # Safety
/// Null, or readable.
unsafe fn time_of(time: *const timespec) -> Result<Option<Duration>, ()> {
    if time.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    let instant = raw::instant_of(unsafe { &*time }).ok_or(())?;
    Ok(Some(Duration::from_nanos(instant.as_nanos())))
}

/// poll(2).
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn poll(
    entries: *mut pollfd,
    count: nfds_t,
    timeout_ms: c_int,
) -> c_int {
    let timeout = time_of_milliseconds(timeout_ms);
    let Some(mut members) = members_of(entries, count, timeout) else {
        // SAFETY: the caller's promise.
        return unsafe { real::poll(entries, count, timeout_ms) };
    };
    let call = |left: Option<Duration>| {
        let left = left.map(raw::timespec_of);
        let left = left.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: the caller's promise. Nanoseconds: the call ends when its milliseconds are over.
        unsafe { real::ppoll(entries, count, left, std::ptr::null()) }
    };
    // SAFETY: the caller's promise.
    let ready = |index| unsafe { (*entries.add(index)).revents & POLLIN != 0 };
    waited(&mut members, timeout, std::ptr::null(), call, ready)
}

/// poll(2) of a program that was compiled with checks of its buffers.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __poll_chk(
    entries: *mut pollfd,
    count: nfds_t,
    timeout_ms: c_int,
    room: usize,
) -> c_int {
    if room / size_of::<pollfd>() < count as usize {
        // SAFETY: the caller's promise.
        return unsafe { real::__poll_chk(entries, count, timeout_ms, room) };
    }
    // SAFETY: the caller's promise.
    unsafe { poll(entries, count, timeout_ms) }
}

/// ppoll(2).
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ppoll(
    entries: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller's promise.
    let time = unsafe { time_of(timeout) };
    let members = time.ok().and_then(|time| members_of(entries, count, time));
    let (Some(mut members), Ok(time)) = (members, time) else {
        // SAFETY: the caller's promise.
        return unsafe { real::ppoll(entries, count, timeout, mask) };
    };
    let call = |left: Option<Duration>| {
        let left = left.map(raw::timespec_of);
        let left = left.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: the caller's promise.
        unsafe { real::ppoll(entries, count, left, mask) }
    };
    // SAFETY: the caller's promise.
    let ready = |index| unsafe { (*entries.add(index)).revents & POLLIN != 0 };
    waited(&mut members, time, mask, call, ready)
}

/// ppoll(2) of a program that was compiled with checks of its buffers.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __ppoll_chk(
    entries: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    room: usize,
) -> c_int {
    if room / size_of::<pollfd>() < count as usize {
        // SAFETY: the caller's promise.
        return unsafe { real::__ppoll_chk(entries, count, timeout, mask, room) };
    }
    // SAFETY: the caller's promise.
    unsafe { ppoll(entries, count, timeout, mask) }
}

/// Whether a set of select(2) has a descriptor.
///
/// # Safety
/// Null, or a set of more than `fd` bits.
unsafe fn has(set: *const fd_set, fd: c_int) -> bool {
    let bits = libc::c_ulong::BITS as usize;
    // SAFETY: the caller's promise.
    !set.is_null()
        && unsafe { set.cast::<libc::c_ulong>().add(fd as usize / bits).read() }
            >> (fd as usize % bits)
            & 1
            != 0
}

/// The members of the sets of select(2), if they can be predicted.
///
/// # Safety
/// Sets of at least `count` bits, or null.
unsafe fn members_of_sets(
    count: c_int,
    sets: [*const fd_set; 3],
    timeout: Option<Duration>,
) -> Option<Members> {
    let is_short = (1..=table::SLOTS as c_int).contains(&count);
    if options::is_off()
        || !is_short
        || sets[0].is_null()
        || timeout.is_some_and(|time| time.is_zero())
    {
        return None;
    }
    let mut members = Members::new();
    for fd in 0..count {
        let mut events = 0;
        for (set, event) in sets.iter().zip([POLLIN, libc::POLLOUT, libc::POLLPRI]) {
            // SAFETY: the caller's promise.
            if unsafe { has(*set, fd) } {
                events |= event;
            }
        }
        let slot = (events & POLLIN != 0).then(|| table::slot(fd)).flatten();
        let entry = pollfd {
            fd,
            events,
            revents: 0,
        };
        if events != 0 && !members.add(entry, slot) {
            return None;
        }
    }
    members.is_predictable().then_some(members)
}

/// select(2), which also writes the time that is left.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    let mut limit = Ok(None);
    if !timeout.is_null() {
        // SAFETY: the caller's promise.
        let time = unsafe { &*timeout };
        let seconds = u64::try_from(time.tv_sec).map_err(drop);
        let micros = u32::try_from(time.tv_usec)
            .ok()
            .filter(|micros| *micros < 1_000_000)
            .ok_or(());
        limit = seconds
            .and_then(|seconds| micros.map(|micros| Some(Duration::new(seconds, micros * 1_000))));
    }
    let sets = [read.cast_const(), write.cast_const(), except.cast_const()];
    // SAFETY: the caller's promise.
    let members = limit
        .ok()
        .and_then(|limit| unsafe { members_of_sets(count, sets, limit) });
    let (Some(mut members), Ok(limit)) = (members, limit) else {
        // SAFETY: the caller's promise.
        return unsafe { real::select(count, read, write, except, timeout) };
    };
    let call = |left: Option<Duration>| {
        if let Some(left) = left {
            // SAFETY: the caller's promise: a time that select(2) may write.
            unsafe {
                (*timeout).tv_sec = left.as_secs() as libc::time_t;
                (*timeout).tv_usec = left.subsec_micros().into();
            }
        }
        // SAFETY: the caller's promise.
        unsafe { real::select(count, read, write, except, timeout) }
    };
    let fds = members.entries.map(|entry| entry.fd);
    // SAFETY: the caller's promise.
    let ready = |index: usize| unsafe { has(read, fds[index]) };
    waited(&mut members, limit, std::ptr::null(), call, ready)
}

/// pselect(2).
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller's promise.
    let limit = unsafe { time_of(timeout) };
    let sets = [read.cast_const(), write.cast_const(), except.cast_const()];
    // SAFETY: the caller's promise.
    let members = limit
        .ok()
        .and_then(|limit| unsafe { members_of_sets(count, sets, limit) });
    let (Some(mut members), Ok(limit)) = (members, limit) else {
        // SAFETY: the caller's promise.
        return unsafe { real::pselect(count, read, write, except, timeout, mask) };
    };
    let call = |left: Option<Duration>| {
        let left = left.map(raw::timespec_of);
        let left = left.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: the caller's promise.
        unsafe { real::pselect(count, read, write, except, left, mask) }
    };
    let fds = members.entries.map(|entry| entry.fd);
    // SAFETY: the caller's promise.
    let ready = |index: usize| unsafe { has(read, fds[index]) };
    waited(&mut members, limit, mask, call, ready)
}

/// An epoll instance is one flow: its members' arrivals together.
fn epoll_members(epoll: c_int, timeout: Option<Duration>) -> Option<Members> {
    if options::is_off() || timeout.is_some_and(|time| time.is_zero()) {
        return None;
    }
    let slot = table::slot_of_set(epoll)?;
    let mut members = Members::new();
    let entry = pollfd {
        fd: epoll,
        events: POLLIN,
        revents: 0,
    };
    members.add(entry, Some(slot));
    Some(members)
}

/// epoll_wait(2).
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn epoll_wait(
    epoll: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout_ms: c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { epoll_pwait(epoll, events, count, timeout_ms, std::ptr::null()) }
}

/// epoll_pwait(2).
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn epoll_pwait(
    epoll: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout_ms: c_int,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller's promise.
    let call = |left| unsafe {
        match mask.is_null() {
            true => real::epoll_wait(epoll, events, count, milliseconds(left)),
            false => real::epoll_pwait(epoll, events, count, milliseconds(left), mask),
        }
    };
    let timeout = time_of_milliseconds(timeout_ms);
    match epoll_members(epoll, timeout) {
        None => call(timeout),
        Some(mut members) => waited(&mut members, timeout, mask, call, |_| true),
    }
}

/// epoll_pwait2(2).
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn epoll_pwait2(
    epoll: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller's promise.
    let limit = unsafe { time_of(timeout) };
    let members = limit.ok().and_then(|limit| epoll_members(epoll, limit));
    let (Some(mut members), Ok(limit)) = (members, limit) else {
        // SAFETY: the caller's promise.
        return unsafe { real::epoll_pwait2(epoll, events, count, timeout, mask) };
    };
    let call = |left: Option<Duration>| {
        let left = left.map(raw::timespec_of);
        let left = left.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: the caller's promise.
        unsafe { real::epoll_pwait2(epoll, events, count, left, mask) }
    };
    waited(&mut members, limit, mask, call, |_| true)
}
