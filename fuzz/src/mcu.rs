//! The C header for microcontrollers beside the Rust parser: the same answer to every input.

use std::cell::RefCell;

use tautline_mcu::guarded::Guarded;
use tautline_mcu::same;

thread_local! {
    /// Mapped once: a mapping for each input would take longer than all the rest.
    static MEMORY: RefCell<Guarded> = RefCell::new(Guarded::new());
}

/// The bytes as a frame, a datagram, a header, a bundle, and the length of a message.
pub fn mcu_frame(data: &[u8]) {
    MEMORY.with_borrow_mut(|memory| same::frame_in(memory, data));
}

/// The bytes as sequence numbers.
pub fn mcu_loss(data: &[u8]) {
    same::loss(data);
}

/// The bytes as fragments of several messages.
pub fn mcu_reassembly(data: &[u8]) {
    same::reassembly(data);
}
