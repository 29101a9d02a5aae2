//! Status of ports.

use serde::Serialize;
use tautline_proto::wire::{PortKey, PortNumber};
use tautline_shm::layout::CLASS_COUNT;

use crate::address::Address;
use crate::kind::PortKind;
use crate::link::vbus::Reader;
use crate::message::SeenValue;
use crate::policing::Policing;
use crate::types::{Declaration, TypeDifference, number};

pub use crate::latency::{LatencyStatus, bucket_quantile};

/// Messages from one peer's port to this port, and losses on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PeerCounters {
    /// The peer's address.
    pub address: Address,
    /// Its port.
    #[serde(serialize_with = "number")]
    pub port: PortNumber,
    /// Frames that arrived, each once.
    pub received: u64,
    /// Frames that the sequence numbers say were sent and that did not arrive.
    pub lost: u64,
    /// Frames that arrived more than once.
    pub duplicates: u64,
    /// Times that the peer began to count anew.
    pub restarts: u32,
}

pub(super) fn short_key<S: serde::Serializer>(
    key: &PortKey,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&key.short())
}

/// A type of messages, as `taut status` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct TypeStatus {
    /// Its name.
    pub name: String,
    /// Its fields, as in a configuration: `position: f64[7]`.
    pub fields: Vec<String>,
    /// Bytes of a message.
    pub bytes: usize,
    /// Fingerprint of the type, in hexadecimal digits.
    pub fingerprint: String,
    /// Eight bits of it, which messages carry on a network.
    pub type_byte: u8,
}

impl From<&Declaration> for TypeStatus {
    fn from(declaration: &Declaration) -> Self {
        Self {
            name: declaration.name().to_owned(),
            fields: declaration
                .fields()
                .iter()
                .map(ToString::to_string)
                .collect(),
            bytes: declaration.bytes(),
            fingerprint: format!("{:016x}", declaration.fingerprint()),
            type_byte: declaration.type_byte(),
        }
    }
}

/// A type as the status of a node tells it, in [`PortStatus::receives`] and [`PortStatus::sends`]. Checked like any
/// other declaration, because a node says what it likes; `None` if it is none.
#[must_use]
pub fn told_type(told: &serde_json::Value) -> Option<Declaration> {
    let fields = told["fields"]
        .as_array()?
        .iter()
        .map(|field| field.as_str());
    let fields = fields.collect::<Option<Vec<_>>>()?;
    Declaration::new(told["name"].as_str()?, fields).ok()
}

/// One who reads what a port publishes for many, as `taut status` shows it (link `vbus`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ReaderStatus {
    /// The reader's address.
    pub address: Address,
    /// Its port.
    #[serde(serialize_with = "number")]
    pub port: PortNumber,
    /// Its process.
    pub process: u32,
    /// Whether it sleeps or waits for its descriptor.
    pub sleeps: bool,
    /// Messages or values that it has missed since it began to follow, as it says itself.
    pub overwritten: u64,
}

impl From<&Reader> for ReaderStatus {
    fn from(reader: &Reader) -> Self {
        let (node, port) = (reader.node, reader.port);
        Self {
            address: Address::Bus(node),
            port,
            process: reader.process,
            sleeps: reader.sleeps(),
            overwritten: reader.overwritten(),
        }
    }
}

/// Newest value of a sampling port with a type, as `taut status` shows it while it is watched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ValueStatus {
    /// Address of its sender.
    pub address: Address,
    /// Port of its sender.
    #[serde(serialize_with = "number")]
    pub port: PortNumber,
    /// Its bytes, in hexadecimal.
    pub payload: String,
}

impl From<SeenValue> for ValueStatus {
    fn from(value: SeenValue) -> Self {
        let digits = value.bytes.iter().map(|byte| format!("{byte:02x}"));
        Self {
            address: value.source.address,
            port: value.source.port,
            payload: digits.collect(),
        }
    }
}

/// Frames of a protected port, in the order of the checks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ProtectionStatus {
    /// Protection of what the port sends: `authenticated` or `encrypted`.
    pub kind: &'static str,
    /// Bytes of the memory in which frames wait for being checked, beside the port's own.
    pub memory_bytes: usize,
    /// Authentic frames.
    pub accepted: u64,
    /// Frames without protection.
    pub unprotected: u64,
    /// Frames too short for a trailer.
    pub cut: u64,
    /// Frames of senders with whom no keys are shared.
    pub unknown_sender: u64,
    /// Frames of an epoch that is not known, or over.
    pub unknown_epoch: u64,
    /// Frames whose time differs too much from their arrival: held up, or a clock is wrong.
    pub untimely: u64,
    /// Frames that had come before, or older than what had.
    pub replayed: u64,
    /// Frames with a wrong tag: another host made or changed them, or the keys differ.
    pub forged: u64,
    /// Frames that wait for being checked.
    pub waiting: u64,
    /// Frames dropped before they were checked, because too many waited.
    pub dropped_full: u64,
    /// Frames dropped before they were checked, because several CPUs delivered at once.
    pub contended: u64,
}

/// One open port, at the moment of asking.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PortStatus {
    /// Its key: `9`, `udp:4000` or `raw:0x88a4`.
    #[serde(serialize_with = "short_key")]
    pub key: PortKey,
    /// Its name in the configuration.
    pub name: Option<String>,
    /// Its discipline; UDP and raw ports are queuing.
    pub kind: PortKind,
    /// Type of the messages that it receives, if it says so.
    pub receives: Option<TypeStatus>,
    /// Type of the messages that it sends, if it says so.
    pub sends: Option<TypeStatus>,
    /// Bytes of its memory.
    pub memory_bytes: usize,
    /// Whether that memory can never be paged out: it is locked, or the kernel's (link `xdp`).
    pub memory_resident: bool,
    /// Slots of each class (queuing).
    pub depth: Option<u32>,
    /// Messages sent.
    pub sent: u64,
    /// Their bytes, without headers.
    pub sent_bytes: u64,
    /// Sends that failed.
    pub send_errors: u64,
    /// Of the messages sent, those that shared a frame with others.
    pub merged: u64,
    /// Frames that the demux delivered or dropped here.
    pub frames: u64,
    /// Messages handed to the application; values that it saw (sampling).
    pub received: u64,
    /// Their bytes, without headers.
    pub received_bytes: u64,
    /// Time since the newest value came, in nanoseconds, read or not (sampling).
    pub age_ns: Option<u64>,
    /// Age up to which a value is valid (sampling).
    pub refresh_period_ns: Option<u64>,
    /// Whether the newest value is valid; not while there is none (sampling).
    pub valid: Option<bool>,
    /// The newest value, read or not; told to watchers only, by sampling ports that have a type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<ValueStatus>,
    /// Time for which the message has waited that waits longest, in nanoseconds (queuing).
    pub oldest_wait_ns: Option<u64>,
    /// Latencies, from arrival to read; `None` if their measurement was never asked for.
    pub latency: Option<LatencyStatus>,
    /// Frames waiting, per priority 0 to 7 (queuing).
    pub queued: [u64; CLASS_COUNT],
    /// Frames dropped because their class was full, per priority (queuing).
    pub dropped_full: [u64; CLASS_COUNT],
    /// Values replaced before the application looked (sampling); messages that those who publish for many replaced
    /// before the port took them (queuing, link `vbus`).
    pub overwritten: u64,
    /// Limits of the port, if it is policed.
    pub policing: Option<Policing>,
    /// Frames dropped because they were more than that. They count as lost by their sender's numbers too.
    pub policed: u64,
    /// Frames given up because several CPUs delivered at once.
    pub contended: u64,
    /// Fragments and bundles that came for a sampling port, and authenticated frames for one without protection;
    /// datagrams and raw frames that are longer than a slot.
    pub unfit: u64,
    /// Sources that the port keeps a value of (sampling).
    pub sources: Option<u32>,
    /// Frames of sources for which there was no place (sampling).
    pub sources_refused: u64,
    /// Messages larger than the port takes.
    pub too_large: u64,
    /// Bundles that break the format, dropped whole.
    pub bad_bundles: u64,
    /// Authenticated frames that came for a queuing port without protection.
    pub protected: u64,
    /// Frames of a protected port that were checked. All other figures of such a port are of authentic ones.
    pub protection: Option<ProtectionStatus>,
    /// Messages of which fragments were missing at the time limit, or when their sender began anew.
    pub expired: u64,
    /// Fragments dropped for want of a collector, or because they contradict each other.
    pub incomplete_dropped: u64,
    /// Slots without a message.
    pub void: u64,
    /// Peers that pushed each other out of the list below.
    pub peers_evicted: u64,
    /// Sleeps of the waiting reader that ended, by a message or a timer.
    pub wakeups: u64,
    /// Time that the reader was awake for messages that it expected, in nanoseconds.
    pub awake_ns: u64,
    /// Time since the port was opened, in nanoseconds.
    pub open_ns: u64,
    /// Times that the demux woke the reader.
    pub doorbells: u64,
    /// Messages that this port had sent, and that peers had not taken when they went (link `vbus`).
    pub undelivered: u64,
    /// Messages that a typed port was asked for and that had another size than its type.
    pub other_size: u64,
    /// Messages that the port refused because they had another type than its own.
    pub other_type: u64,
    /// Peers that declare other types. On link `vbus` they are not connected for that; on a network it is the sender of
    /// the last message that was refused.
    pub type_differences: Vec<TypeDifference>,
    /// Those who read what the port publishes for many; `None` if it does not (link `vbus`).
    pub readers: Option<Vec<ReaderStatus>>,
    /// Senders.
    pub peers: Vec<PeerCounters>,
    /// Counters of a UDP port alone.
    #[serde(flatten)]
    pub datagrams: Option<DatagramStatus>,
}

/// Counters of a UDP port alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct DatagramStatus {
    /// Datagrams dropped for a wrong checksum.
    pub bad_checksum: u64,
    /// Datagrams taken although their sender's kernel had left the checksum to a network card and none was
    /// on the way: between the ends of a virtual link.
    pub partial_checksum: u64,
    /// Datagrams in fragments.
    pub reassembly: ReassemblyStatus,
}

/// Results of the datagrams that came for a port in IP fragments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ReassemblyStatus {
    /// Datagrams put together.
    pub completed: u64,
    /// Datagrams given up because a fragment was missing at the time limit.
    pub expired: u64,
    /// Datagrams given up for newer ones: their peer had its share of the collectors, or all were taken.
    pub displaced: u64,
    /// Datagrams dropped because a fragment was not the next one, or because of their length.
    pub broken: u64,
    /// Fragments of no datagram under way.
    pub strays: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_whole_declarations_of_a_status_are_believed() {
        let told = json!({"name": "T", "fields": ["a: u8"], "bytes": 1});
        assert_eq!(told_type(&told).unwrap().to_string(), "T { a: u8 }");
        for wrong in [
            json!(null),
            json!({"name": "T"}),
            json!({"name": "\u{1b}[2J", "fields": ["a: u8"]}),
            json!({"name": "T", "fields": [7]}),
            json!({"name": "T", "fields": "a: u8"}),
        ] {
            assert_eq!(told_type(&wrong), None, "{wrong}");
        }
    }
}
