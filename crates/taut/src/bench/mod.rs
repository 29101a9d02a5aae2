//! Benchmarks that make their own two hosts.

pub mod rtt;
