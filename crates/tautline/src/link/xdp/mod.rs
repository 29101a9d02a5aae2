//! The `xdp` link: the BPF demux (`bpf/demux.bpf.c`) delivers into the port's own memory; frames
//! leave through a packet socket past the queueing discipline. Reading costs no system call.
//! The demux belongs to this process, or to a control process that hands ports to several (`control`).

mod port;

pub use super::bpf::demux::{Verified, try_demux};

use std::net::Ipv4Addr;
use std::sync::Arc;

use tautline_proto::neighbour::Neighbour;
use tautline_proto::wire::ethernet::EthernetForm;
use tautline_proto::wire::{PortKey, PortNumber};

use self::port::XdpPort;
use super::bpf::DemuxOwner;
use super::bpf::demux::{Demux, Setup, program_name};
use super::frame::OwnAddress;
use super::{
    ArrivalClock, Capabilities, ControlProcess, Copies, Link, LinkKind, NodeCounters, PlainUdp,
    PortHalf, PortRequest, RawFrames, Route, XdpMode,
};
use crate::error::{OpenError, PortError};
use crate::sys::interface::{self, Interface};

/// The node's half.
#[derive(Debug)]
pub(crate) struct XdpLink {
    interface: Interface,
    ip: Option<Ipv4Addr>,
    ethernet: EthernetForm,
    mode: XdpMode,
    control_process: Option<i32>,
    owner: Arc<dyn DemuxOwner>,
}

impl XdpLink {
    /// A link with a demux of this process's own.
    ///
    /// # Errors
    /// [`OpenError::XdpTaken`], [`OpenError::NotPermitted`], [`OpenError::Refused`].
    pub(crate) fn attach(setup: Setup) -> Result<Self, OpenError> {
        let (ip, mode) = (setup.ip, setup.mode);
        let demux = Demux::attach(setup.clone())?;
        Ok(Self::of(setup, (ip, mode), None, Arc::new(demux)))
    }

    /// A link with the demux of `owner`, which has this address and mode, in `control_process` if that is another one.
    pub(crate) fn of(
        setup: Setup,
        (ip, mode): (Option<Ipv4Addr>, XdpMode),
        control_process: Option<i32>,
        owner: Arc<dyn DemuxOwner>,
    ) -> Self {
        Self {
            interface: setup.interface,
            ip,
            ethernet: setup.ethernet,
            mode,
            control_process,
            owner,
        }
    }
}

/// Modes of the demux on an interface, the best first. Where frames lie in packet buffers anyway, native mode only
/// costs: everybody's frames are copied, and TCP loses its offloads (decision 0105). It is still the first where polls
/// are to run in threads (`has_poll_threads`): a veth has none otherwise. Generic mode comes after traffic control: the
/// kernel moves each packet of a card into a new buffer with the room in front that XDP promises (decision 0125).
pub(crate) fn modes_on(interface: &Interface, has_poll_threads: bool) -> [XdpMode; 3] {
    match interface.has_packets && !has_poll_threads {
        true => [XdpMode::Tc, XdpMode::Generic, XdpMode::Native],
        false => XdpMode::ALL,
    }
}

/// Another XDP program on the interface of a demux at traffic control, for the report.
pub(crate) fn seen_first(mode: XdpMode, interface: &Interface) -> Option<String> {
    let id = interface::xdp_program(interface.index).ok().flatten();
    let id = id.filter(|_| mode == XdpMode::Tc)?;
    let name = program_name(id).unwrap_or_else(|| "without a name".to_owned());
    Some(format!(
        "the XDP program {name} (id {id}) has the interface and sees frames first: what it takes does not arrive here"
    ))
}

/// The demux copies into the port's memory; on the way out, the kernel into its packet.
const COPIES: Copies = Copies {
    send: 2,
    send_lent: 1,
    receive: 2,
    receive_lent: 1,
};

/// Capabilities of the link in this mode, and with this address if there is one.
pub(crate) fn capabilities(mode: XdpMode, ip: Option<Ipv4Addr>) -> Capabilities {
    let capabilities = Capabilities {
        arrival_clock: ArrivalClock::Demux,
        xdp_mode: Some(mode),
        delivered_by_kernel: true,
        copies: COPIES,
        udp_copies: Some(COPIES),
        plain_udp: PlainUdp::PastTheStack,
        raw_frames: RawFrames::PastTheStack,
        ..Capabilities::SOCKETS
    };
    capabilities.with_address(ip)
}

impl Link for XdpLink {
    fn kind(&self) -> LinkKind {
        LinkKind::Xdp
    }

    fn capabilities(&self) -> Capabilities {
        capabilities(self.mode, self.ip)
    }

    fn control_process(&self) -> Option<ControlProcess> {
        let ip = self.ip;
        self.control_process.map(|pid| ControlProcess { pid, ip })
    }

    fn open_port(&self, request: PortRequest) -> Result<PortHalf, PortError> {
        if let (PortKey::Udp(_), None) = (request.key, self.ip) {
            let link = self.kind().name();
            return Err(PortError::NoAddress { link });
        }
        Ok(PortHalf::frames(XdpPort::open(self, request)?))
    }

    fn route(
        &self,
        neighbour: &Neighbour,
        to: PortNumber,
        from: PortNumber,
    ) -> Result<Route, PortError> {
        let own = OwnAddress {
            interface: &self.interface,
            ip: self.ip,
            ethernet: self.ethernet,
        };
        Route::on_interface(self.kind(), own, neighbour, to, from)
    }

    fn shared_neighbours(&self) -> Option<Vec<Neighbour>> {
        self.owner.neighbours()
    }

    fn counters(&self) -> NodeCounters {
        self.owner.counters()
    }
}
