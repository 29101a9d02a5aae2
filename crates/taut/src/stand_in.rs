//! A process that starts a program and stands in for it: to the process that started this one, signals, stops and the
//! end are as if this one were the program.
//!
//! Both are in one process group. A signal for the whole group reaches the program by itself, whether a terminal sends
//! it (^C, ^Z, a window of another size) or another process. A signal for this process alone is passed on. A third
//! process of the group ([`GroupMember`]) tells the two apart.
#![allow(unsafe_code)] // Signal masks, waiting for signals, and a fork.

use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{FromRawFd, IntoRawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};

use libc::{c_int, sigset_t};
use rustix::net::SendFlags;
use rustix::process::{Resource, Rlimit, Signal, setrlimit};
use tautline_awake::exec::FAULTS;
use tautline_state::child::end_with_thread;

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
        let member = GroupMember::start()?;
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
        Ok(Program {
            number: child.id(),
            member,
        })
    }
}

/// The program, which runs.
#[derive(Debug)]
pub(crate) struct Program {
    number: u32,
    member: GroupMember,
}

impl Program {
    /// Number of its process.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Passes signals on until it ends: how it did.
    pub(crate) fn wait(mut self) -> ExitStatus {
        let program = self.number as libc::pid_t;
        let passed_on = passed_on();
        loop {
            let signal = next(&passed_on);
            let is_of_group = self.member.takes(signal);
            if signal == libc::SIGCHLD {
                if let Some(status) = ended(program) {
                    return status;
                }
            } else if !(is_of_group && is_in_own_group(program)) {
                // SAFETY: no pointers. The program has not been waited for, so the number is its own.
                unsafe { libc::kill(program, signal) };
            }
        }
    }
}

/// A third process of the group, which holds all signals back. One that waits there as well as here was sent to the
/// group. The kernel gives a signal to the newest process of a group first (`attach_pid`), so it is there before it is
/// here.
#[derive(Debug)]
struct GroupMember {
    process: libc::pid_t,
    asked: UnixStream,
}

impl GroupMember {
    /// Starts it, with the signals that this thread holds back. Only in a process of one thread.
    fn start() -> io::Result<Self> {
        let (asked, questions) = UnixStream::pair()?;
        // SAFETY: this process has one thread, so its child may run any code.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => answer(questions),
            process => Ok(Self { process, asked }),
        }
    }

    /// Takes this signal there if it waits there too: whether it did. No, once the process was killed.
    fn takes(&mut self, signal: c_int) -> bool {
        let (question, mut reply) = ([signal as u8], [0]);
        rustix::net::send(&self.asked, &question, SendFlags::NOSIGNAL).is_ok()
            && self.asked.read_exact(&mut reply).is_ok()
            && reply == question
    }
}

impl Drop for GroupMember {
    fn drop(&mut self) {
        let _ends = self.asked.shutdown(Shutdown::Both);
        // SAFETY: no pointers. It has not been waited for, so the number is its own.
        unsafe { libc::waitpid(self.process, std::ptr::null_mut(), 0) };
    }
}

/// Life of a [`GroupMember`]: answers each signal with that signal if it waits here, otherwise with 0. Ends with the
/// process that asks.
fn answer(questions: UnixStream) -> ! {
    let kept = questions.into_raw_fd();
    // SAFETY: no pointers. This process uses none of the descriptors that it closes: files of the program, whose
    // readers wait for their end.
    unsafe {
        libc::dup2(kept, 0);
        libc::syscall(libc::SYS_close_range, 1, libc::c_uint::MAX, 0);
    }
    // SAFETY: the socket, which nothing else here owns.
    let mut questions = unsafe { UnixStream::from_raw_fd(0) };
    let mut signal = [0];
    while questions.read_exact(&mut signal).is_ok() {
        let mut only = empty();
        let at_once = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: a set and a time; what is known of the signal is not asked for.
        let taken = unsafe {
            libc::sigaddset(&raw mut only, signal[0].into());
            libc::sigtimedwait(&raw const only, std::ptr::null_mut(), &raw const at_once)
        };
        if questions.write_all(&[taken.max(0) as u8]).is_err() {
            break;
        }
    }
    // SAFETY: ends this process without what its parent does at its end.
    unsafe { libc::_exit(0) }
}

/// Whether a process is in the group of this one, as it was started.
fn is_in_own_group(process: libc::pid_t) -> bool {
    // SAFETY: no pointers.
    unsafe { libc::getpgid(process) == libc::getpgrp() }
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

/// The next signal.
fn next(signals: &sigset_t) -> c_int {
    loop {
        // SAFETY: a set; what is known of the signal is not asked for.
        let signal = unsafe { libc::sigwaitinfo(signals, std::ptr::null_mut()) };
        if signal > 0 {
            return signal;
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
