//! The host's firewall, which does not see what comes past the kernel's stack: whether it has rules for what arrives.

use std::io;

use tautline_state::netlink::{DUMP, Request, Route, attribute, text};

use crate::iptables;

// linux/netfilter/nfnetlink.h and nf_tables.h
const GET_CHAIN: u16 = (10 << 8) | 4;
/// Bytes of `struct nfgenmsg`, which begins with the family.
const HEAD_BYTES: usize = 4;
const CHAIN_TABLE: u16 = 1;
const CHAIN_NAME: u16 = 3;
const CHAIN_HOOK: u16 = 4;
const CHAIN_POLICY: u16 = 5;
const CHAIN_USE: u16 = 6;
const CHAIN_TYPE: u16 = 7;
const HOOK_NUMBER: u16 = 1;
const FAMILY_NETDEV: u8 = 5;
/// Families of IPv4: inet and ip.
const FAMILIES: [u8; 2] = [1, 2];
/// Hooks of these families for what arrives: prerouting, input and ingress.
const HOOKS: [u32; 3] = [0, 1, 5];
const POLICY_DROP: u32 = 0;

/// Says on standard error that the firewall has rules for what arrives, if it has: they do not see what is taken.
pub fn warn() {
    // Without the privilege to look, nothing is taken either.
    let mut chains = input_chains().unwrap_or_default();
    let older = iptables::input_chains().unwrap_or_default();
    let named = |(table, chain)| format!("chain {chain} of table {table}, iptables-legacy");
    chains.extend(older.into_iter().map(named));
    if let Some(first) = chains.first() {
        say!(
            "taut: the firewall of this host has rules for what arrives ({first}), and does not see what comes past the kernel's stack\n  \
             what to do: filter at the sender or the switch, or let only known peers send (docs/explanation/security.md)"
        );
    }
}

/// Chains of nftables that filter what arrives by IPv4, also those of `iptables-nft`.
fn input_chains() -> io::Result<Vec<String>> {
    let mut chains = Vec::new();
    let mut request = Request::new(GET_CHAIN, DUMP, &[0; HEAD_BYTES]);
    Route::open_for_firewall()?.ask(&mut request, |message| chains.extend(input_chain(message)))?;
    Ok(chains)
}

/// Name of a chain, if it filters what arrives: it has rules, or drops all.
fn input_chain(message: &[u8]) -> Option<String> {
    let family = *message.first()?;
    let attributes = message.get(HEAD_BYTES..)?;
    let hook = number(attribute(attributes, CHAIN_HOOK)?, HOOK_NUMBER)?;
    let is_for_arrivals = match family {
        FAMILY_NETDEV => hook == 0,
        family => FAMILIES.contains(&family) && HOOKS.contains(&hook),
    };
    let is_filter = text(attribute(attributes, CHAIN_TYPE)?) == Some("filter");
    let has_rules = number(attributes, CHAIN_USE).is_some_and(|count| count > 0);
    let drops_all = number(attributes, CHAIN_POLICY) == Some(POLICY_DROP);
    (is_for_arrivals && is_filter && (has_rules || drops_all)).then(|| {
        let name = |kind| attribute(attributes, kind).and_then(text).unwrap_or("?");
        format!("chain {} of table {}", name(CHAIN_NAME), name(CHAIN_TABLE))
    })
}

/// A number of an attribute, in network order as nftables has them.
fn number(attributes: &[u8], kind: u16) -> Option<u32> {
    let value = attribute(attributes, kind)?.first_chunk()?;
    Some(u32::from_be_bytes(*value))
}
