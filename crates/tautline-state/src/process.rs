//! Processes and threads, told from later ones with the same number.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;

/// Flag of a thread of the kernel (PF_KTHREAD, linux/sched.h).
const KERNEL_THREAD: u64 = 0x0020_0000;

/// Flag of a thread whose CPUs only the kernel sets (PF_NO_SETAFFINITY).
const BOUND: u64 = 0x0400_0000;

/// State of a process or thread, from `/proc/NUMBER/stat` (proc(5)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Its name.
    pub name: String,
    /// Whether it has ended, and its parent has not yet asked how.
    pub is_zombie: bool,
    /// Its parent process.
    pub parent: u32,
    /// Whether it is a thread of the kernel.
    pub is_kernel: bool,
    /// Whether its CPUs are the kernel's own choice.
    pub is_bound: bool,
    /// Start in clock ticks since boot.
    pub start_ticks: u64,
    /// CPU on which it runs or ran last.
    pub cpu: u32,
    /// Execution time in clock ticks, of a process with all its threads and the children that it has waited for.
    pub used_ticks: u64,
}

impl Stat {
    /// State of the process or thread with this number. `None` if there is none.
    pub fn of(number: u32) -> Option<Stat> {
        // A name can be any bytes.
        let bytes = std::fs::read(format!("/proc/{number}/stat")).ok()?;
        Stat::from_text(&String::from_utf8_lossy(&bytes))
    }

    fn from_text(text: &str) -> Option<Stat> {
        // The name may contain spaces and parentheses, so counting begins after the last one.
        let (before, after) = text.rsplit_once(')')?;
        let fields: Vec<&str> = after.split_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        let flags = field(9)?;
        Some(Stat {
            name: before.split_once('(')?.1.to_owned(),
            is_zombie: matches!(fields.first(), Some(&"Z" | &"X")),
            parent: u32::try_from(field(4)?).ok()?,
            is_kernel: flags & KERNEL_THREAD != 0,
            is_bound: flags & BOUND != 0,
            start_ticks: field(22)?,
            cpu: u32::try_from(field(39)?).ok()?,
            used_ticks: (14..=17).try_fold(0, |sum: u64, time| sum.checked_add(field(time)?))?,
        })
    }
}

/// Start of a process or thread in clock ticks since boot. `None` if there is no such process.
pub fn start_ticks(pid: u32) -> Option<u64> {
    Stat::of(pid).map(|stat| stat.start_ticks)
}

/// Number of the calling process's process namespace. `None` where `/proc` does not tell.
pub(crate) fn own_namespace() -> Option<u64> {
    namespace_of("self")
}

/// Number here of the living process that has a number in a process namespace inside this one, and began at that tick.
/// From inside, the processes outside cannot be seen.
///
/// No other process can pass for it: a process never leaves its namespace, and no two that exist at a
/// time have the same number. So whatever began at that tick and is in a namespace of this number is in the same one.
pub(crate) fn seen_as(number: u32, start_ticks: u64, namespace: u64) -> Option<u32> {
    let is_it = |seen_as: u32, stat: &Stat| {
        stat.start_ticks == start_ticks
            && !stat.is_zombie
            && namespace_of(&seen_as.to_string()) == Some(namespace)
            && number_within(seen_as) == Some(number)
    };
    let mut all = all().into_iter();
    let found = all.find(|(seen_as, stat)| is_it(*seen_as, stat));
    found.map(|(seen_as, _)| seen_as)
}

fn namespace_of(process: &str) -> Option<u64> {
    let found = std::fs::metadata(format!("/proc/{process}/ns/pid"));
    found.ok().map(|found| found.ino())
}

/// Number of a process in its own process namespace.
fn number_within(seen_as: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{seen_as}/status")).ok()?;
    // From the outermost namespace that is seen to its own.
    let numbers = status
        .lines()
        .find_map(|line| line.strip_prefix("NSpid:"))?;
    numbers.split_whitespace().last()?.parse().ok()
}

/// Processes that are to be seen, by number.
#[must_use]
pub fn all() -> BTreeMap<u32, Stat> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    // Some have ended since.
    numbers
        .filter_map(|number| Some((number, Stat::of(number)?)))
        .collect()
}

/// Numbers of the threads of a process that are to be seen.
///
/// # Errors
/// A process that has ended, or that this one may not look at.
pub fn threads(process: u32) -> std::io::Result<Vec<u32>> {
    let entries = std::fs::read_dir(format!("/proc/{process}/task"))?;
    let numbers = entries.flatten();
    Ok(numbers
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_parentheses_do_not_mislead() {
        let rest = format!(
            "S 7 1 1 0 -1 69238880 0 0 0 0 5 6 7 8 {}456 {}3 0 0",
            "0 ".repeat(4),
            "1 ".repeat(16)
        );
        let stat = Stat::from_text(&format!("42 (a) (b) c) {rest}")).unwrap();
        assert_eq!((stat.name.as_str(), stat.parent), ("a) (b) c", 7));
        assert_eq!((stat.start_ticks, stat.cpu), (456, 3));
        assert_eq!(stat.used_ticks, 5 + 6 + 7 + 8);
        assert!(stat.is_kernel && stat.is_bound && !stat.is_zombie);
        assert!(Stat::from_text("42 (cut").is_none() && Stat::from_text("42 (a) S 7").is_none());
        assert!(!Stat::of(std::process::id()).unwrap().is_kernel);
    }

    #[test]
    fn processes_of_namespaces_inside_are_told_from_those_of_others() {
        let own = std::process::id();
        let began = start_ticks(own).unwrap();
        let here = own_namespace().unwrap();
        assert_eq!(seen_as(own, began, here), Some(own));
        assert_eq!(seen_as(own, began + 1, here), None);
        assert_eq!(seen_as(u32::MAX, began, here), None);
        assert_eq!(seen_as(own, began, here + 1), None);
        let mut inside = std::process::Command::new("unshare")
            .args([
                "--user",
                "--pid",
                "--fork",
                "--kill-child",
                "--",
                "sleep",
                "60",
            ])
            .stderr(std::process::Stdio::null())
            .spawn()
            .expect("unshare of util-linux");
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(5);
        let sleeps = || {
            let mut children = all()
                .into_iter()
                .filter(|(_, stat)| stat.parent == inside.id());
            children.find(|(_, stat)| stat.name == "sleep")
        };
        let found = loop {
            if let Some(found) = sleeps() {
                break Some(found);
            }
            if std::time::Instant::now() > deadline {
                break None;
            }
            std::thread::yield_now();
        };
        match &found {
            Some((number, stat)) => {
                let there = namespace_of(&number.to_string()).unwrap();
                let seen = |number| seen_as(number, stat.start_ticks, there);
                assert_eq!(seen(1), Some(*number), "it has number 1 there");
                assert_eq!(seen(2), None);
                // No process of this namespace or of another one matches.
                assert_eq!(seen_as(1, stat.start_ticks, here), None);
            }
            None => println!("SKIPPED: making a process namespace is not permitted here"),
        }
        inside.kill().unwrap();
        inside.wait().unwrap();
    }
}
