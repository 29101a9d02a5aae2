//! Processes that hold a demux on its interface, as far as `/proc` shows them: others' with privilege only.

use std::os::fd::AsFd;
use std::path::Path;

use crate::claim::Holder;
use crate::sys::bpf;
use crate::sys::pin::PASSING_NAME;

/// Processes that are named in an error. Lower: the one that matters is missing. Higher: the error is too long to be
/// read.
const NAMED_MAX: usize = 8;

/// The processes that have the program with this number: its link, or the place in which a control process keeps that
/// (see [`crate::sys::keeper`]), which each of its clients has.
pub(super) fn of_program(id: u32) -> Vec<Holder> {
    let Ok(processes) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    let numbers = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let holding = numbers.filter(|pid: &i32| holds(*pid, id));
    holding.take(NAMED_MAX).map(Holder::of).collect()
}

fn holds(pid: i32, program: u32) -> bool {
    let process = Path::new("/proc").join(pid.to_string());
    let Ok(descriptors) = std::fs::read_dir(process.join("fd")) else {
        return false;
    };
    descriptors.flatten().any(|entry| {
        let Ok(target) = std::fs::read_link(entry.path()) else {
            return false;
        };
        match target.to_str() {
            Some("anon_inode:bpf_link") => {
                let info = process.join("fdinfo").join(entry.file_name());
                let text = std::fs::read_to_string(info).unwrap_or_default();
                let number = text.lines().find_map(|line| line.strip_prefix("prog_id:"));
                number.and_then(|number| number.trim().parse().ok()) == Some(program)
            }
            // A file system that is mounted nowhere.
            Some("/") => keeps(&entry.path().join("kept"), program),
            // A file without a name in one that is mounted.
            Some(other) if other.ends_with(" (deleted)") && other.contains(PASSING_NAME) => {
                keeps(&entry.path(), program)
            }
            _ => false,
        }
    })
}

fn keeps(pinned: &Path, program: u32) -> bool {
    let link = bpf::pinned(pinned);
    link.is_ok_and(|link| bpf::program_of_link(link.as_fd()).ok() == Some(program))
}
