//! One case in a cell of network namespaces: other traffic held by a rule, real-time messages beside it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread::{self, Scope};
use std::time::Duration;

use tautline_proto::wire::MacAddress;
use tautline_report::LatencyHistogram;
use tautline_smoother::{Node, Setup, Smoother};
use tautline_testbed::hosts::cell::{Cell, INTERFACE, Kind, Port, PortCounts};
use tautline_testbed::sys::monotonic_ns;

use super::super::ExperimentError;
use super::traffic;

/// Real-time period and mean time between datagrams of others, in the paper: 4.85 and 30.32 Mbit/s in full frames.
const REAL_TIME_PERIOD_NS: u64 = 2_500_000;
const OTHER_PERIOD_NS: u64 = 400_000;
/// Senders and port that these are for.
const SENDERS: u64 = 3;
const RATE_BPS: u64 = 89_110_000;

/// Time between two points of the loss over time.
const STEP: Duration = Duration::from_millis(200);
/// Time that the last messages have to arrive.
const LAST: Duration = Duration::from_millis(200);

pub(super) const RELAXED: Ordering = Ordering::Relaxed;

/// Rule by which other traffic is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    Nothing,
    Credit,
    Grants,
    GrantsAndPriorities,
}

impl Rule {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Credit => "the paper's rule",
            Self::Grants => "grants",
            Self::GrantsAndPriorities => "grants, switch with priorities",
        }
    }

    pub(super) const fn grants(self) -> bool {
        matches!(self, Self::Grants | Self::GrantsAndPriorities)
    }
}

/// Other traffic of a sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Load {
    /// Datagrams at random times.
    Udp,
    /// As much as it may, always.
    Tcp { flows: usize },
    /// As much as it may, on and off for a tenth of a second.
    TcpOnOff,
}

impl Load {
    pub(super) fn name(self) -> String {
        match self {
            Self::Udp => "UDP".to_owned(),
            Self::Tcp { flows: 1 } => "TCP".to_owned(),
            Self::Tcp { flows } => format!("TCP, {flows} flows"),
            Self::TcpOnOff => "TCP on and off".to_owned(),
        }
    }
}

/// A case.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) senders: usize,
    pub(super) rate_bps: u64,
    pub(super) queue_frames: u32,
    /// Rate of the port as the receiver is told.
    pub(super) told_bps: u64,
    pub(super) rule: Rule,
    pub(super) load: Load,
    /// Time before anything is counted: grants begin, and rates settle.
    pub(super) warm: Duration,
    pub(super) time: Duration,
}

impl Case {
    /// The same load of all senders together, in proportion to the port.
    fn scaled(&self, period_ns: u64) -> u64 {
        let period_ns = u128::from(period_ns) * self.senders as u128 * u128::from(RATE_BPS);
        (period_ns / u128::from(SENDERS) / u128::from(self.rate_bps)) as u64
    }

    pub(super) fn real_time_period_ns(&self) -> u64 {
        self.scaled(REAL_TIME_PERIOD_NS)
    }

    pub(super) fn other_period_ns(&self) -> u64 {
        self.scaled(OTHER_PERIOD_NS)
    }
}

/// State that the threads of a run share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    pub(super) is_counting: AtomicBool,
    pub(super) stop: AtomicBool,
    pub(super) real_time_sent: AtomicU64,
    pub(super) real_time_received: AtomicU64,
    /// Losses of each sender that the receiver has seen as gaps of numbers, for the paper's rule.
    pub(super) gaps: [AtomicU64; 32],
    /// CPU time of all smoothers.
    control_cpu_ns: AtomicU64,
}

/// Result of a case.
pub(super) struct Row {
    pub(super) case: Case,
    pub(super) link: String,
    pub(super) real_time_sent: u64,
    pub(super) real_time_received: u64,
    /// Time from a sender's call to the receiver's return.
    pub(super) way: LatencyHistogram,
    pub(super) port: PortCounts,
    pub(super) seconds: f64,
    /// Other traffic of each sender, in Mbit/s.
    pub(super) of_senders: Vec<f64>,
    pub(super) jain: f64,
    /// Nanoseconds since the beginning, and per cent of the real-time frames since the last point.
    pub(super) lost_over_time: Vec<(f64, f64)>,
    /// Share of a CPU that a smoother takes, on average of all nodes.
    pub(super) control_cpu: f64,
}

fn share(part: u64, of: u64) -> f64 {
    part as f64 / of.max(1) as f64
}

impl Row {
    pub(super) fn real_time_lost(&self) -> f64 {
        let lost = self.real_time_sent.saturating_sub(self.real_time_received);
        share(lost, self.real_time_sent)
    }

    pub(super) fn real_time_lost_or_late(&self) -> f64 {
        self.real_time_lost() + share(self.port.of(Kind::RealTime).late, self.real_time_sent)
    }

    pub(super) fn other_lost(&self) -> f64 {
        let other = self.port.of(Kind::Other);
        share(other.dropped, other.frames)
    }

    pub(super) fn other_lost_or_late(&self) -> f64 {
        let other = self.port.of(Kind::Other);
        share(other.dropped + other.late, other.frames)
    }

    pub(super) fn mbit_per_s(&self, kind: Kind) -> f64 {
        self.port.of(kind).wire_bytes as f64 * 8.0 / 1e6 / self.seconds
    }

    /// Share of the port that real-time messages, grants and reports leave.
    pub(super) fn other_of_room(&self) -> f64 {
        let taken = self.mbit_per_s(Kind::RealTime) + self.mbit_per_s(Kind::Control);
        self.mbit_per_s(Kind::Other) / (self.case.rate_bps as f64 / 1e6 - taken)
    }
}

/// Ends the threads of a run, whatever happens.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, RELAXED);
    }
}

pub(super) fn run(case: Case) -> Result<Row, ExperimentError> {
    let cell = Cell::create(
        case.senders,
        &Port {
            rate_bps: case.rate_bps,
            queue_frames: case.queue_frames,
            priorities: case.rule == Rule::GrantsAndPriorities,
        },
    )?;
    let shared = Shared::default();
    thread::scope(|scope| {
        let _end = End(&shared.stop);
        let began_ns = monotonic_ns();
        if case.rule.grants() {
            smooth(scope, &cell, &case, &shared)?;
        }
        let traffic = traffic::start(scope, &cell, &case, &shared)?;
        thread::sleep(case.warm);
        let before = cell.port_counts()?;
        let begin_ns = monotonic_ns();
        shared.is_counting.store(true, RELAXED);
        let lost_over_time = watch(&cell, case.time, begin_ns)?;
        shared.is_counting.store(false, RELAXED);
        let port = cell.port_counts()?.since(&before);
        let seconds = (monotonic_ns() - begin_ns) as f64 / 1e9;
        thread::sleep(LAST);
        shared.stop.store(true, RELAXED);
        let (link, way) = traffic.end()?;
        let megabits = |bytes: u64| bytes as f64 * 8.0 / 1e6 / seconds;
        let of_senders: Vec<f64> = (0..cell.senders())
            .map(|node| megabits(port.other_bytes_of(cell.mac(node))))
            .collect();
        let smoothed_ns = (monotonic_ns() - began_ns) * (cell.senders() as u64 + 1);
        Ok(Row {
            link,
            real_time_sent: shared.real_time_sent.load(RELAXED),
            real_time_received: shared.real_time_received.load(RELAXED),
            way,
            seconds,
            jain: jain(&of_senders),
            of_senders,
            port,
            lost_over_time,
            control_cpu: share(shared.control_cpu_ns.load(RELAXED), smoothed_ns),
            case,
        })
    })
}

/// Waits, and looks at the port now and then.
fn watch(cell: &Cell, time: Duration, begin_ns: u64) -> Result<Vec<(f64, f64)>, ExperimentError> {
    let end_ns = begin_ns + time.as_nanos() as u64;
    let mut points = Vec::new();
    let mut last = cell.port_counts()?;
    while monotonic_ns() < end_ns {
        thread::sleep(STEP.min(Duration::from_nanos(end_ns.saturating_sub(monotonic_ns()))));
        let now = cell.port_counts()?;
        let real_time = now.since(&last).of(Kind::RealTime);
        let at_ns = (monotonic_ns() - begin_ns) as f64;
        let bad = share(real_time.dropped + real_time.late, real_time.frames);
        points.push((at_ns, 100.0 * bad));
        last = now;
    }
    Ok(points)
}

/// Jain's index of the senders' other traffic: 1 where all have the same.
fn jain(rates: &[f64]) -> f64 {
    let total: f64 = rates.iter().sum();
    let squares: f64 = rates.iter().map(|rate| rate * rate).sum();
    total * total / (squares * rates.len() as f64).max(f64::MIN_POSITIVE)
}

/// Smooths all nodes, and returns when all have begun.
fn smooth<'scope, 'env>(
    scope: &'scope Scope<'scope, 'env>,
    cell: &'env Cell,
    case: &Case,
    shared: &'env Shared,
) -> Result<(), ExperimentError> {
    let (tell, told) = mpsc::channel::<Result<(), String>>();
    for node in 0..=cell.receiver() {
        let others = match node == cell.receiver() {
            true => 0..cell.senders(),
            false => cell.receiver()..cell.receiver() + 1,
        };
        let nodes = others.map(|other| Node {
            name: format!("node{other}"),
            mac: MacAddress(cell.mac(other)),
            limit_bps: None,
        });
        let setup = Setup {
            interface: INTERFACE.to_owned(),
            capacity_bps: case.told_bps,
            nodes: nodes.collect(),
        };
        let tell = tell.clone();
        scope.spawn(move || {
            let begun = cell
                .enter(node)
                .map_err(|error| error.to_string())
                .and_then(|()| Smoother::begin(setup).map_err(|error| error.to_string()));
            match begun {
                Ok(mut smoother) => {
                    let _ = tell.send(Ok(()));
                    if let Err(error) = smoother.run(&shared.stop) {
                        eprintln!("a smoother ended: {error}");
                    }
                    let cpu_ns = smoother.cpu_time().as_nanos() as u64;
                    shared.control_cpu_ns.fetch_add(cpu_ns, RELAXED);
                }
                Err(error) => {
                    let _ = tell.send(Err(error));
                }
            }
        });
    }
    drop(tell);
    for result in told.iter().take(cell.receiver() + 1) {
        result.map_err(ExperimentError::Settings)?;
    }
    Ok(())
}
