//! Taps: interfaces whose frames a process writes to a descriptor. Here they serve as descriptors that can do nothing
//! but send: a tap is no socket, so it joins nothing, maps nothing, and reaches no other interface.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use tautline_state::netlink::Route;

use super::interface::about_link;
use super::socket::OutFrame;

/// Bytes of frames on their way that one tap may hold before a write is refused: about 400 large ones. Lower: a burst
/// into a driver with a long ring is refused although there is room. Higher: a sender that floods an interface which
/// has stopped holds more memory, which counts as its own.
const SEND_BUFFER_BYTES: libc::c_int = 1 << 20;
/// Bytes of the kernel's for the interface itself and for its port's doorbell: 190 KiB and 16 KiB on Linux 6.18.
const INTERFACE_BYTES: u64 = 208 << 10;
/// Memory that a tap takes at most.
pub(crate) const BYTES: u64 = SEND_BUFFER_BYTES as u64 + INTERFACE_BYTES;

/// Makes a tap of this index in the calling thread's namespace, with an XDP program on it that runs for each frame and
/// stays when this process ends. Only root can attach another descriptor to it.
///
/// Frames take the way with a packet buffer of the kernel, not the shorter one past it: because the send buffer is
/// limited (`tun_can_build_skb`). The shorter one ends at drivers' `ndo_xdp_xmit`, which not every driver has and which
/// a veth has only while its peer polls.
///
/// # Errors
/// `ErrorKind::NotFound` without `/dev/net/tun`, `ErrorKind::ResourceBusy` or `AlreadyExists` if the index is taken.
pub(crate) fn create(index: u32, program: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let tap = rustix::fs::open("/dev/net/tun", flags, Mode::empty())?;
    let index_value: libc::c_uint = index;
    let send_buffer_bytes = SEND_BUFFER_BYTES;
    // SAFETY: TUNSETIFINDEX and TUNSETSNDBUF read an integer, which lives through the call; TUNSETIFF reads and
    // writes an ifreq; TUNSETOWNER takes a number.
    unsafe {
        ioctl(&tap, libc::TUNSETIFINDEX, &raw const index_value as usize)?;
        let mut request: libc::ifreq = std::mem::zeroed();
        request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as libc::c_short;
        ioctl(&tap, libc::TUNSETIFF, &raw mut request as usize)?;
        ioctl(&tap, libc::TUNSETOWNER, 0)?;
        ioctl(
            &tap,
            libc::TUNSETSNDBUF,
            &raw const send_buffer_bytes as usize,
        )?;
    }
    // linux/if_link.h
    const IFLA_AF_SPEC: u16 = 26;
    const IFLA_INET6_ADDR_GEN_MODE: u16 = 8;
    const IN6_ADDR_GEN_MODE_NONE: u8 = 1;
    let mut without_addresses = about_link(RTM_SETLINK, index, 0)
        .nest(IFLA_AF_SPEC)
        .nest(libc::AF_INET6 as u16)
        .with(IFLA_INET6_ADDR_GEN_MODE, &[IN6_ADDR_GEN_MODE_NONE])
        .end()
        .end();
    let mut route = Route::open()?;
    // With an address it would ask for routers, and a process with the descriptor could read that.
    let _absent_without_ipv6 = route.tell(&mut without_addresses);
    const IFLA_XDP: u16 = 43;
    const IFLA_XDP_FD: u16 = 1;
    const IFLA_XDP_FLAGS: u16 = 3;
    /// `XDP_FLAGS_UPDATE_IF_NOEXIST | XDP_FLAGS_DRV_MODE`.
    const XDP_FLAGS: u32 = 1 | 1 << 2;
    let mut up = about_link(RTM_SETLINK, index, libc::IFF_UP)
        .nest(IFLA_XDP)
        .with(IFLA_XDP_FD, &program.as_raw_fd().to_ne_bytes())
        .with(IFLA_XDP_FLAGS, &XDP_FLAGS.to_ne_bytes())
        .end();
    route.tell(&mut up)?;
    Ok(tap)
}

const RTM_SETLINK: u16 = 19;

/// Deletes the tap of this index in the calling thread's namespace: its descriptor is of no use any more. `Ok` if there
/// is none.
pub(crate) fn delete(index: u32) -> io::Result<()> {
    const RTM_DELLINK: u16 = 17;
    match Route::open()?.tell(&mut about_link(RTM_DELLINK, index, 0)) {
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(()),
        done => done,
    }
}

/// Sends one frame. Never waits.
#[inline]
pub(crate) fn send(tap: BorrowedFd<'_>, frame: &[u8]) -> io::Result<()> {
    rustix::io::write(tap, frame)?;
    Ok(())
}

/// Sends several frames, each with a call of its own, because a tap takes one at a time; returns how many, from the
/// first on, it took: at least one. Never waits.
pub(crate) fn send_many(tap: BorrowedFd<'_>, all: &[OutFrame<'_>]) -> io::Result<usize> {
    for (index, frame) in all.iter().enumerate() {
        let parts = [frame.head, frame.payload].map(io::IoSlice::new);
        match rustix::io::writev(tap, &parts) {
            Ok(_) => {}
            Err(error) if index == 0 => return Err(error.into()),
            Err(_) => return Ok(index),
        }
    }
    Ok(all.len())
}

/// # Safety
/// `argument` must be what `request` takes: a number, or the address of what it reads or writes.
unsafe fn ioctl(tap: &OwnedFd, request: libc::Ioctl, argument: usize) -> io::Result<()> {
    // SAFETY: the caller guarantees the argument.
    let result = unsafe { libc::ioctl(tap.as_fd().as_raw_fd(), request, argument) };
    super::check(result).map(drop)
}
