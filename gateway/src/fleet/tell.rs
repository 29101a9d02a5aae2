//! A gateway's side of a fleet: a thread that looks at the machine, publishes a report, and leaves the whole for those
//! who ask. It waits for programs of the cell no longer than `taut status` does, and none waits for it.

use std::error::Error;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tautline_bridge::program::say;
use tautline_shm::police::Bucket;
use zenoh::bytes::Encoding;
use zenoh::qos::{CongestionControl, Priority};
use zenoh::query::Query;
use zenoh::sample::SampleKind;
use zenoh::{Session, Wait};

use super::Settings;
use super::report::{self, Id, Vanished, Verdict, Whole};
use super::{look, table::Presence, table::Table, verdict};
use crate::status::GatewayStatus;

/// Answers that a gateway gives in a second, and at once after a pause: of each sort. Lower: many watchers get none.
/// Higher: queries make it send more.
const ANSWERS_PER_SECOND: u64 = 20;
const ANSWERS_AT_ONCE: u32 = 20;
/// Vanished gateways that one tells of. Lower: a large site that went is not all seen. Higher: answers grow.
const VANISHED_MAX: usize = 256;
/// Longest pause before the thread looks whether it is to end.
const LOOK: Duration = Duration::from_millis(100);
/// Added to the thread's niceness: reports come after values.
const NICENESS: i32 = 10;

/// The last status, for queries.
struct Told {
    text: String,
    at: Instant,
}

/// A limit of answers.
struct Police {
    bucket: Bucket,
    paid_ns: AtomicU64,
}

impl Police {
    fn new() -> Self {
        let bucket = Bucket::new(1_000_000_000 / ANSWERS_PER_SECOND, ANSWERS_AT_ONCE);
        Self {
            bucket: bucket.expect("within its limits"),
            paid_ns: AtomicU64::new(0),
        }
    }

    /// Whether one more may be answered.
    fn admits(&self) -> bool {
        let now = tautline::now().as_nanos();
        let paid = |paid| self.bucket.admit(paid, now);
        self.paid_ns.fetch_update(Relaxed, Relaxed, paid).is_ok()
    }
}

/// Tells of this machine until `stop` is set.
///
/// # Errors
/// Zenoh refused a declaration.
pub(crate) fn run(
    session: &Session,
    settings: &Settings,
    id: Id,
    status: impl Fn() -> GatewayStatus,
    stop: &AtomicBool,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    // Of this thread alone; without the right it stays as it is.
    let _unchanged = rustix::process::nice(NICENESS);
    let fleet = settings.prefix.as_str();
    let key = id.key(fleet);
    let told = Arc::new(Mutex::new(Told {
        text: String::new(),
        at: Instant::now(),
    }));
    let publisher = session
        .declare_publisher(key.clone())
        .encoding(Encoding::APPLICATION_JSON)
        .congestion_control(CongestionControl::Drop)
        .priority(Priority::Background)
        .wait()?;
    let (asked, answered_key, police) = (Arc::clone(&told), key.clone(), Police::new());
    let _whole = session
        .declare_queryable(&key)
        .callback(move |query| answer_whole(&query, &answered_key, &asked, &police))
        .wait()?;
    let seen = Arc::new(Mutex::new(Table::default()));
    let _others = watch_others(session, fleet, &id, &seen)?;
    let vanished_key = report::vanished(fleet, id.number);
    let (asked, answered_key, police) = (Arc::clone(&seen), vanished_key.clone(), Police::new());
    let prefix = fleet.to_owned();
    let _vanished = session
        .declare_queryable(&vanished_key)
        .callback(move |query| answer_vanished(&query, &answered_key, &prefix, &asked, &police))
        .wait()?;
    // The last step: watchers that see it may query.
    let _token = session.liveliness().declare_token(&key).wait()?;
    let mut sequence = 0;
    let mut judged = settings.verdict.clone().map(verdict::Source::new);
    while !stop.load(Relaxed) {
        let began = Instant::now();
        sequence += 1;
        let verdict = judged
            .as_mut()
            .and_then(|file| file.look(began, |error| say_of(&id.gateway, error)));
        let whole = look_at(status(), settings.period, sequence, verdict);
        let report = serde_json::to_string(&whole.report).unwrap_or_default();
        *lock(&told) = Told {
            text: whole.text(),
            at: began,
        };
        if report.len() <= report::REPORT_BYTES_MAX {
            let _dropped = publisher.put(report).wait();
        }
        // A machine that takes long to look at is looked at half of the time.
        let pause = settings.period.max(began.elapsed() * 2);
        while !stop.load(Relaxed) && began.elapsed() < pause {
            thread::sleep(LOOK.min(pause.saturating_sub(began.elapsed())));
        }
    }
    Ok(())
}

fn say_of(gateway: &str, error: &str) {
    say(&format!(
        "gateway {gateway}: no verdict of the lab: {error}"
    ));
}

/// Looks at the machine, and adds what the gateway says of itself.
fn look_at(
    status: GatewayStatus,
    period: Duration,
    sequence: u64,
    verdict: Option<Verdict>,
) -> Whole {
    let began = Instant::now();
    let mut whole = look::take();
    let totals = whole.report.totals;
    let report = &mut whole.report;
    *report = report::Report::new();
    report.totals = totals;
    report.host = host();
    report.verdict = verdict;
    report.process = status.standing.process;
    report.term = status.standing.term;
    report.connections = status.connections as u64;
    report.standing_by = status.gateways_standing_by as u64;
    report.foreign = status.foreign_gateways as u64;
    report.sequence = sequence;
    report.period_ms = u32::try_from(period.as_millis()).unwrap_or(u32::MAX);
    report.totals.published = sum(status.publications.iter().map(|one| one.counters.published));
    report.totals.delivered = sum(status
        .subscriptions
        .iter()
        .map(|one| one.counters.delivered));
    let dropped = status.publications.iter().map(|one| one.dropped());
    let of_subscriptions = status
        .subscriptions
        .iter()
        .map(|one| one.counters.dropped());
    let of_answers = status.answers.iter().map(|one| one.counters.dropped());
    let of_asks = status.asks.iter().map(|one| one.counters.dropped());
    let all = dropped.chain(of_subscriptions).chain(of_answers);
    report.totals.dropped = sum(all.chain(of_asks));
    report.state = status.standing.state;
    report.look_us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
    whole
}

fn sum(counts: impl Iterator<Item = u64>) -> u64 {
    counts.fold(0, u64::saturating_add)
}

fn host() -> String {
    let name = rustix::system::uname();
    report::plain(&name.nodename().to_string_lossy())
}

fn answer_whole(query: &Query, key: &str, told: &Mutex<Told>, police: &Police) {
    if !police.admits() {
        let _gone = query.reply_err("too many queries").wait();
        return;
    }
    let (text, age) = {
        let told = lock(told);
        (told.text.clone(), told.at.elapsed())
    };
    let age_ms = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
    let reply = query.reply(key, text).encoding(Encoding::APPLICATION_JSON);
    // The asker may have gone.
    let _gone = reply.attachment(&age_ms.to_le_bytes()[..]).wait();
}

/// Keeps a table of the others, so that later watchers learn of those that vanished.
fn watch_others(
    session: &Session,
    fleet: &str,
    own: &Id,
    seen: &Arc<Mutex<Table>>,
) -> zenoh::Result<zenoh::pubsub::Subscriber<()>> {
    let (seen, own, fleet) = (Arc::clone(seen), own.clone(), fleet.to_owned());
    let all = report::cells(&fleet);
    session
        .liveliness()
        .declare_subscriber(all)
        .history(true)
        .callback(move |sample| {
            let Some(id) = Id::of(&fleet, sample.key_expr().as_str()).filter(|id| *id != own)
            else {
                return;
            };
            match sample.kind() {
                SampleKind::Put => lock(&seen).appear(id, Instant::now()),
                SampleKind::Delete => lock(&seen).vanish(&id, Instant::now()),
            }
        })
        .wait()
}

fn answer_vanished(query: &Query, key: &str, fleet: &str, seen: &Mutex<Table>, police: &Police) {
    if !police.admits() {
        let _gone = query.reply_err("too many queries").wait();
        return;
    }
    let mut all: Vec<Vanished> = lock(seen)
        .lines(Instant::now())
        .iter()
        .filter(|line| line.presence == Presence::Vanished)
        .map(|line| Vanished {
            key: line.id.key(fleet),
            age_ms: u64::try_from(line.age.as_millis()).unwrap_or(u64::MAX),
        })
        .collect();
    all.sort_by_key(|one| one.age_ms);
    all.truncate(VANISHED_MAX);
    let text = serde_json::to_string(&all).unwrap_or_default();
    let reply = query.reply(key, text).encoding(Encoding::APPLICATION_JSON);
    let _gone = reply.wait();
}

/// Whole at every moment: a panic elsewhere leaves nothing half written.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
