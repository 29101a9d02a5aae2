//! Backtrace of the first page fault of a thread's jobs: the kernel's counter of page faults sends the thread a signal
//! at the instruction that faults (Linux 5.13).

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::calls::unwatched;
use super::frames::Frames;
use super::{LintKind, signals, state};

/// `struct perf_event_attr` as of Linux 5.13 (uapi/linux/perf_event.h, PERF_ATTR_SIZE_VER7).
#[repr(C)]
#[derive(Default)]
struct EventAttributes {
    kind: u32,
    bytes: u32,
    config: u64,
    sample_period: u64,
    sample_kind: u64,
    read_format: u64,
    flags: u64,
    unused: [u64; 9],
    signal_data: u64,
}

const _: () = assert!(size_of::<EventAttributes>() == 128);

/// Kernel ABI (uapi/linux/perf_event.h).
const PERF_TYPE_SOFTWARE: u32 = 1;
const PERF_COUNT_SW_PAGE_FAULTS: u64 = 2;
const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 8;
const DISABLED: u64 = 1 << 0;
const EXCLUDE_KERNEL: u64 = 1 << 5;
const REMOVE_ON_EXEC: u64 = 1 << 36;
const SIGTRAP: u64 = 1 << 37;
const ENABLE: libc::c_ulong = 0x2400;
const DISABLE: libc::c_ulong = 0x2401;
/// `si_code` of a signal of a counter (uapi/asm-generic/siginfo.h).
const TRAP_PERF: libc::c_int = 6;

/// Watches the page faults of this thread. Dropped, it stops.
pub(super) struct FaultWatch(OwnedFd);

impl FaultWatch {
    /// An error where the kernel has no such counter, or does not let this process have one.
    pub(super) fn new() -> io::Result<FaultWatch> {
        signals::install(libc::SIGTRAP, on_fault)?;
        // Faults in system calls as well, where that is allowed.
        open(0).or_else(|_| open(EXCLUDE_KERNEL)).map(FaultWatch)
    }

    /// From here on.
    pub(super) fn enable(&self) {
        control(&self.0, ENABLE);
    }

    /// Until here.
    pub(super) fn disable(&self) {
        control(&self.0, DISABLE);
    }
}

fn open(flags: u64) -> io::Result<OwnedFd> {
    let attributes = EventAttributes {
        kind: PERF_TYPE_SOFTWARE,
        bytes: size_of::<EventAttributes>() as u32,
        config: PERF_COUNT_SW_PAGE_FAULTS,
        sample_period: 1,
        flags: DISABLED | REMOVE_ON_EXEC | SIGTRAP | flags,
        ..EventAttributes::default()
    };
    // SAFETY: `attributes` states its own size and outlives the call; thread 0 is the calling one.
    let opened = unsafe {
        let attributes = &raw const attributes;
        libc::syscall(
            libc::SYS_perf_event_open,
            attributes,
            0,
            -1,
            -1,
            PERF_FLAG_FD_CLOEXEC,
        )
    };
    if opened < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has made this descriptor, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(opened as libc::c_int) })
}

fn control(counter: &OwnedFd, what: libc::c_ulong) {
    // SAFETY: no pointers are passed. It cannot fail for a counter of this thread.
    unsafe { libc::ioctl(counter.as_raw_fd(), what as _, 0) };
}

unsafe extern "C" fn on_fault(
    signal: libc::c_int,
    information: *mut libc::siginfo_t,
    _: *mut libc::c_void,
) {
    // SAFETY: the kernel passes the signal's information.
    let code = unsafe { (*information).si_code };
    unwatched(|| match code {
        TRAP_PERF => state::note_first(LintKind::PageFault, Frames::capture),
        _ => signals::give_up(signal),
    });
}
