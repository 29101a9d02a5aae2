//! `taut-lab lab paths`.

use std::time::{Duration, Instant};

use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::json;
use taut::say;
use tautline_bench::echo::Path;
use tautline_bench::turns::Outcome;
use tautline_lab::kernels::cards::Driver;
use tautline_lab::kernels::guest::{CommandOutput, GuestReport};
use tautline_lab::kernels::{self, Arch, Job, KernelSpec, Settings};
use tautline_lab::load::{Load, find_program};
use tautline_testbed::interrupt;

use super::kernels::{GuestArguments, tell};
use super::not_compared;
use crate::bench::turns::{self, PathArguments};
use taut::cli::CommandError;
use taut::commands::output::JsonArguments;
use taut::units;

/// Kernels for a user who names none: without preemption, with full preemption, and PREEMPT_RT.
const KERNELS: [&str; 3] = [
    "linux-image-amd64,preempt=none",
    "linux-image-amd64,preempt=full",
    "linux-image-rt-amd64",
];

/// Arguments of `taut-lab lab paths`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Drivers of the two network cards: igb, e1000e, virtio_net, rtl8139
    #[arg(
        long = "driver",
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "igb,virtio_net"
    )]
    drivers: Vec<String>,
    /// Kernels: a package's name (NAME@SUITE) or a .deb file, with kernel parameters after commas [default: one with
    /// preempt=none and full, and the PREEMPT_RT one]
    #[arg(long = "kernel", value_name = "SPEC", num_args = 1..)]
    kernels: Vec<KernelSpec>,
    #[command(flatten)]
    paths: PathArguments,
    /// Host time after which a guest is given up, such as 10min
    #[arg(long = "timeout", value_name = "TIME", default_value = "20min", value_parser = units::some_time)]
    time_limit: Duration,
    #[command(flatten)]
    guests: GuestArguments,
    #[command(flatten)]
    json: JsonArguments,
}

/// Result of one kernel with one driver's cards.
#[derive(Debug, Serialize, Deserialize)]
struct Measured {
    /// The kernel, as the user named it.
    kernel: String,
    /// Its release.
    release: Option<String>,
    driver: String,
    outcome: Outcome,
}

/// Runs `taut-lab lab paths`.
pub(super) fn run(arguments: &Arguments) -> Result<(), CommandError> {
    let drivers = arguments
        .drivers
        .iter()
        .map(|name| name.parse())
        .collect::<Result<Vec<&'static Driver>, String>>()
        .map_err(|error| CommandError::usage(error, "name them by --driver igb,virtio_net"))?;
    let jobs = jobs(arguments)?;
    let stop = interrupt::flag();
    let began = Instant::now();
    let mut all = Vec::new();
    for driver in drivers {
        let settings = settings(arguments, driver)?;
        let reports = kernels::run(&jobs, &settings, &stop, &|event| tell(&event, began))
            .map_err(not_compared)?;
        for report in reports {
            all.push(measured(report, driver)?);
        }
    }
    arguments
        .json
        .print(|| json!({ "paths": all }), || text(&all))?;
    say!("{:.0} s in all", began.elapsed().as_secs_f64());
    Ok(())
}

fn jobs(arguments: &Arguments) -> Result<Vec<Job>, CommandError> {
    // The guests run this very program.
    let arch = Arch::X86_64;
    if Arch::host() != Some(arch) {
        return Err(CommandError::failed(
            "taut lab paths runs this program under kernels for x86_64, and this is another architecture".to_owned(),
            "run it on a PC; `taut-lab bench turns --interfaces` measures two network cards of this machine",
        ));
    }
    let defaults = KERNELS.map(|text| text.parse().expect("the default set is well-formed"));
    let kernels = match &arguments.kernels[..] {
        [] => defaults.to_vec(),
        given => given.to_vec(),
    };
    let job = |kernel| Job { arch, kernel };
    Ok(kernels.into_iter().map(job).collect())
}

fn settings(arguments: &Arguments, driver: &'static Driver) -> Result<Settings, CommandError> {
    let defaults = arguments.guests.settings()?;
    let PathArguments {
        paths,
        sizes,
        count,
    } = &arguments.paths;
    let names: Vec<&str> = paths.iter().map(|path| path.name()).collect();
    let sizes: Vec<String> = sizes.iter().map(|bytes| format!("{bytes}B")).collect();
    let mut command = vec![defaults.guest_program.to_string_lossy().into_owned()];
    command.extend(
        [
            "bench",
            "turns",
            "--interfaces",
            "eth0,eth1",
            "--paths",
            &names.join(","),
            "--sizes",
            &sizes.join(","),
            "--count",
            &count.to_string(),
            "--json",
            "-",
        ]
        .map(str::to_owned),
    );
    let tool = |tool, package| {
        find_program(tool)
            .ok_or(kernels::KernelsError::ToolMissing { tool, package })
            .map_err(not_compared)
    };
    let mut files = vec![tool("ip", "iproute2")?];
    if paths.contains(&Path::UdpTuned) {
        // It writes the setting in the card's network namespace.
        files.push(tool("sh", "dash")?);
    }
    Ok(Settings {
        loads: vec![Load::Idle],
        commands: vec![command],
        cards: Some(driver),
        files,
        time_limit: arguments.time_limit,
        ..defaults
    })
}

/// The outcome that the guest's command printed.
fn measured(report: GuestReport, driver: &Driver) -> Result<Measured, CommandError> {
    let kernel = report.result.label;
    let output = report.outputs.into_iter().next();
    let Some(mut outcome) = output.as_ref().and_then(outcome) else {
        let text = output.map_or_else(String::new, |output| output.text);
        return Err(CommandError::failed(
            format!(
                "{kernel}, {driver}: no figures came from the guest\n{}",
                text.trim_end()
            ),
            "try another kernel with --kernel, or fewer paths with --paths",
        ));
    };
    // Its clock counts instructions.
    outcome.split();
    Ok(Measured {
        kernel,
        release: report.result.machine.kernel_release.known().cloned(),
        driver: driver.to_string(),
        outcome,
    })
}

fn outcome(output: &CommandOutput) -> Option<Outcome> {
    // Remarks for the user are before it.
    let json = &output.text[output.text.find('{')?..];
    let whole = output.status == Some(0);
    whole.then(|| serde_json::from_str(json).ok()).flatten()
}

fn text(all: &[Measured]) -> String {
    let mut text = "Virtual time: one nanosecond an instruction, one CPU; the same figures on every machine, and no statement about hardware.\n".to_owned();
    for one in all {
        let release = one.release.as_deref().unwrap_or("unknown release");
        text += &format!(
            "\n{} ({release}), two cards of driver {}\n",
            one.kernel, one.driver
        );
        text += &turns::text(&one.outcome);
        text += "\n";
    }
    text
}
