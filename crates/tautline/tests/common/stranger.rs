//! Speaking to control processes and nodes as no library of ours does.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use nix::net::if_::if_nametoindex;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

/// Where the control process of an interface listens.
pub fn control_socket(interface: &str) -> SocketAddrUnix {
    let index = if_nametoindex(interface).unwrap();
    SocketAddrUnix::new_abstract_name(format!("tautline/control/{index}").as_bytes()).unwrap()
}

/// Where the first node of a process tells its status.
pub fn status_socket(pid: u32) -> SocketAddrUnix {
    SocketAddrUnix::new_abstract_name(format!("tautline/node/{pid}/0").as_bytes()).unwrap()
}

/// Connects, and waits for room in the queue.
pub fn connect(address: &SocketAddrUnix) -> OwnedFd {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None).unwrap();
    rustix::net::connect(&socket, address).unwrap();
    socket
}

/// Sends descriptors to whoever tells a status; whether the kernel took them.
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

/// A hello for any demux of the usual EtherType, as docs/control.md describes it.
pub fn hello() -> [u8; 128] {
    let mut bytes = [0; 128];
    bytes[..4].copy_from_slice(&0x544c_4331u32.to_ne_bytes());
    bytes[4..6].copy_from_slice(&2u16.to_ne_bytes());
    bytes[6..8].copy_from_slice(&1u16.to_ne_bytes());
    bytes[8..10].copy_from_slice(&0x88b5u16.to_ne_bytes());
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
