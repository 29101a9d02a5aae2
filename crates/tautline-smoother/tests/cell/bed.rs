//! A cell with smoothers on its nodes, and traffic between them.

use std::net::{Ipv4Addr, UdpSocket};
use std::path::Path;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, Scope};
use std::time::{Duration, Instant};

use tautline_proto::wire::MacAddress;
use tautline_smoother::{Node, Setup, Smoother, Status};
use tautline_state::runtime_directory;
use tautline_testbed::hosts::cell::{Cell, INTERFACE, Port};
use tautline_testbed::hosts::may_create;

pub(crate) const PORT: Port = Port {
    rate_bps: 89_110_000,
    queue_frames: 64,
    priorities: false,
};

/// UDP port of real-time messages in their UDP form: Tautline port 2.
const REAL_TIME_PORT: u16 = 21_571;
const OTHER_PORT: u16 = 5000;
/// Bytes of each datagram: a full frame.
const DATAGRAM: usize = 1472;
const RELAXED: Ordering = Ordering::Relaxed;

/// A cell, or nothing where this process may not make one.
pub(crate) fn cell(senders: usize) -> Option<Cell> {
    if !may_create() {
        println!("SKIPPED: making network namespaces needs CAP_SYS_ADMIN and CAP_NET_ADMIN");
        return None;
    }
    Some(Cell::create(senders, &PORT).unwrap())
}

/// The setup of a node that lists some others.
pub(crate) fn setup(cell: &Cell, capacity_bps: u64, others: &[usize]) -> Setup {
    let nodes = others.iter().map(|node| Node {
        name: format!("n{node}"),
        mac: MacAddress(cell.mac(*node)),
        limit_bps: None,
    });
    Setup {
        interface: INTERFACE.to_owned(),
        capacity_bps,
        nodes: nodes.collect(),
    }
}

/// Smoothers and traffic of a test, on threads of a scope. They end with this, also when the test fails: the scope
/// waits for them.
pub(crate) struct Running<'scope, 'env: 'scope> {
    pub(crate) scope: &'scope Scope<'scope, 'env>,
    pub(crate) cell: &'env Cell,
    pub(crate) traffic: &'env Traffic,
    /// Ends the smoothers.
    pub(crate) stop: &'env AtomicBool,
}

/// A test in a cell, and the end of what it has started.
pub(crate) fn run(cell: &Cell, test: impl FnOnce(&Running<'_, '_>)) {
    let (traffic, stop) = (Traffic::default(), AtomicBool::new(false));
    thread::scope(|scope| {
        test(&Running {
            scope,
            cell,
            traffic: &traffic,
            stop: &stop,
        });
    });
}

impl Running<'_, '_> {
    /// Runs a smoother at a node that lists some others.
    pub(crate) fn smooth(&self, node: usize, capacity_bps: u64, others: &[usize]) {
        self.smooth_as(node, setup(self.cell, capacity_bps, others));
    }

    pub(crate) fn smooth_as(&self, node: usize, setup: Setup) {
        let (cell, stop) = (self.cell, self.stop);
        self.scope.spawn(move || {
            cell.enter(node).unwrap();
            Smoother::begin(setup).unwrap().run(stop).unwrap();
        });
    }

    /// Starts the traffic, of these rates.
    pub(crate) fn start(&self, real_time: f64, other: f64) {
        self.traffic.start(self.scope, self.cell, real_time, other);
    }
}

impl Drop for Running<'_, '_> {
    fn drop(&mut self) {
        self.stop.store(true, RELAXED);
        self.traffic.stop.store(true, RELAXED);
    }
}

/// The status of a node's smoother as soon as there is one that `is_wanted`.
pub(crate) fn status(
    cell: &Cell,
    node: usize,
    is_wanted: impl Fn(&Status) -> bool + Sync,
) -> Status {
    status_of(cell, node, INTERFACE, is_wanted)
}

/// Status of an interface.
pub(crate) fn status_of(
    cell: &Cell,
    node: usize,
    interface: &str,
    is_wanted: impl Fn(&Status) -> bool + Sync,
) -> Status {
    let look = || {
        let directory = runtime_directory().unwrap();
        let end = Instant::now() + Duration::from_secs(20);
        while Instant::now() < end {
            match Status::of(&directory, interface).unwrap() {
                Some(status) if is_wanted(&status) => return status,
                _ => thread::sleep(Duration::from_millis(20)),
            }
        }
        panic!("no such status of node {node} within 20 s");
    };
    cell.inside(node, look).unwrap()
}

/// Environment of a child that smooths.
const CHILD_CAPACITY: &str = "TAUT_TEST_CAPACITY";
const CHILD_MACS: &str = "TAUT_TEST_MACS";

/// Starts a process that smooths a node; it dies with the calling thread.
pub(crate) fn child(cell: &Cell, node: usize, capacity_bps: u64, others: &[usize]) -> Child {
    let program = std::env::current_exe().unwrap();
    let command = cell.command(node, program.to_str().unwrap());
    start_child(command, cell, capacity_bps, others)
}

/// Starts a child in a process namespace of its own, as in a container, with the runtime directory of the machine. The
/// returned process waits for it.
pub(crate) fn child_in_container(
    cell: &Cell,
    node: usize,
    capacity_bps: u64,
    others: &[usize],
) -> Child {
    let mut command = cell.command(node, "unshare");
    command
        .args([
            "--pid",
            "--fork",
            "--mount-proc",
            "--kill-child",
            "sh",
            "-c",
        ])
        .arg(r#""$@" & wait"#)
        .arg("sh")
        .arg(std::env::current_exe().unwrap());
    start_child(command, cell, capacity_bps, others)
}

/// Starts a child with its runtime directory on a disk of its own, a file with a file system.
pub(crate) fn child_on_disk(
    cell: &Cell,
    (node, disk): (usize, &Path),
    capacity_bps: u64,
    others: &[usize],
) -> Child {
    let mut command = cell.command(node, "unshare");
    command
        .args(["--mount", "--propagation", "private", "sh", "-ec"])
        .arg(r#"mkdir -p /run/tautline; mount -o loop "$1" /run/tautline; shift; exec "$@""#)
        .args([Path::new("sh"), disk, &std::env::current_exe().unwrap()]);
    start_child(command, cell, capacity_bps, others)
}

fn start_child(mut command: Command, cell: &Cell, capacity_bps: u64, others: &[usize]) -> Child {
    let macs: Vec<String> = others
        .iter()
        .map(|other| MacAddress(cell.mac(*other)).to_string())
        .collect();
    command
        .args(["child_that_smooths", "--exact", "--ignored", "--nocapture"])
        .env(CHILD_CAPACITY, capacity_bps.to_string())
        .env(CHILD_MACS, macs.join(","))
        .spawn()
        .unwrap()
}

/// Work of that process.
pub(crate) fn run_child() {
    let Ok(capacity) = std::env::var(CHILD_CAPACITY) else {
        return; // called as a test
    };
    let macs = std::env::var(CHILD_MACS).unwrap();
    let nodes = macs.split(',').map(|mac| Node {
        name: mac.to_owned(),
        mac: mac.parse().unwrap(),
        limit_bps: None,
    });
    let mut smoother = Smoother::begin(Setup {
        interface: INTERFACE.to_owned(),
        capacity_bps: capacity.parse().unwrap(),
        nodes: nodes.collect(),
    })
    .unwrap();
    static STOP: AtomicBool = AtomicBool::new(false);
    let (stop, signalled) = std::os::unix::net::UnixStream::pair().unwrap();
    signal_hook::low_level::pipe::register(signal_hook::consts::SIGTERM, signalled).unwrap();
    thread::spawn(move || {
        let mut byte = [0];
        let _ = std::io::Read::read(&mut &stop, &mut byte);
        STOP.store(true, RELAXED);
    });
    smoother.run(&STOP).unwrap();
}

/// Counts of traffic through the port.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) real_time_sent: AtomicU64,
    pub(crate) real_time_received: AtomicU64,
    pub(crate) other_received_bytes: AtomicU64,
    stop: AtomicBool,
}

impl Traffic {
    /// Starts the receiver, and on each sender real-time and other traffic of these rates, datagrams a second.
    fn start<'scope, 'env>(
        &'env self,
        scope: &'scope Scope<'scope, 'env>,
        cell: &'env Cell,
        real_time: f64,
        other: f64,
    ) {
        for (port, count) in [
            (REAL_TIME_PORT, &self.real_time_received),
            (OTHER_PORT, &self.other_received_bytes),
        ] {
            scope.spawn(move || {
                cell.enter(cell.receiver()).unwrap();
                let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port)).unwrap();
                let timeout = Some(Duration::from_millis(50));
                socket.set_read_timeout(timeout).unwrap();
                let mut datagram = [0; DATAGRAM];
                while !self.stop.load(RELAXED) {
                    if let Ok(length) = socket.recv(&mut datagram) {
                        let amount = if port == REAL_TIME_PORT {
                            1
                        } else {
                            length as u64
                        };
                        count.fetch_add(amount, RELAXED);
                    }
                }
            });
        }
        let to = cell.address(cell.receiver());
        for node in 0..cell.senders() {
            for (port, rate) in [(REAL_TIME_PORT, real_time), (OTHER_PORT, other)] {
                scope.spawn(move || {
                    cell.enter(node).unwrap();
                    self.send(to, port, rate);
                });
            }
        }
    }

    /// Sends at a steady rate. Datagrams that a full buffer refuses are not sent.
    fn send(&self, to: Ipv4Addr, port: u16, rate: f64) {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        socket.connect((to, port)).unwrap();
        socket.set_nonblocking(true).unwrap();
        let gap = Duration::from_secs_f64(1.0 / rate);
        let mut due = Instant::now();
        while !self.stop.load(RELAXED) {
            let sent = socket.send(&[0; DATAGRAM]).is_ok();
            if port == REAL_TIME_PORT {
                self.real_time_sent.fetch_add(u64::from(sent), RELAXED);
            }
            due += gap;
            let now = Instant::now();
            match due.checked_duration_since(now) {
                Some(left) => thread::sleep(left),
                // A burst does not make up for missed datagrams.
                None if now - due > Duration::from_millis(20) => due = now,
                None => {}
            }
        }
    }

    /// Share of real-time messages that were lost, and megabits a second of other traffic that arrived, in a time.
    pub(crate) fn measure(&self, time: Duration) -> (f64, f64) {
        let counts = || {
            (
                self.real_time_sent.load(RELAXED) as f64,
                self.real_time_received.load(RELAXED) as f64,
                self.other_received_bytes.load(RELAXED) as f64,
            )
        };
        let before = counts();
        let begin = Instant::now();
        thread::sleep(time);
        let after = counts();
        let seconds = begin.elapsed().as_secs_f64();
        let sent = after.0 - before.0;
        let lost = sent - (after.1 - before.1);
        let megabits = (after.2 - before.2) * 8.0 / 1e6 / seconds;
        println!("{lost} of {sent} real-time messages lost, other {megabits:.1} Mbit/s");
        (lost.max(0.0) / sent.max(1.0), megabits)
    }
}
