//! `taut exec` without a node: the program's waits and sleeps end awake. Any card, any descriptor, no privilege.

use std::os::unix::process::CommandExt;
use std::process::Command;

use tautline_state::policy::set_policy;

use super::{Arguments, library, not_run, preloaded, program};
use crate::cli::CommandError;

/// File of the library that makes waits end awake, and the package that it is built from.
const LIBRARY: (&str, &str) = ("libtautline_awake_preload.so", "tautline-awake-preload");

/// Becomes the program; returns only if that fails.
pub(super) fn run(arguments: &Arguments) -> Result<(), CommandError> {
    if !arguments.local.is_empty()
        || !arguments.remote.is_empty()
        || !arguments.ethertype.is_empty()
        || arguments.explain.is_some()
    {
        return Err(CommandError::usage(
            "--local, --remote, --ethertype and --explain are for sockets that become ports of a node",
            "name its interface with --interface, or its file with --config",
        ));
    }
    let name = &arguments.program[0];
    let mut command = Command::new(name);
    command.args(&arguments.program[1..]);
    match program::check(name)? {
        Some(why) => say!(
            "taut exec: the waits of {} stay as they are: {why}",
            program::plain(name)
        ),
        None => {
            let words = [(arguments.watch, "watch"), (arguments.report, "report")];
            let set = words.iter().filter(|(is_set, _)| *is_set);
            let mut words: Vec<String> = set.map(|(_, word)| (*word).to_owned()).collect();
            words.push(std::process::id().to_string());
            command
                .env("LD_PRELOAD", preloaded(&library(LIBRARY)?))
                .env("TAUTLINE_AWAKE", words.join(","));
        }
    }
    if let Some(priority) = arguments.fifo
        && let Err(error) = set_policy(0, libc::SCHED_FIFO, priority.into())
    {
        say!(
            "taut exec: without SCHED_FIFO: {error}; it takes CAP_SYS_NICE or a limit (ulimit -r)"
        );
    }
    Err(not_run(name, &command.exec()))
}
