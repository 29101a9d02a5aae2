//! Building the frames that links send, and taking apart those that reach the process.

use std::net::SocketAddrV4;

use tautline_proto::authentication::Station;
use tautline_proto::ip::type_of_service;
use tautline_proto::neighbour::{Form, Neighbour};
use tautline_proto::time::Instant;
use tautline_proto::wire::ethernet::{EthernetForm, Vlan};
use tautline_proto::wire::{
    HEADER_BYTES, Header, MacAddress, PortNumber, WHOLE_BYTES_MAX_ETHERNET, WHOLE_BYTES_MAX_UDP,
    ethernet, udp,
};
use tautline_shm::deliver::{Arriving, deliver};
use tautline_shm::layout::RecordHead;
use tautline_shm::region::PortMemory;

use super::{LinkKind, OutFrame};
use crate::error::PortError;
use crate::memory::MappedPort;
use crate::sys::interface::Interface;

/// Bytes of the largest frame that a link sends or receives: an Ethernet frame without its check
/// sequence, with one VLAN tag. Lower: full frames are cut off. Higher: memory per port grows.
pub(crate) const FRAME_BYTES_MAX: usize = 1518;

/// Bytes of the longest headers before a payload: those of the UDP form on a raw link.
pub(crate) const HEAD_BYTES_MAX: usize = udp::HEADERS_BYTES;

/// The way to one port of one neighbour: everything of a frame that does not change.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub(crate) enum Route {
    /// The Ethernet form.
    Ethernet {
        /// Ethernet header, and room for ours.
        headers: [u8; ethernet::HEADERS_BYTES],
    },
    /// The Ethernet form with a tag.
    Tagged {
        /// Ethernet header with the tag, and room for ours.
        headers: [u8; ethernet::TAGGED_HEADERS_BYTES],
    },
    /// The UDP form with all its headers.
    Udp {
        /// Ethernet, IPv4 and UDP headers, and room for ours.
        template: udp::UdpTemplate,
        /// Whether the type of service carries the priority.
        marks: bool,
    },
    /// The UDP form, through a socket, which writes the other headers.
    Socket {
        /// Where to.
        address: SocketAddrV4,
        /// Room for our header.
        header: [u8; HEADER_BYTES],
    },
}

impl Route {
    /// Largest message that travels in one frame on this way, in bytes.
    #[must_use]
    pub(crate) const fn whole_bytes_max(&self) -> usize {
        match self {
            Self::Ethernet { .. } | Self::Tagged { .. } => WHOLE_BYTES_MAX_ETHERNET,
            Self::Udp { .. } | Self::Socket { .. } => WHOLE_BYTES_MAX_UDP,
        }
    }

    /// Address of the node that it leads to.
    #[inline]
    pub(crate) fn station(&self) -> Station {
        let mac = |headers: &[u8]| {
            let bytes = headers.first_chunk().copied();
            Station::Ethernet(MacAddress(bytes.unwrap_or_default()))
        };
        match self {
            Self::Ethernet { headers } => mac(headers),
            Self::Tagged { headers } => mac(headers),
            Self::Udp { template, .. } => Station::Udp(template.destination_ip()),
            Self::Socket { address, .. } => Station::Udp(*address.ip()),
        }
    }

    /// Writes the fields that differ from frame to frame; the headers of the next frame.
    #[inline]
    pub(crate) fn head(&mut self, header: &Header) -> &[u8] {
        let (headers, ours): (&mut [u8], _) = match self {
            Self::Ethernet { headers } => (headers, ethernet::HEADERS_BYTES - HEADER_BYTES),
            Self::Tagged { headers } => {
                ethernet::set_tag_priority(headers, header.priority);
                (headers, ethernet::TAGGED_HEADERS_BYTES - HEADER_BYTES)
            }
            Self::Udp { template, marks } => {
                if *marks {
                    template.set_type_of_service(type_of_service(header.priority));
                }
                template.set_header(header);
                return &template.bytes;
            }
            Self::Socket { header, .. } => (header, 0),
        };
        if let Some(ours) = headers[ours..].first_chunk_mut() {
            header.emit(ours);
        }
        headers
    }

    /// A frame on this way.
    #[inline]
    pub(crate) fn frame<'a>(&'a mut self, header: &Header, payload: &'a [u8]) -> OutFrame<'a> {
        OutFrame {
            to: self.datagrams_to(),
            priority: header.priority,
            head: self.head(header),
            payload,
        }
    }

    /// The same way, with the priority where switches see it.
    #[must_use]
    pub(crate) fn marked(self, marking: Marking) -> Self {
        match self {
            Self::Ethernet { headers } if marking.pcp => Self::Tagged {
                headers: ethernet::with_tag(&headers, Vlan::NONE),
            },
            Self::Udp { template, .. } => Self::Udp {
                template,
                marks: marking.dscp,
            },
            other => other,
        }
    }

    /// The address of a datagram's receiver, on a way through an ordinary socket.
    pub(crate) const fn datagrams_to(&self) -> Option<SocketAddrV4> {
        match self {
            Self::Socket { address, .. } => Some(*address),
            _ => None,
        }
    }

    /// The Ethernet form from `source` to a neighbour.
    pub(crate) fn ethernet(source: MacAddress, neighbour: &Neighbour, form: EthernetForm) -> Self {
        let mut headers = [0; ethernet::HEADERS_BYTES];
        // The header's own fields are written frame by frame.
        let header = Header::whole(
            PortNumber::MIN,
            PortNumber::MIN,
            tautline_proto::wire::Priority::LOWEST,
            0,
            0,
        );
        ethernet::emit_header(&mut headers, neighbour.mac, source, form.ethertype, &header);
        match form.vlan {
            Vlan::NONE => Self::Ethernet { headers },
            vlan => Self::Tagged {
                headers: ethernet::with_tag(&headers, vlan),
            },
        }
    }

    /// Either form with all headers, as the neighbour's entry says.
    pub(crate) fn on_interface(
        link: LinkKind,
        own: OwnAddress<'_>,
        neighbour: &Neighbour,
        to: PortNumber,
        from: PortNumber,
    ) -> Result<Self, PortError> {
        let OwnAddress { interface, ip, .. } = own;
        if !is_udp_form(neighbour) {
            return Ok(Self::ethernet(interface.mac, neighbour, own.ethernet));
        }
        let lacks = |lacks| PortError::NeighbourIncomplete {
            name: neighbour.name.clone(),
            lacks,
            link: link.name(),
        };
        if neighbour.mac.is_unspecified() {
            return Err(lacks("MAC address (its own, or the router's)"));
        }
        let endpoints = udp::Endpoints {
            destination: neighbour.mac,
            source: interface.mac,
            destination_ip: ip_of(link, neighbour)?,
            source_ip: ip.ok_or_else(|| lacks("use: this node has no IPv4 address,"))?,
        };
        Ok(Self::Udp {
            template: udp::UdpTemplate::new(&endpoints, to, from),
            marks: false,
        })
    }

    /// The UDP form through a socket.
    pub(crate) fn through_socket(
        link: LinkKind,
        neighbour: &Neighbour,
        to: PortNumber,
    ) -> Result<Self, PortError> {
        Ok(Self::Socket {
            address: SocketAddrV4::new(ip_of(link, neighbour)?, to.udp_port()),
            header: [0; HEADER_BYTES],
        })
    }
}

/// Places outside our header that carry the priority of a frame, for switches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Marking {
    /// An 802.1Q tag, in the Ethernet form.
    pub(crate) pcp: bool,
    /// The type of service, in the UDP form on a raw link.
    pub(crate) dscp: bool,
}

/// Where frames come from whose headers the port writes.
#[derive(Clone, Copy)]
pub(crate) struct OwnAddress<'a> {
    pub(crate) interface: &'a Interface,
    pub(crate) ip: Option<std::net::Ipv4Addr>,
    pub(crate) ethernet: EthernetForm,
}

/// The neighbour's IPv4 address, or an error that says that it is missing.
pub(crate) fn ip_of(
    link: LinkKind,
    neighbour: &Neighbour,
) -> Result<std::net::Ipv4Addr, PortError> {
    neighbour.ip.ok_or_else(|| PortError::NeighbourIncomplete {
        name: neighbour.name.as_str().to_owned(),
        lacks: "IPv4 address",
        link: link.name(),
    })
}

/// Whether frames to this neighbour take the UDP form on a raw link.
pub(crate) fn is_udp_form(neighbour: &Neighbour) -> bool {
    neighbour.form == Form::Udp
}

/// Where a frame is put together. One a port, so that sending allocates nothing.
#[derive(Debug)]
pub(crate) struct FrameBuffer {
    bytes: Box<[u8; FRAME_BYTES_MAX]>,
}

impl FrameBuffer {
    pub(crate) fn new() -> Self {
        Self {
            bytes: Box::new([0; FRAME_BYTES_MAX]),
        }
    }

    /// A frame in one piece.
    #[inline(always)]
    pub(crate) fn whole<'a>(&'a mut self, frame: &OutFrame<'a>) -> &'a [u8] {
        let OutFrame { head, payload, .. } = *frame;
        if head.is_empty() {
            return payload;
        }
        // Of a length that the compiler knows, no call copies them.
        let is_copied = self.copy_head::<{ ethernet::HEADERS_BYTES }>(head)
            || self.copy_head::<{ udp::HEADERS_BYTES }>(head)
            || self.copy_head::<{ ethernet::TAGGED_HEADERS_BYTES }>(head);
        if !is_copied {
            self.bytes[..head.len()].copy_from_slice(head);
        }
        let bytes = head.len() + payload.len();
        self.bytes[head.len()..bytes].copy_from_slice(payload);
        &self.bytes[..bytes]
    }

    /// Copies headers of this length; whether they are.
    #[inline(always)]
    fn copy_head<const N: usize>(&mut self, head: &[u8]) -> bool {
        let (Some(room), Ok(head)) = (self.bytes.first_chunk_mut(), <&[u8; N]>::try_from(head))
        else {
            return false;
        };
        *room = *head;
        true
    }
}

/// A payload with room before it for the headers of its frame, so that it can be sent from where it lies.
#[derive(Debug)]
pub(crate) struct PlacedPayload<'b> {
    bytes: &'b mut [u8],
}

impl<'b> PlacedPayload<'b> {
    /// A payload that lies [`HEAD_BYTES_MAX`] after the beginning of `bytes` and ends where they end.
    #[inline]
    pub(crate) fn new(bytes: &'b mut [u8]) -> Self {
        assert!(bytes.len() >= HEAD_BYTES_MAX);
        Self { bytes }
    }

    /// The payload as a frame: the headers are put before it.
    #[inline]
    pub(crate) fn frame(&mut self, route: &mut Route, header: &Header) -> OutFrame<'_> {
        let to = route.datagrams_to();
        let head = route.head(header);
        let start = HEAD_BYTES_MAX - head.len();
        self.bytes[start..HEAD_BYTES_MAX].copy_from_slice(head);
        OutFrame {
            to,
            ..OutFrame::whole(&self.bytes[start..], header.priority)
        }
    }
}

/// Puts a frame that reached the process into its port, as the BPF demux would.
pub(crate) fn deliver_frame(
    memory: &MappedPort,
    arrival: Instant,
    source: u64,
    header: &Header,
    payload: &[u8],
) {
    let mut bytes = [0; tautline_proto::wire::HEADER_BYTES];
    header.emit(&mut bytes);
    let head = RecordHead {
        arrival_ns: arrival.as_nanos(),
        source,
        header: bytes,
    };
    let arriving = Arriving {
        class: header.priority.index(),
        single: header.is_plain_message(),
        sequence: header.sequence,
        source_port: header.source.get(),
    };
    deliver(memory.port(), arriving, &head, payload);
}

#[cfg(test)]
mod tests {
    use tautline_proto::wire::Priority;

    use super::*;

    fn neighbour(form: Form) -> Neighbour {
        Neighbour {
            name: "peer".to_owned(),
            mac: MacAddress([2, 0, 0, 0, 0, 2]),
            ip: Some([10, 0, 0, 2].into()),
            form,
        }
    }

    fn header(priority: Priority) -> Header {
        Header::whole(PortNumber::MIN, PortNumber::MIN, priority, 4, 9)
    }

    /// A frame with four bytes of payload, put together in a port's buffer and where the payload lies.
    fn whole(route: &mut Route, header: &Header) -> Vec<u8> {
        let frame = route.frame(header, b"data");
        let whole = FrameBuffer::new().whole(&frame).to_vec();
        let mut bytes = [[0; HEAD_BYTES_MAX].as_slice(), b"data"].concat();
        let placed = PlacedPayload::new(&mut bytes)
            .frame(route, header)
            .payload
            .to_vec();
        assert_eq!(placed, whole);
        whole
    }

    #[test]
    fn a_marked_frame_carries_its_priority_in_a_tag_and_is_otherwise_the_same() {
        let own = MacAddress([2, 0, 0, 0, 0, 1]);
        let mut plain = Route::ethernet(own, &neighbour(Form::Ethernet), EthernetForm::of(0x88B5));
        let marking = Marking {
            pcp: true,
            dscp: false,
        };
        let mut marked = plain.clone().marked(marking);
        for priority in Priority::ALL {
            let header = header(priority);
            let plain = whole(&mut plain, &header);
            let tag = [0x81, 0, priority.get() << 5, 0];
            let expected = [&plain[..12], &tag, &plain[12..]].concat();
            let frame = whole(&mut marked, &header);
            assert_eq!(frame, expected);
            let parsed = ethernet::parse(&frame, 0x88B5).unwrap();
            assert_eq!((parsed.header, parsed.payload), (header, &b"data"[..]));
        }
    }

    #[test]
    fn a_marked_datagram_carries_its_priority_in_the_type_of_service() {
        let endpoints = udp::Endpoints {
            destination: MacAddress([2, 0, 0, 0, 0, 2]),
            source: MacAddress([2, 0, 0, 0, 0, 1]),
            destination_ip: [10, 0, 0, 2].into(),
            source_ip: [10, 0, 0, 1].into(),
        };
        let template = udp::UdpTemplate::new(&endpoints, PortNumber::MIN, PortNumber::MIN);
        for dscp in [false, true] {
            let route = Route::Udp {
                template: template.clone(),
                marks: false,
            };
            let mut route = route.marked(Marking { pcp: true, dscp });
            for priority in Priority::ALL {
                let header = header(priority);
                let frame = whole(&mut route, &header);
                assert_eq!(frame[15], if dscp { priority.get() << 5 } else { 0 });
                assert_eq!(udp::parse(&frame).unwrap().header, header);
            }
        }
    }
}
