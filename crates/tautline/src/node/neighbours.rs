//! A node's neighbours: entering them until the first port opens, and asking the network for them.

use std::net::Ipv4Addr;
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use tautline_proto::neighbour::{Form, Neighbour, NeighbourTable};
use tautline_proto::wire::MacAddress;

use super::{Node, NodeInner};
use crate::error::{NeighbourTableError, PortError};
use crate::neighbours::{ArpInterface, Neighbours, ask};
use crate::port::owner::PortOwner;
use crate::status::NeighbourStatus;
use crate::table_state::{Origin, TableState};

impl Node {
    /// The neighbours at this moment, with those of the control process that the node is open through.
    #[must_use]
    pub fn neighbours(&self) -> NeighbourTable {
        self.inner.refresh_neighbours();
        self.inner.neighbours().table().clone()
    }

    /// Whether neighbours can be entered.
    #[must_use]
    pub fn neighbour_table_state(&self) -> TableState {
        self.inner.neighbours().state()
    }

    /// Enters a neighbour, as a `[[neighbour]]` of the configuration does: a single station, until the
    /// node's first port opens. Ours and peers of plain UDP are in one table, and so is the gateway.
    ///
    /// ```
    /// use tautline::{NeighbourTableError, Node, NodeConfig, QueuingOptions, neighbour};
    ///
    /// let node = Node::open(NodeConfig::udp([127, 0, 0, 1].into()))?;
    /// node.add_neighbour(neighbour("arm", [127, 0, 0, 2].into()))?;
    /// let mut port = node.queuing_port(2003.try_into()?, &QueuingOptions::default())?;
    /// port.destination("arm", 7.try_into()?)?;
    ///
    /// let late = node.add_neighbour(neighbour("leg", [127, 0, 0, 3].into()));
    /// assert!(matches!(late, Err(NeighbourTableError::Locked { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`NeighbourTableError::Locked`] after the first port; [`NeighbourTableError::Duplicate`], and others
    /// that say what is wrong with the entry.
    pub fn add_neighbour(&self, neighbour: Neighbour) -> Result<(), NeighbourTableError> {
        self.inner.process.check()?;
        self.inner.neighbours().add(neighbour, Origin::Added)
    }

    /// Asks the network once, by ARP, which station has `ip`, waits at most `timeout` (up to
    /// [`SOLICIT_TIME_MAX`](crate::neighbours::SOLICIT_TIME_MAX)) for the answer, and enters it as `name`, to be
    /// sent to in `form`. A node that is open through a control process asks through that; others need
    /// CAP_NET_RAW.
    ///
    /// The first answer is taken, and ARP proves nothing: whoever is on the network can give it.
    ///
    /// # Errors
    /// [`NeighbourTableError::NoAnswer`], [`NeighbourTableError::OutsideNetwork`],
    /// [`NeighbourTableError::NotPermitted`], [`NeighbourTableError::NoArp`] on a link that is on no
    /// interface, and as [`Node::add_neighbour`].
    pub fn solicit_neighbour(
        &self,
        name: &str,
        ip: Ipv4Addr,
        form: Form,
        timeout: Duration,
    ) -> Result<MacAddress, NeighbourTableError> {
        self.inner.process.check()?;
        // A neighbour that will not be entered need not be asked for.
        self.inner.neighbours().check_open()?;
        let mac = self.inner.station(ip, timeout)?;
        let neighbour = Neighbour {
            name: name.to_owned(),
            mac,
            ip: Some(ip),
            form,
        };
        let mut neighbours = self.inner.neighbours();
        neighbours.add(neighbour, Origin::Solicited).map(|()| mac)
    }

    /// Lets neighbours be entered again although ports are open: for maintenance. Nothing is guaranteed of
    /// the node's times until [`Node::lock_neighbours`].
    pub fn unlock_neighbours(&self) {
        self.inner.neighbours().unlock();
    }

    /// Locks the table, after maintenance or before the first port.
    pub fn lock_neighbours(&self) {
        self.inner.neighbours().lock();
    }
}

impl NodeInner {
    pub(crate) fn neighbours(&self) -> MutexGuard<'_, Neighbours> {
        // Entries go in whole or not at all.
        self.neighbours
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes over what the control process has that this node has not. An entry of the node's own stands
    /// against one of the same name or address there.
    pub(super) fn refresh_neighbours(&self) {
        // Not under the lock: the control process may take its time.
        let Some(shared) = self.link.shared_neighbours() else {
            return;
        };
        let mut neighbours = self.neighbours();
        for entry in shared {
            let _own_stands = neighbours.enter(entry, Origin::Shared);
        }
    }

    fn station(&self, ip: Ipv4Addr, timeout: Duration) -> Result<MacAddress, NeighbourTableError> {
        if let Some(answer) = self.link.solicit(ip, timeout) {
            return answer;
        }
        let place = self.interface.as_ref().zip(self.report.interface.as_ref());
        let Some((interface, name)) = place else {
            return Err(NeighbourTableError::NoArp {
                what: format!("link `{}` is on no interface here", self.link.kind()),
            });
        };
        self.check_caller()
            .map_err(|_| NeighbourTableError::OtherNamespace)?;
        let own = *self.neighbours().own();
        let place = ArpInterface {
            name,
            interface,
            own: &own,
        };
        ask(place, ip, timeout)
    }

    /// The neighbour with this IPv4 address.
    pub(super) fn neighbour_at(&self, ip: Ipv4Addr) -> Option<Neighbour> {
        let neighbours = self.neighbours();
        let table = neighbours.table();
        table.get(table.by_ip(ip)?).cloned()
    }

    /// The MAC address of the neighbour with this IPv4 address, if its entry has one.
    pub(super) fn mac_at(&self, ip: Ipv4Addr) -> Option<MacAddress> {
        let neighbours = self.neighbours();
        let table = neighbours.table();
        let mac = table.get(table.by_ip(ip)?)?.mac;
        (!mac.is_unspecified()).then_some(mac)
    }

    pub(super) fn unknown(&self, peer: &str) -> PortError {
        let neighbours = self.neighbours();
        let names = neighbours.entries().map(|(entry, _)| entry.name.clone());
        PortError::PeerUnknown {
            name: peer.to_owned(),
            known: names.collect(),
        }
    }
}

/// The entries, as `taut status` shows them.
pub(crate) fn neighbours_status(neighbours: &Neighbours) -> Vec<NeighbourStatus> {
    let status = |(entry, origin): (&Neighbour, Origin)| NeighbourStatus {
        name: entry.name.clone(),
        mac: (!entry.mac.is_unspecified()).then(|| entry.mac.to_string()),
        ip: entry.ip,
        form: entry.form.to_string(),
        origin,
    };
    neighbours.entries().map(status).collect()
}
