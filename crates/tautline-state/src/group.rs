//! Groups of processes (cgroups) of our own, in a hierarchy of version 1 or 2.
//!
//! A group that is removed gives its processes to another one, because the kernel keeps one that has any.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::StateError;
use crate::setting::kernel_path;

/// File of a group with its processes, a number in each line.
const PROCESSES: &str = "cgroup.procs";

/// Begin of the names of our groups. Nothing else is removed.
const PREFIX: &str = "taut";

/// Settings by which a group gives up CPUs that it has for itself. With the directory alone, the kernel gives them back
/// some time later.
const GIVE_UP: [(&str, &str); 2] = [
    ("cpuset.cpus.partition", "member"),
    ("cpuset.cpu_exclusive", "0"),
];

/// Attempts to empty a group. Lower: one whose processes multiply is left. Higher: a program that forks without end
/// delays the removal of its group for longer.
const ATTEMPTS: u32 = 64;

/// Time for a process that was killed or moved to leave its group.
const PAUSE: Duration = Duration::from_millis(2);

/// A group of ours.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// Its directory.
    pub path: PathBuf,
    /// Directory of the group that takes its processes when it is removed.
    pub heir: PathBuf,
}

impl Group {
    /// Makes the group. Says whether it was absent.
    pub(crate) fn make(&self) -> Result<bool, StateError> {
        self.check()?;
        match fs::create_dir(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            made => made
                .map(|()| true)
                .map_err(StateError::io("make", &self.path)),
        }
    }

    /// Removes the group and those below it, and gives all of their processes to the heir.
    pub(crate) fn remove(&self) -> Result<(), StateError> {
        self.check()?;
        remove_tree(&self.path, &self.heir).map_err(StateError::io("remove", &self.path))
    }

    /// Refuses a directory that cannot be a group of ours.
    fn check(&self) -> Result<(), StateError> {
        let name = self.path.file_name().map(|name| name.to_string_lossy());
        let ours = name.is_some_and(|name| name.starts_with(PREFIX));
        let parent_is_group = self
            .path
            .parent()
            .is_some_and(|parent| kernel_path(parent).is_ok() && parent.join(PROCESSES).is_file());
        match ours && parent_is_group && kernel_path(&self.heir).is_ok() {
            true => Ok(()),
            false => Err(StateError::InvalidName {
                path: self.path.clone(),
            }),
        }
    }
}

/// Processes of a group, without those that cannot be seen from this process namespace.
pub fn processes(group: &Path) -> io::Result<Vec<u32>> {
    let text = fs::read_to_string(group.join(PROCESSES))?;
    let mut processes: Vec<u32> = text
        .lines()
        .filter_map(|line| line.trim().parse().ok())
        .filter(|process| *process != 0)
        .collect();
    // Version 1 may list a process twice.
    processes.sort_unstable();
    processes.dedup();
    Ok(processes)
}

/// Moves a process with all of its threads into a group. `ErrorKind::NotFound` if it has ended.
pub fn enter(group: &Path, process: u32) -> io::Result<()> {
    match fs::write(group.join(PROCESSES), process.to_string()) {
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {
            Err(io::ErrorKind::NotFound.into())
        }
        written => written,
    }
}

/// Groups directly below a group.
pub fn children(group: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(group).into_iter().flatten().flatten();
    let is_directory = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
    let mut found: Vec<PathBuf> = entries
        .filter(is_directory)
        .map(|entry| entry.path())
        .collect();
    found.sort();
    found
}

fn remove_tree(group: &Path, heir: &Path) -> io::Result<()> {
    for child in children(group) {
        remove_tree(&child, heir)?;
    }
    for (file, value) in GIVE_UP {
        let path = group.join(file);
        if path.exists() {
            let _ = fs::write(path, value); // the end of the group does so too
        }
    }
    let mut attempts = 0;
    loop {
        for process in processes(group)? {
            match enter(heir, process) {
                Err(error) if error.kind() != io::ErrorKind::NotFound && attempts == ATTEMPTS => {
                    return Err(error);
                }
                _ => {} // gone, or tried again
            }
        }
        match fs::remove_dir(group) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy && attempts < ATTEMPTS => {
                attempts += 1;
                std::thread::sleep(PAUSE);
            }
            removed => return removed,
        }
    }
}
