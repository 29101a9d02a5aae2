//! The machine for aarch64. Memory, interrupt controller and serial line lie where QEMU's machine `virt` has them, and
//! the window and its doorbell where the kit for guests places those of QEMU: one image runs on both.

use std::ops::Range;

/// Distributor of the interrupt controller, which is the kernel's: a GICv2 where the host's can be one, otherwise a
/// GICv3.
pub const GIC_DISTRIBUTOR: u64 = 0x0800_0000;
/// The processor's side of a GICv2.
pub const GIC_CPU: u64 = 0x0801_0000;
/// The processor's part of a GICv3.
pub const GIC_REDISTRIBUTOR: u64 = 0x080a_0000;
/// The serial line, a PL011 that only speaks: data and state count, other registers are as if written and read as zero.
pub const CONSOLE: u64 = 0x0900_0000;
/// Bytes of its registers.
pub const CONSOLE_BYTES: u64 = 0x1000;
/// Offset of the state among them.
pub const CONSOLE_STATE: u64 = 0x18;
/// Nothing to send, nothing received.
pub const CONSOLE_READY: u32 = 0x90;
/// A write of anything rings Linux's doorbell.
pub const DOORBELL: u64 = 0x1000_000c;
/// A write says that the guest has failed. Otherwise it ends by the firmware's functions (PSCI).
pub const END: u64 = 0x1000_2000;
/// Description of the machine, which can only be read; the guest's first instruction finds its address in `x0`. Its
/// last word has the version of the interrupt controller, 2 or 3.
pub const DESCRIPTION: u64 = 0x1100_0000;
/// The window: Linux's half, which the guest can only read, and then its own.
pub const WINDOW: u64 = 0x2000_0000;
/// End of the addresses that a window can have.
pub const WINDOW_END: u64 = 0x3000_0000;
/// Memory begins here.
pub const RAM: u64 = 0x4000_0000;

/// Interrupt of the guest's doorbell, on the edge.
pub const DOORBELL_INTERRUPT: u32 = 80;

/// Addresses of a machine's memory that an image can have.
#[must_use]
pub fn image_memory(ram_bytes: u64) -> Range<u64> {
    RAM..RAM + ram_bytes
}
