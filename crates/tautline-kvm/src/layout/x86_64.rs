//! The machine for x86-64.

use std::ops::Range;

/// Memory begins here.
pub const RAM: u64 = 0;
/// First of the page tables with which the processor starts: 4 GiB, each address mapped to itself.
pub const PAGE_TABLES: u64 = 0x1000;
/// Description of the machine, whose address the guest's first instruction finds in `rdi`. Its last word has the ticks
/// of the time stamp counter in a second.
pub const DESCRIPTION: u64 = 0x7000;
/// Lowest address of an image. Lower: it would overwrite what the processor starts with.
pub const IMAGE_START: u64 = 0x10_0000;
/// The window: Linux's half, which the guest can only read, and then its own.
pub const WINDOW: u64 = 0xc000_0000;
/// End of the addresses that a window can have: those of the interrupt controllers follow.
pub const WINDOW_END: u64 = 0xfe00_0000;
/// Page and pages that processors of Intel need in order to start; nothing of the guest's is there.
pub const IDENTITY_MAP: u64 = 0xfffb_c000;
/// See [`IDENTITY_MAP`].
pub const TASK_STATE: u64 = 0xfffb_d000;

/// A byte that is written here goes to the console.
pub const PORT_CONSOLE: u16 = 0x3f8;
/// State of the serial line, as a 16550 has it.
pub const PORT_CONSOLE_STATE: u16 = 0x3fd;
/// The serial line is always ready for another byte.
pub const CONSOLE_READY: u8 = 0x60;
/// A write of anything rings Linux's doorbell.
pub const PORT_DOORBELL: u16 = 0x700;
/// A write ends the machine: [`END_OFF`], [`END_RESET`]; anything else says that the guest has failed.
pub const PORT_END: u16 = 0x701;
/// Ends the machine in order.
pub const END_OFF: u8 = 0;
/// Ends the machine, to be started again.
pub const END_RESET: u8 = 1;

/// Interrupt vector of the guest's doorbell.
pub const DOORBELL_VECTOR: u32 = 80;

/// Addresses of a machine's memory that an image can have.
#[must_use]
pub fn image_memory(ram_bytes: u64) -> Range<u64> {
    IMAGE_START..RAM + ram_bytes
}
