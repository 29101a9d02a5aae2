//! Connections from a port to its receivers. A separate thread looks for absent ports, because a peer that hangs blocks
//! it; senders never wait for more than a moment.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread;
use std::time::Duration;

use tautline::{Destination, Instant, Priority, SendError, now};

use crate::port::{PeerPort, Port};

/// Time between two looks for ports that are not there, unless a look takes longer, and longest sleep of the thread
/// that looks. Lower: more wake-ups. Higher: a program of the cell that starts hears later.
const PAUSE: Duration = Duration::from_millis(100);
/// Time from the beginning of a look for which a message waits for its end. Lower: messages for the others are dropped
/// while a program of the cell starts. Higher: a program that hangs delays the messages for the others.
const LOOKING_MAX: Duration = Duration::from_millis(5);
/// Pause of a message that waits. Lower: more work. Higher: it waits for longer than it must.
const STEP: Duration = Duration::from_micros(200);

/// A port that sends, and the ways to its receivers.
#[derive(Debug)]
pub struct Destinations {
    to: Vec<PeerPort>,
    ways: Mutex<Ways>,
    /// Whether a receiver's port is not there.
    is_missing: AtomicBool,
    /// Beginning of the look that goes on; 0 if none does.
    looking_since_ns: AtomicU64,
}

#[derive(Debug)]
struct Ways {
    port: Port,
    known: Vec<Option<Destination>>,
}

impl Destinations {
    /// Takes the port. Its receivers are `to`, or all that follow it if that is empty; none is looked for yet.
    #[must_use]
    pub fn new(port: Port, to: Vec<PeerPort>) -> Self {
        let known = vec![None; to.len().max(1)];
        Self {
            to,
            ways: Mutex::new(Ways { port, known }),
            is_missing: AtomicBool::new(true),
            looking_since_ns: AtomicU64::new(0),
        }
    }

    /// Looks for the ports that are not there. A peer that hangs holds this up, for as long as the node waits for it.
    pub fn look(&self) {
        if !self.is_missing.load(Relaxed) {
            return;
        }
        // Before the lock, so that a thread that finds it taken knows why.
        self.looking_since_ns.store(now().as_nanos(), Relaxed);
        let mut ways = self.ways.lock().unwrap_or_else(PoisonError::into_inner);
        let Ways { port, known } = &mut *ways;
        for (place, known) in known.iter_mut().enumerate() {
            if known.is_none() {
                *known = port.destination(self.to.get(place)).ok();
            }
        }
        let is_missing = known.iter().any(Option::is_none);
        self.is_missing.store(is_missing, Relaxed);
        drop(ways);
        self.looking_since_ns.store(0, Relaxed);
    }

    /// Sends to all receivers, whatever becomes of one of them. By one thread at a time; it waits for a look that has
    /// just begun, and for nothing else.
    ///
    /// # Errors
    /// The last one; [`SendError::PeerGone`] for a port that is not there, or while a look goes on.
    pub fn send(&self, priority: Priority, bytes: &[u8]) -> Result<(), SendError> {
        let mut ways = self.ways().ok_or(SendError::PeerGone)?;
        let Ways { port, known } = &mut *ways;
        let mut sent_to_all = Ok(());
        for destination in known {
            let sent = destination.map_or(Err(SendError::PeerGone), |to| {
                port.send(to, priority, bytes)
            });
            if sent == Err(SendError::PeerGone) {
                // Looked for again.
                *destination = None;
                self.is_missing.store(true, Relaxed);
            }
            sent_to_all = sent.and(sent_to_all);
        }
        sent_to_all
    }

    fn ways(&self) -> Option<MutexGuard<'_, Ways>> {
        let began = now();
        loop {
            match self.ways.try_lock() {
                Ok(ways) => return Some(ways),
                Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => {}
            }
            let looking_since = match self.looking_since_ns.load(Relaxed) {
                0 => began,
                since => Instant::from_nanos(since).min(began),
            };
            if now().saturating_duration_since(looking_since) > LOOKING_MAX {
                return None;
            }
            thread::sleep(STEP);
        }
    }
}

/// Looks for ports that are not there, again and again until `stop` is set.
pub fn look(all: &[&Destinations], stop: &AtomicBool) {
    while !stop.load(Relaxed) {
        let began = now();
        all.iter().for_each(|one| one.look());
        let ended = now();
        // A peer that hangs leaves half of the time to the others.
        let next = ended + ended.saturating_duration_since(began).max(PAUSE);
        while !stop.load(Relaxed) && now() < next {
            thread::sleep(PAUSE);
        }
    }
}

#[cfg(test)]
mod tests {
    use tautline::config::BusConfig;
    use tautline::{Node, NodeConfig, bus_neighbour};
    use tautline_state::TemporaryDirectory;

    use super::*;

    /// Nodes of a bus, each with a sampling port of number 7.
    fn open(bus: &TemporaryDirectory, name: &str, others: &[&str]) -> (Node, Port) {
        let bus = bus.path().join("bus").display().to_string();
        let config = NodeConfig::vbus(BusConfig::new(&bus, name.parse().unwrap()));
        let others = others.iter().map(|one| bus_neighbour(one.parse().unwrap()));
        let config = others.fold(config, |config, one| config.with_neighbour(one).unwrap());
        let node = Node::open(config).unwrap();
        let port = node.sampling(7).open();
        (node, Port::Sampling(port.unwrap()))
    }

    fn to(neighbours: &[&str]) -> Vec<PeerPort> {
        let of = |neighbour: &&str| PeerPort {
            neighbour: (*neighbour).to_owned(),
            port: 7.try_into().unwrap(),
        };
        neighbours.iter().map(of).collect()
    }

    #[test]
    fn a_port_that_is_there_gets_everything_whoever_looks() {
        let bus = TemporaryDirectory::make("taut-destinations").unwrap();
        let (_motor, _receiver) = open(&bus, "motor", &[]);
        let (_node, port) = open(&bus, "bridge", &["motor"]);
        let destinations = Destinations::new(port, to(&["motor"]));
        assert_eq!(send(&destinations), Err(SendError::PeerGone));
        destinations.look();
        let stop = AtomicBool::new(false);
        let undelivered = thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Relaxed) {
                    destinations.look();
                }
            });
            let sent = (0..200_000).filter(|_| send(&destinations).is_err());
            let undelivered = sent.count();
            stop.store(true, Relaxed);
            undelivered
        });
        assert_eq!(undelivered, 0);
    }

    #[test]
    fn one_that_is_not_there_is_told_and_the_other_gets_everything() {
        let bus = TemporaryDirectory::make("taut-destinations").unwrap();
        let (_motor, mut receiver) = open(&bus, "motor", &[]);
        let (_node, port) = open(&bus, "bridge", &["motor", "arm"]);
        let destinations = Destinations::new(port, to(&["motor", "arm"]));
        destinations.look();
        assert_eq!(send(&destinations), Err(SendError::PeerGone));
        let Port::Sampling(receiver) = &mut receiver else {
            panic!("a sampling port");
        };
        let mut value = vec![0; receiver.value_bytes_max()];
        assert!(receiver.read_into(&mut value).unwrap().is_some());
        let (_arm, _port) = open(&bus, "arm", &[]);
        // The node hears of a new port from the kernel.
        let mut looks = (0..1_000).map(|_| {
            thread::sleep(PAUSE / 10);
            destinations.look();
            send(&destinations)
        });
        assert!(looks.any(|sent| sent.is_ok()));
    }

    #[test]
    fn a_look_that_hangs_holds_up_no_message() {
        let bus = TemporaryDirectory::make("taut-destinations").unwrap();
        let (_motor, _receiver) = open(&bus, "motor", &[]);
        let (_node, port) = open(&bus, "bridge", &["motor"]);
        let destinations = Destinations::new(port, to(&["motor"]));
        destinations.look();
        let looking = destinations.ways.lock().unwrap();
        assert_eq!(send(&destinations), Err(SendError::PeerGone));
        drop(looking);
        assert_eq!(send(&destinations), Ok(()));
    }

    fn send(destinations: &Destinations) -> Result<(), SendError> {
        destinations.send(Priority::NORMAL, b"value")
    }
}
