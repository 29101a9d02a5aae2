//! Tests that boot machines, fly, measure or build other workspaces: `make test-all` alone runs them.

#[path = "../common/mod.rs"]
mod common;

mod ethercat;
mod experiments;
mod flight;
mod guest_virtual;
mod lab;
mod lab_paths;
mod lab_stranger;
mod microcontroller;
mod packages;
mod supply;
