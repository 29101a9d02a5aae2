//! Confinement of a machine's process: before the guest's first instruction it gives up everything but running it. A
//! guest that takes the process over finds two memories, a pipe to the console, and the processor.

use std::collections::BTreeMap;
use std::io;

use landlock::{ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, Ruleset, RulesetAttr};
use rustix::thread::CapabilitySet;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

use super::board;

/// System calls that a machine's process makes while the guest runs, and at its end. Others fail with `EPERM`.
const CALLS: &[libc::c_long] = &[
    // Messages to the parent; the console.
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_close,
    // Threads wait for each other, and end.
    libc::SYS_futex,
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_exit,
    libc::SYS_exit_group,
    // Memory of its own.
    libc::SYS_brk,
    libc::SYS_madvise,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_getrandom,
];

/// Access to files that Landlock may know; kernels take the part that they know.
const LANDLOCK: ABI = ABI::V5;

/// Gives up files, TCP and capabilities, in the calling thread and those that it starts from now on. What the kernel
/// lacks is left out: the filter of system calls opens no file either.
pub(super) fn give_up_files() -> io::Result<()> {
    Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(LANDLOCK))
        .and_then(|rules| rules.handle_access(AccessNet::from_all(LANDLOCK)))
        .and_then(|rules| rules.create())
        .and_then(|rules| rules.restrict_self())
        .map_err(io::Error::other)?;
    tautline_state::privilege::keep_capabilities(CapabilitySet::empty())
}

/// Gives up system calls, in all threads.
pub(super) fn give_up_calls() -> io::Result<()> {
    let program = filter().map_err(io::Error::other)?;
    seccompiler::apply_filter_all_threads(&program).map_err(io::Error::other)
}

fn filter() -> Result<BpfProgram, seccompiler::BackendError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        CALLS.iter().map(|call| (*call, Vec::new())).collect();
    let request_is = |value: u64| {
        let (length, equal) = (SeccompCmpArgLen::Dword, SeccompCmpOp::Eq);
        SeccompRule::new(vec![SeccompCondition::new(1, length, equal, value)?])
    };
    let requests: Result<Vec<_>, _> = board::REQUESTS.into_iter().map(request_is).collect();
    rules.insert(libc::SYS_ioctl, requests?);
    let refuse = SeccompAction::Errno(libc::EPERM as u32);
    let architecture = std::env::consts::ARCH.try_into()?;
    SeccompFilter::new(rules, refuse, SeccompAction::Allow, architecture)?.try_into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_kept_that_reaches_farther() {
        filter().unwrap();
        for call in [
            libc::SYS_clone,
            libc::SYS_clone3,
            libc::SYS_connect,
            libc::SYS_execve,
            libc::SYS_kill,
            #[cfg(target_arch = "x86_64")]
            libc::SYS_open,
            libc::SYS_openat,
            libc::SYS_process_vm_writev,
            libc::SYS_ptrace,
            libc::SYS_socket,
            libc::SYS_unshare,
        ] {
            assert!(!CALLS.contains(&call), "{call}");
        }
    }

    /// Set for a process that tries all that a monitor may not do.
    const TRIES: &str = "TAUTLINE_KVM_TRIES";

    #[test]
    fn a_monitor_that_is_taken_over_can_do_little() {
        if let Some(is_confined) = std::env::var_os(TRIES) {
            let tried = attempts(is_confined == "confined");
            let done = tried.iter().filter(|(_, is_done)| *is_done);
            let done: Vec<&str> = done.map(|(attempt, _)| *attempt).collect();
            println!("of {} attempts: {done:?}", tried.len());
            std::process::exit(0);
        }
        let said = |how: &str| {
            let mut tries = std::process::Command::new(std::env::current_exe().unwrap());
            tries.args(["a_monitor_that_is_taken_over", "--nocapture"]);
            let output = tries.env(TRIES, how).output().unwrap();
            assert!(output.status.success(), "{how}: {output:?}");
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        let (free, confined) = (said("free"), said("confined"));
        assert!(confined.contains("of 10 attempts: []"), "{confined}");
        // Each is possible without confinement.
        assert_eq!(free.matches('"').count(), 20, "{free}");
    }

    /// Attempts, and whether they succeed, in a thread that is there before the system calls are given up.
    fn attempts(is_confined: bool) -> Vec<(&'static str, bool)> {
        use rustix::fs::{MemfdFlags, Mode, OFlags, memfd_create};
        use rustix::net::{AddressFamily, SocketType, socket};
        let (pipe, _other) = io::pipe().unwrap();
        let own = rustix::process::getpid();
        if is_confined {
            give_up_files().unwrap();
        }
        let (confined, may_try) = std::sync::mpsc::channel();
        let (started, has_started) = std::sync::mpsc::channel();
        let trying = std::thread::spawn(move || {
            started.send(()).unwrap();
            may_try.recv().unwrap();
            let open = |path, flags| rustix::fs::open(path, flags, Mode::empty()).is_ok();
            let run = || std::process::Command::new("/bin/true").status();
            vec![
                ("open a device", open(c"/dev/null", OFlags::RDWR)),
                ("open a directory", open(c"/", OFlags::RDONLY)),
                ("look at a file", rustix::fs::stat(c"/dev/null").is_ok()),
                (
                    "make a memory",
                    memfd_create(c"x", MemfdFlags::CLOEXEC).is_ok(),
                ),
                (
                    "make a socket",
                    socket(AddressFamily::UNIX, SocketType::STREAM, None).is_ok(),
                ),
                ("start a program", run().is_ok()),
                (
                    "start a thread",
                    std::thread::Builder::new().spawn(|| {}).is_ok(),
                ),
                (
                    "find a process",
                    rustix::process::test_kill_process(own).is_ok(),
                ),
                ("ask a device", rustix::io::ioctl_fionread(&pipe).is_ok()),
                ("copy a descriptor", rustix::io::dup(&pipe).is_ok()),
            ]
        });
        // A thread that is about to start needs calls that it needs never again.
        has_started.recv().unwrap();
        if is_confined {
            give_up_calls().unwrap();
        }
        confined.send(()).unwrap();
        trying.join().unwrap()
    }
}
