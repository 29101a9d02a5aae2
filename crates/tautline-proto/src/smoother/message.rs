//! Grants and reports on the wire: the payload of an ordinary message from port [`PORT`] to port [`PORT`] at the
//! highest priority. `docs/reference/wire.md` has the tables, `docs/vectors/wire/smoother.jsonl` the vectors.

use core::fmt;
use core::time::Duration;

/// Port that grants and reports are sent from and to. The ports above it are those of `taut ping` and `taut echo`.
pub const PORT: u16 = 4030;

/// Version of the messages.
pub const VERSION: u8 = 1;

/// Bytes of a grant.
pub const GRANT_BYTES: usize = 24;

/// Bytes of a report.
pub const REPORT_BYTES: usize = 48;

/// First byte of a grant.
pub const KIND_GRANT: u8 = 1;
const KIND_REPORT: u8 = 2;

/// Permission of a receiver to send other traffic to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Grant {
    /// Bytes that may leave at once.
    pub burst_bytes: u16,
    /// Number of this run of the receiver: grants of different runs are not compared.
    pub epoch: u32,
    /// Number of the grant in its run, wraps.
    pub number: u32,
    /// Bits a second on the wire.
    pub rate_bps: u64,
}

/// Reply of a sender to a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Report {
    /// Run of the receiver whose grant is in force.
    pub epoch: u32,
    /// Number of the grant in force.
    pub number: u32,
    /// Number of this run of the sender: its counts begin anew with it.
    pub sender_epoch: u32,
    /// Bytes of other traffic that wait for the receiver; the highest number stands for more.
    pub backlog_bytes: u32,
    /// Time from the arrival of the grant to the departure of the report.
    pub held: Duration,
    /// Bytes of other traffic sent to the receiver in this run, on the wire.
    pub other_bytes: u64,
    /// Bytes of real-time traffic sent to the receiver in this run, on the wire.
    pub real_time_bytes: u64,
}

/// A grant or a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Message {
    /// From a receiver.
    Grant(Grant),
    /// From a sender.
    Report(Report),
}

/// Reason why a payload is neither.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MessageError {
    /// Fewer bytes than the message has.
    Truncated,
    /// Another version.
    UnknownVersion,
    /// Neither a grant nor a report.
    UnknownKind,
}

impl MessageError {
    /// Name in the test vectors.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Truncated => "truncated",
            Self::UnknownVersion => "unknown_version",
            Self::UnknownKind => "unknown_kind",
        }
    }
}

impl fmt::Display for MessageError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Truncated => "message is too short",
            Self::UnknownVersion => "unknown version",
            Self::UnknownKind => "neither a grant nor a report",
        })
    }
}

impl core::error::Error for MessageError {}

impl Message {
    /// Reads a message. Bytes after it are ignored.
    ///
    /// # Errors
    ///
    /// In this order: [`Truncated`](MessageError::Truncated) if there is no kind and version,
    /// [`UnknownVersion`](MessageError::UnknownVersion), [`UnknownKind`](MessageError::UnknownKind),
    /// [`Truncated`](MessageError::Truncated).
    pub fn parse(payload: &[u8]) -> Result<Self, MessageError> {
        let &[kind, version, ..] = payload else {
            return Err(MessageError::Truncated);
        };
        if version != VERSION {
            return Err(MessageError::UnknownVersion);
        }
        let message = match kind {
            KIND_GRANT => payload
                .first_chunk()
                .map(|bytes| Self::Grant(Grant::decode(bytes))),
            KIND_REPORT => payload
                .first_chunk()
                .map(|bytes| Self::Report(Report::decode(bytes))),
            _ => return Err(MessageError::UnknownKind),
        };
        message.ok_or(MessageError::Truncated)
    }
}

impl Grant {
    /// The bytes of the grant.
    #[must_use]
    pub fn encode(&self) -> [u8; GRANT_BYTES] {
        let mut bytes = [0; GRANT_BYTES];
        bytes[..2].copy_from_slice(&[KIND_GRANT, VERSION]);
        bytes[2..4].copy_from_slice(&self.burst_bytes.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.epoch.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.number.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.rate_bps.to_be_bytes());
        bytes
    }

    fn decode(bytes: &[u8; GRANT_BYTES]) -> Self {
        Self {
            burst_bytes: u16::from_be_bytes([bytes[2], bytes[3]]),
            epoch: word(bytes, 4),
            number: word(bytes, 8),
            rate_bps: long(bytes, 16),
        }
    }
}

impl Report {
    /// The bytes of the report. A time that 64 bits of nanoseconds do not hold is written as the longest.
    #[must_use]
    pub fn encode(&self) -> [u8; REPORT_BYTES] {
        let held_ns = u64::try_from(self.held.as_nanos()).unwrap_or(u64::MAX);
        let mut bytes = [0; REPORT_BYTES];
        bytes[..2].copy_from_slice(&[KIND_REPORT, VERSION]);
        bytes[4..8].copy_from_slice(&self.epoch.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.number.to_be_bytes());
        bytes[12..16].copy_from_slice(&self.sender_epoch.to_be_bytes());
        bytes[16..20].copy_from_slice(&self.backlog_bytes.to_be_bytes());
        bytes[24..32].copy_from_slice(&held_ns.to_be_bytes());
        bytes[32..40].copy_from_slice(&self.other_bytes.to_be_bytes());
        bytes[40..48].copy_from_slice(&self.real_time_bytes.to_be_bytes());
        bytes
    }

    fn decode(bytes: &[u8; REPORT_BYTES]) -> Self {
        Self {
            epoch: word(bytes, 4),
            number: word(bytes, 8),
            sender_epoch: word(bytes, 12),
            backlog_bytes: word(bytes, 16),
            held: Duration::from_nanos(long(bytes, 24)),
            other_bytes: long(bytes, 32),
            real_time_bytes: long(bytes, 40),
        }
    }
}

fn word<const N: usize>(bytes: &[u8; N], offset: usize) -> u32 {
    u32::from_be_bytes(core::array::from_fn(|index| bytes[offset + index]))
}

fn long<const N: usize>(bytes: &[u8; N], offset: usize) -> u64 {
    u64::from_be_bytes(core::array::from_fn(|index| bytes[offset + index]))
}

const _: () = assert!(PORT <= crate::wire::PortNumber::MAX.get());

#[cfg(test)]
mod tests {
    use super::*;

    const GRANT: Grant = Grant {
        burst_bytes: 1538,
        epoch: 7,
        number: u32::MAX,
        rate_bps: 24_500_000,
    };

    const REPORT: Report = Report {
        epoch: 7,
        number: 9,
        sender_epoch: 3,
        backlog_bytes: u32::MAX,
        held: Duration::from_micros(41),
        other_bytes: u64::MAX,
        real_time_bytes: 1 << 40,
    };

    #[test]
    fn messages_are_read_as_they_are_written() {
        assert_eq!(Message::parse(&GRANT.encode()), Ok(Message::Grant(GRANT)));
        assert_eq!(
            Message::parse(&REPORT.encode()),
            Ok(Message::Report(REPORT))
        );
        let mut longer = [0xff; 60];
        longer[..REPORT_BYTES].copy_from_slice(&REPORT.encode());
        assert_eq!(Message::parse(&longer), Ok(Message::Report(REPORT)));
    }

    #[test]
    fn every_cut_and_every_other_kind_is_refused() {
        for length in 0..GRANT_BYTES {
            let cut = &GRANT.encode()[..length];
            assert_eq!(Message::parse(cut), Err(MessageError::Truncated));
        }
        for length in 0..REPORT_BYTES {
            let cut = &REPORT.encode()[..length];
            assert_eq!(Message::parse(cut), Err(MessageError::Truncated));
        }
        assert_eq!(
            Message::parse(&[1, 2, 0]),
            Err(MessageError::UnknownVersion)
        );
        assert_eq!(Message::parse(&[3, 1, 0]), Err(MessageError::UnknownKind));
        assert_eq!(Message::parse(&[0, 1, 0]), Err(MessageError::UnknownKind));
    }
}
