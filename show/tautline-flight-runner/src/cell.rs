//! A craft as the program of a cell: its state and its way-points are ports on a bus, and members of the bus may
//! follow the one and send the other, a gateway from another site for example.
//!
//! World and controller fly in one task of the executive, in step with the clock. The craft takes off by itself and
//! waits for way-points.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use tautline::config::BusConfig;
use tautline::{
    Destination, Node, NodeConfig, Priority, Typed, TypedQueuingPort, TypedSamplingPort, Wait,
};
use tautline_exec::{Job, OverrunPolicy, Task, TaskSet};
use tautline_flight::flight::Flight;
use tautline_flight::message::{Mission, Order, Phase};
use tautline_flight::vector::{Vector, vector};
use tautline_flight::world::{STEP_SECONDS, Scene};
use tautline_tasks::{Executive, Options};
use tautline_testbed::interrupt::interrupted;

/// Port with the state, which publishes for all who follow it.
pub const STATE_PORT: u16 = 5;
/// Port that takes way-points.
pub const WAYPOINT_PORT: u16 = 7;
/// Period of the task, and deadline of its jobs.
const PERIOD: Duration = Duration::from_millis(5);
/// Declared worst case of a job: twenty steps of the world take a tenth of it in a build for speed, a half in one for
/// tests.
const WORST_CASE: Duration = Duration::from_millis(2);
/// Steps of the world in a period.
const STEPS: u64 = (0.005 / STEP_SECONDS) as u64;
/// Jobs between two states: a hundred states a second.
const STATE_JOBS: u64 = 2;
/// Steps between two orders that were not obeyed yet.
const ORDER_STEPS: u64 = 400;
/// Seconds on the ground at the start, until the sensors have settled.
const SETTLE_SECONDS: f64 = 1.0;
/// Way-points that are flown to: metres to the side, and lowest and highest. Others are refused.
const AWAY_MAX: f64 = 200.0;
const HEIGHTS: (f64, f64) = (0.5, 30.0);
/// Way-points taken at a time. Higher: a flood keeps the craft from flying.
const WAYPOINTS_MAX: usize = 4;
/// Time between two looks whether the flight is to end.
const LOOK: Duration = Duration::from_millis(20);

/// State of the craft on its port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Typed)]
#[repr(C)]
pub struct CraftState {
    /// Time of the flight.
    pub time_us: u64,
    /// Estimated position: metres east, north and up from the start.
    pub position: [f64; 3],
    /// Estimated velocity, metres a second.
    pub velocity: [f64; 3],
    /// Place where the craft is to be now.
    pub target: [f64; 3],
    /// Number of the way-point that was taken last.
    pub waypoint: u32,
    /// Way-points that were refused.
    pub refused: u32,
    /// Phase: 0 on the ground, 1 armed, 2 taking off, 3 waiting, 4 on the way, 5 landing, 6 crashed.
    pub phase: u32,
    /// Alarms that are set.
    pub alarms: u32,
}

/// Way-point, as the port takes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Typed)]
#[repr(C)]
pub struct WayPoint {
    /// Metres east, north and up from the start.
    pub position: [f64; 3],
    /// Number, of the sender's choice.
    pub number: u64,
}

/// Settings of a craft.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Directory of the bus.
    pub bus: String,
    /// Name on the bus.
    pub name: String,
    /// Seed of wind and noise.
    pub seed: u64,
    /// Time to fly; without end if it is zero.
    pub length: Duration,
}

/// The craft as it was at the end.
#[derive(Clone, Copy, Debug)]
pub struct Flown {
    /// Seconds that it has flown or stood.
    pub seconds: f64,
    /// Whether it crashed.
    pub has_crashed: bool,
    /// Way-points that it took and refused.
    pub taken: u64,
    /// Deadlines that its task missed.
    pub missed: u64,
    /// Jobs of its task.
    pub jobs: u64,
}

/// Counters that the task leaves for the end.
#[derive(Default)]
struct Counts {
    steps: AtomicU64,
    taken: AtomicU64,
    crashed: AtomicU64,
}

/// Flies until the time is over, a signal comes, or the craft has crashed. Calls `ready` when the ports are open, with
/// the settings that the executive could not have.
///
/// # Errors
/// A bus or port that cannot be had.
pub fn fly(settings: &Settings, ready: impl FnOnce(&[String])) -> io::Result<Flown> {
    let name = settings.name.parse().map_err(io::Error::other)?;
    let config = NodeConfig::vbus(BusConfig::new(&settings.bus, name));
    let node = Node::open(config).map_err(io::Error::other)?;
    let counts = Arc::new(Counts::default());
    let mut craft = Craft::open(&node, settings.seed, Arc::clone(&counts))?;
    let mut task = Task::periodic("craft", PERIOD, WORST_CASE);
    task.overrun = OverrunPolicy::Skip;
    let set = TaskSet::new(vec![task]).map_err(io::Error::other)?;
    let mut executive = Executive::new(set).map_err(io::Error::other)?;
    executive
        .task("craft", move |_: &Job| craft.job())
        .map_err(io::Error::other)?;
    let options = Options::default();
    let running = executive.start(&options).map_err(io::Error::other)?;
    let limits: Vec<String> = running.limits().iter().map(ToString::to_string).collect();
    ready(&limits);
    let start = Instant::now();
    let is_over = || {
        let has_ended = !settings.length.is_zero() && start.elapsed() > settings.length;
        has_ended || interrupted().is_some() || counts.crashed.load(Relaxed) > 0
    };
    while !is_over() {
        thread::sleep(LOOK);
    }
    let summary = running.stop(Duration::from_secs(1));
    Ok(Flown {
        seconds: counts.steps.load(Relaxed) as f64 * STEP_SECONDS,
        has_crashed: counts.crashed.load(Relaxed) > 0,
        taken: counts.taken.load(Relaxed),
        missed: summary.tasks.iter().map(|task| task.missed).sum(),
        jobs: summary.tasks.iter().map(|task| task.jobs).sum(),
    })
}

/// The craft with its ports.
struct Craft {
    flight: Flight,
    state: TypedSamplingPort<CraftState>,
    readers: Destination,
    waypoints: TypedQueuingPort<WayPoint>,
    counts: Arc<Counts>,
    jobs: u64,
    /// Step before which no other order is given.
    patience: u64,
    /// Whether there is a way-point that the navigator has not begun to fly to.
    is_mission_due: bool,
    number: u32,
    refused: u32,
}

impl Craft {
    fn open(node: &Node, seed: u64, counts: Arc<Counts>) -> io::Result<Self> {
        let mut state: TypedSamplingPort<CraftState> = node
            .sampling(STATE_PORT)
            .typed()
            .open()
            .map_err(io::Error::other)?;
        let readers = state.readers().map_err(io::Error::other)?;
        let waypoints = node
            .queuing(WAYPOINT_PORT)
            .typed()
            .open()
            .map_err(io::Error::other)?;
        let scene = Scene {
            seed,
            ..Scene::default()
        };
        Ok(Self {
            flight: Flight::new(scene, Mission::default()),
            state,
            readers,
            waypoints,
            counts,
            jobs: 0,
            patience: 0,
            is_mission_due: false,
            number: 0,
            refused: 0,
        })
    }

    /// One job: takes way-points, lets the world go on, and publishes the state.
    fn job(&mut self) {
        for _ in 0..WAYPOINTS_MAX {
            // One of a wrong size is counted by the port.
            let Ok(Some((waypoint, _))) = self.waypoints.receive(Wait::Poll) else {
                break;
            };
            self.take(&waypoint);
        }
        self.order();
        if self.flight.world.crash().is_none() {
            (0..STEPS).for_each(|_| self.flight.step());
        } else {
            self.counts.crashed.store(1, Relaxed);
        }
        self.counts.steps.store(self.flight.world.steps(), Relaxed);
        self.jobs += 1;
        if self.jobs.is_multiple_of(STATE_JOBS) {
            let told = self.told();
            // Counted by the port.
            let _lost = self.state.send(self.readers, Priority::NORMAL, &told);
        }
    }

    fn take(&mut self, waypoint: &WayPoint) {
        let [east, north, up] = waypoint.position;
        let (least, most) = HEIGHTS;
        let is_near = east.abs() <= AWAY_MAX && north.abs() <= AWAY_MAX;
        if !is_near || !(least..=most).contains(&up) {
            self.refused = self.refused.saturating_add(1);
            return;
        }
        self.counts.taken.fetch_add(1, Relaxed);
        self.number = waypoint.number as u32;
        self.flight.mission = Mission {
            count: self.flight.mission.count.wrapping_add(1),
            ..Mission::new(&[vector(east, north, up)])
        };
        self.is_mission_due = true;
        self.patience = 0;
    }

    /// Gives the order that leads to where the craft is to be, once in a while until it is obeyed.
    fn order(&mut self) {
        let steps = self.flight.world.steps();
        let is_settled = steps as f64 * STEP_SECONDS > SETTLE_SECONDS;
        if steps < self.patience || !is_settled {
            return;
        }
        let order = match self.flight.status.phase {
            Phase::Disarmed => Order::Arm,
            Phase::Armed => Order::TakeOff,
            Phase::Hold | Phase::Mission if self.is_mission_due => Order::Mission,
            _ => return,
        };
        let companion = &mut self.flight.companion;
        companion.order_count = companion.order_count.wrapping_add(1);
        companion.order = order;
        self.patience = steps + ORDER_STEPS;
        if order == Order::Mission {
            // The navigator refuses it in neither phase.
            self.is_mission_due = false;
        }
    }

    fn told(&self) -> CraftState {
        let status = &self.flight.status;
        let phase = match status.phase {
            _ if self.flight.world.crash().is_some() => 6,
            Phase::Disarmed => 0,
            Phase::Armed => 1,
            Phase::TakeOff => 2,
            Phase::Hold => 3,
            Phase::Mission => 4,
            Phase::Landing => 5,
        };
        let list = |one: Vector| [one.x, one.y, one.z];
        CraftState {
            time_us: status.time_us,
            position: list(status.position),
            velocity: list(status.velocity),
            target: list(status.target),
            waypoint: self.number,
            refused: self.refused,
            phase,
            alarms: status.alarms.names().count() as u32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tautline::bus_neighbour;

    #[test]
    fn a_craft_takes_off_flies_to_way_points_and_refuses_those_that_are_none() {
        let files = tautline_state::TemporaryDirectory::make("taut-craft-test").unwrap();
        let bus = files.path().join("bus").display().to_string();
        let open = |name: &str| {
            let config = NodeConfig::vbus(BusConfig::new(&bus, name.parse().unwrap()));
            let other = if name == "craft" { "desk" } else { "craft" };
            let neighbour = bus_neighbour(other.parse().unwrap());
            Node::open(config.with_neighbour(neighbour).unwrap()).unwrap()
        };
        let (craft_node, desk_node) = (open("craft"), open("desk"));
        let mut craft = Craft::open(&craft_node, 1, Arc::default()).unwrap();
        let mut desk: TypedQueuingPort<WayPoint> = desk_node.queuing(1).typed().open().unwrap();
        let to = desk.destination("craft", WAYPOINT_PORT).unwrap();
        // As fast as it goes: jobs do not look at the clock.
        (0..1_000).for_each(|_| craft.job());
        assert_eq!(craft.told().phase, 3, "it waits in the air");
        for (number, position) in [
            (7, [3.0, -2.0, 4.0]),
            (8, [f64::NAN, 0.0, 2.0]),
            (9, [1e9, 0.0, 2.0]),
            (10, [0.0, 0.0, -1.0]),
        ] {
            let waypoint = WayPoint { position, number };
            desk.send(to, Priority::NORMAL, &waypoint).unwrap();
        }
        (0..1_600).for_each(|_| craft.job());
        let told = craft.told();
        assert_eq!((told.waypoint, told.refused, told.phase), (7, 3, 3));
        let away = (vector(3.0, -2.0, 4.0)
            - vector(told.position[0], told.position[1], told.position[2]))
        .length();
        assert!(away < 0.8, "{away} m beside the way-point: {told:?}");
    }
}
