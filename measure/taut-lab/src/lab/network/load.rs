//! Loads alongside which a network is measured: those of the lab, and a TCP stream to the peer.

use std::fmt;
use std::net::Ipv4Addr;
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::time::Duration;

use tautline_lab::load::{self, Load, UnknownLoad};
use tautline_state::child::KilledOnDrop;
use tautline_testbed::child;

use taut::cli::CommandError;

/// Time for iperf3 to connect, or to fail. Lower: a refusal is not noticed. Higher: nothing is gained.
const CONNECT: Duration = Duration::from_millis(800);

/// Seconds for which iperf3 runs by itself: the longest time that it takes.
const LONG_S: &str = "86400";

/// A load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerLoad {
    /// Of the lab, on this machine.
    Lab(Load),
    /// A TCP stream to iperf3's server at the peer.
    Iperf3,
}

impl fmt::Display for PeerLoad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PeerLoad::Lab(load) => load.fmt(f),
            PeerLoad::Iperf3 => f.write_str("iperf3"),
        }
    }
}

impl FromStr for PeerLoad {
    type Err = String;

    fn from_str(text: &str) -> Result<PeerLoad, String> {
        match text {
            "iperf3" => Ok(PeerLoad::Iperf3),
            _ => text
                .parse()
                .map(PeerLoad::Lab)
                .map_err(|error: UnknownLoad| format!("{error}, or iperf3")),
        }
    }
}

/// A load that runs. Dropped, it is stopped.
pub(super) enum Running {
    Lab { _load: load::Running },
    Iperf3(KilledOnDrop),
}

impl PeerLoad {
    /// Starts it, and waits until it is at work.
    pub(super) fn start(self, peer: Ipv4Addr) -> Result<Running, CommandError> {
        match self {
            PeerLoad::Lab(load) => Ok(Running::Lab {
                _load: crate::lab::start_load(load)?,
            }),
            PeerLoad::Iperf3 => start_iperf3(peer),
        }
    }
}

impl Running {
    /// Why it is at work no longer, if it is not.
    pub(super) fn problem(&mut self) -> Option<String> {
        let Running::Iperf3(child) = self else {
            return None;
        };
        has_ended(&mut child.0).then(|| "iperf3 ended before the measurement did".to_owned())
    }
}

fn has_ended(child: &mut Child) -> bool {
    !matches!(child.try_wait(), Ok(None))
}

fn start_iperf3(peer: Ipv4Addr) -> Result<Running, CommandError> {
    let mut command = Command::new("iperf3");
    command
        .args(["--client", &peer.to_string(), "--time", LONG_S])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let started = child::tie(&mut command, None).spawn();
    let child = started.map_err(|error| {
        CommandError::failed(
            format!("cannot start iperf3: {error}"),
            "install it, or leave iperf3 out of --load",
        )
    })?;
    let mut child = KilledOnDrop(child);
    std::thread::sleep(CONNECT);
    if has_ended(&mut child.0) {
        return Err(CommandError::failed(
            format!("iperf3 has no connection with {peer}"),
            "start `iperf3 -s` at the peer, or leave iperf3 out of --load",
        ));
    }
    Ok(Running::Iperf3(child))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for load in [PeerLoad::Iperf3, PeerLoad::Lab(Load::Cpu)] {
            assert_eq!(load.to_string().parse(), Ok(load));
        }
        let error = "wind".parse::<PeerLoad>().unwrap_err();
        assert!(
            error.contains("idle") && error.contains("iperf3"),
            "{error}"
        );
    }
}
