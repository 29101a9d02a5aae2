//! `taut node run`: the control process of an interface.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::PathBuf;

use clap::Args;
use tautline::NodeConfig;
use tautline::control::Server;
use tautline_lab::interrupt;

use crate::cli::{self, CommandError};
use crate::commands::peer;

/// Arguments of `taut node run`.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Configuration file of the node (TOML); its [[allow]] entries say who may have what.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

/// Serves until told to end.
pub(super) fn run(arguments: Arguments) -> Result<(), CommandError> {
    let config = NodeConfig::from_file(&arguments.config).map_err(peer::open_error)?;
    let rules = config.allow.len();
    let stop = interrupt::descriptor().map_err(|error| {
        CommandError::failed(
            format!("cannot watch for signals: {error}"),
            "raise the limit of open files (ulimit -n)",
        )
    })?;
    let mut server = Server::open(config).map_err(peer::open_error)?;
    let mut text = format!("{}\n", server.report());
    match server.taken_over() {
        0 => {}
        ports => text += &format!("taken over from a predecessor: {ports} open ports\n"),
    }
    text += &format!("serving clients by {rules} [[allow]] entries; root needs none\n");
    cli::print(&text)?;
    if let Err(error) = tell_ready() {
        eprintln!("taut: the service manager was not told that this process is ready: {error}");
    }
    server.run(&stop).map_err(|error| {
        CommandError::failed(
            format!("cannot wait for clients: {error}"),
            "`taut doctor` shows what this machine lacks",
        )
    })
}

/// Tells the service manager that clients can come, if there is one that wants to know (sd_notify(3)).
fn tell_ready() -> io::Result<()> {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else {
        return Ok(());
    };
    let address = match name.as_encoded_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(name)?,
    };
    UnixDatagram::unbound()?
        .send_to_addr(b"READY=1", &address)
        .map(drop)
}
