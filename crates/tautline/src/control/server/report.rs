//! Reports of a control process about itself: when it opens, and to `taut status`.

use std::collections::BTreeMap;

use tautline_proto::wire::PortKey;

use super::Server;
use super::ports::OpenPort;
use crate::claim::Holder;
use crate::control::policy::{hexadecimal, written};
use crate::error::OpenError;
use crate::link::bpf::DemuxOwner;
use crate::link::bpf::demux::Demux;
use crate::link::xdp::{capabilities, seen_first};
use crate::link::{LinkKind, XdpMode};
use crate::node::{Attachment, candidate_name, hidden_tags, limits, neighbours_status};
use crate::status::{
    ClientPortStatus, ClientStatus, ControlStatus, InterfaceStatus, NodeStatus, NotBetter,
    OpenReport, Origin, RuleStatus,
};
use crate::sys::clock;

/// Most ports that are listed, so that the document fits a socket's buffer.
const PORTS_LISTED_MAX: usize = 512;

pub(super) fn opened(
    demux: &Demux,
    attachment: Attachment,
    not_better: Vec<(XdpMode, OpenError)>,
) -> OpenReport {
    let setup = demux.setup();
    let mut limits = limits(&attachment);
    limits.extend(hidden_tags(
        (LinkKind::Xdp, Some(setup.mode)),
        &attachment,
        setup.ethernet.vlan,
    ));
    limits.extend(seen_first(setup.mode, &setup.interface));
    OpenReport {
        link: LinkKind::Xdp,
        control_process: None,
        limits,
        interface: attachment.name,
        mac: Some(setup.interface.mac.to_string()),
        vlan: setup.ethernet.vlan.known(),
        ip: setup.ip,
        bus: None,
        node: None,
        capabilities: capabilities(setup.mode, setup.ip),
        not_better: not_better
            .into_iter()
            .map(|(mode, error)| NotBetter {
                link: candidate_name(LinkKind::Xdp, mode),
                why: error.to_string(),
            })
            .collect(),
    }
}

pub(super) fn status(server: &Server) -> Vec<u8> {
    let interface_now = InterfaceStatus::of(&server.watch);
    let own = Holder::of(std::process::id() as i32);
    let neighbours = server.neighbours.iter();
    let configured = neighbours.map(|(_, entry)| (entry, Origin::Configured));
    let status = NodeStatus {
        process: std::process::id(),
        now_ns: clock::monotonic().as_nanos(),
        command: own.name,
        report: server.report.clone(),
        interface_up: interface_now.as_ref().map(|now| now.up),
        interface_now,
        neighbours: neighbours_status(configured),
        counters: server.demux.counters(),
        ports: Vec::new(),
        send_pool: None,
        control: Some(ControlStatus {
            rules: rules(server),
            clients: clients(server),
        }),
    };
    serde_json::to_vec(&status).unwrap_or_default()
}

fn rules(server: &Server) -> Vec<RuleStatus> {
    let rules = server.policy.rules().map(|rule| RuleStatus {
        who: rule.who.to_string(),
        ports: written(&rule.ports, u16::to_string),
        udp_ports: written(&rule.udp_ports, u16::to_string),
        ethertypes: written(&rule.ethertypes, hexadecimal),
        any_source_address: rule.any_source_address,
        priorities: written(&rule.priorities, u16::to_string),
        memory_bytes_max: rule.memory_bytes_max,
        ports_max: rule.ports_max,
    });
    rules.collect()
}

/// The clients: those that are connected, and those of a predecessor whose ports are open yet.
fn clients(server: &Server) -> Vec<ClientStatus> {
    let mut clients: BTreeMap<(bool, i32, u64), ClientStatus> = BTreeMap::new();
    let status = |process: i32, uid: u32, connected: bool| ClientStatus {
        process,
        command: Holder::of(process).name,
        user: server.policy.name(uid),
        connected,
        ports: Vec::new(),
    };
    for (number, client) in server.clients.greeted() {
        let entry = status(client.pid, client.user.uid, true);
        clients.insert((true, client.pid, number), entry);
    }
    for (port, open) in server.ports.iter().take(PORTS_LISTED_MAX) {
        let key = (
            open.client.is_some(),
            open.pid,
            open.client.unwrap_or_default(),
        );
        let client = clients
            .entry(key)
            .or_insert_with(|| status(open.pid, open.uid, false));
        client.ports.push(port_status(server, *port, open));
    }
    clients.into_values().collect()
}

fn port_status(server: &Server, port: PortKey, open: &OpenPort) -> ClientPortStatus {
    ClientPortStatus {
        key: port,
        memory_bytes: open.memory_bytes,
        rule: open.rule.map(|index| index + 1),
        frames_refused: server.taps.refused(server.place(port)),
    }
}
