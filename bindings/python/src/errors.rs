//! Exceptions: the classes are Python's (`tautline._errors`), the sentences and remedies are the library's.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use tautline::neighbours::NeighbourTableError;
use tautline::{OpenError, PortError, ReceiveError, SendError};

/// An exception of a class in `tautline._errors`.
pub(crate) fn exception(py: Python<'_>, class: &str, message: &str, remedy: &str) -> PyErr {
    let made = classes(py)
        .and_then(|module| module.getattr(class))
        .and_then(|class| class.call1((message, remedy)));
    made.map_or_else(|error| error, PyErr::from_value)
}

fn classes(py: Python<'_>) -> PyResult<&Bound<'_, PyModule>> {
    static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let module = MODULE.get_or_try_init(py, || py.import("tautline._errors").map(Bound::unbind))?;
    Ok(module.bind(py))
}

/// An argument outside its range.
pub(crate) fn argument(py: Python<'_>, message: &str, remedy: &str) -> PyErr {
    exception(py, "ArgumentError", message, remedy)
}

/// Errors of the library as exceptions.
pub(crate) trait Raise {
    /// The exception.
    fn raise(self, py: Python<'_>) -> PyErr;
}

impl Raise for OpenError {
    fn raise(self, py: Python<'_>) -> PyErr {
        let class = match self {
            Self::Config(_) | Self::ConfigUnreadable { .. } => "ConfigError",
            _ => "OpenError",
        };
        exception(py, class, &self.to_string(), self.remedy())
    }
}

impl Raise for PortError {
    fn raise(self, py: Python<'_>) -> PyErr {
        let class = match self {
            Self::PeerAbsent { .. } => "PeerAbsentError",
            Self::OtherProcess => "ClosedError",
            _ => "PortError",
        };
        exception(py, class, &self.to_string(), self.remedy())
    }
}

impl Raise for SendError {
    fn raise(self, py: Python<'_>) -> PyErr {
        let class = match self {
            Self::TransmitQueueFull | Self::ReceiverFull | Self::PoolExhausted { .. } => {
                "FullError"
            }
            Self::OtherProcess => "ClosedError",
            Self::OtherPort => "ArgumentError",
            _ => "SendError",
        };
        exception(py, class, &self.to_string(), self.remedy())
    }
}

impl Raise for ReceiveError {
    fn raise(self, py: Python<'_>) -> PyErr {
        let class = match self {
            Self::OtherProcess => "ClosedError",
            _ => "ReceiveError",
        };
        exception(py, class, &self.to_string(), self.remedy())
    }
}

impl Raise for NeighbourTableError {
    fn raise(self, py: Python<'_>) -> PyErr {
        exception(py, "NeighbourError", &self.to_string(), self.remedy())
    }
}
