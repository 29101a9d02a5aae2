//! Sets of CPUs, as users and the kernel write them, and those of the calling thread.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::str::FromStr;

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::{Deserialize, Serialize};

/// Largest number of a CPU that is understood. Lower: large machines are refused. Higher: `0-4294967295` takes
/// gigabytes. The kernel's own limit is 8,192 (CONFIG_NR_CPUS).
const CPU_MAX: u32 = 65_535;

/// A set of CPUs. As text it is a list such as `0-2,5`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CpuList(BTreeSet<u32>);

/// Invalid list of CPUs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid list of CPUs `{text}`; expected e.g. 1 or 0-2,5")]
pub struct CpuListError {
    text: String,
}

impl CpuList {
    /// CPUs of a mask as the kernel writes them: hexadecimal words of 32 bits with commas between them.
    pub fn from_mask(text: &str) -> Option<CpuList> {
        let words: Vec<&str> = text.trim().split(',').collect();
        let mut cpus = BTreeSet::new();
        for (index, word) in words.iter().rev().enumerate() {
            let bits = u32::from_str_radix(word, 16).ok()?;
            let first = u32::try_from(index).ok()?.checked_mul(32)?;
            cpus.extend(
                (0..32)
                    .filter(|bit| bits >> bit & 1 == 1)
                    .map(|bit| first + bit),
            );
        }
        Some(CpuList(cpus))
    }

    /// The mask of this set, in as many words as it needs.
    pub fn mask(&self) -> String {
        let words = self.0.last().map_or(1, |last| last / 32 + 1);
        let mut text = String::new();
        for word in (0..words).rev() {
            let in_word = self.0.range(word * 32..(word + 1) * 32);
            let bits = in_word.fold(0_u32, |bits, cpu| bits | 1 << (cpu % 32));
            text += &match text.is_empty() {
                true => format!("{bits:x}"),
                false => format!(",{bits:08x}"),
            };
        }
        text
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of CPUs.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Whether a CPU is in it.
    pub fn contains(&self, cpu: u32) -> bool {
        self.0.contains(&cpu)
    }

    /// The CPUs in order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().copied()
    }

    /// Those of this set that are not in the other.
    #[must_use]
    pub fn without(&self, other: &CpuList) -> CpuList {
        CpuList(&self.0 - &other.0)
    }

    /// Those that are in both.
    #[must_use]
    pub fn and(&self, other: &CpuList) -> CpuList {
        CpuList(&self.0 & &other.0)
    }
}

impl FromIterator<u32> for CpuList {
    fn from_iter<I: IntoIterator<Item = u32>>(cpus: I) -> Self {
        CpuList(cpus.into_iter().collect())
    }
}

impl FromStr for CpuList {
    type Err = CpuListError;

    /// Every part must be a number or a range; a text without any is refused too.
    fn from_str(text: &str) -> Result<Self, CpuListError> {
        let refused = || CpuListError {
            text: text.trim().chars().take(100).collect(),
        };
        // `+1` is a number to the standard library.
        let number = |text: &str| -> Option<u32> {
            let is_number = !text.is_empty() && text.bytes().all(|one| one.is_ascii_digit());
            text.parse().ok().filter(|cpu| is_number && *cpu <= CPU_MAX)
        };
        let mut cpus = BTreeSet::new();
        for part in text.trim().split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let ends = number(first).zip(number(last));
            let (first, last) = ends
                .filter(|(first, last)| first <= last)
                .ok_or_else(refused)?;
            cpus.extend(first..=last);
        }
        Ok(CpuList(cpus))
    }
}

impl fmt::Display for CpuList {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cpus = self.iter().peekable();
        let mut separator = "";
        while let Some(first) = cpus.next() {
            let mut last = first;
            while let Some(next) = cpus.next_if(|next| *next == last + 1) {
                last = next;
            }
            write!(formatter, "{separator}{first}")?;
            if last > first {
                write!(formatter, "-{last}")?;
            }
            separator = ",";
        }
        Ok(())
    }
}

impl TryFrom<String> for CpuList {
    type Error = CpuListError;

    fn try_from(text: String) -> Result<Self, CpuListError> {
        match text.is_empty() {
            true => Ok(CpuList::default()),
            false => text.parse(),
        }
    }
}

impl From<CpuList> for String {
    fn from(cpus: CpuList) -> String {
        cpus.to_string()
    }
}

/// CPUs that the calling thread may run on, rising.
pub fn allowed_cpus() -> io::Result<Vec<usize>> {
    affinity(None)
}

/// CPUs that a thread may run on, rising; `None` is the calling one.
pub(crate) fn affinity(thread: Option<Pid>) -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(thread)?;
    let cpus = (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu));
    Ok(cpus.collect())
}

/// Keeps the calling thread on one CPU.
///
/// # Errors
/// The kernel's; there is no such CPU.
pub fn pin(cpu: usize) -> io::Result<()> {
    restrict(&[cpu])
}

/// Keeps the calling thread, and what it starts from now on, on some CPUs.
///
/// # Errors
/// The kernel's; there is no such CPU.
pub fn restrict(cpus: &[usize]) -> io::Result<()> {
    set_affinity(None, cpus.iter().copied())
}

/// Keeps a thread on some CPUs; `None` is the calling one.
pub(crate) fn set_affinity(
    thread: Option<Pid>,
    cpus: impl Iterator<Item = usize>,
) -> io::Result<()> {
    let mut set = CpuSet::new();
    for cpu in cpus {
        if cpu >= CpuSet::MAX_CPU {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        set.set(cpu);
    }
    Ok(sched_setaffinity(thread, &set)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_can_be_pinned_to_each_of_its_cpus() {
        std::thread::spawn(|| {
            for cpu in allowed_cpus().unwrap() {
                pin(cpu).unwrap();
                assert_eq!(allowed_cpus().unwrap(), [cpu]);
                // Allowed again for the next turn: pinning does not shrink what the process may use.
            }
            assert!(pin(CpuSet::MAX_CPU).is_err());
        })
        .join()
        .unwrap();
    }

    #[test]
    fn lists_are_read_and_written() {
        for (text, written) in [
            ("1", "1"),
            ("0-2,5\n", "0-2,5"),
            ("5,1,0,2", "0-2,5"),
            ("1,1", "1"),
            ("3-3", "3"),
        ] {
            assert_eq!(text.parse::<CpuList>().unwrap().to_string(), written);
        }
        for text in [
            "", ",", "1,", "x", "2-1", "-1", "1-", "+1", "1 2", "0-65536", "1-2-3", "0x1", "٣",
        ] {
            assert!(text.parse::<CpuList>().is_err(), "{text}");
        }
    }

    #[test]
    fn masks_are_read_and_written() {
        for (mask, list) in [
            ("3", "0-1"),
            ("0", ""),
            ("ffffffff,00000001", "0,32-63"),
            ("1,00000000,80000000", "31,64"),
        ] {
            let cpus = CpuList::from_mask(mask).unwrap();
            assert_eq!(cpus.to_string(), list);
            assert_eq!(cpus.mask(), mask);
        }
        assert_eq!(CpuList::from_mask("00000003\n").unwrap().mask(), "3");
        assert!(CpuList::from_mask("").is_none() && CpuList::from_mask("3,g").is_none());
    }

    #[test]
    fn sets_are_compared() {
        let all: CpuList = "0-3".parse().unwrap();
        let one: CpuList = "1,7".parse().unwrap();
        assert_eq!(all.without(&one).to_string(), "0,2-3");
        assert_eq!(all.and(&one).to_string(), "1");
        assert_eq!(
            (all.count(), all.contains(3), all.contains(4)),
            (4, true, false)
        );
    }
}
