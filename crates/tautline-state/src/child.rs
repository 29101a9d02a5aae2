//! Child processes that do not outlive the thread that starts them, or the value that stands for them.
#![allow(unsafe_code)] // pre_exec has no safe form

use std::io;
use std::ops::{Deref, DerefMut};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};

/// Has the kernel send `signal` to the command's process when the thread that starts it ends, however that ends: start
/// it from a thread that lives as long as the child is wanted. SIGKILL ends it for certain; SIGTERM lets it clean up.
pub fn end_with_thread(command: &mut Command, signal: Signal) -> &mut Command {
    let parent = getpid();
    let between_fork_and_exec = move || -> io::Result<()> {
        set_parent_process_death_signal(Some(signal))?;
        // The parent may have died before the line above; then the signal would never be sent.
        if getppid() != Some(parent) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        Ok(())
    };
    // SAFETY: after fork only async-signal-safe calls are allowed. The closure makes the system calls prctl and
    // getppid and neither allocates nor locks: rustix passes arguments straight through, and an `io::Error` from a
    // kind or an errno is not boxed.
    unsafe { command.pre_exec(between_fork_and_exec) }
}

/// A child process that is killed when dropped, and waited for; one that has ended is only waited for. Processes that
/// it has started itself go on.
///
/// ```
/// use std::process::Command;
/// use tautline_state::child::KilledOnDrop;
///
/// let sleeper = KilledOnDrop(Command::new("sleep").arg("60").spawn()?);
/// println!("process {} sleeps", sleeper.id());
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct KilledOnDrop(pub Child);

impl Deref for KilledOnDrop {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for KilledOnDrop {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        // Both fail only for a child that was waited for already.
        let _ended = self.0.kill();
        let _ended = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_gone_when_it_is_dropped() {
        let sleeper = KilledOnDrop(Command::new("sleep").arg("60").spawn().unwrap());
        let entry = format!("/proc/{}", sleeper.0.id());
        assert!(std::fs::exists(&entry).unwrap());
        drop(sleeper);
        assert!(!std::fs::exists(&entry).unwrap(), "not even a zombie");
        let mut ended = KilledOnDrop(Command::new("true").spawn().unwrap());
        assert!(ended.0.wait().unwrap().success());
    }

    #[test]
    fn a_child_runs_and_dies_with_the_thread_that_started_it() {
        for signal in [Signal::KILL, Signal::TERM] {
            let (send, receive) = std::sync::mpsc::channel();
            std::thread::spawn(move || {
                let mut command = Command::new("sleep");
                let child = end_with_thread(command.arg("60"), signal).spawn();
                send.send(child.unwrap()).unwrap();
            })
            .join()
            .unwrap();
            let status = receive.recv().unwrap().wait().unwrap();
            let ended_by = std::os::unix::process::ExitStatusExt::signal(&status);
            assert_eq!(ended_by, Some(signal.as_raw()));
        }
    }
}
