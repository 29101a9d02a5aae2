//! State of a waiting thread: its share, how long this machine takes to wake it up, and its settings.

use std::cell::Cell;
use std::time::Duration;

use tautline_proto::arrival::quantile::Quantile;
use tautline_proto::arrival::share::{SAVED_MAX, Share};
use tautline_proto::time::Instant;

use crate::cpu::{self, LOOK_MIN, SHARE_PERCENT};
use crate::raw;

/// Wake-up assumed before any was measured. Lower: the first predictions come too late. Higher: they cost more.
const WAKING_FIRST_NS: i64 = 60_000;
/// Bounds of what is allowed for a wake-up. Higher: a machine that stood still once makes threads spin for long.
const WAKING_NS: std::ops::RangeInclusive<i64> = 3_000..=200_000;
/// Waits after which the scheduling policy is read again: programs set it when they like.
const POLICY_EVERY: u32 = 256;

#[derive(Clone, Copy)]
struct Thread {
    share: Share,
    /// Short wake-ups, and nearly the longest ones.
    waking: [Quantile; 2],
    waits: u32,
    yields: bool,
    slice: bool,
}

thread_local! {
    static THREAD: Cell<Thread> = const { Cell::new(Thread {
        share: Share::new(SHARE_PERCENT),
        waking: [Quantile::new(50, WAKING_FIRST_NS), Quantile::new(999, WAKING_FIRST_NS)],
        waits: 0,
        yields: false,
        slice: false,
    }) };
}

fn with<T>(work: impl FnOnce(&mut Thread) -> T) -> T {
    THREAD.with(|place| {
        let mut thread = place.get();
        let result = work(&mut thread);
        place.set(thread);
        result
    })
}

/// A wait begins that may end awake: on the first one, the thread asks for what makes its wake-ups short.
pub(crate) fn begin() {
    with(|thread| {
        if thread.waits.is_multiple_of(POLICY_EVERY) {
            thread.slice = raw::prefer_latency();
            thread.yields = raw::is_real_time();
        }
        thread.waits = thread.waits.wrapping_add(1);
    });
}

/// Whether the thread has a real-time policy.
pub(crate) fn yields() -> bool {
    with(|thread| thread.yields)
}

/// Time to be allowed for a wake-up of this thread, which is to be awake at `at` itself. `None` if a share is spent.
pub fn waking(at: Instant) -> Option<Duration> {
    waking_for_look(at, Duration::ZERO, Duration::ZERO)
}

/// Time to be allowed for a wake-up of this thread, which is to look from `at` on for `usual`, and for `longest` at
/// most: that of nearly its longest wake-up, as far as the shares last for the longest look even after a short one.
/// `None` if they do not last for the usual one: what is saved serves a later look.
pub(crate) fn waking_for_look(at: Instant, usual: Duration, longest: Duration) -> Option<Duration> {
    let available = cpu::available(at);
    let waking = with(|thread| thread.waking.map(|waking| waking.value_ns()));
    let [short, long] = waking
        .map(|ns| Duration::from_nanos(ns.clamp(*WAKING_NS.start(), *WAKING_NS.end()) as u64));
    let needed = usual.clamp(LOOK_MIN, SAVED_MAX);
    (available >= needed).then(|| long.min(short + available.saturating_sub(longest)))
}

/// A timer that was set to `due` woke the thread at `now`.
pub fn woke(due: Instant, now: Instant) {
    let late = now.saturating_duration_since(due);
    let ns = late.as_nanos().min(10_000_000) as i64;
    with(|thread| thread.waking.iter_mut().for_each(|waking| waking.add(ns)));
}

/// For how long the thread may look at some time, now or later, whatever others do on its CPU.
pub(crate) fn available(at: Instant) -> Duration {
    let mut share = with(|thread| thread.share);
    share.available(at)
}

/// The thread has looked from `began` to `ended`.
pub fn spend(began: Instant, ended: Instant) {
    with(|thread| {
        thread.share.available(began);
        thread.share.spend(ended.saturating_duration_since(began));
    });
}

/// Settings of a thread that took effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settings {
    /// An ordinary policy, and no timer slack.
    Ordinary,
    /// A short slice besides.
    ShortSlice,
    /// A real-time policy, and no timer slack.
    RealTime,
}

impl Settings {
    /// All of them, by number.
    pub(crate) const ALL: [Self; 3] = [Self::Ordinary, Self::ShortSlice, Self::RealTime];
}

/// Settings of the calling thread.
pub fn settings() -> Settings {
    match with(|thread| (thread.yields, thread.slice)) {
        (true, _) => Settings::RealTime,
        (false, true) => Settings::ShortSlice,
        (false, false) => Settings::Ordinary,
    }
}

/// For a report.
impl std::fmt::Display for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::RealTime => "real-time policy, no timer slack",
            Self::ShortSlice => "ordinary policy, slice 0.1 ms, no timer slack",
            Self::Ordinary => "ordinary policy, no timer slack",
        })
    }
}
