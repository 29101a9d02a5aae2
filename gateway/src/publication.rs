//! From a port to Zenoh: a thread for each publication, whose loop is that of `tautline_bridge::publication`. It waits
//! for Zenoh, which drops what its own queues have no room for.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tautline::config::PortOptions;
use tautline::{Priority, now};
use tautline_bridge::activity::Activity;
use tautline_bridge::port::Port;
use tautline_bridge::program::Failure;
use tautline_bridge::publication::{Engine, Fate, Limits, Published, Right, Value};
use zenoh::bytes::Encoding;
use zenoh::liveliness::LivelinessToken;
use zenoh::pubsub::Publisher;
use zenoh::qos::CongestionControl;
use zenoh::query::{Query, Queryable};
use zenoh::{Session, Wait};

use crate::config::{Publication, message_bytes};
use crate::origin::Origin;
use crate::status::{PublicationStatus, Queried};
use crate::words;

/// State of a publication that its thread, queries and the status share.
pub(crate) struct Outbound {
    config: Publication,
    limits: Limits,
    encoding: Encoding,
    activity: Arc<Activity>,
    counters: Published,
    queries: Queried,
    last: Mutex<Last>,
}

/// The last value of a sampling port. The lock is held for a copy, and never while anything waits.
struct Last {
    bytes: Vec<u8>,
    value: Option<Value>,
}

/// Declarations that stand only while the gateway is active and the port has something to say.
#[derive(Default)]
pub(crate) struct Declared {
    token: Option<LivelinessToken>,
    queryable: Option<Queryable<()>>,
}

impl Outbound {
    /// Takes the memory.
    pub(crate) fn new(config: Publication, activity: Arc<Activity>) -> Arc<Self> {
        let bytes = if config.query {
            message_bytes(&config.port)
        } else {
            0
        };
        let declared = config.port.types.receives.as_ref();
        Arc::new(Self {
            encoding: words::encoding(declared),
            limits: Limits {
                rules: config.rules,
                validity: config.validity,
                bytes: declared.map(|declared| declared.bytes()),
            },
            config,
            activity,
            counters: Published::default(),
            queries: Queried::default(),
            last: Mutex::new(Last {
                bytes: Vec::with_capacity(bytes),
                value: None,
            }),
        })
    }

    /// State for queries.
    pub(crate) fn status(&self) -> PublicationStatus {
        PublicationStatus {
            port: self.config.port.name.clone(),
            key: self.config.key.to_string(),
            alive: self.is_alive(),
            counters: self.counters.told(),
            queries: self.queries.told(),
        }
    }

    /// Publishes what comes until `stop` is set.
    ///
    /// # Errors
    /// Zenoh refused the publication, or the port can no longer be read.
    pub(crate) fn run(
        &self,
        port: Port,
        session: &Session,
        stop: &AtomicBool,
    ) -> Result<(), Failure> {
        let sender = Sender::declare(self, session)?;
        self.limits.publish(port, sender, &self.activity, stop)
    }

    fn remember(&self, value: Value, bytes: &[u8]) {
        let mut last = self.last();
        if self.config.query {
            last.bytes.clear();
            last.bytes.extend_from_slice(bytes);
        }
        last.value = Some(value);
    }

    fn last(&self) -> MutexGuard<'_, Last> {
        // Whole at every moment: a panic elsewhere cannot leave it half written.
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the port has something to say: a queuing port always, a sampling port while its last value is valid.
    fn is_alive(&self) -> bool {
        let Some(grant) = self.activity.now() else {
            return false;
        };
        match self.config.port.kind {
            PortOptions::Queuing(_) => true,
            PortOptions::Sampling(_) => self.last().value.is_some_and(|value| {
                value.arrival >= grant.since && !self.limits.is_stale(value, now())
            }),
        }
    }

    /// Brings the declarations in line with the port. By the housekeeping thread.
    pub(crate) fn declare(
        self: &Arc<Self>,
        session: &Session,
        declared: &mut Declared,
    ) -> zenoh::Result<()> {
        let is_active = self.activity.now().is_some();
        match (self.is_alive(), declared.token.is_some()) {
            (true, false) => {
                declared.token = Some(
                    session
                        .liveliness()
                        .declare_token(&self.config.key)
                        .wait()?,
                );
            }
            (false, true) => declared.token = None,
            _ => {}
        }
        match (is_active && self.config.query, declared.queryable.is_some()) {
            (true, false) => {
                let answering = Arc::clone(self);
                let queryable = session.declare_queryable(&self.config.key);
                declared.queryable = Some(
                    queryable
                        .callback(move |query| answering.answer(&query))
                        .wait()?,
                );
            }
            (false, true) => declared.queryable = None,
            _ => {}
        }
        Ok(())
    }

    fn answer(&self, query: &Query) {
        let (wall, at) = (SystemTime::now(), now());
        let found = self.activity.now().and_then(|grant| {
            let last = self.last();
            let value = last.value?;
            let is_of_now = value.arrival >= grant.since && !self.limits.is_stale(value, at);
            is_of_now.then(|| (Right { grant, at, wall }, value, last.bytes.clone()))
        });
        let answered = match found {
            Some((right, value, bytes)) => {
                self.queries.answered.fetch_add(1, Relaxed);
                let origin = self.origin(&right, value, 0).bytes();
                let reply = query
                    .reply(&self.config.key, bytes)
                    .encoding(self.encoding.clone());
                reply.attachment(&origin[..]).wait()
            }
            None => {
                self.queries.unanswered.fetch_add(1, Relaxed);
                query.reply_err("no valid value").wait()
            }
        };
        // The asker may have gone.
        let _gone = answered;
    }

    fn origin(&self, right: &Right, value: Value, sequence: u32) -> Origin {
        let Right { grant, at, wall } = right;
        let held = at.saturating_duration_since(value.arrival);
        let unix = wall.duration_since(UNIX_EPOCH).unwrap_or_default();
        let validity = self
            .config
            .validity
            .map_or(0, |validity| validity.as_millis().max(1));
        Origin {
            priority: value.priority,
            validity_ms: u32::try_from(validity).unwrap_or(u32::MAX),
            cell: grant.cell,
            gateway: grant.process,
            term: grant.term,
            sequence,
            arrived_unix_ns: nanoseconds(unix.saturating_sub(held)),
            published_ns: at.as_nanos(),
            held_ns: nanoseconds(held),
        }
    }
}

/// The way of one publication into Zenoh.
struct Sender<'o> {
    outbound: &'o Outbound,
    publishers: Vec<Publishers>,
    sequences: [u32; Priority::ALL.len()],
}

/// Publishers of one of Zenoh's priorities.
struct Publishers {
    priority: zenoh::qos::Priority,
    /// Sends what it is given, and what the others of this priority have left in Zenoh's batch.
    at_once: Publisher<'static>,
    /// Leaves it in the batch, which Zenoh sends when it is full, or before a millisecond has passed.
    in_batches: Publisher<'static>,
}

impl<'o> Sender<'o> {
    fn declare(outbound: &'o Outbound, session: &Session) -> zenoh::Result<Self> {
        let declare = |priority, express| {
            session
                .declare_publisher(outbound.config.key.clone())
                .encoding(outbound.encoding.clone())
                .congestion_control(CongestionControl::Drop)
                .priority(priority)
                .express(express)
                .wait()
        };
        let mut publishers: Vec<Publishers> = Vec::new();
        for priority in Priority::ALL.map(words::to_zenoh) {
            if publishers.iter().any(|known| known.priority == priority) {
                continue;
            }
            publishers.push(Publishers {
                priority,
                at_once: declare(priority, outbound.config.express)?,
                in_batches: declare(priority, false)?,
            });
        }
        Ok(Self {
            outbound,
            publishers,
            sequences: [0; Priority::ALL.len()],
        })
    }
}

impl Engine for Sender<'_> {
    const LOOKS_AHEAD: bool = true;

    fn note(&mut self, value: Value, bytes: &[u8]) {
        self.outbound.remember(value, bytes);
    }

    /// While the next message goes the same way, Zenoh need not send this one alone.
    fn publish(
        &mut self,
        right: &Right,
        value: Value,
        bytes: &[u8],
        next: Option<Priority>,
    ) -> Fate {
        let sequence = &mut self.sequences[value.priority.index()];
        *sequence = sequence.wrapping_add(1);
        let origin = self.outbound.origin(right, value, *sequence).bytes();
        let priority = words::to_zenoh(value.priority);
        let found = self.publishers.iter().find(|way| way.priority == priority);
        let sent = found.map(|way| {
            let publisher = match next.map(words::to_zenoh) == Some(priority) {
                true => &way.in_batches,
                false => &way.at_once,
            };
            publisher.put(bytes).attachment(&origin[..]).wait()
        });
        match sent {
            Some(Ok(())) => Fate::Published,
            _ => Fate::Refused,
        }
    }

    fn count(&self, fate: Fate, more: u64) {
        self.outbound.counters.count(fate, more);
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
