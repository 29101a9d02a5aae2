//! `taut-gateway fleet`: the cells of a fleet as lines of JSON, for `taut status --fleet` and its like. Each line is a
//! whole picture.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use zenoh::query::{QueryTarget, Reply};
use zenoh::sample::SampleKind;
use zenoh::{Session, Wait};

use super::report::{self, Id, Report, Whole};
use super::session::connections;
use super::table::{Line, Table};

/// Time that gateways have to answer. Lower: those behind slow links are not heard. Higher: one that hangs holds up a
/// look.
const ANSWER: Duration = Duration::from_secs(2);
/// Bytes of whole answers in one picture. Lower: nodes of a large fleet are left out. Higher: hostile gateways take
/// more memory.
const WHOLES_BYTES_MAX: usize = 16 << 20;
/// Gateways whose word about vanished ones is heard.
const WITNESSES_MAX: u32 = 64;
/// Longest pause before the watcher looks whether it is to end.
const LOOK: Duration = Duration::from_millis(50);

/// Table and counters that Zenoh's threads fill.
#[derive(Default)]
struct Shared {
    table: Mutex<Table>,
    /// Reports and answers that could not be read.
    malformed: AtomicU64,
}

impl Shared {
    fn table(&self) -> std::sync::MutexGuard<'_, Table> {
        // Whole at every moment: a panic elsewhere leaves nothing half written.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hear(&self, id: &Id, bytes: &[u8]) {
        match Report::parse(bytes) {
            Some(report) => self
                .table()
                .hear(id, report, Duration::ZERO, Instant::now()),
            None => _ = self.malformed.fetch_add(1, Relaxed),
        }
    }

    /// Notes connected and disconnected gateways.
    fn note(&self, id: Option<Id>, kind: SampleKind) {
        match (id, kind) {
            (Some(id), SampleKind::Put) => self.table().appear(id, Instant::now()),
            (Some(id), SampleKind::Delete) => self.table().vanish(&id, Instant::now()),
            (None, _) => _ = self.malformed.fetch_add(1, Relaxed),
        }
    }
}

/// Writes one picture with everything that the gateways tell.
///
/// # Errors
/// Zenoh's, and those of standard output.
pub(crate) fn once(session: &Session, fleet: &str) -> zenoh::Result<()> {
    let shared = Arc::new(Shared::default());
    let tokens = session
        .liveliness()
        .get(report::cells(fleet))
        .timeout(ANSWER)
        .wait()?;
    while let Ok(reply) = tokens.recv() {
        if let Ok(sample) = reply.result() {
            shared.note(Id::of(fleet, sample.key_expr().as_str()), SampleKind::Put);
        }
    }
    hear_of_vanished(session, fleet, &shared)?;
    let mut wholes = BTreeMap::new();
    let mut bytes = 0;
    let mut left_out = 0;
    let answers = session
        .get(report::cells(fleet))
        .target(QueryTarget::All)
        .timeout(ANSWER)
        .wait()?;
    while let Ok(reply) = answers.recv() {
        let Some((id, age, whole)) = read_whole(fleet, &reply, &shared.malformed) else {
            continue;
        };
        let sample_bytes = reply.result().map_or(0, |sample| sample.payload().len());
        shared
            .table()
            .hear(&id, whole.report.clone(), age, Instant::now());
        bytes += sample_bytes;
        if bytes <= WHOLES_BYTES_MAX {
            wholes.insert(id, whole);
        } else {
            left_out += 1;
        }
    }
    let mut picture = picture(&shared, session, &wholes);
    picture["left_out"] = left_out.into();
    write(&picture)?;
    Ok(())
}

/// Writes a picture at each interval until `stop` is set or the reader is gone.
///
/// # Errors
/// Zenoh's.
pub(crate) fn follow(
    session: &Session,
    fleet: &str,
    interval: Duration,
    stop: &AtomicBool,
) -> zenoh::Result<()> {
    let shared = Arc::new(Shared::default());
    let (noted, prefix) = (Arc::clone(&shared), fleet.to_owned());
    let _tokens = session
        .liveliness()
        .declare_subscriber(report::cells(fleet))
        .history(true)
        .callback(move |sample| {
            let id = Id::of(&prefix, sample.key_expr().as_str());
            noted.note(id, sample.kind());
        })
        .wait()?;
    let (heard, prefix) = (Arc::clone(&shared), fleet.to_owned());
    let _reports = session
        .declare_subscriber(report::cells(fleet))
        .callback(
            move |sample| match Id::of(&prefix, sample.key_expr().as_str()) {
                Some(id) if sample.kind() == SampleKind::Put => {
                    heard.hear(&id, &sample.payload().to_bytes());
                }
                _ => _ = heard.malformed.fetch_add(1, Relaxed),
            },
        )
        .wait()?;
    // A moment, so that the first picture has those that are there.
    thread::sleep(interval.min(Duration::from_millis(500)));
    hear_of_vanished(session, fleet, &shared)?;
    while !stop.load(Relaxed) {
        if write(&picture(&shared, session, &BTreeMap::new())).is_err() {
            return Ok(());
        }
        let next = Instant::now() + interval;
        while !stop.load(Relaxed) && Instant::now() < next {
            thread::sleep(LOOK.min(next.saturating_duration_since(Instant::now())));
        }
    }
    Ok(())
}

/// Asks those that are there about those that are not any more.
fn hear_of_vanished(session: &Session, fleet: &str, shared: &Shared) -> zenoh::Result<()> {
    let answers = session
        .get(report::all_vanished(fleet))
        .target(QueryTarget::All)
        .timeout(ANSWER)
        .wait()?;
    let mut witnesses = 0;
    while let Ok(reply) = answers.recv() {
        witnesses += 1;
        let (Ok(sample), true) = (reply.result(), witnesses <= WITNESSES_MAX) else {
            continue;
        };
        let bytes = sample.payload().to_bytes();
        let Some(all) = report::parse_vanished(&bytes, super::table::GATEWAYS_MAX) else {
            shared.malformed.fetch_add(1, Relaxed);
            continue;
        };
        for one in all {
            match Id::of(fleet, &one.key) {
                Some(id) => {
                    let age = Duration::from_millis(one.age_ms);
                    shared.table().tell_vanished(id, age, Instant::now());
                }
                None => _ = shared.malformed.fetch_add(1, Relaxed),
            }
        }
    }
    Ok(())
}

/// An answer with everything, and its age.
fn read_whole(fleet: &str, reply: &Reply, malformed: &AtomicU64) -> Option<(Id, Duration, Whole)> {
    let sample = reply.result().ok()?;
    let id = Id::of(fleet, sample.key_expr().as_str());
    let whole = Whole::parse(&sample.payload().to_bytes());
    let (Some(id), Some(whole)) = (id, whole) else {
        malformed.fetch_add(1, Relaxed);
        return None;
    };
    let attached = sample.attachment().map(|bytes| bytes.to_bytes());
    let age_ms = attached.and_then(|bytes| Some(u64::from_le_bytes(bytes[..].try_into().ok()?)));
    Some((id, Duration::from_millis(age_ms.unwrap_or(0)), whole))
}

fn picture(shared: &Shared, session: &Session, wholes: &BTreeMap<Id, Whole>) -> Value {
    let mut table = shared.table();
    let lines = table.lines(Instant::now());
    let lines = lines.iter().map(|line| cell(line, wholes.get(line.id)));
    let cells: Vec<Value> = lines.collect();
    json!({
        "cells": cells,
        "connections": connections(session),
        "malformed": shared.malformed.load(Relaxed),
        "crowded_out": table.crowded_out,
        "unannounced": table.unannounced,
    })
}

fn cell(line: &Line<'_>, whole: Option<&Whole>) -> Value {
    let mut cell = json!({
        "prefix": report::plain(&line.id.prefix),
        "gateway": report::plain(&line.id.gateway),
        "number": format!("{:016x}", line.id.number),
        "presence": line.presence.name(),
        "age_ms": u64::try_from(line.age.as_millis()).unwrap_or(u64::MAX),
        "report": line.report,
    });
    if let Some(whole) = whole {
        cell["nodes"] = json!(whole.nodes);
        cell["tasks"] = json!(whole.tasks);
        cell["smoothers"] = json!(whole.smoothers);
        cell["left_out"] = whole.left_out.into();
    }
    cell
}

fn write(picture: &Value) -> io::Result<()> {
    let mut output = io::stdout().lock();
    writeln!(output, "{picture}")?;
    output.flush()
}
