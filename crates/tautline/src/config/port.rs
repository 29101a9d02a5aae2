//! The `[[port]]` entries of a configuration.

use std::ops::Range;
use std::time::Duration;

use serde::Deserialize;
use tautline_proto::authentication::Protection;
use tautline_proto::wire::raw::EtherType;
use tautline_proto::wire::{PORT_MAX, PortKey, PortNumber};
use tautline_shm::police::BURST_MAX;
use toml::Spanned;

use super::{NodeConfig, PortConfig, PortOptions, Wrong, types};
use crate::address::{BadPortName, PortName};
use crate::error::OptionsError;
use crate::kind::LinkKind;
use crate::link::vbus::PRODUCERS_MAX;
use crate::policing::{Policing, RATE_MAX};
use crate::port::{QueuingOptions, SamplingOptions};
use crate::types::PortTypes;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PortEntry {
    name: Spanned<String>,
    kind: Spanned<String>,
    number: Option<Spanned<i64>>,
    ethertype: Option<Spanned<i64>>,
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

/// The kinds, each with the keys that not all of them have.
const KINDS: [(&str, &str); 4] = [
    (
        "queuing",
        "number depth message_bytes_max protection type sends readers follow",
    ),
    (
        "sampling",
        "number value_bytes_max refresh_period_us sources protection type sends readers follow",
    ),
    ("udp", "number depth message_bytes_max"),
    ("raw", "ethertype depth"),
];

impl PortEntry {
    /// Checks that the kind exists and has all the keys of the entry.
    fn check_keys(&self) -> Result<(), Wrong> {
        let kind = self.kind.get_ref();
        let Some((_, keys)) = KINDS.iter().find(|(name, _)| name == kind) else {
            let known = KINDS.map(|(name, _)| format!("\"{name}\""));
            let message = format!("`{kind}` is not a kind; expected {}", alternatives(&known));
            return Err((self.kind.span(), message));
        };
        let has = |key: &str| keys.split(' ').any(|known| known == key);
        let given = self.given();
        let foreign = given
            .iter()
            .find(|(key, place)| place.is_some() && !has(key));
        match foreign {
            Some((key, Some(place))) => {
                let keys = keys.split(' ').map(|key| format!("`{key}`"));
                let known = alternatives(&keys.collect::<Vec<_>>());
                let message = format!("a port of kind \"{kind}\" has no `{key}`; expected {known}");
                Err((place.clone(), message))
            }
            _ => Ok(()),
        }
    }

    /// Places of the keys that not all kinds have.
    fn given(&self) -> [(&'static str, Option<Range<usize>>); 12] {
        fn place<T>(given: &Option<Spanned<T>>) -> Option<Range<usize>> {
            given.as_ref().map(Spanned::span)
        }
        [
            ("number", place(&self.number)),
            ("ethertype", place(&self.ethertype)),
            ("depth", place(&self.depth)),
            ("message_bytes_max", place(&self.message_bytes_max)),
            ("value_bytes_max", place(&self.value_bytes_max)),
            ("refresh_period_us", place(&self.refresh_period_us)),
            ("sources", place(&self.sources)),
            ("protection", place(&self.protection)),
            ("type", place(&self.r#type)),
            ("sends", place(&self.sends)),
            ("readers", place(&self.readers)),
            ("follow", place(&self.follow)),
        ]
    }

    fn option_names(&self) -> Vec<&'static str> {
        let given = self.given().into_iter();
        let others = [
            ("spin_us", self.spin_us.is_some()),
            ("police_rate", self.police_rate.is_some()),
        ];
        given
            .map(|(key, place)| (key, place.is_some()))
            .chain(others)
            .filter_map(|(key, is_given)| is_given.then_some(key))
            .collect()
    }

    /// The port's key, in a node whose messages have the EtherType `own`, and its place.
    fn key(&self, own: u16) -> Result<(PortKey, Range<usize>), Wrong> {
        let (name, given) = match self.kind.get_ref().as_str() {
            "raw" => ("ethertype", &self.ethertype),
            _ => ("number", &self.number),
        };
        let given = given.as_ref().ok_or_else(|| {
            let kind = self.kind.get_ref();
            let message = format!("a port of kind \"{kind}\" needs `{name}`");
            (self.kind.span(), message)
        })?;
        let number = *given.get_ref();
        let of_kind = u16::try_from(number).ok();
        let key = match self.kind.get_ref().as_str() {
            "raw" => ethertype(number, own).map(PortKey::Raw),
            "udp" => of_kind
                .and_then(|port| PortKey::udp(port).ok())
                .ok_or_else(|| format!("`{number}` is not a UDP port, expected 1 to 65535")),
            _ => of_kind
                .and_then(PortNumber::new)
                .map(PortKey::Message)
                .ok_or_else(|| {
                    format!("port number {number} is out of range, expected 1 to {PORT_MAX}")
                }),
        };
        key.map(|key| (key, given.span()))
            .map_err(|message| (given.span(), message))
    }
}

/// "a, b or c".
fn alternatives(names: &[String]) -> String {
    match names {
        [first @ .., last] if !first.is_empty() => format!("{} or {last}", first.join(", ")),
        _ => names.concat(),
    }
}

/// Checks a name beside those of the ports that stand before.
fn check_name(name: &Spanned<String>, before: &[PortConfig]) -> Result<(), Wrong> {
    let text = name.get_ref();
    let message = match before.iter().any(|other| other.name == *text) {
        _ if text.is_empty() => "a port has a name of one letter or more".to_owned(),
        true => format!("there is a port named `{text}` already"),
        false => return Ok(()),
    };
    Err((name.span(), message))
}

/// Port of an entry. `config` has what stands before the ports, and the ports before this one.
pub(super) fn port(mut entry: PortEntry, config: &NodeConfig) -> Result<PortConfig, Wrong> {
    let (before, link) = (&config.ports, config.link);
    entry.check_keys()?;
    let (key, place) = entry.key(config.ethernet_form().ethertype)?;
    if let Some(other) = before.iter().find(|other| other.key == key) {
        let message = format!("{key} is that of port `{}` already", other.name);
        return Err((place, message));
    }
    check_name(&entry.name, before)?;
    let types = types::of_port(entry.r#type.take(), entry.sends.take(), &config.types)?;
    let received = received_bytes(&types);
    let kind = match entry.kind.get_ref().as_str() {
        "sampling" => PortOptions::Sampling(sampling(&entry, received, link)?),
        _ => PortOptions::Queuing(queuing(&entry, key, received, link)?),
    };
    let given = entry.option_names();
    let readers = entry.readers.filter(|given| *given.get_ref());
    if let Some(given) = &readers {
        has_readers(link).map_err(|message| (given.span(), message))?;
    }
    Ok(PortConfig {
        given,
        name: entry.name.into_inner(),
        key,
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

fn queuing(
    entry: &PortEntry,
    key: PortKey,
    received: Option<(&str, usize)>,
    link: Option<LinkKind>,
) -> Result<QueuingOptions, Wrong> {
    let mut options = QueuingOptions {
        policing: policing(&entry.police_rate, &entry.police_burst)?,
        protection: protection(&entry.protection)?,
        ..QueuingOptions::default()
    };
    if let Some(depth) = &entry.depth {
        options.depth = *depth.get_ref();
    }
    if let Some(spin) = entry.spin_us {
        options.spin = Duration::from_micros(spin).into();
    }
    let bytes = &entry.message_bytes_max;
    options.message_bytes_max = largest(bytes, received, options.message_bytes_max)?;
    options.check_on(key, link).map_err(|error| {
        let place = match (&entry.depth, bytes) {
            (Some(depth), None) => depth.span(),
            (_, Some(bytes)) => bytes.span(),
            (None, None) => entry.kind.span(),
        };
        (place, error.to_string())
    })?;
    Ok(options)
}

fn sampling(
    entry: &PortEntry,
    received: Option<(&str, usize)>,
    link: Option<LinkKind>,
) -> Result<SamplingOptions, Wrong> {
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
    Ok(options)
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
