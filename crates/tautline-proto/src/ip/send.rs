//! Sending: headers in front of a contiguous buffer, and IP fragments cut from it in place.
//!
//! A datagram lies in one buffer with room for the headers before it. If it fits a frame, the frame is
//! the buffer's beginning. Otherwise each fragment is sent from where it lies: its headers are written
//! over the end of the fragment before it, which has left already. So nothing is copied, whatever the
//! length. (The scheme of SS-RTUDP's fragmentation.) The bytes of a datagram that was cut are spoilt.
//! Where the kernel cuts, the datagram gets the headers of one packet, [`OutDatagram::uncut_headers`].

use alloc::boxed::Box;
use alloc::vec;
use core::net::SocketAddrV4;

use super::{
    DATAGRAM_BYTES_MAX, IPV4_HEADER_BYTES, MORE_FRAGMENTS, PROTOCOL_UDP, UDP_HEADER_BYTES,
    checksum, type_of_service,
};
use crate::wire::ethernet::{ETHERNET_HEADER_BYTES, emit_ethernet};
use crate::wire::udp::{TIME_TO_LIVE, fold, sum};
use crate::wire::{MTU_BYTES, MacAddress, Priority};

/// Bytes of all headers before a datagram.
pub const HEADERS_BYTES: usize = ETHERNET_HEADER_BYTES + IPV4_HEADER_BYTES + UDP_HEADER_BYTES;
/// Bytes of the headers before a fragment that is not the first.
const FRAGMENT_HEADERS_BYTES: usize = ETHERNET_HEADER_BYTES + IPV4_HEADER_BYTES;
/// The smallest MTU that IPv4 allows (RFC 791).
pub const MTU_BYTES_MIN: usize = 68;

const ETHERTYPE_IPV4: u16 = 0x0800;
const DONT_FRAGMENT: u16 = 0x4000;

/// The way to one UDP port of one peer: what its frames have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    to: SocketAddrV4,
    /// Headers of Ethernet and IP, but for the fields that differ from packet to packet: they are 0.
    outer: [u8; FRAGMENT_HEADERS_BYTES],
    /// Sum of that IP header.
    outer_sum: u32,
    ports: [u8; 4],
    checksum_base: u32,
    mtu_bytes: usize,
}

impl Route {
    /// From a port of ours to one of a peer; `station` is the peer's MAC address, or the router's.
    /// `mtu_bytes` is cut off at 68 and 1,500.
    #[must_use]
    pub fn new(
        from: SocketAddrV4,
        to: SocketAddrV4,
        own_mac: MacAddress,
        station: MacAddress,
        mtu_bytes: usize,
    ) -> Self {
        let mut outer = [0; FRAGMENT_HEADERS_BYTES];
        let (ethernet, ip) = outer.split_at_mut(ETHERNET_HEADER_BYTES);
        emit_ethernet(ethernet, station, own_mac, ETHERTYPE_IPV4);
        ip[0] = 0x45; // version 4, five words
        ip[8] = TIME_TO_LIVE;
        ip[9] = PROTOCOL_UDP;
        ip[12..16].copy_from_slice(&from.ip().octets());
        ip[16..].copy_from_slice(&to.ip().octets());
        let outer_sum = sum(ip);
        let mut ports = [0; 4];
        ports[..2].copy_from_slice(&from.port().to_be_bytes());
        ports[2..].copy_from_slice(&to.port().to_be_bytes());
        Self {
            to,
            outer,
            outer_sum,
            ports,
            checksum_base: checksum::base(from, to),
            mtu_bytes: mtu_bytes.clamp(MTU_BYTES_MIN, MTU_BYTES),
        }
    }

    /// Where it leads.
    #[must_use]
    pub const fn to(&self) -> SocketAddrV4 {
        self.to
    }

    /// Bytes of the longest IP packet on this way.
    #[must_use]
    pub const fn mtu_bytes(&self) -> usize {
        self.mtu_bytes
    }

    /// Bytes of the longest datagram that travels in one frame.
    #[must_use]
    pub const fn whole_bytes_max(&self) -> usize {
        self.mtu_bytes - IPV4_HEADER_BYTES - UDP_HEADER_BYTES
    }

    /// Bytes after the IP header in each fragment but the last.
    #[must_use]
    pub const fn fragment_bytes(&self) -> usize {
        (self.mtu_bytes - IPV4_HEADER_BYTES) & !7
    }

    /// Writes the headers of Ethernet and IP before `packet_bytes` that follow the latter.
    #[inline]
    fn emit(
        &self,
        headers: &mut [u8; FRAGMENT_HEADERS_BYTES],
        priority: Priority,
        packet_bytes: usize,
        (identification, fragment): (u16, u16),
    ) {
        const SERVICE_AT: usize = ETHERNET_HEADER_BYTES + 1;
        const LENGTH_AT: usize = ETHERNET_HEADER_BYTES + 2;
        const CHECKSUM_AT: usize = ETHERNET_HEADER_BYTES + 10;
        let service = type_of_service(priority);
        let length = (IPV4_HEADER_BYTES + packet_bytes) as u16;
        let fields = [length, identification, fragment];
        let sum = fields.into_iter().map(u32::from).sum::<u32>() + u32::from(service);
        *headers = self.outer;
        headers[SERVICE_AT] = service;
        for (place, field) in fields.into_iter().enumerate() {
            headers[LENGTH_AT + 2 * place..][..2].copy_from_slice(&field.to_be_bytes());
        }
        let checksum = !fold(self.outer_sum + sum);
        headers[CHECKSUM_AT..][..2].copy_from_slice(&checksum.to_be_bytes());
    }

    /// Writes the UDP header of a datagram that has `packet_bytes` with it.
    #[inline]
    fn emit_udp(&self, udp: &mut [u8; UDP_HEADER_BYTES], packet_bytes: usize, checksum: u16) {
        udp[..4].copy_from_slice(&self.ports);
        udp[4..6].copy_from_slice(&(packet_bytes as u16).to_be_bytes());
        udp[6..8].copy_from_slice(&checksum.to_be_bytes());
    }

    /// The headers of a datagram in one frame, to be sent in front of `payload` from where that lies; `None` if
    /// it is longer than [`whole_bytes_max`](Self::whole_bytes_max). The same as those of
    /// [`OutDatagram::frames`], and routers are forbidden to cut it.
    ///
    /// ```
    /// use tautline_proto::ip::send::{Route, SendBuffer};
    /// use tautline_proto::wire::{MacAddress, Priority};
    ///
    /// let mac = |last| MacAddress([2, 0, 0, 0, 0, last]);
    /// let route = Route::new("10.0.0.1:7".parse()?, "10.0.0.2:9".parse()?, mac(1), mac(2), 1500);
    /// let headers = route.whole_headers(Priority::NORMAL, b"position?").expect("it is short");
    /// let mut buffer = SendBuffer::new(9);
    /// buffer.payload(9).unwrap().copy_from_slice(b"position?");
    /// let mut frames = buffer.frames(&route, Priority::NORMAL, 9, 0);
    /// assert_eq!(frames.next_frame().unwrap(), [&headers[..], b"position?"].concat());
    /// assert_eq!(route.whole_headers(Priority::NORMAL, &[0; 1473]), None);
    /// # Ok::<(), core::net::AddrParseError>(())
    /// ```
    #[inline]
    #[must_use]
    pub fn whole_headers(&self, priority: Priority, payload: &[u8]) -> Option<[u8; HEADERS_BYTES]> {
        if payload.len() > self.whole_bytes_max() {
            return None;
        }
        let mut headers = [0; HEADERS_BYTES];
        self.emit_whole(&mut headers, priority, payload);
        Some(headers)
    }

    /// Writes the headers of a datagram that fits a frame.
    #[inline]
    fn emit_whole(&self, headers: &mut [u8; HEADERS_BYTES], priority: Priority, payload: &[u8]) {
        let packet_bytes = UDP_HEADER_BYTES + payload.len();
        let checksum = checksum::finish(self.checksum_base, payload);
        if let Some(outer) = headers.first_chunk_mut() {
            self.emit(outer, priority, packet_bytes, (0, DONT_FRAGMENT));
        }
        if let Some(udp) = headers.last_chunk_mut() {
            self.emit_udp(udp, packet_bytes, checksum);
        }
    }
}

/// A datagram's bytes, with room for headers before them. All memory is taken by [`new`](Self::new).
///
/// ```
/// use tautline_proto::ip::send::{Route, SendBuffer};
/// use tautline_proto::wire::{MacAddress, Priority};
///
/// let mac = |last| MacAddress([2, 0, 0, 0, 0, last]);
/// let route = Route::new("10.0.0.1:7".parse()?, "10.0.0.2:9".parse()?, mac(1), mac(2), 1500);
/// let mut buffer = SendBuffer::new(4000);
/// buffer.payload(4000).unwrap().fill(0x5A);
/// let mut frames = buffer.frames(&route, Priority::NORMAL, 4000, 77);
/// assert_eq!(frames.left(), 3);
/// let mut lengths = Vec::new();
/// while let Some(frame) = frames.next_frame() {
///     lengths.push(frame.len());
/// }
/// assert_eq!(lengths, [14 + 20 + 1480, 14 + 20 + 1480, 14 + 20 + 1048]);
/// # Ok::<(), core::net::AddrParseError>(())
/// ```
#[derive(Clone, Debug)]
pub struct SendBuffer {
    bytes: Box<[u8]>,
}

impl SendBuffer {
    /// Room for datagrams of up to `datagram_bytes_max`, itself cut off at [`DATAGRAM_BYTES_MAX`].
    #[must_use]
    pub fn new(datagram_bytes_max: usize) -> Self {
        let bytes = HEADERS_BYTES + datagram_bytes_max.min(DATAGRAM_BYTES_MAX);
        Self {
            bytes: vec![0; bytes].into_boxed_slice(),
        }
    }

    /// Bytes of the longest datagram.
    #[must_use]
    pub fn datagram_bytes_max(&self) -> usize {
        self.bytes.len() - HEADERS_BYTES
    }

    /// All the memory, to be locked.
    #[must_use]
    pub fn memory(&self) -> &[u8] {
        &self.bytes
    }

    /// Where the datagram's bytes are to be written; `None` if so many do not fit.
    #[inline]
    #[must_use]
    pub fn payload(&mut self, length: usize) -> Option<&mut [u8]> {
        self.bytes[HEADERS_BYTES..].get_mut(..length)
    }

    /// The first `length` bytes as a datagram to be sent; `None` if so many do not fit.
    #[inline]
    #[must_use]
    pub fn datagram(&mut self, length: usize) -> Option<OutDatagram<'_>> {
        OutDatagram::new(self.bytes.get_mut(..HEADERS_BYTES.checked_add(length)?)?)
    }

    /// Like [`OutDatagram::frames`].
    ///
    /// # Panics
    /// If `length` is beyond [`datagram_bytes_max`](Self::datagram_bytes_max).
    #[inline]
    pub fn frames<'b>(
        &'b mut self,
        route: &'b Route,
        priority: Priority,
        length: usize,
        identification: u16,
    ) -> Frames<'b> {
        let bytes = &mut self.bytes[..HEADERS_BYTES + length];
        frames(bytes, route, priority, identification)
    }
}

/// A datagram where it lies, with room for its headers before it: what is sent without being copied. Whose
/// memory that is, is the caller's affair.
#[derive(Debug)]
pub struct OutDatagram<'b> {
    bytes: &'b mut [u8],
}

impl<'b> OutDatagram<'b> {
    /// A datagram that lies [`HEADERS_BYTES`] after the beginning of `bytes` and ends where they end. `None` if
    /// they are fewer, or more than [`DATAGRAM_BYTES_MAX`] follow.
    #[inline]
    #[must_use]
    pub fn new(bytes: &'b mut [u8]) -> Option<Self> {
        let length = bytes.len().checked_sub(HEADERS_BYTES)?;
        (length <= DATAGRAM_BYTES_MAX).then_some(Self { bytes })
    }

    /// Its bytes.
    #[inline]
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        &self.bytes[HEADERS_BYTES..]
    }

    /// The datagram as one frame, the same as that of [`frames`](Self::frames); `None` if it is longer than
    /// [`Route::whole_bytes_max`].
    ///
    /// ```
    /// use tautline_proto::ip::send::{Route, SendBuffer};
    /// use tautline_proto::wire::{MacAddress, Priority};
    ///
    /// let mac = |last| MacAddress([2, 0, 0, 0, 0, last]);
    /// let route = Route::new("10.0.0.1:7".parse()?, "10.0.0.2:9".parse()?, mac(1), mac(2), 1500);
    /// let mut buffer = SendBuffer::new(1473);
    /// buffer.payload(9).unwrap().copy_from_slice(b"position?");
    /// let frame = buffer.frames(&route, Priority::HIGHEST, 9, 0).next_frame().unwrap().to_vec();
    /// let mut datagram = buffer.datagram(9).unwrap();
    /// assert_eq!(datagram.whole_frame(&route, Priority::HIGHEST), Some(&frame[..]));
    /// assert_eq!(buffer.datagram(1473).unwrap().whole_frame(&route, Priority::HIGHEST), None);
    /// # Ok::<(), core::net::AddrParseError>(())
    /// ```
    #[inline]
    pub fn whole_frame(&mut self, route: &Route, priority: Priority) -> Option<&[u8]> {
        let (headers, payload) = self.bytes.split_first_chunk_mut()?;
        if payload.len() > route.whole_bytes_max() {
            return None;
        }
        route.emit_whole(headers, priority, payload);
        Some(self.bytes)
    }

    /// The frames of the datagram. Of one in several frames, the content is spoilt by and by, and
    /// `identification` must not be that of another datagram under way to the same peer; one that fits a
    /// frame does not use it, and forbids routers to cut it.
    #[inline]
    pub fn frames<'f>(
        &'f mut self,
        route: &'f Route,
        priority: Priority,
        identification: u16,
    ) -> Frames<'f> {
        frames(self.bytes, route, priority, identification)
    }

    /// The headers of the datagram as one packet, however long, for a kernel or a network card that cuts it into
    /// fragments of [`Route::fragment_bytes`]. It has to finish the UDP checksum too: the field holds the
    /// pseudo-header's sum. `identification` as for [`frames`](Self::frames).
    #[must_use]
    pub fn uncut_headers(
        &self,
        route: &Route,
        priority: Priority,
        identification: u16,
    ) -> [u8; HEADERS_BYTES] {
        let packet_bytes = UDP_HEADER_BYTES + self.payload().len();
        let mut headers = [0; HEADERS_BYTES];
        if let Some(outer) = headers.first_chunk_mut() {
            route.emit(outer, priority, packet_bytes, (identification, 0));
        }
        let addresses = &route.outer[ETHERNET_HEADER_BYTES + 12..];
        let pseudo = sum(addresses) + u32::from(PROTOCOL_UDP) + packet_bytes as u32;
        if let Some(udp) = headers.last_chunk_mut() {
            route.emit_udp(udp, packet_bytes, fold(pseudo));
        }
        headers
    }
}

/// The frames of the datagram that lies in `bytes` behind the room for its headers.
#[inline]
fn frames<'b>(
    bytes: &'b mut [u8],
    route: &'b Route,
    priority: Priority,
    identification: u16,
) -> Frames<'b> {
    let (headers, payload) = bytes.split_at_mut(HEADERS_BYTES);
    let length = payload.len();
    let packet_bytes = UDP_HEADER_BYTES + length;
    let checksum = checksum::finish(route.checksum_base, payload);
    if let Some(udp) = headers.last_chunk_mut() {
        route.emit_udp(udp, packet_bytes, checksum);
    }
    let whole = length <= route.whole_bytes_max();
    let step = match whole {
        true => packet_bytes,
        false => route.fragment_bytes(),
    };
    Frames {
        bytes,
        route,
        priority,
        identification: if whole { 0 } else { identification },
        step,
        sent: 0,
    }
}

/// The frames of one datagram, one after the other.
#[derive(Debug)]
pub struct Frames<'b> {
    /// From the place of the first frame's headers to the datagram's end.
    bytes: &'b mut [u8],
    route: &'b Route,
    priority: Priority,
    identification: u16,
    /// Bytes of IP payload in each frame but the last.
    step: usize,
    /// Bytes of IP payload in the frames so far.
    sent: usize,
}

impl Frames<'_> {
    /// How many are still to come.
    #[inline]
    #[must_use]
    pub fn left(&self) -> usize {
        let packet_bytes = self.bytes.len() - FRAGMENT_HEADERS_BYTES;
        (packet_bytes - self.sent).div_ceil(self.step)
    }

    /// The next frame; send it before asking again, because the one after it overwrites its end.
    #[inline]
    pub fn next_frame(&mut self) -> Option<&[u8]> {
        let packet_bytes = self.bytes.len() - FRAGMENT_HEADERS_BYTES;
        let offset = self.sent;
        if offset >= packet_bytes {
            return None;
        }
        let length = self.step.min(packet_bytes - offset);
        self.sent += length;
        let more = self.sent < packet_bytes;
        let fragment = match (offset, more) {
            (0, false) => DONT_FRAGMENT,
            _ => (offset / 8) as u16 | if more { MORE_FRAGMENTS } else { 0 },
        };
        let frame = &mut self.bytes[offset..offset + FRAGMENT_HEADERS_BYTES + length];
        let headers = frame.first_chunk_mut()?;
        let number = (self.identification, fragment);
        self.route.emit(headers, self.priority, length, number);
        Some(frame)
    }
}
