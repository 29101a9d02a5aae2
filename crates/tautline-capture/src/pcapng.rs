//! The file format of Wireshark: pcapng (draft-ietf-opsawg-pcapng), the parts that are written here. Nothing is read.
//!
//! By hand: five kinds of block are a page of code. The crate `pcap-file` has been at release candidates of its
//! version 3 for years, and parses what is not needed here.

/// Frames with their Ethernet header (`LINKTYPE_ETHERNET`).
pub const LINK_ETHERNET: u16 = 1;
/// Messages of a bus: the first of the types that are left to users (`LINKTYPE_USER0`). docs/reference/capture.md has
/// the bytes.
pub const LINK_BUS: u16 = 147;

const SECTION: u32 = 0x0A0D_0D0A;
const INTERFACE: u32 = 1;
const NAMES: u32 = 4;
const STATISTICS: u32 = 5;
const PACKET: u32 = 6;
/// Bytes in the machine's order begin with this word.
const BYTE_ORDER: u32 = 0x1A2B_3C4D;

const OPTION_END: u16 = 0;
const OPTION_COMMENT: u16 = 1;
const SECTION_APPLICATION: u16 = 4;
const INTERFACE_NAME: u16 = 2;
const INTERFACE_DESCRIPTION: u16 = 3;
const INTERFACE_RESOLUTION: u16 = 9;
/// Nanoseconds: a negative power of ten.
const NANOSECONDS: u8 = 9;
const PACKET_FLAGS: u16 = 2;
const PACKET_DROPS: u16 = 4;
const NAME_END: u16 = 0;
const NAME_IPV4: u16 = 1;
const NAME_EUI48: u16 = 3;
const STATISTICS_RECEIVED: u16 = 4;
const STATISTICS_DROPPED: u16 = 5;

use crate::batch::Way;
use crate::frame::End;

/// A block that is being written at the end of a buffer.
struct Block<'b> {
    buffer: &'b mut Vec<u8>,
    begin: usize,
}

impl<'b> Block<'b> {
    fn begin(buffer: &'b mut Vec<u8>, kind: u32) -> Self {
        let begin = buffer.len();
        buffer.extend(kind.to_ne_bytes());
        buffer.extend([0; 4]);
        Self { buffer, begin }
    }

    fn with(self, bytes: &[u8]) -> Self {
        self.buffer.extend_from_slice(bytes);
        let end = (self.buffer.len() - self.begin).next_multiple_of(4);
        self.buffer.resize(self.begin + end, 0);
        self
    }

    fn option(self, kind: u16, value: &[u8]) -> Self {
        // Names and comments are cut to what an option can hold.
        let value = &value[..value.len().min(usize::from(u16::MAX))];
        self.buffer.extend(kind.to_ne_bytes());
        self.buffer.extend((value.len() as u16).to_ne_bytes());
        self.with(value)
    }

    fn end(self) {
        let length = (self.buffer.len() - self.begin + 4) as u32;
        self.buffer[self.begin + 4..self.begin + 8].copy_from_slice(&length.to_ne_bytes());
        self.buffer.extend(length.to_ne_bytes());
    }
}

/// Appends the block that a file begins with.
pub fn section(buffer: &mut Vec<u8>) {
    let version: [u16; 2] = [1, 0];
    Block::begin(buffer, SECTION)
        .with(&BYTE_ORDER.to_ne_bytes())
        .with(&[version[0].to_ne_bytes(), version[1].to_ne_bytes()].concat())
        // The length is not known beforehand.
        .with(&u64::MAX.to_ne_bytes())
        .option(SECTION_APPLICATION, b"Tautline")
        .option(OPTION_END, &[])
        .end();
}

/// Appends the description of an interface. The first has number 0.
pub fn interface(buffer: &mut Vec<u8>, link: u16, name: &str, description: &str) {
    Block::begin(buffer, INTERFACE)
        .with(&u32::from_ne_bytes(two(link, 0)).to_ne_bytes())
        // No limit on the bytes that are kept.
        .with(&0u32.to_ne_bytes())
        .option(INTERFACE_NAME, name.as_bytes())
        .option(INTERFACE_DESCRIPTION, description.as_bytes())
        .option(INTERFACE_RESOLUTION, &[NANOSECONDS])
        .option(OPTION_END, &[])
        .end();
}

fn two(one: u16, other: u16) -> [u8; 4] {
    let (one, other) = (one.to_ne_bytes(), other.to_ne_bytes());
    [one[0], one[1], other[0], other[1]]
}

/// Appends the names of addresses, which Wireshark shows if it is to resolve these. Version 4.0 ignores those of MAC
/// addresses.
pub fn names(buffer: &mut Vec<u8>, named: &[(End, String)]) {
    let mut block = Block::begin(buffer, NAMES);
    for (end, name) in named {
        let (kind, address) = match end {
            End::Ip(ip) => (NAME_IPV4, ip.octets().to_vec()),
            End::Mac(mac) => (NAME_EUI48, mac.0.to_vec()),
        };
        // Records have the form of options. A name ends with a zero.
        block = block.option(kind, &[&address, name.as_bytes(), &[0]].concat());
    }
    block.option(NAME_END, &[]).end();
}

/// A frame or message for a file.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// Number of its interface in the file.
    pub interface: u32,
    /// Nanoseconds since 1970.
    pub time_ns: u64,
    /// Its way.
    pub way: Way,
    /// Bytes that it had, which may be more than are kept.
    pub length: u32,
    /// Bytes that are kept.
    pub bytes: &'a [u8],
    /// Frames or messages that were lost just before it.
    pub lost: u64,
    /// A remark for the reader; none if empty.
    pub comment: &'a str,
}

/// Appends a frame or message.
pub fn packet(buffer: &mut Vec<u8>, packet: &Packet<'_>) {
    let flags: u32 = match packet.way {
        Way::Received => 1,
        Way::Sent => 2,
    };
    let mut block = Block::begin(buffer, PACKET)
        .with(&packet.interface.to_ne_bytes())
        .with(&((packet.time_ns >> 32) as u32).to_ne_bytes())
        .with(&(packet.time_ns as u32).to_ne_bytes())
        .with(&(packet.bytes.len() as u32).to_ne_bytes())
        .with(&packet.length.to_ne_bytes())
        .with(packet.bytes)
        .option(PACKET_FLAGS, &flags.to_ne_bytes());
    if packet.lost > 0 {
        block = block.option(PACKET_DROPS, &packet.lost.to_ne_bytes());
    }
    if !packet.comment.is_empty() {
        block = block.option(OPTION_COMMENT, packet.comment.as_bytes());
    }
    block.option(OPTION_END, &[]).end();
}

/// Appends the figures of an interface, for the end of a file.
pub fn statistics(buffer: &mut Vec<u8>, interface: u32, time_ns: u64, received: u64, lost: u64) {
    Block::begin(buffer, STATISTICS)
        .with(&interface.to_ne_bytes())
        .with(&((time_ns >> 32) as u32).to_ne_bytes())
        .with(&(time_ns as u32).to_ne_bytes())
        .option(STATISTICS_RECEIVED, &received.to_ne_bytes())
        .option(STATISTICS_DROPPED, &lost.to_ne_bytes())
        .option(OPTION_END, &[])
        .end();
}

#[cfg(test)]
mod tests {
    use tautline_proto::wire::MacAddress;

    use super::*;

    fn words(bytes: &[u8]) -> Vec<u32> {
        let words = bytes.chunks(4);
        words
            .map(|word| u32::from_ne_bytes(word.try_into().unwrap()))
            .collect()
    }

    #[test]
    fn a_packet_has_the_bytes_of_the_format() {
        let mut buffer = Vec::new();
        let mut one = Packet {
            interface: 3,
            time_ns: 0x1_0000_0002,
            way: Way::Sent,
            length: 70_000,
            bytes: b"abcde",
            lost: 0,
            comment: "",
        };
        packet(&mut buffer, &one);
        let bytes = u32::from_ne_bytes(*b"abcd");
        let last = u32::from_ne_bytes([b'e', 0, 0, 0]);
        let option = u32::from_ne_bytes(two(2, 4));
        let expected = [6, 52, 3, 1, 2, 5, 70_000, bytes, last, option, 2, 0, 52];
        assert_eq!(words(&buffer), expected);

        buffer.clear();
        one.lost = 7;
        one.comment = "x";
        packet(&mut buffer, &one);
        assert_eq!(buffer.len(), 52 + 12 + 8);
    }

    #[test]
    fn names_have_the_bytes_of_the_format() {
        let mut buffer = Vec::new();
        let named = [
            (End::Ip([10, 0, 0, 2].into()), "arm".to_owned()),
            (End::Mac(MacAddress([2, 0, 0, 0, 0, 9])), "m".to_owned()),
        ];
        names(&mut buffer, &named);
        let word = u32::from_ne_bytes;
        let expected = [
            4,
            40,
            word(two(1, 8)),
            word([10, 0, 0, 2]),
            word(*b"arm\0"),
            word(two(3, 8)),
            word([2, 0, 0, 0]),
            word([0, 9, b'm', 0]),
            0,
            40,
        ];
        assert_eq!(words(&buffer), expected);
    }

    #[test]
    fn every_block_says_its_length_at_both_ends() {
        let mut buffer = Vec::new();
        section(&mut buffer);
        interface(&mut buffer, LINK_BUS, "a", "a longer description");
        statistics(&mut buffer, 0, 1, 2, 3);
        let mut rest = &buffer[..];
        let mut count = 0;
        while !rest.is_empty() {
            let length = u32::from_ne_bytes(rest[4..8].try_into().unwrap()) as usize;
            let again = u32::from_ne_bytes(rest[length - 4..length].try_into().unwrap());
            assert_eq!(length, again as usize);
            assert_eq!(length % 4, 0);
            rest = &rest[length..];
            count += 1;
        }
        assert_eq!(count, 3);
    }
}
