//! Plain UDP through a control process: who may open which UDP port, and that its clients' datagrams pass as those of
//! a process with a demux of its own do. The peers are sockets of the kernel, Python and socat.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::common::child;
use crate::common::control::{
    NOBODY, allow, client_node, control_status, eventually, served, start_client, start_control,
    udp_ports_given,
};
use crate::common::udp::{Meeting, PORT, bytes, ip, set};
use crate::common::{PATIENCE, XDP, XDP_GENERIC, XDP_TC, here, hosts};
use tautline::error::Reason;
use tautline::link::PlainUdp;
use tautline::port::QueuingOptions;
use tautline::{Node, PortError, Priority, ReceiveError, SendError, UdpPort, Wait};
use tautline_testbed::hosts::{Host, Hosts};

#[test]
fn datagrams_of_a_client_pass_the_stack_by() {
    for side in here([XDP, XDP_GENERIC, XDP_TC]) {
        let Some((mut meeting, _control)) = Meeting::controlled(side, &any_size()) else {
            return;
        };
        let capabilities = &meeting.node.report().capabilities;
        assert_eq!(capabilities.plain_udp, PlainUdp::PastTheStack);
        // Says the type of service and the time to live that a datagram comes with.
        set(
            &meeting.socket,
            libc::IPPROTO_IP,
            libc::IP_RECVTTL,
            &[1, 0, 0, 0],
        );
        let mut buffer = vec![0; 65_536];
        // In one frame and in fragments.
        for length in [0, 1, 64, 1_472, 1_473, 8_192, 65_507] {
            let datagram = bytes(length);
            meeting.socket.send_to(&datagram, meeting.own()).unwrap();
            let received = meeting.receive(&mut buffer);
            assert_eq!((received.length, received.source), (length, meeting.peer()));
            assert!(buffer[..length] == datagram, "{length} bytes in");
            let priority = Priority::new(5).unwrap();
            meeting
                .port
                .reply(received.source, priority, &datagram)
                .unwrap();
            let (received, from) = meeting.socket.recv_from(&mut buffer).unwrap();
            assert_eq!(from, meeting.own().into());
            assert!(buffer[..received] == datagram, "{length} bytes out");
        }
        assert_eq!(meeting.status().send_errors, 0);
    }
}

#[test]
fn a_client_is_told_what_did_not_arrive() {
    let Some((mut meeting, _control)) = Meeting::controlled(XDP, &QueuingOptions::default()) else {
        return;
    };
    let mut closed = meeting.peer();
    closed.set_port(if closed.port() == 9 { 10 } else { 9 });
    let mut buffer = [0; 1484];
    eventually("news of a closed port comes", || {
        meeting
            .port
            .reply(closed, Priority::NORMAL, b"anybody?")
            .unwrap();
        let deadline = tautline::now() + std::time::Duration::from_millis(100);
        match meeting
            .port
            .receive_into(&mut buffer, Wait::Until(deadline))
        {
            Err(ReceiveError::Undelivered(news)) => {
                assert_eq!(
                    (news.destination, news.reason),
                    (closed, Reason::PortUnreachable)
                );
                true
            }
            other => {
                assert_eq!(other, Ok(None));
                false
            }
        }
    });
}

/// Options of a port that takes datagrams of every size.
fn any_size() -> QueuingOptions {
    QueuingOptions {
        depth: 64,
        message_bytes_max: 65_507,
        ..QueuingOptions::default()
    }
}

fn udp_port(node: &Node, number: u16) -> Result<UdpPort, PortError> {
    let options = QueuingOptions {
        depth: 2,
        ..QueuingOptions::default()
    };
    node.udp(number).options(&options).open()
}

/// Answers every datagram until the parent is gone.
fn echo(node: &Node) -> ! {
    let mut port = node.udp(PORT).options(&any_size()).open().unwrap();
    std::thread::spawn(|| {
        child::ready();
        std::process::exit(0);
    });
    let mut buffer = vec![0; 65_536];
    loop {
        let deadline = tautline::now() + PATIENCE;
        let Some(datagram) = port
            .receive_into(&mut buffer, Wait::Until(deadline))
            .unwrap()
        else {
            continue;
        };
        let answer = &buffer[..datagram.length];
        port.reply(datagram.source, Priority::NORMAL, answer)
            .unwrap();
    }
}

/// Whether a program in host A gets back what it sends to the port of host B.
fn answers(hosts: &Hosts, program: &mut Command, text: &str) -> bool {
    let run = || {
        let program = program.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = program.stderr(Stdio::null()).spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        // One that has ended reads nothing.
        let _read = input.write_all(text.as_bytes());
        drop(input);
        child.wait_with_output().unwrap().stdout == text.as_bytes()
    };
    hosts.inside(Host::A, run).unwrap()
}

fn python(hosts: &Hosts) -> Command {
    const PROGRAM: &str = "import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(2)
s.sendto(sys.stdin.buffer.read(), (sys.argv[1], int(sys.argv[2])))
sys.stdout.buffer.write(s.recv(65536))";
    let mut command = Command::new("python3");
    let address = ip(hosts, Host::B).to_string();
    command.args(["-c", PROGRAM, &address, &PORT.to_string()]);
    command
}

fn socat(hosts: &Hosts) -> Command {
    let mut command = Command::new("socat");
    let peer = format!("UDP4:{}:{PORT}", ip(hosts, Host::B));
    command.args(["-t", "2", "-T", "2", "-", &peer]);
    command
}

const RULE: &str = "udp_ports = [5000, \"5005-5009\", 53]\npriorities = [\"0-3\"]";

#[test]
fn an_entry_gives_udp_ports_and_they_outlive_the_control_process() {
    const TEST: &str = "an_entry_gives_udp_ports_and_they_outlive_the_control_process";
    if let Some(role) = child::role() {
        if !served(&role) {
            echo(&client_node(NOBODY).unwrap());
        }
        return;
    }
    let Some(hosts) = hosts() else { return };
    let rules = allow("", RULE);
    let control = start_control(&hosts, TEST, &rules);
    let client = start_client(&hosts, TEST, "client");
    let long = "0123456789".repeat(600);
    let reach = |when: &str| {
        assert!(answers(&hosts, &mut python(&hosts), "short"), "{when}");
        assert!(answers(&hosts, &mut python(&hosts), &long), "long, {when}");
        if Command::new("socat").arg("-V").output().is_ok() {
            assert!(answers(&hosts, &mut socat(&hosts), "socat"), "{when}");
        }
    };
    reach("with its control process");
    assert_eq!(udp_ports_given(&hosts), [u64::from(PORT)]);
    let status = control_status(&hosts);
    assert_eq!(
        status["control"]["rules"][0]["udp_ports"],
        "5000, 5005-5009, 53"
    );
    control.kill();
    reach("without a control process");
    let mut successor = start_control(&hosts, TEST, &rules);
    reach("with another one");
    assert_eq!(udp_ports_given(&hosts), [u64::from(PORT)]);
    client.kill();
    eventually("a dead client's UDP port is free", || {
        udp_ports_given(&hosts).is_empty()
    });
    let _next = start_client(&hosts, TEST, "client");
    reach("after the next one has the port");
    successor.let_go();
}

#[test]
fn what_an_entry_does_not_give_is_refused_with_the_reason() {
    const TEST: &str = "what_an_entry_does_not_give_is_refused_with_the_reason";
    if let Some(role) = child::role() {
        if served(&role) {
            return;
        }
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
        return;
    }
    let Some(hosts) = hosts() else { return };
    let _control = start_control(&hosts, TEST, &allow("", RULE));
    let address = (ip(&hosts, Host::B), 5_006);
    let _taken = hosts.inside(Host::B, || std::net::UdpSocket::bind(address).unwrap());
    let peer = format!("{}:7", ip(&hosts, Host::A));
    hosts.inside(Host::B, || child::run(TEST, &peer)).unwrap();
}
