//! Loads: what the machine does while the probes measure, each with the figure that it achieved.
//!
//! A load is made of parts, and each part is one child process: the probe's process locks its memory and
//! must not fork or allocate, and a child can be killed without harm. A built-in part is this same program
//! started again as a worker; where stress-ng, fio or iperf3 are installed they are used instead, since
//! people know what these do. A worker stops when its standard input ends, so it never outlives the lab.

mod worker;

use std::fmt;
use std::io::{self, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use tautline_state::child::end_with_thread;
use tautline_state::journal::Journal;
use tautline_state::{Directory, StateError, TemporaryDirectory};

use crate::measured::Achieved;
use crate::sys;

pub use worker::run_worker;

/// How long a part may take to report after it was told to stop. A disk part may be in the middle of an
/// fsync; after this it is killed and its figure is missing.
const STOP_TIME_MAX: Duration = Duration::from_secs(20);

/// A load as the user names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Load {
    /// Nothing beside the probes.
    Idle,
    /// A busy thread on every CPU.
    Cpu,
    /// Copying more memory than the caches hold.
    Memory,
    /// Files that double in size, written and read, as in the Emblix paper.
    Disk,
    /// TCP over the loopback device.
    Network,
    /// Edges found in pictures, on every CPU: what a vehicle's vision begins with.
    Vision,
    /// Processes that start and end, and processes that wake each other.
    Scheduling,
    /// All of them at once but vision.
    Combined,
}

impl Load {
    /// All loads, in the order of tables.
    pub const ALL: [Load; 8] = [
        Load::Idle,
        Load::Cpu,
        Load::Memory,
        Load::Disk,
        Load::Network,
        Load::Scheduling,
        Load::Vision,
        Load::Combined,
    ];

    /// The name on the command line and in results.
    pub fn name(self) -> &'static str {
        match self {
            Load::Idle => "idle",
            Load::Cpu => "cpu",
            Load::Memory => "memory",
            Load::Disk => "disk",
            Load::Network => "network",
            Load::Scheduling => "scheduling",
            Load::Vision => "vision",
            Load::Combined => "combined",
        }
    }

    fn parts(self) -> &'static [Load] {
        match self {
            Load::Idle => &[],
            Load::Cpu => &[Load::Cpu],
            Load::Memory => &[Load::Memory],
            Load::Disk => &[Load::Disk],
            Load::Network => &[Load::Network],
            Load::Scheduling => &[Load::Scheduling],
            Load::Vision => &[Load::Vision],
            Load::Combined => &[
                Load::Cpu,
                Load::Memory,
                Load::Disk,
                Load::Network,
                Load::Scheduling,
            ],
        }
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The text names no load.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown load '{0}': use idle, cpu, memory, disk, network, scheduling, vision or combined")]
pub struct UnknownLoad(String);

impl FromStr for Load {
    type Err = UnknownLoad;

    fn from_str(text: &str) -> Result<Load, UnknownLoad> {
        Load::ALL
            .into_iter()
            .find(|load| load.name() == text)
            .ok_or_else(|| UnknownLoad(text.to_owned()))
    }
}

/// Where and how loads run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The program that starts a worker, with the arguments before the worker's own.
    pub worker_command: Vec<PathBuf>,
    /// Directory in which a load makes a temporary one for its files.
    pub directory: PathBuf,
    /// CPUs to keep busy.
    pub cpu_count: usize,
    /// The largest file and the largest memory block.
    pub size_mib_max: u64,
    /// Whether stress-ng, fio and iperf3 may be used.
    pub external_tools: bool,
}

/// Why a load could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The directory for files cannot be made.
    #[error("no directory for the load's files: {0}")]
    Directory(#[from] StateError),
    /// A process could not be started.
    #[error("{program} could not be started: {source}")]
    Start {
        /// The program.
        program: PathBuf,
        /// The reason.
        source: io::Error,
    },
}

/// Beginning of the name of a load's directory.
const FILES_PREFIX: &str = "taut-lab-load";

/// A load that runs. Dropped, it is stopped and its files are removed.
#[derive(Debug)]
pub struct Running {
    parts: Vec<Part>,
    started: Instant,
    /// The parts write here only, and each begins with it as its current directory.
    _files: TemporaryDirectory,
}

#[derive(Debug)]
struct Part {
    name: &'static str,
    tool: &'static str,
    child: Child,
    /// iperf3's other end.
    helper: Option<Child>,
}

/// Makes the directory for the files of a load, under a name that the journal notes first.
pub fn make_files(
    settings: &Settings,
    journal: &mut Journal,
) -> Result<TemporaryDirectory, LoadError> {
    Ok(journal.make_temporary(&settings.directory, FILES_PREFIX)?)
}

/// Makes files without a journal, in a guest, where nothing outlives the process.
pub fn make_files_unnoted(settings: &Settings) -> Result<TemporaryDirectory, LoadError> {
    let made = TemporaryDirectory::make_in(&settings.directory, FILES_PREFIX);
    Ok(made?)
}

/// Starts a load that writes its files into a directory made for it.
pub fn start(
    load: Load,
    settings: &Settings,
    files: TemporaryDirectory,
) -> Result<Running, LoadError> {
    let mut running = Running {
        parts: Vec::new(),
        started: Instant::now(),
        _files: files,
    };
    for part in load.parts() {
        for command in commands_for(*part, settings) {
            let started = command.start(part.name(), running._files.directory())?;
            running.parts.push(started);
        }
    }
    Ok(running)
}

impl Running {
    /// Stops every part and says what each achieved.
    pub fn stop(mut self) -> Vec<Achieved> {
        let seconds = self.started.elapsed().as_secs_f64().max(1e-3);
        for part in &mut self.parts {
            part.tell_to_stop();
        }
        let parts = std::mem::take(&mut self.parts);
        parts
            .into_iter()
            .flat_map(|part| part.report(seconds))
            .collect()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        for part in &mut self.parts {
            part.tell_to_stop();
        }
        for part in std::mem::take(&mut self.parts) {
            part.report(1.0);
        }
    }
}

struct PartCommand {
    tool: &'static str,
    command: Command,
    helper: Option<Command>,
}

impl PartCommand {
    fn start(mut self, name: &'static str, files: &Directory) -> Result<Part, LoadError> {
        let spawn = |command: &mut Command| {
            // By descriptor, so that no user can replace the directory.
            files.enter(command);
            // The tools must not outlive a killed lab either.
            end_with_thread(command, Signal::TERM);
            command.spawn().map_err(|source| LoadError::Start {
                program: command.get_program().into(),
                source,
            })
        };
        let helper = self.helper.as_mut().map(spawn).transpose()?;
        if helper.is_some() {
            std::thread::sleep(Duration::from_millis(300)); // the server must listen before the client calls
        }
        self.command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let child = spawn(&mut self.command)?;
        Ok(Part {
            name,
            tool: self.tool,
            child,
            helper,
        })
    }
}

/// The processes that make one part.
fn commands_for(part: Load, settings: &Settings) -> Vec<PartCommand> {
    let built_in = || PartCommand {
        tool: "built-in",
        command: worker_command(part, settings),
        helper: None,
    };
    match part {
        Load::Idle | Load::Combined => Vec::new(),
        Load::Vision => vec![built_in()],
        // The paper's load is files that double; fio's random accesses come beside it, not instead.
        Load::Disk => std::iter::once(built_in()).chain(fio(settings)).collect(),
        Load::Network => vec![iperf(settings).unwrap_or_else(built_in)],
        _ => vec![stress_ng(part, settings).unwrap_or_else(built_in)],
    }
}

/// A tool with arguments split at spaces, where it is installed and allowed.
fn external(settings: &Settings, tool: &'static str, arguments: &str) -> Option<PartCommand> {
    let path = settings
        .external_tools
        .then(|| find_program(tool))
        .flatten()?;
    let mut command = Command::new(path);
    command.args(arguments.split_whitespace());
    Some(PartCommand {
        tool,
        command,
        helper: None,
    })
}

fn stress_ng(part: Load, settings: &Settings) -> Option<PartCommand> {
    let cpus = settings.cpu_count;
    let stressors = match part {
        Load::Cpu => format!("--cpu {cpus}"),
        Load::Memory => {
            format!(
                "--vm 1 --vm-bytes {}m --vm-keep",
                settings.size_mib_max.clamp(1, 256)
            )
        }
        _ => format!("--fork 1 --switch {cpus}"),
    };
    external(
        settings,
        "stress-ng",
        &format!("{stressors} --metrics-brief --stdout"),
    )
}

fn iperf(settings: &Settings) -> Option<PartCommand> {
    let port = IPERF_PORT;
    let server = external(
        settings,
        "iperf3",
        &format!("--server --bind 127.0.0.1 --port {port} --one-off"),
    )?;
    let mut helper = server.command;
    helper
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let client = format!("--client 127.0.0.1 --port {port} --time 0 --json");
    external(settings, "iperf3", &client).map(|client| PartCommand {
        helper: Some(helper),
        ..client
    })
}

fn fio(settings: &Settings) -> Option<PartCommand> {
    let size_mib = (settings.size_mib_max / 4).clamp(1, 64);
    let mut part = external(
        settings,
        "fio",
        &format!(
            "--name=taut-lab --thread --size={size_mib}m --rw=randrw --bs=4k --ioengine=psync --time_based --runtime={UNTIL_STOPPED_S} --output-format=json"
        ),
    )?;
    part.command.arg("--directory=.");
    Some(part)
}

/// fio wants a run time and gets ten years: it is stopped by a signal. (iperf3 takes 0 for no limit, and at most a
/// day.)
const UNTIL_STOPPED_S: u64 = 10 * 365 * 86_400;

/// iperf3's own default is 5201; another one, so that a server that already runs is left alone.
const IPERF_PORT: &str = "52017";

fn worker_command(part: Load, settings: &Settings) -> Command {
    let mut command = Command::new(&settings.worker_command[0]);
    command
        .args(&settings.worker_command[1..])
        .arg(part.name())
        .arg(settings.cpu_count.to_string())
        .arg(settings.size_mib_max.to_string());
    command
}

/// Looks a program up in PATH and in the system directories that an ordinary user's PATH may lack.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from))
        .map(|directory| directory.join(name))
        .find(|candidate| candidate.is_file())
}

impl Part {
    fn tell_to_stop(&mut self) {
        drop(self.child.stdin.take());
        if self.tool != "built-in" {
            sys::signal_process(self.child.id(), Signal::INT);
        }
    }

    /// Waits for the end, then reads what the part says that it did.
    fn report(mut self, seconds: f64) -> Vec<Achieved> {
        let mut output = self.child.stdout.take();
        // Read on another thread, so that a part that neither ends nor closes can be killed.
        let reader = std::thread::spawn(move || {
            let mut text = String::new();
            if let Some(output) = output.as_mut() {
                let _ = output.read_to_string(&mut text); // what was read before an error is still good
            }
            text
        });
        let deadline = Instant::now() + STOP_TIME_MAX;
        while !reader.is_finished() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        let late = !reader.is_finished();
        if late {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
        if let Some(helper) = &mut self.helper {
            let _ = helper.kill();
            let _ = helper.wait();
        }
        let text = reader.join().unwrap_or_default();
        let mut achieved = match self.tool {
            "built-in" => parse_worker(self.name, &text),
            "stress-ng" => parse_stress_ng(self.name, &text),
            "fio" => parse_fio(self.name, &text, seconds),
            _ => parse_iperf(self.name, &text),
        };
        for part in achieved.iter_mut().filter(|part| part.amount <= 0.0) {
            part.problem
                .get_or_insert_with(|| "achieved nothing in this time".to_owned());
        }
        if achieved.is_empty() {
            let problem = if late {
                "did not stop in time and was killed"
            } else {
                "ended without a report"
            };
            achieved.push(Achieved {
                part: self.name.to_owned(),
                tool: self.tool.to_owned(),
                amount: 0.0,
                unit: "unknown".to_owned(),
                problem: Some(problem.to_owned()),
            });
        }
        achieved
    }
}

fn achieved(part: &str, tool: &str, amount: f64, unit: &str) -> Achieved {
    Achieved {
        part: part.to_owned(),
        tool: tool.to_owned(),
        amount,
        unit: unit.to_owned(),
        problem: None,
    }
}

fn parse_worker(part: &str, text: &str) -> Vec<Achieved> {
    text.lines()
        .filter_map(|line| serde_json::from_str::<Achieved>(line).ok())
        .filter(|found| found.part == part)
        .collect()
}

/// `stress-ng: metrc: [1] cpu  1234  10.0 …`: name, operations, real, user, system time, operations a second.
fn parse_stress_ng(part: &str, text: &str) -> Vec<Achieved> {
    text.lines()
        .filter_map(|line| {
            line.split_once("] ")
                .filter(|(head, _)| head.contains("metrc"))
                .map(|(_, rest)| rest)
        })
        .filter_map(|rest| {
            let words: Vec<&str> = rest.split_whitespace().collect();
            let per_second = words.get(5)?.parse::<f64>().ok()?;
            words[1].parse::<f64>().ok()?;
            Some(achieved(
                part,
                "stress-ng",
                per_second,
                &format!("{} operations/s", words[0]),
            ))
        })
        .collect()
}

fn parse_fio(part: &str, text: &str, seconds: f64) -> Vec<Achieved> {
    let json = text
        .find('{')
        .and_then(|at| serde_json::from_str::<serde_json::Value>(&text[at..]).ok());
    let bytes = json.as_ref().and_then(|json| {
        let job = json.get("jobs")?.get(0)?;
        Some(job["read"]["io_bytes"].as_f64()? + job["write"]["io_bytes"].as_f64()?)
    });
    bytes
        .map(|bytes| {
            achieved(
                part,
                "fio",
                bytes / seconds / 1048576.0,
                "MiB/s read and written at random",
            )
        })
        .into_iter()
        .collect()
}

fn parse_iperf(part: &str, text: &str) -> Vec<Achieved> {
    let json = serde_json::from_str::<serde_json::Value>(text).ok();
    json.as_ref()
        .and_then(|json| json["end"]["sum_sent"]["bits_per_second"].as_f64())
        .map(|bits| {
            achieved(
                part,
                "iperf3",
                bits / 8.0 / 1048576.0,
                "MiB/s over loopback TCP",
            )
        })
        .into_iter()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_load_has_a_name_that_is_read_back() {
        for load in Load::ALL {
            assert_eq!(load.name().parse(), Ok(load));
        }
        assert!("io".parse::<Load>().is_err());
    }

    #[test]
    fn stress_ng_metrics_are_understood() {
        let text = "stress-ng: info:  [71] dispatching hogs: 1 fork, 2 switch\n\
            stress-ng: metrc: [71] stressor       bogo ops real time  usr time  sys time   bogo ops/s     bogo ops/s\n\
            stress-ng: metrc: [71]                           (secs)    (secs)    (secs)   (real time) (usr+sys time)\n\
            stress-ng: metrc: [71] fork                900      2.00      0.10      0.90       450.25         900.00\n\
            stress-ng: metrc: [71] switch         100000      2.00      0.10      0.90     50000.00       90000.00\n";
        let found = parse_stress_ng("scheduling", text);
        assert_eq!(found.len(), 2);
        assert_eq!(
            (found[0].amount, found[0].unit.as_str()),
            (450.25, "fork operations/s")
        );
        assert_eq!(found[1].amount, 50_000.0);
    }

    #[test]
    fn other_tools_are_understood_and_rubbish_is_not() {
        let iperf = r#"{"end": {"sum_sent": {"bits_per_second": 8388608.0}}}"#;
        assert_eq!(parse_iperf("network", iperf)[0].amount, 1.0);
        let fio = "fio: terminating on signal 2\n{\"jobs\":[{\"read\":{\"io_bytes\":1048576},\"write\":{\"io_bytes\":3145728}}]}";
        assert_eq!(parse_fio("disk", fio, 2.0)[0].amount, 2.0);
        for rubbish in ["", "{}", "\u{0}", "{\"jobs\":[]}"] {
            assert!(parse_iperf("network", rubbish).is_empty());
            assert!(parse_fio("disk", rubbish, 1.0).is_empty());
            assert!(parse_stress_ng("cpu", rubbish).is_empty());
            assert!(parse_worker("cpu", rubbish).is_empty());
        }
    }
}
