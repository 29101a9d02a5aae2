//! Peers of a guest: the table of names in its window.

use tautline::{Node, PortNumber, Source};
use tautline_shm::vbus::window::{Address, PEERS_MAX};

use crate::config::GuestConfig;
use crate::window::Window;

/// Peers whose names stand in the window's table.
pub(crate) struct Peers {
    places: Vec<Option<Peer>>,
    /// Peers of the configuration, at the first places, which are theirs for ever.
    named: usize,
    /// Counts uses.
    time: u64,
    neighbours: tautline::neighbours::NeighbourTable,
}

pub(crate) struct Peer {
    pub(crate) name: String,
    /// Address that it was heard from; none yet for one that only the configuration names.
    pub(crate) address: Option<tautline::address::Address>,
    /// Its address in the window.
    place: Address,
    used_at: u64,
}

impl Peers {
    pub(crate) fn new(config: &GuestConfig, node: &Node) -> Peers {
        let named = config.peers.iter().map(|name| {
            Some(Peer {
                name: name.to_string(),
                address: None,
                place: Address {
                    peer: 0,
                    turn: 0,
                    port: 0,
                },
                used_at: 0,
            })
        });
        let mut places: Vec<Option<Peer>> = named.collect();
        let named = places.len();
        places.resize_with(PEERS_MAX, || None);
        Peers {
            places,
            named,
            time: 0,
            neighbours: node.neighbours(),
        }
    }

    /// Writes the table of a new window.
    pub(crate) fn publish(&mut self, window: &Window) {
        for (place, peer) in self.places.iter_mut().enumerate() {
            if let Some(peer) = peer {
                peer.place = window.set_peer(place, &peer.name);
            }
        }
    }

    /// Place of a message's sender. A new sender takes a free place, or that of the peer that was silent for longest.
    pub(crate) fn place_of(&mut self, source: Source, window: &Window) -> Address {
        self.time += 1;
        let time = self.time;
        let known = |peer: &&mut Peer| peer.address == Some(source.address);
        if let Some(peer) = self.places.iter_mut().flatten().find(known) {
            peer.used_at = time;
            return peer.place;
        }
        let name = self.name_of(source.address);
        let is_named = |peer: &&mut Peer| peer.name == name;
        if let Some(peer) = self.places.iter_mut().flatten().find(is_named) {
            peer.address = Some(source.address);
            peer.used_at = time;
            return peer.place;
        }
        let free = self.named..PEERS_MAX;
        let oldest = free.min_by_key(|place| self.places[*place].as_ref().map(|peer| peer.used_at));
        let place = oldest.expect("one place at least is nobody's by name");
        let address = window.set_peer(place, &name);
        self.places[place] = Some(Peer {
            name,
            address: Some(source.address),
            place: address,
            used_at: time,
        });
        address
    }

    fn name_of(&self, address: tautline::address::Address) -> String {
        let named = self.neighbours.iter().find(|(_, entry)| match address {
            tautline::address::Address::Ethernet(mac) => entry.mac == mac,
            tautline::address::Address::Udp(address) => entry.ip == Some(*address.ip()),
            _ => false,
        });
        named.map_or_else(|| address.to_string(), |(_, entry)| entry.name.clone())
    }

    /// The peer that the guest addresses; `None` if the place is empty, or has another peer by now.
    pub(crate) fn find(&self, address: Address) -> Option<(&Peer, PortNumber)> {
        let peer = self.places.get(usize::from(address.peer))?.as_ref()?;
        let port = PortNumber::new(address.port)?;
        (peer.place.turn == address.turn).then_some((peer, port))
    }
}
