//! Looks into ports for a while before a call sleeps: for as long as SO_BUSY_POLL says, or, without it, where that
//! pays.

use std::time::{Duration, Instant};

use crate::lock::Undisturbed;
use crate::table::Place;

/// Time after which a call that spins asks the kernel again about all that is no port: datagrams from this host, other
/// descriptors, signals. Lower: more system calls in a spin. Higher: these are found later.
const OTHERS_AGAIN: Duration = Duration::from_micros(20);

/// How a spin ended.
pub(crate) enum Spun<T> {
    /// A port has something.
    There,
    /// The kernel had something first.
    Others(T),
    /// Nothing came in its time.
    Over,
}

/// A spin that a call begins.
pub(crate) struct Spin {
    /// The socket that learns whether it paid.
    place: &'static Place,
    time: Duration,
    is_adaptive: bool,
}

impl Spin {
    /// That of a call with this time limit, if it spins. A spin that the limit ended would say nothing about the next.
    pub(crate) fn of(place: &'static Place, limit: Option<Duration>) -> Option<Self> {
        if limit.is_some_and(|limit| limit.is_zero()) {
            return None;
        }
        let (time, is_adaptive) = place.with(|taken| taken.begin_spin())?;
        let fits = !time.is_zero() && limit.is_none_or(|limit| limit >= time);
        fits.then_some(Self {
            place,
            time,
            is_adaptive,
        })
    }

    /// Looks until something is there, or the time is over. `others` asks the kernel without waiting; its answer ends
    /// the spin.
    pub(crate) fn run<T>(
        self,
        mut is_there: impl FnMut() -> bool,
        mut others: impl FnMut() -> Option<T>,
    ) -> Spun<T> {
        let started = Instant::now();
        let mut asked: Option<Instant> = None;
        loop {
            if is_there() {
                self.end(true);
                return Spun::There;
            }
            let now = Instant::now();
            if asked.is_none_or(|asked| now - asked >= OTHERS_AGAIN) {
                // Found by the kernel: nothing is known of what the port would have had.
                if let Some(answer) = others() {
                    return Spun::Others(answer);
                }
                asked = Some(now);
            }
            if now - started >= self.time {
                self.end(false);
                return Spun::Over;
            }
            std::hint::spin_loop();
        }
    }

    fn end(&self, found: bool) {
        if self.is_adaptive {
            self.place.with(|taken| taken.adaptive.end(found));
        }
    }
}

/// Keeps doorbells from ringing while this thread looks, and signals from the moments in which it does not ask the
/// kernel: the next sleep takes them, with the mask of before, and says so.
pub(crate) struct Looking<'p> {
    places: &'p [&'static Place],
    /// Dropped last: a handler finds the doorbells as it should.
    signals: Undisturbed,
}

impl<'p> Looking<'p> {
    /// `own` is how many epoll instances that watch each of the sockets are the caller's.
    pub(crate) fn new(places: &'p [&'static Place], own: u32) -> Self {
        let signals = Undisturbed::new();
        for place in places {
            place.with(|taken| taken.begin_looking(own));
        }
        Self { places, signals }
    }

    /// The thread's mask as it was before.
    pub(crate) fn mask(&self) -> *const libc::sigset_t {
        self.signals.before()
    }

    /// Whether a port has something. One that was given back meanwhile ends the looking too.
    pub(crate) fn is_there(&self) -> bool {
        let mut places = self.places.iter();
        places.any(|place| place.with(|taken| taken.has_waiting()) != Some(false))
    }

    /// The looking is over; signals are still kept away.
    pub(crate) fn end(self) -> Undisturbed {
        for place in self.places {
            place.with(|taken| taken.end_looking());
        }
        self.signals
    }
}
