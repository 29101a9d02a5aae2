//! Reads of a port's messages by its application, for whoever captures: when each message arrived, and when it was
//! read.
//!
//! A port notes its reads while somebody asks, and for some seconds after. That costs a reading of the clock a message,
//! as latencies do, and a note in a ring of [`READS`](tautline_shm::reads::READS).

use std::collections::HashMap;
use std::io;

use serde::{Deserialize, Serialize};
use tautline_proto::time::Instant;
use tautline_proto::wire::PortNumber;

use super::serve;

/// Answer of a node about the reads of a port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ReadsTold {
    /// Number of the next read.
    pub(crate) next: u64,
    /// Number of each read, arrival and read in CLOCK_MONOTONIC nanoseconds.
    pub(crate) reads: Vec<(u64, u64, u64)>,
}

/// Request for the reads of a port from a number on.
const REQUEST: &[u8; 5] = b"reads";
/// The same of a port of plain UDP.
const REQUEST_UDP: &[u8; 5] = b"readu";
/// Bytes of a request: the word, the port, and the number of the first read that is wanted.
pub(super) const REQUEST_BYTES: usize = REQUEST.len() + 2 + 8;

/// Port whose reads are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadPort {
    /// A port of ours.
    Tautline(PortNumber),
    /// A port of plain UDP.
    Udp(u16),
}

pub(super) fn request(port: ReadPort, seen: u64) -> Vec<u8> {
    let (word, number) = match port {
        ReadPort::Tautline(number) => (REQUEST, number.get()),
        ReadPort::Udp(number) => (REQUEST_UDP, number),
    };
    [&word[..], &number.to_be_bytes(), &seen.to_be_bytes()].concat()
}

/// The port and the number of a request.
pub(super) fn wanted(request: &[u8]) -> Option<(ReadPort, u64)> {
    let (word, rest) = request.split_first_chunk()?;
    let (port, seen) = rest.split_first_chunk()?;
    let number = u16::from_be_bytes(*port);
    let port = match word {
        REQUEST => ReadPort::Tautline(PortNumber::new(number)?),
        REQUEST_UDP => ReadPort::Udp(number),
        _ => return None,
    };
    Some((port, u64::from_be_bytes(seen.try_into().ok()?)))
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
    port: ReadPort,
    /// Number of the next read of each node.
    seen: HashMap<String, u64>,
}

impl ReadWatch {
    /// A watch of the ports of this number, of all nodes that this user may ask.
    #[must_use]
    pub fn new(port: PortNumber) -> ReadWatch {
        ReadWatch::of(ReadPort::Tautline(port))
    }

    /// The same of ports of plain UDP.
    #[must_use]
    pub fn of_plain_udp(port: u16) -> ReadWatch {
        ReadWatch::of(ReadPort::Udp(port))
    }

    fn of(port: ReadPort) -> ReadWatch {
        ReadWatch {
            port,
            seen: HashMap::new(),
        }
    }

    /// Reads since the last look. The first look has none: reads are noted from then on, until five seconds after the
    /// last look.
    ///
    /// # Errors
    /// If the nodes' directory is not this user's own.
    pub fn look(&mut self) -> io::Result<Vec<PortReads>> {
        let port = self.port;
        let seen = &self.seen;
        let answers = serve::ask_nodes(|node| request(port, seen.get(node).copied().unwrap_or(0)))?;
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
        let mut bytes = Vec::new();
        let ours = ReadPort::Tautline(PortNumber::new(4095).unwrap());
        for port in [ReadPort::Udp(65_535), ours] {
            bytes = request(port, u64::MAX);
            assert_eq!(bytes.len(), REQUEST_BYTES);
            assert_eq!(wanted(&bytes), Some((port, u64::MAX)));
        }
        for wrong in [
            &b"watch"[..],
            b"reads",
            &bytes[..14],
            b"reads\0\0\0\0\0\0\0\0\0\0",
        ] {
            assert_eq!(wanted(wrong), None, "{wrong:?}");
        }
    }
}
