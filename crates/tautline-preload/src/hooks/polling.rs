//! poll(2), ppoll(2), select(2), pselect(2).
#![allow(unsafe_code)] // Exported functions with the C library's names.

use std::ffi::c_int;
use std::mem::offset_of;
use std::time::Duration;

use libc::{
    POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLOUT, POLLPRI, POLLRDBAND, POLLRDNORM, POLLWRBAND,
    POLLWRNORM, fd_set, nfds_t, pollfd, sigset_t, timespec, timeval,
};

use crate::buffer::Room;
use crate::waiting::{self, Deadline};
use crate::{errno, memory, next, table};

/// Descriptors in sets that are looked through: all that a set of the C library holds. The kernel alone is asked about
/// more, as programs do that make larger sets themselves.
const SET_MAX: usize = libc::FD_SETSIZE;
/// Events that make a descriptor readable, writable or exceptional in select(2) (`fs/select.c`).
const READABLE: i16 = POLLRDNORM | POLLRDBAND | POLLIN | POLLHUP | POLLERR;
const WRITABLE: i16 = POLLWRBAND | POLLWRNORM | POLLOUT | POLLERR;
const EXCEPTIONAL: i16 = POLLPRI;

/// A list with a taken socket in it.
#[inline]
fn taken_list<'a>(entries: *mut pollfd, count: nfds_t) -> Option<&'a [pollfd]> {
    let list = waiting::entries(entries, count as usize)?;
    waiting::has_taken(list).then_some(list)
}

fn poll_list(
    list: &[pollfd],
    program: *mut pollfd,
    deadline: Deadline,
    mask: *const sigset_t,
) -> c_int {
    waiting::poll(list, deadline, mask, |found| {
        found.iter().enumerate().all(|(index, entry)| {
            let entry_of_program = program.wrapping_add(index).cast::<u8>();
            let revents = entry_of_program.wrapping_add(offset_of!(pollfd, revents));
            memory::put(revents.cast::<i16>(), &entry.revents)
        })
    })
}

/// poll(2).
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn poll(entries: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int {
    match taken_list(entries, count) {
        // SAFETY: the caller's promise.
        None => unsafe { next::poll(entries, count, timeout_ms) },
        Some(list) => {
            let timeout = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
            let deadline = waiting::deadline_after(timeout);
            poll_list(list, entries, deadline, std::ptr::null())
        }
    }
}

/// poll(2) of a program that was compiled with checks of its buffers.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __poll_chk(
    entries: *mut pollfd,
    count: nfds_t,
    timeout_ms: c_int,
    room: usize,
) -> c_int {
    if room / size_of::<pollfd>() < count as usize {
        // SAFETY: the caller's promise.
        return unsafe { next::__poll_chk(entries, count, timeout_ms, room) };
    }
    // SAFETY: the caller's promise.
    unsafe { poll(entries, count, timeout_ms) }
}

/// ppoll(2).
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ppoll(
    entries: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let time = waiting::time_of_or_never(timeout);
    match (taken_list(entries, count), time) {
        (Some(list), Some(time)) => poll_list(list, entries, waiting::deadline_after(time), mask),
        // SAFETY: the caller's promise.
        _ => unsafe { next::ppoll(entries, count, timeout, mask) },
    }
}

/// ppoll(2) of a program that was compiled with checks of its buffers.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __ppoll_chk(
    entries: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    room: usize,
) -> c_int {
    if room / size_of::<pollfd>() < count as usize {
        // SAFETY: the caller's promise.
        return unsafe { next::__ppoll_chk(entries, count, timeout, mask, room) };
    }
    // SAFETY: the caller's promise.
    unsafe { ppoll(entries, count, timeout, mask) }
}

/// Three sets of descriptors, as words; each may be missing.
struct Sets {
    program: [*mut fd_set; 3],
    words: [[u64; SET_MAX / 64]; 3],
    count: usize,
}

impl Sets {
    /// Reads the sets, if a taken socket is among those to be read from.
    #[inline]
    fn with_taken(count: c_int, program: [*mut fd_set; 3]) -> Option<Self> {
        let count = usize::try_from(count)
            .ok()
            .filter(|count| *count <= SET_MAX)?;
        if program[0].is_null() {
            return None;
        }
        let mut sets = Self {
            program,
            words: [[0; SET_MAX / 64]; 3],
            count,
        };
        sets.read(0)?;
        let is_taken = |fd: &usize| sets.has(0, *fd) && table::place(*fd as c_int).is_some();
        if !(0..count).any(|fd| is_taken(&fd)) {
            return None;
        }
        sets.read(1)?;
        sets.read(2)?;
        Some(sets)
    }

    fn read(&mut self, set: usize) -> Option<()> {
        let start = self.program[set].cast::<u64>().cast_const();
        if start.is_null() {
            return Some(());
        }
        for index in 0..self.count.div_ceil(64) {
            self.words[set][index] = memory::read(start.wrapping_add(index))?;
        }
        Some(())
    }

    fn has(&self, set: usize, fd: usize) -> bool {
        self.words[set][fd / 64] >> (fd % 64) & 1 != 0
    }

    fn events(&self, fd: usize) -> i16 {
        [POLLIN, POLLOUT, POLLPRI]
            .into_iter()
            .enumerate()
            .filter(|(set, _)| self.has(*set, fd))
            .fold(0, |events, (_, event)| events | event)
    }

    /// poll(2) for all that is in the sets; the number of bits that remain, as select(2) returns it.
    fn poll(&mut self, deadline: Deadline, mask: *const sigset_t) -> c_int {
        let Some(mut room) = Room::new(self.count) else {
            errno::set(libc::ENOMEM);
            return -1;
        };
        let nothing = pollfd {
            fd: -1,
            events: 0,
            revents: 0,
        };
        let entries = room.filled(nothing);
        let mut used = 0;
        for fd in 0..self.count {
            let events = self.events(fd);
            if events != 0 {
                entries[used] = pollfd {
                    fd: fd as c_int,
                    events,
                    revents: 0,
                };
                used += 1;
            }
        }
        let mut bits = 0;
        let mut is_bad = false;
        let result = waiting::poll(&entries[..used], deadline, mask, |found| {
            is_bad = found.iter().any(|entry| entry.revents & POLLNVAL != 0);
            bits = if is_bad { 0 } else { self.keep(found) };
            is_bad || self.write()
        });
        if is_bad {
            errno::set(libc::EBADF);
            return -1;
        }
        result.min(0) + bits
    }

    /// Leaves in the sets what was found; how many bits.
    fn keep(&mut self, found: &[pollfd]) -> c_int {
        let asked = std::mem::replace(&mut self.words, [[0; SET_MAX / 64]; 3]);
        let mut bits = 0;
        for entry in found {
            let fd = entry.fd as usize;
            for (set, events) in [READABLE, WRITABLE, EXCEPTIONAL].into_iter().enumerate() {
                let bit = 1 << (fd % 64);
                if asked[set][fd / 64] & bit != 0 && entry.revents & events != 0 {
                    self.words[set][fd / 64] |= bit;
                    bits += 1;
                }
            }
        }
        bits
    }

    fn write(&self) -> bool {
        self.program
            .iter()
            .zip(&self.words)
            .all(|(program, words)| {
                let start = program.cast::<u64>();
                let mut words = words[..self.count.div_ceil(64)].iter().enumerate();
                start.is_null()
                    || words.all(|(index, word)| memory::put(start.wrapping_add(index), word))
            })
    }
}

/// select(2), which also writes the time that is left.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    let time = match timeout.is_null() {
        true => Some(None),
        false => duration_of(timeout).map(Some),
    };
    let sets = Sets::with_taken(count, [read, write, except]);
    let (Some(mut sets), Some(time)) = (sets, time) else {
        // SAFETY: the caller's promise.
        return unsafe { next::select(count, read, write, except, timeout) };
    };
    let deadline = waiting::deadline_after(time);
    let found = sets.poll(deadline, std::ptr::null());
    if let Some(left) = waiting::left(deadline) {
        let left = timeval {
            tv_sec: left.as_secs() as libc::time_t,
            tv_usec: left.subsec_micros().into(),
        };
        let _written = memory::put(timeout, &left);
    }
    found
}

fn duration_of(place: *const timeval) -> Option<Duration> {
    let time: timeval = memory::read(place)?;
    let seconds = Duration::from_secs(u64::try_from(time.tv_sec).ok()?);
    Some(seconds + Duration::from_micros(u64::try_from(time.tv_usec).ok()?))
}

/// pselect(2).
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let time = waiting::time_of_or_never(timeout);
    let sets = Sets::with_taken(count, [read, write, except]);
    let (Some(mut sets), Some(time)) = (sets, time) else {
        // SAFETY: the caller's promise.
        return unsafe { next::pselect(count, read, write, except, timeout, mask) };
    };
    sets.poll(waiting::deadline_after(time), mask)
}
