//! Owner of the demux of an interface: loads it, attaches it, and makes ports that it delivers to. Reading is the
//! port's own business, in whatever process it is.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use aya::maps::{ArrayOfMaps, Map, MapData, MapError, MapInfo};
use aya::programs::links::FdLink;
use aya::programs::tc::TcAttachOptions;
use aya::programs::{
    LinkOrder, Program, ProgramError, ProgramInfo, SchedClassifier, TcAttachType, Xdp,
};
use aya::{Ebpf, EbpfLoader};
use aya_obj::generated::bpf_map_type::{self, BPF_MAP_TYPE_ARRAY, BPF_MAP_TYPE_RINGBUF};
use tautline_proto::wire::ethernet::EthernetForm;
use tautline_proto::wire::{ETHERTYPE_DEFAULT, MacAddress, PORT_MAX, PortKey, PortNumber};
use tautline_shm::layout::SLOT_BYTES;
use tautline_shm::region::Shape;
use tautline_state::lock;
use tautline_state::privilege::may_load_bpf;

use super::counters::Counters;
use super::map_indices::MapIndices;
use super::sender::Sender;
use super::tap::TapRing;
use super::{DemuxOwner, PortParts, doorbell, program_users};
use crate::error::{OpenError, PortError, Priorities, errno_of};
use crate::hidden_tags::HiddenTags;
use crate::kernel;
use crate::link::plain_udp::reserve;
use crate::link::{NodeCounters, XdpMode, claim};
use crate::memory::MappedPort;
use crate::sys::interface::{self, Interface};
use crate::sys::{bpf, packet};

/// Flags of a port's map: `BPF_F_MMAPABLE`, so that the process reads it without system calls, and
/// `BPF_F_INNER_MAP`, so that ports of different depth fit one map of ports.
const PORT_MAP_FLAGS: u32 = 1 << 10 | bpf::INNER_MAP;

/// Settings of the demux.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    /// Name of the interface.
    pub(crate) name: String,
    pub(crate) interface: Interface,
    /// With an address, it takes the UDP form too.
    pub(crate) ip: Option<Ipv4Addr>,
    pub(crate) ethernet: EthernetForm,
    pub(crate) mode: XdpMode,
    /// Whether a control process owns it, for several processes.
    pub(crate) shared: bool,
}

/// Bytes of `struct tl_config`.
pub(super) const CONFIG_BYTES: usize = 24;

impl Setup {
    /// `struct tl_config` of `bpf/tautline.h`.
    pub(super) fn config_bytes(&self) -> [u8; CONFIG_BYTES] {
        let ip = self.ip.unwrap_or(Ipv4Addr::UNSPECIFIED);
        let mut config = [0; CONFIG_BYTES];
        config[..6].copy_from_slice(&self.interface.mac.0);
        config[6..8].copy_from_slice(&self.ethernet.ethertype.to_be_bytes());
        config[8..12].copy_from_slice(&ip.octets());
        // Not zero for a control process's; of another user, another number.
        let shared = match self.shared {
            true => rustix::process::geteuid().as_raw() + 1,
            false => 0,
        };
        config[12..16].copy_from_slice(&shared.to_ne_bytes());
        config[16..20].copy_from_slice(&self.interface.broadcast(ip).octets());
        config[20..22].copy_from_slice(&self.ethernet.vlan.identifier().to_be_bytes());
        config[22] = (self.mode == XdpMode::Generic).into();
        let is_native_on_veth = self.mode == XdpMode::Native && self.interface.is_veth;
        config[23] = (is_native_on_veth && kernel::tells_buffers_of_veth()).into();
        config
    }

    /// Whether the programs see the tags of VLANs, if it matters.
    ///
    /// # Errors
    /// [`OpenError::HiddenTags`].
    pub(in crate::link) fn check_tags(&self) -> Result<(), OpenError> {
        HiddenTags::check(self.mode, &self.name, &self.interface, self.ethernet.vlan)
    }

    /// Loads the demux without attaching it.
    pub(super) fn load(&self) -> Result<Ebpf, OpenError> {
        self.load_object(match self.mode {
            XdpMode::Native | XdpMode::Generic => tautline_bpf::DEMUX,
            XdpMode::Tc => tautline_bpf::DEMUX_TC,
        })
    }

    /// Loads an object that takes the demux's configuration.
    pub(in crate::link) fn load_object(&self, object: Option<&[u8]>) -> Result<Ebpf, OpenError> {
        let object = object.ok_or(OpenError::WithoutBpf)?;
        EbpfLoader::new()
            .override_global("config", &self.config_bytes(), true)
            .load(object)
            .map_err(|error| not_loaded(error.into()))
    }
}

/// The demux on one interface, and the maps that it looks into.
pub(crate) struct Demux {
    setup: Setup,
    maps: Maps,
    /// Detaches the demux when dropped, unless another process holds it too.
    attached: Attached,
}

/// Object that holds the demux on the interface.
enum Attached {
    /// This process, which loaded it.
    Here { _link: FdLink },
    /// A descriptor that others may have too.
    Shared { link: OwnedFd },
}

impl std::fmt::Debug for Demux {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Demux").finish_non_exhaustive()
    }
}

/// Parts of a port that has no number yet.
pub(crate) struct PortObjects {
    pub(crate) memory: MappedPort,
    /// The map that the memory is.
    pub(crate) map: OwnedFd,
    pub(crate) doorbell: OwnedFd,
}

impl Demux {
    /// Loads the demux and attaches it.
    ///
    /// # Errors
    /// [`OpenError::XdpTaken`], [`OpenError::NotPermitted`], [`OpenError::Refused`].
    pub(crate) fn attach(setup: Setup) -> Result<Self, OpenError> {
        check_hook(&setup)?;
        let mut ebpf = setup.load()?;
        let link = attach(&mut ebpf, program_of(setup.mode), &setup)?;
        let attached = if setup.shared {
            Attached::Shared {
                link: link_of(program(&mut ebpf, program_of(setup.mode))?)?,
            }
        } else {
            Attached::Here { _link: link }
        };
        let maps = Maps::take(|name| {
            ebpf.take_map(name)
                .ok_or_else(|| format!("the demux has no map `{name}`").into())
        });
        Ok(Self {
            setup,
            maps: maps.map_err(not_loaded)?,
            attached,
        })
    }

    /// Takes over the demux that a control process left on the interface, as its clients hold it there.
    /// `None` if the interface has no XDP program.
    ///
    /// # Errors
    /// [`OpenError::XdpTaken`] if what is there is no demux; [`OpenError::Refused`] if it is one that is
    /// not as `setup` asks, or not in the `mode` that is asked for.
    pub(crate) fn take_over(
        setup: Setup,
        mode: Option<XdpMode>,
    ) -> Result<Option<Self>, OpenError> {
        super::running::find(setup, mode)
    }

    /// Takes the demux that a control process left off the interface, whatever its settings and whichever processes
    /// hold it.
    ///
    /// # Errors
    /// [`OpenError::XdpTaken`] if what is there is not the demux of a control process; [`OpenError::NotPermitted`].
    pub(crate) fn detach_left(setup: &Setup) -> Result<(), OpenError> {
        super::running::detach(setup)
    }

    /// Takes what is needed of a demux that runs.
    pub(super) fn from_running(
        setup: Setup,
        link: OwnedFd,
        map: impl FnMut(&'static str) -> Result<Map, Error>,
    ) -> Result<Self, Error> {
        Ok(Self {
            setup,
            maps: Maps::take(map)?,
            attached: Attached::Shared { link },
        })
    }

    pub(crate) fn setup(&self) -> &Setup {
        &self.setup
    }

    /// Makes a port and shows it to the demux. The caller has taken the key.
    ///
    /// # Errors
    /// [`PortError::TooManyPorts`], [`PortError::Refused`].
    pub(crate) fn make_port(&self, key: PortKey, shape: Shape) -> Result<PortObjects, PortError> {
        let place = self.maps.places.take(key)?;
        let made = self.make(place, key.number(), shape);
        let made = made.inspect_err(|_| self.close_port(key))?;
        self.maps.places.show(key);
        Ok(made)
    }

    /// The place of an open port; 0 if it is not open.
    pub(crate) fn place(&self, key: PortKey) -> u32 {
        self.maps.places.of(key)
    }

    /// Makes a port and puts it in its place.
    fn make(&self, place: u32, number: u16, shape: Shape) -> Result<PortObjects, PortError> {
        let map = create_map(
            BPF_MAP_TYPE_ARRAY,
            4,
            SLOT_BYTES,
            shape.elements(),
            PORT_MAP_FLAGS,
        )?;
        let ring = create_map(BPF_MAP_TYPE_RINGBUF, 0, 0, doorbell::BYTES, 0)?;
        let memory = MappedPort::shared(map.fd().as_fd(), shape, number)
            .map_err(|error| PortError::refused("mapping the port's memory", error))?;
        let owned = |map: &MapData| {
            let owned = map.fd().as_fd().try_clone_to_owned();
            owned.map_err(|error| PortError::refused("keeping the port's maps", error))
        };
        let made = PortObjects {
            memory,
            map: owned(&map)?,
            doorbell: owned(&ring)?,
        };
        // Last: nothing may fail afterwards, or frames would go on into a port without an owner.
        self.maps
            .publish(place, &map, &ring)
            .map_err(|error| PortError::refused("showing the port to the demux", error))?;
        Ok(made)
    }

    /// A socket for one of this process's own ports to send through.
    fn sender(&self) -> Result<Sender, PortError> {
        let sender = packet::sender(self.setup.interface.index)
            .map_err(|error| PortError::refused("opening the port's packet socket", error))?;
        Ok(Sender::Packet(sender, Arc::clone(&self.maps.tap)))
    }

    /// The ports that the demux delivers to, with the bytes of their memory.
    pub(crate) fn open_ports(&self) -> Vec<(PortKey, u64)> {
        let numbers = (1..=PORT_MAX).filter_map(PortNumber::new);
        let keys = numbers
            .map(PortKey::Message)
            .chain(self.maps.places.shown());
        let found = keys.filter_map(|key| Some((key, self.memory_bytes(self.place(key))?)));
        found.collect()
    }

    /// Bytes of the memory that is in a place.
    fn memory_bytes(&self, place: u32) -> Option<u64> {
        let ports = lock(&self.maps.ports);
        let Map::ArrayOfMaps(ports) = &*ports else {
            return None;
        };
        let id = bpf::lookup(ports.fd().as_fd(), place).ok()?;
        let id = u32::from_ne_bytes(id.try_into().ok()?);
        let memory = MapInfo::from_id(id).ok()?;
        Some(u64::from(memory.max_entries()) * u64::from(memory.value_size()))
    }

    /// The link that holds the demux on the interface, if it can be shared.
    pub(crate) fn link(&self) -> Option<BorrowedFd<'_>> {
        match &self.attached {
            Attached::Here { .. } => None,
            Attached::Shared { link } => Some(link.as_fd()),
        }
    }

    /// Number that tells this demux from all others since the machine started.
    pub(crate) fn id(&self) -> u32 {
        self.maps.counters_id
    }
}

impl DemuxOwner for Demux {
    fn open_port(&self, key: PortKey, shape: Shape) -> Result<PortParts, PortError> {
        let setup = &self.setup;
        let claim = claim(&setup.interface, setup.ethernet.ethertype, key)?;
        let reserved = match key {
            PortKey::Udp(port) => {
                let ip = setup.ip.ok_or(PortError::NoAddress { link: "xdp" })?;
                Some(reserve(SocketAddrV4::new(ip, port.get()), key)?)
            }
            PortKey::Message(_) | PortKey::Raw(_) => None,
        };
        let sender = self.sender()?;
        let made = self.make_port(key, shape)?;
        Ok(PortParts {
            memory: Arc::new(made.memory),
            doorbell: made.doorbell,
            sender,
            claim,
            priorities: Priorities::ALL,
            any_source_address: true,
            reserved,
        })
    }

    fn close_port(&self, key: PortKey) {
        let maps = &self.maps;
        maps.places.give_up(key, |place| maps.withdraw(place));
    }

    fn counters(&self) -> NodeCounters {
        self.maps.counters.read()
    }
}

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Attaches the program of this name.
pub(in crate::link) fn attach(
    ebpf: &mut Ebpf,
    name: &str,
    setup: &Setup,
) -> Result<FdLink, OpenError> {
    let program = program(ebpf, name)?;
    load(program).map_err(|error| not_loaded(error.into()))?;
    let link = match (program, setup.mode) {
        (Program::Xdp(program), XdpMode::Native) => {
            attach_xdp(program, setup, aya::programs::XdpMode::Driver)
        }
        (Program::Xdp(program), XdpMode::Generic) => {
            attach_xdp(program, setup, aya::programs::XdpMode::Skb)
        }
        (Program::SchedClassifier(program), XdpMode::Tc) => attach_tc(program, setup),
        _ => Err(ProgramError::UnexpectedProgramType),
    };
    link.map_err(|error| not_attached(error, setup))?
        .ok_or_else(|| not_loaded("this kernel has no BPF links for interfaces".into()))
}

/// Loads a program into the kernel.
pub(super) fn load(program: &mut Program) -> Result<(), ProgramError> {
    match program {
        Program::Xdp(program) => program.load(),
        Program::SchedClassifier(program) => program.load(),
        _ => Err(ProgramError::UnexpectedProgramType),
    }
}

/// The link that holds a program on the interface. Where the kernel has none the loader attaches in a way that outlives
/// the process. That would leave a demux on the interface after a crash, so it is not accepted: dropping the link
/// detaches it.
fn attach_xdp(
    program: &mut Xdp,
    setup: &Setup,
    flags: aya::programs::XdpMode,
) -> Result<Option<FdLink>, ProgramError> {
    let attached = program.attach_to_if_index(setup.interface.index, flags)?;
    Ok(FdLink::try_from(program.take_link(attached)?).ok())
}

/// The same at traffic control, before the programs of others, so that they see what is not Tautline's.
fn attach_tc(program: &mut SchedClassifier, setup: &Setup) -> Result<Option<FdLink>, ProgramError> {
    let first = TcAttachOptions::TcxOrder(LinkOrder::first());
    let attached = program.attach_with_options(&setup.name, TcAttachType::Ingress, first)?;
    Ok(FdLink::try_from(program.take_link(attached)?).ok())
}

/// A program that the kernel's verifier took.
#[derive(Clone, Copy, Debug)]
pub struct Verified {
    /// Instructions that the verifier went through, where the kernel says it (5.16).
    pub instructions: Option<u32>,
    /// Time that loading took, maps included.
    pub took: Duration,
}

/// Loads the demux of one mode, as a node with an IPv4 address would, and lets go of it again. No interface is touched.
///
/// # Errors
/// [`OpenError::KernelLacks`], [`OpenError::ProgramRefused`], [`OpenError::NotPermitted`], [`OpenError::Refused`].
pub fn try_demux(mode: XdpMode) -> Result<Verified, OpenError> {
    let setup = Setup {
        name: String::new(),
        interface: Interface {
            index: 0,
            mac: MacAddress([0; 6]),
            mtu_bytes: 0,
            up: false,
            has_carrier: false,
            ip: None,
            netmask: Ipv4Addr::BROADCAST,
            is_virtual: true,
            has_packets: true,
            is_veth: false,
            is_ethernet: true,
            name: String::new(),
        },
        ip: Some(Ipv4Addr::LOCALHOST),
        ethernet: EthernetForm::of(ETHERTYPE_DEFAULT),
        mode,
        shared: false,
    };
    let begin = Instant::now();
    let mut ebpf = setup.load()?;
    let program = program(&mut ebpf, program_of(mode))?;
    load(program).map_err(|error| not_loaded(error.into()))?;
    let took = begin.elapsed();
    let info = program.info().map_err(|error| not_loaded(error.into()))?;
    Ok(Verified {
        instructions: info.verified_instruction_count(),
        took,
    })
}

pub(super) fn program<'e>(ebpf: &'e mut Ebpf, name: &str) -> Result<&'e mut Program, OpenError> {
    ebpf.program_mut(name)
        .ok_or_else(|| not_loaded(format!("`{name}` is not in its object").into()))
}

/// A descriptor of the link by which a program is attached, which can be handed on.
fn link_of(program: &Program) -> Result<OwnedFd, OpenError> {
    let id = program
        .info()
        .map_err(|error| not_loaded(error.into()))?
        .id();
    match bpf::link_of_program(id) {
        Ok(Some(link)) => Ok(link),
        Ok(None) => Err(not_loaded("the demux was detached again".into())),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            Err(OpenError::NotPermitted {
                link: "xdp",
                needs: "CAP_SYS_ADMIN, to share it",
            })
        }
        Err(error) => Err(not_loaded(error.into())),
    }
}

/// The demux for a mode. The same, but for the hook, and for what it says of frames in parts.
pub(super) fn program_of(mode: XdpMode) -> &'static str {
    match mode {
        XdpMode::Native => "tautline_demux",
        XdpMode::Generic => "tautline_linear",
        XdpMode::Tc => "tautline_tc",
    }
}

pub(super) fn not_loaded(source: Error) -> OpenError {
    if let Some(feature) = kernel::missing_for_xdp() {
        return lacks(feature);
    }
    let not_permitted = OpenError::NotPermitted {
        link: "xdp",
        needs: "CAP_BPF, CAP_NET_ADMIN, CAP_NET_RAW and CAP_PERFMON",
    };
    match (source.downcast_ref(), errno_of(source.as_ref())) {
        // Without CAP_PERFMON the verifier forbids arithmetic with pointers, and its log names no capability.
        (Some(ProgramError::LoadError { .. }), _) if !may_load_bpf() => not_permitted,
        (Some(ProgramError::LoadError { verifier_log, .. }), _) => OpenError::ProgramRefused {
            log: last_lines(&verifier_log.to_string()),
        },
        (_, Some(libc::ENOSYS)) => OpenError::BpfForbidden,
        (_, Some(libc::EPERM)) if may_load_bpf() => OpenError::BpfForbidden,
        (_, Some(libc::EPERM)) => not_permitted,
        _ => OpenError::Refused {
            doing: "loading the demux".to_owned(),
            source,
        },
    }
}

/// The end of the verifier's log: the instruction, its line of source, the reason, and statistics.
fn last_lines(log: &str) -> String {
    /// Fewer: the reason is missing. More: they push the remedy off the screen.
    const LINES: usize = 6;
    let lines = log.lines().map(str::trim).filter(|line| !line.is_empty());
    let lines: Vec<_> = lines.collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}

fn lacks(feature: &kernel::Feature) -> OpenError {
    OpenError::KernelLacks {
        link: "xdp",
        lacks: feature.name,
        since: feature.since,
    }
}

fn not_attached(error: ProgramError, setup: &Setup) -> OpenError {
    match errno_of(&error) {
        Some(libc::EBUSY | libc::EEXIST) => taken(setup),
        Some(libc::EPERM) => not_loaded(error.into()),
        Some(libc::EOPNOTSUPP) => OpenError::NoXdp {
            interface: setup.name.clone(),
            mode: setup.mode,
        },
        _ => OpenError::Refused {
            doing: format!(
                "attaching the demux to `{}` in {} mode",
                setup.name,
                setup.mode.name()
            ),
            source: error.into(),
        },
    }
}

/// Whether the kernel has the hook, and no demux is on the interface yet: the kernel itself would let one be at each
/// hook, and several at traffic control.
fn check_hook(setup: &Setup) -> Result<(), OpenError> {
    setup.check_tags()?;
    let missing = kernel::missing_for_tc().filter(|_| setup.mode == XdpMode::Tc);
    if let Some(feature) = missing {
        return Err(lacks(feature));
    }
    match on_interface(setup) {
        Ok(Some(found)) if found.mode.is_some() => Err(taken(setup)),
        Ok(_) => Ok(()),
        Err(error) => Err(not_loaded(error.into())),
    }
}

/// A program on an interface that is a demux, or stands in its way.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) id: u32,
    pub(super) name: Option<String>,
    /// Mode of the demux that it is.
    pub(super) mode: Option<XdpMode>,
}

/// The demux on an interface, at whichever hook; else another XDP program. Programs of others at traffic control
/// do not matter.
pub(super) fn on_interface(setup: &Setup) -> io::Result<Option<Found>> {
    let xdp = interface::xdp_program(setup.interface.index)?;
    let xdp = xdp.map(|id| Found::new(id, program_name(id)));
    if xdp.as_ref().is_some_and(|found| found.mode.is_some()) {
        return Ok(xdp);
    }
    let at_tc = kernel::programs_at_tc(&setup.interface.name)?.into_iter();
    let mut at_tc = at_tc.map(|found| Found::new(found.id(), name_of(&found)));
    Ok(at_tc.find(|found| found.mode.is_some()).or(xdp))
}

impl Found {
    fn new(id: u32, name: Option<String>) -> Self {
        let mode = XdpMode::ALL
            .into_iter()
            .find(|mode| name.as_deref() == Some(program_of(*mode)));
        Self { id, name, mode }
    }
}

/// Another program is on the interface.
pub(super) fn taken(setup: &Setup) -> OpenError {
    let found = on_interface(setup).ok().flatten();
    let of_node = found.as_ref().is_some_and(|found| found.mode.is_some());
    let (id, name) = found.map_or((None, None), |found| (Some(found.id), found.name));
    let holders = id.filter(|_| of_node).map(program_users::of_program);
    OpenError::XdpTaken {
        interface: setup.name.clone(),
        id,
        name,
        holders: holders.unwrap_or_default(),
    }
}

/// The name of a loaded program.
pub(in crate::link) fn program_name(id: u32) -> Option<String> {
    aya::programs::loaded_programs()
        .filter_map(Result::ok)
        .find(|program| program.id() == id)
        .and_then(|program| name_of(&program))
}

fn name_of(program: &ProgramInfo) -> Option<String> {
    program.name_as_str().map(str::to_owned)
}

/// The maps that the demux looks into.
struct Maps {
    ports: Mutex<Map>,
    doorbells: Mutex<Map>,
    places: MapIndices,
    counters: Counters,
    counters_id: u32,
    tap: Arc<TapRing>,
}

impl Maps {
    fn take(mut map: impl FnMut(&'static str) -> Result<Map, Error>) -> Result<Self, Error> {
        let mut array = |name| match map(name)? {
            Map::Array(array) => Ok(array),
            _ => Err(Error::from(format!("the demux's map `{name}` is no array"))),
        };
        let counters = array("node_counters")?;
        let udp_ports = array("udp_ports")?;
        let raw_types = array("raw_types")?;
        let tap = array("tap")?;
        Ok(Self {
            tap: Arc::new(TapRing::map(tap.fd().as_fd())?),
            places: MapIndices::map(udp_ports.fd().as_fd(), raw_types.fd().as_fd())?,
            ports: Mutex::new(map("ports")?),
            doorbells: Mutex::new(map("doorbells")?),
            counters: Counters::map(counters.fd().as_fd())?,
            counters_id: counters.info()?.id(),
        })
    }

    /// Makes a port visible to the demux: its doorbell first, since the memory is what the demux looks for.
    fn publish(&self, index: u32, memory: &MapData, doorbell: &MapData) -> Result<(), MapError> {
        let set = |maps: &Mutex<Map>, map: &MapData| {
            ArrayOfMaps::<_, MapData>::try_from(&mut *lock(maps))?.set(index, map, 0)
        };
        set(&self.doorbells, doorbell)?;
        set(&self.ports, memory)
    }

    /// Hides it again.
    fn withdraw(&self, index: u32) {
        for maps in [&self.ports, &self.doorbells] {
            if let Map::ArrayOfMaps(maps) = &*lock(maps) {
                // Nothing can be done about a failure here, and nothing needs to be: the element goes with the demux.
                let _gone = bpf::delete(maps.fd().as_fd(), index);
            }
        }
    }
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
