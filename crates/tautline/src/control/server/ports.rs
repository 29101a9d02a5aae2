//! The ports of a control process's clients: given out, taken back, and taken over from a predecessor.

use std::io;
use std::net::SocketAddrV4;
use std::os::fd::OwnedFd;

use tautline_proto::wire::PortKey;
use tautline_proto::wire::raw::EtherType;
use tautline_shm::region::Shape;

use super::super::policy::{ClientUser, Grant, Taken};
use super::{Granted, Server, no};
use crate::claim::{self, Claim, ClaimError, Number, claimant};
use crate::client::protocol::{Reason, Refusal, Reply};
use crate::control::PORT_KERNEL_BYTES;
use crate::error::PortError;
use crate::link::bpf::DemuxOwner;
use crate::link::bpf::demux::PortObjects;
use crate::link::bpf::taps::Permit;
use crate::link::plain_udp::reserve_for_another;
use tautline_state::untrusted::Credentials;

/// Of a predecessor's client that cannot be asked who it is: no user has this number.
const UNKNOWN: Credentials = Credentials {
    pid: 0,
    uid: u32::MAX,
    gid: u32::MAX,
};

#[derive(Debug)]
pub(super) struct OpenPort {
    /// The client; `None` if a predecessor of this process gave the port out.
    pub(super) client: Option<u64>,
    pub(super) pid: i32,
    pub(super) uid: u32,
    pub(super) rule: Option<usize>,
    /// Of the port, and of what it sends through.
    pub(super) memory_bytes: u64,
}

impl Server {
    pub(super) fn open_port(
        &mut self,
        number: u64,
        port: PortKey,
        shape: Shape,
    ) -> Result<Granted, Refusal> {
        let client = self.greeted(number)?;
        let (user, pid) = (client.user.clone(), client.pid);
        if let PortKey::Raw(ethertype) = port {
            self.check_ethertype(ethertype)?;
        }
        let memory_bytes = shape.bytes() as u64 + PORT_KERNEL_BYTES;
        // Before the number is looked at: a port that a client may not have is not reported to it.
        let grant = self
            .policy
            .grant(&user, port, memory_bytes, &self.taken())
            .map_err(|why| no(Reason::NotAllowed, why))?;
        let owner = Credentials {
            pid,
            uid: user.uid,
            gid: user.groups.first().copied().unwrap_or(u32::MAX),
        };
        let claim = Claim::attempt(self.number_of(port), owner).map_err(not_claimed)?;
        let claim = claim.into_descriptor();
        let claim = claim.ok_or_else(|| no(Reason::Kernel, "there is no directory for claims"))?;
        // The previous holder is dead, whether that has been noticed or not.
        self.close(port);
        if self.leaving.remove(&port) {
            self.take_away(port);
        }
        let (made, reserved) = self.make(port, shape)?;
        let tap = self.make_tap(port, grant)?;
        let open = OpenPort {
            client: Some(number),
            pid,
            uid: user.uid,
            rule: grant.rule,
            memory_bytes,
        };
        self.ports.insert(port, open);
        let answer = Reply::Opened {
            key: port,
            priorities: grant.priorities,
            entry: grant.rule.map_or(0, |index| (index + 1) as u16),
            any_source_address: grant.any_source_address,
        };
        let mut descriptors = vec![made.map, made.doorbell, tap, claim];
        descriptors.extend(reserved);
        Ok((answer, descriptors))
    }

    /// Makes the port's memory and shows it to the demux; with plain UDP, the socket that has the UDP port comes along.
    fn make(&self, port: PortKey, shape: Shape) -> Result<(PortObjects, Option<OwnedFd>), Refusal> {
        let reserved = match port {
            PortKey::Udp(port) => {
                let Some(ip) = self.demux.setup().ip else {
                    let why = "its demux has no IPv4 address, which plain UDP needs";
                    return Err(no(Reason::OtherSettings, why));
                };
                let reserved = reserve_for_another(SocketAddrV4::new(ip, port.get()));
                Some(reserved.map_err(not_reserved)?)
            }
            PortKey::Message(_) | PortKey::Raw(_) => None,
        };
        let made = self.demux.make_port(port, shape);
        let made = made.map_err(|error| match error {
            PortError::TooManyPorts { max, .. } => no(
                Reason::Full,
                format!("the interface has {max} raw ports open already"),
            ),
            error => no(Reason::Kernel, error.to_string()),
        })?;
        Ok((made, reserved))
    }

    /// Frames of the node's own EtherType are all clients'.
    fn check_ethertype(&self, ethertype: EtherType) -> Result<(), Refusal> {
        match self.demux.setup().ethernet.ethertype == ethertype.get() {
            true => Err(no(Reason::OtherSettings, "it is this interface's own")),
            false => Ok(()),
        }
    }

    fn make_tap(&self, port: PortKey, grant: Grant) -> Result<OwnedFd, Refusal> {
        let permit = Permit {
            key: port,
            any_source_address: grant.any_source_address,
            priorities: grant.priorities,
        };
        let tap = self.taps.open(self.place(port), permit);
        tap.map_err(|error| {
            self.take_away(port);
            no_tap(&error)
        })
    }

    /// Where the port is in the demux's map of ports, and its tap among the taps.
    pub(super) fn place(&self, port: PortKey) -> u32 {
        self.demux.place(port)
    }

    fn number_of(&self, port: PortKey) -> Number {
        let setup = self.demux.setup();
        Number::of(setup.interface.index, setup.ethernet.ethertype, port)
    }

    /// Whether the process that had a port is gone.
    pub(super) fn is_unclaimed(&self, port: PortKey) -> bool {
        claim::is_free(self.number_of(port))
    }

    /// Shares that are taken, by entry and user.
    fn taken(&self) -> Taken {
        let mut taken = Taken::new();
        for open in self.ports.values() {
            if let Some(rule) = open.rule {
                let share = taken.entry((rule, open.uid)).or_default();
                share.ports += 1;
                share.bytes += open.memory_bytes;
            }
        }
        taken
    }

    /// Closes a port of this client's; another one stays.
    pub(super) fn close_of(&mut self, number: u64, port: PortKey) -> Granted {
        let open = self.ports.get(&port);
        if open.is_some_and(|open| open.client == Some(number)) {
            self.close(port);
            // Here, so that it is so when the client hears of it.
            self.leaving.remove(&port);
            self.take_away(port);
        }
        (Reply::Closed, Vec::new())
    }

    /// From now on the port has no owner.
    pub(super) fn close(&mut self, port: PortKey) {
        if self.ports.remove(&port).is_some() {
            self.leaving.insert(port);
        }
    }

    /// Takes a port from the demux, and from its client what it sends through.
    fn take_away(&self, port: PortKey) {
        // Nothing passes once the permit is gone, whether the tap is or not.
        let place = self.place(port);
        if place != 0 {
            let _gone = self.taps.close(place);
        }
        self.demux.close_port(port);
    }

    /// Takes ports without an owner from the demux, so many at most.
    pub(super) fn withdraw(&mut self, count: usize) {
        for _ in 0..count {
            let Some(port) = self.leaving.pop_first() else {
                return;
            };
            self.take_away(port);
        }
    }

    /// Finds the ports that a predecessor gave out, and whose they are.
    pub(super) fn take_ports_over(&mut self) {
        for (port, memory_bytes) in self.demux.open_ports() {
            if self.is_unclaimed(port) {
                self.take_away(port);
                continue;
            }
            let holder = claimant(self.number_of(port)).unwrap_or(UNKNOWN);
            let user = ClientUser {
                uid: holder.uid,
                groups: vec![holder.gid],
            };
            let memory_bytes = memory_bytes + PORT_KERNEL_BYTES;
            let grant = self.policy.grant(&user, port, memory_bytes, &self.taken());
            let open = OpenPort {
                client: None,
                pid: holder.pid,
                uid: holder.uid,
                rule: grant.ok().and_then(|grant| grant.rule),
                memory_bytes,
            };
            self.ports.insert(port, open);
        }
    }
}

fn no_tap(error: &io::Error) -> Refusal {
    let why = match error.kind() {
        io::ErrorKind::NotFound => {
            "a client sends through a tap, and the control process has no /dev/net/tun: \
             `modprobe tun`, or give its container or unit that device"
                .to_owned()
        }
        io::ErrorKind::PermissionDenied => format!(
            "making the tap that the port sends through: {error}; a control process that does not run as root needs \
             /dev/net/tun with mode 0666, as udev makes it"
        ),
        _ => format!("making the tap that the port sends through: {error}"),
    };
    no(Reason::Kernel, why)
}

fn not_claimed(error: ClaimError) -> Refusal {
    match error {
        ClaimError::Taken(holder) => Refusal {
            holder: holder.map_or(0, |holder| holder.pid),
            ..no(Reason::Taken, "the port is taken")
        },
        ClaimError::Io(error) => no(Reason::Kernel, format!("claiming the port: {error}")),
    }
}

fn not_reserved(error: io::Error) -> Refusal {
    match error.kind() {
        io::ErrorKind::AddrInUse => no(Reason::Taken, "the UDP port is taken"),
        _ => no(Reason::Kernel, format!("taking the UDP port: {error}")),
    }
}
