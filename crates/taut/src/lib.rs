//! The command `taut`, as a library so that its parts can be tested.
//!
//! Not an interface for others: it changes with the command.

pub mod cli;
pub mod commands;
pub mod doctor;
pub mod lab;
pub mod leftovers;
pub mod task;
pub mod tune;
pub mod units;
