//! `taut exec`: an unmodified program whose waits and sleeps end awake. Any card, any descriptor, no privilege; with an
//! interface its datagrams also come past the kernel's stack while it looks.

mod library;
mod look;
mod program;
mod report;

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Instant;

use clap::Args;
use tautline_awake::board::Board;
use tautline_awake::cpu;
use tautline_awake::exec::SHORT_PATH_VARIABLE;
use tautline_state::interface;
use tautline_state::policy::set_policy;

use crate::cli::CommandError;
use crate::firewall;
use crate::stand_in::{self, StandIn};

/// Arguments of `taut exec`.
#[derive(Debug, Args)]
pub struct Arguments {
    /// While the program looks for its next datagram on this interface, take that past the kernel's stack.
    #[arg(long, short, value_name = "IF", conflicts_with = "watch")]
    interface: Option<String>,
    /// Change nothing, and print at the end how late waits and sleeps were, and how many could be met awake.
    #[arg(long)]
    watch: bool,
    /// Print at the end what was found for each descriptor: its rhythm, and what became of its messages.
    #[arg(long)]
    report: bool,
    /// Run the program under SCHED_FIFO with this priority, 1 to 99, where that is allowed.
    #[arg(long, value_name = "PRIORITY", value_parser = clap::value_parser!(u8).range(1..=99))]
    fifo: Option<u8>,
    /// Program and its arguments. Its waits end awake, and nothing else changes.
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Becomes the program, or stays as its parent to report at its end; returns only if it cannot be started.
pub fn run(arguments: Arguments) -> Result<(), CommandError> {
    let name = &arguments.program[0];
    let mut command = Command::new(name);
    let mut board = None;
    command.args(&arguments.program[1..]);
    if let Some(interface) = &arguments.interface {
        interface::index(interface).map_err(|_| {
            CommandError::usage(
                format!("there is no interface `{interface}`"),
                "`ip link` lists the interfaces",
            )
        })?;
    }
    let file = program::file(name)?;
    let library = library::find()?;
    match program::check(file, &library) {
        Some(why) => say!(
            "taut exec: the waits of {} stay as they are: {why}",
            program::plain(name)
        ),
        None => {
            if !arguments.watch && cpu::is_limited() {
                say!(
                    "taut exec: the waits of {} stay as they are: a cgroup limits its CPU time (cpu.max); lift the \
                     limit, and keep its CPUs by number in its place (--cpuset-cpus of a container)",
                    program::plain(name)
                );
            }
            let mut words = Vec::new();
            if arguments.watch {
                words.push("watch".to_owned());
            }
            if arguments.watch || arguments.report {
                let made = Board::create().map_err(|error| no_memory(&error))?;
                words.push(report::word(&made.1));
                board = Some(made);
            }
            command
                .env("LD_PRELOAD", library.preloaded())
                .env("TAUTLINE_AWAKE", words.join(","));
            if let Some(interface) = &arguments.interface {
                match look::attach(interface) {
                    Ok(value) => {
                        command.env(SHORT_PATH_VARIABLE, value);
                        firewall::warn();
                    }
                    Err(why) => {
                        say!(
                            "taut exec: without --interface, so nothing comes past the stack: {why}"
                        );
                    }
                }
            }
        }
    }
    if let Some(priority) = arguments.fifo
        && let Err(error) = set_policy(0, libc::SCHED_FIFO, priority.into())
    {
        say!(
            "taut exec: without SCHED_FIFO: {error}; it takes CAP_SYS_NICE or a limit (ulimit -r)"
        );
    }
    let Some((board, _open)) = board else {
        return Err(not_run(name, &command.exec()));
    };
    let began = Instant::now();
    let started = StandIn::begin().start(&mut command);
    let program = started.map_err(|error| not_run(name, &error))?;
    let number = program.number();
    let status = program.wait();
    report::print(board, number, began.elapsed());
    stand_in::end_like(status)
}

fn no_memory(error: &std::io::Error) -> CommandError {
    CommandError::failed(
        format!("there is no memory for the report: {error}"),
        "run it without --report and --watch, or raise the limits (ulimit -n, ulimit -v)",
    )
}

fn not_run(name: &OsStr, error: &std::io::Error) -> CommandError {
    CommandError::failed(
        format!("cannot run {}: {error}", program::plain(name)),
        "name a program that exists and that you may execute",
    )
}
