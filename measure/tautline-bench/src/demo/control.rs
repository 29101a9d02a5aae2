//! The loop itself: what the motor's thread and the controller's thread do, turn by turn.
//!
//! The two sides never speak about the schedule: both read it off the same clock. A turn begins and
//! ends with a pause in which nothing is measured, so that neither meets the other's old messages.

use std::collections::VecDeque;
use std::io;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tautline_report::Summary;
use tautline_testbed::{child, interrupt};

use super::channel::{Channel, Way};
use super::motor::{self, COMMAND_BYTES, Command, Motor, STATE_BYTES, State};
use super::{DemoError, LOOK_AHEAD, PERIOD, Row};

/// Cycles at the start of a turn that are not counted: caches were the other ways' before.
pub(super) const WARM_UP_CYCLES: u64 = 5;
/// Pause at the start of a turn, for the controller to be there first.
const LEAD: Duration = Duration::from_millis(3);
/// Pause at the end of a turn, for late commands to be counted.
const TRAIL: Duration = Duration::from_millis(12);
/// States that wait for their command at most. More than a turn has cycles.
const PENDING_MAX: usize = 512;

/// Which way has which time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Schedule {
    pub(super) start: Instant,
    pub(super) slice: Duration,
    /// Turns of each way.
    pub(super) turns: u32,
}

/// One turn of a way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    pub(super) way: Way,
    begin: Instant,
    end: Instant,
}

impl Schedule {
    pub(super) fn total(&self) -> Duration {
        self.slice * self.turns * Way::ALL.len() as u32
    }

    /// All turns. The order moves on by one in each round, so that no way always follows the same other.
    fn turns(&self) -> impl Iterator<Item = Turn> + use<> {
        let schedule = *self;
        let ways = Way::ALL.len() as u32;
        (0..self.turns * ways).map(move |index| {
            let begin = schedule.start + schedule.slice * index;
            Turn {
                way: Way::ALL[((index + index / ways) % ways) as usize],
                begin,
                end: begin + schedule.slice,
            }
        })
    }

    /// The turn at a moment.
    pub(super) fn turn_at(&self, moment: Instant) -> Option<Turn> {
        self.turns()
            .find(|turn| (turn.begin..turn.end).contains(&moment))
    }
}

/// Where the two threads run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Placement {
    pub(super) motor_cpu: Option<usize>,
    pub(super) controller_cpu: Option<usize>,
    pub(super) fifo_priority: Option<u8>,
}

fn place(cpu: Option<usize>, fifo_priority: Option<u8>) -> io::Result<()> {
    if let Some(cpu) = cpu {
        child::pin(cpu)?;
    }
    if let Some(priority) = fifo_priority {
        child::schedule_fifo(priority)?;
    }
    Ok(())
}

fn sleep_until(moment: Instant) {
    thread::sleep(moment.saturating_duration_since(Instant::now()));
}

fn failed(way: Way) -> impl Fn(io::Error) -> DemoError {
    move |source| DemoError::Way { way, source }
}

/// Serves all turns as the controller.
pub(super) fn controller_side(
    mut channels: Vec<Channel>,
    schedule: &Schedule,
    placement: Placement,
) -> Result<(), DemoError> {
    place(placement.controller_cpu, placement.fifo_priority)?;
    for turn in schedule.turns() {
        sleep_until(turn.begin);
        if interrupt::interrupted().is_some() {
            return Ok(());
        }
        control(&mut channels[turn.way as usize], &turn).map_err(failed(turn.way))?;
    }
    Ok(())
}

fn control(channel: &mut Channel, turn: &Turn) -> io::Result<()> {
    let mut bytes = [0; STATE_BYTES];
    // Its end is in the trail: the motor has stopped sending, and still listens.
    let end = turn.end - TRAIL / 4;
    while channel.receive(end, &mut bytes)? {
        let arrived = Instant::now();
        if let Some(state) = State::from_bytes(&bytes) {
            channel.send(&motor::control(&state).to_bytes())?;
        }
        // A blocked receiver sleeps by itself.
        if turn.way.spins() {
            sleep_until((arrived + PERIOD - LOOK_AHEAD).min(end));
        }
    }
    Ok(())
}

/// Runs all turns as the motor, and measures.
pub(super) fn motor_side(
    channels: Vec<Channel>,
    schedule: &Schedule,
    placement: Placement,
    board: &Mutex<[(u64, u64, Summary); 4]>,
) -> Result<Vec<Row>, DemoError> {
    place(placement.motor_cpu, placement.fifo_priority)?;
    let mut loops: Vec<Loop> = channels
        .into_iter()
        .zip(Way::ALL)
        .map(|(channel, way)| Loop::new(channel, way))
        .collect();
    for turn in schedule.turns() {
        sleep_until(turn.begin);
        if interrupt::interrupted().is_some() {
            break;
        }
        let this = &mut loops[turn.way as usize];
        this.run(&turn).map_err(failed(turn.way))?;
        let so_far = (
            this.total.cycles,
            this.total.missed,
            this.total.histogram.summary(),
        );
        board.lock().unwrap_or_else(PoisonError::into_inner)[turn.way as usize] = so_far;
    }
    Ok(loops.into_iter().map(|one| one.total).collect())
}

/// The loop over one way. Takes all its memory at the start.
struct Loop {
    channel: Channel,
    motor: Motor,
    sequence: u64,
    /// States without a command, oldest first: number and time of sending.
    pending: VecDeque<(u64, Instant)>,
    counted: bool,
    turn: Row,
    total: Row,
}

impl Loop {
    fn new(channel: Channel, way: Way) -> Loop {
        Loop {
            channel,
            motor: Motor::default(),
            sequence: 0,
            pending: VecDeque::with_capacity(PENDING_MAX),
            counted: false,
            turn: Row::new(way),
            total: Row::new(way),
        }
    }

    fn run(&mut self, turn: &Turn) -> io::Result<()> {
        self.turn.clear();
        self.pending.clear();
        let last = turn.end - TRAIL - PERIOD;
        let mut due = turn.begin + LEAD;
        let mut cycles = 0;
        while due <= last {
            sleep_until(due);
            self.counted = cycles >= WARM_UP_CYCLES;
            self.cycle(due)?;
            (due, cycles) = (due + PERIOD, cycles + 1);
            // Cycles whose whole period has gone by could not begin: all of them are missed.
            let now = Instant::now();
            while due + PERIOD <= now && due <= last {
                self.counted = cycles >= WARM_UP_CYCLES;
                self.count_missed();
                (due, cycles) = (due + PERIOD, cycles + 1);
            }
        }
        let end = turn.end - TRAIL / 2;
        while !self.pending.is_empty() && self.receive(end)?.is_some() {}
        self.turn.lost += self.pending.len() as u64;
        self.total.add(&self.turn);
        Ok(())
    }

    fn count_missed(&mut self) {
        if self.counted {
            self.turn.cycles += 1;
            self.turn.missed += 1;
        }
    }

    /// One cycle, whose command must be there a period after `due`.
    fn cycle(&mut self, due: Instant) -> io::Result<()> {
        let deadline = due + PERIOD;
        self.sequence += 1;
        let state = State {
            sequence: self.sequence,
            sent_ns: tautline::now().as_nanos(),
            ..self.motor.step(PERIOD.as_secs_f64())
        };
        let sent = Instant::now();
        self.channel.send(&state.to_bytes())?;
        if self.counted && self.pending.len() < PENDING_MAX {
            self.pending.push_back((self.sequence, sent));
        }
        while let Some((command, at)) = self.receive(deadline)? {
            if command.sequence == self.sequence {
                if at > deadline {
                    break;
                }
                self.turn.cycles += u64::from(self.counted);
                return Ok(());
            }
        }
        self.count_missed();
        Ok(())
    }

    /// Takes a command, if one comes. It answers the state that it was computed from, and all older
    /// ones: the controller reads the newest state only.
    fn receive(&mut self, deadline: Instant) -> io::Result<Option<(Command, Instant)>> {
        let mut bytes = [0; COMMAND_BYTES];
        if !self.channel.receive(deadline, &mut bytes)? {
            return Ok(None);
        }
        let at = Instant::now();
        let command = Command::from_bytes(&bytes).unwrap_or_default();
        self.motor.command(&command);
        while let Some((_, sent)) = self
            .pending
            .front()
            .filter(|(sequence, _)| *sequence <= command.sequence)
        {
            self.turn.histogram.record_duration(at - *sent);
            self.pending.pop_front();
        }
        Ok(Some((command, at)))
    }
}
