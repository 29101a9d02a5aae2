//! Values on their way between loops and processes: datagrams of the kernel over loopback, or ports on a V-Bus.
//!
//! Each stream of values has one reader, which takes the newest.

use std::io;
use std::marker::PhantomData;
use std::net::{Ipv4Addr, UdpSocket};
use std::path::PathBuf;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tautline::{
    BusConfig, Destination, Node, NodeConfig, NodeName, PortNumber, Priority, SamplingOptions,
    SamplingPort, bus_neighbour,
};
use tautline_flight::message::{MESSAGE_BYTES_MAX, decode, encode};

/// Time for the others to open their ports. Lower: a start beside many compilers fails. Higher: a child that died is
/// waited for.
const PATIENCE: Duration = Duration::from_secs(20);
/// Number of the port from which a stream is sent, beside the stream's own.
const SENDERS: u16 = 100;

/// A stream of values; its number is that of its reader's port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    /// Inertial units, to the rate loop.
    Imu = 1,
    /// Other sensors, to the navigator.
    Sensors,
    /// Motor speeds, to the world.
    Motors,
    /// Sums of turns, to the attitude loop.
    Turned,
    /// Turn rates, to the rate loop.
    RateTarget,
    /// Estimate, to the navigator.
    Attitude,
    /// Target, to the attitude loop.
    AttitudeTarget,
    /// State of the flight, to the world, which records it.
    Status,
    /// Signs of life of Linux, to the navigator.
    Companion,
}

/// Streams that there are.
const STREAMS: usize = 9;

impl Stream {
    /// Node that reads it.
    fn reader(self) -> Seat {
        match self {
            Stream::Motors | Stream::Status => Seat::World,
            _ => Seat::Controller,
        }
    }
}

/// A process of a flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seat {
    World,
    Controller,
    Ground,
}

impl Seat {
    fn name(self) -> &'static str {
        match self {
            Seat::World => "world",
            Seat::Controller => "controller",
            Seat::Ground => "ground",
        }
    }
}

/// Means by which the values of one flight travel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Means {
    /// UDP over loopback: the port of each stream.
    Sockets(Vec<u16>),
    /// A bus in this directory.
    Bus(PathBuf),
}

impl Means {
    /// Ports that nobody else has at the moment.
    pub(crate) fn sockets() -> io::Result<Means> {
        let sockets = (0..STREAMS).map(|_| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)));
        let sockets: Vec<UdpSocket> = sockets.collect::<io::Result<_>>()?;
        let ports = sockets.iter().map(|one| Ok(one.local_addr()?.port()));
        Ok(Means::Sockets(ports.collect::<io::Result<_>>()?))
    }

    /// Opens one process's side.
    pub(crate) fn open(&self, seat: Seat) -> io::Result<Wires> {
        let node = match self {
            Means::Sockets(_) => None,
            Means::Bus(directory) => {
                let name = |seat: Seat| seat.name().parse::<NodeName>().map_err(io::Error::other);
                let bus = BusConfig::new(&directory.display().to_string(), name(seat)?);
                let mut config = NodeConfig::vbus(bus);
                for peer in [Seat::World, Seat::Controller] {
                    let neighbour = bus_neighbour(name(peer)?);
                    config = config.with_neighbour(neighbour).map_err(io::Error::other)?;
                }
                Some(Node::open(config).map_err(io::Error::other)?)
            }
        };
        Ok(Wires {
            means: self.clone(),
            node,
        })
    }
}

/// One process's streams. The node of a bus lives as long as this.
pub(crate) struct Wires {
    means: Means,
    node: Option<Node>,
}

impl Wires {
    fn port(&self, number: u16) -> io::Result<SamplingPort> {
        let node = self.node.as_ref().ok_or(io::ErrorKind::NotFound)?;
        let number = PortNumber::try_from(number).map_err(io::Error::other)?;
        let options = SamplingOptions {
            value_bytes_max: MESSAGE_BYTES_MAX,
            ..SamplingOptions::default()
        };
        node.sampling_port(number, &options)
            .map_err(io::Error::other)
    }

    /// Opens the reading end of a stream.
    pub(crate) fn inbox<M: Default + DeserializeOwned>(
        &self,
        stream: Stream,
    ) -> io::Result<Inbox<M>> {
        let receiver = match &self.means {
            Means::Sockets(ports) => {
                let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, ports[stream as usize - 1]))?;
                socket.set_nonblocking(true)?;
                Receiver::Socket(socket)
            }
            Means::Bus(_) => Receiver::Port(Box::new(self.port(stream as u16)?)),
        };
        Ok(Inbox {
            receiver,
            value: M::default(),
            buffer: [0; MESSAGE_BYTES_MAX],
        })
    }

    /// Opens the writing end of a stream; waits for its reader on a bus.
    pub(crate) fn outbox<M: Serialize>(&self, stream: Stream) -> io::Result<Outbox<M>> {
        let sender = match &self.means {
            Means::Sockets(ports) => {
                let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
                socket.connect((Ipv4Addr::LOCALHOST, ports[stream as usize - 1]))?;
                socket.set_nonblocking(true)?;
                Sender::Socket(socket)
            }
            Means::Bus(_) => {
                let mut port = self.port(SENDERS + stream as u16)?;
                let number = PortNumber::try_from(stream as u16).map_err(io::Error::other)?;
                let to = port
                    .destination_until(stream.reader().name(), number, tautline::now() + PATIENCE)
                    .map_err(io::Error::other)?;
                Sender::Port(Box::new(port), to)
            }
        };
        Ok(Outbox {
            sender,
            buffer: [0; MESSAGE_BYTES_MAX],
            values: PhantomData,
        })
    }
}

enum Receiver {
    Socket(UdpSocket),
    Port(Box<SamplingPort>),
}

/// Reading end of a stream.
pub(crate) struct Inbox<M> {
    receiver: Receiver,
    value: M,
    buffer: [u8; MESSAGE_BYTES_MAX],
}

impl<M: DeserializeOwned> Inbox<M> {
    /// The newest value; the one before as long as there is none. Never waits.
    pub(crate) fn newest(&mut self) -> &M {
        let mut newest = None;
        match &mut self.receiver {
            Receiver::Socket(socket) => {
                // Values that waited are passed over: the last one counts.
                while let Ok(length) = socket.recv(&mut self.buffer) {
                    newest = decode(&self.buffer[..length]);
                }
            }
            Receiver::Port(port) => {
                if let Ok(Some(sample)) = port.read(&mut self.buffer)
                    && sample.new
                {
                    newest = decode(&self.buffer[..sample.length]);
                }
            }
        }
        if let Some(value) = newest {
            self.value = value;
        }
        &self.value
    }
}

enum Sender {
    Socket(UdpSocket),
    Port(Box<SamplingPort>, Destination),
}

/// Writing end of a stream.
pub(crate) struct Outbox<M> {
    sender: Sender,
    buffer: [u8; MESSAGE_BYTES_MAX],
    values: PhantomData<fn(M)>,
}

impl<M: Serialize> Outbox<M> {
    /// Sends a value. One that cannot be sent is lost: its reader notices by the count.
    pub(crate) fn send(&mut self, value: &M) {
        let Some(bytes) = encode(value, &mut self.buffer) else {
            return;
        };
        match &mut self.sender {
            Sender::Socket(socket) => drop(socket.send(bytes)),
            Sender::Port(port, to) => drop(port.send(*to, Priority::HIGHEST, bytes)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tautline_flight::message::{Motors, Status};

    fn travels(means: &Means) {
        let (world, controller) = (
            means.open(Seat::World).unwrap(),
            means.open(Seat::Controller).unwrap(),
        );
        let mut inbox = world.inbox::<Motors>(Stream::Motors).unwrap();
        assert_eq!(inbox.newest().count, 0);
        let mut outbox = controller.outbox::<Motors>(Stream::Motors).unwrap();
        for count in 1..=3 {
            outbox.send(&Motors {
                count,
                ..Motors::default()
            });
        }
        assert_eq!(inbox.newest().count, 3);
        assert_eq!(inbox.newest().count, 3, "the last value stays");
        // A process may speak with itself.
        let mut own = world.inbox::<Status>(Stream::Status).unwrap();
        let mut to_own = world.outbox::<Status>(Stream::Status).unwrap();
        to_own.send(&Status {
            waypoint: 7,
            ..Status::default()
        });
        assert_eq!(own.newest().waypoint, 7);
    }

    #[test]
    fn values_travel_by_sockets_and_by_a_bus() {
        travels(&Means::sockets().unwrap());
        let directory = tautline_state::TemporaryDirectory::make("taut-flight-test").unwrap();
        travels(&Means::Bus(directory.path().join("bus")));
    }
}
