//! Errors, by family of operations. Each message says what happened; [`OpenError::remedy`]
//! and its like say what to do. A program that returns one of them from `main` prints both ([`Error`]).
#![allow(missing_docs)] // of fields: the message above a variant says what they are

use std::io;

mod neighbours;
mod observe;
mod open;
mod options;
mod port;
mod receive;
mod report;
mod send;

pub use crate::claim::Holder;
pub use neighbours::NeighbourTableError;
pub use observe::ObserveError;
pub use open::{ConfigError, OpenError, ServeError};
pub use options::OptionsError;
pub use port::PortError;
pub(crate) use port::{PLAIN_UDP, RAW_FRAMES};
pub use receive::ReceiveError;
pub use report::Error;
pub(crate) use send::MAC_UNKNOWN;
pub use send::{Priorities, SendError};

/// Remedy of a node whose interface is gone.
const AFTER_ITS_INTERFACE: &str =
    "open the node again, or start this program again, when there is an interface of this name";

/// Remedy of a node or a port of the process that this one was forked from.
const AFTER_FORK: &str = "open node and port again after fork";

/// An error with what it came from, down to the kernel's own answer.
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(": ")
}

/// Name of a control process. The kernel gives number 0 for a process outside this process namespace: a container does
/// not see its host's.
pub(crate) fn control_process(pid: i32) -> String {
    match pid {
        0 => "the control process".to_owned(),
        pid => format!("control process {pid}"),
    }
}

/// The error number at the bottom of a chain of errors.
pub(crate) fn errno_of(error: &(dyn std::error::Error + 'static)) -> Option<i32> {
    let mut causes = std::iter::successors(Some(error), |error| error.source());
    causes.find_map(|error| error.downcast_ref::<io::Error>()?.raw_os_error())
}

/// Remedy of what the kernel refused: a limit of this process or user that is reached, or what else may be missing.
fn refused_remedy(source: &(dyn std::error::Error + 'static)) -> &'static str {
    limit_remedy(source).unwrap_or("`taut doctor` shows what this machine lacks")
}

/// Remedy where a limit of this process or user is reached.
fn limit_remedy(source: &(dyn std::error::Error + 'static)) -> Option<&'static str> {
    match errno_of(source)? {
        libc::EMFILE => {
            Some("raise the limit of open files (ulimit -n, LimitNOFILE= of a service)")
        }
        // Of threads: ports and nodes start some, and what else answers so is tried again.
        libc::EAGAIN => Some(
            "raise this user's limit of processes and threads (ulimit -u, TasksMax= of a service)",
        ),
        _ => None,
    }
}

fn holder_name(holder: &Option<Holder>) -> String {
    holder
        .as_ref()
        .map_or_else(|| "another process".to_owned(), Holder::to_string)
}
