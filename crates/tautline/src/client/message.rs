//! Messages between clients and the control process: one message a request, one an answer, each of
//! fixed size, in the machine's byte order, since both ends are on one machine. Nothing here reads a
//! socket.
//!
//! Both carry a number of the client's choice, so that an answer which comes after the client gave up
//! waiting is not taken for that to its next request.
//!
//! The control process believes nothing: whatever is not exactly a request is [`Malformed`]. Clients
//! check answers likewise, though the control process is trusted.

use std::net::Ipv4Addr;
use std::time::Duration;

use tautline_proto::neighbour::Neighbour;
use tautline_proto::wire::{MacAddress, ParseError, PortNumber};
use tautline_shm::layout::PEER_COUNT;
use tautline_shm::region::Shape;

use crate::limits::{DEPTH_MAX, SOLICIT_TIME_MAX};
use crate::link::bpf::entry::{self, ENTRY_BYTES};
use crate::link::{NodeCounters, XdpMode};
use crate::table_state::{LockedBy, Origin, TableState};

/// "TLC1".
const MAGIC: u32 = 0x544c_4331;
/// Version of these messages. Both ends must have the same.
const VERSION: u16 = 3;
/// Bytes of a request.
pub(crate) const REQUEST_BYTES: usize = 128;
/// Bytes of an answer.
pub(crate) const ANSWER_BYTES: usize = 320;
/// Where an answer's text begins, and the bytes that it can have.
const TEXT: usize = 64;
const TEXT_BYTES_MAX: usize = ANSWER_BYTES - TEXT;

/// Not a message of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Malformed {
    /// Of another version.
    Version(u16),
    /// Anything else.
    Rubbish,
}

/// Request of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// To be a client, if the demux is the one that it can use. What is `None`, or an EtherType of 0, may be as
    /// it is.
    Hello {
        ethertype: u16,
        ip: Option<Ipv4Addr>,
        mode: Option<XdpMode>,
    },
    /// A port.
    Open { port: PortNumber, shape: Shape },
    /// To be rid of one.
    Close { port: PortNumber },
    /// A port of plain UDP.
    OpenUdp { port: u16, shape: Shape },
    /// To be rid of one.
    CloseUdp { port: u16 },
    /// Counters of the demux for the whole node.
    Counters,
    /// An entry of the neighbour table, and how the table is.
    Neighbour { index: u16 },
    /// To enter one.
    AddNeighbour {
        neighbour: Neighbour,
        origin: Origin,
    },
    /// To ask the network which station has an address.
    Solicit { ip: Ipv4Addr, timeout: Duration },
    /// To lock the table, or to unlock it.
    LockNeighbours { locked: bool },
}

/// Reply to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Descriptor: the keeper of the demux.
    Welcome {
        demux: u32,
        ip: Option<Ipv4Addr>,
        mode: XdpMode,
    },
    /// Descriptors: memory, doorbell, tap, claim. `priorities` has a bit for each that may be
    /// sent with; `entry` is the `[[allow]]` entry that gives the port, 0 if none was needed.
    Opened { priorities: u8, entry: u16 },
    /// The same of plain UDP; a fifth descriptor is the socket that has the UDP port.
    UdpOpened { priorities: u8, entry: u16 },
    /// The port is closed.
    Closed,
    /// Counters of the demux.
    Counters(NodeCounters),
    /// How the table is, and the entry if there is one.
    Neighbour {
        state: TableState,
        count: u16,
        changes: u32,
        entry: Option<(Neighbour, Origin)>,
    },
    /// The neighbour is entered.
    NeighbourAdded,
    /// The station that has the address.
    Station { mac: MacAddress },
    /// The table is locked, or unlocked.
    LockSet,
    /// Nothing of that; the connection stays as it was.
    Refused(Refusal),
}

/// Why not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) reason: Reason,
    /// The process that has the port, with [`Reason::Taken`].
    pub(crate) holder: i32,
    /// In words, for whoever asked.
    pub(crate) why: String,
}

/// The kinds of refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// No rule gives it to this user.
    NotAllowed,
    /// Another process has the port.
    Taken,
    /// The demux is set up otherwise than the client needs.
    OtherSettings,
    /// A limit of the control process is reached.
    Full,
    /// The kernel refused.
    Kernel,
    /// The request makes no sense.
    BadRequest,
    /// The neighbour table is locked; the text says by what.
    Locked,
    /// The neighbour cannot be entered, or not be asked for.
    NotEntered,
    /// The network did not answer in time.
    NoAnswer,
}

const REASONS: [Reason; 9] = [
    Reason::NotAllowed,
    Reason::Taken,
    Reason::OtherSettings,
    Reason::Full,
    Reason::Kernel,
    Reason::BadRequest,
    Reason::Locked,
    Reason::NotEntered,
    Reason::NoAnswer,
];

// Offsets, shared by requests and answers where the name is.
const KIND: usize = 6;
const NUMBER: usize = 8;
const SHAPE: usize = 10;
const MODE: usize = 11;
/// Slots a class, or sources of a sampling port.
const SIZE: usize = 12;
const IP: usize = 16;
const SERIAL: usize = 20;
const END: usize = 24;
/// Where a neighbour is.
const ENTRY: usize = 24;
const DEMUX: usize = 8;
const PRIORITIES: usize = 8;
const ENTRY_NUMBER: usize = 10;
const REASON: usize = 8;
const TEXT_BYTES: usize = 10;
const HOLDER: usize = 12;

const HELLO: u16 = 1;
const OPEN: u16 = 2;
const CLOSE: u16 = 3;
const COUNTERS: u16 = 4;
const REFUSED: u16 = 5;
const NEIGHBOUR: u16 = 6;
const ADD_NEIGHBOUR: u16 = 7;
const SOLICIT: u16 = 8;
const LOCK_NEIGHBOURS: u16 = 9;
const OPEN_UDP: u16 = 10;
const CLOSE_UDP: u16 = 11;

const QUEUING: u8 = 1;
const SAMPLING: u8 = 2;
const NATIVE: u8 = 1;
const GENERIC: u8 = 2;

impl Request {
    pub(crate) fn encode(&self, serial: u32) -> [u8; REQUEST_BYTES] {
        let mut bytes = [0; REQUEST_BYTES];
        put(&mut bytes, SERIAL, serial.to_ne_bytes());
        match self {
            Self::Hello {
                ethertype,
                ip,
                mode,
            } => {
                head(&mut bytes, HELLO);
                put(&mut bytes, NUMBER, ethertype.to_ne_bytes());
                bytes[MODE] = mode.map_or(0, mode_code);
                put(&mut bytes, IP, address_bytes(*ip));
            }
            Self::Open { port, shape } => put_open(&mut bytes, OPEN, port.get(), *shape),
            Self::OpenUdp { port, shape } => put_open(&mut bytes, OPEN_UDP, *port, *shape),
            Self::CloseUdp { port } => {
                head(&mut bytes, CLOSE_UDP);
                put(&mut bytes, NUMBER, port.to_ne_bytes());
            }
            Self::Close { port } => {
                head(&mut bytes, CLOSE);
                put(&mut bytes, NUMBER, port.get().to_ne_bytes());
            }
            Self::Counters => head(&mut bytes, COUNTERS),
            Self::Neighbour { index } => {
                head(&mut bytes, NEIGHBOUR);
                put(&mut bytes, NUMBER, index.to_ne_bytes());
            }
            Self::AddNeighbour { neighbour, origin } => {
                head(&mut bytes, ADD_NEIGHBOUR);
                put_entry(&mut bytes, neighbour, *origin);
            }
            Self::Solicit { ip, timeout } => {
                head(&mut bytes, SOLICIT);
                put(&mut bytes, IP, ip.octets());
                let timeout_ms = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX);
                put(&mut bytes, SIZE, timeout_ms.to_ne_bytes());
            }
            Self::LockNeighbours { locked } => {
                head(&mut bytes, LOCK_NEIGHBOURS);
                put(&mut bytes, NUMBER, u16::from(*locked).to_ne_bytes());
            }
        }
        bytes
    }

    /// How long answering may take beside what answering takes.
    pub(crate) fn time_of_its_own(&self) -> Duration {
        match self {
            Self::Solicit { timeout, .. } => (*timeout).min(SOLICIT_TIME_MAX),
            _ => Duration::ZERO,
        }
    }

    /// The request and its number.
    pub(crate) fn decode(bytes: &[u8]) -> Result<(Self, u32), Malformed> {
        // The version first: it may be the reason why the length is another.
        let kind = kind_of(bytes)?;
        let bytes: &[u8; REQUEST_BYTES] = bytes.try_into().map_err(|_| Malformed::Rubbish)?;
        let serial = u32::from_ne_bytes(take(bytes, SERIAL));
        Self::of(kind, bytes).map(|request| (request, serial))
    }

    fn of(kind: u16, bytes: &[u8; REQUEST_BYTES]) -> Result<Self, Malformed> {
        let number = u16::from_ne_bytes(take(bytes, NUMBER));
        let size = u32::from_ne_bytes(take(bytes, SIZE));
        let ip = address(take(bytes, IP));
        if kind == ADD_NEIGHBOUR {
            let is_alone = bytes[NUMBER..SERIAL].iter().all(|byte| *byte == 0);
            let (neighbour, origin) = take_entry(bytes)
                .filter(|(_, origin)| is_alone && *origin != Origin::Configured)
                .ok_or(Malformed::Rubbish)?;
            return Ok(Self::AddNeighbour { neighbour, origin });
        }
        let rest_is_zero = bytes[END..].iter().all(|byte| *byte == 0);
        let port = || PortNumber::new(number).ok_or(Malformed::Rubbish);
        match (kind, bytes[SHAPE], bytes[MODE], size, ip) {
            _ if !rest_is_zero => Err(Malformed::Rubbish),
            (HELLO, 0, mode, 0, ip) => Ok(Self::Hello {
                ethertype: number,
                ip,
                mode: match mode {
                    0 => None,
                    code => Some(mode_of(code)?),
                },
            }),
            (OPEN, QUEUING, 0, depth, None)
                if depth.is_power_of_two() && (2..=DEPTH_MAX).contains(&depth) =>
            {
                let shape = Shape::Queuing { depth };
                Ok(Self::Open {
                    port: port()?,
                    shape,
                })
            }
            (OPEN, SAMPLING, 0, sources, None) if (1..=PEER_COUNT as u32).contains(&sources) => {
                let shape = Shape::Sampling { sources };
                Ok(Self::Open {
                    port: port()?,
                    shape,
                })
            }
            (OPEN_UDP, QUEUING, 0, depth, None)
                if number != 0 && depth.is_power_of_two() && (2..=DEPTH_MAX).contains(&depth) =>
            {
                let shape = Shape::Queuing { depth };
                Ok(Self::OpenUdp {
                    port: number,
                    shape,
                })
            }
            (CLOSE_UDP, 0, 0, 0, None) if number != 0 => Ok(Self::CloseUdp { port: number }),
            (CLOSE, 0, 0, 0, None) => Ok(Self::Close { port: port()? }),
            (COUNTERS, 0, 0, 0, None) if number == 0 => Ok(Self::Counters),
            (NEIGHBOUR, 0, 0, 0, None) => Ok(Self::Neighbour { index: number }),
            (SOLICIT, 0, 0, timeout_ms, Some(ip)) if number == 0 => Ok(Self::Solicit {
                ip,
                timeout: Duration::from_millis(timeout_ms.into()),
            }),
            (LOCK_NEIGHBOURS, 0, 0, 0, None) if number <= 1 => Ok(Self::LockNeighbours {
                locked: number == 1,
            }),
            _ => Err(Malformed::Rubbish),
        }
    }
}

fn put_open(bytes: &mut [u8; REQUEST_BYTES], request: u16, port: u16, shape: Shape) {
    head(bytes, request);
    put(bytes, NUMBER, port.to_ne_bytes());
    let (kind, size) = match shape {
        Shape::Queuing { depth } => (QUEUING, depth),
        Shape::Sampling { sources } => (SAMPLING, sources),
    };
    bytes[SHAPE] = kind;
    put(bytes, SIZE, size.to_ne_bytes());
}

impl Answer {
    /// Descriptors that go with it.
    pub(crate) fn descriptor_count(&self) -> usize {
        match self {
            Self::Welcome { .. } => 1,
            Self::Opened { .. } => 4,
            Self::UdpOpened { .. } => 5,
            Self::Closed
            | Self::Counters(_)
            | Self::Neighbour { .. }
            | Self::NeighbourAdded
            | Self::Station { .. }
            | Self::LockSet
            | Self::Refused(_) => 0,
        }
    }

    pub(crate) fn encode(&self, serial: u32) -> [u8; ANSWER_BYTES] {
        let mut bytes = [0; ANSWER_BYTES];
        put(&mut bytes, SERIAL, serial.to_ne_bytes());
        match self {
            Self::Welcome { demux, ip, mode } => {
                head(&mut bytes, HELLO);
                put(&mut bytes, DEMUX, demux.to_ne_bytes());
                put(&mut bytes, IP, address_bytes(*ip));
                bytes[END] = mode_code(*mode);
            }
            Self::Opened { priorities, entry } => {
                head(&mut bytes, OPEN);
                bytes[PRIORITIES] = *priorities;
                put(&mut bytes, ENTRY_NUMBER, entry.to_ne_bytes());
            }
            Self::UdpOpened { priorities, entry } => {
                head(&mut bytes, OPEN_UDP);
                bytes[PRIORITIES] = *priorities;
                put(&mut bytes, ENTRY_NUMBER, entry.to_ne_bytes());
            }
            Self::Closed => head(&mut bytes, CLOSE),
            Self::Counters(counters) => {
                head(&mut bytes, COUNTERS);
                let values = counters.malformed.iter().chain([&counters.no_port]);
                for (index, value) in values.enumerate() {
                    put(&mut bytes, TEXT + 8 * index, value.to_ne_bytes());
                }
            }
            Self::Neighbour {
                state,
                count,
                changes,
                entry,
            } => {
                head(&mut bytes, NEIGHBOUR);
                put(&mut bytes, NUMBER, count.to_ne_bytes());
                put(&mut bytes, SIZE, changes.to_ne_bytes());
                let (code, number) = state_code(*state);
                bytes[SHAPE] = code;
                put(&mut bytes, IP, number.to_ne_bytes());
                if let Some((entry, origin)) = entry {
                    put_entry(&mut bytes, entry, *origin);
                }
            }
            Self::NeighbourAdded => head(&mut bytes, ADD_NEIGHBOUR),
            Self::Station { mac } => {
                head(&mut bytes, SOLICIT);
                put(&mut bytes, NUMBER, mac.0);
            }
            Self::LockSet => head(&mut bytes, LOCK_NEIGHBOURS),
            Self::Refused(refusal) => {
                head(&mut bytes, REFUSED);
                let code = REASONS.iter().position(|reason| *reason == refusal.reason);
                bytes[REASON] = code.expect("all reasons are listed") as u8;
                put(&mut bytes, HOLDER, refusal.holder.to_ne_bytes());
                let text = shortened(&refusal.why, TEXT_BYTES_MAX).as_bytes();
                put(&mut bytes, TEXT_BYTES, (text.len() as u16).to_ne_bytes());
                bytes[TEXT..TEXT + text.len()].copy_from_slice(text);
            }
        }
        bytes
    }

    /// The answer and the number of its request.
    pub(crate) fn decode(bytes: &[u8]) -> Result<(Self, u32), Malformed> {
        let bytes: &[u8; ANSWER_BYTES] = bytes.try_into().map_err(|_| Malformed::Rubbish)?;
        let serial = u32::from_ne_bytes(take(bytes, SERIAL));
        Self::of(kind_of(bytes)?, bytes).map(|answer| (answer, serial))
    }

    fn of(kind: u16, bytes: &[u8; ANSWER_BYTES]) -> Result<Self, Malformed> {
        match kind {
            HELLO => Ok(Self::Welcome {
                demux: u32::from_ne_bytes(take(bytes, DEMUX)),
                ip: address(take(bytes, IP)),
                mode: mode_of(bytes[END])?,
            }),
            OPEN => Ok(Self::Opened {
                entry: u16::from_ne_bytes(take(bytes, ENTRY_NUMBER)),
                priorities: bytes[PRIORITIES],
            }),
            OPEN_UDP => Ok(Self::UdpOpened {
                priorities: bytes[PRIORITIES],
                entry: u16::from_ne_bytes(take(bytes, ENTRY_NUMBER)),
            }),
            CLOSE => Ok(Self::Closed),
            COUNTERS => {
                let value = |index: usize| u64::from_ne_bytes(take(bytes, TEXT + 8 * index));
                Ok(Self::Counters(NodeCounters {
                    malformed: std::array::from_fn(value),
                    no_port: value(ParseError::COUNT),
                    ..NodeCounters::default()
                }))
            }
            NEIGHBOUR => Ok(Self::Neighbour {
                state: state_of(bytes[SHAPE], u16::from_ne_bytes(take(bytes, IP)))?,
                count: u16::from_ne_bytes(take(bytes, NUMBER)),
                changes: u32::from_ne_bytes(take(bytes, SIZE)),
                entry: take_entry(bytes),
            }),
            ADD_NEIGHBOUR => Ok(Self::NeighbourAdded),
            SOLICIT => Ok(Self::Station {
                mac: MacAddress(take(bytes, NUMBER)),
            }),
            LOCK_NEIGHBOURS => Ok(Self::LockSet),
            REFUSED => {
                let length = usize::from(u16::from_ne_bytes(take(bytes, TEXT_BYTES)));
                let text = bytes[TEXT..].get(..length).ok_or(Malformed::Rubbish)?;
                let reason = REASONS.get(usize::from(bytes[REASON]));
                Ok(Self::Refused(Refusal {
                    reason: *reason.ok_or(Malformed::Rubbish)?,
                    holder: i32::from_ne_bytes(take(bytes, HOLDER)),
                    why: String::from_utf8_lossy(text).into_owned(),
                }))
            }
            _ => Err(Malformed::Rubbish),
        }
    }
}

fn head(bytes: &mut [u8], kind: u16) {
    put(bytes, 0, MAGIC.to_ne_bytes());
    put(bytes, 4, VERSION.to_ne_bytes());
    put(bytes, KIND, kind.to_ne_bytes());
}

fn kind_of(bytes: &[u8]) -> Result<u16, Malformed> {
    if bytes.len() < NUMBER || u32::from_ne_bytes(take(bytes, 0)) != MAGIC {
        return Err(Malformed::Rubbish);
    }
    match u16::from_ne_bytes(take(bytes, 4)) {
        VERSION => Ok(u16::from_ne_bytes(take(bytes, KIND))),
        other => Err(Malformed::Version(other)),
    }
}

fn put<const N: usize>(bytes: &mut [u8], offset: usize, value: [u8; N]) {
    bytes[offset..offset + N].copy_from_slice(&value);
}

fn take<const N: usize>(bytes: &[u8], offset: usize) -> [u8; N] {
    std::array::from_fn(|index| bytes[offset + index])
}

fn address_bytes(ip: Option<Ipv4Addr>) -> [u8; 4] {
    ip.unwrap_or(Ipv4Addr::UNSPECIFIED).octets()
}

fn address(bytes: [u8; 4]) -> Option<Ipv4Addr> {
    Some(Ipv4Addr::from(bytes)).filter(|ip| !ip.is_unspecified())
}

fn mode_code(mode: XdpMode) -> u8 {
    match mode {
        XdpMode::Native => NATIVE,
        XdpMode::Generic => GENERIC,
    }
}

fn mode_of(code: u8) -> Result<XdpMode, Malformed> {
    match code {
        NATIVE => Ok(XdpMode::Native),
        GENERIC => Ok(XdpMode::Generic),
        _ => Err(Malformed::Rubbish),
    }
}

/// A table's state, and the number of the port that locked it.
fn state_code(state: TableState) -> (u8, u16) {
    match state {
        TableState::Open => (1, 0),
        TableState::Locked(LockedBy::Port(number)) => (2, number),
        TableState::Locked(LockedBy::UdpPort(number)) => (3, number),
        TableState::Locked(LockedBy::Request) => (4, 0),
        TableState::Unlocked => (5, 0),
    }
}

fn state_of(code: u8, number: u16) -> Result<TableState, Malformed> {
    match code {
        1 => Ok(TableState::Open),
        2 => Ok(TableState::Locked(LockedBy::Port(number))),
        3 => Ok(TableState::Locked(LockedBy::UdpPort(number))),
        4 => Ok(TableState::Locked(LockedBy::Request)),
        5 => Ok(TableState::Unlocked),
        _ => Err(Malformed::Rubbish),
    }
}

/// Puts a neighbour into a message; nothing if it is none that goes into one.
fn put_entry(bytes: &mut [u8], entry: &Neighbour, origin: Origin) {
    if let Some(entry) = entry::to_bytes(entry, origin) {
        put(bytes, ENTRY, entry);
    }
}

fn take_entry(bytes: &[u8]) -> Option<(Neighbour, Origin)> {
    let (entry, rest) = bytes[ENTRY..].split_first_chunk::<ENTRY_BYTES>()?;
    let rest_is_zero = rest.iter().all(|byte| *byte == 0);
    entry::from_bytes(entry).filter(|_| rest_is_zero)
}

/// As much of the text as fits, cut between characters.
fn shortened(text: &str, bytes_max: usize) -> &str {
    let end = (0..=text.len().min(bytes_max))
        .rev()
        .find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(number: u16) -> PortNumber {
        PortNumber::new(number).unwrap()
    }

    fn neighbour() -> Neighbour {
        Neighbour {
            name: "n".repeat(63),
            mac: MacAddress([2, 0, 0, 0, 0, 7]),
            ip: Some(Ipv4Addr::new(10, 0, 0, 7)),
            form: tautline_proto::neighbour::Form::Ethernet,
        }
    }

    fn requests() -> Vec<Request> {
        vec![
            Request::Hello {
                ethertype: 0x88b5,
                ip: Some(Ipv4Addr::new(10, 0, 0, 1)),
                mode: Some(XdpMode::Generic),
            },
            Request::Hello {
                ethertype: 0x88b5,
                ip: None,
                mode: None,
            },
            Request::Open {
                port: port(4095),
                shape: Shape::Queuing { depth: 4096 },
            },
            Request::Open {
                port: port(1),
                shape: Shape::Sampling { sources: 24 },
            },
            Request::Close { port: port(7) },
            Request::OpenUdp {
                port: 65_535,
                shape: Shape::Queuing { depth: 2 },
            },
            Request::CloseUdp { port: 53 },
            Request::Counters,
            Request::Neighbour { index: 255 },
            Request::AddNeighbour {
                neighbour: neighbour(),
                origin: Origin::Solicited,
            },
            Request::Solicit {
                ip: Ipv4Addr::new(10, 0, 0, 2),
                timeout: Duration::from_millis(1_500),
            },
            Request::LockNeighbours { locked: true },
        ]
    }

    #[test]
    fn requests_survive_the_way() {
        for request in requests() {
            let bytes = request.encode(7);
            assert_eq!(Request::decode(&bytes), Ok((request, 7)));
        }
    }

    #[test]
    fn answers_survive_the_way() {
        let refusal = Refusal {
            reason: Reason::Taken,
            holder: 4711,
            why: "é".repeat(300),
        };
        for answer in [
            Answer::Welcome {
                demux: 9,
                ip: None,
                mode: XdpMode::Native,
            },
            Answer::Opened {
                priorities: 0x0f,
                entry: 3,
            },
            Answer::UdpOpened {
                priorities: 0x80,
                entry: 0,
            },
            Answer::Closed,
            Answer::Neighbour {
                state: TableState::Locked(LockedBy::UdpPort(60_000)),
                count: 256,
                changes: 300,
                entry: Some((neighbour(), Origin::Configured)),
            },
            Answer::Neighbour {
                state: TableState::Unlocked,
                count: 0,
                changes: 2,
                entry: None,
            },
            Answer::NeighbourAdded,
            Answer::Station {
                mac: neighbour().mac,
            },
            Answer::LockSet,
            Answer::Counters(NodeCounters {
                malformed: std::array::from_fn(|index| index as u64),
                no_port: u64::MAX,
                ..NodeCounters::default()
            }),
        ] {
            assert_eq!(Answer::decode(&answer.encode(8)), Ok((answer, 8)));
        }
        let (back, _) = Answer::decode(&Answer::Refused(refusal).encode(9)).unwrap();
        let Answer::Refused(Refusal { holder, why, .. }) = back else {
            panic!("{back:?}");
        };
        assert_eq!((holder, why), (4711, "é".repeat(128)));
    }

    #[test]
    fn a_request_is_128_bytes_as_documented() {
        let request = Request::Open {
            port: port(0x0102),
            shape: Shape::Queuing { depth: 64 },
        };
        let mut expected = vec![];
        expected.extend(0x544c_4331u32.to_ne_bytes());
        expected.extend([3u16, 2, 0x0102].map(u16::to_ne_bytes).concat());
        expected.extend([1, 0]);
        expected.extend([64u32, 0, 5].map(u32::to_ne_bytes).concat());
        expected.resize(128, 0);
        assert_eq!(request.encode(5)[..], expected);
    }

    #[test]
    fn rubbish_is_no_request() {
        let good = requests()[2].encode(0);
        assert_eq!(Request::decode(&[]), Err(Malformed::Rubbish));
        assert_eq!(Request::decode(&good[..127]), Err(Malformed::Rubbish));
        assert_eq!(
            Request::decode(&[&good[..], &[0]].concat()),
            Err(Malformed::Rubbish)
        );
        let mut other_version = good;
        other_version[4..6].copy_from_slice(&9u16.to_ne_bytes());
        assert_eq!(Request::decode(&other_version), Err(Malformed::Version(9)));
        assert_eq!(
            Request::decode(&other_version[..64]),
            Err(Malformed::Version(9))
        );
        // An entry that says that it is of the configuration, with something else beside it, or with half a name.
        let add = requests()[7].encode(0);
        for (place, value) in [(8, 1), (16, 10), (ENTRY, 1), (ENTRY + 2, 62), (127, 1)] {
            let mut bad = add;
            bad[place] = value;
            assert_eq!(Request::decode(&bad), Err(Malformed::Rubbish), "{place}");
        }
        // Port 0, a depth that is none, a kind that is none, something where nothing is.
        for (place, value) in [(0, 0), (8, 0), (10, 9), (11, 1), (12, 3), (16, 1), (127, 1)] {
            let mut bad = good;
            bad[place] = value;
            if place == 8 {
                bad[9] = 0;
            }
            assert_eq!(Request::decode(&bad), Err(Malformed::Rubbish), "{place}");
        }
    }
}
