//! A node's neighbours: entering them until the first port opens.

use std::net::Ipv4Addr;
use std::sync::MutexGuard;

use tautline_proto::neighbour::{Neighbour, NeighbourTable};
use tautline_proto::wire::MacAddress;
use tautline_state::lock;

use super::{Node, NodeInner};
use crate::error::{NeighbourTableError, PortError};
use crate::neighbours::Neighbours;
use crate::status::{NeighbourStatus, Origin};

impl Node {
    /// The neighbours at this moment, with those of the control process that the node is open through.
    #[must_use]
    pub fn neighbours(&self) -> NeighbourTable {
        self.inner.refresh_neighbours();
        self.inner.neighbours().table().clone()
    }

    /// Enters a neighbour, as a `[[neighbour]]` of the configuration does: a single station, until the
    /// node's first port opens. Ours and peers of plain UDP are in one table, and so is the gateway.
    ///
    /// ```
    /// use tautline::neighbours::NeighbourTableError;
    /// use tautline::{Node, NodeConfig, neighbour};
    ///
    /// let node = Node::open(NodeConfig::udp([127, 0, 0, 1].into()))?;
    /// node.add_neighbour(neighbour("arm", [127, 0, 0, 2].into()))?;
    /// let mut port = node.queuing(2003).open()?;
    /// port.destination("arm", 7)?;
    ///
    /// let late = node.add_neighbour(neighbour("leg", [127, 0, 0, 3].into()));
    /// assert!(matches!(late, Err(NeighbourTableError::Locked)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`NeighbourTableError::Locked`] after the first port; [`NeighbourTableError::Duplicate`], and others
    /// that say what is wrong with the entry.
    pub fn add_neighbour(&self, neighbour: Neighbour) -> Result<(), NeighbourTableError> {
        self.inner.process.check()?;
        self.inner.neighbours().add(neighbour)
    }
}

impl NodeInner {
    pub(crate) fn neighbours(&self) -> MutexGuard<'_, Neighbours> {
        lock(&self.neighbours)
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
            let _own_stands = neighbours.share(entry);
        }
    }

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

/// Entries, as `taut status` shows them.
pub(crate) fn neighbours_status<'n>(
    entries: impl Iterator<Item = (&'n Neighbour, Origin)>,
) -> Vec<NeighbourStatus> {
    let status = |(entry, origin): (&Neighbour, Origin)| NeighbourStatus {
        name: entry.name.clone(),
        mac: (!entry.mac.is_unspecified()).then(|| entry.mac.to_string()),
        ip: entry.ip,
        form: entry.form.to_string(),
        origin,
    };
    entries.map(status).collect()
}
