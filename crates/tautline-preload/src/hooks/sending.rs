//! send(2), sendto(2), sendmsg(2), sendmmsg(2), write(2), writev(2).
#![allow(unsafe_code)] // Exported functions with the C library's names.

use std::ffi::{c_int, c_uint, c_void};
use std::net::Ipv4Addr;

use libc::{iovec, mmsghdr, msghdr, sockaddr, socklen_t};

use crate::socket::{DATAGRAM_BYTES_MAX, Sent, Taken, To};
use crate::table::Place;
use crate::{decide, errno, memory, next, table};

/// Flags that change nothing about a datagram that a port sends.
const FLAGS: c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_CONFIRM;
/// Most parts of a message (UIO_MAXIOV); the kernel refuses more.
pub(super) const PARTS_MAX: usize = 1024;
/// Most bytes of control messages that are read; the kernel judges longer ones.
const CONTROL_BYTES_MAX: usize = 256;

/// A call that sends through the kernel, perhaps to a socket of this very process.
#[inline]
fn by_kernel<R>(call: impl FnOnce() -> R) -> R {
    let result = call();
    table::count_sent();
    result
}

/// Bytes sent by the port, or -1 with the socket's error; `None`: the kernel's turn.
fn outcome(sent: Option<Sent>, bytes: usize) -> Option<isize> {
    match sent? {
        Sent::Done => Some(bytes as isize),
        Sent::Error(error) => Some(errno::fail(error)),
        Sent::Kernel => None,
    }
}

#[inline]
fn send_bytes(
    fd: c_int,
    place: &Place,
    to: To,
    (bytes, length): (*const c_void, usize),
) -> Option<isize> {
    if length > DATAGRAM_BYTES_MAX {
        return None;
    }
    let kept = errno::get();
    let payload = memory::bytes(bytes.cast(), length)?;
    let sent = place.with(|taken| taken.send(fd, to, payload));
    errno::set(kept);
    outcome(sent, length)
}

/// send(2).
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn send(
    fd: c_int,
    bytes: *const c_void,
    length: usize,
    flags: c_int,
) -> isize {
    if let Some(place) = table::place(fd)
        && flags & !FLAGS == 0
        && let Some(result) = send_bytes(fd, place, To::Unnamed, (bytes, length))
    {
        return result;
    }
    // SAFETY: the caller's promise.
    by_kernel(|| unsafe { next::send(fd, bytes, length, flags) })
}

/// write(2).
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn write(fd: c_int, bytes: *const c_void, length: usize) -> isize {
    if let Some(place) = table::place(fd)
        && let Some(result) = send_bytes(fd, place, To::Unnamed, (bytes, length))
    {
        return result;
    }
    // SAFETY: the caller's promise.
    by_kernel(|| unsafe { next::write(fd, bytes, length) })
}

/// sendto(2).
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendto(
    fd: c_int,
    bytes: *const c_void,
    length: usize,
    flags: c_int,
    to: *const sockaddr,
    to_bytes: socklen_t,
) -> isize {
    let address = match to.is_null() {
        true => Some(To::Unnamed),
        false => first_address(fd, to, to_bytes),
    };
    if let Some(place) = table::place(fd)
        && flags & !FLAGS == 0
        && let Some(address) = address
        && let Some(result) = send_bytes(fd, place, address, (bytes, length))
    {
        return result;
    }
    // SAFETY: the caller's promise.
    by_kernel(|| unsafe { next::sendto(fd, bytes, length, flags, to, to_bytes) })
}

/// The address of a datagram, if it is one of IPv4, or that of a frame. The first address that a UDP socket sends to
/// may decide that it is taken.
#[inline]
fn first_address(fd: c_int, to: *const sockaddr, bytes: socklen_t) -> Option<To> {
    let is_taken = match table::place(fd) {
        Some(place) if place.is_packet() => {
            return decide::station(to, bytes).map(To::Station);
        }
        place => place.is_some(),
    };
    if !is_taken && !table::is_unknown(fd) {
        return None;
    }
    let address = decide::address(to, bytes)?;
    if !is_taken {
        decide::before_traffic(fd, address);
    }
    Some(To::Internet(address))
}

/// writev(2).
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn writev(fd: c_int, parts: *const iovec, count: c_int) -> isize {
    // Parts of no bytes at all are no datagram here.
    if let (Some(place), Ok(count)) = (table::place(fd), usize::try_from(count))
        && room_of(parts, count).is_some_and(|bytes| bytes > 0)
        && let Some(result) = send_parts(fd, place, To::Unnamed, (parts, count))
    {
        return result;
    }
    // SAFETY: the caller's promise.
    by_kernel(|| unsafe { next::writev(fd, parts, count) })
}

fn send_parts(
    fd: c_int,
    place: &Place,
    to: To,
    (parts, count): (*const iovec, usize),
) -> Option<isize> {
    if count > PARTS_MAX {
        return None;
    }
    if count == 1 {
        let part = memory::read(parts)?;
        return send_bytes(fd, place, to, (part.iov_base, part.iov_len));
    }
    let kept = errno::get();
    let mut length = 0;
    let sent = place.with(|taken: &mut Taken| {
        taken.send_gathered(fd, to, |room| {
            length = gather(parts, count, room)?;
            Some(length)
        })
    });
    errno::set(kept);
    outcome(sent, length)
}

/// Bytes of all parts; nothing if they cannot be read or are too many.
pub(super) fn room_of(parts: *const iovec, count: usize) -> Option<usize> {
    if count > PARTS_MAX {
        return None;
    }
    (0..count).try_fold(0usize, |total, index| {
        total.checked_add(memory::read(parts.wrapping_add(index))?.iov_len)
    })
}

/// Puts the parts of a message together; nothing if they cannot be read or are too long.
fn gather(parts: *const iovec, count: usize, room: &mut [u8]) -> Option<usize> {
    let mut used = 0;
    for index in 0..count {
        let part = memory::read(parts.wrapping_add(index))?;
        let to = room.get_mut(used..)?.get_mut(..part.iov_len)?;
        to.copy_from_slice(memory::bytes(part.iov_base.cast(), part.iov_len)?);
        used += part.iov_len;
    }
    Some(used)
}

/// sendmsg(2).
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> isize {
    if (table::place(fd).is_some() || table::is_unknown(fd))
        && flags & !FLAGS == 0
        && let Some(result) = send_message(fd, message)
    {
        return result;
    }
    // SAFETY: the caller's promise.
    by_kernel(|| unsafe { next::sendmsg(fd, message, flags) })
}

fn send_message(fd: c_int, message: *const msghdr) -> Option<isize> {
    let message = memory::read(message)?;
    let address = match message.msg_name.is_null() {
        true => To::Unnamed,
        false => first_address(fd, message.msg_name.cast(), message.msg_namelen)?,
    };
    let place = table::place(fd)?;
    if !has_plain_control(place, &message) {
        return None;
    }
    send_parts(fd, place, address, (message.msg_iov, message.msg_iovlen))
}

/// Whether control messages ask for nothing but what the port does anyway: IP_PKTINFO with the node's own address and
/// interface, which servers copy from what they received.
fn has_plain_control(place: &Place, message: &msghdr) -> bool {
    let length = message.msg_controllen;
    if length == 0 {
        return true;
    }
    let head_bytes = size_of::<libc::cmsghdr>();
    let needed = head_bytes + size_of::<libc::in_pktinfo>();
    if message.msg_control.is_null() || !(needed..=CONTROL_BYTES_MAX).contains(&length) {
        return false;
    }
    let Some(head) = memory::read(message.msg_control.cast::<libc::cmsghdr>()) else {
        return false;
    };
    let is_only =
        head.cmsg_len == needed && length <= needed.next_multiple_of(align_of::<libc::cmsghdr>());
    if (head.cmsg_level, head.cmsg_type) != (libc::SOL_IP, libc::IP_PKTINFO) || !is_only {
        return false;
    }
    let info = message.msg_control.cast::<u8>().wrapping_add(head_bytes);
    let Some(info) = memory::read(info.cast::<libc::in_pktinfo>()) else {
        return false;
    };
    let source = Ipv4Addr::from_bits(u32::from_be(info.ipi_spec_dst.s_addr));
    let is_own = place.with(|taken| {
        taken.network().is_some_and(|network| {
            (source.is_unspecified() || source == network.address)
                && matches!(u32::try_from(info.ipi_ifindex), Ok(index) if index == 0 || index == network.interface_index)
        })
    });
    is_own == Some(true)
}

/// sendmmsg(2).
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
) -> c_int {
    let may_be_taken = table::place(fd).is_some() || table::is_unknown(fd);
    if !may_be_taken || flags & !FLAGS != 0 || count == 0 {
        // SAFETY: the caller's promise.
        return by_kernel(|| unsafe { next::sendmmsg(fd, messages, count, flags) });
    }
    let kept = errno::get();
    let sent = send_all(fd, messages, count.min(PARTS_MAX as c_uint), flags);
    if sent >= 0 {
        errno::set(kept);
    }
    sent
}

/// Sends messages until one fails; how many, or -1 if it is the first.
fn send_all(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
    let mut sent = 0;
    while sent < count {
        let one = messages.wrapping_add(sent as usize);
        match send_message(fd, one.cast::<msghdr>()) {
            Some(bytes) if bytes >= 0 => {
                let length = one
                    .cast::<u8>()
                    .wrapping_add(std::mem::offset_of!(mmsghdr, msg_len));
                if !memory::put(length.cast::<c_uint>(), &(bytes as c_uint)) {
                    return if sent > 0 {
                        sent as c_int
                    } else {
                        errno::fail(libc::EFAULT) as c_int
                    };
                }
                sent += 1;
            }
            Some(_) if sent > 0 => return sent as c_int,
            Some(_) => return -1,
            None => {
                // SAFETY: the promise of `sendmmsg`'s caller, of one message.
                let result = by_kernel(|| unsafe { next::sendmmsg(fd, one, 1, flags) });
                match result {
                    1 => sent += 1,
                    _ if sent > 0 => return sent as c_int,
                    failed => return failed,
                }
            }
        }
    }
    sent as c_int
}
