//! Linux's side of a window.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;

use tautline_shm::vbus::layout::NAME_BYTES;
use tautline_shm::vbus::window::{Address, Plan, Region, Side};
use tautline_state::mapping::Mapping;

use crate::sys::{memory_file, region};

/// Both regions, in a memory that a virtual machine maps: Linux's first. The guest's is mapped read-only here.
#[derive(Debug)]
pub(crate) struct Window {
    file: OwnedFd,
    own: Mapping,
    guests: Mapping,
}

impl Window {
    /// A window of zeros, but for Linux's head.
    pub(crate) fn new(plan: &Plan, generation: u64, silence_max_ms: u32) -> io::Result<Window> {
        let own_bytes = plan.region_bytes(Side::Linux);
        // A device's memory has a power of two of bytes.
        let bytes = (plan.window_bytes() as u64).next_power_of_two();
        let file = memory_file("taut-window", bytes)?;
        let window = Window {
            own: Mapping::shared(file.as_fd(), own_bytes, 0)?,
            guests: Mapping::shared_read_only(
                file.as_fd(),
                plan.region_bytes(Side::Guest),
                own_bytes,
            )?,
            file,
        };
        window
            .own()
            .announce(Side::Linux, plan, generation, 0, silence_max_ms);
        Ok(window)
    }

    /// The memory of both.
    pub(crate) fn file(&self) -> &OwnedFd {
        &self.file
    }

    /// Sizes of Linux's region and of the guest's, which follows in that memory.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        (self.own.bytes() as u64, self.guests.bytes() as u64)
    }

    /// Linux's region.
    pub(crate) fn own(&self) -> Region<'_> {
        region(&self.own)
    }

    /// The guest's.
    pub(crate) fn guests(&self) -> Region<'_> {
        region(&self.guests)
    }

    /// Linux is alive.
    pub(crate) fn beat(&self) {
        let heartbeat = &self.own().life().heartbeat;
        heartbeat.store(heartbeat.load(Relaxed).wrapping_add(1), Relaxed);
    }

    /// Linux has rung the guest's doorbell.
    pub(crate) fn count_doorbell(&self) {
        let doorbells = &self.own().life().doorbells;
        doorbells.store(doorbells.load(Relaxed).wrapping_add(1), Relaxed);
    }

    /// Gives a place of the table of names to a peer.
    pub(crate) fn set_peer(&self, place: usize, name: &str) -> Address {
        let mut bytes = [0; NAME_BYTES];
        let length = name.len().min(NAME_BYTES - 1);
        bytes[..length].copy_from_slice(&name.as_bytes()[..length]);
        self.own().set_peer(place, &bytes)
    }
}
