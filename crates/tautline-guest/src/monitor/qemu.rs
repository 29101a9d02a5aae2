//! A virtual machine under QEMU, whose processor is emulated.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::process::Process;
use super::{End, Machine, Recipe, START_MAX, ivshmem};
use crate::config::GuestConfig;
use crate::doorbell::Doorbells;
use crate::error::GuestError;
use crate::window::Window;

/// The program.
const PROGRAM: &str = "qemu-system-aarch64";

/// Longest line that QEMU says, and most lines of one look. Higher: one that a guest has taken over, and that talks
/// without end, takes more memory and time.
const LINE_BYTES_MAX: u64 = 64 << 10;
const LINES_MAX: usize = 64;

/// A machine under QEMU.
#[derive(Debug)]
pub(super) struct Qemu {
    process: Process,
    monitor: BufReader<UnixStream>,
    /// Part of a line that has come so far.
    line: String,
    /// Reason in its last output.
    end: Option<End>,
    name: String,
    limits: Vec<String>,
    _doorbell: OwnedFd,
}

impl Qemu {
    pub(super) fn start(
        recipe: &Recipe<'_>,
        window: &Window,
        doorbells: &Doorbells,
        limit: Option<String>,
    ) -> Result<Qemu, GuestError> {
        let (config, image) = (recipe.config, recipe.image);
        let failed = GuestError::system("starting QEMU");
        let (doorbell, devices) = ivshmem::serve(doorbells, window.file()).map_err(&failed)?;
        let (monitor, qemus) = UnixStream::pair().map_err(&failed)?;
        let mut command = Command::new(PROGRAM);
        command
            .args(["-machine", "virt,gic-version=2,highmem=off"])
            .args(["-accel", "tcg", "-cpu", "cortex-a57", "-smp", "1", "-m"])
            .arg(format!("{}M", config.ram_bytes >> 20))
            .args(["-nodefaults", "-no-user-config", "-display", "none"])
            .args(["-no-reboot", "-S"])
            .arg("-chardev")
            .arg(format!("socket,id=monitor,fd={}", qemus.as_raw_fd()))
            .args(["-mon", "chardev=monitor,mode=control"])
            .args(["-chardev", "stdio,id=console,signal=off"])
            .args(["-serial", "chardev:console"])
            .arg("-chardev")
            .arg(format!("socket,id=window,fd={}", devices.as_raw_fd()))
            .args(["-device", "ivshmem-doorbell,chardev=window,vectors=1"])
            .args(["-device", "pvpanic-pci"])
            .arg("-kernel")
            .arg(format!("/proc/self/fd/{}", image.file.as_raw_fd()))
            .stdin(Stdio::null())
            .stdout(match recipe.console {
                Some(console) => console.try_clone().map_err(&failed)?.into(),
                None => Stdio::null(),
            });
        let kept = [qemus.as_fd(), devices.as_fd(), image.file.as_fd()];
        let process = Process::start(&mut command, &kept).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => GuestError::NoQemu { program: PROGRAM },
            _ => failed(error),
        })?;
        let mut machine = Qemu {
            process,
            monitor: BufReader::new(monitor),
            line: String::new(),
            end: None,
            name: String::new(),
            limits: Vec::from_iter(limit),
            _doorbell: doorbell,
        };
        drop(qemus);
        match machine.prepare(config) {
            Ok(()) => Ok(machine),
            Err(why) => {
                machine.process.kill();
                let said = machine.process.complaint();
                let why = if said.is_empty() { why } else { said };
                Err(GuestError::NotStarted {
                    monitor: "QEMU",
                    why,
                })
            }
        }
    }

    /// Greets QEMU, places its threads, and lets the guest run.
    fn prepare(&mut self, config: &GuestConfig) -> Result<(), String> {
        let stream = self.monitor.get_ref();
        let limited = stream
            .set_read_timeout(Some(START_MAX))
            .and_then(|()| stream.set_write_timeout(Some(START_MAX)));
        limited.map_err(|error| error.to_string())?;
        let greeting = self.hear()?;
        let version = &greeting["QMP"]["version"]["qemu"];
        self.name = format!(
            "QEMU {}.{}, emulated processor",
            version["major"], version["minor"]
        );
        self.ask("qmp_capabilities")?;
        if let Some(partition) = &config.partition {
            let cpus = self.ask("query-cpus-fast")?;
            let threads: Vec<u32> = cpus
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|cpu| cpu["thread-id"].as_u64()?.try_into().ok())
                .collect();
            let placed = self.process.place(partition, &threads);
            self.limits
                .extend(placed.map_err(|error| error.to_string())?);
        }
        self.ask("cont")?;
        let stream = self.monitor.get_ref();
        stream
            .set_nonblocking(true)
            .map_err(|error| error.to_string())
    }

    /// Asks QEMU for something; returns its answer.
    fn ask(&mut self, what: &str) -> Result<Value, String> {
        let mut line = json!({ "execute": what }).to_string();
        line.push('\n');
        let mut stream = self.monitor.get_ref();
        stream
            .write_all(line.as_bytes())
            .map_err(|error| format!("it does not take orders: {error}"))?;
        loop {
            let answer = self.hear()?;
            if let Some(error) = answer.get("error") {
                return Err(format!("{what}: {}", error["desc"]));
            }
            if let Some(value) = answer.get("return") {
                return Ok(value.clone());
            }
            self.note(&answer);
        }
    }

    fn hear(&mut self) -> Result<Value, String> {
        let mut line = String::new();
        let mut monitor = (&mut self.monitor).take(LINE_BYTES_MAX);
        match monitor.read_line(&mut line) {
            Ok(0) => Err("it ended at once".to_owned()),
            Ok(_) => serde_json::from_str(&line).map_err(|error| error.to_string()),
            Err(error) => Err(format!("it said nothing within {START_MAX:?}: {error}")),
        }
    }

    /// An event: the last ones say how the guest ended.
    fn note(&mut self, event: &Value) {
        let reason = event["data"]["reason"].as_str().unwrap_or_default();
        if self.end == Some(End::Faulted(None)) {
            return; // whatever the guest did afterwards
        }
        match (event["event"].as_str(), reason) {
            (Some("SHUTDOWN"), "guest-shutdown") => self.end = Some(End::SwitchedOff),
            (Some("SHUTDOWN"), "guest-reset") => self.end = Some(End::Reset),
            (Some("SHUTDOWN"), "guest-panic") | (Some("GUEST_PANICKED"), _) => {
                self.end = Some(End::Faulted(None));
            }
            _ => {}
        }
    }

    /// Takes what QEMU has said.
    fn listen(&mut self) {
        for _ in 0..LINES_MAX {
            // A line that has come in part stays there until the rest has come, too.
            let room = LINE_BYTES_MAX.saturating_sub(self.line.len() as u64);
            let mut monitor = (&mut self.monitor).take(room);
            match monitor.read_line(&mut self.line) {
                Ok(_) if self.line.len() as u64 >= LINE_BYTES_MAX => self.line.clear(),
                Ok(1..) if self.line.ends_with('\n') => {
                    let event = serde_json::from_str(&self.line);
                    self.line.clear();
                    if let Ok(event) = event {
                        self.note(&event);
                    }
                }
                _ => return,
            }
        }
    }
}

impl Machine for Qemu {
    fn name(&self) -> &str {
        &self.name
    }

    fn limits(&self) -> &[String] {
        &self.limits
    }

    fn ended(&mut self) -> Option<End> {
        self.listen();
        let status = self.process.ended()?;
        self.listen();
        let end = self.end.take();
        Some(end.unwrap_or_else(|| End::Failed(self.process.end_text("QEMU", status))))
    }

    /// A busy QEMU answers no other request.
    fn kill(&mut self) {
        self.process.kill();
    }
}
