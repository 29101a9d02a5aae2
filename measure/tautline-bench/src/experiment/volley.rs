//! Volleys: n messages from host A to host B, and the time until all have arrived.
//!
//! Never more messages are under way than the window holds, so that nothing is lost for lack of room; what is lost
//! all the same is counted and not sent again. Each side has a CPU of its own and spins. Paths and sizes take turns,
//! and each counts with the median of its volleys.

use std::io;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tautline::LinkKind;
use tautline::port::QueuingOptions;
use tautline_report::chart::{Axis, Chart, Line, Mark, Unit};
use tautline_report::reference::Reference;
use tautline_report::table::Cell;
use tautline_testbed::child;
use tautline_testbed::hosts::Hosts;

use super::ends;
use super::side_cpus::{SideCpus, joined};
use super::window::{Sent, receive_stream, send_stream};
use super::{Check, ExperimentError, Outcome, Progress, go_on};
use crate::path::nodes::NodePair;
use crate::path::{End, Sends, Waiting, sides};

/// Frames under way at most. A virtual cable holds 256; more would be dropped while its poll waits for the CPU.
const FRAMES_UNDER_WAY: u64 = 192;
/// Bytes of a message in each of its frames, about.
const FRAME_BYTES: usize = 1_400;
/// Longer than a receiver ever waits: it spins all the time, as on kernel UDP's path.
const SPIN: Duration = Duration::from_secs(1);
/// Slots of a port's class: all frames under way find room.
const DEPTH: u32 = 512;

/// A path that volleys take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VolleyPath {
    KernelUdp,
    KernelBatched,
    KernelBlocking,
    UdpPort,
    UdpPortBatched,
    UdpPortToKernel,
    Queuing,
    Batched,
    Merged,
}

impl VolleyPath {
    pub(super) const ALL: [VolleyPath; 9] = [
        VolleyPath::KernelUdp,
        VolleyPath::KernelBatched,
        VolleyPath::KernelBlocking,
        VolleyPath::UdpPort,
        VolleyPath::UdpPortBatched,
        VolleyPath::UdpPortToKernel,
        VolleyPath::Queuing,
        VolleyPath::Batched,
        VolleyPath::Merged,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            VolleyPath::KernelUdp => "udp-poll",
            VolleyPath::KernelBatched => "udp-poll-batched",
            VolleyPath::KernelBlocking => "udp-block",
            VolleyPath::UdpPort => "udp-port",
            VolleyPath::UdpPortBatched => "udp-port-batched",
            VolleyPath::UdpPortToKernel => "udp-port-to-kernel",
            VolleyPath::Queuing => "queuing",
            VolleyPath::Batched => "queuing-batched",
            VolleyPath::Merged => "queuing-merged",
        }
    }

    fn text(self) -> &'static str {
        match self {
            VolleyPath::KernelUdp => {
                "kernel UDP, a call for each message, non-blocking sockets that both sides spin on"
            }
            VolleyPath::KernelBatched => {
                "kernel UDP, a call (sendmmsg) for each 32 messages, both sides spin"
            }
            VolleyPath::KernelBlocking => "kernel UDP, a call for each message, blocking sockets",
            VolleyPath::UdpPort => {
                "ports of plain UDP, a call for each message; above a frame in IP fragments"
            }
            VolleyPath::UdpPortBatched => {
                "ports of plain UDP, a call for each 32 messages of a frame, and one for each longer message"
            }
            VolleyPath::UdpPortToKernel => {
                "from a port of plain UDP to a kernel socket that is spun on; above a frame in IP fragments"
            }
            VolleyPath::Queuing => {
                "queuing port, Tautline in its Ethernet form, a call for each frame; above 1,484 bytes in its own fragments"
            }
            VolleyPath::Batched => "queuing port, a call for each 32 frames",
            VolleyPath::Merged => "queuing port, small messages merged into frames",
        }
    }

    /// Whether the path carries this size, and differs from another one at it.
    fn carries(self, bytes: usize) -> bool {
        match self {
            // Two messages and their lengths must fit a frame.
            VolleyPath::Merged => bytes <= 720,
            _ => true,
        }
    }

    fn is_kernel(self) -> bool {
        matches!(
            self,
            VolleyPath::KernelUdp | VolleyPath::KernelBatched | VolleyPath::KernelBlocking
        )
    }
}

/// Results of volleys of one path and size.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) way: VolleyPath,
    pub(super) bytes: usize,
    messages: u64,
    /// Seconds of each volley, from before the first send to the last arrival.
    seconds: Vec<f64>,
    sent: u64,
    received: u64,
}

impl Row {
    /// Messages a second of the median volley.
    pub(super) fn messages_per_s(&self) -> f64 {
        let mut seconds = self.seconds.clone();
        seconds.sort_by(f64::total_cmp);
        let median = seconds
            .get(seconds.len() / 2)
            .copied()
            .unwrap_or(f64::INFINITY);
        self.messages as f64 / median
    }

    pub(super) fn bits_per_s(&self) -> f64 {
        self.messages_per_s() * self.bytes as f64 * 8.0
    }

    pub(super) fn lost(&self) -> u64 {
        self.sent.saturating_sub(self.received)
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "path": self.way.name(),
            "payload_bytes": self.bytes,
            "messages": self.messages,
            "seconds": self.seconds,
            "messages_per_s": self.messages_per_s().round(),
            "bits_per_s": self.bits_per_s().round(),
            "lost": self.lost(),
        })
    }
}

/// All paths, open between two hosts.
pub(super) struct VolleyPaths {
    place: SideCpus,
    ends: Vec<(VolleyPath, ends::Ends)>,
    description: String,
}

impl VolleyPaths {
    /// Opens them on the cables of [`sides::compared`].
    pub(super) fn open(hosts: &Hosts, bytes_max: usize) -> Result<VolleyPaths, ExperimentError> {
        const PORT: u16 = 7500;
        let nodes = NodePair::on_cable(hosts, sides::DEMUX_CABLE, LinkKind::Xdp, None)?;
        let small = ends::port_options(SPIN, DEPTH);
        let large = QueuingOptions {
            message_bytes_max: bytes_max.max(small.message_bytes_max),
            ..small.clone()
        };
        let kernel = |port, how| ends::kernel_udp(hosts, sides::KERNEL_CABLE, port, how);
        let open = |way| -> Result<_, ExperimentError> {
            let number = 10 + way as u16;
            let ends = match way {
                VolleyPath::KernelUdp => kernel(PORT, (Sends::OneByOne, Waiting::Spin)),
                VolleyPath::KernelBatched => kernel(PORT + 1, (Sends::Batches, Waiting::Spin)),
                VolleyPath::KernelBlocking => kernel(PORT + 2, (Sends::OneByOne, Waiting::Block)),
                VolleyPath::UdpPort => ends::plain_udp(&nodes, PORT + 3, &large, Sends::OneByOne),
                VolleyPath::UdpPortBatched => {
                    ends::plain_udp(&nodes, PORT + 5, &large, Sends::Batches)
                }
                VolleyPath::UdpPortToKernel => {
                    ends::plain_udp_to_kernel(hosts, &nodes, PORT + 4, &small)
                }
                VolleyPath::Queuing => ends::queuing(&nodes, number, &large, Sends::OneByOne),
                VolleyPath::Batched => ends::queuing(&nodes, number, &large, Sends::Batches),
                VolleyPath::Merged => ends::queuing(&nodes, number, &small, Sends::Merged),
            };
            Ok((way, ends?))
        };
        Ok(VolleyPaths {
            place: SideCpus::choose()?,
            ends: VolleyPath::ALL
                .into_iter()
                .map(open)
                .collect::<Result<_, _>>()?,
            description: nodes.describe(),
        })
    }

    /// Adds what was the case to an outcome.
    pub(super) fn note(&self, outcome: &mut Outcome) {
        outcome.set("sender_cpu", self.place.sender_cpu);
        outcome.set("receiver_cpu", self.place.receiver_cpu);
        outcome.set("frames_under_way_max", FRAMES_UNDER_WAY);
        outcome.set("link", "veth between two network namespaces");
        outcome.set("clock", "CLOCK_MONOTONIC");
        // The description of a path by another part of the experiment is repeated here with more.
        let named = |name: &str| VolleyPath::ALL.iter().any(|way| way.name() == name);
        outcome.active.retain(|(name, _)| !named(name));
        outcome.active.extend(VolleyPath::ALL.map(|way| {
            let link = if way.is_kernel() {
                String::new()
            } else {
                format!("; {}", self.description)
            };
            (way.name().to_owned(), format!("{}{link}", way.text()))
        }));
        outcome.remarks.push(
            "No demux is attached to the cable of kernel UDP. A virtual cable does its receive \
             processing on the sender's CPU, inside the call that sends."
                .to_owned(),
        );
    }

    /// Volleys of each path and size, `rounds` each after one that is not counted; `messages` of a size.
    pub(super) fn measure(
        &mut self,
        sizes: &[usize],
        rounds: u64,
        messages: impl Fn(usize) -> u64,
        progress: &mut Progress<'_>,
    ) -> Result<Vec<Row>, ExperimentError> {
        let mut rows: Vec<Row> = sizes
            .iter()
            .flat_map(|bytes| VolleyPath::ALL.map(|way| (way, *bytes)))
            .filter(|(way, bytes)| way.carries(*bytes))
            .map(|(way, bytes)| Row {
                way,
                bytes,
                messages: messages(bytes),
                seconds: Vec::new(),
                sent: 0,
                received: 0,
            })
            .collect();
        let total = (rounds + 1) * rows.len() as u64;
        for round in 0..=rounds {
            let count = rows.len();
            for step in 0..count {
                let row = &mut rows[(step + round as usize) % count];
                let place = self.place;
                let named = self.ends.iter_mut().find(|(way, _)| *way == row.way);
                let (_, ends) = named.expect("every way is open");
                let volley = fire(ends, row.bytes, row.messages, place).map_err(
                    ExperimentError::io(format!("send a volley over {}", row.way.name())),
                )?;
                if round > 0 {
                    row.seconds.push(volley.seconds);
                    row.sent += volley.sent.messages;
                    row.received += volley.received;
                }
                progress(round * count as u64 + step as u64 + 1, total);
                go_on()?;
            }
        }
        Ok(rows)
    }
}

struct Volley {
    seconds: f64,
    sent: Sent,
    received: u64,
}

fn fire(
    [sending, receiving]: &mut [Box<dyn End>; 2],
    bytes: usize,
    messages: u64,
    place: SideCpus,
) -> io::Result<Volley> {
    let window = (FRAMES_UNDER_WAY / bytes.div_ceil(FRAME_BYTES) as u64).max(2);
    let message = vec![0x5a; bytes];
    let received = &AtomicU64::new(0);
    let (never, stop) = (&AtomicBool::new(false), &AtomicBool::new(false));
    let ready = &Barrier::new(2);
    thread::scope(|scope| {
        let receiver = scope.spawn(move || {
            let placed = child::pin(place.receiver_cpu);
            // Messages that an earlier volley lost too late to be counted.
            receiving.update(bytes)?;
            ready.wait();
            placed?;
            receive_stream(receiving.as_mut(), bytes, window, received, stop)
        });
        let sender = scope.spawn(move || {
            let placed = child::pin(place.sender_cpu);
            ready.wait();
            placed?;
            let start = Instant::now();
            let sent = send_stream(sending.as_mut(), &message, window, messages, never)?;
            Ok::<_, io::Error>((start, sent))
        });
        let outcome = joined(sender.join());
        // Relaxed: the flag carries nothing else, and the join below orders the rest.
        stop.store(true, Ordering::Relaxed);
        let last = joined(receiver.join())?;
        let (start, sent) = outcome?;
        let elapsed = last.map_or(Duration::ZERO, |last| last.saturating_duration_since(start));
        Ok(Volley {
            seconds: elapsed.as_secs_f64(),
            sent,
            received: received.load(Ordering::Relaxed),
        })
    })
}

/// The row of a path at a size.
pub(super) fn row(rows: &[Row], way: VolleyPath, bytes: usize) -> Option<&Row> {
    rows.iter().find(|row| row.way == way && row.bytes == bytes)
}

/// Messages a second over those of kernel UDP, a call for each message.
fn gain(rows: &[Row], way: VolleyPath, bytes: usize) -> Option<f64> {
    gain_over(rows, VolleyPath::KernelUdp, way, bytes)
}

/// Messages a second over those of a kernel's way.
pub(super) fn gain_over(
    rows: &[Row],
    kernel: VolleyPath,
    way: VolleyPath,
    bytes: usize,
) -> Option<f64> {
    let kernel = row(rows, kernel, bytes)?.messages_per_s();
    Some(row(rows, way, bytes)?.messages_per_s() / kernel).filter(|gain| gain.is_finite())
}

pub(super) fn table(rows: &[Row]) -> (Vec<&'static str>, Vec<Vec<Cell>>) {
    let header = vec![
        "path",
        "bytes",
        "messages",
        "messages a second",
        "Mbit/s",
        "of kernel UDP",
        "of its batches",
        "lost",
    ];
    let cells = rows.iter().map(|row| {
        let over = |kernel| {
            let gain = gain_over(rows, kernel, row.way, row.bytes);
            Cell::Text(gain.map_or("-".to_owned(), |gain| format!("{gain:.2}")))
        };
        vec![
            row.way.name().into(),
            row.bytes.to_string().into(),
            row.messages.to_string().into(),
            format!("{:.0}", row.messages_per_s()).into(),
            format!("{:.1}", row.bits_per_s() / 1e6).into(),
            over(VolleyPath::KernelUdp),
            over(VolleyPath::KernelBatched),
            row.lost().to_string().into(),
        ]
    });
    (header, cells.collect())
}

pub(super) fn chart(rows: &[Row], references: Vec<Reference>) -> Chart {
    let line = |way: VolleyPath| {
        let points = rows
            .iter()
            .filter(|row| row.way == way)
            .map(|row| (row.bytes as f64, row.bits_per_s()));
        Line::new(way.name(), Mark::Dots, points.collect())
    };
    Chart {
        caption: "Bandwidth: payload of the median volley".to_owned(),
        across: Axis::logarithmic("message", Unit::Bytes),
        up: Axis::logarithmic("payload", Unit::BitRate),
        lines: VolleyPath::ALL.map(line).into(),
        references,
    }
}

/// Checks what each path gains over kernel UDP at a size, and that nothing was lost.
pub(super) fn judge(outcome: &mut Outcome, rows: &[Row], targets: &[(usize, f64)]) {
    for (bytes, least) in targets {
        for way in VolleyPath::ALL.into_iter().filter(|way| !way.is_kernel()) {
            let Some(gain) = gain(rows, way, *bytes) else {
                continue;
            };
            outcome.checks.push(Check {
                target: format!(
                    "{}: at least {least:.1} of kernel UDP's messages a second at {bytes} bytes",
                    way.name()
                ),
                found: format!("{gain:.2}"),
                met: gain >= *least,
            });
        }
    }
    let ours = rows.iter().filter(|row| !row.way.is_kernel());
    let lost: u64 = ours.map(Row::lost).sum();
    outcome.checks.push(Check {
        target: "nothing lost that was accepted, over all paths of Tautline".to_owned(),
        found: format!("{lost} lost"),
        met: lost == 0,
    });
}
