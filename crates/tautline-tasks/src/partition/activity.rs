//! Interrupts and tasks that ran on CPUs, by the counters of `/proc`.

use std::collections::BTreeMap;
use std::fs;

use serde::{Deserialize, Serialize};
use tautline_state::cpus::CpuList;

use super::threads::{self, OneThread};

/// Counters of some CPUs at a moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Activity {
    /// Interrupts by label and device.
    interrupts: BTreeMap<String, u64>,
    /// Soft interrupts by kind.
    soft_interrupts: BTreeMap<String, u64>,
    /// Times that a thread was taken off a CPU, by number and start.
    switches: BTreeMap<String, u64>,
}

/// A thread that ran on the CPUs although it belongs elsewhere.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Runner {
    /// Its number.
    pub thread: u32,
    /// Its name.
    pub name: String,
    /// Whether it is a thread of the kernel.
    pub is_kernel: bool,
    /// Whether the kernel binds it to its CPU.
    pub is_bound: bool,
    /// Times that it ran since then, on whichever CPU.
    pub runs: u64,
}

impl Activity {
    /// Counters of these CPUs now.
    pub fn now(cpus: &CpuList) -> Activity {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        Activity {
            interrupts: columns(&read("/proc/interrupts"), cpus),
            soft_interrupts: columns(&read("/proc/softirqs"), cpus),
            switches: threads::all()
                .iter()
                .filter_map(|thread| Some((key(thread), switches(thread)?)))
                .collect(),
        }
    }

    /// Interrupts since then, the most frequent first.
    pub fn interrupts_since(&self, then: &Activity) -> Vec<(String, u64)> {
        since(&self.interrupts, &then.interrupts)
    }

    /// Soft interrupts since then, the most frequent first.
    pub fn soft_interrupts_since(&self, then: &Activity) -> Vec<(String, u64)> {
        since(&self.soft_interrupts, &then.soft_interrupts)
    }

    /// Threads that ran since then and were last seen on these CPUs, without those of `own` processes.
    pub fn runners_since(&self, then: &Activity, cpus: &CpuList, own: &[u32]) -> Vec<Runner> {
        let mut runners: Vec<Runner> = threads::all()
            .into_iter()
            .filter(|thread| cpus.contains(thread.stat.cpu) && !own.contains(&thread.process))
            .filter_map(|thread| {
                let key = key(&thread);
                let before = then.switches.get(&key).copied().unwrap_or(0);
                let runs = self.switches.get(&key)?.checked_sub(before)?;
                (runs > 0).then_some(Runner {
                    thread: thread.number,
                    name: thread.stat.name,
                    is_kernel: thread.stat.is_kernel,
                    is_bound: thread.stat.is_bound,
                    runs,
                })
            })
            .collect();
        runners.sort_by(|one, other| (other.runs, one.thread).cmp(&(one.runs, other.thread)));
        runners
    }
}

fn key(thread: &OneThread) -> String {
    format!("{}:{}", thread.number, thread.stat.start_ticks)
}

/// Both kinds of context switches of a thread.
fn switches(thread: &OneThread) -> Option<u64> {
    let path = format!("/proc/{}/task/{}/status", thread.process, thread.number);
    let text = fs::read_to_string(path).ok()?;
    let lines = text
        .lines()
        .filter_map(|line| line.split_once("_ctxt_switches:"));
    Some(
        lines
            .filter_map(|(_, count)| count.trim().parse::<u64>().ok())
            .sum(),
    )
}

fn since(now: &BTreeMap<String, u64>, then: &BTreeMap<String, u64>) -> Vec<(String, u64)> {
    let mut counts: Vec<(String, u64)> = now
        .iter()
        .map(|(name, count)| {
            let before = then.get(name).copied().unwrap_or(0);
            (name.clone(), count.saturating_sub(before))
        })
        .filter(|(_, count)| *count > 0)
        .collect();
    counts.sort_by(|one, other| (other.1, &one.0).cmp(&(one.1, &other.0)));
    counts
}

/// Sums of the columns of some CPUs. The first line names the CPU of each column, since those that are offline have
/// none.
fn columns(text: &str, cpus: &CpuList) -> BTreeMap<String, u64> {
    let mut lines = text.lines();
    let heading = lines.next().unwrap_or_default();
    let wanted: Vec<bool> = heading
        .split_whitespace()
        .filter_map(|name| name.strip_prefix("CPU")?.parse().ok())
        .map(|cpu| cpus.contains(cpu))
        .collect();
    let mut sums = BTreeMap::new();
    for line in lines {
        let Some((label, rest)) = line.split_once(':') else {
            continue;
        };
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let counts = fields.iter().zip(&wanted);
        let counts = counts.filter(|(_, wanted)| **wanted);
        let sum: u64 = counts
            .filter_map(|(field, _)| field.parse::<u64>().ok())
            .sum();
        let label = label.trim();
        let about = fields.get(wanted.len()..).unwrap_or_default();
        // A numbered line ends with the devices, another one with an explanation.
        let about = match label.parse::<u32>() {
            Ok(_) => about.last().copied().unwrap_or_default().to_owned(),
            Err(_) => about.join(" "),
        };
        let name = format!("{label} {about}").trim_end().to_owned();
        *sums.entry(name).or_insert(0) += sum;
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERRUPTS: &str = "           CPU0       CPU2       CPU3       
 24:          1          0          7  IO-APIC   5-edge      ACPI:Ged
LOC:         10         20         30  Local timer interrupts
ERR:          5
";

    #[test]
    fn columns_are_found_by_the_heading() {
        let sums = columns(INTERRUPTS, &"2-3".parse().unwrap());
        let expected = [
            ("24 ACPI:Ged", 7),
            ("ERR", 0),
            ("LOC Local timer interrupts", 50),
        ];
        let expected = expected.map(|(name, count)| (name.to_owned(), count));
        assert_eq!(sums, BTreeMap::from(expected));
        assert!(columns("", &"1".parse().unwrap()).is_empty());
    }

    #[test]
    fn only_that_which_ran_since_is_counted() {
        let count = |count| BTreeMap::from([("a".to_owned(), count), ("b".to_owned(), 3)]);
        assert_eq!(since(&count(9), &count(4)), [("a".to_owned(), 5)]);
        assert!(since(&count(4), &count(9)).is_empty());
    }

    #[test]
    fn this_process_is_among_those_that_run() {
        let all: CpuList = crate::partition::placement::online();
        let then = Activity::now(&all);
        std::thread::sleep(std::time::Duration::from_millis(20));
        let now = Activity::now(&all);
        let own = std::process::id();
        let runners = now.runners_since(&then, &all, &[]);
        assert!(runners.iter().any(|one| !one.is_kernel), "{runners:?}");
        let without = now.runners_since(&then, &all, &[own]);
        assert!(without.iter().all(|one| one.thread != own), "{without:?}");
    }
}
