//! Memory of the process that is never paged out.

use std::io;

use rustix::mm::MlockAllFlags;
use rustix::process::{Resource, getrlimit};
use rustix::thread::CapabilitySet;

use crate::privilege::is_in_first_user_namespace;

/// Locks all memory of the process, and all that it maps later. Fails where a limit binds: an
/// allocation beyond the limit would fail later, and a Rust process aborts then.
pub fn lock_all() -> io::Result<()> {
    let limit = getrlimit(Resource::Memlock).current;
    if let Some(bytes) = limit
        && !may_exceed_memory_lock_limit()
    {
        return Err(io::Error::other(format!("RLIMIT_MEMLOCK is {bytes} bytes")));
    }
    Ok(rustix::mm::mlockall(
        MlockAllFlags::CURRENT | MlockAllFlags::FUTURE,
    )?)
}

/// Whether the capability counts: in a user namespace it is held, and the limit binds nevertheless.
fn may_exceed_memory_lock_limit() -> bool {
    let held = rustix::thread::capabilities(None);
    held.is_ok_and(|held| held.effective.contains(CapabilitySet::IPC_LOCK))
        && is_in_first_user_namespace().is_ok_and(|is_first| is_first)
}
