//! The controller's loops as jobs: read the newest values, do a step, send, note whether it was in time.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use tautline_flight::control::{AttitudeLoop, Navigator, RateLoop, Seen, Tuning};
use tautline_flight::message::{
    Attitude, AttitudeTarget, Companion, Imu, Mission, Motors, RateTarget, Sensors, Status, Turned,
};
use tautline_flight::scenery::Sighting;
use tautline_flight::world::Craft;
use tautline_testbed::sys::monotonic_ns;

use crate::record::{Loop, LoopRecord};
use crate::wire::{Inbox, Outbox, Stream, Wires};

/// Missed releases of which the moment is kept. Lower: a page shows the first ones only. Higher: memory for a flight
/// that has long crashed.
const MISSED_MAX: usize = 20_000;

/// Notes of a loop about its releases, which outlive its thread.
#[derive(Clone)]
pub(crate) struct Log(Arc<Mutex<Noted>>);

#[derive(Default)]
struct Noted {
    record: LoopRecord,
    last_number: u64,
    stale_inputs: u64,
}

impl Log {
    fn new() -> Log {
        let mut noted = Noted::default();
        // Taken beforehand: a job allocates nothing.
        noted.record.missed_at_ns.reserve(MISSED_MAX);
        Log(Arc::new(Mutex::new(noted)))
    }

    /// Notes that a job begins; returns the releases since the one before.
    fn begin(&self, which: Loop, number: u64, release_ns: u64) -> u64 {
        let mut noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let passed = number.saturating_sub(noted.last_number).max(1);
        noted.last_number = number;
        noted.record.releases += passed;
        // Releases that were left out are missed deadlines.
        for back in (1..passed).rev() {
            let at = release_ns.saturating_sub(back * which.period_ns());
            noted.miss(at, back * which.period_ns());
        }
        passed
    }

    fn end(&self, which: Loop, release_ns: u64) {
        let response = monotonic_ns().saturating_sub(release_ns);
        let mut noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        noted.record.worst_ns = noted.record.worst_ns.max(response);
        if response > which.period_ns() {
            noted.miss(release_ns, response);
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
        (noted.record.clone(), noted.stale_inputs)
    }
}

impl Noted {
    fn miss(&mut self, at_ns: u64, response_ns: u64) {
        self.record.missed += 1;
        self.record.worst_ns = self.record.worst_ns.max(response_ns);
        if self.record.missed_at_ns.len() < MISSED_MAX {
            self.record.missed_at_ns.push(at_ns);
        }
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
    let mut imu: Inbox<Imu> = wires.inbox(Stream::Imu)?;
    let mut sensors: Inbox<Sensors> = wires.inbox(Stream::Sensors)?;
    let mut turned: Inbox<Turned> = wires.inbox(Stream::Turned)?;
    let mut rate_target: Inbox<RateTarget> = wires.inbox(Stream::RateTarget)?;
    let mut attitude: Inbox<Attitude> = wires.inbox(Stream::Attitude)?;
    let mut attitude_target: Inbox<AttitudeTarget> = wires.inbox(Stream::AttitudeTarget)?;
    let mut companion: Inbox<Companion> = wires.inbox(Stream::Companion)?;
    let mut sighting: Inbox<Sighting> = wires.inbox(Stream::Sighting)?;

    let mut to_motors: Outbox<Motors> = wires.outbox(Stream::Motors)?;
    let mut to_attitude: Outbox<Turned> = wires.outbox(Stream::Turned)?;
    let mut to_rate: Outbox<RateTarget> = wires.outbox(Stream::RateTarget)?;
    let mut to_navigator: Outbox<Attitude> = wires.outbox(Stream::Attitude)?;
    let mut from_navigator: Outbox<AttitudeTarget> = wires.outbox(Stream::AttitudeTarget)?;
    let mut to_record: Outbox<Status> = wires.outbox(Stream::Status)?;
    let mut to_video: Outbox<Status> = wires.soft_outbox(Stream::Telemetry)?;

    let mut rate_loop = RateLoop::new(craft);
    let mut last_us = 0;
    let rate = move |seconds: f64, log: &Log| {
        let imu = *imu.newest();
        if imu.time_us == last_us {
            log.note_stale();
        }
        last_us = imu.time_us;
        let (motors, turned) = rate_loop.step(&imu, rate_target.newest(), seconds);
        to_motors.send(&motors);
        to_attitude.send(&turned);
    };
    let mut attitude_loop = AttitudeLoop::default();
    let attitude_step = move |seconds: f64, _: &Log| {
        let (target, estimate) =
            attitude_loop.step(turned.newest(), attitude_target.newest(), seconds);
        to_rate.send(&target);
        to_navigator.send(&estimate);
    };
    let mut navigator = Navigator::new(craft);
    let navigate = move |seconds: f64, _: &Log| {
        let seen = Seen {
            sensors: *sensors.newest(),
            attitude: *attitude.newest(),
            companion: *companion.newest(),
            mission,
            tuning: Tuning::default(),
            sighting: *sighting.newest(),
        };
        let (target, status) = navigator.step(&seen, seconds);
        from_navigator.send(&target);
        to_record.send(&status);
        to_video.send(&status);
    };
    Ok(vec![
        Job::new(Loop::Rate, rate),
        Job::new(Loop::Attitude, attitude_step),
        Job::new(Loop::Navigator, navigate),
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
