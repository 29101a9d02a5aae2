//! Paths between two sides, each implemented once: kernel UDP ([`udp`]) and TCP ([`tcp`]), ports over any link, the bus
//! included ([`port`]), and the floor below them ([`floor`]).
//!
//! A path has two ends that can do the same: both implement [`End`], and every benchmark is written against it. The
//! loops that are measured are methods of the trait. Each is compiled for every kind of end, so that no call through a
//! pointer lies between two looks for a message, also where a benchmark keeps its ends as `Box<dyn End>`.

pub mod floor;
pub mod nodes;
pub mod poll;
pub mod port;
pub mod short_path;
pub mod sides;
pub mod tcp;
pub mod timestamping;
pub mod udp;

use std::hint;
use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tautline::{OpenError, PortError};
use tautline_state::StateError;
use tautline_testbed::hosts::HostsError;
use thiserror::Error;

/// Bytes at the start of a payload by which a late reply is told from the one that is waited for.
pub const TAG_BYTES: usize = 8;

/// The largest payload that every path of the network carries: a UDP datagram over IPv4.
pub const PAYLOAD_BYTES_MAX: usize = 65_507;

/// Empty looks for a message between two looks at the clock or the stop flag. Lower slows the spin down by a clock
/// read, higher only delays giving up.
const LOOKS_PER_CLOCK: u32 = 64;

/// How long an end looks before it sleeps, where it does. Lower finds fewer messages, higher costs more time.
pub const LINGER: Duration = Duration::from_micros(50);

/// How long an answering end waits before it looks whether it is to stop. Lower costs idle CPU, higher makes changing
/// from one path to the next slow; neither is inside a measurement.
pub const BLOCKED_LOOK: Duration = Duration::from_millis(20);

/// One end of a path.
pub trait End: Send {
    /// Hands a message over; `false` if there was no room for it, and it is lost or must be sent again.
    fn send(&mut self, message: &[u8]) -> io::Result<bool>;

    /// Sends back the message that was taken last.
    fn send_back(&mut self) -> io::Result<bool>;

    /// Takes a message if one is there. `bytes` is its length as both sides agreed, for a path that carries none.
    fn take(&mut self, bytes: usize) -> io::Result<Option<Arrival>>;

    /// The message that was taken last, until the next one is taken.
    fn message(&self) -> &[u8];

    /// Takes a message, waiting as this end waits, for about `limit` at most. By looking again and again, unless the
    /// end has another way.
    fn wait(&mut self, bytes: usize, limit: Duration) -> io::Result<Option<Arrival>> {
        spin(self, bytes, limit)
    }

    /// Takes a message, waiting for `limit` at most. A limit that differs from call to call costs no more, and is kept
    /// to the microsecond: the kernel counts a socket's own time limit, as [`End::wait`] sets it, in ticks.
    fn wait_within(&mut self, bytes: usize, limit: Duration) -> io::Result<Option<Arrival>> {
        self.wait(bytes, limit)
    }

    /// Sleeps until `due`, as a program that waits as this end does.
    fn sleep_until(&mut self, due: Instant) {
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }

    /// Waits for messages, and returns how many came at once. [`End::message`] may be any of them.
    fn wait_many(&mut self, bytes: usize, limit: Duration) -> io::Result<u64> {
        Ok(u64::from(self.wait(bytes, limit)?.is_some()))
    }

    /// Sends messages of `message_bytes` each that lie one after the other in `messages`; returns how many of them,
    /// from the first on. Less than all where there is no room.
    fn send_many(&mut self, messages: &[u8], message_bytes: usize) -> io::Result<usize> {
        send_one_by_one(self, messages, message_bytes)
    }

    /// Messages that one call of [`End::send_many`] carries best.
    fn batch(&self) -> usize {
        1
    }

    /// Takes messages until none is there, so that [`End::message`] is the newest; returns how many had come.
    fn update(&mut self, bytes: usize) -> io::Result<u32> {
        let mut taken = 0;
        while self.take(bytes)?.is_some() {
            taken += 1;
        }
        Ok(taken)
    }

    /// Reads the last value, whether it is new or not.
    fn read_last(&mut self) -> io::Result<()> {
        Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "this path keeps no last value",
        ))
    }

    /// The kernel's stamp on the message that was sent last, if this end asks for one.
    fn sent_stamp(&mut self) -> io::Result<Option<Stamp>> {
        Ok(None)
    }

    /// Sends `payload` and waits until the same payload has come back; `false` if it did not within `limit`. A reply
    /// counts if its length and its first [`TAG_BYTES`] bytes are those of `payload`, others are late ones and are
    /// passed over.
    fn round_trip(&mut self, payload: &[u8], limit: Duration) -> io::Result<bool> {
        round_trip(self, payload, limit)
    }

    /// Sends back messages of `bytes` each until `stop` is set, each after `seen` was called with it. Looks at `stop`
    /// at least every [`BLOCKED_LOOK`], a message under way apart.
    fn serve(
        &mut self,
        bytes: usize,
        stop: &AtomicBool,
        seen: &mut dyn FnMut(&[u8]),
    ) -> io::Result<()> {
        // Relaxed: the flag carries nothing else, and is seen at one of the next looks.
        while !stop.load(Ordering::Relaxed) {
            if self.wait(bytes, BLOCKED_LOOK)?.is_some() {
                seen(self.message());
                // A reply without room is lost, which the asking side's time limit shows.
                let _lost = self.send_back()?;
            }
        }
        Ok(())
    }
}

/// Memory of one side that shares no cache line with anything else: what only one side uses must not slow the other.
pub(crate) struct OwnLines(Box<[u8]>);

/// Twice 64 bytes, because processors fetch lines in pairs.
const LINES_BYTES: usize = 128;

impl OwnLines {
    pub(crate) fn new(bytes: usize) -> OwnLines {
        OwnLines(vec![0; bytes + 2 * LINES_BYTES].into())
    }
}

impl Deref for OwnLines {
    type Target = [u8];

    #[inline(always)]
    fn deref(&self) -> &[u8] {
        &self.0[LINES_BYTES..self.0.len() - LINES_BYTES]
    }
}

impl DerefMut for OwnLines {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [u8] {
        let end = self.0.len() - LINES_BYTES;
        &mut self.0[LINES_BYTES..end]
    }
}

/// A message that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// When it arrived, if the path says so.
    pub stamp: Option<Stamp>,
}

/// When a message was stamped, by the clock of the stamp; nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stamp {
    /// The kernel's stamps on packets.
    Realtime(u64),
    /// The demux's.
    Monotonic(u64),
}

/// How an end of the kernel's waits for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// It looks again and again, on a non-blocking socket.
    Spin,
    /// It sleeps in the kernel.
    Block,
    /// It looks for [`LINGER`], then sleeps in the kernel.
    Linger,
    /// It sleeps in the kernel until shortly before the message is expected, then looks (crate `tautline-awake`).
    Awake,
}

impl Waiting {
    /// For descriptions of a path.
    pub fn text(self) -> &'static str {
        match self {
            Waiting::Spin => "non-blocking sockets, both sides spin",
            Waiting::Block => "blocking sockets",
            Waiting::Linger => "blocking sockets after looking for 50 µs",
            Waiting::Awake => "blocking sockets, waits and sleeps end awake",
        }
    }
}

/// How an end sends several messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sends {
    /// A message with each system call.
    OneByOne,
    /// Many frames with each.
    Batches,
    /// Small messages merged into frames; only queuing ports do.
    Merged,
}

/// Why a path could not be opened, or failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PathError {
    /// A payload that this path cannot carry.
    #[error("a payload of {bytes} bytes does not fit: 1 to {bytes_max} possible")]
    PayloadSize {
        /// The size asked for.
        bytes: usize,
        /// The largest size possible.
        bytes_max: usize,
    },
    /// A system call failed.
    #[error("cannot {operation}: {source}")]
    Io {
        /// Operation that failed.
        operation: &'static str,
        /// Cause.
        source: io::Error,
    },
    /// A host could not be entered.
    #[error(transparent)]
    Hosts(#[from] HostsError),
    /// A node could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A port could not be opened.
    #[error(transparent)]
    Port(#[from] PortError),
    /// The directory of a bus could not be made.
    #[error(transparent)]
    Directory(#[from] StateError),
    /// The library of `taut exec` could not be loaded.
    #[error("cannot load the library of `taut exec`: {0}")]
    Library(String),
    /// The floor's program could not be loaded or attached.
    #[error("the floor is not available: {0}")]
    Floor(Box<dyn std::error::Error + Send + Sync>),
}

impl PathError {
    /// For `map_err`: a [`PathError::Io`] of this operation.
    pub fn io(operation: &'static str) -> impl FnOnce(io::Error) -> PathError {
        move |source| PathError::Io { operation, source }
    }

    /// Remedy for the user.
    pub fn remedy(&self) -> String {
        match self {
            PathError::PayloadSize { .. } => "choose a smaller size".to_owned(),
            PathError::Hosts(error) => error.remedy(),
            PathError::Open(error) => error.remedy().to_owned(),
            PathError::Port(error) => error.remedy().to_owned(),
            PathError::Library(_) => {
                "build it with `cargo build --release -p tautline-awake-preload`, or leave the path out"
                    .to_owned()
            }
            PathError::Io { .. } | PathError::Directory(_) | PathError::Floor(_) => {
                "try again on a quieter machine; `taut doctor` shows what this machine can do"
                    .to_owned()
            }
        }
    }
}

// Bodies of the trait's own methods, for ends that do so in some cases only.

#[inline]
fn spin(
    end: &mut (impl End + ?Sized),
    bytes: usize,
    limit: Duration,
) -> io::Result<Option<Arrival>> {
    let mut deadline = None;
    loop {
        for _ in 0..LOOKS_PER_CLOCK {
            let arrival = end.take(bytes)?;
            if arrival.is_some() {
                return Ok(arrival);
            }
            hint::spin_loop();
        }
        let now = Instant::now();
        if now >= *deadline.get_or_insert(now + limit) {
            return Ok(None);
        }
    }
}

fn send_one_by_one(
    end: &mut (impl End + ?Sized),
    messages: &[u8],
    message_bytes: usize,
) -> io::Result<usize> {
    for (index, message) in messages.chunks(message_bytes).enumerate() {
        if !end.send(message)? {
            return Ok(index);
        }
    }
    Ok(messages.len() / message_bytes)
}

fn round_trip(end: &mut (impl End + ?Sized), payload: &[u8], limit: Duration) -> io::Result<bool> {
    // A message without room is lost, which the time limit shows.
    let _lost = end.send(payload)?;
    let mut give_up = None;
    while end.wait(payload.len(), limit)?.is_some() {
        if answers(end.message(), payload) {
            return Ok(true);
        }
        let now = Instant::now();
        if now >= *give_up.get_or_insert(now + limit) {
            break;
        }
    }
    Ok(false)
}

/// Whether `reply` answers `payload`.
fn answers(reply: &[u8], payload: &[u8]) -> bool {
    let tag = payload.len().min(TAG_BYTES);
    reply.len() == payload.len() && reply[..tag] == payload[..tag]
}

/// Whether a call on a socket only found nothing to do: at once on a non-blocking socket, at its time limit on a
/// blocking one.
fn is_nothing_yet(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_answer_by_length_and_tag() {
        assert!(answers(b"12345678x", b"12345678y"));
        assert!(!answers(b"12345679x", b"12345678x"));
        assert!(!answers(b"1234", b"12345"));
        assert!(answers(b"1", b"1"));
    }
}
