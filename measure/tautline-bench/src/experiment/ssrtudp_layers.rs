//! SS-RTUDP, table 1: where the time of one packet goes, layer by layer; kernel UDP, and Tautline's ports.
//!
//! Of the way from the call that sends to the application that has the message, each layer is the difference of two
//! places on it. The kernel stamps packets itself at three of them, the demux at one; two calls are timed alone, and
//! the kernel counts the run time of its BPF programs. Each kind has turns of its own, so that none pays for another;
//! what is left between the layers together and the undisturbed way is the rest.

use std::io;

use serde_json::{Value, json};
use tautline_report::bars::{Bar, Bars};
use tautline_report::plot::latency_text;
use tautline_testbed::hosts::Hosts;

use super::layer_ends::{Ends, Kind};
use super::passage::{From, Passage, Passages, pass};
use super::side_cpus::SideCpus;
use super::{Check, Experiment, ExperimentError, Figure, Outcome, Progress, Request, go_on};
use crate::path::sides;

pub(super) const EXPERIMENT: Experiment = Experiment {
    figures: &FIGURES,
    parameters: &[],
    run,
};

const FIGURES: [Figure; 1] = [Figure {
    name: "ssrtudp-table1",
    source: "SS-RTUDP, table 1",
    title: "where the time of one packet goes, layer by layer",
    found: "of 68.1 µs over gigabit Ethernet 56 % in the UDP/IP layers (14.8 µs sending, 23.5 receiving), 5 % system call and socket, \
            10 % driver, 10 % interrupt, 8 % DMA and medium, 11 % other",
}];

const SIZES: [usize; 2] = [4, 1400];
/// Largest difference of all layers together from the undisturbed way.
const REST_MAX: f64 = 0.10;

/// A layer, in the order of the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layer {
    Library,
    SendingCall,
    SendingStack,
    Queue,
    Cable,
    Demux,
    ReceivingStack,
    Application,
}

impl Layer {
    const ALL: [Layer; 8] = [
        Layer::Library,
        Layer::SendingCall,
        Layer::SendingStack,
        Layer::Queue,
        Layer::Cable,
        Layer::Demux,
        Layer::ReceivingStack,
        Layer::Application,
    ];

    fn name(self) -> &'static str {
        match self {
            Layer::Library => "Tautline's library, sending",
            Layer::SendingCall => "system call and socket, sending",
            Layer::SendingStack => "UDP/IP, sending",
            Layer::Queue => "queueing discipline",
            Layer::Cable => "driver, virtual cable, poll",
            Layer::Demux => "demux passes it on (XDP program)",
            Layer::ReceivingStack => "UDP/IP, receiving",
            Layer::Application => "to the application: socket and call; demux's copy and ring",
        }
    }

    fn key(self) -> &'static str {
        match self {
            Layer::Library => "library_sending_ns",
            Layer::SendingCall => "call_sending_ns",
            Layer::SendingStack => "udp_ip_sending_ns",
            Layer::Queue => "queueing_discipline_ns",
            Layer::Cable => "driver_cable_poll_ns",
            Layer::Demux => "demux_passes_ns",
            Layer::ReceivingStack => "udp_ip_receiving_ns",
            Layer::Application => "to_application_ns",
        }
    }
}

/// A path of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LayerPath {
    KernelUdp,
    UdpPort,
    Queuing,
}

impl LayerPath {
    const ALL: [LayerPath; 3] = [LayerPath::KernelUdp, LayerPath::UdpPort, LayerPath::Queuing];

    fn name(self) -> &'static str {
        match self {
            LayerPath::KernelUdp => "udp-poll",
            LayerPath::UdpPort => "udp-port",
            LayerPath::Queuing => "queuing",
        }
    }

    /// How its undisturbed way is measured.
    fn undisturbed(self) -> Kind {
        match self {
            LayerPath::KernelUdp => Kind::Kernel,
            LayerPath::UdpPort => Kind::UdpPort,
            LayerPath::Queuing => Kind::Queuing,
        }
    }
}

/// Results at one size, by kind.
struct Measured {
    bytes: usize,
    kinds: Vec<(Kind, Passages)>,
    /// The run time of the demux for one message of each path, where the kernel counts it.
    demux_ns: Vec<(LayerPath, Option<f64>)>,
}

/// A path's layers at one size; nanoseconds.
struct Row {
    way: LayerPath,
    bytes: usize,
    layers: Vec<(Layer, f64)>,
    one_way_ns: f64,
    /// The run time of the demux, in whichever layers it lies.
    demux_ns: Option<f64>,
    count: usize,
    lost: u64,
}

impl Row {
    fn of(&self, layer: Layer) -> Option<f64> {
        let mut all = self.layers.iter();
        all.find(|(one, _)| *one == layer).map(|(_, ns)| *ns)
    }

    fn sum_ns(&self) -> f64 {
        self.layers.iter().map(|(_, ns)| ns).sum()
    }

    fn rest_ns(&self) -> f64 {
        self.one_way_ns - self.sum_ns()
    }

    fn json(&self) -> Value {
        let mut json = json!({
            "path": self.way.name(),
            "payload_bytes": self.bytes,
            "count": self.count,
            "lost": self.lost,
            "one_way_p50_ns": self.one_way_ns,
            "layers_together_ns": self.sum_ns(),
            "rest_ns": self.rest_ns(),
            "demux_run_ns": self.demux_ns,
        });
        for layer in Layer::ALL {
            json[layer.key()] = json!(self.of(layer));
        }
        json
    }
}

fn run(request: &Request, progress: &mut Progress<'_>) -> Result<Vec<Outcome>, ExperimentError> {
    let rounds: u64 = request.scale.pick(20, 6, 1);
    let count: u32 = request.scale.pick(2_000, 500, 40);
    let place = SideCpus::choose()?;
    let hosts = Hosts::create(&sides::compared())?;
    let mut ends = Ends::open(&hosts)?;
    let mut measured = SIZES.map(|bytes| Measured {
        bytes,
        kinds: Kind::ALL.map(|kind| (kind, Passages::default())).into(),
        demux_ns: Vec::new(),
    });
    let total = rounds * SIZES.len() as u64;
    let failed = |source: io::Error| ExperimentError::Io {
        operation: "measure a layer".to_owned(),
        source,
    };
    for round in 0..rounds {
        for (step, at_size) in measured.iter_mut().enumerate() {
            let size = (at_size.bytes, count);
            for (kind, passages) in &mut at_size.kinds {
                one_kind(&mut ends, *kind, size, place, passages).map_err(failed)?;
                go_on()?;
            }
            progress(round * SIZES.len() as u64 + step as u64 + 1, total);
        }
    }
    for at_size in &mut measured {
        for way in LayerPath::ALL {
            let mut pass_all = |ends: &mut Ends<'_>| {
                let size = (at_size.bytes, count * 4);
                one_kind(
                    ends,
                    way.undisturbed(),
                    size,
                    place,
                    &mut Passages::default(),
                )
            };
            let found = ends.demux_time(&mut pass_all).map_err(failed)?;
            at_size.demux_ns.push((way, found));
        }
    }
    let rows: Vec<Row> = measured
        .iter()
        .flat_map(|at_size| LayerPath::ALL.map(|way| row(way, at_size)))
        .collect();
    let mut outcome = Outcome::of(&FIGURES[0]);
    outcome.set("messages_of_each_kind_and_size", rounds * u64::from(count));
    outcome.set("sender_cpu", place.sender_cpu);
    outcome.set("receiver_cpu", place.receiver_cpu);
    outcome.set(
        "clock",
        "CLOCK_MONOTONIC, for the kernel's stamps CLOCK_REALTIME",
    );
    outcome.set("link", "veth between two network namespaces");
    outcome.set("offloads", hosts.offloads().text());
    outcome.active = ends.describe();
    tell(&mut outcome, &rows);
    Ok(vec![outcome])
}

fn one_kind(
    ends: &mut Ends<'_>,
    kind: Kind,
    (bytes, count): (usize, u32),
    place: SideCpus,
    passages: &mut Passages,
) -> io::Result<()> {
    match kind {
        Kind::Clock | Kind::SendingCall => {
            let mut call = ends.call(kind, bytes);
            tautline_testbed::child::pin(place.sender_cpu)?;
            for _ in 0..count {
                let whole = call()?;
                passages.list.push(Passage {
                    to_stamp: None,
                    from_stamp: None,
                    whole,
                });
            }
            Ok(())
        }
        _ => {
            let from = match kind {
                Kind::ReceivingCall => From::Receiving,
                _ => From::Sending,
            };
            pass(ends.pair(kind), (bytes, count), from, place, passages)
        }
    }
}

/// The layers of a path, from the places that were measured.
fn row(way: LayerPath, measured: &Measured) -> Row {
    let passages = |kind: Kind| {
        let mut all = measured.kinds.iter();
        let found = all.find(|(one, _)| *one == kind);
        &found.expect("every kind is measured").1
    };
    let to_stamp = |kind| passages(kind).median(|one| one.to_stamp).unwrap_or(0.0);
    let from_stamp = |kind| passages(kind).median(|one| one.from_stamp).unwrap_or(0.0);
    let whole = |kind| {
        passages(kind)
            .median(|one| Some(one.whole as i64))
            .unwrap_or(0.0)
    };
    // A call alone: without the clock that it is timed with.
    let call = |kind| whole(kind) - whole(Kind::Clock);
    let mut demuxes = measured.demux_ns.iter();
    let demux = demuxes.find(|(one, _)| *one == way).and_then(|(_, ns)| *ns);
    let demux_ns = demux.unwrap_or(0.0);
    let mut layers = match way {
        LayerPath::KernelUdp => {
            let (sending, receiving) = (call(Kind::SendingCall), call(Kind::ReceivingCall));
            let (queue, driver) = (
                to_stamp(Kind::KernelToQueue),
                to_stamp(Kind::KernelToDriver),
            );
            vec![
                (Layer::SendingCall, sending),
                (Layer::SendingStack, queue - sending),
                (Layer::Queue, driver - queue),
                (
                    Layer::Cable,
                    to_stamp(Kind::KernelToArrival) - driver - demux_ns,
                ),
                (Layer::Demux, demux_ns),
                (
                    Layer::ReceivingStack,
                    from_stamp(Kind::KernelToArrival) - receiving,
                ),
                (Layer::Application, receiving),
            ]
        }
        LayerPath::UdpPort | LayerPath::Queuing => {
            let kind = way.undisturbed();
            let (bare, driver) = (to_stamp(Kind::Bare), to_stamp(Kind::BareToDriver));
            vec![
                (Layer::Library, to_stamp(kind) - bare),
                (Layer::SendingCall, driver),
                (Layer::Cable, bare - driver),
                (Layer::Application, from_stamp(kind)),
            ]
        }
    };
    for (_, ns) in &mut layers {
        // Below what can be told apart: it goes to the rest.
        *ns = ns.max(0.0);
    }
    if demux.is_none() {
        layers.retain(|(layer, _)| *layer != Layer::Demux);
    }
    let undisturbed = passages(way.undisturbed());
    Row {
        way,
        bytes: measured.bytes,
        layers,
        one_way_ns: whole(way.undisturbed()),
        demux_ns: demux,
        count: undisturbed.list.len(),
        lost: undisturbed.lost,
    }
}

fn tell(outcome: &mut Outcome, rows: &[Row]) {
    outcome.rows = rows.iter().map(Row::json).collect();
    let mut header = vec!["layer"];
    // Columns are told apart by path and size; the table's heading takes constants.
    header.extend(rows.iter().map(|row| match (row.way, row.bytes) {
        (LayerPath::KernelUdp, 4) => "udp-poll 4 B, ns",
        (LayerPath::UdpPort, 4) => "udp-port 4 B, ns",
        (LayerPath::Queuing, 4) => "queuing 4 B, ns",
        (LayerPath::KernelUdp, _) => "udp-poll 1,400 B, ns",
        (LayerPath::UdpPort, _) => "udp-port 1,400 B, ns",
        (LayerPath::Queuing, _) => "queuing 1,400 B, ns",
    }));
    let text = |ns: f64| format!("{ns:.0}");
    let line = |name: &str, value: &dyn Fn(&Row) -> Option<f64>| {
        let mut cells = vec![name.to_owned()];
        let values = rows
            .iter()
            .map(|row| value(row).map_or("-".to_owned(), text));
        cells.extend(values);
        cells
    };
    let mut cells: Vec<_> = Layer::ALL
        .iter()
        .map(|layer| line(layer.name(), &|row| row.of(*layer)))
        .collect();
    cells.push(line("together", &|row| Some(row.sum_ns())));
    cells.push(line("rest", &|row| Some(row.rest_ns())));
    cells.push(line("one way, undisturbed", &|row| Some(row.one_way_ns)));
    cells.push(line("the demux's run time, wherever it lies", &|row| {
        row.demux_ns
    }));
    outcome.table = (header.into_iter().map(str::to_owned).collect(), cells);
    outcome.plots = vec![(&bars(rows)).into(), (&paper()).into()];
    judge(outcome, rows);
    outcome.remarks.push(
        "Medians. A layer is the difference of two places, each measured in turns of its own: the kernel's stamps before the queueing discipline, \
         at the driver and at arrival (SO_TIMESTAMPING), the demux's own stamp, a send that ends before a packet is made (MSG_PROBE), a receive of \
         a datagram that waits, and the same frame over a bare packet socket."
            .to_owned(),
    );
    outcome.remarks.push(
        "The demux's run time is what the kernel counts (BPF_ENABLE_STATS), the counting with it. Of kernel UDP's way it is a layer. Of a port's it is \
         none: the demux stamps a message behind its look at the headers, and goes on with its books when the application may already have it."
            .to_owned(),
    );
    outcome.remarks.push(
        "A virtual cable has neither interrupt nor DMA: its receive processing, up to the ring or the socket, runs inside the call that sends, and \
         ends there after the receiver may already have the message."
            .to_owned(),
    );
}

/// Table 1 of the paper: kernel UDP over gigabit Ethernet, on a scale of its own, because it is seventeen times as
/// long.
fn paper() -> Bars {
    let parts = [
        ("system call and socket", 3.2),
        ("UDP/IP, sender", 14.8),
        ("UDP/IP, receiver", 23.5),
        ("device driver", 6.8),
        ("interrupt", 6.9),
        ("DMA and cable", 5.5),
        ("others", 7.4),
    ];
    Bars {
        caption: "The paper's table 1: kernel UDP, one way, by layer".to_owned(),
        parts: parts.map(|(name, _)| name.to_owned()).into(),
        bars: vec![Bar {
            name: "UDP, Celeron 2.0 GHz, Linux 2.4.20".to_owned(),
            parts_ns: parts.map(|(_, us)| us * 1e3).into(),
        }],
    }
}

fn bars(rows: &[Row]) -> Bars {
    let mut parts: Vec<String> = Layer::ALL.map(|layer| layer.name().to_owned()).into();
    parts.push("rest".to_owned());
    let bar = |row: &Row| {
        let layers = Layer::ALL.iter().map(|layer| row.of(*layer).unwrap_or(0.0));
        Bar {
            name: format!("{}, {} B", row.way.name(), row.bytes),
            parts_ns: layers.chain([row.rest_ns()]).collect(),
        }
    };
    Bars {
        caption: "One message, one way, by layer".to_owned(),
        parts,
        bars: rows.iter().map(bar).collect(),
    }
}

fn judge(outcome: &mut Outcome, rows: &[Row]) {
    let mut parts = Vec::new();
    for row in rows {
        let share = |ns: f64| ns / row.one_way_ns * 100.0;
        outcome.checks.push(Check {
            target: format!(
                "{} at {} bytes: the layers together within {:.0} % of the way measured undisturbed",
                row.way.name(),
                row.bytes,
                REST_MAX * 100.0
            ),
            found: format!("{:+.1} % left over", share(row.rest_ns())),
            met: row.rest_ns().abs() <= REST_MAX * row.one_way_ns,
        });
        let stack = [Layer::SendingStack, Layer::ReceivingStack]
            .map(|layer| row.of(layer).unwrap_or(0.0))
            .iter()
            .sum::<f64>();
        let of_layers = match row.way {
            LayerPath::KernelUdp => format!("{:.0} % in the UDP/IP layers", share(stack)),
            _ => "none in UDP/IP layers".to_owned(),
        };
        parts.push(format!(
            "{} at {} bytes {}, {of_layers}",
            row.way.name(),
            row.bytes,
            latency_text(row.one_way_ns as u64)
        ));
    }
    outcome.here = parts.join("; ");
}
