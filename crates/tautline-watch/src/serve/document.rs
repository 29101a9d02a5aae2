//! Documents of which the page is made: all lines with senders and receivers, and one port with all its details. The
//! page puts them into text, never into HTML.

use std::collections::HashMap;

use serde_json::{Value, json};
use tautline_state::text::plain;

use super::Picture;
use crate::look::{Look, NodeFigures, Peer};
use crate::peers::{host_of, peer_name};
use crate::row::{Kind, NAME_CHARS_MAX, Row, all_ports, kind_and_number, node_place};
use crate::types;

/// Lines of one document. Lower: a machine of many ports is cut, and its page says so. Higher: a browser redraws longer
/// every second.
const ROWS_MAX: usize = 1_000;
/// Lines between nodes that are drawn. Lower: some are missing. Higher: nothing can be told apart.
const LINKS_MAX: usize = 300;
/// Jobs of a task that are drawn.
const JOBS_MAX: usize = 40;

/// Everything of a machine, for the overview.
pub(super) fn overview(picture: &Picture) -> Value {
    let rows = &picture.rows;
    let links = links(&picture.now);
    json!({
        "rows": rows.iter().take(ROWS_MAX).collect::<Vec<_>>(),
        "rows_left_out": rows.len().saturating_sub(ROWS_MAX),
        "links": links.iter().take(LINKS_MAX).collect::<Vec<_>>(),
        "links_left_out": links.len().saturating_sub(LINKS_MAX),
        "tasks": tasks(&picture.now),
        "partitions": partitions(&picture.now),
        "lab": picture.lab,
        "silent": picture.now.silent,
    })
}

/// A port, with all that its node says of it; `None` if there is none.
pub(super) fn port(picture: &Picture, kind: Kind, place: &str, number: u16) -> Option<Value> {
    let is_meant = |row: &&Row| {
        (row.key.kind, row.key.number, row.key.place.as_str()) == (kind, u32::from(number), place)
    };
    let row = picture.rows.iter().find(is_meant)?;
    let mut nodes = picture.now.nodes.iter();
    let node = nodes.find(|node| node_place(&node.status) == place)?;
    let wanted = Some((kind, number));
    let mut ports = node.said["ports"].as_array()?.iter();
    let said = ports.find(|port| port["key"].as_str().and_then(kind_and_number) == wanted)?;
    let mut ports = all_ports(&node.status);
    let (.., figures) = ports.find(|(kind, number, _)| Some((*kind, *number)) == wanted)?;
    let peer = |peer: &Peer| {
        json!({
            "name": plain(peer_name(&node.status, &peer.address), NAME_CHARS_MAX),
            "port": peer.port,
            "received": peer.received,
            "lost": peer.lost,
            "duplicates": peer.duplicates,
            "restarts": peer.restarts,
        })
    };
    let mut said = said.clone();
    if let Some(value) = types::newest_value(&node.status, &said) {
        said["value"] = value.into();
    }
    Some(json!({
        "row": row,
        "said": said,
        "peers": figures.peers.iter().map(peer).collect::<Vec<_>>(),
    }))
}

/// Senders and receivers: nodes, and others that only their peers tell of.
fn links(look: &Look) -> Vec<Value> {
    let nodes: Vec<&NodeFigures> = look.nodes.iter().map(|node| &node.status).collect();
    let mut places: HashMap<(Option<&str>, &str), String> = HashMap::new();
    for node in &nodes {
        let bus = node.bus.as_deref();
        for address in [&node.mac, &node.ip, &node.node].into_iter().flatten() {
            places.insert((bus, address), node_place(node));
        }
    }
    let mut links = Vec::new();
    for node in nodes {
        for (_, number, port) in all_ports(node) {
            for peer in &port.peers {
                let address = peer.address.as_str();
                let name = plain(peer_name(node, address), NAME_CHARS_MAX);
                links.push(json!({
                    "from": places.get(&(node.bus.as_deref(), host_of(address))),
                    "from_name": name,
                    "from_port": peer.port,
                    "to": node_place(node),
                    "to_port": number,
                    "received": peer.received,
                    "lost": peer.lost,
                }));
            }
        }
    }
    links
}

fn tasks(look: &Look) -> Vec<Value> {
    let of_run = |run: &crate::look::Run| -> Vec<Value> {
        let described = run.about.tasks.iter().enumerate().zip(&run.tasks);
        described
            .map(|((index, about), view)| {
                let jobs = run.last_jobs(index, JOBS_MAX).into_iter().map(|job| {
                    let response = job.end.saturating_sub(job.release);
                    json!({
                        "response_ns": nanoseconds(response),
                        "met": job.end <= job.deadline,
                    })
                });
                json!({
                    "run": plain(&run.about.name, NAME_CHARS_MAX),
                    "process": run.about.process,
                    "task": plain(&about.name, NAME_CHARS_MAX),
                    "deadline_ns": nanoseconds(about.deadline),
                    "period_ns": nanoseconds(about.period),
                    "missed": view.missed,
                    "state": view.state.name(),
                    "jobs": jobs.collect::<Vec<_>>(),
                })
            })
            .collect()
    };
    look.runs.iter().flat_map(of_run).collect()
}

fn nanoseconds(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn partitions(look: &Look) -> Vec<Value> {
    let of_one = |partition: &tautline_tasks::partition::ActivePartition| {
        json!({
            "name": plain(&partition.name, NAME_CHARS_MAX),
            "cpus": partition.cpus.to_string(),
            "form": partition.form.map(tautline_tasks::partition::Form::text),
            "processes": partition.processes(),
        })
    };
    look.partitions.iter().map(of_one).collect()
}
