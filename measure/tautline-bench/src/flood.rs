//! Effect of a flood for one port on another: a third host sends the smallest frames there are to a port of
//! host B, as fast as it can, while host A's messages go to another port of B, whose reader spins on a CPU of
//! its own. Measured is the delay from the demux's arrival stamp to the application, and what was lost.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use serde::Serialize;
use tautline::link::XdpMode;
use tautline::neighbours::Form;
use tautline::port::{Outgoing, Policing, QueuingOptions};
use tautline::{
    LinkKind, MacAddress, Neighbour, Node, NodeConfig, OpenError, PortError, PortNumber, Priority,
    QueuingPort, ReceiveError, SendError, Wait,
};
use tautline_machine::Machine;
use tautline_report::LatencyHistogram;
use tautline_testbed::hosts::{Host, Hosts, HostsError, ThirdHost};
use tautline_testbed::{interrupt, sys};
use thiserror::Error;

use super::sides::{Placement, PlacementError};

/// The port that is measured; deep enough for a reader that is kept from its CPU for tenths of a second.
const MEASURED: u16 = 40;
const MEASURED_DEPTH: u32 = 4_096;
/// The flooded ports: as they are unless asked otherwise, and policed.
const FLOODED: u16 = 41;
const POLICED: u16 = 42;
const POLICING: Policing = Policing::per_second(1_000, 16);
/// Messages of one turn. The ways take turns, so that what else happens on the machine falls on all.
const TURN: u64 = 500;
/// How long the last messages of a turn may take before they count as lost.
const PATIENCE: Duration = Duration::from_millis(200);
/// Frames that the flood hands over at once.
const BATCH: usize = 32;

/// Condition under which messages are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Beside {
    /// Nothing.
    Quiet,
    /// A flood for another port, which takes what it can hold.
    Flood,
    /// A flood for another port, which is policed.
    Policed,
}

impl Beside {
    /// All, in the order of the table.
    pub const ALL: [Self; 3] = [Self::Quiet, Self::Flood, Self::Policed];

    /// For tables.
    pub fn text(self) -> &'static str {
        match self {
            Self::Quiet => "quiet",
            Self::Flood => "flood",
            Self::Policed => "flood, port policed",
        }
    }
}

/// Settings of the measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Settings {
    /// Measured messages of each way, rounded up to whole turns.
    pub count: u64,
    /// From one measured message to the next.
    #[serde(rename = "period_ns", serialize_with = "nanoseconds")]
    pub period: Duration,
    /// Mode of the demux.
    pub xdp_mode: XdpMode,
    /// The reader is the asking side; both senders share the answering side's CPU.
    pub placement: Placement,
}

fn nanoseconds<S: serde::Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(time.as_nanos() as u64)
}

/// It could not be measured.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FloodError {
    /// The hosts could not be made.
    #[error(transparent)]
    Hosts(#[from] HostsError),
    /// A node could not be opened.
    #[error(transparent)]
    Node(#[from] OpenError),
    /// A port could not be opened.
    #[error(transparent)]
    Port(#[from] PortError),
    /// A message could not be sent.
    #[error("cannot send: {0}")]
    Send(#[from] SendError),
    /// Messages could not be received.
    #[error("cannot receive: {0}")]
    Receive(#[from] ReceiveError),
    /// A thread could not be placed or scheduled as asked.
    #[error(transparent)]
    Scheduling(#[from] PlacementError),
    /// The user ended the run.
    #[error("interrupted by signal {0}")]
    Interrupted(i32),
}

/// Result of one way.
#[derive(Clone, Debug)]
pub struct Row {
    /// Counters of the flood.
    pub beside: Beside,
    /// Measured messages that were sent.
    pub sent: u64,
    /// Of these, those that did not arrive.
    pub lost: u64,
    /// Frames of the flood.
    pub flood_frames: u64,
    /// While it ran, for this long.
    pub flood_time: Duration,
    /// From the arrival stamp to the application.
    pub delays: LatencyHistogram,
}

impl Row {
    /// Frames of the flood in a second.
    pub fn flood_rate(&self) -> f64 {
        self.flood_frames as f64 / self.flood_time.as_secs_f64().max(1e-9)
    }
}

/// Result of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Result of the measurement.
    pub settings: Settings,
    /// Reports of the nodes on opening.
    pub active: Vec<(&'static str, String)>,
    /// Of the flood's frames, those that the policed port's door kept out.
    pub policed: u64,
    /// A row for each way.
    pub rows: Vec<Row>,
}

impl Outcome {
    /// How many times the quiet run's p99 a row's is.
    pub fn p99_ratio(&self, row: &Row) -> f64 {
        let quiet = self.rows[0].delays.summary().p99_ns;
        super::rtt::ratio(row.delays.summary().p99_ns, quiet)
    }

    /// The result file: `machine`, `settings` and `rows`.
    pub fn json(&self, machine: &Machine) -> serde_json::Value {
        let row = |row: &Row| {
            let mut json = serde_json::to_value(row.delays.summary()).expect("plain data");
            json["beside"] = serde_json::to_value(row.beside).expect("plain data");
            json["sent"] = row.sent.into();
            json["lost"] = row.lost.into();
            json["flood_frames_per_s"] = row.flood_rate().round().into();
            json["p99_of_quiet"] = self.p99_ratio(row).into();
            json
        };
        let active = self.active.iter();
        serde_json::json!({
            "machine": machine,
            "settings": self.settings,
            "active": active.map(|(who, text)| ((*who).to_owned(), text.clone().into()))
                .collect::<serde_json::Map<_, _>>(),
            "policed": self.policed,
            "rows": self.rows.iter().map(row).collect::<Vec<_>>(),
        })
    }
}

/// The ends: ports on three hosts.
struct Ends {
    sender: QueuingPort,
    reader: QueuingPort,
    flooder: QueuingPort,
    /// Ways of the sender and of the flooder.
    measured: tautline::Destination,
    flooded: [tautline::Destination; 2],
    /// Opened, and never read.
    _unread: [QueuingPort; 2],
    nodes: [Node; 3],
}

fn number(number: u16) -> Result<PortNumber, PortError> {
    Ok(PortNumber::try_from(number)?)
}

impl Ends {
    fn open(hosts: &Hosts, third: &ThirdHost, mode: XdpMode) -> Result<Self, FloodError> {
        let target = hosts.end(Host::B, 0);
        let interface = target.interface();
        let sending = || -> Result<(Node, QueuingPort), FloodError> {
            let neighbour = Neighbour {
                name: "b".to_owned(),
                mac: MacAddress(target.mac()),
                ip: None,
                form: Form::Ethernet,
            };
            let config = NodeConfig::on(&interface).with_link(LinkKind::Packet);
            let config = config.with_neighbour(neighbour).expect("the only one");
            let node = Node::open(config)?;
            let port = node.queuing(number(MEASURED)?).open()?;
            Ok((node, port))
        };
        let (a, mut sender) = hosts.inside(Host::A, sending)??;
        let (c, mut flooder) = third.inside(sending)??;
        let receiving = || -> Result<_, FloodError> {
            let mut config = NodeConfig::on(&interface).with_link(LinkKind::Xdp);
            config.xdp_mode = Some(mode);
            let node = Node::open(config)?;
            let deep = QueuingOptions {
                depth: MEASURED_DEPTH,
                spin: Duration::from_secs(1).into(),
                ..QueuingOptions::default()
            };
            let policed = QueuingOptions {
                policing: Some(POLICING),
                ..QueuingOptions::default()
            };
            let reader = node.queuing(number(MEASURED)?).options(&deep).open()?;
            let unread = [
                node.queuing(number(FLOODED)?).open()?,
                node.queuing(number(POLICED)?).options(&policed).open()?,
            ];
            Ok((node, reader, unread))
        };
        let (b, reader, unread) = hosts.inside(Host::B, receiving)??;
        Ok(Self {
            measured: sender.destination("b", number(MEASURED)?)?,
            flooded: [
                flooder.destination("b", number(FLOODED)?)?,
                flooder.destination("b", number(POLICED)?)?,
            ],
            sender,
            reader,
            flooder,
            _unread: unread,
            nodes: [a, b, c],
        })
    }
}

/// State that the three threads share.
#[derive(Default)]
struct Shared {
    /// Place of the way under way among [`Beside::ALL`].
    beside: AtomicUsize,
    /// Measured messages of each way that have arrived.
    arrived: [AtomicU64; Beside::ALL.len()],
    flood_frames: AtomicU64,
    ended: AtomicBool,
}

/// Measures. `progress` is called with the messages done and those of the whole run.
///
/// # Errors
/// [`FloodError`].
pub fn run(
    hosts: &Hosts,
    settings: &Settings,
    progress: &mut (dyn FnMut(u64, u64) + Send),
) -> Result<Outcome, FloodError> {
    let third = hosts.third()?;
    let mut ends = Ends::open(hosts, &third, settings.xdp_mode)?;
    let active = ["sender", "reader", "flood"].into_iter();
    let active = active.zip(ends.nodes.iter().map(|node| node.report().to_string()));
    let active = active.collect();
    let shared = &Shared::default();
    let Ends {
        sender,
        reader,
        flooder,
        measured,
        flooded,
        ..
    } = &mut ends;
    let placement = &settings.placement;
    let rows = thread::scope(|scope| {
        let reading = scope.spawn(move || {
            Placement::place(placement.client_cpu, placement.fifo_priority)?;
            read(reader, shared)
        });
        let flooding = scope.spawn(move || {
            Placement::place(placement.server_cpu, None)?;
            flood(flooder, *flooded, shared)
        });
        let sending = scope.spawn(move || {
            let _ended = Ended(shared);
            Placement::place(placement.server_cpu, None)?;
            send(sender, *measured, settings, shared, progress)
        });
        let rows = super::sides::joined(sending.join());
        let delays = super::sides::joined(reading.join())?;
        super::sides::joined(flooding.join())?;
        let mut rows = rows?;
        for (row, delays) in rows.iter_mut().zip(delays) {
            row.delays = delays;
        }
        Ok::<_, FloodError>(rows)
    })?;
    let ports = ends.nodes[1].status().ports;
    let policed = ports.iter().map(|port| port.policed).sum();
    Ok(Outcome {
        settings: settings.clone(),
        active,
        policed,
        rows,
    })
}

/// Lets the other threads end, in whatever way this one does.
struct Ended<'a>(&'a Shared);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.ended.store(true, Ordering::Relaxed);
    }
}

/// The measured messages, way after way in turn.
fn send(
    sender: &mut QueuingPort,
    to: tautline::Destination,
    settings: &Settings,
    shared: &Shared,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Vec<Row>, FloodError> {
    let mut rows = Beside::ALL.map(|beside| Row {
        beside,
        sent: 0,
        lost: 0,
        flood_frames: 0,
        flood_time: Duration::ZERO,
        delays: LatencyHistogram::new(),
    });
    let turns = settings.count.div_ceil(TURN);
    let total = turns * TURN * rows.len() as u64;
    let period_ns = settings.period.as_nanos() as u64;
    for turn in 0..turns {
        // Another way begins each time.
        for place in 0..rows.len() {
            let place = (place + turn as usize) % rows.len();
            let row = &mut rows[place];
            if let Some(signal) = interrupt::interrupted() {
                return Err(FloodError::Interrupted(signal));
            }
            shared.beside.store(place, Ordering::Relaxed);
            let (started_ns, flood_before) = (
                sys::monotonic_ns(),
                shared.flood_frames.load(Ordering::Relaxed),
            );
            for message in 0..TURN {
                sys::sleep_until(started_ns + (message + 1) * period_ns);
                loop {
                    match sender.send(to, Priority::HIGHEST, &[place as u8]) {
                        // The sender's own queue has no room, which is not a loss: it knows.
                        Err(SendError::TransmitQueueFull) => thread::yield_now(),
                        result => break result?,
                    }
                }
            }
            row.flood_time += Duration::from_nanos(sys::monotonic_ns() - started_ns);
            let flooded = shared.flood_frames.load(Ordering::Relaxed) - flood_before;
            row.flood_frames += flooded;
            let deadline_ns = sys::monotonic_ns() + PATIENCE.as_nanos() as u64;
            row.sent += TURN;
            let arrived = || shared.arrived[place].load(Ordering::Acquire);
            while arrived() < row.sent && sys::monotonic_ns() < deadline_ns {
                thread::yield_now();
            }
            progress(rows.iter().map(|row| row.sent).sum(), total);
        }
    }
    for (row, arrived) in rows.iter_mut().zip(&shared.arrived) {
        row.lost = row.sent - arrived.load(Ordering::Acquire).min(row.sent);
    }
    Ok(rows.into())
}

/// The flood, while there is to be one.
fn flood(
    flooder: &mut QueuingPort,
    to: [tautline::Destination; 2],
    shared: &Shared,
) -> Result<(), FloodError> {
    while !shared.ended.load(Ordering::Relaxed) {
        let to = match Beside::ALL[shared.beside.load(Ordering::Relaxed)] {
            Beside::Quiet => {
                thread::sleep(Duration::from_micros(200));
                continue;
            }
            Beside::Flood => to[0],
            Beside::Policed => to[1],
        };
        let frame = Outgoing {
            to,
            priority: Priority::LOWEST,
            message: &[],
        };
        match flooder.send_batch(&[frame; BATCH]) {
            Ok(sent) => {
                shared
                    .flood_frames
                    .fetch_add(sent as u64, Ordering::Relaxed);
            }
            Err(SendError::TransmitQueueFull) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// The delays, of each way.
fn read(reader: &mut QueuingPort, shared: &Shared) -> Result<Vec<LatencyHistogram>, FloodError> {
    let mut delays: Vec<_> = Beside::ALL.map(|_| LatencyHistogram::new()).into();
    let mut buffer = [0; 1484];
    while !shared.ended.load(Ordering::Relaxed) {
        let deadline = tautline::now() + Duration::from_millis(1);
        let Some(message) = reader.receive_into(&mut buffer, Wait::Until(deadline))? else {
            continue;
        };
        let delay = tautline::now().saturating_duration_since(message.arrival);
        let place = usize::from(buffer[0]) % Beside::ALL.len();
        delays[place].record_duration(delay);
        shared.arrived[place].fetch_add(1, Ordering::Release);
    }
    Ok(delays)
}
