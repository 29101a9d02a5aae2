//! Measures what a machine and a kernel can hold, and reports it.
//!
//! * [`machine`]: what about a machine decides how well it keeps time.
//! * [`histogram`]: many latencies in fixed memory.
//! * [`page`], [`plot`], [`chart`], [`bars`] and [`surface`]: self-contained HTML reports.
//! * [`hosts`]: two hosts on one machine, for what needs a network of its own; [`child`] and
//!   [`interrupt`] see to it that nothing of them is left behind.
//! * [`probe`]: threads that wait for a moment and look how late they are.
//! * [`load`]: what the machine does meanwhile, with the figures that it achieved.
//! * [`result`]: the one schema of all results; [`cyclictest`] imports others' into it.
//! * [`verdict`]: whether a deadline was held, and what that is worth.
//! * [`kernels`]: kernels compared in virtual machines on virtual time.

pub mod bars;
pub mod capability;
pub mod chart;
pub mod child;
pub mod compare;
pub mod cyclictest;
pub mod histogram;
pub mod hosts;
pub mod interrupt;
pub mod kernels;
pub mod load;
pub mod machine;
pub mod page;
pub mod plot;
pub mod probe;
pub mod report;
pub mod result;
pub mod session;
pub mod surface;
pub mod sys;
pub mod timeline;
pub mod trace;
pub mod tuning;
pub mod verdict;

pub use histogram::{Bucket, LatencyHistogram, Summary};
pub use machine::{Machine, Reading};
pub use result::LabResult;

use tautline_state::journal::{Journal, JournalError};

/// Opens the lab's journal, first putting back what a killed lab left, which is returned as text.
pub fn open_journal() -> Result<(Journal, Vec<String>), JournalError> {
    Journal::open("lab-journal.json", "taut lab")
}
