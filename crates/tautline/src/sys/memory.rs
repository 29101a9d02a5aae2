//! Mapped memory: anonymous, or of a BPF map; locked where allowed.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::sys::resource::Resource;

/// How much memory this process may lock, in bytes (`RLIMIT_MEMLOCK`, the soft limit).
pub(crate) fn lock_limit_bytes() -> io::Result<u64> {
    let (limit, _most) = nix::sys::resource::getrlimit(Resource::RLIMIT_MEMLOCK)?;
    #[allow(clippy::useless_conversion)] // of 32 bits on processors of 32
    Ok(limit.into())
}

/// A mapping, unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
    writable: bool,
}

// SAFETY: the mapping is plain memory that stays where it is until dropped; who may access which
// part of it and how is the business of those who hold it.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Zeroed memory of this process, resident from the start.
    pub(crate) fn anonymous(bytes: usize) -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
        Self::map(bytes, true, flags, -1, 0)
    }

    /// The memory behind a descriptor, shared with all that map it.
    pub(crate) fn shared(fd: BorrowedFd<'_>, bytes: usize, offset: usize) -> io::Result<Self> {
        Self::map_shared(fd, bytes, true, offset)
    }

    /// The same, to look at only.
    pub(crate) fn shared_read_only(
        fd: BorrowedFd<'_>,
        bytes: usize,
        offset: usize,
    ) -> io::Result<Self> {
        Self::map_shared(fd, bytes, false, offset)
    }

    fn map_shared(
        fd: BorrowedFd<'_>,
        bytes: usize,
        writable: bool,
        offset: usize,
    ) -> io::Result<Self> {
        let offset = libc::off_t::try_from(offset).map_err(io::Error::other)?;
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        Self::map(bytes, writable, flags, fd.as_raw_fd(), offset)
    }

    fn map(
        bytes: usize,
        writable: bool,
        flags: libc::c_int,
        fd: libc::c_int,
        offset: libc::off_t,
    ) -> io::Result<Self> {
        let access = if writable {
            libc::PROT_READ | libc::PROT_WRITE
        } else {
            libc::PROT_READ
        };
        // SAFETY: a fresh mapping at an address of the kernel's choice disturbs nothing.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, flags, fd, offset) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mapped at null"))?;
        Ok(Self {
            base,
            bytes,
            writable,
        })
    }

    /// Reads the word at this place, counted in words of eight bytes.
    ///
    /// # Panics
    /// If the place is outside the mapping.
    #[inline]
    pub(crate) fn load(&self, word: usize, order: Ordering) -> u64 {
        self.word(word).load(order)
    }

    /// Writes it.
    ///
    /// # Panics
    /// If the place is outside the mapping, or the mapping is to be looked at only.
    #[inline]
    pub(crate) fn store(&self, word: usize, value: u64, order: Ordering) {
        assert!(self.writable, "this mapping is to be looked at only");
        self.word(word).store(value, order);
    }

    /// Adds to it; the value before.
    ///
    /// # Panics
    /// As [`store`](Self::store).
    pub(crate) fn add(&self, word: usize, value: u64, order: Ordering) -> u64 {
        assert!(self.writable, "this mapping is to be looked at only");
        self.word(word).fetch_add(value, order)
    }

    /// Writes it if it is as expected; whether it was.
    ///
    /// # Panics
    /// As [`store`](Self::store).
    pub(crate) fn exchange_if(&self, word: usize, expected: u64, value: u64) -> bool {
        assert!(self.writable, "this mapping is to be looked at only");
        let orders = (Ordering::AcqRel, Ordering::Relaxed);
        let exchanged = self
            .word(word)
            .compare_exchange(expected, value, orders.0, orders.1);
        exchanged.is_ok()
    }

    /// Copies bytes to an offset. Others may read them meanwhile: they learn from a word whether they are whole.
    ///
    /// # Panics
    /// As [`store`](Self::store).
    pub(crate) fn copy_in(&self, offset: usize, bytes: &[u8]) {
        assert!(self.writable, "this mapping is to be looked at only");
        assert!(
            offset <= self.bytes && bytes.len() <= self.bytes - offset,
            "bytes outside the mapping"
        );
        // SAFETY: the range is within the mapping, as was just checked, and writable; `bytes` is not part of it,
        // because there is no reference into a mapping.
        unsafe {
            let to = self.base.as_ptr().add(offset);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
    }

    #[inline]
    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(
            index < self.bytes / 8,
            "word {index} is outside the mapping"
        );
        // SAFETY: within the mapping, as was just checked; mappings begin at pages, so the word is
        // aligned; any bits are a valid integer, and it is accessed as an atomic only: `base` is for
        // those who do likewise. Without the right to write, it is only loaded from.
        unsafe { self.base.cast::<AtomicU64>().add(index).as_ref() }
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
        // SAFETY: `base` and `bytes` are those of a mapping that we made and that is not used any
        // more, since its users borrow or own `self`. Unmapping unlocks.
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
