//! The `xsk` link: AF_XDP sockets both ways. A BPF program (`bpf/xsk.bpf.c`) hands the frames of open
//! ports to the node's socket of the queue; whichever port looks next brings them into the memory of the
//! port that they are for. With a driver that can, frames are not copied between it and this process.
//!
//! One socket for each queue, because the kernel allows one set of memory for each; so ports of a
//! node share it, under a lock that is held for as long as some frames take. A port that finds
//! the lock held leaves the work to the thread that has it: its own frames are brought too.

mod queues;

mod port;
mod rx_queue;

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use aya::Ebpf;
use aya::maps::{Map, XskMap};
use tautline_proto::ip::receive::Own;
use tautline_proto::neighbour::Neighbour;
use tautline_proto::wire::{PORT_MAX, PortKey, PortNumber};

use self::port::XskPort;
use self::queues::Opener;
use self::rx_queue::{Maps, Shared};
use super::bpf::counters::Counters;
use super::bpf::demux::{Setup, attach};
use super::bpf::map_indices::MapIndices;
use super::bpf::tap::TapRing;
use super::frame::OwnAddress;
use super::{
    ArrivalClock, Capabilities, Link, LinkKind, NodeCounters, PlainUdp, PortHalf, PortRequest,
    RawFrames, Route,
};
use crate::error::{OpenError, PortError};
use crate::sys::memory::Mapping;
use crate::sys::xsk::{Copies, XskSocket};

type Error = Box<dyn std::error::Error + Send + Sync>;

/// The node's half.
#[derive(Debug)]
pub(crate) struct XskLink {
    setup: Setup,
    zero_copy: bool,
    shared: Arc<Shared>,
}

impl XskLink {
    /// Attaches the program and takes all queues of the interface.
    ///
    /// # Errors
    /// [`OpenError::HiddenTags`], [`OpenError::XdpTaken`], [`OpenError::NoXdp`], [`OpenError::NotPermitted`],
    /// [`OpenError::Refused`], and those of [`Opener::open`].
    pub(crate) fn new(setup: Setup) -> Result<Self, OpenError> {
        let refused = |doing: &str, source: Error| OpenError::Refused {
            doing: format!("{doing} on `{}`", setup.name),
            source,
        };
        setup.check_tags()?;
        let mut ebpf = setup.load_object(tautline_bpf::XSK)?;
        // Before the sockets: another program here is named, which a queue's EBUSY is not.
        let attached = attach(&mut ebpf, "tautline_xsk", &setup)?;
        let queues = Opener { setup: &setup }.open()?;
        let maps = show(&mut ebpf, &queues)
            .map_err(|error| refused("showing the AF_XDP sockets to the program", error))?;
        let own = setup.ip.map(|ip| Own {
            ip,
            broadcast: setup.interface.broadcast(ip),
        });
        let zero_copy = queues.iter().all(|queue| queue.copies() == Copies::Zero);
        let shared = Shared::new(queues, maps, setup.ethernet, own, (attached, ebpf))
            .map_err(|error| refused("waiting for AF_XDP sockets", error.into()))?;
        Ok(Self {
            zero_copy,
            shared: Arc::new(shared),
            setup,
        })
    }
}

/// Gives the program its sockets, and takes what it shares with us.
fn show(ebpf: &mut Ebpf, queues: &[XskSocket]) -> Result<Maps, Error> {
    let sockets = ebpf
        .map_mut("sockets")
        .ok_or("the program has no sockets")?;
    let mut sockets = XskMap::try_from(sockets)?;
    for (queue, socket) in queues.iter().enumerate() {
        sockets.set(queue as u32, socket.socket(), 0)?;
    }
    let bytes = (usize::from(PORT_MAX) + 1) * size_of::<u64>();
    Ok(Maps {
        open_ports: Mapping::shared(array(ebpf, "open_ports")?, bytes, 0)?,
        places: MapIndices::map(array(ebpf, "udp_ports")?, array(ebpf, "raw_types")?)?,
        counters: Counters::map(array(ebpf, "node_counters")?)?,
        tap: TapRing::map(array(ebpf, "tap")?)?,
    })
}

/// An array of the program's.
fn array<'e>(ebpf: &'e Ebpf, name: &str) -> Result<BorrowedFd<'e>, Error> {
    match ebpf.map(name) {
        Some(Map::Array(array)) => Ok(array.fd().as_fd()),
        _ => Err(format!("the program has no array `{name}`").into()),
    }
}

impl Link for XskLink {
    fn kind(&self) -> LinkKind {
        LinkKind::Xsk
    }

    fn capabilities(&self) -> Capabilities {
        // In this process one copy each way; in copy mode the kernel makes one more.
        let kernel = u8::from(!self.zero_copy);
        let copies = super::Copies {
            send: 1 + kernel,
            // The node's send buffers are not in the sockets' memory.
            send_lent: 1 + kernel,
            receive: 2 + kernel,
            receive_lent: 1 + kernel,
        };
        let capabilities = Capabilities {
            arrival_clock: ArrivalClock::Demux,
            xdp_mode: Some(self.setup.mode),
            copies,
            // Our headers are put before a datagram in the port's own memory.
            udp_copies: Some(super::Copies {
                send: 2 + kernel,
                ..copies
            }),
            zero_copy: Some(self.zero_copy),
            plain_udp: PlainUdp::PastTheStack,
            raw_frames: RawFrames::PastTheStack,
            ..Capabilities::SOCKETS
        };
        capabilities.with_address(self.setup.ip)
    }

    fn open_port(&self, request: PortRequest) -> Result<PortHalf, PortError> {
        let link = self.kind().name();
        match request.key {
            PortKey::Udp(_) if self.setup.ip.is_none() => Err(PortError::NoAddress { link }),
            _ => Ok(PortHalf::frames(XskPort::open(self, &request)?)),
        }
    }

    fn route(
        &self,
        neighbour: &Neighbour,
        to: PortNumber,
        from: PortNumber,
    ) -> Result<Route, PortError> {
        let own = OwnAddress {
            interface: &self.setup.interface,
            ip: self.setup.ip,
            ethernet: self.setup.ethernet,
        };
        Route::on_interface(self.kind(), own, neighbour, to, from)
    }

    fn counters(&self) -> NodeCounters {
        self.shared.counters()
    }
}
