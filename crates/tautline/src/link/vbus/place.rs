//! Directories reached by descriptor: the way to a bus, and what may be believed of what is there. Every step opens
//! one name below a directory that is open already and does not follow a link, so no process can put another directory
//! in its place between a check and a use.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;

use super::mark::{self, Mark};

/// Links on the way to a bus at most, as the kernel has it for a path.
const LINKS_MAX: u32 = 40;

const DIRECTORY: OFlags = OFlags::DIRECTORY
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// The path of what a descriptor shows, for calls that take paths only (`bind`, `connect`, `inotify_add_watch`). It
/// holds in this process while the descriptor is open.
pub(super) fn path_through(directory: BorrowedFd<'_>, name: &str) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}/{name}", directory.as_raw_fd()))
}

pub(super) fn open(parent: BorrowedFd<'_>, name: &OsStr) -> io::Result<OwnedFd> {
    let flags = DIRECTORY | OFlags::RDONLY;
    Ok(rustix::fs::openat(parent, name, flags, Mode::empty())?)
}

pub(super) fn open_path(parent: BorrowedFd<'_>, name: &OsStr) -> io::Result<OwnedFd> {
    let flags = DIRECTORY | OFlags::PATH;
    Ok(rustix::fs::openat(parent, name, flags, Mode::empty())?)
}

/// Owner, group and mode of an open file.
pub(super) fn look(file: impl AsFd) -> io::Result<Stat> {
    Ok(rustix::fs::fstat(file)?)
}

/// Whether users other than the owner can write it.
pub(super) fn is_open_to_others(found: &Stat) -> bool {
    found.st_mode & 0o022 != 0
}

pub(super) fn is_same(one: &Stat, other: &Stat) -> bool {
    (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
}

pub(super) fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Whether a user is this process's own or root.
pub(super) fn is_trusted(user: u32) -> bool {
    user == 0 || user == own_user()
}

/// Opens the directory of a path, making what is missing with the permission bits `make` if there are any. Links on
/// the way are followed if root or this user made them; a stranger's link could lead anywhere.
pub(super) fn walk(path: &Path, make: Option<u32>) -> io::Result<OwnedFd> {
    let path = std::path::absolute(path)?;
    let root = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut reached = rustix::fs::open("/", root, Mode::empty())?;
    let mut left: Vec<OsString> = names_reversed(&path)?;
    let mut links = 0;
    while let Some(name) = left.pop() {
        match open_path(reached.as_fd(), &name) {
            Ok(next) => reached = next,
            Err(error) if error.kind() == io::ErrorKind::NotFound => match make {
                Some(mode) => {
                    check_maker(&reached, &path)?;
                    make_one(reached.as_fd(), &name, mode, None, None)?
                }
                None => return Err(error),
            }
            .map_or_else(|| left.push(name), |next| reached = next),
            Err(error) => {
                links += 1;
                let target = link_target(reached.as_fd(), &name, &path)?.ok_or(error)?;
                if links > LINKS_MAX {
                    return Err(Errno::LOOP.into());
                }
                if target.is_absolute() {
                    reached = rustix::fs::open("/", root, Mode::empty())?;
                }
                left.extend(names_reversed(&target)?);
            }
        }
    }
    Ok(reached)
}

/// The names of a path, the first last.
fn names_reversed(path: &Path) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for component in path.components().rev() {
        match component {
            Component::Normal(name) => names.push(name.to_owned()),
            // Where a link lies, the directory above is not always the one that the text names; the kernel knows.
            Component::ParentDir => names.push("..".into()),
            Component::RootDir | Component::CurDir => {}
            Component::Prefix(_) => return Err(io::ErrorKind::InvalidInput.into()),
        }
    }
    Ok(names)
}

/// Where a link leads that root or this user made; `None` if it is no link.
fn link_target(parent: BorrowedFd<'_>, name: &OsStr, path: &Path) -> io::Result<Option<PathBuf>> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let link = rustix::fs::openat(parent, name, flags, Mode::empty())?;
    let found = look(&link)?;
    if FileType::from_raw_mode(found.st_mode) != FileType::Symlink {
        return Ok(None);
    }
    if !is_trusted(found.st_uid) {
        return Err(denied(format!(
            "`{}` in {} is a symbolic link of user {}, who could have it lead anywhere; give the path that is meant",
            Path::new(name).display(),
            path.display(),
            found.st_uid
        )));
    }
    // An empty name: the link that is open.
    let target = rustix::fs::readlinkat(&link, "", Vec::new())?;
    Ok(Some(PathBuf::from(OsString::from(
        target.to_string_lossy().into_owned(),
    ))))
}

/// Makes a directory whole before anybody sees it: under a name of its own first, with group and mode set by
/// descriptor. A bus has its mark from the first. `None` if another process has made one meanwhile.
pub(super) fn make_one(
    parent: BorrowedFd<'_>,
    name: &OsStr,
    mode: u32,
    group: Option<u32>,
    mark: Option<Mark>,
) -> io::Result<Option<OwnedFd>> {
    static SERIAL: AtomicU32 = AtomicU32::new(0);
    let serial = SERIAL.fetch_add(1, Relaxed);
    let fresh = format!(
        ".new.{}.{}.{serial}",
        Path::new(name).display(),
        std::process::id()
    );
    match rustix::fs::mkdirat(parent, fresh.as_str(), Mode::RWXU) {
        // Left by a process of this number, or a stranger's: the next serial is another name.
        Err(Errno::EXIST) => return Ok(None),
        result => result?,
    }
    let made =
        furnish(parent, &fresh, mode, group, mark).and_then(
            |made| match rustix::fs::renameat_with(
                parent,
                fresh.as_str(),
                parent,
                name,
                RenameFlags::NOREPLACE,
            ) {
                Err(Errno::EXIST) => Ok(None),
                result => Ok(result.map(|()| Some(made))?),
            },
        );
    if !matches!(made, Ok(Some(_))) {
        if mark.is_some()
            && let Ok(made) = open_path(parent, fresh.as_ref())
        {
            mark::remove(made.as_fd());
        }
        let _gone = rustix::fs::unlinkat(parent, fresh.as_str(), AtFlags::REMOVEDIR);
    }
    // A user who can write the parent may have swapped the two; so the caller opens and checks what has the name now.
    Ok(made?.and_then(|made| {
        let there = open_path(parent, name).ok()?;
        let (made, found) = (look(&made).ok()?, look(&there).ok()?);
        is_same(&made, &found).then_some(there)
    }))
}

/// Refuses to make something in a directory of a user who is neither this one nor root.
pub(super) fn check_maker(parent: &OwnedFd, path: &Path) -> io::Result<()> {
    let owner = look(parent)?.st_uid;
    if is_trusted(owner) {
        return Ok(());
    }
    Err(denied(format!(
        "{} would be made in a directory of user {owner}: make the directory of the bus as that user, or name another",
        path.display()
    )))
}

fn furnish(
    parent: BorrowedFd<'_>,
    name: &str,
    mode: u32,
    group: Option<u32>,
    mark: Option<Mark>,
) -> io::Result<OwnedFd> {
    let made = open(parent, name.as_ref())?;
    if look(&made)?.st_uid != own_user() {
        return Err(denied(format!("somebody has replaced directory `{name}`")));
    }
    // The group first: to change it may clear bits of the mode. The process's mask has no say.
    if let Some(group) = group {
        rustix::fs::fchown(&made, None, Some(Gid::from_raw(group)))?;
    }
    if let Some(mark) = mark {
        mark.put(made.as_fd())?;
    }
    rustix::fs::fchmod(&made, Mode::from_raw_mode(mode))?;
    Ok(made)
}

/// The kind of what has this name itself, not of what a link leads to; `None` if nothing has it.
pub(super) fn kind_of(directory: BorrowedFd<'_>, name: &OsStr) -> io::Result<Option<FileType>> {
    match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(found) => Ok(Some(FileType::from_raw_mode(found.st_mode))),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

pub(super) fn denied(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, why)
}
