//! Connections with other processes of a bus: sockets that keep messages apart and carry descriptors.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::net::{SocketAddrUnix, SocketType};
use tautline_state::untrusted::{UntrustedListener, UntrustedSocket, unnamed};

use super::unix;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 64;

/// A socket that listens under this name, whose permission bits are never wider than `mode`: `bind` takes them from the
/// socket, and leaves out those of the process's mask. Where the kernel can, messages with descriptors do not get in,
/// neither here nor on accepted sockets, until [`UntrustedSocket::pass_descriptors`] says otherwise.
pub(crate) fn listen(path: &Path, mode: u32) -> io::Result<UntrustedListener> {
    let socket = unnamed(SocketType::SEQPACKET)?;
    rustix::fs::fchmod(&socket, rustix::fs::Mode::from_raw_mode(mode))?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    let listener = UntrustedListener::new(socket);
    listener.listen(BACKLOG)?;
    Ok(listener)
}

/// A socket connected to the listener under this name. Messages with descriptors do not get in until
/// [`UntrustedSocket::pass_descriptors`] says otherwise. Never waits.
pub(crate) fn connect(path: &Path) -> io::Result<UntrustedSocket> {
    UntrustedSocket::connect(&SocketAddrUnix::new(path)?, SocketType::SEQPACKET)
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

/// Receives one message. Never waits, unless the process has no room for a descriptor in it that blocks when it is
/// closed.
pub(crate) fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Received> {
    match unix::receive_descriptors(socket, buffer) {
        // An empty message can carry descriptors too.
        Ok((0, descriptors)) if descriptors.is_empty() => Ok(Received::HungUp),
        Ok((bytes, descriptors)) => Ok(Received::Message(bytes, descriptors)),
        Err(error) => match error.kind() {
            // Reset: the peer has hung up before it read all that we said. This is told once; then comes what it has
            // said, such as why it turned us away.
            io::ErrorKind::WouldBlock
            | io::ErrorKind::Interrupted
            | io::ErrorKind::ConnectionReset => Ok(Received::Nothing),
            _ => Err(error),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::net::{AddressFamily, SocketFlags};
    use tautline_state::untrusted::close_elsewhere_or_keep;

    use tautline_testbed::lingering;

    use super::*;

    #[test]
    fn descriptors_of_an_empty_message_are_not_closed_here() {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let (ours, theirs) =
            rustix::net::socketpair(family, kind, SocketFlags::CLOEXEC, None).unwrap();
        let (stream, _other) = lingering();
        unix::send(theirs.as_fd(), b"", &[stream.as_fd()]).unwrap();
        drop(stream);
        // To close it takes an hour.
        let Received::Message(0, mut descriptors) = receive(ours.as_fd(), &mut [0; 16]).unwrap()
        else {
            panic!("an empty message");
        };
        assert_eq!(descriptors.len(), 1);
        close_elsewhere_or_keep(descriptors.remove(0));
        drop(theirs);
        // Threads of other tests may have a copy for a moment.
        while !matches!(receive(ours.as_fd(), &mut [0; 16]), Ok(Received::HungUp)) {
            std::thread::yield_now();
        }
    }
}
