//! Memory of this library: never the program's `malloc`, in which a signal handler may have interrupted it, and which
//! may itself call what this library replaces.
#![allow(unsafe_code)] // A global allocator.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;

use dlmalloc::Dlmalloc;

use crate::lock::Lock;

#[global_allocator]
static HEAP: Heap = Heap {
    lock: Lock::new(),
    inner: UnsafeCell::new(Dlmalloc::new()),
};

struct Heap {
    lock: Lock,
    inner: UnsafeCell<Dlmalloc>,
}

// SAFETY: `inner` is only reached by who holds `lock`.
unsafe impl Sync for Heap {}

/// In a forked child, where another thread of the parent may have held the lock. That thread's allocation may be half
/// done; so the child gets a heap of its own and leaves the inherited one as it is.
pub(crate) fn renew_after_fork() {
    HEAP.lock.reset();
    // SAFETY: the child has one thread, and it is here. Writing forgets the old heap without running anything on it.
    unsafe { HEAP.inner.get().write(Dlmalloc::new()) }
}

impl Heap {
    fn with<R>(&self, work: impl FnOnce(&mut Dlmalloc) -> R) -> Option<R> {
        let _held = self.lock.enter()?;
        // SAFETY: the lock is held, and `work` does not come back here.
        Some(work(unsafe { &mut *self.inner.get() }))
    }
}

// SAFETY: blocks are dlmalloc's, which has the same contract; null where the lock is this thread's own already, which
// is failure by contract.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise about `layout`.
        self.with(|heap| unsafe { heap.malloc(layout.size(), layout.align()) })
            .unwrap_or_default()
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise: `block` is from `alloc` with this layout.
        let _leaked = self.with(|heap| unsafe { heap.free(block, layout.size(), layout.align()) });
    }
}
