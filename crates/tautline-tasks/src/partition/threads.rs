//! Threads of the machine, as far as this process sees them.

use std::fs;

use tautline_state::cpus::CpuList;
use tautline_state::process::{Stat, threads};
use tautline_state::setting::{Setting, Thread};

/// A thread.
#[derive(Clone, Debug)]
pub(crate) struct OneThread {
    /// Its number.
    pub(crate) number: u32,
    /// Its process.
    pub(crate) process: u32,
    /// Its state.
    pub(crate) stat: Stat,
}

impl OneThread {
    /// CPUs that it may run on.
    pub(crate) fn cpus(&self) -> Option<CpuList> {
        self.setting().read().ok()?.parse().ok()
    }

    /// Setting of its CPUs.
    pub(crate) fn setting(&self) -> Setting {
        Setting::ThreadCpus(Thread::listed(self.number, &self.stat))
    }

    /// Whether it is a thread of an interrupt, whose CPUs follow those of the interrupt.
    pub(crate) fn is_of_interrupt(&self) -> bool {
        self.stat.is_kernel && self.stat.name.starts_with("irq/")
    }
}

/// Threads of a process.
pub(crate) fn of(process: u32) -> Vec<OneThread> {
    let numbers = threads(process).unwrap_or_default().into_iter();
    let thread = |number| {
        let stat = Stat::of(number)?;
        Some(OneThread {
            number,
            process,
            stat,
        })
    };
    numbers.filter_map(thread).collect()
}

/// All threads that are to be seen.
pub(crate) fn all() -> Vec<OneThread> {
    let mut found = Vec::new();
    for process in processes() {
        found.extend(of(process));
    }
    found
}

fn processes() -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}
