//! Asking the network, once, which station has an IPv4 address.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use tautline_proto::ip::arp;
use tautline_proto::wire::MacAddress;

use super::{NeighbourTableError, Own};
use crate::limits::SOLICIT_TIME_MAX;
use crate::sys::interface;
use crate::sys::{socket, wait};

/// Shortest. Lower: zero, and no answer comes in time.
const SOLICIT_TIME_MIN: Duration = Duration::from_millis(1);

/// Frames that one look takes from the socket. Lower: more looks on a network with much ARP. Higher: a host
/// that floods us with it delays the looker for longer.
const FRAMES_MAX: usize = 64;

/// Asks the network of an interface once, by ARP, which station has an IPv4 address, and waits at most
/// `timeout` for the answer. Nothing is entered anywhere.
///
/// Needs CAP_NET_RAW. Any host on the network can answer; the first answer is taken.
///
/// ```no_run
/// use std::time::Duration;
///
/// let mac = tautline::neighbours::solicit("eth0", [10, 0, 0, 2].into(), Duration::from_secs(1))?;
/// println!("{mac}");
/// # Ok::<(), tautline::neighbours::NeighbourTableError>(())
/// ```
///
/// # Errors
/// [`NeighbourTableError`].
pub fn solicit(
    interface: &str,
    ip: Ipv4Addr,
    timeout: Duration,
) -> Result<MacAddress, NeighbourTableError> {
    let found = interface::query(interface).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => NeighbourTableError::NoSuchInterface {
            name: interface.to_owned(),
            known: interface::names().unwrap_or_default(),
        },
        _ => NeighbourTableError::Refused {
            doing: "asking the kernel about the interface",
            source,
        },
    })?;
    if !(SOLICIT_TIME_MIN..=SOLICIT_TIME_MAX).contains(&timeout) {
        return Err(NeighbourTableError::BadTimeout { timeout });
    }
    Own::of(Some(&found), found.ip).check_ip(ip)?;
    if found.mac.is_unspecified() {
        return Err(NeighbourTableError::NoArp {
            what: format!("`{interface}` has no MAC address"),
        });
    }
    if found.ip.is_some_and(|own| !found.is_near(own, ip)) {
        return Err(NeighbourTableError::OutsideNetwork {
            ip,
            interface: interface.to_owned(),
        });
    }
    let deadline = Instant::now() + timeout;
    let socket = socket::packet(found.index, arp::ETHERTYPE_ARP, |_| Ok(())).map_err(not_asked)?;
    let frame = arp::question(found.mac, found.ip, ip);
    socket::send(socket.as_fd(), &frame).map_err(not_asked)?;
    loop {
        if let Some(station) = answer(&socket, found.mac, ip)? {
            return Ok(station);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(NeighbourTableError::NoAnswer {
                ip,
                interface: interface.to_owned(),
                waited: timeout,
            });
        }
        wait::readable(socket.as_fd(), Some(left)).map_err(not_asked)?;
    }
}

/// The answer to `own`, if it has come. Never waits.
fn answer(
    socket: &OwnedFd,
    own: MacAddress,
    ip: Ipv4Addr,
) -> Result<Option<MacAddress>, NeighbourTableError> {
    // As much as is looked at.
    let mut frame = [0; arp::FRAME_BYTES];
    for _ in 0..FRAMES_MAX {
        match rustix::net::recv(socket, &mut frame, rustix::net::RecvFlags::DONTWAIT) {
            Ok((bytes, _)) => {
                let answer = arp::answer(&frame[..bytes.min(frame.len())], own, ip);
                if answer.is_some() {
                    return Ok(answer);
                }
            }
            Err(rustix::io::Errno::AGAIN) => return Ok(None),
            Err(error) => return Err(not_asked(error.into())),
        }
    }
    Ok(None)
}

fn not_asked(source: io::Error) -> NeighbourTableError {
    match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => NeighbourTableError::NotPermitted,
        _ => NeighbourTableError::Refused {
            doing: "asking the network by ARP",
            source,
        },
    }
}
