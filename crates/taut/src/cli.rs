//! The command line: one subcommand, one module of [`commands`](crate::commands).
//!
//! Exit status: 0 done, 1 failed, 2 wrong usage, 3 and 4 the answers of `taut-lab lab`, 128 + n ended by signal n.

use std::fmt;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::builder::{PathBufValueParser, TypedValueParser};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::commands::{
    bus, capture, completions, doctor, echo, exec, guest, init, key, man, node, partition, ping,
    record, recv, replay, send, serve, smooth, status, task, top, types,
};
use crate::{external, help};
use tautline_state::interrupt;
use tautline_state::text::plain_lines;

/// Real-time networking on stock Linux: try it, measure it, look at it.
#[derive(Debug, Parser)]
#[command(
    name = "taut",
    version,
    propagate_version = true,
    arg_required_else_help = true
)]
pub struct Cli {
    /// Command to run.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands; module `help` has their groups.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run an unmodified program whose waits end awake.
    Exec(exec::Arguments),
    /// Send a message.
    Send(send::Arguments),
    /// Wait for messages and write them to standard output.
    Recv(recv::Arguments),
    /// Measure round trips to a node that runs `taut echo`.
    Ping(ping::Arguments),
    /// Answer the messages of `taut ping`.
    Echo(echo::Arguments),
    /// Show what ports send and receive, or write it into a file for Wireshark.
    Capture(capture::Arguments),
    /// Record the messages of ports in a file (MCAP).
    Record(record::Arguments),
    /// Send the messages of a recording again.
    Replay(replay::Arguments),
    /// Show the open nodes: link, neighbours, ports, counters.
    Status(status::Arguments),
    /// Show everything that runs here, again and again.
    Top(top::Arguments),
    /// Serve a page that shows everything live, and metrics for Prometheus.
    Serve(serve::Arguments),
    /// Write the configuration file of a node, and say what to type on the other host.
    Init(init::Arguments),
    /// Make and renew keys that two nodes share.
    Key(key::Arguments),
    /// Print the types of messages of a configuration file, also for C, Rust and Python.
    Types(types::Arguments),
    /// Analyse, run and watch real-time tasks.
    Task(task::Arguments),
    /// Set CPUs aside for real-time work.
    Partition(partition::Arguments),
    /// Serve several processes on one interface.
    Node(node::Arguments),
    /// Look at ports between the processes of this machine.
    Bus(bus::Arguments),
    /// Show what this machine supports, and what would improve it.
    Doctor(doctor::Arguments),
    /// Hold other traffic back, so that no switch drops messages.
    Smooth(smooth::Arguments),
    /// Run bare-metal and RTOS programs as guests.
    Guest(guest::Arguments),
    /// A command of another program.
    #[command(flatten)]
    External(external::Command),
    /// Write the completions of a shell to standard output.
    #[command(hide = true)]
    Completions(completions::Arguments),
    /// Write the manual pages of all commands.
    #[command(hide = true)]
    Man(man::Arguments),
    /// Wait for the end of a process, and put back the partition that it leaves.
    #[command(hide = true)]
    Guard(partition::GuardArguments),
}

/// How a command ended that did not succeed.
#[derive(Debug)]
pub struct CommandError {
    what: String,
    remedy: Option<String>,
    status: u8,
}

impl CommandError {
    /// Exit status of a command that failed.
    pub const FAILED: u8 = 1;
    /// Exit status of a command that was called wrongly.
    pub const USAGE: u8 = 2;

    /// The command failed: what happened, and what to do next.
    pub fn failed(what: impl Into<String>, remedy: impl Into<String>) -> CommandError {
        CommandError {
            what: what.into(),
            remedy: Some(remedy.into()),
            status: Self::FAILED,
        }
    }

    /// The command was called wrongly.
    pub fn usage(what: impl Into<String>, remedy: impl Into<String>) -> CommandError {
        CommandError {
            status: Self::USAGE,
            ..CommandError::failed(what, remedy)
        }
    }

    /// The command was called by words of an earlier version.
    fn renamed(what: String) -> CommandError {
        CommandError {
            what,
            remedy: None,
            status: Self::USAGE,
        }
    }

    /// A signal ended the command in order.
    pub fn interrupted(signal: i32) -> CommandError {
        CommandError {
            what: format!("interrupted by signal {signal}"),
            remedy: None,
            status: u8::try_from(128 + signal).unwrap_or(Self::FAILED),
        }
    }

    /// The command did its work and the answer is no: nothing is printed beyond its own output.
    pub fn answer_is_no() -> CommandError {
        CommandError {
            what: String::new(),
            remedy: None,
            status: Self::FAILED,
        }
    }

    /// The command did its work and its answer is this exit status: nothing is printed beyond its own output.
    pub fn answer(status: u8) -> CommandError {
        CommandError {
            status,
            ..CommandError::answer_is_no()
        }
    }

    /// A command that only shows ends quietly: the reader of its output has enough (`| head`).
    pub fn reader_gone() -> CommandError {
        CommandError::answer(0)
    }

    /// The same of a file that cannot be made: wrong usage, unless there is one already or no space for it.
    #[must_use]
    pub fn of_place(self, why: ErrorKind) -> CommandError {
        let status = match why {
            ErrorKind::AlreadyExists | ErrorKind::WouldBlock | ErrorKind::StorageFull => {
                self.status
            }
            _ => Self::USAGE,
        };
        CommandError { status, ..self }
    }

    fn report(self, program: &str) -> ExitCode {
        let mut stderr = io::stderr().lock();
        // Names and paths in them may be anybody's, and a terminal would obey them.
        if !self.what.is_empty() {
            let _ = writeln!(stderr, "{program}: {}", plain_lines(&self.what));
        }
        if let Some(remedy) = self.remedy {
            let _ = writeln!(stderr, "  what to do: {}", plain_lines(&remedy));
        }
        ExitCode::from(self.status)
    }
}

/// Parses the process's arguments, runs the subcommand and turns its end into an exit status.
pub fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args_os()
        .skip(1)
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    if let Some(sentence) = help::new_words(&arguments) {
        return CommandError::renamed(sentence).report("taut");
    }
    main_of(grammar(), is_for_program, |cli: Cli| run(cli.command))
}

/// Whether this process becomes another program, which gets the signals itself and may take its time to end, or the
/// machine of a guest, which has no thread beside its own.
fn is_for_program(cli: &Cli) -> bool {
    match &cli.command {
        Command::Partition(arguments) => arguments.runs_program(),
        Command::Guest(arguments) => arguments.is_monitor(),
        Command::Exec(_) | Command::External(_) | Command::Guard(_) => true,
        _ => false,
    }
}

/// The main function of `taut` and of the programs beside it, by a grammar of `C`. Signals are watched for unless
/// `is_left_alone` says that the process takes care of them.
pub fn main_of<C: FromArgMatches>(
    grammar: clap::Command,
    is_left_alone: impl FnOnce(&C) -> bool,
    run: impl FnOnce(C) -> Result<(), CommandError>,
) -> ExitCode {
    let name = grammar.get_name().to_owned();
    let cli = C::from_arg_matches(&grammar.get_matches()).unwrap_or_else(|error| error.exit());
    // A write beyond `ulimit -f` is an error then, and not the end.
    let _as_before = signal_hook::flag::register(libc::SIGXFSZ, Arc::default());
    if !is_left_alone(&cli)
        && let Err(error) = interrupt::watch()
    {
        return CommandError::failed(
            format!("cannot watch for signals: {error}"),
            interrupt::remedy(&error),
        )
        .report(&name);
    }
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => error.report(&name),
    }
}

fn run(command: Command) -> Result<(), CommandError> {
    match command {
        Command::Init(arguments) => init::run(arguments),
        Command::Doctor(arguments) => doctor::run(arguments),
        Command::Node(arguments) => node::run(arguments),
        Command::Smooth(arguments) => smooth::run(arguments),
        Command::Key(arguments) => key::run(arguments),
        Command::Status(arguments) => status::run(arguments),
        Command::Top(arguments) => top::run(arguments),
        Command::Serve(arguments) => serve::run(arguments),
        Command::Echo(arguments) => echo::run(arguments),
        Command::Ping(arguments) => ping::run(arguments),
        Command::Exec(arguments) => exec::run(arguments),
        Command::Send(arguments) => send::run(arguments),
        Command::Recv(arguments) => recv::run(arguments),
        Command::Capture(arguments) => capture::run(arguments),
        Command::Types(arguments) => types::run(arguments),
        Command::Record(arguments) => record::run(arguments),
        Command::Replay(arguments) => replay::run(arguments),
        Command::Bus(arguments) => bus::run(arguments),
        Command::Task(arguments) => task::run(arguments),
        Command::Partition(arguments) => partition::run(arguments),
        Command::Guest(arguments) => guest::run(arguments),
        Command::External(command) => external::run(command),
        Command::Completions(arguments) => completions::run(&arguments, grammar()),
        Command::Man(arguments) => man::run(&arguments, grammar()),
        Command::Guard(arguments) => partition::guard(&arguments),
    }
}

/// The whole grammar, also for completions and tests.
pub fn grammar() -> clap::Command {
    help::HELP.add_to(grammar_of::<Cli>())
}

/// The grammar of a program by the rules of all of them, without [`Help`](help::Help).
pub fn grammar_of<C: CommandFactory>() -> clap::Command {
    refined(C::command())
}

/// Rules for all subcommands. A negative number is a wrong value, not an unknown option. Help has one form, `--help`.
/// `--json FILE` is the same as `--json=FILE` where no argument could be meant by it.
fn refined(command: clap::Command) -> clap::Command {
    let takes_words = command
        .get_positionals()
        .any(|argument| argument.get_possible_values().is_empty());
    let has_json = command.get_arguments().any(|one| one.get_id() == "json");
    let command = command
        .allow_negative_numbers(true)
        .disable_help_subcommand(true);
    let command = if has_json && !takes_words {
        command.mut_arg("json", |json| json.require_equals(false))
    } else {
        command
    };
    command.mut_subcommands(refined)
}

/// Writes text to standard output. Names in it may be anybody's, and a terminal would obey them. A reader that has gone
/// away is no error: the command has other work to do.
pub fn print(text: &str) -> Result<(), CommandError> {
    print_styled(&plain_lines(text))
}

/// Writes text with colours, whose names are plain already, to standard output.
pub fn print_styled(text: &str) -> Result<(), CommandError> {
    match write_out(text.as_bytes()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.map_err(|error| not_shown(&error)),
    }
}

/// [`print()`] for a command that does nothing but show, again and again: it ends when its reader has gone
/// ([`CommandError::reader_gone`]).
pub fn show_text(text: &str) -> Result<(), CommandError> {
    show(plain_lines(text).as_bytes())
}

/// Writes bytes as they are, for a command that does nothing but show.
pub fn show(bytes: &[u8]) -> Result<(), CommandError> {
    write_out(bytes).map_err(|error| match error.kind() {
        ErrorKind::BrokenPipe => CommandError::reader_gone(),
        _ => not_shown(&error),
    })
}

/// Writes a line to standard error, for the macro of the same name. A reader that has gone away is no error.
pub fn say(line: fmt::Arguments<'_>) {
    let _unread = io::stderr()
        .lock()
        .write_all(format!("{}\n", plain_lines(&line.to_string())).as_bytes());
}

fn write_out(bytes: &[u8]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes).and_then(|()| stdout.flush())
}

fn not_shown(error: &io::Error) -> CommandError {
    CommandError::failed(
        format!("cannot write to standard output: {error}"),
        "check where the output goes to",
    )
}

/// Writes a result file; `-` is standard output.
pub fn write_file(path: &Path, text: &str) -> Result<(), CommandError> {
    if path == Path::new("-") {
        return print(text);
    }
    tautline_state::write_whole(path, text.as_bytes())
        .map_err(|error| not_written(path, &error.into()))
}

/// The first error of steps that were all taken, such as printing a table and writing files: what took an hour to
/// measure is shown although a file of it could not be written, and the other way round.
pub fn all<const COUNT: usize>(
    steps: [Result<(), CommandError>; COUNT],
) -> Result<(), CommandError> {
    steps.into_iter().collect()
}

/// Reads the path of a result file, `-` for standard output. One where no file can be made is refused now, and not when
/// everything has been measured.
pub fn result_file() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| match path == Path::new("-") {
        true => Ok(path),
        false => match tautline_state::check_place(&path) {
            Ok(()) => Ok(path),
            Err(error) => Err(format!(
                "{error}; what to do: name a file in a directory that exists and that you may write to"
            )),
        },
    })
}

/// Makes the directory for results, if it is missing, and looks whether files can be made there.
pub fn make_directory(directory: &Path) -> Result<(), CommandError> {
    let made = std::fs::create_dir_all(directory);
    let checked = made.and_then(|()| {
        tautline_state::check_place(&directory.join("report.html")).map_err(io::Error::from)
    });
    checked.map_err(|error| {
        CommandError::usage(
            format!("cannot make files in {}: {error}", directory.display()),
            "name one that you may write to with --out",
        )
    })
}

/// Reads the path of a recording, which is never standard output.
pub fn recording_file() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| match path == Path::new("-") {
        true => {
            Err("a recording is a file, and not standard output: its index is written at the end")
        }
        false => Ok(path),
    })
}

/// A file that could not be made.
pub fn not_made(path: &Path, error: &io::Error) -> CommandError {
    not_written(path, error).of_place(error.kind())
}

/// A file that could not be written.
pub fn not_written(path: &Path, error: &io::Error) -> CommandError {
    let remedy = match error.kind() {
        ErrorKind::AlreadyExists => "name another file, or give --overwrite",
        ErrorKind::WouldBlock => "name another file, or end the program that writes this one",
        _ => "name a file in a directory that exists, that you may write to, and that has space",
    };
    CommandError::failed(format!("cannot write {}: {error}", path.display()), remedy)
}

/// The file of this program, to start it again.
///
/// # Errors
/// `/proc` is not mounted.
pub fn this_program() -> Result<PathBuf, CommandError> {
    std::env::current_exe().map_err(|error| {
        CommandError::failed(
            format!("this program cannot be found: {error}"),
            "mount /proc",
        )
    })
}

/// Path of a file that is code or names code, if no other user can write or replace it.
pub(crate) fn trusted_code(path: &Path) -> Result<PathBuf, CommandError> {
    tautline_state::trusted_file(path).map_err(|error| {
        CommandError::usage(
            error.to_string(),
            "use a file that belongs to you or root, and that others cannot write: chmod o-w, or install it anew",
        )
    })
}

/// Checks a file that the user named and that is code or names code, for root, whose privileges that code gets.
pub(crate) fn check_code_for_root(path: &Path) -> Result<(), CommandError> {
    let is_file = std::fs::metadata(path).is_ok_and(|found| found.is_file());
    if is_file && rustix::process::geteuid().is_root() {
        trusted_code(path)?;
    }
    Ok(())
}

/// Checks a grammar by the rules of all programs: it is sound, each command and option is described, and times and
/// sizes have units. Returns the number of options that take a time or a size.
///
/// # Panics
/// A rule is broken. This is for the tests of each program.
pub fn assert_by_the_rules(grammar: &clap::Command) -> usize {
    grammar.clone().debug_assert();
    assert_described(grammar)
}

fn assert_described(command: &clap::Command) -> usize {
    let name = command.get_name();
    assert!(command.get_about().is_some(), "{name}");
    let mut measures = 0;
    for argument in command.get_arguments() {
        assert!(
            argument.get_help().is_some(),
            "{name} {}",
            argument.get_id()
        );
        let names = argument.get_value_names().unwrap_or_default();
        if names
            .iter()
            .any(|name| ["TIME", "SIZE"].contains(&name.as_str()))
        {
            measures += 1;
            let long = format!("--{}=5", argument.get_long().expect("an option"));
            let parsed = command.clone().try_get_matches_from([name, &long]);
            let error = parsed.expect_err(&long).to_string();
            assert!(error.contains("with its unit"), "{error}");
        }
    }
    let below = command.get_subcommands().map(assert_described);
    measures + below.sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grammar_keeps_the_rules() {
        assert!(assert_by_the_rules(&grammar()) > 10);
    }
}
