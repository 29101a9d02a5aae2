//! A port number belongs to one process of a host. The claim is a Unix socket in the abstract
//! name space: the kernel drops it with the process, however that ends, so there is nothing to
//! clear up, and whoever is refused can ask it whose the port is.

use std::io;
use std::net::SocketAddrV4;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::net::SocketType;

use crate::sys::unix;

/// Attempts to take a name, and the time between them. A name that was just given up can be held a
/// moment longer by a child process that has forked and not yet executed its program. Lower: such a
/// port is refused. Higher: a port that is really taken is refused later than it could be.
const ATTEMPTS: u32 = 50;
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(5);

/// How often the holder of a claim can be asked who it is. Nobody accepts these connections, since the kernel
/// answers for the holder; each stays in its queue. Lower: sooner nobody is told any more. Higher: more kernel memory
/// for one that asks without end.
const ASKERS_MAX: i32 = 4096;

/// Repeats `take` while it is refused for a reason that passes, a few times.
pub(crate) fn patiently<T>(
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

/// Holds a port number on an interface until dropped.
#[derive(Debug)]
pub(crate) struct Claim {
    held: OwnedFd,
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
    /// The process with this number.
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

/// The same of a socket of IPv6 on all addresses, which takes those of IPv4 too, from `/proc/net/udp6`.
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

/// Why a claim failed.
#[derive(Debug)]
pub(crate) enum ClaimError {
    Taken(Option<Holder>),
    Io(io::Error),
}

impl Claim {
    /// Claims `port` on the interface with this index, for this EtherType. Waits a moment for a
    /// number that is just being given up.
    pub(crate) fn new(interface_index: u32, ethertype: u16, port: u16) -> Result<Self, ClaimError> {
        let name = name(interface_index, ethertype, port);
        patiently(io::ErrorKind::AddrInUse, || {
            unix::listen(&name, SocketType::STREAM, ASKERS_MAX)
        })
        .map(|held| Self { held })
        .map_err(|error| refused(&name, error))
    }

    /// The same without waiting.
    pub(crate) fn attempt(
        interface_index: u32,
        ethertype: u16,
        port: u16,
    ) -> Result<Self, ClaimError> {
        let name = name(interface_index, ethertype, port);
        unix::listen(&name, SocketType::STREAM, ASKERS_MAX)
            .map(|held| Self { held })
            .map_err(|error| refused(&name, error))
    }

    /// Takes over a claim that another process made for this one, whose name it then tells.
    pub(crate) fn handed(held: OwnedFd) -> io::Result<Self> {
        unix::listen_again(held.as_fd(), ASKERS_MAX)?;
        Ok(Self { held })
    }
}

impl From<Claim> for OwnedFd {
    fn from(claim: Claim) -> Self {
        claim.held
    }
}

/// Whether nobody has claimed a port: whoever can claim it has shown that. Asks nobody.
pub(crate) fn is_free(interface_index: u32, ethertype: u16, port: u16) -> bool {
    let name = name(interface_index, ethertype, port);
    unix::listen(&name, SocketType::STREAM, ASKERS_MAX).is_ok()
}

/// Who has claimed a port, if that can be told. Nothing follows from it if it cannot.
pub(crate) fn claimant(
    interface_index: u32,
    ethertype: u16,
    port: u16,
) -> Option<unix::Credentials> {
    asked(&name(interface_index, ethertype, port))
}

fn name(interface_index: u32, ethertype: u16, port: u16) -> String {
    format!("tautline/port/{interface_index}/{ethertype:04x}/{port}")
}

fn refused(name: &str, error: io::Error) -> ClaimError {
    if error.kind() == io::ErrorKind::AddrInUse {
        ClaimError::Taken(asked(name).map(|claimant| Holder::of(claimant.pid)))
    } else {
        ClaimError::Io(error)
    }
}

fn asked(name: &str) -> Option<unix::Credentials> {
    unix::peer(unix::connect(name, SocketType::STREAM).ok()?).ok()
}
