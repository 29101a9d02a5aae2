//! A descriptor whose `close` blocks, as a hostile program sends it.

use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

/// A TCP socket whose last close takes an hour, and its other end, which must stay open: the socket's buffer is full,
/// and no process reads.
///
/// # Panics
/// If the machine has no TCP sockets on the loopback interface left.
#[must_use]
pub fn lingering() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let address = listener.local_addr().expect("its address");
    let mut stream = TcpStream::connect(address).expect("a connection");
    let (other, _) = listener.accept().expect("its other end");
    let an_hour = Some(Duration::from_secs(3600));
    rustix::net::sockopt::set_socket_linger(&stream, an_hour).expect("an option of every socket");
    stream
        .set_nonblocking(true)
        .expect("a flag of every descriptor");
    while stream.write(&[0; 65_536]).is_ok() {}
    (stream, other)
}

/// Sends such a socket with a message over a Unix socket. Returns its other end. The process that takes the message out
/// of the queue closes the socket; if the kernel refuses to send the message, no process does.
///
/// # Panics
/// Those of [`lingering`].
pub fn send_lingering(socket: impl AsFd, message: &[u8]) -> TcpStream {
    let (stream, other) = lingering();
    let rights = [stream.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&rights)));
    let message = [IoSlice::new(message)];
    if rustix::net::sendmsg(socket, &message, &mut control, SendFlags::NOSIGNAL).is_err() {
        std::mem::forget(stream);
    }
    other
}
