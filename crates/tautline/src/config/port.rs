//! The `[[port]]`, `[[udp_port]]` and `[[raw_port]]` entries of a configuration.

use std::ops::Range;
use std::time::Duration;

use serde::Deserialize;
use tautline_proto::authentication::Protection;
use tautline_proto::wire::raw::EtherType;
use tautline_proto::wire::{PORT_MAX, PortNumber};
use tautline_shm::police::BURST_MAX;
use toml::Spanned;

use super::{NodeConfig, PortConfig, PortOptions, RawPortConfig, UdpPortConfig, Wrong, types};
use crate::address::{BadPortName, PortName};
use crate::error::OptionsError;
use crate::kind::LinkKind;
use crate::link::vbus::PRODUCERS_MAX;
use crate::policing::{Policing, RATE_MAX};
use crate::port::{QueuingOptions, RawOptions, SamplingOptions, UdpPort};
use crate::types::PortTypes;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PortEntry {
    name: Spanned<String>,
    number: Spanned<i64>,
    kind: Spanned<String>,
    depth: Option<Spanned<u32>>,
    message_bytes_max: Option<Spanned<usize>>,
    value_bytes_max: Option<Spanned<usize>>,
    refresh_period_us: Option<Spanned<u64>>,
    sources: Option<Spanned<usize>>,
    spin_us: Option<u64>,
    police_rate: Option<Spanned<u32>>,
    police_burst: Option<Spanned<u32>>,
    protection: Option<Spanned<String>>,
    r#type: Option<Spanned<String>>,
    sends: Option<Spanned<String>>,
    readers: Option<Spanned<bool>>,
    follow: Option<Spanned<Vec<Spanned<String>>>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct UdpPortEntry {
    name: Spanned<String>,
    number: Spanned<i64>,
    depth: Option<Spanned<u32>>,
    message_bytes_max: Option<Spanned<usize>>,
    spin_us: Option<u64>,
    police_rate: Option<Spanned<u32>>,
    police_burst: Option<Spanned<u32>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawPortEntry {
    name: Spanned<String>,
    ethertype: Spanned<i64>,
    depth: Option<Spanned<u32>>,
    spin_us: Option<u64>,
    police_rate: Option<Spanned<u32>>,
    police_burst: Option<Spanned<u32>>,
}

/// Checks a name beside those of the ports of its kind that stand before.
fn check_name<'a>(
    name: &Spanned<String>,
    kind: &str,
    mut before: impl Iterator<Item = &'a str>,
) -> Result<(), Wrong> {
    let text = name.get_ref();
    if text.is_empty() {
        return Err((
            name.span(),
            format!("a {kind} has a name of one letter or more"),
        ));
    }
    if before.any(|other| other == text) {
        return Err((
            name.span(),
            format!("there is a {kind} named `{text}` already"),
        ));
    }
    Ok(())
}

/// Port of an entry. `config` has what stands before the ports, and the ports before this one.
pub(super) fn port(mut entry: PortEntry, config: &NodeConfig) -> Result<PortConfig, Wrong> {
    let (before, link) = (&config.ports, config.link);
    let number = u16::try_from(*entry.number.get_ref())
        .ok()
        .and_then(PortNumber::new)
        .ok_or_else(|| {
            let number = entry.number.get_ref();
            let message = format!("port number {number} is out of range, expected 1 to {PORT_MAX}");
            (entry.number.span(), message)
        })?;
    if let Some(other) = before.iter().find(|other| other.number == number) {
        let message = format!(
            "port number {number} is that of port `{}` already",
            other.name
        );
        return Err((entry.number.span(), message));
    }
    check_name(&entry.name, "port", before.iter().map(|other| &*other.name))?;
    let types = types::of_port(entry.r#type.take(), entry.sends.take(), &config.types)?;
    let kind = match entry.kind.get_ref().as_str() {
        "queuing" => queuing(&entry, received_bytes(&types), link)?,
        "sampling" => sampling(&entry, received_bytes(&types), link)?,
        other => {
            let message = format!("`{other}` is not a kind; expected \"queuing\" or \"sampling\"");
            return Err((entry.kind.span(), message));
        }
    };
    let readers = entry.readers.filter(|given| *given.get_ref());
    if let Some(given) = &readers {
        has_readers(link).map_err(|message| (given.span(), message))?;
    }
    Ok(PortConfig {
        name: entry.name.into_inner(),
        number,
        kind,
        types,
        readers: readers.is_some(),
        follow: entry
            .follow
            .map_or(Ok(Vec::new()), |given| followed(given, config))?,
    })
}

/// Whether one port can publish for many on this link.
fn has_readers(link: Option<LinkKind>) -> Result<(), String> {
    match link {
        Some(LinkKind::Vbus) => Ok(()),
        _ => Err("only ports on link vbus have readers; expected link = \"vbus\"".to_owned()),
    }
}

/// Ports that a port follows.
fn followed(
    given: Spanned<Vec<Spanned<String>>>,
    config: &NodeConfig,
) -> Result<Vec<PortName>, Wrong> {
    let span = given.span();
    let given = given.into_inner();
    if !given.is_empty() {
        has_readers(config.link).map_err(|message| (span.clone(), message))?;
    }
    if given.len() > PRODUCERS_MAX {
        let count = given.len();
        let message =
            format!("{count} ports are too many to follow, expected up to {PRODUCERS_MAX}");
        return Err((span, message));
    }
    let one = |text: Spanned<String>| {
        let wrong = |message| (text.span(), message);
        let name: PortName = text
            .get_ref()
            .parse()
            .map_err(|error: BadPortName| wrong(error.to_string()))?;
        let mut known = config.neighbours.iter();
        if known.any(|(_, neighbour)| neighbour.name == name.node.as_str()) {
            return Ok(name);
        }
        let node = name.node;
        Err(wrong(format!(
            "there is no [[neighbour]] with name = \"{node}\""
        )))
    };
    given.into_iter().map(one).collect()
}

/// Name and bytes of the type that a port receives.
fn received_bytes(types: &PortTypes) -> Option<(&str, usize)> {
    let receives = types.receives.as_ref()?;
    Some((receives.name(), receives.bytes()))
}

/// Largest message of a port: the one that is given, if the port's type fits it; otherwise `default`, or the type's.
fn largest(
    given: &Option<Spanned<usize>>,
    received: Option<(&str, usize)>,
    default: usize,
) -> Result<usize, Wrong> {
    let needed = received.map_or(0, |(_, bytes)| bytes);
    match (given, received) {
        (None, _) => Ok(default.max(needed)),
        (Some(given), Some((name, _))) if *given.get_ref() < needed => {
            let taken = given.get_ref();
            let message = format!("a {name} has {needed} bytes, and the port takes {taken}");
            Err((given.span(), message))
        }
        (Some(given), _) => Ok(*given.get_ref()),
    }
}

/// Messages that pass a policed port at once, unless configured: what comes in one wake-up of a sender
/// that publishes a handful of values. Lower: harmless bunches are cut off. Higher: a flood gets that much
/// further each time that it pauses.
const POLICE_BURST_DEFAULT: u32 = 16;

fn policing(
    rate: &Option<Spanned<u32>>,
    burst: &Option<Spanned<u32>>,
) -> Result<Option<Policing>, Wrong> {
    let Some(rate) = rate else {
        return match burst {
            Some(burst) => Err((burst.span(), "police_burst needs a police_rate".to_owned())),
            None => Ok(None),
        };
    };
    let in_range = |value: &Spanned<u32>, name: &str, max: u32| {
        let value_given = *value.get_ref();
        if (1..=max).contains(&value_given) {
            return Ok(value_given);
        }
        let message = format!("{name} {value_given} is out of range, expected 1 to {max}");
        Err((value.span(), message))
    };
    let rate = in_range(rate, "police_rate", RATE_MAX)?;
    let burst = match burst {
        Some(burst) => in_range(burst, "police_burst", BURST_MAX)?,
        None => POLICE_BURST_DEFAULT,
    };
    Ok(Some(Policing::per_second(rate, burst)))
}

fn protection(given: &Option<Spanned<String>>) -> Result<Option<Protection>, Wrong> {
    let Some(given) = given else { return Ok(None) };
    let name = given.get_ref();
    let found = Protection::named(name).ok_or_else(|| {
        let known = Protection::ALL.map(Protection::name).join("\" or \"");
        let message = format!("`{name}` is not a protection; expected \"{known}\"");
        (given.span(), message)
    });
    found.map(Some)
}

/// `depth` and `message_bytes_max` of an entry.
type Sizes<'e> = (&'e Option<Spanned<u32>>, &'e Option<Spanned<usize>>);

/// The options of a port that queues, with the defaults where the entry says nothing.
fn queue(
    (depth, bytes): Sizes<'_>,
    spin_us: Option<u64>,
    policing: Option<Policing>,
) -> QueuingOptions {
    let mut options = QueuingOptions {
        policing,
        ..QueuingOptions::default()
    };
    if let Some(depth) = depth {
        options.depth = *depth.get_ref();
    }
    if let Some(bytes) = bytes {
        options.message_bytes_max = *bytes.get_ref();
    }
    if let Some(spin) = spin_us {
        options.spin = Duration::from_micros(spin).into();
    }
    options
}

/// Where an entry is wrong whose sizes cannot be had; `entry` if it names none.
fn culprit((depth, bytes): Sizes<'_>, entry: Range<usize>) -> Range<usize> {
    match (depth, bytes) {
        (Some(depth), None) => depth.span(),
        (_, Some(bytes)) => bytes.span(),
        (None, None) => entry,
    }
}

fn queuing(
    entry: &PortEntry,
    received: Option<(&str, usize)>,
    link: Option<LinkKind>,
) -> Result<PortOptions, Wrong> {
    if let Some(value) = &entry.refresh_period_us {
        let message = "a queuing port has no refresh_period_us, expected a sampling port";
        return Err((value.span(), message.to_owned()));
    }
    if let Some(sources) = &entry.sources {
        let message = "a queuing port has no sources: it keeps what everybody sends";
        return Err((sources.span(), message.to_owned()));
    }
    if let Some(bytes) = &entry.value_bytes_max {
        let message = "a queuing port keeps messages, not values, expected message_bytes_max";
        return Err((bytes.span(), message.to_owned()));
    }
    let policing = policing(&entry.police_rate, &entry.police_burst)?;
    let sizes = (&entry.depth, &entry.message_bytes_max);
    let mut options = queue(sizes, entry.spin_us, policing);
    options.protection = protection(&entry.protection)?;
    options.message_bytes_max = largest(sizes.1, received, options.message_bytes_max)?;
    options
        .check_on(link)
        .map_err(|error| (culprit(sizes, entry.kind.span()), error.to_string()))?;
    Ok(PortOptions::Queuing(options))
}

fn sampling(
    entry: &PortEntry,
    received: Option<(&str, usize)>,
    link: Option<LinkKind>,
) -> Result<PortOptions, Wrong> {
    if let Some(depth) = &entry.depth {
        let message = "a sampling port has no depth, expected a queuing port";
        return Err((depth.span(), message.to_owned()));
    }
    if let Some(bytes) = &entry.message_bytes_max {
        let message =
            "the size of a sampling port's values is called value_bytes_max, not message_bytes_max";
        return Err((bytes.span(), message.to_owned()));
    }
    let mut options = SamplingOptions {
        policing: policing(&entry.police_rate, &entry.police_burst)?,
        protection: protection(&entry.protection)?,
        ..SamplingOptions::default()
    };
    // A value of the declared type, and no other, is one.
    let default = received.map_or(options.value_bytes_max, |(_, bytes)| bytes);
    options.value_bytes_max = largest(&entry.value_bytes_max, received, default)?;
    if let Some(period) = &entry.refresh_period_us {
        if *period.get_ref() == 0 {
            let message =
                "a refresh period of 0 makes every value invalid, expected 1 or more, or no key";
            return Err((period.span(), message.to_owned()));
        }
        options.refresh_period = Duration::from_micros(*period.get_ref());
    }
    if let Some(spin) = entry.spin_us {
        options.spin = Duration::from_micros(spin).into();
    }
    if let Some(sources) = &entry.sources {
        options.sources = *sources.get_ref();
    }
    options.check_on(link).map_err(|error| {
        let culprit = match error {
            OptionsError::Sources { .. } => entry.sources.as_ref().map(Spanned::span),
            _ => entry.value_bytes_max.as_ref().map(Spanned::span),
        };
        (culprit.unwrap_or(entry.kind.span()), error.to_string())
    })?;
    Ok(PortOptions::Sampling(options))
}

pub(super) fn udp_port(
    entry: UdpPortEntry,
    before: &[UdpPortConfig],
) -> Result<UdpPortConfig, Wrong> {
    let number = *entry.number.get_ref();
    let wrong = |message: String| (entry.number.span(), message);
    let number = u16::try_from(number)
        .ok()
        .filter(|number| *number > 0)
        .ok_or_else(|| wrong(format!("`{number}` is not a UDP port, expected 1 to 65535")))?;
    if let Some(other) = before.iter().find(|other| other.number == number) {
        let name = &other.name;
        return Err(wrong(format!(
            "UDP port {number} is that of `{name}` already"
        )));
    }
    check_name(
        &entry.name,
        "UDP port",
        before.iter().map(|other| &*other.name),
    )?;
    let policing = policing(&entry.police_rate, &entry.police_burst)?;
    let sizes = (&entry.depth, &entry.message_bytes_max);
    let options = queue(sizes, entry.spin_us, policing);
    UdpPort::check(&options)
        .map_err(|error| (culprit(sizes, entry.number.span()), error.to_string()))?;
    Ok(UdpPortConfig {
        name: entry.name.into_inner(),
        number,
        options,
    })
}

/// EtherType that a raw port can have, in a node whose messages have `own`.
pub(super) fn ethertype(number: i64, own: u16) -> Result<EtherType, String> {
    let ethertype = u16::try_from(number)
        .map_err(|_| format!("`{number}` is not an EtherType, expected 0x0600 to 0xffff"))
        .and_then(|number| EtherType::new(number).map_err(|error| error.to_string()))?;
    if own == ethertype.get() {
        return Err(format!("EtherType {ethertype} is this node's own"));
    }
    Ok(ethertype)
}

/// Raw port of an entry. `config` has what stands before it.
pub(super) fn raw_port(entry: RawPortEntry, config: &NodeConfig) -> Result<RawPortConfig, Wrong> {
    let before = &config.raw_ports;
    let wrong = |message: String| (entry.ethertype.span(), message);
    let ethertype =
        ethertype(*entry.ethertype.get_ref(), config.ethernet_form().ethertype).map_err(wrong)?;
    if let Some(other) = before.iter().find(|other| other.ethertype == ethertype) {
        let name = &other.name;
        return Err(wrong(format!(
            "EtherType {ethertype} is that of `{name}` already"
        )));
    }
    check_name(
        &entry.name,
        "raw port",
        before.iter().map(|other| &*other.name),
    )?;
    let sizes = (&entry.depth, &None);
    let queue = queue(
        sizes,
        entry.spin_us,
        policing(&entry.police_rate, &entry.police_burst)?,
    );
    let options = RawOptions {
        depth: queue.depth,
        spin: queue.spin,
        policing: queue.policing,
    };
    options
        .check()
        .map_err(|error| (culprit(sizes, entry.ethertype.span()), error.to_string()))?;
    Ok(RawPortConfig {
        name: entry.name.into_inner(),
        ethertype,
        options,
    })
}
