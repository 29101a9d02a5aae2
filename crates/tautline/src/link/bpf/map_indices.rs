//! Indices of a node's open ports among the maps that a program looks into, by their keys.

use std::io;
use std::os::fd::BorrowedFd;

use tautline_proto::wire::PortKey;

use super::raw_table::{self, RawTable};
use super::udp_table::{self, UdpTable};
use crate::error::PortError;

/// Indices of ports of all kinds. Messages have those of their numbers; after them come the indices of plain UDP, and
/// then those of raw ports, of which the tables say whose they are.
pub(in crate::link) const PLACES: usize = raw_table::FIRST_PLACE as usize + raw_table::PLACES;

/// The tables by which a program finds the place of a frame.
#[derive(Debug)]
pub(in crate::link) struct MapIndices {
    udp_ports: UdpTable,
    raw_types: RawTable,
}

impl MapIndices {
    /// The tables in a program's arrays `udp_ports` and `raw_types`.
    pub(in crate::link) fn map(
        udp_ports: BorrowedFd<'_>,
        raw_types: BorrowedFd<'_>,
    ) -> io::Result<Self> {
        Ok(Self {
            udp_ports: UdpTable::map(udp_ports)?,
            raw_types: RawTable::of(raw_types)?,
        })
    }

    /// The place of a port of plain UDP; 0 if it has none.
    #[inline]
    pub(in crate::link) fn of_udp(&self, port: u16) -> usize {
        self.udp_ports.place(port)
    }

    /// Takes a place; the program does not see it before [`MapIndices::show`].
    pub(in crate::link) fn take(&self, key: PortKey) -> Result<u32, PortError> {
        let (place, max) = match key {
            PortKey::Message(port) => return Ok(port.get().into()),
            PortKey::Udp(port) => (self.udp_ports.take(port.get()), udp_table::PLACES),
            PortKey::Raw(ethertype) => (self.raw_types.take(ethertype), raw_table::PLACES),
        };
        place.ok_or(PortError::TooManyPorts { key, max })
    }

    /// From now on the program finds the place. That of messages it finds by itself.
    pub(in crate::link) fn show(&self, key: PortKey) -> Result<(), PortError> {
        match key {
            PortKey::Message(_) => {}
            PortKey::Udp(port) => self.udp_ports.show(port.get()),
            PortKey::Raw(ethertype) => self
                .raw_types
                .show(ethertype)
                .map_err(|error| PortError::refused("showing the port to the program", error))?,
        }
        Ok(())
    }

    /// The place of a port; 0 if it has none.
    pub(in crate::link) fn of(&self, key: PortKey) -> u32 {
        match key {
            PortKey::Message(port) => port.get().into(),
            PortKey::Udp(port) => self.of_udp(port.get()) as u32,
            PortKey::Raw(ethertype) => self.raw_types.place(ethertype),
        }
    }

    /// From now on the program does not find the place, which is free after `empty`.
    pub(in crate::link) fn give_up(&self, key: PortKey, empty: impl FnOnce(u32)) {
        match key {
            PortKey::Message(port) => empty(port.get().into()),
            PortKey::Udp(port) => self.udp_ports.give_up(port.get(), empty),
            PortKey::Raw(ethertype) => self.raw_types.give_up(ethertype, empty),
        }
    }

    /// Ports of the tables that the program finds: all but those of messages.
    pub(in crate::link) fn shown(&self) -> impl Iterator<Item = PortKey> {
        let udp = self.udp_ports.open().into_iter();
        let udp = udp.filter_map(|port| Some(PortKey::Udp(port.try_into().ok()?)));
        udp.chain(self.raw_types.open().into_iter().map(PortKey::Raw))
    }
}
