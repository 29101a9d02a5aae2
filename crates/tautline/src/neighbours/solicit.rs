//! Asking the network, once, which station has an IPv4 address.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use tautline_proto::ip::arp;
use tautline_proto::wire::MacAddress;

use super::{NeighbourTableError, Own};
use crate::limits::SOLICIT_TIME_MAX;
use crate::sys::interface::{self, Interface};
use crate::sys::station::StationQuestion;
use crate::sys::{packet, socket, wait};

/// Shortest. Lower: zero, and nobody can answer.
const SOLICIT_TIME_MIN: Duration = Duration::from_millis(1);

/// Frames that one look takes from the socket. Lower: more looks on a network with much ARP. Higher: somebody
/// who floods us with it holds the looker up for longer.
const FRAMES_MAX: usize = 64;

/// A question that has been asked.
#[derive(Debug)]
pub(crate) struct Question {
    asked: Asked,
    own: MacAddress,
    ip: Ipv4Addr,
    deadline: Instant,
}

/// Process or kernel that asks the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AskedBy {
    /// This process, by a socket for whole frames. Needs CAP_NET_RAW.
    Itself,
    /// The kernel, whose neighbour table has the answer. Needs CAP_NET_ADMIN.
    Kernel,
}

#[derive(Debug)]
enum Asked {
    Itself(OwnedFd),
    Kernel(StationQuestion),
}

impl Question {
    /// Asks, if an answer can be expected. The socket belongs to the network namespace of the calling
    /// thread.
    pub(crate) fn ask(
        place: ArpInterface<'_>,
        ip: Ipv4Addr,
        timeout: Duration,
        asked_by: AskedBy,
    ) -> Result<Self, NeighbourTableError> {
        let ArpInterface {
            name,
            interface,
            own,
        } = place;
        if !(SOLICIT_TIME_MIN..=SOLICIT_TIME_MAX).contains(&timeout) {
            return Err(NeighbourTableError::BadTimeout { timeout });
        }
        own.check_ip(ip)?;
        if interface.mac.is_unspecified() {
            return Err(NeighbourTableError::NoArp {
                what: format!("`{name}` has no MAC address"),
            });
        }
        if own.ip.is_some_and(|own| !interface.is_near(own, ip)) {
            return Err(NeighbourTableError::OutsideNetwork {
                ip,
                interface: name.to_owned(),
            });
        }
        let asked = match asked_by {
            AskedBy::Itself => {
                let socket =
                    packet::of_ethertype(interface.index, arp::ETHERTYPE_ARP).map_err(not_asked)?;
                let frame = arp::question(interface.mac, own.ip, ip);
                socket::send(socket.as_fd(), &frame).map_err(not_asked)?;
                Asked::Itself(socket)
            }
            AskedBy::Kernel => {
                Asked::Kernel(StationQuestion::ask(interface.index, ip).map_err(not_asked)?)
            }
        };
        Ok(Self {
            asked,
            own: interface.mac,
            ip,
            deadline: Instant::now() + timeout,
        })
    }

    /// Readable when a look is worth while.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        match &self.asked {
            Asked::Itself(socket) => socket.as_fd(),
            Asked::Kernel(question) => question.descriptor(),
        }
    }

    /// How long the answer may take yet.
    pub(crate) fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// The answer, if it has come. Never waits.
    pub(crate) fn look(&self) -> Result<Option<MacAddress>, NeighbourTableError> {
        let socket = match &self.asked {
            Asked::Itself(socket) => socket,
            Asked::Kernel(question) => {
                let answer = question.look().map_err(not_asked)?;
                return Ok(answer.map(MacAddress));
            }
        };
        // As much as is looked at.
        let mut frame = [0; arp::FRAME_BYTES];
        for _ in 0..FRAMES_MAX {
            match rustix::net::recv(socket, &mut frame, rustix::net::RecvFlags::DONTWAIT) {
                Ok((bytes, _)) => {
                    let answer = arp::answer(&frame[..bytes.min(frame.len())], self.own, self.ip);
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
}

/// Asks the network of an interface once, by ARP, which station has an IPv4 address, and waits at most
/// `timeout` for the answer. Nothing is entered anywhere.
///
/// Needs CAP_NET_RAW. Whoever is on the network can answer; the first answer is taken.
///
/// ```no_run
/// use std::time::Duration;
///
/// let mac = tautline::neighbours::solicit("eth0", [10, 0, 0, 2].into(), Duration::from_secs(1))?;
/// println!("{mac}");
/// # Ok::<(), tautline::NeighbourTableError>(())
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
    let own = Own::of(Some(&found), found.ip);
    let place = ArpInterface {
        name: interface,
        interface: &found,
        own: &own,
    };
    ask(place, ip, timeout)
}

/// Interface that a question goes out through.
#[derive(Clone, Copy)]
pub(crate) struct ArpInterface<'a> {
    pub(crate) name: &'a str,
    pub(crate) interface: &'a Interface,
    pub(crate) own: &'a Own,
}

/// The same, where the interface is known.
pub(crate) fn ask(
    place: ArpInterface<'_>,
    ip: Ipv4Addr,
    timeout: Duration,
) -> Result<MacAddress, NeighbourTableError> {
    let question = Question::ask(place, ip, timeout, AskedBy::Itself)?;
    loop {
        if let Some(station) = question.look()? {
            return Ok(station);
        }
        let left = question.left();
        if left.is_zero() {
            return Err(NeighbourTableError::NoAnswer {
                ip,
                interface: place.name.to_owned(),
                waited: timeout,
            });
        }
        wait::readable(question.descriptor(), Some(left)).map_err(not_asked)?;
    }
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
