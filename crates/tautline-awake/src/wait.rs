//! Waits that end awake: sleep until shortly before the expected arrival, look until it is there, sleep again.

use std::time::Duration;

use libc::{pollfd, sigset_t};
use tautline_proto::arrival::{Seen, Window};
use tautline_proto::time::Instant;

use crate::cpu::Looker;
use crate::flow::Flow;
use crate::raw::{self, Polled};
use crate::thread;

/// Shortest look. Lower: what it costs to begin one is more than it finds.
const LOOK_MIN: Duration = Duration::from_micros(3);

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// A descriptor has something, or an error: the ordinary call does not wait any more.
    Ready,
    /// Nothing is expected: wait as ever.
    Unknown,
    /// The deadline passed.
    TimedOut,
    /// A signal handler ran.
    Interrupted,
}

/// Waits for the descriptors of a list, of which `flows[i]` belongs to entry i, until one has something, no arrival is
/// expected any more, a signal came, or the deadline passed. `revents` of the entries are as the kernel left them.
///
/// `renumber` is called before each system call: it may enter other numbers for descriptors, and says whether it did.
///
/// Takes no time if no flow has a window.
pub fn until_ready(
    entries: &mut [pollfd],
    flows: &mut [Option<&mut Flow>],
    deadline: Option<Instant>,
    mask: *const sigset_t,
    mut renumber: impl FnMut(&mut [pollfd]) -> bool,
) -> Waited {
    let began = raw::now();
    let mut now = began;
    // Each round is a window that passed; a model whose arrivals do not come has none soon.
    loop {
        let Some((index, window)) = earliest(flows, now) else {
            return Waited::Unknown;
        };
        if deadline.is_some_and(|deadline| deadline <= window.from) {
            // The ordinary call waits for what is left.
            return Waited::Unknown;
        }
        let due = window.from;
        let slept = poll(entries, due, now, mask, &mut renumber);
        let woken = raw::now();
        match slept {
            Polled::Nothing if due > now => thread::woke(due, woken),
            Polled::Nothing => {}
            Polled::Ready => {
                let seen = if woken.saturating_duration_since(began) < LOOK_MIN {
                    Seen::Before
                } else {
                    Seen::Asleep
                };
                arrived(entries, flows, woken, seen);
                return Waited::Ready;
            }
            Polled::Interrupted => return Waited::Interrupted,
            Polled::Refused => return Waited::Unknown,
        }
        let end = deadline.map_or(window.until, |deadline| window.until.min(deadline));
        let looked = look(entries, woken, end, mask, &mut renumber);
        let (found, seen) = match looked {
            Some(found) => (found, Seen::Looking),
            None => {
                // Another thread looks on this CPU, or the CPU's share is spent: this arrival is slept for.
                let found = poll(entries, end, woken, mask, &mut renumber);
                (found, Seen::Asleep)
            }
        };
        now = raw::now();
        if seen == Seen::Looking {
            let time = now.saturating_duration_since(woken);
            if let Some(flow) = flows[index].as_mut() {
                flow.looked(time, found == Polled::Ready);
            }
        }
        match found {
            Polled::Ready => {
                arrived(entries, flows, now, seen);
                return Waited::Ready;
            }
            Polled::Interrupted => return Waited::Interrupted,
            Polled::Refused => return Waited::Unknown,
            Polled::Nothing if deadline.is_some_and(|deadline| deadline <= now) => {
                return Waited::TimedOut;
            }
            Polled::Nothing => {}
        }
    }
}

/// When the calling thread should be awake for the next arrival: the earliest window of all flows, and whose it is.
/// `None` if no arrival is expected for which looking pays, or the thread has no time left for it.
pub fn earliest(flows: &mut [Option<&mut Flow>], now: Instant) -> Option<(usize, Window)> {
    let longest = thread::available(now);
    if longest < LOOK_MIN {
        return None;
    }
    let waking = thread::waking(now);
    let windows = flows.iter_mut().enumerate().filter_map(|(index, flow)| {
        let window = flow.as_mut()?.window(now, waking, longest)?;
        Some((index, window))
    });
    let first = windows.min_by_key(|(_, window)| window.from)?;
    thread::begin();
    Some(first)
}

/// Looks until `until`, while this thread has its CPU's place. `None`: it does not get the place.
fn look(
    entries: &mut [pollfd],
    now: Instant,
    until: Instant,
    mask: *const sigset_t,
    renumber: &mut impl FnMut(&mut [pollfd]) -> bool,
) -> Option<Polled> {
    let looker = Looker::begin(now, until)?;
    let yields = thread::yields();
    loop {
        let found = poll(entries, Instant::ZERO, now, mask, renumber);
        if found != Polled::Nothing || !looker.goes_on(raw::now()) {
            return Some(found);
        }
        if yields {
            raw::yield_now();
        }
    }
}

/// Polls the list. A descriptor that was closed meanwhile is polled again under its other number, if it has one.
fn poll(
    entries: &mut [pollfd],
    end: Instant,
    now: Instant,
    mask: *const sigset_t,
    renumber: &mut impl FnMut(&mut [pollfd]) -> bool,
) -> Polled {
    let mut now = now;
    renumber(entries);
    loop {
        let found = raw::poll(entries, Some(end), now, mask);
        let is_closed = |entry: &pollfd| entry.revents & libc::POLLNVAL != 0;
        if found != Polled::Ready || !entries.iter().any(is_closed) || !renumber(entries) {
            return found;
        }
        now = raw::now();
    }
}

fn arrived(entries: &[pollfd], flows: &mut [Option<&mut Flow>], at: Instant, seen: Seen) {
    for (entry, flow) in entries.iter().zip(flows) {
        if let Some(flow) = flow
            && entry.revents & libc::POLLIN != 0
        {
            flow.arrived(at, seen);
        }
    }
}
