//! The packet socket of the chain.
#![allow(unsafe_code)] // A packet socket for one EtherType: no safe binding has it.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use nix::net::if_::if_nametoindex;

/// EtherType of EtherCAT.
const ETHERCAT: u16 = 0x88A4;

/// A packet socket for EtherCAT on one interface.
pub(crate) struct Socket(OwnedFd);

impl Socket {
    pub(crate) fn open(interface: &str) -> io::Result<Self> {
        let index = if_nametoindex(interface)?;
        let protocol = ETHERCAT.to_be();
        // SAFETY: a call without pointers; the descriptor that it returns is nobody else's.
        let socket = unsafe {
            let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
            match libc::socket(libc::AF_PACKET, kind, i32::from(protocol)) {
                -1 => return Err(io::Error::last_os_error()),
                new => OwnedFd::from_raw_fd(new),
            }
        };
        // SAFETY: all bytes zero is a valid sockaddr_ll.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = protocol;
        address.sll_ifindex = index as i32;
        let bytes = size_of_val(&address) as libc::socklen_t;
        // SAFETY: `address` is readable for the length given.
        let result = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), bytes) };
        match result {
            0 => Ok(Self(socket)),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// The next frame, for which a call that waits sleeps; how long it is.
    pub(crate) fn receive(&self, frame: &mut [u8], waits: bool) -> io::Result<Option<usize>> {
        let flags = if waits { 0 } else { libc::MSG_DONTWAIT };
        let (start, room) = (frame.as_mut_ptr().cast(), frame.len());
        // SAFETY: `frame` is writable for the length given.
        let bytes = unsafe { libc::recv(self.0.as_raw_fd(), start, room, flags) };
        match usize::try_from(bytes) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(_) => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
                error if error.kind() == io::ErrorKind::Interrupted => Ok(None),
                error => Err(error),
            },
        }
    }

    pub(crate) fn send(&self, frame: &[u8]) -> io::Result<()> {
        // SAFETY: `frame` is readable for the length given.
        let sent = unsafe { libc::send(self.0.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
        match sent {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    }
}
