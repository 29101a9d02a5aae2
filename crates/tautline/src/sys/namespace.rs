//! Network namespaces: which one a thread is in, and one that belongs to this process alone.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::fs::MetadataExt;

use rustix::thread::{LinkNameSpaceType, UnshareFlags};

/// A network namespace, told by device and inode as the kernel does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Namespace {
    device: u64,
    inode: u64,
}

/// The calling thread's; `None` where /proc is not mounted.
pub(crate) fn current() -> Option<Namespace> {
    let metadata = std::fs::metadata("/proc/thread-self/ns/net").ok()?;
    Some(Namespace {
        device: metadata.st_dev(),
        inode: metadata.st_ino(),
    })
}

impl Namespace {
    /// Its inode's number.
    pub(crate) fn inode(self) -> u64 {
        self.inode
    }
}

/// A network namespace that no process is in. It lives as long as its descriptor, and as the devices' and sockets'
/// that were made in it.
#[derive(Debug)]
pub(crate) struct PrivateNamespace(OwnedFd);

impl PrivateNamespace {
    /// A fresh one, with nothing in it. Needs CAP_SYS_ADMIN.
    pub(crate) fn new() -> io::Result<Self> {
        on_own_thread(|| {
            enter_fresh()?;
            // A tap would ask for routers otherwise, and whoever has its descriptor could read that.
            let _absent_without_ipv6 =
                std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
            let namespace = std::fs::File::open("/proc/thread-self/ns/net")?;
            Ok(Self(namespace.into()))
        })
    }

    /// Runs `work` on a thread that is in the namespace.
    pub(crate) fn inside<T: Send>(
        &self,
        work: impl FnOnce() -> io::Result<T> + Send,
    ) -> io::Result<T> {
        on_own_thread(|| {
            let kind = Some(LinkNameSpaceType::Network);
            rustix::thread::move_into_link_name_space(self.0.as_fd(), kind)?;
            work()
        })
    }
}

/// Moves this thread into a fresh network namespace. Needs CAP_SYS_ADMIN.
pub(crate) fn enter_fresh() -> io::Result<()> {
    // SAFETY: a network namespace is a thread's own, and no memory or descriptor goes with it.
    Ok(unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }?)
}

/// Runs `work` on a thread of its own, since a namespace is a thread's.
fn on_own_thread<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().spawn_scoped(scope, work)?;
        thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
