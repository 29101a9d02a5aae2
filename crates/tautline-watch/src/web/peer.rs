//! Peers of connections: users of this machine, and addresses of others. Places are shared among them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use rustix::net::AddressFamily;
use tautline_state::netlink;

/// Peer of a connection, as far as places are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peer {
    /// User of this machine.
    User(u32),
    /// Another machine; of IPv6 its network of 64 bits, all of whose addresses it may have. Users of this
    /// machine that cannot be distinguished share one address.
    Address(IpAddr),
}

impl Peer {
    /// Peer of a connection between these addresses.
    pub(super) fn of(users: Option<&mut PeerUsers>, from: SocketAddr, own: SocketAddr) -> Self {
        let (from, own) = (canonical(from), canonical(own));
        let user = users.filter(|_| from.ip().is_loopback());
        match user.and_then(|users| users.user(from, own)) {
            Some(user) => Self::User(user),
            None => Self::Address(network_of(from.ip())),
        }
    }

    /// Whether the peer may do to this process what it likes anyway: it is root, or this process's user.
    pub(super) fn is_own(self) -> bool {
        let Self::User(user) = self else {
            return false;
        };
        user == 0 || user == rustix::process::geteuid().as_raw()
    }
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

fn network_of(address: IpAddr) -> IpAddr {
    match address {
        _ if address.is_loopback() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        IpAddr::V4(_) => address,
    }
}

/// Users of sockets of the network namespace in which this was opened, as the kernel tells them (`sock_diag(7)`). A
/// question finds one socket by its addresses, however many there are.
#[derive(Debug)]
pub(super) struct PeerUsers(netlink::Route);

/// Kind of questions and answers.
const SOCK_DIAG_BY_FAMILY: u16 = 20;

/// Parts of an answer about a socket (`struct inet_diag_msg`).
struct Told {
    peer_port: u16,
    user: u32,
    inode: u32,
}

impl Told {
    fn parse(answer: &[u8]) -> Option<Self> {
        Some(Self {
            peer_port: u16::from_be_bytes(*answer.get(6..)?.first_chunk()?),
            user: netlink::word(answer, 64)?,
            inode: netlink::word(answer, 68)?,
        })
    }
}

impl PeerUsers {
    /// `None` if this kernel does not tell users. A kernel with modules looks for a missing one at each question, so
    /// the first question, for the socket that listens, is the last one there.
    pub(super) fn open(listener: SocketAddr) -> Option<Self> {
        let mut users = Self(netlink::Route::open_for_sockets().ok()?);
        let nobody = match listener {
            SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        let told = users.ask(listener, SocketAddr::new(nobody, 0));
        told.map(|_| users)
    }

    /// User that has made a socket, and still has it open.
    fn user(&mut self, socket: SocketAddr, peer: SocketAddr) -> Option<u32> {
        let told = self.ask(socket, peer)?;
        // Without such a connection, the kernel answers with a socket that listens on that port.
        let is_connection = told.peer_port == peer.port();
        // A socket that was closed has no inode, and root as its user on many kernels.
        let is_open = told.inode != 0;
        (is_connection && is_open).then_some(told.user)
    }

    fn ask(&mut self, socket: SocketAddr, peer: SocketAddr) -> Option<Told> {
        let mut question = netlink::Request::new(SOCK_DIAG_BY_FAMILY, 0, &question(socket, peer));
        let mut told = None;
        let asked = self
            .0
            .ask_one(&mut question, |answer| told = Told::parse(answer));
        asked.ok().and(told)
    }
}

/// A `struct inet_diag_req_v2`.
fn question(socket: SocketAddr, peer: SocketAddr) -> Vec<u8> {
    let family = match socket {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    // Of TCP, in every state, without attributes.
    let mut bytes = vec![family.as_raw() as u8, 6, 0, 0];
    bytes.extend(u32::MAX.to_ne_bytes());
    bytes.extend(socket.port().to_be_bytes());
    bytes.extend(peer.port().to_be_bytes());
    bytes.extend(octets(socket.ip()));
    bytes.extend(octets(peer.ip()));
    // On every interface, and whichever cookie it has.
    bytes.extend([0; 4]);
    bytes.extend([0xff; 8]);
    bytes
}

fn octets(address: IpAddr) -> [u8; 16] {
    let mut octets = [0; 16];
    match address {
        IpAddr::V4(address) => octets[..4].copy_from_slice(&address.octets()),
        IpAddr::V6(address) => octets = address.octets(),
    }
    octets
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::super::testing::as_user;
    use super::*;

    const STRANGER: u32 = 65_534;

    /// A connection of a stranger's, and its peer as the listener sees it.
    fn connected(listen: &str, to: &str) -> Option<(TcpStream, Peer, impl FnMut() -> Peer)> {
        let listener = TcpListener::bind((listen, 0)).unwrap();
        let own = listener.local_addr().unwrap();
        let mut users = PeerUsers::open(own).unwrap();
        let to = SocketAddr::new(to.parse().unwrap(), own.port());
        let stream = as_user(STRANGER, move || TcpStream::connect(to).unwrap())?;
        let (accepted, from) = listener.accept().unwrap();
        let own = accepted.local_addr().unwrap();
        let mut again = move || {
            let _open = &accepted;
            Peer::of(Some(&mut users), from, own)
        };
        let peer = again();
        Some((stream, peer, again))
    }

    #[test]
    fn the_kernel_tells_the_user_of_a_connection_from_this_machine() {
        let ways = [
            ("127.0.0.1", "127.0.0.1"),
            ("0.0.0.0", "127.0.7.1"),
            ("::1", "::1"),
            ("::", "::1"),
            ("::", "127.0.0.1"),
        ];
        for (listen, to) in ways {
            let Some((_stream, peer, _)) = connected(listen, to) else {
                return;
            };
            assert_eq!(peer, Peer::User(STRANGER), "{listen} {to}");
            assert!(!peer.is_own());
        }
    }

    #[test]
    fn a_connection_whose_other_end_was_closed_is_nobodys() {
        let Some((stream, _, mut again)) = connected("127.0.0.1", "127.0.0.1") else {
            return;
        };
        drop(stream);
        assert_eq!(again(), Peer::Address([127, 0, 0, 1].into()));
    }

    #[test]
    fn one_with_many_addresses_is_one_peer() {
        let peer = |address: &str| {
            let address: SocketAddr = address.parse().unwrap();
            Peer::of(None, address, address)
        };
        assert_eq!(peer("[2001:db8::1]:1"), peer("[2001:db8::ffff:1:1:1]:2"));
        assert_ne!(peer("[2001:db8::1]:1"), peer("[2001:db8:0:1::1]:1"));
        assert_eq!(peer("[::ffff:10.0.0.1]:1"), peer("10.0.0.1:2"));
        assert_ne!(peer("10.0.0.1:1"), peer("10.0.0.2:1"));
        assert_eq!(peer("127.0.7.1:1"), peer("[::1]:1"), "one of this machine");
        assert_ne!(peer("[::2]:1"), peer("[::1]:1"));
    }
}
