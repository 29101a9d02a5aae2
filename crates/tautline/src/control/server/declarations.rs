//! Declarations of clients' ports in the Ethernet form, passed on between the network and a socket of each port: a
//! client has no packet socket of its own. They are not read here; what a client sends is checked for its EtherType,
//! its MAC address and its port.
//!
//! Each socket is looked at now and then, and a bounded number of frames is taken from it. So a flood, from wherever,
//! takes little of the control process's time.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::epoll;
use tautline_proto::wire::declaration::ethertype as ethertype_of_declarations;
use tautline_proto::wire::{MacAddress, PortNumber};

use super::super::policy::AnyPort;
use super::{DECLARED, DECLARING, Granted, Server, no};
use crate::client::protocol::{Reason, Refusal, Reply};
use crate::link::bpf::demux::Setup;
use crate::link::declared::FRAME_BYTES_MAX;
use crate::sys::{packet, socket, unix};
use tautline_state::foreign::ForeignSocket;

/// Frames that are taken from one socket at once. Lower: a fleet is heard more slowly. Higher: clients wait longer.
const FRAMES_AT_ONCE: usize = 16;
/// Time for which a socket is not looked at again. Lower: a flood takes more time. Higher: a text of several frames
/// fills the socket.
const REST: Duration = Duration::from_millis(10);
/// Ports whose declarations are passed on. Lower: further ports have none in the Ethernet form, and their status says
/// so. Higher: clients may take more descriptors of this process, one each.
pub(super) const RELAYED_MAX: usize = 128;
/// Of those, ports that are kept for root and the control process's own user. Lower: clients leave them none. Higher:
/// clients have fewer.
const RELAYED_KEPT: usize = 16;

/// Ethernet header, and port numbers behind it.
const ETHERTYPE_AT: usize = 12;
const DESTINATION_PORT_AT: usize = 14;
const SOURCE_PORT_AT: usize = 22;
const SHORTEST_BYTES: usize = 30;

/// The sockets.
#[derive(Debug)]
pub(super) struct Declared {
    /// Declarations of the interface.
    network: io::Result<OwnedFd>,
    own: MacAddress,
    ethertype: u16,
    ports: BTreeMap<u16, Relayed>,
    /// Epoll's numbers of the sockets that are not looked at, and since when.
    resting: Vec<u64>,
    rests_since: Instant,
}

/// One end of a port's declarations.
#[derive(Debug)]
struct Relayed {
    socket: ForeignSocket,
    /// User whom it counts towards; `None` for one who needs no entry.
    uid: Option<u32>,
}

impl Declared {
    pub(super) fn open(setup: &Setup) -> Self {
        let ethertype = ethertype_of_declarations(setup.ethernet.ethertype);
        Self {
            network: packet::of_ethertype(setup.interface.index, ethertype),
            own: setup.interface.mac,
            ethertype,
            ports: BTreeMap::new(),
            resting: Vec::new(),
            rests_since: Instant::now(),
        }
    }

    /// Begins to look at what comes from the network.
    pub(super) fn watch(&self, epoll: &OwnedFd) -> io::Result<()> {
        match &self.network {
            Ok(network) => add(epoll, network.as_fd(), DECLARED),
            Err(_) => Ok(()),
        }
    }

    /// Time until a socket is looked at again.
    pub(super) fn rest_left(&self) -> Option<Duration> {
        let rests = !self.resting.is_empty();
        rests.then(|| REST.saturating_sub(self.rests_since.elapsed()))
    }

    /// Looks at the sockets again that have rested.
    pub(super) fn end_rest(&mut self, epoll: &OwnedFd) {
        if self.rest_left() != Some(Duration::ZERO) {
            return;
        }
        for number in std::mem::take(&mut self.resting) {
            let socket = match number {
                DECLARED => self.network.as_ref().ok().map(AsFd::as_fd),
                port => self.client(port).map(AsFd::as_fd),
            };
            if let Some(socket) = socket {
                let data = epoll::EventData::new_u64(number);
                let _still = epoll::modify(epoll, socket, data, once());
            }
        }
    }

    fn client(&self, number: u64) -> Option<&ForeignSocket> {
        let port = u16::try_from(number & !DECLARING).ok()?;
        self.ports.get(&port).map(|relayed| &relayed.socket)
    }

    fn rest(&mut self, number: u64) {
        if self.resting.is_empty() {
            self.rests_since = Instant::now();
        }
        self.resting.push(number);
    }

    /// Passes on what has come from the network.
    pub(super) fn hear_network(&mut self) {
        self.rest(DECLARED);
        let Ok(network) = &self.network else {
            return;
        };
        let mut buffer = [0; FRAME_BYTES_MAX];
        for _ in 0..FRAMES_AT_ONCE {
            let Ok(Some((bytes, _))) = socket::receive_from(network.as_fd(), &mut buffer) else {
                return;
            };
            let frame = &buffer[..bytes.min(FRAME_BYTES_MAX)];
            let is_ours =
                frame.len() >= SHORTEST_BYTES && (frame[0] & 1 != 0 || frame[..6] == self.own.0);
            let client = is_ours.then(|| self.ports.get(&short(frame, DESTINATION_PORT_AT)));
            if let Some(client) = client.flatten() {
                // A client that does not read loses it.
                let _lost = unix::send(client.socket.as_fd(), frame, &[]);
            }
        }
    }

    /// Passes on what a client declares.
    pub(super) fn hear_client(&mut self, number: u64) {
        self.rest(number);
        let port = (number & !DECLARING) as u16;
        let (Some(client), Ok(network)) = (self.ports.get(&port), &self.network) else {
            return;
        };
        let mut buffer = [0; FRAME_BYTES_MAX];
        for _ in 0..FRAMES_AT_ONCE {
            let bytes = match client.socket.receive(&mut buffer) {
                Ok(bytes @ 1..) => bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                _ => {
                    self.ports.remove(&port);
                    return;
                }
            };
            // One byte too many is cut off, and told.
            let frame = buffer.get(..bytes).unwrap_or_default();
            if is_from(frame, self.own, self.ethertype, port) {
                let _lost = socket::send(network.as_fd(), frame);
            }
        }
    }

    /// Ports that count towards a user.
    fn of_user(&self, uid: u32) -> usize {
        let ports = self.ports.values();
        ports.filter(|relayed| relayed.uid == Some(uid)).count()
    }

    /// The port is closed, and its socket with it.
    pub(super) fn close(&mut self, port: PortNumber) {
        self.ports.remove(&port.get());
    }
}

impl Server {
    /// Makes the socket of a client's port; another one that the port has is closed.
    pub(super) fn relay_declarations(
        &mut self,
        number: u64,
        port: PortNumber,
    ) -> Result<Granted, Refusal> {
        let client = self.greeted(number)?;
        let open = self.ports.get(&AnyPort::Port(port));
        let is_holder = open.is_some_and(|open| match open.client {
            Some(holder) => holder == number,
            // Given out by a predecessor.
            None => (open.pid, open.uid) == (client.pid, client.asker.uid),
        });
        if !is_holder {
            return Err(no(Reason::NotAllowed, "the port is not this client's"));
        }
        if let Err(error) = &self.declared.network {
            let remedy = match error.raw_os_error() {
                Some(libc::EPERM | libc::EAFNOSUPPORT) => {
                    "; the systemd unit lets it with the drop-in declarations.conf"
                }
                _ => "",
            };
            let why = format!("receiving declarations: {error}{remedy}");
            return Err(no(Reason::Kernel, why));
        }
        self.declared.close(port);
        let uid = self.has_room_for_declarations(number)?;
        let kernel = |error: io::Error| no(Reason::Kernel, error.to_string());
        let (own, clients) = ForeignSocket::pair().map_err(kernel)?;
        let epoll_number = DECLARING | u64::from(port.get());
        add(&self.epoll, own.as_fd(), epoll_number).map_err(kernel)?;
        self.declared.resting.retain(|one| *one != epoll_number);
        let relayed = Relayed { socket: own, uid };
        self.declared.ports.insert(port.get(), relayed);
        Ok((Reply::Declarations, vec![clients]))
    }

    /// Whether declarations of one more port can be passed on for the client; the user whom it counts towards, if any.
    fn has_room_for_declarations(&self, number: u64) -> Result<Option<u32>, Refusal> {
        let asker = &self.greeted(number)?.asker;
        let left = RELAYED_MAX.saturating_sub(self.declared.ports.len());
        let Some(quota) = self.policy.declarations(asker) else {
            let why = format!("declarations of {RELAYED_MAX} ports are passed on already");
            return match left {
                0 => Err(no(Reason::Full, why)),
                _ => Ok(None),
            };
        };
        let taken = self.declared.of_user(asker.uid);
        let why = if taken >= quota.max {
            format!(
                "declarations of {taken} ports of {} are passed on, as many as {quota} gives; raise its \
                 declarations_max",
                self.policy.name(asker.uid)
            )
        } else if left <= RELAYED_KEPT {
            format!(
                "declarations of {RELAYED_MAX} ports can be passed on; of these {left} are left, which are kept for \
                 root"
            )
        } else {
            return Ok(Some(asker.uid));
        };
        Err(no(Reason::Full, why))
    }
}

/// Whether a frame is a declaration of this port's.
fn is_from(frame: &[u8], own: MacAddress, ethertype: u16, port: u16) -> bool {
    frame.len() >= SHORTEST_BYTES
        && frame[6..ETHERTYPE_AT] == own.0
        && short(frame, ETHERTYPE_AT) == ethertype
        && short(frame, SOURCE_PORT_AT) == port
}

fn add(epoll: &OwnedFd, socket: BorrowedFd<'_>, number: u64) -> io::Result<()> {
    let data = epoll::EventData::new_u64(number);
    Ok(epoll::add(epoll, socket, data, once())?)
}

/// An event comes once, until it is asked for again.
fn once() -> epoll::EventFlags {
    epoll::EventFlags::IN | epoll::EventFlags::ONESHOT
}

fn short(frame: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([frame[at], frame[at + 1]])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_declares_for_its_own_port_alone() {
        let own = MacAddress([2, 0, 0, 0, 0, 1]);
        let mut frame = [0; SHORTEST_BYTES];
        frame[6..12].copy_from_slice(&own.0);
        frame[12..14].copy_from_slice(&[0x88, 0xB6]);
        frame[22..24].copy_from_slice(&[0, 60]);
        let is_sent = |frame: &[u8]| is_from(frame, own, 0x88B6, 60);
        assert!(is_sent(&frame));
        assert!(!is_sent(&frame[..SHORTEST_BYTES - 1]) && !is_sent(&[]));
        // Another station's, a message, an IPv4 packet, another port's.
        for (at, value) in [(11, 2), (13, 0xB5), (12, 0x08), (23, 61), (22, 1)] {
            let mut other = frame;
            other[at] = value;
            assert!(!is_sent(&other), "{at}");
        }
    }
}
