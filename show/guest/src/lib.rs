//! The flight controller as a guest: the loops of `tautline-flight` as tasks of the executive, on a processor of their
//! own.
//!
//! Sensors, signs of life, way-points and sightings come through ports of the window; motor speeds, the state of the
//! flight and the count of missed deadlines leave through others. Their numbers are those of the same streams on Linux
//! (`tautline_flight::loops::Stream`). Values between the loops stay in the guest. `taut flight` starts it.

#![no_std]

extern crate alloc;

use alloc::vec::Vec;
use core::marker::PhantomData;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tautline_flight::loops::{
    self, Deadlines, Loop, NavigatorInputs, Reads, Stream, Tally, Writes,
};
use tautline_flight::message::{
    Attitude, AttitudeTarget, MESSAGE_BYTES_MAX, RateTarget, Turned, decode, encode,
};
use tautline_flight::world::Craft;
use tautline_guest_kit::{
    Address, Executive, GuestError, Job, OverrunPolicy, Port, SharedValue, Task, TaskSet, Window,
    fail, join, now, println,
};

tautline_guest_kit::program!(main);

/// Worst cases that are declared, the fastest loop first.
const WORST_CASES: [Duration; 3] = [
    Duration::from_micros(300),
    Duration::from_micros(300),
    Duration::from_micros(1_000),
];
/// Budget of the navigator: a job that takes longer goes on below the other loops.
const NAVIGATOR_BUDGET: Duration = Duration::from_millis(2);
/// Everything of the controller is urgent.
const PRIORITY: u8 = 7;

// Values between the loops.
static TURNED: Between<Turned> = Between::new();
static RATE_TARGET: Between<RateTarget> = Between::new();
static ATTITUDE: Between<Attitude> = Between::new();
static ATTITUDE_TARGET: Between<AttitudeTarget> = Between::new();

/// Deadlines of each loop so far.
static TALLIES: [SharedValue<Option<Tally>>; 3] = [const { SharedValue::new(None) }; 3];
/// Jobs of the rate loop without a new value of the inertial units.
static STALE_INPUTS: AtomicU64 = AtomicU64::new(0);

fn main() -> Result<(), GuestError> {
    let craft = Craft::HUMMINGBIRD;
    let window = join()?;
    let mut rate = loops::rate(
        craft,
        Inbox::open(&window, Stream::Imu)?,
        &RATE_TARGET,
        Outbox::open(&window, Stream::Motors)?,
        &TURNED,
    );
    let mut attitude = loops::attitude(&TURNED, &ATTITUDE_TARGET, &RATE_TARGET, &ATTITUDE);
    let inputs = NavigatorInputs {
        sensors: Inbox::open(&window, Stream::Sensors)?,
        attitude: &ATTITUDE,
        companion: Inbox::open(&window, Stream::Companion)?,
        mission: Inbox::open(&window, Stream::Mission)?,
        sighting: Inbox::open(&window, Stream::Sighting)?,
    };
    let to_others = (
        Outbox::open(&window, Stream::Status)?,
        Outbox::open(&window, Stream::Telemetry)?,
    );
    let mut navigator = loops::navigator(craft, inputs, &ATTITUDE_TARGET, to_others);
    let mut deadlines = Outbox::open(&window, Stream::Deadlines)?;

    let tasks: Vec<Task> = Loop::ALL
        .iter()
        .zip(WORST_CASES)
        .map(|(which, worst_case)| task(*which, worst_case))
        .collect();
    let mut executive = Executive::new(TaskSet::new(tasks)?)?;
    run(&mut executive, Loop::Rate, move |seconds| {
        if !rate(seconds) {
            STALE_INPUTS.fetch_add(1, Relaxed);
        }
    })?;
    run(&mut executive, Loop::Attitude, move |seconds| {
        attitude(seconds)
    })?;
    let mut count = 0;
    run(&mut executive, Loop::Navigator, move |seconds| {
        navigator(seconds);
        window.beat();
        count += 1;
        deadlines.send(&Deadlines {
            count,
            loops: TALLIES
                .each_ref()
                .map(|tally| tally.read().unwrap_or_default()),
            stale_inputs: STALE_INPUTS.load(Relaxed),
        });
    })?;
    println!("guest: a flight controller");
    executive.run()
}

fn task(which: Loop, worst_case: Duration) -> Task {
    let mut task = Task::periodic(which.name(), which.period(), worst_case);
    task.overrun = OverrunPolicy::Skip;
    if which == Loop::Navigator {
        task.budget = Some(NAVIGATOR_BUDGET);
    }
    task
}

/// Makes a loop the code of its task, and counts its deadlines.
fn run(
    executive: &mut Executive,
    which: Loop,
    mut step: impl FnMut(f64) + Send + 'static,
) -> Result<(), GuestError> {
    let mut tally = Tally::default();
    executive.task(which.name(), move |job: &Job| {
        let passed = tally.begin(which, job.number);
        step(passed as f64 * which.period().as_secs_f64());
        let response = now().saturating_sub(job.release);
        tally.end(which, response.as_nanos() as u64);
        TALLIES[which.index()].write(Some(tally));
    })
}

/// Reading end of a stream from Linux.
struct Inbox<M> {
    port: Port<'static>,
    value: M,
}

impl<M: Default> Inbox<M> {
    fn open(window: &Window<'static>, stream: Stream) -> Result<Inbox<M>, GuestError> {
        Ok(Inbox {
            port: window.port(stream.number())?,
            value: M::default(),
        })
    }
}

impl<M: Copy + DeserializeOwned> Reads<M> for Inbox<M> {
    fn newest(&mut self) -> M {
        if let Some(value) = self.port.receive().and_then(|one| decode(one.payload)) {
            self.value = value;
        }
        self.value
    }
}

/// Writing end of a stream to Linux.
struct Outbox<M> {
    port: Port<'static>,
    to: Address,
    buffer: [u8; MESSAGE_BYTES_MAX],
    values: PhantomData<fn(M)>,
}

impl<M> Outbox<M> {
    fn open(window: &Window<'static>, stream: Stream) -> Result<Outbox<M>, GuestError> {
        let reader = stream.reader().name();
        let Some(to) = window.peer(reader, stream.number()) else {
            fail(format_args!("Linux names no peer `{reader}`"));
        };
        Ok(Outbox {
            port: window.port(stream.writers_number())?,
            to,
            buffer: [0; MESSAGE_BYTES_MAX],
            values: PhantomData,
        })
    }
}

impl<M: Serialize> Writes<M> for Outbox<M> {
    fn send(&mut self, value: &M) {
        if let Some(bytes) = encode(value, &mut self.buffer) {
            self.port.send(self.to, PRIORITY, bytes);
        }
    }
}

/// A stream between two loops.
struct Between<M>(SharedValue<Option<M>>);

impl<M: Copy> Between<M> {
    const fn new() -> Between<M> {
        Between(SharedValue::new(None))
    }
}

impl<M: Copy + Default> Reads<M> for &Between<M> {
    fn newest(&mut self) -> M {
        self.0.read().unwrap_or_default()
    }
}

impl<M: Copy> Writes<M> for &Between<M> {
    fn send(&mut self, value: &M) {
        self.0.write(Some(*value));
    }
}
