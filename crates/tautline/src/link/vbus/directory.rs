//! A bus in the file system: a directory with one socket for each open port. Who comes first makes
//! it, who leaves last removes it, and what a dead process left is cleared by whoever comes next.

use std::ffi::{OsStr, OsString};
use std::fs::{DirBuilder, File, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use rustix::fs::FlockOperation;
use tautline_proto::wire::PortNumber;

use crate::address::NodeName;
use crate::claim::Holder;
use crate::config::BusConfig;
use crate::sys::seqpacket;

/// Where the buses of the system are, which root makes.
const SYSTEM: &str = "/run/tautline/vbus";
/// Attempts to open a directory that others may be removing. Each that fails means that somebody else
/// has just left, so a few suffice.
const ATTEMPTS: u32 = 32;
/// Most bytes of a socket's path, as the kernel has it, with room for its zero.
const PATH_BYTES_MAX: usize = 107;
/// Bytes of the longest name in a bus: a dot, a node, a dot, a port, and a number.
const NAME_BYTES_MAX: usize = 1 + 31 + 1 + 5 + 1 + 20;

/// A bus that this process takes part in.
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    mode: u32,
    group: Option<u32>,
    /// What keeps the directory from being removed while this node is there.
    presence: OsString,
    _listening: OwnedFd,
}

/// Whether a port's name could be had.
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

fn user_base() -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(directory) if !directory.is_empty() => {
            Path::new(&directory).join("tautline").join("vbus")
        }
        _ => {
            let user = rustix::process::geteuid().as_raw();
            std::env::temp_dir()
                .join(format!("tautline-{user}"))
                .join("vbus")
        }
    }
}

/// The name of a port's socket.
pub(crate) fn socket_name(node: NodeName, port: PortNumber) -> String {
    format!("{node}.{port}")
}

/// The name of a node's presence.
fn presence_name(node: NodeName, process: u32, serial: u32) -> OsString {
    OsString::from(format!(".{node}.{process}.{serial}"))
}

/// The node and the process in the name of a presence, if it is one.
pub(crate) fn parse_presence_name(name: &OsStr) -> Option<(NodeName, u32)> {
    let (name, serial) = name.to_str()?.strip_prefix('.')?.rsplit_once('.')?;
    let _serial: u32 = serial.parse().ok()?;
    let (node, process) = name.rsplit_once('.')?;
    Some((node.parse().ok()?, process.parse().ok()?))
}

/// The node and the port in the name of a port's socket, if it is one.
pub(crate) fn parse_socket_name(name: &OsStr) -> Option<(NodeName, PortNumber)> {
    let (node, port) = name.to_str()?.rsplit_once('.')?;
    Some((node.parse().ok()?, PortNumber::new(port.parse().ok()?)?))
}

impl Directory {
    /// Opens or makes the bus, and clears what dead processes have left in it.
    pub(crate) fn open(config: &BusConfig) -> io::Result<Self> {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let path = path_of(&config.name);
        if path.as_os_str().len() + 1 + NAME_BYTES_MAX > PATH_BYTES_MAX {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the path of the bus is too long for a Unix socket in it",
            ));
        }
        let group = config.group.as_deref().map(group_id).transpose()?;
        let (process, serial) = (std::process::id(), SERIAL.fetch_add(1, Relaxed));
        let presence = presence_name(config.node, process, serial);
        for _ in 0..ATTEMPTS {
            make(&path, config.mode, group)?;
            let Some(_locked) = lock(&path)? else {
                continue;
            };
            sweep(&path)?;
            let socket = path.join(&presence);
            let _absent = std::fs::remove_file(&socket);
            let listening = seqpacket::listen(&socket)?;
            return Ok(Self {
                path,
                mode: config.mode,
                group,
                presence,
                _listening: listening,
            });
        }
        Err(io::Error::other("the bus is made and removed all the time"))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Takes a port's name: a listening socket appears under it.
    pub(crate) fn bind(&self, name: &str) -> Result<OwnedFd, BindError> {
        let _locked = lock(&self.path)?;
        let target = self.path.join(name);
        match seqpacket::connect(&target) {
            Ok(other) => {
                use std::os::fd::AsFd;
                let holder = seqpacket::peer_process(other.as_fd());
                return Err(BindError::Taken(holder.map(Holder::of)));
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(BindError::Taken(None));
            }
            // Nobody, or somebody who died.
            Err(_) => {}
        }
        // Under another name first, so that who finds it can connect at once.
        let fresh = self.path.join(format!(".{name}"));
        let _absent = std::fs::remove_file(&fresh);
        let socket = seqpacket::listen(&fresh)?;
        std::fs::set_permissions(&fresh, Permissions::from_mode(self.mode & 0o666))?;
        if let Some(group) = self.group {
            std::os::unix::fs::chown(&fresh, None, Some(group))?;
        }
        std::fs::rename(&fresh, &target)?;
        Ok(socket)
    }

    /// Gives a port's name up.
    pub(crate) fn unbind(&self, name: &str) {
        if let Ok(_locked) = lock(&self.path) {
            let _gone = std::fs::remove_file(self.path.join(name));
        }
    }

    /// The path of a port's socket.
    pub(crate) fn socket(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if let Ok(_locked) = lock(&self.path) {
            let _gone = std::fs::remove_file(self.path.join(&self.presence));
            // Those who died leave through us.
            let _unread = sweep(&self.path);
            // Refused while others are there.
            let _in_use = std::fs::remove_dir(&self.path);
        }
    }
}

/// Makes the directory if it is not there, as whoever comes first wants it.
fn make(path: &Path, mode: u32, group: Option<u32>) -> io::Result<()> {
    if let Some(base) = path.parent() {
        let system = base == Path::new(SYSTEM);
        let mode = if system { 0o755 } else { 0o700 };
        DirBuilder::new().recursive(true).mode(mode).create(base)?;
    }
    match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => {
            if let Some(group) = group {
                std::os::unix::fs::chown(path, None, Some(group))?;
            }
            // Not left to the process's mask.
            std::fs::set_permissions(path, Permissions::from_mode(mode))
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

/// Locks the directory until the result is dropped; `None` if it has been removed meanwhile.
fn lock(path: &Path) -> io::Result<Option<File>> {
    let directory = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        result => result?,
    };
    rustix::fs::flock(&directory, FlockOperation::LockExclusive)?;
    let locked = directory.metadata()?;
    match std::fs::metadata(path) {
        Ok(there) if (there.dev(), there.ino()) == (locked.dev(), locked.ino()) => {
            Ok(Some(directory))
        }
        Ok(_) => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Removes the sockets that nobody listens on any more. The directory is locked.
fn sweep(path: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_socket() && is_dead(&entry.path()) {
            let _gone = std::fs::remove_file(entry.path());
        }
    }
    Ok(())
}

/// Whether nobody listens on this socket.
pub(crate) fn is_dead(socket: &Path) -> bool {
    let connected = seqpacket::connect(socket);
    connected.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

/// A group's number, from its name or number.
fn group_id(group: &str) -> io::Result<u32> {
    if let Ok(number) = group.parse() {
        return Ok(number);
    }
    match nix::unistd::Group::from_name(group) {
        Ok(Some(group)) => Ok(group.gid.as_raw()),
        Ok(None) => Err(io::Error::new(
            io::ErrorKind::NotFound,
            format!("there is no group `{group}`"),
        )),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
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
        let mode = std::fs::metadata(first.path()).unwrap().mode();
        assert_eq!(mode & 0o777, 0o750);
        let other = BusConfig {
            mode: 0o700,
            ..config.clone()
        };
        let second = Directory::open(&other).unwrap();
        let mode = std::fs::metadata(first.path()).unwrap().mode();
        assert_eq!(mode & 0o777, 0o750, "who comes second changes nothing");
        drop(first);
        assert!(second.path().exists());
        let path = second.path().to_owned();
        drop(second);
        assert!(!path.exists());
    }

    #[test]
    fn a_name_is_had_once_and_again_after_a_crash() {
        let config = config("name");
        let directory = Directory::open(&config).unwrap();
        let held = directory.bind("motor.7").unwrap();
        let Err(BindError::Taken(Some(holder))) = directory.bind("motor.7") else {
            panic!("taken twice");
        };
        assert_eq!(holder.pid, std::process::id() as i32);
        // A process that dies leaves its socket's name behind.
        drop(held);
        assert!(is_dead(&directory.socket("motor.7")));
        let again = directory.bind("motor.7").unwrap();
        drop(again);
        let other = Directory::open(&config).unwrap();
        assert!(!directory.socket("motor.7").exists(), "cleared by the next");
        drop(other);
        let socket = directory.bind("motor.8").unwrap();
        directory.unbind("motor.8");
        drop(socket);
        assert!(!directory.socket("motor.8").exists());
    }

    #[test]
    fn names_in_a_bus_are_ports_or_presences() {
        let node: NodeName = "arm.left".parse().unwrap();
        let name = socket_name(node, PortNumber::MIN);
        assert_eq!(name, "arm.left.1");
        assert_eq!(
            parse_socket_name(OsStr::new(&name)),
            Some((node, PortNumber::MIN))
        );
        assert_eq!(
            parse_presence_name(&presence_name(node, 12, 3)),
            Some((node, 12))
        );
        for other in ["motor", "motor.", "motor.0", "motor.x", ".motor.1", "4096"] {
            assert_eq!(parse_socket_name(OsStr::new(other)), None, "{other}");
            assert_eq!(parse_presence_name(OsStr::new(other)), None, "{other}");
        }
    }
}
