//! Memory of the process that is never paged out.
#![allow(unsafe_code)] // one mapping that is never read

use std::io;

use rustix::mm::{MapFlags, MlockAllFlags, ProtFlags};
use rustix::process::{Resource, getrlimit};
use rustix::thread::CapabilitySet;

/// Locks all memory of the process, and all that it maps later. Fails where a limit binds: an
/// allocation beyond the limit would fail later, and a Rust process aborts then.
pub fn lock_all() -> io::Result<()> {
    let limit = getrlimit(Resource::Memlock).current;
    if let Some(bytes) = limit
        && !may_exceed_memory_lock_limit()
    {
        return Err(limit_binds(bytes));
    }
    rustix::mm::mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE)?;
    match limit {
        // In a user namespace the capability is held and the limit binds nevertheless.
        Some(bytes) if !may_map(bytes) => {
            // Without FUTURE, the call ends the locking of future memory.
            rustix::mm::mlockall(MlockAllFlags::CURRENT)?;
            Err(limit_binds(bytes))
        }
        _ => Ok(()),
    }
}

fn limit_binds(bytes: u64) -> io::Error {
    io::Error::other(format!("RLIMIT_MEMLOCK is {bytes} bytes"))
}

fn may_exceed_memory_lock_limit() -> bool {
    rustix::thread::capabilities(None)
        .is_ok_and(|held| held.effective.contains(CapabilitySet::IPC_LOCK))
}

/// Whether more memory than this can be mapped while future memory is locked.
fn may_map(bytes: u64) -> bool {
    let Ok(bytes) = usize::try_from(bytes) else {
        return true;
    };
    // The kernel rounds it up to whole pages.
    let Some(length) = bytes.checked_add(1) else {
        return true;
    };
    // Not accessible, so nothing is filled; it counts against the limit all the same.
    // SAFETY: a fresh mapping at an address of the kernel's choice disturbs nothing.
    let mapped = unsafe {
        rustix::mm::mmap_anonymous(
            std::ptr::null_mut(),
            length,
            ProtFlags::empty(),
            MapFlags::PRIVATE | MapFlags::NORESERVE,
        )
    };
    // SAFETY: the mapping that was just made, without another reference.
    mapped.is_ok_and(|base| unsafe { rustix::mm::munmap(base, length) }.is_ok())
}
