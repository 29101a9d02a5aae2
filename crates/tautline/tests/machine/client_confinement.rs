//! Attacks of a hostile client of a control process with the descriptors that it was handed: it ignores the library
//! and tries every one of them. Its frames are watched for at the other end of the cable.
#![allow(unsafe_code)] // A hostile client makes system calls that no library offers.

use std::os::fd::RawFd;

use crate::common::child::{self, Helper};
use crate::common::control::{
    NOBODY, allow, answers, client_node, client_node_in, control_status, echo_for_ever, eventually,
    ports_given, served, start_client, start_control,
};
use crate::common::wire::{Wire, frame};
use crate::common::{XDP, open, port};
use tautline::config::Vlan;
use tautline::{MacAddress, Node, Priority, QueuingPort};
use tautline_proto::ip::send::{Route, SendBuffer};
use tautline_proto::wire::udp::{Endpoints, UdpTemplate};
use tautline_proto::wire::{HEADER_BYTES, Header, PortNumber, UDP_PORT_BASE};
use tautline_testbed::hosts::{Host, Hosts, HostsOptions};

/// The port that the entry gives, and one that it does not.
const OWN: u16 = 60;
const FOREIGN: u16 = 61;
/// Bytes of the ring that the attacker maps, beyond all that its entry gives.
const RING_BYTES: u32 = 64 << 20;
/// Interfaces whose index the attacker tries.
const INDEXES: std::ops::Range<i32> = 1..16;

const STATION: MacAddress = MacAddress([0xff; 6]);
const OUTSIDE: MacAddress = MacAddress([2, 0, 0, 0, 9, 9]);

/// Bytes that every frame of the attacker contains, before its name.
const MARK: &str = "taut-attack:";
const HONEST: &str = "honest";
/// Last of all that the attacker sends.
const FENCE: &[u8] = b"taut-fence";

fn hosts() -> Option<Hosts> {
    crate::common::hosts()?;
    Some(
        Hosts::create(&HostsOptions {
            cable_count: 2,
            ..HostsOptions::default()
        })
        .unwrap(),
    )
}

/// A client that attacks, with its port.
struct Attacker {
    node: Node,
    port: Option<QueuingPort>,
    descriptors: Vec<RawFd>,
}

impl Attacker {
    fn new(vlan: Vlan) -> Self {
        let node = client_node_in(vlan, NOBODY).unwrap();
        let port = node.queuing(port(OWN)).open().unwrap();
        let mut attacker = Self {
            node,
            port: Some(port),
            descriptors: Vec::new(),
        };
        attacker.copy_descriptors();
        attacker
    }

    /// Copies of all that this process has but its own three, the socket to the control process, and claims: a process
    /// that keeps a claim keeps the port.
    fn copy_descriptors(&mut self) {
        let of_directory = std::fs::read_dir("/proc/self/fd").unwrap();
        let open: Vec<RawFd> = of_directory
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .filter(|number| *number > 2 && !is_unix(*number) && !is_file(*number))
            .collect();
        // SAFETY: a call without pointers.
        let copies = open.iter().map(|number| unsafe { libc::dup(*number) });
        self.descriptors = copies.filter(|copy| *copy >= 0).collect();
        assert!(!self.descriptors.is_empty());
    }

    fn mac(&self) -> MacAddress {
        self.node.report().mac.as_deref().unwrap().parse().unwrap()
    }

    /// Frames that its entry does not give, each with its name in it.
    fn hostile_frames(&self) -> Vec<Vec<u8>> {
        let own = self.mac();
        let ours = |name: &str, from: MacAddress, source: u16, priority: u8| {
            let payload = format!("{MARK}{name};");
            let header = header(source, priority, payload.len());
            frame(STATION, from, &header, payload.as_bytes())
        };
        let mut frames = vec![
            ours("another station's address", OUTSIDE, OWN, 3),
            ours("another port's number", own, FOREIGN, 3),
            ours("a forbidden priority", own, OWN, 7),
            ethernet(0x0806, "an ARP message", own),
            ethernet(0x88cc, "another protocol", own),
            ethernet(0x8100, "a tagged frame", own),
        ];
        frames.extend([
            tagged(ours("a forbidden priority in a tag", own, OWN, 3), 7 << 13),
            tagged(ours("a frame in a VLAN", own, OWN, 3), 3 << 13 | 5),
            tagged(
                ours("a tag on another port's frame", own, FOREIGN, 3),
                3 << 13,
            ),
            tagged(ours("a tag on a forbidden priority", own, OWN, 7), 3 << 13),
        ]);
        frames.extend(self.hostile_packets());
        frames
    }

    /// The same in the UDP form and as plain UDP.
    fn hostile_packets(&self) -> Vec<Vec<u8>> {
        let (own, ip) = (self.mac(), self.node.report().ip.unwrap());
        let packet = |name: &str, source: u16, priority: u8, change: &dyn Fn(&mut [u8])| {
            let payload = format!("{MARK}{name};");
            let endpoints = Endpoints {
                destination: STATION,
                source: own,
                destination_ip: [10, 9, 9, 9].into(),
                source_ip: ip,
            };
            let number = |number| PortNumber::new(number).unwrap();
            let mut template = UdpTemplate::new(&endpoints, number(70), number(source));
            template.set_header(&header(source, priority, payload.len()));
            let mut bytes = [&template.bytes[..], payload.as_bytes()].concat();
            change(&mut bytes);
            bytes
        };
        let unchanged = |_: &mut [u8]| {};
        let plain =
            |name, source, length, index| self.datagram(name, source, length, &[index]).remove(0);
        vec![
            packet("another port, in UDP", FOREIGN, 3, &unchanged),
            packet("a forbidden priority, in UDP", OWN, 7, &unchanged),
            packet("another IPv4 address", OWN, 3, &|bytes| bytes[29] ^= 1),
            packet("another UDP port", OWN, 3, &|bytes| bytes[35] ^= 1),
            packet("a long time to live", OWN, 3, &|bytes| bytes[22] = 255),
            packet("an urgent type of service", OWN, 3, &|bytes| {
                bytes[15] = 7 << 5
            }),
            packet("TCP", OWN, 3, &|bytes| bytes[23] = 6),
            packet("an option of IP", OWN, 3, &|bytes| bytes[14] = 0x46),
            packet("a fragment", OWN, 3, &|bytes| bytes[20] = 0x20),
            packet("a datagram to another service", OWN, 3, &|bytes| {
                bytes[36..38].copy_from_slice(&53u16.to_be_bytes());
            }),
            plain("plain UDP", 5_000, 1, 0),
            plain("a later fragment", 21_629, 4_000, 2),
        ]
    }

    /// Frames of a datagram of plain UDP: of those that it takes, these.
    fn datagram(&self, name: &str, source: u16, length: usize, which: &[usize]) -> Vec<Vec<u8>> {
        let mut payload = format!("{MARK}{name};").into_bytes();
        let mark = payload.clone();
        payload.resize(length.max(payload.len()), 0);
        // In the last fragment too.
        let end = payload.len() - mark.len();
        payload[end..].copy_from_slice(&mark);
        let all = self.frames(source, &payload);
        which.iter().map(|index| all[*index].clone()).collect()
    }

    /// Frames of a datagram of plain UDP with this payload.
    fn frames(&self, source: u16, payload: &[u8]) -> Vec<Vec<u8>> {
        let from = std::net::SocketAddrV4::new(self.node.report().ip.unwrap(), source);
        let to = std::net::SocketAddrV4::new([10, 9, 9, 9].into(), 7_000);
        let route = Route::new(from, to, self.mac(), STATION, 1500);
        let mut buffer = SendBuffer::new(payload.len());
        let room = buffer.payload(payload.len()).unwrap();
        room.copy_from_slice(payload);
        let mut frames = buffer.frames(&route, Priority::NORMAL, payload.len(), 77);
        let mut all = Vec::new();
        while let Some(frame) = frames.next_frame() {
            all.push(frame.to_vec());
        }
        all
    }

    /// Frames that an entry with UDP port 5001 does not give.
    fn hostile_datagrams(&self) -> Vec<Vec<u8>> {
        let changed = |name, change: &dyn Fn(&mut [u8])| {
            let mut frame = self.datagram(name, 5_001, 1, &[0]).remove(0);
            change(&mut frame);
            frame
        };
        let mut frames = vec![
            changed("another address, plain", &|frame| frame[29] ^= 1),
            changed("a long time to live, plain", &|frame| frame[22] = 255),
            changed("an urgent type of service, plain", &|frame| {
                frame[15] = 7 << 5
            }),
        ];
        // As messages of ports that the client does not have, with a priority that it does not have.
        let ours = |name: &str, to: u16| {
            let mark = format!("{MARK}{name};");
            let mut bytes = [0; HEADER_BYTES];
            header(FOREIGN, 7, mark.len()).emit(&mut bytes);
            let mut frame = self
                .frames(5_001, &[&bytes, mark.as_bytes()].concat())
                .remove(0);
            frame[36..38].copy_from_slice(&to.to_be_bytes());
            frame
        };
        frames.push(ours("a message as plain UDP", UDP_PORT_BASE + 70));
        // Its header may follow. More fragments.
        let mut short = self.frames(5_001, format!("{MARK}s;").as_bytes()).remove(0);
        short[36..38].copy_from_slice(&(UDP_PORT_BASE + 70).to_be_bytes());
        short[20] = 0x20;
        frames.push(short);
        // Of a datagram that was not begun, and of one that another port began.
        frames.extend(self.datagram("a fragment of nothing", 5_001, 4_000, &[2]));
        frames.extend(self.datagram("another port's fragments", 5_002, 4_000, &[0, 2]));
        frames
    }

    /// A frame that its entry gives.
    fn honest_frame(&self) -> Vec<u8> {
        let payload = format!("{MARK}{HONEST};");
        let header = header(OWN, 3, payload.len());
        frame(STATION, self.mac(), &header, payload.as_bytes())
    }

    /// Sends through everything, in every way, to every interface.
    fn send_everywhere(&self, frame: &[u8]) {
        for descriptor in &self.descriptors {
            let (bytes, length) = (frame.as_ptr().cast(), frame.len());
            // SAFETY: `frame` is readable for its length, `address` for its own.
            unsafe {
                libc::write(*descriptor, bytes, length);
                libc::send(*descriptor, bytes, length, libc::MSG_DONTWAIT);
                for index in INDEXES {
                    let address = link_address(index);
                    libc::sendto(
                        *descriptor,
                        bytes,
                        length,
                        libc::MSG_DONTWAIT,
                        (&raw const address).cast(),
                        size_of_val(&address) as libc::socklen_t,
                    );
                }
            }
        }
    }

    /// Options and requests by which a descriptor would do more than send. The names of those that the kernel took.
    fn unlock(&self) -> Vec<String> {
        let mut taken = Vec::new();
        for descriptor in &self.descriptors {
            for index in INDEXES {
                let membership = libc::packet_mreq {
                    mr_ifindex: index,
                    mr_type: libc::PACKET_MR_PROMISC as libc::c_ushort,
                    mr_alen: 0,
                    mr_address: [0; 8],
                };
                if option(*descriptor, libc::PACKET_ADD_MEMBERSHIP, &membership) {
                    taken.push(format!("promiscuous mode of interface {index}"));
                }
                let address = link_address(index);
                // SAFETY: `address` is readable for the length given.
                let bound = unsafe {
                    let bytes = size_of_val(&address) as libc::socklen_t;
                    libc::bind(*descriptor, (&raw const address).cast(), bytes) == 0
                };
                if bound {
                    taken.push(format!("binding to interface {index}"));
                }
            }
            taken.extend(self.map_ring(*descriptor));
        }
        taken
    }

    fn map_ring(&self, descriptor: RawFd) -> Option<String> {
        let ring = libc::tpacket_req {
            tp_block_size: 1 << 20,
            tp_block_nr: RING_BYTES >> 20,
            tp_frame_size: 2048,
            tp_frame_nr: RING_BYTES / 2048,
        };
        let rings = [libc::PACKET_RX_RING, libc::PACKET_TX_RING];
        let made = rings.iter().any(|kind| option(descriptor, *kind, &ring));
        made.then(|| format!("a ring of {RING_BYTES} bytes"))
    }

    /// Makes its taps stay, be its own, take the way past the kernel's packet buffers; then undoes what keeps a write
    /// from waiting.
    fn loosen_taps(&self) {
        for descriptor in &self.descriptors {
            let most = i32::MAX;
            // SAFETY: TUNSETSNDBUF reads an integer, the others take a number.
            unsafe {
                libc::ioctl(*descriptor, libc::TUNSETPERSIST, 1usize);
                libc::ioctl(*descriptor, libc::TUNSETOWNER, NOBODY as usize);
                libc::ioctl(*descriptor, libc::TUNSETSNDBUF, &raw const most);
            }
        }
    }

    fn set_blocking(&self) {
        for descriptor in &self.descriptors {
            // SAFETY: a call without pointers.
            unsafe { libc::fcntl(*descriptor, libc::F_SETFL, 0) };
        }
    }
}

fn is_file(descriptor: RawFd) -> bool {
    let of_descriptor = std::fs::metadata(format!("/proc/self/fd/{descriptor}"));
    of_descriptor.is_ok_and(|metadata| metadata.is_file())
}

fn is_unix(descriptor: RawFd) -> bool {
    let mut domain: libc::c_int = 0;
    let mut bytes = size_of_val(&domain) as libc::socklen_t;
    // SAFETY: both are writable for their sizes.
    let asked = unsafe {
        let domain = (&raw mut domain).cast();
        libc::getsockopt(
            descriptor,
            libc::SOL_SOCKET,
            libc::SO_DOMAIN,
            domain,
            &raw mut bytes,
        )
    };
    asked == 0 && domain == libc::AF_UNIX
}

fn option<T>(descriptor: RawFd, name: libc::c_int, value: &T) -> bool {
    let bytes = size_of::<T>() as libc::socklen_t;
    let value = std::ptr::from_ref(value).cast();
    // SAFETY: `value` is readable for its size.
    unsafe { libc::setsockopt(descriptor, libc::SOL_PACKET, name, value, bytes) == 0 }
}

fn link_address(index: i32) -> libc::sockaddr_ll {
    libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as libc::c_ushort,
        sll_protocol: 0,
        sll_ifindex: index,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 6,
        sll_addr: [0xff; 8],
    }
}

fn header(source: u16, priority: u8, length: usize) -> Header {
    let priority = Priority::new(priority).unwrap();
    Header::whole(port(70), port(source), priority, length as u16, 0)
}

fn ethernet(ethertype: u16, name: &str, from: MacAddress) -> Vec<u8> {
    let payload = format!("{MARK}{name};");
    let ethertype = ethertype.to_be_bytes();
    [&STATION.0[..], &from.0, &ethertype, payload.as_bytes()].concat()
}

/// A frame with a tag of 802.1Q.
fn tagged(frame: Vec<u8>, control: u16) -> Vec<u8> {
    let [high, low] = control.to_be_bytes();
    [&frame[..12], &[0x81, 0, high, low], &frame[12..]].concat()
}

/// Names of the attacker's frames that passed, up to the fence.
fn passed(hosts: &Hosts, watch: &crate::common::wire::Watch) -> Vec<String> {
    let wire = Wire::on(hosts, Host::B);
    assert!(wire.send(&[&[0xff; 12], &[0x88, 0xb6][..], FENCE].concat()));
    let mut names = Vec::new();
    let holds = |frame: &[u8], text: &[u8]| frame.windows(text.len()).any(|part| part == text);
    loop {
        let frame = watch.next(|frame| holds(frame, MARK.as_bytes()) || holds(frame, FENCE));
        if holds(&frame, FENCE) {
            return names;
        }
        let text = String::from_utf8_lossy(&frame).into_owned();
        let name = text
            .split(MARK)
            .nth(1)
            .and_then(|name| name.split(';').next());
        names.push(name.unwrap_or("cut").to_owned());
    }
}

/// Starts the attacker, waits until it has done all, and gives what it says it was allowed.
fn attack(hosts: &Hosts, test: &str) -> (Helper, Vec<String>) {
    let mut client = start_client(hosts, test, "attacker");
    let line = client.wait_for("unlocked:");
    let all = line.trim().trim_start_matches("unlocked:").to_owned();
    let taken = all.split(';').filter(|name| !name.is_empty());
    let taken = taken.map(str::to_owned).collect();
    client.wait_for("attacked");
    (client, taken)
}

/// The attacker's life: says what it could unlock, and that it has sent everything.
fn be_attacker(attack: impl FnOnce(&mut Attacker) -> Vec<String>) {
    be_attacker_in(Vlan::NONE, attack);
}

fn be_attacker_in(vlan: Vlan, attack: impl FnOnce(&mut Attacker) -> Vec<String>) {
    let mut attacker = Attacker::new(vlan);
    println!("{}", child::READY);
    println!("unlocked:{}", attack(&mut attacker).join(";"));
    println!("attacked");
    child::ready();
}

/// Frames that the control process says it has refused.
fn refused(hosts: &Hosts) -> u64 {
    let status = control_status(hosts);
    let port = &status["control"]["clients"][0]["ports"][0];
    port["frames_refused"].as_u64().unwrap_or_default()
}

fn rule() -> String {
    allow("60", "priorities = [\"0-5\"]")
}

/// The hosts, the control process and the client, which live as long as the test.
type Held = (Hosts, [Helper; 2]);

/// Texts of the frames that pass from a client that does this; `None` in the test's other processes.
fn passed_of(
    test: &str,
    file: &str,
    vlan: Vlan,
    attack_with: impl FnOnce(&mut Attacker) -> Vec<String>,
) -> Option<(Held, Vec<String>)> {
    if let Some(role) = child::role() {
        if !served(&role) {
            be_attacker_in(vlan, attack_with);
        }
        return None;
    }
    let hosts = hosts()?;
    let control = start_control(&hosts, test, file);
    let watch = Wire::watch(&hosts, Host::A);
    let (attacker, _) = attack(&hosts, test);
    let passed = passed(&hosts, &watch);
    Some(((hosts, [control, attacker]), passed))
}

#[test]
fn a_client_sends_what_its_entry_gives_and_nothing_else() {
    const TEST: &str = "a_client_sends_what_its_entry_gives_and_nothing_else";
    let passed = passed_of(TEST, &rule(), Vlan::NONE, |attacker| {
        let hostile = attacker.hostile_frames();
        let all = || {
            for frame in &hostile {
                attacker.send_everywhere(frame);
            }
            attacker.send_everywhere(&attacker.honest_frame());
        };
        all();
        attacker.loosen_taps();
        all();
        attacker.set_blocking();
        all();
        Vec::new()
    });
    let Some(((hosts, _processes), passed)) = passed else {
        return;
    };
    // At most once in each manner, and through no other interface. A tap that was loosened may lose frames: the way
    // past the kernel's packet buffers needs a peer that polls.
    assert!((1..=3).contains(&passed.len()), "{passed:?}");
    assert_eq!(passed, vec![HONEST; passed.len()]);
    eventually("what was refused is counted", || refused(&hosts) > 0);
}

#[test]
fn a_client_of_a_node_in_a_vlan_sends_nothing_outside_it() {
    const TEST: &str = "a_client_of_a_node_in_a_vlan_sends_nothing_outside_it";
    const VLAN: u16 = 6;
    let passed = passed_of(
        TEST,
        &format!("vlan = {VLAN}\n{}", rule()),
        Vlan::new(VLAN).unwrap(),
        |attacker| {
            for frame in attacker.hostile_frames() {
                attacker.send_everywhere(&tagged(frame.clone(), 3 << 13 | VLAN));
                attacker.send_everywhere(&frame);
            }
            let honest = attacker.honest_frame();
            let named = |name: &str| {
                let mut frame = honest.clone();
                let at = frame.len() - HONEST.len() - 1;
                frame[at..at + HONEST.len()].copy_from_slice(name.as_bytes());
                frame
            };
            attacker.send_everywhere(&named("no tag"));
            attacker.send_everywhere(&tagged(named("no one"), 3 << 13));
            attacker.send_everywhere(&tagged(named("other5"), 3 << 13 | 5));
            attacker.send_everywhere(&tagged(named("urgent"), 7 << 13 | VLAN));
            attacker.send_everywhere(&tagged(named("drops!"), 1 << 12 | VLAN));
            attacker.send_everywhere(&tagged(honest.clone(), 3 << 13 | VLAN));
            Vec::new()
        },
    );
    let Some((_, passed)) = passed else { return };
    assert_eq!(passed, [HONEST]);
}

#[test]
fn a_port_of_plain_udp_sends_its_own_datagrams_and_nothing_else() {
    const TEST: &str = "a_port_of_plain_udp_sends_its_own_datagrams_and_nothing_else";
    let rule = allow("60", "priorities = [\"0-5\"]\nudp_ports = [5001]");
    let passed = passed_of(TEST, &rule, Vlan::NONE, |attacker| {
        attacker.port = None;
        let node = &attacker.node;
        let plain = node.udp(5_001).open().unwrap();
        attacker.copy_descriptors();
        for frame in attacker.hostile_frames() {
            attacker.send_everywhere(&frame);
        }
        for frame in attacker.hostile_datagrams() {
            attacker.send_everywhere(&frame);
        }
        attacker.send_everywhere(&attacker.datagram(HONEST, 5_001, 1, &[0])[0]);
        let mut to_a_sensor = attacker.datagram(HONEST, 5_001, 1, &[0]).remove(0);
        to_a_sensor[36..38].copy_from_slice(&(UDP_PORT_BASE + 70).to_be_bytes());
        attacker.send_everywhere(&to_a_sensor);
        for fragment in attacker.datagram(HONEST, 5_001, 4_000, &[0, 2]) {
            attacker.send_everywhere(&fragment);
        }
        let mut astray = attacker.datagram("a fragment to somebody else", 5_001, 4_000, &[2]);
        astray[0][33] ^= 1;
        attacker.send_everywhere(&astray[0]);
        drop(plain);
        attacker.send_everywhere(&attacker.datagram("closed", 5_001, 1, &[0])[0]);
        Vec::new()
    });
    let Some((_, passed)) = passed else { return };
    assert_eq!(passed, [HONEST; 4]);
}

const RAW: u16 = 0x88A4;

/// Sends frames that an entry with EtherType [`RAW`] does not give, one from another address, and two honest ones.
fn attack_with_raw_port(attacker: &mut Attacker) -> Vec<String> {
    attacker.port = None;
    let raw = attacker
        .node
        .raw(tautline::EtherType::ETHERCAT)
        .open()
        .unwrap();
    attacker.copy_descriptors();
    let own = attacker.mac();
    attacker.send_everywhere(&ethernet(RAW, "another station's address", OUTSIDE));
    // Eligible to be dropped.
    attacker.send_everywhere(&tagged(ethernet(RAW, HONEST, own), 5 << 13 | 1 << 12));
    attacker.send_everywhere(&ethernet(RAW, HONEST, own));
    for loosened in [false, true] {
        if loosened {
            attacker.loosen_taps();
        }
        for frame in attacker.hostile_frames() {
            attacker.send_everywhere(&frame);
        }
        for frame in attacker.hostile_datagrams() {
            attacker.send_everywhere(&frame);
        }
        // The port that it had before, and another EtherType.
        attacker.send_everywhere(&attacker.honest_frame());
        attacker.send_everywhere(&ethernet(0x88b6, "experimental type 2", own));
        attacker.send_everywhere(&ethernet(RAW + 1, "the next type", own));
        for (name, control) in [("in a VLAN", 5), ("urgent", 6 << 13)] {
            attacker.send_everywhere(&tagged(ethernet(RAW, name, own), control));
        }
        let twice = tagged(tagged(ethernet(RAW, "two tags", own), 0), 0);
        attacker.send_everywhere(&twice);
        attacker.send_everywhere(&[0xff; 13]);
    }
    drop(raw);
    attacker.send_everywhere(&ethernet(RAW, "closed", own));
    Vec::new()
}

/// Frames that pass from a client with a raw port, whose entry has `rest` too.
fn passed_of_raw_port(test: &str, rest: &str) -> Option<Vec<String>> {
    let rule = format!("priorities = [\"0-5\"]\nethertypes = [0x88a4]\n{rest}");
    let passed = passed_of(test, &allow("60", &rule), Vlan::NONE, attack_with_raw_port);
    Some(passed?.1)
}

#[test]
fn a_raw_port_sends_its_own_ethertype_and_nothing_else() {
    const TEST: &str = "a_raw_port_sends_its_own_ethertype_and_nothing_else";
    if let Some(passed) = passed_of_raw_port(TEST, "") {
        assert_eq!(passed, [HONEST; 2]);
    }
}

#[test]
fn an_entry_that_gives_any_source_address_gives_nothing_more() {
    const TEST: &str = "an_entry_that_gives_any_source_address_gives_nothing_more";
    if let Some(passed) = passed_of_raw_port(TEST, "any_source_address = true") {
        assert_eq!(passed, ["another station's address", HONEST, HONEST]);
    }
}

#[test]
fn a_client_listens_to_nobody_and_takes_no_memory() {
    const TEST: &str = "a_client_listens_to_nobody_and_takes_no_memory";
    if let Some(role) = child::role() {
        if !served(&role) {
            be_attacker(|attacker| attacker.unlock());
        }
        return;
    }
    let Some(hosts) = hosts() else { return };
    let _control = start_control(&hosts, TEST, &rule());
    let (_attacker, unlocked) = attack(&hosts, TEST);
    assert_eq!(unlocked, [""; 0]);
}

#[test]
fn what_a_client_kept_of_a_closed_port_sends_nothing() {
    const TEST: &str = "what_a_client_kept_of_a_closed_port_sends_nothing";
    let passed = passed_of(TEST, &rule(), Vlan::NONE, |attacker| {
        attacker.loosen_taps();
        attacker.port = None;
        attacker.send_everywhere(&attacker.honest_frame());
        Vec::new()
    });
    let Some((_, passed)) = passed else { return };
    assert_eq!(passed, [""; 0]);
}

#[test]
fn a_successor_takes_it_from_a_client_of_its_predecessor() {
    const TEST: &str = "a_successor_takes_it_from_a_client_of_its_predecessor";
    if let Some(role) = child::role() {
        if !served(&role) {
            be_attacker(|attacker| {
                attacker.send_everywhere(&attacker.honest_frame());
                println!("sent once");
                // Until there is a successor.
                while attacker.node.queuing(port(65)).open().is_err() {
                    std::thread::sleep(std::time::Duration::from_millis(50));
                }
                attacker.send_everywhere(&attacker.honest_frame());
                attacker.port = None;
                println!("closed");
                child::ready();
                attacker.send_everywhere(&attacker.hostile_frames()[0]);
                attacker.send_everywhere(&attacker.honest_frame());
                Vec::new()
            });
        }
        return;
    }
    let Some(hosts) = hosts() else { return };
    let rule = allow("60, 65", "priorities = [\"0-5\"]");
    let control = start_control(&hosts, TEST, &rule);
    let watch = Wire::watch(&hosts, Host::A);
    let mut attacker = start_client(&hosts, TEST, "attacker");
    attacker.wait_for("sent once");
    control.kill();
    let _successor = start_control(&hosts, TEST, &rule);
    attacker.wait_for("closed");
    eventually("the successor notices that the port is closed", || {
        !ports_given(&hosts).contains(&OWN.into())
    });
    attacker.let_go();
    attacker.wait_for("attacked");
    // Before and after the predecessor's death, and no more once the port was closed.
    assert_eq!(passed(&hosts, &watch), [HONEST; 2]);
}

#[test]
fn the_next_who_has_the_port_is_not_disturbed_by_the_one_before() {
    const TEST: &str = "the_next_who_has_the_port_is_not_disturbed_by_the_one_before";
    if let Some(role) = child::role() {
        if served(&role) {
            return;
        }
        if role == "next" {
            return echo_for_ever(&client_node(NOBODY).unwrap(), OWN);
        }
        return be_attacker(|attacker| {
            attacker.loosen_taps();
            Vec::new()
        });
    }
    let Some(hosts) = hosts() else { return };
    let _control = start_control(&hosts, TEST, &allow("60", ""));
    let (attacker, _) = attack(&hosts, TEST);
    attacker.kill();
    eventually("a dead client's port is free", || {
        ports_given(&hosts).is_empty()
    });
    let _next = start_client(&hosts, TEST, "next");
    let node = open(&hosts, Host::A, XDP);
    assert!(answers(&hosts, &node, OWN));
}
