//! Two nodes that can reach each other, on each link.
#![allow(dead_code, unreachable_pub, unused_imports, unused_macros)] // Each test binary uses a part of it.

pub mod child;
pub mod control;
pub mod hostile;
pub mod readers;
pub mod service;
pub mod stranger;
pub mod udp;
pub mod unprivileged;
pub mod wire;

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use tautline::config::{BusConfig, Vlan};
use tautline::link::XdpMode;
use tautline::link::sim::Network;
use tautline::neighbours::Form;
use tautline::port::{Datagram, QueuingOptions, ReceivedFrame, SamplingOptions};
use tautline::{
    Destination, Instant, LinkKind, MacAddress, Message, Neighbour, Node, NodeConfig, PortNumber,
    Priority, QueuingPort, RawPort, Sample, SamplingPort, UdpPort, Wait, bus_neighbour,
};
use tautline_testbed::hosts::{Host, Hosts, HostsOptions, may_create};

/// Longer than any delivery takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// How much slower than others this machine is: `TAUTLINE_TEST_SLOWNESS`, for emulated ones
/// (docs/reference/testing.md).
pub fn slowness() -> u32 {
    // Read once: the tests of allocation count what a receive allocates.
    static SLOWNESS: LazyLock<u32> = LazyLock::new(|| {
        std::env::var("TAUTLINE_TEST_SLOWNESS").map_or(1, |text| text.parse().expect("a number"))
    });
    *SLOWNESS
}

/// Two nodes, each with the other as neighbour `peer`.
pub struct Pair {
    pub a: Node,
    pub b: Node,
    pub network: Option<Network>,
    /// The control process of the second node's interface, in a thread of this process.
    pub control: Option<control::Thread>,
    // Last: the nodes' interfaces.
    pub hosts: Option<Hosts>,
}

impl Pair {
    /// The clock of the pair's links.
    pub fn now(&self) -> Instant {
        self.network
            .as_ref()
            .map_or_else(tautline::now, Network::now)
    }

    pub fn soon(&self) -> Instant {
        self.now() + PATIENCE * slowness()
    }

    pub fn is_virtual(&self) -> bool {
        self.network.is_some()
    }

    /// Does something with the first node, in its host.
    pub fn on_a<T: Send>(&self, work: impl FnOnce(&Node) -> T + Send) -> T {
        match &self.hosts {
            Some(hosts) => hosts.inside(Host::A, || work(&self.a)).unwrap(),
            None => work(&self.a),
        }
    }

    /// The same with the second.
    pub fn on_b<T: Send>(&self, work: impl FnOnce(&Node) -> T + Send) -> T {
        match &self.hosts {
            Some(hosts) => hosts.inside(Host::B, || work(&self.b)).unwrap(),
            None => work(&self.b),
        }
    }

    /// A queuing port on each side, and the way from the first to the second.
    pub fn ports(
        &self,
        options: &QueuingOptions,
    ) -> (QueuingPort, QueuingPort, tautline::Destination) {
        let open = |node: &Node, number| node.queuing(port(number)).options(options).open();
        let mut sender = self.on_a(|node| open(node, 11)).unwrap();
        let receiver = self.on_b(|node| open(node, 12)).unwrap();
        let to = sender.destination("peer", port(12)).unwrap();
        (sender, receiver, to)
    }

    /// A sampling port on each side, and the way from the first to the second.
    pub fn values(
        &self,
        options: &SamplingOptions,
    ) -> (SamplingPort, SamplingPort, tautline::Destination) {
        let open = |node: &Node, number| node.sampling(port(number)).options(options).open();
        let mut publisher = self.on_a(|node| open(node, 21)).unwrap();
        let reader = self.on_b(|node| open(node, 22)).unwrap();
        let to = publisher.destination("peer", port(22)).unwrap();
        (publisher, reader, to)
    }

    /// A port of plain UDP on each side, of these numbers, and the way from the first to the second.
    pub fn udp_ports(
        &self,
        [from, to]: [u16; 2],
        options: &QueuingOptions,
    ) -> (UdpPort, UdpPort, tautline::Destination) {
        let open = |node: &Node, number| node.udp(number).options(options).open();
        let mut sender = self.on_a(|node| open(node, from)).unwrap();
        let receiver = self.on_b(|node| open(node, to)).unwrap();
        let to = sender.destination("peer", to).unwrap();
        (sender, receiver, to)
    }
}

/// Options of a queuing port that differ from the defaults.
pub fn queuing_with(set: impl FnOnce(&mut QueuingOptions)) -> QueuingOptions {
    let mut options = QueuingOptions::default();
    set(&mut options);
    options
}

/// Options of a sampling port that differ from the defaults.
pub fn sampling_with(set: impl FnOnce(&mut SamplingOptions)) -> SamplingOptions {
    let mut options = SamplingOptions::default();
    set(&mut options);
    options
}

/// Sending what must be taken.
pub trait Give {
    fn give(&mut self, to: Destination, priority: Priority, message: &[u8]);
}

impl Give for QueuingPort {
    fn give(&mut self, to: Destination, priority: Priority, message: &[u8]) {
        self.send(to, priority, message).unwrap();
    }
}

impl Give for SamplingPort {
    fn give(&mut self, to: Destination, priority: Priority, message: &[u8]) {
        self.send(to, priority, message).unwrap();
    }
}

/// Receiving what must come, and nothing more.
pub trait Take {
    /// Facts about what was received.
    type Item: PartialEq + std::fmt::Debug;

    /// A receive into a buffer.
    fn look(&mut self, buffer: &mut [u8], wait: Wait) -> Option<Self::Item>;

    /// The next one, which comes soon.
    fn take_into(&mut self, buffer: &mut [u8]) -> Self::Item {
        let deadline = tautline::now() + PATIENCE * slowness();
        let received = self.look(buffer, Wait::Until(deadline));
        received.expect("something comes")
    }

    /// Makes sure that nothing is there.
    fn finds_nothing(&mut self, buffer: &mut [u8]) {
        assert_eq!(self.look(buffer, Wait::Poll), None);
    }
}

/// Tests of one function on several sides; a side that this machine lacks is skipped.
#[allow(unused_macros)]
macro_rules! on_sides {
    ($(fn $name:ident($side:ident) = $test:ident $(, $more:expr)*;)*) => {$(
        #[test]
        fn $name() {
            if $crate::common::is_here($side) {
                $test($side $(, $more)*);
            }
        }
    )*};
}
#[allow(unused_imports)]
pub(crate) use on_sides;

macro_rules! take {
    ($($port:ty, $receive:ident -> $item:ty;)*) => {$(
        impl Take for $port {
            type Item = $item;

            fn look(&mut self, buffer: &mut [u8], wait: Wait) -> Option<$item> {
                self.$receive(buffer, wait).unwrap()
            }
        }
    )*};
}

take! {
    QueuingPort, receive_into -> Message;
    SamplingPort, next_into -> Sample;
    UdpPort, receive_into -> Datagram;
    RawPort, receive_into -> ReceivedFrame;
}

pub fn port(number: u16) -> PortNumber {
    PortNumber::new(number).unwrap()
}

/// Hosts for a test with a control process. In the test's other processes, serves or is `client`, and gives none.
pub fn begin(client: impl FnOnce(&str)) -> Option<Hosts> {
    match child::role() {
        None => return hosts(),
        Some(role) if control::served(&role) => {}
        Some(role) => client(&role),
    }
    None
}

/// Makes hosts, or says why the test is skipped. `TAUTLINE_TEST_INTERFACES` names two interfaces of this machine
/// that are to be their cable (docs/reference/testing.md).
pub fn hosts() -> Option<Hosts> {
    if !may_create() {
        println!("SKIPPED: making network namespaces needs CAP_SYS_ADMIN and CAP_NET_ADMIN");
        return None;
    }
    let Ok(interfaces) = std::env::var("TAUTLINE_TEST_INTERFACES") else {
        return Some(Hosts::create(&HostsOptions::default()).unwrap());
    };
    let (a, b) = interfaces.split_once(',').expect("two names: eth1,eth2");
    Some(Hosts::join([a, b]).unwrap())
}

/// Whether the interfaces that were named must have zero-copy AF_XDP: `TAUTLINE_TEST_ZERO_COPY` is set.
pub fn zero_copy_demanded() -> bool {
    std::env::var_os("TAUTLINE_TEST_ZERO_COPY").is_some()
}

/// How one side of a pair is to be.
#[derive(Clone, Copy)]
pub struct Side {
    pub link: LinkKind,
    pub mode: Option<XdpMode>,
    /// The form in which the other side is to be sent to.
    pub form: Form,
    /// Whether frames carry their priority for switches.
    pub is_marked: bool,
    /// VLAN of the Ethernet form.
    pub vlan: Vlan,
}

pub const XDP: Side = Side {
    link: LinkKind::Xdp,
    mode: Some(XdpMode::Native),
    form: Form::Ethernet,
    is_marked: false,
    vlan: Vlan::NONE,
};
pub const XDP_GENERIC: Side = Side {
    mode: Some(XdpMode::Generic),
    ..XDP
};
pub const XDP_TC: Side = Side {
    mode: Some(XdpMode::Tc),
    ..XDP
};
pub const XSK: Side = Side {
    link: LinkKind::Xsk,
    ..XDP
};
pub const XSK_GENERIC: Side = Side {
    link: LinkKind::Xsk,
    ..XDP_GENERIC
};
pub const PACKET: Side = Side {
    link: LinkKind::Packet,
    mode: None,
    ..XDP
};
pub const UDP: Side = Side {
    link: LinkKind::Udp,
    form: Form::Udp,
    ..PACKET
};

/// Those of the sides whose hook this kernel has; says which one it has not.
pub fn here<const N: usize>(sides: [Side; N]) -> impl Iterator<Item = Side> {
    sides.into_iter().filter(|side| is_here(*side))
}

/// Whether this kernel has the hook of a side; else the test is skipped.
pub fn is_here(side: Side) -> bool {
    let mut features = tautline::kernel::FEATURES.iter();
    let tcx = features.find(|feature| feature.used_by.contains("`tc`"));
    let lacks = side.mode == Some(XdpMode::Tc)
        && tcx.is_some_and(|tcx| matches!(tcx.is_there(), Ok(false)));
    if lacks {
        println!("SKIPPED: traffic control without BPF links (before Linux 6.6)");
    }
    !lacks
}

impl Side {
    /// The same with marks.
    pub const fn marked(self) -> Self {
        Self {
            is_marked: true,
            ..self
        }
    }

    /// The same in a VLAN.
    pub const fn in_vlan(self, vlan: Vlan) -> Self {
        Self { vlan, ..self }
    }

    pub const fn speaking_udp(self) -> Self {
        Self {
            form: Form::Udp,
            ..self
        }
    }
}

/// The configuration of one side; `peer` is the other host.
pub fn config(hosts: &Hosts, host: Host, side: Side) -> NodeConfig {
    let peer = hosts.end(host.peer(), 0);
    let neighbour = Neighbour {
        name: "peer".to_owned(),
        mac: MacAddress(peer.mac()),
        ip: Some(peer.address()),
        form: side.form,
    };
    let mut config = NodeConfig::on(&hosts.end(host, 0).interface()).with_link(side.link);
    config.xdp_mode = side.mode;
    config.vlan = side.vlan;
    config.pcp = side.is_marked;
    config.dscp = side.is_marked;
    config.with_neighbour(neighbour).unwrap()
}

pub fn open(hosts: &Hosts, host: Host, side: Side) -> Node {
    open_with(hosts, host, config(hosts, host, side))
}

fn open_with(hosts: &Hosts, host: Host, config: NodeConfig) -> Node {
    let node = hosts.inside(host, || Node::open(config).unwrap()).unwrap();
    if hosts.is_hardware() {
        // A network card begins anew with an XDP program.
        hosts.wait_until_up().unwrap();
    }
    node
}

/// Two nodes in two hosts; `None` where hosts cannot be made.
pub fn pair(a: Side, b: Side) -> Option<Pair> {
    pair_with((a, b), false, |config| config)
}

/// Two nodes in two hosts, the second through a control process.
pub fn controlled_pair(a: Side, b: Side) -> Option<Pair> {
    pair_with((a, b), true, |config| config)
}

/// Two nodes of other configurations in two hosts, the second through a control process if that is wanted.
pub fn pair_with(
    (a, b): (Side, Side),
    is_controlled: bool,
    adapt: impl Fn(NodeConfig) -> NodeConfig,
) -> Option<Pair> {
    if !is_here(a) || !is_here(b) {
        return None;
    }
    let hosts = hosts()?;
    let control = is_controlled.then(|| control::Thread::start(&hosts, b));
    let open = |host, side| open_with(&hosts, host, adapt(config(&hosts, host, side)));
    let pair = Pair {
        a: open(Host::A, a),
        b: open(Host::B, b),
        network: None,
        control,
        hosts: Some(hosts),
    };
    assert_eq!(pair.b.report().control_process.is_some(), is_controlled);
    Some(pair)
}

/// Two nodes on a simulated network without faults.
pub fn sim_pair() -> Pair {
    sim_pair_with(|config| config)
}

/// The same, with nodes of another configuration.
pub fn sim_pair_with(adapt: impl Fn(NodeConfig) -> NodeConfig) -> Pair {
    let network = Network::new(Default::default());
    let mac = |last: u8| MacAddress([2, 0, 0, 0, 0, last]);
    let open = |own: u8, other: u8| {
        let neighbour = Neighbour {
            name: "peer".to_owned(),
            mac: mac(other),
            ip: None,
            form: Form::Ethernet,
        };
        let config = NodeConfig::on("sim").with_neighbour(neighbour).unwrap();
        network.open(mac(own), adapt(config)).unwrap()
    };
    Pair {
        a: open(1, 2),
        b: open(2, 1),
        network: Some(network),
        control: None,
        hosts: None,
    }
}

/// A bus of the calling test's own.
pub fn bus(test: &str) -> BusConfig {
    static SERIAL: AtomicU32 = AtomicU32::new(0);
    let serial = SERIAL.fetch_add(1, Relaxed);
    let name = format!("taut-{test}-{}-{serial}", std::process::id());
    let path = std::env::temp_dir().join(name);
    BusConfig::new(path.to_str().unwrap(), "peer".parse().unwrap())
}

/// Two nodes on one bus. They share a name, as two processes of one host share its address: so
/// each has the other's ports as those of its neighbour `peer`.
pub fn bus_pair() -> Pair {
    let bus = bus("conformance");
    let open = || {
        let config = NodeConfig::vbus(bus.clone());
        let config = config.with_neighbour(bus_neighbour(bus.node)).unwrap();
        Node::open(config).unwrap()
    };
    Pair {
        a: open(),
        b: open(),
        network: None,
        control: None,
        hosts: None,
    }
}
