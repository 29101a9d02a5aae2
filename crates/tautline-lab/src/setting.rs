//! One setting of a machine: what it is, and how it is read and written. Values are text, as the kernel shows them.

use std::fmt;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use serde::{Deserialize, Serialize};

use crate::journal::start_of;
use crate::sys;
use crate::tuning::parse_cpu_list;

/// Something that can be set and put back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Setting {
    /// A file of one value.
    File(PathBuf),
    /// A file of an interface in the caller's network namespace, whatever is mounted at `/sys`.
    OfInterface {
        /// The interface.
        interface: String,
        /// The file's name.
        attribute: String,
    },
    /// Scheduling policy and priority of a thread: `fifo 10`, `rr 10`, `other`, `batch`, `idle`.
    ThreadPolicy(Thread),
    /// The CPUs that a thread may run on, as a list.
    ThreadCpus(Thread),
}

/// A thread, told from a later one with the same number by when it started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thread {
    number: u32,
    started_ticks: u64,
}

impl Thread {
    /// The thread that has this number now.
    pub fn now(number: u32) -> io::Result<Thread> {
        let started_ticks = start_of(number).ok_or(io::ErrorKind::NotFound)?;
        Ok(Thread {
            number,
            started_ticks,
        })
    }

    /// Its number, if it still is the one.
    fn number(self) -> io::Result<i32> {
        if start_of(self.number) != Some(self.started_ticks) {
            return Err(io::ErrorKind::NotFound.into());
        }
        i32::try_from(self.number).map_err(io::Error::other)
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(formatter, "{}", path.display()),
            Self::OfInterface {
                interface,
                attribute,
            } => write!(formatter, "/sys/class/net/{interface}/{attribute}"),
            Self::ThreadPolicy(thread) => write!(formatter, "policy of thread {}", thread.number),
            Self::ThreadCpus(thread) => write!(formatter, "CPUs of thread {}", thread.number),
        }
    }
}

impl Setting {
    /// What it is now. `ErrorKind::NotFound` if what it belongs to is gone.
    pub fn read(&self) -> io::Result<String> {
        match self {
            Self::File(path) => Ok(fs::read_to_string(path)?.trim().to_owned()),
            Self::OfInterface {
                interface,
                attribute,
            } => {
                let sysfs = Sysfs::here()?;
                let path = sysfs.of_interface(interface, attribute);
                Ok(fs::read_to_string(path)?.trim().to_owned())
            }
            Self::ThreadPolicy(thread) => {
                let (policy, priority) = sys::policy_of(thread.number()?)?;
                Ok(policy_text(policy, priority))
            }
            Self::ThreadCpus(thread) => {
                let set = sched_getaffinity(Pid::from_raw(thread.number()?))?;
                Ok(cpus_text(&set))
            }
        }
    }

    /// Makes it so.
    pub fn write(&self, value: &str) -> io::Result<()> {
        match self {
            Self::File(path) => fs::write(path, value),
            Self::OfInterface {
                interface,
                attribute,
            } => {
                let sysfs = Sysfs::here()?;
                fs::write(sysfs.of_interface(interface, attribute), value)
            }
            Self::ThreadPolicy(thread) => {
                let (policy, priority) = policy_of(value)?;
                sys::set_policy(thread.number()?, policy, priority)
            }
            Self::ThreadCpus(thread) => {
                let mut set = CpuSet::new();
                for cpu in parse_cpu_list(value) {
                    set.set(cpu as usize)?;
                }
                Ok(sched_setaffinity(Pid::from_raw(thread.number()?), &set)?)
            }
        }
    }
}

const POLICIES: [(&str, libc::c_int); 5] = [
    ("fifo", libc::SCHED_FIFO),
    ("rr", libc::SCHED_RR),
    ("other", libc::SCHED_OTHER),
    ("batch", libc::SCHED_BATCH),
    ("idle", libc::SCHED_IDLE),
];

fn policy_text(policy: libc::c_int, priority: libc::c_int) -> String {
    // The kernel may show that children do not inherit the policy.
    let policy = policy & !libc::SCHED_RESET_ON_FORK;
    let known = POLICIES.iter().find(|(_, number)| *number == policy);
    let name = known.map_or_else(
        || format!("policy {policy}"),
        |(name, _)| (*name).to_owned(),
    );
    if priority == 0 {
        name
    } else {
        format!("{name} {priority}")
    }
}

fn policy_of(text: &str) -> io::Result<(libc::c_int, libc::c_int)> {
    let (name, priority) = text.split_once(' ').unwrap_or((text, "0"));
    let known = POLICIES.iter().find(|(known, _)| *known == name);
    match (known, priority.parse()) {
        (Some((_, policy)), Ok(priority)) => Ok((*policy, priority)),
        _ => Err(io::ErrorKind::InvalidInput.into()),
    }
}

fn cpus_text(set: &CpuSet) -> String {
    let cpus = (0..CpuSet::count()).filter(|cpu| set.is_set(*cpu).unwrap_or(false));
    let cpus: Vec<String> = cpus.map(|cpu| cpu.to_string()).collect();
    cpus.join(",")
}

/// The sysfs of the caller's network namespace, which need not be the one that is mounted at `/sys`.
struct Sysfs(Option<OwnedFd>);

impl Sysfs {
    /// A sysfs of our own, mounted nowhere. Without the privilege for that, the mounted one.
    fn here() -> io::Result<Sysfs> {
        let mount = || {
            let system = fsopen("sysfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
            fsconfig_create(system.as_fd())?;
            fsmount(
                system.as_fd(),
                FsMountFlags::FSMOUNT_CLOEXEC,
                MountAttrFlags::empty(),
            )
        };
        match mount() {
            Ok(mount) => Ok(Sysfs(Some(mount))),
            Err(rustix::io::Errno::PERM | rustix::io::Errno::ACCESS) => Ok(Sysfs(None)),
            Err(error) => Err(error.into()),
        }
    }

    fn of_interface(&self, interface: &str, attribute: &str) -> PathBuf {
        let root = match &self.0 {
            Some(mount) => format!("/proc/self/fd/{}", mount.as_raw_fd()),
            None => "/sys".to_owned(),
        };
        PathBuf::from(root)
            .join("class/net")
            .join(interface)
            .join(attribute)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_read_as_they_are_written() {
        for text in ["fifo 10", "rr 1", "other", "batch", "idle"] {
            let (policy, priority) = policy_of(text).unwrap();
            assert_eq!(policy_text(policy, priority), text);
        }
        for text in ["", "fifo ten", "deadline", "fifo 1 2"] {
            assert!(policy_of(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_thread_is_told_from_a_later_one() {
        let own = Thread::now(std::process::id()).unwrap();
        let cpus = Setting::ThreadCpus(own).read().unwrap();
        assert!(!parse_cpu_list(&cpus).is_empty());
        let later = Thread {
            started_ticks: own.started_ticks + 1,
            ..own
        };
        let gone = Setting::ThreadPolicy(later).write("other").unwrap_err();
        assert_eq!(gone.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn an_interface_is_found_in_the_namespace_that_one_is_in() {
        let index = Setting::OfInterface {
            interface: "lo".to_owned(),
            attribute: "ifindex".to_owned(),
        };
        assert_eq!(index.read().unwrap(), "1");
    }
}
