//! Machines as their guests see them, one for each processor. `bindings/guest/*/board.h` have the same numbers.

pub mod aarch64;
pub mod x86_64;

/// First word of a machine's description.
pub const MAGIC: u32 = u32::from_le_bytes(*b"TLGM");
/// Second word of the description.
pub const VERSION: u32 = 1;
/// Bytes of the description: two 32-bit words; bytes of memory, address and bytes of the window, and a word that the
/// processor's layout explains, each of 64 bits.
pub const DESCRIPTION_BYTES: usize = 40;
