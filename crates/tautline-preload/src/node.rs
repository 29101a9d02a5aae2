//! The node of this process, opened when the first socket is taken, and the descriptors that belong to this library.
#![allow(unsafe_code)] // Statics that threads share under a lock.

use std::cell::{Cell, UnsafeCell};
use std::fs;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicI32, AtomicUsize};

use tautline::{EtherType, Node, PortError, RawOptions, RawPort, UdpOptions, UdpPort};

use crate::policy::policy;
use crate::{next, process};

/// Messages that a priority of a taken socket has room for. Lower: less than a kernel's socket of default size keeps
/// (about 280 small datagrams or frames), and a datagram of 65,507 bytes takes 45. Higher: 12 KiB of locked memory
/// each, in every socket.
const DEPTH: u32 = 512;
/// Descriptors of ours that are told apart. Beyond it, a program that closes what it did not open may close ours.
const DESCRIPTORS_MAX: usize = 512;
/// Lowest number of the copy of a program's socket: low ones are the program's to expect (`select` takes 1,024).
const COPY_FROM: i32 = 256;

struct Owned(UnsafeCell<Option<Result<Node, String>>>);

// SAFETY: reached by who holds `table::CHANGING`, and in a forked child by its only thread.
unsafe impl Sync for Owned {}

static NODE: Owned = Owned(UnsafeCell::new(None));
static OURS: [AtomicI32; DESCRIPTORS_MAX] = [const { AtomicI32::new(-1) }; DESCRIPTORS_MAX];
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// In a forked child: the parent's node is forgotten, and what would keep the demux on the interface is closed.
pub(crate) fn renew_after_fork() {
    for descriptor in ours() {
        if is_of_bpf(descriptor) {
            // SAFETY: this library's own, which nothing in the child uses any more.
            unsafe { libc::syscall(libc::SYS_close, descriptor) };
        }
    }
    COUNT.store(0, Relaxed);
    // SAFETY: the child has one thread, and it is here. Writing drops nothing of the parent's.
    unsafe { NODE.0.get().write(None) };
}

fn ours() -> impl Iterator<Item = RawFd> {
    let count = COUNT.load(Relaxed).min(DESCRIPTORS_MAX);
    OURS[..count].iter().map(|one| one.load(Relaxed))
}

/// Whether a descriptor is this library's, in this process.
pub(crate) fn is_ours(descriptor: RawFd) -> bool {
    COUNT.load(Relaxed) != 0
        && descriptor >= 0
        && ours().any(|one| one == descriptor)
        && !process::is_other()
}

/// Descriptors of ours in a range, the lowest first.
pub(crate) fn next_of_ours(first: u32, last: u32) -> Option<u32> {
    let numbers = ours().filter_map(|one| u32::try_from(one).ok());
    numbers.filter(|one| (first..=last).contains(one)).min()
}

thread_local! {
    /// Whether this thread is in code of this library that may close what is its own.
    static AT_WORK: Cell<bool> = const { Cell::new(false) };
}

/// Whether a call comes from this library: a close from a port that closes, say.
pub(crate) fn is_at_work() -> bool {
    AT_WORK.with(Cell::get)
}

/// Runs what opens and closes descriptors of this library's.
pub(crate) fn at_work<R>(work: impl FnOnce() -> R) -> R {
    let before = AT_WORK.with(|at_work| at_work.replace(true));
    let result = work();
    AT_WORK.with(|at_work| at_work.set(before));
    result
}

/// Opens a port beside a socket. The caller holds `table::CHANGING`.
pub(crate) fn open_port(descriptor: RawFd, number: u16) -> Result<UdpPort, String> {
    noting_descriptors(|| {
        let node = node()?;
        let copy = copy_of(descriptor)?;
        let options = UdpOptions {
            depth: DEPTH,
            message_bytes_max: 65_507,
            ..UdpOptions::default()
        };
        let port = node.udp(number).options(&options).alongside(copy).open();
        port.map_err(|error| error.to_string())
    })
}

/// Why a raw port was not opened.
pub(crate) enum NoRawPort {
    /// Another socket of this process has the EtherType's port.
    OpenHere,
    Other(String),
}

/// Opens a raw port beside a packet socket. The caller holds `table::CHANGING`.
pub(crate) fn open_raw_port(ethertype: EtherType) -> Result<RawPort, NoRawPort> {
    noting_descriptors(|| {
        let node = node().map_err(NoRawPort::Other)?;
        let options = RawOptions {
            depth: DEPTH,
            ..RawOptions::default()
        };
        node.raw(ethertype)
            .options(&options)
            .open()
            .map_err(|error| match error {
                PortError::OpenHere { .. } => NoRawPort::OpenHere,
                error => NoRawPort::Other(error.to_string()),
            })
    })
}

fn node() -> Result<&'static Node, String> {
    // SAFETY: the caller of `open_port` holds the lock, and the node is never taken out again.
    let node = unsafe { &mut *NODE.0.get() };
    let opened = node.get_or_insert_with(|| {
        let config = policy().ok_or("there is no policy")?.config()?;
        Node::open(config.clone()).map_err(|error| error.to_string())
    });
    match opened {
        Ok(node) => Ok(node),
        Err(why) => Err(format!("the node cannot be opened: {why}")),
    }
}

fn copy_of(descriptor: RawFd) -> Result<OwnedFd, String> {
    let command = libc::F_DUPFD_CLOEXEC;
    // SAFETY: a call without pointers.
    let copy = unsafe { next::fcntl(descriptor, command, COPY_FROM as _) };
    if copy < 0 {
        return Err("the process may not open more descriptors".to_owned());
    }
    // SAFETY: just made, and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

/// Notes what `work` opens, so that the program cannot close it by mistake, nor a forked child keep it. Another thread
/// that opens something meanwhile is told apart by its kind ([`may_be_ours`]).
fn noting_descriptors<R>(work: impl FnOnce() -> R) -> R {
    let before = open_now();
    let result = at_work(work);
    let mut known: Vec<RawFd> = ours().collect();
    let after = open_now();
    known.retain(|one| after.contains(one));
    let new = after
        .iter()
        .filter(|one| !before.contains(one) && !known.contains(one));
    let all: Vec<RawFd> = known
        .iter()
        .copied()
        .chain(new.copied().filter(|one| may_be_ours(*one)))
        .take(DESCRIPTORS_MAX)
        .collect();
    for (place, descriptor) in OURS.iter().zip(&all) {
        place.store(*descriptor, Relaxed);
    }
    COUNT.store(all.len(), Relaxed);
    result
}

fn open_now() -> Vec<RawFd> {
    let Ok(entries) = fs::read_dir("/proc/self/fd") else {
        return Vec::new();
    };
    let number =
        |entry: std::io::Result<fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
    entries.filter_map(number).collect()
}

fn link_of(descriptor: RawFd) -> Option<String> {
    let target = fs::read_link(format!("/proc/self/fd/{descriptor}")).ok()?;
    Some(target.to_string_lossy().into_owned())
}

/// Kinds that a node and its ports open: parts of the demux, sockets that are no IP sockets, copies of the program's.
fn may_be_ours(descriptor: RawFd) -> bool {
    let Some(target) = link_of(descriptor) else {
        return false;
    };
    if target.starts_with("socket:") {
        return descriptor >= COPY_FROM || !is_internet(descriptor);
    }
    target.starts_with("anon_inode:") || target.starts_with("net:")
}

fn is_internet(descriptor: RawFd) -> bool {
    let domain = crate::options::integer(descriptor, libc::SOL_SOCKET, libc::SO_DOMAIN);
    matches!(domain, Some(libc::AF_INET | libc::AF_INET6))
}

/// Runs in a forked child: allocates nothing.
fn is_of_bpf(descriptor: RawFd) -> bool {
    const WANTED: &[u8] = b"anon_inode:bpf";
    let mut path = [0u8; 32];
    let mut digits = [0u8; 10];
    let mut rest = descriptor;
    let mut count = 0;
    while count == 0 || rest > 0 {
        digits[count] = b'0' + (rest % 10) as u8;
        rest /= 10;
        count += 1;
    }
    let start = b"/proc/self/fd/";
    path[..start.len()].copy_from_slice(start);
    for index in 0..count {
        path[start.len() + index] = digits[count - 1 - index];
    }
    let mut target = [0u8; WANTED.len()];
    // SAFETY: the path ends with a zero byte, and the target has room for the length given.
    let length = unsafe {
        libc::readlink(
            path.as_ptr().cast(),
            target.as_mut_ptr().cast(),
            target.len(),
        )
    };
    // The link of the demux is spelt bpf_link, its maps bpf-map.
    length == WANTED.len() as isize && target == WANTED
}
