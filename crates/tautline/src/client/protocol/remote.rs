//! Types of other crates as they lie in messages.

use std::net::Ipv4Addr;
use std::num::NonZeroU16;

use serde::{Deserialize, Serialize};
use tautline_proto::neighbour::{Form, Neighbour};
use tautline_proto::wire::raw::EtherType;
use tautline_proto::wire::{MacAddress, PortKey, PortNumber};
use tautline_shm::region::Shape;

/// [`Shape`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "Shape")]
pub(super) enum ShapeFields {
    Queuing { depth: u32 },
    Sampling { sources: u32 },
}

/// [`Neighbour`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "Neighbour")]
pub(super) struct NeighbourFields {
    name: String,
    #[serde(with = "mac")]
    mac: MacAddress,
    ip: Option<Ipv4Addr>,
    #[serde(with = "FormName")]
    form: Form,
}

/// [`Form`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "Form")]
enum FormName {
    Ethernet,
    Udp,
    Bus,
}

/// [`MacAddress`].
pub(super) mod mac {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use tautline_proto::wire::MacAddress;

    pub(in super::super) fn serialize<S: Serializer>(
        mac: &MacAddress,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        mac.0.serialize(serializer)
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<MacAddress, D::Error> {
        <[u8; 6]>::deserialize(deserializer).map(MacAddress)
    }
}

/// [`PortKey`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "PortKey")]
pub(super) enum KeyFields {
    Message(#[serde(with = "port")] PortNumber),
    Udp(NonZeroU16),
    Raw(#[serde(with = "ethertype")] EtherType),
}

/// [`PortNumber`](tautline_proto::wire::PortNumber).
mod port {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};
    use tautline_proto::wire::PortNumber;

    pub(super) fn serialize<S: Serializer>(
        port: &PortNumber,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_u16(port.get())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<PortNumber, D::Error> {
        let number = u16::deserialize(deserializer)?;
        PortNumber::new(number).ok_or_else(|| D::Error::custom("no port number"))
    }
}

/// [`EtherType`](tautline_proto::wire::raw::EtherType).
mod ethertype {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};
    use tautline_proto::wire::raw::EtherType;

    pub(super) fn serialize<S: Serializer>(
        ethertype: &EtherType,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_u16(ethertype.get())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<EtherType, D::Error> {
        EtherType::new(u16::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}
