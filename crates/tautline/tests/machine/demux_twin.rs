//! The demux in the kernel (C) and its twin in this process (Rust) do the same with the same
//! frames, and are made with the same constants.

use std::collections::HashMap;
use std::time::Duration;

use crate::common::wire::{Fence, Wire, frame};
use crate::common::{PACKET, Side, XDP, XDP_GENERIC, XDP_TC, hosts, on_sides, open, port};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use tautline::port::{Policing, QueuingOptions, SamplingOptions};
use tautline::status::PortStatus;
use tautline::{MacAddress, Message, Priority, Source, Wait};
use tautline_proto::ip::FLAG_VERIFIED;
use tautline_proto::wire::raw::RAW_HEAD_BYTES;
use tautline_proto::wire::{
    FLAG_AUTHENTICATED, FLAG_BUNDLE, FLAGS_KNOWN, FRAGMENT_BYTES, FRAGMENT_COUNT_MAX, HEADER_BYTES,
    Header, MESSAGE_BYTES_MAX, MTU_BYTES, PORT_MAX, ParseError, TRAILER_BYTES, UDP_PORT_BASE,
    VERSION, WHOLE_BYTES_MAX_ETHERNET,
};
use tautline_proto::{loss, wire::ETHERTYPE_DEFAULT};
use tautline_shm::{layout, peer, police, queue, sample, tap};
use tautline_testbed::hosts::Host;

const ROUNDS: usize = 600;
const FRAMES_A_ROUND: usize = 24;
const POLICED_BURST: u32 = 1_000;
const SOURCES: usize = 48;

/// Good frames for four ports: all priorities, fragments, gaps, duplicates, reordering, restarts,
/// and more senders than a peer table holds.
struct Traffic {
    random: Xoshiro256PlusPlus,
    sequences: HashMap<(u8, u16, u16), u32>,
}

impl Traffic {
    fn new(seed: u64) -> Self {
        println!("seed {seed:#x}");
        Self {
            random: Xoshiro256PlusPlus::seed_from_u64(seed),
            sequences: HashMap::new(),
        }
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.random.next_u64() % limit
    }

    fn frame(&mut self, to: MacAddress) -> Vec<u8> {
        // Mostly a few senders, now and then one of many.
        let station = match self.below(8) {
            0 => self.below(40) as u8,
            _ => self.below(5) as u8,
        };
        let source = 1 + self.below(3) as u16;
        let destination = [20, 20, 20, 21, 22, 23, 23][self.below(7) as usize];
        let sequence = self.sequence((station, source, destination));
        let mut header = Header::whole(
            port(destination),
            port(source),
            Priority::ALL[self.below(8) as usize],
            self.below(200) as u16,
            sequence,
        );
        if self.below(6) == 0 {
            header.fragment_count = 2 + self.below(46) as u8;
            header.fragment_index = self.below(u64::from(header.fragment_count)) as u8;
            header.length = FRAGMENT_BYTES as u16;
            if header.fragment_index + 1 == header.fragment_count {
                header.length = 1 + self.below(700) as u16;
            }
        }
        let mut payload = vec![0; usize::from(header.length)];
        self.random.fill_bytes(&mut payload);
        if header.is_whole() && self.below(6) == 0 {
            header.flags = FLAG_BUNDLE;
            // Small lengths, so that a part of the bundles is well formed.
            payload.iter_mut().for_each(|byte| *byte %= 2);
        }
        if self.below(8) == 0 {
            // Of a fragment the trailer comes on top.
            header.flags |= FLAG_AUTHENTICATED;
            if !header.is_whole() {
                header.length += TRAILER_BYTES as u16;
                payload.extend([7; TRAILER_BYTES]);
            }
        }
        frame(to, MacAddress([2, 0, 0, 0, 1, station]), &header, &payload)
    }

    fn sequence(&mut self, flow: (u8, u16, u16)) -> u32 {
        let kind = self.below(40);
        let (gap, back, far) = (self.below(100), self.below(90), self.below(1 << 33));
        let next = self.sequences.entry(flow).or_default();
        let sequence = match kind {
            // A hole, a late or double one, a restart, a jump anywhere.
            0..4 => next.wrapping_add(gap as u32),
            4..8 => return next.wrapping_sub(back as u32),
            8 => 0,
            9 => far as u32,
            _ => *next,
        };
        *next = sequence.wrapping_add(1);
        sequence
    }
}

/// A read of a sampling port: sequence, values overwritten, whether it is new, the bytes.
type Value = (u32, u64, bool, Vec<u8>);

/// Everything that an application and `taut status` can see.
#[derive(Debug, PartialEq)]
struct Seen {
    messages: Vec<(Message, Vec<u8>)>,
    values: Vec<Option<Value>>,
    fleet_values: Vec<(Source, Value)>,
    /// After each round: an entry of the peer table that is evicted takes its counters along.
    ports: Vec<Vec<PortStatus>>,
}

fn run(side: Side, seed: u64) -> Option<Seen> {
    let hosts = hosts()?;
    let node = open(&hosts, Host::B, side);
    let small = QueuingOptions {
        depth: 4,
        ..QueuingOptions::default()
    };
    // Never refilled in the time of a test, so that it does not matter when the frames come.
    let policed = QueuingOptions {
        policing: Some(Policing {
            interval: Duration::from_secs(3600),
            burst: POLICED_BURST,
        }),
        ..small
    };
    let fleet = SamplingOptions {
        sources: SOURCES,
        ..SamplingOptions::default()
    };
    let (mut queue, mut sample, mut policed, mut fleet, mut fence) = hosts
        .inside(Host::B, || {
            let queue = node.queuing(port(20)).options(&small).open().unwrap();
            let options = SamplingOptions::default();
            let sample = node.sampling(port(21)).options(&options).open().unwrap();
            let policed = node.queuing(port(22)).options(&policed).open().unwrap();
            let fleet = node.sampling(port(23)).options(&fleet).open().unwrap();
            (queue, sample, policed, fleet, Fence::open(&node))
        })
        .unwrap();
    let wire = Wire::on(&hosts, Host::A);
    let mac = MacAddress(hosts.end(Host::B, 0).mac());
    fence.pass_until_stamped(&wire);
    let mut traffic = Traffic::new(seed);
    let mut buffer = [0; 1484];
    let (mut messages, mut values, mut ports) = (Vec::new(), Vec::new(), Vec::new());
    let mut fleet_values = Vec::new();
    for _ in 0..ROUNDS {
        for _ in 0..FRAMES_A_ROUND {
            assert!(wire.send(&traffic.frame(mac)));
        }
        fence.pass(&wire);
        // At least one look, which moves what a socket holds into the port.
        for _ in 0..1 + traffic.below(30) {
            let Some(mut message) = queue.receive_into(&mut buffer, Wait::Poll).unwrap() else {
                break;
            };
            message.arrival = tautline::Instant::from_nanos(0);
            messages.push((message, buffer[..message.length].to_vec()));
        }
        while policed
            .receive_into(&mut buffer, Wait::Poll)
            .unwrap()
            .is_some()
        {}
        while let Some(value) = fleet.next(Wait::Poll).unwrap() {
            let sample = *value.sample();
            let facts = (sample.sequence, sample.overwritten, sample.new);
            let value = (facts.0, facts.1, facts.2, value.to_vec());
            fleet_values.push((sample.source, value));
        }
        values.push(sample.read_into(&mut buffer).unwrap().map(|sample| {
            let value = buffer[..sample.length].to_vec();
            (sample.sequence, sample.overwritten, sample.new, value)
        }));
        let mut status = node.status().ports;
        status.retain(|port| port.key.number() < 100);
        // Moments of this run.
        for port in &mut status {
            (port.age_ns, port.valid, port.oldest_wait_ns) = (None, None, None);
            port.open_ns = 0;
        }
        ports.push(status);
    }
    Some(Seen {
        messages,
        values,
        fleet_values,
        ports,
    })
}

on_sides! {
    fn kernel_and_process_deliver_alike_native(XDP) = kernel_and_process_deliver_alike;
    fn kernel_and_process_deliver_alike_generic(XDP_GENERIC) = kernel_and_process_deliver_alike;
    fn kernel_and_process_deliver_alike_tc(XDP_TC) = kernel_and_process_deliver_alike;
}

fn kernel_and_process_deliver_alike(side: Side) {
    let seed = 0x7414_0001;
    let Some(process) = run(PACKET, seed) else {
        return;
    };
    let [queue, sample, policed, fleet] = &process.ports.last().unwrap()[..] else {
        panic!("four ports");
    };
    assert!(
        queue.dropped_full.iter().all(|count| *count > 0),
        "{queue:?}"
    );
    assert!(queue.peers_evicted > 0 && queue.too_large > 0 && queue.peers.len() > 10);
    let sum =
        |counter: fn(&tautline::status::PeerCounters) -> u64| queue.peers.iter().map(counter).sum();
    let (lost, duplicates): (u64, u64) = (sum(|peer| peer.lost), sum(|peer| peer.duplicates));
    let restarts: u64 = sum(|peer| peer.restarts.into());
    assert!(lost > 0 && duplicates > 0 && restarts > 0);
    assert!(sample.unfit > 0 && sample.overwritten > 0);
    assert!(fleet.sources_refused > 0 && fleet.overwritten > 0 && fleet.unfit > 0);
    assert_eq!(fleet.peers.len(), SOURCES);
    assert_eq!(policed.frames - policed.policed, u64::from(POLICED_BURST));
    let kernel = run(side, seed).unwrap();
    for (round, (kernel, process)) in kernel.ports.iter().zip(&process.ports).enumerate() {
        assert_eq!(kernel, process, "round {round}");
    }
    assert_eq!(kernel.messages.len(), process.messages.len());
    assert!(kernel.messages == process.messages, "messages differ");
    assert!(kernel.values == process.values, "values differ");
    assert!(
        kernel.fleet_values == process.fleet_values,
        "a fleet's values differ"
    );
}

on_sides! {
    fn the_kernel_polices_by_the_same_clock_native(XDP) = the_kernel_polices_by_the_same_clock;
    fn the_kernel_polices_by_the_same_clock_generic(XDP_GENERIC) = the_kernel_polices_by_the_same_clock;
    fn the_kernel_polices_by_the_same_clock_tc(XDP_TC) = the_kernel_polices_by_the_same_clock;
}

/// The process's bucket admits what the kernel admitted, by the kernel's own arrival times.
fn the_kernel_polices_by_the_same_clock(side: Side) {
    let Some(hosts) = hosts() else { return };
    let node = open(&hosts, Host::B, side);
    let policing = Policing {
        interval: Duration::from_micros(20),
        burst: 3,
    };
    let options = QueuingOptions {
        policing: Some(policing),
        depth: 4096,
        ..QueuingOptions::default()
    };
    let (mut queue, mut fence) = hosts
        .inside(Host::B, || {
            let queue = node.queuing(port(20)).options(&options).open().unwrap();
            (queue, Fence::open(&node))
        })
        .unwrap();
    let wire = Wire::on(&hosts, Host::A);
    let mac = MacAddress(hosts.end(Host::B, 0).mac());
    let header = Header::whole(port(20), port(1), Priority::NORMAL, 0, 0);
    let bytes = frame(mac, MacAddress([2, 0, 0, 0, 1, 1]), &header, &[]);
    for _ in 0..4_000 {
        assert!(wire.send(&bytes));
    }
    fence.pass(&wire);
    let bucket = police::Bucket::new(20_000, 3).unwrap();
    let (mut admitted, mut paid_ns) = (0, 0);
    while let Some(message) = queue.receive_into(&mut [0; 1484], Wait::Poll).unwrap() {
        let paid = bucket.admit(paid_ns, message.arrival.as_nanos());
        paid_ns = paid.unwrap_or_else(|| panic!("message {admitted} is one too many"));
        admitted += 1;
    }
    let status = &node.status().ports[0];
    assert!(admitted >= 3);
    assert_eq!(status.policed + admitted, 4_000);
}

/// The `#define`s of the kernel side's header.
fn defines() -> HashMap<&'static str, u64> {
    let header = tautline_bpf::HEADER;
    let define = |line: &'static str| {
        let mut words = line.strip_prefix("#define ")?.split_whitespace();
        let (name, value) = (words.next()?, words.next()?);
        let value = match value.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16),
            None => value.parse(),
        };
        Some((name, value.ok()?))
    };
    header.lines().filter_map(define).collect()
}

#[test]
fn constants_are_the_same() {
    let same: [(&str, u64); 60] = [
        ("TL_ETHERTYPE_DEFAULT", ETHERTYPE_DEFAULT.into()),
        ("TL_HEADER_BYTES", HEADER_BYTES as u64),
        ("TL_VERSION", VERSION.into()),
        ("TL_FLAGS_CRITICAL", 0x0f),
        ("TL_FLAG_BUNDLE", FLAG_BUNDLE.into()),
        ("TL_FLAG_AUTHENTICATED", FLAG_AUTHENTICATED.into()),
        ("TL_TRAILER_BYTES", TRAILER_BYTES as u64),
        ("TL_PORT_MAX", PORT_MAX.into()),
        ("TL_PRIORITY_MAX", Priority::HIGHEST.get().into()),
        ("TL_FRAGMENT_BYTES", FRAGMENT_BYTES as u64),
        ("TL_FRAGMENT_COUNT_MAX", FRAGMENT_COUNT_MAX as u64),
        ("TL_MESSAGE_BYTES_MAX", MESSAGE_BYTES_MAX as u64),
        ("TL_WHOLE_BYTES_MAX", WHOLE_BYTES_MAX_ETHERNET as u64),
        ("TL_UDP_PORT_BASE", UDP_PORT_BASE.into()),
        ("TL_SLOT_BYTES", layout::SLOT_BYTES as u64),
        ("TL_SLOT_PAYLOAD_BYTES", layout::SLOT_PAYLOAD_BYTES as u64),
        ("TL_FIRST_PEER", layout::FIRST_PEER as u64),
        ("TL_PEERS_PER_ELEMENT", layout::PEERS_PER_ELEMENT as u64),
        ("TL_PEER_SEARCH_MAX", peer::SEARCH_MAX as u64),
        ("TL_FIRST_SLOT", layout::FIRST_SLOT as u64),
        ("TL_CLASS_COUNT", layout::CLASS_COUNT as u64),
        ("TL_CELL_COUNT", layout::CELL_COUNT as u64),
        ("TL_PEER_COUNT", layout::PEER_COUNT as u64),
        ("TL_LOSS_WINDOW", loss::WINDOW.into()),
        ("TL_RESTART_BEHIND", loss::RESTART_BEHIND.into()),
        ("TL_MAGIC", layout::MAGIC.into()),
        ("TL_LAYOUT_VERSION", layout::VERSION.into()),
        ("TL_KIND_QUEUING", layout::KIND_QUEUING.into()),
        ("TL_KIND_SAMPLING", layout::KIND_SAMPLING.into()),
        ("TL_SOURCE_VOID", layout::source_form::VOID.into()),
        ("TL_SOURCE_ETHERNET", layout::source_form::ETHERNET.into()),
        ("TL_SOURCE_UDP", layout::source_form::UDP.into()),
        ("TL_SOURCE_DATAGRAM", layout::source_form::DATAGRAM.into()),
        // Private to the library, which names them after these (link/xdp/taps.rs).
        ("TL_SENDER_INTERFACE", 0x1_0000),
        ("TL_SEND_PORT", 1),
        ("TL_SEND_DATAGRAMS", 2),
        ("TL_SEND_RAW", 3),
        ("TL_SEND_RAW_OF_ANY", 4),
        // Private to the library that `taut exec` loads (tautline-awake-preload/src/look.rs).
        ("TL_LOOK_PLACES", 64),
        ("TL_LOOK_PAYLOAD_BYTES", 2_000),
        ("TL_LOOK_IDLE", 0),
        ("TL_LOOK_LOOKING", 1),
        ("TL_LOOK_FILLING", 2),
        ("TL_LOOK_FULL", 3),
        ("TL_LOOK_TAKING", 4),
        ("TL_UDP_PLACES", 256),
        ("TL_RAW_PLACES", 8),
        ("TL_RAW_HEAD_BYTES", RAW_HEAD_BYTES as u64),
        ("TL_RAW_PAYLOAD_BYTES", MTU_BYTES as u64),
        ("TL_SOURCE_RAW", layout::source_form::RAW.into()),
        ("TL_FLOW_SETS", 256),
        ("TL_FLOW_WAYS", 16),
        ("TL_FLAG_VERIFIED", FLAG_VERIFIED.into()),
        ("TL_CLAIM_ATTEMPTS", queue::CLAIM_ATTEMPTS as u64),
        ("TL_SAMPLE_FRESH", sample::FRESH.into()),
        ("TL_SAMPLE_INDEX", sample::INDEX.into()),
        ("TL_TAP_SLOTS", tap::SLOTS),
        ("TL_TAP_BYTES", tap::FRAME_BYTES as u64),
        ("TL_TAP_RECEIVED", tap::WAY_RECEIVED.into()),
        ("TL_TAP_SENT", tap::WAY_SENT.into()),
    ];
    let known = FLAG_BUNDLE | FLAG_AUTHENTICATED;
    assert_eq!(FLAGS_KNOWN, known, "the kernel side knows these");
    let mut defines = defines();
    for (name, value) in same {
        assert_eq!(defines.remove(name), Some(value), "{name}");
    }
    assert!(defines.is_empty(), "not compared: {defines:?}");
}

#[test]
fn counters_are_in_the_same_order() {
    let header = tautline_bpf::HEADER;
    let (_, counters) = header.split_once("enum tl_node_counter {").unwrap();
    let (counters, _) = counters.split_once('}').unwrap();
    let listed: Vec<_> = counters
        .split(',')
        .filter_map(|name| name.trim().strip_prefix("TL_"))
        .map(str::to_lowercase)
        .collect();
    let mut expected: Vec<_> = ParseError::ALL.iter().map(|error| error.name()).collect();
    expected.extend([
        "no_port",
        "out_of_order_fragment",
        "joined_datagrams",
        "node_counters",
    ]);
    assert_eq!(listed, expected);
}
