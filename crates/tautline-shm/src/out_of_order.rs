//! Fragments of plain UDP that arrived before the first of their datagram: kept by the demux until that first one
//! determines the port.
//!
//! Rings that the writer never waits for, one for each group of peers. A slot's turn is the number of the
//! fragment in it, from 1 on, and 0 while it is written; a reader takes what it has copied only if the turn is
//! the same before and after. Readers leave no trace, so several ports may look. The writer is `hold_out_of_order` in
//! `bpf/fragment.bpf.h`.

use crate::layout::{RecordHead, SLOT_PAYLOAD_BYTES, Slot};
use crate::sync::Ordering::{Acquire, Relaxed};
use crate::sync::fence;

/// Rings. Lower: a peer that floods with fragments spoils more others' that come out of order. Higher:
/// 96 KiB each.
pub const GROUP_COUNT: usize = 4;
/// Fragments in a ring. Lower: less than the 45 of the longest datagram backwards. Higher: memory, and the
/// search through all.
pub const GROUP_SLOTS: usize = 64;
/// Beside the place of a port, in what is said of the first fragment of a datagram: others may have come before.
pub const FRAGMENT_OUT_OF_ORDER: u64 = 0x1_0000;
/// All slots.
pub const SLOT_COUNT: usize = GROUP_COUNT * GROUP_SLOTS;

/// The fragments of one peer, by the source word that they were kept with; each with its head and its bytes
/// after the IP header. `length` tells the bytes from the head; `bytes` is where they are copied to.
pub fn of_peer(
    slots: &[Slot],
    source: u64,
    bytes: &mut [u8; SLOT_PAYLOAD_BYTES],
    length: impl Fn(&RecordHead) -> Option<usize>,
    mut each: impl FnMut(&RecordHead, &[u8]),
) {
    let group = group_of(source) * GROUP_SLOTS;
    for slot in slots.iter().skip(group).take(GROUP_SLOTS) {
        // Acquire: partner is the writer's publishing exchange.
        let turn = slot.turn.load(Acquire);
        let head = slot.head();
        if turn == 0 || head.source != source {
            continue;
        }
        let Some(bytes) = length(&head).and_then(|length| bytes.get_mut(..length)) else {
            continue;
        };
        slot.read_payload_unowned(bytes);
        // The second look at the turn must not happen before the reads above.
        fence(Acquire);
        if slot.turn.load(Relaxed) == turn {
            each(&head, bytes);
        }
    }
}

/// The ring that a peer's fragments are in: `peer_share` of `bpf/fragment.bpf.h`.
fn group_of(source: u64) -> usize {
    let bytes = source.to_ne_bytes();
    let address = u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    let mixed = u64::from(address).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
    ((mixed * GROUP_COUNT as u64) >> 32) as usize
}
