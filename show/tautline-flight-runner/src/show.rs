//! The schedule of the show: one flight for each variant, with loads and faults at the same moments.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::ChildStdin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tautline_capture::recording;
use tautline_flight::message::{Companion, Mission};
use tautline_lab::load::{self, Load, LoadError};
use tautline_state::cpus::CpuList;
use tautline_state::journal::JournalError;
use tautline_tasks::partition::{Partition, PartitionConfig, PartitionError};
use tautline_testbed::child::allowed_cpus;
use tautline_testbed::sys::monotonic_ns;

use crate::cable::Cable;
use crate::child::{Said, Started};
use crate::course::Course;
use crate::guest_process::{GuestProcessLine, GuestProcessSettings};
use crate::home::Home;
use crate::part::{ControllerReport, ControllerSettings, Part};
use crate::record::{FlightRecord, Phase, Variant, WorldRecord};
use crate::soft::{Recordings, Soft, SoftSettings};
use crate::trials::{VIDEO_KILLED_AT, faults};
use crate::wire::{Means, Role, Stream};
use crate::world::WorldSettings;

/// Moments of the flight, seconds from the world's start. Before the first one nothing runs beside it.
const LOAD_AT: f64 = 3.0;
const STORM_AT: f64 = 10.4;
pub(crate) const RUNAWAY_AT: f64 = 11.8;
/// Time for which the highest priority computes. Lower: a craft at some height is caught again. Higher: the machine
/// answers no request for longer.
const RUNAWAY_SECONDS: f64 = 2.0;
/// Longest flight: the fault, the silence after which the craft lands, and the landing.
const SECONDS_MAX: f64 = 17.5;
/// Time that a child may take beyond what it should.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// Distance of looks at what is due beside a flight.
const LOOK: Duration = Duration::from_millis(20);
/// Period of the signs of life of Linux.
const COMPANION_PERIOD: Duration = Duration::from_millis(50);
/// Signs of life from one upload of the way-points to the next.
const MISSION_BEATS: u32 = 20;
/// Files that a recorder may have left behind in an earlier show.
const RECORDINGS_MAX: usize = 16;
/// The lab's own sizes: the largest file and memory block.
const LOAD_MIB_MAX: u64 = 256;
/// Name of the partition.
const PARTITION: &str = "flight";

/// Settings of a show.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The command `taut`, for control processes.
    pub taut: PathBuf,
    /// Words that start a part: this program, and the words before the part's own.
    pub part_command: Vec<PathBuf>,
    /// Words that start a worker of the lab.
    pub worker_command: Vec<PathBuf>,
    /// Variants, in the order in which they fly.
    pub variants: Vec<Variant>,
    /// Seed of wind and noise, the same for all.
    pub seed: u64,
    /// CPU of the partition.
    pub cpu: usize,
    /// Image of the controller for a guest; needed where that variant flies.
    pub guest_image: Option<PathBuf>,
    /// Words that start the monitor of a guest on KVM.
    pub monitor_command: Vec<PathBuf>,
    /// Directory for recordings.
    pub out: PathBuf,
    /// Whether a variant whose world was late may fly once more.
    pub is_patient: bool,
}

/// A show could not be run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShowError {
    /// The partition could not be made.
    #[error("{0}")]
    Partition(#[from] PartitionError),
    /// A load could not be started.
    #[error("{0}")]
    Load(#[from] LoadError),
    /// No directory for the bus.
    #[error("{0}")]
    Home(#[from] JournalError),
    /// A child could not be started or spoken with.
    #[error("cannot start or hear a part of the flight: {0}")]
    Io(#[from] io::Error),
    /// The guest did not begin to fly.
    #[error("the guest did not start: {0}")]
    NoGuest(String),
    /// A child ended without its report.
    #[error("the {part} ended without a report")]
    NoReport {
        /// Part of the flight.
        part: &'static str,
    },
    /// A child said nothing for so long though it should have.
    #[error("the {part} has not reported within {} s", PATIENCE.as_secs())]
    Silent {
        /// Part of the flight.
        part: &'static str,
    },
    /// The user ended the show.
    #[error("interrupted by signal {0}")]
    Interrupted(i32),
}

/// Flights of a show, and the variants that did not fly, with the reason.
#[derive(Clone, Debug, Default)]
pub struct Flights {
    /// Flights, in the order of the settings.
    pub records: Vec<FlightRecord>,
    /// Variants that did not fly.
    pub missing: Vec<(Variant, String)>,
}

/// Runs the show. `progress` is told what flies. A guest that cannot be started is left out, with the reason.
///
/// # Errors
/// [`ShowError`]; then nothing is left running.
pub fn run(settings: &Settings, progress: &mut dyn FnMut(&str)) -> Result<Flights, ShowError> {
    let mut flights = Flights::default();
    for variant in &settings.variants {
        progress(variant.text());
        let mut record = match fly(settings, *variant) {
            Err(ShowError::NoGuest(reason)) => {
                flights.missing.push((*variant, reason));
                continue;
            }
            flown => flown?,
        };
        if let Some(reason) = record.world.void().filter(|_| settings.is_patient) {
            progress(&format!("{}, once more: {reason}", variant.text()));
            record = fly(settings, *variant)?;
        }
        flights.records.push(record);
    }
    Ok(flights)
}

/// Linux beside the controller: a thread that gives signs of life, and a controller in a guest its way-points.
pub(crate) struct Heart {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Heart {
    pub(crate) fn start(means: Means, mission: Option<Mission>) -> Heart {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let beat = move || {
            let Ok(wires) = means.open(Role::Ground) else {
                return;
            };
            let Ok(mut outbox) = wires.outbox(Stream::Companion) else {
                return;
            };
            let mut way = mission.and_then(|_| wires.outbox(Stream::Mission).ok());
            let mut companion = Companion::default();
            while !stopped.load(Ordering::Relaxed) {
                if let (Some(way), Some(mission)) = (&mut way, &mission)
                    && companion.count.is_multiple_of(MISSION_BEATS)
                {
                    way.send(mission);
                }
                companion.count += 1;
                outbox.send(&companion);
                thread::sleep(COMPANION_PERIOD);
            }
        };
        Heart {
            stop,
            thread: Some(thread::spawn(beat)),
        }
    }
}

impl Drop for Heart {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Loads and faults that run beside a flight.
struct Beside {
    /// Directory for the loads' files.
    directory: PathBuf,
    load: Option<load::Running>,
    parts: Vec<Started>,
    phases: Vec<Phase>,
}

impl Beside {
    /// Switches the next event on.
    fn advance(&mut self, settings: &Settings, at: f64) -> Result<(), ShowError> {
        let (name, until) = match self.phases.len() {
            0 => {
                self.load = Some(load_everything(settings, &self.directory)?);
                ("combined load", STORM_AT)
            }
            1 => {
                for part in [
                    Part::Storm(RUNAWAY_AT - STORM_AT),
                    Part::Pressure(RUNAWAY_AT - STORM_AT),
                ] {
                    let started = Started::part(&settings.part_command, &part)?;
                    self.parts.push(started);
                }
                ("and fork storm, memory pressure", RUNAWAY_AT)
            }
            _ => {
                let part = Part::Runaway(RUNAWAY_SECONDS);
                self.parts
                    .push(Started::part(&settings.part_command, &part)?);
                ("runaway at SCHED_FIFO 99", RUNAWAY_AT + RUNAWAY_SECONDS)
            }
        };
        self.phases.push(Phase {
            name: name.to_owned(),
            from: at,
            until,
            is_fault: self.phases.len() >= 2,
        });
        Ok(())
    }

    /// Moment of the next event, seconds from the world's start.
    fn next(&self) -> Option<f64> {
        [LOAD_AT, STORM_AT, RUNAWAY_AT]
            .get(self.phases.len())
            .copied()
    }
}

/// Starts the lab's combined load, with its files in a directory.
pub(crate) fn load_everything(
    settings: &Settings,
    directory: &Path,
) -> Result<load::Running, ShowError> {
    let settings = load::Settings {
        worker_command: settings.worker_command.clone(),
        directory: directory.to_owned(),
        cpu_count: allowed_cpus()?.len(),
        size_mib_max: LOAD_MIB_MAX,
        external_tools: true,
    };
    let files = load::make_files_unnoted(&settings)?;
    Ok(load::start(Load::Combined, &settings, files)?)
}

/// The partition of a variant that has one.
pub(crate) fn partition(
    settings: &Settings,
    variant: Variant,
) -> Result<Option<Partition>, ShowError> {
    if !variant.is_ours() {
        return Ok(None);
    }
    let cpus: CpuList = settings.cpu.to_string().parse().map_err(io::Error::other)?;
    let config = PartitionConfig::new(PARTITION, cpus)?;
    Ok(Some(Partition::create(&config)?))
}

/// One flight.
fn fly(settings: &Settings, variant: Variant) -> Result<FlightRecord, ShowError> {
    let home = Home::make()?;
    let means = match variant.is_ours() {
        true => Means::Bus(bus(&home.path)),
        false => Means::sockets()?,
    };
    // First: the world and the loads are to be outside.
    let partition = partition(settings, variant)?;
    let soft = Soft::start(SoftSettings {
        part_command: settings.part_command.clone(),
        means: means.clone(),
        seed: settings.seed,
        home: home.path.clone(),
        recordings: recordings(settings, variant)?,
        kills: &VIDEO_KILLED_AT,
    });
    // Without one, the world has the pilot of its own that it always had.
    let laid = Cable::lay(settings, variant, &home.path).and_then(|mut cable| {
        let flown = cable.fly(&means, Course::Schedule, settings.seed, false);
        flown.map(|()| cable).map_err(|error| error.to_string())
    });
    let (mut cable, no_cable) = match laid {
        Ok(cable) => (Some(cable), None),
        Err(reason) => (None, Some(format!("no second node: {reason}"))),
    };
    let world = Part::World(WorldSettings {
        means: means.clone(),
        seed: settings.seed,
        course: Course::Schedule,
        has_pilot: cable.is_some(),
        seconds_max: SECONDS_MAX,
    });
    let world = Started::part(&settings.part_command, &world)?;
    let course = Course::Schedule;
    let mut controller = Controller::start(settings, variant, course, &means, partition.as_ref())?;
    let to_controller = controller.process.input();
    let mission = (variant == Variant::Guest).then(|| course.mission());
    let heart = Heart::start(means, mission);
    let mut beside = Beside {
        directory: home.path.clone(),
        load: None,
        parts: Vec::new(),
        phases: Vec::new(),
    };
    let world = watch(settings, &world, &mut beside, &soft, cable.as_mut())?;
    let report = report(&controller.process, to_controller)?;
    drop(heart);
    beside.parts.clear();
    let remote = cable.as_mut().map(Cable::report);
    let soft = soft.stop()?;
    let achieved = beside
        .load
        .take()
        .map(load::Running::stop)
        .unwrap_or_default();
    drop(cable);
    // The process of a guest is not to stay in the partition.
    drop(controller.process);
    if let Some(partition) = partition {
        partition.put_back()?;
    }
    let crash = world.crash.map_or(f64::MAX, |(at, ..)| at);
    let end = world.samples.last().map_or(crash, |sample| sample.at);
    let mut phases = beside.phases;
    phases
        .iter_mut()
        .for_each(|phase| phase.until = phase.until.min(end));
    Ok(FlightRecord {
        variant,
        faults: faults(&world, &soft, remote.as_ref()),
        remote,
        soft,
        world,
        loops: report.loops,
        stale_inputs: report.stale_inputs,
        monitor: controller.monitor,
        limits: report.limits.into_iter().chain(no_cable).collect(),
        phases,
        achieved: achieved
            .iter()
            .map(|one| {
                format!(
                    "{} by {}: {:.1} {}",
                    one.part, one.tool, one.amount, one.unit
                )
            })
            .collect(),
    })
}

/// The process of a controller.
pub(crate) struct Controller {
    pub(crate) process: Started,
    /// Monitor of its virtual machine, if it has one.
    pub(crate) monitor: Option<String>,
}

impl Controller {
    /// Starts a controller; one in a guest flies when this returns.
    pub(crate) fn start(
        settings: &Settings,
        variant: Variant,
        course: Course,
        means: &Means,
        partition: Option<&Partition>,
    ) -> Result<Controller, ShowError> {
        let start = |part: &Part| Started::part(&settings.part_command, part);
        let (Variant::Guest, Some(partition), Means::Bus(bus)) = (variant, partition, means) else {
            let controller = Part::Controller(ControllerSettings {
                variant,
                means: means.clone(),
                course,
                partition: partition.map(|made| (made.name().to_owned(), made.cpus().to_string())),
            });
            return Ok(Controller {
                process: start(&controller)?,
                monitor: None,
            });
        };
        let image = settings.guest_image.clone();
        let process = start(&Part::Keeper(GuestProcessSettings {
            image: image.ok_or_else(|| ShowError::NoGuest("there is no image".to_owned()))?,
            bus: bus.clone(),
            partition: partition.name().to_owned(),
            monitor_command: settings.monitor_command.clone(),
        }))?;
        let said = line(&process, PATIENCE)?.map(|line| serde_json::from_str(&line));
        match said {
            Some(Ok(GuestProcessLine::Flies(monitor))) => Ok(Controller {
                process,
                monitor: Some(monitor),
            }),
            Some(Ok(GuestProcessLine::Failed(reason))) => Err(ShowError::NoGuest(reason)),
            _ => Err(ShowError::NoGuest(format!(
                "it has not joined its window within {} s",
                PATIENCE.as_secs()
            ))),
        }
    }
}

/// Directory of a flight's bus.
pub(crate) fn bus(home: &Path) -> PathBuf {
    home.join("bus")
}

/// Follows the flight, switches loads and faults on, and returns the world's record.
fn watch(
    settings: &Settings,
    world: &Started,
    beside: &mut Beside,
    soft: &Soft,
    mut cable: Option<&mut Cable>,
) -> Result<WorldRecord, ShowError> {
    let nothing = || ShowError::NoReport { part: "world" };
    let start = line(world, PATIENCE)?.and_then(|line| line.parse::<u64>().ok());
    let start = start.ok_or_else(nothing)?;
    soft.begin(start);
    if let Some(cable) = &mut cable {
        cable.begin(start);
    }
    let now = || monotonic_ns().saturating_sub(start) as f64 * 1e-9;
    loop {
        let left = beside.next().map_or(LOOK.as_secs_f64(), |at| at - now());
        let left = Duration::try_from_secs_f64(left).unwrap_or(Duration::ZERO);
        match world.line(left.min(LOOK)) {
            Said::Line(record) => return serde_json::from_str(&record).map_err(|_| nothing()),
            Said::Interrupted(signal) => return Err(ShowError::Interrupted(signal)),
            Said::Ended => return Err(nothing()),
            Said::Nothing if now() > SECONDS_MAX + PATIENCE.as_secs_f64() => {
                return Err(ShowError::Silent { part: "world" });
            }
            Said::Nothing => {}
        }
        if beside.next().is_some_and(|at| now() >= at) {
            if let (Some(cable), true) = (&mut cable, beside.phases.is_empty()) {
                cable.fill(true)?;
            }
            beside.advance(settings, now())?;
        }
        if let Some(cable) = &mut cable {
            cable.advance(now())?;
        }
    }
}

/// A line of a child's, waiting for so long.
pub(crate) fn line(child: &Started, patience: Duration) -> Result<Option<String>, ShowError> {
    match child.line(patience) {
        Said::Line(line) => Ok(Some(line)),
        Said::Interrupted(signal) => Err(ShowError::Interrupted(signal)),
        Said::Nothing | Said::Ended => Ok(None),
    }
}

/// Files for recordings of a variant that has a bus, without those of an earlier show.
fn recordings(settings: &Settings, variant: Variant) -> io::Result<Option<Recordings>> {
    if !variant.is_ours() {
        return Ok(None);
    }
    let stem = match variant {
        Variant::Guest => "flight-guest",
        _ => "flight",
    };
    let recordings = Recordings {
        directory: std::path::absolute(&settings.out)?,
        stem: stem.to_owned(),
    };
    for index in 1..=RECORDINGS_MAX {
        let file = recordings.file(index);
        match is_recording(&file) {
            Ok(true) => fs::remove_file(&file)?,
            Ok(false) => {
                let why = format!("{} is not a recording, and in the way", file.display());
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, why));
            }
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Err(_) => {}
        }
    }
    Ok(Some(recordings))
}

/// Whether a file is a recording, also one that was cut short.
fn is_recording(path: &Path) -> io::Result<bool> {
    if !fs::symlink_metadata(path)?.is_file() {
        return Ok(false);
    }
    let mut begin = Vec::new();
    fs::File::open(path)?
        .take(recording::MAGIC.len() as u64)
        .read_to_end(&mut begin)?;
    Ok(recording::MAGIC.starts_with(&begin))
}

/// Ends the controller and takes its report. One that cannot answer any more has an empty one.
fn report(controller: &Started, input: Option<ChildStdin>) -> Result<ControllerReport, ShowError> {
    drop(input);
    let report = line(controller, PATIENCE)?;
    let report = report.and_then(|line| serde_json::from_str(&line).ok());
    report.ok_or(ShowError::NoReport {
        part: "flight controller",
    })
}
