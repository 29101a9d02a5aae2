//! Record of a flight.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
pub use tautline_flight::loops::Loop;
use tautline_flight::loops::Tally;
use tautline_flight::message::{Motors, Phase as FlightPhase, Status};
use tautline_flight::vector::Vector;
use tautline_flight::world::World;

use crate::cable::RemoteRecord;
use crate::soft::SoftPart;

/// Way of running the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Variant {
    /// Threads of plain Linux, kernel sockets, default priorities.
    Plain,
    /// The same with SCHED_FIFO and locked memory, as people do by hand.
    Fifo,
    /// Tasks of the executive in a partition, sampling ports on a V-Bus.
    Partition,
    /// The same tasks in a guest, whose virtual machine has the partition; sampling ports of its window.
    Guest,
}

impl Variant {
    /// All, in the order of tables.
    pub const ALL: [Variant; 4] = [
        Variant::Plain,
        Variant::Fifo,
        Variant::Partition,
        Variant::Guest,
    ];

    /// Name in tables.
    pub fn text(self) -> &'static str {
        match self {
            Variant::Plain => "(a) plain threads",
            Variant::Fifo => "(b) SCHED_FIFO by hand",
            Variant::Partition => "(c) executive in a partition",
            Variant::Guest => "(d) executive in a guest",
        }
    }

    /// Whether it has a partition, and values travel on a V-Bus.
    pub(crate) fn is_ours(self) -> bool {
        matches!(self, Variant::Partition | Variant::Guest)
    }
}

/// Deadlines of one loop.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LoopRecord {
    /// Releases, those included that were left out because a job before was late.
    pub releases: u64,
    /// Releases whose job was not done within the period.
    pub missed: u64,
    /// Longest time from a release to the end of its job, or to the next job where it was left out.
    pub worst_ns: u64,
    /// Releases that were missed, as times on CLOCK_MONOTONIC; the first ones where there are very many.
    pub missed_at_ns: Vec<u64>,
}

impl LoopRecord {
    /// Deadlines as they were counted, with the moments of those that were missed.
    pub(crate) fn new(tally: &Tally, missed_at_ns: Vec<u64>) -> LoopRecord {
        LoopRecord {
            releases: tally.releases,
            missed: tally.missed,
            worst_ns: tally.worst_ns,
            missed_at_ns,
        }
    }
}

/// Part of a flight with a load or a fault of its own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    /// Name.
    pub name: String,
    /// Seconds from the world's start.
    pub from: f64,
    /// End, in seconds from the world's start.
    pub until: f64,
    /// Whether it is a fault, and not only a load.
    pub is_fault: bool,
}

/// The craft at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Seconds from the world's start.
    pub at: f64,
    /// Metres east, north, up.
    pub position: Vector,
    /// Angle between the craft's upward axis and where it should point, degrees.
    pub tilt_error: f64,
    /// Distance from where the craft should be, metres.
    pub position_error: f64,
    /// Whether the controller was flying, so that the errors count.
    pub is_flying: bool,
}

impl Sample {
    /// Sample of a world under these commands, with the controller in this state.
    pub(crate) fn of(world: &World, motors: &Motors, status: &Status) -> Sample {
        let body = world.body();
        let apart = body.attitude.up().dot(motors.wanted.up()).clamp(-1.0, 1.0);
        let is_on_ground = matches!(status.phase, FlightPhase::Disarmed | FlightPhase::Armed);
        Sample {
            at: world.seconds(),
            position: body.position,
            tilt_error: apart.acos().to_degrees(),
            position_error: (status.target - body.position).length(),
            is_flying: !is_on_ground && world.crash().is_none(),
        }
    }
}

/// The world's side of a flight.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WorldRecord {
    /// Start of the world's time on CLOCK_MONOTONIC.
    pub start_ns: u64,
    /// Policy by which the world kept its time.
    pub policy: String,
    /// Steps.
    pub steps: u64,
    /// Steps that were more than a millisecond late.
    pub steps_late: u64,
    /// Latest step.
    pub late_ns_max: u64,
    /// Commands to the motors that the world has seen.
    pub commands: u64,
    /// Commands that the controller sent and the world never saw.
    pub commands_lost: u64,
    /// Longest time without a new command, in steps.
    pub silent_steps_max: u64,
    /// A hundred samples a second.
    pub samples: Vec<Sample>,
    /// Crash: seconds from the start, metres a second towards the ground or the wall, degrees of tilt.
    pub crash: Option<(f64, f64, f64)>,
    /// Whether it was the wall.
    pub has_hit_wall: bool,
    /// Way through the door: seconds from the start, metres to the left of its middle.
    pub passage: Option<(f64, f64)>,
    /// Moment at which the craft had landed and stopped its motors.
    pub landed_at: Option<f64>,
    /// Alarms that the controller raised, with the moment of each.
    pub alarms: Vec<(f64, String)>,
}

impl WorldRecord {
    /// A step that is later than this makes a run void. Lower: a hypervisor that takes the CPU for a moment voids every
    /// run. Higher: the world's lateness is taken for the controller's.
    const LATE_NS_MAX: u64 = 10_000_000;
    /// Share of steps that may be a millisecond late, one in so many.
    const LATE_SHARE: u64 = 50;

    /// Reason why the run says nothing, if there is one.
    pub fn void(&self) -> Option<String> {
        if self.steps == 0 {
            return Some("the world did not start".to_owned());
        }
        if self.late_ns_max > Self::LATE_NS_MAX {
            let late = self.late_ns_max as f64 / 1e6;
            return Some(format!("the world itself was {late:.1} ms late"));
        }
        (self.steps_late * Self::LATE_SHARE > self.steps).then(|| {
            let (late, steps) = (self.steps_late, self.steps);
            format!("{late} of the world's own {steps} steps were late")
        })
    }
}

/// A soft process that ended in flight, and was started again.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Restart {
    /// Which.
    pub which: SoftPart,
    /// Seconds from the world's start.
    pub at: f64,
    /// Moment from which on it worked again.
    pub again_at: Option<f64>,
}

/// The soft half of a flight.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SoftRecord {
    /// Pictures that the last video process drew, and those whose time had passed.
    pub pictures_drawn: u64,
    /// Pictures that were left out because their time had passed.
    pub pictures_skipped: u64,
    /// Pictures that the mapping saw.
    pub pictures: u64,
    /// Pictures that were drawn and that it did not see.
    pub pictures_missed: u64,
    /// Pictures in which it found a door.
    pub doors: u64,
    /// Processes that ended in flight.
    pub restarts: Vec<Restart>,
    /// Kills of the video process, as faults.
    pub killed: usize,
    /// Messages that the recorder wrote, and its files.
    pub recorded: u64,
    /// Files of the recorder.
    pub recordings: Vec<PathBuf>,
    /// Moment at which the recorder's disk was full, and the messages on it.
    pub disk_full: Option<(f64, u64)>,
}

/// A fault that the craft survives, and its course.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fault {
    /// Name.
    pub name: String,
    /// Seconds from the world's start.
    pub from: f64,
    /// End, in seconds from the world's start.
    pub until: f64,
    /// Course, in a few words.
    pub outcome: String,
}

/// Record of one flight.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FlightRecord {
    /// How the controller ran.
    pub variant: Variant,
    /// The world's side.
    pub world: WorldRecord,
    /// The controller's side, in the order of [`Loop::ALL`]; empty where it could not tell any more.
    pub loops: Vec<LoopRecord>,
    /// Jobs of the rate loop without a new value of the inertial units.
    pub stale_inputs: u64,
    /// Monitor of the controller's virtual machine, if it has one.
    pub monitor: Option<String>,
    /// Settings that could not be had.
    pub limits: Vec<String>,
    /// Loads and faults as they were.
    pub phases: Vec<Phase>,
    /// Achievements of the loads.
    pub achieved: Vec<String>,
    /// The soft half.
    pub soft: SoftRecord,
    /// Faults that the craft is to survive, by time.
    pub faults: Vec<Fault>,
    /// The remote control's way over a network, if there was one.
    pub remote: Option<RemoteRecord>,
}

/// Errors of a stretch of a flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Errors {
    /// Root of the mean square of the attitude's error, degrees.
    pub tilt_rms: f64,
    /// Largest error of the attitude, degrees.
    pub tilt_max: f64,
    /// Root of the mean square of the position's error, metres.
    pub position_rms: f64,
    /// Largest error of the position, metres.
    pub position_max: f64,
}

impl Errors {
    /// Errors between two moments, while the controller was flying.
    pub(crate) fn of(samples: &[Sample], from: f64, until: f64) -> Option<Errors> {
        let counted: Vec<&Sample> = samples
            .iter()
            .filter(|sample| sample.is_flying && (from..until).contains(&sample.at))
            .collect();
        if counted.is_empty() {
            return None;
        }
        let rms = |value: fn(&Sample) -> f64| {
            let squares: f64 = counted.iter().map(|sample| value(sample).powi(2)).sum();
            (squares / counted.len() as f64).sqrt()
        };
        let max =
            |value: fn(&Sample) -> f64| counted.iter().map(|one| value(one)).fold(0.0, f64::max);
        Some(Errors {
            tilt_rms: rms(|sample| sample.tilt_error),
            tilt_max: max(|sample| sample.tilt_error),
            position_rms: rms(|sample| sample.position_error),
            position_max: max(|sample| sample.position_error),
        })
    }
}

/// Seconds after which the take-off is over.
pub(crate) const CALM_FROM: f64 = 1.5;

impl FlightRecord {
    /// Share of releases that a guest may miss while nothing runs beside it, one in so many. Higher: a craft whose
    /// processor is only just too slow counts.
    const SLOW_SHARE: u64 = 50;

    /// Reason why the run says nothing, if there is one: the world was late, or the guest's processor is too slow.
    pub fn void(&self) -> Option<String> {
        self.world.void().or_else(|| self.slowness())
    }

    /// Lateness of a guest beside which nothing ran.
    fn slowness(&self) -> Option<String> {
        if self.variant != Variant::Guest {
            return None;
        }
        let end = self.world.samples.last().map_or(0.0, |sample| sample.at);
        let until = self.load_at().min(end);
        let seconds = (until - CALM_FROM).max(0.0);
        let releases = (seconds * 1e9 / Loop::Rate.period_ns() as f64) as u64;
        let missed = self.missed_between(Loop::Rate, CALM_FROM, until);
        (missed * Self::SLOW_SHARE > releases).then(|| {
            format!("the guest missed {missed} of {releases} releases before any load: its processor is too slow")
        })
    }

    /// Start of the first load.
    pub(crate) fn load_at(&self) -> f64 {
        self.phases.first().map_or(f64::MAX, |phase| phase.from)
    }

    /// Deadlines of a loop that were missed between two moments, seconds from the world's start.
    pub(crate) fn missed_between(&self, which: Loop, from: f64, until: f64) -> u64 {
        let at = |ns: u64| ns.saturating_sub(self.world.start_ns) as f64 * 1e-9;
        self.loops.get(which.index()).map_or(0, |one| {
            let times = one.missed_at_ns.iter().map(|ns| at(*ns));
            times.filter(|at| (from..until).contains(at)).count() as u64
        })
    }

    /// Errors between two moments, while the controller was flying.
    pub fn errors(&self, from: f64, until: f64) -> Option<Errors> {
        Errors::of(&self.world.samples, from, until)
    }

    /// Moment from which on the errors are those of a fault; the end without one.
    pub fn fault_at(&self) -> f64 {
        let faults = self.phases.iter().filter(|phase| phase.is_fault);
        faults.map(|phase| phase.from).fold(f64::MAX, f64::min)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(samples: Vec<Sample>) -> FlightRecord {
        FlightRecord {
            variant: Variant::Plain,
            world: WorldRecord {
                steps: 10_000,
                samples,
                ..WorldRecord::default()
            },
            loops: vec![],
            stale_inputs: 0,
            monitor: None,
            limits: vec![],
            phases: vec![],
            achieved: vec![],
            soft: SoftRecord::default(),
            faults: vec![],
            remote: None,
        }
    }

    #[test]
    fn a_world_that_was_late_voids_the_run() {
        let mut world = record(vec![]).world;
        assert_eq!(world.void(), None);
        world.steps_late = 201;
        assert!(world.void().unwrap().contains("201 of"));
        world.late_ns_max = 10_500_000;
        assert!(world.void().unwrap().contains("10.5 ms"));
        assert!(WorldRecord::default().void().is_some());
    }

    #[test]
    fn a_guest_that_is_late_by_itself_voids_the_run() {
        let at = |at: f64| Sample {
            at,
            position: Vector::ZERO,
            tilt_error: 0.0,
            position_error: 0.0,
            is_flying: true,
        };
        let mut flight = record(vec![at(1.0), at(9.0)]);
        flight.phases = vec![Phase {
            name: "load".to_owned(),
            from: 2.5,
            until: 9.0,
            is_fault: false,
        }];
        let missed = |count: u64, at_ms: u64| LoopRecord {
            missed: count,
            missed_at_ns: (0..count).map(|_| at_ms * 1_000_000).collect(),
            ..LoopRecord::default()
        };
        // A thousand releases before the load.
        flight.loops = vec![missed(21, 2_000)];
        assert_eq!(flight.void(), None, "threads may be late");
        flight.variant = Variant::Guest;
        assert!(flight.void().unwrap().contains("21 of 1000"));
        flight.loops = vec![missed(20, 2_000)];
        assert_eq!(flight.void(), None);
        flight.loops = vec![missed(500, 3_000)];
        assert_eq!(flight.void(), None, "under load lateness is a result");
    }

    #[test]
    fn errors_count_only_in_flight_and_in_their_time() {
        let sample = |at: f64, error: f64, is_flying| Sample {
            at,
            position: Vector::ZERO,
            tilt_error: error,
            position_error: error,
            is_flying,
        };
        let record = record(vec![
            sample(0.5, 100.0, false),
            sample(1.0, 3.0, true),
            sample(1.5, 4.0, true),
            sample(2.0, 50.0, true),
        ]);
        let errors = record.errors(0.0, 2.0).unwrap();
        assert!((errors.tilt_rms - 12.5f64.sqrt()).abs() < 1e-12);
        assert_eq!(errors.position_max, 4.0);
        assert_eq!(record.errors(3.0, 4.0), None);
    }
}
