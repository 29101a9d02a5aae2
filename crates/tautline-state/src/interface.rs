//! Interfaces of this network namespace, and their polls (NAPI instances): the threads that they run in, and the
//! interrupts that set them off.

use std::fs;
use std::io;
use std::path::Path;

use crate::netdev::Netdev;
use crate::process::{self, Stat};
use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily, SocketType};

/// The names of all interfaces of the caller's network namespace.
///
/// # Errors
/// If `/proc` is not mounted.
pub fn names() -> io::Result<Vec<String>> {
    // A name may be any bytes.
    let table = fs::read("/proc/thread-self/net/dev")?;
    let table = String::from_utf8_lossy(&table);
    // Two lines of headings; a name may stand next to its colon.
    let lines = table.lines().skip(2);
    let name = |line: &str| Some(line.rsplit_once(':')?.0.trim().to_owned());
    Ok(lines.filter_map(name).collect())
}

/// Counters of an interface in the table of `/proc/net/dev` (proc_pid_net(5)), by column: eight of receiving, eight of
/// sending. None if it is not there.
#[must_use]
pub fn counters_in(table: &str, interface: &str) -> Vec<u64> {
    let mut lines = table.lines().filter_map(|line| line.rsplit_once(':'));
    let line = lines.find(|(name, _)| name.trim() == interface);
    let counters = line.map_or("", |(_, counters)| counters).split_whitespace();
    counters.map_while(|counter| counter.parse().ok()).collect()
}

/// The number of an interface of the caller's network namespace.
///
/// # Errors
/// If there is none of this name.
pub fn index(name: &str) -> io::Result<u32> {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    Ok(name_to_index(&socket, name)?)
}

/// The polls of one interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Polls {
    /// How many there are; nothing if the kernel does not tell (before Linux 6.8). A veth has none without an XDP
    /// program.
    pub count: Option<usize>,
    /// The kernel's threads that they run in, by number; none where they are not in threads.
    pub threads: Vec<u32>,
    /// The interrupts that set them off, as far as the driver told.
    pub interrupts: Vec<u32>,
}

impl Polls {
    /// Those of an interface of the caller's network namespace that is up.
    ///
    /// A kernel that does not tell has them by name: its threads are called `napi/INTERFACE-NUMBER`, and those of an
    /// interface of the same name in another network namespace are taken for this one's.
    ///
    /// # Errors
    /// If there is no such interface, or if `/proc` or `/sys` cannot be read.
    pub fn of(interface: &str) -> io::Result<Polls> {
        let index = index(interface)?;
        match Netdev::open().and_then(|mut netdev| netdev.polls(index)) {
            Ok(polls) => Ok(Polls {
                count: Some(polls.len()),
                threads: polls.iter().filter_map(|poll| poll.thread).collect(),
                interrupts: polls.iter().filter_map(|poll| poll.interrupt).collect(),
            }),
            Err(error) if is_not_told(&error) => Self::by_name(interface),
            Err(error) => Err(error),
        }
    }

    fn by_name(interface: &str) -> io::Result<Polls> {
        let prefix = format!("napi/{interface}-");
        // Anybody may give such a name to a process of their own.
        let is_poll = |stat: &Stat| stat.is_kernel && stat.name.starts_with(&prefix);
        let threads = process::all().into_iter();
        let device = Path::new("/sys/class/net").join(interface).join("device");
        // Those of a virtio card are its bus device's.
        let interrupts = [device.join("msi_irqs"), device.join("../msi_irqs")];
        Ok(Polls {
            count: None,
            threads: threads
                .filter_map(|(number, stat)| is_poll(&stat).then_some(number))
                .collect(),
            interrupts: interrupts
                .iter()
                .find_map(|directory| numbers(directory).ok())
                .unwrap_or_default(),
        })
    }
}

/// Whether the kernel has no such question: no family before Linux 6.3, no polls in it before 6.8.
fn is_not_told(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::Unsupported
    )
}

/// Entries of a directory that are called by numbers.
fn numbers(directory: &Path) -> io::Result<Vec<u32>> {
    let entries = fs::read_dir(directory)?.flatten();
    let number = |entry: fs::DirEntry| entry.file_name().to_str()?.parse().ok();
    let mut numbers: Vec<u32> = entries.filter_map(number).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::time::Duration;

    use super::*;

    #[test]
    fn an_interface_that_is_not_there_is_an_error() {
        assert!(index("no-such-one").is_err() && Polls::of("no-such-one").is_err());
    }

    #[test]
    fn every_interface_that_is_named_has_a_number() {
        let names = names().unwrap();
        assert!(names.contains(&"lo".to_owned()), "{names:?}");
        for name in names {
            assert!(index(&name).is_ok(), "{name}");
        }
    }

    /// A kernel that tells, and the way of one that does not, find the same threads: loopback has none.
    #[test]
    fn loopback_has_no_threads_either_way() {
        assert_eq!(Polls::of("lo").unwrap().threads, [] as [u32; 0]);
        let by_name = Polls::by_name("lo").unwrap();
        assert_eq!((by_name.count, by_name.threads.len()), (None, 0));
    }

    /// It would be given real-time priority.
    #[test]
    fn a_process_that_takes_the_name_of_a_kernel_thread_is_none() {
        let renames = "printf napi/lo-1 >/proc/$$/comm; read -r ends";
        let shell = Command::new("sh")
            .args(["-c", renames])
            .stdin(Stdio::piped())
            .spawn();
        let mut shell = shell.unwrap();
        let is_renamed = || Stat::of(shell.id()).is_some_and(|stat| stat.name == "napi/lo-1");
        while !is_renamed() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let found = Polls::by_name("lo").unwrap().threads;
        // Its standard input ends.
        shell.wait().unwrap();
        assert_eq!(found, [] as [u32; 0]);
    }
}
