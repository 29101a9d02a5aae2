//! Where kernels and results are kept, the program that a guest runs, and the sources of others, by
//! default.

use std::io;
use std::path::PathBuf;

use tautline_state::{Directory, StateError};

use super::KernelsError;

/// Manifest of the program that a guest runs, in the sources.
pub(super) const MANIFEST: &str = "measure/tautline-lab/Cargo.toml";

/// Directory for packages, kernels and results, made where it is missing: `given`, or `tautline/lab` in
/// `$XDG_CACHE_HOME` or below the home directory. Programs in it are run, QEMU as the calling user, so only that user
/// and root may be able to write it and its parent directories: directories for temporary files are excluded.
pub fn cache(given: Option<PathBuf>) -> Result<PathBuf, KernelsError> {
    let path = given.map_or_else(own_cache, Ok)?;
    // The targets of links count, not their owners.
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

/// Tautline's sources, if this process was started somewhere inside them. Builders check them first.
#[must_use]
pub fn sources() -> Option<PathBuf> {
    let here = std::env::current_dir().ok()?;
    here.ancestors()
        .find(|path| path.join(MANIFEST).is_file())
        .map(PathBuf::from)
}
