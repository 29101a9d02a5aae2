//! Hosts on one machine, for tests and benchmarks that need a network of their own.
//!
//! * [`hosts`]: two or three hosts, each a network namespace, joined by cables.
//! * [`child`]: child processes that die with the thread that starts them, and threads moved into a host.
//! * [`interrupt`]: ^C and termination, with clean-ups that run whatever the program is doing.
//! * [`netdev`]: the threads and interrupts that poll an interface.
//! * [`capability`]: capabilities that this process holds.
//! * [`python`]: virtual environments with packages, for programs of others that tests compare with.
//! * [`process_namespace`] and [`settings`]: tests of partitions, and the settings that must come back.
//! * [`steps`]: instructions of a piece of the program, counted by single steps.
//! * [`lingering`]: a descriptor whose `close` blocks.
//! * [`sys`]: system calls behind safe functions.
//!
//! It knows nothing of nodes and ports.

pub mod capability;
pub mod child;
pub mod hosts;
pub mod interface;
pub mod interrupt;
mod lingering;
pub mod netdev;
pub mod own_test;
pub mod process_namespace;
pub mod python;
pub mod settings;
pub mod steps;
pub mod sys;

pub use lingering::{lingering, send_lingering};
