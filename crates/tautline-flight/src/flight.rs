//! A whole flight in one process, in virtual time: world and loops take turns, and every run is the same.

use crate::control::{AttitudeLoop, Navigator, RateLoop, Seen, Tuning};
use crate::message::{
    Attitude, AttitudeTarget, Companion, Mission, Motors, RateTarget, Status, Turned,
};
use crate::world::{STEP_SECONDS, Scene, World};

/// Steps of the world between two jobs of each loop.
pub const RATE_STEPS: u64 = 4;
/// The same for the attitude loop.
pub const ATTITUDE_STEPS: u64 = 8;
/// The same for the navigator.
pub const NAVIGATOR_STEPS: u64 = 40;
/// Steps between two signs of life of Linux.
const COMPANION_STEPS: u64 = 200;

/// Loops that do not run for a while.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stalls {
    /// The rate loop.
    pub rate: bool,
    /// The attitude loop.
    pub attitude: bool,
    /// The navigator.
    pub navigator: bool,
    /// Linux.
    pub companion: bool,
}

/// A flight in virtual time.
#[derive(Clone, Debug)]
pub struct Flight {
    /// World.
    pub world: World,
    /// Loops that are held back from now on.
    pub stalls: Stalls,
    /// State as the navigator last told it.
    pub status: Status,
    /// Linux beside the controller.
    pub companion: Companion,
    /// Way-points.
    pub mission: Mission,
    /// Settings of the navigator.
    pub tuning: Tuning,
    /// Newest command to the motors.
    pub motors: Motors,
    rate: RateLoop,
    attitude: AttitudeLoop,
    navigator: Navigator,
    turned: Turned,
    rate_target: RateTarget,
    estimate: Attitude,
    attitude_target: AttitudeTarget,
    /// Step of each loop's last job.
    last: [u64; 3],
}

impl Flight {
    /// A craft on the ground, with a mission.
    pub fn new(scene: Scene, mission: Mission) -> Flight {
        let craft = scene.craft;
        Flight {
            world: World::new(scene),
            stalls: Stalls::default(),
            status: Status::default(),
            companion: Companion::default(),
            mission,
            tuning: Tuning::default(),
            rate: RateLoop::new(craft),
            attitude: AttitudeLoop::default(),
            navigator: Navigator::new(craft),
            motors: Motors::default(),
            turned: Turned::default(),
            rate_target: RateTarget::default(),
            estimate: Attitude::default(),
            attitude_target: AttitudeTarget::default(),
            last: [0; 3],
        }
    }

    /// Moves on by a step of the world; the loops whose time has come do a job each, the fastest first.
    pub fn step(&mut self) {
        self.world.step(&self.motors);
        let stalls = self.stalls;
        if !stalls.companion && self.world.steps().is_multiple_of(COMPANION_STEPS) {
            self.companion.count += 1;
        }
        if let Some(seconds) = self.due(0, RATE_STEPS, stalls.rate) {
            let imu = self.world.imu();
            (self.motors, self.turned) = self.rate.step(&imu, &self.rate_target, seconds);
        }
        if let Some(seconds) = self.due(1, ATTITUDE_STEPS, stalls.attitude) {
            (self.rate_target, self.estimate) =
                self.attitude
                    .step(&self.turned, &self.attitude_target, seconds);
        }
        if let Some(seconds) = self.due(2, NAVIGATOR_STEPS, stalls.navigator) {
            let seen = Seen {
                sensors: self.world.sensors(),
                attitude: self.estimate,
                companion: self.companion,
                mission: self.mission,
                tuning: self.tuning,
            };
            (self.attitude_target, self.status) = self.navigator.step(&seen, seconds);
        }
    }

    /// Seconds since the job before, if a loop is due.
    fn due(&mut self, index: usize, period_steps: u64, is_stalled: bool) -> Option<f64> {
        let now = self.world.steps();
        if is_stalled || !now.is_multiple_of(period_steps) {
            return None;
        }
        let passed = now - self.last[index];
        self.last[index] = now;
        Some(passed as f64 * STEP_SECONDS)
    }

    /// Moves on to a moment, in seconds from the start, or to a crash.
    pub fn run_until(&mut self, seconds: f64) {
        while self.world.seconds() < seconds && self.world.crash().is_none() {
            self.step();
        }
    }
}
