//! Options of a socket that matter to its port, read from the kernel, which keeps them.
#![allow(unsafe_code)] // getsockopt.

use std::ffi::{c_int, c_void};
use std::os::fd::RawFd;
use std::time::Duration;

use libc::{SOL_IP, SOL_PACKET, SOL_SOCKET, SOL_UDP};
use tautline::Priority;

/// Arrival times that a socket is told.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stamp {
    None,
    /// SO_TIMESTAMP.
    Microseconds,
    /// SO_TIMESTAMPNS.
    Nanoseconds,
}

/// Options of a taken socket.
#[derive(Clone, Copy)]
pub(crate) struct Options {
    pub(crate) stamp: Stamp,
    /// IP_PKTINFO.
    pub(crate) packet_info: bool,
    pub(crate) priority: Priority,
    /// Whether the port's datagrams are as the kernel's would be: type of service, time to live, fragments.
    pub(crate) sends_alike: bool,
    /// SO_RCVTIMEO; `None`: a receive waits for ever.
    pub(crate) receive_timeout: Option<Duration>,
    /// SO_BUSY_POLL: how long a blocking receive looks before it sleeps.
    pub(crate) busy_poll: Duration,
}

/// `asm-generic/socket.h`, `linux/udp.h`: what the libc crate does not name.
const SO_GET_FILTER: c_int = libc::SO_ATTACH_FILTER;
const UDP_CORK: c_int = 1;
const UDP_ENCAP: c_int = 100;
const IP_CHECKSUM: c_int = 23;
const IP_RECVFRAGSIZE: c_int = 25;
/// Of the port's datagrams (`tautline_proto::wire::udp`); also Linux's default.
const TIME_TO_LIVE: c_int = 64;

/// Options that a port cannot serve. A socket with one of them is the kernel's.
const NOT_SERVED: &[(c_int, c_int, &str)] = &[
    (SOL_SOCKET, libc::SO_TIMESTAMPING, "SO_TIMESTAMPING"),
    (SOL_SOCKET, libc::SO_RXQ_OVFL, "SO_RXQ_OVFL"),
    (SOL_SOCKET, libc::SO_MARK, "SO_MARK"),
    (SOL_SOCKET, libc::SO_PEEK_OFF, "SO_PEEK_OFF"),
    (SOL_IP, libc::IP_RECVTTL, "IP_RECVTTL"),
    (SOL_IP, libc::IP_RECVTOS, "IP_RECVTOS"),
    (SOL_IP, libc::IP_RECVOPTS, "IP_RECVOPTS"),
    (SOL_IP, libc::IP_RETOPTS, "IP_RETOPTS"),
    (SOL_IP, libc::IP_RECVORIGDSTADDR, "IP_RECVORIGDSTADDR"),
    (SOL_IP, libc::IP_TRANSPARENT, "IP_TRANSPARENT"),
    (SOL_IP, IP_CHECKSUM, "IP_CHECKSUM"),
    (SOL_IP, IP_RECVFRAGSIZE, "IP_RECVFRAGSIZE"),
    (SOL_UDP, UDP_CORK, "UDP_CORK"),
    (SOL_UDP, UDP_ENCAP, "UDP_ENCAP"),
    (SOL_UDP, libc::UDP_SEGMENT, "UDP_SEGMENT"),
    (SOL_UDP, libc::UDP_GRO, "UDP_GRO"),
];

/// Options that a raw port cannot serve. A packet socket with one of them is the kernel's.
const NOT_SERVED_IN_FRAMES: &[(c_int, c_int, &str)] = &[
    (SOL_SOCKET, libc::SO_TIMESTAMPING, "SO_TIMESTAMPING"),
    (SOL_SOCKET, libc::SO_RXQ_OVFL, "SO_RXQ_OVFL"),
    (SOL_SOCKET, libc::SO_MARK, "SO_MARK"),
    (SOL_PACKET, libc::PACKET_AUXDATA, "PACKET_AUXDATA"),
    (SOL_PACKET, libc::PACKET_VNET_HDR, "PACKET_VNET_HDR"),
    (SOL_PACKET, libc::PACKET_FANOUT, "PACKET_FANOUT"),
];

/// Options of a packet socket by which it has memory that it shares with the kernel. They cannot be asked for.
pub(crate) fn makes_ring(level: c_int, name: c_int) -> bool {
    level == SOL_PACKET && matches!(name, libc::PACKET_RX_RING | libc::PACKET_TX_RING)
}

fn first_of(
    descriptor: RawFd,
    not_served: &[(c_int, c_int, &'static str)],
) -> Option<&'static str> {
    let mut all = not_served.iter();
    all.find(|(level, name, _)| is_set(descriptor, *level, *name))
        .map(|(_, _, text)| *text)
}

fn is_set(descriptor: RawFd, level: c_int, name: c_int) -> bool {
    integer(descriptor, level, name).is_some_and(|value| value != unset(name))
}

impl Options {
    /// Reads those of a packet socket.
    ///
    /// # Errors
    /// The option that leaves the socket to the kernel.
    pub(crate) fn of_packets(descriptor: RawFd) -> Result<Self, &'static str> {
        if let Some(option) = first_of(descriptor, NOT_SERVED_IN_FRAMES) {
            return Err(option);
        }
        if has_filter(descriptor) {
            return Err("SO_ATTACH_FILTER");
        }
        Ok(Self {
            stamp: stamp(descriptor),
            packet_info: false,
            // A frame says its priority itself, by a tag.
            priority: Priority::LOWEST,
            sends_alike: true,
            receive_timeout: receive_timeout(descriptor),
            busy_poll: busy_poll(descriptor),
        })
    }

    /// Reads those of a UDP socket.
    ///
    /// # Errors
    /// The option that leaves the socket to the kernel.
    pub(crate) fn of(descriptor: RawFd, interface: Option<&str>) -> Result<Self, &'static str> {
        if let Some(option) = first_of(descriptor, NOT_SERVED) {
            return Err(option);
        }
        if has_filter(descriptor) {
            return Err("SO_ATTACH_FILTER");
        }
        if !is_of_interface(descriptor, interface) {
            return Err("SO_BINDTODEVICE, for another interface");
        }
        let service = integer(descriptor, SOL_IP, libc::IP_TOS).unwrap_or(0);
        let priority = u8::try_from(service >> 5).ok().and_then(Priority::new);
        let discovery = integer(descriptor, SOL_IP, libc::IP_MTU_DISCOVER);
        Ok(Self {
            stamp: stamp(descriptor),
            packet_info: is_set(descriptor, SOL_IP, libc::IP_PKTINFO),
            priority: priority.unwrap_or(Priority::LOWEST),
            sends_alike: service & 0x1f == 0
                && integer(descriptor, SOL_IP, libc::IP_TTL) == Some(TIME_TO_LIVE)
                && discovery == Some(libc::IP_PMTUDISC_WANT),
            receive_timeout: receive_timeout(descriptor),
            busy_poll: busy_poll(descriptor),
        })
    }
}

fn stamp(descriptor: RawFd) -> Stamp {
    match () {
        () if is_set(descriptor, SOL_SOCKET, libc::SO_TIMESTAMPNS) => Stamp::Nanoseconds,
        () if is_set(descriptor, SOL_SOCKET, libc::SO_TIMESTAMP) => Stamp::Microseconds,
        () => Stamp::None,
    }
}

fn busy_poll(descriptor: RawFd) -> Duration {
    let busy_us = integer(descriptor, SOL_SOCKET, libc::SO_BUSY_POLL).unwrap_or(0);
    Duration::from_micros(u64::try_from(busy_us).unwrap_or(0))
}

/// Whether several sockets may have its port, each with its share of the datagrams (SO_REUSEPORT).
pub(crate) fn shares_port(descriptor: RawFd) -> bool {
    integer(descriptor, SOL_SOCKET, libc::SO_REUSEPORT) == Some(1)
}

/// Value of an option that nobody set.
fn unset(name: c_int) -> c_int {
    match name {
        libc::SO_PEEK_OFF => -1,
        _ => 0,
    }
}

/// An option that is a number.
pub(crate) fn integer(descriptor: RawFd, level: c_int, name: c_int) -> Option<c_int> {
    let mut value: c_int = 0;
    let mut bytes = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: `value` has room for `bytes`.
    let result = unsafe {
        libc::getsockopt(
            descriptor,
            level,
            name,
            (&raw mut value).cast::<c_void>(),
            &raw mut bytes,
        )
    };
    (result == 0).then_some(value)
}

/// The pending error of a socket, which that takes from it; 0: none.
pub(crate) fn pending_error(descriptor: RawFd) -> c_int {
    integer(descriptor, SOL_SOCKET, libc::SO_ERROR).unwrap_or(0)
}

/// SO_RCVTIMEO, none if the socket waits for ever.
fn receive_timeout(descriptor: RawFd) -> Option<Duration> {
    let mut value = libc::timeval {
        tv_sec: 0,
        tv_usec: 0,
    };
    let mut bytes = size_of::<libc::timeval>() as libc::socklen_t;
    // SAFETY: `value` has room for `bytes`.
    let result = unsafe {
        libc::getsockopt(
            descriptor,
            SOL_SOCKET,
            libc::SO_RCVTIMEO,
            (&raw mut value).cast::<c_void>(),
            &raw mut bytes,
        )
    };
    let seconds = Duration::from_secs(u64::try_from(value.tv_sec).ok()?);
    let timeout = seconds + Duration::from_micros(u64::try_from(value.tv_usec).ok()?);
    (result == 0 && !timeout.is_zero()).then_some(timeout)
}

fn has_filter(descriptor: RawFd) -> bool {
    let mut instructions: libc::socklen_t = 0;
    // SAFETY: with room for none, the kernel only says how many there are.
    let result = unsafe {
        libc::getsockopt(
            descriptor,
            SOL_SOCKET,
            SO_GET_FILTER,
            std::ptr::null_mut(),
            &raw mut instructions,
        )
    };
    // An extended BPF program cannot be read: the kernel refuses.
    result != 0 || instructions != 0
}

fn is_of_interface(descriptor: RawFd, interface: Option<&str>) -> bool {
    let mut name = [0u8; libc::IFNAMSIZ];
    let mut bytes = name.len() as libc::socklen_t;
    // SAFETY: `name` has room for `bytes`.
    let result = unsafe {
        libc::getsockopt(
            descriptor,
            SOL_SOCKET,
            libc::SO_BINDTODEVICE,
            name.as_mut_ptr().cast::<c_void>(),
            &raw mut bytes,
        )
    };
    let given = name[..(bytes as usize).min(name.len())]
        .split(|byte| *byte == 0)
        .next();
    let given = given.unwrap_or_default();
    result != 0 || given.is_empty() || Some(given) == interface.map(str::as_bytes)
}
