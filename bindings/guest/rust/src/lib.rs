//! Three tasks as a guest, declared and admitted as on Linux, and run by the guest's timer.
//!
//! `control` publishes the state of the guest on port 10, to port 20 of the node `viewer`. `orders` answers each
//! message to port 11 with the same bytes. `log`, the least urgent, gives the guest's sign of life. The order "beyond"
//! makes the next job of `control` compute until `log` has had its turn: the job uses up its budget, and goes on below
//! `log`.

#![no_std]

extern crate alloc;

use alloc::vec;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;

use tautline_guest_kit::{
    Activation, Executive, GuestError, Job, Task, TaskSet, fail, join, println, with_monitor,
};

tautline_guest_kit::program!(main);

static CONTROL_JOBS: AtomicU32 = AtomicU32::new(0);
static LOG_JOBS: AtomicU32 = AtomicU32::new(0);
static ORDERS: AtomicU32 = AtomicU32::new(0);
/// Whether the next job of `control` is to use up its budget.
static IS_TO_EXCEED: AtomicU32 = AtomicU32::new(0);

fn main() -> Result<(), GuestError> {
    let window = join()?;
    let (mut state, mut orders) = (window.port(10)?, window.port(11)?);
    let Some(viewer) = window.peer("viewer", 20) else {
        fail(format_args!("Linux names no peer `viewer`"));
    };

    while !(state.is_open() && orders.is_open()) {}

    let ms = Duration::from_millis;
    let mut answer = Task::periodic("orders", ms(20), ms(5));
    answer.activation = Activation::Message {
        port: "orders".into(),
    };
    let mut control = Task::periodic("control", ms(50), ms(10));
    control.budget = Some(ms(20));
    let log = Task::periodic("log", ms(200), ms(20));
    let mut executive = Executive::new(TaskSet::new(vec![answer, control, log])?)?;

    executive.task("orders", move |_: &Job| {
        let mut text = [0; 64];
        while let Some((from, priority, length)) = orders.take(&mut text) {
            if text.starts_with(b"beyond") {
                IS_TO_EXCEED.store(1, Relaxed);
            }
            ORDERS.fetch_add(1, Relaxed);
            orders.send(from, priority, &text[..length]);
        }
    })?;
    executive.task("control", move |_: &Job| {
        if IS_TO_EXCEED.swap(0, Relaxed) == 1 {
            let before = LOG_JOBS.load(Relaxed);
            while LOG_JOBS.load(Relaxed) == before {}
        }
        let jobs = CONTROL_JOBS.fetch_add(1, Relaxed) + 1;
        let faults = with_monitor(|monitor| monitor.total()).unwrap_or(0);
        let words = [
            jobs,
            LOG_JOBS.load(Relaxed),
            ORDERS.load(Relaxed),
            faults as u32,
        ];
        let mut bytes = [0; 16];
        for (place, word) in bytes.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        state.send(viewer, 5, &bytes);
    })?;
    executive.task("log", move |_: &Job| {
        LOG_JOBS.fetch_add(1, Relaxed);
        window.beat();
    })?;
    println!("guest: three tasks");
    executive.run()
}
