//! recv(2), recvfrom(2), recvmsg(2), recvmmsg(2), read(2), readv(2).
#![allow(unsafe_code)] // Exported functions with the C library's names.

use std::ffi::{c_int, c_uint, c_void};
use std::mem::offset_of;
use std::time::Duration;

use libc::{
    MSG_CMSG_CLOEXEC, MSG_CTRUNC, MSG_DONTWAIT, MSG_PEEK, MSG_TRUNC, MSG_WAITALL, MSG_WAITFORONE,
    iovec, mmsghdr, msghdr, sockaddr, sockaddr_in, sockaddr_ll, socklen_t, timespec,
};

use super::sending::{PARTS_MAX, room_of};
use crate::decide::Network;
use crate::lock::Undisturbed;
use crate::options::{Options, Stamp};
use crate::socket::{Arrived, Sender};
use crate::spinning::{Looking, Spin, Spun};
use crate::table::{self, Place};
use crate::waiting::{self, Woken};
use crate::{errno, memory, next};

/// Flags that a port can serve; with any other, the kernel is asked alone.
const FLAGS: c_int =
    MSG_DONTWAIT | MSG_PEEK | MSG_TRUNC | MSG_WAITALL | libc::MSG_NOSIGNAL | MSG_CMSG_CLOEXEC;

/// The same of a packet socket, where the kernel refuses the others.
const FLAGS_OF_FRAMES: c_int = MSG_DONTWAIT | MSG_PEEK | MSG_TRUNC;

/// How a call hands out a datagram: the result, or an errno.
type Handed = Result<isize, c_int>;

/// Receives on a taken socket: from the port if it has something, else as the kernel does, which `kernel` calls with
/// the flags that it is given.
fn receive(
    fd: c_int,
    place: &'static Place,
    flags: c_int,
    kernel: impl Fn(c_int) -> isize,
    hand: impl Fn(&[u8], &Arrived, &Options, Option<&Network>) -> Handed,
) -> isize {
    let served = match place.is_packet() {
        true => FLAGS_OF_FRAMES,
        false => FLAGS,
    };
    if flags & !served != 0 {
        return kernel(flags);
    }
    let kept = errno::get();
    let is_peek = flags & MSG_PEEK != 0;
    let mut wait: Option<(Option<Duration>, waiting::Deadline)> = None;
    let mut undisturbed = None;
    loop {
        match place.with(|taken| taken.receive(is_peek, &hand)) {
            Some(Some(Ok(bytes))) => {
                errno::set(kept);
                return bytes;
            }
            Some(Some(Err(error))) => return errno::fail(error),
            Some(None) => {}
            None => return kernel(flags),
        }
        if flags & MSG_DONTWAIT != 0 || place.is_non_blocking() {
            return receive_from_kernel(place, flags, kernel);
        }
        let Some((timeout, deadline)) = wait else {
            let asked = place.with(|taken| (taken.is_shut.reading, taken.options.receive_timeout));
            let Some((false, timeout)) = asked else {
                return kernel(flags);
            };
            wait = Some((timeout, waiting::deadline_after(timeout)));
            let Some(spin) = Spin::of(place, timeout) else {
                continue;
            };
            let places = [place];
            let looking = Looking::new(&places, 0);
            let spun = spin.run(
                || looking.is_there(),
                || {
                    let result = kernel(flags | MSG_DONTWAIT);
                    (result >= 0 || errno::get() != libc::EAGAIN).then_some(result)
                },
            );
            undisturbed = Some(looking.end());
            if let Spun::Others(result) = spun {
                return answered(result, kept);
            }
            continue;
        };
        let mask = undisturbed
            .as_ref()
            .map_or(std::ptr::null(), Undisturbed::before);
        let woken = waiting::wait(fd, place, deadline, mask);
        undisturbed = None;
        match woken {
            Woken::Port => {}
            Woken::Socket => {
                let result = kernel(flags | MSG_DONTWAIT);
                if result >= 0 || errno::get() != libc::EAGAIN {
                    return answered(result, kept);
                }
            }
            Woken::TimedOut => return errno::fail(libc::EAGAIN),
            Woken::Interrupted if timeout.is_none() && waiting::restarts() => {}
            Woken::Interrupted => return errno::fail(libc::EINTR),
        }
        // Closed by another thread meanwhile: the descriptor is not this socket's any more.
        if !table::place(fd).is_some_and(|now| table::same(now, place)) {
            return errno::fail(libc::EBADF);
        }
    }
}

/// The kernel's answer after looks that found nothing, whose EAGAIN a call that succeeds must not leave in `errno`.
fn answered(result: isize, kept: c_int) -> isize {
    if result >= 0 {
        errno::set(kept);
    }
    result
}

/// The kernel's turn in a call that must not wait. A program that spins would pay for a system call each time; so the
/// kernel is not asked again within microseconds.
fn receive_from_kernel(place: &Place, flags: c_int, kernel: impl Fn(c_int) -> isize) -> isize {
    if place.with(|taken| taken.kernel_is_empty()) == Some(true) {
        return errno::fail(libc::EAGAIN);
    }
    let result = kernel(flags);
    if result < 0 && errno::get() == libc::EAGAIN {
        place.with(|taken| taken.kernel_was_empty());
        errno::set(libc::EAGAIN);
    }
    result
}

/// Copies a datagram to one buffer: bytes that the call returns.
#[inline]
fn to_buffer(bytes: &[u8], (buffer, length): (*mut c_void, usize), flags: c_int) -> Handed {
    let taken = bytes.len().min(length);
    if !memory::write(buffer.cast(), &bytes[..taken]) {
        return Err(libc::EFAULT);
    }
    Ok(match flags & MSG_TRUNC != 0 {
        true => bytes.len(),
        false => taken,
    } as isize)
}

/// recv(2).
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recv(
    fd: c_int,
    buffer: *mut c_void,
    length: usize,
    flags: c_int,
) -> isize {
    // SAFETY: the caller's promise.
    let kernel = |flags| unsafe { next::recv(fd, buffer, length, flags) };
    match table::place(fd) {
        None => kernel(flags),
        Some(place) => receive(fd, place, flags, kernel, |bytes, _, _, _| {
            to_buffer(bytes, (buffer, length), flags)
        }),
    }
}

/// recv(2) of a program that was compiled with checks of its buffers.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __recv_chk(
    fd: c_int,
    buffer: *mut c_void,
    length: usize,
    room: usize,
    flags: c_int,
) -> isize {
    if length > room || table::place(fd).is_none() {
        // SAFETY: the caller's promise.
        return unsafe { next::__recv_chk(fd, buffer, length, room, flags) };
    }
    // SAFETY: the caller's promise.
    unsafe { recv(fd, buffer, length, flags) }
}

/// read(2). Of no bytes, it leaves the datagram where it is.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn read(fd: c_int, buffer: *mut c_void, length: usize) -> isize {
    if length == 0 || table::place(fd).is_none() {
        // SAFETY: the caller's promise.
        return unsafe { next::read(fd, buffer, length) };
    }
    // SAFETY: the caller's promise.
    unsafe { recv(fd, buffer, length, 0) }
}

/// read(2) of a program that was compiled with checks of its buffers.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __read_chk(
    fd: c_int,
    buffer: *mut c_void,
    length: usize,
    room: usize,
) -> isize {
    if length > room || table::place(fd).is_none() {
        // SAFETY: the caller's promise.
        return unsafe { next::__read_chk(fd, buffer, length, room) };
    }
    // SAFETY: the caller's promise.
    unsafe { read(fd, buffer, length) }
}

/// recvfrom(2).
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvfrom(
    fd: c_int,
    buffer: *mut c_void,
    length: usize,
    flags: c_int,
    from: *mut sockaddr,
    from_bytes: *mut socklen_t,
) -> isize {
    // SAFETY: the caller's promise.
    let kernel = |flags| unsafe { next::recvfrom(fd, buffer, length, flags, from, from_bytes) };
    let Some(place) = table::place(fd) else {
        return kernel(flags);
    };
    receive(fd, place, flags, kernel, |bytes, arrived, _, _| {
        let received = to_buffer(bytes, (buffer, length), flags)?;
        if !from.is_null() {
            let room = memory::read(from_bytes.cast_const()).ok_or(libc::EFAULT)?;
            let told = tell_source(&arrived.sender, from, room)?;
            if !memory::put(from_bytes, &told) {
                return Err(libc::EFAULT);
            }
        }
        Ok(received)
    })
}

/// recvfrom(2) of a program that was compiled with checks of its buffers.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __recvfrom_chk(
    fd: c_int,
    buffer: *mut c_void,
    length: usize,
    room: usize,
    flags: c_int,
    from: *mut sockaddr,
    from_bytes: *mut socklen_t,
) -> isize {
    if length > room || table::place(fd).is_none() {
        // SAFETY: the caller's promise.
        return unsafe { next::__recvfrom_chk(fd, buffer, length, room, flags, from, from_bytes) };
    }
    // SAFETY: the caller's promise.
    unsafe { recvfrom(fd, buffer, length, flags, from, from_bytes) }
}

/// Writes as much of a sender's address as there is room for; how long it is.
fn tell_source(sender: &Sender, to: *mut sockaddr, room: socklen_t) -> Result<socklen_t, c_int> {
    let room = usize::try_from(room as c_int).map_err(|_| libc::EINVAL)?;
    let mut address = [0; size_of::<sockaddr_ll>()];
    let length = put_address(sender, &mut address);
    match memory::write(to.cast(), &address[..room.min(length)]) {
        true => Ok(length as socklen_t),
        false => Err(libc::EFAULT),
    }
}

/// An address as the kernel tells it; how long it is.
fn put_address(sender: &Sender, to: &mut [u8; size_of::<sockaddr_ll>()]) -> usize {
    match sender {
        Sender::Internet(source) => {
            to[..2].copy_from_slice(&(libc::AF_INET as libc::sa_family_t).to_ne_bytes());
            to[2..4].copy_from_slice(&source.port().to_be_bytes());
            to[4..8].copy_from_slice(&source.ip().octets());
            size_of::<sockaddr_in>()
        }
        Sender::Station(station) => {
            let cable = &station.cable;
            to[..2].copy_from_slice(&(libc::AF_PACKET as libc::sa_family_t).to_ne_bytes());
            to[2..4].copy_from_slice(&cable.ethertype.get().to_be_bytes());
            to[4..8].copy_from_slice(&cable.interface_index.to_ne_bytes());
            to[8..10].copy_from_slice(&libc::ARPHRD_ETHER.to_ne_bytes());
            to[10] = station.kind;
            to[11] = station.address.0.len() as u8;
            to[12..18].copy_from_slice(&station.address.0);
            size_of::<sockaddr_ll>()
        }
    }
}

// `put_address` writes the fields where they are.
const _: () =
    assert!(offset_of!(sockaddr_in, sin_port) == 2 && offset_of!(sockaddr_in, sin_addr) == 4);
const _: () = assert!(
    offset_of!(sockaddr_ll, sll_protocol) == 2
        && offset_of!(sockaddr_ll, sll_ifindex) == 4
        && offset_of!(sockaddr_ll, sll_hatype) == 8
        && offset_of!(sockaddr_ll, sll_pkttype) == 10
        && offset_of!(sockaddr_ll, sll_halen) == 11
        && offset_of!(sockaddr_ll, sll_addr) == 12
);

/// readv(2).
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn readv(fd: c_int, parts: *const iovec, count: c_int) -> isize {
    let (Some(place), Ok(parts_count)) = (table::place(fd), usize::try_from(count)) else {
        // SAFETY: the caller's promise.
        return unsafe { next::readv(fd, parts, count) };
    };
    let total = room_of(parts, parts_count);
    if total.is_none_or(|total| total == 0) {
        // SAFETY: the caller's promise.
        return unsafe { next::readv(fd, parts, count) };
    }
    let kernel = |flags: c_int| {
        // SAFETY: all bytes zero is a valid msghdr.
        let mut message: msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = parts.cast_mut();
        message.msg_iovlen = parts_count;
        // SAFETY: the caller's promise about the parts; nothing else is asked for.
        unsafe { next::recvmsg(fd, &raw mut message, flags) }
    };
    receive(fd, place, 0, kernel, |bytes, _, _, _| {
        scatter(bytes, parts, parts_count).map(|taken| taken as isize)
    })
}

/// Copies a datagram to several parts; how much of it there was room for.
fn scatter(bytes: &[u8], parts: *const iovec, count: usize) -> Result<usize, c_int> {
    let mut rest = bytes;
    for index in 0..count {
        let part = memory::read(parts.wrapping_add(index)).ok_or(libc::EFAULT)?;
        let (now, later) = rest.split_at(rest.len().min(part.iov_len));
        if !memory::write(part.iov_base.cast(), now) {
            return Err(libc::EFAULT);
        }
        rest = later;
        if rest.is_empty() {
            break;
        }
    }
    Ok(bytes.len() - rest.len())
}

/// recvmsg(2).
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> isize {
    // SAFETY: the caller's promise.
    let kernel = |flags| unsafe { next::recvmsg(fd, message, flags) };
    let Some(place) = table::place(fd) else {
        return kernel(flags);
    };
    let Some(asked) = memory::read(message.cast_const()) else {
        return kernel(flags);
    };
    if asked.msg_iovlen > PARTS_MAX {
        return kernel(flags);
    }
    receive(
        fd,
        place,
        flags,
        kernel,
        |bytes, arrived, options, network| {
            let taken = scatter(bytes, asked.msg_iov, asked.msg_iovlen)?;
            let mut answer = asked;
            answer.msg_flags = flags & MSG_CMSG_CLOEXEC;
            if taken < bytes.len() {
                answer.msg_flags |= MSG_TRUNC;
            }
            if !asked.msg_name.is_null() {
                answer.msg_namelen =
                    tell_source(&arrived.sender, asked.msg_name.cast(), asked.msg_namelen)?;
            }
            tell_control(&mut answer, arrived, options, network)?;
            if !put_answer(message, &answer) {
                return Err(libc::EFAULT);
            }
            Ok(match flags & MSG_TRUNC != 0 {
                true => bytes.len(),
                false => taken,
            } as isize)
        },
    )
}

/// Writes the fields that recvmsg(2) changes, one by one: the structure has padding.
fn put_answer(to: *mut msghdr, answer: &msghdr) -> bool {
    let field = |offset: usize| to.cast::<u8>().wrapping_add(offset);
    let has_name = !answer.msg_name.is_null();
    (!has_name
        || memory::put(
            field(offset_of!(msghdr, msg_namelen)).cast(),
            &answer.msg_namelen,
        ))
        && memory::put(
            field(offset_of!(msghdr, msg_flags)).cast(),
            &answer.msg_flags,
        )
        && memory::put(
            field(offset_of!(msghdr, msg_controllen)).cast(),
            &answer.msg_controllen,
        )
}

/// Control messages in the order of the kernel: the arrival's time, then the address that it came to.
fn tell_control(
    answer: &mut msghdr,
    arrived: &Arrived,
    options: &Options,
    network: Option<&Network>,
) -> Result<(), c_int> {
    let mut control = Control {
        to: answer.msg_control.cast(),
        room: answer.msg_controllen,
        used: 0,
        is_cut: false,
    };
    if options.stamp != Stamp::None {
        let (seconds, nanoseconds) = real_time(arrived);
        let (kind, fraction) = match options.stamp {
            Stamp::Microseconds => (libc::SCM_TIMESTAMP, nanoseconds / 1000),
            _ => (libc::SCM_TIMESTAMPNS, nanoseconds),
        };
        let mut stamp = [0; 16];
        stamp[..8].copy_from_slice(&seconds.to_ne_bytes());
        stamp[8..].copy_from_slice(&fraction.to_ne_bytes());
        control.add(libc::SOL_SOCKET, kind, &stamp)?;
    }
    if let Some(network) = network.filter(|_| options.packet_info) {
        let mut info = [0; 12];
        info[..4].copy_from_slice(&network.interface_index.to_ne_bytes());
        info[4..8].copy_from_slice(&network.address.octets());
        info[8..].copy_from_slice(&network.address.octets());
        control.add(libc::SOL_IP, libc::IP_PKTINFO, &info)?;
    }
    if control.is_cut {
        answer.msg_flags |= MSG_CTRUNC;
    }
    answer.msg_controllen = control.used;
    Ok(())
}

/// Seconds and nanoseconds of an arrival since 1970, as SO_TIMESTAMPNS tells it.
fn real_time(arrived: &Arrived) -> (i64, i64) {
    let age = tautline::now().saturating_duration_since(arrived.arrival);
    let now = std::time::SystemTime::now();
    let since = now
        .checked_sub(age)
        .and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok())
        .unwrap_or_default();
    (since.as_secs() as i64, since.subsec_nanos().into())
}

/// The program's room for control messages (cmsg(3)).
struct Control {
    to: *mut u8,
    room: usize,
    used: usize,
    is_cut: bool,
}

impl Control {
    /// One message; what has no room is cut off, as put_cmsg() of the kernel does it.
    fn add(&mut self, level: c_int, kind: c_int, content: &[u8]) -> Result<(), c_int> {
        const HEAD_BYTES: usize = size_of::<libc::cmsghdr>();
        let left = self.room.saturating_sub(self.used);
        if self.to.is_null() || left < HEAD_BYTES {
            self.is_cut = true;
            return Ok(());
        }
        let length = (HEAD_BYTES + content.len()).min(left);
        self.is_cut |= length < HEAD_BYTES + content.len();
        let mut message = [0; HEAD_BYTES + 16];
        message[..8].copy_from_slice(&length.to_ne_bytes());
        message[8..12].copy_from_slice(&level.to_ne_bytes());
        message[12..16].copy_from_slice(&kind.to_ne_bytes());
        message[HEAD_BYTES..HEAD_BYTES + content.len()].copy_from_slice(content);
        if !memory::write(self.to.wrapping_add(self.used), &message[..length]) {
            return Err(libc::EFAULT);
        }
        let whole = (HEAD_BYTES + content.len()).next_multiple_of(align_of::<libc::cmsghdr>());
        self.used += whole.min(left);
        Ok(())
    }
}

/// recvmmsg(2). As the kernel does it, the timeout is looked at after each datagram and not while waiting for one.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    let time = match timeout.is_null() {
        true => None,
        false => waiting::time_of(timeout),
    };
    let is_wrong = !timeout.is_null() && time.is_none();
    if table::place(fd).is_none() || is_wrong || count == 0 {
        // SAFETY: the caller's promise.
        return unsafe { next::recvmmsg(fd, messages, count, flags, timeout) };
    }
    let deadline = waiting::deadline_after(time);
    let mut flags = flags;
    let is_for_one = flags & MSG_WAITFORONE != 0;
    flags &= !MSG_WAITFORONE;
    let kept = errno::get();
    let mut received = 0;
    // The kernel's own limit.
    while received < count.min(PARTS_MAX as c_uint) {
        let one = messages.wrapping_add(received as usize);
        // SAFETY: the caller's promise, of one message; the header comes first in it.
        let bytes = unsafe { recvmsg(fd, one.cast::<msghdr>(), flags) };
        if bytes < 0 {
            break;
        }
        let length = one.cast::<u8>().wrapping_add(offset_of!(mmsghdr, msg_len));
        if !memory::put(length.cast::<c_uint>(), &(bytes as c_uint)) {
            errno::set(libc::EFAULT);
            break;
        }
        received += 1;
        if is_for_one {
            flags |= MSG_DONTWAIT;
        }
        if waiting::left(deadline).is_some_and(|left| left.is_zero()) {
            break;
        }
    }
    if let Some(left) = waiting::left(deadline) {
        // The kernel writes what is left, too.
        let _written = memory::put(timeout, &waiting::c_time(left));
    }
    match received {
        0 => -1,
        received => {
            errno::set(kept);
            received as c_int
        }
    }
}
