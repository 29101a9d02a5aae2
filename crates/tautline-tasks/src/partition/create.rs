//! A partition from its making to its end.

use std::fs;
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
    pub(crate) memory_bytes: u64,
    pub(crate) huge_pages: u64,
    pub(crate) form: Form,
    pub(crate) group: Option<PathBuf>,
    /// Whether it is the one that was intended, noted before the first change. Putting back needs no more than that.
    #[serde(default)]
    pub(crate) is_intended: bool,
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
    check_memory(config.memory_bytes)?;
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
    if config.memory_bytes > 0 {
        let (setting, pages) = huge_pages(config);
        add(&setting, &NewValue::RaisedBy(pages));
    }
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

impl Record {
    fn intended(config: &PartitionConfig, checked: &Checked) -> Record {
        Record {
            cpus: config.cpus.clone(),
            memory_bytes: config.memory_bytes,
            huge_pages: 0,
            form: checked.place.intended_form(),
            group: None,
            is_intended: true,
            made_unix_s: 0,
            stays: Vec::new(),
            activity: Activity::default(),
        }
    }

    fn json(&self) -> serde_json::Value {
        serde_json::to_value(self).expect("texts and numbers")
    }
}

impl Partition {
    /// Sets CPUs and memory aside. First puts back partitions whose processes were killed.
    ///
    /// # Errors
    /// A name, CPUs or memory that cannot be had. Then everything is as it was.
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
        // Before the first change: threads that start under it are not noted, and the process that puts them back after
        // a kill has to know what was changed for them.
        let record = Record::intended(config, &checked);
        journal.set_record(record.json())?;
        // On an error from here on it is dropped, which puts everything back.
        let mut partition = Partition {
            name: config.name.clone(),
            journal,
            record,
        };
        partition.record = build(config, &checked, &mut partition.journal)?;
        partition.journal.set_record(partition.record.json())?;
        Ok(partition)
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
        active::put_back(&mut self.journal, &self.record)
    }
}

impl Drop for Partition {
    fn drop(&mut self) {
        let _ = active::put_back(&mut self.journal, &self.record); // the journal keeps what is left
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
    // First: it is the most likely to fail, and moves pages about.
    let huge_pages = match config.memory_bytes {
        0 => 0,
        _ => reserve(config, journal)?,
    };
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
        memory_bytes: config.memory_bytes,
        huge_pages,
        form: made.form,
        group: made.group,
        is_intended: false,
        made_unix_s: now.map_or(0, |since| since.as_secs()),
        stays,
        activity: Activity::now(cpus),
    })
}

/// Refuses memory that the machine does not have available: the kernel would first take what there is, and push pages
/// of other programs out for it.
fn check_memory(wanted_bytes: u64) -> Result<(), PartitionError> {
    match memory_kib("MemAvailable").map(|kib| kib * 1024) {
        Some(available_bytes) if available_bytes < wanted_bytes => {
            Err(PartitionError::TooMuchMemory {
                wanted_bytes,
                available_bytes,
            })
        }
        _ => Ok(()),
    }
}

/// A row of `/proc/meminfo`, in KiB.
fn memory_kib(row: &str) -> Option<u64> {
    let information = fs::read_to_string("/proc/meminfo").ok()?;
    let mut rows = information.lines().filter_map(|line| line.split_once(':'));
    let (_, value) = rows.find(|(name, _)| *name == row)?;
    value.trim().trim_end_matches("kB").trim().parse().ok()
}

/// Reserves memory in huge pages, on the memory node of the first CPU.
fn reserve(config: &PartitionConfig, journal: &mut Journal) -> Result<u64, PartitionError> {
    let (setting, pages) = huge_pages(config);
    let count = |setting: &Setting| -> io::Result<u64> {
        setting.read()?.parse().map_err(io::Error::other)
    };
    let before = count(&setting).map_err(PartitionError::NoHugePages)?;
    let raised = (setting.clone(), NewValue::RaisedBy(pages));
    let answer = journal.change_all(&[raised]).remove(0);
    answer.map_err(PartitionError::NoHugePages)?;
    let got = count(&setting).map_err(PartitionError::NoHugePages)?;
    match got.saturating_sub(before) {
        got if got < pages => Err(PartitionError::NoMemory { wanted: pages, got }),
        _ => Ok(pages),
    }
}

/// Setting of the number of huge pages, and the number that the memory needs.
fn huge_pages(config: &PartitionConfig) -> (Setting, u64) {
    let size_kib = memory_kib("Hugepagesize").unwrap_or(2048).max(1);
    let of_size = format!("hugepages/hugepages-{size_kib}kB/nr_hugepages");
    let first = config.cpus.iter().next().unwrap_or(0);
    let node = (0..1024).find(|node| {
        PathBuf::from(format!("/sys/devices/system/cpu/cpu{first}/node{node}")).exists()
    });
    let on_node =
        node.map(|node| PathBuf::from(format!("/sys/devices/system/node/node{node}/{of_size}")));
    let path = on_node.filter(|path| path.exists());
    let path = path.unwrap_or_else(|| PathBuf::from("/sys/kernel/mm").join(of_size));
    (
        Setting::File(path),
        config.memory_bytes.div_ceil(size_kib * 1024),
    )
}
