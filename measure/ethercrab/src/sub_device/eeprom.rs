//! Image of a sub-device's EEPROM (ETG.2010): what it is, and where its process data are.

/// Bytes of outputs, and of inputs.
pub(crate) const IO_BYTES: usize = 8;
/// Address of the outputs in the device's memory.
pub(crate) const OUTPUTS: u16 = 0x1000;
/// Address of the inputs.
pub(crate) const INPUTS: u16 = 0x1100;

/// First word of the categories.
const CATEGORIES: usize = 0x40;
const STRINGS: u16 = 10;
const GENERAL: u16 = 30;
const UNITS: u16 = 40;
const MANAGERS: u16 = 41;
const INPUT_OBJECTS: u16 = 50;
const OUTPUT_OBJECTS: u16 = 51;
const END: u16 = 0xFFFF;
const NAME: &[u8] = b"simulated";

/// The whole image.
pub(crate) fn image() -> Vec<u8> {
    let mut image = vec![0; CATEGORIES * 2];
    image[14] = checksum(&image[..14]);
    // Nobody's vendor number, product, revision, serial number.
    image[16..32].copy_from_slice(&[0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0]);
    // Size in KiBit less one, and version.
    image[0x7C] = 15;
    image[0x7E] = 1;
    let name = [&[1, NAME.len() as u8], NAME].concat();
    category(&mut image, STRINGS, &name);
    // The first string is order number and name.
    let mut general = [0; 32];
    (general[2], general[3]) = (1, 1);
    category(&mut image, GENERAL, &general);
    // The first unit is for outputs, the second for inputs; so are the managers.
    category(&mut image, UNITS, &[1, 2]);
    let managers = [manager(OUTPUTS, 0x64, 3), manager(INPUTS, 0x20, 4)];
    category(&mut image, MANAGERS, &managers.concat());
    category(&mut image, INPUT_OBJECTS, &object(0x1A00, 1, 0x6000));
    category(&mut image, OUTPUT_OBJECTS, &object(0x1600, 0, 0x7000));
    image.extend(END.to_le_bytes());
    image.resize(2048, 0xFF);
    image
}

/// One category, filled up to whole words.
fn category(image: &mut Vec<u8>, kind: u16, content: &[u8]) {
    let words = content.len().div_ceil(2);
    image.extend(kind.to_le_bytes());
    image.extend((words as u16).to_le_bytes());
    image.extend(content);
    image.resize(image.len() + words * 2 - content.len(), 0);
}

/// Start, length, control, status, switched on, kind.
fn manager(start: u16, control: u8, kind: u8) -> [u8; 8] {
    let [low, high] = start.to_le_bytes();
    [low, high, IO_BYTES as u8, 0, control, 0, 1, kind]
}

/// A process data object with one entry, a number of 64 bits.
fn object(number: u16, manager: u8, entry: u16) -> [u8; 16] {
    let ([low, high], [first, second]) = (number.to_le_bytes(), entry.to_le_bytes());
    let bits = (IO_BYTES * 8) as u8;
    [
        low, high, 1, manager, 0, 0, 0, 0, first, second, 1, 0, 0x1B, bits, 0, 0,
    ]
}

/// CRC-8 with polynomial 0x07, begun with 0xff.
fn checksum(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0xFF, |mut sum, byte| {
        sum ^= byte;
        for _ in 0..8 {
            sum = sum << 1 ^ if sum & 0x80 != 0 { 0x07 } else { 0 };
        }
        sum
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn categories_follow_each_other_to_the_end() {
        let image = image();
        let word = |at: usize| u16::from_le_bytes([image[2 * at], image[2 * at + 1]]);
        let mut at = CATEGORIES;
        let mut kinds = Vec::new();
        while word(at) != END {
            kinds.push(word(at));
            at += 2 + usize::from(word(at + 1));
        }
        let expected = [
            STRINGS,
            GENERAL,
            UNITS,
            MANAGERS,
            INPUT_OBJECTS,
            OUTPUT_OBJECTS,
        ];
        assert_eq!(kinds, expected);
    }
}
