//! The ring of copies of frames that readers such as `taut capture` map: its layout. `bpf/tap.bpf.h` and the library's
//! senders write it, and none of them waits for a reader.
//!
//! The ring is an array of elements of [`SLOT_BYTES`]. The first is the control: [`UNTIL_WORD`] has the time up to
//! which copies are wanted, 0 if none are, and [`HEAD_WORD`] the count of positions that were taken. The frame
//! of a position lies in slot position modulo [`SLOTS`], and is whole while the slot's turn is position + 1.

/// Slots. The reason for the count is in `bpf/tautline.h`.
pub const SLOTS: u64 = 1024;
/// Bytes of a slot with its head.
pub const SLOT_BYTES: usize = 1552;
/// Bytes of a slot's head: turn, time in nanoseconds of `CLOCK_MONOTONIC`, and the lengths.
pub const HEAD_BYTES: usize = 24;
/// Bytes that are kept of a frame.
pub const FRAME_BYTES: usize = SLOT_BYTES - HEAD_BYTES;
/// Bytes of the whole ring.
pub const RING_BYTES: usize = (SLOTS as usize + 1) * SLOT_BYTES;
/// Turn of a slot that is being written.
pub const BUSY: u64 = 1 << 63;

/// Word of the control: until when copies are wanted.
pub const UNTIL_WORD: usize = 0;
/// Word of the control: positions taken.
pub const HEAD_WORD: usize = 8;
/// Words of a slot's head.
pub const TURN_WORD: usize = 0;
/// Time of the frame.
pub const TIME_WORD: usize = 1;
/// Length of the frame in 32 bits, bytes that are kept of it in 16, its way in 16.
pub const LENGTH_WORD: usize = 2;

/// Way of a frame that arrived.
pub const WAY_RECEIVED: u16 = 1;
/// Way of a frame that was sent.
pub const WAY_SENT: u16 = 2;

const _: () = assert!(SLOT_BYTES.is_multiple_of(8) && SLOTS.is_power_of_two());

/// Byte at which the slot of a position begins.
#[must_use]
pub const fn slot_of(position: u64) -> usize {
    (1 + (position % SLOTS) as usize) * SLOT_BYTES
}
