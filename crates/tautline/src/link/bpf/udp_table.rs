//! Which UDP ports are this node's, for plain UDP: the table that the demux looks into, mapped.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tautline_proto::wire::PORT_MAX;

use crate::sys::memory::{Mapping, page_bytes};

/// Ports of plain UDP that one node can have open. Lower: a gateway for a fleet needs several nodes. Higher:
/// the demux's maps of ports grow (16 bytes each).
pub(in crate::link) const PLACES: usize = 256;
/// The first place among the ports' maps that is for plain UDP.
const FIRST_PLACE: u16 = PORT_MAX + 1;

/// `struct tl_udp_table` of `bpf/tautline.h`: how many ports are open, then a place of two bytes for each
/// UDP port.
const TABLE_BYTES: usize = 8 + 2 * 65_536;

/// The table, and which of the places are taken. The only writer.
#[derive(Debug)]
pub(in crate::link) struct UdpTable {
    mapping: Mapping,
    /// UDP port at each place; 0: free.
    taken: Mutex<[u16; PLACES]>,
}

impl UdpTable {
    /// Maps the array `udp_ports` of `bpf/udp.bpf.h`.
    pub(in crate::link) fn map(array: BorrowedFd<'_>) -> io::Result<Self> {
        let bytes = TABLE_BYTES.next_multiple_of(page_bytes());
        let table = Self {
            mapping: Mapping::shared(array, bytes, 0)?,
            taken: Mutex::new([0; PLACES]),
        };
        table.take_over();
        Ok(table)
    }

    /// Finds the ports that a predecessor of this process has shown. One that it had only taken is free again.
    fn take_over(&self) {
        let mut taken = self.taken();
        for port in 1..=u16::MAX {
            let index = self.place(port).checked_sub(FIRST_PLACE.into());
            if let Some(held) = index.and_then(|index| taken.get_mut(index)) {
                *held = port;
            }
        }
        let open = taken.iter().filter(|port| **port != 0).count() as u64;
        self.count(|_| open);
    }

    /// The ports that the demux delivers to.
    pub(in crate::link) fn open(&self) -> Vec<u16> {
        let taken = self.taken();
        let shown = taken.iter().filter(|port| self.place(**port) != 0);
        shown.copied().collect()
    }

    /// Takes a place for a UDP port; the demux does not see it before [`UdpTable::show`]. `None` if all
    /// are taken.
    pub(in crate::link) fn take(&self, port: u16) -> Option<u32> {
        let mut taken = self.taken();
        let free = taken.iter().position(|held| *held == 0)?;
        taken[free] = port;
        Some(place(free).into())
    }

    /// The place of a UDP port; 0 if it is not this node's.
    pub(in crate::link) fn place(&self, port: u16) -> usize {
        let word = self.mapping.load(1 + usize::from(port) / 4, Relaxed);
        let at = usize::from(port) % 4 * 2;
        let places = word.to_ne_bytes();
        u16::from_ne_bytes([places[at], places[at + 1]]).into()
    }

    /// From now on the demux delivers to the port.
    pub(in crate::link) fn show(&self, port: u16) {
        let taken = self.taken();
        if let Some(index) = taken.iter().position(|held| *held == port) {
            self.set(port, place(index));
            self.count(|open| open + 1);
        }
    }

    /// From now on it does not. The place is free after `empty`, which is told which it was.
    pub(in crate::link) fn give_up(&self, port: u16, empty: impl FnOnce(u32)) {
        let mut taken = self.taken();
        if let Some(index) = taken.iter().position(|held| *held == port) {
            if self.set(port, 0) != 0 {
                self.count(|open| open - 1);
            }
            empty(place(index).into());
            taken[index] = 0;
        }
    }

    /// Writes the place of one UDP port, and returns what was there. Four share a word; the caller of
    /// this holds the lock, so no other thread changes the word meanwhile.
    fn set(&self, port: u16, place: u16) -> u16 {
        let word = 1 + usize::from(port) / 4;
        let mut places = self.mapping.load(word, Relaxed).to_ne_bytes();
        let at = usize::from(port) % 4 * 2;
        let before = u16::from_ne_bytes([places[at], places[at + 1]]);
        places[at..at + 2].copy_from_slice(&place.to_ne_bytes());
        // Release: the port's memory is in its map before the demux finds the place.
        self.mapping
            .store(word, u64::from_ne_bytes(places), Release);
        before
    }

    fn count(&self, change: impl FnOnce(u64) -> u64) {
        self.mapping
            .store(0, change(self.mapping.load(0, Relaxed)), Release);
    }

    fn taken(&self) -> MutexGuard<'_, [u16; PLACES]> {
        // The list stays whole at every step, so a panic elsewhere does not spoil it.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn place(index: usize) -> u16 {
    FIRST_PLACE + index as u16
}
