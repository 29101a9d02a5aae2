//! Parts of the links whose frames reach the process through sockets: receiving from a socket and delivering into
//! the port's memory.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tautline_proto::wire::{ParseError, PortNumber, Rejected, ethernet, udp};

use super::NodeCounters;
use super::frame::{FRAME_BYTES_MAX, deliver_frame};
use crate::address::Address;
use crate::claim::{Holder, with_retries};
use crate::error::{PortError, ReceiveError};
use crate::memory::MappedPort;
use crate::sys::socket::{Receiver, bind, internet_address, open, set_option};

/// Frames that one `collect` takes from one socket. Lower: a port that is read seldom lags behind
/// its socket. Higher: a receive may take longer, though everything it fetches is needed to
/// find the most urgent message.
pub(super) const COLLECT_FRAMES_MAX: usize = 64;

/// Bytes that the kernel may hold for one port's socket before it drops. The kernel's default
/// (208 KiB) holds 90 full frames; a class of default depth alone has 64.
pub(super) const SOCKET_BUFFER_BYTES: i32 = 1 << 20;

/// Node counters, counted by this process.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    malformed: [AtomicU64; ParseError::COUNT],
    socket_full: AtomicU64,
}

impl Counters {
    pub(crate) fn count(&self, error: ParseError) {
        self.malformed[error.index()].fetch_add(1, Relaxed);
    }

    pub(crate) fn read(&self) -> NodeCounters {
        NodeCounters {
            malformed: std::array::from_fn(|index| self.malformed[index].load(Relaxed)),
            no_port: 0,
            socket_full: self.socket_full.load(Relaxed),
            ..NodeCounters::default()
        }
    }
}

/// Which form the frames of a socket have.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SocketForm {
    /// Whole Ethernet frames of this EtherType.
    Ethernet { ethertype: u16 },
    /// Payloads of datagrams to this port.
    Udp { port: PortNumber },
}

/// One socket of a port, and what its frames look like.
pub(crate) struct ReceiveSocket {
    receiver: Receiver,
    form: SocketForm,
    buffer: Box<[u8; FRAME_BYTES_MAX]>,
    /// Of the frames that the socket dropped, those that have been counted.
    dropped: u32,
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
    pub(crate) fn new(socket: OwnedFd, form: SocketForm) -> std::io::Result<Self> {
        // Best effort: above net.core.rmem_max the kernel gives what it allows.
        let _limited = set_option(
            socket.as_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVBUF,
            &SOCKET_BUFFER_BYTES,
        );
        Ok(Self {
            receiver: Receiver::new(socket)?,
            form,
            buffer: Box::new([0; FRAME_BYTES_MAX]),
            dropped: 0,
        })
    }

    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.receiver.socket()
    }

    /// Moves what has arrived into the port's memory.
    pub(crate) fn collect(
        &mut self,
        memory: &MappedPort,
        counters: &Counters,
    ) -> Result<(), ReceiveError> {
        for _ in 0..COLLECT_FRAMES_MAX {
            let Some(received) = self.receiver.receive(&mut self.buffer[..])? else {
                break;
            };
            if received.dropped != self.dropped {
                let more = received.dropped.wrapping_sub(self.dropped);
                counters.socket_full.fetch_add(more.into(), Relaxed);
                self.dropped = received.dropped;
            }
            let frame = &self.buffer[..received.bytes.min(FRAME_BYTES_MAX)];
            let parsed = match self.form {
                SocketForm::Ethernet { ethertype } => ethernet::parse(frame, ethertype)
                    .map(|frame| (Address::Ethernet(frame.source), frame.header, frame.payload)),
                SocketForm::Udp { port } => udp::parse_datagram(frame, port.udp_port())
                    .map(|(header, payload)| (Address::Udp(received.from), header, payload))
                    .map_err(Rejected::Malformed),
            };
            match parsed {
                Ok((source, header, payload)) => {
                    deliver_frame(memory, received.arrival, source.word(), &header, payload);
                }
                Err(Rejected::Malformed(error)) => counters.count(error),
                Err(Rejected::NotOurs) => {}
            }
        }
        Ok(())
    }
}

/// A UDP socket for one port of a node.
pub(crate) fn udp_socket(ip: Ipv4Addr, port: PortNumber) -> Result<OwnedFd, PortError> {
    let refused = |source| PortError::refused("opening a UDP socket", source);
    let bound = bound_socket(SocketAddrV4::new(ip, port.udp_port()));
    let socket = bound.map_err(|error| match error {
        BindError::Taken(holder) => PortError::Taken {
            key: port.into(),
            holder,
        },
        BindError::Io(error) => refused(error),
    })?;
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
