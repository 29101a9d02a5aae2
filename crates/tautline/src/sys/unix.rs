//! Unix sockets that keep messages apart and carry descriptors.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketType,
};
use tautline_state::untrusted::unnamed;

/// Most descriptors in one message of ours. Lower: a port of plain UDP cannot be handed over. Higher: no difference.
pub(crate) const DESCRIPTORS_MAX: usize = 5;
/// Most descriptors that the kernel lets anybody put into one message (SCM_MAX_FD). Those for which there is no room
/// are closed by the thread that receives, and closing a stranger's descriptor can take as long as the stranger
/// likes; so there is always room.
pub(crate) const FOREIGN_DESCRIPTORS_MAX: usize = 253;

/// A socket with this name, on which no process listens yet.
pub(crate) fn bind_path(path: &Path, kind: SocketType) -> io::Result<OwnedFd> {
    let bound = unnamed(kind)?;
    rustix::net::bind(&bound, &SocketAddrUnix::new(path)?)?;
    Ok(bound)
}

/// Sends one message with descriptors. Never waits.
pub(crate) fn send(
    socket: BorrowedFd<'_>,
    message: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::other("too many descriptors in one message"));
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    rustix::net::sendmsg(socket, &[IoSlice::new(message)], &mut control, flags)?;
    Ok(())
}

/// Receives one message with its descriptors. Zero bytes and no descriptors mean that the other end is gone. Never
/// waits, unless the process has no room for the descriptors.
pub(crate) fn receive_descriptors(
    socket: BorrowedFd<'_>,
    message: &mut [u8],
) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space =
        [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FOREIGN_DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received =
        rustix::net::recvmsg(socket, &mut [IoSliceMut::new(message)], &mut control, flags)?;
    let descriptors = control
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(rights) => Some(rights),
            _ => None,
        })
        .flatten()
        .collect();
    Ok((received.bytes, descriptors))
}

/// The supplementary groups of the process at the other end.
pub(crate) fn peer_groups(socket: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    let mut groups = vec![0u32; 64];
    loop {
        let mut bytes = size_of_val(groups.as_slice()) as libc::socklen_t;
        // SAFETY: `groups` is writable for `bytes`, which the kernel sets to what it wrote, or to what it would need.
        let result = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut bytes,
            )
        };
        let count = bytes as usize / size_of::<u32>();
        match super::check(result) {
            Ok(_) => {
                groups.truncate(count);
                return Ok(groups);
            }
            Err(error) if error.raw_os_error() == Some(libc::ERANGE) => groups.resize(count, 0),
            Err(error) => return Err(error),
        }
    }
}
