//! A thread below all tasks that keeps their CPU from idling around the releases.
//!
//! Leaving an idle state takes most of a wake-up: on hardware until caches and clocks are back, in a virtual machine
//! until the host runs the CPU again. This thread has SCHED_IDLE. It sleeps until shortly before the next release,
//! spins until then, and wakes the task. Whatever else is ready preempts it at once; no task is charged for it. Where
//! other programs keep the CPU busy, it does not run, and the timer wakes the task. It spins for a tenth of the CPU at
//! most ([`tautline_awake::cpu::SHARE_PERCENT`]).

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::Duration;

use tautline_awake::{cpu, thread};
use tautline_state::policy::set_policy;

use crate::figures::{instant, ns};
use crate::options::Options;
use crate::shared::Shared;
use crate::sys;

/// Longest sleep while no release is known: every task is inside a job, or stopped. Lower: more wake-ups for nothing.
/// Higher: the first releases afterwards are late.
const LOOK: Duration = Duration::from_millis(10);

/// Starts the thread. `None` where the CPU of the tasks is not known, or a cgroup limits the process's time.
pub(crate) fn start(shared: &Arc<Shared>, options: &Options) -> io::Result<Option<JoinHandle<()>>> {
    let Some(cpu) = options
        .cpu
        .filter(|_| options.real_time && !cpu::is_limited())
    else {
        return Ok(None);
    };
    let shared = shared.clone();
    let builder = std::thread::Builder::new().name("taut-idle".to_owned());
    let started = builder.spawn(move || {
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
        let is_below = set_policy(sys::own_number(), libc::SCHED_IDLE, 0).is_ok();
        // Anywhere else it would keep another CPU awake.
        if is_below && sys::stay_on(cpu) {
            keep_awake(&shared);
        }
    });
    started.map(Some)
}

fn keep_awake(shared: &Shared) {
    while !shared.is_stopping() {
        let seen = shared.idle.value();
        let now = sys::monotonic();
        let Some(release) = next_release(shared, now) else {
            shared.idle.wait(seen, Some(now + LOOK));
            continue;
        };
        let early = thread::waking(instant(release)).unwrap_or_default();
        let due = release.saturating_sub(early);
        if now < due {
            shared.idle.wait(seen, Some(due));
            if shared.idle.value() != seen || sys::monotonic() < due {
                continue;
            }
            thread::woke(instant(due), instant(sys::monotonic()));
        }
        if spin(shared, seen, release) {
            wake(shared, release);
        }
    }
}

/// Spins until a release; `false` if the releases have changed meanwhile.
fn spin(shared: &Shared, seen: u32, release: Duration) -> bool {
    let began = sys::monotonic();
    while sys::monotonic() < release && shared.idle.value() == seen {
        std::hint::spin_loop();
    }
    // From the release on, the tasks had the CPU.
    thread::spend(instant(began), instant(release.min(sys::monotonic())));
    shared.idle.value() == seen
}

/// Wakes the tasks that still sleep until this release: sooner than the timer, whose interrupt is on its way.
fn wake(shared: &Shared, release: Duration) {
    let tasks = shared.releases_ns.iter().zip(&shared.signals);
    for (told, signal) in tasks {
        if told.load(Relaxed) == ns(release) {
            signal.wake();
        }
    }
}

/// The next release of a task that sleeps. This thread has the CPU when no task is ready, so each has told its own.
fn next_release(shared: &Shared, now: Duration) -> Option<Duration> {
    // Pairs with the store before the sleep; a stale value costs one wake-up.
    let told = shared
        .releases_ns
        .iter()
        .map(|release| release.load(Relaxed));
    told.filter(|release| *release > ns(now))
        .min()
        .map(Duration::from_nanos)
}
