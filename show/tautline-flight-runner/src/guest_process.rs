//! The controller in a guest: a process in the guest's partition that runs it, passes its messages on, and reads its
//! count of deadlines.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use serde::{Deserialize, Serialize};
use tautline::NodeName;
use tautline_flight::loops::{Deadlines, Role, Stream};
use tautline_flight::message::MESSAGE_BYTES_MAX;
use tautline_guest::{Carries, GuestConfig, Occurrence, PortConfig, RelayPlace};
use tautline_testbed::sys::{monotonic_ns, set_fifo, sleep_until};

use crate::loops::note_missed;
use crate::part::{ControllerReport, end_flag, say};
use crate::record::LoopRecord;
use crate::wire::{Inbox, Means};

/// Distance of looks at the count: a missed deadline is known that exactly.
const LOOK_NS: u64 = 10_000_000;
/// Priority of the threads beside the one that passes messages on: a guest that never halts cannot keep them from
/// ending it.
const PRIORITY: u8 = 41;
/// Most missed deadlines between two looks: a guest may tell anything.
const LOOK_MISSED_MAX: u64 = 1_000;
/// Depth of ports, which carry values alone.
const DEPTH: u32 = 2;
/// Streams that the guest reads, and those that it writes.
const READ: [Stream; 5] = [
    Stream::Imu,
    Stream::Sensors,
    Stream::Companion,
    Stream::Mission,
    Stream::Sighting,
];
const WRITTEN: [Stream; 4] = [
    Stream::Motors,
    Stream::Status,
    Stream::Telemetry,
    Stream::Deadlines,
];

/// Settings of a controller in a guest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct GuestProcessSettings {
    pub(crate) image: PathBuf,
    /// Directory of the bus.
    pub(crate) bus: PathBuf,
    pub(crate) partition: String,
    /// Words that start our own monitor.
    pub(crate) monitor_command: Vec<PathBuf>,
}

/// Line of the keeper at the start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum GuestProcessLine {
    /// The guest has joined its window; its monitor.
    Flies(String),
    /// There is no guest, and why.
    Failed(String),
}

/// Runs the guest until standard input ends, and reports. The report comes before the guest and its ports are gone:
/// beside a load that may take half a minute.
pub(crate) fn run(settings: &GuestProcessSettings) -> io::Result<()> {
    let config = config(settings)?;
    // For all threads. Who may not have it is told by the guest's own limits.
    let _ = set_fifo(PRIORITY);
    let stop = end_flag();
    let limits = Arc::new(Mutex::new(Vec::new()));
    let node = Means::Bus(settings.bus.clone()).open(Role::Keeper)?;
    let mut counts = Counts::new(node.inbox(Stream::Deadlines)?);
    let (until, told) = (Arc::clone(&stop), Arc::clone(&limits));
    let counting = thread::spawn(move || {
        counts.read_until(&until);
        let limits = told.lock().unwrap_or_else(PoisonError::into_inner).clone();
        say_line(&counts.report(limits));
    });

    let command: Vec<OsString> = settings.monitor_command.iter().map(Into::into).collect();
    let limit = |text: String| {
        let mut limits = limits.lock().unwrap_or_else(PoisonError::into_inner);
        limits.push(text);
    };
    let mut monitor = String::new();
    let mut flies = false;
    let ran = tautline_guest::run::run(
        &config,
        None,
        &command,
        &stop,
        |occurrence| match occurrence {
            Occurrence::Started(name) => monitor = name,
            Occurrence::Limit(text) => limit(text),
            Occurrence::Joined(_) => {
                flies = true;
                say_line(&GuestProcessLine::Flies(monitor.clone()));
            }
            Occurrence::Ended(end) if flies && !stop.load(Ordering::Relaxed) => {
                limit(format!("the guest: {end}"));
            }
            _ => {}
        },
    );
    if !flies {
        say_line(&GuestProcessLine::Failed(match ran {
            Ok(summary) => summary.end,
            Err(error) => format!("{error}; {}", error.remedy()),
        }));
    }
    stop.store(true, Ordering::Relaxed);
    let counted = counting.join();
    counted.map_err(|_| io::Error::other("the count of deadlines has panicked"))
}

fn say_line(line: &impl Serialize) {
    if let Ok(text) = serde_json::to_string(line) {
        say(&text);
    }
}

fn config(settings: &GuestProcessSettings) -> io::Result<GuestConfig> {
    let name = |role: Role| role.name().parse::<NodeName>().map_err(io::Error::other);
    let mut config = GuestConfig::new(name(Role::Controller)?, &settings.image);
    config.bus = Some(settings.bus.display().to_string());
    config.partition = Some(settings.partition.clone());
    config.relay = RelayPlace::Partition;
    config.peers = [Role::World, Role::Video, Role::Keeper]
        .map(name)
        .into_iter()
        .collect::<io::Result<_>>()?;
    config.ports = READ
        .map(|stream| port(stream.number(), Carries::Sampling, Carries::Nothing))
        .into_iter()
        .chain(
            WRITTEN
                .map(|stream| port(stream.writers_number(), Carries::Nothing, Carries::Sampling)),
        )
        .collect();
    Ok(config)
}

fn port(number: u16, receives: Carries, sends: Carries) -> PortConfig {
    let mut port = PortConfig::queuing(number);
    port.receives = receives;
    port.sends = sends;
    port.depth = DEPTH;
    port.message_bytes_max = MESSAGE_BYTES_MAX as u32;
    port
}

/// Deadlines as the guest tells them.
struct Counts {
    inbox: Inbox<Deadlines>,
    newest: Deadlines,
    missed_at_ns: [Vec<u64>; 3],
}

impl Counts {
    fn new(inbox: Inbox<Deadlines>) -> Counts {
        Counts {
            inbox,
            newest: Deadlines::default(),
            missed_at_ns: Default::default(),
        }
    }

    fn read_until(&mut self, stop: &AtomicBool) {
        let mut at = monotonic_ns();
        loop {
            // The guest's last count is read, too.
            let is_over = stop.load(Ordering::Relaxed);
            let told = *self.inbox.newest();
            self.note(&told, at);
            if is_over {
                return;
            }
            at = monotonic_ns() + LOOK_NS;
            sleep_until(at);
        }
    }

    /// Takes the count at a moment on CLOCK_MONOTONIC.
    fn note(&mut self, told: &Deadlines, at_ns: u64) {
        let loops = told.loops.iter().zip(&self.newest.loops);
        for ((now, before), missed_at_ns) in loops.zip(&mut self.missed_at_ns) {
            let missed = now
                .missed
                .saturating_sub(before.missed)
                .min(LOOK_MISSED_MAX);
            (0..missed).for_each(|_| note_missed(missed_at_ns, at_ns));
        }
        self.newest = *told;
    }

    fn report(self, limits: Vec<String>) -> ControllerReport {
        let loops = self.newest.loops.iter().zip(self.missed_at_ns);
        ControllerReport {
            loops: loops
                .map(|(tally, missed_at_ns)| LoopRecord::new(tally, missed_at_ns))
                .collect(),
            stale_inputs: self.newest.stale_inputs,
            limits,
        }
    }
}

#[cfg(test)]
mod tests {
    use tautline_flight::loops::{Loop, Tally};

    use super::*;

    #[test]
    fn the_guests_settings_are_within_their_limits() {
        let settings = GuestProcessSettings {
            image: PathBuf::from("flight.elf"),
            bus: PathBuf::from("/tmp/bus"),
            partition: "flight".to_owned(),
            monitor_command: Vec::new(),
        };
        let config = config(&settings).unwrap();
        config.check().unwrap();
        assert_eq!(config.ports.len(), READ.len() + WRITTEN.len());
        for stream in WRITTEN {
            let is_named = |peer: &NodeName| peer.as_str() == stream.reader().name();
            assert!(config.peers.iter().any(is_named), "{stream:?}");
        }
    }

    #[test]
    fn missed_deadlines_get_the_moment_of_the_look_that_found_them() {
        let directory = tautline_state::TemporaryDirectory::make("taut-flight-test").unwrap();
        let means = Means::Bus(directory.path().join("bus"));
        let node = means.open(Role::Keeper).unwrap();
        let mut counts = Counts::new(node.inbox(Stream::Deadlines).unwrap());
        let told = |missed: u64| {
            let mut tally = Tally::default();
            tally.begin(Loop::Rate, 1);
            // Releases that were left out.
            tally.begin(Loop::Rate, missed + 2);
            Deadlines {
                loops: [tally, Tally::default(), Tally::default()],
                ..Deadlines::default()
            }
        };
        counts.note(&told(2), 10);
        counts.note(&told(2), 20);
        counts.note(&told(3), 30);
        // Counts that go back, or leap, are a guest's own business.
        counts.note(&told(0), 40);
        let report = counts.report(Vec::new());
        assert_eq!(report.loops[0].missed_at_ns, [10, 10, 30]);
        assert_eq!(report.loops[0].releases, 2);
        assert!(report.loops[1].missed_at_ns.is_empty());
    }
}
