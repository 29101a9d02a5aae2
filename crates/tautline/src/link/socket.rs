//! Ports of the links whose frames reach the process through sockets (`packet`, `udp`), whatever their key: packet
//! sockets for whole frames, UDP sockets for datagrams.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tautline_proto::ip::{DATAGRAM_BYTES_MAX, type_of_service};
use tautline_proto::wire::raw::{RAW_FRAME_BYTES_MAX, RawFrame};
use tautline_proto::wire::{ParseError, PortNumber, Priority, Rejected, ethernet, udp};
use tautline_shm::region::Shape;

use super::frame::{FRAME_BYTES_MAX, FrameBuffer, deliver_frame};
use super::plain_udp::deliver_received;
use super::raw::{count_unfit, deliver_raw};
use super::{NodeCounters, OutFrame, PortLink, sleep_on};
use crate::address::Address;
use crate::claim::{Claim, Holder, with_retries};
use crate::error::{PortError, ReceiveError, SendError};
use crate::memory::MappedPort;
use crate::sys::interface::InterfaceWatch;
use crate::sys::socket::{self, Receiver, bind, internet_address, open, set_option};
use crate::sys::wait;

/// Frames that one `collect` takes from one socket. Lower: a port that is read seldom lags behind its socket. Higher: a
/// receive may take longer, though everything it fetches is needed to find the most urgent message.
const COLLECT_FRAMES_MAX: usize = 64;

/// Bytes that the kernel may hold for one port's socket before it drops. The kernel's default
/// (208 KiB) holds 90 full frames; a class of default depth alone has 64.
const SOCKET_BUFFER_BYTES: i32 = 1 << 20;

/// Node counters, counted by this process.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    malformed: [AtomicU64; ParseError::COUNT],
    pub(super) no_port: AtomicU64,
    socket_full: AtomicU64,
}

impl Counters {
    pub(crate) fn count(&self, error: ParseError) {
        self.malformed[error.index()].fetch_add(1, Relaxed);
    }

    pub(crate) fn read(&self) -> NodeCounters {
        NodeCounters {
            malformed: std::array::from_fn(|index| self.malformed[index].load(Relaxed)),
            no_port: self.no_port.load(Relaxed),
            socket_full: self.socket_full.load(Relaxed),
            ..NodeCounters::default()
        }
    }
}

/// Content of the frames of a socket.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SocketForm {
    /// Whole Ethernet frames of this EtherType, with our header.
    Ethernet { ethertype: u16 },
    /// Datagrams to this port, with our header.
    Udp { port: PortNumber },
    /// Datagrams of others to this address.
    Datagrams { local: SocketAddrV4 },
    /// Whole Ethernet frames of others.
    Frames,
}

impl SocketForm {
    fn bytes_max(self) -> usize {
        match self {
            Self::Ethernet { .. } | Self::Udp { .. } => FRAME_BYTES_MAX,
            Self::Datagrams { .. } => DATAGRAM_BYTES_MAX,
            Self::Frames => RAW_FRAME_BYTES_MAX,
        }
    }
}

/// One socket of a port, and what its frames look like.
struct ReceiveSocket {
    receiver: Receiver,
    form: SocketForm,
    buffer: Box<[u8]>,
    /// Of the frames that the socket dropped, those that have been counted.
    dropped: u32,
    /// Of the last datagram that was cut for the slots.
    identification: u16,
}

impl std::fmt::Debug for ReceiveSocket {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("ReceiveSocket")
            .field("form", &self.form)
            .finish_non_exhaustive()
    }
}

impl ReceiveSocket {
    fn new(socket: OwnedFd, form: SocketForm) -> std::io::Result<Self> {
        // Best effort: above net.core.rmem_max the kernel gives what it allows.
        let (level, bytes) = (libc::SOL_SOCKET, &SOCKET_BUFFER_BYTES);
        let _limited = set_option(socket.as_fd(), level, libc::SO_RCVBUF, bytes);
        if let SocketForm::Datagrams { .. } = form {
            set_option(socket.as_fd(), libc::IPPROTO_IP, libc::IP_RECVTOS, &1i32)?;
        }
        Ok(Self {
            receiver: Receiver::new(socket)?,
            form,
            buffer: vec![0; form.bytes_max()].into(),
            dropped: 0,
            identification: 0,
        })
    }

    fn socket(&self) -> BorrowedFd<'_> {
        self.receiver.socket()
    }

    /// Moves what has arrived into the port's memory.
    fn collect(&mut self, memory: &MappedPort, counters: &Counters) -> Result<(), ReceiveError> {
        for _ in 0..COLLECT_FRAMES_MAX {
            let Some(received) = self.receiver.receive(&mut self.buffer[..])? else {
                break;
            };
            if received.dropped != self.dropped {
                let more = received.dropped.wrapping_sub(self.dropped);
                counters.socket_full.fetch_add(more.into(), Relaxed);
                self.dropped = received.dropped;
            }
            let frame = &self.buffer[..received.bytes.min(self.buffer.len())];
            let (arrival, from) = (received.arrival, received.from);
            let parsed = match self.form {
                SocketForm::Ethernet { ethertype } => ethernet::parse(frame, ethertype)
                    .map(|frame| (Address::Ethernet(frame.source), frame.header, frame.payload)),
                SocketForm::Udp { port } => udp::parse_datagram(frame, port.udp_port())
                    .map(|(header, payload)| (Address::Udp(from), header, payload))
                    .map_err(Rejected::Malformed),
                SocketForm::Datagrams { local } => {
                    self.identification = self.identification.wrapping_add(1);
                    deliver_received(memory, local.port(), &received, self.identification, frame);
                    continue;
                }
                SocketForm::Frames => {
                    match RawFrame::parse(frame) {
                        _ if received.bytes > self.buffer.len() => count_unfit(memory),
                        Some(frame) => deliver_raw(memory, arrival, &frame),
                        None => {}
                    }
                    continue;
                }
            };
            match parsed {
                Ok((source, header, payload)) => {
                    deliver_frame(memory, arrival, source.word(), &header, payload);
                }
                Err(Rejected::Malformed(error)) => counters.count(error),
                Err(Rejected::NotOurs) => {}
            }
        }
        Ok(())
    }
}

/// A port's half of a link of sockets.
#[derive(Debug)]
pub(super) struct SocketPort {
    memory: Arc<MappedPort>,
    /// Socket of whole frames.
    frames: Option<ReceiveSocket>,
    /// Socket of datagrams, which sends them too.
    datagrams: Option<ReceiveSocket>,
    /// Readable when one of two sockets is.
    either: Option<OwnedFd>,
    /// Packet socket through which whole frames leave.
    sender: Option<Arc<OwnedFd>>,
    frame: FrameBuffer,
    /// Priority that datagrams of others' protocols are marked with at present.
    marked: Option<Priority>,
    counters: Arc<Counters>,
    _claim: Option<Claim>,
}

/// Parts of a port on a link of sockets.
#[derive(Debug, Default)]
pub(super) struct SocketParts {
    /// Socket that receives whole frames.
    pub(super) frames: Option<(OwnedFd, SocketForm)>,
    /// Socket of datagrams.
    pub(super) datagrams: Option<(OwnedFd, SocketForm)>,
    /// Packet socket through which whole frames leave.
    pub(super) sender: Option<Arc<OwnedFd>>,
    pub(super) claim: Option<Claim>,
}

impl SocketPort {
    /// Takes the port's memory and prepares its sockets.
    pub(super) fn new(
        parts: SocketParts,
        (shape, number): (Shape, u16),
        counters: &Arc<Counters>,
    ) -> Result<Self, PortError> {
        let refused = |error| PortError::refused("preparing the port's sockets", error);
        let memory = MappedPort::private(shape, number)
            .map_err(|error| PortError::refused("taking the port's memory", error))?;
        let receive = |part: Option<(OwnedFd, SocketForm)>| {
            let made = part.map(|(socket, form)| ReceiveSocket::new(socket, form));
            made.transpose().map_err(refused)
        };
        let (frames, datagrams) = (receive(parts.frames)?, receive(parts.datagrams)?);
        let both = frames.as_ref().zip(datagrams.as_ref());
        let both = both.map(|(frames, datagrams)| [frames.socket(), datagrams.socket()]);
        let either = both.map(|both| wait::either(&both)).transpose();
        let is_of_others =
            |socket: &&ReceiveSocket| matches!(socket.form, SocketForm::Datagrams { .. });
        Ok(Self {
            memory: Arc::new(memory),
            either: either.map_err(refused)?,
            marked: datagrams
                .as_ref()
                .filter(is_of_others)
                .map(|_| Priority::LOWEST),
            frames,
            datagrams,
            sender: parts.sender,
            frame: FrameBuffer::new(),
            counters: Arc::clone(counters),
            _claim: parts.claim,
        })
    }

    /// Marks datagrams with a priority from now on, if this port marks them.
    fn mark(&mut self, priority: Priority) -> Result<(), SendError> {
        let (Some(marked), Some(socket)) = (&mut self.marked, &self.datagrams) else {
            return Ok(());
        };
        if *marked != priority {
            let service = libc::c_int::from(type_of_service(priority));
            set_option(socket.socket(), libc::IPPROTO_IP, libc::IP_TOS, &service)?;
            *marked = priority;
        }
        Ok(())
    }
}

impl PortLink for SocketPort {
    fn memory(&self) -> &Arc<MappedPort> {
        &self.memory
    }

    fn collect(&mut self) -> Result<(), ReceiveError> {
        for socket in self.frames.iter_mut().chain(&mut self.datagrams) {
            socket.collect(&self.memory, &self.counters)?;
        }
        Ok(())
    }

    fn wait(
        &mut self,
        timeout: Option<Duration>,
        watch: Option<&InterfaceWatch>,
    ) -> Result<(), ReceiveError> {
        match self.descriptor() {
            Some(descriptor) => sleep_on(descriptor, timeout, watch),
            None => Ok(()),
        }
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        let one = || self.frames.as_ref().or(self.datagrams.as_ref());
        match &self.either {
            Some(either) => Some(either.as_fd()),
            None => one().map(ReceiveSocket::socket),
        }
    }

    fn send(&mut self, frame: &OutFrame<'_>) -> Result<(), SendError> {
        let Some(to) = frame.to else {
            let sender = self.sender.as_ref().ok_or(NO_SOCKET)?;
            return Ok(socket::send(sender.as_fd(), self.frame.whole(frame))?);
        };
        self.mark(frame.priority)?;
        let bytes = self.frame.whole(frame);
        let datagrams = self.datagrams.as_ref().ok_or(NO_SOCKET)?;
        Ok(socket::send_to(datagrams.socket(), bytes, to)?)
    }

    /// Takes the first frames that go through the same socket, in the same way.
    fn send_many(&mut self, frames: &[OutFrame<'_>]) -> Result<usize, SendError> {
        let Some(first) = frames.first() else {
            return Ok(0);
        };
        self.mark(first.priority)?;
        let marks = self.marked.is_some();
        let is_like_first = |frame: &&OutFrame<'_>| {
            frame.to.is_some() == first.to.is_some() && (!marks || frame.priority == first.priority)
        };
        let frames = &frames[..frames.iter().take_while(is_like_first).count()];
        let socket = match first.to {
            Some(_) => self.datagrams.as_ref().map(ReceiveSocket::socket),
            None => self.sender.as_ref().map(AsFd::as_fd),
        };
        Ok(socket::send_many(socket.ok_or(NO_SOCKET)?, frames)?)
    }
}

/// Answer to a frame of a form that no route of the port's link has.
const NO_SOCKET: SendError = SendError::Refused {
    errno: libc::EAFNOSUPPORT,
};

/// A UDP socket for messages to one port of a node.
pub(super) fn udp_socket(ip: Ipv4Addr, port: PortNumber) -> Result<OwnedFd, PortError> {
    let refused = |source| PortError::refused("opening a UDP socket", source);
    let socket = super::plain_udp::bind(SocketAddrV4::new(ip, port.udp_port()), port.into())?;
    // No UDP checksum, as the raw links send: between the ends of a virtual link it would be left
    // half made, and on a cable the frame's check sequence is there.
    set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_NO_CHECK, &1i32).map_err(refused)?;
    // The raw links take whole packets of the UDP form and no IP fragments, so a frame that does not fit is refused
    // here.
    let (option, always) = (libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO);
    set_option(socket.as_fd(), libc::IPPROTO_IP, option, &always).map_err(refused)?;
    Ok(socket)
}

/// Why a UDP socket has not got its address.
#[derive(Debug)]
pub(super) enum BindError {
    /// Another socket has it.
    Taken(Option<Holder>),
    Io(std::io::Error),
}

/// A UDP socket that has an address and port for itself. Waits a moment for a port that is just being given up.
pub(super) fn bound_socket(own: SocketAddrV4) -> Result<OwnedFd, BindError> {
    let socket = unbound_socket().map_err(BindError::Io)?;
    let address = internet_address(own);
    with_retries(std::io::ErrorKind::AddrInUse, || {
        bind(socket.as_fd(), &address)
    })
    .map_err(|error| match error.raw_os_error() {
        Some(libc::EADDRINUSE) => BindError::Taken(Holder::of_udp(own)),
        _ => BindError::Io(error),
    })?;
    Ok(socket)
}

/// The same without waiting, and without a look at whose it is otherwise.
pub(super) fn bound_at_once(own: SocketAddrV4) -> std::io::Result<OwnedFd> {
    let socket = unbound_socket()?;
    bind(socket.as_fd(), &internet_address(own))?;
    Ok(socket)
}

fn unbound_socket() -> std::io::Result<OwnedFd> {
    let socket = open(libc::AF_INET, libc::SOCK_DGRAM, 0)?;
    // Lets a neighbour entry be a broadcast address.
    set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_BROADCAST, &1i32)?;
    Ok(socket)
}
