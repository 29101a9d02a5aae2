//! The process of the world: nature does not wait for the controller, so each step happens when its time has come.

use std::io::{self, BufRead};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread;

use serde::{Deserialize, Serialize};
use tautline_flight::message::{Imu, Motors, Order, Phase, Remote, Sensors, Status};
use tautline_flight::world::{IMU_STEPS, SENSORS_STEPS, STEP_SECONDS, World};
use tautline_state::memory::lock_all;
use tautline_state::policy::set_deadline;
use tautline_testbed::sys::{monotonic_ns, set_fifo, sleep_until};

use crate::course::{Course, live_gust};
use crate::record::{Sample, WorldRecord};
use crate::wire::{Inbox, Means, Outbox, Role, Stream, View};

/// Time of a step.
const STEP_NS: u64 = (STEP_SECONDS * 1e9) as u64;
/// Steps between two samples of the record.
pub(crate) const SAMPLE_STEPS: u64 = 40;
/// Steps that a step may be late before it is counted.
const LATE_NS: u64 = 1_000_000;
/// Share of a CPU that the world may use under SCHED_DEADLINE: it uses a tenth, and catches up with the rest.
const RUNTIME_NS: u64 = 400_000;
const RUNTIME_PERIOD_NS: u64 = 500_000;
/// Without SCHED_DEADLINE.
const FIFO_PRIORITY: u8 = 99;
/// Time from a crash or a landing to the end of the record.
const AFTERMATH_SECONDS: f64 = 0.4;
/// Time to wait for the controller's first command.
const PATIENCE_NS: u64 = 20_000_000_000;
/// Distance of looks for it.
const LOOK_NS: u64 = 1_000_000;

/// Settings of the world of a flight.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct WorldSettings {
    pub(crate) means: Means,
    pub(crate) seed: u64,
    pub(crate) course: Course,
    /// Whether the pilot is a process of its own.
    pub(crate) has_pilot: bool,
    /// Longest flight.
    pub(crate) seconds_max: f64,
}

/// Wish to the world of a flight in laps: a line of standard input.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Wish {
    /// The pilot's order.
    Order(Order),
    /// Speed of the gusts from now on, metres a second.
    Gusts(f64),
}

/// Time between two gusts of a flight in laps.
const GUST_SECONDS: f64 = 3.0;

/// Wishes from standard input, and the gusts that were wished for.
struct Wishes {
    told: Receiver<Wish>,
    gusts: f64,
    next_gust: f64,
    number: u64,
    has_ended: bool,
}

impl Wishes {
    /// Begins to listen.
    fn listen() -> Wishes {
        let (tell, told) = channel();
        thread::spawn(move || {
            for line in io::stdin().lock().lines().map_while(Result::ok) {
                // An empty line is not a request.
                let wish = serde_json::from_str::<Wish>(&line);
                if wish.is_ok_and(|wish| tell.send(wish).is_err()) {
                    return;
                }
            }
        });
        Wishes {
            told,
            gusts: 0.0,
            next_gust: 0.0,
            number: 0,
            has_ended: false,
        }
    }

    /// Fulfils what was wished for since the last call. Never waits.
    fn fulfil(&mut self, world: &mut World) {
        loop {
            match self.told.try_recv() {
                Ok(Wish::Order(order)) => world.order(order),
                Ok(Wish::Gusts(speed)) => self.gusts = speed,
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => {
                    self.has_ended = true;
                    break;
                }
            }
        }
        let at = world.seconds();
        if self.gusts > 0.0 && at >= self.next_gust {
            world.blow(live_gust(at, self.number, self.gusts));
            self.number += 1;
            self.next_gust = at + GUST_SECONDS;
        }
    }
}

/// Takes the place above everything else: SCHED_DEADLINE, or SCHED_FIFO where the kernel gives no more.
fn rise() -> String {
    let locked = match lock_all() {
        Ok(()) => String::new(),
        Err(error) => format!(", memory not locked ({error})"),
    };
    let policy = match set_deadline(0, RUNTIME_NS, RUNTIME_PERIOD_NS, RUNTIME_PERIOD_NS) {
        Ok(()) => "SCHED_DEADLINE".to_owned(),
        Err(refused) => match set_fifo(FIFO_PRIORITY) {
            Ok(()) => format!("SCHED_FIFO {FIFO_PRIORITY} (SCHED_DEADLINE: {refused})"),
            Err(error) => format!("SCHED_OTHER ({error})"),
        },
    };
    policy + &locked
}

/// The world on its wires.
struct Nature {
    world: World,
    motors: Inbox<Motors>,
    status: Inbox<Status>,
    remote: Option<Inbox<Remote>>,
    imu: Outbox<Imu>,
    sensors: Outbox<Sensors>,
    view: Outbox<View>,
    record: WorldRecord,
    /// Count of the newest command, and the step in which it came.
    last: (u32, u64),
    alarms: Vec<&'static str>,
    has_flown: bool,
    /// In a flight in laps, of which nothing is sampled.
    wishes: Option<Wishes>,
}

/// Runs the world from the controller's first command to the end of the flight. Calls `started` with the time of the
/// first step, and `ended` with the record before it leaves the bus: beside a load that may take half a minute, because
/// the kernel's threads that give back what a node had wait for the CPU.
pub(crate) fn run(
    settings: &WorldSettings,
    started: impl FnOnce(u64),
    ended: impl FnOnce(&WorldRecord),
) -> io::Result<()> {
    let wires = settings.means.open(Role::World)?;
    // The reading ends first: the controller waits for them.
    let motors = wires.inbox(Stream::Motors)?;
    let status = wires.inbox(Stream::Status)?;
    let remote = settings.has_pilot.then(|| wires.inbox(Stream::Remote));
    let (wishes, samples_max) = match settings.course {
        Course::Schedule => (None, (settings.seconds_max * 100.0) as usize + 1),
        Course::Laps => (Some(Wishes::listen()), 0),
    };
    let mut nature = Nature {
        world: World::new(settings.course.scene(settings.seed)),
        motors,
        status,
        remote: remote.transpose()?,
        imu: wires.outbox(Stream::Imu)?,
        sensors: wires.outbox(Stream::Sensors)?,
        view: wires.soft_outbox(Stream::View)?,
        record: WorldRecord {
            policy: rise(),
            samples: Vec::with_capacity(samples_max),
            ..WorldRecord::default()
        },
        last: (0, 0),
        alarms: Vec::with_capacity(8),
        has_flown: false,
        wishes,
    };
    let give_up = monotonic_ns() + PATIENCE_NS;
    while nature.motors.newest().count == 0 {
        if monotonic_ns() > give_up {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "no command of the controller came",
            ));
        }
        sleep_until(monotonic_ns() + LOOK_NS);
    }
    // Commands from before the world began are not lost.
    nature.last = (nature.motors.newest().count, 0);
    let start = monotonic_ns() + STEP_NS;
    nature.record.start_ns = start;
    started(start);
    nature.live(start, settings.seconds_max);
    ended(&nature.record);
    Ok(())
}

impl Nature {
    fn live(&mut self, start: u64, seconds_max: f64) {
        let mut end = seconds_max;
        while self.world.seconds() < end {
            let due = start + self.world.steps() * STEP_NS;
            sleep_until(due);
            let late = monotonic_ns().saturating_sub(due);
            self.record.late_ns_max = self.record.late_ns_max.max(late);
            self.record.steps_late += u64::from(late > LATE_NS);
            self.step();
            if self.has_ended() {
                end = end.min(self.world.seconds() + AFTERMATH_SECONDS);
            }
        }
        self.record.steps = self.world.steps();
        self.record.crash = self
            .world
            .crash()
            .map(|crash| (crash.at, crash.speed, crash.tilt.to_degrees()));
        self.record.has_hit_wall = self.world.crash().is_some_and(|crash| crash.is_wall);
        self.record.passage = self
            .world
            .passage()
            .map(|passage| (passage.at, passage.off));
    }

    fn step(&mut self) {
        let motors = *self.motors.newest();
        if let Some(remote) = &mut self.remote
            && self.world.steps().is_multiple_of(SENSORS_STEPS)
        {
            self.world.hear(*remote.newest());
        }
        self.world.step(&motors);
        let steps = self.world.steps();
        let (count, at) = self.last;
        if motors.count != count {
            self.record.commands += 1;
            self.record.commands_lost += u64::from(motors.count.wrapping_sub(count) - 1);
            self.last = (motors.count, steps);
        }
        if self.has_flown && self.record.landed_at.is_none() && self.world.crash().is_none() {
            self.record.silent_steps_max = self.record.silent_steps_max.max(steps - at);
        }
        if steps.is_multiple_of(IMU_STEPS) {
            self.imu.send(&self.world.imu());
        }
        if steps.is_multiple_of(SENSORS_STEPS) {
            let sensors = self.world.sensors();
            self.sensors.send(&sensors);
            let body = self.world.body();
            self.view.send(&View {
                time_us: sensors.time_us,
                place: body.position,
                attitude: body.attitude,
            });
        }
        if steps.is_multiple_of(SAMPLE_STEPS) {
            self.sample(&motors);
        }
    }

    fn sample(&mut self, motors: &Motors) {
        let status = *self.status.newest();
        let sample = Sample::of(&self.world, motors, &status);
        let at = sample.at;
        self.has_flown |= sample.is_flying;
        match &mut self.wishes {
            Some(wishes) => wishes.fulfil(&mut self.world),
            None => self.record.samples.push(sample),
        }
        for name in status.alarms.names() {
            if !self.alarms.contains(&name) {
                self.alarms.push(name);
                self.record.alarms.push((at, name.to_owned()));
            }
        }
        if self.has_flown && status.phase == Phase::Disarmed && self.record.landed_at.is_none() {
            self.record.landed_at = Some(at);
        }
    }

    fn has_ended(&self) -> bool {
        let is_unwanted = self.wishes.as_ref().is_some_and(|wishes| wishes.has_ended);
        is_unwanted || self.world.crash().is_some() || self.record.landed_at.is_some()
    }
}
