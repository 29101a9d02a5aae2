//! A frame with plain UDP taken apart: the twin of `bpf/udp.bpf.h`, for tests that compare the two, for
//! fuzzing, and for reading what the kernel's side does.

use core::net::{Ipv4Addr, SocketAddrV4};

use super::{
    DatagramHead, FRAGMENT_OFFSET, IPV4_HEADER_BYTES, MORE_FRAGMENTS, PROTOCOL_UDP,
    UDP_HEADER_BYTES, is_possible_source, priority_of_service,
};
use crate::wire::ethernet::Ethernet;
use crate::wire::udp::internet_checksum;
use crate::wire::{ParseError, Rejected, read_u16};

const ETHERTYPE_IPV4: u16 = 0x0800;

/// Addresses of the node that decide where a frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Own {
    /// Its address.
    pub ip: Ipv4Addr,
    /// The broadcast address of its network.
    pub broadcast: Ipv4Addr,
}

/// A frame that concerns us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival<'a> {
    /// A whole datagram.
    Datagram {
        /// Sender of the datagram.
        source: SocketAddrV4,
        /// Head for the port's memory.
        head: DatagramHead,
        /// Its bytes.
        payload: &'a [u8],
    },
    /// A part of one. Whose it is, its first fragment says.
    Fragment {
        /// Sender of the fragment.
        source: Ipv4Addr,
        /// Head for the port's memory.
        head: DatagramHead,
        /// The bytes after the IP header; in the first fragment, the UDP header among them.
        payload: &'a [u8],
    },
}

/// Takes a whole Ethernet frame apart, from the destination address on. `is_open` says which UDP ports
/// are ours.
///
/// # Errors
/// [`Rejected::NotOurs`] for what Linux is to see: other protocols and addresses, ports that are not
/// open, damaged IP headers, lengths beyond the frame. [`Rejected::Malformed`] for datagrams to our ports
/// that are wrong: [`ParseError::InvalidSource`], [`ParseError::Truncated`],
/// [`ParseError::LengthBeyondFrame`].
pub fn parse<'a>(
    frame: &'a [u8],
    own: &Own,
    is_open: impl Fn(u16) -> bool,
) -> Result<Arrival<'a>, Rejected> {
    let ethernet = Ethernet::parse(frame).ok_or(Rejected::NotOurs)?;
    if ethernet.ethertype != ETHERTYPE_IPV4 {
        return Err(Rejected::NotOurs);
    }
    let packet = Packet::parse(ethernet.payload)
        .filter(|packet| packet.destination == own.ip && packet.protocol == PROTOCOL_UDP)
        .ok_or(Rejected::NotOurs)?;
    let is_first = packet.fragment & FRAGMENT_OFFSET == 0;
    if is_first {
        let enough = match packet.fragment {
            0 => 4,
            _ => UDP_HEADER_BYTES,
        };
        let port = read_u16(packet.payload, 2).filter(|_| packet.payload.len() >= enough);
        if !port.is_some_and(is_open) {
            return Err(Rejected::NotOurs);
        }
    }
    if packet.is_damaged {
        return Err(Rejected::NotOurs);
    }
    let possible = is_possible_source(packet.source, own.ip, own.broadcast);
    match packet.fragment {
        // The owner is not known yet.
        1.. if !is_first && (!possible || ethernet.source.is_group()) => Err(Rejected::NotOurs),
        _ if !possible || ethernet.source.is_group() => Err(ParseError::InvalidSource.into()),
        1.. => packet.part(),
        0 => packet.datagram(),
    }
}

/// Sender, receiver and bytes of the UDP datagram in a frame, whosever they are; of one in fragments, those of the
/// first. `None` for everything else. For observers of passing frames: checksums of the datagram are not verified.
#[must_use]
pub fn datagram_of(frame: &[u8]) -> Option<(SocketAddrV4, SocketAddrV4, &[u8])> {
    let ethernet = Ethernet::parse(frame).filter(|frame| frame.ethertype == ETHERTYPE_IPV4)?;
    let packet = Packet::parse(ethernet.payload).filter(|packet| {
        packet.protocol == PROTOCOL_UDP
            && packet.fragment & FRAGMENT_OFFSET == 0
            && !packet.is_damaged
    })?;
    let payload = packet.payload.get(UDP_HEADER_BYTES..)?;
    let [from, to] = [0, 2].map(|at| read_u16(packet.payload, at));
    Some((
        SocketAddrV4::new(packet.source, from?),
        SocketAddrV4::new(packet.destination, to?),
        payload,
    ))
}

/// An IPv4 packet, its lengths checked against the frame.
pub(crate) struct Packet<'a> {
    pub(crate) source: Ipv4Addr,
    pub(crate) destination: Ipv4Addr,
    pub(crate) protocol: u8,
    type_of_service: u8,
    identification: u16,
    pub(crate) fragment: u16,
    pub(crate) is_damaged: bool,
    pub(crate) payload: &'a [u8],
}

impl<'a> Packet<'a> {
    #[inline]
    pub(crate) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let fixed = bytes.first_chunk::<IPV4_HEADER_BYTES>()?;
        let header_bytes = usize::from(fixed[0] & 0x0F) * 4;
        if fixed[0] >> 4 != 4 || header_bytes < IPV4_HEADER_BYTES {
            return None;
        }
        let total_bytes = usize::from(read_u16(fixed, 2)?);
        let header = bytes.get(..header_bytes)?;
        Some(Self {
            source: Ipv4Addr::new(fixed[12], fixed[13], fixed[14], fixed[15]),
            destination: Ipv4Addr::new(fixed[16], fixed[17], fixed[18], fixed[19]),
            protocol: fixed[9],
            type_of_service: fixed[1],
            identification: read_u16(fixed, 4)?,
            fragment: read_u16(fixed, 6)? & (MORE_FRAGMENTS | FRAGMENT_OFFSET),
            is_damaged: internet_checksum(header) != 0,
            payload: bytes.get(header_bytes..total_bytes)?,
        })
    }

    fn datagram(&self) -> Result<Arrival<'a>, Rejected> {
        let header = self.payload.first_chunk::<UDP_HEADER_BYTES>();
        let header = header.ok_or(ParseError::Truncated)?;
        let field = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
        let udp_bytes = usize::from(field(4));
        if udp_bytes < UDP_HEADER_BYTES {
            return Err(ParseError::Truncated.into());
        }
        let payload = self.payload.get(UDP_HEADER_BYTES..udp_bytes);
        let payload = payload.ok_or(ParseError::LengthBeyondFrame)?;
        Ok(Arrival::Datagram {
            source: SocketAddrV4::new(self.source, field(0)),
            head: DatagramHead {
                destination_port: field(2),
                length: payload.len() as u16,
                checksum: field(6),
                identification: 0,
                ..self.head()
            },
            payload,
        })
    }

    fn part(&self) -> Result<Arrival<'a>, Rejected> {
        let first = self.fragment & FRAGMENT_OFFSET == 0;
        let port = read_u16(self.payload, 2).filter(|_| first);
        Ok(Arrival::Fragment {
            source: self.source,
            head: DatagramHead {
                destination_port: port.unwrap_or(0),
                ..self.head()
            },
            payload: self.payload,
        })
    }

    fn head(&self) -> DatagramHead {
        DatagramHead {
            destination_port: 0,
            length: self.payload.len() as u16,
            priority: priority_of_service(self.type_of_service),
            is_verified: false,
            checksum: 0,
            fragment: self.fragment,
            identification: self.identification,
        }
    }
}
