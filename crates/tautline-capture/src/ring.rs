//! The rings into which demuxes and senders copy frames (`bpf/tap.bpf.h`), found among the programs of the machine, and
//! read. Several may read one ring; its writers never wait.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::fence;

use aya::maps::{Array, Map, MapData, MapInfo};
use aya::programs::ProgramInfo;
use tautline_shm::tap::{
    FRAME_BYTES, HEAD_BYTES, HEAD_WORD, LENGTH_WORD, RING_BYTES, SLOTS, TIME_WORD, UNTIL_WORD,
    WAY_SENT, slot_of,
};
use tautline_state::mapping::Mapping;

use crate::batch::Way;
use crate::error::CaptureError;
use crate::sys;

/// Names of the programs that receive for nodes.
const RECEIVERS: [&str; 4] = [
    "tautline_demux",
    "tautline_linear",
    "tautline_xsk",
    AT_TRAFFIC_CONTROL,
];
/// The one of them before which packet sockets see what arrives.
const AT_TRAFFIC_CONTROL: &str = "tautline_tc";
/// The program through which the clients of a control process send, and its map of permits.
const CLIENT_SEND: &str = "tautline_send";
const PERMITS: &str = "senders";
const RING: &str = "tap";

/// The map of a demux by whose number its control process calls it.
const DEMUX_ID: &str = "node_counters";

/// Bytes of `struct tl_sender`, and of what is before `reserved`: in place 0, the number of the demux.
const PERMIT_BYTES: usize = 24;
const PERMIT_DEMUX: usize = 12;

/// Time for which frames are copied after the last request. Lower: a reader that is held up for
/// as long misses frames. Higher: frames are copied for longer after a reader was killed.
const LEASE_NS: u64 = 1_000_000_000;

/// Time that a writer may take for a slot. A process may be preempted in between; the slot of one that was killed
/// there is given up after that time.
const WRITER_NS: u64 = 20_000_000;

/// A ring that is read.
#[derive(Debug)]
pub(crate) struct Ring {
    /// The memory, which demux, senders and readers share.
    memory: Mapping,
    /// Position of the next frame.
    next: u64,
    /// Since when its slot has not been written, though positions behind it were taken.
    waiting_since_ns: Option<u64>,
    lost: u64,
    /// Whether a packet socket has seen already what is received.
    is_behind_sockets: bool,
}

/// Head of a copy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copied {
    pub(crate) time_ns: u64,
    pub(crate) length: usize,
    pub(crate) way: Way,
    /// Frames that were lost just before it.
    pub(crate) lost: u64,
}

impl Ring {
    /// Begins to read the ring of a loaded program. `None` if it has none: another version of Tautline.
    pub(crate) fn of(program: &ProgramInfo) -> Result<Option<Self>, CaptureError> {
        let Some((_, map)) = map_of(program, RING)? else {
            return Ok(None);
        };
        let Map::Array(data) = &map else {
            return Ok(None);
        };
        let memory = Mapping::shared(data.fd().as_fd(), RING_BYTES, 0)
            .map_err(CaptureError::of("map the ring of copies"))?;
        let ring = Self {
            next: head(&memory),
            memory,
            waiting_since_ns: None,
            lost: 0,
            is_behind_sockets: program.name_as_str() == Some(AT_TRAFFIC_CONTROL),
        };
        ring.ask();
        Ok(Some(ring))
    }

    /// Asks for copies for a while.
    pub(crate) fn ask(&self) {
        // Unless a longer request stands. Pairs with nothing: writers of frames see it in time, since it is repeated.
        self.memory.words()[UNTIL_WORD].fetch_max(sys::monotonic() + LEASE_NS, Relaxed);
    }

    /// Whether a packet socket has seen already what is received.
    pub(crate) fn is_behind_sockets(&self) -> bool {
        self.is_behind_sockets
    }

    /// Frames lost so far.
    pub(crate) fn lost(&self) -> u64 {
        self.lost
    }

    /// The next frame, with its bytes in the buffer, which is as long as it was kept. Writers of the ring may write
    /// anything: no number from it is trusted, and the steps are bounded.
    pub(crate) fn next(&mut self, buffer: &mut Vec<u8>) -> Option<Copied> {
        let before = self.lost;
        for _ in 0..SLOTS {
            let ahead = head(&self.memory).wrapping_sub(self.next);
            if ahead == 0 {
                return None;
            }
            // Those that were written over, and one slot that may be written over right now.
            if ahead >= SLOTS {
                self.skip(ahead - SLOTS + 1);
                continue;
            }
            let turn = self.next.wrapping_add(1);
            let slot = slot_of(self.next);
            let first = slot / 8;
            // Acquire: pairs with the store by which the slot's writer releases it.
            if self.memory.load(first, Acquire) != turn {
                if self.is_still_written() {
                    return None;
                }
                self.skip(1);
                continue;
            }
            let time_ns = self.memory.load(first + TIME_WORD, Relaxed);
            let lengths = self.memory.load(first + LENGTH_WORD, Relaxed).to_ne_bytes();
            // Of the frame; of the bytes that are kept; and its way.
            let [l0, l1, l2, l3, k0, k1, w0, w1] = lengths;
            let kept = usize::from(u16::from_ne_bytes([k0, k1]));
            buffer.resize(kept.min(FRAME_BYTES), 0);
            self.memory.copy_out(slot + HEAD_BYTES, buffer);
            // Whole if no writer began to overwrite it meanwhile: the copy must not move behind this.
            fence(Acquire);
            if self.memory.load(first, Relaxed) != turn {
                self.skip(1);
                continue;
            }
            self.next = self.next.wrapping_add(1);
            self.waiting_since_ns = None;
            return Some(Copied {
                time_ns,
                length: u32::from_ne_bytes([l0, l1, l2, l3]) as usize,
                way: match u16::from_ne_bytes([w0, w1]) {
                    WAY_SENT => Way::Sent,
                    _ => Way::Received,
                },
                lost: self.lost - before,
            });
        }
        None
    }

    fn skip(&mut self, count: u64) {
        self.next = self.next.wrapping_add(count);
        self.lost = self.lost.saturating_add(count);
        self.waiting_since_ns = None;
    }

    /// Whether the writer of the next slot may still come.
    fn is_still_written(&mut self) -> bool {
        let now = sys::monotonic();
        let since = *self.waiting_since_ns.get_or_insert(now);
        now.saturating_sub(since) < WRITER_NS
    }
}

/// Positions taken so far. Pairs with the addition by which a writer takes one.
fn head(memory: &Mapping) -> u64 {
    memory.load(HEAD_WORD, Acquire)
}

/// The program with a number, if it receives for a node.
pub(crate) fn receiver(id: u32) -> Option<ProgramInfo> {
    let is_ours = |program: &ProgramInfo| {
        let name = program.name_as_str();
        RECEIVERS.iter().any(|receiver| name == Some(receiver))
    };
    loaded().find(|program| program.id() == id).filter(is_ours)
}

/// The programs through which the clients of a demux's control process send, and of those before it.
pub(crate) fn client_sends(demux: &ProgramInfo) -> Vec<ProgramInfo> {
    let Ok(Some((id, _))) = map_of(demux, DEMUX_ID) else {
        return Vec::new();
    };
    let is_its = |program: &ProgramInfo| {
        program.name_as_str() == Some(CLIENT_SEND) && demux_of(program) == Some(id)
    };
    loaded().filter(is_its).collect()
}

fn loaded() -> impl Iterator<Item = ProgramInfo> {
    aya::programs::loaded_programs().filter_map(Result::ok)
}

/// Number of the demux that a program for sending belongs to.
fn demux_of(program: &ProgramInfo) -> Option<u32> {
    let (_, permits) = map_of(program, PERMITS).ok()??;
    let permits: Array<MapData, [u8; PERMIT_BYTES]> = Array::try_from(permits).ok()?;
    let first = permits.get(&0, 0).ok()?;
    let number = first[PERMIT_DEMUX..PERMIT_DEMUX + 4].try_into().ok()?;
    Some(u32::from_ne_bytes(number))
}

/// A map of a program by its name, with its number.
fn map_of(program: &ProgramInfo, name: &str) -> Result<Option<(u32, Map)>, CaptureError> {
    let ids = program.map_ids().map_err(CaptureError::kernel)?;
    for id in ids.unwrap_or_default() {
        let info = MapInfo::from_id(id).map_err(CaptureError::kernel)?;
        if info.name_as_str() == Some(name) {
            let data = MapData::from_id(id).map_err(CaptureError::kernel)?;
            let map = Map::from_map_data(data).map_err(CaptureError::kernel)?;
            return Ok(Some((id, map)));
        }
    }
    Ok(None)
}

/// Whether this process may look at the programs of the machine at all.
pub(crate) fn may_look() -> Result<(), CaptureError> {
    match aya::programs::loaded_programs().next() {
        Some(Err(error)) => Err(CaptureError::kernel(error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A ring in memory of this process alone, which is written here as its writers do, and as none should.
    fn ring() -> Ring {
        Ring {
            memory: Mapping::anonymous(RING_BYTES).unwrap(),
            next: 0,
            waiting_since_ns: None,
            lost: 0,
            is_behind_sockets: false,
        }
    }

    fn write(ring: &Ring, position: u64, kept: u16, byte: u8) {
        let slot = slot_of(position);
        ring.memory.copy_in(slot + HEAD_BYTES, &[byte; 8]);
        ring.memory
            .copy_in(slot + 8, &(position * 10).to_ne_bytes());
        ring.memory
            .copy_in(slot + 16, &u32::from(kept).to_ne_bytes());
        ring.memory.copy_in(slot + 20, &kept.to_ne_bytes());
        ring.memory.copy_in(slot + 22, &WAY_SENT.to_ne_bytes());
        ring.memory.copy_in(slot, &(position + 1).to_ne_bytes());
        ring.memory.copy_in(64, &(position + 1).to_ne_bytes());
    }

    #[test]
    fn frames_come_in_order_and_those_written_over_are_counted() {
        let (mut ring, mut buffer) = (ring(), Vec::new());
        assert!(ring.next(&mut buffer).is_none());
        for position in 0..3 {
            write(&ring, position, 4, position as u8);
        }
        for position in 0..3 {
            let copied = ring.next(&mut buffer).unwrap();
            assert_eq!((copied.time_ns, copied.lost), (position * 10, 0));
            assert_eq!(
                (copied.way, &buffer[..]),
                (Way::Sent, &[position as u8; 4][..])
            );
        }
        assert!(ring.next(&mut buffer).is_none());
        for position in 3..3 + 2 * SLOTS {
            write(&ring, position, 4, 1);
        }
        // All but the last round; one slot of it may be being written over.
        let copied = ring.next(&mut buffer).unwrap();
        assert_eq!((copied.lost, ring.lost()), (SLOTS + 1, SLOTS + 1));
        let mut rest = 0;
        while ring.next(&mut buffer).is_some() {
            rest += 1;
        }
        assert_eq!(rest, SLOTS - 2);
    }

    #[test]
    fn a_writer_may_be_slow_but_not_for_ever() {
        let (mut ring, mut buffer) = (ring(), Vec::new());
        write(&ring, 1, 4, 1);
        // Position 0 was taken, and nothing is in its slot yet.
        assert!(ring.next(&mut buffer).is_none());
        assert_eq!(ring.lost(), 0);
        ring.waiting_since_ns = Some(0);
        assert_eq!(ring.next(&mut buffer).unwrap().lost, 1);
    }

    #[test]
    fn a_ring_of_nonsense_ends() {
        let (mut ring, mut buffer) = (ring(), Vec::new());
        ring.memory.copy_in(64, &u64::MAX.to_ne_bytes());
        for slot in 0..SLOTS {
            let at = slot_of(slot);
            ring.memory
                .copy_in(at, &(u64::MAX - SLOTS + slot).to_ne_bytes());
            ring.memory.copy_in(at + 16, &[0xff; 8]);
        }
        for _ in 0..2 * SLOTS {
            ring.waiting_since_ns = Some(0);
            if ring.next(&mut buffer).is_some() {
                assert!(buffer.len() <= FRAME_BYTES);
            }
        }
    }
}
