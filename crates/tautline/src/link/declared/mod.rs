//! Ports of a network tell each other the types of their messages: a port that sends values of a type announces it to
//! each of its destinations, and a port that receives another type replies with its own. So both know the first field
//! that differs.
//!
//! None of that is on the way of a message. Declarations are frames that the demux passes on and no port receives
//! (docs/wire.md); a thread of the node reads and sends them through sockets of their own. A peer's declaration is
//! noted and told. It closes nothing: anybody can write it.
//!
//! A bus compares declarations in its handshake instead (`link/vbus/types.rs`), a simulated network not at all.

mod agreement;
mod channel;
mod shield;

use std::net::SocketAddrV4;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tautline_proto::authentication::{Protection, Station};
use tautline_proto::wire::PortNumber;
use tautline_proto::wire::declaration::{PART_BYTES, PART_HEAD_BYTES, Part, header, parse, parts};
use tautline_state::policy::be_ordinary;

use self::agreement::{Agreement, From, Outgoing};
use self::shield::Shield;
use crate::address::Address;
use crate::keys::{Keys, OwnStations};
use crate::sys::event::Event;
use crate::sys::{clock, wait};
use crate::types::{PortTypes, TypeDifference};

pub(crate) use self::agreement::Figures;
pub(crate) use self::channel::{Channel, FRAME_BYTES_MAX, messages_of};

/// Frames that a round takes from one socket. Lower: a fleet is heard more slowly. Higher: a flood takes more time.
const FRAMES_AT_ONCE: usize = 16;
/// Pause after a round that has heard something. Lower: a flood of declarations takes more of a processor; now at most
/// 1,600 frames a second and socket are looked at. Higher: a text of several frames fills the socket.
const PAUSE: Duration = Duration::from_millis(10);

/// Time between looks for the successor of a control process. Lower: more wake-ups while there is none. Higher: its
/// clients hear no declarations for longer.
const REOPEN: Duration = Duration::from_secs(1);

/// Whether a station is a neighbour of the node.
pub(crate) type IsNeighbour = Box<dyn Fn(Address) -> bool + Send + Sync>;

/// Address of a port's node.
fn address_of(station: Station, port: PortNumber) -> Address {
    match station {
        Station::Ethernet(mac) => Address::Ethernet(mac),
        Station::Udp(ip) => Address::Udp(SocketAddrV4::new(ip, port.udp_port())),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Lists stay whole at every step, so a panic elsewhere does not spoil them.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Declarations of a node: its ports that have types, and the thread that serves them.
#[derive(Debug, Default)]
pub(crate) struct Declarations {
    service: Mutex<Option<Service>>,
}

#[derive(Debug)]
struct Service {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// The process that the thread is in: a forked one has none.
    process: u32,
}

#[derive(Debug)]
struct Shared {
    ports: Mutex<Vec<Arc<PortDeclarations>>>,
    news: Event,
    ends: AtomicBool,
}

/// Declarations of one port.
pub(crate) struct PortDeclarations {
    number: PortNumber,
    /// Or why there are none.
    channels: Result<Vec<Channel>, String>,
    state: Mutex<State>,
    /// Rung when a destination has answered.
    answered: Condvar,
    is_neighbour: IsNeighbour,
}

impl std::fmt::Debug for PortDeclarations {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("PortDeclarations")
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct State {
    agreement: Agreement,
    shield: Option<Shield>,
}

/// A port's hold on its declarations; dropped, they end.
#[derive(Debug)]
pub(crate) struct Declaring {
    shared: Arc<Shared>,
    port: Arc<PortDeclarations>,
}

/// A port whose declarations begin.
pub(crate) struct Beginning<'a> {
    pub(crate) number: PortNumber,
    pub(crate) types: &'a PortTypes,
    pub(crate) channels: std::io::Result<Vec<Channel>>,
    pub(crate) protection: Option<(Protection, &'a Arc<Keys>, OwnStations)>,
    pub(crate) is_neighbour: IsNeighbour,
}

impl Declarations {
    /// Begins a port's declarations, if its link has any and it has types.
    ///
    /// # Errors
    /// If the kernel gives no thread.
    pub(crate) fn begin(&self, beginning: Beginning<'_>) -> std::io::Result<Option<Declaring>> {
        let Beginning {
            number,
            types,
            channels,
            protection,
            is_neighbour,
        } = beginning;
        let is_untyped = types.receives.is_none() && types.sends.is_none();
        if is_untyped || channels.as_ref().is_ok_and(Vec::is_empty) {
            return Ok(None);
        }
        let shield = protection.map(|(protection, keys, own)| Shield::new(protection, keys, own));
        let port = Arc::new(PortDeclarations {
            number,
            channels: channels.map_err(|error| error.to_string()),
            state: Mutex::new(State {
                agreement: Agreement::new(types.clone(), Instant::now()),
                shield: shield.transpose()?,
            }),
            answered: Condvar::new(),
            is_neighbour,
        });
        let mut service = lock(&self.service);
        let service = match &mut *service {
            Some(service) if service.process == std::process::id() => service,
            none => none.insert(Service::start()?),
        };
        let shared = Arc::clone(&service.shared);
        lock(&shared.ports).push(Arc::clone(&port));
        shared.news.ring();
        Ok(Some(Declaring { shared, port }))
    }
}

impl Declaring {
    /// Has a destination told what this port sends.
    pub(crate) fn announce(&self, station: (Station, bool), port: PortNumber) {
        let mut state = lock(&self.port.state);
        if state.agreement.announce(station, port, Instant::now()) {
            self.shared.news.ring();
        }
    }

    /// Waits until a destination has answered, or until `deadline`; where it differs.
    pub(crate) fn difference(
        &self,
        station: Station,
        port: PortNumber,
        deadline: Option<tautline_proto::time::Instant>,
    ) -> Option<String> {
        let mut state = lock(&self.port.state);
        loop {
            let (is_answered, difference) = state.agreement.answer(station, port);
            let deadline = deadline.filter(|_| !is_answered && self.port.channels.is_ok());
            let left = deadline
                .map(|deadline| deadline.saturating_duration_since(clock::monotonic()))
                .filter(|left| !left.is_zero());
            let Some(left) = left else {
                return difference;
            };
            let waited = self.port.answered.wait_timeout(state, left);
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// For the port's status.
    pub(crate) fn of_port(&self) -> Arc<PortDeclarations> {
        Arc::clone(&self.port)
    }
}

impl Drop for Declaring {
    fn drop(&mut self) {
        lock(&self.shared.ports).retain(|port| !Arc::ptr_eq(port, &self.port));
        self.shared.news.ring();
    }
}

impl Service {
    fn start() -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            ports: Mutex::default(),
            news: Event::new()?,
            ends: AtomicBool::new(false),
        });
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("taut-declare".to_owned())
            .spawn(move || of_thread.serve())?;
        Ok(Self {
            shared,
            thread: Some(thread),
            process: std::process::id(),
        })
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let thread = self.thread.take();
        if self.process != std::process::id() {
            // A thread of the parent's, which this process does not have.
            std::mem::forget(thread);
            return;
        }
        // Relaxed: the event orders it.
        self.shared.ends.store(true, Relaxed);
        self.shared.news.ring();
        // The thread itself may drop the node, if it held it last.
        let is_own = |thread: &JoinHandle<()>| thread.thread().id() == std::thread::current().id();
        if let Some(thread) = thread.filter(|thread| !is_own(thread)) {
            let _ended = thread.join();
        }
    }
}

impl Shared {
    fn serve(&self) {
        be_ordinary();
        let mut reopened = Instant::now();
        loop {
            let ports = lock(&self.ports).clone();
            let all = || ports.iter().flat_map(|port| port.channels.iter().flatten());
            let are_closed = || all().any(|channel| channel.descriptor().is_none());
            if are_closed() && reopened.elapsed() >= REOPEN {
                all().for_each(Channel::reopen);
                reopened = Instant::now();
            }
            let reopens = are_closed().then(|| reopened + REOPEN);
            let due = ports
                .iter()
                .filter_map(|port| lock(&port.state).agreement.due());
            let left = due
                .chain(reopens)
                .min()
                .map(|due| due.saturating_duration_since(Instant::now()));
            let sockets: Vec<_> = ports
                .iter()
                .flat_map(|port| {
                    port.channels
                        .iter()
                        .flatten()
                        .map(move |channel| (port, channel))
                })
                .filter_map(|(port, channel)| Some((port, channel, channel.descriptor()?)))
                .collect();
            let mut waited_for: Vec<BorrowedFd<'_>> = vec![self.news.as_fd()];
            waited_for.extend(sockets.iter().map(|(_, _, socket)| socket.as_fd()));
            let Ok(readable) = wait::which_readable(&waited_for, left) else {
                return;
            };
            self.news.quiet();
            if self.ends.load(Relaxed) {
                return;
            }
            for ((port, channel, _), is_readable) in sockets.iter().zip(&readable[1..]) {
                if *is_readable {
                    port.hear(channel);
                }
            }
            for port in &ports {
                port.send_due();
            }
            if readable[1..].contains(&true) {
                std::thread::sleep(PAUSE);
            }
        }
    }
}

impl PortDeclarations {
    /// Peers that declare other types.
    pub(crate) fn differences(&self) -> Vec<TypeDifference> {
        lock(&self.state).agreement.differences()
    }

    /// Counters, and why nothing is declared if it is not.
    pub(crate) fn figures(&self) -> (Figures, Option<&str>) {
        let figures = lock(&self.state).agreement.figures();
        (figures, self.channels.as_ref().err().map(String::as_str))
    }

    /// Takes what has come on a channel, and replies.
    fn hear(&self, channel: &Channel) {
        let mut buffer = [0; FRAME_BYTES_MAX];
        for _ in 0..FRAMES_AT_ONCE {
            let Some((station, frame)) = channel.receive(&mut buffer) else {
                return;
            };
            let mut state = lock(&self.state);
            let reply = state.frame(self, channel, station, frame);
            if let Some(reply) = reply {
                state.send(self.number, channel, reply);
            }
            drop(state);
            self.answered.notify_all();
        }
    }

    fn send_due(&self) {
        let Ok(channels) = &self.channels else {
            return;
        };
        let mut state = lock(&self.state);
        let due = state.agreement.take_due(Instant::now());
        if due.is_empty() {
            return;
        }
        for outgoing in due {
            let channel = channels.iter().find(|channel| channel.reaches(outgoing.to));
            if let Some(channel) = channel {
                state.send(self.number, channel, outgoing);
            }
        }
    }
}

impl State {
    /// A frame that has come; the reply to it. What is none, or not for this port, or not proven, changes nothing.
    fn frame(
        &mut self,
        port: &PortDeclarations,
        channel: &Channel,
        station: Station,
        frame: &[u8],
    ) -> Option<Outgoing> {
        let figures = &mut self.agreement.figures;
        let parsed = parse(frame)
            .ok()
            .filter(|(header, _)| header.destination == port.number);
        let Some((header, payload)) = parsed else {
            figures.malformed += 1;
            return None;
        };
        let proven = match &mut self.shield {
            None => (!header.is_authenticated()).then_some(payload),
            Some(shield) => shield.open(station, &header, payload),
        };
        let Some(payload) = proven else {
            figures.unproven += 1;
            return None;
        };
        let Ok(part) = Part::parse(payload) else {
            figures.malformed += 1;
            return None;
        };
        if part.ethertype != channel.messages() {
            // Of another network on the same cable.
            return None;
        }
        let from = From {
            station,
            port: header.source,
            is_neighbour: (port.is_neighbour)(address_of(station, header.source)),
        };
        self.agreement.hear(Instant::now(), from, &part)
    }

    fn send(&mut self, number: PortNumber, channel: &Channel, outgoing: Outgoing) {
        let (hash, text) = self.agreement.own(outgoing.kind);
        let text = if outgoing.with_text { &text[..] } else { "" };
        for range in parts(text.len()) {
            let part = Part {
                kind: outgoing.kind,
                ethertype: channel.messages(),
                hash,
                about: outgoing.about,
                text_bytes: text.len(),
                offset: range.start,
                text: &text.as_bytes()[range],
            };
            let mut payload = [0; PART_HEAD_BYTES + PART_BYTES];
            let bytes = part.emit(&mut payload);
            let payload = &payload[..bytes];
            let header = header(outgoing.port, number, bytes as u16);
            match &mut self.shield {
                None => channel.send(outgoing.to, &header, payload),
                Some(shield) => {
                    if let Some((header, payload)) = shield.seal(outgoing.to, header, payload) {
                        channel.send(outgoing.to, &header, payload);
                    }
                }
            }
        }
    }
}
