//! Confinement of a control process: it opens with much privilege and then gives up what serving clients does not need.
//! A request that finds a hole in it meets a process that loads no program, enters no namespace, starts no command, and
//! reaches no files but its own.
//!
//! [`CAPABILITIES`], [`files`] and the lists of `calls` are all that it keeps. The tests of control processes run under
//! it.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, PathBeneath, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, RulesetStatus,
};
use rustix::fs::{Mode, OFlags};
use rustix::thread::CapabilitySet;
use tautline_state::privilege::keep_capabilities;

use super::server::Server;

#[cfg(target_pointer_width = "64")]
mod calls;

/// Maps; taps and their programs; UDP ports below 1024. Not CAP_SYS_ADMIN, CAP_PERFMON, CAP_NET_RAW.
const CAPABILITIES: CapabilitySet = CapabilitySet::BPF
    .union(CapabilitySet::NET_ADMIN)
    .union(CapabilitySet::NET_BIND_SERVICE);

/// Names of what may be kept, for people to read.
const NAMES: &[(CapabilitySet, &str)] = &[
    (CapabilitySet::BPF, "CAP_BPF"),
    (CapabilitySet::NET_ADMIN, "CAP_NET_ADMIN"),
    (CapabilitySet::NET_BIND_SERVICE, "CAP_NET_BIND_SERVICE"),
    (CapabilitySet::SYS_NICE, "CAP_SYS_NICE"),
];

/// Access to files that Landlock may know; kernels take the part that they know.
const LANDLOCK: ABI = ABI::V5;

/// Result of confining a control process, part by part.
#[derive(Debug)]
pub struct Confinement {
    parts: Vec<(&'static str, Result<String, String>)>,
}

impl Confinement {
    /// Parts that this kernel lacks or refuses, with the reason.
    pub fn missing(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let parts = self.parts.iter();
        parts.filter_map(|(part, result)| Some((*part, result.as_ref().err()?.as_str())))
    }
}

impl fmt::Display for Confinement {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let held = self
            .parts
            .iter()
            .filter_map(|(_, result)| result.as_ref().ok());
        let held: Vec<&str> = held.map(String::as_str).collect();
        match held.is_empty() {
            true => write!(formatter, "not confined")?,
            false => write!(formatter, "confined: {}", held.join("; "))?,
        }
        for (part, why) in self.missing() {
            write!(formatter, "\nnot confined: {part}: {why}")?;
        }
        Ok(())
    }
}

impl Server {
    /// Gives up what serving clients does not need, for the whole process and for good: capabilities, access to files,
    /// system calls. `restores_settings` keeps what it takes to put settings of the machine back that this process has
    /// changed; those of the interface must lie in the calling thread's network namespace.
    ///
    /// Threads that the program has started keep their capabilities and their access to files, but not their system
    /// calls. What the kernel lacks is left out, and the result says so.
    pub fn confine(&mut self, restores_settings: bool) -> Confinement {
        let names = kept_names(restores_settings);
        let mut parts = Vec::new();
        // The last step takes away the calls of the others.
        parts.push(("files", self.confine_files(restores_settings)));
        let keep = kept(restores_settings);
        let here = keep_capabilities(keep);
        let there = self.taps_thread(move || keep_capabilities(keep));
        let result = here.and(there).map_err(|error| error.to_string());
        parts.push(("capabilities", result.map(|()| names)));
        parts.push(("system calls", confine_calls(restores_settings)));
        Confinement { parts }
    }

    fn confine_files(&self, restores_settings: bool) -> Result<String, String> {
        let rules = files(restores_settings).map_err(|error| error.to_string())?;
        let for_taps = rules.try_clone().map_err(|error| error.to_string())?;
        let restrict = |rules: RulesetCreated| match rules.restrict_self() {
            Ok(status) => match status.ruleset {
                RulesetStatus::NotEnforced => Err(io::Error::other(
                    "this kernel has no Landlock, or it is off (Linux 5.13, lsm=landlock)",
                )),
                RulesetStatus::PartiallyEnforced => Ok("some access to files"),
                RulesetStatus::FullyEnforced => Ok("access to files"),
            },
            Err(error) => Err(io::Error::other(error)),
        };
        let here = restrict(rules).map_err(|error| error.to_string())?;
        let there = self.taps_thread(move || restrict(for_taps).map(drop));
        there.map_err(|error| error.to_string())?;
        Ok(format!("{here} by Landlock"))
    }
}

fn kept(restores_settings: bool) -> CapabilitySet {
    match restores_settings {
        true => CAPABILITIES | CapabilitySet::SYS_NICE,
        false => CAPABILITIES,
    }
}

fn kept_names(restores_settings: bool) -> String {
    let kept = kept(restores_settings);
    let names = NAMES.iter().filter(|(one, _)| kept.contains(*one));
    let names: Vec<&str> = names.map(|(_, name)| *name).collect();
    format!("capabilities {}", names.join(", "))
}

/// Files and directories that stay within reach: claims and sockets, names of processes, taps.
fn files(restores_settings: bool) -> Result<RulesetCreated, Box<dyn std::error::Error>> {
    let all = AccessFs::from_all(LANDLOCK);
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    let read_and_write = read | AccessFs::WriteFile | AccessFs::Truncate;
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(all)?
        // No connection of TCP, in either direction.
        .handle_access(AccessNet::from_all(LANDLOCK))?
        .create()?;
    let own = tautline_state::runtime_directory()?;
    let own_access = read_and_write
        | AccessFs::MakeDir
        | AccessFs::MakeReg
        | AccessFs::MakeSock
        | AccessFs::RemoveDir
        | AccessFs::RemoveFile;
    rules = rules.add_rule(PathBeneath::new(&own, own_access))?;
    let tap = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev;
    let of_settings = if restores_settings {
        read_and_write
    } else {
        read
    };
    for (path, access) in [
        ("/proc", of_settings),
        ("/sys", of_settings),
        ("/dev/net/tun", tap),
    ] {
        // Without taps no port opens, and the refusal says so.
        if let Some(place) = place(path) {
            rules = rules.add_rule(PathBeneath::new(place, access))?;
        }
    }
    if restores_settings && let Some(system) = tautline_state::setting::keep_sysfs()? {
        rules = rules.add_rule(PathBeneath::new(system, of_settings))?;
    }
    Ok(rules)
}

fn place(path: &str) -> Option<OwnedFd> {
    rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()
}

fn confine_calls(restores_settings: bool) -> Result<String, String> {
    #[cfg(target_pointer_width = "64")]
    return calls::confine(restores_settings).map_err(|error| error.to_string());
    // The library that writes the filter knows no processor of 32 bits, whose calls have other numbers and names.
    #[cfg(not(target_pointer_width = "64"))]
    {
        let _ = restores_settings;
        Err("there is no filter for processors of 32 bits".to_owned())
    }
}
