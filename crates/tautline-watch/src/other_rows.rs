//! Lines of everything but nodes and ports.

use std::time::Duration;

use tautline_guest::GuestStatus;
use tautline_tasks::Times;

use crate::look::{Look, Run};
use crate::row::{Kind, Row, Spread, sum};

/// Adds a line for each task, partition, smoother, bus and guest.
pub(crate) fn add(rows: &mut Vec<Row>, look: &Look, before: Option<&Look>, seconds: f64) {
    for run in &look.runs {
        let mut runs = before.into_iter().flat_map(|before| &before.runs);
        let earlier = runs.find(|earlier| earlier.about == run.about);
        tasks(rows, run, earlier, seconds);
    }
    for partition in &look.partitions {
        let name = format!("{} CPUs {}", partition.name, partition.cpus);
        let mut row = Row::new(Kind::Partition, partition.name.clone(), 0, &name);
        row.process = partition.owner;
        row.state = match (partition.form, partition.processes().len()) {
            (None, _) => Some("is being made".to_owned()),
            (Some(_), 1) => Some("1 process".to_owned()),
            (Some(_), count) => Some(format!("{count} processes")),
        };
        rows.push(row);
    }
    for (status, lives) in &look.smoothers {
        let mut row = Row::new(
            Kind::Smoother,
            status.interface.clone(),
            0,
            &status.interface,
        );
        row.process = Some(status.process);
        row.bytes_per_second = Some(status.arrived_bps as f64 / 8.0);
        row.age_ns = status
            .nodes
            .iter()
            .map(|node| node.wait_us.saturating_mul(1_000))
            .max();
        row.full = sum(status.nodes.iter().map(|node| node.own_drops));
        let refused = status
            .nodes
            .iter()
            .map(|node| node.refused.saturating_add(node.grants_refused));
        row.refused = sum(refused.chain([status.strange_messages]));
        row.state = (!lives).then(|| "dead: nothing is held".to_owned());
        rows.push(row);
    }
    // A directory without members was left behind.
    for bus in look.buses.iter().filter(|bus| !bus.members.is_empty()) {
        let counts = format!(
            "{}, {}",
            counted(bus.members.len(), "node"),
            counted(bus.ports.len(), "port")
        );
        let name = format!("{}: {counts}", bus.name);
        rows.push(Row::new(
            Kind::Bus,
            bus.path.display().to_string(),
            0,
            &name,
        ));
    }
    for guest in &look.guests {
        let mut guests = before.into_iter().flat_map(|before| &before.guests);
        let earlier = guests.find(|one| (&one.name, one.process) == (&guest.name, guest.process));
        rows.push(guest_row(guest, earlier, seconds));
    }
}

/// `1 node`, `2 nodes`.
fn counted(count: usize, what: &str) -> String {
    let several = if count == 1 { "" } else { "s" };
    format!("{count} {what}{several}")
}

fn tasks(rows: &mut Vec<Row>, run: &Run, earlier: Option<&Run>, seconds: f64) {
    let place = format!("{}/{}", run.about.process, run.about.name);
    let described = run.about.tasks.iter().zip(&run.tasks);
    for (index, (about, view)) in described.enumerate() {
        let name = format!("{} of {}", about.name, run.about.name);
        let mut row = Row::new(Kind::Task, place.clone(), index as u32, &name);
        row.process = Some(run.about.process);
        row.state = Some(view.state.name().to_owned());
        row.lost = view.missed;
        row.ever = spread(&view.response, view.jobs);
        if let Some(earlier) = earlier {
            let since = run.since(earlier, index);
            row.per_second = Some(since.jobs as f64 / seconds);
            row.cpu_percent = Some(100.0 * since.execution.as_secs_f64() / seconds);
            row.recent = spread(&since.response, since.jobs);
            let before = earlier.tasks.get(index);
            row.grows = before.is_some_and(|before| view.missed > before.missed);
        }
        rows.push(row);
    }
}

fn spread(times: &Times, jobs: u64) -> Spread {
    let ns =
        |time: Duration| (jobs > 0).then(|| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    Spread {
        p50_ns: ns(times.p50),
        p99_ns: ns(times.p99),
        max_ns: ns(times.max),
    }
}

fn guest_row(guest: &GuestStatus, earlier: Option<&GuestStatus>, seconds: f64) -> Row {
    let mut row = Row::new(Kind::Guest, guest.name.clone(), guest.process, &guest.name);
    let passed = |guest: &GuestStatus| {
        sum(guest
            .ports
            .iter()
            .flat_map(|port| [port.to_guest, port.to_linux]))
    };
    let dropped = |guest: &GuestStatus| {
        sum(guest
            .ports
            .iter()
            .flat_map(|port| [port.to_guest_dropped, port.to_linux_dropped]))
    };
    row.process = Some(guest.process);
    row.state = Some(guest.state.text().to_owned());
    row.age_ns = guest
        .silence
        .map(|time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    row.full = dropped(guest);
    row.refused = sum(guest.ports.iter().map(|port| port.malformed));
    if let Some(earlier) = earlier {
        row.per_second = Some(passed(guest).saturating_sub(passed(earlier)) as f64 / seconds);
        row.grows = row.full > dropped(earlier);
    }
    row
}
