//! `taut ping`: round trips to a node that runs `taut echo`.

use std::time::{Duration, Instant};

use clap::Args;
use serde_json::json;
use tautline::{Destination, Priority, QueuingPort, Wait};
use tautline_proto::wire::MESSAGE_BYTES_MAX;
use tautline_report::LatencyHistogram;
use tautline_report::plot::latency_text;
use tautline_state::interrupt;

use crate::cli::{self, CommandError};
use crate::commands::live::{LOOK, pause};
use crate::commands::output::JsonArguments;
use crate::commands::peer::{self, NodeArguments, PortArgument};
use crate::units;

/// Bytes of the number at the start of each message, by which a late answer is told.
const TAG_BYTES: usize = 8;

/// Arguments of `taut ping`.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Neighbour of the configuration file or of the control process, MAC address or IPv4 address.
    peer: String,
    /// Own port to send from [default: a free one of the 64 below 4095].
    #[arg(long, value_name = "PORT", value_parser = peer::port)]
    from: Option<PortArgument>,
    #[command(flatten)]
    node: NodeArguments,
    /// Port that the peer answers on: its number, or the name that this number has in the configuration file.
    #[arg(long, value_name = "PORT", value_parser = peer::port, default_value_t = peer::echo_port())]
    port: PortArgument,
    /// Messages to send.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = units::count)]
    count: u64,
    /// Time from one message to the next, such as 100us; 0 sends the next when the answer is there.
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = units::time)]
    interval: Duration,
    /// Time after which an answer counts as lost, such as 500ms.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = units::time)]
    timeout: Duration,
    /// Size of a message, such as 1KiB.
    #[arg(long, value_name = "SIZE", default_value = "64B", value_parser = size)]
    size: usize,
    /// Priority of the messages, 7 being the most urgent.
    #[arg(long, value_name = "P", value_parser = peer::priority, default_value_t = Priority::HIGHEST)]
    priority: Priority,
    #[command(flatten)]
    json: JsonArguments,
}

fn size(text: &str) -> Result<usize, String> {
    Some(units::size(text)?)
        .filter(|size| (TAG_BYTES..=MESSAGE_BYTES_MAX).contains(size))
        .ok_or_else(|| format!("expected {TAG_BYTES} to {MESSAGE_BYTES_MAX} bytes"))
}

/// Asks and prints. Nothing came back: exit status 1.
pub fn run(arguments: Arguments) -> Result<(), CommandError> {
    let number = |port: &PortArgument| arguments.node.port_number(port);
    let from = arguments.from.as_ref().map(number).transpose()?;
    let to_port = number(&arguments.port)?;
    let (node, name) = arguments.node.open_with_peer(&arguments.peer)?;
    let mut port = peer::open_any(&node, from)?;
    let to = port.destination(&name, to_port).map_err(peer::port_error)?;
    if !arguments.json.has_stdout() {
        cli::print(&format!(
            "{}\n{} bytes to {name} port {to_port}\n",
            node.report(),
            arguments.size
        ))?;
    }
    let run = ask_all(&arguments, &mut port, to)?;
    let summary = run.histogram.summary();
    arguments.json.print(
        || {
            json!({
                "peer": name,
                "port": to_port.get(),
                "payload_bytes": arguments.size,
                "link": node.report(),
                "sent": run.sent,
                "lost": run.sent - summary.count,
                "count": summary.count,
                "min_ns": summary.min_ns,
                "p50_ns": summary.p50_ns,
                "p99_ns": summary.p99_ns,
                "p999_ns": summary.p999_ns,
                "max_ns": summary.max_ns,
                "round_trips_ns": run.round_trips_ns,
            })
        },
        || text(&run),
    )?;
    if let Some(signal) = interrupt::interrupted() {
        return Err(CommandError::interrupted(signal));
    }
    if summary.count == 0 {
        return Err(CommandError::failed(
            format!("no answer from {name} port {to_port}"),
            "start `taut echo` there, and check the address, the port and the cable",
        ));
    }
    Ok(())
}

/// Result of a round trip.
struct Run {
    sent: u64,
    histogram: LatencyHistogram,
    /// One for each message, none where it was lost.
    round_trips_ns: Vec<Option<u64>>,
}

fn ask_all(
    arguments: &Arguments,
    port: &mut QueuingPort,
    to: Destination,
) -> Result<Run, CommandError> {
    let mut run = Run {
        sent: 0,
        histogram: LatencyHistogram::new(),
        round_trips_ns: Vec::new(),
    };
    let mut message = vec![0; arguments.size];
    let mut buffer = vec![0; port.message_bytes_max()];
    let mut due = Instant::now();
    for number in 0..arguments.count {
        if pause(due.saturating_duration_since(Instant::now())).is_some() {
            break;
        }
        due += arguments.interval;
        message[..TAG_BYTES].copy_from_slice(&number.to_be_bytes());
        let start = Instant::now();
        port.send(to, arguments.priority, &message)
            .map_err(peer::send_error)?;
        let time_limit = arguments.timeout;
        let round_trip = answer(port, &message, time_limit, &mut buffer)?.map(|at| at - start);
        if round_trip.is_none() && interrupt::interrupted().is_some() {
            // It counts neither as sent nor as lost: its answer is not awaited.
            break;
        }
        run.sent += 1;
        if let Some(time) = round_trip {
            run.histogram.record_duration(time);
        }
        let ns = round_trip.map(|time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        run.round_trips_ns.push(ns);
        if !arguments.json.has_stdout() {
            let outcome = ns.map_or("no answer".to_owned(), latency_text);
            cli::show(format!("{number}: {outcome}\n").as_bytes())?;
        }
    }
    Ok(run)
}

/// When the answer to `message` came; nothing if it did not come in time, or before a signal. Late answers to earlier
/// messages are passed over.
fn answer(
    port: &mut QueuingPort,
    message: &[u8],
    time_limit: Duration,
    buffer: &mut [u8],
) -> Result<Option<Instant>, CommandError> {
    let deadline = tautline::now() + time_limit;
    loop {
        let look = deadline.min(tautline::now() + LOOK);
        let found = port.receive_into(buffer, Wait::Until(look));
        let at = Instant::now();
        match found.map_err(peer::receive_error)? {
            Some(found) if buffer[..found.length] == *message => return Ok(Some(at)),
            Some(_) => {}
            None if look == deadline => return Ok(None),
            None => {}
        }
        if interrupt::interrupted().is_some() {
            return Ok(None);
        }
    }
}

fn text(run: &Run) -> String {
    let summary = run.histogram.summary();
    let lost = run.sent - summary.count;
    let share = 100.0 * lost as f64 / run.sent.max(1) as f64;
    let mut text = format!(
        "{} sent, {} answered, {share:.1} % lost\n",
        run.sent, summary.count
    );
    if summary.count > 0 {
        text += &format!(
            "round trip: min {}, p50 {}, p99 {}, p99.9 {}, max {}\n",
            latency_text(summary.min_ns),
            latency_text(summary.p50_ns),
            latency_text(summary.p99_ns),
            latency_text(summary.p999_ns),
            latency_text(summary.max_ns),
        );
    }
    text
}
