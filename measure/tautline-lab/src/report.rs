//! Pages of results: one file, made of [`page`](tautline_report::page)'s blocks.

use crate::compare::{Comparison, UNKNOWN};
use crate::measured::PAPER;
use crate::result::{LabResult, ProbeKind, TimeBase};
use tautline_machine::verdict::State;
use tautline_machine::verdict::{Class, Outcome};
use tautline_report::histogram::LatencyHistogram;
use tautline_report::page::{Block, Level, Page, Table, folded, key_values, paragraph, verbatim};
use tautline_report::plot::{self, histograms, latency_text, tails};
use tautline_report::reference::Reference;
use tautline_report::table::{Cell, microseconds};
use tautline_report::timeline::{self, timeline};

/// The page of one or more results, each with its verdict; the plots show all of them.
pub fn page(title: &str, results: &[LabResult]) -> String {
    let subtitle = match results {
        [one] => format!("{}: {}", one.label, one.machine.summary()),
        many => format!("{} runs", many.len()),
    };
    let mut page = Page::new(title, subtitle);
    match results {
        [one] => add_verdicts(&mut page, one),
        many => add_verdict_table(&mut page, many),
    }
    add_plots(&mut page, results);
    page.section("Wake-ups", [figures_table(results).html()]);
    for result in results {
        add_details(&mut page, result, results.len() > 1);
    }
    page.html()
}

/// The page of comparisons: baseline, other, and what was found.
pub fn comparison_page(pairs: &[(&LabResult, &LabResult, Comparison)]) -> String {
    let count = match pairs.len() {
        1 => "one comparison".to_owned(),
        count => format!("{count} comparisons"),
    };
    let mut page = Page::new("taut lab compare", count);
    let mut all: Vec<LabResult> = Vec::new();
    for (baseline, other, comparison) in pairs {
        let (level, relation) = match (comparison.is_regression(), comparison.is_conclusive()) {
            (true, _) => (Level::Bad, "worse than"),
            (false, true) => (Level::Good, "no worse than"),
            _ => (Level::Limited, "not comparable with"),
        };
        let answer = format!("{}: {relation} {}", other.label, baseline.label);
        page.verdict(level, &answer, &comparison.remarks);
        for (result, role) in [(baseline, "before"), (other, "after")] {
            let mut named = (*result).clone();
            // Two runs of one name would be one line in the legend.
            if baseline.label == other.label {
                named.label = format!("{} ({role})", result.label);
            }
            if !all.contains(&named) {
                all.push(named);
            }
        }
    }
    add_plots(&mut page, &all);
    for (baseline, other, comparison) in pairs {
        let heading = format!("{} against {}", other.label, baseline.label);
        page.section(&heading, [difference_table(comparison).html()]);
    }
    page.section("Wake-ups", [figures_table(&all).html()]);
    page.html()
}

fn difference_table(comparison: &Comparison) -> Table {
    let mut table = Table::new([
        "Load and state",
        "Figure",
        "Before, µs",
        "After, µs",
        "Ratio",
        "Judgement",
    ]);
    table.caption("Figures with too few samples beyond them, and maxima on a real clock, are shown and not judged.");
    for difference in &comparison.differences {
        let judgement = match (difference.is_regression, difference.is_judged) {
            (true, _) => "worse",
            (false, true) => "no worse",
            _ => "not judged",
        };
        let cells = [
            format!("{}, {}", difference.load, state_name(difference.state)),
            difference.figure.to_owned(),
            difference
                .before_ns
                .map_or(UNKNOWN.to_owned(), microseconds),
            difference.after_ns.map_or(UNKNOWN.to_owned(), microseconds),
            difference.ratio_text(),
            judgement.to_owned(),
        ];
        if difference.is_regression {
            table.strong_row(cells)
        } else {
            table.row(cells)
        };
    }
    table
}

/// Name of a state.
pub fn state_name(state: State) -> &'static str {
    match state {
        State::Untouched => "untouched",
        State::Tuned => "tuned",
        State::Partition => "in a partition",
    }
}

/// Several results would fill the page with boxes: one row each.
fn add_verdict_table(page: &mut Page, results: &[LabResult]) {
    let mut table = Table::new(
        ["Run".to_owned(), "Worst, µs".to_owned()]
            .into_iter()
            .chain(Class::PAPER.map(|class| latency_text(class.deadline_ns())))
            .chain([
                "Wake-ups".to_owned(),
                "LinuxCNC grade".to_owned(),
                "About".to_owned(),
            ]),
    );
    table.caption("Whether the Emblix paper's three classes of deadlines were held. Held in N wake-ups bounds the share of late ones to 3/N, with 95 % confidence, under these loads, if each is late by itself.");
    for result in results {
        let verdicts = Class::PAPER.map(|class| result.judged(class));
        let all = result.wakeups(None, None);
        let mut row = vec![result.label.clone(), microseconds(all.summary().max_ns)];
        row.extend(verdicts.iter().map(|verdict| {
            match verdict.outcome() {
                Outcome::Held => "held",
                Outcome::Exceeded => "NOT held",
                Outcome::Inconclusive => "no verdict",
            }
            .to_owned()
        }));
        row.push(all.count().to_string());
        row.push(verdicts[0].linuxcnc_grade.clone());
        row.push(verdicts[0].subject.clone());
        table.row(row);
    }
    page.section("Verdicts", [table.html()]);
}

fn add_verdicts(page: &mut Page, result: &LabResult) {
    let verdicts = match &result.verdict {
        Some(verdict) => vec![verdict.clone()],
        None => Class::PAPER.map(|class| result.judged(class)).into(),
    };
    for verdict in verdicts {
        let level = match verdict.outcome() {
            Outcome::Held if verdict.about_hardware => Level::Good,
            Outcome::Held => Level::Note,
            Outcome::Exceeded => Level::Bad,
            Outcome::Inconclusive => Level::Limited,
        };
        let mut sentences = verdict.sentences();
        let headline = sentences.remove(0);
        // With the paper's three classes in a row the reasons stand below the last one only.
        let keep = if result.verdict.is_some() || verdict.class == Class::FastIo {
            sentences.len()
        } else {
            verdict.judgements.len()
        };
        page.verdict(level, &headline, &sentences[..keep.min(sentences.len())]);
    }
}

fn add_plots(page: &mut Page, results: &[LabResult]) {
    let mut named: Vec<(String, LatencyHistogram)> = Vec::new();
    for result in results {
        for (state, load) in conditions(result) {
            let histogram = result.wakeups(Some(state), Some(&load));
            if histogram.count() > 0 {
                named.push((condition_name(results, result, state, &load), histogram));
            }
        }
    }
    let series: Vec<plot::Series<'_>> = named
        .iter()
        .map(|(name, histogram)| plot::Series { name, histogram })
        .collect();
    let references = references(results);
    page.section(
        "Latencies",
        [
            histograms(
                "How often each latency occurred, all CPUs and probes together",
                &series,
                &references,
            ),
            tails(
                "How often a latency was exceeded; the end of a line is the worst case",
                &series,
                &references,
            ),
        ],
    );
    add_handlers(page, results);
    let lines: Vec<(String, Vec<tautline_report::timeline::Slice>)> = results
        .iter()
        .flat_map(|result| {
            result.phases.iter().filter_map(|phase| {
                let slices = worst_of_all(phase);
                (!slices.is_empty()).then(|| {
                    (
                        condition_name(results, result, phase.state, &phase.load),
                        slices,
                    )
                })
            })
        })
        .collect();
    let lines: Vec<timeline::Line<'_>> = lines
        .iter()
        .map(|(name, slices)| timeline::Line { name, slices })
        .collect();
    page.section(
        "Time line",
        [timeline(
            "When it was late: the worst wake-up of each slice of time",
            &lines,
            &references,
        )],
    );
}

/// Deadlines that the results are held against: those of their verdicts, otherwise the paper's three.
fn references(results: &[LabResult]) -> Vec<Reference> {
    let classes = results.iter().flat_map(|result| match &result.verdict {
        Some(verdict) => vec![verdict.class],
        None => Class::PAPER.into(),
    });
    let mut deadlines: Vec<u64> = classes.map(Class::deadline_ns).collect();
    deadlines.sort_unstable();
    deadlines.dedup();
    let line = |ns: u64| Reference::deadline(format!("deadline {}", latency_text(ns)), ns as f64);
    deadlines.into_iter().map(line).collect()
}

/// Plot of interrupt handlers beside the paper's figures, where they were measured.
fn add_handlers(page: &mut Page, results: &[LabResult]) {
    let handlers = results.iter().flat_map(|result| {
        let phases = result.phases.iter();
        phases.flat_map(move |phase| {
            let series = phase.series.iter();
            let handler = series.filter(|series| series.probe == ProbeKind::TimerHandler);
            handler.map(move |series| {
                let name = condition_name(results, result, phase.state, &phase.load);
                (name, series.histogram())
            })
        })
    });
    let handlers: Vec<(String, LatencyHistogram)> = handlers.collect();
    if handlers.is_empty() {
        return;
    }
    let series: Vec<plot::Series<'_>> = handlers
        .iter()
        .map(|(name, histogram)| plot::Series { name, histogram })
        .collect();
    let paper = PAPER.iter().map(|line| {
        let name = format!(
            "the paper: {}, {} at most",
            line.what,
            latency_text(line.max_ns)
        );
        Reference::paper(name, line.max_ns as f64)
    });
    let plot = tails(
        "How often the handler of the timer's interrupt began later",
        &series,
        &paper.collect::<Vec<_>>(),
    );
    page.section("Interrupt handlers", [plot]);
}

fn conditions(result: &LabResult) -> Vec<(State, String)> {
    let mut found: Vec<(State, String)> = Vec::new();
    for phase in &result.phases {
        if !found
            .iter()
            .any(|(state, load)| *state == phase.state && *load == phase.load)
        {
            found.push((phase.state, phase.load.clone()));
        }
    }
    found
}

fn condition_name(results: &[LabResult], result: &LabResult, state: State, load: &str) -> String {
    let mut parts = Vec::new();
    if results.len() > 1 {
        parts.push(result.label.clone());
    }
    parts.push(load.to_owned());
    if result
        .phases
        .iter()
        .any(|phase| phase.state != State::Untouched)
    {
        parts.push(state_name(state).to_owned());
    }
    parts.join(", ")
}

/// The slices of all wake-up probes of a phase laid over each other; they have the same edges.
fn worst_of_all(phase: &crate::result::Phase) -> Vec<tautline_report::timeline::Slice> {
    let mut worst = std::collections::BTreeMap::new();
    for slice in phase
        .series
        .iter()
        .filter(|series| series.probe.is_wakeup())
        .flat_map(|series| &series.timeline)
    {
        let entry = worst.entry(slice.start_ns).or_insert(0u64);
        *entry = slice.max_ns.max(*entry);
    }
    worst
        .into_iter()
        .map(|(start_ns, max_ns)| tautline_report::timeline::Slice { start_ns, max_ns })
        .collect()
}

fn figures_table(results: &[LabResult]) -> Table {
    let header = [
        "Run, load, probe",
        "Scheduling",
        "Samples",
        "Min",
        "p50",
        "p99",
        "p99.9",
        "Max",
        "Overruns",
        "Faults",
        "CPU",
    ];
    let mut rows: Vec<Vec<Cell>> = Vec::new();
    let caption = "Faults are the probe's own page faults while it measured, CPU is what the probe cost. A percentile of few samples is little more than the maximum.";
    for result in results {
        let all = result.phases.iter().flat_map(|phase| &phase.series);
        let of_interrupts = [ProbeKind::TimerHandler, ProbeKind::OtherCpu];
        let is_of_interrupts = all
            .map(|series| series.probe)
            .any(|probe| of_interrupts.contains(&probe));
        for phase in &result.phases {
            for series in &phase.series {
                let summary = &series.summary;
                let probe = match is_of_interrupts {
                    true => series.event_name(),
                    false => series.name(),
                };
                let name = condition_name(results, result, phase.state, &phase.load);
                let percentile = |quantile, ns| match series.knows(quantile) {
                    true => Cell::Time(ns),
                    false => UNKNOWN.into(),
                };
                rows.push(vec![
                    format!("{name}: {probe}").into(),
                    series.scheduling.clone().into(),
                    summary.count.to_string().into(),
                    Cell::Time(summary.min_ns),
                    percentile(0.5, summary.p50_ns),
                    percentile(0.99, summary.p99_ns),
                    percentile(0.999, summary.p999_ns),
                    Cell::Time(summary.max_ns),
                    series.overruns.to_string().into(),
                    series.page_faults.to_string().into(),
                    format!("{:.2} %", series.cpu_share * 100.0).into(),
                ]);
            }
        }
    }
    let mut table = Table::in_one_unit(&header, rows.into_iter().map(|row| (false, row)));
    table.caption(caption);
    table
}

fn add_details(page: &mut Page, result: &LabResult, named: bool) {
    let heading = |text: &str| {
        if named {
            format!("{text}: {}", result.label)
        } else {
            text.to_owned()
        }
    };
    if let Some(outlier) = &result.outlier {
        let late = latency_text(outlier.latency_ns);
        let sentence = format!(
            "{late} late on CPU {}. Likely: {}",
            outlier.cpu, outlier.culprit
        );
        let trace = folded(
            "The kernel's trace around it",
            [verbatim(&outlier.trace.join("\n"))],
        );
        page.section(&heading("The outlier"), [paragraph(&sentence), trace]);
    }
    if !result.agreements.is_empty() {
        page.section(
            &heading("Probe and cyclictest"),
            [agreement_table(result).html()],
        );
    }
    let loads = load_blocks(result);
    if !loads.is_empty() {
        page.section(&heading("Loads"), loads);
    }
    let honesty = honesty_blocks(result);
    if !honesty.is_empty() {
        page.section(&heading("What was changed, and what is missing"), honesty);
    }
    let mut machine = result.machine.rows();
    machine.push(("Measured by", result.tool.clone()));
    page.section(&heading("Machine"), [key_values(&machine)]);
}

fn agreement_table(result: &LabResult) -> Table {
    let mut table = Table::new([
        "Load",
        "Who",
        "Samples",
        "Average, µs",
        "Max, µs",
        "Max of even turns, µs",
        "Max of odd turns, µs",
        "To 10 % or 1 µs",
    ]);
    table.caption("Both measured at once. The turns of each one among themselves are the control: two cannot agree better than one with itself, and 'within control' are those no further apart.");
    for agreement in &result.agreements {
        let answer = agreement.answer().name();
        for (name, all, halves) in [
            (
                "probe",
                agreement.probe(),
                agreement.halves(|turn| turn.probe),
            ),
            (
                "cyclictest",
                agreement.cyclictest(),
                agreement.halves(|turn| turn.cyclictest),
            ),
        ] {
            table.row([
                agreement.load.clone(),
                name.to_owned(),
                all.count.to_string(),
                microseconds(all.mean_ns.round() as u64),
                microseconds(all.max_ns),
                microseconds(halves[0].max_ns),
                microseconds(halves[1].max_ns),
                answer.to_owned(),
            ]);
        }
    }
    table
}

fn load_blocks(result: &LabResult) -> Vec<Block> {
    let mut blocks = Vec::new();
    if result.phases.iter().any(|phase| !phase.achieved.is_empty()) {
        let mut table = Table::new(["Load", "Part", "With", "Achieved", "Shortfall"]);
        table.prose();
        for phase in &result.phases {
            for part in &phase.achieved {
                table.row([
                    format!("{}, {}", phase.load, state_name(phase.state)),
                    part.part.clone(),
                    part.tool.clone(),
                    format!("{:.1} {}", part.amount, part.unit),
                    part.problem.clone().unwrap_or_default(),
                ]);
            }
        }
        blocks.push(table.html());
    }
    let mut series = result.phases.iter().flat_map(|phase| &phase.series);
    if series.any(|series| series.probe == ProbeKind::Noise) {
        blocks.push(paragraph("The noise probe spins; its latencies are the gaps of a microsecond and more during which it did not run: interrupts, and what firmware or a hypervisor takes unseen."));
    }
    blocks
}

fn honesty_blocks(result: &LabResult) -> Vec<Block> {
    let mut blocks = Vec::new();
    if !result.changes.is_empty() {
        let mut table = Table::new(["Changed for the tuned state", "Before", "Tuned", "Put back"]);
        table.prose();
        for change in &result.changes {
            let restored = if change.restored { "yes" } else { "NO" };
            table.row([
                change.what.as_str(),
                &change.before,
                &change.after,
                restored,
            ]);
        }
        blocks.push(table.html());
    }
    if !result.missing.is_empty() {
        let mut table = Table::new(["Could not be had", "Why", "Remedy", "Weakens the verdict"]);
        table.prose();
        for missing in &result.missing {
            let weakens = if missing.weakens_verdict { "yes" } else { "no" };
            table.row([
                missing.what.as_str(),
                &missing.reason,
                &missing.remedy,
                weakens,
            ]);
        }
        blocks.push(table.html());
    }
    blocks.extend(result.notes.iter().map(|note| paragraph(note)));
    if result.time == TimeBase::Virtual {
        blocks.push(paragraph("Virtual time: one nanosecond an instruction. It tells kernels apart to the digit; it knows nothing of caches, memory, buses and devices and is no statement about hardware."));
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measured::{Achieved, Missing, Phase, Series, sleeper};
    use crate::trace::Outlier;
    use tautline_machine::Machine;
    use tautline_report::timeline::Slice;
    use tautline_state::journal::Change;

    fn result(label: &str, max_ns: u64) -> LabResult {
        let mut histogram = LatencyHistogram::new();
        histogram.record_many(5_000, 20_000);
        histogram.record(max_ns);
        let mut result = LabResult::new(label, TimeBase::Virtual, Machine::default());
        let series = Series {
            cpu: Some(1),
            timeline: vec![Slice {
                start_ns: 0,
                max_ns,
            }],
            ..sleeper(&histogram)
        };
        result.phases.push(Phase {
            achieved: vec![Achieved {
                part: "disk".to_owned(),
                tool: "built-in".to_owned(),
                amount: 12.34,
                unit: "MiB/s".to_owned(),
                problem: Some("disk full".to_owned()),
            }],
            ..Phase::new(State::Untouched, "combined", 20_000_000_000, vec![series])
        });
        result
    }

    #[test]
    fn everything_that_was_found_is_on_the_page() {
        let mut one = result("board <1>", 123_456);
        one.changes.push(Change {
            what: "throttle".into(),
            before: "950000".into(),
            after: "-1".into(),
            restored: true,
        });
        one.missing.push(Missing {
            what: "RTC".into(),
            reason: "none".into(),
            remedy: "buy".into(),
            weakens_verdict: false,
        });
        one.outlier = Some(Outlier {
            cpu: 1,
            latency_ns: 123_456,
            culprit: "the task x".into(),
            trace: vec!["line".into()],
        });
        let html = page("taut lab run", &[one]);
        for text in [
            "123 µs",
            "20001",
            "12.3 MiB/s",
            "disk full",
            "throttle",
            "RTC",
            "the task x",
            "NOT HELD",
            "board &lt;1&gt;",
            "nanosleep, CPU 1",
        ] {
            assert!(html.contains(text), "{text}");
        }
        assert!(!html.contains("board <1>"));
    }

    #[test]
    fn a_measurement_of_interrupts_names_its_events() {
        let mut one = result("board", 50_000);
        let series = &mut one.phases[0].series;
        let handler = Series {
            probe: ProbeKind::TimerHandler,
            ..series[0].clone()
        };
        series.push(handler);
        let html = page("taut lab interrupt", &[one]);
        assert!(html.contains("timer to task, CPU 1") && html.contains("timer to handler, CPU 1"));
        assert!(!html.contains("nanosleep"));
    }

    #[test]
    fn a_comparison_names_what_got_worse() {
        let results = [result("old", 50_000), result("new", 500_000)];
        let comparison = Comparison::of(&results[0], &results[1], 0.25);
        let html = comparison_page(&[(&results[0], &results[1], comparison)]);
        assert!(html.contains("new: worse than old") && html.contains("10.00"));
    }
}
