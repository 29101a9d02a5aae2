//! A virtual machine under QEMU, whose processor is emulated.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Value, json};

use crate::config::GuestConfig;
use crate::doorbell::Doorbells;
use crate::error::GuestError;
use crate::image::{Architecture, Image};
use crate::sys;
use crate::window::Window;

/// Time for QEMU to say that it is there. Lower: a busy machine's guests are refused. Higher: one that hangs is
/// noticed later.
const START_MAX: Duration = Duration::from_secs(20);
/// Kept of what QEMU complains of.
const COMPLAINT_BYTES_MAX: u64 = 16 << 10;
/// Priority of the guest's processor under SCHED_FIFO, in a partition. QEMU's own thread is one above, so that a guest
/// that never halts cannot keep it from working.
const PRIORITY: i32 = 40;

/// End of a virtual machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The guest switched itself off.
    SwitchedOff,
    /// The guest asked for a reset.
    Reset,
    /// The guest's processor stopped for a fault.
    Panicked,
    /// QEMU was killed, or ended with an error.
    Failed(String),
}

impl End {
    pub(crate) fn text(&self) -> String {
        match self {
            End::SwitchedOff => "it switched itself off".to_owned(),
            End::Reset => "it asked for a reset".to_owned(),
            End::Panicked => "its processor stopped for a fault".to_owned(),
            End::Failed(why) => why.clone(),
        }
    }
}

/// A virtual machine that runs. Dropped, it is killed.
#[derive(Debug)]
pub(crate) struct Machine {
    child: Child,
    monitor: BufReader<UnixStream>,
    /// Part of a line that has come so far.
    line: String,
    /// As its last words say.
    end: Option<End>,
    complaints: Option<JoinHandle<String>>,
    /// QEMU, with its release and how it executes instructions.
    pub(crate) name: String,
    /// Settings that could not be had.
    pub(crate) limits: Vec<String>,
    _doorbell: OwnedFd,
}

fn program(architecture: Architecture) -> &'static str {
    match architecture {
        Architecture::Aarch64 => "qemu-system-aarch64",
    }
}

impl Machine {
    /// Starts a guest. Its console goes to `console`.
    pub(crate) fn start(
        config: &GuestConfig,
        image: &Image,
        window: &Window,
        doorbells: &Doorbells,
        console: Option<&OwnedFd>,
    ) -> Result<Machine, GuestError> {
        let failed = GuestError::system("starting QEMU");
        let (doorbell, devices) = doorbells.serve(window.file()).map_err(&failed)?;
        let (monitor, qemus) = UnixStream::pair().map_err(&failed)?;
        let program = program(image.architecture);
        let mut command = Command::new(program);
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
            .stdout(match console {
                Some(console) => console.try_clone().map_err(&failed)?.into(),
                None => Stdio::null(),
            })
            .stderr(Stdio::piped());
        sys::tie(
            &mut command,
            &[qemus.as_fd(), devices.as_fd(), image.file.as_fd()],
        );
        let mut child = command.spawn().map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => GuestError::NoQemu { program },
            _ => failed(error),
        })?;
        let stderr = child.stderr.take();
        let mut machine = Machine {
            child,
            monitor: BufReader::new(monitor),
            line: String::new(),
            end: None,
            complaints: Some(std::thread::spawn(move || read_all(stderr))),
            name: String::new(),
            limits: Vec::new(),
            _doorbell: doorbell,
        };
        drop(qemus);
        match machine.prepare(config) {
            Ok(()) => Ok(machine),
            Err(why) => {
                let _ = machine.child.kill(); // it may have ended by itself
                let said = machine.complaint();
                let why = if said.is_empty() { why } else { said };
                Err(GuestError::Qemu(why))
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
            self.place(partition, &threads)
                .map_err(|error| error.to_string())?;
        }
        self.ask("cont")?;
        let stream = self.monitor.get_ref();
        stream
            .set_nonblocking(true)
            .map_err(|error| error.to_string())
    }

    /// Moves QEMU into a partition, with its processor's thread below its own.
    fn place(&mut self, partition: &str, processors: &[u32]) -> Result<(), GuestError> {
        let process = self.child.id();
        let found = tautline_partition::find(partition)?;
        found.enter(process)?;
        let threads = tautline_state::process::threads(process).unwrap_or_default();
        for thread in threads {
            let number = thread.cast_signed();
            let priority = if processors.contains(&thread) {
                PRIORITY
            } else {
                PRIORITY + 1
            };
            const SCHED_FIFO: i32 = 1;
            let set = tautline_state::policy::set_policy(number, SCHED_FIFO, priority);
            if let Err(error) = set {
                let text = format!(
                    "the guest runs without a real-time priority ({error}): raise the limit (ulimit -r 50), or grant CAP_SYS_NICE"
                );
                if !self.limits.contains(&text) {
                    self.limits.push(text);
                }
            }
        }
        Ok(())
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
        match self.monitor.read_line(&mut line) {
            Ok(0) => Err("it ended at once".to_owned()),
            Ok(_) => serde_json::from_str(&line).map_err(|error| error.to_string()),
            Err(error) => Err(format!("it said nothing within {START_MAX:?}: {error}")),
        }
    }

    /// An event: the last ones say how the guest ended.
    fn note(&mut self, event: &Value) {
        let reason = event["data"]["reason"].as_str().unwrap_or_default();
        if self.end == Some(End::Panicked) {
            return; // whatever the guest did afterwards
        }
        match (event["event"].as_str(), reason) {
            (Some("SHUTDOWN"), "guest-shutdown") => self.end = Some(End::SwitchedOff),
            (Some("SHUTDOWN"), "guest-reset") => self.end = Some(End::Reset),
            (Some("SHUTDOWN"), "guest-panic") | (Some("GUEST_PANICKED"), _) => {
                self.end = Some(End::Panicked);
            }
            _ => {}
        }
    }

    /// Whether the machine has ended, and how. Never waits.
    pub(crate) fn ended(&mut self) -> Option<End> {
        self.listen();
        let status = self.child.try_wait().ok()??;
        self.listen();
        let end = self.end.take().unwrap_or_else(|| {
            let said = self.complaint();
            let how = match status.signal() {
                Some(signal) => format!("QEMU was killed by signal {signal}"),
                None => format!("QEMU ended with status {}", status.code().unwrap_or(-1)),
            };
            End::Failed(if said.is_empty() {
                how
            } else {
                format!("{how}: {said}")
            })
        });
        Some(end)
    }

    /// Takes what QEMU has said.
    fn listen(&mut self) {
        loop {
            // A line that has come in part stays there until the rest has come, too.
            match self.monitor.read_line(&mut self.line) {
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

    /// Words of QEMU on its standard error. After its end.
    fn complaint(&mut self) -> String {
        let _ = self.child.wait(); // it has ended, or was killed
        let said = self.complaints.take().map(JoinHandle::join);
        let said = said.and_then(Result::ok).unwrap_or_default();
        said.trim().lines().last().unwrap_or_default().to_owned()
    }

    /// Ends it at once. A busy QEMU answers no other request.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill(); // it may have ended by itself
        let _ = self.child.wait();
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.kill();
    }
}

fn read_all(stream: Option<impl Read>) -> String {
    let mut bytes = Vec::new();
    if let Some(mut stream) = stream {
        // Words before an error are still worth telling.
        let _ = stream
            .by_ref()
            .take(COMPLAINT_BYTES_MAX)
            .read_to_end(&mut bytes);
        let _ = std::io::copy(&mut stream, &mut std::io::sink()); // a full pipe would stop QEMU
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
