//! A node: one participant on a network, with an interface, an address, neighbours and ports.

mod builder;
mod config;
mod neighbours;
mod opening;
mod owner;

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, OnceLock};

use tautline_proto::sim::SimError;
use tautline_proto::time::Instant;
use tautline_proto::wire::MacAddress;
use tautline_proto::wire::raw::EtherType;
use tautline_state::fork::OwnerProcess;

use crate::error::{OpenError, SendError};
use crate::keys::{KeyFileError, Keys};
use crate::kind::LinkKind;
use crate::link::Link;
use crate::link::frame::Marking;
use crate::link::sim::Network;
use crate::link::vbus::place_of_bus;
use crate::link::xdp::seen_first;
use crate::neighbours::{Neighbours, Own};
use crate::port::MessagePort;
use crate::port::list::Ports;
use crate::port::owner::PortOwner;
use crate::send_pool::{SendPool, SendPoolStatus};
use crate::status::{
    InterfaceStatus, NodeStatus, NotBetter, OpenReport, PortStatus, StatusServer, Told,
};
use crate::sys::clock;
use crate::sys::interface::{self, Interface, InterfaceWatch};
use crate::sys::namespace::{self, Namespace};

pub use builder::{
    PortBuilder, PortId, QueuingBuilder, RawBuilder, SamplingBuilder, TypedBuilder, UdpBuilder,
};
pub use config::{NodeConfig, PortConfig, PortOptions};
pub(crate) use neighbours::neighbours_status;
pub(crate) use opening::{Attachment, candidate_name, check_ethernet, hidden_tags, limits};
use opening::{best_link, no_claims, send_pool};

/// A node. Ports keep it open; dropping it and all its ports closes it.
///
/// Node and ports belong to the process that opened them. In a child of fork(2) their calls are refused with
/// `OtherProcess`, and dropping them there leaves the parent's alone: open them again after the fork.
///
/// ```no_run
/// use tautline::{NodeConfig, Node, Priority, Wait};
///
/// let node = Node::open(NodeConfig::from_file("node.toml")?)?;
/// println!("{}", node.report());
/// let mut command = node.queuing("command").open()?;
/// let motor = command.destination("motor", 8)?;
/// command.send(motor, Priority::HIGHEST, b"stop")?;
/// if let Some(message) = command.receive(Wait::Forever)? {
///     println!("{} said {:?}", message.source(), &message[..]);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Node {
    inner: Arc<NodeInner>,
}

#[derive(Debug)]
pub(crate) struct NodeInner {
    link: Box<dyn Link>,
    marking: Marking,
    neighbours: Mutex<Neighbours>,
    ports: Ports,
    send_pool: Arc<SendPool>,
    keys: Arc<Keys>,
    /// Own MAC address, on a network that has some.
    mac: Option<MacAddress>,
    configured: Vec<PortConfig>,
    ethertype: u16,
    gateway: Option<Ipv4Addr>,
    /// State of the interface when the node was opened.
    interface: Option<Interface>,
    /// That interface now. Not on link `udp`: another one with the same IPv4 address serves it as well.
    watch: Option<Arc<InterfaceWatch>>,
    namespace: Option<Namespace>,
    process: OwnerProcess,
    report: OpenReport,
    status: OnceLock<StatusServer>,
}

impl Node {
    /// Opens a node as configured. If the configuration names no link, the node takes the best that works: `xdp` in the
    /// mode that is best on the interface, `packet`, `udp`. [`Node::report`] says which, and why not a better one.
    /// Where a control process refuses this process, that is an error: another link has to be asked for by name.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(config: NodeConfig) -> Result<Self, OpenError> {
        let attachment = Attachment::find(&config)?;
        let keys = Keys::load(&config.keys, &config.neighbours, config.clock_tolerance)?;
        let keys = Arc::new(keys);
        let (link, not_better) = best_link(&config, &attachment)?;
        Ok(Self::with_link(link, config, attachment, keys, not_better))
    }

    /// A node on a link made elsewhere: the simulated one.
    pub(crate) fn on_link(link: Box<dyn Link>, mac: MacAddress, config: NodeConfig) -> Self {
        let attachment = Attachment {
            name: None,
            interface: None,
            watch: None,
            ip: None,
        };
        let (keys, neighbours) = (&config.keys, &config.neighbours);
        let loaded = Keys::load(keys, neighbours, config.clock_tolerance);
        let (keys, refused) = match loaded {
            Ok(keys) => (keys, None),
            Err(error) => (Keys::default(), Some(error.to_string())),
        };
        let mut node = Self::with_link(link, config, attachment, Arc::new(keys), Vec::new());
        if let Some(inner) = Arc::get_mut(&mut node.inner) {
            inner.report.mac = Some(mac.to_string());
            inner.mac = Some(mac);
            inner.report.limits.extend(refused);
        }
        node
    }

    fn with_link(
        link: Box<dyn Link>,
        config: NodeConfig,
        attachment: Attachment,
        keys: Arc<Keys>,
        not_better: Vec<NotBetter>,
    ) -> Self {
        let mut limits = limits(&attachment);
        limits.extend(no_claims(link.as_ref()));
        let mode = link.capabilities().xdp_mode;
        limits.extend(hidden_tags((link.kind(), mode), &attachment, config.vlan));
        let on = mode.zip(attachment.interface.as_ref());
        limits.extend(on.and_then(|(mode, interface)| seen_first(mode, interface)));
        let send_pool = send_pool(link.kind(), config.send_pool, &mut limits);
        let on_bus = link.kind() == LinkKind::Vbus;
        let report = OpenReport {
            link: link.kind(),
            control_process: link.control_process().map(|control| control.pid),
            interface: attachment.name,
            mac: attachment
                .interface
                .as_ref()
                .map(|interface| interface.mac.to_string()),
            vlan: config.vlan.known(),
            ip: link
                .control_process()
                .and_then(|control| control.ip)
                .or(attachment.ip),
            bus: config.bus.as_ref().filter(|_| on_bus).map(place_of_bus),
            node: config
                .bus
                .as_ref()
                .filter(|_| on_bus)
                .map(|bus| bus.node.to_string()),
            capabilities: link.capabilities(),
            not_better,
            limits,
        };
        let link_kind = link.kind();
        let own = Own::of(attachment.interface.as_ref(), report.ip);
        let inner = Arc::new(NodeInner {
            link,
            marking: Marking {
                pcp: config.pcp,
                dscp: config.dscp,
            },
            neighbours: Mutex::new(Neighbours::new(config.neighbours, own)),
            ports: Ports::default(),
            send_pool,
            keys,
            mac: attachment.interface.as_ref().map(|found| found.mac),
            configured: config.ports,
            ethertype: config.ethertype,
            gateway: config.gateway,
            interface: attachment.interface,
            watch: attachment.watch.filter(|_| link_kind != LinkKind::Udp),
            // A simulated network and a bus are in no network namespace.
            namespace: (!matches!(link_kind, LinkKind::Sim | LinkKind::Vbus))
                .then(namespace::current)
                .flatten(),
            process: OwnerProcess::current(),
            report,
            status: OnceLock::new(),
        });
        inner.refresh_neighbours();
        let mut node = Self { inner };
        if config.publish_status && link_kind != LinkKind::Sim {
            node.publish_at_opening();
        }
        node
    }

    /// Publishes the status; where that is not possible, the report says so.
    fn publish_at_opening(&mut self) {
        if let Err(error) = self.publish_status() {
            let limit = format!("`taut status` does not list this node: {error}");
            // There is no other handle of the node yet.
            if let Some(inner) = Arc::get_mut(&mut self.inner) {
                inner.report.limits.push(limit);
            }
        }
    }

    /// Makes the node's state readable by `taut status`: starts a thread that answers permitted clients, and sleeps
    /// otherwise. [`Node::open`] does so already, unless [`NodeConfig::publish_status`] says no.
    ///
    /// # Errors
    /// If there is no directory for the socket, or the kernel refuses the socket or the thread.
    pub fn publish_status(&self) -> std::io::Result<()> {
        self.inner.process.check()?;
        if self.inner.status.get().is_none() {
            let node = Arc::downgrade(&self.inner);
            let told = Told {
                status: NodeInner::status,
                status_with_values: NodeInner::status_with_values,
                measure_latency: |node, is_wanted| node.ports.measure_latency(is_wanted),
                show_frames: |node, is_wanted| node.link.show_frames(is_wanted),
            };
            let server = StatusServer::start(node, told)?;
            // Two callers at once: one server stays, the other ends here.
            let _ = self.inner.status.set(server);
        }
        Ok(())
    }

    /// Reads the key files again: from then on all ports, open ones too, send and take what the new keys say. No frame
    /// is lost where both nodes have a new epoch before it begins. If a file is wrong, all keys stay as they were.
    ///
    /// # Errors
    /// [`KeyFileError`].
    pub fn reload_keys(&self) -> Result<(), KeyFileError> {
        self.inner.keys.reload()
    }

    /// Which link, why not a better one, what took effect.
    #[must_use]
    pub fn report(&self) -> &OpenReport {
        &self.inner.report
    }

    /// The state of the node at this moment.
    #[must_use]
    pub fn status(&self) -> NodeStatus {
        self.inner.status()
    }

    /// Begins a queuing port: by the name that the configuration gives it, or by a number.
    ///
    /// ```
    /// use tautline::{Node, NodeConfig};
    ///
    /// let config = r#"
    ///     link = "udp"
    ///     address = "127.0.0.1"
    ///     [[port]]
    ///     name = "command"
    ///     kind = "queuing"
    ///     number = 2043
    ///     depth = 16
    /// "#;
    /// let node = Node::open(config.parse::<NodeConfig>()?)?;
    /// let command = node.queuing("command").open()?;
    /// let log = node.queuing(2044).message_bytes_max(4096).open()?;
    /// // The configuration and the program say different things.
    /// let error = node.queuing("command").depth(32).open().unwrap_err();
    /// assert!(error.to_string().contains("`depth` is 16 in the configuration and 32"), "{error}");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn queuing<'n>(&'n self, port: impl Into<PortId<'n, MessagePort>>) -> QueuingBuilder<'n> {
        QueuingBuilder::new(self, port.into())
    }

    /// Begins a sampling port: by the name that the configuration gives it, or by a number.
    pub fn sampling<'n>(&'n self, port: impl Into<PortId<'n, MessagePort>>) -> SamplingBuilder<'n> {
        SamplingBuilder::new(self, port.into())
    }

    /// Begins a port of plain UDP, for peers that do not run Tautline: by the name that the configuration gives it, or
    /// by its UDP port. Every other UDP port of the address stays with Linux.
    pub fn udp<'n>(&'n self, port: impl Into<PortId<'n, u16>>) -> UdpBuilder<'n> {
        UdpBuilder::new(self, port.into())
    }

    /// Begins a raw port, for the frames of a protocol that is neither Linux's nor this node's: by the name that the
    /// configuration gives it, or by its EtherType. Links `xdp`, `xsk` and `packet`.
    pub fn raw<'n>(&'n self, port: impl Into<PortId<'n, EtherType>>) -> RawBuilder<'n> {
        RawBuilder::new(self, port.into())
    }

    /// The send buffers that there are, and how many are lent at the moment.
    #[must_use]
    pub fn send_pool(&self) -> SendPoolStatus {
        self.inner.send_pool.status()
    }

    pub(crate) fn owner(&self) -> Arc<dyn PortOwner> {
        Arc::clone(&self.inner) as Arc<dyn PortOwner>
    }

    pub(crate) fn configured(&self, name: &str) -> Option<&PortConfig> {
        let mut ports = self.inner.configured.iter();
        ports.find(|port| port.name == name)
    }
}

impl Network {
    /// Opens a node on this network. Of the configuration, EtherType, VLAN, neighbours and ports count.
    ///
    /// # Errors
    /// [`SimError`] if the address is taken or the network is full.
    pub fn open(&self, mac: MacAddress, config: NodeConfig) -> Result<Node, SimError> {
        let link = self.attach(mac, config.ethernet_form())?;
        Ok(Node::on_link(link, mac, config))
    }
}

/// CLOCK_MONOTONIC now, the clock that every link but the simulated one stamps with.
#[must_use]
pub fn now() -> Instant {
    clock::monotonic()
}

impl NodeInner {
    pub(crate) fn status(&self) -> NodeStatus {
        self.status_with(self.ports.status())
    }

    fn status_with_values(&self) -> NodeStatus {
        self.status_with(self.ports.status_with_values())
    }

    /// Whether the interface of link `udp` is up, by its name.
    fn named_interface_up(&self) -> Option<bool> {
        let name = self.report.interface.as_deref()?;
        self.check_caller().ok()?;
        Some(interface::query(name).is_ok_and(|found| found.up))
    }

    fn status_with(&self, ports: Vec<PortStatus>) -> NodeStatus {
        let interface_now = self.watch.as_deref().and_then(InterfaceStatus::of);
        let neighbours = neighbours_status(self.neighbours().entries());
        NodeStatus {
            process: std::process::id(),
            now_ns: clock::monotonic().as_nanos(),
            command: std::fs::read_to_string("/proc/self/comm")
                .ok()
                .map(|name| name.trim_end().to_owned()),
            report: self.report.clone(),
            interface_up: match self.watch {
                Some(_) => interface_now.as_ref().map(|now| now.up),
                None => self.named_interface_up(),
            },
            interface_now,
            neighbours,
            counters: self.link.counters(),
            ports,
            send_pool: Some(self.send_pool.status()),
            control: None,
        }
    }
}

/// MAC address and first IPv4 address of an interface, in the network namespace of the calling thread.
///
/// ```
/// let (mac, ip) = tautline::node::interface_addresses("lo")?;
/// assert!(mac.is_unspecified());
/// # Ok::<(), tautline::OpenError>(())
/// ```
///
/// # Errors
/// There is no such interface.
pub fn interface_addresses(
    name: &str,
) -> Result<(MacAddress, Option<std::net::Ipv4Addr>), OpenError> {
    let place = Attachment::find(&NodeConfig::on(name))?;
    let mac = place.interface.map(|interface| interface.mac);
    Ok((mac.unwrap_or(MacAddress::UNSPECIFIED), place.ip))
}

/// Reason for which an interface of this network namespace takes no frames: [`SendError::InterfaceDown`] or
/// [`SendError::NoCarrier`].
///
/// ```
/// use tautline::node::interface_fault;
/// use tautline::SendError;
///
/// match interface_fault("lo")? {
///     Some(SendError::InterfaceDown) => println!("bring it up"),
///     other => println!("{other:?}"),
/// }
/// # Ok::<(), tautline::OpenError>(())
/// ```
///
/// # Errors
/// There is no such interface.
pub fn interface_fault(name: &str) -> Result<Option<SendError>, OpenError> {
    let place = Attachment::find(&NodeConfig::on(name))?;
    let interface = place.interface.as_ref();
    Ok(match interface.map(|found| (found.up, found.has_carrier)) {
        Some((false, _)) => Some(SendError::InterfaceDown),
        Some((true, false)) => Some(SendError::NoCarrier),
        Some((true, true)) | None => None,
    })
}
