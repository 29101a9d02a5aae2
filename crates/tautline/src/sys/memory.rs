//! Mapped memory: anonymous, or of a BPF map; locked where allowed.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

/// A mapping, unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping is plain memory that stays where it is until dropped; who may access which
// part of it and how is the business of those who hold it.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Zeroed memory of this process, resident from the start.
    pub(crate) fn anonymous(bytes: usize) -> io::Result<Self> {
        Self::map(
            bytes,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE,
            -1,
            0,
        )
    }

    /// The memory behind a descriptor, shared with whoever else maps it.
    pub(crate) fn shared(fd: BorrowedFd<'_>, bytes: usize, offset: usize) -> io::Result<Self> {
        let offset = libc::off_t::try_from(offset).map_err(io::Error::other)?;
        Self::map(
            bytes,
            libc::MAP_SHARED | libc::MAP_POPULATE,
            fd.as_raw_fd(),
            offset,
        )
    }

    fn map(
        bytes: usize,
        flags: libc::c_int,
        fd: libc::c_int,
        offset: libc::off_t,
    ) -> io::Result<Self> {
        // SAFETY: a fresh mapping at an address of the kernel's choice disturbs nothing.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                flags,
                fd,
                offset,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mapped at null"))?;
        Ok(Self { base, bytes })
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Keeps the memory from being paged out. Not needed for BPF maps, which the kernel holds.
    pub(crate) fn lock(&self) -> io::Result<()> {
        lock(self.base.as_ptr(), self.bytes)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `base` and `bytes` are those of a mapping that we made and that nobody uses any
        // more, since whoever uses it borrows or owns `self`. Unmapping unlocks.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// Bytes of a page.
pub(crate) fn page_bytes() -> usize {
    // SAFETY: a query without arguments in memory.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).unwrap_or(4096)
}

/// Keeps existing memory, such as a reassembly buffer, from being paged out.
pub(crate) fn lock_slice(memory: &[u8]) -> io::Result<()> {
    lock(memory.as_ptr(), memory.len())
}

fn lock(base: *const u8, bytes: usize) -> io::Result<()> {
    // SAFETY: mlock reads no memory; an address range that is not ours makes it fail.
    super::check(unsafe { libc::mlock(base.cast(), bytes) }).map(drop)
}
