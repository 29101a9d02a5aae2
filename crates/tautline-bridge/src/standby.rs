//! Several programs of one cell that carry the same ports: one is active, the others stand by. Their heartbeats go
//! through a sampling port of the cell, so that participants of the other network have no part in the decision.

use std::mem;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use serde::Deserialize;
use tautline::address::Address;
use tautline::config::PortOptions;
use tautline::neighbours::NeighbourTable;
use tautline::port::SOURCES_MAX;
use tautline::{
    Destination, Instant, Node, NodeConfig, OpenError, Priority, SamplingPort, Source, Wait, now,
};

use crate::activity::Activity;
use crate::clocks::Moment;
use crate::config::Ports;
use crate::election::{BEAT, Election, Heartbeat, LEASE, LISTENING, SILENCE_MAX, State};
use crate::port::PeerPort;
use crate::program::{Failure, say};

/// Programs that may stand by for one. Lower: fewer. Higher: heartbeats grow with the square of it.
const PEERS_MAX: usize = 7;
/// Places of the heartbeats' port beyond those of the peers. Lower: other senders of the cell take a peer's
/// place, or replace its heartbeats. Higher: memory, 4.5 KiB each.
const SPARE_SOURCES: usize = 8;

/// Section `[standby]` of a file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Section {
    port: String,
    peers: Vec<String>,
    #[serde(default)]
    rank: u32,
}

/// The other programs of the same cell.
#[derive(Debug)]
pub struct Standby {
    port: String,
    peers: Vec<PeerPort>,
    rank: u32,
}

impl Section {
    /// Takes the port.
    ///
    /// # Errors
    /// It is no sampling port, or the peers are too many or none; in words.
    pub fn check(self, ports: &mut Ports<'_>) -> Result<Standby, String> {
        let peers = self.peers.iter().map(|text| ports.peer(text));
        let peers: Vec<PeerPort> = peers.collect::<Result<_, _>>()?;
        if !(1..=PEERS_MAX).contains(&peers.len()) {
            return Err(format!(
                "[standby] has {} peers, expected 1 to {PEERS_MAX}",
                peers.len()
            ));
        }
        let port = ports.take(&self.port)?;
        if matches!(port.kind, PortOptions::Queuing(_)) {
            return Err(format!(
                "port `{}` of [standby] must be a sampling port",
                port.name
            ));
        }
        Ok(Standby {
            port: port.name,
            peers,
            rank: self.rank,
        })
    }
}

impl Standby {
    /// Number of the others.
    #[must_use]
    pub fn peer_count(&self) -> usize {
        self.peers.len()
    }

    /// The section as `check` shows it: a line.
    #[must_use]
    pub fn text(&self) -> String {
        format!(
            "  standby: port {}, rank {}, peers {}; a heartbeat every {} ms, dead after {} ms of silence\n",
            self.port,
            self.rank,
            self.peer_names().join(", "),
            BEAT.as_millis(),
            SILENCE_MAX.as_millis(),
        )
    }

    /// State as JSON.
    #[must_use]
    pub fn told(&self) -> serde_json::Value {
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        serde_json::json!({
            "port": self.port,
            "rank": self.rank,
            "peers": self.peer_names(),
            "heartbeat_ms": ms(BEAT),
            "silence_ms_max": ms(SILENCE_MAX),
            "lease_ms": ms(LEASE),
            "listening_ms": ms(LISTENING),
        })
    }

    fn peer_names(&self) -> Vec<String> {
        self.peers.iter().map(ToString::to_string).collect()
    }

    /// Gives the heartbeats' port a place for each peer and some for others.
    fn prepare(&self, node: &mut NodeConfig) {
        let wanted = self.peers.len() + SPARE_SOURCES;
        for port in node.ports.iter_mut().filter(|one| one.name == self.port) {
            if let PortOptions::Sampling(options) = &mut port.kind {
                options.sources = options.sources.max(wanted);
            }
        }
    }
}

/// Opens the node of a program, which standard error shows as `program`, and leaves real-time scheduling: a real-time
/// thread may start a program, which never is one.
///
/// # Errors
/// Those of the node.
pub fn open_node(
    program: &str,
    mut node: NodeConfig,
    standby: Option<&Standby>,
) -> Result<Node, OpenError> {
    let _unchanged = tautline_state::policy::set_policy(0, libc::SCHED_OTHER, 0);
    if let Some(standby) = standby {
        standby.prepare(&mut node);
    }
    let node = Node::open(node)?;
    say(&format!("{program}: {}", node.report()));
    Ok(node)
}

/// Number of a process, which no other one has.
///
/// # Errors
/// The system has no random bytes.
pub fn process_number() -> Result<u64, Failure> {
    let mut random = [0; 8];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    Ok(u64::from_le_bytes(random))
}

/// State of a program among the others, for queries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    /// `active`, `standing by` or `listening`.
    pub state: &'static str,
    /// Others that were heard of late.
    pub others: usize,
    /// Values on the heartbeats' port that are no heartbeats, or none of a peer.
    pub refused: u64,
    /// Heartbeats of more programs than are remembered.
    pub unplaced: u64,
}

/// State of a program among the others, which one thread sets and all may read.
#[derive(Debug)]
pub struct LastShown {
    program: String,
    last: Mutex<Shown>,
}

impl LastShown {
    /// Begins with a state. `program` is the name before the state on standard error: `gateway north`.
    #[must_use]
    pub fn new(program: String, state: &'static str) -> Self {
        let shown = Shown {
            state,
            ..Shown::default()
        };
        Self {
            program,
            last: Mutex::new(shown),
        }
    }

    /// Sets it, and says on standard error when the state is another one.
    pub fn set(&self, now: Shown) {
        let before = mem::replace(&mut *self.lock(), now);
        // Without the lock: a reader of standard error that hangs does not delay queries for the state.
        if before.state != now.state {
            say(&format!("{}: {}", self.program, now.state));
        }
    }

    /// Sets the state of a program without others.
    pub fn set_state(&self, state: &'static str) {
        self.set(Shown {
            state,
            ..Shown::default()
        });
    }

    /// The last one.
    #[must_use]
    pub fn last(&self) -> Shown {
        *self.lock()
    }

    fn lock(&self) -> MutexGuard<'_, Shown> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The heartbeats' port, its peers, and the decision.
#[derive(Debug)]
pub struct Votes {
    port: SamplingPort,
    peers: Vec<(PeerPort, Option<Destination>)>,
    neighbours: NeighbourTable,
    election: Election,
    refused: u64,
}

impl Votes {
    /// Opens the port, and begins to listen. `process` is a [`process_number`]; the program gives way to a connected
    /// one when it has not been connected for `grace`.
    ///
    /// # Errors
    /// Those of the node.
    pub fn open(
        node: &Node,
        standby: &Standby,
        process: u64,
        grace: Duration,
    ) -> Result<Self, Failure> {
        let port = node.sampling(&standby.port).open()?;
        let peers = standby.peers.iter().cloned();
        Ok(Self {
            port,
            peers: peers.map(|peer| (peer, None)).collect(),
            neighbours: node.neighbours(),
            election: Election::new(process, standby.rank, grace, Moment::now()),
            refused: 0,
        })
    }

    fn listen(&mut self) -> Result<(), Failure> {
        let Self {
            port,
            peers,
            neighbours,
            election,
            refused,
            ..
        } = self;
        // As many as there are sources, whatever comes meanwhile.
        for _ in 0..SOURCES_MAX {
            let Some(value) = port.next(Wait::Poll)? else {
                break;
            };
            let sample = value.sample();
            let is_of_peer = is_of_peer(peers, neighbours, sample.source);
            match Heartbeat::parse(&value).filter(|_| is_of_peer) {
                Some(heartbeat) => election.hear(sample.arrival, heartbeat),
                None => *refused = refused.saturating_add(1 + sample.overwritten),
            }
        }
        Ok(())
    }

    fn shown(&self, state: State) -> Shown {
        Shown {
            state: match state {
                State::Active(_) => "active",
                State::StandingBy => "standing by",
                State::Listening(_) => "listening",
            },
            others: self.election.others(),
            refused: self.refused,
            unplaced: self.election.unplaced(),
        }
    }

    /// Decides again and again whether this program is active, until `stop` is set; then it hands over.
    ///
    /// # Errors
    /// The port can no longer be read.
    pub fn decide(
        mut self,
        activity: &Activity,
        is_connected: impl Fn() -> bool,
        show: impl Fn(Shown),
        stop: &AtomicBool,
    ) -> Result<(), Failure> {
        while !stop.load(Relaxed) {
            // Before it listens: what comes after that is heard in time.
            let now = Moment::now();
            self.listen()?;
            let Self {
                port,
                peers,
                election,
                ..
            } = &mut self;
            let send = |heartbeat: &Heartbeat| tell(port, peers, now.monotonic, heartbeat);
            let state = election.decide(now, is_connected(), activity, send);
            show(self.shown(state));
            thread::sleep(BEAT);
        }
        let send = |heartbeat: &Heartbeat| tell(&mut self.port, &mut self.peers, now(), heartbeat);
        self.election.resign(activity, send);
        Ok(())
    }
}

/// Sends a heartbeat to all peers that are there.
fn tell(
    port: &mut SamplingPort,
    peers: &mut [(PeerPort, Option<Destination>)],
    now: Instant,
    heartbeat: &Heartbeat,
) {
    for (peer, known) in peers {
        if known.is_none() {
            // Never waits: a peer that hangs would make this program miss its own decisions.
            *known = port.destination_until(&peer.neighbour, peer.port, now).ok();
        }
        let Some(to) = *known else { continue };
        if port.send(to, Priority::NORMAL, &heartbeat.bytes()).is_err() {
            *known = None;
        }
    }
}

/// Whether a value comes from the port of a peer. On a bus the directory's owner assigns names; on a
/// network the address decides, which `protection` of the port authenticates.
fn is_of_peer(
    peers: &[(PeerPort, Option<Destination>)],
    neighbours: &NeighbourTable,
    source: Source,
) -> bool {
    let place = match source.address {
        Address::Ethernet(mac) => neighbours.source_of_frame(mac, None),
        Address::Udp(address) => neighbours.by_ip(*address.ip()),
        Address::Bus(name) => neighbours.by_name(name.as_str()),
        _ => None,
    };
    let neighbour = place.and_then(|place| neighbours.get(place));
    let is_it = |peer: &PeerPort| neighbour.is_some_and(|one| one.name == peer.neighbour);
    peers
        .iter()
        .any(|(peer, _)| peer.port == source.port && is_it(peer))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: &str = "link = \"vbus\"\nbus = \"cell\"\nnode = \"north\"\n\
        [[neighbour]]\nname = \"south\"\n[[neighbour]]\nname = \"west\"\n\
        [[port]]\nname = \"votes\"\nnumber = 9\nkind = \"sampling\"\n";

    #[test]
    fn a_section_is_shown_with_peers_and_times() {
        let node: NodeConfig = NODE.parse().unwrap();
        let section = "port = \"votes\"\npeers = [\"south.9\", \"west.10\"]\nrank = 2\n";
        let section: Section = toml::from_str(section).unwrap();
        let standby = section.check(&mut Ports::new(&node)).unwrap();
        assert_eq!(
            standby.text(),
            "  standby: port votes, rank 2, peers south.9, west.10; a heartbeat every 50 ms, \
             dead after 350 ms of silence\n"
        );
        let told = standby.told();
        assert_eq!(told["port"], "votes");
        assert_eq!(told["rank"], 2);
        assert_eq!(told["peers"], serde_json::json!(["south.9", "west.10"]));
        let times = ["heartbeat_ms", "silence_ms_max", "lease_ms", "listening_ms"];
        assert_eq!(
            times.map(|name| told[name].as_u64()),
            [50, 350, 300, 500].map(Some)
        );
    }

    #[test]
    fn the_last_state_is_kept_with_its_numbers() {
        let shown = LastShown::new("gateway north".to_owned(), "connecting");
        assert_eq!(shown.last().state, "connecting");
        shown.set(Shown {
            state: "active",
            others: 1,
            refused: 3,
            unplaced: 0,
        });
        let last = shown.last();
        assert_eq!((last.state, last.others, last.refused), ("active", 1, 3));
        shown.set_state("active");
        assert_eq!(shown.last().others, 0);
    }
}
