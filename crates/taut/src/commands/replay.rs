//! `taut replay`: a recording is sent again: as it was spaced, as fast as possible, or in the simulator.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use tautline::{Destination, PortNumber, Priority, QueuingPort, SendError};
use tautline_capture::message::{Flow, Message};
use tautline_capture::recording::{Recording, RecordingError};
use tautline_state::interrupt;
use tautline_state::policy;

use crate::cli::{self, CommandError};
use crate::commands::live::pause;
use crate::commands::output;
use crate::commands::peer::{self, NodeArguments};
use crate::units;

mod simulated;

/// Real-time priority of the sending thread: above ordinary programs, below the receive processing of a tuned machine.
const FIFO_PRIORITY: i32 = 40;

/// Time before the first message, so that it is not late because the node has just opened.
const LEAD: Duration = Duration::from_millis(10);

/// Waits longer than this look whether the command is to end.
const LONG_WAIT: Duration = Duration::from_millis(20);

/// Longest pause between two messages that is waited for. Lower: recordings of rare messages need --fast. Higher: a
/// wrong time stamp in a file of others, mostly 0, is waited for until a user looks.
const PAUSE_MAX: Duration = Duration::from_secs(24 * 3600);

/// Pause that the user is told of before it begins. Lower: lines about what everybody sees. Higher: the command seems
/// to hang.
const PAUSE_TOLD: Duration = Duration::from_secs(60);

/// Arguments of `taut replay`.
#[derive(Debug, Args)]
pub struct Arguments {
    /// File that `taut record` wrote (MCAP).
    file: PathBuf,
    /// Peer that gets the messages: a neighbour of the configuration file or of the control process, a MAC or IPv4
    /// address, or a node of the bus.
    #[arg(long, value_name = "PEER", required_unless_present = "sim")]
    to: Option<String>,
    #[command(flatten)]
    node: NodeArguments,
    /// Only messages to this port.
    #[arg(long, value_name = "N", value_parser = peer::port_number)]
    port: Option<PortNumber>,
    /// Own port to send from [default: that of each message].
    #[arg(long, value_name = "N", value_parser = peer::port_number)]
    from: Option<PortNumber>,
    /// Send as fast as possible, in place of the recorded spacing.
    #[arg(long)]
    fast: bool,
    /// Send between simulated nodes, in virtual time, and compare the messages that arrive with the recorded ones.
    #[arg(long, conflicts_with_all = ["to", "interface", "config", "bus", "address", "link", "from", "fast"])]
    sim: bool,
    /// Record the messages that arrive in the simulator (MCAP).
    #[arg(long, short, value_name = "FILE", value_parser = cli::recording_file())]
    write: Option<PathBuf>,
    /// Overwrite the file of --write if it exists.
    #[arg(long, requires = "write")]
    overwrite: bool,
}

/// Replays the whole recording. With `--sim`, another message or order than the recorded one: exit status 1.
pub fn run(arguments: Arguments) -> Result<(), CommandError> {
    if arguments.write.is_some() && !arguments.sim {
        return Err(CommandError::usage(
            "--write records what arrives in the simulator",
            "add --sim, or leave --write out",
        ));
    }
    let refused = |error: &RecordingError| {
        let what = format!("{} cannot be replayed: {error}", arguments.file.display());
        let remedy = match error {
            RecordingError::Io(_) => "name a file that `taut record` wrote and that you may read",
            error => error.remedy(),
        };
        CommandError::usage(what, remedy)
    };
    let mut recording = Recording::open(&arguments.file).map_err(|error| refused(&error))?;
    let wanted = wanted(&arguments, &recording)?;
    if arguments.sim {
        let existing = output::existing(arguments.overwrite);
        let write = arguments.write.as_deref();
        return simulated::run(recording, &wanted, write.map(|path| (path, existing)));
    }
    if !arguments.fast {
        let (number, pause) =
            longest_pause(&mut recording, &wanted).map_err(|error| refused(&error))?;
        check_pause(number, pause)?;
    }
    let mut sender = Sender::open(&arguments, &recording, wanted)?;
    if !arguments.fast {
        take_priority();
    }
    sender.play(recording, arguments.fast)
}

/// Whether each flow is replayed.
fn wanted(
    arguments: &Arguments,
    recording: &Recording<BufReader<File>>,
) -> Result<Vec<bool>, CommandError> {
    let is_wanted = |flow: &Flow| {
        let port = arguments.port.map(PortNumber::get);
        port.is_none_or(|port| port == flow.destination_port)
    };
    let wanted: Vec<bool> = recording.flows().iter().map(is_wanted).collect();
    if wanted.contains(&true) {
        return Ok(wanted);
    }
    let ports = recording
        .flows()
        .iter()
        .map(|flow| flow.destination_port.to_string());
    let ports: std::collections::BTreeSet<String> = ports.collect();
    let list: Vec<String> = ports.into_iter().collect();
    Err(CommandError::failed(
        "the recording holds no such message",
        match list.is_empty() {
            true => "record while messages are sent".to_owned(),
            false => format!("it has messages to the ports {}", list.join(", ")),
        },
    ))
}

/// The longest pause between two messages that are sent, and the number of the second one among them.
fn longest_pause(
    recording: &mut Recording<BufReader<File>>,
    wanted: &[bool],
) -> Result<(u64, Duration), RecordingError> {
    let (mut number, mut last_ns) = (0, None);
    let mut longest = (0, 0);
    recording.play(|place, message| {
        if wanted[place] {
            number += 1;
            let pause_ns = message.time_ns - last_ns.unwrap_or(message.time_ns);
            last_ns = Some(message.time_ns);
            longest = std::cmp::max_by_key(longest, (number, pause_ns), |(_, pause_ns)| *pause_ns);
        }
        Ok::<(), RecordingError>(())
    })?;
    let (number, pause_ns) = longest;
    Ok((number, Duration::from_nanos(pause_ns)))
}

/// Refuses a pause that is too long, and reports a long one.
fn check_pause(number: u64, pause: Duration) -> Result<(), CommandError> {
    let hours = pause.as_secs_f64() / 3600.0;
    if pause > PAUSE_MAX {
        return Err(CommandError::failed(
            format!(
                "message {number} is stamped {hours:.1} h after the one before it, which is not waited for"
            ),
            "send without waiting (--fast), or correct the time stamps of the recording",
        ));
    }
    if pause > PAUSE_TOLD {
        say!("the longest pause is {hours:.2} h, before message {number}; --fast does not wait");
    }
    Ok(())
}

/// Gives this thread a real-time priority where that is allowed.
fn take_priority() {
    if let Err(error) = policy::set_policy(0, libc::SCHED_FIFO, FIFO_PRIORITY) {
        say!("not under SCHED_FIFO, so that messages may be late: {error}");
    }
}

/// How a replay ended that did not succeed.
enum Stop {
    Failed(CommandError),
    Interrupted(i32),
    Recording(RecordingError),
}

impl From<RecordingError> for Stop {
    fn from(error: RecordingError) -> Stop {
        Stop::Recording(error)
    }
}

/// The node that sends, with its ports.
struct Sender {
    /// Dropped after its ports.
    ports: Vec<QueuingPort>,
    _node: tautline::Node,
    /// Place of the port and destination of each flow that is replayed.
    ways: Vec<Option<(usize, Destination, Priority)>>,
}

impl Sender {
    fn open(
        arguments: &Arguments,
        recording: &Recording<BufReader<File>>,
        wanted: Vec<bool>,
    ) -> Result<Sender, CommandError> {
        let to = arguments.to.as_deref().unwrap_or_default();
        let (node, name) = arguments.node.open_with_peer(to)?;
        cli::print(&format!("{}\n", node.report()))?;
        let mut ports = Vec::new();
        let mut places = BTreeMap::new();
        let mut ways = Vec::new();
        for (flow, is_wanted) in recording.flows().iter().zip(wanted) {
            if !is_wanted {
                ways.push(None);
                continue;
            }
            let own = arguments.from.unwrap_or(number(flow.source_port));
            let place = match places.entry(own) {
                Entry::Occupied(place) => *place.get(),
                Entry::Vacant(place) => {
                    ports.push(peer::open_any(&node, Some(own))?);
                    *place.insert(ports.len() - 1)
                }
            };
            let destination = ports[place].destination(&name, number(flow.destination_port));
            let destination = destination.map_err(peer::port_error)?;
            ways.push(Some((place, destination, priority(flow))));
        }
        Ok(Sender {
            ports,
            _node: node,
            ways,
        })
    }

    fn play(
        &mut self,
        mut recording: Recording<BufReader<File>>,
        fast: bool,
    ) -> Result<(), CommandError> {
        let mut pace = Pace::new(fast);
        let (mut sent, mut refused) = (0u64, 0u64);
        let played = recording.play(|place, message| {
            let Some((port, to, priority)) = &self.ways[place] else {
                return Ok(());
            };
            if let Some(signal) = pace.wait(&message) {
                return Err(Stop::Interrupted(signal));
            }
            match self.ports[*port].send(*to, *priority, message.bytes) {
                Ok(()) => sent += 1,
                // A peer that is slower than the replay: it goes on, and says so.
                Err(SendError::TransmitQueueFull | SendError::ReceiverFull) => refused += 1,
                Err(error) => return Err(Stop::Failed(peer::send_error(error))),
            }
            Ok(())
        });
        let full = match refused {
            0 => String::new(),
            count => format!(", {count} not sent because the link was full"),
        };
        let printed = cli::print(&format!("{sent} sent{}{full}\n", pace.lateness()));
        match played {
            Ok(()) => printed,
            Err(Stop::Failed(error)) => Err(error),
            Err(Stop::Interrupted(signal)) => Err(CommandError::interrupted(signal)),
            Err(Stop::Recording(error)) => {
                Err(CommandError::failed(error.to_string(), error.remedy()))
            }
        }
    }
}

/// The recorded spacing, or none.
struct Pace {
    fast: bool,
    /// Time of the first message in the recording, and when it is due.
    begin: Option<(u64, Instant)>,
    late_ns: Vec<u64>,
}

impl Pace {
    fn new(fast: bool) -> Pace {
        Pace {
            fast,
            begin: None,
            late_ns: Vec::new(),
        }
    }

    /// Waits until the message is due. The signal that ended the wait, if one did.
    fn wait(&mut self, message: &Message<'_>) -> Option<i32> {
        if self.fast {
            return interrupt::interrupted();
        }
        let begin = self.begin;
        let (first_ns, start) = *self
            .begin
            .get_or_insert_with(|| (message.time_ns, Instant::now() + LEAD));
        let offset = Duration::from_nanos(message.time_ns.saturating_sub(first_ns));
        let due = start + offset;
        let left = due.saturating_duration_since(Instant::now());
        if left > LONG_WAIT
            && let Some(signal) = pause(left - LONG_WAIT / 2)
        {
            return Some(signal);
        }
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        if begin.is_some() {
            self.late_ns
                .push(units::ns(Instant::now().saturating_duration_since(due)));
        }
        interrupt::interrupted()
    }

    /// How late messages were, as a part of a sentence.
    fn lateness(&mut self) -> String {
        self.late_ns.sort_unstable();
        let Some(max) = self.late_ns.last() else {
            return String::new();
        };
        let median = self.late_ns[self.late_ns.len() / 2];
        let micros = |ns: u64| ns as f64 / 1e3;
        format!(
            ", late by {:.1} µs at the median, {:.1} µs at most",
            micros(median),
            micros(*max)
        )
    }
}

fn number(port: u16) -> PortNumber {
    PortNumber::new(port).expect("a recording is checked when it is opened")
}

fn priority(flow: &Flow) -> Priority {
    Priority::new(flow.priority).expect("a recording is checked when it is opened")
}
