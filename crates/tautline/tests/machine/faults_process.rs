//! Processes that take ports, get killed, hang, and look at each other.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;

use crate::common::child::{self, Helper};
use crate::common::stranger;
use crate::common::wire::{Fence, Wire, frame};
use crate::common::{
    Give, PACKET, PATIENCE, Take, UDP, XDP, XDP_TC, config, here, hosts, is_here, open, pair, port,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tautline::link::XdpMode;
use tautline::port::{QueuingOptions, SamplingOptions};
use tautline::{LinkKind, MacAddress, Node, NodeConfig, OpenError, PortError, Priority, status};
use tautline_proto::wire::Header;
use tautline_testbed::hosts::{Host, Hosts};

/// Work of a child on the second host: opens a node with a port of each kind, and stays.
fn hold_ports(role: &str) {
    let mut config = NodeConfig::on("taut0");
    config.link = Some(match role {
        "xdp" | "tc" => LinkKind::Xdp,
        "packet" => LinkKind::Packet,
        _ => LinkKind::Udp,
    });
    config.xdp_mode = match role {
        "xdp" => Some(XdpMode::Native),
        "tc" => Some(XdpMode::Tc),
        _ => None,
    };
    let node = Node::open(config).unwrap();
    let first = if role == "other ports" { 62 } else { 60 };
    let options = QueuingOptions::default();
    let _queue = node.queuing(port(first)).options(&options).open().unwrap();
    let options = SamplingOptions::default();
    let _sample = node
        .sampling(port(first + 1))
        .options(&options)
        .open()
        .unwrap();
    child::ready();
}

fn start(hosts: &Hosts, test: &str, role: &str) -> Helper {
    // The child is in the namespace of the thread that starts it.
    hosts.inside(Host::B, || Helper::start(test, role)).unwrap()
}

fn open_60(hosts: &Hosts, node: &Node) -> Result<(), PortError> {
    let open = || node.queuing(port(60)).open();
    hosts.inside(Host::B, open).unwrap().map(drop)
}

#[test]
fn a_taken_port_names_its_holder_and_is_free_when_that_is_killed() {
    const TEST: &str = "a_taken_port_names_its_holder_and_is_free_when_that_is_killed";
    if let Some(role) = child::role() {
        return hold_ports(&role);
    }
    let Some(hosts) = hosts() else { return };
    for (role, side) in [
        ("xdp", PACKET),
        ("packet", XDP),
        ("packet", PACKET),
        ("udp", UDP),
    ] {
        let holder = start(&hosts, TEST, role);
        let node = open(&hosts, Host::B, side);
        let refused = open_60(&hosts, &node).unwrap_err();
        let PortError::Taken { key, holder: found } = &refused else {
            panic!("{refused}");
        };
        assert_eq!(*key, port(60).into());
        let pid = holder.pid();
        assert_eq!(found.as_ref().map(|holder| holder.pid), Some(pid as i32));
        assert!(refused.to_string().contains(&format!("process {pid}")));
        assert!(
            node.status().ports.is_empty(),
            "nothing is left of the attempt"
        );
        holder.kill();
        open_60(&hosts, &node).unwrap();
    }
}

fn xdp_program(hosts: &Hosts) -> Option<serde_json::Value> {
    let mut command = hosts.command(Host::B, "ip");
    let output = command
        .args(["-j", "link", "show", "taut0"])
        .output()
        .unwrap();
    let links: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    links[0].get("xdp").cloned()
}

fn tcp_flows(hosts: &Hosts) {
    let bind = || TcpListener::bind((hosts.end(Host::B, 0).address(), 0)).unwrap();
    let listener = hosts.inside(Host::B, bind).unwrap();
    let to = listener.local_addr().unwrap();
    let mut here = hosts
        .inside(Host::A, || TcpStream::connect(to).unwrap())
        .unwrap();
    let (mut there, _) = listener.accept().unwrap();
    let sent: Vec<u8> = (0..100_000u32).map(|place| (place / 7) as u8).collect();
    let writer = std::thread::spawn({
        let sent = sent.clone();
        move || here.write_all(&sent).unwrap()
    });
    let mut received = Vec::new();
    there.set_read_timeout(Some(PATIENCE)).unwrap();
    there.read_to_end(&mut received).unwrap();
    writer.join().unwrap();
    assert!(sent == received);
}

#[test]
fn a_killed_node_leaves_nothing_behind() {
    const TEST: &str = "a_killed_node_leaves_nothing_behind";
    if let Some(role) = child::role() {
        return hold_ports(&role);
    }
    let Some(hosts) = hosts() else { return };
    for round in 0..20 {
        // It opens natively, or says why not.
        let node = start(&hosts, TEST, "xdp");
        assert!(xdp_program(&hosts).is_some(), "round {round}");
        node.kill();
        assert_eq!(xdp_program(&hosts), None, "round {round}");
        tcp_flows(&hosts);
    }
    if is_here(XDP_TC) {
        // A demux at traffic control is one of a kind on its interface, until its process is killed.
        let node = start(&hosts, TEST, "tc");
        let second = config(&hosts, Host::B, XDP_TC);
        let refused = hosts.inside(Host::B, || Node::open(second)).unwrap();
        let holder = format!("process {}", node.pid());
        assert!(refused.unwrap_err().to_string().contains(&holder));
        node.kill();
        drop(open(&hosts, Host::B, XDP_TC));
        tcp_flows(&hosts);
    }
    // In this process too, at once, with the port that was the killed node's.
    let node = open(&hosts, Host::B, XDP);
    assert!(node.report().not_better.is_empty());
    open_60(&hosts, &node).unwrap();
}

/// The nodes that a process in the second host sees, by process id.
fn seen(hosts: &Hosts) -> (Vec<u64>, Vec<String>) {
    let (states, silent) = hosts.inside(Host::B, || status::nodes().unwrap()).unwrap();
    let pid = |state: &serde_json::Value| state["process"].as_u64().unwrap();
    (states.iter().map(pid).collect(), silent)
}

#[test]
fn nodes_of_other_processes_are_listed_while_they_live() {
    const TEST: &str = "nodes_of_other_processes_are_listed_while_they_live";
    if let Some(role) = child::role() {
        return hold_ports(&role);
    }
    let Some(hosts) = hosts() else { return };
    assert_eq!(seen(&hosts), (vec![], vec![]));
    let first = start(&hosts, TEST, "xdp");
    let second = start(&hosts, TEST, "other ports");
    let (mut pids, silent) = seen(&hosts);
    pids.sort_unstable();
    let mut both = [u64::from(first.pid()), u64::from(second.pid())];
    both.sort_unstable();
    assert_eq!((&pids[..], silent), (&both[..], vec![]));
    let (states, _) = hosts.inside(Host::B, || status::nodes().unwrap()).unwrap();
    let state = states.iter().find(|state| state["link"] == "xdp").unwrap();
    assert_eq!(state["ports"][0]["key"], "60");
    assert_eq!(state["interface"], "taut0");
    first.kill();
    let left = u64::from(second.pid());
    assert_eq!(seen(&hosts), (vec![left], vec![]));
    second.kill();
    assert_eq!(seen(&hosts), (vec![], vec![]));
}

#[test]
fn askers_that_hang_block_nobody() {
    let Some(pair) = pair(XDP, XDP) else { return };
    let hosts = pair.hosts.as_ref().unwrap();
    let (mut sender, mut receiver, to) = pair.ports(&QueuingOptions::default());
    let connect = || {
        let address = stranger::node_socket(std::process::id());
        // They ask and never read.
        [(); 20].map(|()| stranger::hang(&address))
    };
    let _hanging = hosts.inside(Host::B, connect).unwrap();
    let mut buffer = [0; 1484];
    for number in 0..20u8 {
        sender.give(to, Priority::NORMAL, &[number]);
        let message = receiver.take_into(&mut buffer);
        assert_eq!((message.length, buffer[0]), (1, number));
    }
    let own = u64::from(std::process::id());
    assert_eq!(seen(hosts), (vec![own], vec![]));
}

#[test]
fn a_port_of_one_process_is_not_opened_twice_on_any_link() {
    let Some(hosts) = hosts() else { return };
    for side in [XDP, PACKET, UDP] {
        let node = open(&hosts, Host::B, side);
        let open = || node.queuing(port(60)).open().unwrap();
        let held = hosts.inside(Host::B, open).unwrap();
        let again = open_60(&hosts, &node).unwrap_err();
        assert!(matches!(again, PortError::OpenHere { .. }), "{again}");
        drop(held);
        open_60(&hosts, &node).unwrap();
        // From elsewhere it would get sockets of another network, and another node is as foreign as another process.
        let elsewhere = || node.queuing(port(60)).open();
        let refused = hosts.inside(Host::A, elsewhere).unwrap().unwrap_err();
        assert!(matches!(refused, PortError::OtherNamespace), "{refused}");
    }
    let nodes = [XDP, PACKET].map(|side| open(&hosts, Host::B, side));
    let _held = hosts.inside(Host::B, || nodes[0].queuing(port(60)).open().unwrap());
    let refused = open_60(&hosts, &nodes[1]).unwrap_err().to_string();
    let own = format!("process {}", std::process::id());
    assert!(refused.contains(&own), "{refused}");
}

/// A port that could not be opened has no effect: the demux leaves its frames to Linux.
#[test]
fn a_port_that_fails_to_open_takes_no_frames() {
    let test = "a_port_that_fails_to_open_takes_no_frames";
    if child::role().is_none() {
        if hosts().is_some() {
            child::run(test, "one with few descriptors");
        }
        return;
    }
    for side in here([XDP, XDP_TC]) {
        let hosts = hosts().unwrap();
        let node = open(&hosts, Host::B, side);
        let wire = Wire::on(&hosts, Host::A);
        let mac = node.report().mac.as_deref().unwrap().parse().unwrap();
        let header = Header::whole(port(12), port(5), Priority::NORMAL, 0, 0);
        let lost = frame(mac, MacAddress([2, 0, 0, 0, 0, 9]), &header, &[]);
        let failures = hosts.inside(Host::B, || {
            let mut fence = Fence::open(&node);
            let usual = getrlimit(Resource::Nofile);
            let open = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64;
            for failures in 0..100 {
                let few = Rlimit {
                    current: Some(open + failures),
                    ..usual
                };
                setrlimit(Resource::Nofile, few).unwrap();
                let opened = node.queuing(port(12)).open();
                setrlimit(Resource::Nofile, usual).unwrap();
                if opened.is_ok() {
                    return failures;
                }
                let before = node.status().counters.no_port;
                assert!(wire.send(&lost));
                fence.pass(&wire);
                let passed = node.status().counters.no_port - before;
                assert_eq!(passed, 1, "with {failures} more: {opened:?}");
            }
            panic!("a port takes more than 100 descriptors");
        });
        assert!(failures.unwrap() > 3);
    }
}

/// The demux stamps arrivals with the kernel's own clock: by that of the namespace, values would never grow old.
#[test]
fn a_node_in_a_time_namespace_takes_a_link_whose_stamps_are_right() {
    const TEST: &str = "a_node_in_a_time_namespace_takes_a_link_whose_stamps_are_right";
    if child::role().is_some() {
        for link in [LinkKind::Xdp, LinkKind::Xsk] {
            let refused = Node::open(NodeConfig::on("taut0").with_link(link)).unwrap_err();
            assert!(
                matches!(refused, OpenError::TimeNamespace { .. }),
                "{refused}"
            );
            assert!(refused.remedy().contains("link = \"packet\""));
        }
        let node = Node::open(NodeConfig::on("taut0")).unwrap();
        assert_eq!(node.report().link, LinkKind::Packet);
        return;
    }
    let Some(hosts) = hosts() else { return };
    let unshare = |program: &OsStr| {
        let mut command = Command::new("unshare");
        command
            .args(["--time", "--fork", "--monotonic", "-600"])
            .arg(program);
        command
    };
    let output = unshare("true".as_ref()).output().unwrap();
    if !output.status.success() {
        println!("SKIPPED: this kernel has no time namespaces");
        return;
    }
    let child = child::again(TEST, "shifted");
    let mut shifted = unshare(child.get_program());
    shifted.args(child.get_args());
    for (name, value) in child.get_envs() {
        shifted.env(name, value.unwrap());
    }
    let output = hosts.inside(Host::B, || shifted.output().unwrap()).unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("1 passed"), "{said}");
}
