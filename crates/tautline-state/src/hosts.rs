//! Hosts that this machine stands for in tests, benchmarks and demos: network namespaces, named after the process that
//! makes them, so that those of a dead process are known and can be removed.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::thread;

use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, test_kill_process};
use rustix::thread::{CapabilitySet, capabilities};

use crate::enter_network_namespace;
use crate::netlink::{Request, Route};
use crate::process::Stat;

/// Where `ip netns` keeps its namespaces.
const NAMESPACES: &str = "/run/netns";

/// Cables between two hosts. More would not break anything but have no user; the third byte of an
/// address is the cable's number, which bounds it at 256.
pub const CABLE_COUNT_MAX: usize = 16;

// linux/rtnetlink.h, linux/if_link.h
const RTM_DELLINK: u16 = 17;
const IFLA_IFNAME: u16 = 3;
/// Bytes of `struct ifinfomsg`, all zero where the interface is named.
const INTERFACE_HEADER_BYTES: usize = 16;

/// Text before the number of a node of a cell.
const NODE: &str = "-n";

/// Whether the calling thread holds the capabilities that making hosts needs.
#[must_use]
pub fn may_create() -> bool {
    let needed = CapabilitySet::NET_ADMIN | CapabilitySet::SYS_ADMIN;
    capabilities(None).is_ok_and(|held| held.effective.contains(needed))
}

/// Names of the hosts of processes that no longer live, or of one of these.
///
/// # Errors
/// The directory of the namespaces cannot be read.
pub fn stale(process: Option<u32>) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(NAMESPACES) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => {
            let what = format!("cannot list {NAMESPACES}: {error}");
            return Err(io::Error::new(error.kind(), what));
        }
    };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let is_meant = |pid| process.is_none_or(|process| pid == process);
    let is_stale = |name: &String| owner(name).is_some_and(|pid| is_meant(pid) && !lives(pid));
    let mut stale: Vec<String> = names.filter(is_stale).collect();
    stale.sort();
    Ok(stale)
}

/// Runs `work` on a thread in a host of this name, which may be another process's, and waits for it.
///
/// # Errors
/// There is no such host, or this process may not enter it.
pub fn inside<T: Send>(name: &str, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    let namespace = File::open(path_of(name))?;
    thread::scope(|scope| {
        let thread = scope.spawn(|| enter_network_namespace(&namespace).map(|()| work()));
        match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// Removes a host with its cables. The cables first: a process that holds the namespace open would otherwise keep them.
/// Errors are not reported, since the caller could not act on them and the next run clears the rest.
pub fn remove(name: &str) {
    let path = path_of(name);
    if !path.exists() {
        return;
    }
    let _most_are_not_there = inside(name, remove_cables);
    let _ = unmount(&path, UnmountFlags::DETACH);
    let _ = fs::remove_file(&path);
}

fn remove_cables() -> io::Result<()> {
    let mut route = Route::open()?;
    for cable in 0..CABLE_COUNT_MAX {
        for suffix in ["", "w"] {
            let name = format!("taut{cable}{suffix}");
            let request = Request::new(RTM_DELLINK, 0, &[0; INTERFACE_HEADER_BYTES]);
            let _is_not_there = route.tell(&mut request.with_text(IFLA_IFNAME, &name));
        }
    }
    Ok(())
}

/// File of a host's namespace.
#[must_use]
pub fn path_of(name: &str) -> PathBuf {
    Path::new(NAMESPACES).join(name)
}

/// The process that a namespace is named after, if it is one of ours.
fn owner(name: &str) -> Option<u32> {
    let rest = name.strip_prefix("taut-")?;
    let rest = rest
        .strip_suffix("-a")
        .or_else(|| rest.strip_suffix("-b"))
        .or_else(|| rest.strip_suffix("-c"))
        .or_else(|| without_node(rest))?;
    let (pid, number) = rest.split_once('.').unwrap_or((rest, "0"));
    (is_number(pid) && is_number(number)).then(|| pid.parse().ok())?
}

/// Name of a node of a cell. `cell`: what the names of all its nodes begin with.
#[must_use]
pub fn node_name(cell: &str, node: usize) -> String {
    format!("{cell}{NODE}{node}")
}

fn without_node(name: &str) -> Option<&str> {
    let (rest, node) = name.rsplit_once(NODE)?;
    is_number(node).then_some(rest)
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn lives(pid: u32) -> bool {
    // Only "no such process", or a zombie, proves death; EPERM means that it is another user's.
    let Some(process) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
        return false;
    };
    let exists = matches!(test_kill_process(process), Ok(()) | Err(Errno::PERM));
    exists && !Stat::of(pid).is_some_and(|stat| stat.is_zombie)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_names_have_an_owner() {
        for (name, pid) in [
            ("taut-12-a", Some(12)),
            ("taut-12-b", Some(12)),
            ("taut-12.3-b", Some(12)),
            ("taut-12-c", Some(12)),
            ("taut-12-d", None),
            ("taut--a", None),
            ("taut-12.-a", None),
            ("taut-x-a", None),
            ("taut-+1-a", None),
            ("taut-99999999999-a", None),
            ("other-12-a", None),
            ("taut-12", None),
        ] {
            assert_eq!(owner(name), pid, "{name}");
        }
    }

    #[test]
    fn we_live_and_the_largest_number_does_not() {
        assert!(lives(std::process::id()));
        assert!(!lives(i32::MAX as u32) && !lives(u32::MAX) && !lives(0));
    }
}
