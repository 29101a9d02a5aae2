//! A control loop that computes, while many small messages arrive for somebody else on its CPU: the first half of the
//! demo. The method is that of `computation`, with a deadline, and a flood of a fixed rate in
//! place of a stream that waits for its receiver.
//!
//! The kernel's paths have cables that no demux is attached to.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use serde::Serialize;
use tautline::cycle::CycleOptions;
use tautline::link::XdpMode;
use tautline::{Cycle, LinkKind};
use tautline_lab::tuning;
use tautline_report::LatencyHistogram;
use tautline_testbed::hosts::{Host, Hosts};
use tautline_testbed::sys::monotonic_ns;

use super::computation::{Matrices, calibrate};
use super::ends;
use super::side_cpus::{SideCpus, joined};
use super::{ExperimentError, go_on, receive};
use crate::path::nodes::NodePair;
use crate::path::{End, Sends, Waiting, sides};

/// Period of the loop, and the deadline of each cycle.
pub(crate) const PERIOD: Duration = Duration::from_millis(1);
/// Time that a cycle computes where nothing disturbs it. Less leaves room for the flood on every path; more leaves none
/// for the rest of the machine.
pub(crate) const WORK: Duration = Duration::from_micros(700);
/// Messages for somebody else: as many as the smallest frames that fill Ethernet of 100 Mbit/s, 672 bit times each.
pub(crate) const MESSAGES_PER_S: u64 = 148_810;
/// Bytes of such a message: it fits the smallest frame on every path.
pub(crate) const MESSAGE_BYTES: usize = 16;
/// Cables that [`run`] needs: Tautline's, the kernel's, and the kernel's with a poll of its own.
pub(crate) const CABLES: usize = sides::CABLES + 1;

/// Cycles of a turn. Fewer: starting the flood takes a larger share. More: a pause of the machine hits one path alone.
const TURN_CYCLES: u64 = 200;
/// Cycles at the start of a turn that are not counted: caches were the other paths' before.
const WARM_UP_CYCLES: u64 = 5;
/// Time from the start of a flood to the first cycle.
const LEAD: Duration = Duration::from_millis(10);
/// Longest sleep of the other one's receiver. Lower: it wakes for nothing. Higher: a turn ends later.
const RECEIVER_LOOK: Duration = Duration::from_millis(20);
/// Backlog above which the flood leaves messages out, so that a sender that was away does not send a burst.
const BEHIND_NS_MAX: u64 = 500_000;
/// Messages that the other one's port keeps: those of two milliseconds.
const DEPTH: u32 = 512;
const PORT: u16 = 7_400;

/// Messages that arrive beside the loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Beside {
    /// None.
    Nothing,
    /// Through a queuing port.
    Tautline,
    /// Through a socket of the kernel, processed in soft interrupts, as the kernel does by itself.
    KernelUdp,
    /// Through a socket of the kernel, processed in a thread of ordinary priority.
    KernelUdpInThread,
}

impl Beside {
    /// All of them, in the order of the table.
    pub const ALL: [Beside; 4] = [
        Beside::Tautline,
        Beside::KernelUdp,
        Beside::KernelUdpInThread,
        Beside::Nothing,
    ];

    /// For tables.
    pub fn text(self) -> &'static str {
        match self {
            Beside::Nothing => "no messages at all",
            Beside::Tautline => "Tautline",
            Beside::KernelUdp => "kernel UDP",
            Beside::KernelUdpInThread => "kernel UDP, poll in a thread",
        }
    }

    fn cable(self) -> usize {
        match self {
            Beside::Tautline => sides::DEMUX_CABLE,
            Beside::Nothing | Beside::KernelUdp => sides::KERNEL_CABLE,
            Beside::KernelUdpInThread => sides::CABLES,
        }
    }
}

/// Result beside one kind of messages.
#[derive(Clone, Debug)]
pub struct Row {
    /// The messages.
    pub beside: Beside,
    /// Cycles that were due.
    pub cycles: u64,
    /// Cycles whose computation was not done by the end of the period, or could not even begin in it.
    pub missed: u64,
    /// Messages that were sent to the other one.
    pub sent: u64,
    /// Messages that the other one has got.
    pub received: u64,
    /// Time that the floods of all turns took, in seconds.
    pub flood_seconds: f64,
    /// From the beginning of a period until the computation was done, of cycles that began.
    pub histogram: LatencyHistogram,
}

impl Row {
    /// Rate of the messages that were sent.
    pub fn sent_per_s(&self) -> u64 {
        (self.sent as f64 / self.flood_seconds.max(1e-9)) as u64
    }

    /// A row of so many cycles and messages in a second.
    #[cfg(test)]
    pub(crate) fn sample(beside: Beside, cycles: u64, sent: u64) -> Row {
        Row {
            cycles,
            sent,
            flood_seconds: 1.0,
            ..Row::new(beside)
        }
    }

    fn new(beside: Beside) -> Row {
        Row {
            beside,
            cycles: 0,
            missed: 0,
            sent: 0,
            received: 0,
            flood_seconds: 0.0,
            histogram: LatencyHistogram::new(),
        }
    }
}

/// Runs for about `time`; `progress` is told after each turn.
pub(crate) fn run(
    hosts: &Hosts,
    time: Duration,
    progress: &mut dyn FnMut(),
) -> Result<Vec<Row>, ExperimentError> {
    let place = SideCpus::choose()?;
    let nodes = NodePair::on_cable(
        hosts,
        Beside::Tautline.cable(),
        LinkKind::Xdp,
        Some(XdpMode::Native),
    )?;
    place_receiving(hosts, place)?;
    let mut paths = Vec::new();
    for beside in Beside::ALL {
        paths.push(open(hosts, &nodes, beside)?);
    }
    let _idle = tuning::hold_off_idle_states();
    let rounds = calibrate(WORK.as_nanos() as u64, place)?;
    let mut rows = Beside::ALL.map(Row::new);
    let turn = LEAD + PERIOD * (TURN_CYCLES + WARM_UP_CYCLES) as u32;
    let turns = (time.as_nanos() / (turn.as_nanos() * Beside::ALL.len() as u128)).max(1) as usize;
    for number in 0..turns {
        for step in 0..Beside::ALL.len() {
            // The order moves on, so that no path always follows the same other.
            let index = (step + number) % Beside::ALL.len();
            one_turn(&mut paths[index], place, rounds, &mut rows[index])?;
            go_on()?;
            progress();
        }
    }
    Ok(rows.into())
}

/// Puts the receive processing of all paths on the loop's CPU, as one network card's interrupt would.
fn place_receiving(hosts: &Hosts, place: SideCpus) -> Result<(), ExperimentError> {
    let cpu = place.receiver_cpu;
    receive::steered(hosts, Host::B, Beside::KernelUdp.cable(), cpu)?;
    receive::with_poll(hosts, Host::B, Beside::KernelUdpInThread.cable())?;
    for beside in [Beside::KernelUdpInThread, Beside::Tautline] {
        receive::in_thread(hosts, Host::B, beside.cable(), cpu, None)?;
    }
    Ok(())
}

type Path = Option<ends::Ends>;

fn open(hosts: &Hosts, nodes: &NodePair<'_>, beside: Beside) -> Result<Path, ExperimentError> {
    match beside {
        Beside::Nothing => Ok(None),
        Beside::Tautline => {
            let options = ends::port_options(Duration::ZERO, DEPTH);
            let ends = ends::queuing(nodes, 1, &options, Sends::OneByOne)?;
            Ok(Some(ends))
        }
        Beside::KernelUdp | Beside::KernelUdpInThread => {
            let how = (Sends::OneByOne, Waiting::Block);
            let ends = ends::kernel_udp(hosts, beside.cable(), PORT, how)?;
            Ok(Some(ends))
        }
    }
}

/// Starts the flood, runs the loop beside it, and ends the flood.
fn one_turn(
    path: &mut Path,
    place: SideCpus,
    rounds: u64,
    row: &mut Row,
) -> Result<(), ExperimentError> {
    let failed = |what: &'static str| ExperimentError::io::<io::Error>(what);
    let (sent_all, received_all) = (&AtomicBool::new(false), &AtomicBool::new(false));
    let received = &AtomicU64::new(0);
    thread::scope(|scope| {
        let began_ns = monotonic_ns();
        let threads = path.as_mut().map(|[sender, receiver]| {
            (
                scope.spawn(move || flood(sender.as_mut(), place.sender_cpu, sent_all)),
                scope.spawn(move || {
                    listen(
                        receiver.as_mut(),
                        place.receiver_cpu,
                        received,
                        received_all,
                    )
                }),
            )
        });
        thread::sleep(LEAD);
        let computed = joined(scope.spawn(|| compute(place, rounds)).join());
        sent_all.store(true, Ordering::Relaxed);
        if let Some((sender, receiver)) = threads {
            row.sent += joined(sender.join()).map_err(failed("send the messages"))?;
            row.flood_seconds += (monotonic_ns() - began_ns) as f64 / 1e9;
            received_all.store(true, Ordering::Relaxed);
            joined(receiver.join()).map_err(failed("receive the messages"))?;
            row.received += received.load(Ordering::Relaxed);
        }
        let computed = computed?;
        row.cycles += computed.cycles;
        row.missed += computed.missed;
        row.histogram.add(&computed.histogram);
        Ok(())
    })
}

/// Sends at a fixed rate until `stop` is set. A message that the path has no room for counts as sent and is lost.
fn flood(path: &mut dyn End, cpu: usize, stop: &AtomicBool) -> io::Result<u64> {
    const INTERVAL_NS: u64 = 1_000_000_000 / MESSAGES_PER_S;
    tautline_testbed::child::pin(cpu)?;
    let mut due_ns = monotonic_ns();
    let mut sent = 0;
    // Relaxed: the flag carries nothing else, and is seen at one of the next looks.
    while !stop.load(Ordering::Relaxed) {
        let now_ns = monotonic_ns();
        if now_ns < due_ns {
            std::hint::spin_loop();
            continue;
        }
        due_ns = due_ns.max(now_ns.saturating_sub(BEHIND_NS_MAX)) + INTERVAL_NS;
        let _lost = path.send(&[0x5a; MESSAGE_BYTES])?;
        sent += 1;
    }
    Ok(sent)
}

/// Receives as the other one, at ordinary priority on the loop's CPU, until `stop` is set and nothing comes any more.
fn listen(
    path: &mut dyn End,
    cpu: usize,
    received: &AtomicU64,
    stop: &AtomicBool,
) -> io::Result<()> {
    tautline_testbed::child::pin(cpu)?;
    loop {
        let came = path.wait_many(MESSAGE_BYTES, RECEIVER_LOOK)?;
        if came == 0 && stop.load(Ordering::Relaxed) {
            return Ok(());
        }
        received.fetch_add(came, Ordering::Relaxed);
    }
}

/// Cycles of a turn, as in [`Row`].
struct Computed {
    cycles: u64,
    missed: u64,
    histogram: LatencyHistogram,
}

/// The loop: computes in each period, and counts what was not done by its end.
fn compute(place: SideCpus, rounds: u64) -> Result<Computed, ExperimentError> {
    let mut options = CycleOptions::new(PERIOD).with_cpu(place.receiver_cpu);
    options.fifo_priority = place.fifo;
    let mut cycle = Cycle::start(&options).map_err(|error| ExperimentError::Io {
        operation: "start the loop".to_owned(),
        source: io::Error::other(error.to_string()),
    })?;
    let mut matrices = Matrices::new();
    let last = WARM_UP_CYCLES + TURN_CYCLES;
    let mut previous = WARM_UP_CYCLES;
    let mut computed = Computed {
        cycles: 0,
        missed: 0,
        histogram: LatencyHistogram::new(),
    };
    loop {
        let tick = cycle.wait();
        matrices.work(rounds);
        let done = tautline::now();
        // Periods in between could not begin.
        let skipped = (tick.number - 1).min(last).saturating_sub(previous);
        computed.cycles += skipped;
        computed.missed += skipped;
        if (WARM_UP_CYCLES + 1..=last).contains(&tick.number) {
            computed.cycles += 1;
            computed.missed += u64::from(done > tick.deadline);
            computed
                .histogram
                .record_duration(done.saturating_duration_since(tick.due));
        }
        previous = previous.max(tick.number);
        if previous >= last {
            return Ok(computed);
        }
    }
}
