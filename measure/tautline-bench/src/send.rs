//! Time that sending a datagram takes its thread, from the caller's memory, from a lent buffer, and as a client of a
//! control process, interleaved.
//! The frames go to a MAC address that nobody has, so that the other end of the cable drops them at once: what is
//! left is the way out.

use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use std::time::Duration;

use serde::Serialize;
use tautline::config::ServiceConfig;
use tautline::control::Server;
use tautline::neighbours::Form;
use tautline::{
    Destination, LinkKind, MacAddress, Neighbour, Node, NodeConfig, OpenError, PortError, Priority,
    SendError, UdpPort,
};
use tautline_machine::Machine;
use tautline_report::LatencyHistogram;
use tautline_testbed::hosts::{Host, Hosts, HostsError};
use tautline_testbed::{child, interrupt, sys};
use thiserror::Error;

use super::sides::{Placement, PlacementError};

/// The UDP port, here and there.
const PORT: u16 = 5_000;
/// Datagrams of one turn. The ways take turns, so that what else happens on the machine falls on both.
const TURN: u64 = 50;
/// Nobody's.
const NOBODY: MacAddress = MacAddress([2, 0, 0, 0, 0xff, 0xfe]);

/// Where a datagram is sent from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum From {
    /// From the caller's memory: `send_to`.
    Copied,
    /// From a buffer of the node's pool: `lend`.
    Lent,
    /// From the caller's memory, as a client of a control process: through a tap, on a cable of its own.
    Tap,
}

impl From {
    /// All, in the order of the table.
    pub const ALL: [Self; 3] = [Self::Copied, Self::Lent, Self::Tap];

    /// Cable that it uses: an interface has one demux.
    fn cable(self) -> usize {
        match self {
            Self::Copied | Self::Lent => 0,
            Self::Tap => 1,
        }
    }

    /// Cables that the hosts need for all of them.
    pub const CABLES: usize = 2;

    /// For tables.
    pub fn text(self) -> &'static str {
        match self {
            Self::Copied => "copied",
            Self::Lent => "lent",
            Self::Tap => "copied, through a tap",
        }
    }
}

/// Settings of the measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Settings {
    /// Bytes of the datagrams.
    pub sizes: Vec<usize>,
    /// Datagrams of each size each way, rounded up to whole turns.
    pub count: u64,
    /// The ways.
    pub ways: Vec<From>,
    /// The sender is the asking side.
    pub placement: Placement,
}

/// It could not be measured.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SendBenchError {
    /// The hosts could not be made.
    #[error(transparent)]
    Hosts(#[from] HostsError),
    /// The node could not be opened.
    #[error(transparent)]
    Node(#[from] OpenError),
    /// The port could not be opened.
    #[error(transparent)]
    Port(#[from] PortError),
    /// A datagram could not be sent.
    #[error("cannot send {bytes} bytes: {source}")]
    Send {
        /// Its size.
        bytes: usize,
        /// Why.
        source: SendError,
    },
    /// The control process does not serve.
    #[error("cannot serve as a control process: {0}")]
    Control(std::io::Error),
    /// The thread could not be placed or scheduled as asked.
    #[error(transparent)]
    Scheduling(#[from] PlacementError),
    /// The user ended the run.
    #[error("interrupted by signal {0}")]
    Interrupted(i32),
}

/// Result of one size, one way.
#[derive(Clone, Debug)]
pub struct Row {
    /// Bytes of a datagram.
    pub bytes: usize,
    /// Where it was sent from.
    pub from: From,
    /// Duration of the call.
    pub calls: LatencyHistogram,
}

/// Result of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Result of the measurement.
    pub settings: Settings,
    /// Report of the node on opening.
    pub active: String,
    /// A row for each size and way.
    pub rows: Vec<Row>,
}

impl Outcome {
    /// How many times the copied call's p50 a row's is.
    pub fn ratio(&self, row: &Row) -> Option<f64> {
        let mut rows = self.rows.iter();
        let copied = rows.find(|other| other.bytes == row.bytes && other.from == From::Copied)?;
        let p50 = |row: &Row| row.calls.summary().p50_ns;
        Some(super::rtt::ratio(p50(row), p50(copied)))
    }

    /// The result file: `machine`, `settings` and `rows`.
    pub fn json(&self, machine: &Machine) -> serde_json::Value {
        let row = |row: &Row| {
            let mut json = serde_json::to_value(row.calls.summary()).expect("plain data");
            json["bytes"] = row.bytes.into();
            json["from"] = serde_json::to_value(row.from).expect("plain data");
            json["p50_of_copied"] = self.ratio(row).into();
            json
        };
        serde_json::json!({
            "machine": machine,
            "settings": self.settings,
            "active": self.active,
            "rows": self.rows.iter().map(row).collect::<Vec<_>>(),
        })
    }
}

/// Measures. `progress` is called with the datagrams done and those of the whole run.
///
/// # Errors
/// [`SendBenchError`].
pub fn run(
    hosts: &Hosts,
    settings: &Settings,
    progress: &mut (dyn FnMut(u64, u64) + Send),
) -> Result<Outcome, SendBenchError> {
    let (active, rows) = hosts.inside(Host::A, || {
        let Placement {
            client_cpu,
            fifo_priority,
            ..
        } = settings.placement;
        Placement::place(client_cpu, fifo_priority)?;
        let mut senders = Senders::open(hosts, &settings.ways)?;
        let rows = senders.measure(settings, progress)?;
        Ok::<_, SendBenchError>((senders.report(), rows))
    })??;
    Ok(Outcome {
        settings: settings.clone(),
        active,
        rows,
    })
}

/// A control process: a thread of this one, on the second cable, until it is dropped.
struct Control {
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Control {
    fn start(hosts: &Hosts) -> Result<Self, SendBenchError> {
        let interface = hosts.end(Host::A, From::Tap.cable()).interface();
        let config = NodeConfig::on(&interface);
        let mut server = Server::open(ServiceConfig::new(config))?;
        let (stop, stopped) = UnixStream::pair().map_err(SendBenchError::Control)?;
        let namespace = hosts.namespace(Host::A);
        let serve = move || {
            // Claims are those of the thread's namespace. Clients keep what they have when it ends.
            if child::enter(&namespace).is_ok() {
                let _ended = server.run(&stopped);
            }
        };
        let thread = std::thread::Builder::new()
            .name("taut-control".to_owned())
            .spawn(serve);
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread.map_err(SendBenchError::Control)?),
        })
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // A panic there has been reported already.
            let _ended = thread.join();
        }
    }
}

/// The senders of all ways, each on its cable.
struct Senders {
    direct: Sender,
    /// Ends before the control process.
    client: Option<Sender>,
    _control: Option<Control>,
}

impl Senders {
    fn open(hosts: &Hosts, ways: &[From]) -> Result<Self, SendBenchError> {
        let direct = Sender::open(hosts, From::Copied.cable())?;
        let (mut control, mut client) = (None, None);
        if ways.contains(&From::Tap) {
            control = Some(Control::start(hosts)?);
            client = Some(Sender::open(hosts, From::Tap.cable())?);
        }
        Ok(Self {
            direct,
            client,
            _control: control,
        })
    }

    fn of(&mut self, way: From) -> &mut Sender {
        match (way, &mut self.client) {
            (From::Tap, Some(client)) => client,
            _ => &mut self.direct,
        }
    }

    fn report(&self) -> String {
        let both = [Some(&self.direct), self.client.as_ref()]
            .into_iter()
            .flatten();
        let reports: Vec<String> = both
            .map(|sender| sender.node.report().to_string())
            .collect();
        reports.join("; ")
    }

    fn measure(
        &mut self,
        settings: &Settings,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Vec<Row>, SendBenchError> {
        let turns = settings.count.div_ceil(TURN);
        let mut rows: Vec<Row> = Vec::new();
        for bytes in &settings.sizes {
            rows.extend(settings.ways.iter().map(|from| Row {
                bytes: *bytes,
                from: *from,
                calls: LatencyHistogram::new(),
            }));
        }
        let total = turns * TURN * rows.len() as u64;
        let mut done = 0;
        let mut own = vec![0; settings.sizes.iter().copied().max().unwrap_or(0)];
        for turn in 0..turns {
            let count = rows.len();
            for place in 0..count {
                // Another row begins each time.
                let row = &mut rows[(place + turn as usize) % count];
                if let Some(signal) = interrupt::interrupted() {
                    return Err(SendBenchError::Interrupted(signal));
                }
                self.of(row.from)
                    .turn(row, &mut own)
                    .map_err(|source| SendBenchError::Send {
                        bytes: row.bytes,
                        source,
                    })?;
                done += TURN;
                progress(done, total);
            }
        }
        Ok(rows)
    }
}

struct Sender {
    port: UdpPort,
    to: Destination,
    node: Node,
}

impl Sender {
    fn open(hosts: &Hosts, cable: usize) -> Result<Self, SendBenchError> {
        let neighbour = Neighbour {
            name: "nobody".to_owned(),
            mac: NOBODY,
            ip: Some(hosts.end(Host::B, cable).address()),
            form: Form::Udp,
        };
        let interface = hosts.end(Host::A, cable).interface();
        // Its mode concerns what comes, of which there is nothing.
        let config = NodeConfig::on(&interface).with_link(LinkKind::Xdp);
        let config = config.with_neighbour(neighbour).expect("the only one");
        let node = Node::open(config)?;
        let mut port = node.udp(PORT).open()?;
        let to = port.destination("nobody", PORT)?;
        Ok(Self { port, to, node })
    }

    /// One turn. Each datagram is made anew before it is sent, outside of what is measured.
    fn turn(&mut self, row: &mut Row, own: &mut [u8]) -> Result<(), SendError> {
        let Self { port, to, .. } = self;
        let own = &mut own[..row.bytes];
        for number in 0..TURN {
            let taken = loop {
                let (sent, started_ns) = match row.from {
                    From::Copied | From::Tap => {
                        own.fill(number as u8);
                        let started_ns = sys::monotonic_ns();
                        (port.send_to(*to, Priority::NORMAL, own), started_ns)
                    }
                    From::Lent => {
                        let mut loan = port.lend(*to, Priority::NORMAL, row.bytes)?;
                        loan.fill(number as u8);
                        let started_ns = sys::monotonic_ns();
                        (loan.send(), started_ns)
                    }
                };
                match sent {
                    Err(SendError::TransmitQueueFull) => std::thread::yield_now(),
                    result => {
                        result?;
                        break sys::monotonic_ns() - started_ns;
                    }
                }
            };
            row.calls.record_duration(Duration::from_nanos(taken));
        }
        Ok(())
    }
}
