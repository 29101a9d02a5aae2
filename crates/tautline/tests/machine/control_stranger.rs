//! Attacks of another user on a control process: each is refused, and root and whom an entry names are served
//! meanwhile.

use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};

use crate::common::child;
use crate::common::control::{NOBODY, STRANGER, allow, start_client, start_control};
use crate::common::unprivileged::become_user;
use crate::common::{begin, hosts, port, stranger};
use tautline::config::ServiceConfig;
use tautline::control::Server;
use tautline::{Node, NodeConfig, OpenError};
use tautline_testbed::hosts::{Host, Hosts};
use tautline_testbed::lingering;
use tautline_testbed::sys::{fork, signal_process, wait_for};

/// Opens and closes a port as root, in the second host.
fn root_is_served(hosts: &Hosts) {
    let open = || {
        let node = Node::open(NodeConfig::on("taut0").with_link(tautline::LinkKind::Xdp)).unwrap();
        drop(node.queuing(port(90)).open().unwrap());
    };
    hosts.inside(Host::B, open).unwrap();
}

#[test]
fn a_descriptor_that_blocks_on_close_stops_nobody() {
    const TEST: &str = "a_descriptor_that_blocks_on_close_stops_nobody";
    let client = |_: &str| {
        let status = stranger::status_socket("taut0");
        become_user(STRANGER);
        let mut kept = Vec::new();
        for _ in 0..20 {
            let (stream, other) = lingering();
            kept.push(other);
            let control = stranger::connect(&stranger::control_socket("taut0"));
            let taken = stranger::send(&control, &stranger::hello(), &[stream.as_fd()])
                // Refused by its permissions, or by the kernel.
                | stranger::ask_status(&status, &[stream.as_fd()]);
            drop(control);
            if !taken {
                // This process is not to close it last either.
                std::mem::forget(stream);
            }
        }
        child::ready();
    };
    let Some(hosts) = begin(client) else {
        return;
    };
    hosts
        .run(Host::B, "ip", &["link", "set", "lo", "up"])
        .unwrap();
    let _control = start_control(&hosts, TEST, &allow("60", ""));
    let _stranger = start_client(&hosts, TEST, "stranger");
    root_is_served(&hosts);
}

#[test]
fn users_without_an_entry_lock_nobody_out() {
    const TEST: &str = "users_without_an_entry_lock_nobody_out";
    let client = |role: &str| {
        become_user(role.parse().unwrap());
        let socket = stranger::control_socket("taut0");
        let _held: Vec<OwnedFd> = (0..200).map(|_| stranger::connect(&socket)).collect();
        child::ready();
    };
    let Some(hosts) = begin(client) else {
        return;
    };
    let _control = start_control(&hosts, TEST, &allow("60", ""));
    let strangers = (0..5).map(|index| (STRANGER - 10 - index).to_string());
    let _strangers: Vec<_> = strangers
        .map(|user| start_client(&hosts, TEST, &user))
        .collect();
    root_is_served(&hosts);
}

/// CPU time that a process has taken, in ticks of 10 ms.
fn cpu_ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap()
        .split_whitespace()
        .collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

#[test]
fn without_descriptors_a_control_process_waits_and_does_not_spin() {
    const TEST: &str = "without_descriptors_a_control_process_waits_and_does_not_spin";
    let client = |_: &str| {
        become_user(NOBODY);
        let socket = stranger::control_socket("taut0");
        let _held: Vec<OwnedFd> = (0..40).map(|_| stranger::connect(&socket)).collect();
        child::ready();
    };
    let Some(hosts) = begin(client) else {
        return;
    };
    let control = start_control(&hosts, TEST, &allow("60", ""));
    let descriptors = || {
        let listed = std::fs::read_dir(format!("/proc/{}/fd", control.pid()));
        listed.unwrap().count()
    };
    let limit = descriptors() + 4;
    stranger::limit_descriptors(control.pid(), limit as u64);
    let crowd = start_client(&hosts, TEST, "crowd");
    let started = Instant::now();
    while descriptors() < limit {
        assert!(
            started.elapsed().as_secs() < 10,
            "{} of {limit} are open",
            descriptors()
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    let (before, started) = (cpu_ticks(control.pid()), Instant::now());
    std::thread::sleep(Duration::from_secs(1));
    let (ticks, elapsed) = (cpu_ticks(control.pid()) - before, started.elapsed());
    // It would take all of it.
    assert!(
        ticks * 2 < elapsed.as_millis() as u64 / 10,
        "{ticks} ticks of {elapsed:?}"
    );
    drop(crowd);
    stranger::limit_descriptors(control.pid(), 1024);
    root_is_served(&hosts);
}

/// Starts a control process, and says what came of it; it serves until it is killed.
fn fork_control() -> (u32, String) {
    let (mut said, says) = UnixStream::pair().unwrap();
    let serve = || match Server::open(ServiceConfig::new(NodeConfig::on("taut0"))) {
        Ok(mut server) => {
            (&says).write_all(b"open\n").unwrap();
            server.run(&says).unwrap();
        }
        Err(error) => (&says).write_all(error.to_string().as_bytes()).unwrap(),
    };
    let child = fork(serve).unwrap();
    let mut line = [0; 400];
    let length = said.read(&mut line).unwrap();
    std::mem::forget(said);
    (child, String::from_utf8_lossy(&line[..length]).into_owned())
}

#[test]
fn a_control_process_starts_within_moments_of_a_kill() {
    const TEST: &str = "a_control_process_starts_within_moments_of_a_kill";
    if child::role().is_some() {
        let mut killed = Vec::new();
        for round in 0..40 {
            let (child, said) = fork_control();
            assert_eq!(said, "open\n", "round {round}");
            // It is not waited for: the successor begins while it is being taken down.
            signal_process(child, rustix::process::Signal::KILL);
            killed.push(child);
        }
        killed.into_iter().for_each(wait_for);
        return;
    }
    let Some(hosts) = hosts() else { return };
    hosts
        .inside(Host::B, || child::run(TEST, "restarts"))
        .unwrap();
}

#[test]
fn a_client_that_holds_the_demux_unseen_keeps_root_from_nothing() {
    const TEST: &str = "a_client_that_holds_the_demux_unseen_keeps_root_from_nothing";
    let client = |_: &str| {
        become_user(NOBODY);
        let control = stranger::connect(&stranger::control_socket("taut0"));
        assert!(stranger::send(&control, &stranger::hello(), &[]));
        // The answer has what keeps the demux attached. Unread, no process has it by a number.
        let mut seen = [PollFd::new(&control, PollFlags::IN)];
        assert_eq!(poll(&mut seen, None).unwrap(), 1);
        child::ready();
    };
    let Some(hosts) = begin(client) else {
        return;
    };
    let control = start_control(&hosts, TEST, &allow("60", ""));
    let _parks = start_client(&hosts, TEST, "parks");
    control.kill();
    let serve = |replace| {
        let mut config = ServiceConfig::new(NodeConfig::on("taut0"));
        (config.node.ethertype, config.replace) = (0x88b6, replace);
        hosts.inside(Host::B, || Server::open(config)).unwrap()
    };
    let refused = serve(false).unwrap_err();
    let OpenError::OtherDemux { holders, .. } = &refused else {
        panic!("{refused}");
    };
    assert!(holders.is_empty(), "{refused}");
    assert!(
        refused.remedy().contains("--replace"),
        "{}",
        refused.remedy()
    );
    let server = serve(true).unwrap();
    let replaced = server.replaced().unwrap().to_string();
    assert!(replaced.contains("another EtherType"), "{replaced}");
    drop(server);
    // The new demux is its own, and what was parked has no effect any more.
    let server = serve(true).unwrap();
    assert!(server.replaced().is_none());
}

#[test]
fn names_taken_by_a_stranger_hinder_nobody() {
    const TEST: &str = "names_taken_by_a_stranger_hinder_nobody";
    let client = |_: &str| {
        become_user(STRANGER);
        // The abstract names of former versions, and those below root's directory.
        let index = nix::net::if_::if_nametoindex("taut0").unwrap();
        let mut names = vec![format!("tautline/control/{index}")];
        names.extend((1..100).map(|port| format!("tautline/port/{index}/88b5/{port}")));
        names
            .extend((0..2000).map(|next| format!("tautline/node/{}/0", std::process::id() + next)));
        let taken = names.iter().map(|name| {
            let address = SocketAddr::from_abstract_name(name).unwrap();
            UnixListener::bind_addr(&address).unwrap()
        });
        let _taken: Vec<_> = taken.collect();
        let directory = stranger::directory();
        for path in ["/run/tautline", &directory, &format!("{directory}/control")] {
            let made = UnixListener::bind(format!("{path}/taut-stranger"));
            assert!(made.is_err(), "{path}");
        }
        child::ready();
    };
    let Some(hosts) = begin(client) else {
        return;
    };
    let _stranger = start_client(&hosts, TEST, "stranger");
    let control = start_control(&hosts, TEST, &allow("60", ""));
    root_is_served(&hosts);
    let own = hosts.inside(Host::B, || {
        let node =
            Node::open(NodeConfig::on("taut0").with_link(tautline::LinkKind::Packet)).unwrap();
        assert_eq!(node.report().limits, [""; 0]);
        drop(node.queuing(port(91)).open().unwrap());
        tautline::status::nodes().unwrap()
    });
    let (states, silent) = own.unwrap();
    let mut pids: Vec<_> = states
        .iter()
        .filter_map(|state| state["process"].as_u64())
        .collect();
    pids.sort_unstable();
    let mut both = [u64::from(control.pid()), u64::from(std::process::id())];
    both.sort_unstable();
    assert_eq!((&pids[..], silent), (&both[..], vec![]));
}

#[test]
fn a_refused_client_fails_and_an_interface_that_is_held_names_its_node() {
    const TEST: &str = "a_refused_client_fails_and_an_interface_that_is_held_names_its_node";
    let client = |_: &str| {
        become_user(STRANGER);
        let error = Node::open(NodeConfig::on("taut0")).unwrap_err();
        assert!(matches!(error, OpenError::ControlRefused { .. }), "{error}");
        // Asked for by name.
        let node = Node::open(NodeConfig::on("taut0").with_link(tautline::LinkKind::Udp)).unwrap();
        let report = node.report().to_string();
        assert!(
            report.contains("`taut status` does not list this node: there is no runtime directory"),
            "{report}"
        );
    };
    let Some(hosts) = begin(client) else {
        return;
    };
    let control = start_control(&hosts, TEST, &allow("60", ""));
    hosts
        .inside(Host::B, || child::run(TEST, "stranger"))
        .unwrap();
    control.kill();
    let xdp = NodeConfig::on("taut0").with_link(tautline::LinkKind::Xdp);
    let open = || Node::open(xdp.clone());
    // The one that was killed may be on its way out.
    let mut node = hosts.inside(Host::B, open).unwrap();
    let started = Instant::now();
    while node.is_err() && started.elapsed() < crate::common::PATIENCE {
        node = hosts.inside(Host::B, open).unwrap();
    }
    let _node = node.unwrap();
    let error = hosts.inside(Host::B, open).unwrap().unwrap_err();
    let expected = format!("another node has `taut0`: process {} (", std::process::id());
    assert!(error.to_string().starts_with(&expected), "{error}");
    assert!(error.remedy().contains("taut node run"));
}
