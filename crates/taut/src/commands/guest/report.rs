//! Guests in words, tables and JSON. What a guest's process says of itself is text of another program.

use std::time::Duration;

use serde_json::{Value, json};
use tautline_guest::GuestStatus;
use tautline_guest::run::Occurrence;
use tautline_report::plot::latency_text;
use tautline_report::table::{self, Cell};
use tautline_state::text;

use crate::units::ns;

/// Characters of text from other programs that are shown. Lower: paths are cut. Higher: one fills a line.
const TEXT_CHARS_MAX: usize = 96;

const HEADER: [&str; 10] = [
    "guest",
    "monitor",
    "process",
    "state",
    "age",
    "restarts",
    "last sign",
    "to guest",
    "to Linux",
    "dropped",
];
const PORTS_HEADER: [&str; 8] = [
    "port",
    "open",
    "to guest",
    "dropped",
    "to Linux",
    "dropped",
    "malformed",
    "refused",
];

fn plain(theirs: &str) -> String {
    text::plain(theirs, TEXT_CHARS_MAX)
}

/// An age in seconds.
fn age(age: Duration) -> String {
    format!("{:.1} s", age.as_secs_f64())
}

/// One line on what happened.
pub(super) fn occurrence(name: &str, occurrence: &Occurrence) -> String {
    match occurrence {
        Occurrence::Started(monitor) => format!("guest {name}: started ({monitor})\n"),
        Occurrence::Limit(limit) => format!("guest {name}: {limit}\n"),
        Occurrence::Joined(after) => {
            format!(
                "guest {name}: joined its window after {} ms\n",
                after.as_millis()
            )
        }
        Occurrence::Ended(how) => format!("guest {name}: ended, {}\n", plain(how)),
        Occurrence::Restarting => format!("guest {name}: started again\n"),
        _ => String::new(),
    }
}

pub(super) fn list_text(found: &[GuestStatus], silent: &[String]) -> String {
    let mut out = if found.is_empty() && silent.is_empty() {
        "no guest runs, or none of this user\n".to_owned()
    } else if found.is_empty() {
        String::new()
    } else {
        table::figures_in_one_unit(&HEADER, found.iter().map(row))
    };
    for name in silent {
        out += &format!("guest {}: its process does not answer\n", plain(name));
    }
    out
}

fn row(guest: &GuestStatus) -> Vec<Cell> {
    let sum = |count: fn(&tautline_guest::PortFigures) -> u64| -> Cell {
        let all = guest.ports.iter().map(count);
        all.fold(0_u64, u64::saturating_add).to_string().into()
    };
    // Its name, without how it executes instructions.
    let monitor = guest.monitor.split(',').next().unwrap_or_default();
    vec![
        plain(&guest.name).into(),
        plain(monitor).into(),
        guest.process.to_string().into(),
        guest.state.text().into(),
        age(guest.age).into(),
        guest.restarts.to_string().into(),
        guest
            .silence
            .map_or_else(|| "-".into(), |silence| Cell::Time(ns(silence))),
        sum(|port| port.to_guest),
        sum(|port| port.to_linux),
        sum(|port| {
            port.to_guest_dropped
                .saturating_add(port.to_linux_dropped)
                .saturating_add(port.malformed)
                .saturating_add(port.refused)
        }),
    ]
}

pub(super) fn list_json(found: &[GuestStatus], silent: &[String]) -> Value {
    json!({
        "guests": found.iter().map(json).collect::<Value>(),
        "silent": silent,
    })
}

pub(super) fn text(guest: &GuestStatus) -> String {
    let mut lines = vec![
        format!(
            "guest {} (process {}), {} for {}",
            plain(&guest.name),
            guest.process,
            guest.state.text(),
            age(guest.age)
        ),
        format!(
            "  image {}, {}, under {}",
            plain(&guest.image),
            plain(&guest.architecture),
            plain(&guest.monitor)
        ),
        format!("  ports on {}", plain(&guest.network)),
    ];
    match &guest.partition {
        Some(partition) => lines.push(format!("  in partition {}", plain(partition))),
        None => lines.push("  in no partition: it shares its CPU".to_owned()),
    }
    if let Some(silence) = guest.silence {
        lines.push(format!(
            "  last sign of life {} ago, {} doorbells",
            latency_text(ns(silence)),
            guest.doorbells
        ));
    }
    lines.push(match &guest.last_end {
        Some(end) => format!(
            "  started again {} times; ended before: {}",
            guest.restarts,
            plain(end)
        ),
        None => "  never started again".to_owned(),
    });
    for limit in &guest.limits {
        lines.push(format!("  limit: {}", plain(limit)));
    }
    let rows = guest.ports.iter().map(|port| {
        vec![
            port.port.to_string(),
            if port.is_open { "yes" } else { "no" }.to_owned(),
            port.to_guest.to_string(),
            port.to_guest_dropped.to_string(),
            port.to_linux.to_string(),
            port.to_linux_dropped.to_string(),
            port.malformed.to_string(),
            port.refused.to_string(),
        ]
    });
    lines.join("\n") + "\n" + &table::figures(&PORTS_HEADER, rows)
}

pub(super) fn json(guest: &GuestStatus) -> Value {
    let ports = guest.ports.iter().map(|port| {
        json!({
            "port": port.port,
            "open": port.is_open,
            "to_guest": port.to_guest,
            "to_guest_dropped": port.to_guest_dropped,
            "to_linux": port.to_linux,
            "to_linux_dropped": port.to_linux_dropped,
            "malformed": port.malformed,
            "refused": port.refused,
        })
    });
    json!({
        "name": guest.name,
        "process": guest.process,
        "image": guest.image,
        "architecture": guest.architecture,
        "monitor": guest.monitor,
        "network": guest.network,
        "partition": guest.partition,
        "state": guest.state.text(),
        "age_ns": ns(guest.age),
        "restarts": guest.restarts,
        "last_end": guest.last_end,
        "silence_ns": guest.silence.map(ns),
        "doorbells": guest.doorbells,
        "limits": guest.limits,
        "ports": ports.collect::<Value>(),
    })
}
