//! Memory that is mapped: of this process alone, or shared with all that map the same file.
#![allow(unsafe_code)] // Mappings have no safe form.

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mlock, mmap, mmap_anonymous, munmap};

const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// A mapping, unmapped when dropped.
#[derive(Debug)]
pub struct Mapping {
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
    pub fn anonymous(bytes: usize) -> io::Result<Self> {
        let (access, flags) = (READ_WRITE, MapFlags::PRIVATE | MapFlags::POPULATE);
        // SAFETY: a fresh mapping at an address of the kernel's choice disturbs nothing.
        let base = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, access, flags) }?;
        Self::at(base.cast(), bytes, true)
    }

    /// The memory behind a descriptor, shared with all that map it.
    pub fn shared(fd: BorrowedFd<'_>, bytes: usize, offset: usize) -> io::Result<Self> {
        Self::map_shared(fd, bytes, true, offset)
    }

    /// Read-only form of [`Self::shared`].
    pub fn shared_read_only(fd: BorrowedFd<'_>, bytes: usize, offset: usize) -> io::Result<Self> {
        Self::map_shared(fd, bytes, false, offset)
    }

    fn map_shared(
        fd: BorrowedFd<'_>,
        bytes: usize,
        writable: bool,
        offset: usize,
    ) -> io::Result<Self> {
        let access = match writable {
            true => READ_WRITE,
            false => ProtFlags::READ,
        };
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        let (place, offset) = (std::ptr::null_mut(), offset as u64);
        // SAFETY: as above.
        let base = unsafe { mmap(place, bytes, access, flags, fd, offset) }?;
        Self::at(base.cast(), bytes, writable)
    }

    fn at(base: *mut u8, bytes: usize, writable: bool) -> io::Result<Self> {
        let base = NonNull::new(base).ok_or_else(|| io::Error::other("mapped at null"))?;
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
    #[must_use]
    pub fn load(&self, word: usize, order: Ordering) -> u64 {
        self.word(word).load(order)
    }

    /// Writes it.
    ///
    /// # Panics
    /// If the place is outside the mapping, or the mapping is to be looked at only.
    #[inline]
    pub fn store(&self, word: usize, value: u64, order: Ordering) {
        assert!(self.writable, "this mapping is to be looked at only");
        self.word(word).store(value, order);
    }

    /// Adds to it; the value before.
    ///
    /// # Panics
    /// As [`store`](Self::store).
    pub fn add(&self, word: usize, value: u64, order: Ordering) -> u64 {
        assert!(self.writable, "this mapping is to be looked at only");
        self.word(word).fetch_add(value, order)
    }

    /// Writes it if it is as expected; whether it was.
    ///
    /// # Panics
    /// As [`store`](Self::store).
    pub fn exchange_if(&self, word: usize, expected: u64, value: u64) -> bool {
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
    pub fn copy_in(&self, offset: usize, bytes: &[u8]) {
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

    /// Copies bytes from an offset. Others may write them meanwhile: a word says whether they are whole.
    ///
    /// # Panics
    /// If the place is outside the mapping.
    pub fn copy_out(&self, offset: usize, bytes: &mut [u8]) {
        assert!(
            offset <= self.bytes && bytes.len() <= self.bytes - offset,
            "bytes outside the mapping"
        );
        // SAFETY: the range is within the mapping, as was just checked; `bytes` is not part of it, because there is no
        // reference into a mapping.
        unsafe {
            let from = self.base.as_ptr().add(offset);
            std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len());
        }
    }

    /// All words, to be written and read.
    ///
    /// # Panics
    /// As [`store`](Self::store).
    #[must_use]
    pub fn words(&self) -> &[AtomicU64] {
        assert!(self.writable, "this mapping is to be looked at only");
        // SAFETY: as in `word`, for as many words.
        unsafe { std::slice::from_raw_parts(self.base.cast().as_ptr(), self.bytes / 8) }
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

    /// Start of the mapping, for accesses that no function here has.
    #[must_use]
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Its size.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Keeps the memory from being paged out. Not needed for BPF maps, which the kernel holds.
    pub fn lock(&self) -> io::Result<()> {
        // SAFETY: the mapping is ours, and locking changes no byte of it.
        Ok(unsafe { mlock(self.base.as_ptr().cast(), self.bytes) }?)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `base` and `bytes` are those of a mapping that we made and that is not used any
        // more, since its users borrow or own `self`. Unmapping unlocks.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}
