//! System calls that the executive needs: policies and clocks of other threads, and a mutex whose holder inherits the
//! priority of who waits.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::io;
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use rustix::thread::CpuSet;
use tautline_state::policy::{set_deadline, set_policy};

use crate::figures::ns;

/// Number of a thread in the kernel.
pub(crate) type ThreadNumber = libc::pid_t;

/// Number of the calling thread.
pub(crate) fn own_number() -> ThreadNumber {
    rustix::thread::gettid().as_raw_nonzero().get()
}

/// `CLOCK_MONOTONIC`, since its zero.
pub(crate) fn monotonic() -> Duration {
    read_clock(libc::CLOCK_MONOTONIC).expect("every Linux has this clock")
}

/// Execution time of the calling thread.
pub(crate) fn own_cpu_time() -> Duration {
    read_clock(libc::CLOCK_THREAD_CPUTIME_ID).expect("every Linux has this clock")
}

/// Execution time of a thread of this process; `None` once it has ended.
pub(crate) fn cpu_time_of(thread: ThreadNumber) -> Option<Duration> {
    clock_of(thread, CPUCLOCK_PERTHREAD)
}

/// Execution time of a process with all its threads; `None` once it has been waited for.
pub(crate) fn cpu_time_of_process(process: ThreadNumber) -> Option<Duration> {
    clock_of(process, 0)
}

/// Kernel ABI (include/linux/posix-timers.h).
const CPUCLOCK_PERTHREAD: libc::clockid_t = 4;
const CPUCLOCK_SCHED: libc::clockid_t = 2;

fn clock_of(number: ThreadNumber, kind: libc::clockid_t) -> Option<Duration> {
    read_clock((!number << 3) | kind | CPUCLOCK_SCHED)
}

/// Reads a clock by the C library, which finds the kernel's fast way also where a debugger hides it.
fn read_clock(clock: libc::clockid_t) -> Option<Duration> {
    let mut used = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `used` is a timespec that outlives the call; the kernel checks the clock's number.
    let returned = unsafe { libc::clock_gettime(clock, &raw mut used) };
    (returned == 0).then(|| Duration::new(used.tv_sec as u64, used.tv_nsec as u32))
}

/// Scheduling of a real-time thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Policy {
    /// SCHED_FIFO at this priority.
    Fifo(u8),
    /// SCHED_DEADLINE, with this time from each wake-up.
    Deadline(Duration),
}

/// Gives a thread of this process its scheduling; SCHED_OTHER without an policy.
pub(crate) fn schedule(thread: ThreadNumber, policy: Option<Policy>) -> io::Result<()> {
    match policy {
        None => set_policy(thread, libc::SCHED_OTHER, 0),
        Some(Policy::Fifo(priority)) => set_policy(thread, libc::SCHED_FIFO, priority.into()),
        Some(Policy::Deadline(time)) => set_deadline(thread, ns(time), ns(time), ns(time)),
    }
}

/// Gives all threads of a process their scheduling; SCHED_OTHER without an policy.
pub(crate) fn schedule_process(process: ThreadNumber, policy: Option<Policy>) -> io::Result<()> {
    for thread in tautline_state::process::threads(process.unsigned_abs())? {
        match schedule(thread.cast_signed(), policy) {
            // It has ended meanwhile.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
            changed => changed?,
        }
    }
    Ok(())
}

/// Restricts the calling thread to a CPU. Returns whether it may run there.
pub(crate) fn stay_on(cpu: usize) -> bool {
    cpu < CpuSet::MAX_CPU && {
        let mut only = CpuSet::new();
        only.set(cpu);
        rustix::thread::sched_setaffinity(None, &only).is_ok()
    }
}

/// Mutex with priority inheritance: a thread that holds it runs at the priority of the most urgent one that waits, so
/// that no task between the two delays the wait. Blocking; the std mutex has no such protocol.
pub(crate) struct PriorityMutex<T> {
    /// In a box: it must not move once it has been initialised.
    mutex: Box<UnsafeCell<libc::pthread_mutex_t>>,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached through a guard alone, and pthreads let one thread at a time have it.
unsafe impl<T: Send> Sync for PriorityMutex<T> {}
// SAFETY: the mutex is not held while the owner moves it, and its memory stays where it is.
unsafe impl<T: Send> Send for PriorityMutex<T> {}

impl<T> PriorityMutex<T> {
    /// An unlocked mutex.
    pub(crate) fn new(value: T) -> io::Result<Self> {
        let mutex = Box::new(UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER));
        let mut attributes = MaybeUninit::uninit();
        // SAFETY: `attributes` is initialised by the first call before the others use it and destroyed by the last;
        // the mutex lies in a box that lives as long as `self`, and no thread has seen it yet.
        let returned = unsafe {
            let attributes: *mut libc::pthread_mutexattr_t = attributes.as_mut_ptr();
            let mut returned = libc::pthread_mutexattr_init(attributes);
            if returned == 0 {
                returned =
                    libc::pthread_mutexattr_setprotocol(attributes, libc::PTHREAD_PRIO_INHERIT);
                if returned == 0 {
                    returned = libc::pthread_mutex_init(mutex.get(), attributes);
                }
                libc::pthread_mutexattr_destroy(attributes);
            }
            returned
        };
        match returned {
            0 => Ok(Self {
                mutex,
                value: UnsafeCell::new(value),
            }),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }

    /// Waits for the mutex. A thread must not lock it twice.
    pub(crate) fn lock(&self) -> PriorityGuard<'_, T> {
        // SAFETY: the mutex was initialised by `new` and is destroyed by `drop` alone.
        let returned = unsafe { libc::pthread_mutex_lock(self.mutex.get()) };
        assert_eq!(returned, 0, "a mutex that is initialised can be locked");
        PriorityGuard { mutex: self }
    }
}

impl<T> Drop for PriorityMutex<T> {
    fn drop(&mut self) {
        // SAFETY: there is no other reference, so no guard is left.
        unsafe { libc::pthread_mutex_destroy(self.mutex.get()) };
    }
}

/// The value, while it is locked.
pub(crate) struct PriorityGuard<'a, T> {
    mutex: &'a PriorityMutex<T>,
}

impl<T> Deref for PriorityGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: this thread has the mutex for as long as the guard lives.
        unsafe { &*self.mutex.value.get() }
    }
}

impl<T> DerefMut for PriorityGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this thread has the mutex for as long as the guard lives, and the guard is borrowed exclusively.
        unsafe { &mut *self.mutex.value.get() }
    }
}

impl<T> Drop for PriorityGuard<'_, T> {
    fn drop(&mut self) {
        // SAFETY: this thread locked it when the guard was made.
        unsafe { libc::pthread_mutex_unlock(self.mutex.mutex.get()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mutex_lets_one_thread_in_at_a_time() {
        const ROUNDS: u64 = 20_000;
        let count = PriorityMutex::new(0u64).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..ROUNDS).for_each(|_| *count.lock() += 1));
            }
        });
        assert_eq!(*count.lock(), 4 * ROUNDS);
    }

    #[test]
    fn execution_time_of_another_thread_can_be_read() {
        let (tell, told) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            while own_cpu_time() < Duration::from_millis(3) {}
            tell.send(own_number()).unwrap();
            let _ = ended.recv();
        });
        let number = told.recv().unwrap();
        assert!(cpu_time_of(number).unwrap() >= Duration::from_millis(3));
        drop(end);
        thread.join().unwrap();
    }
}
