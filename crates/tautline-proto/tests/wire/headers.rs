//! The outer headers of both forms against a library that has nothing to do with us.

use core::net::Ipv4Addr;

use etherparse::{IpNumber, NetSlice, PacketBuilder, SlicedPacket, TransportSlice, UdpHeader};
use tautline_proto::wire::udp::{self, Endpoints, UdpChecksum, UdpTemplate};
use tautline_proto::wire::{
    ETHERTYPE_DEFAULT, HEADER_BYTES, Header, MacAddress, ParseError, PortNumber, Priority,
    Rejected, WHOLE_BYTES_MAX_UDP, ethernet,
};

fn endpoints(number: u8) -> Endpoints {
    Endpoints {
        destination: MacAddress([0x02, number, 0, 0, 0xFF, 0x0B]),
        source: MacAddress([0x02, 0, number, 0x80, 0, 0x0A]),
        destination_ip: Ipv4Addr::new(192, 168, number, 255 - number),
        source_ip: Ipv4Addr::new(10, number, 255, 1),
    }
}

fn port(number: u16) -> PortNumber {
    PortNumber::new(number).unwrap()
}

fn header(length: usize) -> Header {
    let length = u16::try_from(length).unwrap();
    Header::whole(port(4095), port(17), Priority::HIGHEST, length, 0xDEAD_BEEF)
}

/// Our header and a payload that is not all zeros.
fn datagram(length: usize) -> Vec<u8> {
    let mut datagram = vec![0; HEADER_BYTES + length];
    header(length).emit(datagram.first_chunk_mut().unwrap());
    for (index, byte) in datagram[HEADER_BYTES..].iter_mut().enumerate() {
        *byte = (index * 7 + 3) as u8;
    }
    datagram
}

#[test]
fn etherparse_reads_what_the_template_writes() {
    for (number, length) in [
        (0, 0),
        (1, 1),
        (7, 64),
        (200, 1407),
        (255, WHOLE_BYTES_MAX_UDP),
    ] {
        let endpoints = endpoints(number);
        let mut template = UdpTemplate::new(&endpoints, port(4095), port(17));
        template.set_header(&header(length));
        let payload = &datagram(length)[HEADER_BYTES..];
        let frame = [&template.bytes[..], payload].concat();

        let packet = SlicedPacket::from_ethernet(&frame).unwrap();
        let Some(NetSlice::Ipv4(ip)) = &packet.net else {
            panic!("{:?}", packet.net);
        };
        let ip = ip.header();
        assert_eq!(ip.header_checksum(), ip.to_header().calc_header_checksum());
        assert_eq!(ip.destination_addr(), endpoints.destination_ip);
        assert_eq!(ip.source_addr(), endpoints.source_ip);
        assert_eq!(usize::from(ip.total_len()), frame.len() - 14);
        assert_eq!((ip.ttl(), ip.protocol()), (64, IpNumber::UDP));
        assert!(ip.dont_fragment() && !ip.more_fragments());
        let Some(TransportSlice::Udp(udp)) = &packet.transport else {
            panic!("{:?}", packet.transport);
        };
        assert_eq!(
            (udp.source_port(), udp.destination_port()),
            (21_586, 25_664)
        );
        assert_eq!(udp.checksum(), 0);
        assert_eq!(udp.payload(), datagram(length));
    }
}

/// A frame made by etherparse, with IPv4 options and a UDP checksum.
fn foreign_frame(options: &[u8], length: usize) -> Vec<u8> {
    let endpoints = endpoints(9);
    let mut ip = etherparse::Ipv4Header::new(
        0,
        32,
        IpNumber::UDP,
        endpoints.source_ip.octets(),
        endpoints.destination_ip.octets(),
    )
    .unwrap();
    ip.options = options.try_into().unwrap();
    let builder = PacketBuilder::ethernet2(endpoints.source.0, endpoints.destination.0)
        .ip(etherparse::IpHeaders::Ipv4(ip, Default::default()))
        .udp(5353, port(4095).udp_port());
    let datagram = datagram(length);
    let mut frame = Vec::with_capacity(builder.size(datagram.len()));
    builder.write(&mut frame, &datagram).unwrap();
    frame
}

#[test]
fn we_read_what_etherparse_writes() {
    for options in [&[][..], &[1, 1, 1, 0], &[1; 40]] {
        for length in [0, 1, 64, 1399] {
            let frame = foreign_frame(options, length);
            let parsed = udp::parse(&frame).unwrap();
            assert_eq!(parsed.header, header(length));
            assert_eq!(parsed.payload, &datagram(length)[HEADER_BYTES..]);
            assert_eq!(parsed.destination, endpoints(9).destination);
            assert_eq!(parsed.source, endpoints(9).source);
            assert_eq!(parsed.destination_ip, endpoints(9).destination_ip);
            assert_eq!(parsed.source_ip, endpoints(9).source_ip);
            assert_eq!(parsed.checksum, UdpChecksum::Valid);
        }
    }
}

/// Both checksums together cover every bit from the IPv4 header on.
#[test]
fn a_single_wrong_bit_never_passes() {
    let good = foreign_frame(&[], 5);
    for bit in 14 * 8..good.len() * 8 {
        let mut frame = good.clone();
        frame[bit / 8] ^= 1 << (bit % 8);
        let rejected = udp::parse(&frame).expect_err("damaged");
        assert!(
            matches!(
                rejected,
                Rejected::NotOurs
                    | Rejected::Malformed(ParseError::BadChecksum)
                    // A UDP length that lies is found before the checksum is looked at.
                    | Rejected::Malformed(ParseError::LengthBeyondFrame | ParseError::Truncated)
            ),
            "bit {bit}: {rejected:?}"
        );
    }
}

#[test]
fn a_partial_checksum_is_told_from_a_wrong_one() {
    let mut frame = foreign_frame(&[], 5);
    let partial = pseudo_header_sum(&endpoints(9), (frame.len() - 34) as u16);
    frame[40..42].copy_from_slice(&partial.to_be_bytes());
    assert_eq!(udp::parse(&frame).unwrap().checksum, UdpChecksum::Partial);
    frame[41] ^= 1;
    assert_eq!(
        udp::parse(&frame),
        Err(Rejected::Malformed(ParseError::BadChecksum))
    );
}

/// Checksum that a kernel leaves for a network card to finish, by way of etherparse.
fn pseudo_header_sum(endpoints: &Endpoints, udp_bytes: u16) -> u16 {
    let header = UdpHeader {
        source_port: 0,
        destination_port: 0,
        length: udp_bytes,
        checksum: 0,
    };
    let (source, destination) = (endpoints.source_ip, endpoints.destination_ip);
    let checksum = header.calc_checksum_ipv4_raw(source.octets(), destination.octets(), &[]);
    // Ones' complement sum of pseudo-header and header; the header's own length is taken out again.
    let sum = u32::from(!checksum.unwrap()) + u32::from(!udp_bytes);
    ((sum & 0xFFFF) + (sum >> 16)) as u16
}

#[test]
fn the_ethernet_form_has_the_ethernet_header_of_etherparse() {
    let endpoints = endpoints(3);
    let mut bytes = [0; ethernet::HEADERS_BYTES];
    ethernet::emit_header(
        &mut bytes,
        endpoints.destination,
        endpoints.source,
        ETHERTYPE_DEFAULT,
        &header(0),
    );
    let expected = etherparse::Ethernet2Header {
        source: endpoints.source.0,
        destination: endpoints.destination.0,
        ether_type: etherparse::EtherType(ETHERTYPE_DEFAULT),
    };
    assert_eq!(bytes[..14], expected.to_bytes());
}
