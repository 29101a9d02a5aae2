//! From a topic to ports: a thread for each subscription. A send into the cell waits for no program of it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use rustdds::{GUID, QosPolicies};
use tautline::{Instant, now};
use tautline_bridge::activity::Activity;
use tautline_bridge::baseline::Baseline;
use tautline_bridge::destinations::Destinations;
use tautline_bridge::port::Port;
use tautline_bridge::program::Failure;

use crate::cdr::{self, Refused};
use crate::config::Subscription;
use crate::dds::{LOOK, Message, Participant, Reader};
use crate::status::{Received, SubscriptionStatus};

/// Writers whose quickest message is remembered. Lower: with more of them, messages that waited are taken as new.
/// Higher: a hostile participant takes more memory.
const SOURCES_MAX: usize = 64;

/// One subscription.
pub(crate) struct Inbound {
    config: Subscription,
    quality: QosPolicies,
    counters: Received,
    participant: Arc<Participant>,
    activity: Arc<Activity>,
    destinations: Destinations,
}

/// State of the topic's thread.
struct State {
    reader: Reader,
    value: Vec<u8>,
    paid_ns: u64,
    sources: VecDeque<(GUID, Baseline)>,
}

/// Reasons for which a message is not delivered.
enum Dropped {
    Standby,
    Policed,
    Stale,
    OtherType,
    Refused(Refused),
    Undelivered,
}

impl From<Refused> for Dropped {
    fn from(why: Refused) -> Self {
        Self::Refused(why)
    }
}

/// Wakes the topic's thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl Inbound {
    /// Opens the topic.
    ///
    /// # Errors
    /// DDS refuses it.
    pub(crate) fn open(
        config: Subscription,
        port: Port,
        participant: &Arc<Participant>,
        activity: &Arc<Activity>,
    ) -> Result<(Arc<Self>, Reader), Failure> {
        let reader = participant.reader(&config)?;
        let inbound = Self {
            quality: reader.quality(),
            counters: Received::default(),
            participant: Arc::clone(participant),
            activity: Arc::clone(activity),
            destinations: Destinations::new(port, config.to.clone()),
            config,
        };
        Ok((Arc::new(inbound), reader))
    }

    /// Its topic on DDS.
    pub(crate) fn dds_topic(&self) -> String {
        self.config.topic.dds_topic()
    }

    /// State for queries.
    pub(crate) fn status(&self) -> SubscriptionStatus {
        let others = self.participant.writers(&self.config.topic, &self.quality);
        SubscriptionStatus {
            topic: self.config.topic.name.clone(),
            message: self.config.topic.message.clone(),
            port: self.config.port.name.clone(),
            rate: self.config.rate,
            writers: others.matched,
            writers_incompatible: others.incompatible,
            writers_of_other_type: others.other_type,
            counters: self.counters.told(),
        }
    }

    /// The ports of `to`.
    pub(crate) fn destinations(&self) -> &Destinations {
        &self.destinations
    }

    /// Delivers what comes until `stop` is set.
    pub(crate) fn run(&self, reader: Reader, stop: &AtomicBool) {
        let declared = self.config.port.types.sends.as_ref();
        let mut state = State {
            reader,
            value: vec![0; declared.map_or(0, |declared| declared.bytes())],
            paid_ns: 0,
            sources: VecDeque::with_capacity(SOURCES_MAX),
        };
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        while !stop.load(Relaxed) {
            state.reader.wake(waker.clone());
            while self.take_one(&mut state) {}
            thread::park_timeout(LOOK);
        }
    }

    /// Takes one message; false if there is none.
    fn take_one(&self, state: &mut State) -> bool {
        let counters = &self.counters;
        let counter = match state.reader.take() {
            Ok(None) => return false,
            Err(()) => &counters.malformed,
            Ok(Some(message)) => match self.deliver(state, &message, now()) {
                Ok(()) => &counters.delivered,
                Err(Dropped::Standby) => &counters.standby,
                Err(Dropped::Policed) => &counters.policed,
                Err(Dropped::Stale) => &counters.stale,
                Err(Dropped::OtherType) => &counters.other_type,
                Err(Dropped::Undelivered) => &counters.undelivered,
                Err(Dropped::Refused(Refused::Malformed)) => &counters.malformed,
                Err(Dropped::Refused(Refused::OtherSize)) => &counters.other_size,
                Err(Dropped::Refused(Refused::OtherValue)) => &counters.other_value,
                Err(Dropped::Refused(Refused::NotFinite)) => &counters.not_finite,
                Err(Dropped::Refused(Refused::OutOfRange)) => &counters.out_of_range,
            },
        };
        counter.fetch_add(1, Relaxed);
        true
    }

    fn deliver(&self, state: &mut State, message: &Message, now: Instant) -> Result<(), Dropped> {
        // First of all, so that a flood costs little.
        let admitted = self.config.bucket.admit(state.paid_ns, now.as_nanos());
        state.paid_ns = admitted.ok_or(Dropped::Policed)?;
        let topic = &self.config.topic;
        let is_of_type = state
            .reader
            .is_of_type(&self.participant, message.writer, topic);
        if !is_of_type {
            return Err(Dropped::OtherType);
        }
        // A program that stands by follows the writers, too: it knows them when it takes over.
        let waited = follow(&mut state.sources, message, now);
        let written = now.as_nanos().saturating_sub(nanoseconds(waited));
        let grant = self.activity.now();
        if grant.is_none_or(|grant| written < grant.since.as_nanos()) {
            return Err(Dropped::Standby);
        }
        if waited > self.config.validity {
            return Err(Dropped::Stale);
        }
        let payload = &message.payload;
        cdr::read(
            &topic.part,
            &payload.bytes,
            payload.order,
            self.config.must_be_finite,
            &mut state.value,
        )?;
        let sent = self.destinations.send(self.config.priority, &state.value);
        sent.map_err(|_| Dropped::Undelivered)
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Time that a message has waited beyond its writer's quickest one.
fn follow(sources: &mut VecDeque<(GUID, Baseline)>, message: &Message, now: Instant) -> Duration {
    let Some(written_ns) = message.written_ns else {
        return Duration::ZERO;
    };
    if let Some((_, baseline)) = sources.iter_mut().find(|(one, _)| *one == message.writer) {
        return Duration::from_nanos(baseline.delay_ns(written_ns, now.as_nanos()));
    }
    if sources.len() == SOURCES_MAX {
        sources.pop_front();
    }
    let baseline = Baseline::new(written_ns, now.as_nanos());
    sources.push_back((message.writer, baseline));
    Duration::ZERO
}
