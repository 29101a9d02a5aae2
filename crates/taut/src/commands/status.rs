//! `taut status`: the nodes of this network namespace, as they describe themselves, or the cells of a fleet.

use clap::Args;
use serde_json::{Value, json};

use crate::cli::CommandError;
use crate::commands::fleet::FleetArguments;
use crate::commands::output::JsonArguments;
use crate::commands::smooth;
use tautline_report::table;
use tautline_watch::types;

/// Arguments of `taut status`.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    json: JsonArguments,
    #[command(flatten)]
    fleet: FleetArguments,
}

/// Asks all nodes and prints what they say.
pub fn run(arguments: Arguments) -> Result<(), CommandError> {
    if arguments.fleet.is_wanted() {
        let picture = arguments.fleet.look()?;
        let text = || picture.table(None) + &picture.details();
        return arguments.json.print(|| json!(picture), text);
    }
    let (nodes, silent) = tautline::status::nodes().map_err(|error| {
        CommandError::failed(
            format!("cannot list the nodes: {error}"),
            "see that /run/tautline belongs to root, and your runtime directory to you",
        )
    })?;
    for name in &silent {
        say!("taut: the node {name} (process-number) does not answer: it may be stopped");
    }
    // A user who may not read them sees the nodes all the same.
    let smoothers = smooth::found().unwrap_or_default();
    arguments.json.print(
        || {
            let smoothers = smooth::values(&smoothers);
            json!({ "nodes": nodes, "silent": silent, "smoothers": smoothers })
        },
        || all_text(&nodes) + &smooth::summary(&smoothers),
    )
}

fn all_text(nodes: &[Value]) -> String {
    if nodes.is_empty() {
        return "no node is open in this network namespace that this user may ask; root sees those of all users in \
                /run/user\n"
            .to_owned();
    }
    let texts: Vec<String> = nodes.iter().map(node_text).collect();
    texts.join("\n")
}

/// A value's text, without the quotation marks of JSON; a dash for none.
fn plain(value: &Value) -> String {
    match value {
        Value::Null => "–".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// The sum of a list of numbers, for counters that are kept by priority or by reason.
fn sum(value: &Value) -> String {
    match value.as_array() {
        Some(list) => list
            .iter()
            .filter_map(Value::as_u64)
            // A peer on a bus may count what it likes.
            .fold(0, u64::wrapping_add)
            .to_string(),
        None => plain(value),
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn node_text(node: &Value) -> String {
    let mode = match &node["capabilities"]["xdp_mode"] {
        Value::Null => String::new(),
        mode => match &node["capabilities"]["zero_copy"] {
            Value::Bool(true) => format!(" ({}, zero-copy)", plain(mode)),
            Value::Bool(false) => format!(" ({}, copy mode)", plain(mode)),
            _ => format!(" ({})", plain(mode)),
        },
    };
    let places = [
        (" on ", "interface"),
        (", ", "mac"),
        (", VLAN ", "vlan"),
        (", ", "ip"),
        (" at ", "bus"),
        (", node ", "node"),
    ];
    let place: String = places
        .iter()
        .filter(|(_, key)| !node[*key].is_null())
        .map(|(before, key)| format!("{before}{}", plain(&node[*key])))
        .collect();
    let through = match &node["control_process"] {
        Value::Null => String::new(),
        // Of a client in a container, which has no number for it.
        pid if pid == 0 => ", through the control process".to_owned(),
        pid => format!(", through control process {pid}"),
    };
    let what = if node["control"].is_object() {
        "control process"
    } else {
        "node of process"
    };
    let mut text = format!(
        "{what} {} ({})\n  link {}{mode}{place}{through}{}\n{}  frames for no open port: {}, malformed: {}, lost to full sockets: {}\n",
        plain(&node["process"]),
        plain(&node["command"]),
        plain(&node["link"]),
        match node["interface_now"]["state"].as_str() {
            Some("gone") => ", interface is GONE",
            _ if node["interface_up"] == false => ", interface is DOWN",
            _ => "",
        },
        copies_text(&node["capabilities"]),
        plain(&node["counters"]["no_port"]),
        sum(&node["counters"]["malformed"]),
        plain(&node["counters"]["socket_full"]),
    );
    match &node["counters"]["joined_datagrams"] {
        Value::Null => {}
        count if *count == 0 => {}
        count => {
            text += &format!(
                "  several datagrams in one packet buffer, left to Linux: {} (docs/reference/udp.md)\n",
                plain(count)
            );
        }
    }
    for change in list(&node["interface_now"]["changes"]) {
        text += &format!("  changed: {}\n", plain(change));
    }
    for better in list(&node["not_better"]) {
        text += &format!(
            "  not {}: {}\n",
            plain(&better["link"]),
            plain(&better["why"])
        );
    }
    for limit in list(&node["limits"]) {
        text += &format!("  limited: {}\n", plain(limit));
    }
    if node["control"].is_object() {
        text += &neighbours_text(node);
        return text + &control_text(&node["control"]);
    }
    text += &neighbours_text(node);
    let ports = list(&node["ports"]);
    let of_kind = |wanted: &str| -> Vec<&Value> {
        let kind = |port: &&Value| {
            let key = port["key"].as_str().unwrap_or_default();
            key.split_once(':').map_or("", |(kind, _)| kind) == wanted
        };
        ports.iter().filter(kind).collect()
    };
    let messages = of_kind("");
    text += &ports_text(&messages);
    text.extend(messages.iter().flat_map(|port| type_lines(port)));
    text += &lost_to_deaths(&messages);
    text.extend(messages.iter().filter_map(|port| readers_line(port)));
    text += &not_authentic(&messages);
    text += &peers_text(&messages, list(&node["neighbours"]));
    text += &udp_ports_text(&of_kind("udp"));
    text += &raw_ports_text(&of_kind("raw"));
    text += &send_pool_text(&node["send_pool"]);
    text
}

/// Those who read what a port publishes for many.
fn readers_line(port: &Value) -> Option<String> {
    let readers = port["readers"].as_array()?;
    let name = |reader: &Value| {
        let sleeps = if reader["sleeps"] == true {
            ", sleeps"
        } else {
            ""
        };
        let lost = match reader["overwritten"].as_u64() {
            Some(lost) if lost > 0 => format!(", lost {lost}"),
            _ => String::new(),
        };
        let [address, port, process] =
            ["address", "port", "process"].map(|key| plain(&reader[key]));
        format!("{address} port {port} (process {process}{sleeps}{lost})")
    };
    let names: Vec<String> = readers.iter().map(name).collect();
    Some(match names.as_slice() {
        [] => format!(
            "  port {} publishes for readers, and has none\n",
            plain(&port["key"])
        ),
        names => format!(
            "  port {} publishes for {} readers: {}\n",
            plain(&port["key"]),
            names.len(),
            names.join("; ")
        ),
    })
}

/// How often a message is copied on the node's link.
fn copies_text(capabilities: &Value) -> String {
    let line = |what: &str, key: &str| {
        let copies = &capabilities[key];
        let [receive, send, receive_lent, send_lent] =
            ["receive", "send", "receive_lent", "send_lent"].map(|way| plain(&copies[way]));
        if copies.is_null() {
            return String::new();
        }
        format!(
            "  copies of a {what}: {receive} in, {send} out; lent: {receive_lent} in, {send_lent} out\n"
        )
    };
    line("message", "copies") + &line("datagram of plain UDP", "udp_copies")
}

/// Entries and clients of a control process.
fn control_text(control: &Value) -> String {
    rules_text(control) + &clients_text(control)
}

fn rules_text(control: &Value) -> String {
    let rules = list(&control["rules"]).iter().enumerate();
    let rows = rules.map(|(index, rule)| {
        let mut cells = vec![(index + 1).to_string()];
        cells.extend(
            [
                "who",
                "ports",
                "udp_ports",
                "ethertypes",
                "priorities",
                "memory_bytes_max",
                "ports_max",
            ]
            .map(|key| plain(&rule[key])),
        );
        // Of raw frames.
        let sources = if rule["any_source_address"] == true {
            "any"
        } else {
            "own"
        };
        cells.push(sources.to_owned());
        cells
    });
    if list(&control["rules"]).is_empty() {
        "  no [[allow]] entries: root only\n".to_owned()
    } else {
        table::figures(
            &[
                "entry",
                "for",
                "ports",
                "UDP ports",
                "EtherTypes",
                "priorities",
                "bytes at most",
                "ports at most",
                "raw source",
            ],
            rows,
        )
    }
}

fn clients_text(control: &Value) -> String {
    let clients = list(&control["clients"]);
    if clients.is_empty() {
        return "  no clients\n".to_owned();
    }
    let rows = clients.iter().map(|client| {
        let ports = list(&client["ports"]);
        let keys = ports.iter().map(|port| plain(&port["key"]));
        let bytes = ports
            .iter()
            .filter_map(|port| port["memory_bytes"].as_u64());
        let refused = ports
            .iter()
            .filter_map(|port| port["frames_refused"].as_u64());
        vec![
            plain(&client["process"]),
            plain(&client["command"]),
            plain(&client["user"]),
            keys.collect::<Vec<_>>().join(", "),
            bytes.sum::<u64>().div_ceil(1_024).to_string(),
            refused.sum::<u64>().to_string(),
            if client["connected"] == true {
                "yes"
            } else {
                "no: a predecessor's"
            }
            .to_owned(),
        ]
    });
    table::figures(
        &[
            "client",
            "command",
            "user",
            "ports",
            "KiB",
            "frames refused",
            "connected",
        ],
        rows,
    )
}

fn neighbours_text(node: &Value) -> String {
    let neighbours = list(&node["neighbours"]);
    if neighbours.is_empty() {
        return "  no neighbours\n".to_owned();
    }
    let columns = ["name", "mac", "ip", "form", "origin"];
    let row = |entry: &Value| columns.map(|key| plain(&entry[key])).to_vec();
    let header = ["neighbour", "mac", "ip", "form", "origin"];
    table::figures(&header, neighbours.iter().map(row))
}

fn ports_text(ports: &[&Value]) -> String {
    if ports.is_empty() {
        return "  no open ports\n".to_owned();
    }
    let header = [
        "port",
        "name",
        "kind",
        "KiB",
        "sent",
        "unsent",
        "frames",
        "received",
        "wake-ups",
        "awake, %",
        "waiting",
        "full",
        "policed",
        "overwritten",
        "refused",
        "incomplete",
    ];
    let row = |port: &Value| {
        let kib = port["memory_bytes"].as_u64().unwrap_or(0).div_ceil(1_024);
        let incomplete = ["expired", "incomplete_dropped"]
            .iter()
            .filter_map(|key| port[*key].as_u64())
            .sum::<u64>();
        let mut cells = ["key", "name", "kind"]
            .map(|key| plain(&port[key]))
            .to_vec();
        let pageable = if port["memory_resident"] == false {
            " (pageable)"
        } else {
            ""
        };
        cells.push(format!("{kib}{pageable}"));
        let counters = ["sent", "send_errors", "frames", "received", "wakeups"];
        cells.extend(counters.map(|key| plain(&port[key])));
        let [awake, open] = ["awake_ns", "open_ns"].map(|key| port[key].as_f64().unwrap_or(0.0));
        cells.push(format!("{:.1}", awake / open.max(1.0) * 100.0));
        cells.extend(["queued", "dropped_full"].map(|key| sum(&port[key])));
        cells.push(match &port["policing"] {
            Value::Null => "–".to_owned(),
            _ => plain(&port["policed"]),
        });
        cells.extend(["overwritten", "sources_refused"].map(|key| plain(&port[key])));
        cells.push(incomplete.to_string());
        cells
    };
    table::figures(&header, ports.iter().copied().map(row))
}

/// Types of a port's messages, and the peers that declare others.
fn type_lines(port: &Value) -> Vec<String> {
    let number = plain(&port["key"]);
    let declared = ["receives", "sends"].into_iter().filter_map(|key| {
        let declared = types::declaration(&port[key])?;
        Some(format!("  port {number} {key} {declared}\n"))
    });
    let differences = types::differences(port).into_iter();
    declared
        .chain(differences.map(|sentence| format!("  port {number}: {sentence}\n")))
        .collect()
}

/// Counters of datagrams that came in fragments and were not put together.
const NOT_REASSEMBLED: [&str; 3] = ["expired", "displaced", "broken"];

fn udp_ports_text(ports: &[&Value]) -> String {
    if ports.is_empty() {
        return String::new();
    }
    let header = [
        "UDP port",
        "name",
        "KiB",
        "sent",
        "unsent",
        "frames",
        "received",
        "waiting",
        "full",
        "bad checksum",
        "partial checksum",
        "reassembled",
        "given up",
    ];
    let row = |port: &Value| {
        let kib = port["memory_bytes"].as_u64().unwrap_or(0).div_ceil(1_024);
        let mut cells = ["key", "name"].map(|key| plain(&port[key])).to_vec();
        cells.push(kib.to_string());
        cells.extend(["sent", "send_errors", "frames", "received"].map(|key| plain(&port[key])));
        cells.extend(["queued", "dropped_full"].map(|key| sum(&port[key])));
        cells.extend(["bad_checksum", "partial_checksum"].map(|key| plain(&port[key])));
        let reassembly = &port["reassembly"];
        cells.push(plain(&reassembly["completed"]));
        let given_up = NOT_REASSEMBLED.iter().map(|key| reassembly[key].as_u64());
        cells.push(
            given_up
                .map(Option::unwrap_or_default)
                .sum::<u64>()
                .to_string(),
        );
        cells
    };
    table::figures(&header, ports.iter().copied().map(row))
}

fn raw_ports_text(ports: &[&Value]) -> String {
    if ports.is_empty() {
        return String::new();
    }
    let header = [
        "EtherType",
        "name",
        "KiB",
        "sent",
        "unsent",
        "frames",
        "received",
        "waiting",
        "full",
        "too long",
    ];
    let row = |port: &Value| {
        let kib = port["memory_bytes"].as_u64().unwrap_or(0).div_ceil(1_024);
        let mut cells = ["key", "name"].map(|key| plain(&port[key])).to_vec();
        cells.push(kib.to_string());
        cells.extend(["sent", "send_errors", "frames", "received"].map(|key| plain(&port[key])));
        cells.extend(["queued", "dropped_full"].map(|key| sum(&port[key])));
        cells.push(plain(&port["unfit"]));
        cells
    };
    table::figures(&header, ports.iter().copied().map(row))
}

/// The send buffers that the node lends; nothing of a node that has none.
fn send_pool_text(pool: &Value) -> String {
    let sizes = list(&pool["sizes"]);
    let sizes: Vec<_> = sizes.iter().filter(|size| size["count"] != 0).collect();
    if sizes.is_empty() {
        return String::new();
    }
    let header = [
        "send buffers of",
        "there are",
        "lent",
        "asked for in vain",
        "pageable",
    ];
    let pageable = if pool["locked"] == true { "no" } else { "yes" };
    let row = |size: &&Value| {
        let mut cells = ["buffer_bytes", "count", "lent", "exhausted"]
            .map(|key| plain(&size[key]))
            .to_vec();
        cells[0] += " bytes";
        cells.push(pageable.to_owned());
        cells
    };
    table::figures(&header, sizes.iter().map(row))
}

/// Counters of frames that a protected port has refused, and their words.
const NOT_AUTHENTIC: [(&str, &str); 8] = [
    ("forged", "forged or of other keys"),
    ("unprotected", "not protected"),
    ("replayed", "replayed"),
    ("untimely", "held up, or of a wrong clock"),
    ("unknown_sender", "of senders without keys"),
    ("unknown_epoch", "of an epoch without a key"),
    ("cut", "cut"),
    ("dropped_full", "dropped before they were checked"),
];

/// Frames that protected ports have taken and refused, and why.
fn not_authentic(ports: &[&Value]) -> String {
    let line = |port: &Value| {
        let (number, protection) = (plain(&port["key"]), &port["protection"]);
        if let Some(count) = port["protected"].as_u64().filter(|count| *count > 0) {
            return Some(format!(
                "  port {number} is not protected: it has dropped {count} frames that are\n"
            ));
        }
        let kind = protection["kind"]
            .as_str()
            .map(|_| plain(&protection["kind"]))?;
        let refused = NOT_AUTHENTIC.iter().filter_map(|(key, words)| {
            let count = protection[*key].as_u64().filter(|count| *count > 0)?;
            Some(format!("{count} {words}"))
        });
        let refused: Vec<_> = refused.collect();
        let refused = match refused.is_empty() {
            true => "none refused".to_owned(),
            false => format!("refused: {}", refused.join(", ")),
        };
        let accepted = plain(&protection["accepted"]);
        Some(format!(
            "  {}, port {number}: {accepted} frames taken, {refused}\n",
            kind
        ))
    };
    ports.iter().copied().filter_map(line).collect()
}

/// Losses that went with processes on a bus.
fn lost_to_deaths(ports: &[&Value]) -> String {
    let line = |port: &Value| {
        let count = port["undelivered"].as_u64().filter(|count| *count > 0)?;
        let key = plain(&port["key"]);
        Some(format!(
            "  lost, port {key}: {count} sent to peers that went before they took them\n"
        ))
    };
    ports.iter().copied().filter_map(line).collect()
}

/// A peer's name in the node's neighbour table, or its address.
fn peer_name(peer: &Value, neighbours: &[Value]) -> String {
    let address = &peer["address"];
    let is_it = |entry: &&Value| entry["mac"] == *address || entry["ip"] == *address;
    match neighbours.iter().find(is_it) {
        Some(entry) => plain(&entry["name"]),
        None => plain(address),
    }
}

fn peers_text(ports: &[&Value], neighbours: &[Value]) -> String {
    let rows: Vec<Vec<String>> = ports
        .iter()
        .flat_map(|port| {
            list(&port["peers"]).iter().map(|peer| {
                let mut cells = vec![plain(&port["key"]), peer_name(peer, neighbours)];
                let counts = ["port", "received", "lost", "duplicates", "restarts"];
                cells.extend(counts.map(|key| plain(&peer[key])));
                cells
            })
        })
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    table::figures(
        &[
            "port",
            "peer",
            "its port",
            "received",
            "lost",
            "duplicates",
            "restarts",
        ],
        rows,
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn peers_have_the_names_of_neighbours() {
        let neighbours = [json!({"name": "arm", "mac": "02:00:00:00:00:02", "ip": "10.0.0.2"})];
        let peer = |address: &str| peer_name(&json!({ "address": address }), &neighbours);
        assert_eq!(peer("02:00:00:00:00:02"), "arm");
        assert_eq!(peer("10.0.0.2"), "arm");
        assert_eq!(peer("02:00:00:00:00:03"), "02:00:00:00:00:03");
        let text = peers_text(
            &[&json!({"key": "7", "peers": [{"address": "10.0.0.2", "port": 9, "received": 1}]})],
            &neighbours,
        );
        assert!(text.contains("arm"), "{text}");
    }
}
