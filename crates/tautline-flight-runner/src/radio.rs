//! The remote control on a network: a pilot on a second node, 50 frames a second, and a receiver beside the craft that
//! hands them to the world's antenna. Over ports, through the control process of the craft's interface; or over the
//! kernel's UDP, as an ordinary program has it.

use std::fs::File;
use std::io::{self, BufRead, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tautline::{
    Destination, Form, MacAddress, Neighbour, Node, NodeConfig, PortNumber, Priority,
    QueuingOptions, QueuingPort,
};
use tautline_flight::message::{MESSAGE_BYTES_MAX, Order, Remote, decode, encode};
use tautline_testbed::child::enter;
use tautline_testbed::hosts::cell::INTERFACE;
use tautline_testbed::sys::{monotonic_ns, set_fifo, sleep_until};

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
const PRIORITY: u8 = 20;
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
        let port = node.queuing_port(number, &QueuingOptions::default());
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

/// Settings of the receiver.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ReceiverSettings {
    pub(crate) end: End,
    pub(crate) means: Means,
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
                match port.receive_until(tautline::now() + CALL_TIME_MAX, buffer) {
                    Ok(message) => message.map(|message| message.length),
                    // At this priority nobody else would run.
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

/// Sends frames until standard input ends. Its first line is the start of the world's time, from which orders count.
pub(crate) fn fly(settings: &PilotSettings) -> io::Result<()> {
    let end = &settings.end;
    end.enter()?;
    let mut way = if end.has_ports {
        // Real time is ordered by hand where people use it; the ordinary program has no such priority.
        let _ = set_fifo(PRIORITY);
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
    let start_ns = Arc::new(AtomicU64::new(0));
    let (heard, ended) = (Arc::clone(&start_ns), Arc::new(AtomicU64::new(0)));
    let over = Arc::clone(&ended);
    thread::spawn(move || {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            heard.store(line.parse().unwrap_or(0), Ordering::Relaxed);
        }
        over.store(1, Ordering::Relaxed);
    });
    let orders = settings.course.scene(settings.seed).orders;
    let mut sent = Sent {
        link: way.link(),
        at_ns: Vec::new(),
    };
    let mut buffer = [0; MESSAGE_BYTES_MAX];
    let mut due = monotonic_ns();
    while ended.load(Ordering::Relaxed) == 0 {
        due += FRAME_NS;
        sleep_until(due);
        let now = monotonic_ns();
        let start = start_ns.load(Ordering::Relaxed);
        let at = if start == 0 {
            0.0
        } else {
            now.saturating_sub(start) as f64 * 1e-9
        };
        let given = orders
            .iter()
            .filter(|(due, _)| *due <= at)
            .map(|(_, order)| *order);
        let (order_count, order) =
            given.fold((0, Order::None), |(count, _), order| (count + 1, order));
        sent.at_ns.push(now);
        let frame = Frame {
            remote: Remote {
                count: sent.at_ns.len() as u32,
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
        let _ = set_fifo(PRIORITY);
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
    while !ended() {
        let Some(length) = way.receive(&mut buffer) else {
            continue;
        };
        let Some(frame) = decode::<Frame>(&buffer[..length]) else {
            continue;
        };
        let age = monotonic_ns().saturating_sub(frame.sent_ns);
        to_world.send(&frame.remote);
        heard.frames.push((frame.remote.count, age));
    }
    heard.stream_bytes = stream_bytes.load(Ordering::Relaxed);
    say(&serde_json::to_string(&heard)?);
    Ok(())
}

/// Accepts streams of others and throws them away, at ordinary priority.
fn take_streams(bytes: Arc<AtomicU64>) -> io::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, TCP_PORT))?;
    thread::spawn(move || {
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
