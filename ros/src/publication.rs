//! From a port to a topic: a thread for each publication, whose loop is that of `tautline_bridge::publication`. It
//! calls DDS, which refuses what it has no room for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, UNIX_EPOCH};

use rustdds::{QosPolicies, Timestamp};
use tautline::Priority;
use tautline_bridge::activity::Activity;
use tautline_bridge::port::Port;
use tautline_bridge::program::Failure;
use tautline_bridge::publication::{Engine, Fate, Limits, Published, Right, Value};

use crate::cdr;
use crate::config::Publication;
use crate::dds::{Announcement, Participant, Writer};
use crate::status::{PublicationStatus, Unfit};

/// One publication.
pub(crate) struct Outbound {
    config: Publication,
    type_bytes: usize,
    message_bytes: usize,
    quality: QosPolicies,
    participant: Arc<Participant>,
    activity: Arc<Activity>,
    counters: Published,
    unfit: Unfit,
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
            unfit: Unfit::default(),
            config,
        };
        Ok((Arc::new(outbound), writer))
    }

    /// Its topic on DDS.
    pub(crate) fn dds_topic(&self) -> String {
        self.config.topic.dds_topic()
    }

    /// State for queries.
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
            unfit: self.unfit.told(),
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
        let limits = Limits {
            rules: self.config.rules,
            validity: self.config.validity,
            bytes: Some(self.type_bytes),
        };
        limits.publish(port, feed, &self.activity, stop)
    }
}

impl Engine for Feed<'_> {
    /// Opens the writer of a reliable topic anew when this program is no longer active. The old one would send again,
    /// and to later subscribers, what it published before another program took over.
    fn prepare(&mut self) -> Result<(), Failure> {
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

    fn fits(&self, value: &[u8]) -> bool {
        cdr::write(&self.outbound.config.topic.part, value, 0).is_ok()
    }

    fn publish(&mut self, right: &Right, value: Value, bytes: &[u8], _: Option<Priority>) -> Fate {
        let wall = right.wall.duration_since(UNIX_EPOCH).unwrap_or_default();
        let arrived = wall.saturating_sub(right.at.saturating_duration_since(value.arrival));
        let arrived_ns = i64::try_from(arrived.as_nanos()).unwrap_or(i64::MAX);
        let part = &self.outbound.config.topic.part;
        let Ok(message) = cdr::write(part, bytes, arrived_ns) else {
            return Fate::Unfit;
        };
        self.is_used = true;
        let writer = self.writer.as_ref();
        match writer.is_some_and(|writer| writer.send(message, timestamp(wall))) {
            true => Fate::Published,
            false => Fate::Refused,
        }
    }

    fn count(&self, fate: Fate, more: u64) {
        match fate {
            Fate::Unfit => _ = self.outbound.unfit.unfit.fetch_add(more, Relaxed),
            fate => self.outbound.counters.count(fate, more),
        }
    }
}

/// Time of DDS, which counts parts of 2^-32 s, so long after 1970.
fn timestamp(unix: Duration) -> Timestamp {
    let parts = (u64::from(unix.subsec_nanos()) << 32) / 1_000_000_000;
    Timestamp::from_ticks((unix.as_secs() << 32) + parts)
}
