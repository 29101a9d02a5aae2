//! Reads of a port's messages by its application, for captures: when each message arrived, and when it was
//! read.
//!
//! A port notes its reads while they are asked for, and for some seconds after. That costs a reading of the clock a
//! message, as latencies do, and a note in a ring of [`READS`](tautline_shm::reads::READS).

use std::collections::HashMap;
use std::io;

use serde::{Deserialize, Serialize};
use tautline_proto::time::Instant;
use tautline_proto::wire::PortKey;

use super::serve;

/// Answer of a node about the reads of a port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ReadsTold {
    /// Number of the next read.
    pub(crate) next: u64,
    /// Number of each read, arrival and read in CLOCK_MONOTONIC nanoseconds.
    pub(crate) reads: Vec<(u64, u64, u64)>,
}

/// Request for the reads of a port from a number on: this word, the key, and the number of the first read.
const REQUEST: &str = "reads";
/// Bytes of the longest request.
pub(super) const REQUEST_BYTES: usize = "reads raw:0xffff 18446744073709551615".len();

pub(super) fn request(key: PortKey, seen: u64) -> Vec<u8> {
    format!("{REQUEST} {} {seen}", key.short()).into()
}

/// The port and the number of a request.
pub(super) fn wanted(request: &[u8]) -> Option<(PortKey, u64)> {
    let words = str::from_utf8(request).ok()?.split(' ');
    let [REQUEST, key, seen] = words.collect::<Vec<_>>()[..] else {
        return None;
    };
    Some((key.parse().ok()?, seen.parse().ok()?))
}

/// Reads of a port of one process, since the last look.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortReads {
    /// The process.
    pub process: u32,
    /// Arrival and read of each message, by CLOCK_MONOTONIC, in the order of the reads.
    pub reads: Vec<(Instant, Instant)>,
    /// Reads that were written over before they were told.
    pub missed: u64,
}

/// Asks the nodes of this machine for the reads of a port, again and again.
#[derive(Debug)]
pub struct ReadWatch {
    key: PortKey,
    /// Number of the next read of each node.
    seen: HashMap<String, u64>,
}

impl ReadWatch {
    /// A watch of the ports with this key, of all nodes that this user may ask.
    #[must_use]
    pub fn new(key: PortKey) -> ReadWatch {
        ReadWatch {
            key,
            seen: HashMap::new(),
        }
    }

    /// Reads since the last look. The first look has none: reads are noted from then on, until five seconds after the
    /// last look.
    ///
    /// # Errors
    /// If the nodes' directory is not this user's own.
    pub fn look(&mut self) -> io::Result<Vec<PortReads>> {
        let key = self.key;
        let seen = &self.seen;
        let answers = serve::ask_nodes(|node| request(key, seen.get(node).copied().unwrap_or(0)))?;
        let mut all = Vec::new();
        for (node, answer) in answers {
            // A node of an older release answers with its status.
            let Ok(told) = serde_json::from_value::<ReadsTold>(answer) else {
                continue;
            };
            let process = node.split('-').next().and_then(|pid| pid.parse().ok());
            let reads = told.reads.iter().map(|(_, arrival, read)| {
                (Instant::from_nanos(*arrival), Instant::from_nanos(*read))
            });
            let before = self.seen.insert(node, told.next);
            let due = before.map_or(0, |before| told.next.saturating_sub(before));
            all.push(PortReads {
                process: process.unwrap_or(0),
                missed: due.saturating_sub(told.reads.len() as u64),
                reads: reads.collect(),
            });
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_come_back_and_others_are_none() {
        for key in ["4095", "udp:65535", "raw:0x88a4"] {
            let key = key.parse().unwrap();
            let bytes = request(key, u64::MAX);
            assert!(bytes.len() <= REQUEST_BYTES);
            assert_eq!(wanted(&bytes), Some((key, u64::MAX)));
        }
        for wrong in [
            "watch",
            "reads",
            "reads 7",
            "reads 7 -1",
            "reads 0 1",
            "reads 7 1 1",
        ] {
            assert_eq!(wanted(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
