//! Network namespaces: their numbers, for which rustix has no call, and a thread's way into one.
#![allow(unsafe_code)] // one system call; the block names its preconditions

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};

use rustix::net::{AddressFamily, SocketType};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Number of the network namespace that a socket is in, which is never given twice (Linux 5.14).
pub fn namespace_cookie(socket: impl AsFd) -> io::Result<u64> {
    let mut cookie = 0u64;
    let mut bytes = size_of::<u64>() as libc::socklen_t;
    // SAFETY: `cookie` is writable for `bytes`; any bits are a valid integer.
    let returned = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut bytes,
        )
    };
    match returned {
        0 => Ok(cookie),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Number of the calling thread's network namespace.
pub fn own_network_namespace() -> io::Result<u64> {
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::DGRAM, None)?;
    namespace_cookie(&socket)
}

/// Moves the calling thread, and no other, into a network namespace.
pub fn enter_network_namespace(namespace: &File) -> io::Result<()> {
    let network = Some(LinkNameSpaceType::Network);
    Ok(move_into_link_name_space(namespace.as_fd(), network)?)
}
