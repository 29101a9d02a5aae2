//! The participant of DDS, by the crate `rustdds`: topics of bytes, other participants, and the announcement by which
//! ROS shows a node.
//!
//! `rustdds` matches a reader with every writer of the same topic, whatever its type is called. So a message is taken
//! only if its writer has announced the topic's type.

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use byteorder::LittleEndian;
use rustdds::no_key::{
    DataWriter, Decode, DefaultDecoder, DeserializerAdapter, SerializerAdapter, SimpleDataReader,
};
use rustdds::policy::{Deadline, Durability, History, Lifespan, Reliability, ResourceLimits};
use rustdds::{
    DomainParticipant, DomainParticipantBuilder, GUID, Publisher, QosPolicies, QosPolicyBuilder,
    RTPSEntity, RepresentationIdentifier, Subscriber, Timestamp, Topic as DdsTopic, TopicKind,
};
use serde::Serialize;
use tautline_bridge::program::Failure;

use crate::cdr::{Order, PAYLOAD_BYTES_MAX};
use crate::config::{Publication, Subscription, Topic};

/// Bytes of messages that wait for a reliable participant that does not acknowledge them. Lower: a burst to a slow
/// participant is refused. Higher: memory for each publication.
const WINDOW_BYTES_MAX: usize = 1 << 20;
/// Messages that wait for such a participant at least, and at most.
const WINDOW: (usize, usize) = (16, 1_024);
/// Writers whose types are remembered for each subscription. Lower: with more of them, each is looked for again and
/// again. Higher: a hostile participant takes more memory.
const WRITERS_MAX: usize = 64;

/// Longest wait of a thread before it looks whether it is to end. Lower: more wake-ups. Higher: an end takes longer.
pub(crate) const LOOK: Duration = Duration::from_millis(100);

/// A message as bytes, without the four bytes of the encapsulation.
pub(crate) struct Payload {
    pub(crate) bytes: Vec<u8>,
    pub(crate) order: Order,
}

/// Passes bytes between topics and this program.
pub(crate) struct Bytes;

impl SerializerAdapter<Payload> for Bytes {
    type Error = io::Error;

    fn output_encoding() -> RepresentationIdentifier {
        RepresentationIdentifier::CDR_LE
    }

    fn to_bytes(value: &Payload) -> io::Result<rustdds::bytes::Bytes> {
        Ok(rustdds::bytes::Bytes::copy_from_slice(&value.bytes))
    }
}

impl DeserializerAdapter<Payload> for Bytes {
    type Error = io::Error;
    type Decoded = Payload;

    fn supported_encodings() -> &'static [RepresentationIdentifier] {
        &[
            RepresentationIdentifier::CDR_LE,
            RepresentationIdentifier::CDR_BE,
        ]
    }

    fn transform_decoded(decoded: Payload) -> Payload {
        decoded
    }
}

/// Copies a message, up to the largest.
#[derive(Clone)]
pub(crate) struct Copied;

impl<'de> Decode<'de, Payload> for Copied {
    type Error = io::Error;

    fn decode_bytes(
        self,
        bytes: &'de [u8],
        encoding: RepresentationIdentifier,
    ) -> io::Result<Payload> {
        if bytes.len() > PAYLOAD_BYTES_MAX {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let order = match encoding {
            RepresentationIdentifier::CDR_BE => Order::Big,
            _ => Order::Little,
        };
        Ok(Payload {
            bytes: bytes.to_vec(),
            order,
        })
    }
}

impl DefaultDecoder<Payload> for Bytes {
    type Decoder = Copied;
    const DECODER: Copied = Copied;
}

/// Participants of a topic, as far as discovery knows them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Others {
    /// Those that exchange messages with this program.
    pub(crate) matched: usize,
    /// Those whose quality of service does not fit.
    pub(crate) incompatible: usize,
    /// Those that mean another type by the topic's name.
    pub(crate) other_type: usize,
}

/// A participant.
pub(crate) struct Participant {
    inner: DomainParticipant,
    publisher: Publisher,
    subscriber: Subscriber,
}

impl Participant {
    /// Joins a domain, on the interfaces that have the given addresses; on all of them if none is given.
    ///
    /// # Errors
    /// No sockets, or no thread.
    pub(crate) fn join(domain: u16, networks: &[IpAddr]) -> Result<Self, Failure> {
        let builder = DomainParticipantBuilder::new(domain);
        let inner = match networks {
            [] => builder.build(),
            some => builder.with_only_networks(some.iter().copied()).build(),
        }?;
        let plain = QosPolicyBuilder::new().build();
        Ok(Self {
            publisher: inner.create_publisher(&plain)?,
            subscriber: inner.create_subscriber(&plain)?,
            inner,
        })
    }

    fn topic(&self, topic: &Topic, quality: &QosPolicies) -> Result<DdsTopic, Failure> {
        let (name, of) = (topic.dds_topic(), topic.dds_type());
        Ok(self
            .inner
            .create_topic(name, of, quality, TopicKind::NoKey)?)
    }

    /// Opens the writer of a publication.
    ///
    /// # Errors
    /// `rustdds` refuses it.
    pub(crate) fn writer(&self, of: &Publication, message_bytes: usize) -> Result<Writer, Failure> {
        let window = (WINDOW_BYTES_MAX / message_bytes.max(1)).clamp(WINDOW.0, WINDOW.1);
        let mut quality = base(&of.topic, window.max(of.topic.depth.into()));
        if of.durable {
            quality = quality.durability(Durability::TransientLocal);
        }
        if let Some(period) = of.deadline {
            quality = quality.deadline(Deadline(period.into()));
        }
        if let Some(period) = of.lifespan {
            let duration = period.into();
            quality = quality.lifespan(Lifespan { duration });
        }
        let quality = quality.build();
        let topic = self.topic(&of.topic, &quality)?;
        let inner = self
            .publisher
            .create_datawriter_no_key(&topic, Some(quality.clone()))?;
        Ok(Writer { inner, quality })
    }

    /// Opens the reader of a subscription.
    ///
    /// # Errors
    /// `rustdds` refuses it.
    pub(crate) fn reader(&self, of: &Subscription) -> Result<Reader, Failure> {
        let quality = base(&of.topic, of.topic.depth.into()).build();
        let topic = self.topic(&of.topic, &quality)?;
        let inner = self
            .subscriber
            .create_simple_datareader_no_key(&topic, Some(quality.clone()))?;
        Ok(Reader {
            inner,
            quality,
            types: VecDeque::new(),
        })
    }

    /// Readers of a publication's topic.
    pub(crate) fn readers(&self, topic: &Topic, offered: &QosPolicies) -> Others {
        let (name, of) = (topic.dds_topic(), topic.dds_type());
        let all = self.inner.discovered_readers();
        let all = all.iter().map(|one| &one.subscription_topic_data);
        let there = all.filter(|one| *one.topic_name() == name && self.is_foreign(one.key()));
        there.fold(Others::default(), |mut others, one| {
            let fits = offered.compliance_failure_wrt(&one.qos()).is_none();
            others.count(*one.type_name() == of, fits);
            others
        })
    }

    /// Writers of a topic in other programs.
    pub(crate) fn writers(&self, topic: &Topic, requested: &QosPolicies) -> Others {
        let (name, of) = (topic.dds_topic(), topic.dds_type());
        let all = self.inner.discovered_writers();
        let all = all.iter().map(|one| &one.publication_topic_data);
        let there = all.filter(|one| one.topic_name == name && self.is_foreign(one.key));
        there.fold(Others::default(), |mut others, one| {
            let fits = one.qos().compliance_failure_wrt(requested).is_none();
            others.count(one.type_name == of, fits);
            others
        })
    }

    /// Whether anybody reads a topic of `published`, or writes one of `subscribed`.
    pub(crate) fn has_counterpart(&self, published: &[String], subscribed: &[String]) -> bool {
        let readers = self.inner.discovered_readers();
        let mut readers = readers.iter().map(|one| &one.subscription_topic_data);
        let writers = self.inner.discovered_writers();
        let mut writers = writers.iter().map(|one| &one.publication_topic_data);
        readers.any(|one| self.is_foreign(one.key()) && published.contains(one.topic_name()))
            || writers.any(|one| self.is_foreign(one.key) && subscribed.contains(&one.topic_name))
    }

    fn is_foreign(&self, endpoint: GUID) -> bool {
        endpoint.prefix != self.inner.guid().prefix
    }

    /// Announces the node with its topics, so that ROS shows it. The announcement stands while the result lives.
    ///
    /// # Errors
    /// `rustdds` refuses it.
    pub(crate) fn announce(
        &self,
        namespace: &str,
        name: &str,
        readers: Vec<GUID>,
        writers: Vec<GUID>,
    ) -> Result<Announcement, Failure> {
        let gids = |all: Vec<GUID>| all.iter().map(GUID::to_bytes).collect();
        let entities = ParticipantEntities {
            gid: self.inner.guid().to_bytes(),
            nodes: vec![NodeEntities {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                readers: gids(readers),
                writers: gids(writers),
            }],
        };
        let quality = QosPolicyBuilder::new()
            .durability(Durability::TransientLocal)
            .reliability(Reliability::Reliable {
                max_blocking_time: rustdds::Duration::from_millis(100),
            })
            .history(History::KeepLast { depth: 1 })
            .build();
        let topic = self.inner.create_topic(
            "ros_discovery_info".to_owned(),
            "rmw_dds_common::msg::dds_::ParticipantEntitiesInfo_".to_owned(),
            &quality,
            TopicKind::NoKey,
        )?;
        let inner = self
            .publisher
            .create_datawriter_no_key::<Payload, Bytes>(&topic, Some(quality))?;
        let announcement = Announcement {
            inner,
            entities: Mutex::new(entities),
            is_due: AtomicBool::new(true),
        };
        announcement.tell()?;
        Ok(announcement)
    }
}

/// Threads of `rustdds`, without which a participant receives nothing. They end when a wait of theirs is interrupted
/// (EINTR), as by SIGSTOP and SIGCONT (rustdds 0.15.1).
pub(crate) struct Threads(Vec<PathBuf>);

impl Threads {
    /// Those of this process.
    pub(crate) fn find() -> Self {
        let tasks = fs::read_dir("/proc/self/task").into_iter().flatten();
        let tasks = tasks.filter_map(|task| Some(task.ok()?.path()));
        let is_of_rustdds = |task: &PathBuf| {
            let name = fs::read_to_string(task.join("comm"));
            name.is_ok_and(|name| name.starts_with("RustDDS"))
        };
        Self(tasks.filter(is_of_rustdds).collect())
    }

    /// Whether all of them run.
    pub(crate) fn are_there(&self) -> bool {
        self.0.iter().all(|task| task.exists())
    }
}

/// Quality of service that both directions have.
fn base(topic: &Topic, samples_max: usize) -> QosPolicyBuilder {
    let samples = i32::try_from(samples_max).unwrap_or(i32::MAX);
    QosPolicyBuilder::new()
        .durability(Durability::Volatile)
        .history(History::KeepLast {
            depth: topic.depth.into(),
        })
        .resource_limits(ResourceLimits {
            max_samples: samples,
            max_instances: 1,
            max_samples_per_instance: samples,
        })
        .reliability(match topic.reliable {
            // No thread here waits for a participant: messages beyond its window are refused.
            true => Reliability::Reliable {
                max_blocking_time: rustdds::Duration::ZERO,
            },
            false => Reliability::BestEffort,
        })
}

impl Others {
    /// All of them.
    pub(crate) fn all(&self) -> usize {
        self.matched + self.incompatible + self.other_type
    }

    fn count(&mut self, is_type: bool, fits: bool) {
        match (is_type, fits) {
            (false, _) => self.other_type += 1,
            (true, false) => self.incompatible += 1,
            (true, true) => self.matched += 1,
        }
    }
}

/// The announcement of a node, as the package `rmw_dds_common` defines it.
#[derive(Serialize)]
struct ParticipantEntities {
    gid: [u8; 16],
    nodes: Vec<NodeEntities>,
}

#[derive(Serialize)]
struct NodeEntities {
    namespace: String,
    name: String,
    readers: Vec<[u8; 16]>,
    writers: Vec<[u8; 16]>,
}

/// A standing announcement.
pub(crate) struct Announcement {
    inner: DataWriter<Payload, Bytes>,
    entities: Mutex<ParticipantEntities>,
    is_due: AtomicBool,
}

impl Announcement {
    /// Has one writer take the place of another. [`tell`](Self::tell) tells it.
    pub(crate) fn replace(&self, old: Option<GUID>, new: GUID) {
        let locked = self.entities.lock();
        let mut entities = locked.unwrap_or_else(PoisonError::into_inner);
        for node in &mut entities.nodes {
            let old = old.map(|old| old.to_bytes());
            node.writers.retain(|one| Some(*one) != old);
            node.writers.push(new.to_bytes());
        }
        self.is_due.store(true, Relaxed);
    }

    /// Tells the others of what has changed. May wait for one that does not acknowledge.
    ///
    /// # Errors
    /// `rustdds` refuses it.
    pub(crate) fn tell(&self) -> Result<(), Failure> {
        if !self.is_due.swap(false, Relaxed) {
            return Ok(());
        }
        let mut bytes = Vec::new();
        {
            let locked = self.entities.lock();
            let entities = locked.unwrap_or_else(PoisonError::into_inner);
            cdr_encoding::to_writer::<_, LittleEndian, _>(&mut bytes, &*entities)?;
        }
        let order = Order::Little;
        let told = self
            .inner
            .write(Payload { bytes, order }, Some(Timestamp::now()));
        Ok(told.map_err(|error| error.to_string())?)
    }
}

/// Writer of a topic.
pub(crate) struct Writer {
    inner: DataWriter<Payload, Bytes>,
    quality: QosPolicies,
}

impl Writer {
    /// Gives a message that was written at `written` to `rustdds`; false if that has no room.
    pub(crate) fn send(&self, bytes: Vec<u8>, written: Timestamp) -> bool {
        let order = Order::Little;
        let sent = self.inner.write(Payload { bytes, order }, Some(written));
        sent.is_ok()
    }

    /// Its quality of service.
    pub(crate) fn quality(&self) -> QosPolicies {
        self.quality.clone()
    }

    /// Its number.
    pub(crate) fn number(&self) -> GUID {
        self.inner.guid()
    }
}

/// Reader of a topic.
pub(crate) struct Reader {
    inner: SimpleDataReader<Payload, Bytes>,
    quality: QosPolicies,
    /// Writers, and whether they have the topic's type; the latest last.
    types: VecDeque<(GUID, bool)>,
}

/// A message that was received.
pub(crate) struct Message {
    pub(crate) payload: Payload,
    pub(crate) writer: GUID,
    /// Writer's clock when it was written, if told.
    pub(crate) written_ns: Option<u64>,
}

impl Reader {
    /// Has a thread woken when something comes.
    pub(crate) fn wake(&self, waker: std::task::Waker) {
        self.inner.set_waker(Some(waker));
    }

    /// The next message; an error if it is too large, or not CDR of version 1.
    pub(crate) fn take(&mut self) -> Result<Option<Message>, ()> {
        self.inner.drain_read_notifications();
        let taken = self.inner.try_take_one().map_err(|_| ())?;
        Ok(taken.map(|taken| Message {
            writer: taken.writer_guid(),
            written_ns: taken.source_timestamp().map(nanoseconds),
            payload: taken.into_value(),
        }))
    }

    /// Whether a writer has announced the topic's type.
    pub(crate) fn is_of_type(
        &mut self,
        participant: &Participant,
        writer: GUID,
        topic: &Topic,
    ) -> bool {
        if let Some((_, is)) = self.types.iter().find(|(known, _)| *known == writer) {
            return *is;
        }
        let all = participant.inner.discovered_writers();
        let found = all
            .iter()
            .map(|one| &one.publication_topic_data)
            .find(|one| one.key == writer);
        let Some(found) = found else { return false };
        let is = found.type_name == topic.dds_type();
        if self.types.len() == WRITERS_MAX {
            self.types.pop_front();
        }
        self.types.push_back((writer, is));
        is
    }

    /// Its quality of service.
    pub(crate) fn quality(&self) -> QosPolicies {
        self.quality.clone()
    }

    /// Its number.
    pub(crate) fn number(&self) -> GUID {
        self.inner.guid()
    }
}

/// Nanoseconds of a time of DDS, which counts parts of 2^-32 s.
fn nanoseconds(time: Timestamp) -> u64 {
    let ticks = u128::from(time.to_ticks());
    let ns = (ticks * 1_000_000_000) >> 32;
    u64::try_from(ns).unwrap_or(u64::MAX)
}
