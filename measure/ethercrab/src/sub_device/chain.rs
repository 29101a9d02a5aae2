//! The way of a frame through a chain of sub-devices: each reads and writes its datagrams while it passes (ETG.1000.4,
//! clauses 5.3 and 5.4).

use crate::device::Device;

const ETHERNET_HEADER_BYTES: usize = 14;
/// Length and type of what follows.
const HEADER_BYTES: usize = 2;
/// Command, index, address, length, interrupt.
const DATAGRAM_HEADER_BYTES: usize = 10;
const COUNTER_BYTES: usize = 2;
/// Type of an EtherCAT frame with datagrams.
const DATAGRAMS: u16 = 1;
/// Bits of a length.
const LENGTH_MASK: u16 = 0x07FF;
/// One more datagram follows.
const MORE: u16 = 0x8000;

/// Addressing of a datagram.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Addressing {
    /// By position: the device that finds zero there is meant, and each adds one.
    Position,
    /// By the station address that the main device gave.
    Station,
    /// Everybody.
    Broadcast,
    /// By logical address, through the memory management units.
    Logical,
}

/// Direction of a datagram.
#[derive(Clone, Copy)]
struct Direction {
    reads: bool,
    writes: bool,
}

/// Sub-devices in the order of the cable.
pub(crate) struct Chain(Vec<Device>);

impl Chain {
    pub(crate) fn of(count: usize) -> Self {
        let devices = (0..count).map(|index| Device::new(index + 1 < count));
        Self(devices.collect())
    }

    /// Lets a frame pass; whether it is one of EtherCAT's that goes back.
    pub(crate) fn process(&mut self, frame: &mut [u8]) -> bool {
        let Some((ethernet, rest)) = frame.split_at_mut_checked(ETHERNET_HEADER_BYTES) else {
            return false;
        };
        let Some((header, rest)) = rest.split_at_mut_checked(HEADER_BYTES) else {
            return false;
        };
        let header = u16::from_le_bytes([header[0], header[1]]);
        let length = usize::from(header & LENGTH_MASK);
        if header >> 12 != DATAGRAMS || length > rest.len() {
            return false;
        }
        // The first device of a chain marks the sender as not the main device's own address.
        ethernet[6] |= 0x02;
        for device in &mut self.0 {
            pass(device, &mut rest[..length]);
            device.run();
        }
        true
    }
}

/// All datagrams of a frame, at one device.
fn pass(device: &mut Device, mut rest: &mut [u8]) {
    while let Some((header, behind)) = rest.split_first_chunk_mut::<DATAGRAM_HEADER_BYTES>() {
        let length = u16::from_le_bytes([header[6], header[7]]);
        let bytes = usize::from(length & LENGTH_MASK);
        let Some((content, next)) = behind.split_at_mut_checked(bytes + COUNTER_BYTES) else {
            return;
        };
        let (data, counter) = content.split_at_mut(bytes);
        let added = datagram(device, header, data);
        let counted = u16::from_le_bytes([counter[0], counter[1]]).wrapping_add(added);
        counter.copy_from_slice(&counted.to_le_bytes());
        if length & MORE == 0 {
            return;
        }
        rest = next;
    }
}

/// One datagram; what the working counter rises by.
fn datagram(device: &mut Device, header: &mut [u8; DATAGRAM_HEADER_BYTES], data: &mut [u8]) -> u16 {
    let Some((addressing, direction)) = command(header[0]) else {
        return 0;
    };
    let [_, _, low, high, first, second, ..] = *header;
    let (station, offset) = (
        u16::from_le_bytes([low, high]),
        u16::from_le_bytes([first, second]),
    );
    if matches!(addressing, Addressing::Position | Addressing::Broadcast) {
        header[2..4].copy_from_slice(&station.wrapping_add(1).to_le_bytes());
    }
    let is_meant = match addressing {
        Addressing::Position => station == 0,
        Addressing::Station => station == device.station_address(),
        Addressing::Broadcast => true,
        Addressing::Logical => {
            let address = u32::from_le_bytes([low, high, first, second]);
            return counted(device.logical(address, data, direction.reads, direction.writes));
        }
    };
    if !is_meant {
        return 0;
    }
    // The bytes that came are written, also where the answer is read over them.
    let mut written = [0; LENGTH_MASK as usize];
    let written = &mut written[..data.len()];
    written.copy_from_slice(data);
    let has_read = direction.reads
        && match addressing {
            Addressing::Broadcast => device.read_into_all(offset, data),
            _ => device.read(offset, data),
        };
    let has_written = direction.writes && device.write(offset, written);
    counted((has_read, has_written, direction.reads && direction.writes))
}

/// One for a read, one for a write; of those that do both, the write counts twice.
fn counted((has_read, has_written, is_both): (bool, bool, bool)) -> u16 {
    let of_write = if is_both { 2 } else { 1 };
    u16::from(has_read) + u16::from(has_written) * of_write
}

fn command(number: u8) -> Option<(Addressing, Direction)> {
    let (addressing, group) = match number {
        1..=3 => (Addressing::Position, number - 1),
        4..=6 => (Addressing::Station, number - 4),
        7..=9 => (Addressing::Broadcast, number - 7),
        10..=12 => (Addressing::Logical, number - 10),
        // NOP, and those of distributed clocks, which these devices do not have.
        _ => return None,
    };
    let direction = Direction {
        reads: group != 1,
        writes: group != 0,
    };
    Some((addressing, direction))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame with datagrams of command, address and data.
    fn frame(datagrams: &[(u8, u32, &[u8])]) -> Vec<u8> {
        let mut content = Vec::new();
        for (index, (command, address, data)) in datagrams.iter().enumerate() {
            let more = if index + 1 < datagrams.len() { MORE } else { 0 };
            content.extend([*command, index as u8]);
            content.extend(address.to_le_bytes());
            content.extend((data.len() as u16 | more).to_le_bytes());
            content.extend([0, 0]);
            content.extend(*data);
            content.extend([0, 0]);
        }
        let header = (content.len() as u16 | DATAGRAMS << 12).to_le_bytes();
        let ethernet = [[0xFF; 6], [0x10; 6]].concat();
        [&ethernet[..], &[0x88, 0xA4], &header, &content].concat()
    }

    fn counter(frame: &[u8]) -> u16 {
        let end = frame.len();
        u16::from_le_bytes([frame[end - 2], frame[end - 1]])
    }

    #[test]
    fn everybody_answers_a_broadcast_and_is_counted() {
        let mut chain = Chain::of(3);
        let mut frame = frame(&[(7, 0, &[0])]);
        assert!(chain.process(&mut frame));
        assert_eq!(counter(&frame), 3);
        assert_eq!(frame[6], 0x12);
        // Each adds one to the address.
        assert_eq!(frame[18], 3);
    }

    #[test]
    fn the_position_decides_who_gets_an_address() {
        let mut chain = Chain::of(2);
        // The second one: minus one.
        let mut given = frame(&[(2, 0x0010_FFFF, &[0x01, 0x10])]);
        assert!(chain.process(&mut given));
        assert_eq!(counter(&given), 1);
        let mut asked = frame(&[(4, 0x0010_1001, &[0, 0])]);
        assert!(chain.process(&mut asked));
        assert_eq!((counter(&asked), &asked[26..28]), (1, &[0x01, 0x10][..]));
    }

    #[test]
    fn registers_that_are_not_there_do_not_count() {
        let mut chain = Chain::of(1);
        // Distributed clocks.
        let mut frame = frame(&[(8, 0x0900_0000, &[0; 4])]);
        assert!(chain.process(&mut frame));
        assert_eq!(counter(&frame), 0);
    }

    #[test]
    fn damaged_frames_do_no_harm() {
        let mut chain = Chain::of(1);
        let whole = frame(&[
            (7, 0, &[0; 8]),
            (12, 0, &[0; 16]),
            (6, 0x0120_0000, &[1, 0]),
        ]);
        for length in 0..whole.len() {
            chain.process(&mut whole[..length].to_vec());
        }
        for index in 14..whole.len() {
            for bit in 0..8 {
                let mut damaged = whole.clone();
                damaged[index] ^= 1 << bit;
                chain.process(&mut damaged);
            }
        }
    }
}
