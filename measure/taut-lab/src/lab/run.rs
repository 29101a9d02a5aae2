//! `taut-lab lab run`.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::Args;
use indicatif::ProgressBar;
use taut::say;
use tautline_lab::load::{self, Load};
use tautline_lab::report;
use tautline_lab::result::{LabResult, Phase, Series};
use tautline_lab::session::{self, Progress, SessionError, Settings};
use tautline_machine::verdict::State;
use tautline_machine::verdict::{self, Class, Verdict};
use tautline_report::plot::latency_text;
use tautline_state::cpus::CpuList;
use tautline_state::journal::JournalError;
use tautline_testbed::sys;

use super::journal_guard::JournalGuard;
use super::{answer, progress_bar, publish};
use taut::cli::{self, CommandError, result_file};
use taut::commands::output::JsonArguments;
use taut::commands::task::try_cpu;
use taut::units;
use tautline_report::table;
use tautline_testbed::interrupt;

/// Arguments of `taut-lab lab run`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Measuring time in all, divided evenly over states and loads, such as 10min.
    #[arg(long = "for", value_name = "TIME", default_value = "1min", value_parser = units::time)]
    pub seconds: Duration,
    /// Loads, in order: idle, cpu, memory, disk, network, scheduling, vision, combined.
    #[arg(
        long = "load",
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "idle,combined"
    )]
    pub loads: Vec<Load>,
    /// CPUs to probe, such as 0-2,5 [default: all].
    #[arg(long, value_name = "LIST")]
    pub cpus: Option<CpuList>,
    /// Class to judge for: multimedia, instrument, fast-io (the paper's classes), linuxcnc, or a deadline such as 250us
    /// [default: the paper's three, with exit status 0].
    #[arg(long, value_name = "NAME|DEADLINE")]
    pub class: Option<Class>,
    /// Time between two wake-ups of a probe, such as 250us.
    #[arg(long = "interval", value_name = "TIME", default_value = "1ms", value_parser = period)]
    pub period: Duration,
    /// Measure the machine as it is only, and change nothing.
    #[arg(long, conflicts_with = "tuned_only")]
    pub untouched_only: bool,
    /// Measure the tuned machine only.
    #[arg(long)]
    pub tuned_only: bool,
    /// End at the first latency above this, keep the kernel's trace and name the likely culprit; a plain number is
    /// microseconds.
    #[arg(long, value_name = "TIME", value_parser = units::some_time)]
    pub trace_above: Option<Duration>,
    /// Use the built-in loads also where stress-ng, fio and iperf3 are installed.
    #[arg(long)]
    pub builtin_loads: bool,
    /// Directory for the disk load [default: the directory for temporary files].
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// The disk load's largest file and the memory load's block, such as 1GiB.
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = units::size)]
    pub size: usize,
    /// Name of the result [default: the host's name].
    #[arg(long, value_name = "TEXT")]
    pub label: Option<String>,
    #[command(flatten)]
    json: JsonArguments,
    /// Write a page.
    #[arg(long, value_name = "FILE", value_parser = result_file())]
    pub html: Option<PathBuf>,
}

pub(super) fn period(text: &str) -> Result<Duration, String> {
    Some(units::time(text)?)
        .filter(|period| (Duration::from_micros(50)..=Duration::from_secs(1)).contains(period))
        .ok_or_else(|| "expected 50us to 1s: below, the probes themselves are a load".to_owned())
}

/// Runs `taut-lab lab run`.
pub(super) fn run(arguments: &Arguments) -> Result<(), CommandError> {
    let places = (&arguments.json, arguments.html.as_deref());
    arguments.json.shows_table(&[places.1])?;
    let settings = settings(arguments)?;
    let kept = JournalGuard::open()?;
    let stop = Arc::new(AtomicBool::new(false));
    let bar = Bar::new();
    let outcome = session::run(&settings, &kept.journal, &stop, &mut |progress| {
        if interrupt::interrupted().is_some() {
            stop.store(true, Ordering::Relaxed);
        }
        bar.show(progress);
    });
    bar.done();
    let missing = kept.missing.clone();
    drop(kept);
    let mut result = outcome.map_err(not_measured)?;
    result.missing.extend(missing);
    result.notes.extend(left_out(arguments));
    result.verdict = arguments.class.map(|class| result.judged(class));
    publish("taut lab run", &result, text(&result), places)?;
    if let Some(signal) = interrupt::interrupted() {
        return Err(CommandError::interrupted(signal));
    }
    answer(result.verdict.as_ref().map_or(0, Verdict::exit_status))
}

/// A journal that cannot be opened.
pub(super) fn no_journal(error: JournalError) -> CommandError {
    let remedy = match error {
        JournalError::File(_) => error.remedy(),
        _ => "the journal is how settings are put back; without it nothing is measured",
    };
    CommandError::failed(error.to_string(), remedy)
}

pub(super) fn not_measured(error: SessionError) -> CommandError {
    match error {
        SessionError::TooShort { .. } => {
            CommandError::usage(error.to_string(), "give more --for, or fewer loads")
        }
        _ => CommandError::failed(
            error.to_string(),
            "see docs/how-to/lab.md, and taut doctor for what this machine lacks",
        ),
    }
}

fn settings(arguments: &Arguments) -> Result<Settings, CommandError> {
    let allowed = sys::allowed_cpus().unwrap_or_default();
    let cpus = match &arguments.cpus {
        Some(list) => list.iter().collect(),
        None => allowed.clone(),
    };
    for cpu in &cpus {
        if let Err(error) = try_cpu(*cpu as usize) {
            return Err(CommandError::usage(
                format!("--cpus: CPU {cpu} cannot be used: {error}"),
                format!("this process may use: {allowed:?}"),
            ));
        }
    }
    let states = match (arguments.untouched_only, arguments.tuned_only) {
        (true, _) => vec![State::Untouched],
        (_, true) => vec![State::Tuned],
        _ => vec![State::Untouched, State::Tuned],
    };
    let program = cli::this_program()?;
    Ok(Settings {
        label: arguments.label.clone().unwrap_or_else(host_name),
        total: arguments.seconds,
        states,
        loads: arguments.loads.clone(),
        cpus,
        period_ns: arguments.period.as_nanos() as u64,
        deadlines_ns: verdict::deadlines_ns(arguments.class),
        trace_above_ns: arguments.trace_above.map(|time| time.as_nanos() as u64),
        load: load::Settings {
            worker_command: vec![program, "lab".into(), "worker".into()],
            directory: arguments.dir.clone().unwrap_or_else(std::env::temp_dir),
            cpu_count: allowed.len(),
            size_mib_max: (arguments.size >> 20).max(1) as u64,
            external_tools: !arguments.builtin_loads,
        },
    })
}

/// Note of the CPUs that are online and were not measured, unless the user chose.
fn left_out(arguments: &Arguments) -> Option<String> {
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online").ok()?;
    let online: CpuList = online.trim().parse().ok()?;
    let allowed = sys::allowed_cpus().ok()?.into_iter().collect();
    let rest = online.without(&allowed);
    let is_told = arguments.cpus.is_none() && !rest.is_empty();
    is_told.then(|| {
        format!(
            "not measured: CPU {rest}, which this process was started without (isolcpus=, taskset, a cpuset); name it with --cpus"
        )
    })
}

pub(super) fn host_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .map_or_else(|_| "this machine".to_owned(), |name| name.trim().to_owned())
}

/// Text for the terminal at the end.
fn text(result: &LabResult) -> String {
    let mut text = format!("{}\n", result.machine.summary());
    text += &table::figures(
        &[
            "latency in µs",
            "n",
            "min",
            "p50",
            "p99",
            "p99.9",
            "max",
            "faults",
            "CPU %",
        ],
        result
            .phases
            .iter()
            .flat_map(|phase| phase.series.iter().map(move |series| row(phase, series))),
    );
    text += &remarks(result);
    for line in judgement(result) {
        text += &format!("{line}\n");
    }
    text
}

fn row(phase: &Phase, series: &Series) -> Vec<String> {
    let deadline = if series.scheduling == "SCHED_DEADLINE" {
        ", deadline"
    } else {
        ""
    };
    let state = report::state_name(phase.state);
    let summary = &series.summary;
    let mut row = vec![
        format!("{}, {state}: {}{deadline}", phase.load, series.name()),
        summary.count.to_string(),
    ];
    let figures = [
        summary.min_ns,
        summary.p50_ns,
        summary.p99_ns,
        summary.p999_ns,
        summary.max_ns,
    ];
    row.extend(figures.map(table::microseconds));
    row.push(series.page_faults.to_string());
    row.push(format!("{:.2}", series.cpu_share * 100.0));
    row
}

/// Work of the loads, changes that were made, and privileges that are lacking.
pub(super) fn remarks(result: &LabResult) -> String {
    let mut text = String::new();
    for phase in &result.phases {
        let state = report::state_name(phase.state);
        for part in &phase.achieved {
            let problem = part
                .problem
                .as_ref()
                .map_or(String::new(), |problem| format!(" ({problem})"));
            text += &format!(
                "{}, {state}: {} by {}: {:.1} {}{problem}\n",
                phase.load, part.part, part.tool, part.amount, part.unit
            );
        }
    }
    for change in &result.changes {
        let restored = if change.restored {
            "put back"
        } else {
            "NOT put back: the next start tries again"
        };
        text += &format!(
            "changed {}: {} to {}, {restored}\n",
            change.what, change.before, change.after
        );
    }
    for missing in &result.missing {
        text += &format!(
            "lacking: {}: {} ({})\n",
            missing.what, missing.reason, missing.remedy
        );
    }
    for note in &result.notes {
        text += &format!("note: {note}\n");
    }
    if let Some(outlier) = &result.outlier {
        let late = latency_text(outlier.latency_ns);
        text += &format!(
            "outlier: {late} on CPU {}; likely {}\n",
            outlier.cpu, outlier.culprit
        );
    }
    text
}

/// The verdict that was asked for, or the paper's three.
fn judgement(result: &LabResult) -> Vec<String> {
    if let Some(verdict) = &result.verdict {
        return verdict.sentences();
    }
    let verdicts = Class::PAPER.map(|class| result.judged(class));
    let mut lines: Vec<String> = verdicts
        .iter()
        .map(|verdict| verdict.sentences().remove(0))
        .collect();
    lines.extend(verdicts[2].sentences().into_iter().skip(1));
    lines
}

/// A progress bar on a terminal, a line for each phase elsewhere.
struct Bar {
    bar: ProgressBar,
    last: Mutex<(Option<usize>, Instant)>,
    is_terminal: bool,
}

impl Bar {
    fn new() -> Bar {
        let is_terminal = std::io::stderr().is_terminal();
        Bar {
            bar: progress_bar(is_terminal),
            last: Mutex::new((None, Instant::now())),
            is_terminal,
        }
    }

    fn show(&self, progress: &Progress) {
        let summary = &progress.summary;
        let position =
            (progress.phase as f64 + progress.share) / progress.phase_count.max(1) as f64;
        self.bar.set_position((position * 1000.0) as u64);
        self.bar.set_message(format!(
            "{} {}: n {} p50 {} p99 {} max {}",
            report::state_name(progress.state),
            progress.what,
            summary.count,
            latency_text(summary.p50_ns),
            latency_text(summary.p99_ns),
            latency_text(summary.max_ns)
        ));
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.is_terminal && last.0 != Some(progress.phase) {
            say!(
                "phase {} of {}: {} {}",
                progress.phase + 1,
                progress.phase_count,
                report::state_name(progress.state),
                progress.what
            );
            *last = (Some(progress.phase), Instant::now());
        }
    }

    fn done(&self) {
        self.bar.finish_and_clear();
    }
}
