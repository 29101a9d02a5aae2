//! `taut serve`: the live view as a page, and metrics for Prometheus.

use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use tautline_state::Others;
use tautline_watch::serve::{self, FleetSource, Options};
use tautline_watch::web;

use crate::cli::{self, CommandError};
use crate::commands::fleet::FleetArguments;

/// Directory of the network namespaces that have names (ip-netns(8)).
const NAMESPACES: &str = "/run/netns";
/// Least characters of a token from a file. Lower: it can be guessed over a network. Higher: none.
const TOKEN_CHARS_MIN: usize = 16;
/// Longest file of a token. Lower: one with comments behind the token is refused. Higher: a large file of another kind
/// is read before it is refused.
const TOKEN_FILE_BYTES_MAX: usize = 64 << 10;

/// Arguments of `taut serve`.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Where to listen; beyond loopback, requests need a token.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// File whose first line is the token that requests need [default: none on loopback, else one is made and printed].
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Name by which browsers may call this server, beside its addresses and localhost; may be given again.
    #[arg(long = "host", value_name = "NAME")]
    hosts: Vec<String>,
    /// Network namespace whose nodes are shown: a name as `ip netns` has it, or a path such as /proc/PID/ns/net. The
    /// server listens in this one.
    #[arg(long, value_name = "NAME")]
    netns: Option<PathBuf>,
    /// Result of `taut lab run --json=FILE` whose verdict is shown.
    #[arg(long, value_name = "FILE")]
    lab: Option<PathBuf>,
    #[command(flatten)]
    fleet: FleetArguments,
}

/// Serves until it is ended.
pub fn run(arguments: Arguments) -> Result<(), CommandError> {
    let token = match &arguments.token_file {
        Some(path) => Some(token_of(path)?),
        None if arguments.listen.ip().is_loopback() => None,
        None => Some(new_token()?),
    };
    let is_printed = arguments.token_file.is_none();
    let shown = token.clone().filter(|_| is_printed);
    let namespace = arguments.netns.as_deref().map(opened).transpose()?;
    let options = Options {
        listen: arguments.listen,
        names: arguments.hosts,
        token,
        lab: arguments.lab,
        namespace: namespace.map(Arc::new),
        fleet: match arguments.fleet.is_wanted() {
            true => Some(FleetSource::new(arguments.fleet.newest()?)),
            false => None,
        },
    };
    let ready = |address: SocketAddr| {
        let fragment = shown.map_or_else(String::new, |token| format!("#token={token}"));
        // A reader that has gone away is no reason to end.
        let _ = cli::print(&format!("http://{address}/{fragment}\n"));
    };
    let listen = options.listen;
    serve::run(options, ready).map_err(|error| {
        CommandError::failed(format!("cannot serve on {listen}: {error}"), remedy(&error))
    })
}

fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => "run it as root: ports below 1024 and --netns need that",
        io::ErrorKind::InvalidInput => {
            "name a network namespace with --netns: `ip netns` lists them"
        }
        _ => "choose another address or port with --listen 127.0.0.1:PORT; port 0 is a free one",
    }
}

/// A network namespace by its name or path.
fn opened(name: &Path) -> Result<File, CommandError> {
    let path = Path::new(NAMESPACES).join(name);
    File::open(&path).map_err(|error| {
        CommandError::usage(
            format!("there is no network namespace {}: {error}", path.display()),
            "`ip netns` lists their names",
        )
    })
}

fn token_of(path: &Path) -> Result<String, CommandError> {
    let text = tautline_state::read_text(path, TOKEN_FILE_BYTES_MAX, Others::HaveNone);
    let text = text.map_err(|error| {
        CommandError::usage(
            format!("cannot read {}: {error}", path.display()),
            "name a file of your own with a token in its first line, which no other user can read",
        )
    })?;
    let token = text.lines().next().unwrap_or_default().trim();
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if token.len() < TOKEN_CHARS_MIN || !token.bytes().all(is_token) {
        return Err(CommandError::usage(
            format!("{} has no token in its first line", path.display()),
            format!(
                "write {TOKEN_CHARS_MIN} letters or digits or more: openssl rand -hex 16 > {}",
                path.display()
            ),
        ));
    }
    Ok(token.to_owned())
}

/// A token that cannot be guessed.
///
/// # Errors
/// The kernel gives no random bytes.
pub fn new_token() -> Result<String, CommandError> {
    web::new_token().map_err(|error| {
        let what = format!("cannot make a token: {error}");
        CommandError::failed(what, "name a token with --token-file")
    })
}
