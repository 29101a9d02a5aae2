//! The BPF programs and their maps (`bpf/smoother.bpf.c`).

use std::os::fd::{AsFd, AsRawFd};

use aya::Ebpf;
use aya::maps::{Array, HashMap, Map, MapData, MapError};
use aya::programs::SchedClassifier;
use tautline_proto::smoother::NODES_MAX;
use tautline_proto::wire::MacAddress;

use crate::SmootherError;

const OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/smoother.bpf.o"));

/// Handle of the queueing discipline, and the class of the first node. The programs have the same numbers.
pub(crate) const CLASS_HANDLE: u32 = 0x7a75_0000;
pub(crate) const CLASS_FIRST: u32 = 0x10;

/// The loaded programs.
pub(crate) struct Programs {
    ebpf: Ebpf,
    lease: Array<MapData, u64>,
    received: Array<MapData, u64>,
    passed: Array<MapData, u64>,
}

impl std::fmt::Debug for Programs {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Programs")
    }
}

impl Programs {
    /// Loads them for these nodes, in their order, without attaching them.
    pub(crate) fn load(nodes: &[MacAddress]) -> Result<Self, SmootherError> {
        let mut ebpf = Ebpf::load(OBJECT).map_err(refused)?;
        for name in ["hold", "class", "count"] {
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
        Ok(Self {
            lease: Array::try_from(take("lease")).map_err(refused)?,
            received: Array::try_from(take("received")).map_err(refused)?,
            passed: Array::try_from(take("passed")).map_err(refused)?,
            ebpf,
        })
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

    /// Holds other traffic to a node until a time of `CLOCK_MONOTONIC`; 0: not at all.
    pub(crate) fn hold_until(&mut self, node: usize, nanos: u64) -> Result<(), MapError> {
        self.lease.set(node as u32, nanos, 0)
    }

    /// Bytes of other traffic that came from a node.
    pub(crate) fn received(&self, node: usize) -> u64 {
        self.received.get(&(node as u32), 0).unwrap_or(0)
    }

    /// Bytes of other traffic that came from others.
    pub(crate) fn received_from_others(&self) -> u64 {
        self.received(NODES_MAX)
    }

    /// Bytes of other traffic that left without being held.
    pub(crate) fn passed(&self) -> u64 {
        self.passed.get(&0, 0).unwrap_or(0)
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
