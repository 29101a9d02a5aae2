//! `tautline_wire.h`, the wire protocol for microcontrollers, called from Rust and held against `tautline-proto`.
//!
//! The product is the header beside this crate; firmware includes it and needs nothing else. This crate is for tests
//! and fuzz targets: [`c`] calls the header's functions, [`same`] gives both implementations one input and panics where
//! they differ, and [`guarded`] places an input so that a read behind its end ends the process.

pub mod c;
pub mod guarded;
pub mod same;
