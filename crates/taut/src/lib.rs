//! The command `taut`, as a library so that its parts can be tested.
//!
//! Not an interface for others: it changes with the command.

pub mod bench;
pub mod cli;
pub mod commands;
pub mod demo;
pub mod doctor;
pub mod echo;
pub mod experiment;
pub mod lab;
pub mod load;
pub mod netdev;
pub mod nodes;
pub mod table;
pub mod tune;
