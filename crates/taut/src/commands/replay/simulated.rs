//! A recording between simulated nodes, in virtual time.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufReader;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use tautline::link::sim::Network;
use tautline::neighbours::Form;
use tautline::{Destination, MacAddress, Neighbour, Node, NodeConfig, QueuingPort, Wait};
use tautline_capture::message::{Flow, Message};
use tautline_capture::recording::{Recorder, Recording, RecordingError};
use tautline_proto::sim::SimConfig;
use tautline_state::Existing;

use tautline_state::interrupt;

use super::{number, priority};
use crate::cli::{self, CommandError};
use crate::commands::{peer, record};

/// Nodes that a recording may have here. A node has a table of all others; more than this is no network of ours.
const NODES_MAX: usize = 256;

/// Ports that a recording may have here. Each has room for messages of any size, 2 MiB.
const PORTS_MAX: usize = 512;

/// Sends all messages of the wanted flows, and compares what arrives.
pub(super) fn run(
    mut recording: Recording<BufReader<File>>,
    wanted: &[bool],
    write: Option<(&Path, Existing)>,
) -> Result<(), CommandError> {
    let mut nodes = Nodes::open(recording.flows(), wanted)?;
    let mut recorder = match write {
        Some((path, existing)) => Some(recorder(&recording, path, existing)?),
        None => None,
    };
    let facts = recording.facts().to_vec();
    let (mut same, mut other) = (0u64, 0u64);
    let played = recording.play(|place, message| {
        if let Some(signal) = interrupt::interrupted() {
            return Err(Stop::Interrupted(signal));
        }
        if !wanted[place] {
            return Ok(());
        }
        match nodes.pass(place, &message)? {
            true => same += 1,
            false => other += 1,
        }
        if let Some(recorder) = &mut recorder {
            let arrived = Message {
                bytes: nodes.arrived(),
                ..message
            };
            recorder.write(&arrived, &facts[place])?;
        }
        Ok(())
    });
    let ended = recorder.map_or(Ok(()), |recorder| {
        recorder.finish(&[("messages", same + other), ("lost", 0)])
    });
    let interrupted = match played {
        Ok(()) => None,
        Err(Stop::Interrupted(signal)) => Some(signal),
        Err(Stop::Failed(error)) => return Err(error),
        Err(Stop::Recording(error)) => {
            return Err(CommandError::failed(error.to_string(), error.remedy()));
        }
    };
    ended.map_err(|error| CommandError::failed(error.to_string(), error.remedy()))?;
    let time = nodes.network.now();
    cli::print(&format!(
        "{same} messages arrived as they were recorded, in the same order, within {:?} of virtual time\n",
        time.saturating_duration_since(tautline::Instant::ZERO)
    ))?;
    if let Some(signal) = interrupted {
        return Err(CommandError::interrupted(signal));
    }
    match other {
        0 => Ok(()),
        count => Err(CommandError::failed(
            format!("{count} messages did not arrive as they were recorded"),
            "record again: a recording with such messages was changed by another program",
        )),
    }
}

/// The file for what arrives. Never the recording itself, whose messages are still to be read.
fn recorder(
    recording: &Recording<BufReader<File>>,
    path: &Path,
    existing: Existing,
) -> Result<Recorder, CommandError> {
    let is_same = match (recording.file().metadata(), std::fs::metadata(path)) {
        (Ok(read), Ok(written)) => (read.dev(), read.ino()) == (written.dev(), written.ino()),
        _ => false,
    };
    if is_same {
        return Err(CommandError::usage(
            format!("{} is the recording that is replayed", path.display()),
            "name another file with --write",
        ));
    }
    Recorder::create(path, existing).map_err(|error| record::not_made(path, &error))
}

/// How a simulated replay ended that did not succeed.
enum Stop {
    Failed(CommandError),
    Interrupted(i32),
    Recording(RecordingError),
}

impl From<RecordingError> for Stop {
    fn from(error: RecordingError) -> Stop {
        Stop::Recording(error)
    }
}

/// The nodes of a recording, with their ports.
struct Nodes {
    network: Network,
    ports: Vec<QueuingPort>,
    _nodes: Vec<Node>,
    /// Of each flow that is replayed: places of the sending and the receiving port, and the destination.
    ways: Vec<Option<(usize, usize, Destination)>>,
    /// Time of the last message.
    last_ns: Option<u64>,
    buffer: Vec<u8>,
    length: usize,
}

/// The simulated nodes of a flow. Processes of one user have one name on a bus, and a simulated node does not hear
/// itself: what a node sends to its own name arrives at another one.
fn ends(flow: &Flow) -> [(&str, bool); 2] {
    [(&flow.from, false), (&flow.to, flow.from == flow.to)]
}

fn mac(index: usize) -> MacAddress {
    let [high, low] = (index as u16).to_be_bytes();
    MacAddress([2, 0, 0, 0, high, low])
}

fn name(index: usize) -> String {
    format!("n{index}")
}

impl Nodes {
    fn open(flows: &[Flow], wanted: &[bool]) -> Result<Nodes, CommandError> {
        let played = || {
            flows
                .iter()
                .zip(wanted)
                .filter(|(_, wanted)| **wanted)
                .map(|(flow, _)| flow)
        };
        let mut indexes = BTreeMap::new();
        for end in played().flat_map(ends) {
            let next = indexes.len();
            indexes.entry(end).or_insert(next);
        }
        if indexes.len() > NODES_MAX {
            return Err(too_many("nodes", indexes.len(), NODES_MAX));
        }
        let network = Network::new(SimConfig {
            node_count_max: indexes.len(),
            ..SimConfig::default()
        });
        let nodes: Result<Vec<Node>, CommandError> = (0..indexes.len())
            .map(|own| open_node(&network, own, indexes.len()))
            .collect();
        let nodes = nodes?;
        let (mut ports, mut places) = (Vec::new(), BTreeMap::new());
        let mut place_of = |node: usize, port: u16| {
            if let Some(place) = places.get(&(node, port)) {
                return Ok(*place);
            }
            if places.len() == PORTS_MAX {
                return Err(too_many("ports", PORTS_MAX + 1, PORTS_MAX));
            }
            let opened = nodes[node]
                .queuing(number(port))
                .options(&peer::any_size())
                .open();
            ports.push(opened.map_err(peer::port_error)?);
            places.insert((node, port), ports.len() - 1);
            Ok(ports.len() - 1)
        };
        let mut pairs = Vec::new();
        for (flow, wanted) in flows.iter().zip(wanted) {
            if !wanted {
                pairs.push(None);
                continue;
            }
            let [from, to] = ends(flow).map(|end| indexes[&end]);
            let places = (
                place_of(from, flow.source_port)?,
                place_of(to, flow.destination_port)?,
            );
            pairs.push(Some((places, to, flow.destination_port)));
        }
        let mut ways = Vec::new();
        for pair in pairs {
            ways.push(match pair {
                None => None,
                Some(((sender, receiver), to, port)) => {
                    let destination = ports[sender].destination(&name(to), number(port));
                    Some((sender, receiver, destination.map_err(peer::port_error)?))
                }
            });
        }
        Ok(Nodes {
            network,
            buffer: vec![0; tautline_proto::wire::MESSAGE_BYTES_MAX],
            ports,
            _nodes: nodes,
            ways,
            last_ns: None,
            length: 0,
        })
    }

    /// Sends a message at its time, and receives it. Whether it arrived as it was.
    fn pass(&mut self, place: usize, message: &Message<'_>) -> Result<bool, Stop> {
        let last = self.last_ns.unwrap_or(message.time_ns);
        self.network
            .advance(Duration::from_nanos(message.time_ns.saturating_sub(last)));
        self.last_ns = Some(message.time_ns.max(last));
        let (sender, receiver, to) = self.ways[place].as_ref().expect("it is replayed");
        let sent = self.ports[*sender].send(*to, priority(message.flow), message.bytes);
        sent.map_err(|error| Stop::Failed(peer::send_error(error)))?;
        self.length = 0;
        let received = self.ports[*receiver].receive_into(&mut self.buffer, Wait::Poll);
        let received = received.map_err(|error| Stop::Failed(peer::receive_error(error)))?;
        let Some(received) = received else {
            return Ok(false);
        };
        self.length = received.length;
        Ok(self.arrived() == message.bytes
            && received.priority.get() == message.flow.priority
            && received.source.port.get() == message.flow.source_port)
    }

    /// Bytes of the message that has arrived last.
    fn arrived(&self) -> &[u8] {
        &self.buffer[..self.length]
    }
}

/// A node that knows all others.
fn open_node(network: &Network, own: usize, count: usize) -> Result<Node, CommandError> {
    let failed = |error: String| CommandError::failed(error, "replay fewer ports with --port");
    let mut config = NodeConfig::on("sim");
    for other in 0..count {
        let neighbour = Neighbour {
            name: name(other),
            mac: mac(other),
            ip: None,
            form: Form::Ethernet,
        };
        if other != own {
            let added = config.neighbours.add(neighbour);
            added.map_err(|error| failed(error.to_string()))?;
        }
    }
    network
        .open(mac(own), config)
        .map_err(|error| failed(error.to_string()))
}

fn too_many(what: &str, count: usize, max: usize) -> CommandError {
    CommandError::failed(
        format!("the recording has {count} {what}, and the simulator takes {max}"),
        "replay fewer ports with --port",
    )
}
