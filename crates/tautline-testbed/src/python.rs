//! A Python with packages of its own, for tests that hold the project against programs of others.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{FlockOperation, flock};

/// Longest name of an environment in full. Higher: the directory's name does not fit (255 bytes).
const NAME_BYTES_MAX: usize = 120;

/// Makes a virtual environment with these packages, each named with its version, or finds the one that was made
/// before; returns its interpreter. Packages that others depend on must be named too. Blocking; another process that
/// makes the same one is waited for.
///
/// # Errors
/// The reason, for a test to say why it is skipped: no Python, no room, or the package index cannot be reached.
pub fn environment(directory: &Path, packages: &[&str]) -> Result<PathBuf, String> {
    let name = name_of(packages);
    let home = directory.join(format!("python-{name}"));
    let failed = |what: &str| {
        let what = what.to_owned();
        move |error: std::io::Error| format!("{what}: {error}")
    };
    fs::create_dir_all(directory).map_err(failed("no directory for a virtual environment"))?;
    let lock = directory.join(format!("python-{name}.lock"));
    let lock = File::create(lock).map_err(failed("no lock for a virtual environment"))?;
    flock(&lock, FlockOperation::LockExclusive)
        .map_err(|error| failed("no lock for a virtual environment")(error.into()))?;
    let (python, complete) = (home.join("bin/python"), home.join("complete"));
    if complete.exists() {
        return Ok(python);
    }
    // Half of one may be there, of a run that was killed.
    let _ = fs::remove_dir_all(&home);
    run(Command::new("python3").args(["-m", "venv"]).arg(&home))?;
    let quiet = ["-m", "pip", "install", "--quiet", "--no-input", "--no-deps"];
    let binary = ["--disable-pip-version-check", "--only-binary", ":all:"];
    run(Command::new(&python)
        .args(quiet)
        .args(binary)
        .args(packages))?;
    fs::write(&complete, "").map_err(failed("a virtual environment cannot be written"))?;
    Ok(python)
}

/// Name of an environment's directory: its packages, or the first of many and a number that tells them apart.
fn name_of(packages: &[&str]) -> String {
    let name = packages.join("-").replace("==", "-");
    if name.len() <= NAME_BYTES_MAX {
        return name;
    }
    let mut hasher = DefaultHasher::new();
    packages.hash(&mut hasher);
    let first = packages[0].replace("==", "-");
    format!("{first}-and-others-{:016x}", hasher.finish())
}

fn run(command: &mut Command) -> Result<(), String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("cannot start {program}: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => {
            let said = String::from_utf8_lossy(&output.stderr);
            let last = said.lines().last().unwrap_or("it said nothing");
            Err(format!("{program} failed: {last}"))
        }
    }
}
