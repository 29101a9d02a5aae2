//! `make test-kernels`: the tests of links under the kernels that people run, each in a virtual machine.
//!
//! The machines are emulated by QEMU, without the host's virtualisation, so that any host runs any architecture. What
//! passes there works with that kernel; it says nothing about speed.

mod guest;
mod host;
mod kernels;
mod libtest;
mod orders;
mod plan;
mod programs;
mod report;

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use clap::Parser;
use tautline_lab::kernels::emulator::Emulator;
use tautline_lab::kernels::{Arch, KernelSpec, KernelsError, defaults};

use host::{Bench, archs, is_reason_to_skip};
use kernels::Kernel;
use libtest::Counts;
use plan::Part;
use programs::Programs;
use report::KernelResult;

/// Runs the tests of links under other kernels, in emulated machines.
#[derive(Debug, Parser)]
struct Arguments {
    /// Only load the BPF programs, on those kernels that most people run, of this machine's architecture.
    #[arg(long, conflicts_with = "part")]
    quick: bool,
    /// Kernels with this name, such as `amd64@bookworm`, or whose name contains it, such as `rt-arm64`
    #[arg(long, value_name = "TEXT", num_args = 1..)]
    only: Vec<String>,
    /// This kernel in place of the matrix: a package's name, with @SUITE if need be, or a .deb file with image and
    /// modules
    #[arg(long, value_name = "SPEC")]
    kernel: Option<KernelSpec>,
    /// Architecture of --kernel
    #[arg(long, default_value = "x86_64")]
    arch: Arch,
    /// --kernel is older than Linux 5.18: link xdp must be refused
    #[arg(long, requires = "kernel")]
    too_old: bool,
    /// Parts of the tests
    #[arg(long, value_delimiter = ',', default_values_t = Part::ALL, value_enum)]
    part: Vec<Part>,
    /// Options of QEMU's machine for guests on KVM of arm64: its interrupt controller decides which one they have
    #[arg(
        long,
        value_name = "OPTIONS",
        default_value = "virtualization=on,gic-version=2"
    )]
    machine: String,
    /// Keep what an earlier run of the same kernel has found in other cells
    #[arg(long)]
    add: bool,
    /// Use the static programs of this directory instead of building them: the tests, taut and kernel-tests
    #[arg(long, value_name = "DIR", conflicts_with = "quick")]
    programs: Option<PathBuf>,
    /// Load the BPF objects below this directory too, as scripts/bpf-objects.sh makes them
    #[arg(long, value_name = "DIR")]
    bpf_objects: Option<PathBuf>,
    /// Print the kernels and end
    #[arg(long)]
    list: bool,
    /// Print the table of the results that there are, and end
    #[arg(long)]
    table: bool,
    /// Kernels at once [default: one for each CPU]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    jobs: Option<u16>,
    /// Directory for results, consoles and outputs
    #[arg(long, default_value = "target/kernel-tests")]
    out: PathBuf,
}

fn main() -> ExitCode {
    if guest::is_guest() {
        guest::run();
        return ExitCode::FAILURE;
    }
    match run(&Arguments::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("kernel-tests: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<ExitCode, Box<dyn std::error::Error>> {
    let kernels = chosen(arguments);
    if arguments.list {
        for kernel in &kernels {
            println!("{:32} {}", kernel.name(), kernel.origin);
        }
        return Ok(ExitCode::SUCCESS);
    }
    if arguments.table {
        print!(
            "{}",
            report::table(&in_order(report::read_all(&arguments.out)?))
        );
        return Ok(ExitCode::SUCCESS);
    }
    if kernels.is_empty() {
        return Err("no kernel is called that; --list shows them".into());
    }
    let results = run_all(&kernels, arguments)?;
    print!("\n{}", report::table(&results));
    let sum = results
        .iter()
        .map(KernelResult::counts)
        .fold(Counts::default(), |all, counts| Counts {
            passed: all.passed + counts.passed,
            failed: all.failed + counts.failed,
            skipped: all.skipped + counts.skipped,
        });
    let failed = results.iter().any(KernelResult::failed);
    // As a test program says it, for scripts/test.sh.
    println!(
        "\ntest result: {}. {} passed; {} failed; {} ignored",
        if failed { "FAILED" } else { "ok" },
        sum.passed,
        sum.failed,
        sum.skipped
    );
    Ok(if failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

fn chosen(arguments: &Arguments) -> Vec<Kernel> {
    let mut kernels = match &arguments.kernel {
        Some(spec) => vec![Kernel::named(
            arguments.arch,
            spec.clone(),
            arguments.too_old,
        )],
        None => kernels::all(),
    };
    let names: Vec<String> = kernels.iter().map(Kernel::name).collect();
    // A whole name is part of others: amd64@bookworm of rt-amd64@bookworm-backports.
    let is_named = |name: &str, text: &str| match names.iter().any(|known| known == text) {
        true => name == text,
        false => name.contains(text),
    };
    kernels.retain(|kernel| {
        let name = kernel.name();
        (!arguments.quick || kernel.quick)
            && (arguments.only.is_empty()
                || arguments.only.iter().any(|text| is_named(&name, text)))
    });
    kernels
}

/// Results as the kernels are listed, others after them.
fn in_order(mut results: Vec<KernelResult>) -> Vec<KernelResult> {
    let names: Vec<String> = kernels::all().iter().map(Kernel::name).collect();
    results.sort_by_key(|result| {
        let at = names.iter().position(|name| *name == result.name);
        at.unwrap_or(names.len())
    });
    results
}

fn run_all(
    kernels: &[Kernel],
    arguments: &Arguments,
) -> Result<Vec<KernelResult>, Box<dyn std::error::Error>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    fs::create_dir_all(&arguments.out)?;
    // The lab's, since it fetches the same kernels.
    let cache = defaults::cache(None)?;
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let parts: &[Part] = if arguments.quick {
        &[Part::Load]
    } else {
        &arguments.part
    };
    let mut results = Vec::new();
    for arch in archs(kernels) {
        // The quick form needs no card, and so no newer QEMU.
        let emulator = if arguments.quick {
            Emulator::of_system()
        } else {
            Emulator::find(arch, &cache)
        };
        if let Some(regret) = &emulator.regret {
            eprintln!("no newer QEMU: {regret}");
        }
        let programs = match &arguments.programs {
            Some(directory) => Programs::of(directory)?,
            None if arguments.quick => Programs::build_quick(&workspace)?,
            None => Programs::build(arch, &workspace, parts)?,
        };
        let bench = Bench {
            cache: &cache,
            out: &arguments.out,
            parts,
            emulator: &emulator,
            machine_options: &arguments.machine,
            // Guests need none of them.
            with_tools: parts.iter().any(|part| *part != Part::Guests) && !arguments.quick,
            bpf_objects: arguments.bpf_objects.as_deref(),
            stop: &stop,
            preparing: Mutex::new(()),
        };
        let of_arch: Vec<&Kernel> = kernels.iter().filter(|one| one.job.arch == arch).collect();
        let jobs = arguments.jobs.map_or_else(cpu_count, usize::from);
        results.extend(run_side_by_side(
            &bench, &of_arch, &programs, arguments, jobs,
        )?);
    }
    Ok(results)
}

fn cpu_count() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Runs so many kernels at once, in threads that each take the next one. The first error of the host ends all.
fn run_side_by_side(
    bench: &Bench,
    kernels: &[&Kernel],
    programs: &Programs,
    arguments: &Arguments,
    jobs: usize,
) -> Result<Vec<KernelResult>, Box<dyn std::error::Error>> {
    let next = AtomicUsize::new(0);
    let take = || {
        let mut done = Vec::new();
        // Relaxed: the number is all that the threads share.
        while let Some(kernel) = kernels.get(next.fetch_add(1, Ordering::Relaxed)) {
            let result = run_one(bench, kernel, programs, arguments.add).and_then(|result| {
                let written = result.write(&arguments.out);
                written.map_err(KernelsError::file(&arguments.out))?;
                Ok(result)
            });
            let failed = result.is_err();
            done.push(result);
            if failed {
                next.store(kernels.len(), Ordering::Relaxed);
            }
        }
        done
    };
    let done: Vec<Result<KernelResult, KernelsError>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..jobs.min(kernels.len()))
            .map(|_| scope.spawn(take))
            .collect();
        let done = threads.into_iter().map(|thread| match thread.join() {
            Ok(done) => done,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        done.flatten().collect()
    });
    let results = done.into_iter().collect::<Result<Vec<_>, _>>()?;
    Ok(in_order(results))
}

/// Runs one kernel, and prints what came of it in one piece.
fn run_one(
    bench: &Bench,
    kernel: &Kernel,
    programs: &Programs,
    add: bool,
) -> Result<KernelResult, KernelsError> {
    let mut text = format!("== {} ({})\n", kernel.name(), kernel.origin);
    let begun = Instant::now();
    let mut result = match bench.run(kernel, programs) {
        Ok(result) => result,
        Err(error) if is_reason_to_skip(&error) => {
            let _ = writeln!(text, "SKIPPED: {error}");
            KernelResult::skipped(kernel, &error.to_string())
        }
        Err(error) => return Err(error),
    };
    for cell in &result.cells {
        let (driver, mode, what) = (&cell.driver, &cell.mode, &cell.what);
        let counts = &cell.counts;
        let _ = writeln!(
            text,
            "{:34} {:5} passed {:3} failed {:3} skipped {:6.0} s",
            [driver.as_str(), mode, what].join(" ").trim(),
            counts.passed,
            counts.failed,
            counts.skipped,
            cell.seconds
        );
        for reason in &cell.skipped {
            let _ = writeln!(text, "    skipped: {reason}");
        }
        if let Some(problem) = &cell.problem {
            let _ = writeln!(text, "    {problem}");
        }
    }
    for note in &result.notes {
        let _ = writeln!(text, "note: {note}");
    }
    let _ = writeln!(text, "{:.0} s in all", begun.elapsed().as_secs_f64());
    print!("{text}");
    if add && let Some(older) = result.older(bench.out) {
        result = result.added_to(older);
    }
    Ok(result)
}
