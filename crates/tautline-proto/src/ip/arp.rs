//! ARP over Ethernet (RFC 826): the question which station has an IPv4 address, and the answer to it.
//!
//! A node asks once for an entry of its neighbour table, and never while it sends. Not here: a cache,
//! answering others (Linux does that), and any proof that an answer is true, which ARP does not have.

use core::net::Ipv4Addr;

use crate::wire::MacAddress;

/// EtherType of ARP.
pub const ETHERTYPE_ARP: u16 = 0x0806;
/// Bytes of a frame: Ethernet header and packet, which Ethernet pads.
pub const FRAME_BYTES: usize = 42;

/// EtherType of ARP, hardware Ethernet, protocol IPv4, addresses of 6 and 4 bytes: in every frame here.
const KIND: [u8; 8] = [0x08, 0x06, 0, 1, 0x08, 0x00, 6, 4];
const REQUEST: u16 = 1;
const REPLY: u16 = 2;

/// The question who has `wanted`, for everybody on the network. Without an address of its own a node asks as
/// RFC 5227 has it, from 0.0.0.0.
///
/// ```
/// use tautline_proto::ip::arp;
/// use tautline_proto::wire::MacAddress;
///
/// let own = MacAddress([2, 0, 0, 0, 0, 1]);
/// let frame = arp::question(own, Some([10, 0, 0, 1].into()), [10, 0, 0, 2].into());
/// assert_eq!(frame[..6], [0xff; 6]);
/// assert_eq!(frame[38..], [10, 0, 0, 2]);
/// assert_eq!(arp::answer(&frame, own, [10, 0, 0, 2].into()), None);
/// ```
#[must_use]
pub fn question(own: MacAddress, own_ip: Option<Ipv4Addr>, wanted: Ipv4Addr) -> [u8; FRAME_BYTES] {
    let mut frame = [0; FRAME_BYTES];
    frame[..6].copy_from_slice(&MacAddress::BROADCAST.0);
    frame[6..12].copy_from_slice(&own.0);
    frame[12..20].copy_from_slice(&KIND);
    frame[20..22].copy_from_slice(&REQUEST.to_be_bytes());
    frame[22..28].copy_from_slice(&own.0);
    let own_ip = own_ip.unwrap_or(Ipv4Addr::UNSPECIFIED);
    frame[28..32].copy_from_slice(&own_ip.octets());
    frame[38..].copy_from_slice(&wanted.octets());
    frame
}

/// The station that has `wanted`, if the frame is an answer to `own` that says so. What claims to come from a
/// group or from ourselves is none.
#[must_use]
pub fn answer(frame: &[u8], own: MacAddress, wanted: Ipv4Addr) -> Option<MacAddress> {
    let frame: &[u8; FRAME_BYTES] = frame.first_chunk()?;
    let is_ours = frame[12..20] == KIND
        && frame[20..22] == REPLY.to_be_bytes()
        && frame[28..32] == wanted.octets()
        && frame[32..38] == own.0;
    let station = MacAddress(frame[22..28].try_into().ok()?);
    let is_station = !station.is_group() && !station.is_unspecified() && station != own;
    (is_ours && is_station).then_some(station)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
    const PEER: [u8; 6] = [2, 0, 0, 0, 0, 2];
    const WANTED: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
    /// Answer of the station 02:00:00:00:00:02 to the station 02:00:00:00:00:01.
    const ANSWER: [u8; FRAME_BYTES] = [
        2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 6, // Ethernet
        0, 1, 8, 0, 6, 4, 0, 2, // an answer
        2, 0, 0, 0, 0, 2, 10, 0, 0, 2, // from whom
        2, 0, 0, 0, 0, 1, 10, 0, 0, 1, // to whom
    ];

    #[test]
    fn an_answer_is_read_with_its_padding() {
        assert_eq!(answer(&ANSWER, OWN, WANTED), Some(MacAddress(PEER)));
        let padded = [&ANSWER[..], &[0; 18]].concat();
        assert_eq!(answer(&padded, OWN, WANTED), Some(MacAddress(PEER)));
    }

    #[test]
    fn whatever_else_comes_is_no_answer() {
        for length in 0..FRAME_BYTES {
            assert_eq!(
                answer(&ANSWER[..length], OWN, WANTED),
                None,
                "{length} bytes"
            );
        }
        // EtherType, hardware, protocol, lengths, operation, sender, target.
        for place in (12..22).chain(28..38) {
            let mut wrong = ANSWER;
            wrong[place] ^= 1;
            assert_eq!(answer(&wrong, OWN, WANTED), None, "byte {place}");
        }
        for station in [[0; 6], [0xff; 6], [1, 0, 0x5e, 0, 0, 1], OWN.0] {
            let mut wrong = ANSWER;
            wrong[22..28].copy_from_slice(&station);
            assert_eq!(answer(&wrong, OWN, WANTED), None, "{station:?}");
        }
    }

    #[test]
    fn without_an_address_the_question_is_a_probe() {
        let frame = question(OWN, None, WANTED);
        let packet = [
            0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 0, 0, 2,
        ];
        assert_eq!(frame[14..], packet);
    }
}
