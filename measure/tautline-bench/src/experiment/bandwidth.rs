//! RTDiP, figure 8: bandwidth by message size with window-based flow control.
//!
//! TCP twice: with segmentation offloads off on its cable, as on the paper's hardware, and with them on, where a
//! virtual cable moves up to 64 KiB at once. Ports send one by one, in batches, and merging small messages, which is
//! what TCP does by itself.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use tautline::LinkKind;
use tautline::link::XdpMode;
use tautline_report::chart::{Axis, Chart, Line, Mark, Unit};
use tautline_testbed::child;
use tautline_testbed::hosts::{Hosts, HostsOptions, Offloads};
use tautline_testbed::sys::monotonic_ns;

use super::side_cpus::{SideCpus, joined};
use super::stream::{Ends, Usage, over_ports, over_tcp, over_udp};
use super::{Check, Experiment, ExperimentError, Figure, Outcome, Progress, Request, go_on};
use crate::path::Sends;
use crate::path::nodes::NodePair;

pub(super) const EXPERIMENT: Experiment = Experiment {
    figures: &FIGURES,
    parameters: &[],
    run,
};

const FIGURES: [Figure; 1] = [Figure {
    name: "rtdip-fig8",
    source: "RTDiP, figure 8",
    title: "bandwidth by message size with window-based flow control",
    found: "RTDiP send/recv below TCP/IP for small messages, which TCP merges, and above it for large ones",
}];

/// Time for which a receiver looks before it sleeps: about what going to sleep and being woken costs.
const SPIN: Duration = Duration::from_micros(50);
/// Messages under way at most, on the paths whose window is ours: a megabyte of the largest.
const WINDOW: u64 = 1_024;
/// Messages from here on are large: sent in batches they are to be above TCP.
const LARGE_BYTES: usize = 1_024;
/// Larger ones do not share a frame with another.
const MERGED_BYTES_MAX: usize = 512;
/// From the start of a stream until it is measured.
const LEAD: Duration = Duration::from_millis(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Path {
    Tcp,
    TcpAtOnce,
    TcpOffloads,
    TcpOffloadsAtOnce,
    Udp,
    Queuing,
    Batch,
    Merge,
}

impl Path {
    const ALL: [Path; 8] = [
        Path::Tcp,
        Path::TcpAtOnce,
        Path::TcpOffloads,
        Path::TcpOffloadsAtOnce,
        Path::Udp,
        Path::Queuing,
        Path::Batch,
        Path::Merge,
    ];

    fn name(self) -> &'static str {
        match self {
            Path::Tcp => "tcp",
            Path::TcpAtOnce => "tcp-nodelay",
            Path::TcpOffloads => "tcp-offloads",
            Path::TcpOffloadsAtOnce => "tcp-offloads-nodelay",
            Path::Udp => "udp",
            Path::Queuing => "queuing",
            Path::Batch => "queuing-batch",
            Path::Merge => "queuing-merge",
        }
    }

    fn text(self) -> &'static str {
        match self {
            Path::Tcp => {
                "kernel TCP, merging small messages (Nagle); offloads off, a cable without the demux"
            }
            Path::TcpAtOnce => "kernel TCP without delay, the same cable",
            Path::TcpOffloads => "kernel TCP, merging; offloads on, a cable without the demux",
            Path::TcpOffloadsAtOnce => "kernel TCP without delay, the same cable",
            Path::Udp => "kernel UDP; offloads off, the same cable as tcp",
            Path::Queuing => "queuing port, a system call for each message",
            Path::Batch => "queuing port, 32 frames for each system call",
            Path::Merge => {
                "queuing port, small messages merged into frames, flushed after each 256 or when the window closes"
            }
        }
    }
}

/// Cables: kernel with offloads off, kernel with them on, Tautline.
const CABLES: [usize; 3] = [0, 1, 2];

/// Bytes received of one path and size in each turn, as bits a second.
#[derive(Clone, Debug, Default)]
struct Rates {
    rates: Vec<f64>,
    lost: u64,
}

impl Rates {
    /// The median turn.
    fn rate(&self) -> f64 {
        let mut rates = self.rates.clone();
        rates.sort_by(f64::total_cmp);
        rates.get(rates.len() / 2).copied().unwrap_or(0.0)
    }
}

fn run(request: &Request, progress: &mut Progress<'_>) -> Result<Vec<Outcome>, ExperimentError> {
    let scale = request.scale;
    let sizes: &[usize] = scale.pick(
        &[1, 4, 16, 64, 128, 256, 512, 768, 1024, 1200, 1450],
        &[1, 16, 64, 256, 512, 1024, 1450],
        &[16, 1450],
    );
    let turns: u64 = scale.pick(20, 5, 1);
    let length = Duration::from_millis(scale.pick(400, 120, 5));
    let place = SideCpus::choose()?;
    let hosts = Hosts::create(&HostsOptions {
        cable_count: CABLES.len(),
        ..HostsOptions::default()
    })?;
    hosts.set_offloads(CABLES[0], Offloads::AllOff)?;
    hosts.set_offloads(CABLES[2], Offloads::AllOff)?;
    let nodes = NodePair::on_cable(&hosts, CABLES[2], LinkKind::Xdp, Some(XdpMode::Native))?;
    let mut streams = open(&hosts, &nodes)?;
    let mut found = vec![vec![Rates::default(); sizes.len()]; Path::ALL.len()];
    let rows = (sizes.len() * Path::ALL.len()) as u64;
    for turn in 0..turns {
        for (place_of_size, bytes) in sizes.iter().enumerate() {
            for step in 0..Path::ALL.len() {
                let path = (step + turn as usize) % Path::ALL.len();
                let done = turn * rows + (place_of_size * Path::ALL.len() + step) as u64;
                progress(done, turns * rows);
                let found = &mut found[path][place_of_size];
                one_turn(&mut streams[path], *bytes, length, place, found)?;
                go_on()?;
            }
        }
    }
    progress(1, 1);
    let mut outcome = Outcome::of(&FIGURES[0]);
    settings(&mut outcome, turns, length, place);
    outcome.active = Path::ALL
        .map(|path| (path.name().to_owned(), path.text().to_owned()))
        .into();
    outcome.active.push(("link".to_owned(), nodes.describe()));
    tell(&mut outcome, sizes, &found);
    Ok(vec![outcome])
}

fn open(hosts: &Hosts, nodes: &NodePair<'_>) -> Result<Vec<Ends>, ExperimentError> {
    const PORT: u16 = 7500;
    let ports = |number, sends| over_ports(nodes, number, WINDOW, (sends, SPIN));
    let tcp = |merges| Usage {
        merges,
        reads_many: true,
    };
    let open = |path: &Path| match path {
        Path::Tcp => over_tcp(hosts, CABLES[0], PORT, tcp(true)),
        Path::TcpAtOnce => over_tcp(hosts, CABLES[0], PORT + 1, tcp(false)),
        Path::TcpOffloads => over_tcp(hosts, CABLES[1], PORT, tcp(true)),
        Path::TcpOffloadsAtOnce => over_tcp(hosts, CABLES[1], PORT + 1, tcp(false)),
        Path::Udp => over_udp(hosts, CABLES[0], PORT, WINDOW),
        Path::Queuing => ports(1, Sends::OneByOne),
        Path::Batch => ports(2, Sends::Batches),
        Path::Merge => ports(3, Sends::Merged),
    };
    Path::ALL.iter().map(|path| Ok(open(path)?)).collect()
}

/// One stream of one size, measured for a while after it has come up.
fn one_turn(
    (sender, receiver): &mut Ends,
    bytes: usize,
    length: Duration,
    place: SideCpus,
    found: &mut Rates,
) -> Result<(), ExperimentError> {
    let received = &AtomicU64::new(0);
    let (sending, receiving) = (&AtomicBool::new(false), &AtomicBool::new(false));
    let failed = |what: &'static str| ExperimentError::io::<io::Error>(what);
    thread::scope(|scope| {
        let sender = scope.spawn(move || {
            child::pin(place.sender_cpu)?;
            sender.send(&vec![0x5a; bytes], sending)
        });
        let receiver = scope.spawn(move || {
            child::pin(place.receiver_cpu)?;
            receiver.receive(bytes, received, receiving)
        });
        thread::sleep(LEAD);
        let (begin, before) = (monotonic_ns(), received.load(Ordering::Relaxed));
        thread::sleep(length);
        let messages = received.load(Ordering::Relaxed) - before;
        let seconds = Duration::from_nanos(monotonic_ns() - begin).as_secs_f64();
        sending.store(true, Ordering::Relaxed);
        let sent = joined(sender.join()).map_err(failed("send a stream"));
        receiving.store(true, Ordering::Relaxed);
        joined(receiver.join()).map_err(failed("receive a stream"))?;
        found.lost += sent?.lost;
        found
            .rates
            .push((messages * bytes as u64 * 8) as f64 / seconds);
        Ok(())
    })
}

fn settings(outcome: &mut Outcome, turns: u64, length: Duration, place: SideCpus) {
    outcome.set("turns_of_each_path_and_size", turns);
    outcome.set("turn_ns", length.as_nanos() as u64);
    outcome.set("window_messages", WINDOW);
    outcome.set("receiver_cpu", place.receiver_cpu);
    outcome.set("sender_cpu", place.sender_cpu);
    outcome.set("scheduling", "ordinary: both sides are busy all the time");
    outcome.set("clock", "CLOCK_MONOTONIC");
    outcome.set("link", "veth between two network namespaces, a cable each for kernel with and without offloads, and Tautline");
    outcome.set(
        "offloads",
        format!(
            "{}, but on for tcp-offloads and tcp-offloads-nodelay",
            Offloads::AllOff.text()
        ),
    );
    outcome.remarks.push(
        "Counted is what the receiving application has got, payload only. TCP's sender writes message by message; its receiver reads \
         up to 64 KiB at once, which spares it a system call for each message. Rates are those of the median turn."
            .to_owned(),
    );
}

fn tell(outcome: &mut Outcome, sizes: &[usize], found: &[Vec<Rates>]) {
    let rate = |path: Path, index: usize| found[path as usize][index].rate();
    outcome.rows = rows(sizes, found);
    let mut header = vec!["bytes: Mbit/s", "port / better tcp"];
    header.extend(Path::ALL.map(Path::name));
    let best = |index: usize| {
        let ours = if sizes[index] <= MERGED_BYTES_MAX {
            Path::Merge
        } else {
            Path::Batch
        };
        // The better of TCP's two ways at this size.
        let tcp = rate(Path::Tcp, index).max(rate(Path::TcpAtOnce, index));
        // A turn too short for TCP to deliver anything tells nothing.
        if tcp > 0.0 {
            rate(ours, index) / tcp
        } else {
            0.0
        }
    };
    let cells = (0..sizes.len()).map(|index| {
        let mut cells = vec![sizes[index].to_string(), format!("{:.2}", best(index))];
        cells.extend(Path::ALL.map(|path| rate_text(rate(path, index))));
        cells
    });
    outcome.table = (
        header.into_iter().map(str::to_owned).collect(),
        cells.collect(),
    );
    outcome.plots = vec![(&chart(sizes, found)).into()];
    let ratios = |wanted: fn(usize) -> bool| {
        let chosen = (0..sizes.len())
            .filter(|index| wanted(sizes[*index]))
            .map(best);
        chosen.fold((f64::INFINITY, 0.0f64), |(least, most), ratio| {
            (least.min(ratio), most.max(ratio))
        })
    };
    let large = ratios(|bytes| bytes >= LARGE_BYTES);
    let small = ratios(|bytes| bytes <= MERGED_BYTES_MAX);
    for (what, (least, most)) in [
        (
            format!("in batches, messages of {LARGE_BYTES} bytes and more"),
            large,
        ),
        (
            format!("merged, messages of {MERGED_BYTES_MAX} bytes and less"),
            small,
        ),
    ] {
        outcome.checks.push(Check {
            target: format!("queuing port {what}: above TCP at every size, offloads off"),
            found: format!("{least:.2} to {most:.2} times the better of tcp and tcp-nodelay"),
            met: least > 1.0,
        });
    }
    outcome.here = format!(
        "without segmentation offloads a queuing port reaches {:.2} to {:.2} times TCP with small messages merged, and {:.2} to {:.2} times with large ones in batches",
        small.0, small.1, large.0, large.1
    );
}

fn rows(sizes: &[usize], found: &[Vec<Rates>]) -> Vec<Value> {
    let row = |path: Path, index: usize| {
        let found = &found[path as usize][index];
        json!({
            "path": path.name(),
            "payload_bytes": sizes[index],
            "bits_per_s": found.rate().round(),
            "messages_per_s": (found.rate() / 8.0 / sizes[index] as f64).round(),
            "messages_lost": found.lost,
            "bits_per_s_of_turns": found.rates.iter().map(|rate| rate.round()).collect::<Vec<_>>(),
        })
    };
    let all = Path::ALL.into_iter();
    all.flat_map(|path| (0..sizes.len()).map(move |index| row(path, index)))
        .collect()
}

/// Megabits a second, without the unit.
fn rate_text(bits_per_s: f64) -> String {
    let rate = bits_per_s / 1e6;
    let digits = usize::from(rate < 99.95);
    format!("{rate:.digits$}")
}

fn chart(sizes: &[usize], found: &[Vec<Rates>]) -> Chart {
    let line = |path: Path| {
        let points = sizes.iter().zip(&found[path as usize]);
        let points = points.map(|(bytes, found)| (*bytes as f64, found.rate()));
        Line::new(path.name(), Mark::Dots, points.collect())
    };
    Chart {
        caption: "Payload delivered".to_owned(),
        across: Axis::logarithmic("message", Unit::Bytes),
        up: Axis::logarithmic("bit/s", Unit::BitRate),
        lines: Path::ALL.map(line).into(),
        references: Vec::new(),
    }
}
