//! How a port waits: it is awake when a message is expected; otherwise it spins first, then sleeps on its doorbell.

use std::time::Duration;

use tautline_awake::cpu::Looker;
use tautline_awake::flow::{Seen, Window};
use tautline_awake::wait::{Awaited, Ended, until_found};
use tautline_proto::time::Instant;

use super::spin::Spinner;
use crate::error::ReceiveError;
use crate::statistics::Counter;
use crate::sys::interface::InterfaceWatch;

/// Longest time for which a spinning thread keeps the kernel's receive processing off its CPU. Lower: what
/// arrives soon, as most does, is found later by the call's 0.2 µs. Higher: what was put off waits for longer.
const PROCESSING_INTERVAL: Duration = Duration::from_micros(10);
/// How often a thread that spins looks whether its interface is gone; one that sleeps is woken. Lower: the look's
/// system call comes between more messages. Higher: one that spins for ever learns it later.
const INTERFACE_INTERVAL: Duration = Duration::from_millis(100);
/// Looks between two readings of the clock while spinning: a look costs a few nanoseconds, a reading about twenty-five.
const LOOKS_PER_CLOCK: u32 = 16;
/// Looks between two pauses, which leave the core to its sibling but take as long as several looks.
const LOOKS_PER_PAUSE: u32 = 8;

/// How long a port waits for a message that is not there yet. It spins first and then sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Not at all.
    Poll,
    /// Until this time.
    Until(Instant),
    /// Without a limit.
    Forever,
}

impl Wait {
    /// Deadline of the wait; `None` without a wait.
    #[inline(always)]
    pub(super) const fn deadline(self) -> Option<Instant> {
        match self {
            Self::Poll => None,
            Self::Until(deadline) => Some(deadline),
            Self::Forever => Some(Instant::FAR_FUTURE),
        }
    }
}

pub(super) trait Bell {
    /// [`PortLink::now`](crate::link::PortLink::now) of the port.
    fn now(&self) -> Instant;

    /// [`PortLink::arm`](crate::link::PortLink::arm) of the port.
    fn arm(&mut self);

    /// [`PortLink::wait`](crate::link::PortLink::wait) of the port.
    fn wait(&mut self, timeout: Option<Duration>) -> Result<(), ReceiveError>;

    /// [`PortLink::run_due_processing`](crate::link::PortLink::run_due_processing) of the port.
    fn run_due_processing(&mut self);

    /// An error if nothing will arrive any more, as the interface is gone. A system call.
    fn check_interface(&self) -> Result<(), ReceiveError> {
        Ok(())
    }
}

pub(super) fn check_interface(watch: Option<&InterfaceWatch>) -> Result<(), ReceiveError> {
    match watch {
        Some(watch) if watch.is_gone() => Err(ReceiveError::InterfaceGone),
        _ => Ok(()),
    }
}

/// Repeats `look` until it finds something or the deadline has come. Looks at least once.
pub(super) fn wait_for<W: Bell, T>(
    waiter: &mut W,
    spinner: &mut Spinner,
    deadline: Instant,
    mut look: impl FnMut(&mut W) -> Result<Option<T>, ReceiveError>,
) -> Result<Option<T>, ReceiveError> {
    if let Some(found) = look_often(waiter, &mut look)? {
        spinner.arrived(Seen::Before, || waiter.now());
        return Ok(Some(found));
    }
    let started = waiter.now();
    if started >= deadline {
        return Ok(None);
    }
    let mut expected = Expected {
        waiter,
        spinner,
        look: &mut look,
    };
    let started = match until_found(&mut expected, started, deadline)? {
        Ended::Found(found) => return Ok(Some(found)),
        Ended::TimedOut => return Ok(None),
        Ended::Unknown(now) => now,
    };
    let spin = spinner.begin();
    if !spin.is_zero() {
        let spun = started.checked_add(spin).unwrap_or(deadline);
        let found = look_until(waiter, (started, deadline.min(spun)), &mut look)?;
        if found.is_some() || spun < deadline {
            spinner.end(found.is_some());
        }
        if found.is_some() {
            spinner.arrived(Seen::Looking, || waiter.now());
        }
        if found.is_some() || spun >= deadline {
            return Ok(found);
        }
    }
    let found = sleep(waiter, deadline, spinner.wakeups(), &mut look)?;
    if found.is_some() {
        spinner.arrived(Seen::Asleep, || waiter.now());
    }
    Ok(found)
}

struct Expected<'a, W, L> {
    waiter: &'a mut W,
    spinner: &'a mut Spinner,
    look: &'a mut L,
}

impl<W: Bell, T, L> Awaited for Expected<'_, W, L>
where
    L: FnMut(&mut W) -> Result<Option<T>, ReceiveError>,
{
    type Found = T;
    type Stopped = ReceiveError;

    fn now(&self) -> Instant {
        self.waiter.now()
    }

    fn window(&mut self, now: Instant) -> Option<Window> {
        self.spinner.window(now)
    }

    fn sleep(&mut self, until: Instant, now: Instant) -> Result<Option<T>, ReceiveError> {
        match until > now {
            true => sleep(self.waiter, until, self.spinner.wakeups(), &mut *self.look),
            false => Ok(None),
        }
    }

    fn look(&mut self, looker: &Looker, now: Instant) -> Result<Option<T>, ReceiveError> {
        look_until(self.waiter, (now, looker.until()), self.look)
    }

    fn looked(&mut self, began: Instant, ended: Instant, is_found: bool) {
        self.spinner.looked(began, ended, is_found);
    }

    fn arrived(&mut self, seen: Seen, at: Instant) {
        self.spinner.arrived(seen, || at);
    }
}

#[inline]
fn look_often<W: Bell, T>(
    waiter: &mut W,
    look: &mut impl FnMut(&mut W) -> Result<Option<T>, ReceiveError>,
) -> Result<Option<T>, ReceiveError> {
    for count in 0..LOOKS_PER_CLOCK {
        if let Some(found) = look(waiter)? {
            return Ok(Some(found));
        }
        if count % LOOKS_PER_PAUSE == 0 {
            std::hint::spin_loop();
        }
    }
    Ok(None)
}

fn look_until<W: Bell, T>(
    waiter: &mut W,
    (started, until): (Instant, Instant),
    look: &mut impl FnMut(&mut W) -> Result<Option<T>, ReceiveError>,
) -> Result<Option<T>, ReceiveError> {
    let mut processing_at = started + PROCESSING_INTERVAL;
    let mut interface_at = started + INTERFACE_INTERVAL;
    loop {
        if let Some(found) = look_often(waiter, look)? {
            return Ok(Some(found));
        }
        let now = waiter.now();
        if now >= until {
            return Ok(None);
        }
        if now >= processing_at {
            waiter.run_due_processing();
            processing_at = now + PROCESSING_INTERVAL;
        }
        if now >= interface_at {
            waiter.check_interface()?;
            interface_at = now + INTERFACE_INTERVAL;
        }
    }
}

/// Sleeps on the doorbell, and counts the sleeps that end.
fn sleep<W: Bell, T>(
    waiter: &mut W,
    deadline: Instant,
    wakeups: &Counter,
    mut look: impl FnMut(&mut W) -> Result<Option<T>, ReceiveError>,
) -> Result<Option<T>, ReceiveError> {
    loop {
        waiter.arm();
        if let Some(found) = look(waiter)? {
            return Ok(Some(found));
        }
        let timeout = (deadline != Instant::FAR_FUTURE)
            .then(|| deadline.saturating_duration_since(waiter.now()));
        waiter.wait(timeout)?;
        wakeups.add(1);
        if let Some(found) = look(waiter)? {
            return Ok(Some(found));
        }
        if waiter.now() >= deadline {
            return Ok(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::Arc;

    use rand_xoshiro::Xoshiro256PlusPlus;
    use rand_xoshiro::rand_core::{Rng, SeedableRng};

    use super::*;
    use crate::limits::SPIN_ADAPTIVE_MAX;
    use crate::port::spin::Spin;

    const LATE: Duration = Duration::from_millis(1);
    /// How long this machine takes to wake a thread up.
    const WAKING_US: u64 = 40;
    const SOON: Duration = Duration::from_micros(90);
    const LIMIT: Duration = Duration::from_millis(100);

    /// A port whose clock is a microsecond later at each reading, and jumps while it sleeps.
    #[derive(Default)]
    struct Fake {
        micros: Cell<u64>,
        /// When the message comes.
        arrival: u64,
        sleeps: u32,
        /// Sleeps that a message ended.
        woken: u32,
    }

    impl Fake {
        /// Waits for a message that comes so long after now. Returns whether it slept.
        fn sleeps(&mut self, spinner: &mut Spinner, after: Duration, limit: Duration) -> bool {
            let (started, sleeps) = (self.now(), self.sleeps);
            self.arrival = (started + after).as_nanos() / 1_000;
            let look = |fake: &mut Self| Ok((fake.micros.get() >= fake.arrival).then_some(()));
            let found = wait_for(self, spinner, started + limit, look).expect("a fake never fails");
            assert_eq!(found.is_some(), after < limit);
            self.sleeps > sleeps
        }
    }

    impl Bell for Fake {
        fn now(&self) -> Instant {
            self.micros.set(self.micros.get() + 1);
            Instant::ZERO + Duration::from_micros(self.micros.get())
        }

        fn arm(&mut self) {}

        fn wait(&mut self, timeout: Option<Duration>) -> Result<(), ReceiveError> {
            let timeout = timeout
                .expect("each of these waits has a deadline")
                .as_micros() as u64;
            let end = self.micros.get() + timeout;
            let ended = self.arrival.min(end).max(self.micros.get());
            self.micros.set(ended + WAKING_US);
            self.sleeps += 1;
            self.woken += u32::from(self.arrival < end);
            Ok(())
        }

        fn run_due_processing(&mut self) {}
    }

    #[test]
    fn answers_are_met_spinning() {
        let (mut fake, mut spinner) =
            (Fake::default(), Spinner::of(Spin::Adaptive, Arc::default()));
        assert!(!(0..100).any(|_| fake.sleeps(&mut spinner, SOON, LIMIT)));
    }

    #[test]
    fn late_messages_are_slept_for_and_seldom_spun_for() {
        let (mut fake, mut spinner) =
            (Fake::default(), Spinner::of(Spin::Adaptive, Arc::default()));
        // Without rhythm.
        let mut random = Xoshiro256PlusPlus::seed_from_u64(1);
        let mut irregular = || LATE + Duration::from_micros(random.next_u64() % 5_000);
        let slept = (0..1_100).filter(|_| fake.sleeps(&mut spinner, irregular(), LIMIT));
        assert!(slept.count() >= 1_080);
        // From here on spins are rare, also for what comes soon.
        assert!((0..100).all(|_| fake.sleeps(&mut spinner, SOON, LIMIT)));
    }

    #[test]
    fn messages_with_a_rhythm_are_met_awake() {
        let (mut fake, mut spinner) =
            (Fake::default(), Spinner::of(Spin::Adaptive, Arc::default()));
        for round in 0..2_000 {
            let due = Duration::from_millis(round + 1).as_micros() as u64;
            let after = Duration::from_micros(due.saturating_sub(fake.micros.get()));
            assert!(fake.sleeps(&mut spinner, after, LIMIT));
        }
        assert!(fake.woken < 200, "{} of 2,000 woke it", fake.woken);
        // A port that is told how to spin predicts nothing.
        let (mut fake, mut spinner) = (
            Fake::default(),
            Spinner::of(Duration::ZERO.into(), Arc::default()),
        );
        assert!((0..200).all(|_| fake.sleeps(&mut spinner, LATE, LIMIT)));
        assert_eq!(fake.woken, 200);
    }

    #[test]
    fn a_spin_that_its_deadline_ends_is_no_evidence() {
        let (mut fake, mut spinner) =
            (Fake::default(), Spinner::of(Spin::Adaptive, Arc::default()));
        let short = SPIN_ADAPTIVE_MAX / 2;
        assert!(!(0..100).any(|_| fake.sleeps(&mut spinner, LATE, short)));
        assert!(!fake.sleeps(&mut spinner, SOON, LIMIT));
    }

    #[test]
    fn a_time_that_is_asked_for_is_kept_to() {
        let (mut fake, mut spinner) = (
            Fake::default(),
            Spinner::of(Spin::For(2 * LATE), Arc::default()),
        );
        assert!((0..100).all(|_| fake.sleeps(&mut spinner, 3 * LATE, LIMIT)));
        assert!(!(0..100).any(|_| fake.sleeps(&mut spinner, LATE, LIMIT)));
        let mut spinner = Spinner::of(Spin::For(Duration::ZERO), Arc::default());
        assert!((0..100).all(|_| fake.sleeps(&mut spinner, SOON, LIMIT)));
    }
}
