//! The library that is loaded into programs: where it lies, and how the loader is told.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use tautline_awake::exec::{LIBRARY, library_of};

use crate::cli::{self, CommandError};

/// The package that the library is built from.
const PACKAGE: &str = "tautline-awake-preload";

/// A library that programs can be started with.
pub(super) struct Library {
    path: PathBuf,
    /// A copy in a folder of the system has the set-user-ID bit: the loader takes that one for setuid programs too
    /// (ld.so(8), LD_PRELOAD).
    is_for_setuid: bool,
}

/// The library of this command.
pub(super) fn find() -> Result<Library, CommandError> {
    let own = env::current_exe().unwrap_or_default();
    let directory = own.parent().unwrap_or(Path::new("/"));
    let newest = library_of(directory).ok_or_else(|| {
        CommandError::failed(
            format!(
                "{LIBRARY} is neither in {} nor in ../lib",
                directory.display()
            ),
            format!("build it with `cargo build --release -p {PACKAGE}`, or `make build`"),
        )
    })?;
    let path = cli::trusted_code(&newest)?;
    let is_for_setuid = system_folders().any(|folder| is_copy(&folder.join(LIBRARY), &path));
    Ok(Library {
        path,
        is_for_setuid,
    })
}

impl Library {
    pub(super) fn is_for_setuid(&self) -> bool {
        self.is_for_setuid
    }

    /// Command that makes the copy for setuid programs.
    pub(super) fn install(&self) -> String {
        let folder = system_folders().find(|folder| folder.is_dir());
        format!(
            "sudo install -m 4755 {} {}",
            super::program::plain(self.path.as_os_str()),
            folder.unwrap_or_default().display()
        )
    }

    /// LD_PRELOAD: ours first; what else is to be loaded stays. In front of setuid programs the loader takes names
    /// without a slash alone.
    pub(super) fn preloaded(&self) -> OsString {
        let mut all = match self.is_for_setuid {
            true => OsString::from(LIBRARY),
            false => self.path.clone().into_os_string(),
        };
        if let Some(others) = env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
            all.push(OsStr::new(":"));
            all.push(others);
        }
        all
    }
}

/// Folders that the loader trusts: Debian's with the machine's name, and everybody's.
fn system_folders() -> impl Iterator<Item = PathBuf> {
    let named = format!("/usr/lib/{}-linux-gnu", env::consts::ARCH);
    [named, "/usr/lib64".to_owned(), "/usr/lib".to_owned()]
        .into_iter()
        .map(PathBuf::from)
}

/// Whether root has put this very library there, with the set-user-ID bit.
fn is_copy(place: &Path, library: &Path) -> bool {
    let is_installed = fs::metadata(place)
        .is_ok_and(|found| found.uid() == 0 && found.mode() & libc::S_ISUID != 0);
    let bytes = || Some((fs::read(place).ok()?, fs::read(library).ok()?));
    is_installed && bytes().is_some_and(|(copy, own)| copy == own)
}
