//! Flights: `make test-all` alone runs them.

#[path = "../../../../crates/taut/tests/common/mod.rs"]
mod common;

mod flight;

/// The command that is tested.
const PROGRAM: &str = env!("CARGO_BIN_EXE_taut-flight");
