//! Guests of tests: their programs, built once, and the processes that run them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};
use tautline_state::child::KilledOnDrop;

use serde_json::Value;
use tautline::config::BusConfig;
use tautline::port::QueuingOptions;
use tautline::{Node, NodeConfig, PortNumber, Priority, QueuingPort, Wait, bus_neighbour};
use tautline_guest::kvm;

use crate::common::{Scratch, both, build_directory, built_rust_guest, skipped_without_tools};

/// Far longer than any step takes; only ends a test that would hang.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) const NOBODY: u32 = 65_534;

/// Monitor of a test's guests, and so their processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Monitor {
    Qemu,
    Kvm,
}

impl Monitor {
    /// File of a program for the monitor's processor.
    pub(crate) fn image(self, program: &str) -> String {
        match self.architecture() {
            "x86_64" => format!("{program}-x86_64.elf"),
            _ => format!("{program}.elf"),
        }
    }

    /// Name of its processor: our own monitor has the host's.
    pub(crate) fn architecture(self) -> &'static str {
        match self {
            Monitor::Qemu => "aarch64",
            Monitor::Kvm => std::env::consts::ARCH,
        }
    }

    /// The monitor's process in the words of an end.
    pub(crate) fn process(self) -> &'static str {
        match self {
            Monitor::Qemu => "QEMU",
            Monitor::Kvm => "its monitor",
        }
    }

    /// Says so where there is no such monitor.
    fn is_skipped(self) -> bool {
        match self {
            Monitor::Qemu if cfg!(target_arch = "aarch64") && kvm::access::open().is_ok() => {
                println!("SKIPPED: KVM takes QEMU's place on this machine");
                true
            }
            Monitor::Qemu => skipped_without_tools(&[("qemu-system-aarch64", "qemu-system-arm")]),
            Monitor::Kvm => !may_use_kvm(),
        }
    }
}

/// Whether there is KVM; otherwise a note says why not.
fn may_use_kvm() -> bool {
    let opened = kvm::access::open();
    opened
        .inspect_err(|error| println!("SKIPPED: {error}"))
        .is_ok()
}

/// Directory of programs that were built elsewhere: `TAUTLINE_GUEST_IMAGES`, for a machine without compilers
/// (docs/reference/testing.md).
fn given_images() -> Option<PathBuf> {
    std::env::var_os("TAUTLINE_GUEST_IMAGES").map(PathBuf::from)
}

/// Whether this program was given; a note says so where it was not.
fn is_given(images: &Path, file: &str) -> bool {
    let found = images.join(file).exists();
    if !found {
        println!("SKIPPED: {} has no {file}", images.display());
    }
    found
}

/// Directory with the programs of guests, built once; nothing, with a note, where the monitor or a tool is missing.
pub(crate) fn images(monitor: Monitor) -> Option<&'static Path> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    if monitor.is_skipped() {
        return None;
    }
    let built = BUILT.get_or_init(|| {
        if let Some(images) = given_images() {
            return Some(images);
        }
        if skipped_without_tools(&[("clang", "clang"), ("ld.lld", "lld")]) {
            return None;
        }
        let build = build_directory("guest-images");
        let kit = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bindings/guest");
        let output = Command::new("make")
            .arg("-C")
            .arg(&kit)
            .arg(format!("BUILD={}", build.display()))
            .arg(format!(
                "PROGRAM={}",
                kit.join("tests/misbehave.c").display()
            ))
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", both(&output));
        Some(build)
    });
    built.as_deref()
}

/// Builds a program in Rust, in this folder of the sources, for a monitor, beside the others; `false`, with a note,
/// where something is missing.
pub(crate) fn has_rust_image(monitor: Monitor, folder: &str, program: &str) -> bool {
    let Some(build) = images(monitor) else {
        return false;
    };
    match given_images() {
        Some(images) => is_given(&images, &monitor.image(program)),
        None => built_rust_guest(folder, monitor.architecture(), build),
    }
}

/// Builds FreeRTOS beside the other programs; `false`, with a note, where something is missing.
pub(crate) fn has_freertos(monitor: Monitor) -> bool {
    let Some(build) = images(monitor) else {
        return false;
    };
    if let Some(images) = given_images() {
        return is_given(&images, &monitor.image("freertos_echo"));
    }
    let kit = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bindings/guest");
    let output = Command::new("make")
        .arg("-C")
        .arg(&kit)
        .arg(format!("BUILD={}", build.display()))
        .arg(format!("ARCHITECTURES={}", monitor.architecture()))
        .arg("freertos")
        .output()
        .unwrap();
    if !output.status.success() && !both(&output).contains("clang") {
        println!("SKIPPED: cargo does not give FreeRTOS: {}", both(&output));
        return false;
    }
    assert!(output.status.success(), "{}", both(&output));
    true
}

/// The command: this build's, or `TAUTLINE_TAUT` where these tests were not built (docs/reference/testing.md).
pub(crate) fn taut_file() -> PathBuf {
    let given = std::env::var_os("TAUTLINE_TAUT");
    given.map_or_else(|| env!("CARGO_BIN_EXE_taut").into(), PathBuf::from)
}

pub(crate) fn taut() -> Command {
    let mut command = Command::new(taut_file());
    command.stdin(Stdio::null());
    command
}

pub(crate) fn guest(arguments: &[&str]) -> Output {
    taut().arg("guest").args(arguments).output().unwrap()
}

pub(crate) fn show(name: &str) -> Option<Value> {
    let output = guest(&["show", name, "--json"]);
    serde_json::from_slice(&output.stdout).ok()
}

pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let limit = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < limit, "waited in vain until {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// A name that no other test has.
pub(crate) fn unique(name: &str) -> String {
    format!("{name}-{}", std::process::id())
}

/// A guest of the test, killed with it.
pub(crate) struct Running {
    pub(crate) child: KilledOnDrop,
    pub(crate) name: String,
    pub(crate) bus: String,
    pub(crate) scratch: Scratch,
}

impl Running {
    /// Starts an image, with a file of settings if it is given, and waits until its ports are open.
    pub(crate) fn start(
        monitor: Monitor,
        test: &str,
        program: &str,
        settings: Option<&str>,
        arguments: &[&str],
    ) -> Option<Running> {
        let running = Running::begin(monitor, test, program, settings, arguments)?;
        running.wait_open();
        Some(running)
    }

    /// The same without waiting.
    pub(crate) fn begin(
        monitor: Monitor,
        test: &str,
        program: &str,
        settings: Option<&str>,
        arguments: &[&str],
    ) -> Option<Running> {
        let image = images(monitor)?.join(monitor.image(program));
        Some(Running::begin_image(
            monitor, test, &image, settings, arguments,
        ))
    }

    /// The same with a file of the test's own.
    pub(crate) fn begin_image(
        monitor: Monitor,
        test: &str,
        image: &Path,
        settings: Option<&str>,
        arguments: &[&str],
    ) -> Running {
        let test = format!("{test}-{monitor:?}").to_lowercase();
        let scratch = Scratch::new(&format!("guest-{test}"));
        let (name, bus) = (unique(&test), unique(&format!("bus-{test}")));
        let mut command = taut();
        command
            .args(["guest", "run"])
            .arg(image)
            .args(["--name", &name, "--bus", &bus])
            .args(arguments)
            .arg("--console")
            .arg(scratch.0.join("console"));
        if let Some(settings) = settings {
            let file = scratch.0.join("window.toml");
            fs::write(&file, settings).unwrap();
            command.arg("--window").arg(file);
        }
        let child = command
            .stdout(fs::File::create(scratch.0.join("stdout")).unwrap())
            .stderr(fs::File::create(scratch.0.join("stderr")).unwrap())
            .spawn()
            .unwrap();
        Running {
            child: KilledOnDrop(child),
            name,
            bus,
            scratch,
        }
    }

    /// The guest that misbehaves: it opens port 1 alone.
    pub(crate) fn start_unopened(monitor: Monitor, test: &str, settings: &str) -> Option<Running> {
        let running = Running::begin(monitor, test, "misbehave", Some(settings), &[])?;
        wait_until("port 1 is open", || {
            show(&running.name).is_some_and(|found| found["ports"][0]["open"] == true)
        });
        Some(running)
    }

    /// Console of the guest so far.
    pub(crate) fn console(&self) -> String {
        let bytes = fs::read(self.scratch.0.join("console")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Sends an order to the guest that misbehaves.
    pub(crate) fn order(&self, port: &mut QueuingPort, order: &[u8]) {
        let to = port
            .destination_until(&self.name, port_number(1), in_time())
            .unwrap();
        port.send(to, Priority::HIGHEST, order).unwrap();
    }

    pub(crate) fn is_open(&self) -> bool {
        show(&self.name).is_some_and(|found| {
            let ports = found["ports"].as_array().unwrap();
            found["state"] == "running" && ports.iter().all(|port| port["open"] == true)
        })
    }

    pub(crate) fn wait_open(&self) {
        wait_until("the guest has opened its ports", || {
            self.assert_alive();
            self.is_open()
        });
    }

    /// Its process runs; otherwise its last words are told.
    pub(crate) fn assert_alive(&self) {
        let said = || String::from_utf8(self.said("stderr"));
        assert!(is_alive(self.child.id()), "it has ended: {:?}", said());
    }

    /// A node on the guest's bus, with a port for messages.
    pub(crate) fn peer(&self, name: &str, number: u16) -> (Node, QueuingPort) {
        let config = BusConfig::new(&self.bus, name.parse().unwrap());
        let guest = bus_neighbour(self.name.parse().unwrap());
        let node = Node::open(NodeConfig::vbus(config).with_neighbour(guest).unwrap()).unwrap();
        let options = QueuingOptions {
            message_bytes_max: 1_400,
            ..QueuingOptions::default()
        };
        let port = node
            .queuing(port_number(number))
            .options(&options)
            .open()
            .unwrap();
        (node, port)
    }

    pub(crate) fn ask(&self, port: &mut QueuingPort, order: &[u8]) -> Option<Vec<u8>> {
        self.order(port, order);
        receive(port, Duration::from_secs(10))
    }

    /// Ends the guest and waits for its process.
    pub(crate) fn stop(mut self) -> Output {
        let stopped = guest(&["stop", &self.name]);
        assert!(stopped.status.success(), "{}", both(&stopped));
        self.output()
    }

    pub(crate) fn output(&mut self) -> Output {
        wait_until("the process has ended", || {
            self.child.try_wait().unwrap().is_some()
        });
        Output {
            status: self.child.wait().unwrap(),
            stdout: self.said("stdout"),
            stderr: self.said("stderr"),
        }
    }

    fn said(&self, stream: &str) -> Vec<u8> {
        fs::read(self.scratch.0.join(stream)).unwrap()
    }

    /// Processes of its monitor.
    pub(crate) fn monitors(&self) -> Vec<u32> {
        children(self.child.id())
    }
}

fn children(process: u32) -> Vec<u32> {
    let of_threads = tautline_state::process::threads(process).unwrap_or_default();
    let lists = of_threads.into_iter().filter_map(|thread| {
        fs::read_to_string(format!("/proc/{process}/task/{thread}/children")).ok()
    });
    lists
        .flat_map(|list| {
            let numbers = list
                .split_whitespace()
                .map(|number| number.parse().unwrap());
            numbers.collect::<Vec<u32>>()
        })
        .collect()
}

pub(crate) fn is_alive(process: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z ")
}

pub(crate) fn port_number(number: u16) -> PortNumber {
    PortNumber::new(number).unwrap()
}

pub(crate) fn in_time() -> tautline::Instant {
    tautline::now() + PATIENCE
}

pub(crate) fn receive(port: &mut QueuingPort, limit: Duration) -> Option<Vec<u8>> {
    let mut buffer = vec![0; port.message_bytes_max()];
    let message = port
        .receive_into(&mut buffer, Wait::Until(tautline::now() + limit))
        .unwrap()?;
    buffer.truncate(message.length);
    Some(buffer)
}
