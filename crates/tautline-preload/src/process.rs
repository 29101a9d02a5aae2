//! The process that this library is in: how it begins, and what becomes of it when it forks.
#![allow(unsafe_code)] // A constructor, and a handler of fork.

use std::ffi::c_int;
use std::sync::atomic::AtomicI32;
use std::sync::atomic::Ordering::Relaxed;

use crate::{heap, lock, next, node, policy, table, watched};

unsafe extern "C" {
    fn pthread_atfork(
        prepare: Option<unsafe extern "C" fn()>,
        parent: Option<unsafe extern "C" fn()>,
        child: Option<unsafe extern "C" fn()>,
    ) -> c_int;
}

/// The process whose sockets are in the table.
static PROCESS: AtomicI32 = AtomicI32::new(0);

/// Run by the loader before the program begins.
#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;

extern "C" fn begin() {
    let _kept = crate::errno::Kept::new();
    next::find_all();
    policy::read();
    if policy::policy().is_none() || !table::make() {
        return;
    }
    PROCESS.store(own_number(), Relaxed);
    // SAFETY: the handler lives as long as the program: a preloaded library is never unloaded.
    unsafe { pthread_atfork(None, None, Some(in_child)) };
}

/// The number of this process, asked of the kernel: also true between vfork(2) and exec.
fn own_number() -> c_int {
    // SAFETY: a call without arguments that cannot fail.
    unsafe { libc::syscall(libc::SYS_getpid) as c_int }
}

/// Whether this is a child that shares the memory of the process whose sockets these are: between vfork(2) and exec, or
/// of a bare clone(2).
pub(crate) fn is_other() -> bool {
    PROCESS.load(Relaxed) != own_number()
}

/// The same, asked only of a taken socket.
pub(crate) fn is_other_for(descriptor: c_int) -> bool {
    table::place(descriptor).is_some() && is_other()
}

/// The child has the parent's sockets as the kernel's. It keeps nothing that would hold the demux on the interface when
/// the parent ends.
unsafe extern "C" fn in_child() {
    lock::forget_thread();
    heap::renew_after_fork();
    table::renew_after_fork();
    watched::renew_after_fork();
    node::renew_after_fork();
    PROCESS.store(own_number(), Relaxed);
}
