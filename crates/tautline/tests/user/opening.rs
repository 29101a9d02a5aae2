//! Opening ports: what the configuration says, what the program says, and where the two differ.

use std::time::Duration;

use tautline::error::OptionsError;
use tautline::port::Policing;
use tautline::{EtherType, Node, NodeConfig, PortError, Protection};

/// A node with one port of each kind. `first` keeps tests that run at the same time apart.
fn node(first: u16) -> Node {
    let text = format!(
        r#"
        link = "udp"
        address = "127.0.0.1"
        publish_status = false
        [[port]]
        name = "command"
        kind = "queuing"
        number = {first}
        depth = 64
        police_rate = 100
        [[port]]
        name = "state"
        kind = "sampling"
        number = {}
        sources = 2
        [[port]]
        name = "camera"
        kind = "udp"
        number = {}
        spin_us = 10
        [[port]]
        name = "fieldbus"
        kind = "raw"
        ethertype = 0x9000
        "#,
        first + 1,
        first + 10_000,
    );
    Node::open(text.parse::<NodeConfig>().unwrap()).unwrap()
}

/// The option that differs, and its two values.
fn contradiction<P>(opened: Result<P, PortError>) -> (&'static str, String, String) {
    match opened.err().expect("the two differ") {
        PortError::Options(OptionsError::Contradiction {
            option,
            configured,
            program,
            ..
        }) => (option, configured, program),
        other => panic!("{other}"),
    }
}

#[test]
fn options_add_to_the_entry_of_the_configuration() {
    let node = node(2_801);
    let command = node.queuing("command").number(2_801).depth(64);
    let command = command.message_bytes_max(100).open().unwrap();
    assert_eq!(
        (command.number().get(), command.message_bytes_max()),
        (2_801, 100)
    );
    let state = node.sampling("state").value_bytes_max(8).open().unwrap();
    assert_eq!((state.number().get(), state.value_bytes_max()), (2_802, 8));
    let camera = node.udp("camera").message_bytes_max(9).open().unwrap();
    assert_eq!((camera.number(), camera.message_bytes_max()), (12_801, 9));
    assert_eq!(camera.spin(), Duration::from_micros(10).into());
    let names = node.status().ports;
    let mut names: Vec<_> = names
        .iter()
        .map(|port| port.name.as_deref().unwrap())
        .collect();
    names.sort_unstable();
    assert_eq!(names, ["camera", "command", "state"]);
}

#[test]
fn an_option_that_contradicts_the_configuration_is_an_error_that_names_both() {
    let node = node(2_811);
    // 64 is the default, too: the entry says it all the same.
    let refused = node.queuing("command").depth(32).open();
    let text = refused.as_ref().unwrap_err().to_string();
    assert_eq!(
        text,
        "port `command`: `depth` is 64 in the configuration and 32 in the program"
    );
    assert_eq!(contradiction(refused).0, "depth");
    let refused = node.queuing("command").number(8).open();
    assert_eq!(
        contradiction(refused),
        ("number", "2811".into(), "8".into())
    );
    let policing = Policing::per_second(50, 1);
    assert_eq!(
        contradiction(node.queuing("command").policing(policing).open()).0,
        "police_rate"
    );
    assert_eq!(
        contradiction(node.sampling("state").sources(3).open()).0,
        "sources"
    );
    assert_eq!(
        contradiction(node.udp("camera").number(9).open()).0,
        "number"
    );
    assert_eq!(
        contradiction(node.udp("camera").spin(Duration::ZERO).open()).0,
        "spin_us"
    );
    let refused = node.raw("fieldbus").ethertype(EtherType::ETHERCAT).open();
    assert_eq!(contradiction(refused).0, "ethertype");
}

#[test]
fn a_port_needs_a_number_from_one_of_the_two() {
    let node = node(2_821);
    let log = node.queuing("log").number(2_829).open().unwrap();
    assert_eq!(node.status().ports[0].name.as_deref(), Some("log"));
    drop(log);
    let unknown = node.queuing("log").open().unwrap_err();
    assert!(
        matches!(unknown, PortError::UnknownName { .. }),
        "{unknown}"
    );
    let other = node.queuing("camera").open().unwrap_err();
    assert!(
        matches!(
            other,
            PortError::OtherKind {
                configured: "udp",
                ..
            }
        ),
        "{other}"
    );
    for number in [0, 4_096] {
        let refused = node.sampling(number).open().unwrap_err();
        assert!(matches!(refused, PortError::Value(_)), "{refused}");
    }
    let protected = node.queuing(2_828).protection(Protection::Encrypted).open();
    assert!(matches!(protected.unwrap_err(), PortError::NoKeys { .. }));
}
