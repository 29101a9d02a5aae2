//! Lines of a live view: one for each node, port, task, partition, smoother, bus and guest, made of two looks.

use std::collections::HashMap;

use serde::Serialize;
use tautline::PortKey;
use tautline::status::bucket_quantile;
use tautline_state::text::plain;

use crate::look::{Latency, Look, NodeFigures, Port};

/// Characters that are kept of a name from another process. Lower: paths are cut. Higher: one name fills a line.
pub(crate) const NAME_CHARS_MAX: usize = 64;

/// Sorts of lines, in the order in which they stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Kind {
    /// A node or a control process.
    Node,
    /// A port.
    Port,
    /// A port of plain UDP.
    UdpPort,
    /// A raw port, whose number is its EtherType.
    RawPort,
    /// A real-time task.
    Task,
    /// A partition.
    Partition,
    /// A smoother.
    Smoother,
    /// A bus.
    Bus,
    /// A guest.
    Guest,
}

impl Kind {
    /// Its name in a line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Kind::Node => "node",
            Kind::Port => "port",
            Kind::UdpPort => "udp",
            Kind::RawPort => "raw",
            Kind::Task => "task",
            Kind::Partition => "partition",
            Kind::Smoother => "smoother",
            Kind::Bus => "bus",
            Kind::Guest => "guest",
        }
    }
}

/// Identity of a line from one look to the next.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Key {
    /// Sort of the line.
    pub kind: Kind,
    /// Owner of the thing: its node, the run of a task set, or nothing.
    pub place: String,
    /// Number of a port or task in its place.
    pub number: u32,
}

/// Distribution of a time, nanoseconds. Percentiles are up to 12.5 % too long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Spread {
    /// Median.
    pub p50_ns: Option<u64>,
    /// 99th percentile.
    pub p99_ns: Option<u64>,
    /// Longest.
    pub max_ns: Option<u64>,
}

/// One line.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Identity.
    pub key: Key,
    /// Name, fit to be shown.
    pub name: String,
    /// Process.
    pub process: Option<u32>,
    /// State in words, if it is no good one.
    pub state: Option<String>,
    /// Messages a second in both directions; jobs of a task.
    pub per_second: Option<f64>,
    /// Bytes a second.
    pub bytes_per_second: Option<f64>,
    /// Age of the newest value, or wait of the message that waits longest.
    pub age_ns: Option<u64>,
    /// Sleeps of the waiting reader that ended, each second.
    pub wakeups_per_second: Option<f64>,
    /// Share of the time for which the reader was awake for messages that it expected.
    pub awake_percent: Option<f64>,
    /// Share of a CPU that a task's jobs have executed for, in the last interval.
    pub cpu_percent: Option<f64>,
    /// Whether the newest value is valid.
    pub valid: Option<bool>,
    /// Latency since arrival in the last interval; response times of a task.
    pub recent: Spread,
    /// Latency or response times since the start of the measurement, or since the reset.
    pub ever: Spread,
    /// Messages that were lost on their way or are incomplete; missed deadlines of a task.
    pub lost: u64,
    /// Messages that were dropped because something was full.
    pub full: u64,
    /// Messages, senders or frames that were refused.
    pub refused: u64,
    /// Whether one of the last three has grown in the last interval.
    pub grows: bool,
}

impl Row {
    pub(crate) fn new(kind: Kind, place: String, number: u32, name: &str) -> Self {
        Self {
            key: Key {
                kind,
                place,
                number,
            },
            name: plain(name, NAME_CHARS_MAX),
            process: None,
            state: None,
            per_second: None,
            bytes_per_second: None,
            age_ns: None,
            wakeups_per_second: None,
            awake_percent: None,
            cpu_percent: None,
            valid: None,
            recent: Spread::default(),
            ever: Spread::default(),
            lost: 0,
            full: 0,
            refused: 0,
            grows: false,
        }
    }
}

/// Lines of a look, with rates since the look before if there was one, and totals since a base where there is one.
#[must_use]
pub fn rows(look: &Look, before: Option<&Look>, base: Option<&Look>) -> Vec<Row> {
    let seconds = before.map_or(0.0, |before| look.since(before).as_secs_f64());
    let seconds = seconds.max(1e-3);
    let mut rows = Vec::new();
    node_rows(&mut rows, look, before, base, seconds);
    crate::other_rows::add(&mut rows, look, before, seconds);
    rows
}

/// Identity of a node among all of a machine.
pub(crate) fn node_place(node: &NodeFigures) -> String {
    let place = [&node.interface, &node.bus, &node.node, &node.ip];
    let place: Vec<&str> = place.into_iter().flatten().map(String::as_str).collect();
    format!("{}/{}/{}", node.process, node.link, place.join("/"))
}

/// A node's name for people: where it is.
pub(crate) fn node_name(node: &NodeFigures) -> String {
    let bus = node
        .bus
        .as_deref()
        .map(|bus| bus.rsplit('/').next().unwrap_or(bus));
    match (&node.node, bus, &node.interface, &node.ip) {
        (Some(name), Some(bus), ..) => format!("{name} on {bus}"),
        (_, _, Some(interface), _) => format!("{interface} {}", node.link),
        (.., Some(ip)) => format!("{ip} {}", node.link),
        _ => node.link.clone(),
    }
}

/// Ports of a look by their identity.
type Ports<'a> = HashMap<(&'a str, Kind, u16), &'a Port>;

/// The nodes of a look with their places.
fn placed(look: &Look) -> Vec<(String, &NodeFigures)> {
    let nodes = look.nodes.iter();
    nodes
        .map(|node| (node_place(&node.status), &node.status))
        .collect()
}

fn ports_of<'a>(nodes: &'a [(String, &'a NodeFigures)]) -> Ports<'a> {
    let of_node = |(place, node): &'a (String, &'a NodeFigures)| {
        all_ports(node).map(move |(kind, number, port)| ((place.as_str(), kind, number), port))
    };
    nodes.iter().flat_map(of_node).collect()
}

/// Ports with their kind and number. A key that cannot be read is no port.
pub(crate) fn all_ports(node: &NodeFigures) -> impl Iterator<Item = (Kind, u16, &Port)> {
    node.ports.iter().filter_map(|port| {
        let (kind, number) = kind_and_number(&port.key)?;
        Some((kind, number, port))
    })
}

/// Kind and number of a port with this key.
pub(crate) fn kind_and_number(key: &str) -> Option<(Kind, u16)> {
    let key: PortKey = key.parse().ok()?;
    let kind = match key {
        PortKey::Message(_) => Kind::Port,
        PortKey::Udp(_) => Kind::UdpPort,
        PortKey::Raw(_) => Kind::RawPort,
    };
    Some((kind, key.number()))
}

fn node_rows(
    rows: &mut Vec<Row>,
    look: &Look,
    before: Option<&Look>,
    base: Option<&Look>,
    seconds: f64,
) {
    let (nodes, nodes_before) = (placed(look), before.map(placed).unwrap_or_default());
    let nodes_base = base.map(placed).unwrap_or_default();
    let (before, base) = (ports_of(&nodes_before), ports_of(&nodes_base));
    let none = Port::default();
    for (place, node) in &nodes {
        // The node's own clock, if it was asked twice: answers take different times.
        let then = nodes_before.iter().find(|(other, _)| other == place);
        let own = then.map(|(_, then)| node.now_ns.saturating_sub(then.now_ns));
        let seconds = own
            .filter(|ns| *ns > 0)
            .map_or(seconds, |ns| ns as f64 / 1e9);
        let at = rows.len();
        rows.push(node_row(place, node, then.map(|(_, then)| *then)));
        let (mut per_second, mut bytes_per_second) = (0.0, 0.0);
        for (kind, number, port) in all_ports(node) {
            let key = (place.as_str(), kind, number);
            let since = before.get(&key).copied();
            let base = base.get(&key).copied().unwrap_or(&none);
            let mut row = port_row(place, (kind, number), port, (since, base), seconds);
            row.process = Some(node.process);
            per_second += row.per_second.unwrap_or(0.0);
            bytes_per_second += row.bytes_per_second.unwrap_or(0.0);
            rows.push(row);
        }
        if then.is_some() {
            rows[at].per_second = Some(per_second);
            rows[at].bytes_per_second = Some(bytes_per_second);
        }
    }
}

fn node_row(place: &str, node: &NodeFigures, before: Option<&NodeFigures>) -> Row {
    let what = node.command.as_deref().unwrap_or("?");
    let name = format!("{} ({what})", node_name(node));
    let mut row = Row::new(Kind::Node, place.to_owned(), 0, &name);
    row.process = Some(node.process);
    let control = node.control.as_ref();
    row.state = interface_state(node).or(control.map(|_| "control process".to_owned()));
    row.full = node.counters.socket_full;
    row.refused = node_refused(node);
    row.grows = before.is_some_and(|before| {
        row.full > before.counters.socket_full || row.refused > node_refused(before)
    });
    row
}

/// Fault or change of a node's interface.
fn interface_state(node: &NodeFigures) -> Option<String> {
    let now = node.interface_now.as_ref();
    match now.map(|now| now.state.as_str()) {
        Some("gone") => return Some("interface is gone".to_owned()),
        Some("other_mac") => {
            let mac = now.and_then(|now| now.mac.as_deref()).unwrap_or("another");
            return Some(format!("interface's MAC address is now {mac}"));
        }
        _ => {}
    }
    if node.interface_up == Some(false) {
        return Some("interface is down".to_owned());
    }
    let name = now.and_then(|now| now.name.as_ref());
    let renamed = name.filter(|name| node.interface.as_ref() != Some(name));
    renamed.map(|name| format!("interface is called {name} now"))
}

/// Frames for no open port, and malformed ones.
fn node_refused(node: &NodeFigures) -> u64 {
    let malformed = node.counters.malformed.as_array().into_iter().flatten();
    let malformed = malformed.filter_map(serde_json::Value::as_u64);
    let others = [node.counters.no_port, node.counters.joined_datagrams];
    malformed.chain(others).fold(0, u64::saturating_add)
}

fn port_row(
    place: &str,
    (kind, number): (Kind, u16),
    port: &Port,
    (before, base): (Option<&Port>, &Port),
    seconds: f64,
) -> Row {
    let written = match kind {
        Kind::RawPort => format!("{number:#06x}"),
        _ => number.to_string(),
    };
    let name = match &port.name {
        Some(name) => format!("{written} {name}"),
        None => written,
    };
    let mut row = Row::new(kind, place.to_owned(), u32::from(number), &name);
    if let Some(before) = before {
        let rate = |of: fn(&Port) -> u64| of(port).saturating_sub(of(before)) as f64 / seconds;
        let messages = rate(|port| port.sent) + rate(|port| port.received);
        let bytes = rate(|port| port.sent_bytes) + rate(|port| port.received_bytes);
        (row.per_second, row.bytes_per_second) = (Some(messages), Some(bytes));
        row.wakeups_per_second = Some(rate(|port| port.wakeups));
        row.awake_percent = Some(rate(|port| port.awake_ns) / 1e7);
    }
    row.age_ns = port.age_ns.or(port.oldest_wait_ns);
    row.valid = port.valid;
    if let Some(latency) = &port.latency {
        row.recent = before.map_or(Spread::default(), |before| {
            spread(latency, before.latency.as_ref())
        });
        row.ever = spread(latency, base.latency.as_ref());
    }
    row.lost = lost(port).saturating_sub(lost(base));
    row.full = full(port).saturating_sub(full(base));
    row.refused = refused(port).saturating_sub(refused(base));
    row.grows = before.is_some_and(|before| {
        [lost, full, refused]
            .iter()
            .any(|count| count(port) > count(before))
    });
    row
}

/// Latencies since an earlier moment.
pub(crate) fn spread(now: &Latency, then: Option<&Latency>) -> Spread {
    let none = Latency::default();
    let then = then.unwrap_or(&none);
    let counts: HashMap<u64, u64> = then.buckets.iter().copied().collect();
    let since = now.buckets.iter().map(|(upper_ns, count)| {
        let before = counts.get(upper_ns).copied().unwrap_or(0);
        (*upper_ns, count.saturating_sub(before))
    });
    let since: Vec<(u64, u64)> = since.filter(|(_, count)| *count > 0).collect();
    let Some((longest_ns, _)) = since.last().copied() else {
        return Spread::default();
    };
    let max_ns = match now.max_ns > then.max_ns {
        true => now.max_ns,
        false => longest_ns.min(now.max_ns),
    };
    let quantile = |share| bucket_quantile(&since, share).map(|ns| ns.min(max_ns));
    Spread {
        p50_ns: quantile(0.5),
        p99_ns: quantile(0.99),
        max_ns: Some(max_ns),
    }
}

/// Sum of counts. A node may say anything, hence no overflow.
pub(crate) fn sum(counts: impl IntoIterator<Item = u64>) -> u64 {
    counts.into_iter().fold(0, u64::saturating_add)
}

/// Messages that were lost on their way, came in part, or went with a process.
pub(crate) fn lost(port: &Port) -> u64 {
    let of_peers = port.peers.iter().map(|peer| peer.lost);
    let given_up = [
        port.expired,
        port.incomplete_dropped,
        port.undelivered,
        port.reassembly.expired,
    ];
    sum(of_peers.chain(given_up))
}

/// Messages for which there was no room.
pub(crate) fn full(port: &Port) -> u64 {
    let classes = port.dropped_full.iter().copied();
    let others = [port.contended, port.reassembly.displaced];
    sum(classes.chain(others))
}

/// Messages and senders that the port does not take, and sends that failed.
pub(crate) fn refused(port: &Port) -> u64 {
    sum([
        port.policed,
        port.unfit,
        port.sources_refused,
        port.too_large,
        port.other_size,
        port.other_type,
        port.bad_bundles,
        port.bad_checksum,
        port.void,
        port.send_errors,
        port.reassembly.broken,
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::look::InterfaceNow;

    #[test]
    fn the_latencies_of_an_interval_are_a_difference() {
        let then = Latency {
            max_ns: 900,
            sum_ns: 0,
            buckets: vec![(127, 10), (959, 1)],
        };
        let now = Latency {
            max_ns: 900,
            sum_ns: 0,
            buckets: vec![(127, 10), (255, 99), (511, 1), (959, 1)],
        };
        let spread = |now, then| {
            let spread = spread(now, then);
            [spread.p50_ns, spread.p99_ns, spread.max_ns].map(Option::unwrap_or_default)
        };
        assert_eq!(spread(&now, Some(&then)), [255, 255, 511]);
        assert_eq!(spread(&now, None), [255, 511, 900]);
        assert_eq!(spread(&now, Some(&now)), [0, 0, 0], "nothing came");
    }

    #[test]
    fn a_node_tells_what_became_of_its_interface() {
        let told = |interface_up, state: &str, name: Option<&str>| {
            let node = NodeFigures {
                interface: Some("eth0".to_owned()),
                interface_up: Some(interface_up),
                interface_now: Some(InterfaceNow {
                    state: state.to_owned(),
                    name: name.map(str::to_owned),
                    mac: Some("02:00:00:00:00:09".to_owned()),
                }),
                ..NodeFigures::default()
            };
            interface_state(&node)
        };
        assert_eq!(told(true, "up", Some("eth0")), None);
        for (interface_up, state, name, expected) in [
            (false, "down", Some("eth0"), "interface is down"),
            (false, "gone", None, "interface is gone"),
            (true, "up", Some("eth7"), "interface is called eth7 now"),
            (
                true,
                "other_mac",
                Some("eth0"),
                "interface's MAC address is now 02:00:00:00:00:09",
            ),
        ] {
            assert_eq!(told(interface_up, state, name).as_deref(), Some(expected));
        }
        // A node of an older version.
        let old = NodeFigures {
            interface_up: Some(false),
            ..NodeFigures::default()
        };
        assert_eq!(interface_state(&old).unwrap(), "interface is down");
    }

    #[test]
    fn counters_that_lie_do_not_overflow() {
        let port = Port {
            dropped_full: vec![u64::MAX; 8],
            policed: u64::MAX,
            unfit: 1,
            ..Port::default()
        };
        assert_eq!((full(&port), refused(&port)), (u64::MAX, u64::MAX));
    }
}
