//! A port number belongs to one process of a host. The claim is a Unix socket in the abstract
//! name space: the kernel drops it with the process, however that ends, so there is nothing to
//! clear up, and whoever is refused can ask it whose the port is.

use std::io;
use std::net::SocketAddrV4;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

/// Attempts to take a name, and the time between them. A name that was just given up can be held a
/// moment longer by a child process that has forked and not yet executed its program. Lower: such a
/// port is refused. Higher: a port that is really taken is refused later than it could be.
const ATTEMPTS: u32 = 50;
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(5);

/// Repeats `take` while the name is in use, a few times.
pub(crate) fn patiently<T>(mut take: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    for _ in 1..ATTEMPTS {
        match take() {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
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
    _held: UnixListener,
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
    fn of(pid: i32) -> Self {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok();
        Self {
            pid,
            name: name.map(|name| name.trim_end().to_owned()),
        }
    }

    /// The process that has a UDP socket on this address, as far as `/proc` lets us see: those of other
    /// users only with privilege.
    pub(crate) fn of_udp(address: SocketAddrV4) -> Option<Self> {
        let sockets = std::fs::read_to_string("/proc/thread-self/net/udp").ok()?;
        let link = format!("socket:[{}]", udp_inode(&sockets, address)?);
        let processes = std::fs::read_dir("/proc").ok()?;
        processes
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .find(|pid| has_descriptor(*pid, &link))
            .map(Self::of)
    }
}

/// The inode of the UDP socket bound to this address, from the text of `/proc/net/udp`.
fn udp_inode(sockets: &str, address: SocketAddrV4) -> Option<&str> {
    // The kernel prints the address as the machine keeps it, and the port as a number.
    let ip = u32::from_ne_bytes(address.ip().octets());
    let wanted = format!("{ip:08X}:{:04X}", address.port());
    sockets.lines().skip(1).find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        (fields.get(1) == Some(&wanted.as_str())).then(|| fields.get(9).copied())?
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
    /// Claims `port` on the interface with this index, for this EtherType.
    pub(crate) fn new(interface_index: u32, ethertype: u16, port: u16) -> Result<Self, ClaimError> {
        let name = format!("tautline/port/{interface_index}/{ethertype:04x}/{port}");
        let address = SocketAddr::from_abstract_name(name).map_err(ClaimError::Io)?;
        match patiently(|| UnixListener::bind_addr(&address)) {
            Ok(held) => Ok(Self { _held: held }),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                Err(ClaimError::Taken(holder(&address)))
            }
            Err(error) => Err(ClaimError::Io(error)),
        }
    }
}

fn holder(address: &SocketAddr) -> Option<Holder> {
    let stream = UnixStream::connect_addr(address).ok()?;
    let pid = crate::sys::socket::peer_process(&stream).ok()?;
    Some(Holder::of(pid))
}
