//! The remote control on a network: a pilot on a second node, 50 frames a second, and a receiver beside the craft that
//! hands them to the world's antenna. Over ports, through the control process of the craft's interface; or over the
//! kernel's UDP, as an ordinary program has it.

use std::fs::File;
use std::io::{self, BufRead, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tautline::neighbours::Form;
use tautline::{
    Destination, MacAddress, Neighbour, Node, NodeConfig, PortNumber, Priority, QueuingPort, Wait,
};
use tautline_flight::message::{MESSAGE_BYTES_MAX, Order, Remote, decode, encode};
use tautline_state::memory::lock_all;
use tautline_testbed::child::enter;
use tautline_testbed::hosts::cell::INTERFACE;
use tautline_testbed::sys::{monotonic_ns, set_fifo, set_other, sleep_until};

use crate::course::Course;
use crate::part::{end_of_input, say};
use crate::wire::{Means, Role, Stream};

/// Time between two frames.
pub(crate) const FRAME_NS: u64 = 20_000_000;
/// Ports of Tautline, and of UDP and TCP.
const PILOTS_PORT: u16 = 70;
const RECEIVERS_PORT: u16 = 71;
const UDP_PORT: u16 = 5_070;
const TCP_PORT: u16 = 5_071;
/// Longest wait for a frame, after which the receiver looks whether it is to end.
const CALL_TIME_MAX: Duration = Duration::from_millis(50);
/// Priority of pilot and receiver: above the smoother's, below the executive's tasks.
pub(crate) const PRIORITY: u8 = 20;
/// Time between two lines of a receiver that tells of its frames.
const TOLD_NS: u64 = 200_000_000;
/// Bytes that are sent and taken at once.
const BLOCK_BYTES: usize = 1 << 16;

/// Frame on the network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Frame {
    remote: Remote,
    /// CLOCK_MONOTONIC, which both nodes share.
    sent_ns: u64,
}

/// One end of the way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct End {
    /// Network namespace, as a path.
    pub(crate) namespace: PathBuf,
    /// The other end.
    pub(crate) peer_mac: [u8; 6],
    pub(crate) peer: Ipv4Addr,
    /// Whether frames travel between ports, or by the kernel's UDP.
    pub(crate) has_ports: bool,
}

impl End {
    fn enter(&self) -> io::Result<()> {
        enter(&File::open(&self.namespace)?)
    }

    fn port(&self, number: u16) -> io::Result<(Node, QueuingPort)> {
        let peer = Neighbour {
            name: "peer".parse().map_err(io::Error::other)?,
            mac: MacAddress(self.peer_mac),
            ip: None,
            form: Form::Ethernet,
        };
        let config = NodeConfig::on(INTERFACE).with_neighbour(peer);
        let node = Node::open(config.map_err(io::Error::other)?).map_err(io::Error::other)?;
        let number = PortNumber::try_from(number).map_err(io::Error::other)?;
        let port = node.queuing(number).open();
        Ok((node, port.map_err(io::Error::other)?))
    }
}

/// Settings of the pilot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct PilotSettings {
    pub(crate) end: End,
    pub(crate) course: Course,
    pub(crate) seed: u64,
}

/// Line for the pilot.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum PilotLine {
    /// Start of the world's time on CLOCK_MONOTONIC, from which the orders of the course count.
    Start(u64),
    /// An order to be given now.
    Order(Order),
}

/// Settings of the receiver.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ReceiverSettings {
    pub(crate) end: End,
    pub(crate) means: Means,
    /// Whether it tells of its frames while they come, and keeps none for the end.
    pub(crate) is_told: bool,
}

/// Frames of a flight so far, as the receiver tells them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Reception {
    pub(crate) received: u64,
    /// Frames between the first and the newest that have not come.
    pub(crate) lost: u64,
    /// Age of the newest one, and that of the oldest since the line before, at their arrival.
    pub(crate) age_ns: u64,
    pub(crate) age_ns_max: u64,
    /// Arrival of the newest one on CLOCK_MONOTONIC.
    pub(crate) at_ns: u64,
    first: u32,
    newest: u32,
}

impl Reception {
    fn note(&mut self, count: u32, age_ns: u64, at_ns: u64) {
        if self.received == 0 {
            self.first = count;
        }
        self.received += 1;
        self.newest = self.newest.max(count);
        let sent = u64::from(self.newest.saturating_sub(self.first)) + 1;
        self.lost = sent.saturating_sub(self.received);
        (self.age_ns, self.at_ns) = (age_ns, at_ns);
        self.age_ns_max = self.age_ns_max.max(age_ns);
    }
}

/// Report of the pilot: the moment of each frame, from the first on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Sent {
    pub(crate) link: String,
    pub(crate) at_ns: Vec<u64>,
}

/// Report of the receiver: count of each frame, and its age.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Heard {
    pub(crate) link: String,
    pub(crate) frames: Vec<(u32, u64)>,
    /// Bytes of the stream beside them.
    pub(crate) stream_bytes: u64,
}

enum Way {
    Port(Node, Box<QueuingPort>, Option<Destination>),
    Socket(UdpSocket),
}

impl Way {
    fn link(&self) -> String {
        match self {
            // Without the addresses.
            Way::Port(node, ..) => {
                let report = node.report().to_string();
                report
                    .split([',', '\n'])
                    .next()
                    .unwrap_or_default()
                    .to_owned()
            }
            Way::Socket(_) => "UDP of the kernel".to_owned(),
        }
    }

    fn send(&mut self, bytes: &[u8]) {
        // A frame that cannot be sent is lost: the count tells.
        match self {
            Way::Port(_, port, Some(to)) => drop(port.send(*to, Priority::HIGHEST, bytes)),
            Way::Port(_, _, None) => {}
            Way::Socket(socket) => drop(socket.send(bytes)),
        }
    }

    /// A frame, waiting for a while.
    fn receive(&mut self, buffer: &mut [u8]) -> Option<usize> {
        match self {
            Way::Port(_, port, _) => {
                match port.receive_into(buffer, Wait::Until(tautline::now() + CALL_TIME_MAX)) {
                    Ok(message) => message.map(|message| message.length),
                    // At this priority no other thread would run.
                    Err(_) => {
                        thread::sleep(CALL_TIME_MAX);
                        None
                    }
                }
            }
            Way::Socket(socket) => socket.recv(buffer).ok(),
        }
    }

    /// Room for whatever may come.
    fn bytes_max(&self) -> usize {
        match self {
            Way::Port(_, port, _) => port.message_bytes_max(),
            Way::Socket(_) => MESSAGE_BYTES_MAX,
        }
    }
}

/// Orders of a course, and those that are given meanwhile.
struct Orders {
    told: Receiver<PilotLine>,
    start_ns: u64,
    all: Vec<(f64, Order)>,
}

impl Orders {
    /// Those that are due: their number, and the newest. `None` when standard input has ended.
    fn due(&mut self, now_ns: u64) -> Option<(u32, Order)> {
        let at = |start: u64| match start {
            0 => 0.0,
            start => now_ns.saturating_sub(start) as f64 * 1e-9,
        };
        loop {
            match self.told.try_recv() {
                Ok(PilotLine::Start(start_ns)) => self.start_ns = start_ns,
                Ok(PilotLine::Order(order)) => self.all.push((at(self.start_ns), order)),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return None,
            }
        }
        let at = at(self.start_ns);
        let given = self.all.iter().filter(|(due, _)| *due <= at);
        let given = given.map(|(_, order)| *order);
        Some(given.fold((0, Order::None), |(count, _), order| (count + 1, order)))
    }
}

/// Sends frames until standard input ends, whose lines are a [`PilotLine`] each.
pub(crate) fn fly(settings: &PilotSettings) -> io::Result<()> {
    let end = &settings.end;
    end.enter()?;
    let mut way = if end.has_ports {
        become_urgent();
        let (node, mut port) = end.port(PILOTS_PORT)?;
        let number = PortNumber::try_from(RECEIVERS_PORT).map_err(io::Error::other)?;
        let to = port.destination("peer", number).map_err(io::Error::other)?;
        Way::Port(node, Box::new(port), Some(to))
    } else {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.connect((end.peer, UDP_PORT))?;
        socket.set_nonblocking(true)?;
        Way::Socket(socket)
    };
    let (tell, told) = channel();
    thread::spawn(move || {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            // An empty line is not an order.
            let line = serde_json::from_str::<PilotLine>(&line);
            if line.is_ok_and(|line| tell.send(line).is_err()) {
                return;
            }
        }
    });
    let mut orders = Orders {
        told,
        start_ns: 0,
        all: settings.course.scene(settings.seed).orders,
    };
    let mut sent = Sent {
        link: way.link(),
        at_ns: Vec::new(),
    };
    let mut buffer = [0; MESSAGE_BYTES_MAX];
    let mut due = monotonic_ns();
    let mut count = 0;
    let keeps_times = settings.course == Course::Schedule;
    loop {
        due += FRAME_NS;
        sleep_until(due);
        let now = monotonic_ns();
        let Some((order_count, order)) = orders.due(now) else {
            break;
        };
        count += 1;
        if keeps_times {
            sent.at_ns.push(now);
        }
        let frame = Frame {
            remote: Remote {
                count,
                order_count,
                order,
                ..Remote::default()
            },
            sent_ns: now,
        };
        if let Some(bytes) = encode(&frame, &mut buffer) {
            way.send(bytes);
        }
    }
    say(&serde_json::to_string(&sent)?);
    Ok(())
}

/// Hands frames to the world until standard input ends, and takes the stream beside them.
pub(crate) fn receive(settings: &ReceiverSettings) -> io::Result<()> {
    let ended = end_of_input();
    let end = &settings.end;
    // Before the namespace is entered: sockets stay where they were made.
    let wires = settings.means.open(Role::Receiver)?;
    let mut to_world = wires.outbox(Stream::Remote)?;
    end.enter()?;
    let stream_bytes = Arc::new(AtomicU64::new(0));
    take_streams(Arc::clone(&stream_bytes))?;
    let mut way = if end.has_ports {
        become_urgent();
        let (node, port) = end.port(RECEIVERS_PORT)?;
        Way::Port(node, Box::new(port), None)
    } else {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, UDP_PORT))?;
        socket.set_read_timeout(Some(CALL_TIME_MAX))?;
        Way::Socket(socket)
    };
    let mut heard = Heard {
        link: way.link(),
        ..Heard::default()
    };
    let mut buffer = vec![0; way.bytes_max()];
    let (mut reception, mut told_ns) = (Reception::default(), 0);
    while !ended() {
        let length = way.receive(&mut buffer);
        let now = monotonic_ns();
        if let Some(frame) = length.and_then(|length| decode::<Frame>(&buffer[..length])) {
            let age = now.saturating_sub(frame.sent_ns);
            to_world.send(&frame.remote);
            reception.note(frame.remote.count, age, now);
            if !settings.is_told {
                heard.frames.push((frame.remote.count, age));
            }
        }
        if settings.is_told && now >= told_ns + TOLD_NS {
            say(&serde_json::to_string(&reception)?);
            (told_ns, reception.age_ns_max) = (now, 0);
        }
    }
    heard.stream_bytes = stream_bytes.load(Ordering::Relaxed);
    say(&serde_json::to_string(&heard)?);
    Ok(())
}

/// Real time is ordered by hand where people use it; the ordinary program has no such priority.
fn become_urgent() {
    if let Err(error) = set_fifo(PRIORITY) {
        eprintln!("radio: no priority {PRIORITY}: {error}");
    }
    // A frame is not to wait for a page that was taken away.
    if let Err(error) = lock_all() {
        eprintln!("radio: memory not locked: {error}");
    }
}

/// Accepts streams of others and throws them away, at ordinary priority.
fn take_streams(bytes: Arc<AtomicU64>) -> io::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, TCP_PORT))?;
    thread::spawn(move || {
        // Its process may have begun with another.
        let _ = set_other();
        for mut stream in listener.incoming().map_while(Result::ok) {
            let bytes = Arc::clone(&bytes);
            thread::spawn(move || {
                let mut block = vec![0; BLOCK_BYTES];
                while let Ok(length @ 1..) = stream.read(&mut block) {
                    bytes.fetch_add(length as u64, Ordering::Relaxed);
                }
            });
        }
    });
    Ok(())
}

/// Sends as much as the cable takes, until it is killed.
pub(crate) fn flood(end: &End) -> io::Result<()> {
    end.enter()?;
    let mut stream = TcpStream::connect(SocketAddrV4::new(end.peer, TCP_PORT))?;
    let block = vec![0; BLOCK_BYTES];
    loop {
        stream.write_all(&block)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_that_have_not_come_are_counted() {
        let mut reception = Reception::default();
        for (count, age) in [(5, 10), (6, 30), (9, 20)] {
            reception.note(count, age, u64::from(count));
        }
        assert_eq!((reception.received, reception.lost), (3, 2));
        let ages = (reception.age_ns, reception.age_ns_max, reception.at_ns);
        assert_eq!(ages, (20, 30, 9));
        // One that was late after all.
        reception.note(7, 90, 10);
        assert_eq!(reception.lost, 1);
    }

    #[test]
    fn orders_of_the_course_and_of_the_pilot_are_given_in_their_time() {
        let (tell, told) = channel();
        let mut orders = Orders {
            told,
            start_ns: 0,
            all: vec![(0.5, Order::Arm), (1.0, Order::TakeOff)],
        };
        assert_eq!(orders.due(9_000_000_000), Some((0, Order::None)));
        tell.send(PilotLine::Start(1_000_000_000)).unwrap();
        assert_eq!(orders.due(1_600_000_000), Some((1, Order::Arm)));
        assert_eq!(orders.due(2_000_000_000), Some((2, Order::TakeOff)));
        tell.send(PilotLine::Order(Order::Land)).unwrap();
        assert_eq!(orders.due(3_000_000_000), Some((3, Order::Land)));
        drop(tell);
        assert_eq!(orders.due(3_000_000_000), None);
    }
}
