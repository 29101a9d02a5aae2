//! Giving up what a process may do.
#![allow(unsafe_code)] // prctl takes the filter by its address.

use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid};

/// Becomes another user, without groups and, as that user is not root, without capabilities.
pub fn become_user(uid: u32) {
    let (user, group) = (Uid::from_raw(uid), Gid::from_raw(uid));
    setgroups(&[]).unwrap();
    setresgid(group, group, group).unwrap();
    setresuid(user, user, user).unwrap();
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    assert_eq!(effective.map(str::trim), Some("0000000000000000"));
}

/// From here on the kernel kills this process if it makes a bpf() call.
pub fn forbid_bpf() {
    forbid(&[libc::SYS_bpf], libc::SECCOMP_RET_KILL_PROCESS);
}

/// From here on the kernel refuses these calls, with `EPERM`.
pub fn refuse_calls(calls: &[libc::c_long]) {
    forbid(calls, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32);
}

fn forbid(calls: &[libc::c_long], answer: u32) {
    let statement = |code: u32, jump_true: u8, jump_false: u8, k: u32| libc::sock_filter {
        code: code as u16,
        jt: jump_true,
        jf: jump_false,
        k,
    };
    let (load, end) = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, libc::BPF_RET);
    // The number of the system call is the first word that the filter sees (seccomp(2)).
    let mut filter = vec![statement(load, 0, 0, 0)];
    for call in calls {
        let is_equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
        filter.push(statement(is_equal, 0, 1, *call as u32));
        filter.push(statement(end | libc::BPF_K, 0, 0, answer));
    }
    let allow = libc::SECCOMP_RET_ALLOW;
    filter.push(statement(end | libc::BPF_K, 0, 0, allow));
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: plain numbers; then a program that lives through the call, which copies it.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let mode = libc::SECCOMP_MODE_FILTER;
        assert_eq!(
            libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program),
            0
        );
    }
}
