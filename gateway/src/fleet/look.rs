//! State of this machine, from where `taut status` has it: nodes of this network namespace as they describe themselves,
//! runs of task sets, smoothers.

use serde_json::{Value, json};
use tautline_smoother::Status as SmootherStatus;

use super::report::{Totals, Whole};

/// Counters of a port that are losses on the way.
const LOST: [&str; 3] = ["expired", "incomplete_dropped", "undelivered"];
/// Counters of a port that found no room.
const FULL: [&str; 2] = ["dropped_full", "contended"];
/// Counters of a port that were not taken.
const REFUSED: [&str; 10] = [
    "policed",
    "unfit",
    "sources_refused",
    "too_large",
    "other_size",
    "other_type",
    "bad_bundles",
    "bad_checksum",
    "void",
    "send_errors",
];
/// Counters of datagrams in fragments.
const REASSEMBLY_FULL: [&str; 2] = ["quota_reached", "crowded_out"];
const REASSEMBLY_REFUSED: [&str; 3] = ["inconsistent", "overlaps", "too_long"];

/// Looks at the machine. What cannot be asked is left out, as `taut status` leaves it out.
pub(super) fn take() -> Whole {
    let mut whole = Whole::default();
    let totals = &mut whole.report.totals;
    if let Ok((nodes, silent)) = tautline::status::nodes() {
        totals.nodes = nodes.len() as u64;
        totals.silent = silent.len() as u64;
        nodes.iter().for_each(|node| add_node(totals, node));
        whole.nodes = nodes;
    }
    for mut view in tautline_tasks::runs() {
        let Ok(look) = view.look() else { continue };
        let about = view.description();
        for (task, view) in about.tasks.iter().zip(look.tasks()) {
            totals.tasks += 1;
            add(&mut totals.jobs, view.jobs);
            add(&mut totals.missed, view.missed);
            whole.tasks.push(json!({
                "run": about.name,
                "process": about.process,
                "task": task.name,
                "state": view.state.name(),
                "period_us": task.period.as_micros() as u64,
                "deadline_us": task.deadline.as_micros() as u64,
                "jobs": view.jobs,
                "missed": view.missed,
                "response_p99_us": view.response.p99.as_micros() as u64,
                "response_max_us": view.response.max.as_micros() as u64,
            }));
        }
    }
    let directory = tautline_state::find_runtime_directory().ok().flatten();
    let smoothers = directory.and_then(|directory| SmootherStatus::all(&directory).ok());
    for (status, lives) in smoothers.unwrap_or_default() {
        totals.smoothers += 1;
        for node in &status.nodes {
            add(&mut totals.held_back, node.own_drops);
        }
        whole
            .smoothers
            .push(json!({ "alive": lives, "status": status }));
    }
    whole
}

/// Adds the counters of a node's ports. A process on this machine says what it likes.
fn add_node(totals: &mut Totals, node: &Value) {
    for port in node["ports"].as_array().into_iter().flatten() {
        totals.ports += 1;
        add(&mut totals.sent, count(&port["sent"]));
        add(&mut totals.received, count(&port["received"]));
        let peers = port["peers"].as_array().into_iter().flatten();
        for peer in peers {
            add(&mut totals.lost, count(&peer["lost"]));
        }
        let reassembly = &port["reassembly"];
        add(&mut totals.lost, count(&reassembly["expired"]));
        for (sum, of_port, of_datagrams) in [
            (&mut totals.lost, &LOST[..], &[][..]),
            (&mut totals.full, &FULL[..], &REASSEMBLY_FULL[..]),
            (&mut totals.refused, &REFUSED[..], &REASSEMBLY_REFUSED[..]),
        ] {
            of_port
                .iter()
                .for_each(|name| add(sum, count(&port[*name])));
            of_datagrams
                .iter()
                .for_each(|name| add(sum, count(&reassembly[*name])));
        }
    }
}

/// A counter, or the sum of those that are kept by priority.
fn count(value: &Value) -> u64 {
    match value {
        Value::Array(list) => list
            .iter()
            .filter_map(Value::as_u64)
            .fold(0, u64::saturating_add),
        one => one.as_u64().unwrap_or(0),
    }
}

fn add(sum: &mut u64, more: u64) {
    *sum = sum.saturating_add(more);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counters_of_all_ports_are_summed_up() {
        let mut totals = Totals::default();
        let node = json!({
            "ports": [
                {
                    "sent": 5, "received": 7, "dropped_full": [1, 0, 2], "policed": 4, "send_errors": 1,
                    "undelivered": 3, "peers": [{"lost": 2}, {"lost": 1}]
                },
                { "sent": "many", "dropped_full": u64::MAX },
                { "reassembly": { "expired": 1, "crowded_out": 2, "overlaps": 3 }, "bad_checksum": 1 },
            ],
        });
        add_node(&mut totals, &node);
        assert_eq!((totals.ports, totals.sent, totals.received), (3, 5, 7));
        assert_eq!((totals.lost, totals.full, totals.refused), (7, u64::MAX, 9));
    }
}
