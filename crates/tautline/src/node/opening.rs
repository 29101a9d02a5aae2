//! Opening: the interface of a node, the best link that works there, and what cannot be had.

use std::net::Ipv4Addr;
use std::sync::Arc;

use tautline_proto::wire::MTU_BYTES;
use tautline_proto::wire::ethernet::Vlan;

use super::NodeConfig;
use crate::client::{Connection, DemuxWanted};
use crate::error::OpenError;
use crate::hidden_tags::HiddenTags;
use crate::kind::{LinkKind, XdpMode};
use crate::link::Link;
use crate::link::bpf::demux::Setup;
use crate::link::packet::SocketLink;
use crate::link::vbus::BusLink;
use crate::link::xdp::{XdpLink, modes_on};
use crate::link::xsk::XskLink;
use crate::runtime::{self, Room};
use crate::send_pool::{SendPool, SendPoolConfig};
use crate::status::NotBetter;
use crate::sys::clock;
use crate::sys::interface::{self, Interface, InterfaceWatch};
use crate::sys::memory;

/// Attachment of a node to a network: its interface and its address.
pub(crate) struct Attachment {
    pub(crate) name: Option<String>,
    pub(crate) interface: Option<Interface>,
    pub(crate) watch: Option<Arc<InterfaceWatch>>,
    pub(crate) ip: Option<Ipv4Addr>,
}

impl Attachment {
    pub(crate) fn find(config: &NodeConfig) -> Result<Self, OpenError> {
        let Some(name) = config.interface.as_deref() else {
            return Ok(Self {
                name: None,
                interface: None,
                watch: None,
                ip: config.address,
            });
        };
        let found = interface::query(name).and_then(|interface| {
            let watch = InterfaceWatch::new(&interface, config.address.or(interface.ip))?;
            Ok((interface, watch))
        });
        let (interface, watch) = found.map_err(|source| {
            if source.kind() == std::io::ErrorKind::NotFound {
                OpenError::NoSuchInterface {
                    name: name.to_owned(),
                    known: interface::names().unwrap_or_default(),
                }
            } else {
                OpenError::Refused {
                    doing: format!("asking the kernel about `{name}`"),
                    source: source.into(),
                }
            }
        })?;
        Ok(Self {
            name: Some(interface.name.clone()),
            ip: config.address.or(interface.ip),
            interface: Some(interface),
            watch: Some(Arc::new(watch)),
        })
    }
}

/// Opens the best link that works, with those that are better and do not.
pub(super) fn best_link(
    config: &NodeConfig,
    attachment: &Attachment,
) -> Result<(Box<dyn Link>, Vec<NotBetter>), OpenError> {
    let is_bare = attachment.interface.is_none() && attachment.ip.is_none();
    if is_bare && config.link.is_none() && config.bus.is_none() {
        return Err(OpenError::NoNetwork);
    }
    let mut not_better: Vec<NotBetter> = Vec::new();
    let mut refused = None;
    for (kind, mode) in candidates(config, attachment) {
        match open_link(kind, mode, attachment, config) {
            Ok(link) => return Ok((link, not_better)),
            // Another link would go around what the control process's policy says.
            Err(error @ OpenError::ControlRefused { .. }) => return Err(error),
            Err(error) => {
                not_better.push(NotBetter {
                    link: candidate_name(kind, mode),
                    why: error.to_string(),
                });
                // Of a link that was asked for by name, the first answer says most; of a mode that this kernel
                // lacks, the next one does.
                if refused.as_ref().is_none_or(OpenError::is_lack_of_kernel) {
                    refused = Some(error);
                }
            }
        }
    }
    match (config.link, refused) {
        (Some(_), Some(error)) => Err(error),
        _ => Err(OpenError::NoLink {
            reasons: not_better
                .into_iter()
                .map(|tried| format!("{}: {}", tried.link, tried.why))
                .collect(),
        }),
    }
}

/// The links to try, the best first.
fn candidates(config: &NodeConfig, attachment: &Attachment) -> Vec<(LinkKind, XdpMode)> {
    let modes = match &attachment.interface {
        Some(interface) => modes_on(interface, false),
        None => XdpMode::ALL,
    };
    let mut candidates = modes.map(|mode| (LinkKind::Xdp, mode)).to_vec();
    candidates.extend([
        (LinkKind::Packet, XdpMode::Native),
        (LinkKind::Udp, XdpMode::Native),
    ]);
    match config.link {
        Some(other @ (LinkKind::Sim | LinkKind::Vbus)) => return vec![(other, XdpMode::Native)],
        // Never taken unasked: `xdp` has the lower latency.
        Some(LinkKind::Xsk) => {
            candidates = vec![
                (LinkKind::Xsk, XdpMode::Native),
                (LinkKind::Xsk, XdpMode::Generic),
            ];
        }
        Some(asked) => candidates.retain(|(kind, _)| *kind == asked),
        None if attachment.name.is_none() => candidates.retain(|(kind, _)| *kind == LinkKind::Udp),
        None => {}
    }
    if let Some(mode) = config.xdp_mode {
        let has_modes = |kind| matches!(kind, LinkKind::Xdp | LinkKind::Xsk);
        candidates.retain(|(kind, of)| !has_modes(*kind) || *of == mode);
    }
    candidates
}

pub(crate) fn candidate_name(kind: LinkKind, mode: XdpMode) -> String {
    match (kind, mode) {
        (LinkKind::Xdp | LinkKind::Xsk, mode) => format!("{kind} ({})", mode.name()),
        (other, _) => other.name().to_owned(),
    }
}

fn open_link(
    kind: LinkKind,
    mode: XdpMode,
    attachment: &Attachment,
    config: &NodeConfig,
) -> Result<Box<dyn Link>, OpenError> {
    let interface = || {
        let missing = || OpenError::InterfaceMissing { link: kind.name() };
        let found = attachment.name.as_deref().zip(attachment.interface.clone());
        let (name, interface) = found.ok_or_else(missing)?;
        check_ethernet(kind, name, &interface)?;
        Ok::<_, OpenError>((name, interface))
    };
    let setup = || {
        let (name, interface) = interface()?;
        Ok::<_, OpenError>(Setup {
            name: name.to_owned(),
            interface,
            ip: attachment.ip,
            ethernet: config.ethernet_form(),
            mode,
            shared: false,
        })
    };
    if config.vlan != Vlan::NONE && !matches!(kind, LinkKind::Xdp | LinkKind::Xsk) {
        return Err(OpenError::OutsideVlan {
            link: kind.name(),
            vlan: config.vlan.identifier(),
        });
    }
    if matches!(kind, LinkKind::Xdp | LinkKind::Xsk | LinkKind::Vbus) && clock::is_shifted() {
        return Err(OpenError::TimeNamespace { link: kind.name() });
    }
    match kind {
        LinkKind::Xsk => Ok(Box::new(XskLink::new(setup()?)?)),
        LinkKind::Xdp => {
            let setup = setup()?;
            let wanted = DemuxWanted {
                ip: config.address,
                mode: config.xdp_mode,
            };
            let watch = attachment.watch.as_ref();
            let Some(connection) = Connection::open(&setup, wanted, watch)? else {
                return Ok(Box::new(XdpLink::attach(setup)?));
            };
            let (demux, pid) = ((connection.ip(), connection.mode()), connection.pid());
            let owner = Arc::new(connection);
            Ok(Box::new(XdpLink::of(setup, demux, Some(pid), owner)))
        }
        LinkKind::Packet => {
            let (_, interface) = interface()?;
            Ok(Box::new(SocketLink::packet(
                interface,
                attachment.ip,
                config.ethertype,
            )?))
        }
        LinkKind::Udp => {
            let ip = attachment.ip.ok_or_else(|| OpenError::NoAddress {
                link: "udp",
                interface: attachment.name.clone(),
            })?;
            Ok(Box::new(SocketLink::udp(ip)))
        }
        LinkKind::Vbus => {
            let bus = config.bus.as_ref().ok_or(OpenError::BusMissing)?;
            Ok(Box::new(BusLink::open(bus)?))
        }
        LinkKind::Sim => Err(OpenError::Refused {
            doing: "opening link `sim`".to_owned(),
            source: "a simulated network is made in code: tautline::link::sim::Network".into(),
        }),
    }
}

/// Refuses an interface without Ethernet headers to a link that reads and writes them.
///
/// # Errors
/// [`OpenError::NoEthernet`].
pub(crate) fn check_ethernet(
    link: LinkKind,
    name: &str,
    interface: &Interface,
) -> Result<(), OpenError> {
    if interface.is_ethernet {
        return Ok(());
    }
    Err(OpenError::NoEthernet {
        interface: name.to_owned(),
        link: link.name(),
    })
}

/// The node's send buffers. A bus lends memory of its own, so no port would ask for them there.
pub(super) fn send_pool(
    kind: LinkKind,
    config: SendPoolConfig,
    limits: &mut Vec<String>,
) -> Arc<SendPool> {
    let wanted = match kind {
        LinkKind::Vbus => SendPoolConfig::NONE,
        _ => config,
    };
    Arc::new(SendPool::new(wanted).unwrap_or_else(|error| {
        limits.push(format!(
            "no send buffers ({error}); have fewer in [send_pool], or free memory"
        ));
        SendPool::without_buffers()
    }))
}

/// Why port numbers are not claimed, where the link would. Through a control process that one claims them.
pub(super) fn no_claims(link: &dyn Link) -> Option<String> {
    let claims = matches!(
        link.kind(),
        LinkKind::Xdp | LinkKind::Xsk | LinkKind::Packet
    );
    if !claims || link.control_process().is_some() {
        return None;
    }
    let error = runtime::make(Room::Claims).err()?;
    Some(format!(
        "another process may take the same port numbers: {error}"
    ))
}

/// Why frames of VLANs may not be told from others.
pub(crate) fn hidden_tags(
    (kind, mode): (LinkKind, Option<XdpMode>),
    attachment: &Attachment,
    vlan: Vlan,
) -> Option<String> {
    let (name, interface) = attachment
        .name
        .as_deref()
        .zip(attachment.interface.as_ref())?;
    // The process of link `xsk` finds no tag but in the frame.
    let is_unread = kind == LinkKind::Xsk && vlan != Vlan::NONE && interface.is_veth;
    let hidden = match is_unread {
        true => Some(HiddenTags::OfVeth),
        false => HiddenTags::of(mode?, name, interface),
    };
    hidden.map(|hidden| hidden.note(name, vlan))
}

/// Settings that were wanted and cannot be had.
pub(crate) fn limits(attachment: &Attachment) -> Vec<String> {
    let mut limits = Vec::new();
    if let Some(interface) = &attachment.interface {
        if interface.mtu_bytes < MTU_BYTES {
            limits.push(format!(
                "MTU {} is below {MTU_BYTES}: full frames cannot be sent; ip link set dev {} mtu {MTU_BYTES}",
                interface.mtu_bytes,
                attachment.name.as_deref().unwrap_or("INTERFACE"),
            ));
        }
        let mute = attachment.watch.as_ref();
        if let Some(why) = mute.and_then(|watch| watch.tells_nothing()) {
            limits.push(format!(
                "waits do not end when the interface is gone ({why}); let this process have a netlink socket"
            ));
        }
        if !interface.up {
            limits.push("the interface is down: nothing arrives until it is up".to_owned());
        }
    }
    // A page that was just taken and touched: if this cannot be locked, ports' memory cannot.
    let page = vec![0u8; memory::page_bytes()];
    if let Err(error) = memory::lock_slice(&page) {
        limits.push(format!(
            "memory is not locked ({error}); raise RLIMIT_MEMLOCK (ulimit -l) or grant CAP_IPC_LOCK"
        ));
    }
    limits
}
