//! Where kernels and results are kept, the program that a guest runs, and the sources of others, unless somebody says
//! otherwise.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use tautline_state::{Directory, StateError, caller_of_sudo};

use super::KernelsError;

/// Directory for packages, kernels and results, made where it is missing: `given`, or `tautline/lab` in
/// `$XDG_CACHE_HOME` or below the home directory. Programs in it are run, QEMU as the user who asks, so nobody but that
/// user and root may be able to write it, nor a directory on the way: those of temporary files are none.
pub fn cache(given: Option<PathBuf>) -> Result<PathBuf, KernelsError> {
    let path = given.map_or_else(own_cache, Ok)?;
    // Where links lead counts, and who made them does not.
    let path = match path.canonicalize() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => path,
        known => known.map_err(KernelsError::file(&path))?,
    };
    let directory = Directory::make(&path, 0o755).map_err(KernelsError::Cache)?;
    let mode = directory.mode().map_err(KernelsError::Cache)?;
    if mode & 0o022 != 0 {
        // Like a directory of temporary files, where strangers can make what is missing.
        return Err(KernelsError::Cache(StateError::WritableByOthers {
            path,
            mode,
        }));
    }
    Ok(path)
}

fn own_cache() -> Result<PathBuf, KernelsError> {
    std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .filter(|path| path.is_absolute())
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")))
        .map(|base| base.join("tautline/lab"))
        .ok_or(KernelsError::NoCache)
}

/// This program, which becomes the guest's first process.
pub fn own_program() -> Result<PathBuf, KernelsError> {
    std::env::current_exe().map_err(|source| KernelsError::File {
        path: PathBuf::from("/proc/self/exe"),
        source,
    })
}

/// Tautline's sources, if this process was started somewhere inside them. Whoever builds from them checks them first.
#[must_use]
pub fn sources() -> Option<PathBuf> {
    let here = std::env::current_dir().ok()?;
    here.ancestors()
        .find(|path| path.join("crates/tautline-lab/Cargo.toml").is_file())
        .map(PathBuf::from)
}

/// To build from sources is to run them. So they, and each directory on the way, must be root's or the user's own, with
/// sudo also those of the user who called it, and nobody else may be able to put other ones in their place.
pub(super) fn check_sources(path: &Path) -> Result<(), KernelsError> {
    let caller = caller_of_sudo();
    let own = rustix::process::geteuid().as_raw();
    for directory in path.ancestors() {
        let found = fs::metadata(directory).map_err(KernelsError::file(directory))?;
        let (owner, mode) = (found.uid(), found.mode() & 0o7777);
        let is_known = [0, own].contains(&owner) || caller == Some(owner);
        // In a sticky directory nobody replaces what is another's.
        let is_open = mode & 0o002 != 0 && (mode & 0o1000 == 0 || directory == path);
        if !is_known || is_open {
            return Err(KernelsError::StrangeSources {
                path: directory.to_owned(),
                owner,
                mode,
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown};

    use super::*;

    #[test]
    fn sources_of_strangers_are_not_built() {
        let name = format!("taut-sources-{}", std::process::id());
        let above = std::env::temp_dir().join(name);
        let sources = above.join("tautline");
        fs::create_dir_all(&sources).unwrap();
        check_sources(&sources).unwrap();
        for directory in [&above, &sources] {
            let open = |mode| fs::set_permissions(directory, fs::Permissions::from_mode(mode));
            open(0o777).unwrap();
            let error = check_sources(&sources).unwrap_err().to_string();
            assert!(error.contains("mode 777"), "{error}");
            open(0o755).unwrap();
            if chown(directory, Some(65_534), None).is_err() {
                println!("SKIPPED: only root can give a directory away");
                continue;
            }
            let error = check_sources(&sources).unwrap_err().to_string();
            assert!(error.contains("user 65534"), "{error}");
            chown(directory, Some(0), None).unwrap();
        }
        fs::remove_dir_all(&above).unwrap();
    }
}
