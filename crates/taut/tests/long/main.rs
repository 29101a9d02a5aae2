//! Tests that boot machines or build other workspaces: `make test-all` alone runs them.

#[path = "../common/mod.rs"]
mod common;

/// The command that is tested.
const PROGRAM: &str = env!("CARGO_BIN_EXE_taut");

mod ethercat;
mod foxglove;
mod linuxcnc;
mod microcontroller;
mod packages;
mod supply;
