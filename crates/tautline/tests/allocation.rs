//! Cost of an open port: no allocation on the way of a message, at most 2 MiB, no CPU while nothing comes.
#![allow(unsafe_code)] // A global allocator can be made in no other way.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use common::{
    Give, PACKET, Pair, Side, Take, UDP, XDP, XSK, bus_pair, pair, port, queuing_with,
    sampling_with,
};
use tautline::cycle::CycleOptions;
use tautline::keys::{Cipher, Key, KeyRing, KeySource};
use tautline::link::PlainUdp;
use tautline::port::{Outgoing, QueuingOptions};
use tautline::{
    Cycle, LinkKind, Node, NodeConfig, Priority, Protection, Typed, TypedQueuingPort, Wait,
    neighbour,
};

thread_local! {
    /// Calls of this thread that took or gave back memory.
    static CALLS: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, with a count.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn count() {
    // A thread that ends has no counter any more, and no reader.
    let _ended = CALLS.try_with(|calls| calls.set(calls.get() + 1));
}

// SAFETY: each call is handed to the system's allocator as it came, whose promises are ours; the
// counter is a thread-local integer without destructor, so counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller guarantees what `GlobalAlloc::alloc` asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count();
        // SAFETY: the caller guarantees that `alloc` above, that is the system's, returned it.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count();
        // SAFETY: as for `dealloc`; the caller guarantees that `bytes` is not zero.
        unsafe { System.realloc(pointer, layout, bytes) }
    }
}

/// Calls of the allocator in this thread during `work`.
fn allocations(work: impl FnOnce()) -> u64 {
    let before = CALLS.get();
    work();
    CALLS.get() - before
}

/// Memory is measured for the whole process: one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn the_counter_counts() {
    assert_eq!(allocations(|| drop(std::hint::black_box(Box::new(7)))), 2);
    assert_eq!(allocations(|| ()), 0);
}

#[test]
fn a_cycle_allocates_nothing_after_its_start() {
    let mut cycle = Cycle::start(&CycleOptions::new(Duration::from_micros(200))).unwrap();
    let calls = allocations(|| {
        for _ in 0..100 {
            cycle.wait();
        }
        std::hint::black_box(cycle.statistics());
    });
    assert_eq!(calls, 0);
}

/// Small messages; spinning, sleeping, and in vain.
fn queuing(pair: &Pair) {
    let options = queuing_with(|options| options.spin = Duration::from_micros(10).into());
    let (mut sender, mut receiver, to) = pair.ports(&options);
    let mut buffer = [0; 1484];
    let calls = allocations(|| {
        receiver.finds_nothing(&mut buffer);
        for length in [0, 1, 64, 1400] {
            sender
                .send(to, Priority::HIGHEST, &[7; 1400][..length])
                .unwrap();
            assert_eq!(receiver.take_into(&mut buffer).length, length);
        }
        let soon = pair.now() + Duration::from_millis(20);
        assert_eq!(receiver.look(&mut buffer, Wait::Until(soon)), None);
        assert!(sender.send(to, Priority::LOWEST, &[0; 65_537][..]).is_err());
        // With a descriptor, as in a loop with epoll.
        assert!(receiver.descriptor().is_some());
        receiver.finds_nothing(&mut buffer);
        sender.give(to, Priority::NORMAL, b"last");
        assert_eq!(receiver.take_into(&mut buffer).length, 4);
    });
    assert_eq!(calls, 0);
}

/// Sealing, checking, and deriving keys: those of the first frame, and those after the keys were read again.
#[test]
fn a_protected_port_allocates_nothing() {
    let _alone = alone();
    let secret = std::array::from_fn(|place| place as u8);
    let ring = KeyRing::new([Key::new(1, Cipher::Aes128Gcm, 0, secret)]).unwrap();
    let addresses = [[127, 0, 22, 1].into(), [127, 0, 22, 2].into()];
    let nodes = [addresses, [addresses[1], addresses[0]]].map(|[own, other]| {
        let config = NodeConfig::udp(own).with_neighbour(neighbour("peer", other));
        let keys = KeySource::Ring(ring.clone());
        Node::open(config.unwrap().with_keys("peer", keys)).unwrap()
    });
    let queue = queuing_with(|options| {
        (options.message_bytes_max, options.protection) = (20_000, Some(Protection::Encrypted))
    });
    let value = sampling_with(|options| options.protection = Some(Protection::Authenticated));
    let mut sender = nodes[0].queuing(port(11)).options(&queue).open().unwrap();
    let mut receiver = nodes[1].queuing(port(12)).options(&queue).open().unwrap();
    let mut reader = nodes[1].sampling(port(13)).options(&value).open().unwrap();
    let to = sender.destination("peer", port(12)).unwrap();
    let to_value = sender.destination("peer", port(13)).unwrap();
    let mut buffer = vec![0; 20_000];
    for _ in 0..2 {
        let calls = allocations(|| {
            for length in [0, 64, 1_400, 20_000] {
                sender
                    .send(to, Priority::NORMAL, &[7; 20_000][..length])
                    .unwrap();
                let deadline = tautline::now() + common::PATIENCE;
                let message = receiver.look(&mut buffer, Wait::Until(deadline));
                assert_eq!(message.unwrap().length, length);
            }
            sender.give(to_value, Priority::NORMAL, b"value");
            let deadline = tautline::now() + common::PATIENCE;
            let sample = reader.look(&mut buffer, Wait::Until(deadline));
            assert_eq!(sample.unwrap().length, 5);
        });
        assert_eq!(calls, 0);
        nodes.iter().for_each(|node| node.reload_keys().unwrap());
    }
}

/// A receiver that sleeps until it is woken.
fn sleeping(pair: &Pair) {
    let options = queuing_with(|options| options.spin = Duration::ZERO.into());
    let (mut sender, mut receiver, to) = pair.ports(&options);
    let calls = std::thread::scope(|scope| {
        let sleeper = scope.spawn(move || {
            let mut buffer = [0; 1484];
            let deadline = tautline::now() + common::PATIENCE;
            allocations(|| {
                let woken = receiver.look(&mut buffer, Wait::Until(deadline));
                assert!(woken.is_some());
            })
        });
        std::thread::sleep(Duration::from_millis(20));
        sender.give(to, Priority::NORMAL, b"wake up");
        sleeper.join().unwrap()
    });
    assert_eq!(calls, 0);
}

/// The largest messages, and one of which the receiver misses a part.
fn reassembly(pair: &Pair) {
    let options = queuing_with(|options| options.message_bytes_max = 65_536);
    let (mut sender, mut receiver, to) = pair.ports(&options);
    let message = vec![9; 65_536];
    let mut buffer = vec![0; 65_536];
    let calls = allocations(|| {
        for length in [65_536, 1485, 10_000, 65_536] {
            sender.give(to, Priority::NORMAL, &message[..length]);
            assert_eq!(receiver.take_into(&mut buffer).length, length);
        }
    });
    assert_eq!(calls, 0);
}

fn merging_and_batches(pair: &Pair) {
    let (mut sender, mut receiver, to) = pair.ports(&QueuingOptions::default());
    let mut buffer = [0; 1484];
    let message = [7; 100];
    let batch = [Outgoing {
        to,
        priority: Priority::NORMAL,
        message: &message,
    }; 40];
    let calls = allocations(|| {
        for _ in 0..40 {
            sender.merge(to, Priority::NORMAL, &message).unwrap();
        }
        sender.flush().unwrap();
        for sent in 0..2 {
            if sent == 1 {
                assert_eq!(sender.send_batch(&batch).unwrap(), 40);
            }
            for _ in 0..40 {
                assert_eq!(receiver.take_into(&mut buffer).length, message.len());
            }
        }
    });
    assert_eq!(calls, 0);
}

/// Values of a type, copied and filled in place.
fn typed(pair: &Pair) {
    #[derive(Clone, Copy, Debug, Typed)]
    #[repr(C)]
    struct State {
        position: [f64; 7],
        flags: u64,
    }
    let mut sender: TypedQueuingPort<State> = pair
        .on_a(|node| node.queuing(port(31)).typed().open())
        .unwrap();
    let mut receiver: TypedQueuingPort<State> = pair
        .on_b(|node| node.queuing(port(32)).typed().open())
        .unwrap();
    let to = sender.destination("peer", port(32)).unwrap();
    let calls = allocations(|| {
        for flags in 0..4 {
            let state = State {
                position: [0.5; 7],
                flags,
            };
            sender.send(to, Priority::NORMAL, &state).unwrap();
            let (received, _) = receiver.receive(Wait::Until(pair.soon())).unwrap().unwrap();
            assert_eq!((received.flags, received.position), (flags, [0.5; 7]));
        }
        (*sender).send(to, Priority::NORMAL, b"other").unwrap();
        assert!(receiver.receive(Wait::Until(pair.soon())).is_err());
    });
    assert_eq!(calls, 0);
}

fn sampling(pair: &Pair) {
    let options = sampling_with(|options| options.sources = 5);
    let (mut publisher, mut reader, to) = pair.values(&options);
    let mut buffer = [0; 1484];
    let calls = allocations(|| {
        assert_eq!(reader.read_into(&mut buffer).unwrap(), None);
        for value in 0..10u8 {
            publisher.send(to, Priority::NORMAL, &[value; 100]).unwrap();
            let sample = reader.look(&mut buffer, Wait::Until(pair.soon()));
            assert_eq!((sample.unwrap().length, buffer[0]), (100, value));
            assert!(!reader.read_into(&mut buffer).unwrap().unwrap().new);
            publisher.send(to, Priority::NORMAL, &[value; 9]).unwrap();
            let sample = reader.look(&mut buffer, Wait::Until(pair.soon()));
            assert_eq!(buffer[..sample.unwrap().length], [value; 9]);
        }
        let soon = pair.now() + Duration::from_millis(20);
        assert_eq!(reader.look(&mut buffer, Wait::Until(soon)), None);
    });
    assert_eq!(calls, 0);
}

/// Messages that are filled in place and looked at where they lie, in one frame and in many.
fn lending(pair: &Pair) {
    let options = queuing_with(|options| options.message_bytes_max = 65_536);
    let (mut sender, mut receiver, to) = pair.ports(&options);
    let calls = allocations(|| {
        for length in [0, 1, 1400, 1485, 65_536] {
            drop(sender.lend(to, Priority::NORMAL, length).unwrap());
            sender
                .lend(to, Priority::NORMAL, length)
                .and_then(|mut loan| {
                    loan.fill(7);
                    loan.send()
                })
                .unwrap();
            let lent = receiver.receive_in_place(Wait::Until(pair.soon())).unwrap();
            assert_eq!(lent.unwrap().bytes().len(), length);
            assert!(receiver.receive_in_place(Wait::Poll).unwrap().is_none());
        }
        assert!(sender.lend(to, Priority::NORMAL, 65_537).is_err());
    });
    assert_eq!(calls, 0);
}

/// Plain UDP: copied and lent, both ways, long ones too, in batches and in vain.
fn plain_udp(pair: &Pair) {
    let options = QueuingOptions::default();
    let (mut sender, mut receiver, to) = pair.udp_ports([5001, 5002], &options);
    let long = vec![7; 65_507];
    let mut buffer = [0; 1484];
    let calls = allocations(|| {
        receiver.finds_nothing(&mut buffer);
        for length in [0, 1, 64, 1472] {
            sender
                .send_to(to, Priority::HIGHEST, &long[..length])
                .unwrap();
            assert_eq!(receiver.take_into(&mut buffer).length, length);
            let mut loan = sender.lend(to, Priority::HIGHEST, length).unwrap();
            loan.fill(7);
            loan.send().unwrap();
            let datagram = receiver.receive(Wait::Until(pair.soon())).unwrap();
            assert_eq!(*datagram.unwrap(), long[..length]);
        }
        for length in [1473, 8192, 65_507] {
            sender
                .send_to(to, Priority::LOWEST, &long[..length])
                .unwrap();
            let loan = sender.lend(to, Priority::LOWEST, length).unwrap();
            loan.send().unwrap();
        }
        assert!(sender.lend(to, Priority::LOWEST, 65_537).is_err());
        assert!(sender.send_to(to, Priority::LOWEST, &[0; 65_508]).is_err());
        let mut batch = [Outgoing {
            to,
            priority: Priority::LOWEST,
            message: &long[..100],
        }; 40];
        batch[20].message = &long[..8192];
        assert_eq!(sender.send_batch(&batch).unwrap(), 40);
        // With a descriptor, as in a loop with epoll.
        assert!(receiver.descriptor().is_some());
        while receiver.receive(Wait::Poll).unwrap().is_some() {}
        sender.send_to(to, Priority::NORMAL, b"last").unwrap();
        assert_eq!(receiver.take_into(&mut buffer).length, 4);
        let soon = pair.now() + Duration::from_millis(20);
        assert_eq!(receiver.look(&mut buffer, Wait::Until(soon)), None);
    });
    assert_eq!(calls, 0);
}

/// Datagrams in fragments, put together: copied and lent.
fn long_datagrams(pair: &Pair) {
    let options = queuing_with(|options| options.message_bytes_max = 65_507);
    let (mut sender, mut receiver, to) = pair.udp_ports([5003, 5004], &options);
    let mut buffer = vec![0; 65_507];
    let calls = allocations(|| {
        for length in [1473, 8192, 65_507] {
            let mut loan = sender.lend(to, Priority::NORMAL, length).unwrap();
            loan.fill(7);
            loan.send().unwrap();
            assert_eq!(receiver.take_into(&mut buffer).length, length);
            let mut loan = sender.lend(to, Priority::NORMAL, length).unwrap();
            loan.fill(9);
            loan.send().unwrap();
            let datagram = receiver.receive(Wait::Until(pair.soon())).unwrap();
            let datagram = datagram.unwrap();
            assert_eq!(datagram.len(), length);
            assert!(datagram.iter().all(|byte| *byte == 9));
        }
    });
    assert_eq!(calls, 0);
}

fn nothing_is_allocated(side: Side) {
    let _alone = alone();
    let Some(pair) = pair(side, side) else { return };
    queuing(&pair);
    typed(&pair);
    lending(&pair);
    if pair.a.report().capabilities.plain_udp != PlainUdp::None {
        plain_udp(&pair);
        long_datagrams(&pair);
    }
    sleeping(&pair);
    reassembly(&pair);
    merging_and_batches(&pair);
    sampling(&pair);
}

/// Messages and values filled and looked at in place, small ones and such as are not copied on the way.
fn lending_over_a_bus(pair: &Pair) {
    let (mut sender, mut receiver, to) = pair.ports(&QueuingOptions::default());
    let options = sampling_with(|options| options.value_bytes_max = 4096);
    let (mut publisher, mut reader, to_value) = pair.values(&options);
    let calls = allocations(|| {
        for length in [8, 256, 257, 1400] {
            let mut loan = sender.lend(to, Priority::NORMAL, length).unwrap();
            loan.fill(length as u8);
            loan.send().unwrap();
            let message = receiver.receive_in_place(Wait::Poll).unwrap().unwrap();
            assert_eq!(message.bytes().len(), length);
            drop(message);
            let mut loan = publisher.lend(to_value, Priority::NORMAL, length).unwrap();
            loan.fill(length as u8);
            loan.send().unwrap();
            let sample = reader.read_in_place().unwrap().unwrap();
            assert!(sample.new && sample.bytes.len() == length);
            let mut last = [0];
            assert_eq!(sample.bytes.copy_out(length - 1, &mut last), 1);
            assert_eq!(last[0], length as u8);
        }
    });
    assert_eq!(calls, 0);
}

#[test]
fn nothing_is_allocated_on_vbus() {
    let _alone = alone();
    let pair = bus_pair();
    queuing(&pair);
    typed(&pair);
    sleeping(&pair);
    reassembly(&pair);
    merging_and_batches(&pair);
    sampling(&pair);
    lending_over_a_bus(&pair);
}

#[test]
fn nothing_is_allocated_on_xdp() {
    nothing_is_allocated(XDP);
}

#[test]
fn nothing_is_allocated_on_packet() {
    nothing_is_allocated(PACKET);
}

#[test]
fn nothing_is_allocated_on_xsk() {
    nothing_is_allocated(XSK);
}

#[test]
fn nothing_is_allocated_on_udp() {
    nothing_is_allocated(UDP);
}

/// Memory that the kernel charges this process for its BPF maps.
fn map_bytes() -> u64 {
    let mut bytes = 0;
    for entry in std::fs::read_dir("/proc/self/fdinfo").unwrap() {
        let Ok(text) = std::fs::read_to_string(entry.unwrap().path()) else {
            continue; // The descriptor of the directory itself.
        };
        if text.contains("map_type:") {
            let charged = text.lines().find_map(|line| line.strip_prefix("memlock:"));
            bytes += charged.unwrap().trim().parse::<u64>().unwrap();
        }
    }
    bytes
}

fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages = text.split(' ').nth(1).unwrap().parse::<u64>().unwrap();
    pages * 4096
}

#[test]
fn a_port_of_default_depth_costs_at_most_2_mib() {
    for side in [XDP, XSK, PACKET, UDP] {
        let _alone = alone();
        let Some(pair) = pair(side, side) else { return };
        let before = (map_bytes(), resident_bytes());
        let queue = pair.on_b(|node| node.queuing(port(70)).open()).unwrap();
        let maps = map_bytes() - before.0;
        // The mapping of a map is resident too: the same pages.
        let resident = resident_bytes().saturating_sub(before.1);
        assert_eq!(maps > 0, side.link == LinkKind::Xdp);
        assert!(maps.max(resident) <= 2 << 20, "{maps} and {resident} bytes");
        let laid_out = pair.b.status().ports[0].memory_bytes as u64;
        assert!(
            laid_out <= maps.max(resident),
            "{laid_out} bytes are counted"
        );
        drop(queue);
        assert_eq!(map_bytes(), before.0, "given back");
    }
}

/// Nanoseconds that this thread has had a CPU.
fn cpu_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split(' ').next().unwrap().parse().unwrap()
}

#[test]
fn a_waiting_receiver_uses_no_cpu() {
    for side in [XDP, XSK, PACKET, UDP] {
        let _alone = alone();
        let Some(pair) = pair(side, side) else { return };
        let (_sender, mut receiver, _) = pair.ports(&QueuingOptions::default());
        let mut buffer = [0; 1484];
        let before = cpu_ns();
        let deadline = pair.now() + Duration::from_millis(300);
        assert_eq!(receiver.look(&mut buffer, Wait::Until(deadline)), None);
        let used = cpu_ns() - before;
        // One round of spinning is 50 us; a receiver that spun would use 300 ms.
        assert!(used < 10_000_000, "{used} ns in 300 ms");
    }
}
