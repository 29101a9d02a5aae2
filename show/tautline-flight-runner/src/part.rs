//! The child processes of a flight: this program, started again with the words of one part.

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tautline_state::cpus::CpuList;
use tautline_tasks::partition::PartitionConfig;

use crate::course::Course;
use crate::guest_process::{self, GuestProcessSettings};
use crate::loops::{Job, Log, jobs};
use crate::radio::{self, End, PilotSettings, ReceiverSettings};
use crate::record::{LoopRecord, Variant, WorldRecord};
use crate::soft::{self, RecorderSettings, VideoSettings};
use crate::wire::{Means, Role};
use crate::world::WorldSettings;
use crate::{faults, tasks, threads, world};

/// Patience with the last jobs of the executive.
const STOP_PATIENCE: Duration = Duration::from_millis(500);

/// A part of a flight.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Part {
    /// The world.
    World(WorldSettings),
    /// The flight controller.
    Controller(ControllerSettings),
    /// The flight controller in a guest.
    Keeper(GuestProcessSettings),
    /// Camera and flight data.
    Video(VideoSettings),
    /// Door in the pictures.
    Mapping(Means),
    /// Remote control at the far end of a cable.
    Pilot(PilotSettings),
    /// Its receiver beside the craft.
    Receiver(ReceiverSettings),
    /// TCP that fills the cable.
    Flood(End),
    /// Messages of the bus in files.
    Recorder(RecorderSettings),
    /// A task of the highest priority that never sleeps, for so many seconds.
    Runaway(f64),
    /// Processes that start and end.
    Storm(f64),
    /// Memory that comes and goes.
    Pressure(f64),
}

/// Settings of a controller.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ControllerSettings {
    pub(crate) variant: Variant,
    pub(crate) means: Means,
    pub(crate) course: Course,
    /// Name and CPUs of the partition that was made for it.
    pub(crate) partition: Option<(String, String)>,
}

/// Report of a controller at its end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ControllerReport {
    pub(crate) loops: Vec<LoopRecord>,
    pub(crate) stale_inputs: u64,
    pub(crate) limits: Vec<String>,
}

/// Runs the part that is described by this word.
///
/// # Errors
/// A word that describes none, and whatever keeps the part from running.
pub fn run(word: &str) -> io::Result<()> {
    let part: Part = serde_json::from_str(word).map_err(io::Error::other)?;
    let seconds = |seconds: f64| Duration::try_from_secs_f64(seconds).map_err(io::Error::other);
    match part {
        Part::World(settings) => {
            let record = |record: &WorldRecord| match serde_json::to_string(record) {
                Ok(text) => say(&text),
                Err(error) => eprintln!("the world's record: {error}"),
            };
            world::run(&settings, |start| say(&start.to_string()), record)
        }
        Part::Controller(settings) => control(&settings),
        Part::Keeper(settings) => guest_process::run(&settings),
        Part::Video(settings) => soft::show_video(&settings),
        Part::Mapping(means) => soft::map(&means),
        Part::Pilot(settings) => radio::fly(&settings),
        Part::Receiver(settings) => radio::receive(&settings),
        Part::Flood(end) => radio::flood(&end),
        Part::Recorder(settings) => soft::record(&settings),
        Part::Runaway(length) => faults::run_away(seconds(length)?),
        Part::Storm(length) => faults::storm(seconds(length)?),
        Part::Pressure(length) => faults::press(seconds(length)?),
    }
}

/// A line for the process that started this one, which may be gone.
pub(crate) fn say(line: &str) {
    let mut output = io::stdout().lock();
    let _ = writeln!(output, "{line}").and_then(|()| output.flush());
}

fn control(settings: &ControllerSettings) -> io::Result<()> {
    let wires = settings.means.open(Role::Controller)?;
    let jobs: Vec<Job> = jobs(&wires, settings.course.mission())?;
    let logs: Vec<Log> = jobs.iter().map(|job| job.log.clone()).collect();
    let mut limits = Vec::new();
    match settings.variant {
        Variant::Plain | Variant::Fifo => {
            let threads = threads::start(jobs, settings.variant == Variant::Fifo)?;
            wait_for_end();
            threads.stop();
        }
        Variant::Partition => {
            let partition = settings.partition.as_ref().map(|(name, cpus)| {
                let cpus: CpuList = cpus.parse().map_err(io::Error::other)?;
                PartitionConfig::new(name, cpus).map_err(io::Error::other)
            });
            let running = tasks::start(jobs, partition.transpose()?)
                .map_err(|error| io::Error::other(error.to_string()))?;
            wait_for_end();
            limits = running.stop(STOP_PATIENCE).limits;
        }
        Variant::Guest => return Err(io::Error::other("a guest has a keeper")),
    }
    let mut report = ControllerReport {
        limits,
        ..ControllerReport::default()
    };
    for log in logs {
        let (record, stale_inputs) = log.record();
        report.loops.push(record);
        report.stale_inputs += stale_inputs;
    }
    say(&serde_json::to_string(&report)?);
    Ok(())
}

/// Tells from now on whether standard input has ended.
pub(crate) fn end_of_input() -> impl Fn() -> bool {
    let has_ended = end_flag();
    move || has_ended.load(Ordering::Relaxed)
}

/// A flag that is set when standard input ends.
pub(crate) fn end_flag() -> Arc<AtomicBool> {
    let has_ended = Arc::new(AtomicBool::new(false));
    let tell = has_ended.clone();
    thread::spawn(move || {
        wait_for_end();
        tell.store(true, Ordering::Relaxed);
    });
    has_ended
}

/// Waits until standard input ends.
fn wait_for_end() {
    let mut rest = Vec::new();
    // An error is an end too.
    let _ = io::stdin().lock().read_to_end(&mut rest);
}
