//! Arguments of `taut-ros`, which `taut ros` becomes.

use clap::Subcommand;
use tautline_bridge::arguments::{ConfigFile, JsonFile};

/// Subcommands of `taut-ros`.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show ports as topics of ROS 2 and deliver topics to ports, until a signal.
    Run(ConfigFile),
    /// Check the configuration file and the node's file that it names.
    Check {
        #[command(flatten)]
        file: ConfigFile,
        #[command(flatten)]
        output: JsonFile,
    },
    /// Show the programs that run here: their topics, readers and writers, and drops.
    Status(JsonFile),
}
