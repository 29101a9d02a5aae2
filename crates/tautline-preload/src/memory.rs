//! Memory that the program points to. The kernel answers EFAULT for a pointer that leads nowhere; following it here
//! would end the program. So the kernel is asked about a page before it is followed for the first time, by letting it
//! copy (process_vm_readv(2), process_vm_writev(2)). Pages that were good are remembered: a program that gives a page
//! back to the kernel and then names it in a call ends with SIGSEGV.
#![allow(unsafe_code)] // Follows pointers of the program.

use std::ffi::{c_long, c_ulong};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

/// Smallest page of the architectures; larger ones are asked for in parts.
const PAGE_BYTES: usize = 4096;
/// Pages that are remembered, by the low bits of their number. Lower: a program with many buffers asks the kernel
/// more often (about half a microsecond). Higher: cache lines.
const REMEMBERED: usize = 256;

struct Pages([AtomicUsize; REMEMBERED]);

/// No page has this number.
const NONE: usize = usize::MAX;

static READABLE: Pages = Pages([const { AtomicUsize::new(NONE) }; REMEMBERED]);
static WRITABLE: Pages = Pages([const { AtomicUsize::new(NONE) }; REMEMBERED]);

impl Pages {
    #[inline]
    fn knows(&self, page: usize) -> bool {
        self.0[page % REMEMBERED].load(Relaxed) == page
    }

    fn remember(&self, page: usize) {
        self.0[page % REMEMBERED].store(page, Relaxed);
    }

    #[inline]
    fn know(&self, start: usize, bytes: usize) -> bool {
        pages(start, bytes).all(|page| self.knows(page))
    }
}

/// Pages of a range that does not wrap.
fn pages(start: usize, bytes: usize) -> std::ops::RangeInclusive<usize> {
    start / PAGE_BYTES..=(start + bytes.saturating_sub(1)) / PAGE_BYTES
}

fn wraps(start: usize, bytes: usize) -> bool {
    start.checked_add(bytes).is_none()
}

/// Whether `bytes` bytes can be read there.
#[inline]
pub(crate) fn is_readable<T>(start: *const T, bytes: usize) -> bool {
    let start = start.addr();
    if bytes == 0 {
        return true;
    }
    // No object is longer than half of the address space.
    !wraps(start, bytes)
        && isize::try_from(bytes).is_ok()
        && start != 0
        && (READABLE.know(start, bytes) || ask(start, bytes))
}

#[cold]
fn ask(start: usize, bytes: usize) -> bool {
    let _kept = crate::errno::Kept::new();
    pages(start, bytes).all(|page| {
        let at = start.max(page * PAGE_BYTES);
        let mut byte = 0u8;
        let good = copied(libc::SYS_process_vm_readv, &raw mut byte, at, 1);
        if good {
            READABLE.remember(page);
        }
        good
    })
}

/// Has the kernel copy between memory of ours and the program's. True too where it may not be asked.
fn copied(call: c_long, ours: *mut u8, theirs: usize, bytes: usize) -> bool {
    let piece = |start: usize| libc::iovec {
        iov_base: std::ptr::with_exposed_provenance_mut(start),
        iov_len: bytes,
    };
    // Words, as the kernel takes them: a shorter argument would leave half of one undefined.
    let (one, no_flags): (c_ulong, c_ulong) = (1, 0);
    let (local, remote) = (piece(ours.expose_provenance()), piece(theirs));
    // SAFETY: `ours` is valid for `bytes`, the callers see to it; the kernel checks the program's side.
    let done = unsafe {
        libc::syscall(
            call,
            libc::syscall(libc::SYS_getpid),
            &raw const local,
            one,
            &raw const remote,
            one,
            no_flags,
        )
    };
    match done {
        -1 => matches!(crate::errno::get(), libc::EPERM | libc::ENOSYS),
        done => done as usize == bytes,
    }
}

/// Reads a plain C structure.
#[inline]
pub(crate) fn read<T: Copy>(place: *const T) -> Option<T> {
    // SAFETY: readable, as was asked just now; callers choose a `T` of which every bit pattern is valid.
    is_readable(place, size_of::<T>()).then(|| unsafe { place.read_unaligned() })
}

/// Bytes of the program, for one call.
#[inline]
pub(crate) fn bytes<'a>(start: *const u8, length: usize) -> Option<&'a [u8]> {
    if length == 0 {
        return Some(&[]);
    }
    // SAFETY: readable, as was asked just now. A program whose other thread writes them meanwhile gets whatever is
    // there, as it would from the kernel's copy.
    is_readable(start, length).then(|| unsafe { std::slice::from_raw_parts(start, length) })
}

/// Copies to the program's memory; false if it cannot be written.
#[inline]
pub(crate) fn write(to: *mut u8, from: &[u8]) -> bool {
    if from.is_empty() {
        return true;
    }
    if wraps(to.addr(), from.len()) {
        return false;
    }
    if WRITABLE.know(to.addr(), from.len()) {
        // SAFETY: these pages could be written before; `from` is memory of ours, so they do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
        return true;
    }
    write_first(to, from)
}

#[cold]
fn write_first(to: *mut u8, from: &[u8]) -> bool {
    let _kept = crate::errno::Kept::new();
    let call = libc::SYS_process_vm_writev;
    if !copied(
        call,
        from.as_ptr().cast_mut(),
        to.expose_provenance(),
        from.len(),
    ) {
        return false;
    }
    // Where the kernel may not be asked it has copied nothing, and the pages are taken for good.
    // SAFETY: the kernel has just written there, or cannot be asked and the program answers for its pointer.
    unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
    pages(to.addr(), from.len()).for_each(|page| WRITABLE.remember(page));
    true
}

/// Writes a plain C structure; false if it cannot be written.
#[inline]
pub(crate) fn put<T: Copy>(to: *mut T, value: &T) -> bool {
    // SAFETY: a live value, looked at as bytes for the copy; callers choose structures without padding.
    let bytes = unsafe {
        std::slice::from_raw_parts(std::ptr::from_ref(value).cast::<u8>(), size_of::<T>())
    };
    write(to.cast(), bytes)
}
