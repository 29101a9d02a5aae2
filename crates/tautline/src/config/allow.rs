//! The `[[allow]]` entries of a configuration: the grammar of [`Rule`].

use std::ops::RangeInclusive;

use serde::Deserialize;
use tautline_proto::wire::{PORT_MAX, Priority};
use toml::{Spanned, Value};

use super::Wrong;
use super::port::ethertype;
use super::rule::{MEMORY_BYTES_DEFAULT, PORTS_DEFAULT, Rule, Who};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AllowEntry {
    user: Option<Spanned<String>>,
    group: Option<Spanned<String>>,
    ports: Vec<Spanned<Value>>,
    #[serde(default)]
    udp_ports: Vec<Spanned<Value>>,
    #[serde(default)]
    ethertypes: Vec<Spanned<Value>>,
    #[serde(default)]
    any_source_address: bool,
    priorities: Option<Vec<Spanned<Value>>>,
    memory_bytes_max: Option<u64>,
    ports_max: Option<usize>,
}

/// `own`: EtherType of the node, which no raw port can have.
pub(super) fn rule(entry: Spanned<AllowEntry>, own: u16) -> Result<Rule, Wrong> {
    let span = entry.span();
    let entry = entry.into_inner();
    let who = match (entry.user, entry.group) {
        (Some(user), None) => Who::User(user.into_inner()),
        (None, Some(group)) => Who::Group(group.into_inner()),
        _ => return Err((span, "expected either `user` or `group`".to_owned())),
    };
    let highest = u16::from(Priority::HIGHEST.get());
    Ok(Rule {
        who,
        ports: numbers(entry.ports, 1..=PORT_MAX, "port number")?,
        udp_ports: numbers(entry.udp_ports, 1..=u16::MAX, "UDP port")?,
        ethertypes: ethertypes(entry.ethertypes, own)?,
        any_source_address: entry.any_source_address,
        priorities: match entry.priorities {
            Some(list) => numbers(list, 0..=highest, "priority")?,
            None => vec![0..=highest],
        },
        memory_bytes_max: entry.memory_bytes_max.unwrap_or(MEMORY_BYTES_DEFAULT),
        ports_max: entry.ports_max.unwrap_or(PORTS_DEFAULT),
    })
}

/// Numbers, and ranges such as "10-19".
fn numbers(
    list: Vec<Spanned<Value>>,
    within: RangeInclusive<u16>,
    what: &str,
) -> Result<Vec<RangeInclusive<u16>>, Wrong> {
    let ranges = list.into_iter().map(|entry| {
        let range = match entry.get_ref() {
            Value::Integer(number) => u16::try_from(*number).ok().map(|number| number..=number),
            Value::String(text) => range(text),
            _ => None,
        };
        range
            .filter(|range| within.contains(range.start()) && within.contains(range.end()))
            .ok_or_else(|| {
                let (low, high) = (within.start(), within.end());
                let message =
                    format!("expected a {what} from {low} to {high}, or a range such as \"3-5\"");
                (entry.span(), message)
            })
    });
    ranges.collect()
}

/// EtherTypes, and ranges such as "0x9000-0x9007". Those within a range that no raw port can have stay refused.
fn ethertypes(list: Vec<Spanned<Value>>, own: u16) -> Result<Vec<RangeInclusive<u16>>, Wrong> {
    let ranges = list.into_iter().map(|entry| {
        let both = match entry.get_ref() {
            Value::Integer(number) => Some((*number, *number)),
            Value::String(text) => text
                .split_once('-')
                .and_then(|(low, high)| Some((integer(low.trim())?, integer(high.trim())?)))
                .filter(|(low, high)| low <= high),
            _ => None,
        };
        let Some((low, high)) = both else {
            let message =
                "expected an EtherType such as 0x88a4, or a range such as \"0x9000-0x9007\"";
            return Err((entry.span(), message.to_owned()));
        };
        let checked = |number| ethertype(number, own).map_err(|message| (entry.span(), message));
        Ok(checked(low)?.get()..=checked(high)?.get())
    });
    ranges.collect()
}

/// In decimal, or in hexadecimal as TOML writes it.
fn integer(text: &str) -> Option<i64> {
    match text.strip_prefix("0x") {
        // No sign, which the parser would take.
        Some(digits) if digits.bytes().all(|digit| digit.is_ascii_hexdigit()) => {
            i64::from_str_radix(digits, 16).ok()
        }
        Some(_) => None,
        None => text.parse().ok(),
    }
}

fn range(text: &str) -> Option<RangeInclusive<u16>> {
    let (low, high) = text.split_once('-')?;
    let range = low.trim().parse().ok()?..=high.trim().parse().ok()?;
    (!range.is_empty()).then_some(range)
}
