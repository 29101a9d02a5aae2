//! The kernel's own stamps on a packet that passes its layers (Documentation/networking/timestamping.rst), on
//! CLOCK_REALTIME. One kind at a time: a stamp on the way out costs the packet some 0.1 µs, and with two of them the
//! second would show the cost of the first.

use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd};

use nix::errno::Errno;
use nix::sys::socket::{
    ControlMessageOwned, MsgFlags, TimestampingFlag, recvmsg, setsockopt, sockopt,
};

/// When a packet comes to the queueing discipline, as `SOF_TIMESTAMPING_TX_SCHED` of linux/net_tstamp.h.
const ENTERS_QUEUE: u32 = 1 << 8;
/// Room for a stamp, the error that carries it and its address.
const CONTROL_BYTES: usize = 256;

/// A place on the way of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Before the queueing discipline, behind the protocol layers.
    Queue,
    /// The driver takes it.
    Driver,
    /// The receiving stack takes it, before the protocol layers.
    Arrival,
}

/// Has everything that a socket sends, or receives, stamped at one place.
pub(super) fn ask(socket: &impl AsFd, place: Place) -> io::Result<()> {
    let kind = match place {
        Place::Queue => TimestampingFlag::from_bits_retain(ENTERS_QUEUE),
        Place::Driver => TimestampingFlag::SOF_TIMESTAMPING_TX_SOFTWARE,
        Place::Arrival => TimestampingFlag::SOF_TIMESTAMPING_RX_SOFTWARE,
    };
    let flags = kind
        | TimestampingFlag::SOF_TIMESTAMPING_SOFTWARE
        | TimestampingFlag::SOF_TIMESTAMPING_OPT_TSONLY;
    Ok(setsockopt(socket, sockopt::Timestamping, &flags)?)
}

/// The stamp of what was sent, if one waits; nanoseconds.
pub(super) fn of_sent(socket: &impl AsFd) -> io::Result<Option<u64>> {
    let mut control = [0; CONTROL_BYTES];
    let flags = MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT;
    let taken = take(socket, &mut [], &mut control, flags)?;
    Ok(taken.and_then(|(_, stamp)| stamp))
}

/// A datagram that waits, and its stamp in nanoseconds; how long it is.
pub(super) fn receive(
    socket: &impl AsFd,
    buffer: &mut [u8],
) -> io::Result<Option<(usize, Option<u64>)>> {
    let mut control = [0; CONTROL_BYTES];
    take(socket, buffer, &mut control, MsgFlags::MSG_DONTWAIT)
}

fn take(
    socket: &impl AsFd,
    buffer: &mut [u8],
    control: &mut [u8],
    flags: MsgFlags,
) -> io::Result<Option<(usize, Option<u64>)>> {
    let descriptor = socket.as_fd().as_raw_fd();
    let mut parts = [IoSliceMut::new(buffer)];
    let message = match recvmsg::<()>(descriptor, &mut parts, Some(control), flags) {
        Ok(message) => message,
        Err(Errno::EAGAIN | Errno::EINTR) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let stamp = message.cmsgs()?.find_map(|one| match one {
        ControlMessageOwned::ScmTimestampsns(stamps) => {
            let at = stamps.system;
            Some(at.tv_sec() as u64 * 1_000_000_000 + at.tv_nsec() as u64)
        }
        _ => None,
    });
    Ok(Some((message.bytes, stamp)))
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::thread;
    use std::time::Duration;

    use tautline_testbed::sys::realtime_ns;

    use super::*;

    /// Sends a datagram whose stamp is asked for at a place; its stamp, if it has one.
    fn stamp_of_one(place: Place, [a, b]: [&UdpSocket; 2]) -> Option<u64> {
        a.send(b"stamped").unwrap();
        b.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        b.peek(&mut [0; 16]).unwrap();
        let mut buffer = [0; 16];
        let (length, stamp) = receive(b, &mut buffer).unwrap().unwrap();
        assert_eq!(&buffer[..length], b"stamped");
        match place {
            Place::Arrival => stamp,
            _ => of_sent(a).unwrap(),
        }
    }

    #[test]
    fn every_place_stamps_between_sending_and_receiving() {
        for place in [Place::Queue, Place::Driver, Place::Arrival] {
            let [a, b] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
            a.connect(b.local_addr().unwrap()).unwrap();
            ask(if place == Place::Arrival { &b } else { &a }, place).unwrap();
            let before = realtime_ns();
            // The kernel begins to stamp arrivals some time after it was asked to (net_enable_timestamp).
            let stamp = (0..1_000).find_map(|_| {
                let stamp = stamp_of_one(place, [&a, &b]);
                if stamp.is_none() {
                    thread::sleep(Duration::from_millis(5));
                }
                stamp
            });
            let stamp = stamp.unwrap_or_else(|| panic!("{place:?} has no stamp"));
            assert!(stamp >= before && stamp <= realtime_ns(), "{place:?}");
            assert_eq!(of_sent(&a).unwrap(), None, "one stamp");
        }
    }
}
