//! Messages between clients and the control process: one message a request, one a reply. serde and postcard write
//! them, after a head with a magic number and a version of their own. Nothing here reads a socket.
//!
//! Both carry a number of the client's choice, so that a reply which comes after the client gave up
//! waiting is not taken for that to its next request.
//!
//! The control process believes nothing: a request of another version, with bytes left over, or with a value that no
//! request can have is [`Malformed`]. Lengths are bounded by the size of a packet. Clients check replies likewise,
//! though the control process is trusted.

use std::net::Ipv4Addr;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tautline_proto::neighbour::{Form, Neighbour};
use tautline_proto::wire::{MacAddress, PortKey};
use tautline_shm::layout::PEER_COUNT;
use tautline_shm::region::Shape;

use crate::kind::XdpMode;
use crate::limits::DEPTH_MAX;
use crate::link::NodeCounters;
use crate::sys::descriptor_kind::Kind;
use crate::sys::unix;

/// "TLC1".
const MAGIC: u32 = 0x544c_4331;
/// Version of these messages. Both ends must have the same. 1 to 3 were of fixed size.
const VERSION: u16 = 12;
/// Bytes of magic number and version, which stay as they are in every version.
const HEAD_BYTES: usize = 6;
/// Most bytes of a request: the longest has 29. Lower: that is refused. Higher: a stranger may make the control process
/// read more.
pub(crate) const REQUEST_BYTES_MAX: usize = 32;
/// Most bytes of a reply: 256 neighbours with long names are the longest. Lower: it is refused. Higher: more memory of
/// a client while it waits.
pub(crate) const REPLY_BYTES_MAX: usize = 20 << 10;
/// Most bytes of a refusal's text; the rest is cut off. Lower: reasons end in the middle. Higher: beyond the reply.
const TEXT_BYTES_MAX: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Malformed {
    Version(u16),
    Rubbish,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Request {
    /// To be a client, if the demux is the one that it can use. What is `None`, or with an EtherType of 0 it and the
    /// VLAN, may be as it is.
    Hello {
        ethertype: u16,
        vlan: u16,
        ip: Option<Ipv4Addr>,
        mode: Option<XdpMode>,
    },
    Open {
        #[serde(with = "key")]
        key: PortKey,
        #[serde(with = "ShapeFields")]
        shape: Shape,
    },
    Close {
        #[serde(with = "key")]
        key: PortKey,
    },
    /// Counters of the demux for the whole node.
    Counters,
    /// The neighbours of the control process's configuration.
    Neighbours,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Reply {
    /// Descriptor: the keeper of the demux.
    Welcome {
        demux: u32,
        ip: Option<Ipv4Addr>,
        mode: XdpMode,
    },
    /// Descriptors: memory, doorbell, tap, claim; of plain UDP the socket that has the UDP port too. `priorities` has a
    /// bit for each that may be sent with; `entry` is the `[[allow]]` entry that gives the port, 0 if none was needed.
    Opened {
        #[serde(with = "key")]
        key: PortKey,
        priorities: u8,
        entry: u16,
        /// Whether raw frames may carry any source address.
        any_source_address: bool,
    },
    Closed,
    Counters(NodeCounters),
    /// The neighbours, in their order.
    Neighbours(Vec<Entry>),
    /// The request is refused and the connection stays open.
    Refused(Refusal),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry(#[serde(with = "NeighbourFields")] pub(crate) Neighbour);

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Refusal {
    pub(crate) reason: Reason,
    /// The process that has the port, with [`Reason::Taken`].
    pub(crate) holder: i32,
    pub(crate) why: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Reason {
    NotAllowed,
    Taken,
    /// The demux is set up otherwise than the client needs.
    OtherSettings,
    Full,
    Kernel,
    BadRequest,
}

impl Request {
    pub(crate) fn encode(&self, serial: u32) -> Vec<u8> {
        encode(serial, self)
    }

    /// The request and its number.
    pub(crate) fn decode(bytes: &[u8]) -> Result<(Self, u32), Malformed> {
        let (serial, request) = decode::<Self>(bytes, REQUEST_BYTES_MAX)?;
        match request.is_sound() {
            true => Ok((request, serial)),
            false => Err(Malformed::Rubbish),
        }
    }

    fn is_sound(&self) -> bool {
        match self {
            Self::Open { key, shape } => is_shape_of(*key, *shape),
            Self::Hello { .. } | Self::Close { .. } | Self::Counters | Self::Neighbours => true,
        }
    }
}

/// Memory, doorbell, tap and claim; of plain UDP the socket that has the UDP port.
const OF_PORT: [Kind; 5] = [Kind::Map, Kind::Map, Kind::Tap, Kind::File, Kind::UdpSocket];
const _: () = assert!(OF_PORT.len() <= unix::DESCRIPTORS_MAX);

impl Reply {
    /// Descriptors that go with it, in their order.
    pub(crate) fn descriptor_kinds(&self) -> &'static [Kind] {
        match self {
            Self::Welcome { .. } => &[Kind::BpfPin],
            Self::Opened {
                key: PortKey::Udp(_),
                ..
            } => &OF_PORT,
            Self::Opened { .. } => &OF_PORT[..4],
            Self::Closed | Self::Counters(_) | Self::Neighbours(_) | Self::Refused(_) => &[],
        }
    }

    pub(crate) fn encode(&self, serial: u32) -> Vec<u8> {
        match self {
            Self::Refused(refusal) if refusal.why.len() > TEXT_BYTES_MAX => {
                let why = shortened(&refusal.why, TEXT_BYTES_MAX).to_owned();
                let refusal = Refusal {
                    why,
                    ..refusal.clone()
                };
                encode(serial, &Self::Refused(refusal))
            }
            _ => encode(serial, self),
        }
    }

    /// The reply and the number of its request.
    pub(crate) fn decode(bytes: &[u8]) -> Result<(Self, u32), Malformed> {
        let (serial, reply) = decode::<Self>(bytes, REPLY_BYTES_MAX)?;
        Ok((reply, serial))
    }
}

fn encode<T: Serialize>(serial: u32, message: &T) -> Vec<u8> {
    let head = [&MAGIC.to_ne_bytes()[..], &VERSION.to_ne_bytes()].concat();
    postcard::to_extend(&(serial, message), head).expect("memory takes every message")
}

fn decode<T: DeserializeOwned>(bytes: &[u8], bytes_max: usize) -> Result<(u32, T), Malformed> {
    let Some((head, rest)) = bytes.split_first_chunk::<HEAD_BYTES>() else {
        return Err(Malformed::Rubbish);
    };
    let [magic @ .., version_low, version_high] = *head;
    if u32::from_ne_bytes(magic) != MAGIC {
        return Err(Malformed::Rubbish);
    }
    // The version first: it may be the reason why the length is another.
    match u16::from_ne_bytes([version_low, version_high]) {
        VERSION if bytes.len() <= bytes_max => {}
        VERSION => return Err(Malformed::Rubbish),
        other => return Err(Malformed::Version(other)),
    }
    match postcard::take_from_bytes(rest) {
        Ok((message, [])) => Ok(message),
        _ => Err(Malformed::Rubbish),
    }
}

fn is_shape(shape: Shape) -> bool {
    match shape {
        Shape::Queuing { depth } => depth.is_power_of_two() && (2..=DEPTH_MAX).contains(&depth),
        Shape::Sampling { sources } => (1..=PEER_COUNT as u32).contains(&sources),
    }
}

/// Only ports of messages sample.
fn is_shape_of(key: PortKey, shape: Shape) -> bool {
    let is_of_kind = match key {
        PortKey::Message(_) => true,
        PortKey::Udp(_) | PortKey::Raw(_) => matches!(shape, Shape::Queuing { .. }),
    };
    is_of_kind && is_shape(shape)
}

/// The beginning of the text that fits, cut between characters.
fn shortened(text: &str, bytes_max: usize) -> &str {
    let end = (0..=text.len().min(bytes_max))
        .rev()
        .find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

// Types of other crates as they lie in messages.

#[derive(Serialize, Deserialize)]
#[serde(remote = "Shape")]
enum ShapeFields {
    Queuing { depth: u32 },
    Sampling { sources: u32 },
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Neighbour")]
struct NeighbourFields {
    name: String,
    #[serde(with = "MacBytes")]
    mac: MacAddress,
    ip: Option<Ipv4Addr>,
    #[serde(with = "FormName")]
    form: Form,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Form")]
enum FormName {
    Ethernet,
    Udp,
    Bus,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "MacAddress")]
struct MacBytes([u8; 6]);

/// [`PortKey`](tautline_proto::wire::PortKey), as commands write it.
mod key {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};
    use tautline_proto::wire::PortKey;

    pub(super) fn serialize<S: Serializer>(
        key: &PortKey,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&key.short())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<PortKey, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tautline_proto::neighbour::NEIGHBOUR_COUNT_MAX;
    use tautline_proto::wire::raw::EtherType;
    use tautline_proto::wire::{ParseError, PortNumber};

    fn port(number: u16) -> PortKey {
        PortNumber::new(number).unwrap().into()
    }

    fn udp(port: u16) -> PortKey {
        PortKey::udp(port).unwrap()
    }

    fn neighbour() -> Neighbour {
        Neighbour {
            name: "n".repeat(63),
            mac: MacAddress([2, 0, 0, 0, 0, 7]),
            ip: Some(Ipv4Addr::new(10, 0, 0, 7)),
            form: Form::Ethernet,
        }
    }

    fn requests() -> Vec<Request> {
        vec![
            Request::Hello {
                ethertype: 0x88b5,
                vlan: 0,
                ip: Some(Ipv4Addr::new(10, 0, 0, 1)),
                mode: Some(XdpMode::Generic),
            },
            Request::Hello {
                ethertype: 0x88b5,
                vlan: 0,
                ip: None,
                mode: None,
            },
            Request::Open {
                key: port(4095),
                shape: Shape::Queuing { depth: 4096 },
            },
            Request::Open {
                key: port(1),
                shape: Shape::Sampling { sources: 24 },
            },
            Request::Close { key: port(7) },
            Request::Open {
                key: udp(65_535),
                shape: Shape::Queuing { depth: 2 },
            },
            Request::Close { key: udp(53) },
            Request::Counters,
            Request::Neighbours,
            Request::Open {
                key: EtherType::ETHERCAT.into(),
                shape: Shape::Queuing { depth: 8 },
            },
            Request::Close {
                key: EtherType::new(0xFFFF).unwrap().into(),
            },
        ]
    }

    #[test]
    fn replies_survive_the_way() {
        let refusal = Refusal {
            reason: Reason::Taken,
            holder: 4711,
            why: "é".repeat(300),
        };
        for reply in [
            Reply::Welcome {
                demux: 9,
                ip: None,
                mode: XdpMode::Native,
            },
            Reply::Opened {
                key: udp(4000),
                priorities: 0x80,
                entry: 0,
                any_source_address: false,
            },
            Reply::Opened {
                key: EtherType::ETHERCAT.into(),
                priorities: 1,
                entry: 2,
                any_source_address: true,
            },
            Reply::Closed,
            Reply::Neighbours(Vec::new()),
            Reply::Counters(NodeCounters {
                malformed: std::array::from_fn(|index| index as u64),
                no_port: u64::MAX,
                ..NodeCounters::default()
            }),
        ] {
            assert_eq!(Reply::decode(&reply.encode(8)), Ok((reply, 8)));
        }
        let (back, _) = Reply::decode(&Reply::Refused(refusal).encode(9)).unwrap();
        let Reply::Refused(Refusal { holder, why, .. }) = back else {
            panic!("{back:?}");
        };
        assert_eq!((holder, why), (4711, "é".repeat(128)));
    }

    #[test]
    fn a_request_is_laid_out_as_documented() {
        let request = Request::Open {
            key: port(0x0102),
            shape: Shape::Queuing { depth: 64 },
        };
        let mut expected = vec![];
        expected.extend(0x544c_4331u32.to_ne_bytes());
        expected.extend(12u16.to_ne_bytes());
        // Number of the request, open, port 258, queuing, depth.
        expected.extend([5, 1, 3, b'2', b'5', b'8', 0, 64]);
        assert_eq!(request.encode(5)[..], expected);
    }

    #[test]
    fn the_longest_messages_fit() {
        let counters = NodeCounters {
            malformed: [u64::MAX; ParseError::COUNT],
            no_port: u64::MAX,
            socket_full: u64::MAX,
            out_of_order_fragments: u64::MAX,
            joined_datagrams: u64::MAX,
        };
        for reply in [
            Reply::Counters(counters),
            Reply::Neighbours(vec![Entry(neighbour()); NEIGHBOUR_COUNT_MAX]),
        ] {
            assert_eq!(
                Reply::decode(&reply.encode(u32::MAX)),
                Ok((reply, u32::MAX))
            );
        }
        let hello = Request::Hello {
            ethertype: u16::MAX,
            vlan: u16::MAX,
            ip: Some(Ipv4Addr::BROADCAST),
            mode: Some(XdpMode::Tc),
        };
        assert!(hello.encode(u32::MAX).len() <= REQUEST_BYTES_MAX);
    }

    #[test]
    fn rubbish_is_no_request() {
        assert_eq!(Request::decode(&[]), Err(Malformed::Rubbish));
        for request in requests() {
            let good = request.encode(1);
            assert_eq!(Request::decode(&good), Ok((request, 1)));
            for length in 0..good.len() {
                assert_eq!(Request::decode(&good[..length]), Err(Malformed::Rubbish));
            }
            let longer = [&good[..], &[0]].concat();
            assert_eq!(Request::decode(&longer), Err(Malformed::Rubbish));
        }
        let mut other_version = requests()[2].encode(0);
        other_version[4..6].copy_from_slice(&9u16.to_ne_bytes());
        assert_eq!(Request::decode(&other_version), Err(Malformed::Version(9)));
        assert_eq!(
            Request::decode(&other_version[..6]),
            Err(Malformed::Version(9))
        );
    }

    #[test]
    fn values_that_no_request_can_have_are_refused() {
        let open = |shape| Request::Open {
            key: port(1),
            shape,
        };
        let sampling = Shape::Sampling { sources: 1 };
        for request in [
            open(Shape::Queuing { depth: 3 }),
            open(Shape::Queuing { depth: 1 }),
            open(Shape::Queuing {
                depth: 2 * DEPTH_MAX,
            }),
            open(Shape::Sampling { sources: 0 }),
            open(Shape::Sampling {
                sources: PEER_COUNT as u32 + 1,
            }),
            Request::Open {
                key: udp(7),
                shape: sampling,
            },
            Request::Open {
                key: EtherType::ETHERCAT.into(),
                shape: sampling,
            },
        ] {
            let bytes = request.encode(1);
            assert_eq!(
                Request::decode(&bytes),
                Err(Malformed::Rubbish),
                "{request:?}"
            );
        }
        // Keys that no request can be made with: port 0, IPv4's EtherType.
        for key in ["0", "udp:0", "raw:0x0800"] {
            let mut bytes = Request::Close { key: port(7) }.encode(1);
            bytes.truncate(HEAD_BYTES + 2);
            bytes.extend(postcard::to_allocvec(key).unwrap());
            assert_eq!(Request::decode(&bytes), Err(Malformed::Rubbish), "{key}");
        }
    }

    /// Every input is refused, or is a message that survives the way.
    #[test]
    fn random_and_mutated_bytes_are_survived() {
        use rand_xoshiro::Xoshiro256PlusPlus;
        use rand_xoshiro::rand_core::{Rng, SeedableRng};
        let mut random = Xoshiro256PlusPlus::seed_from_u64(12);
        let seeds: Vec<Vec<u8>> = requests().iter().map(|one| one.encode(3)).collect();
        let mut taken = 0;
        for round in 0..100_000 {
            let mut bytes = seeds[round % seeds.len()].clone();
            for _ in 0..=random.next_u32() % 3 {
                let place = random.next_u32() as usize % bytes.len();
                match random.next_u32() % 4 {
                    0 => bytes.truncate(place.max(1)),
                    1 => bytes.push(random.next_u32() as u8),
                    _ => bytes[place] = random.next_u32() as u8,
                }
            }
            if let Ok((request, serial)) = Request::decode(&bytes) {
                taken += 1;
                assert_eq!(
                    Request::decode(&request.encode(serial)),
                    Ok((request, serial))
                );
            }
            if let Ok((reply, _)) = Reply::decode(&bytes) {
                let _fits = reply.encode(0);
            }
        }
        assert!(taken > 1_000, "{taken}");
    }
}
