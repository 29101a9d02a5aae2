//! The extension module behind the Python package `tautline`: nodes, ports, messages, and memory that is lent.
//!
//! It holds what needs Rust. Exceptions, typed messages and `asyncio` are Python, in `python/tautline`, and so are the
//! type stubs. Nothing here is a public Rust interface.
//!
//! * `node`: nodes. `queuing`, `sampling`, `udp`, `raw`: ports; `port` has what they share.
//! * `message`: messages, values, datagrams, frames, sources and destinations. `lent`: the same where they lie.
//! * `cell`: the one who uses a port at a time. `wait`: waiting without the interpreter.
//! * `awake`: waits and sleeps that need no node. `cycle`: periodic loops.
//! * `buffer`: bytes of Python's objects, and views of ours. `errors`: exceptions.

mod awake;
mod buffer;
mod cell;
mod cycle;
mod errors;
mod lent;
mod message;
mod node;
mod port;
mod queuing;
mod raw;
mod sampling;
mod udp;
mod wait;

/// The module `tautline._tautline`.
#[pyo3::pymodule]
mod _tautline {
    #[pymodule_export]
    use crate::awake::{Awake, sleep_until};
    #[pymodule_export]
    use crate::cycle::{Cycle, Tick};
    #[pymodule_export]
    use crate::lent::Loan;
    #[pymodule_export]
    use crate::message::{Datagram, Destination, Frame, Message, Sample, Source};
    #[pymodule_export]
    use crate::node::Node;
    #[pymodule_export]
    use crate::queuing::QueuingPort;
    #[pymodule_export]
    use crate::raw::RawPort;
    #[pymodule_export]
    use crate::sampling::SamplingPort;
    #[pymodule_export]
    use crate::udp::UdpPort;

    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        crate::awake::watch_forks()
    }
}
