//! The structs of the header. Their layout is part of the binary interface; a test holds the header
//! to it.
#![allow(non_camel_case_types)] // Named as in C.

use std::ffi::{c_char, c_void};
use std::hash::{Hash, Hasher};
use std::net::{Ipv4Addr, SocketAddrV4};

use tautline::address::Address;
use tautline::port::{Datagram, ReceivedFrame};
use tautline::status::PortStatus;
use tautline::{Destination, MacAddress, Message, NodeName, PortKey, PortNumber, Sample, Source};

use crate::code::Code;

/// A node.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct tautline_node {
    /// Its number; 0 is never one.
    pub id: u32,
}

/// A port, of any kind.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct tautline_port {
    /// Its number as a handle; 0 is never one.
    pub id: u32,
}

/// Waits of a descriptor that end awake.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct tautline_awake {
    /// Its number; 0 is never one.
    pub id: u32,
}

/// A task set.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct tautline_tasks {
    /// Its number; 0 is never one.
    pub id: u32,
}

/// Waits of a port do not spin (`spin_ns`).
pub const TAUTLINE_SPIN_NEVER: u64 = u64::MAX;

/// Tasks without real-time scheduling and locked memory, for valgrind and sanitizers.
pub const TAUTLINE_WITHOUT_REAL_TIME: u32 = 1;

/// One job of a task. Times are on the clock of `tautline_now_ns`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct tautline_job {
    /// Number of the release since the mode began, from 1.
    pub number: u64,
    /// Time of the release.
    pub release_ns: u64,
    /// Time by which the job must be done.
    pub deadline_ns: u64,
    /// Message that activated the job, while its function runs; null if none did.
    pub message: *const c_void,
    /// Length of the message.
    pub message_bytes: usize,
    /// Arrival of the message; without one, the release.
    pub arrival_ns: u64,
}

/// A job's function.
pub type tautline_job_function =
    Option<unsafe extern "C" fn(job: *const tautline_job, context: *mut c_void)>;
/// Function that sets the outputs to their safe values.
pub type tautline_safe_function = Option<unsafe extern "C" fn(context: *mut c_void)>;

/// Figures of a task since its start.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct tautline_task_figures {
    /// Jobs that ended.
    pub jobs: u64,
    /// Jobs that ended after their deadline.
    pub missed: u64,
    /// Median of the time from a release to the end of its job.
    pub response_p50_ns: u64,
    /// 99th percentile.
    pub response_p99_ns: u64,
    /// Maximum.
    pub response_max_ns: u64,
    /// Longest execution time.
    pub execution_max_ns: u64,
    /// 1 if the task was stopped.
    pub stopped: u64,
    /// Median of the time from the arrival of a message to the end of its job; 0 for a task that time activates.
    pub latency_p50_ns: u64,
    /// 99th percentile.
    pub latency_p99_ns: u64,
    /// Maximum.
    pub latency_max_ns: u64,
}

/// Settings of a cycle.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct tautline_cycle_options {
    /// From one start to the next.
    pub period_ns: u64,
    /// The only CPU of the thread; -1 for any.
    pub cpu: i32,
    /// Priority under SCHED_FIFO; 0 leaves the policy as it is.
    pub fifo_priority: u8,
    /// Whether all memory of the process is locked.
    pub lock_memory: u8,
    /// Zero.
    pub reserved: [u8; 2],
    /// From the arrival of a peer's value to the start, where there are values.
    pub phase_ns: u64,
    /// Values of a peer in a period, which the cycle follows; 0 for a cycle of its own.
    pub values_per_cycle: u32,
    /// Zero.
    pub reserved_too: u32,
}

/// One start of a cycle.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct tautline_tick {
    /// Number of the period, from 1.
    pub number: u64,
    /// Time at which it began.
    pub due_ns: u64,
    /// Time from then until the thread ran.
    pub late_ns: u64,
    /// Start of the next period.
    pub deadline_ns: u64,
    /// Periods that were skipped immediately before.
    pub skipped: u64,
}

/// The way from one port to one port of a peer.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct tautline_destination {
    /// The port that it belongs to.
    pub port_id: u32,
    /// Which of its destinations.
    pub index: u32,
}

impl From<Destination> for tautline_destination {
    fn from(destination: Destination) -> Self {
        let [port_id, index] = destination.into_parts();
        Self { port_id, index }
    }
}

impl From<tautline_destination> for Destination {
    fn from(destination: tautline_destination) -> Self {
        Self::from_parts([destination.port_id, destination.index])
    }
}

/// Options of a port. 0 and null in a field stand for the value of the configuration, or for the default.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct tautline_port_options {
    /// [`TAUTLINE_QUEUING`], [`TAUTLINE_SAMPLING`], [`TAUTLINE_DATAGRAM`] or [`TAUTLINE_RAW`].
    pub kind: u16,
    /// Its number in its node; its UDP port, of a port of plain UDP; its EtherType, of a raw port.
    pub number: u16,
    /// Slots of each priority.
    pub depth: u32,
    /// Its name in the configuration.
    pub name: *const c_char,
    /// Largest message or value.
    pub message_bytes_max: u32,
    /// Senders that a sampling port keeps a value of.
    pub sources: u32,
    /// Period in which a new value is due.
    pub refresh_period_ns: u64,
    /// How long a wait spins before it sleeps.
    pub spin_ns: u64,
    /// Frames a second that the port takes.
    pub police_rate: u32,
    /// Frames that it takes at once.
    pub police_burst: u32,
}

/// Description of a port.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct tautline_port_info {
    /// Its number in its node; its UDP port, of a port of plain UDP; its EtherType, of a raw port.
    pub number: u16,
    /// [`TAUTLINE_QUEUING`], [`TAUTLINE_SAMPLING`], [`TAUTLINE_DATAGRAM`] or [`TAUTLINE_RAW`].
    pub kind: u16,
    /// Bytes that a buffer for it must have.
    pub message_bytes_max: u32,
}

/// A queuing port.
pub const TAUTLINE_QUEUING: u16 = 0;
/// A sampling port.
pub const TAUTLINE_SAMPLING: u16 = 1;
/// A port of plain UDP.
pub const TAUTLINE_DATAGRAM: u16 = 2;
/// A raw port.
pub const TAUTLINE_RAW: u16 = 3;
/// Most bytes of a raw frame.
pub const TAUTLINE_FRAME_BYTES_MAX: usize = tautline::port::RAW_FRAME_BYTES_MAX;
/// The message came straight in Ethernet.
pub const TAUTLINE_ETHERNET: u8 = 1;
/// The message came in UDP.
pub const TAUTLINE_UDP: u8 = 2;
/// The message came over a bus.
pub const TAUTLINE_BUS: u8 = 3;
/// A deadline that has come: poll and return.
pub const TAUTLINE_POLL: u64 = 0;
/// A deadline that never comes.
pub const TAUTLINE_FOREVER: u64 = u64::MAX;

/// Sender of a message; all zero of a raw frame. On a bus `mac` and `ip` hold a number that stands for the name of the
/// sender's node, for this process alone: the name itself is longer than they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct tautline_source {
    /// [`TAUTLINE_ETHERNET`], [`TAUTLINE_UDP`] or [`TAUTLINE_BUS`].
    pub form: u8,
    /// The sender's MAC address, in the Ethernet form.
    pub mac: [u8; 6],
    /// Zero.
    pub reserved: u8,
    /// The sender's IPv4 address in network byte order, in the UDP form.
    pub ip: u32,
    /// The sender's UDP port in network byte order, in the UDP form.
    pub udp_port: u16,
    /// The number of the port that sent it; 0 in plain UDP.
    pub port: u16,
}

/// A message of a batch.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct tautline_outgoing {
    /// Its bytes.
    pub message: *const c_void,
    /// How many.
    pub bytes: usize,
    /// Where to.
    pub destination: tautline_destination,
    /// How urgent.
    pub priority: u8,
    /// Zero.
    pub reserved: [u8; 7],
}

/// Messages of a batch. Lower: programs that collect more have to call more often. Higher: other threads are refused
/// the port for longer.
pub const TAUTLINE_BATCH_MAX: usize = 1024;

/// A message that was received.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct tautline_message {
    /// Bytes of the message in the buffer.
    pub bytes: u32,
    /// Sequence number of its first frame.
    pub sequence: u32,
    /// When it arrived.
    pub arrival_ns: u64,
    /// Sender of the message.
    pub source: tautline_source,
    /// Its priority.
    pub priority: u8,
    /// Zero.
    pub reserved: [u8; 7],
}

/// A value that was read.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct tautline_sample {
    /// Bytes of the value in the buffer.
    pub bytes: u32,
    /// Sequence number of its frame.
    pub sequence: u32,
    /// When it arrived.
    pub arrival_ns: u64,
    /// How long ago that was.
    pub age_ns: u64,
    /// Values that came and were replaced since the last read.
    pub overwritten: u64,
    /// Sender of the value.
    pub source: tautline_source,
    /// Its priority.
    pub priority: u8,
    /// 1 if the age is within the refresh period.
    pub valid: u8,
    /// 1 if no read has seen it before.
    pub fresh: u8,
    /// Zero.
    pub reserved: [u8; 5],
}

/// Counters of a port.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct tautline_port_counters {
    /// Messages sent.
    pub sent: u64,
    /// Sends that failed.
    pub send_errors: u64,
    /// Frames that arrived, dropped ones too.
    pub frames: u64,
    /// Messages handed out; values seen.
    pub received: u64,
    /// Frames waiting, all priorities.
    pub queued: u64,
    /// Frames dropped because their class was full, all priorities.
    pub dropped_full: u64,
    /// Values replaced before they were seen.
    pub overwritten: u64,
    /// Frames that did not arrive, by their sequence numbers.
    pub lost: u64,
    /// Frames that arrived more than once.
    pub duplicates: u64,
    /// Messages larger than the port takes.
    pub too_large: u64,
    /// Messages given up because fragments were missing, late or contradictory.
    pub incomplete: u64,
}

impl From<Source> for tautline_source {
    fn from(source: Source) -> Self {
        let none = Self {
            form: 0,
            mac: [0; 6],
            reserved: 0,
            ip: 0,
            udp_port: 0,
            port: source.port.get(),
        };
        match source.address {
            Address::Ethernet(mac) => Self {
                form: TAUTLINE_ETHERNET,
                mac: mac.0,
                ..none
            },
            Address::Udp(address) => Self {
                port: none.port,
                ..Self::plain(address)
            },
            Address::Bus(node) => {
                let number = number_of(node);
                let [a, b, c, d] = ((number >> 32) as u32).to_ne_bytes();
                Self {
                    form: TAUTLINE_BUS,
                    mac: [a, b, c, d, 0, 0],
                    ip: number as u32,
                    ..none
                }
            }
            _ => none,
        }
    }
}

/// A number that stands for a node's name. Two names with one number are no harm: their ports are not answered.
fn number_of(node: NodeName) -> u64 {
    let mut words = Words {
        sum: 0,
        multiplier: 0x9e37_79b9_7f4a_7c15,
    };
    node.hash(&mut words);
    words.finish()
}

/// Sum of words of eight bytes, each times an odd number of its own: it runs for every message, and no multiplication
/// waits for another.
struct Words {
    sum: u64,
    multiplier: u64,
}

impl Hasher for Words {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks();
        for word in words {
            self.write_u64(u64::from_ne_bytes(*word));
        }
        for byte in rest {
            self.write_u64((*byte).into());
        }
    }

    #[inline]
    fn write_u64(&mut self, word: u64) {
        self.sum = self.sum.wrapping_add(word.wrapping_mul(self.multiplier));
        self.multiplier = self.multiplier.rotate_left(17) | 1;
    }

    #[inline]
    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.sum ^ self.sum >> 32
    }
}

impl TryFrom<tautline_source> for Source {
    type Error = Code;

    fn try_from(source: tautline_source) -> Result<Self, Code> {
        let address = match source.form {
            TAUTLINE_ETHERNET => Address::Ethernet(MacAddress(source.mac)),
            TAUTLINE_UDP => Address::Udp(source.udp_address()?),
            _ => return Err(Code::BadArgument),
        };
        let port = PortNumber::new(source.port).ok_or(Code::BadArgument)?;
        Ok(Self { address, port })
    }
}

impl From<Message> for tautline_message {
    fn from(message: Message) -> Self {
        Self {
            // A message has 65,536 bytes at most.
            bytes: message.length as u32,
            sequence: message.sequence,
            arrival_ns: message.arrival.as_nanos(),
            source: message.source.into(),
            priority: message.priority.get(),
            reserved: [0; 7],
        }
    }
}

impl From<ReceivedFrame> for tautline_message {
    fn from(frame: ReceivedFrame) -> Self {
        Self {
            // A frame has 1,514 bytes at most.
            bytes: frame.length as u32,
            sequence: 0,
            arrival_ns: frame.arrival.as_nanos(),
            source: tautline_source {
                form: 0,
                ..tautline_source::plain(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0))
            },
            priority: frame.priority.get(),
            reserved: [0; 7],
        }
    }
}

impl tautline_source {
    /// The sender of a datagram of plain UDP.
    fn plain(address: SocketAddrV4) -> Self {
        Self {
            form: TAUTLINE_UDP,
            mac: [0; 6],
            reserved: 0,
            ip: address.ip().to_bits().to_be(),
            udp_port: address.port().to_be(),
            port: 0,
        }
    }

    /// The address in it.
    pub(crate) fn udp_address(&self) -> Result<SocketAddrV4, Code> {
        if self.form != TAUTLINE_UDP {
            return Err(Code::BadArgument);
        }
        let ip = Ipv4Addr::from_bits(u32::from_be(self.ip));
        Ok(SocketAddrV4::new(ip, u16::from_be(self.udp_port)))
    }
}

impl From<Datagram> for tautline_message {
    fn from(datagram: Datagram) -> Self {
        Self {
            // A datagram has 65,507 bytes at most.
            bytes: datagram.length as u32,
            sequence: 0,
            arrival_ns: datagram.arrival.as_nanos(),
            source: tautline_source::plain(datagram.source),
            priority: datagram.priority.get(),
            reserved: [0; 7],
        }
    }
}

impl From<Sample> for tautline_sample {
    fn from(sample: Sample) -> Self {
        Self {
            bytes: sample.length as u32,
            sequence: sample.sequence,
            arrival_ns: sample.arrival.as_nanos(),
            // 584 years and more are as many.
            age_ns: u64::try_from(sample.age.as_nanos()).unwrap_or(u64::MAX),
            overwritten: sample.overwritten,
            source: sample.source.into(),
            priority: sample.priority.get(),
            valid: u8::from(sample.valid),
            fresh: u8::from(sample.new),
            reserved: [0; 5],
        }
    }
}

impl From<&PortStatus> for tautline_port_counters {
    fn from(status: &PortStatus) -> Self {
        Self {
            sent: status.sent,
            send_errors: status.send_errors,
            frames: status.frames,
            received: status.received,
            queued: status.queued.iter().sum(),
            dropped_full: status.dropped_full.iter().sum(),
            overwritten: status.overwritten,
            lost: status.peers.iter().map(|peer| peer.lost).sum(),
            duplicates: status.peers.iter().map(|peer| peer.duplicates).sum(),
            too_large: match status.key {
                PortKey::Message(_) => status.too_large,
                PortKey::Udp(_) | PortKey::Raw(_) => status.too_large + status.unfit,
            },
            incomplete: status.expired + status.incomplete_dropped,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_survives_the_border() {
        let port = PortNumber::new(9).unwrap();
        let ethernet = Address::Ethernet(MacAddress([2, 0, 0, 0, 0, 9]));
        let udp = Address::Udp("10.0.0.7:21578".parse().unwrap());
        for address in [ethernet, udp] {
            let source = Source { address, port };
            assert_eq!(
                Source::try_from(tautline_source::from(source)).unwrap(),
                source
            );
        }
        let udp = tautline_source::from(Source { address: udp, port });
        assert_eq!(udp.ip.to_ne_bytes(), [10, 0, 0, 7]);
        assert_eq!(udp.udp_port.to_ne_bytes(), 21578u16.to_be_bytes());
        assert!(Source::try_from(tautline_source { form: 0, ..udp }).is_err());
        // The first and the last byte of a name count, and nothing else differs.
        let on_bus = |name: &str| {
            let address = Address::Bus(name.parse().unwrap());
            tautline_source::from(Source { address, port })
        };
        let long = "motor-of-the-left-front-wheel-1";
        assert_eq!(on_bus(long), on_bus(long));
        assert_eq!(on_bus(long).form, TAUTLINE_BUS);
        for other in [
            "notor-of-the-left-front-wheel-1",
            "motor-of-the-left-front-wheel-2",
        ] {
            assert_ne!(on_bus(long), on_bus(other));
        }
        assert!(Source::try_from(tautline_source { port: 0, ..udp }).is_err());
    }
}
