//! Errors of serving, as a control process does.

use std::io;

/// A control process has ended by itself.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// Its interface was deleted, or moved to another network namespace. Its clients' sends fail and their waits end.
    #[error("{0}")]
    InterfaceGone(String),
    /// The kernel refuses to wait for events.
    #[error("cannot wait for clients: {0}")]
    NotWaiting(#[from] io::Error),
}

impl ServeError {
    /// Remedy, in a sentence.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::InterfaceGone(_) => {
                "start it again, and its clients, when there is an interface of this name"
            }
            Self::NotWaiting(_) => "`taut doctor` shows what this machine lacks",
        }
    }
}
