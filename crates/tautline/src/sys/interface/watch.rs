//! The interface that a node was opened on, by its index, and what the kernel has there now. A name says nothing: the
//! kernel gives it to the next interface, and an index to none while the namespace lives, unless it is asked for.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use tautline_proto::wire::MacAddress;

use super::{Interface, Request, name_of};
use crate::sys::{socket, wait};

/// Attempts to ask about an interface that is renamed meanwhile: by its index the kernel tells the name only. Lower:
/// one that is renamed at that moment seems gone. Higher: one that is renamed all the time is asked about for longer.
const ATTEMPTS: u32 = 4;

/// An interface as it was once, with a socket in its network namespace: the caller may be in another.
#[derive(Debug)]
pub(crate) struct InterfaceWatch {
    name: String,
    index: u32,
    mac: MacAddress,
    /// The node's IPv4 address, if it was that of the interface.
    ip: Option<Ipv4Addr>,
    /// For questions.
    socket: OwnedFd,
    /// Becomes readable when the kernel tells that the interface is gone, and stays so because nothing is read from it;
    /// or why the kernel does not tell.
    end: Result<OwnedFd, String>,
}

/// The interface that the kernel has under the index.
#[derive(Clone, Debug)]
pub(crate) struct Current {
    pub(crate) name: String,
    pub(crate) mac: MacAddress,
    /// Its first IPv4 address that has its name as label.
    pub(crate) ip: Option<Ipv4Addr>,
    pub(crate) up: bool,
}

impl InterfaceWatch {
    /// Of an interface of the calling thread's network namespace, for a node with this IPv4 address.
    ///
    /// # Errors
    /// `ErrorKind::NotFound` if it is gone already; the kernel's.
    pub(crate) fn new(interface: &Interface, ip: Option<Ipv4Addr>) -> io::Result<Self> {
        let mut watch = Self {
            name: interface.name.clone(),
            index: interface.index,
            mac: interface.mac,
            ip: None,
            socket: socket::open(libc::AF_INET, libc::SOCK_DGRAM, 0)?,
            // Forbidden to some processes, which can ask all the same.
            end: listening(interface.index).map_err(|error| error.to_string()),
        };
        // An end before the socket listened is not told.
        let current = watch.current()?.ok_or(io::ErrorKind::NotFound)?;
        watch.ip = ip.filter(|_| ip == current.ip);
        Ok(watch)
    }

    /// Its name when the node was opened.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Its MAC address when the node was opened.
    pub(crate) fn mac(&self) -> MacAddress {
        self.mac
    }

    /// The node's IPv4 address, if the interface had it when the node was opened.
    pub(crate) fn ip(&self) -> Option<Ipv4Addr> {
        self.ip
    }

    /// Readable once the interface is gone; `None` where the kernel does not tell.
    pub(crate) fn end(&self) -> Option<BorrowedFd<'_>> {
        self.end.as_ref().ok().map(AsFd::as_fd)
    }

    /// Why the kernel does not tell that the interface is gone.
    pub(crate) fn tells_nothing(&self) -> Option<&str> {
        self.end.as_ref().err().map(String::as_str)
    }

    /// Whether the interface was deleted, or moved to another network namespace.
    pub(crate) fn is_gone(&self) -> bool {
        match self.end() {
            Some(end) => wait::is_readable(end),
            None => matches!(self.current(), Ok(None)),
        }
    }

    /// The interface at this moment; `None` if it is gone. Does not wait for changes of interfaces (rtnl).
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn current(&self) -> io::Result<Option<Current>> {
        if self.end().is_some_and(wait::is_readable) {
            return Ok(None);
        }
        for _ in 0..ATTEMPTS {
            match self.ask() {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Ok(None) => {}
                answered => return answered,
            }
        }
        Ok(None)
    }

    /// `None` if the name went to another interface between two questions.
    fn ask(&self) -> io::Result<Option<Current>> {
        let name = name_of(&self.socket, self.index)?;
        let mut request = Request::new(&self.socket, &name)?;
        let mac = request.ask(libc::SIOCGIFHWADDR)?.hardware_address();
        let up = request.ask(libc::SIOCGIFFLAGS)?.is_set(libc::IFF_UP);
        let ip = request.ipv4_address();
        let index = request.ask(libc::SIOCGIFINDEX)?.index();
        let current = Current { name, mac, ip, up };
        Ok((u32::try_from(index) == Ok(self.index)).then_some(current))
    }

    /// Whether another interface has the name now.
    pub(crate) fn has_namesake(&self) -> bool {
        let index = || {
            let mut request = Request::new(&self.socket, &self.name)?;
            io::Result::Ok(request.ask(libc::SIOCGIFINDEX)?.index())
        };
        // With the same index it is another one if ours is gone.
        index().is_ok_and(|index| u32::try_from(index) != Ok(self.index) || self.is_gone())
    }
}

/// A socket that hears of the end of one interface, and of nothing else (rtnetlink(7)).
fn listening(index: u32) -> io::Result<OwnedFd> {
    let socket = socket::open(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_ROUTE)?;
    // Before it joins the group, so that what comes is the end and no other message.
    socket::set_filter(socket.as_fd(), &end_filter(index))?;
    socket::lock_filter(socket.as_fd())?;
    // SAFETY: all bytes zero is a valid sockaddr_nl.
    let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
    address.nl_family = libc::AF_NETLINK as libc::sa_family_t;
    address.nl_groups = libc::RTMGRP_LINK as u32;
    socket::bind(socket.as_fd(), &address)?;
    Ok(socket)
}

/// Keeps a message if it says that this interface is gone: `RTM_DELLINK` in the header (netlink(7)), no address family
/// in what follows, since a bridge says so of each interface that leaves it, and the index.
fn end_filter(index: u32) -> [libc::sock_filter; 8] {
    const TYPE: u32 = 4;
    const FAMILY: u32 = 16;
    const INDEX: u32 = 20;
    const WHOLE_MESSAGE: u32 = u32::MAX;
    let statement = |code, k| libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf: 0,
        k,
    };
    let load = |size, at| statement(libc::BPF_LD | size | libc::BPF_ABS, at);
    let unless = |skipped, k| libc::sock_filter {
        jf: skipped,
        ..statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, k)
    };
    let keep = |bytes| statement(libc::BPF_RET | libc::BPF_K, bytes);
    [
        // A load takes the bytes in network order; they are in this machine's.
        load(libc::BPF_H, TYPE),
        unless(5, u32::from(libc::RTM_DELLINK.to_be())),
        load(libc::BPF_B, FAMILY),
        unless(3, libc::AF_UNSPEC as u32),
        load(libc::BPF_W, INDEX),
        unless(1, index.to_be()),
        keep(WHOLE_MESSAGE),
        keep(0),
    ]
}

/// Sleeps as [`wait::readable`]; whether nothing is there to read because the interface is gone.
///
/// # Errors
/// The kernel's.
pub(crate) fn readable_or_gone(
    descriptor: BorrowedFd<'_>,
    timeout: Option<Duration>,
    watch: Option<&InterfaceWatch>,
) -> io::Result<bool> {
    match watch.and_then(InterfaceWatch::end) {
        None => wait::readable(descriptor, timeout).map(|()| false),
        Some(end) => {
            let [is_there, has_ended] = wait::which_of([descriptor, end], timeout)?;
            Ok(has_ended && !is_there)
        }
    }
}
