//! Connections with processes that are not trusted: the descriptors that they send are neither taken nor waited for.
//!
//! Closing a descriptor can block for as long as its sender chose (a TCP socket with SO_LINGER and a full buffer
//! does), and a Unix socket that is closed or read closes the descriptors in its queue. Since Linux 6.16 the kernel
//! refuses them at the sender. On older kernels messages are looked at before they are read, and connections are
//! closed elsewhere. It makes no difference which side has connected.
#![allow(unsafe_code)] // a thread with a table of descriptors of its own

use std::cell::Cell;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::mpsc;

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvFlags, ReturnFlags, SendFlags, Shutdown,
    SocketAddrUnix, SocketFlags, SocketType,
};
use rustix::thread::UnshareFlags;

/// Messages in a connection's queue at most (net.unix.max_dgram_qlen, 512 where a service manager has raised it).
/// Lower: a peer that has sent that much is reset without an answer. Higher: no difference.
const QUEUE_MAX: usize = 512;

/// Process at the other end of a Unix socket, as it was when it connected (or began to listen).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// Its number; 0 if it is outside this process's process namespace.
    pub pid: i32,
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
}

impl Credentials {
    /// This process's.
    #[must_use]
    pub fn own() -> Self {
        Self {
            pid: std::process::id() as i32,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
        }
    }

    /// Whether this process runs as root or as the calling one's user.
    #[must_use]
    pub fn is_near(&self) -> bool {
        self.uid == 0 || self.uid == rustix::process::geteuid().as_raw()
    }
}

/// Process at the other end of a Unix socket.
///
/// # Errors
/// It is no such socket, or not connected.
pub fn peer(socket: impl AsFd) -> io::Result<Credentials> {
    let room = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let (level, name) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
    let peer = crate::socket::option(socket.as_fd(), level, name, room)?;
    Ok(Credentials {
        pid: peer.pid,
        uid: peer.uid,
        gid: peer.gid,
    })
}

/// A Unix socket without a name, which never waits.
///
/// # Errors
/// The process or the machine has no descriptor left.
pub fn unnamed(kind: SocketType) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(
        AddressFamily::UNIX,
        kind,
        flags,
        None,
    )?)
}

/// The next connection, or `None` if none waits.
///
/// # Errors
/// The process or the machine has no descriptor left, or no process listens on this socket.
pub fn accept(listener: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    match rustix::net::accept_with(listener, flags) {
        Ok(stream) => Ok(Some(stream)),
        Err(error) if io::Error::from(error).kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// `SO_PASSRIGHTS` of asm-generic/socket.h, which the libraries do not have yet.
const SO_PASSRIGHTS: libc::c_int = 83;

/// Lets messages with descriptors in, or has the kernel refuse them at the sender (EPERM); sockets that are accepted
/// from this one do the same.
///
/// # Errors
/// The kernel is older than 6.16: they always get in.
pub fn pass_descriptors(socket: BorrowedFd<'_>, pass: bool) -> io::Result<()> {
    let pass = libc::c_int::from(pass);
    crate::socket::set_option(socket, libc::SOL_SOCKET, SO_PASSRIGHTS, &pass)
}

/// Whether the kernel refuses descriptors that are sent to this socket, and has since it was connected if it was
/// accepted.
fn refuses_descriptors(socket: BorrowedFd<'_>) -> bool {
    let passes: libc::c_int = 1;
    crate::socket::option(socket, libc::SOL_SOCKET, SO_PASSRIGHTS, passes)
        .is_ok_and(|passes| passes == 0)
}

/// Has the kernel refuse descriptors on a socket that is closed again.
///
/// # Errors
/// Those of [`pass_descriptors`].
pub fn try_refusing_descriptors() -> io::Result<()> {
    pass_descriptors(unnamed(SocketType::STREAM)?.as_fd(), false)
}

/// A socket on which strangers connect. Closing it does not block, whatever waits in connections that were not
/// accepted.
#[derive(Debug)]
pub struct UntrustedListener {
    /// Taken when it is dropped.
    socket: Option<OwnedFd>,
    /// Whether the kernel has refused descriptors since before it listened.
    refuses_descriptors: bool,
}

impl UntrustedListener {
    /// Takes a socket that is about to listen, or that listens already. Where strangers may connect before, descriptors
    /// that they send on such a connection are looked for as on an old kernel.
    #[must_use]
    pub fn new(socket: OwnedFd) -> Self {
        // Connections that were made before are not concerned.
        let listens = rustix::net::sockopt::socket_acceptconn(&socket).unwrap_or(true);
        let refuses = pass_descriptors(socket.as_fd(), false).is_ok();
        Self {
            socket: Some(socket),
            refuses_descriptors: refuses && !listens,
        }
    }

    /// Listens, if it does not yet; `backlog` connections can wait to be accepted.
    ///
    /// # Errors
    /// The socket has no name.
    pub fn listen(&self, backlog: i32) -> io::Result<()> {
        Ok(rustix::net::listen(self, backlog)?)
    }

    /// The next connection, or `None` if none waits.
    ///
    /// # Errors
    /// The process or the machine has no descriptor left.
    pub fn accept(&self) -> io::Result<Option<UntrustedSocket>> {
        let accepted = accept(self.as_fd())?;
        Ok(accepted.map(|socket| {
            let refuses = refuses_descriptors(socket.as_fd());
            UntrustedSocket::new(socket, refuses)
        }))
    }
}

impl AsFd for UntrustedListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_ref().expect("there until dropped").as_fd()
    }
}

impl Drop for UntrustedListener {
    fn drop(&mut self) {
        if let Some(socket) = self.socket.take()
            && !self.refuses_descriptors
        {
            close_elsewhere_or_keep(socket);
        }
    }
}

/// A connection with a stranger. No method blocks; nor does closing it.
#[derive(Debug)]
pub struct UntrustedSocket {
    /// Taken when it is dropped.
    socket: Option<OwnedFd>,
    /// Whether the kernel has refused descriptors for as long as it is connected: none is in its queue.
    refuses_descriptors: Cell<bool>,
}

impl UntrustedSocket {
    fn new(socket: OwnedFd, refuses_descriptors: bool) -> Self {
        if !refuses_descriptors {
            // A byte out of band can carry descriptors (Linux 6.3), and reading past it closes them. So it is to lie
            // where it can be looked at. It cannot fail.
            let _set = rustix::net::sockopt::set_socket_oobinline(&socket, true);
        }
        Self {
            socket: Some(socket),
            refuses_descriptors: Cell::new(refuses_descriptors),
        }
    }

    /// Connects to a stranger's socket. Never waits.
    ///
    /// # Errors
    /// `ErrorKind::WouldBlock` if too many wait there already, `ErrorKind::ConnectionRefused` if no process listens.
    pub fn connect(address: &SocketAddrUnix, kind: SocketType) -> io::Result<Self> {
        let socket = unnamed(kind)?;
        // Before it is connected: from then on the stranger may send.
        let refuses_descriptors = pass_descriptors(socket.as_fd(), false).is_ok();
        rustix::net::connect(&socket, address)?;
        Ok(Self::new(socket, refuses_descriptors))
    }

    /// Process at the other end.
    ///
    /// # Errors
    /// None of a socket that is connected.
    pub fn peer(&self) -> io::Result<Credentials> {
        peer(self)
    }

    /// Receives one message, or some bytes of a stream. Zero bytes mean that the other end is gone. Of a message that
    /// is longer than the place for it, the length is that of the whole.
    ///
    /// # Errors
    /// `ErrorKind::WouldBlock` if there is nothing yet, `ErrorKind::InvalidData` if descriptors came along: the message
    /// is left in the queue.
    pub fn receive(&self, message: &mut [u8]) -> io::Result<usize> {
        let safe = match self.refuses_descriptors.get() {
            true => message.len(),
            false => self.bytes_without_descriptors(message)?,
        };
        let flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC;
        let (_, bytes) = rustix::net::recv(self, &mut message[..safe], flags)?;
        Ok(bytes)
    }

    /// How many of the next bytes can be read without a descriptor. A stream is read over the borders of what was sent:
    /// descriptors may come after the first bytes.
    fn bytes_without_descriptors(&self, place: &mut [u8]) -> io::Result<usize> {
        // The kernel says that the control messages were cut off: there is no room for any.
        let mut control = RecvAncillaryBuffer::default();
        let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
        let mut place = [IoSliceMut::new(place)];
        let peeked = rustix::net::recvmsg(self, &mut place, &mut control, flags)?;
        match peeked.flags.contains(ReturnFlags::CTRUNC) {
            true => Err(io::ErrorKind::InvalidData.into()),
            false => Ok(peeked.bytes),
        }
    }

    /// Sends a message, or some bytes of a stream; how many.
    ///
    /// # Errors
    /// `ErrorKind::WouldBlock` if the other end has to read first, `ErrorKind::BrokenPipe` if it is gone.
    pub fn send(&self, message: &[u8]) -> io::Result<usize> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        Ok(rustix::net::send(self, message, flags)?)
    }

    /// Says no more: the other end reads to the end of what was sent.
    pub fn end_sending(&self) {
        // One that has gone away shows when its answer is read.
        let _gone = rustix::net::shutdown(self, Shutdown::Write);
    }

    /// Says one thing and hangs up. The other end hears it whatever it has sent or is about to send: a socket that is
    /// closed with something unread resets its peer, so what there is is read.
    pub fn dismiss(self, message: &[u8]) {
        // From here on the kernel refuses what the other end sends.
        let _gone = rustix::net::shutdown(&self, Shutdown::Read);
        let mut buffer = [0; 1];
        for _ in 0..QUEUE_MAX {
            if !matches!(self.receive(&mut buffer), Ok(1..)) {
                break;
            }
        }
        let _gone = self.send(message);
    }

    /// Lets messages with descriptors in, or not; a peer's attempt fails then. Before Linux 6.16 they always get in.
    /// A caller that allows them must receive them itself.
    pub fn pass_descriptors(&self, pass: bool) {
        let _unknown_to_older_kernels = pass_descriptors(self.as_fd(), pass);
        if pass {
            // Those that get in stay in the queue until they are read.
            self.refuses_descriptors.set(false);
        }
    }

    /// Closes it as dropping does.
    ///
    /// # Errors
    /// Closing it takes a thread, and there is none: the socket.
    pub fn close(mut self) -> Result<(), OwnedFd> {
        match self.socket.take() {
            Some(socket) if !self.refuses_descriptors.get() => close_elsewhere(socket),
            _harmless => Ok(()),
        }
    }

    /// The socket, with descriptors let in: the other end has turned out to be trusted.
    #[must_use]
    pub fn trust(mut self) -> OwnedFd {
        let socket = self.socket.take().expect("there until dropped");
        let _unknown_to_older_kernels = pass_descriptors(socket.as_fd(), true);
        socket
    }
}

impl AsFd for UntrustedSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_ref().expect("there until dropped").as_fd()
    }
}

impl Drop for UntrustedSocket {
    fn drop(&mut self) {
        if let Some(socket) = self.socket.take()
            && !self.refuses_descriptors.get()
        {
            close_elsewhere_or_keep(socket);
        }
    }
}

/// Closes a descriptor without waiting for what that may wait for: in a thread that has a table of descriptors of its
/// own and ends at once. The kernel does not linger for a thread that is ending, so such threads do not heap up.
///
/// # Errors
/// There is no thread: the descriptor.
pub fn close_elsewhere(descriptor: OwnedFd) -> Result<(), OwnedFd> {
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
    if spawned.is_err() {
        // SAFETY: it was given away above, and was not taken.
        return Err(unsafe { OwnedFd::from_raw_fd(descriptor) });
    }
    if from_there.recv() == Ok(true) {
        // SAFETY: the descriptor was given away above, and the thread's table has another reference, which stays until
        // `closed` is dropped.
        drop(unsafe { OwnedFd::from_raw_fd(descriptor) });
    }
    drop(closed);
    Ok(())
}

/// Closes a descriptor in another thread. Without a thread, the descriptor stays open: one descriptor less is better
/// than a thread that blocks.
pub fn close_elsewhere_or_keep(descriptor: OwnedFd) {
    if let Err(descriptor) = close_elsewhere(descriptor) {
        std::mem::forget(descriptor);
    }
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;
    use std::io::{IoSlice, Write};
    use std::mem::MaybeUninit;
    use std::net::{TcpListener, TcpStream};

    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage};

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

    /// Sends a lingering socket, which is then closed by the holder of the message: not by this process, if the kernel
    /// refuses it. Returns the other end, and whether it was sent.
    pub(crate) fn attack(socket: impl AsFd, message: &[u8], flags: SendFlags) -> (TcpStream, bool) {
        let (stream, other) = lingering();
        let rights = [stream.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&rights)));
        let flags = flags | SendFlags::NOSIGNAL;
        let sent = rustix::net::sendmsg(socket, &[IoSlice::new(message)], &mut control, flags);
        if sent.is_err() {
            std::mem::forget(stream);
        }
        (other, sent.is_ok())
    }

    /// Two ends of a connection, of which the first is as on a kernel that refuses no descriptors.
    pub(crate) fn pair(kind: SocketType) -> (UntrustedSocket, OwnedFd) {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, kind, flags, None).unwrap();
        (UntrustedSocket::new(ours, false), theirs)
    }
}

#[cfg(test)]
mod tests {
    use super::testing::{attack, pair};
    use super::*;
    use std::net::TcpStream;
    use std::time::{Duration, Instant};

    const PLAIN: SendFlags = SendFlags::empty();

    /// A connection as on a kernel that does not refuse descriptors, with one in its queue.
    fn attacked(kind: SocketType) -> (UntrustedSocket, OwnedFd, TcpStream) {
        let (socket, theirs) = pair(kind);
        let (other, sent) = attack(&theirs, b"take this", PLAIN);
        assert!(sent);
        (socket, theirs, other)
    }

    fn receives(socket: &UntrustedSocket) -> Result<Vec<u8>, io::ErrorKind> {
        let mut buffer = [0; 16];
        let length = socket.receive(&mut buffer).map_err(|error| error.kind())?;
        Ok(buffer[..length].to_vec())
    }

    #[test]
    fn a_message_with_descriptors_is_left_where_it_is() {
        for kind in [SocketType::SEQPACKET, SocketType::STREAM] {
            let (socket, theirs, _other) = attacked(kind);
            assert_eq!(receives(&socket), Err(io::ErrorKind::InvalidData));
            // Would take an hour otherwise.
            drop(socket);
            // Threads of other tests may have a copy for a moment.
            while rustix::net::send(&theirs, b"gone", SendFlags::NOSIGNAL).is_ok() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    #[test]
    fn bytes_before_a_descriptor_in_a_stream_are_not_read_with_it() {
        for flags in [PLAIN, SendFlags::OOB] {
            let (socket, theirs) = pair(SocketType::STREAM);
            rustix::net::send(&theirs, b"harmless", PLAIN).unwrap();
            let (_other, sent) = attack(&theirs, b"x", flags);
            assert!(sent);
            rustix::net::send(&theirs, b"after", PLAIN).unwrap();
            let began = Instant::now();
            let received: Vec<_> = (0..2).map(|_| receives(&socket)).collect();
            drop(socket);
            assert!(began.elapsed() < Duration::from_secs(60), "{flags:?}");
            assert!(
                received.contains(&Err(io::ErrorKind::InvalidData)),
                "{flags:?}: {received:?}"
            );
        }
    }

    #[test]
    fn messages_without_descriptors_are_read() {
        let (socket, theirs) = pair(SocketType::SEQPACKET);
        rustix::net::send(&theirs, b"hello", PLAIN).unwrap();
        rustix::net::send(&theirs, b"a long message, cut off", PLAIN).unwrap();
        assert_eq!(receives(&socket).unwrap(), b"hello");
        assert_eq!(socket.receive(&mut [0; 6]).unwrap(), 23, "the whole length");
        assert_eq!(receives(&socket), Err(io::ErrorKind::WouldBlock));
        drop(theirs);
        assert_eq!(receives(&socket).unwrap(), b"");
    }

    #[test]
    fn both_sides_of_a_connection_refuse_descriptors_from_the_first_on() {
        if try_refusing_descriptors().is_err() {
            println!("SKIPPED: descriptors cannot be refused before Linux 6.16");
            return;
        }
        let name = format!("tautline-foreign-{}", std::process::id());
        let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
        let bound = unnamed(SocketType::STREAM).unwrap();
        rustix::net::bind(&bound, &address).unwrap();
        let listener = UntrustedListener::new(bound);
        listener.listen(4).unwrap();
        let asker = UntrustedSocket::connect(&address, SocketType::STREAM).unwrap();
        assert!(!attack(&asker, b"x", PLAIN).1, "to who listens");
        let accepted = listener.accept().unwrap().unwrap();
        assert!(!attack(&accepted, b"x", PLAIN).1, "to who has connected");
        // One that connected before the listener refused any is as on an old kernel.
        pass_descriptors(listener.as_fd(), true).unwrap();
        let asker = UntrustedSocket::connect(&address, SocketType::STREAM).unwrap();
        let (_other, sent) = attack(&asker, b"x", PLAIN);
        assert!(sent);
        pass_descriptors(listener.as_fd(), false).unwrap();
        let accepted = listener.accept().unwrap().unwrap();
        assert_eq!(receives(&accepted), Err(io::ErrorKind::InvalidData));
        // One that is trusted after all may send some.
        let trusted = asker.trust();
        assert!(!refuses_descriptors(trusted.as_fd()));
    }

    #[test]
    fn a_hundred_that_linger_leave_no_thread_behind() {
        let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
        let before = threads();
        let attacks: Vec<_> = (0..100).map(|_| attacked(SocketType::SEQPACKET)).collect();
        let others: Vec<_> = attacks
            .into_iter()
            .map(|(socket, theirs, other)| {
                drop((socket, theirs));
                other
            })
            .collect();
        // Other tests of this process have threads of their own.
        let started = Instant::now();
        while threads() > before + 50 {
            assert!(started.elapsed().as_secs() < 60, "they linger");
            std::thread::sleep(Duration::from_millis(10));
        }
        drop(others);
    }
}
