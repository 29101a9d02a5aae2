//! Types of captured messages: as the nodes of this machine tell them in their status, or as configuration files do.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::time::{Duration, Instant};

use tautline::types::{Declaration, PortTypes};
use tautline::{NodeConfig, status};

use crate::message::Flow;

/// Least time between two questions to all nodes. Lower takes time of those who answer. Higher: messages of a node that
/// has just opened stay without names for longer.
const ASK_PERIOD: Duration = Duration::from_secs(2);

/// Beginning of [`Flow::on`] where messages are on a bus.
const BUS: &str = "bus ";

/// Types that are known. Asking takes up to a second if a node is silent, so it is done beside the capture.
#[derive(Debug)]
pub struct KnownTypes {
    ports: Ports,
    declared: Vec<DeclaredPort>,
    /// Answers of flows that were looked for, so that a message costs one look.
    flows: HashMap<Flow, Option<Arc<Declaration>>>,
    asking: Option<Receiver<Ports>>,
    asked: Instant,
}

/// A port of a configuration file. On a network its node is not known: the file may be another machine's.
#[derive(Debug)]
struct DeclaredPort {
    /// Name of its node on a bus, if it is on one.
    bus_node: Option<String>,
    number: u16,
    types: PortTypes,
}

impl DeclaredPort {
    fn is_meant(&self, flow: &Flow, node: &str, number: u16) -> bool {
        let is_on_bus = flow.on.starts_with(BUS);
        let of_node = match &self.bus_node {
            Some(name) => is_on_bus && name == node,
            None => !is_on_bus,
        };
        of_node && self.number == number
    }
}

/// A port by the name or address of its node, on a bus with the bus before it, and its number.
type PortPlace = (String, u16);

/// Types of messages that ports receive and send.
#[derive(Debug, Default)]
struct Ports {
    receives: HashMap<PortPlace, Arc<Declaration>>,
    sends: HashMap<PortPlace, Arc<Declaration>>,
}

impl KnownTypes {
    /// Asks the nodes of this network namespace that this user may ask, and waits for their answers.
    #[must_use]
    pub fn ask() -> Self {
        Self {
            ports: ask(),
            declared: Vec::new(),
            flows: HashMap::new(),
            asking: None,
            asked: Instant::now(),
        }
    }

    /// The same with the types of configuration files, for ports whose nodes tell none: those of other machines, of
    /// other users, and of programs that do not read the file.
    #[must_use]
    pub fn with_configurations(mut self, files: &[NodeConfig]) -> Self {
        self.declared = files.iter().flat_map(declared_ports).collect();
        self
    }

    /// Type of the messages of a flow: the one that its receiver declares, otherwise its sender's; a node is believed
    /// before a configuration file. If none is known, the nodes are asked again, and a later message has the answer.
    pub fn of(&mut self, flow: &Flow) -> Option<Arc<Declaration>> {
        self.take_answer();
        if let Some(known) = self.flows.get(flow) {
            let known = known.clone();
            if known.is_none() {
                self.ask_again();
            }
            return known;
        }
        let place = |node: &str, port| match flow.on.strip_prefix(BUS) {
            Some(bus) => (format!("{bus} {node}"), port),
            None => (node.to_owned(), port),
        };
        let received = self
            .ports
            .receives
            .get(&place(&flow.to, flow.destination_port));
        let sent = || self.ports.sends.get(&place(&flow.from, flow.source_port));
        let told = received.or_else(sent).cloned();
        let found = told.or_else(|| self.of_configurations(flow));
        self.flows.insert(flow.clone(), found.clone());
        found
    }

    fn of_configurations(&self, flow: &Flow) -> Option<Arc<Declaration>> {
        let port = |node: &str, number| {
            let mut ports = self.declared.iter();
            ports.find(|port| port.is_meant(flow, node, number))
        };
        let received = port(&flow.to, flow.destination_port);
        let received = received.and_then(|port| port.types.receives.clone());
        received.or_else(|| port(&flow.from, flow.source_port)?.types.sends.clone())
    }

    /// Takes the answers of a question that was asked before.
    fn take_answer(&mut self) {
        let Some(asking) = &self.asking else {
            return;
        };
        match asking.try_recv() {
            Ok(ports) => {
                self.ports = ports;
                self.flows.clear();
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
            // Nobody waits for it any more: the capture has ended.
            let _ended = answer.send(ask());
        };
        let thread = std::thread::Builder::new().name("taut-types".to_owned());
        self.asking = thread.spawn(work).is_ok().then_some(asking);
    }
}

/// Ports of a file that declare types.
fn declared_ports(file: &NodeConfig) -> Vec<DeclaredPort> {
    let bus_node = file.bus.as_ref().map(|bus| bus.node.to_string());
    let ports = file.ports.iter();
    let typed = ports.filter(|port| port.types != PortTypes::default());
    typed
        .map(|port| DeclaredPort {
            bus_node: bus_node.clone(),
            number: port.number.get(),
            types: port.types.clone(),
        })
        .collect()
}

fn ask() -> Ports {
    let mut ports = Ports::default();
    // Without answers, messages are bytes.
    let (nodes, _silent) = status::nodes().unwrap_or_default();
    for node in &nodes {
        let text = |key: &str| node[key].as_str();
        let mut places: Vec<String> = [text("mac"), text("ip")]
            .into_iter()
            .flatten()
            .map(str::to_owned)
            .collect();
        if let (Some(bus), Some(name)) = (text("bus"), text("node")) {
            places.push(format!("{bus} {name}"));
        }
        for port in node["ports"].as_array().into_iter().flatten() {
            let number = port["number"]
                .as_u64()
                .and_then(|one| u16::try_from(one).ok());
            let Some(number) = number else { continue };
            let lists = [
                ("receives", &mut ports.receives),
                ("sends", &mut ports.sends),
            ];
            for (key, list) in lists {
                let Some(declared) = status::told_type(&port[key]).map(Arc::new) else {
                    continue;
                };
                for place in &places {
                    list.insert((place.clone(), number), Arc::clone(&declared));
                }
            }
        }
    }
    ports
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> NodeConfig {
        const TYPE: &str = "[[type]]\nname = 'T'\nfields = ['a: u8']\n";
        const PORT: &str = "[[port]]\nname = 'p'\nnumber = 7\nkind = 'queuing'\ntype = 'T'\n";
        format!("{text}\n{TYPE}{PORT}").parse().unwrap()
    }

    #[test]
    fn files_say_types_of_ports_whose_nodes_tell_none() {
        let flow = |on: &str, from: &str, source_port, to: &str, destination_port| Flow {
            on: on.to_owned(),
            from: from.to_owned(),
            source_port,
            to: to.to_owned(),
            destination_port,
            priority: 0,
            is_sent: false,
        };
        let files = [
            file("interface = 'eth0'"),
            file("bus = 'cell'\nnode = 'arm'"),
        ];
        let mut known = KnownTypes {
            ports: Ports::default(),
            declared: Vec::new(),
            flows: HashMap::new(),
            asking: None,
            asked: Instant::now(),
        }
        .with_configurations(&files);
        let mut is_known = |flow: Flow| known.of(&flow).is_some();
        assert!(is_known(flow("eth0", "10.0.0.2", 9, "10.0.0.1", 7)));
        assert!(
            is_known(flow("eth0", "10.0.0.2", 7, "10.0.0.1", 9)),
            "it sends"
        );
        assert!(!is_known(flow("eth0", "10.0.0.2", 8, "10.0.0.1", 9)));
        assert!(is_known(flow("bus /run/cell", "eye", 1, "arm", 7)));
        assert!(!is_known(flow("bus /run/cell", "arm", 1, "eye", 7)));
    }
}
