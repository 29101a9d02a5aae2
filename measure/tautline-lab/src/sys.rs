//! The system calls of the lab behind safe functions, beside those of the testbed. Their callers decide what a call
//! means; nothing here keeps state.
#![allow(unsafe_code)] // system calls that rustix does not have; every block names its preconditions

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::process::{Signal, set_parent_process_death_signal};
use rustix::system::finit_module;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
pub use tautline_testbed::sys::*;

/// Turns the `-1` convention into a `Result`.
fn check(returned: libc::c_int) -> io::Result<libc::c_int> {
    if returned < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(returned)
    }
}

/// A periodic timer descriptor on CLOCK_MONOTONIC that expires first at `first_ns`.
pub fn timer_descriptor(first_ns: u64, period_ns: u64) -> io::Result<OwnedFd> {
    let timer = rustix::time::timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC)?;
    let timespec = |ns: u64| {
        Timespec::try_from(Duration::from_nanos(ns)).expect("nanoseconds in 64 bits are 585 years")
    };
    let setting = Itimerspec {
        it_interval: timespec(period_ns),
        it_value: timespec(first_ns),
    };
    rustix::time::timerfd_settime(&timer, TimerfdTimerFlags::ABSTIME, &setting)?;
    Ok(timer)
}

/// Puts the calling thread into the class that runs only when nothing else wants the CPU.
pub fn set_idle_class() -> io::Result<()> {
    tautline_state::policy::set_policy(0, libc::SCHED_IDLE, 0)
}

/// Gives the calling thread SCHED_DEADLINE. The kernel answers EPERM to a pinned thread and EBUSY when the
/// admission test fails.
pub fn set_deadline(runtime_ns: u64, deadline_ns: u64, period_ns: u64) -> io::Result<()> {
    tautline_state::policy::set_deadline(0, runtime_ns, deadline_ns, period_ns)
}

/// Undoes [`lock_all`](tautline_state::memory::lock_all).
pub fn unlock_memory() {
    let _ = rustix::mm::munlockall(); // cannot fail
}

/// Sets how late the kernel may make this thread's timers (only SCHED_OTHER heeds it). Default 50 µs.
pub fn set_timer_slack(ns: u32) -> io::Result<()> {
    let slack = std::num::NonZeroU64::new(ns.into());
    Ok(rustix::thread::set_current_timer_slack(slack)?)
}

/// Asks the kernel to kill this process when its parent's thread ends.
pub fn die_with_parent() {
    let _ = set_parent_process_death_signal(Some(Signal::KILL)); // fails for other signals only
}

/// Resources that the calling thread has used so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct ThreadUsage {
    /// Page faults served without disk.
    pub faults_minor: u64,
    /// Page faults that waited for disk.
    pub faults_major: u64,
    /// Times the thread was made to give up the CPU.
    pub switches_involuntary: u64,
    /// User and system time.
    pub cpu_time_ns: u64,
}

/// The calling thread's usage (RUSAGE_THREAD).
pub fn thread_usage() -> ThreadUsage {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: `usage` is valid memory of the right type; an all-zero rusage is valid should the call fail.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
        usage.assume_init()
    };
    let ns = |time: libc::timeval| time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1_000;
    ThreadUsage {
        faults_minor: usage.ru_minflt as u64,
        faults_major: usage.ru_majflt as u64,
        switches_involuntary: usage.ru_nivcsw as u64,
        cpu_time_ns: ns(usage.ru_utime) + ns(usage.ru_stime),
    }
}

/// Real-time clock requests, uapi/linux/rtc.h: `_IOW('p', 0x0c, unsigned long)`, `_IO('p', 5)`, `_IO('p', 6)`.
const RTC_IRQP_SET: u64 = 0x4000_700c | (size_of::<libc::c_ulong>() as u64) << 16;
const RTC_PIE_ON: u64 = 0x7005;
const RTC_PIE_OFF: u64 = 0x7006;

/// Starts the periodic interrupt of an open real-time clock at `rate_hz` (a power of two).
pub fn rtc_start(descriptor: &impl AsRawFd, rate_hz: u32) -> io::Result<()> {
    let raw = descriptor.as_raw_fd();
    // SAFETY: RTC_IRQP_SET takes its argument by value.
    check(unsafe { libc::ioctl(raw, RTC_IRQP_SET as _, libc::c_ulong::from(rate_hz)) })?;
    // SAFETY: RTC_PIE_ON takes no argument.
    check(unsafe { libc::ioctl(raw, RTC_PIE_ON as _, 0) }).map(|_| ())
}

/// Stops what [`rtc_start`] started.
pub fn rtc_stop(descriptor: &impl AsRawFd) {
    // SAFETY: RTC_PIE_OFF takes no argument.
    unsafe { libc::ioctl(descriptor.as_raw_fd(), RTC_PIE_OFF as _, 0) };
}

/// Brings the loopback device up. For the guest's first process: a fresh kernel has it down.
pub fn raise_loopback() -> io::Result<()> {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0")?;
    let mut request = MaybeUninit::<libc::ifreq>::zeroed();
    // SAFETY: an all-zero ifreq is valid; "lo" with its NUL fits the name; the flags are the member that
    // SIOCSIFFLAGS reads; `request` outlives the call.
    check(unsafe {
        let request = request.assume_init_mut();
        request.ifr_name[0] = b'l' as _;
        request.ifr_name[1] = b'o' as _;
        request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as _;
        libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, request)
    })
    .map(|_| ())
}

/// Has a network card interrupt at once when a frame comes, instead of after a while.
pub fn interrupt_at_once(interface: &str) -> io::Result<()> {
    const SIOCETHTOOL: libc::Ioctl = 0x8946;
    const ETHTOOL_GCOALESCE: u32 = 0xe;
    const ETHTOOL_SCOALESCE: u32 = 0xf;
    // `struct ethtool_coalesce` (linux/ethtool.h): the command, rx_coalesce_usecs, rx_max_coalesced_frames, …, the
    // same for sending from number 5 on.
    let mut coalesce = [0u32; 23];
    let socket = std::net::UdpSocket::bind("0.0.0.0:0")?;
    for command in [ETHTOOL_GCOALESCE, ETHTOOL_SCOALESCE] {
        coalesce[0] = command;
        let mut request = MaybeUninit::<libc::ifreq>::zeroed();
        // SAFETY: an all-zero ifreq is valid, and its last byte stays zero below.
        let request = unsafe { request.assume_init_mut() };
        let name = interface.as_bytes();
        if name.len() >= request.ifr_name.len() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        for (to, from) in request.ifr_name.iter_mut().zip(name) {
            *to = *from as libc::c_char;
        }
        request.ifr_ifru.ifru_data = coalesce.as_mut_ptr().cast();
        // SAFETY: both commands read or write one `ethtool_coalesce` where the request points; it outlives the call.
        check(unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut *request) })?;
        (coalesce[1], coalesce[5]) = (0, 0);
    }
    Ok(())
}

/// Loads a kernel module from an open file; `compressed` asks the kernel to decompress it (Linux 5.17).
pub fn load_module(file: &impl AsFd, compressed: bool) -> io::Result<()> {
    const MODULE_INIT_COMPRESSED_FILE: libc::c_int = 4;
    let flags = if compressed {
        MODULE_INIT_COMPRESSED_FILE
    } else {
        0
    };
    Ok(finit_module(file, c"", flags)?)
}

/// Lets only emergencies through to the kernel's console, so that a report is not cut by messages.
pub fn quieten_console() {
    const SYSLOG_ACTION_CONSOLE_LEVEL: libc::c_int = 8;
    // SAFETY: this action takes no buffer.
    unsafe { libc::klogctl(SYSLOG_ACTION_CONSOLE_LEVEL, std::ptr::null_mut(), 1) };
}

/// Whether standard input has ended, without waiting: how a load worker learns that it shall stop.
pub fn input_has_ended() -> bool {
    let input = rustix::stdio::stdin();
    let mut waited = [PollFd::new(&input, PollFlags::IN)];
    let now = Timespec::default();
    let ready = poll(&mut waited, Some(&now)).unwrap_or(0);
    let events = waited[0].revents();
    ready > 0
        && (events.intersects(PollFlags::HUP | PollFlags::ERR)
            || rustix::io::read(input, &mut [0; 16]).is_ok_and(|count| count == 0))
}

/// Memory of the machine that is not Linux's, as `/dev/mem` shows it: mapped as a device's, so it is read and written
/// in aligned words. For a virtual machine of the lab's own.
#[derive(Debug)]
pub struct PhysicalMemory {
    base: NonNull<u8>,
    bytes: usize,
}

impl PhysicalMemory {
    /// Maps it.
    pub fn map(address: u64, bytes: usize) -> io::Result<PhysicalMemory> {
        let flags = OFlags::RDWR | OFlags::SYNC | OFlags::CLOEXEC;
        let memory = rustix::fs::open("/dev/mem", flags, Mode::empty())?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let anywhere = std::ptr::null_mut();
        // SAFETY: a fresh mapping at an address of the kernel's choice disturbs nothing in this process.
        let base = unsafe { mmap(anywhere, bytes, access, MapFlags::SHARED, memory, address) }?;
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(PhysicalMemory { base, bytes })
    }

    /// The word at an offset, a multiple of four.
    #[must_use]
    pub fn word(&self, offset: usize) -> u32 {
        let word = self.word_at(offset);
        // SAFETY: `word_at` checks that the word is mapped and aligned; others may write it, so the read is volatile.
        let value = unsafe { word.read_volatile() };
        fence(Ordering::Acquire); // before what is read after it
        value
    }

    /// Writes the word at an offset, a multiple of four.
    pub fn set_word(&self, offset: usize, value: u32) {
        let word = self.word_at(offset);
        fence(Ordering::Release);
        // SAFETY: as above.
        unsafe { word.write_volatile(value) };
    }

    /// Bytes from an offset on.
    #[must_use]
    pub fn bytes(&self, offset: usize, count: usize) -> Vec<u8> {
        let end = offset.checked_add(count);
        assert!(
            end.is_some_and(|end| end <= self.bytes),
            "outside the memory"
        );
        // SAFETY: just checked to be mapped; a byte is always aligned.
        let byte = |at: usize| unsafe { self.base.add(offset + at).read_volatile() };
        (0..count).map(byte).collect()
    }

    fn word_at(&self, offset: usize) -> NonNull<u32> {
        assert!(
            offset.is_multiple_of(4) && offset < self.bytes - 3,
            "outside the memory"
        );
        // SAFETY: just checked to be mapped; mappings begin at a page, so a multiple of four is aligned.
        unsafe { self.base.add(offset).cast() }
    }
}

impl Drop for PhysicalMemory {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, and nothing refers to it.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// Bytes free for this user on the file system that holds `path`.
pub fn free_bytes(path: &Path) -> io::Result<u64> {
    let figures = rustix::fs::statvfs(path)?;
    Ok(figures.f_bavail * figures.f_frsize)
}
