//! System calls of tests and benchmarks behind safe functions. Their callers decide what a call means; nothing here
//! keeps state.
#![allow(unsafe_code)] // fork, and what rustix does not have; every block names its preconditions

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::process::Command;
use std::time::Duration;

use rustix::mount::MountFlags;
use rustix::process::{Pid, Signal, WaitOptions};
use rustix::system::{RebootCommand, reboot};
use rustix::thread::{ClockId, CpuSet};
use tautline_state::policy::set_policy;

/// Turns the `-1` convention into a `Result`.
fn check(returned: libc::c_int) -> io::Result<libc::c_int> {
    if returned < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(returned)
    }
}

/// CLOCK_MONOTONIC in nanoseconds. Through the vDSO: no system call, no allocation.
pub fn monotonic_ns() -> u64 {
    now_ns(ClockId::Monotonic)
}

/// CLOCK_REALTIME in nanoseconds: the clock of the kernel's stamps on packets. Through the vDSO.
pub fn realtime_ns() -> u64 {
    now_ns(ClockId::Realtime)
}

#[inline]
fn now_ns(clock: ClockId) -> u64 {
    let now = rustix::time::clock_gettime(clock);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Sleeps until `deadline_ns` on CLOCK_MONOTONIC. Returns early, without error, on a signal.
pub fn sleep_until(deadline_ns: u64) {
    let deadline = Duration::from_nanos(deadline_ns);
    let deadline = deadline
        .try_into()
        .expect("nanoseconds in 64 bits are 585 years");
    // Only a signal ends it early.
    let _ = rustix::thread::clock_nanosleep_absolute(ClockId::Monotonic, &deadline);
}

/// Number of the network namespace that a socket is in (Linux 5.14).
pub fn namespace_cookie(socket: impl AsFd) -> io::Result<u64> {
    let mut cookie = 0u64;
    let mut bytes = size_of::<u64>() as libc::socklen_t;
    // SAFETY: `cookie` is writable for `bytes`; any bits are a valid integer.
    check(unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut bytes,
        )
    })?;
    Ok(cookie)
}

/// A socket that sends whole frames on one interface of the calling thread's network namespace, past the
/// queueing discipline; it receives nothing (packet(7)).
pub fn frame_sender(interface_index: u32) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: no pointers are passed. Protocol 0: nothing is received.
    let descriptor = check(unsafe { libc::socket(libc::AF_PACKET, kind, 0) })?;
    // SAFETY: the descriptor was opened above and nobody else has it.
    let socket = unsafe { OwnedFd::from_raw_fd(descriptor) };
    let bypass: libc::c_int = 1;
    // SAFETY: `bypass` outlives the call, and its size is given.
    check(unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_QDISC_BYPASS,
            (&raw const bypass).cast(),
            size_of_val(&bypass) as libc::socklen_t,
        )
    })?;
    // SAFETY: all zero is a valid sockaddr_ll.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as libc::c_ushort;
    address.sll_ifindex = interface_index as libc::c_int;
    // SAFETY: `address` outlives the call, and its size is given.
    check(unsafe {
        libc::bind(
            socket.as_raw_fd(),
            (&raw const address).cast(),
            size_of_val(&address) as libc::socklen_t,
        )
    })?;
    Ok(socket)
}

/// Reads into `buffer` without allocating. Blocks as the descriptor says.
pub fn read(descriptor: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<usize> {
    Ok(rustix::io::read(descriptor, buffer)?)
}

/// Writes `bytes` in one call without allocating. The caller keeps the descriptor open.
pub fn write(descriptor: RawFd, bytes: &[u8]) -> io::Result<usize> {
    // SAFETY: used for this call only, in which a closed descriptor is an error of the kernel's.
    let descriptor = unsafe { BorrowedFd::borrow_raw(descriptor) };
    Ok(rustix::io::write(descriptor, bytes)?)
}

/// Pins the calling thread to one CPU.
pub fn pin_to_cpu(cpu: u32) -> io::Result<()> {
    crate::child::pin(cpu as usize)
}

/// The CPUs that the calling thread may run on.
pub fn allowed_cpus() -> io::Result<Vec<u32>> {
    let set = rustix::thread::sched_getaffinity(None)?;
    let cpus = (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu));
    Ok(cpus.map(|cpu| cpu as u32).collect())
}

/// The CPU that the calling thread runs on now.
pub fn current_cpu() -> u32 {
    rustix::thread::sched_getcpu() as u32
}

/// Gives the calling thread SCHED_FIFO at `priority` (1 to 99).
pub fn set_fifo(priority: u8) -> io::Result<()> {
    set_fifo_of(0, priority)
}

/// Gives a thread, by its number, SCHED_FIFO at `priority`; 0 is the calling one.
pub fn set_fifo_of(thread: i32, priority: u8) -> io::Result<()> {
    set_policy(thread, libc::SCHED_FIFO, priority.into())
}

/// Puts the calling thread back into the ordinary class.
pub fn set_other() -> io::Result<()> {
    set_policy(0, libc::SCHED_OTHER, 0)
}

/// Has the command's process pinned to one CPU from its start.
pub fn pin_command(command: &mut Command, cpu: u32) {
    use std::os::unix::process::CommandExt;
    // SAFETY: between fork and exec the closure makes one system call, which is async-signal-safe, and allocates
    // nothing.
    unsafe { command.pre_exec(move || pin_to_cpu(cpu)) };
}

/// Locks all present and future memory of the process, which also populates it.
pub fn lock_memory() -> io::Result<()> {
    use rustix::mm::{MlockAllFlags, mlockall};
    Ok(mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE)?)
}

/// Whether the process is run by root (effective user id 0).
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Whether a process with this id exists (it may belong to another user).
pub fn process_exists(pid: u32) -> bool {
    let tested = process(pid).map(rustix::process::test_kill_process);
    matches!(tested, Ok(Ok(()) | Err(rustix::io::Errno::PERM)))
}

/// Sends a signal to a process that the caller started, so that its number is no other's.
pub fn signal_process(pid: u32, signal: Signal) {
    if let Ok(pid) = process(pid) {
        let _ = rustix::process::kill_process(pid, signal); // it may have ended
    }
}

/// Waits for a child to end.
pub fn wait_for(pid: u32) {
    if let Ok(pid) = process(pid) {
        let _ = rustix::process::waitpid(Some(pid), WaitOptions::empty()); // it may have been waited for
    }
}

fn process(pid: u32) -> io::Result<Pid> {
    let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
    number.ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

/// Forks; the child runs `child` and exits with no destructor or buffer flushed. Returns the child's id.
/// Only for load workers with a single thread.
pub fn fork(child: impl FnOnce()) -> io::Result<u32> {
    // SAFETY: the caller is single-threaded (load workers are), so the child may run ordinary code.
    match check(unsafe { libc::fork() })? {
        0 => {
            child();
            // SAFETY: ends the child without running the parent's exit handlers.
            unsafe { libc::_exit(0) }
        }
        pid => Ok(pid as u32),
    }
}

/// Mounts a file system without a backing device. For the guest's first process.
pub fn mount(kind: &str, target: &str, options: &str) -> io::Result<()> {
    mount_device(kind, kind, target, options)
}

/// Mounts `source` on `target`. For the guest's first process.
pub fn mount_device(source: &str, kind: &str, target: &str, options: &str) -> io::Result<()> {
    let options = std::ffi::CString::new(options)?;
    let options = options.as_c_str();
    Ok(rustix::mount::mount(
        source,
        target,
        kind,
        MountFlags::empty(),
        options,
    )?)
}

/// Restarts the machine at once. Only the guest's first process calls it: any other lacks the privilege, or its caller
/// has checked that it is process 1.
pub fn restart_machine() {
    rustix::fs::sync();
    let _ = reboot(RebootCommand::Restart); // nobody is left to tell
}
