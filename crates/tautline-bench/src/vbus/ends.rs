//! Measurements of a way between two threads, for every way that can send and take a message.
//!
//! A way has two [`End`]s that can do the same. One thread measures ([`Ask`]), the other does what the slice needs
//! ([`Serve`]). The loops are written once here and compiled for each kind of end, so that no call through a pointer
//! stands between two looks at memory.

use std::hint;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::{Failure, Measure, Slice};

/// How long an answer may take. Lower would give up in a stall of a shared machine, higher makes a dead way cost
/// minutes.
pub(super) const TIME_LIMIT: Duration = Duration::from_secs(2);

/// Empty looks between two looks at the clock and the stop flag. Lower slows the spin, higher only delays giving up.
const SPINS_PER_LOOK: u32 = 4096;

/// Reads that one sample of a reading time holds: a read takes about as long as reading the clock.
pub const READS_PER_SAMPLE: u64 = 64;

/// One end of a way. Messages carry a number in their first eight bytes; what follows is not touched, but for copies
/// that the way makes.
pub(super) trait End: Send {
    /// Sends a message; `false` if there is no room for it now.
    fn try_send(&mut self, tag: u64, bytes: usize) -> Result<bool, Failure>;

    /// Sends up to `count` messages with rising numbers at once, and says how many.
    fn try_send_many(&mut self, tag: u64, bytes: usize, count: u64) -> Result<u64, Failure> {
        let _ = count;
        Ok(u64::from(self.try_send(tag, bytes)?))
    }

    /// Takes a message that is there, and returns its number.
    fn try_take(&mut self) -> Result<Option<u64>, Failure>;

    /// Takes a message, waiting as this way waits, at most about `limit`.
    fn take_waiting(&mut self, limit: Duration) -> Result<Option<u64>, Failure> {
        let deadline = Instant::now() + limit;
        loop {
            for _ in 0..SPINS_PER_LOOK {
                if let Some(tag) = self.try_take()? {
                    return Ok(Some(tag));
                }
                hint::spin_loop();
            }
            if Instant::now() > deadline {
                return Ok(None);
            }
        }
    }

    /// Reads the last value, whether it is new or not, and returns its number.
    fn read(&mut self) -> Result<u64, Failure> {
        Err(Failure::new("this way has no last value"))
    }
}

/// The measuring side of a way.
pub(super) trait Ask: Send {
    /// Measures a slice: one time in nanoseconds for each message, except that the throughput is one time for all.
    fn ask(&mut self, slice: &Slice, times: &mut Vec<u64>) -> Result<(), Failure>;
}

/// The other side.
pub(super) trait Serve: Send {
    /// Does what the other side needs for this slice, until that is done or `stop` is set.
    fn serve(&mut self, slice: &Slice, stop: &AtomicBool) -> Result<(), Failure>;
}

/// State that both sides share beside the way that is measured.
struct Meter {
    /// Zero of the times that paced messages carry.
    epoch: Instant,
    /// Messages taken of the present slice. Released by the serving side, acquired by the asking side.
    taken: AtomicU64,
    /// How long the last paced message took; published by `taken`.
    latency_ns: AtomicU64,
}

impl Meter {
    fn now(&self) -> u64 {
        nanoseconds(self.epoch.elapsed())
    }
}

/// Both sides of a way, from its two ends.
pub(super) fn sides<E: End + 'static>(ends: (E, E)) -> (Box<dyn Ask>, Box<dyn Serve>) {
    let meter = Arc::new(Meter {
        epoch: Instant::now(),
        taken: AtomicU64::new(0),
        latency_ns: AtomicU64::new(0),
    });
    let asking = Asking {
        end: ends.0,
        meter: Arc::clone(&meter),
        sequence: 0,
    };
    (Box::new(asking), Box::new(Serving { end: ends.1, meter }))
}

struct Asking<E> {
    end: E,
    meter: Arc<Meter>,
    /// Round trips so far: no message is like the one before it, also from one slice to the next.
    sequence: u64,
}

impl<E: End> Ask for Asking<E> {
    fn ask(&mut self, slice: &Slice, times: &mut Vec<u64>) -> Result<(), Failure> {
        self.meter.taken.store(0, Ordering::Relaxed);
        match slice.measure {
            Measure::RoundTrip => self.round_trips(slice, times),
            Measure::Throughput => self.throughput(slice, times),
            Measure::Paced => self.paced(slice, times),
            Measure::Read => self.reads(slice, times, READS_PER_SAMPLE),
            Measure::ReadWhileWritten => self.reads(slice, times, 1),
        }
    }
}

impl<E: End> Asking<E> {
    fn round_trips(&mut self, slice: &Slice, times: &mut Vec<u64>) -> Result<(), Failure> {
        for _ in 0..slice.length {
            self.sequence += 1;
            let tag = self.sequence;
            let start = Instant::now();
            if !self.end.try_send(tag, slice.bytes)? {
                return Err(Failure::new("there was no room for a single message"));
            }
            let answer = await_message(&mut self.end)?;
            times.push(nanoseconds(start.elapsed()));
            if answer != tag {
                return Err(Failure::new(format!(
                    "message {answer} came back in place of {tag}"
                )));
            }
        }
        Ok(())
    }

    fn throughput(&mut self, slice: &Slice, times: &mut Vec<u64>) -> Result<(), Failure> {
        let start = Instant::now();
        let mut sent = 0;
        let mut deadline = start + TIME_LIMIT;
        while sent < slice.length {
            let more = self
                .end
                .try_send_many(sent + 1, slice.bytes, slice.length - sent)?;
            sent += more;
            if more > 0 {
                // A stall is what must not last.
                continue;
            }
            deadline = await_room(&mut self.end, sent + 1, slice.bytes, deadline)?;
            sent += 1;
        }
        self.await_taken(slice.length)?;
        times.push(nanoseconds(start.elapsed()));
        Ok(())
    }

    fn paced(&mut self, slice: &Slice, times: &mut Vec<u64>) -> Result<(), Failure> {
        let mut next = Instant::now();
        for tag in 1..=slice.length {
            next += slice.period;
            thread::sleep(next.saturating_duration_since(Instant::now()));
            if !self.end.try_send(self.meter.now(), slice.bytes)? {
                return Err(Failure::new("there was no room for a single message"));
            }
            // Sleeping: to spin here would keep this CPU awake, which no sender at this rate does.
            thread::sleep(slice.period / 2);
            self.await_taken(tag)?;
            times.push(self.meter.latency_ns.load(Ordering::Relaxed));
        }
        Ok(())
    }

    fn reads(&mut self, slice: &Slice, times: &mut Vec<u64>, reads: u64) -> Result<(), Failure> {
        // A value must be there before it can be read again and again.
        await_message(&mut self.end)?;
        for _ in 0..slice.length {
            let start = Instant::now();
            for _ in 0..reads {
                hint::black_box(self.end.read()?);
            }
            times.push(nanoseconds(start.elapsed()) / reads);
        }
        Ok(())
    }

    fn await_taken(&self, count: u64) -> Result<(), Failure> {
        let deadline = Instant::now() + TIME_LIMIT;
        loop {
            for _ in 0..SPINS_PER_LOOK {
                if self.meter.taken.load(Ordering::Acquire) == count {
                    return Ok(());
                }
                hint::spin_loop();
            }
            if Instant::now() > deadline {
                return Err(Failure::timed_out());
            }
        }
    }
}

struct Serving<E> {
    end: E,
    meter: Arc<Meter>,
}

impl<E: End> Serve for Serving<E> {
    fn serve(&mut self, slice: &Slice, stop: &AtomicBool) -> Result<(), Failure> {
        match slice.measure {
            Measure::RoundTrip => self.echo(slice, stop),
            Measure::Throughput => self.drain(slice, stop),
            Measure::Paced => self.wake(slice, stop),
            Measure::Read => self.end.try_send(1, slice.bytes).map(|_| ()),
            Measure::ReadWhileWritten => self.write(slice, stop),
        }
    }
}

impl<E: End> Serving<E> {
    fn echo(&mut self, slice: &Slice, stop: &AtomicBool) -> Result<(), Failure> {
        for _ in 0..slice.length {
            let Some(tag) = await_message_until(&mut self.end, stop)? else {
                return Ok(());
            };
            if !self.end.try_send(tag, slice.bytes)? {
                return Err(Failure::new("there was no room for a single message"));
            }
        }
        Ok(())
    }

    fn drain(&mut self, slice: &Slice, stop: &AtomicBool) -> Result<(), Failure> {
        for expected in 1..=slice.length {
            let Some(tag) = await_message_until(&mut self.end, stop)? else {
                return Ok(());
            };
            if tag != expected {
                return Err(Failure::new(format!(
                    "message {tag} came in place of {expected}"
                )));
            }
        }
        self.meter.taken.store(slice.length, Ordering::Release);
        Ok(())
    }

    fn wake(&mut self, slice: &Slice, stop: &AtomicBool) -> Result<(), Failure> {
        let mut taken = 0;
        while taken < slice.length && !stop.load(Ordering::Relaxed) {
            if let Some(sent_ns) = self.end.take_waiting(slice.period * 100)? {
                let latency_ns = self.meter.now().saturating_sub(sent_ns);
                self.meter.latency_ns.store(latency_ns, Ordering::Relaxed);
                taken += 1;
                self.meter.taken.store(taken, Ordering::Release);
            }
        }
        Ok(())
    }

    fn write(&mut self, slice: &Slice, stop: &AtomicBool) -> Result<(), Failure> {
        let mut tag = 0;
        while !stop.load(Ordering::Relaxed) {
            for _ in 0..64 {
                tag += 1;
                self.end.try_send(tag, slice.bytes)?;
            }
        }
        Ok(())
    }
}

fn await_message<E: End>(end: &mut E) -> Result<u64, Failure> {
    // Never set: the time limit ends the wait.
    static GO_ON: AtomicBool = AtomicBool::new(false);
    await_message_until(end, &GO_ON)?.ok_or_else(Failure::timed_out)
}

/// Nothing if `stop` was set, or if nothing came within the time limit.
#[inline(always)]
fn await_message_until<E: End>(end: &mut E, stop: &AtomicBool) -> Result<Option<u64>, Failure> {
    let mut deadline = None;
    loop {
        for _ in 0..SPINS_PER_LOOK {
            if let Some(tag) = end.try_take()? {
                return Ok(Some(tag));
            }
            hint::spin_loop();
        }
        let now = Instant::now();
        if stop.load(Ordering::Relaxed) || now > *deadline.get_or_insert(now + TIME_LIMIT) {
            return Ok(None);
        }
    }
}

/// Sends one message as soon as there is room for it; returns the deadline of the next stall.
fn await_room<E: End>(
    end: &mut E,
    tag: u64,
    bytes: usize,
    deadline: Instant,
) -> Result<Instant, Failure> {
    loop {
        for _ in 0..SPINS_PER_LOOK {
            if end.try_send(tag, bytes)? {
                return Ok(deadline);
            }
            hint::spin_loop();
        }
        if Instant::now() > deadline {
            return Err(Failure::timed_out());
        }
    }
}

/// A duration in nanoseconds; centuries count as the longest there is.
pub(super) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
