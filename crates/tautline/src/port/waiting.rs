//! How a port waits: it spins first, then sleeps on its doorbell.

use std::time::Duration;

use tautline_proto::time::Instant;

use crate::error::ReceiveError;

/// Longest time for which a spinning thread keeps the kernel's receive processing off its CPU. Lower: what
/// arrives soon, as most does, is found later by the call's 0.2 µs. Higher: what was put off waits for longer.
const PROCESSING_INTERVAL: Duration = Duration::from_micros(10);
/// Looks between two readings of the clock while spinning: a look costs a few nanoseconds, a
/// reading about twenty-five.
const LOOKS_PER_CLOCK: u32 = 16;
/// Looks between two pauses, which leave the core to its sibling but take as long as several looks.
const LOOKS_PER_PAUSE: u32 = 8;

/// Object that a waiting port sleeps on.
pub(super) trait Bell {
    /// As [`Inbox::now`](crate::link::Inbox::now).
    fn now(&self) -> Instant;

    /// As [`Inbox::arm`](crate::link::Inbox::arm).
    fn arm(&mut self);

    /// As [`Inbox::wait`](crate::link::Inbox::wait).
    fn wait(&mut self, timeout: Option<Duration>) -> Result<(), ReceiveError>;

    /// As [`Inbox::run_due_processing`](crate::link::Inbox::run_due_processing).
    fn run_due_processing(&mut self);
}

/// Repeats `look` until it finds something or the deadline has come: spins first, then sleeps.
pub(super) fn wait_for<W: Bell, T>(
    waiter: &mut W,
    spin: Duration,
    deadline: Instant,
    mut look: impl FnMut(&mut W) -> Result<Option<T>, ReceiveError>,
) -> Result<Option<T>, ReceiveError> {
    let started = waiter.now();
    let spin_until = started.checked_add(spin).unwrap_or(deadline);
    let mut processing_at = started + PROCESSING_INTERVAL;
    loop {
        for count in 0..LOOKS_PER_CLOCK {
            if let Some(found) = look(waiter)? {
                return Ok(Some(found));
            }
            if count % LOOKS_PER_PAUSE == 0 {
                std::hint::spin_loop();
            }
        }
        let now = waiter.now();
        if now >= deadline {
            return Ok(None);
        }
        if now < spin_until {
            if now >= processing_at {
                waiter.run_due_processing();
                processing_at = now + PROCESSING_INTERVAL;
            }
            continue;
        }
        waiter.arm();
        if let Some(found) = look(waiter)? {
            return Ok(Some(found));
        }
        let timeout = (deadline != Instant::FAR_FUTURE)
            .then(|| deadline.saturating_duration_since(waiter.now()));
        waiter.wait(timeout)?;
    }
}
