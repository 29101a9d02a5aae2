//! Speaking to control processes and nodes as no library of ours does.
#![allow(unsafe_code)] // getsockopt writes through a pointer.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use nix::net::if_::if_nametoindex;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

/// Root's directory for the network namespace of this thread, as docs/reference/control.md describes it.
pub fn directory() -> String {
    let socket = std::os::unix::net::UnixDatagram::unbound().unwrap();
    let (mut cookie, mut bytes) = (0u64, size_of::<u64>() as libc::socklen_t);
    // SAFETY: `cookie` is writable for `bytes`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut bytes,
        )
    };
    assert_eq!(result, 0);
    format!("/run/tautline/net-{cookie}")
}

/// Where the control process of an interface serves clients.
pub fn control_socket(interface: &str) -> SocketAddrUnix {
    let index = if_nametoindex(interface).unwrap();
    SocketAddrUnix::new(format!("{}/control/clients-{index}", directory())).unwrap()
}

/// Where it tells its status.
pub fn status_socket(interface: &str) -> SocketAddrUnix {
    let index = if_nametoindex(interface).unwrap();
    SocketAddrUnix::new(format!("{}/control/status-{index}", directory())).unwrap()
}

/// Where root's node in a process tells its status.
pub fn node_socket(pid: u32) -> SocketAddrUnix {
    let room = format!("{}/nodes", directory());
    let mut entries = std::fs::read_dir(&room).unwrap().flatten();
    let of_process = |entry: &std::fs::DirEntry| {
        entry
            .file_name()
            .to_string_lossy()
            .starts_with(&format!("{pid}-"))
    };
    SocketAddrUnix::new(entries.find(of_process).unwrap().path()).unwrap()
}

/// Connects, and waits for room in the queue.
pub fn connect(address: &SocketAddrUnix) -> OwnedFd {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None).unwrap();
    rustix::net::connect(&socket, address).unwrap();
    socket
}

/// Asks for a status, and reads nothing.
pub fn hang(address: &SocketAddrUnix) -> OwnedFd {
    let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
    let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None).unwrap();
    rustix::net::connect(&socket, address).unwrap();
    socket
}

/// Sends descriptors to a process that reports a status; whether the kernel took them.
pub fn ask_status(address: &SocketAddrUnix, descriptors: &[BorrowedFd<'_>]) -> bool {
    let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
    let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None).unwrap();
    rustix::net::connect(&socket, address).is_ok() && send(&socket, b"?", descriptors)
}

/// Sends a message with descriptors; whether the kernel took it.
pub fn send(socket: &OwnedFd, message: &[u8], descriptors: &[BorrowedFd<'_>]) -> bool {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(100))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)));
    }
    let flags = SendFlags::NOSIGNAL;
    rustix::net::sendmsg(socket, &[IoSlice::new(message)], &mut control, flags).is_ok()
}

/// A hello for any demux of the usual EtherType, as docs/reference/control.md describes it.
pub fn hello() -> Vec<u8> {
    request(&[0, 0xb5, 0x91, 0x02, 0, 0, 0])
}

/// The first request of a connection, whose kind and fields are `rest`.
pub fn request(rest: &[u8]) -> Vec<u8> {
    let mut bytes = 0x544c_4331u32.to_ne_bytes().to_vec();
    bytes.extend(12u16.to_ne_bytes());
    bytes.push(1);
    bytes.extend(rest);
    bytes
}

/// Lets a process have so many descriptors.
pub fn limit_descriptors(pid: u32, count: u64) {
    let limit = Rlimit {
        current: Some(count),
        maximum: getrlimit(Resource::Nofile).maximum,
    };
    prlimit(Pid::from_raw(pid as i32), Resource::Nofile, limit).unwrap();
}
