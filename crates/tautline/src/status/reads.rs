//! Reads of a port's messages by its application, for captures: when each message arrived, and when it was
//! read.
//!
//! A port notes its reads while they are asked for, and for some seconds after. That costs a reading of the clock a
//! message, as latencies do, and a note in a ring of [`READS`](tautline_shm::reads::READS).

use std::collections::HashMap;
use std::io;
use std::num::NonZeroU16;

use serde::{Deserialize, Serialize};
use tautline_proto::time::Instant;
use tautline_proto::wire::raw::EtherType;
use tautline_proto::wire::{PortKey, PortNumber};

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
/// Request for the reads of a port of plain UDP.
const REQUEST_UDP: &[u8; 5] = b"readu";
/// Request for the reads of a raw port.
const REQUEST_RAW: &[u8; 5] = b"readr";
/// Bytes of a request: the word, the port, and the number of the first read that is wanted.
pub(super) const REQUEST_BYTES: usize = REQUEST.len() + 2 + 8;

pub(super) fn request(key: PortKey, seen: u64) -> Vec<u8> {
    let word = match key {
        PortKey::Message(_) => REQUEST,
        PortKey::Udp(_) => REQUEST_UDP,
        PortKey::Raw(_) => REQUEST_RAW,
    };
    [&word[..], &key.number().to_be_bytes(), &seen.to_be_bytes()].concat()
}

/// The port and the number of a request.
pub(super) fn wanted(request: &[u8]) -> Option<(PortKey, u64)> {
    let (word, rest) = request.split_first_chunk()?;
    let (port, seen) = rest.split_first_chunk()?;
    let number = u16::from_be_bytes(*port);
    let port = match word {
        REQUEST => PortKey::Message(PortNumber::new(number)?),
        REQUEST_UDP => PortKey::Udp(NonZeroU16::new(number)?),
        REQUEST_RAW => PortKey::Raw(EtherType::new(number).ok()?),
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
        let mut bytes = Vec::new();
        let ours = PortKey::Message(PortNumber::new(4095).unwrap());
        let raw = PortKey::Raw(EtherType::ETHERCAT);
        for key in [PortKey::Udp(NonZeroU16::MAX), raw, ours] {
            bytes = request(key, u64::MAX);
            assert_eq!(bytes.len(), REQUEST_BYTES);
            assert_eq!(wanted(&bytes), Some((key, u64::MAX)));
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
