//! Hosts on one machine, for tests and benchmarks that need a network of their own.
//!
//! * [`hosts`]: two or three hosts, each a network namespace, joined by cables.
//! * [`child`]: child processes that die with the thread that starts them, and threads moved into a host.
//! * [`interrupt`]: ^C and termination, by which hosts are removed.
//! * [`python`]: virtual environments with packages, for programs of others that tests compare with.
//! * [`process_namespace`] and [`settings`]: tests of partitions, and the settings that must come back.
//! * [`steps`]: instructions of a piece of the program, counted by single steps.
//! * [`lingering`]: a descriptor whose `close` blocks.
//! * [`sys`]: system calls behind safe functions.
//!
//! It knows nothing of nodes and ports.

pub mod child;
pub mod hosts;
mod lingering;
pub mod own_test;
pub mod process_namespace;
pub mod python;
pub mod settings;
pub mod steps;
pub mod sys;

pub use lingering::{lingering, send_lingering};
pub use tautline_state::interrupt;
