//! `taut partition run`: a program in a partition.
//!
//! In a partition that exists, this process enters and becomes the program. A partition of the program's own is made
//! first, and a second process (`taut guard`) puts it back should this one be killed.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};

use clap::{Args, value_parser};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Resource, Rlimit, getrlimit, pidfd_open, setrlimit};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;
use tautline_state::child::KilledOnDrop;
use tautline_state::cpus::CpuList;
use tautline_state::policy::set_policy;
use tautline_tasks::partition::{Partition, find};

use super::{cpus, error};
use crate::cli::CommandError;
use crate::leftovers;
use crate::stand_in::{Program, StandIn};

/// Highest priority that a program may take for itself (RLIMIT_RTPRIO): all but that of the kernel's own threads.
const PRIORITY_MAX: u64 = 98;

/// Arguments of `taut partition run`.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Name of the partition.
    name: String,
    /// Make the partition with these CPUs, and remove it when the program ends.
    #[arg(long, value_name = "LIST", value_parser = cpus)]
    cpus: Option<CpuList>,
    /// Real-time priority (SCHED_FIFO) of the program, 1 to 98 [default: none].
    #[arg(long, value_name = "N", value_parser = value_parser!(u8).range(1..=98))]
    priority: Option<u8>,
    /// Program and its arguments.
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Arguments of the guard.
#[derive(Debug, Args)]
pub struct GuardArguments {
    /// Process that owns a partition.
    owner: i32,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), CommandError> {
    match &arguments.cpus {
        Some(cpus) => in_its_own(arguments, cpus),
        None => Err(become_program(arguments)),
    }
}

/// Enters a partition and becomes the program. Returns only if that fails.
fn become_program(arguments: &Arguments) -> CommandError {
    let entered = find(&arguments.name).and_then(|found| found.enter(std::process::id()));
    if let Err(failed) = entered {
        return error(failed);
    }
    raise_limits();
    if let Some(priority) = arguments.priority
        && let Err(failed) = set_policy(0, libc::SCHED_FIFO, i32::from(priority))
    {
        return CommandError::failed(
            format!("the program cannot have priority {priority}: {failed}"),
            "run as root, grant CAP_SYS_NICE, or leave --priority out",
        );
    }
    let failed = command(&arguments.program).exec();
    let name = arguments.program[0].to_string_lossy().into_owned();
    let name = tautline_state::text::plain(&name, 200);
    CommandError::failed(
        format!("cannot run {name}: {failed}"),
        "name a program that exists and that you may execute",
    )
}

fn command(words: &[OsString]) -> Command {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    command
}

/// Lets the program lock memory and choose priorities, as far as this user may.
fn raise_limits() {
    for (resource, wanted) in [
        (Resource::Memlock, None),
        (Resource::Rtprio, Some(PRIORITY_MAX)),
    ] {
        let now = getrlimit(resource);
        let both = |value| Rlimit {
            current: value,
            maximum: value,
        };
        let allows = |limit: Option<u64>| limit.is_none() || (wanted.is_some() && limit >= wanted);
        if allows(now.current) {
            continue;
        }
        if setrlimit(resource, both(wanted)).is_err() {
            let soft = Rlimit {
                current: now.maximum,
                ..now
            };
            let _ = setrlimit(resource, soft); // the limit that was there allows what it allows
        }
    }
}

fn in_its_own(arguments: &Arguments, cpus: &CpuList) -> Result<(), CommandError> {
    let config = super::config(&arguments.name, cpus)?;
    let stand_in = StandIn::begin();
    // Before the partition: nothing is left whenever this process is killed.
    let guard = Guard::start()?;
    let made = Partition::create(&config).map_err(error);
    let outcome = made.and_then(|partition| {
        let started = start_program(arguments, stand_in);
        let ended = started.map(|program| code_of(program.wait()));
        let ended = ended.map_err(|failed| not_started(&failed));
        partition.put_back().map_err(error)?;
        ended
    });
    drop(guard);
    match outcome? {
        0 => Ok(()),
        status => Err(CommandError::answer(status)),
    }
}

fn not_started(failed: &io::Error) -> CommandError {
    CommandError::failed(
        format!("cannot start a process: {failed}"),
        "raise the limits of processes and descriptors (ulimit -a)",
    )
}

/// Starts this command once more, which enters the partition and becomes the program.
fn start_program(arguments: &Arguments, stand_in: StandIn) -> io::Result<Program> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["partition", "run", &arguments.name]);
    if let Some(priority) = arguments.priority {
        command.arg(format!("--priority={priority}"));
    }
    command.arg("--").args(&arguments.program);
    stand_in.start(&mut command)
}

/// Process that puts the partition of this one back should this one be killed. Dropped, it ends: it has nothing to do
/// any more, and were it left, it would end with this process.
#[derive(Debug)]
pub struct Guard {
    _child: KilledOnDrop,
}

impl Guard {
    /// Starts it; before the partition is made, so that nothing is left at any moment.
    ///
    /// # Errors
    /// No process can be started.
    pub fn start() -> Result<Guard, CommandError> {
        let program = std::env::current_exe().map_err(|failed| not_started(&failed))?;
        let started = Command::new(program)
            .args(["guard", &std::process::id().to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            // Its own group: the terminal's signals are not for it.
            .process_group(0)
            .spawn();
        let child = started.map_err(|failed| not_started(&failed))?;
        Ok(Guard {
            _child: KilledOnDrop(child),
        })
    }
}

/// Exit status of a program, 128 + n if signal n ended it.
fn code_of(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| Some(128 + status.signal()?));
    let code = code.and_then(|code| u8::try_from(code).ok());
    code.unwrap_or(CommandError::FAILED)
}

/// Waits for the owner's end, and puts back what it left, if it was killed: its partition, and what else a flight has.
/// Each program that starts a [`Guard`] has this as its hidden command `guard`.
///
/// # Errors
/// Something could not be put back.
pub fn guard(arguments: &GuardArguments) -> Result<(), CommandError> {
    // Registered, they no longer end this process; it has no other use for them.
    let _ignored = Signals::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM]);
    let owner = Pid::from_raw(arguments.owner);
    if let Some(Ok(owner)) = owner.map(|owner| pidfd_open(owner, PidfdFlags::empty())) {
        let mut ended = [PollFd::new(&owner, PollFlags::IN)];
        while poll(&mut ended, None) == Err(rustix::io::Errno::INTR) {}
    }
    let number = u32::try_from(arguments.owner).unwrap_or_default();
    match leftovers::of_ended(number).as_slice() {
        [] => Ok(()),
        refused => Err(CommandError::failed(
            refused.join("; "),
            "see `taut doctor --put-back`",
        )),
    }
}
