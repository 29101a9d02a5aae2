//! `taut-lab bench`: measures paths side by side.

mod cycle;
mod flood;
mod ordinary;
mod publish;
mod rtt;
mod send;
pub(crate) mod turns;
mod vbus;

use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use taut::say;
use tautline_report::{Summary, table};
use tautline_testbed::child;
use tautline_testbed::hosts::EndKind;

use taut::cli::CommandError;
use taut::commands::output::JsonArguments;
use tautline_bench::sides::Placement;

/// Arguments of `taut-lab bench`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Benchmark to run.
    #[command(subcommand)]
    benchmark: Benchmark,
}

#[derive(Debug, Subcommand)]
enum Benchmark {
    /// Round-trip times between two hosts, the paths interleaved in short slices.
    Rtt(rtt::Arguments),
    /// A loop whose two ends sleep between messages: its round trips and their tail, beside loads.
    Loop(cycle::Arguments),
    /// Delay of one port's messages while a third host floods another port, policed and not.
    Flood(flood::Arguments),
    /// Cost of sending a datagram of plain UDP, from the caller's memory and from a lent buffer.
    Send(send::Arguments),
    /// Cost of a demux for ordinary traffic: round trips of kernel UDP, the rate of TCP.
    Ordinary(ordinary::Arguments),
    /// Round trips whose two ends take turns in one thread, over a cable of two network cards or a virtual one.
    Turns(turns::Arguments),
    /// Ports between processes, beside the machine's own floor and iceoryx2.
    #[command(name = "bus")]
    Vbus(vbus::Arguments),
}

/// Runs a benchmark.
pub(crate) fn run(arguments: Arguments) -> Result<(), CommandError> {
    match arguments.benchmark {
        Benchmark::Rtt(arguments) => rtt::run(&arguments),
        Benchmark::Loop(arguments) => cycle::run(&arguments),
        Benchmark::Flood(arguments) => flood::run(&arguments),
        Benchmark::Send(arguments) => send::run(&arguments),
        Benchmark::Ordinary(arguments) => ordinary::run(&arguments),
        Benchmark::Turns(arguments) => turns::run(&arguments),
        Benchmark::Vbus(arguments) => vbus::run(&arguments),
    }
}

/// Common options: where the two sides run, and where the result goes.
#[derive(Debug, Args)]
struct CommonArguments {
    /// CPU of the asking side [default: the second of those allowed].
    #[arg(long, value_name = "CPU")]
    client_cpu: Option<usize>,
    /// CPU of the answering side [default: the first of those allowed].
    #[arg(long, value_name = "CPU")]
    server_cpu: Option<usize>,
    /// Run both sides under SCHED_FIFO with this priority. They spin: the kernel's own threads may starve on their
    /// CPUs.
    #[arg(long, value_name = "PRIORITY", value_parser = clap::value_parser!(u8).range(1..=99))]
    fifo: Option<u8>,
    #[command(flatten)]
    json: JsonArguments,
}

impl CommonArguments {
    /// Chooses what the user left open, and says on standard error what is wrong with the choice.
    fn placement(&self) -> Placement {
        let mut placement = Placement {
            client_cpu: self.client_cpu,
            server_cpu: self.server_cpu,
            fifo_priority: self.fifo,
        };
        let allowed = child::allowed_cpus().unwrap_or_default();
        if let Some(remark) = placement.choose_cpus(&allowed) {
            say!("taut: {remark}");
        }
        placement
    }

    /// Writes the result file if one is asked for, and the table unless the file goes to standard output.
    fn print(&self, json: &serde_json::Value, text: &str) -> Result<(), CommandError> {
        self.json.print(|| json.clone(), || text.to_owned())
    }
}

/// Kind of the interfaces at the cables' ends.
#[derive(Debug, Args)]
struct EndArguments {
    /// Interfaces at the cables' ends: veth, bridge, macvlan. The last two lie over a virtual cable's end, and have no
    /// native mode.
    #[arg(long, value_name = "KIND", default_value = "veth", value_parser = end_kind)]
    over: EndKind,
}

fn end_kind(name: &str) -> Result<EndKind, String> {
    let mut kinds = EndKind::ALL.into_iter();
    kinds.find(|kind| kind.name() == name).ok_or_else(|| {
        let names = EndKind::ALL.map(EndKind::name).join(", ");
        format!("use one of {names}")
    })
}

/// Remedy when a thread could not be placed.
const PLACEMENT_REMEDY: &str = "choose other CPUs with --client-cpu and --server-cpu; --fifo needs CAP_SYS_NICE or a limit of real-time priority";

/// Cells of latencies in µs: min, p50, p99, p99.9, max.
fn latencies(summary: &Summary) -> [String; 5] {
    [
        summary.min_ns,
        summary.p50_ns,
        summary.p99_ns,
        summary.p999_ns,
        summary.max_ns,
    ]
    .map(table::microseconds)
}

fn without_repeats<T: Copy + PartialEq>(list: &[T]) -> Vec<T> {
    let mut kept = Vec::new();
    for item in list {
        if !kept.contains(item) {
            kept.push(*item);
        }
    }
    kept
}

/// Measures under a bar, which is told what is done of how much. It is drawn on standard error, and only if that is
/// a terminal.
fn with_progress<T>(
    of_what: &str,
    measure: impl FnOnce(&mut (dyn FnMut(u64, u64) + Send)) -> T,
) -> T {
    let template = format!("{{bar:40}} {{percent:>3}} % of the {of_what}, {{eta}} left");
    let bar = ProgressBar::new(0).with_style(
        ProgressStyle::with_template(&template).expect("the template is made of constants"),
    );
    let outcome = measure(&mut |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    outcome
}
