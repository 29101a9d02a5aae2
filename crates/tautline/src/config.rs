//! The configuration of a node: in code, or from a TOML file. What is wrong in a file is reported
//! with line, column and what was expected.
//!
//! ```toml
//! interface = "eth0"          # the link's interface
//! link = "xdp"                # xdp, packet, udp, or, only if named, xsk; left out: vbus with a bus alone, else the best
//! xdp_mode = "native"         # or "generic", "tc"; left out: the best for the interface
//! busy_poll_us = 20           # on link xsk, how long a look polls the driver itself; left out: not at all
//! zero_copy = true            # on link xsk, refuse to work with copies (false: without); left out: as the driver can
//! ethertype = 0x88b5          # of the Ethernet form
//! vlan = 5                    # links xdp and xsk: VLAN of the Ethernet form; left out: none
//! address = "10.0.0.1"        # this node's IPv4 address; left out: the interface's first
//! bus = "cell"                # link vbus: the bus, a name or a directory
//! node = "controller"         # link vbus: this node's name on the bus; peers are neighbours by name
//! bus_mode = 0o770            # link vbus: who may use the bus, if this node makes it; left out: 0o700
//! bus_group = "control"       # link vbus: whose group, name or number; left out: this process's
//! bus_owner = "robot"         # link vbus: who must have made the bus, or root; left out: this user, root, or who may use it
//! bus_wait_ms = 5000          # link vbus: how long to wait for a peer's port that is not there; left out: 0
//! gateway = "10.0.0.254"      # neighbour through which plain UDP leaves the network
//! clock_tolerance_ms = 1000   # how far clocks of neighbours with protected ports may be apart
//! publish_status = false      # no thread that tells `taut status`; left out: true
//!
//! [[neighbour]]
//! name = "motor"
//! mac = "02:00:00:00:00:02"
//! ip = "10.0.0.2"
//! form = "ethernet"           # or "udp"; left out: ethernet where there is a mac
//! key_file = "/etc/tautline/motor.key" # keys that both nodes share, for protected ports
//!
//! [[port]]
//! name = "state"
//! number = 7
//! kind = "sampling"
//! refresh_period_us = 1000
//! value_bytes_max = 1484
//! sources = 24                # peers' ports that each have a value of their own; left out: 1, all share one
//!
//! [[port]]
//! name = "command"
//! number = 8
//! kind = "queuing"
//! depth = 64
//! message_bytes_max = 1484
//! spin_us = 50
//! police_rate = 10000         # messages a second that the port takes; left out: all that come
//! police_burst = 64           # messages at once after a pause; left out: 16
//! protection = "authenticated" # or "encrypted"; takes authentic frames only; left out: not protected
//!
//! [[port]]
//! name = "joints"
//! number = 9
//! kind = "sampling"
//! type = "JointState"         # of the values that the port receives; left out: any bytes
//! sends = "JointCommand"      # of those that it sends; left out: the same
//!
//! [[type]]                    # little-endian, one field after the other
//! name = "JointState"
//! fields = ["position: f64[7]", "velocity: f64[7]", "flags: u32"]
//!
//! [[type]]
//! name = "JointCommand"
//! fields = ["torque: f32[7]"]
//!
//! [[port]]
//! name = "setpoints"
//! kind = "udp"                # plain UDP, for peers that are not ours
//! number = 5000               # any UDP port
//! depth = 64
//! message_bytes_max = 1484    # up to 65507
//! spin_us = 50
//!
//! [[port]]
//! name = "fieldbus"
//! kind = "raw"                # frames of another protocol, as they are
//! ethertype = 0x88a4
//! depth = 64
//! spin_us = 50
//!
//! [send_pool]                 # send buffers that the node lends; each may be left out
//! pages_1 = 16                # of 4,096 bytes, 0 to 64 of them
//! pages_4 = 8
//! pages_8 = 4
//! pages_16 = 4
//!
//! [[allow]]                   # for `taut node run`: what other processes may have
//! user = "robot"              # or group = "…"
//! ports = [7, "10-19"]
//! ethertypes = [0x88a4, "0x9000-0x9007"] # for raw ports; left out: none
//! any_source_address = true   # of raw frames; left out: the interface's alone
//! priorities = ["0-5"]        # left out: all
//! memory_bytes_max = 41943040
//!
//! [[bus_allow]]               # link vbus: other users on the bus; left out: all whom the bus lets in
//! user = "robot"              # name or number
//! nodes = ["motor"]           # names that only those users may have whose entries list them; left out: none
//! ports = [7, "10-19"]        # ports of this node that the user may send to and watch; left out: all
//!
//! [tune]                      # for `taut node run` and `taut node tune`; each may be left out
//! threaded = true
//! priority = 10
//! cpu = 1
//! interrupt_cpu = 1
//! defer_hard_irqs = 2
//! gro_flush_timeout_ns = 200000
//! busy_poll_us = 50
//! busy_read_us = 50
//!
//! [smoother]                  # for `taut smooth run`
//! capacity_bps = 100000000    # of the switch's port in front of this node
//! ```

mod allow;
mod bus;
mod port;
mod rule;
mod send_pool;
mod smoother;
mod tune;
mod types;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use serde::Deserialize;
use tautline_proto::neighbour::{Form, Neighbour};
use tautline_proto::wire::MacAddress;
use tautline_proto::wire::ethernet::is_usable_ethertype;
use tautline_state::{Others, parse_error};
use toml::Spanned;

pub use rule::{MEMORY_BYTES_DEFAULT, PORTS_DEFAULT, Rule, Who};
pub use smoother::SmootherConfig;
pub use tune::TuneConfig;

use crate::error::OpenError;
use crate::keys::KeySource;
use crate::kind::{LinkKind, XdpMode};
use crate::neighbours;

pub use crate::error::ConfigError;
pub use crate::link::vbus::config::{BusConfig, BusRule};
pub use crate::node::{NodeConfig, PortConfig, PortOptions};
pub use tautline_proto::wire::ethernet::Vlan;
pub use tautline_proto::wire::udp::UdpChecksum;

/// Configuration of a control process: its node, and what concerns that process alone.
#[derive(Clone, Debug)]
pub struct ServiceConfig {
    /// The node.
    pub node: NodeConfig,
    /// Rules for other processes.
    pub allow: Vec<Rule>,
    /// Scheduling of receive processing while the process runs.
    pub tune: Option<TuneConfig>,
    /// Whether a demux that a predecessor left with other settings is detached, though processes hold it; they receive
    /// nothing afterwards. Not a key of the file.
    pub replace: bool,
    /// Whether `taut node run` gives up the privileges that serving does not need.
    pub confine: bool,
    /// Smoothing of other traffic on the interface, which `taut smooth run` does.
    pub smoother: Option<SmootherConfig>,
}

impl ServiceConfig {
    /// A control process for root and its own user only.
    #[must_use]
    pub fn new(node: NodeConfig) -> Self {
        Self {
            node,
            allow: Vec::new(),
            tune: None,
            replace: false,
            confine: true,
            smoother: None,
        }
    }

    /// Reads a configuration file, of which a node takes its part ([`NodeConfig::from_file`]).
    ///
    /// # Errors
    /// [`OpenError::ConfigUnreadable`], [`OpenError::Config`].
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, OpenError> {
        let path = path.as_ref();
        Self::read(path, Others::MayWrite)
    }

    /// The same for the file of a control process: who can write it decides who gets ports. Refused if that is anybody
    /// else than its owner, and if its owner is neither this user nor root (with sudo, nor its caller).
    ///
    /// # Errors
    /// As there.
    pub fn from_policy_file(path: impl AsRef<Path>) -> Result<Self, OpenError> {
        Self::read(path.as_ref(), Others::MayRead)
    }

    fn read(path: &Path, others: Others) -> Result<Self, OpenError> {
        let text = tautline_state::read_text(path, CONFIG_BYTES_MAX, others);
        let text = text.map_err(|source| OpenError::ConfigUnreadable {
            path: path.to_owned(),
            source,
        })?;
        text.parse().map_err(|error| {
            OpenError::Config(ConfigError {
                file: Some(path.display().to_string()),
                ..error
            })
        })
    }
}

/// Longest configuration. Lower: one with many neighbours and types is refused. Higher: a large file of another kind
/// takes memory before it is refused.
const CONFIG_BYTES_MAX: usize = 4 << 20;

impl NodeConfig {
    /// Reads a configuration file. Of a control process's file, what concerns the node.
    ///
    /// # Errors
    /// [`OpenError::ConfigUnreadable`], [`OpenError::Config`].
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, OpenError> {
        ServiceConfig::from_file(path).map(|service| service.node)
    }
}

impl FromStr for NodeConfig {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        text.parse().map(|service: ServiceConfig| service.node)
    }
}

impl FromStr for ServiceConfig {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let document: Document = toml::from_str(text).map_err(|error| {
            let span = error.span().unwrap_or_default();
            at(text, span, parse_error::in_words(error.message()))
        })?;
        document
            .check()
            .map_err(|(span, message)| at(text, span, message))
    }
}

/// Turns a byte range into line and column.
fn at(text: &str, span: Range<usize>, message: String) -> ConfigError {
    let (line, column) = parse_error::position(text, span.start);
    ConfigError {
        file: None,
        line,
        column,
        message,
    }
}

/// Where it is wrong, and what.
type Wrong = (Range<usize>, String);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    interface: Option<String>,
    link: Option<Spanned<String>>,
    xdp_mode: Option<Spanned<String>>,
    busy_poll_us: Option<u64>,
    zero_copy: Option<bool>,
    ethertype: Option<Spanned<u16>>,
    vlan: Option<Spanned<u16>>,
    pcp: Option<bool>,
    dscp: Option<bool>,
    address: Option<Spanned<String>>,
    bus: Option<Spanned<String>>,
    node: Option<Spanned<String>>,
    bus_mode: Option<Spanned<u32>>,
    bus_group: Option<String>,
    bus_owner: Option<String>,
    bus_wait_ms: Option<u64>,
    #[serde(default)]
    bus_allow: Vec<Spanned<bus::BusAllowEntry>>,
    gateway: Option<Spanned<String>>,
    clock_tolerance_ms: Option<Spanned<u64>>,
    #[serde(default)]
    neighbour: Vec<Spanned<NeighbourEntry>>,
    #[serde(default)]
    port: Vec<Spanned<port::PortEntry>>,
    #[serde(default)]
    r#type: Vec<types::TypeEntry>,
    #[serde(default)]
    allow: Vec<Spanned<allow::AllowEntry>>,
    tune: Option<tune::TuneSection>,
    smoother: Option<smoother::SmootherSection>,
    confine: Option<bool>,
    send_pool: Option<send_pool::SendPoolSection>,
    publish_status: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NeighbourEntry {
    name: Spanned<String>,
    mac: Option<Spanned<String>>,
    ip: Option<Spanned<String>>,
    form: Option<Spanned<String>>,
    key_file: Option<PathBuf>,
}

impl Document {
    fn check(self) -> Result<ServiceConfig, Wrong> {
        let mut config = NodeConfig::on("");
        config.interface = self.interface;
        config.link = self.link.map(link).transpose()?;
        let is_of_network = config.interface.is_some() || self.address.is_some();
        if config.link.is_none() && self.bus.is_some() && !is_of_network {
            // Of all links only this one is on a bus, and the file names nothing else to be on.
            config.link = Some(LinkKind::Vbus);
        }
        config.xdp_mode = self.xdp_mode.map(xdp_mode).transpose()?;
        config.busy_poll = self.busy_poll_us.map(Duration::from_micros);
        config.zero_copy = self.zero_copy;
        if let Some(vlan) = self.vlan {
            config.vlan = Vlan::new(*vlan.get_ref()).ok_or_else(|| {
                let max = Vlan::IDENTIFIER_MAX;
                (vlan.span(), format!("expected a VLAN from 1 to {max}"))
            })?;
        }
        config.pcp = self.pcp.unwrap_or(false);
        config.dscp = self.dscp.unwrap_or(false);
        config.publish_status = self.publish_status.unwrap_or(true);
        if let Some(ethertype) = self.ethertype {
            if !is_usable_ethertype(*ethertype.get_ref()) {
                return Err((
                    ethertype.span(),
                    "expected an EtherType from 0x0600 that nothing else uses".to_owned(),
                ));
            }
            config.ethertype = ethertype.into_inner();
        }
        config.address = self
            .address
            .map(|text| parse(text, "an IPv4 address such as \"10.0.0.1\""))
            .transpose()?;
        let section = bus::BusSection {
            name: self.bus,
            node: self.node,
            mode: self.bus_mode,
            group: self.bus_group,
            owner: self.bus_owner,
            wait_ms: self.bus_wait_ms,
            allow: self.bus_allow,
        };
        config.bus = section.check()?;
        config.gateway = self
            .gateway
            .map(|text| parse(text, "an IPv4 address such as \"10.0.0.254\""))
            .transpose()?;
        if let Some(tolerance) = self.clock_tolerance_ms {
            config.clock_tolerance = clock_tolerance(&tolerance)?;
        }
        for entry in self.neighbour {
            let span = entry.span();
            let key_file = entry.get_ref().key_file.clone();
            let neighbour = neighbour(entry, config.link)?;
            if let Some(path) = key_file {
                config = config.with_keys(&neighbour.name, KeySource::File(path));
            }
            neighbours::enter(&mut config.neighbours, neighbour)
                .map_err(|error| (span, error.to_string()))?;
        }
        for entry in self.r#type {
            let declared = types::declared(entry, &config.types)?;
            config.types.push(declared);
        }
        for entry in self.port {
            let port = port::port(entry.into_inner(), &config)?;
            config.ports.push(port);
        }
        if let Some(section) = self.send_pool {
            config.send_pool = send_pool::send_pool(section)?;
        }
        let own = config.ethernet_form().ethertype;
        let rules = self.allow.into_iter().map(|entry| allow::rule(entry, own));
        Ok(ServiceConfig {
            node: config,
            allow: rules.collect::<Result<_, _>>()?,
            tune: self.tune.map(tune::tune).transpose()?,
            replace: false,
            confine: self.confine.unwrap_or(true),
            smoother: self.smoother.map(smoother::smoother).transpose()?,
        })
    }
}

/// Longest tolerance, a minute. Higher would let frames be held up for longer than any clock is wrong by itself.
const CLOCK_TOLERANCE_MS_MAX: u64 = 60_000;

fn clock_tolerance(given: &Spanned<u64>) -> Result<Duration, Wrong> {
    let ms = *given.get_ref();
    if (1..=CLOCK_TOLERANCE_MS_MAX).contains(&ms) {
        return Ok(Duration::from_millis(ms));
    }
    let message = format!("expected 1 to {CLOCK_TOLERANCE_MS_MAX} milliseconds");
    Err((given.span(), message))
}

fn parse<T: FromStr>(text: Spanned<String>, expected: &str) -> Result<T, Wrong> {
    text.get_ref().parse().map_err(|_| {
        (
            text.span(),
            format!("`{}` is not {expected}", text.get_ref()),
        )
    })
}

fn link(text: Spanned<String>) -> Result<LinkKind, Wrong> {
    match text.get_ref().as_str() {
        "xdp" => Ok(LinkKind::Xdp),
        "xsk" => Ok(LinkKind::Xsk),
        "packet" => Ok(LinkKind::Packet),
        "udp" => Ok(LinkKind::Udp),
        "vbus" => Ok(LinkKind::Vbus),
        other => Err((
            text.span(),
            format!(
                "`{other}` is not a link; expected \"xdp\", \"xsk\", \"packet\", \"udp\" or \"vbus\""
            ),
        )),
    }
}

fn xdp_mode(text: Spanned<String>) -> Result<XdpMode, Wrong> {
    match text.get_ref().as_str() {
        "native" => Ok(XdpMode::Native),
        "generic" => Ok(XdpMode::Generic),
        "tc" => Ok(XdpMode::Tc),
        other => Err((
            text.span(),
            format!(
                "`{other}` is not a mode of link xdp; expected \"native\", \"generic\" or \"tc\""
            ),
        )),
    }
}

fn neighbour(entry: Spanned<NeighbourEntry>, link: Option<LinkKind>) -> Result<Neighbour, Wrong> {
    let entry = entry.into_inner();
    let mac: Option<MacAddress> = entry
        .mac
        .map(|text| parse(text, "a MAC address such as \"02:00:00:00:00:01\""))
        .transpose()?;
    let ip = entry
        .ip
        .map(|text| parse(text, "an IPv4 address such as \"10.0.0.2\""))
        .transpose()?;
    let form = match entry.form {
        Some(text) => parse(text, "a form; expected \"ethernet\" or \"udp\"")?,
        None if link == Some(LinkKind::Vbus) && mac.is_none() && ip.is_none() => Form::Bus,
        None if mac.is_none() => Form::Udp,
        None => Form::Ethernet,
    };
    Ok(Neighbour {
        name: entry.name.into_inner(),
        mac: mac.unwrap_or(MacAddress::UNSPECIFIED),
        ip,
        form,
    })
}

#[cfg(test)]
mod tests {
    use tautline_proto::authentication::Protection;
    use tautline_proto::wire::PortKey;
    use tautline_proto::wire::raw::EtherType;

    use super::*;
    use crate::policing::Policing;
    use crate::send_pool::SendPoolConfig;

    fn error(text: &str) -> String {
        text.parse::<NodeConfig>().unwrap_err().to_string()
    }

    #[test]
    fn a_sampling_port_holds_values_of_the_size_of_its_type() {
        let text = "[[type]]\nname = \"T\"\nfields = [\"a: u8[60]\"]\n[[port]]\nname = \"a\"\nnumber = 7\n\
                    kind = \"sampling\"\ntype = \"T\"\n";
        let config: NodeConfig = text.parse().unwrap();
        let PortOptions::Sampling(options) = &config.ports[0].kind else {
            panic!("it is a sampling port");
        };
        assert_eq!(options.value_bytes_max, 60);
    }

    #[test]
    fn reads_what_the_documentation_shows() {
        let text = include_str!("config.rs");
        let example: String = text
            .lines()
            .skip_while(|line| *line != "//! ```toml")
            .skip(1)
            .take_while(|line| *line != "//! ```")
            .map(|line| line.trim_start_matches("//!").trim_start().to_owned() + "\n")
            .collect();
        let service: ServiceConfig = example.parse().unwrap();
        assert_eq!(service.allow.len(), 1);
        assert_eq!(service.allow[0].ports, [7..=7, 10..=19]);
        assert_eq!(
            service.allow[0].ethertypes,
            [0x88A4..=0x88A4, 0x9000..=0x9007]
        );
        assert!(service.allow[0].any_source_address);
        assert_eq!(service.tune.unwrap().priority, Some(10));
        assert_eq!(service.smoother.unwrap().capacity_bps, 100_000_000);
        let config = service.node;
        assert_eq!(config.interface.as_deref(), Some("eth0"));
        assert_eq!(config.link, Some(LinkKind::Xdp));
        assert_eq!(config.neighbours.len(), 1);
        assert_eq!(config.ports.len(), 5);
        let types = &config.ports[2].types;
        assert_eq!(types.receives.as_ref().unwrap().bytes(), 116);
        assert_eq!(types.sends.as_ref().unwrap().name(), "JointCommand");
        assert_eq!(config.gateway, Some([10, 0, 0, 254].into()));
        assert_eq!(config.ports[3].key, PortKey::udp(5000).unwrap());
        assert_eq!(config.ports[4].key, EtherType::ETHERCAT.into());
        assert_eq!(config.send_pool, SendPoolConfig::default());
        let PortOptions::Sampling(options) = &config.ports[0].kind else {
            panic!("port `state` is a sampling port");
        };
        assert_eq!(options.refresh_period, Duration::from_millis(1));
        assert_eq!(options.sources, 24);
        let PortOptions::Queuing(options) = &config.ports[1].kind else {
            panic!("port `command` is a queuing port");
        };
        assert_eq!(options.policing, Some(Policing::per_second(10_000, 64)));
        assert_eq!(options.protection, Some(Protection::Authenticated));
        assert_eq!(config.keys[0].neighbour, "motor");
        assert_eq!(config.clock_tolerance, Duration::from_secs(1));
    }

    #[test]
    fn says_where_and_what_was_expected() {
        let unknown = error("interface = \"a\"\nspeed = 3\n");
        let (what, keys) = unknown.split_once("; expected ").unwrap();
        assert_eq!(what, "line 2, column 1: there is no key `speed`");
        assert!(
            keys.starts_with("`interface`, `link`, ") && keys.ends_with(" or `publish_status`")
        );
        assert_eq!(
            error("[[neighbour]]\nname = \"m\"\nmac = \"02:00:zz\"\n"),
            "line 3, column 7: `02:00:zz` is not a MAC address such as \"02:00:00:00:00:01\""
        );
        assert_eq!(
            error("address = \"10.0.0\"\n"),
            "line 1, column 11: `10.0.0` is not an IPv4 address such as \"10.0.0.1\""
        );
        let port = "[[port]]\nname = \"a\"\nnumber = 7\nkind = \"sampling\"\n";
        let again = "[[port]]\nname = \"b\"\nnumber = 7\nkind = \"queuing\"\n";
        assert_eq!(
            error(&format!("{port}{again}")),
            "line 7, column 10: port 7 is that of port `a` already"
        );
        assert_eq!(
            error("[[port]]\nname = \"a\"\nnumber = 4096\nkind = \"queuing\"\n"),
            "line 3, column 10: port number 4096 is out of range, expected 1 to 4095"
        );
        assert_eq!(
            error("link = \"wifi\""),
            "line 1, column 8: `wifi` is not a link; expected \"xdp\", \"xsk\", \"packet\", \"udp\" or \"vbus\""
        );
        assert!(error("interface = [1").starts_with("line 1, column "));
        let fields =
            |fields: &str| error(&format!("[[type]]\nname = \"T\"\nfields = [{fields}]\n"));
        assert_eq!(
            fields("\"a: u8\", \"b: u9\""),
            "line 3, column 20: field `b`: `u9` is not one of i8, u8, i16, u16, i32, u32, i64, u64, f32, f64"
        );
        assert_eq!(fields(""), "line 3, column 10: 0 fields, expected 1 to 64");
        assert_eq!(
            fields("\"a: u8\", \"a: u8\""),
            "line 3, column 10: there are two fields `a`"
        );
        let typed = "[[type]]\nname = \"T\"\nfields = [\"a: u8[2000]\"]\n[[port]]\nname = \"a\"\nnumber = 7\n";
        assert_eq!(
            error(&format!("{typed}kind = \"queuing\"\ntype = \"S\"\n")),
            "line 8, column 8: no type `S`: there are T"
        );
        assert_eq!(
            error(&format!(
                "{typed}kind = \"sampling\"\ntype = \"T\"\nvalue_bytes_max = 1999\n"
            )),
            "line 9, column 19: a T has 2000 bytes, and the port takes 1999"
        );
        let raw = |rest: &str| {
            error(&format!(
                "[[port]]\nname = \"a\"\nkind = \"raw\"\nethertype = {rest}\n"
            ))
        };
        assert_eq!(
            raw("0x0800"),
            "line 4, column 13: EtherType 0x0800 is Linux's own (IPv4, ARP, IPv6)"
        );
        assert_eq!(
            raw("70000"),
            "line 4, column 13: `70000` is not an EtherType, expected 0x0600 to 0xffff"
        );
        assert_eq!(
            raw("0x88b5"),
            "line 4, column 13: EtherType 0x88b5 is this node's own"
        );
        assert_eq!(
            raw("0x88a4\n[[port]]\nname = \"b\"\nkind = \"raw\"\nethertype = 0x88a4"),
            "line 8, column 13: EtherType 0x88a4 is that of port `a` already"
        );
        assert_eq!(
            raw("0x88a4\ndepth = 3"),
            "line 5, column 9: depth 3 is not a power of two from 2 to 4096"
        );
        let udp = |rest: &str| {
            error(&format!(
                "[[port]]\nname = \"a\"\nkind = \"udp\"\nnumber = {rest}\n"
            ))
        };
        assert_eq!(
            udp("0"),
            "line 4, column 10: `0` is not a UDP port, expected 1 to 65535"
        );
        assert_eq!(
            udp("7\n[[port]]\nname = \"b\"\nkind = \"udp\"\nnumber = 7"),
            "line 8, column 10: UDP port 7 is that of port `a` already"
        );
        assert_eq!(
            udp("7\nsources = 2"),
            "line 5, column 11: a port of kind \"udp\" has no `sources`; expected `number`, `depth` or `message_bytes_max`"
        );
        assert_eq!(
            error("[[port]]\nname = \"a\"\nkind = \"raw\"\n"),
            "line 3, column 8: a port of kind \"raw\" needs `ethertype`"
        );
        assert_eq!(
            udp("7\nmessage_bytes_max = 65508"),
            "line 5, column 21: messages of 65508 bytes do not fit: a datagram has at most 65,507"
        );
        assert_eq!(
            error("gateway = \"router\""),
            "line 1, column 11: `router` is not an IPv4 address such as \"10.0.0.254\""
        );
        assert_eq!(
            error("[[port]]\nname = \"a\"\nnumber = 1\nkind = \"queuing\"\ndepth = 48\n"),
            "line 5, column 9: depth 48 is not a power of two from 2 to 4096"
        );
        let port = "[[port]]\nname = \"a\"\nnumber = 1\nkind = \"sampling\"\n";
        assert_eq!(
            error(&format!("{port}message_bytes_max = 64\n")),
            "line 5, column 21: a port of kind \"sampling\" has no `message_bytes_max`; expected `number`, \
             `value_bytes_max`, `refresh_period_us`, `sources`, `protection`, `type`, `sends`, `readers` or `follow`"
        );
        assert_eq!(
            error(&format!("{port}value_bytes_max = 65537\nsources = 2\n")),
            "line 5, column 19: messages of 65537 bytes do not fit: 1 to 65,536 bytes"
        );
        assert_eq!(
            error(&format!("{port}police_rate = 0\n")),
            "line 5, column 15: police_rate 0 is out of range, expected 1 to 10000000"
        );
        assert_eq!(
            error(&format!("{port}police_rate = 5\npolice_burst = 1000001\n")),
            "line 6, column 16: police_burst 1000001 is out of range, expected 1 to 1000000"
        );
        assert_eq!(
            error(&format!("{port}protection = \"signed\"\n")),
            "line 5, column 14: `signed` is not a protection; expected \"authenticated\" or \"encrypted\""
        );
        assert_eq!(
            error("clock_tolerance_ms = 0\n"),
            "line 1, column 22: expected 1 to 60000 milliseconds"
        );
        assert_eq!(
            error(&format!("{port}sources = 49\n")),
            "line 5, column 11: 49 sources are out of range (1 to 48)"
        );
        assert_eq!(
            error(&format!("{port}police_burst = 8\n")),
            "line 5, column 16: police_burst needs a police_rate"
        );
        let on_bus =
            "link = \"vbus\"\nbus = \"cell\"\nnode = \"a\"\n[[neighbour]]\nname = \"camera\"\n";
        assert_eq!(
            error(&format!("{port}readers = true\n")),
            "line 5, column 11: only ports on link vbus have readers; expected link = \"vbus\""
        );
        assert_eq!(
            error(&format!(
                "{on_bus}{port}follow = [\"camera.5\", \"lens.5\"]\n"
            )),
            "line 10, column 23: there is no [[neighbour]] with name = \"lens\""
        );
        assert!(
            error(&format!("{on_bus}{port}follow = [\"camera\"]\n"))
                .starts_with("line 10, column 11: `camera` does not name a port: ")
        );
        let many = "\"camera.5\",".repeat(33);
        assert_eq!(
            error(&format!("{on_bus}{port}follow = [{many}]\n")),
            "line 10, column 10: 33 ports are too many to follow, expected up to 32"
        );
        assert_eq!(
            error(&format!("{on_bus}{port}value_bytes_max = 16777217\n")),
            "line 10, column 19: messages of 16777217 bytes do not fit: 1 to 16,777,216 bytes"
        );
        let allow = "[[allow]]\nports = [1]\n";
        assert_eq!(
            error(allow),
            "line 1, column 1: expected either `user` or `group`"
        );
        for ports in ["[0]", "[\"5-3\"]", "[\"1-4096\"]", "[true]"] {
            assert_eq!(
                error(&format!("[[allow]]\nuser = \"a\"\nports = {ports}\n")),
                "line 3, column 10: expected a port number from 1 to 4095, or a range such as \"3-5\""
            );
        }
        for (types, expected) in [
            (
                "[0x0800]",
                "EtherType 0x0800 is Linux's own (IPv4, ARP, IPv6)",
            ),
            ("[0x88b5]", "EtherType 0x88b5 is this node's own"),
            (
                "[\"0x9000-0x10000\"]",
                "`65536` is not an EtherType, expected 0x0600 to 0xffff",
            ),
            (
                "[\"0x9007-0x9000\"]",
                "expected an EtherType such as 0x88a4, or a range such as \"0x9000-0x9007\"",
            ),
            (
                "[\"0x+9000-0x9007\"]",
                "expected an EtherType such as 0x88a4, or a range such as \"0x9000-0x9007\"",
            ),
        ] {
            assert_eq!(
                error(&format!(
                    "[[allow]]\nuser = \"a\"\nports = []\nethertypes = {types}\n"
                )),
                format!("line 4, column 15: {expected}")
            );
        }
        assert_eq!(
            error("[tune]\npriority = 100\n"),
            "line 2, column 12: expected a real-time priority from 1 to 99"
        );
        assert_eq!(
            error("[send_pool]\npages_16 = 65\n"),
            "line 2, column 12: 65 buffers of a size are too many, expected 0 to 64"
        );
        assert_eq!(
            error("[send_pool]\npages_2 = 1\n"),
            "line 2, column 1: there is no key `pages_2`; expected `pages_1`, `pages_4`, `pages_8` or `pages_16`"
        );
    }
}
