//! RTDiP, figures 4 to 6: what it costs to bring the newest state into the application's buffer, over the period of
//! sending and the period of updating; over TCP, a queuing port and a sampling port.
//!
//! One thread sends each state on all three paths; three threads update, one for each path, woken at moments of their
//! own, so that each wake-up finds the caches as the sleep left them. Sender and readers keep to one timetable and
//! never speak about it.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use tautline::link::XdpMode;
use tautline::{
    Destination, LinkKind, Priority, QueuingOptions, QueuingPort, SamplingOptions, SamplingPort,
};
use tautline_lab::hosts::{Host, Hosts, HostsOptions};
use tautline_lab::plot::latency_text;
use tautline_lab::surface::{Surface, Surfaces};
use tautline_lab::sys::{monotonic_ns, sleep_until};
use tautline_lab::tuning;

use super::place::{Place, joined, settle};
use super::{
    Check, Experiment, ExperimentError, Figure, Outcome, Progress, Request, Scale, go_on, receive,
};
use crate::echo::tcp;
use crate::nodes::{HostNodes, NodesError, PEER, port_number};

pub(super) const EXPERIMENT: Experiment = Experiment {
    figures: &FIGURES,
    parameters: &[],
    run,
};

const FIGURES: [Figure; 3] = [
    Figure {
        name: "rtdip-fig4",
        source: "RTDiP, figure 4",
        title: "cost of updating to the newest state over TCP",
        found: "TCP/IP takes longer the more states have queued up since the last update",
    },
    Figure {
        name: "rtdip-fig5",
        source: "RTDiP, figure 5",
        title: "the same over a queuing port",
        found: "RTDiP send/recv takes longer the more states have queued up since the last update",
    },
    Figure {
        name: "rtdip-fig6",
        source: "RTDiP, figure 6",
        title: "the same over a sampling port",
        found: "RTDiP sync stays below 90 µs whatever the periods",
    },
];

/// The paths in the order of the figures.
const PATHS: [&str; 3] = ["tcp", "queuing", "sampling"];

/// Bytes of a state, as in the paper.
const STATE_BYTES: usize = 1024;
const TCP_PORT: u16 = 7300;
const QUEUING: u16 = 1;
const SAMPLING: u16 = 2;
/// So many states at once are a backlog: most of what ten times as many sent as read leave.
const MANY_STATES: u32 = 8;
/// What a sampling update may cost at the median, and how far its medians may lie apart.
const SAMPLING_P50_NS_MAX: u64 = 200;
const SAMPLING_SPREAD_MAX: f64 = 1.5;

/// Updates at the start of a turn that are not counted: they find what the last turn left.
const WARM_UP: u64 = 1;
/// From the threads' start to the first turn.
const LEAD_NS: u64 = 50_000_000;
/// From the wake-up to the second update. Lower: the kernel's own work after a wake-up may reach into it. Higher: less of
/// the CPU is left to receive.
const AWAKE_NS: u64 = 150_000;
/// Between two turns: longer than an update takes.
const PAUSE_NS: u64 = 2_000_000;

/// One turn of a pair of periods.
#[derive(Clone, Copy, Debug)]
struct Turn {
    /// Index of the pair.
    pair: usize,
    sending_ns: u64,
    updating_ns: u64,
    start_ns: u64,
    end_ns: u64,
}

/// How much is measured, over which periods.
#[derive(Clone, Debug)]
struct Plan {
    periods: Vec<u64>,
    /// Turns of each pair, spread over the run, so that a disturbance does not hit one pair alone.
    rounds: usize,
    /// Updates of a turn that are counted.
    updates: u64,
}

impl Plan {
    fn of(scale: Scale) -> Plan {
        let unit_ns = scale.pick(100_000_000, 2_000_000, 1_000_000);
        Plan {
            periods: (1..=scale.pick(10, 10, 2)).map(|n| n * unit_ns).collect(),
            rounds: scale.pick(4, 5, 2),
            updates: 5,
        }
    }

    fn pairs(&self) -> usize {
        self.periods.len() * self.periods.len()
    }

    /// The periods of sending and of updating of a pair, and the pair of two periods by their places.
    fn pair(&self, index: usize) -> [u64; 2] {
        let count = self.periods.len();
        [self.periods[index / count], self.periods[index % count]]
    }

    /// Turns one after the other, in an order in which neither period stays the same for long.
    fn timetable(&self, first_ns: u64) -> Vec<Turn> {
        let count = self.periods.len();
        let mut start_ns = first_ns;
        let mut turns = Vec::with_capacity(self.pairs() * self.rounds);
        for _ in 0..self.rounds {
            for shift in 0..count {
                for place in 0..count {
                    let pair = (place + shift) % count * count + place;
                    let [sending_ns, updating_ns] = self.pair(pair);
                    let end_ns = start_ns + updating_ns * (self.updates + WARM_UP + 1) + PAUSE_NS;
                    turns.push(Turn {
                        pair,
                        sending_ns,
                        updating_ns,
                        start_ns,
                        end_ns,
                    });
                    start_ns = end_ns;
                }
            }
        }
        turns
    }
}

/// The two updates of each wake-up: the first as the paper has it, the second with all that the first has warmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    /// Straight from sleep, as cold as the sleep left it.
    Woken,
    /// [`AWAKE_NS`] after the wake-up, which the reader spent reading the clock.
    Awake,
}

impl Moment {
    const ALL: [Moment; 2] = [Moment::Woken, Moment::Awake];

    fn name(self) -> &'static str {
        match self {
            Moment::Woken => "woken",
            Moment::Awake => "awake",
        }
    }
}

/// What a thread found for one pair: at each [`Moment`], the cost of each update and the states that had come.
#[derive(Clone, Debug, Default)]
struct Found([Vec<(u64, u32)>; 2]);

fn run(request: &Request, progress: &mut Progress<'_>) -> Result<Vec<Outcome>, ExperimentError> {
    let place = Place::find()?;
    let plan = Plan::of(request.scale);
    let hosts = Hosts::create(&HostsOptions::default())?;
    let nodes = HostNodes::open(&hosts, 0, LinkKind::Xdp, Some(XdpMode::Native))?;
    // Above the readers, as an interrupt would be: a state that has come is there when they look.
    let above = place.fifo.map(|priority| priority + 1);
    let processing = receive::in_thread(&hosts, Host::B, 0, place.receiver_cpu, above)?;
    let idle = tuning::hold_off_idle_states();
    let (mut sender, mut readers) = open(&hosts, &nodes)?;
    let clock_ns = clock_cost();
    let turns = plan.timetable(monotonic_ns() + LEAD_NS);
    let found = thread::scope(|scope| {
        let sending = scope.spawn(|| send_all(&mut sender, &turns, place));
        let reading: Vec<_> = readers
            .iter_mut()
            .enumerate()
            .map(|(index, reader)| {
                let (plan, turns) = (&plan, &turns);
                scope.spawn(move || read_all(reader.as_mut(), index as u64, plan, turns, place))
            })
            .collect();
        watch(&turns, progress);
        let found: Result<Vec<_>, _> = reading
            .into_iter()
            .map(|thread| joined(thread.join()))
            .collect();
        joined(sending.join())?;
        found
    })?;
    go_on()?;
    let measured = Measured { plan, found };
    Ok(FIGURES
        .iter()
        .enumerate()
        .map(|(path, figure)| {
            let mut outcome = Outcome::of(figure);
            settings(&mut outcome, request.scale, &measured.plan, clock_ns, place);
            outcome.set(
                "idle_states",
                match &idle {
                    Ok(_) => "held off (/dev/cpu_dma_latency 0)".to_owned(),
                    Err(error) => format!("as they are: {error}"),
                },
            );
            let link = format!("link {}", nodes.describe());
            outcome.active = vec![
                ("tcp".to_owned(), "kernel TCP without delay, non-blocking; reads states one by one until there is none".to_owned()),
                ("queuing".to_owned(), format!("queuing port, receives until there is nothing; {link}")),
                ("sampling".to_owned(), format!("sampling port, one read; {link}")),
                ("receiving".to_owned(), format!("on the reader's CPU for all three: {processing}")),
            ];
            measured.tell(&mut outcome, path);
            outcome
        })
        .collect())
}

fn settings(outcome: &mut Outcome, scale: Scale, plan: &Plan, clock_ns: u64, place: Place) {
    outcome.set("state_bytes", STATE_BYTES);
    outcome.set(
        "updates_of_each_path_and_pair",
        plan.updates * plan.rounds as u64,
    );
    outcome.set("turns_of_each_pair", plan.rounds);
    outcome.set("clock", "CLOCK_MONOTONIC");
    outcome.set("clock_cost_ns", clock_ns);
    outcome.set("reader_cpu", place.receiver_cpu);
    outcome.set("sender_cpu", place.sender_cpu);
    outcome.set("scheduling", place.scheduling());
    outcome.set("link", "veth between two network namespaces");
    outcome.set("offloads", "kernel default");
    outcome.remarks.push(format!(
        "Timed: the calls until the newest state is copied into the application's buffer; the clock's own {clock_ns} ns are in it. \
         Each wake-up updates twice. Woken: as the first thing after the sleep, with code, page tables and data as cold as the sleep \
         left them; this is what the paper measured. Awake: the same again {} later, which the reader spent reading the clock; what is new \
         then came meanwhile, and a sampling port is read whether it is new or not.",
        latency_text(AWAKE_NS)
    ));
    if scale != Scale::Full {
        outcome.remarks.push(
            "Periods are scaled down: the shorter sleep leaves the caches warmer than the paper's 100 ms to 1 s.".to_owned(),
        );
    }
}

/// Tells how far the timetable is, on the calling thread.
fn watch(turns: &[Turn], progress: &mut Progress<'_>) {
    let (first, end) = (turns[0].start_ns, turns[turns.len() - 1].end_ns);
    let milliseconds = |ns: u64| ns / 1_000_000;
    loop {
        let now = monotonic_ns().clamp(first, end);
        progress(milliseconds(now - first), milliseconds(end - first));
        if now >= end || go_on().is_err() {
            return;
        }
        thread::sleep(Duration::from_nanos(end - now).min(Duration::from_millis(200)));
    }
}

/// Median of what reading the clock twice takes.
fn clock_cost() -> u64 {
    let mut costs: Vec<u64> = (0..1_001)
        .map(|_| {
            let before = monotonic_ns();
            monotonic_ns() - before
        })
        .collect();
    costs.sort_unstable();
    costs[costs.len() / 2]
}

/// The sending ends of all paths.
struct Sender {
    stream: TcpStream,
    queuing: (QueuingPort, Destination),
    sampling: (SamplingPort, Destination),
    state: [u8; STATE_BYTES],
    sequence: u64,
}

/// The receiving end of a path.
trait Reader: Send {
    /// Brings the newest state into the application's buffer; the number of states that had come since the last time.
    fn update(&mut self) -> Result<u32, ExperimentError>;
    /// The newest state.
    fn state(&self) -> &[u8];
}

type Readers = [Box<dyn Reader>; 3];

fn open(hosts: &Hosts, nodes: &HostNodes) -> Result<(Sender, Readers), ExperimentError> {
    let [sending, receiving] = tcp::connect(hosts, 0, TCP_PORT)?;
    sending
        .set_nodelay(true)
        .and_then(|()| receiving.set_nonblocking(true))
        .map_err(ExperimentError::io("configure a TCP socket"))?;
    let (queuing, sampling) = (QueuingOptions::default(), SamplingOptions::default());
    let (to_queuing, to_sampling) = (port_number(QUEUING), port_number(SAMPLING));
    let mut queuing_a = nodes.port(hosts, Host::A, |node| {
        node.queuing_port(to_queuing, &queuing)
    })?;
    let queuing_b = nodes.port(hosts, Host::B, |node| {
        node.queuing_port(to_queuing, &queuing)
    })?;
    let mut sampling_a = nodes.port(hosts, Host::A, |node| {
        node.sampling_port(to_sampling, &sampling)
    })?;
    let sampling_b = nodes.port(hosts, Host::B, |node| {
        node.sampling_port(to_sampling, &sampling)
    })?;
    let aim = [
        queuing_a.destination(PEER, to_queuing),
        sampling_a.destination(PEER, to_sampling),
    ];
    let [queuing_way, sampling_way] = aim.map(|way| way.map_err(NodesError::from));
    Ok((
        Sender {
            stream: sending,
            queuing: (queuing_a, queuing_way?),
            sampling: (sampling_a, sampling_way?),
            state: [0; STATE_BYTES],
            sequence: 0,
        },
        [
            Box::new(Tcp {
                stream: receiving,
                buffers: [[0; STATE_BYTES]; 2],
                newest: 0,
                filled: 0,
            }),
            Box::new(Queuing {
                buffer: vec![0; queuing_b.message_bytes_max()],
                port: queuing_b,
            }),
            Box::new(Sampling {
                port: sampling_b,
                buffer: vec![0; SamplingPort::VALUE_BYTES_MAX],
            }),
        ],
    ))
}

fn send_all(sender: &mut Sender, turns: &[Turn], place: Place) -> Result<(), ExperimentError> {
    settle(place.sender_cpu, place.fifo)?;
    for turn in turns {
        for number in 0.. {
            let due = turn.start_ns + number * turn.sending_ns + shift_ns(number, turn.sending_ns);
            if due >= turn.end_ns {
                break;
            }
            sleep_until(due);
            if go_on().is_err() {
                return Ok(());
            }
            sender.send()?;
        }
    }
    Ok(())
}

/// How far a send is moved within its period: evenly over all of it, so that no pair of periods is locked in step.
fn shift_ns(number: u64, period_ns: u64) -> u64 {
    // The golden ratio's multiples are as even as can be (Weyl), and the same in each run.
    let share = (number as f64 * 0.618_033_988_749_895).fract();
    (period_ns as f64 * share) as u64
}

impl Sender {
    fn send(&mut self) -> Result<(), ExperimentError> {
        self.sequence += 1;
        self.state[..8].copy_from_slice(&self.sequence.to_le_bytes());
        self.stream
            .write_all(&self.state)
            .map_err(ExperimentError::io("send a state over TCP"))?;
        let (port, to) = &mut self.queuing;
        let queued = port.send(*to, Priority::HIGHEST, &self.state);
        let (port, to) = &mut self.sampling;
        let sampled = port.send(*to, Priority::HIGHEST, &self.state);
        queued.and(sampled).map_err(|error| ExperimentError::Io {
            operation: "send a state over a port".to_owned(),
            source: std::io::Error::other(error),
        })
    }
}

fn read_all(
    reader: &mut dyn Reader,
    index: u64,
    plan: &Plan,
    turns: &[Turn],
    place: Place,
) -> Result<Vec<Found>, ExperimentError> {
    settle(place.receiver_cpu, place.fifo)?;
    let updates = plan.rounds * plan.updates as usize;
    let empty = || Found(Moment::ALL.map(|_| Vec::with_capacity(updates)));
    let mut all: Vec<Found> = (0..plan.pairs()).map(|_| empty()).collect();
    let mut sequence = 0;
    for turn in turns {
        let phase_ns = turn.updating_ns * index / PATHS.len() as u64;
        for number in 0..WARM_UP + plan.updates {
            let due = turn.start_ns + phase_ns + number * turn.updating_ns;
            sleep_until(due);
            for updates in &mut all[turn.pair].0 {
                let begin = monotonic_ns();
                let states = reader.update();
                let cost_ns = monotonic_ns() - begin;
                let states = states?;
                sequence = in_order(sequence, reader.state())?;
                if number >= WARM_UP {
                    updates.push((cost_ns, states));
                }
                // Reads the clock and nothing else.
                while monotonic_ns() < due + AWAKE_NS {}
            }
        }
        if go_on().is_err() {
            break;
        }
    }
    Ok(all)
}

/// The sequence number of a state, which must not be older than the last one.
fn in_order(last: u64, state: &[u8]) -> Result<u64, ExperimentError> {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&state[..8]);
    let sequence = u64::from_le_bytes(bytes);
    if sequence < last {
        return Err(ExperimentError::Io {
            operation: "keep the states in order".to_owned(),
            source: ErrorKind::InvalidData.into(),
        });
    }
    Ok(sequence)
}

struct Tcp {
    stream: TcpStream,
    /// One holds the newest state, the other what has come of the next one.
    buffers: [[u8; STATE_BYTES]; 2],
    newest: usize,
    filled: usize,
}

impl Reader for Tcp {
    fn update(&mut self) -> Result<u32, ExperimentError> {
        let mut taken = 0;
        loop {
            match self
                .stream
                .read(&mut self.buffers[1 - self.newest][self.filled..])
            {
                Ok(0) => return Err(crate::echo::EchoError::Closed.into()),
                Ok(length) => self.filled += length,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(taken),
                Err(error) => return Err(ExperimentError::io("receive over TCP")(error)),
            }
            if self.filled == STATE_BYTES {
                (self.newest, self.filled, taken) = (1 - self.newest, 0, taken + 1);
            }
        }
    }

    fn state(&self) -> &[u8] {
        &self.buffers[self.newest]
    }
}

struct Queuing {
    port: QueuingPort,
    buffer: Vec<u8>,
}

impl Reader for Queuing {
    fn update(&mut self) -> Result<u32, ExperimentError> {
        let mut taken = 0;
        while self
            .port
            .receive(&mut self.buffer)
            .map_err(refused)?
            .is_some()
        {
            taken += 1;
        }
        Ok(taken)
    }

    fn state(&self) -> &[u8] {
        &self.buffer
    }
}

struct Sampling {
    port: SamplingPort,
    buffer: Vec<u8>,
}

impl Reader for Sampling {
    fn update(&mut self) -> Result<u32, ExperimentError> {
        let sample = self.port.read(&mut self.buffer).map_err(refused)?;
        let new = sample.filter(|sample| sample.new);
        Ok(new.map_or(0, |sample| sample.overwritten as u32 + 1))
    }

    fn state(&self) -> &[u8] {
        &self.buffer
    }
}

fn refused(error: tautline::ReceiveError) -> ExperimentError {
    ExperimentError::Io {
        operation: "receive on a port".to_owned(),
        source: std::io::Error::other(error),
    }
}

/// All that was measured.
struct Measured {
    plan: Plan,
    /// For each path, for each pair.
    found: Vec<Vec<Found>>,
}

impl Measured {
    fn tell(&self, outcome: &mut Outcome, path: usize) {
        outcome.rows = self.rows();
        outcome.table = self.table();
        outcome.plots = Moment::ALL
            .map(|moment| (&self.surfaces(moment)).into())
            .into();
        let name = PATHS[path];
        let spans = Moment::ALL.map(|moment| {
            let medians = self.medians(path, moment);
            (medians[0], medians[medians.len() - 1])
        });
        let [woken, awake] =
            spans.map(|(least, most)| format!("{} to {}", latency_text(least), latency_text(most)));
        let (few, many) = self.with_backlog(path);
        outcome.here = format!(
            "{name} {woken} straight from sleep (medians of the {} pairs; {} where one state had come, {} where {MANY_STATES} or more), {awake} when awake",
            self.plan.pairs(),
            latency_text(few),
            latency_text(many),
        );
        if path == 2 {
            let found = Moment::ALL.into_iter().zip(spans);
            outcome.checks = found
                .flat_map(|(moment, span)| sampling_checks(moment, span))
                .collect();
        } else {
            outcome.checks = vec![Check {
                target: format!("{name}: grows with the backlog"),
                found: format!("{} to {}", latency_text(few), latency_text(many)),
                met: many > few,
            }];
        }
    }

    /// Median costs of a path's pairs, rising.
    fn medians(&self, path: usize, moment: Moment) -> Vec<u64> {
        sorted(self.found[path].iter().map(|found| found.median(moment)))
    }

    /// Median costs straight from sleep of updates that found one state come, and of those that found many.
    fn with_backlog(&self, path: usize) -> (u64, u64) {
        let with = |wanted: fn(u32) -> bool| {
            let updates = self.found[path]
                .iter()
                .flat_map(|found| &found.0[Moment::Woken as usize]);
            let costs = updates
                .filter(|update| wanted(update.1))
                .map(|update| update.0);
            quantile(&sorted(costs), 0.5)
        };
        (
            with(|states| states == 1),
            with(|states| states >= MANY_STATES),
        )
    }

    fn rows(&self) -> Vec<Value> {
        let row = |path: usize, moment: Moment, pair: usize| {
            let found = &self.found[path][pair];
            let [sending_ns, updating_ns] = self.plan.pair(pair);
            let costs = found.costs(moment);
            let updates = &found.0[moment as usize];
            json!({
                "path": PATHS[path],
                "reader": moment.name(),
                "sending_period_ns": sending_ns,
                "updating_period_ns": updating_ns,
                "count": costs.len(),
                "min_ns": quantile(&costs, 0.0),
                "p50_ns": quantile(&costs, 0.5),
                "p99_ns": quantile(&costs, 0.99),
                "max_ns": quantile(&costs, 1.0),
                "states": updates.iter().map(|update| u64::from(update.1)).sum::<u64>(),
                "updates_with_news": updates.iter().filter(|update| update.1 > 0).count(),
                "costs_ns": updates.iter().map(|update| update.0).collect::<Vec<_>>(),
                "states_come": updates.iter().map(|update| update.1).collect::<Vec<_>>(),
            })
        };
        let mut rows = Vec::new();
        for path in 0..PATHS.len() {
            for moment in Moment::ALL {
                rows.extend((0..self.plan.pairs()).map(|pair| row(path, moment, pair)));
            }
        }
        rows
    }

    fn table(&self) -> (Vec<&'static str>, Vec<Vec<String>>) {
        let header = vec![
            "path, reader",
            "least median",
            "median pair",
            "greatest median",
            "greatest / least",
            "p50 with news",
            "p99 of all",
            "max of all",
            "updates",
        ];
        let mut cells = Vec::new();
        for (path, name) in PATHS.iter().enumerate() {
            for moment in Moment::ALL {
                let medians = self.medians(path, moment);
                let all = sorted(
                    self.found[path]
                        .iter()
                        .flat_map(|found| found.costs(moment)),
                );
                let news = sorted(
                    self.found[path]
                        .iter()
                        .flat_map(|found| found.costs_with_news(moment)),
                );
                let (least, most) = (medians[0], medians[medians.len() - 1]);
                cells.push(vec![
                    format!("{name}, {}", moment.name()),
                    latency_text(least),
                    latency_text(quantile(&medians, 0.5)),
                    latency_text(most),
                    super::ratio(most, least)
                        .map_or("–".to_owned(), |ratio| format!("{ratio:.2}")),
                    latency_text(quantile(&news, 0.5)),
                    latency_text(quantile(&all, 0.99)),
                    latency_text(quantile(&all, 1.0)),
                    all.len().to_string(),
                ]);
            }
        }
        (header, cells)
    }

    fn surfaces(&self, moment: Moment) -> Surfaces {
        let label = |ns: &u64| (ns / 1_000_000).to_string();
        let labels: Vec<String> = self.plan.periods.iter().map(label).collect();
        let count = labels.len();
        let surface = |path: usize| {
            let value = |sending: usize, updating: usize| {
                let found = &self.found[path][sending * count + updating];
                (!found.0[moment as usize].is_empty()).then(|| found.median(moment) as f64)
            };
            let row = |updating| (0..count).map(|sending| value(sending, updating)).collect();
            Surface {
                name: PATHS[path].to_owned(),
                rows_ns: (0..count).map(row).collect(),
            }
        };
        let when = match moment {
            Moment::Woken => "straight from sleep",
            Moment::Awake => "by a reader that is awake and has updated before",
        };
        Surfaces {
            caption: format!("What an update {when} cost, medians"),
            across: ("sent every, ms", labels.clone()),
            up: ("updated every, ms", labels),
            surfaces: (0..PATHS.len()).map(surface).collect(),
        }
    }
}

/// The targets of figure 6, held against the least and the greatest median.
fn sampling_checks(moment: Moment, (least, most): (u64, u64)) -> [Check; 2] {
    let spread = most as f64 / least.max(1) as f64;
    let reader = moment.name();
    [
        Check {
            target: format!(
                "sampling, reader {reader}: median of every pair at most {SAMPLING_P50_NS_MAX} ns"
            ),
            found: latency_text(most),
            met: most <= SAMPLING_P50_NS_MAX,
        },
        Check {
            target: format!(
                "sampling, reader {reader}: medians of all pairs within a factor {SAMPLING_SPREAD_MAX}"
            ),
            found: format!("{spread:.2}"),
            met: spread <= SAMPLING_SPREAD_MAX,
        },
    ]
}

impl Found {
    fn costs(&self, moment: Moment) -> Vec<u64> {
        sorted(self.0[moment as usize].iter().map(|update| update.0))
    }

    fn costs_with_news(&self, moment: Moment) -> Vec<u64> {
        let updates = self.0[moment as usize].iter();
        updates
            .filter(|update| update.1 > 0)
            .map(|update| update.0)
            .collect()
    }

    fn median(&self, moment: Moment) -> u64 {
        quantile(&self.costs(moment), 0.5)
    }
}

fn sorted(values: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut values: Vec<u64> = values.collect();
    values.sort_unstable();
    values
}

/// Of sorted values; 0 where there are none.
fn quantile(values: &[u64], share: f64) -> u64 {
    let last = values.len().saturating_sub(1);
    values
        .get((last as f64 * share).round() as usize)
        .copied()
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_timetable_has_every_pair_in_every_round_and_no_overlap() {
        let plan = Plan {
            periods: vec![1, 2, 3],
            rounds: 2,
            updates: 5,
        };
        let turns = plan.timetable(100);
        for round in turns.chunks(9) {
            let mut pairs: Vec<usize> = round.iter().map(|turn| turn.pair).collect();
            pairs.sort_unstable();
            assert_eq!(pairs, [0, 1, 2, 3, 4, 5, 6, 7, 8]);
        }
        assert!(turns.windows(2).all(|two| two[0].end_ns == two[1].start_ns));
        assert_eq!((turns.len(), turns[0].start_ns), (18, 100));
        assert_eq!(plan.pair(5), [2, 3]);
    }

    #[test]
    fn sends_keep_within_their_periods() {
        let shifts: Vec<u64> = (0..100).map(|number| shift_ns(number, 1_000)).collect();
        assert!(shifts.iter().all(|shift| *shift < 1_000));
        assert!(
            shifts
                .iter()
                .filter(|shift| **shift < 500)
                .count()
                .abs_diff(50)
                <= 2
        );
    }

    #[test]
    fn quantiles_of_few_values() {
        assert_eq!(quantile(&[], 0.5), 0);
        assert_eq!(quantile(&[7], 0.99), 7);
        assert_eq!(quantile(&[1, 2, 3, 4, 5], 0.5), 3);
        assert_eq!(quantile(&[1, 2, 3, 4, 5], 1.0), 5);
    }

    #[test]
    fn an_older_state_is_an_error() {
        let state = 5u64.to_le_bytes();
        assert_eq!(in_order(5, &state).unwrap(), 5);
        assert!(in_order(6, &state).is_err());
    }
}
