//! Kernels compared in virtual machines on virtual time: the same probe and the same loads under each, the same
//! result twice, on any host.
//!
//! It counts instructions and knows nothing of caches, memory, buses or devices: it tells kernels apart and is
//! no statement about hardware.

pub mod agreement;
pub mod archive;
mod beside;
pub mod cards;
pub mod defaults;
pub mod emulator;
mod error;
pub mod guest;
pub mod initramfs;
pub mod kit;
pub mod modules;
pub mod qemu;
mod spec;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use sha2::{Digest, Sha256};

use crate::load::Load;
use crate::measured::TimeBase;
use beside::Program;
use cards::Driver;
use emulator::Emulator;
use guest::{GuestReport, ORDERS_PATH, Orders};
use initramfs::Initramfs;
use qemu::{Accelerator, Guest, Qemu};
use tautline_state::write_whole;

pub use error::KernelsError;
pub use spec::{Arch, KernelSource, KernelSpec};

/// Program to run in each guest.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The loads, in order.
    pub loads: Vec<Load>,
    /// Time to measure under each, in the guest's clock.
    pub duration: Duration,
    /// Time between two wake-ups.
    pub period: Duration,
    /// The guest's clock.
    pub accelerator: Accelerator,
    /// Commands instead of the probe, one after the other under each load.
    pub commands: Vec<Vec<String>>,
    /// Turns that the probe takes with cyclictest under each load, instead of measuring alone; 0 for none.
    pub turns: u32,
    /// A program for a processor of its own beside Linux, measured under each load instead of the probe.
    pub beside: Option<PathBuf>,
    /// Options of QEMU's machine, such as `virtualization=on`.
    pub machine_options: Option<String>,
    /// CPUs of each guest. The probe is on the first one, a program beside Linux on the last one.
    pub cpu_count: u32,
    /// Longest turn of one of several CPUs in virtual time, in whole microseconds.
    pub turn: Duration,
    /// Network cards of each guest: two, joined by a cable, as the only interfaces.
    pub cards: Option<&'static Driver>,
    /// Further files for the guest, copied at their own paths.
    pub files: Vec<PathBuf>,
    /// Modules out of the kernel's packages to load first, with those that they need.
    pub modules: Vec<String>,
    /// Host time after which one guest is given up.
    pub time_limit: Duration,
    /// Where packages, kernels and results are kept.
    pub cache: PathBuf,
    /// Whether finished results in the cache are used.
    pub reuse_results: bool,
    /// Guests at once. Each is one busy thread of the host.
    pub parallel: usize,
    /// The program that becomes the guest's first process, on the host's architecture this very program.
    pub guest_program: PathBuf,
    /// Guest programs for other architectures that the user gave.
    pub foreign_programs: Vec<(Arch, PathBuf)>,
    /// Tautline's sources, to build a missing guest program from.
    pub sources: Option<PathBuf>,
}

impl Settings {
    /// Settings of a plain `taut lab kernels`: the probe for three seconds idle and under the combined load, at 1
    /// kHz, in virtual time, with as many guests at once as there are CPUs.
    pub fn new(guest_program: PathBuf, cache: PathBuf) -> Settings {
        Settings {
            loads: vec![Load::Idle, Load::Combined],
            duration: Duration::from_secs(3),
            period: Duration::from_millis(1),
            accelerator: Accelerator::InstructionCount,
            commands: Vec::new(),
            turns: 0,
            beside: None,
            machine_options: None,
            cpu_count: qemu::LAB_CPU_COUNT,
            turn: qemu::TURN,
            cards: None,
            files: Vec::new(),
            modules: Vec::new(),
            time_limit: Duration::from_secs(600),
            cache,
            reuse_results: true,
            parallel: std::thread::available_parallelism().map_or(1, usize::from),
            guest_program,
            foreign_programs: Vec::new(),
            sources: None,
        }
    }
}

/// One kernel on one architecture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// The architecture.
    pub arch: Arch,
    /// The kernel.
    pub kernel: KernelSpec,
}

/// Something that happened, for progress on a terminal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A kernel is fetched and unpacked.
    Preparing(String),
    /// A guest has started.
    Started(String),
    /// A guest has finished; true if the result came from the cache.
    Finished(String, bool),
}

/// Place of a guest's first process, which is the guest program.
pub const FIRST_PROCESS: &str = "/init";

/// The largest file and memory block of the loads in a guest, of 512 MiB in all.
const GUEST_SIZE_MIB_MAX: u64 = 32;

/// Runs all jobs, some at once, and returns their reports in the order of the jobs. After an error no further
/// guest is started; what has finished is in the cache.
pub fn run(
    jobs: &[Job],
    settings: &Settings,
    stop: &AtomicBool,
    tell: &(dyn Fn(Event) + Sync),
) -> Result<Vec<GuestReport>, KernelsError> {
    let mut prepared = Vec::new();
    for job in jobs {
        tell(Event::Preparing(format!("{} ({})", job.kernel, job.arch)));
        prepared.push(prepare(job, settings)?);
        if stop.load(Ordering::Relaxed) {
            return Err(KernelsError::Interrupted);
        }
    }
    let host_cpus = crate::sys::allowed_cpus().unwrap_or_default();
    let next = AtomicUsize::new(0);
    let failed = AtomicBool::new(false);
    let reports: Mutex<Vec<Option<Result<GuestReport, KernelsError>>>> =
        Mutex::new(prepared.iter().map(|_| None).collect());
    std::thread::scope(|scope| {
        for slot in 0..settings.parallel.clamp(1, prepared.len().max(1)) {
            let host_cpu = host_cpus.get(slot % host_cpus.len().max(1)).copied();
            let (prepared, next, failed, reports) = (&prepared, &next, &failed, &reports);
            scope.spawn(move || {
                while !failed.load(Ordering::Relaxed) {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(one) = prepared.get(index) else {
                        return;
                    };
                    let outcome = run_or_reuse(one, settings, host_cpu, stop, tell);
                    failed.fetch_or(outcome.is_err(), Ordering::Relaxed);
                    reports.lock().expect("no thread panics with it")[index] = Some(outcome);
                }
            });
        }
    });
    let reports = reports.into_inner().expect("all threads have ended");
    // The first error in order; a job that was not started after it has no entry.
    let mut finished = Vec::new();
    for report in reports.into_iter().flatten() {
        finished.push(report?);
    }
    Ok(finished)
}

/// Everything that decides a job's result.
struct Prepared {
    job: Job,
    label: String,
    kernel: Vec<u8>,
    beside: Option<Vec<u8>>,
    initramfs: Vec<u8>,
    parameters: String,
    devices: Vec<String>,
    qemu: Option<Qemu>,
    key: String,
}

fn prepare(job: &Job, settings: &Settings) -> Result<Prepared, KernelsError> {
    // First, so that nothing is downloaded in vain.
    let program = program_beside(job.arch, settings)?;
    let emulator = emulator(job.arch, settings)?;
    let path = archive::kernel_image(job, &settings.cache)?;
    let mut kernel = fs::read(&path).map_err(KernelsError::file(&path))?;
    if let Some(program) = &program {
        let with_start = program.before(&kernel, settings.cpu_count - 1);
        kernel = with_start.ok_or(KernelsError::NotAKernel {
            path,
            arch: job.arch,
        })?;
    }
    let label = match job.arch {
        Arch::X86_64 => job.kernel.to_string(),
        arch => format!("{} ({arch})", job.kernel),
    };
    let initramfs = build_initramfs(job, &label, settings)?;
    let parameters = job.kernel.parameters.join(" ");
    let mut prepared = Prepared {
        job: job.clone(),
        label,
        kernel,
        beside: program.map(|program| program.bytes),
        initramfs,
        parameters,
        devices: settings
            .cards
            .map_or_else(Vec::new, |driver| driver.measured_cards(0)),
        qemu: emulator.qemu(job.arch),
        key: String::new(),
    };
    prepared.key = prepared.content_key(settings, &emulator.version(job.arch)?);
    Ok(prepared)
}

/// The program beside Linux, if there shall be one.
fn program_beside(arch: Arch, settings: &Settings) -> Result<Option<Program>, KernelsError> {
    let Some(path) = &settings.beside else {
        return Ok(None);
    };
    let is_virtual = settings.accelerator == Accelerator::InstructionCount;
    if arch != Arch::Arm64 || !is_virtual || settings.cpu_count < 2 {
        return Err(KernelsError::NoPlaceBeside);
    }
    Program::read(path).map(Some)
}

/// The system's QEMU, or a newer one if the settings need it.
fn emulator(arch: Arch, settings: &Settings) -> Result<Emulator, KernelsError> {
    let is_virtual = settings.accelerator == Accelerator::InstructionCount;
    let what = match settings.cards {
        Some(_) => "network cards in virtual time need",
        None if is_virtual && settings.cpu_count > 1 => "several CPUs in one virtual time need",
        None => return Ok(Emulator::of_system()),
    };
    let emulator = Emulator::find(arch, &settings.cache);
    match emulator.regret {
        None => Ok(emulator),
        Some(reason) => Err(KernelsError::QemuTooOld {
            what,
            version: qemu::version(arch)?,
            reason,
        }),
    }
}

fn build_initramfs(job: &Job, label: &str, settings: &Settings) -> Result<Vec<u8>, KernelsError> {
    let modules = modules_of(job, label, settings)?;
    let program = archive::guest_program(job.arch, settings)?;
    let mut initramfs = Initramfs::default();
    let commands = settings
        .commands
        .iter()
        .map(|command| add_command(&mut initramfs, command, &program))
        .collect::<Result<_, _>>()?;
    let orders = Orders {
        label: label.to_owned(),
        loads: settings.loads.clone(),
        duration_ns: settings.duration.as_nanos() as u64,
        period_ns: settings.period.as_nanos() as u64,
        size_mib_max: GUEST_SIZE_MIB_MAX,
        time: match settings.accelerator {
            Accelerator::InstructionCount => TimeBase::Virtual,
            Accelerator::Kvm => TimeBase::Guest,
        },
        commands,
        turns: settings.turns,
        modules: modules.iter().map(|file| modules::place(file)).collect(),
        cards: settings.cards.map(|driver| driver.name.to_owned()),
        has_program_beside: settings.beside.is_some(),
    };
    for module in modules {
        let content = fs::read(&module).map_err(KernelsError::file(&module))?;
        initramfs.add(modules::place(&module), content);
    }
    initramfs
        .add_program(FIRST_PROCESS, &program)
        .map_err(KernelsError::file(&program))?;
    if settings.turns > 0 {
        let tool = crate::load::find_program("cyclictest").ok_or(KernelsError::ToolMissing {
            tool: "cyclictest",
            package: "rt-tests",
        })?;
        initramfs
            .add_program(agreement::GUEST_PATH, &tool)
            .map_err(KernelsError::file(&tool))?;
    }
    for file in &settings.files {
        // Under the name that commands call it by, whichever file that leads to.
        let name = std::path::absolute(file).map_err(KernelsError::file(file))?;
        let source = file.canonicalize().map_err(KernelsError::file(file))?;
        initramfs
            .add_program(&name, &source)
            .map_err(KernelsError::file(&source))?;
    }
    let text = serde_json::to_vec(&orders).expect("orders have only string keys");
    initramfs.add(ORDERS_PATH, text);
    initramfs
        .archive()
        .map_err(KernelsError::file(Path::new("initramfs")))
}

/// The modules that the settings ask for, each after those that it needs.
fn modules_of(job: &Job, label: &str, settings: &Settings) -> Result<Vec<PathBuf>, KernelsError> {
    let of_cards = settings.cards.iter().flat_map(|driver| driver.modules);
    let of_cards = of_cards.copied();
    let named = settings.modules.iter().map(String::as_str);
    let names: Vec<&str> = of_cards.chain(named).collect();
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let packages = archive::kernel_packages(job, &settings.cache)?;
    let files = modules::modules(&packages, &names, &settings.cache)?;
    // A card's module may be built in. A named module must exist.
    let is_there = |name: &&String| files.iter().any(|file| modules::is_of(file, name));
    match settings.modules.iter().find(|name| !is_there(name)) {
        None => Ok(files),
        Some(name) => Err(KernelsError::NoModule {
            label: label.to_owned(),
            name: name.clone(),
        }),
    }
}

/// Adds the program of a command, unless it is the guest's first process itself, by its path or its bare name; returns
/// the command with the program's place.
fn add_command(
    initramfs: &mut Initramfs,
    command: &[String],
    first_process: &Path,
) -> Result<Vec<String>, KernelsError> {
    let program = Path::new(&command[0]);
    let mut placed = command.to_vec();
    if program == first_process || Some(program.as_os_str()) == first_process.file_name() {
        placed[0] = FIRST_PROCESS.to_owned();
        return Ok(placed);
    }
    let (found, inside) = if program.is_absolute() {
        (program.to_owned(), program.to_owned())
    } else {
        let found =
            crate::load::find_program(&command[0]).ok_or_else(|| KernelsError::NoGuestCommand {
                name: command[0].clone(),
            })?;
        (found, Path::new("/usr/bin").join(program))
    };
    initramfs
        .add_program(inside, &found)
        .map_err(KernelsError::file(&found))?;
    Ok(placed)
}

impl Prepared {
    fn guest<'a>(&'a self, files: &'a Files, settings: &'a Settings) -> Guest<'a> {
        let is_beside = self.beside.is_some();
        let linux_cpus = settings.cpu_count - u32::from(is_beside);
        let memory_mib = qemu::lab_memory_mib(linux_cpus, self.initramfs.len());
        Guest {
            label: &self.label,
            arch: self.job.arch,
            kernel: &files.kernel,
            initramfs: &files.initramfs,
            beside: is_beside.then_some(&*files.beside),
            parameters: &self.parameters,
            accelerator: settings.accelerator,
            cpu_count: settings.cpu_count,
            turn: settings.turn,
            memory_mib: match is_beside {
                true => beside::linux_mib(memory_mib),
                false => memory_mib,
            },
            machine_options: settings.machine_options.as_deref(),
            has_pci_express: settings.cards.is_some(),
            devices: &self.devices,
            qemu: self.qemu.as_ref(),
            time_limit: settings.time_limit,
        }
    }

    /// A hash over all that decides the result: kernel, initramfs with probe and orders, the program beside it, QEMU
    /// and its arguments.
    fn content_key(&self, settings: &Settings, qemu_version: &str) -> String {
        let files = Files::below(Path::new(""), "");
        let arguments = self.guest(&files, settings).arguments().join("\0");
        let mut hash = Sha256::new();
        for part in [
            &self.kernel,
            &self.initramfs,
            self.beside.as_deref().unwrap_or_default(),
            arguments.as_bytes(),
            qemu_version.as_bytes(),
        ] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        hash.finalize()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect()
    }
}

fn run_or_reuse(
    one: &Prepared,
    settings: &Settings,
    host_cpu: Option<u32>,
    stop: &AtomicBool,
    tell: &(dyn Fn(Event) + Sync),
) -> Result<GuestReport, KernelsError> {
    // A result on the host's clock is a sample, not a property of its inputs.
    let cacheable = settings.accelerator == Accelerator::InstructionCount;
    let directory = settings.cache.join("results");
    fs::create_dir_all(&directory).map_err(KernelsError::file(&directory))?;
    let path = directory.join(format!("{}.json", one.key));
    let known = || serde_json::from_slice(&fs::read(&path).ok()?).ok();
    if settings.reuse_results
        && cacheable
        && let Some(report) = known()
    {
        tell(Event::Finished(one.label.clone(), true));
        return Ok(report);
    }
    tell(Event::Started(one.label.clone()));
    let unique = format!("{}-{}", std::process::id(), &one.key[..12]);
    let scratch = Scratch(Files::below(&settings.cache, &unique));
    let files = &scratch.0;
    let write =
        |path: &Path, bytes: &[u8]| fs::write(path, bytes).map_err(KernelsError::file(path));
    write(&files.kernel, &one.kernel)?;
    write(&files.initramfs, &one.initramfs)?;
    if let Some(program) = &one.beside {
        write(&files.beside, program)?;
    }
    let report = one.guest(files, settings).run(host_cpu, stop)?;
    if cacheable {
        let text = serde_json::to_vec(&report).expect("a report has only string keys");
        write_whole(&path, &text)
            .map_err(io::Error::from)
            .map_err(KernelsError::file(&path))?;
    }
    tell(Event::Finished(one.label.clone(), false));
    Ok(report)
}

/// Files of a guest.
struct Files {
    kernel: PathBuf,
    initramfs: PathBuf,
    beside: PathBuf,
}

impl Files {
    fn below(directory: &Path, unique: &str) -> Files {
        let file = |what: &str| directory.join(format!("{what}-{unique}"));
        Files {
            kernel: file("kernel"),
            initramfs: file("initramfs"),
            beside: file("beside"),
        }
    }
}

/// Files of a running guest, removed afterwards.
struct Scratch(Files);

impl Drop for Scratch {
    fn drop(&mut self) {
        for file in [&self.0.kernel, &self.0.initramfs, &self.0.beside] {
            let _ = fs::remove_file(file); // absent if it could not be written, or there is none
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_may_name_the_first_process() {
        let placed = |program: &str| {
            let command = [program.to_owned(), "recv".to_owned()];
            let first_process = Path::new("/opt/tautline/taut");
            add_command(&mut Initramfs::default(), &command, first_process)
        };
        for same in ["taut", "/opt/tautline/taut"] {
            assert_eq!(placed(same).unwrap(), [FIRST_PROCESS, "recv"]);
        }
        assert!(placed("taut-no-such-program").is_err());
    }
}
