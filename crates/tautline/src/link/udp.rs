//! The `udp` link: ordinary UDP sockets. No privilege, any network that IP reaches, the kernel's
//! latency. It speaks the UDP form of the wire format.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;

use tautline_proto::neighbour::Neighbour;
use tautline_proto::wire::{PortKey, PortNumber, WHOLE_BYTES_MAX_UDP};

use super::plain_udp::bind;
use super::socket::{Counters, SocketForm, SocketParts, SocketPort, udp_socket};
use super::{Capabilities, Link, LinkKind, NodeCounters, PortHalf, PortRequest, RawFrames, Route};
use crate::error::PortError;

/// The node's half.
#[derive(Debug)]
pub(crate) struct UdpLink {
    ip: Ipv4Addr,
    counters: Arc<Counters>,
}

impl UdpLink {
    /// A link whose ports are bound to `ip`.
    pub(crate) fn new(ip: Ipv4Addr) -> Self {
        Self {
            ip,
            counters: Arc::default(),
        }
    }
}

impl Link for UdpLink {
    fn kind(&self) -> LinkKind {
        LinkKind::Udp
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            ethernet_form: false,
            whole_bytes_max: WHOLE_BYTES_MAX_UDP,
            raw_frames: RawFrames::None,
            ..Capabilities::SOCKETS
        }
    }

    fn open_port(&self, request: PortRequest) -> Result<PortHalf, PortError> {
        let PortRequest { key, shape, .. } = request;
        let datagrams = match key {
            PortKey::Message(port) => (udp_socket(self.ip, port)?, SocketForm::Udp { port }),
            PortKey::Udp(port) => {
                let local = SocketAddrV4::new(self.ip, port.get());
                (bind(local, key)?, SocketForm::Datagrams { local })
            }
            PortKey::Raw(_) => return Err(request.not_offered(self.kind().name())),
        };
        let parts = SocketParts {
            datagrams: Some(datagrams),
            ..SocketParts::default()
        };
        let port = SocketPort::new(parts, (shape, key.number()), &self.counters)?;
        Ok(PortHalf::frames(port))
    }

    fn route(
        &self,
        neighbour: &Neighbour,
        to: PortNumber,
        _from: PortNumber,
    ) -> Result<Route, PortError> {
        Route::through_socket(LinkKind::Udp, neighbour, to)
    }

    fn counters(&self) -> NodeCounters {
        self.counters.read()
    }
}
