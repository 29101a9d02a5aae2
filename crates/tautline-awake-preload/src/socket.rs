//! Questions about a socket, and the storage that the kernel keeps for one, without the C library (`raw`).
#![allow(unsafe_code)] // System calls.

use std::ffi::c_int;
use std::net::{Ipv4Addr, SocketAddrV4};

use tautline_awake::raw::call;

// `enum bpf_cmd` of linux/bpf.h.
const LOOKUP: usize = 1;
const UPDATE: usize = 2;

/// Part of `union bpf_attr` (linux/bpf.h) for one element of a map.
#[repr(C, align(8))]
struct Element {
    map: u32,
    _padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// A command about the storage of a socket.
fn storage(command: usize, map: c_int, fd: c_int, value: &mut u64) -> bool {
    let element = Element {
        map: map as u32,
        _padding: 0,
        key: (&raw const fd).expose_provenance() as u64,
        value: std::ptr::from_mut(value).expose_provenance() as u64,
        flags: 0,
    };
    let at = (&raw const element).expose_provenance();
    // SAFETY: the layout is that of the command; key and value have the sizes of the map, a descriptor and a word.
    unsafe { call(libc::SYS_bpf, [command, at, size_of::<Element>()]) == 0 }
}

/// Stores a word for a socket: whether the kernel took it.
pub(crate) fn store(map: c_int, fd: c_int, mut word: u64) -> bool {
    storage(UPDATE, map, fd, &mut word)
}

/// The word that is stored for a socket.
pub(crate) fn stored(map: c_int, fd: c_int) -> Option<u64> {
    let mut word = 0;
    storage(LOOKUP, map, fd, &mut word).then_some(word)
}

/// Address that an IPv4 socket is bound to.
pub(crate) fn local_address(fd: c_int) -> Option<SocketAddrV4> {
    let mut address = libc::sockaddr_in {
        sin_family: 0,
        sin_port: 0,
        sin_addr: libc::in_addr { s_addr: 0 },
        sin_zero: [0; 8],
    };
    let mut bytes = size_of::<libc::sockaddr_in>() as libc::socklen_t;
    let to = (&raw mut address).expose_provenance();
    let length = (&raw mut bytes).expose_provenance();
    // SAFETY: room for the address, and its size.
    let result = unsafe { call(libc::SYS_getsockname, [fd as usize, to, length]) };
    let is_internet = result == 0 && address.sin_family == libc::AF_INET as libc::sa_family_t;
    is_internet.then(|| {
        let ip = Ipv4Addr::from(address.sin_addr.s_addr.to_ne_bytes());
        SocketAddrV4::new(ip, u16::from_be(address.sin_port))
    })
}

/// Whether a filter is attached to a socket, a classic one or a BPF program.
pub(crate) fn has_filter(fd: c_int) -> bool {
    // Instructions, of which none is asked for.
    let mut count: libc::socklen_t = 0;
    let length = (&raw mut count).expose_provenance();
    let level = libc::SOL_SOCKET as usize;
    let arguments = [fd as usize, level, libc::SO_GET_FILTER as usize, 0, length];
    // SAFETY: no room, and its size.
    let result = unsafe { call(libc::SYS_getsockopt, arguments) };
    result != 0 || count != 0
}

/// Whether a signal tells of what arrives (O_ASYNC).
pub(crate) fn signals(fd: c_int) -> bool {
    let arguments = [fd as usize, libc::F_GETFL as usize];
    // SAFETY: no pointers.
    let flags = unsafe { call(libc::SYS_fcntl, arguments) };
    flags < 0 || flags as c_int & libc::O_ASYNC != 0
}

/// Whether a process runs.
pub(crate) fn is_running(process: libc::pid_t) -> bool {
    // SAFETY: no pointers; signal 0 is none.
    let result = unsafe { call(libc::SYS_kill, [process as usize, 0]) };
    result != -(libc::ESRCH as isize)
}
