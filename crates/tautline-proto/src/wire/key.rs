//! The key of a port: what a frame must carry to be for it.

use core::fmt;
use core::num::NonZeroU16;

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
