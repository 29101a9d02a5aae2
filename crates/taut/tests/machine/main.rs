//! The command as a user has it: with network hosts, several users and browsers where the machine allows them.

#[path = "../common/mod.rs"]
mod common;

mod bench_vbus;
mod capture;
mod commands;
mod demo;
mod exec;
mod files;
mod gateway;
mod hosts;
mod key;
mod messages;
mod node;
mod pages;
mod partition;
mod record;
mod remedies;
mod serve;
mod setup;
mod task;
mod top;
mod tutorial;
mod vbus;
