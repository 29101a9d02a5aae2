//! Building the frames that links send, and taking apart those that reach the process.

use std::net::SocketAddrV4;
use std::os::fd::BorrowedFd;

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

use super::LinkKind;
use crate::error::{PortError, SendError};
use crate::memory::MappedPort;
use crate::sys::interface::Interface;
use crate::sys::socket::{self, Pieces, SEND_MANY_MAX};

/// Bytes of the largest frame that a link sends or receives: an Ethernet frame without its check
/// sequence, with one VLAN tag. Lower: full frames are cut off. Higher: memory per port grows.
pub(crate) const FRAME_BYTES_MAX: usize = 1518;

/// Bytes of the longest headers before a payload: those of the UDP form on a raw link.
pub(crate) const HEAD_BYTES_MAX: usize = udp::HEADERS_BYTES;

/// The way to one port of one neighbour: everything of a frame that does not change.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub(crate) enum Route {
    /// The Ethernet form, on a raw link.
    Ethernet {
        /// Ethernet header, and room for ours.
        headers: [u8; ethernet::HEADERS_BYTES],
    },
    /// The Ethernet form with a tag.
    Tagged {
        /// Ethernet header with the tag, and room for ours.
        headers: [u8; ethernet::TAGGED_HEADERS_BYTES],
    },
    /// The UDP form, on a raw link: all headers are ours to write.
    UdpRaw {
        /// Ethernet, IPv4 and UDP headers, and room for ours.
        template: udp::UdpTemplate,
        /// Whether the type of service carries the priority.
        marks: bool,
    },
    /// The UDP form, through a socket.
    Udp {
        /// Where to.
        address: SocketAddrV4,
    },
}

impl Route {
    /// Largest message that travels in one frame on this way, in bytes.
    #[must_use]
    pub(crate) const fn whole_bytes_max(&self) -> usize {
        match self {
            Self::Ethernet { .. } | Self::Tagged { .. } => WHOLE_BYTES_MAX_ETHERNET,
            Self::UdpRaw { .. } | Self::Udp { .. } => WHOLE_BYTES_MAX_UDP,
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
            Self::UdpRaw { template, .. } => Station::Udp(template.destination_ip()),
            Self::Udp { address } => Station::Udp(*address.ip()),
        }
    }

    /// Writes everything that comes before the payload; how many bytes that is.
    pub(crate) fn head(&self, header: &Header, into: &mut [u8; HEAD_BYTES_MAX]) -> usize {
        let mut ours = [0; HEADER_BYTES];
        let outer: &[u8] = match self {
            Self::Ethernet { headers } => &headers[..headers.len() - HEADER_BYTES],
            Self::Tagged { headers } => {
                into[..headers.len()].copy_from_slice(&tagged(headers, header));
                return headers.len();
            }
            Self::UdpRaw { template, marks } => {
                let mut template = template.clone();
                set_header(&mut template, *marks, header);
                into[..template.bytes.len()].copy_from_slice(&template.bytes);
                return template.bytes.len();
            }
            Self::Udp { .. } => &[],
        };
        header.emit(&mut ours);
        into[..outer.len()].copy_from_slice(outer);
        into[outer.len()..][..HEADER_BYTES].copy_from_slice(&ours);
        outer.len() + HEADER_BYTES
    }

    /// The same way, with the priority where switches see it.
    #[must_use]
    pub(crate) fn marked(self, marking: Marking) -> Self {
        match self {
            Self::Ethernet { headers } if marking.pcp => Self::Tagged {
                headers: ethernet::with_tag(&headers, Vlan::NONE),
            },
            Self::UdpRaw { template, .. } => Self::UdpRaw {
                template,
                marks: marking.dscp,
            },
            other => other,
        }
    }

    /// The address of a datagram's receiver, on a way through an ordinary socket.
    pub(crate) const fn datagrams_to(&self) -> Option<SocketAddrV4> {
        match self {
            Self::Udp { address } => Some(*address),
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

    /// Either form on a raw link, as the neighbour's entry says.
    pub(crate) fn raw(
        link: LinkKind,
        own: RawAddress<'_>,
        neighbour: &Neighbour,
        to: PortNumber,
        from: PortNumber,
    ) -> Result<Self, PortError> {
        let RawAddress { interface, ip, .. } = own;
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
        Ok(Self::UdpRaw {
            template: udp::UdpTemplate::new(&endpoints, to, from),
            marks: false,
        })
    }

    /// The UDP form through a socket.
    pub(crate) fn udp(
        link: LinkKind,
        neighbour: &Neighbour,
        to: PortNumber,
    ) -> Result<Self, PortError> {
        Ok(Self::Udp {
            address: SocketAddrV4::new(ip_of(link, neighbour)?, to.udp_port()),
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

/// Headers with a tag, complete for a frame.
#[inline]
fn tagged(
    headers: &[u8; ethernet::TAGGED_HEADERS_BYTES],
    header: &Header,
) -> [u8; ethernet::TAGGED_HEADERS_BYTES] {
    let mut headers = *headers;
    ethernet::set_tag_priority(&mut headers, header.priority);
    if let Some(ours) = headers.last_chunk_mut() {
        header.emit(ours);
    }
    headers
}

#[inline]
fn set_header(template: &mut udp::UdpTemplate, marks: bool, header: &Header) {
    if marks {
        template.set_type_of_service(type_of_service(header.priority));
    }
    template.set_header(header);
}

/// Where frames of a raw link come from.
#[derive(Clone, Copy)]
pub(crate) struct RawAddress<'a> {
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

    /// The bytes to hand to the link's socket: a whole frame on a raw way, a datagram's payload
    /// on a UDP one. Inlined always: as a call of its own it takes as many instructions again as the headers do.
    #[inline(always)]
    pub(crate) fn build(&mut self, route: &mut Route, header: &Header, payload: &[u8]) -> &[u8] {
        match route {
            Route::Ethernet { headers } => {
                if let Some(ours) = headers.last_chunk_mut() {
                    header.emit(ours);
                }
                self.join(headers, payload)
            }
            Route::Tagged { headers } => self.join(&tagged(headers, header), payload),
            Route::UdpRaw { template, marks } => {
                set_header(template, *marks, header);
                self.join(&template.bytes, payload)
            }
            Route::Udp { .. } => {
                let mut ours = [0; tautline_proto::wire::HEADER_BYTES];
                header.emit(&mut ours);
                self.join(&ours, payload)
            }
        }
    }

    #[inline]
    fn join<const N: usize>(&mut self, headers: &[u8; N], payload: &[u8]) -> &[u8] {
        let bytes = N + payload.len();
        // Of a length that the compiler knows, so that no call copies it.
        if let Some(room) = self.bytes.first_chunk_mut() {
            *room = *headers;
        }
        self.bytes[N..bytes].copy_from_slice(payload);
        &self.bytes[..bytes]
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

    /// Its bytes.
    #[inline]
    #[must_use]
    pub(crate) fn payload(&self) -> &[u8] {
        &self.bytes[HEAD_BYTES_MAX..]
    }

    /// The bytes to hand to the link's socket, as [`FrameBuffer::build`], the headers put before the payload.
    #[inline]
    pub(crate) fn frame(&mut self, route: &Route, header: &Header) -> &[u8] {
        let mut head = [0; HEAD_BYTES_MAX];
        let head_bytes = route.head(header, &mut head);
        let start = HEAD_BYTES_MAX - head_bytes;
        self.bytes[start..HEAD_BYTES_MAX].copy_from_slice(&head[..head_bytes]);
        &self.bytes[start..]
    }
}

/// A frame that is to be sent with others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OutFrame<'a> {
    /// The way.
    pub route: &'a Route,
    /// Its header.
    pub header: Header,
    /// Its payload.
    pub payload: &'a [u8],
}

/// Sends several frames through one socket with one system call for each [`SEND_MANY_MAX`] of them: the
/// headers are put together here, the kernel takes the payloads from where they are. All ways are of
/// the kind that the socket serves. How many, from the first on, were taken: at least one.
pub(crate) fn send_frames(
    socket: BorrowedFd<'_>,
    frames: &[OutFrame<'_>],
) -> Result<usize, SendError> {
    Ok(with_pieces(frames, |pieces| {
        socket::send_many(socket, pieces)
    })?)
}

/// Calls `send` with up to [`SEND_MANY_MAX`] frames, their headers put together.
pub(crate) fn with_pieces<R>(frames: &[OutFrame<'_>], send: impl FnOnce(&[Pieces<'_>]) -> R) -> R {
    let mut heads = [[0; HEAD_BYTES_MAX]; SEND_MANY_MAX];
    let mut bytes = [0; SEND_MANY_MAX];
    let count = frames.len().min(SEND_MANY_MAX);
    for (index, frame) in frames[..count].iter().enumerate() {
        bytes[index] = frame.route.head(&frame.header, &mut heads[index]);
    }
    let pieces = std::array::from_fn::<_, SEND_MANY_MAX, _>(|index| match frames.get(index) {
        Some(frame) => Pieces {
            head: &heads[index][..bytes[index]],
            rest: frame.payload,
            to: frame.route.datagrams_to(),
        },
        None => Pieces {
            head: &[],
            rest: &[],
            to: None,
        },
    });
    send(&pieces[..count])
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
            let plain = FrameBuffer::new()
                .build(&mut plain, &header, b"data")
                .to_vec();
            let tag = [0x81, 0, priority.get() << 5, 0];
            let expected = [&plain[..12], &tag, &plain[12..]].concat();
            let frame = FrameBuffer::new()
                .build(&mut marked, &header, b"data")
                .to_vec();
            assert_eq!(frame, expected);
            let mut head = [0; HEAD_BYTES_MAX];
            let bytes = marked.head(&header, &mut head);
            assert_eq!(head[..bytes], expected[..expected.len() - 4]);
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
            let route = Route::UdpRaw {
                template: template.clone(),
                marks: false,
            };
            let mut route = route.marked(Marking { pcp: true, dscp });
            for priority in Priority::ALL {
                let header = header(priority);
                let frame = FrameBuffer::new()
                    .build(&mut route, &header, b"data")
                    .to_vec();
                assert_eq!(frame[15], if dscp { priority.get() << 5 } else { 0 });
                assert_eq!(udp::parse(&frame).unwrap().header, header);
            }
        }
    }
}
