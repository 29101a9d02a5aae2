//! The controller's loops with the streams that they read and write, and the count of their deadlines: the same
//! wherever they run. Where values come from and go to, and who calls a loop and when, is the caller's.

use core::time::Duration;

use serde::{Deserialize, Serialize};

use crate::control::{AttitudeLoop, Navigator, RateLoop, Seen, Tuning};
use crate::message::{
    Attitude, AttitudeTarget, Companion, Imu, Mission, Motors, RateTarget, Sensors, Status, Turned,
};
use crate::scenery::Sighting;
use crate::world::Craft;

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

    /// Place in [`Loop::ALL`].
    pub fn index(self) -> usize {
        self as usize
    }

    /// Name of the task.
    pub fn name(self) -> &'static str {
        match self {
            Loop::Rate => "rate",
            Loop::Attitude => "attitude",
            Loop::Navigator => "navigator",
        }
    }

    /// Period, which is the deadline too.
    pub const fn period(self) -> Duration {
        match self {
            Loop::Rate => Duration::from_millis(1),
            Loop::Attitude => Duration::from_millis(2),
            Loop::Navigator => Duration::from_millis(10),
        }
    }

    /// The same in nanoseconds.
    pub const fn period_ns(self) -> u64 {
        self.period().as_nanos() as u64
    }
}

/// Deadlines of a loop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Releases, those included that were left out because a job before was late.
    pub releases: u64,
    /// Releases whose job was not done within the period.
    pub missed: u64,
    /// Longest time from a release to the end of its job, or to the next job where it was left out, nanoseconds.
    pub worst_ns: u64,
    last_number: u64,
}

impl Tally {
    /// Notes that the job of a release begins; returns the releases since the one before, of which all but the last
    /// were left out, and missed. Releases are numbered from 1.
    pub fn begin(&mut self, which: Loop, number: u64) -> u64 {
        let passed = number.saturating_sub(self.last_number).max(1);
        self.last_number = number;
        self.releases += passed;
        self.missed += passed - 1;
        self.worst_ns = self.worst_ns.max((passed - 1) * which.period_ns());
        passed
    }

    /// Notes that a job has ended, so long after its release; returns whether it missed its deadline.
    pub fn end(&mut self, which: Loop, response_ns: u64) -> bool {
        let is_late = response_ns > which.period_ns();
        self.missed += u64::from(is_late);
        self.worst_ns = self.worst_ns.max(response_ns);
        is_late
    }
}

/// Deadlines of all loops so far, as reported by a controller that cannot be observed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deadlines {
    /// Values so far.
    pub count: u32,
    /// In the order of [`Loop::ALL`].
    pub loops: [Tally; 3],
    /// Jobs of the rate loop without a new value of the inertial units.
    pub stale_inputs: u64,
}

/// A stream of values between the nodes of a flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Inertial units, to the rate loop.
    Imu,
    /// Other sensors, to the navigator.
    Sensors,
    /// Motor speeds, to the world.
    Motors,
    /// Sums of turns, to the attitude loop.
    Turned,
    /// Turn rates, to the rate loop.
    RateTarget,
    /// Estimate, to the navigator.
    Attitude,
    /// Target, to the attitude loop.
    AttitudeTarget,
    /// State of the flight, to the world, which records it.
    Status,
    /// Signs of life of Linux, to the navigator.
    Companion,
    /// Light that falls into the camera, to the video.
    View,
    /// State of the flight, to the video.
    Telemetry,
    /// Pictures, to the mapping.
    Picture,
    /// The door, to the navigator.
    Sighting,
    /// Way-points, to a navigator that has not been told otherwise.
    Mission,
    /// Deadlines of a controller in a guest, to its keeper on Linux.
    Deadlines,
    /// Frames of the remote control, to the world's antenna.
    Remote,
}

/// Distance of the numbers of a stream's two ports. Lower: the last stream's reader and the first one's writer have one
/// number.
const WRITERS: u16 = 100;

impl Stream {
    /// All, by number.
    pub const ALL: [Stream; 16] = [
        Stream::Imu,
        Stream::Sensors,
        Stream::Motors,
        Stream::Turned,
        Stream::RateTarget,
        Stream::Attitude,
        Stream::AttitudeTarget,
        Stream::Status,
        Stream::Companion,
        Stream::View,
        Stream::Telemetry,
        Stream::Picture,
        Stream::Sighting,
        Stream::Mission,
        Stream::Deadlines,
        Stream::Remote,
    ];

    /// Place in [`Stream::ALL`].
    pub fn index(self) -> usize {
        self as usize
    }

    /// Number of the port at which it is read.
    pub fn number(self) -> u16 {
        self as u16 + 1
    }

    /// Number of the port from which it is sent.
    pub fn writers_number(self) -> u16 {
        WRITERS + self.number()
    }

    /// Node that reads it.
    pub fn reader(self) -> Role {
        match self {
            Stream::Motors | Stream::Status | Stream::Remote => Role::World,
            Stream::View | Stream::Telemetry => Role::Video,
            Stream::Picture => Role::Mapping,
            Stream::Deadlines => Role::Keeper,
            _ => Role::Controller,
        }
    }
}

/// A node of a flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The world.
    World,
    /// The flight controller.
    Controller,
    /// Linux beside the controller: signs of life, and the mission.
    Ground,
    /// Camera and flight data.
    Video,
    /// Door in the pictures.
    Mapping,
    /// Process that keeps a controller in a guest.
    Keeper,
    /// Receiver of the remote control, on a network.
    Receiver,
}

impl Role {
    /// Nodes with a sender.
    pub const READERS: [Role; 5] = [
        Role::World,
        Role::Controller,
        Role::Video,
        Role::Mapping,
        Role::Keeper,
    ];

    /// Name of the node.
    pub fn name(self) -> &'static str {
        match self {
            Role::World => "world",
            Role::Controller => "controller",
            Role::Ground => "ground",
            Role::Video => "video",
            Role::Mapping => "mapping",
            Role::Keeper => "keeper",
            Role::Receiver => "receiver",
        }
    }
}

/// Reading end of a stream.
pub trait Reads<M> {
    /// The newest value; the one before as long as there is none.
    fn newest(&mut self) -> M;
}

/// Writing end of a stream.
pub trait Writes<M> {
    /// Sends a value. One that cannot be sent is lost: its reader notices by the count.
    fn send(&mut self, value: &M);
}

/// A value that never changes.
#[derive(Clone, Copy, Debug)]
pub struct Fixed<M>(pub M);

impl<M: Copy> Reads<M> for Fixed<M> {
    fn newest(&mut self) -> M {
        self.0
    }
}

/// A stream with two readers.
impl<M, A: Writes<M>, B: Writes<M>> Writes<M> for (A, B) {
    fn send(&mut self, value: &M) {
        self.0.send(value);
        self.1.send(value);
    }
}

/// The rate loop. It is called with the seconds since its last job, and returns whether the inertial units have told
/// anything new.
pub fn rate(
    craft: Craft,
    mut imu: impl Reads<Imu>,
    mut target: impl Reads<RateTarget>,
    mut to_motors: impl Writes<Motors>,
    mut to_attitude: impl Writes<Turned>,
) -> impl FnMut(f64) -> bool {
    let mut controller = RateLoop::new(craft);
    let mut last_us = 0;
    move |seconds| {
        let imu = imu.newest();
        let is_new = imu.time_us != last_us;
        last_us = imu.time_us;
        let (motors, turned) = controller.step(&imu, &target.newest(), seconds);
        to_motors.send(&motors);
        to_attitude.send(&turned);
        is_new
    }
}

/// The attitude loop. It is called with the seconds since its last job.
pub fn attitude(
    mut turned: impl Reads<Turned>,
    mut target: impl Reads<AttitudeTarget>,
    mut to_rate: impl Writes<RateTarget>,
    mut to_navigator: impl Writes<Attitude>,
) -> impl FnMut(f64) {
    let mut controller = AttitudeLoop::default();
    move |seconds| {
        let (rates, estimate) = controller.step(&turned.newest(), &target.newest(), seconds);
        to_rate.send(&rates);
        to_navigator.send(&estimate);
    }
}

/// Streams that the navigator reads.
#[derive(Clone, Copy, Debug)]
pub struct NavigatorInputs<S, A, C, M, D> {
    /// [`Sensors`].
    pub sensors: S,
    /// [`Attitude`].
    pub attitude: A,
    /// [`Companion`].
    pub companion: C,
    /// [`Mission`].
    pub mission: M,
    /// [`Sighting`].
    pub sighting: D,
}

/// The navigator. It is called with the seconds since its last job.
pub fn navigator<S, A, C, M, D>(
    craft: Craft,
    mut inputs: NavigatorInputs<S, A, C, M, D>,
    mut to_attitude: impl Writes<AttitudeTarget>,
    mut to_others: impl Writes<Status>,
) -> impl FnMut(f64)
where
    S: Reads<Sensors>,
    A: Reads<Attitude>,
    C: Reads<Companion>,
    M: Reads<Mission>,
    D: Reads<Sighting>,
{
    let mut controller = Navigator::new(craft);
    move |seconds| {
        let seen = Seen {
            sensors: inputs.sensors.newest(),
            attitude: inputs.attitude.newest(),
            companion: inputs.companion.newest(),
            mission: inputs.mission.newest(),
            tuning: Tuning::default(),
            sighting: inputs.sighting.newest(),
        };
        let (target, status) = controller.step(&seen, seconds);
        to_attitude.send(&target);
        to_others.send(&status);
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn releases_that_were_left_out_are_missed_deadlines() {
        let mut tally = Tally::default();
        let period = Loop::Rate.period_ns();
        assert_eq!(tally.begin(Loop::Rate, 1), 1);
        assert!(!tally.end(Loop::Rate, period));
        // The second and third release passed while something else ran.
        assert_eq!(tally.begin(Loop::Rate, 4), 3);
        assert!(!tally.end(Loop::Rate, period / 2));
        assert_eq!((tally.releases, tally.missed), (4, 2));
        assert_eq!(tally.worst_ns, 2 * period);
        assert_eq!(tally.begin(Loop::Rate, 5), 1);
        assert!(tally.end(Loop::Rate, period + 1));
        assert_eq!((tally.releases, tally.missed), (5, 3));
    }

    #[test]
    fn each_stream_has_two_ports_of_its_own() {
        let mut numbers: Vec<u16> = Stream::ALL.map(Stream::number).to_vec();
        numbers.extend(Stream::ALL.map(Stream::writers_number));
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), 2 * Stream::ALL.len());
        for (index, stream) in Stream::ALL.iter().enumerate() {
            assert_eq!(stream.index(), index);
        }
    }

    #[test]
    fn periods_are_those_of_a_flight_in_virtual_time() {
        use crate::flight::{ATTITUDE_STEPS, NAVIGATOR_STEPS, RATE_STEPS};
        use crate::world::STEP_SECONDS;

        for (which, steps) in Loop::ALL
            .iter()
            .zip([RATE_STEPS, ATTITUDE_STEPS, NAVIGATOR_STEPS])
        {
            let seconds = steps as f64 * STEP_SECONDS;
            assert!((which.period().as_secs_f64() - seconds).abs() < 1e-12);
        }
    }
}
