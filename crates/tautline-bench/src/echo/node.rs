//! Round trips over Tautline's own links, and over the floor below them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tautline::{
    Destination, LinkKind, MacAddress, Node, Priority, QueuingOptions, QueuingPort, ReceiveError,
    SamplingOptions, SamplingPort, UdpPort,
};
use tautline_testbed::hosts::{Host, Hosts};

use crate::nodes::{HostNodes, NodesError, PEER, port_number};

use super::floor::Floor;
use super::{BLOCKED_LOOK, Echo, EchoError, Ends, Path, PathOptions, RoundTrip, Seen, answers};

/// Port numbers, one for each path, since paths share a node.
const QUEUING: u16 = 1;
const SAMPLING: u16 = 2;
const PACKET: u16 = 3;
/// The UDP port of the path of that name.
const PLAIN_UDP: u16 = 7102;
const PRIORITY: Priority = Priority::HIGHEST;

/// Opens a port on each host and the way to the other.
fn ports<P: Send>(
    path: Path,
    nodes: &HostNodes,
    hosts: &Hosts,
    open: impl Fn(&Node) -> Result<P, tautline::PortError> + Sync,
    aim: impl Fn(&mut P) -> Result<Destination, tautline::PortError>,
) -> Result<[(P, Destination); 2], EchoError> {
    let side = |host: Host| {
        let mut port = nodes
            .port(hosts, host, &open)
            .map_err(|error| not_available(path, &error))?;
        let to = aim(&mut port).map_err(|error| not_available(path, &error))?;
        Ok::<_, EchoError>((port, to))
    };
    Ok([side(Host::A)?, side(Host::B)?])
}

/// The nodes that paths on one link share.
pub(super) fn nodes(
    path: Path,
    hosts: &Hosts,
    cable: usize,
    link: LinkKind,
) -> Result<HostNodes, EchoError> {
    HostNodes::open(hosts, cable, link, None).map_err(|error| match error {
        NodesError::Hosts(error) => error.into(),
        other => not_available(path, &other),
    })
}

fn not_available(path: Path, error: &dyn std::error::Error) -> EchoError {
    EchoError::NotAvailable {
        path,
        reason: error.to_string(),
    }
}

/// A receive or a wait that the kernel refused.
fn refused(error: ReceiveError) -> EchoError {
    EchoError::Io {
        operation: "receive on a port",
        source: std::io::Error::other(error),
    }
}

pub(super) fn queuing(
    path: Path,
    nodes: &HostNodes,
    hosts: &Hosts,
    options: &PathOptions,
) -> Result<Ends, EchoError> {
    let own = port_number(if path == Path::Packet {
        PACKET
    } else {
        QUEUING
    });
    let settings = queuing_options(options);
    let ends = ports(
        path,
        nodes,
        hosts,
        |node| node.queuing_port(own, &settings),
        |port| port.destination(PEER, own),
    )?;
    Ok(speakers("queuing port", ends, nodes, options))
}

pub(super) fn plain_udp(
    path: Path,
    nodes: &HostNodes,
    hosts: &Hosts,
    options: &PathOptions,
) -> Result<Ends, EchoError> {
    let settings = queuing_options(options);
    let ends = ports(
        path,
        nodes,
        hosts,
        |node| node.udp_port(PLAIN_UDP, &settings),
        |port| port.destination(PEER, PLAIN_UDP),
    )?;
    Ok(speakers("port of plain UDP", ends, nodes, options))
}

/// Both sides spin all the time, like the kernel path that they are compared with.
fn queuing_options(options: &PathOptions) -> QueuingOptions {
    QueuingOptions {
        message_bytes_max: options.payload_bytes_max.max(1484),
        spin: options.time_limit.max(BLOCKED_LOOK),
        ..QueuingOptions::default()
    }
}

pub(super) fn sampling(
    path: Path,
    nodes: &HostNodes,
    hosts: &Hosts,
    options: &PathOptions,
) -> Result<Ends, EchoError> {
    check_size(options, SamplingPort::VALUE_BYTES_MAX)?;
    let own = port_number(SAMPLING);
    let settings = SamplingOptions {
        spin: options.time_limit.max(BLOCKED_LOOK),
        ..SamplingOptions::default()
    };
    let ends = ports(
        path,
        nodes,
        hosts,
        |node| node.sampling_port(own, &settings),
        |port| port.destination(PEER, own),
    )?;
    Ok(speakers("sampling port", ends, nodes, options))
}

/// A port, as far as a round trip needs one.
trait Speaks: Send {
    /// Bytes that a receive buffer must have.
    fn buffer_bytes(&self) -> usize;

    /// Sends; what could not be sent is lost, which the time limit reports.
    fn send(&mut self, to: Destination, message: &[u8]);

    /// The length of the next message, or nothing until the deadline.
    fn receive_until(
        &mut self,
        deadline: tautline::Instant,
        buffer: &mut [u8],
    ) -> Result<Option<usize>, ReceiveError>;
}

impl Speaks for QueuingPort {
    fn buffer_bytes(&self) -> usize {
        self.message_bytes_max()
    }

    fn send(&mut self, to: Destination, message: &[u8]) {
        let _lost = QueuingPort::send(self, to, PRIORITY, message);
    }

    fn receive_until(
        &mut self,
        deadline: tautline::Instant,
        buffer: &mut [u8],
    ) -> Result<Option<usize>, ReceiveError> {
        Ok(QueuingPort::receive_until(self, deadline, buffer)?.map(|message| message.length))
    }
}

impl Speaks for UdpPort {
    fn buffer_bytes(&self) -> usize {
        self.message_bytes_max()
    }

    fn send(&mut self, to: Destination, message: &[u8]) {
        let _lost = self.send_to(to, PRIORITY, message);
    }

    fn receive_until(
        &mut self,
        deadline: tautline::Instant,
        buffer: &mut [u8],
    ) -> Result<Option<usize>, ReceiveError> {
        Ok(UdpPort::receive_until(self, deadline, buffer)?.map(|datagram| datagram.length))
    }
}

impl Speaks for SamplingPort {
    fn buffer_bytes(&self) -> usize {
        SamplingPort::VALUE_BYTES_MAX
    }

    fn send(&mut self, to: Destination, message: &[u8]) {
        let _lost = SamplingPort::send(self, to, PRIORITY, message);
    }

    fn receive_until(
        &mut self,
        deadline: tautline::Instant,
        buffer: &mut [u8],
    ) -> Result<Option<usize>, ReceiveError> {
        Ok(self
            .read_new_until(deadline, buffer)?
            .map(|sample| sample.length))
    }
}

/// An end of a path over a port.
struct Speaker<P> {
    port: P,
    to: Destination,
    buffer: Vec<u8>,
    time_limit: Duration,
    description: String,
}

fn speakers<P: Speaks + 'static>(
    what: &str,
    ends: [(P, Destination); 2],
    nodes: &HostNodes,
    options: &PathOptions,
) -> Ends {
    let [a, b] = ends.map(|(port, to)| Speaker {
        buffer: vec![0; port.buffer_bytes()],
        port,
        to,
        time_limit: options.time_limit,
        description: format!("{what}, both sides spin; {}", nodes.describe()),
    });
    (Box::new(a), Box::new(b))
}

impl<P: Speaks> RoundTrip for Speaker<P> {
    fn round_trip(&mut self, payload: &[u8]) -> Result<(), EchoError> {
        let deadline = tautline::now() + self.time_limit;
        self.port.send(self.to, payload);
        loop {
            let message = self.port.receive_until(deadline, &mut self.buffer);
            match message.map_err(refused)? {
                Some(length) if answers(&self.buffer[..length], payload) => return Ok(()),
                Some(_) => {}
                None => return Err(EchoError::TimedOut),
            }
        }
    }

    fn describe(&self) -> String {
        self.description.clone()
    }
}

impl<P: Speaks> Echo for Speaker<P> {
    fn serve(
        &mut self,
        _payload_bytes: usize,
        stop: &AtomicBool,
        seen: &mut Seen<'_>,
    ) -> Result<(), EchoError> {
        while !stop.load(Ordering::Relaxed) {
            let deadline = tautline::now() + BLOCKED_LOOK / 4;
            let message = self.port.receive_until(deadline, &mut self.buffer);
            if let Some(length) = message.map_err(refused)? {
                seen(&self.buffer[..length]);
                self.port.send(self.to, &self.buffer[..length]);
            }
        }
        Ok(())
    }
}

/// The floor, on the hosts' second cable: its program cannot share an interface with the demux.
pub(super) fn floor(hosts: &Hosts, options: &PathOptions) -> Result<Ends, EchoError> {
    check_size(options, super::floor::PAYLOAD_BYTES_MAX)?;
    let open = |host: Host| {
        let [own, peer] = [host, host.peer()].map(|host| MacAddress(hosts.end(host, 1).mac()));
        let interface = hosts.end(host, 1).interface();
        let floor = hosts.inside(host, || Floor::open(&interface, own, peer))?;
        floor.map_err(|error| not_available(Path::Floor, error.as_ref()))
    };
    let end = |floor| Barest {
        floor,
        buffer: vec![0; options.payload_bytes_max],
        time_limit: options.time_limit,
    };
    Ok((Box::new(end(open(Host::A)?)), Box::new(end(open(Host::B)?))))
}

struct Barest {
    floor: Floor,
    buffer: Vec<u8>,
    time_limit: Duration,
}

/// Empty looks between two looks at the clock, as in a port's own wait.
const LOOKS_PER_CLOCK: u32 = 16;

impl Barest {
    fn receive(&mut self, bytes: usize, deadline: Instant) -> bool {
        loop {
            for _ in 0..LOOKS_PER_CLOCK {
                if self.floor.receive(&mut self.buffer[..bytes]) {
                    return true;
                }
                std::hint::spin_loop();
            }
            if Instant::now() >= deadline {
                return false;
            }
        }
    }
}

impl RoundTrip for Barest {
    fn round_trip(&mut self, payload: &[u8]) -> Result<(), EchoError> {
        let deadline = Instant::now() + self.time_limit;
        let _lost = self.floor.send(payload);
        while self.receive(payload.len(), deadline) {
            if answers(&self.buffer[..payload.len()], payload) {
                return Ok(());
            }
        }
        Err(EchoError::TimedOut)
    }

    fn describe(&self) -> String {
        "BPF copies the frame to mapped memory, packet socket back; no ports, both sides spin; second cable".to_owned()
    }
}

impl Echo for Barest {
    fn serve(
        &mut self,
        payload_bytes: usize,
        stop: &AtomicBool,
        seen: &mut Seen<'_>,
    ) -> Result<(), EchoError> {
        while !stop.load(Ordering::Relaxed) {
            if self.receive(payload_bytes, Instant::now() + BLOCKED_LOOK / 4) {
                seen(&self.buffer[..payload_bytes]);
                let _lost = self.floor.send(&self.buffer[..payload_bytes]);
            }
        }
        Ok(())
    }
}

fn check_size(options: &PathOptions, bytes_max: usize) -> Result<(), EchoError> {
    if options.payload_bytes_max > bytes_max {
        return Err(EchoError::PayloadSize {
            bytes: options.payload_bytes_max,
            bytes_max,
        });
    }
    Ok(())
}
