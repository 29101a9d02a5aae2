//! The tuned state: settings that most often stand between a machine and its deadline, each set through the
//! [`Journal`], so that it is listed and put back. What cannot be set is listed too.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use crate::measured::Missing;
use tautline_state::journal::Journal;
use tautline_state::setting::parse_cpu_list;

const DMA_LATENCY: &str = "/dev/cpu_dma_latency";
const THROTTLING: &str = "/proc/sys/kernel/sched_rt_runtime_us";

/// Settings in force. Dropped, what is held by a descriptor ends; the rest is the journal's to put back.
#[derive(Debug)]
pub struct Tuned {
    /// The request for no exit latency holds while this is open (Documentation/power/pm_qos_interface.rst).
    _no_idle_latency: Option<File>,
}

/// Tunes for probes on `cpus`.
pub fn apply(cpus: &[u32], journal: &mut Journal, missing: &mut Vec<Missing>) -> Tuned {
    let idle = hold_off_idle_states_noted(journal);
    let no_idle_latency = match idle {
        Ok(file) => Some(file),
        Err(error) => {
            missing.push(lacking(
                "idle states held off",
                &error,
                "run as root on a kernel with CONFIG_CPU_IDLE",
            ));
            None
        }
    };
    if let Err(error) = journal.set(Path::new(THROTTLING), "-1") {
        missing.push(lacking("real-time throttling off", &error, "run as root"));
    }
    for cpu in cpus {
        let path = PathBuf::from(format!(
            "/sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor"
        ));
        if !path.exists() {
            continue; // the frequency is fixed, or somebody else's (a hypervisor's) business
        }
        if let Err(error) = journal.set(&path, "performance") {
            missing.push(lacking(
                &format!("performance governor on CPU {cpu}"),
                &error,
                "run as root",
            ));
        }
    }
    move_interrupts_away(cpus, journal);
    Tuned {
        _no_idle_latency: no_idle_latency,
    }
}

fn lacking(what: &str, error: &std::io::Error, remedy: &str) -> Missing {
    Missing {
        what: what.to_owned(),
        reason: error.to_string(),
        remedy: remedy.to_owned(),
        weakens_verdict: false,
    }
}

fn hold_off_idle_states_noted(journal: &mut Journal) -> std::io::Result<File> {
    let before = match File::open(DMA_LATENCY).and_then(|mut file| {
        let mut bytes = [0; 4];
        file.read_exact(&mut bytes).map(|()| bytes)
    }) {
        Ok(bytes) => format!("{} µs", i32::from_ne_bytes(bytes)),
        Err(_) => "unknown".to_owned(),
    };
    let file = hold_off_idle_states()?;
    journal.note(DMA_LATENCY, &before, "0 µs");
    Ok(file)
}

/// Asks the kernel for idle states without exit latency, for as long as the file is open.
pub fn hold_off_idle_states() -> std::io::Result<File> {
    let mut file = OpenOptions::new().write(true).open(DMA_LATENCY)?;
    file.write_all(&0i32.to_ne_bytes())?;
    Ok(file)
}

/// Interrupts that may be moved go to the CPUs without a probe, where there are any. Many refuse; that is no fault.
fn move_interrupts_away(cpus: &[u32], journal: &mut Journal) {
    let Ok(online) = fs::read_to_string("/sys/devices/system/cpu/online") else {
        return;
    };
    let others: Vec<String> = parse_cpu_list(&online)
        .into_iter()
        .filter(|cpu| !cpus.contains(cpu))
        .map(|cpu| cpu.to_string())
        .collect();
    if others.is_empty() {
        return;
    }
    let others = others.join(",");
    for entry in fs::read_dir("/proc/irq").into_iter().flatten().flatten() {
        let path = entry.path().join("smp_affinity_list");
        if path.exists() {
            let _ = journal.set(&path, &others); // per-CPU and managed interrupts answer EIO or EPERM
        }
    }
}
