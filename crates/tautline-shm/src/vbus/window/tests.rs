//! Two sides in two memories of this process.

use super::*;
use crate::vbus::layout::MessageHead;

fn queuing(port: u16, direction: Direction) -> Connection {
    Connection {
        port,
        direction,
        shape: Shape {
            kind: Kind::Queuing { depth: 4 },
            message_bytes_max: 40,
        },
    }
}

fn plan() -> Plan {
    let state = Connection {
        shape: Shape {
            kind: Kind::Sampling,
            message_bytes_max: 24,
        },
        ..queuing(9, Direction::ToLinux)
    };
    Plan::new(&[
        queuing(7, Direction::ToGuest),
        queuing(7, Direction::ToLinux),
        state,
    ])
    .expect("within the limits")
}

/// Pages of zeros.
struct Pages(Vec<[u64; PAGE_BYTES / 8]>, usize);

impl Pages {
    fn new(bytes: usize) -> Self {
        // One more, so that some address in it is that of a page.
        Pages(vec![[0; PAGE_BYTES / 8]; bytes / PAGE_BYTES + 1], bytes)
    }

    fn region(&mut self) -> Region<'_> {
        let start = self.0.as_mut_ptr().cast::<u8>();
        let base = start.wrapping_add(start.align_offset(PAGE_BYTES));
        // SAFETY: aligned, within the pages, and used through the region alone.
        unsafe { Region::at(base, self.1) }.expect("room for a head")
    }
}

fn head(class: u32, sequence: u32) -> MessageHead {
    MessageHead {
        length: 0,
        arrival_ns: 5,
        sequence,
        class,
    }
}

#[test]
fn the_bytes_are_those_of_the_documentation() {
    let plan = plan();
    let mut pages = Pages::new(plan.region_bytes(Side::Linux));
    let region = pages.region();
    region.announce(Side::Linux, &plan, 0x0102, 0, 250);
    region.set_peer(
        1,
        b"motor\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
    );
    let base = region.base;
    // SAFETY: the head is there, and no other thread writes it now.
    let bytes = unsafe { core::slice::from_raw_parts(base, REGION_HEAD_BYTES) };
    assert_eq!(bytes[..8], *b"1WLT\x01\0\x01\0");
    assert_eq!(bytes[8..16], [2, 1, 0, 0, 0, 0, 0, 0]);
    assert_eq!(bytes[40..48], [3, 0, 0, 0, 250, 0, 0, 0]);
    assert_eq!(
        bytes[256..272],
        [1, 0, 7, 0, 1, 0, 0, 0, 4, 0, 0, 0, 40, 0, 0, 0]
    );
    assert_eq!(
        bytes[384..400],
        [2, 0, 9, 0, 2, 0, 0, 0, 0, 0, 0, 0, 24, 0, 0, 0]
    );
    let peer = PAGE_BYTES + 64;
    assert_eq!(bytes[peer..peer + 4], [2, 0, 0, 0]);
    assert_eq!(bytes[peer + 32..peer + 38], *b"motor\0");
    assert_eq!(region.check(Side::Linux).map(|found| found.1), Ok(plan));
}

#[test]
fn messages_and_values_pass_and_a_restart_loses_nothing_silently() {
    let plan = plan();
    let mut pages = (
        Pages::new(plan.region_bytes(Side::Linux)),
        Pages::new(plan.region_bytes(Side::Guest)),
    );
    let (linux, guest) = (pages.0.region(), pages.1.region());
    linux.announce(Side::Linux, &plan, 11, 0, 0);
    let (facts, seen) = linux.check(Side::Linux).expect("whole");
    assert_eq!((facts.generation, &seen), (11, &plan));
    guest.announce(Side::Guest, &plan, 21, 11, 0);

    let mut to_guest = Sending::new(plan.connections()[0]);
    let mut at_guest = Receiving::new(plan.connections()[0]);
    let (producer, consumer) = (linux.producer(&plan, 0), guest.consumer(&plan, 0));
    assert!(!to_guest.connect(producer, consumer), "nothing is offered");
    at_guest.offer(consumer, 100);
    assert!(!at_guest.connect(producer));
    assert!(to_guest.connect(producer, consumer) && !to_guest.connect(producer, consumer));
    assert!(at_guest.connect(producer) && !at_guest.connect(producer));

    let address = linux.set_peer(3, &[b'x'; NAME_BYTES]);
    let message = (address, &b"hello"[..]);
    for (class, sequence) in [(2, 1), (7, 2)] {
        assert!(to_guest.send(producer, consumer, message, head(class, sequence)));
    }
    assert!(!to_guest.wanted(producer, consumer), "it is awake");
    let mut order = Vec::new();
    while let Some(found) = at_guest.look(consumer, producer) {
        let mut copy = [0; 7];
        assert_eq!(found.copy_out(&mut copy), Some((address, 5)));
        assert_eq!(&copy, b"hello\0\0");
        assert_eq!(found.copy_out(&mut copy[..2]), Some((address, 5)), "cut");
        order.push(found.head.sequence);
        at_guest.release(consumer, &found);
    }
    assert_eq!(order, [2, 1], "the most urgent first");
    assert_eq!(guest.peer(3), None, "the table is Linux's");
    assert_eq!(linux.peer(3), Some(([b'x'; NAME_BYTES], address)));

    // The guest begins anew, with messages in the ring that it has not taken.
    for sequence in 3..8 {
        let sent = to_guest.send(producer, consumer, message, head(0, sequence));
        assert_eq!(sent, sequence < 7, "four fit");
    }
    assert_eq!(producer.head.dropped_full.count[0].load(Relaxed), 1);
    at_guest.offer(consumer, 101);
    assert!(to_guest.connect(producer, consumer));
    assert!(at_guest.connect(producer));
    assert!(
        at_guest.look(consumer, producer).is_none(),
        "of the life before"
    );

    // A value: the newest alone.
    let mut state = Sending::new(plan.connections()[2]);
    let mut reader = Receiving::new(plan.connections()[2]);
    let (producer, consumer) = (guest.producer(&plan, 2), linux.consumer(&plan, 2));
    reader.offer(consumer, 102);
    assert!(state.connect(producer, consumer) && reader.connect(producer));
    for number in 0..9 {
        let value = (address, &[number][..]);
        assert!(state.send(producer, consumer, value, head(0, number.into())));
    }
    let found = reader.look(consumer, producer).expect("a value");
    assert_eq!(found.head.sequence, 8);
    let mut copy = [0];
    assert_eq!(found.copy_out(&mut copy), Some((address, 1)));
    assert_eq!(copy, [8]);
    reader.release(consumer, &found);
    assert!(
        reader.look(consumer, producer).is_none(),
        "it has been seen"
    );
    assert!(
        !state.send(producer, consumer, (address, &[0; 17]), head(0, 9)),
        "too long"
    );
}

#[test]
fn wrong_plans_and_regions_are_refused() {
    let field = |connections: &[Connection]| match Plan::new(connections) {
        Err(LayoutError { field, .. }) => field,
        other => panic!("{other:?}"),
    };
    let good = queuing(7, Direction::ToGuest);
    let short = Connection {
        shape: Shape {
            message_bytes_max: 8,
            ..good.shape
        },
        ..good
    };
    let huge = |port| Connection {
        port,
        shape: Shape {
            kind: Kind::Queuing { depth: 64 },
            message_bytes_max: 65_536,
        },
        ..good
    };
    assert_eq!(field(&[]), "connection_count");
    assert_eq!(field(&[good; CONNECTIONS_MAX + 1]), "connection_count");
    assert_eq!(field(&[good, good]), "port");
    assert_eq!(field(&[short]), "message_bytes_max");
    let many: Vec<Connection> = (1..9).map(huge).collect();
    assert_eq!(field(&many), "window_bytes");

    let plan = plan();
    let mut pages = Pages::new(plan.region_bytes(Side::Guest));
    let region = pages.region();
    let refused = |side| region.check(side).unwrap_err().field;
    assert_eq!(refused(Side::Guest), "magic");
    region.announce(Side::Guest, &plan, 1, 1, 0);
    assert_eq!(refused(Side::Linux), "side");
    region.head.connections[1][1].store(word32(5, 40), Relaxed);
    assert_eq!(refused(Side::Guest), "depth");
    region.announce(Side::Guest, &plan, 1, 1, 0);
    region.head.facts[2].store(4096, Relaxed);
    assert_eq!(refused(Side::Guest), "region_bytes");
}
