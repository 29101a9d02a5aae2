//! Benchmarks of Tautline: paths measured side by side, in short slices that take turns.
//!
//! * [`rtt`], [`flood`], [`send`] and [`vbus`]: round trips, a flooded neighbour, the cost of sending, the bus.
//! * [`experiment`]: figures of papers, measured again.
//! * [`demo`]: a control loop beside a busy network.
//! * [`echo`], [`kernel`], [`nodes`] and [`load`]: the paths that they compare, and the traffic beside them.
//! * [`emblix`]: kernels compared in virtual time, by the lab.

pub mod demo;
pub mod echo;
pub mod emblix;
pub mod experiment;
pub mod flood;
pub mod kernel;
pub mod load;
pub mod nodes;
pub mod rtt;
pub mod send;
pub mod sides;
pub mod vbus;
