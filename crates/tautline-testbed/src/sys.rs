//! System calls of tests and benchmarks behind safe functions. Their callers decide what a call means; nothing here
//! keeps state.
#![allow(unsafe_code)] // fork, and what rustix does not have; every block names its preconditions

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
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

/// Has receives on a socket look into the network card's queue themselves, for this long at most (SO_BUSY_POLL).
pub fn set_busy_poll(socket: impl AsFd, limit: Duration) -> io::Result<()> {
    let limit_us = libc::c_int::try_from(limit.as_micros()).unwrap_or(libc::c_int::MAX);
    set_option(socket, libc::SOL_SOCKET, libc::SO_BUSY_POLL, limit_us)
}

/// Limits the rate at which the kernel sends what a socket's queue holds, bytes a second (SO_MAX_PACING_RATE).
pub fn set_pacing_rate(socket: impl AsFd, bytes_per_s: u32) -> io::Result<()> {
    let bytes_per_s = bytes_per_s.cast_signed();
    let option = libc::SO_MAX_PACING_RATE;
    set_option(socket, libc::SOL_SOCKET, option, bytes_per_s)
}

/// Has a socket send and receive over one interface only (SO_BINDTODEVICE, socket(7)). Needs no privilege for a socket
/// that has no interface yet (since Linux 5.7).
pub fn bind_to_interface(socket: impl AsFd, interface: &str) -> io::Result<()> {
    // SAFETY: the name outlives the call, and its size is given.
    check(unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_BINDTODEVICE,
            interface.as_ptr().cast(),
            interface.len() as libc::socklen_t,
        )
    })?;
    Ok(())
}

/// Sets an option whose value is an integer.
fn set_option(
    socket: impl AsFd,
    level: libc::c_int,
    option: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    // SAFETY: `value` outlives the call, and its size is given.
    check(unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            size_of_val(&value) as libc::socklen_t,
        )
    })
    .map(|_| ())
}

/// A socket that sends whole frames on one interface of the calling thread's network namespace, past the
/// queueing discipline; it receives nothing (packet(7)).
pub fn frame_sender(interface_index: u32) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: no pointers are passed. Protocol 0: nothing is received.
    let descriptor = check(unsafe { libc::socket(libc::AF_PACKET, kind, 0) })?;
    // SAFETY: the descriptor was opened above and has no other owner.
    let socket = unsafe { OwnedFd::from_raw_fd(descriptor) };
    set_option(&socket, libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, 1)?;
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

/// Datagrams that [`send_datagrams`] hands over at once.
const DATAGRAMS_MAX: usize = 32;

/// Sends datagrams of `datagram_bytes` each that lie one after the other in `datagrams`, as many of them as one system
/// call takes, on a connected socket; returns how many.
pub fn send_datagrams(
    socket: impl AsFd,
    datagrams: &[u8],
    datagram_bytes: usize,
) -> io::Result<usize> {
    // SAFETY: all bytes zero is a valid iovec and a valid mmsghdr: no address, no parts, no control messages.
    let (mut parts, mut messages): ([libc::iovec; DATAGRAMS_MAX], [libc::mmsghdr; DATAGRAMS_MAX]) =
        unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    let mut count = 0;
    for datagram in datagrams.chunks(datagram_bytes).take(DATAGRAMS_MAX) {
        parts[count].iov_base = datagram.as_ptr().cast_mut().cast();
        parts[count].iov_len = datagram.len();
        messages[count].msg_hdr.msg_iov = &raw mut parts[count];
        messages[count].msg_hdr.msg_iovlen = 1;
        count += 1;
    }
    // SAFETY: the first `count` messages point to live parts, and these to bytes that are readable for their lengths;
    // the kernel writes nothing but the messages' own lengths.
    let sent = check(unsafe {
        libc::sendmmsg(
            socket.as_fd().as_raw_fd(),
            messages.as_mut_ptr(),
            count as libc::c_uint,
            0,
        )
    })?;
    Ok(sent as usize)
}

/// A point at which the kernel stamps packets (Documentation/networking/timestamping.rst).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StampKind {
    /// A packet that leaves comes to the queueing discipline.
    EntersQueue,
    /// A packet that leaves comes to the driver.
    EntersDriver,
    /// A packet that arrives comes to the receiving stack.
    Arrives,
}

/// Has everything that a socket sends, or receives, stamped at one point, on CLOCK_REALTIME.
pub fn stamp_packets(socket: impl AsFd, kind: StampKind) -> io::Result<()> {
    let kind = match kind {
        StampKind::EntersQueue => libc::SOF_TIMESTAMPING_TX_SCHED,
        StampKind::EntersDriver => libc::SOF_TIMESTAMPING_TX_SOFTWARE,
        StampKind::Arrives => libc::SOF_TIMESTAMPING_RX_SOFTWARE,
    };
    let flags = kind | libc::SOF_TIMESTAMPING_SOFTWARE | libc::SOF_TIMESTAMPING_OPT_TSONLY;
    let option = libc::SO_TIMESTAMPING;
    set_option(socket, libc::SOL_SOCKET, option, flags.cast_signed())
}

/// Room for a stamp, the error that carries it, and its address.
const STAMP_CONTROL_BYTES: usize = 256;

/// Memory for control messages, aligned as their headers have to be.
#[repr(align(8))]
struct StampControl([u8; STAMP_CONTROL_BYTES]);

/// A datagram that waits, or what the kernel tells about one that was sent (`of_sent`): its length, and its stamp in
/// nanoseconds. Never waits; nothing if there is none.
pub fn receive_stamped(
    socket: impl AsFd,
    buffer: &mut [u8],
    of_sent: bool,
) -> io::Result<Option<(usize, Option<u64>)>> {
    let queue = if of_sent { libc::MSG_ERRQUEUE } else { 0 };
    let mut control = StampControl([0; STAMP_CONTROL_BYTES]);
    let mut part = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    // SAFETY: all bytes zero is a valid msghdr: no address, no parts, no control messages.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = STAMP_CONTROL_BYTES as _; // glibc's size_t, musl's socklen_t
    // SAFETY: the message points to a buffer and to control memory that are writable for their lengths.
    let length = unsafe {
        libc::recvmsg(
            socket.as_fd().as_raw_fd(),
            &raw mut message,
            queue | libc::MSG_DONTWAIT,
        )
    };
    let Ok(length) = usize::try_from(length) else {
        let error = io::Error::last_os_error();
        return match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
            _ => Err(error),
        };
    };
    Ok(Some((length, stamp_in(&message))))
}

/// The kernel's software stamp among the control messages of a message that was received.
fn stamp_in(message: &libc::msghdr) -> Option<u64> {
    // SAFETY: the kernel has filled the control memory, which outlives the message, and set its length.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !header.is_null() {
        // SAFETY: the macros return headers that lie whole within the control memory, aligned.
        let kind = unsafe { ((*header).cmsg_level, (*header).cmsg_type) };
        if kind == (libc::SOL_SOCKET, libc::SCM_TIMESTAMPING) {
            // SAFETY: a message of this kind holds three timespecs, of which the first is the software stamp; read
            // unaligned, because control data promises no more than its header's alignment.
            let at = unsafe {
                libc::CMSG_DATA(header)
                    .cast::<libc::timespec>()
                    .read_unaligned()
            };
            return Some(at.tv_sec as u64 * 1_000_000_000 + at.tv_nsec as u64);
        }
        // SAFETY: as above; `header` came from these macros for this message.
        header = unsafe { libc::CMSG_NXTHDR(message, header) };
    }
    None
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

/// Whether the process is run by root (effective user id 0).
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
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

/// Longest time that a child of [`in_fork`] may take. Lower: on a busy machine it is killed. Higher: one that hangs is
/// noticed later.
const FORK_TIME_MAX: Duration = Duration::from_secs(30);

/// Runs `child` in a fork of this process, which has a copy of all its handles and none of its threads; the faults that
/// it found, a panic among them. Destructors of what the parent owns do not run there, but what `child` drops does.
///
/// # Errors
/// There is no process, or it has hung and was killed.
pub fn in_fork(child: impl FnOnce() -> Vec<String>) -> io::Result<Vec<String>> {
    let (mut to_parent, mut from_child) = UnixStream::pair()?;
    // SAFETY: the child takes locks of the C library's allocator alone, which are free in a child of fork, and those of
    // what `child` does.
    let pid = match check(unsafe { libc::fork() })? {
        0 => {
            let faults = catch_unwind(AssertUnwindSafe(child));
            let faults = faults.unwrap_or_else(|_| vec!["a panic".to_owned()]);
            let told = to_parent.write_all(faults.join("\n").as_bytes());
            // SAFETY: ends the child without running the parent's exit handlers.
            unsafe { libc::_exit(told.is_err().into()) }
        }
        pid => pid as u32,
    };
    drop(to_parent);
    from_child.set_read_timeout(Some(FORK_TIME_MAX))?;
    let mut told = String::new();
    let heard = from_child.read_to_string(&mut told);
    if heard.is_err() {
        signal_process(pid, Signal::KILL);
    }
    wait_for(pid);
    heard?;
    Ok(told.lines().map(str::to_owned).collect())
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
    let _ = reboot(RebootCommand::Restart); // an error could not be reported
}
