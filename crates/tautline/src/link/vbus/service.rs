//! The service thread of a node on a bus: accepts and makes connections, exchanges memories, and sees
//! when a peer dies. It sleeps otherwise, and no message passes through it.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};
use rustix::fs::inotify;
use tautline_shm::vbus::handshake::{HandshakeError, MESSAGE_BYTES, Message, Refusal, Step};

use super::directory::{Directory, socket_name};
use super::handover::{admit, greeting, make, offer, refuse, show};
use super::incoming::{Incoming, InletShared};
use super::outlet::{Established, OutletShared};
use crate::address::NodeName;
use crate::sys::event::Event;
use crate::sys::seqpacket::{self, Received};

/// How long a handshake may take. Lower: a busy machine's peers are refused. Higher: a stopped peer
/// holds up [`destination`](crate::QueuingPort::destination) for as long.
pub(crate) const HANDSHAKE_LIMIT: Duration = Duration::from_secs(1);
/// Time between attempts to reach peers that are not there, beside those that their coming sets off.
/// Lower: the thread wakes more often. Higher: a peer that refused (all entries taken) is tried later.
const RETRY_PERIOD: Duration = Duration::from_secs(1);
/// Handshakes that may be under way with those who connect. Lower: many who start at once wait for
/// each other. Higher: who connects and says nothing holds more descriptors.
const PENDING_MAX: usize = 128;

/// What is asked of the service thread.
#[derive(Debug)]
pub(crate) enum Command {
    /// A port is open: accept for it.
    Listen(Arc<InletShared>, OwnedFd),
    /// It is closed.
    Close(Arc<InletShared>),
    /// Find the peer of a flow, and find it again whenever it comes back.
    Connect(Arc<OutletShared>),
    /// The flow is gone.
    Disconnect(Arc<OutletShared>),
    /// The node is gone.
    Stop,
}

/// How to reach the service thread.
#[derive(Debug)]
pub(crate) struct ServiceHandle {
    commands: Mutex<Vec<Command>>,
    wake: Event,
}

impl ServiceHandle {
    pub(crate) fn command(&self, command: Command) {
        let mut commands = self.commands.lock().unwrap_or_else(PoisonError::into_inner);
        commands.push(command);
        drop(commands);
        self.wake.ring();
    }

    fn take(&self) -> Vec<Command> {
        let mut commands = self.commands.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut commands)
    }
}

/// The thread, ended when dropped.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) handle: Arc<ServiceHandle>,
    thread: Option<JoinHandle<()>>,
}

impl Service {
    pub(crate) fn start(node: NodeName, directory: Arc<Directory>) -> io::Result<Self> {
        let handle = Arc::new(ServiceHandle {
            commands: Mutex::default(),
            wake: Event::new()?,
        });
        let mut worker = Worker::new(node, directory, Arc::clone(&handle))?;
        let thread = std::thread::Builder::new()
            .name("taut-vbus".to_owned())
            .spawn(move || worker.run())?;
        Ok(Self {
            handle,
            thread: Some(thread),
        })
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.handle.command(Command::Stop);
        if let Some(thread) = self.thread.take() {
            // A panic there has been reported already.
            let _ended = thread.join();
        }
    }
}

/// What a descriptor is to the service thread.
enum Entry {
    /// A port's listening socket.
    Listener {
        inlet: Arc<InletShared>,
        socket: OwnedFd,
    },
    /// Somebody who has connected and not finished the handshake.
    Arriving {
        inlet: Arc<InletShared>,
        socket: OwnedFd,
        since: Instant,
        offered: Option<(usize, u64)>,
    },
    /// A producer of a port.
    Producer {
        inlet: Arc<InletShared>,
        socket: OwnedFd,
        incoming: Arc<Incoming>,
    },
    /// A connection of ours that is being made.
    Connecting {
        outlet: Arc<OutletShared>,
        socket: OwnedFd,
        since: Instant,
        made: Option<Arc<Established>>,
    },
    /// A connection of ours.
    Consumer {
        outlet: Arc<OutletShared>,
        socket: OwnedFd,
        made_at: Instant,
        established: Arc<Established>,
    },
}

impl Entry {
    fn socket(&self) -> BorrowedFd<'_> {
        match self {
            Self::Listener { socket, .. }
            | Self::Arriving { socket, .. }
            | Self::Producer { socket, .. }
            | Self::Connecting { socket, .. }
            | Self::Consumer { socket, .. } => socket.as_fd(),
        }
    }

    fn inlet(&self) -> Option<&Arc<InletShared>> {
        match self {
            Self::Listener { inlet, .. }
            | Self::Arriving { inlet, .. }
            | Self::Producer { inlet, .. } => Some(inlet),
            _ => None,
        }
    }

    fn outlet(&self) -> Option<&Arc<OutletShared>> {
        match self {
            Self::Connecting { outlet, .. } | Self::Consumer { outlet, .. } => Some(outlet),
            _ => None,
        }
    }

    fn since(&self) -> Option<Instant> {
        match self {
            Self::Arriving { since, .. } | Self::Connecting { since, .. } => Some(*since),
            _ => None,
        }
    }
}

/// Memories that the port's thread may still be using. They are let go of here, so that it never
/// unmaps on the way of a message.
enum Grave {
    Incoming(Arc<Incoming>),
    Established(Arc<Established>),
}

impl Grave {
    fn is_ours_alone(&self) -> bool {
        match self {
            Self::Incoming(incoming) => Arc::strong_count(incoming) == 1,
            Self::Established(established) => Arc::strong_count(established) == 1,
        }
    }
}

struct Worker {
    node: NodeName,
    directory: Arc<Directory>,
    handle: Arc<ServiceHandle>,
    epoll: OwnedFd,
    /// Tells of sockets that appear; `None` where the kernel refuses one.
    watch: Option<OwnedFd>,
    entries: BTreeMap<u64, Entry>,
    next: u64,
    /// Flows whose peer is not there.
    seeking: Vec<Arc<OutletShared>>,
    graves: Vec<Grave>,
    retry_at: Instant,
}

const WAKE: u64 = 0;
const WATCH: u64 = 1;
const FIRST: u64 = 2;

impl Worker {
    fn new(
        node: NodeName,
        directory: Arc<Directory>,
        handle: Arc<ServiceHandle>,
    ) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let readable = epoll::EventFlags::IN;
        epoll::add(
            &epoll,
            &handle.wake,
            epoll::EventData::new_u64(WAKE),
            readable,
        )?;
        // Best effort: without, peers that come back are found a little later.
        let watch = watch(&directory).ok();
        if let Some(watch) = &watch {
            epoll::add(&epoll, watch, epoll::EventData::new_u64(WATCH), readable)?;
        }
        Ok(Self {
            node,
            directory,
            handle,
            epoll,
            watch,
            entries: BTreeMap::new(),
            next: FIRST,
            seeking: Vec::new(),
            graves: Vec::new(),
            retry_at: Instant::now() + RETRY_PERIOD,
        })
    }

    fn run(&mut self) {
        let mut events = Vec::with_capacity(64);
        loop {
            events.clear();
            let timeout = self.is_busy().then_some(RETRY_PERIOD / 4);
            let timeout = timeout.and_then(|limit| Timespec::try_from(limit).ok());
            let space = rustix::buffer::spare_capacity(&mut events);
            // Interrupted: as if nothing had come.
            let _count = epoll::wait(&self.epoll, space, timeout.as_ref());
            for event in &events {
                let token = event.data.u64();
                match token {
                    WAKE => {
                        self.handle.wake.quiet();
                        for command in self.handle.take() {
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

    fn is_busy(&self) -> bool {
        !self.seeking.is_empty()
            || !self.graves.is_empty()
            || self.entries.values().any(|entry| entry.since().is_some())
    }

    /// `false` if the node is gone.
    fn obey(&mut self, command: Command) -> bool {
        match command {
            Command::Listen(inlet, socket) => {
                self.add(Entry::Listener { inlet, socket });
            }
            Command::Close(inlet) => {
                self.remove(|entry| entry.inlet().is_some_and(|of| Arc::ptr_eq(of, &inlet)));
            }
            Command::Connect(outlet) => self.connect(outlet),
            Command::Disconnect(outlet) => {
                self.remove(|entry| entry.outlet().is_some_and(|of| Arc::ptr_eq(of, &outlet)));
                self.seeking.retain(|other| !Arc::ptr_eq(other, &outlet));
            }
            Command::Stop => return false,
        }
        true
    }

    fn add(&mut self, entry: Entry) {
        let token = self.next;
        self.next += 1;
        self.insert(token, entry);
    }

    fn insert(&mut self, token: u64, entry: Entry) {
        let data = epoll::EventData::new_u64(token);
        match epoll::add(&self.epoll, entry.socket(), data, epoll::EventFlags::IN) {
            Ok(()) => {
                self.entries.insert(token, entry);
            }
            // No memory for it: as if it had hung up at once.
            Err(_) => self.lose(entry),
        }
    }

    fn remove(&mut self, is_meant: impl Fn(&Entry) -> bool) {
        let meant: Vec<u64> = self
            .entries
            .iter()
            .filter(|(_, entry)| is_meant(entry))
            .map(|(token, _)| *token)
            .collect();
        for token in meant {
            match self.entries.remove(&token) {
                Some(Entry::Producer { incoming, .. }) => {
                    self.graves.push(Grave::Incoming(incoming));
                }
                Some(Entry::Consumer { established, .. }) => {
                    self.graves.push(Grave::Established(established));
                }
                _ => {}
            }
        }
    }

    /// A descriptor has something to say.
    fn serve(&mut self, token: u64) {
        let Some(entry) = self.entries.get(&token) else {
            return;
        };
        if let Entry::Listener { inlet, socket } = entry {
            let inlet = Arc::clone(inlet);
            // The rest comes with the next look.
            if let Ok(Some(socket)) = seqpacket::accept(socket.as_fd()) {
                self.arrive(inlet, socket);
            }
            return;
        }
        let mut buffer = [0; MESSAGE_BYTES + 1];
        match seqpacket::receive(entry.socket(), &mut buffer) {
            Ok(Received::Nothing) => {}
            Ok(Received::Message(bytes, descriptors)) => {
                let Some(entry) = self.entries.remove(&token) else {
                    return;
                };
                // Registered anew under the same number if it stays.
                let _known = epoll::delete(&self.epoll, entry.socket());
                let message = Message::from_bytes(&buffer[..bytes]);
                match self.answer(entry, message, descriptors) {
                    Ok(entry) => self.insert(token, entry),
                    Err(entry) => self.lose(entry),
                }
            }
            Ok(Received::HungUp) | Err(_) => {
                if let Some(entry) = self.entries.remove(&token) {
                    self.lose(entry);
                }
            }
        }
    }

    fn arrive(&mut self, inlet: Arc<InletShared>, socket: OwnedFd) {
        let pending = self
            .entries
            .values()
            .filter(|entry| matches!(entry, Entry::Arriving { .. }));
        if pending.count() < PENDING_MAX {
            self.add(Entry::Arriving {
                inlet,
                socket,
                since: Instant::now(),
                offered: None,
            });
        }
    }

    /// The peer of this entry is gone.
    fn lose(&mut self, entry: Entry) {
        match entry {
            Entry::Listener { .. } => {}
            Entry::Arriving { inlet, offered, .. } => {
                if let Some((index, _)) = offered {
                    inlet.take_back(index);
                }
            }
            Entry::Producer {
                inlet, incoming, ..
            } => {
                inlet.hang_up(&incoming);
                self.graves.push(Grave::Incoming(incoming));
            }
            Entry::Connecting { outlet, .. } => {
                outlet.settle();
                self.seeking.push(outlet);
            }
            Entry::Consumer {
                outlet,
                made_at,
                established,
                ..
            } => {
                outlet.set(None);
                self.graves.push(Grave::Established(established));
                if made_at.elapsed() < RETRY_PERIOD / 4 {
                    // A peer that comes and goes without end must not keep us busy.
                    self.seeking.push(outlet);
                } else {
                    // Its port may be there again already.
                    self.connect(outlet);
                }
            }
        }
    }

    /// What follows from a message; the entry as it is then, or as it is to be lost.
    fn answer(
        &mut self,
        entry: Entry,
        message: Result<Message, HandshakeError>,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Entry, Entry> {
        match entry {
            Entry::Arriving {
                inlet,
                socket,
                since,
                offered,
            } => {
                let result = match (&message, offered) {
                    (Ok(message), None) if message.step == Step::Connect => {
                        match offer(&inlet, &socket, message) {
                            Ok(offered) => {
                                return Ok(Entry::Arriving {
                                    inlet,
                                    socket,
                                    since,
                                    offered: Some(offered),
                                });
                            }
                            Err(reason) => Err(Some(reason)),
                        }
                    }
                    (Ok(message), None) if message.step == Step::Observe => {
                        // Shown, and then let go.
                        let _gone = show(&inlet, &socket);
                        Err(None)
                    }
                    (Ok(message), Some(offered)) if message.step == Step::Here => {
                        admit(&inlet, message, offered, descriptors).map_err(Some)
                    }
                    (Err(HandshakeError::OtherVersion { .. }), _) => Err(Some(Refusal::Version)),
                    _ => Err(Some(Refusal::NotHere)),
                };
                match result {
                    Ok(incoming) => {
                        let incoming = Arc::new(incoming);
                        inlet.connect(&incoming);
                        let accepted = Message {
                            epoch: incoming.epoch,
                            index: incoming.index() as u32,
                            ..greeting(Step::Accepted, &inlet)
                        };
                        // If it is gone, it hangs up too.
                        let _sent = seqpacket::send(socket.as_fd(), &accepted.to_bytes(), &[]);
                        Ok(Entry::Producer {
                            inlet,
                            socket,
                            incoming,
                        })
                    }
                    Err(reason) => {
                        if let Some(reason) = reason {
                            refuse(&inlet, &socket, reason);
                        }
                        Err(Entry::Arriving {
                            inlet,
                            socket,
                            since,
                            offered,
                        })
                    }
                }
            }
            Entry::Connecting {
                outlet,
                socket,
                since,
                made,
            } => self.proceed(outlet, socket, since, made, message, descriptors),
            // Nothing more is said once a connection stands; who does breaks the rules.
            other => Err(other),
        }
    }

    /// Producer: the consumer has answered.
    fn proceed(
        &self,
        outlet: Arc<OutletShared>,
        socket: OwnedFd,
        since: Instant,
        made: Option<Arc<Established>>,
        message: Result<Message, HandshakeError>,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Entry, Entry> {
        match (message, made) {
            (Ok(message), None) if message.step == Step::Offer => {
                let result = make(self.node, &outlet, &message, descriptors);
                let sent = result.and_then(|made| {
                    let here = Message {
                        epoch: message.epoch,
                        index: message.index,
                        peer_port: outlet.to.get(),
                        memory_bytes: made.own().bytes() as u64,
                        ..Message::new(
                            Step::Here,
                            self.node.bytes(),
                            outlet.from.get(),
                            std::process::id(),
                        )
                    };
                    let file = [made.own().file()];
                    seqpacket::send(socket.as_fd(), &here.to_bytes(), &file)?;
                    Ok(made)
                });
                match sent {
                    Ok(made) => Ok(Entry::Connecting {
                        outlet,
                        socket,
                        since,
                        made: Some(Arc::new(made)),
                    }),
                    Err(_) => Err(Entry::Connecting {
                        outlet,
                        socket,
                        since,
                        made: None,
                    }),
                }
            }
            (Ok(message), Some(established)) if message.step == Step::Accepted => {
                outlet.set(Some(Arc::clone(&established)));
                Ok(Entry::Consumer {
                    outlet,
                    socket,
                    made_at: Instant::now(),
                    established,
                })
            }
            (_, made) => Err(Entry::Connecting {
                outlet,
                socket,
                since,
                made,
            }),
        }
    }

    /// Tries to reach a flow's peer.
    fn connect(&mut self, outlet: Arc<OutletShared>) {
        let path = self.directory.socket(&socket_name(outlet.node, outlet.to));
        let connected = seqpacket::connect(&path).and_then(|socket| {
            let connect = Message {
                peer_port: outlet.to.get(),
                ..Message::new(
                    Step::Connect,
                    self.node.bytes(),
                    outlet.from.get(),
                    std::process::id(),
                )
            };
            seqpacket::send(socket.as_fd(), &connect.to_bytes(), &[])?;
            Ok(socket)
        });
        match connected {
            Ok(socket) => self.add(Entry::Connecting {
                outlet,
                socket,
                since: Instant::now(),
                made: None,
            }),
            Err(_) => {
                outlet.settle();
                self.seeking.push(outlet);
            }
        }
    }

    /// Sockets have appeared: perhaps that of somebody whom we seek.
    fn look_at_directory(&mut self) {
        if let Some(watch) = &self.watch {
            let mut buffer = [std::mem::MaybeUninit::uninit(); 4096];
            let mut reader = inotify::Reader::new(watch, &mut buffer);
            // What they are called does not matter: an attempt costs next to nothing.
            while reader.next().is_ok() {}
        }
        self.seek();
    }

    fn seek(&mut self) {
        for outlet in std::mem::take(&mut self.seeking) {
            self.connect(outlet);
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
        let late: Vec<u64> = self
            .entries
            .iter()
            .filter(|(_, entry)| is_late(entry))
            .map(|(token, _)| *token)
            .collect();
        for token in late {
            if let Some(entry) = self.entries.remove(&token) {
                self.lose(entry);
            }
        }
        if now >= self.retry_at {
            self.retry_at = now + RETRY_PERIOD;
            self.seek();
        }
        self.graves.retain(|grave| !grave.is_ours_alone());
    }
}

fn watch(directory: &Directory) -> io::Result<OwnedFd> {
    let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
    let watch = inotify::init(flags)?;
    inotify::add_watch(&watch, directory.path(), inotify::WatchFlags::MOVED_TO)?;
    Ok(watch)
}
