//! The command `taut`, as a library so that its parts can be tested.
//!
//! Not an interface for others: it changes with the command.

pub mod capability;
pub mod child;
pub mod hosts;
pub mod interrupt;
pub mod lab;
