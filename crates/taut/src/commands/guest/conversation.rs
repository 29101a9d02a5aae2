//! `taut guest console`: lines to a guest, and its messages, by one of its ports. The terminal edits the lines.

use std::io::{self, BufRead};
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use tautline::config::BusConfig;
use tautline::{
    Destination, Node, NodeConfig, PortNumber, Priority, QueuingPort, Wait, bus_neighbour,
};
use tautline_guest::control;
use tautline_state::interrupt;
use tautline_state::text;

use crate::cli::{self, CommandError};
use crate::commands::peer;
use crate::units;

/// Lines that wait to be sent. Lower: a pasted text stalls its terminal. Higher: more memory.
const LINES_MAX: usize = 64;
/// Longest wait for a message before the next look at the terminal. Lower: more wake-ups. Higher: a line goes later.
const LOOK_PERIOD: Duration = Duration::from_millis(10);

/// Arguments of `taut guest console`.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Name of the guest.
    name: String,
    /// Port of the guest.
    #[arg(long, value_name = "N", value_parser = peer::port_number, default_value_t = default_port())]
    port: PortNumber,
    /// Time to wait for an answer, such as 500ms.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = units::time)]
    timeout: Duration,
}

/// Port of a guest's echo.
pub(super) fn default_port() -> PortNumber {
    PortNumber::new(peer::ECHO_PORT).expect("the constant is in range")
}

/// A way to a guest's port, by the bus on which it is.
pub(super) struct Way {
    pub(super) port: QueuingPort,
    pub(super) to: Destination,
    _node: Node,
}

impl Way {
    /// Waits for the guest's port until the timeout is over.
    pub(super) fn open(
        name: &str,
        number: PortNumber,
        timeout: Duration,
    ) -> Result<Way, CommandError> {
        let found = control::find(name).map_err(super::error)?;
        let Some(bus) = found.network.strip_prefix("bus ") else {
            return Err(CommandError::failed(
                format!("the ports of guest `{name}` are on no bus"),
                "reach it from a node of its network: taut ping, taut send, taut recv",
            ));
        };
        let refused = |error: String| CommandError::failed(error, "see taut guest show");
        let own = format!("taut-{}", std::process::id());
        let own = own.parse().map_err(|_| refused(own.clone()))?;
        let guest = name
            .parse()
            .map_err(|error: tautline::address::BadNodeName| refused(error.to_string()))?;
        let config = NodeConfig::vbus(BusConfig::new(bus, own))
            .with_neighbour(bus_neighbour(guest))
            .map_err(|error| refused(error.to_string()))?;
        let node = Node::open(config).map_err(peer::open_error)?;
        let mut port = peer::open_any(&node, None)?;
        let until = tautline::now() + timeout;
        let to = port
            .destination_until(name, number, until)
            .map_err(peer::port_error)?;
        Ok(Way {
            port,
            to,
            _node: node,
        })
    }
}

/// Talks until the end of standard input, and then until the guest has been quiet for a while.
pub(super) fn run(arguments: &Arguments) -> Result<(), CommandError> {
    let mut way = Way::open(&arguments.name, arguments.port, arguments.timeout)?;
    let lines = read_lines();
    let mut buffer = vec![0; way.port.message_bytes_max()];
    let mut has_ended = false;
    let mut moved_at = Instant::now();
    while !(has_ended && moved_at.elapsed() >= arguments.timeout) {
        if let Some(signal) = interrupt::interrupted() {
            return Err(CommandError::interrupted(signal));
        }
        loop {
            match lines.try_recv() {
                Ok(line) => {
                    moved_at = Instant::now();
                    if let Err(error) = way.port.send(way.to, Priority::NORMAL, line.as_bytes()) {
                        cli::print(&format!("not sent: {error}\n"))?;
                    }
                }
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => {
                    has_ended = true;
                    break;
                }
            }
        }
        let until = tautline::now() + LOOK_PERIOD;
        let found = way.port.receive_into(&mut buffer, Wait::Until(until));
        if let Some(message) = found.map_err(peer::receive_error)? {
            moved_at = Instant::now();
            // The guest's text is not ours: nothing of it may move the cursor.
            let said = String::from_utf8_lossy(&buffer[..message.length]);
            let said = said.strip_suffix('\n').unwrap_or(&said);
            cli::print(&format!("{}\n", text::plain_lines(said)))?;
        }
    }
    Ok(())
}

/// Lines of standard input, read by a thread of its own: a terminal is waited for.
fn read_lines() -> Receiver<String> {
    let (lines, waiting) = mpsc::sync_channel(LINES_MAX);
    thread::spawn(move || {
        for line in io::stdin().lock().lines() {
            let Ok(line) = line else { return };
            if lines.send(line).is_err() {
                return;
            }
        }
    });
    waiting
}
