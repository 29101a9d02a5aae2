//! Where kernels and results are kept, and the program that a guest runs, unless somebody says otherwise.

use std::path::PathBuf;

use super::KernelsError;

/// Directory for packages, kernels and results: `tautline/lab` in `$XDG_CACHE_HOME`, or below the home directory.
/// Never below a directory for temporary files, where a stranger could have put a kernel first.
pub fn cache_directory() -> Result<PathBuf, KernelsError> {
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
