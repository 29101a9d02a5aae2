//! Network namespaces of the machine that are still alive.

use std::collections::BTreeSet;
use std::collections::btree_map::{BTreeMap, Entry};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags, statx};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tautline_state::own_network_namespace;

/// Inode of the process namespace that the machine starts with (`PROC_PID_INIT_INO`, linux/proc_ns.h).
const FIRST_PROCESS_NAMESPACE: u64 = 0xEFFF_FFFC;

/// Numbers of all network namespaces that a process of this machine, an open descriptor or a mount keeps alive. `None`
/// if some of them cannot be seen from here: only root sees all, and no process in a process namespace of its own does.
pub fn network_namespaces() -> Option<BTreeSet<u64>> {
    let own = fs::metadata("/proc/self/ns/pid").ok()?;
    if !rustix::process::geteuid().is_root() || own.ino() != FIRST_PROCESS_NAMESPACE {
        return None;
    }
    let mut seen = Seen::new().ok()?;
    for process in entries(Path::new("/proc")) {
        // Some machines hide the first process from everybody; it is in a namespace that does not end.
        let may_be_hidden = process.ends_with("1");
        for thread in entries(&process.join("task")) {
            seen.note(&thread.join("ns/net"), may_be_hidden)?;
        }
        for descriptor in entries(&process.join("fd")) {
            let target = fs::read_link(&descriptor).unwrap_or_default();
            if target.to_string_lossy().starts_with("net:[") {
                seen.note(&descriptor, may_be_hidden)?;
            }
        }
    }
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let of_namespaces = mounts.lines().filter(|line| line.contains(" - nsfs "));
    for path in of_namespaces.filter_map(|line| line.split(' ').nth(4)) {
        seen.note(Path::new(path), false)?;
    }
    seen.found.into_values().map(cookie_of).collect()
}

/// Namespaces that were seen, by inode. Each is open, since its process may end.
struct Seen {
    /// Device of the kernel's files of namespaces.
    device: (u32, u32),
    found: BTreeMap<u64, File>,
}

impl Seen {
    fn new() -> io::Result<Self> {
        let own = place_of(Path::new("/proc/thread-self/ns/net"))?;
        Ok(Self {
            device: identity(&own)?.0,
            found: BTreeMap::new(),
        })
    }

    /// Notes a namespace, unless it has gone. `None` if it may not be looked at.
    fn note(&mut self, path: &Path, may_be_hidden: bool) -> Option<()> {
        match self.open(path) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                may_be_hidden.then_some(())
            }
            // Gone meanwhile.
            _ => Some(()),
        }
    }

    /// Opens it, if it is a namespace. Another file may have replaced it by now, whose opening, or whose file
    /// system, would block the caller.
    fn open(&mut self, path: &Path) -> io::Result<()> {
        let place = place_of(path)?;
        let (device, inode) = identity(&place)?;
        if device == self.device
            && let Entry::Vacant(entry) = self.found.entry(inode)
        {
            entry.insert(File::open(format!("/proc/self/fd/{}", place.as_raw_fd()))?);
        }
        Ok(())
    }
}

/// A file that is not opened for anything.
fn place_of(path: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(
        path,
        OFlags::PATH | OFlags::CLOEXEC,
        Mode::empty(),
    )?)
}

/// Device and inode, as the kernel knows them without asking anybody.
fn identity(place: &OwnedFd) -> io::Result<((u32, u32), u64)> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let found = statx(place, "", flags, StatxFlags::INO)?;
    Ok(((found.stx_dev_major, found.stx_dev_minor), found.stx_ino))
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

fn cookie_of(file: File) -> Option<u64> {
    // A thread of its own, which is in the other namespace until it ends.
    let thread = std::thread::spawn(move || {
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).ok()?;
        own_network_namespace().ok()
    });
    thread.join().ok()?
}

#[cfg(test)]
#[allow(clippy::print_stdout)] // why a test was skipped
mod tests {
    use std::process::Command;

    use super::*;

    /// A descriptor that was one of a namespace when its link was read, and is a pipe without a writer now.
    #[test]
    fn nothing_but_namespaces_is_opened() {
        let temporary = tautline_state::TemporaryDirectory::make("namespaces-").unwrap();
        let pipe = temporary.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, Mode::RUSR).unwrap();
        let held = place_of(&pipe).unwrap();
        let mut seen = Seen::new().unwrap();
        for path in [
            pipe,
            PathBuf::from(format!("/proc/self/fd/{}", held.as_raw_fd())),
        ] {
            seen.note(&path, false).unwrap();
            assert!(seen.found.is_empty());
        }
        seen.note(Path::new("/proc/self/ns/net"), false).unwrap();
        assert_eq!(seen.found.len(), 1);
    }

    #[test]
    fn a_network_namespace_is_among_all_while_a_process_is_in_it() {
        let Some(all) = network_namespaces() else {
            println!("SKIPPED: needs root, outside of process namespaces");
            return;
        };
        let own = own_network_namespace().unwrap();
        assert!(all.contains(&own), "{own} of {all:?}");
        let mut command = Command::new("unshare");
        let Ok(mut child) = command.args(["--net", "sleep", "60"]).spawn() else {
            println!("SKIPPED: needs unshare of util-linux");
            return;
        };
        let place = PathBuf::from(format!("/proc/{}/ns/net", child.id()));
        let mut other = own;
        for _ in 0..1_000 {
            // It has not left ours in the first moment.
            other = File::open(&place).ok().and_then(cookie_of).unwrap_or(own);
            if other != own {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        assert_ne!(other, own);
        assert!(network_namespaces().unwrap().contains(&other));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!network_namespaces().unwrap().contains(&other));
    }
}
