//! Types of other crates as they lie in messages.

use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};
use tautline_proto::neighbour::{Form, Neighbour};
use tautline_proto::wire::MacAddress;
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
    #[serde(with = "MacBytes")]
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
#[derive(Serialize, Deserialize)]
#[serde(remote = "MacAddress")]
struct MacBytes([u8; 6]);

/// [`PortKey`](tautline_proto::wire::PortKey), as commands write it.
pub(super) mod key {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};
    use tautline_proto::wire::PortKey;

    pub(in super::super) fn serialize<S: Serializer>(
        key: &PortKey,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&key.short())
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<PortKey, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}
