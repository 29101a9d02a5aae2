//! Paths that a message can take from one host to the other and back.
//!
//! One end asks ([`RoundTrip`]), the other sends back what it gets ([`Echo`]). Benchmark and demo
//! know only these two traits, so that every path is measured by the same code.

mod floor;
mod node;
mod tcp;
mod udp;

use std::fmt;
use std::io;
use std::str::FromStr;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use tautline::LinkKind;
use tautline_testbed::hosts::{Hosts, HostsError};

use crate::nodes::HostNodes;

/// Bytes at the start of a payload by which a late reply is told from the one that is waited for.
pub const TAG_BYTES: usize = 8;

/// The largest payload that every path carries: a UDP datagram over IPv4.
pub const PAYLOAD_BYTES_MAX: usize = 65_507;

/// How long a blocked server sleeps before it looks whether it is to stop. Lower costs idle CPU,
/// higher makes changing from one path to the next slow; neither is inside a measurement.
const BLOCKED_LOOK: Duration = Duration::from_millis(20);

/// Empty looks at a socket between two looks at the clock or the stop flag. Lower slows the spin
/// down by a clock read, higher only delays giving up.
const SPINS_PER_LOOK: u32 = 64;

/// A path, by the name that `--paths` and result files use.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    clap::ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub enum Path {
    /// Tautline sampling port on an xdp link.
    Sampling,
    /// Tautline queuing port on an xdp link.
    Queuing,
    /// Tautline queuing port on a packet link.
    Packet,
    /// Tautline queuing port on an xsk link (AF_XDP).
    Xsk,
    /// Tautline port of plain UDP on an xdp link.
    UdpPort,
    /// Kernel UDP, non-blocking sockets that both sides spin on.
    UdpPoll,
    /// Kernel UDP, blocking sockets.
    UdpBlock,
    /// Kernel TCP without delay, non-blocking sockets that both sides spin on.
    TcpPoll,
    /// Kernel TCP without delay, blocking sockets.
    TcpBlock,
    /// The barest demux-to-memory echo, without port logic.
    Floor,
}

impl Path {
    /// All of them, in the order of tables.
    pub const ALL: [Path; 10] = [
        Path::Sampling,
        Path::Queuing,
        Path::Packet,
        Path::Xsk,
        Path::UdpPort,
        Path::UdpPoll,
        Path::UdpBlock,
        Path::TcpPoll,
        Path::TcpBlock,
        Path::Floor,
    ];

    /// The name on the command line and in result files.
    pub fn name(self) -> &'static str {
        match self {
            Path::Sampling => "sampling",
            Path::Queuing => "queuing",
            Path::Packet => "packet",
            Path::Xsk => "xsk",
            Path::UdpPort => "udp-port",
            Path::UdpPoll => "udp-poll",
            Path::UdpBlock => "udp-block",
            Path::TcpPoll => "tcp-poll",
            Path::TcpBlock => "tcp-block",
            Path::Floor => "floor",
        }
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Path {
    type Err = String;

    fn from_str(name: &str) -> Result<Path, String> {
        Path::ALL
            .into_iter()
            .find(|path| path.name() == name)
            .ok_or_else(|| {
                let names = Path::ALL.map(Path::name).join(", ");
                format!("no path is called `{name}`; there are {names}")
            })
    }
}

/// Why a path could not be opened, or a message did not come back.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum EchoError {
    /// This program, or this machine, has no such path.
    #[error("the path {path} is not available: {reason}")]
    NotAvailable {
        /// The path asked for.
        path: Path,
        /// Why, in words for the user.
        reason: String,
    },
    /// No reply within the time limit.
    #[error("no reply within the time limit")]
    TimedOut,
    /// Replies of an earlier size are still on the way in a byte stream.
    #[error("{bytes} bytes of earlier replies did not arrive")]
    OutOfStep {
        /// The bytes missing.
        bytes: usize,
    },
    /// The other side closed the connection.
    #[error("the other side closed the connection")]
    Closed,
    /// A payload that this path cannot carry.
    #[error("a payload of {bytes} bytes does not fit: 1 to {bytes_max} possible")]
    PayloadSize {
        /// The size asked for.
        bytes: usize,
        /// The largest size possible.
        bytes_max: usize,
    },
    /// A system call failed.
    #[error("cannot {operation}: {source}")]
    Io {
        /// Operation that failed.
        operation: &'static str,
        /// Cause.
        source: io::Error,
    },
    /// The hosts could not be entered.
    #[error(transparent)]
    Hosts(#[from] HostsError),
}

impl EchoError {
    /// For `map_err`: an [`EchoError::Io`] of this operation.
    pub fn io(operation: &'static str) -> impl FnOnce(io::Error) -> EchoError {
        move |source| EchoError::Io { operation, source }
    }
}

/// The asking end of a path.
pub trait RoundTrip: Send {
    /// Sends `payload` and returns when the same payload has come back: a reply counts if its
    /// length and its first [`TAG_BYTES`] bytes are those of `payload`, others are late ones and
    /// are passed over. Ends with [`EchoError::TimedOut`] after the path's time limit.
    fn round_trip(&mut self, payload: &[u8]) -> Result<(), EchoError>;

    /// Link and mode of this path, in one line for the user.
    fn describe(&self) -> String;
}

/// The answering end of a path.
pub trait Echo: Send {
    /// Sends back messages of `payload_bytes` each until `stop` is set, each after `seen` was called
    /// with it. Looks at `stop` at least every 20 ms, a message under way apart.
    fn serve(
        &mut self,
        payload_bytes: usize,
        stop: &AtomicBool,
        seen: &mut Seen<'_>,
    ) -> Result<(), EchoError>;
}

/// Called by [`Echo::serve`] with each message before it is sent back.
pub type Seen<'a> = dyn FnMut(&[u8]) + 'a;

/// How a path is to be opened.
#[derive(Clone, Copy, Debug)]
pub struct PathOptions {
    /// The largest payload that will be sent.
    pub payload_bytes_max: usize,
    /// How long a round trip may take.
    pub time_limit: Duration,
}

/// Both ends of a path: the asking end on host A, the answering end on host B.
pub type Ends = (Box<dyn RoundTrip>, Box<dyn Echo>);

/// Cables that the paths need: the floor has one of its own, the second, and so has xsk, the last.
pub fn cable_count(paths: &[Path]) -> usize {
    let own = [Path::Floor, Path::Xsk].iter();
    1 + own.filter(|path| paths.contains(path)).count()
}

/// Opens paths between the hosts, on [`cable_count`] cables. The ends may be used from any thread.
///
/// All paths but the floor and xsk, whose programs cannot share an interface with the demux, share the first cable.
/// If one of them is on the xdp link, the demux is attached to that cable while all of them are measured, the
/// kernel's too.
pub fn open_paths(
    paths: &[Path],
    hosts: &Hosts,
    options: &PathOptions,
) -> Result<Vec<Ends>, (Path, EchoError)> {
    let mut shared = Shared::default();
    let open = |path: &Path| {
        shared
            .open(*path, hosts, options)
            .map_err(|error| (*path, error))
    };
    paths.iter().map(open).collect()
}

/// Objects that several paths use. Ports keep their node open.
#[derive(Default)]
struct Shared {
    xdp: Option<HostNodes>,
}

impl Shared {
    fn open(
        &mut self,
        path: Path,
        hosts: &Hosts,
        options: &PathOptions,
    ) -> Result<Ends, EchoError> {
        if !(1..=PAYLOAD_BYTES_MAX).contains(&options.payload_bytes_max) {
            return Err(EchoError::PayloadSize {
                bytes: options.payload_bytes_max,
                bytes_max: PAYLOAD_BYTES_MAX,
            });
        }
        match path {
            Path::UdpPoll => udp::open(hosts, options, Waiting::Spin),
            Path::UdpBlock => udp::open(hosts, options, Waiting::Block),
            Path::TcpPoll => tcp::open(hosts, options, Waiting::Spin),
            Path::TcpBlock => tcp::open(hosts, options, Waiting::Block),
            Path::Sampling => node::sampling(path, self.xdp(path, hosts)?, hosts, options),
            Path::Queuing => node::queuing(path, self.xdp(path, hosts)?, hosts, options),
            Path::UdpPort => node::plain_udp(path, self.xdp(path, hosts)?, hosts, options),
            Path::Packet => {
                let nodes = node::nodes(path, hosts, 0, LinkKind::Packet)?;
                node::queuing(path, &nodes, hosts, options)
            }
            Path::Xsk => {
                let nodes = node::nodes(path, hosts, hosts.cable_count() - 1, LinkKind::Xsk)?;
                node::queuing(path, &nodes, hosts, options)
            }
            Path::Floor => node::floor(hosts, options),
        }
    }

    fn xdp(&mut self, path: Path, hosts: &Hosts) -> Result<&HostNodes, EchoError> {
        if self.xdp.is_none() {
            self.xdp = Some(node::nodes(path, hosts, 0, LinkKind::Xdp)?);
        }
        self.xdp.as_ref().ok_or(EchoError::Closed)
    }
}

/// How a kernel socket is waited on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waiting {
    Spin,
    Block,
}

impl Waiting {
    fn text(self) -> &'static str {
        match self {
            Waiting::Spin => "non-blocking sockets, both sides spin",
            Waiting::Block => "blocking sockets",
        }
    }
}

/// Whether `reply` answers `payload`.
fn answers(reply: &[u8], payload: &[u8]) -> bool {
    let tag = payload.len().min(TAG_BYTES);
    reply.len() == payload.len() && reply[..tag] == payload[..tag]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_and_agree_with_json() {
        for path in Path::ALL {
            assert_eq!(path.name().parse(), Ok(path));
            assert_eq!(serde_json::to_value(path).unwrap(), path.name());
            let clap = clap::ValueEnum::to_possible_value(&path).unwrap();
            assert_eq!(clap.get_name(), path.name());
        }
        let error = "udp".parse::<Path>().unwrap_err();
        assert!(error.contains("udp-poll"), "{error}");
    }

    #[test]
    fn replies_answer_by_length_and_tag() {
        assert!(answers(b"12345678x", b"12345678y"));
        assert!(!answers(b"12345679x", b"12345678x"));
        assert!(!answers(b"1234", b"12345"));
        assert!(answers(b"1", b"1"));
    }
}
