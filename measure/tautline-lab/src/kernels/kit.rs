//! Programs of the guest kit (`bindings/guest`) in the lab: made from Tautline's sources, and run without Linux.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tautline_state::child::end_with_thread;
use tautline_state::trusted_file;

use super::archive::{require, run};
use super::{Arch, KernelsError};

/// Makes an example of the kit, such as `latency-beside.elf`, for this number of events, in the lab's cache. Its bytes
/// and its path are the same each time, so that results which depend on them are found again.
///
/// # Errors
/// No sources, a missing tool, or what the compiler says.
pub fn example(
    name: &str,
    events: u64,
    sources: Option<&Path>,
    cache: &Path,
) -> Result<PathBuf, KernelsError> {
    let Some(sources) = sources else {
        return Err(KernelsError::NoSources {
            name: name.to_owned(),
        });
    };
    let makefile = trusted_file(&sources.join("bindings/guest/Makefile"))
        .map_err(KernelsError::StrangeSources)?;
    let make = require("make", "make")?;
    require("clang", "clang")?;
    require("ld.lld", "lld")?;
    // Others may read the program that was there before, so the new one takes its place whole.
    let build = Build(cache.join(format!("kit-{}", std::process::id())));
    let made = build.0.join(name);
    let mut command = Command::new(make);
    command
        .arg("--silent")
        .arg("-C")
        .arg(sources.join("bindings/guest"))
        .arg("-f")
        .arg(&makefile)
        .arg(format!("BUILD={}", build.0.display()))
        .arg(format!("EVENTS={events}"))
        .arg(&made);
    run(command)?;
    let place = cache.join(format!("{events}-{name}"));
    fs::rename(&made, &place).map_err(KernelsError::file(&place))?;
    Ok(place)
}

/// Directory of the compiler's files. Dropped, it is removed.
struct Build(PathBuf);

impl Drop for Build {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0); // what stays is a few files in the cache
    }
}

/// Runs an arm64 program of the kit on a machine of one CPU without Linux, in virtual time, and returns what it
/// printed. The CPU and its clock are those of a program beside Linux.
///
/// # Errors
/// QEMU is missing, or says that it failed.
pub fn run_alone(program: &Path) -> Result<String, KernelsError> {
    let mut command = Command::new(require(Arch::Arm64.qemu(), Arch::Arm64.qemu_package())?);
    command
        .args(["-machine", "virt,gic-version=2,highmem=off", "-m", "128"])
        .args(["-cpu", "cortex-a72,cntfrq=1000000000"])
        .args(["-icount", "shift=0,sleep=off", "-nodefaults"])
        .args(["-display", "none", "-serial", "stdio", "-kernel"])
        .arg(program);
    end_with_thread(&mut command, rustix::process::Signal::KILL);
    let printed = run(command)?;
    Ok(String::from_utf8_lossy(&printed).into_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::super::archive::build_guest_program;
    use super::super::defaults::MANIFEST;
    use super::*;
    use tautline_state::TemporaryDirectory;

    #[test]
    fn without_sources_the_program_is_named() {
        let error = example("latency.elf", 100, None, Path::new("/nonexistent")).unwrap_err();
        assert!(error.to_string().contains("latency.elf"), "{error}");
    }

    #[test]
    fn sources_that_others_can_write_are_not_built() {
        let made = TemporaryDirectory::make("taut-sources").unwrap();
        let sources = made.path();
        let files = ["bindings/guest/Makefile", MANIFEST].map(|name| sources.join(name));
        for file in &files {
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, "").unwrap();
            fs::set_permissions(file, fs::Permissions::from_mode(0o666)).unwrap();
        }
        for error in [
            example("latency.elf", 100, Some(sources), sources).unwrap_err(),
            build_guest_program(Arch::Arm64, sources, sources).unwrap_err(),
        ] {
            assert!(matches!(error, KernelsError::StrangeSources(_)), "{error}");
        }
    }
}
