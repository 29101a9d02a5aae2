//! Tests that boot machines, measure for long, or repeat figures: `make test-all` alone runs them.

#[path = "../../../../crates/taut/tests/common/mod.rs"]
mod common;

mod can;
mod experiments;
mod guest_virtual;
mod lab;
mod lab_paths;
mod lab_stranger;

/// The command that is tested.
const PROGRAM: &str = env!("CARGO_BIN_EXE_taut-lab");
