//! Errors as a program shows them that returns them from `main`.
//!
//! Rust prints such an error with `Debug`. For the errors of this library `Debug` is therefore not the derived
//! one: it writes the message, and the remedy in a line of its own.

use std::fmt;

use tautline_proto::neighbour::NeighbourError;
use tautline_proto::wire::ValueError;

use super::{
    ConfigError, NeighbourTableError, ObserveError, OpenError, OptionsError, PortError,
    ReceiveError, SendError, ServeError,
};
use crate::address::{BadNodeName, BadPortName};
use crate::cycle::CycleError;

/// Any error of the library, for a function that does several things, such as `main`.
///
/// Returned from `main`, it prints what happened and what to do; so do the errors that it is made of, also in a
/// `Box<dyn std::error::Error>`:
///
/// ```no_run
/// use tautline::{Node, NodeConfig};
///
/// fn main() -> Result<(), tautline::Error> {
///     let node = Node::open(NodeConfig::from_file("robot.toml")?)?;
///     println!("{}", node.report());
///     Ok(())
/// }
/// ```
///
/// ```text
/// Error: cannot read robot.toml: No such file or directory (os error 2)
///   what to do: name a TOML file that this user may read
/// ```
///
/// `Display` writes the first line only. Match on the variants to tell one error from another.
#[derive(thiserror::Error)]
#[error(transparent)]
#[non_exhaustive]
pub enum Error {
    /// A node could not be opened.
    Open(#[from] OpenError),
    /// A configuration is wrong.
    Config(#[from] ConfigError),
    /// A port could not be opened, or a destination not be resolved.
    Port(#[from] PortError),
    /// A message was not sent.
    Send(#[from] SendError),
    /// A message could not be received.
    Receive(#[from] ReceiveError),
    /// A control process has ended by itself.
    Serve(#[from] ServeError),
    /// A neighbour was not entered, or not found on the network.
    NeighbourTable(#[from] NeighbourTableError),
    /// A neighbour does not fit the table of a configuration.
    Neighbour(#[from] NeighbourError),
    /// A cycle could not be started.
    Cycle(#[from] CycleError),
    /// A port of a bus cannot be watched.
    Observe(#[from] ObserveError),
    /// A number or text is not a port, a priority or an address.
    Value(#[from] ValueError),
    /// A text is not the name of a node on a bus.
    NodeName(#[from] BadNodeName),
    /// A text is not the name of a port on a bus.
    PortName(#[from] BadPortName),
}

impl Error {
    /// Remedy, in a sentence; nothing where the message says it.
    #[must_use]
    pub fn remedy(&self) -> Option<&'static str> {
        match self {
            Self::Open(error) => Some(error.remedy()),
            Self::Port(error) => Some(error.remedy()),
            Self::Send(error) => Some(error.remedy()),
            Self::Receive(error) => Some(error.remedy()),
            Self::Serve(error) => Some(error.remedy()),
            Self::NeighbourTable(error) => Some(error.remedy()),
            Self::Cycle(error) => Some(error.remedy()),
            Self::Observe(error) => Some(error.remedy()),
            Self::Config(_)
            | Self::Neighbour(_)
            | Self::Value(_)
            | Self::NodeName(_)
            | Self::PortName(_) => None,
        }
    }
}

fn write_report(
    error: &dyn fmt::Display,
    remedy: Option<&str>,
    formatter: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    write!(formatter, "{error}")?;
    match remedy {
        Some(remedy) => write!(formatter, "\n  what to do: {remedy}"),
        None => Ok(()),
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_report(self, self.remedy(), formatter)
    }
}

/// `Debug` of errors that have a remedy.
macro_rules! debug_is_the_report {
    ($($error:ty),* $(,)?) => {$(
        impl fmt::Debug for $error {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                write_report(self, Some(self.remedy()), formatter)
            }
        }
    )*};
}

debug_is_the_report!(
    OpenError,
    OptionsError,
    PortError,
    SendError,
    ReceiveError,
    ServeError,
    NeighbourTableError,
    CycleError,
    ObserveError,
);

/// `Debug` of errors whose message says what to do.
macro_rules! debug_is_the_message {
    ($($error:ty),* $(,)?) => {$(
        impl fmt::Debug for $error {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                write_report(self, None, formatter)
            }
        }
    )*};
}

debug_is_the_message!(ConfigError, BadNodeName, BadPortName);

#[cfg(test)]
mod tests {
    use super::*;
    use tautline_proto::wire::PortNumber;

    #[test]
    fn an_error_that_ends_a_program_says_what_to_do() {
        let number = PortNumber::new(7).unwrap();
        let error: Box<dyn std::error::Error> = PortError::OpenHere { key: number.into() }.into();
        assert_eq!(
            format!("Error: {error:?}"),
            "Error: port 7 is open in this node already\n  \
             what to do: use another number, or the port that is open"
        );
        let error: Error = SendError::InterfaceDown.into();
        assert_eq!(
            format!("{error:?}"),
            "interface is down\n  what to do: bring the interface up: ip link set dev INTERFACE up"
        );
        let error: Error = PortNumber::try_from(5_000).unwrap_err().into();
        assert_eq!(format!("{error:?}"), "port 5000 is out of range, 1 to 4095");
        let error = "prot = 7".parse::<crate::NodeConfig>().unwrap_err();
        assert_eq!(format!("{error:?}"), error.to_string());
    }
}
