//! Decides which sockets are taken, and takes them. Packet sockets: `packets`.
#![allow(unsafe_code)] // Asks the kernel about sockets and interfaces.

mod packets;

pub(crate) use packets::station;

use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::RawFd;

use libc::{SOL_SOCKET, c_int, c_ulong, sockaddr_in, socklen_t};

use crate::errno::Kept;
use crate::explain::{Named, explain, warn};
use crate::lock::Undisturbed;
use crate::options::{Options, integer, makes_ring, shares_port};
use crate::policy::{Policy, policy};
use crate::socket::Taken;
use crate::{memory, next, node, process, table, watched};

/// While a decision is made: no signal handler comes between, which would find the heap in use; `errno` is put back.
struct Alone {
    _kept: Kept,
    _undisturbed: Undisturbed,
}

impl Alone {
    fn new() -> Self {
        Self {
            _kept: Kept::new(),
            _undisturbed: Undisturbed::new(),
        }
    }
}

/// The node's address and network.
#[derive(Clone)]
pub(crate) struct Network {
    pub(crate) address: Ipv4Addr,
    pub(crate) mask: u32,
    pub(crate) interface_index: u32,
    pub(crate) has_gateway: bool,
}

impl Network {
    pub(crate) fn is_near(&self, other: Ipv4Addr) -> bool {
        (other.to_bits() ^ self.address.to_bits()) & self.mask == 0
    }

    pub(crate) fn broadcast(&self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.address.to_bits() | !self.mask)
    }

    fn of(policy: &Policy) -> Result<Self, String> {
        let config = policy.config()?;
        let interface = config.interface.as_deref();
        let interface = interface.ok_or("the configuration names no interface")?;
        let ask = |request, what| {
            question(interface, request)
                .ok_or_else(|| format!("interface {interface} has no {what}"))
        };
        let address = match config.address {
            Some(address) => address,
            None => Ipv4Addr::from_bits(u32::from_be(ask(libc::SIOCGIFADDR, "IPv4 address")?)),
        };
        Ok(Self {
            address,
            mask: u32::from_be(ask(libc::SIOCGIFNETMASK, "network mask")?),
            interface_index: index(interface),
            has_gateway: config.gateway.is_some(),
        })
    }
}

/// A request about an interface that is answered with an IPv4 address (netdevice(7)), in network order.
fn question(interface: &str, request: c_ulong) -> Option<u32> {
    let answer = ask(interface, request)?;
    // SAFETY: the answer is an address in the union, of which every bit pattern is a valid sockaddr_in.
    let address: sockaddr_in = unsafe { std::mem::transmute_copy(&answer.ifr_ifru.ifru_addr) };
    Some(address.sin_addr.s_addr)
}

fn ask(interface: &str, request: c_ulong) -> Option<libc::ifreq> {
    // SAFETY: all bytes zero is a valid ifreq.
    let mut asked: libc::ifreq = unsafe { std::mem::zeroed() };
    let room = asked.ifr_name.len() - 1;
    for (to, from) in asked.ifr_name[..room].iter_mut().zip(interface.bytes()) {
        *to = from as _;
    }
    // SAFETY: a socket of our own, closed below; `asked` is writable.
    unsafe {
        let socket = next::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
        let result = next::ioctl(
            socket,
            request,
            (&raw mut asked).expose_provenance() as c_ulong,
        );
        next::close(socket);
        (result == 0).then_some(asked)
    }
}

fn index(interface: &str) -> u32 {
    let mut name = [0u8; libc::IFNAMSIZ];
    let bytes = interface.len().min(name.len() - 1);
    name[..bytes].copy_from_slice(&interface.as_bytes()[..bytes]);
    // SAFETY: the name ends with a zero byte.
    unsafe { libc::if_nametoindex(name.as_ptr().cast()) }
}

/// An IPv4 address that the program gives. Others are for the kernel to judge.
#[inline]
pub(crate) fn address(place: *const libc::sockaddr, bytes: socklen_t) -> Option<SocketAddrV4> {
    if place.is_null() || (bytes as usize) < size_of::<sockaddr_in>() {
        return None;
    }
    let given: sockaddr_in = memory::read(place.cast())?;
    (c_int::from(given.sin_family) == libc::AF_INET).then(|| of_kernel(&given))
}

fn of_kernel(address: &sockaddr_in) -> SocketAddrV4 {
    SocketAddrV4::new(
        Ipv4Addr::from_bits(u32::from_be(address.sin_addr.s_addr)),
        u16::from_be(address.sin_port),
    )
}

/// The address that a socket is bound to.
fn local_of(descriptor: RawFd) -> Option<SocketAddrV4> {
    // SAFETY: all bytes zero is a valid sockaddr_in.
    let mut local: sockaddr_in = unsafe { std::mem::zeroed() };
    let mut bytes = size_of::<sockaddr_in>() as socklen_t;
    // SAFETY: `local` has room for `bytes`.
    let result = unsafe { libc::getsockname(descriptor, (&raw mut local).cast(), &raw mut bytes) };
    let is_internet = c_int::from(local.sin_family) == libc::AF_INET;
    (result == 0 && is_internet).then(|| of_kernel(&local))
}

fn is_udp(descriptor: RawFd) -> bool {
    integer(descriptor, SOL_SOCKET, libc::SO_DOMAIN) == Some(libc::AF_INET)
        && integer(descriptor, SOL_SOCKET, libc::SO_PROTOCOL) == Some(libc::IPPROTO_UDP)
}

/// Whether a descriptor may become a taken socket.
pub(crate) fn is_candidate(descriptor: RawFd) -> bool {
    policy().is_some()
        && !process::is_other()
        && (is_udp(descriptor) || packets::is_packet(descriptor))
}

/// The program has made a socket. One for IPv6 is the kernel's whatever it does.
pub(crate) fn after_socket(descriptor: RawFd, domain: c_int, kind: c_int) {
    let is_datagram = kind & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) == libc::SOCK_DGRAM;
    if domain == libc::AF_INET6 && is_datagram && policy().is_some() && !node::is_at_work() {
        let _alone = Alone::new();
        let named = Named::udp(descriptor, None, None);
        explain(
            &named,
            format_args!("left to the kernel: it is for IPv6, also where it carries IPv4"),
        );
    }
}

/// The program has bound a socket.
pub(crate) fn after_bind(descriptor: RawFd) {
    let Some(policy) = policy().filter(|_| !node::is_at_work()) else {
        return;
    };
    let taken = table::place(descriptor);
    if taken.is_some_and(|place| !place.is_packet()) {
        return;
    }
    let _alone = Alone::new();
    table::forget(descriptor);
    if !is_candidate(descriptor) {
        return table::leave(descriptor);
    }
    if packets::is_packet(descriptor) {
        return packets::after_bind(policy, descriptor, taken);
    }
    let Some(local) = local_of(descriptor) else {
        return;
    };
    let named = Named::udp(descriptor, Some(local), None);
    let network = match Network::of(policy) {
        Ok(network) => network,
        Err(why) => return leave_warning(&named, &why),
    };
    let is_here = local.ip().is_unspecified() || *local.ip() == network.address;
    if !is_here {
        return leave(&named, "bound to an address that is not the node's");
    }
    if policy.wants_local(local.port()) {
        return take(&named, network, local.port());
    }
    // A socket on any port says with its first datagram, or by connecting, whom it is for.
    let is_chosen = !policy.has_rules() && *local.ip() == network.address;
    let is_server = !policy.has_rules() && local.port() < ephemeral_first();
    if (is_chosen || is_server) && shares_port(descriptor) {
        // The port would get all of them. A client's socket is taken when it connects or sends.
        leave(
            &named,
            "its port may be shared with other sockets (SO_REUSEPORT)",
        );
    } else if is_chosen || is_server {
        take(&named, network, local.port());
    } else {
        explain(&named, format_args!("decided when it connects or sends"));
    }
}

/// The first port that the kernel gives to sockets that ask for none.
fn ephemeral_first() -> u16 {
    const USUAL: u16 = 32_768;
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
    let first = |text: String| text.split_whitespace().next()?.parse().ok();
    text.ok().and_then(first).unwrap_or(USUAL)
}

/// The program is about to send from a socket that nothing was decided about, or has connected it.
pub(crate) fn before_traffic(descriptor: RawFd, peer: SocketAddrV4) {
    let Some(policy) = policy() else { return };
    let _alone = Alone::new();
    if !is_udp(descriptor) || process::is_other() {
        // A packet socket is decided about when it is bound.
        if !packets::is_packet(descriptor) {
            table::leave(descriptor);
        }
        return;
    }
    let named = |local| Named::udp(descriptor, local, Some(peer));
    let network = match Network::of(policy) {
        Ok(network) => network,
        Err(why) => return leave_warning(&named(None), &why),
    };
    let is_wanted = match policy.has_rules() {
        true => policy.wants_remote(peer.port()),
        false => policy.is_neighbour(*peer.ip(), network.is_near(*peer.ip())),
    };
    let bound = local_of(descriptor).filter(|local| local.port() != 0);
    let wants_local = bound.is_some_and(|local| policy.wants_local(local.port()));
    if !is_wanted && !wants_local {
        let why = match policy.has_rules() {
            true => "neither its port nor its peer's is one that is wanted",
            false => "its peer is not a neighbour of the node",
        };
        return leave(&named(bound), why);
    }
    let Some(local) = bound.or_else(|| bind_anywhere(descriptor)) else {
        return leave(&named(None), "it has no port");
    };
    if !local.ip().is_unspecified() && *local.ip() != network.address {
        return leave(
            &named(Some(local)),
            "it sends from an address that is not the node's",
        );
    }
    take(&named(Some(local)), network, local.port());
}

/// Gives a socket a port, as the kernel would at its first datagram.
fn bind_anywhere(descriptor: RawFd) -> Option<SocketAddrV4> {
    // SAFETY: all bytes zero is a valid sockaddr_in.
    let mut any: sockaddr_in = unsafe { std::mem::zeroed() };
    any.sin_family = libc::AF_INET as libc::sa_family_t;
    // SAFETY: `any` is readable for the length given.
    unsafe {
        next::bind(
            descriptor,
            (&raw const any).cast(),
            size_of::<sockaddr_in>() as socklen_t,
        );
    }
    local_of(descriptor).filter(|local| local.port() != 0)
}

fn leave(named: &Named, why: &str) {
    table::leave(named.descriptor);
    explain(named, format_args!("left to the kernel: {why}"));
}

/// [`leave`] where the program was to have a port: its user is told without asking.
fn leave_warning(named: &Named, why: &str) {
    leave(named, why);
    warn(named, why);
}

fn take(named: &Named, network: Network, number: u16) {
    match taken(named, network, number) {
        Ok(()) => {
            watched::taken(named.descriptor);
            explain(named, format_args!("taken, port {number} of the node"));
        }
        Err(why) => leave(named, &why),
    }
}

fn taken(named: &Named, network: Network, number: u16) -> Result<(), String> {
    let descriptor = named.descriptor;
    let _changing = table::CHANGING
        .enter()
        .ok_or("a signal handler interrupted the taking of another")?;
    if !table::has_room() {
        return Err(format!("{} sockets are taken already", table::SOCKETS_MAX));
    }
    let options = read_options(descriptor)?;
    let port = node::open_port(descriptor, number).inspect_err(|why| warn(named, why))?;
    let taken = Box::new(Taken::udp(port, network, options));
    table::enter(descriptor, taken, is_non_blocking(descriptor))
        .map_err(|_| "its number is too high".to_owned())
}

fn read_options(descriptor: RawFd) -> Result<Options, String> {
    let config = policy().and_then(|policy| policy.config().ok());
    let interface = config.and_then(|config| config.interface.as_deref());
    Options::of(descriptor, interface)
        .map_err(|option| format!("its option {option} is not served"))
}

/// Whether a socket has O_NONBLOCK.
pub(crate) fn is_non_blocking(descriptor: RawFd) -> bool {
    // SAFETY: a call without pointers.
    let flags = unsafe { next::fcntl(descriptor, libc::F_GETFL, 0) };
    flags & libc::O_NONBLOCK != 0
}

/// The program has changed an option of a socket. One that is not served gives a taken socket back.
pub(crate) fn after_option(descriptor: RawFd, level: c_int, name: c_int) {
    if makes_ring(level, name) {
        return packets::after_ring(descriptor);
    }
    let Some(place) = table::place(descriptor) else {
        return;
    };
    let _alone = Alone::new();
    let options = match place.is_packet() {
        true => packets::read_options(descriptor),
        false => read_options(descriptor),
    };
    match options {
        Ok(options) => drop(place.with(|taken| taken.options = options)),
        Err(why) => give_back(descriptor, &why),
    }
}

/// The program has connected or disconnected a socket.
pub(crate) fn after_connect(descriptor: RawFd, peer: Option<SocketAddrV4>) {
    let _alone = Alone::new();
    if table::place(descriptor).is_none()
        && let Some(peer) = peer
    {
        before_traffic(descriptor, peer);
    }
    let Some(place) = table::place(descriptor) else {
        return;
    };
    let number = place.with(|taken| {
        taken.set_peer(peer);
        taken.number()
    });
    let number = number.flatten();
    // A socket that was bound by connecting loses its port when it disconnects.
    if number.is_some() && local_of(descriptor).map(|local| local.port()) != number {
        give_back(descriptor, "it has no port any more");
        table::forget(descriptor);
    }
}

/// The program has closed a taken socket.
pub(crate) fn explain_close(descriptor: RawFd, taken: &Taken) {
    let local = taken.network().zip(taken.number());
    let local = local.map(|(network, number)| SocketAddrV4::new(network.address, number));
    let (named, what) = match taken.cable() {
        Some(cable) => (Named::packet(descriptor, cable.ethertype.get()), "frames"),
        None => (Named::udp(descriptor, local, None), "datagrams"),
    };
    let counts = taken.counts();
    explain(
        &named,
        format_args!(
            "closed; past the kernel {} {what} sent and {} received, {} sent by the kernel",
            counts.sent, counts.received, counts.sent_by_kernel
        ),
    );
}

fn give_back(descriptor: RawFd, why: &str) {
    let named = match packets::protocol_of(descriptor) {
        Some(protocol) => Named::packet(descriptor, protocol),
        None => Named::udp(descriptor, local_of(descriptor), None),
    };
    let given = table::CHANGING
        .enter()
        .is_some_and(|_changing| table::give_back(descriptor));
    if given {
        explain(&named, format_args!("given back to the kernel: {why}"));
    }
}
