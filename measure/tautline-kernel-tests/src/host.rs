//! Runs one guest: fetches its kernel, builds its initramfs, and takes its answers.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tautline_lab::kernels::cards::Driver;
use tautline_lab::kernels::emulator::Emulator;
use tautline_lab::kernels::guest::find_reports;
use tautline_lab::kernels::initramfs::Initramfs;
use tautline_lab::kernels::qemu::{Accelerator, Guest, LAB_CPU_COUNT, TURN, tail};
use tautline_lab::kernels::{
    Arch, KernelSource, KernelsError, archive, modules::modules, modules::place,
};

use crate::kernels::{Kernel, MODULES, drivers};
use crate::libtest::{self, Counts};
use crate::orders::{self, Answer, Orders, Outcome};
use crate::plan::{Cell, Part, cells};
use crate::programs::{BPF_OBJECTS, Programs, add_bpf_objects, add_guest_images, add_tools};
use crate::report::{CellResult, KernelResult};

/// Kernel parameters of all guests: mitigations only cost there.
const PARAMETERS: &str = "mitigations=off";

/// Memory of a guest in MiB. Lower: the initramfs, about 150 MiB that are there twice while it is unpacked, and the
/// rings of link `xsk` do not fit. Higher: nothing is gained.
const MEMORY_MIB: u32 = 1536;

/// Seconds for a guest to start. Lower: an emulated one on a busy host is failed unjustly. Higher: one that hangs is
/// told later.
const BOOT_SECONDS_MAX: u64 = 600;

/// Variable that names a directory of further BPF objects to the test `bpf_load`.
const BPF_OBJECTS_VARIABLE: &str = "TAUTLINE_BPF_OBJECTS";

/// Properties that all guests share.
pub(crate) struct Bench<'a> {
    pub(crate) cache: &'a Path,
    /// Directory of results.
    pub(crate) out: &'a Path,
    pub(crate) parts: &'a [Part],
    pub(crate) emulator: &'a Emulator,
    /// Options of QEMU's machine where guests are among the tests.
    pub(crate) machine_options: &'a str,
    /// Whether the guests get Debian's programs too.
    pub(crate) with_tools: bool,
    /// Directory of further BPF objects, which the guests load too.
    pub(crate) bpf_objects: Option<&'a Path>,
    pub(crate) stop: &'a AtomicBool,
    /// Held while a guest is prepared: the archive's tools lock their directories.
    pub(crate) preparing: Mutex<()>,
}

impl Bench<'_> {
    /// Runs a kernel's cells. An error is the host's; what fails in the guest is in the result.
    pub(crate) fn run(
        &self,
        kernel: &Kernel,
        programs: &Programs,
    ) -> Result<KernelResult, KernelsError> {
        let preparing = self
            .preparing
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let (job, arch) = (&kernel.job, kernel.job.arch);
        let packages = archive::kernel_packages(job, self.cache)?;
        let image = archive::kernel_image(job, self.cache)?;
        let qemu = self.emulator.qemu(arch);
        let has_driver = |driver: &Driver| self.emulator.has_device(arch, driver.model());
        let mut cells = cells(kernel, self.parts, &has_driver);
        if self.bpf_objects.is_some() {
            let variable = (BPF_OBJECTS_VARIABLE.to_owned(), BPF_OBJECTS.to_owned());
            for cell in &mut cells {
                cell.step.environment.push(variable.clone());
            }
        }
        let has_guests = self.has_guests(arch);
        let (files, orders) = self.orders(&packages, &cells)?;
        let devices: Vec<String> = drivers()
            .enumerate()
            .filter(|(_, driver)| {
                let name = Some(driver.name.to_owned());
                cells.iter().any(|cell| cell.step.driver == name)
            })
            .flat_map(|(number, driver)| driver.cards(number))
            .collect();
        let scratch = Scratch::new(self.cache, &kernel.name())?;
        let initramfs = scratch.0.join("initramfs");
        let content = self.initramfs(kernel, programs, files, &orders, &scratch.0)?;
        fs::write(&initramfs, content).map_err(KernelsError::file(&initramfs))?;
        let name = kernel.name();
        let guest = Guest {
            label: &name,
            arch,
            kernel: &image,
            initramfs: &initramfs,
            parameters: &format!("{PARAMETERS} {}", job.kernel.parameters.join(" ")),
            // Its time is that of its instructions, so that a busy host makes no test late, and waiting takes none.
            accelerator: Accelerator::InstructionCount,
            cpu_count: LAB_CPU_COUNT,
            turn: TURN,
            beside: None,
            memory_mib: MEMORY_MIB,
            machine_options: has_guests.then_some(self.machine_options),
            has_pci_express: true,
            devices: &devices,
            qemu: qemu.as_ref(),
            time_limit: Duration::from_secs(
                BOOT_SECONDS_MAX
                    + orders
                        .steps
                        .iter()
                        .map(|step| step.seconds_max)
                        .sum::<u64>(),
            ),
        };
        drop(preparing);
        let end = guest.run_to_the_end(None, self.stop)?;
        let directory = self.out.join(name.replace('/', "_"));
        fs::create_dir_all(&directory).map_err(KernelsError::file(&directory))?;
        let console = directory.join("console.txt");
        fs::write(&console, &end.console).map_err(KernelsError::file(&console))?;
        let answers: Vec<Answer> = find_reports(&end.console);
        let mut result = result(kernel, &cells, &answers, &directory)?;
        result.qemu = self.emulator.version(arch)?;
        if !answers.contains(&Answer::End) {
            result
                .notes
                .push(format!("{}\n{}", end.what, tail(&end.console)));
        }
        let missing = drivers().filter(|driver| !has_driver(driver));
        if self.parts.contains(&Part::Cards) && !kernel.too_old {
            result
                .notes
                .extend(missing.map(|driver| format!("SKIPPED: this QEMU has no {}", driver.name)));
        }
        Ok(result)
    }

    /// Whether guests on KVM are among the tests.
    fn has_guests(&self, arch: Arch) -> bool {
        arch == Arch::Arm64 && self.parts.contains(&Part::Guests)
    }

    /// The modules, with their places in the guest, and what to do there.
    fn orders(
        &self,
        packages: &[PathBuf],
        cells: &[Cell],
    ) -> Result<(Vec<PathBuf>, Orders), KernelsError> {
        let files = modules(packages, &MODULES, self.cache)?;
        let orders = Orders {
            modules: files.iter().map(|file| place(file)).collect(),
            steps: cells.iter().map(|cell| cell.step.clone()).collect(),
        };
        Ok((files, orders))
    }

    fn initramfs(
        &self,
        kernel: &Kernel,
        programs: &Programs,
        modules: Vec<PathBuf>,
        orders: &Orders,
        scratch: &Path,
    ) -> Result<Vec<u8>, KernelsError> {
        let failed = |error: io::Error| KernelsError::file(Path::new("initramfs"))(error);
        let mut initramfs = Initramfs::default();
        if self.with_tools {
            add_tools(&mut initramfs, kernel.job.arch, suite(kernel), self.cache)?;
        }
        programs.add_to(&mut initramfs, scratch).map_err(failed)?;
        if self.has_guests(kernel.job.arch) {
            add_guest_images(&mut initramfs, scratch).map_err(failed)?;
        }
        if let Some(objects) = self.bpf_objects {
            add_bpf_objects(&mut initramfs, objects).map_err(KernelsError::file(objects))?;
        }
        for module in modules {
            let content = fs::read(&module).map_err(KernelsError::file(&module))?;
            initramfs.add(place(&module), content);
        }
        let text = serde_json::to_vec(orders).expect("orders have only string keys");
        initramfs.add(orders::PATH, text);
        initramfs.archive().map_err(failed)
    }
}

/// The suite whose programs go with a kernel: backports are run with those of the release.
fn suite(kernel: &Kernel) -> Option<&str> {
    match &kernel.job.kernel.source {
        KernelSource::PackageName(name) => name
            .split_once('@')
            .map(|(_, suite)| suite.trim_end_matches("-backports")),
        _ => None,
    }
}

fn result(
    kernel: &Kernel,
    cells: &[Cell],
    answers: &[Answer],
    directory: &Path,
) -> Result<KernelResult, KernelsError> {
    let mut result = KernelResult::of(kernel);
    let mut outcomes = Vec::new();
    for answer in answers {
        match answer {
            Answer::Booted {
                release,
                version,
                missing,
            } => {
                result.release.clone_from(release);
                result.version.clone_from(version);
                result.notes.clone_from(missing);
            }
            Answer::Done(outcome) => outcomes.push(outcome),
            Answer::End => {}
        }
    }
    for (number, cell) in cells.iter().enumerate() {
        let outcome = outcomes.get(number).copied();
        if let Some(outcome) = outcome {
            let words = [cell.driver, cell.mode, cell.what].join(" ");
            let name = format!("{:02} {}.txt", number + 1, words.trim());
            let path = directory.join(name);
            fs::write(&path, &outcome.text).map_err(KernelsError::file(&path))?;
        }
        result.cells.push(judge(cell, outcome));
    }
    Ok(result)
}

/// Judgement of a cell. One that counts no tests is a test itself.
fn judge(cell: &Cell, outcome: Option<&Outcome>) -> CellResult {
    let mut judged = CellResult {
        driver: cell.driver.to_owned(),
        mode: cell.mode.to_owned(),
        what: cell.what.to_owned(),
        counts: Counts::default(),
        seconds: outcome.map_or(0.0, |outcome| outcome.seconds),
        skipped: Vec::new(),
        problem: None,
    };
    let Some(outcome) = outcome else {
        judged.problem = Some("the guest ended before".to_owned());
        return judged;
    };
    let last_line = || {
        outcome
            .text
            .trim()
            .lines()
            .last()
            .unwrap_or_default()
            .to_owned()
    };
    if cell.counts_tests {
        match libtest::count(&outcome.text) {
            Some((counts, reasons)) => (judged.counts, judged.skipped) = (counts, reasons),
            None => judged.problem = Some(last_line()),
        }
        let none = judged.counts == Counts::default();
        if none && judged.problem.is_none() {
            judged.problem = Some("no test ran".to_owned());
        }
    }
    match outcome.status {
        Some(0) if !cell.counts_tests => judged.counts.passed = 1,
        Some(0) => {}
        _ if judged.failed() => {}
        Some(status) => judged.problem = Some(format!("exit status {status}: {}", last_line())),
        None => judged.problem = Some(last_line()),
    }
    judged
}

/// A directory that is removed with what is in it.
struct Scratch(PathBuf);

impl Scratch {
    fn new(cache: &Path, kernel: &str) -> Result<Scratch, KernelsError> {
        let kernel = kernel.replace('/', "_");
        let path = cache.join(format!("kernel-tests-{}-{kernel}", std::process::id()));
        fs::create_dir_all(&path).map_err(KernelsError::file(&path))?;
        Ok(Scratch(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0); // nothing needs it any more
    }
}

/// Whether this error means that the archive cannot be reached or has no such kernel: a reason to skip.
pub(crate) fn is_reason_to_skip(error: &KernelsError) -> bool {
    matches!(
        error,
        KernelsError::NoPackage { .. }
            | KernelsError::ToolMissing { .. }
            | KernelsError::ToolFailed { .. }
    )
}

/// Architectures of the kernels, each once.
pub(crate) fn archs(kernels: &[Kernel]) -> Vec<Arch> {
    let mut archs = Vec::new();
    for kernel in kernels {
        if !archs.contains(&kernel.job.arch) {
            archs.push(kernel.job.arch);
        }
    }
    archs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels;

    fn outcome(status: Option<i32>, text: &str) -> Outcome {
        Outcome {
            status,
            seconds: 1.0,
            text: text.to_owned(),
        }
    }

    #[test]
    fn only_tests_that_ran_pass() {
        let kernel = kernels::all().into_iter().find(|one| !one.too_old).unwrap();
        let all = cells(&kernel, &Part::ALL, &|_| true);
        let (load, demo) = (all.first().unwrap(), all.last().unwrap());
        let passed = "test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n";
        assert!(!judge(load, Some(&outcome(Some(0), passed))).failed());
        for wrong in [
            None,
            Some(outcome(Some(0), &passed.replace("1 passed", "0 passed"))),
            Some(outcome(None, "running 1 test\nkilled after 9 s\n")),
            Some(outcome(Some(101), passed)),
        ] {
            assert!(judge(load, wrong.as_ref()).failed(), "{wrong:?}");
        }
        assert_eq!(judge(demo, Some(&outcome(Some(0), ""))).counts.passed, 1);
        assert!(judge(demo, Some(&outcome(Some(1), "taut: no\n"))).failed());
    }
}
