//! Capabilities that a thread gives up.

use std::io;

use rustix::thread::{CapabilitySet, CapabilitySets};

/// Gives up, for the calling thread and for good, all of its capabilities but these.
///
/// # Errors
/// The kernel refuses it.
pub fn keep_capabilities(keep: CapabilitySet) -> io::Result<()> {
    // Without CAP_SETPCAP the bounding set stays, of which a process that executes nothing gets nothing.
    for one in CapabilitySet::all().difference(keep).iter() {
        let _stays = rustix::thread::remove_capability_from_bounding_set(one);
    }
    let _none = rustix::thread::clear_ambient_capability_set();
    let held = rustix::thread::capabilities(None)?;
    let left = CapabilitySets {
        effective: held.effective & keep,
        permitted: held.permitted & keep,
        inheritable: CapabilitySet::empty(),
    };
    Ok(rustix::thread::set_capabilities(None, left)?)
}
