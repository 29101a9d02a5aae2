//! The service thread of a node on a bus: accepts and makes connections, exchanges memories, and sees
//! when a peer dies. It sleeps otherwise, and no message passes through it. `arrivals` has who connects to a port,
//! `entries` what it listens to, `readers` what is published for many.

mod arrivals;
mod entries;
mod readers;

use std::any::Any;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::fs::inotify;
use tautline_proto::wire::PortNumber;
use tautline_shm::vbus::handshake::{HandshakeError, Message, Refusal, Step};
use tautline_state::Event;
use tautline_state::fork::OwnerProcess;
use tautline_state::lock;
use tautline_state::policy::{be_ordinary, set_policy};
use tautline_state::untrusted::UntrustedListener;

use self::entries::Entries;
use super::config::BusConfig;
use super::connect_state::{Obstacle, Subscription};
use super::directory::Directory;
use super::entry::{Connecting, Entry, PeerSocket, ReaderEntry};
use super::handover::make;
use super::incoming::ReceiverShared;
use super::sender::{Established, SenderShared};
use super::types::WITH_DECLARATION_BYTES_MAX;
use crate::address::NodeName;
use crate::sys::seqpacket::{self, Received};
use crate::sys::unix;

/// How long a handshake may take. Lower: a busy machine's peers are refused. Higher: a stopped peer
/// holds up [`destination`](crate::QueuingPort::destination) for as long.
pub(crate) const HANDSHAKE_LIMIT: Duration = Duration::from_secs(1);
/// Time between attempts to reach peers that are not there, apart from those that a new socket triggers.
/// Lower: the thread wakes more often. Higher: a peer that refused (all entries taken) is tried later.
const RETRY_PERIOD: Duration = Duration::from_secs(1);
/// Time until a peer that has hung up is tried again. Lower: one that ends and starts without pause keeps the thread
/// busy. Higher: a port that was opened again at once is found later.
const RETURN_PERIOD: Duration = Duration::from_millis(10);
/// Pause of the thread when the process has no descriptor left for who connects. Lower: it wakes more often while there
/// is none. Higher: who connects then waits for longer.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(crate) enum Command {
    /// A port is open: accept for it.
    Listen(Arc<ReceiverShared>, UntrustedListener),
    /// It is closed.
    Close(Arc<ReceiverShared>),
    /// Find the peer of a flow, and find it again whenever it comes back.
    Connect(Arc<SenderShared>),
    /// The flow is gone.
    Disconnect(Arc<SenderShared>),
    /// Read what a port publishes for many, and find it again whenever it comes back; until the port that reads closes.
    Follow(Arc<Subscription>),
    /// The node is gone.
    Stop,
}

#[derive(Debug)]
pub(crate) struct ServiceHandle {
    commands: Mutex<Vec<Command>>,
    wake: Event,
    /// The process that the thread is in: a forked one has none.
    process: OwnerProcess,
}

impl ServiceHandle {
    /// Nothing in a forked process: no thread would take the request, and the event is the parent's.
    pub(crate) fn command(&self, command: Command) {
        if !self.process.is_current() {
            return;
        }
        lock(&self.commands).push(command);
        self.wake.ring();
    }
}

/// The thread, ended when dropped.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) handle: Arc<ServiceHandle>,
    thread: Option<JoinHandle<()>>,
}

impl Service {
    pub(crate) fn start(config: &BusConfig, directory: Arc<Directory>) -> io::Result<Self> {
        let handle = Arc::new(ServiceHandle {
            commands: Mutex::default(),
            wake: Event::new()?,
            process: OwnerProcess::current(),
        });
        let mut worker = Worker::new(config.node, directory, Arc::clone(&handle))?;
        let priority = config.service_priority;
        let thread = std::thread::Builder::new()
            .name("taut-vbus".to_owned())
            .spawn(move || {
                let urgent =
                    priority.map(|priority| set_policy(0, libc::SCHED_FIFO, priority.into()));
                if !matches!(urgent, Some(Ok(()))) {
                    be_ordinary();
                }
                worker.run();
            })?;
        Ok(Self {
            handle,
            thread: Some(thread),
        })
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let thread = self.thread.take();
        if !self.handle.process.is_current() {
            std::mem::forget(thread);
            return;
        }
        self.handle.command(Command::Stop);
        if let Some(thread) = thread {
            // A panic there has been reported already.
            let _ended = thread.join();
        }
    }
}

struct Worker {
    node: NodeName,
    directory: Arc<Directory>,
    handle: Arc<ServiceHandle>,
    entries: Entries,
    /// Tells of sockets that appear; `None` where the kernel refuses one.
    watch: Option<OwnedFd>,
    /// Flows whose peer is not there.
    seeking: Vec<Arc<SenderShared>>,
    /// Publishers that are to be followed and are not there.
    lost: Vec<Arc<Subscription>>,
    /// Memories that a port's thread may still be using. They are let go of here, so that it never unmaps on the way of
    /// a message.
    detached: Vec<Arc<dyn Any + Send + Sync>>,
    retry_at: Instant,
}

const WAKE: u64 = 0;
const WATCH: u64 = 1;

impl Worker {
    fn new(
        node: NodeName,
        directory: Arc<Directory>,
        handle: Arc<ServiceHandle>,
    ) -> io::Result<Self> {
        let entries = Entries::new()?;
        entries.watch(&handle.wake, WAKE)?;
        // Best effort: without, peers that come back are found a little later.
        let watch = watch().ok();
        if let Some(watch) = &watch {
            entries.watch(watch, WATCH)?;
        }
        Ok(Self {
            node,
            directory,
            handle,
            entries,
            watch,
            seeking: Vec::new(),
            lost: Vec::new(),
            detached: Vec::new(),
            retry_at: Instant::now() + RETRY_PERIOD,
        })
    }

    fn run(&mut self) {
        let mut tokens = Vec::new();
        loop {
            self.entries.wait(self.timeout(), &mut tokens);
            for token in &tokens {
                match *token {
                    WAKE => {
                        self.handle.wake.quiet();
                        let commands = std::mem::take(&mut *lock(&self.handle.commands));
                        for command in commands {
                            if !self.obey(command) {
                                return;
                            }
                        }
                    }
                    WATCH => self.look_at_directory(),
                    token => self.serve(token),
                }
            }
            self.keep_time();
        }
    }

    /// Time until there is something to do, even if no descriptor has anything to say.
    fn timeout(&self) -> Option<Duration> {
        let is_busy = !self.seeking.is_empty()
            || !self.lost.is_empty()
            || !self.detached.is_empty()
            || self.entries.iter().any(|entry| entry.since().is_some());
        is_busy.then(|| {
            let until_retry = self.retry_at.saturating_duration_since(Instant::now());
            until_retry.clamp(RETURN_PERIOD, RETRY_PERIOD / 4)
        })
    }

    /// `false` if the node is gone.
    fn obey(&mut self, command: Command) -> bool {
        match command {
            Command::Listen(bus_receiver, socket) => {
                self.add(Entry::Listener {
                    bus_receiver,
                    socket,
                });
            }
            Command::Close(bus_receiver) => {
                self.remove(|entry| {
                    entry
                        .bus_receiver()
                        .is_some_and(|of| Arc::ptr_eq(of, &bus_receiver))
                });
                self.lost
                    .retain(|following| !Arc::ptr_eq(&following.bus_receiver, &bus_receiver));
            }
            Command::Follow(following) => self.follow(following),
            Command::Connect(bus_sender) => self.connect(bus_sender),
            Command::Disconnect(bus_sender) => {
                self.remove(|entry| {
                    entry
                        .bus_sender()
                        .is_some_and(|of| Arc::ptr_eq(of, &bus_sender))
                });
                self.seeking
                    .retain(|other| !Arc::ptr_eq(other, &bus_sender));
            }
            Command::Stop => return false,
        }
        true
    }

    fn add(&mut self, entry: Entry) {
        if let Err(entry) = self.entries.add(entry) {
            // As if it had hung up at once.
            self.lose(entry);
        }
    }

    fn remove(&mut self, is_meant: impl Fn(&Entry) -> bool) {
        for entry in self.entries.take_all(is_meant) {
            match entry {
                Entry::Producer { incoming, .. } => self.detached.push(incoming),
                Entry::Consumer { established, .. } => self.detached.push(established),
                Entry::Reader(reader) => self.lose_reader(reader),
                _ => {}
            }
        }
    }

    fn lose_reader(&mut self, entry: ReaderEntry) {
        if let Some(reader) = entry.reader {
            entry.publisher.remove(&reader);
            self.detached.push(reader);
        }
    }

    fn serve(&mut self, token: u64) {
        let Some(entry) = self.entries.get(token) else {
            return;
        };
        match entry {
            Entry::Listener {
                bus_receiver,
                socket,
            } => {
                let bus_receiver = Arc::clone(bus_receiver);
                // The rest comes with the next look.
                match socket.accept() {
                    Ok(Some(socket)) => self.arrive(bus_receiver, socket),
                    Ok(None) => {}
                    // Most likely there are no descriptors left. It is readable all the time.
                    Err(_) => std::thread::sleep(ACCEPT_PAUSE),
                }
            }
            // Nothing more is said once a connection stands; a peer that says something breaks the rules, and what it
            // says is not even looked at.
            Entry::Producer { .. }
            | Entry::Consumer { .. }
            | Entry::Reader(ReaderEntry { since: None, .. }) => self.lose_token(token),
            Entry::Arriving(_) | Entry::Connecting(_) | Entry::Reader(_) => self.hear(token),
        }
    }

    fn hear(&mut self, token: u64) {
        let Some(entry) = self.entries.get(token) else {
            return;
        };
        let mut buffer = [0; WITH_DECLARATION_BYTES_MAX + 1];
        match seqpacket::receive(entry.socket(), &mut buffer) {
            Ok(Received::Nothing) => {}
            Ok(Received::Message(bytes, descriptors)) => {
                let Some(entry) = self.entries.take(token) else {
                    return;
                };
                let message = Message::with_declaration(&buffer[..bytes]);
                let answered = self.answer(entry, message, descriptors);
                if let Err(entry) = answered.and_then(|entry| self.entries.put(token, entry)) {
                    self.lose(entry);
                }
            }
            Ok(Received::HungUp) | Err(_) => self.lose_token(token),
        }
    }

    fn lose_token(&mut self, token: u64) {
        if let Some(entry) = self.entries.take(token) {
            self.lose(entry);
        }
    }

    /// The peer of this entry is gone.
    fn lose(&mut self, entry: Entry) {
        match entry {
            Entry::Listener { .. } => {}
            Entry::Arriving(arriving) => {
                if let Some(offered) = arriving.offered {
                    arriving.bus_receiver.take_back(offered.index);
                }
                if let Some(following) = arriving.following {
                    following.attempt.settle();
                    self.lost.push(following);
                }
            }
            Entry::Producer {
                bus_receiver,
                incoming,
                following,
                ..
            } => {
                bus_receiver.hang_up(&incoming);
                self.detached.push(incoming);
                if let Some(following) = following {
                    following.attempt.set(false);
                    self.lost.push(following);
                    self.retry_soon();
                }
            }
            Entry::Reader(reader) => self.lose_reader(reader),
            Entry::Connecting(Connecting { bus_sender, .. }) => {
                bus_sender.attempt.settle();
                self.seeking.push(bus_sender);
            }
            Entry::Consumer {
                bus_sender,
                established,
                ..
            } => {
                bus_sender.set(None);
                self.detached.push(established);
                self.seeking.push(bus_sender);
                self.retry_soon();
            }
        }
    }

    fn retry_soon(&mut self) {
        self.retry_at = self.retry_at.min(Instant::now() + RETURN_PERIOD);
    }

    /// Result of a message; the entry as it is then, or as it is to be lost.
    fn answer(
        &mut self,
        entry: Entry,
        message: Result<(Message, &[u8]), HandshakeError>,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Entry, Entry> {
        match entry {
            Entry::Arriving(arriving) => self.hear_arrival(arriving, message, descriptors),
            Entry::Reader(reader) => self.hear_reader(reader, message, descriptors),
            Entry::Connecting(connecting) => self.proceed(connecting, message, descriptors),
            other => Err(other),
        }
    }

    /// Producer: the consumer has answered.
    fn proceed(
        &self,
        mut connecting: Connecting,
        message: Result<(Message, &[u8]), HandshakeError>,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Entry, Entry> {
        let (bus_sender, socket) = (&connecting.bus_sender, &connecting.socket);
        match (message, connecting.made.take()) {
            (Ok((message, text)), None)
                if message.step == Step::Refused && message.reason == Refusal::OtherType as u32 =>
            {
                let peer = (bus_sender.node, bus_sender.to);
                let greeting = self.own_greeting(Step::Refused, bus_sender);
                let types = &bus_sender.types;
                let difference = types.refused(socket, peer, greeting, text);
                bus_sender.attempt.refuse(Obstacle::Type(difference));
                // It looks whether the peer has begun anew, with this type, as after every refusal.
            }
            (Ok((message, _)), None) if message.step == Step::Offer => {
                if let Ok(made) = self.hand_over(bus_sender, socket, &message, descriptors) {
                    connecting.made = Some(Arc::new(made));
                    return Ok(Entry::Connecting(connecting));
                }
            }
            (Ok((message, _)), Some(established)) if message.step == Step::Accepted => {
                bus_sender.set(Some(Arc::clone(&established)));
                let Connecting {
                    bus_sender, socket, ..
                } = connecting;
                return Ok(Entry::Consumer {
                    bus_sender,
                    socket,
                    established,
                });
            }
            _ => {}
        }
        Err(Entry::Connecting(connecting))
    }

    /// Producer: makes the memory for a consumer's offer, and hands it over.
    fn hand_over(
        &self,
        bus_sender: &SenderShared,
        socket: &PeerSocket,
        offer: &Message,
        descriptors: Vec<OwnedFd>,
    ) -> io::Result<Established> {
        let made = make(self.node, bus_sender, offer, descriptors)?;
        let here = Message {
            epoch: offer.epoch,
            index: offer.index,
            memory_bytes: made.own().bytes() as u64,
            ..self.own_greeting(Step::Here, bus_sender)
        };
        unix::send(socket.as_fd(), &here.to_bytes(), &[made.own().file()])?;
        Ok(made)
    }

    /// Producer: a message to the port that a flow leads to.
    fn own_greeting(&self, step: Step, bus_sender: &SenderShared) -> Message {
        let (node, process) = (self.node.bytes(), std::process::id());
        Message {
            peer_port: bus_sender.to.get(),
            ..Message::new(step, node, bus_sender.from.get(), process)
        }
    }

    /// Tries to reach a flow's peer.
    fn connect(&mut self, bus_sender: Arc<SenderShared>) {
        let reached = self.reach(bus_sender.node, bus_sender.to);
        let connected = reached.and_then(|socket| {
            let connect = Message {
                epoch: bus_sender.types.sent_hash(),
                ..self.own_greeting(Step::Connect, &bus_sender)
            };
            unix::send(socket.as_fd(), &connect.to_bytes(), &[])?;
            Ok(socket)
        });
        match connected {
            Ok(socket) => self.add(Entry::Connecting(Connecting {
                bus_sender,
                socket,
                since: Instant::now(),
                made: None,
            })),
            Err(_) => {
                bus_sender.attempt.settle();
                self.seeking.push(bus_sender);
            }
        }
    }

    fn reach(&self, node: NodeName, port: PortNumber) -> io::Result<PeerSocket> {
        // Before the attempt: a peer that comes after it is seen to come.
        self.watch_for(node);
        PeerSocket::new(self.directory.connect(node, port)?)
    }

    /// Sockets have appeared: perhaps that of a peer that we seek.
    fn look_at_directory(&mut self) {
        if let Some(watch) = &self.watch {
            // Their names do not matter: an attempt costs next to nothing. A queue that overflows is an event, too.
            let mut buffer = [0; 4096];
            let _read = rustix::io::read(watch, &mut buffer);
        }
        self.seek();
    }

    /// Learns of the node's directory when it appears, and of sockets in it.
    fn watch_for(&self, node: NodeName) {
        let Some(watch) = &self.watch else { return };
        let flags = inotify::WatchFlags::MOVED_TO
            | inotify::WatchFlags::ONLYDIR
            | inotify::WatchFlags::DONT_FOLLOW;
        for path in self.directory.watched(node) {
            // The node's directory is not there yet, or watched already. Without, it is found a little later.
            let _later = inotify::add_watch(watch, path, flags);
        }
    }

    fn seek(&mut self) {
        for bus_sender in std::mem::take(&mut self.seeking) {
            self.connect(bus_sender);
        }
        for following in std::mem::take(&mut self.lost) {
            self.follow(following);
        }
    }

    /// Ends what takes too long, tries again, and buries.
    fn keep_time(&mut self) {
        let now = Instant::now();
        let is_late = |entry: &Entry| {
            entry
                .since()
                .is_some_and(|since| now.duration_since(since) >= HANDSHAKE_LIMIT)
        };
        for entry in self.entries.take_all(is_late) {
            self.lose(entry);
        }
        if now >= self.retry_at {
            self.retry_at = now + RETRY_PERIOD;
            self.seek();
        }
        self.detached.retain(|memory| Arc::strong_count(memory) > 1);
    }
}

fn watch() -> io::Result<OwnedFd> {
    let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
    Ok(inotify::init(flags)?)
}
