//! CPUs set aside by groups of processes (cgroups): a partition of version 2, or exclusive cpusets of version 1. Where
//! neither can be had, the programs of the partition keep to its CPUs, and others are not kept away.
//!
//! * **Version 2**: the kernel takes the CPUs of a partition from all other groups, with unbound threads and workqueues
//!   of the kernel, and gives them back with the partition (Documentation/admin-guide/cgroup-v2.rst).
//! * **Version 1** has no such thing: every process of the root group moves into a group beside the partition, which
//!   has the other CPUs, and the root group no longer balances load over all of them.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};
use serde::{Deserialize, Serialize};
use tautline_state::StateError;
use tautline_state::cpus::CpuList;
use tautline_state::group::{self, Group};
use tautline_state::journal::Journal;
use tautline_state::process::Stat;
use tautline_state::setting::{NewValue, Setting};

use super::placement::Placement;
use super::{PartitionError, Stays, threads};

/// Begin of the names of our groups.
const PREFIX: &str = "tautline-";

/// Group of version 1 for everything that is in no partition.
const EVERYTHING_ELSE: &str = "tautline-everything-else";

/// Passes over all processes: some start while others are moved. Lower: one that starts others in quick succession is
/// missed. Higher: a program that forks without end delays the making of a partition for longer.
const PASSES: u32 = 16;

/// Threads that are named in one line. Lower: too few are known. Higher: the line is too long to be read.
const NAMES_MAX: usize = 4;

const CPUS: &str = "cpuset.cpus";

/// Means by which CPUs are set aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Form {
    /// An isolated partition of cgroup v2.
    Isolated,
    /// A group of cgroup v2 that keeps its programs on the CPUs, and others not away from them.
    Group,
    /// Exclusive cpusets of cgroup v1.
    Version1,
    /// The CPUs of the threads that run in the partition alone.
    OwnAffinity,
}

impl Form {
    /// Description in a few words.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Form::Isolated => "isolated partition of cgroup v2",
            Form::Group => "reduced: group of cgroup v2, others are not kept away",
            Form::Version1 => "exclusive cpusets of cgroup v1",
            Form::OwnAffinity => "reduced: CPUs of the own threads, others are not kept away",
        }
    }

    /// Whether other tasks are kept away.
    #[must_use]
    pub fn keeps_others_away(self) -> bool {
        !matches!(self, Form::Group | Form::OwnAffinity)
    }
}

/// Parent of the groups of this process's partitions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum GroupParent {
    /// Below this group of version 2, in the hierarchy mounted at `root`; `heir` takes the processes at the end.
    Version2 {
        root: PathBuf,
        parent: PathBuf,
        heir: PathBuf,
    },
    /// Below the root group of version 1.
    Version1 { root: PathBuf },
    /// Nowhere, for this reason.
    None { reason: String },
}

impl GroupParent {
    /// The best that this process may use.
    pub(crate) fn find() -> GroupParent {
        let (mut two, mut one) = (None, None);
        for mount in mounts() {
            let has = |name: &str| words(&mount.point.join(name)).any(|word| word == "cpuset");
            match mount.kind.as_str() {
                "cgroup2" if has("cgroup.controllers") => two = two.or(Some(mount.point)),
                "cgroup" if mount.options.split(',').any(|option| option == "cpuset") => {
                    one = one.or(Some(mount.point));
                }
                _ => {}
            }
        }
        match (two, one) {
            (Some(root), _) => in_version_2(&root),
            (None, Some(root)) => match may_write(&root) {
                Ok(()) => GroupParent::Version1 { root },
                Err(error) => GroupParent::None {
                    reason: format!("{}: {error}", root.display()),
                },
            },
            (None, None) => GroupParent::None {
                reason: "no cgroup hierarchy with the cpuset controller is mounted".to_owned(),
            },
        }
    }

    /// Form of a partition here, if nothing stands in the way.
    pub(crate) fn intended_form(&self) -> Form {
        match self {
            GroupParent::Version2 { .. } => Form::Isolated,
            GroupParent::Version1 { .. } => Form::Version1,
            GroupParent::None { .. } => Form::OwnAffinity,
        }
    }
}

/// The highest group on the way to our own in which groups with CPUs can be made. Only the root can have processes
/// beside such groups, so the processes return to our own group.
fn in_version_2(root: &Path) -> GroupParent {
    let text = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let own = text.lines().find_map(|line| line.strip_prefix("0::/"));
    let own = match own {
        None | Some("") => root.to_owned(),
        Some(own) => root.join(own),
    };
    let mut way: Vec<&Path> = own
        .ancestors()
        .take_while(|one| one.starts_with(root))
        .collect();
    way.reverse();
    let mut reason = None;
    for parent in way {
        let controllers: Vec<String> = words(&parent.join("cgroup.controllers")).collect();
        let is_root = !parent.join("cgroup.type").exists();
        let answer = match controllers.iter().any(|one| one == "cpuset") {
            false => Err(io::Error::other("the cpuset controller is not delegated")),
            true if !is_root && !group::processes(parent).unwrap_or_default().is_empty() => Err(
                io::Error::other("the group has processes, so it can have no groups with CPUs"),
            ),
            true => may_write(parent).and_then(|()| may_write(&parent.join("cgroup.procs"))),
        };
        match answer {
            Ok(()) => {
                return GroupParent::Version2 {
                    root: root.to_owned(),
                    parent: parent.to_owned(),
                    heir: if is_root {
                        parent.to_owned()
                    } else {
                        own.clone()
                    },
                };
            }
            Err(error) => reason = Some(format!("{}: {error}", parent.display())),
        }
    }
    GroupParent::None {
        reason: reason.unwrap_or_else(|| format!("{}: it is not to be seen", own.display())),
    }
}

fn may_write(path: &Path) -> io::Result<()> {
    Ok(access(path, Access::WRITE_OK)?)
}

struct Mount {
    point: PathBuf,
    kind: String,
    options: String,
}

/// Mounts below `/sys`, by proc_pid_mountinfo(5).
fn mounts() -> Vec<Mount> {
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mounts = text.lines().filter_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let mut right = right.split(' ');
        Some(Mount {
            point: PathBuf::from(left.split(' ').nth(4)?),
            kind: right.next()?.to_owned(),
            options: right.nth(1)?.to_owned(),
        })
    });
    mounts
        .filter(|mount| mount.point.starts_with("/sys"))
        .collect()
}

fn words(path: &Path) -> impl Iterator<Item = String> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
    words.into_iter()
}

fn value(path: &Path) -> String {
    fs::read_to_string(path)
        .unwrap_or_default()
        .trim()
        .to_owned()
}

fn cpus_of(path: &Path) -> CpuList {
    value(path).parse().unwrap_or_default()
}

/// Directory of the group of a partition.
fn group_path(parent: &Path, name: &str) -> PathBuf {
    parent.join(format!("{PREFIX}{name}"))
}

/// Refuses CPUs that a group has for itself, or that this process may not use.
pub(crate) fn check(place: &GroupParent, cpus: &CpuList) -> Result<(), PartitionError> {
    let (parent, effective) = match place {
        GroupParent::Version2 { parent, .. } => (parent, "cpuset.cpus.effective"),
        GroupParent::Version1 { root } => (root, "cpuset.effective_cpus"),
        GroupParent::None { .. } => return Ok(()),
    };
    if let Some(taken) = groups_with(parent, cpus)
        .into_iter()
        .find(|one| is_exclusive(one))
    {
        return Err(PartitionError::TakenByGroup {
            cpus: value(&taken.join(CPUS)),
            group: taken,
        });
    }
    let allowed = parent.join(effective);
    if allowed.exists() && !cpus.without(&cpus_of(&allowed)).is_empty() {
        return Err(PartitionError::NotAllowed {
            cpus: cpus.clone(),
            allowed: value(&allowed),
        });
    }
    Ok(())
}

/// Groups of others that name one of the CPUs, those that lie deepest first.
fn groups_with(parent: &Path, cpus: &CpuList) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for child in group::children(parent) {
        let name = child
            .file_name()
            .map(|name| name.to_string_lossy().into_owned());
        if name.is_some_and(|name| name.starts_with(PREFIX)) {
            continue;
        }
        found.extend(groups_with(&child, cpus));
        if !cpus_of(&child.join(CPUS)).and(cpus).is_empty() {
            found.push(child);
        }
    }
    found
}

fn is_exclusive(group: &Path) -> bool {
    let kind = value(&group.join("cpuset.cpus.partition"));
    let is_partition = matches!(kind.as_str(), "root" | "isolated");
    is_partition || value(&group.join("cpuset.cpu_exclusive")) == "1"
}

/// The kernel's word on a group of cgroup v2 that is no longer a partition of this form: a CPU of it is offline.
pub(crate) fn not_kept(form: Form, group: &Path) -> Option<Stays> {
    let kind = group.join("cpuset.cpus.partition");
    let found = value(&kind);
    (form == Form::Isolated && found != "isolated" && kind.exists()).then(|| {
        let reason = format!(
            "is `{found}`: its CPUs are not kept apart; bring them online, or remove the partition"
        );
        Stays::new(format!("group {}", group.display()), reason)
    })
}

/// CPUs that were set aside.
pub(crate) struct SetAside {
    pub(crate) form: Form,
    /// Group of the programs of the partition.
    pub(crate) group: Option<PathBuf>,
    pub(crate) stays: Vec<Stays>,
}

/// Sets CPUs aside by the best means of the place.
pub(crate) fn set_aside(
    place: &GroupParent,
    name: &str,
    cpus: &CpuList,
    placement: &Placement,
    journal: &mut Journal,
) -> Result<SetAside, PartitionError> {
    let noted = note_cpus_of_threads(place, placement, journal)?;
    let made = match place {
        GroupParent::Version2 { parent, heir, .. } => version_2(
            parent,
            heir,
            &group_path(parent, name),
            cpus,
            placement,
            journal,
        )?,
        GroupParent::Version1 { root } => version_1(root, name, cpus, placement, journal)?,
        GroupParent::None { reason } => {
            let stays = Stays::new("groups of processes (cgroups)", reason.clone());
            SetAside {
                form: Form::OwnAffinity,
                group: None,
                stays: vec![stays],
            }
        }
    };
    restrict_again(&noted, placement);
    Ok(made)
}

/// Notes the CPUs of threads that may not use all CPUs of their group: they lose that when these change (before Linux
/// 6.2).
fn note_cpus_of_threads(
    place: &GroupParent,
    placement: &Placement,
    journal: &mut Journal,
) -> Result<Vec<(Setting, CpuList)>, PartitionError> {
    let mut of_groups: BTreeMap<PathBuf, CpuList> = BTreeMap::new();
    // Those of another partition too, which is put back perhaps before this one.
    let shared = journal.shared();
    let restricted = threads::all().into_iter().filter_map(|thread| {
        let group = group_of(place, thread.process)?;
        let of_group = of_groups
            .entry(group)
            .or_insert_with_key(|group| cpus_of(group));
        let cpus = thread.cpus()?;
        let is_whole = cpus == *of_group;
        if thread.stat.is_bound || thread.is_of_interrupt() || (is_whole && shared.is_empty()) {
            return None;
        }
        let setting = thread.setting();
        (!is_whole || shared.contains(&setting)).then_some((setting, cpus))
    });
    let noted: Vec<(Setting, CpuList)> = restricted.collect();
    let settings: Vec<(Setting, NewValue)> = noted
        .iter()
        .map(|(setting, _)| (setting.clone(), placement.list()))
        .collect();
    journal.note_all(&settings)?;
    Ok(noted)
}

/// File with the CPUs of the group of a process; `None` where no group changes.
fn group_of(place: &GroupParent, process: u32) -> Option<PathBuf> {
    let (root, file, controller) = match place {
        GroupParent::Version2 { root, .. } => (root, "cpuset.cpus.effective", ""),
        GroupParent::Version1 { root } => (root, "cpuset.effective_cpus", "cpuset"),
        GroupParent::None { .. } => return None,
    };
    let text = fs::read_to_string(format!("/proc/{process}/cgroup")).ok()?;
    let path = text.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        let is_it = controllers.split(',').any(|one| one == controller);
        is_it.then(|| root.join(path.trim_start_matches('/')))
    })?;
    // A group without CPUs of its own has those of the next above it that has.
    let files = path.ancestors().map(|group| group.join(file));
    files
        .take_while(|file| file.starts_with(root))
        .find(|file| file.exists())
}

/// Restricts these threads as they were, to the CPUs that are left of theirs.
fn restrict_again(noted: &[(Setting, CpuList)], placement: &Placement) {
    for (setting, cpus) in noted {
        let wanted = placement.list().over(&cpus.to_string());
        if let (Ok(wanted), Ok(now)) = (wanted, setting.read())
            && wanted != now
        {
            let _ = setting.write(&wanted); // it has ended, or is in a group without these CPUs
        }
    }
}

fn write(path: &Path, text: &str) -> Result<(), PartitionError> {
    fs::write(path, text).map_err(PartitionError::group("write", path))
}

fn make(journal: &mut Journal, path: &Path, heir: &Path) -> Result<(), PartitionError> {
    let group = Group {
        path: path.to_owned(),
        heir: heir.to_owned(),
    };
    journal.make_group(&group).map_err(|error| match error {
        StateError::Io { source, .. } => PartitionError::group("make", path)(source),
        error => error.into(),
    })
}

fn version_2(
    parent: &Path,
    heir: &Path,
    path: &Path,
    cpus: &CpuList,
    placement: &Placement,
    journal: &mut Journal,
) -> Result<SetAside, PartitionError> {
    let controller = Setting::Controller {
        group: parent.to_owned(),
        controller: "cpuset".to_owned(),
    };
    let enabled = journal.change(&controller, "on");
    enabled.map_err(PartitionError::group("enable cpuset below", parent))?;
    make(journal, path, heir)?;
    write(&path.join(CPUS), &cpus.to_string())?;
    let kind = path.join("cpuset.cpus.partition");
    let take = || match fs::write(&kind, "isolated") {
        Ok(()) => value(&kind),
        Err(error) => error.to_string(),
    };
    let mut stays = Vec::new();
    let mut answer = take();
    if answer != "isolated" {
        // Groups of others that name the CPUs stand in the way.
        stays.extend(narrow(parent, cpus, placement, journal));
        answer = take();
    }
    let form = match answer.as_str() {
        "isolated" => Form::Isolated,
        reason => {
            let _ = fs::write(&kind, "member"); // it is none, whatever is written
            let reason = format!("no partition: {reason}");
            stays.push(Stays::new("tasks of others", reason));
            Form::Group
        }
    };
    Ok(SetAside {
        form,
        group: Some(path.to_owned()),
        stays,
    })
}

/// Takes the CPUs from groups of others that name them.
fn narrow(
    parent: &Path,
    cpus: &CpuList,
    placement: &Placement,
    journal: &mut Journal,
) -> Vec<Stays> {
    let groups = groups_with(parent, cpus);
    let setting = |group: &PathBuf| (Setting::File(group.join(CPUS)), placement.list());
    let wanted: Vec<(Setting, NewValue)> = groups.iter().map(setting).collect();
    let answers = groups.iter().zip(journal.change_all(&wanted));
    let refused = answers.filter_map(|(group, answer)| Some((group, answer.err()?)));
    refused
        .map(|(group, error)| Stays::new(format!("group {}", group.display()), error.to_string()))
        .collect()
}

fn version_1(
    root: &Path,
    name: &str,
    cpus: &CpuList,
    placement: &Placement,
    journal: &mut Journal,
) -> Result<SetAside, PartitionError> {
    let mut stays = narrow(root, cpus, placement, journal);
    let others = root.join(EVERYTHING_ELSE);
    make(journal, &others, root)?;
    if value(&others.join(CPUS)).is_empty() {
        for file in [CPUS, "cpuset.mems"] {
            write(&others.join(file), &value(&root.join(file)))?;
        }
    }
    let without = (Setting::File(others.join(CPUS)), placement.list());
    let narrowed = journal.change_all(&[without]).remove(0);
    narrowed.map_err(PartitionError::group("write", others.join(CPUS)))?;
    let path = group_path(root, name);
    // In the root group its programs could go to the CPUs of other partitions.
    make(journal, &path, &others)?;
    write(&path.join("cpuset.mems"), &value(&root.join("cpuset.mems")))?;
    write(&path.join(CPUS), &cpus.to_string())?;
    if let Err(error) = fs::write(path.join("cpuset.cpu_exclusive"), "1") {
        stays.push(Stays::new(
            "groups of others that may take the CPUs later",
            format!("the group is not exclusive: {error}"),
        ));
    }
    stays.extend(empty(root, &others));
    // Last: what is balanced in the root group alone now are threads of the kernel.
    let balances = [
        (path.join("cpuset.sched_load_balance"), None),
        (root.join("cpuset.sched_load_balance"), Some("0")),
    ];
    for (file, journalled) in balances {
        let answer = match journalled {
            None => fs::write(&file, "0"),
            Some(value) => journal.set(&file, value),
        };
        if let Err(error) = answer {
            let what = format!("load balancing ({})", file.display());
            stays.push(Stays::new(what, error.to_string()));
        }
    }
    Ok(SetAside {
        form: Form::Version1,
        group: Some(path),
        stays,
    })
}

/// Moves the processes of a group into another one, as far as they are to be seen.
fn empty(group: &Path, into: &Path) -> Vec<Stays> {
    let mut refused: Vec<(u32, io::Error)> = Vec::new();
    for _ in 0..PASSES {
        let mut is_empty = true;
        for process in group::processes(group).unwrap_or_default() {
            let is_known = refused.iter().any(|(known, _)| *known == process);
            let is_kernel = Stat::of(process).is_none_or(|stat| stat.is_kernel);
            if is_known || is_kernel {
                continue;
            }
            is_empty = false;
            match group::enter(into, process) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    refused.push((process, error));
                }
                _ => {}
            }
        }
        if is_empty {
            break;
        }
    }
    refused
        .into_iter()
        .map(|(process, error)| {
            let name = Stat::of(process).map_or_else(String::new, |stat| stat.name);
            Stays::new(format!("process {process} ({name})"), error.to_string())
        })
        .collect()
}

/// Moves threads of the kernel that are not bound to a CPU.
pub(crate) fn move_kernel_threads(placement: &Placement, journal: &mut Journal) -> Vec<Stays> {
    let rule = placement.list();
    let to_move = |thread: &threads::OneThread| {
        let is_free = thread.stat.is_kernel && !thread.stat.is_bound && !thread.is_of_interrupt();
        let now = thread.cpus()?.to_string();
        let moves = is_free && rule.over(&now).is_ok_and(|after| after != now);
        moves.then(|| thread.setting())
    };
    let found: Vec<(String, Setting)> = threads::all()
        .iter()
        .filter_map(|thread| Some((thread.stat.name.clone(), to_move(thread)?)))
        .collect();
    let changes: Vec<(Setting, NewValue)> = found
        .iter()
        .map(|(_, setting)| (setting.clone(), rule.clone()))
        .collect();
    let answers = found.iter().zip(journal.change_all(&changes));
    let mut refused: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for ((name, _), answer) in answers {
        match answer {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                refused.entry(error.to_string()).or_default().push(name);
            }
            _ => {}
        }
    }
    let stays = refused.into_iter().map(|(reason, names)| {
        let first = names.iter().take(NAMES_MAX).copied();
        let more = match names.len().saturating_sub(NAMES_MAX) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let names: Vec<&str> = first.collect();
        Stays::new(format!("threads: {}{more}", names.join(", ")), reason)
    });
    stays.collect()
}

/// Threads of the kernel that are bound to the CPUs, in one line.
pub(crate) fn bound_threads(cpus: &CpuList) -> Option<Stays> {
    let bound = threads::all().into_iter().filter(|thread| {
        let is_there = || {
            thread
                .cpus()
                .is_some_and(|own| own.without(cpus).is_empty())
        };
        thread.stat.is_kernel && thread.stat.is_bound && is_there()
    });
    let mut names: Vec<String> = bound
        .map(|thread| {
            let name = thread.stat.name;
            name.split('/').next().unwrap_or_default().to_owned()
        })
        .collect();
    names.sort();
    names.dedup();
    (!names.is_empty()).then(|| {
        Stays::new(
            format!("threads of the kernel: {}", names.join(", ")),
            "each CPU has its own; they run for work that was begun on it",
        )
    })
}
