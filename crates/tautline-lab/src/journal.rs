//! What was changed on the machine, written down before it is changed, so that it is put back: at the end, on
//! ^C, and, when whoever changed it was killed, by its next start.
//!
//! A journal is one small file in the system's (or the user's) runtime directory, which a restart of the machine
//! empties together with the settings. One process at a time holds it. The lab has one; so has each interface whose
//! receive processing is tuned.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::result::{Change, write_whole};
use crate::setting::Setting;
use crate::sys;

/// Why settings cannot be changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// Another process holds it: two labs would measure each other, and restore each other's settings.
    #[error("another {what} runs (process {pid}); wait for it, or end it")]
    Busy {
        /// What holds it.
        what: &'static str,
        /// Its process.
        pid: u32,
    },
    /// The journal cannot be kept.
    #[error("the journal {path} cannot be used: {source}")]
    File {
        /// The journal.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Entries {
    pid: u32,
    /// Start of that process in clock ticks since boot: tells it from a later one with the same number.
    started_ticks: u64,
    /// Settings and what they were, in the order of the changes.
    settings: Vec<(Setting, String)>,
    /// Directories to remove with all that is in them.
    directories: Vec<PathBuf>,
    /// Trace instances, which the kernel removes with the directory alone.
    trace_instances: Vec<PathBuf>,
}

impl Entries {
    fn is_empty(&self) -> bool {
        self.settings.is_empty() && self.directories.is_empty() && self.trace_instances.is_empty()
    }
}

/// The open journal. Dropped, it puts everything back.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    entries: Entries,
    changes: Vec<Change>,
    /// Why settings could not be put back.
    refused: Vec<String>,
    /// Whether the file is this journal's: once removed, it may be another's.
    written: bool,
}

impl Journal {
    /// Opens the journal of this user, first putting back what a killed lab left. Says what that was.
    pub fn open() -> Result<(Journal, Vec<String>), JournalError> {
        Journal::open_in(&runtime_directory())
    }

    /// The same in a given directory.
    pub fn open_in(directory: &Path) -> Result<(Journal, Vec<String>), JournalError> {
        Journal::open_named(directory, "lab-journal.json", "taut lab")
    }

    /// A journal of this name, for `what` to hold.
    pub fn open_named(
        directory: &Path,
        name: &str,
        what: &'static str,
    ) -> Result<(Journal, Vec<String>), JournalError> {
        let path = directory.join(name);
        let fail = |source| JournalError::File {
            path: path.clone(),
            source,
        };
        fs::create_dir_all(directory).map_err(fail)?;
        let mut journal = Journal {
            path: path.clone(),
            entries: Entries::default(),
            changes: Vec::new(),
            refused: Vec::new(),
            written: false,
        };
        let mut recovered = Vec::new();
        // A journal that is no JSON was cut off by a crash while it was empty: it is written whole or not at all.
        if let Some(left) = fs::read(&path)
            .ok()
            .and_then(|text| serde_json::from_slice::<Entries>(&text).ok())
        {
            if left.pid != std::process::id() && start_of(left.pid) == Some(left.started_ticks) {
                return Err(JournalError::Busy {
                    what,
                    pid: left.pid,
                });
            }
            journal.entries = left;
            recovered = journal.put_back();
        }
        journal.entries.pid = std::process::id();
        journal.entries.started_ticks = start_of(std::process::id()).unwrap_or(0);
        journal.save().map_err(fail)?;
        Ok((journal, recovered))
    }

    /// Writes `after` into the setting at `path`, having noted what was there. Nothing is done where it is so already.
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

    /// What has been changed so far.
    pub fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// What could not be put back when that was last tried, and why. It stays in the journal.
    pub fn refused(&self) -> &[String] {
        &self.refused
    }

    /// Leaves everything as it was changed, for whoever opens the journal next to put back.
    pub fn keep(mut self) -> io::Result<()> {
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

    /// Notes a directory that must be gone afterwards, before it is made.
    pub fn will_make_directory(&mut self, path: &Path) -> io::Result<()> {
        self.entries.directories.push(path.to_owned());
        self.save()
    }

    /// Notes a trace instance that must be gone afterwards, before it is made.
    pub fn will_make_trace_instance(&mut self, path: &Path) -> io::Result<()> {
        self.entries.trace_instances.push(path.to_owned());
        self.save()
    }

    /// Puts everything back and returns what had been changed. Later calls do nothing.
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

    /// Puts everything back, the last change first, and says what. What cannot be put back stays in the journal for
    /// the next start.
    pub fn put_back(&mut self) -> Vec<String> {
        if self.entries.is_empty() && !self.written {
            return Vec::new();
        }
        let mut done = Vec::new();
        let mut settings = std::mem::take(&mut self.entries.settings);
        let mut left = Vec::new();
        self.refused.clear();
        while let Some((setting, before)) = settings.pop() {
            match setting.write(&before) {
                Ok(()) => done.push(format!("{setting} set back to {before}")),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {} // gone with its CPU or device
                Err(error) => {
                    self.refused
                        .push(format!("{setting} is not set back to {before}: {error}"));
                    left.push((setting, before));
                }
            }
        }
        left.reverse();
        self.entries.settings = left;
        let keep_unless_gone = |list: &mut Vec<PathBuf>,
                                remove: fn(&Path) -> io::Result<()>,
                                done: &mut Vec<String>| {
            list.retain(|path| match remove(path) {
                Ok(()) => {
                    done.push(format!("{} removed", path.display()));
                    false
                }
                Err(error) => error.kind() != io::ErrorKind::NotFound,
            });
        };
        keep_unless_gone(
            &mut self.entries.directories,
            |path| fs::remove_dir_all(path),
            &mut done,
        );
        keep_unless_gone(
            &mut self.entries.trace_instances,
            |path| fs::remove_dir(path),
            &mut done,
        );
        if self.entries.is_empty() {
            let _ = fs::remove_file(&self.path); // absent if nothing was ever noted
            self.written = false;
        } else {
            let _ = self.save(); // the old one still has all of it
        }
        done
    }

    fn save(&mut self) -> io::Result<()> {
        let text = serde_json::to_vec(&self.entries).expect("paths and strings");
        write_whole(&self.path, &text)?;
        self.written = true;
        Ok(())
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.put_back();
    }
}

/// `/run/tautline` for root, the user's runtime directory for others.
pub fn runtime_directory() -> PathBuf {
    if sys::is_root() {
        return PathBuf::from("/run/tautline");
    }
    std::env::var_os("XDG_RUNTIME_DIR")
        .map(|path| PathBuf::from(path).join("tautline"))
        .unwrap_or_else(|| std::env::temp_dir().join(format!("tautline-{}", sys::user_id())))
}

/// When a process or thread started, in clock ticks since boot: the 22nd field of `/proc/PID/stat` (proc(5)); the second may contain spaces, so counting begins after it.
pub fn start_of(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    text.rsplit_once(')')?
        .1
        .split_whitespace()
        .nth(19)?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("taut-journal-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        path
    }

    #[test]
    fn settings_come_back_in_reverse_order_and_files_go() {
        let directory = scratch("restore");
        let setting = directory.join("throttle");
        fs::write(&setting, "950000\n").unwrap();
        let (mut journal, recovered) = Journal::open_in(&directory).unwrap();
        assert!(recovered.is_empty());
        journal.set(&setting, "-1").unwrap();
        journal.set(&setting, "500000").unwrap();
        journal.set(&setting, "500000").unwrap();
        let files = directory.join("load");
        journal.will_make_directory(&files).unwrap();
        fs::create_dir_all(files.join("deep")).unwrap();
        assert_eq!(fs::read_to_string(&setting).unwrap(), "500000");
        let changes = journal.restore();
        assert_eq!(changes.len(), 2);
        assert!(changes.iter().all(|change| change.restored));
        assert_eq!(fs::read_to_string(&setting).unwrap(), "950000");
        assert!(!files.exists());
        drop(journal);
        assert!(!directory.join("lab-journal.json").exists());
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn a_killed_lab_is_cleared_up_by_the_next() {
        let directory = scratch("killed");
        let setting = directory.join("governor");
        fs::write(&setting, "powersave").unwrap();
        let (mut journal, _) = Journal::open_in(&directory).unwrap();
        journal.set(&setting, "performance").unwrap();
        journal.entries.pid = u32::MAX; // no such process, as after a kill
        journal.save().unwrap();
        std::mem::forget(journal);
        assert_eq!(fs::read_to_string(&setting).unwrap(), "performance");
        let (journal, recovered) = Journal::open_in(&directory).unwrap();
        assert_eq!(recovered.len(), 1);
        assert_eq!(fs::read_to_string(&setting).unwrap(), "powersave");
        drop(journal);
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn two_labs_do_not_run_at_once_and_a_reused_number_is_no_lab() {
        let directory = scratch("busy");
        let (mut journal, _) = Journal::open_in(&directory).unwrap();
        // Process 1 is alive and is not this one.
        journal.entries.pid = 1;
        journal.entries.started_ticks = start_of(1).unwrap();
        journal.save().unwrap();
        assert!(matches!(
            Journal::open_in(&directory),
            Err(JournalError::Busy { pid: 1, .. })
        ));
        journal.entries.started_ticks += 1;
        journal.save().unwrap();
        assert!(Journal::open_in(&directory).is_ok());
        drop(journal);
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn what_is_kept_is_put_back_by_whoever_comes_next() {
        let directory = scratch("kept");
        let setting = directory.join("threaded");
        fs::write(&setting, "0").unwrap();
        let open = || Journal::open_named(&directory, "tune.json", "tuning").unwrap();
        let (mut journal, _) = open();
        journal.set(&setting, "1").unwrap();
        assert_eq!(journal.changes().len(), 1);
        journal.keep().unwrap();
        assert_eq!(fs::read_to_string(&setting).unwrap(), "1");
        let (journal, recovered) = open();
        assert_eq!(recovered.len(), 1);
        assert_eq!(fs::read_to_string(&setting).unwrap(), "0");
        drop(journal);
        assert!(!directory.join("tune.json").exists());
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn a_refused_setting_leaves_nothing_in_the_journal() {
        let directory = scratch("refused");
        let (mut journal, _) = Journal::open_in(&directory).unwrap();
        assert!(journal.set(&directory.join("absent"), "1").is_err());
        assert!(journal.restore().is_empty());
        drop(journal);
        fs::remove_dir_all(directory).unwrap();
    }
}
