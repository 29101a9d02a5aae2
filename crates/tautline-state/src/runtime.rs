//! The runtime directory: sockets, buses and journals, gone when the machine restarts.

use std::path::{Path, PathBuf};

use crate::{Directory, StateError};

/// Root's. Everybody may pass it, since control sockets and buses below it have permissions of their own.
const ROOTS: &str = "/run/tautline";
const ROOTS_MODE: u32 = 0o755;
const USERS_MODE: u32 = 0o700;

/// Opens the runtime directory of this user, and makes it where it is missing: `/run/tautline` for root,
/// `tautline` in `$XDG_RUNTIME_DIR` for others, or in `/run/user/UID` where that is not set.
///
/// It is never below a directory for temporary files, where a stranger could have made it first.
pub fn runtime_directory() -> Result<Directory, StateError> {
    let user = rustix::process::geteuid();
    if user.is_root() {
        return Directory::make(Path::new(ROOTS), ROOTS_MODE);
    }
    let base = users_base(user.as_raw());
    let base = match Directory::open(&base) {
        Err(error) if error.is_absent() => {
            return Err(StateError::NoRuntimeDirectory {
                user: user.as_raw(),
                path: base,
            });
        }
        opened => opened?,
    };
    let (directory, _) = base.make_below("tautline", USERS_MODE, crate::Owner::SelfOrRoot)?;
    Ok(directory)
}

/// The same for looking only: `None` where it does not exist.
pub fn find_runtime_directory() -> Result<Option<Directory>, StateError> {
    let user = rustix::process::geteuid();
    let path = if user.is_root() {
        PathBuf::from(ROOTS)
    } else {
        users_base(user.as_raw()).join("tautline")
    };
    match Directory::open(&path) {
        Err(error) if error.is_absent() => Ok(None),
        opened => opened.map(Some),
    }
}

fn users_base(user: u32) -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(directory) if !directory.is_empty() => PathBuf::from(directory),
        _ => PathBuf::from(format!("/run/user/{user}")),
    }
}
