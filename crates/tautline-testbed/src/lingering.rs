//! A descriptor whose `close` blocks, as a hostile program sends it.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

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
