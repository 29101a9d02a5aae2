//! Throughput of an interface over time, from the counters that the kernel keeps of it.

use std::fs;
use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tautline_state::interface::counters_in;
use tautline_testbed::hosts::{Host, Hosts};

use super::ExperimentError;

/// From one look at the counters to the next. Lower: the looks disturb what is measured. Higher: a pause of the traffic
/// is averaged away.
const INTERVAL: Duration = Duration::from_millis(100);
/// The counters of the calling thread's network namespace.
const COUNTERS: &str = "/proc/thread-self/net/dev";
/// Of the columns after an interface's name: bytes sent, after the eight of receiving.
const BYTES_SENT: usize = 8;

/// Bytes sent in a stretch of time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Interval {
    pub(super) length: Duration,
    pub(super) bits_per_s: f64,
}

/// Bytes that a host sends over a cable in each tenth of a second until `stop` is set, and in the rest: at least one
/// interval.
pub(super) fn trace(
    hosts: &Hosts,
    host: Host,
    cable: usize,
    stop: &AtomicBool,
) -> Result<Vec<Interval>, ExperimentError> {
    let interface = hosts.end(host, cable).interface();
    let look = || -> io::Result<(Instant, u64)> {
        let text = fs::read_to_string(COUNTERS)?;
        let bytes = bytes_sent(&text, &interface).ok_or(ErrorKind::NotFound)?;
        Ok((Instant::now(), bytes))
    };
    let follow = || -> io::Result<Vec<Interval>> {
        let mut intervals = Vec::new();
        let mut last = look()?;
        loop {
            let end = last.0 + INTERVAL;
            // Relaxed: the flag carries nothing else, and is seen at one of the next looks.
            while Instant::now() < end && !stop.load(Ordering::Relaxed) {
                thread::sleep(INTERVAL / 10);
            }
            let now = look()?;
            let length = now.0 - last.0;
            let bits = (now.1 - last.1) as f64 * 8.0;
            intervals.push(Interval {
                length,
                bits_per_s: bits / length.as_secs_f64(),
            });
            if stop.load(Ordering::Relaxed) {
                return Ok(intervals);
            }
            last = now;
        }
    };
    hosts
        .inside(host, follow)?
        .map_err(ExperimentError::io(format!("read {COUNTERS}")))
}

/// The bytes that an interface has sent, of the table in `COUNTERS`.
fn bytes_sent(text: &str, interface: &str) -> Option<u64> {
    counters_in(text, interface).get(BYTES_SENT).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counter_is_that_of_the_interface_and_of_sending() {
        let text = "Inter-|   Receive  |  Transmit\n \
                    face |bytes packets errs drop fifo frame compressed multicast|bytes packets\n    \
                    lo: 1 2 3 4 5 6 7 8 9 10 0 0 0 0 0 0\n tl0a1: 11 0 0 0 0 0 0 0 4321 7 0 0 0 0 0 0\n";
        assert_eq!(bytes_sent(text, "tl0a1"), Some(4321));
        assert_eq!(bytes_sent(text, "lo"), Some(9));
        assert_eq!(bytes_sent(text, "tl0a"), None);
        assert_eq!(bytes_sent("lo: 1 2", "lo"), None);
    }
}
