//! The sockets and claims of a network namespace: files in a directory of its own below the runtime directory
//! (`/run/tautline/net-1` for root), since interfaces and port numbers are a network namespace's own too.
//!
//! Abstract names, which go with the process, could be taken by another process first. What lies here can be made by
//! the directory's owner only; what a killed process leaves is known by its lock, or by the missing answer.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::net::{SocketAddrUnix, SocketType};
use tautline_state::untrusted::{self, UntrustedListener, UntrustedSocket};
use tautline_state::{Directory, EntryKind, Owner, StateError, runtime_directory};

use crate::sys::descriptor_kind::is_bpf_file_system;
use crate::sys::{namespace, unix};

/// Directories of network namespaces that are looked through for what is left of them, when one is made. Lower:
/// they are taken away later. Higher: the first node of a network namespace opens later.
const SWEPT_MAX: usize = 64;
/// Attempts to make a file whose directory another process removes as empty at the same moment. Lower: where many
/// network namespaces begin at once, a start can fail. Higher: no difference, as each sweeps once.
const ATTEMPTS: u32 = 32;
/// Time before the second attempt; before the third it is twice as long, and so on, 0.5 s in all. Lower: on a busy
/// machine all attempts fall into one moment. Higher: where many begin at once, each begins later.
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(1);
/// Time between attempts to connect where too many wait already. Lower: more of a busy machine goes into trying.
/// Higher: a client is served later than it could be.
const BETWEEN_CONNECTS: Duration = Duration::from_millis(2);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// Control processes' sockets, which everybody may connect to.
    Control,
    /// Locks on port numbers and interfaces, for the owner only.
    Claims,
    /// Sockets on which nodes tell their status to their own user, and to root.
    Nodes,
}

impl Room {
    fn name_and_mode(self) -> (&'static str, u32) {
        match self {
            Self::Control => ("control", 0o755),
            Self::Claims => ("claims", 0o700),
            Self::Nodes => ("nodes", 0o700),
        }
    }
}

/// A room of this user's, made where it is missing, for the network namespace of this thread.
pub(crate) fn make(room: Room) -> Result<Directory, StateError> {
    make_in(room, |_| Ok(())).map(|(directory, _)| directory)
}

/// Makes something in a room of this user's. Until it is there, a sweep may take the room away as empty; then it is
/// done again in a fresh one. Returns the room too.
pub(crate) fn make_in<T>(
    room: Room,
    make_it: impl Fn(&Directory) -> io::Result<T>,
) -> Result<(Directory, io::Result<T>), StateError> {
    let runtime = runtime_directory()?;
    let name = namespace_name().map_err(|source| StateError::Io {
        action: "ask for the network namespace of",
        path: runtime.path().to_owned(),
        source,
    })?;
    for attempt in 1.. {
        let is_last = attempt == ATTEMPTS;
        match make_below(&runtime, &name, room) {
            Err(error) if error.is_absent() && !is_last => {}
            Err(error) => return Err(error),
            Ok(directory) => match make_it(&directory) {
                Err(error) if error.kind() == io::ErrorKind::NotFound && !is_last => {}
                made => return Ok((directory, made)),
            },
        }
        std::thread::sleep(BETWEEN_ATTEMPTS * attempt);
    }
    unreachable!("the last attempt returns")
}

fn make_below(runtime: &Directory, name: &str, room: Room) -> Result<Directory, StateError> {
    let (of_namespace, made) = runtime.make_below(name, 0o755, Owner::SelfOrRoot)?;
    if made {
        sweep(runtime, name);
    }
    let (room, mode) = room.name_and_mode();
    let (directory, _made) = of_namespace.make_below(room, mode, Owner::SelfOrRoot)?;
    Ok(directory)
}

/// The rooms of this kind that this process believes: root's, this user's own, and of control sockets those of the
/// users whom root has set up for control processes.
pub(crate) fn find(room: Room) -> Vec<Directory> {
    let Ok(name) = namespace_name() else {
        return Vec::new();
    };
    let known = tautline_state::known_runtime_directories().into_iter();
    let known = known.map(|runtime| (runtime, Owner::SelfOrRoot));
    let others = match room {
        Room::Control => of_others(),
        Room::Claims | Room::Nodes => Vec::new(),
    };
    let others = others
        .into_iter()
        .map(|(runtime, user)| (runtime, Owner::Also(user)));
    let below = |(runtime, owner)| below(&runtime, &name, room, owner);
    known.chain(others).filter_map(below).collect()
}

/// The runtime directories of control processes of other users that root has chosen, and those users.
fn of_others() -> Vec<(Directory, u32)> {
    let mounted = tautline_state::mounted_runtime_directories();
    service_of_another().into_iter().chain(mounted).collect()
}

/// The runtime directory of control processes that run as a user who is neither root nor this process's, and that user.
fn service_of_another() -> Option<(Directory, u32)> {
    let own = rustix::process::geteuid().as_raw();
    tautline_state::service_directory().filter(|(_, user)| *user != own)
}

/// Whether a process of this user can be a control process that this process believes, if its socket lies in a room
/// that it believes: root's, this user's own, or of whom root has set up for that.
pub(crate) fn believes(user: u32) -> bool {
    let own = rustix::process::geteuid().as_raw();
    user == 0 || user == own || of_others().iter().any(|(_, other)| user == *other)
}

/// Room of claims of the control processes that run as another user than root, for root alone: with the claims that it
/// holds there root's nodes and those processes keep each other from port numbers. Returns its user too.
pub(crate) fn make_claims_of_service() -> Option<(Directory, u32)> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let (runtime, user) = service_of_another()?;
    let (name, mode) = Room::Claims.name_and_mode();
    let of_namespace = make_given(&runtime, &namespace_name().ok()?, 0o755, user)?;
    Some((make_given(&of_namespace, name, mode, user)?, user))
}

/// A directory below that of another user, made where it is missing and given to that user.
fn make_given(parent: &Directory, name: &str, mode: u32, user: u32) -> Option<Directory> {
    let (directory, made) = parent.make_below(name, mode, Owner::Also(user)).ok()?;
    // Never one that was there: its owner may have moved another user's directory to this place.
    if made {
        directory.give_to(user).ok()?;
    }
    Some(directory)
}

/// Directory of a mounted BPF file system that a service manager gives this user's control processes.
pub(crate) fn bpf_directory() -> Option<Directory> {
    let runtime = runtime_directory().ok()?;
    let directory = runtime.open_below("bpf", Owner::SelfOrRoot).ok()?;
    is_bpf_file_system(std::os::fd::AsFd::as_fd(&directory))
        .ok()?
        .then_some(directory)
}

/// The rooms of users who are logged in, for root, who may ask their nodes.
pub(crate) fn find_of_users(room: Room) -> Vec<Directory> {
    let Ok(name) = namespace_name() else {
        return Vec::new();
    };
    let of_users = tautline_state::runtime_directories_of_users().into_iter();
    let below = |(runtime, owner): (Directory, Owner)| below(&runtime, &name, room, owner);
    of_users.filter_map(below).collect()
}

fn below(runtime: &Directory, name: &str, room: Room, owner: Owner) -> Option<Directory> {
    let of_namespace = runtime.open_below(name, owner).ok()?;
    of_namespace.open_below(room.name_and_mode().0, owner).ok()
}

/// Name of the directory of this thread's network namespace. Numbers of namespaces are never given twice; before Linux
/// 5.14 there is only the inode, which can be.
pub(crate) fn namespace_name() -> io::Result<String> {
    let socket = untrusted::unnamed(SocketType::STREAM)?;
    match tautline_state::namespace_cookie(&socket) {
        Ok(cookie) => Ok(format!("net-{cookie}")),
        Err(error) => match namespace::current() {
            Some(current) => Ok(format!("net-inode-{}", current.inode())),
            None => Err(error),
        },
    }
}

/// Listens in a room under a name, which is there as soon as it is answered, in place of what had that name. The
/// caller has made sure that no other process has it. Returns the room too.
pub(crate) fn listen(
    room: Room,
    name: &str,
    kind: SocketType,
    mode: u32,
    backlog: i32,
) -> io::Result<(Directory, UntrustedListener)> {
    let (room, listener) = make_in(room, |room| Ok(listen_in(room, name, kind, mode, backlog)?))?;
    Ok((room, listener?))
}

fn listen_in(
    room: &Directory,
    name: &str,
    kind: SocketType,
    mode: u32,
    backlog: i32,
) -> Result<UntrustedListener, StateError> {
    let beside = format!(".{name}.new");
    let failed = |source| StateError::Io {
        action: "listen on",
        path: room.path().join(name),
        source,
    };
    // If it cannot be removed, binding fails and says why.
    let _left = room.remove(&beside);
    let bound = unix::bind_path(&room.reachable(&beside)?, kind).map_err(failed)?;
    room.set_access_of(&beside, mode, None)?;
    let listener = UntrustedListener::new(bound);
    listener.listen(backlog).map_err(failed)?;
    room.rename(&beside, name)?;
    Ok(listener)
}

/// Connects to a socket in a room, from which no descriptor is taken. While too many others wait to be accepted there,
/// it waits until `deadline`; then the error is `ErrorKind::WouldBlock`. `None` if no process listens there. A link is
/// not followed: in another user's room it would lead root to a socket that is for root alone.
pub(crate) fn connect(
    room: &Directory,
    name: &str,
    kind: SocketType,
    deadline: Instant,
) -> io::Result<Option<UntrustedSocket>> {
    let entry = match room.socket(name) {
        Err(error) if error.is_absent() => return Ok(None),
        found => found?,
    };
    let address = SocketAddrUnix::new(entry.path())?;
    loop {
        match UntrustedSocket::connect(&address, kind) {
            Ok(socket) => return Ok(Some(socket)),
            Err(error) => match error.kind() {
                io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => return Ok(None),
                io::ErrorKind::WouldBlock if Instant::now() < deadline => {
                    std::thread::sleep(BETWEEN_CONNECTS);
                }
                _ => return Err(error),
            },
        }
    }
}

/// Opens a file in a room for locking; makes it if `make` says so.
pub(crate) fn open_lock(room: &Directory, name: &str, make: bool) -> io::Result<OwnedFd> {
    let mut flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    if make {
        flags |= OFlags::CREATE;
    }
    Ok(rustix::fs::openat(
        room,
        name,
        flags,
        Mode::from_raw_mode(0o600),
    )?)
}

/// Takes away what is left of network namespaces in which nothing lives any more. What is locked or answers stays, with
/// all that is beside it.
fn sweep(runtime: &Directory, own: &str) {
    let entries = runtime.entries().unwrap_or_default().into_iter();
    let others = entries.filter_map(|entry| {
        let name = entry.name.to_str()?.to_owned();
        (name.starts_with("net-") && name != own).then_some(name)
    });
    for name in others.take(SWEPT_MAX) {
        if let Ok(directory) = runtime.open_below(&name, Owner::SelfOrRoot)
            && sweep_rooms(&directory).is_some()
        {
            let _somebody_came = runtime.remove_directory(&name);
        }
    }
}

/// `None` as soon as something lives there.
fn sweep_rooms(directory: &Directory) -> Option<()> {
    // Locks first: who has one may be about to listen.
    for room in [Room::Claims, Room::Control, Room::Nodes] {
        let (name, _) = room.name_and_mode();
        let room = match directory.open_below(name, Owner::SelfOrRoot) {
            Err(error) if error.is_absent() => continue,
            opened => opened.ok()?,
        };
        for entry in room.entries().ok()? {
            let name = entry.name.to_str()?;
            let is_dead = match entry.kind {
                EntryKind::File => open_lock(&room, name, false).is_ok_and(|file| {
                    let exclusive = FlockOperation::NonBlockingLockExclusive;
                    // Removed below while it is locked.
                    rustix::fs::flock(&file, exclusive).is_ok() && room.remove(name).is_ok()
                }),
                EntryKind::Socket => {
                    let without_waiting = Instant::now();
                    let answered = connect(&room, name, SocketType::STREAM, without_waiting);
                    matches!(answered, Ok(None)) && room.remove(name).is_ok()
                }
                _ => false,
            };
            is_dead.then_some(())?;
        }
        directory.remove_directory(name).ok()?;
    }
    Some(())
}
