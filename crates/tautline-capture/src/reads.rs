//! Reads by applications: when a message arrived at a port of this machine, and when it was read.
//!
//! The nodes tell them ([`ReadWatch`]). Asking takes a while, and up to a second if a node is silent, so a thread does
//! it beside the capture.

use std::io;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use tautline::status::{PortReads, ReadWatch};
use tautline::{EtherType, PortKey, PortNumber};

use crate::batch::{Batch, Origin, Way};
use crate::sys;

/// Time between two questions. Lower: nodes work more. Higher: a port that is read more often than 10,240 times a
/// second has reads written over before they are told.
const PAUSE: Duration = Duration::from_millis(100);

/// Longest wait for the last answer: a node may take a second, twice. Lower: reads at the end are missing on a busy
/// machine. Higher: a capture ends later beside a node that is stopped.
const LAST_WAIT_MAX: Duration = Duration::from_secs(2);

/// Version of the head.
const VERSION: u8 = 1;
/// Kind of the port, in a file.
const KIND_TAUTLINE: u8 = 0;
const KIND_UDP: u8 = 1;
const KIND_RAW: u8 = 2;
/// Bytes of a read in a file; docs/reference/capture.md has the fields.
const READ_BYTES: usize = 24;

/// Source of the reads of a port.
#[derive(Debug)]
pub(crate) struct ReadTap {
    port: PortKey,
    told: Receiver<Told>,
    lost: u64,
}

/// Answer of the nodes, and when they were asked.
type Told = (Instant, io::Result<Vec<PortReads>>);

/// A read as it lies in a batch and in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageRead {
    /// Port that the message came for.
    pub port: PortKey,
    /// Process that read it.
    pub process: u32,
    /// When it arrived, nanoseconds since 1970.
    pub arrival_ns: u64,
    /// Time from then to the read.
    pub waited_ns: u64,
}

impl MessageRead {
    fn to_bytes(self) -> [u8; READ_BYTES] {
        let mut bytes = [0; READ_BYTES];
        bytes[0] = VERSION;
        bytes[1] = match self.port {
            PortKey::Message(_) => KIND_TAUTLINE,
            PortKey::Udp(_) => KIND_UDP,
            PortKey::Raw(_) => KIND_RAW,
        };
        bytes[2..4].copy_from_slice(&self.port.number().to_be_bytes());
        bytes[4..8].copy_from_slice(&self.process.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.arrival_ns.to_be_bytes());
        bytes[16..].copy_from_slice(&self.waited_ns.to_be_bytes());
        bytes
    }

    /// A read from its bytes; `None` if they are something else.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<MessageRead> {
        let bytes: &[u8; READ_BYTES] = bytes.try_into().ok()?;
        let long = |from: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[from..from + 8]);
            u64::from_be_bytes(word)
        };
        let number = u16::from_be_bytes([bytes[2], bytes[3]]);
        let port = match bytes[1] {
            KIND_TAUTLINE => PortNumber::new(number)?.into(),
            KIND_UDP => PortKey::udp(number).ok()?,
            KIND_RAW => EtherType::new(number).ok()?.into(),
            _ => return None,
        };
        (bytes[0] == VERSION).then(|| MessageRead {
            port,
            process: u32::from_be_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
            arrival_ns: long(8),
            waited_ns: long(16),
        })
    }
}

impl ReadTap {
    /// Begins to watch the reads of the ports with this key, of all nodes that this user may ask.
    pub(crate) fn open(port: PortKey) -> io::Result<ReadTap> {
        let mut watch = ReadWatch::new(port);
        // From here on reads are noted.
        watch.look()?;
        let (tell, told) = mpsc::channel();
        let work = move || {
            // Until the receiver is gone.
            while tell.send((Instant::now(), watch.look())).is_ok() {
                thread::sleep(PAUSE);
            }
        };
        thread::Builder::new()
            .name("taut-reads".to_owned())
            .spawn(work)?;
        Ok(ReadTap {
            port,
            told,
            lost: 0,
        })
    }

    /// Copies what has been told since the last look.
    pub(crate) fn look(&mut self, origin: Origin, batch: &mut Batch) -> io::Result<()> {
        while let Ok((_, told)) = self.told.try_recv() {
            self.take(told?, origin, batch);
        }
        Ok(())
    }

    /// The reads at the end, with the answers of nodes that are asked from now on. Waits for their answers.
    pub(crate) fn look_last(&mut self, origin: Origin, batch: &mut Batch) -> io::Result<()> {
        let now = Instant::now();
        while let Ok((asked, told)) = self.told.recv_timeout(LAST_WAIT_MAX) {
            self.take(told?, origin, batch);
            if asked >= now {
                break;
            }
        }
        Ok(())
    }

    fn take(&mut self, told: Vec<PortReads>, origin: Origin, batch: &mut Batch) {
        let offset = sys::epoch_offset();
        for node in told {
            let mut lost = node.missed;
            self.lost += lost;
            for (arrival, read) in node.reads {
                let found = MessageRead {
                    port: self.port,
                    process: node.process,
                    arrival_ns: arrival.as_nanos().saturating_add(offset),
                    waited_ns: read.as_nanos().saturating_sub(arrival.as_nanos()),
                };
                let at = read.as_nanos().saturating_add(offset);
                let bytes = found.to_bytes();
                batch.push(origin, at, Way::Received, READ_BYTES, &[&bytes], lost);
                lost = 0;
            }
        }
    }

    /// Reads that were not told.
    pub(crate) fn lost(&self) -> u64 {
        self.lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_comes_back_from_its_bytes() {
        let read = MessageRead {
            port: PortKey::udp(7).unwrap(),
            process: 70_000,
            arrival_ns: 1 << 60,
            waited_ns: 12_345,
        };
        let bytes = read.to_bytes();
        assert_eq!(MessageRead::from_bytes(&bytes), Some(read));
        assert_eq!(MessageRead::from_bytes(&bytes[1..]), None);
        assert_eq!(MessageRead::from_bytes(&[0; READ_BYTES]), None);
    }
}
