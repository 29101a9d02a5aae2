//! The tuned state: settings that most often stand between a machine and its deadline, as a partition has them, each
//! set through the [`Journal`], so that it is listed and put back. Those that cannot be set are listed too.

use std::fs::{File, OpenOptions};
use std::io::Write;

use crate::measured::Missing;
use tautline_state::cpus::CpuList;
use tautline_state::journal::Journal;
use tautline_tasks::partition::placement::{Area, Placement, online};

/// Tunes for probes on `cpus`.
pub fn apply(cpus: &[u32], journal: &mut Journal, missing: &mut Vec<Missing>) {
    let cpus: CpuList = cpus.iter().copied().collect();
    let others = online().without(&cpus);
    let placement = Placement::new(&cpus, &others);
    for (area, what) in [
        (Area::IdleStates, "idle states held off"),
        (Area::Throttling, "real-time throttling off"),
        (Area::Frequency, "performance governor"),
    ] {
        let refused = placement.apply(&[area], journal);
        missing.extend(refused.into_iter().map(|one| Missing {
            what: what.to_owned(),
            reason: format!("{}: {}", one.what, one.reason),
            remedy: "run as root".to_owned(),
            weakens_verdict: false,
        }));
    }
    if !others.is_empty() {
        // Many refuse; that is no fault.
        placement.apply(&[Area::Interrupts], journal);
    }
}

/// Asks the kernel for idle states without exit latency on all CPUs, for as long as the file is open
/// (Documentation/power/pm_qos_interface.rst).
pub fn hold_off_idle_states() -> std::io::Result<File> {
    let mut file = OpenOptions::new()
        .write(true)
        .open("/dev/cpu_dma_latency")?;
    file.write_all(&0i32.to_ne_bytes())?;
    Ok(file)
}
