//! Changes to the machine, written down before they are made, so that they are undone: at the end, on ^C, and, when
//! the process that made them was killed, by its next start.
//!
//! A journal is one small file in the [runtime directory](crate::runtime_directory), which a restart of the machine
//! empties together with the settings. One process at a time holds it. The lab has one; so has each interface whose
//! receive processing is tuned.
//!
//! A journal is believed only if this user or root owns it and nobody else can write it or its directory. And
//! whatever it says, no file but a setting of the kernel is written, and no directory is removed but a temporary one
//! of this user.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::process::start_ticks;
use crate::setting::Setting;
use crate::temporary::{remove_left, temporary_name};
use crate::{Directory, StateError, TemporaryDirectory, runtime_directory};

/// Longest journal. Each change takes a hundred bytes or two: lower, and the interrupts of a large machine would not
/// fit; higher, and a damaged file would take more memory.
const JOURNAL_BYTES_MAX: usize = 1 << 20;

/// Longest wait for another process that is opening a journal, which takes it milliseconds. Lower, and a busy machine
/// refuses a second start; higher, and a stuck process delays ours by that much.
const OPENING_TIME_MAX: Duration = Duration::from_secs(2);

/// Journals are for their owner alone.
const JOURNAL_MODE: u32 = 0o600;

/// Reason why settings cannot be changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// Another process holds the journal: two labs would measure each other, and restore each other's settings.
    #[error("another {holder} runs (process {pid}); wait for it, or end it")]
    Busy {
        /// Program that holds it.
        holder: &'static str,
        /// Its process.
        pid: u32,
    },
    /// The journal cannot be kept.
    #[error("the journal cannot be used: {0}")]
    File(#[from] StateError),
}

/// A setting that was changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// The setting, usually a path.
    pub what: String,
    /// Its value before.
    pub before: String,
    /// Its value meanwhile.
    pub after: String,
    /// Whether it was put back.
    pub restored: bool,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Entries {
    pid: u32,
    /// Start of that process in clock ticks since boot: tells it from a later one with the same number.
    started_ticks: u64,
    /// Settings and their former values, in the order of the changes.
    settings: Vec<(Setting, String)>,
    /// Temporary directories to remove with all that is in them.
    directories: Vec<PathBuf>,
    /// Trace instances, which the kernel removes with the directory alone.
    trace_instances: Vec<PathBuf>,
}

impl Entries {
    fn is_empty(&self) -> bool {
        self.settings.is_empty() && self.directories.is_empty() && self.trace_instances.is_empty()
    }

    /// Another process that lives and holds the journal.
    fn other_holder(&self) -> Option<u32> {
        let lives = start_ticks(self.pid) == Some(self.started_ticks);
        (self.pid != std::process::id() && lives).then_some(self.pid)
    }
}

/// The open journal. Dropped, it puts everything back.
#[derive(Debug)]
pub struct Journal {
    directory: Directory,
    name: String,
    entries: Entries,
    changes: Vec<Change>,
    /// Reasons why settings could not be put back.
    refused: Vec<String>,
    /// The directory of a private journal, which goes with it.
    _private: Option<TemporaryDirectory>,
    /// Whether the file is this journal's: once removed, it may be another's.
    written: bool,
}

impl Journal {
    /// Opens a journal in the runtime directory of this user for `holder`, first putting back what a killed process
    /// left, which is returned as text.
    pub fn open(name: &str, holder: &'static str) -> Result<(Journal, Vec<String>), JournalError> {
        Journal::open_in(runtime_directory()?, name, holder)
    }

    /// The same in another directory.
    pub fn open_in(
        directory: Directory,
        name: &str,
        holder: &'static str,
    ) -> Result<(Journal, Vec<String>), JournalError> {
        // Of two processes that open at once, the second shall find the first's number.
        let _opening = directory.lock(OPENING_TIME_MAX)?;
        let left = match directory.read(name, JOURNAL_BYTES_MAX) {
            Err(error) if error.is_absent() => Entries::default(),
            // It is written whole or not at all, so one that cannot be read was not written by this release, and
            // what it changed cannot be told.
            text => serde_json::from_slice(&text?).unwrap_or_default(),
        };
        if let Some(pid) = left.other_holder() {
            return Err(JournalError::Busy { holder, pid });
        }
        let mut journal = Journal {
            directory,
            name: name.to_owned(),
            entries: left,
            changes: Vec::new(),
            refused: Vec::new(),
            _private: None,
            written: false,
        };
        let recovered = journal.put_back();
        journal.entries.pid = std::process::id();
        journal.entries.started_ticks = start_ticks(std::process::id()).unwrap_or(0);
        journal.save()?;
        Ok((journal, recovered))
    }

    /// A journal that no later start will find: everything is put back at the end and on ^C, but not after a kill.
    /// For users without a runtime directory.
    pub fn open_private(name: &str, holder: &'static str) -> Result<Journal, JournalError> {
        let private = TemporaryDirectory::make("taut-journal")?;
        let directory = private.directory().try_clone()?;
        let (mut journal, _nothing) = Journal::open_in(directory, name, holder)?;
        journal._private = Some(private);
        Ok(journal)
    }

    /// Writes `after` into the setting at `path`, having noted its value. Nothing is done where that is the same.
    pub fn set(&mut self, path: &Path, after: &str) -> io::Result<()> {
        self.change(&Setting::File(path.to_owned()), after)
    }

    /// The same for any setting.
    pub fn change(&mut self, setting: &Setting, after: &str) -> io::Result<()> {
        let before = setting.read()?;
        if before == after {
            return Ok(());
        }
        self.entries
            .settings
            .push((setting.clone(), before.clone()));
        self.save()?;
        if let Err(error) = setting.write(after) {
            self.entries.settings.pop();
            self.save()?;
            return Err(error);
        }
        self.changes.push(Change {
            what: setting.to_string(),
            before,
            after: after.to_owned(),
            restored: false,
        });
        Ok(())
    }

    /// Changes so far.
    pub fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// Settings that could not be put back when that was last tried, and why. They stay in the journal.
    pub fn refused(&self) -> &[String] {
        &self.refused
    }

    /// Leaves everything as it was changed, for whoever opens the journal next to put back.
    pub fn keep(mut self) -> Result<(), StateError> {
        // No process has number 0: nobody holds the journal.
        self.entries.pid = 0;
        self.save()?;
        self.entries = Entries::default();
        self.written = false;
        Ok(())
    }

    /// Notes a change that ends with the process by itself, such as a held descriptor.
    pub fn note(&mut self, what: &str, before: &str, after: &str) {
        self.changes.push(Change {
            what: what.to_owned(),
            before: before.to_owned(),
            after: after.to_owned(),
            restored: true,
        });
    }

    /// Makes a temporary directory in `parent`, having noted it. Its name begins with `prefix`, which begins with
    /// `taut`.
    pub fn make_temporary(
        &mut self,
        parent: &Path,
        prefix: &str,
    ) -> Result<TemporaryDirectory, StateError> {
        let name = temporary_name(prefix);
        let parent = std::path::absolute(parent).map_err(StateError::io("open", parent))?;
        self.entries.directories.push(parent.join(&name));
        self.save()?;
        TemporaryDirectory::make_named(&parent, &name)
    }

    /// Notes a trace instance that must be gone afterwards, before it is made.
    pub fn will_make_trace_instance(&mut self, path: &Path) -> Result<(), StateError> {
        self.entries.trace_instances.push(path.to_owned());
        self.save()
    }

    /// Puts everything back and returns the changes. Later calls do nothing.
    pub fn restore(&mut self) -> Vec<Change> {
        self.put_back();
        for change in &mut self.changes {
            let still_noted = self
                .entries
                .settings
                .iter()
                .any(|(setting, _)| setting.to_string() == change.what);
            change.restored = !still_noted;
        }
        std::mem::take(&mut self.changes)
    }

    /// Puts everything back, the last change first, and returns it as text. What cannot be put back stays in the
    /// journal for the next start.
    pub fn put_back(&mut self) -> Vec<String> {
        if self.entries.is_empty() && !self.written {
            return Vec::new();
        }
        let mut done = self.put_settings_back();
        done.extend(take_away(&mut self.entries.directories, remove_left));
        done.extend(take_away(
            &mut self.entries.trace_instances,
            remove_trace_instance,
        ));
        if self.entries.is_empty() {
            let _ = self.directory.remove(&self.name); // absent if nothing was ever noted
            self.written = false;
        } else {
            let _ = self.save(); // the old one still has all of it
        }
        done
    }

    fn put_settings_back(&mut self) -> Vec<String> {
        let mut done = Vec::new();
        let mut left = Vec::new();
        self.refused.clear();
        for (setting, before) in self.entries.settings.drain(..).rev() {
            match setting.write(&before) {
                Ok(()) => done.push(format!("{setting} set back to {before}")),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {} // gone with its CPU or device
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                    // No later start could do it either.
                    self.refused
                        .push(format!("{setting} is not set back to {before}: {error}"));
                }
                Err(error) => {
                    self.refused
                        .push(format!("{setting} is not set back to {before}: {error}"));
                    left.push((setting, before));
                }
            }
        }
        left.reverse();
        self.entries.settings = left;
        done
    }

    fn save(&mut self) -> Result<(), StateError> {
        let text = serde_json::to_vec(&self.entries).expect("paths and strings");
        self.directory.write(&self.name, &text, JOURNAL_MODE)?;
        self.written = true;
        Ok(())
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.put_back();
    }
}

/// Removes what is listed, and keeps in the list what a later start may be able to remove.
fn take_away(list: &mut Vec<PathBuf>, remove: fn(&Path) -> Result<(), StateError>) -> Vec<String> {
    let mut done = Vec::new();
    list.retain(|path| match remove(path) {
        Ok(()) => {
            done.push(format!("{} removed", path.display()));
            false
        }
        // Absent, or never ours: no later start will remove it either.
        Err(StateError::Io { source, .. }) => source.kind() != io::ErrorKind::NotFound,
        Err(_) => false,
    });
    done
}

/// Removes a trace instance of ours. tracefs has directories only where the kernel made them, and removing one that
/// holds anything but the kernel's own files fails.
fn remove_trace_instance(path: &Path) -> Result<(), StateError> {
    let name = path.file_name().map(|name| name.to_string_lossy());
    let ours = name.is_some_and(|name| name.starts_with("taut"));
    if !ours || !path.starts_with("/sys/kernel") {
        return Err(StateError::InvalidName {
            path: path.to_owned(),
        });
    }
    std::fs::remove_dir(path).map_err(StateError::io("remove", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "journal.json";

    /// A setting that anybody may change: the name of a thread of this process.
    struct Comm {
        path: PathBuf,
        end: std::sync::mpsc::Sender<()>,
        thread: Option<std::thread::JoinHandle<()>>,
    }

    impl Comm {
        fn new() -> Comm {
            let (tell, told) = std::sync::mpsc::channel();
            let (end, ended) = std::sync::mpsc::channel();
            let thread = std::thread::spawn(move || {
                tell.send(rustix::thread::gettid().as_raw_nonzero())
                    .unwrap();
                let _ = ended.recv(); // an error when it is dropped
            });
            let number = told.recv().unwrap();
            let path = PathBuf::from(format!("/proc/self/task/{number}/comm"));
            std::fs::write(&path, "before").unwrap();
            Comm {
                path,
                end,
                thread: Some(thread),
            }
        }

        fn value(&self) -> String {
            let text = std::fs::read_to_string(&self.path).unwrap();
            text.trim().to_owned()
        }
    }

    impl Drop for Comm {
        fn drop(&mut self) {
            let _ = self.end.send(());
            self.thread.take().unwrap().join().unwrap();
        }
    }

    fn open(scratch: &TemporaryDirectory) -> Result<(Journal, Vec<String>), JournalError> {
        let directory = scratch.directory().try_clone()?;
        Journal::open_in(directory, NAME, "taut lab")
    }

    #[test]
    fn settings_come_back_in_reverse_order_and_files_go() {
        let scratch = TemporaryDirectory::make("taut-journal").unwrap();
        let comm = Comm::new();
        let (mut journal, recovered) = open(&scratch).unwrap();
        assert!(recovered.is_empty());
        journal.set(&comm.path, "once").unwrap();
        journal.set(&comm.path, "twice").unwrap();
        journal.set(&comm.path, "twice").unwrap();
        let files = journal.make_temporary(scratch.path(), "taut-load").unwrap();
        std::fs::create_dir_all(files.path().join("deep/er")).unwrap();
        assert_eq!(comm.value(), "twice");
        let changes = journal.restore();
        assert_eq!(changes.len(), 2);
        assert!(changes.iter().all(|change| change.restored));
        assert_eq!(comm.value(), "before");
        assert!(!files.path().exists());
        drop(journal);
        assert!(scratch.directory().entries().unwrap().is_empty());
    }

    #[test]
    fn a_killed_lab_is_cleared_up_by_the_next() {
        let scratch = TemporaryDirectory::make("taut-journal").unwrap();
        let comm = Comm::new();
        let (mut journal, _) = open(&scratch).unwrap();
        journal.set(&comm.path, "after").unwrap();
        let files = journal.make_temporary(scratch.path(), "taut-load").unwrap();
        std::fs::write(files.path().join("file"), "").unwrap();
        let left = files.path().to_owned();
        std::mem::forget(files);
        journal.entries.pid = u32::MAX; // no such process, as after a kill
        journal.save().unwrap();
        std::mem::forget(journal);
        assert_eq!(comm.value(), "after");
        let (journal, recovered) = open(&scratch).unwrap();
        assert_eq!(recovered.len(), 2);
        assert_eq!(comm.value(), "before");
        assert!(!left.exists());
        drop(journal);
    }

    #[test]
    fn two_labs_do_not_run_at_once_and_a_reused_number_is_no_lab() {
        let scratch = TemporaryDirectory::make("taut-journal").unwrap();
        let (mut journal, _) = open(&scratch).unwrap();
        // Process 1 is alive and is not this one.
        journal.entries.pid = 1;
        journal.entries.started_ticks = start_ticks(1).unwrap();
        journal.save().unwrap();
        let busy = open(&scratch);
        assert!(matches!(busy, Err(JournalError::Busy { pid: 1, .. })));
        journal.entries.started_ticks += 1;
        journal.save().unwrap();
        assert!(open(&scratch).is_ok());
    }

    #[test]
    fn a_kept_change_is_put_back_by_the_next() {
        let scratch = TemporaryDirectory::make("taut-journal").unwrap();
        let comm = Comm::new();
        let (mut journal, _) = open(&scratch).unwrap();
        journal.set(&comm.path, "after").unwrap();
        assert_eq!(journal.changes().len(), 1);
        journal.keep().unwrap();
        assert_eq!(comm.value(), "after");
        let (journal, recovered) = open(&scratch).unwrap();
        assert_eq!(recovered.len(), 1);
        assert_eq!(comm.value(), "before");
        drop(journal);
        assert!(scratch.directory().entries().unwrap().is_empty());
    }

    #[test]
    fn a_refused_setting_leaves_nothing_in_the_journal() {
        let scratch = TemporaryDirectory::make("taut-journal").unwrap();
        let (mut journal, _) = open(&scratch).unwrap();
        assert!(journal.set(Path::new("/proc/self/absent"), "1").is_err());
        assert!(journal.restore().is_empty());
    }

    #[test]
    fn whatever_a_journal_says_no_other_file_is_touched() {
        let scratch = TemporaryDirectory::make("taut-journal").unwrap();
        let file = scratch.path().join("file");
        std::fs::write(&file, "precious").unwrap();
        let kept = scratch.path().join("documents");
        std::fs::create_dir(&kept).unwrap();
        let entries = Entries {
            settings: vec![(Setting::File(file.clone()), "forged".to_owned())],
            directories: vec![kept.clone(), kept.join("..")],
            trace_instances: vec![kept.clone()],
            ..Entries::default()
        };
        let text = serde_json::to_vec(&entries).unwrap();
        scratch.directory().write(NAME, &text, 0o600).unwrap();
        let (journal, recovered) = open(&scratch).unwrap();
        assert!(recovered.is_empty(), "{recovered:?}");
        assert_eq!(journal.refused().len(), 1);
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
        assert!(kept.exists());
    }
}
