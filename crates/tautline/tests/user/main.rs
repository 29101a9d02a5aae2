//! Tests that an ordinary user can run: buses, cycles, configuration.

#[path = "../common/mod.rs"]
mod common;

mod bpf_reproducible;
mod configuration;
mod cycle;
mod opening;
mod vbus_batch;
mod vbus_hostile;
mod vbus_kill;
mod vbus_large;
mod vbus_readers;
mod vbus_readers_messages;
mod vbus_start;
mod watched;
