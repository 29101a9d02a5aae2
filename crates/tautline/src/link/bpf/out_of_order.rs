//! The fragments of plain UDP that the kernel's side has kept because they came before the first of their
//! datagram, as a port looks at them.

use std::io;
use std::os::fd::BorrowedFd;

use tautline_proto::ip::DatagramHead;
use tautline_shm::layout::{RecordHead, SLOT_PAYLOAD_BYTES};
use tautline_shm::out_of_order;

use crate::memory::MappedSlots;

/// The array `held_slots` of `bpf/fragment.bpf.h`, mapped.
#[derive(Debug)]
pub(crate) struct OutOfOrderFragments(MappedSlots);

impl OutOfOrderFragments {
    pub(crate) fn map(array: BorrowedFd<'_>) -> io::Result<Self> {
        MappedSlots::map(array, out_of_order::SLOT_COUNT).map(Self)
    }

    /// Those of the peer that a record is of, each with its head and its bytes.
    pub(crate) fn of_peer(
        &self,
        head: &RecordHead,
        each: &mut dyn FnMut(&RecordHead, &DatagramHead, &[u8]),
    ) {
        let mut bytes = [0; SLOT_PAYLOAD_BYTES];
        let fragment = |head: &RecordHead| DatagramHead::from_bytes(&head.header);
        out_of_order::of_peer(
            self.0.slots(),
            head.source,
            &mut bytes,
            |head| fragment(head).map(|fragment| fragment.length.into()),
            |head, bytes| {
                if let Some(fragment) = fragment(head) {
                    each(head, &fragment, bytes);
                }
            },
        );
    }
}
