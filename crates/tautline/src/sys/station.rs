//! The kernel's own question by ARP, which station has an IPv4 address: for a process that may not open a socket for
//! whole frames. The question is made and the answer read in the kernel's neighbour table (rtnetlink(7)).

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, BorrowedFd};

use netlink_packet_core::{NLM_F_CREATE, NetlinkPayload};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

use super::route;

/// `RTMGRP_NEIGH` of linux/rtnetlink.h.
const CHANGES_OF_NEIGHBOURS: u32 = 4;

/// A question that the kernel asks.
#[derive(Debug)]
pub(crate) struct StationQuestion {
    /// On which the kernel tells of changes.
    changes: Socket,
    interface_index: u32,
    ip: Ipv4Addr,
    /// Whether the kernel's entry was made for this question.
    made: bool,
}

/// Entry of the kernel's table.
#[derive(Debug)]
struct Found {
    state: NeighbourState,
    mac: Option<[u8; 6]>,
}

impl StationQuestion {
    /// Has the kernel ask, on an interface of the calling thread's network namespace. Needs CAP_NET_ADMIN. An entry
    /// that the kernel has confirmed lately, or that the administrator has made, is the answer; an older one is made
    /// anew.
    pub(crate) fn ask(interface_index: u32, ip: Ipv4Addr) -> io::Result<Self> {
        let mut changes = Socket::new(NETLINK_ROUTE)?;
        changes.set_non_blocking(true)?;
        changes.bind(&SocketAddr::new(0, CHANGES_OF_NEIGHBOURS))?;
        let mut question = Self {
            changes,
            interface_index,
            ip,
            made: false,
        };
        let found = question.found()?;
        question.made = found.is_none();
        let is_confirmed = |state| {
            matches!(
                state,
                NeighbourState::Reachable | NeighbourState::Permanent | NeighbourState::Noarp
            )
        };
        match found {
            Some(found) if is_confirmed(found.state) => return Ok(question),
            // Not confirmed lately. The kernel would ask the old address first, for seconds.
            Some(Found { mac: Some(_), .. }) => {
                route::change(RouteNetlinkMessage::DelNeighbour(question.message()), 0)?;
            }
            _ => {}
        }
        let mut message = question.message();
        message.header.flags = NeighbourFlags::Use;
        route::change(RouteNetlinkMessage::NewNeighbour(message), NLM_F_CREATE)?;
        Ok(question)
    }

    /// Readable when a look is worth while, or may be.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the socket is open as long as `self` is borrowed.
        unsafe { BorrowedFd::borrow_raw(self.changes.as_raw_fd()) }
    }

    /// The answer, if it has come. Never waits for the network.
    pub(crate) fn look(&self) -> io::Result<Option<[u8; 6]>> {
        // The table is asked, since not every change may have fitted the socket.
        let mut buffer = [0u8; 4096];
        while let Ok(1..) = self.changes.recv(&mut &mut buffer[..], 0) {}
        Ok(self.found()?.and_then(|found| found.answer()))
    }

    fn message(&self) -> NeighbourMessage {
        let mut message = NeighbourMessage::default();
        message.header.family = AddressFamily::Inet;
        message.header.ifindex = self.interface_index;
        let ip = NeighbourAddress::Inet(self.ip);
        message.attributes.push(NeighbourAttribute::Destination(ip));
        message
    }

    fn found(&self) -> io::Result<Option<Found>> {
        match route::ask(RouteNetlinkMessage::GetNeighbour(self.message()), 0)? {
            NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewNeighbour(entry)) => {
                let mut attributes = entry.attributes.into_iter();
                let mac = attributes.find_map(|attribute| match attribute {
                    NeighbourAttribute::LinkLayerAddress(mac) => mac.try_into().ok(),
                    _ => None,
                });
                let state = entry.header.state;
                Ok(Some(Found { state, mac }))
            }
            NetlinkPayload::Error(error) if error.to_io().kind() == io::ErrorKind::NotFound => {
                Ok(None)
            }
            NetlinkPayload::Error(error) => Err(error.to_io()),
            _ => Err(io::Error::other("the kernel answered something else")),
        }
    }
}

impl Found {
    /// The address, if somebody has said it.
    fn answer(&self) -> Option<[u8; 6]> {
        match self.state {
            NeighbourState::Reachable
            | NeighbourState::Permanent
            | NeighbourState::Noarp
            // The station has asked us meanwhile, and said it so.
            | NeighbourState::Stale => self.mac,
            _ => None,
        }
    }
}

impl Drop for StationQuestion {
    fn drop(&mut self) {
        let unanswered = || matches!(self.found(), Ok(Some(found)) if found.answer().is_none());
        if self.made && unanswered() {
            // A client that asks for many addresses is not to fill the kernel's table.
            let message = RouteNetlinkMessage::DelNeighbour(self.message());
            let _gone_already = route::change(message, 0);
        }
    }
}
