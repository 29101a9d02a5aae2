//! Benchmarks of Tautline: paths measured side by side, in short slices that take turns.
//!
//! * [`rtt`], [`flood`], [`send`], [`ordinary`] and [`vbus`]: round trips, a flooded neighbour, the cost of sending,
//!   that of a demux for other traffic, the bus.
//! * [`experiment`]: figures of papers, measured again.
//! * [`demo`]: a control loop beside a busy network.
//! * [`path`]: the paths that all of them compare, each implemented once; [`echo`]: those of `taut bench rtt` by name.
//! * [`turns`]: the same paths over one cable, whose two ends take turns in one thread.
//! * [`network`]: requests and replies with an echo on another machine.
//! * [`load`]: traffic beside them; [`sides`]: the two threads of a benchmark.
//! * [`emblix`]: kernels compared in virtual time, by the lab.

pub mod demo;
pub mod echo;
pub mod emblix;
pub mod experiment;
pub mod flood;
pub mod load;
pub mod network;
pub mod ordinary;
pub mod path;
pub mod rtmux;
pub mod rtt;
pub mod send;
pub mod sides;
pub mod turns;
pub mod vbus;
