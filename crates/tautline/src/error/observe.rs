//! The errors of looking at a port on a bus without taking part.

use std::io;

use tautline_shm::vbus::shape::LayoutError;

use crate::address::PortName;

/// Why a port cannot be watched.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ObserveError {
    /// The port is not open on this bus.
    #[error("there is no port {port} on bus {bus}")]
    NoPort { port: PortName, bus: String },
    /// The bus does not let this user in.
    #[error("port {port} on bus {bus}: permission denied")]
    Denied { port: PortName, bus: String },
    /// Its process does not answer: it may be stopped.
    #[error("port {port} does not answer")]
    Silent { port: PortName },
    /// It shows something that is no port's memory of this version.
    #[error("port {port} shows a memory that makes no sense: {source}")]
    Layout { port: PortName, source: LayoutError },
    /// It breaks the rules of the handshake.
    #[error("port {port} answers what makes no sense")]
    Nonsense { port: PortName },
    /// The kernel refused.
    #[error("cannot watch port {port}: {source}")]
    Io { port: PortName, source: io::Error },
}

impl ObserveError {
    /// Remedy, in a sentence.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::NoPort { .. } => "`taut bus show` shows the ports that there are",
            Self::Denied { .. } => {
                "run as the bus's user or in its group; `taut bus show` shows them"
            }
            Self::Silent { .. } => "its process may be stopped: look at it with ps, and try again",
            _ => "check that the port's process is of the same version as this command",
        }
    }
}
