//! One sub-device: registers, states, memory management units, and what it does with its process data.

use crate::eeprom::{self, INPUTS, IO_BYTES, OUTPUTS};

/// Addresses of registers (ETG.1000.4, clause 6).
mod register {
    pub(super) const STATION_ADDRESS: usize = 0x0010;
    pub(super) const LINK_STATUS: usize = 0x0110;
    pub(super) const STATE_CONTROL: usize = 0x0120;
    pub(super) const STATE: usize = 0x0130;
    pub(super) const STATE_CODE: usize = 0x0134;
    pub(super) const EEPROM: usize = 0x0500;
    pub(super) const EEPROM_CONTROL: usize = 0x0502;
    pub(super) const EEPROM_ADDRESS: usize = 0x0504;
    pub(super) const EEPROM_DATA: usize = 0x0508;
    pub(super) const EEPROM_END: usize = 0x0510;
    pub(super) const UNITS: usize = 0x0600;
    pub(super) const UNITS_END: usize = 0x0700;
    pub(super) const MANAGERS: usize = 0x0800;
    pub(super) const MANAGERS_END: usize = 0x0880;
    /// Distributed clocks begin, which these devices do not have, and end where memory begins.
    pub(super) const CLOCKS: usize = 0x0900;
    pub(super) const MEMORY: usize = 0x1000;
}

/// Registers and 4 KiB of memory.
const BYTES: usize = 0x2000;
const UNIT_BYTES: usize = 16;
/// Memory management units, and synchronization managers.
const UNITS: u8 = 2;
const MANAGERS: u8 = 2;
const MANAGER_BYTES: usize = 8;

const INIT: u8 = 1;
const PREOP: u8 = 2;
const SAFEOP: u8 = 4;
const OP: u8 = 8;
/// In the state register: the last request was refused. In the control register: that is acknowledged.
const ERROR: u8 = 0x10;
/// Reasons of refusals (ETG.1000.6, clause 5.3.2).
const NO_SUCH_CHANGE: u16 = 0x0011;
const NO_SUCH_STATE: u16 = 0x0012;
const OUTPUTS_WRONG: u16 = 0x001D;
const INPUTS_WRONG: u16 = 0x001E;

/// A sub-device.
pub(crate) struct Device {
    bytes: Box<[u8; BYTES]>,
    eeprom: Vec<u8>,
}

impl Device {
    /// `has_next`: another one is connected behind it.
    pub(crate) fn new(has_next: bool) -> Self {
        let mut bytes = Box::new([0; BYTES]);
        // Type, revision, build, how many units and managers there are, KiB of memory, and two ports, both MII.
        bytes[..8].copy_from_slice(&[0x11, 0, 1, 0, UNITS, MANAGERS, 4, 0x0F]);
        bytes[register::STATE] = INIT;
        // Link on port 0, and on port 1 if something is there; the loops of the others are closed.
        let links: u16 = match has_next {
            true => 0x5A33,
            false => 0x5613,
        };
        bytes[register::LINK_STATUS..][..2].copy_from_slice(&links.to_le_bytes());
        Self {
            bytes,
            eeprom: eeprom::image(),
        }
    }

    pub(crate) fn station_address(&self) -> u16 {
        self.word(register::STATION_ADDRESS)
    }

    fn word(&self, at: usize) -> u16 {
        u16::from_le_bytes([self.bytes[at], self.bytes[at + 1]])
    }

    fn put_word(&mut self, at: usize, value: u16) {
        self.bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }

    /// Registers that are there, all of a range.
    fn range(&self, offset: u16, bytes: usize) -> Option<std::ops::Range<usize>> {
        let start = usize::from(offset);
        let end = start + bytes;
        let is_there = end <= register::CLOCKS || start >= register::MEMORY;
        (bytes > 0 && end <= BYTES && is_there).then_some(start..end)
    }

    pub(crate) fn read(&self, offset: u16, data: &mut [u8]) -> bool {
        let Some(range) = self.range(offset, data.len()) else {
            return false;
        };
        data.copy_from_slice(&self.bytes[range]);
        true
    }

    /// A broadcast: all answers lie over each other.
    pub(crate) fn read_into_all(&self, offset: u16, data: &mut [u8]) -> bool {
        let Some(range) = self.range(offset, data.len()) else {
            return false;
        };
        data.iter_mut()
            .zip(&self.bytes[range])
            .for_each(|(to, from)| *to |= from);
        true
    }

    pub(crate) fn write(&mut self, offset: u16, data: &[u8]) -> bool {
        let Some(range) = self.range(offset, data.len()) else {
            return false;
        };
        let start = range.start;
        let within = |first: usize, end: usize| range.start >= first && range.end <= end;
        if within(register::STATE_CONTROL, register::STATE_CONTROL + 2) {
            self.bytes[range].copy_from_slice(data);
            self.request(self.bytes[register::STATE_CONTROL]);
        } else if within(register::EEPROM, register::EEPROM_END) {
            self.bytes[range].copy_from_slice(data);
            if start <= register::EEPROM_CONTROL + 1 {
                self.command_eeprom();
            }
        } else if within(register::STATION_ADDRESS, register::STATION_ADDRESS + 2)
            || within(register::UNITS, register::UNITS_END)
            || within(register::MANAGERS, register::MANAGERS_END)
            || start >= register::MEMORY
        {
            self.bytes[range].copy_from_slice(data);
        } else {
            return false;
        }
        true
    }

    /// The main device asks for a state.
    fn request(&mut self, control: u8) {
        let (now, wanted) = (self.bytes[register::STATE] & 0x0F, control & 0x0F);
        let has_error = self.bytes[register::STATE] & ERROR != 0;
        if has_error && control & ERROR == 0 {
            return;
        }
        let refused = match (now, wanted) {
            (_, INIT) => None,
            (PREOP | SAFEOP | OP, PREOP) | (SAFEOP | OP, SAFEOP) | (OP, OP) | (INIT, PREOP) => None,
            (PREOP, SAFEOP) => self.mapped(),
            (SAFEOP, OP) => None,
            (_, PREOP | SAFEOP | OP) => Some(NO_SUCH_CHANGE),
            _ => Some(NO_SUCH_STATE),
        };
        let state = match refused {
            None => wanted,
            Some(_) => now | ERROR,
        };
        self.bytes[register::STATE] = state;
        self.put_word(register::STATE_CODE, refused.unwrap_or(0));
    }

    /// Whether outputs and inputs are where the device has them; else, which are not.
    fn mapped(&self) -> Option<u16> {
        let is_at = |manager: usize, address: u16| {
            let at = register::MANAGERS + manager * MANAGER_BYTES;
            self.word(at) == address
                && usize::from(self.word(at + 2)) == IO_BYTES
                && self.bytes[at + 6] & 1 == 1
        };
        match (is_at(0, OUTPUTS), is_at(1, INPUTS)) {
            (false, _) => Some(OUTPUTS_WRONG),
            (true, false) => Some(INPUTS_WRONG),
            (true, true) => None,
        }
    }

    /// A command for the EEPROM: four bytes of it are there at once. It cannot be written.
    fn command_eeprom(&mut self) {
        const READ: u16 = 0x0100;
        const WRITE: u16 = 0x0200;
        const REFUSED: u16 = 0x2000;
        let command = self.word(register::EEPROM_CONTROL);
        if command & READ != 0 {
            let at = register::EEPROM_ADDRESS;
            let word = u32::from_le_bytes(self.bytes[at..at + 4].try_into().unwrap_or_default());
            for index in 0..4 {
                let byte = usize::try_from(word).ok().and_then(|word| {
                    let place = word.checked_mul(2)?.checked_add(index)?;
                    self.eeprom.get(place).copied()
                });
                self.bytes[register::EEPROM_DATA + index] = byte.unwrap_or(0xFF);
            }
        }
        let refused = if command & WRITE != 0 { REFUSED } else { 0 };
        self.put_word(register::EEPROM_CONTROL, refused);
    }

    /// Process data at a logical address, as far as units map it: whether something was read and written, and whether
    /// the datagram asked for both.
    pub(crate) fn logical(
        &mut self,
        address: u32,
        data: &mut [u8],
        reads: bool,
        writes: bool,
    ) -> (bool, bool, bool) {
        let mut came = [0; 0x07FF];
        came[..data.len()].copy_from_slice(data);
        let (mut has_read, mut has_written) = (false, false);
        for unit in 0..usize::from(UNITS) {
            let Some(unit) = self.unit(unit) else {
                continue;
            };
            let (first, last) = (
                u64::from(unit.logical),
                u64::from(unit.logical) + unit.bytes as u64,
            );
            let (from, to) = (u64::from(address), u64::from(address) + data.len() as u64);
            let (start, end) = (first.max(from), last.min(to));
            if start >= end {
                continue;
            }
            let in_data = (start - from) as usize..(end - from) as usize;
            let physical = unit.physical + (start - first) as usize;
            let Some(memory) = self.bytes.get_mut(physical..physical + in_data.len()) else {
                continue;
            };
            if unit.reads && reads {
                data[in_data].copy_from_slice(memory);
                has_read = true;
            } else if unit.writes && writes {
                memory.copy_from_slice(&came[in_data]);
                has_written = true;
            }
        }
        (has_read, has_written, reads && writes)
    }

    /// A memory management unit that is switched on.
    fn unit(&self, index: usize) -> Option<Unit> {
        let at = register::UNITS + index * UNIT_BYTES;
        let bytes: &[u8; UNIT_BYTES] = self.bytes[at..].first_chunk()?;
        let physical = usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
        // Registers are not mapped.
        (bytes[12] & 1 == 1 && physical >= register::MEMORY).then(|| Unit {
            logical: u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
            bytes: usize::from(u16::from_le_bytes([bytes[4], bytes[5]])),
            physical,
            reads: bytes[11] & 1 != 0,
            writes: bytes[11] & 2 != 0,
        })
    }

    /// The device's own program, after each frame.
    pub(crate) fn run(&mut self) {
        if self.bytes[register::STATE] != OP {
            return;
        }
        let (outputs, inputs) = (usize::from(OUTPUTS), usize::from(INPUTS));
        let mut number = [0; IO_BYTES];
        number.copy_from_slice(&self.bytes[outputs..outputs + IO_BYTES]);
        let answer = u64::from_le_bytes(number).wrapping_add(1);
        self.bytes[inputs..inputs + IO_BYTES].copy_from_slice(&answer.to_le_bytes());
    }
}

/// A memory management unit.
struct Unit {
    logical: u32,
    bytes: usize,
    physical: usize,
    reads: bool,
    writes: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_follow_each_other_and_wrong_ones_are_refused() {
        let mut device = Device::new(false);
        let mut ask = |control: u8| {
            assert!(device.write(register::STATE_CONTROL as u16, &[control, 0]));
            let state = device.bytes[register::STATE];
            (state, device.word(register::STATE_CODE))
        };
        assert_eq!(ask(OP), (INIT | ERROR, NO_SUCH_CHANGE));
        // Not before the error is acknowledged.
        assert_eq!(ask(PREOP), (INIT | ERROR, NO_SUCH_CHANGE));
        assert_eq!(ask(INIT | ERROR), (INIT, 0));
        assert_eq!(ask(PREOP), (PREOP, 0));
        // Nobody has said where outputs are.
        assert_eq!(ask(SAFEOP), (PREOP | ERROR, OUTPUTS_WRONG));
    }

    #[test]
    fn the_eeprom_is_read_by_words() {
        let mut device = Device::new(false);
        let request = [0, 1, 0x40, 0, 0, 0];
        assert!(device.write(register::EEPROM_CONTROL as u16, &request));
        let mut data = [0; 4];
        assert!(device.read(register::EEPROM_DATA as u16, &mut data));
        // Category of strings.
        assert_eq!(data[..2], [10, 0]);
        assert_eq!(device.word(register::EEPROM_CONTROL), 0);
    }
}
