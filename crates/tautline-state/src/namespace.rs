//! Network namespaces: their numbers, for which rustix has no call, and a thread's way into one.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;

use rustix::net::{AddressFamily, SocketType};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Number of the network namespace that a socket is in, which is never given twice (Linux 5.14).
pub fn namespace_cookie(socket: impl AsFd) -> io::Result<u64> {
    crate::socket::option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_NETNS_COOKIE, 0)
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
