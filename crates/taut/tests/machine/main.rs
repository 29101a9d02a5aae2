//! The command as a user has it: with network hosts, several users and browsers where the machine allows them.

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/served_types.rs"]
mod served_types;
#[path = "../common/typed.rs"]
mod typed;

/// The command that is tested.
const PROGRAM: &str = env!("CARGO_BIN_EXE_taut");

mod bus;
mod capture;
mod commands;
mod container;
mod exec;
mod external;
mod files;
mod foxglove;
mod help;
mod key;
mod messages;
mod node;
mod partition;
mod record;
mod remedies;
mod serve;
mod setup;
mod task;
mod top;
mod trusted;
mod tutorial;
mod usage;
