//! Quotas of the users of a control process: each is reached by a process of another user, the refusal names it and
//! says how to raise it, and others are served meanwhile.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;

use crate::common::child;
use crate::common::control::{NOBODY, allow, client_node, served, start_client, start_control};
use crate::common::stranger::{connect, control_socket, hello, send};
use crate::common::unprivileged::become_user;
use crate::common::{hosts, port};
use rustix::net::RecvFlags;
use tautline::{LinkKind, Node, NodeConfig, QueuingOptions};
use tautline_testbed::hosts::{Host, Hosts};

/// Users with an entry each, beside [`NOBODY`]; the first of them.
const CROWD: u32 = 61_000;

fn entry(user: u32, rest: &str) -> String {
    format!("[[allow]]\nuser = \"{user}\"\nports = [\"70-79\"]\n{rest}\n")
}

/// Connects as often as it may, and keeps the connections; why not more often.
fn connect_until_refused(tries: usize) -> (Vec<OwnedFd>, Option<String>) {
    let socket = control_socket("taut0");
    let mut kept = Vec::new();
    for _ in 0..tries {
        let connection = connect(&socket);
        let _reset_if_refused = send(&connection, &hello(), &[]);
        let mut reply = [0; 400];
        let bytes = match rustix::net::recv(&connection, &mut reply[..], RecvFlags::empty()) {
            Ok((_, bytes)) => bytes,
            Err(error) => return (kept, Some(error.to_string())),
        };
        let text = String::from_utf8_lossy(&reply[..bytes]).into_owned();
        if text.contains("connections") {
            return (kept, Some(text));
        }
        kept.push(connection);
    }
    (kept, None)
}

/// Opens and closes a port as root, in the second host.
fn root_is_served(hosts: &Hosts) {
    let open = || {
        let node = Node::open(NodeConfig::on("taut0").with_link(LinkKind::Xdp)).unwrap();
        let options = QueuingOptions::default();
        drop(node.queuing_port(port(90), &options).unwrap());
    };
    hosts.inside(Host::B, open).unwrap();
}

#[test]
fn a_user_has_the_connections_of_its_entry() {
    const TEST: &str = "a_user_has_the_connections_of_its_entry";
    if let Some(role) = child::role() {
        if served(&role) {
            return;
        }
        become_user(NOBODY);
        let (kept, why) = connect_until_refused(9);
        let why = why.expect("it is refused none");
        assert_eq!(kept.len(), 5, "{why}");
        assert!(
            why.contains("has 5 connections, as many as [[allow]] entry 1 (user 65534) gives; raise its connections_max"),
            "{why}"
        );
        // One that is gone makes room.
        drop(kept);
        let again = (0..100).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(20));
            connect_until_refused(1).1.is_none()
        });
        assert!(again, "none of them was given back");
        return;
    }
    let Some(hosts) = hosts() else { return };
    let _control = start_control(&hosts, TEST, &allow("60", "connections_max = 5"));
    hosts.inside(Host::B, || child::run(TEST, "many")).unwrap();
    root_is_served(&hosts);
}

#[test]
fn numbers_that_a_user_keeps_of_closed_ports_count() {
    const TEST: &str = "numbers_that_a_user_keeps_of_closed_ports_count";
    if let Some(role) = child::role() {
        if served(&role) {
            return;
        }
        let node = client_node(NOBODY).unwrap();
        let open = |number| node.queuing_port(port(number), &QueuingOptions::default());
        // As often as it likes, if it gives them back.
        for number in 70..79 {
            drop(open(number).unwrap());
        }
        let kept: Vec<OwnedFd> = (70..72)
            .flat_map(|number| {
                let opened = open(number).unwrap();
                let copies = copies_of_files();
                drop(opened);
                copies
            })
            .collect();
        assert!(open(70).is_err(), "it holds this number itself");
        let refused = open(79).unwrap_err().to_string();
        assert!(refused.contains("ports_max"), "{refused}");
        drop(kept);
        drop(open(79).unwrap());
        return;
    }
    let Some(hosts) = hosts() else { return };
    let _control = start_control(&hosts, TEST, &entry(NOBODY, "ports_max = 2"));
    hosts.inside(Host::B, || child::run(TEST, "keeps")).unwrap();
    root_is_served(&hosts);
}

/// Copies of this process's descriptors of regular files, those of its claims among them.
#[allow(unsafe_code)] // They are borrowed by number: the library does not give them away.
fn copies_of_files() -> Vec<OwnedFd> {
    let numbers = std::fs::read_dir("/proc/self/fd").unwrap();
    let paths = numbers.map(|entry| entry.unwrap().path());
    let is_file = |path: &PathBuf| std::fs::metadata(path).is_ok_and(|found| found.is_file());
    let files: Vec<PathBuf> = paths.filter(is_file).collect();
    assert!(!files.is_empty());
    let number = |path: &PathBuf| path.file_name()?.to_str()?.parse().ok();
    let numbers = files.iter().filter_map(number);
    // SAFETY: they are open, and stay so for this call.
    let held = numbers.map(|number| unsafe { BorrowedFd::borrow_raw(number) });
    held.map(|one| one.try_clone_to_owned().unwrap()).collect()
}

#[test]
fn users_who_fill_the_table_keep_no_entry_out() {
    const TEST: &str = "users_who_fill_the_table_keep_no_entry_out";
    const USERS: u32 = 16;
    if let Some(role) = child::role() {
        if served(&role) {
            return;
        }
        if role == "late" {
            let node = client_node(NOBODY).unwrap();
            let options = QueuingOptions::default();
            drop(node.queuing_port(port(60), &options).unwrap());
            return;
        }
        become_user(role.parse().unwrap());
        let (kept, why) = connect_until_refused(200);
        println!("kept {}", kept.len());
        let why = why.expect("it is refused none");
        assert!(why.contains("connections_max"), "{why}");
        return child::ready();
    }
    let Some(hosts) = hosts() else { return };
    let crowd: String = (0..USERS).map(|user| entry(CROWD + user, "")).collect();
    let _control = start_control(&hosts, TEST, &(crowd + &allow("60", "")));
    let _crowd: Vec<_> = (0..USERS)
        .map(|user| start_client(&hosts, TEST, &(CROWD + user).to_string()))
        .collect();
    hosts.inside(Host::B, || child::run(TEST, "late")).unwrap();
    root_is_served(&hosts);
}

#[test]
fn a_user_has_the_ports_of_its_entry_whatever_the_connections() {
    const TEST: &str = "a_user_has_the_ports_of_its_entry_whatever_the_connections";
    if let Some(role) = child::role() {
        if served(&role) {
            return;
        }
        let first = client_node(NOBODY).unwrap();
        let second = Node::open(NodeConfig::on("taut0").with_link(LinkKind::Xdp)).unwrap();
        let options = QueuingOptions {
            depth: 2,
            ..QueuingOptions::default()
        };
        let mut open = vec![first.queuing_port(port(60), &options).unwrap()];
        open.push(second.queuing_port(port(61), &options).unwrap());
        for node in [&first, &second] {
            let error = node.queuing_port(port(62), &options).unwrap_err();
            assert!(
                error.to_string().ends_with(
                    "[[allow]] entry 1 (user 65534) gives 2 ports at a time, which are open; raise its ports_max"
                ),
                "{error}"
            );
        }
        drop(open.pop());
        let _room = first.queuing_port(port(62), &options).unwrap();
        return;
    }
    let Some(hosts) = hosts() else { return };
    let _control = start_control(&hosts, TEST, &allow("\"60-69\"", "ports_max = 2"));
    hosts.inside(Host::B, || child::run(TEST, "many")).unwrap();
    root_is_served(&hosts);
}
