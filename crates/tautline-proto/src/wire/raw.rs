//! Raw frames: whole Ethernet frames of other protocols, distinguished by their EtherType.
//!
//! Neither a header of ours nor an address of ours is in them: EtherCAT, PROFINET, PTP or LLDP look as their own
//! standards say. The protocols that Linux itself speaks cannot be had ([`EtherType::new`]).

use core::fmt;

use super::ethernet::{ETHERNET_HEADER_BYTES, ETHERTYPE_VLAN, Ethernet, priority_of};
use super::{MTU_BYTES, MacAddress, Priority};

/// Most bytes of a raw frame, without tag and check sequence: header and a payload of the usual MTU.
pub const RAW_FRAME_BYTES_MAX: usize = ETHERNET_HEADER_BYTES + MTU_BYTES;

/// EtherType of a raw port: one that neither Linux nor the tags of a VLAN need.
///
/// ```
/// use tautline_proto::wire::raw::EtherType;
///
/// let ethercat = EtherType::new(0x88A4)?;
/// assert_eq!(ethercat, EtherType::ETHERCAT);
/// assert_eq!(ethercat.to_string(), "0x88a4");
/// assert!(EtherType::new(0x0800).is_err()); // IPv4
/// assert!(EtherType::new(0x05DC).is_err()); // a length, not a type
/// # Ok::<(), tautline_proto::wire::raw::EtherTypeError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EtherType(u16);

/// Why a number is not the EtherType of a raw port.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EtherTypeError {
    /// Below 0x0600 the field is a length (IEEE 802.3, clause 3.2.6).
    Length(u16),
    /// Linux's own: IPv4, ARP, IPv6.
    Linux(u16),
    /// A tag of 802.1Q or 802.1ad, behind which the type stands.
    Tag(u16),
}

impl EtherType {
    /// EtherCAT (IEC 61158, type 12).
    pub const ETHERCAT: Self = Self(0x88A4);

    /// The EtherType of this number.
    ///
    /// # Errors
    /// [`EtherTypeError`].
    pub const fn new(number: u16) -> Result<Self, EtherTypeError> {
        match number {
            0..0x0600 => Err(EtherTypeError::Length(number)),
            0x0800 | 0x0806 | 0x86DD => Err(EtherTypeError::Linux(number)),
            ETHERTYPE_VLAN | 0x88A8 | 0x9100 => Err(EtherTypeError::Tag(number)),
            _ => Ok(Self(number)),
        }
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0
    }
}

impl EtherType {
    /// The number that a text has: hexadecimal behind `0x`, otherwise decimal. It may be that of no raw port.
    ///
    /// ```
    /// use tautline_proto::wire::raw::EtherType;
    ///
    /// assert_eq!(EtherType::number_of("0x88a4"), Some(0x88a4));
    /// assert_eq!(EtherType::number_of("34980"), Some(0x88a4));
    /// assert_eq!(EtherType::number_of("88a4"), None);
    /// ```
    #[must_use]
    pub fn number_of(text: &str) -> Option<u16> {
        match text.strip_prefix("0x") {
            Some(digits) => u16::from_str_radix(digits, 16).ok(),
            None => text.parse().ok(),
        }
    }
}

impl fmt::Display for EtherType {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:#06x}", self.0)
    }
}

impl fmt::Display for EtherTypeError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length(number) => write!(
                formatter,
                "{number:#06x} is a length, not an EtherType (0x0600 to 0xffff)"
            ),
            Self::Linux(number) => write!(
                formatter,
                "EtherType {number:#06x} is Linux's own (IPv4, ARP, IPv6)"
            ),
            Self::Tag(number) => write!(
                formatter,
                "{number:#06x} is the tag of a VLAN, not an EtherType"
            ),
        }
    }
}

impl core::error::Error for EtherTypeError {}

/// The message: Rust prints an error that `main` returns with `Debug`.
impl fmt::Debug for EtherTypeError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

/// A raw frame, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawFrame<'a> {
    /// Station or group that it is for.
    pub destination: MacAddress,
    /// Station that it names as its sender. Protocols may write anything there, EtherCAT does.
    pub source: MacAddress,
    /// EtherType behind the tag, if there is one.
    pub ethertype: u16,
    /// Priority of its tag; the lowest without one.
    pub priority: Priority,
    /// Bytes behind the EtherType, padding among them.
    pub payload: &'a [u8],
}

impl<'a> RawFrame<'a> {
    /// The EtherType of a frame of any length, behind a tag of no VLAN if there is one. `None` if the frame ends before
    /// its EtherType does, or is in a VLAN.
    #[must_use]
    pub fn ethertype_of(frame: &[u8]) -> Option<u16> {
        Ethernet::parse(frame).map(|frame| frame.ethertype)
    }

    /// Takes a frame apart, from the destination address on, without the check sequence. An 802.1Q tag of no VLAN is
    /// skipped. `None` if the frame ends before its EtherType does, is in a VLAN, or is longer than
    /// [`RAW_FRAME_BYTES_MAX`] and a tag.
    #[must_use]
    pub fn parse(frame: &'a [u8]) -> Option<Self> {
        let Ethernet {
            destination,
            source,
            ethertype,
            payload,
        } = Ethernet::parse(frame)?;
        (payload.len() <= MTU_BYTES).then(|| Self {
            destination,
            source,
            ethertype,
            priority: priority_of(frame),
            payload,
        })
    }
}

/// Bytes of a [`RawHead`].
pub const RAW_HEAD_BYTES: usize = 12;

/// Head of a raw frame in a port's memory, where a message of ours has its header; the frame's payload begins behind
/// it. The sender's address is in the slot's source word. `struct tl_raw_head` of `bpf/tautline.h`; numbers in network
/// byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RawHead {
    /// EtherType.
    pub ethertype: u16,
    /// Bytes of the frame's payload.
    pub length: u16,
    /// Priority of its tag; the lowest without one.
    pub priority: Priority,
    /// Station or group that it was sent to.
    pub destination: MacAddress,
}

impl RawHead {
    /// Bytes in memory.
    #[must_use]
    pub const fn to_bytes(&self) -> [u8; RAW_HEAD_BYTES] {
        let [type_high, type_low] = self.ethertype.to_be_bytes();
        let [length_high, length_low] = self.length.to_be_bytes();
        let [a, b, c, d, e, f] = self.destination.0;
        let priority = self.priority.get();
        [
            type_high,
            type_low,
            length_high,
            length_low,
            priority,
            0,
            a,
            b,
            c,
            d,
            e,
            f,
        ]
    }

    /// From memory; `None` if the priority is none or the length more than a frame has, which only another's
    /// scribbling brings about.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; RAW_HEAD_BYTES]) -> Option<Self> {
        let [
            type_high,
            type_low,
            length_high,
            length_low,
            priority,
            _,
            a,
            b,
            c,
            d,
            e,
            f,
        ] = *bytes;
        let length = u16::from_be_bytes([length_high, length_low]);
        Some(Self {
            ethertype: u16::from_be_bytes([type_high, type_low]),
            length: (usize::from(length) <= MTU_BYTES).then_some(length)?,
            priority: Priority::new(priority)?,
            destination: MacAddress([a, b, c, d, e, f]),
        })
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    const UNTAGGED: [u8; 16] = [
        0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x10, 0x10, 0x10, 0x10, 0x10, 0x10, 0x88, 0xA4, 0x0E,
        0x10,
    ];

    #[test]
    fn a_frame_is_taken_apart() {
        let frame = RawFrame::parse(&UNTAGGED).unwrap();
        assert_eq!(frame.destination, MacAddress([0xFF; 6]));
        assert_eq!(frame.source, MacAddress([0x10; 6]));
        assert_eq!(
            (frame.ethertype, frame.priority),
            (0x88A4, Priority::LOWEST)
        );
        assert_eq!(frame.payload, [0x0E, 0x10]);
    }

    #[test]
    fn a_tag_of_no_vlan_is_skipped_and_others_are_not() {
        let tagged = |tag: [u8; 2]| {
            let mut frame = UNTAGGED[..12].to_vec();
            frame.extend([0x81, 0x00, tag[0], tag[1], 0x88, 0xA4, 1, 2, 3]);
            frame
        };
        // Priority 5, and the bit of drop eligibility.
        let urgent = tagged([0xB0, 0x00]);
        let frame = RawFrame::parse(&urgent).unwrap();
        assert_eq!((frame.ethertype, frame.priority.get()), (0x88A4, 5));
        assert_eq!(frame.payload, [1, 2, 3]);
        assert_eq!(RawFrame::parse(&tagged([0xA0, 0x05])), None);
        assert_eq!(RawFrame::parse(&tagged([0xA1, 0x00])), None);
    }

    #[test]
    fn short_and_long_frames_are_none() {
        for length in 0..14 {
            assert_eq!(RawFrame::parse(&UNTAGGED[..length]), None, "{length}");
        }
        assert_eq!(RawFrame::parse(&UNTAGGED[..14]).unwrap().payload, []);
        let mut tagged = UNTAGGED[..12].to_vec();
        tagged.extend([0x81, 0x00, 0xA0, 0x00, 0x88]);
        assert_eq!(RawFrame::parse(&tagged), None);
        let mut long = UNTAGGED[..14].to_vec();
        long.resize(RAW_FRAME_BYTES_MAX, 0);
        assert_eq!(RawFrame::parse(&long).unwrap().payload.len(), 1_500);
        long.push(0);
        assert_eq!(RawFrame::parse(&long), None);
    }

    #[test]
    fn a_head_is_the_same_after_memory() {
        let head = RawHead {
            ethertype: 0x88A4,
            length: 1_500,
            priority: Priority::HIGHEST,
            destination: MacAddress([1, 2, 3, 4, 5, 6]),
        };
        let bytes = head.to_bytes();
        assert_eq!(bytes, [0x88, 0xA4, 0x05, 0xDC, 7, 0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(RawHead::from_bytes(&bytes), Some(head));
        for (at, wrong) in [(3, 0xDD), (4, 8)] {
            let mut scribbled = bytes;
            scribbled[at] = wrong;
            assert_eq!(RawHead::from_bytes(&scribbled), None);
        }
    }

    #[test]
    fn types_of_linux_lengths_and_tags_are_refused() {
        let why = |number| EtherType::new(number).unwrap_err().to_string();
        assert_eq!(
            why(0x05FF),
            "0x05ff is a length, not an EtherType (0x0600 to 0xffff)"
        );
        assert_eq!(
            why(0x86DD),
            "EtherType 0x86dd is Linux's own (IPv4, ARP, IPv6)"
        );
        assert_eq!(why(0x8100), "0x8100 is the tag of a VLAN, not an EtherType");
        assert_eq!(EtherType::new(0x0600).map(EtherType::get), Ok(0x0600));
    }
}
