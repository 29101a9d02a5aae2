//! Doorbells between Linux and a guest: two events. How they become interrupts of the guest is its monitor's business.

use std::io;

use tautline_state::Event;

/// Both doorbells.
#[derive(Debug)]
pub(crate) struct Doorbells {
    /// Rung by the guest.
    pub(crate) to_linux: Event,
    /// Rung by Linux.
    pub(crate) to_guest: Event,
}

impl Doorbells {
    pub(crate) fn new() -> io::Result<Doorbells> {
        Ok(Doorbells {
            to_linux: Event::new()?,
            to_guest: Event::new()?,
        })
    }
}
