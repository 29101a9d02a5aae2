//! Indices of a node's open ports among the maps that a program looks into, by their keys, and the mapped tables in
//! which the program finds those of plain UDP and of raw ports.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Mutex;
use std::sync::atomic::Ordering::{Relaxed, Release};

use tautline_proto::wire::raw::EtherType;
use tautline_proto::wire::{PORT_MAX, PortKey};
use tautline_state::lock;

use crate::error::PortError;
use crate::sys::memory::{Mapping, page_bytes};

/// Ports of plain UDP that one node can have open, `TL_UDP_PLACES` of `bpf/tautline.h`. Lower: a gateway for a fleet
/// needs several nodes. Higher: the demux's maps of ports grow (16 bytes each).
const UDP_PLACES: usize = 256;
/// Raw ports that one node can have open, `TL_RAW_PLACES` of `bpf/tautline.h`. Lower: a gateway for several protocols
/// needs several nodes. Higher: the demux compares every frame of other protocols, which are few, with more numbers.
const RAW_PLACES: usize = 8;
/// The first index among the ports' maps that is not the number of a port for messages.
const FIRST_PLACE: usize = PORT_MAX as usize + 1;
/// Indices of ports of all kinds. Messages have those of their numbers; after them come those of plain UDP, and then
/// those of raw ports.
pub(in crate::link) const PLACES: usize = FIRST_PLACE + UDP_PLACES + RAW_PLACES;

/// Entries before that of UDP port 0 in `struct tl_udp_table`: they hold the number of open ports.
const UDP_HEAD: usize = 4;
const UDP_TABLE_BYTES: usize = 2 * (UDP_HEAD + 65_536);

/// The tables by which a program finds the place of a frame, and which of the places are taken. The only writer.
#[derive(Debug)]
pub(in crate::link) struct MapIndices {
    /// `struct tl_udp_table` of `bpf/tautline.h`: how many ports are open, then the index of each UDP port or 0.
    udp_ports: Mapping,
    /// `struct tl_raw_table`: the EtherType at each place or 0.
    raw_types: Mapping,
    /// Keys at the places from [`FIRST_PLACE`] on.
    taken: Mutex<[Option<PortKey>; UDP_PLACES + RAW_PLACES]>,
}

impl MapIndices {
    /// Maps a program's arrays `udp_ports` and `raw_types`.
    pub(in crate::link) fn map(
        udp_ports: BorrowedFd<'_>,
        raw_types: BorrowedFd<'_>,
    ) -> io::Result<Self> {
        let map =
            |array, bytes: usize| Mapping::shared(array, bytes.next_multiple_of(page_bytes()), 0);
        let indices = Self {
            udp_ports: map(udp_ports, UDP_TABLE_BYTES)?,
            raw_types: map(raw_types, 2 * RAW_PLACES)?,
            taken: Mutex::new([None; UDP_PLACES + RAW_PLACES]),
        };
        indices.take_over();
        Ok(indices)
    }

    /// Finds the ports that a predecessor of this process has shown. One that it had only taken is free again.
    fn take_over(&self) {
        let mut taken = lock(&self.taken);
        let (udp, raw) = taken.split_at_mut(UDP_PLACES);
        for port in 1..=u16::MAX {
            let place = self.of_udp(port).checked_sub(FIRST_PLACE);
            if let Some(held) = place.and_then(|place| udp.get_mut(place)) {
                *held = PortKey::udp(port).ok();
            }
        }
        let open = udp.iter().flatten().count();
        self.udp_ports.store(0, open as u64, Release);
        for (place, held) in raw.iter_mut().enumerate() {
            let ethertype = u16::from_be(entry(&self.raw_types, place));
            *held = EtherType::new(ethertype).ok().map(PortKey::Raw);
        }
    }

    /// Index of a port of plain UDP that the program finds; 0 if there is none.
    #[inline]
    pub(in crate::link) fn of_udp(&self, port: u16) -> usize {
        entry(&self.udp_ports, UDP_HEAD + usize::from(port)).into()
    }

    /// Index of the raw port of an EtherType that the program finds.
    pub(in crate::link) fn of_raw(&self, ethertype: u16) -> Option<usize> {
        let sought = ethertype.to_be();
        let mut places = 0..RAW_PLACES;
        let found = places.find(|place| entry(&self.raw_types, *place) == sought)?;
        (sought != 0).then_some(FIRST_PLACE + UDP_PLACES + found)
    }

    /// Takes an index; the program does not see it before [`MapIndices::show`].
    pub(in crate::link) fn take(&self, key: PortKey) -> Result<u32, PortError> {
        let mut places = match key {
            PortKey::Message(port) => return Ok(port.get().into()),
            PortKey::Udp(_) => 0..UDP_PLACES,
            PortKey::Raw(_) => UDP_PLACES..UDP_PLACES + RAW_PLACES,
        };
        let max = places.len();
        let mut taken = lock(&self.taken);
        let free = places.find(|place| taken[*place].is_none());
        let free = free.ok_or(PortError::TooManyPorts { key, max })?;
        taken[free] = Some(key);
        Ok(index(free))
    }

    /// From now on the program finds the index. That of messages it finds by itself.
    pub(in crate::link) fn show(&self, key: PortKey) {
        let taken = lock(&self.taken);
        if let Some(place) = place_of(&*taken, key) {
            self.write(key, place, true);
        }
    }

    /// The index of a port; 0 if it has none.
    pub(in crate::link) fn of(&self, key: PortKey) -> u32 {
        match key {
            PortKey::Message(port) => port.get().into(),
            PortKey::Udp(_) | PortKey::Raw(_) => {
                place_of(&*lock(&self.taken), key).map_or(0, index)
            }
        }
    }

    /// From now on the program does not find the index, which is free after `empty`.
    pub(in crate::link) fn give_up(&self, key: PortKey, empty: impl FnOnce(u32)) {
        if let PortKey::Message(port) = key {
            return empty(port.get().into());
        }
        let mut taken = lock(&self.taken);
        if let Some(place) = place_of(&*taken, key) {
            self.write(key, place, false);
            empty(index(place));
            taken[place] = None;
        }
    }

    /// Ports of the tables that the program finds: all but those of messages.
    pub(in crate::link) fn shown(&self) -> Vec<PortKey> {
        let taken = lock(&self.taken);
        let is_shown = |key: &&PortKey| match key {
            PortKey::Message(_) => false,
            PortKey::Udp(port) => self.of_udp(port.get()) != 0,
            PortKey::Raw(ethertype) => self.of_raw(ethertype.get()).is_some(),
        };
        taken.iter().flatten().filter(is_shown).copied().collect()
    }

    /// Enters a key into its table, or takes it out. The caller has the lock.
    fn write(&self, key: PortKey, place: usize, is_shown: bool) {
        match key {
            PortKey::Message(_) => {}
            PortKey::Udp(port) => {
                let shown = if is_shown { index(place) } else { 0 };
                let at = UDP_HEAD + usize::from(port.get());
                let before = set_entry(&self.udp_ports, at, shown as u16);
                let open = self.udp_ports.load(0, Relaxed) + u64::from(is_shown);
                self.udp_ports
                    .store(0, open - u64::from(before != 0), Release);
            }
            PortKey::Raw(ethertype) => {
                let shown = if is_shown { ethertype.get() } else { 0 };
                set_entry(&self.raw_types, place - UDP_PLACES, shown.to_be());
            }
        }
    }
}

const fn index(place: usize) -> u32 {
    (FIRST_PLACE + place) as u32
}

fn place_of(taken: &[Option<PortKey>], key: PortKey) -> Option<usize> {
    taken.iter().position(|held| *held == Some(key))
}

/// Entry of two bytes in a table.
#[inline]
fn entry(table: &Mapping, at: usize) -> u16 {
    let word = table.load(at / 4, Relaxed).to_ne_bytes();
    u16::from_ne_bytes([word[at % 4 * 2], word[at % 4 * 2 + 1]])
}

/// Writes an entry, and returns what was there. Four share a word; the caller has the lock, so no other thread changes
/// the word meanwhile.
fn set_entry(table: &Mapping, at: usize, value: u16) -> u16 {
    let before = entry(table, at);
    let mut word = table.load(at / 4, Relaxed).to_ne_bytes();
    word[at % 4 * 2..][..2].copy_from_slice(&value.to_ne_bytes());
    // Release: the port's memory is in its map before the program finds the index.
    table.store(at / 4, u64::from_ne_bytes(word), Release);
    before
}
