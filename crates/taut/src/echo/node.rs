//! Round trips over Tautline's own links, and over the floor below them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tautline::floor::Floor;
use tautline::{
    Destination, LinkKind, MacAddress, Node, Priority, QueuingOptions, QueuingPort, ReceiveError,
    SamplingOptions, SamplingPort,
};
use tautline_lab::hosts::{Host, Hosts};

use crate::nodes::{HostNodes, NodesError, PEER, port_number};

use super::{BLOCKED_LOOK, Echo, EchoError, Ends, Path, PathOptions, RoundTrip, Seen, answers};

/// Port numbers, one for each path, since paths share a node.
const QUEUING: u16 = 1;
const SAMPLING: u16 = 2;
const PACKET: u16 = 3;
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
pub(super) fn nodes(path: Path, hosts: &Hosts, link: LinkKind) -> Result<HostNodes, EchoError> {
    HostNodes::open(hosts, 0, link, None).map_err(|error| match error {
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
    let settings = QueuingOptions {
        message_bytes_max: options.payload_bytes_max.max(1484),
        // Both sides spin all the time, like the kernel path that they are compared with.
        spin: options.time_limit.max(BLOCKED_LOOK),
        ..QueuingOptions::default()
    };
    let [a, b] = ports(
        path,
        nodes,
        hosts,
        |node| node.queuing_port(own, &settings),
        |port| port.destination(PEER, own),
    )?;
    let end = |(port, to), description| Queuing {
        buffer: vec![0; QueuingPort::message_bytes_max(&port)],
        port,
        to,
        time_limit: options.time_limit,
        description,
    };
    let description = format!("queuing port, both sides spin; {}", nodes.describe());
    Ok((
        Box::new(end(a, description.clone())),
        Box::new(end(b, description)),
    ))
}

struct Queuing {
    port: QueuingPort,
    to: Destination,
    buffer: Vec<u8>,
    time_limit: Duration,
    description: String,
}

impl RoundTrip for Queuing {
    fn round_trip(&mut self, payload: &[u8]) -> Result<(), EchoError> {
        let deadline = tautline::now() + self.time_limit;
        // A frame that could not be sent is lost, which the time limit reports.
        let _lost = self.port.send(self.to, PRIORITY, payload);
        loop {
            let message = self.port.receive_until(deadline, &mut self.buffer);
            match message.map_err(refused)? {
                Some(message) if answers(&self.buffer[..message.length], payload) => return Ok(()),
                Some(_) => {}
                None => return Err(EchoError::TimedOut),
            }
        }
    }

    fn describe(&self) -> String {
        self.description.clone()
    }
}

impl Echo for Queuing {
    fn serve(
        &mut self,
        _payload_bytes: usize,
        stop: &AtomicBool,
        seen: &mut Seen<'_>,
    ) -> Result<(), EchoError> {
        while !stop.load(Ordering::Relaxed) {
            let deadline = tautline::now() + BLOCKED_LOOK / 4;
            let message = self.port.receive_until(deadline, &mut self.buffer);
            if let Some(message) = message.map_err(refused)? {
                seen(&self.buffer[..message.length]);
                let _lost = self
                    .port
                    .send(self.to, PRIORITY, &self.buffer[..message.length]);
            }
        }
        Ok(())
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
    let [a, b] = ports(
        path,
        nodes,
        hosts,
        |node| node.sampling_port(own, &settings),
        |port| port.destination(PEER, own),
    )?;
    let end = |(port, to), description| Sampling {
        port,
        to,
        buffer: vec![0; SamplingPort::VALUE_BYTES_MAX],
        time_limit: options.time_limit,
        description,
    };
    let description = format!("sampling port, both sides spin; {}", nodes.describe());
    Ok((
        Box::new(end(a, description.clone())),
        Box::new(end(b, description)),
    ))
}

struct Sampling {
    port: SamplingPort,
    to: Destination,
    buffer: Vec<u8>,
    time_limit: Duration,
    description: String,
}

impl RoundTrip for Sampling {
    fn round_trip(&mut self, payload: &[u8]) -> Result<(), EchoError> {
        let deadline = tautline::now() + self.time_limit;
        let _lost = self.port.send(self.to, PRIORITY, payload);
        loop {
            let sample = self.port.read_new_until(deadline, &mut self.buffer);
            match sample.map_err(refused)? {
                Some(sample) if answers(&self.buffer[..sample.length], payload) => return Ok(()),
                Some(_) => {}
                None => return Err(EchoError::TimedOut),
            }
        }
    }

    fn describe(&self) -> String {
        self.description.clone()
    }
}

impl Echo for Sampling {
    fn serve(
        &mut self,
        _payload_bytes: usize,
        stop: &AtomicBool,
        seen: &mut Seen<'_>,
    ) -> Result<(), EchoError> {
        while !stop.load(Ordering::Relaxed) {
            let deadline = tautline::now() + BLOCKED_LOOK / 4;
            let sample = self.port.read_new_until(deadline, &mut self.buffer);
            if let Some(sample) = sample.map_err(refused)? {
                seen(&self.buffer[..sample.length]);
                let _lost = self
                    .port
                    .send(self.to, PRIORITY, &self.buffer[..sample.length]);
            }
        }
        Ok(())
    }
}

/// The floor, on the hosts' second cable: its program cannot share an interface with the demux.
pub(super) fn floor(hosts: &Hosts, options: &PathOptions) -> Result<Ends, EchoError> {
    check_size(options, tautline::floor::PAYLOAD_BYTES_MAX)?;
    let open = |host: Host| {
        let peer = MacAddress(hosts.end(host.peer(), 1).mac());
        let interface = hosts.end(host, 1).interface();
        let floor = hosts.inside(host, || Floor::open(&interface, peer))?;
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
