//! A running program: its ports, its participant of DDS, its threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use tautline_bridge::activity::Activity;
use tautline_bridge::destinations::look;
use tautline_bridge::port::Port;
use tautline_bridge::program::{Failure, join, run_again, say, start};
use tautline_bridge::standby::{LastShown, Votes, open_node, process_number};
use tautline_bridge::status::{self, Standing};

use crate::config::Config;
use crate::dds::{Announcement, LOOK, Participant, Threads};
use crate::publication::Outbound;
use crate::status::{FAMILY, RosStatus};
use crate::subscription::Inbound;

/// Times of [`LOOK`] between two looks at the domain for anybody to speak to. Lower: more work. Higher: a program that
/// has lost the domain gives way later.
const LOOKS_FOR_OTHERS: u32 = 5;
/// Time for which an active program may have no counterpart, while a standby has one, before it yields. The
/// two see a participant at different times. Lower: they take turns for nothing. Higher: it gives way later.
const GRACE: Duration = Duration::from_secs(2);

/// State that the threads share.
struct Shared {
    name: String,
    domain: u16,
    participant: Arc<Participant>,
    announcement: Announcement,
    activity: Arc<Activity>,
    peers: usize,
    shown: LastShown,
    /// Whether anybody in the domain reads or writes a topic.
    is_connected: AtomicBool,
    outbound: Vec<Arc<Outbound>>,
    inbound: Vec<Arc<Inbound>>,
}

impl Shared {
    fn status(&self) -> RosStatus {
        let shown = self.shown.last();
        RosStatus {
            name: self.name.clone(),
            domain: self.domain,
            standing: Standing::now(&self.activity, shown),
            peers: self.peers,
            peers_heard: shown.others,
            datagrams_refused: crate::receive::refused(),
            publications: self.outbound.iter().map(|one| one.status()).collect(),
            subscriptions: self.inbound.iter().map(|one| one.status()).collect(),
        }
    }

    /// Announces what has changed and looks for others, until `stop` is set or DDS has stopped; whether it has.
    fn keep_house(&self, stop: &AtomicBool) -> Result<bool, Failure> {
        let threads = Threads::find();
        let published: Vec<String> = self.outbound.iter().map(|one| one.dds_topic()).collect();
        let subscribed: Vec<String> = self.inbound.iter().map(|one| one.dds_topic()).collect();
        let mut turn = 0;
        while !stop.load(Relaxed) {
            if self.peers > 0 && turn % LOOKS_FOR_OTHERS == 0 {
                let found = self.participant.has_counterpart(&published, &subscribed);
                self.is_connected.store(found, Relaxed);
            }
            turn = turn.wrapping_add(1);
            if !threads.are_there() {
                return Ok(true);
            }
            self.announcement.tell()?;
            thread::sleep(LOOK);
        }
        Ok(!threads.are_there())
    }
}

/// Runs until `stop` is set.
///
/// # Errors
/// The node or one of its ports cannot be opened, or DDS finds no sockets.
pub(crate) fn run(config: Config, stop: &Arc<AtomicBool>) -> Result<(), Failure> {
    let name = config.full_name();
    let process = process_number()?;
    let program = format!("ros {name}");
    let node = open_node(&program, config.node, config.standby.as_ref())?;
    let activity = Arc::new(match config.standby {
        Some(_) => Activity::new(process),
        None => Activity::alone(process),
    });
    let participant = Arc::new(Participant::join(config.domain, &config.networks)?);
    let mut outbound = Vec::new();
    for publication in config.publications {
        let port = Port::open(&node, &publication.port)?;
        let (one, writer) = Outbound::open(publication, &participant, &activity)?;
        outbound.push((one, writer, port));
    }
    let mut inbound = Vec::new();
    for subscription in config.subscriptions {
        let port = Port::open(&node, &subscription.port)?;
        inbound.push(Inbound::open(subscription, port, &participant, &activity)?);
    }
    let readers = inbound.iter().map(|(_, reader)| reader.number());
    let writers = outbound.iter().map(|(_, writer, _)| writer.number());
    let announcement = participant.announce(
        &config.namespace,
        &config.name,
        readers.collect(),
        writers.collect(),
    )?;
    let peers = config.standby.as_ref();
    let first = match peers {
        Some(_) => "listening",
        None => "active",
    };
    let shared = Arc::new(Shared {
        shown: LastShown::new(program, first),
        name,
        domain: config.domain,
        participant,
        announcement,
        activity,
        peers: peers.map_or(0, |standby| standby.peer_count()),
        is_connected: AtomicBool::new(false),
        outbound: outbound.iter().map(|(one, ..)| Arc::clone(one)).collect(),
        inbound: inbound.iter().map(|(one, _)| Arc::clone(one)).collect(),
    });
    let telling = Arc::clone(&shared);
    let told = move || telling.status();
    let teller = status::tell(FAMILY, Arc::clone(stop), told)?;
    let mut threads = Vec::new();
    let mut election = None;
    if let Some(standby) = &config.standby {
        let votes = Votes::open(&node, standby, process, GRACE)?;
        let (shared, ending) = (Arc::clone(&shared), Arc::clone(stop));
        election = Some(start("election", stop, move || {
            let is_connected = || shared.is_connected.load(Relaxed);
            votes.decide(
                &shared.activity,
                is_connected,
                |now| shared.shown.set(now),
                &ending,
            )
        })?);
    }
    for (one, writer, port) in outbound {
        let (shared, ending) = (Arc::clone(&shared), Arc::clone(stop));
        let work = move || one.run(writer, port, &shared.announcement, &ending);
        threads.push(start("publication", stop, work)?);
    }
    for (one, reader) in inbound {
        let (looking, ending) = (Arc::clone(&one), Arc::clone(stop));
        threads.push(start("destinations", stop, move || {
            look(&[looking.destinations()], &ending);
            Ok(())
        })?);
        let ending = Arc::clone(stop);
        threads.push(start("subscription", stop, move || {
            one.run(reader, &ending);
            Ok(())
        })?);
    }
    say(&format!(
        "ros {}: joined domain {}",
        shared.name, shared.domain
    ));
    let kept = shared.keep_house(stop);
    // A signal has come, or a thread has ended, whatever has become of DDS.
    let is_asked_for = stop.swap(true, Relaxed);
    let mut ended = match election {
        Some(election) => join(election),
        None => Ok(()),
    };
    if kept? {
        // Threads that wait for DDS wait for ever. Only a new process has all of its threads.
        say(&format!("ros {}: DDS has stopped", shared.name));
        return match is_asked_for {
            true => Ok(()),
            false => {
                let error = run_again(|_| {});
                Err(format!("DDS has stopped, and the program cannot be run again: {error}").into())
            }
        };
    }
    for thread in threads {
        ended = ended.and(join(thread));
    }
    ended.and(status::end(teller))
}
