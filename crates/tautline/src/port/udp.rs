//! The port of plain UDP: datagrams without our header, to and from any peer that speaks UDP.

mod datagrams;
mod routes;

use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use tautline_proto::ip::DATAGRAM_BYTES_MAX;
use tautline_proto::ip::send::{HEADERS_BYTES, OutDatagram, Route, SendBuffer};
use tautline_proto::time::Instant;
use tautline_proto::wire::udp::UdpChecksum;
use tautline_proto::wire::{MTU_BYTES, MacAddress, PortKey, Priority};

use super::QueuingOptions;
use super::endpoint::{check_buffer, waiting_port};
use super::lent::Loan;
use super::owner::PortOwner;
use super::receiver::Receiver;
use super::spin::Spin;
use super::waiting::Wait;
use crate::error::{MAC_UNKNOWN, PortError, ReceiveError, SendError};
use crate::limits::BATCH_FRAMES;
use crate::link::{OutFrame, PortLink};
use crate::message::{Destination, Outgoing, bytes_of};
use crate::send_pool::LentBuffer;
use crate::statistics::Statistics;
use crate::sys::memory::lock_slice;

use self::datagrams::Datagrams;
pub use self::datagrams::LentDatagram;
use self::routes::Routes;

/// A datagram that was received; its bytes are in the caller's buffer, or [lent](LentDatagram).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// Its bytes, from the start of the buffer if it was received into one.
    pub length: usize,
    /// Its priority: the IP precedence that it came with, the upper three bits of the type of service.
    pub priority: Priority,
    /// Sender of the datagram. Port 0 wants no answer.
    pub source: SocketAddrV4,
    /// When it arrived, or its last fragment, on the link's arrival clock.
    pub arrival: Instant,
    /// State of the checksum; a datagram with a wrong one does not come this far.
    pub checksum: UdpChecksum,
}

/// A UDP port of this node. It bypasses the kernel's protocol stack where the link can (`xdp`, `xsk`) and is an
/// ordinary socket elsewhere: [`Capabilities::plain_udp`](crate::link::Capabilities::plain_udp).
///
/// Datagrams are kept as in a [`QueuingPort`](crate::QueuingPort): the most urgent first, first in
/// first out within a priority; the priority is the datagram's IP precedence (class selector), and it is
/// sent as such. All other UDP ports of the same address stay with Linux.
///
/// ```
/// use tautline::{Node, NodeConfig, Priority, Wait};
///
/// let node = Node::open(NodeConfig::udp([127, 0, 0, 1].into()))?;
/// let mut port = node.udp(15_000).open()?;
/// // Anybody's socket.
/// let peer = std::net::UdpSocket::bind("127.0.0.1:0")?;
/// peer.send_to(b"position?", "127.0.0.1:15000")?;
///
/// let mut buffer = [0; 1484];
/// let datagram = port.receive_into(&mut buffer, Wait::Forever)?.expect("no deadline");
/// assert_eq!(&buffer[..datagram.length], b"position?");
/// port.reply(datagram.source, Priority::HIGHEST, b"3 mm")?;
/// assert_eq!(peer.recv(&mut buffer)?, 4);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct UdpPort {
    receiver: Receiver<Datagrams>,
    buffer: SendBuffer,
    /// Buffer of the loan that there is.
    lent: Option<LentBuffer>,
}

impl UdpPort {
    pub(crate) fn open(
        node: &Arc<dyn PortOwner>,
        number: u16,
        name: Option<&str>,
        options: &QueuingOptions,
    ) -> Result<Self, PortError> {
        let key = PortKey::udp(number)?;
        let bytes_max = options.message_bytes_max;
        let no_address = || PortError::NoAddress {
            link: node.link().kind().name(),
        };
        let receiver = Receiver::open(node, (key, name), options, || {
            let ip = node.own_stations().ip.ok_or_else(no_address)?;
            Ok(Datagrams::new(SocketAddrV4::new(ip, number), bytes_max))
        })?;
        let buffer = SendBuffer::new(DATAGRAM_BYTES_MAX);
        // Best effort, as for all memory of a port; the node's report says if it is not allowed.
        let _pageable = lock_slice(buffer.memory());
        Ok(Self {
            receiver,
            buffer,
            lent: None,
        })
    }

    fn routes(&self) -> &Routes {
        &self.receiver.records.decoder.routes
    }

    /// The UDP port's number.
    #[must_use]
    pub fn number(&self) -> u16 {
        self.local().port()
    }

    /// The node's address, and the port's number.
    #[must_use]
    pub fn local(&self) -> SocketAddrV4 {
        self.receiver.records.decoder.local
    }

    /// Bytes of the longest datagram that the port receives. It sends up to 65,507.
    #[must_use]
    pub fn message_bytes_max(&self) -> usize {
        self.receiver.records.decoder.bytes_max
    }

    /// Resolves a peer's UDP port; `peer` is a neighbour's name or an IPv4 address. An address outside the
    /// interface's network goes through the configured gateway. Not for the hot path; the same peer and
    /// port give the same destination.
    ///
    /// # Errors
    /// [`PortError::PeerUnknown`], [`PortError::NeighbourIncomplete`], [`PortError::NoRoute`],
    /// [`PortError::Value`] for port 0, [`PortError::TooManyDestinations`].
    pub fn destination(&mut self, peer: &str, port: u16) -> Result<Destination, PortError> {
        let node = &self.receiver.handle.node;
        self.receiver.handle.process.check()?;
        let to = SocketAddrV4::new(node.address_of(peer)?, port);
        if let Some(known) = self.routes().destination_at(to) {
            return Ok(known);
        }
        PortKey::udp(port)?;
        let link = self.receiver.inbox.link.as_ref();
        let station = match link.interface() {
            Some(_) => node.station_of(*to.ip())?,
            None => MacAddress::UNSPECIFIED,
        };
        let route = route(link, self.local(), to, station);
        self.receiver.records.decoder.routes.add(route)
    }

    /// Where a destination is.
    #[must_use]
    pub fn address(&self, destination: Destination) -> Option<Ipv4Addr> {
        Some(*self.routes().get(destination).ok()?.to().ip())
    }

    /// Sends a datagram of up to 65,507 bytes: one system call a frame; never waits. A datagram that fits a
    /// frame forbids routers to cut it; a longer one leaves in IP fragments.
    ///
    /// # Errors
    /// [`SendError`]. Of a datagram in fragments, some may have been sent; the peer drops them.
    #[inline]
    pub fn send_to(
        &mut self,
        to: Destination,
        priority: Priority,
        datagram: &[u8],
    ) -> Result<(), SendError> {
        let Self {
            receiver, buffer, ..
        } = self;
        receiver.send(to, priority, placed(buffer, datagram))
    }

    /// Sends a datagram as an answer to the [source](Datagram::source) of another. The source does not become a
    /// destination, so a port can answer any number of peers. The ways to the 64 newest of them are remembered. To find
    /// a new one on links `xdp` and `xsk`, the MAC address is looked up in the node's neighbour table, or, for a peer
    /// that is not in it, in the kernel's, which takes about 10 µs and allocates. Never waits.
    ///
    /// # Errors
    /// [`SendError::NoWay`] if the peer cannot be reached, otherwise as [`send_to`](Self::send_to).
    #[inline]
    pub fn reply(
        &mut self,
        to: SocketAddrV4,
        priority: Priority,
        datagram: &[u8],
    ) -> Result<(), SendError> {
        let Self {
            receiver, buffer, ..
        } = self;
        receiver.reply(to, priority, placed(buffer, datagram))
    }

    /// Sends datagrams in their order, to one destination or to several: with one system call for each [`BATCH_FRAMES`]
    /// that fit a frame where the link can ([`Capabilities::batches`](crate::link::Capabilities::batches)), in which
    /// they are taken from where they lie. A longer one leaves by itself, as [`UdpPort::send_to`] does it. How many it
    /// took: all, unless there is no room or one cannot be sent; the rest may be sent again later. Never waits.
    ///
    /// ```
    /// # use tautline::port::Outgoing;
    /// # use tautline::{Node, NodeConfig, Priority};
    /// # let node = Node::open(NodeConfig::udp([127, 0, 0, 1].into()))?;
    /// # let mut port = node.udp(15_004).open()?;
    /// # let peers = [(); 2].map(|()| std::net::UdpSocket::bind("127.0.0.1:0"));
    /// # let [left, right] = peers; let (left, right) = (left?, right?);
    /// # let to_left = port.destination("127.0.0.1", left.local_addr()?.port())?;
    /// # let to_right = port.destination("127.0.0.1", right.local_addr()?.port())?;
    /// let priority = Priority::HIGHEST;
    /// let batch = [
    ///     Outgoing { to: to_left, priority, message: b"-3 mm" },
    ///     Outgoing { to: to_right, priority, message: b"3 mm" },
    /// ];
    /// let mut sent = 0;
    /// while sent < batch.len() {
    ///     sent += port.send_batch(&batch[sent..])?;
    /// }
    /// # assert_eq!((left.recv(&mut [0; 9])?, right.recv(&mut [0; 9])?), (5, 4));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`SendError`] if it took none.
    pub fn send_batch(&mut self, batch: &[Outgoing<'_>]) -> Result<usize, SendError> {
        self.receiver.handle.process.check()?;
        let mut sent = 0;
        let mut stopped = None;
        while sent < batch.len() && stopped.is_none() {
            match self.send_first(&batch[sent..]) {
                Ok(taken @ 1..) => sent += taken,
                none => stopped = Some(none.err().unwrap_or(SendError::TransmitQueueFull)),
            }
        }
        let statistics = &self.receiver.handle.statistics;
        statistics.sent.add(sent, bytes_of(&batch[..sent]));
        match stopped {
            Some(error) if sent == 0 => {
                self.receiver.handle.statistics.send_errors.add(1);
                Err(error)
            }
            _ => Ok(sent),
        }
    }

    /// Sends the first datagrams of a batch that can go together, or a long one alone; how many.
    fn send_first(&mut self, batch: &[Outgoing<'_>]) -> Result<usize, SendError> {
        let Some(first) = batch.first() else {
            return Ok(0);
        };
        let Receiver { inbox, records, .. } = &mut self.receiver;
        let (link, routes) = (inbox.link.as_mut(), &records.decoder.routes);
        let writes_headers = link.interface().is_some();
        let mut heads = [[0; HEADERS_BYTES]; BATCH_FRAMES];
        let mut frames = [OutFrame::whole(&[], first.priority); BATCH_FRAMES];
        let mut count = 0;
        for ((one, frame), head) in batch.iter().zip(&mut frames).zip(&mut heads) {
            // A longer one, or a wrong destination, ends the batch.
            let Ok(route) = routes.get(one.to) else {
                break;
            };
            if one.message.len() > route.whole_bytes_max() {
                break;
            }
            *frame = OutFrame::whole(one.message, one.priority);
            if !writes_headers {
                frame.to = Some(route.to());
            } else if let Some(headers) = route.whole_headers(one.priority, one.message) {
                *head = headers;
                frame.head = head;
            }
            count += 1;
        }
        if count > 0 {
            return link.send_many(&frames[..count]);
        }
        let datagram = placed(&mut self.buffer, first.message)?;
        send_datagram(link, routes.get(first.to)?, first.priority, datagram)?;
        Ok(1)
    }

    /// Lends the place of a datagram of `length` bytes, to be filled and sent without being copied in this process: a
    /// buffer of the node's pool (`[send_pool]` in the configuration).
    ///
    /// ```
    /// # use tautline::{Node, NodeConfig, Priority};
    /// # let node = Node::open(NodeConfig::udp([127, 0, 0, 1].into()))?;
    /// # let mut port = node.udp(15_001).open()?;
    /// # let peer = std::net::UdpSocket::bind("127.0.0.1:0")?;
    /// # let display = port.destination("127.0.0.1", peer.local_addr()?.port())?;
    /// let mut picture = port.lend(display, Priority::NORMAL, 30_000)?;
    /// picture.fill(0x80);
    /// picture.send()?;
    /// # assert_eq!(peer.recv(&mut [0; 40_000])?, 30_000);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`SendError::PoolExhausted`] if all buffers of that size are lent; otherwise as [`UdpPort::send_to`].
    #[inline]
    pub fn lend(
        &mut self,
        to: Destination,
        priority: Priority,
        length: usize,
    ) -> Result<Loan<'_>, SendError> {
        self.receiver.handle.process.check()?;
        let Self { receiver, lent, .. } = self;
        let statistics = &receiver.handle.statistics;
        let place = receiver.records.decoder.routes.get(to);
        let place =
            place.and_then(|route| Ok((route, receiver.handle.node.send_pool().lend(length)?)));
        let (route, buffer) = place.inspect_err(|_| statistics.send_errors.add(1))?;
        let link = receiver.inbox.link.as_mut();
        Ok(Loan::of_datagram(
            (lent, buffer),
            link,
            route,
            statistics,
            priority,
        ))
    }

    /// Lends a buffer for the libraries of C and Python, in which a loan cannot borrow its port; `rt_mmap` keeps it for
    /// any number of datagrams.
    ///
    /// # Errors
    /// [`SendError::PoolExhausted`] if all of that size are lent, [`SendError::MessageTooLarge`].
    #[doc(hidden)]
    pub fn lend_buffer(&self, length: usize) -> Result<LentBuffer, SendError> {
        let buffer = self.receiver.handle.node.send_pool().lend(length);
        buffer.inspect_err(|_| self.receiver.handle.statistics.send_errors.add(1))
    }

    /// Sends the content of such a buffer, and may destroy it.
    ///
    /// # Errors
    /// Those of [`UdpPort::send_to`].
    #[doc(hidden)]
    #[inline]
    pub fn send_buffer(
        &mut self,
        to: Destination,
        priority: Priority,
        buffer: &mut LentBuffer,
    ) -> Result<(), SendError> {
        self.receiver.send(to, priority, lent(buffer))
    }

    /// Sends the content of such a buffer as an answer, and may destroy it.
    ///
    /// # Errors
    /// Those of [`reply`](Self::reply).
    #[doc(hidden)]
    #[inline]
    pub fn reply_buffer(
        &mut self,
        to: SocketAddrV4,
        priority: Priority,
        buffer: &mut LentBuffer,
    ) -> Result<(), SendError> {
        self.receiver.reply(to, priority, lent(buffer))
    }

    /// Receives the most urgent datagram; `None` if the wait has ended without one. The datagram stays in the port's
    /// memory until it is dropped, and its slot counts as taken in its class.
    ///
    /// ```
    /// # use tautline::{Node, NodeConfig, Wait};
    /// # let node = Node::open(NodeConfig::udp([127, 0, 0, 1].into()))?;
    /// # let mut port = node.udp(15_002).open()?;
    /// # let peer = std::net::UdpSocket::bind("127.0.0.1:0")?;
    /// # peer.send_to(b"position?", "127.0.0.1:15002")?;
    /// let datagram = port.receive(Wait::Forever)?.expect("no deadline");
    /// assert_eq!(&*datagram, b"position?");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ReceiveError`].
    #[inline]
    pub fn receive(&mut self, wait: Wait) -> Result<Option<LentDatagram<'_>>, ReceiveError> {
        Ok(self.receiver.lend(wait)?.map(LentDatagram::new))
    }

    /// Receives the most urgent datagram like [`receive`](Self::receive), and copies it into `buffer`, which must hold
    /// [`UdpPort::message_bytes_max`]. The port is not borrowed: it can answer while the datagram is read.
    ///
    /// # Errors
    /// Those of [`receive`](Self::receive).
    #[inline]
    pub fn receive_into(
        &mut self,
        buffer: &mut [u8],
        wait: Wait,
    ) -> Result<Option<Datagram>, ReceiveError> {
        check_buffer(buffer, self.message_bytes_max())?;
        self.receiver.receive_into(buffer, wait)
    }
}

waiting_port!(UdpPort, receiver);

impl Receiver<Datagrams> {
    /// Sends a datagram to a destination.
    #[inline]
    fn send(
        &mut self,
        to: Destination,
        priority: Priority,
        datagram: Result<OutDatagram<'_>, SendError>,
    ) -> Result<(), SendError> {
        self.handle.process.check()?;
        let link = self.inbox.link.as_mut();
        let route = self.records.decoder.routes.get(to);
        send_counted(link, &self.handle.statistics, route, priority, datagram)
    }

    /// Sends a datagram as an answer to an address.
    #[inline]
    fn reply(
        &mut self,
        to: SocketAddrV4,
        priority: Priority,
        datagram: Result<OutDatagram<'_>, SendError>,
    ) -> Result<(), SendError> {
        self.handle.process.check()?;
        let (link, node) = (self.inbox.link.as_mut(), &self.handle.node);
        let Datagrams { routes, local, .. } = &mut self.records.decoder;
        let route = routes.back(to, || {
            let no_way = |why| SendError::NoWay { why };
            if to.port() == 0 {
                return Err(no_way("a datagram from UDP port 0 wants no answer"));
            }
            let station = match link.interface() {
                Some(_) => node.station_of_sender(*to.ip()),
                None => Some(MacAddress::UNSPECIFIED),
            };
            let station = station.ok_or(no_way(MAC_UNKNOWN))?;
            Ok(route(link, *local, to, station))
        });
        send_counted(link, &self.handle.statistics, route, priority, datagram)
    }
}

/// Sends the datagram of a loan, which is gone then.
#[inline(never)]
pub(super) fn send_loan(
    link: &mut dyn PortLink,
    statistics: &Statistics,
    route: &Route,
    priority: Priority,
    buffer: &mut Option<LentBuffer>,
) -> Result<(), SendError> {
    match buffer.take() {
        Some(mut buffer) => send_counted(link, statistics, Ok(route), priority, lent(&mut buffer)),
        None => Ok(()),
    }
}

/// Sends a datagram, and counts it.
#[inline]
fn send_counted(
    link: &mut dyn PortLink,
    statistics: &Statistics,
    route: Result<&Route, SendError>,
    priority: Priority,
    datagram: Result<OutDatagram<'_>, SendError>,
) -> Result<(), SendError> {
    let bytes = datagram
        .as_ref()
        .map_or(0, |datagram| datagram.payload().len());
    let sent = route.and_then(|route| send_datagram(link, route, priority, datagram?));
    match sent {
        Ok(()) => statistics.sent.add(1, bytes),
        Err(_) => statistics.send_errors.add(1),
    }
    sent
}

/// Sends a datagram with its headers in front of it, or through a socket, which writes them.
#[inline]
fn send_datagram(
    link: &mut dyn PortLink,
    route: &Route,
    priority: Priority,
    mut datagram: OutDatagram<'_>,
) -> Result<(), SendError> {
    if link.interface().is_none() {
        return link.send(&OutFrame {
            to: Some(route.to()),
            ..OutFrame::whole(datagram.payload(), priority)
        });
    }
    match datagram.whole_frame(route, priority) {
        Some(frame) => link.send(&OutFrame::whole(frame, priority)),
        None => link.send_cut(route, priority, datagram),
    }
}

/// The way to a peer's port. `station` is ignored where a socket writes the headers.
fn route(link: &dyn PortLink, local: SocketAddrV4, to: SocketAddrV4, station: MacAddress) -> Route {
    let own = link.interface();
    let mac = own.map_or(MacAddress::UNSPECIFIED, |own| own.mac);
    let mtu_bytes = own.map_or(MTU_BYTES, |own| own.mtu_bytes);
    Route::new(local, to, mac, station, mtu_bytes)
}

/// Datagram where a lent buffer has it.
#[inline]
fn lent(buffer: &mut LentBuffer) -> Result<OutDatagram<'_>, SendError> {
    let bytes = buffer.len();
    let too_large = SendError::MessageTooLarge { bytes };
    buffer.datagram().ok_or(too_large)
}

/// A datagram of the caller's, copied behind the room for its headers.
#[inline]
fn placed<'b>(buffer: &'b mut SendBuffer, bytes: &[u8]) -> Result<OutDatagram<'b>, SendError> {
    if let Some(payload) = buffer.payload(bytes.len()) {
        payload.copy_from_slice(bytes);
    }
    let too_large = SendError::MessageTooLarge { bytes: bytes.len() };
    buffer.datagram(bytes.len()).ok_or(too_large)
}
