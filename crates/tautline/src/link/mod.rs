//! Links: what carries frames between nodes. One trait, `Link`, and one conformance suite that
//! every link passes (`tests/conformance`).
//!
//! A link has two halves. `Link` belongs to the node: it opens ports and resolves neighbours.
//! `PortLink` belongs to one port and to the thread that uses it: it sends, and brings arriving frames
//! into the port's memory, unless the kernel does that already. Ports for messages, for plain UDP and for
//! raw frames have one and the same half; `PortKey` says which frames it takes.

pub(crate) mod bpf;
pub(crate) mod frame;
pub(crate) mod packet;
pub(crate) mod plain_udp;
pub(crate) mod raw;
pub mod sim;
pub(crate) mod socket;
pub(crate) mod vbus;
pub mod xdp;
pub(crate) mod xsk;

use std::net::Ipv4Addr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tautline_proto::ip::send::{OutDatagram, Route as IpRoute};
use tautline_proto::neighbour::Neighbour;
use tautline_proto::time::Instant;
use tautline_proto::wire::{ParseError, PortKey, PortNumber, Priority, WHOLE_BYTES_MAX_ETHERNET};
use tautline_shm::region::Shape;

pub use bpf::look::ShortPath;
pub(crate) use frame::{PlacedPayload, Route};
pub use plain_udp::PlainUdp;
pub(crate) use raw::Permit;
pub use raw::RawFrames;

pub use crate::kind::{LinkKind, XdpMode};
pub(crate) use crate::sys::socket::OutFrame;
use plain_udp::next_identification;
use vbus::BusPort;

use crate::claim::{Claim, ClaimError, Number};
use crate::error::{PLAIN_UDP, PortError, RAW_FRAMES, ReceiveError, SendError};
use crate::memory::MappedPort;
use crate::sys::clock;
use crate::sys::interface::{Interface, InterfaceWatch, readable_or_gone};
use crate::types::PortTypes;

/// Origin of the arrival time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ArrivalClock {
    /// The BPF demux, in the driver's poll: CLOCK_MONOTONIC.
    Demux,
    /// The kernel's packet timestamp, taken on CLOCK_REALTIME when the frame entered the stack and
    /// moved to CLOCK_MONOTONIC when it was read. A step of the realtime clock between the two
    /// shifts it. The kernel begins a moment after the first socket of the machine that asks for it was
    /// opened; a frame that came before counts as arrived when it is read.
    SocketTimestamp,
    /// The sender, when it published the message: CLOCK_MONOTONIC, which the processes of a machine share.
    Sender,
    /// Virtual time of the simulated network.
    Virtual,
}

/// How often the bytes of a message in one frame are copied between the caller's memory and the one that the
/// driver sends from or has received into, by the kernel too. What a driver adds of its own is not in it
/// (`docs/reference/memory.md`). On link `vbus`, between the two callers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Copies {
    /// Of a message that is sent from the caller's own memory.
    pub send: u8,
    /// Of one that is filled in where the port lends a place for it.
    pub send_lent: u8,
    /// Of one that is received into the caller's own memory.
    pub receive: u8,
    /// Of one that is looked at where it lies.
    pub receive_lent: u8,
}

impl Copies {
    /// Through a socket of the kernel, into the port's memory: out of the kernel, there, and to the caller.
    pub(crate) const SOCKET: Self = Self {
        send: 2,
        send_lent: 1,
        receive: 3,
        receive_lent: 2,
    };
}

/// Capabilities of a link. Reported by every node; checked by the conformance suite.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Capabilities {
    /// Origin of the arrival time.
    pub arrival_clock: ArrivalClock,
    /// Mode of the demux, on `xdp`.
    pub xdp_mode: Option<XdpMode>,
    /// Whether frames reach the port's memory without the process doing anything. Otherwise each
    /// receive first fetches what has arrived, with a system call a frame.
    pub delivered_by_kernel: bool,
    /// Whether the Ethernet form is spoken.
    pub ethernet_form: bool,
    /// Whether the UDP form is spoken.
    pub udp_form: bool,
    /// Largest message that travels in one frame, in bytes.
    pub whole_bytes_max: usize,
    /// How often a message is copied.
    pub copies: Copies,
    /// How often a datagram of plain UDP is copied, where that is carried.
    pub udp_copies: Option<Copies>,
    /// On `xsk`, whether the driver works in this process's memory; otherwise the kernel copies each frame in
    /// and out of it.
    pub zero_copy: Option<bool>,
    /// How plain UDP is carried, for peers that are not ours.
    pub plain_udp: PlainUdp,
    /// How frames of other protocols are carried.
    pub raw_frames: RawFrames,
    /// Whether a port has a descriptor for epoll.
    pub descriptor: bool,
    /// Whether messages can be filled in place and looked at where they lie; [`Copies`] says what that saves.
    pub lends: bool,
    /// Whether a send fails that the receiver could not take: the port is not open, its class is full,
    /// or the message is larger than the port's largest. On other links such a message is sent, dropped
    /// by the receiver, and counted there.
    pub answers_sender: bool,
    /// Whether a port can be policed.
    pub polices: bool,
    /// Whether [merged](crate::QueuingPort::merge) messages wait to be sent in one frame. Where there are no
    /// frames each is sent at once.
    pub merges: bool,
    /// Whether a [batch](crate::QueuingPort::send_batch) is handed over together: with one system call for each
    /// [`BATCH_FRAMES`](crate::port::BATCH_FRAMES) frames, or into shared memory with one look at the receiver.
    /// Elsewhere its messages are sent one by one.
    pub batches: bool,
}

impl Capabilities {
    /// Of a link whose frames come through packet sockets and UDP sockets; other links differ from it.
    const SOCKETS: Self = Self {
        arrival_clock: ArrivalClock::SocketTimestamp,
        xdp_mode: None,
        delivered_by_kernel: false,
        ethernet_form: true,
        udp_form: true,
        whole_bytes_max: WHOLE_BYTES_MAX_ETHERNET,
        copies: Copies::SOCKET,
        udp_copies: Some(Copies::SOCKET),
        zero_copy: None,
        plain_udp: PlainUdp::KernelSocket,
        raw_frames: RawFrames::PacketSocket,
        descriptor: true,
        lends: true,
        answers_sender: false,
        polices: true,
        merges: true,
        batches: true,
    };

    /// Leaves out what needs an IPv4 address, if the node has none.
    fn with_address(self, ip: Option<Ipv4Addr>) -> Self {
        match ip {
            Some(_) => self,
            None => Self {
                udp_form: false,
                udp_copies: None,
                plain_udp: PlainUdp::None,
                ..self
            },
        }
    }
}

/// Frames that were ours and reached no port, since the node opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct NodeCounters {
    /// Malformed frames, by [`ParseError::index`].
    pub malformed: [u64; ParseError::COUNT],
    /// Well-formed frames for a port that is not open here.
    pub no_port: u64,
    /// Frames that a port's socket had no room for, on links whose frames reach the process through
    /// sockets; known when the next frame is received.
    pub socket_full: u64,
    /// Fragments of plain UDP that came before the first of their datagram: passed to Linux, for a port of which they
    /// may be. One of this node loses the datagram. Links `xdp` and `xsk`.
    pub out_of_order_fragments: u64,
    /// Packet buffers that held several datagrams for ports of this node, which the sender (`UDP_SEGMENT`) or this
    /// kernel (`rx-udp-gro-forwarding`) had joined: left to Linux, whose sockets receive them one by one. Links `xdp`
    /// and `xsk`.
    pub joined_datagrams: u64,
}

/// The node's half of a link.
pub(crate) trait Link: Send + Sync + std::fmt::Debug {
    /// Which link this is.
    fn kind(&self) -> LinkKind;

    /// Capabilities of the link here: on this interface, with these privileges.
    fn capabilities(&self) -> Capabilities;

    /// The control process that the link was opened through, if it was.
    fn control_process(&self) -> Option<ControlProcess> {
        None
    }

    /// Opens a port.
    ///
    /// # Errors
    /// [`PortError::NotOnLink`] for a key whose frames the link does not carry, [`PortError::NoAddress`],
    /// [`PortError::Refused`], and those of a key that is taken.
    fn open_port(&self, request: PortRequest) -> Result<PortHalf, PortError>;

    /// The way to a neighbour's port.
    ///
    /// # Errors
    /// [`PortError::NeighbourIncomplete`] if the entry lacks an address that this link needs.
    fn route(
        &self,
        neighbour: &Neighbour,
        to: PortNumber,
        from: PortNumber,
    ) -> Result<Route, PortError>;

    /// Neighbours of the control process that the link was opened through, and none if that was asked already; `None`
    /// if there is no control process, or if it does not answer.
    fn shared_neighbours(&self) -> Option<Vec<Neighbour>> {
        None
    }

    /// Has the kernel show frames that are sent from now on to captures, or not. For links whose frames it does
    /// not show anyway, and of which no ring has copies.
    fn show_frames(&self, _is_wanted: bool) {}

    /// Frames that reached no port.
    fn counters(&self) -> NodeCounters;
}

/// Control process that a link was opened through.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ControlProcess {
    pub(crate) pid: i32,
    /// IPv4 address of its demux, which its clients have.
    pub(crate) ip: Option<Ipv4Addr>,
}

/// Properties of a port to be opened.
#[derive(Debug)]
pub(crate) struct PortRequest {
    pub(crate) key: PortKey,
    /// Its discipline, and how much it holds.
    pub(crate) shape: Shape,
    /// Bytes of its largest message.
    pub(crate) message_bytes_max: usize,
    /// Types of its messages, which the peers on a bus compare with theirs.
    pub(crate) types: PortTypes,
}

impl PortRequest {
    /// Error of a link that does not carry the frames of the port.
    fn not_offered(&self, link: &'static str) -> PortError {
        let what = match self.key {
            PortKey::Message(_) => "messages",
            PortKey::Udp(_) => PLAIN_UDP,
            PortKey::Raw(_) => RAW_FRAMES,
        };
        PortError::NotOnLink { what, link }
    }
}

/// Claims a port on an interface for this process. One of plain UDP is taken by a socket instead.
fn claim(interface: &Interface, ethertype: u16, key: PortKey) -> Result<Option<Claim>, PortError> {
    if let PortKey::Udp(_) = key {
        return Ok(None);
    }
    let claimed = Claim::new(Number::of(interface.index, ethertype, key));
    claimed.map(Some).map_err(|error| match error {
        ClaimError::Taken(holder) => PortError::Taken { key, holder },
        ClaimError::Io(error) => PortError::refused("claiming the port", error),
    })
}

/// A port's half of a link, of either sort.
#[derive(Debug)]
pub(crate) enum PortHalf {
    /// Frames come into the port's memory.
    Frames(FramePort),
    /// Messages lie in the memories of those who sent them.
    Bus(Box<BusPort>),
}

/// A port's half of a link whose frames come into the port's memory.
#[derive(Debug)]
pub(crate) struct FramePort {
    /// The link's part.
    pub(crate) link: Box<dyn PortLink>,
    /// The port's memory: as the link says, but a load and not a call through a table.
    pub(crate) memory: Arc<MappedPort>,
}

impl PortHalf {
    /// The half of a port that is not on a bus. A bus carries messages alone.
    pub(crate) fn into_frames(self) -> FramePort {
        match self {
            Self::Frames(port) => port,
            Self::Bus(_) => unreachable!("a bus opens ports for messages alone"),
        }
    }

    fn frames(link: impl PortLink + 'static) -> Self {
        Self::Frames(FramePort {
            memory: Arc::clone(link.memory()),
            link: Box::new(link),
        })
    }
}

/// A port's half of a link, whatever the port's key. A frame is bytes to it: the port writes the headers.
pub(crate) trait PortLink: Send + std::fmt::Debug {
    /// The port's memory.
    fn memory(&self) -> &Arc<MappedPort>;

    /// The link's clock: CLOCK_MONOTONIC, or virtual time.
    fn now(&self) -> Instant {
        clock::monotonic()
    }

    /// Brings what has arrived into the port's memory, as much as a bounded number of steps can.
    ///
    /// # Errors
    /// [`ReceiveError`]; what had been brought stays.
    fn collect(&mut self) -> Result<(), ReceiveError>;

    /// Announces that [`PortLink::wait`], or a wait on the descriptor, may follow. After this, look
    /// into the memory once more, and wait only if there is nothing.
    fn arm(&mut self) {}

    /// Sleeps until something may have arrived, at most for `timeout` (for ever if `None`), and until the interface
    /// that `watch` is about is gone. May return early.
    ///
    /// # Errors
    /// [`ReceiveError::InterfaceGone`] if nothing has arrived and never will, [`ReceiveError::Refused`] if the kernel
    /// refused to wait.
    fn wait(
        &mut self,
        timeout: Option<Duration>,
        watch: Option<&InterfaceWatch>,
    ) -> Result<(), ReceiveError>;

    /// Has the kernel do the receive processing that is due on this CPU. A thread that spins without
    /// a system call keeps it waiting for the next timer tick, milliseconds away, if that processing has
    /// been put off to a kernel thread and the spinner has real-time priority. Nothing to do on links
    /// whose [`PortLink::collect`] makes system calls.
    fn run_due_processing(&mut self) {}

    /// A descriptor that becomes readable when something may have arrived after
    /// [`PortLink::arm`]; `None` where there is none.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;

    /// Sends one frame. Never waits.
    ///
    /// # Errors
    /// [`SendError`]; the frame was not sent.
    fn send(&mut self, frame: &OutFrame<'_>) -> Result<(), SendError>;

    /// Sends several frames in their order, with fewer system calls than one for each where the link
    /// can. How many, from the first on, it took: at least one, perhaps not all. Never waits.
    ///
    /// # Errors
    /// [`SendError`]; none was sent.
    fn send_many(&mut self, frames: &[OutFrame<'_>]) -> Result<usize, SendError> {
        let mut sent = 0;
        for frame in frames {
            match self.send(frame) {
                Ok(()) => sent += 1,
                Err(error) if sent == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(sent)
    }

    /// Frames that this process may send. [`PortLink::send`] checks the priority; this is for what is kept to be sent
    /// later.
    fn permit(&self) -> &Permit {
        &Permit::ALL
    }

    /// Sends a datagram longer than a frame in IP fragments, which spoils its content. Never waits. Only on links whose
    /// frames have an [interface](PortLink::interface).
    ///
    /// # Errors
    /// [`SendError`]. Some fragments may have been sent; the peer drops them.
    fn send_cut(
        &mut self,
        _route: &IpRoute,
        _priority: Priority,
        _datagram: OutDatagram<'_>,
    ) -> Result<(), SendError> {
        Err(SendError::FrameTooLarge)
    }

    /// The interface whose addresses the port writes before each payload; `None` where a socket writes the headers
    /// of IP and UDP.
    fn interface(&self) -> Option<&Interface> {
        None
    }
}

/// [`PortLink::wait`] on a descriptor that becomes readable when something arrives.
fn sleep_on(
    descriptor: BorrowedFd<'_>,
    timeout: Option<Duration>,
    watch: Option<&InterfaceWatch>,
) -> Result<(), ReceiveError> {
    match readable_or_gone(descriptor, timeout, watch)? {
        true => Err(ReceiveError::InterfaceGone),
        false => Ok(()),
    }
}

/// Sends the fragments of a datagram one by one.
fn send_fragments(
    link: &mut impl PortLink,
    route: &IpRoute,
    priority: Priority,
    mut datagram: OutDatagram<'_>,
) -> Result<(), SendError> {
    let mut frames = datagram.frames(route, priority, next_identification());
    while let Some(frame) = frames.next_frame() {
        link.send(&OutFrame::whole(frame, priority))?;
    }
    Ok(())
}
