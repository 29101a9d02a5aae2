//! Instructions of a piece of this program, counted by single steps.
//!
//! With the trap flag of x86-64 the processor traps after each instruction of the thread, the kernel answers with
//! SIGTRAP, and a handler counts the signals. No second process and no privilege is needed. The kernel's instructions
//! are not counted, and neither is the one that enters the kernel: the flag is off there.
//!
//! This is no way to measure time, since a step takes some thousand instructions of the kernel. A debugger of this
//! process would take the signals away. Other architectures have no such flag for programs, so there is no count.
#![allow(unsafe_code)] // Sets the trap flag, and a signal's handler.

use std::io;

/// Executes `work` in steps; returns the instructions that it took, and its result. Panics pass through.
///
/// # Errors
/// [`io::ErrorKind::Unsupported`] on other architectures than x86-64; what the kernel says if the signal cannot be
/// handled.
pub fn count<T>(work: impl FnOnce() -> T) -> io::Result<(u64, T)> {
    let (mut work, mut result) = (Some(work), None);
    let steps = trap::count(&mut || {
        let work = work.take().expect("called once");
        result = Some(work());
    })?;
    Ok((steps, result.expect("the work has been done")))
}

#[cfg(not(target_arch = "x86_64"))]
mod trap {
    use std::io;

    pub(super) fn count(_work: &mut dyn FnMut()) -> io::Result<u64> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

#[cfg(target_arch = "x86_64")]
mod trap {
    use std::arch::asm;
    use std::io;
    use std::mem;
    use std::ptr;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    use std::sync::{Mutex, PoisonError};

    /// Signals so far. Relaxed: a signal of a step comes to the thread that reads this.
    static STEPS: AtomicU64 = AtomicU64::new(0);

    /// Held while the handler is set: one thread counts at a time.
    static COUNTING: Mutex<()> = Mutex::new(());

    /// Steps of `work`, without those of setting the flag and of clearing it.
    pub(super) fn count(work: &mut dyn FnMut()) -> io::Result<u64> {
        let _alone = COUNTING.lock().unwrap_or_else(PoisonError::into_inner);
        let _handler = Handler::set()?;
        let own = steps_of(&mut || {});
        Ok(steps_of(work).saturating_sub(own))
    }

    /// Not inlined, so that its own steps are the same around every work.
    #[inline(never)]
    fn steps_of(work: &mut dyn FnMut()) -> u64 {
        let before = STEPS.load(Relaxed);
        let flag = TrapFlag::set();
        work();
        drop(flag);
        STEPS.load(Relaxed) - before
    }

    /// The calling thread makes single steps until this is dropped.
    struct TrapFlag;

    impl TrapFlag {
        fn set() -> TrapFlag {
            // SAFETY: the stack pointer is as before afterwards, and no option denies the use of the stack, so that
            // nothing of the compiler's lies below it. Of the flags only TF is changed that a program may not change
            // freely; each trap is handled, by the caller's `Handler`, whose kernel clears the flag in handlers.
            unsafe { asm!("pushfq", "or qword ptr [rsp], 0x100", "popfq") };
            TrapFlag
        }
    }

    impl Drop for TrapFlag {
        fn drop(&mut self) {
            // SAFETY: as in `set`; a thread without the flag is the ordinary case.
            unsafe { asm!("pushfq", "and qword ptr [rsp], -0x101", "popfq") };
        }
    }

    extern "C" fn step(_signal: libc::c_int) {
        STEPS.fetch_add(1, Relaxed);
    }

    /// The counting handler of SIGTRAP; the one before comes back when this is dropped.
    struct Handler(libc::sigaction);

    impl Handler {
        fn set() -> io::Result<Handler> {
            // SAFETY: all bytes zero is a valid sigaction: no flags, no masked signals.
            let (mut own, mut before): (libc::sigaction, libc::sigaction) =
                unsafe { (mem::zeroed(), mem::zeroed()) };
            own.sa_sigaction = step as extern "C" fn(libc::c_int) as libc::sighandler_t;
            // SAFETY: both point to a live sigaction, and the handler, which makes one atomic addition, may interrupt
            // any instruction.
            match unsafe { libc::sigaction(libc::SIGTRAP, &raw const own, &raw mut before) } {
                0 => Ok(Handler(before)),
                _ => Err(io::Error::last_os_error()),
            }
        }
    }

    impl Drop for Handler {
        fn drop(&mut self) {
            // SAFETY: the action is one that the kernel gave. It cannot fail for a signal that was set before.
            unsafe { libc::sigaction(libc::SIGTRAP, &raw const self.0, ptr::null_mut()) };
        }
    }

    #[cfg(test)]
    mod tests {
        use std::panic;

        use super::super::count;
        use super::*;

        /// Two instructions for each of `turns`.
        fn turn(turns: u64) {
            // SAFETY: counts a register down, and touches nothing else.
            unsafe { asm!("2:", "dec {0}", "jnz 2b", inout(reg) turns => _) };
        }

        #[test]
        fn each_instruction_is_a_step() {
            let of = |turns: u64| count(|| turn(turns)).unwrap().0;
            assert_eq!(of(1_010) - of(10), 2_000);
            assert_eq!(of(10), of(10));
        }

        #[test]
        fn the_kernel_is_not_counted() {
            let (steps, id) = count(rustix::process::getppid).unwrap();
            assert_eq!(id, rustix::process::getppid());
            // A system call in the kernel has some hundred at least.
            assert!((1..100).contains(&steps), "{steps}");
        }

        #[test]
        fn a_panic_ends_the_steps() {
            let work = || panic::resume_unwind(Box::new("on purpose"));
            assert!(panic::catch_unwind(|| count::<()>(work)).is_err());
            let _alone = COUNTING.lock().unwrap_or_else(PoisonError::into_inner);
            // Without a handler, a step would end the process.
            turn(10);
        }
    }
}
