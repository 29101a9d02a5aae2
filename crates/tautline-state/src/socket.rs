//! Sockets that rustix does not have: packet sockets, filters, and options without a call of their own.
#![allow(unsafe_code)] // Addresses and options are plain C structures.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// A non-blocking socket that a child process does not inherit.
///
/// # Errors
/// Those of socket(2).
pub fn open(domain: libc::c_int, kind: libc::c_int, protocol: libc::c_int) -> io::Result<OwnedFd> {
    let kind = kind | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: a call without pointers.
    let socket = check(unsafe { libc::socket(domain, kind, protocol) })?;
    // SAFETY: the descriptor was opened above and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(socket) })
}

/// A packet socket (packet(7)) for the frames of one protocol on one interface; protocol 0 receives none. `prepare`
/// sets filter and options: until then nothing is queued.
///
/// # Errors
/// Those of socket(2), of `prepare` and of bind(2).
pub fn packet(
    interface: u32,
    protocol: u16,
    prepare: impl FnOnce(BorrowedFd<'_>) -> io::Result<()>,
) -> io::Result<OwnedFd> {
    let socket = open(libc::AF_PACKET, libc::SOCK_RAW, 0)?;
    prepare(socket.as_fd())?;
    let address = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as libc::c_ushort,
        sll_protocol: protocol.to_be(),
        sll_ifindex: interface as libc::c_int,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    bind(socket.as_fd(), &address)?;
    Ok(socket)
}

/// Sets an option whose value is a plain C structure or integer.
///
/// # Errors
/// Those of setsockopt(2).
pub fn set_option<T: Copy>(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    option: libc::c_int,
    value: &T,
) -> io::Result<()> {
    // SAFETY: `value` is readable for its size; the kernel copies it.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    check(result).map(drop)
}

/// Reads an option into the place of `value`: an integer, or a structure of integers.
pub(crate) fn option<T: Copy>(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    option: libc::c_int,
    mut value: T,
) -> io::Result<T> {
    let mut bytes = size_of::<T>() as libc::socklen_t;
    let place = (&raw mut value).cast();
    // SAFETY: `value` is writable for `bytes`; any bits are valid integers.
    let result =
        unsafe { libc::getsockopt(socket.as_raw_fd(), level, option, place, &raw mut bytes) };
    check(result).map(|_| value)
}

/// Binds to an address given as a plain C structure.
///
/// # Errors
/// Those of bind(2).
pub fn bind<T: Copy>(socket: BorrowedFd<'_>, address: &T) -> io::Result<()> {
    // SAFETY: `address` is readable for its size; the kernel checks its content.
    let result = unsafe {
        libc::bind(
            socket.as_raw_fd(),
            std::ptr::from_ref(address).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    check(result).map(drop)
}

/// Sets a program of classic BPF: the filter that the kernel runs before it queues a frame.
///
/// # Errors
/// Those of setsockopt(2).
pub fn set_filter(socket: BorrowedFd<'_>, program: &[libc::sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog {
        len: program.len() as libc::c_ushort,
        filter: program.as_ptr().cast_mut(),
    };
    set_option(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
}

/// Keeps a filter from being removed or replaced, whichever process has the socket.
///
/// # Errors
/// Those of setsockopt(2).
pub fn lock_filter(socket: BorrowedFd<'_>) -> io::Result<()> {
    set_option(socket, libc::SOL_SOCKET, libc::SO_LOCK_FILTER, &1i32)
}

/// An instruction of such a program.
#[must_use]
pub fn statement(code: u32, jump_true: u8, jump_false: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter {
        code: code as u16,
        jt: jump_true,
        jf: jump_false,
        k,
    }
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    match result {
        -1 => Err(io::Error::last_os_error()),
        result => Ok(result),
    }
}
