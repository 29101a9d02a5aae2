//! EtherTypes of this node's raw ports: the table that the demux looks into.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tautline_proto::wire::PORT_MAX;
use tautline_proto::wire::raw::EtherType;

use super::udp_table;
use crate::sys::bpf;

/// Raw ports that one node can have open, `TL_RAW_PLACES` of `bpf/tautline.h`. Lower: a gateway for several protocols
/// needs several nodes. Higher: the demux compares every frame of other protocols, which are few, with more numbers.
pub(in crate::link) const PLACES: usize = 8;
/// The first place among the ports' maps that is for raw ports.
pub(in crate::link) const FIRST_PLACE: u32 = PORT_MAX as u32 + 1 + udp_table::PLACES as u32;

/// The table, and which of its places are taken. The only writer.
#[derive(Debug)]
pub(in crate::link) struct RawTable {
    array: OwnedFd,
    places: Mutex<[Place; PLACES]>,
}

/// A place of the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Place {
    /// 0: free.
    ethertype: u16,
    /// Whether the demux delivers.
    is_shown: bool,
}

impl RawTable {
    /// The table in the array `raw_types` of `bpf/raw.bpf.h`, with the ports that a predecessor of this process has
    /// shown.
    pub(in crate::link) fn of(array: BorrowedFd<'_>) -> io::Result<Self> {
        let mut places = [Place::default(); PLACES];
        let shown = bpf::lookup(array, 0)?;
        for (place, bytes) in places.iter_mut().zip(shown.chunks_exact(2)) {
            place.ethertype = u16::from_be_bytes([bytes[0], bytes[1]]);
            place.is_shown = place.ethertype != 0;
        }
        Ok(Self {
            array: array.try_clone_to_owned()?,
            places: Mutex::new(places),
        })
    }

    /// The ports that the demux delivers to.
    pub(in crate::link) fn open(&self) -> Vec<EtherType> {
        let places = self.places();
        let shown = places.iter().filter(|place| place.is_shown);
        let types = shown.filter_map(|place| EtherType::new(place.ethertype).ok());
        types.collect()
    }

    /// The place of an EtherType that has been taken; 0 if it has no owner.
    pub(in crate::link) fn place(&self, ethertype: EtherType) -> u32 {
        let places = self.places();
        let held = |place: &Place| place.ethertype == ethertype.get();
        let index = places.iter().position(held);
        index.map_or(0, |index| FIRST_PLACE + index as u32)
    }

    /// Takes a place among the ports' maps; the demux does not see it before [`RawTable::show`]. `None` if all are
    /// taken.
    pub(in crate::link) fn take(&self, ethertype: EtherType) -> Option<u32> {
        let mut places = self.places();
        let index = places.iter().position(|place| place.ethertype == 0)?;
        places[index].ethertype = ethertype.get();
        Some(FIRST_PLACE + index as u32)
    }

    /// From now on the demux delivers to the port.
    pub(in crate::link) fn show(&self, ethertype: EtherType) -> io::Result<()> {
        let mut places = self.places();
        if let Some(place) = of(&mut places, ethertype) {
            place.is_shown = true;
        }
        self.write(&places)
    }

    /// From now on it does not. The place is free after `empty`, which is told which it was.
    pub(in crate::link) fn give_up(&self, ethertype: EtherType, empty: impl FnOnce(u32)) {
        let mut places = self.places();
        let held = |place: &Place| place.ethertype == ethertype.get();
        let Some(index) = places.iter().position(held) else {
            return;
        };
        places[index].is_shown = false;
        // Nothing can be done about a failure here, and nothing needs to be: the demux finds the place empty.
        let _still_shown = self.write(&places);
        empty(FIRST_PLACE + index as u32);
        places[index] = Place::default();
    }

    /// `struct tl_raw_table`.
    fn write(&self, places: &[Place; PLACES]) -> io::Result<()> {
        let mut bytes = [0; 2 * PLACES];
        for (bytes, place) in bytes.chunks_exact_mut(2).zip(places) {
            if place.is_shown {
                bytes.copy_from_slice(&place.ethertype.to_be_bytes());
            }
        }
        bpf::update(self.array.as_fd(), 0, &bytes)
    }

    fn places(&self) -> MutexGuard<'_, [Place; PLACES]> {
        // The table stays whole at every step, so a panic elsewhere does not spoil it.
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn of(places: &mut [Place; PLACES], ethertype: EtherType) -> Option<&mut Place> {
    let held = |place: &&mut Place| place.ethertype == ethertype.get();
    places.iter_mut().find(held)
}
