//! Arguments of `taut-gateway`, which `taut gateway` becomes.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Subcommand;
use clap::builder::{PathBufValueParser, TypedValueParser as _};
use tautline_bridge::arguments::{ConfigFile, JsonFile};

use crate::units;

/// Subcommands of `taut-gateway`.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Publish ports on Zenoh and deliver what comes from there, until a signal.
    Run(ConfigFile),
    /// Check the configuration file and the two that it names.
    Check {
        #[command(flatten)]
        file: ConfigFile,
        #[command(flatten)]
        output: JsonFile,
    },
    /// Show the gateways that run here: active or standing by, publications, subscriptions, what they dropped.
    Status(JsonFile),
    /// Write what the gateways of a fleet tell, each picture a line of JSON. `taut status --fleet` makes a table of it.
    Fleet {
        /// Configuration file of a gateway (TOML): its fleet, and its way into Zenoh.
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
        /// Zenoh's own configuration (JSON5, JSON or YAML), in place of the gateway's.
        #[arg(long, value_name = "FILE")]
        zenoh: Option<PathBuf>,
        /// First part of the fleet's keys [default: that of the gateway's file, or tautline/fleet].
        #[arg(long, value_name = "KEY")]
        prefix: Option<String>,
        /// Write one picture, with everything that each gateway tells, and end.
        #[arg(long)]
        once: bool,
        /// Time between two pictures, 100ms to 1min, such as 500ms.
        #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
        interval: Duration,
    },
    /// Record what is published on keys, of another site for example, in a file that `taut replay` and viewers read.
    Record {
        /// File to write (MCAP).
        #[arg(value_parser = PathBufValueParser::new().try_map(recording))]
        file: PathBuf,
        /// Overwrite the file if it exists.
        #[arg(long)]
        overwrite: bool,
        /// Keys to record, which may have wildcards; may be given again.
        #[arg(long = "key", value_name = "KEY", required = true)]
        keys: Vec<String>,
        /// Configuration file of a gateway (TOML): its way into Zenoh, and the types of the keys that it subscribes to.
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
        /// Zenoh's own configuration (JSON5, JSON or YAML), in place of the gateway's.
        #[arg(long, value_name = "FILE")]
        zenoh: Option<PathBuf>,
        /// End after this many messages [default: never].
        #[arg(long, value_name = "N", value_parser = units::count)]
        count: Option<u64>,
        /// End after this time, such as 500ms [default: never].
        #[arg(long = "for", value_name = "TIME", value_parser = units::time)]
        length: Option<Duration>,
    },
}

/// Reads the time between two pictures.
fn interval(text: &str) -> Result<Duration, String> {
    let range = Duration::from_millis(100)..=Duration::from_secs(60);
    Some(units::time(text)?)
        .filter(|interval| range.contains(interval))
        .ok_or_else(|| "expected 100ms to 1min".to_owned())
}

/// Reads the path of a recording, which is never standard output.
fn recording(path: PathBuf) -> Result<PathBuf, &'static str> {
    match path == Path::new("-") {
        true => {
            Err("a recording is a file, and not standard output: its index is written at the end")
        }
        false => Ok(path),
    }
}
