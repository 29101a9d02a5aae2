//! An open directory that was checked, and the way to what lies below it.
//!
//! A path is walked component by component, each opened below the one before without following a link, and each
//! checked: `openat2` with `RESOLVE_NO_SYMLINKS` would open the last one alone, without the owners of its
//! parents. So one way serves all kernels.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, Dir, FileType, FlockOperation, Gid, Mode, OFlags, Stat, Uid};
use rustix::io::Errno;

use crate::StateError;

/// Attempts to open a directory that others may be making or removing. Lower, and an unlucky start fails; higher,
/// and two processes that undo each other's work go on for longer.
const ATTEMPTS: u32 = 32;

/// Most entries that a listing returns. Lower, and a busy bus would be listed in part; higher, and a user that may
/// create files there could take more of our memory.
const ENTRIES_MAX: usize = 65_536;

/// Pause between attempts to lock a directory.
const LOCK_PAUSE: Duration = Duration::from_millis(2);

/// The file whose lock is a directory's.
const LOCK: &str = ".lock";

pub(crate) const DIRECTORY_FLAGS: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// Users whose files are believed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Owner {
    /// The effective user of this process, and root.
    #[default]
    SelfOrRoot,
    /// One more user, such as the configured owner of a bus.
    Also(u32),
}

impl Owner {
    pub(crate) fn includes(self, user: u32) -> bool {
        let own = rustix::process::geteuid().as_raw();
        user == 0 || user == own || self == Owner::Also(user)
    }
}

/// A directory that is open and was checked: it belongs to this user or root, and no other user can replace what is
/// in it (they cannot write it, or it is sticky).
#[derive(Debug)]
pub struct Directory {
    descriptor: OwnedFd,
    path: PathBuf,
}

/// One entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub name: OsString,
    /// Its kind when it was listed.
    pub kind: EntryKind,
}

/// Kind of a directory entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A Unix socket.
    Socket,
    /// A symbolic link, a device, or something else.
    Other,
}

/// A socket in a directory, whatever becomes of its name.
#[derive(Debug)]
pub struct SocketEntry {
    entry: OwnedFd,
}

impl SocketEntry {
    /// Path for `connect`, which leads through this descriptor, as that of [`Directory::reachable`] does.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.entry.as_raw_fd()))
    }
}

/// A held lock on a directory, released when dropped.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Directory {
    /// Opens a directory, having checked each directory on the way to it. A relative path begins at the current one.
    pub fn open(path: &Path) -> Result<Directory, StateError> {
        walk(path, Last::Open, Owner::SelfOrRoot)
    }

    /// Opens a directory, and creates missing parts with the permission bits `mode`, without regard to the process's
    /// mask.
    pub fn make(path: &Path, mode: u32) -> Result<Directory, StateError> {
        walk(path, Last::Make(mode), Owner::SelfOrRoot)
    }

    /// Opens a directory of any owner, and returns that owner too: root has chosen it, because the parent directory is
    /// root's and no other user can write it. That one need not be readable.
    pub fn open_chosen_by_root(path: &Path) -> Result<(Directory, Owner), StateError> {
        let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(StateError::InvalidName { path: path.into() });
        };
        let above = walk(above, Last::Pass, Owner::SelfOrRoot)?;
        let found = stat_of(&above.descriptor, &above.path)?;
        if found.st_uid != 0 {
            return Err(StateError::ForeignOwner {
                path: above.path,
                owner: found.st_uid,
            });
        }
        // A sticky bit does not help here: any user that can write could have made the entry.
        if found.st_mode & 0o022 != 0 {
            return Err(StateError::WritableByOthers {
                path: above.path,
                mode: found.st_mode & 0o7777,
            });
        }
        let descriptor = open_component(above.as_fd(), name, DIRECTORY_FLAGS, path)?;
        let found = stat_of(&descriptor, path)?;
        let owner = Owner::Also(found.st_uid);
        check(&found, path, owner)?;
        let path = path.to_owned();
        Ok((Directory { descriptor, path }, owner))
    }

    /// Opens a directory in this one.
    pub fn open_below(
        &self,
        name: impl AsRef<OsStr>,
        owner: Owner,
    ) -> Result<Directory, StateError> {
        let name = plain(name.as_ref())?;
        let path = self.path.join(name);
        let descriptor = open_component(self.as_fd(), name, DIRECTORY_FLAGS, &path)?;
        check(&stat_of(&descriptor, &path)?, &path, owner)?;
        Ok(Directory { descriptor, path })
    }

    /// Opens a directory in this one and makes it with the permission bits `mode` where it is missing. Says whether
    /// it was made.
    pub fn make_below(
        &self,
        name: impl AsRef<OsStr>,
        mode: u32,
        owner: Owner,
    ) -> Result<(Directory, bool), StateError> {
        let name = plain(name.as_ref())?;
        let path = self.path.join(name);
        let (descriptor, made) = make_component(self.as_fd(), name, mode, &path)?;
        check(&stat_of(&descriptor, &path)?, &path, owner)?;
        Ok((Directory { descriptor, path }, made))
    }

    /// Wraps a directory that was just made under an unpredictable name.
    pub(crate) fn from_parts(descriptor: OwnedFd, path: PathBuf) -> Directory {
        Directory { descriptor, path }
    }

    /// Path by which it was opened, for messages. The owner of a parent directory may have moved it since.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Path of an entry for calls that take no descriptor, such as `bind` and `connect`. It leads through this
    /// descriptor, so it holds while the `Directory` lives and in this process only. Needs `/proc`.
    pub fn reachable(&self, name: impl AsRef<OsStr>) -> Result<PathBuf, StateError> {
        Ok(self.reachable_itself().join(plain(name.as_ref())?))
    }

    fn reachable_itself(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.descriptor.as_raw_fd()))
    }

    /// Holds a socket of the directory's owner, or of root, for `connect`: the entry itself, not where a link of that
    /// name leads.
    pub fn socket(&self, name: impl AsRef<OsStr>) -> Result<SocketEntry, StateError> {
        let (entry, found, path) = self.entry_itself(name.as_ref())?;
        if FileType::from_raw_mode(found.st_mode) != FileType::Socket {
            return Err(StateError::WrongKind {
                path,
                expected: "socket",
            });
        }
        check_owner(&found, &path, Owner::Also(self.owner()?))?;
        Ok(SocketEntry { entry })
    }

    /// Opens an entry as a path only, and says what it is and where. A link is refused.
    fn entry_itself(&self, name: &OsStr) -> Result<(OwnedFd, Stat, PathBuf), StateError> {
        let name = plain(name)?;
        let path = self.path.join(name);
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let entry = rustix::fs::openat(&self.descriptor, name, flags, Mode::empty())
            .map_err(StateError::errno("open", &path))?;
        let found = stat_of(&entry, &path)?;
        match FileType::from_raw_mode(found.st_mode) {
            FileType::Symlink => Err(StateError::SymbolicLink { path }),
            _ => Ok((entry, found, path)),
        }
    }

    /// Has a command start with this directory as its current one.
    pub fn enter(&self, command: &mut Command) {
        // Resolved in the new process before it closes its descriptors.
        command.current_dir(self.reachable_itself());
    }

    /// A second handle.
    pub fn try_clone(&self) -> Result<Directory, StateError> {
        let copied = self.descriptor.try_clone();
        Ok(Directory {
            descriptor: copied.map_err(StateError::io("open", &self.path))?,
            path: self.path.clone(),
        })
    }

    /// User id of the owner.
    pub fn owner(&self) -> Result<u32, StateError> {
        Ok(stat_of(&self.descriptor, &self.path)?.st_uid)
    }

    /// Gives the directory to another user. Only root can.
    pub fn give_to(&self, user: u32) -> Result<(), StateError> {
        rustix::fs::fchown(&self.descriptor, Some(Uid::from_raw(user)), None)
            .map_err(StateError::errno("change the owner of", &self.path))
    }

    /// Permission bits, with the sticky bit.
    pub fn mode(&self) -> Result<u32, StateError> {
        Ok(stat_of(&self.descriptor, &self.path)?.st_mode & 0o7777)
    }

    /// Sets permission bits, and the group where one is given. Only its owner and root can.
    pub fn set_access(&self, mode: u32, group: Option<u32>) -> Result<(), StateError> {
        // The group first: a change of owner or group clears bits of the mode.
        if let Some(group) = group {
            rustix::fs::fchown(&self.descriptor, None, Some(Gid::from_raw(group)))
                .map_err(StateError::errno("change the group of", &self.path))?;
        }
        rustix::fs::fchmod(&self.descriptor, Mode::from_raw_mode(mode))
            .map_err(StateError::errno("change the mode of", &self.path))
    }

    /// Sets the access of an entry that belongs to this user, such as a socket that was just bound.
    pub fn set_access_of(
        &self,
        name: impl AsRef<OsStr>,
        mode: u32,
        group: Option<u32>,
    ) -> Result<(), StateError> {
        let (entry, found, path) = self.entry_itself(name.as_ref())?;
        check_owner(&found, &path, Owner::SelfOrRoot)?;
        if let Some(group) = group {
            let group = Some(Gid::from_raw(group));
            rustix::fs::chownat(&entry, "", None, group, AtFlags::EMPTY_PATH)
                .map_err(StateError::errno("change the group of", &path))?;
        }
        // fchmod refuses a descriptor that is a path only, and fchmodat2 with an empty path is Linux 6.6; the
        // entry under /proc is this very file.
        let itself = format!("/proc/self/fd/{}", entry.as_raw_fd());
        rustix::fs::chmod(itself, Mode::from_raw_mode(mode))
            .map_err(StateError::errno("change the mode of", &path))
    }

    /// Gives an entry another name in this directory, replacing what has that name.
    pub fn rename(&self, from: impl AsRef<OsStr>, to: impl AsRef<OsStr>) -> Result<(), StateError> {
        let (from, to) = (plain(from.as_ref())?, plain(to.as_ref())?);
        rustix::fs::renameat(&self.descriptor, from, &self.descriptor, to)
            .map_err(StateError::errno("rename", &self.path.join(from)))
    }

    /// Removes a file, a socket or a link (itself, not where it leads).
    pub fn remove(&self, name: impl AsRef<OsStr>) -> Result<(), StateError> {
        self.unlink(name.as_ref(), AtFlags::empty())
    }

    /// Removes an empty directory.
    pub fn remove_directory(&self, name: impl AsRef<OsStr>) -> Result<(), StateError> {
        self.unlink(name.as_ref(), AtFlags::REMOVEDIR)
    }

    fn unlink(&self, name: &OsStr, flags: AtFlags) -> Result<(), StateError> {
        let name = plain(name)?;
        rustix::fs::unlinkat(&self.descriptor, name, flags)
            .map_err(StateError::errno("remove", &self.path.join(name)))
    }

    /// Removes a directory of this user with all that is in it, without following a link.
    pub fn remove_tree(&self, name: impl AsRef<OsStr>) -> Result<(), StateError> {
        let name = plain(name.as_ref())?;
        let path = self.path.join(name);
        let descriptor = open_component(self.as_fd(), name, DIRECTORY_FLAGS, &path)?;
        check_owner(&stat_of(&descriptor, &path)?, &path, Owner::SelfOrRoot)?;
        // The standard library walks the tree by descriptors (since its answer to CVE-2022-21658) and unlinks a
        // link instead of following it; only the path to the tree would be open to a race, and this one is not.
        std::fs::remove_dir_all(self.reachable(name)?).map_err(StateError::io("remove", &path))
    }

    /// Names in this directory and their kinds, at most 65,536.
    pub fn entries(&self) -> Result<Vec<Entry>, StateError> {
        let fail = |errno| StateError::errno("list", &self.path)(errno);
        let mut entries = Vec::new();
        for entry in Dir::read_from(&self.descriptor).map_err(fail)? {
            let entry = entry.map_err(fail)?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            if entries.len() == ENTRIES_MAX {
                break;
            }
            entries.push(Entry {
                name: name.to_owned(),
                kind: EntryKind::of(self.kind_of(name, entry.file_type())),
            });
        }
        Ok(entries)
    }

    /// The kind as listed; asked for where the file system lists none.
    fn kind_of(&self, name: &OsStr, listed: FileType) -> FileType {
        if listed != FileType::Unknown {
            return listed;
        }
        rustix::fs::statat(&self.descriptor, name, AtFlags::SYMLINK_NOFOLLOW)
            .map_or(listed, |found| FileType::from_raw_mode(found.st_mode))
    }

    /// Locks the directory against other holders of this lock, waiting no longer than `wait`. The lock is that of a
    /// file in it that only its owner and root can open: any user that can open the directory itself could lock
    /// that indefinitely.
    pub fn lock(&self, wait: Duration) -> Result<Lock, StateError> {
        // A lock belongs to an open file, so each holder opens its own.
        let own = self.open_lock()?;
        let deadline = Instant::now() + wait;
        loop {
            match rustix::fs::flock(&own, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Lock { _file: own }),
                Err(Errno::WOULDBLOCK | Errno::INTR) if Instant::now() < deadline => {
                    std::thread::sleep(LOCK_PAUSE);
                }
                Err(Errno::WOULDBLOCK | Errno::INTR) => {
                    return Err(StateError::Locked {
                        path: self.path.clone(),
                    });
                }
                Err(errno) => return Err(StateError::errno("lock", &self.path)(errno)),
            }
        }
    }

    /// Opens the file of the lock, and makes it where it is missing.
    fn open_lock(&self) -> Result<File, StateError> {
        let path = self.path.join(LOCK);
        let file = self.open_entry(OsStr::new(LOCK), OFlags::RDWR | OFlags::CREATE, 0o600)?;
        let found = stat_of(&file, &path)?;
        if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
            return Err(StateError::WrongKind {
                path,
                expected: "regular file",
            });
        }
        let owner = self.owner()?;
        check_owner(&found, &path, Owner::Also(owner))?;
        if found.st_uid != owner && rustix::process::geteuid().is_root() {
            // Made by root in a user's directory, it would keep that user out.
            rustix::fs::fchown(&file, Some(Uid::from_raw(owner)), None)
                .map_err(StateError::errno("change the owner of", &path))?;
        }
        if found.st_mode & 0o077 != 0 {
            // The whole directory was opened to others.
            rustix::fs::fchmod(&file, Mode::RUSR | Mode::WUSR)
                .map_err(StateError::errno("change the mode of", &path))?;
        }
        Ok(file)
    }

    /// Opens an entry with `flags` and without following a link. The caller checks what it is.
    pub(crate) fn open_entry(
        &self,
        name: &OsStr,
        flags: OFlags,
        mode: u32,
    ) -> Result<File, StateError> {
        let name = plain(name)?;
        let path = self.path.join(name);
        // NONBLOCK: opening a pipe would wait for its other end.
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
        match rustix::fs::openat(&self.descriptor, name, flags, Mode::from_raw_mode(mode)) {
            Ok(descriptor) => Ok(File::from(descriptor)),
            Err(Errno::LOOP) => Err(StateError::SymbolicLink { path }),
            Err(errno) => Err(StateError::errno("open", &path)(errno)),
        }
    }
}

impl AsFd for Directory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl EntryKind {
    fn of(kind: FileType) -> EntryKind {
        match kind {
            FileType::RegularFile => EntryKind::File,
            FileType::Directory => EntryKind::Directory,
            FileType::Socket => EntryKind::Socket,
            _ => EntryKind::Other,
        }
    }
}

/// A name that is one component of a path.
pub(crate) fn plain(name: &OsStr) -> Result<&OsStr, StateError> {
    let mut components = Path::new(name).components();
    match (components.next(), components.next()) {
        (Some(Component::Normal(only)), None) if only == name => Ok(name),
        _ => Err(StateError::InvalidName { path: name.into() }),
    }
}

/// Use of the last directory of a path.
#[derive(Clone, Copy)]
enum Last {
    /// To be made where it is missing, as are those on the way, with these permission bits.
    Make(u32),
    /// To be read.
    Open,
    /// To be passed only.
    Pass,
}

fn walk(path: &Path, target: Last, owner: Owner) -> Result<Directory, StateError> {
    let path = std::path::absolute(path).map_err(StateError::io("open", path))?;
    let root = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    // The root directory is not checked: its owner owns everything that this process can see.
    let mut descriptor = rustix::fs::open("/", root, Mode::empty())
        .map_err(StateError::errno("open", Path::new("/")))?;
    let mut reached = PathBuf::from("/");
    let mut components = path.components().peekable();
    while let Some(component) = components.next() {
        let name = match component {
            Component::RootDir | Component::CurDir => continue,
            Component::Normal(name) => name,
            _ => return Err(StateError::InvalidName { path }),
        };
        reached.push(name);
        let last = components.peek().is_none();
        descriptor = match target {
            Last::Make(mode) => make_component(descriptor.as_fd(), name, mode, &reached)?.0,
            // Directories on the way need not be readable.
            Last::Open if last => {
                open_component(descriptor.as_fd(), name, DIRECTORY_FLAGS, &reached)?
            }
            Last::Open | Last::Pass => open_component(
                descriptor.as_fd(),
                name,
                DIRECTORY_FLAGS | OFlags::PATH,
                &reached,
            )?,
        };
        let trusted = if last { owner } else { Owner::SelfOrRoot };
        check(&stat_of(&descriptor, &reached)?, &reached, trusted)?;
    }
    Ok(Directory { descriptor, path })
}

/// Opens one component, or makes it. Says whether it was made.
fn make_component(
    parent: BorrowedFd<'_>,
    name: &OsStr,
    mode: u32,
    path: &Path,
) -> Result<(OwnedFd, bool), StateError> {
    for _ in 0..ATTEMPTS {
        match open_component(parent, name, DIRECTORY_FLAGS, path) {
            Err(error) if error.is_absent() => {}
            // On the way, a directory that may be passed but not read.
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                return open_component(parent, name, DIRECTORY_FLAGS | OFlags::PATH, path)
                    .map(|descriptor| (descriptor, false))
                    .map_err(|_| error);
            }
            opened => return opened.map(|descriptor| (descriptor, false)),
        }
        // Without the bits for others until the mode is set below, whatever the mask is.
        match rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(mode & 0o700)) {
            Ok(()) => {}
            Err(Errno::EXIST) => continue,
            Err(errno) => return Err(StateError::errno("make", path)(errno)),
        }
        let descriptor = match open_component(parent, name, DIRECTORY_FLAGS, path) {
            // Taken away as empty.
            Err(error) if error.is_absent() => continue,
            opened => opened?,
        };
        // Another may have replaced it where every user may write; the caller's check would find that
        // too, but this must not change a stranger's directory.
        check_owner(&stat_of(&descriptor, path)?, path, Owner::SelfOrRoot)?;
        rustix::fs::fchmod(&descriptor, Mode::from_raw_mode(mode))
            .map_err(StateError::errno("change the mode of", path))?;
        return Ok((descriptor, true));
    }
    Err(StateError::Locked {
        path: path.to_owned(),
    })
}

fn open_component(
    parent: BorrowedFd<'_>,
    name: &OsStr,
    flags: OFlags,
    path: &Path,
) -> Result<OwnedFd, StateError> {
    rustix::fs::openat(parent, name, flags, Mode::empty()).map_err(|errno| {
        let kind = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)
            .map(|found| FileType::from_raw_mode(found.st_mode));
        let path = path.to_owned();
        match (errno, kind) {
            (Errno::LOOP | Errno::NOTDIR, Ok(FileType::Symlink)) => {
                StateError::SymbolicLink { path }
            }
            (Errno::NOTDIR, _) => StateError::WrongKind {
                path,
                expected: "directory",
            },
            _ => StateError::errno("open", &path)(errno),
        }
    })
}

pub(crate) fn stat_of(descriptor: impl AsFd, path: &Path) -> Result<Stat, StateError> {
    rustix::fs::fstat(descriptor).map_err(StateError::errno("look at", path))
}

/// Checks that this user or root owns the file.
pub(crate) fn check_owner(found: &Stat, path: &Path, owner: Owner) -> Result<(), StateError> {
    if owner.includes(found.st_uid) {
        Ok(())
    } else {
        Err(StateError::ForeignOwner {
            path: path.to_owned(),
            owner: found.st_uid,
        })
    }
}

/// Checks owner and mode: others can write only where the sticky bit keeps them from replacing what is not theirs.
fn check(found: &Stat, path: &Path, owner: Owner) -> Result<(), StateError> {
    check_owner(found, path, owner)?;
    let mode = found.st_mode & 0o7777;
    if mode & 0o022 != 0 && mode & 0o1000 == 0 {
        return Err(StateError::WritableByOthers {
            path: path.to_owned(),
            mode,
        });
    }
    Ok(())
}
