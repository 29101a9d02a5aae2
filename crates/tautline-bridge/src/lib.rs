//! Common parts of the programs that carry a cell's ports to another network: `taut-gateway` (Zenoh) and `taut-ros`
//! (DDS).
//!
//! Each of them is a workspace of its own, because its engine brings many crates. This crate knows no engine. In it are
//! the parts of the file that both have, the choice of the values that are published, the age of what comes, which of
//! several programs is active, counters, and what a program does at its beginning and end.
//!
//! | module | holds |
//! |---|---|
//! | [`arguments`] | arguments of subcommands |
//! | [`program`] | signals, output, threads whose end is the program's |
//! | [`config`] | the file: ports of the node, rules, rates |
//! | [`port`] | a port of either kind |
//! | [`destinations`] | connections from a port to its receivers, and the search for absent ones |
//! | [`status`], `family` | counters, and the state for queries; programs of one sort, found by the beginning of a name |
//! | [`standby`] | several programs of one cell, of which one is active: heartbeats and their port |
//! | [`election`], [`activity`] | the decision among them; the right of the active one |
//! | [`publication`] | from a port to an engine: the loops of a publication |
//! | [`gate`] | choice of the values that are published |
//! | [`clocks`] | the clocks of a decision, of which one goes on while the machine is suspended |
//! | [`baseline`] | time that a message has waited, without a comparison of clocks |
//! | `testing` | cells, and third-party participants; feature `testing` |

pub mod activity;
pub mod arguments;
pub mod baseline;
pub mod clocks;
pub mod config;
pub mod destinations;
pub mod election;
mod family;
pub mod gate;
pub mod port;
pub mod program;
pub mod publication;
pub mod standby;
pub mod status;
#[cfg(feature = "testing")]
pub mod testing;
