//! The demo, in two parts whose paths take turns: a control loop of 1 kHz between two hosts, beside a TCP stream that
//! fills a gigabit; and the same loop where it computes, while small messages arrive for somebody else on its CPU.
//!
//! [`run`] measures; [`report`] tells. Nothing here prints.

mod channel;
mod control;
pub mod motor;
pub mod report;

use std::io;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use tautline::status::OpenReport;
use tautline_machine::other_work::{OtherWork, OtherWorkWatch};
use tautline_report::{LatencyHistogram, Summary};
use tautline_testbed::hosts::{Hosts, HostsError};
use tautline_testbed::{child, interrupt};
use thiserror::Error;

use crate::experiment::ExperimentError;
use crate::experiment::somebody_else::{self, Beside};
use crate::load::{Load, LoadError, LoadReport, Pace};
use crate::path::PathError;
use crate::path::nodes::NodePair;
use crate::path::sides::{DEMUX_CABLE, KERNEL_CABLE, Sides};

use channel::Ends;
pub use channel::Way;
use control::Schedule;

/// Period of the loop, and the deadline of each cycle: the command must be back before the next begins.
pub const PERIOD: Duration = Duration::from_millis(1);

/// Longest turn of a way. Lower: changing from one to the next takes a larger share. Higher: a
/// disturbance of the machine hits one way alone.
const SLICE_MAX: Duration = Duration::from_millis(250);
/// Turns that each way gets at least.
const TURNS_MIN: u32 = 2;
/// How long before a state is due a polling controller begins to look for it. Both polling sides sleep
/// otherwise, so that they leave the processors to the load. Lower: a late wake-up adds to what is
/// measured. Higher: less is left to the load.
const LOOK_AHEAD: Duration = Duration::from_micros(250);
/// Cables that the hosts of the demo have.
pub const CABLES: usize = somebody_else::CABLES;
/// Real-time priority of both sides, below that of threaded interrupts (50).
const FIFO_PRIORITY: u8 = 40;

/// Why there is no result.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DemoError {
    /// The hosts could not be made.
    #[error(transparent)]
    Hosts(#[from] HostsError),
    /// A way could not be opened.
    #[error(transparent)]
    Path(#[from] PathError),
    /// There is no TCP stream beside the loop.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A system call failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// A way failed while the loop ran over it.
    #[error("{}: {source}", way.text())]
    Way {
        /// Which.
        way: Way,
        /// Cause.
        source: io::Error,
    },
    /// The part with messages for somebody else failed.
    #[error("beside messages for somebody else: {0}")]
    SomebodyElse(ExperimentError),
    /// The user ended the run.
    #[error("interrupted by signal {0}")]
    Interrupted(i32),
}

impl From<ExperimentError> for DemoError {
    fn from(error: ExperimentError) -> DemoError {
        match error {
            ExperimentError::Interrupted(signal) => DemoError::Interrupted(signal),
            other => DemoError::SomebodyElse(other),
        }
    }
}

/// Conditions of the run.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Settings {
    /// Where the two sides were.
    pub scene: &'static str,
    /// Time of the whole run, in seconds.
    pub seconds: f64,
    /// Length of a turn, in milliseconds.
    pub slice_ms: u64,
    /// Turns of each way.
    pub turns: u32,
    /// Cycles at the start of a turn that are not counted.
    pub warm_up_cycles: u64,
    /// Period and deadline, in microseconds.
    pub deadline_us: u64,
    /// Bytes of a state.
    pub state_bytes: usize,
    /// Bytes of a command.
    pub command_bytes: usize,
    /// CPU of the motor's side.
    pub motor_cpu: Option<usize>,
    /// CPU of the controller's side.
    pub controller_cpu: Option<usize>,
    /// Scheduling of both sides, the same on all ways.
    pub scheduling: String,
    /// Clock of all times.
    pub clock: &'static str,
    /// Rate that the load asked for.
    pub load_pace: Pace,
    /// Whether the load and the loop ran on the same CPUs.
    pub load_shares_cpus: bool,
}

/// One way's result.
#[derive(Clone, Debug)]
pub struct Row {
    /// The way.
    pub way: Way,
    /// Cycles that were due.
    pub cycles: u64,
    /// Cycles whose command was not there within the period, those included that could not even begin.
    pub missed: u64,
    /// Cycles that no command ever answered.
    pub lost: u64,
    /// From a state sent to its command received, late ones too.
    pub histogram: LatencyHistogram,
}

impl Row {
    fn new(way: Way) -> Row {
        Row {
            way,
            cycles: 0,
            missed: 0,
            lost: 0,
            histogram: LatencyHistogram::new(),
        }
    }

    fn clear(&mut self) {
        (self.cycles, self.missed, self.lost) = (0, 0, 0);
        self.histogram.clear();
    }

    fn add(&mut self, other: &Row) {
        self.cycles += other.cycles;
        self.missed += other.missed;
        self.lost += other.lost;
        self.histogram.add(&other.histogram);
    }
}

/// Result of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Conditions of the run.
    pub settings: Settings,
    /// Tautline's link, and why not a better one.
    pub link: OpenReport,
    /// Throughput of the TCP stream beside the loop.
    pub load: LoadReport,
    /// In the order of [`Way::ALL`].
    pub rows: Vec<Row>,
    /// The loop that computes beside messages for somebody else, in the order of [`Beside::ALL`]; empty where there are
    /// no hosts, or no two CPUs.
    pub beside: Vec<somebody_else::Row>,
    /// Share of the processors that others took, before, in or after the run, whichever was most.
    pub others: OtherWork,
}

impl Outcome {
    /// A way's row.
    pub fn row(&self, way: Way) -> &Row {
        &self.rows[way as usize]
    }

    /// The row of the loop that computes, beside these messages.
    pub fn beside(&self, beside: Beside) -> Option<&somebody_else::Row> {
        self.beside.iter().find(|row| row.beside == beside)
    }
}

/// State of a run that is under way.
#[derive(Clone, Debug)]
pub struct Progress {
    /// Time since the start.
    pub elapsed: Duration,
    /// Time of the whole run.
    pub total: Duration,
    /// The way whose turn it is; nothing before and after.
    pub current: Option<Way>,
    /// Results of each way so far: cycles, missed, figures.
    pub so_far: [(u64, u64, Summary); 4],
}

/// Between two calls of `progress`. Lower takes processor time from what is measured.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// Runs the loop for about `seconds`. In `hosts`, or over loopback where there are none. The calling
/// thread keeps the load alive and calls `progress`.
pub fn run(
    hosts: Option<&Hosts>,
    seconds: u32,
    pace: Pace,
    progress: &mut dyn FnMut(&Progress),
) -> Result<Outcome, DemoError> {
    let before = OtherWork::measure();
    let others = OtherWorkWatch::begin();
    let started = Instant::now();
    let on_cable = |cable| hosts.map_or(Sides::Loopback, |hosts| Sides::Hosts(hosts, cable));
    let (sides, kernel_sides) = (on_cable(DEMUX_CABLE), on_cable(KERNEL_CABLE));
    let cpus = child::allowed_cpus().unwrap_or_default();
    // The second part needs hosts and two CPUs, and has half of the time then.
    let computes = hosts.filter(|_| cpus.len() > 1);
    let loop_seconds = match computes {
        Some(_) => seconds.div_ceil(2),
        None => seconds,
    };
    let nodes = NodePair::on_best_link(sides)?;
    let mut ends = Vec::new();
    for way in Way::ALL {
        ends.push(channel::open(way, &nodes, kernel_sides)?);
    }
    // Where there are other CPUs than the loop's two, the load and this thread keep to them.
    let load_apart = cpus.len() > 2 && child::restrict(&cpus[2..]).is_ok();
    let load = Load::start(kernel_sides, pace)?;
    // TCP finds its rate before the first turn.
    thread::sleep(Duration::from_millis(200));
    let schedule = schedule(loop_seconds);
    let scheduling = try_fifo();
    let placement = control::Placement {
        motor_cpu: cpus.get(1).or(cpus.first()).copied(),
        controller_cpu: cpus.first().copied(),
        fifo_priority: scheduling.is_ok().then_some(FIFO_PRIORITY),
    };
    let whole = Duration::from_secs(u64::from(seconds.max(1)));
    let rows = run_threads(ends, &schedule, placement, &mut |now| {
        progress(&Progress {
            total: whole,
            ..now.clone()
        });
    });
    let report = load.stop();
    let rows = rows?;
    if let Some(signal) = interrupt::interrupted() {
        return Err(DemoError::Interrupted(signal));
    }
    let link = nodes.report().clone();
    // The second part has nodes of its own on the same cable.
    drop(nodes);
    let beside = match computes {
        Some(hosts) => {
            let left = whole.saturating_sub(schedule.total());
            somebody_else::run(hosts, left, &mut || {
                progress(&Progress {
                    elapsed: started.elapsed().min(whole),
                    total: whole,
                    current: None,
                    so_far: summaries(&rows),
                });
            })?
        }
        None => Vec::new(),
    };
    Ok(Outcome {
        settings: Settings {
            scene: match hosts {
                Some(_) => "two network namespaces, one veth cable",
                None => "one host, loopback addresses 127.0.0.1 and 127.0.0.2",
            },
            seconds: schedule.total().as_secs_f64(),
            slice_ms: schedule.slice.as_millis() as u64,
            turns: schedule.turns,
            warm_up_cycles: control::WARM_UP_CYCLES,
            deadline_us: PERIOD.as_micros() as u64,
            state_bytes: motor::STATE_BYTES,
            command_bytes: motor::COMMAND_BYTES,
            motor_cpu: placement.motor_cpu,
            controller_cpu: placement.controller_cpu,
            scheduling: match scheduling {
                Ok(()) => format!("SCHED_FIFO, priority {FIFO_PRIORITY}"),
                Err(error) => format!("ordinary: SCHED_FIFO was refused ({error})"),
            },
            clock: "CLOCK_MONOTONIC",
            load_pace: pace,
            load_shares_cpus: !load_apart,
        },
        link,
        load: report?,
        rows,
        beside,
        others: before.max(others.end()).max(OtherWork::measure()),
    })
}

/// Cycles, missed and figures of each way.
fn summaries(rows: &[Row]) -> [(u64, u64, Summary); 4] {
    Way::ALL.map(|way| {
        let row = &rows[way as usize];
        (row.cycles, row.missed, row.histogram.summary())
    })
}

/// Whole turns, the same number for each way.
fn schedule(seconds: u32) -> Schedule {
    let total = Duration::from_secs(u64::from(seconds.max(1)));
    let ways = Way::ALL.len() as u32;
    let slice = (total / (ways * TURNS_MIN)).min(SLICE_MAX);
    let turns = (total.as_nanos() / slice.as_nanos()) as u32 / ways;
    Schedule {
        // Later than both threads need to be ready.
        start: Instant::now() + Duration::from_millis(50),
        slice,
        turns,
    }
}

/// Whether this process may use SCHED_FIFO, tried on a thread of its own.
fn try_fifo() -> io::Result<()> {
    thread::spawn(|| child::schedule_fifo(FIFO_PRIORITY))
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

fn run_threads(
    ends: Vec<Ends>,
    schedule: &Schedule,
    placement: control::Placement,
    progress: &mut dyn FnMut(&Progress),
) -> Result<Vec<Row>, DemoError> {
    let (motors, controllers) = ends
        .into_iter()
        .map(|ends| (ends.motor, ends.controller))
        .unzip();
    let board = Mutex::new([(0, 0, Summary::default()); 4]);
    let started = Instant::now();
    thread::scope(|scope| {
        let motor = scope.spawn(|| control::motor_side(motors, schedule, placement, &board));
        let controller = scope.spawn(|| control::controller_side(controllers, schedule, placement));
        while !(motor.is_finished() && controller.is_finished()) {
            thread::sleep(PROGRESS_INTERVAL);
            progress(&Progress {
                elapsed: started.elapsed(),
                total: schedule.total(),
                current: schedule.turn_at(Instant::now()).map(|turn| turn.way),
                so_far: *board.lock().unwrap_or_else(PoisonError::into_inner),
            });
        }
        let rows = joined(motor.join());
        joined(controller.join())?;
        rows
    })
}

fn joined<T>(result: thread::Result<T>) -> T {
    result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_gets_as_many_turns_as_the_others() {
        for seconds in [0, 1, 2, 10, 61] {
            let schedule = schedule(seconds);
            assert!(schedule.turns >= TURNS_MIN, "{seconds}");
            assert!(schedule.total() <= Duration::from_secs(u64::from(seconds.max(1))));
            let mut turns = [0; 4];
            for index in 0..schedule.turns * 4 {
                let middle = schedule.start + schedule.slice * index + schedule.slice / 2;
                turns[schedule.turn_at(middle).unwrap().way as usize] += 1;
            }
            assert_eq!(turns, [schedule.turns; 4]);
            assert!(
                schedule
                    .turn_at(schedule.start + schedule.total() + PERIOD)
                    .is_none()
            );
        }
    }
}
