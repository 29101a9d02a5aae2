//! `taut vbus top`: how busy the ports are, again and again.

use std::collections::BTreeMap;
use std::time::Instant;

use clap::Args;
use serde::Serialize;
use serde_json::json;
use tautline::vbus::{Bus, Observer, PortFigures, ProducerFigures, PublishedFigures};

use super::BusArguments;
use crate::cli::CommandError;
use crate::commands::live::LiveArguments;
use tautline_report::table;

/// Arguments of `taut vbus top`.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    bus: BusArguments,
    #[command(flatten)]
    live: LiveArguments,
}

/// Prints until it is ended.
pub(super) fn run(arguments: &Arguments) -> Result<(), CommandError> {
    let mut before = Look::take(&arguments.bus.buses()?);
    arguments.live.run(|| {
        let after = Look::take(&arguments.bus.buses()?);
        let rows = after.since(&before);
        let seen = (
            json!({ "rows": rows, "silent": after.silent }),
            text(&rows, &after),
        );
        before = after;
        Ok(seen)
    })
}

/// All ports at one moment.
struct Look {
    at: Instant,
    ports: Vec<(String, PortFigures)>,
    silent: Vec<String>,
}

/// One connection, a port without any, or what a port publishes for many.
#[derive(Debug, Serialize)]
struct Row {
    bus: String,
    port: String,
    kind: &'static str,
    from: Option<String>,
    /// Those who read what the port publishes for many.
    readers: Option<Vec<String>>,
    /// Messages published a second.
    published_per_second: f64,
    /// Messages that were not sent because their class was full, a second.
    dropped_per_second: f64,
    /// Kicks a second.
    kicks_per_second: f64,
    published: u64,
    dropped_full: u64,
    queued: u64,
    corrupt: u64,
    /// Messages or values that were published for many and replaced before the receiver, or all readers together, took
    /// them.
    overwritten: u64,
    newest_age_ns: Option<u64>,
    longest_wait_ns: Option<u64>,
    sleeps: bool,
}

impl Look {
    fn take(buses: &[Bus]) -> Look {
        let mut look = Look {
            at: Instant::now(),
            ports: Vec::new(),
            silent: Vec::new(),
        };
        for bus in buses {
            for port in &bus.ports {
                match Observer::open(&bus.path.to_string_lossy(), *port) {
                    Ok(observer) => look.ports.push((bus.name.clone(), observer.figures())),
                    Err(error) => look.silent.push(error.to_string()),
                }
            }
        }
        look
    }

    /// Connections by what never changes of them.
    fn known(&self) -> BTreeMap<u64, &ProducerFigures> {
        let producers = self.ports.iter().flat_map(|(_, port)| &port.producers);
        producers
            .map(|producer| (producer.epoch, producer))
            .collect()
    }

    fn since(&self, before: &Look) -> Vec<Row> {
        let seconds = (self.at - before.at).as_secs_f64();
        let known = before.known();
        let mut rows = Vec::new();
        for (bus, port) in &self.ports {
            if port.producers.is_empty() && port.published.is_none() {
                rows.push(empty_row(bus, port));
            }
            if let Some(published) = &port.published {
                let mut earlier = before.ports.iter();
                let was = earlier
                    .find(|(of, was)| of == bus && was.port == port.port)
                    .and_then(|(_, was)| was.published.as_ref());
                rows.push(published_row(bus, port, published, was, seconds));
            }
            for producer in &port.producers {
                let was = known.get(&producer.epoch).copied();
                rows.push(Row {
                    from: Some(producer.from.to_string()),
                    ..row(bus, port, producer, was, seconds)
                });
            }
        }
        rows
    }
}

fn empty_row(bus: &str, port: &PortFigures) -> Row {
    Row {
        bus: bus.to_owned(),
        port: port.port.to_string(),
        kind: port.kind.name(),
        from: None,
        readers: None,
        published_per_second: 0.0,
        dropped_per_second: 0.0,
        kicks_per_second: 0.0,
        published: 0,
        dropped_full: 0,
        queued: 0,
        corrupt: 0,
        overwritten: 0,
        newest_age_ns: None,
        longest_wait_ns: None,
        sleeps: port.sleeps,
    }
}

fn published_row(
    bus: &str,
    port: &PortFigures,
    is: &PublishedFigures,
    was: Option<&PublishedFigures>,
    seconds: f64,
) -> Row {
    // A port of that name that began anew counts from 0.
    let since =
        |now: u64, then: Option<u64>| now.saturating_sub(then.unwrap_or(0)) as f64 / seconds;
    let kicks = was.map(|was| was.kicks.into());
    Row {
        readers: Some(
            is.readers
                .iter()
                .map(|reader| reader.to.to_string())
                .collect(),
        ),
        published_per_second: since(is.count, was.map(|was| was.count)),
        kicks_per_second: since(is.kicks.into(), kicks),
        published: is.count,
        overwritten: sum(is.readers.iter().map(|reader| &reader.overwritten)),
        newest_age_ns: is.newest_age_ns,
        sleeps: !is.readers.is_empty() && is.readers.iter().all(|reader| reader.sleeps),
        ..empty_row(bus, port)
    }
}

fn row(
    bus: &str,
    port: &PortFigures,
    is: &ProducerFigures,
    was: Option<&ProducerFigures>,
    seconds: f64,
) -> Row {
    let published = sum(&is.published);
    let dropped_full = sum(&is.dropped_full);
    let per_second = |now: u64, then: u64| now.wrapping_sub(then) as f64 / seconds;
    Row {
        published_per_second: per_second(published, was.map_or(0, |was| sum(&was.published))),
        dropped_per_second: per_second(dropped_full, was.map_or(0, |was| sum(&was.dropped_full))),
        kicks_per_second: f64::from(is.kicks.wrapping_sub(was.map_or(0, |was| was.kicks)))
            / seconds,
        published,
        dropped_full,
        queued: is.queued.iter().map(|waiting| u64::from(*waiting)).sum(),
        corrupt: is.corrupt,
        overwritten: is.overwritten,
        newest_age_ns: is.newest_age_ns,
        longest_wait_ns: is.longest_wait_ns,
        ..empty_row(bus, port)
    }
}

/// A peer may write anything into its counters, hence no overflow.
fn sum<'c>(counts: impl IntoIterator<Item = &'c u64>) -> u64 {
    let counts = counts.into_iter();
    counts.fold(0, |sum, count| sum.wrapping_add(*count))
}

fn text(rows: &[Row], look: &Look) -> String {
    let mut text = if rows.is_empty() {
        "no port is open on any bus, or none for this user\n".to_owned()
    } else {
        let header = [
            "port",
            "bus",
            "kind",
            "from",
            "messages/s",
            "waiting",
            "waits ms",
            "age ms",
            "full/s",
            "full",
            "lost",
            "corrupt",
            "kicks/s",
            "receiver",
        ];
        table::figures(&header, rows.iter().map(cells))
    };
    for silent in &look.silent {
        text += &format!("  {silent}\n");
    }
    text
}

fn cells(row: &Row) -> Vec<String> {
    let milliseconds =
        |age: Option<u64>| age.map_or("–".to_owned(), |ns| format!("{:.3}", ns as f64 / 1e6));
    vec![
        row.port.clone(),
        row.bus.clone(),
        row.kind.to_owned(),
        match (&row.from, &row.readers) {
            (Some(from), _) => from.clone(),
            (None, Some(readers)) => format!("to {} readers", readers.len()),
            (None, None) => "–".to_owned(),
        },
        format!("{:.0}", row.published_per_second),
        row.queued.to_string(),
        milliseconds(row.longest_wait_ns),
        milliseconds(row.newest_age_ns),
        format!("{:.0}", row.dropped_per_second),
        row.dropped_full.to_string(),
        row.overwritten.to_string(),
        row.corrupt.to_string(),
        format!("{:.0}", row.kicks_per_second),
        if row.sleeps { "sleeps" } else { "awake" }.to_owned(),
    ]
}
