//! Doorbells of a guest under QEMU: the server's end of QEMU's device `ivshmem-doorbell`.
//!
//! The device asks a server, over a socket, for the shared memory and for the events of all its users. Here these
//! are two: Linux, number 0, and the guest, number 1, with one event each. The answers are written in advance; the
//! device reads them when it starts.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::IoSlice;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
    sendmsg, socketpair,
};

use crate::doorbell::Doorbells;

/// Version of the protocol of QEMU's device.
const VERSION: i64 = 0;
/// Number of Linux among the users of the memory.
const LINUX: i64 = 0;
/// Number of the guest.
const GUEST: i64 = 1;

/// The socket on which a device finds memory and events, and our end of it, which stays open as long as the device
/// lives.
pub(super) fn serve(doorbells: &Doorbells, memory: &OwnedFd) -> io::Result<(OwnedFd, OwnedFd)> {
    let (ours, devices) = socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    let says: [(i64, Option<BorrowedFd<'_>>); 5] = [
        (VERSION, None),
        (GUEST, None),
        (-1, Some(memory.as_fd())),
        (LINUX, Some(doorbells.to_linux.as_fd())),
        (GUEST, Some(doorbells.to_guest.as_fd())),
    ];
    for (number, descriptor) in says {
        say(&ours, number, descriptor)?;
    }
    Ok((ours, devices))
}

fn say(socket: &OwnedFd, number: i64, descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = descriptor.as_slice();
    if !descriptors.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let bytes = number.to_le_bytes();
    sendmsg(
        socket,
        &[IoSlice::new(&bytes)],
        &mut control,
        SendFlags::NOSIGNAL,
    )?;
    Ok(())
}
