//! System calls without a safe form: regions in shared memory, and what runs between fork and exec.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::process::Signal;
use tautline_shm::vbus::window::Region;
use tautline_state::child::end_with_thread;
use tautline_state::mapping::Mapping;

/// A memory without a name that a virtual machine can map; it keeps its size.
pub(crate) fn memory_file(name: &str, bytes: u64) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create(name, flags)?;
    rustix::fs::ftruncate(&file, bytes)?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW)?;
    Ok(file)
}

/// The region that lies in a mapping.
pub(crate) fn region(mapping: &Mapping) -> Region<'_> {
    // SAFETY: as many mapped bytes, aligned to a page, that stay as long as they are borrowed; the side of the region
    // writes through it, and a read-only mapping is not written.
    let region = unsafe { Region::at(mapping.base().as_ptr(), mapping.bytes()) };
    region.expect("a plan has room for a head")
}

/// CLOSE_RANGE_CLOEXEC of linux/close_range.h; not in every libc.
const CLOSE_AT_EXEC: libc::c_uint = 1 << 2;

/// Has a command keep these descriptors and standard ones alone, and die with the thread that starts it, however that
/// ends.
pub(crate) fn tie(command: &mut Command, kept: &[BorrowedFd<'_>]) {
    end_with_thread(command, Signal::KILL);
    let kept: Vec<i32> = kept.iter().map(AsRawFd::as_raw_fd).collect();
    let between_fork_and_exec = move || -> io::Result<()> {
        // Those that this process has got from its own parent, too. Before Linux 5.11 these stay.
        // SAFETY: no memory is passed; the descriptors stay open until exec.
        let _ =
            unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, CLOSE_AT_EXEC) };
        for number in &kept {
            // SAFETY: open in the parent for as long as the command is being started.
            let descriptor = unsafe { BorrowedFd::borrow_raw(*number) };
            rustix::io::fcntl_setfd(descriptor, rustix::io::FdFlags::empty())?;
        }
        Ok(())
    };
    // SAFETY: after fork only async-signal-safe calls are allowed: the closure calls close_range and fcntl, and neither
    // allocates nor locks.
    unsafe { command.pre_exec(between_fork_and_exec) };
}
