//! Sockets that the program watches with epoll. The kernel's socket is registered as the program asked; the port's
//! doorbell beside it, with an address of ours as its data, so that its events are told from all others. A wait looks
//! into the ports first and reports their datagrams itself.
#![allow(unsafe_code)] // A static that threads share under a lock, and the C library's epoll.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::os::fd::RawFd;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::Duration;

use libc::{EPOLLET, EPOLLIN, EPOLLONESHOT, EPOLLRDNORM, epoll_event, sigset_t};

use crate::buffer::Room;
use crate::lock::{Lock, Undisturbed};
use crate::spinning::{Looking, Spin, Spun};
use crate::table::{self, Place};
use crate::waiting::{self, Deadline, left};
use crate::{decide, errno, memory, next};

/// Registrations that are known. Beyond it, a taken socket's datagrams do not wake epoll. Higher: more to look through
/// at each wait.
const WATCHES_MAX: usize = 256;
/// Events of one wait that are looked at. The rest comes with the next.
const EVENTS_MAX: usize = 4096;
/// Most taken sockets of an instance whose wait spins. Higher: each look goes through all of them.
const SPIN_PLACES_MAX: usize = 8;
const ARRIVAL: u32 = (EPOLLIN | EPOLLRDNORM) as u32;

/// A socket of the program in an epoll instance.
#[derive(Clone, Copy)]
struct Watch {
    epoll: RawFd,
    descriptor: RawFd,
    events: u32,
    data: u64,
    /// Number of the datagram that was reported, of a watch for edges.
    reported: u64,
    /// A watch for one event that has had it.
    is_spent: bool,
    has_doorbell: bool,
}

const UNUSED: Watch = Watch {
    epoll: -1,
    descriptor: -1,
    events: 0,
    data: 0,
    reported: 0,
    is_spent: false,
    has_doorbell: false,
};

struct Watches {
    lock: Lock,
    /// Used ones; read without the lock to pass calls on quickly.
    count: AtomicUsize,
    all: UnsafeCell<[Watch; WATCHES_MAX]>,
}

// SAFETY: `all` is only reached by who holds `lock`.
unsafe impl Sync for Watches {}

/// Whether the next wait with room for one event is for ports.
static IS_PORTS_TURN: AtomicBool = AtomicBool::new(true);

static WATCHES: Watches = Watches {
    lock: Lock::new(),
    count: AtomicUsize::new(0),
    all: UnsafeCell::new([UNUSED; WATCHES_MAX]),
};

/// In a forked child: its epoll instances are the parent's, but its sockets are the kernel's.
pub(crate) fn renew_after_fork() {
    WATCHES.lock.reset();
    WATCHES.count.store(0, Relaxed);
    // SAFETY: the child has one thread, and it is here.
    unsafe { WATCHES.all.get().write([UNUSED; WATCHES_MAX]) };
}

fn with<R>(work: impl FnOnce(&mut [Watch; WATCHES_MAX]) -> R) -> Option<R> {
    let _held = WATCHES.lock.enter()?;
    // SAFETY: the lock is held, and nothing that `work` calls comes back here.
    Some(work(unsafe { &mut *WATCHES.all.get() }))
}

/// Data of a doorbell's event: the address of its watch.
fn mark(index: usize) -> u64 {
    WATCHES.all.get().addr() as u64 + (index * size_of::<Watch>()) as u64
}

fn index_of(data: u64) -> Option<usize> {
    let offset = data.checked_sub(mark(0))? as usize;
    let index = offset / size_of::<Watch>();
    (index < WATCHES_MAX && offset.is_multiple_of(size_of::<Watch>())).then_some(index)
}

impl Watch {
    fn place(&self) -> Option<&'static Place> {
        (self.epoll >= 0)
            .then(|| table::place(self.descriptor))
            .flatten()
    }

    fn is_for_edges(&self) -> bool {
        self.events & EPOLLET as u32 != 0
    }

    /// Has the doorbell in the epoll instance if it is to be there.
    fn settle(&mut self, index: usize) {
        let Some(place) = self.place() else { return };
        let is_wanted = self.events & ARRIVAL != 0 && !self.is_spent;
        if is_wanted == self.has_doorbell {
            return;
        }
        let Some(doorbell) = place.with(|taken| taken.doorbell()).flatten() else {
            return;
        };
        let mut event = epoll_event {
            events: EPOLLIN as u32,
            u64: mark(index),
        };
        place.with(|taken| taken.count_watcher(is_wanted));
        let operation = match is_wanted {
            true => libc::EPOLL_CTL_ADD,
            false => libc::EPOLL_CTL_DEL,
        };
        // SAFETY: the event is live.
        unsafe { next::epoll_ctl(self.epoll, operation, doorbell, &raw mut event) };
        self.has_doorbell = is_wanted;
    }

    /// Whether the port has something that is to be reported.
    fn is_ready(&self) -> bool {
        if self.events & ARRIVAL == 0 || self.is_spent {
            return false;
        }
        let Some(place) = self.place() else {
            return false;
        };
        if self.is_for_edges() {
            // Armed since its last report: looking would find the same datagram.
            let number = place.with(|taken| {
                taken.ask_kernel();
                (taken.has_waiting(), taken.waiting_number())
            });
            return number.is_some_and(|(waits, number)| waits && number != self.reported);
        }
        // A doorbell that is watched is armed by each look that finds nothing.
        waiting::has_waiting(place)
    }

    /// The watch was reported.
    fn report(&mut self, index: usize) {
        if self.is_for_edges()
            && let Some(place) = self.place()
        {
            // One arrival more is one edge more.
            let number = place.with(|taken| {
                taken.arm();
                taken.waiting_number()
            });
            self.reported = number.unwrap_or(0);
        }
        if self.events & EPOLLONESHOT as u32 != 0 {
            self.is_spent = true;
            let mut none = epoll_event {
                events: EPOLLONESHOT as u32,
                u64: self.data,
            };
            // SAFETY: the event is live.
            unsafe {
                next::epoll_ctl(
                    self.epoll,
                    libc::EPOLL_CTL_MOD,
                    self.descriptor,
                    &raw mut none,
                )
            };
            self.settle(index);
        }
    }
}

/// The program has changed a registration.
pub(crate) fn controlled(
    epoll: RawFd,
    operation: c_int,
    descriptor: RawFd,
    event: Option<epoll_event>,
) {
    let is_taken = table::place(descriptor).is_some();
    let is_undecided = table::is_unknown(descriptor) && decide::is_candidate(descriptor);
    if !is_taken && !is_undecided {
        return table::leave(descriptor);
    }
    with(|all| {
        let known = all
            .iter()
            .position(|watch| watch.epoll == epoll && watch.descriptor == descriptor);
        let index = match (operation, known) {
            (libc::EPOLL_CTL_DEL, Some(index)) => {
                all[index].events = 0;
                all[index].settle(index);
                all[index] = UNUSED;
                WATCHES.count.fetch_sub(1, Relaxed);
                return;
            }
            (libc::EPOLL_CTL_DEL, None) => return,
            (_, Some(index)) => index,
            (_, None) => match all.iter().position(|watch| watch.epoll < 0) {
                Some(free) => {
                    WATCHES.count.fetch_add(1, Relaxed);
                    free
                }
                None => return,
            },
        };
        let Some(event) = event else { return };
        let watch = &mut all[index];
        *watch = Watch {
            epoll,
            descriptor,
            events: event.events,
            data: event.u64,
            reported: 0,
            is_spent: false,
            has_doorbell: known.is_some() && watch.has_doorbell,
        };
        watch.settle(index);
    });
}

/// A socket was taken that may be watched already.
pub(crate) fn taken(descriptor: RawFd) {
    if WATCHES.count.load(Relaxed) == 0 {
        return;
    }
    with(|all| {
        for (index, watch) in all.iter_mut().enumerate() {
            if watch.epoll >= 0 && watch.descriptor == descriptor {
                watch.has_doorbell = false;
                watch.settle(index);
            }
        }
    });
}

/// The program closes a descriptor: an epoll instance, or a socket, which the kernel takes out of them.
pub(crate) fn closed(descriptor: RawFd) {
    if WATCHES.count.load(Relaxed) == 0 {
        return;
    }
    let _undisturbed = crate::lock::Undisturbed::new();
    with(|all| {
        for (index, watch) in all.iter_mut().enumerate() {
            if watch.epoll >= 0 && (watch.descriptor == descriptor || watch.epoll == descriptor) {
                watch.events = 0;
                watch.settle(index);
                *watch = UNUSED;
                WATCHES.count.fetch_sub(1, Relaxed);
            }
        }
    });
}

/// Whether an epoll instance has a socket that is taken.
#[inline]
pub(crate) fn has_taken(epoll: RawFd) -> bool {
    WATCHES.count.load(Relaxed) != 0
        && with(|all| {
            let mut watches = all.iter().filter(|watch| watch.epoll == epoll);
            watches.any(|watch| watch.place().is_some())
        }) == Some(true)
}

/// epoll_wait(2) for an instance with taken sockets.
pub(crate) fn wait(
    epoll: RawFd,
    events: *mut epoll_event,
    count: usize,
    deadline: Deadline,
    mask: *const sigset_t,
) -> c_int {
    let kept = errno::get();
    let count = count.min(EVENTS_MAX);
    let Some(mut room) = Room::new(count) else {
        errno::set(libc::ENOMEM);
        return -1;
    };
    let all = room.filled(epoll_event { events: 0, u64: 0 });
    let (spun, undisturbed) = spin(epoll, all, deadline, mask);
    let mask = match (&undisturbed, mask.is_null()) {
        (Some(undisturbed), true) => undisturbed.before(),
        _ => mask,
    };
    let found = match spun.unwrap_or_else(|| sleep(epoll, all, deadline, mask)) {
        found if found < 0 => return found,
        found => found as usize,
    };
    errno::set(kept);
    for (index, event) in all[..found].iter().enumerate() {
        if !memory::put(events.wrapping_add(index), event) {
            errno::set(libc::EFAULT);
            return -1;
        }
    }
    found as c_int
}

/// Looks into the ports of an instance with few sockets for a while, where that pays, and asks the kernel about the
/// rest in between. The call's result, if there is one, and what keeps signals away if it spun.
fn spin(
    epoll: RawFd,
    all: &mut [epoll_event],
    deadline: Deadline,
    mask: *const sigset_t,
) -> (Option<c_int>, Option<Undisturbed>) {
    let Some((places, count)) = empty_places(epoll) else {
        return (None, None);
    };
    let Some(spin) = Spin::of(places[0], left(deadline)) else {
        return (None, None);
    };
    let looking = Looking::new(&places[..count], 1);
    let mask = if mask.is_null() { looking.mask() } else { mask };
    let no_time = Some(Duration::ZERO);
    let mut ask = |is_ready| match pwait(epoll, all, no_time, mask, is_ready) {
        result if result < 0 => Some(result),
        result => match collect(epoll, all, result as usize) {
            0 => None,
            found => Some(found as c_int),
        },
    };
    let answer = match spin.run(|| looking.is_there(), || ask(false)) {
        Spun::There => ask(true),
        Spun::Others(found) => Some(found),
        Spun::Over => None,
    };
    let kept = errno::get();
    let undisturbed = looking.end();
    errno::set(kept);
    (answer, Some(undisturbed))
}

/// The taken sockets that an instance watches for datagrams, if they are few and none has one: also one that was
/// reported to a watch for edges would hide the next.
fn empty_places(epoll: RawFd) -> Option<([&'static Place; SPIN_PLACES_MAX], usize)> {
    with(|watches| {
        let mut found: Option<([&'static Place; SPIN_PLACES_MAX], usize)> = None;
        for watch in watches.iter().filter(|watch| watch.epoll == epoll) {
            let Some(place) = watch.place().filter(|_| watch.has_doorbell) else {
                continue;
            };
            if place.with(|taken| taken.has_waiting()) != Some(false) {
                return None;
            }
            let (places, count) = found.get_or_insert(([place; SPIN_PLACES_MAX], 0));
            *places.get_mut(*count)? = place;
            *count += 1;
        }
        found
    })
    .flatten()
}

/// Sleeps until something comes, the time is over, or a signal: the call's result.
fn sleep(
    epoll: RawFd,
    all: &mut [epoll_event],
    deadline: Deadline,
    mask: *const sigset_t,
) -> c_int {
    loop {
        let is_any_ready = with(|watches| {
            let of_this = |watch: &&Watch| watch.epoll == epoll;
            let of_this = watches.iter().filter(of_this);
            of_this.filter(|watch| watch.is_ready()).count() > 0
        }) == Some(true);
        let wait = match is_any_ready {
            true => Some(Duration::ZERO),
            false => left(deadline),
        };
        let result = pwait(epoll, all, wait, mask, is_any_ready);
        if result < 0 {
            return result;
        }
        let found = collect(epoll, all, result as usize);
        if found > 0 || wait.is_some_and(|wait| wait.is_zero()) {
            return found as c_int;
        }
    }
}

/// The kernel's turn. If a port has something, room is left for that; where there is room for one event only, they take
/// turns.
fn pwait(
    epoll: RawFd,
    all: &mut [epoll_event],
    wait: Option<Duration>,
    mask: *const sigset_t,
    is_port_ready: bool,
) -> c_int {
    let room = all.len() - usize::from(is_port_ready);
    if room == 0 && IS_PORTS_TURN.fetch_xor(true, Relaxed) {
        return 0;
    }
    let (start, count) = (all.as_mut_ptr(), room.max(1) as c_int);
    // SAFETY: `all` has that many entries; the mask is the program's or the thread's, for the kernel to read.
    unsafe { next::epoll_pwait(epoll, start, count, milliseconds(wait), mask) }
}

/// Rounded up, so that a wait does not end early; -1: for ever.
fn milliseconds(time: Option<Duration>) -> c_int {
    time.map_or(-1, |time| {
        c_int::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(c_int::MAX)
    })
}

/// Takes the doorbells' events out of what the kernel reported and adds what the ports have, as far as there is room;
/// how many there are.
fn collect(epoll: RawFd, all: &mut [epoll_event], reported: usize) -> usize {
    let count = all.len();
    let found = with(|watches| {
        let mut found = 0;
        for index in 0..reported {
            let event = all[index];
            match index_of(event.u64) {
                // A ring is an arrival, also where an older datagram was reported and not read.
                Some(rung) => watches[rung].reported = 0,
                None => {
                    all[found] = event;
                    found += 1;
                }
            }
        }
        let from_kernel = found;
        for (index, watch) in watches.iter_mut().enumerate() {
            if watch.epoll != epoll || watch.place().is_none() {
                continue;
            }
            let known = all[..from_kernel]
                .iter()
                .position(|event| event.u64 == watch.data);
            let arrival = watch.events & ARRIVAL;
            match (known, watch.is_ready()) {
                (Some(at), true) => all[at].events |= arrival,
                (Some(_), false) if watch.events & EPOLLONESHOT as u32 == 0 => continue,
                (Some(_), false) => {}
                (None, true) if found < count => {
                    all[found] = epoll_event {
                        events: arrival,
                        u64: watch.data,
                    };
                    found += 1;
                }
                (None, _) => continue,
            }
            watch.report(index);
        }
        found
    });
    found.unwrap_or(0)
}
