//! A node as a client of the control process of its interface: the connection, and the messages on it.

pub(crate) mod protocol;

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rustix::net::SocketType;
use tautline_proto::neighbour::Neighbour;
use tautline_proto::wire::PortKey;
use tautline_shm::region::Shape;

use self::protocol::{Entry, Malformed, REPLY_BYTES_MAX, Reason, Refusal, Reply, Request};
use crate::claim::{Claim, Holder};
use crate::error::{NeighbourTableError, OpenError, PortError, Priorities};
use crate::link::bpf::demux::Setup;
use crate::link::bpf::sender::Sender;
use crate::link::bpf::{DemuxOwner, PortParts};
use crate::link::{NodeCounters, XdpMode};
use crate::memory::MappedPort;
use crate::runtime::{self, Room};
use crate::sys::interface::{self, InterfaceWatch};
use crate::sys::{unix, wait};
use tautline_state::fork::OwnerProcess;
use tautline_state::lock;
use tautline_state::untrusted::close_elsewhere_or_keep;

/// How long an answer may take. Lower: a busy machine's control process seems dead. Higher: opening a
/// port hangs for that long where it is stopped.
const TIME_LIMIT: Duration = Duration::from_secs(5);
/// Attempts to open a port that is taken, and the time between them: a client that has just given it up may
/// be a moment from gone.
const ATTEMPTS: u32 = 10;
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(25);

/// Name of the socket on which the control process of an interface serves clients, in the room of control sockets of
/// the network namespace. That belongs to root, to the user whom root has set up for control processes, or to the user
/// who looks, so that no stranger can take the name.
pub(crate) fn socket_name(interface_index: u32) -> String {
    format!("clients-{interface_index}")
}

/// Properties that a node's configuration wants of the demux. `None` accepts any value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DemuxWanted {
    pub(crate) ip: Option<Ipv4Addr>,
    pub(crate) mode: Option<XdpMode>,
}

/// State of a control process.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ControlProcess {
    /// The control process.
    pub pid: i32,
    /// Why it does not take this process, if it does not.
    pub refused: Option<String>,
}

/// Looks for the control process of an interface, and whether it takes this process as a client. `None`
/// if there is no such interface in this network namespace, or no control process.
#[must_use]
pub fn look(interface: &str) -> Option<ControlProcess> {
    let hello = Hello::to_any(interface::query(interface).ok()?.index);
    let mut control = hello.connect().ok()??;
    let refused = hello.say(&mut control).err();
    Some(ControlProcess {
        pid: control.pid,
        refused,
    })
}

/// Neighbours that the control process of an interface has for its clients.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SharedNeighbours {
    /// The control process.
    pub pid: i32,
    /// The `[[neighbour]]` entries of its configuration, in their order.
    pub entries: Vec<Neighbour>,
}

/// The neighbours that an interface's control process has for its clients; `None` if it has no control process.
///
/// ```no_run
/// if let Some(shared) = tautline::control::shared_neighbours("eth0")? {
///     for entry in shared.entries {
///         println!("{}", entry.name);
///     }
/// }
/// # Ok::<(), tautline::neighbours::NeighbourTableError>(())
/// ```
///
/// # Errors
/// [`NeighbourTableError::NoSuchInterface`], [`NeighbourTableError::NotAllowed`] if it does not take this process as a
/// client, [`NeighbourTableError::ControlGone`].
pub fn shared_neighbours(interface: &str) -> Result<Option<SharedNeighbours>, NeighbourTableError> {
    let found = interface::query(interface).map_err(|_| NeighbourTableError::NoSuchInterface {
        name: interface.to_owned(),
        known: interface::names().unwrap_or_default(),
    })?;
    let hello = Hello::to_any(found.index);
    let gone = |pid| move |source| NeighbourTableError::ControlGone { pid, source };
    let Some(mut control) = hello.connect().map_err(gone(0))? else {
        return Ok(None);
    };
    let pid = control.pid;
    // The descriptor that keeps the demux attached is not needed.
    let _keeper = hello
        .say(&mut control)
        .map_err(|why| NeighbourTableError::NotAllowed { pid, why })?;
    let answer = control.ask(&Request::Neighbours).map_err(gone(pid))?;
    let entries = entries_of(answer.0).ok_or_else(|| io::Error::other(NONSENSE));
    let entries = entries.map_err(gone(pid))?;
    Ok(Some(SharedNeighbours { pid, entries }))
}

const NONSENSE: &str = "its answer makes no sense";

fn entries_of(answer: Reply) -> Option<Vec<Neighbour>> {
    match answer {
        Reply::Neighbours(entries) => Some(entries.into_iter().map(|Entry(one)| one).collect()),
        _ => None,
    }
}

/// A node's connection to the control process of its interface.
#[derive(Debug)]
pub(crate) struct Connection {
    hello: Hello,
    control: Mutex<Control>,
    welcome: Welcome,
    watch: Option<Arc<InterfaceWatch>>,
    process: OwnerProcess,
    /// Keeps the demux on the interface, whichever other process dies.
    _keeper: OwnedFd,
}

/// Needs of this node.
#[derive(Clone, Debug)]
pub(crate) struct Hello {
    /// Name of the control process's socket.
    socket: String,
    request: Request,
}

/// The process at the other end.
#[derive(Debug)]
pub(crate) struct Control {
    socket: OwnedFd,
    pid: i32,
    serial: u32,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Welcome {
    demux: u32,
    ip: Option<Ipv4Addr>,
    mode: XdpMode,
}

impl Connection {
    /// Connects to the control process of the interface; `None` if there is none.
    ///
    /// # Errors
    /// [`OpenError::ControlRefused`].
    pub(crate) fn open(
        setup: &Setup,
        wanted: DemuxWanted,
        watch: Option<&Arc<InterfaceWatch>>,
    ) -> Result<Option<Self>, OpenError> {
        let hello = Hello {
            socket: socket_name(setup.interface.index),
            request: Request::Hello {
                ethertype: setup.ethernet.ethertype,
                vlan: setup.ethernet.vlan.identifier(),
                ip: wanted.ip,
                mode: wanted.mode,
            },
        };
        let connected = hello
            .connect()
            .map_err(|error| refused(0, format!("it cannot be reached: {error}")))?;
        let Some(mut control) = connected else {
            return Ok(None);
        };
        let pid = control.pid;
        let (welcome, keeper) = hello.say(&mut control).map_err(|why| refused(pid, why))?;
        Ok(Some(Self {
            hello,
            control: Mutex::new(control),
            welcome,
            watch: watch.map(Arc::clone),
            process: OwnerProcess::current(),
            _keeper: keeper,
        }))
    }

    /// The address whose UDP form the demux takes.
    pub(crate) fn ip(&self) -> Option<Ipv4Addr> {
        self.welcome.ip
    }

    pub(crate) fn mode(&self) -> XdpMode {
        self.welcome.mode
    }

    pub(crate) fn pid(&self) -> i32 {
        self.control().pid
    }

    fn control(&self) -> MutexGuard<'_, Control> {
        // A panic elsewhere can leave behind an unread answer, which is noticed.
        lock(&self.control)
    }

    /// One request and its answer. If the control process is gone and another serves the same demux, from that one.
    fn ask(&self, request: &Request) -> Result<(Reply, Vec<OwnedFd>), PortError> {
        // Before the lock, which a thread of the parent's may have held.
        self.process.check()?;
        let mut control = self.control();
        let first = control.ask(request);
        let gone = |error: &io::Error| {
            matches!(
                error.kind(),
                io::ErrorKind::BrokenPipe
                    | io::ErrorKind::ConnectionReset
                    | io::ErrorKind::UnexpectedEof
            )
        };
        let answered = match first {
            Err(error) if gone(&error) => match self.find_successor() {
                Some(successor) => {
                    *control = successor;
                    control.ask(request)
                }
                None => Err(error),
            },
            other => other,
        };
        let pid = control.pid;
        answered.map_err(|source| PortError::ControlGone { pid, source })
    }

    fn ask_until_free(&self, request: &Request) -> Result<(Reply, Vec<OwnedFd>), PortError> {
        for _ in 1..ATTEMPTS {
            match self.ask(request)? {
                (Reply::Refused(refusal), _) if refusal.reason == Reason::Taken => {
                    std::thread::sleep(BETWEEN_ATTEMPTS);
                }
                answered => return Ok(answered),
            }
        }
        self.ask(request)
    }

    fn not_opened(&self, key: PortKey, refusal: Refusal) -> PortError {
        let why = refusal.why;
        match (refusal.reason, key) {
            (Reason::Taken, PortKey::Udp(port)) if refusal.holder == 0 => PortError::Taken {
                key,
                holder: self
                    .ip()
                    .and_then(|ip| Holder::of_udp(SocketAddrV4::new(ip, port.get()))),
            },
            (Reason::Taken, _) => PortError::Taken {
                key,
                holder: (refusal.holder != 0).then(|| Holder::of(refusal.holder)),
            },
            (Reason::Kernel | Reason::BadRequest, _) => {
                PortError::refused("opening the port in the control process", why)
            }
            _ => PortError::NotAllowed { key, why },
        }
    }

    fn find_successor(&self) -> Option<Control> {
        let mut control = self.hello.connect().ok()??;
        let (welcome, _) = self.hello.say(&mut control).ok()?;
        // Ports of another demux would be strangers to this node's.
        (welcome.demux == self.welcome.demux).then_some(control)
    }
}

fn refused(pid: i32, why: String) -> OpenError {
    OpenError::ControlRefused { pid, why }
}

impl Hello {
    /// To the control process of an interface, whatever its demux is like.
    fn to_any(index: u32) -> Self {
        Self {
            socket: socket_name(index),
            request: Request::Hello {
                ethertype: 0,
                vlan: 0,
                ip: None,
                mode: None,
            },
        }
    }

    /// Nothing where no control process listens.
    pub(crate) fn connect(&self) -> io::Result<Option<Control>> {
        for room in runtime::find(Room::Control) {
            let deadline = Instant::now() + TIME_LIMIT;
            let kind = SocketType::SEQPACKET;
            let Some(socket) = runtime::connect(&room, &self.socket, kind, deadline)? else {
                continue;
            };
            let peer = socket.peer()?;
            if runtime::believes(peer.uid) {
                return Ok(Some(Control {
                    socket: socket.trust(),
                    pid: peer.pid,
                    serial: 0,
                }));
            }
        }
        Ok(None)
    }

    pub(crate) fn say(&self, control: &mut Control) -> Result<(Welcome, OwnedFd), String> {
        let (answer, descriptors) = control
            .ask(&self.request)
            .map_err(|error| format!("it does not answer: {error}"))?;
        match answer {
            Reply::Welcome { demux, ip, mode } => {
                let keeper = descriptors.into_iter().next();
                let keeper = keeper.ok_or("a descriptor is missing from its answer")?;
                Ok((Welcome { demux, ip, mode }, keeper))
            }
            Reply::Refused(refusal) => Err(refusal.why),
            other => Err(format!("it answered {other:?}")),
        }
    }
}

impl Control {
    pub(crate) fn ask(&mut self, request: &Request) -> io::Result<(Reply, Vec<OwnedFd>)> {
        self.serial = self.serial.wrapping_add(1);
        match unix::send(self.socket.as_fd(), &request.encode(self.serial), &[]) {
            // It may have said why before it closed.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            sent => sent?,
        }
        let deadline = Instant::now() + TIME_LIMIT;
        loop {
            // One byte more, so that what is too long is not taken for a reply.
            let mut bytes = vec![0; REPLY_BYTES_MAX + 1];
            let (length, descriptors) = receive(self.socket.as_fd(), &mut bytes, deadline)?;
            if length == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let (answer, serial) = Reply::decode(&bytes[..length]).map_err(not_understood)?;
            if serial != self.serial {
                // To a request that was given up. What came with it is closed here, and free again.
                continue;
            }
            let kinds = answer.descriptor_kinds();
            let mut both = kinds.iter().zip(&descriptors);
            if descriptors.len() != kinds.len()
                || !both.all(|(kind, descriptor)| kind.is_of(descriptor.as_fd()))
            {
                // Closing a descriptor that another process has chosen can block.
                descriptors.into_iter().for_each(close_elsewhere_or_keep);
                return Err(io::Error::other(
                    "other descriptors than expected came with its answer",
                ));
            }
            return Ok((answer, descriptors));
        }
    }
}

fn not_understood(malformed: Malformed) -> io::Error {
    io::Error::other(match malformed {
        Malformed::Version(other) => {
            format!("it speaks version {other} of these messages, another than this process")
        }
        Malformed::Rubbish => NONSENSE.to_owned(),
    })
}

/// The next message, if one comes until the deadline.
fn receive(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
    deadline: Instant,
) -> io::Result<(usize, Vec<OwnedFd>)> {
    loop {
        match unix::receive_descriptors(socket, bytes) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            result => return result,
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        wait::readable(socket, Some(left))?;
    }
}

impl DemuxOwner for Connection {
    fn open_port(&self, key: PortKey, shape: Shape) -> Result<PortParts, PortError> {
        let (priorities, any_source_address, descriptors) =
            match self.ask_until_free(&Request::Open { key, shape })? {
                (
                    Reply::Opened {
                        key: opened,
                        priorities,
                        entry,
                        any_source_address,
                    },
                    descriptors,
                ) if opened == key => {
                    let priorities = Priorities::of_entry(entry, priorities);
                    (priorities, any_source_address, descriptors)
                }
                (Reply::Refused(refusal), _) => return Err(self.not_opened(key, refusal)),
                (other, _) => return Err(nonsense(&other)),
            };
        let mut descriptors = descriptors.into_iter();
        let (Some(memory), Some(doorbell), Some(sender), Some(claim)) = (
            descriptors.next(),
            descriptors.next(),
            descriptors.next(),
            descriptors.next(),
        ) else {
            unreachable!("an answer has the descriptors that it needs");
        };
        let refused =
            |error| PortError::refused("using what the control process handed over", error);
        Ok(PortParts {
            memory: Arc::new(MappedPort::handed(memory.as_fd(), shape).map_err(refused)?),
            doorbell,
            sender: Sender::Tap(sender, self.watch.clone()),
            claim: Some(Claim::handed(claim)),
            priorities,
            any_source_address,
            reserved: descriptors.next(),
        })
    }

    /// A control process that does not hear it finds the key unclaimed.
    fn close_port(&self, key: PortKey) {
        let _heard = self.ask(&Request::Close { key });
    }

    fn counters(&self) -> NodeCounters {
        match self.ask(&Request::Counters) {
            Ok((Reply::Counters(counters), _)) => counters,
            // Not known while there is no control process to ask.
            _ => NodeCounters::default(),
        }
    }

    fn neighbours(&self) -> Option<Vec<Neighbour>> {
        // Without a control process, what has been read stands.
        entries_of(self.ask(&Request::Neighbours).ok()?.0)
    }
}

fn nonsense(answer: &Reply) -> PortError {
    PortError::refused(
        "opening the port in the control process",
        format!("it answered {answer:?}"),
    )
}
