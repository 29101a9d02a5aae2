//! Clients and channels: one copy of the machine's messages for all clients, made by a thread of its own while there
//! are clients.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::convert::Infallible;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tautline::vbus;
use tautline_capture::message::{FLOWS_MAX, Flow, Message, Messages};
use tautline_capture::recording::Channel;
use tautline_capture::{
    Batch, CaptureError, ETHERTYPE_DEFAULT, FlowFacts, KnownNodes, Tap, pause_after, stand_back,
    up_interfaces,
};

use super::client::{Client, Level, status, text};

/// Channels at a time. Lower: of a large machine, some are missing. Higher: a stranger on the cable makes a viewer
/// list more of them, by sending from ever new ports.
const CHANNELS_MAX: usize = 1_000;
/// Bytes of the announcement of all channels. Lower: channels of large types are missing. Higher: it finds no room in
/// the queue of a client.
const CHANNELS_BYTES_MAX: usize = 1 << 20;
/// Sentences that are kept for later clients. Lower: they do not learn what is missing. Higher: none.
const NOTES_MAX: usize = 32;
/// Time between two looks for new interfaces and buses. Lower: the looks take time. Higher: the first messages of a new
/// one are missing for longer.
const REFRESH: Duration = Duration::from_secs(2);
/// Time between two reports of copies that were lost.
const REPORT: Duration = Duration::from_secs(1);

/// Clients and channels.
#[derive(Debug)]
pub(in crate::serve) struct Hub {
    /// Differs between runs, so that a client trusts no numbers of channels of an earlier one.
    session: String,
    captures: bool,
    shared: Mutex<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    clients: Vec<Arc<Client>>,
    channels: BTreeMap<u32, Announced>,
    channels_bytes: usize,
    /// Channels that had each number before, also while no client was connected.
    channels_before: u32,
    /// Channel of each flow, if there was room for it, and the facts that it was chosen by.
    flows: HashMap<Flow, (FlowFacts, Option<u32>)>,
    notes: Vec<String>,
    is_capturing: bool,
}

/// Channel that clients know.
#[derive(Debug)]
struct Announced {
    channel: Channel,
    /// Bytes of each message, if it has a type.
    message_bytes: Option<usize>,
    json: Value,
    json_bytes: usize,
}

/// A client in the hub, until this is dropped.
pub(super) struct Joined {
    hub: Arc<Hub>,
    pub(super) client: Arc<Client>,
}

impl Drop for Joined {
    fn drop(&mut self) {
        let mut shared = self.hub.shared();
        shared
            .clients
            .retain(|client| !Arc::ptr_eq(client, &self.client));
    }
}

impl Hub {
    /// A hub without clients.
    pub(in crate::serve) fn new(session: String) -> Arc<Self> {
        Arc::new(Self {
            session,
            captures: true,
            shared: Mutex::default(),
        })
    }

    /// Takes a client, and tells it what there is.
    pub(super) fn join(self: &Arc<Self>) -> Joined {
        let client = Arc::new(Client::default());
        let mut shared = self.shared();
        client.tell(text(&json!({
            "op": "serverInfo",
            "name": "taut serve",
            "capabilities": [],
            "metadata": { "version": env!("CARGO_PKG_VERSION") },
            "sessionId": self.session,
        })));
        let channels = shared.channels.values();
        client.tell(advertised(channels.map(|one| &one.json)));
        for note in &shared.notes {
            client.tell(status(Level::Warning, note));
        }
        shared.clients.push(Arc::clone(&client));
        if self.captures && !shared.is_capturing {
            let hub = Arc::clone(self);
            let thread = thread::Builder::new().name("taut-copy".to_owned());
            match thread.spawn(move || hub.copy()) {
                Ok(_) => shared.is_capturing = true,
                Err(error) => shared.note(format!("nothing is copied: {error}")),
            }
        }
        Joined {
            hub: Arc::clone(self),
            client,
        }
    }

    /// Subscribes a client to a channel.
    pub(super) fn subscribe(
        &self,
        client: &Client,
        subscription: u32,
        channel: u32,
    ) -> Result<(), &'static str> {
        match self.shared().channels.contains_key(&channel) {
            true => client.subscribe(subscription, channel),
            false => Err("there is no channel of this number"),
        }
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Copies messages until no client is left.
    fn copy(&self) {
        stand_back();
        let mut nodes = KnownNodes::ask();
        let mut sources = Sources::default();
        let mut batch = Batch::default();
        let mut reported = Instant::now();
        while self.goes_on() {
            let mut notes = sources.look(&mut batch);
            if reported.elapsed() >= REPORT {
                reported = Instant::now();
                self.report_lost(sources.newly_lost());
            }
            let rest = pause_after(sources.taps(), batch.len());
            let mut shared = self.shared();
            notes.drain(..).for_each(|note| shared.note(note));
            let Ok(()) = batch.drain(|item, bytes| {
                let source = &mut sources.open[item.origin as usize];
                source.messages.take(item, bytes, |message| {
                    let facts = nodes.about(message.flow);
                    shared.publish(&message, &facts);
                    Ok::<_, Infallible>(())
                })
            });
            drop(shared);
            sources.close_failed();
            thread::sleep(rest);
        }
    }

    /// Whether there is a client. Without one, nothing is kept for the next.
    fn goes_on(&self) -> bool {
        let mut shared = self.shared();
        if shared.clients.is_empty() {
            *shared = Shared {
                channels_before: shared.channels_before,
                ..Shared::default()
            };
        }
        shared.is_capturing
    }

    fn report_lost(&self, lost: u64) {
        if lost > 0 {
            let sentence = format!("{lost} frames or messages were lost before they were copied");
            self.shared().tell(&status(Level::Warning, &sentence));
        }
    }
}

impl Shared {
    /// Hands a message to the clients that have subscribed to its channel.
    fn publish(&mut self, message: &Message<'_>, facts: &FlowFacts) {
        let known = self.flows.get(message.flow);
        let known = known.filter(|(before, _)| before == facts);
        let id = match known {
            Some((_, id)) => *id,
            None => self.find(message.flow, facts),
        };
        let Some((id, announced)) = id.and_then(|id| Some((id, self.channels.get(&id)?))) else {
            return;
        };
        let bytes = announced.message_bytes;
        if bytes.is_none_or(|bytes| bytes == message.bytes.len()) {
            for client in &self.clients {
                client.publish(id, message.time_ns, message.bytes);
            }
        }
    }

    /// Channel of a flow: the one of its topic. Several priorities have the same.
    fn find(&mut self, flow: &Flow, facts: &FlowFacts) -> Option<u32> {
        let channel = Channel::of(flow, facts);
        let same = self.channels.iter();
        let mut same = same.filter(|(_, known)| known.channel.topic == channel.topic);
        let id = match same.next() {
            // A node that has closed tells no type any more; its type stays until there is another.
            Some((id, known))
                if channel.schema.is_none() || known.channel.schema == channel.schema =>
            {
                Some(*id)
            }
            before => {
                let before = before.map(|(id, _)| *id);
                before.into_iter().for_each(|id| self.unadvertise(id));
                self.advertise(channel, facts)
            }
        };
        if self.flows.len() >= FLOWS_MAX {
            self.flows.clear();
        }
        self.flows.insert(flow.clone(), (facts.clone(), id));
        id
    }

    fn advertise(&mut self, channel: Channel, facts: &FlowFacts) -> Option<u32> {
        let id = self.channels_before + 1;
        let schema = channel.schema.as_ref();
        let mut json = json!({
            "id": id,
            "topic": channel.topic,
            "encoding": channel.encoding,
            "schemaName": schema.map_or("", |schema| &schema.name),
            "schema": schema.map_or("", |schema| &schema.text),
        });
        if let Some(schema) = schema {
            json["schemaEncoding"] = schema.encoding.into();
        }
        let json_bytes = json.to_string().len();
        let bytes = self.channels_bytes + json_bytes;
        if self.channels.len() >= CHANNELS_MAX || bytes > CHANNELS_BYTES_MAX {
            self.note("there are more channels than are shown; `taut record` has them all".into());
            return None;
        }
        self.tell(&advertised([&json].into_iter()));
        let announced = Announced {
            message_bytes: facts.declared.as_ref().map(|declared| declared.bytes()),
            channel,
            json,
            json_bytes,
        };
        self.channels_before = id;
        self.channels_bytes = bytes;
        self.channels.insert(id, announced);
        Some(id)
    }

    fn unadvertise(&mut self, id: u32) {
        let gone = self.channels.remove(&id);
        self.channels_bytes -= gone.map_or(0, |gone| gone.json_bytes);
        self.flows.retain(|_, (_, of)| *of != Some(id));
        self.clients.iter().for_each(|client| client.forget(id));
        self.tell(&text(&json!({ "op": "unadvertise", "channelIds": [id] })));
    }

    /// Tells a sentence to all clients, and to later ones, once.
    fn note(&mut self, note: String) {
        if self.notes.len() < NOTES_MAX && !self.notes.contains(&note) {
            self.tell(&status(Level::Warning, &note));
            self.notes.push(note);
        }
    }

    fn tell(&self, message: &tokio_tungstenite::tungstenite::Message) {
        let clients = self.clients.iter();
        clients.for_each(|client| client.tell(message.clone()));
    }
}

fn advertised<'j>(
    channels: impl Iterator<Item = &'j Value>,
) -> tokio_tungstenite::tungstenite::Message {
    let channels: Vec<&Value> = channels.collect();
    text(&json!({ "op": "advertise", "channels": channels }))
}

/// Interfaces and buses of which copies are made: all that are up and that this user may watch.
#[derive(Debug, Default)]
struct Sources {
    open: Vec<Source>,
    /// Names of those that may not be watched, so that each is tried once.
    refused: HashSet<String>,
    refreshed: Option<Instant>,
    /// Lost copies that were reported, and those of sources that are gone.
    reported: u64,
    lost_before: u64,
}

#[derive(Debug)]
struct Source {
    tap: Tap,
    messages: Messages,
    has_failed: bool,
}

impl Sources {
    /// Copies what has passed since the last look. The sentences say what is not seen.
    fn look(&mut self, batch: &mut Batch) -> Vec<String> {
        let mut notes = Vec::new();
        if self.refreshed.is_none_or(|last| last.elapsed() >= REFRESH) {
            self.refreshed = Some(Instant::now());
            self.find(&mut notes);
        }
        for (source, origin) in self.open.iter_mut().zip(0..) {
            match source.tap.look(origin, batch) {
                Ok(said) => notes.extend(said),
                Err(error) => {
                    source.has_failed = true;
                    notes.push(format!("{}: {error}", source.tap.name()));
                }
            }
        }
        notes
    }

    /// Opens interfaces and buses that have come.
    fn find(&mut self, notes: &mut Vec<String>) {
        for bus in vbus::buses(None).unwrap_or_default() {
            let name = bus.path.to_string_lossy().into_owned();
            let open = |path: &Path| Ok(Tap::bus(path, None));
            self.open_if_new(&name, notes, || open(&bus.path));
        }
        for interface in up_interfaces().unwrap_or_default() {
            let name = interface.to_string_lossy().into_owned();
            let open = || Tap::network(&interface, ETHERTYPE_DEFAULT);
            self.open_if_new(&name, notes, open);
        }
    }

    fn open_if_new(
        &mut self,
        name: &str,
        notes: &mut Vec<String>,
        open: impl FnOnce() -> Result<Tap, CaptureError>,
    ) {
        let is_open = |source: &Source| source.tap.name().trim_start_matches("bus ") == name;
        if self.refused.contains(name) || self.open.iter().any(is_open) {
            return;
        }
        match open() {
            Ok(tap) => self.open.push(Source {
                messages: Messages::new(tap.name(), tap.is_bus(), ETHERTYPE_DEFAULT),
                tap,
                has_failed: false,
            }),
            Err(error) => {
                notes.push(format!("{name} is not copied: {error}; {}", error.remedy()));
                self.refused.insert(name.to_owned());
            }
        }
    }

    /// Closes those whose interface has gone; they are opened again when it is back.
    fn close_failed(&mut self) {
        let failed = self.open.iter_mut().filter(|source| source.has_failed);
        self.lost_before += failed.map(|source| source.tap.lost()).sum::<u64>();
        self.open.retain(|source| !source.has_failed);
    }

    /// Copies lost since the last call.
    fn newly_lost(&mut self) -> u64 {
        let now: u64 = self.open.iter_mut().map(|source| source.tap.lost()).sum();
        let now = now + self.lost_before;
        let lost = now.saturating_sub(self.reported);
        self.reported = now;
        lost
    }

    fn taps(&self) -> impl Iterator<Item = &Tap> {
        self.open.iter().map(|source| &source.tap)
    }
}

#[cfg(test)]
pub(super) mod testing {
    use super::*;

    impl Hub {
        /// A hub that is given its messages by [`publish`].
        pub(in super::super) fn without_capture(session: &str) -> Arc<Self> {
            Arc::new(Self {
                session: session.to_owned(),
                captures: false,
                shared: Mutex::default(),
            })
        }

        pub(in super::super) fn clients(&self) -> usize {
            self.shared().clients.len()
        }

        pub(in super::super) fn subscriptions(&self) -> usize {
            let shared = self.shared();
            shared.clients.iter().map(|one| one.subscriptions()).sum()
        }
    }

    /// Facts about a flow of this type.
    pub(in super::super) fn of_type(declaration: &str) -> FlowFacts {
        FlowFacts {
            declared: Some(Arc::new(declaration.parse().unwrap())),
            names: Arc::default(),
        }
    }

    /// Hands a message of one flow to the hub.
    pub(in super::super) fn publish(hub: &Hub, facts: &FlowFacts, time_ns: u64, bytes: &[u8]) {
        publish_of(hub, 1, facts, time_ns, bytes);
    }

    /// Hands a message from a port to the hub.
    fn publish_of(hub: &Hub, port: u16, facts: &FlowFacts, time_ns: u64, bytes: &[u8]) {
        let flow = Flow {
            on: "eth0".to_owned(),
            from: "arm".to_owned(),
            source_port: port,
            to: "motor".to_owned(),
            destination_port: 7,
            priority: 0,
            is_sent: false,
        };
        let message = Message {
            flow: &flow,
            sequence: 0,
            time_ns,
            bytes,
        };
        hub.shared().publish(&message, facts);
    }

    #[test]
    fn a_type_stays_when_its_node_tells_it_no_more_and_channels_have_a_limit() {
        let hub = Hub::without_capture("session");
        publish(&hub, &of_type("T { a: u8 }"), 1, &[1]);
        publish(&hub, &FlowFacts::default(), 2, &[2]);
        let channels = |hub: &Hub| {
            let shared = hub.shared();
            let channels = shared.channels.iter();
            channels
                .map(|(id, one)| (*id, one.message_bytes))
                .collect::<Vec<_>>()
        };
        assert_eq!(channels(&hub), [(1, Some(1))]);
        for port in 2..=CHANNELS_MAX as u16 + 1 {
            publish_of(&hub, port, &FlowFacts::default(), 3, &[3]);
        }
        assert_eq!(channels(&hub).len(), CHANNELS_MAX);
        assert_eq!(hub.shared().notes.len(), 1);
        // A channel whose type is known at last takes the place of the one without.
        publish_of(&hub, 2, &of_type("T { a: u8 }"), 4, &[4]);
        let last = channels(&hub).pop();
        assert_eq!(last, Some((CHANNELS_MAX as u32 + 1, Some(1))));
        assert_eq!(channels(&hub).len(), CHANNELS_MAX);
    }
}
