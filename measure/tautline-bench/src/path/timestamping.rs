//! The kernel's own stamps on a packet that passes its layers (Documentation/networking/timestamping.rst), on
//! CLOCK_REALTIME. One kind at a time: a stamp on the way out costs the packet some 0.1 µs, and with two of them the
//! second would show the cost of the first.

use std::io;
use std::os::fd::AsFd;

use tautline_testbed::sys::{self, StampKind};

use super::Stamp;

/// A point on the way of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StampPoint {
    /// Before the queueing discipline, behind the protocol layers.
    Queue,
    /// The driver takes it.
    Driver,
    /// The receiving stack takes it, before the protocol layers.
    Arrival,
}

/// Has everything that a socket sends, or receives, stamped at one point.
pub fn ask(socket: &impl AsFd, point: StampPoint) -> io::Result<()> {
    let kind = match point {
        StampPoint::Queue => StampKind::EntersQueue,
        StampPoint::Driver => StampKind::EntersDriver,
        StampPoint::Arrival => StampKind::Arrives,
    };
    sys::stamp_packets(socket, kind)
}

/// The stamp of what was sent, if one waits.
pub fn of_sent(socket: &impl AsFd) -> io::Result<Option<Stamp>> {
    let taken = sys::receive_stamped(socket, &mut [], true)?;
    Ok(taken.and_then(|(_, stamp)| stamp).map(Stamp::Realtime))
}

/// A datagram that waits, and its stamp in nanoseconds; how long it is.
pub fn receive(socket: &impl AsFd, buffer: &mut [u8]) -> io::Result<Option<(usize, Option<u64>)>> {
    sys::receive_stamped(socket, buffer, false)
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::thread;
    use std::time::Duration;

    use tautline_testbed::sys::realtime_ns;

    use super::*;

    /// Sends a datagram whose stamp is asked for at a point; its stamp, if it has one.
    fn stamp_of_one(point: StampPoint, [a, b]: [&UdpSocket; 2]) -> Option<u64> {
        a.send(b"stamped").unwrap();
        b.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        b.peek(&mut [0; 16]).unwrap();
        let mut buffer = [0; 16];
        let (length, stamp) = receive(b, &mut buffer).unwrap().unwrap();
        assert_eq!(&buffer[..length], b"stamped");
        match point {
            StampPoint::Arrival => stamp,
            _ => of_sent(a).unwrap().map(|stamp| match stamp {
                Stamp::Realtime(ns) | Stamp::Monotonic(ns) => ns,
            }),
        }
    }

    #[test]
    fn every_point_stamps_between_sending_and_receiving() {
        for point in [StampPoint::Queue, StampPoint::Driver, StampPoint::Arrival] {
            let [a, b] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
            a.connect(b.local_addr().unwrap()).unwrap();
            ask(if point == StampPoint::Arrival { &b } else { &a }, point).unwrap();
            let before = realtime_ns();
            // The kernel begins to stamp arrivals some time after it was asked to (net_enable_timestamp).
            let stamp = (0..1_000).find_map(|_| {
                let stamp = stamp_of_one(point, [&a, &b]);
                if stamp.is_none() {
                    thread::sleep(Duration::from_millis(5));
                }
                stamp
            });
            let stamp = stamp.unwrap_or_else(|| panic!("{point:?} has no stamp"));
            assert!(stamp >= before && stamp <= realtime_ns(), "{point:?}");
            assert_eq!(of_sent(&a).unwrap(), None, "one stamp");
        }
    }
}
