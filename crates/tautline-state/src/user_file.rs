//! Files at paths that the user named, which may lie where others can write.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::Path;

use rustix::fs::{Access, AtFlags, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::directory::stat_of;
use crate::{Directory, StateError};

/// Writes a file at a path that the user named, so that a reader sees the old content or the new.
///
/// A device and an open descriptor, such as `/dev/null` and `/dev/stdout`, are written to directly; other pipes and
/// devices are refused. A file or a link is replaced: the new file is made under a name of its own, and renamed. So a
/// user that may write the directory cannot cause another file to be overwritten.
///
/// # Errors
/// There is no such directory, a pipe or a device has the name, or the kernel refuses.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), StateError> {
    if is_special(path) {
        let written = open_special(path)?.write_all(bytes);
        return written.map_err(StateError::io("write", path));
    }
    let (directory, name) = place(path)?;
    check_replaceable(&directory, name, path)?;
    directory.write(name, bytes, 0o666 & !creation_mask())
}

/// Looks whether [`write_whole`] can make a file at a path, before there is anything to write.
///
/// # Errors
/// Those of [`write_whole`], as far as they show without writing: a disk may still fill up.
pub fn check_place(path: &Path) -> Result<(), StateError> {
    if is_special(path) {
        return Ok(());
    }
    let (directory, name) = place(path)?;
    check_replaceable(&directory, name, path)?;
    let wanted = Access::WRITE_OK | Access::EXEC_OK;
    rustix::fs::accessat(&directory, ".", wanted, AtFlags::EACCESS)
        .map_err(StateError::errno("write", path))
}

fn check_replaceable(directory: &Directory, name: &OsStr, path: &Path) -> Result<(), StateError> {
    let found = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW);
    match found.map(|found| FileType::from_raw_mode(found.st_mode)) {
        Err(_) | Ok(FileType::RegularFile | FileType::Symlink) => Ok(()),
        Ok(FileType::Directory) => Err(StateError::errno("write", path)(Errno::ISDIR)),
        Ok(_) => Err(StateError::WrongKind {
            path: path.to_owned(),
            expected: "regular file",
        }),
    }
}

/// Treatment of a file that is at the path already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// It is left as it is: [`StateError::Exists`].
    Kept,
    /// It is emptied, unless another process is writing it: [`StateError::Locked`].
    Overwritten,
}

/// Opens a file at a path that the user named, to be written from its beginning. Devices and descriptors as in
/// [`write_whole`]; a link is refused, and so is a file with a second name, which another user may have given it.
///
/// The file is locked (flock) until it is closed, so that it has one writer. A new file of that name, after it was
/// removed or renamed, is another file.
///
/// # Errors
/// A refused link or file, a missing directory, or an error of the kernel.
pub fn create(path: &Path, existing: Existing) -> Result<File, StateError> {
    if is_special(path) {
        return open_special(path);
    }
    let flags = match existing {
        Existing::Kept => OFlags::EXCL,
        Existing::Overwritten => OFlags::empty(),
    };
    let file = open(path, flags)?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => return Err(StateError::Locked { path: path.into() }),
        Err(errno) => return Err(StateError::errno("lock", path)(errno)),
    }
    // Only now is it known to be this user's, and not another file.
    file.set_len(0).map_err(StateError::io("write", path))?;
    Ok(file)
}

/// Like [`create`], to be written at its end.
///
/// # Errors
/// Those of [`create`].
pub fn append(path: &Path) -> Result<File, StateError> {
    match is_special(path) {
        true => open_special(path),
        false => open(path, OFlags::APPEND),
    }
}

/// A regular file with one name, which is made if nothing is there.
fn open(path: &Path, flags: OFlags) -> Result<File, StateError> {
    let (directory, name) = place(path)?;
    let flags = flags | OFlags::WRONLY | OFlags::CREATE;
    let opened = directory.open_entry(name, flags, 0o666);
    let file = opened.map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => StateError::Exists { path: path.into() },
        _ => error,
    })?;
    let found = stat_of(&file, path)?;
    if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile || found.st_nlink != 1 {
        return Err(StateError::WrongKind {
            path: path.to_owned(),
            expected: "file with a single name",
        });
    }
    Ok(file)
}

/// Whether the path names a device or an open descriptor in a directory where only root and the kernel make names.
fn is_special(path: &Path) -> bool {
    let directory = path.parent().and_then(Path::to_str);
    matches!(
        directory,
        Some("/dev" | "/dev/fd" | "/dev/pts" | "/proc/self/fd")
    ) && path.metadata().is_ok_and(|found| !found.is_dir())
}

/// Opens such a file at its end.
fn open_special(path: &Path) -> Result<File, StateError> {
    let opened = File::options().append(true).open(path);
    opened.map_err(StateError::io("open", path))
}

/// The directory of a path, and the name in it.
fn place(path: &Path) -> Result<(Directory, &OsStr), StateError> {
    let name = path.file_name().ok_or_else(|| StateError::InvalidName {
        path: path.to_owned(),
    })?;
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let descriptor = rustix::fs::open(parent, flags, Mode::empty())
        .map_err(StateError::errno("open", parent))?;
    let directory = Directory::from_parts(descriptor, parent.to_owned());
    Ok((directory, name))
}

/// File mode creation mask of the process, as the kernel tells it: `umask` itself would change it for all threads.
fn creation_mask() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status
        .lines()
        .find_map(|line| u32::from_str_radix(line.strip_prefix("Umask:")?.trim(), 8).ok())
        .unwrap_or(0o022)
}
