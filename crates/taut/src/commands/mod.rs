//! The subcommands, each with its arguments and `run`.

pub mod bench;
pub mod capture;
pub mod completions;
pub mod demo;
pub mod doctor;
pub mod echo;
pub mod experiment;
pub mod flight;
pub mod guest;
pub mod init;
pub mod live;
pub mod neigh;
pub mod node;
pub mod output;
pub mod partition;
pub mod peer;
pub mod ping;
pub mod record;
pub mod recv;
pub mod replay;
pub mod send;
pub mod smooth;
pub mod sources;
pub mod status;
pub mod task;
pub mod vbus;
