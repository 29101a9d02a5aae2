//! `taut-lab lab kernels`.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;
use taut::say;
use tautline_bench::emblix;
use tautline_lab::kernels::agreement::{Answer, Figures};
use tautline_lab::kernels::qemu::Accelerator;
use tautline_lab::kernels::{self, Arch, Event, Job, KernelSpec, Settings, defaults};
use tautline_lab::load::Load;
use tautline_lab::report;
use tautline_lab::result::{LabResult, ProbeKind, TimeBase};

use super::not_compared;
use taut::cli::{self, CommandError, result_file, write_file};
use taut::commands::output::JsonArguments;
use taut::units;
use tautline_report::table;
use tautline_testbed::interrupt;

/// Arguments of `taut-lab lab kernels`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Kernels: a package's name (NAME@SUITE), a .deb file or an image (./vmlinuz), with kernel parameters after commas
    /// [default: one kernel with preempt=none, voluntary and full, and the PREEMPT_RT one]
    #[arg(long = "kernel", value_name = "SPEC", num_args = 1..)]
    kernels: Vec<KernelSpec>,
    /// Architectures: x86_64, arm64, armhf
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "x86_64"
    )]
    arch: Vec<Arch>,
    /// Loads, in order
    #[arg(
        long = "load",
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "idle,combined"
    )]
    loads: Vec<Load>,
    /// The guest's time under each load, such as 500ms
    #[arg(long = "for", value_name = "TIME", default_value = "3s", value_parser = units::some_time)]
    seconds: Duration,
    /// Time between two wake-ups, such as 250us
    #[arg(long = "interval", value_name = "TIME", default_value = "1ms", value_parser = units::some_time)]
    period: Duration,
    /// Run this command in each guest instead of the probe (quote it; the program and its libraries are copied in);
    /// several run one after the other
    #[arg(long = "guest-command", value_name = "COMMAND")]
    guest_commands: Vec<String>,
    /// Check the probe: run it and cyclictest at once, N times --for under each load; exit status 3 if they differ
    #[arg(
        long,
        value_name = "N",
        default_value_t = 0,
        conflicts_with = "guest_commands"
    )]
    cyclictest_turns: u32,
    /// Measure this program on a processor of its own beside Linux, the last of --cpus, instead of the probe (arm64)
    #[arg(
        long,
        value_name = "IMAGE",
        conflicts_with_all = ["guest_commands", "cyclictest_turns", "kvm"]
    )]
    beside: Option<PathBuf>,
    /// Options of QEMU's machine: with virtualization=on,gic-version=2 (or 3), arm64 guests have KVM themselves
    #[arg(
        long,
        value_name = "NAME=VALUE,…",
        value_parser = machine_options,
        conflicts_with_all = ["beside", "kvm"]
    )]
    machine: Option<String>,
    /// CPUs of each guest; more than one needs QEMU 8.1 or later
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=8))]
    cpus: u32,
    /// Longest turn of one of several CPUs in virtual time; shorter takes more of the host's time
    #[arg(long, value_name = "TIME", default_value = "10us", value_parser = turn)]
    turn: Duration,
    /// Copy this file into the guests, at its own path
    #[arg(long = "guest-file", value_name = "FILE")]
    guest_files: Vec<PathBuf>,
    /// Load this module of the kernel's packages in the guests first, with those that it needs
    #[arg(long = "guest-module", value_name = "NAME")]
    guest_modules: Vec<String>,
    /// Use this program as the guest's first process: ARCH=FILE
    #[arg(long = "guest-program", value_name = "ARCH=FILE")]
    guest_programs: Vec<String>,
    /// Run on the host's clock under KVM; the result is not reproducible
    #[arg(long)]
    kvm: bool,
    /// Host time after which a guest is given up, such as 10min
    #[arg(long = "timeout", value_name = "TIME", default_value = "10min", value_parser = units::some_time)]
    time_limit: Duration,
    #[command(flatten)]
    guests: GuestArguments,
    #[command(flatten)]
    json: JsonArguments,
    /// Write a report page
    #[arg(long, value_name = "FILE", value_parser = result_file())]
    html: Option<PathBuf>,
}

/// Options of running guests, those of `taut-lab lab paths` too.
#[derive(Debug, Args)]
pub(super) struct GuestArguments {
    /// Guests at once [default: the host's CPUs]
    #[arg(long, value_name = "N")]
    parallel: Option<usize>,
    /// Directory for packages, kernels and results
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
    /// Measure again, also what the cache has
    #[arg(long)]
    fresh: bool,
}

impl GuestArguments {
    /// Settings of guests that run this program.
    pub(super) fn settings(&self) -> Result<Settings, CommandError> {
        let cache = defaults::cache(self.cache.clone()).map_err(not_compared)?;
        let defaults = Settings::new(defaults::own_program().map_err(not_compared)?, cache);
        Ok(Settings {
            reuse_results: !self.fresh,
            parallel: self.parallel.unwrap_or(defaults.parallel),
            ..defaults
        })
    }
}

/// Runs `taut-lab lab kernels`.
pub(super) fn run(arguments: &Arguments) -> Result<(), CommandError> {
    let html = arguments.html.as_deref();
    let shows_table = arguments.json.shows_table(&[html])?;
    let settings = settings(arguments)?;
    let jobs = jobs(arguments);
    let began = Instant::now();
    let stop = interrupt::flag();
    let reports = kernels::run(&jobs, &settings, &stop, &|event| tell(&event, began))
        .map_err(not_compared)?;
    let outputs: Vec<_> = reports
        .iter()
        .flat_map(|report| {
            // Under each load all commands, in their order.
            let commands = command_lines(&arguments.guest_commands).cycle();
            let outputs = report.outputs.iter().zip(commands);
            outputs.map(|(output, line)| (report.result.label.clone(), line, output.clone()))
        })
        .collect();
    let results: Vec<LabResult> = reports.into_iter().map(|report| report.result).collect();
    let has_outputs = !arguments.guest_commands.is_empty() || arguments.beside.is_some();
    if has_outputs {
        for result in &results {
            for missing in &result.missing {
                say!("{}: {}: {}", result.label, missing.what, missing.reason);
            }
        }
    }
    let mut all_succeeded = true;
    let mut table = String::new();
    for (label, line, output) in &outputs {
        all_succeeded &= output.status == Some(0);
        table += &format!(
            "== {label}, {}: {}\n{line}{}\n",
            output.load,
            output.end(),
            output.text.trim_end()
        );
    }
    if shows_table && !has_outputs {
        table += &match arguments.cyclictest_turns {
            0 => text(&results),
            _ => agreement_text(&results),
        };
    }
    if !shows_table && !table.is_empty() {
        say!("{}", table.trim_end());
    }
    let json = || {
        // Written from the results themselves: a `Value` would sort their keys.
        let list = serde_json::to_string_pretty(&Kernels { kernels: &results });
        list.expect("results have only string keys")
    };
    let shown = || if shows_table { table } else { String::new() };
    cli::all([
        arguments.json.print_written(json, shown),
        match html {
            Some(path) => write_file(path, &report::page("taut lab kernels", &results)),
            None => Ok(()),
        },
    ])?;
    say!("{:.0} s in all", began.elapsed().as_secs_f64());
    let agree = results
        .iter()
        .flat_map(|result| &result.agreements)
        .all(|agreement| agreement.answer() != Answer::Differ);
    match (all_succeeded, agree) {
        (false, _) => Err(CommandError::answer_is_no()),
        (_, false) => super::answer(3),
        _ => Ok(()),
    }
}

/// Results of several kernels, as a file holds them.
#[derive(Serialize)]
struct Kernels<'r> {
    kernels: &'r [LabResult],
}

/// Figures of the probe and cyclictest, and the difference of each one's turns among themselves.
fn agreement_text(results: &[LabResult]) -> String {
    let rows = results.iter().flat_map(|result| {
        result.agreements.iter().map(move |agreement| {
            let (probe, cyclictest) = (agreement.probe(), agreement.cyclictest());
            let microseconds = |ns: f64| format!("{:.3}", ns / 1e3);
            let control = |halves: [Figures; 2]| {
                let [one, other] = halves.map(|half| microseconds(half.max_ns as f64));
                format!("{one}, {other}")
            };
            vec![
                format!("{}: {}", result.label, agreement.load),
                probe.count.to_string(),
                microseconds(probe.mean_ns),
                microseconds(cyclictest.mean_ns),
                microseconds(probe.max_ns as f64),
                microseconds(cyclictest.max_ns as f64),
                agreement.answer().name().to_owned(),
                control(agreement.halves(|turn| turn.probe)),
                control(agreement.halves(|turn| turn.cyclictest)),
            ]
        })
    });
    let mut text = "The probe and cyclictest at once in each guest, on virtual time. They agree if average and maximum are within 10 % or 1 µs.\nThe last columns are the control, the maximum of each one's even and odd turns: within control are those no further apart than one from itself.\n".to_owned();
    text += &table::figures(
        &[
            "latency in µs",
            "n",
            "avg probe",
            "avg cycl.",
            "max probe",
            "max cycl.",
            "",
            "halves probe",
            "halves cycl.",
        ],
        rows,
    );
    text
}

pub(super) fn tell(event: &Event, began: Instant) {
    let text = match event {
        Event::Preparing(what) => format!("preparing {what}"),
        Event::Started(what) => format!("started {what}"),
        Event::Finished(what, true) => format!("{what}: from the cache"),
        Event::Finished(what, false) => format!("finished {what}"),
    };
    say!("{:4.0} s  {text}", began.elapsed().as_secs_f64());
}

/// The table, and the line that sets the worst cases beside the Emblix paper's.
fn text(results: &[LabResult]) -> String {
    let rows = results.iter().flat_map(|result| {
        result.phases.iter().flat_map(move |phase| {
            phase.series.iter().map(move |series| {
                let summary = &series.summary;
                // The probe's rows are the result; only the tracer's need saying what they are.
                let probe = match series.probe {
                    ProbeKind::Nanosleep => String::new(),
                    other => format!(", {}", other.name()),
                };
                let mut row = vec![
                    format!("{}: {}{probe}", result.label, phase.load),
                    summary.count.to_string(),
                ];
                row.extend(
                    [
                        summary.min_ns,
                        summary.p50_ns,
                        summary.p99_ns,
                        summary.p999_ns,
                        summary.max_ns,
                    ]
                    .map(|ns| format!("{:.3}", ns as f64 / 1e3)),
                );
                row.push(series.page_faults.to_string());
                row
            })
        })
    });
    let mut text =
        "Virtual time, one nanosecond an instruction; no statement about hardware.\n".to_owned();
    if results.iter().any(|result| result.time == TimeBase::Guest) {
        text = "Guests under KVM on the host's clock; no statement about hardware, and not reproducible.\n".to_owned();
    }
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
        ],
        rows,
    );
    text += &emblix::line(results);
    text
}

fn jobs(arguments: &Arguments) -> Vec<Job> {
    arguments
        .arch
        .iter()
        .flat_map(|arch| {
            let kernels = if arguments.kernels.is_empty() {
                arch.default_kernels()
            } else {
                arguments.kernels.clone()
            };
            kernels.into_iter().map(|kernel| Job {
                arch: *arch,
                kernel,
            })
        })
        .collect()
}

fn settings(arguments: &Arguments) -> Result<Settings, CommandError> {
    let foreign_programs = arguments
        .guest_programs
        .iter()
        .map(|text| {
            let (arch, file) = text.split_once('=').ok_or_else(|| {
                CommandError::usage(format!("--guest-program {text}"), "give ARCH=FILE")
            })?;
            Ok((
                arch.parse()
                    .map_err(|error: String| CommandError::usage(error, "give ARCH=FILE"))?,
                PathBuf::from(file),
            ))
        })
        .collect::<Result<_, CommandError>>()?;
    let commands = arguments
        .guest_commands
        .iter()
        .map(|command| command_words(command))
        .collect::<Result<_, _>>()?;
    let defaults = arguments.guests.settings()?;
    Ok(Settings {
        loads: arguments.loads.clone(),
        duration: arguments
            .seconds
            .clamp(Duration::from_millis(10), Duration::from_secs(86_400)),
        period: arguments.period,
        accelerator: if arguments.kvm {
            Accelerator::Kvm
        } else {
            Accelerator::InstructionCount
        },
        commands,
        turns: arguments.cyclictest_turns,
        beside: arguments.beside.clone(),
        machine_options: arguments.machine.clone(),
        cpu_count: arguments.cpus,
        turn: arguments.turn,
        files: arguments.guest_files.clone(),
        modules: arguments.guest_modules.clone(),
        time_limit: arguments.time_limit,
        foreign_programs,
        sources: defaults::sources(),
        ..defaults
    })
}

/// A line before the output of each command that tells it from the others; empty if there are no others.
fn command_lines(commands: &[String]) -> impl Iterator<Item = String> + Clone {
    let count = commands.len().max(1);
    (0..count).map(move |number| match count {
        1 => String::new(),
        _ => format!("$ {}\n", commands[number]),
    })
}

/// Options of QEMU's machine. QEMU knows their names.
fn machine_options(text: &str) -> Result<String, String> {
    let is_option = |part: &str| {
        let is_word = |word: &str| {
            let known = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
            !word.is_empty() && word.chars().all(known)
        };
        part.split_once('=')
            .is_some_and(|(name, value)| is_word(name) && is_word(value))
    };
    match text.split(',').all(is_option) {
        true => Ok(text.to_owned()),
        false => Err("expected options such as virtualization=on,gic-version=2".to_owned()),
    }
}

/// Longest turn of a CPU, which QEMU bounds in whole microseconds.
fn turn(text: &str) -> Result<Duration, String> {
    let turn = units::some_time(text)?;
    let is_whole = turn.subsec_nanos() % 1_000 == 0;
    match is_whole && (1..=1_000).contains(&turn.as_micros()) {
        true => Ok(turn),
        false => Err("expected whole microseconds, from 1us to 1ms".to_owned()),
    }
}

/// The words of a command as a shell would part them; no shell runs it.
fn command_words(text: &str) -> Result<Vec<String>, CommandError> {
    match shell_words::split(text) {
        Ok(words) if !words.is_empty() => Ok(words),
        Ok(_) => Err(CommandError::usage(
            "--guest-command: no command",
            "give one such as \"cyclictest -q -m -p80 -l1000\"",
        )),
        Err(error) => Err(CommandError::usage(
            format!("--guest-command {text}: {error}"),
            "close every quotation mark; words are parted as a shell does",
        )),
    }
}
