//! The key of a port: what a frame must carry to be for it.

use core::fmt;
use core::num::NonZeroU16;
use core::str::FromStr;

use super::raw::EtherType;
use super::{PortNumber, ValueError};

/// Address of a port within its node. The variants differ in the frames that the port sends and receives, and in
/// nothing else.
///
/// ```
/// use tautline_proto::wire::raw::EtherType;
/// use tautline_proto::wire::{PortKey, PortNumber};
///
/// let command = PortKey::Message(PortNumber::try_from(9)?);
/// assert_eq!(command.to_string(), "port 9");
/// let camera = PortKey::udp(4000)?;
/// assert_eq!(camera.to_string(), "UDP port 4000");
/// assert_eq!(PortKey::Raw(EtherType::ETHERCAT).to_string(), "EtherType 0x88a4");
/// assert_eq!("udp:4000".parse(), Ok(camera));
/// assert_eq!(camera.short().to_string(), "udp:4000");
/// # Ok::<(), tautline_proto::wire::ValueError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PortKey {
    /// Messages with the Tautline header.
    Message(PortNumber),
    /// Plain UDP over IPv4 to this port.
    Udp(NonZeroU16),
    /// Ethernet frames of this EtherType.
    Raw(EtherType),
}

impl PortKey {
    /// The key of a plain UDP port.
    ///
    /// # Errors
    /// [`ValueError::UdpPortOutOfRange`] for port 0.
    pub const fn udp(port: u16) -> Result<Self, ValueError> {
        match NonZeroU16::new(port) {
            Some(port) => Ok(Self::Udp(port)),
            None => Err(ValueError::UdpPortOutOfRange(0)),
        }
    }

    /// Port number, UDP port or EtherType.
    #[must_use]
    pub const fn number(self) -> u16 {
        match self {
            Self::Message(number) => number.get(),
            Self::Udp(port) => port.get(),
            Self::Raw(ethertype) => ethertype.get(),
        }
    }
}

/// A key as commands and reports write it: `9`, `udp:4000` or `raw:0x88a4`.
#[derive(Clone, Copy, Debug)]
pub struct ShortKey(PortKey);

impl PortKey {
    /// The key as commands and reports write it, which [`FromStr`] reads.
    #[must_use]
    pub const fn short(self) -> ShortKey {
        ShortKey(self)
    }
}

impl fmt::Display for ShortKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            PortKey::Message(number) => write!(formatter, "{number}"),
            PortKey::Udp(port) => write!(formatter, "udp:{port}"),
            PortKey::Raw(ethertype) => write!(formatter, "raw:{ethertype}"),
        }
    }
}

/// Reads `9`, `udp:4000` and `raw:0x88a4`; an EtherType is hexadecimal or decimal.
impl FromStr for PortKey {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        if let Some(port) = text.strip_prefix("udp:") {
            let port: u64 = port.parse().map_err(|_| ValueError::NotANumber)?;
            let of_range = u16::try_from(port).ok().and_then(NonZeroU16::new);
            return of_range
                .map(Self::Udp)
                .ok_or(ValueError::UdpPortOutOfRange(port));
        }
        if let Some(ethertype) = text.strip_prefix("raw:") {
            let number = EtherType::number_of(ethertype).ok_or(ValueError::NotAnEtherType)?;
            let ethertype = EtherType::new(number).map_err(ValueError::EtherType)?;
            return Ok(Self::Raw(ethertype));
        }
        text.parse().map(Self::Message)
    }
}

impl From<PortNumber> for PortKey {
    fn from(number: PortNumber) -> Self {
        Self::Message(number)
    }
}

impl From<EtherType> for PortKey {
    fn from(ethertype: EtherType) -> Self {
        Self::Raw(ethertype)
    }
}

impl fmt::Display for PortKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Message(number) => write!(formatter, "port {number}"),
            Self::Udp(port) => write!(formatter, "UDP port {port}"),
            Self::Raw(ethertype) => write!(formatter, "EtherType {ethertype}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn keys_are_read_as_they_are_written() {
        for text in [
            "1",
            "4095",
            "udp:1",
            "udp:65535",
            "raw:0x88a4",
            "raw:0xffff",
        ] {
            let key: PortKey = text.parse().unwrap();
            assert_eq!(key.short().to_string(), text);
        }
        assert_eq!("raw:34980".parse(), Ok(PortKey::Raw(EtherType::ETHERCAT)));
    }

    #[test]
    fn keys_of_no_port_are_refused() {
        let refused = |text: &str| text.parse::<PortKey>().unwrap_err().to_string();
        assert_eq!(refused("4096"), "port 4096 is out of range, 1 to 4095");
        assert_eq!(refused("udp:0"), "UDP port 0 is out of range, 1 to 65535");
        assert_eq!(
            refused("udp:70000"),
            "UDP port 70000 is out of range, 1 to 65535"
        );
        assert_eq!(refused("udp:"), "not a decimal number");
        assert_eq!(refused("tcp:80"), "not a decimal number");
        assert_eq!(
            refused("raw:0x800"),
            "EtherType 0x0800 is Linux's own (IPv4, ARP, IPv6)"
        );
        for text in ["raw:", "raw:0x", "raw:0x10000", "raw:70000", "raw:88a4"] {
            assert_eq!(refused(text), "not an EtherType such as 0x88a4");
        }
    }
}
