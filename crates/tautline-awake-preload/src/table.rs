//! A slot for each descriptor: what kind it is, its flow, and the thread that waits on it here.
#![allow(unsafe_code)] // Flows behind a flag.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU16, AtomicU64};

use tautline_awake::flow::Flow;
use tautline_awake::raw;
use tautline_proto::time::Instant;

use crate::look::{Judgement, Place};
use crate::{next, options, report};

/// Descriptors with a slot. Higher numbers are the kernel's alone. Lower: a large server's first sockets have none.
/// Higher: memory, though only of slots that are used.
pub(crate) const SLOTS: usize = 1024;

const UNKNOWN: u8 = 0;
/// Messages come from outside: sockets, pipes of other programs, timers.
const FOREIGN: u8 = 1;
/// Anything else.
const OTHER: u8 = 2;
/// Threads of this program write there: a thread that looks there could delay them.
const OWN: u8 = 3;

/// Members of an epoll instance that are known to be this program's own. Lower: a program with several event loops in
/// one instance is taken for its peer. Higher: more comparisons for each event.
const OWN_MEMBERS: usize = 4;

/// No copy was made of a descriptor.
const NONE: c_int = -1;

pub(crate) struct Slot {
    kind: AtomicU8,
    is_held: AtomicBool,
    /// Whether the flow has begun. Only the holder reads and writes it.
    has_flow: AtomicBool,
    /// A copy of a descriptor that another thread closed while its holder waits on it.
    copy: AtomicI32,
    /// Entry of the flow in the report.
    reported: AtomicU16,
    /// Place beside its socket, if it has one.
    pub(crate) beside: Judgement,
}

static TABLE: [Slot; SLOTS] = [const {
    Slot {
        kind: AtomicU8::new(UNKNOWN),
        is_held: AtomicBool::new(false),
        has_flow: AtomicBool::new(false),
        copy: AtomicI32::new(NONE),
        reported: AtomicU16::new(report::NONE),
        beside: Judgement::new(),
    }
}; SLOTS];

/// Own members of the epoll instance with a slot's number: data of their events, inverted; 0 is none.
static OWN_EVENTS: [[AtomicU64; OWN_MEMBERS]; SLOTS] =
    [const { [const { AtomicU64::new(0) }; OWN_MEMBERS] }; SLOTS];

/// Flows of the slots, apart from them: a forked child looks through all slots. Without an initial value they take no
/// room in the library, and memory only where they are used.
struct Flows([UnsafeCell<MaybeUninit<Flow>>; SLOTS]);

// SAFETY: a flow is reached by the holder of its slot only.
unsafe impl Sync for Flows {}

static FLOWS: Flows = Flows([const { UnsafeCell::new(MaybeUninit::uninit()) }; SLOTS]);

/// The slot of a descriptor whose arrivals can be predicted.
#[inline]
pub(crate) fn slot(fd: c_int) -> Option<&'static Slot> {
    let slot = TABLE.get(usize::try_from(fd).ok()?)?;
    match slot.kind.load(Relaxed) {
        FOREIGN => Some(slot),
        OTHER | OWN => None,
        _ => slot.classify(fd),
    }
}

/// The slot of any descriptor: of an epoll instance, whose arrivals are those of its members, or of one that is not
/// predicted.
#[inline]
pub(crate) fn slot_of_set(fd: c_int) -> Option<&'static Slot> {
    TABLE.get(usize::try_from(fd).ok()?)
}

/// The place beside a socket, if it has one.
#[inline]
pub(crate) fn place(fd: c_int) -> Option<Place> {
    TABLE.get(usize::try_from(fd).ok()?)?.beside.place()
}

/// A descriptor that threads of this program write to.
pub(crate) fn is_own(fd: c_int) {
    set_kind(fd, OWN);
}

/// A descriptor joined an epoll instance, or its events have other data now.
pub(crate) fn joined(epoll: c_int, fd: c_int, data: u64) {
    let (Some(set), Some(own)) = (slot_of_set(epoll), own_events(epoll)) else {
        return;
    };
    let _unknown = set.kind.compare_exchange(UNKNOWN, OTHER, Relaxed, Relaxed);
    let is_foreign = slot(fd).is_some();
    let is_own = slot_of_set(fd).is_some_and(|slot| slot.kind.load(Relaxed) == OWN);
    let place = |word| own.iter().position(|own| own.load(Relaxed) == word);
    match place(!data) {
        Some(place) if is_foreign => own[place].store(0, Relaxed),
        None if is_own => {
            if let Some(free) = place(0) {
                own[free].store(!data, Relaxed);
            }
        }
        _ => {}
    }
}

/// Whether an event of an epoll instance is of a descriptor that threads of this program write to.
pub(crate) fn is_own_event(epoll: c_int, data: u64) -> bool {
    own_events(epoll).is_some_and(|own| own.iter().any(|own| own.load(Relaxed) == !data))
}

fn own_events(epoll: c_int) -> Option<&'static [AtomicU64; OWN_MEMBERS]> {
    OWN_EVENTS.get(usize::try_from(epoll).ok()?)
}

/// A descriptor whose messages come from outside.
pub(crate) fn is_foreign(fd: c_int) {
    set_kind(fd, FOREIGN);
}

fn set_kind(fd: c_int, kind: u8) {
    if let Some(slot) = usize::try_from(fd).ok().and_then(|fd| TABLE.get(fd)) {
        slot.kind.store(kind, Relaxed);
    }
}

/// In a forked child: the thread that held a slot is not here, and may have left its flow half written.
pub(crate) fn reset_after_fork() {
    for slot in &TABLE {
        slot.is_held.store(false, Relaxed);
        slot.has_flow.store(false, Relaxed);
        slot.copy.store(NONE, Relaxed);
        slot.reported.store(report::NONE, Relaxed);
        slot.beside.forget();
    }
}

/// Descriptors from `first` to `last` are about to be closed.
pub(crate) fn closing(first: u32, last: u32) {
    let last = (last as usize).min(SLOTS - 1);
    let slots = TABLE.iter().enumerate().take(last + 1);
    for (fd, slot) in slots.skip(first as usize) {
        if slot.kind.load(Relaxed) == UNKNOWN && !slot.is_held.load(Relaxed) {
            continue;
        }
        slot.kind.store(UNKNOWN, Relaxed);
        OWN_EVENTS[fd].iter().for_each(|own| own.store(0, Relaxed));
        match slot.hold() {
            Some(mut held) => {
                if slot.has_flow.load(Relaxed) {
                    report::write(&slot.reported, fd, &mut held);
                }
                slot.has_flow.store(false, Relaxed);
                slot.reported.store(report::NONE, Relaxed);
                slot.beside.release();
            }
            None => slot.copy_for_holder(fd as c_int),
        }
    }
}

impl Slot {
    #[cold]
    fn classify(&'static self, fd: c_int) -> Option<&'static Self> {
        let kind = kind_of(fd)?;
        self.kind.store(kind, Relaxed);
        (kind == FOREIGN).then_some(self)
    }

    /// Number of the descriptor.
    #[inline]
    fn index(&'static self) -> usize {
        let offset = std::ptr::from_ref(self).addr() - TABLE.as_ptr().addr();
        offset / size_of::<Self>()
    }

    /// The flow, unless another thread has it, or this thread does below a signal handler.
    #[inline]
    pub(crate) fn hold(&'static self) -> Option<Held> {
        // Acquire: partner is the release in `drop`.
        if self.is_held.swap(true, Acquire) {
            return None;
        }
        if self.copy.load(Relaxed) != NONE {
            self.close_copy();
        }
        Some(Held(self))
    }

    /// Number under which the descriptor is to be reached by the thread that waits on it: `fd`, or that of a copy.
    #[inline]
    pub(crate) fn number(&self, fd: c_int) -> c_int {
        // Acquire: partner is the release in `copy_for_holder`.
        match self.copy.load(Acquire) {
            NONE => fd,
            copy => copy,
        }
    }

    /// The holder takes over the copy, and closes it.
    #[inline]
    pub(crate) fn forget_copy(&self) {
        self.copy.store(NONE, Relaxed);
    }

    /// A copy for the holder before, who had gone when it was made.
    #[cold]
    fn close_copy(&self) {
        let copy = self.copy.swap(NONE, Acquire);
        if copy != NONE {
            // SAFETY: the copy is this library's.
            unsafe { next::close(copy) };
        }
    }

    /// Keeps the file open for the thread that waits on it, as the kernel does during a call.
    #[cold]
    fn copy_for_holder(&self, fd: c_int) {
        let mut limit = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        // SAFETY: room for the limit.
        unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
        // As high as may be: no program counts on these numbers.
        let lowest = c_int::try_from(limit.rlim_cur.min(1 << 20)).unwrap_or(c_int::MAX) - 64;
        // SAFETY: no pointers.
        let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, lowest.max(fd)) };
        if copy >= 0 {
            self.copy.store(copy, Release);
        }
    }
}

/// The flow of a slot, until dropped.
pub(crate) struct Held(&'static Slot);

impl Held {
    #[inline]
    pub(crate) fn flow(&mut self) -> &mut Flow {
        let at = FLOWS.0[self.0.index()].get();
        // SAFETY: the slot is held by this thread.
        let place = unsafe { &mut *at };
        if !self.0.has_flow.swap(true, Relaxed) {
            return place.write(Flow::new());
        }
        // SAFETY: written before `has_flow` was set; the flag that makes this thread the holder orders both.
        unsafe { place.assume_init_mut() }
    }

    /// The slot.
    pub(crate) fn slot(&self) -> &'static Slot {
        self.0
    }

    /// The program's own receive has returned with a message: learns from when it did, unless a wait for a set has.
    pub(crate) fn received(&mut self, began: Instant, now: Instant) {
        if !self.flow().takes_announced() {
            self.returned(began, now);
        }
    }

    /// The program's own call has returned with a message: learns from when it did.
    pub(crate) fn returned(&mut self, began: Instant, now: Instant) {
        if options::is_watching() {
            self.flow().watched(began, now);
        }
        self.flow().returned(began, now);
    }
}

impl Drop for Held {
    #[inline]
    fn drop(&mut self) {
        if self.0.has_flow.load(Relaxed) {
            report::write(&self.0.reported, self.0.index(), self);
        }
        // Release: partner is the acquire in `hold`.
        self.0.is_held.store(false, Release);
    }
}

/// Where the messages of a descriptor come from. `None` if nothing can be said now.
fn kind_of(fd: c_int) -> Option<u8> {
    // SAFETY: all bytes zero is a valid stat.
    let mut found: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: a thread's own errno; room for the result.
    let result = unsafe {
        let errno = libc::__errno_location();
        let before = *errno;
        let result = libc::fstat(fd, &raw mut found);
        *errno = before;
        result
    };
    if result != 0 {
        return None;
    }
    Some(match found.st_mode & libc::S_IFMT {
        libc::S_IFIFO => FOREIGN,
        libc::S_IFSOCK => match raw::socket_option(fd, (libc::SOL_SOCKET, libc::SO_DOMAIN), 0) {
            Some(libc::AF_INET | libc::AF_INET6 | libc::AF_PACKET | libc::AF_CAN) => FOREIGN,
            Some(libc::AF_UNIX) if has_other_peer(fd) => FOREIGN,
            Some(libc::AF_UNIX) => OWN,
            _ => OTHER,
        },
        _ => OTHER,
    })
}

fn has_other_peer(fd: c_int) -> bool {
    let nobody = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    // SAFETY: no arguments.
    let own = unsafe { libc::getpid() };
    raw::socket_option(fd, (libc::SOL_SOCKET, libc::SO_PEERCRED), nobody)
        .is_none_or(|peer| peer.pid != own)
}
