//! The system calls of the lab behind safe functions, each with one call in it. What a call means is
//! decided by its callers; nothing here keeps state.
#![allow(unsafe_code)] // system calls with no safe wrapper in std; every block names its preconditions

use std::ffi::CString;
use std::io;
use std::mem::MaybeUninit;
use tautline_state::policy::set_policy;

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Turns the `-1` convention into a `Result`.
fn check(returned: libc::c_int) -> io::Result<libc::c_int> {
    if returned < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(returned)
    }
}

fn c_string(text: &str) -> io::Result<CString> {
    CString::new(text).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))
}

/// CLOCK_MONOTONIC in nanoseconds. Through the vDSO: no system call, no allocation.
pub fn monotonic_ns() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `now` is a valid timespec that outlives the call; CLOCK_MONOTONIC always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn timespec(ns: u64) -> libc::timespec {
    libc::timespec {
        tv_sec: (ns / 1_000_000_000) as _,
        tv_nsec: (ns % 1_000_000_000) as _,
    }
}

/// Sleeps until `deadline_ns` on CLOCK_MONOTONIC. Returns early, without error, on a signal.
pub fn sleep_until(deadline_ns: u64) {
    let deadline = timespec(deadline_ns);
    // SAFETY: `deadline` outlives the call and no remainder is asked for (TIMER_ABSTIME ignores it).
    unsafe {
        libc::clock_nanosleep(
            libc::CLOCK_MONOTONIC,
            libc::TIMER_ABSTIME,
            &deadline,
            std::ptr::null_mut(),
        )
    };
}

/// CLOCK_REALTIME in nanoseconds: the clock of the kernel's stamps on packets. Through the vDSO.
pub fn realtime_ns() -> u64 {
    let mut now = timespec(0);
    // SAFETY: `now` is a valid timespec that outlives the call; CLOCK_REALTIME always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
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

/// A periodic timer descriptor on CLOCK_MONOTONIC that expires first at `first_ns`.
pub fn timer_descriptor(first_ns: u64, period_ns: u64) -> io::Result<OwnedFd> {
    // SAFETY: no pointers are passed.
    let raw = check(unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC) })?;
    // SAFETY: `raw` was just returned by the kernel and nobody else owns it.
    let descriptor = unsafe { OwnedFd::from_raw_fd(raw) };
    let setting = libc::itimerspec {
        it_interval: timespec(period_ns),
        it_value: timespec(first_ns),
    };
    // SAFETY: `setting` outlives the call; the old value is not asked for.
    check(unsafe {
        libc::timerfd_settime(raw, libc::TFD_TIMER_ABSTIME, &setting, std::ptr::null_mut())
    })?;
    Ok(descriptor)
}

/// Reads into `buffer` without allocating. Blocks as the descriptor says.
pub fn read(descriptor: RawFd, buffer: &mut [u8]) -> io::Result<usize> {
    // SAFETY: the pointer and length describe `buffer`, which is exclusively borrowed for the call.
    let count = unsafe { libc::read(descriptor, buffer.as_mut_ptr().cast(), buffer.len()) };
    if count < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(count as usize)
    }
}

/// Writes `bytes` in one call without allocating.
pub fn write(descriptor: RawFd, bytes: &[u8]) -> io::Result<usize> {
    // SAFETY: the pointer and length describe `bytes`, which is borrowed for the call.
    let count = unsafe { libc::write(descriptor, bytes.as_ptr().cast(), bytes.len()) };
    if count < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(count as usize)
    }
}

/// Pins the calling thread to one CPU.
pub fn pin_to_cpu(cpu: u32) -> io::Result<()> {
    let mut set = MaybeUninit::<libc::cpu_set_t>::zeroed();
    if cpu as usize >= libc::CPU_SETSIZE as usize {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    // SAFETY: an all-zero cpu_set_t is valid and empty; `cpu` was checked against CPU_SETSIZE; pid 0 is
    // the calling thread; size and pointer describe `set`.
    check(unsafe {
        libc::CPU_SET(cpu as usize, set.assume_init_mut());
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), set.as_ptr())
    })
    .map(|_| ())
}

/// The CPUs that the calling thread may run on.
pub fn allowed_cpus() -> io::Result<Vec<u32>> {
    let mut set = MaybeUninit::<libc::cpu_set_t>::zeroed();
    // SAFETY: size and pointer describe `set`, which is zeroed and so valid; pid 0 is this thread.
    check(unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), set.as_mut_ptr()) })?;
    // SAFETY: zeroed and then filled by the kernel; CPU_ISSET is asked below CPU_SETSIZE only.
    let set = unsafe { set.assume_init() };
    Ok((0..libc::CPU_SETSIZE as u32)
        // SAFETY: as above.
        .filter(|cpu| unsafe { libc::CPU_ISSET(*cpu as usize, &set) })
        .collect())
}

/// The CPU that the calling thread runs on now.
pub fn current_cpu() -> u32 {
    // SAFETY: no pointers are passed.
    unsafe { libc::sched_getcpu() }.max(0) as u32
}

/// Gives the calling thread SCHED_FIFO at `priority` (1 to 99).
pub fn set_fifo(priority: u8) -> io::Result<()> {
    set_fifo_of(0, priority)
}

/// Gives a thread, by its number, SCHED_FIFO at `priority`; 0 is the calling one.
pub fn set_fifo_of(thread: libc::pid_t, priority: u8) -> io::Result<()> {
    set_policy(thread, libc::SCHED_FIFO, priority.into())
}

/// Puts the calling thread back into the ordinary class.
pub fn set_other() -> io::Result<()> {
    set_policy(0, libc::SCHED_OTHER, 0)
}

/// Puts the calling thread into the class that runs only when nothing else wants the CPU.
pub fn set_idle_class() -> io::Result<()> {
    set_policy(0, libc::SCHED_IDLE, 0)
}

/// Has the command's process pinned to one CPU from its start.
pub fn pin_command(command: &mut std::process::Command, cpu: u32) {
    use std::os::unix::process::CommandExt;
    // SAFETY: between fork and exec the closure makes one system call, which is async-signal-safe, and allocates
    // nothing.
    unsafe { command.pre_exec(move || pin_to_cpu(cpu)) };
}

/// `struct sched_attr` as of Linux 3.14 (uapi/linux/sched/types.h, SCHED_ATTR_SIZE_VER0).
#[repr(C)]
struct SchedulingAttributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime_ns: u64,
    deadline_ns: u64,
    period_ns: u64,
}

/// SCHED_DEADLINE in uapi/linux/sched.h; not in every libc.
const SCHED_DEADLINE: u32 = 6;

/// Gives the calling thread SCHED_DEADLINE. The kernel answers EPERM to a pinned thread and EBUSY when the
/// admission test fails.
pub fn set_deadline(runtime_ns: u64, deadline_ns: u64, period_ns: u64) -> io::Result<()> {
    let attributes = SchedulingAttributes {
        size: size_of::<SchedulingAttributes>() as u32,
        policy: SCHED_DEADLINE,
        flags: 0,
        nice: 0,
        priority: 0,
        runtime_ns,
        deadline_ns,
        period_ns,
    };
    // SAFETY: `attributes` states its own size and outlives the call; pid 0 is the calling thread.
    let returned = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &attributes, 0) };
    check(returned as libc::c_int).map(|_| ())
}

/// Locks all present and future memory of the process, which also populates it.
pub fn lock_memory() -> io::Result<()> {
    // SAFETY: no pointers are passed.
    check(unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE) }).map(|_| ())
}

/// Whether no limit can make an allocation fail once memory is locked: RLIMIT_MEMLOCK is unlimited, or root asks (whom
/// the limit does not bind; a root without CAP_IPC_LOCK is refused by [`lock_memory`] itself).
pub fn memory_lock_is_unlimited() -> bool {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is valid memory of the right type that outlives the call.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) } == 0;
    is_root() || (known && limit.rlim_cur == libc::RLIM_INFINITY)
}

/// Undoes [`lock_memory`].
pub fn unlock_memory() {
    // SAFETY: no pointers are passed.
    unsafe { libc::munlockall() };
}

/// Sets how late the kernel may make this thread's timers (only SCHED_OTHER heeds it). Default 50 µs.
pub fn set_timer_slack(ns: u32) -> io::Result<()> {
    // SAFETY: no pointers are passed.
    check(unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, libc::c_ulong::from(ns), 0, 0, 0) })
        .map(|_| ())
}

/// Asks the kernel to kill this process when its parent's thread ends.
pub fn die_with_parent() {
    // SAFETY: no pointers are passed.
    unsafe {
        libc::prctl(
            libc::PR_SET_PDEATHSIG,
            libc::SIGKILL as libc::c_ulong,
            0,
            0,
            0,
        )
    };
}

/// Has `signal` sent to the command's process when the thread that starts it ends, however it ends.
pub fn signal_with_parent(command: &mut std::process::Command, signal: i32) {
    use std::os::unix::process::CommandExt;
    // SAFETY: between fork and exec the closure makes one system call, which is async-signal-safe.
    unsafe {
        command.pre_exec(move || {
            check(libc::prctl(
                libc::PR_SET_PDEATHSIG,
                signal as libc::c_ulong,
                0,
                0,
                0,
            ))
            .map(|_| ())
        });
    }
}

/// Resources that the calling thread has used so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct ThreadUsage {
    /// Page faults served without disk.
    pub faults_minor: u64,
    /// Page faults that waited for disk.
    pub faults_major: u64,
    /// Times the thread was made to give up the CPU.
    pub switches_involuntary: u64,
    /// User and system time.
    pub cpu_time_ns: u64,
}

/// The calling thread's usage (RUSAGE_THREAD).
pub fn thread_usage() -> ThreadUsage {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: `usage` is valid memory of the right type; an all-zero rusage is valid should the call fail.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
        usage.assume_init()
    };
    let ns = |time: libc::timeval| time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1_000;
    ThreadUsage {
        faults_minor: usage.ru_minflt as u64,
        faults_major: usage.ru_majflt as u64,
        switches_involuntary: usage.ru_nivcsw as u64,
        cpu_time_ns: ns(usage.ru_utime) + ns(usage.ru_stime),
    }
}

/// Whether the process is run by root (effective user id 0).
pub fn is_root() -> bool {
    user_id() == 0
}

/// The effective user id.
pub fn user_id() -> u32 {
    // SAFETY: no pointers are passed; cannot fail.
    unsafe { libc::geteuid() }
}

/// Whether a process with this id exists (it may belong to another user).
pub fn process_exists(pid: u32) -> bool {
    // SAFETY: signal 0 is not delivered.
    let returned = unsafe { libc::kill(pid as libc::pid_t, 0) };
    returned == 0 || io::Error::last_os_error().raw_os_error() == Some(libc::EPERM)
}

/// Sends a signal to a process that the caller started.
pub fn signal_process(pid: u32, signal: i32) {
    // SAFETY: no pointers are passed; the caller owns the process, so the id is not reused under it.
    unsafe { libc::kill(pid as libc::pid_t, signal) };
}

/// Real-time clock requests, uapi/linux/rtc.h: `_IOW('p', 0x0c, unsigned long)`, `_IO('p', 5)`, `_IO('p', 6)`.
const RTC_IRQP_SET: u64 = 0x4000_700c | (size_of::<libc::c_ulong>() as u64) << 16;
const RTC_PIE_ON: u64 = 0x7005;
const RTC_PIE_OFF: u64 = 0x7006;

/// Starts the periodic interrupt of an open real-time clock at `rate_hz` (a power of two).
pub fn rtc_start(descriptor: &impl AsRawFd, rate_hz: u32) -> io::Result<()> {
    let raw = descriptor.as_raw_fd();
    // SAFETY: RTC_IRQP_SET takes its argument by value.
    check(unsafe { libc::ioctl(raw, RTC_IRQP_SET as _, libc::c_ulong::from(rate_hz)) })?;
    // SAFETY: RTC_PIE_ON takes no argument.
    check(unsafe { libc::ioctl(raw, RTC_PIE_ON as _, 0) }).map(|_| ())
}

/// Stops what [`rtc_start`] started.
pub fn rtc_stop(descriptor: &impl AsRawFd) {
    // SAFETY: RTC_PIE_OFF takes no argument.
    unsafe { libc::ioctl(descriptor.as_raw_fd(), RTC_PIE_OFF as _, 0) };
}

/// Mounts a file system without a backing device. For the guest's first process.
pub fn mount(kind: &str, target: &str, options: &str) -> io::Result<()> {
    mount_device(kind, kind, target, options)
}

/// Mounts `source` on `target`. For the guest's first process.
pub fn mount_device(source: &str, kind: &str, target: &str, options: &str) -> io::Result<()> {
    let (source, kind) = (c_string(source)?, c_string(kind)?);
    let (target, options) = (c_string(target)?, c_string(options)?);
    // SAFETY: all four are NUL-terminated strings that outlive the call.
    check(unsafe {
        libc::mount(
            source.as_ptr(),
            target.as_ptr(),
            kind.as_ptr(),
            0,
            options.as_ptr().cast(),
        )
    })
    .map(|_| ())
}

/// Brings the loopback device up. For the guest's first process: a fresh kernel has it down.
pub fn raise_loopback() -> io::Result<()> {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0")?;
    let mut request = MaybeUninit::<libc::ifreq>::zeroed();
    // SAFETY: an all-zero ifreq is valid; "lo" with its NUL fits the name; the flags are the member that
    // SIOCSIFFLAGS reads; `request` outlives the call.
    check(unsafe {
        let request = request.assume_init_mut();
        request.ifr_name[0] = b'l' as _;
        request.ifr_name[1] = b'o' as _;
        request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as _;
        libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, request)
    })
    .map(|_| ())
}

/// Loads a kernel module from an open file; `compressed` asks the kernel to decompress it (Linux 5.17).
pub fn load_module(file: &impl AsRawFd, compressed: bool) -> io::Result<()> {
    const MODULE_INIT_COMPRESSED_FILE: libc::c_int = 4;
    let flags = if compressed {
        MODULE_INIT_COMPRESSED_FILE
    } else {
        0
    };
    // SAFETY: the parameter string is a static NUL-terminated empty string.
    let returned = unsafe {
        libc::syscall(
            libc::SYS_finit_module,
            file.as_raw_fd(),
            c"".as_ptr(),
            flags,
        )
    };
    check(returned as libc::c_int).map(|_| ())
}

/// Restarts the machine at once. Only the guest's first process calls it.
pub fn restart_machine() {
    // SAFETY: flushes buffers; no pointers are passed.
    unsafe { libc::sync() };
    // SAFETY: no pointers are passed. In any process but a guest's first it fails for lack of privilege or
    // is guarded by the caller, which checks that it is process 1.
    unsafe { libc::reboot(libc::RB_AUTOBOOT) };
}

/// Lets only emergencies through to the kernel's console, so that a report is not cut by messages.
pub fn quieten_console() {
    const SYSLOG_ACTION_CONSOLE_LEVEL: libc::c_int = 8;
    // SAFETY: this action takes no buffer.
    unsafe { libc::klogctl(SYSLOG_ACTION_CONSOLE_LEVEL, std::ptr::null_mut(), 1) };
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

/// Waits for a child to end.
pub fn wait_for(pid: u32) {
    let mut status = 0;
    // SAFETY: `status` outlives the call.
    unsafe { libc::waitpid(pid as libc::pid_t, &mut status, 0) };
}

/// Whether standard input has ended, without waiting: how a load worker learns that it shall stop.
pub fn input_has_ended() -> bool {
    let mut input = libc::pollfd {
        fd: 0,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one pollfd is passed and it outlives the call.
    let ready = unsafe { libc::poll(&mut input, 1, 0) };
    ready > 0
        && (input.revents & (libc::POLLHUP | libc::POLLERR) != 0
            || read(0, &mut [0; 16]).is_ok_and(|n| n == 0))
}

/// Bytes free for this user on the file system that holds `path`.
pub fn free_bytes(path: &std::path::Path) -> io::Result<u64> {
    let path = c_string(&path.to_string_lossy())?;
    let mut figures = MaybeUninit::<libc::statvfs>::zeroed();
    // SAFETY: `path` is NUL-terminated and outlives the call; `figures` is valid memory of the right type.
    check(unsafe { libc::statvfs(path.as_ptr(), figures.as_mut_ptr()) })?;
    // SAFETY: zeroed and then filled by the kernel.
    let figures = unsafe { figures.assume_init() };
    #[allow(clippy::unnecessary_cast)] // 32 bits wide on 32-bit targets
    Ok(figures.f_bavail as u64 * figures.f_frsize as u64)
}
