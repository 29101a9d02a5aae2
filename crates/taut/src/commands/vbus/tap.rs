//! `taut vbus tap`: the messages of a port, as its receiver gets them.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::json;
use tautline::types::Declaration;
use tautline::vbus::{ObserveError, Observer, PortName, Tap, Tapped};
use tautline_capture::KnownNodes;
use tautline_capture::message::Flow;
use tautline_testbed::interrupt;

use super::{BusArguments, explain};
use crate::cli::CommandError;
use crate::commands::output::{self, Output, OutputArguments};
use crate::commands::sources::{KnownArguments, all_came};
use crate::units;

/// Pause between two looks that find nothing. Lower takes processor time from whom it watches, higher misses more of
/// what is fast.
const PAUSE: Duration = Duration::from_micros(200);
/// Time between two looks at who sends.
const REFRESH: Duration = Duration::from_millis(100);

/// Arguments of `taut vbus tap`.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The port: its node's name, a dot and its number, such as motor.7.
    name: PortName,
    #[command(flatten)]
    bus: BusArguments,
    /// End after this many messages [default: never].
    #[arg(long, value_name = "N", value_parser = units::count)]
    count: Option<u64>,
    /// End after this time, 500ms or plain seconds [default: never].
    #[arg(long, value_name = "TIME", value_parser = units::seconds, allow_negative_numbers = true)]
    timeout: Option<Duration>,
    #[command(flatten)]
    known: KnownArguments,
    #[command(flatten)]
    output: OutputArguments,
}

/// Writes each message in a line of its own. Not all came in time, or the port has closed: exit status 1; not all came
/// before a signal: 128 + its number.
pub(super) fn run(arguments: &Arguments) -> Result<(), CommandError> {
    let deadline = arguments
        .timeout
        .and_then(|timeout| Instant::now().checked_add(timeout));
    let nodes = arguments.known.ask()?;
    let (bus, observer) = open(arguments)?;
    let mut source = Source {
        tap: Tap::new(observer),
        on: format!("bus {bus}"),
        nodes,
    };
    say!("watching {}", arguments.name);
    let mut seen = 0;
    let mut output = arguments.output.open()?;
    let ended = watch(arguments, deadline, &mut source, &mut output, &mut seen);
    say!("{seen} seen, {} missed", source.tap.missed());
    ended
}

/// The port that is watched.
struct Source {
    tap: Tap,
    /// Its bus, as flows name it.
    on: String,
    nodes: KnownNodes,
}

impl Source {
    /// Type of a message's flow.
    fn declared(&mut self, tapped: &Tapped) -> Option<Arc<Declaration>> {
        let to = self.tap.observer().name();
        let flow = Flow {
            on: self.on.clone(),
            from: tapped.source.address.to_string(),
            source_port: tapped.source.port.get(),
            to: to.node.to_string(),
            destination_port: to.port.get(),
            priority: tapped.priority.get(),
            is_sent: false,
        };
        self.nodes.about(&flow).declared
    }
}

fn watch(
    arguments: &Arguments,
    deadline: Option<Instant>,
    source: &mut Source,
    output: &mut Output,
    seen: &mut u64,
) -> Result<(), CommandError> {
    let mut buffer = vec![0; source.tap.observer().message_bytes_max()];
    let mut refreshed = Instant::now();
    while arguments.count.is_none_or(|count| *seen < count) {
        if interrupt::interrupted().is_some() {
            break;
        }
        if let Some(tapped) = source.tap.look(&mut buffer) {
            let json = tapped_json(&tapped);
            let declared = source.declared(&tapped);
            output.write(&buffer[..tapped.length], json, declared.as_deref())?;
            *seen += 1;
            continue;
        }
        let now = Instant::now();
        if deadline.is_some_and(|deadline| now >= deadline) {
            break;
        }
        if now >= refreshed + REFRESH {
            refreshed = now;
            match source.tap.refresh() {
                // Busy or stopped: its memory can be watched all the same.
                Ok(()) | Err(ObserveError::Silent { .. }) => {}
                Err(error) => return Err(explain(&error)),
            }
        }
        thread::sleep(PAUSE);
    }
    let remedy = "wait longer with --timeout; `taut vbus top` shows which ports are busy";
    all_came(*seen, arguments.count, remedy)
}

/// The port, on the bus that is named or on the only one that has it, and that bus.
fn open(arguments: &Arguments) -> Result<(String, Observer), CommandError> {
    let buses = arguments.bus.buses()?;
    let with_port: Vec<String> = buses
        .iter()
        .filter(|bus| bus.ports.contains(&arguments.name))
        .map(|bus| bus.path.to_string_lossy().into_owned())
        .collect();
    match with_port.as_slice() {
        [bus] => Observer::open(bus, arguments.name)
            .map(|observer| (bus.clone(), observer))
            .map_err(|error| explain(&error)),
        [] => Err(CommandError::failed(
            format!("no bus has a port {}", arguments.name),
            "`taut vbus list` shows the ports that there are",
        )),
        several => Err(CommandError::usage(
            format!(
                "there is a port {} on {}",
                arguments.name,
                several.join(" and ")
            ),
            "say which with --bus",
        )),
    }
}

fn tapped_json(tapped: &Tapped) -> serde_json::Value {
    json!({
        "source": output::source_json(tapped.source),
        "priority": tapped.priority.get(),
        "sequence": tapped.sequence,
        "published_ns": tapped.published.as_nanos(),
        "bytes": tapped.length,
    })
}
