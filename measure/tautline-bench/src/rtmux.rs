//! The RTMux paper's interrupt latency in virtual time: one program in three homes (alone, on a processor of its own
//! beside Linux, as a guest on KVM), and a process of Linux beside them. `taut experiment run rtmux-latency` shows it.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tautline_lab::kernels::guest::{CommandOutput, GuestReport};
use tautline_lab::kernels::qemu::tail;
use tautline_lab::kernels::{self, Arch, Event, Job, KernelsError, Settings, defaults, kit};
use tautline_lab::load::Load;
use tautline_lab::measured::{self, ProbeKind};
use tautline_lab::result::LabResult;
use tautline_machine::verdict::State;

/// Host time after which a guest is given up. Lower: 100,000 interrupts on a busy host are given up. Higher: a guest
/// that hangs is noticed later.
const TIME_LIMIT: Duration = Duration::from_secs(24 * 3600);

/// Words that no kernel knows: they move its start by a few instructions, and so the phase between its timers and
/// those of the program.
const PHASES: [&str; 3] = ["", ",phase=1", ",phase=12345"];
/// The most phases that can be measured.
pub const PHASES_MAX: usize = PHASES.len();

/// Kernels, by the name in results and as the lab calls them.
type Kernel = (&'static str, &'static str);
const X86: [Kernel; 2] = [
    ("generic", "linux-image-amd64,preempt=full"),
    ("PREEMPT_RT", "linux-image-rt-amd64"),
];
const ARM: [Kernel; 2] = [
    ("generic", "linux-image-arm64"),
    ("PREEMPT_RT", "linux-image-rt-arm64"),
];

/// Amount of the measurement.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Interrupts of each series.
    pub events: u64,
    /// Phases, at most [`PHASES_MAX`].
    pub phases: usize,
    /// Longest turn of one of several CPUs. What happens on one of them waits for the others' turns, so each figure can
    /// have this much of them in it; shorter turns take longer to emulate.
    pub turn: Duration,
    /// Work of Linux meanwhile.
    pub loads: Vec<Load>,
    /// Whether all homes and kernels are measured; otherwise neither PREEMPT_RT nor the processor beside Linux, for
    /// which a program for arm64 has to be compiled.
    pub is_whole: bool,
}

/// Place where the interrupts are handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Home {
    /// The program on a machine without Linux.
    Alone,
    /// The program on a processor that Linux does not have.
    Beside,
    /// The program as a guest on KVM, under `SCHED_FIFO`.
    Guest,
    /// The same in a partition.
    GuestInPartition,
    /// A process of Linux, under `SCHED_FIFO`.
    Process,
    /// The same in a partition.
    ProcessInPartition,
}

impl Home {
    /// The name in results.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Home::Alone => "alone",
            Home::Beside => "own CPU beside Linux",
            Home::Guest => "guest on KVM",
            Home::GuestInPartition => "guest on KVM in a partition",
            Home::Process => "process",
            Home::ProcessInPartition => "process in a partition",
        }
    }
}

/// Latencies of a series, in nanoseconds of the virtual clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latency {
    /// Interrupts.
    pub events: u64,
    /// Arithmetic mean.
    pub mean_ns: u64,
    /// Maximum.
    pub max_ns: u64,
}

/// One series of one phase.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Series {
    /// How the program waits: `halting` or `never halting`; of a process, `sleeping`.
    pub waits: String,
    /// Interrupts that were due while the program was still busy with the one before.
    pub left_out: u64,
    /// From the time that the timer was set for to the handler.
    pub handler: Latency,
    /// From there to the program that waits.
    pub program: Latency,
}

/// Series of all phases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Place of the handler.
    pub home: Home,
    /// The kernel beside it: `generic` or `PREEMPT_RT`; empty where there is none.
    pub kernel: &'static str,
    /// Work of Linux meanwhile; empty where there is no Linux.
    pub load: String,
    /// A series of each phase, all with the same way of waiting.
    pub phases: Vec<Series>,
}

impl Row {
    /// How the program waits.
    #[must_use]
    pub fn waits(&self) -> &str {
        self.phases
            .first()
            .map_or("", |series| series.waits.as_str())
    }

    /// The figure of the phase in which it is the worst.
    #[must_use]
    pub fn worst(&self, of: impl Fn(&Series) -> u64) -> u64 {
        self.phases.iter().map(of).max().unwrap_or(0)
    }
}

/// Rows of the homes that could be measured, and the others with the reason.
#[derive(Debug, Default)]
pub struct Measured {
    /// In the order of the homes.
    pub rows: Vec<Row>,
    /// Homes that were not measured, each with its reason.
    pub missing: Vec<(&'static str, String)>,
}

impl Measured {
    fn add(
        &mut self,
        name: &'static str,
        rows: Result<Vec<Row>, KernelsError>,
    ) -> Result<(), KernelsError> {
        match rows {
            Ok(rows) => self.rows.extend(rows),
            Err(KernelsError::Interrupted) => return Err(KernelsError::Interrupted),
            Err(error) => self.missing.push((name, error.to_string())),
        }
        Ok(())
    }
}

impl Plan {
    /// Virtual machines of a run.
    #[must_use]
    pub fn guests(&self) -> u64 {
        let of = |kernels: &[Kernel; 2]| self.kernels(kernels).len() * self.phases;
        let beside = if self.is_whole { of(&ARM) } else { 0 };
        (beside + of(&X86)) as u64
    }

    /// Measures every home that this machine has the tools for; finished guests come from the lab's cache.
    ///
    /// # Errors
    /// Interrupted, or there is no cache. What keeps a home from being measured is in the result.
    pub fn run(
        &self,
        stop: &AtomicBool,
        tell: &(dyn Fn(Event) + Sync),
    ) -> Result<Measured, KernelsError> {
        let settings = Settings {
            loads: self.loads.clone(),
            turn: self.turn,
            time_limit: TIME_LIMIT,
            sources: defaults::sources(),
            ..Settings::new(defaults::own_program()?, defaults::cache(None)?)
        };
        let mut measured = Measured::default();
        measured.add(Home::Alone.name(), self.alone(&settings))?;
        if self.is_whole {
            measured.add(Home::Beside.name(), self.beside(&settings, stop, tell))?;
        }
        self.in_linux(&mut measured, &settings, stop, tell)?;
        measured.rows.sort_by_key(|row| row.home);
        Ok(measured)
    }

    fn alone(&self, settings: &Settings) -> Result<Vec<Row>, KernelsError> {
        let printed = kit::run_alone(&self.example("latency.elf", settings)?)?;
        let rows = self.series(&printed).map(|series| Row {
            home: Home::Alone,
            kernel: "",
            load: String::new(),
            phases: vec![series],
        });
        complete("the program", rows.collect(), &printed)
    }

    fn beside(
        &self,
        settings: &Settings,
        stop: &AtomicBool,
        tell: &(dyn Fn(Event) + Sync),
    ) -> Result<Vec<Row>, KernelsError> {
        let settings = Settings {
            beside: Some(self.example("latency-beside.elf", settings)?),
            cpu_count: 3,
            ..settings.clone()
        };
        let kernels = self.kernels(&ARM);
        let reports = self.reports(Arch::Arm64, &kernels, &settings, stop, tell)?;
        let mut rows = Rows::default();
        for (kernel, report) in &reports {
            for output in &report.outputs {
                self.read(Home::Beside, kernel, output, &mut rows)?;
            }
        }
        Ok(rows.0)
    }

    /// The guest on KVM and the process, in the same virtual machines: most of their time is a kernel's start.
    fn in_linux(
        &self,
        measured: &mut Measured,
        settings: &Settings,
        stop: &AtomicBool,
        tell: &(dyn Fn(Event) + Sync),
    ) -> Result<(), KernelsError> {
        let image = match self.example("latency-x86_64.elf", settings) {
            Ok(image) => Some(image),
            Err(error) => {
                measured
                    .missing
                    .push((Home::Guest.name(), error.to_string()));
                None
            }
        };
        for kernel in self.kernels(&X86) {
            // KVM refuses a PREEMPT_RT kernel on QEMU's processor.
            let image = image.as_ref().filter(|_| kernel == X86[0]);
            let rows = self.under(kernel, image, settings, stop, tell);
            let name = image.map_or(Home::Process.name(), |_| "guest on KVM and process");
            measured.add(name, rows)?;
        }
        Ok(())
    }

    /// The guest, if there is an image, and the process, under one kernel.
    fn under(
        &self,
        kernel: Kernel,
        image: Option<&PathBuf>,
        settings: &Settings,
        stop: &AtomicBool,
        tell: &(dyn Fn(Event) + Sync),
    ) -> Result<Vec<Row>, KernelsError> {
        let lab = settings.guest_program.to_string_lossy();
        // The command beside it, which lies at the same place in the virtual machine.
        let taut = settings.guest_program.with_file_name("taut");
        let taut = taut.to_string_lossy();
        let command = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        let count = self.events.to_string();
        let mut commands: Vec<(Vec<String>, Part)> = Vec::new();
        if let Some(image) = image {
            let image = image.to_string_lossy();
            let run = ["guest", "run", &image, "--console", "-"];
            let urgent = ["chrt", "-f", "40", &taut];
            let in_partition = [&[&*taut], &run[..], &["--partition", "guest"]].concat();
            let create = [&taut, "partition", "create", "guest", "--cpus", "1"];
            commands = vec![
                (
                    command(&[&urgent[..], &run[..]].concat()),
                    Part::Program(Home::Guest),
                ),
                (command(&create), Part::Setting),
                (
                    command(&in_partition),
                    Part::Program(Home::GuestInPartition),
                ),
                (
                    command(&[&taut, "partition", "remove", "guest"]),
                    Part::Setting,
                ),
            ];
        }
        // Idle, because the virtual machine's own load is there already.
        let process = [
            &lab,
            "lab",
            "interrupt",
            "--json",
            "--count",
            &*count,
            "--load",
            "idle",
        ];
        commands.push((command(&process), Part::Process));
        let (commands, parts): (Vec<_>, Vec<_>) = commands.into_iter().unzip();
        let settings = Settings {
            commands,
            cpu_count: 2,
            files: image.into_iter().cloned().collect(),
            modules: image.iter().map(|_| "kvm-amd".to_owned()).collect(),
            ..settings.clone()
        };
        let mut rows = Rows::default();
        for (name, report) in &self.reports(Arch::X86_64, &[kernel], &settings, stop, tell)? {
            for (output, part) in report.outputs.iter().zip(parts.iter().cycle()) {
                match part {
                    Part::Program(home) => self.read(*home, name, output, &mut rows)?,
                    Part::Setting => succeeded(name, output)?,
                    Part::Process => read_process(name, output, &mut rows)?,
                }
            }
        }
        Ok(rows.0)
    }

    fn kernels(&self, both: &[Kernel; 2]) -> Vec<Kernel> {
        let count = if self.is_whole { 2 } else { 1 };
        both[..count].into()
    }

    /// A program of the guest kit.
    fn example(&self, name: &str, settings: &Settings) -> Result<PathBuf, KernelsError> {
        let sources = settings.sources.as_deref();
        kit::example(name, self.events, sources, &settings.cache)
    }

    /// The report of each kernel in each phase, with the kernel's name.
    fn reports(
        &self,
        arch: Arch,
        kernels: &[Kernel],
        settings: &Settings,
        stop: &AtomicBool,
        tell: &(dyn Fn(Event) + Sync),
    ) -> Result<Vec<(&'static str, GuestReport)>, KernelsError> {
        let phases = &PHASES[..self.phases.clamp(1, PHASES_MAX)];
        let guests = kernels
            .iter()
            .flat_map(|kernel| phases.iter().map(move |phase| (kernel, phase)));
        let (names, jobs): (Vec<_>, Vec<_>) = guests
            .map(|((name, spec), phase)| {
                let kernel = format!("{spec}{phase}");
                let kernel = kernel.parse().expect("the specifications are well-formed");
                (*name, Job { arch, kernel })
            })
            .unzip();
        let reports = kernels::run(&jobs, settings, stop, tell)?;
        Ok(names.into_iter().zip(reports).collect())
    }

    /// Adds the series that the program printed.
    fn read(
        &self,
        home: Home,
        kernel: &'static str,
        output: &CommandOutput,
        rows: &mut Rows,
    ) -> Result<(), KernelsError> {
        succeeded(kernel, output)?;
        let series = complete(kernel, self.series(&output.text).collect(), &output.text)?;
        for one in series {
            rows.add(home, kernel, &output.load, one);
        }
        Ok(())
    }

    /// The series that the program printed whole.
    fn series(&self, text: &str) -> impl Iterator<Item = Series> {
        let events = self.events;
        let is_whole =
            move |one: &Series| [one.handler, one.program].map(|of| of.events) == [events; 2];
        printed(text).into_iter().filter(is_whole)
    }
}

/// Reading of one command's output.
#[derive(Clone, Copy)]
enum Part {
    /// The program's, in this home.
    Program(Home),
    /// Nothing is read.
    Setting,
    /// That of `taut lab interrupt`.
    Process,
}

/// Rows as they grow: a series goes to the row that it belongs to.
#[derive(Default)]
struct Rows(Vec<Row>);

impl Rows {
    fn add(&mut self, home: Home, kernel: &'static str, load: &str, series: Series) {
        let is_its = |row: &&mut Row| {
            (row.home, row.kernel, &*row.load, row.waits()) == (home, kernel, load, &*series.waits)
        };
        match self.0.iter_mut().find(is_its) {
            Some(row) => row.phases.push(series),
            None => self.0.push(Row {
                home,
                kernel,
                load: load.to_owned(),
                phases: vec![series],
            }),
        }
    }
}

/// Series in what the program printed, such as
///
/// ```text
/// halting, events left out: 0, early: 0
///   timer to handler: events 5000, ns: mean 6, p50 0, p99.9 0, max 6
///   timer to program: events 5000, ns: mean 26, p50 20, p99.9 20, max 26
/// ```
#[must_use]
pub fn printed(text: &str) -> Vec<Series> {
    let mut all: Vec<Series> = Vec::new();
    for line in text.lines().map(str::trim) {
        if let Some((waits, others)) = line.split_once(", events left out: ") {
            let count = others.split(',').next().and_then(|text| text.parse().ok());
            let Some(left_out) = count else { continue };
            all.push(Series {
                waits: waits.to_owned(),
                left_out,
                ..Series::default()
            });
        } else if let (Some(series), Some((name, figures))) =
            (all.last_mut(), line.split_once(": events "))
        {
            let latency = latency(figures).unwrap_or_default();
            match name {
                "timer to handler" => series.handler = latency,
                "timer to program" => series.program = latency,
                _ => {}
            }
        }
    }
    all
}

/// `5000, ns: mean 6, p50 0, p99.9 0, max 6`
fn latency(figures: &str) -> Option<Latency> {
    let parts = || figures.split([',', ':']).map(str::trim);
    let of = |name: &str| parts().find_map(|part| part.strip_prefix(name)?.trim().parse().ok());
    Some(Latency {
        events: parts().next()?.parse().ok()?,
        mean_ns: of("mean")?,
        max_ns: of("max")?,
    })
}

/// The result among other lines that a command printed.
fn lab_result(text: &str) -> Option<LabResult> {
    let lines = text.lines();
    let start = lines.take_while(|line| !line.starts_with('{'));
    let start: usize = start.map(|line| line.len() + 1).sum();
    let found = serde_json::Deserializer::from_str(text.get(start..)?);
    found.into_iter().next()?.ok()
}

fn read_process(
    kernel: &'static str,
    output: &CommandOutput,
    rows: &mut Rows,
) -> Result<(), KernelsError> {
    succeeded(kernel, output)?;
    let none = || failed(kernel, "it printed no result".to_owned(), &output.text);
    let result = lab_result(&output.text).ok_or_else(none)?;
    for (home, series) in of_process(&result) {
        rows.add(home, kernel, &output.load, series);
    }
    Ok(())
}

/// A process's series: the events that reach the handler, and those that reach the task, are different ones.
fn of_process(result: &LabResult) -> Vec<(Home, Series)> {
    let phases = result.phases.iter().map(|phase| {
        let home = match phase.state {
            State::Partition => Home::ProcessInPartition,
            _ => Home::Process,
        };
        let of = |kind: ProbeKind| phase.series.iter().find(|series| series.probe == kind);
        let latency = |series: &measured::Series| Latency {
            events: series.summary.count,
            mean_ns: series.summary.mean_ns as u64,
            max_ns: series.summary.max_ns,
        };
        let task = of(ProbeKind::Nanosleep);
        let series = Series {
            waits: "sleeping".to_owned(),
            left_out: task.map_or(0, |series| series.overruns),
            handler: of(ProbeKind::TimerHandler).map(latency).unwrap_or_default(),
            program: task.map(latency).unwrap_or_default(),
        };
        (home, series)
    });
    phases.collect()
}

fn succeeded(kernel: &str, output: &CommandOutput) -> Result<(), KernelsError> {
    match output.status {
        Some(0) => Ok(()),
        _ => Err(failed(kernel, output.end(), &output.text)),
    }
}

/// The series, of which there is one for each way of waiting at least.
fn complete<T>(kernel: &str, series: Vec<T>, text: &str) -> Result<Vec<T>, KernelsError> {
    match series.is_empty() {
        false => Ok(series),
        true => Err(failed(
            kernel,
            "it printed no whole series".to_owned(),
            text,
        )),
    }
}

fn failed(label: &str, what: String, text: &str) -> KernelsError {
    KernelsError::NoReport {
        label: label.to_owned(),
        what,
        console: tail(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRINTED: &str = "[    0.5] guest started (KVM)\n\
        halting, events left out: 2, early: 0\n  timer to handler: events 100, ns: mean 6, p50 0, p99.9 0, max 7\n  \
        timer to program: events 100, ns: mean 26, p50 20, p99.9 20, max 27\n\
        never halting, events left out: 0, early: 0\n  timer to handler: events 99, ns: mean 5, p50 0, p99.9 0, max 8\n";

    fn plan(phases: usize) -> Plan {
        Plan {
            events: 100,
            phases,
            turn: Duration::from_micros(10),
            loads: vec![Load::Idle],
            is_whole: true,
        }
    }

    #[test]
    fn printed_series_are_read_and_those_cut_off_are_not() {
        let all = printed(PRINTED);
        assert_eq!(all.len(), 2);
        assert_eq!((&*all[0].waits, all[0].left_out), ("halting", 2));
        let latency = |mean_ns, max_ns| Latency {
            events: 100,
            mean_ns,
            max_ns,
        };
        assert_eq!(all[0].handler, latency(6, 7));
        assert_eq!(all[0].program, latency(26, 27));
        let whole: Vec<Series> = plan(1).series(PRINTED).collect();
        assert_eq!(whole, all[..1]);
        assert_eq!(
            printed("x, events left out: ?\n timer to handler: events 3"),
            []
        );
        assert!(complete("generic", Vec::<Row>::new(), "Killed").is_err());
    }

    #[test]
    fn a_row_has_a_series_of_each_phase() {
        let mut rows = Rows::default();
        for max_ns in [3, 9, 6] {
            for one in printed(PRINTED) {
                let handler = Latency {
                    max_ns,
                    ..one.handler
                };
                rows.add(Home::Beside, "generic", "idle", Series { handler, ..one });
            }
        }
        rows.add(Home::Beside, "PREEMPT_RT", "idle", Series::default());
        assert_eq!(rows.0.len(), 3);
        assert_eq!(rows.0[0].phases.len(), 3);
        assert_eq!(rows.0[0].worst(|series| series.handler.max_ns), 9);
        assert_eq!(rows.0[1].waits(), "never halting");
    }

    #[test]
    fn every_guest_is_counted() {
        // Two kernels beside a processor of its own, and two with a guest or a process.
        assert_eq!(plan(3).guests(), 3 * 4);
        assert_eq!(
            Plan {
                is_whole: false,
                ..plan(1)
            }
            .guests(),
            1
        );
    }

    #[test]
    fn a_result_is_found_among_other_lines() {
        let result = LabResult::new(
            "x",
            tautline_lab::result::TimeBase::Virtual,
            tautline_machine::Machine::default(),
        );
        let json = result.to_json();
        let text = format!("measuring timer to task, idle\nmore\n{json}\nnote: done\n");
        assert_eq!(lab_result(&text), Some(result));
        assert_eq!(lab_result("measuring\n"), None);
        assert_eq!(lab_result(""), None);
    }
}
