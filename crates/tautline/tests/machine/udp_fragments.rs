//! Datagrams in IP fragments for ports of plain UDP: from ordinary programs, in every order, and as attackers
//! make them.

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::process::{Command, Stdio};
use tautline_state::child::KilledOnDrop;

use crate::common::udp::{Meeting, PORT, bytes, changed, frames, ip, set};
use crate::common::wire::Wire;
use crate::common::{
    PACKET, PATIENCE, Side, UDP, XDP, XDP_GENERIC, XDP_TC, XSK, XSK_GENERIC, hosts, is_here,
};
use tautline::config::UdpChecksum;
use tautline::link::PlainUdp;
use tautline::port::QueuingOptions;
use tautline::status::ReassemblyStatus;
use tautline::{Priority, SendError, Wait};
use tautline_proto::ip::DATAGRAM_BYTES_MAX;
use tautline_proto::wire::ParseError;
use tautline_testbed::hosts::Host;

/// Runs the tests on each link: all of them where fragments come past the kernel's stack, those with ordinary
/// programs where it puts them together.
macro_rules! suite {
    (@tests $side:expr; $($test:ident)*) => {
        suite!(@with meeting($side); $($test)*);
    };
    (@with $meeting:expr; $($test:ident)*) => {$(
        #[test]
        fn $test() {
            if let Some(meeting) = $meeting {
                super::$test(meeting);
            }
        }
    )*};
    (@through_sockets $side:expr) => {
        suite!(@tests $side;
            any_length_passes_both_ways
            without_checksum_and_with_options_in_the_ip_header
            a_python_script_is_answered
            a_python_server_answers
            socat_answers
        );
    };
    (@through_control $side:expr) => {
        suite!(@with Meeting::controlled($side, &longest()); any_length_passes_both_ways);
    };
    (@past_the_stack $side:expr) => {
        suite!(@through_sockets $side);
        suite!(@tests $side;
            fragments_out_of_order_are_lost_and_counted
            fragments_for_other_ports_stay_with_linux
            attacks_are_dropped_and_counted
            a_tiny_first_fragment_with_the_whole_udp_header_is_one_of_many
            one_wrong_bit_and_holes
            impossible_sources_and_port_zero
            a_flood_of_first_fragments_leaves_others_alone
        );
    };
    ($($name:ident: $side:expr, $way:ident;)*) => {$(
        mod $name {
            use super::*;

            suite!(@$way $side);
        }
    )*};
}

suite! {
    xdp: XDP, past_the_stack;
    xdp_generic: XDP_GENERIC, past_the_stack;
    xdp_tc: XDP_TC, past_the_stack;
    xsk: XSK, past_the_stack;
    xsk_generic: XSK_GENERIC, past_the_stack;
    packet: PACKET, through_sockets;
    udp: UDP, through_sockets;
    xdp_through_control: XDP, through_control;
    xdp_generic_through_control: XDP_GENERIC, through_control;
    xdp_tc_through_control: XDP_TC, through_control;
}

/// Whole, the shortest in fragments, three fragments, and the longest.
const LENGTHS: [usize; 10] = [
    1,
    1472,
    1473,
    1480,
    1489,
    3000,
    8192,
    32_768,
    65_506,
    DATAGRAM_BYTES_MAX,
];
/// Lengths that a program cannot tell from an end, or that differ in nothing but the copy.
const SHORT: [usize; 4] = [0, 2, 17, 255];
/// Has no machine: frames that claim to come from it are made by hand.
const STRANGER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 50);

fn longest() -> QueuingOptions {
    QueuingOptions {
        message_bytes_max: DATAGRAM_BYTES_MAX,
        ..QueuingOptions::default()
    }
}

fn meeting(side: Side) -> Option<Meeting> {
    is_here(side).then_some(())?;
    Some(Meeting::with(hosts()?, side, &longest()))
}

/// Counters, each of which must be as given, and no other.
fn counted(change: impl FnOnce(&mut ReassemblyStatus)) -> ReassemblyStatus {
    let mut counted = ReassemblyStatus::default();
    change(&mut counted);
    counted
}

/// Frames of a datagram from port 7 of host A to ours.
fn by_hand(
    meeting: &Meeting,
    payload: &[u8],
    identification: u16,
    mtu_bytes: usize,
) -> Vec<Vec<u8>> {
    let from = SocketAddrV4::new(ip(&meeting.hosts, Host::A), 7);
    frames(
        meeting,
        from,
        meeting.own(),
        payload,
        (identification, mtu_bytes),
    )
}

fn send_all(wire: &Wire, frames: &[Vec<u8>]) {
    for frame in frames {
        assert!(wire.send(frame));
    }
}

/// Nothing has come; what has come was looked at.
fn assert_nothing(meeting: &mut Meeting, buffer: &mut [u8]) {
    assert_eq!(meeting.port.receive_into(buffer, Wait::Poll), Ok(None));
}

/// Sends a datagram from the kernel socket, whole or not, and receives it.
fn pass(meeting: &mut Meeting, length: usize, buffer: &mut [u8]) {
    let sent = bytes(length);
    meeting.socket.send_to(&sent, meeting.own()).unwrap();
    let received = meeting.receive(buffer);
    assert_eq!(received.length, length);
    assert_eq!(received.source, meeting.peer());
    assert!(buffer[..length] == sent, "{length} bytes");
}

fn any_length_passes_both_ways(mut meeting: Meeting) {
    let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
    let peer = meeting.peer();
    let to = meeting.port.destination("peer", peer.port()).unwrap();
    let lengths = || SHORT.into_iter().chain(LENGTHS);
    for length in lengths() {
        pass(&mut meeting, length, &mut buffer);
        let (sent, priority) = (bytes(length), Priority::ALL[length % 8]);
        for way in ["an answer", "to a destination", "lent"] {
            let port = &mut meeting.port;
            match way {
                "an answer" => port.reply(peer, priority, &sent),
                "lent" => port.lend(to, priority, length).and_then(|mut loan| {
                    loan.copy_from_slice(&sent);
                    loan.send()
                }),
                _ => port.send_to(to, priority, &sent),
            }
            .unwrap();
            let (received, from) = meeting.socket.recv_from(&mut buffer).unwrap();
            assert_eq!((received, from), (length, meeting.own().into()), "{way}");
            assert!(buffer[..length] == sent, "{length} bytes, {way}");
        }
    }
    let too_long = vec![0; DATAGRAM_BYTES_MAX + 1];
    let bytes_sent = too_long.len();
    let refused = Err(SendError::MessageTooLarge { bytes: bytes_sent });
    let port = &mut meeting.port;
    assert_eq!(port.send_to(to, Priority::NORMAL, &too_long), refused);
    let loan = port.lend(to, Priority::NORMAL, bytes_sent).unwrap();
    assert_eq!(loan.send(), refused);
    meeting.socket.send_to(&bytes(5000), meeting.own()).unwrap();
    let deadline = tautline::now() + PATIENCE;
    let lent = meeting.port.receive(Wait::Until(deadline)).unwrap();
    let lent = lent.expect("a datagram comes");
    assert!(*lent == bytes(5000));
    assert_eq!(lent.datagram().checksum, UdpChecksum::Valid);
    drop(lent);
    let status = meeting.status();
    let is_past_the_stack = meeting.node.report().capabilities.plain_udp == PlainUdp::PastTheStack;
    let whole_bytes_max = if is_past_the_stack { 1472 } else { 1496 };
    let whole = lengths()
        .filter(|length| *length <= whole_bytes_max)
        .count() as u64;
    let count = lengths().count() as u64;
    let datagrams = status.datagrams.unwrap();
    let expected = counted(|counted| counted.completed = count - whole + 1);
    assert_eq!(datagrams.reassembly, expected);
    // A veth leaves the checksums of what was never on a wire half made.
    let partial = if is_past_the_stack { whole } else { 0 };
    assert_eq!(
        (datagrams.partial_checksum, datagrams.bad_checksum),
        (partial, 0)
    );
    assert_eq!((status.received, status.void), (count + 1, 0));
    assert_eq!((status.sent, status.send_errors), (3 * count, 2));
}

fn without_checksum_and_with_options_in_the_ip_header(mut meeting: Meeting) {
    let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
    let one = 1i32.to_ne_bytes();
    set(&meeting.socket, libc::SOL_SOCKET, libc::SO_NO_CHECK, &one);
    for length in LENGTHS {
        pass(&mut meeting, length, &mut buffer);
    }
    set(
        &meeting.socket,
        libc::SOL_SOCKET,
        libc::SO_NO_CHECK,
        &0i32.to_ne_bytes(),
    );
    // Record route, with room for nine; it stands in the first fragment only. Then one that stands in all, and none.
    let mut record_route = vec![7, 39, 4];
    record_route.resize(40, 0);
    for options in [&record_route[..], &[0x94, 4, 0, 0], &[1, 1, 1, 0]] {
        set(&meeting.socket, libc::IPPROTO_IP, libc::IP_OPTIONS, options);
        for length in [1, 1433, 3000, DATAGRAM_BYTES_MAX - options.len()] {
            pass(&mut meeting, length, &mut buffer);
        }
    }
    assert_eq!(meeting.status().received, LENGTHS.len() as u64 + 12);
}

fn fragments_out_of_order_are_lost_and_counted(mut meeting: Meeting) {
    let wire = Wire::on(&meeting.hosts, Host::A);
    let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
    let backwards = |frames: &mut Vec<_>| frames.reverse();
    let overtaken = |frames: &mut Vec<_>| frames.swap(1, 2);
    let twice = |frames: &mut Vec<Vec<u8>>| frames.insert(1, frames[1].clone());
    type Reorder = fn(&mut Vec<Vec<u8>>);
    let orders: [(Reorder, _); 3] = [
        (backwards, [3, 0, 0]),
        (overtaken, [0, 1, 2]),
        (twice, [0, 1, 2]),
    ];
    for (identification, (reorder, counted)) in (1..).zip(orders) {
        let counts = |meeting: &Meeting| {
            let reassembly = meeting.status().datagrams.unwrap().reassembly;
            let counters = meeting.node.status().counters;
            [
                counters.out_of_order_fragments,
                reassembly.broken,
                reassembly.strays,
            ]
        };
        let before = counts(&meeting);
        let mut frames = by_hand(&meeting, &bytes(5000), identification, 1500);
        reorder(&mut frames);
        send_all(&wire, &frames);
        pass(&mut meeting, 5000, &mut buffer);
        assert_nothing(&mut meeting, &mut buffer);
        let after = counts(&meeting);
        let difference = std::array::from_fn(|place| after[place] - before[place]);
        assert_eq!(difference, counted, "{identification}");
    }
}

/// Ports of Linux on the same address get theirs, in whatever order, and beside ours.
fn fragments_for_other_ports_stay_with_linux(mut meeting: Meeting) {
    let own = *meeting.own().ip();
    let bind = || UdpSocket::bind((own, PORT + 1)).unwrap();
    let linux = meeting.hosts.inside(Host::B, bind).unwrap();
    linux.set_read_timeout(Some(PATIENCE)).unwrap();
    let wire = Wire::on(&meeting.hosts, Host::A);
    let from = SocketAddrV4::new(ip(&meeting.hosts, Host::A), 7);
    let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
    for (identification, length) in [(1, 3000), (2, 20_000), (3, DATAGRAM_BYTES_MAX)] {
        let sent = bytes(length);
        let to = SocketAddrV4::new(own, PORT + 1);
        let theirs = frames(&meeting, from, to, &sent, (identification, 1500));
        let mut backwards = theirs.clone();
        backwards.reverse();
        for (again, order) in (0..).zip([theirs, backwards]) {
            let ours = by_hand(&meeting, &sent, 100 + 2 * identification + again, 1500);
            for (theirs, ours) in order.iter().zip(&ours) {
                assert!(wire.send(theirs) && wire.send(ours));
            }
            assert_eq!(linux.recv(&mut buffer).unwrap(), length);
            assert!(buffer[..length] == sent, "{length} bytes");
            let received = meeting.receive(&mut buffer);
            assert!(received.length == length && buffer[..length] == sent);
        }
    }
}

/// Frames that never make a datagram, and the datagrams and stray fragments that are counted for them.
type Attack = (&'static str, Vec<Vec<u8>>, (u64, u64));

/// A fragment by hand: offset in bytes, whether more follow, what it carries.
fn fragment(
    like: &[u8],
    identification: u16,
    offset: usize,
    more: bool,
    payload: &[u8],
) -> Vec<u8> {
    let mut frame = like[..34].to_vec();
    frame.extend(payload);
    let field = (offset / 8) as u16 | if more { 0x2000 } else { 0 };
    let length = (20 + payload.len()) as u16;
    let changes = [(16, length), (18, identification), (20, field)];
    let octets = changes.map(|(place, value)| {
        let [high, low] = value.to_be_bytes();
        [(place, high), (place + 1, low)]
    });
    changed(&frame, octets.as_flattened())
}

fn attacks(meeting: &Meeting) -> Vec<Attack> {
    let packet = by_hand(meeting, &bytes(1000), 0, 1500)[0][34..].to_vec();
    let like = by_hand(meeting, &bytes(3000), 0, 1500)[0].clone();
    let part = |identification, offset: usize, more, length: usize| {
        let payload: Vec<_> = (offset..offset + length)
            .map(|place| packet.get(place).copied().unwrap_or(0x5A))
            .collect();
        fragment(&like, identification, offset, more, &payload)
    };
    let other = |identification, offset, more, length| {
        fragment(&like, identification, offset, more, &vec![0xEE; length])
    };
    let mut lies = part(7, 0, true, 504);
    lies[34 + 4] ^= 1;
    let first = |identification| part(identification, 0, true, 504);
    vec![
        (
            "teardrop: the second ends within the first",
            vec![first(1), other(1, 24, false, 4), part(1, 504, false, 504)],
            (1, 1),
        ),
        (
            "the second lies over the end of the first",
            vec![first(2), part(2, 496, false, 512)],
            (1, 0),
        ),
        (
            "ping of death: beyond what a datagram can be",
            vec![first(4), other(4, 65_528, false, 1480)],
            (1, 0),
        ),
        (
            "two ends",
            vec![first(6), part(6, 504, false, 496), other(6, 2000, false, 8)],
            (1, 1),
        ),
        (
            "a length that says more",
            vec![lies, part(7, 504, false, 504)],
            (1, 0),
        ),
        (
            "a fragment that ends within a block",
            vec![part(9, 0, true, 501), part(9, 504, false, 504)],
            (1, 1),
        ),
        (
            "a fragment without bytes",
            vec![first(10), part(10, 504, true, 0)],
            (1, 0),
        ),
        // Linux's, and unfinished for ever.
        (
            "a first one too tiny for a UDP header",
            vec![part(11, 0, true, 4)],
            (0, 0),
        ),
    ]
}

fn attacks_are_dropped_and_counted(mut meeting: Meeting) {
    let wire = Wire::on(&meeting.hosts, Host::A);
    let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
    for (name, frames, expected) in attacks(&meeting) {
        let before = meeting.status().datagrams.unwrap().reassembly;
        send_all(&wire, &frames);
        // The message after it shows that it is through, and that others are unaffected.
        pass(&mut meeting, 20_000, &mut buffer);
        assert_nothing(&mut meeting, &mut buffer);
        let after = meeting.status().datagrams.unwrap().reassembly;
        let difference = (after.broken - before.broken, after.strays - before.strays);
        assert_eq!(difference, expected, "{name}");
    }
}

fn a_tiny_first_fragment_with_the_whole_udp_header_is_one_of_many(mut meeting: Meeting) {
    let wire = Wire::on(&meeting.hosts, Host::A);
    let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
    // 8 bytes in each: the first has nothing but the header.
    let frames = by_hand(&meeting, &bytes(400), 9, 68);
    let packet: Vec<_> = frames
        .iter()
        .flat_map(|frame| &frame[34..])
        .copied()
        .collect();
    for (place, part) in packet.chunks(8).enumerate() {
        let more = 8 * place + 8 < packet.len();
        assert!(wire.send(&fragment(&frames[0], 10, 8 * place, more, part)));
    }
    assert_eq!(meeting.receive(&mut buffer).length, 400);
    assert!(buffer[..400] == bytes(400));
}

fn one_wrong_bit_and_holes(mut meeting: Meeting) {
    let wire = Wire::on(&meeting.hosts, Host::A);
    let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
    let good = by_hand(&meeting, &bytes(5000), 0, 1500);
    let renumber = |frame: &[u8], identification: u8| changed(frame, &[(19, identification)]);
    for (identification, (frame, place)) in [(0, 41), (0, 60), (1, 34), (2, 900), (3, 100)]
        .into_iter()
        .enumerate()
    {
        let mut wrong: Vec<_> = good
            .iter()
            .map(|frame| renumber(frame, identification as u8))
            .collect();
        wrong[frame][place] ^= 0x10;
        send_all(&wire, &wrong);
    }
    pass(&mut meeting, 5000, &mut buffer);
    assert_eq!(meeting.status().datagrams.unwrap().bad_checksum, 5);
    // The last of four is lost: nothing is delivered, and once the time limit has passed it is given up.
    let holes: Vec<_> = good.iter().map(|frame| renumber(frame, 200)).collect();
    send_all(&wire, &holes[..3]);
    pass(&mut meeting, 5000, &mut buffer);
    let deadline = tautline::now() + PATIENCE;
    while meeting.status().datagrams.unwrap().reassembly.expired == 0 {
        assert_nothing(&mut meeting, &mut buffer);
        assert!(tautline::now() < deadline, "it is given up");
    }
    // Too late: with it nothing is complete.
    assert!(wire.send(&renumber(&good[3], 200)));
    pass(&mut meeting, 5000, &mut buffer);
    assert_nothing(&mut meeting, &mut buffer);
}

fn impossible_sources_and_port_zero(mut meeting: Meeting) {
    let wire = Wire::on(&meeting.hosts, Host::A);
    let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
    let own = meeting.own().ip().octets();
    let wrong = [
        own,
        [10, 77, 0, 255],
        [255; 4],
        [0; 4],
        [224, 0, 0, 1],
        [127, 0, 0, 1],
    ];
    let invalid = ParseError::InvalidSource.index();
    for (count, source) in (1..).zip(wrong) {
        let source: Vec<_> = (26..).zip(source).collect();
        for frame in by_hand(&meeting, &bytes(3000), count, 1500) {
            assert!(wire.send(&changed(&frame, &source)));
        }
        pass(&mut meeting, 3000, &mut buffer);
        assert_nothing(&mut meeting, &mut buffer);
        let counters = meeting.node.status().counters;
        assert_eq!(
            counters.malformed[invalid],
            u64::from(count),
            "first fragments"
        );
    }
    // To port 0: Linux's. From port 0: it wants no answer.
    let frames = by_hand(&meeting, &bytes(3000), 50, 1500);
    assert!(wire.send(&changed(&frames[0], &[(36, 0), (37, 0)])));
    assert!(wire.send(&frames[1]) && wire.send(&frames[2]));
    let mut from_zero = by_hand(&meeting, &bytes(3000), 51, 1500);
    from_zero[0] = changed(&from_zero[0], &[(34, 0), (35, 0), (40, 0), (41, 0)]);
    send_all(&wire, &from_zero);
    let received = meeting.receive(&mut buffer);
    assert_eq!((received.length, received.source.port()), (3000, 0));
    assert_eq!(received.checksum, UdpChecksum::Absent);
    assert_nothing(&mut meeting, &mut buffer);
}

/// First fragments that never complete, of one stranger and of many, beside a peer that speaks all the time.
fn a_flood_of_first_fragments_leaves_others_alone(mut meeting: Meeting) {
    let wire = Wire::on(&meeting.hosts, Host::A);
    let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
    let from = SocketAddrV4::new(STRANGER, 7);
    let first = frames(&meeting, from, meeting.own(), &bytes(1600), (0, 1500)).remove(0);
    let before = meeting.status();
    for round in 0..300u16 {
        for flood in 0..10 {
            let [high, low] = (round * 10 + flood).to_be_bytes();
            assert!(wire.send(&changed(&first, &[(18, high), (19, low)])));
        }
        pass(&mut meeting, 8192, &mut buffer);
    }
    let status = meeting.status();
    assert_eq!(status.received, 300);
    assert_eq!(status.dropped_full, [0; 8]);
    // The stranger's share is four; all but the last ones were given up for its own next.
    let reassembly = status.datagrams.unwrap().reassembly;
    let given_up = reassembly.displaced + reassembly.expired;
    assert!((2_996..=3_000).contains(&given_up), "{reassembly:?}");
    assert_eq!(status.memory_bytes, before.memory_bytes);
    // In many names: the datagram that began first and is not done goes; a datagram whose fragments come together
    // passes between.
    for round in 0..300u16 {
        for flood in 0..10u16 {
            let name = (round * 10 + flood) % 199;
            let address = [(28, 1), (29, 20 + name as u8)];
            assert!(wire.send(&changed(&first, &address)));
        }
        pass(&mut meeting, 8192, &mut buffer);
    }
    let status = meeting.status();
    assert_eq!(status.received, 600);
    let displaced = status.datagrams.unwrap().reassembly.displaced - reassembly.displaced;
    assert!(displaced > 1000, "{status:?}");
}

/// An unmodified program in host A, gone when this is dropped.
struct Program(KilledOnDrop);

impl Program {
    fn start(meeting: &Meeting, command: &[&str]) -> Option<Self> {
        let found = Command::new(command[0])
            .arg("-V")
            .stdin(Stdio::null())
            .output();
        if found.is_err() {
            println!("SKIPPED: no {} on this machine", command[0]);
            return None;
        }
        let child = Command::new("ip")
            .args(["netns", "exec", meeting.hosts.name(Host::A)])
            .args(command)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        Some(Self(KilledOnDrop(child.unwrap())))
    }
}

/// An ordinary client: sends datagrams of many lengths and expects each back.
const CLIENT: &str = "
import socket, sys
port = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
port.settimeout(5)
port.connect((sys.argv[1], int(sys.argv[2])))
for length in map(int, sys.argv[3:]):
    sent = bytes(place * 7 % 256 for place in range(length))
    port.send(sent)
    assert port.recv(65536) == sent, length
print('all came back')
";

/// An ordinary server: sends back what comes.
const SERVER: &str = "
import socket, sys
port = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
port.bind((sys.argv[1], int(sys.argv[2])))
print('ready', flush=True)
while True:
    datagram, sender = port.recvfrom(65536)
    port.sendto(datagram, sender)
";

fn a_python_script_is_answered(mut meeting: Meeting) {
    let (address, port) = (meeting.own().ip().to_string(), PORT.to_string());
    let lengths: Vec<_> = LENGTHS.iter().map(ToString::to_string).collect();
    let mut command = vec!["python3", "-c", CLIENT, &address, &port];
    command.extend(lengths.iter().map(String::as_str));
    let Some(mut client) = Program::start(&meeting, &command) else {
        return;
    };
    let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
    for length in LENGTHS {
        let received = meeting.receive(&mut buffer);
        assert_eq!(received.length, length);
        let (to, answer) = (received.source, &buffer[..length]);
        meeting.port.reply(to, Priority::NORMAL, answer).unwrap();
    }
    let mut said = String::new();
    let output = client.0.stdout.take().unwrap();
    BufReader::new(output).read_line(&mut said).unwrap();
    assert_eq!(said, "all came back\n");
}

/// Sends datagrams of many lengths to a server in host A, and expects each back.
fn ask(meeting: &mut Meeting, port: u16) {
    let address = ip(&meeting.hosts, Host::A);
    let to = meeting
        .port
        .destination(&address.to_string(), port)
        .unwrap();
    let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
    for length in LENGTHS {
        let sent = bytes(length);
        meeting.port.send_to(to, Priority::NORMAL, &sent).unwrap();
        let received = meeting.receive(&mut buffer);
        assert_eq!(received.source, SocketAddrV4::new(address, port));
        assert!(
            received.length == length && buffer[..length] == sent,
            "{length} bytes"
        );
    }
}

fn a_python_server_answers(mut meeting: Meeting) {
    let address = ip(&meeting.hosts, Host::A).to_string();
    let command = ["python3", "-c", SERVER, &address, "7000"];
    let Some(mut server) = Program::start(&meeting, &command) else {
        return;
    };
    let mut said = String::new();
    let output = server.0.stdout.take().unwrap();
    BufReader::new(output).read_line(&mut said).unwrap();
    ask(&mut meeting, 7000);
}

fn socat_answers(mut meeting: Meeting) {
    let address = format!("UDP4-LISTEN:7000,bind={}", ip(&meeting.hosts, Host::A));
    let command = ["socat", "-b", "70000", &address, "PIPE"];
    let Some(_server) = Program::start(&meeting, &command) else {
        return;
    };
    let bound = || std::fs::read_to_string("/proc/thread-self/net/udp").unwrap();
    let deadline = tautline::now() + PATIENCE;
    while !meeting
        .hosts
        .inside(Host::A, bound)
        .unwrap()
        .contains(":1B58 ")
    {
        assert!(tautline::now() < deadline, "socat listens");
    }
    ask(&mut meeting, 7000);
}
