//! Hosts on this machine: made, used, and removed however the process ends.

use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::time::Duration;

use std::sync::atomic::{AtomicBool, Ordering};

use tautline_bench::echo::{Ends, Path as EchoPath, PathOptions, hosts_for, open_paths};
use tautline_bench::load::{Load, LoadTool, Pace};
use tautline_bench::path::sides::Sides;
use tautline_bench::sides::Placement;
use tautline_testbed::hosts::{Host, Hosts, HostsOptions, Offloads, clear_stale};

use crate::common::skipped_without_privilege;

/// Makes hosts, or says why the test is skipped.
fn hosts(options: &HostsOptions) -> Option<Hosts> {
    (!skipped_without_privilege()).then(|| Hosts::create(options).unwrap())
}

fn exists(name: &str) -> bool {
    Path::new("/run/netns").join(name).exists()
}

#[test]
fn two_cables_carry_datagrams_and_go_with_the_hosts() {
    let Some(hosts) = hosts(&HostsOptions {
        cable_count: 2,
        ..HostsOptions::default()
    }) else {
        return;
    };
    for cable in 0..hosts.cable_count() {
        let open = |host| {
            let address = SocketAddr::from((hosts.end(host, cable).address(), 7000));
            let socket = hosts
                .inside(host, || UdpSocket::bind(address))
                .unwrap()
                .unwrap();
            socket
                .set_read_timeout(Some(Duration::from_secs(10)))
                .unwrap();
            (socket, address)
        };
        let ((a, _), (b, address)) = (open(Host::A), open(Host::B));
        a.send_to(b"hello", address).unwrap();
        let mut buffer = [0; 16];
        let (length, from) = b.recv_from(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"hello");
        assert_eq!(from.ip(), hosts.end(Host::A, cable).address());
    }
    let names = Host::BOTH.map(|host| hosts.name(host).to_owned());
    assert!(names.iter().all(|name| exists(name)));
    drop(hosts);
    assert!(!names.iter().any(|name| exists(name)));
}

#[test]
fn ends_are_as_described() {
    let Some(hosts) = hosts(&HostsOptions {
        offloads: Offloads::AllOff,
        ..HostsOptions::default()
    }) else {
        return;
    };
    let output = hosts
        .command(Host::B, "ip")
        .args(["-d", "address"])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    for expected in [
        "02:54:4c:00:00:02",
        "10.77.0.2/24",
        "mtu 1500",
        "numtxqueues 1 numrxqueues 1",
    ] {
        assert!(text.contains(expected), "{expected} in {text}");
    }
    assert!(!text.contains("inet6"), "{text}");
    let neighbours = hosts
        .command(Host::A, "ip")
        .arg("neighbour")
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&neighbours.stdout).contains("PERMANENT"));
    let output = hosts
        .command(Host::A, "ethtool")
        .args(["-k", "taut0"])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    for expected in [
        "tx-checksumming: off",
        "tcp-segmentation-offload: off",
        "generic-segmentation-offload: off",
    ] {
        assert!(text.contains(expected), "{expected} in {text}");
    }
}

#[test]
fn a_thread_enters_alone() {
    let Some(hosts) = hosts(&HostsOptions::default()) else {
        return;
    };
    let own = || std::fs::read_link("/proc/thread-self/ns/net").unwrap();
    let before = own();
    let inside = hosts.inside(Host::A, own).unwrap();
    assert_ne!(before, inside);
    assert_eq!(before, own());
}

#[test]
fn the_living_are_not_stale() {
    let Some(hosts) = hosts(&HostsOptions::default()) else {
        return;
    };
    let removed = clear_stale().unwrap();
    assert!(
        Host::BOTH
            .iter()
            .all(|host| !removed.contains(&hosts.name(*host).to_owned()))
    );
    assert!(exists(hosts.name(Host::A)));
}

#[test]
fn loads_run_between_hosts_and_die_with_their_handle() {
    let Some(hosts) = hosts(&HostsOptions::default()) else {
        return;
    };
    for tool in [LoadTool::BuiltIn, LoadTool::best()] {
        let load = Load::start_with(tool, Sides::Hosts(&hosts, 0), Pace::Full).unwrap();
        std::thread::sleep(Duration::from_millis(300));
        let report = load.stop().unwrap();
        assert!(report.gbit_per_s > 0.0, "{report:?}");
        drop(Load::start_with(tool, Sides::Hosts(&hosts, 0), Pace::Full).unwrap());
    }
    let output = hosts
        .command(Host::B, "ip")
        .args(["netns", "pids", hosts.name(Host::A)])
        .output()
        .unwrap();
    assert!(
        output.stdout.is_empty(),
        "{:?}",
        String::from_utf8_lossy(&output.stdout)
    );
}

#[test]
fn late_replies_are_not_taken_for_the_next() {
    // Of those below, link packet has the cable with the highest number.
    let Some(hosts) = hosts(&hosts_for(&[EchoPath::Packet])) else {
        return;
    };
    let options = PathOptions {
        payload_bytes_max: 64,
        time_limit: Duration::from_millis(20),
        placement: Placement::default(),
    };
    for path in [
        EchoPath::UdpPoll,
        EchoPath::UdpBlock,
        EchoPath::TcpPoll,
        EchoPath::TcpBlock,
        EchoPath::Queuing,
        EchoPath::Packet,
    ] {
        let mut paths = match open_paths(&[path], &hosts, &options) {
            Ok(paths) => paths,
            Err((path, error)) => panic!("{path}: {error}"),
        };
        let Ends {
            asking: mut client,
            answering: mut server,
            ..
        } = paths.remove(0);
        // Nobody serves: the round trip is lost, and its message waits.
        let limit = options.time_limit;
        assert!(!client.round_trip(b"first...", limit).unwrap(), "{path}");
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let serving = scope.spawn(|| server.serve(8, &stop, &mut |_| {}));
            let served = (0..500).find(|_| client.round_trip(b"second..", limit).unwrap());
            assert!(served.is_some(), "{path}");
            stop.store(true, Ordering::Relaxed);
            serving.join().unwrap().unwrap();
        });
    }
}
