//! From Zenoh to ports. Zenoh's own threads call [`Inbound::take`]; a send into the cell waits for no program of it.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tautline::{Instant, Priority, SendError, now};
use tautline_bridge::activity::Activity;
use tautline_bridge::baseline::Baseline;
use tautline_bridge::destinations::Destinations;
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
    destinations: Destinations,
    state: Mutex<State>,
}

/// Zenoh may call from several threads.
struct State {
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
            destinations: Destinations::new(port, config.to.clone()),
            state: Mutex::new(State {
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

    /// State for queries.
    pub(crate) fn status(&self) -> SubscriptionStatus {
        SubscriptionStatus {
            key: self.config.key.to_string(),
            port: self.config.port.name.clone(),
            rate: self.config.rate,
            counters: self.counters.told(),
        }
    }

    /// The ports of `to`.
    pub(crate) fn destinations(&self) -> &Destinations {
        &self.destinations
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
        // Counters: a panic elsewhere leaves nothing half done that matters.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        // The source is followed by a gateway that stands by, too: it knows it when it takes over.
        let age = match &origin {
            Some(origin) => Some(self.follow(&mut state, origin, now)?),
            None => self.unknown(&state, now).map(|()| None)?,
        };
        if self.activity.now().is_none() {
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
        let sent = self
            .destinations
            .send(priority, &sample.payload().to_bytes());
        sent.map_err(|error| match error {
            SendError::MessageTooLarge { .. } | SendError::LargerThanReceiver { .. } => {
                Dropped::OtherSize
            }
            _ => Dropped::Undelivered,
        })
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
