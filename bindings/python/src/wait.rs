//! Waiting: times as Python gives them, and waits that leave the interpreter to others and end on a signal.

use std::time::Duration;

use pyo3::prelude::*;
use tautline::port::AdaptiveSpin;
use tautline::{Instant, ReceiveError, Spin, now};

use crate::errors::{Raise, argument};

/// Longest time that a wait stays out of the interpreter. Shorter: a waiting port wakes more often for nothing.
/// Longer: Ctrl-C is answered later.
pub(crate) const STEP: Duration = Duration::from_millis(50);

/// The same while a port spins. Longer: the processor forgets the way back into the interpreter. Shorter: the port
/// looks less of the time.
const SPIN_STEP: Duration = Duration::from_micros(100);

/// Time for which a port that spins does so with the interpreter held, before it leaves that to others. Shorter:
/// messages that come at once, such as answers, pay for leaving and coming back. Longer: other threads of Python wait
/// for that, a small part of the 5 ms that they wait for each other.
const ATTACHED: Duration = Duration::from_micros(20);

/// The deadline of a wait of so many seconds from now; without a number it never comes.
pub(crate) fn deadline(py: Python<'_>, timeout: Option<f64>) -> PyResult<Instant> {
    Ok(match timeout {
        None => Instant::FAR_FUTURE,
        some => now() + duration(py, "a timeout", some)?,
    })
}

/// The end of a wait: after so many seconds, or at a moment on Python's `time.monotonic()`, which is the library's own
/// clock. [`Instant::ZERO`] polls.
pub(crate) fn end_of_wait(
    py: Python<'_>,
    timeout: Option<f64>,
    until: Option<f64>,
) -> PyResult<Instant> {
    match (timeout, until) {
        (Some(0.0), None) => Ok(Instant::ZERO),
        (timeout, None) => deadline(py, timeout),
        (None, until) => Ok(Instant::ZERO + duration(py, "a deadline", until)?),
        (Some(_), Some(_)) => {
            let message = "a wait has a timeout or a deadline, not both";
            Err(argument(py, message, "leave out `timeout` or `until`"))
        }
    }
}

/// A time in seconds; for ever if it is longer than can be said, or not said.
pub(crate) fn duration(py: Python<'_>, what: &str, seconds: Option<f64>) -> PyResult<Duration> {
    match seconds {
        None => Ok(Duration::MAX),
        Some(seconds) if seconds >= 0.0 => {
            Ok(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
        }
        Some(seconds) => {
            let message = format!("{what} of {seconds} s is not a time");
            let remedy = "give seconds as a number from 0 on; None waits without end";
            Err(argument(py, &message, remedy))
        }
    }
}

/// Seconds on `time.monotonic()`.
pub(crate) fn seconds(instant: Instant) -> f64 {
    Duration::from_nanos(instant.as_nanos()).as_secs_f64()
}

/// A port that spins before it sleeps.
pub(crate) trait Spins: Send {
    fn spin(&self) -> Spin;
    fn set_spin(&mut self, spin: Spin);
    /// Decides for waits of several steps, where the port leaves it open.
    fn adaptive(&mut self) -> &mut AdaptiveSpin;
}

/// Calls `receive` with a moment that is near, again and again, until it finds something or the deadline has come. The
/// interpreter is free meanwhile, but for the first moment, and signals are handled in between. The port spins as
/// long as in one wait. Looks at least once.
pub(crate) fn wait<P: Spins, T: Send>(
    py: Python<'_>,
    port: &mut P,
    deadline: Instant,
    mut receive: impl FnMut(&mut P, Instant) -> Result<Option<T>, ReceiveError> + Send,
) -> PyResult<Option<T>> {
    let found = receive(port, Instant::ZERO).map_err(|error| error.raise(py))?;
    if found.is_some() || deadline == Instant::ZERO {
        return Ok(found);
    }
    let setting = port.spin();
    let spin = match setting {
        Spin::For(time) => time,
        Spin::Adaptive => port.adaptive().begin(),
    };
    port.set_spin(Spin::For(spin));
    let started = now();
    let found = wait_spinning(py, port, (started, spin), deadline, &mut receive);
    port.set_spin(setting);
    if setting == Spin::Adaptive && !spin.is_zero() {
        let has_spun = now().saturating_duration_since(started) >= spin;
        match &found {
            _ if has_spun => port.adaptive().end(false),
            Ok(Some(_)) => port.adaptive().end(true),
            _ => {}
        }
    }
    found
}

fn wait_spinning<P: Spins, T: Send>(
    py: Python<'_>,
    port: &mut P,
    (started, spin): (Instant, Duration),
    deadline: Instant,
    mut receive: impl FnMut(&mut P, Instant) -> Result<Option<T>, ReceiveError> + Send,
) -> PyResult<Option<T>> {
    // A port that would sleep earlier than that only looks.
    let attached = if spin < ATTACHED {
        Duration::ZERO
    } else {
        ATTACHED
    };
    let mut found =
        receive(port, deadline.min(started + attached)).map_err(|error| error.raise(py));
    while let Ok(None) = found {
        let at = now();
        if at >= deadline {
            break;
        }
        let left = spin.saturating_sub(at.saturating_duration_since(started));
        port.set_spin(Spin::For(left));
        found = step(py, port, at, deadline, &mut receive);
    }
    found
}

fn step<P: Spins, T: Send>(
    py: Python<'_>,
    port: &mut P,
    at: Instant,
    deadline: Instant,
    mut receive: impl FnMut(&mut P, Instant) -> Result<Option<T>, ReceiveError> + Send,
) -> PyResult<Option<T>> {
    let step = if port.spin() == Spin::For(Duration::ZERO) {
        STEP
    } else {
        SPIN_STEP
    };
    let until = deadline.min(at + step);
    match py.detach(|| receive(port, until)) {
        Ok(None) => py.check_signals().map(|()| None),
        Ok(found) => Ok(found),
        Err(error) => Err(error.raise(py)),
    }
}
