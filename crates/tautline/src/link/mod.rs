//! Links: what carries frames between nodes. One trait, `Link`, and one conformance suite that
//! every link passes (`tests/conformance`).
//!
//! A link has two halves. `Link` belongs to the node: it opens ports and resolves neighbours.
//! `PortLink` belongs to one port and to the thread that uses it: it sends, and its `Inbox` brings
//! arriving frames into the port's memory, unless the kernel does that already.

pub(crate) mod authenticated;
pub(crate) mod bpf;
mod datagram;
pub(crate) mod frame;
pub(crate) mod packet;
mod packet_raw;
pub(crate) mod plain_udp;
pub(crate) mod raw;
pub mod sim;
pub(crate) mod socket;
pub(crate) mod udp;
pub(crate) mod vbus;
pub mod xdp;
pub(crate) mod xsk;

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tautline_proto::neighbour::Neighbour;
use tautline_proto::time::Instant;
use tautline_proto::wire::raw::EtherType;
use tautline_proto::wire::{Header, ParseError, PortNumber, Priority};
use tautline_shm::region::Shape;

pub(crate) use frame::{OutFrame, PlacedPayload, Route};
pub(crate) use plain_udp::UdpPortLink;
pub use plain_udp::{PlainUdp, Undelivered};
pub use raw::RawFrames;
pub(crate) use raw::RawPortLink;

pub use crate::kind::{LinkKind, XdpMode};
use vbus::BusPort;

use crate::error::{PLAIN_UDP, PortError, RAW_FRAMES, ReceiveError, SendError};
use crate::memory::MappedPort;
use crate::sys::clock;
use crate::sys::interface::{InterfaceWatch, readable_or_gone};
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
    /// The sender, when it published the message: CLOCK_MONOTONIC, which the processes of a machine
    /// share.
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
    /// Whether a send fails that the receiver could not take: nobody has the port open, its class is full,
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
    /// Fragments of plain UDP that came before the first of their datagram: passed to Linux, and a copy held in
    /// case that the datagram is for a port of this node. Links `xdp` and `xsk`.
    pub out_of_order_fragments: u64,
    /// Datagrams in fragments that were forgotten for newer ones of a peer, before their time limit: what
    /// comes of them counts as out of order. Links `xdp` and `xsk`.
    pub displaced_datagrams: u64,
    /// Packet buffers that held several datagrams for ports of this node, which the sender (`UDP_SEGMENT`) or this
    /// kernel (`rx-udp-gro-forwarding`) had joined: left to Linux, whose sockets receive them one by one. Links `xdp`
    /// and `xsk`.
    pub joined_datagrams: u64,
}

impl NodeCounters {
    /// All malformed frames.
    #[must_use]
    pub fn malformed_total(&self) -> u64 {
        self.malformed.iter().sum()
    }
}

/// Name of [`Link::open_udp_port_beside`] in errors.
pub(crate) const BESIDE_SOCKET: &str = "plain UDP beside a socket of the program";

/// The node's half of a link.
pub(crate) trait Link: Send + Sync + std::fmt::Debug {
    /// Which link this is.
    fn kind(&self) -> LinkKind;

    /// Capabilities of the link here: on this interface, with these privileges.
    fn capabilities(&self) -> Capabilities;

    /// The control process that the link was opened through, if it was.
    fn control_process(&self) -> Option<i32> {
        None
    }

    /// This node's IPv4 address, where that is the link's to say.
    fn address(&self) -> Option<std::net::Ipv4Addr> {
        None
    }

    /// Opens a port of the given shape.
    ///
    /// # Errors
    /// [`PortError::Taken`], [`PortError::Refused`].
    fn open_port(&self, request: PortRequest) -> Result<PortHalf, PortError>;

    /// Opens a port of plain UDP.
    ///
    /// # Errors
    /// [`PortError::NotOnLink`] on a link that has none, [`PortError::Taken`],
    /// [`PortError::NoAddress`], [`PortError::Refused`].
    fn open_udp_port(&self, _port: u16, _shape: Shape) -> Result<Box<dyn UdpPortLink>, PortError> {
        Err(PortError::NotOnLink {
            what: PLAIN_UDP,
            link: self.kind().name(),
        })
    }

    /// The same beside a socket of the caller's that has the UDP port already, and goes on to receive what the port
    /// does not.
    ///
    /// # Errors
    /// [`PortError::NotOnLink`] on a link that has none, [`PortError::NoAddress`], [`PortError::Refused`].
    fn open_udp_port_beside(
        &self,
        _port: u16,
        _shape: Shape,
        _socket: OwnedFd,
    ) -> Result<Box<dyn UdpPortLink>, PortError> {
        Err(PortError::NotOnLink {
            what: BESIDE_SOCKET,
            link: self.kind().name(),
        })
    }

    /// Opens a raw port.
    ///
    /// # Errors
    /// [`PortError::NotOnLink`] on a link that has none, [`PortError::Taken`], [`PortError::TooManyPorts`],
    /// [`PortError::Refused`].
    fn open_raw_port(
        &self,
        _ethertype: EtherType,
        _shape: Shape,
    ) -> Result<Box<dyn RawPortLink>, PortError> {
        Err(PortError::NotOnLink {
            what: RAW_FRAMES,
            link: self.kind().name(),
        })
    }

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

    /// Has the kernel show frames that are sent from now on to whoever captures, or not. For links whose frames it does
    /// not show anyway, and of which no ring has copies.
    fn show_frames(&self, _is_wanted: bool) {}

    /// Frames that reached no port.
    fn counters(&self) -> NodeCounters;
}

/// Properties of a port to be opened.
#[derive(Clone, Debug)]
pub(crate) struct PortRequest {
    /// Types of its messages, which the peers on a bus compare with theirs.
    pub(crate) types: PortTypes,
    /// Its number.
    pub number: PortNumber,
    /// Its kind, and how much it holds.
    pub shape: Shape,
    /// Bytes of its largest message.
    pub message_bytes_max: usize,
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
    pub(crate) fn frames(link: impl PortLink + 'static) -> Self {
        Self::Frames(FramePort {
            memory: Arc::clone(link.memory()),
            link: Box::new(link),
        })
    }
}

/// Where a port's messages arrive, and how to wait for them: the receiving side of a port's half of a link.
pub(crate) trait Inbox: Send + std::fmt::Debug {
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

    /// Announces that [`Inbox::wait`], or a wait on the descriptor, may follow. After this, look
    /// into the memory once more, and wait only if there is nothing.
    fn arm(&mut self) {}

    /// Takes the announcement back: nobody need be woken until the next one. Without effect where waking costs the
    /// sender nothing.
    fn disarm(&mut self) {}

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
    /// whose [`Inbox::collect`] makes system calls.
    fn run_due_processing(&mut self) {}

    /// A descriptor that becomes readable when something may have arrived after
    /// [`Inbox::arm`]; `None` where there is none.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;
}

/// [`Inbox::wait`] on a descriptor that becomes readable when something arrives.
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

/// A port's half of a link.
pub(crate) trait PortLink: Inbox {
    /// Sends one frame. Never waits.
    ///
    /// # Errors
    /// [`SendError`]; the frame was not sent.
    fn send(&mut self, route: &mut Route, header: &Header, payload: &[u8])
    -> Result<(), SendError>;

    /// Sends one frame from where its payload lies, without copying that, if the link can. Never waits.
    ///
    /// # Errors
    /// [`SendError`]; the frame was not sent.
    fn send_placed(
        &mut self,
        route: &mut Route,
        header: &Header,
        payload: PlacedPayload<'_>,
    ) -> Result<(), SendError> {
        self.send(route, header, payload.payload())
    }

    /// Sends several frames in their order, with fewer system calls than one for each where the link
    /// can. How many, from the first on, it took: at least one, perhaps not all. Never waits.
    ///
    /// # Errors
    /// [`SendError`]; none was sent.
    fn send_many(&mut self, frames: &[OutFrame<'_>]) -> Result<usize, SendError> {
        let mut sent = 0;
        for frame in frames {
            match self.send(&mut frame.route.clone(), &frame.header, frame.payload) {
                Ok(()) => sent += 1,
                Err(error) if sent == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(sent)
    }

    /// Whether this port may send with a priority. [`PortLink::send`] looks itself; this is for what is
    /// kept to be sent later.
    ///
    /// # Errors
    /// [`SendError::PriorityNotAllowed`].
    fn check_priority(&self, _priority: Priority) -> Result<(), SendError> {
        Ok(())
    }

    /// Bytes of the largest message in one frame on this way; `None` from a protected port to a node that shares no
    /// keys.
    fn whole_bytes_max(&self, route: &Route) -> Option<usize> {
        Some(route.whole_bytes_max())
    }

    /// Whether a route in the UDP form needs the MAC address of the peer or the router.
    fn needs_station(&self) -> bool {
        false
    }
}
