//! Sockets: sending, and receiving with the kernel's arrival time.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::net::SendFlags;
use tautline_proto::time::Instant;
use tautline_proto::wire::Priority;
pub(crate) use tautline_state::socket::{bind, lock_filter, open, packet, set_filter, set_option};

/// Sends one frame or datagram on a bound or connected socket. Never waits. Past the C library, whose `send` is a place
/// where threads may be cancelled, which costs each call some thirty instructions.
#[inline]
pub(crate) fn send(socket: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<()> {
    match rustix::net::send(socket, bytes, SendFlags::DONTWAIT) {
        Ok(_) => Ok(()),
        Err(error) => Err(refused(socket, error.into())),
    }
}

/// Why a frame was not sent. A packet socket answers `ENOBUFS` to whatever the driver does not take; where it is for
/// want of a carrier, this is `ENOLINK`.
#[cold]
fn refused(socket: BorrowedFd<'_>, error: io::Error) -> io::Error {
    if error.raw_os_error() != Some(libc::ENOBUFS) {
        return error;
    }
    let index = super::packet::interface_of(socket);
    match index.map(|index| super::interface::has_carrier(socket, index)) {
        Some(Ok(false)) => io::Error::from_raw_os_error(libc::ENOLINK),
        _ => error,
    }
}

/// Sends one datagram to an address. Never waits.
pub(crate) fn send_to(socket: BorrowedFd<'_>, bytes: &[u8], to: SocketAddrV4) -> io::Result<()> {
    let address = internet_address(to);
    // SAFETY: `bytes` and `address` are readable for the lengths given.
    let sent = unsafe {
        libc::sendto(
            socket.as_raw_fd(),
            bytes.as_ptr().cast(),
            bytes.len(),
            libc::MSG_DONTWAIT,
            std::ptr::from_ref(&address).cast(),
            size_of::<libc::sockaddr_in>() as libc::socklen_t,
        )
    };
    super::check_size(sent).map(drop)
}

/// Frames that one call of [`send_many`] takes. Lower: more system calls for the same frames. Higher: more
/// stack (200 bytes each), for a call that is a small part of what 32 frames cost.
pub(crate) const SEND_MANY_MAX: usize = 32;

/// A frame or datagram to be sent, in two pieces.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OutFrame<'a> {
    /// Headers; empty if the payload begins with them.
    pub(crate) head: &'a [u8],
    pub(crate) payload: &'a [u8],
    /// Receiver of a datagram, on a socket that is neither bound to an interface nor connected.
    pub(crate) to: Option<SocketAddrV4>,
    pub(crate) priority: Priority,
}

impl<'a> OutFrame<'a> {
    /// A frame that lies together.
    #[inline]
    pub(crate) const fn whole(bytes: &'a [u8], priority: Priority) -> Self {
        Self {
            head: &[],
            payload: bytes,
            to: None,
            priority,
        }
    }
}

/// Sends several frames or datagrams with one system call; how many, from the first on, the kernel took:
/// at least one. Never waits. At most [`SEND_MANY_MAX`] are looked at.
pub(crate) fn send_many(socket: BorrowedFd<'_>, all: &[OutFrame<'_>]) -> io::Result<usize> {
    let count = all.len().min(SEND_MANY_MAX);
    let part = |bytes: &[u8]| libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    let mut parts = [[part(&[]); 2]; SEND_MANY_MAX];
    let mut addresses =
        [internet_address(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0)); SEND_MANY_MAX];
    // SAFETY: all bytes zero is a valid mmsghdr: no address, no parts, no control messages.
    let mut messages: [libc::mmsghdr; SEND_MANY_MAX] = unsafe { std::mem::zeroed() };
    for (index, frame) in all[..count].iter().enumerate() {
        parts[index] = [part(frame.head), part(frame.payload)];
        let message = &mut messages[index].msg_hdr;
        message.msg_iov = parts[index].as_mut_ptr();
        message.msg_iovlen = 2;
        if let Some(to) = frame.to {
            addresses[index] = internet_address(to);
            message.msg_name = (&raw mut addresses[index]).cast();
            message.msg_namelen = size_of::<libc::sockaddr_in>() as libc::socklen_t;
        }
    }
    // SAFETY: the first `count` messages point to live parts and addresses, and these to bytes that
    // are readable for their lengths; the kernel writes nothing but the messages' own lengths.
    let sent = unsafe {
        libc::sendmmsg(
            socket.as_raw_fd(),
            messages.as_mut_ptr(),
            count as libc::c_uint,
            libc::MSG_DONTWAIT as _, // glibc's int, musl's unsigned
        )
    };
    let sent = super::check(sent).map_err(|error| refused(socket, error))?;
    Ok(sent as usize)
}

/// Looks whether a socket has something, and throws it away. Never waits.
pub(crate) fn look(socket: BorrowedFd<'_>) {
    look_with(socket, libc::MSG_DONTWAIT);
}

/// Looks whether a socket has something, and leaves it there: its datagrams are another reader's. Never waits.
pub(crate) fn peek(socket: BorrowedFd<'_>) {
    look_with(socket, libc::MSG_DONTWAIT | libc::MSG_PEEK);
}

fn look_with(socket: BorrowedFd<'_>, flags: libc::c_int) {
    // SAFETY: a null buffer of length zero is neither read nor written.
    let _nothing = unsafe { libc::recv(socket.as_raw_fd(), std::ptr::null_mut(), 0, flags) };
}

/// The C form of an IPv4 address and UDP port.
pub(crate) fn internet_address(address: SocketAddrV4) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: address.port().to_be(),
        sin_addr: libc::in_addr {
            s_addr: u32::from_ne_bytes(address.ip().octets()),
        },
        sin_zero: [0; 8],
    }
}

/// Result of [`Receiver::receive`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Received {
    /// Bytes of the frame; more than the buffer's length if it was cut off.
    pub(crate) bytes: usize,
    /// The kernel's arrival time, or the time of the call if the kernel gave none.
    pub(crate) arrival: Instant,
    /// The sender, on an IPv4 socket.
    pub(crate) from: SocketAddrV4,
    /// The type of service that it came with, on a socket that was asked to tell (IP_RECVTOS).
    pub(crate) type_of_service: u8,
    /// Frames that the socket had dropped for want of room, since it was opened, when this frame came.
    pub(crate) dropped: u32,
}

/// Bytes for control messages: room for a timestamp, a count of drops, a type of service and for what else the
/// kernel may add.
const CONTROL_BYTES: usize = 128;

/// Receives from a socket with the kernel's arrival times, without allocating.
pub(crate) struct Receiver {
    socket: OwnedFd,
    control: [u64; CONTROL_BYTES / 8],
}

impl Receiver {
    /// Takes the socket and asks the kernel to stamp arrivals.
    pub(crate) fn new(socket: OwnedFd) -> io::Result<Self> {
        use std::os::fd::AsFd;
        set_option(
            socket.as_fd(),
            libc::SOL_SOCKET,
            libc::SO_TIMESTAMPNS,
            &1i32,
        )?;
        set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_RXQ_OVFL, &1i32)?;
        Ok(Self {
            socket,
            control: [0; CONTROL_BYTES / 8],
        })
    }

    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        use std::os::fd::AsFd;
        self.socket.as_fd()
    }

    /// One frame or datagram, or `None` if there is none. Never waits.
    pub(crate) fn receive(&mut self, buffer: &mut [u8]) -> io::Result<Option<Received>> {
        let mut from = internet_address(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0));
        let mut part = libc::iovec {
            iov_base: buffer.as_mut_ptr().cast(),
            iov_len: buffer.len(),
        };
        // SAFETY: all bytes zero is a valid msghdr.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_name = (&raw mut from).cast();
        // A packet socket's longer address is cut off at this length; it is not used.
        message.msg_namelen = size_of::<libc::sockaddr_in>() as libc::socklen_t;
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = self.control.as_mut_ptr().cast();
        message.msg_controllen = CONTROL_BYTES as _;
        let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
        // SAFETY: every pointer in `message` is to live memory of the length given with it.
        let result = unsafe { libc::recvmsg(self.socket.as_raw_fd(), &raw mut message, flags) };
        match super::check_size(result) {
            Ok(bytes) => Ok(Some(Received {
                bytes,
                arrival: arrival(&message).unwrap_or_else(super::clock::monotonic),
                dropped: dropped(&message),
                type_of_service: type_of_service(&message),
                from: SocketAddrV4::new(
                    Ipv4Addr::from(from.sin_addr.s_addr.to_ne_bytes()),
                    u16::from_be(from.sin_port),
                ),
            })),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// The SCM_TIMESTAMPNS control message, moved from CLOCK_REALTIME to CLOCK_MONOTONIC.
fn arrival(message: &libc::msghdr) -> Option<Instant> {
    // SAFETY: recvmsg filled `message`.
    let stamp =
        unsafe { control::<libc::timespec>(message, libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) }?;
    #[allow(clippy::unnecessary_cast)] // of 32 bits on processors of 32
    let realtime_ns = stamp.tv_sec as i64 * 1_000_000_000 + stamp.tv_nsec as i64;
    let monotonic_ns = realtime_ns + super::clock::realtime_to_monotonic_ns();
    u64::try_from(monotonic_ns).ok().map(Instant::from_nanos)
}

/// The SO_RXQ_OVFL control message, which the kernel leaves out while there is nothing to tell.
fn dropped(message: &libc::msghdr) -> u32 {
    // SAFETY: recvmsg filled `message`.
    unsafe { control(message, libc::SOL_SOCKET, libc::SO_RXQ_OVFL) }.unwrap_or(0)
}

/// The IP_TOS control message, one byte.
fn type_of_service(message: &libc::msghdr) -> u8 {
    // SAFETY: recvmsg filled `message`.
    unsafe { control(message, libc::IPPROTO_IP, libc::IP_TOS) }.unwrap_or(0)
}

/// The control message of this level and type.
///
/// # Safety
/// recvmsg must have filled `message`, and `T` be what the kernel sends with this type: a structure of integers.
unsafe fn control<T: Copy>(
    message: &libc::msghdr,
    level: libc::c_int,
    kind: libc::c_int,
) -> Option<T> {
    // SAFETY: the caller guarantees that `message` is filled, so the macros stay within its control
    // buffer, and that what follows the control message's head is a `T`.
    unsafe {
        let mut control = libc::CMSG_FIRSTHDR(message);
        while let Some(header) = control.as_ref() {
            if header.cmsg_level == level && header.cmsg_type == kind {
                return Some(libc::CMSG_DATA(control).cast::<T>().read_unaligned());
            }
            control = libc::CMSG_NXTHDR(message, control);
        }
    }
    None
}
