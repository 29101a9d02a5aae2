//! RTDiP, figure 3: the run time of a computation of real-time priority while a process of low priority receives a
//! stream on the same CPU. What runs on that CPU besides is the receive processing: for the kernel's paths as the
//! kernel does it, in soft interrupts, which come before every process; for Tautline in a thread below the
//! computation.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::Value;
use tautline::LinkKind;
use tautline::link::XdpMode;
use tautline_lab::tuning;
use tautline_report::LatencyHistogram;
use tautline_report::chart::{Axis, Chart, Line, Mark, Unit};
use tautline_report::plot;
use tautline_report::reference::Reference;
use tautline_report::table::{Cell, in_one_unit};
use tautline_testbed::hosts::{Host, Hosts, HostsOptions};
use tautline_testbed::sys::{monotonic_ns, sleep_until};

use super::side_cpus::{SideCpus, joined, settle};
use super::stream::{Ends, StreamEnd, Usage, over_ports, over_tcp, over_udp};
use super::{
    Check, Experiment, ExperimentError, Figure, Outcome, Progress, Request, Scale, go_on, receive,
};
use crate::path::Sends;
use crate::path::nodes::NodePair;

pub(super) const EXPERIMENT: Experiment = Experiment {
    figures: &FIGURES,
    parameters: &[],
    run,
};

const FIGURES: [Figure; 1] = [Figure {
    name: "rtdip-fig3",
    source: "RTDiP, figure 3",
    title: "run time of a real-time computation while a low-priority process receives a stream",
    found: "TCP/IP lengthens the computation by up to 51 %, RTDiP leaves it almost constant",
}];

/// Messages under way at most, on the paths whose window is ours. A virtual cable holds 256 frames; more would be
/// dropped while its poll waits for the CPU.
const WINDOW: u64 = 128;
/// TCP as the paper's receiver uses it.
const TCP: Usage = Usage {
    merges: false,
    reads_many: false,
};
/// Bytes of a message of the stream, as in the paper.
const MESSAGE_BYTES: usize = 1024;
/// Limit of p99.9 / min beside Tautline's stream, as a multiple of that of the quiet run.
const TAUTLINE_SPREAD_MAX: f64 = 1.10;
/// By how much the kernel's paths must be above Tautline to be clearly so.
const CLEAR_MARGIN: f64 = 1.10;
/// From the start of a stream until it is measured beside.
const LEAD_NS: u64 = 50_000_000;

/// Stream that runs beside the computation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beside {
    Nothing,
    Tcp,
    Udp,
    UdpInThread,
    Tautline,
}

impl Beside {
    const ALL: [Beside; 5] = [
        Beside::Nothing,
        Beside::Tcp,
        Beside::Udp,
        Beside::UdpInThread,
        Beside::Tautline,
    ];

    fn name(self) -> &'static str {
        match self {
            Beside::Nothing => "quiet",
            Beside::Tcp => "tcp",
            Beside::Udp => "udp",
            Beside::UdpInThread => "udp-thread",
            Beside::Tautline => "tautline",
        }
    }

    fn cable(self) -> usize {
        match self {
            Beside::Nothing | Beside::Tcp | Beside::Udp => 0,
            Beside::UdpInThread => 1,
            Beside::Tautline => 2,
        }
    }
}

/// How much is measured.
#[derive(Clone, Copy, Debug)]
struct Plan {
    period_ns: u64,
    work_ns: u64,
    computations: u64,
    turns: u64,
}

impl Plan {
    fn of(scale: Scale) -> Plan {
        Plan {
            period_ns: scale.pick(20_000_000, 5_000_000, 2_000_000),
            work_ns: scale.pick(2_000_000, 500_000, 200_000),
            computations: scale.pick(50, 100, 5),
            turns: scale.pick(40, 20, 1),
        }
    }
}

/// One computation.
#[derive(Clone, Copy, Debug)]
struct Sample {
    turn: u64,
    due_ns: u64,
    begin_ns: u64,
    end_ns: u64,
}

/// Results beside one stream.
#[derive(Clone, Debug, Default)]
struct StreamSamples {
    samples: Vec<Sample>,
    messages: u64,
    lost: u64,
    measured_ns: u64,
}

fn run(request: &Request, progress: &mut Progress<'_>) -> Result<Vec<Outcome>, ExperimentError> {
    let place = SideCpus::choose()?;
    let plan = Plan::of(request.scale);
    let hosts = Hosts::create(&HostsOptions {
        cable_count: 3,
        ..HostsOptions::default()
    })?;
    let nodes = NodePair::on_cable(
        &hosts,
        Beside::Tautline.cable(),
        LinkKind::Xdp,
        Some(XdpMode::Native),
    )?;
    let processing = place_receiving(&hosts, place)?;
    let mut streams = open(&hosts, &nodes)?;
    let _idle = tuning::hold_off_idle_states();
    let rounds = calibrate(plan.work_ns, place)?;
    let mut found: Vec<StreamSamples> = Beside::ALL.map(|_| StreamSamples::default()).into();
    let total = plan.turns * Beside::ALL.len() as u64;
    for turn in 0..plan.turns {
        for step in 0..Beside::ALL.len() {
            let index = (step + turn as usize) % Beside::ALL.len();
            progress(turn * Beside::ALL.len() as u64 + step as u64, total);
            let computation = Computation { plan, rounds, turn };
            one_turn(
                &computation,
                streams[index].as_mut(),
                place,
                &mut found[index],
            )?;
            go_on()?;
        }
    }
    progress(total, total);
    let mut outcome = Outcome::of(&FIGURES[0]);
    settings(&mut outcome, &plan, rounds, place);
    outcome.active = active(&nodes, &processing, place);
    tell(&mut outcome, &plan, &found);
    Ok(vec![outcome])
}

/// Puts the receive processing of all streams on the computation's CPU; says how that of the two threads is done.
fn place_receiving(hosts: &Hosts, place: SideCpus) -> Result<[String; 2], ExperimentError> {
    let cpu = place.receiver_cpu;
    receive::steered(hosts, Host::B, Beside::Udp.cable(), cpu)?;
    receive::with_poll(hosts, Host::B, Beside::UdpInThread.cable())?;
    Ok([
        receive::in_thread(hosts, Host::B, Beside::UdpInThread.cable(), cpu, None)?,
        receive::in_thread(hosts, Host::B, Beside::Tautline.cable(), cpu, None)?,
    ])
}

fn open(hosts: &Hosts, nodes: &NodePair<'_>) -> Result<Vec<Option<Ends>>, ExperimentError> {
    const PORT: u16 = 7400;
    Beside::ALL
        .iter()
        .map(|beside| {
            let cable = beside.cable();
            Ok(match beside {
                Beside::Nothing => None,
                Beside::Tcp => Some(over_tcp(hosts, cable, PORT, TCP)?),
                Beside::Udp | Beside::UdpInThread => Some(over_udp(hosts, cable, PORT, WINDOW)?),
                Beside::Tautline => Some(over_ports(
                    nodes,
                    1,
                    WINDOW,
                    (Sends::OneByOne, Duration::ZERO),
                )?),
            })
        })
        .collect()
}

/// Computations in a row, each of the same work.
struct Computation {
    plan: Plan,
    rounds: u64,
    turn: u64,
}

/// One turn: starts the stream, lets it run, and computes beside it.
fn one_turn(
    computation: &Computation,
    stream: Option<&mut Ends>,
    place: SideCpus,
    found: &mut StreamSamples,
) -> Result<(), ExperimentError> {
    let received = &AtomicU64::new(0);
    let (sending, receiving) = (&AtomicBool::new(false), &AtomicBool::new(false));
    let failed = |what: &'static str| ExperimentError::io::<std::io::Error>(what);
    thread::scope(|scope| {
        let (sender, receiver) = match stream {
            Some((sender, receiver)) => (
                Some(scope.spawn(move || send(sender, place, sending))),
                Some(scope.spawn(move || listen(receiver, place, received, receiving))),
            ),
            None => (None, None),
        };
        let computed = joined(scope.spawn(|| compute(computation, place, received)).join());
        sending.store(true, Ordering::Relaxed);
        if let Some(sender) = sender {
            found.lost += joined(sender.join()).map_err(failed("send a stream"))?.lost;
        }
        receiving.store(true, Ordering::Relaxed);
        if let Some(receiver) = receiver {
            joined(receiver.join()).map_err(failed("receive a stream"))?;
        }
        let (samples, messages, measured_ns) = computed?;
        found.samples.extend(samples);
        found.messages += messages;
        found.measured_ns += measured_ns;
        Ok(())
    })
}

fn send(
    sender: &mut StreamEnd,
    place: SideCpus,
    stop: &AtomicBool,
) -> std::io::Result<super::window::Sent> {
    tautline_testbed::child::pin(place.sender_cpu)?;
    sender.send(&[0x5a; MESSAGE_BYTES], stop)
}

fn listen(
    receiver: &mut StreamEnd,
    place: SideCpus,
    received: &AtomicU64,
    stop: &AtomicBool,
) -> std::io::Result<()> {
    tautline_testbed::child::pin(place.receiver_cpu)?;
    receiver.receive(MESSAGE_BYTES, received, stop)
}

/// The samples of a turn, the messages that were received meanwhile, and how long that was.
type Computed = (Vec<Sample>, u64, u64);

fn compute(
    computation: &Computation,
    place: SideCpus,
    received: &AtomicU64,
) -> Result<Computed, ExperimentError> {
    settle(place.receiver_cpu, place.fifo)?;
    let Computation { plan, rounds, turn } = computation;
    let mut matrices = Matrices::new();
    let mut samples = Vec::with_capacity(plan.computations as usize);
    let first = monotonic_ns() + LEAD_NS;
    // One that is not counted brings code and data in.
    sleep_until(first - plan.period_ns);
    matrices.work(*rounds);
    let before = received.load(Ordering::Relaxed);
    for number in 0..plan.computations {
        let due_ns = first + number * plan.period_ns;
        sleep_until(due_ns);
        let begin_ns = monotonic_ns();
        matrices.work(*rounds);
        samples.push(Sample {
            turn: *turn,
            due_ns,
            begin_ns,
            end_ns: monotonic_ns(),
        });
    }
    let messages = received.load(Ordering::Relaxed) - before;
    Ok((samples, messages, monotonic_ns() - first))
}

/// Rounds of work that take about `work_ns` where nothing disturbs.
pub(super) fn calibrate(work_ns: u64, place: SideCpus) -> Result<u64, ExperimentError> {
    const TRIES: u32 = 50;
    const ROUNDS: u64 = 8;
    let measure = || {
        settle(place.receiver_cpu, place.fifo)?;
        let mut matrices = Matrices::new();
        let cost = |matrices: &mut Matrices| {
            let begin = monotonic_ns();
            matrices.work(ROUNDS);
            monotonic_ns() - begin
        };
        let least = (0..TRIES).map(|_| cost(&mut matrices)).min().unwrap_or(1);
        Ok((work_ns * ROUNDS / least.max(1)).max(1))
    };
    joined(thread::scope(|scope| scope.spawn(measure).join()))
}

/// Order of the matrices: three of them are 24 KiB, about what a first-level cache holds.
const ORDER: usize = 32;

/// The computation: products of matrices, each made of the last two.
pub(super) struct Matrices([Box<[[f64; ORDER]; ORDER]>; 3]);

impl Matrices {
    pub(super) fn new() -> Matrices {
        let filled = |seed: usize| {
            let mut matrix = Box::new([[0.0; ORDER]; ORDER]);
            for (index, cell) in matrix.as_flattened_mut().iter_mut().enumerate() {
                // Rows add up to about one, so that products neither grow nor vanish.
                *cell = ((index * 7 + seed * 13) % 31) as f64 / (15.0 * ORDER as f64);
            }
            matrix
        };
        Matrices([filled(1), filled(2), filled(3)])
    }

    pub(super) fn work(&mut self, rounds: u64) {
        for _ in 0..rounds {
            let [a, b, product] = &mut self.0;
            for row in 0..ORDER {
                for column in 0..ORDER {
                    product[row][column] = (0..ORDER).map(|k| a[row][k] * b[k][column]).sum();
                }
            }
            black_box(&product);
            self.0.rotate_left(1);
        }
    }
}

fn settings(outcome: &mut Outcome, plan: &Plan, rounds: u64, place: SideCpus) {
    outcome.set("period_ns", plan.period_ns);
    outcome.set("computations_of_each", plan.computations * plan.turns);
    outcome.set("turns_of_each", plan.turns);
    outcome.set("matrix_products_of_a_computation", rounds);
    outcome.set("message_bytes", MESSAGE_BYTES);
    outcome.set("window_messages", WINDOW);
    outcome.set("computing_and_receiving_cpu", place.receiver_cpu);
    outcome.set("sender_cpu", place.sender_cpu);
    outcome.set("scheduling_of_the_computation", place.scheduling());
    outcome.set("scheduling_of_the_receiver", "ordinary");
    outcome.set("clock", "CLOCK_MONOTONIC");
    outcome.set("link", "veth between two network namespaces, a cable each for kernel, kernel in a thread, and Tautline");
    outcome.set("offloads", "kernel default");
    outcome.remarks.push(
        "Run time is wall time from the computation's first instruction to its last: whatever takes the CPU away in between is in it. \
         Lateness of the wake-up is apart from it."
            .to_owned(),
    );
}

fn active(
    nodes: &NodePair<'_>,
    processing: &[String; 2],
    place: SideCpus,
) -> Vec<(String, String)> {
    let cpu = place.receiver_cpu;
    let row = |beside: Beside, text: String| (beside.name().to_owned(), text);
    vec![
        row(Beside::Nothing, "no stream".to_owned()),
        row(
            Beside::Tcp,
            format!("kernel TCP, blocking; soft interrupts on CPU {cpu} (RPS)"),
        ),
        row(
            Beside::Udp,
            format!("kernel UDP, blocking, window of {WINDOW}; soft interrupts on CPU {cpu} (RPS)"),
        ),
        row(
            Beside::UdpInThread,
            format!(
                "kernel UDP, blocking, window of {WINDOW}; {}",
                processing[0]
            ),
        ),
        row(
            Beside::Tautline,
            format!(
                "queuing port, blocking, window of {WINDOW}; {}; link {}",
                processing[1],
                nodes.describe()
            ),
        ),
    ]
}

/// The figures of what was found beside one stream.
struct Figures {
    run: LatencyHistogram,
    lateness: LatencyHistogram,
    /// By how much the time between two beginnings differs from the period.
    jitter: LatencyHistogram,
}

impl Figures {
    fn of(found: &StreamSamples, plan: &Plan) -> Figures {
        let [mut run, mut lateness, mut jitter] = [(); 3].map(|()| LatencyHistogram::new());
        for sample in &found.samples {
            run.record(sample.end_ns - sample.begin_ns);
            lateness.record(sample.begin_ns.saturating_sub(sample.due_ns));
        }
        for pair in found
            .samples
            .windows(2)
            .filter(|pair| pair[0].turn == pair[1].turn)
        {
            jitter.record((pair[1].begin_ns - pair[0].begin_ns).abs_diff(plan.period_ns));
        }
        Figures {
            run,
            lateness,
            jitter,
        }
    }

    /// p99.9 / min and max / min of the run time.
    fn spread(&self) -> (f64, f64) {
        let summary = self.run.summary();
        let least = summary.min_ns.max(1) as f64;
        (
            summary.p999_ns as f64 / least,
            summary.max_ns as f64 / least,
        )
    }
}

fn tell(outcome: &mut Outcome, plan: &Plan, found: &[StreamSamples]) {
    let figures: Vec<Figures> = found.iter().map(|one| Figures::of(one, plan)).collect();
    let all = || Beside::ALL.into_iter().zip(found).zip(&figures);
    outcome.rows = all()
        .map(|((beside, found), figures)| row(beside, found, figures))
        .collect();
    outcome.table = table(all());
    outcome.plots = vec![
        (&snapshot(plan, found)).into(),
        tails(&figures, &paper(found)),
    ];
    judge(outcome, &figures);
}

fn row(beside: Beside, found: &StreamSamples, figures: &Figures) -> Value {
    let (p999, max) = figures.spread();
    let mut row = serde_json::to_value(figures.run.summary()).expect("a summary is plain data");
    row["path"] = beside.name().into();
    row["p999_of_min"] = p999.into();
    row["max_of_min"] = max.into();
    row["lateness"] =
        serde_json::to_value(figures.lateness.summary()).expect("a summary is plain data");
    row["period_jitter"] =
        serde_json::to_value(figures.jitter.summary()).expect("a summary is plain data");
    row["messages"] = found.messages.into();
    row["messages_lost"] = found.lost.into();
    row["messages_per_s"] = per_second(found).into();
    row["run_times_ns"] = found
        .samples
        .iter()
        .map(|sample| sample.end_ns - sample.begin_ns)
        .collect();
    row["lateness_ns"] = found
        .samples
        .iter()
        .map(|sample| sample.begin_ns.saturating_sub(sample.due_ns))
        .collect();
    row
}

fn per_second(found: &StreamSamples) -> u64 {
    (found.messages as f64 / Duration::from_nanos(found.measured_ns.max(1)).as_secs_f64()) as u64
}

fn table<'a>(
    all: impl Iterator<Item = ((Beside, &'a StreamSamples), &'a Figures)>,
) -> (Vec<String>, Vec<Vec<String>>) {
    let header = [
        "beside",
        "run time: p50",
        "p99",
        "p99.9",
        "max",
        "min",
        "p99.9 / min",
        "max / min",
        "period jitter: p99",
        "max",
        "messages a second",
    ];
    let cells = all.map(|((beside, found), figures)| {
        let (run, jitter) = (figures.run.summary(), figures.jitter.summary());
        let (p999, max) = figures.spread();
        vec![
            beside.name().into(),
            Cell::Time(run.p50_ns),
            Cell::Time(run.p99_ns),
            Cell::Time(run.p999_ns),
            Cell::Time(run.max_ns),
            Cell::Time(run.min_ns),
            format!("{p999:.3}").into(),
            format!("{max:.3}").into(),
            Cell::Time(jitter.p99_ns),
            Cell::Time(jitter.max_ns),
            per_second(found).to_string().into(),
        ]
    });
    in_one_unit(&header, &cells.collect::<Vec<_>>())
}

/// The turn in the middle of the run, as the paper shows it.
fn snapshot(plan: &Plan, found: &[StreamSamples]) -> Chart {
    let middle = plan.turns / 2;
    let line = |(beside, found): (Beside, &StreamSamples)| {
        let samples: Vec<&Sample> = found
            .samples
            .iter()
            .filter(|sample| sample.turn == middle)
            .collect();
        let first = samples.first().map_or(0, |sample| sample.due_ns);
        let points = samples.iter().map(|sample| {
            (
                (sample.due_ns - first) as f64,
                (sample.end_ns - sample.begin_ns) as f64,
            )
        });
        Line::new(beside.name(), Mark::Line, points.collect())
    };
    Chart {
        caption: "Run time of each computation, one turn of each stream".to_owned(),
        across: Axis::linear("time", Unit::Time),
        up: Axis::linear("run time", Unit::Time),
        lines: Beside::ALL.into_iter().zip(found).map(line).collect(),
        references: paper(found),
    }
}

/// The paper's greatest run time beside TCP/IP: a ratio to its shortest, drawn from the shortest here.
fn paper(found: &[StreamSamples]) -> Vec<Reference> {
    let times = found.iter().flat_map(|one| &one.samples);
    let least = times.map(|sample| sample.end_ns - sample.begin_ns).min();
    let line = |ns| {
        Reference::paper(
            "the paper's greatest beside TCP/IP: 51 % above the shortest",
            ns as f64 * PAPER_RATIO,
        )
    };
    least.map(line).into_iter().collect()
}

/// Greatest run time beside TCP/IP in the paper, over the shortest.
const PAPER_RATIO: f64 = 1.51;

fn tails(figures: &[Figures], references: &[Reference]) -> super::Plot {
    let series: Vec<plot::Series<'_>> = Beside::ALL
        .into_iter()
        .zip(figures)
        .map(|(beside, figures)| plot::Series {
            name: beside.name(),
            histogram: &figures.run,
        })
        .collect();
    plot::tails("How often a computation took longer", &series, references).into()
}

fn judge(outcome: &mut Outcome, figures: &[Figures]) {
    let spread = |beside: Beside| figures[beside as usize].spread().0;
    let (quiet, ours) = (spread(Beside::Nothing), spread(Beside::Tautline));
    outcome.checks.push(Check {
        target: format!(
            "tautline: p99.9 / min at most {TAUTLINE_SPREAD_MAX} times that of the quiet run"
        ),
        found: format!("{ours:.3} against {quiet:.3}: {:.3}", ours / quiet),
        met: ours <= quiet * TAUTLINE_SPREAD_MAX,
    });
    for beside in [Beside::Tcp, Beside::Udp] {
        outcome.checks.push(Check {
            target: format!(
                "{}: p99.9 / min at least {CLEAR_MARGIN} times that of tautline",
                beside.name()
            ),
            found: format!(
                "{:.3} against {ours:.3}: {:.3}",
                spread(beside),
                spread(beside) / ours
            ),
            met: spread(beside) >= ours * CLEAR_MARGIN,
        });
    }
    let longer = |beside: Beside| (spread(beside) - 1.0) * 100.0;
    outcome.here = format!(
        "p99.9 above the least run time by {:.1} % quiet, {:.1} % beside TCP, {:.1} % beside UDP, {:.1} % beside UDP whose poll is in a thread, {:.1} % beside Tautline",
        longer(Beside::Nothing),
        longer(Beside::Tcp),
        longer(Beside::Udp),
        longer(Beside::UdpInThread),
        longer(Beside::Tautline),
    );
}
