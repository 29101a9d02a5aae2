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
    let statement = |code: u32, jump_true: u8, jump_false: u8, k: u32| libc::sock_filter {
        code: code as u16,
        jt: jump_true,
        jf: jump_false,
        k,
    };
    // The number of the system call is the first word that the filter sees (seccomp(2)).
    let mut filter = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        statement(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            0,
            1,
            libc::SYS_bpf as u32,
        ),
        statement(
            libc::BPF_RET | libc::BPF_K,
            0,
            0,
            libc::SECCOMP_RET_KILL_PROCESS,
        ),
        statement(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
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
