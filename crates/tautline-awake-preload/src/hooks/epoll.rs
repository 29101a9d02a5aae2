//! epoll_wait(2), epoll_pwait(2), epoll_pwait2(2), epoll_ctl(2). An epoll instance is one flow: the arrivals of its
//! members from outside this program together. The wait before the program's call is that call with shorter times, so
//! what it finds is the program's result.
#![allow(unsafe_code)] // Exported functions with the C library's names.

use std::ffi::c_int;
use std::time::Duration;

use libc::{epoll_event, sigset_t, timespec};
use tautline_awake::cpu::Looker;
use tautline_awake::flow::{Flow, Seen, Window};
use tautline_awake::raw;
use tautline_awake::wait::{self, Awaited, Ended};
use tautline_proto::time::Instant;

use super::sets::{interrupted, time_of, time_of_milliseconds, with_time};
use super::{pthread_testcancel, sending};
use crate::table::{self, Slot};
use crate::{next, options};

/// A wait for an instance.
struct Instance<'f> {
    /// The program's number of it.
    epoll: c_int,
    slot: &'static Slot,
    flow: &'f mut Flow,
    /// The program's room for events.
    events: (*mut epoll_event, c_int),
    mask: *const sigset_t,
    /// Events found.
    found: c_int,
}

impl Awaited for Instance<'_> {
    type Found = c_int;
    /// An error of the call.
    type Stopped = c_int;

    fn now(&self) -> Instant {
        raw::now()
    }

    fn window(&mut self, now: Instant) -> Option<Window> {
        let (_, window) = wait::earliest(&mut [Some(&mut *self.flow)], now)?;
        Some(window)
    }

    /// Waits under the program's number, or that of a copy where another thread has closed it.
    fn sleep(&mut self, until: Instant, now: Instant) -> Result<Option<c_int>, c_int> {
        let mut now = now;
        loop {
            let number = self.slot.number(self.epoll);
            // SAFETY: the promise of the program's call.
            let result =
                unsafe { raw::wait_for_events(number, self.events, until, now, self.mask) };
            if result == Err(libc::EBADF) && self.slot.number(self.epoll) != number {
                now = raw::now();
                continue;
            }
            self.found = result?;
            return Ok((self.found > 0).then_some(self.found));
        }
    }

    fn look(&mut self, looker: &Looker, now: Instant) -> Result<Option<c_int>, c_int> {
        looker.repeat(|| self.sleep(Instant::ZERO, now))
    }

    fn looked(&mut self, began: Instant, ended: Instant, is_found: bool) {
        self.flow.looked(began, ended, is_found);
    }

    fn arrived(&mut self, seen: Seen, at: Instant) {
        // SAFETY: the call has stored that many.
        match unsafe { has_arrival(self.epoll, self.events.0, self.found) } {
            true => self.flow.arrived(at, seen),
            false => self.flow.interrupted(),
        }
    }
}

/// The data of an event.
///
/// # Safety
/// An event of epoll.
unsafe fn data_of(event: *const epoll_event) -> u64 {
    // SAFETY: the caller's promise; the structure is packed on x86-64.
    unsafe { (&raw const (*event).u64).read_unaligned() }
}

/// Whether one of the events that a call has stored came from outside this program. Room to send does not count.
///
/// # Safety
/// That many events.
unsafe fn has_arrival(epoll: c_int, events: *const epoll_event, count: c_int) -> bool {
    (0..count as usize).any(|index| {
        // SAFETY: the caller's promise.
        let (kinds, data) = unsafe { ((*events.add(index)).events, data_of(events.add(index))) };
        kinds & !(libc::EPOLLOUT as u32) != 0 && !table::is_own_event(epoll, data)
    })
}

/// Waits for an instance: `plain` is the program's call as it is, `call` the one with what is left of its time, on the
/// program's number or that of a copy.
///
/// # Safety
/// As epoll_pwait2(2).
unsafe fn wait_for_epoll(
    epoll: c_int,
    events: (*mut epoll_event, c_int),
    limit: Result<Option<Duration>, ()>,
    mask: *const sigset_t,
    plain: impl FnOnce() -> c_int,
    call: impl Fn(c_int, Option<Duration>) -> c_int,
) -> c_int {
    let is_served =
        |limit: &Option<Duration>| !options::is_off() && limit.is_none_or(|limit| !limit.is_zero());
    let limit = limit.ok().filter(is_served);
    let (Some(limit), Some(slot)) = (limit, table::slot_of_set(epoll)) else {
        return plain();
    };
    let began = raw::now();
    let deadline = limit.map(|limit| began + limit);
    // SAFETY: the caller's promise.
    let (ended, number) = unsafe { predicted((epoll, slot), events, began, deadline, mask) };
    let result = match ended {
        Ok(Ended::Found(found)) => found,
        Err(libc::EINTR) => -1,
        // The kernel judges what else the call may have failed for.
        _ => {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(raw::now()));
            let result = call(number, left);
            // SAFETY: the call has stored that many.
            let has_arrival = unsafe { has_arrival(epoll, events.0, result) };
            if has_arrival
                && number == epoll
                && let Some(mut held) = slot.hold()
            {
                held.returned(began, raw::now());
            }
            result
        }
    };
    if number != epoll {
        // SAFETY: the copy is this library's.
        unsafe { next::close(number) };
    }
    match ended {
        Err(libc::EINTR) => interrupted(),
        Ok(Ended::Found(_)) => {
            // SAFETY: no arguments. The thread may be cancelled here: nothing is held.
            unsafe { pthread_testcancel() };
            result
        }
        _ => result,
    }
}

/// Waits as predicted. With the number of the instance: the program's, or that of a copy which keeps it open.
///
/// # Safety
/// As epoll_pwait2(2).
unsafe fn predicted(
    (epoll, slot): (c_int, &'static Slot),
    events: (*mut epoll_event, c_int),
    began: Instant,
    deadline: Option<Instant>,
    mask: *const sigset_t,
) -> (Result<Ended<c_int>, c_int>, c_int) {
    let unknown = (Ok(Ended::Unknown(began)), epoll);
    if !options::is_awake() {
        return unknown;
    }
    let sent = sending::last_sent();
    let Some(mut held) = slot.hold() else {
        return unknown;
    };
    if let Some(at) = sent {
        held.flow().sent(at);
    }
    if !held.flow().expects(began) {
        return unknown;
    }
    let mut instance = Instance {
        epoll,
        slot,
        flow: held.flow(),
        events,
        mask,
        found: 0,
    };
    let deadline = deadline.unwrap_or(Instant::FAR_FUTURE);
    let ended = wait::until_found(&mut instance, began, deadline);
    let number = slot.number(epoll);
    slot.forget_copy();
    (ended, number)
}

/// Whole milliseconds, rounded up: no call returns before its time.
fn milliseconds(time: Option<Duration>) -> c_int {
    time.map_or(-1, |time| {
        let ms = time.as_nanos().div_ceil(1_000_000);
        c_int::try_from(ms).unwrap_or(c_int::MAX)
    })
}

hooks! {
    /// epoll_ctl(2): descriptors that threads of this program write to are known by the data of their events.
    epoll_ctl(epoll: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
        let result = next::epoll_ctl(epoll, operation, fd, event);
        if result == 0 && operation != libc::EPOLL_CTL_DEL {
            table::joined(epoll, fd, data_of(event));
        }
        result
    }

    /// epoll_wait(2).
    epoll_wait(epoll: c_int, events: *mut epoll_event, count: c_int, timeout_ms: c_int) -> c_int {
        epoll_pwait(epoll, events, count, timeout_ms, std::ptr::null())
    }

    /// epoll_pwait(2).
    epoll_pwait(epoll: c_int, events: *mut epoll_event, count: c_int, timeout_ms: c_int, mask: *const sigset_t) -> c_int {
        let call = |epoll, left| match mask.is_null() {
            true => next::epoll_wait(epoll, events, count, milliseconds(left)),
            false => next::epoll_pwait(epoll, events, count, milliseconds(left), mask),
        };
        let time = time_of_milliseconds(timeout_ms);
        wait_for_epoll(epoll, (events, count), Ok(time), mask, || call(epoll, time), call)
    }

    /// epoll_pwait2(2).
    epoll_pwait2(epoll: c_int, events: *mut epoll_event, count: c_int, timeout: *const timespec, mask: *const sigset_t) -> c_int {
        let real = |epoll, time| next::epoll_pwait2(epoll, events, count, time, mask);
        let call = |epoll, left| with_time(left, |left| real(epoll, left));
        wait_for_epoll(epoll, (events, count), time_of(timeout), mask, || real(epoll, timeout), call)
    }
}
