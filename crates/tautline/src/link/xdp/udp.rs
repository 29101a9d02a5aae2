//! A port of plain UDP on link `xdp`: the demux delivers into its memory, datagrams leave through a packet
//! socket with headers of our own making.

use std::net::SocketAddrV4;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use tautline_proto::ip::send::{HEADERS_BYTES, OutDatagram, Route};
use tautline_proto::ip::{DatagramHead, Reason};
use tautline_proto::time::Instant;
use tautline_proto::wire::{MacAddress, Priority};
use tautline_shm::layout::RecordHead;
use tautline_shm::news::UndeliveredReader;
use tautline_shm::region::{PortMemory, Shape};

use super::receiver::Receiver;
use crate::address::ipv4_of_word;
use crate::claim::Claim;
use crate::error::{PortError, Priorities, ReceiveError, SendError};
use crate::link::Inbox;
use crate::link::bpf::out_of_order::OutOfOrderFragments;
use crate::link::bpf::sender::Sender;
use crate::link::bpf::{DemuxOwner, Opened, ShownPort, UdpPortParts};
use crate::link::plain_udp::{UdpPortLink, Undelivered, WholeDatagram, next_identification};
use crate::memory::MappedPort;
use crate::sys::interface::{self, Interface, InterfaceWatch};
use crate::sys::socket::{Pieces, SEND_MANY_MAX};
use crate::sys::{packet, socket};

/// The port's half.
#[derive(Debug)]
pub(super) struct XdpUdpPort {
    local: SocketAddrV4,
    interface: Interface,
    receiver: Receiver,
    sender: Sender,
    /// For datagrams longer than a frame, where the kernel cuts them.
    cutter: Option<OwnedFd>,
    news: UndeliveredReader,
    out_of_order: Option<Arc<OutOfOrderFragments>>,
    /// Those that may be sent with.
    priorities: Priorities,
    // Hidden from the demux before the UDP port is given up.
    _opened: Opened,
    _claim: Option<Claim>,
    reserved: OwnedFd,
}

impl XdpUdpPort {
    /// Has the demux's owner make the port; beside a socket that has the UDP port already, or else it takes that.
    pub(super) fn open(
        local: SocketAddrV4,
        interface: &Interface,
        shape: Shape,
        owner: &Arc<dyn DemuxOwner>,
        beside: Option<OwnedFd>,
    ) -> Result<Self, PortError> {
        let UdpPortParts {
            memory,
            doorbell,
            sender,
            out_of_order,
            priorities,
            reserved,
            claim,
        } = owner.open_udp_port(local, shape, beside)?;
        // From here on a failure closes the port again.
        let opened = Opened::new(ShownPort::Udp(local.port()), owner);
        Ok(Self {
            local,
            interface: interface.clone(),
            receiver: Receiver::new(memory, doorbell)?,
            cutter: cutter(interface, &sender),
            sender,
            priorities,
            news: UndeliveredReader::default(),
            out_of_order,
            _opened: opened,
            _claim: claim,
            reserved,
        })
    }
}

/// Fragments of a datagram that the kernel may cut: they reach the driver all at once. Lower: the longest datagrams
/// at the usual MTU, of 45 fragments, go one by one. Higher: some do not fit the ring of a virtual cable, which holds
/// 256 frames of all senders.
const CUT_FRAGMENTS_MAX: usize = 64;

/// The kernel cuts a datagram in half the time that a call for each fragment takes, but not past the queueing
/// discipline. So only where there is none, and nobody's backlog to wait behind: on a virtual interface. A client of a
/// control process is not handed such a socket.
fn cutter(interface: &Interface, sender: &Sender) -> Option<OwnedFd> {
    if let Sender::Tap(..) = sender {
        return None;
    }
    match interface::has_queueing_discipline(interface.index) {
        Ok(false) => packet::cutting_sender(interface.index).ok(),
        _ => None,
    }
}

impl XdpUdpPort {
    /// A datagram in fragments.
    fn send_long(
        &self,
        route: &Route,
        priority: Priority,
        mut datagram: OutDatagram<'_>,
    ) -> Result<(), SendError> {
        let identification = next_identification();
        let (length, bytes) = (datagram.payload().len(), route.fragment_bytes());
        let fragments = length.div_ceil(bytes);
        if let Some(cutter) = &self.cutter
            && fragments <= CUT_FRAGMENTS_MAX
        {
            let headers = datagram.uncut_headers(route, priority, identification);
            let cutter = cutter.as_fd();
            return Ok(packet::send_uncut(
                cutter,
                &headers,
                datagram.payload(),
                bytes,
            )?);
        }
        let mut frames = datagram.frames(route, priority, identification);
        while let Some(frame) = frames.next_frame() {
            self.sender.send(frame)?;
        }
        Ok(())
    }
}

impl Inbox for XdpUdpPort {
    fn memory(&self) -> &Arc<MappedPort> {
        &self.receiver.memory
    }

    #[inline]
    fn now(&self) -> Instant {
        self.receiver.now()
    }

    /// Nothing to do: the demux has delivered already.
    #[inline]
    fn collect(&mut self) -> Result<(), ReceiveError> {
        Ok(())
    }

    fn arm(&mut self) {
        self.receiver.arm();
    }

    fn disarm(&mut self) {
        self.receiver.disarm();
    }

    fn wait(
        &mut self,
        timeout: Option<Duration>,
        watch: Option<&InterfaceWatch>,
    ) -> Result<(), ReceiveError> {
        self.receiver.wait(timeout, watch)
    }

    /// A look at the reserved socket: leaving its lock runs what is due. The socket may be the program's own.
    fn run_due_processing(&mut self) {
        socket::peek(self.reserved.as_fd());
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.receiver.descriptor())
    }
}

impl UdpPortLink for XdpUdpPort {
    fn local(&self) -> SocketAddrV4 {
        self.local
    }

    fn needs_station(&self) -> bool {
        true
    }

    fn accepts_partial_checksums(&self) -> bool {
        self.interface.is_virtual
    }

    fn route(&self, to: SocketAddrV4, station: MacAddress) -> Route {
        let Interface { mac, mtu_bytes, .. } = self.interface;
        Route::new(self.local, to, mac, station, mtu_bytes)
    }

    #[inline]
    fn send(
        &mut self,
        route: &Route,
        priority: Priority,
        mut datagram: OutDatagram<'_>,
    ) -> Result<(), SendError> {
        self.priorities.check(priority)?;
        match datagram.whole_frame(route, priority) {
            Some(frame) => Ok(self.sender.send(frame)?),
            None => self.send_long(route, priority, datagram),
        }
    }

    /// The headers are put together here, the kernel takes the bytes from where they are.
    fn send_many(&mut self, datagrams: &[WholeDatagram<'_>]) -> Result<usize, SendError> {
        let is_allowed = |datagram: &&WholeDatagram<'_>| self.priorities.allow(datagram.priority);
        let allowed = datagrams.iter().take_while(is_allowed).count();
        if let (0, Some(first)) = (allowed, datagrams.first()) {
            self.priorities.check(first.priority)?;
        }
        let datagrams = &datagrams[..allowed.min(SEND_MANY_MAX)];
        let mut headers = [[0; HEADERS_BYTES]; SEND_MANY_MAX];
        for (headers, datagram) in headers.iter_mut().zip(datagrams) {
            *headers = datagram.headers()?;
        }
        let pieces = std::array::from_fn::<_, SEND_MANY_MAX, _>(|index| Pieces {
            head: &headers[index],
            rest: datagrams
                .get(index)
                .map_or(&[], |datagram| datagram.payload),
            to: None,
        });
        let pieces = &pieces[..datagrams.len()];
        Ok(self.sender.send_many(pieces)?)
    }

    fn out_of_order_fragments(
        &self,
        head: &RecordHead,
        each: &mut dyn FnMut(&RecordHead, &DatagramHead, &[u8]),
    ) {
        if let Some(out_of_order) = &self.out_of_order {
            out_of_order.of_peer(head, each);
        }
    }

    #[inline]
    fn undelivered(&mut self) -> Option<Undelivered> {
        let news = self.news.next(self.receiver.memory.port().control)?;
        Some(Undelivered {
            destination: ipv4_of_word(news.destination),
            reason: Reason::of_code(news.code, news.mtu_bytes),
        })
    }
}
