//! Settings of the machine that a partition changes, to be compared byte for byte.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use tautline_state::process::Stat;

/// Directories whose files are settings, and the names of these files.
const SETTINGS: [(&str, &[&str]); 7] = [
    ("/proc/irq", &["smp_affinity_list", "default_smp_affinity"]),
    (
        "/proc/sys/kernel",
        &["timer_migration", "watchdog_cpumask", "sched_rt_runtime_us"],
    ),
    ("/proc/sys/vm", &["stat_interval"]),
    ("/sys/kernel", &["rcu_normal"]),
    ("/sys/devices/virtual/workqueue", &["cpumask"]),
    (
        "/sys/devices/system/cpu",
        &["pm_qos_resume_latency_us", "disable", "scaling_governor"],
    ),
    ("/sys/devices/system/node", &["nr_hugepages"]),
];

/// Hierarchies of processes with cpusets.
const CGROUPS: [&str; 2] = ["/sys/fs/cgroup/cpuset", "/sys/fs/cgroup"];

/// Depth to which directories are searched: that of the huge pages of a memory node.
const DEPTH: usize = 4;

/// Values by path, with the groups and CPUs of the threads that are to be seen.
pub fn snapshot() -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for (directory, names) in SETTINGS {
        collect(Path::new(directory), names, DEPTH, &mut found);
    }
    let cgroup = CGROUPS
        .iter()
        .find(|one| Path::new(one).join("cgroup.procs").exists());
    if let Some(cgroup) = cgroup {
        collect(
            Path::new(cgroup),
            &["cpuset.", "cgroup.subtree_control"],
            8,
            &mut found,
        );
    }
    for (process, directory) in numbered(Path::new("/proc")) {
        let groups = fs::read_to_string(directory.join("cgroup")).unwrap_or_default();
        found.insert(format!("groups of {process}"), groups);
        for (thread, directory) in numbered(&directory.join("task")) {
            // The kernel itself moves threads that it binds, and those of interrupts.
            let moves =
                |stat: Stat| stat.is_bound || (stat.is_kernel && stat.name.starts_with("irq/"));
            if Stat::of(thread).is_none_or(moves) {
                continue;
            }
            let status = fs::read_to_string(directory.join("status")).unwrap_or_default();
            let cpus = status
                .lines()
                .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
            found.insert(
                format!("CPUs of {thread}"),
                cpus.unwrap_or_default().to_owned(),
            );
        }
    }
    found
}

/// Differences of two snapshots, one a line, without threads that came or went.
pub fn differences(
    before: &BTreeMap<String, String>,
    after: &BTreeMap<String, String>,
) -> Vec<String> {
    let names = before
        .keys()
        .chain(after.keys().filter(|name| !before.contains_key(*name)));
    let is_thread = |name: &str| name.starts_with("CPUs of ") || name.starts_with("groups of ");
    let came_or_went = |name: &str| before.contains_key(name) != after.contains_key(name);
    names
        .filter(|name| before.get(*name) != after.get(*name))
        .filter(|name| !(is_thread(name) && came_or_went(name)))
        .map(|name| {
            format!(
                "{name}: {:?} became {:?}",
                before.get(name),
                after.get(name)
            )
        })
        .collect()
}

fn collect(directory: &Path, names: &[&str], depth: usize, found: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        let kind = entry.file_type();
        if kind.as_ref().is_ok_and(|kind| kind.is_dir()) {
            if depth > 0 {
                collect(&path, names, depth - 1, found);
            }
        } else if kind.is_ok_and(|kind| kind.is_file())
            && names
                .iter()
                .any(|one| name == *one || (one.ends_with('.') && name.starts_with(one)))
            && !name.ends_with("pressure")
        {
            let value = fs::read(&path).unwrap_or_default();
            let value = String::from_utf8_lossy(&value).into_owned();
            found.insert(path.display().to_string(), value);
        }
    }
}

fn numbered(directory: &Path) -> Vec<(u32, PathBuf)> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path())))
        .collect()
}
