//! `taut guest`: programs with a machine of their own beside Linux, joined to its ports by shared memory.

mod clock;
mod conversation;
mod report;

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, SyncSender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::json;
use tautline_guest::run::Occurrence;
use tautline_guest::{GuestConfig, GuestError, Restart, control};
use tautline_state::Existing;
use tautline_state::interrupt;

use crate::cli::{self, CommandError};
use crate::commands::output::JsonArguments;
use crate::units;

/// Lines that may wait for the reader of standard output. Lower: a slow reader misses some. Higher: more memory, where
/// it does not read.
const LINES_MAX: usize = 64;

/// Arguments of `taut guest`.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Action.
    #[command(subcommand)]
    action: Action,
}

impl Arguments {
    /// Whether this process becomes the machine of a guest.
    pub fn is_monitor(&self) -> bool {
        matches!(self.action, Action::Monitor)
    }
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Run an image in a virtual machine, until it ends or ^C.
    Run(Box<RunArguments>),
    /// List the guests of this user, for root of all; of one: its state, the messages of each port, its clock.
    Show(ShowArguments),
    /// Talk to a guest: lines go to one of its ports, and its messages are printed.
    Console(conversation::Arguments),
    /// Stop a guest.
    Stop(NameArguments),
    /// End a guest and start it again.
    Restart(NameArguments),
    /// Be the machine of a guest on KVM, for the command that has started this one.
    #[command(hide = true)]
    Monitor,
}

/// Arguments of `taut guest run`.
#[derive(Debug, Args)]
struct RunArguments {
    /// Image: an ELF file for aarch64 (on KVM, or under QEMU) or x86-64 (on KVM), or plain code for aarch64.
    image: PathBuf,
    /// Name of the guest, and of its node [default: the image's].
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Ports of the guest and its other settings (TOML) [default: port 4095 for messages].
    #[arg(long, value_name = "FILE")]
    window: Option<PathBuf>,
    /// Bus on which its ports are [default: the file's, or `guests`].
    #[arg(long, value_name = "NAME", conflicts_with = "config")]
    bus: Option<String>,
    /// Configuration file of the node on which its ports are, in place of a bus.
    #[arg(long, alias = "node", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Memory of the guest, such as 16M.
    #[arg(long, value_name = "SIZE", value_parser = units::memory)]
    ram: Option<u64>,
    /// Partition in which it runs.
    #[arg(long, value_name = "NAME")]
    partition: Option<String>,
    /// Where its console goes: a file, or - for standard output [default: nowhere].
    #[arg(long, value_name = "FILE")]
    console: Option<PathBuf>,
    /// Silence after which it counts as dead, such as 500ms [default: any].
    #[arg(long, value_name = "TIME", value_parser = units::time)]
    silence_max: Option<Duration>,
    /// When it is started again: never, on-failure or always [default: never].
    #[arg(long, value_name = "WHEN", value_parser = restart)]
    restart: Option<Restart>,
    #[command(flatten)]
    json: JsonArguments,
}

/// Arguments of `taut guest show`.
#[derive(Debug, Args)]
struct ShowArguments {
    /// Name of the guest [default: a list of all].
    name: Option<String>,
    #[command(flatten)]
    clock: clock::Arguments,
    #[command(flatten)]
    json: JsonArguments,
}

/// Arguments of the actions on one guest.
#[derive(Debug, Args)]
struct NameArguments {
    /// Name of the guest.
    name: String,
    #[command(flatten)]
    json: JsonArguments,
}

fn restart(text: &str) -> Result<Restart, String> {
    match text {
        "never" => Ok(Restart::Never),
        "on-failure" => Ok(Restart::OnFailure),
        "always" => Ok(Restart::Always),
        _ => Err("expected never, on-failure or always".to_owned()),
    }
}

/// Starts the thread that prints lines, so that a standard output without a reader delays no guest.
fn start_printer() -> (SyncSender<String>, JoinHandle<()>) {
    let (lines, waiting) = mpsc::sync_channel::<String>(LINES_MAX);
    let print = move || {
        for line in waiting {
            // A reader that has gone away is no reason to end the guest.
            let _ = cli::print(&line);
        }
    };
    (lines, thread::spawn(print))
}

/// Runs an action.
pub fn run(arguments: Arguments) -> Result<(), CommandError> {
    match arguments.action {
        Action::Run(arguments) => run_one(&arguments),
        Action::Show(arguments) => show(&arguments),
        Action::Stop(arguments) => {
            control::stop(&arguments.name).map_err(error)?;
            let name = &arguments.name;
            arguments.json.print(
                || json!({ "name": name, "stopped": true }),
                || format!("guest {name} is stopped\n"),
            )
        }
        Action::Console(arguments) => conversation::run(&arguments),
        Action::Monitor => monitor(),
        Action::Restart(arguments) => {
            let now = control::restart(&arguments.name).map_err(error)?;
            arguments
                .json
                .print(|| report::json(&now), || report::text(&now))
        }
    }
}

/// A guest that a command cannot run or reach.
fn error(error: GuestError) -> CommandError {
    let build = match error {
        GuestError::File { .. } | GuestError::Setting(_) | GuestError::Image { .. } => {
            CommandError::usage
        }
        _ => CommandError::failed,
    };
    build(error.to_string(), error.remedy())
}

fn config(arguments: &RunArguments) -> Result<GuestConfig, GuestError> {
    let stem = arguments.image.file_stem().unwrap_or_default();
    let stem = stem.to_string_lossy();
    let name = arguments.name.as_deref().unwrap_or(&stem);
    let mut config = match &arguments.window {
        Some(file) => GuestConfig::from_file(file, name, &arguments.image)?,
        None => {
            let name = name
                .parse()
                .map_err(|error: tautline::address::BadNodeName| {
                    GuestError::Setting(error.to_string())
                })?;
            GuestConfig::new(name, &arguments.image)
        }
    };
    if let Some(name) = &arguments.name {
        config.name = name
            .parse()
            .map_err(|error: tautline::address::BadNodeName| {
                GuestError::Setting(error.to_string())
            })?;
    }
    if arguments.bus.is_some() || arguments.config.is_some() {
        config.bus.clone_from(&arguments.bus);
        config.node.clone_from(&arguments.config);
    }
    if config.bus.is_none() && config.node.is_none() {
        config.bus = Some("guests".to_owned());
    }
    config.ram_bytes = arguments.ram.unwrap_or(config.ram_bytes);
    config.restart = arguments.restart.unwrap_or(config.restart);
    config.silence_max = arguments.silence_max.or(config.silence_max);
    if arguments.partition.is_some() {
        config.partition.clone_from(&arguments.partition);
    }
    Ok(config)
}

/// Standard output, or a file that is made.
fn console(path: &Path) -> Result<OwnedFd, CommandError> {
    let opened = if path == Path::new("-") {
        rustix::io::fcntl_dupfd_cloexec(std::io::stdout(), 3).map_err(Into::into)
    } else {
        let made = tautline_state::create(path, Existing::Overwritten);
        made.map(OwnedFd::from).map_err(Into::into)
    };
    opened.map_err(|error| cli::not_made(path, &error))
}

/// The machine of a guest; its orders come on standard input.
///
/// # Errors
/// No orders come.
pub fn monitor() -> Result<(), CommandError> {
    let served = rustix::io::fcntl_dupfd_cloexec(std::io::stdin(), 3)
        .map_err(Into::into)
        .and_then(tautline_guest::kvm::serve);
    served.map_err(|error| {
        CommandError::failed(
            format!("no orders come on standard input: {error}"),
            "this command is for `taut guest run` alone",
        )
    })
}

/// This program, also when its file has been replaced meanwhile.
const SELF: &str = "/proc/self/exe";

fn run_one(arguments: &RunArguments) -> Result<(), CommandError> {
    for file in arguments.window.iter().chain([&arguments.image]) {
        crate::cli::check_code_for_root(file)?;
    }
    arguments
        .json
        .shows_table(&[arguments.console.as_deref()])?;
    let config = config(arguments).map_err(error)?;
    let console = arguments.console.as_deref().map(console).transpose()?;
    let quiet = arguments.json.has_stdout();
    let stop = interrupt::flag();
    let name = config.name;
    let monitor_command = [SELF, "guest", "monitor"].map(OsString::from);
    let (lines, printer) = start_printer();
    let tell = |occurrence: Occurrence| {
        if !quiet {
            // Without a reader the guest goes on, and the line is lost.
            let _ = lines.try_send(report::occurrence(name.as_str(), &occurrence));
        }
    };
    let ran = tautline_guest::run::run(&config, console, &monitor_command, &stop, tell);
    drop(lines);
    let _ = printer.join(); // a panic there has been reported
    let summary = ran.map_err(error)?;
    arguments.json.print(
        || {
            json!({
                "name": name.as_str(),
                "failed": summary.has_failed,
                "end": summary.end,
                "restarts": summary.restarts,
            })
        },
        String::new,
    )?;
    if summary.has_failed {
        return Err(CommandError::failed(
            format!("guest {name} failed: {}", summary.end),
            "look at its console (--console FILE); --restart on-failure starts it again",
        ));
    }
    Ok(())
}

fn show(arguments: &ShowArguments) -> Result<(), CommandError> {
    let json = &arguments.json;
    if let Some(name) = &arguments.name {
        if arguments.clock.is_wanted() {
            return clock::run(name, &arguments.clock, json);
        }
        let found = control::find(name).map_err(error)?;
        return json.print(|| report::json(&found), || report::text(&found));
    }
    let (found, silent) = control::list();
    json.print(
        || report::list_json(&found, &silent),
        || report::list_text(&found, &silent),
    )
}
