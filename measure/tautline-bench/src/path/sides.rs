//! Two sides that the ends of a path are opened on.

use std::fs::File;
use std::net::Ipv4Addr;
use std::sync::Arc;

use tautline_testbed::hosts::{Host, Hosts, HostsError, HostsOptions};

/// Cable of Tautline's paths: the demux may be attached to its ends.
pub const DEMUX_CABLE: usize = 0;

/// Cable of the kernel's paths. Nothing of ours is attached to its ends, as with a user who does not run Tautline: a
/// demux would make ordinary traffic dearer, above all on a virtual cable.
pub const KERNEL_CABLE: usize = 1;

/// Cables that a comparison of Tautline with the kernel needs.
pub const CABLES: usize = 2;

/// Options of the hosts for such a comparison.
pub fn compared() -> HostsOptions {
    HostsOptions {
        cable_count: CABLES,
        ..HostsOptions::default()
    }
}

/// Addresses of the two sides on the loopback interface.
const LOOPBACK: [Ipv4Addr; 2] = [Ipv4Addr::new(127, 0, 0, 1), Ipv4Addr::new(127, 0, 0, 2)];

/// Two sides that sockets and nodes are opened on.
#[derive(Clone, Copy, Debug)]
pub enum Sides<'a> {
    /// Two hosts on a cable.
    Hosts(&'a Hosts, usize),
    /// Two addresses of the loopback interface, without privilege.
    Loopback,
}

impl Sides<'_> {
    /// IPv4 address of a side.
    pub fn address(self, host: Host) -> Ipv4Addr {
        match self {
            Sides::Hosts(hosts, cable) => hosts.end(host, cable).address(),
            Sides::Loopback => LOOPBACK[host as usize],
        }
    }

    /// Network namespace of a side, where it has one of its own.
    pub fn namespace(self, host: Host) -> Option<Arc<File>> {
        match self {
            Sides::Hosts(hosts, _) => Some(hosts.namespace(host)),
            Sides::Loopback => None,
        }
    }

    /// Does something on a side.
    pub fn inside<T: Send>(
        self,
        host: Host,
        work: impl FnOnce() -> T + Send,
    ) -> Result<T, HostsError> {
        match self {
            Sides::Hosts(hosts, _) => hosts.inside(host, work),
            Sides::Loopback => Ok(work()),
        }
    }
}
