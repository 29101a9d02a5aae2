//! The subcommands, each with its arguments and `run`.

pub mod bench;
pub mod completions;
pub mod demo;
pub mod doctor;
