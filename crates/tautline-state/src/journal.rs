//! Changes to the machine, written down before they are made, so that they are undone: at the end, on ^C, and, when
//! the process that made them was killed, by its next start.
//!
//! A journal is one small file in the [runtime directory](crate::runtime_directory), which a restart of the machine
//! empties together with the settings. One process at a time holds it. The lab has one; so has each interface whose
//! receive processing is tuned, and each partition.
//!
//! Several journals may change the same setting. Their changes lie above each other in the order in which they were
//! made, each as a rule that makes a value from the one below it ([`NewValue`]). Putting one back takes it out of
//! that pile: the changes above it are made anew, to the value below it, and the last of all restores the first value.
//! So all journals of a directory are changed under its lock, and the files hold the truth, not the memory of
//! their writers.
//!
//! A journal is believed only if this user or root owns it and no other user can write it or its directory. And
//! whatever it says, no file but a setting of the kernel is written, and no directory is removed but a temporary one
//! of this user, groups of processes with a name of ours, and queues and filters of interfaces with a name of ours.

mod file;

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::io;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use self::file::{Entries, KEPT, Layer, read, take_out};
pub use self::file::{Left, Look};
use crate::fork::OwnerProcess;
use crate::group::Group;
use crate::network::NetworkObject;
use crate::setting::{NewValue, Setting};
use crate::temporary::{remove_left, temporary_name};
use crate::{Directory, Lock, StateError, TemporaryDirectory, runtime_directory};

/// Longest wait for another process that changes settings, which takes it milliseconds, for a partition up to a second.
/// Lower, and a busy machine refuses a second start; higher, and a stuck process delays ours by that much.
const LOCK_TIME_MAX: Duration = Duration::from_secs(10);

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
    /// The journal holds changes that are in force.
    #[error("there is a {holder} of this name")]
    Exists {
        /// Kind of its holder.
        holder: &'static str,
    },
    /// The journal cannot be kept.
    #[error("the journal cannot be used: {0}")]
    File(#[from] StateError),
}

impl JournalError {
    /// Remedy, where the holder has none of its own.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::File(StateError::NoJournal { .. }) => {
                "put it back with the release of Tautline that wrote it, or restart the machine, which undoes its \
                 changes; remove the file by hand only when they are undone"
            }
            Self::File(StateError::JournalFull { .. }) => {
                "end programs whose threads have CPUs of their own: each such thread takes room in the journal"
            }
            _ => "run as root, or give the directory to this user",
        }
    }
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

/// Result of putting changes back, as text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PutBack {
    /// Changes that were undone.
    pub done: Vec<String>,
    /// Changes that were not, and why.
    pub refused: Vec<String>,
}

impl PutBack {
    /// Adds the result of something else that was put back, or the reason why nothing of it was.
    pub fn add(&mut self, other: Result<PutBack, impl fmt::Display>) {
        let other = self.found(other);
        self.done.extend(other.done);
        self.refused.extend(other.refused);
    }

    /// The value of a look for what there is to put back. After an error there is nothing, and the reason is added.
    pub fn found<T: Default>(&mut self, look: Result<T, impl fmt::Display>) -> T {
        look.unwrap_or_else(|error| {
            self.refused.push(error.to_string());
            T::default()
        })
    }
}

/// The open journal. Dropped, it puts everything back; in a process that was forked from the one that opened it,
/// nothing.
#[derive(Debug)]
pub struct Journal {
    directory: Directory,
    name: String,
    entries: Entries,
    changes: Vec<Change>,
    /// Reasons why changes could not be put back.
    refused: Vec<String>,
    /// The directory of a private journal, which goes with it.
    _private: Option<TemporaryDirectory>,
    /// Whether the file is this journal's: once removed, it may be another's.
    written: bool,
    process: OwnerProcess,
}

impl Journal {
    /// Opens a journal in the runtime directory of this user for `holder`, first putting back what a killed process
    /// left, which is returned as text.
    pub fn open(name: &str, holder: &'static str) -> Result<(Journal, Vec<String>), JournalError> {
        Journal::open_in(runtime_directory()?, name, holder)
    }

    /// Opens a journal in another directory.
    pub fn open_in(
        directory: Directory,
        name: &str,
        holder: &'static str,
    ) -> Result<(Journal, Vec<String>), JournalError> {
        // Of two processes that open at once, the second shall find the first's number.
        let lock = directory.lock(LOCK_TIME_MAX)?;
        let left = read(&directory, name)?.unwrap_or_default();
        if let Some(pid) = left.other_holder() {
            return Err(JournalError::Busy { holder, pid });
        }
        Journal::take_over(directory, name, left, &lock)
    }

    /// Opens a journal that must not hold changes, be they kept or of a process that lives, this one included.
    pub fn open_new_in(
        directory: Directory,
        name: &str,
        holder: &'static str,
    ) -> Result<(Journal, Vec<String>), JournalError> {
        let lock = directory.lock(LOCK_TIME_MAX)?;
        let left = read(&directory, name)?;
        let in_force = |left: &Entries| left.pid == KEPT || left.holder().is_some();
        if left.as_ref().is_some_and(in_force) {
            return Err(JournalError::Exists { holder });
        }
        Journal::take_over(directory, name, left.unwrap_or_default(), &lock)
    }

    /// Puts back what is left, and makes this process the holder.
    fn take_over(
        directory: Directory,
        name: &str,
        left: Entries,
        lock: &Lock,
    ) -> Result<(Journal, Vec<String>), JournalError> {
        directory.sweep(name)?;
        let mut journal = Journal::with(directory, name, left);
        let recovered = journal.put_back_locked(lock);
        journal.hold()?;
        Ok((journal, recovered))
    }

    /// Puts back the changes of a journal whose process has died. A journal that is kept, or whose process lives, stays
    /// as it is.
    pub fn recover_in(directory: &Directory, name: &str) -> Result<PutBack, JournalError> {
        let is_dead = |left: &mut Entries| left.pid != KEPT && left.holder().is_none();
        Journal::recover(directory, name, |left| Ok(is_dead(left)))
    }

    /// Puts back a journal, kept or not, that no other process holds.
    pub fn remove(
        directory: &Directory,
        name: &str,
        holder: &'static str,
    ) -> Result<PutBack, JournalError> {
        let is_free = |left: &mut Entries| match left.other_holder() {
            Some(pid) => Err(JournalError::Busy { holder, pid }),
            None => Ok(true),
        };
        Journal::recover(directory, name, is_free)
    }

    /// Puts back a journal, kept or not, whose network namespace has gone: its interfaces have gone with that, and
    /// interfaces that have their names or numbers here are others. The changes of the machine are put back.
    pub fn recover_of_gone_network(
        directory: &Directory,
        name: &str,
    ) -> Result<PutBack, JournalError> {
        let is_free = |left: &mut Entries| {
            left.forget_network();
            Ok(left.holder().is_none())
        };
        Journal::recover(directory, name, is_free)
    }

    fn recover(
        directory: &Directory,
        name: &str,
        is_meant: impl FnOnce(&mut Entries) -> Result<bool, JournalError>,
    ) -> Result<PutBack, JournalError> {
        let lock = directory.lock(LOCK_TIME_MAX)?;
        directory.sweep(name)?;
        let Some(mut left) = read(directory, name)? else {
            return Ok(PutBack::default());
        };
        if !is_meant(&mut left)? {
            return Ok(PutBack::default());
        }
        let mut journal = Journal::with(directory.try_clone()?, name, left);
        let done = journal.put_back_locked(&lock);
        let refused = std::mem::take(&mut journal.refused);
        journal.disown();
        Ok(PutBack { done, refused })
    }

    fn with(directory: Directory, name: &str, entries: Entries) -> Journal {
        Journal {
            directory,
            name: name.to_owned(),
            entries,
            changes: Vec::new(),
            refused: Vec::new(),
            _private: None,
            written: true,
            process: OwnerProcess::current(),
        }
    }

    /// Makes this process the holder.
    fn hold(&mut self) -> Result<(), StateError> {
        self.entries.hold();
        self.save()
    }

    /// Leaves the file as it is.
    fn disown(&mut self) {
        self.entries = Entries::default();
        self.written = false;
    }

    /// Locks the directory and reads the file again, which other journals may have changed.
    fn lock(&mut self) -> Result<Lock, StateError> {
        let other = |_| StateError::OtherProcess {
            path: self.directory.path().join(&self.name),
        };
        self.process.check().map_err(other)?;
        let lock = self.directory.lock(LOCK_TIME_MAX)?;
        if let Some(entries) = read(&self.directory, &self.name)?
            && self.written
        {
            self.entries = entries;
        }
        Ok(lock)
    }

    /// The other journals of the directory, by name. One that cannot be read has no changes that can be told.
    fn others(&self) -> BTreeMap<String, Entries> {
        let names = file::names(&self.directory).unwrap_or_default().into_iter();
        names
            .filter(|name| *name != self.name)
            .filter_map(|name| {
                let entries = read(&self.directory, &name).ok()??;
                Some((name, entries))
            })
            .collect()
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

    /// Changes any setting.
    pub fn change(&mut self, setting: &Setting, after: &str) -> io::Result<()> {
        let wanted = (setting.clone(), NewValue::Exactly(after.to_owned()));
        self.change_all(&[wanted]).remove(0)
    }

    /// Changes several settings, each at most once. All of them are noted before the first is changed. Returns an
    /// answer for each.
    pub fn change_all(&mut self, wanted: &[(Setting, NewValue)]) -> Vec<io::Result<()>> {
        let failed = |error: &dyn Fn() -> io::Error| wanted.iter().map(|_| Err(error())).collect();
        let _lock = match self.lock() {
            Ok(lock) => lock,
            Err(error) => return failed(&|| io::Error::new(error.kind(), error.to_string())),
        };
        let others = self.others();
        let shared: HashSet<&Setting> = others
            .values()
            .flat_map(|entries| entries.settings.iter().map(|layer| &layer.setting))
            .collect();
        let mut order = self.highest_order(&others);
        let mut planned = Vec::new();
        for (setting, value) in wanted {
            let plan = setting.read().and_then(|before| {
                let after = value.over(&before)?;
                Ok((before, after))
            });
            // A value that is there already is noted only where another journal would put it back.
            let mut is_noted = false;
            if let Ok((before, after)) = &plan
                && (before != after || shared.contains(setting))
            {
                is_noted = true;
                order += 1;
                self.entries.settings.push(Layer {
                    setting: setting.clone(),
                    before: before.clone(),
                    value: value.clone(),
                    order,
                });
            }
            planned.push((plan, is_noted.then_some(order)));
        }
        if let Err(error) = self.save() {
            return failed(&|| io::Error::new(error.kind(), error.to_string()));
        }
        let mut answers = Vec::new();
        for ((setting, _), (plan, noted)) in wanted.iter().zip(planned) {
            let answer = plan.and_then(|(before, after)| {
                if before == after {
                    return Ok(());
                }
                setting.write(&after)?;
                self.changes.push(Change {
                    what: setting.to_string(),
                    before,
                    after,
                    restored: false,
                });
                Ok(())
            });
            if answer.is_err() {
                let settings = &mut self.entries.settings;
                settings.retain(|layer| Some(layer.order) != noted);
            }
            answers.push(answer);
        }
        // Those that were refused stay noted if this fails, and are put back to the value that they have.
        let _ = self.save();
        answers
    }

    /// Notes settings that a change elsewhere alters too, as a thread that enters a group loses its CPUs. Nothing is
    /// written; the rules say what is left of the values meanwhile. Those that cannot be read are left out.
    pub fn note_all(&mut self, settings: &[(Setting, NewValue)]) -> Result<(), StateError> {
        let _lock = self.lock()?;
        let mut order = self.highest_order(&self.others());
        for (setting, value) in settings {
            if let Ok(before) = setting.read() {
                order += 1;
                self.entries.settings.push(Layer {
                    setting: setting.clone(),
                    before,
                    value: value.clone(),
                    order,
                });
            }
        }
        self.save()
    }

    /// Settings that other journals of the directory change.
    pub fn shared(&self) -> HashSet<Setting> {
        let others = self.others().into_values();
        let layers = others.flat_map(|entries| entries.settings);
        layers.map(|layer| layer.setting).collect()
    }

    /// Place of the uppermost change of the directory.
    fn highest_order(&self, others: &BTreeMap<String, Entries>) -> u64 {
        let all = others.values().chain([&self.entries]);
        let orders = all
            .flat_map(|entries| &entries.settings)
            .map(|layer| layer.order);
        orders.max().unwrap_or(0)
    }

    /// Makes a group of processes, having noted it. One that another journal has made is shared with that one.
    pub fn make_group(&mut self, group: &Group) -> Result<(), StateError> {
        let _lock = self.lock()?;
        let others = self.others();
        let is_shared = others.values().any(|other| other.has_group(group));
        self.entries.groups.push(group.clone());
        self.save()?;
        let made = group.make();
        if matches!(made, Ok(true)) || (is_shared && made.is_ok()) {
            return Ok(());
        }
        // Not ours, so it is not to be removed either.
        self.entries.groups.pop();
        self.save()?;
        made?;
        Err(StateError::Io {
            action: "make",
            path: group.path.clone(),
            source: io::ErrorKind::AlreadyExists.into(),
        })
    }

    /// Keeps notes of the holder with the changes.
    pub fn set_record(&mut self, record: Value) -> Result<(), StateError> {
        let _lock = self.lock()?;
        self.entries.record = Some(record);
        self.save()
    }

    /// Changes so far.
    pub fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// Changes that could not be put back when that was last tried, and why. They stay in the journal.
    pub fn refused(&self) -> &[String] {
        &self.refused
    }

    /// Leaves all changes, for the next opener of the journal to put back.
    pub fn keep(&mut self) -> Result<(), StateError> {
        let _lock = self.lock()?;
        self.entries.pid = KEPT;
        self.save()?;
        self.disown();
        Ok(())
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
        let _lock = self.lock()?;
        self.entries.directories.push(parent.join(&name));
        self.save()?;
        TemporaryDirectory::make_named(&parent, &name)
    }

    /// Notes a trace instance that must be gone afterwards, before it is made.
    pub fn will_make_trace_instance(&mut self, path: &Path) -> Result<(), StateError> {
        let _lock = self.lock()?;
        self.entries.trace_instances.push(path.to_owned());
        self.save()
    }

    /// Notes an object of the network that must be gone afterwards, before it is made.
    pub fn will_make_network_object(&mut self, object: NetworkObject) -> Result<(), StateError> {
        let _lock = self.lock()?;
        self.entries.network.push(object);
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
                .any(|layer| layer.setting.to_string() == change.what);
            change.restored = !still_noted;
        }
        std::mem::take(&mut self.changes)
    }

    /// Puts everything back, the last change first, and returns it as text. Whatever cannot be put back stays in the
    /// journal for the next start.
    pub fn put_back(&mut self) -> Vec<String> {
        if self.entries.is_empty() && !self.written {
            return Vec::new();
        }
        match self.lock() {
            Ok(lock) => self.put_back_locked(&lock),
            Err(error) => {
                self.refused = vec![format!("nothing is put back: {error}")];
                Vec::new()
            }
        }
    }

    fn put_back_locked(&mut self, _lock: &Lock) -> Vec<String> {
        self.refused.clear();
        let mut others = self.others();
        // Groups first: they give up the CPUs that settings return to others.
        self.entries
            .groups
            .retain(|group| !others.values().any(|other| other.has_group(group)));
        let refused = &mut self.refused;
        let mut done = take_away(&mut self.entries.groups, refused, |group| {
            group.remove()?;
            Ok(format!("{} removed", group.path.display()))
        });
        done.extend(self.put_settings_back(&mut others));
        let refused = &mut self.refused;
        let entries = &mut self.entries;
        done.extend(take_away(&mut entries.directories, refused, |path| {
            remove_left(path)?;
            Ok(format!("{} removed", path.display()))
        }));
        done.extend(take_away(&mut entries.trace_instances, refused, |path| {
            remove_trace_instance(path)?;
            Ok(format!("{} removed", path.display()))
        }));
        done.extend(take_away(&mut entries.network, refused, |object| {
            let named = object.to_string();
            object
                .remove()
                .map_err(StateError::io("put back", Path::new(&named)))?;
            Ok(format!("{named} put back"))
        }));
        if self.entries.is_empty() {
            let _ = self.directory.remove(&self.name); // absent if nothing was ever noted
            self.written = false;
        } else {
            let _ = self.save(); // the old one still has all of it
        }
        done
    }

    fn put_settings_back(&mut self, others: &mut BTreeMap<String, Entries>) -> Vec<String> {
        let mut done = Vec::new();
        let mut left = Vec::new();
        let mut changed = Vec::new();
        for layer in self.entries.settings.drain(..).rev() {
            let (value, users) = take_out(&layer, others);
            changed.extend(users);
            match layer.setting.write_if_other(&value) {
                Ok(()) => done.push(format!("{} set back to {value}", layer.setting)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {} // gone with its CPU or device
                Err(error) => {
                    self.refused.push(format!(
                        "{} is not set back to {value}: {error}",
                        layer.setting
                    ));
                    // No later start could write a value that the kernel does not take.
                    if error.kind() != io::ErrorKind::InvalidInput {
                        left.push(layer);
                    }
                }
            }
        }
        left.reverse();
        self.entries.settings = left;
        changed.sort();
        changed.dedup();
        for name in changed {
            if let Some(Err(error)) = others
                .get(&name)
                .map(|other| file::write(&self.directory, &name, other))
            {
                self.refused.push(error.to_string());
            }
        }
        done
    }

    /// Writes what is noted. After an error the next [`lock`](Self::lock) reads the file as it was before.
    fn save(&mut self) -> Result<(), StateError> {
        file::write(&self.directory, &self.name, &self.entries)?;
        self.written = true;
        Ok(())
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.put_back();
    }
}

/// Removes what is listed, the last first, and keeps in the list what a later start may be able to remove.
fn take_away<T>(
    list: &mut Vec<T>,
    refused: &mut Vec<String>,
    remove: impl Fn(&T) -> Result<String, StateError>,
) -> Vec<String> {
    let mut done = Vec::new();
    let mut left = Vec::new();
    while let Some(one) = list.pop() {
        match remove(&one) {
            Ok(text) => done.push(text),
            Err(error) if error.is_absent() => {}
            Err(error) => {
                refused.push(error.to_string());
                // Of another kind it was never ours: no later start will remove it either.
                if matches!(error, StateError::Io { .. }) {
                    left.push(one);
                }
            }
        }
    }
    left.reverse();
    *list = left;
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
    use std::path::PathBuf;

    use super::*;
    use crate::cpus::CpuList;
    use crate::fork;
    use crate::process::{own_namespace, start_ticks};
    use crate::setting::WithoutCpus;

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

    /// A journal with one change.
    fn changed() -> (TemporaryDirectory, Comm, Journal) {
        let scratch = TemporaryDirectory::make("taut-journal").unwrap();
        let comm = Comm::new();
        let (mut journal, _) = open(&scratch).unwrap();
        journal.set(&comm.path, "after").unwrap();
        (scratch, comm, journal)
    }

    fn has_no_journal(scratch: &TemporaryDirectory) -> bool {
        let entries = scratch.directory().entries().unwrap();
        entries.iter().all(|entry| entry.name == ".lock")
    }

    #[test]
    fn files_that_a_killed_writer_left_are_swept() {
        let scratch = TemporaryDirectory::make("taut-journal").unwrap();
        let left = format!(".{NAME}.0123456789abcdef");
        let others = [
            format!(".{NAME}.backup"),
            ".other.0123456789abcdef".to_owned(),
        ];
        for name in others.iter().chain([&left]) {
            drop(scratch.directory().create_file(name, 0o600).unwrap());
        }
        let directory = scratch.directory().try_clone().unwrap();
        drop(Journal::open_in(directory, NAME, "a test").unwrap());
        let entries = scratch.directory().entries().unwrap();
        let mut names: Vec<_> = entries.into_iter().map(|entry| entry.name).collect();
        names.sort();
        assert_eq!(names, [&others[0], ".lock", &others[1]]);
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
        assert!(has_no_journal(&scratch));
    }

    #[test]
    fn a_forked_process_puts_nothing_back() {
        let scratch = TemporaryDirectory::make("taut-journal").unwrap();
        let comm = Comm::new();
        let (journal, _) = open(&scratch).unwrap();
        let mut journal = Some(journal);
        let own = journal.as_mut().unwrap();
        own.set(&comm.path, "meanwhile").unwrap();
        let mut files = Some(own.make_temporary(scratch.path(), "taut-load").unwrap());
        let is_left = fork::testing::succeeds_in_child(|| {
            let changed = journal.as_mut().unwrap().set_record(Value::Null);
            let is_refused = matches!(changed, Err(StateError::OtherProcess { .. }));
            drop((journal.take(), files.take()));
            is_refused
        });
        assert!(is_left && !has_no_journal(&scratch));
        assert!(files.as_ref().unwrap().path().exists());
        assert_eq!(comm.value(), "meanwhile");
        drop(journal);
        assert_eq!(comm.value(), "before");
        assert!(!files.unwrap().path().exists());
    }

    #[test]
    fn a_killed_lab_is_cleared_up_by_the_next() {
        let (scratch, comm, mut journal) = changed();
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
    fn a_journal_that_is_not_understood_is_an_error_and_stays() {
        let (scratch, comm, mut journal) = changed();
        journal.keep().unwrap();
        let path = scratch.path().join(NAME);
        let text = std::fs::read_to_string(&path).unwrap();
        let other = |from: &str, to: &str| {
            assert!(text.contains(from), "{from} in {text}");
            std::fs::write(&path, text.replace(from, to)).unwrap();
        };
        for (from, to, said) in [
            ("{", "", "invalid type"),
            ("{\"File\":", "{\"Unknown\":", "unknown variant"),
            ("\"version\":1", "\"version\":2", "has version 2"),
        ] {
            other(from, to);
            let errors = [
                open(&scratch).unwrap_err(),
                Journal::recover_in(scratch.directory(), NAME).unwrap_err(),
                Journal::recover_of_gone_network(scratch.directory(), NAME).unwrap_err(),
                Look::at(scratch.directory(), NAME).unwrap_err().into(),
            ];
            for error in errors {
                let text = error.to_string();
                assert!(text.contains(said) && text.contains(NAME), "{text}");
                assert!(error.remedy().contains("release"), "{text}");
            }
            let unreadable = Left::unreadable(scratch.directory()).unwrap();
            assert_eq!((unreadable.len(), unreadable[0].0.as_str()), (1, NAME));
            // Others go on beside it.
            let directory = scratch.directory().try_clone().unwrap();
            drop(Journal::open_in(directory, "other.json", "a test").unwrap());
            assert!(path.exists() && comm.value() == "after");
        }
        std::fs::write(&path, &text).unwrap();
        drop(open(&scratch).unwrap());
        assert_eq!(comm.value(), "before");
        assert!(has_no_journal(&scratch));
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

    /// A user without privileges.
    const STRANGER: u32 = 65_534;

    #[test]
    fn a_stranger_in_a_process_namespace_passes_for_no_dead_holder() {
        use std::os::unix::process::CommandExt;
        if !rustix::process::geteuid().is_root() {
            println!("SKIPPED: needs root, to be another user");
            return;
        }
        let mut decoy = std::process::Command::new("unshare")
            .args(["--user", "--pid", "--fork", "--kill-child"])
            .args(["--", "sleep", "60"])
            .uid(STRANGER)
            .spawn()
            .expect("unshare of util-linux");
        let child = || {
            let mut all = crate::process::all().into_iter();
            all.find(|(_, stat)| stat.parent == decoy.id() && stat.name == "sleep")
        };
        let deadline = std::time::Instant::now() + Duration::from_secs(5);
        let mut found = child();
        while found.is_none() && std::time::Instant::now() < deadline {
            std::thread::yield_now();
            found = child();
        }
        if let Some((number, stat)) = found {
            let scratch = TemporaryDirectory::make("taut-journal").unwrap();
            let (mut journal, _) = open(&scratch).unwrap();
            // A holder that had number 1 in a namespace of its own began when the decoy did, and is dead: the decoy has
            // its number and its start. A namespace of that number cannot be had while it lived.
            journal.entries.pid = 1;
            journal.entries.started_ticks = stat.start_ticks;
            for namespace in [None, own_namespace(), Some(1)] {
                journal.entries.process_namespace = namespace;
                journal.save().unwrap();
                let look = Look::at(scratch.directory(), NAME).unwrap().unwrap();
                assert_eq!(look.holder, None, "{namespace:?}");
                assert_eq!(Left::all(scratch.directory()).unwrap().len(), 1);
            }
            // Were it the holder, it would be known by its number here.
            let there = std::fs::metadata(format!("/proc/{number}/ns/pid")).unwrap();
            journal.entries.process_namespace = Some(std::os::unix::fs::MetadataExt::ino(&there));
            journal.save().unwrap();
            let busy = open(&scratch).unwrap_err();
            assert!(matches!(busy, JournalError::Busy { pid, .. } if pid == number));
        } else {
            println!("SKIPPED: making a process namespace is not permitted here");
        }
        decoy.kill().unwrap();
        decoy.wait().unwrap();
    }

    #[test]
    fn a_kept_change_is_put_back_by_the_next() {
        let (scratch, comm, mut journal) = changed();
        assert_eq!(journal.changes().len(), 1);
        journal.keep().unwrap();
        assert_eq!(comm.value(), "after");
        let (journal, recovered) = open(&scratch).unwrap();
        assert_eq!(recovered.len(), 1);
        assert_eq!(comm.value(), "before");
        drop(journal);
        assert!(has_no_journal(&scratch));
    }

    /// A journal of another name, which changes the CPU list of `comm`.
    fn open_without(scratch: &TemporaryDirectory, name: &str, comm: &Comm, cpus: &str) -> Journal {
        let directory = scratch.directory().try_clone().unwrap();
        let (mut journal, _) = Journal::open_in(directory, name, "partition").unwrap();
        let without = WithoutCpus {
            cpus: cpus.parse().unwrap(),
            otherwise: "0".parse().unwrap(),
        };
        let wanted = [(
            Setting::File(comm.path.clone()),
            NewValue::CpusWithout(without),
        )];
        assert!(journal.change_all(&wanted).iter().all(Result::is_ok));
        journal
    }

    #[test]
    fn journals_that_change_the_same_setting_are_put_back_in_any_order() {
        let orders = [
            [0, 1, 2],
            [0, 2, 1],
            [1, 0, 2],
            [1, 2, 0],
            [2, 0, 1],
            [2, 1, 0],
        ];
        for order in orders {
            let scratch = TemporaryDirectory::make("taut-journal").unwrap();
            let comm = Comm::new();
            std::fs::write(&comm.path, "0-7").unwrap();
            // The second finds CPU 2 gone already, and still keeps it away when the first is put back.
            let mut open: Vec<Option<Journal>> =
                [("a.json", "1-2"), ("b.json", "2"), ("c.json", "4,7")]
                    .map(|(name, cpus)| Some(open_without(&scratch, name, &comm, cpus)))
                    .into();
            assert_eq!(comm.value(), "0,3,5-6");
            for index in order {
                drop(open[index].take());
                let mut left: CpuList = "0-7".parse().unwrap();
                for (journal, cpus) in open.iter().zip(["1-2", "2", "4,7"]) {
                    if journal.is_some() {
                        left = left.without(&cpus.parse().unwrap());
                    }
                }
                assert_eq!(comm.value(), left.to_string(), "{order:?}");
            }
            assert!(has_no_journal(&scratch));
        }
    }

    #[test]
    fn a_new_journal_takes_nothing_over_that_is_in_force() {
        let scratch = TemporaryDirectory::make("taut-journal").unwrap();
        let comm = Comm::new();
        let open_new = || {
            let directory = scratch.directory().try_clone().unwrap();
            Journal::open_new_in(directory, NAME, "partition")
        };
        let (mut journal, _) = open_new().unwrap();
        journal.set(&comm.path, "after").unwrap();
        assert!(matches!(open_new(), Err(JournalError::Exists { .. })));
        journal.keep().unwrap();
        assert!(matches!(open_new(), Err(JournalError::Exists { .. })));
        let recovered = Journal::recover_in(scratch.directory(), NAME).unwrap();
        assert_eq!(recovered, PutBack::default());
        assert_eq!(comm.value(), "after");
        let look = Look::at(scratch.directory(), NAME).unwrap().unwrap();
        assert!(look.is_kept && look.holder.is_none() && look.settings.len() == 1);
        assert_eq!(Left::all(scratch.directory()).unwrap(), []);
        drop(open(&scratch).unwrap());
        assert_eq!(comm.value(), "before");
        // The process of this one is gone, so a process that recovers such journals puts it back.
        let (mut journal, _) = open_new().unwrap();
        journal.set(&comm.path, "after").unwrap();
        assert_eq!(Left::all(scratch.directory()).unwrap(), []);
        journal.entries.pid = u32::MAX;
        journal.save().unwrap();
        let left = Left::all(scratch.directory()).unwrap();
        assert_eq!((left.len(), left[0].name.as_str()), (1, NAME));
        let change = format!("{} (was before)", comm.path.display());
        assert_eq!(left[0].changes, [change]);
        std::mem::forget(journal);
        let recovered = Journal::recover_in(scratch.directory(), NAME).unwrap();
        assert_eq!((recovered.done.len(), recovered.refused.len()), (1, 0));
        assert_eq!(comm.value(), "before");
        assert!(has_no_journal(&scratch));
    }

    #[test]
    fn of_a_gone_network_the_settings_of_the_machine_are_put_back_and_no_others() {
        let (scratch, comm, mut journal) = changed();
        // An interface that is here too, and has nothing to do with that one.
        let setting = Setting::of_interface("lo", None, "ifindex");
        let value = NewValue::Exactly("2".to_owned());
        journal.note_all(&[(setting, value)]).unwrap();
        let object = NetworkObject::FilterPlace { interface: 1 };
        journal.will_make_network_object(object).unwrap();
        let look = || Journal::recover_of_gone_network(scratch.directory(), NAME).unwrap();
        assert_eq!(look(), PutBack::default(), "its process lives");
        assert_eq!(comm.value(), "after");
        journal.keep().unwrap();
        let done = vec![format!("{} set back to before", comm.path.display())];
        let refused = Vec::new();
        assert_eq!(look(), PutBack { done, refused });
        assert_eq!(comm.value(), "before");
        assert!(has_no_journal(&scratch));
    }

    #[test]
    fn a_full_journal_takes_no_more_changes_and_puts_back_those_that_it_has() {
        let (scratch, comm, mut journal) = changed();
        // As when there are a hundred thousand threads, and more: no room for another change.
        let written = std::fs::read(scratch.path().join(NAME)).unwrap().len();
        let filling = |bytes| Value::from("x".repeat(bytes));
        let room = file::JOURNAL_BYTES_MAX - written - 10;
        journal.set_record(filling(room)).unwrap();
        let refused = journal.set(&comm.path, "once more").unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::StorageFull, "{refused}");
        assert_eq!(comm.value(), "after");
        let object = NetworkObject::Root { interface: 1 };
        let error = journal.will_make_network_object(object).unwrap_err();
        assert!(JournalError::from(error).remedy().contains("threads"));
        // It can be kept and read all the same, and put back.
        journal.keep().unwrap();
        let look = Look::at(scratch.directory(), NAME).unwrap().unwrap();
        assert_eq!(look.settings.len(), 1);
        let (_journal, recovered) = open(&scratch).unwrap();
        assert_eq!((recovered.len(), comm.value().as_str()), (1, "before"));
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
            settings: vec![Layer {
                setting: Setting::File(file.clone()),
                before: "forged".to_owned(),
                value: NewValue::Exactly(String::new()),
                order: 1,
            }],
            groups: vec![Group {
                path: kept.clone(),
                heir: "/sys/fs/cgroup".into(),
            }],
            directories: vec![kept.clone(), kept.join("..")],
            trace_instances: vec![kept.clone()],
            ..Entries::default()
        };
        file::write(scratch.directory(), NAME, &entries).unwrap();
        let (journal, recovered) = open(&scratch).unwrap();
        assert!(recovered.is_empty(), "{recovered:?}");
        assert_eq!(journal.refused().len(), 5);
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
        assert!(kept.exists());
    }
}
