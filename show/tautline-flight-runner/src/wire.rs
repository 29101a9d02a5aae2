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
use tautline::config::BusConfig;
use tautline::port::SamplingOptions;
use tautline::{
    Destination, Node, NodeConfig, NodeName, PortNumber, Priority, SamplingPort, bus_neighbour,
};
use tautline_flight::loops::{Reads, Writes};
pub(crate) use tautline_flight::loops::{Role, Stream};
use tautline_flight::message::{MESSAGE_BYTES_MAX, decode, encode};
use tautline_flight::vector::{Rotation, Vector};
use tautline_flight::vision::PICTURE_BYTES;

/// Time for the others to open their ports. Lower: a start beside many compilers fails. Higher: a child that died is
/// waited for.
const PATIENCE: Duration = Duration::from_secs(20);

/// Place and attitude of the camera, as the world has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct View {
    /// World's time, microseconds; 0 before the first value.
    pub(crate) time_us: u64,
    pub(crate) place: Vector,
    pub(crate) attitude: Rotation,
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
    /// Ports that no other program has at the moment.
    pub(crate) fn sockets() -> io::Result<Means> {
        let sockets = Stream::ALL
            .iter()
            .map(|_| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)));
        let sockets: Vec<UdpSocket> = sockets.collect::<io::Result<_>>()?;
        let ports = sockets.iter().map(|one| Ok(one.local_addr()?.port()));
        Ok(Means::Sockets(ports.collect::<io::Result<_>>()?))
    }

    /// Opens one process's side.
    pub(crate) fn open(&self, role: Role) -> io::Result<Wires> {
        let node = match self {
            Means::Sockets(_) => None,
            Means::Bus(directory) => {
                let name = |role: Role| role.name().parse::<NodeName>().map_err(io::Error::other);
                let bus = BusConfig::new(&directory.display().to_string(), name(role)?);
                let mut config = NodeConfig::vbus(bus);
                for peer in Role::READERS {
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
    fn port(&self, number: u16, value_bytes_max: usize) -> io::Result<SamplingPort> {
        let node = self.node.as_ref().ok_or(io::ErrorKind::NotFound)?;
        let number = PortNumber::try_from(number).map_err(io::Error::other)?;
        let options = SamplingOptions {
            value_bytes_max,
            ..SamplingOptions::default()
        };
        node.sampling(number)
            .options(&options)
            .open()
            .map_err(io::Error::other)
    }

    /// Opens the reading end of a stream.
    pub(crate) fn inbox<M: Default + DeserializeOwned>(
        &self,
        stream: Stream,
    ) -> io::Result<Inbox<M>> {
        Ok(Inbox {
            receiver: self.receiver(stream, MESSAGE_BYTES_MAX)?,
            value: M::default(),
            buffer: [0; MESSAGE_BYTES_MAX],
        })
    }

    /// Opens the writing end of a stream; waits for its reader on a bus.
    pub(crate) fn outbox<M: Serialize>(&self, stream: Stream) -> io::Result<Outbox<M>> {
        Ok(Outbox::new(self.sender(
            stream,
            MESSAGE_BYTES_MAX,
            PATIENCE,
        )?))
    }

    /// Opens the writing end of a stream whose reader or writer is a soft process: does not wait, and finds the
    /// reader when it comes, and when it comes again.
    pub(crate) fn soft_outbox<M: Serialize>(&self, stream: Stream) -> io::Result<Outbox<M>> {
        Ok(Outbox::new(self.sender(
            stream,
            MESSAGE_BYTES_MAX,
            Duration::ZERO,
        )?))
    }

    /// Opens the reading end of the pictures.
    pub(crate) fn pictures_in(&self) -> io::Result<PictureInbox> {
        Ok(PictureInbox {
            receiver: self.receiver(Stream::Picture, PICTURE_BYTES)?,
            buffer: vec![0; PICTURE_BYTES],
        })
    }

    /// Opens the writing end of the pictures.
    pub(crate) fn pictures_out(&self) -> io::Result<PictureOutbox> {
        Ok(PictureOutbox {
            sender: self.sender(Stream::Picture, PICTURE_BYTES, Duration::ZERO)?,
            buffer: vec![0; PICTURE_BYTES],
        })
    }

    fn receiver(&self, stream: Stream, bytes_max: usize) -> io::Result<Receiver> {
        Ok(match &self.means {
            Means::Sockets(ports) => {
                let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, ports[stream.index()]))?;
                socket.set_nonblocking(true)?;
                Receiver::Socket(socket)
            }
            Means::Bus(_) => Receiver::Port(Box::new(self.port(stream.number(), bytes_max)?)),
        })
    }

    fn sender(&self, stream: Stream, bytes_max: usize, patience: Duration) -> io::Result<Sender> {
        Ok(match &self.means {
            Means::Sockets(ports) => {
                let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
                socket.connect((Ipv4Addr::LOCALHOST, ports[stream.index()]))?;
                socket.set_nonblocking(true)?;
                Sender::Socket(socket)
            }
            Means::Bus(_) => {
                let mut port = self.port(stream.writers_number(), bytes_max)?;
                let number = PortNumber::try_from(stream.number()).map_err(io::Error::other)?;
                let name = stream.reader().name();
                let to = match patience.is_zero() {
                    true => port.destination(name, number),
                    false => port.destination_until(name, number, tautline::now() + patience),
                };
                Sender::Port(Box::new(port), to.map_err(io::Error::other)?)
            }
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
                if let Ok(Some(sample)) = port.read_into(&mut self.buffer)
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

impl<M: Copy + DeserializeOwned> Reads<M> for Inbox<M> {
    fn newest(&mut self) -> M {
        *Inbox::newest(self)
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
    fn new(sender: Sender) -> Outbox<M> {
        Outbox {
            sender,
            buffer: [0; MESSAGE_BYTES_MAX],
            values: PhantomData,
        }
    }

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

impl<M: Serialize> Writes<M> for Outbox<M> {
    fn send(&mut self, value: &M) {
        Outbox::send(self, value);
    }
}

/// Reading end of the pictures.
pub(crate) struct PictureInbox {
    receiver: Receiver,
    buffer: Vec<u8>,
}

impl PictureInbox {
    /// Copies the newest message, if there is a new one; no other copy is made on a bus. Never waits.
    pub(crate) fn new_message(&mut self) -> Option<&[u8]> {
        let mut newest = None;
        match &mut self.receiver {
            Receiver::Socket(socket) => {
                while let Ok(length) = socket.recv(&mut self.buffer) {
                    newest = Some(length);
                }
            }
            Receiver::Port(port) => {
                if let Ok(Some(sample)) = port.read_into(&mut self.buffer)
                    && sample.new
                {
                    newest = Some(sample.length);
                }
            }
        }
        newest.map(|length| &self.buffer[..length])
    }
}

/// Writing end of the pictures.
pub(crate) struct PictureOutbox {
    sender: Sender,
    buffer: Vec<u8>,
}

impl PictureOutbox {
    /// Has a message drawn, on a bus where its reader will copy it from, and sends it; returns whether it left.
    pub(crate) fn send(&mut self, draw: impl FnOnce(&mut [u8])) -> bool {
        match &mut self.sender {
            Sender::Socket(socket) => {
                draw(&mut self.buffer);
                socket.send(&self.buffer).is_ok()
            }
            Sender::Port(port, to) => match port.lend(*to, Priority::LOWEST, PICTURE_BYTES) {
                Ok(mut loan) => {
                    draw(&mut loan);
                    loan.send().is_ok()
                }
                Err(_) => false,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tautline_flight::message::{Motors, Status};
    use tautline_flight::vision::{HEAD_BYTES, PictureHead};

    fn travels(means: &Means) {
        let (world, controller) = (
            means.open(Role::World).unwrap(),
            means.open(Role::Controller).unwrap(),
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

    /// Pictures reach a mapping that comes later than the video, and one that comes after that has died.
    fn pictures_travel(means: &Means) {
        let video = means.open(Role::Video).unwrap();
        let mut pictures = video.pictures_out().unwrap();
        for life in 1..=2u32 {
            let mapping = means.open(Role::Mapping).unwrap();
            let mut inbox = mapping.pictures_in().unwrap();
            let end = tautline::now() + PATIENCE;
            let head = loop {
                assert!(tautline::now() < end, "no picture came in life {life}");
                pictures.send(|message| {
                    let head = PictureHead {
                        count: life,
                        ..PictureHead::default()
                    };
                    head.write(message);
                    message[HEAD_BYTES..].fill(life as u8);
                });
                if let Some((head, pixels)) = inbox.new_message().and_then(PictureHead::read) {
                    assert!(pixels.iter().all(|pixel| *pixel == life as u8));
                    break head;
                }
                std::thread::sleep(Duration::from_millis(5));
            };
            assert_eq!(head.count, life);
            assert!(inbox.new_message().is_none(), "a picture is new once");
        }
    }

    #[test]
    fn values_travel_by_sockets_and_by_a_bus() {
        travels(&Means::sockets().unwrap());
        let directory = tautline_state::TemporaryDirectory::make("taut-flight-test").unwrap();
        travels(&Means::Bus(directory.path().join("bus")));
        pictures_travel(&Means::sockets().unwrap());
        pictures_travel(&Means::Bus(directory.path().join("pictures")));
    }
}
