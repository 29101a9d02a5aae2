//! A control process that runs as another user than root, as the systemd unit has it: clients of all users believe it,
//! root's programs and it keep each other from port numbers, and none believes a directory that root has not made.

use std::fs::Permissions;
use std::os::fd::AsFd;
use std::os::unix::fs::{PermissionsExt, chown, symlink};

use crate::common::child;
use crate::common::control::{
    NOBODY, STRANGER, allow, answers, attached, client_node, control_status, echo_for_ever,
    eventually, ports_given, served, start_client, udp_ports_given,
};
use crate::common::service::{
    SERVICE, become_service, pin_again, role_of_service, start_as_service, start_service,
    with_runtime_of_its_own,
};
use crate::common::{PACKET, XDP, hosts, open, port, stranger};
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketType};
use tautline::config::ServiceConfig;
use tautline::control::{Server, look};
use tautline::{LinkKind, Node, NodeConfig, OpenError, PortError, QueuingPort, Typed};
use tautline_testbed::hosts::{Host, Hosts};

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Typed)]
#[repr(C)]
struct Angle {
    radians: f64,
}

/// If this process is a child: does its work, and says so.
fn was_child() -> bool {
    if let Some(role) = role_of_service() {
        become_service();
        assert!(served(&role) || lies(&role));
        return true;
    }
    let number = |role: &str, kind: &str| role.strip_prefix(kind)?.parse::<u16>().ok();
    let Some(role) = child::role() else {
        return false;
    };
    if let Some(number) = number(&role, "echo ") {
        echo_for_ever(&client_node(NOBODY).unwrap(), number);
        return true;
    }
    if let Some(number) = number(&role, "udp ") {
        let node = client_node(NOBODY).unwrap();
        let _port = node.udp(number).open().unwrap();
        child::ready();
        return true;
    }
    if role == "stranger" {
        let error = client_node(STRANGER).unwrap_err().to_string();
        assert!(error.contains("no [[allow]] entry is for"), "{error}");
        child::ready();
        return true;
    }
    false
}

/// A client of root's, in this process.
fn root_node(hosts: &Hosts) -> Result<Node, OpenError> {
    let config = NodeConfig::on("taut0").with_link(LinkKind::Xdp);
    hosts.inside(Host::B, || Node::open(config)).unwrap()
}

fn open_port(hosts: &Hosts, node: &Node, number: u16) -> Result<QueuingPort, PortError> {
    let open = || node.queuing(port(number)).open();
    hosts.inside(Host::B, open).unwrap()
}

/// Names of links. The kernel puts files of its own into a file system that is mounted.
fn pins() -> usize {
    let entries = std::fs::read_dir("/run/tautline/service/bpf").unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name());
    names
        .filter(|name| name.to_string_lossy().starts_with("kept-"))
        .count()
}

#[test]
fn clients_of_all_users_are_served_and_outlive_it() {
    const TEST: &str = "clients_of_all_users_are_served_and_outlive_it";
    if was_child() || !with_runtime_of_its_own(TEST) {
        return;
    }
    let Some(hosts) = hosts() else { return };
    let rules = allow("\"60-69\"", "udp_ports = [53]");
    let control = start_service(&hosts, TEST, &rules);
    let status = std::fs::read_to_string(format!("/proc/{}/status", control.pid())).unwrap();
    let expected = format!("Uid:\t{SERVICE}\t{SERVICE}\t{SERVICE}\t{SERVICE}\n");
    assert!(status.contains(&expected), "{status}");

    let echo = start_client(&hosts, TEST, "echo 60");
    let udp = start_client(&hosts, TEST, "udp 53");
    drop(start_client(&hosts, TEST, "stranger"));
    let root = root_node(&hosts).unwrap();
    assert_eq!(root.report().control_process, Some(control.pid() as i32));
    let of_root = open_port(&hosts, &root, 61).unwrap();
    let node = open(&hosts, Host::A, XDP);
    assert!(answers(&hosts, &node, 60));
    assert_eq!(ports_given(&hosts), [60, 61]);
    assert_eq!(udp_ports_given(&hosts), [53]);
    assert_eq!(pins(), 0, "what keeps the demux has no name");

    control.kill();
    assert!(answers(&hosts, &node, 60), "without a control process");
    let control = start_service(&hosts, TEST, &rules);
    assert!(answers(&hosts, &node, 60), "with a successor");
    assert_eq!(ports_given(&hosts), [60, 61]);
    assert_eq!(udp_ports_given(&hosts), [53]);
    // The successor finds out that a client of its predecessor has died.
    udp.kill();
    eventually("its UDP port is free", || {
        udp_ports_given(&hosts).is_empty()
    });
    control.kill();
    drop((of_root, root));
    assert!(attached(&hosts), "the last client holds it");
    assert!(answers(&hosts, &node, 60));
    echo.kill();
    eventually("the demux is detached", || !attached(&hosts));
    assert_eq!(pins(), 0);
}

#[test]
fn a_pin_that_a_killed_process_left_is_removed() {
    const TEST: &str = "a_pin_that_a_killed_process_left_is_removed";
    if was_child() || !with_runtime_of_its_own(TEST) {
        return;
    }
    let Some(hosts) = hosts() else { return };
    let control = start_service(&hosts, TEST, "");
    // As if it had been killed between two calls, which leaves the link under this name.
    let keeper = (0..64).find_map(|number| {
        let place = format!("/proc/{}/fd/{number}", control.pid());
        let leads_to = std::fs::read_link(&place).ok()?;
        let name = leads_to.file_name()?.to_str()?;
        let name = name.strip_suffix(" (deleted)")?;
        Some((name.to_owned(), place))
    });
    let (name, place) = keeper.unwrap();
    assert!(name.starts_with("kept-net-"), "{name}");
    let pin = format!("/run/tautline/service/bpf/{name}");
    pin_again(&place, &pin);
    assert_eq!(pins(), 1);
    control.kill();
    assert!(attached(&hosts));
    let control = start_service(&hosts, TEST, "");
    assert_eq!(pins(), 0);
    control.kill();
    eventually("the demux is detached", || !attached(&hosts));
}

#[test]
fn its_claims_and_those_of_root_exclude_each_other() {
    const TEST: &str = "its_claims_and_those_of_root_exclude_each_other";
    if was_child() || !with_runtime_of_its_own(TEST) {
        return;
    }
    let Some(hosts) = hosts() else { return };
    // A node of root's on another link, with nothing to do with the control process, and before that begins.
    let beside = open(&hosts, Host::B, PACKET);
    let of_root = open_port(&hosts, &beside, 7).unwrap();
    let _control = start_service(&hosts, TEST, &allow("7", ""));
    let client = root_node(&hosts).unwrap();
    let is_taken = |node: &Node| {
        let error = open_port(&hosts, node, 7).map(drop).unwrap_err();
        assert!(error.to_string().starts_with("port 7 is taken"), "{error}");
    };
    is_taken(&client);
    drop(of_root);
    let of_client = open_port(&hosts, &client, 7).unwrap();
    is_taken(&beside);
    drop(of_client);
    drop(open_port(&hosts, &beside, 7).unwrap());
}

#[test]
fn root_does_not_serve_beside_it_nor_take_its_clients_over() {
    const TEST: &str = "root_does_not_serve_beside_it_nor_take_its_clients_over";
    if was_child() || !with_runtime_of_its_own(TEST) {
        return;
    }
    let Some(hosts) = hosts() else { return };
    let control = start_service(&hosts, TEST, &allow("60", ""));
    let serve = || {
        let server = || Server::open(ServiceConfig::new(NodeConfig::on("taut0")));
        hosts.inside(Host::B, server).unwrap()
    };
    let error = serve().unwrap_err().to_string();
    let expected = format!("`taut0` has a control process: process {}", control.pid());
    assert!(error.starts_with(&expected), "{error}");
    let _client = start_client(&hosts, TEST, "echo 60");
    control.kill();
    let error = serve().unwrap_err().to_string();
    assert!(
        error.contains("a control process's of another user"),
        "{error}"
    );
    // Nothing happened to the client.
    let node = open(&hosts, Host::A, XDP);
    assert!(answers(&hosts, &node, 60));
}

/// Whether anybody finds a control process.
fn is_believed(hosts: &Hosts) -> bool {
    hosts.inside(Host::B, || look("taut0").is_some()).unwrap()
}

#[test]
fn a_directory_that_root_has_not_made_is_not_believed() {
    const TEST: &str = "a_directory_that_root_has_not_made_is_not_believed";
    if was_child() || !with_runtime_of_its_own(TEST) {
        return;
    }
    let Some(hosts) = hosts() else { return };
    let _control = start_service(&hosts, TEST, "");
    assert!(is_believed(&hosts));
    assert_ne!(control_status(&hosts), serde_json::Value::Null);
    let set = |path: &str, mode| {
        std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    };
    // Others could have made it, or can replace what is in it.
    for (path, mode) in [
        ("/run/tautline", 0o1777),
        ("/run/tautline", 0o775),
        ("/run/tautline/service", 0o775),
        ("/run/tautline/service", 0o777),
    ] {
        set(path, mode);
        assert!(!is_believed(&hosts), "{path} {mode:o}");
        set(path, 0o755);
        assert!(is_believed(&hosts));
    }
    // Of another owner than who listens, or than who made what is in it.
    chown("/run/tautline/service", Some(STRANGER), None).unwrap();
    assert!(!is_believed(&hosts));
    chown("/run/tautline/service", Some(SERVICE), None).unwrap();
    // A link to it.
    std::fs::rename("/run/tautline/service", "/run/tautline/elsewhere").unwrap();
    symlink("elsewhere", "/run/tautline/service").unwrap();
    assert!(!is_believed(&hosts));
    std::fs::remove_file("/run/tautline/service").unwrap();
    std::fs::rename("/run/tautline/elsewhere", "/run/tautline/service").unwrap();
    assert!(is_believed(&hosts));
}

/// If the role is that: a control process that was taken over, which hands a file over in place of what keeps the
/// demux attached.
fn lies(role: &str) -> bool {
    if role != "liar" {
        return false;
    }
    let index = nix::net::if_::if_nametoindex("taut0").unwrap();
    let room = stranger::directory().replace("/run/tautline", "/run/tautline/service");
    std::fs::create_dir_all(format!("{room}/control")).unwrap();
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let listener = rustix::net::socket(family, kind, None).unwrap();
    let place = format!("{room}/control/clients-{index}");
    rustix::net::bind(&listener, &SocketAddrUnix::new(&place).unwrap()).unwrap();
    std::fs::set_permissions(&place, Permissions::from_mode(0o666)).unwrap();
    rustix::net::listen(&listener, 10).unwrap();
    std::thread::spawn(move || {
        while let Ok(client) = rustix::net::accept(&listener) {
            let mut request = [0; 128];
            let _heard = rustix::net::recv(&client, &mut request, RecvFlags::empty());
            let file = std::fs::File::open("/proc/self/comm").unwrap();
            // A welcome to a demux 9 without an address, in native mode.
            stranger::send(&client, &stranger::request(&[0, 9, 0, 0]), &[file.as_fd()]);
        }
    });
    child::ready();
    true
}

#[test]
fn descriptors_of_another_kind_are_refused() {
    const TEST: &str = "descriptors_of_another_kind_are_refused";
    if was_child() || !with_runtime_of_its_own(TEST) {
        return;
    }
    let Some(hosts) = hosts() else { return };
    let _liar = start_as_service(&hosts, TEST, "liar");
    let error = root_node(&hosts).unwrap_err().to_string();
    assert!(error.contains("other descriptors than expected"), "{error}");
}
