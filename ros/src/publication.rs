//! From a port to a topic: a thread for each publication.
//!
//! The port's memory is the queue between the cell and the network. Whoever sends to the port writes into that memory
//! and goes on, full or not. This thread alone calls DDS, which refuses what it has no room for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustdds::{QosPolicies, Timestamp};
use tautline::{Instant, QueuingPort, SamplingPort, now};
use tautline_bridge::activity::{Activity, Grant};
use tautline_bridge::gate::{Decision, Gate};
use tautline_bridge::port::Port;
use tautline_bridge::program::Failure;

use crate::cdr;
use crate::config::Publication;
use crate::dds::{Announcement, LOOK, Participant, Writer};
use crate::status::{PublicationStatus, Published};

/// One publication.
pub(crate) struct Outbound {
    config: Publication,
    type_bytes: usize,
    message_bytes: usize,
    quality: QosPolicies,
    participant: Arc<Participant>,
    activity: Arc<Activity>,
    counters: Published,
}

/// The topic's writer, by the publication's thread.
struct Feed<'o> {
    outbound: &'o Outbound,
    announcement: &'o Announcement,
    writer: Option<Writer>,
    /// Whether it was given anything.
    is_used: bool,
}

impl Outbound {
    /// Opens the topic.
    ///
    /// # Errors
    /// DDS refuses it.
    pub(crate) fn open(
        config: Publication,
        participant: &Arc<Participant>,
        activity: &Arc<Activity>,
    ) -> Result<(Arc<Self>, Writer), Failure> {
        let declared = config.port.types.receives.as_ref();
        let type_bytes = declared.map_or(0, |declared| declared.bytes());
        let message = cdr::write(&config.topic.part, &vec![0; type_bytes], 0);
        let message_bytes = message.map_or(cdr::PAYLOAD_BYTES_MAX, |message| message.len());
        let writer = participant.writer(&config, message_bytes)?;
        let outbound = Self {
            type_bytes,
            message_bytes,
            quality: writer.quality(),
            participant: Arc::clone(participant),
            activity: Arc::clone(activity),
            counters: Published::default(),
            config,
        };
        Ok((Arc::new(outbound), writer))
    }

    /// Its topic on DDS.
    pub(crate) fn dds_topic(&self) -> String {
        self.config.topic.dds_topic()
    }

    /// State for whoever asks.
    pub(crate) fn status(&self) -> PublicationStatus {
        let topic = &self.config.topic;
        let others = self.participant.readers(topic, &self.quality);
        PublicationStatus {
            port: self.config.port.name.clone(),
            topic: topic.name.clone(),
            message: topic.message.clone(),
            readers: others.matched,
            readers_incompatible: others.incompatible,
            readers_of_other_type: others.other_type,
            other_writers: self.participant.writers(topic, &self.quality).all(),
            counters: self.counters.told(),
        }
    }

    /// Publishes what comes until `stop` is set.
    ///
    /// # Errors
    /// The port can no longer be read, or DDS refuses a new writer.
    pub(crate) fn run(
        &self,
        writer: Writer,
        port: Port,
        announcement: &Announcement,
        stop: &AtomicBool,
    ) -> Result<(), Failure> {
        let feed = Feed {
            outbound: self,
            announcement,
            writer: Some(writer),
            is_used: false,
        };
        match port {
            Port::Queuing(port) => self.run_queuing(feed, port, stop),
            Port::Sampling(port) => self.run_sampling(feed, port, stop),
        }
    }

    fn run_queuing(
        &self,
        mut feed: Feed<'_>,
        mut port: QueuingPort,
        stop: &AtomicBool,
    ) -> Result<(), Failure> {
        let mut buffer = vec![0; port.message_bytes_max()];
        let mut overwritten = 0;
        while !stop.load(Relaxed) {
            feed.forget_what_is_past()?;
            let received = port.receive_until(now() + LOOK, &mut buffer)?;
            count(&self.counters.overwritten, port.overwritten() - overwritten);
            overwritten = port.overwritten();
            let Some(message) = received else { continue };
            feed.publish(message.arrival, &buffer[..message.length]);
        }
        Ok(())
    }

    fn run_sampling(
        &self,
        mut feed: Feed<'_>,
        mut port: SamplingPort,
        stop: &AtomicBool,
    ) -> Result<(), Failure> {
        let mut buffer = vec![0; port.value_bytes_max()];
        let mut gate = Gate::new(self.config.rules, buffer.len());
        // A value whose time has not come: the time, its arrival, and its bytes.
        let mut held: Option<(Instant, Instant)> = None;
        let mut held_bytes: Vec<u8> = Vec::with_capacity(buffer.len());
        let mut term = 0;
        while !stop.load(Relaxed) {
            feed.forget_what_is_past()?;
            let look = now() + LOOK;
            let until = held.map_or(look, |(due, _)| due.min(look));
            let came = port.read_new_until(until, &mut buffer)?;
            if let Some((due, arrival)) = held.filter(|(due, _)| came.is_none() && *due <= now()) {
                held = None;
                match gate.judge(now().max(due), &held_bytes) {
                    Decision::Publish => feed.publish(arrival, &held_bytes),
                    _ => count(&self.counters.unchanged, 1),
                }
            }
            let Some(sample) = came else { continue };
            count(&self.counters.overwritten, sample.overwritten);
            if held.take().is_some() {
                count(&self.counters.thinned, 1);
            }
            let Some(grant) = self.admit(sample.arrival) else {
                continue;
            };
            if grant.term != term {
                term = grant.term;
                gate.reset();
            }
            let bytes = &buffer[..sample.length];
            match gate.offer(now(), bytes) {
                Decision::Publish => feed.publish(sample.arrival, bytes),
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

    /// The right to publish a value that arrived at `arrival`; counted if there is none.
    fn admit(&self, arrival: Instant) -> Option<Grant> {
        let grant = self.activity.now();
        let grant = grant.filter(|grant| arrival >= grant.since);
        if grant.is_none() {
            count(&self.counters.standby, 1);
        }
        grant
    }
}

impl Feed<'_> {
    fn publish(&mut self, arrival: Instant, value: &[u8]) {
        // Before the look at the right: a process that is stopped behind that look sends a value of before, whose time
        // is that of before, too.
        let written = Timestamp::now();
        if self.outbound.admit(arrival).is_none() {
            return;
        }
        let Outbound {
            config,
            type_bytes,
            counters,
            ..
        } = self.outbound;
        let held = now().saturating_duration_since(arrival);
        let counter = if value.len() != *type_bytes {
            &counters.other_size
        } else if config.validity.is_some_and(|limit| held > limit) {
            &counters.stale
        } else {
            let message = cdr::write(&config.topic.part, value, unix_ns(held));
            self.is_used |= message.is_ok();
            let writer = self.writer.as_ref();
            match message.map(|message| writer.is_some_and(|writer| writer.send(message, written)))
            {
                Ok(true) => &counters.published,
                Ok(false) => &counters.refused,
                Err(_) => &counters.unfit,
            }
        };
        count(counter, 1);
    }

    /// Opens the writer of a reliable topic anew when this program is no longer active. The old one would send again,
    /// and to those who come later, what it published before another program took over.
    fn forget_what_is_past(&mut self) -> Result<(), Failure> {
        let outbound = self.outbound;
        let is_kept = self.is_used && outbound.config.topic.reliable;
        if !is_kept || outbound.activity.now().is_some() {
            return Ok(());
        }
        let old = self.writer.take().map(|writer| writer.number());
        let (config, bytes) = (&outbound.config, outbound.message_bytes);
        let writer = outbound.participant.writer(config, bytes)?;
        self.announcement.replace(old, writer.number());
        self.writer = Some(writer);
        self.is_used = false;
        Ok(())
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
