//! Plain UDP through a control process: who may open which UDP port, and that its clients' datagrams pass as those of
//! a process with a demux of its own do. The peers are sockets of the kernel.

use std::net::UdpSocket;

use crate::common::child;
use crate::common::control::{
    NOBODY, allow, client_node, outlives_control, start_control, udp_ports_given,
};
use crate::common::udp::{PORT, bytes, ip};
use crate::common::{PATIENCE, begin, queuing_with};
use tautline::port::QueuingOptions;
use tautline::{Node, PortError, Priority, SendError, UdpPort};
use tautline_testbed::hosts::Host;

/// Options of a port that takes datagrams of every size.
fn any_size() -> QueuingOptions {
    QueuingOptions {
        depth: 64,
        message_bytes_max: 65_507,
        ..QueuingOptions::default()
    }
}

fn udp_port(node: &Node, number: u16) -> Result<UdpPort, PortError> {
    let options = queuing_with(|options| options.depth = 2);
    node.udp(number).options(&options).open()
}

/// Answers every datagram until the parent is gone.
fn echo(node: &Node) -> ! {
    let port = node.udp(PORT).options(&any_size()).open().unwrap();
    child::answer_for_ever(port, 65_536, |port, datagram, bytes| {
        let answer = &bytes[..datagram.length];
        port.reply(datagram.source, Priority::NORMAL, answer)
            .unwrap();
    })
}

const RULE: &str = "udp_ports = [5000, \"5005-5009\", 53]\npriorities = [\"0-3\"]";

#[test]
fn an_entry_gives_udp_ports_and_they_outlive_the_control_process() {
    const TEST: &str = "an_entry_gives_udp_ports_and_they_outlive_the_control_process";
    let client = |_: &str| {
        echo(&client_node(NOBODY).unwrap());
    };
    let Some(hosts) = begin(client) else {
        return;
    };
    let bind = || UdpSocket::bind((ip(&hosts, Host::A), 0)).unwrap();
    let socket = hosts.inside(Host::A, bind).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut buffer = vec![0; 65_536];
    let reach = |when: &str| {
        for length in [5, 6_000] {
            let sent = bytes(length);
            socket.send_to(&sent, (ip(&hosts, Host::B), PORT)).unwrap();
            let received = socket.recv(&mut buffer).expect(when);
            assert!(buffer[..received] == sent, "{length} bytes, {when}");
        }
    };
    let bed = (&hosts, TEST, &*allow("", RULE));
    outlives_control(bed, (udp_ports_given, PORT), reach);
}

#[test]
fn what_an_entry_does_not_give_is_refused_with_the_reason() {
    const TEST: &str = "what_an_entry_does_not_give_is_refused_with_the_reason";
    let client = |role: &str| {
        let node = client_node(NOBODY).unwrap();
        let refused = |port| match udp_port(&node, port) {
            Err(error) => error.to_string(),
            Ok(_) => panic!("UDP port {port} was opened"),
        };
        let error = refused(6_000);
        assert!(
            error.starts_with("UDP port 6000 is not allowed: user "),
            "{error}"
        );
        let gives = "[[allow]] entry 1 (user 65534) gives UDP ports 5000, 5005-5009, 53";
        assert!(error.ends_with(gives), "{error}");
        // A socket of the kernel has it.
        assert!(refused(5_006).starts_with("UDP port 5006 is taken"));
        // Below 1024, where this user could not open a socket.
        let mut port = udp_port(&node, 53).unwrap();
        let urgent = port.reply(role.parse().unwrap(), Priority::HIGHEST, b"urgent");
        let Err(error @ SendError::PriorityNotAllowed { priority: 7, .. }) = urgent else {
            panic!("{urgent:?}");
        };
        assert_eq!(
            error.to_string(),
            "priority 7 is not allowed on this port: [[allow]] entry 1 gives priorities 0-3"
        );
        let error = refused(53);
        assert!(error.starts_with("UDP port 53 is open"), "{error}");
        drop(port);
        let _again = udp_port(&node, 53).unwrap();
    };
    let Some(hosts) = begin(client) else {
        return;
    };
    let _control = start_control(&hosts, TEST, &allow("", RULE));
    let address = (ip(&hosts, Host::B), 5_006);
    let _taken = hosts.inside(Host::B, || std::net::UdpSocket::bind(address).unwrap());
    let peer = format!("{}:7", ip(&hosts, Host::A));
    hosts.inside(Host::B, || child::run(TEST, &peer)).unwrap();
}
