//! The UDP form: our header as the first bytes of a UDP datagram over IPv4.
//!
//! ```text
//! 0         14               34         42                58
//! +---------+----------------+----------+-----------------+---------+
//! | Ethernet| IPv4 (RFC 791) | UDP (768)| header          | payload |
//! +---------+----------------+----------+-----------------+---------+
//! ```
//!
//! It crosses routers, and it is what a node without privileges speaks. The UDP ports are
//! [`UDP_PORT_BASE`] plus ours. There are two ways in: [`parse_datagram`] for what an ordinary
//! socket hands over, and [`parse`] for whole frames on a raw link, beside the kernel's own stack.
//! [`UdpTemplate`] is the way out for a raw link.
//!
//! IPv6, IP fragments and anything whose IPv4 header is damaged are not ours.

use core::net::{Ipv4Addr, SocketAddrV4};

use super::ethernet::{ETHERNET_HEADER_BYTES, Ethernet, emit_ethernet};
use super::{
    HEADER_BYTES, Header, MTU_BYTES, MacAddress, ParseError, PortNumber, Rejected, UDP_PORT_BASE,
    read_u16,
};
use crate::ip::PROTOCOL_UDP;
use crate::ip::checksum::judge;
use crate::ip::receive::Packet;

/// Bytes in an IPv4 header without options.
pub const IPV4_HEADER_BYTES: usize = 20;

/// Bytes in a UDP header.
pub const UDP_HEADER_BYTES: usize = 8;

/// Bytes before the UDP payload on a raw link: Ethernet, IPv4 and UDP headers.
pub const OUTER_HEADERS_BYTES: usize = ETHERNET_HEADER_BYTES + IPV4_HEADER_BYTES + UDP_HEADER_BYTES;

/// Bytes before our payload on a raw link: [`OUTER_HEADERS_BYTES`] and our header.
pub const HEADERS_BYTES: usize = OUTER_HEADERS_BYTES + HEADER_BYTES;

/// Time to live of what we send. Lower ends at the first routers; higher only prolongs a routing
/// loop. The value that RFC 1700 recommended and that Linux uses.
pub const TIME_TO_LIVE: u8 = 64;

const ETHERTYPE_IPV4: u16 = 0x0800;

/// Where the destination address is in a frame without options (RFC 791, after 16 bytes of the IPv4 header).
const DESTINATION_IP_OFFSET: usize = ETHERNET_HEADER_BYTES + 16;

const _: () = assert!(OUTER_HEADERS_BYTES == 42 && HEADERS_BYTES == 58);

/// State of the UDP checksum of a frame on a raw link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UdpChecksum {
    /// Zero: the sender made none (RFC 768). What our own raw links send.
    Absent,
    /// Present and right.
    Valid,
    /// Only the pseudo-header is summed: a frame that its sender left for a network card to finish
    /// and that never met one, such as between the two ends of a veth. The frame never was on a
    /// wire.
    Partial,
}

/// A frame of the UDP form, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The station that it was sent to: us, or our group.
    pub destination: MacAddress,
    /// The station that sent it: the neighbour itself or the router before it.
    pub source: MacAddress,
    /// The IPv4 address that it was sent to. Whether that is us, the caller decides.
    pub destination_ip: Ipv4Addr,
    /// The IPv4 address that it came from.
    pub source_ip: Ipv4Addr,
    /// The UDP port that it came from. Address translation on the way may have changed it, so the sender's port is the
    /// header's; two senders behind one address differ in this.
    pub source_udp_port: u16,
    /// State of the UDP checksum.
    pub checksum: UdpChecksum,
    /// Our header.
    pub header: Header,
    /// Exactly `header.length` bytes.
    pub payload: &'a [u8],
}

/// Takes a whole Ethernet frame apart, from the destination address on, without the check sequence.
///
/// IPv4 options are skipped. The frame is ours if it holds an undamaged, unfragmented UDP datagram
/// to a port of ours, see [`PortNumber::from_udp_port`]; the IPv4 header's checksum is verified.
///
/// # Errors
///
/// [`Rejected::NotOurs`] up to there. Then, in this order, [`ParseError::InvalidSource`],
/// [`ParseError::LengthBeyondFrame`] for a UDP length beyond the IP packet,
/// [`ParseError::Truncated`] for one below the UDP header's own 8 bytes,
/// [`ParseError::BadChecksum`], what [`Header::parse`] reports, and [`ParseError::PortMismatch`].
#[inline]
pub fn parse(frame: &[u8]) -> Result<Frame<'_>, Rejected> {
    let ethernet = Ethernet::parse(frame).ok_or(Rejected::NotOurs)?;
    if ethernet.ethertype != ETHERTYPE_IPV4 {
        return Err(Rejected::NotOurs);
    }
    // Damaged headers and fragments are for Linux to judge.
    let packet = Packet::parse(ethernet.payload)
        .filter(|packet| !packet.is_damaged && packet.fragment == 0)
        .ok_or(Rejected::NotOurs)?;
    let udp_source = read_u16(packet.payload, 0).ok_or(Rejected::NotOurs)?;
    let udp_destination = read_u16(packet.payload, 2).ok_or(Rejected::NotOurs)?;
    if packet.protocol != PROTOCOL_UDP || PortNumber::from_udp_port(udp_destination).is_none() {
        return Err(Rejected::NotOurs);
    }
    ethernet.check_source()?;
    let from = SocketAddrV4::new(packet.source, udp_source);
    let to = SocketAddrV4::new(packet.destination, udp_destination);
    let (datagram, checksum) = udp_payload(packet.payload, from, to)?;
    let (header, payload) = parse_datagram(datagram, udp_destination)?;
    Ok(Frame {
        destination: ethernet.destination,
        source: ethernet.source,
        destination_ip: packet.destination,
        source_ip: packet.source,
        source_udp_port: udp_source,
        checksum,
        header,
        payload,
    })
}

/// Takes a UDP payload apart, as an ordinary socket hands it over; `udp_destination_port` is the
/// port that the socket is bound to.
///
/// The sender's UDP port is not looked at: address translation on the way may have changed it. The
/// source port is the header's.
///
/// # Errors
///
/// Errors of [`Header::parse`], then [`ParseError::PortMismatch`].
///
/// ```
/// use tautline_proto::wire::{HEADER_BYTES, Header, ParseError, PortNumber, Priority, udp};
///
/// let port = PortNumber::try_from(5u16)?;
/// let mut datagram = [0; HEADER_BYTES];
/// Header::whole(port, PortNumber::MIN, Priority::NORMAL, 0, 0).emit(&mut datagram);
/// let (header, payload) = udp::parse_datagram(&datagram, port.udp_port()).unwrap();
/// assert_eq!((header.destination, payload.len()), (port, 0));
/// assert_eq!(
///     udp::parse_datagram(&datagram, port.udp_port() + 1),
///     Err(ParseError::PortMismatch)
/// );
/// # Ok::<(), tautline_proto::wire::ValueError>(())
/// ```
#[inline]
pub fn parse_datagram(
    datagram: &[u8],
    udp_destination_port: u16,
) -> Result<(Header, &[u8]), ParseError> {
    let (header, payload) = Header::parse(datagram)?;
    if header.destination.udp_port() != udp_destination_port {
        return Err(ParseError::PortMismatch);
    }
    Ok((header, payload))
}

/// Sender and receiver: the fields of the outer headers that stay the same from frame to frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Endpoints {
    /// MAC address of the neighbour, or of the router before it.
    pub destination: MacAddress,
    /// Our MAC address.
    pub source: MacAddress,
    /// The neighbour's IPv4 address.
    pub destination_ip: Ipv4Addr,
    /// Our IPv4 address.
    pub source_ip: Ipv4Addr,
}

/// Everything that comes before the payload on a raw link: Ethernet, IPv4, UDP and our header.
///
/// A sender keeps one for each flow and calls [`set_header`](Self::set_header) frame by frame; only
/// lengths, the IPv4 checksum and our header change. The UDP checksum is 0, "none" (RFC 768). The
/// identification is 0 and "don't fragment" set, as RFC 6864 allows where there are no fragments.
///
/// ```
/// use core::net::{Ipv4Addr, SocketAddrV4};
/// use tautline_proto::wire::{Header, MacAddress, PortNumber, Priority, udp};
///
/// let header = Header::whole(PortNumber::MIN, PortNumber::MAX, Priority::NORMAL, 4, 0);
/// let endpoints = udp::Endpoints {
///     destination: MacAddress([2, 0, 0, 0, 0, 2]),
///     source: MacAddress([2, 0, 0, 0, 0, 1]),
///     destination_ip: Ipv4Addr::new(10, 0, 0, 2),
///     source_ip: Ipv4Addr::new(10, 0, 0, 1),
/// };
/// let mut template = udp::UdpTemplate::new(&endpoints, PortNumber::MIN, PortNumber::MAX);
/// template.set_header(&header);
/// let frame = [&template.bytes[..], b"data"].concat();
/// let parsed = udp::parse(&frame).unwrap();
/// assert_eq!((parsed.source_ip, parsed.payload), (endpoints.source_ip, &b"data"[..]));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UdpTemplate {
    /// The headers, ready to be sent in front of the payload.
    pub bytes: [u8; HEADERS_BYTES],
    /// Folded sum of the IPv4 header, its type of service included, without total length and checksum.
    constant_sum: u16,
}

impl UdpTemplate {
    /// The IPv4 address that the frame is for.
    pub fn destination_ip(&self) -> Ipv4Addr {
        let mut octets = [0; 4];
        octets.copy_from_slice(&self.bytes[DESTINATION_IP_OFFSET..DESTINATION_IP_OFFSET + 4]);
        octets.into()
    }

    /// The headers for frames from `source_port` to `destination_port`. Lengths and our header are
    /// still missing.
    pub fn new(
        endpoints: &Endpoints,
        destination_port: PortNumber,
        source_port: PortNumber,
    ) -> Self {
        Self::with_udp_ports(
            endpoints,
            destination_port.udp_port(),
            source_port.udp_port(),
        )
    }

    /// Like [`new`](Self::new), with bare UDP ports, for frames without our header. Of those the
    /// first [`OUTER_HEADERS_BYTES`] are sent, after [`patch`](Self::patch).
    pub fn with_udp_ports(
        endpoints: &Endpoints,
        udp_destination_port: u16,
        udp_source_port: u16,
    ) -> Self {
        let mut bytes = [0; HEADERS_BYTES];
        let (ethernet, rest) = bytes.split_at_mut(ETHERNET_HEADER_BYTES);
        let (ipv4, rest) = rest.split_at_mut(IPV4_HEADER_BYTES);
        emit_ethernet(
            ethernet,
            endpoints.destination,
            endpoints.source,
            ETHERTYPE_IPV4,
        );
        ipv4[0] = 0x45; // version 4, five words
        ipv4[6] = 0x40; // don't fragment
        ipv4[8] = TIME_TO_LIVE;
        ipv4[9] = PROTOCOL_UDP;
        ipv4[12..16].copy_from_slice(&endpoints.source_ip.octets());
        ipv4[16..20].copy_from_slice(&endpoints.destination_ip.octets());
        let constant_sum = fold(sum(ipv4));
        rest[0..2].copy_from_slice(&udp_source_port.to_be_bytes());
        rest[2..4].copy_from_slice(&udp_destination_port.to_be_bytes());
        Self {
            bytes,
            constant_sum,
        }
    }

    /// Fills in our header and patches the outer ones to its length.
    #[inline]
    pub fn set_header(&mut self, header: &Header) {
        debug_assert_eq!(
            self.bytes[36..38],
            header.destination.udp_port().to_be_bytes()
        );
        self.patch(HEADER_BYTES + header.length as usize);
        if let Some(ours) = self.bytes.last_chunk_mut() {
            header.emit(ours);
        }
    }

    /// Sets the type of service of the frames from now on (RFC 2474); 0 unless set.
    pub fn set_type_of_service(&mut self, type_of_service: u8) {
        let word = |service: u8| u16::from_be_bytes([0, service]);
        let others = u32::from(self.constant_sum) + u32::from(!word(self.bytes[15]));
        self.bytes[15] = type_of_service;
        self.constant_sum = fold(others + u32::from(word(type_of_service)));
    }

    /// Patches the IPv4 total length and checksum and the UDP length for a UDP payload of
    /// `udp_payload_bytes`, our header included.
    ///
    /// At most what fits [`MTU_BYTES`]; more is cut off at 65,535 in the length fields, and
    /// asserted against in debug builds.
    #[inline]
    pub fn patch(&mut self, udp_payload_bytes: usize) {
        debug_assert!(udp_payload_bytes <= MTU_BYTES - IPV4_HEADER_BYTES - UDP_HEADER_BYTES);
        let udp_bytes = u16::try_from(udp_payload_bytes + UDP_HEADER_BYTES).unwrap_or(u16::MAX);
        let total_bytes = udp_bytes.saturating_add(IPV4_HEADER_BYTES as u16);
        let checksum = !fold(u32::from(self.constant_sum) + u32::from(total_bytes));
        self.bytes[16..18].copy_from_slice(&total_bytes.to_be_bytes());
        self.bytes[24..26].copy_from_slice(&checksum.to_be_bytes());
        self.bytes[38..40].copy_from_slice(&udp_bytes.to_be_bytes());
    }
}

/// The Internet checksum of RFC 1071 over `bytes`, an odd one at the end padded with zero.
///
/// Over a header whose checksum field is 0 this is the value for that field; over one that carries
/// the right checksum it is 0.
///
/// ```
/// use tautline_proto::wire::udp::internet_checksum;
///
/// // The example of RFC 1071, section 3: the sum is 0xDDF2.
/// assert_eq!(internet_checksum(&[0x00, 0x01, 0xF2, 0x03, 0xF4, 0xF5, 0xF6, 0xF7]), !0xDDF2);
/// ```
#[inline]
pub fn internet_checksum(bytes: &[u8]) -> u16 {
    !fold(sum(bytes))
}

/// The payload of a UDP datagram, its length and checksum judged.
#[inline]
fn udp_payload(
    bytes: &[u8],
    from: SocketAddrV4,
    to: SocketAddrV4,
) -> Result<(&[u8], UdpChecksum), ParseError> {
    let udp_bytes = read_u16(bytes, 4).ok_or(ParseError::Truncated)?;
    let (head, payload) = bytes
        .get(..usize::from(udp_bytes))
        .ok_or(ParseError::LengthBeyondFrame)?
        .split_first_chunk::<UDP_HEADER_BYTES>()
        .ok_or(ParseError::Truncated)?;
    let sent = u16::from_be_bytes([head[6], head[7]]);
    let checksum = judge(sent, from, to, payload).ok_or(ParseError::BadChecksum)?;
    Ok((payload, checksum))
}

/// Sum of the big-endian 16-bit words. Cannot overflow below 128 KiB, and no packet is longer.
#[inline]
pub(crate) fn sum(bytes: &[u8]) -> u32 {
    debug_assert!(bytes.len() <= 1 << 16);
    let (blocks, rest) = bytes.as_chunks::<32>();
    let (words, odd) = rest.as_chunks::<2>();
    let words: u32 = words
        .iter()
        .map(|word| u32::from(u16::from_be_bytes(*word)))
        .sum();
    let odd = odd.first().map_or(0, |&byte| u32::from(byte) << 8);
    u32::from(sum_of_blocks(blocks)) + words + odd
}

/// The sum of many bytes, eight at a time in the machine's own byte order: a ones' complement sum comes out the same,
/// but for the order of its two bytes. Four sums side by side, so that none waits for another's carry.
fn sum_of_blocks(blocks: &[[u8; 32]]) -> u16 {
    let mut sums = [0_u64; 4];
    for block in blocks {
        let (words, _) = block.as_chunks::<8>();
        for (sum, word) in sums.iter_mut().zip(words) {
            *sum = add_with_carry(*sum, u64::from_ne_bytes(*word));
        }
    }
    let sum = sums.into_iter().fold(0, add_with_carry);
    let sum = (sum & 0xFFFF_FFFF) + (sum >> 32);
    let sum = (sum & 0xFFFF_FFFF) + (sum >> 32);
    fold(sum as u32).to_be()
}

/// The carry comes back in at the bottom; a sum that had one is not all ones, so that this adds no second.
#[inline]
const fn add_with_carry(sum: u64, word: u64) -> u64 {
    let (sum, carry) = sum.overflowing_add(word);
    sum + carry as u64
}

/// Folds the carries of a ones' complement sum back in.
#[inline]
pub(crate) const fn fold(sum: u32) -> u16 {
    let sum = (sum & 0xFFFF) + (sum >> 16);
    let sum = (sum & 0xFFFF) + (sum >> 16);
    sum as u16
}

const _: () = assert!(UDP_PORT_BASE >= 1024);

#[cfg(test)]
mod tests {
    use super::super::Priority;
    use super::*;
    use alloc::vec::Vec;

    /// 10.0.0.1 port 1 to 10.0.0.2 port 2, priority 7, "hi", sequence 9, no UDP checksum.
    #[rustfmt::skip]
    const FRAME: [u8; 60] = [
        2, 0, 0, 0, 0, 0xB, 2, 0, 0, 0, 0, 0xA, 0x08, 0x00,
        0x45, 0, 0, 46, 0, 0, 0x40, 0, 64, 17, 0x26, 0xBD, 10, 0, 0, 1, 10, 0, 0, 2,
        0x54, 0x42, 0x54, 0x43, 0, 26, 0, 0,
        0, 2, 0, 2, 7, 0, 1, 0, 0, 1, 1, 0, 0, 0, 0, 9, b'h', b'i',
    ];

    fn endpoints() -> Endpoints {
        Endpoints {
            destination: MacAddress([2, 0, 0, 0, 0, 0xB]),
            source: MacAddress([2, 0, 0, 0, 0, 0xA]),
            destination_ip: Ipv4Addr::new(10, 0, 0, 2),
            source_ip: Ipv4Addr::new(10, 0, 0, 1),
        }
    }

    fn port(number: u16) -> PortNumber {
        PortNumber::new(number).unwrap()
    }

    fn header() -> Header {
        Header::whole(port(2), port(1), Priority::HIGHEST, 2, 9)
    }

    #[test]
    fn the_template_writes_what_the_parser_reads() {
        let mut template = UdpTemplate::new(&endpoints(), port(2), port(1));
        for length in [1440, 0, 2] {
            let header = Header { length, ..header() };
            template.set_header(&header);
            let frame = [&template.bytes[..], &[0x5A; 1440][..length.into()]].concat();
            assert_eq!(parse(&frame).unwrap().header, header);
            assert_eq!(internet_checksum(&frame[14..34]), 0);
        }
        assert_eq!(template.bytes, FRAME[..HEADERS_BYTES]);
        for service in [0xE0, 0x20, 0] {
            template.set_type_of_service(service);
            template.patch(18);
            assert_eq!(template.bytes[15], service);
            assert_eq!(internet_checksum(&template.bytes[14..34]), 0);
        }
        assert_eq!(template.bytes, FRAME[..HEADERS_BYTES]);
    }

    #[test]
    fn a_sum_is_that_of_its_words_however_many_are_taken_at_once() {
        let mut state = 1_u32;
        let mut random = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        for kind in 0..4 {
            let bytes: Vec<u8> = (0..1_500)
                .map(|_| match kind {
                    0 => 0,
                    1 => 0xFF,
                    2 => random() | 0xFE,
                    _ => random(),
                })
                .collect();
            for length in (0..200).chain(1_390..1_500) {
                let (words, odd) = bytes[..length].as_chunks::<2>();
                let plain = words
                    .iter()
                    .map(|word| u32::from(u16::from_be_bytes(*word)));
                let odd = odd.first().map_or(0, |&byte| u32::from(byte) << 8);
                let expected = fold(plain.sum::<u32>() + odd);
                assert_eq!(fold(sum(&bytes[..length])), expected, "{kind} {length}");
            }
        }
    }
}
