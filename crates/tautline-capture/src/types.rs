//! Types of captured messages, as the nodes of this machine tell them in their status.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::time::{Duration, Instant};

use tautline::status;
use tautline::types::Declaration;

use crate::message::Flow;

/// Least time between two questions to all nodes. Lower takes time of those who answer. Higher: messages of a node that
/// has just opened stay without names for longer.
const ASK_PERIOD: Duration = Duration::from_secs(2);

/// Types that are known. Asking takes up to a second if a node is silent, so it is done beside the capture.
#[derive(Debug)]
pub struct KnownTypes {
    ports: Ports,
    /// Answers of flows that were looked for, so that a message costs one look.
    flows: HashMap<Flow, Option<Arc<Declaration>>>,
    asking: Option<Receiver<Ports>>,
    asked: Instant,
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
            flows: HashMap::new(),
            asking: None,
            asked: Instant::now(),
        }
    }

    /// Type of the messages of a flow: the one that its receiver declares, otherwise its sender's. If neither is known,
    /// the nodes are asked again, and a later message has the answer.
    pub fn of(&mut self, flow: &Flow) -> Option<Arc<Declaration>> {
        self.take_answer();
        if let Some(known) = self.flows.get(flow) {
            let known = known.clone();
            if known.is_none() {
                self.ask_again();
            }
            return known;
        }
        let place = |node: &str, port| match flow.on.strip_prefix("bus ") {
            Some(bus) => (format!("{bus} {node}"), port),
            None => (node.to_owned(), port),
        };
        let received = self
            .ports
            .receives
            .get(&place(&flow.to, flow.destination_port));
        let sent = || self.ports.sends.get(&place(&flow.from, flow.source_port));
        let found = received.or_else(sent).cloned();
        self.flows.insert(flow.clone(), found.clone());
        found
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
                let Some(declared) = declared(&port[key]).map(Arc::new) else {
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

/// A declaration as a status tells it, checked like any other: a node says what it likes.
fn declared(told: &serde_json::Value) -> Option<Declaration> {
    let fields = told["fields"]
        .as_array()?
        .iter()
        .map(|field| field.as_str());
    let fields = fields.collect::<Option<Vec<_>>>()?;
    Declaration::new(told["name"].as_str()?, fields).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_whole_declarations_of_a_status_are_believed() {
        let told = json!({"name": "T", "fields": ["a: u8"], "bytes": 1});
        assert_eq!(declared(&told).unwrap().to_string(), "T { a: u8 }");
        for wrong in [
            json!(null),
            json!({"name": "T"}),
            json!({"name": "\u{1b}[2J", "fields": ["a: u8"]}),
            json!({"name": "T", "fields": [7]}),
            json!({"name": "T", "fields": "a: u8"}),
        ] {
            assert_eq!(declared(&wrong), None, "{wrong}");
        }
    }
}
