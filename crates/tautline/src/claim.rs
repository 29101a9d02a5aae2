//! A port number belongs to one process of a host, and so does an interface's control process. The claim is a lock on a
//! file that only the user and root can open: the kernel drops it with the process, however that ends, and the file
//! says whose it is.

use std::fs::File;
use std::io::{self, Write};
use std::net::SocketAddrV4;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::{FileType, FlockOperation, Mode, OFlags};
use tautline_proto::wire::PortKey;
use tautline_state::untrusted::Credentials;
use tautline_state::{Directory, StateError};

use crate::runtime::{self, Room};

/// Attempts to take a name, and the time between them. A name that was just given up can be held a
/// moment longer by a child process that has forked and not yet executed its program. Lower: such a
/// port is refused. Higher: a port that is really taken is refused later than it could be.
const ATTEMPTS: u32 = 50;
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(5);

/// Repeats `take` while it is refused for a reason that passes, a few times.
pub(crate) fn with_retries<T>(
    passing: io::ErrorKind,
    mut take: impl FnMut() -> io::Result<T>,
) -> io::Result<T> {
    for _ in 1..ATTEMPTS {
        match take() {
            Err(error) if error.kind() == passing => {
                std::thread::sleep(BETWEEN_ATTEMPTS);
            }
            result => return result,
        }
    }
    take()
}

/// Longest time to wait for a holder that has been killed and is being taken down. Lower: a control process that is
/// started at once after a kill fails on a busy machine. Higher: no difference.
const DEATH_TIME_LIMIT: Duration = Duration::from_secs(10);
/// Most bytes of a claim's file that are read: three numbers.
const OWNER_BYTES_MAX: usize = 64;

/// Holds a port number on an interface until dropped.
#[derive(Debug)]
pub(crate) struct Claim {
    /// `None` where there is no directory for claims, so that no process is kept from the number.
    held: Option<OwnedFd>,
    /// Claim of the number where control processes of another user claim it, for a node of root's.
    _beside: Option<OwnedFd>,
}

/// The process that has what we asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Process id, as seen from here.
    pub pid: i32,
    /// Its name, if it can be read.
    pub name: Option<String>,
}

impl Holder {
    pub(crate) fn of(pid: i32) -> Self {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok();
        Self {
            pid,
            name: name.map(|name| name.trim_end().to_owned()),
        }
    }

    /// The process that has a UDP socket on this address, or on its port of all addresses, as far as
    /// `/proc` lets us see: those of other users only with privilege.
    pub(crate) fn of_udp(address: SocketAddrV4) -> Option<Self> {
        let sockets = |file| std::fs::read_to_string(format!("/proc/thread-self/net/{file}"));
        let (ipv4, ipv6) = (sockets("udp").ok()?, sockets("udp6").unwrap_or_default());
        let inode = udp_inode(&ipv4, address).or_else(|| udp6_inode(&ipv6, address.port()))?;
        let link = format!("socket:[{inode}]");
        let processes = std::fs::read_dir("/proc").ok()?;
        processes
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .find(|pid| has_descriptor(*pid, &link))
            .map(Self::of)
    }
}

/// The inode of the UDP socket that is bound to this address, or to its port of all addresses, from the text
/// of `/proc/net/udp`.
fn udp_inode(sockets: &str, address: SocketAddrV4) -> Option<&str> {
    // The kernel prints the address as the machine keeps it, and the port as a number.
    let ip = u32::from_ne_bytes(address.ip().octets());
    let port = address.port();
    inode_of(sockets, &format!("{ip:08X}:{port:04X}"))
        .or_else(|| inode_of(sockets, &format!("{:08X}:{port:04X}", 0)))
}

/// The inode of a socket of IPv6 on all addresses, which takes those of IPv4 too, from `/proc/net/udp6`.
fn udp6_inode(sockets: &str, port: u16) -> Option<&str> {
    inode_of(sockets, &format!("{:032X}:{port:04X}", 0))
}

fn inode_of<'s>(sockets: &'s str, wanted: &str) -> Option<&'s str> {
    sockets.lines().skip(1).find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        (fields.get(1) == Some(&wanted)).then(|| fields.get(9).copied())?
    })
}

fn has_descriptor(pid: i32, link: &str) -> bool {
    let Ok(descriptors) = std::fs::read_dir(format!("/proc/{pid}/fd")) else {
        return false;
    };
    descriptors.flatten().any(|entry| {
        std::fs::read_link(entry.path()).is_ok_and(|target| target.as_os_str() == link)
    })
}

impl std::fmt::Display for Holder {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.name {
            Some(name) => write!(formatter, "process {} ({name})", self.pid),
            None => write!(formatter, "process {}", self.pid),
        }
    }
}

#[derive(Debug)]
pub(crate) enum ClaimError {
    Taken(Option<Holder>),
    Io(io::Error),
}

/// Number that is claimed: a port number of an interface with this index, for this EtherType.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Number {
    pub(crate) interface_index: u32,
    pub(crate) ethertype: u16,
    pub(crate) port: u16,
}

/// The EtherType of IPv4, under which UDP ports are claimed: no node has it for its own frames.
const CLAIM_OF_UDP: u16 = 0x0800;

impl Number {
    /// Number of a port on an interface, where messages have this EtherType.
    pub(crate) fn of(interface_index: u32, ethertype: u16, key: PortKey) -> Self {
        let (ethertype, port) = match key {
            PortKey::Message(port) => (ethertype, port.get()),
            PortKey::Udp(port) => (CLAIM_OF_UDP, port.get()),
            // Port 0, which no port for messages has.
            PortKey::Raw(ethertype) => (ethertype.get(), 0),
        };
        Self {
            interface_index,
            ethertype,
            port,
        }
    }

    fn file(self) -> String {
        format!(
            "port-{}-{:04x}-{}",
            self.interface_index, self.ethertype, self.port
        )
    }
}

impl From<StateError> for ClaimError {
    fn from(error: StateError) -> Self {
        Self::Io(error.into())
    }
}

impl Claim {
    /// Claims a number for this process. Waits a moment for one that is just being given up.
    pub(crate) fn new(number: Number) -> Result<Self, ClaimError> {
        let own = Credentials::own();
        let made = runtime::make_in(Room::Claims, |room| {
            with_retries(io::ErrorKind::WouldBlock, || {
                lock(room, &number.file(), own)
            })
        });
        let claim = match made {
            Ok((room, held)) => claimed(held, &room, &number.file())?,
            // The node's report says so.
            Err(_) => Self::with(None),
        };
        Ok(Self {
            _beside: claim_beside(number, own)?,
            ..claim
        })
    }

    fn with(held: Option<OwnedFd>) -> Self {
        Self {
            held,
            _beside: None,
        }
    }

    /// Claims a number for another process, which it will be handed to, without waiting.
    pub(crate) fn attempt(number: Number, owner: Credentials) -> Result<Self, ClaimError> {
        let (room, held) =
            runtime::make_in(Room::Claims, |room| lock(room, &number.file(), owner))?;
        claimed(held, &room, &number.file())
    }

    /// Claims the place of an interface's control process. Waits for a predecessor that was killed.
    pub(crate) fn of_control(interface_index: u32) -> Result<Self, ClaimError> {
        let file = format!("control-{interface_index}");
        let started = Instant::now();
        loop {
            let own = Credentials::own();
            let (room, held) = runtime::make_in(Room::Claims, |room| {
                with_retries(io::ErrorKind::WouldBlock, || lock(room, &file, own))
            })?;
            let dying =
                held.is_err() && owner(&room, &file).is_none_or(|owner| is_dying(owner.pid));
            if !dying || started.elapsed() > DEATH_TIME_LIMIT {
                return claimed(held, &room, &file);
            }
        }
    }

    /// Takes over a claim that another process made for this one.
    pub(crate) fn handed(held: OwnedFd) -> Self {
        Self::with(Some(held))
    }

    pub(crate) fn into_descriptor(self) -> Option<OwnedFd> {
        self.held
    }
}

/// Whether a port is not claimed: a successful claim shows that.
pub(crate) fn is_free(number: Number) -> bool {
    let Some(room) = own_room() else {
        return true;
    };
    match runtime::open_lock(&room, &number.file(), false) {
        Ok(file) => rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared).is_ok(),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

/// Claimant of a port, if that can be told. Nothing follows from it if it cannot.
pub(crate) fn claimant(number: Number) -> Option<Credentials> {
    owner(&own_room()?, &number.file())
}

fn own_room() -> Option<Directory> {
    runtime::make(Room::Claims).ok()
}

/// Claims a number of a node of root's among those of control processes that run as another user, who cannot look into
/// root's. `None` for other nodes, and where that cannot be.
fn claim_beside(number: Number, own: Credentials) -> Result<Option<OwnedFd>, ClaimError> {
    let Some((room, user)) = runtime::make_claims_of_service() else {
        return Ok(None);
    };
    let name = number.file();
    let locked = with_retries(io::ErrorKind::WouldBlock, || {
        lock_given(&room, &name, user, own)
    });
    match locked {
        Ok(held) => Ok(Some(held)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            claimed(Err(error), &room, &name).map(|_: Claim| None)
        }
        // The owner of the room has made something else there; root's own claim holds.
        Err(_) => Ok(None),
    }
}

/// Locks a file like [`lock`], for root in a room of another user, who may have put anything there. The file becomes
/// that user's, who locks it later; root writes into no other.
fn lock_given(room: &Directory, name: &str, user: u32, owner: Credentials) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let new = flags | OFlags::CREATE | OFlags::EXCL;
    let file = match rustix::fs::openat(room, name, new, Mode::from_raw_mode(0o600)) {
        Ok(file) => {
            let user = rustix::fs::Uid::from_raw(user);
            rustix::fs::fchown(&file, Some(user), None)?;
            file
        }
        Err(rustix::io::Errno::EXIST) => runtime::open_lock(room, name, false)?,
        Err(error) => return Err(error.into()),
    };
    let found = rustix::fs::fstat(&file)?;
    let is_plain = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile;
    // A second name may be that of a file elsewhere.
    if !is_plain || found.st_uid != user || found.st_nlink != 1 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    // By its name it could be another file by now; and its owner may have it wait (fcntl(2), leases).
    let itself = format!("/proc/self/fd/{}", file.as_raw_fd());
    let flags = OFlags::WRONLY | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let writer = rustix::fs::open(itself, flags, Mode::empty())?;
    write_owner(&File::from(writer), owner)?;
    Ok(file)
}

fn write_owner(mut file: &File, owner: Credentials) -> io::Result<()> {
    let Credentials { pid, uid, gid } = owner;
    file.write_all(format!("{pid} {uid} {gid}\n").as_bytes())
}

/// Locks a file and writes down for whom. `ErrorKind::WouldBlock` if it is locked.
fn lock(room: &Directory, name: &str, owner: Credentials) -> io::Result<OwnedFd> {
    loop {
        // Read-only, as it may be handed to a process that is not to write into it.
        let file = runtime::open_lock(room, name, true)?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        if rustix::fs::fstat(&file)?.st_nlink == 0 {
            // Swept away in between.
            continue;
        }
        let flags = OFlags::WRONLY | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let writer = rustix::fs::openat(room, name, flags, Mode::empty())?;
        write_owner(&File::from(writer), owner)?;
        return Ok(file);
    }
}

/// For whom a file was locked last.
fn owner(room: &Directory, name: &str) -> Option<Credentials> {
    let text = String::from_utf8(room.read(name, OWNER_BYTES_MAX).ok()?).ok()?;
    let mut numbers = text.split_whitespace();
    Some(Credentials {
        pid: numbers.next()?.parse().ok()?,
        uid: numbers.next()?.parse().ok()?,
        gid: numbers.next()?.parse().ok()?,
    })
}

fn claimed(held: io::Result<OwnedFd>, room: &Directory, name: &str) -> Result<Claim, ClaimError> {
    match held {
        Ok(held) => Ok(Claim::with(Some(held))),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            let owner = owner(room, name);
            Err(ClaimError::Taken(owner.map(|owner| Holder::of(owner.pid))))
        }
        Err(error) => Err(ClaimError::Io(error)),
    }
}

/// Whether a process is gone, ending, or has been sent signal 9 and not yet heard of it.
fn is_dying(pid: i32) -> bool {
    let Ok(status) = std::fs::read_to_string(format!("/proc/{pid}/status")) else {
        return true;
    };
    let field = |name: &str| {
        let mut lines = status.lines();
        lines.find_map(|line| Some(line.strip_prefix(name)?.trim().to_owned()))
    };
    let has_kill = |name| {
        let pending = field(name).and_then(|bits| u64::from_str_radix(&bits, 16).ok());
        pending.is_some_and(|bits| bits & 1 << (libc::SIGKILL - 1) != 0)
    };
    let state = field("State:").unwrap_or_default();
    // A process whose memory is gone already has no line of it.
    let ending = state.starts_with(['Z', 'X']) || field("VmSize:").is_none();
    ending || has_kill("SigPnd:") || has_kill("ShdPnd:")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::namespace;

    const THREADS: usize = 8;
    const NAMESPACES: usize = 40;

    /// The first process in a fresh namespace sweeps up after others, whose rooms may be empty at that moment.
    #[test]
    fn a_sweep_never_costs_a_claim_or_a_socket() {
        let number = Number {
            interface_index: 1,
            ethertype: 0x88b5,
            port: 7,
        };
        let come_often = || {
            for _ in 0..NAMESPACES {
                if namespace::enter_fresh().is_err() {
                    println!("SKIPPED: network namespaces cannot be made here");
                    return;
                }
                let claim = Claim::new(number).unwrap();
                assert!(claim.held.is_some());
                assert_eq!(claimant(number).unwrap().pid, Credentials::own().pid);
                drop(claim);
                let kind = rustix::net::SocketType::STREAM;
                let (room, _listener) =
                    runtime::listen(Room::Nodes, "test", kind, 0o600, 1).unwrap();
                // Sweeping threads may fill its queue, which shows as well that it is there.
                let found = runtime::connect(&room, "test", kind, Instant::now());
                assert!(!matches!(found, Ok(None)));
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(come_often);
            }
        });
    }
}
