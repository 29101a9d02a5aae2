//! Where a machine's fingerprint is read: files of `/proc`, `/sys` and `/run` below a root directory.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;

use super::{IdleState, Machine};

/// A kernel's build configuration has about 300 KB; lower would cut it off, higher only admits rubbish.
const CONFIGURATION_BYTES_MAX: u64 = 4 << 20;

/// Kernel parameters that change timing; the others on the command line stay out of published
/// results.
const TIMING_PARAMETERS: &[&str] = &[
    "clocksource",
    "cpuidle.governor",
    "cpuidle.off",
    "cpuidle_haltpoll.force",
    "haltpoll.guest_halt_poll_ns",
    "idle",
    "intel_idle.max_cstate",
    "intel_pstate",
    "amd_pstate",
    "irqaffinity",
    "isolcpus",
    "kthread_cpus",
    "maxcpus",
    "mitigations",
    "nmi_watchdog",
    "nohz",
    "nohz_full",
    "nohlt",
    "nosmt",
    "nosoftlockup",
    "nowatchdog",
    "preempt",
    "processor.max_cstate",
    "rcu_nocb_poll",
    "rcu_nocbs",
    "rcupdate.rcu_cpu_stall_cputime",
    "rcutree.kthread_prio",
    "skew_tick",
    "threadirqs",
    "transparent_hugepage",
    "tsc",
];

/// Reads a machine whose `/proc` and `/sys` lie below `root`.
pub(super) fn read(root: &Path) -> Machine {
    let tree = Tree(root.to_owned());
    let (is_virtual, hypervisor) = tree.virtualization();
    let (preemption, preemption_source) = tree.preemption();
    Machine {
        kernel_release: tree.text("proc/sys/kernel/osrelease").into(),
        kernel_version: tree.text("proc/sys/kernel/version").into(),
        architecture: tree.architecture().into(),
        cpu_model: tree.cpu_model().into(),
        cpu_count: tree.cpu_count().into(),
        memory_bytes: tree.memory_bytes().into(),
        is_virtual: is_virtual.into(),
        hypervisor: hypervisor.into(),
        preemption: preemption.into(),
        preemption_source: preemption_source.into(),
        kernel_parameters: tree.kernel_parameters().into(),
        clock_source: tree
            .text("sys/devices/system/clocksource/clocksource0/current_clocksource")
            .into(),
        frequency_governor: tree.frequency_governor().into(),
        idle_driver: tree.idle_driver().into(),
        idle_states: tree.idle_states().into(),
        smt: tree.text("sys/devices/system/cpu/smt/control").into(),
        isolated_cpus: tree.cpu_list("sys/devices/system/cpu/isolated").into(),
        tickless_cpus: tree.tickless_cpus().into(),
        realtime_throttling: tree.realtime_throttling().into(),
        mitigations: tree.mitigations().into(),
    }
}

/// A directory that holds a machine's `/proc`, `/sys` and `/run`.
struct Tree(PathBuf);

impl Tree {
    /// A file's text without the surrounding white space; nothing if it cannot be read.
    /// Device tree strings end in NUL, which goes too.
    fn text(&self, path: &str) -> Option<String> {
        let bytes = fs::read(self.0.join(path)).ok()?;
        let text = String::from_utf8_lossy(&bytes);
        Some(
            text.trim_matches(|c: char| c.is_whitespace() || c == '\0')
                .to_owned(),
        )
    }

    fn text_not_empty(&self, path: &str) -> Option<String> {
        self.text(path).filter(|text| !text.is_empty())
    }

    fn exists(&self, path: &str) -> bool {
        self.0.join(path).exists()
    }

    /// Names in a directory, sorted.
    fn names(&self, path: &str) -> Option<Vec<String>> {
        let mut names: Vec<String> = fs::read_dir(self.0.join(path))
            .ok()?
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .collect();
        names.sort();
        Some(names)
    }

    /// The architecture of the running kernel (`/proc/sys/kernel/arch`, since Linux 6.1); on an
    /// older kernel this program's own, which is known only if the tree is the real one.
    fn architecture(&self) -> Option<String> {
        self.text_not_empty("proc/sys/kernel/arch")
            .or_else(|| (self.0 == Path::new("/")).then(|| std::env::consts::ARCH.to_owned()))
    }

    fn cpu_info(&self, key: &str) -> Option<String> {
        let text = self.text("proc/cpuinfo")?;
        text.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            (name.trim() == key).then(|| value.trim().to_owned())
        })
    }

    fn cpu_model(&self) -> Option<String> {
        self.cpu_info("model name")
            .or_else(|| self.text_not_empty("sys/firmware/devicetree/base/model"))
            .or_else(|| self.cpu_info("Hardware"))
    }

    fn cpu_count(&self) -> Option<usize> {
        cpu_list_count(&self.text("sys/devices/system/cpu/online")?)
    }

    fn memory_bytes(&self) -> Option<u64> {
        let text = self.text("proc/meminfo")?;
        let line = text.lines().find(|line| line.starts_with("MemTotal:"))?;
        let kibibytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
        kibibytes.checked_mul(1024)
    }

    /// Whether there is a hypervisor, and which. On x86 the CPUID bit says so either way; on other
    /// architectures only its presence leaves traces, so that their absence proves nothing.
    fn virtualization(&self) -> (Option<bool>, Option<String>) {
        let flag = self
            .cpu_info("flags")
            .map(|flags| flags.split_whitespace().any(|flag| flag == "hypervisor"));
        let name = self.hypervisor_name();
        match (flag, name) {
            (Some(false), None) => (Some(false), Some("none".to_owned())),
            (None, None) => (None, None),
            (_, name) => (Some(true), name),
        }
    }

    fn hypervisor_name(&self) -> Option<String> {
        self.text_not_empty("sys/hypervisor/type")
            .or_else(|| self.hypervisor_by_firmware())
            .or_else(|| self.hypervisor_by_clock())
            .or_else(|| {
                self.text_not_empty("sys/firmware/devicetree/base/hypervisor/compatible")
                    .map(|text| text.replace('\0', ","))
            })
    }

    /// Vendor and product strings that hypervisors put into their firmware tables.
    fn hypervisor_by_firmware(&self) -> Option<String> {
        const NAMES: &[(&str, &str)] = &[
            ("KVM", "kvm"),
            ("QEMU", "qemu"),
            ("VMware", "vmware"),
            ("VirtualBox", "virtualbox"),
            ("innotek", "virtualbox"),
            ("Xen", "xen"),
            ("Bochs", "bochs"),
            ("Parallels", "parallels"),
            ("BHYVE", "bhyve"),
            ("Amazon EC2", "amazon"),
            ("Google Compute Engine", "google"),
            ("Virtual Machine", "microsoft"),
            ("Apple Virtualization", "apple"),
        ];
        ["product_name", "sys_vendor", "board_vendor", "bios_vendor"]
            .iter()
            .filter_map(|file| self.text(&format!("sys/class/dmi/id/{file}")))
            .find_map(|text| {
                // Amazon's machines without a hypervisor carry its vendor string too.
                if text.contains(".metal") {
                    return None;
                }
                NAMES
                    .iter()
                    .find(|(mark, _)| text.contains(mark))
                    .map(|(_, name)| (*name).to_owned())
            })
    }

    /// A paravirtual clock is offered only by its own hypervisor.
    fn hypervisor_by_clock(&self) -> Option<String> {
        let clocks =
            self.text("sys/devices/system/clocksource/clocksource0/available_clocksource")?;
        clocks.split_whitespace().find_map(|clock| match clock {
            "kvm-clock" => Some("kvm".to_owned()),
            "xen" => Some("xen".to_owned()),
            clock if clock.starts_with("hyperv") => Some("microsoft".to_owned()),
            _ => None,
        })
    }

    /// The preemption model and its source, from the surest source to the least.
    fn preemption(&self) -> (Option<String>, Option<String>) {
        let found = self
            .preemption_running()
            .or_else(|| self.preemption_from_version())
            .or_else(|| self.preemption_from_configuration());
        match found {
            Some((model, source)) => (Some(model), Some(source)),
            None => (None, None),
        }
    }

    /// Statement of the running kernel itself: `(none) voluntary full`, the active one in brackets.
    fn preemption_running(&self) -> Option<(String, String)> {
        if self.text("sys/kernel/realtime").as_deref() == Some("1") {
            return Some(("rt".to_owned(), "/sys/kernel/realtime".to_owned()));
        }
        let text = self.text("sys/kernel/debug/sched/preempt")?;
        let (_, rest) = text.split_once('(')?;
        let (model, _) = rest.split_once(')')?;
        Some((
            model.to_owned(),
            "/sys/kernel/debug/sched/preempt".to_owned(),
        ))
    }

    /// The build string, which is conclusive unless the model can be chosen at boot.
    fn preemption_from_version(&self) -> Option<(String, String)> {
        let version = self.text("proc/sys/kernel/version")?;
        let words: BTreeSet<&str> = version.split_whitespace().collect();
        let model = if words.contains("PREEMPT_RT") {
            "rt"
        } else if words.contains("PREEMPT_DYNAMIC") {
            return None;
        } else if words.contains("PREEMPT") {
            "full"
        } else {
            // Without the word it is none or voluntary, and the string does not say which.
            return None;
        };
        Some((model.to_owned(), "the kernel's build string".to_owned()))
    }

    /// The choice at boot (`preempt=`), else the build's default. Root can change the model of a
    /// PREEMPT_DYNAMIC kernel later through debugfs, so the source says that it is the one at boot.
    fn preemption_from_configuration(&self) -> Option<(String, String)> {
        let chosen = self.command_line().and_then(|parameters| {
            parameters
                .iter()
                .rev()
                .find_map(|parameter| parameter.strip_prefix("preempt=").map(str::to_owned))
        });
        if let Some(model) = chosen {
            let known = ["none", "voluntary", "full", "lazy"].contains(&model.as_str());
            return known.then(|| (model, "the kernel's command line, at boot".to_owned()));
        }
        let release = self.text("proc/sys/kernel/osrelease")?;
        let (path, text) = self.build_configuration(&release)?;
        let model = [
            ("CONFIG_PREEMPT_RT=y", "rt"),
            ("CONFIG_PREEMPT_NONE=y", "none"),
            ("CONFIG_PREEMPT_VOLUNTARY=y", "voluntary"),
            ("CONFIG_PREEMPT_LAZY=y", "lazy"),
            ("CONFIG_PREEMPT=y", "full"),
        ]
        .iter()
        .find(|(line, _)| text.lines().any(|found| found == *line))?
        .1;
        Some((model.to_owned(), format!("/{path}, at boot")))
    }

    /// The kernel's build configuration and where it was found.
    fn build_configuration(&self, release: &str) -> Option<(String, String)> {
        if let Ok(file) = fs::File::open(self.0.join("proc/config.gz")) {
            let mut text = String::new();
            GzDecoder::new(file)
                .take(CONFIGURATION_BYTES_MAX)
                .read_to_string(&mut text)
                .ok()?;
            return Some(("proc/config.gz".to_owned(), text));
        }
        [
            format!("boot/config-{release}"),
            format!("lib/modules/{release}/config"),
        ]
        .into_iter()
        .find_map(|path| self.text_not_empty(&path).map(|text| (path, text)))
    }

    fn command_line(&self) -> Option<Vec<String>> {
        // Words after "--" go to init, not to the kernel.
        Some(
            self.text("proc/cmdline")?
                .split_whitespace()
                .take_while(|word| *word != "--")
                .map(str::to_owned)
                .collect(),
        )
    }

    fn kernel_parameters(&self) -> Option<Vec<String>> {
        let parameters = self.command_line()?;
        Some(
            parameters
                .into_iter()
                .filter(|parameter| {
                    let name = parameter.split('=').next().unwrap_or_default();
                    TIMING_PARAMETERS.contains(&name)
                })
                .collect(),
        )
    }

    fn cpus(&self) -> Option<Vec<String>> {
        let names = self.names("sys/devices/system/cpu")?;
        let cpus: Vec<String> = names
            .into_iter()
            .filter(|name| {
                name.strip_prefix("cpu").is_some_and(|rest| {
                    !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit())
                })
            })
            .collect();
        (!cpus.is_empty()).then_some(cpus)
    }

    fn frequency_governor(&self) -> Option<String> {
        let cpus = self.cpus()?;
        let governors: BTreeSet<String> = cpus
            .iter()
            .filter_map(|cpu| {
                self.text_not_empty(&format!(
                    "sys/devices/system/cpu/{cpu}/cpufreq/scaling_governor"
                ))
            })
            .collect();
        let absent = cpus
            .iter()
            .all(|cpu| !self.exists(&format!("sys/devices/system/cpu/{cpu}/cpufreq")));
        match (governors.is_empty(), absent) {
            (false, _) => Some(governors.into_iter().collect::<Vec<_>>().join(",")),
            (true, true) => Some("none".to_owned()),
            (true, false) => None,
        }
    }

    fn idle_driver(&self) -> Option<String> {
        let directory = "sys/devices/system/cpu/cpuidle";
        let driver = self.text_not_empty(&format!("{directory}/current_driver"))?;
        let governor = self
            .text_not_empty(&format!("{directory}/current_governor"))
            .or_else(|| self.text_not_empty(&format!("{directory}/current_governor_ro")));
        Some(match governor {
            Some(governor) => format!("{driver}/{governor}"),
            None => driver,
        })
    }

    fn idle_states(&self) -> Option<Vec<IdleState>> {
        let cpus = self.cpus()?;
        let directory = format!("sys/devices/system/cpu/{}/cpuidle", cpus[0]);
        if !self.exists(&directory) {
            return Some(Vec::new());
        }
        let names = self.names(&directory)?;
        names
            .iter()
            .filter(|name| name.starts_with("state"))
            .map(|state| {
                Some(IdleState {
                    name: self.text(&format!("{directory}/{state}/name"))?,
                    exit_latency_us: self
                        .text(&format!("{directory}/{state}/latency"))?
                        .parse()
                        .ok()?,
                    disabled: self.text(&format!("{directory}/{state}/disable"))? != "0",
                })
            })
            .collect()
    }

    fn cpu_list(&self, path: &str) -> Option<String> {
        self.text(path).map(|text| {
            if text.is_empty() {
                "none".to_owned()
            } else {
                text
            }
        })
    }

    /// The kernel prints `(null)` where it was built without the feature's mask being set up, and
    /// has no such file where it was built without the feature.
    fn tickless_cpus(&self) -> Option<String> {
        let path = "sys/devices/system/cpu/nohz_full";
        if !self.exists(path) && self.exists("sys/devices/system/cpu/online") {
            return Some("none".to_owned());
        }
        self.cpu_list(path).map(|list| {
            if list == "(null)" {
                "none".to_owned()
            } else {
                list
            }
        })
    }

    fn realtime_throttling(&self) -> Option<String> {
        let runtime: i64 = self
            .text("proc/sys/kernel/sched_rt_runtime_us")?
            .parse()
            .ok()?;
        let period: i64 = self
            .text("proc/sys/kernel/sched_rt_period_us")?
            .parse()
            .ok()?;
        Some(if runtime < 0 || runtime >= period {
            "off".to_owned()
        } else {
            format!("{runtime}/{period} us")
        })
    }

    fn mitigations(&self) -> Option<Vec<String>> {
        let directory = "sys/devices/system/cpu/vulnerabilities";
        let mut list = Vec::new();
        for name in self.names(directory)? {
            let text = self.text(&format!("{directory}/{name}"))?;
            if text != "Not affected" {
                list.push(format!("{name}: {text}"));
            }
        }
        Some(list)
    }
}

/// Number of CPUs in a list such as `0-3,8`.
fn cpu_list_count(list: &str) -> Option<usize> {
    list.split(',')
        .map(|range| match range.split_once('-') {
            Some((first, last)) => {
                let first: usize = first.trim().parse().ok()?;
                let last: usize = last.trim().parse().ok()?;
                last.checked_sub(first)?.checked_add(1)
            }
            None => range.trim().parse::<usize>().ok().map(|_| 1),
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::super::{Reading, UNKNOWN};
    use super::*;

    /// A directory that a test fills with a machine of its own and that goes with it.
    struct Fixture(PathBuf);

    impl Fixture {
        fn new(name: &str, files: &[(&str, &str)]) -> Fixture {
            let root = std::env::temp_dir()
                .join(format!("tautline-machine-{}-{name}", std::process::id()));
            for (path, text) in files {
                let path = root.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            fs::create_dir_all(&root).unwrap();
            Fixture(root)
        }

        fn read(&self) -> Machine {
            Machine::read_below(&self.0)
        }
    }

    impl Drop for Fixture {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn an_empty_tree_is_unknown_throughout() {
        let machine = Fixture::new("empty", &[]).read();
        assert_eq!(machine, Machine::default());
        assert!(machine.rows().iter().all(|(_, text)| text == UNKNOWN));
        let json = serde_json::to_value(&machine).unwrap();
        assert!(json.as_object().unwrap().values().all(|v| v == UNKNOWN));
    }

    #[test]
    fn a_desktop_on_hardware() {
        let machine = Fixture::new(
            "hardware",
            &[
                ("proc/sys/kernel/osrelease", "6.12.1-amd64\n"),
                (
                    "proc/sys/kernel/version",
                    "#1 SMP PREEMPT_DYNAMIC Debian 6.12.1\n",
                ),
                ("proc/sys/kernel/arch", "x86_64\n"),
                (
                    "proc/cpuinfo",
                    "processor\t: 0\nmodel name\t: Chip 9000\nflags\t\t: fpu tsc\n",
                ),
                ("proc/meminfo", "MemTotal:       16384 kB\nMemFree: 1 kB\n"),
                (
                    "proc/cmdline",
                    "root=/dev/sda1 isolcpus=2,3 quiet preempt=full idle=poll -- preempt=none\n",
                ),
                ("proc/sys/kernel/sched_rt_runtime_us", "950000\n"),
                ("proc/sys/kernel/sched_rt_period_us", "1000000\n"),
                ("sys/class/dmi/id/sys_vendor", "Honest Computers\n"),
                ("sys/devices/system/cpu/online", "0-3,6\n"),
                ("sys/devices/system/cpu/isolated", "2-3\n"),
                ("sys/devices/system/cpu/nohz_full", "(null)\n"),
                ("sys/devices/system/cpu/smt/control", "on\n"),
                (
                    "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
                    "powersave\n",
                ),
                (
                    "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor",
                    "performance\n",
                ),
                (
                    "sys/devices/system/cpu/cpuidle/current_driver",
                    "intel_idle\n",
                ),
                ("sys/devices/system/cpu/cpuidle/current_governor", "menu\n"),
                ("sys/devices/system/cpu/cpu0/cpuidle/state0/name", "POLL\n"),
                ("sys/devices/system/cpu/cpu0/cpuidle/state0/latency", "0\n"),
                ("sys/devices/system/cpu/cpu0/cpuidle/state0/disable", "0\n"),
                ("sys/devices/system/cpu/cpu0/cpuidle/state1/name", "C6\n"),
                (
                    "sys/devices/system/cpu/cpu0/cpuidle/state1/latency",
                    "133\n",
                ),
                ("sys/devices/system/cpu/cpu0/cpuidle/state1/disable", "1\n"),
                (
                    "sys/devices/system/cpu/vulnerabilities/l1tf",
                    "Not affected\n",
                ),
                (
                    "sys/devices/system/cpu/vulnerabilities/mds",
                    "Mitigation: Clear CPU buffers\n",
                ),
                (
                    "sys/devices/system/clocksource/clocksource0/current_clocksource",
                    "tsc\n",
                ),
                (
                    "sys/devices/system/clocksource/clocksource0/available_clocksource",
                    "tsc hpet acpi_pm\n",
                ),
            ],
        )
        .read();
        assert_eq!(machine.cpu_count, Reading(Some(5)));
        assert_eq!(machine.cpu_model, Reading(Some("Chip 9000".to_owned())));
        assert_eq!(machine.memory_bytes, Reading(Some(16384 * 1024)));
        assert_eq!(machine.is_virtual, Reading(Some(false)));
        assert_eq!(machine.hypervisor, Reading(Some("none".to_owned())));
        assert_eq!(machine.preemption, Reading(Some("full".to_owned())));
        assert_eq!(
            machine.kernel_parameters.known().unwrap(),
            &["isolcpus=2,3", "preempt=full", "idle=poll"]
        );
        assert_eq!(
            machine.frequency_governor,
            Reading(Some("performance,powersave".to_owned()))
        );
        assert_eq!(
            machine.idle_driver,
            Reading(Some("intel_idle/menu".to_owned()))
        );
        let states = machine.idle_states.known().unwrap();
        assert_eq!(states.len(), 2);
        assert_eq!((states[1].exit_latency_us, states[1].disabled), (133, true));
        assert_eq!(machine.isolated_cpus, Reading(Some("2-3".to_owned())));
        assert_eq!(machine.tickless_cpus, Reading(Some("none".to_owned())));
        assert_eq!(
            machine.realtime_throttling,
            Reading(Some("950000/1000000 us".to_owned()))
        );
        assert_eq!(
            machine.mitigations.known().unwrap(),
            &["mds: Mitigation: Clear CPU buffers"]
        );
    }

    #[test]
    fn a_hypervisor_without_a_name_is_virtual_and_nameless() {
        let machine =
            Fixture::new("nameless", &[("proc/cpuinfo", "flags : fpu hypervisor\n")]).read();
        assert_eq!(machine.is_virtual, Reading(Some(true)));
        assert_eq!(machine.hypervisor, Reading(None));
    }

    #[test]
    fn hypervisors_are_named_by_firmware_clock_or_device_tree() {
        let by_firmware = Fixture::new(
            "firmware",
            &[
                ("proc/cpuinfo", "flags : hypervisor\n"),
                ("sys/class/dmi/id/product_name", "Standard PC (Q35)\n"),
                ("sys/class/dmi/id/sys_vendor", "QEMU\n"),
            ],
        );
        assert_eq!(
            by_firmware.read().hypervisor,
            Reading(Some("qemu".to_owned()))
        );
        let by_clock = Fixture::new(
            "clock",
            &[(
                "sys/devices/system/clocksource/clocksource0/available_clocksource",
                "kvm-clock tsc\n",
            )],
        );
        assert_eq!(by_clock.read().hypervisor, Reading(Some("kvm".to_owned())));
        let by_tree = Fixture::new(
            "tree",
            &[(
                "sys/firmware/devicetree/base/hypervisor/compatible",
                "xen,xen-4.19\0xen,xen\0",
            )],
        );
        assert_eq!(
            by_tree.read().hypervisor,
            Reading(Some("xen,xen-4.19,xen,xen".to_owned()))
        );
    }

    #[test]
    fn an_arm_board_without_evidence_is_not_called_hardware() {
        let machine = Fixture::new(
            "arm",
            &[
                ("proc/cpuinfo", "processor : 0\nFeatures : fp asimd\n"),
                ("sys/firmware/devicetree/base/model", "Some Board 5\0"),
            ],
        )
        .read();
        assert_eq!(machine.is_virtual, Reading(None));
        assert_eq!(machine.cpu_model, Reading(Some("Some Board 5".to_owned())));
    }

    #[test]
    fn a_bare_metal_cloud_server_is_hardware() {
        let machine = Fixture::new(
            "metal",
            &[
                ("proc/cpuinfo", "flags : fpu\n"),
                ("sys/class/dmi/id/product_name", "c5.metal\n"),
                ("sys/class/dmi/id/sys_vendor", "Honest Computers\n"),
            ],
        )
        .read();
        assert_eq!(machine.is_virtual, Reading(Some(false)));
    }

    #[test]
    fn preemption_comes_from_the_surest_source() {
        let version = ("proc/sys/kernel/version", "#1 SMP PREEMPT_DYNAMIC\n");
        type Case<'a> = (&'a str, &'a [(&'a str, &'a str)], Option<&'a str>);
        let cases: &[Case<'_>] = &[
            (
                "debug",
                &[
                    version,
                    (
                        "sys/kernel/debug/sched/preempt",
                        "none voluntary full (lazy) \n",
                    ),
                    ("proc/cmdline", "preempt=none"),
                ],
                Some("lazy"),
            ),
            (
                "rt-file",
                &[version, ("sys/kernel/realtime", "1\n")],
                Some("rt"),
            ),
            (
                "rt-version",
                &[("proc/sys/kernel/version", "#1 SMP PREEMPT_RT Debian\n")],
                Some("rt"),
            ),
            (
                "full-version",
                &[("proc/sys/kernel/version", "#1 SMP PREEMPT Debian\n")],
                Some("full"),
            ),
            (
                "plain-version",
                &[("proc/sys/kernel/version", "#1 SMP Debian\n")],
                None,
            ),
            (
                "dynamic-unknown",
                &[version, ("proc/cmdline", "quiet")],
                None,
            ),
            (
                "dynamic-nonsense",
                &[version, ("proc/cmdline", "preempt=perhaps")],
                None,
            ),
            (
                "dynamic-config",
                &[
                    version,
                    ("proc/cmdline", "quiet"),
                    ("proc/sys/kernel/osrelease", "6.1\n"),
                    (
                        "boot/config-6.1",
                        "CONFIG_PREEMPT_VOLUNTARY=y\nCONFIG_PREEMPT_DYNAMIC=y\n",
                    ),
                ],
                Some("voluntary"),
            ),
        ];
        for (name, files, expected) in cases {
            let machine = Fixture::new(name, files).read();
            assert_eq!(
                machine.preemption.known().map(String::as_str),
                *expected,
                "{name}"
            );
            assert_eq!(
                machine.preemption_source.known().is_some(),
                expected.is_some(),
                "{name}"
            );
        }
    }

    #[test]
    fn throttling_off_and_malformed() {
        let with = |runtime: &str| {
            Fixture::new(
                "throttling",
                &[
                    ("proc/sys/kernel/sched_rt_runtime_us", runtime),
                    ("proc/sys/kernel/sched_rt_period_us", "1000000\n"),
                ],
            )
            .read()
            .realtime_throttling
        };
        assert_eq!(with("-1\n"), Reading(Some("off".to_owned())));
        assert_eq!(with("1000000\n"), Reading(Some("off".to_owned())));
        assert_eq!(with("rubbish\n"), Reading(None));
    }

    #[test]
    fn malformed_lists_are_unknown() {
        for list in ["", "a", "3-1", "0-", "1,,2"] {
            assert_eq!(cpu_list_count(list), None, "{list:?}");
        }
        assert_eq!(cpu_list_count("0"), Some(1));
        assert_eq!(cpu_list_count("0-127,130"), Some(129));
    }
}
