//! Arguments of `taut-ros`, which `taut ros` becomes.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Arguments of `taut-ros`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Command to run.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Subcommands of `taut-ros`.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show ports as topics of ROS 2 and deliver topics to ports, until a signal.
    Run {
        /// Configuration file (TOML).
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
    },
    /// Check the configuration file and the node's file that it names.
    Check {
        /// Configuration file (TOML).
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
        /// Write JSON to standard output in place of the table; with =FILE, into a file beside it.
        #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-")]
        json: Option<PathBuf>,
    },
    /// Show the programs that run here: their topics, readers and writers, and drops.
    Status {
        /// Write JSON to standard output in place of the table; with =FILE, into a file beside it.
        #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-")]
        json: Option<PathBuf>,
    },
}
