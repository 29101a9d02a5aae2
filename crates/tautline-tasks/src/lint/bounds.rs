//! The list of system calls whose time has a bound, if they do not block; whether they do is counted apart.
#![cfg(target_arch = "x86_64")] // Elsewhere no calls are watched.

use std::mem::MaybeUninit;

/// Kind of a system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kind {
    pub(super) is_bounded: bool,
    /// Whether another place may make it for the job.
    pub(super) is_movable: bool,
}

/// Clocks, numbers of the caller, futexes; sockets; and looks at descriptors.
const BOUNDED: [libc::c_long; 39] = [
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_gettimeofday,
    libc::SYS_time,
    libc::SYS_getcpu,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_getppid,
    libc::SYS_getuid,
    libc::SYS_getrusage,
    libc::SYS_sched_yield,
    libc::SYS_futex,
    libc::SYS_futex_waitv,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_rt_sigprocmask,
    libc::SYS_timerfd_settime,
    libc::SYS_timerfd_gettime,
    libc::SYS_timer_settime,
    libc::SYS_timer_gettime,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_select,
    libc::SYS_pselect6,
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_io_submit,
    libc::SYS_io_getevents,
    libc::SYS_sched_setscheduler,
    libc::SYS_sched_getscheduler,
    libc::SYS_fstat,
    libc::SYS_sched_setattr,
];

/// Calls with a descriptor, which have a bound unless it is that of a file or a terminal.
const OF_DESCRIPTORS: [libc::c_long; 4] = [
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
];

/// Calls that another place cannot make for the job: they return twice, never, or change what a handler of signals
/// puts back.
const TIED: [libc::c_long; 12] = [
    libc::SYS_clone,
    libc::SYS_clone3,
    libc::SYS_fork,
    libc::SYS_vfork,
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_rt_sigsuspend,
    libc::SYS_rt_sigprocmask,
    libc::SYS_sigaltstack,
    libc::SYS_arch_prctl,
];

/// Major number of tap devices and their like (Documentation/admin-guide/devices.txt).
const MISC_MAJOR: libc::c_uint = 10;

/// Kind of a call, by its number and its first argument.
pub(super) fn kind(number: i64, first: i64) -> Kind {
    let is_of_descriptor = OF_DESCRIPTORS.contains(&number) && !is_file(first as libc::c_int);
    Kind {
        is_bounded: BOUNDED.contains(&number) || is_of_descriptor,
        is_movable: !TIED.contains(&number),
    }
}

/// Whether a descriptor is that of a file, a terminal or a disk: not of a socket, a pipe, an event or a tap.
fn is_file(descriptor: libc::c_int) -> bool {
    let mut status = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: `status` is of the right type and outlives the call; zeros are valid.
    let (returned, status) = unsafe {
        let returned = libc::fstat(descriptor, status.as_mut_ptr());
        (returned, status.assume_init())
    };
    let is_tap = libc::major(status.st_rdev) == MISC_MAJOR;
    match status.st_mode & libc::S_IFMT {
        libc::S_IFREG | libc::S_IFDIR | libc::S_IFBLK => returned == 0,
        libc::S_IFCHR => !is_tap,
        _ => false,
    }
}
