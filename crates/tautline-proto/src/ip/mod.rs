//! Plain UDP over IPv4, for peers that are not ours: datagrams without our header.
//!
//! [`receive`] takes a frame apart as the demux in the kernel does; [`send`] writes the headers of what
//! leaves, cutting a datagram that is too long for one frame into IP fragments in place;
//! [`reassembly`] puts the fragments of others together; [`arp`] asks which station has an address. The way
//! a message of ours travels in UDP is another one, see [`crate::wire::udp`].
//!
//! Not here: routing, ICMP, IPv6.

pub mod arp;
pub mod checksum;
pub mod reassembly;
pub mod receive;
pub mod send;

use core::net::Ipv4Addr;

use crate::wire::Priority;
pub(crate) use crate::wire::udp::IPV4_HEADER_BYTES;
pub use crate::wire::udp::UDP_HEADER_BYTES;

/// Most bytes in one datagram: 65,535 of an IPv4 packet less 20 and 8 bytes of headers.
pub const DATAGRAM_BYTES_MAX: usize = 65_507;

/// IPv4's number of UDP.
pub(crate) const PROTOCOL_UDP: u8 = 17;
/// "More fragments follow" in the fragment field (RFC 791).
pub const MORE_FRAGMENTS: u16 = 0x2000;
/// The offset in the fragment field, in units of eight bytes.
pub const FRAGMENT_OFFSET: u16 = 0x1FFF;

/// The type-of-service byte of a priority: IP precedence, which is the class selector of RFC 2474.
///
/// ```
/// use tautline_proto::ip::{priority_of_service, type_of_service};
/// use tautline_proto::wire::Priority;
///
/// assert_eq!(type_of_service(Priority::HIGHEST), 0xE0); // CS7
/// assert_eq!(priority_of_service(0xB8).get(), 5); // expedited forwarding
/// ```
#[must_use]
pub const fn type_of_service(priority: Priority) -> u8 {
    priority.get() << 5
}

/// The priority of a type-of-service byte: its upper three bits.
#[must_use]
pub fn priority_of_service(type_of_service: u8) -> Priority {
    Priority::ALL[usize::from(type_of_service >> 5)]
}

/// Head of a datagram or a fragment in a port's memory, in the place where a message of ours
/// has its header. `struct tl_udp_head` of `bpf/tautline.h`; all numbers in network byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DatagramHead {
    /// UDP port that it is for; 0 in a fragment that is not the first.
    pub destination_port: u16,
    /// Bytes after this head.
    pub length: u16,
    /// From the type-of-service byte.
    pub priority: Priority,
    /// Whether the kernel has verified the UDP checksum already.
    pub is_verified: bool,
    /// The UDP checksum as it came, 0 for none. Of a fragment: 0.
    pub checksum: u16,
    /// Flags and offset of a fragment, as in the IPv4 header; 0 in a whole datagram.
    pub fragment: u16,
    /// Identification of the datagram that a fragment is of.
    pub identification: u16,
}

/// [`DatagramHead::is_verified`] in the byte of flags.
pub const FLAG_VERIFIED: u8 = 1;

impl DatagramHead {
    /// Bytes in memory.
    #[must_use]
    pub const fn to_bytes(&self) -> [u8; 16] {
        let [port_high, port_low] = self.destination_port.to_be_bytes();
        let [length_high, length_low] = self.length.to_be_bytes();
        let [sum_high, sum_low] = self.checksum.to_be_bytes();
        let [fragment_high, fragment_low] = self.fragment.to_be_bytes();
        let [id_high, id_low] = self.identification.to_be_bytes();
        let flags = if self.is_verified { FLAG_VERIFIED } else { 0 };
        [
            port_high,
            port_low,
            length_high,
            length_low,
            self.priority.get(),
            flags,
            sum_high,
            sum_low,
            fragment_high,
            fragment_low,
            id_high,
            id_low,
            0,
            0,
            0,
            0,
        ]
    }

    /// From memory; `None` if the priority is none, which only another's scribbling brings about.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; 16]) -> Option<Self> {
        let field = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        Some(Self {
            destination_port: field(0),
            length: field(2),
            priority: Priority::new(bytes[4])?,
            is_verified: bytes[5] & FLAG_VERIFIED != 0,
            checksum: field(6),
            fragment: field(8),
            identification: field(10),
        })
    }
}

/// Whether a datagram can rightly come from this address: not from nowhere, loopback, a group, a broadcast address, or
/// ourselves. Linux takes datagrams from 240.0.0.0/4, which is reserved.
#[must_use]
pub fn is_possible_source(source: Ipv4Addr, own: Ipv4Addr, broadcast: Ipv4Addr) -> bool {
    let first = source.octets()[0];
    let is_of_many = source.is_multicast() || source.is_broadcast() || source == broadcast;
    first != 0 && first != 127 && !is_of_many && source != own
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_survives_memory() {
        let head = DatagramHead {
            destination_port: 0x1234,
            length: 1472,
            priority: Priority::HIGHEST,
            is_verified: true,
            checksum: 0xBEEF,
            fragment: MORE_FRAGMENTS | 185,
            identification: 0xCAFE,
        };
        let bytes = head.to_bytes();
        assert_eq!(
            bytes,
            [
                0x12, 0x34, 0x05, 0xC0, 7, 1, 0xBE, 0xEF, 0x20, 0xB9, 0xCA, 0xFE, 0, 0, 0, 0
            ]
        );
        assert_eq!(DatagramHead::from_bytes(&bytes), Some(head));
        let mut scribbled = bytes;
        scribbled[4] = 8;
        assert_eq!(DatagramHead::from_bytes(&scribbled), None);
    }

    #[test]
    fn impossible_sources() {
        let own = Ipv4Addr::new(10, 0, 0, 2);
        let broadcast = Ipv4Addr::new(10, 0, 0, 255);
        let possible = |source: [u8; 4]| is_possible_source(source.into(), own, broadcast);
        assert!(possible([10, 0, 0, 1]) && possible([8, 8, 8, 8]));
        assert!(possible([240, 0, 0, 1]) && possible([255, 255, 255, 254]));
        for source in [
            [0, 0, 0, 0],
            [0, 1, 2, 3],
            [127, 0, 0, 1],
            [224, 0, 0, 1],
            [239, 255, 255, 255],
            [255, 255, 255, 255],
            [10, 0, 0, 2],
            [10, 0, 0, 255],
        ] {
            assert!(!possible(source), "{source:?}");
        }
    }
}
