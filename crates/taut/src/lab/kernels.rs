//! `taut lab kernels`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use clap::Args;
use tautline_lab::kernels::guest::GuestReport;
use tautline_lab::kernels::qemu::Accelerator;
use tautline_lab::kernels::{self, Arch, Event, Job, KernelSpec, Settings};
use tautline_lab::load::Load;
use tautline_lab::plot::latency_text;
use tautline_lab::result::LabResult;
use tautline_lab::verdict::parse_duration_ns;

use super::LabError;

/// Arguments of `taut lab kernels`.
#[derive(Debug, Args)]
pub struct KernelsArgs {
    /// Kernels: a package's name, a .deb file or an image (./vmlinuz), with kernel parameters after commas
    /// [default: one kernel with preempt=none, voluntary and full, and the PREEMPT_RT one]
    #[arg(long = "kernel", value_name = "SPEC", num_args = 1..)]
    kernels: Vec<KernelSpec>,
    /// Architectures: x86_64, arm64, armhf
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "x86_64"
    )]
    arch: Vec<Arch>,
    /// Loads, in order
    #[arg(
        long = "load",
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "idle,combined"
    )]
    loads: Vec<Load>,
    /// Seconds of the guest's time under each load
    #[arg(long, value_name = "N", default_value_t = 3.0)]
    seconds: f64,
    /// Time between two wake-ups
    #[arg(long, value_name = "TIME", default_value = "1ms")]
    period: String,
    /// Run this command in each guest instead of the probe (quote it; the program and its libraries are copied in)
    #[arg(long, value_name = "COMMAND")]
    guest_command: Option<String>,
    /// Copy this file into the guests, at its own path
    #[arg(long = "guest-file", value_name = "FILE")]
    guest_files: Vec<PathBuf>,
    /// Use this program as the guest's first process: ARCH=FILE
    #[arg(long = "guest-program", value_name = "ARCH=FILE")]
    guest_programs: Vec<String>,
    /// Run on the host's clock under KVM; the result is not reproducible
    #[arg(long)]
    kvm: bool,
    /// Seconds of host time after which a guest is given up
    #[arg(long, value_name = "N", default_value_t = 600)]
    time_limit: u64,
    /// Guests at once [default: the host's CPUs]
    #[arg(long, value_name = "N")]
    parallel: Option<usize>,
    /// Where packages, kernels and results are kept
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
    /// Measure again what the cache has
    #[arg(long)]
    fresh: bool,
    /// Write all results into this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write a report page
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

pub(super) fn run(arguments: &KernelsArgs) -> Result<ExitCode, LabError> {
    let settings = settings(arguments)?;
    let jobs = jobs(arguments);
    let began = Instant::now();
    let stop = AtomicBool::new(false);
    let reports = kernels::run(&jobs, &settings, &stop, &|event| tell(&event, began))?;
    for report in &reports {
        for output in &report.outputs {
            println!(
                "== {} under {} (status {:?})\n{}",
                report.result.label, output.load, output.status, output.text
            );
        }
    }
    let results: Vec<LabResult> = reports
        .into_iter()
        .map(|report: GuestReport| report.result)
        .collect();
    for result in &results {
        for phase in &result.phases {
            for series in &phase.series {
                let s = &series.summary;
                println!(
                    "{:40} {:10} n {:6} min {:>9} p50 {:>9} p99 {:>9} p99.9 {:>9} max {:>9} {} faults {}",
                    result.label,
                    phase.load,
                    s.count,
                    s.min_ns,
                    s.p50_ns,
                    s.p99_ns,
                    s.p999_ns,
                    s.max_ns,
                    latency_text(s.max_ns),
                    series.page_faults
                );
            }
            for a in &phase.achieved {
                println!("      {:?}", a);
            }
        }
    }
    eprintln!("{:.1} s", began.elapsed().as_secs_f64());
    Ok(ExitCode::SUCCESS)
}

fn tell(event: &Event, began: Instant) {
    eprintln!("{:6.1} s {event:?}", began.elapsed().as_secs_f64());
}

fn jobs(arguments: &KernelsArgs) -> Vec<Job> {
    arguments
        .arch
        .iter()
        .flat_map(|arch| {
            let kernels = if arguments.kernels.is_empty() {
                arch.default_kernels()
            } else {
                arguments.kernels.clone()
            };
            kernels.into_iter().map(|kernel| Job {
                arch: *arch,
                kernel,
            })
        })
        .collect()
}

fn settings(arguments: &KernelsArgs) -> Result<Settings, LabError> {
    let period_ns = parse_duration_ns(&arguments.period).ok_or_else(|| {
        LabError::Usage(format!(
            "--period {}: give a time such as 1ms",
            arguments.period
        ))
    })?;
    let foreign_programs = arguments
        .guest_programs
        .iter()
        .map(|text| {
            let (arch, file) = text.split_once('=').ok_or_else(|| {
                LabError::Usage(format!("--guest-program {text}: give ARCH=FILE"))
            })?;
            Ok((arch.parse().map_err(LabError::Usage)?, PathBuf::from(file)))
        })
        .collect::<Result<_, LabError>>()?;
    let command = arguments
        .guest_command
        .as_deref()
        .map(|text| {
            text.split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        })
        .filter(|words| !words.is_empty());
    Ok(Settings {
        loads: arguments.loads.clone(),
        duration: Duration::from_secs_f64(arguments.seconds.clamp(0.01, 86_400.0)),
        period: Duration::from_nanos(period_ns),
        accelerator: if arguments.kvm {
            Accelerator::Kvm
        } else {
            Accelerator::InstructionCount
        },
        command,
        files: arguments.guest_files.clone(),
        time_limit: Duration::from_secs(arguments.time_limit),
        cache: arguments
            .cache
            .clone()
            .unwrap_or_else(super::cache_directory),
        reuse_results: !arguments.fresh,
        parallel: arguments
            .parallel
            .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from)),
        guest_program: std::env::current_exe()?,
        foreign_programs,
        workspace: workspace(),
    })
}

/// The sources of this program, if it was started somewhere inside them.
fn workspace() -> Option<PathBuf> {
    let here = std::env::current_dir().ok()?;
    here.ancestors()
        .find(|path| path.join("crates/tautline-lab/Cargo.toml").is_file())
        .map(PathBuf::from)
}
