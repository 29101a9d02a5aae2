//! Names of peers.

use crate::look::NodeFigures;

/// A peer's address without the port of its socket, which stands behind an IPv4 address on link `udp`.
pub(crate) fn host_of(address: &str) -> &str {
    match address.split_once(':') {
        Some((host, _)) if host.contains('.') => host,
        _ => address,
    }
}

/// Name of a peer in the node's table of neighbours, or its address.
pub(crate) fn peer_name<'a>(node: &'a NodeFigures, address: &'a str) -> &'a str {
    let host = host_of(address);
    let is_it = |one: &Option<String>| one.as_deref() == Some(host);
    let mut neighbours = node.neighbours.iter();
    let found = neighbours.find(|neighbour| is_it(&neighbour.mac) || is_it(&neighbour.ip));
    found.map_or(address, |neighbour| neighbour.name.as_str())
}
