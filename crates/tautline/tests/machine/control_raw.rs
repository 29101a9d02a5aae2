//! Raw ports through a control process: who may open which EtherType, what its clients receive and send, and that open
//! ports outlive it. The peers are packet sockets of the kernel.

use crate::common::child;
use crate::common::control::{
    NOBODY, allow, client_node, ethertypes_given, outlives_control, start_control,
};
use crate::common::wire::{Watch, Wire};
use crate::common::{PACKET, begin, open, queuing_with};
use tautline::link::RawFrames;
use tautline::port::RAW_FRAME_BYTES_MAX;
use tautline::{EtherType, MacAddress, Node, PortError, RawPort, SendError};
use tautline_testbed::hosts::{Host, Hosts};

const TYPE: EtherType = EtherType::ETHERCAT;
const ALL: [u8; 6] = [0xFF; 6];
/// Source address that is no station's.
const NOWHERE: [u8; 6] = [0x10; 6];

/// A small port: an entry gives memory for several.
fn raw_port(node: &Node, ethertype: u16) -> Result<RawPort, PortError> {
    let options = queuing_with(|options| options.depth = 8);
    node.raw(EtherType::new(ethertype).unwrap())
        .options(&options)
        .open()
}

fn frame(from: [u8; 6], tag: &[u8], ethertype: u16, payload: &[u8]) -> Vec<u8> {
    let ethertype = ethertype.to_be_bytes();
    [&ALL[..], &from, tag, &ethertype, payload].concat()
}

fn mac(node: &Node) -> [u8; 6] {
    let mac: MacAddress = node.report().mac.as_deref().unwrap().parse().unwrap();
    mac.0
}

/// Answers every frame with its payload backwards, until the parent is gone.
fn answer_for_ever(node: &Node) -> ! {
    let port = raw_port(node, TYPE.get()).unwrap();
    let own = mac(node);
    child::answer_for_ever(port, RAW_FRAME_BYTES_MAX, |port, received, bytes| {
        let backwards: Vec<u8> = bytes[14..received.length].iter().rev().copied().collect();
        let answer = frame(own, &[], TYPE.get(), &backwards);
        port.send(&answer).unwrap();
    })
}

/// Whether the client in host B answers a packet socket in host A.
fn is_answered(hosts: &Hosts, watch: &Watch) {
    let wire = Wire::on(hosts, Host::A);
    assert!(wire.send(&frame(NOWHERE, &[], TYPE.get(), b"are you there?")));
    let backwards: Vec<u8> = b"are you there?".iter().rev().copied().collect();
    watch.next(|frame| frame.len() > 14 && frame[14..] == backwards);
}

const RULE: &str = "ethertypes = [0x88a4, \"0x9000-0x900f\", 0x88b4]\npriorities = [\"0-3\"]";

#[test]
fn an_entry_gives_ethertypes_and_they_outlive_the_control_process() {
    const TEST: &str = "an_entry_gives_ethertypes_and_they_outlive_the_control_process";
    let client = |_: &str| {
        let node = client_node(NOBODY).unwrap();
        let raw_frames = node.report().capabilities.raw_frames;
        assert_eq!(raw_frames, RawFrames::PastTheStack);
        answer_for_ever(&node);
    };
    let Some(hosts) = begin(client) else {
        return;
    };
    let watch = Wire::watch(&hosts, Host::A);
    let bed = (&hosts, TEST, &*allow("", RULE));
    outlives_control(bed, (ethertypes_given, TYPE.get()), |_| {
        is_answered(&hosts, &watch)
    });
}

#[test]
fn what_an_entry_gives_no_ethertype_for_is_refused_with_the_reason() {
    const TEST: &str = "what_an_entry_gives_no_ethertype_for_is_refused_with_the_reason";
    let client = |role: &str| {
        let node = client_node(NOBODY).unwrap();
        let refused = |ethertype| match raw_port(&node, ethertype) {
            Err(error) => error,
            Ok(_) => panic!("{ethertype:#06x} was opened"),
        };
        let error = refused(0x88CC);
        assert!(matches!(error, PortError::NotAllowed { .. }), "{error}");
        assert!(error.remedy().contains("`ethertypes`"));
        let gives = "[[allow]] entry 1 (user 65534) gives EtherTypes 0x88a4, 0x9000-0x900f, 0x88b4";
        let text = error.to_string();
        assert!(
            text.starts_with("EtherType 0x88cc is not allowed: user "),
            "{text}"
        );
        assert!(text.ends_with(gives), "{text}");
        // A node of root's on link `packet` has it.
        let text = refused(0x88B4).to_string();
        assert_eq!(
            text,
            format!(
                "EtherType 0x88b4 is taken by process {role} ({})",
                name_of(role)
            )
        );
        let port = raw_port(&node, 0x9000).unwrap();
        sends_what_it_may(&node, port);
    };
    let Some(hosts) = begin(client) else {
        return;
    };
    let _control = start_control(&hosts, TEST, &allow("", RULE));
    let node = open(&hosts, Host::B, PACKET);
    let _taken = hosts.inside(Host::B, || raw_port(&node, 0x88B4).unwrap());
    let own = std::process::id().to_string();
    hosts.inside(Host::B, || child::run(TEST, &own)).unwrap();
}

fn name_of(pid: &str) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap();
    name.trim_end().to_owned()
}

/// With priorities 0 to 3, and from its own address.
fn sends_what_it_may(node: &Node, mut port: RawPort) {
    let own = mac(node);
    let tag = |priority: u8| [0x81, 0, priority << 5, 0];
    port.send(&frame(own, &[], 0x9000, b"no tag")).unwrap();
    port.send(&frame(own, &tag(3), 0x9000, b"a tag")).unwrap();
    let urgent = port.send(&frame(own, &tag(4), 0x9000, b"urgent"));
    assert_eq!(
        urgent.unwrap_err().to_string(),
        "priority 4 is not allowed on this port: [[allow]] entry 1 gives priorities 0-3"
    );
    let spoofed = port.send(&frame(NOWHERE, &[], 0x9000, b"spoofed"));
    assert_eq!(spoofed, Err(SendError::SourceNotAllowed { entry: 1 }));
    assert_eq!(
        spoofed.unwrap_err().to_string(),
        "source address is not the interface's: [[allow]] entry 1 lacks `any_source_address`"
    );
    let foreign = port.send(&frame(own, &[], 0x9001, b"of another type"));
    assert_eq!(foreign, Err(SendError::ForeignFrame));
    let status = node.status().ports.remove(0);
    assert_eq!((status.sent, status.send_errors), (2, 3));
}
