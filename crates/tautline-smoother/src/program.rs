//! The BPF programs and their maps (`bpf/smoother.bpf.c`).

use std::os::fd::{AsFd, AsRawFd};

use aya::Ebpf;
use aya::maps::{Array, HashMap, Map, MapData};
use aya::programs::SchedClassifier;
use tautline_proto::smoother::NODES_MAX;
use tautline_proto::wire::MacAddress;

use crate::SmootherError;

/// Class of the first node. The programs have the same number, and the handle of the queueing discipline.
pub(crate) const CLASS_FIRST: u32 = 0x10;

/// The loaded programs.
pub(crate) struct Programs {
    ebpf: Ebpf,
    counts: Array<MapData, [u64; COUNTS]>,
}

/// Times up to which other traffic to each node is held.
pub(crate) struct Leases(Array<MapData, u64>);

impl Leases {
    /// Holds other traffic to a node until a time of `CLOCK_MONOTONIC`; 0: not at all.
    pub(crate) fn set(&mut self, node: usize, nanos: u64) -> Result<(), SmootherError> {
        self.0.set(node as u32, nanos, 0).map_err(refused)
    }
}

/// Counts of the programs: bytes from each node, from others, bytes that left without being held, and bytes held for
/// each node.
const COUNTS: usize = 2 * NODES_MAX + 2;

/// Bytes of other traffic on the wire, as the programs count them.
#[derive(Clone, Debug)]
pub(crate) struct OtherBytes([u64; COUNTS]);

impl OtherBytes {
    /// From a node.
    pub(crate) const fn received(&self, node: usize) -> u64 {
        self.0[node]
    }

    /// From all senders that are not nodes.
    pub(crate) const fn received_from_others(&self) -> u64 {
        self.0[NODES_MAX]
    }

    /// That left without being held.
    pub(crate) const fn passed(&self) -> u64 {
        self.0[NODES_MAX + 1]
    }

    /// That came into the class of a node.
    pub(crate) const fn held(&self, node: usize) -> u64 {
        self.0[NODES_MAX + 2 + node]
    }
}

impl std::fmt::Debug for Leases {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Leases")
    }
}

impl std::fmt::Debug for Programs {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Programs")
    }
}

impl Programs {
    /// Loads them for these nodes, in their order, without attaching them.
    pub(crate) fn load(nodes: &[MacAddress]) -> Result<(Self, Leases), SmootherError> {
        let object = tautline_bpf::SMOOTHER.ok_or(SmootherError::WithoutBpf)?;
        let mut ebpf = Ebpf::load(object).map_err(refused)?;
        for name in ["sort", "count"] {
            let program: &mut SchedClassifier = ebpf
                .program_mut(name)
                .expect("the object has it")
                .try_into()
                .map_err(refused)?;
            program.load().map_err(refused)?;
        }
        let mut take = |name| -> Map { ebpf.take_map(name).expect("the object has it") };
        let mut numbers: HashMap<MapData, u64, u32> =
            HashMap::try_from(take("nodes")).map_err(refused)?;
        for (number, mac) in nodes.iter().enumerate() {
            let mut key = [0; 8];
            key[..6].copy_from_slice(&mac.0);
            // The programs read the six bytes into the beginning of a word.
            numbers
                .insert(u64::from_ne_bytes(key), number as u32, 0)
                .map_err(refused)?;
        }
        let leases = Leases(Array::try_from(take("lease")).map_err(refused)?);
        let counts = Array::try_from(take("counts")).map_err(refused)?;
        Ok((Self { counts, ebpf }, leases))
    }

    /// Descriptor of a program, for a filter.
    pub(crate) fn descriptor(&self, name: &str) -> Result<i32, SmootherError> {
        let program: &SchedClassifier = self
            .ebpf
            .program(name)
            .expect("the object has it")
            .try_into()
            .map_err(refused)?;
        Ok(program.fd().map_err(refused)?.as_fd().as_raw_fd())
    }

    /// Counts since the programs were loaded.
    pub(crate) fn counts(&self) -> OtherBytes {
        OtherBytes(self.counts.get(&0, 0).unwrap_or([0; COUNTS]))
    }
}

fn refused(error: impl std::error::Error) -> SmootherError {
    // The loader's errors name their cause one by one.
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    SmootherError::Program(text)
}
