//! `taut node run`: the control process of an interface.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::PathBuf;

use clap::Args;
use tautline::OpenError;
use tautline::config::{ServiceConfig, TuneConfig};
use tautline::control::Server;
use tautline_state::interrupt;
use tautline_state::journal::PutBack;

use crate::cli::{self, CommandError};
use crate::commands::peer;
use crate::firewall;
use crate::tune::{self, Tuned};

/// Arguments of `taut node run`.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Configuration file of the node (TOML); its [[allow]] entries grant ports to other users.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Detach the demux that a predecessor left with other settings or of another version, though processes hold it:
    /// they receive nothing any more.
    #[arg(long)]
    replace: bool,
}

/// Serves until told to end.
pub(super) fn run(arguments: Arguments) -> Result<(), CommandError> {
    let mut config =
        ServiceConfig::from_policy_file(&arguments.config).map_err(peer::open_error)?;
    config.replace = arguments.replace;
    let rules = config.allow.len();
    let stop = interrupt::descriptor().map_err(|error| {
        CommandError::failed(
            format!("cannot watch for signals: {error}"),
            interrupt::remedy(&error),
        )
    })?;
    let (interface, wanted) = (config.node.interface.clone(), config.tune.clone());
    if wanted.is_none() && is_tuned(interface.as_deref().unwrap_or_default()) {
        // By a predecessor. Putting that back needs the poll of a veth, as having polls in threads does.
        config.tune = Some(TuneConfig {
            threaded: Some(true),
            ..TuneConfig::default()
        });
    }
    let confine = config.confine;
    let mut server = Server::open(config).map_err(not_opened)?;
    // After the demux is attached, without which a veth has no poll. Undone before it may be detached.
    let tuned = tune(interface.as_deref().unwrap_or_default(), wanted)?;
    let mut text = format!("{}\n", server.report());
    match server.taken_over() {
        0 => {}
        ports => text += &format!("taken over from a predecessor: {ports} open ports\n"),
    }
    if let Some(other) = server.replaced() {
        text += &format!("detached: {other}; they receive nothing until they are started again\n");
    }
    text += &format!("serving clients; [[allow]] entries: {rules}; root needs none\n");
    if let Some(tuned) = &tuned {
        text += &tuned.text();
    }
    match confine {
        true => text += &format!("{}\n", server.confine(tuned.is_some())),
        false => text += "not confined: `confine = false` in the configuration\n",
    }
    cli::print(&text)?;
    firewall::warn();
    if let Err(error) = notify("READY=1") {
        say!("taut: the service manager was not told that this process is ready: {error}");
    }
    let served = server
        .run(&stop)
        .map_err(|error| CommandError::failed(error.to_string(), error.remedy()));
    if let Some(tuned) = tuned {
        say(&tuned.put_back())?;
    }
    served
}

/// Errors for which this command knows more than others.
fn not_opened(error: OpenError) -> CommandError {
    match &error {
        OpenError::InterfaceMissing { .. } => {
            CommandError::usage(error.to_string(), "set `interface` in the configuration")
        }
        OpenError::NotPermitted { .. } => CommandError::failed(
            error.to_string(),
            "run as root, or grant the capabilities as contrib/systemd/taut-node@.service does",
        ),
        _ => peer::open_error(error),
    }
}

/// Whether the interface is tuned, or its settings were not put back.
fn is_tuned(interface: &str) -> bool {
    let tuned = tune::tuned_interfaces();
    tuned.iter().any(|name| name == interface)
}

/// Applies the [tune] section, and puts back what a predecessor that was killed left.
fn tune(interface: &str, wanted: Option<TuneConfig>) -> Result<Option<Tuned>, CommandError> {
    let Some(wanted) = wanted else {
        if is_tuned(interface) {
            say(&tune::put_back_left(interface).map_err(super::tune::error)?)?;
        }
        return Ok(None);
    };
    let mut tuned = Tuned::begin(interface).map_err(super::tune::error)?;
    tuned.apply(&wanted).map_err(super::tune::error)?;
    Ok(Some(tuned))
}

/// Settings that were put back, and those that could not be.
fn say(put_back: &PutBack) -> Result<(), CommandError> {
    let refused = put_back.refused.iter();
    refused.for_each(|line| say!("taut: {line}"));
    let mut done = put_back.done.iter();
    done.try_for_each(|line| cli::print(&format!("{line}\n")))
}

/// Tells the service manager something, if there is one that wants to know (sd_notify(3)).
fn notify(state: &str) -> io::Result<()> {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else {
        return Ok(());
    };
    let address = match name.as_encoded_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(name)?,
    };
    let socket = UnixDatagram::unbound()?;
    // A service manager that does not read is not waited for.
    socket.set_nonblocking(true)?;
    socket.send_to_addr(state.as_bytes(), &address).map(drop)
}
