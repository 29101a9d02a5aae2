//! The headers of plain UDP against a library that has nothing to do with us, in both directions.

use core::net::{Ipv4Addr, SocketAddrV4};

use etherparse::defrag::IpDefragPool;
use etherparse::{
    ArpHardwareId, ArpOperation, ArpPacket, EtherType, Ipv4Options, LinkSlice, NetSlice,
    PacketBuilder, SlicedPacket, TransportSlice, UdpHeader,
};
use tautline_proto::ip::DATAGRAM_BYTES_MAX;
use tautline_proto::ip::arp;
use tautline_proto::ip::checksum::judge;
use tautline_proto::ip::receive::{Arrival, Own, parse};
use tautline_proto::ip::send::{Route, SendBuffer};
use tautline_proto::wire::udp::UdpChecksum;
use tautline_proto::wire::{MacAddress, ParseError, Priority, Rejected};

const OWN: Own = Own {
    ip: Ipv4Addr::new(10, 0, 0, 2),
    broadcast: Ipv4Addr::new(10, 0, 0, 255),
};

fn address(last: u8, port: u16) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, last), port)
}

fn mac(last: u8) -> MacAddress {
    MacAddress([2, 0, 0, 0, 0, last])
}

fn payload(length: usize) -> Vec<u8> {
    (0..length).map(|place| (place * 7 + 3) as u8).collect()
}

fn frames(length: usize, mtu_bytes: usize, priority: Priority) -> Vec<Vec<u8>> {
    let route = Route::new(address(1, 7), address(2, 5000), mac(1), mac(2), mtu_bytes);
    let mut buffer = SendBuffer::new(length);
    buffer
        .payload(length)
        .unwrap()
        .copy_from_slice(&payload(length));
    let mut frames = buffer.frames(&route, priority, length, 0xBEEF);
    let mut all = Vec::new();
    while let Some(frame) = frames.next_frame() {
        all.push(frame.to_vec());
    }
    all
}

#[test]
fn etherparse_reads_what_asks_for_a_station_and_makes_what_answers() {
    let (own, peer) = (mac(1), mac(2));
    let asked = arp::question(own, Some(*address(1, 0).ip()), *address(2, 0).ip());
    let packet = SlicedPacket::from_ethernet(&asked).unwrap();
    let Some(LinkSlice::Ethernet2(ethernet)) = &packet.link else {
        panic!("{:?}", packet.link);
    };
    assert_eq!(
        (ethernet.source(), ethernet.destination()),
        (own.0, [0xff; 6])
    );
    let Some(NetSlice::Arp(read)) = packet.net else {
        panic!("{:?}", packet.net);
    };
    assert_eq!(read.operation(), ArpOperation::REQUEST);
    assert_eq!(read.sender_hw_addr(), own.0);
    assert_eq!(read.sender_protocol_addr(), [10, 0, 0, 1]);
    assert_eq!(read.target_protocol_addr(), [10, 0, 0, 2]);

    let reply = ArpPacket::new(
        ArpHardwareId::ETHERNET,
        EtherType::IPV4,
        ArpOperation::REPLY,
        &peer.0,
        &[10, 0, 0, 2],
        &own.0,
        &[10, 0, 0, 1],
    );
    let mut frame = Vec::new();
    let builder = PacketBuilder::ethernet2(peer.0, own.0).arp(reply.unwrap());
    builder.write(&mut frame).unwrap();
    assert_eq!(arp::answer(&frame, own, *address(2, 0).ip()), Some(peer));
    assert_eq!(arp::answer(&frame, own, *address(3, 0).ip()), None);
}

#[test]
fn etherparse_reads_whole_datagrams() {
    for length in [0, 1, 2, 64, 1471, 1472] {
        let all = frames(length, 1500, Priority::HIGHEST);
        let [frame] = &all[..] else {
            panic!("{} frames", all.len());
        };
        let packet = SlicedPacket::from_ethernet(frame).unwrap();
        let Some(NetSlice::Ipv4(ip)) = &packet.net else {
            panic!("{:?}", packet.net);
        };
        let ip = ip.header();
        assert_eq!(ip.header_checksum(), ip.to_header().calc_header_checksum());
        assert_eq!(
            (ip.source_addr(), ip.destination_addr()),
            (*address(1, 0).ip(), OWN.ip)
        );
        assert_eq!(ip.dcp().value(), 56, "class selector 7");
        assert!(ip.dont_fragment() && !ip.more_fragments());
        assert_eq!(usize::from(ip.total_len()) + 14, frame.len());
        let Some(TransportSlice::Udp(udp)) = &packet.transport else {
            panic!("{:?}", packet.transport);
        };
        assert_eq!((udp.source_port(), udp.destination_port()), (7, 5000));
        assert_eq!(udp.payload(), payload(length));
        let sum =
            udp.to_header()
                .calc_checksum_ipv4_raw(ip.source(), ip.destination(), &payload(length));
        assert_eq!(udp.checksum(), sum.unwrap());
    }
}

#[test]
fn etherparse_puts_our_fragments_together() {
    for (length, mtu_bytes) in [
        (1473, 1500),
        (1480, 1500),
        (4000, 576),
        (500, 68),
        (8192, 1499),
        (DATAGRAM_BYTES_MAX, 1500),
    ] {
        let mut pool = IpDefragPool::<(), ()>::new();
        let all = frames(length, mtu_bytes, Priority::NORMAL);
        let mut whole = None;
        for (index, frame) in all.iter().enumerate() {
            let packet = SlicedPacket::from_ethernet(frame).unwrap();
            let Some(NetSlice::Ipv4(ip)) = &packet.net else {
                panic!("{:?}", packet.net);
            };
            let header = ip.header();
            assert!(!header.dont_fragment());
            assert!(usize::from(header.total_len()) <= mtu_bytes);
            assert_eq!(
                header.header_checksum(),
                header.to_header().calc_header_checksum()
            );
            let together = pool.process_sliced_packet(&packet, (), ()).unwrap();
            assert_eq!(together.is_some(), index + 1 == all.len());
            whole = together;
        }
        let whole = whole.unwrap().payload;
        let (udp, rest) = UdpHeader::from_slice(&whole).unwrap();
        assert_eq!(rest, payload(length), "{length} bytes");
        assert_eq!(usize::from(udp.length), length + 8);
        let (from, to) = (address(1, 7), address(2, 5000));
        assert_eq!(
            judge(udp.checksum, from, to, rest),
            Some(UdpChecksum::Valid)
        );
    }
}

/// A frame of etherparse's making, from 10.0.0.1 port 7 to 10.0.0.2 port 5000.
fn foreign(options: &[u8], length: usize) -> Vec<u8> {
    let mut ip = etherparse::Ipv4Header::new(
        0,
        20,
        etherparse::IpNumber::UDP,
        [10, 0, 0, 1],
        OWN.ip.octets(),
    )
    .unwrap();
    ip.options = Ipv4Options::try_from(options).unwrap();
    ip.dscp = 46.try_into().unwrap();
    let builder = PacketBuilder::ethernet2(mac(1).0, mac(2).0)
        .ip(etherparse::IpHeaders::Ipv4(ip, Default::default()))
        .udp(7, 5000);
    let mut frame = Vec::new();
    builder.write(&mut frame, &payload(length)).unwrap();
    frame
}

#[test]
fn foreign_datagrams_are_read() {
    for options in [&[][..], &[1, 1, 1, 0], &[1; 40]] {
        for length in [0, 1, 300, 1400] {
            let frame = foreign(options, length);
            let Ok(Arrival::Datagram {
                source,
                head,
                payload: received,
            }) = parse(&frame, &OWN, |port| port == 5000)
            else {
                panic!("{options:?}, {length} bytes");
            };
            assert_eq!((source, received), (address(1, 7), &payload(length)[..]));
            assert_eq!((head.destination_port, head.priority.get()), (5000, 5));
            assert_eq!(usize::from(head.length), length);
            let judged = judge(head.checksum, source, address(2, 5000), received);
            assert_eq!(judged, Some(UdpChecksum::Valid));
            // Padding is no part of it.
            let padded = [&frame[..], &[0xAA; 20]].concat();
            assert_eq!(
                parse(&padded, &OWN, |port| port == 5000),
                parse(&frame, &OWN, |_| true)
            );
            let mut tagged = frame.clone();
            tagged.splice(12..12, [0x81, 0, 0xE0, 0]);
            assert!(parse(&tagged, &OWN, |_| true).is_ok());
        }
    }
    assert_eq!(
        parse(&foreign(&[], 4), &OWN, |port| port == 7),
        Err(Rejected::NotOurs)
    );
}

/// `foreign` with bytes changed and the IP checksum made right again.
fn changed(changes: &[(usize, u8)]) -> Vec<u8> {
    let mut frame = foreign(&[], 10);
    for (place, value) in changes {
        frame[*place] = *value;
    }
    frame[24..26].fill(0);
    let checksum = tautline_proto::wire::udp::internet_checksum(&frame[14..34]);
    frame[24..26].copy_from_slice(&checksum.to_be_bytes());
    frame
}

#[test]
fn wrong_datagrams_have_their_answers() {
    let answer = |changes: &[(usize, u8)]| parse(&changed(changes), &OWN, |_| true).map(drop);
    let malformed = |error| Err(Rejected::Malformed(error));
    assert_eq!(answer(&[]), Ok(()));
    // Lengths that lie, UDP's and IP's.
    assert_eq!(
        answer(&[(39, 19)]),
        malformed(ParseError::LengthBeyondFrame)
    );
    assert_eq!(answer(&[(39, 7)]), malformed(ParseError::Truncated));
    assert_eq!(answer(&[(39, 0)]), malformed(ParseError::Truncated));
    assert_eq!(answer(&[(39, 17)]), Ok(()), "bytes after the datagram");
    assert_eq!(answer(&[(17, 39)]), Err(Rejected::NotOurs));
    assert_eq!(answer(&[(17, 27)]), malformed(ParseError::Truncated));
    assert_eq!(
        answer(&[(17, 23)]),
        Err(Rejected::NotOurs),
        "no port to be seen"
    );
    // Invalid sources.
    for source in [
        [10, 0, 0, 2],
        [10, 0, 0, 255],
        [0, 0, 0, 0],
        [127, 0, 0, 1],
        [224, 0, 0, 1],
        [255, 255, 255, 255],
    ] {
        let changes: Vec<_> = (26..).zip(source).collect();
        assert_eq!(
            answer(&changes),
            malformed(ParseError::InvalidSource),
            "{source:?}"
        );
    }
    assert_eq!(
        answer(&[(6, 3)]),
        malformed(ParseError::InvalidSource),
        "group MAC"
    );
    // Port 0 cannot be opened; datagrams from port 0 want no answer.
    let not_zero =
        |changes: &[(usize, u8)]| parse(&changed(changes), &OWN, |port| port != 0).map(drop);
    assert_eq!(not_zero(&[(36, 0), (37, 0)]), Err(Rejected::NotOurs));
    assert_eq!(not_zero(&[(35, 0)]), Ok(()));
    // Others' packets.
    for (place, value) in [(14, 0x44), (14, 0x65), (33, 3), (23, 6), (12, 0x86)] {
        assert_eq!(
            answer(&[(place, value)]),
            Err(Rejected::NotOurs),
            "byte {place}"
        );
    }
    let mut damaged = changed(&[]);
    damaged[25] ^= 1;
    assert_eq!(parse(&damaged, &OWN, |_| true), Err(Rejected::NotOurs));
    let whole = changed(&[]);
    for length in 0..whole.len() {
        assert_eq!(
            parse(&whole[..length], &OWN, |_| true),
            Err(Rejected::NotOurs)
        );
    }
}

#[test]
fn headers_for_somebody_else_who_cuts() {
    let route = Route::new(address(1, 7), address(2, 5000), mac(1), mac(2), 1500);
    for length in [1473, 8192, DATAGRAM_BYTES_MAX] {
        let mut buffer = SendBuffer::new(length);
        buffer
            .payload(length)
            .unwrap()
            .copy_from_slice(&payload(length));
        let datagram = buffer.datagram(length).unwrap();
        let mut frame = datagram
            .uncut_headers(&route, Priority::HIGHEST, 0xBEEF)
            .to_vec();
        frame.extend_from_slice(datagram.payload());
        let packet = SlicedPacket::from_ethernet(&frame).unwrap();
        let Some(NetSlice::Ipv4(ip)) = &packet.net else {
            panic!("{:?}", packet.net);
        };
        let ip = ip.header();
        assert_eq!(ip.header_checksum(), ip.to_header().calc_header_checksum());
        assert_eq!(usize::from(ip.total_len()), length + 28);
        assert_eq!((ip.identification(), ip.dcp().value()), (0xBEEF, 56));
        assert!(!ip.dont_fragment() && !ip.more_fragments());
        let Some(TransportSlice::Udp(udp)) = &packet.transport else {
            panic!("{:?}", packet.transport);
        };
        assert_eq!(usize::from(udp.length()), length + 8);
        // The part that cuts adds the ports, the length and the payload.
        let verdict = judge(
            udp.checksum(),
            address(1, 7),
            address(2, 5000),
            udp.payload(),
        );
        assert_eq!(verdict, Some(UdpChecksum::Partial));
    }
    assert_eq!(route.fragment_bytes(), 1480);
}
