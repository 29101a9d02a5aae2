//! A bus in the file system: a directory in which each node has a directory of its own, with one socket for each open
//! port. Who comes first makes the bus, who leaves last removes it, and what a dead process left is cleared by its
//! user's next node, or root's. Only sockets with names of ours, empty directories and the files of locks and marks are
//! removed, and only in a directory that carries the mark of a bus.
//!
//! Trust: the bus is sticky if several users may write it, so no user renames or removes another's node. A node's
//! directory can be written by its user alone. So the owner of the directory has the name, and the kernel says who
//! that is.

use std::ffi::{OsStr, OsString};
use std::fs::Permissions;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use nix::unistd::Group;
use rustix::fs::{AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, Stat};
use rustix::io::Errno;
use tautline_proto::wire::PortNumber;
use tautline_state::fork::OwnerProcess;
use tautline_state::untrusted::{self, UntrustedListener, UntrustedSocket};

use super::config::BusConfig;
use super::mark::{self, Mark};
use super::observe::Member;
use super::place::{
    check_maker, denied, is_open_to_others, is_same, is_trusted, kind_of, look, make_one, open,
    open_path, own_user, path_through, walk,
};
use crate::address::{NodeName, PortName};
use crate::claim::Holder;
use crate::sys::seqpacket;

/// Where the buses of the system are, which root makes.
const SYSTEM: &str = "/run/tautline/vbus";
/// Attempts to open a directory that others may be removing. Each that fails means that another process
/// has just left, so a few suffice.
const ATTEMPTS: u32 = 32;
/// How long a process of the same user may hold the lock of a node's directory, which is for a few system calls.
/// Lower: a busy machine's nodes fail to open. Higher: a stopped process holds up others for longer.
const LOCK_LIMIT: Duration = Duration::from_secs(2);
const LOCK_PAUSE: Duration = Duration::from_millis(2);
/// The file by which a node's directory is locked. Only its user can open it, so no other user can hold the lock.
const LOCK: &str = ".lock";
/// Entries of a directory that are looked at. Lower: a bus with many nodes is listed in part. Higher: a member who
/// fills the bus with names takes more of a watcher's time.
const ENTRIES_MAX: usize = 4096;
/// Kept for all who use a bus that several may write: only its owner removes a name, and what is made in it has its
/// group.
const SHARED: u32 = 0o3000;

/// A bus that this process takes part in.
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    bus: OwnedFd,
    node: NodeName,
    place: OwnedFd,
    socket_mode: u32,
    /// The name that keeps the directory from being removed while this node is there.
    presence: String,
    process: OwnerProcess,
    _listening: UntrustedListener,
}

#[derive(Debug)]
pub(crate) enum BindError {
    Taken(Option<Holder>),
    Io(io::Error),
}

impl From<io::Error> for BindError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// The directory of a bus. A name with a slash is a path. Otherwise a bus of the system if there is
/// one of that name or we are root, and one of the user if not.
pub(crate) fn path_of(bus: &str) -> PathBuf {
    if bus.contains('/') {
        return PathBuf::from(bus);
    }
    let system = Path::new(SYSTEM).join(bus);
    if system.is_dir() || rustix::process::geteuid().is_root() {
        return system;
    }
    user_base().join(bus)
}

/// Where buses may be: the system's, and the user's.
pub(crate) fn bases() -> [PathBuf; 2] {
    [PathBuf::from(SYSTEM), user_base()]
}

/// Never below a directory for temporary files, where a stranger may have made it first.
fn user_base() -> PathBuf {
    let runtime = match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(directory) if !directory.is_empty() => PathBuf::from(directory),
        _ => PathBuf::from(format!("/run/user/{}", own_user())),
    };
    runtime.join("tautline").join("vbus")
}

/// The port in the name of its socket, if it is one.
fn parse_socket_name(name: &str) -> Option<PortNumber> {
    PortNumber::new(name.parse().ok()?)
}

/// The process in the name of a presence, if it is one.
fn parse_presence_name(name: &str) -> Option<u32> {
    let (process, serial) = name.strip_prefix('.')?.split_once('.')?;
    let _serial: u32 = serial.parse().ok()?;
    process.parse().ok()
}

/// Whether a socket of ours can have this name: a port's, that of one that is being opened, or a presence.
fn is_socket_name(name: &str) -> bool {
    let port = name.strip_prefix('.').unwrap_or(name);
    parse_socket_name(port).is_some() || parse_presence_name(name).is_some()
}

/// Opens a bus to look at it, whichever user owns it.
pub(crate) fn open_to_watch(path: &Path) -> io::Result<OwnedFd> {
    let bus = walk(path, None)?;
    open(bus.as_fd(), ".".as_ref())
}

/// Adds the live processes and ports of a bus, by node.
pub(crate) fn list(
    bus: BorrowedFd<'_>,
    members: &mut Vec<Member>,
    ports: &mut Vec<PortName>,
) -> io::Result<()> {
    for name in names(bus)? {
        let Some(node) = node_of(&name) else {
            continue;
        };
        // Removed meanwhile, not a directory, or not for this user.
        let Ok(place) = open(bus, &name) else {
            continue;
        };
        for name in names(place.as_fd())? {
            let Some(name) = name.to_str() else { continue };
            let (process, port) = (parse_presence_name(name), parse_socket_name(name));
            if (process.is_none() && port.is_none()) || is_dead(place.as_fd(), name) {
                continue;
            }
            let member = |process| Member {
                node: node.to_string(),
                process,
            };
            members.extend(process.map(member));
            ports.extend(port.map(|port| PortName { node, port }));
        }
    }
    Ok(())
}

fn node_of(name: &OsStr) -> Option<NodeName> {
    name.to_str()?.parse().ok()
}

/// The user to whom a node's name belongs: the owner of its directory, which no other user may be able to write.
fn owner_in(bus: BorrowedFd<'_>, node: NodeName) -> io::Result<(OwnedFd, u32)> {
    let place = open_path(bus, node.as_str().as_ref())?;
    let found = look(&place)?;
    if is_open_to_others(&found) {
        return Err(denied(format!(
            "others can write the directory of node {node} on the bus"
        )));
    }
    Ok((place, found.st_uid))
}

/// Connects to a port. The process that listens is of the user who owns the node's name. Never waits.
pub(crate) fn connect_in(
    bus: BorrowedFd<'_>,
    node: NodeName,
    port: PortNumber,
) -> io::Result<UntrustedSocket> {
    let (place, owner) = owner_in(bus, node)?;
    let socket = seqpacket::connect(&path_through(place.as_fd(), &port.to_string()))?;
    let user = untrusted::peer(&socket)?.uid;
    if user != owner {
        return Err(denied(format!(
            "port {port} of node {node} is held by user {user}, and the name belongs to user {owner}"
        )));
    }
    Ok(socket)
}

impl Directory {
    /// Opens or makes the bus, and the node's directory in it, and clears what dead processes have left.
    pub(crate) fn open(config: &BusConfig) -> io::Result<Self> {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let path = path_of(&config.name);
        let sharing = Sharing::of(config)?;
        let serial = SERIAL.fetch_add(1, Relaxed);
        let presence = format!(".{}.{serial}", std::process::id());
        let socket_mode = config.mode & 0o666;
        for _ in 0..ATTEMPTS {
            let Some((bus, mark)) = open_bus(&path, &sharing)? else {
                continue;
            };
            let place = match open_place(bus.as_fd(), config.node, &sharing) {
                // The last to leave has removed the bus, or the node's directory, meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                result => match result? {
                    Some(place) => place,
                    None => continue,
                },
            };
            let Some(_locked) = lock(place.as_fd(), OFlags::CREATE, LOCK_LIMIT)? else {
                continue;
            };
            // A process that left may have taken the mark away before this node's directory was there.
            mark.put(bus.as_fd())?;
            sweep(place.as_fd())?;
            let listening = listen(place.as_fd(), &presence, socket_mode)?;
            return Ok(Self {
                path,
                bus,
                node: config.node,
                place,
                socket_mode,
                presence,
                process: OwnerProcess::current(),
                _listening: listening,
            });
        }
        Err(io::Error::other("the bus is made and removed all the time"))
    }

    /// Takes a port's name: a listening socket appears under it.
    pub(crate) fn bind(&self, port: PortNumber) -> Result<UntrustedListener, BindError> {
        let place = self.place.as_fd();
        let removed = || io::Error::other("the node's directory on the bus has been removed");
        let _locked = lock(place, OFlags::empty(), LOCK_LIMIT)?.ok_or_else(removed)?;
        let name = port.to_string();
        match seqpacket::connect(&path_through(place, &name)) {
            Ok(other) => {
                let holder = untrusted::peer(&other).ok().filter(|peer| peer.pid != 0);
                return Err(BindError::Taken(holder.map(|peer| Holder::of(peer.pid))));
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(BindError::Taken(None));
            }
            // No process, or one that died.
            Err(_) => {}
        }
        match kind_of(place, name.as_ref())? {
            None | Some(FileType::Socket) => {}
            Some(_) => {
                let message =
                    format!("`{name}` in the node's directory on the bus is not a socket");
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, message).into());
            }
        }
        // Under another name first, so that who finds it can connect at once.
        let fresh = format!(".{name}");
        let socket = listen(place, &fresh, self.socket_mode)?;
        rustix::fs::renameat(place, fresh.as_str(), place, name.as_str())
            .map_err(io::Error::from)?;
        Ok(socket)
    }

    /// Gives a port's name up; not in a forked process, whose parent has it.
    pub(crate) fn unbind(&self, port: PortNumber) {
        if self.process.is_current()
            && let Ok(Some(_locked)) = lock(self.place.as_fd(), OFlags::empty(), LOCK_LIMIT)
        {
            remove_socket(self.place.as_fd(), port.to_string().as_ref());
        }
    }

    /// Connects to a port of this bus. Never waits.
    pub(crate) fn connect(&self, node: NodeName, port: PortNumber) -> io::Result<UntrustedSocket> {
        connect_in(self.bus.as_fd(), node, port)
    }

    pub(crate) fn owner(&self, node: NodeName) -> io::Result<u32> {
        Ok(owner_in(self.bus.as_fd(), node)?.1)
    }

    /// Paths in which a port of this node appears: a name in the bus, and then in the node's directory.
    pub(crate) fn watched(&self, node: NodeName) -> [PathBuf; 2] {
        let bus = self.bus.as_fd();
        [path_through(bus, "."), path_through(bus, node.as_str())]
    }

    /// Clears what dead processes left, as far as this user may, and removes what is not used.
    fn leave(&self) -> io::Result<()> {
        {
            let place = self.place.as_fd();
            if let Some(_locked) = lock(place, OFlags::empty(), LOCK_LIMIT)? {
                remove_socket(place, self.presence.as_ref());
                clear(self.bus.as_fd(), place, self.node.as_str().as_ref())?;
            }
        }
        clear_bus(&self.path, self.bus.as_fd())
    }
}

/// Clears what dead processes left on a bus, as far as this user may, and removes it if it is not used.
///
/// # Errors
/// Those of removing it; it carries no mark.
pub(crate) fn clear_bus(path: &Path, bus: BorrowedFd<'_>) -> io::Result<()> {
    if mark::find(bus)?.is_none() {
        return Err(denied(format!(
            "{} carries no mark of a bus",
            path.display()
        )));
    }
    for name in names(bus)? {
        if node_of(&name).is_none() {
            continue;
        }
        let Ok(place) = open(bus, &name) else {
            continue;
        };
        // Of this user, or of any user for root. A process that is busy there clears it.
        let owner = look(&place)?.st_uid;
        let may_clear = owner == own_user() || rustix::process::geteuid().is_root();
        if !may_clear {
            continue;
        }
        // One that cannot be cleared is no reason to keep the others.
        let _kept = match lock(place.as_fd(), OFlags::empty(), Duration::ZERO) {
            Ok(Some(_locked)) => clear(bus, place.as_fd(), &name),
            // Killed before it had a lock. Refused if it is not empty.
            Ok(None) => remove_directory(bus, &name),
            Err(error) => Err(error),
        };
    }
    if !mark::remove_last(bus)? {
        return Ok(());
    }
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Ok(());
    };
    let parent = walk(parent, None)?;
    let there = rustix::fs::statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
    if is_same(&there, &look(bus)?) {
        // Refused while others are there, who see the mark again.
        if let Err(error) = remove_directory(parent.as_fd(), name) {
            Mark::Made.put(bus)?;
            return Err(error);
        }
    }
    Ok(())
}

fn remove_directory(parent: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
    Ok(rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR)?)
}

impl Drop for Directory {
    fn drop(&mut self) {
        if self.process.is_current() {
            // The next node clears what cannot be removed.
            let _left = self.leave();
        }
    }
}

/// With whom a node means to share its bus, by number.
struct Sharing {
    mode: u32,
    group: Option<u32>,
}

impl Sharing {
    fn of(config: &BusConfig) -> io::Result<Self> {
        Ok(Self {
            mode: config.mode,
            group: config.group.as_deref().map(group_id).transpose()?,
        })
    }

    /// The permission bits of the bus, if this node makes it.
    fn bus_mode(&self) -> u32 {
        if self.mode & 0o022 == 0 {
            self.mode
        } else {
            self.mode | SHARED
        }
    }

    /// Why a bus of this user is not trusted; its owner can take every name on it.
    fn check(&self, path: &Path, found: &Stat) -> io::Result<()> {
        let owner = found.st_uid;
        let group = self.group.unwrap_or(rustix::process::getegid().as_raw());
        let is_trusted = is_trusted(owner)
            // Made by another member: only those of the group can make a directory of the group.
            || self.mode & 0o020 != 0 && found.st_gid == group && found.st_mode & 0o070 != 0
            || self.mode & 0o002 != 0;
        if is_trusted {
            return Ok(());
        }
        Err(denied(format!(
            "{} belongs to user {owner}: set `bus_mode` and `bus_group` to share it with that user's group",
            path.display()
        )))
    }
}

/// A group's number, from its name or number.
fn group_id(group: &str) -> io::Result<u32> {
    if let Ok(number) = group.parse() {
        return Ok(number);
    }
    let found = Group::from_name(group)?.map(|group| group.gid.as_raw());
    let absent = || {
        io::Error::new(
            io::ErrorKind::NotFound,
            format!("there is no group `{group}`"),
        )
    };
    found.ok_or_else(absent)
}

/// Opens a bus, which is made if it is not there. `None`: another process is making or removing it.
fn open_bus(path: &Path, sharing: &Sharing) -> io::Result<Option<(OwnedFd, Mark)>> {
    let (Some(base), Some(name)) = (path.parent(), path.file_name()) else {
        let message = format!("{} is no path of a bus", path.display());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    };
    let base = open_base(base)?;
    let bus = match open(base.as_fd(), name) {
        Ok(bus) => bus,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            check_maker(&base, path)?;
            let (mode, mark) = (sharing.bus_mode(), Some(Mark::Made));
            if make_one(base.as_fd(), name, mode, sharing.group, mark)?.is_none() {
                return Ok(None);
            }
            match open(base.as_fd(), name) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                result => result?,
            }
        }
        // A link: followed if it can be trusted.
        Err(_) => open(walk(path, None)?.as_fd(), ".".as_ref())?,
    };
    let found = look(&bus)?;
    sharing.check(path, &found)?;
    let mark = mark::require(bus.as_fd(), path)?;
    if is_open_to_others(&found) && found.st_mode & 0o1000 == 0 {
        return Err(denied(format!(
            "{} can be written by several users and is not sticky, so each could replace the others' ports: chmod +t,g+s",
            path.display()
        )));
    }
    Ok(Some((bus, mark)))
}

/// The directory in which a bus is or shall be.
fn open_base(base: &Path) -> io::Result<OwnedFd> {
    if base != user_base() {
        let mode = if base == Path::new(SYSTEM) {
            0o755
        } else {
            0o700
        };
        return walk(base, Some(mode));
    }
    let runtime = base.ancestors().nth(2).unwrap_or(base);
    let advice = "log in through systemd-logind, set XDG_RUNTIME_DIR to a directory that belongs to you alone, or \
                  give the path of the bus";
    let opened = walk(runtime, None).map_err(|error| {
        let message = format!(
            "there is no directory for buses of user {} ({}: {error}): {advice}",
            own_user(),
            runtime.display()
        );
        io::Error::new(error.kind(), message)
    })?;
    let found = look(&opened)?;
    if found.st_uid != own_user() || is_open_to_others(&found) {
        return Err(denied(format!(
            "{} (mode {:o}, of user {}) can be changed by others, who could put their own bus there: {advice}",
            runtime.display(),
            found.st_mode & 0o7777,
            found.st_uid
        )));
    }
    walk(base, Some(0o700))
}

/// Opens the directory of a node, which is made if it is not there. `None`: another process is making it.
fn open_place(
    bus: BorrowedFd<'_>,
    node: NodeName,
    sharing: &Sharing,
) -> io::Result<Option<OwnedFd>> {
    let name: &OsStr = node.as_str().as_ref();
    // Others may pass and list it if they may do so on the bus. The group is the bus's where that is shared.
    let mode = sharing.mode & 0o755 | 0o2700;
    let place = match open(bus, name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            if make_one(bus, name, mode, sharing.group, None)?.is_none() {
                return Ok(None);
            }
            open(bus, name)
        }
        result => result,
    };
    if place
        .as_ref()
        .is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    {
        return place.map(Some);
    }
    // Something else may have the name, or a directory that is not for this user.
    let owner = rustix::fs::statat(bus, name, AtFlags::SYMLINK_NOFOLLOW)?.st_uid;
    let Ok(place) = place else {
        return Err(denied(format!(
            "the name `{node}` on the bus belongs to user {owner}"
        )));
    };
    let found = look(&place)?;
    if found.st_uid != own_user() || is_open_to_others(&found) {
        return Err(denied(format!(
            "the name `{node}` on the bus belongs to user {owner}, or others can write its directory"
        )));
    }
    Ok(Some(place))
}

/// Listens under a name in a directory that only this user can write.
fn listen(place: BorrowedFd<'_>, name: &str, mode: u32) -> io::Result<UntrustedListener> {
    remove_socket(place, name.as_ref());
    let path = path_through(place, name);
    let socket = seqpacket::listen(&path, mode)?;
    // The process's mask may have taken bits away.
    std::fs::set_permissions(path, Permissions::from_mode(mode))?;
    Ok(socket)
}

/// Locks a node's directory until the result is dropped; `None` if it has been removed meanwhile, or has no file of a
/// lock. `make` is `OFlags::CREATE` for the node that opens its own directory, and empty for all others.
fn lock(place: BorrowedFd<'_>, make: OFlags, limit: Duration) -> io::Result<Option<OwnedFd>> {
    let flags = make | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // To open another user's pipe must not wait for its other end.
    let flags = flags | OFlags::NONBLOCK;
    let deadline = Instant::now() + limit;
    loop {
        let file = match rustix::fs::openat(place, LOCK, flags, Mode::RUSR | Mode::WUSR) {
            Err(Errno::NOENT) => return Ok(None),
            result => result?,
        };
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {
                // The last node that left may have removed the file.
                match rustix::fs::statat(place, LOCK, AtFlags::SYMLINK_NOFOLLOW) {
                    Ok(there) if is_same(&there, &look(&file)?) => return Ok(Some(file)),
                    Ok(_) | Err(Errno::NOENT) => continue,
                    Err(error) => return Err(error.into()),
                }
            }
            Err(Errno::WOULDBLOCK | Errno::INTR) if Instant::now() < deadline => {
                std::thread::sleep(LOCK_PAUSE);
            }
            Err(Errno::WOULDBLOCK | Errno::INTR) => {
                let message = "another process of this user has held the node's directory on the bus for too long";
                return Err(io::Error::new(io::ErrorKind::TimedOut, message));
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Removes a node's directory if it is not used. It is locked.
fn clear(bus: BorrowedFd<'_>, place: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
    sweep(place)?;
    if names(place)? == [LOCK] {
        let lock = rustix::fs::statat(place, LOCK, AtFlags::SYMLINK_NOFOLLOW)?;
        if lock.st_size == 0 {
            rustix::fs::unlinkat(place, LOCK, AtFlags::empty())?;
            remove_directory(bus, name)?;
        }
    }
    Ok(())
}

/// Removes the sockets without a listener. The directory is locked.
fn sweep(place: BorrowedFd<'_>) -> io::Result<()> {
    for name in names(place)? {
        if let Some(text) = name.to_str()
            && is_socket_name(text)
            && is_dead(place, text)
        {
            remove_socket(place, &name);
        }
    }
    Ok(())
}

fn is_dead(place: BorrowedFd<'_>, name: &str) -> bool {
    let connected = seqpacket::connect(&path_through(place, name));
    connected.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

/// Removes a socket. Whatever else has the name stays: connecting to a file is refused as to a dead socket.
fn remove_socket(directory: BorrowedFd<'_>, name: &OsStr) {
    if kind_of(directory, name).ok().flatten() == Some(FileType::Socket) {
        // Gone already, or the next to come clears it.
        let _gone = rustix::fs::unlinkat(directory, name, AtFlags::empty());
    }
}

pub(super) fn names(directory: BorrowedFd<'_>) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name != "." && name != ".." {
            names.push(name.to_owned());
        }
        if names.len() == ENTRIES_MAX {
            break;
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn config(test: &str) -> BusConfig {
        let name = std::env::temp_dir().join(format!("taut-bus-{test}-{}", std::process::id()));
        BusConfig {
            mode: 0o750,
            ..BusConfig::new(name.to_str().unwrap(), "motor".parse().unwrap())
        }
    }

    #[test]
    fn who_comes_first_makes_it_and_the_last_removes_it() {
        let config = config("last");
        let first = Directory::open(&config).unwrap();
        let mode = std::fs::metadata(&first.path).unwrap().mode();
        assert_eq!(mode & 0o7777, 0o750);
        let other = BusConfig {
            mode: 0o700,
            ..config.clone()
        };
        let second = Directory::open(&other).unwrap();
        let mode = std::fs::metadata(&first.path).unwrap().mode();
        assert_eq!(mode & 0o7777, 0o750, "who comes second changes nothing");
        drop(first);
        assert!(second.path.exists());
        let path = second.path.clone();
        drop(second);
        assert!(!path.exists());
    }

    fn port(number: u16) -> PortNumber {
        PortNumber::new(number).unwrap()
    }

    #[test]
    fn a_name_is_had_once_and_again_after_a_crash() {
        let config = config("name");
        let directory = Directory::open(&config).unwrap();
        let place = directory.path.join("motor");
        let held = directory.bind(port(7)).unwrap();
        let Err(BindError::Taken(Some(holder))) = directory.bind(port(7)) else {
            panic!("taken twice");
        };
        assert_eq!(holder.pid, std::process::id() as i32);
        // A process that dies leaves its socket's name behind.
        drop(held);
        assert!(place.join("7").exists() && is_dead(directory.place.as_fd(), "7"));
        let again = directory.bind(port(7)).unwrap();
        drop(again);
        let other = Directory::open(&config).unwrap();
        assert!(!place.join("7").exists(), "cleared by the next");
        drop(other);
        let socket = directory.bind(port(8)).unwrap();
        directory.unbind(port(8));
        drop(socket);
        assert!(!place.join("8").exists());
    }

    #[test]
    fn a_directory_with_other_things_in_it_is_no_bus() {
        let config = config("home");
        let home = PathBuf::from(&config.name);
        std::fs::create_dir_all(home.join("motor")).unwrap();
        std::fs::write(home.join("motor/7"), "key").unwrap();
        let names = || {
            let entries = std::fs::read_dir(home.join("motor")).unwrap();
            entries
                .map(|entry| entry.unwrap().file_name())
                .collect::<Vec<_>>()
        };
        let refused = Directory::open(&config).unwrap_err().to_string();
        assert!(
            refused.contains("is not a bus: it contains `motor`"),
            "{refused}"
        );
        let bus = open_to_watch(&home).unwrap();
        assert!(clear_bus(&home, bus.as_fd()).is_err());
        assert_eq!(names(), ["7"]);
        assert_eq!(std::fs::read_dir(&home).unwrap().count(), 1);
        std::fs::remove_dir_all(home).unwrap();
    }

    #[test]
    fn nothing_but_sockets_of_ours_is_removed_or_replaced() {
        let config = config("files");
        let directory = Directory::open(&config).unwrap();
        let bus = directory.path.clone();
        let place = bus.join("motor");
        for name in ["7", ".8", ".1.2", "notes"] {
            std::fs::write(place.join(name), "mine").unwrap();
        }
        // A dead socket of another program.
        drop(std::os::unix::net::UnixListener::bind(place.join("other.sock")).unwrap());
        std::fs::create_dir(bus.join("arm")).unwrap();
        std::fs::write(bus.join("arm/key"), "mine").unwrap();
        for number in [7, 8] {
            assert!(matches!(
                directory.bind(port(number)),
                Err(BindError::Io(_))
            ));
            directory.unbind(port(number));
        }
        drop(Directory::open(&config).unwrap());
        drop(directory);
        for name in [
            "motor/7",
            "motor/.8",
            "motor/.1.2",
            "motor/notes",
            "arm/key",
        ] {
            assert_eq!(
                std::fs::read_to_string(bus.join(name)).unwrap(),
                "mine",
                "{name}"
            );
        }
        assert!(place.join("other.sock").exists());
        assert!(!bus.join("arm").join(LOCK).exists());
        // The bus still carries its mark, so it can be joined.
        drop(Directory::open(&config).unwrap());
        std::fs::remove_dir_all(bus).unwrap();
    }

    #[test]
    fn an_empty_directory_becomes_a_bus_and_stays() {
        let config = config("found");
        std::fs::create_dir(&config.name).unwrap();
        drop(Directory::open(&config).unwrap());
        assert_eq!(std::fs::read_dir(&config.name).unwrap().count(), 0);
        std::fs::remove_dir(&config.name).unwrap();
    }

    #[test]
    fn nothing_is_made_in_the_directory_of_another_user() {
        let base = PathBuf::from(config("theirs").name);
        std::fs::create_dir(&base).unwrap();
        if std::os::unix::fs::chown(&base, Some(65_534), None).is_err() {
            println!("SKIPPED: only root can give a directory away");
        } else {
            for name in ["bus", "above/bus"] {
                let name = base.join(name);
                let config = BusConfig::new(name.to_str().unwrap(), "motor".parse().unwrap());
                let refused = Directory::open(&config).unwrap_err().to_string();
                assert!(refused.contains("directory of user 65534"), "{refused}");
            }
        }
        std::fs::remove_dir(&base).unwrap();
    }

    #[test]
    fn a_socket_has_its_mode_from_the_first_whatever_the_mask() {
        let config = BusConfig {
            mode: 0o770,
            ..config("mode")
        };
        let directory = Directory::open(&config).unwrap();
        let mode = |name: &str| {
            let path = directory.path.join(name);
            std::fs::symlink_metadata(path).unwrap().mode() & 0o7777
        };
        let _socket = directory.bind(port(7)).unwrap();
        assert_eq!(mode("motor/7"), 0o660);
        assert_eq!(mode("motor") & 0o777, 0o750);
        assert_eq!(mode("."), 0o3770);
    }

    #[test]
    fn names_in_a_bus_are_ports_or_presences() {
        let node: NodeName = "arm.left".parse().unwrap();
        let port = PortNumber::MIN;
        let name = PortName { node, port };
        assert_eq!(name.to_string(), "arm.left.1");
        assert_eq!("arm.left.1".parse(), Ok(name));
        assert_eq!(parse_presence_name(".12.3"), Some(12));
        for other in ["motor", "motor.", "motor.0", "motor.x", ".motor.1", "4096"] {
            assert!(other.parse::<PortName>().is_err(), "{other}");
            assert_eq!(parse_socket_name(other), None, "{other}");
            assert_eq!(parse_presence_name(other), None, "{other}");
        }
    }
}
