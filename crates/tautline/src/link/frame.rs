//! Building the frames that links send, and taking apart those that reach the process.

use std::net::SocketAddrV4;

use tautline_proto::neighbour::{Form, Neighbour};
use tautline_proto::time::Instant;
use tautline_proto::wire::{
    Header, MacAddress, PortNumber, WHOLE_BYTES_MAX_ETHERNET, WHOLE_BYTES_MAX_UDP, ethernet, udp,
};
use tautline_shm::deliver::{Arriving, deliver};
use tautline_shm::layout::RecordHead;
use tautline_shm::region::PortMemory;

use super::LinkKind;
use crate::error::PortError;
use crate::memory::MappedPort;

/// Bytes of the largest frame that a link sends or receives: an Ethernet frame without its check
/// sequence, with one VLAN tag. Lower: full frames are cut off. Higher: memory per port grows.
pub(crate) const FRAME_BYTES_MAX: usize = 1518;

/// The way to one port of one neighbour: everything of a frame that does not change.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Route {
    /// The Ethernet form, on a raw link.
    Ethernet {
        /// Ethernet header, and room for ours.
        headers: [u8; ethernet::HEADERS_BYTES],
    },
    /// The UDP form, on a raw link: all headers are ours to write.
    UdpRaw {
        /// Ethernet, IPv4 and UDP headers, and room for ours.
        template: udp::UdpTemplate,
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
    pub const fn whole_bytes_max(&self) -> usize {
        match self {
            Self::Ethernet { .. } => WHOLE_BYTES_MAX_ETHERNET,
            Self::UdpRaw { .. } | Self::Udp { .. } => WHOLE_BYTES_MAX_UDP,
        }
    }

    /// The Ethernet form from `source` to a neighbour.
    pub(crate) fn ethernet(source: MacAddress, neighbour: &Neighbour, ethertype: u16) -> Self {
        let mut headers = [0; ethernet::HEADERS_BYTES];
        // The header's own fields are written frame by frame.
        let header = Header::whole(
            PortNumber::MIN,
            PortNumber::MIN,
            tautline_proto::wire::Priority::LOWEST,
            0,
            0,
        );
        ethernet::emit_header(&mut headers, neighbour.mac, source, ethertype, &header);
        Self::Ethernet { headers }
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
    /// on a UDP one.
    #[inline]
    pub(crate) fn build(&mut self, route: &mut Route, header: &Header, payload: &[u8]) -> &[u8] {
        match route {
            Route::Ethernet { headers } => {
                if let Some(ours) = headers.last_chunk_mut() {
                    header.emit(ours);
                }
                self.join(headers, payload)
            }
            Route::UdpRaw { template } => {
                template.set_header(header);
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
    fn join(&mut self, headers: &[u8], payload: &[u8]) -> &[u8] {
        let bytes = headers.len() + payload.len();
        self.bytes[..headers.len()].copy_from_slice(headers);
        self.bytes[headers.len()..bytes].copy_from_slice(payload);
        &self.bytes[..bytes]
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
        fragment: !header.is_whole(),
        sequence: header.sequence,
        source_port: header.source.get(),
    };
    deliver(memory.port(), arriving, &head, payload);
}
