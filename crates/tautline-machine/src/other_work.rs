//! Other work on the machine, which makes a measurement worth less, seen from the kernel's own account of its
//! processors.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use tautline_state::process::{self, Stat};

/// Time over which the account is taken. Lower: ticks of 10 ms make it coarse. Higher: the caller waits longer.
const LOOK: Duration = Duration::from_millis(200);

/// Share above which a machine counts as busy. Lower: a desktop at rest is one. Higher: a build in the background is
/// not.
const BUSY_SHARE: f64 = 0.15;

/// Share that the host of a virtual machine may keep for others. A thousandth of a second of it moves every maximum.
const STOLEN_SHARE: f64 = 0.01;

/// Shares of all processors, from 0 to 1, while the caller slept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct OtherWork {
    /// Taken by other processes, and by the kernel for them.
    pub busy: f64,
    /// Kept by the host of a virtual machine, while there was something to run.
    pub stolen: f64,
}

impl OtherWork {
    /// Looks for a fifth of a second, in which the caller must have nothing else running. Zero where the kernel does
    /// not tell.
    pub fn measure() -> OtherWork {
        let before = account();
        std::thread::sleep(LOOK);
        match (before, account()) {
            (Some(before), Some(after)) => OtherWork::between(&before, &after),
            _ => OtherWork::default(),
        }
    }

    fn between(before: &Account, after: &Account) -> OtherWork {
        let ticks = |count: fn(&Account) -> u64| count(after).saturating_sub(count(before)) as f64;
        let all = ticks(|account| account.all).max(1.0);
        OtherWork {
            busy: ticks(|account| account.busy) / all,
            stolen: ticks(|account| account.stolen) / all,
        }
    }

    /// Whether figures that are measured beside it mean less.
    pub fn is_busy(&self) -> bool {
        self.busy > BUSY_SHARE || self.stolen > STOLEN_SHARE
    }

    /// The larger of both.
    pub fn max(self, other: OtherWork) -> OtherWork {
        let larger = |a: f64, b: f64| match a.partial_cmp(&b) {
            Some(Ordering::Less) => b,
            _ => a,
        };
        OtherWork {
            busy: larger(self.busy, other.busy),
            stolen: larger(self.stolen, other.stolen),
        }
    }

    /// Warning for the reader of figures that were measured beside it; nothing on a quiet machine.
    pub fn warning(&self) -> Option<String> {
        let percent = |share: f64| format!("{:.0} %", share * 100.0);
        let stolen = match self.stolen > STOLEN_SHARE {
            true => format!(", and its host keeps {}", percent(self.stolen)),
            false => String::new(),
        };
        self.is_busy().then(|| {
            format!(
                "The machine is busy: other work takes {} of its processors{stolen}. Figures are worse than on a quiet \
                 machine, and vary more.",
                percent(self.busy)
            )
        })
    }
}

/// Work of other processes in a time in which the caller works too: their own execution time is counted, for the
/// processors' idle time tells nothing then. Work of the kernel that belongs to no process is not seen.
#[derive(Debug)]
pub struct OtherWorkWatch {
    before: Option<Account>,
    of_others: u64,
}

impl OtherWorkWatch {
    /// Begins.
    pub fn begin() -> OtherWorkWatch {
        OtherWorkWatch {
            before: account(),
            of_others: ticks_of_others(&process::all(), std::process::id()),
        }
    }

    /// Shares since the beginning. Zero where the kernel does not tell.
    pub fn end(self) -> OtherWork {
        let (Some(before), Some(after)) = (self.before, account()) else {
            return OtherWork::default();
        };
        let all = after.all.saturating_sub(before.all).max(1) as f64;
        let of_others = ticks_of_others(&process::all(), std::process::id());
        OtherWork {
            busy: of_others.saturating_sub(self.of_others) as f64 / all,
            ..OtherWork::between(&before, &after)
        }
    }
}

/// Execution time so far of all processes but this one, what it has started, and the kernel's threads. What one that
/// has ended had used is its parent's.
fn ticks_of_others(processes: &BTreeMap<u32, Stat>, own: u32) -> u64 {
    let is_own = |mut number: u32| {
        // Parents end at the first process; in a list that was not read at one moment there can be a circle.
        for _ in 0..processes.len() {
            if number == own {
                return true;
            }
            match processes.get(&number) {
                Some(stat) => number = stat.parent,
                None => return false,
            }
        }
        false
    };
    let others = processes.iter();
    others
        .filter(|(number, stat)| !stat.is_kernel && !is_own(**number))
        .map(|(_, stat)| stat.used_ticks)
        .sum()
}

/// Ticks of all processors since the machine started, proc_stat(5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Account {
    all: u64,
    busy: u64,
    stolen: u64,
}

fn account() -> Option<Account> {
    parse(&std::fs::read_to_string("/proc/stat").ok()?)
}

fn parse(text: &str) -> Option<Account> {
    let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks: Vec<u64> = line
        .split_whitespace()
        .map_while(|word| word.parse().ok())
        .collect();
    // Those of guests, from the ninth on, are contained in the first two.
    let [user, nice, system, idle, waiting, irq, softirq, stolen, ..] = ticks[..] else {
        return None;
    };
    let busy = user + nice + system + irq + softirq;
    Some(Account {
        all: busy + idle + waiting + stolen,
        busy,
        stolen,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_of_all_processors() {
        let before = parse("cpu  100 0 50 800 10 0 5 2 0 0\ncpu0 1 1\n").unwrap();
        let after = parse("cpu  120 5 60 860 10 0 10 2 0 0\n").unwrap();
        let work = OtherWork::between(&before, &after);
        assert_eq!((work.busy, work.stolen), (0.4, 0.0));
        assert!(work.is_busy() && work.warning().unwrap().contains("40 %"));
    }

    #[test]
    fn a_host_that_takes_the_processor_makes_busy_too() {
        let work = OtherWork {
            busy: 0.01,
            stolen: 0.05,
        };
        assert!(work.warning().unwrap().contains("host keeps 5 %"));
        assert_eq!(work.max(OtherWork::default()), work);
        assert_eq!(OtherWork::default().warning(), None);
    }

    #[test]
    fn work_of_others_is_told_from_ones_own() {
        let process = |parent, used_ticks, is_kernel| Stat {
            name: String::new(),
            is_zombie: false,
            parent,
            is_kernel,
            is_bound: false,
            start_ticks: 0,
            cpu: 0,
            used_ticks,
        };
        let processes = BTreeMap::from([
            (1, process(0, 1, false)),
            (2, process(0, 10, true)),
            (7, process(1, 100, false)),
            (8, process(7, 1_000, false)),
            (9, process(8, 10_000, false)),
            // A parent that was not seen, and two that the moments between make each other's.
            (10, process(99, 100_000, false)),
            (11, process(12, 1_000_000, false)),
            (12, process(11, 10_000_000, false)),
        ]);
        assert_eq!(ticks_of_others(&processes, 7), 11_100_001);
        assert_eq!(ticks_of_others(&processes, 9), 11_101_101);
    }

    #[test]
    fn an_account_that_is_cut_off_is_none() {
        for text in ["", "cpu", "cpu  1 2 3", "cpu  a b c d e f g h"] {
            assert_eq!(parse(text), None, "{text}");
        }
        assert!(OtherWork::measure().busy <= 1.0);
        // Ticks of processes and of processors are not counted at one moment.
        assert!(OtherWorkWatch::begin().end().busy.is_finite());
    }
}
