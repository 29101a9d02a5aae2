//! The inside of a virtual machine: the first and only program of a guest. It mounts what it needs, runs its
//! orders with the same probes and loads as on a real machine, sends the result over the console in a frame that
//! a cut or a kernel message cannot hide in, and restarts the machine, which ends QEMU.

use std::fs;
use std::io::{self, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::agreement::{self, Agreement, PRIORITY};
use super::beside::Mailbox;
use crate::episodes::Episodes;
use crate::load::{self, Load};
use crate::probe::{self, Plan, Scheduling};
use crate::result::{LabResult, Missing, Phase, ProbeKind, Series, TimeBase};
use crate::sys;
use crate::trace::timerlat::Timerlat;
use tautline_machine::Machine;
use tautline_machine::verdict;
use tautline_machine::verdict::State;
use tautline_report::histogram::LatencyHistogram;

/// Where the orders lie in the initramfs.
pub const ORDERS_PATH: &str = "/lab-orders.json";

/// Orders for a guest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Orders {
    /// The name of the run.
    pub label: String,
    /// The loads, in order.
    pub loads: Vec<Load>,
    /// Time to measure under each.
    pub duration_ns: u64,
    /// Time between two wake-ups.
    pub period_ns: u64,
    /// Largest file and memory block of the loads.
    pub size_mib_max: u64,
    /// The clock that the host gave the guest.
    pub time: TimeBase,
    /// Commands to run instead of the probe, one after the other under each load.
    pub commands: Vec<Vec<String>>,
    /// Turns that the probe takes with cyclictest under each load; none to measure with the probe alone.
    pub turns: u32,
    /// Kernel modules to load first, as paths in the initramfs.
    pub modules: Vec<PathBuf>,
    /// Driver of the guest's network cards, which a command uses.
    pub cards: Option<String>,
    /// Whether a program runs on a processor of its own beside Linux, to be measured under each load instead.
    pub has_program_beside: bool,
}

/// Results that a guest sends back.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GuestReport {
    /// The result; without series if a command was run.
    pub result: LabResult,
    /// Output of the commands, a text for each under each load, with their exit status.
    pub outputs: Vec<CommandOutput>,
}

/// Result of one `--guest-command`, or of the program beside Linux.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CommandOutput {
    /// The load meanwhile.
    pub load: String,
    /// Its exit status; none if a signal ended it.
    pub status: Option<i32>,
    /// Number of the signal that ended it.
    pub signal: Option<i32>,
    /// Its output, standard output and error in one.
    pub text: String,
}

impl CommandOutput {
    /// How it ended, in words.
    #[must_use]
    pub fn end(&self) -> String {
        match (self.status, self.signal) {
            (Some(status), _) => format!("exit status {status}"),
            (None, Some(signal)) => format!("ended by signal {signal}"),
            (None, None) => "ended".to_owned(),
        }
    }
}

/// Time for a load to come up to speed before the probe starts, in the guest's clock.
const SETTLE: Duration = Duration::from_millis(300);

/// The timerlat tracer's time, where there is one: this share of the probe's, in addition to it.
const TIMERLAT_SHARE: f64 = 1.0 / 3.0;

/// Payload of one line of the frame: a serial console's line discipline cuts at 4096.
const LINE_BYTES: usize = 1024;

const FRAME_BEGIN: &str = "@taut-lab begin ";
const FRAME_LINE: &str = "@taut-lab | ";
const FRAME_END: &str = "@taut-lab end ";

/// Whether this process is the first of a guest that the laboratory made.
pub fn is_guest() -> bool {
    std::process::id() == 1 && Path::new(ORDERS_PATH).exists()
}

/// Runs as the guest's first process and does not return if all goes well. Refuses to run anywhere else.
pub fn run_as_first_process(worker_command: &[PathBuf]) -> io::Result<()> {
    if !is_guest() {
        return Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "this command is the first process of a virtual machine of taut lab kernels; it does nothing elsewhere",
        ));
    }
    let outcome = work(worker_command);
    if let Err(error) = &outcome {
        println!("taut lab guest: {error}");
    }
    sys::restart_machine();
    outcome
}

fn work(worker_command: &[PathBuf]) -> io::Result<()> {
    let mut missing = Vec::new();
    prepare_system(&mut missing)?;
    let orders: Orders = serde_json::from_slice(&fs::read(ORDERS_PATH)?)?;
    for module in &orders.modules {
        load_module(module, &mut missing);
    }
    if let Some(driver) = &orders.cards {
        prepare_cards(driver, &mut missing)?;
    }
    let mut result = LabResult::new(&orders.label, orders.time, Machine::read());
    result.missing = missing;
    // A command that uses cards spins itself. Beside it, the other process has the CPU for a whole tick whenever the
    // command waits for a lock of a PREEMPT_RT kernel.
    if orders.time == TimeBase::Virtual && orders.cards.is_none() {
        keep_cpu_from_halting()?;
        result.notes.push(
            "a spinning process of the lowest class (SCHED_IDLE) keeps the guest's CPU from halting: the clock that counts instructions is exact only while there are any".to_owned(),
        );
    }
    let mut outputs = Vec::new();
    let beside = orders.has_program_beside.then(Mailbox::open).transpose()?;
    if tautline_state::memory::lock_all().is_err() {
        result
            .notes
            .push("the guest could not lock its memory".to_owned());
    }
    for load in &orders.loads {
        let settings = load::Settings {
            worker_command: worker_command.to_vec(),
            directory: PathBuf::from("/load"),
            cpu_count: std::thread::available_parallelism().map_or(1, usize::from),
            size_mib_max: orders.size_mib_max,
            external_tools: false,
        };
        let running = load::make_files_unnoted(&settings)
            .and_then(|files| load::start(*load, &settings, files))
            .map_err(io::Error::other)?;
        std::thread::sleep(SETTLE);
        if !orders.commands.is_empty() {
            for command in &orders.commands {
                outputs.push(run_command(command, *load)?);
            }
        } else if let Some(program) = &beside {
            outputs.push(order(program, *load));
        } else if orders.turns > 0 {
            let (agreement, phase) = take_turns(&orders, *load)?;
            result.agreements.push(agreement);
            result.phases.push(phase);
        } else {
            let episodes = Arc::new(Episodes::new(&verdict::deadlines_ns(None)));
            let mut phase = measure(&orders, *load, &episodes);
            let traced = timerlat(&orders, &episodes, &mut result.missing);
            phase.series.extend(traced);
            phase.episodes = episodes.counts();
            result.phases.push(phase);
        }
        let achieved = running.stop();
        if let Some(phase) = result.phases.last_mut() {
            phase.achieved = achieved;
        }
    }
    send(&GuestReport { result, outputs })
}

/// QEMU moves the clock of a halted guest ahead from another thread, and in rare moments by a few instructions too
/// many: one of the first sixteen runs (QEMU 7.2) came out different. A CPU that never halts needs none of that.
fn keep_cpu_from_halting() -> io::Result<()> {
    sys::fork(|| {
        // The first CPU, so that no partition of others finds it there; one that runs is enough.
        let mut first = rustix::thread::CpuSet::new();
        first.set(0);
        let _ = rustix::thread::sched_setaffinity(None, &first); // it exists
        // Without the class it would be a load; a kernel that refuses it does not exist.
        if sys::set_idle_class().is_ok() {
            let mut turns = 0u64;
            loop {
                turns = std::hint::black_box(turns.wrapping_add(1));
            }
        }
    })
    .map(|_| ())
}

/// Mounts the file systems that programs expect. What an optional one lacks is added to `missing`. For a guest's first
/// process.
pub fn prepare_system(missing: &mut Vec<Missing>) -> io::Result<()> {
    for directory in ["/proc", "/sys", "/dev", "/tmp", "/run", "/load"] {
        fs::create_dir_all(directory)?;
    }
    sys::mount("proc", "/proc", "")?;
    sys::mount("sysfs", "/sys", "")?;
    // Not on /tmp: files that the user had copied in may lie there.
    sys::mount("tmpfs", "/load", "size=60%")?;
    // A kernel without these still measures; the fingerprint and the network load are the poorer for it.
    let optional = [
        ("devtmpfs", sys::mount("devtmpfs", "/dev", "")),
        ("debugfs", sys::mount("debugfs", "/sys/kernel/debug", "")),
        ("tracefs", sys::mount("tracefs", "/sys/kernel/tracing", "")),
        (
            "shared memory",
            fs::create_dir_all("/dev/shm").and_then(|()| sys::mount("tmpfs", "/dev/shm", "")),
        ),
        ("cgroups", sys::mount("cgroup2", "/sys/fs/cgroup", "")),
        ("loopback device", sys::raise_loopback()),
    ];
    for (what, outcome) in optional {
        if let Err(error) = outcome {
            missing.push(Missing {
                what: what.to_owned(),
                reason: error.to_string(),
                remedy: "use a kernel that has it".to_owned(),
                weakens_verdict: false,
            });
        }
    }
    Ok(())
}

/// Prepares a guest for a command that uses its network cards: file systems for network namespaces and BPF, and an
/// interrupt for each frame.
fn prepare_cards(driver: &str, missing: &mut Vec<Missing>) -> io::Result<()> {
    fs::create_dir_all("/sys/fs/bpf")?;
    sys::mount("tmpfs", "/run", "")?;
    sys::mount("bpf", "/sys/fs/bpf", "")?;
    for entry in fs::read_dir("/sys/class/net")? {
        let interface = entry?.file_name().to_string_lossy().into_owned();
        if interface == "lo" {
            continue;
        }
        if let Err(error) = sys::interrupt_at_once(&interface) {
            missing.push(Missing {
                what: format!("an interrupt for each frame ({driver})"),
                reason: error.to_string(),
                remedy: "none is needed where the driver never waits".to_owned(),
                weakens_verdict: false,
            });
        }
    }
    Ok(())
}

/// Loads a kernel module, or says in `missing` why not. For a guest's first process.
pub fn load_module(path: &Path, missing: &mut Vec<Missing>) {
    let compressed = path.extension().is_some_and(|extension| extension != "ko");
    let outcome = fs::File::open(path).and_then(|file| sys::load_module(&file, compressed));
    if let Err(error) = outcome {
        missing.push(Missing {
            what: format!("kernel module {}", path.display()),
            reason: error.to_string(),
            remedy: "none is needed where the kernel has it built in".to_owned(),
            weakens_verdict: false,
        });
    }
}

/// Interrupt and thread latency apart, by the kernel's own tracer where there is one; under the same load, after the
/// probe, since the tracer's threads are more urgent than it.
fn timerlat(orders: &Orders, episodes: &Episodes, missing: &mut Vec<Missing>) -> Vec<Series> {
    let started = crate::open_journal()
        .map_err(|error| error.to_string())
        .and_then(|opened| {
            let mut journal = opened.journal;
            let tracer = Timerlat::start(&mut journal).map_err(|error| error.to_string())?;
            Ok((tracer, journal))
        });
    match started {
        // The journal goes last: it would remove what the tracer uses.
        Ok((tracer, _journal)) => tracer.run(
            Duration::from_nanos(orders.duration_ns).mul_f64(TIMERLAT_SHARE),
            &AtomicBool::new(false),
            episodes,
            &sys::allowed_cpus().unwrap_or_default(),
        ),
        Err(reason) => {
            let what = "interrupt and thread latency apart";
            if !missing.iter().any(|known| known.what == what) {
                missing.push(Missing {
                    what: what.to_owned(),
                    reason,
                    remedy: "use a kernel that has the tracer, such as Debian's PREEMPT_RT ones"
                        .to_owned(),
                    weakens_verdict: false,
                });
            }
            Vec::new()
        }
    }
}

fn plan(orders: &Orders) -> Plan {
    Plan {
        kind: ProbeKind::Nanosleep,
        cpu: Some(0),
        scheduling: Scheduling::Fifo(PRIORITY),
        period_ns: orders.period_ns,
        offset_ns: 0,
    }
}

fn measure(orders: &Orders, load: Load, episodes: &Arc<Episodes>) -> Phase {
    let stop = Arc::new(AtomicBool::new(false));
    let duration = Duration::from_nanos(orders.duration_ns);
    let plans = [plan(orders)];
    let measured = probe::measure(&plans, duration, episodes, &stop, None, &mut |_, _| {});
    Phase::new(
        State::Untouched,
        load.name(),
        measured.duration_ns,
        measured.series,
    )
}

/// The probe and cyclictest at once, again and again; and all that the probe found as one phase.
fn take_turns(orders: &Orders, load: Load) -> io::Result<(Agreement, Phase)> {
    let duration = Duration::from_nanos(orders.duration_ns);
    let (mut turns, mut all, mut faults) = (Vec::new(), LatencyHistogram::new(), 0);
    let episodes = Arc::new(Episodes::new(&verdict::deadlines_ns(None)));
    for turn in 0..orders.turns {
        let (turn, series) =
            agreement::take_turn(plan(orders), duration, &episodes, turn % 2 == 1)?;
        turns.push(turn);
        all.add(&series.histogram());
        faults += series.page_faults;
    }
    let scheduling = format!("SCHED_FIFO {PRIORITY}");
    let series = Series {
        page_faults: faults,
        ..Series::new(
            ProbeKind::Nanosleep,
            Some(0),
            scheduling,
            orders.period_ns,
            &all,
        )
    };
    let load = load.name().to_owned();
    let measured_ns = orders.duration_ns * u64::from(orders.turns);
    let phase = Phase {
        episodes: episodes.counts(),
        ..Phase::new(State::Untouched, &load, measured_ns, vec![series])
    };
    Ok((Agreement { load, turns }, phase))
}

/// Has the program beside Linux work once.
fn order(program: &Mailbox, load: Load) -> CommandOutput {
    let (text, is_well) = program.order();
    CommandOutput {
        load: load.name().to_owned(),
        status: Some(i32::from(!is_well)),
        signal: None,
        text,
    }
}

fn run_command(command: &[String], load: Load) -> io::Result<CommandOutput> {
    let (mut reader, writer) = io::pipe()?;
    let mut child = Command::new(&command[0])
        .args(&command[1..])
        .env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin")
        .stdin(Stdio::null())
        .stdout(writer.try_clone()?)
        .stderr(writer)
        .spawn()
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", command[0])))?;
    let mut text = Vec::new();
    io::Read::read_to_end(&mut reader, &mut text)?;
    let status = child.wait()?;
    Ok(CommandOutput {
        load: load.name().to_owned(),
        status: status.code(),
        signal: status.signal(),
        text: String::from_utf8_lossy(&text).into_owned(),
    })
}

/// Prints a report in a frame.
pub fn send(report: &impl Serialize) -> io::Result<()> {
    sys::quieten_console();
    let text = serde_json::to_string(report)?;
    let mut output = io::stdout().lock();
    output.write_all(frame(&text).as_bytes())?;
    output.flush()
}

/// JSON of serde is one line of valid UTF-8; non-ASCII letters do not survive every console, so they are escaped.
fn frame(text: &str) -> String {
    let ascii: String = text
        .chars()
        .flat_map(|c| {
            let mut units = [0; 2];
            if c.is_ascii() {
                vec![c]
            } else {
                c.encode_utf16(&mut units)
                    .iter()
                    .flat_map(|u| format!("\\u{u:04x}").chars().collect::<Vec<_>>())
                    .collect()
            }
        })
        .collect();
    let mut framed = format!("\n{FRAME_BEGIN}{}\n", ascii.len());
    for line in ascii.as_bytes().chunks(LINE_BYTES) {
        framed += FRAME_LINE;
        framed += std::str::from_utf8(line).expect("only ASCII is left");
        framed += "\n";
    }
    framed + &format!("{FRAME_END}{:08x}\n", checksum(ascii.as_bytes()))
}

/// Finds the report in a guest's console; nothing if it is not whole.
pub fn find_report(console: &str) -> Option<GuestReport> {
    find_reports(console).pop()
}

/// All whole reports in a guest's console, in order.
pub fn find_reports<Report: DeserializeOwned>(console: &str) -> Vec<Report> {
    console
        .split(FRAME_BEGIN)
        .skip(1)
        .filter_map(parse_report)
        .collect()
}

fn parse_report<Report: DeserializeOwned>(framed: &str) -> Option<Report> {
    let mut lines = framed.lines();
    let length: usize = lines.next()?.trim().parse().ok()?;
    let mut text = String::new();
    for line in lines {
        if let Some(part) = line.strip_prefix(FRAME_LINE) {
            text += part.trim_end_matches('\r');
        } else if let Some(sum) = line.strip_prefix(FRAME_END) {
            let whole = text.len() == length
                && u32::from_str_radix(sum.trim(), 16) == Ok(checksum(text.as_bytes()));
            return whole.then(|| serde_json::from_str(&text).ok()).flatten();
        }
    }
    None
}

/// FNV-1a, 32 bits: tells a garbled console from a whole one; no protection against malice is needed.
fn checksum(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |sum, byte| {
        (sum ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> GuestReport {
        let mut result = LabResult::new("größer", TimeBase::Virtual, Machine::default());
        result.notes = vec!["x".repeat(5000)];
        let output = CommandOutput {
            load: "idle".to_owned(),
            status: Some(0),
            signal: None,
            text: "a\r\nb".to_owned(),
        };
        GuestReport {
            result,
            outputs: vec![output],
        }
    }

    #[test]
    fn a_command_tells_how_it_ended() {
        let run = |script: &str| {
            let command = ["sh", "-c", script].map(str::to_owned);
            run_command(&command, Load::Idle).unwrap().end()
        };
        assert_eq!(run("exit 3"), "exit status 3");
        assert_eq!(run("kill -KILL $$"), "ended by signal 9");
    }

    #[test]
    fn a_report_crosses_a_serial_console() {
        let text = frame(&serde_json::to_string(&report()).unwrap());
        assert!(text.is_ascii());
        let console = format!("[    0.1] Booting\r\n{}", text.replace('\n', "\r\n"));
        assert_eq!(find_report(&console), Some(report()));
        let twice = format!("{console}[    0.2] between\r\n{console}");
        let both: Vec<GuestReport> = find_reports(&twice);
        assert_eq!(both, [report(), report()]);
    }

    #[test]
    fn a_damaged_report_is_none() {
        let text = frame(&serde_json::to_string(&report()).unwrap());
        assert_eq!(find_report(&text[..text.len() - 30]), None);
        assert_eq!(find_report(&text.replacen("xxx", "xyx", 1)), None);
        assert_eq!(
            find_report(&text.replacen("xxx", "xx[ 1.0] oops\nx", 1)),
            None
        );
        assert_eq!(find_report("Kernel panic - not syncing"), None);
    }

    #[test]
    fn it_does_not_restart_the_machine_of_a_user() {
        assert!(run_as_first_process(&[]).is_err());
    }
}
