//! From a port to Zenoh: a thread for each publication.
//!
//! The port's memory is the queue between the cell and the network. Whoever sends to the port writes into that memory
//! and goes on, full or not. This thread alone waits for Zenoh, which drops what its own queues have no room for.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tautline::config::PortOptions;
use tautline::{Instant, Priority, QueuingPort, SamplingPort, now};
use tautline_bridge::activity::{Activity, Grant};
use tautline_bridge::gate::{Decision, Gate};
use tautline_bridge::port::Port;
use tautline_bridge::program::Failure;
use zenoh::bytes::Encoding;
use zenoh::liveliness::LivelinessToken;
use zenoh::pubsub::Publisher;
use zenoh::qos::CongestionControl;
use zenoh::query::{Query, Queryable};
use zenoh::{Session, Wait};

use crate::config::{Publication, message_bytes};
use crate::origin::Origin;
use crate::status::{PublicationStatus, Published};
use crate::words;

/// Longest wait for a value before the thread looks whether it is to end. Lower: more wake-ups. Higher: an end takes
/// longer.
const LOOK: Duration = Duration::from_millis(100);

/// State of a publication that its thread, queries and the status share.
pub(crate) struct Outbound {
    config: Publication,
    encoding: Encoding,
    activity: Arc<Activity>,
    counters: Published,
    last: Mutex<Last>,
}

/// The last value of a sampling port. The lock is held for a copy, and never while anything waits.
struct Last {
    bytes: Vec<u8>,
    value: Option<Value>,
}

/// A value or message, without its bytes.
#[derive(Clone, Copy)]
struct Value {
    arrival: Instant,
    priority: Priority,
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
        Arc::new(Self {
            encoding: words::encoding(config.port.types.receives.as_ref()),
            config,
            activity,
            counters: Published::default(),
            last: Mutex::new(Last {
                bytes: Vec::with_capacity(bytes),
                value: None,
            }),
        })
    }

    /// State for whoever asks.
    pub(crate) fn status(&self) -> PublicationStatus {
        PublicationStatus {
            port: self.config.port.name.clone(),
            key: self.config.key.to_string(),
            alive: self.is_alive(now()),
            counters: self.counters.told(),
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
        match port {
            Port::Queuing(port) => self.run_queuing(port, sender, stop),
            Port::Sampling(port) => self.run_sampling(port, sender, stop),
        }
    }

    fn run_queuing(
        &self,
        mut port: QueuingPort,
        mut sender: Sender<'_>,
        stop: &AtomicBool,
    ) -> Result<(), Failure> {
        let [mut buffer, mut next_buffer] = [(); 2].map(|()| vec![0; port.message_bytes_max()]);
        let mut waiting = None;
        let mut overwritten = 0;
        while !stop.load(Relaxed) {
            let received = match waiting.take() {
                None => port.receive_until(now() + LOOK, &mut buffer)?,
                known => known,
            };
            count(&self.counters.overwritten, port.overwritten() - overwritten);
            overwritten = port.overwritten();
            let Some(message) = received else { continue };
            waiting = port.receive(&mut next_buffer)?;
            let value = Value {
                arrival: message.arrival,
                priority: message.priority,
            };
            let bytes = &buffer[..message.length];
            if let Some(grant) = self.admit(value, bytes.len()) {
                let next = waiting.map(|next| next.priority);
                sender.send(grant, value, bytes, next);
            }
            std::mem::swap(&mut buffer, &mut next_buffer);
        }
        Ok(())
    }

    fn run_sampling(
        &self,
        mut port: SamplingPort,
        mut sender: Sender<'_>,
        stop: &AtomicBool,
    ) -> Result<(), Failure> {
        let mut buffer = vec![0; port.value_bytes_max()];
        let mut gate = Gate::new(self.config.rules, buffer.len());
        // A value whose time has not come: the time, the value, and its bytes.
        let mut held: Option<(Instant, Value)> = None;
        let mut held_bytes: Vec<u8> = Vec::with_capacity(buffer.len());
        let mut term = 0;
        while !stop.load(Relaxed) {
            let look = now() + LOOK;
            let until = held.map_or(look, |(due, _)| due.min(look));
            let came = port.read_new_until(until, &mut buffer)?;
            if let Some((due, value)) = held.filter(|(due, _)| came.is_none() && *due <= now()) {
                held = None;
                if let Some(grant) = self.admit(value, held_bytes.len()) {
                    match gate.judge(now().max(due), &held_bytes) {
                        Decision::Publish => sender.send(grant, value, &held_bytes, None),
                        _ => count(&self.counters.unchanged, 1),
                    }
                }
            }
            let Some(sample) = came else { continue };
            count(&self.counters.overwritten, sample.overwritten);
            if held.take().is_some() {
                count(&self.counters.thinned, 1);
            }
            let value = Value {
                arrival: sample.arrival,
                priority: sample.priority,
            };
            let bytes = &buffer[..sample.length];
            let Some(grant) = self.admit(value, bytes.len()) else {
                continue;
            };
            if grant.term != term {
                term = grant.term;
                gate.reset();
            }
            self.remember(value, bytes);
            match gate.offer(now(), bytes) {
                Decision::Publish => sender.send(grant, value, bytes, None),
                Decision::Decimated => count(&self.counters.decimated, 1),
                Decision::Unchanged => count(&self.counters.unchanged, 1),
                Decision::Later(due) => {
                    held_bytes.clear();
                    held_bytes.extend_from_slice(bytes);
                    held = Some((due, value));
                }
            }
        }
        Ok(())
    }

    /// Whether a value may be published now; counts why it may not.
    fn admit(&self, value: Value, bytes: usize) -> Option<Grant> {
        let now = now();
        let grant = self
            .activity
            .now()
            .filter(|grant| value.arrival >= grant.since);
        if grant.is_none() {
            count(&self.counters.standby, 1);
        } else if self.is_stale(value, now) {
            count(&self.counters.stale, 1);
            return None;
        } else if self.is_other_size(bytes) {
            count(&self.counters.other_size, 1);
            return None;
        }
        grant
    }

    fn is_stale(&self, value: Value, now: Instant) -> bool {
        let age = now.saturating_duration_since(value.arrival);
        self.config.validity.is_some_and(|validity| age > validity)
    }

    fn is_other_size(&self, bytes: usize) -> bool {
        let declared = self.config.port.types.receives.as_ref();
        declared.is_some_and(|declared| declared.bytes() != bytes)
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
    fn is_alive(&self, now: Instant) -> bool {
        let Some(grant) = self.activity.now() else {
            return false;
        };
        match self.config.port.kind {
            PortOptions::Queuing(_) => true,
            PortOptions::Sampling(_) => self
                .last()
                .value
                .is_some_and(|value| value.arrival >= grant.since && !self.is_stale(value, now)),
        }
    }

    /// Brings the declarations in line with the port. By the housekeeping thread.
    pub(crate) fn declare(
        self: &Arc<Self>,
        session: &Session,
        declared: &mut Declared,
    ) -> zenoh::Result<()> {
        let now = now();
        let is_active = self.activity.now().is_some();
        match (self.is_alive(now), declared.token.is_some()) {
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
        let now = now();
        let found = self.activity.now().and_then(|grant| {
            let last = self.last();
            let value = last.value?;
            let is_of_now = value.arrival >= grant.since && !self.is_stale(value, now);
            is_of_now.then(|| (grant, value, last.bytes.clone()))
        });
        let answered = match found {
            Some((grant, value, bytes)) => {
                count(&self.counters.answered, 1);
                let origin = self.origin(grant, value, 0, now).bytes();
                let reply = query
                    .reply(&self.config.key, bytes)
                    .encoding(self.encoding.clone());
                reply.attachment(&origin[..]).wait()
            }
            None => {
                count(&self.counters.unanswered, 1);
                query.reply_err("no valid value").wait()
            }
        };
        // The asker may have gone.
        let _gone = answered;
    }

    fn origin(&self, grant: Grant, value: Value, sequence: u32, now: Instant) -> Origin {
        let held = now.saturating_duration_since(value.arrival);
        let unix = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
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
            published_ns: now.as_nanos(),
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

    /// Publishes a value. `next` is the priority of the message that waits to be published next: while that goes the
    /// same way, Zenoh need not send this one alone.
    fn send(&mut self, grant: Grant, value: Value, bytes: &[u8], next: Option<Priority>) {
        let sequence = &mut self.sequences[value.priority.index()];
        *sequence = sequence.wrapping_add(1);
        let origin = self.outbound.origin(grant, value, *sequence, now()).bytes();
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
            Some(Ok(())) => count(&self.outbound.counters.published, 1),
            _ => count(&self.outbound.counters.refused, 1),
        }
    }
}

fn count(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Relaxed);
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
