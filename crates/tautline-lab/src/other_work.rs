//! Other work on the machine, which makes a measurement worth less, seen from the kernel's own account of its
//! processors.

use std::cmp::Ordering;
use std::time::Duration;

use serde::Serialize;

/// Time over which the account is taken. Lower: ticks of 10 ms make it coarse. Higher: whoever asks waits longer.
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
    fn an_account_that_is_cut_off_is_none() {
        for text in ["", "cpu", "cpu  1 2 3", "cpu  a b c d e f g h"] {
            assert_eq!(parse(text), None, "{text}");
        }
        assert!(OtherWork::measure().busy <= 1.0);
    }
}
