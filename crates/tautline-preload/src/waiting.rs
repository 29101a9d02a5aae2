//! Waits for sockets of which some are taken: each of those has two descriptors, the kernel's socket and the port's
//! doorbell.
#![allow(unsafe_code)] // Calls the C library's poll.

use std::ffi::c_int;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use libc::{POLLIN, POLLRDNORM, pollfd, sigset_t, timespec};

use crate::buffer::Room;
use crate::lock::Undisturbed;
use crate::spinning::{Looking, Spin, Spun};
use crate::table::{self, Place, SOCKETS_MAX};
use crate::{errno, memory, next};

/// Events of a poll that a datagram is.
const ARRIVAL: i16 = POLLIN | POLLRDNORM;
/// Most entries of one call. Above, the kernel is asked alone: it refuses more than the process may have descriptors.
const ENTRIES_MAX: usize = 65_536;

/// Longest list for which a call spins, because each look of the kernel's goes through it. Higher: a spin finds what
/// comes to others later, and takes the kernel's time meanwhile.
const SPIN_ENTRIES_MAX: usize = 8;
const NO_TIME: timespec = timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// When a wait ends; `None`: never.
pub(crate) type Deadline = Option<Instant>;

/// The end of a wait that begins now.
pub(crate) fn deadline_after(timeout: Option<Duration>) -> Deadline {
    timeout.and_then(|timeout| Instant::now().checked_add(timeout))
}

/// Time until then.
pub(crate) fn left(deadline: Deadline) -> Option<Duration> {
    deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()))
}

pub(crate) fn c_time(time: Duration) -> timespec {
    timespec {
        tv_sec: time.as_secs() as libc::time_t,
        tv_nsec: time.subsec_nanos().into(),
    }
}

/// A C time, if the kernel would take it.
pub(crate) fn time_of(place: *const timespec) -> Option<Duration> {
    let time: timespec = memory::read(place)?;
    let nanos = u32::try_from(time.tv_nsec)
        .ok()
        .filter(|nanos| *nanos < 1_000_000_000)?;
    Some(Duration::new(u64::try_from(time.tv_sec).ok()?, nanos))
}

/// The same where null is for ever; `None` if the kernel must judge it.
pub(crate) fn time_of_or_never(place: *const timespec) -> Option<Option<Duration>> {
    match place.is_null() {
        true => Some(None),
        false => time_of(place).map(Some),
    }
}

/// Whether something waits in the port of a taken socket. If not, its doorbell rings for the next datagram.
pub(crate) fn is_ready(place: &Place) -> bool {
    let ready = place.with(|taken| {
        let _doorbell = taken.doorbell();
        taken.ask_kernel();
        taken.has_waiting()
    });
    ready.unwrap_or(false)
}

/// The same without a ring for the next datagram, unless one was asked for before.
pub(crate) fn has_waiting(place: &Place) -> bool {
    let ready = place.with(|taken| {
        taken.ask_kernel();
        taken.has_waiting()
    });
    ready.unwrap_or(false)
}

fn doorbell(place: &Place) -> Option<RawFd> {
    place.with(|taken| taken.doorbell()).flatten()
}

/// A thread that sleeps until a doorbell rings, until dropped.
struct Asleep<'p>(&'p Place);

impl<'p> Asleep<'p> {
    fn new(place: &'p Place) -> Self {
        place.with(|taken| taken.count_sleeper(true));
        Self(place)
    }
}

impl Drop for Asleep<'_> {
    fn drop(&mut self) {
        self.0.with(|taken| taken.count_sleeper(false));
    }
}

/// How a wait for one socket ended.
pub(crate) enum Woken {
    /// Look at the port again.
    Port,
    /// The kernel's socket has something: a datagram or an error.
    Socket,
    TimedOut,
    Interrupted,
}

/// Waits until something comes to a taken socket; the thread's signals are those of the mask meanwhile, if it is not
/// null.
pub(crate) fn wait(
    descriptor: RawFd,
    place: &Place,
    deadline: Deadline,
    mask: *const sigset_t,
) -> Woken {
    let _asleep = Asleep::new(place);
    if is_ready(place) {
        return Woken::Port;
    }
    let Some(doorbell) = doorbell(place) else {
        return Woken::Socket;
    };
    let entry = |fd| pollfd {
        fd,
        events: POLLIN,
        revents: 0,
    };
    let mut entries = [entry(descriptor), entry(doorbell)];
    let timeout = left(deadline).map(c_time);
    let timeout = timeout
        .as_ref()
        .map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: two entries, a time or none, a mask or none.
    let result = unsafe { next::ppoll(entries.as_mut_ptr(), 2, timeout, mask) };
    match result {
        0 => Woken::TimedOut,
        -1 if errno::get() == libc::EINTR => Woken::Interrupted,
        _ if entries[1].revents != 0 => Woken::Port,
        _ => Woken::Socket,
    }
}

/// Whether a receive that a signal interrupted goes on, as the kernel decides it: if the handler was installed with
/// SA_RESTART. Which signal it was cannot be known here, so all handlers of the program must say the same; where they
/// differ, the call fails with EINTR, which such a program expects of some of its signals.
#[cold]
pub(crate) fn restarts() -> bool {
    (1..=libc::SIGRTMAX()).all(|signal| {
        // SAFETY: all bytes zero is a valid sigaction.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: `action` is writable.
        let known = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut action) } == 0;
        let is_handler =
            action.sa_sigaction != libc::SIG_DFL && action.sa_sigaction != libc::SIG_IGN;
        !known || !is_handler || action.sa_flags & libc::SA_RESTART != 0
    })
}

/// Whether a list has a taken socket whose datagrams are waited for.
pub(crate) fn has_taken(entries: &[pollfd]) -> bool {
    entries.iter().any(|entry| wanted(entry).is_some())
}

fn wanted(entry: &pollfd) -> Option<&'static Place> {
    (entry.events & ARRIVAL != 0)
        .then(|| table::place(entry.fd))
        .flatten()
}

/// The program's list, if it can be read and is not longer than the kernel takes.
pub(crate) fn entries<'a>(start: *mut pollfd, count: usize) -> Option<&'a [pollfd]> {
    if count > ENTRIES_MAX || count == 0 {
        return None;
    }
    let bytes = memory::bytes(start.cast_const().cast(), count * size_of::<pollfd>())?;
    // SAFETY: readable, of that many entries, in which every bit pattern is valid; aligned or not taken.
    start
        .is_aligned()
        .then(|| unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast::<pollfd>(), count) })
}

/// poll(2) for a list with taken sockets. `answer` writes what was found.
pub(crate) fn poll(
    program: &[pollfd],
    deadline: Deadline,
    mask: *const sigset_t,
    answer: impl FnOnce(&[pollfd]) -> bool,
) -> c_int {
    let count = program.len();
    let kept = errno::get();
    let Some(mut room) = Room::new(count + SOCKETS_MAX) else {
        errno::set(libc::ENOMEM);
        return -1;
    };
    let all = room.filled(pollfd {
        fd: -1,
        events: 0,
        revents: 0,
    });
    all[..count].copy_from_slice(program);
    let (spun, undisturbed) = spin(&mut all[..count], deadline, mask);
    let mask = match (&undisturbed, mask.is_null()) {
        (Some(undisturbed), true) => undisturbed.before(),
        _ => mask,
    };
    let result = spun.unwrap_or_else(|| sleep(all, count, deadline, mask));
    if result < 0 {
        return result;
    }
    errno::set(kept);
    if !answer(&all[..count]) {
        errno::set(libc::EFAULT);
        return -1;
    }
    result
}

/// Looks into the ports of a short list for a while, where that pays, and asks the kernel about the rest in between.
/// The call's result, if there is one, and what keeps signals away if it spun.
fn spin(
    entries: &mut [pollfd],
    deadline: Deadline,
    mask: *const sigset_t,
) -> (Option<c_int>, Option<Undisturbed>) {
    let mut wanted_places = entries.iter().filter_map(wanted);
    let Some(first) = wanted_places
        .next()
        .filter(|_| entries.len() <= SPIN_ENTRIES_MAX)
    else {
        return (None, None);
    };
    let mut places = [first; SPIN_ENTRIES_MAX];
    let mut count = 1;
    for place in wanted_places {
        places[count] = place;
        count += 1;
    }
    let Some(spin) = Spin::of(first, left(deadline)) else {
        return (None, None);
    };
    let looking = Looking::new(&places[..count], 0);
    let mask = if mask.is_null() { looking.mask() } else { mask };
    let mut ask = || {
        // SAFETY: `entries` has that many; a time; the mask is the program's or the thread's.
        let result =
            unsafe { next::ppoll(entries.as_mut_ptr(), entries.len() as _, &NO_TIME, mask) };
        let found = if result < 0 {
            result
        } else {
            collect(entries, has_waiting)
        };
        (found != 0).then_some(found)
    };
    let answer = match spin.run(|| looking.is_there(), &mut ask) {
        Spun::There => ask(),
        Spun::Others(found) => Some(found),
        Spun::Over => None,
    };
    let kept = errno::get();
    let undisturbed = looking.end();
    errno::set(kept);
    (answer, Some(undisturbed))
}

/// Sleeps until something comes, the time is over, or a signal: the call's result.
fn sleep(all: &mut [pollfd], count: usize, deadline: Deadline, mask: *const sigset_t) -> c_int {
    loop {
        let (is_any_ready, bells) = prepare(all, count);
        let wait = match is_any_ready {
            true => Some(Duration::ZERO),
            false => left(deadline),
        };
        let time = wait.map(c_time);
        let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        count_sleepers(&all[..count], true);
        // SAFETY: `all` has that many entries; the mask is the program's, for the kernel to read.
        let result = unsafe { next::ppoll(all.as_mut_ptr(), (count + bells) as _, time, mask) };
        let error = errno::get();
        count_sleepers(&all[..count], false);
        errno::set(error);
        if result < 0 {
            return result;
        }
        let found = collect(&mut all[..count], is_ready);
        if found > 0 || wait.is_some_and(|wait| wait.is_zero()) {
            return found;
        }
    }
}

fn count_sleepers(entries: &[pollfd], begins: bool) {
    for place in entries.iter().filter_map(wanted) {
        place.with(|taken| taken.count_sleeper(begins));
    }
}

/// Enters the doorbells behind the program's entries: whether a port has something already, and how many they are.
fn prepare(all: &mut [pollfd], count: usize) -> (bool, usize) {
    let (entries, bells) = all.split_at_mut(count);
    let mut is_any_ready = false;
    let mut used = 0;
    for place in entries.iter().filter_map(wanted) {
        is_any_ready |= is_ready(place);
        let Some(bell) = bells.get_mut(used) else {
            continue;
        };
        if let Some(fd) = doorbell(place) {
            *bell = pollfd {
                fd,
                events: POLLIN,
                revents: 0,
            };
            used += 1;
        }
    }
    (is_any_ready, used)
}

/// Adds what the ports have to what the kernel found; how many entries have something.
fn collect(entries: &mut [pollfd], is_ready: impl Fn(&Place) -> bool) -> c_int {
    let mut found = 0;
    for entry in entries {
        if let Some(place) = wanted(entry)
            && is_ready(place)
        {
            entry.revents |= entry.events & ARRIVAL;
        }
        found += c_int::from(entry.revents != 0);
    }
    found
}
