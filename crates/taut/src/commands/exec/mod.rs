//! `taut exec`: an unmodified program whose waits end awake, or whose sockets are ports of a node.

mod awake;
mod program;

use std::env;
use std::ffi::{OsStr, OsString};
use std::ops::RangeInclusive;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;
use tautline::config::ExecConfig;
use tautline::{EtherType, LinkKind, NodeConfig, ServiceConfig};
use tautline_testbed::interface;

use crate::cli::{self, CommandError};
use crate::commands::peer;
use crate::firewall;

/// File of the library that makes sockets ports, and the package that it is built from.
const LIBRARY: (&str, &str) = ("libtautline_preload.so", "tautline-preload");

/// Arguments of `taut exec`.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Configuration file of the node (TOML); its [exec] section says which sockets are taken.
    #[arg(long, alias = "node", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Sockets become ports of a node on this interface; every address of its network counts as a neighbour.
    #[arg(long, short, value_name = "IF", conflicts_with = "config")]
    interface: Option<String>,
    /// Change nothing, and print at the end how late waits and sleeps were, and how many could be met awake.
    #[arg(long, conflicts_with_all = ["config", "interface"])]
    watch: bool,
    /// Print at the end what was found for each descriptor: its rhythm, and what became of its messages.
    #[arg(long, conflicts_with_all = ["config", "interface"])]
    report: bool,
    /// Run the program under SCHED_FIFO with this priority, 1 to 99, where that is allowed.
    #[arg(long, value_name = "PRIORITY", conflicts_with_all = ["config", "interface"], value_parser = clap::value_parser!(u8).range(1..=99))]
    fifo: Option<u8>,
    /// Take the sockets with these ports: numbers and ranges, 5000,6000-6010 [default: by address].
    #[arg(long, value_name = "PORTS", value_parser = ports, value_delimiter = ',')]
    local: Vec<Ports>,
    /// Take the sockets that first speak to these ports.
    #[arg(long, value_name = "PORTS", value_parser = ports, value_delimiter = ',')]
    remote: Vec<Ports>,
    /// Take the packet sockets for these EtherTypes: 0x88a4,0x8892 [default: none].
    #[arg(long, value_name = "TYPES", value_parser = ethertype, value_delimiter = ',')]
    ethertype: Vec<EtherType>,
    /// Say for each socket what became of it, on standard error or in this file; so does TAUTLINE_EXPLAIN=1.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    explain: Option<Option<PathBuf>>,
    /// Program and its arguments. Without --interface and --config its waits end awake, and nothing else changes.
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// A range of ports, as clap clones it.
type Ports = RangeInclusive<u16>;

fn ports(text: &str) -> Result<Ports, String> {
    let (low, high) = text.split_once('-').unwrap_or((text, text));
    let range = low.trim().parse().ok().zip(high.trim().parse().ok());
    range
        .map(|(low, high)| low..=high)
        .filter(|range| !range.is_empty() && *range.start() > 0)
        .ok_or_else(|| {
            format!("`{text}` is no UDP port from 1 to 65535 and no range such as 5000-5010")
        })
}

fn ethertype(text: &str) -> Result<EtherType, String> {
    let number = EtherType::number_of(text.trim())
        .ok_or_else(|| format!("`{text}` is no EtherType such as 0x88a4"))?;
    EtherType::new(number).map_err(|error| error.to_string())
}

/// Becomes the program; returns only if that fails.
pub fn run(arguments: Arguments) -> Result<(), CommandError> {
    if arguments.config.is_none() && arguments.interface.is_none() {
        return awake::run(&arguments);
    }
    let (node, mut rules) = configured(&arguments)?;
    if !arguments.local.is_empty() || !arguments.remote.is_empty() {
        rules.local = arguments.local;
        rules.remote = arguments.remote;
    }
    if !arguments.ethertype.is_empty() {
        rules.ethertypes = arguments.ethertype;
    }
    check(&node)?;
    check_ethertypes(&node, &rules.ethertypes)?;
    let name = arguments.program[0].clone();
    if let Some(why) = program::check(&name)? {
        return Err(CommandError::failed(
            format!(
                "the sockets of {} cannot be taken: {why}",
                program::plain(&name)
            ),
            "run it without `taut exec`; its sockets are the kernel's",
        ));
    }
    let library = library(LIBRARY)?;
    let mut command = Command::new(&name);
    command
        .args(&arguments.program[1..])
        .env("LD_PRELOAD", preloaded(&library))
        .env("TAUTLINE_EXEC_LOCAL", text_of(&rules.local))
        .env("TAUTLINE_EXEC_REMOTE", text_of(&rules.remote))
        .env("TAUTLINE_EXEC_ETHERTYPES", names_of(&rules.ethertypes))
        .env("TAUTLINE_EXEC_PROGRAMS", rules.programs.join(":"));
    match (&arguments.config, &arguments.interface) {
        (Some(file), _) => command.env("TAUTLINE_EXEC_NODE", absolute(file)),
        (None, Some(interface)) => command.env("TAUTLINE_EXEC_INTERFACE", interface),
        (None, None) => &mut command,
    };
    match arguments.explain {
        Some(None) => command.env("TAUTLINE_EXPLAIN", "1"),
        Some(Some(file)) => {
            // The library tells nobody of a line that it cannot write.
            tautline_state::append(&file).map_err(|error| cli::not_made(&file, &error.into()))?;
            command.env("TAUTLINE_EXPLAIN", absolute(&file))
        }
        None => &mut command,
    };
    firewall::warn();
    Err(not_run(&name, &command.exec()))
}

fn not_run(name: &OsStr, error: &std::io::Error) -> CommandError {
    CommandError::failed(
        format!("cannot run {}: {error}", program::plain(name)),
        "name a program that exists and that you may execute",
    )
}

/// The program may change its directory before its first socket.
fn absolute(file: &Path) -> PathBuf {
    std::path::absolute(file).unwrap_or_else(|_| file.to_owned())
}

fn configured(arguments: &Arguments) -> Result<(NodeConfig, ExecConfig), CommandError> {
    match (&arguments.config, &arguments.interface) {
        (Some(file), _) => {
            let service = ServiceConfig::from_file(file).map_err(peer::open_error)?;
            Ok((service.node, service.exec))
        }
        (None, interface) => {
            let interface = interface.as_deref().unwrap_or_default();
            Ok((NodeConfig::on(interface), ExecConfig::default()))
        }
    }
}

/// Refuses here, and not with the first socket, a node that no socket can be taken for.
fn check(node: &NodeConfig) -> Result<(), CommandError> {
    if let Some(other) = node.link.filter(|link| *link != LinkKind::Xdp) {
        return Err(CommandError::usage(
            format!(
                "sockets are taken on link xdp, and the node is on link {}",
                other.name()
            ),
            "set `link = \"xdp\"` in the configuration, or leave it out",
        ));
    }
    let Some(name) = &node.interface else {
        return Err(CommandError::usage(
            "the configuration names no interface",
            "set `interface`",
        ));
    };
    if interface::index(name).is_err() {
        return Err(CommandError::usage(
            format!("there is no interface `{name}`"),
            "`ip link` lists the interfaces",
        ));
    }
    Ok(())
}

/// The demux keeps frames of the node's own EtherTypes for the node's ports.
fn check_ethertypes(node: &NodeConfig, wanted: &[EtherType]) -> Result<(), CommandError> {
    let own = wanted.iter().find(|wanted| node.is_own_ethertype(**wanted));
    own.map_or(Ok(()), |own| {
        Err(CommandError::usage(
            format!("EtherType {own} is the node's own"),
            "name another one, or set `ethertype` in the configuration",
        ))
    })
}

/// The library lies beside this command, as `cargo build` leaves it (`cargo test`: in `deps`), or in the library
/// directory beside the command's.
fn library((file, package): (&str, &str)) -> Result<PathBuf, CommandError> {
    let own = env::current_exe().unwrap_or_default();
    let directory = own.parent().unwrap_or(Path::new("/"));
    let places =
        ["", "deps", "../lib", "../lib/tautline"].map(|place| directory.join(place).join(file));
    // The newest: cargo may have left an older one.
    let written = |place: &PathBuf| place.metadata().and_then(|found| found.modified());
    let found = places
        .into_iter()
        .filter_map(|place| Some((written(&place).ok()?, place)));
    let newest = found.max().map(|(_, place)| place).ok_or_else(|| {
        CommandError::failed(
            format!("{file} is neither in {} nor in ../lib", directory.display()),
            format!("build it with `cargo build --release -p {package}`, or `make build`"),
        )
    })?;
    cli::trusted_code(&newest)
}

/// Ours first; what else is to be loaded stays.
fn preloaded(library: &Path) -> OsString {
    let mut all = library.as_os_str().to_owned();
    if let Some(others) = env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        all.push(OsStr::new(":"));
        all.push(others);
    }
    all
}

fn text_of(ranges: &[Ports]) -> String {
    let texts: Vec<String> = ranges
        .iter()
        .map(|range| format!("{}-{}", range.start(), range.end()))
        .collect();
    texts.join(",")
}

fn names_of(ethertypes: &[EtherType]) -> String {
    let names: Vec<String> = ethertypes.iter().map(EtherType::to_string).collect();
    names.join(",")
}
