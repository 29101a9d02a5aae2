//! Requests and replies: queries of Zenoh that a port of the cell answers, and requests of the cell that a participant
//! of Zenoh answers. Each entry has one request on its way at a time, and a thread that waits for its reply; no
//! other thread waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use tautline::address::Address;
use tautline::{Instant, Message, QueuingPort, SendError, Source, now};
use tautline_bridge::activity::Activity;
use tautline_bridge::program::Failure;
use zenoh::bytes::{Encoding, ZBytes};
use zenoh::query::{Query, Queryable, Reply};
use zenoh::sample::Sample;
use zenoh::{Session, Wait};

use crate::config::{Answer, Ask, MESSAGE_BYTES_MAX, message_bytes};
use crate::status::{AnswerStatus, Answered, AskStatus, Asked};
use crate::words;

/// Longest wait before a thread looks whether it is to end. Lower: more wake-ups. Higher: an end takes longer.
const LOOK: Duration = Duration::from_millis(100);
/// Queries that wait for their turn. Lower: askers that come together are refused. Higher: most of them wait in vain,
/// for each may take its whole time.
const WAITING_MAX: usize = 16;

/// Reasons for which a request has no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    Standby,
    Stale,
    Policed,
    Busy,
    OtherType,
    OtherSize,
    Undelivered,
    Refused,
    Unanswered,
}

impl Refusal {
    /// For the asker.
    fn text(self) -> &'static str {
        match self {
            Self::Standby => "another gateway is active",
            Self::Stale => "the request waited for longer than its time",
            Self::Policed => "more requests than the rate allows",
            Self::Busy => "busy: an earlier reply is late, or too many requests wait",
            Self::OtherType => "another type than the port's",
            Self::OtherSize => "another size than the port's messages have",
            Self::Undelivered => "nobody in the cell takes requests",
            Self::Refused => "refused",
            Self::Unanswered => "no reply in time",
        }
    }
}

/// Queries for a key, answered by a port of the cell.
pub(crate) struct Answering {
    config: Answer,
    request: Form,
    reply: Form,
    activity: Arc<Activity>,
    counters: Answered,
    queue: SyncSender<Waiting>,
}

/// A query, and when it came.
pub(crate) struct Waiting {
    query: Query,
    since: Instant,
}

/// Type and size of requests or replies.
struct Form {
    encoding: Encoding,
    bytes: Option<usize>,
}

impl Form {
    fn of(declared: Option<&Arc<tautline::types::Declaration>>) -> Self {
        Self {
            encoding: words::encoding(declared),
            bytes: declared.map(|declared| declared.bytes()),
        }
    }

    /// Bytes that came from Zenoh, if a port takes them.
    fn check(&self, payload: Option<&ZBytes>, encoding: Option<&Encoding>) -> Result<(), Refusal> {
        let is_other = |found| words::is_other_type(found, &self.encoding);
        if self.bytes.is_some() && encoding.is_some_and(is_other) {
            return Err(Refusal::OtherType);
        }
        self.check_size(payload.map_or(0, ZBytes::len))
    }

    fn check_size(&self, bytes: usize) -> Result<(), Refusal> {
        let is_other = self.bytes.is_some_and(|declared| declared != bytes);
        match is_other || bytes > MESSAGE_BYTES_MAX {
            true => Err(Refusal::OtherSize),
            false => Ok(()),
        }
    }
}

/// The thread's side of [`Answering`].
struct Desk {
    port: QueuingPort,
    buffer: Vec<u8>,
    paid_ns: u64,
    /// A reply that comes before this may belong to the request before.
    quiet_until: Instant,
}

impl Answering {
    /// Both ends: the one that takes queries, and the queries for [`run`](Self::run).
    pub(crate) fn new(config: Answer, activity: Arc<Activity>) -> (Arc<Self>, Receiver<Waiting>) {
        let (queue, waiting) = sync_channel(WAITING_MAX);
        let answering = Arc::new(Self {
            request: Form::of(config.port.types.sends.as_ref()),
            reply: Form::of(config.port.types.receives.as_ref()),
            config,
            activity,
            counters: Answered::default(),
            queue,
        });
        (answering, waiting)
    }

    /// State for queries.
    pub(crate) fn status(&self) -> AnswerStatus {
        AnswerStatus {
            key: self.config.key.to_string(),
            port: self.config.port.name.clone(),
            to: self.config.to.to_string(),
            counters: self.counters.told(),
        }
    }

    /// Brings the declaration in line: it stands while this gateway is active. By the housekeeping thread.
    pub(crate) fn declare(
        self: &Arc<Self>,
        session: &Session,
        declared: &mut Option<Queryable<()>>,
    ) -> zenoh::Result<()> {
        match (self.activity.now().is_some(), declared.is_some()) {
            (true, false) => {
                let taking = Arc::clone(self);
                let queryable = session.declare_queryable(&self.config.key).complete(true);
                let callback = queryable.callback(move |query| taking.take(query));
                *declared = Some(callback.wait()?);
            }
            (false, true) => *declared = None,
            _ => {}
        }
        Ok(())
    }

    /// Takes a query. Zenoh's own threads call this.
    fn take(&self, query: Query) {
        let since = now();
        // Before it waits, so that those that wait are bounded.
        if query.payload().map_or(0, ZBytes::len) > MESSAGE_BYTES_MAX {
            return self.refuse(&query, Refusal::OtherSize);
        }
        match self.queue.try_send(Waiting { query, since }) {
            Ok(()) => {}
            Err(TrySendError::Full(waiting) | TrySendError::Disconnected(waiting)) => {
                self.refuse(&waiting.query, Refusal::Busy);
            }
        }
    }

    /// Answers queries until `stop` is set.
    ///
    /// # Errors
    /// The port can no longer be read.
    pub(crate) fn run(
        &self,
        port: QueuingPort,
        waiting: &Receiver<Waiting>,
        stop: &AtomicBool,
    ) -> Result<(), Failure> {
        let mut desk = Desk {
            buffer: vec![0; port.message_bytes_max()],
            port,
            paid_ns: 0,
            quiet_until: Instant::from_nanos(0),
        };
        while !stop.load(Relaxed) {
            let next = waiting.recv_timeout(LOOK);
            self.clear(&mut desk)?;
            let Ok(waiting) = next else { continue };
            match self.serve(&waiting, &mut desk, stop)? {
                Ok(bytes) => self.reply(&waiting.query, &desk.buffer[..bytes]),
                Err(refusal) => self.refuse(&waiting.query, refusal),
            }
        }
        Ok(())
    }

    /// Removes unexpected messages from the port: late replies, and strays.
    fn clear(&self, desk: &mut Desk) -> Result<(), Failure> {
        while let Some(message) = desk
            .port
            .receive_into(&mut desk.buffer, tautline::Wait::Poll)?
        {
            self.note_unwanted(&message, desk);
        }
        Ok(())
    }

    fn note_unwanted(&self, message: &Message, desk: &mut Desk) {
        if self.is_of_port(message.source) {
            self.counters.late.fetch_add(1, Relaxed);
            // The one that was awaited has come.
            desk.quiet_until = Instant::from_nanos(0);
        } else {
            self.counters.strays.fetch_add(1, Relaxed);
        }
    }

    /// Sends the request to the port, and waits for its reply, whose bytes are in the buffer.
    fn serve(
        &self,
        waiting: &Waiting,
        desk: &mut Desk,
        stop: &AtomicBool,
    ) -> Result<Result<usize, Refusal>, Failure> {
        if let Err(refusal) = self.send(waiting, desk) {
            return Ok(Err(refusal));
        }
        let deadline = now() + self.config.timeout;
        loop {
            let until = deadline.min(now() + LOOK);
            match desk
                .port
                .receive_into(&mut desk.buffer, tautline::Wait::Until(until))?
            {
                Some(reply) if self.is_of_port(reply.source) => {
                    let fits = self.reply.check_size(reply.length);
                    return Ok(fits.map(|()| reply.length));
                }
                Some(stray) => self.note_unwanted(&stray, desk),
                None if now() < deadline && !stop.load(Relaxed) => {}
                None => {
                    desk.quiet_until = now() + self.config.timeout;
                    return Ok(Err(Refusal::Unanswered));
                }
            }
        }
    }

    fn send(&self, waiting: &Waiting, desk: &mut Desk) -> Result<(), Refusal> {
        let at = now();
        if self.activity.now().is_none() {
            return Err(Refusal::Standby);
        }
        if at.saturating_duration_since(waiting.since) > self.config.timeout {
            return Err(Refusal::Stale);
        }
        if at < desk.quiet_until {
            return Err(Refusal::Busy);
        }
        let admitted = self.config.bucket.admit(desk.paid_ns, at.as_nanos());
        desk.paid_ns = admitted.ok_or(Refusal::Policed)?;
        let query = &waiting.query;
        self.request.check(query.payload(), query.encoding())?;
        let to = &self.config.to;
        let found = desk.port.destination(&to.neighbour, to.port);
        let destination = found.map_err(|_absent| Refusal::Undelivered)?;
        let bytes = query.payload().map(ZBytes::to_bytes).unwrap_or_default();
        let sent = desk.port.send(destination, self.config.priority, &bytes);
        sent.map_err(undelivered)
    }

    /// Whether a message comes from the port that answers.
    fn is_of_port(&self, source: Source) -> bool {
        let neighbour = &self.config.neighbour;
        source.port == self.config.to.port
            && match source.address {
                Address::Bus(name) => name.as_str() == neighbour.name,
                Address::Ethernet(mac) => mac == neighbour.mac,
                Address::Udp(address) => Some(*address.ip()) == neighbour.ip,
                _ => false,
            }
    }

    fn reply(&self, query: &Query, bytes: &[u8]) {
        self.counters.answered.fetch_add(1, Relaxed);
        let reply = query.reply(&self.config.key, bytes);
        // The asker may have gone.
        let _gone = reply.encoding(self.reply.encoding.clone()).wait();
    }

    fn refuse(&self, query: &Query, refusal: Refusal) {
        let counters = &self.counters;
        let counter = match refusal {
            Refusal::Standby => &counters.standby,
            Refusal::Stale => &counters.stale,
            Refusal::Policed => &counters.policed,
            Refusal::Busy | Refusal::Refused => &counters.busy,
            Refusal::OtherType => &counters.other_type,
            Refusal::OtherSize => &counters.other_size,
            Refusal::Undelivered => &counters.undelivered,
            Refusal::Unanswered => &counters.unanswered,
        };
        counter.fetch_add(1, Relaxed);
        // As above.
        let _gone = query.reply_err(refusal.text()).wait();
    }
}

fn undelivered(error: SendError) -> Refusal {
    match error {
        SendError::MessageTooLarge { .. } | SendError::LargerThanReceiver { .. } => {
            Refusal::OtherSize
        }
        _ => Refusal::Undelivered,
    }
}

/// Requests that programs send to a port, answered by programs that answer queries for a key.
pub(crate) struct Asking {
    config: Ask,
    request: Form,
    reply: Form,
    activity: Arc<Activity>,
    counters: Asked,
}

impl Asking {
    pub(crate) fn new(config: Ask, activity: Arc<Activity>) -> Arc<Self> {
        Arc::new(Self {
            request: Form::of(config.port.types.receives.as_ref()),
            reply: Form::of(config.port.types.sends.as_ref()),
            config,
            activity,
            counters: Asked::default(),
        })
    }

    /// State for queries.
    pub(crate) fn status(&self) -> AskStatus {
        AskStatus {
            port: self.config.port.name.clone(),
            key: self.config.key.to_string(),
            counters: self.counters.told(),
        }
    }

    /// Asks for programs until `stop` is set.
    ///
    /// # Errors
    /// The port can no longer be read.
    pub(crate) fn run(
        &self,
        mut port: QueuingPort,
        session: &Session,
        stop: &AtomicBool,
    ) -> Result<(), Failure> {
        let mut buffer = vec![0; message_bytes(&self.config.port)];
        while !stop.load(Relaxed) {
            let Some(message) =
                port.receive_into(&mut buffer, tautline::Wait::Until(now() + LOOK))?
            else {
                continue;
            };
            let reply = self.ask(&message, &buffer[..message.length], session, stop);
            let delivered = reply.and_then(|reply| self.deliver(&mut port, &message, &reply));
            self.count(delivered);
        }
        Ok(())
    }

    /// The first reply.
    fn ask(
        &self,
        message: &Message,
        bytes: &[u8],
        session: &Session,
        stop: &AtomicBool,
    ) -> Result<Sample, Refusal> {
        let grant = self.activity.now();
        if grant.is_none_or(|grant| message.arrival < grant.since) {
            return Err(Refusal::Standby);
        }
        if now().saturating_duration_since(message.arrival) > self.config.timeout {
            return Err(Refusal::Stale);
        }
        self.request.check_size(bytes.len())?;
        let replies = session
            .get(&self.config.key)
            .payload(bytes)
            .encoding(self.request.encoding.clone())
            .priority(words::to_zenoh(message.priority))
            .timeout(self.config.timeout)
            .wait();
        let replies = replies.map_err(|_closed| Refusal::Refused)?;
        let mut refusal = Refusal::Unanswered;
        // Zenoh ends the replies when the time is over.
        while !stop.load(Relaxed) {
            match replies
                .recv_timeout(LOOK)
                .map(|reply| reply.map(Reply::into_result))
            {
                Ok(Some(Ok(sample))) => return Ok(sample),
                Ok(Some(Err(_refused))) => refusal = Refusal::Refused,
                Ok(None) => {}
                Err(_ended) => break,
            }
        }
        Err(refusal)
    }

    /// Sends the reply to the requester, with the request's priority.
    fn deliver(
        &self,
        port: &mut QueuingPort,
        message: &Message,
        reply: &Sample,
    ) -> Result<(), Refusal> {
        self.reply
            .check(Some(reply.payload()), Some(reply.encoding()))?;
        let (to, bytes) = (message.source, reply.payload().to_bytes());
        let sent = port.reply_until(to, message.priority, &bytes, now() + LOOK);
        sent.map_err(undelivered)
    }

    fn count(&self, delivered: Result<(), Refusal>) {
        let counters = &self.counters;
        let counter = match delivered {
            Ok(()) => &counters.answered,
            Err(Refusal::Standby) => &counters.standby,
            Err(Refusal::Stale) => &counters.stale,
            Err(Refusal::OtherType) => &counters.other_type,
            Err(Refusal::OtherSize) => &counters.other_size,
            Err(Refusal::Undelivered) => &counters.undelivered,
            Err(Refusal::Refused | Refusal::Busy | Refusal::Policed) => &counters.refused,
            Err(Refusal::Unanswered) => &counters.unanswered,
        };
        counter.fetch_add(1, Relaxed);
    }
}
