//! System calls without the C library: its functions may be the ones that `taut exec` stands in front of, are points at
//! which a thread is cancelled, and set `errno`.
#![allow(unsafe_code)] // System calls.

use std::ffi::c_int;
use std::io;
use std::os::fd::{BorrowedFd, RawFd};

use libc::{pollfd, sigset_t, timespec};
use tautline_proto::time::Instant;

/// An open descriptor of the caller's, who keeps it open for as long as it is waited for. Nothing is read from it.
///
/// # Errors
/// EBADF if no descriptor of this number is open.
pub fn open_descriptor(number: RawFd) -> io::Result<BorrowedFd<'static>> {
    // SAFETY: no pointers.
    if unsafe { libc::fcntl(number, libc::F_GETFD) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: open, so not -1. If the program closes it, poll(2) answers POLLNVAL, which ends a wait, or waits for the
    // next file of this number; nothing is read here.
    Ok(unsafe { BorrowedFd::borrow_raw(number) })
}

/// A system call with at most six arguments: the kernel's result, negative for an error.
///
/// # Safety
/// As the system call's.
#[inline]
pub unsafe fn call<const N: usize>(number: libc::c_long, arguments: [usize; N]) -> isize {
    let mut all = [0; 6];
    all[..N].copy_from_slice(&arguments);
    // SAFETY: the caller's promise.
    unsafe { enter(number, all) }
}

/// The convention of this processor (syscall(2)).
#[cfg(target_arch = "x86_64")]
unsafe fn enter(number: libc::c_long, [a, b, c, d, e, f]: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: the caller's promise for the arguments.
    unsafe {
        core::arch::asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// The convention of this processor (syscall(2)).
#[cfg(target_arch = "aarch64")]
unsafe fn enter(number: libc::c_long, [a, b, c, d, e, f]: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: the caller's promise for the arguments.
    unsafe {
        core::arch::asm!(
            "svc 0",
            in("x8") number as usize,
            inlateout("x0") a => result,
            in("x1") b, in("x2") c, in("x3") d, in("x4") e, in("x5") f,
            options(nostack),
        );
    }
    result
}

/// Through the C library.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
unsafe fn enter(number: libc::c_long, [a, b, c, d, e, f]: [usize; 6]) -> isize {
    // SAFETY: the caller's promise.
    let result = unsafe { libc::syscall(number, a, b, c, d, e, f) };
    match result {
        // SAFETY: a thread's own errno.
        -1 => -(unsafe { *libc::__errno_location() } as isize),
        result => result as isize,
    }
}

/// Outcome of a poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Polled {
    /// At least one descriptor has something, an error included.
    Ready,
    /// The time is over.
    Nothing,
    /// A signal handler ran.
    Interrupted,
    /// The kernel refused.
    Refused,
}

/// ppoll(2) on a list, until `end` on CLOCK_MONOTONIC, or without waiting where that has passed; the signal mask may be
/// null.
pub fn poll(
    entries: &mut [pollfd],
    end: Option<Instant>,
    now: Instant,
    mask: *const sigset_t,
) -> Polled {
    let left = end.map(|end| timespec_of(end.saturating_duration_since(now)));
    let left = left
        .as_ref()
        .map_or(0, |left| std::ptr::from_ref(left).addr());
    let start = entries.as_mut_ptr().expose_provenance();
    let mask = mask.expose_provenance();
    let arguments = [start, entries.len(), left, mask, SIGNAL_SET_BYTES];
    // SAFETY: a list of that many entries; a time or none; a mask that the kernel reads, or none.
    match unsafe { call(libc::SYS_ppoll, arguments) } {
        0 => Polled::Nothing,
        found if found > 0 => Polled::Ready,
        error if error == -(libc::EINTR as isize) => Polled::Interrupted,
        _ => Polled::Refused,
    }
}

/// The kernel's signal set has 64 bits.
const SIGNAL_SET_BYTES: usize = 8;

/// epoll_pwait2(2) on an instance, until `end` on CLOCK_MONOTONIC, or without waiting where that has passed: how many
/// events it stored. The signal mask may be null.
///
/// # Errors
/// Those of the call.
///
/// # Safety
/// Room for `count` events.
pub unsafe fn wait_for_events(
    epoll: c_int,
    (events, count): (*mut libc::epoll_event, c_int),
    end: Instant,
    now: Instant,
    mask: *const sigset_t,
) -> Result<c_int, c_int> {
    let left = timespec_of(end.saturating_duration_since(now));
    let left = (&raw const left).expose_provenance();
    let (events, mask) = (events.expose_provenance(), mask.expose_provenance());
    let (epoll, count) = (epoll as usize, count as usize);
    let arguments = [epoll, events, count, left, mask, SIGNAL_SET_BYTES];
    // SAFETY: the caller's promise; a time; a mask that the kernel reads, or none.
    let result = unsafe { call(libc::SYS_epoll_pwait2, arguments) } as c_int;
    match result < 0 {
        true => Err(-result),
        false => Ok(result),
    }
}

/// Sleeps until an instant on CLOCK_MONOTONIC. A signal does not end it.
pub fn sleep_until(end: Instant) {
    let end = timespec_at(end);
    let at = (&raw const end).expose_provenance();
    let clock = libc::CLOCK_MONOTONIC as usize;
    let arguments = [clock, libc::TIMER_ABSTIME as usize, at];
    // SAFETY: a time that the kernel reads. It is absolute, so that a sleep which a signal ended is begun again.
    while unsafe { call(libc::SYS_clock_nanosleep, arguments) } == -(libc::EINTR as isize) {}
}

/// Lets threads of the same priority run.
pub fn yield_now() {
    // SAFETY: no arguments.
    unsafe { call(libc::SYS_sched_yield, []) };
}

/// Whether a call on this descriptor may wait.
pub fn is_blocking(fd: c_int) -> bool {
    // SAFETY: no pointers.
    let flags = unsafe { call(libc::SYS_fcntl, [fd as usize, libc::F_GETFL as usize]) };
    flags >= 0 && flags as c_int & libc::O_NONBLOCK == 0
}

/// An option of a socket, if it is one and has the option.
pub fn socket_option<T: Copy>(fd: c_int, (level, name): (c_int, c_int), mut value: T) -> Option<T> {
    let mut bytes = size_of::<T>() as libc::socklen_t;
    let (to, length) = (&raw mut value, &raw mut bytes);
    let arguments = [
        fd as usize,
        level as usize,
        name as usize,
        to.expose_provenance(),
        length.expose_provenance(),
    ];
    // SAFETY: room for the value, and its size.
    let result = unsafe { call(libc::SYS_getsockopt, arguments) };
    (result == 0).then_some(value)
}

/// Asks for timers without slack, and for a slice of 0.1 ms where the thread has no real-time policy: the scheduler
/// then lets it run soon after it woke (Linux 6.12 and later). Whether the slice was given.
pub fn prefer_latency() -> bool {
    // SAFETY: no pointers.
    unsafe { call(libc::SYS_prctl, [libc::PR_SET_TIMERSLACK as usize, 1]) };
    let Some(attributes) = attributes().filter(|found| found.policy == libc::SCHED_OTHER as u32)
    else {
        return false;
    };
    let wanted = Attributes {
        size: size_of::<Attributes>() as u32,
        runtime: SLICE_NS,
        ..attributes
    };
    let at = (&raw const wanted).expose_provenance();
    // SAFETY: attributes of their size.
    unsafe { call(libc::SYS_sched_setattr, [0, at, 0]) };
    // An older kernel takes the slice without an error and ignores it.
    self::attributes().is_some_and(|found| found.runtime == SLICE_NS)
}

/// Scheduling attributes of the calling thread.
fn attributes() -> Option<Attributes> {
    let mut attributes = Attributes::default();
    let at = (&raw mut attributes).expose_provenance();
    // SAFETY: room for the attributes, whose size is given.
    let result = unsafe { call(libc::SYS_sched_getattr, [0, at, size_of::<Attributes>(), 0]) };
    (result == 0).then_some(attributes)
}

/// Slice that is asked for: the kernel's smallest.
const SLICE_NS: u64 = 100_000;

/// `struct sched_attr` (sched_setattr(2)), first version.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

/// Whether the calling thread has a real-time policy, for which yielding is cheap.
pub fn is_real_time() -> bool {
    // SAFETY: no pointers.
    let policy = unsafe { call(libc::SYS_sched_getscheduler, [0]) };
    matches!(
        policy as c_int & !libc::SCHED_RESET_ON_FORK,
        libc::SCHED_FIFO | libc::SCHED_RR
    )
}

/// CLOCK_MONOTONIC.
#[inline]
pub fn now() -> Instant {
    now_of(libc::CLOCK_MONOTONIC).unwrap_or(Instant::ZERO)
}

/// The time of any clock; `None` for one that cannot be read.
#[inline]
pub fn now_of(clock: libc::clockid_t) -> Option<Instant> {
    let mut time = timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: room for a time.
    let result = unsafe { libc::clock_gettime(clock, &raw mut time) };
    (result == 0).then(|| instant_of(&time)).flatten()
}

/// A C time as an instant, if it is a valid one.
pub fn instant_of(time: &timespec) -> Option<Instant> {
    let seconds = u64::try_from(time.tv_sec).ok()?;
    let nanos = u64::try_from(time.tv_nsec)
        .ok()
        .filter(|nanos| *nanos < 1_000_000_000)?;
    seconds
        .checked_mul(1_000_000_000)?
        .checked_add(nanos)
        .map(Instant::from_nanos)
}

/// A duration as a C time.
pub fn timespec_of(time: std::time::Duration) -> timespec {
    timespec {
        tv_sec: time.as_secs().min(i64::MAX as u64) as libc::time_t,
        tv_nsec: time.subsec_nanos().into(),
    }
}

/// An instant as a C time.
pub fn timespec_at(at: Instant) -> timespec {
    timespec_of(std::time::Duration::from_nanos(at.as_nanos()))
}
