//! A place for one BPF object that lives as long as somebody holds a descriptor of the place.
//!
//! It is a BPF file system of our own that is mounted nowhere. The object is pinned in it, and when the
//! last descriptor of the mount is closed, by whichever process, the kernel takes the file system
//! away and the object with it. Whoever holds such a descriptor can do nothing else with it: the file
//! inside belongs to its maker.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount,
    fsopen,
};

/// The descriptor of the place.
#[derive(Debug)]
pub(crate) struct Keeper(OwnedFd);

impl Keeper {
    /// An empty place. Needs CAP_SYS_ADMIN.
    pub(crate) fn new() -> io::Result<Self> {
        let system = fsopen("bpf", FsOpenFlags::FSOPEN_CLOEXEC)?;
        // Otherwise everybody could make files in it, as in the ordinary one.
        fsconfig_set_string(system.as_fd(), "mode", "0700")?;
        fsconfig_create(system.as_fd())?;
        let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
            | MountAttrFlags::MOUNT_ATTR_NODEV
            | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        let mount = fsmount(system.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
        Ok(Self(mount))
    }

    /// Puts an object in.
    pub(crate) fn keep(&self, object: BorrowedFd<'_>) -> io::Result<()> {
        // The mount has no path, but its descriptor has one.
        let path = PathBuf::from(format!("/proc/self/fd/{}/kept", self.0.as_raw_fd()));
        super::bpf::pin(object, &path)
    }
}

impl AsFd for Keeper {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
