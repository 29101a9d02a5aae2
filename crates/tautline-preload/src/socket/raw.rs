//! The raw port beside a packet socket: the frames of one EtherType on one interface.

use tautline::{EtherType, MacAddress, RAW_FRAME_BYTES_MAX, RawPort, ReceivedFrame};

use super::{Arrived, Sender, Sent};

/// Longest frame that such a socket sends or receives: with an 802.1Q tag.
pub(crate) const FRAME_BYTES_MAX: usize = RAW_FRAME_BYTES_MAX + 4;
/// Addresses and EtherType of a frame without a tag.
const HEADER_BYTES: usize = 14;
/// Empty frames that one look may pass over. Lower: a flood of them makes a call say too early that there is none.
/// Higher: such a call takes longer.
const LOOKS_MAX: usize = 1024;
const BROADCAST: MacAddress = MacAddress([0xFF; 6]);

/// Where a packet socket is bound.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cable {
    pub(crate) ethertype: EtherType,
    pub(crate) interface_index: i32,
    /// The interface's own address, as it was when the socket was taken.
    pub(crate) own: MacAddress,
}

/// Sender of a frame, with what packet(7) tells about it.
#[derive(Clone, Copy)]
pub(crate) struct Station {
    pub(crate) cable: Cable,
    pub(crate) address: MacAddress,
    /// Kind of the frame's destination: PACKET_HOST and the like.
    pub(crate) kind: u8,
}

/// Destination that a call names (sockaddr_ll).
#[derive(Clone, Copy)]
pub(crate) struct StationName {
    pub(crate) protocol: u16,
    pub(crate) interface_index: i32,
    pub(crate) address: MacAddress,
}

/// The socket's side at its raw port.
pub(super) struct RawSide {
    pub(super) port: RawPort,
    pub(super) cable: Cable,
    is_cooked: bool,
    /// The frame that is received or sent.
    frame: Box<[u8; FRAME_BYTES_MAX]>,
}

impl RawSide {
    pub(super) fn new(port: RawPort, cable: Cable, is_cooked: bool) -> Self {
        Self {
            port,
            cable,
            is_cooked,
            frame: Box::new([0; FRAME_BYTES_MAX]),
        }
    }

    /// The next frame that the port has, as the socket receives it. A socket without headers receives no frame that is
    /// nothing but its header.
    #[inline]
    pub(super) fn next(&mut self) -> Option<(&[u8], Arrived)> {
        let is_cooked = self.is_cooked;
        let is_empty = |frame: &ReceivedFrame| is_cooked && frame.length == HEADER_BYTES;
        let mut looks = 0..LOOKS_MAX;
        let received = loop {
            looks.next()?;
            let received = self.port.receive(&mut self.frame[..]).ok()??;
            if !is_empty(&received) {
                break received;
            }
        };
        let frame = self.frame.get(..received.length)?;
        let (header, payload) = frame.split_first_chunk::<HEADER_BYTES>()?;
        let (destination, rest) = header.split_first_chunk::<6>()?;
        let source = MacAddress(*rest.first_chunk::<6>()?);
        let bytes = if self.is_cooked { payload } else { frame };
        let station = Station {
            cable: self.cable,
            address: source,
            kind: kind_of(MacAddress(*destination)),
        };
        let arrived = Arrived {
            length: bytes.len(),
            sender: Sender::Station(station),
            arrival: received.arrival,
        };
        Some((bytes, arrived))
    }

    /// Sends a frame, if it is one of the port's: of its EtherType, and through its interface.
    #[inline]
    pub(super) fn send(&mut self, to: Option<StationName>, bytes: &[u8]) -> Sent {
        if to.is_some_and(|to| to.interface_index != self.cable.interface_index) {
            return Sent::Kernel;
        }
        let sent = match (self.is_cooked, to) {
            (false, _) => self.port.send(bytes),
            (true, Some(to)) if to.protocol == self.cable.ethertype.get() => {
                let Some(length) = self.wrap(to.address, bytes) else {
                    return Sent::Kernel;
                };
                self.port.send(&self.frame[..length])
            }
            // Without a destination the kernel makes no header, and says so.
            (true, _) => return Sent::Kernel,
        };
        // A frame of another EtherType, one that is too long, a queue that is full: the kernel's turn.
        match sent {
            Ok(()) => Sent::Done,
            Err(_) => Sent::Kernel,
        }
    }

    /// Puts the header before a payload; how long the frame is.
    fn wrap(&mut self, to: MacAddress, payload: &[u8]) -> Option<usize> {
        let length = HEADER_BYTES + payload.len();
        let frame = self.frame.get_mut(..length)?;
        let ethertype = self.cable.ethertype.get().to_be_bytes();
        frame[..6].copy_from_slice(&to.0);
        frame[6..12].copy_from_slice(&self.cable.own.0);
        frame[12..HEADER_BYTES].copy_from_slice(&ethertype);
        frame[HEADER_BYTES..].copy_from_slice(payload);
        Some(length)
    }
}

/// As the kernel's eth_type_trans() tells frames apart. The port has those for this station and for groups.
fn kind_of(destination: MacAddress) -> u8 {
    match destination {
        BROADCAST => libc::PACKET_BROADCAST,
        MacAddress([first, ..]) if first & 1 == 1 => libc::PACKET_MULTICAST,
        _ => libc::PACKET_HOST,
    }
}
