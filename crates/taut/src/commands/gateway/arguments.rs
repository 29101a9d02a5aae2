//! Arguments of `taut gateway`, which are those of the program `taut-gateway` too: its workspace includes this file.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Arguments of `taut gateway`.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Command to run.
    #[command(subcommand)]
    pub command: Command,
}

/// Subcommands of `taut gateway`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Publish ports on Zenoh and deliver what comes from there, until a signal.
    Run {
        /// Configuration file of the gateway (TOML).
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
    },
    /// Check the configuration file and the two that it names.
    Check {
        /// Configuration file of the gateway (TOML).
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
        /// Write JSON to standard output in place of the table; with =FILE, into a file beside it.
        #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-")]
        json: Option<PathBuf>,
    },
    /// Show the gateways that run here: active or standing by, publications, subscriptions, what they dropped.
    Status {
        /// Write JSON to standard output in place of the table; with =FILE, into a file beside it.
        #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-")]
        json: Option<PathBuf>,
    },
}
