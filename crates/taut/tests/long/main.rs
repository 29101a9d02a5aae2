//! Tests that boot machines or build other workspaces: `make test-all` alone runs them.

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/served_types.rs"]
mod served_types;
#[path = "../common/typed.rs"]
mod typed;

/// The command that is tested.
const PROGRAM: &str = env!("CARGO_BIN_EXE_taut");

mod ethercat;
mod foxglove;
mod linuxcnc;
mod microcontroller;
mod packages;
mod supply;
