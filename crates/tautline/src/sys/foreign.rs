//! Connections with processes that are not trusted: the descriptors that they send are neither taken nor waited for.
//!
//! Closing a descriptor can block for as long as its sender chose (a TCP socket with SO_LINGER and a full buffer
//! does), and a Unix socket that is closed or read closes the descriptors in its queue. Since Linux 6.16 the kernel
//! refuses them at the sender. On older kernels messages are looked at before they are read, and connections are
//! closed elsewhere.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::mpsc;

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::thread::UnshareFlags;

use super::unix;

/// Messages in a connection's queue at most (net.unix.max_dgram_qlen, 512 where a service manager has raised it).
/// Lower: somebody who has said that much is reset in place of told. Higher: no difference.
const QUEUE_MAX: usize = 512;

/// A socket on which strangers connect.
#[derive(Debug)]
pub(crate) struct ForeignListener {
    socket: OwnedFd,
    refuses_descriptors: bool,
}

impl ForeignListener {
    /// Takes a socket that listens.
    pub(crate) fn new(socket: OwnedFd) -> Self {
        let refuses_descriptors = unix::refuse_descriptors(socket.as_fd()).is_ok();
        Self {
            socket,
            refuses_descriptors,
        }
    }

    /// The next connection, or `None` if nobody waits.
    pub(crate) fn accept(&self) -> io::Result<Option<ForeignSocket>> {
        let accepted = unix::accept(self.socket.as_fd())?;
        Ok(accepted.map(|socket| ForeignSocket {
            socket: Some(socket),
            refuses_descriptors: self.refuses_descriptors,
        }))
    }
}

impl AsFd for ForeignListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A connection with a stranger. No method blocks; nor does closing it.
#[derive(Debug)]
pub(crate) struct ForeignSocket {
    /// Taken when it is dropped.
    socket: Option<OwnedFd>,
    refuses_descriptors: bool,
}

impl ForeignSocket {
    /// A connection with a stranger that is handed the other end.
    pub(crate) fn pair() -> io::Result<(Self, OwnedFd)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let (own, other) = rustix::net::socketpair(family, kind, flags, None)?;
        let own = Self {
            refuses_descriptors: unix::refuse_descriptors(own.as_fd()).is_ok(),
            socket: Some(own),
        };
        Ok((own, other))
    }

    /// Receives one message. Zero bytes mean that the other end is gone.
    ///
    /// # Errors
    /// `ErrorKind::InvalidData` if descriptors came along; the message is left in the queue.
    pub(crate) fn receive(&self, message: &mut [u8]) -> io::Result<usize> {
        if !self.refuses_descriptors && unix::carries_descriptors(self.as_fd())? {
            return Err(io::ErrorKind::InvalidData.into());
        }
        unix::receive(self.as_fd(), message)
    }

    /// Whether the other end has said nothing that is not read yet, and is there.
    pub(crate) fn is_silent(&self) -> bool {
        let peeked = unix::carries_descriptors(self.as_fd());
        peeked.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Says one thing and hangs up. The other end hears it whatever it has sent or is about to send: a socket that is
    /// closed with something unread resets its peer, so what there is is read.
    pub(crate) fn dismiss(self, message: &[u8]) {
        // From here on the kernel refuses what the other end sends.
        let _gone = rustix::net::shutdown(&self, rustix::net::Shutdown::Read);
        let mut buffer = [0; 1];
        for _ in 0..QUEUE_MAX {
            if !matches!(self.receive(&mut buffer), Ok(1..)) {
                break;
            }
        }
        let _gone = unix::send(self.as_fd(), message, &[]);
    }
}

impl AsFd for ForeignSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket
            .as_ref()
            .expect("it is taken by drop only")
            .as_fd()
    }
}

impl Drop for ForeignSocket {
    fn drop(&mut self) {
        let Some(socket) = self.socket.take() else {
            return;
        };
        if !self.refuses_descriptors {
            close_elsewhere(socket);
        }
    }
}

/// Closes a descriptor without waiting for what that may wait for: in a thread that has a table of descriptors of its
/// own and ends at once. The kernel does not linger for a thread that is ending, so such threads do not heap up.
pub(crate) fn close_elsewhere(descriptor: OwnedFd) {
    let descriptor = descriptor.into_raw_fd();
    let (to_here, from_there) = mpsc::sync_channel(1);
    let (closed, closed_here) = mpsc::sync_channel::<()>(1);
    let spawned = std::thread::Builder::new()
        .name("taut-close".to_owned())
        .spawn(move || {
            // SAFETY: this thread uses no descriptor afterwards but in the branch where it has the process's table.
            let own_table = unsafe { rustix::thread::unshare_unsafe(UnshareFlags::FILES) }.is_ok();
            let _waits = to_here.send(own_table);
            if own_table {
                // The reference of this thread's table is to be the last one.
                let _hung_up = closed_here.recv();
            } else {
                // SAFETY: the caller gave the descriptor away, and closes it only if told that there are two tables.
                drop(unsafe { OwnedFd::from_raw_fd(descriptor) });
            }
        });
    // Where there is no thread, the descriptor stays open: better one less than a thread that blocks.
    if spawned.is_ok() && from_there.recv() == Ok(true) {
        // SAFETY: the descriptor was given away above, and the thread's table has another reference, which stays until
        // `closed` is dropped.
        drop(unsafe { OwnedFd::from_raw_fd(descriptor) });
    }
    drop(closed);
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    /// Two ends that refuse no descriptors, as on a kernel that cannot.
    pub(crate) fn pair() -> (OwnedFd, OwnedFd) {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        rustix::net::socketpair(family, kind, SocketFlags::CLOEXEC, None).unwrap()
    }

    /// A TCP socket that takes an hour to close, and its other end.
    pub(crate) fn lingering() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (other, _) = listener.accept().unwrap();
        let an_hour = std::time::Duration::from_secs(3600);
        rustix::net::sockopt::set_socket_linger(&stream, Some(an_hour)).unwrap();
        stream.set_nonblocking(true).unwrap();
        while stream.write(&[0; 65_536]).is_ok() {}
        (stream, other)
    }
}

#[cfg(test)]
mod tests {
    use super::testing::{lingering, pair};
    use super::*;
    use std::net::TcpStream;

    /// A connection as on a kernel that does not refuse descriptors, with one in its queue.
    fn attacked() -> (ForeignSocket, OwnedFd, TcpStream) {
        let (ours, theirs) = pair();
        let (stream, other) = lingering();
        unix::send(theirs.as_fd(), b"take this", &[stream.as_fd()]).unwrap();
        let socket = ForeignSocket {
            socket: Some(ours),
            refuses_descriptors: false,
        };
        (socket, theirs, other)
    }

    #[test]
    fn a_message_with_descriptors_is_left_where_it_is() {
        let (socket, theirs, _other) = attacked();
        let mut buffer = [0; 16];
        let error = socket.receive(&mut buffer).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        // Would take an hour otherwise.
        drop(socket);
        // Threads of other tests may have a copy for a moment.
        while unix::send(theirs.as_fd(), b"gone", &[]).is_ok() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    #[test]
    fn messages_without_descriptors_are_read() {
        let (ours, theirs) = pair();
        let socket = ForeignSocket {
            socket: Some(ours),
            refuses_descriptors: false,
        };
        unix::send(theirs.as_fd(), b"hello", &[]).unwrap();
        let mut buffer = [0; 16];
        assert_eq!(socket.receive(&mut buffer).unwrap(), 5);
        assert_eq!(&buffer[..5], b"hello");
        let nothing = socket.receive(&mut buffer).unwrap_err();
        assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
        drop(theirs);
        assert_eq!(socket.receive(&mut buffer).unwrap(), 0);
    }

    #[test]
    fn a_hundred_that_linger_leave_no_thread_behind() {
        let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
        let before = threads();
        let attacks: Vec<_> = (0..100).map(|_| attacked()).collect();
        let others: Vec<_> = attacks
            .into_iter()
            .map(|(socket, theirs, other)| {
                drop((socket, theirs));
                other
            })
            .collect();
        // Other tests of this process have threads of their own.
        let started = std::time::Instant::now();
        while threads() > before + 50 {
            assert!(started.elapsed().as_secs() < 60, "they linger");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        drop(others);
    }
}
