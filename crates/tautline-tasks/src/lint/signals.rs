//! Handlers of the two signals by which the kernel reports calls and faults of a job at the place where they happen.

use std::io;
use std::mem::MaybeUninit;

/// A handler as the kernel calls it.
pub(crate) type Handler =
    unsafe extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);

/// Installs a handler, unless the program has one already, and lets the signal reach this thread.
pub(crate) fn install(signal: libc::c_int, handler: Handler) -> io::Result<()> {
    if is_under_valgrind() {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let mut before = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: all structs are of the right type and outlive the calls; zeros are valid for each; the handler has the
    // form that SA_SIGINFO asks for, and takes neither memory nor locks.
    unsafe {
        let asked = libc::sigaction(signal, std::ptr::null(), before.as_mut_ptr());
        let taken = before.assume_init().sa_sigaction;
        if asked != 0 || ![libc::SIG_DFL, handler as libc::sighandler_t].contains(&taken) {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        let mut action = MaybeUninit::<libc::sigaction>::zeroed().assume_init();
        action.sa_sigaction = handler as libc::sighandler_t;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
        let mut only = MaybeUninit::<libc::sigset_t>::zeroed().assume_init();
        libc::sigemptyset(&raw mut only);
        libc::sigaddset(&raw mut only, signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const only, std::ptr::null_mut());
        match libc::sigaction(signal, &raw const action, std::ptr::null_mut()) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Whether valgrind runs this program: system calls and faults are valgrind's then, and it ends at such a signal. Asked
/// by the sequence of instructions that valgrind looks for (valgrind.h); on a CPU they do nothing.
#[cfg(target_arch = "x86_64")]
fn is_under_valgrind() -> bool {
    const RUNNING_ON_VALGRIND: u64 = 0x1001;
    let request = [RUNNING_ON_VALGRIND, 0, 0, 0, 0, 0];
    let mut answer: u64 = 0;
    // SAFETY: the rotations add up to none, and the exchange of a register with itself changes nothing. Valgrind reads
    // the request, which outlives this, and writes the answer.
    unsafe {
        std::arch::asm!(
            "rol rdi, 3",
            "rol rdi, 13",
            "rol rdi, 61",
            "rol rdi, 51",
            "xchg rbx, rbx",
            in("rax") request.as_ptr(),
            inout("rdx") answer,
            inout("rdi") 0u64 => _,
            options(nostack),
        );
    }
    answer > 0
}

#[cfg(not(target_arch = "x86_64"))]
fn is_under_valgrind() -> bool {
    false
}

/// Has the signal do what it does without a handler, now that it came for another reason.
pub(crate) fn give_up(signal: libc::c_int) {
    // SAFETY: no pointers are passed. The signal is blocked until the handler returns, and ends the process then.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        libc::raise(signal);
    }
}
