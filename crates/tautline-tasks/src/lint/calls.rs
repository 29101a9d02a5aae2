//! System calls of a job. The kernel hands each of them to this thread (Syscall User Dispatch, Linux 5.11), at the
//! place where it is made; it is judged there, and then made. So none is missed, and the backtrace is exact. x86-64
//! only: elsewhere the kernel has no such thing.

#[cfg(target_arch = "x86_64")]
pub(super) use dispatch::{CallWatch, unwatched};
#[cfg(not(target_arch = "x86_64"))]
pub(super) use nothing::{CallWatch, unwatched};

#[cfg(not(target_arch = "x86_64"))]
mod nothing {
    use std::io;

    pub(crate) struct CallWatch;

    impl CallWatch {
        pub(crate) fn new() -> io::Result<CallWatch> {
            Err(io::ErrorKind::Unsupported.into())
        }

        pub(crate) fn enable(&self) {}

        pub(crate) fn disable(&self) {}
    }

    pub(crate) fn unwatched<T>(work: impl FnOnce() -> T) -> T {
        work()
    }
}

#[cfg(target_arch = "x86_64")]
mod dispatch {
    use std::arch::asm;
    use std::cell::Cell;
    use std::io;
    use std::mem::MaybeUninit;

    use crate::lint::bounds::kind;
    use crate::lint::frames::Frames;
    use crate::lint::{LintKind, signals, state};
    use crate::sys;

    /// Kernel ABI (uapi/linux/prctl.h): the switch and its two positions.
    const PR_SET_SYSCALL_USER_DISPATCH: libc::c_int = 59;
    const PR_SYS_DISPATCH_ON: libc::c_ulong = 1;
    const ALLOW: u8 = 0;
    const BLOCK: u8 = 1;
    /// `si_code` of a call that was handed over (uapi/asm-generic/siginfo.h).
    const SYS_USER_DISPATCH: libc::c_int = 2;
    /// Length of `syscall`.
    const SYSCALL_BYTES: i64 = 2;
    /// Code that ends a handler of signals, behind its start: it has to be left alone. Lower: its system call is not
    /// within. Higher: nothing, up to the length of a function.
    const RESTORER_BYTES: libc::c_ulong = 16;

    thread_local! {
        /// The switch, which the kernel reads at each call.
        static SWITCH: Cell<u8> = const { Cell::new(ALLOW) };
    }

    /// Watches the system calls of this thread, for as long as it lives.
    pub(crate) struct CallWatch(());

    impl CallWatch {
        pub(crate) fn new() -> io::Result<CallWatch> {
            signals::install(libc::SIGSYS, on_call)?;
            let restorer = restorer()?;
            SWITCH.with(|switch| {
                // SAFETY: the switch lives as long as the thread, for which alone the call is.
                let returned = unsafe {
                    libc::prctl(
                        PR_SET_SYSCALL_USER_DISPATCH,
                        PR_SYS_DISPATCH_ON,
                        restorer,
                        RESTORER_BYTES,
                        switch.as_ptr(),
                    )
                };
                match returned {
                    0 => Ok(CallWatch(())),
                    _ => Err(io::Error::last_os_error()),
                }
            })
        }

        pub(crate) fn enable(&self) {
            SWITCH.set(BLOCK);
        }

        pub(crate) fn disable(&self) {
            SWITCH.set(ALLOW);
        }
    }

    /// Does something whose calls are not the job's.
    pub(crate) fn unwatched<T>(work: impl FnOnce() -> T) -> T {
        let before = SWITCH.replace(ALLOW);
        let done = work();
        SWITCH.set(before);
        done
    }

    /// Where the C library's code lies that ends a handler of signals.
    fn restorer() -> io::Result<libc::c_ulong> {
        /// `struct sigaction` of the kernel (arch/x86/include/uapi/asm/signal.h).
        #[repr(C)]
        struct Action {
            handler: usize,
            flags: libc::c_ulong,
            restorer: libc::c_ulong,
            mask: u64,
        }
        let mut action = MaybeUninit::<Action>::zeroed();
        let null = std::ptr::null::<Action>();
        // SAFETY: `action` is of the kernel's form and outlives the call; zeros are valid.
        let (returned, action) = unsafe {
            let place = action.as_mut_ptr();
            let mask = size_of::<u64>();
            let returned = libc::syscall(libc::SYS_rt_sigaction, libc::SIGSYS, null, place, mask);
            (returned, action.assume_init())
        };
        match returned {
            0 if action.restorer != 0 => Ok(action.restorer),
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    unsafe extern "C" fn on_call(
        signal: libc::c_int,
        information: *mut libc::siginfo_t,
        context: *mut libc::c_void,
    ) {
        SWITCH.set(ALLOW);
        // SAFETY: the kernel passes the signal's information and the thread's registers, which are this handler's
        // until it returns.
        let (code, registers) = unsafe {
            let context = context.cast::<libc::ucontext_t>();
            ((*information).si_code, &mut (*context).uc_mcontext.gregs)
        };
        if code != SYS_USER_DISPATCH {
            return signals::give_up(signal);
        }
        let register = |name: libc::c_int| registers[name as usize];
        let number = register(libc::REG_RAX);
        let arguments = [
            libc::REG_RDI,
            libc::REG_RSI,
            libc::REG_RDX,
            libc::REG_R10,
            libc::REG_R8,
            libc::REG_R9,
        ]
        .map(register);
        let kind = kind(number, arguments[0]);
        if !kind.is_bounded {
            state::called();
            state::note_first(LintKind::Call, Frames::capture);
        }
        if !kind.is_movable {
            // Made again at its own place; what follows in this job is not watched.
            registers[libc::REG_RIP as usize] -= SYSCALL_BYTES;
            return;
        }
        let before = sys::own_usage().blocked;
        // SAFETY: the call of the job, with its arguments; it does not depend on the place from which it is made.
        let returned = unsafe { call(number, arguments) };
        if sys::own_usage().blocked > before {
            state::note_first(LintKind::Blocking, Frames::capture);
        }
        registers[libc::REG_RAX as usize] = returned;
        SWITCH.set(BLOCK);
    }

    /// Makes a system call and leaves `errno` alone.
    ///
    /// # Safety
    /// That of the system call.
    unsafe fn call(number: i64, arguments: [i64; 6]) -> i64 {
        let returned: i64;
        // SAFETY: the kernel's calling convention: it changes rax, rcx and r11, and memory as the caller asks.
        unsafe {
            asm!(
                "syscall",
                inlateout("rax") number => returned,
                in("rdi") arguments[0],
                in("rsi") arguments[1],
                in("rdx") arguments[2],
                in("r10") arguments[3],
                in("r8") arguments[4],
                in("r9") arguments[5],
                lateout("rcx") _,
                lateout("r11") _,
                options(nostack),
            );
        }
        returned
    }
}
