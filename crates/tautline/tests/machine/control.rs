//! Several processes on one interface through a control process: what a client may have, what it may
//! not, and what is left when any of them dies.

use crate::common::child;
use crate::common::control::{
    NOBODY, STRANGER, allow, answers, attached, client_node, control_status, echo_for_ever,
    eventually, ports_given, program_of_demux, served, start_client, start_control,
};
use crate::common::{Give, XDP, XDP_TC, begin, hosts, is_here, open, port, queuing_with};
use tautline::neighbours::Form;
use tautline::port::Outgoing;
use tautline::{MacAddress, Neighbour, Node, PortError, Priority, SendError};
use tautline_shm::region::Shape;
use tautline_testbed::hosts::Host;

#[test]
fn a_client_needs_no_privilege_and_makes_no_bpf_call() {
    const TEST: &str = "a_client_needs_no_privilege_and_makes_no_bpf_call";
    let client = |role: &str| {
        let node = client_node(NOBODY).unwrap();
        assert_eq!(node.report().control_process, role.parse().ok());
        let mut state = node.sampling(port(61)).open().unwrap();
        let mut buffer = [0; 1484];
        assert_eq!(state.read_into(&mut buffer).unwrap(), None);
        assert_eq!(node.status().ports[0].key, port(61).into());
        echo_for_ever(&node, 60);
    };
    let Some(hosts) = begin(client) else {
        return;
    };
    let control = start_control(&hosts, TEST, &allow("60, \"61-69\"", ""));
    let client = start_client(&hosts, TEST, &control.pid().to_string());
    let node = open(&hosts, Host::A, XDP);
    assert!(answers(&hosts, &node, 60));
    let status = control_status(&hosts);
    let of_client = &status["control"]["clients"][0];
    assert_eq!(of_client["process"], client.pid());
    assert_eq!(ports_given(&hosts), [60, 61]);
    client.kill();
    eventually("a dead client's ports are free", || {
        ports_given(&hosts).is_empty()
    });
}

fn refused(result: Result<impl Sized, PortError>) -> String {
    match result {
        Err(error) => error.to_string(),
        Ok(_) => panic!("the port was opened"),
    }
}

/// Bytes that a port of depth 2 is charged.
fn small_bytes() -> usize {
    Shape::Queuing { depth: 2 }.bytes() + tautline::control::PORT_KERNEL_BYTES as usize
}

/// Memory that the entry gives: two of them, and a bit.
fn memory_bytes_max() -> usize {
    2 * small_bytes() + 1_000
}

#[test]
fn what_a_client_may_not_have_names_rule_and_user() {
    const TEST: &str = "what_a_client_may_not_have_names_rule_and_user";
    let client = |role: &str| {
        if role == "stranger" {
            let error = client_node(STRANGER).unwrap_err().to_string();
            assert!(
                error.ends_with("no [[allow]] entry is for user 65533 or a group of theirs"),
                "{error}"
            );
            return;
        }
        let node = client_node(NOBODY).unwrap();
        let mac = MacAddress([2, 0, 0, 0, 0, 9]);
        let peer = Neighbour {
            name: "peer".to_owned(),
            mac,
            ip: None,
            form: Form::Ethernet,
        };
        node.add_neighbour(peer).unwrap();
        let small = queuing_with(|options| options.depth = 2);
        let error = refused(node.queuing(port(70)).options(&small).open());
        assert!(
            error.starts_with("port 70 is not allowed: user "),
            "{error}"
        );
        assert!(
            error.ends_with("[[allow]] entry 1 (user 65534) gives ports 60-69"),
            "{error}"
        );
        // They fit twice into what the entry gives.
        let mut first = node.queuing(port(60)).options(&small).open().unwrap();
        let second = node.queuing(port(61)).options(&small).open().unwrap();
        let error = refused(node.queuing(port(62)).options(&small).open());
        let (bytes, gives) = (small_bytes(), memory_bytes_max());
        let taken = 2 * bytes;
        let memory = format!(
            "gives {gives} bytes of memory, of which {taken} are taken; the port needs {bytes}; \
             raise its memory_bytes_max"
        );
        assert!(error.ends_with(&memory), "{error}");
        let much = queuing_with(|options| options.depth = 4096);
        let error = refused(node.queuing(port(62)).options(&much).open());
        assert!(error.contains("; the port needs 51"), "{error}");
        drop(second);
        let _third = node.queuing(port(62)).options(&small).open().unwrap();
        let sender = tautline::Source {
            address: tautline::address::Address::Ethernet(mac),
            port: port(2),
        };
        let priority = |number| Priority::new(number).unwrap();
        first.reply(sender, priority(3), b"allowed").unwrap();
        let to = first.destination("peer", port(1)).unwrap();
        first.give(to, priority(3), b"allowed");
        let error = first.send(to, priority(4), b"not allowed").unwrap_err();
        let refused = error;
        assert!(matches!(
            error,
            SendError::PriorityNotAllowed { priority: 4, .. }
        ));
        assert_eq!(
            error.to_string(),
            "priority 4 is not allowed on this port: [[allow]] entry 1 gives priorities 0-3"
        );
        assert_eq!(first.merge(to, priority(4), b"later"), Err(refused));
        let batch = [3, 4].map(|number| Outgoing {
            to,
            priority: priority(number),
            message: b"one of several",
        });
        assert_eq!(first.send_batch(&batch), Ok(1));
        assert_eq!(first.send_batch(&batch[1..]), Err(refused));
    };
    let Some(hosts) = begin(client) else {
        return;
    };
    let rest = format!(
        "priorities = [\"0-3\"]\nmemory_bytes_max = {}",
        memory_bytes_max()
    );
    let _control = start_control(&hosts, TEST, &allow("\"60-69\"", &rest));
    for role in ["stranger", "client"] {
        hosts.inside(Host::B, || child::run(TEST, role)).unwrap();
    }
    eventually("their ports are free", || ports_given(&hosts).is_empty());
}

#[test]
fn open_ports_outlive_the_control_process_and_its_successor_takes_them_over() {
    const TEST: &str = "open_ports_outlive_the_control_process_and_its_successor_takes_them_over";
    let client = |role: &str| {
        let node = client_node(NOBODY).unwrap();
        echo_for_ever(&node, role.parse().unwrap());
    };
    let Some(hosts) = begin(client) else {
        return;
    };
    let node = open(&hosts, Host::A, XDP);
    let client = |number: u16| start_client(&hosts, TEST, &number.to_string());
    let rules = allow("\"60-69\"", "");

    let control = start_control(&hosts, TEST, &rules);
    let (first, second) = (client(60), client(61));
    control.kill();
    assert!(attached(&hosts), "clients hold the demux");
    assert!(answers(&hosts, &node, 60) && answers(&hosts, &node, 61));
    // This one dies without a control process to notice.
    first.kill();
    assert!(answers(&hosts, &node, 61));

    let control = start_control(&hosts, TEST, &rules);
    assert_eq!(ports_given(&hosts), [61], "what is dead is not taken over");
    assert!(answers(&hosts, &node, 61));
    let third = client(60);
    assert!(answers(&hosts, &node, 60) && answers(&hosts, &node, 61));
    // Of a client that the successor did not let in it hears nothing, and notices.
    second.kill();
    eventually("its port is free", || ports_given(&hosts) == [60]);
    let fourth = client(61);
    assert!(answers(&hosts, &node, 61));

    // In the other order, and with no process left nothing is left.
    third.kill();
    fourth.kill();
    assert!(attached(&hosts));
    control.kill();
    eventually("the demux is detached", || !attached(&hosts));
    let control = start_control(&hosts, TEST, &rules);
    let last = client(60);
    control.kill();
    assert!(answers(&hosts, &node, 60));
    last.kill();
    eventually("the demux is detached", || !attached(&hosts));
}

#[test]
fn a_demux_at_traffic_control_outlives_its_control_process_and_is_taken_over() {
    const TEST: &str = "a_demux_at_traffic_control_outlives_its_control_process_and_is_taken_over";
    let client = |role: &str| {
        let node = client_node(NOBODY).unwrap();
        echo_for_ever(&node, role.parse().unwrap());
    };
    if child::role().is_none() && !is_here(XDP_TC) {
        return;
    }
    let Some(hosts) = begin(client) else {
        return;
    };
    let node = open(&hosts, Host::A, XDP);
    let settings = format!("xdp_mode = \"tc\"\n{}", allow("\"60-69\"", ""));
    let control = start_control(&hosts, TEST, &settings);
    let client = start_client(&hosts, TEST, "60");
    assert!(answers(&hosts, &node, 60));
    let program = program_of_demux(&hosts).expect("a demux");
    assert_eq!(program.name_as_str(), Some("tautline_tc"));
    control.kill();
    assert!(answers(&hosts, &node, 60), "the client holds the demux");

    let control = start_control(&hosts, TEST, &settings);
    assert_eq!(ports_given(&hosts), [60]);
    assert!(answers(&hosts, &node, 60));
    client.kill();
    control.kill();
    eventually("nobody has the interface", || {
        let own = crate::common::config(&hosts, Host::B, XDP_TC);
        hosts.inside(Host::B, || Node::open(own)).unwrap().is_ok()
    });
}

#[test]
fn a_user_has_the_ports_of_its_entry_whatever_the_connections() {
    const TEST: &str = "a_user_has_the_ports_of_its_entry_whatever_the_connections";
    let client = |_: &str| {
        let first = client_node(NOBODY).unwrap();
        let second = Node::open(tautline::NodeConfig::on("taut0")).unwrap();
        let options = queuing_with(|options| options.depth = 2);
        let mut open = vec![first.queuing(port(60)).options(&options).open().unwrap()];
        open.push(second.queuing(port(61)).options(&options).open().unwrap());
        for node in [&first, &second] {
            let error = node.queuing(port(62)).options(&options).open().unwrap_err();
            assert!(
                error.to_string().ends_with(
                    "[[allow]] entry 1 (user 65534) gives 2 ports at a time, which are open; raise its ports_max"
                ),
                "{error}"
            );
        }
        drop(open.pop());
        let _room = first.queuing(port(62)).options(&options).open().unwrap();
    };
    let Some(hosts) = begin(client) else {
        return;
    };
    let _control = start_control(&hosts, TEST, &allow("\"60-69\"", "ports_max = 2"));
    hosts.inside(Host::B, || child::run(TEST, "many")).unwrap();
}

#[test]
fn a_second_control_process_is_refused() {
    const TEST: &str = "a_second_control_process_is_refused";
    if let Some(role) = child::role() {
        assert!(served(&role));
        return;
    }
    let Some(hosts) = hosts() else { return };
    let control = start_control(&hosts, TEST, "");
    let second = hosts.inside(Host::B, || {
        tautline::control::Server::open(tautline::config::ServiceConfig::new(
            tautline::NodeConfig::on("taut0"),
        ))
        .unwrap_err()
    });
    let error = second.unwrap().to_string();
    let expected = format!("`taut0` has a control process: process {} (", control.pid());
    assert!(error.starts_with(&expected), "{error}");
    // A process's own demux is nothing that can be taken over.
    control.kill();
    eventually("the demux is detached", || !attached(&hosts));
    let _own = open(&hosts, Host::B, XDP);
    for (replace, why) in [
        (false, "single process's own"),
        (true, "another node has `taut0`"),
    ] {
        let refused = hosts.inside(Host::B, || {
            let node = tautline::NodeConfig::on("taut0");
            let mut config = tautline::config::ServiceConfig::new(node);
            config.replace = replace;
            tautline::control::Server::open(config).unwrap_err()
        });
        let error = refused.unwrap().to_string();
        assert!(error.contains(why), "{error}");
        assert!(attached(&hosts));
    }
}
