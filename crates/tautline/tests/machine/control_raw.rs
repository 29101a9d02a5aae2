//! Raw ports through a control process: who may open which EtherType, what its clients receive and send, and that open
//! ports outlive it. The peers are packet sockets of the kernel.

use crate::common::child;
use crate::common::control::{
    NOBODY, STRANGER, allow, client_node, control_status, ethertypes_given, eventually, served,
    start_client, start_control,
};
use crate::common::wire::{Watch, Wire};
use crate::common::{PACKET, PATIENCE, hosts, open};
use tautline::link::RawFrames;
use tautline::port::{QueuingOptions, RAW_FRAME_BYTES_MAX};
use tautline::{EtherType, MacAddress, Node, PortError, RawPort, SendError, Wait};
use tautline_testbed::hosts::{Host, Hosts};

const TYPE: EtherType = EtherType::ETHERCAT;
const ALL: [u8; 6] = [0xFF; 6];
/// Source address that is no station's.
const NOWHERE: [u8; 6] = [0x10; 6];

/// A small port: an entry gives memory for several.
fn raw_port(node: &Node, ethertype: u16) -> Result<RawPort, PortError> {
    let options = QueuingOptions {
        depth: 8,
        ..QueuingOptions::default()
    };
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
    let mut port = raw_port(node, TYPE.get()).unwrap();
    std::thread::spawn(|| {
        child::ready();
        std::process::exit(0);
    });
    let own = mac(node);
    let mut buffer = [0; RAW_FRAME_BYTES_MAX];
    loop {
        let deadline = tautline::now() + PATIENCE;
        let Some(received) = port
            .receive_into(&mut buffer, Wait::Until(deadline))
            .unwrap()
        else {
            continue;
        };
        let backwards: Vec<u8> = buffer[14..received.length].iter().rev().copied().collect();
        let answer = frame(own, &[], TYPE.get(), &backwards);
        port.send(&answer).unwrap();
    }
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
    if let Some(role) = child::role() {
        if !served(&role) {
            let node = client_node(NOBODY).unwrap();
            let raw_frames = node.report().capabilities.raw_frames;
            assert_eq!(raw_frames, RawFrames::PastTheStack);
            answer_for_ever(&node);
        }
        return;
    }
    let Some(hosts) = hosts() else { return };
    let rules = allow("", RULE);
    let control = start_control(&hosts, TEST, &rules);
    let watch = Wire::watch(&hosts, Host::A);
    let client = start_client(&hosts, TEST, "client");
    let given = [u64::from(TYPE.get())];
    is_answered(&hosts, &watch);
    assert_eq!(ethertypes_given(&hosts), given);
    let rule = &control_status(&hosts)["control"]["rules"][0];
    assert_eq!(rule["ethertypes"], "0x88a4, 0x9000-0x900f, 0x88b4");
    assert_eq!(rule["any_source_address"], false);
    control.kill();
    // Without a control process, then with another one.
    is_answered(&hosts, &watch);
    let mut successor = start_control(&hosts, TEST, &rules);
    is_answered(&hosts, &watch);
    assert_eq!(ethertypes_given(&hosts), given);
    client.kill();
    eventually("a dead client's EtherType is free", || {
        ethertypes_given(&hosts).is_empty()
    });
    let _next = start_client(&hosts, TEST, "client");
    is_answered(&hosts, &watch);
    successor.let_go();
}

#[test]
fn a_client_that_dies_without_a_control_process_is_noticed_by_the_next_one() {
    const TEST: &str = "a_client_that_dies_without_a_control_process_is_noticed_by_the_next_one";
    if let Some(role) = child::role() {
        if served(&role) {
            return;
        }
        let node = client_node(NOBODY).unwrap();
        if role == "client" {
            answer_for_ever(&node);
        }
        // Holds the demux on the interface.
        let _port = raw_port(&node, 0x9000).unwrap();
        return child::ready();
    }
    let Some(hosts) = hosts() else { return };
    let rules = allow("", RULE);
    let control = start_control(&hosts, TEST, &rules);
    let _holder = start_client(&hosts, TEST, "holder");
    let other = start_client(&hosts, TEST, "client");
    let watch = Wire::watch(&hosts, Host::A);
    control.kill();
    is_answered(&hosts, &watch);
    other.kill();
    let _successor = start_control(&hosts, TEST, &rules);
    assert_eq!(ethertypes_given(&hosts), [0x9000]);
    let _next = start_client(&hosts, TEST, "client");
    is_answered(&hosts, &watch);
}

#[test]
fn what_an_entry_gives_no_ethertype_for_is_refused_with_the_reason() {
    const TEST: &str = "what_an_entry_gives_no_ethertype_for_is_refused_with_the_reason";
    if let Some(role) = child::role() {
        if served(&role) {
            return;
        }
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
                name_of(&role)
            )
        );
        let port = raw_port(&node, 0x9000).unwrap();
        sends_what_it_may(&node, port);
        // Two at a time.
        let kept = [
            raw_port(&node, 0x9001).unwrap(),
            raw_port(&node, 0x9002).unwrap(),
        ];
        let text = refused(0x9003).to_string();
        assert!(
            text.ends_with("gives 2 ports at a time, which are open; raise its ports_max"),
            "{text}"
        );
        drop(kept);
        raw_port(&node, 0x9003).unwrap();
        return;
    }
    let Some(hosts) = hosts() else { return };
    let _control = start_control(&hosts, TEST, &allow("", &format!("{RULE}\nports_max = 2")));
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

#[test]
fn an_entry_gives_any_source_address() {
    const TEST: &str = "an_entry_gives_any_source_address";
    if let Some(role) = child::role() {
        if served(&role) {
            return;
        }
        let node = client_node(NOBODY).unwrap();
        let mut port = raw_port(&node, TYPE.get()).unwrap();
        port.send(&frame(NOWHERE, &[], TYPE.get(), b"from nowhere"))
            .unwrap();
        return;
    }
    let Some(hosts) = hosts() else { return };
    let rule = allow("", "ethertypes = [0x88a4]\nany_source_address = true");
    let _control = start_control(&hosts, TEST, &rule);
    let watch = Wire::watch(&hosts, Host::A);
    hosts
        .inside(Host::B, || child::run(TEST, "client"))
        .unwrap();
    let sent = frame(NOWHERE, &[], TYPE.get(), b"from nowhere");
    assert_eq!(watch.next(|frame| frame.ends_with(b"from nowhere")), sent);
}

#[test]
fn users_have_ethertypes_of_their_own() {
    const TEST: &str = "users_have_ethertypes_of_their_own";
    if let Some(role) = child::role() {
        if served(&role) {
            return;
        }
        let (user, own, foreign) = match role.as_str() {
            "first" => (NOBODY, 0x9000, 0x9100 + 1),
            _ => (STRANGER, 0x9101, 0x9000),
        };
        let node = client_node(user).unwrap();
        let error = raw_port(&node, foreign).unwrap_err();
        assert!(matches!(error, PortError::NotAllowed { .. }), "{error}");
        let _port = raw_port(&node, own).unwrap();
        return child::ready();
    }
    let Some(hosts) = hosts() else { return };
    let second = format!("[[allow]]\nuser = \"{STRANGER}\"\nports = []\nethertypes = [0x9101]\n");
    let rules = allow("", "ethertypes = [0x9000]") + &second;
    let _control = start_control(&hosts, TEST, &rules);
    let _first = start_client(&hosts, TEST, "first");
    let _second = start_client(&hosts, TEST, "second");
    assert_eq!(ethertypes_given(&hosts), [0x9000, 0x9101]);
}

#[test]
fn a_client_that_never_reads_loses_its_own_frames_alone() {
    const TEST: &str = "a_client_that_never_reads_loses_its_own_frames_alone";
    if let Some(role) = child::role() {
        if served(&role) {
            return;
        }
        let node = client_node(NOBODY).unwrap();
        if role != "idle" {
            answer_for_ever(&node);
        }
        let _port = raw_port(&node, 0x9000).unwrap();
        println!("{}", child::READY);
        // Two hundred frames are more than eight slots.
        eventually("its frames are dropped and counted", || {
            let status = node.status().ports.remove(0);
            status.frames == 200 && status.dropped_full[0] == 192
        });
        println!("counted");
        return child::ready();
    }
    let Some(hosts) = hosts() else { return };
    let _control = start_control(&hosts, TEST, &allow("", RULE));
    let mut idle = start_client(&hosts, TEST, "idle");
    let _other = start_client(&hosts, TEST, "other");
    let (wire, watch) = (Wire::on(&hosts, Host::A), Wire::watch(&hosts, Host::A));
    for _ in 0..200 {
        assert!(wire.send(&frame(NOWHERE, &[], 0x9000, b"nobody reads this")));
    }
    is_answered(&hosts, &watch);
    idle.wait_for("counted");
}
