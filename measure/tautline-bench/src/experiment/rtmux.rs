//! The RTMux paper's interrupt latency: one program in three homes, and a process beside them, in virtual time. It
//! needs QEMU, clang and lld, Tautline's sources, and the first time the distribution's archive, but no privilege.

use std::time::Duration;

use serde_json::{Value, json};
use tautline_lab::load::Load;
use tautline_lab::measured::PAPER;
use tautline_report::bars::{Bar, Bars};
use tautline_report::plot::latency_text;
use tautline_report::table;
use tautline_testbed::interrupt;

use super::{
    Check, Experiment, ExperimentError, Figure, Outcome, Parameter, Progress, Request,
    count_guests, emblix, ratio,
};
use crate::rtmux::{Home, Measured, PHASES_MAX, Plan, Row, Series};

pub(super) const EXPERIMENT: Experiment = Experiment {
    figures: &FIGURES,
    parameters: &PARAMETERS,
    run,
};

const FIGURES: [Figure; 1] = [Figure {
    name: "rtmux-latency",
    source: "LOVER (RTMux), interrupt latency",
    title: "interrupt to handler and to program: alone, on its own CPU beside Linux, as a guest, as a process",
    found: "interrupt to handler mean 0.582 µs and at most 3.567 µs beside an idle Linux, 0.806 and 5.191 beside vision programs; Xenomai's task in the kernel 0.804 and 5.167, in user space 8.999 and 28.333",
}];

const EVENTS: &str = "events";
const PHASES: &str = "phases";

const PARAMETERS: [Parameter; 2] = [
    Parameter {
        name: EVENTS,
        meaning: "interrupts of each series, 100 µs apart; the paper has 100,000",
        range: (100, 1_000_000),
    },
    Parameter {
        name: PHASES,
        meaning: "starts of each machine with other phases between its timers, of which the worst counts",
        range: (1, PHASES_MAX as u64),
    },
];

/// Limits in a partition, loaded and idle, of the worst of all phases.
const PROCESS_MAX_NS: u64 = 35_000;
const HALTING_MAX_NS: u64 = 40_000;
const NEVER_HALTING_MAX_NS: u64 = 20_000;

/// On a processor of its own, the worst under load as a share of the idle one. It counts only beyond the most that the
/// turns of the two other CPUs can add, 2/3 of a turn.
const LOADED_MAX: f64 = 1.1;
const TURNS_SHARE: f64 = 0.7;

fn run(request: &Request, progress: &mut Progress<'_>) -> Result<Vec<Outcome>, ExperimentError> {
    let scale = request.scale;
    // Most of the emulator's time is the load.
    let idle = || vec![Load::Idle];
    let plan = Plan {
        events: request.values.or(EVENTS, scale.pick(5_000, 500, 100)),
        phases: request
            .values
            .or(PHASES, scale.pick(PHASES_MAX as u64, 1, 1)) as usize,
        turn: Duration::from_micros(scale.pick(1, 10, 10)),
        loads: scale.pick(vec![Load::Idle, Load::Combined], idle(), idle()),
        is_whole: scale.pick(true, true, false),
    };
    let stop = interrupt::flag();
    let tell = count_guests(progress, plan.guests());
    let measured = plan
        .run(&stop, &tell)
        .map_err(|error| emblix::ended(error, interrupt::interrupted()))?;
    super::go_on()?;
    match (measured.rows.is_empty(), measured.missing.first()) {
        (true, Some((_, reason))) => Err(ExperimentError::NoHome(reason.clone())),
        _ => Ok(vec![outcome(&plan, measured)]),
    }
}

fn outcome(plan: &Plan, measured: Measured) -> Outcome {
    let rows = &measured.rows;
    let mut outcome = Outcome::of(&FIGURES[0]);
    outcome.set("events_of_each_series", plan.events);
    outcome.set("phases", plan.phases);
    outcome.set("period_ns", 100_000);
    outcome.set(
        "turn_of_each_of_several_cpus_ns",
        plan.turn.as_nanos() as u64,
    );
    outcome.set("clock", "virtual: one nanosecond an instruction");
    let active = homes(rows)
        .into_iter()
        .map(|home| (home.name().to_owned(), active(home).to_owned()));
    outcome.active = active.collect();
    outcome.rows = rows.iter().map(row_json).collect();
    let heading = [
        "home, kernel, load, waiting",
        "handler mean µs",
        "max µs",
        "program mean µs",
        "max µs",
        "left out",
    ];
    outcome.table = (
        heading.map(str::to_owned).into(),
        rows.iter().map(cells).collect(),
    );
    outcome.plots = vec![(&bars(rows)).into()];
    outcome.here = here(rows);
    outcome.checks = checks(plan, rows);
    outcome.remarks = vec![
        format!("Means are those of the worst phase, maxima the worst of all phases ({}).", plan.phases),
        "Virtual time counts instructions and knows nothing of caches, memory and devices: homes, kernels and loads compare with each other, not with the paper's board.".to_owned(),
        format!("Several CPUs share the virtual time in turns of {} µs. What happens on one of them waits for the others' turns.", plan.turn.as_micros()),
        "A machine that has run with the same orders before comes from the lab's cache: the same figures to the digit.".to_owned(),
    ];
    let missing = measured.missing.iter();
    let missing = missing.map(|(home, reason)| format!("Not measured: {home}: {reason}"));
    outcome.remarks.extend(missing);
    outcome.checks.push(Check {
        target: "every home was measured".to_owned(),
        found: match &measured.missing[..] {
            [] => "all".to_owned(),
            missing => format!(
                "not {}",
                missing
                    .iter()
                    .map(|(home, _)| *home)
                    .collect::<Vec<_>>()
                    .join(", ")
            ),
        },
        met: measured.missing.is_empty(),
    });
    outcome
}

/// Homes of the rows, which stand in their order.
fn homes(rows: &[Row]) -> Vec<Home> {
    let mut homes: Vec<Home> = rows.iter().map(|row| row.home).collect();
    homes.dedup();
    homes
}

/// Processor, kernel and priority of a home.
fn active(home: Home) -> &'static str {
    match home {
        Home::Alone => "QEMU virt, cortex-a72, one CPU, no Linux",
        Home::Beside => "QEMU virt, cortex-a72, the last of three CPUs, which Linux does not have",
        Home::Guest => "taut guest run on KVM (AMD-V emulated), two CPUs, SCHED_FIFO 40",
        Home::GuestInPartition => {
            "taut guest run on KVM (AMD-V emulated) in a partition of one of two CPUs"
        }
        Home::Process => "taut lab interrupt, two CPUs, SCHED_FIFO",
        Home::ProcessInPartition => "taut lab interrupt in a partition of one of two CPUs",
    }
}

fn row_json(row: &Row) -> Value {
    let phases = row.phases.iter().map(|series| {
        json!({
            "left_out": series.left_out,
            "handler": {"count": series.handler.events, "mean_ns": series.handler.mean_ns, "max_ns": series.handler.max_ns},
            "program": {"count": series.program.events, "mean_ns": series.program.mean_ns, "max_ns": series.program.max_ns},
        })
    });
    json!({
        "path": row.home.name(),
        "kernel": row.kernel,
        "load": row.load,
        "waits": row.waits(),
        "handler_max_ns": row.worst(|series| series.handler.max_ns),
        "program_max_ns": row.worst(|series| series.program.max_ns),
        "left_out_max": row.worst(|series| series.left_out),
        "phases": Value::from_iter(phases),
    })
}

/// Home, kernel, load and way of waiting.
fn name(row: &Row) -> String {
    let words = [row.home.name(), row.kernel, &row.load, row.waits()];
    let words: Vec<&str> = words.into_iter().filter(|word| !word.is_empty()).collect();
    words.join(", ")
}

fn cells(row: &Row) -> Vec<String> {
    let figures: [fn(&Series) -> u64; 4] = [
        |series| series.handler.mean_ns,
        |series| series.handler.max_ns,
        |series| series.program.mean_ns,
        |series| series.program.max_ns,
    ];
    let mut cells = vec![name(row)];
    cells.extend(figures.map(|of| format!("{:.3}", row.worst(of) as f64 / 1e3)));
    cells.push(row.worst(|series| series.left_out).to_string());
    cells
}

/// The worst handler of each row, below the paper's.
fn bars(rows: &[Row]) -> Bars {
    let of_paper = PAPER.iter().map(|line| Bar {
        name: format!("the paper, a board: {}", line.what),
        parts_ns: vec![line.max_ns as f64],
    });
    let here = rows.iter().map(|row| Bar {
        name: name(row),
        parts_ns: vec![row.worst(|series| series.handler.max_ns) as f64],
    });
    Bars {
        caption: "From the interrupt to its handler, at worst".to_owned(),
        parts: vec!["timer to handler".to_owned()],
        bars: of_paper.chain(here).collect(),
    }
}

fn here(rows: &[Row]) -> String {
    let texts = homes(rows).into_iter().map(|home| {
        let worst = worst_of(rows, |row| row.home == home, |series| series.handler.max_ns);
        format!("{} at most {}", home.name(), latency_text(worst))
    });
    texts.collect::<Vec<_>>().join(", ")
}

fn worst_of(rows: &[Row], wanted: impl Fn(&&Row) -> bool, of: fn(&Series) -> u64) -> u64 {
    let rows = rows.iter().filter(wanted);
    rows.map(|row| row.worst(of)).max().unwrap_or(0)
}

fn checks(plan: &Plan, rows: &[Row]) -> Vec<Check> {
    let turns_ns = (plan.turn.as_nanos() as f64 * TURNS_SHARE) as u64;
    let mut checks = Vec::new();
    let mut limit =
        |what: &str, wanted: fn(&&Row) -> bool, of: fn(&Series) -> u64, limit_ns: u64| {
            if rows.iter().any(|row| wanted(&row)) {
                let worst = worst_of(rows, wanted, of);
                checks.push(Check {
                    target: format!(
                        "{what} in at most {}",
                        table::microseconds(limit_ns) + " µs"
                    ),
                    found: latency_text(worst),
                    met: worst <= limit_ns,
                });
            }
        };
    limit(
        "a process in a partition",
        |row| row.home == Home::ProcessInPartition,
        |series| series.program.max_ns,
        PROCESS_MAX_NS,
    );
    limit(
        "the handler of a guest that halts, in a partition,",
        |row| row.home == Home::GuestInPartition && row.waits() == "halting",
        |series| series.handler.max_ns,
        HALTING_MAX_NS,
    );
    limit(
        "the handler of a guest that never halts, in a partition,",
        |row| row.home == Home::GuestInPartition && row.waits() == "never halting",
        |series| series.handler.max_ns,
        NEVER_HALTING_MAX_NS,
    );
    for kernel in ["generic", "PREEMPT_RT"] {
        checks.extend(undisturbed(rows, kernel, turns_ns));
    }
    checks
}

/// Whether a program on its own CPU feels no load; nothing where it was not measured with and without one.
fn undisturbed(rows: &[Row], kernel: &str, turns_ns: u64) -> Option<Check> {
    let under = |load: Load| {
        let wanted = |row: &&Row| {
            row.home == Home::Beside && row.kernel == kernel && row.load == load.name()
        };
        rows.iter()
            .any(|row| wanted(&row))
            .then(|| worst_of(rows, wanted, |series| series.handler.max_ns))
    };
    let (idle, loaded) = (under(Load::Idle)?, under(Load::Combined)?);
    let share = ratio(loaded, idle)?;
    Some(Check {
        target: format!(
            "on its own CPU beside {kernel}, loaded at most {LOADED_MAX} of idle, or within the turns ({turns_ns} ns)"
        ),
        found: format!(
            "{share:.2}: {} of {}",
            latency_text(loaded),
            latency_text(idle)
        ),
        met: share <= LOADED_MAX || loaded <= turns_ns,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rtmux::Latency;

    fn row(home: Home, load: &str, waits: &str, max_ns: u64) -> Row {
        let latency = Latency {
            events: 100,
            mean_ns: max_ns / 2,
            max_ns,
        };
        let series = Series {
            waits: waits.to_owned(),
            left_out: 0,
            handler: latency,
            program: latency,
        };
        Row {
            home,
            kernel: "generic",
            load: load.to_owned(),
            phases: vec![series],
        }
    }

    fn plan() -> Plan {
        Plan {
            events: 100,
            phases: 1,
            turn: Duration::from_micros(1),
            loads: vec![Load::Idle],
            is_whole: false,
        }
    }

    #[test]
    fn limits_are_those_of_the_worst_row() {
        let rows = [
            row(Home::Beside, "idle", "halting", 6),
            row(Home::Beside, "combined", "halting", 22),
            row(Home::GuestInPartition, "idle", "halting", 26_000),
            row(Home::GuestInPartition, "combined", "never halting", 20_001),
            row(Home::GuestInPartition, "idle", "never halting", 10),
            row(Home::Process, "combined", "sleeping", 300_000),
            row(Home::ProcessInPartition, "combined", "sleeping", 35_000),
        ];
        let met: Vec<bool> = checks(&plan(), &rows)
            .iter()
            .map(|check| check.met)
            .collect();
        assert_eq!(met, [true, true, false, true]);
        let over = [
            row(Home::Beside, "idle", "halting", 600),
            row(Home::Beside, "combined", "halting", 701),
        ];
        assert!(!checks(&plan(), &over)[0].met);
        assert!(checks(&plan(), &over[..1]).is_empty());
    }

    #[test]
    fn homes_that_are_missing_are_named_with_the_reason() {
        let measured = Measured {
            rows: vec![row(Home::Process, "idle", "sleeping", 20_000)],
            missing: vec![("alone", "no clang".to_owned())],
        };
        let outcome = outcome(&plan(), measured);
        assert!(
            outcome
                .remarks
                .iter()
                .any(|text| text == "Not measured: alone: no clang")
        );
        let last = outcome.checks.last().unwrap();
        assert!(!last.met && last.found == "not alone");
        assert_eq!(outcome.rows[0]["handler_max_ns"], 20_000);
        assert_eq!(outcome.here, "process at most 20.0 µs");
    }
}
