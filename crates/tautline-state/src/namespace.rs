//! Numbers of network namespaces. rustix has no call for them.
#![allow(unsafe_code)] // one system call; the block names its preconditions

use std::collections::BTreeSet;
use std::collections::btree_map::{BTreeMap, Entry};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::net::{AddressFamily, SocketType};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Number of the network namespace that a socket is in, which is never given twice (Linux 5.14).
pub fn namespace_cookie(socket: impl AsFd) -> io::Result<u64> {
    let mut cookie = 0u64;
    let mut bytes = size_of::<u64>() as libc::socklen_t;
    // SAFETY: `cookie` is writable for `bytes`; any bits are a valid integer.
    let returned = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut bytes,
        )
    };
    match returned {
        0 => Ok(cookie),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Inode of the process namespace that the machine starts with (`PROC_PID_INIT_INO`, linux/proc_ns.h).
const FIRST_PROCESS_NAMESPACE: u64 = 0xEFFF_FFFC;

/// Number of the calling thread's network namespace.
pub fn own_network_namespace() -> io::Result<u64> {
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::DGRAM, None)?;
    namespace_cookie(&socket)
}

/// Numbers of all network namespaces that a process of this machine, an open descriptor or a mount keeps alive. `None`
/// if some of them cannot be seen from here: only root sees all, and nobody in a process namespace of its own.
pub fn network_namespaces() -> Option<BTreeSet<u64>> {
    let own = fs::metadata("/proc/self/ns/pid").ok()?;
    if !rustix::process::geteuid().is_root() || own.ino() != FIRST_PROCESS_NAMESPACE {
        return None;
    }
    let mut seen = Seen::default();
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
    seen.0.into_values().map(cookie_of).collect()
}

/// Namespaces that were seen, by device and inode. Each is open, since its process may end.
#[derive(Default)]
struct Seen(BTreeMap<(u64, u64), File>);

impl Seen {
    /// Notes a namespace, unless it has gone. `None` if it may not be looked at.
    fn note(&mut self, path: &Path, may_be_hidden: bool) -> Option<()> {
        let opened = fs::metadata(path).and_then(|found| {
            if let Entry::Vacant(place) = self.0.entry((found.dev(), found.ino())) {
                place.insert(File::open(path)?);
            }
            Ok(())
        });
        match opened {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                may_be_hidden.then_some(())
            }
            // Gone meanwhile.
            _ => Some(()),
        }
    }
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
mod tests {
    use std::process::Command;

    use super::*;

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
