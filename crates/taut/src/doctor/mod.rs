//! Abilities of this machine for Tautline, line by line, each with its remedy.
//!
//! Nothing is changed: programs and maps that the probes load are gone before the next line.

mod interfaces;

use std::fs;

use console::Style;
use rustix::process::{Resource, getrlimit};
use rustix::thread::{CapabilitySet, capabilities};
use serde::Serialize;
use tautline::OpenError;
use tautline::kernel::{FEATURES, Feature};
use tautline::link::XdpMode;
use tautline::link::xdp::{Verified, try_demux};
use tautline_guest::{Architecture, kvm};
use tautline_machine::Machine;
use tautline_machine::UNKNOWN;
use tautline_machine::other_work::OtherWork;
use tautline_report::table;
use tautline_state::privilege::may_load_bpf;
use tautline_state::text::plain_lines;
use tautline_state::{hosts, interface};

use crate::leftovers;

/// Memory that a node with a few ports of default depth locks (2 MiB a port) with room to spare.
const MEMLOCK_BYTES_WANTED: u64 = 64 << 20;

/// How good a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Grade {
    /// All that Tautline can use.
    Good,
    /// Works with less, or cannot be told.
    Limited,
    /// Not there.
    Missing,
}

impl Grade {
    fn word(self) -> &'static str {
        match self {
            Grade::Good => "good",
            Grade::Limited => "limited",
            Grade::Missing => "missing",
        }
    }
}

/// The lines with their grades, which stand first, in colour: where the output is a terminal that has some and
/// `NO_COLOR` is not set.
fn coloured(lines: &str) -> String {
    let coloured = |line: &str| {
        let word = line.split_whitespace().next().unwrap_or("");
        let style = match word {
            "good" => Style::new().green(),
            "limited" => Style::new().yellow(),
            "missing" => Style::new().red().bold(),
            _ => return format!("{line}\n"),
        };
        match line.strip_prefix(&format!(" {word}")) {
            Some(rest) => format!(" {}{rest}\n", style.apply_to(word)),
            // A line that goes on below another.
            None => format!("{line}\n"),
        }
    };
    plain_lines(lines).lines().map(coloured).collect()
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Line {
    /// Group that it is shown in.
    pub area: &'static str,
    /// Subject that was examined.
    pub name: String,
    /// How good it is.
    pub grade: Grade,
    /// Result.
    pub found: String,
    /// Remedy; nothing if it is good, or if nothing would make it better.
    pub remedy: Option<String>,
}

impl Line {
    fn good(area: &'static str, name: &str, found: impl Into<String>) -> Line {
        Line {
            area,
            name: name.to_owned(),
            grade: Grade::Good,
            found: found.into(),
            remedy: None,
        }
    }

    fn limited(
        area: &'static str,
        name: &str,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Line {
        Line {
            grade: Grade::Limited,
            remedy: Some(remedy.into()),
            ..Line::good(area, name, found)
        }
    }

    fn missing(
        area: &'static str,
        name: &str,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Line {
        Line {
            grade: Grade::Missing,
            ..Line::limited(area, name, found, remedy)
        }
    }
}

/// Which links can be opened here, as far as can be told without an interface being named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Links {
    /// BPF demux and packet socket.
    pub xdp: bool,
    /// Packet sockets both ways.
    pub packet: bool,
    /// Ordinary UDP sockets.
    pub udp: bool,
}

/// All that was found.
#[derive(Clone, Debug, Serialize)]
pub struct Examination {
    /// The machine's fingerprint.
    pub machine: Machine,
    /// Links that can be opened.
    pub links: Links,
    /// The lines, grouped by area.
    pub lines: Vec<Line>,
}

impl Examination {
    /// Examines the machine, kernel and privileges of this process.
    pub fn of_this_machine() -> Examination {
        let machine = Machine::read();
        let demux = XdpMode::ALL.map(|mode| (mode, try_demux(mode)));
        let links = links(&demux);
        let mut lines = Vec::new();
        lines.extend(link_lines(links));
        lines.extend(kernel_lines(&machine, &demux));
        lines.extend(privilege_lines());
        lines.extend(interfaces::lines());
        lines.extend(timing_lines(&machine));
        lines.extend(tool_lines());
        lines.push(leftovers_line());
        Examination {
            machine,
            links,
            lines,
        }
    }

    /// Whether Tautline works here in any form.
    pub fn is_usable(&self) -> bool {
        self.links.xdp || self.links.packet || self.links.udp
    }

    /// The lines for a terminal.
    pub fn text(&self) -> String {
        let mut text = format!("{}\n", self.machine.summary());
        for lines in self.lines.chunk_by(|one, next| one.area == next.area) {
            text += &format!("\n{}\n", lines[0].area);
            text += &coloured(&table::words(lines.iter().map(|line| {
                let result = match &line.remedy {
                    Some(remedy) => format!("{}\n-> {remedy}", line.found),
                    None => line.found.clone(),
                };
                vec![line.grade.word().to_owned(), line.name.clone(), result]
            })));
        }
        let count = |grade| self.lines.iter().filter(|line| line.grade == grade).count();
        text += &format!(
            "\n{} good, {} limited, {} missing. {}\n",
            count(Grade::Good),
            count(Grade::Limited),
            count(Grade::Missing),
            self.conclusion()
        );
        text
    }

    fn conclusion(&self) -> &'static str {
        match self.links {
            Links { xdp: true, .. } => "Best link here: xdp.",
            Links { packet: true, .. } => "Best link here: packet.",
            Links { udp: true, .. } => {
                "Best link here: udp, ordinary sockets without real-time delivery."
            }
            _ => "No link can be opened here: Tautline cannot be used.",
        }
    }
}

fn holds(capability: CapabilitySet) -> bool {
    capabilities(None).is_ok_and(|held| held.effective.contains(capability))
}

fn links(demux: &[(XdpMode, TriedDemux)]) -> Links {
    let raw = holds(CapabilitySet::NET_RAW);
    let packet = raw && has_protocol("PACKET").unwrap_or(false);
    let loads = demux.iter().any(|(_, tried)| tried.is_ok());
    Links {
        xdp: packet && loads && holds(CapabilitySet::NET_ADMIN),
        packet,
        udp: std::net::UdpSocket::bind(("127.0.0.1", 0)).is_ok(),
    }
}

fn link_lines(links: Links) -> Vec<Line> {
    const AREA: &str = "Links";
    let line = |name, works, found: &str, remedy: &str| {
        if works {
            Line::good(AREA, name, found)
        } else {
            Line::missing(AREA, name, "cannot be opened by this process", remedy)
        }
    };
    vec![
        line(
            "xdp",
            links.xdp,
            "direct delivery by the BPF demux",
            "see the lines on kernel and privileges below; run as root or give the capabilities named there",
        ),
        line(
            "packet",
            links.packet,
            "packet sockets",
            "run as root, or give CAP_NET_RAW",
        ),
        line(
            "udp",
            links.udp,
            "ordinary sockets, reduced form",
            "sockets are forbidden or loopback is down: `ip link set lo up`",
        ),
    ]
}

/// The demux as the kernel took it, or why not.
type TriedDemux = Result<Verified, OpenError>;

fn demux_line(area: &'static str, mode: XdpMode, tried: &TriedDemux) -> Line {
    let name = format!("demux, {}", mode.name());
    match tried {
        Ok(Verified { instructions, took }) => {
            let verified = match instructions {
                Some(count) => format!("{count} instructions verified"),
                None => "verified".to_owned(),
            };
            let ms = took.as_secs_f64() * 1e3;
            Line::good(
                area,
                &name,
                format!("loads: {verified}, {ms:.0} ms (tried)"),
            )
        }
        Err(error @ (OpenError::NotPermitted { .. } | OpenError::BpfForbidden)) => Line::limited(
            area,
            &name,
            format!("could not be tried: {error}"),
            error.remedy(),
        ),
        Err(error) => Line::missing(area, &name, error.to_string(), error.remedy()),
    }
}

/// A part of the kernel, tried. What link `xdp` needs is missing; the rest has a replacement.
fn feature_line(area: &'static str, feature: &Feature) -> Line {
    let name = feature.name.replace('`', "");
    match feature.is_there() {
        Ok(true) => Line::good(area, &name, "there (tried)"),
        Ok(false) => Line {
            grade: match feature.is_needed_by_xdp() {
                true => Grade::Missing,
                false => Grade::Limited,
            },
            ..Line::limited(
                area,
                &name,
                format!(
                    "not in this kernel (Linux {} has it); for {}",
                    feature.since, feature.used_by
                ),
                format!("in its place: {}", feature.instead),
            )
        },
        Err(error) => Line::limited(
            area,
            &name,
            format!("could not be tried: {error}"),
            match may_load_bpf() {
                true => {
                    "allow its system calls in the container's or service's seccomp filter to know"
                }
                false => "run `taut doctor` as root to know",
            },
        ),
    }
}

/// Changes and files of processes that were killed.
fn leftovers_line() -> Line {
    const AREA: &str = "Left behind";
    const NAME: &str = "killed processes";
    match leftovers::found() {
        found if found.is_empty() => Line::good(AREA, NAME, "nothing is left of any"),
        found => Line::limited(AREA, NAME, found.join("; "), "taut doctor --put-back"),
    }
}

fn kernel_lines(machine: &Machine, demux: &[(XdpMode, TriedDemux)]) -> Vec<Line> {
    const AREA: &str = "Kernel";
    let mut lines = vec![match machine.kernel_release.known() {
        Some(release) => Line::good(AREA, "release", release.clone()),
        None => Line::limited(AREA, "release", UNKNOWN, "mount /proc"),
    }];
    let tried = demux.iter();
    lines.extend(tried.map(|(mode, tried)| demux_line(AREA, *mode, tried)));
    lines.extend(FEATURES.iter().map(|feature| feature_line(AREA, feature)));
    lines.push(protocol_line(
        AREA,
        "packet sockets",
        "PACKET",
        "load them with `modprobe af_packet` (CONFIG_PACKET)",
    ));
    lines.push(match fs::metadata("/dev/net/tun") {
        Ok(_) => Line::good(
            AREA,
            "/dev/net/tun",
            "there; clients of a control process send through it",
        ),
        Err(_) => Line::limited(
            AREA,
            "/dev/net/tun",
            "not there; a control process cannot serve clients",
            "modprobe tun, or give that device to the container",
        ),
    });
    lines.push(match text("/proc/sys/net/core/bpf_jit_enable").as_deref() {
        Some("0") => Line::limited(
            AREA,
            "BPF compiler",
            "off: programs are interpreted",
            "sysctl net.core.bpf_jit_enable=1",
        ),
        Some(_) => Line::good(AREA, "BPF compiler", "on"),
        None => Line::limited(AREA, "BPF compiler", UNKNOWN, "readable by root only"),
    });
    lines.push(
        match text("/proc/sys/kernel/unprivileged_bpf_disabled").as_deref() {
            Some("0") => Line::good(
                AREA,
                "unprivileged bpf()",
                "allowed; Tautline does not need it",
            ),
            Some(value) => Line::good(
                AREA,
                "unprivileged bpf()",
                format!(
                    "forbidden ({value}), as distributions set it; loading the demux needs CAP_BPF"
                ),
            ),
            None => Line::limited(AREA, "unprivileged bpf()", UNKNOWN, "mount /proc"),
        },
    );
    lines.push(match mounted("bpf") {
        Some(place) => Line::good(AREA, "bpffs", format!("mounted on {place}")),
        None => Line::limited(
            AREA,
            "bpffs",
            "not mounted; only pinning needs it",
            "mount -t bpf bpf /sys/fs/bpf",
        ),
    });
    lines.push(kvm_line(AREA));
    lines
}

/// KVM, opened. Guests for aarch64 run without it, too.
fn kvm_line(area: &'static str) -> Line {
    const NAME: &str = "/dev/kvm";
    let processor = Architecture::host().map_or("other processors", Architecture::name);
    match kvm::access::open() {
        Ok(_) if kvm::access::is_native() => {
            Line::good(area, NAME, format!("runs guests for {processor}"))
        }
        Ok(_) => Line::limited(
            area,
            NAME,
            format!("runs guests for {processor}, whose processor the kernel emulates"),
            "no VT-x or AMD-V: turn it on in the firmware's settings, or nested virtualisation at the host",
        ),
        Err(error) => Line::limited(
            area,
            NAME,
            format!("{error}; for guests for {processor}"),
            error.remedy(),
        ),
    }
}

/// Whether the kernel has registered a socket family, by the name in `/proc/net/protocols`.
fn has_protocol(name: &str) -> Option<bool> {
    let table = text("/proc/net/protocols")?;
    Some(
        table
            .lines()
            .any(|line| line.split_whitespace().next() == Some(name)),
    )
}

fn protocol_line(area: &'static str, name: &str, protocol: &str, remedy: &str) -> Line {
    match has_protocol(protocol) {
        Some(true) => Line::good(area, name, "registered"),
        // A family built as a module appears only once it is loaded.
        Some(false) => Line::limited(area, name, "not registered now", remedy),
        None => Line::limited(area, name, UNKNOWN, "mount /proc"),
    }
}

fn mounted(kind: &str) -> Option<String> {
    text("/proc/self/mounts")?.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let place = words.nth(1)?;
        (words.next()? == kind).then(|| place.to_owned())
    })
}

/// Capabilities that links, locking and scheduling ask for: what the lack of each is, and its purpose.
const WANTED: [(CapabilitySet, &str, Grade, &str); 6] = [
    (
        CapabilitySet::NET_ADMIN,
        "CAP_NET_ADMIN",
        Grade::Missing,
        "attaching the demux to an interface",
    ),
    (
        CapabilitySet::NET_RAW,
        "CAP_NET_RAW",
        Grade::Missing,
        "packet sockets, on which xdp sends too",
    ),
    (
        CapabilitySet::IPC_LOCK,
        "CAP_IPC_LOCK",
        Grade::Limited,
        "locking memory beyond the limit",
    ),
    (
        CapabilitySet::SYS_ADMIN,
        "CAP_SYS_ADMIN",
        Grade::Limited,
        "making the demo's and benchmarks' own hosts",
    ),
    (
        CapabilitySet::SYS_NICE,
        "CAP_SYS_NICE",
        Grade::Limited,
        "real-time scheduling",
    ),
    (
        CapabilitySet::BPF,
        "CAP_BPF",
        Grade::Missing,
        "loading the demux",
    ),
];

fn privilege_lines() -> Vec<Line> {
    const AREA: &str = "Privileges";
    let mut lines: Vec<Line> = WANTED
        .iter()
        .map(|(capability, name, without, purpose)| match holds(*capability) {
            true => Line::good(AREA, name, *purpose),
            false => Line {
                grade: *without,
                ..Line::limited(
                    AREA,
                    name,
                    format!("not held; for {purpose}"),
                    match without {
                        Grade::Missing => "run as root, give it with setcap or AmbientCapabilities=, or go through a control process (taut node run)",
                        _ => "run as root, or give it with setcap or AmbientCapabilities=",
                    },
                )
            },
        })
        .collect();
    lines.extend(control_lines(AREA));
    lines.push(memlock_line(AREA));
    lines.push(priority_line(AREA));
    lines.push(if hosts::may_create() {
        Line::good(AREA, "network namespaces", "may be made")
    } else {
        Line::limited(
            AREA,
            "network namespaces",
            "may not be made: the demo runs over loopback",
            "run as root",
        )
    });
    lines
}

/// The control processes of this network namespace's interfaces, through which a process needs no privilege.
fn control_lines(area: &'static str) -> Vec<Line> {
    let interfaces = interface::names().unwrap_or_default().into_iter();
    let found = interfaces.filter_map(|name| {
        let found = tautline::control::look(&name)?;
        let process = format!("process {} serves `{name}`", found.pid);
        Some(match found.refused {
            None => Line::good(
                area,
                "control process",
                format!("{process}, and takes this user"),
            ),
            Some(why) => Line::limited(
                area,
                "control process",
                format!("{process}, and not this user: {why}"),
                "have an [[allow]] entry added to its configuration",
            ),
        })
    });
    found.collect()
}

fn memlock_line(area: &'static str) -> Line {
    let unlimited = holds(CapabilitySet::IPC_LOCK);
    match getrlimit(Resource::Memlock).current {
        None => Line::good(area, "locked memory", "unlimited"),
        Some(bytes) if unlimited => Line::good(
            area,
            "locked memory",
            format!("limit {} KiB, which CAP_IPC_LOCK passes over", bytes / 1024),
        ),
        Some(bytes) if bytes >= MEMLOCK_BYTES_WANTED => {
            Line::good(area, "locked memory", format!("limit {} MiB", bytes >> 20))
        }
        Some(bytes) => Line::limited(
            area,
            "locked memory",
            format!("limit {} KiB", bytes / 1024),
            "raise it: `ulimit -l unlimited`, /etc/security/limits.conf, or LimitMEMLOCK= in a unit",
        ),
    }
}

fn priority_line(area: &'static str) -> Line {
    /// The highest of SCHED_FIFO.
    const HIGHEST: u64 = 99;
    match getrlimit(Resource::Rtprio).current {
        _ if holds(CapabilitySet::SYS_NICE) => {
            Line::good(area, "real-time priority", "any, by CAP_SYS_NICE")
        }
        Some(0) => Line::limited(
            area,
            "real-time priority",
            "none allowed",
            "raise it: `ulimit -r 98`, rtprio in /etc/security/limits.conf, or LimitRTPRIO= in a unit",
        ),
        limit => Line::good(
            area,
            "real-time priority",
            format!("up to {}", limit.unwrap_or(HIGHEST).min(HIGHEST)),
        ),
    }
}

fn timing_lines(machine: &Machine) -> Vec<Line> {
    const AREA: &str = "Timing";
    let reading = |name: &str,
                   value: &tautline_machine::Reading<String>,
                   good: &dyn Fn(&str) -> bool,
                   remedy: &str| match value.known() {
        Some(found) if good(found) => Line::good(AREA, name, found.clone()),
        Some(found) => Line::limited(AREA, name, found.clone(), remedy),
        None => Line::limited(AREA, name, UNKNOWN, remedy),
    };
    let mut lines = vec![
        reading(
            "preemption",
            &machine.preemption,
            &|found| ["full", "rt"].contains(&found),
            "boot with preempt=full, or use a PREEMPT_RT kernel; as root with debugfs mounted the model can be read",
        ),
        reading(
            "isolated CPUs",
            &machine.isolated_cpus,
            &|found| found != "none",
            "boot with isolcpus= (and nohz_full=, rcu_nocbs=) for the CPUs of real-time threads, and name them (--cpu, taskset): no program has one otherwise",
        ),
        reading(
            "real-time throttling",
            &machine.realtime_throttling,
            &|found| found == "off",
            "sysctl kernel.sched_rt_runtime_us=-1, if no real-time thread may spin indefinitely",
        ),
        reading(
            "frequency governor",
            &machine.frequency_governor,
            &|found| ["performance", "none"].contains(&found),
            "cpupower frequency-set --governor performance",
        ),
        reading(
            "clock source",
            &machine.clock_source,
            &|found| ["tsc", "arch_sys_counter", "kvm-clock"].contains(&found),
            "a slow clock costs microseconds a reading: see why in `dmesg | grep -i clocksource`",
        ),
        reading(
            "SMT",
            &machine.smt,
            &|found| found != "on",
            "siblings disturb each other: echo off > /sys/devices/system/cpu/smt/control",
        ),
    ];
    lines.push(idle_line(AREA, machine));
    lines.push(
        match fs::OpenOptions::new()
            .write(true)
            .open("/dev/cpu_dma_latency")
        {
            // Opening sets nothing yet, and closing withdraws it.
            Ok(_) => Line::good(
                AREA,
                "/dev/cpu_dma_latency",
                "may be set: deep idle can be held off while a node runs",
            ),
            Err(error) => Line::limited(
                AREA,
                "/dev/cpu_dma_latency",
                format!("may not be set: {error}"),
                "run as root, or give your user write access to it",
            ),
        },
    );
    lines.push(match OtherWork::measure().warning() {
        None => Line::good(AREA, "other work", "little: the machine is quiet"),
        Some(warning) => Line::limited(
            AREA,
            "other work",
            warning,
            "measure when nothing else runs; `top` shows who does",
        ),
    });
    lines.push(match machine.is_virtual.known() {
        Some(false) => Line::good(AREA, "hardware", "not a virtual machine"),
        Some(true) => Line::limited(
            AREA,
            "hardware",
            format!("virtual machine, hypervisor {}", machine.hypervisor),
            "its host can stop it for milliseconds: use it to try, and hardware to rely on",
        ),
        None => Line::limited(
            AREA,
            "hardware",
            "virtual or not: unknown",
            "if it is a virtual machine, its host can stop it for milliseconds",
        ),
    });
    lines
}

fn idle_line(area: &'static str, machine: &Machine) -> Line {
    /// Leaving a deeper state takes a good part of a 1 ms period's slack.
    const EXIT_LATENCY_US_MAX: u64 = 20;
    let Some(states) = machine.idle_states.known() else {
        return Line::limited(area, "idle states", UNKNOWN, "mount /sys");
    };
    let deepest = states
        .iter()
        .filter(|state| !state.disabled)
        .max_by_key(|state| state.exit_latency_us);
    match deepest {
        None => Line::good(area, "idle states", "none that the kernel steers"),
        Some(state) if state.exit_latency_us <= EXIT_LATENCY_US_MAX => Line::good(
            area,
            "idle states",
            format!(
                "deepest {}, left within {} us",
                state.name, state.exit_latency_us
            ),
        ),
        Some(state) => Line::limited(
            area,
            "idle states",
            format!(
                "deepest {}, left within {} us",
                state.name, state.exit_latency_us
            ),
            "hold them off through /dev/cpu_dma_latency, or boot with processor.max_cstate=1",
        ),
    }
}

fn tool_lines() -> Vec<Line> {
    const AREA: &str = "Tools";
    [
        ("ip", "iproute2", "making hosts (demo, bench, tests)"),
        (
            "iperf3",
            "iperf3",
            "the demo's load; without it a built-in one",
        ),
        (
            "ethtool",
            "ethtool",
            "offload settings of the demo's and benchmarks' cables",
        ),
    ]
    .into_iter()
    .map(|(tool, package, purpose)| match find(tool) {
        Some(place) => Line::good(AREA, tool, place),
        None => Line::limited(
            AREA,
            tool,
            format!("not installed; for {purpose}"),
            format!("apt-get install {package}"),
        ),
    })
    .collect()
}

/// Where a program would be run from. Root's directories are looked at too: `ip` is in one of them
/// on some systems and not in every user's PATH.
fn find(tool: &str) -> Option<String> {
    let path = std::env::var("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .map(|directory| directory.join(tool))
        .find(|file| file.is_file())
        .map(|file| file.display().to_string())
}

fn text(path: &str) -> Option<String> {
    fs::read_to_string(path)
        .ok()
        .map(|text| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_that_is_not_good_has_a_remedy() {
        let examination = Examination::of_this_machine();
        for line in &examination.lines {
            assert_eq!(line.remedy.is_none(), line.grade == Grade::Good, "{line:?}");
            assert!(!line.found.is_empty(), "{line:?}");
        }
        let text = examination.text();
        assert!(
            examination
                .lines
                .iter()
                .all(|line| text.contains(&line.found))
        );
    }

    #[test]
    fn areas_are_not_torn_apart() {
        let mut areas: Vec<&str> = Examination::of_this_machine()
            .lines
            .iter()
            .map(|line| line.area)
            .collect();
        areas.dedup();
        assert_eq!(
            areas,
            [
                "Links",
                "Kernel",
                "Privileges",
                "Interfaces",
                "Timing",
                "Tools",
                "Left behind"
            ]
        );
    }

    #[test]
    fn a_refused_demux_is_missing_with_its_remedy() {
        let refused = OpenError::KernelLacks {
            link: "xdp",
            lacks: "`bpf_xdp_load_bytes`",
            since: "5.18",
        };
        let line = demux_line("x", XdpMode::Native, &Err(refused));
        assert_eq!(line.grade, Grade::Missing);
        assert!(line.found.contains("needs Linux 5.18 or later"), "{line:?}");
        assert!(line.remedy.unwrap().contains("packet"));
    }

    #[test]
    fn every_part_of_the_kernel_has_a_line() {
        let lines = Examination::of_this_machine().lines;
        for feature in FEATURES {
            let name = feature.name.replace('`', "");
            assert!(lines.iter().any(|line| line.name == name), "{name}");
        }
    }

    #[test]
    fn without_any_link_it_is_not_usable() {
        let mut examination = Examination::of_this_machine();
        examination.links = Links {
            xdp: false,
            packet: false,
            udp: false,
        };
        assert!(!examination.is_usable());
        assert!(examination.text().contains("cannot be used"));
    }
}
