//! The process of a monitor: its start, its place in a partition, its end.

use std::io::{self, Read};
use std::os::fd::BorrowedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;

use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use tautline_state::policy::{policy_of, set_policy};

use crate::error::GuestError;
use crate::sys;

/// Kept of what a monitor complains of.
const COMPLAINT_BYTES_MAX: u64 = 16 << 10;
/// Priority of the guest's processor under SCHED_FIFO, in a partition. The monitor's other threads are one above, so
/// that a guest that never halts cannot keep them from working.
pub(crate) const PRIORITY: i32 = 40;

/// A process that ends with the thread that starts it. Dropped, it is killed.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    complaints: Option<JoinHandle<String>>,
}

impl Process {
    /// Starts a command, which keeps these descriptors.
    pub(super) fn start(command: &mut Command, kept: &[BorrowedFd<'_>]) -> io::Result<Process> {
        sys::tie(command, kept);
        let mut child = command.stderr(Stdio::piped()).spawn()?;
        let stderr = child.stderr.take();
        Ok(Process {
            child,
            complaints: Some(std::thread::spawn(move || read_all(stderr))),
        })
    }

    /// Moves the process into a partition, with the threads of the guest's processors below the others. Returns
    /// settings that could not be had.
    pub(super) fn place(
        &self,
        partition: &str,
        processors: &[u32],
    ) -> Result<Vec<String>, GuestError> {
        let process = self.child.id();
        tautline_tasks::partition::find(partition)?.enter(process)?;
        let mut limits = Vec::new();
        for thread in tautline_state::process::threads(process).unwrap_or_default() {
            let above = i32::from(!processors.contains(&thread));
            let number = thread.cast_signed();
            let set = set_policy(number, libc::SCHED_FIFO, PRIORITY + above);
            if let (Err(error), true) = (set, limits.is_empty()) {
                limits.push(format!(
                    "the guest runs without a real-time priority ({error}): raise the limit (ulimit -r 50), or grant CAP_SYS_NICE"
                ));
            }
        }
        Ok(limits)
    }

    /// Its exit status, if it has ended. Never waits.
    pub(super) fn ended(&mut self) -> Option<ExitStatus> {
        let process = Pid::from_child(&self.child);
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        // Taken note of before, or an end that has to be.
        if let Ok(None) = waitid(WaitId::Pid(process), look) {
            return None;
        }
        self.reap()
    }

    /// Waits for the process, without a real-time priority. Linux gives back what /proc had of a process in a loop that
    /// waits for the process's last threads to do the same (`proc_invalidate_siblings_dcache`, seen in 6.18): a more
    /// urgent thread on their CPU would wait for ever.
    fn reap(&mut self) -> Option<ExitStatus> {
        let urgent = policy_of(0)
            .ok()
            .filter(|(policy, _)| *policy != libc::SCHED_OTHER);
        if urgent.is_some() {
            let _ = set_policy(0, libc::SCHED_OTHER, 0); // less is always granted
        }
        let status = self.child.wait().ok();
        if let Some((policy, priority)) = urgent {
            let _ = set_policy(0, policy, priority); // it had it before
        }
        status
    }

    /// End of the process in words, after it has ended by itself. `monitor` is its name.
    pub(super) fn end_text(&mut self, monitor: &str, status: ExitStatus) -> String {
        let how = match status.signal() {
            Some(signal) => format!("{monitor} was killed by signal {signal}"),
            None => format!(
                "{monitor} ended with status {}",
                status.code().unwrap_or(-1)
            ),
        };
        match self.complaint() {
            said if said.is_empty() => how,
            said => format!("{how}: {said}"),
        }
    }

    /// Last words of the process on its standard error. After its end.
    pub(super) fn complaint(&mut self) -> String {
        let _ = self.reap(); // it has ended, or was killed
        let said = self.complaints.take().map(JoinHandle::join);
        let said = said.and_then(Result::ok).unwrap_or_default();
        said.trim().lines().last().unwrap_or_default().to_owned()
    }

    /// Ends it at once.
    pub(super) fn kill(&mut self) {
        let _ = self.child.kill(); // it may have ended by itself
        let _ = self.reap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

fn read_all(stream: Option<impl Read>) -> String {
    let mut bytes = Vec::new();
    if let Some(mut stream) = stream {
        // Words before an error are still worth telling.
        let _ = stream
            .by_ref()
            .take(COMPLAINT_BYTES_MAX)
            .read_to_end(&mut bytes);
        let _ = io::copy(&mut stream, &mut io::sink()); // a full pipe would stop the monitor
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
