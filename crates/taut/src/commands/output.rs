//! How messages are written to standard output: `taut recv` and `taut vbus tap` do it alike.

use std::io::{self, ErrorKind, Write};

use clap::Args;
use serde_json::{Value, json};
use tautline::Source;

use crate::cli::{self, CommandError};

/// The form of a message.
#[derive(Debug, Args)]
pub struct OutputArguments {
    /// Write a line of JSON for each message, its bytes in hexadecimal.
    #[arg(long, conflicts_with = "hex")]
    json: bool,
    /// Write the bytes in hexadecimal.
    #[arg(long)]
    hex: bool,
}

impl OutputArguments {
    /// Writes a message in a line of its own; `json` is all that is known of it but its bytes.
    pub fn write(&self, bytes: &[u8], mut json: Value) -> Result<(), CommandError> {
        if self.json {
            json["payload"] = hex(bytes).into();
            return cli::print(&format!("{json}\n"));
        }
        if self.hex {
            return cli::print(&(hex(bytes) + "\n"));
        }
        // The bytes as they are: they need not be text.
        let mut stdout = io::stdout().lock();
        let written = stdout
            .write_all(bytes)
            .and_then(|()| stdout.write_all(b"\n"))
            .and_then(|()| stdout.flush());
        match written {
            Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(CommandError::failed(
                format!("cannot write to standard output: {error}"),
                "check where the output goes to",
            )),
            _ => Ok(()),
        }
    }
}

/// Who sent a message.
pub fn source_json(source: Source) -> Value {
    json!({ "address": source.address, "port": source.port.get() })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
