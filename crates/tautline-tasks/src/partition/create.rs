//! A partition from its making to its end.

use std::io;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::{Deserialize, Serialize};
use tautline_state::cpus::CpuList;
use tautline_state::group;
use tautline_state::journal::{Change, Journal, JournalError};
use tautline_state::process::threads;
use tautline_state::setting::{NewValue, Setting};
use tautline_state::{Directory, Lock, runtime_directory};

use super::active;
use super::activity::Activity;
use super::config::PartitionConfig;
use super::cpuset::{self, Form, GroupParent};
use super::placement::{self, Area, Placement};
use super::{PartitionError, Stays};

/// Directory whose lock is held while a partition is made or removed.
const LOCKED: &str = "partitions";

/// Longest wait for another partition that is being made, which takes up to a second. Lower: a busy machine refuses
/// one. Higher: a stuck process delays others by that much.
const LOCK_TIME_MAX: Duration = Duration::from_secs(10);

/// Holder of the journals.
pub(crate) const HOLDER: &str = "taut partition";

/// Notes that a partition keeps with its journal.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) cpus: CpuList,
    pub(crate) form: Form,
    pub(crate) group: Option<PathBuf>,
    pub(crate) made_unix_s: u64,
    pub(crate) stays: Vec<Stays>,
    pub(crate) activity: Activity,
}

/// A partition that this process made. Dropped, it puts everything back; in a process that was forked from this one,
/// nothing.
#[derive(Debug)]
pub struct Partition {
    name: String,
    journal: Journal,
    record: Record,
}

/// Changes that a partition would make.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Means by which CPUs would be set aside.
    pub form: Form,
    /// Settings with the values before and after.
    pub changes: Vec<Change>,
    /// Interrupts, threads and settings that would stay, as far as they are known beforehand.
    pub stays: Vec<Stays>,
}

/// The journal of a partition.
pub(crate) fn journal_name(name: &str) -> String {
    format!("partition-{name}.json")
}

/// Keeps other partitions from being made or removed.
pub(crate) fn lock(directory: &Directory) -> Result<Lock, PartitionError> {
    let (locked, _) = directory.make_below(LOCKED, 0o700, tautline_state::Owner::SelfOrRoot)?;
    Ok(locked.lock(LOCK_TIME_MAX)?)
}

/// CPUs that may be set aside, and those that are left to everything else.
struct Checked {
    place: GroupParent,
    placement: Placement,
}

fn check(config: &PartitionConfig, directory: &Directory) -> Result<Checked, PartitionError> {
    let online = placement::online();
    if let Some(cpu) = config.cpus.iter().find(|cpu| !online.contains(*cpu)) {
        return Err(PartitionError::NotOnline { cpu, online });
    }
    let mut taken = CpuList::default();
    for other in active::list_in(directory)? {
        // Its CPUs are not known.
        if let Some(error) = other.unreadable {
            return Err(error.into());
        }
        if other.name == config.name {
            return Err(PartitionError::Exists(other.name));
        }
        if let Some(cpu) = other.cpus.and(&config.cpus).iter().next() {
            return Err(PartitionError::Overlap {
                cpu,
                partition: other.name,
            });
        }
        taken = taken.iter().chain(other.cpus.iter()).collect();
    }
    let others = online.without(&config.cpus).without(&taken);
    if others.is_empty() {
        let taken = match taken.is_empty() {
            true => "none".to_owned(),
            false => taken.to_string(),
        };
        return Err(PartitionError::NoCpuLeft { online, taken });
    }
    let place = GroupParent::find();
    cpuset::check(&place, &config.cpus)?;
    if matches!(place, GroupParent::None { .. }) {
        must_be_allowed(&config.cpus)?;
    }
    Ok(Checked {
        place,
        placement: Placement::new(&config.cpus, &others),
    })
}

/// Refuses CPUs that the group of this process does not have. The kernel would leave them out without a word, so a
/// thread tries.
fn must_be_allowed(cpus: &CpuList) -> Result<(), PartitionError> {
    let set = set_of(cpus);
    let tried = std::thread::spawn(move || {
        sched_setaffinity(None, &set)?;
        sched_getaffinity(None)
    });
    let got = tried.join().unwrap_or(Err(rustix::io::Errno::INVAL));
    let allowed: CpuList = match &got {
        Ok(got) => cpus
            .iter()
            .filter(|cpu| got.is_set(*cpu as usize))
            .collect(),
        Err(_) => CpuList::default(),
    };
    match allowed == *cpus {
        true => Ok(()),
        false => Err(PartitionError::NotAllowed {
            cpus: cpus.clone(),
            allowed: match allowed.is_empty() {
                true => "none of them".to_owned(),
                false => allowed.to_string(),
            },
        }),
    }
}

fn set_of(cpus: &CpuList) -> CpuSet {
    let mut set = CpuSet::new();
    let cpus = cpus.iter().map(|cpu| cpu as usize);
    cpus.filter(|cpu| *cpu < CpuSet::MAX_CPU)
        .for_each(|cpu| set.set(cpu));
    set
}

/// The changes that [`Partition::create`] would make. Nothing is changed.
///
/// # Errors
/// The same, as far as they are known beforehand.
pub fn plan(config: &PartitionConfig) -> Result<Plan, PartitionError> {
    let checked = check(config, &runtime_directory()?)?;
    let mut changes = Vec::new();
    let mut add = |setting: &Setting, value: &NewValue| {
        let before = setting.read().unwrap_or_default();
        match value.over(&before) {
            Ok(after) if after != before => changes.push(Change {
                what: setting.to_string(),
                before,
                after,
                restored: false,
            }),
            _ => {}
        }
    };
    for area in Area::ALL {
        for (setting, value) in checked.placement.settings(area) {
            add(&setting, &value);
        }
    }
    let mut stays = placement::only_at_boot(&config.cpus);
    stays.extend(cpuset::bound_threads(&config.cpus));
    if let GroupParent::None { reason } = &checked.place {
        stays.push(Stays::new("groups of processes (cgroups)", reason.clone()));
    }
    Ok(Plan {
        form: checked.place.intended_form(),
        changes,
        stays,
    })
}

impl Partition {
    /// Sets CPUs aside. First puts back partitions whose processes were killed.
    ///
    /// # Errors
    /// A name or CPUs that cannot be had. Then everything is as it was.
    pub fn create(config: &PartitionConfig) -> Result<Partition, PartitionError> {
        let directory = runtime_directory()?;
        let _lock = lock(&directory)?;
        active::recover_in(&directory)?;
        let checked = check(config, &directory)?;
        let opened = Journal::open_new_in(directory, &journal_name(&config.name), HOLDER);
        let (mut journal, _) = opened.map_err(|error| match error {
            JournalError::Exists { .. } => PartitionError::Exists(config.name.clone()),
            error => error.into(),
        })?;
        // On an error from here on the journal is dropped, which puts everything back.
        let record = build(config, &checked, &mut journal)?;
        journal.set_record(serde_json::to_value(&record).expect("texts and numbers"))?;
        Ok(Partition {
            name: config.name.clone(),
            journal,
            record,
        })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its CPUs.
    pub fn cpus(&self) -> &CpuList {
        &self.record.cpus
    }

    /// Means by which its CPUs are set aside.
    pub fn form(&self) -> Form {
        self.record.form
    }

    /// Interrupts, threads and settings that could not be moved or had, each with the reason.
    pub fn stays(&self) -> &[Stays] {
        &self.record.stays
    }

    /// Settings that were changed.
    pub fn changes(&self) -> &[Change] {
        self.journal.changes()
    }

    /// Moves a process with all of its threads into the partition.
    ///
    /// # Errors
    /// A process that has ended, or that this one may not move.
    pub fn enter(&self, process: u32) -> Result<(), PartitionError> {
        enter(&self.record, process)
    }

    /// Leaves the partition in force until [`remove`](super::remove), or until the machine restarts.
    ///
    /// # Errors
    /// A journal that cannot be written; then the partition is put back.
    pub fn keep(mut self) -> Result<(), PartitionError> {
        Ok(self.journal.keep()?)
    }

    /// Puts everything back.
    ///
    /// # Errors
    /// Settings that the kernel did not take; they stay noted.
    pub fn put_back(mut self) -> Result<(), PartitionError> {
        active::put_back(&mut self.journal)
    }
}

impl Drop for Partition {
    fn drop(&mut self) {
        let _ = active::put_back(&mut self.journal); // the journal keeps what is left
    }
}

pub(crate) fn enter(record: &Record, process: u32) -> Result<(), PartitionError> {
    if let Some(group) = &record.group {
        group::enter(group, process).map_err(PartitionError::group("enter", group))?;
    }
    let set = set_of(&record.cpus);
    let failed = |source: io::Error| PartitionError::Affinity {
        cpus: record.cpus.clone(),
        source,
    };
    for thread in threads(process).map_err(failed)? {
        let number = i32::try_from(thread).ok().and_then(Pid::from_raw);
        match sched_setaffinity(number, &set) {
            Err(rustix::io::Errno::SRCH) => {} // this thread has ended
            answer => answer.map_err(|error| failed(error.into()))?,
        }
    }
    Ok(())
}

fn build(
    config: &PartitionConfig,
    checked: &Checked,
    journal: &mut Journal,
) -> Result<Record, PartitionError> {
    let (cpus, placement) = (&config.cpus, &checked.placement);
    let made = cpuset::set_aside(&checked.place, &config.name, cpus, placement, journal)?;
    let mut stays = made.stays;
    stays.extend(cpuset::move_kernel_threads(placement, journal));
    stays.extend(placement.apply(&Area::ALL, journal));
    stays.extend(cpuset::bound_threads(cpus));
    stays.extend(placement::only_at_boot(cpus));
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    Ok(Record {
        cpus: cpus.clone(),
        form: made.form,
        group: made.group,
        made_unix_s: now.map_or(0, |since| since.as_secs()),
        stays,
        activity: Activity::now(cpus),
    })
}
