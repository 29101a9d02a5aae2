//! Measures what a machine and a kernel can hold, and reports it. `tautline-machine` has the machine's fingerprint and
//! the verdict.
//!
//! * [`probe`]: threads that wait for a moment and look how late they are.
//! * [`episodes`]: stretches of late wake-ups, counted by all probes together.
//! * [`load`]: what the machine does meanwhile, with the figures that it achieved.
//! * [`measured`]: the measurements of a phase; [`result`]: the one schema of all results, which [`result_file`]
//!   reads and writes and [`cyclictest`] imports others' into.
//! * [`interrupt`]: latency from an event to the kernel's handler and to a task, as RTMux's authors measured it.
//! * [`kernels`]: kernels compared in virtual machines on virtual time.

pub mod compare;
pub mod cyclictest;
pub mod episodes;
pub mod interrupt;
pub mod judge;
pub mod kernels;
pub mod load;
pub mod measured;
pub mod probe;
pub mod report;
pub mod result;
pub mod result_file;
pub mod session;
pub mod sys;
pub mod trace;
pub mod tuning;

pub use result::LabResult;

use tautline_state::StateError;
use tautline_state::journal::{Journal, JournalError};

use result::Missing;

/// The lab's journal, just opened.
#[derive(Debug)]
pub struct OpenedJournal {
    /// The journal.
    pub journal: Journal,
    /// Settings that a killed lab had left and that were put back.
    pub recovered: Vec<String>,
    /// The journal's own restriction, where it has one.
    pub missing: Option<Missing>,
}

/// Opens the lab's journal, first putting back what a killed lab left. A user without a runtime directory gets one
/// that no later lab will find.
pub fn open_journal() -> Result<OpenedJournal, JournalError> {
    const NAME: &str = "lab-journal.json";
    const HOLDER: &str = "taut lab";
    match Journal::open(NAME, HOLDER) {
        Ok((journal, recovered)) => Ok(OpenedJournal {
            journal,
            recovered,
            missing: None,
        }),
        Err(JournalError::File(error @ StateError::NoRuntimeDirectory { .. })) => {
            let missing = Missing {
                what: "putting back after a kill".to_owned(),
                reason: error.to_string(),
                remedy: "set XDG_RUNTIME_DIR, and let taut lab end by itself or by ^C".to_owned(),
                weakens_verdict: false,
            };
            Ok(OpenedJournal {
                journal: Journal::open_private(NAME, HOLDER)?,
                recovered: Vec::new(),
                missing: Some(missing),
            })
        }
        Err(error) => Err(error),
    }
}
