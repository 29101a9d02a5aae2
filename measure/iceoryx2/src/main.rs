//! Measures iceoryx2 for `taut bench bus`, the way that command measures its own paths: one thread asks, one
//! answers, each on a CPU of its own, and both sleep between two requests.
//!
//! It speaks lines. The first that it writes is `ready iceoryx2 VERSION`; then each line that it reads is answered by
//! one:
//!
//! | request | answer |
//! |---|---|
//! | `round-trip BYTES COUNT` | `ok` and COUNT times in nanoseconds |
//! | `throughput BYTES COUNT` | `ok` and the nanoseconds that COUNT messages took |
//! | `paced BYTES COUNT PERIOD_NS` | `ok` and COUNT times from sending to waking up, in nanoseconds |
//! | `publish-HOW-READERS BYTES COUNT SUBSCRIBERS PERIOD_NS` | `ok` and COUNT times of publishing; HOW is copied or lent, READERS are spinning or sleeping |
//!
//! A request that cannot be done is answered by `error` and why. The end of the input ends the program.

mod publish;
mod sides;

use std::io::{self, BufRead, Write};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;

use crate::publish::{Publishing, Slice};
use crate::sides::Asker;

/// The lock file names the version that was built.
const LOCK: &str = include_str!("../Cargo.lock");

/// Measures iceoryx2 on behalf of `taut bench bus`.
#[derive(Debug, Parser)]
struct Arguments {
    /// CPU of the asking thread.
    #[arg(long)]
    client_cpu: Option<usize>,
    /// CPU of the answering thread.
    #[arg(long)]
    server_cpu: Option<usize>,
}

fn main() -> ExitCode {
    match serve(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("error {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(arguments: &Arguments) -> Result<(), sides::Failure> {
    iceoryx2::prelude::set_log_level(iceoryx2::prelude::LogLevel::Error);
    let mut asker = Asker::new(arguments.client_cpu, arguments.server_cpu)?;
    let mut publishing = Publishing::new(arguments.server_cpu);
    let mut output = io::stdout().lock();
    writeln!(output, "ready iceoryx2 {}", version())?;
    for line in io::stdin().lock().lines() {
        let answer = match answer(&mut asker, &mut publishing, &line?) {
            Ok(times) => times
                .iter()
                .fold("ok".to_owned(), |line, time| line + " " + &time.to_string()),
            Err(error) => format!("error {error}"),
        };
        writeln!(output, "{answer}")?;
        output.flush()?;
    }
    Ok(())
}

fn answer(
    asker: &mut Asker,
    publishing: &mut Publishing,
    line: &str,
) -> Result<Vec<u64>, sides::Failure> {
    let mut words = line.split_whitespace();
    let what = words.next().unwrap_or_default();
    let numbers = words.map(str::parse).collect::<Result<Vec<u64>, _>>()?;
    match (what, numbers.as_slice()) {
        ("round-trip", &[bytes, count]) => asker.round_trips(usize::try_from(bytes)?, count),
        ("throughput", &[bytes, count]) => {
            Ok(vec![asker.throughput(usize::try_from(bytes)?, count)?])
        }
        ("paced", &[bytes, count, period_ns]) => asker.paced(
            usize::try_from(bytes)?,
            count,
            Duration::from_nanos(period_ns),
        ),
        (
            "publish-copied-spinning"
            | "publish-copied-sleeping"
            | "publish-lent-spinning"
            | "publish-lent-sleeping",
            &[bytes, count, subscribers, period_ns],
        ) => publishing.publish(Slice {
            lent: what.contains("lent"),
            sleeping: what.contains("sleeping"),
            bytes: usize::try_from(bytes)?,
            count,
            subscribers: usize::try_from(subscribers)?,
            period: Duration::from_nanos(period_ns),
        }),
        _ => Err(format!("`{line}` is no request").into()),
    }
}

fn version() -> &'static str {
    let mut lines = LOCK.lines();
    lines.find(|line| *line == "name = \"iceoryx2\"");
    let version = lines
        .next()
        .and_then(|line| line.strip_prefix("version = "));
    version.map_or("unknown", |version| version.trim_matches('"'))
}
