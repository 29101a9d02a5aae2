//! Which descriptors of the program are taken sockets.
//!
//! The table of descriptors lies in memory that a forked child finds zeroed (MADV_WIPEONFORK), so a child never takes
//! part in its parent's ports, however it was made. The places of sockets are bounded and never move.
#![allow(unsafe_code)] // The table is mapped memory, and places are shared between threads under their locks.

use std::cell::UnsafeCell;
use std::os::fd::RawFd;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU16, AtomicU32};

use crate::lock::{Lock, Undisturbed};
use crate::socket::Taken;
use crate::{decide, node};

/// Sockets that are taken at a time. Lower: a gateway's later sockets are left to the kernel. Higher: memory of the
/// places; the demux has room for 256 ports.
pub(crate) const SOCKETS_MAX: usize = 64;
/// Descriptors that the table knows. Higher numbers are left to the kernel.
const DESCRIPTORS: usize = 65_536;
/// Entry of a descriptor that was looked at and left to the kernel. Places count from 1, and 0 is unknown.
const LEFT: u16 = u16::MAX;
/// The same of a socket that no later call makes one to be taken.
const LEFT_FOR_GOOD: u16 = u16::MAX - 1;

type Table = [AtomicU16; DESCRIPTORS];

/// Null until made, and in a program that has no policy: then every call is passed on.
static TABLE: AtomicPtr<Table> = AtomicPtr::new(std::ptr::null_mut());
/// Held while a socket is taken or given back.
pub(crate) static CHANGING: Lock = Lock::new();

static PLACES: [Place; SOCKETS_MAX] = [const { Place::new() }; SOCKETS_MAX];

/// A taken socket's place.
pub(crate) struct Place {
    lock: Lock,
    /// Descriptors of the socket: 0 for a free place.
    descriptors: AtomicU32,
    /// Whether the socket is non-blocking (O_NONBLOCK).
    non_blocking: AtomicBool,
    /// Whether it is a packet socket.
    is_packet: AtomicBool,
    taken: UnsafeCell<Option<Box<Taken>>>,
}

// SAFETY: `taken` is only reached by who holds `lock`.
unsafe impl Sync for Place {}

impl Place {
    const fn new() -> Self {
        Self {
            lock: Lock::new(),
            descriptors: AtomicU32::new(0),
            non_blocking: AtomicBool::new(false),
            is_packet: AtomicBool::new(false),
            taken: UnsafeCell::new(None),
        }
    }

    /// Does something with the socket. `None` if this thread is at it already, or it was given back meanwhile: then the
    /// kernel's socket is all there is.
    #[inline]
    pub(crate) fn with<R>(&self, work: impl FnOnce(&mut Taken) -> R) -> Option<R> {
        let _held = self.lock.enter()?;
        // SAFETY: the lock is held, and nothing that `work` calls comes back to this place: it would find the lock its
        // own.
        let taken = unsafe { &mut *self.taken.get() };
        taken.as_deref_mut().map(work)
    }

    pub(crate) fn is_non_blocking(&self) -> bool {
        self.non_blocking.load(Relaxed)
    }

    /// Whether it is a packet socket, and not one of UDP.
    #[inline]
    pub(crate) fn is_packet(&self) -> bool {
        self.is_packet.load(Relaxed)
    }

    pub(crate) fn set_non_blocking(&self, value: bool) {
        self.non_blocking.store(value, Relaxed);
    }
}

/// Makes the table; whether that worked.
pub(crate) fn make() -> bool {
    // SAFETY: a new mapping of our own.
    let start = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            size_of::<Table>(),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if start == libc::MAP_FAILED {
        return false;
    }
    // SAFETY: the mapping just made.
    if unsafe { libc::madvise(start, size_of::<Table>(), libc::MADV_WIPEONFORK) } != 0 {
        return false;
    }
    // Release: partner is the acquire in `entry`.
    TABLE.store(start.cast(), Release);
    true
}

/// In a forked child. The sockets that the parent had taken are forgotten without closing what they share with it.
pub(crate) fn renew_after_fork() {
    CHANGING.reset();
    for place in &PLACES {
        place.lock.reset();
        place.descriptors.store(0, Relaxed);
        // SAFETY: the child has one thread, and it is here. Writing drops nothing.
        unsafe { place.taken.get().write(None) };
    }
}

#[inline]
fn entry(descriptor: RawFd) -> Option<&'static AtomicU16> {
    // Acquire: partner is the release in `make`.
    let table = TABLE.load(Acquire);
    let index = usize::try_from(descriptor).ok()?;
    if table.is_null() || index >= DESCRIPTORS {
        return None;
    }
    // SAFETY: the table is never unmapped, all its bytes are valid entries, and the index is within.
    Some(unsafe { &(*table)[index] })
}

fn is_place(value: u16) -> bool {
    !matches!(value, 0 | LEFT | LEFT_FOR_GOOD)
}

/// The place of a taken socket.
#[inline]
pub(crate) fn place(descriptor: RawFd) -> Option<&'static Place> {
    // Acquire: partner is the release in `enter`.
    match entry(descriptor)?.load(Acquire) {
        0 | LEFT | LEFT_FOR_GOOD => None,
        place => PLACES.get(usize::from(place) - 1),
    }
}

/// Whether nothing was decided about a descriptor yet.
#[inline]
pub(crate) fn is_unknown(descriptor: RawFd) -> bool {
    entry(descriptor).is_some_and(|entry| entry.load(Relaxed) == 0)
}

/// Datagrams that this process has sent through the kernel, and whatever else it wrote.
static SENT: AtomicU32 = AtomicU32::new(0);

/// Counts a call that sent through the kernel, after it.
#[inline]
pub(crate) fn count_sent() {
    if !TABLE.load(Relaxed).is_null() {
        SENT.fetch_add(1, Relaxed);
    }
}

pub(crate) fn sent() -> u32 {
    SENT.load(Relaxed)
}

/// Remembers that a descriptor is left to the kernel.
pub(crate) fn leave(descriptor: RawFd) {
    if let Some(entry) = entry(descriptor) {
        let _taken = entry.compare_exchange(0, LEFT, Relaxed, Relaxed);
    }
}

/// Leaves a socket to the kernel whatever becomes of it. One that is taken is given back first.
pub(crate) fn leave_for_good(descriptor: RawFd) {
    if let Some(entry) = entry(descriptor) {
        for before in [0, LEFT] {
            let _taken = entry.compare_exchange(before, LEFT_FOR_GOOD, Relaxed, Relaxed);
        }
    }
}

/// Whether a descriptor was left to the kernel for good.
pub(crate) fn is_left_for_good(descriptor: RawFd) -> bool {
    entry(descriptor).is_some_and(|entry| entry.load(Relaxed) == LEFT_FOR_GOOD)
}

/// Forgets what was decided about a descriptor that is not taken.
pub(crate) fn forget(descriptor: RawFd) {
    if let Some(entry) = entry(descriptor) {
        let _taken = entry.compare_exchange(LEFT, 0, Relaxed, Relaxed);
    }
}

/// Whether there is a place for one more. The caller holds [`CHANGING`].
pub(crate) fn has_room() -> bool {
    free().is_some()
}

fn free() -> Option<usize> {
    let is_free = |place: &Place| place.descriptors.load(Relaxed) == 0;
    PLACES.iter().position(is_free)
}

/// Enters a taken socket; it comes back where there is no room. The caller holds [`CHANGING`].
pub(crate) fn enter(
    descriptor: RawFd,
    taken: Box<Taken>,
    is_non_blocking: bool,
) -> Result<(), Box<Taken>> {
    let (Some(index), Some(entry)) = (free(), entry(descriptor)) else {
        return Err(taken);
    };
    let place = &PLACES[index];
    let Some(_held) = place.lock.enter() else {
        return Err(taken);
    };
    let is_packet = taken.cable().is_some();
    // SAFETY: the lock is held.
    unsafe { *place.taken.get() = Some(taken) };
    place.is_packet.store(is_packet, Relaxed);
    place.set_non_blocking(is_non_blocking);
    place.descriptors.store(1, Relaxed);
    // Release: partner is the acquire in `place`.
    entry.store(index as u16 + 1, Release);
    Ok(())
}

/// One more descriptor of a socket, or a descriptor that is now something else.
pub(crate) fn duplicated(from: RawFd, to: RawFd) {
    let (Some(from), Some(to)) = (entry(from), entry(to)) else {
        return;
    };
    let value = from.load(Acquire);
    if is_place(value) {
        PLACES[usize::from(value) - 1]
            .descriptors
            .fetch_add(1, Relaxed);
    }
    to.store(value, Release);
}

/// The program closes a descriptor: with the last of a socket, its port closes. For a signal handler too.
pub(crate) fn closed(descriptor: RawFd) {
    if let Some(entry) = entry(descriptor) {
        for left in [LEFT, LEFT_FOR_GOOD] {
            let _taken = entry.compare_exchange(left, 0, Relaxed, Relaxed);
        }
    }
    let Some(place) = place(descriptor) else {
        return;
    };
    let _kept = crate::errno::Kept::new();
    let _undisturbed = Undisturbed::new();
    let Some(_changing) = CHANGING.enter() else {
        return;
    };
    if let Some(entry) = entry(descriptor) {
        entry.store(0, Release);
    }
    if place.descriptors.fetch_sub(1, Relaxed) == 1 {
        let closed = vacate(place);
        if let Some(taken) = &closed {
            decide::explain_close(descriptor, taken);
        }
        node::at_work(|| drop(closed));
    }
}

/// Gives a socket back to the kernel, with all its descriptors; whether it was taken. The caller holds [`CHANGING`].
pub(crate) fn give_back(descriptor: RawFd) -> bool {
    let Some(place) = place(descriptor) else {
        return false;
    };
    for other in 0..DESCRIPTORS {
        let Some(entry) = entry(other as RawFd) else {
            break;
        };
        let value = entry.load(Relaxed);
        if is_place(value) && std::ptr::eq(&PLACES[usize::from(value) - 1], place) {
            entry.store(LEFT, Release);
        }
    }
    place.descriptors.store(0, Relaxed);
    node::at_work(|| vacate(place).is_some())
}

fn vacate(place: &Place) -> Option<Box<Taken>> {
    let _held = place.lock.enter()?;
    // SAFETY: the lock is held.
    unsafe { (*place.taken.get()).take() }
}

/// Taken descriptors of a range.
pub(crate) fn taken_within(first: u32, last: u32) -> impl Iterator<Item = RawFd> {
    let last = last.min(DESCRIPTORS as u32 - 1);
    (first..=last)
        .map(|descriptor| descriptor as RawFd)
        .filter(|descriptor| place(*descriptor).is_some())
}

/// A descriptor of the taken socket that is so. For rare use: it looks at the whole table.
pub(crate) fn find(is_so: impl Fn(&Taken) -> bool) -> Option<RawFd> {
    taken_within(0, u32::MAX).find(|descriptor| {
        let found = place(*descriptor).and_then(|place| place.with(|taken| is_so(taken)));
        found == Some(true)
    })
}

/// Whether both are one socket.
pub(crate) fn same(one: &Place, other: &Place) -> bool {
    std::ptr::eq(one, other)
}
