//! One line looked into: its latencies, its peers, and every counter that the node tells.

use serde_json::Value;
use tautline_state::text::plain;

use crate::column::{short, time};
use crate::look::{Look, Node, NodeFigures, Peer};
use crate::peers::peer_name;
use crate::row::{Kind, NAME_CHARS_MAX, Row, Spread, all_ports, kind_and_number, node_place};
use crate::types;

/// Lines about a row.
pub(super) fn lines(look: &Look, row: &Row) -> Vec<String> {
    let mut lines = vec![format!("{} {}", row.key.kind.name(), row.name)];
    if let Some(process) = row.process {
        lines[0] += &format!(", process {process}");
    }
    lines.extend(row.state.clone());
    if let Some(per_second) = row.per_second {
        let bytes = short(row.bytes_per_second.unwrap_or(0.0));
        lines.push(format!("{} messages/s, {bytes} B/s", short(per_second)));
    }
    if row.age_ns.is_some() || row.valid.is_some() {
        let valid = match row.valid {
            Some(true) => ", valid",
            Some(false) => ", not valid",
            None => "",
        };
        lines.push(format!("age {}{valid}", time(row.age_ns)));
    }
    let value = node_of(look, row).zip(said_of_port(look, row));
    lines.extend(value.and_then(|(node, port)| types::newest_value(&node.status, port)));
    lines.push(spread_line("last interval", row.recent));
    lines.push(spread_line("since start ", row.ever));
    let counts = [row.lost, row.full, row.refused].map(|count| short(count as f64));
    lines.push(format!(
        "lost {}, full {}, refused {}",
        counts[0], counts[1], counts[2]
    ));
    if let Some(node) = node_of(look, row) {
        let said = match row.key.kind {
            Kind::Port | Kind::UdpPort | Kind::RawPort => {
                lines.extend(peers(&node.status, row));
                said_of_port(look, row)
            }
            _ => Some(&node.said),
        };
        lines.push(String::new());
        lines.extend(said.into_iter().flat_map(counters));
        lines.extend(said.into_iter().flat_map(types::differences));
        lines.extend(said.into_iter().flat_map(readers));
    }
    lines
}

fn node_of<'l>(look: &'l Look, row: &Row) -> Option<&'l Node> {
    let mut nodes = look.nodes.iter();
    nodes.find(|node| node_place(&node.status) == row.key.place)
}

/// Words of a node about a port; `None` for a row that is no port.
fn said_of_port<'l>(look: &'l Look, row: &Row) -> Option<&'l Value> {
    let mut ports = node_of(look, row)?.said["ports"].as_array()?.iter();
    ports.find(|port| {
        let key = port["key"].as_str().and_then(kind_and_number);
        key.is_some_and(|(kind, number)| is_of(row, kind, number))
    })
}

/// Whether the row is that of the port.
fn is_of(row: &Row, kind: Kind, number: u16) -> bool {
    (row.key.kind, row.key.number) == (kind, u32::from(number))
}

fn spread_line(when: &str, spread: Spread) -> String {
    let [p50, p99, max] = [spread.p50_ns, spread.p99_ns, spread.max_ns].map(time);
    format!("{when}: p50 {p50}, p99 {p99}, max {max}")
}

fn peers(node: &NodeFigures, row: &Row) -> Vec<String> {
    let mut ports = all_ports(node);
    let port = ports.find(|(kind, number, _)| is_of(row, *kind, *number));
    let line = |peer: &Peer| {
        let name = plain(peer_name(node, &peer.address), NAME_CHARS_MAX);
        format!(
            "from {name} port {}: {} received, {} lost, {} twice, {} restarts",
            peer.port, peer.received, peer.lost, peer.duplicates, peer.restarts
        )
    };
    port.map(|(.., port)| port.peers.iter().map(line).collect())
        .unwrap_or_default()
}

/// Readers of what a port publishes for many.
fn readers(said: &Value) -> Vec<String> {
    let readers = said["readers"].as_array().into_iter().flatten();
    let line = |reader: &Value| {
        let name = plain(
            reader["address"].as_str().unwrap_or_default(),
            NAME_CHARS_MAX,
        );
        let (port, process) = (&reader["port"], &reader["process"]);
        let lost = reader["overwritten"].as_u64().unwrap_or_default();
        format!("to reader {name} port {port}, process {process}, lost {lost}")
    };
    readers.map(line).collect()
}

/// Words of a node about itself or a port, a line for each figure that is not a list of things with lines of their
/// own.
fn counters(said: &Value) -> Vec<String> {
    let told = said.as_object().into_iter().flatten();
    let told = told.filter(|(key, _)| {
        !matches!(
            key.as_str(),
            "ports" | "peers" | "latency" | "key" | "type_differences" | "value" | "readers"
        )
    });
    let line = |(key, value): (&String, &Value)| {
        let value = match value {
            Value::Object(_) if matches!(key.as_str(), "receives" | "sends") => {
                types::declaration(value).unwrap_or_default()
            }
            Value::String(text) => text.clone(),
            Value::Null => "–".to_owned(),
            other => other.to_string(),
        };
        format!("{}: {value}", plain(key, NAME_CHARS_MAX))
    };
    told.map(line).collect()
}
