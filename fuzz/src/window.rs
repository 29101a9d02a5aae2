//! Target for windows: a guest that writes anything into its region at any moment, and Linux's side of it.
#![allow(unsafe_code)] // Lays regions over pages of this process.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tautline_shm::vbus::layout::MessageHead;
use tautline_shm::vbus::shape::{Kind, PAGE_BYTES, Shape};
use tautline_shm::vbus::window::{
    ADDRESS_BYTES, Address, Connection, Direction, Plan, REGION_HEAD_BYTES, Receiving, Region,
    Sending, Side,
};

const MESSAGE_BYTES_MAX: u32 = 24;
const PAGES: usize = 24;
const TO: Address = Address {
    peer: 1,
    turn: 2,
    port: 3,
};

/// Memory as a mapping would be.
#[repr(align(4096))]
struct Pages([AtomicU64; PAGES * PAGE_BYTES / 8]);

impl Pages {
    fn new() -> Box<Self> {
        Box::new(Self([const { AtomicU64::new(0) }; PAGES * PAGE_BYTES / 8]))
    }

    fn region(&self) -> Region<'_> {
        let base = self.0.as_ptr().cast_mut().cast();
        // SAFETY: aligned pages, accessed by this thread alone, that stay for as long as the borrow.
        unsafe { Region::at(base, PAGES * PAGE_BYTES) }.expect("room for a head")
    }
}

fn plan() -> Plan {
    let connection = |port, direction, kind| Connection {
        port,
        direction,
        shape: Shape {
            kind,
            message_bytes_max: MESSAGE_BYTES_MAX,
        },
    };
    let queuing = Kind::Queuing { depth: 2 };
    Plan::new(&[
        connection(1, Direction::ToGuest, queuing),
        connection(1, Direction::ToLinux, queuing),
        connection(2, Direction::ToGuest, Kind::Sampling),
        connection(2, Direction::ToLinux, Kind::Sampling),
    ])
    .expect("a plan within the limits")
}

/// The bytes as a guest's writes between the steps of Linux's side.
pub fn vbus_window(data: &[u8]) {
    let plan = plan();
    let (own, theirs) = (Pages::new(), Pages::new());
    let (linux, guest) = (own.region(), theirs.region());
    linux.announce(Side::Linux, &plan, 7, 0, 100);
    // A guest that has joined as it should, so that not every input is refused at once.
    guest.announce(Side::Guest, &plan, 9, 7, 0);
    let mut sending = [0, 2].map(|index| (index, Sending::new(plan.connections()[index])));
    let mut receiving = [1, 3].map(|index| (index, Receiving::new(plan.connections()[index])));
    for (index, end) in &mut receiving {
        end.offer(linux.consumer(&plan, *index), 100 + *index as u64);
    }
    for step in data.as_chunks::<8>().0 {
        let place = usize::from(u16::from_ne_bytes([step[0], step[1]])) % theirs.0.len();
        let value = u32::from_ne_bytes([step[2], step[3], step[4], step[5]]);
        let shift = u32::from(step[6] & 1) * 32;
        let before = theirs.0[place].load(Relaxed) & !(0xFFFF_FFFF << shift);
        theirs.0[place].store(before | u64::from(value) << shift, Relaxed);
        let which = usize::from(step[6] >> 1 & 1);
        match step[7] % 4 {
            0 => {
                if let Ok((facts, found)) = guest.check(Side::Guest) {
                    assert_eq!(facts.window_bytes, found.window_bytes() as u64);
                    assert!(found.region_bytes(Side::Guest) <= PAGES * PAGE_BYTES);
                }
                let _ = guest.peer(usize::from(step[6]));
            }
            1 => {
                let (index, end) = &mut sending[which];
                let (producer, consumer) =
                    (linux.producer(&plan, *index), guest.consumer(&plan, *index));
                end.connect(producer, consumer);
                let head = MessageHead {
                    length: 0,
                    arrival_ns: 1,
                    sequence: 2,
                    class: u32::from(step[6] >> 2),
                };
                let mut sent = 0;
                while *index == 0 && end.send(producer, consumer, (TO, &[5; 8]), head) {
                    sent += 1;
                    assert!(sent <= 4, "what was free, and one ring more");
                }
                let _ = end.send(producer, consumer, (TO, &[5; 17]), head);
                let wakes = [(); 2].map(|()| end.wanted(producer, consumer));
                assert!(wakes != [true; 2], "one sleep, one wake-up");
            }
            2 => {
                let (index, end) = &mut receiving[which];
                let (consumer, producer) =
                    (linux.consumer(&plan, *index), guest.producer(&plan, *index));
                end.connect(producer);
                if let Some(found) = end.look(consumer, producer) {
                    let mut copy = [0xA5; MESSAGE_BYTES_MAX as usize + 8];
                    let whole = found.head.length as usize;
                    assert!(whole <= MESSAGE_BYTES_MAX as usize && found.priority() < 8);
                    let copied = found.copy_out(&mut copy).map(|(_, length)| length);
                    assert_eq!(copied, whole.checked_sub(ADDRESS_BYTES));
                    let rest = &copy[copied.unwrap_or(0)..];
                    assert!(rest.iter().all(|byte| *byte == 0xA5));
                    end.release(consumer, &found);
                }
            }
            _ => {
                let (index, end) = &mut receiving[which];
                end.offer(linux.consumer(&plan, *index), u64::from(value) | 1 << 40);
            }
        }
    }
}

/// Inputs to begin with: all kinds of steps, with writes to heads and to first memories.
pub fn seeds() -> Vec<Vec<u8>> {
    let first_memory = (REGION_HEAD_BYTES / 8) as u16;
    let places = [0, 1, 32, first_memory, first_memory + 1, first_memory + 64];
    (0..4_u8)
        .map(|kind| {
            let step = |place: u16| {
                let [low, high] = place.to_ne_bytes();
                [low, high, 1, 0, 0, 0, kind, kind]
            };
            places.into_iter().flat_map(step).collect()
        })
        .collect()
}
