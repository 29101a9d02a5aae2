//! A node on each of two sides, each with the other as its neighbour: in two hosts on a cable, on two addresses of the
//! loopback interface, or on a bus of the benchmark's own.

use tautline::config::BusConfig;
use tautline::keys::{Cipher, Key, KeyRing, KeySource};
use tautline::link::XdpMode;
use tautline::neighbours::Form;
use tautline::port::{QueuingOptions, SamplingOptions};
use tautline::status::OpenReport;
use tautline::{
    Destination, LinkKind, MacAddress, Neighbour, Node, NodeConfig, PortError, QueuingPort,
    SamplingPort, UdpPort, bus_neighbour,
};
use tautline_state::TemporaryDirectory;
use tautline_testbed::hosts::{Host, Hosts};

use super::PathError;
use super::port::{Port, PortEnd, port_number};
use super::sides::Sides;

/// Names of the nodes: that of A, and that of B.
const NAMES: [&str; 2] = ["a", "b"];

/// The nodes of both sides. Their ports keep them open.
pub struct NodePair<'a> {
    sides: Sides<'a>,
    nodes: [Node; 2],
    /// Of the bus. Goes after the nodes, which are in it.
    _directory: Option<TemporaryDirectory>,
}

impl<'a> NodePair<'a> {
    /// Opens them on a link of a cable. `mode` is that of link `xdp`; nothing takes the best that works.
    pub fn on_cable(
        hosts: &'a Hosts,
        cable: usize,
        link: LinkKind,
        mode: Option<XdpMode>,
    ) -> Result<NodePair<'a>, PathError> {
        NodePair::open(Sides::Hosts(hosts, cable), |config| {
            let mut config = config.with_link(link);
            config.xdp_mode = mode;
            config
        })
    }

    /// Opens them on the best link that works.
    pub fn on_best_link(sides: Sides<'a>) -> Result<NodePair<'a>, PathError> {
        NodePair::open(sides, |config| config)
    }

    fn open(
        sides: Sides<'a>,
        adapt: impl Fn(NodeConfig) -> NodeConfig + Sync,
    ) -> Result<NodePair<'a>, PathError> {
        let open = |host| -> Result<Node, PathError> {
            let config = adapt(config(sides, host));
            Ok(sides.inside(host, || Node::open(config))??)
        };
        Ok(NodePair {
            sides,
            nodes: [open(Host::A)?, open(Host::B)?],
            _directory: None,
        })
    }

    /// Opens them on a bus that nobody else can reach: each maps the memory that they share anew, as two processes
    /// would.
    pub fn on_bus() -> Result<NodePair<'static>, PathError> {
        let directory = TemporaryDirectory::make("taut-bench")?;
        let path = directory.path().join("bus");
        let open = |host: Host| -> Result<Node, PathError> {
            let name = |host: Host| NAMES[host as usize].parse().expect("a name of the program");
            let bus = BusConfig::new(&path.to_string_lossy(), name(host));
            let config = NodeConfig::vbus(bus)
                .with_neighbour(bus_neighbour(name(host.peer())))
                .expect("an empty table has room");
            Ok(Node::open(config)?)
        };
        Ok(NodePair {
            sides: Sides::Loopback,
            nodes: [open(Host::A)?, open(Host::B)?],
            _directory: Some(directory),
        })
    }

    /// The link of the first node, and why not a better one.
    pub fn report(&self) -> &OpenReport {
        self.nodes[0].report()
    }

    /// Carrier of the messages, in a line.
    pub fn describe(&self) -> String {
        self.report().to_string().replace('\n', ";")
    }

    /// Name of the other side in a node's neighbour table.
    pub fn peer(&self, host: Host) -> &'static str {
        NAMES[host.peer() as usize]
    }

    /// Opens a port on one of the nodes.
    pub fn port<P: Send>(
        &self,
        host: Host,
        open: impl Fn(&Node) -> Result<P, PortError> + Sync,
    ) -> Result<P, PathError> {
        let node = &self.nodes[host as usize];
        Ok(self.sides.inside(host, || open(node))??)
    }

    fn ends<P: Port>(
        &self,
        open: impl Fn(&Node) -> Result<P, PortError> + Sync,
        aim: impl Fn(&mut P, &str) -> Result<Destination, PortError>,
    ) -> Result<[PortEnd<P>; 2], PathError> {
        let [mut a, mut b] = [self.port(Host::A, &open)?, self.port(Host::B, &open)?];
        // Both are open by now: on a bus, a destination is a port that is there.
        let to_b = aim(&mut a, self.peer(Host::A))?;
        let to_a = aim(&mut b, self.peer(Host::B))?;
        Ok([PortEnd::new(a, to_b), PortEnd::new(b, to_a)])
    }

    /// Queuing ports that send to each other.
    pub fn queuing(
        &self,
        number: u16,
        options: &QueuingOptions,
    ) -> Result<[PortEnd<QueuingPort>; 2], PathError> {
        let number = port_number(number);
        self.ends(
            |node| node.queuing(number).options(options).open(),
            |port, peer| port.destination(peer, number),
        )
    }

    /// Sampling ports that send to each other.
    pub fn sampling(
        &self,
        number: u16,
        options: &SamplingOptions,
    ) -> Result<[PortEnd<SamplingPort>; 2], PathError> {
        let number = port_number(number);
        self.ends(
            |node| node.sampling(number).options(options).open(),
            |port, peer| port.destination(peer, number),
        )
    }

    /// Ports of plain UDP that send to each other.
    pub fn plain_udp(
        &self,
        number: u16,
        options: &QueuingOptions,
    ) -> Result<[PortEnd<UdpPort>; 2], PathError> {
        self.ends(
            |node| node.udp(number).options(options).open(),
            |port, peer| port.destination(peer, number),
        )
    }

    /// A port of plain UDP that sends to the same port of the other side, which need not be a node's.
    pub fn plain_udp_end(
        &self,
        host: Host,
        number: u16,
        options: &QueuingOptions,
    ) -> Result<PortEnd<UdpPort>, PathError> {
        let mut port = self.port(host, |node| node.udp(number).options(options).open())?;
        let to = port.destination(self.peer(host), number)?;
        Ok(PortEnd::new(port, to))
    }
}

/// Configuration of a side's node, with the other side as its neighbour.
fn config(sides: Sides<'_>, host: Host) -> NodeConfig {
    let (config, mac, form) = match sides {
        Sides::Hosts(hosts, cable) => (
            NodeConfig::on(&hosts.end(host, cable).interface()),
            MacAddress(hosts.end(host.peer(), cable).mac()),
            Form::Ethernet,
        ),
        Sides::Loopback => (
            NodeConfig::udp(sides.address(host)),
            MacAddress::UNSPECIFIED,
            Form::Udp,
        ),
    };
    config
        .with_neighbour(Neighbour {
            name: NAMES[host.peer() as usize].to_owned(),
            mac,
            ip: Some(sides.address(host.peer())),
            form,
        })
        .expect("an empty table has room")
        .with_keys(NAMES[host.peer() as usize], KeySource::Ring(keys()))
}

/// Keys of both sides, for protected ports. They protect a measurement, so anybody may know them.
fn keys() -> KeyRing {
    let secret = std::array::from_fn(|place| place as u8);
    KeyRing::new([Key::new(1, Cipher::Aes128Gcm, 0, secret)]).expect("one key is a ring")
}
