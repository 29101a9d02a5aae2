//! Results of the demo, for a terminal, as JSON and as a page.

use serde_json::{Value, json};
use tautline_machine::Machine;
use tautline_report::Summary;
use tautline_report::page::{self, Level, Page};
use tautline_report::plot::{self, latency_text};
use tautline_report::reference::Reference;

use super::{Outcome, PERIOD, Row, Settings, Way};
use crate::experiment::somebody_else::{self, Beside, MESSAGE_BYTES, MESSAGES_PER_S};
use tautline_report::table::{self, Cell};

/// Definition of the measured time, word by word.
const MEASURED: &str = "A round trip begins when the motor has its state of this cycle in hand and is about to send it, \
     and ends when the motor has received the command that the controller computed from that state, or from a newer \
     one. The controller answers when the state reaches it. Late commands are counted with the time that they took.";

/// Definition of a missed deadline.
const DEADLINE: &str = "UDP and TCP are the kernel's. The deadline of a cycle is the end of its period, 1 ms after its beginning: missed is a cycle whose command \
     had not come by then, or that could not begin within its period.";

/// Description of the part with messages for somebody else.
const SOMEBODY_ELSE: &str = "A control loop wakes up every millisecond and computes for 0.7 ms, with real-time priority. \
     On the same CPU an ordinary process receives small messages, as many as the smallest frames that fill Ethernet of \
     100 Mbit/s (148,810 a second), or as many as the sender can send. The kernel processes them where a network card's \
     interrupt goes, on the loop's CPU: for kernel UDP in soft interrupts, as the kernel does by itself, which come before \
     every process; for Tautline in a thread of ordinary priority. The third path gives kernel UDP such a thread too. \
     Kernel UDP has cables of its own that no program of Tautline's is attached to. Missed is a cycle whose computation \
     was not done by the end of its millisecond.";

/// The verdict: how good it is, in one sentence, and its reasons. Never good on a busy machine.
pub fn verdict(outcome: &Outcome) -> (Level, String, Vec<String>) {
    let (mut level, mut answer, mut remarks) = verdict_of_the_loop(outcome);
    if let (Some(ours), Some(kernel), Some(quiet)) = (
        outcome.beside(Beside::Tautline),
        outcome.beside(Beside::KernelUdp),
        outcome.beside(Beside::Nothing),
    ) {
        remarks.insert(0, answer);
        (level, answer) = verdict_beside(ours, kernel, quiet);
    }
    if let Some(warning) = outcome.others.warning() {
        remarks.insert(0, warning);
        if level == Level::Good {
            level = Level::Limited;
        }
    }
    (level, answer, remarks)
}

/// The verdict on the loop that computes.
fn verdict_beside(
    ours: &somebody_else::Row,
    kernel: &somebody_else::Row,
    quiet: &somebody_else::Row,
) -> (Level, String) {
    let missed = |row: &somebody_else::Row| {
        format!("{} of {}", thousands(row.missed), thousands(row.cycles))
    };
    // One in ten: beyond that it is the machine that misses them, and not what arrives.
    if quiet.missed * 10 > quiet.cycles {
        let answer = format!(
            "This machine has no time for the control loop: it missed {} deadlines without any messages. What arrives \
             for somebody else makes no difference that could be told.",
            missed(quiet)
        );
        return (Level::Limited, answer);
    }
    let answer = format!(
        "While {} small messages a second came for somebody else, the control loop missed {} deadlines beside kernel \
         UDP, and {} beside Tautline ({} a second).",
        thousands(kernel.sent_per_s()),
        missed(kernel),
        missed(ours),
        thousands(ours.sent_per_s()),
    );
    // One in a hundred, beside what the quiet loop misses: below that, pauses of a shared machine decide.
    let held = ours.missed.saturating_sub(quiet.missed) * 100 <= ours.cycles;
    let clear = kernel.missed > 10 * ours.missed.max(1)
        && ours.sent_per_s() * 10 >= kernel.sent_per_s() * 9;
    let level = match (held, clear) {
        (true, true) => Level::Good,
        (false, false) => Level::Bad,
        _ => Level::Limited,
    };
    (level, answer)
}

/// A number in groups of three digits.
fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn verdict_of_the_loop(outcome: &Outcome) -> (Level, String, Vec<String>) {
    let ours = outcome.row(Way::Tautline);
    let reference = outcome.row(Way::UdpPoll);
    let (a, b) = (ours.histogram.summary(), reference.histogram.summary());
    let faster = a.count > 0 && a.p50_ns < b.p50_ns && a.p99_ns <= b.p99_ns;
    let missed_least = Way::ALL
        .iter()
        .all(|way| ours.missed <= outcome.row(*way).missed);
    // One in a thousand: below that, one pause of a shared machine decides.
    let held = ours.cycles > 0 && ours.missed * 1_000 <= ours.cycles;
    let level = match (faster, missed_least) {
        _ if is_unprivileged(outcome) => Level::Note,
        (true, true) if held => Level::Good,
        (false, false) => Level::Bad,
        _ => Level::Limited,
    };
    if a.count == 0 || b.count == 0 {
        let answer = format!(
            "No comparison: of {} cycles each, Tautline closed {} and busy-polled kernel UDP {}.",
            ours.cycles, a.count, b.count
        );
        return (Level::Limited, answer, remarks(outcome));
    }
    let answer = format!(
        "Tautline closed the loop in {} (p99 {}) and missed {} of {} deadlines, beside TCP at {:.2} Gbit/s; \
         busy-polled kernel UDP took {} (p99 {}) and missed {}.",
        latency_text(a.p50_ns),
        latency_text(a.p99_ns),
        ours.missed,
        ours.cycles,
        outcome.load.gbit_per_s,
        latency_text(b.p50_ns),
        latency_text(b.p99_ns),
        reference.missed,
    );
    (level, answer, remarks(outcome))
}

/// Whether Tautline had to do with ordinary sockets.
fn is_unprivileged(outcome: &Outcome) -> bool {
    outcome.link.link == tautline::LinkKind::Udp
}

/// Remarks that are needed to read the figures.
fn remarks(outcome: &Outcome) -> Vec<String> {
    let mut remarks = Vec::new();
    if is_unprivileged(outcome) {
        remarks.push(
            "Without privilege: Tautline ran on its udp link, ordinary sockets over loopback. This shows that it works, \
             not what it gains; run it as root for the xdp link between two hosts."
                .to_owned(),
        );
    } else {
        remarks.push(
            "The demux is attached to Tautline's cable only; kernel UDP, TCP and the load have one of their own. A \
             virtual cable has no rate: what the load takes is processor time, and that from all paths alike."
                .to_owned(),
        );
    }
    let settings = &outcome.settings;
    if settings.motor_cpu.is_some() && settings.motor_cpu == settings.controller_cpu {
        remarks.push(
            "Both sides of the loop share one CPU: one that spins keeps the other from answering. Ways that poll need \
             a machine with two CPUs."
                .to_owned(),
        );
    }
    if settings.load_shares_cpus {
        remarks.push("The TCP load shares the processors with both sides of the loop.".to_owned());
    }
    remarks
}

/// A remark on the machine, where its own pauses are to be expected.
fn virtual_remark(machine: &Machine) -> Option<&'static str> {
    (machine.is_virtual.known() != Some(&false)).then_some(
        "This is a virtual machine or may be one: its host adds pauses of its own, which fall on all ways alike. \
         Compare the ways with each other, not with other machines.",
    )
}

/// Settings that took effect, in a line or a few.
fn settings_text(settings: &Settings) -> String {
    let cpu = |cpu: Option<usize>| cpu.map_or("any".to_owned(), |cpu| cpu.to_string());
    format!(
        "{}; {:.1} s in turns of {} ms, {} for each way; state {} B, command {} B; \
         motor on CPU {}, controller on CPU {}, {}",
        settings.scene,
        settings.seconds,
        settings.slice_ms,
        settings.turns,
        settings.state_bytes,
        settings.command_bytes,
        cpu(settings.motor_cpu),
        cpu(settings.controller_cpu),
        settings.scheduling,
    )
}

/// For the terminal.
pub fn text(outcome: &Outcome, machine: &Machine) -> String {
    let mut lines = vec![
        machine.summary(),
        settings_text(&outcome.settings),
        outcome.link.to_string(),
        format!(
            "load: {} in writes of {} KiB, {}, {:.2} Gbit/s over {:.1} s",
            outcome.load.tool.text(),
            crate::load::CHUNK_BYTES / 1_024,
            outcome.settings.load_pace.text(),
            outcome.load.gbit_per_s,
            outcome.load.seconds
        ),
    ];
    if !outcome.beside.is_empty() {
        lines.push(format!(
            "\na loop that computes 0.7 ms of each, beside messages of {} B for somebody else, up to {} a second",
            MESSAGE_BYTES,
            thousands(MESSAGES_PER_S)
        ));
        let header = [
            "messages through",
            "missed 1 ms",
            "cycles",
            "p50",
            "p99",
            "p99.9",
            "max",
            "sent/s",
            "received",
        ];
        let rows = outcome.beside.iter().map(beside_row);
        lines.push(table::figures_in_one_unit(&header, rows));
        lines
            .push("a loop whose command comes from the other host, beside a TCP stream".to_owned());
    }
    let header = [
        "path",
        "p50 µs",
        "p99 µs",
        "p99.9 µs",
        "max µs",
        "missed 1 ms",
        "cycles",
        "never answered",
    ];
    lines.push(table::figures(&header, outcome.rows.iter().map(text_row)));
    let (_, answer, remarks) = verdict(outcome);
    lines.push(answer);
    lines.extend(remarks);
    lines.extend(virtual_remark(machine).map(str::to_owned));
    lines.join("\n") + "\n"
}

/// Cells of the table with messages for somebody else.
fn beside_row(row: &somebody_else::Row) -> Vec<Cell> {
    let mut cells: Vec<Cell> = vec![
        row.beside.text().into(),
        row.missed.to_string().into(),
        row.cycles.to_string().into(),
    ];
    cells.extend(figures(&row.histogram.summary()).map(time_cell));
    if row.sent == 0 {
        cells.extend([NONE.into(), NONE.into()]);
    } else {
        cells.push(thousands(row.sent_per_s()).into());
        let share = row.received as f64 * 100.0 / row.sent as f64;
        cells.push(format!("{share:.1} %").into());
    }
    cells
}

fn text_row(row: &Row) -> Vec<String> {
    let mut cells = vec![row.way.text().to_owned()];
    let figure = |ns: Option<u64>| ns.map_or_else(|| NONE.to_owned(), table::microseconds);
    cells.extend(figures(&row.histogram.summary()).map(figure));
    cells.extend([row.missed, row.cycles, row.lost].map(|count| count.to_string()));
    cells
}

/// In the place of a figure that there is not.
const NONE: &str = "–";

/// Percentiles and maximum; none of a histogram without a value.
fn figures(summary: &Summary) -> [Option<u64>; 4] {
    [
        summary.p50_ns,
        summary.p99_ns,
        summary.p999_ns,
        summary.max_ns,
    ]
    .map(|ns| (summary.count > 0).then_some(ns))
}

fn time_cell(ns: Option<u64>) -> Cell {
    ns.map_or_else(|| NONE.into(), Cell::Time)
}

/// The result file.
pub fn json(outcome: &Outcome, machine: &Machine) -> Value {
    let (_, answer, remarks) = verdict(outcome);
    json!({
        "machine": machine,
        "kernel": machine.kernel_release,
        "link": outcome.link,
        "settings": outcome.settings,
        "measured": MEASURED,
        "deadline": DEADLINE,
        "load": outcome.load,
        "rows": outcome.rows.iter().map(row_json).collect::<Vec<_>>(),
        "somebody_else": SOMEBODY_ELSE,
        "beside": outcome.beside.iter().map(beside_json).collect::<Vec<_>>(),
        "other_work": outcome.others,
        "verdict": answer,
        "remarks": remarks,
    })
}

fn row_json(row: &Row) -> Value {
    let mut json = serde_json::to_value(row.histogram.summary()).expect("a summary is plain data");
    json["path"] = row.way.name().into();
    json["cycles"] = row.cycles.into();
    json["missed"] = row.missed.into();
    json["lost"] = row.lost.into();
    json
}

fn beside_json(row: &somebody_else::Row) -> Value {
    let mut json = serde_json::to_value(row.histogram.summary()).expect("a summary is plain data");
    json["path"] = serde_json::to_value(row.beside).expect("a name is plain data");
    json["cycles"] = row.cycles.into();
    json["missed"] = row.missed.into();
    json["sent"] = row.sent.into();
    json["received"] = row.received.into();
    json["flood_seconds"] = row.flood_seconds.into();
    json
}

/// The page.
pub fn html(outcome: &Outcome, machine: &Machine) -> String {
    let mut page = Page::new(
        "A 1 kHz control loop beside other traffic",
        machine.summary(),
    );
    let (level, answer, mut remarks) = verdict(outcome);
    remarks.extend(virtual_remark(machine).map(str::to_owned));
    page.verdict(level, &answer, &remarks);
    let series: Vec<plot::Series<'_>> = outcome
        .rows
        .iter()
        .map(|row| plot::Series {
            name: row.way.text(),
            histogram: &row.histogram,
        })
        .collect();
    let deadline = [Reference::deadline(
        format!("deadline: {} ms", PERIOD.as_millis()),
        PERIOD.as_nanos() as f64,
    )];
    if !outcome.beside.is_empty() {
        let computing: Vec<plot::Series<'_>> = outcome
            .beside
            .iter()
            .map(|row| plot::Series {
                name: row.beside.text(),
                histogram: &row.histogram,
            })
            .collect();
        page.section(
            "A loop that computes, beside messages for somebody else",
            [
                page::paragraph(SOMEBODY_ELSE),
                beside_table(outcome).html(),
                plot::tails(
                    "How often the computation was done later",
                    &computing,
                    &deadline,
                ),
            ],
        );
    }
    page.section("A loop beside a TCP stream", [html_table(outcome).html()]);
    page.section(
        "Round trips",
        [
            plot::histograms("How long a round trip took", &series, &deadline),
            plot::tails("How often a round trip took longer", &series, &deadline),
        ],
    );
    page.section(
        "Measurement",
        [page::paragraph(MEASURED), page::paragraph(DEADLINE)],
    );
    page.section("Settings", [page::key_values(&setting_rows(outcome))]);
    page.section(
        "Machine",
        [page::folded(
            &machine.summary(),
            [page::key_values(&machine.rows())],
        )],
    );
    page.html()
}

fn beside_table(outcome: &Outcome) -> page::Table {
    let header = [
        "Messages through",
        "missed",
        "cycles",
        "p50",
        "p99",
        "p99.9",
        "max",
        "sent/s",
        "received",
    ];
    let rows = outcome.beside.iter();
    let rows = rows.map(|row| (row.beside == Beside::Tautline, beside_row(row)));
    let mut table = page::Table::in_one_unit(&header, rows);
    table.caption("Missed: not done within 1 ms; times from the beginning of a period");
    table
}

fn html_table(outcome: &Outcome) -> page::Table {
    let header = [
        "Path",
        "p50",
        "p99",
        "p99.9",
        "max",
        "missed",
        "cycles",
        "unanswered",
    ];
    let cells = |row: &Row| {
        let mut cells: Vec<Cell> = vec![row.way.text().into()];
        cells.extend(figures(&row.histogram.summary()).map(time_cell));
        cells.extend([row.missed, row.cycles, row.lost].map(|count| count.to_string().into()));
        cells
    };
    let rows = outcome.rows.iter();
    let rows = rows.map(|row| (row.way == Way::Tautline, cells(row)));
    let mut table = page::Table::in_one_unit(&header, rows);
    table.caption(format!("Missed: not back within {} ms", PERIOD.as_millis()));
    table
}

fn setting_rows(outcome: &Outcome) -> Vec<(&'static str, String)> {
    let settings = &outcome.settings;
    let mut link =
        outcome
            .link
            .to_string()
            .lines()
            .map(str::trim)
            .fold(String::new(), |mut text, line| {
                if !text.is_empty() {
                    text.push_str("; ");
                }
                text.push_str(line);
                text
            });
    link.push_str(&format!(
        "; arrival time by {}",
        serde_json::to_value(outcome.link.capabilities.arrival_clock)
            .ok()
            .and_then(|clock| clock.as_str().map(|text| text.replace('_', " ")))
            .unwrap_or_default()
    ));
    vec![
        ("Run", settings_text(settings)),
        ("Tautline", link),
        (
            "Load",
            format!(
                "{}, one TCP stream from the motor's side to the controller's in writes of {} KiB, {}: {:.2} Gbit/s over {:.1} s",
                outcome.load.tool.text(),
                crate::load::CHUNK_BYTES / 1_024,
                settings.load_pace.text(),
                outcome.load.gbit_per_s,
                outcome.load.seconds
            ),
        ),
        (
            "Waiting",
            format!(
                "Polling ways: the motor sleeps until its cycle begins and then looks for the command all the time; \
                 the controller looks from {} before a state is due. Blocking: the kernel wakes them.",
                latency_text(super::LOOK_AHEAD.as_nanos() as u64)
            ),
        ),
        (
            "Turns",
            format!(
                "The ways take turns of {} ms in changing order; the first {} cycles of each are not counted.",
                settings.slice_ms, settings.warm_up_cycles
            ),
        ),
        ("Clock", settings.clock.to_owned()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_never_answered_has_no_figures() {
        assert_eq!(figures(&Summary::default()), [None; 4]);
        let one = Summary {
            count: 1,
            ..Summary::default()
        };
        assert_eq!(figures(&one), [Some(0); 4]);
    }

    fn row(beside: Beside, missed: u64) -> somebody_else::Row {
        somebody_else::Row {
            missed,
            ..somebody_else::Row::sample(beside, 1_000, 148_810)
        }
    }

    fn level(ours: u64, kernel: u64, quiet: u64) -> (Level, String) {
        verdict_beside(
            &row(Beside::Tautline, ours),
            &row(Beside::KernelUdp, kernel),
            &row(Beside::Nothing, quiet),
        )
    }

    #[test]
    fn a_clear_difference_on_a_quiet_machine_is_good() {
        let (found, answer) = level(2, 990, 1);
        assert_eq!(found, Level::Good);
        assert!(
            answer.contains("missed 990 of 1,000 deadlines beside kernel"),
            "{answer}"
        );
        assert_eq!(level(2, 3, 1).0, Level::Limited);
        assert_eq!(level(900, 990, 1).0, Level::Bad);
    }

    #[test]
    fn a_machine_that_misses_without_messages_shows_nothing() {
        let (found, answer) = level(0, 990, 500);
        assert_eq!(found, Level::Limited);
        assert!(answer.contains("no time for the control loop"), "{answer}");
    }
}
