//! Files that are code, or that name code: libraries, programs, task sets, images of guests.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, Stat};

use crate::directory::{Owner, check_owner, stat_of};
use crate::privilege::is_in_first_user_namespace;
use crate::{StateError, caller_of_sudo};

/// Returns the path of a trusted regular file, without links. The file and each directory on the way to it belong to
/// root or to this user, with sudo also to its caller, and no other user can write or replace them. A group may write
/// if it is root's or has the number of such a user, which is that user's own.
///
/// In a user namespace, as of a container without root, also what belongs to a user outside, which its own root has
/// mounted or given away: only in a directory that others cannot write.
///
/// # Errors
/// The path does not exist, is not a regular file, or is not trusted; the error names the file or the directory.
pub fn trusted_file(path: &Path) -> Result<PathBuf, StateError> {
    let whole = fs::canonicalize(path).map_err(StateError::io("open", path))?;
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut reached = PathBuf::from("/");
    let mut descriptor: OwnedFd =
        rustix::fs::open("/", flags, Mode::empty()).map_err(StateError::errno("open", &reached))?;
    let mut found = stat_of(&descriptor, &reached)?;
    let outside = user_outside();
    for component in whole.components() {
        let Component::Normal(name) = component else {
            continue;
        };
        reached.push(name);
        descriptor = rustix::fs::openat(descriptor.as_fd(), name, flags, Mode::empty())
            .map_err(StateError::errno("open", &reached))?;
        let above_is_open = found.st_mode & 0o002 != 0;
        found = stat_of(&descriptor, &reached)?;
        let is_mounted = outside == Some(found.st_uid) && !above_is_open;
        check(&found, &reached, is_mounted)?;
    }
    if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
        let expected = "regular file";
        return Err(StateError::WrongKind {
            path: whole,
            expected,
        });
    }
    Ok(whole)
}

/// Number that a user namespace shows for all users whom it does not have; `None` outside such a namespace.
fn user_outside() -> Option<u32> {
    if is_in_first_user_namespace().ok()? {
        return None;
    }
    let number = fs::read_to_string("/proc/sys/kernel/overflowuid").ok()?;
    number.trim().parse().ok()
}

fn check(found: &Stat, path: &Path, is_mounted: bool) -> Result<(), StateError> {
    let caller = caller_of_sudo();
    if caller != Some(found.st_uid) && !is_mounted {
        check_owner(found, path, Owner::SelfOrRoot)?;
    }
    let mode = found.st_mode & 0o7777;
    let is_own_group = Owner::SelfOrRoot.includes(found.st_gid) || caller == Some(found.st_gid);
    let is_open = mode & 0o002 != 0 || mode & 0o020 != 0 && !is_own_group;
    // In a sticky directory no user replaces entries of others, and its entries are checked as well.
    let is_directory = FileType::from_raw_mode(found.st_mode) == FileType::Directory;
    if is_open && !(is_directory && mode & 0o1000 != 0) {
        let path = path.to_owned();
        return Err(StateError::WritableByOthers { path, mode });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;
    use crate::TemporaryDirectory;

    #[test]
    fn code_that_others_can_write_or_replace_is_not_trusted() {
        let made = TemporaryDirectory::make("taut-trusted").unwrap();
        let base = fs::canonicalize(made.path()).unwrap();
        let (directory, file, link) = (base.join("bin"), base.join("bin/code"), base.join("link"));
        fs::create_dir(&directory).unwrap();
        fs::write(&file, "").unwrap();
        symlink(&file, &link).unwrap();
        let set = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode));
        for path in [&file, &link] {
            assert_eq!(trusted_file(path).unwrap(), file);
        }
        for (path, mode) in [(&file, 0o666), (&directory, 0o777)] {
            set(path, mode).unwrap();
            for named in [&file, &link] {
                let refused = trusted_file(named).unwrap_err();
                assert!(
                    matches!(refused, StateError::WritableByOthers { .. }),
                    "{refused}"
                );
            }
            set(path, 0o755).unwrap();
        }
        set(&directory, 0o1777).unwrap();
        assert!(
            trusted_file(&file).is_ok(),
            "this user's own in a sticky directory"
        );
        let not_file = trusted_file(&directory).unwrap_err();
        assert!(matches!(not_file, StateError::WrongKind { .. }));
        if chown(&file, Some(65_534), None).is_err() {
            println!("SKIPPED: only root can give a file away");
            return;
        }
        let refused = trusted_file(&file).unwrap_err();
        assert!(matches!(
            refused,
            StateError::ForeignOwner { owner: 65_534, .. }
        ));
    }
}
