//! Kernel sockets between two sides: the one place where a path that is compared with Tautline's opens them.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};

use tautline_testbed::hosts::{Host, Hosts, HostsError};

use crate::echo::EchoError;

/// Addresses of the two sides on the loopback interface.
const LOOPBACK: [Ipv4Addr; 2] = [Ipv4Addr::new(127, 0, 0, 1), Ipv4Addr::new(127, 0, 0, 2)];

/// Two sides that sockets and nodes are opened on.
#[derive(Clone, Copy, Debug)]
pub enum Sides<'a> {
    /// Two hosts on a cable.
    Hosts(&'a Hosts, usize),
    /// Two addresses of the loopback interface, without privilege.
    Loopback,
}

impl Sides<'_> {
    /// IPv4 address of a side.
    pub fn address(self, host: Host) -> Ipv4Addr {
        match self {
            Sides::Hosts(hosts, cable) => hosts.end(host, cable).address(),
            Sides::Loopback => LOOPBACK[host as usize],
        }
    }

    /// Does something on a side.
    pub fn inside<T: Send>(
        self,
        host: Host,
        work: impl FnOnce() -> T + Send,
    ) -> Result<T, HostsError> {
        match self {
            Sides::Hosts(hosts, _) => hosts.inside(host, work),
            Sides::Loopback => Ok(work()),
        }
    }
}

/// Blocking UDP sockets, connected with each other: that of A, and that of B. Port 0 leaves the choice to the kernel.
pub fn udp_pair(sides: Sides<'_>, port: u16) -> Result<[UdpSocket; 2], EchoError> {
    let [a, b] = [
        bind_udp(sides, Host::A, port)?,
        bind_udp(sides, Host::B, port)?,
    ];
    // A socket stays in the namespace that it was made in, whichever thread connects it.
    let connect = || {
        a.connect(b.local_addr()?)?;
        b.connect(a.local_addr()?)
    };
    connect().map_err(EchoError::io("connect a UDP socket"))?;
    Ok([a, b])
}

/// A blocking UDP socket on one side, connected with the same port of the other, which need not be the kernel's.
pub fn udp_end(sides: Sides<'_>, host: Host, port: u16) -> Result<UdpSocket, EchoError> {
    let socket = bind_udp(sides, host, port)?;
    socket
        .connect((sides.address(host.peer()), port))
        .map_err(EchoError::io("connect a UDP socket"))?;
    Ok(socket)
}

fn bind_udp(sides: Sides<'_>, host: Host, port: u16) -> Result<UdpSocket, EchoError> {
    let own = SocketAddr::from((sides.address(host), port));
    sides
        .inside(host, || UdpSocket::bind(own))?
        .map_err(EchoError::io("bind a UDP socket"))
}

/// A blocking TCP connection from A to B: its end in A, and its end in B. Port 0 leaves the choice to the kernel.
pub fn tcp_pair(sides: Sides<'_>, port: u16) -> Result<[TcpStream; 2], EchoError> {
    let own = SocketAddr::from((sides.address(Host::B), port));
    let listener = sides
        .inside(Host::B, || TcpListener::bind(own))?
        .map_err(EchoError::io("listen for TCP"))?;
    let address = listener
        .local_addr()
        .map_err(EchoError::io("listen for TCP"))?;
    let asking = sides
        .inside(Host::A, || TcpStream::connect(address))?
        .map_err(EchoError::io("connect over TCP"))?;
    let (answering, _) = listener
        .accept()
        .map_err(EchoError::io("accept over TCP"))?;
    Ok([asking, answering])
}

/// Whether a call on a socket only found nothing to do: at once on a non-blocking socket, at its time limit on a
/// blocking one.
pub fn is_nothing_yet(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
    )
}
