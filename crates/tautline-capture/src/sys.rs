//! System calls: a packet socket, clocks.
#![allow(unsafe_code)] // The control messages of a packet socket have no safe form.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::time::{ClockId, clock_gettime};

use tautline_state::socket::{self, statement};

use crate::batch::Way;

/// Now on `CLOCK_MONOTONIC`.
pub(crate) fn monotonic() -> u64 {
    nanos(ClockId::Monotonic)
}

/// Nanoseconds of a clock.
fn nanos(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Nanoseconds between the beginning of `CLOCK_MONOTONIC` and 1970. The best of a few attempts: between two readings
/// of clocks anything may run.
pub(crate) fn epoch_offset() -> u64 {
    const ATTEMPTS: usize = 8;
    let attempt = |_| {
        let before = nanos(ClockId::Monotonic);
        let real = nanos(ClockId::Realtime);
        let after = nanos(ClockId::Monotonic);
        (
            after - before,
            real.saturating_sub(before + (after - before) / 2),
        )
    };
    let best = (0..ATTEMPTS).map(attempt).min();
    best.map_or(0, |(_, offset)| offset)
}

/// A frame that a packet socket saw.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    /// Bytes of the frame; as many as the buffer takes are in it.
    pub(crate) length: usize,
    pub(crate) time_ns: u64,
    pub(crate) way: Way,
}

/// A packet socket that sees our frames among those that Linux handles on one interface.
#[derive(Debug)]
pub(crate) struct PacketSocket(OwnedFd);

impl PacketSocket {
    pub(crate) fn open(interface: u32, ethertype: u16) -> io::Result<Self> {
        let socket = socket::packet(interface, libc::ETH_P_ALL as u16, |socket| {
            socket::set_filter(socket, &our_frames(ethertype))?;
            let (level, stamps) = (libc::SOL_SOCKET, libc::SO_TIMESTAMPNS);
            socket::set_option(socket, level, stamps, &1i32)?;
            // Refused above the limit of the machine; then there is what there is.
            let _ = socket::set_option(socket, level, libc::SO_RCVBUFFORCE, &SOCKET_BYTES);
            Ok(())
        })?;
        Ok(Self(socket))
    }

    /// The next frame, if there is one.
    pub(crate) fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<Seen>> {
        // SAFETY: all bytes zero is a valid address and a valid head of a message.
        let (mut from, mut head): (libc::sockaddr_ll, libc::msghdr) = unsafe { std::mem::zeroed() };
        let mut part = libc::iovec {
            iov_base: buffer.as_mut_ptr().cast(),
            iov_len: buffer.len(),
        };
        let mut control = [0u64; 8];
        head.msg_name = (&raw mut from).cast();
        head.msg_namelen = size_of_val(&from) as libc::socklen_t;
        head.msg_iov = &raw mut part;
        head.msg_iovlen = 1;
        head.msg_control = control.as_mut_ptr().cast();
        head.msg_controllen = size_of_val(&control) as _;
        // SAFETY: every address in the head is writable for the size that stands beside it, and lives.
        let length = unsafe {
            libc::recvmsg(
                self.0.as_raw_fd(),
                &raw mut head,
                libc::MSG_DONTWAIT | libc::MSG_TRUNC,
            )
        };
        if length < 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
                _ => Err(error),
            };
        }
        Ok(Some(Seen {
            length: length as usize,
            time_ns: stamp(&head).unwrap_or_else(|| nanos(ClockId::Realtime)),
            way: match from.sll_pkttype {
                libc::PACKET_OUTGOING => Way::Sent,
                _ => Way::Received,
            },
        }))
    }

    /// Frames that found no room since the last call.
    pub(crate) fn lost(&self) -> u64 {
        let mut statistics = [0u32; 2];
        let mut bytes = size_of_val(&statistics) as libc::socklen_t;
        // SAFETY: the answer, `struct tpacket_stats`, is two words, and there is room for them.
        let result = unsafe {
            libc::getsockopt(
                self.0.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                statistics.as_mut_ptr().cast(),
                &raw mut bytes,
            )
        };
        if result == 0 { statistics[1].into() } else { 0 }
    }
}

/// Bytes that wait for the reader. Lower loses frames while it sleeps; higher keeps memory of the kernel.
const SOCKET_BYTES: libc::c_int = 4 << 20;

/// The kernel's time of arrival.
fn stamp(head: &libc::msghdr) -> Option<u64> {
    // SAFETY: the kernel has filled the head; the macros stay within the bytes of control messages that it names.
    unsafe {
        let mut message = libc::CMSG_FIRSTHDR(head);
        while !message.is_null() {
            if (*message).cmsg_level == libc::SOL_SOCKET
                && (*message).cmsg_type == libc::SCM_TIMESTAMPNS
            {
                let time: libc::timespec = libc::CMSG_DATA(message)
                    .cast::<libc::timespec>()
                    .read_unaligned();
                return Some(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64);
            }
            message = libc::CMSG_NXTHDR(head, message);
        }
    }
    None
}

/// Whether the filter of the packet socket keeps a frame, as far as its bytes go.
pub(crate) fn is_kept_by_socket(frame: &[u8], ethertype: u16) -> bool {
    use tautline_proto::wire::{PORT_MAX, UDP_PORT_BASE};
    let half = |at: usize| Some(u16::from_be_bytes(*frame.get(at..)?.first_chunk()?));
    let has_our_port = |at: usize| {
        half(at).is_some_and(|port| (UDP_PORT_BASE + 1..=UDP_PORT_BASE + PORT_MAX).contains(&port))
    };
    match half(12) {
        Some(of) if of == ethertype => true,
        Some(of) if i32::from(of) == libc::ETH_P_IP => {
            let is_udp = frame.get(23).map(|of| i32::from(*of)) == Some(libc::IPPROTO_UDP);
            let is_first = half(20).is_some_and(|fragment| fragment & 0x1fff == 0);
            let ports = 14 + 4 * usize::from(frame.get(14).copied().unwrap_or(0) & 0xf);
            is_udp && is_first && (has_our_port(ports) || has_our_port(ports + 2))
        }
        _ => false,
    }
}

/// Keeps our frames: our EtherType, and UDP over IPv4 from or to one of our UDP ports. A tag is not in the bytes here.
fn our_frames(ethertype: u16) -> [libc::sock_filter; 16] {
    use tautline_proto::wire::{PORT_MAX, UDP_PORT_BASE};
    let load = |size: u32, mode: u32, at: u32| statement(libc::BPF_LD | size | mode, 0, 0, at);
    let jump = |test: u32, value: u32, yes: u8, no: u8| {
        statement(libc::BPF_JMP | test | libc::BPF_K, yes, no, value)
    };
    let give = |bytes: u32| statement(libc::BPF_RET | libc::BPF_K, 0, 0, bytes);
    let first = u32::from(UDP_PORT_BASE) + 1;
    let last = u32::from(UDP_PORT_BASE + PORT_MAX);
    const KEEP: u8 = 14;
    const DROP: u8 = 15;
    // Jumps count from the instruction after them.
    let to = |from: u8, place: u8| place - from - 1;
    [
        load(libc::BPF_H, libc::BPF_ABS, 12),
        jump(libc::BPF_JEQ, ethertype.into(), to(1, KEEP), 0),
        jump(libc::BPF_JEQ, libc::ETH_P_IP as u32, 0, to(2, DROP)),
        load(libc::BPF_B, libc::BPF_ABS, 23),
        jump(libc::BPF_JEQ, libc::IPPROTO_UDP as u32, 0, to(4, DROP)),
        load(libc::BPF_H, libc::BPF_ABS, 20),
        jump(libc::BPF_JSET, 0x1fff, to(6, DROP), 0), // a later fragment has no ports
        statement(libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH, 0, 0, 14),
        load(libc::BPF_H, libc::BPF_IND, 14),
        jump(libc::BPF_JGE, first, 0, to(9, 11)),
        jump(libc::BPF_JGT, last, 0, to(10, KEEP)),
        load(libc::BPF_H, libc::BPF_IND, 16),
        jump(libc::BPF_JGE, first, 0, to(12, DROP)),
        jump(libc::BPF_JGT, last, to(13, DROP), to(13, KEEP)),
        give(u32::MAX),
        give(0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_of_ours_are_known_by_their_bytes() {
        let mut frame = [0; 60];
        assert!(!is_kept_by_socket(&frame, 0x88B5));
        frame[12..14].copy_from_slice(&[0x88, 0xB5]);
        assert!(is_kept_by_socket(&frame, 0x88B5));
        frame[12..14].copy_from_slice(&[0x08, 0x00]);
        (frame[14], frame[23]) = (0x45, 17);
        assert!(!is_kept_by_socket(&frame, 0x88B5));
        let ours = tautline_proto::wire::UDP_PORT_BASE + 7;
        for ports in [34, 36] {
            frame[ports..ports + 2].copy_from_slice(&ours.to_be_bytes());
            assert!(is_kept_by_socket(&frame, 0x88B5), "{ports}");
            frame[21] = 1; // a later fragment
            assert!(!is_kept_by_socket(&frame, 0x88B5), "{ports}");
            (frame[21], frame[ports], frame[ports + 1]) = (0, 0, 0);
        }
        for length in 0..frame.len() {
            is_kept_by_socket(&frame[..length], 0x88B5);
        }
    }
}
