//! The Ethernet form: our header straight after the EtherType.
//!
//! ```text
//! 0           6           12    14                30
//! +-----------+-----------+-----+-----------------+---------+---------+
//! | to (MAC)  | from (MAC)|88 B5| header          | payload | padding |
//! +-----------+-----------+-----+-----------------+---------+---------+
//! ```
//!
//! A single 802.1Q tag with VLAN identifier 0 (a priority tag) between source and EtherType is
//! skipped. Frames in a VLAN, or with more than one tag, are not ours, unless the node is in that
//! VLAN ([`EthernetForm`]): then frames outside it are not.

use super::raw::EtherType;
use super::{
    ETHERTYPE_DEFAULT, HEADER_BYTES, Header, MacAddress, ParseError, Priority, Rejected, read_mac,
    read_u16,
};

/// Bytes in an untagged Ethernet header.
pub const ETHERNET_HEADER_BYTES: usize = 14;

/// Bytes before the payload in the Ethernet form: Ethernet header and ours.
pub const HEADERS_BYTES: usize = ETHERNET_HEADER_BYTES + HEADER_BYTES;

/// Shortest Ethernet frame, without the check sequence (IEEE 802.3). Shorter ones are padded with
/// zeros.
///
/// Lower makes frames that a switch drops as runts; higher wastes the wire.
pub const FRAME_BYTES_MIN: usize = 60;

/// EtherType of an 802.1Q tag.
pub(super) const ETHERTYPE_VLAN: u16 = 0x8100;
/// Bytes of an 802.1Q tag.
const VLAN_TAG_BYTES: usize = 4;
/// Place of a tag: after both addresses.
const TAG_OFFSET: usize = 12;
/// The VLAN identifier's bits in an 802.1Q tag; the others are priority and drop eligibility.
const VLAN_IDENTIFIER_MASK: u16 = 0x0FFF;

/// VLAN of a node's Ethernet form: an identifier of 802.1Q from 1 to 4094, or none.
///
/// ```
/// use tautline_proto::wire::ethernet::Vlan;
///
/// assert_eq!(Vlan::new(5).map(Vlan::identifier), Some(5));
/// assert_eq!((Vlan::new(0), Vlan::new(4095)), (None, None));
/// assert_eq!(Vlan::NONE.identifier(), 0);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Vlan(u16);

impl Vlan {
    /// In no VLAN: frames have no tag, or a priority tag.
    pub const NONE: Self = Self(0);

    /// Highest identifier; 4095 is reserved.
    pub const IDENTIFIER_MAX: u16 = 4094;

    /// The VLAN with this identifier.
    #[must_use]
    pub const fn new(identifier: u16) -> Option<Self> {
        match identifier {
            1..=Self::IDENTIFIER_MAX => Some(Self(identifier)),
            _ => None,
        }
    }

    /// Its identifier, if it is one.
    #[must_use]
    pub const fn known(self) -> Option<u16> {
        match self {
            Self::NONE => None,
            vlan => Some(vlan.0),
        }
    }

    /// Its identifier; 0 for none.
    #[must_use]
    pub const fn identifier(self) -> u16 {
        self.0
    }
}

/// By which frames of the Ethernet form a node knows its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EthernetForm {
    /// Their EtherType.
    pub ethertype: u16,
    /// Their VLAN.
    pub vlan: Vlan,
}

impl EthernetForm {
    /// Frames of an EtherType in no VLAN.
    #[must_use]
    pub const fn of(ethertype: u16) -> Self {
        Self {
            ethertype,
            vlan: Vlan::NONE,
        }
    }
}

/// A frame of the Ethernet form, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The station or group that it was sent to. Whether that is us, the caller decides.
    pub destination: MacAddress,
    /// The station that sent it, never a group.
    pub source: MacAddress,
    /// Our header.
    pub header: Header,
    /// Exactly `header.length` bytes.
    pub payload: &'a [u8],
}

/// Takes a whole frame in no VLAN apart, from the destination address on, without the check sequence.
///
/// # Errors
///
/// [`Rejected::NotOurs`] for a frame too short for an EtherType, of another EtherType or in a VLAN.
/// Otherwise [`ParseError::InvalidSource`], then what [`Header::parse`] reports.
///
/// ```
/// use tautline_proto::wire::{ETHERTYPE_DEFAULT, Rejected, ethernet};
///
/// let arp = [0xFF; 12].iter().chain(&[0x08, 0x06]).copied().collect::<Vec<u8>>();
/// assert_eq!(ethernet::parse(&arp, ETHERTYPE_DEFAULT), Err(Rejected::NotOurs));
/// ```
#[inline]
pub fn parse(frame: &[u8], ethertype: u16) -> Result<Frame<'_>, Rejected> {
    parse_as(frame, EthernetForm::of(ethertype))
}

/// Parses a frame for a node that may be in a VLAN.
///
/// # Errors
///
/// Those of [`parse`]. A frame outside the node's VLAN is [`Rejected::NotOurs`].
#[inline]
pub fn parse_as(frame: &[u8], form: EthernetForm) -> Result<Frame<'_>, Rejected> {
    let ethernet = Ethernet::parse_in(frame, form.vlan).ok_or(Rejected::NotOurs)?;
    if ethernet.ethertype != form.ethertype {
        return Err(Rejected::NotOurs);
    }
    ethernet.check_source()?;
    let (header, payload) = Header::parse(ethernet.payload)?;
    Ok(Frame {
        destination: ethernet.destination,
        source: ethernet.source,
        header,
        payload,
    })
}

/// VLAN of any frame; none if the frame is too short.
///
/// ```
/// use tautline_proto::wire::ethernet::{Vlan, vlan_of};
///
/// let tagged = [&[0xFF; 12][..], &[0x81, 0, 0xE0, 5, 0x88, 0xB5]].concat();
/// assert_eq!(vlan_of(&tagged), Vlan::new(5).unwrap());
/// assert_eq!(vlan_of(&tagged[..14]), Vlan::NONE);
/// ```
#[must_use]
pub fn vlan_of(frame: &[u8]) -> Vlan {
    tag_of(frame).map_or(Vlan::NONE, |tag| Vlan(tag & VLAN_IDENTIFIER_MASK))
}

/// Priority of a frame's tag; the lowest without one.
pub(super) fn priority_of(frame: &[u8]) -> Priority {
    tag_of(frame).map_or(Priority::LOWEST, |tag| {
        Priority::ALL[usize::from(tag >> 13)]
    })
}

/// Priority, drop eligibility and VLAN of a frame with a tag.
#[inline]
fn tag_of(frame: &[u8]) -> Option<u16> {
    match read_u16(frame, TAG_OFFSET)? {
        ETHERTYPE_VLAN => read_u16(frame, TAG_OFFSET + 2),
        _ => None,
    }
}

/// Writes everything that comes before the payload: both addresses, the EtherType and our header.
///
/// A sender keeps one such array for each destination and, frame by frame, rewrites the last
/// [`HEADER_BYTES`] with [`Header::emit`].
///
/// ```
/// use tautline_proto::wire::{ETHERTYPE_DEFAULT, Header, MacAddress, PortNumber, Priority, ethernet};
///
/// let header = Header::whole(PortNumber::MIN, PortNumber::MAX, Priority::NORMAL, 4, 0);
/// let (to, from) = (MacAddress([2, 0, 0, 0, 0, 2]), MacAddress([2, 0, 0, 0, 0, 1]));
/// let mut frame = [0; ethernet::HEADERS_BYTES + 4];
/// ethernet::emit_header(frame.first_chunk_mut().unwrap(), to, from, ETHERTYPE_DEFAULT, &header);
/// let parsed = ethernet::parse(&frame, ETHERTYPE_DEFAULT).unwrap();
/// assert_eq!((parsed.destination, parsed.source, parsed.header), (to, from, header));
/// ```
#[inline]
pub fn emit_header(
    bytes: &mut [u8; HEADERS_BYTES],
    destination: MacAddress,
    source: MacAddress,
    ethertype: u16,
    header: &Header,
) {
    let (ethernet, ours) = bytes.split_at_mut(ETHERNET_HEADER_BYTES);
    emit_ethernet(ethernet, destination, source, ethertype);
    if let Some(ours) = ours.first_chunk_mut() {
        header.emit(ours);
    }
}

/// Bytes before the payload in a frame with a tag.
pub const TAGGED_HEADERS_BYTES: usize = HEADERS_BYTES + VLAN_TAG_BYTES;

/// Puts an 802.1Q tag between source and EtherType; in no VLAN, a priority tag. It carries no priority yet:
/// [`set_tag_priority`].
#[must_use]
pub fn with_tag(headers: &[u8; HEADERS_BYTES], vlan: Vlan) -> [u8; TAGGED_HEADERS_BYTES] {
    let mut tagged = [0; TAGGED_HEADERS_BYTES];
    let (addresses, rest) = headers.split_at(TAG_OFFSET);
    tagged[..TAG_OFFSET].copy_from_slice(addresses);
    tagged[TAG_OFFSET..TAG_OFFSET + 2].copy_from_slice(&ETHERTYPE_VLAN.to_be_bytes());
    tagged[TAG_OFFSET + 2..TAG_OFFSET + 4].copy_from_slice(&vlan.0.to_be_bytes());
    tagged[TAG_OFFSET + VLAN_TAG_BYTES..].copy_from_slice(rest);
    tagged
}

/// Writes the priority into the tag of headers of [`with_tag`].
///
/// ```
/// use tautline_proto::wire::{Priority, ethernet, ethernet::Vlan};
///
/// let vlan = Vlan::new(0x123).unwrap();
/// let mut tagged = ethernet::with_tag(&[0xAA; ethernet::HEADERS_BYTES], vlan);
/// ethernet::set_tag_priority(&mut tagged, Priority::HIGHEST);
/// assert_eq!(tagged[11..17], [0xAA, 0x81, 0, 0xE1, 0x23, 0xAA]);
/// ```
#[inline]
pub fn set_tag_priority(headers: &mut [u8; TAGGED_HEADERS_BYTES], priority: Priority) {
    let control = &mut headers[TAG_OFFSET + 2];
    *control = priority.get() << 5 | *control & (VLAN_IDENTIFIER_MASK >> 8) as u8;
}

/// Whether an EtherType can be configured for the Ethernet form: a type and not a length, and none
/// that this machine needs for something else (IPv4, ARP, IPv6, VLAN tags).
///
/// ```
/// use tautline_proto::wire::{ETHERTYPE_DEFAULT, ethernet::is_usable_ethertype};
///
/// assert!(is_usable_ethertype(ETHERTYPE_DEFAULT) && is_usable_ethertype(0x88B6));
/// assert!(!is_usable_ethertype(0x0800) && !is_usable_ethertype(0x0100));
/// ```
pub const fn is_usable_ethertype(ethertype: u16) -> bool {
    EtherType::new(ethertype).is_ok()
}

const _: () = assert!(is_usable_ethertype(ETHERTYPE_DEFAULT));

/// Writes addresses and EtherType into the first 14 bytes of `bytes`.
pub(crate) fn emit_ethernet(
    bytes: &mut [u8],
    destination: MacAddress,
    source: MacAddress,
    ethertype: u16,
) {
    bytes[0..6].copy_from_slice(&destination.0);
    bytes[6..12].copy_from_slice(&source.0);
    bytes[12..14].copy_from_slice(&ethertype.to_be_bytes());
}

/// An Ethernet frame with its tag, if any, out of the way.
pub(crate) struct Ethernet<'a> {
    pub(crate) destination: MacAddress,
    pub(crate) source: MacAddress,
    pub(crate) ethertype: u16,
    pub(crate) payload: &'a [u8],
}

impl<'a> Ethernet<'a> {
    /// `None` for a frame that is too short to say what it is, or in a VLAN.
    #[inline]
    pub(crate) fn parse(frame: &'a [u8]) -> Option<Self> {
        Self::parse_in(frame, Vlan::NONE)
    }

    /// `None` for a frame that is too short to say what it is, or outside the VLAN.
    #[inline]
    fn parse_in(frame: &'a [u8], vlan: Vlan) -> Option<Self> {
        let mut header_bytes = ETHERNET_HEADER_BYTES;
        if read_u16(frame, TAG_OFFSET)? == ETHERTYPE_VLAN {
            header_bytes += VLAN_TAG_BYTES;
        }
        if vlan_of(frame) != vlan {
            return None;
        }
        Some(Self {
            destination: read_mac(frame, 0)?,
            source: read_mac(frame, 6)?,
            ethertype: read_u16(frame, header_bytes - 2)?,
            payload: frame.get(header_bytes..)?,
        })
    }

    /// A group address as source could pass for a group that is configured as a destination.
    #[inline]
    pub(crate) fn check_source(&self) -> Result<(), ParseError> {
        if self.source.is_group() {
            Err(ParseError::InvalidSource)
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Priority;
    use super::*;
    use alloc::vec::Vec;

    /// Port 1 to port 2, priority 7, "hi", sequence 9, padded to 60 bytes.
    #[rustfmt::skip]
    const FRAME: [u8; 60] = [
        2, 0, 0, 0, 0, 0xB, 2, 0, 0, 0, 0, 0xA, 0x88, 0xB5,
        0, 2, 0, 2, 7, 0, 1, 0, 0, 1, 1, 0, 0, 0, 0, 9,
        b'h', b'i', 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    ];

    /// `FRAME` with these bytes between source and EtherType.
    fn tagged(tag: &[u8]) -> Vec<u8> {
        [&FRAME[..12], tag, &FRAME[12..]].concat()
    }

    #[test]
    fn a_node_in_a_vlan_takes_frames_of_it_alone() {
        let form = EthernetForm {
            ethertype: 0x88B5,
            vlan: Vlan::new(0x105).unwrap(),
        };
        for tag in [[0x81, 0, 1, 5], [0x81, 0, 0xF1, 5]] {
            let frame = tagged(&tag);
            assert_eq!(
                parse_as(&frame, form).map(|frame| frame.payload),
                Ok(&b"hi"[..])
            );
            assert_eq!(parse(&frame, 0x88B5), Err(Rejected::NotOurs));
        }
        let mut mine = with_tag(FRAME.first_chunk().unwrap(), form.vlan);
        set_tag_priority(&mut mine, Priority::HIGHEST);
        assert_eq!(mine[12..16], [0x81, 0, 0xE1, 5]);
        let priority_tag = tagged(&[0x81, 0, 0xE0, 0]);
        let others = [
            tagged(&[0x81, 0, 0, 5]),
            tagged(&[0x81, 0, 1, 4]),
            priority_tag,
            FRAME.into(),
        ];
        for frame in others {
            assert_eq!(parse_as(&frame, form), Err(Rejected::NotOurs));
        }
    }
}
