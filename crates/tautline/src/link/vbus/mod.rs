//! The `vbus` link: ports between the processes of one machine, through memory that each side writes on its own pages
//! only (`docs/reference/vbus.md`). No system call on the way of a message while the receiver is awake.
//!
//! * `directory` is a bus in the file system: who is there, and under which name. `place` reaches it by descriptor.
//! * `service` is the one thread of a node that makes connections and sees them end.
//! * `observe` looks at it all without taking part.
//! * `receiver` and `sender` are the two ends of a connection, in the thread of a port.
//! * `publisher` publishes once for many; a `Subscription` is a reader's way to it.

mod backlog;
pub(crate) mod config;
mod connect_state;
mod directory;
mod entry;
mod handover;
mod incoming;
mod mark;
pub mod observe;
mod place;
mod publisher;
mod receiver;
mod sender;
mod service;
mod types;
mod view;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use tautline_proto::neighbour::Neighbour;
use tautline_proto::time::Instant;
use tautline_proto::wire::{PortKey, PortNumber, Priority};
use tautline_shm::vbus::layout::MESSAGE_BYTES_MAX;
pub(crate) use tautline_shm::vbus::layout::PRODUCERS_MAX;
use tautline_shm::vbus::shape::{Kind, LayoutError, Shape};

use self::config::BusConfig;
pub(crate) use self::connect_state::Subscription;
use self::directory::{BindError, Directory};
pub(crate) use self::incoming::{PeerFigures, ReceiverShared, wrapping_sum};
pub(crate) use self::publisher::{Publisher, Reader};
pub(crate) use self::receiver::{BusReceiver, FoundMessage, SlotRef};
pub(crate) use self::sender::BusSender;
use self::service::{Command, Service};
use super::{
    ArrivalClock, Capabilities, Copies, Link, LinkKind, NodeCounters, PortHalf, PortRequest,
    RawFrames, Route,
};
use crate::address::NodeName;
use crate::error::{OpenError, OptionsError, PortError, SendError};
use crate::kind::PortKind;
use crate::limits::DESTINATIONS_MAX;
use crate::message::{Destination, Numbering, PortIdentity};
use crate::statistics::Statistics;
use crate::sys::clock;
use crate::sys::ticks::Ticks;

#[derive(Debug)]
pub(crate) struct BusLink {
    node: NodeName,
    wait: Duration,
    // Before the directory: the thread has descriptors there.
    service: Arc<Service>,
    directory: Arc<Directory>,
}

impl BusLink {
    /// Joins a bus, or makes it.
    ///
    /// # Errors
    /// [`OpenError::BusRefused`].
    pub(crate) fn open(config: &BusConfig) -> Result<Self, OpenError> {
        let refused = |source: std::io::Error| OpenError::BusRefused {
            bus: config.name.clone(),
            source,
        };
        let directory = Arc::new(Directory::open(config).map_err(refused)?);
        let service = Service::start(config, Arc::clone(&directory)).map_err(refused)?;
        Ok(Self {
            node: config.node,
            wait: config.wait,
            service: Arc::new(service),
            directory,
        })
    }
}

/// The directory of a bus, for people to read.
pub(crate) fn place_of_bus(config: &BusConfig) -> String {
    directory::path_of(&config.name).display().to_string()
}

/// A number that no other connection has: stale memory is recognised by it.
fn epoch() -> u64 {
    // The standard library's hasher begins at random.
    let mut hasher = RandomState::new().build_hasher();
    hasher.write_u64(clock::monotonic().as_nanos());
    hasher.finish().max(1)
}

impl Link for BusLink {
    fn kind(&self) -> LinkKind {
        LinkKind::Vbus
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            arrival_clock: ArrivalClock::Sender,
            ethernet_form: false,
            whole_bytes_max: MESSAGE_BYTES_MAX,
            copies: Copies {
                send: 1,
                send_lent: 0,
                receive: 1,
                receive_lent: 0,
            },
            raw_frames: RawFrames::None,
            answers_sender: true,
            polices: false,
            merges: false,
            ..Capabilities::SOCKETS.with_address(None)
        }
    }

    fn open_port(&self, request: PortRequest) -> Result<PortHalf, PortError> {
        let PortKey::Message(number) = request.key else {
            return Err(request.not_offered(self.kind().name()));
        };
        let shape = shape_of(&request)?;
        let sources = match request.shape {
            tautline_shm::region::Shape::Sampling { sources } => sources as usize,
            tautline_shm::region::Shape::Queuing { .. } => 1,
        };
        if sources > PRODUCERS_MAX {
            return Err(PortError::NotOnLink {
                link: "vbus",
                what: "places for more than 32 sources",
            });
        }
        let types = request.types;
        let socket = self.directory.bind(number).map_err(|error| match error {
            BindError::Taken(holder) => PortError::Taken {
                key: request.key,
                holder,
            },
            BindError::Io(error) => PortError::refused("taking the port's name on the bus", error),
        })?;
        let shared = ReceiverShared::new(self.node, number, shape, sources, types)
            .map_err(|error| PortError::refused("taking the port's memory", error))?;
        let shared = Arc::new(shared);
        let listen = Command::Listen(Arc::clone(&shared), socket);
        self.service.handle.command(listen);
        Ok(PortHalf::Bus(Box::new(BusPort {
            bus_receiver: BusReceiver::new(shared),
            identity: PortIdentity::new(),
            flows: Vec::with_capacity(DESTINATIONS_MAX),
            answered: Vec::new(),
            turn: 0,
            publisher: None,
            followed: Vec::new(),
            clock: Ticks::new(),
            wait: self.wait,
            directory: Arc::clone(&self.directory),
            service: Arc::clone(&self.service),
        })))
    }

    fn route(
        &self,
        _neighbour: &Neighbour,
        _to: PortNumber,
        _from: PortNumber,
    ) -> Result<Route, PortError> {
        // Ports on a bus find their peers themselves.
        Err(PortError::NotOnLink {
            link: "vbus",
            what: "frames",
        })
    }

    fn counters(&self) -> NodeCounters {
        NodeCounters::default()
    }
}

fn kind_of(shape: Shape) -> PortKind {
    match shape.kind {
        Kind::Queuing { .. } => PortKind::Queuing,
        Kind::Sampling => PortKind::Sampling,
    }
}

fn shape_of(request: &PortRequest) -> Result<Shape, OptionsError> {
    use tautline_shm::region::Shape as PortShape;
    let kind = match request.shape {
        PortShape::Queuing { depth } => Kind::Queuing { depth },
        PortShape::Sampling { .. } => Kind::Sampling,
    };
    let bytes = request.message_bytes_max;
    let shape = Shape {
        kind,
        message_bytes_max: u32::try_from(bytes).unwrap_or(u32::MAX),
    };
    shape.check().map_err(|error| {
        let why = match error {
            LayoutError {
                field: "memory_bytes",
                ..
            } => "a connection would take more than 257 MiB; lower the depth",
            _ => "1 to 16,777,216 bytes",
        };
        OptionsError::MessageSize { bytes, why }
    })
}

/// Senders on a bus that are not destinations and stay connected to be answered: as many as can be connected to the
/// port at once. Lower: senders that are answered in turn take each other's place, and each answer waits for a
/// connection. Higher: ways to senders that have gone hold memory for longer.
const ANSWERED_MAX: usize = PRODUCERS_MAX;

/// The place of the way to all readers: after those of all flows.
pub(crate) const READERS: usize = u32::MAX as usize;

pub(crate) fn node_named(name: &str) -> Result<NodeName, PortError> {
    name.parse().map_err(|_| PortError::NeighbourIncomplete {
        name: name.to_owned(),
        lacks: "name that a node on a bus can have",
        link: "vbus",
    })
}

/// The way to one port of one peer, and the numbering of what went there.
#[derive(Debug)]
pub(crate) struct Flow {
    pub(crate) bus_sender: BusSender,
    pub(crate) numbering: Numbering,
}

impl Flow {
    /// Sends one message. What could not be sent has used its number too: it is lost.
    #[inline(always)]
    pub(crate) fn send(&mut self, priority: Priority, message: &[u8]) -> Result<(), SendError> {
        let sequence = self.numbering.take();
        self.bus_sender.send(priority, sequence, message)
    }
}

/// A port's half: what it receives through, and its ways to others.
#[derive(Debug)]
pub(crate) struct BusPort {
    pub(crate) bus_receiver: BusReceiver,
    pub(crate) identity: PortIdentity,
    pub(crate) flows: Vec<Flow>,
    /// Ways to senders that were answered and are not destinations, each with the turn of its last answer.
    answered: Vec<(u64, Flow)>,
    turn: u64,
    pub(crate) publisher: Option<Publisher>,
    pub(crate) followed: Vec<Arc<Subscription>>,
    clock: Ticks,
    wait: Duration,
    directory: Arc<Directory>,
    pub(crate) service: Arc<Service>,
}

impl BusPort {
    /// CLOCK_MONOTONIC, for ages: which may be off by tens of nanoseconds.
    #[inline]
    pub(crate) fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Counts the latency of a message that is read now. Not inlined: see [`Latency`](crate::latency::Latency).
    #[cold]
    #[inline(never)]
    pub(crate) fn measure(&self, statistics: &Statistics, arrival_ns: u64) {
        let arrival = Instant::from_nanos(arrival_ns);
        statistics.latency.record(arrival, self.now());
    }

    pub(crate) fn known(&self, name: &str, to: PortNumber) -> Option<Destination> {
        let mut flows = self.flows.iter();
        let place = flows.position(|flow| flow.bus_sender.leads_to(name, to))?;
        Some(self.identity.destination(place))
    }

    #[inline(always)]
    pub(crate) fn place(&self, to: Destination) -> Result<usize, SendError> {
        self.identity.index_of(to)
    }

    /// Makes a way to a port of a node, which need not be there yet.
    pub(crate) fn add(
        &mut self,
        name: &str,
        to: PortNumber,
        statistics: &Arc<Statistics>,
    ) -> Result<Destination, PortError> {
        if self.flows.len() == DESTINATIONS_MAX {
            return Err(PortError::TooManyDestinations);
        }
        let flow = self.flow(node_named(name)?, to, statistics);
        self.flows.push(flow);
        Ok(self.identity.destination(self.flows.len() - 1))
    }

    fn flow(&self, node: NodeName, to: PortNumber, statistics: &Arc<Statistics>) -> Flow {
        let from = self.bus_receiver.shared.number;
        let known = (&self.bus_receiver.shared.types, statistics);
        Flow {
            bus_sender: BusSender::new(&self.service.handle, from, node, to, known),
            numbering: Numbering::default(),
        }
    }

    /// The way to a sender that is not a destination, and whether it is new. A new one takes the place of the one that
    /// was used longest ago, if there is no room.
    pub(crate) fn way_back(
        &mut self,
        (node, port): (NodeName, PortNumber),
        statistics: &Arc<Statistics>,
    ) -> (&mut Flow, bool) {
        self.turn += 1;
        let is_meant = |(_, flow): &(u64, Flow)| flow.bus_sender.leads_to(node.as_str(), port);
        let known = self.answered.iter().position(is_meant);
        let place = known.unwrap_or_else(|| {
            if self.answered.len() == ANSWERED_MAX {
                let oldest = (0..ANSWERED_MAX).min_by_key(|place| self.answered[*place].0);
                self.answered.swap_remove(oldest.unwrap_or_default());
            }
            let new = self.flow(node, port, statistics);
            self.answered.push((0, new));
            self.answered.len() - 1
        });
        let (turn, flow) = &mut self.answered[place];
        *turn = self.turn;
        (flow, known.is_none())
    }

    /// End of the wait for a peer that the port resolves now; `None` if the configuration has no wait.
    pub(crate) fn configured_deadline(&self) -> Option<Instant> {
        (!self.wait.is_zero()).then(|| clock::monotonic() + self.wait)
    }

    #[inline(never)]
    pub(crate) fn send_to_readers(
        &mut self,
        place: usize,
        priority: Priority,
        message: &[u8],
    ) -> Result<(), SendError> {
        self.publisher(place)?.send(priority, message)
    }

    /// Publisher, for the place of the way to the readers.
    #[inline]
    pub(crate) fn publisher(&mut self, place: usize) -> Result<&mut Publisher, SendError> {
        match &mut self.publisher {
            Some(publisher) if place == READERS => Ok(publisher),
            _ => Err(SendError::OtherPort),
        }
    }

    /// The most urgent message, if there is one; if there is none and `notify` is set, the descriptor is armed.
    #[inline(always)]
    pub(crate) fn find(&mut self, notify: bool) -> Option<FoundMessage> {
        let found = self.bus_receiver.find();
        if found.is_none() && notify {
            return self.find_armed();
        }
        found
    }

    #[cold]
    #[inline(never)]
    fn find_armed(&mut self) -> Option<FoundMessage> {
        self.bus_receiver.arm(true);
        self.bus_receiver.find()
    }

    /// A message that was lent. Out of line, so that dropping one is a few instructions.
    #[inline(never)]
    pub(crate) fn give_back(&mut self, place: SlotRef) {
        self.bus_receiver.release(place);
    }

    /// Looks for new values. If there is none and `notify` is set, the descriptor is armed.
    #[inline(always)]
    pub(crate) fn refresh_values(&mut self, notify: bool) {
        let new = self.bus_receiver.refresh_values();
        if notify && !new {
            self.refresh_armed();
        }
    }

    #[cold]
    fn refresh_armed(&mut self) {
        self.bus_receiver.arm(true);
        self.bus_receiver.refresh_values();
    }
}

impl Drop for BusPort {
    fn drop(&mut self) {
        self.directory.unbind(self.bus_receiver.shared.number);
        let close = Command::Close(Arc::clone(&self.bus_receiver.shared));
        self.service.handle.command(close);
    }
}
