//! One setting of a machine: how it is named, read and written. Values are text, as the kernel shows them.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::sync::OnceLock;

use rustix::fs::fstatfs;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use rustix::process::Pid;
use serde::{Deserialize, Serialize};

use crate::cpus::{CpuList, affinity, set_affinity};
use crate::namespace::own_network_namespace;
use crate::policy;
use crate::process::{Stat, start_ticks};

/// Longest value that is read. The kernel shows settings a page at a time; more would be no setting.
const VALUE_BYTES_MAX: u64 = 4096;

/// File systems whose files are settings (statfs(2), linux/magic.h): sysfs, proc, tracefs, debugfs, cgroup v1 and v2.
const SETTING_FILE_SYSTEMS: [u64; 6] = [
    0x6265_6572,
    0x9fa0,
    0x7472_6163,
    0x6462_6720,
    0x0027_e0eb,
    0x6367_7270,
];

/// File of a group of cgroup v2 with the controllers of its children.
const SUBTREE_CONTROL: &str = "cgroup.subtree_control";

/// Something that can be set and put back.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Setting {
    /// A file of one value, below `/proc` or `/sys`.
    File(PathBuf),
    /// A file of an interface in the caller's network namespace, whatever is mounted at `/sys`.
    OfInterface {
        /// Name of the interface.
        interface: String,
        /// Number of its network namespace, by which it is told from an interface with its name and number elsewhere.
        namespace: u64,
        /// Its number, by which it is found under another name, and told from a later interface with its name. `None`:
        /// whichever has the name.
        index: Option<u32>,
        /// The file's name.
        attribute: String,
    },
    /// Scheduling policy and priority of a thread: `fifo 10`, `rr 10`, `other`, `batch`, `idle`.
    ThreadPolicy(Thread),
    /// The CPUs that a thread may run on, as a list.
    ThreadCpus(Thread),
    /// Whether a controller is available to the children of a group of cgroup v2: `on`, `off`.
    Controller {
        /// Directory of the group.
        group: PathBuf,
        /// Name of the controller.
        controller: String,
    },
}

/// New value of a setting. Changes of several holders lie above each other, and each is made to the value below it:
/// so one can be taken away while those above it stay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NewValue {
    /// This text.
    Exactly(String),
    /// A list of CPUs without some.
    CpusWithout(WithoutCpus),
    /// A mask of CPUs without some.
    MaskWithout(WithoutCpus),
}

/// CPUs to leave out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WithoutCpus {
    /// CPUs to leave out.
    pub cpus: CpuList,
    /// CPUs where no other is left.
    pub otherwise: CpuList,
}

impl WithoutCpus {
    fn of(&self, before: &CpuList) -> Option<CpuList> {
        if before.and(&self.cpus).is_empty() {
            return None;
        }
        let left = before.without(&self.cpus);
        Some(match left.is_empty() {
            true => self.otherwise.clone(),
            false => left,
        })
    }
}

impl NewValue {
    /// The value that results from `before`, which is returned as it is where nothing is to be changed.
    pub fn over(&self, before: &str) -> io::Result<String> {
        let unexpected = || {
            let text = format!("`{before}` is not understood");
            io::Error::new(io::ErrorKind::InvalidData, text)
        };
        let changed = match self {
            Self::Exactly(text) => Some(text.clone()),
            Self::CpusWithout(without) => {
                let cpus = before.parse().map_err(|_| unexpected())?;
                without.of(&cpus).map(|cpus| cpus.to_string())
            }
            Self::MaskWithout(without) => {
                let cpus = CpuList::from_mask(before).ok_or_else(unexpected)?;
                without.of(&cpus).map(|cpus| cpus.mask())
            }
        };
        Ok(changed.unwrap_or_else(|| before.to_owned()))
    }
}

/// A thread, told from a later one with the same number by when it started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Thread {
    number: u32,
    started_ticks: u64,
}

impl Thread {
    /// The thread that has this number now.
    pub fn now(number: u32) -> io::Result<Thread> {
        let started_ticks = start_ticks(number).ok_or(io::ErrorKind::NotFound)?;
        Ok(Thread {
            number,
            started_ticks,
        })
    }

    /// The thread that had this number in a listing, by the start that was listed.
    #[must_use]
    pub fn listed(number: u32, stat: &Stat) -> Thread {
        Thread {
            number,
            started_ticks: stat.start_ticks,
        }
    }

    /// Its number, if it still is the one.
    fn number(self) -> io::Result<i32> {
        if start_ticks(self.number) != Some(self.started_ticks) {
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
                ..
            } => write!(formatter, "/sys/class/net/{interface}/{attribute}"),
            Self::ThreadPolicy(thread) => write!(formatter, "policy of thread {}", thread.number),
            Self::ThreadCpus(thread) => write!(formatter, "CPUs of thread {}", thread.number),
            Self::Controller { group, controller } => {
                write!(
                    formatter,
                    "{controller} in {}/{SUBTREE_CONTROL}",
                    group.display()
                )
            }
        }
    }
}

impl Setting {
    /// A file of an interface here.
    #[must_use]
    pub fn of_interface(interface: &str, index: Option<u32>, attribute: &str) -> Self {
        Self::OfInterface {
            interface: interface.to_owned(),
            namespace: own_network_namespace().unwrap_or(0),
            index,
            attribute: attribute.to_owned(),
        }
    }

    /// Value that is in force. `ErrorKind::NotFound` if the CPU, interface or thread is gone.
    pub fn read(&self) -> io::Result<String> {
        match self {
            Self::File(path) => read_value(&kernel_path(path)?),
            Self::OfInterface {
                interface,
                index,
                attribute,
                ..
            } => {
                let (sysfs, _mount) = sysfs()?;
                read_value(&of_interface(&sysfs, interface, *index, attribute)?)
            }
            Self::ThreadPolicy(thread) => {
                let (policy, priority) = policy::policy_of(thread.number()?)?;
                Ok(policy::to_text(policy, priority))
            }
            Self::ThreadCpus(thread) => {
                let cpus = affinity(Pid::from_raw(thread.number()?))?;
                let cpus: CpuList = cpus.into_iter().map(|cpu| cpu as u32).collect();
                Ok(cpus.to_string())
            }
            Self::Controller { group, controller } => {
                let enabled = read_value(&kernel_path(&group.join(SUBTREE_CONTROL))?)?;
                let is_on = enabled.split_whitespace().any(|one| one == controller);
                Ok(if is_on { "on" } else { "off" }.to_owned())
            }
        }
    }

    /// Puts a value in force.
    pub fn write(&self, value: &str) -> io::Result<()> {
        match self {
            Self::File(path) => write_value(&kernel_path(path)?, value),
            Self::OfInterface {
                interface,
                index,
                attribute,
                ..
            } => {
                let (sysfs, _mount) = sysfs()?;
                write_value(&of_interface(&sysfs, interface, *index, attribute)?, value)
            }
            Self::ThreadPolicy(thread) => {
                let (policy, priority) = policy::from_text(value)?;
                policy::set_policy(thread.number()?, policy, priority)
            }
            Self::ThreadCpus(thread) => {
                let cpus = value.parse::<CpuList>();
                let cpus = cpus.map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
                let thread = Pid::from_raw(thread.number()?);
                set_affinity(thread, cpus.iter().map(|cpu| cpu as usize))
            }
            Self::Controller { group, controller } => {
                let sign = match value {
                    "on" => '+',
                    "off" => '-',
                    _ => return Err(io::ErrorKind::InvalidInput.into()),
                };
                let path = kernel_path(&group.join(SUBTREE_CONTROL))?;
                write_value(&path, &format!("{sign}{controller}"))
            }
        }
    }
}

impl Setting {
    /// Puts a value in force where another one is.
    pub(crate) fn write_if_other(&self, value: &str) -> io::Result<()> {
        match self.read() {
            Ok(now) if now == value => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(error),
            _ => self.write(value),
        }
    }
}

/// A path below `/proc` or `/sys` without `..`: whatever a journal says, no other file is written.
pub(crate) fn kernel_path(path: &Path) -> io::Result<PathBuf> {
    let plain = path
        .components()
        .all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    if plain && (path.starts_with("/proc") || path.starts_with("/sys")) {
        Ok(path.to_owned())
    } else {
        Err(no_setting(path))
    }
}

fn no_setting(path: &Path) -> io::Error {
    let text = format!("{} is not a setting of the kernel", path.display());
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

/// Links such as `/proc/self/cwd` lead out of the kernel's file systems, so the open file is asked.
fn check_setting(file: File, path: &Path) -> io::Result<File> {
    let kind = fstatfs(&file)?.f_type as u64;
    if SETTING_FILE_SYSTEMS.contains(&kind) {
        Ok(file)
    } else {
        Err(no_setting(path))
    }
}

fn read_value(path: &Path) -> io::Result<String> {
    let file = check_setting(File::open(path)?, path)?;
    let mut text = String::new();
    file.take(VALUE_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text.trim().to_owned())
}

fn write_value(path: &Path, value: &str) -> io::Result<()> {
    let file = OpenOptions::new().write(true).open(path)?;
    check_setting(file, path)?.write_all(value.as_bytes())
}

/// A sysfs that this process keeps.
static KEPT: OnceLock<OwnedFd> = OnceLock::new();

/// Opens the sysfs of the caller's network namespace once and for all: from here on settings of interfaces are reached
/// through it, by a process that is about to give up the privilege to open another. `None` without that privilege: then
/// it is the one that is mounted.
pub fn keep_sysfs() -> io::Result<Option<BorrowedFd<'static>>> {
    if KEPT.get().is_none()
        && let Some(mount) = own_sysfs()?
    {
        return Ok(Some(KEPT.get_or_init(|| mount).as_fd()));
    }
    Ok(KEPT.get().map(AsFd::as_fd))
}

/// Path to the sysfs of the caller's network namespace, which need not be the one that is mounted at `/sys`, and what
/// keeps it open; without the privilege for that, the mounted one.
fn sysfs() -> io::Result<(PathBuf, Option<OwnedFd>)> {
    let path_of = |mount: BorrowedFd<'_>| format!("/proc/self/fd/{}", mount.as_raw_fd()).into();
    if let Some(kept) = KEPT.get() {
        return Ok((path_of(kept.as_fd()), None));
    }
    Ok(match own_sysfs()? {
        Some(mount) => (path_of(mount.as_fd()), Some(mount)),
        None => ("/sys".into(), None),
    })
}

/// A sysfs of our own, mounted nowhere. `None` without the privilege for that.
fn own_sysfs() -> io::Result<Option<OwnedFd>> {
    let mount = || {
        let system = fsopen("sysfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_create(system.as_fd())?;
        let attributes = MountAttrFlags::empty();
        fsmount(system.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)
    };
    match mount() {
        Ok(mount) => Ok(Some(mount)),
        Err(rustix::io::Errno::PERM | rustix::io::Errno::ACCESS) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn of_interface(
    sysfs: &Path,
    interface: &str,
    index: Option<u32>,
    attribute: &str,
) -> io::Result<PathBuf> {
    for part in [interface, attribute] {
        if crate::directory::plain(part.as_ref()).is_err() {
            return Err(no_setting(Path::new(part)));
        }
    }
    let interfaces = sysfs.join("class/net");
    let interface = match index {
        None => interface.to_owned(),
        Some(index) => name_now(&interfaces, interface, index)?,
    };
    Ok(interfaces.join(interface).join(attribute))
}

/// Name that the interface of this number has now, most likely that of before. `ErrorKind::NotFound` if it is gone.
fn name_now(interfaces: &Path, before: &str, index: u32) -> io::Result<String> {
    let index = index.to_string();
    let is_it = |name: &str| {
        let found = read_value(&interfaces.join(name).join("ifindex"));
        found.is_ok_and(|found| found == index)
    };
    if is_it(before) {
        return Ok(before.to_owned());
    }
    let entries = std::fs::read_dir(interfaces)?.flatten();
    let mut names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let found = names.find(|name| is_it(name));
    found.ok_or_else(|| io::ErrorKind::NotFound.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_made_from_those_below_them() {
        let without = |cpus: &str, otherwise: &str| WithoutCpus {
            cpus: cpus.parse().unwrap(),
            otherwise: otherwise.parse().unwrap(),
        };
        let list = NewValue::CpusWithout(without("1", "0,2-3"));
        let mask = NewValue::MaskWithout(without("1", "0,2-3"));
        for (value, before, after) in [
            (&list, "0-3", "0,2-3"),
            (&list, "1", "0,2-3"),
            (&list, "0,2,3", "0,2,3"),
            (&mask, "f", "d"),
            (&mask, "0000000f", "d"),
            (&mask, "00000001", "00000001"),
            (&NewValue::Exactly("x".to_owned()), "3", "x"),
        ] {
            assert_eq!(value.over(before).unwrap(), after);
        }
        for value in [list, mask] {
            assert!(value.over("none").is_err());
        }
    }

    #[test]
    fn a_thread_is_told_from_a_later_one() {
        let own = Thread::now(std::process::id()).unwrap();
        let cpus = Setting::ThreadCpus(own).read().unwrap();
        assert!(!cpus.parse::<CpuList>().unwrap().is_empty());
        let later = Thread {
            started_ticks: own.started_ticks + 1,
            ..own
        };
        let gone = Setting::ThreadPolicy(later).write("other").unwrap_err();
        assert_eq!(gone.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn an_interface_is_found_in_the_namespace_that_one_is_in() {
        let of = |name, index| Setting::of_interface(name, index, "ifindex");
        assert_eq!(of("lo", None).read().unwrap(), "1");
        assert_eq!(of("lo", Some(1)).read().unwrap(), "1");
        // Renamed meanwhile; and gone, with another of its name.
        assert_eq!(of("taut-before", Some(1)).read().unwrap(), "1");
        let gone = of("lo", Some(u32::MAX)).write("1").unwrap_err();
        assert_eq!(gone.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn only_settings_of_the_kernel_are_read_and_written() {
        for path in [
            "/etc/hostname",
            "/proc/self/cwd/Cargo.toml",
            "/proc/../etc/passwd",
            "sys/x",
        ] {
            let setting = Setting::File(path.into());
            let refused = setting.write("").unwrap_err().kind();
            assert!(
                matches!(
                    refused,
                    io::ErrorKind::InvalidInput | io::ErrorKind::NotFound
                ),
                "{path}: {refused}"
            );
            assert!(setting.read().is_err(), "{path}");
        }
        let climbing = Setting::of_interface("..", None, "../../etc/passwd");
        assert_eq!(
            climbing.write("").unwrap_err().kind(),
            io::ErrorKind::InvalidInput
        );
        assert!(Setting::File("/proc/self/comm".into()).read().is_ok());
    }
}
