//! Settings of the kernel that decide what runs on a CPU beside the tasks that were put there.
//!
//! They are found on the machine at hand, each with its new value; the journal changes them and puts them back. Those
//! that cannot be had are named with the reason.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use tautline_state::cpus::CpuList;
use tautline_state::journal::Journal;
use tautline_state::setting::{NewValue, Setting, WithoutCpus};

use super::Stays;

const CPUS: &str = "/sys/devices/system/cpu";
const INTERRUPTS: &str = "/proc/irq";
const WORKQUEUES: &str = "/sys/devices/virtual/workqueue";
const KERNEL: &str = "/proc/sys/kernel";

/// Time between two collections of memory statistics by a thread on each CPU, in seconds; the kernel's own is 1. Lower:
/// the thread runs more often. Higher: `/proc/meminfo` and the reclaim of memory lag behind by more.
const STATISTICS_INTERVAL_S: u32 = 120;

/// First kernel whose watchdog is moved: Linux 5.10 never returned from the write (a virtual machine of four CPUs, in
/// softlockup_stop_fn), 6.1 does. Lower: such a kernel hangs. Higher: its thread wakes on the CPUs every few seconds.
const WATCHDOG_MOVES: (u32, u32) = (6, 1);

/// A kind of settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Area {
    /// CPUs of interrupts that may be moved, and of those to come.
    Interrupts,
    /// CPUs of workqueues that are not bound to one.
    Workqueues,
    /// Timers that were armed on other CPUs.
    Timers,
    /// The kernel's housekeeping on each CPU: the watchdog, statistics of memory.
    Housekeeping,
    /// Grace periods of RCU that interrupt every CPU.
    Rcu,
    /// Share of the CPU that is kept from real-time tasks.
    Throttling,
    /// Idle states with an exit latency.
    IdleStates,
    /// Frequency below the highest.
    Frequency,
}

impl Area {
    /// All of them, in the order in which they are set.
    pub const ALL: [Area; 8] = [
        Area::Interrupts,
        Area::Workqueues,
        Area::Timers,
        Area::Housekeeping,
        Area::Rcu,
        Area::Throttling,
        Area::IdleStates,
        Area::Frequency,
    ];

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Area::Interrupts => "interrupts",
            Area::Workqueues => "workqueues",
            Area::Timers => "timers",
            Area::Housekeeping => "housekeeping",
            Area::Rcu => "RCU",
            Area::Throttling => "throttling",
            Area::IdleStates => "idle states",
            Area::Frequency => "frequency",
        }
    }
}

/// CPUs that are set aside, and the others.
#[derive(Clone, Debug)]
pub struct Placement {
    cpus: CpuList,
    without: WithoutCpus,
}

impl Placement {
    /// For these CPUs; everything that can be moved goes to `others`.
    pub fn new(cpus: &CpuList, others: &CpuList) -> Placement {
        Placement {
            cpus: cpus.clone(),
            without: WithoutCpus {
                cpus: cpus.clone(),
                otherwise: others.clone(),
            },
        }
    }

    /// The rule for a list of CPUs.
    pub(crate) fn list(&self) -> NewValue {
        NewValue::CpusWithout(self.without.clone())
    }

    fn mask(&self) -> NewValue {
        NewValue::MaskWithout(self.without.clone())
    }

    /// Settings of an area, and their new values. Those that this kernel does not have are left out.
    pub fn settings(&self, area: Area) -> Vec<(Setting, NewValue)> {
        let exactly = |path: PathBuf, value: &str| {
            let is_there = path.exists();
            is_there.then(|| (Setting::File(path), NewValue::Exactly(value.to_owned())))
        };
        let of_kernel = |name: &str| Path::new(KERNEL).join(name);
        let of_each_cpu = |path: fn(u32) -> PathBuf, value: &str| -> Vec<(Setting, NewValue)> {
            let cpus = self.cpus.iter();
            cpus.filter_map(|cpu| exactly(path(cpu), value)).collect()
        };
        match area {
            Area::Interrupts => self.interrupts(),
            Area::Workqueues => self.workqueues(),
            // With 1, a CPU with nothing to do hands its timers to one that is awake, such as ours.
            Area::Timers => exactly(of_kernel("timer_migration"), "0")
                .into_iter()
                .collect(),
            Area::Housekeeping => {
                let watchdog = of_kernel("watchdog_cpumask");
                let watchdog = (watchdog.exists() && release() >= WATCHDOG_MOVES)
                    .then(|| (Setting::File(watchdog), self.list()));
                let interval = STATISTICS_INTERVAL_S.to_string();
                let statistics = exactly("/proc/sys/vm/stat_interval".into(), &interval);
                watchdog.into_iter().chain(statistics).collect()
            }
            // Expedited grace periods interrupt every CPU that is not idle.
            Area::Rcu => exactly("/sys/kernel/rcu_normal".into(), "1")
                .into_iter()
                .collect(),
            Area::Throttling => {
                let runtime = exactly(of_kernel("sched_rt_runtime_us"), "-1");
                let servers = of_each_cpu(fair_server, "0");
                runtime.into_iter().chain(servers).collect()
            }
            Area::IdleStates => {
                let latencies = of_each_cpu(resume_latency, "n/a");
                match latencies.is_empty() {
                    true => self.idle_states(),
                    false => latencies,
                }
            }
            Area::Frequency => of_each_cpu(governor, "performance"),
        }
    }

    fn interrupts(&self) -> Vec<(Setting, NewValue)> {
        let standard = Path::new(INTERRUPTS).join("default_smp_affinity");
        let standard = standard
            .exists()
            .then(|| (Setting::File(standard), self.mask()));
        let each = interrupts().into_iter().map(|(_, directory)| {
            let list = directory.join("smp_affinity_list");
            (Setting::File(list), self.list())
        });
        standard.into_iter().chain(each).collect()
    }

    /// The mask of all workqueues that are not bound, and of those that have one of their own.
    fn workqueues(&self) -> Vec<(Setting, NewValue)> {
        let mut paths = vec![Path::new(WORKQUEUES).join("cpumask")];
        paths.extend(
            entries(WORKQUEUES)
                .into_iter()
                .map(|(_, path)| path.join("cpumask")),
        );
        paths.retain(|path| path.is_file());
        let masks = paths
            .into_iter()
            .map(|path| (Setting::File(path), self.mask()));
        masks.collect()
    }

    /// States of each CPU beyond the first, for kernels without a latency for each CPU.
    fn idle_states(&self) -> Vec<(Setting, NewValue)> {
        let mut settings = Vec::new();
        for cpu in self.cpus.iter() {
            for (name, path) in entries(&format!("{CPUS}/cpu{cpu}/cpuidle")) {
                if name != "state0" && path.join("disable").is_file() {
                    let value = NewValue::Exactly("1".to_owned());
                    settings.push((Setting::File(path.join("disable")), value));
                }
            }
        }
        settings
    }

    /// Changes the settings of some areas, and returns those that the kernel refused.
    pub fn apply(&self, areas: &[Area], journal: &mut Journal) -> Vec<Stays> {
        let mut stays = Vec::new();
        for area in areas {
            let settings = self.settings(*area);
            let answers = settings.iter().zip(journal.change_all(&settings));
            let refused =
                answers.filter_map(|((setting, _), answer)| Some((setting, answer.err()?)));
            let refused: Vec<(&Setting, io::Error)> = refused.collect();
            stays.extend(match area {
                Area::Interrupts => self.interrupts_that_stay(&refused),
                _ => refusals(*area, &refused),
            });
            if *area == Area::IdleStates && settings.is_empty() {
                let reason = "this kernel has none that could be held off";
                stays.push(Stays::new(area.name(), reason));
            }
        }
        stays
    }

    /// Interrupts that could not be moved and go to one of the CPUs. One that was moved goes on there until it comes
    /// the next time.
    fn interrupts_that_stay(&self, refused: &[(&Setting, io::Error)]) -> Vec<Stays> {
        let mut stays = Vec::new();
        for (number, directory) in interrupts() {
            let list = directory.join("smp_affinity_list");
            let goes_there = |name: &str| {
                let text = fs::read_to_string(directory.join(name)).unwrap_or_default();
                let cpus = text.parse::<CpuList>();
                cpus.is_ok_and(|cpus| !cpus.and(&self.cpus).is_empty())
            };
            // Kernels without effective affinities leave the file out.
            let is_effective = !directory.join("effective_affinity_list").exists()
                || goes_there("effective_affinity_list");
            if !goes_there("smp_affinity_list") || !is_effective {
                continue;
            }
            let is_managed = fs::metadata(&list).is_ok_and(|file| file.permissions().readonly());
            let setting = Setting::File(list);
            let error = refused.iter().find(|(one, _)| **one == setting);
            let reason = match (is_managed, error) {
                (true, _) => "its driver has one for each CPU, placed by the kernel".to_owned(),
                (false, Some((_, error))) => error.to_string(),
                (false, None) => "it was moved back since".to_owned(),
            };
            let what = format!("interrupt {number} ({})", action(&directory));
            stays.push(Stays::new(what, reason));
        }
        stays
    }
}

/// One line for all refusals of an area that have the same reason.
fn refusals(area: Area, refused: &[(&Setting, io::Error)]) -> Vec<Stays> {
    let mut stays: Vec<(Stays, usize)> = Vec::new();
    for (setting, error) in refused {
        let reason = error.to_string();
        match stays.iter_mut().find(|(one, _)| one.reason == reason) {
            Some((_, more)) => *more += 1,
            None => {
                let what = format!("{}: {setting}", area.name());
                stays.push((Stays::new(what, reason), 0));
            }
        }
    }
    stays
        .into_iter()
        .map(|(mut one, more)| {
            if more > 0 {
                one.what += &format!(" and {more} more");
            }
            one
        })
        .collect()
}

/// Names of the devices or drivers that use an interrupt: the kernel has a directory for each.
fn action(directory: &Path) -> String {
    let names: Vec<String> = entries(&directory.display().to_string())
        .into_iter()
        .filter(|(_, path)| path.is_dir())
        .map(|(name, _)| name)
        .collect();
    match names.is_empty() {
        true => "no device".to_owned(),
        false => names.join(", "),
    }
}

fn interrupts() -> Vec<(u32, PathBuf)> {
    let mut found: Vec<(u32, PathBuf)> = entries(INTERRUPTS)
        .into_iter()
        .filter_map(|(name, path)| Some((name.parse().ok()?, path)))
        .filter(|(_, path)| path.join("smp_affinity_list").is_file())
        .collect();
    found.sort();
    found
}

fn entries(directory: &str) -> Vec<(String, PathBuf)> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut found: Vec<(String, PathBuf)> = entries
        .filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path())))
        .collect();
    found.sort();
    found
}

/// From Linux 6.12 on, a server under SCHED_DEADLINE keeps a twentieth of each CPU for ordinary tasks.
fn fair_server(cpu: u32) -> PathBuf {
    PathBuf::from(format!(
        "/sys/kernel/debug/sched/fair_server/cpu{cpu}/runtime"
    ))
}

/// Longest exit latency of idle states, `n/a` for none (Documentation/power/pm_qos_interface.rst).
fn resume_latency(cpu: u32) -> PathBuf {
    PathBuf::from(format!("{CPUS}/cpu{cpu}/power/pm_qos_resume_latency_us"))
}

fn governor(cpu: u32) -> PathBuf {
    PathBuf::from(format!("{CPUS}/cpu{cpu}/cpufreq/scaling_governor"))
}

/// Version of the kernel, as far as it counts here.
fn release() -> (u32, u32) {
    let name = rustix::system::uname();
    let release = name.release().to_string_lossy();
    let mut numbers = release
        .split(['.', '-'])
        .map_while(|part| part.parse().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// CPUs that run.
pub fn online() -> CpuList {
    let text = fs::read_to_string(format!("{CPUS}/online")).unwrap_or_default();
    // Without sysfs, the first one runs for sure.
    text.parse().unwrap_or_else(|_| [0].into_iter().collect())
}

/// Work of the kernel that only its command line moves away from a CPU.
pub(crate) fn only_at_boot(cpus: &CpuList) -> Vec<Stays> {
    let mut stays = Vec::new();
    let of_boot = |name: &str| -> CpuList {
        let text = fs::read_to_string(format!("{CPUS}/{name}")).unwrap_or_default();
        text.parse().unwrap_or_default()
    };
    let ticking = cpus.without(&of_boot("nohz_full"));
    if !ticking.is_empty() {
        stays.push(Stays::new(
            format!("timer interrupt of CPU {ticking} while a task runs"),
            format!("only the kernel's command line stops it: nohz_full={cpus}"),
        ));
    }
    let command_line = fs::read_to_string("/proc/cmdline").unwrap_or_default();
    let has_option = ["rcu_nocbs", "nohz_full"].iter().any(|option| {
        let mut words = command_line.split_whitespace();
        words.any(|word| word.split('=').next() == Some(option))
    });
    if !has_option {
        stays.push(Stays::new(
            format!("RCU callbacks of CPU {cpus}"),
            format!("only the kernel's command line moves them: rcu_nocbs={cpus}"),
        ));
    }
    stays
}
