//! CLOCK_MONOTONIC by way of the processor's own counter: a reading takes a third of what the kernel's takes (9
//! against 24 ns on an AMD EPYC under KVM), because it neither waits for the instructions before it nor reads the
//! kernel's page.
//!
//! Between two readings of the kernel's clock, at most a millisecond apart, the counter is taken as a straight line
//! through the last of them. Its slope is that of the time before, so the result is off by what the kernel's own
//! readings are off, tens of nanoseconds, and never goes back. Where the kernel itself does not take the counter for
//! its clock (`/sys/devices/system/clocksource`), and on other processors, every reading is the kernel's.

use std::cell::Cell;
use std::sync::OnceLock;

use tautline_proto::time::Instant;

use super::clock;

/// Time that a line serves for. Lower: more readings are the kernel's. Higher: a clock that is being slewed (at
/// most 500 ppm) is followed later; in this time it moves by 0.5 µs.
const LINE_NS: u64 = 1_000_000;
/// Time between two readings that a slope can be taken from. Lower: it is off by more, 40 ns in this time being
/// 40 ppm. Higher: readings are the kernel's for longer after a start.
const SLOPE_NS_MIN: u64 = 1_000_000;
/// Most that a slope may differ from the one before, in parts of 2^32 for each part: 0.1 %. What differs more is a
/// machine that slept, or moved: begin anew.
const SLOPE_STEP: u64 = (1 << 32) / 1000;

/// One reading of both.
#[derive(Clone, Copy, Debug)]
struct Reading {
    ticks: u64,
    ns: u64,
}

/// A clock of one thread.
#[derive(Clone, Debug)]
pub(crate) struct Ticks {
    usable: bool,
    base: Cell<Reading>,
    /// Nanoseconds a tick × 2^32; 0 while it is not known.
    slope: Cell<u64>,
    /// Ticks after the base that the line serves for.
    span: Cell<u64>,
    last_ns: Cell<u64>,
}

impl Ticks {
    pub(crate) fn new() -> Self {
        let usable = is_usable();
        Self {
            usable,
            base: Cell::new(if usable {
                read_both()
            } else {
                Reading { ticks: 0, ns: 0 }
            }),
            slope: Cell::new(0),
            span: Cell::new(0),
            last_ns: Cell::new(0),
        }
    }

    /// CLOCK_MONOTONIC now.
    #[inline]
    pub(crate) fn now(&self) -> Instant {
        if !self.usable {
            return clock::monotonic();
        }
        let base = self.base.get();
        let since = counter().wrapping_sub(base.ticks);
        let ns = if since < self.span.get() {
            // Within the span the product is at most LINE_NS × 2^32.
            base.ns + ((since * self.slope.get()) >> 32)
        } else {
            self.begin_line(read_both())
        };
        let ns = ns.max(self.last_ns.get());
        self.last_ns.set(ns);
        Instant::from_nanos(ns)
    }

    /// Lets the line go through this reading from now on; its time.
    #[cold]
    fn begin_line(&self, now: Reading) -> u64 {
        let base = self.base.get();
        let (ticks, ns) = (
            now.ticks.wrapping_sub(base.ticks),
            now.ns.wrapping_sub(base.ns),
        );
        // Both went forward, and for long enough; less than five hours, so that the shift holds.
        if (SLOPE_NS_MIN..1 << 44).contains(&ns) && (1..1 << 48).contains(&ticks) {
            let slope = ((u128::from(ns) << 32) / u128::from(ticks)) as u64;
            let before = self.slope.get();
            let step = scaled(before, SLOPE_STEP);
            let plausible = before == 0 || slope.abs_diff(before) <= step;
            self.slope.set(if plausible { slope } else { 0 });
            self.base.set(now);
        } else if ns >= 1 << 44 || ticks >= 1 << 48 || ticks == 0 {
            self.slope.set(0);
            self.base.set(now);
        } else if self.slope.get() > 0 {
            // A line that has ended too soon for a new slope goes on from here with the old one.
            self.base.set(now);
        }
        let span = match self.slope.get() {
            0 => 0,
            slope => ((u128::from(LINE_NS) << 32) / u128::from(slope)) as u64,
        };
        self.span.set(span);
        now.ns
    }
}

/// `value × slope / 2^32`.
fn scaled(value: u64, slope: u64) -> u64 {
    let product = u128::from(value) * u128::from(slope);
    (product >> 32) as u64
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn counter() -> u64 {
    // SAFETY: reads a register; every x86-64 processor has it, and Linux lets processes read it unless
    // a process has asked otherwise for itself.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
#[inline]
fn counter() -> u64 {
    0
}

/// Both clocks, as close to each other as the first few attempts bring them.
fn read_both() -> Reading {
    let attempt = || {
        let before = counter();
        let ns = clock::monotonic().as_nanos();
        let after = counter();
        let took = after.wrapping_sub(before);
        let ticks = before.wrapping_add(took / 2);
        (took, Reading { ticks, ns })
    };
    // An interrupt between the two would be in the slope.
    let readings = [attempt(), attempt(), attempt()];
    let closest = readings.into_iter().min_by_key(|(took, _)| *took);
    closest.map_or(Reading { ticks: 0, ns: 0 }, |(_, reading)| reading)
}

/// Whether the kernel itself takes the counter for its clock: then it is the same on all processors, and steady.
fn is_usable() -> bool {
    static USABLE: OnceLock<bool> = OnceLock::new();
    *USABLE.get_or_init(|| {
        const SOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
        cfg!(target_arch = "x86_64")
            && std::fs::read_to_string(SOURCE).is_ok_and(|source| source.trim() == "tsc")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticks(base: Reading) -> Ticks {
        Ticks {
            usable: true,
            base: Cell::new(base),
            slope: Cell::new(0),
            span: Cell::new(0),
            last_ns: Cell::new(0),
        }
    }

    /// A machine of 2.5 ticks a nanosecond.
    fn at(ns: u64) -> Reading {
        Reading {
            ticks: 7_000 + ns * 5 / 2,
            ns,
        }
    }

    #[test]
    fn the_line_has_the_slope_of_the_time_before() {
        let clock = ticks(at(1_000));
        assert_eq!(clock.begin_line(at(500_000)), 500_000);
        assert_eq!(clock.span.get(), 0, "too soon for a slope");
        clock.begin_line(at(2_001_000));
        let slope = clock.slope.get();
        assert_eq!(scaled(2_500_000, slope), 999_999, "a millisecond, cut off");
        assert_eq!(clock.span.get(), 2_500_000);
        // After an hour of silence, too.
        clock.begin_line(at(3_600_000_000_000));
        assert!(clock.slope.get().abs_diff(slope) <= 1);
    }

    #[test]
    fn a_line_that_ends_too_soon_keeps_its_slope() {
        let clock = ticks(at(0));
        clock.begin_line(at(5_000_000));
        let slope = clock.slope.get();
        clock.begin_line(at(5_900_000));
        assert_eq!((clock.slope.get(), clock.base.get().ns), (slope, 5_900_000));
    }

    #[test]
    fn a_machine_that_slept_begins_anew() {
        let clock = ticks(at(0));
        clock.begin_line(at(5_000_000));
        // The counter went on while the clock stood.
        let mut woken = at(10_000_000);
        woken.ticks += 1 << 40;
        assert_eq!(clock.begin_line(woken), woken.ns);
        assert_eq!((clock.slope.get(), clock.span.get()), (0, 0));
        // The counter began at nothing.
        let reset = Reading {
            ticks: 3,
            ns: 20_000_000,
        };
        clock.begin_line(reset);
        assert_eq!((clock.slope.get(), clock.base.get().ticks), (0, 3));
    }

    #[test]
    fn it_never_goes_back_and_keeps_to_the_kernel() {
        let clock = Ticks::new();
        let mut last = Instant::ZERO;
        let start = clock::monotonic();
        while clock::monotonic() < start + std::time::Duration::from_millis(5) {
            let now = clock.now();
            assert!(now >= last);
            last = now;
        }
        // Half of it is far more than it can be off, and far less than a wrong slope would make it.
        let passed = clock.now().saturating_duration_since(start);
        assert!(
            passed >= std::time::Duration::from_micros(2500),
            "{passed:?}"
        );
    }
}
