//! Zenoh's log, on standard error: standard output is that of the commands, and may be JSON.

use std::io::{self, Write};

use tautline_bridge::program::say;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::Subscriber;

/// Shows Zenoh's errors, or what `RUST_LOG` asks for. Lines without a reader are dropped, so no thread of Zenoh waits
/// for a reader.
pub(crate) fn start() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("error"));
    Subscriber::builder()
        .with_env_filter(filter)
        .with_ansi(false)
        .with_writer(|| Said)
        .init();
}

/// Standard error, a line at a time.
struct Said;

impl Write for Said {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        say(String::from_utf8_lossy(line).trim_end());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
