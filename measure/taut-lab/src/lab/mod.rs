//! `taut-lab lab`: can this machine, with this kernel, hold your deadline, and how sure are we?
//!
//! Exit status: 0 held or no worse, 3 a deadline exceeded or a comparison worse, 4 no verdict (too little was measured,
//! or it was held on a virtual machine, which says nothing about hardware).

pub(crate) mod files;
pub(crate) mod interrupt;
mod journal_guard;
pub(crate) mod kernels;
mod network;
pub(crate) mod paths;
pub(crate) mod run;

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use taut::say;
use tautline_lab::interrupt::child;
use tautline_lab::kernels::{KernelsError, guest};
use tautline_lab::load::{self, Load};
use tautline_lab::report;
use tautline_lab::result::LabResult;
use tautline_lab::result_file::ResultFileError;

use taut::cli::{self, CommandError, write_file};
use taut::commands::output::JsonArguments;
use tautline_testbed::child::allowed_cpus;
use tautline_testbed::interrupt::interrupted;

/// Arguments of `taut-lab lab`.
#[derive(Debug, Args)]
pub(crate) struct LabArgs {
    /// Action.
    #[command(subcommand)]
    pub command: LabCommand,
}

/// The commands of the lab.
#[derive(Debug, Subcommand)]
pub(crate) enum LabCommand {
    /// Measure this machine: wake-ups under loads, untouched and tuned, and judge.
    Run(run::Arguments),
    /// Measure interrupt latency: from a timer to the kernel's handler and to a task, from another CPU to a task.
    Interrupt(interrupt::Arguments),
    /// Measure a card, its cable and a peer: requests and replies each period over sockets and a port, and judge.
    Network(network::Arguments),
    /// Write a page of results, also of cyclictest's files.
    Report(files::ReportArguments),
    /// Compare results with the first one; exit status 3 if one is worse.
    Compare(files::CompareArguments),
    /// Compare kernels in virtual machines on virtual time; the figures repeat exactly, on any host.
    Kernels(kernels::Arguments),
    /// Round trips over two network cards in virtual machines on virtual time, beside kernel UDP; the figures repeat.
    Paths(paths::Arguments),
    /// One part of a load, or a probe, in a process of its own. Started by the lab itself.
    #[command(hide = true)]
    Worker {
        /// Part, CPUs and largest size in MiB; or the words of a probe.
        arguments: Vec<String>,
    },
}

/// Time for a load to be at work. Lower: what is measured first runs beside a load that starts. Higher: nothing is
/// gained.
const SETTLE: Duration = Duration::from_millis(500);
/// A load's largest file and its memory block, as in `taut-lab lab run`.
const SIZE_MIB_MAX: u64 = 256;

/// Settings of loads on so many CPUs, where the user has no say in them.
fn load_settings(cpu_count: usize) -> Result<load::Settings, CommandError> {
    Ok(load::Settings {
        worker_command: vec![cli::this_program()?, "lab".into(), "worker".into()],
        directory: std::env::temp_dir(),
        cpu_count,
        size_mib_max: SIZE_MIB_MAX,
        external_tools: true,
    })
}

/// Starts a load on all CPUs that this process may use, and waits until it is at work.
pub(crate) fn start_load(load: Load) -> Result<load::Running, CommandError> {
    let settings = load_settings(allowed_cpus().map_or(1, |cpus| cpus.len()))?;
    let running = load::make_files_unnoted(&settings)
        .and_then(|files| load::start(load, &settings, files))
        .map_err(|error| CommandError::failed(error.to_string(), "choose other loads"))?;
    if load != Load::Idle {
        std::thread::sleep(SETTLE);
    }
    Ok(running)
}

/// Does the work of a guest's first process and never returns, if this process is one. To be called first of all: the
/// kernel puts words of its own command line before a program's arguments, so these cannot be relied on.
pub(crate) fn run_if_guest() {
    if guest::is_guest() {
        let worker_command = ["/init", "lab", "worker"].map(PathBuf::from);
        if let Err(error) = guest::run_as_first_process(&worker_command) {
            say!("taut lab guest: {error}");
        }
    }
}

/// Runs a lab command.
pub(crate) fn run(arguments: LabArgs) -> Result<(), CommandError> {
    match arguments.command {
        LabCommand::Run(arguments) => run::run(&arguments),
        LabCommand::Interrupt(arguments) => interrupt::run(&arguments),
        LabCommand::Network(arguments) => network::run(&arguments),
        LabCommand::Report(arguments) => files::report(&arguments),
        LabCommand::Compare(arguments) => files::compare(&arguments),
        LabCommand::Kernels(arguments) => kernels::run(&arguments),
        LabCommand::Paths(arguments) => paths::run(&arguments),
        LabCommand::Worker { arguments } => {
            let ended = match child::is_meant(&arguments) {
                true => child::run(&arguments),
                false => load::run_worker(&arguments),
            };
            ended.map_err(|error| {
                CommandError::failed(
                    error.to_string(),
                    "this command is started by taut lab itself",
                )
            })
        }
    }
}

/// Prints the table of a result unless a file has standard output, and then writes its files: what could not be written
/// is told last.
fn publish(
    command: &str,
    result: &LabResult,
    table: String,
    (json, html): (&JsonArguments, Option<&Path>),
) -> Result<(), CommandError> {
    let shows_table = json.shows_table(&[html])?;
    let table = || if shows_table { table } else { String::new() };
    cli::all([
        json.print_written(|| result.to_json(), table),
        match html {
            Some(path) => write_file(path, &report::page(command, std::slice::from_ref(result))),
            None => Ok(()),
        },
    ])
}

/// A bar of a thousand steps with a text behind it; hidden where there is no terminal.
fn progress_bar(is_terminal: bool) -> ProgressBar {
    let bar = match is_terminal {
        true => ProgressBar::new(1000),
        false => ProgressBar::hidden(),
    };
    let style = ProgressStyle::with_template("{bar:24} {msg}");
    bar.with_style(style.expect("the template is a constant that indicatif accepts"))
}

/// An exit status that is an answer.
fn answer(status: u8) -> Result<(), CommandError> {
    if status == 0 {
        Ok(())
    } else {
        Err(CommandError::answer(status))
    }
}

/// A result file that cannot be used.
fn unusable(error: ResultFileError) -> CommandError {
    let remedy = match &error {
        ResultFileError::NotWritten(_) => {
            let remedy =
                "name a file in a directory that exists, that you may write to, and that has space";
            return CommandError::failed(error.to_string(), remedy);
        }
        _ => "give a file that taut lab run or cyclictest --json wrote",
    };
    CommandError::usage(error.to_string(), remedy)
}

/// Kernels that could not be compared.
pub(crate) fn not_compared(error: KernelsError) -> CommandError {
    // For every failure: the signal may have ended QEMU before it was noticed here.
    if let Some(signal) = interrupted() {
        return CommandError::interrupted(signal);
    }
    let remedy = match &error {
            KernelsError::Interrupted => return CommandError::interrupted(libc::SIGINT),
            KernelsError::Cache(_) => {
                "give a directory of your own with --cache; programs in it are run".to_owned()
            }
            KernelsError::ToolMissing { package, .. } => {
                format!("install it: apt-get install --no-install-recommends {package}")
            }
            KernelsError::NoSources { .. } => "start it in the sources' folder".to_owned(),
            KernelsError::StrangeSources(_) => {
                "start it in a copy of your own, or make it your own with chown".to_owned()
            }
            KernelsError::NoPackage { .. } => {
                "check the name (apt-cache search linux-image) and the network, or give a .deb file or an image".to_owned()
            }
            KernelsError::NotAKernel { .. } => {
                "give a vmlinuz as distributions install it below /boot, or a package".to_owned()
            }
            KernelsError::NoGuestCommand { .. } => {
                "install it, or give its whole path".to_owned()
            }
            KernelsError::NoKvm { .. } => {
                "leave out --kvm: the clock that counts instructions needs none".to_owned()
            }
            KernelsError::NoReport { .. } => {
                "try the kernel alone with --kernel, with earlyprintk=serial after a comma".to_owned()
            }
            _ => "see docs/how-to/lab.md".to_owned(),
        };
    CommandError::failed(error.to_string(), remedy)
}
