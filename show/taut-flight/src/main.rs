//! The command `taut-flight`: a quadcopter flown in several ways beside the same loads and faults, compared. `taut
//! flight` becomes it.

// Both panic when their reader has gone: `cli::print`, `cli::show` and `say!` do not.
#![deny(clippy::print_stdout, clippy::print_stderr)]

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum, value_parser};
use tautline_flight_runner::report::Report;
use tautline_flight_runner::show::{self, Settings, ShowError};
use tautline_flight_runner::{Variant, cell, ground, live, part};
use tautline_lab::load;

use taut::cli::{self, CommandError};
use taut::commands::guest;
use taut::commands::output::JsonArguments;
use taut::commands::partition::{self, Guard, GuardArguments};
use taut::leftovers;
use taut::say;
use taut::{external, units};

/// CPUs that the partition and the rest need together.
const CPUS_MIN: usize = 2;

/// Fly a quadcopter beside loads and faults, in several ways, and compare them.
#[derive(Debug, Parser)]
#[command(
    name = "taut-flight",
    version,
    propagate_version = true,
    args_conflicts_with_subcommands = true
)]
struct Cli {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    show: ShowArguments,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Fly one craft for a ground station, by MAVLink over UDP, such as QGroundControl.
    Serve(ServeArguments),
    /// Fly one craft as the program of a cell: its state and its way-points are ports on a bus.
    Cell(CellArguments),
    /// A part of a flight, in a process of its own. Started by the command itself.
    #[command(hide = true)]
    Part {
        /// Description of the part.
        word: String,
    },
    /// One part of a load. Started by the command itself.
    #[command(hide = true)]
    Worker {
        /// Part, CPUs and largest size in MiB.
        arguments: Vec<String>,
    },
    /// The machine of a guest. Started by the command itself.
    #[command(hide = true)]
    Monitor,
    /// Wait for the end of a process, and put back what it leaves.
    #[command(hide = true)]
    Guard(GuardArguments),
}

#[derive(Debug, Args)]
struct ServeArguments {
    /// Address and port of the ground station.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:14550")]
    to: SocketAddrV4,
    /// Own address.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    address: Ipv4Addr,
    /// Own port of UDP.
    #[arg(long, value_name = "PORT", default_value_t = 14_540, value_parser = value_parser!(u16).range(1..))]
    port: u16,
    /// Seed of wind and noise.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Seconds of the flight in a second, 0.1 to 20.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = speed)]
    speed: f64,
    /// Time to fly, such as 10min; until ^C with 0.
    #[arg(long = "for", value_name = "TIME", default_value = "0", value_parser = units::time)]
    length: Duration,
}

#[derive(Debug, Args)]
struct CellArguments {
    /// Directory of the bus; made if it is missing.
    #[arg(long, value_name = "DIR")]
    bus: String,
    /// Name of the craft on the bus.
    #[arg(long, value_name = "NAME", default_value = "craft")]
    name: String,
    /// Seed of wind and noise.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Time to fly, such as 10min; until ^C with 0.
    #[arg(long = "for", value_name = "TIME", default_value = "0", value_parser = units::time)]
    length: Duration,
}

/// A speed that an ordinary machine keeps.
fn speed(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(factor) if (0.1..=20.0).contains(&factor) => Ok(factor),
        _ => Err("expected a number from 0.1 to 20".to_owned()),
    }
}

#[derive(Debug, Args)]
struct ShowArguments {
    /// Directory for report.html and report.json; made if it is missing.
    #[arg(long, value_name = "DIR", default_value = "taut-flight")]
    out: PathBuf,
    /// Ways of running the flight controller.
    #[arg(
        long = "variants",
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "plain,fifo,partition,guest",
        default_value_if("live", "true", "partition")
    )]
    variants: Vec<Chosen>,
    /// Seed of wind and noise, the same for all variants.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Image of the controller for the variant `guest`, as `make flight-guest` builds it: flight.elf for
    /// QEMU, flight-x86_64.elf for KVM.
    #[arg(long, value_name = "FILE", overrides_with = "guest_image")]
    guest_image: Option<PathBuf>,
    /// CPU of the partition [default: the last one that this process may use].
    #[arg(long, value_name = "CPU")]
    cpu: Option<usize>,
    /// Fly laps until ^C, with a page that shows the flight and has buttons for loads and faults; without the schedule.
    #[arg(long, conflicts_with_all = ["out", "json"])]
    live: bool,
    /// Where the page of --live listens.
    #[arg(
        long,
        value_name = "ADDRESS:PORT",
        default_value = "127.0.0.1:8082",
        requires = "live"
    )]
    listen: SocketAddr,
    #[command(flatten)]
    json: JsonArguments,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Chosen {
    /// Threads, kernel sockets, default priorities.
    Plain,
    /// The same with SCHED_FIFO and locked memory.
    Fifo,
    /// Tasks of the executive in a partition.
    Partition,
    /// The same tasks in a guest, which has the partition.
    Guest,
}

impl Chosen {
    fn variant(self) -> Variant {
        match self {
            Chosen::Plain => Variant::Plain,
            Chosen::Fifo => Variant::Fifo,
            Chosen::Partition => Variant::Partition,
            Chosen::Guest => Variant::Guest,
        }
    }
}

fn main() -> ExitCode {
    cli::main_of(
        cli::grammar_of::<Cli>(),
        |cli: &Cli| matches!(cli.action, Some(Action::Guard(_) | Action::Monitor)),
        run,
    )
}

/// Flies, and prints a table and a verdict. Exit status 1 if the executive lost its craft.
fn run(cli: Cli) -> Result<(), CommandError> {
    let by_itself = |error: String| {
        CommandError::failed(error, "this command is started by taut-flight itself")
    };
    match cli.action {
        Some(Action::Part { word }) => {
            part::run(&word).map_err(|error| by_itself(error.to_string()))
        }
        Some(Action::Worker { arguments }) => {
            load::run_worker(&arguments).map_err(|error| by_itself(error.to_string()))
        }
        Some(Action::Monitor) => guest::monitor(),
        Some(Action::Guard(arguments)) => partition::guard(&arguments),
        Some(Action::Serve(arguments)) => serve(&arguments),
        Some(Action::Cell(arguments)) => fly_cell(arguments),
        None if cli.show.live => fly_live(&cli.show),
        None => fly(&cli.show),
    }
}

fn serve(arguments: &ServeArguments) -> Result<(), CommandError> {
    let settings = ground::Settings {
        own: arguments.address,
        port: arguments.port,
        station: arguments.to,
        seed: arguments.seed,
        speed: arguments.speed,
        length: arguments.length,
    };
    let ready = || {
        say!(
            "a craft for {}, from {}:{}",
            arguments.to,
            arguments.address,
            arguments.port
        )
    };
    let served = ground::serve(&settings, ready).map_err(|error| {
        CommandError::failed(
            error.to_string(),
            "name an address of this machine and a free port (--address, --port)",
        )
    })?;
    let end = if served.has_crashed {
        "crashed"
    } else {
        "unharmed"
    };
    cli::print(&format!(
        "{:.1} s, {} messages heard, {end}\n",
        served.seconds, served.heard
    ))
}

fn fly_cell(arguments: CellArguments) -> Result<(), CommandError> {
    let settings = cell::Settings {
        bus: arguments.bus,
        name: arguments.name,
        seed: arguments.seed,
        length: arguments.length,
    };
    let ready = |limits: &[String]| {
        say!(
            "craft {} at {}: state on port {}, way-points to port {}",
            settings.name,
            settings.bus,
            cell::STATE_PORT,
            cell::WAYPOINT_PORT
        );
        limits.iter().for_each(|limit| say!("  limited: {limit}"));
    };
    let flown = cell::fly(&settings, ready).map_err(|error| {
        CommandError::failed(
            error.to_string(),
            "name a directory that you may write to, and a name that nobody on the bus has",
        )
    })?;
    let end = if flown.has_crashed {
        "crashed"
    } else {
        "unharmed"
    };
    cli::print(&format!(
        "{:.1} s, {} way-points taken, {} of {} deadlines missed, {end}\n",
        flown.seconds, flown.taken, flown.missed, flown.jobs
    ))
}

/// Flies until it is ended, beside a page.
fn fly_live(arguments: &ShowArguments) -> Result<(), CommandError> {
    let [chosen @ (Chosen::Partition | Chosen::Guest)] = arguments.variants[..] else {
        return Err(CommandError::usage(
            "--live flies one variant that has a bus, which its page watches",
            "name it: --variants partition, or --variants guest with --guest-image",
        ));
    };
    recover_first();
    let variant = chosen.variant();
    if let Some(reason) = obstacle(variant, arguments.guest_image.is_some()) {
        return Err(CommandError::failed(
            format!("{} cannot fly: {reason}", variant.text()),
            "run it as root, on a machine with two CPUs or more",
        ));
    }
    let settings = settings(arguments, vec![variant])?;
    let page = live::PageSettings {
        listen: arguments.listen,
        token: taut::commands::serve::new_token()?,
    };
    // Puts everything back should this process be killed.
    let guard = Guard::start()?;
    let ready = |address: SocketAddr| {
        // A reader that has gone away is no reason to end.
        let _ = cli::print(&format!("http://{address}/#token={}\n", page.token));
    };
    let flown = live::run(&settings, &page, ready);
    drop(guard);
    flown.map_err(|error| match error {
        ShowError::Io(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
            CommandError::failed(
                format!("cannot listen on {}: {error}", page.listen),
                "choose another port with --listen 127.0.0.1:PORT, or 0 for a free one",
            )
        }
        error => explain(error),
    })
}

fn fly(arguments: &ShowArguments) -> Result<(), CommandError> {
    // Before anything flies, so that nothing is flown in vain.
    cli::make_directory(&arguments.out)?;
    recover_first();
    let mut variants: Vec<Variant> = arguments
        .variants
        .iter()
        .map(|chosen| chosen.variant())
        .collect();
    variants.dedup();
    let mut missing = Vec::new();
    let has_image = arguments.guest_image.is_some();
    variants.retain(|variant| match obstacle(*variant, has_image) {
        None => true,
        Some(reason) => {
            missing.push((*variant, reason));
            false
        }
    });
    let settings = settings(arguments, variants)?;
    // Puts everything back should this process be killed.
    let guard = Guard::start()?;
    let flights = show::run(&settings, &mut |what| say!("flying: {what}")).map_err(explain)?;
    drop(guard);
    missing.extend(flights.missing);
    let report = Report::new(flights.records, missing, arguments.seed);
    let page = arguments.out.join("report.html");
    let json = report.json();
    let text = || format!("{}report: {}\n", report.text(), page.display());
    cli::all([
        arguments.json.print(|| json.clone(), text),
        cli::write_file(&page, &report.page()),
        cli::write_file(&arguments.out.join("report.json"), &format!("{json:#}\n")),
    ])?;
    match report.holds() {
        true => Ok(()),
        false => Err(CommandError::answer_is_no()),
    }
}

/// Puts back what earlier flights left whose guards were killed, too; CPUs among it, so it comes before all else.
fn recover_first() {
    leftovers::say(&leftovers::of_flights(None));
}

/// Settings of flights of these variants.
fn settings(arguments: &ShowArguments, variants: Vec<Variant>) -> Result<Settings, CommandError> {
    let program = cli::this_program()?;
    if let Some(image) = &arguments.guest_image
        && !image.is_file()
    {
        return Err(CommandError::usage(
            format!("--guest-image {}: there is no such file", image.display()),
            "build it: make flight-guest",
        ));
    }
    let hidden = |word: &str| vec![program.clone(), PathBuf::from(word)];
    Ok(Settings {
        taut: external::TAUT.find()?,
        part_command: hidden("part"),
        worker_command: hidden("worker"),
        variants,
        seed: arguments.seed,
        cpu: taut::commands::task::cpu(arguments.cpu)?,
        guest_image: arguments.guest_image.clone(),
        monitor_command: hidden("monitor"),
        out: arguments.out.clone(),
        is_patient: true,
    })
}

/// Reason why a variant cannot fly on this machine, for this user.
fn obstacle(variant: Variant, has_image: bool) -> Option<String> {
    let is_root = tautline_testbed::sys::is_root();
    let cpus = tautline_testbed::child::allowed_cpus().map_or(1, |cpus| cpus.len());
    match variant {
        Variant::Plain => None,
        Variant::Guest if !has_image => {
            Some("no image of it was given (make flight-guest; --guest-image)".to_owned())
        }
        Variant::Fifo | Variant::Partition | Variant::Guest if !is_root => {
            Some("real-time priorities need root".to_owned())
        }
        Variant::Partition | Variant::Guest if cpus < CPUS_MIN => {
            Some("a partition needs a second CPU".to_owned())
        }
        _ => None,
    }
}

fn explain(error: ShowError) -> CommandError {
    let what = error.to_string();
    match error {
        ShowError::Interrupted(signal) => CommandError::interrupted(signal),
        ShowError::Partition(error) => CommandError::failed(what, error.remedy()),
        _ => CommandError::failed(
            what,
            "try again; `taut doctor` shows what this machine can do",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grammar_keeps_the_rules() {
        cli::assert_by_the_rules(&cli::grammar_of::<Cli>());
    }
}
