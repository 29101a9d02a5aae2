//! Unix sockets that keep messages apart and carry descriptors.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use super::foreign::close_elsewhere;
use super::unix;

/// Most descriptors in one message of ours.
const DESCRIPTORS_MAX: usize = 2;
/// Most descriptors that the kernel lets anybody put into one message (SCM_MAX_FD). Those for which there is no room
/// are closed by the thread that receives, and closing a stranger's descriptor can take as long as the stranger
/// likes; so there is always room.
pub(crate) const FOREIGN_DESCRIPTORS_MAX: usize = 253;
/// Connections that may wait to be accepted.
const BACKLOG: i32 = 64;

fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let kind = SocketType::SEQPACKET;
    Ok(rustix::net::socket_with(
        AddressFamily::UNIX,
        kind,
        flags,
        None,
    )?)
}

/// A socket that listens under this name, whose permission bits are never wider than `mode`: `bind` takes them from the
/// socket, and leaves out those of the process's mask. Where the kernel can, messages with descriptors do not get in,
/// neither here nor on accepted sockets, until [`pass_rights`] says otherwise.
pub(crate) fn listen(path: &Path, mode: u32) -> io::Result<Listener> {
    let socket = socket()?;
    let refuses_descriptors = unix::refuse_descriptors(socket.as_fd()).is_ok();
    rustix::fs::fchmod(&socket, rustix::fs::Mode::from_raw_mode(mode))?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(Listener {
        socket: Some(socket),
        refuses_descriptors,
    })
}

/// A socket on which strangers connect. To close it does not block, whatever waits in connections that were not
/// accepted.
#[derive(Debug)]
pub(crate) struct Listener {
    /// Taken when it is dropped.
    socket: Option<OwnedFd>,
    refuses_descriptors: bool,
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_ref().expect("there until dropped").as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(socket) = self.socket.take()
            && !self.refuses_descriptors
        {
            close_elsewhere(socket);
        }
    }
}

/// Lets messages with descriptors in, or not; a peer's attempt fails then. Before Linux 6.16 they always get in.
pub(crate) fn pass_rights(socket: BorrowedFd<'_>, pass: bool) {
    let _unknown_to_older_kernels = unix::pass_descriptors(socket, pass);
}

/// A socket connected to the listener under this name. Messages with descriptors do not get in until [`pass_rights`]
/// says otherwise. Never waits.
pub(crate) fn connect(path: &Path) -> io::Result<OwnedFd> {
    let socket = socket()?;
    pass_rights(socket.as_fd(), false);
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// The next connection, if there is one.
pub(crate) fn accept(listener: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    match rustix::net::accept_with(listener, flags) {
        Ok(socket) => Ok(Some(socket)),
        Err(rustix::io::Errno::AGAIN) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Sends one message with these descriptors. Never waits.
pub(crate) fn send(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::other("too many descriptors in one message"));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, flags)?;
    Ok(())
}

/// Result of a receive.
pub(crate) enum Received {
    /// A message of this many bytes, perhaps cut off, with its descriptors.
    Message(usize, Vec<OwnedFd>),
    /// Nothing yet.
    Nothing,
    /// The peer has hung up.
    HungUp,
}

/// Receives one message. Never waits, unless the process has no room for the descriptors in it
/// ([`has_room_for_descriptors`]).
pub(crate) fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Received> {
    let mut space =
        [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FOREIGN_DESCRIPTORS_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received = rustix::net::recvmsg(
        socket,
        &mut [IoSliceMut::new(buffer)],
        &mut ancillary,
        flags,
    );
    let bytes = match received {
        Ok(message) => message.bytes,
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Ok(Received::Nothing),
        // The peer has hung up before it read all that we said. This is told once; then comes what it has said, such as
        // why it turned us away.
        Err(rustix::io::Errno::CONNRESET) => return Ok(Received::Nothing),
        Err(error) => return Err(error.into()),
    };
    if bytes == 0 {
        return Ok(Received::HungUp);
    }
    let mut descriptors = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    Ok(Received::Message(bytes, descriptors))
}

/// Whether this process may have as many more descriptors as one message can carry.
pub(crate) fn has_room_for_descriptors() -> bool {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let in_use = std::fs::read_dir("/proc/self/fd").map_or(usize::MAX, Iterator::count);
    limit.is_none_or(|limit| limit >= in_use.saturating_add(FOREIGN_DESCRIPTORS_MAX) as u64)
}
