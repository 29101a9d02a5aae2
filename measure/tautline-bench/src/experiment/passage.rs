//! One message at a time from host A to host B: when it left, when it was stamped on the way, when the application
//! had it. Each side has a CPU of its own and spins; no message leaves before the last one has arrived, so that
//! nothing queues.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tautline_testbed::child;
use tautline_testbed::sys::{monotonic_ns, realtime_ns};

use super::side_cpus::{SideCpus, joined};
use crate::path::{End, Stamp};

/// Messages at the start that are not counted: they find caches cold.
const WARM_UP: u32 = 20;
/// Between an arrival and the next message, so that the receiver spins again.
const PAUSE_NS: u64 = 10_000;
/// How long a message may take before it counts as lost. Lower: a stall of a shared machine passes for loss.
const TIME_LIMIT: Duration = Duration::from_millis(100);

/// From when a passage counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum From {
    /// Before the call that sends.
    Sending,
    /// Before the call that receives, which is made when the message waits: the cost of that call.
    Receiving,
}

/// One message's way; nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Passage {
    /// From its start to its stamp, if it has one. Below zero where two clocks do not agree.
    pub(super) to_stamp: Option<i64>,
    /// From its stamp to its end.
    pub(super) from_stamp: Option<i64>,
    pub(super) whole: u64,
}

/// Results of passages of one kind.
#[derive(Clone, Debug, Default)]
pub(super) struct Passages {
    pub(super) list: Vec<Passage>,
    pub(super) lost: u64,
}

impl Passages {
    /// The median of a part of each passage; `None` if none has it.
    pub(super) fn median(&self, part: impl Fn(&Passage) -> Option<i64>) -> Option<f64> {
        let mut parts: Vec<i64> = self.list.iter().filter_map(part).collect();
        parts.sort_unstable();
        parts.get(parts.len() / 2).map(|ns| *ns as f64)
    }
}

/// A message that left: its number, when, and what CLOCK_REALTIME was ahead of CLOCK_MONOTONIC then.
struct Left {
    number: u32,
    at_ns: u64,
    ahead_ns: i64,
    stamp: Option<Stamp>,
}

/// A message that arrived: its number, when it was looked for, its stamp, when the application had it.
struct Arrived {
    number: u32,
    looked_ns: u64,
    stamp: Option<Stamp>,
    at_ns: u64,
}

/// The number of the last message that was sent, and of the last that arrived.
#[derive(Default)]
struct Marks {
    sent: AtomicU32,
    arrived: AtomicU32,
    stop: AtomicBool,
}

/// Sends `count` messages of `bytes`, at least four, and adds their passages.
pub(super) fn pass(
    (sending, receiving): (&mut dyn End, &mut dyn End),
    (bytes, count): (usize, u32),
    from: From,
    place: SideCpus,
    passages: &mut Passages,
) -> io::Result<()> {
    let marks = &Marks::default();
    let (left, arrived) = thread::scope(|scope| {
        let receiver = scope.spawn(move || {
            child::pin(place.receiver_cpu)?;
            receive_all(receiving, bytes, count + WARM_UP, from, marks)
        });
        let sender = scope.spawn(move || {
            child::pin(place.sender_cpu)?;
            send_all(sending, bytes, count + WARM_UP, marks)
        });
        let left = joined(sender.join());
        // Relaxed: the flag carries nothing else, and the join orders the rest.
        marks.stop.store(true, Ordering::Relaxed);
        let arrived: io::Result<_> = joined(receiver.join());
        Ok::<(Vec<Left>, Vec<Arrived>), io::Error>((left?, arrived?))
    })?;
    passages.lost += (left.len() - arrived.len().min(left.len())) as u64;
    let mut rest = left.into_iter();
    for arrival in arrived {
        // Both are in the order of sending; what is passed over was lost.
        let Some(left) = rest.find(|left| left.number == arrival.number) else {
            break;
        };
        if left.number > WARM_UP {
            passages.list.push(passage(&left, &arrival, from));
        }
    }
    Ok(())
}

fn passage(left: &Left, arrival: &Arrived, from: From) -> Passage {
    let start_ns = match from {
        From::Sending => left.at_ns,
        From::Receiving => arrival.looked_ns,
    };
    let stamp = left.stamp.or(arrival.stamp).map(|stamp| match stamp {
        Stamp::Realtime(ns) => ns as i64 - left.ahead_ns,
        Stamp::Monotonic(ns) => ns as i64,
    });
    Passage {
        to_stamp: stamp.map(|at| at - start_ns as i64),
        from_stamp: stamp.map(|at| arrival.at_ns as i64 - at),
        whole: arrival.at_ns.saturating_sub(start_ns),
    }
}

fn send_all(end: &mut dyn End, bytes: usize, count: u32, marks: &Marks) -> io::Result<Vec<Left>> {
    let mut message = vec![0x5a; bytes];
    let mut left = Vec::with_capacity(count as usize);
    // Rest of an earlier turn.
    while end.sent_stamp()?.is_some() {}
    for number in 1..=count {
        let rest_until = monotonic_ns() + PAUSE_NS;
        while monotonic_ns() < rest_until {
            std::hint::spin_loop();
        }
        message[..4].copy_from_slice(&number.to_le_bytes());
        let before_ns = monotonic_ns();
        let real_ns = realtime_ns();
        let at_ns = monotonic_ns();
        if !end.send(&message)? {
            return Err(io::Error::other("there was no room for a single message"));
        }
        // Release: partner is the receiver's Acquire, which may then find the message waiting.
        marks.sent.store(number, Ordering::Release);
        left.push(Left {
            number,
            at_ns,
            ahead_ns: real_ns as i64 - before_ns.midpoint(at_ns) as i64,
            stamp: end.sent_stamp()?,
        });
        let start = Instant::now();
        // Acquire: partner is the receiver's Release; nothing of the last message is under way then.
        while marks.arrived.load(Ordering::Acquire) < number && start.elapsed() < TIME_LIMIT {
            std::hint::spin_loop();
        }
    }
    Ok(left)
}

fn receive_all(
    end: &mut dyn End,
    bytes: usize,
    count: u32,
    from: From,
    marks: &Marks,
) -> io::Result<Vec<Arrived>> {
    let mut arrived = Vec::with_capacity(count as usize);
    let mut last = 0;
    // Relaxed: the flag carries nothing else, and is seen at one of the next looks.
    while last < count && !marks.stop.load(Ordering::Relaxed) {
        if from == From::Receiving && marks.sent.load(Ordering::Acquire) == last {
            std::hint::spin_loop();
            continue;
        }
        let looked_ns = monotonic_ns();
        let Some(arrival) = end.take(bytes)? else {
            continue;
        };
        let at_ns = monotonic_ns();
        let number = number_of(end.message());
        last = number;
        arrived.push(Arrived {
            number,
            looked_ns,
            stamp: arrival.stamp,
            at_ns,
        });
        marks.arrived.store(number, Ordering::Release);
    }
    Ok(arrived)
}

/// The number at the start of a message.
fn number_of(message: &[u8]) -> u32 {
    message
        .first_chunk()
        .map_or(0, |first| u32::from_le_bytes(*first))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_of_both_clocks_come_to_the_same() {
        let left = |stamp| Left {
            number: 1,
            at_ns: 1_000,
            ahead_ns: 500_000,
            stamp,
        };
        let arrived = |stamp| Arrived {
            number: 1,
            looked_ns: 1_700,
            stamp,
            at_ns: 1_900,
        };
        let (real, monotonic) = (Stamp::Realtime(501_300), Stamp::Monotonic(1_300));
        let expected = Passage {
            to_stamp: Some(300),
            from_stamp: Some(600),
            whole: 900,
        };
        for (on_leaving, on_arriving) in [(Some(real), None), (None, Some(monotonic))] {
            let found = passage(&left(on_leaving), &arrived(on_arriving), From::Sending);
            assert_eq!(found, expected);
        }
        let call = passage(&left(None), &arrived(None), From::Receiving);
        assert_eq!((call.whole, call.to_stamp), (200, None));
    }

    #[test]
    fn the_median_is_of_those_that_have_the_part() {
        let of = |to_stamp| Passage {
            to_stamp,
            from_stamp: None,
            whole: 7,
        };
        let passages = Passages {
            list: vec![of(Some(9)), of(None), of(Some(1)), of(Some(3))],
            lost: 0,
        };
        assert_eq!(passages.median(|one| one.to_stamp), Some(3.0));
        assert_eq!(passages.median(|one| one.from_stamp), None);
    }

    #[test]
    fn a_message_begins_with_its_number() {
        assert_eq!(number_of(&[1, 2, 0, 0, 9]), 513);
        assert_eq!(number_of(&[1]), 0);
    }
}
