//! How a port waits: it spins first, then sleeps on its doorbell.

use std::time::Duration;

use tautline_proto::time::Instant;

use crate::error::ReceiveError;
use crate::link::vbus::BusPort;
use crate::link::{Inbox, PortHalf};
use crate::sys::clock;

/// Longest time for which a spinning thread keeps the kernel's receive processing off its CPU. Lower: what
/// arrives soon, as most does, is found later by the call's 0.2 µs. Higher: what was put off waits for longer.
const LET_IN_INTERVAL: Duration = Duration::from_micros(10);
/// Looks between two readings of the clock while spinning: a look costs a few nanoseconds, a
/// reading about twenty-five.
const LOOKS_PER_CLOCK: u32 = 16;
/// Looks between two pauses, which leave the core to its sibling but take as long as several looks.
const LOOKS_PER_PAUSE: u32 = 8;

/// Object that a waiting port sleeps on.
pub(super) enum Bell<'w> {
    /// Inbox of the link.
    Inbox(&'w mut dyn Inbox),
    /// Words in its peers' memories.
    Bus(&'w mut BusPort),
}

impl<'w> From<&'w mut PortHalf> for Bell<'w> {
    fn from(half: &'w mut PortHalf) -> Self {
        match half {
            PortHalf::Frames(frames) => Self::Inbox(frames.link.as_mut()),
            PortHalf::Bus(bus) => Self::Bus(bus),
        }
    }
}

impl Bell<'_> {
    /// As [`Inbox::now`].
    fn now(&self) -> Instant {
        match self {
            Self::Inbox(inbox) => inbox.now(),
            // The kernel's own: a deadline is not to come too early.
            Self::Bus(_) => clock::monotonic(),
        }
    }

    /// As [`Inbox::arm`].
    fn arm(self) {
        match self {
            Self::Inbox(inbox) => inbox.arm(),
            Self::Bus(bus) => bus.arm(false),
        }
    }

    /// As [`Inbox::wait`].
    fn wait(self, timeout: Option<Duration>) -> Result<(), ReceiveError> {
        match self {
            Self::Inbox(inbox) => inbox.wait(timeout),
            Self::Bus(bus) => bus.wait(timeout),
        }
    }

    /// As [`Inbox::let_kernel_in`]. Over a bus nothing waits for the kernel.
    fn let_kernel_in(self) {
        match self {
            Self::Inbox(inbox) => inbox.let_kernel_in(),
            Self::Bus(_) => {}
        }
    }
}

/// Somebody who looks into an inbox.
pub(super) trait Waiter {
    /// Object to sleep on.
    fn inbox(&mut self) -> Bell<'_>;

    /// How long it spins before it sleeps.
    fn spin(&self) -> Duration;
}

/// Repeats `look` until it finds something or the deadline has come: spins first, then sleeps.
pub(super) fn wait_for<W: Waiter, T>(
    waiter: &mut W,
    deadline: Instant,
    mut look: impl FnMut(&mut W) -> Result<Option<T>, ReceiveError>,
) -> Result<Option<T>, ReceiveError> {
    let started = waiter.inbox().now();
    let spin_until = started.checked_add(waiter.spin()).unwrap_or(deadline);
    let mut let_in_at = started + LET_IN_INTERVAL;
    loop {
        for count in 0..LOOKS_PER_CLOCK {
            if let Some(found) = look(waiter)? {
                return Ok(Some(found));
            }
            if count % LOOKS_PER_PAUSE == 0 {
                std::hint::spin_loop();
            }
        }
        let now = waiter.inbox().now();
        if now >= deadline {
            return Ok(None);
        }
        if now < spin_until {
            if now >= let_in_at {
                waiter.inbox().let_kernel_in();
                let_in_at = now + LET_IN_INTERVAL;
            }
            continue;
        }
        waiter.inbox().arm();
        if let Some(found) = look(waiter)? {
            return Ok(Some(found));
        }
        let inbox = waiter.inbox();
        let timeout = (deadline != Instant::FAR_FUTURE)
            .then(|| deadline.saturating_duration_since(inbox.now()));
        inbox.wait(timeout)?;
    }
}
