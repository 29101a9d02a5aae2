//! A lock that hands its holder the priority of who waits (a priority-inheriting futex), and that is never waited for
//! by the thread that holds it.
#![allow(unsafe_code)] // System calls, and the thread's cancellation state.

use std::cell::Cell;
use std::ffi::c_int;
use std::marker::PhantomData;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

thread_local! {
    /// This thread's number; 0 before it was asked for.
    static THREAD: Cell<u32> = const { Cell::new(0) };
}

/// The kernel's number of this thread.
fn thread() -> u32 {
    THREAD.with(|known| {
        if known.get() == 0 {
            // SAFETY: a call without arguments that cannot fail.
            known.set(unsafe { libc::syscall(libc::SYS_gettid) } as u32);
        }
        known.get()
    })
}

/// In a forked child: this thread has another number.
pub(crate) fn forget_thread() {
    THREAD.with(|known| known.set(0));
}

/// The word is 0, or the number of the thread that holds the lock, with the kernel's mark if others wait (futex(2)).
pub(crate) struct Lock {
    word: AtomicU32,
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

const PTHREAD_CANCEL_DISABLE: c_int = 1;

impl Lock {
    pub(crate) const fn new() -> Self {
        Self {
            word: AtomicU32::new(0),
        }
    }

    /// Takes the lock. `None` if this thread has it: a signal handler interrupted its holder.
    #[inline]
    pub(crate) fn enter(&self) -> Option<Held<'_>> {
        let own = thread();
        let mut cancel_state = 0;
        // A thread that is cancelled in one of the calls below would leave with the lock.
        // SAFETY: a valid state, and a place for the one before.
        unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut cancel_state) };
        let held = Held {
            lock: self,
            cancel_state,
            _of_this_thread: PhantomData,
        };
        // Acquire: partner is the release in `drop`.
        match self.word.compare_exchange(0, own, Acquire, Relaxed) {
            Ok(_) => Some(held),
            Err(word) if word & libc::FUTEX_TID_MASK != own && self.wait() => Some(held),
            Err(_) => {
                held.forget();
                None
            }
        }
    }

    /// Whether the kernel gave this thread the lock.
    #[cold]
    fn wait(&self) -> bool {
        let before = crate::errno::Kept::new();
        let taken = loop {
            match self.futex(libc::FUTEX_LOCK_PI) {
                0 => break true,
                // The holder is ending, or a signal came.
                libc::EAGAIN | libc::EINTR => {}
                _ => break false,
            }
        };
        drop(before);
        taken
    }

    fn futex(&self, operation: c_int) -> c_int {
        // SAFETY: the word lives as long as the call; no timeout is given.
        let result = unsafe {
            libc::syscall(
                libc::SYS_futex,
                self.word.as_ptr(),
                operation | libc::FUTEX_PRIVATE_FLAG,
                0usize,
                std::ptr::null::<libc::timespec>(),
            )
        };
        if result == 0 { 0 } else { crate::errno::get() }
    }

    /// In a forked child: whoever held it is not here.
    pub(crate) fn reset(&self) {
        self.word.store(0, Relaxed);
    }
}

/// The lock, until dropped.
pub(crate) struct Held<'l> {
    lock: &'l Lock,
    cancel_state: c_int,
    _of_this_thread: PhantomData<*const ()>,
}

impl Held<'_> {
    /// Ends without giving back a lock that was not taken.
    fn forget(self) {
        self.restore_cancel_state();
        std::mem::forget(self);
    }

    fn restore_cancel_state(&self) {
        // SAFETY: the state is one that this function returned; the one before is not wanted.
        unsafe { pthread_setcancelstate(self.cancel_state, std::ptr::null_mut()) };
    }
}

impl Drop for Held<'_> {
    #[inline]
    fn drop(&mut self) {
        let word = &self.lock.word;
        // Release: partner is the acquire in `enter`.
        if word
            .compare_exchange(thread(), 0, Release, Relaxed)
            .is_err()
        {
            let _kept = crate::errno::Kept::new();
            self.lock.futex(libc::FUTEX_UNLOCK_PI);
        }
        self.restore_cancel_state();
    }
}

/// Keeps all signals from this thread until dropped: for what is not done in a hurry, and would not stand being
/// interrupted by a handler that comes back here.
pub(crate) struct Undisturbed(libc::sigset_t);

impl Undisturbed {
    pub(crate) fn new() -> Self {
        let mut all = std::mem::MaybeUninit::<libc::sigset_t>::zeroed();
        let mut before = std::mem::MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: both sets are writable; all bytes zero is an empty set.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
            Self(before.assume_init())
        }
    }
}

impl Undisturbed {
    /// The signals that the thread blocks otherwise.
    pub(crate) fn before(&self) -> *const libc::sigset_t {
        &raw const self.0
    }
}

impl Drop for Undisturbed {
    fn drop(&mut self) {
        // SAFETY: the set is the one that was in force before.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut())
        };
    }
}
