//! The controller's loops as jobs: read the newest values, do a step, send, note whether it was in time.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use tautline_flight::loops::{self, Fixed, Loop, NavigatorInputs, Tally};
use tautline_flight::message::Mission;
use tautline_flight::world::Craft;
use tautline_testbed::sys::monotonic_ns;

use crate::record::LoopRecord;
use crate::wire::{Stream, Wires};

/// Missed releases of which the moment is kept. Lower: a page shows the first ones only. Higher: memory for a flight
/// that has long crashed.
const MISSED_MAX: usize = 20_000;

/// Notes of a loop about its releases, which outlive its thread.
#[derive(Clone)]
pub(crate) struct Log(Arc<Mutex<Noted>>);

#[derive(Default)]
struct Noted {
    tally: Tally,
    missed_at_ns: Vec<u64>,
    stale_inputs: u64,
}

impl Log {
    fn new() -> Log {
        Log(Arc::new(Mutex::new(Noted {
            // Taken beforehand: a job allocates nothing.
            missed_at_ns: Vec::with_capacity(MISSED_MAX),
            ..Noted::default()
        })))
    }

    /// Notes that a job begins; returns the releases since the one before.
    fn begin(&self, which: Loop, number: u64, release_ns: u64) -> u64 {
        let mut noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let passed = noted.tally.begin(which, number);
        for back in (1..passed).rev() {
            note_missed(
                &mut noted.missed_at_ns,
                release_ns.saturating_sub(back * which.period_ns()),
            );
        }
        passed
    }

    fn end(&self, which: Loop, release_ns: u64) {
        let response = monotonic_ns().saturating_sub(release_ns);
        let mut noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if noted.tally.end(which, response) {
            note_missed(&mut noted.missed_at_ns, release_ns);
        }
    }

    fn note_stale(&self) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .stale_inputs += 1;
    }

    /// The record so far, and inputs that were not new.
    pub(crate) fn record(&self) -> (LoopRecord, u64) {
        let noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let record = LoopRecord::new(&noted.tally, noted.missed_at_ns.clone());
        (record, noted.stale_inputs)
    }
}

/// Keeps the moment of a missed release, as long as there is room.
pub(crate) fn note_missed(missed_at_ns: &mut Vec<u64>, at_ns: u64) {
    if missed_at_ns.len() < MISSED_MAX {
        missed_at_ns.push(at_ns);
    }
}

/// Step of one loop, for the seconds since the one before.
type Step = Box<dyn FnMut(f64, &Log) + Send>;

/// One loop, ready to run.
pub(crate) struct Job {
    pub(crate) which: Loop,
    pub(crate) log: Log,
    step: Step,
}

impl Job {
    fn new(which: Loop, step: impl FnMut(f64, &Log) + Send + 'static) -> Job {
        Job {
            which,
            log: Log::new(),
            step: Box::new(step),
        }
    }

    /// Does the job of a release. Releases are numbered from 1, those that were left out too.
    pub(crate) fn run(&mut self, number: u64, release_ns: u64) {
        let passed = self.log.begin(self.which, number, release_ns);
        let seconds = passed as f64 * self.which.period_ns() as f64 * 1e-9;
        (self.step)(seconds, &self.log);
        self.log.end(self.which, release_ns);
    }
}

/// All loops of a craft, the fastest first. Opens all reading ends before the writing ends, which wait for theirs.
pub(crate) fn jobs(wires: &Wires, mission: Mission) -> io::Result<Vec<Job>> {
    let craft = Craft::HUMMINGBIRD;
    let imu = wires.inbox(Stream::Imu)?;
    let rate_target = wires.inbox(Stream::RateTarget)?;
    let turned = wires.inbox(Stream::Turned)?;
    let attitude_target = wires.inbox(Stream::AttitudeTarget)?;
    let inputs = NavigatorInputs {
        sensors: wires.inbox(Stream::Sensors)?,
        attitude: wires.inbox(Stream::Attitude)?,
        companion: wires.inbox(Stream::Companion)?,
        mission: Fixed(mission),
        sighting: wires.inbox(Stream::Sighting)?,
    };

    let to_motors = wires.outbox(Stream::Motors)?;
    let mut rate = loops::rate(
        craft,
        imu,
        rate_target,
        to_motors,
        wires.outbox(Stream::Turned)?,
    );
    let mut attitude = loops::attitude(
        turned,
        attitude_target,
        wires.outbox(Stream::RateTarget)?,
        wires.outbox(Stream::Attitude)?,
    );
    let to_others = (
        wires.outbox(Stream::Status)?,
        wires.soft_outbox(Stream::Telemetry)?,
    );
    let mut navigator = loops::navigator(
        craft,
        inputs,
        wires.outbox(Stream::AttitudeTarget)?,
        to_others,
    );
    let rate = move |seconds: f64, log: &Log| {
        if !rate(seconds) {
            log.note_stale();
        }
    };
    Ok(vec![
        Job::new(Loop::Rate, rate),
        Job::new(Loop::Attitude, move |seconds, _| attitude(seconds)),
        Job::new(Loop::Navigator, move |seconds, _| navigator(seconds)),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_that_were_left_out_are_missed_deadlines() {
        let log = Log::new();
        let period = Loop::Rate.period_ns();
        let first = monotonic_ns() + period;
        assert_eq!(log.begin(Loop::Rate, 1, first), 1);
        log.end(Loop::Rate, first);
        // The second and third release passed while something else ran.
        let fourth = first + 3 * period;
        assert_eq!(log.begin(Loop::Rate, 4, fourth), 3);
        log.end(Loop::Rate, fourth);
        let (record, _) = log.record();
        assert_eq!((record.releases, record.missed), (4, 2));
        assert_eq!(record.missed_at_ns, [first + period, first + 2 * period]);
        assert_eq!(record.worst_ns, 2 * period);
    }
}
