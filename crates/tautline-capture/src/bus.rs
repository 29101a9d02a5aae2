//! Messages of buses, as a watcher sees them: senders and receivers do nothing for it.

use std::time::{Duration, Instant};

use tautline::address::Address;
use tautline::port::PortKind;
use tautline::vbus::{self, ObserveError, Observer, PortName, Tap};

use crate::batch::{Batch, Origin, Way};
use crate::sys;

/// Time between two queries for ports and their senders. Lower: answers take more time of the ports. Higher: more of a
/// new port's messages is missed.
const REFRESH: Duration = Duration::from_millis(100);
/// Least time between two looks where a new sender is there. Lower: senders that come and go without end take time of
/// those who answer. Higher: more of one that comes and goes is lost.
const REFRESH_FOR_SENDER: Duration = Duration::from_millis(1);

/// Messages that are taken from one port in one look, so that a fast one does not keep the others waiting.
const PORT_MESSAGES_MAX: usize = 1024;

/// Bytes before the names in the head of a message in a file.
const HEAD_FIXED_BYTES: usize = 14;
/// Bytes of the longest head: with two names.
const BUS_HEAD_BYTES: usize = HEAD_FIXED_BYTES + 2 * 63;
const HEAD_VERSION: u8 = 1;

/// Copies the messages of a bus.
#[derive(Debug)]
pub struct BusTap {
    bus: String,
    /// Port that is watched alone.
    only: Option<PortName>,
    taps: Vec<Tap>,
    /// Ports that may not be watched, so that each is told once.
    refused: Vec<PortName>,
    refreshed: Option<Instant>,
    /// Of ports that have closed.
    lost_before: u64,
    notes: Vec<String>,
    buffer: Vec<u8>,
    epoch_offset: u64,
}

impl BusTap {
    /// Begins to copy the messages of a bus, by its path; of one port, if that is named.
    #[must_use]
    pub fn open(bus: &str, only: Option<PortName>) -> Self {
        let mut tap = Self {
            bus: bus.to_owned(),
            only,
            taps: Vec::new(),
            refused: Vec::new(),
            refreshed: None,
            lost_before: 0,
            notes: Vec::new(),
            buffer: Vec::new(),
            epoch_offset: sys::epoch_offset(),
        };
        tap.refresh();
        tap
    }

    /// Sentences about what is not seen, each once.
    pub fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    /// Messages that were overwritten before they were copied, or whose sender had gone by then; of sampling ports,
    /// values that were replaced.
    #[must_use]
    pub fn lost(&self) -> u64 {
        let now = self.taps.iter().map(Tap::missed);
        now.fold(self.lost_before, u64::saturating_add)
    }

    /// Copies the messages that have been published since the last look. Never waits for a message.
    pub fn look(&mut self, origin: Origin, batch: &mut Batch) {
        self.copy(origin, batch);
        if self.is_refresh_due() {
            self.refresh();
            self.copy(origin, batch);
        }
    }

    /// The last look: what is lost is known after it.
    pub fn look_last(&mut self, origin: Origin, batch: &mut Batch) {
        self.copy(origin, batch);
        self.refresh();
        self.copy(origin, batch);
    }

    fn is_refresh_due(&self) -> bool {
        let since = self.refreshed.map_or(REFRESH, |last| last.elapsed());
        since >= REFRESH || since >= REFRESH_FOR_SENDER && self.taps.iter().any(Tap::has_new_sender)
    }

    fn copy(&mut self, origin: Origin, batch: &mut Batch) {
        for tap in &mut self.taps {
            let to = tap.observer().name();
            let kind = tap.observer().kind();
            for _ in 0..PORT_MESSAGES_MAX {
                let before = tap.missed();
                let Some(found) = tap.look(&mut self.buffer) else {
                    break;
                };
                let Address::Bus(from) = found.source.address else {
                    continue;
                };
                let message = BusMessage {
                    kind,
                    priority: found.priority.get(),
                    from: PortName {
                        node: from,
                        port: found.source.port,
                    },
                    to,
                    sequence: found.sequence,
                };
                let (head, head_bytes) = message.head();
                let payload = &self.buffer[..found.length];
                batch.push(
                    origin,
                    found.published.as_nanos().saturating_add(self.epoch_offset),
                    Way::Received,
                    head_bytes + found.length,
                    &[&head[..head_bytes], payload],
                    tap.missed() - before,
                );
            }
        }
    }

    /// Queries the ports and their senders.
    fn refresh(&mut self) {
        self.refreshed = Some(Instant::now());
        self.epoch_offset = sys::epoch_offset();
        let mut closed = 0;
        self.taps.retain_mut(|tap| match tap.refresh() {
            // Busy or stopped: its memory can be watched all the same.
            Ok(()) | Err(ObserveError::Silent { .. }) => true,
            Err(_) => {
                closed = tap.missed().saturating_add(closed);
                false
            }
        });
        self.lost_before = self.lost_before.saturating_add(closed);
        for name in self.ports_there() {
            let is_known = self.taps.iter().any(|tap| tap.observer().name() == name);
            if is_known || self.refused.contains(&name) {
                continue;
            }
            match Observer::open(&self.bus, name) {
                Ok(observer) => {
                    let bytes = observer.message_bytes_max().max(self.buffer.len());
                    self.buffer.resize(bytes, 0);
                    self.taps.push(Tap::new(observer));
                }
                Err(ObserveError::NoPort { .. } | ObserveError::Silent { .. }) => {}
                Err(error) => {
                    self.refused.push(name);
                    self.notes.push(format!("{name} is not seen: {error}"));
                }
            }
        }
    }

    fn ports_there(&self) -> Vec<PortName> {
        let there = vbus::bus(&vbus::path(&self.bus));
        let ports = there.map_or_else(|_| Vec::new(), |bus| bus.ports);
        ports
            .into_iter()
            .filter(|port| self.only.is_none_or(|only| only == *port))
            .collect()
    }
}

/// Everything about a message of a bus but its bytes, as it stands before them in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BusMessage {
    /// Kind of the receiving port.
    pub kind: PortKind,
    /// Priority of the message.
    pub priority: u8,
    /// Sender.
    pub from: PortName,
    /// Receiver.
    pub to: PortName,
    /// Number of the message in its flow.
    pub sequence: u32,
}

impl BusMessage {
    fn head(&self) -> ([u8; BUS_HEAD_BYTES], usize) {
        let mut head = [0; BUS_HEAD_BYTES];
        let names = [self.from.node, self.to.node].map(|name| name.to_string());
        head[0] = HEAD_VERSION;
        head[1] = match self.kind {
            PortKind::Queuing => 1,
            PortKind::Sampling => 2,
        };
        head[2] = self.priority;
        head[4..6].copy_from_slice(&self.to.port.get().to_be_bytes());
        head[6..8].copy_from_slice(&self.from.port.get().to_be_bytes());
        head[8..12].copy_from_slice(&self.sequence.to_be_bytes());
        let mut end = HEAD_FIXED_BYTES;
        for (place, name) in names.iter().enumerate() {
            head[12 + place] = name.len() as u8;
            head[end..end + name.len()].copy_from_slice(name.as_bytes());
            end += name.len();
        }
        (head, end)
    }
}

/// A message as [`BusTap`] copies it: its head, and its bytes.
#[must_use]
pub fn bus_message(bytes: &[u8]) -> Option<(BusMessage, &[u8])> {
    let fixed = bytes.get(..HEAD_FIXED_BYTES)?;
    if fixed[0] != HEAD_VERSION {
        return None;
    }
    let number = |at: usize| u16::from_be_bytes([fixed[at], fixed[at + 1]]);
    let [first, second] = [usize::from(fixed[12]), usize::from(fixed[13])];
    let names = bytes.get(HEAD_FIXED_BYTES..)?;
    let name = |from: usize, length: usize, port: u16| {
        let node = std::str::from_utf8(names.get(from..from + length)?).ok()?;
        format!("{node}.{port}").parse::<PortName>().ok()
    };
    let message = BusMessage {
        kind: match fixed[1] {
            1 => PortKind::Queuing,
            2 => PortKind::Sampling,
            _ => return None,
        },
        priority: fixed[2],
        from: name(0, first, number(6))?,
        to: name(first, second, number(4))?,
        sequence: u32::from_be_bytes(fixed[8..12].try_into().ok()?),
    };
    Some((message, names.get(first + second..)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_survive_the_way() {
        let message = BusMessage {
            kind: PortKind::Sampling,
            priority: 6,
            from: "camera.4000".parse().unwrap(),
            to: format!("{}.7", "n".repeat(31)).parse().unwrap(),
            sequence: 0x0102_0304,
        };
        let (head, length) = message.head();
        let bytes = [&head[..length], b"payload"].concat();
        assert_eq!(bus_message(&bytes), Some((message, &b"payload"[..])));
        for cut in 0..length {
            assert_eq!(bus_message(&bytes[..cut]), None, "{cut}");
        }
        let mut other = bytes;
        other[0] = 2;
        assert_eq!(bus_message(&other), None);
    }
}
