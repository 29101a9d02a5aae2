//! Partitions that are in force, whichever program made them.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::SystemTime;

use tautline_state::cpus::CpuList;
use tautline_state::group;
use tautline_state::journal::{Journal, JournalError, Look, PutBack};
use tautline_state::setting::Setting;
use tautline_state::{Directory, StateError, find_runtime_directory, text};

use super::activity::Activity;
use super::config::shown;
use super::cpuset::{self, Form};
use super::create::{HOLDER, Record, enter, journal_name, lock};
use super::{PartitionConfig, PartitionError, Stays, threads};

/// Characters of a thread's name that are shown; the kernel keeps 15 bytes.
const NAME_CHARS_MAX: usize = 15;

/// A partition that is in force.
#[derive(Debug)]
pub struct ActivePartition {
    /// Its name.
    pub name: String,
    /// Its CPUs.
    pub cpus: CpuList,
    /// Means by which its CPUs are set aside; `None` while it is being made.
    pub form: Option<Form>,
    /// Process whose end puts it back; `None` if it stays until it is removed.
    pub owner: Option<u32>,
    /// Moment at which it was made.
    pub made: SystemTime,
    /// Interrupts, threads and settings that could not be moved or had.
    pub stays: Vec<Stays>,
    /// Settings that are changed, with the values to put back.
    pub settings: Vec<(Setting, String)>,
    /// Reason why its journal, and with it all of this, is not known.
    pub unreadable: Option<StateError>,
    record: Option<Record>,
}

impl ActivePartition {
    fn new(name: &str, look: Look) -> ActivePartition {
        let record = look
            .record
            .and_then(|record| serde_json::from_value::<Record>(record).ok());
        let known = record.as_ref();
        let made = known.map_or(0, |record| record.made_unix_s);
        ActivePartition {
            name: name.to_owned(),
            cpus: known.map_or_else(CpuList::default, |record| record.cpus.clone()),
            form: known.map(|record| record.form),
            owner: look.holder,
            made: SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(made),
            stays: known.map_or_else(Vec::new, |record| record.stays.clone()),
            settings: look.settings,
            unreadable: None,
            record,
        }
    }

    /// One of which no more is known than that there is a journal.
    fn unreadable(name: &str, error: StateError) -> ActivePartition {
        ActivePartition {
            unreadable: Some(error),
            ..ActivePartition::new(name, Look::default())
        }
    }

    /// Processes that run in it. Without a group they are told by their CPUs.
    pub fn processes(&self) -> Vec<u32> {
        let Some(record) = &self.record else {
            return Vec::new();
        };
        if let Some(group) = &record.group {
            return all_processes(group);
        }
        let inside = threads::all().into_iter().filter(|thread| {
            let is_inside = |cpus: CpuList| !cpus.is_empty() && cpus.without(&self.cpus).is_empty();
            !thread.stat.is_kernel && thread.cpus().is_some_and(is_inside)
        });
        let mut processes: Vec<u32> = inside.map(|thread| thread.process).collect();
        processes.sort_unstable();
        processes.dedup();
        processes
    }

    /// Counters of the CPUs when the partition was made.
    pub fn activity(&self) -> Activity {
        let record = self.record.as_ref();
        record.map_or_else(Activity::default, |record| record.activity.clone())
    }

    /// Threads of its programs that may run on other CPUs, and a group that the kernel no longer keeps apart. Both come
    /// from a CPU that was taken offline, and from others who change its group.
    pub fn outside(&self) -> Vec<Stays> {
        let Some((record, group)) = self
            .record
            .as_ref()
            .and_then(|one| Some((one, one.group.as_ref()?)))
        else {
            return Vec::new();
        };
        let mut outside: Vec<Stays> = cpuset::not_kept(record.form, group).into_iter().collect();
        for process in all_processes(group) {
            outside.extend(threads::of(process).into_iter().filter_map(|thread| {
                let cpus = thread
                    .cpus()
                    .filter(|cpus| !cpus.without(&self.cpus).is_empty())?;
                let name = text::plain(&thread.stat.name, NAME_CHARS_MAX);
                let reason =
                    format!("may run on CPUs {cpus}; end it and start it again in the partition");
                Some(Stays::new(
                    format!("thread {} ({name})", thread.number),
                    reason,
                ))
            }));
        }
        outside
    }

    /// Moves a process with all of its threads into the partition.
    ///
    /// # Errors
    /// A process that has ended, or that this one may not move.
    pub fn enter(&self, process: u32) -> Result<(), PartitionError> {
        match &self.record {
            Some(record) => enter(record, process),
            None => Err(PartitionError::Absent(self.name.clone())),
        }
    }
}

/// Processes of a group and those below it.
fn all_processes(path: &Path) -> Vec<u32> {
    let mut processes = group::processes(path).unwrap_or_default();
    for child in group::children(path) {
        processes.extend(all_processes(&child));
    }
    processes.sort_unstable();
    processes
}

/// Partitions of this user, by name. One whose journal cannot be read hides no other.
///
/// # Errors
/// A runtime directory that cannot be trusted.
pub fn list() -> Result<Vec<ActivePartition>, PartitionError> {
    match find_runtime_directory()? {
        Some(directory) => list_in(&directory),
        None => Ok(Vec::new()),
    }
}

pub(crate) fn list_in(directory: &Directory) -> Result<Vec<ActivePartition>, PartitionError> {
    let mut found = Vec::new();
    for name in names(directory)? {
        match Look::at(directory, &journal_name(&name)) {
            Ok(Some(look)) => found.push(ActivePartition::new(&name, look)),
            Ok(None) => {}
            Err(error) => found.push(ActivePartition::unreadable(&name, error)),
        }
    }
    Ok(found)
}

fn names(directory: &Directory) -> Result<Vec<String>, PartitionError> {
    let pattern = journal_name("");
    let prefix = pattern.trim_end_matches(".json");
    let mut names: Vec<String> = directory
        .entries()?
        .into_iter()
        .filter_map(|entry| entry.name.into_string().ok())
        .filter_map(|name| Some(name.strip_prefix(prefix)?.strip_suffix(".json")?.to_owned()))
        .filter(|name| PartitionConfig::new(name, CpuList::default()).is_ok())
        .collect();
    names.sort();
    Ok(names)
}

/// The partition of this name.
///
/// # Errors
/// [`PartitionError::Absent`], or a runtime directory that cannot be trusted.
pub fn find(name: &str) -> Result<ActivePartition, PartitionError> {
    match find_runtime_directory()? {
        Some(directory) => find_in(&directory, name),
        None => Err(PartitionError::Absent(shown(name))),
    }
}

fn find_in(directory: &Directory, name: &str) -> Result<ActivePartition, PartitionError> {
    let absent = || PartitionError::Absent(shown(name));
    PartitionConfig::new(name, CpuList::default()).map_err(|_| absent())?;
    let look = Look::at(directory, &journal_name(name))?;
    Ok(ActivePartition::new(name, look.ok_or_else(absent)?))
}

/// Puts back the partitions whose processes were killed. One that cannot be put back does not keep the others from it.
///
/// # Errors
/// A runtime directory that cannot be trusted or locked.
pub fn recover() -> Result<PutBack, PartitionError> {
    match find_runtime_directory()? {
        Some(directory) => {
            let _lock = lock(&directory)?;
            recover_in(&directory)
        }
        None => Ok(PutBack::default()),
    }
}

pub(crate) fn recover_in(directory: &Directory) -> Result<PutBack, PartitionError> {
    let mut all = PutBack::default();
    for name in names(directory)? {
        all.add(recover_one(directory, &name));
    }
    Ok(all)
}

fn recover_one(directory: &Directory, name: &str) -> Result<PutBack, PartitionError> {
    let journal = journal_name(name);
    let look = Look::at(directory, &journal)?;
    if !look.is_some_and(|look| !look.is_kept && look.holder.is_none()) {
        return Ok(PutBack::default());
    }
    Ok(Journal::recover_in(directory, &journal)?)
}

/// Removes a partition that is kept. `force` moves the programs out that run in it.
///
/// # Errors
/// [`PartitionError::Absent`], one that a process owns, programs that run in it, settings that cannot be put back.
pub fn remove(name: &str, force: bool) -> Result<Vec<String>, PartitionError> {
    let directory = match find_runtime_directory()? {
        Some(directory) => directory,
        None => return Err(PartitionError::Absent(shown(name))),
    };
    let _lock = lock(&directory)?;
    let found = find_in(&directory, name)?;
    if let Some(owner) = found.owner {
        let name = found.name;
        return Err(PartitionError::Owned { name, owner });
    }
    let processes = found.processes();
    if let (Some(first), false) = (processes.first(), force) {
        return Err(PartitionError::InUse {
            name: found.name,
            count: processes.len(),
            first: *first,
            user: owner_of(*first),
        });
    }
    let removed = Journal::remove(&directory, &journal_name(name), HOLDER);
    let put_back = removed.map_err(|error| match error {
        JournalError::Busy { pid, .. } => PartitionError::Owned {
            name: name.to_owned(),
            owner: pid,
        },
        error => error.into(),
    })?;
    match put_back.refused.is_empty() {
        true => Ok(put_back.done),
        false => Err(PartitionError::NotPutBack(put_back.refused)),
    }
}

/// User of a process; this process's where it has ended meanwhile.
fn owner_of(process: u32) -> u32 {
    let found = std::fs::metadata(format!("/proc/{process}"));
    found.map_or_else(|_| rustix::process::geteuid().as_raw(), |found| found.uid())
}

/// Puts back a partition of this process.
pub(crate) fn put_back(journal: &mut Journal) -> Result<(), PartitionError> {
    journal.put_back();
    match journal.refused() {
        [] => Ok(()),
        refused => Err(PartitionError::NotPutBack(refused.to_vec())),
    }
}
