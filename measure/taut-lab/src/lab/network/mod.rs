//! `taut-lab lab network`: whether a card, its cable and the peer keep a cycle.
//!
//! [`session`] measures, [`verdict`] judges, [`result`] has the file, the table and the page.

mod card;
mod load;
mod result;
mod session;
mod verdict;

use std::net::{SocketAddr, SocketAddrV4, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use tautline_bench::network::Settings;
use tautline_state::interface;
use tautline_testbed::interrupt;

use super::answer;
use super::journal_guard::JournalGuard;
use super::run::period;
use taut::cli::{self, CommandError, result_file};
use taut::commands::output::JsonArguments;
use taut::units;

use load::PeerLoad;

/// UDP's echo service (RFC 862).
const ECHO_PORT: u16 = 7;

/// Arguments of `taut-lab lab network`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Interface to measure.
    #[arg(long, value_name = "IF")]
    interface: String,
    /// Echo on the other machine: a name or an IPv4 address, and a UDP port [default port: 7]. `taut echo --udp 7`, or
    /// any program that sends datagrams back.
    #[arg(long, value_name = "HOST[:PORT]")]
    peer: String,
    /// Time from one request to the next, such as 250us.
    #[arg(long, value_name = "TIME", default_value = "1ms", value_parser = period)]
    period: Duration,
    /// Time after which a reply is late, such as 500us [default: the period].
    #[arg(long, value_name = "TIME", value_parser = units::some_time)]
    deadline: Option<Duration>,
    /// Measuring time in all, divided evenly over loads and paths, such as 24h.
    #[arg(long = "for", value_name = "TIME", default_value = "1min", value_parser = units::some_time)]
    length: Duration,
    /// Loads, in order: idle, iperf3 (a TCP stream to `iperf3 -s` at the peer), cpu, memory, disk, network (on this
    /// machine), scheduling, vision, combined.
    #[arg(
        long = "load",
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "idle"
    )]
    loads: Vec<PeerLoad>,
    /// Record the kernel's trace, and name the likely culprit of the first ten late replies. The recording itself
    /// takes time.
    #[arg(long)]
    trace: bool,
    #[command(flatten)]
    json: JsonArguments,
    /// Write a page.
    #[arg(long, value_name = "FILE", value_parser = result_file())]
    html: Option<PathBuf>,
}

/// Runs `taut-lab lab network`.
pub(super) fn run(arguments: &Arguments) -> Result<(), CommandError> {
    let html = arguments.html.as_deref();
    arguments.json.shows_table(&[html])?;
    let settings = settings(arguments)?;
    let plan = session::Plan::new(&settings, &arguments.loads, arguments.length)?;
    let journal = arguments.trace.then(JournalGuard::open).transpose()?;
    let measured = session::run(&plan, journal.as_ref())?;
    let verdict = verdict::Verdict::of(&measured);
    cli::all([
        arguments.json.print_beside(
            &[html],
            || result::json(&measured, &verdict),
            || result::text(&measured, &verdict),
        ),
        match html {
            Some(file) => cli::write_file(file, &result::page(&measured, &verdict)),
            None => Ok(()),
        },
    ])?;
    if let Some(signal) = interrupt::interrupted() {
        return Err(CommandError::interrupted(signal));
    }
    answer(verdict.exit_status())
}

fn settings(arguments: &Arguments) -> Result<Settings, CommandError> {
    let interface = &arguments.interface;
    if interface::index(interface).is_err() {
        return Err(CommandError::usage(
            format!("there is no interface `{interface}` here"),
            "name one of the interfaces of `ip link`",
        ));
    }
    let deadline = arguments.deadline.unwrap_or(arguments.period);
    if deadline > arguments.period {
        return Err(CommandError::usage(
            format!(
                "--deadline {deadline:?} is longer than the period of {:?}",
                arguments.period
            ),
            "a cycle needs its reply before the next one begins: give a shorter --deadline, or a longer --period",
        ));
    }
    Ok(Settings {
        interface: interface.clone(),
        peer: peer(&arguments.peer)?,
        period: arguments.period,
        deadline,
    })
}

/// Address of a peer that is named with or without a port.
fn peer(text: &str) -> Result<SocketAddrV4, CommandError> {
    let found = match text.contains(':') {
        true => text.to_socket_addrs(),
        false => (text, ECHO_PORT).to_socket_addrs(),
    };
    let remedy = "give an IPv4 address or a name that has one, such as 10.0.0.2 or 10.0.0.2:7007";
    let not_found = |why: String| CommandError::usage(format!("--peer {text}: {why}"), remedy);
    let mut addresses = found.map_err(|error| not_found(error.to_string()))?;
    let address = addresses.find_map(|address| match address {
        SocketAddr::V4(address) => Some(address),
        SocketAddr::V6(_) => None,
    });
    let address = address.ok_or_else(|| not_found("it has no IPv4 address".to_owned()))?;
    match address.port() {
        0 => Err(not_found("UDP port 0 is invalid".to_owned())),
        _ => Ok(address),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_has_the_port_of_echoes_unless_it_names_one() {
        assert_eq!(peer("10.0.0.2").unwrap().to_string(), "10.0.0.2:7");
        assert_eq!(peer("10.0.0.2:7007").unwrap().to_string(), "10.0.0.2:7007");
        for wrong in ["10.0.0.2:0", "10.0.0.2:x", "[::1]:7", ""] {
            assert!(peer(wrong).is_err(), "{wrong}");
        }
    }
}
