//! The short path of `taut exec --interface`: while a thread of an unmodified program looks, the next datagram for its
//! socket comes into mapped memory, and not to the socket (`bpf/look.bpf.c`). The command attaches the program and
//! hands its descriptors to the one that it starts. It needs no node and no demux; several of them, and a demux, are on
//! an interface beside one another.

use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};

use aya::EbpfLoader;
use aya::maps::{Map, MapData};
use aya::programs::SchedClassifier;

use super::demux::{not_loaded, program};
use crate::error::OpenError;
use crate::kernel;
use crate::sys::{bpf, interface};

/// The program on an interface, and its maps: `struct tl_look` of `bpf/tautline.h`.
#[derive(Debug)]
pub struct ShortPath {
    /// The places, the place of each UDP port, the place of each socket, and the link: as long as a process holds it
    /// the program is on the interface.
    pub descriptors: [OwnedFd; 4],
    /// Address of the interface: datagrams to others are the sockets'.
    pub address: Ipv4Addr,
    /// Whether what arrives may never have been on a wire, so that a checksum may be left for a card to finish.
    pub is_virtual: bool,
}

impl ShortPath {
    /// Attaches the program to an interface, at traffic control (Linux 6.6 and later).
    ///
    /// # Errors
    /// [`OpenError::KernelLacks`], [`OpenError::NotPermitted`], [`OpenError::ProgramRefused`], [`OpenError::Refused`];
    /// [`OpenError::WithoutBpf`] in a build without BPF programs.
    pub fn attach(name: &str) -> Result<Self, OpenError> {
        let refused = |doing: &str, source| OpenError::Refused {
            doing: doing.to_owned(),
            source,
        };
        let found = interface::query(name)
            .map_err(|error| refused(&format!("asking for interface `{name}`"), error.into()))?;
        let address = found.ip.ok_or_else(|| {
            let why = "it has no IPv4 address".into();
            refused(&format!("looking beside the sockets of `{name}`"), why)
        })?;
        if let Some(feature) = kernel::missing_for_tc() {
            return Err(OpenError::KernelLacks {
                link: "tc",
                lacks: feature.name,
                since: feature.since,
            });
        }
        let [first, second] = [address, found.broadcast(address)].map(|one| one.octets());
        let mut network = [0; 8];
        network[..4].copy_from_slice(&first);
        network[4..].copy_from_slice(&second);
        let mut ebpf = EbpfLoader::new()
            .override_global("network", &network, true)
            .load(tautline_bpf::LOOK.ok_or(OpenError::WithoutBpf)?)
            .map_err(|error| not_loaded(error.into()))?;
        let program: &mut SchedClassifier = program(&mut ebpf, "tautline_look")?
            .try_into()
            .map_err(|error: aya::programs::ProgramError| not_loaded(error.into()))?;
        program.load().map_err(|error| not_loaded(error.into()))?;
        let loaded = program.fd().map_err(|error| not_loaded(error.into()))?;
        let link = bpf::attach_tcx(loaded.as_fd(), found.index)
            .map_err(|error| refused(&format!("attaching to `{name}`"), error.into()))?;
        let mut map = |name: &str| -> Result<OwnedFd, OpenError> {
            let map = ebpf.take_map(name).and_then(data_of);
            let map = map.ok_or_else(|| not_loaded(format!("there is no map `{name}`").into()))?;
            let copy = map.fd().as_fd().try_clone_to_owned();
            copy.map_err(|error| not_loaded(error.into()))
        };
        Ok(Self {
            descriptors: [map("places")?, map("place_of_port")?, map("sockets")?, link],
            address,
            is_virtual: found.is_virtual || address.is_loopback(),
        })
    }
}

fn data_of(map: Map) -> Option<MapData> {
    match map {
        Map::Array(data) | Map::SkStorage(data) => Some(data),
        _ => None,
    }
}
