//! Directory of a flight, for its bus and the loads' files.
//!
//! A journal in the runtime directory notes its name, so that it goes even if this process is killed: the guard of the
//! flight, the next flight and `taut doctor --put-back` find the journals of processes that have died.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use tautline_state::journal::{Journal, JournalError};
use tautline_state::{TemporaryDirectory, runtime_directory, unforeseeable};
use tautline_testbed::interrupt::CleanUp;

/// Beginning of the names of directories.
const PREFIX: &str = "taut-flight";
/// Beginning of the names of journals. A process may have several directories.
const JOURNAL: &str = "flight-";
const SUFFIX: &str = ".json";

/// The directory. Removed when a signal ends the process too: stopping a load's disk may take longer than a signal
/// gives.
pub(crate) struct Home {
    pub(crate) path: PathBuf,
    _clean_up: CleanUp,
    _directory: Arc<Mutex<Option<Made>>>,
}

/// In the order in which they go: the journal tries once more where the directory was still being written.
struct Made {
    directory: TemporaryDirectory,
    _journal: Option<Journal>,
}

impl Home {
    /// Makes a directory among the temporary files.
    pub(crate) fn make() -> Result<Home, JournalError> {
        let made = Made::make()?;
        let path = made.directory.path().to_owned();
        let directory = Arc::new(Mutex::new(Some(made)));
        let shared = Arc::clone(&directory);
        let remove = move || drop(shared.lock().unwrap_or_else(PoisonError::into_inner).take());
        Ok(Home {
            path,
            _clean_up: CleanUp::new(remove),
            _directory: directory,
        })
    }
}

impl Made {
    fn make() -> Result<Made, JournalError> {
        let Ok(runtime) = runtime_directory() else {
            // Users that are not logged in have none: their leftovers are not removed.
            return Ok(Made {
                directory: TemporaryDirectory::make(PREFIX)?,
                _journal: None,
            });
        };
        // Not by the process's number: another process namespace may have the same one.
        let name = format!("{JOURNAL}{}{SUFFIX}", unforeseeable());
        let (mut journal, _nothing) = Journal::open_new_in(runtime, &name, "taut flight")?;
        let directory = journal.make_temporary(&std::env::temp_dir(), PREFIX)?;
        Ok(Made {
            directory,
            _journal: Some(journal),
        })
    }
}
