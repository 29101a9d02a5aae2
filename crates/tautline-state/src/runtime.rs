//! The runtime directory: sockets, buses and journals, gone when the machine restarts.

use std::path::{Path, PathBuf};

use crate::{Directory, Entry, Owner, StateError};

/// Root's. Everybody may pass it, since control sockets and buses below it have permissions of their own.
const ROOTS: &str = "/run/tautline";
/// Directory of control processes that run as another user than root. Root creates it for that user, which has
/// no other runtime directory.
const SERVICE: &str = "/run/tautline/service";
/// Directories of logged-in users.
const USERS: &str = "/run/user";
/// Name of a user's below their own directory.
const NAME: &str = "tautline";
const ROOTS_MODE: u32 = 0o755;
const USERS_MODE: u32 = 0o700;

/// Opens the runtime directory of this user, and makes it where it is missing: `/run/tautline` for root,
/// `/run/tautline/service` for the user to which root has given it, `tautline` in `$XDG_RUNTIME_DIR` for others, or in
/// `/run/user/UID` where that is not set.
///
/// It is never below a directory for temporary files, where a stranger could have made it first.
pub fn runtime_directory() -> Result<Directory, StateError> {
    let user = rustix::process::geteuid();
    if user.is_root() {
        return Directory::make(Path::new(ROOTS), ROOTS_MODE);
    }
    if let Some(own) = own_service_directory() {
        return Ok(own);
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
    let (directory, _) = base.make_below(NAME, USERS_MODE, Owner::SelfOrRoot)?;
    Ok(directory)
}

/// Runtime directory for reading: `None` if it does not exist.
pub fn find_runtime_directory() -> Result<Option<Directory>, StateError> {
    let user = rustix::process::geteuid();
    if let Some(own) = own_service_directory() {
        return Ok(Some(own));
    }
    let path = if user.is_root() {
        PathBuf::from(ROOTS)
    } else {
        users_base(user.as_raw()).join(NAME)
    };
    match Directory::open(&path) {
        Err(error) if error.is_absent() => Ok(None),
        opened => opened.map(Some),
    }
}

/// The runtime directories that this process believes, of those that there are: root's, and this user's own.
pub fn known_runtime_directories() -> Vec<Directory> {
    let own = find_runtime_directory().ok().flatten();
    let roots = Directory::open(Path::new(ROOTS)).ok();
    let roots = roots.filter(|_| !rustix::process::geteuid().is_root());
    roots.into_iter().chain(own).collect()
}

/// The directory of the control processes that do not run as root, with the user to which root has given it. `None`
/// if it does not exist, or if another user than root could have created it.
pub fn service_directory() -> Option<(Directory, u32)> {
    let (directory, owner) = Directory::open_chosen_by_root(Path::new(SERVICE)).ok()?;
    match owner {
        // Root's own control processes have root's directory.
        Owner::Also(user) if user != 0 => Some((directory, user)),
        _ => None,
    }
}

/// Root's runtime directory where it belongs to another user, and with it that of control processes which do not run
/// as root: in a user namespace, as of a container without root, all of its host's users look like one. Its own root
/// has chosen that user, since no other could mount the directory in `/run`. None on the host itself.
pub fn mounted_runtime_directories() -> Vec<(Directory, u32)> {
    let opened = Directory::open_chosen_by_root(Path::new(ROOTS));
    let Ok((directory, Owner::Also(user @ 1..))) = opened else {
        return Vec::new();
    };
    let service = directory.open_below("service", Owner::Also(user)).ok();
    let all = [Some(directory), service].into_iter().flatten();
    all.map(|directory| (directory, user)).collect()
}

fn own_service_directory() -> Option<Directory> {
    let (directory, user) = service_directory()?;
    (user == rustix::process::geteuid().as_raw()).then_some(directory)
}

/// Runtime directories of logged-in users, with their owners: for root, which may read them. Others get none.
pub fn runtime_directories_of_users() -> Vec<(Directory, Owner)> {
    if !rustix::process::geteuid().is_root() {
        return Vec::new();
    }
    let Ok(users) = Directory::open(Path::new(USERS)) else {
        return Vec::new();
    };
    let of_user = |entry: Entry| {
        let owner = Owner::Also(entry.name.to_str()?.parse().ok()?);
        let base = users.open_below(&entry.name, owner).ok()?;
        Some((base.open_below(NAME, owner).ok()?, owner))
    };
    let entries = users.entries().unwrap_or_default();
    entries.into_iter().filter_map(of_user).collect()
}

fn users_base(user: u32) -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(directory) if !directory.is_empty() => PathBuf::from(directory),
        _ => PathBuf::from(format!("/run/user/{user}")),
    }
}
