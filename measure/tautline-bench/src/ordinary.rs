//! Cost of a demux for ordinary traffic: round trips of kernel UDP and the rate of TCP, on cables that nobody touched
//! and on cables whose ends have a demux, interleaved.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;
use tautline::link::XdpMode;
use tautline::{LinkKind, Node, NodeConfig, OpenError, PortError, QueuingPort};
use tautline_machine::Machine;
use tautline_report::LatencyHistogram;
use tautline_testbed::hosts::{EndKind, Host, Hosts, HostsError, HostsOptions};
use tautline_testbed::interrupt;
use thiserror::Error;

use crate::path::port::port_number;
use crate::path::sides::Sides;
use crate::path::tcp::{self, KernelTcp};
use crate::path::udp::{self, KernelUdp};
use crate::path::{BLOCKED_LOOK, End, PathError, Waiting};
use crate::rtt::ratio;
use crate::sides::{self, Handover, Placement, PlacementError, ServerGone};

/// Payloads of the round trips: the smallest that matters, and a full frame.
pub const SIZES: [usize; 2] = [16, 1400];
/// Bytes of a write of the TCP stream: what a copying program uses.
const WRITE_BYTES: usize = 65_536;
/// How long a round trip may take before it counts as lost.
const TIME_LIMIT: Duration = Duration::from_millis(100);
/// From the start of a stream until it is measured: TCP finds its rate.
const LEAD: Duration = Duration::from_millis(20);
/// How long a stream is measured in a turn.
const STREAM: Duration = Duration::from_millis(200);
/// Round trips of a turn; the first turn of each is not counted.
const TURN: u64 = 1_000;
/// Ports of the sockets.
const UDP_PORT: u16 = 7_600;
const TCP_PORT: u16 = 7_601;
/// The nodes' port, which receives nothing.
const PORT: u16 = 1;

/// Where a cable has a demux, and in which mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Attached {
    /// Nowhere.
    Untouched,
    /// At both ends, in the driver.
    Native,
    /// At host B's end only, in the driver: a container or a virtual machine whose peer does not run Tautline.
    NativeAtOne,
    /// At both ends, after the driver.
    Generic,
    /// At host B's end only, after the driver.
    GenericAtOne,
    /// At both ends, at traffic control.
    Tc,
    /// At host B's end only, at traffic control.
    TcAtOne,
}

impl Attached {
    /// All of them, in the order of the table.
    pub const ALL: [Attached; 7] = [
        Attached::Untouched,
        Attached::Native,
        Attached::NativeAtOne,
        Attached::Generic,
        Attached::GenericAtOne,
        Attached::Tc,
        Attached::TcAtOne,
    ];

    /// Those that interfaces of this kind allow: only the virtual cable's own end has native mode.
    pub fn on(kind: EndKind) -> Vec<Attached> {
        let allowed = |one: &Attached| kind == EndKind::Veth || one.mode() != Some(XdpMode::Native);
        Attached::ALL.into_iter().filter(allowed).collect()
    }

    /// For tables.
    pub fn text(self) -> &'static str {
        match self {
            Attached::Untouched => "untouched",
            Attached::Native => "native",
            Attached::NativeAtOne => "native, at B only",
            Attached::Generic => "generic",
            Attached::GenericAtOne => "generic, at B only",
            Attached::Tc => "tc",
            Attached::TcAtOne => "tc, at B only",
        }
    }

    fn mode(self) -> Option<XdpMode> {
        match self {
            Attached::Untouched => None,
            Attached::Native | Attached::NativeAtOne => Some(XdpMode::Native),
            Attached::Generic | Attached::GenericAtOne => Some(XdpMode::Generic),
            Attached::Tc | Attached::TcAtOne => Some(XdpMode::Tc),
        }
    }

    fn hosts(self) -> &'static [Host] {
        match self {
            Attached::Untouched => &[],
            Attached::NativeAtOne | Attached::GenericAtOne | Attached::TcAtOne => &[Host::B],
            Attached::Native | Attached::Generic | Attached::Tc => &Host::BOTH,
        }
    }
}

/// Way of a TCP stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// From A to B: it arrives where a demux is, if there is one.
    ToB,
    /// From B to A.
    FromB,
}

impl Direction {
    /// Both.
    pub const BOTH: [Direction; 2] = [Direction::ToB, Direction::FromB];

    /// For tables.
    pub fn text(self) -> &'static str {
        match self {
            Direction::ToB => "to B",
            Direction::FromB => "from B",
        }
    }
}

/// Settings of the measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Settings {
    /// Turns of each kind of traffic on each cable.
    pub turns: u64,
    /// Demux of each cable.
    pub attached: Vec<Attached>,
    /// Where the two threads run. Host A's asks.
    #[serde(flatten)]
    pub placement: Placement,
}

/// It could not be measured.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OrdinaryError {
    /// The hosts could not be made.
    #[error(transparent)]
    Hosts(#[from] HostsError),
    /// A node could not be opened.
    #[error(transparent)]
    Node(#[from] OpenError),
    /// A port could not be opened.
    #[error(transparent)]
    Port(#[from] PortError),
    /// Sockets could not be opened.
    #[error(transparent)]
    Path(#[from] PathError),
    /// A socket failed.
    #[error("cannot {operation}: {source}")]
    Io {
        /// Operation that failed.
        operation: &'static str,
        /// Cause.
        source: io::Error,
    },
    /// A thread could not be placed or scheduled as asked.
    #[error(transparent)]
    Scheduling(#[from] PlacementError),
    /// The answering thread ended; where it failed, its own error is reported instead of this one.
    #[error("the answering side ended early")]
    ServerEnded,
    /// The user ended the run.
    #[error("interrupted by signal {0}")]
    Interrupted(i32),
}

impl From<ServerGone> for OrdinaryError {
    fn from(_: ServerGone) -> OrdinaryError {
        OrdinaryError::ServerEnded
    }
}

fn failed(operation: &'static str) -> impl FnOnce(io::Error) -> OrdinaryError {
    move |source| OrdinaryError::Io { operation, source }
}

/// Round trips of one size on one cable.
#[derive(Clone, Debug)]
pub struct RoundTrips {
    /// The cable's demux.
    pub attached: Attached,
    /// Bytes of a message.
    pub bytes: usize,
    /// Round trips that took longer than the time limit; they are not in the histogram.
    pub lost: u64,
    /// Latencies of the others.
    pub histogram: LatencyHistogram,
}

/// Streams of one way on one cable.
#[derive(Clone, Debug)]
pub struct Stream {
    /// The cable's demux.
    pub attached: Attached,
    /// Its way.
    pub direction: Direction,
    /// Rate of each turn, as the receiving program saw it; bits per second.
    pub rates: Vec<f64>,
}

impl Stream {
    /// The median turn's rate.
    pub fn bits_per_s(&self) -> f64 {
        let mut rates = self.rates.clone();
        rates.sort_by(f64::total_cmp);
        rates.get(rates.len() / 2).copied().unwrap_or(0.0)
    }
}

/// Result of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Settings of the measurement.
    pub settings: Settings,
    /// The hosts' offload settings.
    pub offloads: &'static str,
    /// A row for each size and cable.
    pub round_trips: Vec<RoundTrips>,
    /// A row for each way and cable.
    pub streams: Vec<Stream>,
}

impl Outcome {
    fn new(settings: &Settings, offloads: &'static str) -> Outcome {
        let round_trips = SIZES.iter().flat_map(|bytes| {
            settings.attached.iter().map(move |attached| RoundTrips {
                attached: *attached,
                bytes: *bytes,
                lost: 0,
                histogram: LatencyHistogram::new(),
            })
        });
        let streams = Direction::BOTH.iter().flat_map(|direction| {
            settings.attached.iter().map(move |attached| Stream {
                attached: *attached,
                direction: *direction,
                rates: Vec::new(),
            })
        });
        Outcome {
            settings: settings.clone(),
            offloads,
            round_trips: round_trips.collect(),
            streams: streams.collect(),
        }
    }

    /// A row's median and p99 as shares of the untouched cable's; `None` if either has no round trip.
    pub fn of_untouched(&self, row: &RoundTrips) -> Option<[f64; 2]> {
        let is_reference =
            |other: &&RoundTrips| other.attached == Attached::Untouched && other.bytes == row.bytes;
        let reference = self
            .round_trips
            .iter()
            .find(is_reference)?
            .histogram
            .summary();
        let own = row.histogram.summary();
        (own.count > 0 && reference.count > 0).then(|| {
            [
                ratio(own.p50_ns, reference.p50_ns),
                ratio(own.p99_ns, reference.p99_ns),
            ]
        })
    }

    /// A stream's rate as a share of the untouched cable's.
    pub fn rate_of_untouched(&self, row: &Stream) -> Option<f64> {
        let is_reference = |other: &&Stream| {
            other.attached == Attached::Untouched && other.direction == row.direction
        };
        let reference = self.streams.iter().find(is_reference)?.bits_per_s();
        (reference > 0.0).then(|| (row.bits_per_s() / reference * 1000.0).round() / 1000.0)
    }

    /// The result file: `machine`, `settings`, `round_trips` and `streams`.
    pub fn json(&self, machine: &Machine) -> serde_json::Value {
        let round_trip = |row: &RoundTrips| {
            let mut json = serde_json::to_value(row.histogram.summary()).expect("plain data");
            json["demux"] = serde_json::to_value(row.attached).expect("plain data");
            json["payload_bytes"] = row.bytes.into();
            json["lost"] = row.lost.into();
            let [p50, p99] = self
                .of_untouched(row)
                .map_or([None; 2], |both| both.map(Some));
            json["p50_of_untouched"] = p50.into();
            json["p99_of_untouched"] = p99.into();
            json
        };
        let stream = |row: &Stream| {
            serde_json::json!({
                "demux": row.attached,
                "direction": row.direction,
                "bits_per_s": row.bits_per_s().round(),
                "bits_per_s_of_turns": row.rates.iter().map(|rate| rate.round()).collect::<Vec<_>>(),
                "of_untouched": self.rate_of_untouched(row),
            })
        };
        serde_json::json!({
            "machine": machine,
            "settings": self.settings,
            "offloads": self.offloads,
            "round_trips": self.round_trips.iter().map(round_trip).collect::<Vec<_>>(),
            "streams": self.streams.iter().map(stream).collect::<Vec<_>>(),
        })
    }
}

/// Options of the hosts: a cable for each of [`Attached::on`].
pub fn hosts_options(end_kind: EndKind) -> HostsOptions {
    HostsOptions {
        cable_count: Attached::on(end_kind).len(),
        end_kind,
        ..HostsOptions::default()
    }
}

/// Measures. `progress` is called with the turns done and those of the whole run.
///
/// # Errors
/// [`OrdinaryError`].
pub fn run(
    hosts: &Hosts,
    settings: &Settings,
    progress: &mut (dyn FnMut(u64, u64) + Send),
) -> Result<Outcome, OrdinaryError> {
    let mut nodes = Vec::new();
    let (mut asking, mut answering) = (Vec::new(), Vec::new());
    for (cable, attached) in settings.attached.iter().enumerate() {
        for host in attached.hosts() {
            nodes.push(attach(hosts, *host, cable, attached.mode())?);
        }
        let sides = Sides::Hosts(hosts, cable);
        let [udp_a, udp_b] = udp::pair(sides, UDP_PORT, Waiting::Spin)?;
        let [tcp_a, tcp_b] = tcp::pair(sides, TCP_PORT, Waiting::Block)?;
        asking.push(Sockets::new(udp_a, tcp_a)?);
        answering.push(Sockets::new(udp_b, tcp_b)?);
    }
    let received = &AtomicU64::new(0);
    let mut outcome = Outcome::new(settings, hosts.offloads().text());
    let rows = &mut outcome;
    sides::run(
        &settings.placement,
        |slice: Slice, stop| answering[slice.cable].serve(slice.work, received, stop),
        |handover| {
            let mut asker = Asker {
                sockets: &mut asking,
                handover,
                received,
            };
            asker.run(rows, settings, progress)
        },
    )?;
    Ok(outcome)
}

/// Opens a node, which attaches the demux. Both go when this is dropped.
fn attach(
    hosts: &Hosts,
    host: Host,
    cable: usize,
    mode: Option<XdpMode>,
) -> Result<(QueuingPort, Node), OrdinaryError> {
    let interface = hosts.end(host, cable).interface();
    let mut config = NodeConfig::on(&interface).with_link(LinkKind::Xdp);
    config.xdp_mode = mode;
    let node = hosts.inside(host, || Node::open(config))??;
    let port = hosts.inside(host, || node.queuing(port_number(PORT)).open())??;
    Ok((port, node))
}

/// Traffic of one turn.
#[derive(Clone, Copy)]
enum Work {
    RoundTrips { bytes: usize },
    Stream(Direction),
}

/// One turn on one cable.
#[derive(Clone, Copy)]
struct Slice {
    cable: usize,
    work: Work,
}

/// One side's ends on a cable.
struct Sockets {
    udp: KernelUdp,
    tcp: KernelTcp,
    written: Box<[u8]>,
}

impl Sockets {
    fn new(udp: KernelUdp, tcp: KernelTcp) -> Result<Sockets, PathError> {
        Ok(Sockets {
            udp,
            tcp: tcp.merging()?.reading_many(),
            written: vec![0x5a; WRITE_BYTES].into(),
        })
    }

    /// The answering side of a turn, until `stop` is set.
    fn serve(
        &mut self,
        work: Work,
        received: &AtomicU64,
        stop: &AtomicBool,
    ) -> Result<(), OrdinaryError> {
        match work {
            Work::RoundTrips { bytes } => self
                .udp
                .serve(bytes, stop, &mut |_| {})
                .map_err(failed("answer")),
            Work::Stream(Direction::ToB) => loop {
                let came = self.receive()?;
                // Relaxed: a figure that is read while it grows.
                received.fetch_add(came, Ordering::Relaxed);
                if came == 0 && stop.load(Ordering::Relaxed) {
                    return Ok(());
                }
            },
            Work::Stream(Direction::FromB) => {
                while !stop.load(Ordering::Relaxed) {
                    self.write()?;
                }
                Ok(())
            }
        }
    }

    fn write(&mut self) -> Result<(), OrdinaryError> {
        self.tcp
            .send(&self.written)
            .map(drop)
            .map_err(failed("send a stream"))
    }

    /// Bytes of the stream that came; 0 if none came for a while.
    fn receive(&mut self) -> Result<u64, OrdinaryError> {
        self.tcp
            .wait_many(1, BLOCKED_LOOK)
            .map_err(failed("receive a stream"))
    }
}

/// The asking side.
struct Asker<'a> {
    sockets: &'a mut [Sockets],
    handover: &'a Handover<Slice>,
    received: &'a AtomicU64,
}

impl Asker<'_> {
    fn run(
        &mut self,
        outcome: &mut Outcome,
        settings: &Settings,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(), OrdinaryError> {
        let (cables, turns) = (settings.attached.len(), settings.turns);
        let (round_trips, streams) = (outcome.round_trips.len(), outcome.streams.len());
        let mut done = 0;
        // The first turn warms up.
        for turn in 0..=turns {
            let is_counted = turn > 0;
            // The order moves on, so that no cable always follows the same other.
            for step in 0..round_trips {
                let index = (step + turn as usize) % round_trips;
                let row = &mut outcome.round_trips[index];
                self.ask(index % cables, row, is_counted)?;
            }
            for step in 0..streams {
                let index = (step + turn as usize) % streams;
                let row = &mut outcome.streams[index];
                let rate = self.stream(index % cables, row.direction)?;
                if is_counted {
                    row.rates.push(rate);
                }
            }
            done += 1;
            progress(done, turns + 1);
        }
        Ok(())
    }

    /// A turn of round trips.
    fn ask(
        &mut self,
        cable: usize,
        row: &mut RoundTrips,
        is_counted: bool,
    ) -> Result<(), OrdinaryError> {
        let bytes = row.bytes;
        let work = Work::RoundTrips { bytes };
        self.handover.begin(Slice { cable, work })?;
        let mut message = vec![0x5a; bytes];
        let mut lost = 0;
        for number in 0..TURN {
            message[..8].copy_from_slice(&number.to_le_bytes());
            let start = Instant::now();
            let came = self.sockets[cable].udp.round_trip(&message, TIME_LIMIT);
            let latency = start.elapsed();
            match came.map_err(failed("ask"))? {
                true if is_counted => row.histogram.record_duration(latency),
                true => {}
                false => lost += 1,
            }
        }
        if is_counted {
            row.lost += lost;
        }
        self.end()
    }

    /// A turn of a stream; its rate in bits per second.
    fn stream(&mut self, cable: usize, direction: Direction) -> Result<f64, OrdinaryError> {
        let work = Work::Stream(direction);
        self.handover.begin(Slice { cable, work })?;
        self.pass(cable, direction, LEAD)?;
        let start = Instant::now();
        let bytes = self.pass(cable, direction, STREAM)?;
        let seconds = start.elapsed().as_secs_f64();
        if direction == Direction::FromB {
            // The other side cannot end a write for which there is no room.
            let own = &mut self.sockets[cable];
            self.handover.end_while(|| own.receive().map(drop))?;
            // The last bytes on their way are not the next turn's.
            while own.receive()? > 0 {}
        }
        self.end()?;
        Ok(bytes as f64 * 8.0 / seconds)
    }

    /// This side of a stream for a while; bytes that the other program, or this one, received meanwhile.
    fn pass(
        &mut self,
        cable: usize,
        direction: Direction,
        length: Duration,
    ) -> Result<u64, OrdinaryError> {
        let end = Instant::now() + length;
        let before = self.received.load(Ordering::Relaxed);
        let mut came = 0;
        while Instant::now() < end {
            match direction {
                Direction::ToB => self.sockets[cable].write()?,
                Direction::FromB => came += self.sockets[cable].receive()?,
            }
        }
        Ok(match direction {
            Direction::ToB => self.received.load(Ordering::Relaxed) - before,
            Direction::FromB => came,
        })
    }

    fn end(&mut self) -> Result<(), OrdinaryError> {
        self.handover.end()?;
        interrupt::interrupted().map_or(Ok(()), |signal| Err(OrdinaryError::Interrupted(signal)))
    }
}
