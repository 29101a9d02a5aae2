//! Runs all targets for a while, on stable Rust, with inputs that a seed determines.

use std::fs;
use std::io;
use std::panic;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Parser;
use tautline_fuzz::inputs::Inputs;
use tautline_fuzz::targets::{self, Target};
use tautline_fuzz::{kept, seeds};

/// A target that has failed this often is not run on: the first failures say enough.
const FAILURES_MAX: u64 = 5;

/// Runs the fuzz targets with random bytes and changed test vectors.
#[derive(Parser)]
struct Arguments {
    /// Inputs for each target.
    #[arg(long, default_value_t = 100_000)]
    iterations: u64,
    /// Where chance begins; the time if not given. The same seed gives the same inputs.
    #[arg(long)]
    seed: Option<u64>,
    /// Only this target.
    #[arg(long)]
    target: Option<String>,
    /// Write the seeds into this folder, a sub-folder for each target, for libFuzzer, and stop.
    #[arg(long)]
    write_corpus: Option<PathBuf>,
    /// Print the inputs in this folder, such as libFuzzer finds and reduces, as lines of the kept corpus,
    /// and stop.
    #[arg(long)]
    lines_of: Option<PathBuf>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(folder) = &arguments.write_corpus {
        return match write_corpus(folder) {
            Ok(files) => {
                println!("{files} files written to {}", folder.display());
                ExitCode::SUCCESS
            }
            Err(error) => {
                eprintln!("cannot write to {}: {error}", folder.display());
                ExitCode::FAILURE
            }
        };
    }
    if let Some(folder) = &arguments.lines_of {
        return match print_lines(folder) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("cannot read {}: {error}", folder.display());
                ExitCode::FAILURE
            }
        };
    }
    let seed = arguments.seed.unwrap_or_else(seed_from_time);
    let chosen: Vec<Target> = targets::ALL
        .iter()
        .copied()
        .filter(|(name, _)| arguments.target.as_deref().is_none_or(|only| only == *name))
        .collect();
    if chosen.is_empty() {
        let names = names().join(", ");
        eprintln!("no such target; there are {names}");
        return ExitCode::FAILURE;
    }
    println!("seed {seed}, {} inputs a target", arguments.iterations);
    let mut failed_total = 0;
    for target in chosen {
        let (passed, failed) = run(target, seed, arguments.iterations);
        println!("{}: {passed} passed, {failed} failed", target.0);
        failed_total += failed;
    }
    if failed_total == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn names() -> Vec<&'static str> {
    targets::ALL.iter().map(|(name, _)| *name).collect()
}

/// How many inputs the target passed and failed: its seeds as they are, then changes of them.
fn run((name, target): Target, seed: u64, iterations: u64) -> (u64, u64) {
    let seeds = seeds::of_target(name);
    let (mut passed, mut failed) = (0, 0);
    for input in &seeds {
        match answers(target, input) {
            true => passed += 1,
            false => {
                eprintln!("{name}: a seed failed: {}", kept::line(input));
                failed += 1;
            }
        }
    }
    let mut inputs = Inputs::new(seed, seeds);
    for iteration in 0..iterations {
        let input = inputs.next_input();
        if answers(target, input) {
            passed += 1;
            continue;
        }
        eprintln!("{name}: seed {seed}, input {iteration} failed; when it is mended, keep it:");
        let file = kept::file_of(name);
        eprintln!("echo {} >>fuzz/kept/{file}.hex", kept::line(input));
        eprintln!(
            "again: cargo run --release --manifest-path fuzz/Cargo.toml --bin short -- \
             --target {name} --seed {seed} --iterations {}",
            iteration + 1
        );
        failed += 1;
        if failed == FAILURES_MAX {
            break;
        }
    }
    (passed, failed)
}

fn answers(target: fn(&[u8]), input: &[u8]) -> bool {
    panic::catch_unwind(|| target(input)).is_ok()
}

fn print_lines(folder: &Path) -> io::Result<()> {
    let mut lines = Vec::new();
    for entry in fs::read_dir(folder)? {
        lines.push(kept::line(&fs::read(entry?.path())?));
    }
    // The shortest first: what they have in common is easier to see.
    lines.sort_by_key(|line| (line.len(), line.clone()));
    for line in lines {
        println!("{line}");
    }
    Ok(())
}

fn write_corpus(folder: &Path) -> io::Result<usize> {
    let files = seeds::corpus(&names());
    for (name, content) in &files {
        let path = folder.join(name);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(path, content)?;
    }
    Ok(files.len())
}

fn seed_from_time() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |time| time.as_secs())
}
