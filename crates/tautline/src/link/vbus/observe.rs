//! Watching buses without taking part: which there are, who is on them, and what passes through a port.
//!
//! A watcher asks a port's service thread for read-only descriptors of the port's memory and of those who send to it,
//! maps them, and hangs up. A watched process does nothing more for it, and cannot notice. What a watcher reads may
//! change while it reads; figures may therefore be a moment apart, and a message that was overwritten while it was
//! copied is recognised and counted as missed.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{
    Ordering::{Acquire, Relaxed},
    fence,
};
use std::time::Duration;

use serde::Serialize;
use tautline_proto::time::Instant;
use tautline_proto::wire::{PortNumber, Priority};
use tautline_shm::vbus::handshake::{INDEX_CONSUMER, MESSAGE_BYTES, Message, Step};
use tautline_shm::vbus::layout::{
    CLASS_COUNT, ConnectionEntry, Identity, PRODUCERS_MAX, ROLE_CONSUMER, ROLE_PRODUCER,
    ROLE_PUBLISHER, Slot,
};
use tautline_shm::vbus::region::ProducerMemory;
use tautline_shm::vbus::shape::{self, Kind, MEMORY_BYTES_MAX, Shape, consumer_bytes};
use tautline_shm::vbus::wait::WAKE_MODE;
use tautline_state::untrusted::close_elsewhere_or_keep;

use super::backlog::{Backlog, copy_newest};
use super::directory::{bases, clear_bus, connect_in, list, open_to_watch, path_of};
use super::kind_of;
use super::place::is_trusted;
use super::view::{ConsumerView, ProducerView};
use crate::address::{Address, NodeName, Source};
use crate::kind::PortKind;
use crate::sys::seqpacket::{self, Received};
use crate::sys::shared::SharedMemory;
use crate::sys::{clock, unix, wait};

pub use crate::address::{BadPortName, PortName};
pub use crate::error::ObserveError;

/// How long a port may take to show itself. Lower: a busy machine's ports seem stopped. Higher: a stopped one holds up
/// a list of all for longer.
const ANSWER_LIMIT: Duration = Duration::from_secs(1);

/// A bus that there is.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Bus {
    /// Its name: the last part of its path.
    pub name: String,
    /// Where it is.
    pub path: PathBuf,
    /// Permissions: the mode bits of its directory.
    pub mode: u32,
    /// The user to whom it belongs, by number.
    pub user: u32,
    /// The group, by number.
    pub group: u32,
    /// Nodes that take part, with their processes.
    pub members: Vec<Member>,
    /// Ports that are open.
    pub ports: Vec<PortName>,
}

/// A node on a bus.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[non_exhaustive]
pub struct Member {
    /// Its name.
    pub node: String,
    /// Its process.
    pub process: u32,
}

/// The buses that there are: of the system, and of this user; `also` is the path of one more.
///
/// ```
/// for bus in tautline::vbus::buses(None)? {
///     println!("{} in {}: {} ports", bus.name, bus.path.display(), bus.ports.len());
/// }
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// Those of reading a directory; one that is not there, or not for this user, is left out.
pub fn buses(also: Option<&Path>) -> io::Result<Vec<Bus>> {
    let mut paths = Vec::new();
    for base in bases() {
        match std::fs::read_dir(&base) {
            Ok(entries) => {
                for entry in entries {
                    let entry = entry?;
                    // A name with a dot first is a bus that is being made.
                    let is_whole = !entry.file_name().as_encoded_bytes().starts_with(b".");
                    if is_whole && entry.file_type()?.is_dir() {
                        paths.push(entry.path());
                    }
                }
            }
            Err(error) if is_absent(&error) => {}
            Err(error) => return Err(error),
        }
    }
    paths.extend(also.map(Path::to_owned));
    paths.sort();
    paths.dedup();
    let mut buses = Vec::new();
    for path in paths {
        match bus(&path) {
            Ok(found) => buses.push(found),
            Err(error) if is_absent(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(buses)
}

impl Bus {
    /// Whether no node lives on it: all that were there were killed.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.members.is_empty() && self.ports.is_empty()
    }

    /// Removes what killed nodes have left on a bus, and the bus where no node is left; of other users, root alone can.
    ///
    /// # Errors
    /// Those of removing it, among them that a node is there again.
    pub fn clear(&self) -> io::Result<()> {
        clear_bus(&self.path, open_to_watch(&self.path)?.as_fd())
    }
}

fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied
    )
}

/// The directory of a bus, by its name or path.
#[must_use]
pub fn path(bus: &str) -> PathBuf {
    path_of(bus)
}

/// One bus, by its path. Who looks at it alone asks here: [`buses`] goes through those of the whole machine.
///
/// ```
/// match tautline::vbus::bus(&tautline::vbus::path("cell")) {
///     Ok(bus) => println!("{} ports", bus.ports.len()),
///     Err(error) => println!("there is no such bus: {error}"),
/// }
/// ```
///
/// # Errors
/// Those of reading its directory.
pub fn bus(path: &Path) -> io::Result<Bus> {
    let directory = open_to_watch(path)?;
    let metadata = rustix::fs::fstat(&directory)?;
    let mut found = Bus {
        name: path
            .file_name()
            .map_or_else(String::new, |name| name.to_string_lossy().into_owned()),
        path: path.to_owned(),
        mode: metadata.st_mode & 0o7777,
        user: metadata.st_uid,
        group: metadata.st_gid,
        members: Vec::new(),
        ports: Vec::new(),
    };
    list(directory.as_fd(), &mut found.members, &mut found.ports)?;
    found.members.sort();
    found.ports.sort_by(|one, other| {
        (one.node.as_str(), one.port).cmp(&(other.node.as_str(), other.port))
    });
    Ok(found)
}

/// A port's memories, mapped for reading.
#[derive(Debug)]
pub struct Observer {
    name: PortName,
    bus: PathBuf,
    identity: Identity,
    shape: Shape,
    consumer: ConsumerView,
    connections: Vec<Watched>,
}

#[derive(Debug)]
struct Watched {
    memory: ProducerView,
    shape: Shape,
    index: usize,
    epoch: u64,
    node: NodeName,
    port: PortNumber,
    process: u32,
    /// Whether it publishes for others, too.
    is_for_many: bool,
}

impl Watched {
    fn memory(&self) -> ProducerMemory<'_> {
        self.memory.memory()
    }
}

/// Work of a port so far, as far as a watcher can see.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct PortFigures {
    /// The port.
    pub port: PortName,
    /// Queuing or sampling.
    pub kind: PortKind,
    /// The receiving process.
    pub process: u32,
    /// Slots of each class; cells of a sampling port.
    pub depth: u32,
    /// Bytes of the largest message.
    pub message_bytes_max: u32,
    /// Whether the receiver sleeps or waits for its descriptor.
    pub sleeps: bool,
    /// Those who send to it.
    pub producers: Vec<ProducerFigures>,
}

/// Work of one who sends to a port so far, as far as a watcher can see.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct ProducerFigures {
    /// The sending port.
    pub from: PortName,
    /// Its process.
    pub process: u32,
    /// The connection's number; a peer that comes back gets another.
    pub epoch: u64,
    /// Messages published, per class; of values, all in class 0.
    pub published: [u64; CLASS_COUNT],
    /// Messages that were not sent because their class was full, per class.
    pub dropped_full: [u64; CLASS_COUNT],
    /// Messages that wait, per class.
    pub queued: [u32; CLASS_COUNT],
    /// Slots that made no sense to the receiver, who skipped them.
    pub corrupt: u64,
    /// Messages or values of one who publishes for many that were replaced before the receiver took them.
    pub overwritten: u64,
    /// Times that the sender has kicked the receiver.
    pub kicks: u32,
    /// How long ago the newest message or value was published, in nanoseconds.
    pub newest_age_ns: Option<u64>,
    /// How long the message that has waited longest has waited, in nanoseconds.
    pub longest_wait_ns: Option<u64>,
}

impl Observer {
    /// Asks a port to be shown. `bus` is a name or a path.
    ///
    /// # Errors
    /// [`ObserveError`].
    pub fn open(bus: &str, name: PortName) -> Result<Observer, ObserveError> {
        let path = path_of(bus);
        let io = |source| ObserveError::Io { port: name, source };
        let connected = open_to_watch(&path)
            .and_then(|directory| connect_in(directory.as_fd(), name.node, name.port));
        let socket = connected.map_err(|error| {
            let bus = path.display().to_string();
            match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                    ObserveError::NoPort { port: name, bus }
                }
                io::ErrorKind::PermissionDenied => ObserveError::Denied { port: name, bus },
                io::ErrorKind::WouldBlock => ObserveError::Silent { port: name },
                _ => io(error),
            }
        })?;
        let process = std::process::id();
        let observe = Message {
            peer_port: name.port.get(),
            // A watcher has no name and no port; its process number identifies it.
            ..Message::new(Step::Observe, name.node.bytes(), name.port.get(), process)
        };
        let is_trusted = is_trusted(socket.peer().map_err(io)?.uid);
        // Each view brings a descriptor.
        let socket = socket.trust();
        unix::send(socket.as_fd(), &observe.to_bytes(), &[]).map_err(io)?;
        let views = views(socket.as_fd(), name);
        if !is_trusted {
            // Closing it also closes unreceived descriptors of another user, which may block.
            close_elsewhere_or_keep(socket);
        }
        Self::map(path, name, views?)
    }

    fn map(
        bus: PathBuf,
        name: PortName,
        views: Vec<(Message, OwnedFd)>,
    ) -> Result<Observer, ObserveError> {
        let nonsense = || ObserveError::Nonsense { port: name };
        let io = |source| ObserveError::Io { port: name, source };
        let layout = |source| ObserveError::Layout { port: name, source };
        let mut views = views.into_iter();
        let (first, file) = views.next().ok_or_else(nonsense)?;
        if first.index != INDEX_CONSUMER {
            return Err(nonsense());
        }
        let consumer = SharedMemory::of_peer(file, consumer_bytes());
        let consumer = ConsumerView::consumer(consumer.map_err(io)?);
        let identity = consumer.memory().head.identity.read();
        let shape =
            shape::check(&identity, ROLE_CONSUMER, consumer_bytes() as u64).map_err(layout)?;
        let mut observer = Observer {
            name,
            bus,
            identity,
            shape,
            consumer,
            connections: Vec::new(),
        };
        for (view, file) in views {
            let node = NodeName::from_bytes(view.node).ok_or_else(nonsense)?;
            let port = PortNumber::new(view.port).ok_or_else(nonsense)?;
            let index = view.index as usize;
            if index >= PRODUCERS_MAX {
                return Err(nonsense());
            }
            let bytes = usize::try_from(view.memory_bytes).unwrap_or(usize::MAX);
            // The identity has its place whatever the shape is.
            let smallest = Shape {
                kind: Kind::Sampling,
                message_bytes_max: 1,
            };
            if !(smallest.producer_bytes()..=MEMORY_BYTES_MAX).contains(&bytes) {
                return Err(nonsense());
            }
            let memory = SharedMemory::of_peer(file, bytes).map_err(io)?;
            let memory = ProducerView::producer(memory, smallest);
            let says = memory.memory().head.identity.read();
            let role = match says.role {
                ROLE_PUBLISHER => ROLE_PUBLISHER,
                _ => ROLE_PRODUCER,
            };
            let found = shape::check(&says, role, bytes as u64).map_err(layout)?;
            // One that is followed may publish less than the port could take.
            if found.kind_number() != shape.kind_number()
                || (role == ROLE_PRODUCER && found != shape)
            {
                return Err(nonsense());
            }
            observer.connections.push(Watched {
                memory: ProducerView::producer(memory.into_mapping(), found),
                shape: found,
                index,
                epoch: view.epoch,
                node,
                port,
                process: view.process,
                is_for_many: role == ROLE_PUBLISHER,
            });
        }
        Ok(observer)
    }

    /// Looks anew at who sends, keeping the port.
    ///
    /// # Errors
    /// [`ObserveError`]; what was watched before stays.
    pub fn refresh(&mut self) -> Result<(), ObserveError> {
        let bus = self.bus.display().to_string();
        *self = Observer::open(&bus, self.name)?;
        Ok(())
    }

    /// The port.
    #[must_use]
    pub fn name(&self) -> PortName {
        self.name
    }

    /// Queuing or sampling.
    #[must_use]
    pub fn kind(&self) -> PortKind {
        kind_of(self.shape)
    }

    /// Bytes of the largest message.
    #[must_use]
    pub fn message_bytes_max(&self) -> usize {
        self.shape.message_bytes_max as usize
    }

    /// Messages or values that were published for this port alone by senders that have gone since.
    fn published_by_gone(&self) -> u64 {
        let head = self.consumer.memory().head;
        // Acquire: partner is the Release of the port's thread.
        head.ended.published.load(Acquire)
    }

    fn entry(&self, watched: &Watched) -> &ConnectionEntry {
        &self.consumer.memory().connections[watched.index]
    }

    /// Work of the port so far.
    #[must_use]
    pub fn figures(&self) -> PortFigures {
        let now_ns = clock::monotonic().as_nanos();
        let producers = self.connections.iter();
        let waiting = &self.consumer.memory().head.wait.waiting;
        PortFigures {
            port: self.name,
            kind: self.kind(),
            process: self.identity.process,
            depth: self.shape.depth(),
            message_bytes_max: self.shape.message_bytes_max,
            sleeps: waiting.load(Relaxed) & WAKE_MODE != 0,
            producers: producers
                .map(|watched| self.producer_figures(watched, now_ns))
                .collect(),
        }
    }

    fn producer_figures(&self, watched: &Watched, now_ns: u64) -> ProducerFigures {
        let memory = watched.memory();
        let entry = self.entry(watched);
        let read = |line: &tautline_shm::vbus::layout::PerClassLine| {
            std::array::from_fn(|class| line.count[class].load(Relaxed))
        };
        let age = |stamp_ns: u64| now_ns.saturating_sub(stamp_ns);
        let backlog = Backlog::of(watched.shape.kind, watched.is_for_many, memory, entry);
        ProducerFigures {
            from: PortName {
                node: watched.node,
                port: watched.port,
            },
            process: watched.process,
            epoch: watched.epoch,
            published: read(&memory.head.published),
            dropped_full: read(&memory.head.dropped_full),
            queued: backlog.queued,
            corrupt: entry.taken.corrupt.load(Relaxed),
            overwritten: entry.taken.overwritten.load(Relaxed),
            kicks: tautline_shm::vbus::wait::kicks(&memory.head.kick),
            newest_age_ns: backlog.newest_ns.map(age),
            longest_wait_ns: backlog.oldest_waiting_ns.map(age),
        }
    }
}

/// The memories that a port shows.
fn views(socket: BorrowedFd<'_>, name: PortName) -> Result<Vec<(Message, OwnedFd)>, ObserveError> {
    let mut views = Vec::new();
    let shown = receive_views(socket, name, &mut views);
    let is_memory = |file: &OwnedFd| rustix::fs::fcntl_get_seals(file).is_ok();
    if shown.is_ok() && views.iter().all(|(_, file)| is_memory(file)) {
        return Ok(views);
    }
    // Another thing than a memory may block the thread that closes it.
    let files = views.into_iter().map(|(_, file)| file);
    files.for_each(close_elsewhere_or_keep);
    shown?;
    Err(ObserveError::Nonsense { port: name })
}

fn receive_views(
    socket: BorrowedFd<'_>,
    name: PortName,
    views: &mut Vec<(Message, OwnedFd)>,
) -> Result<(), ObserveError> {
    let nonsense = || ObserveError::Nonsense { port: name };
    let io = |source| ObserveError::Io { port: name, source };
    let deadline = clock::monotonic() + ANSWER_LIMIT;
    let mut buffer = [0; MESSAGE_BYTES + 1];
    // The port itself, each producer, and the end.
    for _ in 0..PRODUCERS_MAX + 2 {
        let (bytes, descriptors) = loop {
            match seqpacket::receive(socket, &mut buffer).map_err(io)? {
                Received::Message(bytes, descriptors) => break (bytes, descriptors),
                Received::HungUp => return Err(nonsense()),
                Received::Nothing => {
                    let left = deadline.saturating_duration_since(clock::monotonic());
                    if left.is_zero() {
                        return Err(ObserveError::Silent { port: name });
                    }
                    wait::readable(socket, Some(left)).map_err(io)?;
                }
            }
        };
        match (Message::from_bytes(&buffer[..bytes]), descriptors.len()) {
            (Ok(view), 1) if view.step == Step::View => {
                views.extend(descriptors.into_iter().map(|file| (view, file)));
            }
            (Ok(end), 0) if end.step == Step::End => return Ok(()),
            _ => {
                descriptors.into_iter().for_each(close_elsewhere_or_keep);
                return Err(nonsense());
            }
        }
    }
    Err(nonsense())
}

/// Watches the messages or values of a port. Nothing is taken away from the receiver.
#[derive(Debug)]
pub struct Tap {
    observer: Observer,
    positions: Vec<TapPosition>,
    missed: u64,
    /// Published by senders that have gone, as the port counts it.
    gone: u64,
    /// The part of it that was tapped or is in `missed`.
    gone_known: u64,
    /// The connection that is looked at first.
    turn: usize,
}

#[derive(Clone, Copy, Debug)]
struct TapPosition {
    epoch: u64,
    next: [u32; CLASS_COUNT],
    /// The writer's word when its value was copied last.
    word: u64,
    /// Messages or values that were tapped or counted as missed, and those before the tap.
    passed: u64,
}

/// A message or value that a tap has seen; its bytes are in the caller's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tapped {
    /// Bytes of the message, from the start of the buffer.
    pub length: usize,
    /// Sender of the message.
    pub source: Source,
    /// Its priority.
    pub priority: Priority,
    /// Its number in its flow.
    pub sequence: u32,
    /// When it was published.
    pub published: Instant,
}

impl Tap {
    /// A tap of what is published from now on.
    #[must_use]
    pub fn new(observer: Observer) -> Tap {
        let positions = observer.connections.iter().map(|watched| {
            let head = watched.memory().head;
            let word = head.latest.latest.load(Acquire);
            let published = head.published.count.each_ref().map(|of| of.load(Acquire));
            TapPosition {
                epoch: watched.epoch,
                next: published.map(|count| count as u32),
                word,
                passed: published.into_iter().fold(0, u64::wrapping_add),
            }
        });
        let gone = observer.published_by_gone();
        Tap {
            positions: positions.collect(),
            observer,
            missed: 0,
            gone,
            gone_known: gone,
            turn: 0,
        }
    }

    /// Port that is tapped.
    #[must_use]
    pub fn observer(&self) -> &Observer {
        &self.observer
    }

    /// Messages that were overwritten before they could be copied, or whose sender had gone before; of a sampling port,
    /// values that were replaced.
    #[must_use]
    pub fn missed(&self) -> u64 {
        self.missed
            .wrapping_add(self.gone.saturating_sub(self.gone_known))
    }

    /// Whether someone sends who is not tapped yet: [`refresh`](Self::refresh) before the sender has gone.
    #[must_use]
    pub fn has_new_sender(&self) -> bool {
        let mut entries = self.observer.consumer.memory().connections.iter();
        entries.any(|entry| {
            let epoch = entry.offer.epoch.load(Relaxed);
            epoch != 0 && !self.positions.iter().any(|place| place.epoch == epoch)
        })
    }

    /// Looks anew at who sends. Of those who are new everything is tapped, since they came after the tap.
    ///
    /// # Errors
    /// [`ObserveError`]; what was tapped before stays.
    pub fn refresh(&mut self) -> Result<(), ObserveError> {
        // Before the port is asked: a sender that goes after this is still among the senders, or counted at the next
        // refresh.
        let gone = self.observer.published_by_gone();
        let before = std::mem::take(&mut self.observer.connections);
        if let Err(error) = self.observer.refresh() {
            self.observer.connections = before;
            if matches!(error, ObserveError::NoPort { .. }) {
                self.settle();
            }
            return Err(error);
        }
        let now = &self.observer.connections;
        let is_there = |epoch| now.iter().any(|one| one.epoch == epoch);
        for (watched, place) in before.iter().zip(&self.positions) {
            if !is_there(watched.epoch) && !watched.is_for_many {
                self.gone_known = self.gone_known.wrapping_add(place.passed);
            }
        }
        self.gone = gone;
        let positions = self.observer.connections.iter().map(|watched| {
            let known = self
                .positions
                .iter()
                .find(|place| place.epoch == watched.epoch);
            known.copied().unwrap_or(TapPosition {
                epoch: watched.epoch,
                next: [0; CLASS_COUNT],
                word: 0,
                passed: 0,
            })
        });
        self.positions = positions.collect();
        self.turn = 0;
        Ok(())
    }

    /// Counts what was not tapped of a port that has closed: its memory stays as it was.
    fn settle(&mut self) {
        let memory = self.observer.consumer.memory();
        self.gone = self.observer.published_by_gone();
        for (watched, place) in self.observer.connections.iter().zip(&mut self.positions) {
            let has_gone = self.observer.entry(watched).offer.epoch.load(Relaxed) != watched.epoch;
            if has_gone && !watched.is_for_many {
                let passed = std::mem::take(&mut place.passed);
                self.gone_known = self.gone_known.wrapping_add(passed);
            }
        }
        for entry in memory.connections {
            let epoch = entry.offer.epoch.load(Relaxed);
            if epoch != 0 && !self.positions.iter().any(|place| place.epoch == epoch) {
                let taken = entry.taken.taken.iter();
                let taken = taken.fold(0, |sum, count| sum + u64::from(count.load(Relaxed)));
                self.missed = self.missed.wrapping_add(taken);
            }
        }
    }

    /// The next message, if one has been published: the most urgent of each sender, the senders in turn. `buffer` must
    /// hold [`Observer::message_bytes_max`] bytes; what exceeds it is cut off. Never waits.
    pub fn look(&mut self, buffer: &mut [u8]) -> Option<Tapped> {
        let count = self.observer.connections.len();
        for step in 0..count {
            let index = (self.turn + step) % count;
            let watched = &self.observer.connections[index];
            let place = &mut self.positions[index];
            let (found, missed) = match watched.shape.kind {
                Kind::Queuing { depth } => place.message(watched, depth, buffer),
                Kind::Sampling => place.value(watched, buffer),
            };
            self.missed = self.missed.wrapping_add(missed);
            place.passed = place
                .passed
                .wrapping_add(missed + u64::from(found.is_some()));
            if found.is_some() {
                self.turn = (index + 1) % count;
                return found;
            }
        }
        None
    }
}

impl TapPosition {
    /// The next message, the most urgent first, and how many were missed before it.
    fn message(
        &mut self,
        watched: &Watched,
        depth: u32,
        buffer: &mut [u8],
    ) -> (Option<Tapped>, u64) {
        let memory = watched.memory();
        let mut missed = 0;
        for class in (0..CLASS_COUNT).rev() {
            let published = &memory.head.published.count[class];
            // Each turn of the loop moves on by one message at least, or by all that are lost: at most as many as the
            // ring holds are left after the first.
            for _ in 0..depth {
                let position = self.next[class];
                let slot = memory.slots.slot(class, position);
                let ahead = (published.load(Acquire) as u32).wrapping_sub(position);
                if ahead > depth && ahead < u32::MAX / 2 {
                    // Overtaken: what is left are the last messages of the ring, but for the one being written.
                    let lost = ahead - depth + 1;
                    missed += u64::from(lost);
                    self.next[class] = position.wrapping_add(lost);
                    continue;
                }
                if slot.turn() != position.wrapping_add(1) {
                    break;
                }
                let tapped = copy(watched, slot, buffer);
                // A copy is whole if the producer had not come round to this slot: it writes position
                // `published` next, at the most.
                fence(Acquire);
                let after = (published.load(Relaxed) as u32).wrapping_sub(position);
                self.next[class] = position.wrapping_add(1);
                match tapped {
                    Some(tapped) if after < depth => return (Some(tapped), missed),
                    _ => missed += 1,
                }
            }
        }
        (None, missed)
    }

    /// The newest value if it was not seen yet, and how many were replaced before it was seen.
    fn value(&mut self, watched: &Watched, buffer: &mut [u8]) -> (Option<Tapped>, u64) {
        let copied = copy_newest(watched.memory(), self.word, |slot| {
            copy(watched, slot, buffer)
        });
        let Some((word, tapped)) = copied else {
            // Those that were replaced are counted when one is caught.
            return (None, 0);
        };
        let number = |word: u64| word >> 3;
        let replaced = number(word)
            .wrapping_sub(number(self.word))
            .saturating_sub(1);
        self.word = word;
        match tapped {
            Some(_) => (tapped, replaced),
            None => (None, replaced + 1),
        }
    }
}

/// Copies what a slot says and holds; nothing if it makes no sense.
fn copy(watched: &Watched, slot: Slot<'_>, buffer: &mut [u8]) -> Option<Tapped> {
    let head = slot.message();
    let length = head.length as usize;
    if length > slot.capacity() {
        return None;
    }
    let length = length.min(buffer.len());
    slot.copy_out(&mut buffer[..length]);
    Some(Tapped {
        length,
        source: Source {
            address: Address::Bus(watched.node),
            port: watched.port,
        },
        priority: Priority::new(u8::try_from(head.class).ok()?)?,
        sequence: head.sequence,
        published: Instant::from_nanos(head.arrival_ns),
    })
}
