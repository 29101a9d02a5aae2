//! A whole flight in one process, in virtual time: world and loops take turns, and every run is the same.

use alloc::vec;
use alloc::vec::Vec;

use crate::control::{AttitudeLoop, Navigator, RateLoop, Seen, Tuning};
use crate::message::{
    Attitude, AttitudeTarget, Companion, Mission, Motors, RateTarget, Status, Turned,
};
use crate::scenery::Sighting;
use crate::vision::{
    Camera, DoorFinder, HEAD_BYTES, PICTURE_BYTES, PICTURES_PER_SECOND, PictureHead,
    draw_flight_data,
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

/// Steps between two pictures.
const PICTURE_STEPS: u64 = (1.0 / STEP_SECONDS) as u64 / PICTURES_PER_SECOND;

/// Camera and mapping of a flight in virtual time.
#[derive(Clone, Debug)]
struct Eyes {
    camera: Camera,
    finder: DoorFinder,
    /// Picture with its head, as it would travel.
    message: Vec<u8>,
    /// The door in the picture before: looking takes as long as a picture lasts.
    next: Sighting,
}

impl Eyes {
    /// Takes a picture and looks at it; returns the door in the picture before.
    fn look(&mut self, world: &World, status: &Status) -> Sighting {
        let ready = self.next;
        let head = PictureHead {
            count: ready.count,
            time_us: world.sensors().time_us,
            attitude: status.attitude,
        };
        let pixels = &mut self.message[HEAD_BYTES..];
        let body = world.body();
        self.camera.take(body.position, body.attitude, pixels);
        draw_flight_data(&head, status, pixels);
        if let Some(found) = self.finder.find(&head, pixels) {
            self.next = found;
        }
        ready
    }
}

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
    /// The door as the mapping saw it last.
    pub sighting: Sighting,
    eyes: Option<Eyes>,
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
            sighting: Sighting::default(),
            eyes: None,
            turned: Turned::default(),
            rate_target: RateTarget::default(),
            estimate: Attitude::default(),
            attitude_target: AttitudeTarget::default(),
            last: [0; 3],
        }
    }

    /// The same craft with a camera, and a mapping that looks for the door in its pictures.
    #[must_use]
    pub fn with_eyes(mut self) -> Flight {
        let scene = self.world.scene();
        self.eyes = Some(Eyes {
            camera: Camera::new(scene.wall, self.mission.points(), scene.seed),
            finder: DoorFinder::default(),
            message: vec![0; PICTURE_BYTES],
            next: Sighting::default(),
        });
        self
    }

    /// Ends the mapping: no door is seen from now on.
    pub fn close_eyes(&mut self) {
        self.eyes = None;
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
        if self.world.steps().is_multiple_of(PICTURE_STEPS)
            && let Some(eyes) = &mut self.eyes
        {
            self.sighting = eyes.look(&self.world, &self.status);
        }
        if let Some(seconds) = self.due(2, NAVIGATOR_STEPS, stalls.navigator) {
            let seen = Seen {
                sensors: self.world.sensors(),
                attitude: self.estimate,
                companion: self.companion,
                mission: self.mission,
                tuning: self.tuning,
                sighting: self.sighting,
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
