//! Memories of a machine, mapped into its monitor.
#![allow(unsafe_code)] // mappings have no safe form; each block names its preconditions

use std::io;
use std::os::fd::AsFd;
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags};

/// Memory that stays where it is until dropped.
#[derive(Debug)]
pub(super) struct Memory {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: plain memory; once the guest runs, only the guest reads and writes it.
unsafe impl Send for Memory {}

impl Memory {
    /// Fresh memory, zero everywhere; there from the start if `is_resident`.
    pub(super) fn new(bytes: u64, is_resident: bool) -> io::Result<Memory> {
        let bytes = usize::try_from(bytes).map_err(io::Error::other)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = match is_resident {
            true => MapFlags::PRIVATE | MapFlags::POPULATE,
            false => MapFlags::PRIVATE,
        };
        let anywhere = std::ptr::null_mut();
        // SAFETY: a fresh mapping at an address of the kernel's choice disturbs nothing.
        let base = unsafe { rustix::mm::mmap_anonymous(anywhere, bytes, access, flags) }?;
        Memory::at(base.cast(), bytes)
    }

    /// Part of a file, shared with all processes that map it.
    pub(super) fn of_file(
        file: impl AsFd,
        offset: u64,
        bytes: u64,
        is_writable: bool,
    ) -> io::Result<Memory> {
        let bytes = usize::try_from(bytes).map_err(io::Error::other)?;
        let access = match is_writable {
            true => ProtFlags::READ | ProtFlags::WRITE,
            false => ProtFlags::READ,
        };
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        let anywhere = std::ptr::null_mut();
        // SAFETY: as above.
        let base = unsafe { rustix::mm::mmap(anywhere, bytes, access, flags, file, offset) }?;
        Memory::at(base.cast(), bytes)
    }

    fn at(base: *mut u8, bytes: usize) -> io::Result<Memory> {
        let base = NonNull::new(base).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Memory { base, bytes })
    }

    /// Keeps it from being paged out.
    pub(super) fn lock(&self) -> io::Result<()> {
        // SAFETY: the mapping is ours, and locking changes no byte of it.
        Ok(unsafe { rustix::mm::mlock(self.base.as_ptr().cast(), self.bytes) }?)
    }

    /// Its bytes, before the guest runs.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as many mapped bytes, without another reference: only fresh memory is written, by `&mut self`, before
        // the guest runs.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.bytes) }
    }

    /// Address in this process.
    pub(super) fn address(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    /// Its size.
    pub(super) fn len(&self) -> u64 {
        self.bytes as u64
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped by `at`'s callers; a machine that has it is dropped before.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}
