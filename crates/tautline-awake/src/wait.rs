//! Waits that end awake: sleep until shortly before the expected arrival, look until it is there, sleep again.

use std::time::Duration;

use libc::{pollfd, sigset_t};
use tautline_proto::arrival::{Seen, Window};
use tautline_proto::time::Instant;

use crate::cpu::{LOOK_MIN, Looker};
use crate::flow::Flow;
use crate::raw::{self, Polled};
use crate::thread;

/// Looks at what lies beside the descriptors for each poll(2) of them. Lower: more system calls, which take longer than
/// the looks. Higher: what comes to a descriptor itself is found later, some 4 µs now.
const LOOKS_PER_POLL: u32 = 128;

/// An arrival that a thread waits for: how to sleep and to look for it.
pub trait Awaited {
    /// Result of finding it.
    type Found;
    /// Reason why waiting is over without it.
    type Stopped;

    /// The clock of the wait.
    fn now(&self) -> Instant;

    /// When to be awake for it; `None` if nothing is expected for which looking pays.
    fn window(&mut self, now: Instant) -> Option<Window>;

    /// Sleeps until then, or until it is there. Not at all if the time has passed.
    ///
    /// # Errors
    /// Waiting is over.
    fn sleep(&mut self, until: Instant, now: Instant)
    -> Result<Option<Self::Found>, Self::Stopped>;

    /// Looks for as long as the looker may.
    ///
    /// # Errors
    /// Waiting is over.
    fn look(&mut self, looker: &Looker, now: Instant)
    -> Result<Option<Self::Found>, Self::Stopped>;

    /// The thread looked from `began` to `ended`.
    fn looked(&mut self, began: Instant, ended: Instant, is_found: bool);

    /// It came.
    fn arrived(&mut self, seen: Seen, at: Instant);
}

/// How a wait for an expected arrival ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended<T> {
    /// It is there.
    Found(T),
    /// The deadline passed.
    TimedOut,
    /// Nothing is expected before the deadline any more. With the time.
    Unknown(Instant),
}

/// Sleeps until shortly before the next arrival is expected, looks while the window lasts, and so on with the next
/// window. Takes no time if there is none.
///
/// # Errors
/// Waiting is over.
pub fn until_found<A: Awaited>(
    awaited: &mut A,
    began: Instant,
    deadline: Instant,
) -> Result<Ended<A::Found>, A::Stopped> {
    let mut now = began;
    // Each round is a window that passed; a model whose arrivals do not come has none soon.
    while let Some(window) = awaited.window(now).filter(|window| window.from < deadline) {
        let slept = awaited.sleep(window.from, now)?;
        let woken = awaited.now();
        if window.from > now && woken >= window.from {
            // Also where the message is there by then: without those, the longest wake-ups would be missing.
            thread::woke(window.from, woken);
        }
        if let Some(found) = slept {
            let seen = match woken.saturating_duration_since(began) < LOOK_MIN {
                true => Seen::Before,
                false => Seen::Asleep,
            };
            awaited.arrived(seen, woken);
            return Ok(Ended::Found(found));
        }
        let end = window.until.min(deadline);
        now = woken;
        if let Some(looker) = Looker::begin(woken, end) {
            let found = awaited.look(&looker, woken);
            now = awaited.now();
            looker.end(now);
            let found = found?;
            awaited.looked(woken, now, found.is_some());
            if let Some(found) = found {
                awaited.arrived(Seen::Looking, now);
                return Ok(Ended::Found(found));
            }
        }
        if now < end {
            // Another thread looks on this CPU, or the CPU's share is spent: the rest of the window is slept. Looking
            // again whenever a little of the share is earned would be busy for longer than the share.
            let found = awaited.sleep(end, now)?;
            now = awaited.now();
            if let Some(found) = found {
                awaited.arrived(Seen::Asleep, now);
                return Ok(Ended::Found(found));
            }
        }
        if now >= deadline {
            return Ok(Ended::TimedOut);
        }
    }
    Ok(Ended::Unknown(now))
}

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

/// Work of a wait for a list of descriptors besides polling it.
pub trait Beside {
    /// Called before each system call: enters other numbers for descriptors, and says whether it did.
    fn renumber(&mut self, entries: &mut [pollfd]) -> bool;

    /// A look begins: whether arrivals may come to memory that is beside the descriptors.
    fn begin(&mut self) -> bool {
        false
    }

    /// Whether one is there.
    fn is_there(&self) -> bool {
        false
    }

    /// The look ends: whether one is there, which is entered in `revents`.
    fn end(&mut self, _entries: &mut [pollfd]) -> bool {
        false
    }
}

/// Nothing besides.
impl Beside for () {
    fn renumber(&mut self, _entries: &mut [pollfd]) -> bool {
        false
    }
}

/// Waits for the descriptors of a list, of which `flows[i]` belongs to entry i, until one has something, no arrival is
/// expected any more, a signal came, or the deadline passed. `revents` of the entries are as the kernel left them, or
/// as [`Beside::end`] did.
///
/// Takes no time if no flow has a window.
pub fn until_ready(
    entries: &mut [pollfd],
    flows: &mut [Option<&mut Flow>],
    deadline: Option<Instant>,
    mask: *const sigset_t,
    mut beside: impl Beside,
) -> Waited {
    let began = raw::now();
    let mut polled = PolledList {
        entries,
        flows,
        mask,
        beside: &mut beside,
        index: 0,
    };
    let deadline = deadline.unwrap_or(Instant::FAR_FUTURE);
    match until_found(&mut polled, began, deadline) {
        Ok(Ended::Found(())) => Waited::Ready,
        Ok(Ended::TimedOut) => Waited::TimedOut,
        Ok(Ended::Unknown(_)) => Waited::Unknown,
        Err(ended) => ended,
    }
}

/// A list of descriptors, and the flows of its entries.
struct PolledList<'a, 'f, B> {
    entries: &'a mut [pollfd],
    flows: &'a mut [Option<&'f mut Flow>],
    mask: *const sigset_t,
    beside: &'a mut B,
    /// Flow that the last window is of.
    index: usize,
}

impl<B: Beside> Awaited for PolledList<'_, '_, B> {
    type Found = ();
    type Stopped = Waited;

    fn now(&self) -> Instant {
        raw::now()
    }

    fn window(&mut self, now: Instant) -> Option<Window> {
        let (index, window) = earliest(self.flows, now)?;
        self.index = index;
        Some(window)
    }

    /// Polls the list. A descriptor that was closed meanwhile is polled again under its other number, if it has one.
    fn sleep(&mut self, until: Instant, now: Instant) -> Result<Option<()>, Waited> {
        let mut now = now;
        self.beside.renumber(self.entries);
        loop {
            let found = raw::poll(self.entries, Some(until), now, self.mask);
            let is_closed = |entry: &pollfd| entry.revents & libc::POLLNVAL != 0;
            if found == Polled::Ready
                && self.entries.iter().any(is_closed)
                && self.beside.renumber(self.entries)
            {
                now = raw::now();
                continue;
            }
            return match found {
                Polled::Ready => Ok(Some(())),
                Polled::Nothing => Ok(None),
                Polled::Interrupted => Err(Waited::Interrupted),
                Polled::Refused => Err(Waited::Unknown),
            };
        }
    }

    /// Polls the list again and again, and looks meanwhile at what lies beside it.
    fn look(&mut self, looker: &Looker, now: Instant) -> Result<Option<()>, Waited> {
        let looks = if self.beside.begin() {
            LOOKS_PER_POLL
        } else {
            0
        };
        let found = looker.repeat(|| {
            if self.sleep(Instant::ZERO, now)?.is_some() {
                return Ok(Some(true));
            }
            let is_beside = (0..looks).any(|_| {
                std::hint::spin_loop();
                self.beside.is_there()
            });
            Ok(is_beside.then_some(false))
        });
        match self.beside.end(self.entries) {
            true => Ok(Some(())),
            false => found.map(|is_polled| (is_polled == Some(true)).then_some(())),
        }
    }

    fn looked(&mut self, began: Instant, ended: Instant, is_found: bool) {
        if let Some(flow) = self.flows[self.index].as_mut() {
            flow.looked(began, ended, is_found);
        }
    }

    fn arrived(&mut self, seen: Seen, at: Instant) {
        for (entry, flow) in self.entries.iter().zip(self.flows.iter_mut()) {
            if let Some(flow) = flow
                && entry.revents & libc::POLLIN != 0
            {
                flow.arrived(at, seen);
            }
        }
    }
}

/// When the calling thread should be awake for the next arrival: the earliest window of all flows, and whose it is.
/// `None` if no arrival is expected for which looking pays, or the thread will have no time for it.
pub fn earliest(flows: &mut [Option<&mut Flow>], now: Instant) -> Option<(usize, Window)> {
    let windows = flows.iter_mut().enumerate().filter_map(|(index, flow)| {
        let window = flow.as_mut()?.expected(now, Duration::ZERO)?;
        Some((index, window))
    });
    let (index, window) = windows.min_by_key(|(_, window)| window.from)?;
    let [usual, longest] =
        [window.expected, window.until].map(|end| end.saturating_duration_since(window.from));
    let waking = thread::waking_for_look(window.from, usual, longest)?;
    thread::begin();
    let window = flows[index].as_mut()?.window(now, waking)?;
    Some((index, window))
}

#[cfg(test)]
mod tests;
