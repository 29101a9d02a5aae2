//! Doorbells between Linux and a guest: two events. How they become interrupts of the guest is its monitor's business.

use std::io;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use tautline_state::Event;

/// Both doorbells.
#[derive(Debug)]
pub(crate) struct Doorbells {
    /// Rung by the guest.
    pub(crate) to_linux: Event,
    /// Rung by Linux.
    pub(crate) to_guest: Event,
    /// Times that `to_linux` has been rung, of those that were answered. Written by the relay.
    rung: AtomicU64,
}

impl Doorbells {
    pub(crate) fn new() -> io::Result<Doorbells> {
        Ok(Doorbells {
            to_linux: Event::new()?,
            to_guest: Event::new()?,
            rung: AtomicU64::new(0),
        })
    }

    /// The guest's doorbell is answered: Linux looks after it.
    pub(crate) fn answer(&self) {
        self.rung.fetch_add(self.to_linux.quiet(), Relaxed);
    }

    /// Times that the guest has rung.
    pub(crate) fn rung(&self) -> u64 {
        self.rung.load(Relaxed)
    }
}
