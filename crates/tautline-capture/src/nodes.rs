//! Facts about captured messages that frames do not carry: types of messages, names of nodes and ports. The nodes of
//! this machine tell them in their status, and configuration files have them.

use std::collections::{BTreeSet, HashMap};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::time::{Duration, Instant};

use serde_json::Value;
use tautline::types::{Declaration, PortTypes};
use tautline::{MacAddress, NodeConfig, PortNumber, status};
use tautline_proto::neighbour::NAME_BYTES_MAX;

use crate::frame::End;
use crate::message::{FLOWS_MAX, Flow};

/// Least time between two questions to all nodes. Lower takes more time of the nodes. Higher: messages of a node that
/// has just opened stay without names for longer.
const ASK_PERIOD: Duration = Duration::from_secs(2);

/// Beginning of [`Flow::on`] where messages are on a bus.
const BUS: &str = "bus ";

/// Names of both ends of a flow, as far as they are known. On a bus, nodes have their names in the flow itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct FlowNames {
    /// Sending node: as a neighbour, or otherwise the command of the process on this machine.
    pub from: Option<String>,
    /// Its port.
    pub source_port: Option<String>,
    /// Receiving node.
    pub to: Option<String>,
    /// Its port.
    pub destination_port: Option<String>,
}

impl FlowNames {
    /// These names, and those of `before` where there are none: a node that has closed tells nothing any more.
    fn or(self, before: &Self) -> Self {
        Self {
            from: self.from.or_else(|| before.from.clone()),
            source_port: self.source_port.or_else(|| before.source_port.clone()),
            to: self.to.or_else(|| before.to.clone()),
            destination_port: self
                .destination_port
                .or_else(|| before.destination_port.clone()),
        }
    }
}

/// Facts about a flow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowFacts {
    /// Type of its messages.
    pub declared: Option<Arc<Declaration>>,
    /// Names of its ends.
    pub names: Arc<FlowNames>,
}

/// Facts that are known. Asking takes up to a second if a node is silent, so it is done beside the capture.
#[derive(Debug)]
pub struct KnownNodes {
    nodes: Vec<KnownNode>,
    /// Configuration files, for nodes that tell nothing: those of other machines, of other users, and of programs that
    /// do not read the file.
    files: Vec<KnownNode>,
    /// Facts of the flows that were looked for, so that a message costs one look. Where there are [`FLOWS_MAX`], they
    /// are looked for anew: strangers can make as many flows as they like.
    flows: HashMap<Flow, Known>,
    /// Number of the last answers.
    answers: u64,
    asking: Option<Receiver<Vec<KnownNode>>>,
    asked: Instant,
}

/// Facts about a flow, from these answers.
#[derive(Debug)]
struct Known {
    facts: FlowFacts,
    answers: u64,
    /// Whether a later answer may say more: its type is not known, or no node has told its ports.
    is_partial: bool,
}

/// A node with its ports and its neighbours.
#[derive(Debug)]
struct KnownNode {
    place: Place,
    /// Command of its process.
    command: Option<String>,
    ports: HashMap<u16, KnownPort>,
    /// Names of its neighbours by their addresses.
    neighbours: HashMap<String, String>,
}

/// Where a node's ports are reached.
#[derive(Debug)]
enum Place {
    /// By these names: its MAC and IPv4 address; the directory of its bus and its name there.
    Told(Vec<String>),
    /// A file of a node on a network: it may be another machine's, so its address is not known.
    FileOfNetwork,
    /// A file of the node with this name on a bus.
    FileOfBus(String),
}

#[derive(Debug)]
struct KnownPort {
    name: Option<String>,
    types: PortTypes,
}

/// End of a flow.
#[derive(Clone, Copy)]
struct Side<'f> {
    on: &'f str,
    node: &'f str,
    port: u16,
}

impl KnownNode {
    /// The port at an end of a flow, if it may be this node's.
    fn port_at(&self, side: Side<'_>) -> Option<&KnownPort> {
        let bus = side.on.strip_prefix(BUS);
        let is_there = match (&self.place, bus) {
            (Place::Told(places), Some(bus)) => places.contains(&place_on_bus(bus, side.node)),
            (Place::Told(places), None) => places.iter().any(|place| place == side.node),
            (Place::FileOfNetwork, bus) => bus.is_none(),
            (Place::FileOfBus(name), bus) => bus.is_some() && name == side.node,
        };
        self.ports.get(&side.port).filter(|_| is_there)
    }
}

fn place_on_bus(bus: &str, node: &str) -> String {
    format!("{bus} {node}")
}

impl KnownNodes {
    /// Asks the nodes of this network namespace that this user may ask, and waits for their answers.
    #[must_use]
    pub fn ask() -> Self {
        Self {
            nodes: ask(),
            files: Vec::new(),
            flows: HashMap::new(),
            answers: 0,
            asking: None,
            asked: Instant::now(),
        }
    }

    /// Adds the content of configuration files. Answers of nodes take precedence.
    #[must_use]
    pub fn with_configurations(mut self, files: &[NodeConfig]) -> Self {
        self.files = files.iter().map(node_of_file).collect();
        self
    }

    /// Facts about a flow. The type of its messages is the one that its receiver declares, otherwise its sender's. If
    /// something is missing, the nodes are asked again, and a later message has the answer.
    pub fn about(&mut self, flow: &Flow) -> FlowFacts {
        self.take_answer();
        let before = self.flows.get(flow);
        if let Some(known) = before.filter(|known| known.answers == self.answers) {
            let (facts, is_partial) = (known.facts.clone(), known.is_partial);
            if is_partial {
                self.ask_again();
            }
            return facts;
        }
        let declared = type_of(&self.nodes, flow).or_else(|| type_of(&self.files, flow));
        let mut names = self.names_of(flow);
        if let Some(before) = before {
            names = names.or(&before.facts.names);
        }
        let is_told = ends(flow).into_iter().any(|side| {
            let mut nodes = self.nodes.iter();
            nodes.any(|node| node.port_at(side).is_some())
        });
        let facts = FlowFacts {
            declared,
            names: Arc::new(names),
        };
        if before.is_none() && self.flows.len() >= FLOWS_MAX {
            self.flows.clear();
        }
        let known = Known {
            facts: facts.clone(),
            answers: self.answers,
            is_partial: facts.declared.is_none() || !is_told,
        };
        self.flows.insert(flow.clone(), known);
        facts
    }

    /// Addresses of a network and the names that nodes have for them, each address once.
    #[must_use]
    pub fn addresses(&self) -> Vec<(End, String)> {
        let mut found = BTreeSet::new();
        let mut named = Vec::new();
        for (address, name) in self.all().flat_map(|node| &node.neighbours) {
            let mac = address.parse::<MacAddress>().map(End::Mac);
            let end = mac.or_else(|_| address.parse::<Ipv4Addr>().map(End::Ip));
            if let Ok(end) = end
                && found.insert(address)
            {
                named.push((end, name.clone()));
            }
        }
        named.sort_by(|(_, one), (_, other)| one.cmp(other));
        named
    }

    fn all(&self) -> impl Iterator<Item = &KnownNode> {
        self.nodes.iter().chain(&self.files)
    }

    fn names_of(&self, flow: &Flow) -> FlowNames {
        let [from, to] = ends(flow);
        FlowNames {
            from: self.node_name(from, to),
            source_port: self.port_name(from),
            to: self.node_name(to, from),
            destination_port: self.port_name(to),
        }
    }

    /// Name of a node on a network: the one that the node at the other end has for it, or any other node; otherwise the
    /// command of its process on this machine.
    fn node_name(&self, side: Side<'_>, other: Side<'_>) -> Option<String> {
        if side.on.starts_with(BUS) {
            return None;
        }
        let of_other = self.all().filter(|node| node.port_at(other).is_some());
        let called = of_other
            .chain(self.all())
            .find_map(|node| node.neighbours.get(side.node));
        let mut own = self.nodes.iter();
        let own = || {
            own.find(|node| node.port_at(side).is_some())?
                .command
                .clone()
        };
        called.cloned().or_else(own)
    }

    /// Name of a port. That of a file counts for the node that the file describes, not for its neighbours.
    fn port_name(&self, side: Side<'_>) -> Option<String> {
        let is_described = |node: &&KnownNode| !node.neighbours.contains_key(side.node);
        let described = self
            .nodes
            .iter()
            .chain(self.files.iter().filter(is_described));
        let mut ports = described.filter_map(|node| node.port_at(side));
        ports.find_map(|port| port.name.clone())
    }

    /// Takes the answers of a question that was asked before.
    fn take_answer(&mut self) {
        let Some(asking) = &self.asking else {
            return;
        };
        match asking.try_recv() {
            Ok(nodes) => {
                self.nodes = nodes;
                self.answers += 1;
                self.asking = None;
            }
            Err(TryRecvError::Disconnected) => self.asking = None,
            Err(TryRecvError::Empty) => {}
        }
    }

    fn ask_again(&mut self) {
        if self.asking.is_some() || self.asked.elapsed() < ASK_PERIOD {
            return;
        }
        self.asked = Instant::now();
        let (answer, asking) = mpsc::channel();
        let work = move || {
            // The capture has ended, and does not wait for it.
            let _ended = answer.send(ask());
        };
        let thread = std::thread::Builder::new().name("taut-nodes".to_owned());
        self.asking = thread.spawn(work).is_ok().then_some(asking);
    }
}

/// Sending and receiving end.
fn ends(flow: &Flow) -> [Side<'_>; 2] {
    let on = flow.on.as_str();
    [
        Side {
            on,
            node: &flow.from,
            port: flow.source_port,
        },
        Side {
            on,
            node: &flow.to,
            port: flow.destination_port,
        },
    ]
}

/// Type of the messages of a flow, as its receiver declares it, or else its sender.
fn type_of(nodes: &[KnownNode], flow: &Flow) -> Option<Arc<Declaration>> {
    let [from, to] = ends(flow);
    let mut ports = nodes.iter().filter_map(|node| node.port_at(to));
    let received = ports.find_map(|port| port.types.receives.clone());
    let mut ports = nodes.iter().filter_map(|node| node.port_at(from));
    received.or_else(|| ports.find_map(|port| port.types.sends.clone()))
}

fn node_of_file(file: &NodeConfig) -> KnownNode {
    let place = match &file.bus {
        Some(bus) => Place::FileOfBus(bus.node.to_string()),
        None => Place::FileOfNetwork,
    };
    let ports = file.ports.iter().filter_map(|port| {
        let known = KnownPort {
            name: Some(port.name.clone()).filter(|name| is_shown(name)),
            types: port.types.clone(),
        };
        Some((port.message_number()?.get(), known))
    });
    let neighbours = file.neighbours.iter().flat_map(|(_, neighbour)| {
        let mac = (neighbour.mac != MacAddress::UNSPECIFIED).then(|| neighbour.mac.to_string());
        let ip = neighbour.ip.map(|ip| ip.to_string());
        let addresses = [mac, ip].into_iter().flatten();
        addresses.map(|address| (address, neighbour.name.clone()))
    });
    KnownNode {
        place,
        command: None,
        ports: ports.collect(),
        neighbours: neighbours.collect(),
    }
}

fn ask() -> Vec<KnownNode> {
    // Without answers, messages are bytes.
    let (nodes, _silent) = status::nodes().unwrap_or_default();
    nodes.iter().map(told_node).collect()
}

/// A node as it tells of itself. It may say what it likes.
fn told_node(node: &Value) -> KnownNode {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let name = |value: &Value| text(value).filter(|name| is_shown(name));
    let mut places: Vec<String> = [&node["mac"], &node["ip"]]
        .into_iter()
        .filter_map(text)
        .collect();
    if let (Some(bus), Some(name)) = (node["bus"].as_str(), node["node"].as_str()) {
        places.push(place_on_bus(bus, name));
    }
    let declared = |told: &Value| status::told_type(told).map(Arc::new);
    let list = |key: &str| node[key].as_array().into_iter().flatten();
    let ports = list("ports").filter_map(|port| {
        let number = port["key"].as_str()?.parse::<PortNumber>().ok()?.get();
        let known = KnownPort {
            name: name(&port["name"]),
            types: PortTypes {
                receives: declared(&port["receives"]),
                sends: declared(&port["sends"]),
            },
        };
        Some((number, known))
    });
    let mut neighbours = HashMap::new();
    for neighbour in list("neighbours") {
        let addresses = [&neighbour["mac"], &neighbour["ip"]];
        for address in addresses.into_iter().filter_map(text) {
            if let Some(name) = name(&neighbour["name"]) {
                neighbours.insert(address, name);
            }
        }
    }
    KnownNode {
        place: Place::Told(places),
        command: name(&node["command"]),
        ports: ports.collect(),
        neighbours,
    }
}

/// Whether a name can be shown: not empty, not longer than a neighbour's, without control characters.
fn is_shown(name: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&name.len()) && !name.chars().any(char::is_control)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> NodeConfig {
        const TYPE: &str = "[[type]]\nname = 'T'\nfields = ['a: u8']\n";
        const PORT: &str = "[[port]]\nname = 'p'\nnumber = 7\nkind = 'queuing'\ntype = 'T'\n";
        format!("{text}\n{TYPE}{PORT}").parse().unwrap()
    }

    fn flow(on: &str, from: &str, source_port: u16, to: &str, destination_port: u16) -> Flow {
        Flow {
            on: on.to_owned(),
            from: from.to_owned(),
            source_port,
            to: to.to_owned(),
            destination_port,
            priority: 0,
            is_sent: false,
        }
    }

    /// Facts of nodes that have told this, and of files.
    fn known(told: &[Value], files: &[NodeConfig]) -> KnownNodes {
        KnownNodes {
            nodes: told.iter().map(told_node).collect(),
            files: Vec::new(),
            flows: HashMap::new(),
            answers: 0,
            asking: None,
            asked: Instant::now(),
        }
        .with_configurations(files)
    }

    #[test]
    fn files_say_types_of_ports_whose_nodes_tell_none() {
        let files = [
            file("interface = 'eth0'"),
            file("bus = 'cell'\nnode = 'arm'"),
        ];
        let mut known = known(&[], &files);
        let mut is_known = |flow: Flow| known.about(&flow).declared.is_some();
        assert!(is_known(flow("eth0", "10.0.0.2", 9, "10.0.0.1", 7)));
        assert!(
            is_known(flow("eth0", "10.0.0.2", 7, "10.0.0.1", 9)),
            "it sends"
        );
        assert!(!is_known(flow("eth0", "10.0.0.2", 8, "10.0.0.1", 9)));
        assert!(is_known(flow("bus /run/cell", "eye", 1, "arm", 7)));
        assert!(!is_known(flow("bus /run/cell", "arm", 1, "eye", 7)));
    }

    /// Names as `[from, source_port, to, destination_port]`, `-` where there is none.
    fn names(known: &mut KnownNodes, flow: &Flow) -> [String; 4] {
        let names = known.about(flow).names;
        [
            &names.from,
            &names.source_port,
            &names.to,
            &names.destination_port,
        ]
        .map(|name| name.clone().unwrap_or_else(|| "-".to_owned()))
    }

    const OWN: &str = "02:00:00:00:00:01";
    const PEER: &str = "02:00:00:00:00:02";

    fn controller() -> Value {
        serde_json::json!({
            "command": "controller", "mac": OWN, "ip": "10.0.0.1", "bus": null, "node": null,
            "ports": [
                { "key": "7", "name": "state" },
                { "key": "8", "name": "command" },
                { "key": "9", "name": "forged\u{1b}[2J" },
            ],
            "neighbours": [
                { "name": "motor", "mac": PEER, "ip": "10.0.0.2" },
                { "name": "", "mac": "02:00:00:00:00:03", "ip": null },
            ],
        })
    }

    #[test]
    fn nodes_say_how_they_and_their_neighbours_are_called() {
        let mut known = known(&[controller()], &[]);
        let state = flow("eth0", PEER, 8, OWN, 7);
        assert_eq!(
            names(&mut known, &state),
            ["motor", "-", "controller", "state"]
        );
        let command = flow("eth0", "10.0.0.1", 8, "10.0.0.2", 8);
        assert_eq!(
            names(&mut known, &command),
            ["controller", "command", "motor", "-"]
        );
        // A port without a node keeps its number, and so does one with an unprintable name.
        let other = flow("eth0", "02:00:00:00:00:03", 1, OWN, 5);
        assert_eq!(names(&mut known, &other), ["-"; 4]);
        let forged = flow("eth0", PEER, 1, OWN, 9);
        assert_eq!(
            names(&mut known, &forged),
            ["motor", "-", "controller", "-"]
        );
        let addresses = known.addresses();
        assert_eq!(addresses.len(), 2, "{addresses:?}");
        assert!(
            addresses.contains(&(End::Mac(MacAddress([2, 0, 0, 0, 0, 2])), "motor".to_owned()))
        );
    }

    #[test]
    fn as_many_flows_as_a_stranger_makes_take_bounded_memory_and_hide_no_name() {
        let mut known = known(&[controller()], &[]);
        let state = flow("eth0", PEER, 8, OWN, 7);
        for number in 0..3 * FLOWS_MAX {
            let from = format!("02:00:00:01:{:02x}:{:02x}", number >> 8, number & 0xff);
            known.about(&flow("eth0", &from, 1, OWN, 7));
            assert!(known.flows.len() <= FLOWS_MAX);
        }
        assert_eq!(
            names(&mut known, &state),
            ["motor", "-", "controller", "state"]
        );
    }

    #[test]
    fn names_stay_when_a_node_has_closed_and_follow_one_that_tells_others() {
        let mut known = known(&[controller()], &[]);
        let state = flow("eth0", PEER, 8, OWN, 7);
        names(&mut known, &state);
        let mut told = |nodes: &[Value]| {
            known.nodes = nodes.iter().map(told_node).collect();
            known.answers += 1;
            names(&mut known, &state)
        };
        assert_eq!(told(&[]), ["motor", "-", "controller", "state"]);
        let mut other = controller();
        other["ports"][0]["name"] = "position".into();
        assert_eq!(told(&[other]), ["motor", "-", "controller", "position"]);
    }

    #[test]
    fn files_name_the_ports_of_their_node_and_its_neighbours() {
        let neighbour = format!(
            "interface = 'eth0'\n[[neighbour]]\nname = 'motor'\nmac = '{PEER}'\nip = '10.0.0.2'\n"
        );
        let files = [file(&neighbour), file("bus = 'cell'\nnode = 'arm'")];
        let mut known = known(&[], &files);
        assert_eq!(
            names(&mut known, &flow("eth0", PEER, 7, OWN, 7)),
            ["motor", "-", "-", "p"]
        );
        assert_eq!(
            names(&mut known, &flow("bus /run/cell", "arm", 7, "eye", 7)),
            ["-", "p", "-", "-"]
        );
        let mut known = self::known(&[controller()], &files);
        assert_eq!(
            names(&mut known, &flow("eth0", PEER, 7, OWN, 7)),
            ["motor", "-", "controller", "state"],
            "a node is believed before a file"
        );
    }
}
