//! A place for one BPF object that lives as long as a process holds a descriptor of the place.
//!
//! It is a BPF file system of our own that is mounted nowhere. The object is pinned in it, and when the last descriptor
//! of the mount is closed, by whichever process, the kernel takes the file system away and the object with it. A
//! process that holds such a descriptor can do nothing else with it: the file inside belongs to its maker.
//!
//! A process that may not mount has a directory in a mounted BPF file system instead, if its service manager gives it
//! one. There the object is pinned and the pin removed at once: the file lives as long as a process has it open, by a
//! descriptor that can only be looked at, and the object lives as long as the file.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount,
    fsopen,
};

/// Name of the object in a file system of its own.
const NAME: &str = "kept";

/// Begin of the name that an object has for a moment in a file system that others see.
pub(crate) const PASSING_NAME: &str = "kept-";

/// The descriptor of the place.
#[derive(Debug)]
pub(crate) struct BpfPin(OwnedFd);

impl BpfPin {
    /// Keeps an object in a file system of its own. Needs CAP_SYS_ADMIN.
    pub(crate) fn mounted_nowhere(object: BorrowedFd<'_>) -> io::Result<Self> {
        let system = fsopen("bpf", FsOpenFlags::FSOPEN_CLOEXEC)?;
        // Otherwise everybody could make files in it, as in the ordinary one.
        fsconfig_set_string(system.as_fd(), "mode", "0700")?;
        fsconfig_create(system.as_fd())?;
        let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
            | MountAttrFlags::MOUNT_ATTR_NODEV
            | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        let mount = fsmount(system.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
        pin(object, mount.as_fd(), NAME)?;
        Ok(Self(mount))
    }

    /// Keeps an object in a file without a name, in a directory of a BPF file system. `name`, which the file has for a
    /// moment, is the caller's alone: what a process that was killed at that moment left under it is removed.
    pub(crate) fn without_a_name(
        object: BorrowedFd<'_>,
        directory: BorrowedFd<'_>,
        name: &str,
    ) -> io::Result<Self> {
        let name = format!("{PASSING_NAME}{name}");
        let remove = || rustix::fs::unlinkat(directory, &name, AtFlags::empty());
        match remove() {
            Ok(()) | Err(rustix::io::Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
        pin(object, directory, &name)?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(directory, &name, flags, Mode::empty());
        remove()?;
        Ok(Self(file?))
    }
}

fn pin(object: BorrowedFd<'_>, directory: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    // A mount without a path has one by its descriptor.
    let path = PathBuf::from(format!("/proc/self/fd/{}/{name}", directory.as_raw_fd()));
    super::bpf::pin(object, &path)
}

impl AsFd for BpfPin {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
