//! The `xdp` link: the BPF demux (`bpf/demux.bpf.c`) delivers into the port's own memory; frames
//! leave through a packet socket past the queueing discipline. Reading costs no system call.
//!
//! The demux is attached with a BPF link, which the kernel takes away with the process, however
//! that ends: nothing stays on the interface.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aya::maps::{Array, ArrayOfMaps, Map, MapData, RingBuf};
use aya::programs::links::FdLink;
use aya::programs::{ProgramError, Xdp};
use aya::{Ebpf, EbpfLoader};
use aya_obj::generated::bpf_map_type::{BPF_MAP_TYPE_ARRAY, BPF_MAP_TYPE_RINGBUF};
use tautline_proto::neighbour::Neighbour;
use tautline_proto::wire::{Header, ParseError, PortNumber, WHOLE_BYTES_MAX_ETHERNET, udp};
use tautline_shm::doorbell;
use tautline_shm::layout::SLOT_BYTES;
use tautline_shm::region::{PortMemory, Shape};

use super::frame::{FrameBuffer, ip_of, is_udp_form};
use super::packet::claim;
use super::socket::udp_socket;
use super::{ArrivalClock, Capabilities, Link, LinkKind, NodeCounters, PortLink, Route, XdpMode};
use crate::address::{Address, Source};
use crate::claim::Claim;
use crate::error::{OpenError, PortError, ReceiveError, SendError};
use crate::memory::MappedPort;
use crate::sys::interface::{self, Interface};
use crate::sys::{bpf, packet, socket, wait};

const DEMUX: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/demux.bpf.o"));

/// Flags of a port's map: `BPF_F_MMAPABLE`, so that the process reads it without system calls, and
/// `BPF_F_INNER_MAP`, so that ports of different depth fit one map of ports.
const PORT_MAP_FLAGS: u32 = 1 << 10 | 1 << 12;
/// Bytes of a doorbell's ring, one page: a ring for each time that the consumer went to sleep, and
/// it empties it when it wakes, so one record would do.
const DOORBELL_BYTES: u32 = 4096;

/// The node's half. Owns the demux.
#[derive(Debug)]
pub struct XdpLink {
    interface: Interface,
    ip: Option<Ipv4Addr>,
    ethertype: u16,
    mode: XdpMode,
    maps: Arc<Maps>,
    /// Detaches the demux when dropped.
    _attached: FdLink,
    _ebpf: Ebpf,
}

/// The maps that the demux looks into.
struct Maps {
    ports: Mutex<Map>,
    doorbells: Mutex<Map>,
    counters: Array<MapData, u64>,
}

impl std::fmt::Debug for Maps {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Maps").finish_non_exhaustive()
    }
}

impl XdpLink {
    /// Loads the demux and attaches it to `interface` in the given mode. With an `ip`, it also
    /// takes the UDP form.
    ///
    /// # Errors
    /// [`OpenError::XdpTaken`], [`OpenError::NotPermitted`], [`OpenError::Refused`].
    pub(crate) fn new(
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
        let maps = Maps::take(&mut ebpf).map_err(|error| not_loaded(error.into()))?;
        Ok(Self {
            interface,
            ip,
            ethertype,
            mode,
            maps: Arc::new(maps),
            _attached: attached,
            _ebpf: ebpf,
        })
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

impl Maps {
    fn take(ebpf: &mut Ebpf) -> Result<Self, aya::maps::MapError> {
        let mut take = |name: &'static str| {
            ebpf.take_map(name).ok_or(aya::maps::MapError::InvalidName {
                name: name.to_owned(),
            })
        };
        Ok(Self {
            ports: Mutex::new(take("ports")?),
            doorbells: Mutex::new(take("doorbells")?),
            counters: take("node_counters")?.try_into()?,
        })
    }

    /// Makes a port visible to the demux: its doorbell first, since the memory is what the demux
    /// looks for.
    fn publish(
        &self,
        port: PortNumber,
        memory: &MapData,
        doorbell: &MapData,
    ) -> Result<(), aya::maps::MapError> {
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

impl Link for XdpLink {
    fn kind(&self) -> LinkKind {
        LinkKind::Xdp
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            arrival_clock: ArrivalClock::Demux,
            xdp_mode: Some(self.mode),
            delivered_by_kernel: true,
            ethernet_form: true,
            udp_form: self.ip.is_some(),
            whole_bytes_max: WHOLE_BYTES_MAX_ETHERNET,
            receive_copies: 2,
            send_copies: 2,
            descriptor: true,
        }
    }

    fn open_port(&self, port: PortNumber, shape: Shape) -> Result<Box<dyn PortLink>, PortError> {
        let claim = claim(&self.interface, self.ethertype, port)?;
        // The demux takes the datagrams before this socket sees them; it keeps the UDP port from
        // being given to another process, and shows in `ss` whose it is.
        let reserved = self.ip.map(|ip| udp_socket(ip, port)).transpose()?;
        let sender = packet::sender(self.interface.index)
            .map_err(|error| PortError::refused("opening the port's packet socket", error))?;
        let map = create_map(
            BPF_MAP_TYPE_ARRAY as u32,
            4,
            SLOT_BYTES,
            shape.elements(),
            PORT_MAP_FLAGS,
        )?;
        let doorbell = create_map(
            BPF_MAP_TYPE_RINGBUF as u32,
            0,
            0,
            DOORBELL_BYTES as usize,
            0,
        )?;
        let memory = MappedPort::shared(map.fd().as_fd(), shape, port.get())
            .map_err(|error| PortError::refused("mapping the port's memory", error))?;
        let map_refused = |error| PortError::refused("showing the port to the demux", error);
        self.maps
            .publish(port, &map, &doorbell)
            .map_err(map_refused)?;
        let doorbell = RingBuf::try_from(Map::RingBuf(doorbell)).map_err(map_refused)?;
        Ok(Box::new(XdpPort {
            port,
            memory: Arc::new(memory),
            sender,
            frame: FrameBuffer::new(),
            doorbell,
            maps: Arc::clone(&self.maps),
            _map: map,
            reserved,
            _claim: claim,
        }))
    }

    fn route(
        &self,
        neighbour: &Neighbour,
        to: PortNumber,
        from: PortNumber,
    ) -> Result<Route, PortError> {
        if !is_udp_form(neighbour) {
            return Ok(Route::ethernet(
                self.interface.mac,
                neighbour,
                self.ethertype,
            ));
        }
        let lacks = |lacks| PortError::NeighbourIncomplete {
            name: neighbour.name.clone(),
            lacks,
            link: "xdp",
        };
        if neighbour.mac.is_unspecified() {
            return Err(lacks("MAC address (its own, or the router's)"));
        }
        let endpoints = udp::Endpoints {
            destination: neighbour.mac,
            source: self.interface.mac,
            destination_ip: ip_of(LinkKind::Xdp, neighbour)?,
            source_ip: self
                .ip
                .ok_or_else(|| lacks("use: this node has no IPv4 address,"))?,
        };
        Ok(Route::UdpRaw {
            template: udp::UdpTemplate::new(&endpoints, to, from),
        })
    }

    fn counters(&self) -> NodeCounters {
        let read = |index: usize| self.maps.counters.get(&(index as u32), 0).unwrap_or(0);
        NodeCounters {
            malformed: std::array::from_fn(read),
            no_port: read(ParseError::COUNT),
            socket_full: 0,
        }
    }
}

fn create_map(
    kind: u32,
    key_bytes: u32,
    value_bytes: usize,
    entries: usize,
    flags: u32,
) -> Result<MapData, PortError> {
    let definition =
        aya_obj::Map::new_from_params(kind, key_bytes, value_bytes as u32, entries as u32, flags);
    MapData::create(definition, "tautline_port", None)
        .map_err(|error| PortError::refused("creating the port's map", error))
}

/// The port's half.
struct XdpPort {
    port: PortNumber,
    memory: Arc<MappedPort>,
    sender: OwnedFd,
    frame: FrameBuffer,
    doorbell: RingBuf<MapData>,
    maps: Arc<Maps>,
    /// What a client process would be handed.
    _map: MapData,
    /// The UDP port of the same number, so that nobody else has it. Nothing is delivered there.
    reserved: Option<OwnedFd>,
    _claim: Claim,
}

impl std::fmt::Debug for XdpPort {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("XdpPort")
            .field("port", &self.port)
            .finish_non_exhaustive()
    }
}

impl PortLink for XdpPort {
    fn memory(&self) -> &Arc<MappedPort> {
        &self.memory
    }

    #[inline]
    fn send(
        &mut self,
        route: &mut Route,
        header: &Header,
        payload: &[u8],
    ) -> Result<(), SendError> {
        let bytes = self.frame.build(route, header, payload);
        Ok(socket::send(self.sender.as_fd(), bytes)?)
    }

    /// Nothing to do: the demux has delivered already.
    #[inline]
    fn collect(&mut self) -> Result<(), ReceiveError> {
        Ok(())
    }

    fn arm(&mut self) {
        while self.doorbell.next().is_some() {}
        doorbell::arm(self.memory.port().control);
    }

    fn wait(&mut self, timeout: Option<Duration>) -> Result<(), ReceiveError> {
        let waited = wait::readable(self.doorbell.as_fd(), timeout);
        doorbell::disarm(self.memory.port().control);
        Ok(waited?)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.doorbell.as_fd())
    }

    /// A look at the reserved UDP socket: leaving its lock runs what is due. Without an address there is
    /// no such socket, and the processing waits as it would without this.
    fn let_kernel_in(&mut self) {
        if let Some(socket) = &self.reserved {
            socket::look(socket.as_fd());
        }
    }

    /// Of the UDP form the port keeps the IPv4 address only: the MAC address is the kernel's to know.
    fn neighbour_of(&self, source: Source) -> Option<Neighbour> {
        let neighbour = source.address.neighbour();
        match source.address {
            Address::Ethernet(_) => Some(neighbour),
            Address::Udp(address) => Some(Neighbour {
                mac: interface::mac_of(*address.ip())?,
                ..neighbour
            }),
        }
    }
}

impl Drop for XdpPort {
    fn drop(&mut self) {
        self.maps.withdraw(self.port);
    }
}
