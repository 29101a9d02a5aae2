//! From a port to a topic: a thread for each publication.
//!
//! The port's memory is the queue between the cell and the network. Whoever sends to the port writes into that memory
//! and goes on, full or not. This thread alone calls DDS, which refuses what it has no room for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tautline::{Instant, QueuingPort, SamplingPort, now};
use tautline_bridge::gate::{Decision, Gate};
use tautline_bridge::port::Port;
use tautline_bridge::program::Failure;

use crate::cdr;
use crate::config::Publication;
use crate::dds::{LOOK, Participant, Writer};
use crate::status::{PublicationStatus, Published};

/// One publication.
pub(crate) struct Outbound {
    config: Publication,
    type_bytes: usize,
    writer: Writer,
    counters: Published,
}

impl Outbound {
    /// Opens the topic.
    ///
    /// # Errors
    /// DDS refuses it.
    pub(crate) fn open(
        config: Publication,
        participant: &Participant,
    ) -> Result<Arc<Self>, Failure> {
        let declared = config.port.types.receives.as_ref();
        let type_bytes = declared.map_or(0, |declared| declared.bytes());
        let message = cdr::write(&config.topic.part, &vec![0; type_bytes], 0);
        let message_bytes = message.map_or(cdr::PAYLOAD_BYTES_MAX, |message| message.len());
        Ok(Arc::new(Self {
            writer: participant.writer(&config, message_bytes)?,
            type_bytes,
            config,
            counters: Published::default(),
        }))
    }

    /// The topic's writer.
    pub(crate) fn writer(&self) -> &Writer {
        &self.writer
    }

    /// State for whoever asks.
    pub(crate) fn status(&self, participant: &Participant) -> PublicationStatus {
        let others = participant.readers(&self.config.topic, &self.writer.quality());
        PublicationStatus {
            port: self.config.port.name.clone(),
            topic: self.config.topic.name.clone(),
            message: self.config.topic.message.clone(),
            readers: others.matched,
            readers_incompatible: others.incompatible,
            readers_of_other_type: others.other_type,
            counters: self.counters.told(),
        }
    }

    /// Publishes what comes until `stop` is set.
    ///
    /// # Errors
    /// The port can no longer be read.
    pub(crate) fn run(&self, port: Port, stop: &AtomicBool) -> Result<(), Failure> {
        match port {
            Port::Queuing(port) => self.run_queuing(port, stop),
            Port::Sampling(port) => self.run_sampling(port, stop),
        }
    }

    fn run_queuing(&self, mut port: QueuingPort, stop: &AtomicBool) -> Result<(), Failure> {
        let mut buffer = vec![0; port.message_bytes_max()];
        let mut overwritten = 0;
        while !stop.load(Relaxed) {
            let received = port.receive_until(now() + LOOK, &mut buffer)?;
            count(&self.counters.overwritten, port.overwritten() - overwritten);
            overwritten = port.overwritten();
            let Some(message) = received else { continue };
            self.publish(message.arrival, &buffer[..message.length]);
        }
        Ok(())
    }

    fn run_sampling(&self, mut port: SamplingPort, stop: &AtomicBool) -> Result<(), Failure> {
        let mut buffer = vec![0; port.value_bytes_max()];
        let mut gate = Gate::new(self.config.rules, buffer.len());
        // A value whose time has not come: the time, its arrival, and its bytes.
        let mut held: Option<(Instant, Instant)> = None;
        let mut held_bytes: Vec<u8> = Vec::with_capacity(buffer.len());
        while !stop.load(Relaxed) {
            let look = now() + LOOK;
            let until = held.map_or(look, |(due, _)| due.min(look));
            let came = port.read_new_until(until, &mut buffer)?;
            if let Some((due, arrival)) = held.filter(|(due, _)| came.is_none() && *due <= now()) {
                held = None;
                match gate.judge(now().max(due), &held_bytes) {
                    Decision::Publish => self.publish(arrival, &held_bytes),
                    _ => count(&self.counters.unchanged, 1),
                }
            }
            let Some(sample) = came else { continue };
            count(&self.counters.overwritten, sample.overwritten);
            if held.take().is_some() {
                count(&self.counters.thinned, 1);
            }
            let bytes = &buffer[..sample.length];
            match gate.offer(now(), bytes) {
                Decision::Publish => self.publish(sample.arrival, bytes),
                Decision::Decimated => count(&self.counters.decimated, 1),
                Decision::Unchanged => count(&self.counters.unchanged, 1),
                Decision::Later(due) => {
                    held_bytes.clear();
                    held_bytes.extend_from_slice(bytes);
                    held = Some((due, sample.arrival));
                }
            }
        }
        Ok(())
    }

    fn publish(&self, arrival: Instant, value: &[u8]) {
        let held = now().saturating_duration_since(arrival);
        let counters = &self.counters;
        let counter = if value.len() != self.type_bytes {
            &counters.other_size
        } else if self.config.validity.is_some_and(|limit| held > limit) {
            &counters.stale
        } else {
            let message = cdr::write(&self.config.topic.part, value, unix_ns(held));
            match message.map(|message| self.writer.send(message)) {
                Ok(true) => &counters.published,
                Ok(false) => &counters.refused,
                Err(_) => &counters.unfit,
            }
        };
        count(counter, 1);
    }
}

/// Wall clock so long ago.
fn unix_ns(ago: Duration) -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let then = now.unwrap_or_default().saturating_sub(ago);
    i64::try_from(then.as_nanos()).unwrap_or(i64::MAX)
}

fn count(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Relaxed);
}
