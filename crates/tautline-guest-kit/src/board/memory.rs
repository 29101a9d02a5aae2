//! Memory of the program: an arena from which pieces are taken one after the other.

use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::ptr;

use super::tasks::masked;

/// Bytes of the arena. Lower: sets of many tasks have no room for their stacks. Higher: the smallest machines (2 MiB)
/// have no room for the program.
const ARENA_BYTES: usize = 1 << 20;

#[repr(align(16))]
struct Arena {
    bytes: UnsafeCell<[u8; ARENA_BYTES]>,
    taken: UnsafeCell<usize>,
}

// SAFETY: one processor; users have masked interrupts.
unsafe impl Sync for Arena {}

#[global_allocator]
static ARENA: Arena = Arena {
    bytes: UnsafeCell::new([0; ARENA_BYTES]),
    taken: UnsafeCell::new(0),
};

// SAFETY: pieces are aligned, within the arena, and no two overlap: `taken` only goes back over the last one, when that
// is given back.
unsafe impl GlobalAlloc for Arena {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        masked(|| {
            let base = self.bytes.get().cast::<u8>();
            // SAFETY: no other code is here while interrupts are masked.
            let taken = unsafe { &mut *self.taken.get() };
            let start = base as usize + *taken;
            let at = start.next_multiple_of(layout.align()) - base as usize;
            match at.checked_add(layout.size()) {
                Some(end) if end <= ARENA_BYTES => {
                    *taken = end;
                    // SAFETY: within the arena.
                    unsafe { base.add(at) }
                }
                _ => ptr::null_mut(),
            }
        })
    }

    unsafe fn dealloc(&self, piece: *mut u8, layout: Layout) {
        masked(|| {
            let at = piece as usize - self.bytes.get() as usize;
            // SAFETY: as above.
            let taken = unsafe { &mut *self.taken.get() };
            if at + layout.size() == *taken {
                *taken = at;
            }
        });
    }
}
