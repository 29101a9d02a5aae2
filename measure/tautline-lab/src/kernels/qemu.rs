//! Runs one guest under QEMU and brings its report back.
//!
//! In virtual time the guest's clock counts instructions, one nanosecond each (`-icount shift=0`), and jumps ahead
//! when the guest is idle (`sleep=off`). One CPU, no randomness (`-seed`, no RDRAND), a clock that starts at a fixed
//! date, no devices that work on the host's time: two runs are the same to the instruction, whatever the host does.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tautline_state::child::{KilledOnDrop, end_with_thread};

use super::guest::{GuestReport, find_report};
use super::{Arch, KernelsError, beside};
use crate::sys;

/// Lines of the console that an error quotes: a kernel's panic with its backtrace has about as many.
const CONSOLE_TAIL_LINES: usize = 32;

/// Console kept of one guest. A guest that prints without end must not fill the disk.
const CONSOLE_BYTES_MAX: u64 = 32 << 20;

/// Kept of what QEMU itself says.
const COMPLAINT_BYTES_MAX: u64 = 64 << 10;

/// Where a guest's time comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accelerator {
    /// Instructions are counted: the same result twice.
    InstructionCount,
    /// Hardware virtualisation on the host's clock.
    Kvm,
}

/// A QEMU that is not the system's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Qemu {
    /// The program.
    pub program: PathBuf,
    /// Directory of its firmware.
    pub firmware: PathBuf,
}

/// CPUs of a guest that measures, if not said otherwise.
pub const LAB_CPU_COUNT: u32 = 1;

/// QEMU that shares one virtual time among several CPUs; with an older one all but the first starve.
const SHARED_TIME_SINCE: (u32, u32) = (8, 1);

/// Longest turn of one of several CPUs, if not said otherwise. Shorter: QEMU spends its time on turns. Longer: what
/// happens on one CPU waits for the turns of the others.
pub const TURN: Duration = Duration::from_micros(10);

/// A device without a use but its timer, which bounds the turn of each of several CPUs. Without it, one CPU waits for
/// milliseconds while another one computes.
fn short_turns(turn: Duration) -> [String; 4] {
    let interval = turn.as_micros();
    let filter = format!("filter-buffer,id=turn,netdev=turns,interval={interval}");
    let words = ["-netdev", "hubport,id=turns,hubid=0", "-object", &filter];
    words.map(str::to_owned)
}

/// Memory of a guest that measures, in MiB. Lower: the loads' files and memory blocks do not fit. Higher: fewer guests
/// at once.
pub const LAB_MEMORY_MIB: u32 = 512;

/// Memory that the kernel itself needs, in MiB. Lower: a large file is cut off when it is unpacked.
const MEMORY_BESIDE_FILES_MIB: u64 = 96;

/// Memory of a guest that measures, in MiB, by its Linux's CPUs and the bytes of its initramfs: the files that the
/// kernel unpacks may take half of the memory that the archive leaves. Programs with debug information need more than
/// [`LAB_MEMORY_MIB`].
pub(super) fn lab_memory_mib(linux_cpus: u32, initramfs_bytes: usize) -> u32 {
    let archive_mib = (initramfs_bytes as u64).div_ceil(1 << 20);
    let least = 3 * archive_mib + MEMORY_BESIDE_FILES_MIB;
    let least = u32::try_from(least).unwrap_or(u32::MAX);
    (LAB_MEMORY_MIB * linux_cpus).max(least)
}

/// One guest to run.
#[derive(Clone, Debug)]
pub struct Guest<'a> {
    /// Name in errors.
    pub label: &'a str,
    /// Its architecture.
    pub arch: Arch,
    /// Its kernel.
    pub kernel: &'a Path,
    /// Its initramfs.
    pub initramfs: &'a Path,
    /// Kernel parameters beyond those that the laboratory needs.
    pub parameters: &'a str,
    /// Its time.
    pub accelerator: Accelerator,
    /// CPUs.
    pub cpu_count: u32,
    /// Longest turn of one of several CPUs in virtual time, in whole microseconds.
    pub turn: Duration,
    /// Memory.
    pub memory_mib: u32,
    /// A program on the last CPU, which Linux does not have; it has memory of its own beside `memory_mib`.
    pub beside: Option<&'a Path>,
    /// Options of QEMU's machine.
    pub machine_options: Option<&'a str>,
    /// Whether it has PCI Express, without which some network cards do not work.
    pub has_pci_express: bool,
    /// Arguments of QEMU for further devices.
    pub devices: &'a [String],
    /// QEMU to run; if none, the system's.
    pub qemu: Option<&'a Qemu>,
    /// Host time after which it is given up.
    pub time_limit: Duration,
}

impl Guest<'_> {
    /// The arguments of QEMU, without its files: what, with their content, decides the result.
    pub fn arguments(&self) -> Vec<String> {
        let mut arguments: Vec<&str> = match self.accelerator {
            Accelerator::InstructionCount => {
                vec![
                    "-accel",
                    "tcg,thread=single",
                    "-icount",
                    "shift=0,sleep=off",
                    "-seed",
                    "1",
                ]
            }
            Accelerator::Kvm => vec!["-accel", "kvm"],
        };
        let (mut machine, cpu) = self.arch.machine_and_cpu();
        if self.has_pci_express && self.arch == Arch::X86_64 {
            machine = "q35";
        }
        let cpu = if self.accelerator == Accelerator::Kvm {
            "host"
        } else {
            cpu
        };
        let (mut machine, mut cpu) = (machine, cpu);
        let (mut memory_mib, mut of_linux) = (self.memory_mib, String::new());
        if self.beside.is_some() {
            // Interrupts as the program expects them; a clock of nanoseconds, as the counted instructions are.
            (machine, cpu) = ("virt,gic-version=2", "cortex-a72,cntfrq=1000000000");
            of_linux = beside::parameters(self.cpu_count - 1, self.memory_mib) + " ";
            memory_mib = beside::machine_mib();
        }
        let machine = match self.machine_options {
            Some(options) => format!("{machine},{options}"),
            None => machine.to_owned(),
        };
        let (cpus, memory) = (self.cpu_count.to_string(), memory_mib.to_string());
        arguments.extend([
            "-machine", &machine, "-cpu", cpu, "-smp", &cpus, "-m", &memory,
        ]);
        arguments.extend(["-rtc", "base=2026-01-01T00:00:00,clock=vm"]);
        arguments.extend([
            "-nodefaults",
            "-no-user-config",
            "-display",
            "none",
            "-monitor",
            "none",
        ]);
        arguments.push("-no-reboot");
        let mut arguments: Vec<String> = arguments.into_iter().map(str::to_owned).collect();
        if self.accelerator == Accelerator::InstructionCount && self.cpu_count > 1 {
            arguments.extend(short_turns(self.turn));
        }
        arguments.extend_from_slice(self.devices);
        arguments.push("-append".to_owned());
        arguments.push(format!(
            "console={} panic=-1 nokaslr norandmaps mitigations=auto quiet loglevel=4 {of_linux}{}",
            self.arch.console(),
            self.parameters
        ));
        if self.beside.is_some() {
            arguments.extend(["-device".to_owned(), beside::mailbox_loader()]);
        }
        arguments
    }

    /// Starts it, on one CPU of the host, and waits for its report. QEMU's two threads then take turns, which keeps one
    /// from looking at the other's clock in mid-step.
    pub fn run(
        &self,
        host_cpu: Option<u32>,
        stop: &AtomicBool,
    ) -> Result<GuestReport, KernelsError> {
        let end = self.run_to_the_end(host_cpu, stop)?;
        if let Some(report) = find_report(&end.console) {
            return Ok(report);
        }
        let label = self.label.to_owned();
        if self.accelerator == Accelerator::Kvm && end.console.trim().is_empty() {
            let nested = match tautline_machine::Machine::read().is_virtual.known() {
                Some(true) => ", which is a virtual machine itself",
                _ => "",
            };
            return Err(KernelsError::NoKvm {
                label,
                nested,
                what: end.what,
            });
        }
        Err(KernelsError::NoReport {
            label,
            what: end.what,
            console: tail(&end.console),
        })
    }

    /// Starts it, and returns its console when it has ended or was given up.
    pub fn run_to_the_end(
        &self,
        host_cpu: Option<u32>,
        stop: &AtomicBool,
    ) -> Result<GuestEnd, KernelsError> {
        let program = self.arch.qemu();
        let (path, firmware) = match self.qemu {
            Some(qemu) => (qemu.program.clone(), Some(&qemu.firmware)),
            None => (find_qemu(self.arch)?, None),
        };
        let failed = |source| KernelsError::Tool {
            tool: program.to_owned(),
            source,
        };
        // A file, because a pipe that its reader empties too slowly would be felt in the guest.
        let console = ConsoleFile(self.initramfs.with_extension("console"));
        let mut command = Command::new(path);
        if let Some(firmware) = firmware {
            command.arg("-L").arg(firmware);
        }
        command
            .args(self.arguments())
            .arg("-kernel")
            .arg(self.kernel)
            .arg("-initrd")
            .arg(self.initramfs)
            .arg("-serial")
            .arg(format!("file:{}", console.0.display()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        if let Some(program) = self.beside {
            let file = format!("loader,file={}", program.display());
            command.arg("-device").arg(file);
        }
        end_with_thread(&mut command, rustix::process::Signal::KILL);
        if let Some(cpu) = host_cpu {
            sys::pin_command(&mut command, cpu);
        }
        // Killed when the wait for it is given up.
        let mut child = KilledOnDrop(command.spawn().map_err(failed)?);
        let complaints = read_all(child.0.stderr.take());
        let limit = self.wait(&mut child, &console, stop)?;
        let complaints = complaints.join().unwrap_or_default();
        let console = console.read();
        Ok(GuestEnd {
            what: what_happened(&console, limit, &complaints),
            console,
        })
    }

    /// Waits for the end; says which limit was reached, if the guest had to be killed.
    fn wait(
        &self,
        child: &mut KilledOnDrop,
        console: &ConsoleFile,
        stop: &AtomicBool,
    ) -> Result<Option<Limit>, KernelsError> {
        let started = Instant::now();
        loop {
            let ended = child.0.try_wait().map_err(|source| KernelsError::Tool {
                tool: self.arch.qemu().to_owned(),
                source,
            })?;
            if ended.is_some() {
                return Ok(None);
            }
            if stop.load(Ordering::Relaxed) {
                return Err(KernelsError::Interrupted);
            }
            let limit = if started.elapsed() > self.time_limit {
                Limit::Time(self.time_limit)
            } else if console.length() > CONSOLE_BYTES_MAX {
                Limit::Console
            } else {
                std::thread::sleep(Duration::from_millis(50));
                continue;
            };
            let _ = child.0.kill(); // it may have ended in this moment
            let _ = child.0.wait();
            return Ok(Some(limit));
        }
    }
}

/// End of a guest.
#[derive(Clone, Debug)]
pub struct GuestEnd {
    /// All that it printed.
    pub console: String,
    /// Cause of an end without a report, for an error.
    pub what: String,
}

/// Why a guest was killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Limit {
    Time(Duration),
    Console,
}

/// The guest's console. Dropped, it is removed.
struct ConsoleFile(PathBuf);

impl ConsoleFile {
    fn length(&self) -> u64 {
        fs::metadata(&self.0).map_or(0, |found| found.len())
    }

    fn read(&self) -> String {
        fs::read(&self.0).map_or_else(
            |_| String::new(),
            |bytes| String::from_utf8_lossy(&bytes).into_owned(),
        )
    }
}

impl Drop for ConsoleFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0); // absent if QEMU never started
    }
}

fn read_all(stream: Option<impl Read + Send + 'static>) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut stream) = stream {
            // Output before an error or the limit is still worth quoting.
            let _ = stream
                .by_ref()
                .take(COMPLAINT_BYTES_MAX)
                .read_to_end(&mut bytes);
            let _ = io::copy(&mut stream, &mut io::sink()); // a full pipe would stop QEMU
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

fn what_happened(console: &str, limit: Option<Limit>, complaints: &str) -> String {
    let said = console
        .lines()
        .rev()
        .find_map(|line| line.trim().strip_prefix("taut lab guest: "));
    let panic = console.lines().find(|line| line.contains("Kernel panic"));
    if let Some(said) = said {
        return format!("the guest gave up: {said}");
    }
    if let Some(panic) = panic {
        return format!("its kernel panicked: {}", panic.trim());
    }
    match limit {
        Some(Limit::Time(limit)) if console.trim().is_empty() => {
            format!(
                "it printed nothing within {} s: is this a kernel for the architecture? (on a busy host raise --timeout)",
                limit.as_secs()
            )
        }
        Some(Limit::Time(limit)) => {
            format!(
                "it did not finish within {} s (raise --timeout, or shorten the run)",
                limit.as_secs()
            )
        }
        Some(Limit::Console) => format!("it printed more than {} MiB", CONSOLE_BYTES_MAX >> 20),
        None if !complaints.trim().is_empty() => {
            format!(
                "QEMU said: {}",
                complaints.trim().lines().last().unwrap_or_default()
            )
        }
        None => "it ended without a report".to_owned(),
    }
}

/// The last lines of a console, without frames, and without the calls of a backtrace that the kernel itself marks as
/// doubtful: their number varies from one panic to the next, and they would push out what caused it.
pub fn tail(console: &str) -> String {
    let lines: Vec<&str> = console
        .lines()
        .map(str::trim_end)
        .filter(|line| !line.is_empty() && !line.starts_with("@taut-lab | "))
        .filter(|line| !line.contains("]  ? "))
        .collect();
    let last = &lines[lines.len().saturating_sub(CONSOLE_TAIL_LINES)..];
    if last.is_empty() {
        "(the console stayed empty)".to_owned()
    } else {
        last.join("\n")
    }
}

/// The first line of `qemu-system-… --version`; part of what a cached result depends on.
pub fn version(arch: Arch) -> Result<String, KernelsError> {
    let output = Command::new(find_qemu(arch)?)
        .arg("--version")
        .output()
        .map_err(|source| KernelsError::Tool {
            tool: arch.qemu().to_owned(),
            source,
        })?;
    Ok(String::from_utf8_lossy(&output.stdout)
        .lines()
        .next()
        .unwrap_or_default()
        .to_owned())
}

/// Whether a QEMU of this version, as it names itself, shares one virtual time among several CPUs.
pub fn shares_time(version: &str) -> bool {
    let number = version.split_whitespace().find(|word| {
        let digit = |letter: char| letter.is_ascii_digit();
        word.starts_with(digit) && word.contains('.')
    });
    let mut parts = number.unwrap_or_default().split('.');
    let mut part = || parts.next().and_then(|part| part.parse::<u32>().ok());
    part()
        .zip(part())
        .is_some_and(|found| found >= SHARED_TIME_SINCE)
}

/// The system's QEMU.
fn find_qemu(arch: Arch) -> Result<PathBuf, KernelsError> {
    let tool = arch.qemu();
    crate::load::find_program(tool).ok_or(KernelsError::ToolMissing {
        tool,
        package: arch.qemu_package(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_that_share_time_are_known() {
        for (version, shares) in [
            ("QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7)", false),
            ("QEMU emulator version 8.0.5", false),
            ("QEMU emulator version 8.1.0", true),
            (
                "QEMU emulator version 10.0.2 (Debian 1:10.0.2+ds-2~bpo12+1)",
                true,
            ),
            ("", false),
        ] {
            assert_eq!(shares_time(version), shares, "{version}");
        }
    }

    #[test]
    fn memory_holds_archive_and_unpacked_files() {
        let mib = 1 << 20;
        assert_eq!(lab_memory_mib(1, 30 * mib), LAB_MEMORY_MIB);
        assert_eq!(lab_memory_mib(2, 30 * mib), 2 * LAB_MEMORY_MIB);
        let archive = 300 * mib + 1;
        let unpacked_max = (lab_memory_mib(1, archive) - 301) / 2;
        assert!(unpacked_max >= 301, "{unpacked_max}");
    }

    #[test]
    fn an_error_names_the_cause_and_quotes_the_end_of_the_console() {
        let console = "Booting\r\n\r\n[ 1.0] Kernel panic - not syncing: No working init found.\r\n[ 1.1] CPU: 0\r\n";
        assert!(what_happened(console, None, "").contains("No working init found"));
        assert!(tail(console).ends_with("CPU: 0"));
        let doubtful = "[ 1.2]  ? do_dup2+0x86/0xd0\n".repeat(50);
        let traced = tail(&format!("[ 1.1]  sysrq_handle_crash+0x15/0x20\n{doubtful}"));
        assert_eq!(traced, "[ 1.1]  sysrq_handle_crash+0x15/0x20");
        assert!(
            what_happened("", Some(Limit::Time(Duration::from_secs(9))), "")
                .contains("nothing within 9 s")
        );
        assert!(
            what_happened("hello", Some(Limit::Time(Duration::from_secs(9))), "")
                .contains("--timeout")
        );
        assert!(
            what_happened("", None, "qemu: could not load kernel\n")
                .contains("could not load kernel")
        );
        assert!(what_happened("taut lab guest: no /tmp\n", None, "x").contains("no /tmp"));
        let long: String = (0..100).map(|line| format!("line {line}\n")).collect();
        assert_eq!(tail(&long).lines().count(), CONSOLE_TAIL_LINES);
        assert!(tail(&long).ends_with("line 99"));
    }
}
