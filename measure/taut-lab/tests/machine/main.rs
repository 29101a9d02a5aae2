//! The command as a user has it: with network hosts and browsers where the machine allows them.

#[path = "../../../../crates/taut/tests/common/mod.rs"]
mod common;

mod bench_vbus;
mod commands;
mod demo;
mod files;
mod hosts;
mod network;
mod pages;
mod task;
mod usage;

/// The command that is tested.
const PROGRAM: &str = env!("CARGO_BIN_EXE_taut-lab");
