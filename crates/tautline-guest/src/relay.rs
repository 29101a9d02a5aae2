//! Passes messages between a guest's window and the ports of a node, in a thread of its own.
//!
//! A pass looks at each port once in each direction and moves a few messages, the most urgent first. After a pass that
//! moved nothing the thread sleeps until the guest rings its doorbell, a message comes to a port, or a short time is
//! over. What cannot go on is dropped and counted; the thread never waits for the guest, nor for a peer.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant as Clock};

use rustix::event::{Timespec, epoll};
use tautline::port::{QueuingOptions, SamplingOptions};
use tautline::{
    Destination, Node, NodeConfig, PortError, PortNumber, Priority, QueuingPort, SamplingPort,
    SendError, Source, Wait,
};
use tautline_shm::vbus::layout::{CLASS_COUNT, MessageHead, PRODUCERS_MAX};
use tautline_shm::vbus::wait::{Sleeper, WakeMode};
use tautline_shm::vbus::window::{Address, Direction, Plan, Receiving, Sending};

use crate::config::{Carries, GuestConfig, PortConfig};
use crate::doorbell::Doorbells;
use crate::error::GuestError;
use crate::figures::{PortCounters, count};
use crate::peers::Peers;
use crate::window::Window;

/// Messages of a port in one direction before the next port has its turn. Lower: more turns. Higher: a port that
/// bursts holds the others up for longer.
const TURN_MAX: usize = 16;
/// Longest sleep. Lower: more wake-ups of an idle guest. Higher: the guest sees Linux's heartbeat stand still.
const SLEEP_MAX: Duration = Duration::from_millis(20);
/// Time after a guest has joined in which it is expected to open its ports. Higher: a port that it never opens costs
/// more wake-ups.
const OPENING_MAX: Duration = Duration::from_secs(1);
/// Longest sleep while ports are being opened, or a peer is being reached, which no doorbell announces.
const SLEEP_MAX_WAITING: Duration = Duration::from_millis(1);
/// Time between looks at a port that the guest may have opened anew. Lower: a guest that opens ports without end keeps
/// this thread clearing their memory.
const CONNECT_PERIOD: Duration = Duration::from_millis(10);
/// Time for which the first message to a port may wait until that is reached. Lower: the first answer to a peer with
/// large memory is lost. Higher: a peer that is stopped holds up what the guest sends from the same port for longer.
const PARKED_MAX: Duration = Duration::from_secs(1);
/// Ways of a port to peers that are remembered.
const WAYS_MAX: usize = 64;

/// The node of a guest, with its ports and the peers that they have met.
pub(crate) struct Relay {
    plan: Plan,
    ports: Vec<Port>,
    peers: Peers,
    spin: Duration,
    /// Whether a guest has been connected before.
    has_lived: bool,
    node: Node,
}

/// One port, on both of its sides.
struct Port {
    config: PortConfig,
    half: Half,
    /// It has as many ways to peers as a port can have: a fresh one forgets them.
    is_full: bool,
    to_guest: Option<ToGuest>,
    to_linux: Option<ToLinux>,
    counters: Arc<PortCounters>,
}

enum Half {
    Queuing(QueuingPort),
    Sampling(SamplingPort),
    Closed,
}

impl Half {
    fn open(node: &Node, config: &PortConfig) -> Result<Half, GuestError> {
        let failed = |source| GuestError::Port {
            port: config.number,
            source,
        };
        let number = PortNumber::new(config.number).expect("checked with the configuration");
        let bytes = config.message_bytes_max as usize;
        if config.receives == Carries::Sampling {
            let options = SamplingOptions {
                value_bytes_max: bytes,
                ..SamplingOptions::default()
            };
            let half = node
                .sampling(number)
                .options(&options)
                .open()
                .map_err(failed)?;
            return Ok(Half::Sampling(half));
        }
        let options = QueuingOptions {
            depth: config.depth,
            message_bytes_max: bytes,
            ..QueuingOptions::default()
        };
        let half = node
            .queuing(number)
            .options(&options)
            .open()
            .map_err(failed)?;
        Ok(Half::Queuing(half))
    }

    /// The way to a port of a neighbour. Never waits: one that is new is there a little later, if it is there at all.
    fn destination(&mut self, name: &str, port: PortNumber) -> Result<Destination, PortError> {
        let deadline = tautline::now();
        match self {
            Half::Queuing(half) => half.destination_until(name, port, deadline),
            Half::Sampling(half) => half.destination_until(name, port, deadline),
            Half::Closed => Err(PortError::TooManyDestinations),
        }
    }

    fn send(
        &mut self,
        to: Destination,
        priority: Priority,
        message: &[u8],
    ) -> Result<(), SendError> {
        match self {
            Half::Queuing(half) => half.send(to, priority, message),
            Half::Sampling(half) => half.send(to, priority, message),
            Half::Closed => Err(SendError::PeerGone),
        }
    }

    /// Sends to a port that was heard. Never waits, as `destination`.
    fn reply(&mut self, to: Source, priority: Priority, message: &[u8]) -> Result<(), SendError> {
        let deadline = tautline::now();
        match self {
            Half::Queuing(half) => half.reply_until(to, priority, message, deadline),
            Half::Sampling(half) => half.reply_until(to, priority, message, deadline),
            Half::Closed => Err(SendError::PeerGone),
        }
    }

    /// Descriptor that tells of messages.
    fn descriptor(&mut self) -> Option<BorrowedFd<'_>> {
        match self {
            Half::Queuing(half) => half.descriptor(),
            Half::Sampling(half) => half.descriptor(),
            Half::Closed => None,
        }
    }
}

struct ToGuest {
    index: usize,
    sending: Sending,
    /// Address and message.
    buffer: Vec<u8>,
    look_at: Clock,
}

struct ToLinux {
    index: usize,
    receiving: Receiving,
    sleeper: Sleeper,
    buffer: Vec<u8>,
    /// Ways to ports; `None`: the port was not there in its time.
    ways: Vec<(Address, Option<Destination>)>,
    /// Message in `buffer` that waits for its peer.
    parked: Option<Parked>,
}

impl Relay {
    /// Opens the node of a guest, and its ports. `service_priority`: of the thread that makes connections of a bus.
    pub(crate) fn open(
        config: &GuestConfig,
        service_priority: Option<u8>,
        counters: &[Arc<PortCounters>],
    ) -> Result<Relay, GuestError> {
        let plan = config.plan()?;
        let mut node = match (&config.bus, &config.node) {
            (Some(bus), _) => {
                let mut node = NodeConfig::vbus(tautline::config::BusConfig::new(bus, config.name));
                for peer in &config.peers {
                    let named = node.with_neighbour(tautline::bus_neighbour(*peer));
                    node = named
                        .map_err(|error| GuestError::Setting(format!("peer `{peer}`: {error}")))?;
                }
                node
            }
            (None, Some(file)) => NodeConfig::from_file(file)?,
            (None, None) => {
                return Err(GuestError::Setting("neither bus nor node".to_owned()));
            }
        };
        if let Some(bus) = &mut node.bus {
            // Otherwise a guest that never halts keeps handshakes waiting.
            bus.service_priority = service_priority;
        }
        let node = Node::open(node)?;
        let mut ports = Vec::with_capacity(config.ports.len());
        for (port, counters) in config.ports.iter().zip(counters) {
            ports.push(Port::open(&node, port, &plan, counters)?);
        }
        Ok(Relay {
            plan,
            ports,
            peers: Peers::new(config, &node),
            spin: config.spin,
            has_lived: false,
            node,
        })
    }

    pub(crate) fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Passes messages until `stop` is set: one life of the guest.
    pub(crate) fn run(
        &mut self,
        window: &Window,
        doorbells: &Doorbells,
        stop: &AtomicBool,
    ) -> Result<(), GuestError> {
        let waiting = GuestError::system("waiting for the guest's messages");
        let poll = self.poll(doorbells).map_err(waiting)?;
        let mut moved_at = Clock::now();
        let mut guest = 0;
        let mut joined_at = moved_at;
        // Pairs with the store at the end of a life.
        while !stop.load(Ordering::Acquire) {
            doorbells.answer();
            window.beat();
            let generation = window.guests().generation();
            if generation != guest {
                guest = generation;
                joined_at = Clock::now();
                self.join(window, generation);
            }
            let is_moving = self.pass(window, doorbells);
            self.reopen_full(&poll)?;
            if is_moving {
                moved_at = Clock::now();
            } else if moved_at.elapsed() >= self.spin {
                self.sleep(window, doorbells, &poll, joined_at);
            }
        }
        self.end();
        Ok(())
    }

    /// Descriptors that end a sleep.
    fn poll(&mut self, doorbells: &Doorbells) -> std::io::Result<OwnedFd> {
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let data = epoll::EventData::new_u64(0);
        let readable = epoll::EventFlags::IN;
        epoll::add(&poll, doorbells.to_linux.as_fd(), data, readable)?;
        for port in &mut self.ports {
            add(&poll, &mut port.half)?;
        }
        Ok(poll)
    }

    /// Opens ports anew that have no room for further peers. Messages that wait in them are lost, and their senders
    /// count them.
    fn reopen_full(&mut self, poll: &OwnedFd) -> Result<(), GuestError> {
        for port in self.ports.iter_mut().filter(|port| port.is_full) {
            let Port { config, half, .. } = port;
            // Its number is free once it is closed.
            *half = Half::Closed;
            *half = Half::open(&self.node, config)?;
            add(poll, half).map_err(GuestError::system("waiting for the guest's messages"))?;
            port.is_full = false;
            if let Some(way) = &mut port.to_linux {
                way.ways.clear();
            }
        }
        Ok(())
    }

    /// Resets for a new window that no guest has joined, with an empty table of names. Call before its guest starts.
    pub(crate) fn begin(&mut self, window: &Window) {
        self.peers.publish(window);
        for port in &mut self.ports {
            if let Some(way) = &mut port.to_guest {
                way.sending = Sending::new(self.plan.connections()[way.index]);
            }
            if let Some(way) = &mut port.to_linux {
                way.receiving = Receiving::new(self.plan.connections()[way.index]);
                way.ways.clear();
                way.parked = None;
            }
        }
    }

    /// The guest has begun a life in this window: what an earlier one has left counts no more.
    fn join(&mut self, window: &Window, generation: u64) {
        let own = window.own();
        for port in &mut self.ports {
            if let Some(way) = &mut port.to_guest {
                way.sending.disconnect(own.producer(&self.plan, way.index));
            }
            if let Some(way) = &mut port.to_linux {
                // No epoch comes twice: the guest's lives have different generations.
                let epoch = generation.wrapping_mul(32).wrapping_add(way.index as u64) | 1 << 63;
                way.receiving
                    .offer(own.consumer(&self.plan, way.index), epoch);
            }
        }
        own.acknowledge(generation);
    }

    /// Looks at each port once. Whether anything moved.
    fn pass(&mut self, window: &Window, doorbells: &Doorbells) -> bool {
        let mut moved = false;
        let mut rings = false;
        for port in &mut self.ports {
            moved |= port.connect(window, &self.plan, self.has_lived);
            moved |= port.pass_to_guest(window, &self.plan, &mut self.peers, &mut rings);
            moved |= port.pass_to_linux(window, &self.plan, &mut self.peers);
        }
        if rings {
            window.count_doorbell();
            doorbells.to_guest.ring();
        }
        moved
    }

    /// Sleeps if there is still nothing to do once the guest knows that we will.
    fn sleep(&mut self, window: &Window, doorbells: &Doorbells, poll: &OwnedFd, joined_at: Clock) {
        let own = window.own();
        let mut limit = SLEEP_MAX;
        for port in &mut self.ports {
            let is_opening = joined_at.elapsed() < OPENING_MAX && !port.is_connected();
            if is_opening || port.is_parked() {
                limit = SLEEP_MAX_WAITING;
            }
            if let Some(way) = &mut port.to_linux {
                let wait = &own.consumer(&self.plan, way.index).head.wait;
                way.sleeper.arm(wait, WakeMode::Descriptor);
            }
        }
        if !self.pass(window, doorbells) {
            let limit = Timespec::try_from(limit).ok();
            let mut events = [const { std::mem::MaybeUninit::uninit() }; 1];
            // Interrupted: as if something had come.
            let _ = epoll::wait(poll, &mut events, limit.as_ref());
        }
        for port in &mut self.ports {
            if let Some(way) = &mut port.to_linux {
                way.sleeper
                    .disarm(&own.consumer(&self.plan, way.index).head.wait);
            }
        }
    }

    /// The life is over: later messages are dropped.
    fn end(&mut self) {
        self.has_lived = true;
        for port in &self.ports {
            port.counters.is_open.store(0, Ordering::Relaxed);
        }
    }
}

impl Port {
    fn open(
        node: &Node,
        config: &PortConfig,
        plan: &Plan,
        counters: &Arc<PortCounters>,
    ) -> Result<Port, GuestError> {
        let bytes = config.message_bytes_max as usize;
        let half = Half::open(node, config)?;
        let find = |direction| {
            let mut connections = plan.connections().iter();
            connections.position(|one| (one.port, one.direction) == (config.number, direction))
        };
        let connections = plan.connections();
        Ok(Port {
            config: config.clone(),
            half,
            is_full: false,
            to_guest: find(Direction::ToGuest).map(|index| ToGuest {
                index,
                sending: Sending::new(connections[index]),
                buffer: vec![0; bytes],
                look_at: Clock::now(),
            }),
            to_linux: find(Direction::ToLinux).map(|index| ToLinux {
                index,
                receiving: Receiving::new(connections[index]),
                sleeper: Sleeper::new(),
                buffer: vec![0; bytes],
                ways: Vec::with_capacity(WAYS_MAX),
                parked: None,
            }),
            counters: Arc::clone(counters),
        })
    }

    /// Whether the guest has opened the port.
    fn is_connected(&self) -> bool {
        let hears = self.to_guest.as_ref();
        let speaks = self.to_linux.as_ref();
        hears.is_none_or(|way| way.sending.is_connected())
            && speaks.is_none_or(|way| way.receiving.is_connected())
    }

    /// Whether a message waits for its peer.
    fn is_parked(&self) -> bool {
        let ways = self.to_linux.as_ref();
        ways.is_some_and(|way| way.parked.is_some())
    }

    /// Looks whether the guest has opened the port. Whether it has since the last look.
    fn connect(&mut self, window: &Window, plan: &Plan, has_lived: bool) -> bool {
        let (own, guests) = (window.own(), window.guests());
        let mut is_new = false;
        if let Some(way) = &mut self.to_guest {
            let now = Clock::now();
            if now >= way.look_at {
                let producer = own.producer(plan, way.index);
                if way
                    .sending
                    .connect(producer, guests.consumer(plan, way.index))
                {
                    is_new = true;
                    way.look_at = now + CONNECT_PERIOD;
                }
            }
        }
        if let Some(way) = &mut self.to_linux {
            is_new |= way.receiving.connect(guests.producer(plan, way.index));
        }
        if is_new {
            if has_lived {
                self.drop_waiting();
            }
            let is_open = self.is_connected().into();
            self.counters.is_open.store(is_open, Ordering::Relaxed);
        }
        is_new
    }

    /// Messages that came while there was no guest are not for this one.
    fn drop_waiting(&mut self) {
        let Half::Queuing(half) = &mut self.half else {
            return;
        };
        // As many as can wait: those that come meanwhile are for this guest.
        for _ in 0..self.config.depth as usize * CLASS_COUNT * PRODUCERS_MAX {
            match half.receive_in_place(Wait::Poll) {
                Ok(Some(_)) => count(&self.counters.to_guest_dropped),
                _ => return,
            }
        }
    }

    fn pass_to_guest(
        &mut self,
        window: &Window,
        plan: &Plan,
        peers: &mut Peers,
        rings: &mut bool,
    ) -> bool {
        let Some(way) = &mut self.to_guest else {
            return false;
        };
        if !way.sending.is_connected() {
            return false;
        }
        let producer = window.own().producer(plan, way.index);
        let consumer = window.guests().consumer(plan, way.index);
        let mut moved = false;
        for _ in 0..TURN_MAX {
            let room = &mut way.buffer;
            let (length, source, arrival, sequence, priority) = match &mut self.half {
                Half::Queuing(half) => match half.receive_into(room, Wait::Poll) {
                    Ok(Some(it)) => (it.length, it.source, it.arrival, it.sequence, it.priority),
                    _ => break,
                },
                Half::Sampling(half) => match half.read_into(room) {
                    Ok(Some(it)) if it.new => {
                        (it.length, it.source, it.arrival, it.sequence, it.priority)
                    }
                    _ => break,
                },
                Half::Closed => break,
            };
            // The length is filled in with the message.
            let head = MessageHead {
                length: 0,
                arrival_ns: arrival.as_nanos(),
                sequence,
                class: priority.get().into(),
            };
            moved = true;
            let address = Address {
                port: source.port.get(),
                ..peers.place_of(source, window)
            };
            let message = (address, &way.buffer[..length]);
            let sent = way.sending.send(producer, consumer, message, head);
            count(if sent {
                &self.counters.to_guest
            } else {
                &self.counters.to_guest_dropped
            });
        }
        *rings |= moved && way.sending.wanted(producer, consumer);
        moved
    }

    fn pass_to_linux(&mut self, window: &Window, plan: &Plan, peers: &mut Peers) -> bool {
        let Some(way) = &mut self.to_linux else {
            return false;
        };
        let consumer = window.own().consumer(plan, way.index);
        let producer = window.guests().producer(plan, way.index);
        let mut moved = false;
        for _ in 0..TURN_MAX {
            let message = match way.parked.take() {
                Some(parked) => parked,
                None => {
                    let Some(found) = way.receiving.look(consumer, producer) else {
                        break;
                    };
                    let copied = found.copy_out(&mut way.buffer);
                    way.receiving.release(consumer, &found);
                    Parked {
                        copied,
                        priority: Priority::new(found.priority()).expect("0 to 7"),
                        until: Clock::now() + PARKED_MAX,
                    }
                }
            };
            let counters = &self.counters;
            match way.pass_on(&message, &self.config, &mut self.half, peers) {
                Passed::Sent => count(&counters.to_linux),
                Passed::Dropped => count(&counters.to_linux_dropped),
                Passed::Malformed => count(&counters.malformed),
                Passed::Refused => count(&counters.refused),
                Passed::Full => {
                    count(&counters.to_linux_dropped);
                    self.is_full = true;
                }
                Passed::NotYet => {
                    way.parked = Some(message);
                    break;
                }
            }
            moved = true;
        }
        moved
    }
}

/// Result of an attempt to pass a message on.
enum Passed {
    Sent,
    /// There is no such peer, or it has no room.
    Dropped,
    Malformed,
    /// The guest may not send it.
    Refused,
    /// The port has no room for another peer.
    Full,
    /// The peer is being reached.
    NotYet,
}

impl From<Result<(), SendError>> for Passed {
    fn from(sent: Result<(), SendError>) -> Self {
        match sent {
            Ok(()) => Self::Sent,
            Err(_) => Self::Dropped,
        }
    }
}

impl ToLinux {
    /// Passes the message in `buffer` on.
    fn pass_on(
        &mut self,
        parked: &Parked,
        config: &PortConfig,
        half: &mut Half,
        peers: &Peers,
    ) -> Passed {
        let Some((address, length)) = parked.copied else {
            return Passed::Malformed;
        };
        let message = &self.buffer[..length];
        if parked.priority.get() > config.priority_max {
            return Passed::Refused;
        }
        let known = self.ways.iter().find(|way| way.0 == address);
        let way = known.map(|way| way.1);
        if let Some(Some(to)) = way {
            return half.send(to, parked.priority, message).into();
        }
        let Some((peer, port)) = peers.find(address) else {
            return Passed::Malformed;
        };
        if !config.may_send_to(&peer.name, port) {
            return Passed::Refused;
        }
        // A port that was not there in its time is not waited for again.
        let waits = way.is_none() && Clock::now() < parked.until;
        if let Some(address) = peer.address {
            let sender = Source { address, port };
            match half.reply(sender, parked.priority, message) {
                Err(SendError::PeerGone) if waits => return Passed::NotYet,
                Err(SendError::PeerGone) => {}
                sent => return sent.into(),
            }
        } else {
            match half.destination(&peer.name, port) {
                Ok(to) => {
                    let sent = half.send(to, parked.priority, message);
                    self.note(address, Some(to));
                    return sent.into();
                }
                Err(PortError::TooManyDestinations) => return Passed::Full,
                Err(_) if waits => return Passed::NotYet,
                Err(_) => {}
            }
        }
        self.note(address, None);
        Passed::Dropped
    }

    /// Remembers the way to a peer's port, or that it was not there in its time.
    fn note(&mut self, address: Address, to: Option<Destination>) {
        if let Some(known) = self.ways.iter_mut().find(|way| way.0 == address) {
            known.1 = to;
            return;
        }
        if self.ways.len() == WAYS_MAX {
            self.ways.remove(0);
        }
        self.ways.push((address, to));
    }
}

/// Has a sleep end when a message comes to a port.
fn add(poll: &OwnedFd, half: &mut Half) -> io::Result<()> {
    if let Some(descriptor) = half.descriptor() {
        let data = epoll::EventData::new_u64(0);
        epoll::add(poll, descriptor, data, epoll::EventFlags::IN)?;
    }
    Ok(())
}

/// A message of the guest for a port that is not reached yet. It keeps those behind it back.
struct Parked {
    /// Its receiver and length; nothing if it was too short to name one.
    copied: Option<(Address, usize)>,
    priority: Priority,
    until: Clock,
}
