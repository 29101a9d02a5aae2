//! A captured frame, read as docs/reference/wire.md says.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddrV4};

use tautline_proto::ip::receive::datagram_of;
use tautline_proto::wire::ethernet::EthernetForm;
use tautline_proto::wire::{Header, MacAddress, ParseError, Rejected, ethernet, udp};

/// Sender or receiver of a frame, by the form that it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Of the Ethernet form.
    Mac(MacAddress),
    /// Of the UDP form.
    Ip(Ipv4Addr),
}

impl fmt::Display for End {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mac(mac) => mac.fmt(formatter),
            Self::Ip(ip) => ip.fmt(formatter),
        }
    }
}

/// A frame of ours.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// Sender.
    pub from: End,
    /// Receiver.
    pub to: End,
    /// Its header.
    pub header: Header,
    /// Its payload.
    pub payload: &'a [u8],
}

/// A datagram of plain UDP, or the first fragment of one.
#[derive(Clone, Copy, Debug)]
pub struct PlainDatagram<'a> {
    /// Sender.
    pub from: SocketAddrV4,
    /// Receiver.
    pub to: SocketAddrV4,
    /// Its bytes, as far as the frame has them.
    pub payload: &'a [u8],
}

/// Reads a frame as plain UDP.
#[must_use]
pub fn plain_datagram(bytes: &[u8]) -> Option<PlainDatagram<'_>> {
    let (from, to, payload) = datagram_of(bytes)?;
    Some(PlainDatagram { from, to, payload })
}

/// Reads a frame, whatever VLAN it is in. Nothing if it is not ours, as plain UDP is not.
///
/// # Errors
/// It is ours and against the format.
pub fn frame(bytes: &[u8], ethertype: u16) -> Result<Option<Frame<'_>>, ParseError> {
    let form = EthernetForm {
        ethertype,
        vlan: ethernet::vlan_of(bytes),
    };
    match ethernet::parse_as(bytes, form) {
        Ok(frame) => {
            return Ok(Some(Frame {
                from: End::Mac(frame.source),
                to: End::Mac(frame.destination),
                header: frame.header,
                payload: frame.payload,
            }));
        }
        Err(Rejected::Malformed(error)) => return Err(error),
        Err(_) => {}
    }
    match udp::parse(bytes) {
        Ok(frame) => Ok(Some(Frame {
            from: End::Ip(frame.source_ip),
            to: End::Ip(frame.destination_ip),
            header: frame.header,
            payload: frame.payload,
        })),
        Err(Rejected::Malformed(error)) => Err(error),
        Err(_) => Ok(None),
    }
}
