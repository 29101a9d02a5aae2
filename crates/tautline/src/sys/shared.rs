//! Memory that one process writes and others see: `memfd`s, sealed so that others can neither write them
//! nor make them smaller, which would kill who reads. And futexes in such memory.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::thread::{ClockId, futex};

use super::memory::Mapping;

/// Seals that a memory must have before anybody else maps it (Linux 5.1).
fn seals() -> SealFlags {
    SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL
}

/// Memory of this process that others may map read-only, or of another process, which we can only read.
#[derive(Debug)]
pub(crate) struct SharedMemory {
    mapping: Mapping,
    file: OwnedFd,
    resident: bool,
}

impl SharedMemory {
    /// Zeroed memory of this process, resident from the start, and locked where that is allowed.
    pub(crate) fn own(bytes: usize) -> io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create(c"taut-vbus", flags)?;
        rustix::fs::ftruncate(&file, bytes as u64)?;
        let mapping = Mapping::shared(file.as_fd(), bytes, 0)?;
        rustix::fs::fcntl_add_seals(&file, seals())?;
        let resident = mapping.lock().is_ok();
        Ok(Self {
            mapping,
            file,
            resident,
        })
    }

    /// A peer's memory, which must have exactly this size, and be sealed. The first question has an answer for memory
    /// files alone; no other file is asked anything that its file system could delay.
    pub(crate) fn of_peer(file: OwnedFd, bytes: usize) -> io::Result<Self> {
        let found = rustix::fs::fcntl_get_seals(&file)?;
        if !found.contains(seals()) {
            return Err(io::Error::other(
                "the peer's memory is not sealed: it could take it away while it is read",
            ));
        }
        let there = rustix::fs::fstat(&file)?.st_size;
        if u64::try_from(there).ok() != Some(bytes as u64) {
            return Err(io::Error::other(format!(
                "the peer's memory has {there} bytes, not {bytes}"
            )));
        }
        Ok(Self {
            mapping: Mapping::shared_read_only(file.as_fd(), bytes, 0)?,
            file,
            resident: false,
        })
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.mapping.base()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.mapping.bytes()
    }

    /// Whether it can never be paged out. A peer's is the peer's to lock.
    pub(crate) fn is_resident(&self) -> bool {
        self.resident
    }

    /// Descriptor by which others map the memory.
    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// A word, what it must be for us to sleep, and whether another process changes it.
pub(crate) type Word<'w> = (&'w AtomicU32, u32, bool);

/// Most words that one sleep can watch, as the kernel has it.
pub(crate) const WORDS_MAX: usize = 128;

/// Sleeps while all words are as given, at most for `timeout`. A signal ends it early.
///
/// # Errors
/// `ENOSYS` before Linux 5.16.
pub(crate) fn sleep_on<'w>(
    words: impl Iterator<Item = Word<'w>>,
    timeout: Option<Duration>,
) -> io::Result<()> {
    let mut waits = [const { futex::Wait::new() }; WORDS_MAX];
    let mut count = 0;
    for (wait, (word, value, shared)) in waits.iter_mut().zip(words) {
        wait.val = value.into();
        wait.uaddr = futex::WaitPtr::new(word.as_ptr().cast());
        wait.flags = futex::WaitFlags::SIZE_U32;
        if !shared {
            wait.flags |= futex::WaitFlags::PRIVATE;
        }
        count += 1;
    }
    // The call takes a point in time.
    let until = timeout.and_then(|timeout| {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        now.checked_add(timeout.try_into().ok()?)
    });
    let clock = ClockId::Monotonic;
    let flags = futex::WaitvFlags::empty();
    match futex::waitv(&waits[..count], flags, until.as_ref(), clock) {
        Ok(_) => Ok(()),
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR | rustix::io::Errno::TIMEDOUT) => {
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}

/// Whether [`sleep_on`] works here.
///
/// # Errors
/// Its own.
pub(crate) fn try_sleeping() -> io::Result<()> {
    // A sleep on a word that has changed already ends at once, or is not known to the kernel.
    let changed = AtomicU32::new(1);
    sleep_on([(&changed, 0, false)].into_iter(), None)
}

/// Wakes who sleeps on a word of ours: one process, or threads of this one.
pub(crate) fn wake(word: &AtomicU32, shared: bool) {
    let flags = if shared {
        futex::Flags::empty()
    } else {
        futex::Flags::PRIVATE
    };
    // The only errors are of addresses that are not ours.
    let _woken = futex::wake(word, flags, i32::MAX as u32);
}
