//! Record of a flight.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tautline_flight::message::{Motors, Phase as FlightPhase, Status};
use tautline_flight::vector::Vector;
use tautline_flight::world::World;

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
}

impl Variant {
    /// All, in the order of tables.
    pub const ALL: [Variant; 3] = [Variant::Plain, Variant::Fifo, Variant::Partition];

    /// Name in tables.
    pub fn text(self) -> &'static str {
        match self {
            Variant::Plain => "(a) plain threads",
            Variant::Fifo => "(b) SCHED_FIFO by hand",
            Variant::Partition => "(c) executive in a partition",
        }
    }

    /// Whether values travel on a V-Bus.
    pub(crate) fn has_bus(self) -> bool {
        self == Variant::Partition
    }
}

/// A loop of the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Loop {
    /// Rates of turn, 1,000 times a second.
    Rate,
    /// Attitude, 500 times a second.
    Attitude,
    /// Position, height and phases, 100 times a second.
    Navigator,
}

impl Loop {
    /// All, the fastest first.
    pub const ALL: [Loop; 3] = [Loop::Rate, Loop::Attitude, Loop::Navigator];

    /// Name of the task.
    pub fn name(self) -> &'static str {
        match self {
            Loop::Rate => "rate",
            Loop::Attitude => "attitude",
            Loop::Navigator => "navigator",
        }
    }

    /// Period, which is the deadline too.
    pub(crate) fn period_ns(self) -> u64 {
        match self {
            Loop::Rate => 1_000_000,
            Loop::Attitude => 2_000_000,
            Loop::Navigator => 10_000_000,
        }
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

impl FlightRecord {
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
            limits: vec![],
            phases: vec![],
            achieved: vec![],
            soft: SoftRecord::default(),
            faults: vec![],
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
