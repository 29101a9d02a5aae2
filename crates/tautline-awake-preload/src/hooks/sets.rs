//! poll(2), ppoll(2), select(2), pselect(2): waits for a list of descriptors.
#![allow(unsafe_code)] // Exported functions with the C library's names.

use std::ffi::c_int;
use std::time::Duration;

use libc::{POLLIN, fd_set, nfds_t, pollfd, sigset_t, timespec, timeval};
use tautline_awake::flow::Flow;
use tautline_awake::raw::{self, Polled};
use tautline_awake::wait::{self, Beside, Waited};
use tautline_proto::time::Instant;

use super::{pthread_testcancel, sending};
use crate::look::Place;
use crate::table::{self, Held, Slot};
use crate::{look, next, options};

/// Descriptors in a set that are predicted. The kernel alone waits for larger ones: each look goes through the list.
const MEMBERS_MAX: usize = 8;

/// A set of descriptors that a call waits for.
struct Members {
    entries: [pollfd; MEMBERS_MAX],
    /// Slots of the members that are predicted.
    slots: [Option<&'static Slot>; MEMBERS_MAX],
    count: usize,
    /// Another thread closed a member meanwhile: `entries` has the copy that keeps its file open.
    has_copies: bool,
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
            has_copies: false,
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
        if self.places().any(|(_, place)| place.is_full()) {
            return Before::Beside;
        }
        if !options::is_awake() {
            return Before::Untouched;
        }
        let mut held: [Option<Held>; MEMBERS_MAX] = [const { None }; MEMBERS_MAX];
        for (held, slot) in held.iter_mut().zip(self.slots) {
            *held = slot.and_then(Slot::hold);
        }
        let is_held = held.each_ref().map(Option::is_some);
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
        // As the kernel does during a call, a member's file stays open if another thread closes it.
        let keepers = Keepers::hold(&self.entries[..self.count], is_held);
        let looks = Looks {
            keepers: &keepers,
            places: self.places_to_look_at(),
            looks: [false; MEMBERS_MAX],
        };
        let entries = &mut self.entries[..self.count];
        let waited = wait::until_ready(entries, &mut flows, deadline, mask, looks);
        self.has_copies = keepers.take_copies(entries);
        match waited {
            Waited::Ready if self.places().any(|(_, place)| place.is_full()) => Before::Beside,
            Waited::Ready => Before::Found,
            Waited::Interrupted => Before::Interrupted,
            Waited::TimedOut | Waited::Unknown => Before::Untouched,
        }
    }

    /// Members with a place beside them, and their places.
    fn places(&self) -> impl Iterator<Item = (usize, Place)> {
        let slots = self.slots[..self.count].iter().enumerate();
        slots.filter_map(|(index, slot)| Some((index, slot.as_ref()?.beside.place()?)))
    }

    /// Places of members that the program reads by the calls of this library: what is announced is found then.
    fn places_to_look_at(&self) -> [Option<Place>; MEMBERS_MAX] {
        let mut places = [None; MEMBERS_MAX];
        let members = self.entries.iter().zip(self.slots).take(self.count);
        for ((entry, slot), place) in members.zip(&mut places) {
            let found = slot.and_then(|slot| slot.beside.ask(entry.fd));
            *place = found.filter(|place| place.is_read());
        }
        places
    }

    /// Answers where datagrams are beside members: with those, and with what the kernel says of the members now.
    fn announce(&mut self, store: impl FnOnce(&[pollfd]) -> c_int) -> c_int {
        let entries = &mut self.entries[..self.count];
        raw::poll(entries, Some(Instant::ZERO), raw::now(), std::ptr::null());
        let mut is_full = [false; MEMBERS_MAX];
        for (index, place) in self.places().filter(|(_, place)| place.is_full()) {
            is_full[index] = true;
            place.announced();
        }
        let entries = &mut self.entries[..self.count];
        for (entry, is_full) in entries.iter_mut().zip(is_full) {
            if is_full {
                entry.revents |= entry.events & (POLLIN | libc::POLLRDNORM);
            }
        }
        store(entries)
    }

    /// Waits for what is left with the copies of closed members, of which `fds` are the program's numbers, and answers
    /// as the kernel does: its last look at the members finds nothing under those numbers.
    #[cold]
    fn finish(
        &mut self,
        fds: [c_int; MEMBERS_MAX],
        before: Before,
        deadline: Option<Instant>,
        mask: *const sigset_t,
        store: impl FnOnce(&[pollfd]) -> c_int,
    ) -> c_int {
        let entries = &mut self.entries[..self.count];
        let found = match before {
            Before::Interrupted => Polled::Interrupted,
            Before::Found | Before::Beside => Polled::Ready,
            Before::Untouched => raw::poll(entries, deadline, raw::now(), mask),
        };
        let mut copies = [None; MEMBERS_MAX];
        for ((entry, fd), copy) in entries.iter_mut().zip(fds).zip(&mut copies) {
            let open = std::mem::replace(&mut entry.fd, fd);
            *copy = (open != fd).then_some(open);
        }
        let result = match found {
            Polled::Interrupted => interrupted(),
            Polled::Ready | Polled::Nothing | Polled::Refused => {
                raw::poll(entries, Some(Instant::ZERO), raw::now(), std::ptr::null());
                store(entries)
            }
        };
        for copy in copies.into_iter().flatten() {
            // SAFETY: the copy is this library's.
            unsafe { next::close(copy) };
        }
        result
    }

    /// The program's call has returned: learns from what it found, unless the wait before it has. The program's next
    /// receive at a member takes the arrival that is counted here, and does not count again.
    fn learn(&self, before: Before, began: Instant, is_ready: impl Fn(usize) -> bool) {
        for (index, slot) in self.slots[..self.count].iter().enumerate() {
            let slot = slot.filter(|_| is_ready(index));
            let Some(mut held) = slot.and_then(Slot::hold) else {
                continue;
            };
            if before == Before::Untouched {
                held.returned(began, raw::now());
            }
            held.flow().announce();
        }
    }
}

/// Slots of a set's descriptors, predicted or not, by which other threads see that a thread waits there.
struct Keepers {
    slots: [Option<(c_int, &'static Slot)>; MEMBERS_MAX],
    /// Those that are not held for their flow.
    _held: [Option<Held>; MEMBERS_MAX],
}

impl Keepers {
    fn hold(entries: &[pollfd], is_held: [bool; MEMBERS_MAX]) -> Self {
        let mut keepers = Self {
            slots: [None; MEMBERS_MAX],
            _held: [const { None }; MEMBERS_MAX],
        };
        for (index, entry) in entries.iter().enumerate() {
            let Some(slot) = table::slot_of_set(entry.fd) else {
                continue;
            };
            if !is_held[index] {
                keepers._held[index] = slot.hold();
            }
            if is_held[index] || keepers._held[index].is_some() {
                keepers.slots[index] = Some((entry.fd, slot));
            }
        }
        keepers
    }

    /// Enters the copies of descriptors that were closed: whether there are new ones.
    fn renumber(&self, entries: &mut [pollfd]) -> bool {
        let mut is_new = false;
        for (entry, slot) in entries.iter_mut().zip(self.slots) {
            if let Some((fd, slot)) = slot {
                let before = std::mem::replace(&mut entry.fd, slot.number(fd));
                is_new |= before != entry.fd;
            }
        }
        is_new
    }

    /// Takes the copies over, for the caller to close: whether there are any.
    fn take_copies(&self, entries: &mut [pollfd]) -> bool {
        self.renumber(entries);
        let mut has_copies = false;
        for (entry, slot) in entries.iter().zip(self.slots) {
            if let Some((_, slot)) = slot.filter(|(fd, _)| *fd != entry.fd) {
                slot.beside.release();
                slot.forget_copy();
                has_copies = true;
            }
        }
        has_copies
    }
}

/// The members while a call waits for them, and what lies beside them.
struct Looks<'k> {
    keepers: &'k Keepers,
    places: [Option<Place>; MEMBERS_MAX],
    /// Where this thread looks.
    looks: [bool; MEMBERS_MAX],
}

impl Beside for Looks<'_> {
    fn renumber(&mut self, entries: &mut [pollfd]) -> bool {
        self.keepers.renumber(entries)
    }

    fn begin(&mut self) -> bool {
        self.looks = self.places.map(|place| place.is_some_and(Place::begin));
        self.looks.contains(&true)
    }

    fn is_there(&self) -> bool {
        self.places.iter().flatten().any(|place| place.is_full())
    }

    fn end(&mut self, entries: &mut [pollfd]) -> bool {
        let mut is_there = false;
        for ((entry, place), looks) in entries.iter_mut().zip(self.places).zip(self.looks) {
            if looks && place.is_some_and(Place::end) {
                entry.revents |= POLLIN;
                is_there = true;
            }
        }
        self.looks = [false; MEMBERS_MAX];
        is_there
    }
}

/// Outcome of the wait before the program's call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Before {
    /// Nothing is expected now; the call waits for what is left of its time, and teaches.
    Untouched,
    /// Something is there, and was learned from.
    Found,
    /// A datagram is beside a member, and was learned from.
    Beside,
    Interrupted,
}

/// A call on a set: the wait before it, the call with the time that is left, and the lesson. `ready` says of a member,
/// by the call's result, whether something arrived there. `store` answers instead of the call where another thread
/// closed a member meanwhile: from what poll(2) says of the members.
fn waited(
    members: &mut Members,
    timeout: Option<Duration>,
    mask: *const sigset_t,
    call: impl Fn(Option<Duration>) -> c_int,
    ready: impl Fn(usize) -> bool,
    store: impl FnOnce(&[pollfd]) -> c_int,
) -> c_int {
    let began = raw::now();
    let deadline = timeout.map(|timeout| began + timeout);
    let fds = members.entries.map(|entry| entry.fd);
    let before = members.wait(began, deadline, mask);
    if members.has_copies {
        return members.finish(fds, before, deadline, mask, store);
    }
    match before {
        Before::Interrupted => return interrupted(),
        Before::Beside => return members.announce(store),
        Before::Found | Before::Untouched => {}
    }
    let left = deadline.map(|deadline| deadline.saturating_duration_since(raw::now()));
    let result = call(left);
    members.learn(before, began, |index| result > 0 && ready(index));
    result
}

pub(super) fn interrupted() -> c_int {
    // SAFETY: no arguments; a thread's own errno. The thread may be cancelled here: nothing is held.
    unsafe {
        pthread_testcancel();
        *libc::__errno_location() = libc::EINTR;
    }
    -1
}

/// Whether a call does not wait, and no call has announced what is beside a socket: the kernel knows all of it.
fn is_just_a_look(timeout: Option<Duration>) -> bool {
    timeout.is_some_and(|time| time.is_zero()) && !look::has_announced()
}

/// The members of a list of poll(2), if they can be predicted: a short list that the program may read.
fn members_of(entries: *const pollfd, count: nfds_t, timeout: Option<Duration>) -> Option<Members> {
    let is_short = (1..=MEMBERS_MAX as nfds_t).contains(&count);
    if options::is_off() || !is_short || entries.is_null() || is_just_a_look(timeout) {
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

pub(super) fn time_of_milliseconds(time: c_int) -> Option<Duration> {
    u64::try_from(time).ok().map(Duration::from_millis)
}

/// A C time; `Err` for one that the kernel must judge.
///
/// # Safety
/// Null, or readable.
pub(super) unsafe fn time_of(time: *const timespec) -> Result<Option<Duration>, ()> {
    if time.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    let instant = raw::instant_of(unsafe { &*time }).ok_or(())?;
    Ok(Some(Duration::from_nanos(instant.as_nanos())))
}

/// Makes a call with a time as C has it: null without one.
pub(super) fn with_time(
    time: Option<Duration>,
    call: impl FnOnce(*const timespec) -> c_int,
) -> c_int {
    let time = time.map(raw::timespec_of);
    call(time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref))
}

/// poll(2) and ppoll(2). `plain` is the program's call as it is: also for a time that the kernel must judge.
///
/// # Safety
/// As ppoll(2).
unsafe fn wait_for_list(
    entries: *mut pollfd,
    count: nfds_t,
    time: Result<Option<Duration>, ()>,
    mask: *const sigset_t,
    plain: impl FnOnce() -> c_int,
) -> c_int {
    let members = time.ok().and_then(|time| members_of(entries, count, time));
    let (Some(mut members), Ok(time)) = (members, time) else {
        return plain();
    };
    let call = |left| {
        // SAFETY: the caller's promise. Nanoseconds: the call ends when the program's milliseconds are over.
        let real = |left| unsafe { next::ppoll(entries, count, left, mask) };
        with_time(left, real)
    };
    // SAFETY: the caller's promise.
    let ready = |index| unsafe { (*entries.add(index)).revents & POLLIN != 0 };
    let store = |found: &[pollfd]| {
        for (index, entry) in found.iter().enumerate() {
            // SAFETY: the caller's promise: a list of at least as many entries.
            unsafe { (*entries.add(index)).revents = entry.revents };
        }
        found.iter().filter(|entry| entry.revents != 0).count() as c_int
    };
    waited(&mut members, time, mask, call, ready, store)
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
    sets: [*mut fd_set; 3],
    timeout: Option<Duration>,
) -> Option<Members> {
    let is_short = (1..=table::SLOTS as c_int).contains(&count);
    if options::is_off() || !is_short || sets[0].is_null() || is_just_a_look(timeout) {
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

/// A time of select(2); `Err` for one that the kernel must judge.
///
/// # Safety
/// Null, or readable.
unsafe fn limit_of(timeout: *const timeval) -> Result<Option<Duration>, ()> {
    if timeout.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    let time = unsafe { *timeout };
    match (u64::try_from(time.tv_sec), u32::try_from(time.tv_usec)) {
        (Ok(seconds), Ok(micros @ 0..1_000_000)) => {
            Ok(Some(Duration::new(seconds, micros * 1_000)))
        }
        _ => Err(()),
    }
}

/// select(2) and pselect(2): `plain` is the program's call as it is, `call` the one with what is left of its time.
///
/// # Safety
/// As pselect(2).
unsafe fn wait_for_sets(
    count: c_int,
    sets: [*mut fd_set; 3],
    limit: Result<Option<Duration>, ()>,
    mask: *const sigset_t,
    plain: impl FnOnce() -> c_int,
    call: impl Fn(Option<Duration>) -> c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    let members = limit
        .ok()
        .and_then(|limit| unsafe { members_of_sets(count, sets, limit) });
    let (Some(mut members), Ok(limit)) = (members, limit) else {
        return plain();
    };
    let fds = members.entries.map(|entry| entry.fd);
    // SAFETY: the caller's promise.
    let ready = |index: usize| unsafe { has(sets[0], fds[index]) };
    // SAFETY: the caller's promise.
    let store = |found: &[pollfd]| unsafe { store_sets(count, sets, &fds, found) };
    waited(&mut members, limit, mask, call, ready, store)
}

/// Writes what poll(2) found at the members, whose numbers are `fds`, into the sets of select(2), as the kernel
/// translates it. How many bits are set.
///
/// # Safety
/// Sets of at least `count` bits, or null.
unsafe fn store_sets(
    count: c_int,
    sets: [*mut fd_set; 3],
    fds: &[c_int],
    found: &[pollfd],
) -> c_int {
    let bits = libc::c_ulong::BITS as usize;
    let meanings = [
        (
            POLLIN,
            POLLIN | libc::POLLHUP | libc::POLLERR | libc::POLLNVAL,
        ),
        (
            libc::POLLOUT,
            libc::POLLOUT | libc::POLLERR | libc::POLLNVAL,
        ),
        (libc::POLLPRI, libc::POLLPRI | libc::POLLNVAL),
    ];
    let mut ready = 0;
    for (set, (asked, meaning)) in sets.into_iter().zip(meanings) {
        if set.is_null() {
            continue;
        }
        let words = set.cast::<libc::c_ulong>();
        for word in 0..(count as usize).div_ceil(bits) {
            // SAFETY: the caller's promise.
            unsafe { *words.add(word) = 0 };
        }
        for (entry, fd) in found.iter().zip(fds) {
            if entry.events & asked != 0 && entry.revents & meaning != 0 {
                // SAFETY: the caller's promise: members are below `count`.
                unsafe { *words.add(*fd as usize / bits) |= 1 << (*fd as usize % bits) };
                ready += 1;
            }
        }
    }
    ready
}

hooks! {
    /// poll(2).
    poll(entries: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int {
        let time = Ok(time_of_milliseconds(timeout_ms));
        let plain = || next::poll(entries, count, timeout_ms);
        wait_for_list(entries, count, time, std::ptr::null(), plain)
    }

    /// ppoll(2).
    ppoll(entries: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int {
        let plain = || next::ppoll(entries, count, timeout, mask);
        wait_for_list(entries, count, time_of(timeout), mask, plain)
    }

    /// poll(2) of a program that was compiled with checks of its buffers.
    __poll_chk(entries: *mut pollfd, count: nfds_t, timeout_ms: c_int, room: usize) -> c_int {
        match room / size_of::<pollfd>() < count as usize {
            true => next::__poll_chk(entries, count, timeout_ms, room),
            false => poll(entries, count, timeout_ms),
        }
    }

    /// ppoll(2) of a program that was compiled with checks of its buffers.
    __ppoll_chk(entries: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t, room: usize) -> c_int {
        match room / size_of::<pollfd>() < count as usize {
            true => next::__ppoll_chk(entries, count, timeout, mask, room),
            false => ppoll(entries, count, timeout, mask),
        }
    }

    /// select(2), which also writes the time that is left.
    select(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval) -> c_int {
        let plain = || next::select(count, read, write, except, timeout);
        let call = |left: Option<Duration>| {
            if let Some(left) = left {
                (*timeout).tv_sec = left.as_secs() as libc::time_t;
                (*timeout).tv_usec = left.subsec_micros().into();
            }
            plain()
        };
        wait_for_sets(count, [read, write, except], limit_of(timeout), std::ptr::null(), plain, call)
    }

    /// pselect(2).
    pselect(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *const timespec, mask: *const sigset_t) -> c_int {
        let real = |time| next::pselect(count, read, write, except, time, mask);
        let call = |left| with_time(left, real);
        wait_for_sets(count, [read, write, except], time_of(timeout), mask, || real(timeout), call)
    }
}
