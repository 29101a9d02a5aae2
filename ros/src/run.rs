//! A running program: its ports, its participant of DDS, its threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use tautline::Node;
use tautline_bridge::port::Port;
use tautline_bridge::program::{Failure, start};

use crate::config::Config;
use crate::dds::{LOOK, Participant};
use crate::publication::Outbound;
use crate::status::{FAMILY, RosStatus};
use crate::subscription::Inbound;

/// State that the threads share.
struct Shared {
    name: String,
    domain: u16,
    participant: Arc<Participant>,
    outbound: Vec<Arc<Outbound>>,
    inbound: Vec<Arc<Inbound>>,
}

impl Shared {
    fn status(&self) -> RosStatus {
        let publications = self.outbound.iter();
        RosStatus {
            name: self.name.clone(),
            domain: self.domain,
            process: std::process::id(),
            publications: publications
                .map(|one| one.status(&self.participant))
                .collect(),
            subscriptions: self.inbound.iter().map(|one| one.status()).collect(),
        }
    }
}

/// Runs until `stop` is set.
///
/// # Errors
/// The node or one of its ports cannot be opened, or DDS finds no sockets.
pub(crate) fn run(config: Config, stop: &Arc<AtomicBool>) -> Result<(), Failure> {
    // A real-time thread may start this program, which never is one.
    let _unchanged = tautline_state::policy::set_policy(0, libc::SCHED_OTHER, 0);
    let name = config.full_name();
    let node = Node::open(config.node)?;
    eprintln!("ros {name}: {}", node.report());
    let participant = Arc::new(Participant::join(config.domain, &config.networks)?);
    let mut outbound = Vec::new();
    for publication in config.publications {
        let port = Port::open(&node, &publication.port)?;
        outbound.push((Outbound::open(publication, &participant)?, port));
    }
    let mut inbound = Vec::new();
    for subscription in config.subscriptions {
        let port = Port::open(&node, &subscription.port)?;
        inbound.push(Inbound::open(subscription, port, &participant)?);
    }
    let readers = inbound.iter().map(|(_, reader)| reader.number());
    let writers = outbound.iter().map(|(one, _)| one.writer().number());
    let _announcement = participant.announce(
        &config.namespace,
        &config.name,
        readers.collect(),
        writers.collect(),
    )?;
    let shared = Arc::new(Shared {
        name,
        domain: config.domain,
        participant,
        outbound: outbound.iter().map(|(one, _)| Arc::clone(one)).collect(),
        inbound: inbound.iter().map(|(one, _)| Arc::clone(one)).collect(),
    });
    let telling = Arc::clone(&shared);
    let told = move || telling.status();
    let status = tautline_bridge::status::tell(FAMILY, Arc::clone(stop), told)?;
    let mut threads = Vec::new();
    for (one, port) in outbound {
        let ending = Arc::clone(stop);
        let work = move || one.run(port, &ending);
        threads.push(start("publication", stop, work)?);
    }
    for (one, reader) in inbound {
        let (connecting, ending) = (Arc::clone(&one), Arc::clone(stop));
        threads.push(start("destinations", stop, move || {
            connecting.connect(&ending);
            Ok(())
        })?);
        let ending = Arc::clone(stop);
        threads.push(start("subscription", stop, move || {
            one.run(reader, &ending);
            Ok(())
        })?);
    }
    eprintln!("ros {}: joined domain {}", shared.name, shared.domain);
    while !stop.load(Relaxed) {
        thread::sleep(LOOK);
    }
    let mut ended = Ok(());
    for thread in threads {
        ended = ended.and(thread.join().expect("no thread panics"));
    }
    status.join().expect("no thread panics");
    ended
}
