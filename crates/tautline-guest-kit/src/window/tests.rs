//! The guest's side against Linux's, in memory of this process.

use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::AtomicU32;

use tautline_shm::vbus::layout::NAME_BYTES;
use tautline_shm::vbus::shape::{Kind, PAGE_BYTES, Shape};

use super::*;

static RINGS: AtomicU32 = AtomicU32::new(0);

fn ring() {
    RINGS.fetch_add(1, Relaxed);
}

fn connection(port: u16, direction: Direction, kind: Kind) -> Connection {
    let shape = Shape {
        kind,
        message_bytes_max: 40,
    };
    Connection {
        port,
        direction,
        shape,
    }
}

fn plan() -> Plan {
    let queuing = Kind::Queuing { depth: 4 };
    Plan::new(&[
        connection(7, Direction::ToGuest, queuing),
        connection(7, Direction::ToLinux, queuing),
        connection(9, Direction::ToLinux, Kind::Sampling),
    ])
    .expect("within the limits")
}

/// Memory of a window, aligned to pages.
struct Pages(Vec<[u64; PAGE_BYTES / 8]>);

impl Pages {
    fn new(bytes: usize) -> Pages {
        Pages(vec![[0; PAGE_BYTES / 8]; bytes / PAGE_BYTES + 1])
    }

    fn base(&mut self) -> *mut u8 {
        let start = self.0.as_mut_ptr().cast::<u8>();
        start.wrapping_add(start.align_offset(PAGE_BYTES))
    }
}

/// Linux: its region, and the guest's behind it.
fn sides<'m>(base: *mut u8, plan: &Plan) -> (Region<'m>, Region<'m>) {
    let linux_bytes = plan.region_bytes(Side::Linux);
    // SAFETY: the pages of a test, as large as the plan, which outlive all that is made here.
    unsafe {
        let guests = base.add(linux_bytes);
        (
            Region::at(base, linux_bytes).expect("room"),
            Region::at(guests, plan.region_bytes(Side::Guest)).expect("room"),
        )
    }
}

fn join<'m>(base: *mut u8, bytes: usize) -> Result<Window<'m>, LayoutError> {
    // SAFETY: as in `sides`.
    unsafe { Window::join(base, bytes, ring) }
}

fn head(class: u32) -> MessageHead {
    MessageHead {
        length: 0,
        arrival_ns: 0,
        sequence: 1,
        class,
    }
}

#[test]
fn messages_and_values_pass_in_both_lives() {
    let plan = plan();
    let bytes = plan.window_bytes();
    let mut pages = Pages::new(bytes);
    let base = pages.base();
    let (linux, guests) = sides(base, &plan);
    linux.announce(Side::Linux, &plan, 11, 0, 250);
    let mut name = [0; NAME_BYTES];
    name[..6].copy_from_slice(b"viewer");
    let viewer = linux.set_peer(2, &name);
    for life in 0..2_u64 {
        let window = join(base, bytes).expect("a window");
        assert_eq!(guests.generation(), 11 + life);
        assert_eq!(window.peer("view", 1), None);
        assert_eq!(window.peer("viewers", 1), None);
        let to = window.peer("viewer", 20).expect("named");
        assert_eq!((to.peer, to.turn, to.port), (2, viewer.turn, 20));
        assert!(window.port(8).is_err());
        let (mut port, mut state) = (window.port(7).expect("7"), window.port(9).expect("9"));

        let ends = plan.connections();
        let (mut sending, mut receiving) = (Sending::new(ends[0]), Receiving::new(ends[1]));
        let (out, their) = (linux.producer(&plan, 0), guests.consumer(&plan, 0));
        let (own, inwards) = (linux.consumer(&plan, 1), guests.producer(&plan, 1));
        assert!(!port.is_open() && !port.send(to, 3, b"early"));
        assert!(sending.connect(out, their));
        receiving.offer(own, 500 + life);
        assert!(!port.is_open(), "Linux has not noted this life");
        linux.acknowledge(guests.generation());
        assert!(port.is_open() && receiving.connect(inwards));
        assert!(port.receive().is_none() && !state.is_open());

        let message = (to, &b"hello"[..]);
        for class in [1, 6] {
            assert!(sending.send(out, their, message, head(class)));
        }
        assert!(!sending.wanted(out, their), "the guest is awake");
        let mut found = Vec::new();
        let mut text = [0; 4];
        while let Some((from, priority, length)) = port.take(&mut text) {
            assert_eq!((from, &text[..length]), (to, &b"hell"[..]), "cut");
            found.push(priority);
            assert!(!sending.wanted(out, their), "it is awake");
        }
        assert_eq!(found, [6, 1]);
        assert!(sending.send(out, their, message, head(3)));
        assert!(sending.wanted(out, their), "now it is to be woken");

        let rings = RINGS.load(Relaxed);
        let mut sleeper = Sleeper::new();
        sleeper.arm(&own.head.wait, WakeMode::Descriptor);
        assert!(port.send(to, 5, b"there") && port.send(to, 5, b"again"));
        assert_eq!(RINGS.load(Relaxed) - rings, 1, "Linux slept, once");
        assert!(!port.send(to, 5, &[0; 33]), "too long with its address");
        let seen = receiving.look(own, inwards).expect("a message");
        let mut copy = [0; 5];
        assert_eq!(seen.copy_out(&mut copy), Some((to, 5)));
        assert_eq!(&copy, b"there");
        assert_eq!(seen.priority(), 5);
        for room in [true, true, false] {
            assert_eq!(port.send(to, 5, b"more"), room, "four fit");
        }
    }
}

#[test]
fn no_window_and_wrong_ones_are_refused() {
    let plan = plan();
    let bytes = plan.window_bytes();
    let mut pages = Pages::new(bytes);
    let base = pages.base();
    let refused = |bytes| join(base, bytes).map(|_| ()).expect_err("refused");
    assert_eq!(refused(100).field, "bytes");
    assert_eq!(refused(bytes).field, "magic");
    let (linux, _) = sides(base, &plan);
    linux.announce(Side::Guest, &plan, 11, 0, 0);
    assert_eq!(refused(bytes).field, "side");
    linux.announce(Side::Linux, &plan, 11, 0, 0);
    assert_eq!(refused(bytes - PAGE_BYTES).field, "bytes");
    assert!(join(base, bytes).is_ok());
}
