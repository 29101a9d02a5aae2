//! The program of a cell's switch port (`bpf/switch_port.bpf.c`): it drops what finds the queue full, and counts.

use std::fmt;
use std::time::Duration;

use aya::maps::{Array, MapData};
use aya::programs::{SchedClassifier, TcAttachType, tc};
use aya::{Ebpf, EbpfLoader};

use super::HostsError;
use super::cell::{Port, WIRE_BYTES};

// The program has the same numbers.
const WAIT_BINS: usize = 1024;
const SOURCES: usize = 64;
const KINDS: usize = 3;
const KIND_WORDS: usize = 4;
const WORDS: usize = KINDS * KIND_WORDS + KINDS * WAIT_BINS + SOURCES;
/// Parts of a full frame's time in which waits are counted.
const BINS_PER_FRAME: u64 = 10;

/// Waits above which a frame of a kind counts as late: grants and reports, real time, others.
const LATE: [Duration; KINDS] = [
    Duration::MAX,
    Duration::from_micros(300),
    Duration::from_micros(1500),
];

/// Kind of traffic at the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Grants and reports.
    Control,
    /// Real-time messages.
    RealTime,
    /// Everything else.
    Other,
}

/// Counts of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KindCounts {
    /// Frames that came to the port.
    pub frames: u64,
    /// Bytes of those that left, on the wire.
    pub wire_bytes: u64,
    /// Frames that found the queue full.
    pub dropped: u64,
    /// Frames that waited longer than the paper's deadline for the kind: 300 µs, others 1.5 ms.
    pub late: u64,
}

/// Counts of a port since its beginning, or over a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortCounts {
    words: Box<[u64]>,
}

impl PortCounts {
    /// Counts since `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let pairs = self.words.iter().zip(&before.words);
        Self {
            words: pairs.map(|(now, then)| now - then).collect(),
        }
    }

    /// Those of a kind.
    #[must_use]
    pub fn of(&self, kind: Kind) -> KindCounts {
        let at = kind as usize * KIND_WORDS;
        KindCounts {
            frames: self.words[at],
            wire_bytes: self.words[at + 1],
            dropped: self.words[at + 2],
            late: self.words[at + 3],
        }
    }

    /// Frames that passed by their wait, in tenths of a full frame's time; the last count is of all longer ones.
    #[must_use]
    pub fn waits(&self, kind: Kind) -> &[u64] {
        &self.words[KINDS * KIND_WORDS + kind as usize * WAIT_BINS..][..WAIT_BINS]
    }

    /// Wait in frame times that a share of the frames that passed does not exceed.
    #[must_use]
    pub fn wait_frames(&self, kind: Kind, share: f64) -> f64 {
        let waits = self.waits(kind);
        let total: u64 = waits.iter().sum();
        let mut seen = 0;
        for (bin, count) in waits.iter().enumerate() {
            seen += count;
            if *count > 0 && seen as f64 >= share * total as f64 {
                return (bin + 1) as f64 / BINS_PER_FRAME as f64;
            }
        }
        0.0
    }

    /// Bytes of other traffic that passed from a node, on the wire.
    #[must_use]
    pub fn other_bytes_of(&self, mac: [u8; 6]) -> u64 {
        let sources = &self.words[KINDS * (KIND_WORDS + WAIT_BINS)..];
        sources.get(usize::from(mac[5])).copied().unwrap_or(0)
    }
}

/// The attached program.
pub(super) struct SwitchPort {
    counts: Array<MapData, [u64; WORDS]>,
    // Attached while it lives.
    _program: Ebpf,
}

impl fmt::Debug for SwitchPort {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("SwitchPort")
    }
}

impl SwitchPort {
    /// Attaches the program at the egress of a device of the calling thread's network namespace.
    pub(super) fn attach(device: &str, port: &Port) -> Result<Self, HostsError> {
        let longest_ns = WIRE_BYTES * 8_000_000_000 / port.rate_bps;
        let late_ns = LATE.map(|late| u64::try_from(late.as_nanos()).unwrap_or(u64::MAX));
        let object: Option<&[u8]> = tautline_bpf::object!("bpf", "switch_port");
        let object = object
            .ok_or_else(|| refused(std::io::Error::other("built without the feature `bpf`")))?;
        let mut program = EbpfLoader::new()
            .override_global(
                "picoseconds_per_byte",
                &(8_000_000_000_000 / port.rate_bps),
                true,
            )
            .override_global("queue_frames", &u64::from(port.queue_frames), true)
            .override_global("honours_priorities", &u64::from(port.priorities), true)
            .override_global("bin_ns", &(longest_ns / BINS_PER_FRAME).max(1), true)
            .override_global("longest_ns", &longest_ns, true)
            .override_global("late_ns", &late_ns, true)
            .load(object)
            .map_err(refused)?;
        // Since Linux 6.6 it is there without a queueing discipline.
        let _ = tc::qdisc_add_clsact(device);
        let classifier: &mut SchedClassifier = program
            .program_mut("switch_port")
            .expect("the object has it")
            .try_into()
            .map_err(refused)?;
        classifier.load().map_err(refused)?;
        classifier
            .attach(device, TcAttachType::Egress)
            .map_err(refused)?;
        let counts = program.take_map("counts").expect("the object has it");
        Ok(Self {
            counts: Array::try_from(counts).map_err(refused)?,
            _program: program,
        })
    }

    pub(super) fn counts(&self) -> Result<PortCounts, HostsError> {
        let words = self.counts.get(&0, 0).map_err(refused)?;
        Ok(PortCounts {
            words: Box::new(words),
        })
    }
}

fn refused(error: impl std::error::Error + Send + Sync + 'static) -> HostsError {
    HostsError::io("run the program of the switch's port")(std::io::Error::other(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_read_in_frame_times() {
        let mut counts = PortCounts {
            words: vec![0; WORDS].into_boxed_slice(),
        };
        assert_eq!(counts.wait_frames(Kind::RealTime, 1.0), 0.0);
        let first = KINDS * KIND_WORDS + WAIT_BINS;
        counts.words[first] = 99;
        counts.words[first + 24] = 1;
        assert_eq!(counts.wait_frames(Kind::RealTime, 0.5), 0.1);
        assert_eq!(counts.wait_frames(Kind::RealTime, 1.0), 2.5);
        assert_eq!(counts.since(&counts.clone()).waits(Kind::RealTime)[24], 0);
    }
}
