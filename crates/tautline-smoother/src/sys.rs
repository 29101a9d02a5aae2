//! System calls that need unsafe code or care: clocks, and the socket of grants and reports.
#![allow(unsafe_code)] // the speed of a link has no safe form

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tautline_proto::smoother::message::{KIND_GRANT, PORT};
use tautline_proto::time::Instant;
use tautline_proto::wire::{ETHERTYPE_DEFAULT, ethernet};
use tautline_state::socket::{self, statement};

/// Bytes of the longest frame that matters: a report. The rest of a longer one is not read.
pub(crate) const FRAME_BYTES: usize = 128;

fn nanos(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Now on `CLOCK_MONOTONIC`, which the programs use too.
pub(crate) fn now() -> Instant {
    Instant::from_nanos(nanos(ClockId::Monotonic))
}

/// Sleeps until a time of that clock, or until a signal comes.
pub(crate) fn sleep_until(time: Instant) {
    let nanos = time.as_nanos();
    let time = rustix::time::Timespec {
        tv_sec: (nanos / 1_000_000_000).cast_signed(),
        tv_nsec: (nanos % 1_000_000_000) as _,
    };
    let _interrupted = rustix::thread::clock_nanosleep_absolute(ClockId::Monotonic, &time);
}

/// CPU time of the calling thread in nanoseconds.
pub(crate) fn thread_cpu_ns() -> u64 {
    nanos(ClockId::ThreadCPUTime)
}

/// Name of an interface of the calling thread's network namespace. The kernel answers without its lock for interfaces.
pub(crate) fn interface_name(index: u32) -> Option<String> {
    let socket = std::net::UdpSocket::bind((std::net::Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    rustix::net::netdevice::index_to_name(&socket, index).ok()
}

/// `struct ethtool_cmd` (linux/ethtool.h), as far as its second half of the speed.
#[repr(C)]
#[derive(Default)]
struct EthtoolCommand {
    command: u32,
    modes: [u32; 2],
    speed_low: u16,
    ports: [u8; 6],
    packets: [u32; 2],
    speed_high: u16,
    wiring: [u8; 2],
    rest: [u32; 3],
}

const _: () = assert!(size_of::<EthtoolCommand>() == 44);

const ETHTOOL_GSET: u32 = 1;
const SIOCETHTOOL: libc::Ioctl = 0x8946;

/// Speed of an interface's link in bits a second; `None` if it has none, or has no link.
pub(crate) fn link_speed_bps(interface: u32) -> Option<u64> {
    let socket = std::net::UdpSocket::bind((std::net::Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    let name = rustix::net::netdevice::index_to_name(&socket, interface).ok()?;
    let mut command = EthtoolCommand {
        command: ETHTOOL_GSET,
        ..EthtoolCommand::default()
    };
    // SAFETY: all bytes zero is a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let places = request.ifr_name.iter_mut().take(libc::IFNAMSIZ - 1);
    for (place, byte) in places.zip(name.bytes()) {
        *place = byte as libc::c_char;
    }
    request.ifr_ifru.ifru_data = (&raw mut command).cast();
    // SAFETY: the request holds the address of `command`, which the kernel fills with its 44 bytes; both live through
    // the call.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) };
    if result != 0 {
        return None;
    }
    let megabits = u32::from(command.speed_high) << 16 | u32::from(command.speed_low);
    // 65,535 in the lower half, or in both: unknown.
    let is_known = megabits != 0 && megabits & 0xffff != 0xffff;
    is_known.then(|| u64::from(megabits) * 1_000_000)
}

/// Messages that a [`ControlSocket`] takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Takes {
    Grants,
    /// Reports, and whatever is no message, which is counted with them.
    Reports,
}

/// A packet socket for grants or reports on one interface, which sends past the queueing discipline.
#[derive(Debug)]
pub(crate) struct ControlSocket {
    socket: OwnedFd,
}

impl ControlSocket {
    pub(crate) fn open(interface: u32, takes: Takes) -> io::Result<Self> {
        let socket = socket::packet(interface, ETHERTYPE_DEFAULT, |socket| {
            socket::set_filter(socket, &filter(takes))?;
            let bypass = libc::PACKET_QDISC_BYPASS;
            socket::set_option(socket, libc::SOL_PACKET, bypass, &1i32)?;
            socket::set_option(socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, &1i32)
        })?;
        Ok(Self { socket })
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub(crate) fn send(&self, frame: &[u8]) -> io::Result<()> {
        rustix::net::send(&self.socket, frame, rustix::net::SendFlags::DONTWAIT)?;
        Ok(())
    }

    /// The next frame and when it arrived; `None` if there is none.
    pub(crate) fn receive(
        &self,
        frame: &mut [u8; FRAME_BYTES],
    ) -> io::Result<Option<(usize, Instant)>> {
        use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
        let mut ancillary = nix::cmsg_space!(libc::timespec);
        let mut parts = [io::IoSliceMut::new(frame)];
        let received = recvmsg::<()>(
            self.socket.as_raw_fd(),
            &mut parts,
            Some(&mut ancillary),
            MsgFlags::MSG_DONTWAIT,
        );
        let message = match received {
            Err(nix::errno::Errno::EAGAIN) => return Ok(None),
            message => message?,
        };
        let mut age = Duration::ZERO;
        for part in message.cmsgs()? {
            if let ControlMessageOwned::ScmTimestampns(stamp) = part {
                let stamp = stamp.tv_sec() as u64 * 1_000_000_000 + stamp.tv_nsec() as u64;
                // A stamp is on the clock that is set; a step of it must not make a message old.
                let nanos = nanos(ClockId::Realtime).saturating_sub(stamp);
                age = Duration::from_nanos(nanos).min(AGE_MAX);
            }
        }
        let arrival = now().as_nanos().saturating_sub(age.as_nanos() as u64);
        Ok(Some((message.bytes, Instant::from_nanos(arrival))))
    }
}

/// Longest time that a frame is believed to have waited for this process.
const AGE_MAX: Duration = Duration::from_millis(100);

/// Keeps frames to our port that came to us, and not those that leave or pass by; of them the grants, or the others.
fn filter(takes: Takes) -> [libc::sock_filter; 9] {
    let packet_type = (libc::SKF_AD_OFF + libc::SKF_AD_PKTTYPE) as u32;
    let load_byte = libc::BPF_LD | libc::BPF_B | libc::BPF_ABS;
    let load_half = libc::BPF_LD | libc::BPF_H | libc::BPF_ABS;
    let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let keep = libc::BPF_RET | libc::BPF_K;
    let (of_grant, of_other) = match takes {
        Takes::Grants => (FRAME_BYTES as u32, 0),
        Takes::Reports => (0, FRAME_BYTES as u32),
    };
    [
        statement(load_byte, 0, 0, packet_type),
        statement(equal, 0, 4, u32::from(libc::PACKET_HOST)),
        statement(load_half, 0, 0, 14),
        statement(equal, 0, 2, u32::from(PORT)),
        statement(load_byte, 0, 0, ethernet::HEADERS_BYTES as u32),
        statement(equal, 1, 2, u32::from(KIND_GRANT)),
        statement(keep, 0, 0, 0),
        statement(keep, 0, 0, of_grant),
        statement(keep, 0, 0, of_other),
    ]
}
