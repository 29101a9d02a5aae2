//! Which network namespace a thread is in.

use std::os::linux::fs::MetadataExt;

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
