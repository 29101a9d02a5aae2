//! A process that starts a program and stands in for it: to the process that started this one, signals, stops and the
//! end are as if this one were the program.
//!
//! Both are in one process group, so a terminal reaches the program by itself (^C, ^Z, a window of another size), and
//! its signals are not passed on. A signal that another process sends is passed on. Its other receivers are not known,
//! so one for the whole group by kill(2) reaches the program twice.
#![allow(unsafe_code)] // Signal masks, and waiting for signals.

use std::io;
use std::mem::MaybeUninit;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};

use libc::{c_int, sigset_t};
use rustix::process::{Resource, Rlimit, Signal, setrlimit};
use tautline_awake::exec::FAULTS;
use tautline_state::child::end_with_thread;

/// Signals that a terminal sends to the whole process group.
const OF_TERMINAL: [c_int; 8] = [
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTSTP,
    libc::SIGTTIN,
    libc::SIGTTOU,
    libc::SIGHUP,
    libc::SIGCONT,
    libc::SIGWINCH,
];

/// This process, once signals wait for its program.
#[derive(Debug)]
pub(crate) struct StandIn {
    before: Before,
}

/// Signal mask, and action of SIGCHLD, as this process was started with them.
#[derive(Clone, Copy)]
struct Before {
    mask: sigset_t,
    children: libc::sighandler_t,
}

impl std::fmt::Debug for Before {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Before").finish_non_exhaustive()
    }
}

impl StandIn {
    /// Lets signals wait from now on. Only in a process of one thread: others would take them.
    pub(crate) fn begin() -> Self {
        // SAFETY: no handler, but the default action, with which a child that has ended can be waited for.
        let children = unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
        let mask = mask(libc::SIG_BLOCK, &passed_on());
        Self {
            before: Before { mask, children },
        }
    }

    /// Starts the program. Should this process be killed, the program is too.
    ///
    /// # Errors
    /// It cannot be started.
    pub(crate) fn start(self, command: &mut Command) -> io::Result<Program> {
        let before = self.before;
        end_with_thread(command, Signal::KILL);
        let as_before = move || {
            // SAFETY: an action that this process had; it runs no code of this one after exec(3).
            unsafe { libc::signal(libc::SIGCHLD, before.children) };
            mask(libc::SIG_SETMASK, &before.mask);
            Ok(())
        };
        // SAFETY: after fork only async-signal-safe calls are allowed: signal and sigprocmask are.
        unsafe { command.pre_exec(as_before) };
        let child = command.spawn()?;
        Ok(Program(child.id()))
    }
}

/// The program, which runs.
#[derive(Debug)]
pub(crate) struct Program(u32);

impl Program {
    /// Number of its process.
    pub(crate) fn number(&self) -> u32 {
        self.0
    }

    /// Passes signals on until it ends: how it did.
    pub(crate) fn wait(self) -> ExitStatus {
        let program = self.0 as libc::pid_t;
        let passed_on = passed_on();
        loop {
            let (signal, is_of_kernel) = next(&passed_on);
            if signal == libc::SIGCHLD {
                if let Some(status) = ended(program) {
                    return status;
                }
            } else if !(is_of_kernel && OF_TERMINAL.contains(&signal)) {
                // SAFETY: no pointers. The program has not been waited for, so the number is its own.
                unsafe { libc::kill(program, signal) };
            }
        }
    }
}

/// Ends this process as its program ended: by the same signal, without a second core file.
pub(crate) fn end_like(status: ExitStatus) -> ! {
    let Some(signal) = status.signal() else {
        std::process::exit(status.code().unwrap_or(1));
    };
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    let _stays = setrlimit(Resource::Core, none); // lowering a limit is allowed
    // SAFETY: the default action instead of a handler.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
    raise(signal);
    // The first process of a namespace is not ended by its own signals.
    std::process::exit(128 + signal);
}

/// End of the program, if it has ended. This process stops if the program has stopped.
fn ended(program: libc::pid_t) -> Option<ExitStatus> {
    loop {
        let mut status = 0;
        let options = libc::WNOHANG | libc::WUNTRACED;
        // SAFETY: room for the status.
        match unsafe { libc::waitpid(program, &raw mut status, options) } {
            found if found != program => return None,
            _ if libc::WIFSTOPPED(status) => raise(libc::WSTOPSIG(status)),
            _ => return Some(ExitStatus::from_raw(status)),
        }
    }
}

/// Sends a signal to this process, and takes it at once, although it is blocked.
fn raise(signal: c_int) {
    let mut only = empty();
    // SAFETY: a set, and a signal.
    unsafe {
        libc::kill(libc::getpid(), signal);
        libc::sigaddset(&raw mut only, signal);
    }
    mask(libc::SIG_UNBLOCK, &only);
    mask(libc::SIG_BLOCK, &passed_on());
}

/// The next signal, and whether the kernel sent it.
fn next(signals: &sigset_t) -> (c_int, bool) {
    loop {
        let mut found = MaybeUninit::<libc::siginfo_t>::zeroed();
        // SAFETY: a set, and room for the answer, which is valid if it is all zero too.
        let (signal, found) = unsafe {
            let signal = libc::sigwaitinfo(signals, found.as_mut_ptr());
            (signal, found.assume_init())
        };
        if signal > 0 {
            return (signal, found.si_code == libc::SI_KERNEL);
        }
    }
}

/// All signals but those of a fault of this process itself.
fn passed_on() -> sigset_t {
    let mut set = empty();
    // SAFETY: a set, and signals.
    unsafe {
        libc::sigfillset(&raw mut set);
        for fault in FAULTS {
            libc::sigdelset(&raw mut set, fault);
        }
    }
    set
}

fn empty() -> sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: room for a set, which is written.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        set.assume_init()
    }
}

/// Changes the signal mask of this thread, and returns the one before.
fn mask(how: c_int, set: &sigset_t) -> sigset_t {
    let mut before = empty();
    // SAFETY: two sets.
    unsafe { libc::sigprocmask(how, set, &raw mut before) };
    before
}
