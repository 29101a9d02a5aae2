//! The configuration of a node: in code, or from a TOML file. What is wrong in a file is reported
//! with line, column and what was expected. `docs/reference/configuration.md` lists all keys.
//!
//! ```toml
//! interface = "eth0"
//!
//! [[neighbour]]
//! name = "motor"
//! mac = "02:00:00:00:00:02"
//!
//! [[port]]
//! name = "command"
//! kind = "queuing"
//! number = 8
//! ```

mod allow;
mod bus;
mod port;
mod rule;
mod smoother;
mod tune;
mod types;

use std::net::Ipv4Addr;
use std::ops::{Range, RangeInclusive};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
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
use crate::send_pool::SendPoolConfig;

pub use crate::error::ConfigError;
pub use crate::link::vbus::config::BusConfig;
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

    /// Reads the file of a control process: write access to it controls access to ports. Refused if any other user than
    /// its owner can write it, and if its owner is neither this user nor root (with sudo, nor its caller).
    ///
    /// # Errors
    /// Those of [`from_file`](Self::from_file).
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
    link: Option<LinkKind>,
    xdp_mode: Option<XdpMode>,
    #[serde(default, deserialize_with = "own_ethertype")]
    ethertype: Option<u16>,
    #[serde(default, deserialize_with = "vlan")]
    vlan: Option<Vlan>,
    #[serde(default)]
    pcp: bool,
    #[serde(default)]
    dscp: bool,
    #[serde(default, deserialize_with = "ip")]
    address: Option<Ipv4Addr>,
    bus: Option<Spanned<String>>,
    node: Option<Spanned<String>>,
    bus_mode: Option<Spanned<u32>>,
    bus_group: Option<String>,
    bus_wait_ms: Option<u64>,
    #[serde(default, deserialize_with = "ip")]
    gateway: Option<Ipv4Addr>,
    #[serde(default, deserialize_with = "clock_tolerance")]
    clock_tolerance_ms: Option<Duration>,
    #[serde(default)]
    neighbour: Vec<Spanned<NeighbourEntry>>,
    #[serde(default)]
    port: Vec<Spanned<port::PortEntry>>,
    #[serde(default)]
    r#type: Vec<types::TypeEntry>,
    #[serde(default)]
    allow: Vec<Spanned<allow::AllowEntry>>,
    tune: Option<TuneConfig>,
    smoother: Option<SmootherConfig>,
    confine: Option<bool>,
    #[serde(default)]
    send_pool: SendPoolConfig,
    publish_status: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NeighbourEntry {
    name: String,
    #[serde(default, deserialize_with = "mac")]
    mac: Option<MacAddress>,
    #[serde(default, deserialize_with = "ip")]
    ip: Option<Ipv4Addr>,
    #[serde(default, deserialize_with = "form")]
    form: Option<Form>,
    key_file: Option<PathBuf>,
}

impl Document {
    fn check(self) -> Result<ServiceConfig, Wrong> {
        let section = bus::BusSection {
            name: self.bus,
            node: self.node,
            mode: self.bus_mode,
            group: self.bus_group,
            wait_ms: self.bus_wait_ms,
        };
        let defaults = NodeConfig::on("");
        let mut config = NodeConfig {
            interface: self.interface,
            link: self.link,
            xdp_mode: self.xdp_mode,
            ethertype: self.ethertype.unwrap_or(defaults.ethertype),
            vlan: self.vlan.unwrap_or(Vlan::NONE),
            pcp: self.pcp,
            dscp: self.dscp,
            address: self.address,
            bus: section.check()?,
            clock_tolerance: self.clock_tolerance_ms.unwrap_or(defaults.clock_tolerance),
            gateway: self.gateway,
            send_pool: self.send_pool,
            publish_status: self.publish_status.unwrap_or(true),
            ..defaults
        };
        let is_of_network = config.interface.is_some() || config.address.is_some();
        if config.link.is_none() && config.bus.is_some() && !is_of_network {
            // Of all links only this one is on a bus, and the file names nothing else to be on.
            config.link = Some(LinkKind::Vbus);
        }
        for entry in self.neighbour {
            let span = entry.span();
            let entry = entry.into_inner();
            if let Some(path) = &entry.key_file {
                config = config.with_keys(&entry.name, KeySource::File(path.clone()));
            }
            neighbours::enter(&mut config.neighbours, neighbour(entry, config.link))
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
        let own = config.ethernet_form().ethertype;
        let rules = self.allow.into_iter().map(|entry| allow::rule(entry, own));
        Ok(ServiceConfig {
            node: config,
            allow: rules.collect::<Result<_, _>>()?,
            tune: self.tune,
            replace: false,
            confine: self.confine.unwrap_or(true),
            smoother: self.smoother,
        })
    }
}

fn neighbour(entry: NeighbourEntry, link: Option<LinkKind>) -> Neighbour {
    let NeighbourEntry { mac, ip, form, .. } = entry;
    let form = form.unwrap_or(match mac {
        None if link == Some(LinkKind::Vbus) && ip.is_none() => Form::Bus,
        None => Form::Udp,
        Some(_) => Form::Ethernet,
    });
    Neighbour {
        name: entry.name,
        mac: mac.unwrap_or(MacAddress::UNSPECIFIED),
        ip,
        form,
    }
}

/// Longest tolerance, a minute. Higher would let frames be held up for longer than any clock is wrong by itself.
const CLOCK_TOLERANCE_MS_MAX: u64 = 60_000;

fn clock_tolerance<'de, D: Deserializer<'de>>(given: D) -> Result<Option<Duration>, D::Error> {
    let expected = format!("1 to {CLOCK_TOLERANCE_MS_MAX} milliseconds");
    let ms = within(given, 1..=CLOCK_TOLERANCE_MS_MAX, &expected)?;
    Ok(Some(Duration::from_millis(ms)))
}

fn own_ethertype<'de, D: Deserializer<'de>>(given: D) -> Result<Option<u16>, D::Error> {
    let number = u16::deserialize(given)?;
    match is_usable_ethertype(number) {
        true => Ok(Some(number)),
        false => Err(D::Error::custom(
            "expected an EtherType from 0x0600 that nothing else uses",
        )),
    }
}

fn vlan<'de, D: Deserializer<'de>>(given: D) -> Result<Option<Vlan>, D::Error> {
    let vlan = Vlan::new(u16::deserialize(given)?);
    let expected = || format!("expected a VLAN from 1 to {}", Vlan::IDENTIFIER_MAX);
    vlan.map(Some).ok_or_else(|| D::Error::custom(expected()))
}

fn ip<'de, D: Deserializer<'de>>(given: D) -> Result<Option<Ipv4Addr>, D::Error> {
    of_text(given, "an IPv4 address such as \"10.0.0.1\"")
}

fn mac<'de, D: Deserializer<'de>>(given: D) -> Result<Option<MacAddress>, D::Error> {
    of_text(given, "a MAC address such as \"02:00:00:00:00:01\"")
}

fn form<'de, D: Deserializer<'de>>(given: D) -> Result<Option<Form>, D::Error> {
    of_text(given, "a form; expected \"ethernet\" or \"udp\"")
}

fn of_text<'de, D: Deserializer<'de>, T: FromStr>(
    given: D,
    expected: &str,
) -> Result<Option<T>, D::Error> {
    let text = String::deserialize(given)?;
    let value = text.parse().map(Some);
    value.map_err(|_| D::Error::custom(format!("`{text}` is not {expected}")))
}

fn within<'de, D: Deserializer<'de>, T: Deserialize<'de> + PartialOrd>(
    given: D,
    range: RangeInclusive<T>,
    expected: &str,
) -> Result<T, D::Error> {
    let number = T::deserialize(given)?;
    match range.contains(&number) {
        true => Ok(number),
        false => Err(D::Error::custom(format!("expected {expected}"))),
    }
}

fn parse<T: FromStr>(text: Spanned<String>, expected: &str) -> Result<T, Wrong> {
    text.get_ref().parse().map_err(|_| {
        (
            text.span(),
            format!("`{}` is not {expected}", text.get_ref()),
        )
    })
}

#[cfg(test)]
mod tests {
    use tautline_proto::authentication::Protection;

    use super::*;
    use crate::policing::Policing;

    fn error(text: &str) -> String {
        text.parse::<NodeConfig>().unwrap_err().to_string()
    }

    #[test]
    fn a_file_says_what_the_configuration_has() {
        let text = r#"
            gateway = "10.0.0.254"
            clock_tolerance_ms = 200
            neighbour = [{ name = "motor", mac = "02:00:00:00:00:02", key_file = "motor.key" }]
            type = [{ name = "State", fields = ["position: f64[7]"] }, { name = "Torque", fields = ["torque: f32[7]"] }]
            allow = [{ user = "robot", ports = [7, "10-19"], ethertypes = [0x88a4, "0x9000-0x9007"] }]
            tune = { priority = 10 }
            smoother = { capacity_bps = 100000000, limits = { motor = 100000 } }
            send_pool = { pages_4 = 3 }
            [[port]]
            name = "state"
            number = 7
            kind = "sampling"
            type = "State"
            sends = "Torque"
            refresh_period_us = 1000
            sources = 24
            [[port]]
            name = "command"
            number = 8
            kind = "queuing"
            police_rate = 10000
            police_burst = 64
            protection = "authenticated"
        "#;
        let service: ServiceConfig = text.parse().unwrap();
        let rule = &service.allow[0];
        assert_eq!(rule.ports, [7..=7, 10..=19]);
        assert_eq!(rule.ethertypes, [0x88A4..=0x88A4, 0x9000..=0x9007]);
        assert_eq!(service.tune.unwrap().priority, Some(10));
        let smoother = service.smoother.unwrap();
        assert_eq!(smoother.capacity_bps, 100_000_000);
        assert_eq!(smoother.limits["motor"], 100_000);
        let config = service.node;
        assert_eq!(config.gateway, Some([10, 0, 0, 254].into()));
        assert_eq!(config.clock_tolerance, Duration::from_millis(200));
        assert_eq!(config.keys[0].neighbour, "motor");
        assert_eq!(config.send_pool.pages_4, 3);
        assert_eq!(config.send_pool.pages_1, SendPoolConfig::default().pages_1);
        let types = &config.ports[0].types;
        assert_eq!(types.receives.as_ref().unwrap().bytes(), 56);
        assert_eq!(types.sends.as_ref().unwrap().name(), "Torque");
        let PortOptions::Sampling(options) = &config.ports[0].kind else {
            panic!("port `state` is a sampling port");
        };
        assert_eq!(options.refresh_period, Duration::from_millis(1));
        assert_eq!((options.sources, options.value_bytes_max), (24, 56));
        let PortOptions::Queuing(options) = &config.ports[1].kind else {
            panic!("port `command` is a queuing port");
        };
        assert_eq!(options.policing, Some(Policing::per_second(10_000, 64)));
        assert_eq!(options.protection, Some(Protection::Authenticated));
    }

    /// Files with a mistake at the bar, each above its error.
    const MISTAKES: &str = r#"
neighbour = [{ name = "m", mac = ¦"02:00:zz" }]
=> `02:00:zz` is not a MAC address such as "02:00:00:00:00:01"

address = ¦"10.0.0"
=> `10.0.0` is not an IPv4 address such as "10.0.0.1"

port = [{ name = "a", number = 7, kind = "sampling" }, { name = "b", number = ¦7, kind = "queuing" }]
=> port 7 is that of port `a` already

port = [{ name = "a", number = ¦4096, kind = "queuing" }]
=> port number 4096 is out of range, expected 1 to 4095

link = ¦"wifi"
=> `wifi` is unknown; expected `xdp`, `xsk`, `packet`, `udp` or `vbus`

type = [{ name = "T", fields = ["a: u8", ¦"b: u9"] }]
=> field `b`: `u9` is not one of i8, u8, i16, u16, i32, u32, i64, u64, f32, f64

type = [{ name = "T", fields = ¦[] }]
=> 0 fields, expected 1 to 64

type = [{ name = "T", fields = ¦["a: u8", "a: u8"] }]
=> there are two fields `a`

type = [{ name = "T", fields = ["a: u8"] }]
port = [{ name = "a", number = 7, kind = "queuing", type = ¦"S" }]
=> no type `S`: there are T

type = [{ name = "T", fields = ["a: u8[2000]"] }]
port = [{ name = "a", number = 7, kind = "sampling", type = "T", value_bytes_max = ¦1999 }]
=> a T has 2000 bytes, and the port takes 1999

port = [{ name = "a", kind = "raw", ethertype = ¦0x0800 }]
=> EtherType 0x0800 is Linux's own (IPv4, ARP, IPv6)

port = [{ name = "a", kind = "raw", ethertype = ¦70000 }]
=> `70000` is not an EtherType, expected 0x0600 to 0xffff

port = [{ name = "a", kind = "raw", ethertype = ¦0x88b5 }]
=> EtherType 0x88b5 is this node's own

port = [{ name = "a", kind = "raw", ethertype = 0x88a4 }, { name = "b", kind = "raw", ethertype = ¦0x88a4 }]
=> EtherType 0x88a4 is that of port `a` already

port = [{ name = "a", kind = "raw", ethertype = 0x88a4, depth = ¦3 }]
=> depth 3 is not a power of two from 2 to 4096

port = [{ name = "a", kind = "udp", number = ¦0 }]
=> `0` is not a UDP port, expected 1 to 65535

port = [{ name = "a", kind = "udp", number = 7 }, { name = "b", kind = "udp", number = ¦7 }]
=> UDP port 7 is that of port `a` already

port = [{ name = "a", kind = "udp", number = 7, sources = ¦2 }]
=> a port of kind "udp" has no `sources`; expected `number`, `depth` or `message_bytes_max`

port = [{ name = "a", kind = ¦"raw" }]
=> a port of kind "raw" needs `ethertype`

port = [{ name = "a", kind = "udp", number = 7, message_bytes_max = ¦65508 }]
=> messages of 65508 bytes do not fit: a datagram has at most 65,507

gateway = ¦"router"
=> `router` is not an IPv4 address such as "10.0.0.1"

port = [{ name = "a", number = 1, kind = "sampling", message_bytes_max = ¦64 }]
=> a port of kind "sampling" has no `message_bytes_max`; expected `number`, `value_bytes_max`, `refresh_period_us`, `sources`, `protection`, `type`, `sends`, `readers` or `follow`

port = [{ name = "a", number = 1, kind = "sampling", value_bytes_max = ¦65537, sources = 2 }]
=> messages of 65537 bytes do not fit: 1 to 65,536 bytes

port = [{ name = "a", number = 1, kind = "sampling", police_rate = ¦0 }]
=> police_rate 0 is out of range, expected 1 to 10000000

port = [{ name = "a", number = 1, kind = "sampling", police_rate = 5, police_burst = ¦1000001 }]
=> police_burst 1000001 is out of range, expected 1 to 1000000

port = [{ name = "a", number = 1, kind = "sampling", protection = ¦"signed" }]
=> `signed` is not a protection; expected "authenticated" or "encrypted"

clock_tolerance_ms = ¦0
=> expected 1 to 60000 milliseconds

port = [{ name = "a", number = 1, kind = "sampling", sources = ¦49 }]
=> 49 sources are out of range (1 to 48)

port = [{ name = "a", number = 1, kind = "sampling", police_burst = ¦8 }]
=> police_burst needs a police_rate

port = [{ name = "a", number = 1, kind = "sampling", readers = ¦true }]
=> only ports on link vbus have readers; expected link = "vbus"

bus = "cell"
node = "a"
neighbour = [{ name = "camera" }]
port = [{ name = "a", number = 1, kind = "sampling", follow = ["camera.5", ¦"lens.5"] }]
=> there is no [[neighbour]] with name = "lens"

bus = "cell"
node = "a"
port = [{ name = "a", number = 1, kind = "sampling", value_bytes_max = ¦16777217 }]
=> messages of 16777217 bytes do not fit: 1 to 16,777,216 bytes

allow = [¦{ ports = [1] }]
=> expected either `user` or `group`

allow = [{ user = "a", ports = [¦"5-3"] }]
=> expected a port number from 1 to 4095, or a range such as "3-5"

allow = [{ user = "a", ports = [], ethertypes = [¦0x0800] }]
=> EtherType 0x0800 is Linux's own (IPv4, ARP, IPv6)

allow = [{ user = "a", ports = [], ethertypes = [¦"0x9000-0x10000"] }]
=> `65536` is not an EtherType, expected 0x0600 to 0xffff

allow = [{ user = "a", ports = [], ethertypes = [¦"0x+9000-0x9007"] }]
=> expected an EtherType such as 0x88a4, or a range such as "0x9000-0x9007"

tune = { priority = ¦100 }
=> expected a real-time priority from 1 to 99

send_pool = { pages_16 = ¦65 }
=> 65 buffers of a size are too many, expected 0 to 64

send_pool = { ¦pages_2 = 1 }
=> there is no key `pages_2`; expected `pages_1`, `pages_4`, `pages_8` or `pages_16`
"#;

    #[test]
    fn a_mistake_is_named_with_its_place_and_what_was_expected() {
        for case in MISTAKES.split("\n\n") {
            let (file, expected) = case.trim().split_once("\n=> ").unwrap();
            let (line, column) = parse_error::position(file, file.find('¦').unwrap());
            let expected = format!("line {line}, column {column}: {expected}");
            assert_eq!(error(&file.replace('¦', "")), expected);
        }
    }
}
