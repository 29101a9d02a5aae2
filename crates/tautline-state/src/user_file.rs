//! Files at paths that the user named, which may lie where others can write.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::directory::{Owner, check_owner, stat_of};
use crate::{Directory, StateError};

/// Links in a row that are followed at most, as in the kernel.
const LINKS_MAX: usize = 40;

/// Writes a file at a path that the user named, so that a reader sees the old content or the new.
///
/// A device or a pipe (`/dev/stdout`) is written to directly, through links of this user or root only. Everything else
/// at the path is replaced, a link too: the file is made under a name of its own, and renamed. So a user that may write
/// the directory cannot cause another file to be overwritten.
///
/// # Errors
/// There is no such directory, the kernel refuses, or the device or pipe is another user's.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), StateError> {
    if let Some(special) = special(path)? {
        return special
            .open()?
            .write_all(bytes)
            .map_err(StateError::io("write", path));
    }
    let place = Place::of(path)?;
    place
        .directory
        .write(place.name, bytes, 0o666 & !creation_mask())
}

/// Looks whether [`write_whole`] can make a file at a path, before there is anything to write.
///
/// # Errors
/// Those of [`write_whole`], as far as they show without writing: a disk may still fill up.
pub fn check_place(path: &Path) -> Result<(), StateError> {
    let place = Place::of(path)?;
    if let Ok(found) = rustix::fs::statat(&place.directory, place.name, AtFlags::SYMLINK_NOFOLLOW)
        && FileType::from_raw_mode(found.st_mode) == FileType::Directory
    {
        let refused = StateError::errno("write", path);
        return Err(refused(Errno::ISDIR));
    }
    if special(path)?.is_some() {
        return Ok(());
    }
    let wanted = Access::WRITE_OK | Access::EXEC_OK;
    rustix::fs::accessat(&place.directory, ".", wanted, AtFlags::EACCESS)
        .map_err(StateError::errno("write", path))
}

/// Treatment of a file that is at the path already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// It is left as it is: [`StateError::Exists`].
    Kept,
    /// It is emptied, unless another process is writing it: [`StateError::Locked`].
    Overwritten,
}

/// Opens a file at a path that the user named, to be written from its beginning. Devices and pipes as in
/// [`write_whole`]; another link is refused, and so is a file with a second name, which another user may have given it.
///
/// The file is locked (flock) until it is closed, so that it has one writer. A new file of that name, after it was
/// removed or renamed, is another file.
///
/// # Errors
/// A refused link or file, a missing directory, or an error of the kernel.
pub fn create(path: &Path, existing: Existing) -> Result<File, StateError> {
    if let Some(special) = special(path)? {
        return special.open();
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
    match special(path)? {
        Some(special) => special.open(),
        None => open(path, OFlags::APPEND),
    }
}

/// A regular file with one name, which is made if nothing is there.
fn open(path: &Path, flags: OFlags) -> Result<File, StateError> {
    let place = Place::of(path)?;
    let flags = flags | OFlags::WRONLY | OFlags::CREATE;
    let opened = place.directory.open_entry(place.name, flags, 0o666);
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

/// A file that is neither regular nor a directory. It is not open yet: to open a pipe is to be a writer of it.
enum Special {
    /// A descriptor of a process, wherever that leads.
    Descriptor { directory: Directory, path: PathBuf },
    /// The very file that was looked at.
    Itself { entry: OwnedFd, path: PathBuf },
}

impl Special {
    /// Opens it at its end.
    fn open(self) -> Result<File, StateError> {
        match self {
            Special::Descriptor { directory, path } => {
                let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CLOEXEC | OFlags::NOCTTY;
                let name = path.file_name().unwrap_or_default();
                let opened = rustix::fs::openat(&directory, name, flags, Mode::empty());
                let opened = opened.map_err(StateError::errno("open", &path))?;
                Ok(opened.into())
            }
            Special::Itself { entry, path } => {
                let itself = PathBuf::from(format!("/proc/self/fd/{}", entry.as_raw_fd()));
                let opened = File::options().append(true).open(itself);
                opened.map_err(StateError::io("open", &path))
            }
        }
    }
}

/// The file at the path if it is such a one: of this user or root, by links of this user or root. `None` for everything
/// else.
fn special(path: &Path) -> Result<Option<Special>, StateError> {
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        let place = Place::of(&path)?;
        let entry = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = &place.directory;
        let Ok(entry) = rustix::fs::openat(directory, place.name, entry, Mode::empty()) else {
            return Ok(None);
        };
        let found = stat_of(&entry, &path)?;
        match FileType::from_raw_mode(found.st_mode) {
            FileType::RegularFile | FileType::Directory => return Ok(None),
            FileType::Symlink if is_of_kernel(directory)? => {
                let directory = place.directory;
                return Ok(Some(Special::Descriptor { directory, path }));
            }
            FileType::Symlink if !Owner::SelfOrRoot.includes(found.st_uid) => return Ok(None),
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(&entry, "", Vec::new());
                let target = target.map_err(StateError::errno("read", &path))?;
                let target: &Path = OsStr::from_bytes(target.to_bytes()).as_ref();
                path = place.parent.join(target);
            }
            _ => {
                check_owner(&found, &path, Owner::SelfOrRoot)?;
                return Ok(Some(Special::Itself { entry, path }));
            }
        }
    }
    Ok(None)
}

/// Whether the directory is one of `/proc`, where only the kernel makes links.
fn is_of_kernel(directory: &Directory) -> Result<bool, StateError> {
    let found = rustix::fs::fstatfs(directory.as_fd());
    let found = found.map_err(StateError::errno("look at", directory.path()))?;
    Ok(found.f_type == rustix::fs::PROC_SUPER_MAGIC)
}

/// A name in a directory that the user named.
struct Place<'a> {
    parent: &'a Path,
    directory: Directory,
    name: &'a OsStr,
}

impl<'a> Place<'a> {
    fn of(path: &'a Path) -> Result<Self, StateError> {
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
        Ok(Self {
            parent,
            directory,
            name,
        })
    }
}

/// File mode creation mask of the process, as the kernel tells it: `umask` itself would change it for all threads.
fn creation_mask() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status
        .lines()
        .find_map(|line| u32::from_str_radix(line.strip_prefix("Umask:")?.trim(), 8).ok())
        .unwrap_or(0o022)
}
