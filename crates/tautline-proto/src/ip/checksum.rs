//! The UDP checksum (RFC 768, RFC 1071): made for what leaves, judged in what came.

use core::net::{Ipv4Addr, SocketAddrV4};

use super::{PROTOCOL_UDP, UDP_HEADER_BYTES};
use crate::wire::udp::{UdpChecksum, fold, sum};

/// State of a datagram's checksum, or `None` if it is wrong.
///
/// `payload` is what follows the UDP header; the header's fields are those of the addresses.
/// [`UdpChecksum::Partial`] is told from wrong by the field being exactly the pseudo-header's sum: so it
/// reads where the sender's kernel left the rest to a network card, and no card was on the way. One wrong
/// datagram in 65,536 looks like that too, so a caller accepts it only where no card can have been.
///
/// ```
/// use tautline_proto::ip::checksum::{judge, made};
/// use tautline_proto::wire::udp::UdpChecksum;
///
/// let from = "10.0.0.1:7".parse()?;
/// let to = "10.0.0.2:9".parse()?;
/// let sum = made(from, to, b"hello");
/// assert_eq!(judge(sum, from, to, b"hello"), Some(UdpChecksum::Valid));
/// assert_eq!(judge(sum, from, to, b"hallo"), None);
/// assert_eq!(judge(0, from, to, b"hallo"), Some(UdpChecksum::Absent));
/// # Ok::<(), core::net::AddrParseError>(())
/// ```
#[inline]
#[must_use]
pub fn judge(
    checksum: u16,
    from: SocketAddrV4,
    to: SocketAddrV4,
    payload: &[u8],
) -> Option<UdpChecksum> {
    if checksum == 0 {
        return Some(UdpChecksum::Absent);
    }
    let pseudo = pseudo_header(from, to, payload.len());
    let header = ports_and_length(from, to, payload.len());
    if fold(pseudo + header + u32::from(checksum) + sum(payload)) == 0xFFFF {
        Some(UdpChecksum::Valid)
    } else if checksum == fold(pseudo) {
        Some(UdpChecksum::Partial)
    } else {
        None
    }
}

/// The checksum of a datagram that is to be sent; never 0, which means none.
#[inline]
#[must_use]
pub fn made(from: SocketAddrV4, to: SocketAddrV4, payload: &[u8]) -> u16 {
    finish(base(from, to), payload)
}

/// The part of the sum that is the same for all datagrams between two ports.
#[must_use]
pub(super) fn base(from: SocketAddrV4, to: SocketAddrV4) -> u32 {
    let length = 2 * UDP_HEADER_BYTES as u32;
    // Without payload; each byte of it counts twice, in the pseudo-header and in the header.
    pseudo_header(from, to, 0) + ports_and_length(from, to, 0) - length
}

/// The checksum from [`base`] and the payload.
#[inline]
pub(super) fn finish(base: u32, payload: &[u8]) -> u16 {
    let length = 2 * (UDP_HEADER_BYTES + payload.len()) as u32;
    match !fold(base + length + sum(payload)) {
        0 => 0xFFFF,
        sum => sum,
    }
}

fn pseudo_header(from: SocketAddrV4, to: SocketAddrV4, payload_bytes: usize) -> u32 {
    sum_of_address(*from.ip())
        + sum_of_address(*to.ip())
        + u32::from(PROTOCOL_UDP)
        + (UDP_HEADER_BYTES + payload_bytes) as u32
}

fn sum_of_address(address: Ipv4Addr) -> u32 {
    (address.to_bits() >> 16) + (address.to_bits() & 0xFFFF)
}

fn ports_and_length(from: SocketAddrV4, to: SocketAddrV4, payload_bytes: usize) -> u32 {
    u32::from(from.port()) + u32::from(to.port()) + (UDP_HEADER_BYTES + payload_bytes) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn one_wrong_bit_is_seen() {
        let from: SocketAddrV4 = "10.1.2.3:65535".parse().unwrap();
        let to: SocketAddrV4 = "255.254.253.252:1".parse().unwrap();
        let mut payload = vec![0xFF; 333];
        let sum = made(from, to, &payload);
        for bit in 0..8 * payload.len() {
            payload[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(judge(sum, from, to, &payload), None, "bit {bit}");
            payload[bit / 8] ^= 1 << (bit % 8);
        }
        assert_eq!(judge(sum, from, to, &payload), Some(UdpChecksum::Valid));
    }

    #[test]
    fn a_sum_of_zero_is_sent_as_all_ones() {
        let from: SocketAddrV4 = "10.0.0.1:7".parse().unwrap();
        let to: SocketAddrV4 = "10.0.0.2:9".parse().unwrap();
        let without = made(from, to, &[0, 0]);
        let payload = without.to_be_bytes();
        assert_eq!(made(from, to, &payload), 0xFFFF);
        assert_eq!(judge(0xFFFF, from, to, &payload), Some(UdpChecksum::Valid));
    }

    #[test]
    fn the_longest_datagram_does_not_overflow() {
        let from: SocketAddrV4 = "255.255.255.255:65535".parse().unwrap();
        let payload = vec![0xFF; super::super::DATAGRAM_BYTES_MAX];
        let sum = made(from, from, &payload);
        assert_eq!(judge(sum, from, from, &payload), Some(UdpChecksum::Valid));
    }
}
