//! Private temporary directories.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::directory::{DIRECTORY_FLAGS, Owner, check_owner, stat_of};
use crate::file::NAME_ATTEMPTS;
use crate::fork::OwnerProcess;
use crate::{Directory, StateError};

/// A new directory, of mode 0700, with an unpredictable name. Dropped, it is removed with all that is in it.
///
/// Its parent may belong to any user: users that can write there may move the new one away, but
/// everything in it is reached by descriptor.
#[derive(Debug)]
pub struct TemporaryDirectory {
    directory: Directory,
    parent: OwnedFd,
    name: OsString,
    process: OwnerProcess,
}

impl TemporaryDirectory {
    /// Makes one in the directory for temporary files (`TMPDIR`, or `/tmp`). Its name begins with `prefix`.
    pub fn make(prefix: &str) -> Result<TemporaryDirectory, StateError> {
        Self::make_in(&std::env::temp_dir(), prefix)
    }

    /// Makes one in a given directory.
    pub fn make_in(parent: &Path, prefix: &str) -> Result<TemporaryDirectory, StateError> {
        let mut attempts = 0;
        loop {
            match Self::make_named(parent, &temporary_name(prefix)) {
                Err(StateError::Io { source, .. })
                    if source.kind() == std::io::ErrorKind::AlreadyExists
                        && attempts < NAME_ATTEMPTS =>
                {
                    attempts += 1;
                }
                made => return made,
            }
        }
    }

    /// Makes one under a name from [`temporary_name`], which the journal has noted before.
    pub(crate) fn make_named(
        parent: &Path,
        name: &OsStr,
    ) -> Result<TemporaryDirectory, StateError> {
        let path = parent.join(name);
        let descriptor = open_parent(parent)?;
        rustix::fs::mkdirat(&descriptor, name, Mode::RWXU)
            .map_err(StateError::errno("make", &path))?;
        let made = rustix::fs::openat(&descriptor, name, DIRECTORY_FLAGS, Mode::empty())
            .map_err(StateError::errno("open", &path))?;
        // Where every user may write, another directory may have replaced it already.
        check_owner(&stat_of(&made, &path)?, &path, Owner::SelfOrRoot)?;
        Ok(TemporaryDirectory {
            directory: Directory::from_parts(made, path),
            parent: descriptor,
            name: name.to_owned(),
            process: OwnerProcess::current(),
        })
    }

    /// The directory.
    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    /// Path by which it was made, for messages and for programs of the same user.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Empties it by its descriptor, and takes its name away where that still is this directory's.
    fn remove(&self) -> Result<(), StateError> {
        for entry in self.directory.entries()? {
            match self.directory.remove(&entry.name) {
                Err(StateError::Io { source, .. })
                    if source.kind() == std::io::ErrorKind::IsADirectory =>
                {
                    self.directory.remove_tree(&entry.name)?;
                }
                removed => removed?,
            }
        }
        let own = stat_of(&self.directory, self.path())?;
        let named = rustix::fs::statat(&self.parent, &self.name, AtFlags::SYMLINK_NOFOLLOW);
        if named.is_ok_and(|named| (named.st_dev, named.st_ino) == (own.st_dev, own.st_ino)) {
            let removed = rustix::fs::unlinkat(&self.parent, &self.name, AtFlags::REMOVEDIR);
            removed.map_err(StateError::errno("remove", self.path()))?;
        }
        Ok(())
    }
}

impl Drop for TemporaryDirectory {
    fn drop(&mut self) {
        if self.process.is_current() {
            let _ = self.remove(); // an error could not be reported any more
        }
    }
}

/// Removes a temporary directory that an earlier process of this user left. Refuses what cannot be one: the name
/// must begin with `taut`, and the directory must be this user's.
pub(crate) fn remove_left(path: &Path) -> Result<(), StateError> {
    let invalid = || StateError::InvalidName {
        path: path.to_owned(),
    };
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(invalid());
    };
    if !name.to_string_lossy().starts_with("taut") {
        return Err(invalid());
    }
    let parent = Directory::from_parts(open_parent(parent)?, parent.to_owned());
    match parent.remove_tree(name) {
        Err(StateError::Io { source, .. })
            if source.raw_os_error() == Some(Errno::NOTEMPTY.raw_os_error()) =>
        {
            // Something was still being written into it; once more.
            parent.remove_tree(name)
        }
        removed => removed,
    }
}

/// The directory that the user named: links on the way are the user's choice.
fn open_parent(parent: &Path) -> Result<OwnedFd, StateError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(parent, flags, Mode::empty()).map_err(StateError::errno("open", parent))
}

/// A name for a temporary directory: `prefix`, a hyphen and 16 random hexadecimal digits.
pub(crate) fn temporary_name(prefix: &str) -> OsString {
    OsString::from(format!("{prefix}-{}", unforeseeable()))
}

/// Length of an unpredictable name.
pub(crate) const UNFORESEEABLE_BYTES: usize = 16;

/// 16 random hexadecimal digits, for an unused, unpredictable name.
pub fn unforeseeable() -> String {
    let mut bytes = [0; UNFORESEEABLE_BYTES / 2];
    // Cannot fail or block once the machine has started (getrandom(2)); were it cut short by a signal, the name
    // would be easier to foresee, and making it still fails if it is taken.
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

impl AsFd for TemporaryDirectory {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.directory.as_fd()
    }
}
