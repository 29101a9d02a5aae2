//! From Zenoh to ports. Zenoh's own threads call [`Inbound::take`]; a send into the cell never waits.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use tautline::{Destination, Instant, Priority, SendError, now};
use tautline_bridge::activity::Activity;
use tautline_bridge::baseline::Baseline;
use tautline_bridge::port::Port;
use zenoh::bytes::Encoding;
use zenoh::sample::{Sample, SampleKind};

use crate::config::{MESSAGE_BYTES_MAX, Subscription};
use crate::origin::Origin;
use crate::status::{Received, SubscriptionStatus};
use crate::words;

/// Silence of a source after which values of another cell are taken. Lower: two cells with one name are mixed wherever
/// they publish more slowly. Higher: a gateway without others that was restarted is heard later.
const SOURCE_SILENCE: Duration = Duration::from_secs(1);

/// One subscription.
pub(crate) struct Inbound {
    config: Subscription,
    encoding: Encoding,
    type_bytes: Option<usize>,
    activity: Arc<Activity>,
    counters: Received,
    /// Whether a port of `to` is being looked for.
    connecting: AtomicBool,
    state: Mutex<State>,
}

/// Zenoh may call from several threads.
struct State {
    port: Port,
    destinations: Vec<Option<Destination>>,
    paid_ns: u64,
    source: Option<Source>,
}

/// Gateway whose values are taken.
struct Source {
    cell: u64,
    gateway: u64,
    term: u32,
    heard: Instant,
    baseline: Baseline,
    sequences: [Option<u32>; Priority::ALL.len()],
}

/// Reasons for which a sample is not delivered.
enum Dropped {
    Standby,
    Deletion,
    OtherSource,
    Superseded,
    Repeated,
    Policed,
    Stale,
    OtherType,
    OtherSize,
    Undelivered,
}

impl Inbound {
    /// Takes the port.
    pub(crate) fn new(config: Subscription, port: Port, activity: Arc<Activity>) -> Arc<Self> {
        let sends = config.port.types.sends.as_ref();
        Arc::new(Self {
            encoding: words::encoding(sends),
            type_bytes: sends.map(|declared| declared.bytes()),
            activity,
            counters: Received::default(),
            connecting: AtomicBool::new(false),
            state: Mutex::new(State {
                port,
                destinations: vec![None; config.to.len().max(1)],
                paid_ns: 0,
                source: None,
            }),
            config,
        })
    }

    /// The key.
    pub(crate) fn key(&self) -> zenoh::key_expr::OwnedKeyExpr {
        self.config.key.clone()
    }

    /// State for whoever asks.
    pub(crate) fn status(&self) -> SubscriptionStatus {
        SubscriptionStatus {
            key: self.config.key.to_string(),
            port: self.config.port.name.clone(),
            rate: self.config.rate,
            counters: self.counters.told(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Counters and a port: a panic elsewhere leaves nothing half done that matters.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same for Zenoh's threads, which do not wait until a peer of the cell that hangs has been asked.
    fn state_unless_connecting(&self) -> Result<MutexGuard<'_, State>, Dropped> {
        match self.state.try_lock() {
            Ok(state) => Ok(state),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) if self.connecting.load(Relaxed) => {
                Err(Dropped::Undelivered)
            }
            Err(TryLockError::WouldBlock) => Ok(self.state()),
        }
    }

    /// Resolves ports of `to` that were not there. By a thread of its own: a peer that hangs holds it up.
    pub(crate) fn connect(&self) {
        let mut state = self.state();
        let State {
            port, destinations, ..
        } = &mut *state;
        self.connecting.store(true, Relaxed);
        for (place, known) in destinations.iter_mut().enumerate() {
            if known.is_none() {
                *known = port.destination(self.config.to.get(place)).ok();
            }
        }
        self.connecting.store(false, Relaxed);
    }

    /// Takes a sample.
    pub(crate) fn take(&self, sample: &Sample) {
        let counters = &self.counters;
        let counter = match self.deliver(sample, now()) {
            Ok(()) => &counters.delivered,
            Err(Dropped::Standby) => &counters.standby,
            Err(Dropped::Deletion) => &counters.deletions,
            Err(Dropped::OtherSource) => &counters.other_source,
            Err(Dropped::Superseded) => &counters.superseded,
            Err(Dropped::Repeated) => &counters.repeated,
            Err(Dropped::Policed) => &counters.policed,
            Err(Dropped::Stale) => &counters.stale,
            Err(Dropped::OtherType) => &counters.other_type,
            Err(Dropped::OtherSize) => &counters.other_size,
            Err(Dropped::Undelivered) => &counters.undelivered,
        };
        counter.fetch_add(1, Relaxed);
    }

    fn deliver(&self, sample: &Sample, now: Instant) -> Result<(), Dropped> {
        if sample.kind() == SampleKind::Delete {
            return Err(Dropped::Deletion);
        }
        let attached = sample.attachment().map(|bytes| bytes.to_bytes());
        let origin = attached.and_then(|bytes| Origin::parse(&bytes));
        let mut state = self.state_unless_connecting()?;
        // The source is followed by a gateway that stands by, too: it knows it when it takes over.
        let age = match &origin {
            Some(origin) => Some(self.follow(&mut state, origin, now)?),
            None => self.unknown(&state, now).map(|()| None)?,
        };
        if self.activity.now(now).is_none() {
            return Err(Dropped::Standby);
        }
        let admitted = self.config.bucket.admit(state.paid_ns, now.as_nanos());
        state.paid_ns = admitted.ok_or(Dropped::Policed)?;
        self.check(sample)?;
        let limit = match origin.map_or(0, |origin| origin.validity_ms) {
            0 => self.config.validity,
            ms => self.config.validity.min(Duration::from_millis(ms.into())),
        };
        if age.is_some_and(|age| age > limit) {
            return Err(Dropped::Stale);
        }
        let priority = origin.map_or_else(
            || words::from_zenoh(sample.priority()),
            |origin| origin.priority,
        );
        let priority = priority.min(self.config.priority_max);
        send(&mut state, priority, &sample.payload().to_bytes())
    }

    /// Age of a value, if it comes from the gateway whose values are taken.
    fn follow(
        &self,
        state: &mut State,
        origin: &Origin,
        now: Instant,
    ) -> Result<Duration, Dropped> {
        let is_known = match &state.source {
            None => false,
            Some(known) => {
                let is_silent = now.saturating_duration_since(known.heard) > SOURCE_SILENCE;
                match (known.cell == origin.cell, known.gateway == origin.gateway) {
                    (true, true) => true,
                    _ if is_silent => false,
                    (true, false) if origin.term > known.term => false,
                    (true, false) => return Err(Dropped::Superseded),
                    (false, _) => return Err(Dropped::OtherSource),
                }
            }
        };
        if !is_known {
            state.source = Some(Source {
                cell: origin.cell,
                gateway: origin.gateway,
                term: origin.term,
                heard: now,
                baseline: Baseline::new(origin.published_ns, now.as_nanos()),
                sequences: [None; Priority::ALL.len()],
            });
        }
        let source = state.source.as_mut().expect("known by now");
        (source.term, source.heard) = (origin.term, now);
        let last = &mut source.sequences[origin.priority.index()];
        if let Some(last) = *last {
            let ahead = origin.sequence.wrapping_sub(last).cast_signed();
            if ahead <= 0 {
                return Err(Dropped::Repeated);
            }
            let lost = u64::from(ahead.unsigned_abs()) - 1;
            self.counters.lost.fetch_add(lost, Relaxed);
        }
        *last = Some(origin.sequence);
        let delay_ns = source
            .baseline
            .delay_ns(origin.published_ns, now.as_nanos());
        Ok(Duration::from_nanos(
            origin.held_ns.saturating_add(delay_ns),
        ))
    }

    /// A value without an origin is taken while no gateway is heard.
    fn unknown(&self, state: &State, now: Instant) -> Result<(), Dropped> {
        let is_heard =
            |known: &Source| now.saturating_duration_since(known.heard) <= SOURCE_SILENCE;
        if state.source.as_ref().is_some_and(is_heard) {
            return Err(Dropped::OtherSource);
        }
        self.counters.unknown_origin.fetch_add(1, Relaxed);
        Ok(())
    }

    /// Type and size.
    fn check(&self, sample: &Sample) -> Result<(), Dropped> {
        let bytes = sample.payload().len();
        if self.type_bytes.is_some() && words::is_other_type(sample.encoding(), &self.encoding) {
            return Err(Dropped::OtherType);
        }
        if bytes > MESSAGE_BYTES_MAX || self.type_bytes.is_some_and(|declared| declared != bytes) {
            return Err(Dropped::OtherSize);
        }
        Ok(())
    }
}

/// Sends to all ports of `to`, whatever becomes of one of them.
fn send(state: &mut State, priority: Priority, bytes: &[u8]) -> Result<(), Dropped> {
    let State {
        port, destinations, ..
    } = state;
    let mut dropped = None;
    for destination in destinations.iter_mut() {
        let Some(to) = *destination else {
            dropped = Some(Dropped::Undelivered);
            continue;
        };
        match port.send(to, priority, bytes) {
            Ok(()) => {}
            Err(SendError::MessageTooLarge { .. } | SendError::LargerThanReceiver { .. }) => {
                dropped = Some(Dropped::OtherSize);
            }
            Err(SendError::PeerGone) => {
                // Looked for again.
                *destination = None;
                dropped = Some(Dropped::Undelivered);
            }
            Err(_) => dropped = Some(Dropped::Undelivered),
        }
    }
    dropped.map_or(Ok(()), Err)
}
