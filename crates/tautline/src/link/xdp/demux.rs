//! Who owns the demux of an interface: loads it, attaches it, and makes ports that it delivers to. Not
//! what reads them: that is a port's own business, in whatever process it is.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};

use aya::maps::{ArrayOfMaps, Map, MapData, MapError};
use aya::programs::links::FdLink;
use aya::programs::{ProgramError, Xdp};
use aya::{Ebpf, EbpfLoader};
use aya_obj::generated::bpf_map_type::{self, BPF_MAP_TYPE_ARRAY, BPF_MAP_TYPE_RINGBUF};
use tautline_proto::wire::PortNumber;
use tautline_shm::layout::SLOT_BYTES;
use tautline_shm::region::Shape;

use super::counters::Counters;
use super::{DemuxOwner, PortParts, doorbell};
use crate::error::{OpenError, PortError};
use crate::link::packet::claim;
use crate::link::{NodeCounters, XdpMode};
use crate::memory::MappedPort;
use crate::sys::interface::{self, Interface};
use crate::sys::{bpf, packet};

const DEMUX: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/demux.bpf.o"));

/// Flags of a port's map: `BPF_F_MMAPABLE`, so that the process reads it without system calls, and
/// `BPF_F_INNER_MAP`, so that ports of different depth fit one map of ports.
const PORT_MAP_FLAGS: u32 = 1 << 10 | 1 << 12;

/// The demux on one interface, and the maps that it looks into.
pub(crate) struct Demux {
    interface: Interface,
    ethertype: u16,
    maps: Maps,
    /// Detaches the demux when dropped.
    _attached: FdLink,
    _ebpf: Ebpf,
}

impl std::fmt::Debug for Demux {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Demux").finish_non_exhaustive()
    }
}

impl Demux {
    /// Loads the demux and attaches it to `interface` in the given mode. With an `ip`, it also
    /// takes the UDP form.
    ///
    /// # Errors
    /// [`OpenError::XdpTaken`], [`OpenError::NotPermitted`], [`OpenError::Refused`].
    pub(crate) fn attach(
        name: &str,
        interface: Interface,
        ip: Option<Ipv4Addr>,
        ethertype: u16,
        mode: XdpMode,
    ) -> Result<Self, OpenError> {
        let config = config_bytes(&interface, ip, ethertype);
        let mut ebpf = EbpfLoader::new()
            .override_global("config", &config, true)
            .load(DEMUX)
            .map_err(|error| not_loaded(error.into()))?;
        let attached = attach(&mut ebpf, name, &interface, mode)?;
        let maps = Maps::take(&mut ebpf).map_err(not_loaded)?;
        Ok(Self {
            interface,
            ethertype,
            maps,
            _attached: attached,
            _ebpf: ebpf,
        })
    }
}

impl DemuxOwner for Demux {
    fn open_port(&self, port: PortNumber, shape: Shape) -> Result<PortParts, PortError> {
        let claim = claim(&self.interface, self.ethertype, port)?;
        let sender = packet::sender(self.interface.index)
            .map_err(|error| PortError::refused("opening the port's packet socket", error))?;
        let map = create_map(
            BPF_MAP_TYPE_ARRAY,
            4,
            SLOT_BYTES,
            shape.elements(),
            PORT_MAP_FLAGS,
        )?;
        let ring = create_map(BPF_MAP_TYPE_RINGBUF, 0, 0, doorbell::BYTES, 0)?;
        let memory = MappedPort::shared(map.fd().as_fd(), shape, port.get())
            .map_err(|error| PortError::refused("mapping the port's memory", error))?;
        self.maps
            .publish(port, &map, &ring)
            .map_err(|error| PortError::refused("showing the port to the demux", error))?;
        let doorbell = ring.fd().as_fd().try_clone_to_owned();
        Ok(PortParts {
            memory: Arc::new(memory),
            doorbell: doorbell
                .map_err(|error| PortError::refused("keeping the port's doorbell", error))?,
            sender,
            claim,
        })
    }

    fn close_port(&self, port: PortNumber) {
        self.maps.withdraw(port);
    }

    fn counters(&self) -> NodeCounters {
        self.maps.counters.read()
    }
}

/// `struct tl_config` of `bpf/tautline.h`.
fn config_bytes(interface: &Interface, ip: Option<Ipv4Addr>, ethertype: u16) -> [u8; 12] {
    let mut config = [0; 12];
    config[..6].copy_from_slice(&interface.mac.0);
    config[6..8].copy_from_slice(&ethertype.to_be_bytes());
    config[8..].copy_from_slice(&ip.unwrap_or(Ipv4Addr::UNSPECIFIED).octets());
    config
}

fn attach(
    ebpf: &mut Ebpf,
    name: &str,
    interface: &Interface,
    mode: XdpMode,
) -> Result<FdLink, OpenError> {
    let program: &mut Xdp = ebpf
        .program_mut(program_of(mode))
        .ok_or_else(|| not_loaded("the demux is not in its object".into()))?
        .try_into()
        .map_err(|error: ProgramError| not_loaded(error.into()))?;
    program.load().map_err(|error| not_loaded(error.into()))?;
    let flags = match mode {
        XdpMode::Native => aya::programs::XdpMode::Driver,
        XdpMode::Generic => aya::programs::XdpMode::Skb,
    };
    let attached = program
        .attach_to_if_index(interface.index, flags)
        .map_err(|error| not_attached(error, name, interface, mode))?;
    let link = program
        .take_link(attached)
        .map_err(|error| not_loaded(error.into()))?;
    // Where the kernel has no BPF links the loader attaches in a way that outlives the process.
    // That would leave a demux on the interface after a crash, so it is not accepted; dropping
    // the link detaches it.
    FdLink::try_from(link)
        .map_err(|_| not_loaded("this kernel has no BPF links for XDP (needs Linux 5.9)".into()))
}

/// The demux for a mode. The same, but for what it says of frames in parts.
fn program_of(mode: XdpMode) -> &'static str {
    match mode {
        XdpMode::Native => "tautline_demux",
        XdpMode::Generic => "tautline_linear",
    }
}

fn not_loaded(source: Box<dyn std::error::Error + Send + Sync>) -> OpenError {
    if errno_of(source.as_ref()) == Some(libc::EPERM) {
        return OpenError::NotPermitted {
            link: "xdp",
            needs: "CAP_BPF, CAP_NET_ADMIN, CAP_NET_RAW and CAP_PERFMON",
        };
    }
    OpenError::Refused {
        doing: "loading the demux".to_owned(),
        source,
    }
}

fn not_attached(
    error: ProgramError,
    name: &str,
    interface: &Interface,
    mode: XdpMode,
) -> OpenError {
    match errno_of(&error) {
        Some(libc::EBUSY | libc::EEXIST) => {
            let id = interface::xdp_program(interface.index).ok().flatten();
            OpenError::XdpTaken {
                interface: name.to_owned(),
                id,
                name: id.and_then(program_name),
            }
        }
        Some(libc::EPERM) => not_loaded(error.into()),
        _ => OpenError::Refused {
            doing: format!("attaching the demux to `{name}` in {mode:?} mode"),
            source: error.into(),
        },
    }
}

/// The name of a loaded program.
fn program_name(id: u32) -> Option<String> {
    aya::programs::loaded_programs()
        .filter_map(Result::ok)
        .find(|program| program.id() == id)
        .and_then(|program| program.name_as_str().map(str::to_owned))
}

/// The error number at the bottom of a chain of errors.
fn errno_of(error: &(dyn std::error::Error + 'static)) -> Option<i32> {
    let mut error = Some(error);
    while let Some(current) = error {
        if let Some(io) = current.downcast_ref::<io::Error>() {
            return io.raw_os_error();
        }
        error = current.source();
    }
    None
}

/// The maps that the demux looks into.
struct Maps {
    ports: Mutex<Map>,
    doorbells: Mutex<Map>,
    counters: Counters,
}

impl Maps {
    fn take(ebpf: &mut Ebpf) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        let mut take = |name: &'static str| {
            ebpf.take_map(name).ok_or(MapError::InvalidName {
                name: name.to_owned(),
            })
        };
        let counters = take("node_counters")?;
        let Map::Array(counters) = &counters else {
            return Err("the node's counters are no array".into());
        };
        Ok(Self {
            ports: Mutex::new(take("ports")?),
            doorbells: Mutex::new(take("doorbells")?),
            counters: Counters::map(counters.fd().as_fd())?,
        })
    }

    /// Makes a port visible to the demux: its doorbell first, since the memory is what the demux
    /// looks for.
    fn publish(
        &self,
        port: PortNumber,
        memory: &MapData,
        doorbell: &MapData,
    ) -> Result<(), MapError> {
        let index = u32::from(port.get());
        let set = |maps: &Mutex<Map>, map: &MapData| {
            ArrayOfMaps::<_, MapData>::try_from(&mut *lock(maps))?.set(index, map, 0)
        };
        set(&self.doorbells, doorbell)?;
        set(&self.ports, memory)
    }

    /// Hides it again.
    fn withdraw(&self, port: PortNumber) {
        let index = u32::from(port.get());
        for maps in [&self.ports, &self.doorbells] {
            if let Map::ArrayOfMaps(maps) = &*lock(maps) {
                // Nothing can be done about a failure here, and nothing needs to be: the element
                // goes with the demux.
                let _gone = bpf::delete(maps.fd().as_fd(), index);
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // A poisoned lock means a panic in a map operation; the maps themselves are the kernel's.
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn create_map(
    kind: bpf_map_type,
    key_bytes: u32,
    value_bytes: usize,
    entries: usize,
    flags: u32,
) -> Result<MapData, PortError> {
    let definition = aya_obj::Map::new_from_params(
        kind as u32,
        key_bytes,
        value_bytes as u32,
        entries as u32,
        flags,
    );
    MapData::create(definition, "tautline_port", None)
        .map_err(|error| PortError::refused("creating the port's map", error))
}
