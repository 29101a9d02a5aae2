//! The lab's journal during a measurement: put back at the end, and when a signal ends the program before.

use std::sync::{Arc, Mutex, PoisonError};

use taut::say;
use tautline_lab::result::Missing;
use tautline_state::journal::Journal;
use tautline_testbed::interrupt::CleanUp;

use super::run::no_journal;
use taut::cli::CommandError;

/// An open journal. Drop it when nothing is changed any more.
pub(super) struct JournalGuard {
    pub(super) journal: Arc<Mutex<Journal>>,
    /// The journal's own restriction, where it has one.
    pub(super) missing: Option<Missing>,
    _clean_up: CleanUp,
}

impl JournalGuard {
    /// Opens the journal, and tells of settings that a killed lab had left.
    pub(super) fn open() -> Result<JournalGuard, CommandError> {
        let opened = tautline_lab::open_journal().map_err(no_journal)?;
        for line in opened.recovered {
            say!("from an earlier run that was killed: {line}");
        }
        let journal = Arc::new(Mutex::new(opened.journal));
        let for_signals = Arc::clone(&journal);
        let clean_up = CleanUp::new(move || {
            for_signals
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .restore();
        });
        Ok(JournalGuard {
            journal,
            missing: opened.missing,
            _clean_up: clean_up,
        })
    }
}
