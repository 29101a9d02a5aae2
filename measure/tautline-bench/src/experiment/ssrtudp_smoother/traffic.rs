//! Traffic of a cell: real-time messages between ports, and other traffic between sockets.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream, UdpSocket};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Duration;

use tautline::neighbours::Form;
use tautline::port::QueuingOptions;
use tautline::{MacAddress, Neighbour, Node, NodeConfig, Priority, QueuingPort, Wait, now};
use tautline_proto::time::Instant;
use tautline_report::LatencyHistogram;
use tautline_testbed::hosts::cell::{Cell, INTERFACE};
use tautline_testbed::sys::{monotonic_ns, set_fifo, sleep_until};

use super::super::ExperimentError;
use super::cell_run::{Case, Load, RELAXED, Rule, Shared};
use super::credit::{CreditBucket, CreditConfig};
use crate::path::PathError;
use crate::path::port::port_number;

/// Bytes of a real-time message that fills a frame. It begins with the sender, its number, its time, and whether it
/// counts.
const MESSAGE_BYTES: usize = 1484;
const HEAD_BYTES: usize = 32;
/// The receiver's port, and the senders'.
const TO: u16 = 2;
const FROM: u16 = 1;
/// Messages that a receiver may be behind.
const DEPTH: u32 = 1024;
/// Real-time priority of senders and receiver of real-time messages: above the smoother's.
const PRIORITY: u8 = 20;

/// A datagram of others fills a frame.
const DATAGRAM_BYTES: usize = 1472;
const UDP_PORT: u16 = 5000;
const TCP_PORT: u16 = 5001;
/// Wait between two attempts of a sender whose socket is full.
const FULL_NS: u64 = 200_000;
/// Longest wait of a call, after which a thread looks whether it is to end.
const CALL_TIME_MAX: Duration = Duration::from_millis(50);
/// Time for which TCP goes on and off.
const ON_OFF_NS: u64 = 100_000_000;
/// A sender that was held up for longer goes on from now, and makes up for nothing.
const BEHIND_NS_MAX: u64 = 20_000_000;

/// Running traffic.
pub(super) struct Traffic<'scope> {
    link: String,
    receiving: ScopedJoinHandle<'scope, LatencyHistogram>,
}

impl Traffic<'_> {
    /// The link of real-time messages, and the time that they were on their way. The run must have been stopped.
    pub(super) fn end(self) -> Result<(String, LatencyHistogram), ExperimentError> {
        match self.receiving.join() {
            Ok(way) => Ok((self.link, way)),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

/// Starts receivers and senders.
pub(super) fn start<'scope, 'env>(
    scope: &'scope Scope<'scope, 'env>,
    cell: &'env Cell,
    case: &Case,
    shared: &'env Shared,
) -> Result<Traffic<'scope>, ExperimentError> {
    let is_marked = case.rule == Rule::GrantsAndPriorities;
    let receiver = open(cell, cell.receiver(), is_marked)?;
    let port = cell.inside(cell.receiver(), || port_of(&receiver, TO))??;
    let receiving = scope.spawn(move || take(port, shared));
    let bound = cell.inside(cell.receiver(), || listen(case.load))?;
    match bound.map_err(ExperimentError::io("bind a socket"))? {
        Listening::Datagrams(socket) => {
            scope.spawn(move || take_datagrams(&socket, shared));
        }
        Listening::Streams(listener) => {
            scope.spawn(move || take_streams(scope, &listener, shared));
        }
    }
    let mut link = String::new();
    for sender in 0..cell.senders() {
        let node = open(cell, sender, is_marked)?;
        link = node.report().to_string().replace('\n', ";");
        let port = cell.inside(sender, || port_of(&node, FROM))??;
        let (period_ns, other) = (case.real_time_period_ns(), Other::of(case, sender));
        scope.spawn(move || send_real_time(port, shared, sender, period_ns));
        for _ in 0..other.flows() {
            let other = other.clone();
            scope.spawn(move || {
                if cell.enter(sender).is_ok() {
                    other.send(cell.address(cell.receiver()), shared);
                }
            });
        }
    }
    Ok(Traffic { link, receiving })
}

/// The node of a side, whose neighbour `peer` is the receiver.
fn open(cell: &Cell, node: usize, is_marked: bool) -> Result<Node, ExperimentError> {
    let peer = Neighbour {
        name: "peer".parse().expect("a name of the program"),
        mac: MacAddress(cell.mac(cell.receiver())),
        ip: None,
        form: Form::Ethernet,
    };
    let mut config = NodeConfig::on(INTERFACE)
        .with_neighbour(peer)
        .expect("an empty table has room");
    config.publish_status = false;
    config.pcp = is_marked;
    let opened = cell.inside(node, || Node::open(config))?;
    opened.map_err(|error| PathError::from(error).into())
}

fn port_of(node: &Node, number: u16) -> Result<QueuingPort, ExperimentError> {
    let options = QueuingOptions {
        depth: DEPTH,
        ..QueuingOptions::default()
    };
    node.queuing(port_number(number))
        .options(&options)
        .open()
        .map_err(|error| PathError::from(error).into())
}

fn field(message: &[u8], index: usize) -> u64 {
    let bytes = message[8 * index..8 * index + 8].try_into();
    u64::from_le_bytes(bytes.expect("eight bytes"))
}

fn take(mut port: QueuingPort, shared: &Shared) -> LatencyHistogram {
    let _ordinary = set_fifo(PRIORITY);
    let mut way = LatencyHistogram::new();
    let mut buffer = vec![0; port.message_bytes_max()];
    let mut next = [0; 32];
    while !shared.stop.load(RELAXED) {
        let Ok(Some(message)) = port.receive_into(&mut buffer, Wait::Until(now() + CALL_TIME_MAX))
        else {
            continue;
        };
        let now_ns = monotonic_ns();
        let bytes = &buffer[..message.length];
        if bytes.len() < HEAD_BYTES {
            continue;
        }
        let [sender, number, sent_ns, counts] = std::array::from_fn(|index| field(bytes, index));
        let sender = sender as usize % next.len();
        let gap = number.saturating_sub(next[sender]);
        shared.gaps[sender].fetch_add(gap, RELAXED);
        next[sender] = number + 1;
        if counts == 1 {
            way.record(now_ns.saturating_sub(sent_ns).max(1));
            shared.real_time_received.fetch_add(1, RELAXED);
        }
    }
    way
}

fn send_real_time(mut port: QueuingPort, shared: &Shared, sender: usize, period_ns: u64) {
    let _ordinary = set_fifo(PRIORITY);
    let Ok(to) = port.destination("peer", port_number(TO)) else {
        return;
    };
    let mut random = Random(sender as u64 + 1);
    let mut message = [0; MESSAGE_BYTES];
    let mut number = 0u64;
    // Some per cent around the period, so that phases drift as those of clocks do.
    let mut due_ns = monotonic_ns() + random.below(period_ns);
    while !shared.stop.load(RELAXED) {
        sleep_until(due_ns);
        let counts = shared.is_counting.load(RELAXED);
        let fields = [sender as u64, number, monotonic_ns(), u64::from(counts)];
        for (place, value) in message.chunks_exact_mut(8).zip(fields) {
            place.copy_from_slice(&value.to_le_bytes());
        }
        if port.send(to, Priority::HIGHEST, &message).is_ok() {
            number += 1;
            shared.real_time_sent.fetch_add(u64::from(counts), RELAXED);
        }
        let around_ns = period_ns - period_ns / 50 + random.below(period_ns / 25);
        due_ns = next(due_ns, around_ns);
    }
}

/// The next time of a timetable.
fn next(due_ns: u64, period_ns: u64) -> u64 {
    let due_ns = due_ns + period_ns;
    let now_ns = monotonic_ns();
    if now_ns > due_ns + BEHIND_NS_MAX {
        now_ns
    } else {
        due_ns
    }
}

enum Listening {
    Datagrams(UdpSocket),
    Streams(TcpListener),
}

fn listen(load: Load) -> std::io::Result<Listening> {
    let any = Ipv4Addr::UNSPECIFIED;
    if load == Load::Udp {
        let socket = UdpSocket::bind((any, UDP_PORT))?;
        socket.set_read_timeout(Some(CALL_TIME_MAX))?;
        return Ok(Listening::Datagrams(socket));
    }
    let listener = TcpListener::bind((any, TCP_PORT))?;
    listener.set_nonblocking(true)?;
    Ok(Listening::Streams(listener))
}

fn take_datagrams(socket: &UdpSocket, shared: &Shared) {
    let mut datagram = [0; DATAGRAM_BYTES];
    let mut next = [0; 32];
    while !shared.stop.load(RELAXED) {
        if !socket
            .recv(&mut datagram)
            .is_ok_and(|length| length == DATAGRAM_BYTES)
        {
            continue;
        }
        let (sender, number) = (
            field(&datagram, 0) as usize % next.len(),
            field(&datagram, 1),
        );
        let gap = number.saturating_sub(next[sender]);
        shared.gaps[sender].fetch_add(gap, RELAXED);
        next[sender] = number + 1;
    }
}

fn take_streams<'scope>(
    scope: &'scope Scope<'scope, '_>,
    listener: &TcpListener,
    shared: &'scope Shared,
) {
    while !shared.stop.load(RELAXED) {
        let Ok((mut stream, _)) = listener.accept() else {
            std::thread::sleep(Duration::from_millis(2));
            continue;
        };
        scope.spawn(move || {
            let _ = stream.set_nonblocking(false);
            let _ = stream.set_read_timeout(Some(CALL_TIME_MAX));
            let mut bytes = vec![0; 1 << 17];
            while !shared.stop.load(RELAXED) {
                if stream.read(&mut bytes).is_ok_and(|length| length == 0) {
                    return;
                }
            }
        });
    }
}

/// Other traffic of one sender.
#[derive(Clone)]
struct Other {
    load: Load,
    sender: usize,
    period_ns: u64,
    real_time_period_ns: u64,
    is_credit: bool,
}

impl Other {
    fn of(case: &Case, sender: usize) -> Self {
        Self {
            load: case.load,
            sender,
            period_ns: case.other_period_ns(),
            real_time_period_ns: case.real_time_period_ns(),
            is_credit: case.rule == Rule::Credit,
        }
    }

    fn flows(&self) -> usize {
        match self.load {
            Load::Tcp { flows } => flows,
            Load::Udp | Load::TcpOnOff => 1,
        }
    }

    fn send(&self, to: Ipv4Addr, shared: &Shared) {
        // A sender that cannot connect sends nothing, and the share of others shows it.
        let _ended = match self.load {
            Load::Udp => self.send_datagrams(to, shared),
            Load::Tcp { .. } => send_stream(to, shared, None),
            Load::TcpOnOff => send_stream(to, shared, Some(self.sender as u64)),
        };
    }

    fn send_datagrams(&self, to: Ipv4Addr, shared: &Shared) -> std::io::Result<()> {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.connect((to, UDP_PORT))?;
        socket.set_nonblocking(true)?;
        let mut datagram = [0; DATAGRAM_BYTES];
        datagram[..8].copy_from_slice(&(self.sender as u64).to_le_bytes());
        let mut random = Random(1000 + self.sender as u64);
        let mut credit = self.is_credit.then(|| Credit::new(self));
        let mut number = 0u64;
        let mut due_ns = monotonic_ns();
        while !shared.stop.load(RELAXED) {
            sleep_until(due_ns);
            if let Some(credit) = &mut credit
                && !credit.take(shared)
            {
                // Datagrams that wait leave at once at the refresh, as from the paper's queue.
                sleep_until(credit.bucket.refresh_time().as_nanos());
                continue;
            }
            datagram[8..16].copy_from_slice(&number.to_le_bytes());
            if socket.send(&datagram).is_ok() {
                number += 1;
                due_ns = next(due_ns, random.exponential(self.period_ns));
            } else {
                due_ns = monotonic_ns() + FULL_NS;
            }
        }
        Ok(())
    }
}

/// Sends as much as it may; on and off from a phase of its own on.
fn send_stream(to: Ipv4Addr, shared: &Shared, on_off: Option<u64>) -> std::io::Result<()> {
    let mut stream = TcpStream::connect((to, TCP_PORT))?;
    stream.set_write_timeout(Some(CALL_TIME_MAX))?;
    let mut random = Random(2000 + on_off.unwrap_or(0));
    let mut turn_ns = monotonic_ns() + random.exponential(ON_OFF_NS);
    while !shared.stop.load(RELAXED) {
        if on_off.is_some() && monotonic_ns() > turn_ns {
            sleep_until(turn_ns + random.exponential(ON_OFF_NS));
            turn_ns = monotonic_ns() + random.exponential(ON_OFF_NS);
        }
        // A write that takes too long leaves what it has not written.
        let _ = stream.write(&[0; 1 << 14]);
    }
    stream.shutdown(Shutdown::Both)
}

/// The paper's rule, in the program that sends: it learns of losses from the receiver, which lives in this process.
struct Credit {
    bucket: CreditBucket,
    sender: usize,
    losses_before: u64,
    refreshed_ns: u64,
    real_time_period_ns: u64,
}

impl Credit {
    fn new(other: &Other) -> Self {
        let now_ns = monotonic_ns();
        Self {
            bucket: CreditBucket::new(CreditConfig::PAPER, Instant::from_nanos(now_ns)),
            sender: other.sender,
            losses_before: 0,
            refreshed_ns: now_ns,
            real_time_period_ns: other.real_time_period_ns,
        }
    }

    /// Takes a credit, after a refresh if one is due.
    fn take(&mut self, shared: &Shared) -> bool {
        let now_ns = monotonic_ns();
        let losses = shared.gaps[self.sender].load(RELAXED);
        let has_lost = losses > self.losses_before;
        if self.bucket.refresh(Instant::from_nanos(now_ns), has_lost) {
            self.losses_before = losses;
            // Real-time frames of the period took credits too.
            let frames = (now_ns - self.refreshed_ns) / self.real_time_period_ns;
            let frames = frames.min(u64::from(CreditConfig::PAPER.depth));
            (0..frames).for_each(|_| self.bucket.take_real_time());
            self.refreshed_ns = now_ns;
        }
        self.bucket.take()
    }
}

/// Numbers that look random and are the same in each run (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }

    /// A time with an exponential distribution.
    fn exponential(&mut self, mean_ns: u64) -> u64 {
        let uniform = (self.next() >> 11) as f64 / (1u64 << 53) as f64;
        (-(mean_ns as f64) * (1.0 - uniform).ln()) as u64
    }
}
