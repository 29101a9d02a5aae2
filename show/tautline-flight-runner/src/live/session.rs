//! Live flights, one after the other: a craft that has landed or crashed is followed by the next one.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tautline_flight::message::{Order, Phase};
use tautline_tasks::partition::Partition;
use tautline_testbed::interrupt::interrupted;
use tautline_testbed::sys::monotonic_ns;

use super::loads::{LEVELS, Loads};
use super::view::Watcher;
use super::{Press, Shared, Target};
use crate::cable::{Cable, Control};
use crate::child::{Said, Started};
use crate::course::Course;
use crate::home::Home;
use crate::part::Part;
use crate::record::{Variant, WorldRecord};
use crate::show::{Controller, Heart, PATIENCE, Settings, ShowError, bus, line, partition};
use crate::soft::{Soft, SoftPart, SoftSettings};
use crate::wire::Means;
use crate::world::{Wish, WorldSettings};

/// Time between two looks at the bus: each picture is seen.
const LOOK: Duration = Duration::from_millis(30);
/// Time from the end of a flight to the next one: the page says how it ended.
const PAUSE: Duration = Duration::from_secs(3);
/// Time between two orders to fly the next lap, in which the controller obeys.
const LAP_PAUSE: Duration = Duration::from_secs(1);
/// Time that a controller has for its end, and a craft without one for its fall.
const END_PATIENCE: Duration = Duration::from_secs(5);
/// Longest flight, seconds: longer than any battery.
const SECONDS_MAX: f64 = 86_400.0;
/// Time for which a runaway computes.
const RUNAWAY_SECONDS: f64 = 2.0;
/// Events that the page shows.
const EVENTS_MAX: usize = 14;

/// Live flights.
pub(super) struct Session {
    settings: Settings,
    variant: Variant,
    shared: std::sync::Arc<Shared>,
    presses: Receiver<Press>,
    // Before the partition: it waits until the partition is empty.
    loads: Loads,
    /// The second node, or the reason why there is none.
    cable: Result<Cable, String>,
    _home: Home,
    partition: Option<Partition>,
    runaway: Option<Started>,
    gusts: f64,
    flight: u32,
    laps: u32,
    events: VecDeque<Value>,
}

/// One flight under way.
struct Flying {
    world: Started,
    controller: Controller,
    soft: Soft,
    watcher: Watcher,
    start_ns: u64,
    restarts: usize,
    /// Moment at which the controller was killed.
    killed: Option<Instant>,
    next_lap: Instant,
    alarms: Vec<&'static str>,
    _heart: Heart,
    _home: Home,
}

impl Session {
    pub(super) fn new(
        settings: &Settings,
        variant: Variant,
        shared: &std::sync::Arc<Shared>,
        presses: Receiver<Press>,
    ) -> Result<Session, ShowError> {
        let home = Home::make()?;
        // First: the world and the loads are to be outside.
        let partition = partition(settings, variant)?;
        // Before any load: its processes last for all flights. Without it, the world has a pilot of its own.
        let cable = Cable::lay(settings, variant, &home.path);
        let mut session = Session {
            loads: Loads::new(settings, &home.path),
            cable,
            settings: settings.clone(),
            variant,
            shared: shared.clone(),
            presses,
            _home: home,
            partition,
            runaway: None,
            gusts: 0.0,
            flight: 0,
            laps: 0,
            events: VecDeque::new(),
        };
        if let Err(reason) = &session.cable {
            session.note(0.0, &format!("no second node: {reason}"));
        }
        Ok(session)
    }

    /// Flies until a signal comes.
    pub(super) fn run(mut self) -> Result<(), ShowError> {
        let flown = self.fly_on();
        drop(self.loads);
        drop(self.cable);
        drop(self.runaway);
        if let Some(partition) = self.partition {
            partition.put_back()?;
        }
        match flown {
            Err(ShowError::Interrupted(_)) => Ok(()),
            flown => flown,
        }
    }

    fn fly_on(&mut self) -> Result<(), ShowError> {
        loop {
            self.flight += 1;
            self.laps = 0;
            let mut flying = self.start()?;
            let end = self.follow(&mut flying)?;
            self.note(0.0, &format!("flight {}: {end}", self.flight));
            let mut document = self.document(&flying);
            document["ended"] = end.into();
            self.shared.show(document);
            flying.end()?;
            if let Ok(cable) = &mut self.cable {
                cable.land();
            }
            self.pause()?;
        }
    }

    fn start(&mut self) -> Result<Flying, ShowError> {
        let home = Home::make()?;
        let means = Means::Bus(bus(&home.path));
        let settings = &self.settings;
        let seed = settings.seed + u64::from(self.flight) - 1;
        let soft = Soft::start(SoftSettings {
            part_command: settings.part_command.clone(),
            means: means.clone(),
            seed,
            home: home.path.clone(),
            recordings: None,
            kills: &[],
        });
        let world = Part::World(WorldSettings {
            means: means.clone(),
            seed,
            course: Course::Laps,
            has_pilot: self.cable.is_ok(),
            seconds_max: SECONDS_MAX,
        });
        let mut world = Started::part(&settings.part_command, &world)?;
        if let Ok(cable) = &mut self.cable {
            cable.wait_for_control()?;
            cable.fly(&means, Course::Laps, seed, true)?;
        }
        let (variant, partition) = (self.variant, self.partition.as_ref());
        let controller = Controller::start(settings, variant, Course::Laps, &means, partition)?;
        let watcher = Watcher::new(&bus(&home.path));
        let mission = (variant == Variant::Guest).then(|| Course::Laps.mission());
        let heart = Heart::start(means, mission);
        let start = line(&world, PATIENCE)?.and_then(|line| line.parse().ok());
        let start_ns = start.ok_or(ShowError::NoReport { part: "world" })?;
        soft.begin(start_ns);
        if let Ok(cable) = &mut self.cable {
            cable.begin(start_ns);
        }
        wish(&mut world, Wish::Gusts(self.gusts));
        Ok(Flying {
            world,
            controller,
            soft,
            watcher,
            start_ns,
            restarts: 0,
            killed: None,
            next_lap: Instant::now(),
            alarms: Vec::new(),
            _heart: heart,
            _home: home,
        })
    }

    /// Follows a flight to its end, and says how it ended.
    fn follow(&mut self, flying: &mut Flying) -> Result<String, ShowError> {
        loop {
            match self.presses.recv_timeout(LOOK) {
                Ok(press) => self.obey(press, Some(flying)),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok("nobody looks".to_owned()),
            }
            if let Some(signal) = interrupted() {
                return Err(ShowError::Interrupted(signal));
            }
            match flying.world.said() {
                Said::Line(record) => {
                    let record: Option<WorldRecord> = serde_json::from_str(&record).ok();
                    let record = record.ok_or(ShowError::NoReport { part: "world" })?;
                    return Ok(outcome(&record));
                }
                Said::Ended => return Err(ShowError::NoReport { part: "world" }),
                Said::Nothing | Said::Interrupted(_) => {}
            }
            if flying.killed.is_some_and(|at| at.elapsed() > END_PATIENCE) {
                return Ok("on the ground without a controller".to_owned());
            }
            if let Some(picture) = flying.watcher.look() {
                self.shared.show_picture(picture);
            }
            self.tend_cable(flying.at())?;
            self.take_note(flying);
            let document = self.document(flying);
            self.shared.show(document);
        }
    }

    /// Starts a successor of the control process when it is time, and fills the cable beside any load.
    fn tend_cable(&mut self, at: f64) -> Result<(), ShowError> {
        let is_loaded = self.loads.level() > 0;
        let Ok(cable) = &mut self.cable else {
            return Ok(());
        };
        cable.fill(is_loaded)?;
        match cable.tend()? {
            Some(Control::Serves) => self.note(at, "the control process's successor serves"),
            Some(Control::Dead) => self.note(at, "the control process has ended"),
            Some(Control::Begins) | None => {}
        }
        Ok(())
    }

    /// The pilot's order.
    fn order(&mut self, flying: &mut Flying, order: Order) {
        match &mut self.cable {
            Ok(cable) => cable.order(order),
            Err(_) => wish(&mut flying.world, Wish::Order(order)),
        }
    }

    /// Tells what has changed, and orders the next lap.
    fn take_note(&mut self, flying: &mut Flying) {
        let at = flying.at();
        let status = flying.watcher.status;
        for name in status.alarms.names() {
            if !flying.alarms.contains(&name) {
                self.note(at, &format!("the controller notices: {name}"));
            }
        }
        flying.alarms = status.alarms.names().collect();
        let restarts = flying.soft.restarts();
        for restart in &restarts[flying.restarts.min(restarts.len())..] {
            self.note(
                restart.at,
                &format!("{} started again", restart.which.name()),
            );
        }
        flying.restarts = restarts.len();
        if let Some(complaint) = self.loads.complaint() {
            self.note(at, &complaint);
        }
        let has_flown_lap = status.waypoint as usize >= Course::Laps.mission().points().len();
        if status.phase == Phase::Hold && has_flown_lap && flying.next_lap <= Instant::now() {
            flying.next_lap = Instant::now() + LAP_PAUSE;
            self.laps += 1;
            self.note(at, &format!("lap {} flown", self.laps));
            self.order(flying, Order::Mission);
        }
    }

    /// Does what was pressed; without a craft in the air, as far as that is possible.
    fn obey(&mut self, press: Press, flying: Option<&mut Flying>) {
        let at = flying.as_ref().map_or(0.0, |flying| flying.at());
        match (press, flying) {
            (Press::Load(level), _) => {
                self.loads.set(level);
                self.note(at, &format!("load wanted: {}", LEVELS[level]));
            }
            (Press::Gusts(speed), flying) => {
                self.gusts = speed;
                self.note(at, &format!("gusts of {speed:.1} m/s"));
                if let Some(flying) = flying {
                    wish(&mut flying.world, Wish::Gusts(speed));
                }
            }
            (Press::Runaway, _) => {
                let part = Part::Runaway(RUNAWAY_SECONDS);
                match Started::part(&self.settings.part_command, &part) {
                    Ok(runaway) => self.runaway = Some(runaway),
                    Err(error) => self.note(at, &format!("no runaway: {error}")),
                }
                self.note(at, "a task at SCHED_FIFO 99 runs away for 2 s");
            }
            (Press::Land, Some(flying)) => {
                self.order(flying, Order::Land);
                self.note(at, "the pilot has it land");
            }
            (Press::Kill(Target::ControlProcess), _) => match &mut self.cable {
                Ok(cable) => {
                    cable.kill_control();
                    self.note(at, "the control process of the network killed");
                }
                Err(_) => self.note(at, "there is no second node, and no control process"),
            },
            (Press::Kill(target), Some(flying)) => {
                let name = flying.kill(target, self.variant);
                self.note(at, &format!("{name} killed"));
            }
            (Press::Land | Press::Kill(_), None) => self.note(at, "nothing is in the air"),
        }
    }

    /// Waits for the next flight.
    fn pause(&mut self) -> Result<(), ShowError> {
        let end = Instant::now() + PAUSE;
        while Instant::now() < end {
            if let Some(signal) = interrupted() {
                return Err(ShowError::Interrupted(signal));
            }
            if let Ok(press) = self.presses.recv_timeout(LOOK) {
                self.obey(press, None);
            }
            self.tend_cable(0.0)?;
        }
        Ok(())
    }

    fn note(&mut self, at: f64, text: &str) {
        self.events.push_front(json!({ "at": at, "text": text }));
        self.events.truncate(EVENTS_MAX);
    }

    fn document(&mut self, flying: &Flying) -> Value {
        let mut document = flying.watcher.document();
        document["flight"] = self.flight.into();
        document["laps"] = self.laps.into();
        document["monitor"] = flying.controller.monitor.clone().into();
        document["loops"] = flying.watcher.loops().into();
        document["level"] = self.loads.level().into();
        document["gusts"] = self.gusts.into();
        document["events"] = self.events.iter().cloned().collect();
        document["remote"] = self.cable.as_mut().map_or(Value::Null, remote);
        document
    }
}

impl Flying {
    /// Seconds of the world.
    fn at(&self) -> f64 {
        monotonic_ns().saturating_sub(self.start_ns) as f64 * 1e-9
    }

    /// Kills a process, and says which.
    fn kill(&mut self, target: Target, variant: Variant) -> &'static str {
        match (target, variant) {
            (Target::Video, _) => {
                self.soft.kill(SoftPart::Video);
                "the video process"
            }
            (Target::Mapping, _) => {
                self.soft.kill(SoftPart::Mapping);
                "the mapping"
            }
            // Not of this flight alone.
            (Target::ControlProcess, _) => "nobody",
            (Target::Controller, _) => {
                self.controller.process.kill();
                self.killed.get_or_insert_with(Instant::now);
                match variant {
                    Variant::Guest => "the guest",
                    _ => "the flight controller",
                }
            }
        }
    }

    /// Ends all processes.
    fn end(mut self) -> Result<(), ShowError> {
        drop(self.world);
        drop(self.controller.process.input());
        // One that was killed has nothing to say.
        let end = self.controller.process.line(END_PATIENCE);
        if let Said::Interrupted(signal) = end {
            return Err(ShowError::Interrupted(signal));
        }
        drop(self.controller);
        self.soft.stop()?;
        Ok(())
    }
}

/// Frames of the remote control as the page shows them.
fn remote(cable: &mut Cable) -> Value {
    let reception = cable.reception();
    let control = match cable.control() {
        Control::Serves => "serves",
        Control::Dead => "is dead",
        Control::Begins => "starts",
    };
    let silent_ns = match reception.received {
        0 => 0,
        _ => monotonic_ns().saturating_sub(reception.at_ns),
    };
    json!({
        "received": reception.received,
        "lost": reception.lost,
        "age_us": reception.age_ns / 1_000,
        "age_us_max": reception.age_ns_max / 1_000,
        "silent_ms": silent_ns / 1_000_000,
        "control": control,
    })
}

/// Tells the world a wish. A world that has ended tells so itself.
fn wish(world: &mut Started, wish: Wish) {
    if let Ok(text) = serde_json::to_string(&wish) {
        world.tell(&text);
    }
}

fn outcome(record: &WorldRecord) -> String {
    match (record.crash, record.landed_at) {
        (Some((at, speed, _)), _) => {
            let place = if record.has_hit_wall {
                "the wall"
            } else {
                "the ground"
            };
            format!("crashed on {place} at {at:.1} s, {speed:.1} m/s")
        }
        (None, Some(at)) => format!("landed at {at:.1} s"),
        (None, None) => "the battery is empty".to_owned(),
    }
}
