//! The values that frames carry and people configure, valid by construction.

use core::fmt;
use core::str::FromStr;

use super::raw::EtherTypeError;
use super::{PORT_MAX, PRIORITY_COUNT, UDP_PORT_BASE};

/// Why a number or text is not a port, a priority or an address.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ValueError {
    /// The text is not a decimal number.
    NotANumber,
    /// The port number, carried here, is not in 1..=4095.
    PortOutOfRange(u64),
    /// The UDP port, carried here, is not in 1..=65535.
    UdpPortOutOfRange(u64),
    /// The text is not a 16-bit number, hexadecimal after `0x`.
    NotAnEtherType,
    /// The number is not the EtherType of a raw port.
    EtherType(EtherTypeError),
    /// The priority, carried here, is not in 0..=7.
    PriorityOutOfRange(u64),
    /// The text is not six pairs of hexadecimal digits joined by colons or hyphens.
    NotAMacAddress,
}

impl fmt::Display for ValueError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotANumber => formatter.write_str("not a decimal number"),
            Self::PortOutOfRange(value) => {
                write!(formatter, "port {value} is out of range, 1 to {PORT_MAX}")
            }
            Self::UdpPortOutOfRange(value) => {
                write!(formatter, "UDP port {value} is out of range, 1 to 65535")
            }
            Self::NotAnEtherType => formatter.write_str("not an EtherType such as 0x88a4"),
            Self::EtherType(error) => error.fmt(formatter),
            Self::PriorityOutOfRange(value) => write!(
                formatter,
                "priority {value} is out of range, 0 to {}, {0} most urgent",
                PRIORITY_COUNT - 1
            ),
            Self::NotAMacAddress => {
                formatter.write_str("not a MAC address such as 02:00:5e:10:00:01")
            }
        }
    }
}

impl core::error::Error for ValueError {}

/// The message: Rust prints an error that `main` returns with `Debug`.
impl fmt::Debug for ValueError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

/// The number of a port, 1 to [`PORT_MAX`].
///
/// ```
/// use tautline_proto::wire::PortNumber;
///
/// let port: PortNumber = "17".parse()?;
/// assert_eq!(port.get(), 17);
/// assert_eq!(port, PortNumber::try_from(17u16)?);
/// assert_eq!(port.udp_port(), 21_586);
/// assert!(PortNumber::try_from(0u16).is_err());
/// assert!("4096".parse::<PortNumber>().is_err());
/// # Ok::<(), tautline_proto::wire::ValueError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortNumber(u16);

impl PortNumber {
    /// The lowest port, 1.
    pub const MIN: Self = Self(1);
    /// The highest port, [`PORT_MAX`].
    pub const MAX: Self = Self(PORT_MAX);

    /// The port with this number, `None` out of range. For constants: `const P: PortNumber =
    /// PortNumber::new(7).unwrap();`.
    pub const fn new(number: u16) -> Option<Self> {
        if number == 0 || number > PORT_MAX {
            None
        } else {
            Some(Self(number))
        }
    }

    /// The number, 1 to [`PORT_MAX`].
    pub const fn get(self) -> u16 {
        self.0
    }

    /// The number as an index into a table of `PORT_MAX + 1` entries.
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// The UDP port that stands for this port in the UDP form.
    pub const fn udp_port(self) -> u16 {
        UDP_PORT_BASE + self.0
    }

    /// The port that a UDP port stands for, `None` if it is outside the UDP form's range.
    pub const fn from_udp_port(udp_port: u16) -> Option<Self> {
        match udp_port.checked_sub(UDP_PORT_BASE) {
            Some(number) => Self::new(number),
            None => None,
        }
    }
}

impl TryFrom<u16> for PortNumber {
    type Error = ValueError;

    fn try_from(number: u16) -> Result<Self, ValueError> {
        Self::new(number).ok_or(ValueError::PortOutOfRange(number.into()))
    }
}

impl From<PortNumber> for u16 {
    fn from(port: PortNumber) -> Self {
        port.0
    }
}

impl FromStr for PortNumber {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let number: u64 = text.parse().map_err(|_| ValueError::NotANumber)?;
        u16::try_from(number)
            .ok()
            .and_then(Self::new)
            .ok_or(ValueError::PortOutOfRange(number))
    }
}

impl fmt::Display for PortNumber {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// How urgent a message is, 0 to 7, 7 most urgent; the numbers of the 802.1Q PCP.
///
/// ```
/// use tautline_proto::wire::Priority;
///
/// assert!(Priority::HIGHEST > Priority::NORMAL);
/// assert_eq!("7".parse(), Ok(Priority::HIGHEST));
/// assert!(Priority::try_from(8u8).is_err());
/// assert_eq!(Priority::ALL[5].get(), 5);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Priority(u8);

impl Priority {
    /// Least urgent, 0.
    pub const LOWEST: Self = Self(0);
    /// For messages that name no priority: 3, so that there is room on both sides.
    pub const NORMAL: Self = Self(3);
    /// Most urgent, 7.
    pub const HIGHEST: Self = Self(7);
    /// All priorities, each at its own index.
    pub const ALL: [Self; PRIORITY_COUNT] = [
        Self(0),
        Self(1),
        Self(2),
        Self(3),
        Self(4),
        Self(5),
        Self(6),
        Self(7),
    ];

    /// The priority with this number, `None` above 7.
    pub const fn new(number: u8) -> Option<Self> {
        if (number as usize) < PRIORITY_COUNT {
            Some(Self(number))
        } else {
            None
        }
    }

    /// The number, 0 to 7.
    pub const fn get(self) -> u8 {
        self.0
    }

    /// The number as an index into a table of [`PRIORITY_COUNT`] entries.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl Default for Priority {
    fn default() -> Self {
        Self::NORMAL
    }
}

impl TryFrom<u8> for Priority {
    type Error = ValueError;

    fn try_from(number: u8) -> Result<Self, ValueError> {
        Self::new(number).ok_or(ValueError::PriorityOutOfRange(number.into()))
    }
}

impl From<Priority> for u8 {
    fn from(priority: Priority) -> Self {
        priority.0
    }
}

impl FromStr for Priority {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let number: u64 = text.parse().map_err(|_| ValueError::NotANumber)?;
        u8::try_from(number)
            .ok()
            .and_then(Self::new)
            .ok_or(ValueError::PriorityOutOfRange(number))
    }
}

impl fmt::Display for Priority {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// A 48-bit Ethernet address, first byte on the wire first.
///
/// ```
/// use tautline_proto::wire::MacAddress;
///
/// let mac: MacAddress = "02:00:5E:10:00:01".parse()?;
/// assert_eq!(mac, MacAddress([0x02, 0, 0x5e, 0x10, 0, 0x01]));
/// assert_eq!("02-00-5e-10-00-01".parse(), Ok(mac));
/// assert!(!mac.is_group());
/// assert!(MacAddress::BROADCAST.is_group());
/// # Ok::<(), tautline_proto::wire::ValueError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MacAddress(pub [u8; 6]);

impl MacAddress {
    /// All stations, `ff:ff:ff:ff:ff:ff`.
    pub const BROADCAST: Self = Self([0xFF; 6]);
    /// No address, `00:00:00:00:00:00`: stands for "not needed" where a socket resolves it.
    pub const UNSPECIFIED: Self = Self([0; 6]);

    /// Whether this is a multicast or the broadcast address (IEEE 802, I/G bit).
    pub const fn is_group(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// Whether this is `00:00:00:00:00:00`.
    pub fn is_unspecified(self) -> bool {
        self == Self::UNSPECIFIED
    }
}

impl From<[u8; 6]> for MacAddress {
    fn from(bytes: [u8; 6]) -> Self {
        Self(bytes)
    }
}

impl FromStr for MacAddress {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let bytes = text.as_bytes();
        if bytes.len() != 17 || (bytes[2] != b':' && bytes[2] != b'-') {
            return Err(ValueError::NotAMacAddress);
        }
        let mut address = [0; 6];
        for (place, group) in address.iter_mut().zip(bytes.chunks(3)) {
            let high = hex_digit(group[0])?;
            let low = hex_digit(group[1])?;
            if group.get(2).is_some_and(|&joint| joint != bytes[2]) {
                return Err(ValueError::NotAMacAddress);
            }
            *place = high << 4 | low;
        }
        Ok(Self(address))
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, f] = self.0;
        write!(formatter, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}")
    }
}

fn hex_digit(digit: u8) -> Result<u8, ValueError> {
    char::from(digit)
        .to_digit(16)
        .map(|value| value as u8)
        .ok_or(ValueError::NotAMacAddress)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn ports_have_both_ends() {
        assert_eq!(PortNumber::try_from(1), Ok(PortNumber::MIN));
        assert_eq!(PortNumber::try_from(4095), Ok(PortNumber::MAX));
        assert_eq!(PortNumber::try_from(0), Err(ValueError::PortOutOfRange(0)));
        assert_eq!(
            "65537".parse::<PortNumber>(),
            Err(ValueError::PortOutOfRange(65_537))
        );
        for text in ["", "-1", "1.0", "0x10", " 1", "99999999999999999999"] {
            assert_eq!(
                text.parse::<PortNumber>(),
                Err(ValueError::NotANumber),
                "{text:?}"
            );
        }
    }

    #[test]
    fn udp_ports_map_back() {
        assert_eq!(PortNumber::MIN.udp_port(), 21_570);
        assert_eq!(PortNumber::MAX.udp_port(), 25_664);
        assert_eq!(PortNumber::from_udp_port(21_570), Some(PortNumber::MIN));
        assert_eq!(PortNumber::from_udp_port(25_664), Some(PortNumber::MAX));
        for outside in [0, 21_568, 21_569, 25_665, u16::MAX] {
            assert_eq!(PortNumber::from_udp_port(outside), None);
        }
    }

    #[test]
    fn priorities_have_both_ends() {
        assert_eq!(Priority::try_from(7), Ok(Priority::HIGHEST));
        assert_eq!(
            Priority::try_from(8),
            Err(ValueError::PriorityOutOfRange(8))
        );
        assert_eq!(
            "256".parse::<Priority>(),
            Err(ValueError::PriorityOutOfRange(256))
        );
        assert_eq!(
            ValueError::PriorityOutOfRange(9).to_string(),
            "priority 9 is out of range, 0 to 7, 7 most urgent"
        );
    }

    #[test]
    fn mac_addresses_read_back_what_they_print() {
        let mac = MacAddress([0x02, 0xAB, 0, 0xFF, 0x10, 0x9]);
        assert_eq!(mac.to_string(), "02:ab:00:ff:10:09");
        assert_eq!(mac.to_string().parse(), Ok(mac));
        for text in [
            "",
            "02:ab:00:ff:10",
            "02:ab:00:ff:10:0",
            "02:ab:00:ff:10:0g",
            "02:ab:00:ff:10-09",
            "02.ab.00.ff.10.09",
            "02:ab:00:ff:10:09:",
            "+2:ab:00:ff:10:09",
        ] {
            assert_eq!(
                text.parse::<MacAddress>(),
                Err(ValueError::NotAMacAddress),
                "{text:?}"
            );
        }
    }
}
