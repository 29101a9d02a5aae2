//! Unix sockets that keep messages apart and carry descriptors.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

/// Most descriptors in one message of ours. Lower: a port of plain UDP cannot be handed over. Higher: no difference.
pub(crate) const DESCRIPTORS_MAX: usize = 5;
/// Most descriptors that the kernel lets anybody put into one message (SCM_MAX_FD). Those for which there is no room
/// are closed by the thread that receives, and closing a stranger's descriptor can take as long as the stranger
/// likes; so there is always room.
pub(crate) const FOREIGN_DESCRIPTORS_MAX: usize = 253;

/// Process at the other end of a Unix socket, as it was when it connected (or began to listen).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Credentials {
    pub(crate) pid: i32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

impl Credentials {
    /// This process's.
    pub(crate) fn own() -> Self {
        Self {
            pid: std::process::id() as i32,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
        }
    }
}

fn socket(kind: SocketType) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(
        AddressFamily::UNIX,
        kind,
        flags,
        None,
    )?)
}

/// A socket without a name.
pub(crate) fn unnamed(kind: SocketType) -> io::Result<OwnedFd> {
    socket(kind)
}

/// A socket with this name, on which nobody listens yet.
pub(crate) fn bind_path(path: &Path, kind: SocketType) -> io::Result<OwnedFd> {
    let bound = socket(kind)?;
    rustix::net::bind(&bound, &SocketAddrUnix::new(path)?)?;
    Ok(bound)
}

/// Listens on a socket that has a name; `backlog` connections can wait to be accepted. On one that listens already,
/// this
/// process's credentials count from here on.
pub(crate) fn listen_again(listener: BorrowedFd<'_>, backlog: i32) -> io::Result<()> {
    Ok(rustix::net::listen(listener, backlog)?)
}

/// Whether this is a Unix socket of this kind on which somebody listens.
pub(crate) fn listens(socket: BorrowedFd<'_>, kind: SocketType) -> io::Result<bool> {
    use rustix::net::sockopt;
    Ok(sockopt::socket_domain(socket)? == AddressFamily::UNIX
        && sockopt::socket_type(socket)? == kind
        && sockopt::socket_acceptconn(socket)?)
}

/// The file that a Unix socket was bound to, wherever that is now, as a descriptor that can only be looked at. Needs
/// CAP_NET_ADMIN (Linux 4.10).
pub(crate) fn bound_file(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    /// Of linux/un.h.
    const SIOCUNIXFILE: libc::Ioctl = 0x89e0;
    // SAFETY: a call without pointers; the descriptor that it returns is ours.
    unsafe {
        let file = super::check(libc::ioctl(socket.as_raw_fd(), SIOCUNIXFILE, 0))?;
        Ok(OwnedFd::from_raw_fd(file))
    }
}

/// Connects to a name. Never waits: a listener that has too many waiting already is `ErrorKind::WouldBlock`.
/// `ErrorKind::ConnectionRefused` if nobody listens.
pub(crate) fn connect_path(path: &Path, kind: SocketType) -> io::Result<OwnedFd> {
    let stream = socket(kind)?;
    rustix::net::connect(&stream, &SocketAddrUnix::new(path)?)?;
    Ok(stream)
}

/// The next connection, or `None` if nobody waits.
pub(crate) fn accept(listener: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    match rustix::net::accept_with(listener, flags) {
        Ok(stream) => Ok(Some(stream)),
        Err(error) if io::Error::from(error).kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error.into()),
    }
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

/// Receives one message and no descriptors: the kernel closes those that came along, in this thread. Zero bytes mean
/// that the other end is gone. Never waits.
pub(crate) fn receive(socket: BorrowedFd<'_>, message: &mut [u8]) -> io::Result<usize> {
    let flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC;
    let (_, bytes) = rustix::net::recv(socket, message, flags)?;
    Ok(bytes)
}

/// Whether descriptors come along with the next message. They stay where they are. Never waits.
pub(crate) fn carries_descriptors(socket: BorrowedFd<'_>) -> io::Result<bool> {
    // The kernel says that the control messages were cut off: there is no room for any.
    let mut control = RecvAncillaryBuffer::default();
    let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
    let peeked = rustix::net::recvmsg(socket, &mut [], &mut control, flags)?;
    Ok(peeked.flags.contains(ReturnFlags::CTRUNC))
}

/// Has the kernel refuse descriptors at the sender (EPERM), for this socket and those accepted from it. Fails on
/// kernels before 6.16.
pub(crate) fn refuse_descriptors(socket: BorrowedFd<'_>) -> io::Result<()> {
    pass_descriptors(socket, false)
}

/// Lets messages with descriptors in, or not, as [`refuse_descriptors`].
pub(crate) fn pass_descriptors(socket: BorrowedFd<'_>, pass: bool) -> io::Result<()> {
    /// `SO_PASSRIGHTS` of asm-generic/socket.h, which the libraries do not have yet.
    const SO_PASSRIGHTS: libc::c_int = 83;
    let pass = libc::c_int::from(pass);
    super::socket::set_option(socket, libc::SOL_SOCKET, SO_PASSRIGHTS, &pass)
}

/// [`refuse_descriptors`] on a socket that is closed again.
pub(crate) fn try_refusing_descriptors() -> io::Result<()> {
    let socket = std::os::unix::net::UnixDatagram::unbound()?;
    refuse_descriptors(socket.as_fd())
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

/// Process at the other end. One that this process cannot see, because it is outside its process
/// namespace, has number 0.
pub(crate) fn peer(socket: impl AsFd) -> io::Result<Credentials> {
    let mut peer = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut bytes = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: `peer` is writable for `bytes`; any bits are valid integers.
    super::check(unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut bytes,
        )
    })?;
    Ok(Credentials {
        pid: peer.pid,
        uid: peer.uid,
        gid: peer.gid,
    })
}

/// The supplementary groups of the process at the other end.
pub(crate) fn peer_groups(socket: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    let mut groups = vec![0u32; 64];
    loop {
        let mut bytes = size_of_val(groups.as_slice()) as libc::socklen_t;
        // SAFETY: `groups` is writable for `bytes`, which the kernel sets to what it wrote, or to
        // what it would need.
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
