//! Benchmarks: paths measured side by side, in short slices that take turns.

pub mod flood;
pub mod rtt;
pub mod send;
pub mod sides;
pub mod vbus;
