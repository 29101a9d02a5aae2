//! Measurements of a way between two threads, for every way that can send and take a message.
//!
//! A way has two [`End`]s that can do the same. One thread measures ([`Ask`]), the other does what the slice needs
//! ([`Serve`]). The loops are written once here and compiled for each kind of end, so that no call through a pointer
//! stands between two looks at memory, and what lies between them and a port is inlined by force: a round trip is some
//! hundred nanoseconds. Messages carry a number in their first eight bytes; what follows is not touched,
//! but for copies that the way makes.

use std::hint;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::{Failure, Measure, Slice};
use crate::path::{End, OwnLines};

/// How long an answer may take. Lower would give up in a stall of a shared machine, higher makes a dead way cost
/// minutes.
pub(super) const TIME_LIMIT: Duration = Duration::from_secs(2);

/// Empty looks between two looks at the clock and the stop flag. Lower slows the spin, higher only delays giving up.
const SPINS_PER_LOOK: u32 = 4096;

/// Reads that one sample of a reading time holds: a read takes about as long as reading the clock.
pub const READS_PER_SAMPLE: u64 = 64;

/// The measuring side of a way: measures a slice, one time in nanoseconds for each message, except that the throughput
/// is one time for all.
pub(super) type Ask = Box<dyn FnMut(&Slice, &mut Vec<u64>) -> Result<(), Failure> + Send>;

/// The other side: does what is needed for a slice, until that is done or the flag is set.
pub(super) type Serve = Box<dyn FnMut(&Slice, &AtomicBool) -> Result<(), Failure> + Send>;

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

/// Both sides of a way, from its two ends, for messages of `bytes`.
pub(super) fn sides<E: End + 'static>([asking, answering]: [E; 2], bytes: usize) -> (Ask, Serve) {
    let meter = Arc::new(Meter {
        epoch: Instant::now(),
        taken: AtomicU64::new(0),
        latency_ns: AtomicU64::new(0),
    });
    let mut asking = Asking {
        messages: OwnLines::new(bytes * asking.batch()),
        end: asking,
        meter: Arc::clone(&meter),
        sequence: 0,
    };
    let mut serving = Serving {
        message: OwnLines::new(bytes),
        end: answering,
        meter,
    };
    (
        Box::new(move |slice, times| asking.ask(slice, times)),
        Box::new(move |slice, stop| serving.serve(slice, stop)),
    )
}

/// On lines of its own, like the other side: each writes what only it reads.
#[repr(align(128))]
struct Asking<E> {
    end: E,
    /// As many as a batch has.
    messages: OwnLines,
    meter: Arc<Meter>,
    /// Round trips so far: no message is like the one before it, also from one slice to the next.
    sequence: u64,
}

impl<E: End> Asking<E> {
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

    /// Sends a message with this number; `false` if there is no room for it now.
    #[inline(always)]
    fn try_send(&mut self, tag: u64, bytes: usize) -> Result<bool, Failure> {
        write_tag(&mut self.messages, tag);
        Ok(self.end.send(&self.messages[..bytes])?)
    }

    /// Sends up to `count` messages with rising numbers at once, and returns how many.
    fn try_send_many(&mut self, tag: u64, bytes: usize, count: u64) -> Result<u64, Failure> {
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        let messages = &mut self.messages[..bytes * count.min(self.end.batch())];
        for (tag, message) in (tag..).zip(messages.chunks_mut(bytes)) {
            write_tag(message, tag);
        }
        Ok(self.end.send_many(messages, bytes)? as u64)
    }

    fn round_trips(&mut self, slice: &Slice, times: &mut Vec<u64>) -> Result<(), Failure> {
        for _ in 0..slice.length {
            self.sequence += 1;
            let tag = self.sequence;
            let start = Instant::now();
            if !self.try_send(tag, slice.bytes)? {
                return Err(no_room());
            }
            let answer = await_message(&mut self.end, slice.bytes)?;
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
        let deadline = start + TIME_LIMIT;
        while sent < slice.length {
            let more = self.try_send_many(sent + 1, slice.bytes, slice.length - sent)?;
            sent += more;
            if more > 0 {
                // A stall is what must not last.
                continue;
            }
            self.await_room(sent + 1, slice.bytes, deadline)?;
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
            if !self.try_send(self.meter.now(), slice.bytes)? {
                return Err(no_room());
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
        await_message(&mut self.end, slice.bytes)?;
        for _ in 0..slice.length {
            let start = Instant::now();
            for _ in 0..reads {
                self.end.read_last()?;
                hint::black_box(read_tag(self.end.message()));
            }
            times.push(nanoseconds(start.elapsed()) / reads);
        }
        Ok(())
    }

    /// Sends one message as soon as there is room for it.
    fn await_room(&mut self, tag: u64, bytes: usize, deadline: Instant) -> Result<(), Failure> {
        loop {
            for _ in 0..SPINS_PER_LOOK {
                if self.try_send(tag, bytes)? {
                    return Ok(());
                }
                hint::spin_loop();
            }
            if Instant::now() > deadline {
                return Err(Failure::timed_out());
            }
        }
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

#[repr(align(128))]
struct Serving<E> {
    end: E,
    message: OwnLines,
    meter: Arc<Meter>,
}

impl<E: End> Serving<E> {
    fn serve(&mut self, slice: &Slice, stop: &AtomicBool) -> Result<(), Failure> {
        match slice.measure {
            Measure::RoundTrip => self.echo(slice, stop),
            Measure::Throughput => self.drain(slice, stop),
            Measure::Paced => self.wake(slice, stop),
            Measure::Read => self.try_send(1, slice.bytes).map(drop),
            Measure::ReadWhileWritten => self.write(slice, stop),
        }
    }

    #[inline(always)]
    fn try_send(&mut self, tag: u64, bytes: usize) -> Result<bool, Failure> {
        write_tag(&mut self.message, tag);
        Ok(self.end.send(&self.message[..bytes])?)
    }

    fn echo(&mut self, slice: &Slice, stop: &AtomicBool) -> Result<(), Failure> {
        for _ in 0..slice.length {
            let Some(tag) = await_message_until(&mut self.end, slice.bytes, stop)? else {
                return Ok(());
            };
            if !self.try_send(tag, slice.bytes)? {
                return Err(no_room());
            }
        }
        Ok(())
    }

    fn drain(&mut self, slice: &Slice, stop: &AtomicBool) -> Result<(), Failure> {
        for expected in 1..=slice.length {
            let Some(tag) = await_message_until(&mut self.end, slice.bytes, stop)? else {
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
            if self.end.wait(slice.bytes, slice.period * 100)?.is_some() {
                let sent_ns = read_tag(self.end.message());
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
                self.try_send(tag, slice.bytes)?;
            }
        }
        Ok(())
    }
}

fn no_room() -> Failure {
    Failure::new("there was no room for a single message")
}

#[inline(always)]
fn write_tag(message: &mut [u8], tag: u64) {
    message[..8].copy_from_slice(&tag.to_le_bytes());
}

#[inline(always)]
fn read_tag(message: &[u8]) -> u64 {
    message
        .first_chunk()
        .map_or(0, |tag| u64::from_le_bytes(*tag))
}

fn await_message<E: End>(end: &mut E, bytes: usize) -> Result<u64, Failure> {
    // Never set: the time limit ends the wait.
    static GO_ON: AtomicBool = AtomicBool::new(false);
    await_message_until(end, bytes, &GO_ON)?.ok_or_else(Failure::timed_out)
}

/// Nothing if `stop` was set, or if nothing came within the time limit.
#[inline(always)]
fn await_message_until<E: End>(
    end: &mut E,
    bytes: usize,
    stop: &AtomicBool,
) -> Result<Option<u64>, Failure> {
    let mut deadline = None;
    loop {
        for _ in 0..SPINS_PER_LOOK {
            if end.take(bytes)?.is_some() {
                return Ok(Some(read_tag(end.message())));
            }
            hint::spin_loop();
        }
        let now = Instant::now();
        if stop.load(Ordering::Relaxed) || now > *deadline.get_or_insert(now + TIME_LIMIT) {
            return Ok(None);
        }
    }
}

/// A duration in nanoseconds; centuries count as the longest there is.
pub(super) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
