//! The QEMU that guests run in: the system's, or a newer one of Debian's backports where that lacks a card or shares no
//! time among CPUs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::archive::{Apt, unpack};
use super::qemu::{Qemu, shares_time, version};
use super::{Arch, KernelsError};

/// Packages of Debian's QEMU.
const PACKAGES: [&str; 5] = [
    "qemu-system-x86",
    "qemu-system-arm",
    "qemu-system-common",
    "qemu-system-data",
    "seabios",
];

/// An emulator for all architectures.
#[derive(Clone, Debug)]
pub struct Emulator {
    /// Programs and firmware that were unpacked; none for the system's.
    root: Option<PathBuf>,
    /// Why no newer one could be had.
    pub regret: Option<String>,
}

impl Emulator {
    /// The system's.
    pub fn of_system() -> Emulator {
        Emulator {
            root: None,
            regret: None,
        }
    }

    /// The system's if it is new enough, else the backports' in a directory of its own: nothing is installed.
    pub fn find(arch: Arch, cache: &Path) -> Emulator {
        if version(arch).is_ok_and(|text| is_new_enough(&text)) {
            return Self::of_system();
        }
        match fetch(cache) {
            Ok(root) => Emulator {
                root: Some(root),
                regret: None,
            },
            Err(error) => Emulator {
                root: None,
                regret: Some(error),
            },
        }
    }

    /// For [`Guest`](super::qemu::Guest).
    pub fn qemu(&self, arch: Arch) -> Option<Qemu> {
        self.root.as_deref().map(|root| Qemu {
            program: root.join("usr/bin").join(arch.qemu()),
            firmware: root.join("usr/share/qemu"),
        })
    }

    /// Whether it has a device.
    pub fn has_device(&self, arch: Arch, device: &str) -> bool {
        let program = self
            .qemu(arch)
            .map_or_else(|| arch.qemu().into(), |qemu| qemu.program);
        Command::new(program)
            .args(["-machine", "none", "-device", &format!("{device},help")])
            .stdin(Stdio::null())
            .output()
            .is_ok_and(|output| output.status.success())
    }

    /// The version, for the result.
    pub fn version(&self, arch: Arch) -> Result<String, KernelsError> {
        match self.qemu(arch) {
            Some(qemu) => Ok(run_version(&qemu.program).unwrap_or_default()),
            None => version(arch),
        }
    }
}

fn fetch(cache: &Path) -> Result<PathBuf, String> {
    let host = Arch::host().ok_or("this architecture has no packages of QEMU")?;
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let codename = release
        .lines()
        .find_map(|line| line.strip_prefix("VERSION_CODENAME="))
        .ok_or("/etc/os-release names no suite")?;
    let suite = format!("{codename}-backports");
    let root = cache.join("qemu").join(&suite);
    if !root.join("complete").exists() {
        let text = |error: KernelsError| error.to_string();
        let apt = Apt::new(host, Some(&suite), cache).map_err(text)?;
        fs::create_dir_all(&root).map_err(|error| error.to_string())?;
        for package in apt.fetch(&PACKAGES).map_err(text)? {
            unpack(&package, &root, &[]).map_err(text)?;
        }
        fs::write(root.join("complete"), "").map_err(|error| error.to_string())?;
    }
    // Its libraries are the system's: they may be missing where no QEMU is installed.
    let program = root.join("usr/bin").join(host.qemu());
    match run_version(&program) {
        Some(text) if is_new_enough(&text) => Ok(root),
        _ => Err(format!("{} does not start", program.display())),
    }
}

fn run_version(program: &Path) -> Option<String> {
    let output = Command::new(program).arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().next().map(str::to_owned)
}

/// igb came with 8.0, and one time for several CPUs with 8.1.
fn is_new_enough(version: &str) -> bool {
    shares_time(version)
}
