//! `taut-lab bench turns`: two ends in one thread, over one cable.

use std::time::Duration;

use clap::Args;
use tautline_bench::echo::Path;
use tautline_bench::turns::{self, Outcome, Row, Settings, TurnsError};
use tautline_machine::Machine;
use tautline_report::table;
use tautline_testbed::child;
use tautline_testbed::hosts::{Hosts, HostsOptions};

use super::{EndArguments, with_progress, without_repeats};
use taut::cli::CommandError;
use taut::commands::output::JsonArguments;
use taut::units;

/// Paths, sizes and count, which `taut-lab lab paths` has too.
#[derive(Clone, Debug, Args)]
pub(crate) struct PathArguments {
    /// Paths to measure, comma-separated.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "LIST",
        default_value = "udp-poll,udp-busy,queuing,sampling,udp-port,packet,xsk,floor"
    )]
    pub(crate) paths: Vec<Path>,
    /// Payload sizes, comma-separated, such as 1KiB.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "LIST",
        value_parser = units::size,
        default_value = "16B,256B,1400B"
    )]
    pub(crate) sizes: Vec<usize>,
    /// Round trips of each path at each size.
    #[arg(long, value_name = "N", default_value_t = 2_000, value_parser = units::count)]
    pub(crate) count: u64,
}

/// Arguments of `taut-lab bench turns`.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    paths: PathArguments,
    /// Two interfaces of this machine with a cable between them, in place of a virtual cable. They leave this network
    /// namespace until the end.
    #[arg(
        long,
        value_name = "A,B",
        value_delimiter = ',',
        conflicts_with = "over"
    )]
    interfaces: Vec<String>,
    #[command(flatten)]
    ends: EndArguments,
    /// CPU of the thread [default: the second of those allowed].
    #[arg(long, value_name = "CPU")]
    cpu: Option<usize>,
    #[command(flatten)]
    json: JsonArguments,
}

/// Time after which a message counts as lost.
const TIME_LIMIT: Duration = Duration::from_millis(100);

/// Makes two hosts, measures, removes them.
pub(super) fn run(arguments: &Arguments) -> Result<(), CommandError> {
    let allowed = child::allowed_cpus().unwrap_or_default();
    let second = allowed.get(1).or(allowed.first()).copied();
    let settings = Settings {
        paths: without_repeats(&arguments.paths.paths),
        sizes: without_repeats(&arguments.paths.sizes),
        count: arguments.paths.count.max(1),
        time_limit_ns: TIME_LIMIT.as_nanos() as u64,
        cpu: arguments.cpu.or(second),
        burst_messages: turns::BURST_MESSAGES,
        stream_bits_per_s: turns::STREAM_BITS_PER_S,
    };
    let hosts = match &arguments.interfaces[..] {
        [] => Hosts::create(&HostsOptions {
            end_kind: arguments.ends.over,
            ..HostsOptions::default()
        }),
        [a, b] if a != b => Hosts::join([a, b]),
        _ => {
            return Err(CommandError::usage(
                "--interfaces names one cable".to_owned(),
                "give its two interfaces: --interfaces eth1,eth2",
            ));
        }
    };
    let hosts = hosts.map_err(|error| explain(TurnsError::Hosts(error)))?;
    let outcome = with_progress("rows", |progress| turns::run(&hosts, &settings, progress));
    drop(hosts);
    let outcome = outcome.map_err(explain)?;
    let machine = Machine::read();
    let json = || {
        let mut json = serde_json::to_value(&outcome).expect("an outcome has only string keys");
        json["machine"] = serde_json::to_value(&machine).expect("a machine has only string keys");
        json
    };
    arguments.json.print(json, || {
        format!("{}\n{}", machine.summary(), text(&outcome))
    })
}

fn explain(error: TurnsError) -> CommandError {
    let what = error.to_string();
    match error {
        TurnsError::Hosts(error) => CommandError::failed(what, error.remedy()),
        TurnsError::Path { source, .. } | TurnsError::NoPath { source, .. } => {
            CommandError::failed(what, source.remedy())
        }
        TurnsError::Scheduling(_) => CommandError::failed(what, "choose another CPU with --cpu"),
        TurnsError::Interrupted(signal) => CommandError::interrupted(signal),
        _ => CommandError::failed(what, "`taut doctor` shows what this machine can do"),
    }
}

/// The tables, links and modes, and paths that are missing.
pub(crate) fn text(outcome: &Outcome) -> String {
    let Settings {
        count,
        burst_messages,
        stream_bits_per_s,
        ..
    } = outcome.settings;
    let mut lines = vec![format!(
        "round trips, both ends in one thread, {count} of each path and size; times in µs"
    )];
    let active = outcome.active.iter();
    lines.extend(active.map(|(path, text)| format!("  {:<10}  {text}", path.name())));
    let missing = outcome.missing.iter();
    lines
        .extend(missing.map(|(path, text)| format!("  {:<10}  not measured: {text}", path.name())));
    let header = [
        "path", "bytes", "lost", "p50", "p99", "max", "of UDP", "of floor", "send", "wait",
    ];
    let rows = outcome.rows.iter();
    lines.push(table::figures(
        &header,
        rows.clone().map(|row| cells(outcome, row)),
    ));
    lines.push(format!(
        "a message: one way, and of {burst_messages} back to back, in µs; the program's instructions, BPF and kernel \
         in ns"
    ));
    let header = [
        "path", "bytes", "one way", "of UDP", "burst", "of UDP", "lost", "user", "BPF", "kernel",
    ];
    lines.push(table::figures(
        &header,
        rows.clone().map(|row| message_cells(outcome, row)),
    ));
    lines.push(format!(
        "round trips beside a TCP stream of {} Mbit/s at most, in µs",
        stream_bits_per_s / 1_000_000
    ));
    let header = [
        "path", "bytes", "lost", "p50", "p99", "max", "of UDP", "mean", "of alone", "Mbit/s",
    ];
    lines.push(table::figures(
        &header,
        rows.map(|row| stream_cells(outcome, row)),
    ));
    lines.join("\n")
}

/// Path and size, which begin each row.
fn name_cells(row: &Row) -> Vec<String> {
    vec![row.path.name().to_owned(), row.payload_bytes.to_string()]
}

fn share_cell(share: Option<f64>) -> String {
    share.map_or("–".to_owned(), |share| format!("{share:.3}"))
}

fn cells(outcome: &Outcome, row: &Row) -> Vec<String> {
    let summary = &row.round_trip;
    let mut cells = name_cells(row);
    cells.push(row.lost.to_string());
    cells.extend([summary.p50_ns, summary.p99_ns, summary.max_ns].map(table::microseconds));
    for reference in [Some(Path::UdpPoll), row.path.floor()] {
        let share = reference.and_then(|reference| outcome.of(row, reference));
        cells.push(share_cell(share));
    }
    cells.extend([row.send_p50_ns, row.wait_p50_ns].map(table::microseconds));
    cells
}

fn message_cells(outcome: &Outcome, row: &Row) -> Vec<String> {
    let mut cells = name_cells(row);
    cells.push(table::microseconds(row.one_way.p50_ns));
    cells.push(share_cell(
        outcome.share(row, Path::UdpPoll, |row| Some(row.one_way)),
    ));
    let of_burst = |row: &Row| Some(row.burst.as_ref()?.message);
    match &row.burst {
        Some(burst) => cells.extend([
            table::microseconds(burst.message.p50_ns),
            share_cell(outcome.share(row, Path::UdpPoll, of_burst)),
            burst.lost.to_string(),
        ]),
        None => cells.extend(["–"; 3].map(str::to_owned)),
    }
    let parts = [row.user_instructions, row.bpf_mean_ns, row.kernel_ns];
    cells.extend(parts.map(|part| part.map_or("–".to_owned(), |part| part.to_string())));
    cells
}

fn stream_cells(outcome: &Outcome, row: &Row) -> Vec<String> {
    let beside = &row.beside_stream;
    let summary = &beside.round_trip;
    let mut cells = name_cells(row);
    cells.push(beside.lost.to_string());
    cells.extend([summary.p50_ns, summary.p99_ns, summary.max_ns].map(table::microseconds));
    cells.push(share_cell(outcome.share(row, Path::UdpPoll, |row| {
        Some(row.beside_stream.round_trip)
    })));
    cells.push(format!("{:.2}", summary.mean_ns / 1e3));
    let of_alone = summary.mean_ns / row.round_trip.mean_ns.max(1.0);
    cells.push(share_cell((row.round_trip.count > 0).then_some(of_alone)));
    cells.push((beside.bits_per_s / 1_000_000).to_string());
    cells
}
