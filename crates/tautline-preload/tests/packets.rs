//! Calls on packet sockets against the kernel and against raw ports: the same program (`packets/`) runs as it is and
//! with the library, in one network namespace, with a peer at the other end of the cable, and each case must write the
//! same results, errors and bytes.

mod common;

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::thread;
use std::time::Duration;

use common::{both, by_case, compile, past_the_kernel, run};
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{
    AddressFamily, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType, bind, recvfrom, send,
    socket,
};
use tautline_testbed::hosts::{Host, Hosts, HostsOptions, may_create};

/// Sources of the program.
const SOURCES: [&str; 6] = [
    "packets/main.c",
    "packets/opening.c",
    "packets/sending.c",
    "packets/taking.c",
    "packets/waiting.c",
    "cases/writing.c",
];
/// Cases that there are, so that none is lost unnoticed.
const CASES: usize = 144;
/// EtherTypes of the cases.
const TYPES: std::ops::Range<u16> = 0x9000..0x9100;
/// Longest frame that is sent back inside of another one.
const WRAPPED_BYTES_MAX: usize = 1400;
const ALL: [u8; 6] = [0xFF; 6];
const GROUP: [u8; 6] = [0x01, 0x80, 0xC2, 0, 0, 0x0E];
const ANOTHER: [u8; 6] = [0x02, 0, 0, 0, 0, 0x77];
/// Sender that is no station, as EtherCAT's.
const NOBODY: [u8; 6] = [1; 6];

/// The other end of the cable.
struct Peer {
    socket: OwnedFd,
    own: [u8; 6],
    other: [u8; 6],
}

impl Peer {
    fn open(interface: &str, own: [u8; 6], other: [u8; 6]) -> Self {
        let address: LinkAddr = getifaddrs()
            .unwrap()
            .filter(|entry| entry.interface_name == interface)
            .find_map(|entry| entry.address?.as_link_addr().copied())
            .unwrap();
        let (family, kind) = (AddressFamily::Packet, SockType::Raw);
        let all = SockProtocol::EthAll;
        let socket = socket(family, kind, SockFlag::SOCK_CLOEXEC, all).unwrap();
        bind(socket.as_raw_fd(), &address).unwrap();
        Self { socket, own, other }
    }

    /// Sends a frame back, or, asked `?HOW COUNT SIZE MILLISECONDS`, sends others.
    fn answer(&self) {
        let mut buffer = vec![0; 4000];
        loop {
            // The interface at the other end goes down in one of the cases.
            let Ok((length, from)) = recvfrom::<LinkAddr>(self.socket.as_raw_fd(), &mut buffer)
            else {
                continue;
            };
            let frame = &buffer[..length];
            let ethertype = u16::from_be_bytes([frame[12], frame[13]]);
            let is_own = from.is_none_or(|from| from.addr() == Some(self.own));
            if is_own || !TYPES.contains(&ethertype) {
                continue;
            }
            match frame[14..].strip_prefix(b"?") {
                Some(question) => self.answer_question(question, ethertype),
                None if length > WRAPPED_BYTES_MAX => {
                    self.send(self.other, self.own, &[], ethertype, &frame[14..]);
                }
                None => self.send(self.other, self.own, &[], ethertype, frame),
            }
        }
    }

    fn answer_question(&self, question: &[u8], ethertype: u16) {
        let text = std::str::from_utf8(question).unwrap();
        let (how, numbers) = text.split_once(' ').unwrap();
        let numbers: Vec<usize> = numbers.split(' ').map(|one| one.parse().unwrap()).collect();
        let [count, size, milliseconds] = numbers[..] else {
            panic!("asked {text}");
        };
        thread::sleep(Duration::from_millis(milliseconds as u64));
        let (to, tag): ([u8; 6], &[u8]) = match how {
            "h" => (self.other, &[]),
            "m" => (GROUP, &[]),
            "o" => (ANOTHER, &[]),
            "v" => (self.other, &[0x81, 0, 0x60, 0]),
            "w" => (self.other, &[0x81, 0, 0x60, 5]),
            _ => (ALL, &[]),
        };
        let from = if how == "n" { NOBODY } else { self.own };
        for index in 0..count {
            let bytes: Vec<u8> = (0..size).map(|byte| (index * 7 + byte) as u8).collect();
            self.send(to, from, tag, ethertype, &bytes);
        }
    }

    fn send(&self, to: [u8; 6], from: [u8; 6], tag: &[u8], ethertype: u16, payload: &[u8]) {
        let frame = [&to[..], &from, tag, &ethertype.to_be_bytes(), payload].concat();
        // A frame that cannot be sent is missed by its case.
        let _unsent = send(self.socket.as_raw_fd(), &frame, MsgFlags::empty());
    }
}

/// Runs all cases between hosts of their own.
fn run_cases(program: &Path, with_library: bool) -> (String, String) {
    let hosts = Hosts::create(&HostsOptions::default()).unwrap();
    let (near, far) = (hosts.end(Host::A, 0), hosts.end(Host::B, 0));
    let open = || Peer::open(&far.interface(), far.mac(), near.mac());
    let peer = hosts.inside(Host::B, open).unwrap();
    thread::spawn(move || peer.answer());
    let ethertypes: Vec<String> = TYPES.map(|one| format!("{one:#06x}")).collect();
    let ethertypes = ethertypes.join(",");
    let words = [("TAUTLINE_EXEC_ETHERTYPES", ethertypes.as_str())];
    let library = with_library.then_some(&words[..]);
    run(&hosts, program, &[&near.interface()], library)
}

#[test]
fn calls_answer_as_the_kernel_does() {
    if !may_create() {
        println!("SKIPPED: making network namespaces needs CAP_SYS_ADMIN and CAP_NET_ADMIN");
        return;
    }
    let program = compile("packets", &SOURCES);
    let ((by_kernel, _), (by_port, explained)) = both(|library| run_cases(&program, library));
    let (by_kernel, by_port) = (by_case(&by_kernel), by_case(&by_port));
    let differ: Vec<&str> = by_kernel
        .iter()
        .filter(|(case, result)| by_port.get(**case) != Some(*result))
        .map(|(case, _)| *case)
        .collect();
    for case in &differ {
        let of_port = by_port.get(case).unwrap_or(&"missing");
        println!("{case}: the kernel\n{}the port\n{of_port}", by_kernel[case]);
    }
    assert_eq!(differ, [""; 0], "{explained}");
    assert_eq!(by_kernel.len(), CASES);
    // Raw ports were at work, not the kernel's sockets under another name.
    let taken = explained
        .lines()
        .filter(|line| line.contains(": taken, raw port"))
        .count();
    assert!(taken >= CASES, "{explained}");
    let passed: u64 = explained.lines().filter_map(past_the_kernel).sum();
    assert!(
        passed > 3 * CASES as u64,
        "{passed} frames past the kernel: {explained}"
    );
    println!("{CASES} cases, {passed} frames past the kernel");
}
