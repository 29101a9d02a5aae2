//! A sender of typed messages on a bus, and scripts with packages of Foxglove that read them.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use tautline::config::BusConfig;
use tautline::{Node, NodeConfig, Priority, TypedQueuingPort, bus_neighbour};

/// The type in a configuration.
pub(crate) const STATE: &str =
    "[[type]]\nname = \"State\"\nfields = [\"position: f64[2]\", \"mode: u16\"]\n";

/// The type as this program has it.
#[derive(Clone, Copy, tautline::Typed)]
#[repr(C, packed)]
struct State {
    position: [f64; 2],
    mode: u16,
}

/// Sends a value, and bytes that are none, again and again, until the test has seen enough.
pub(crate) fn send_typed(bus: &Path, is_enough: &AtomicBool) {
    let bus = BusConfig::new(bus.to_str().unwrap(), "arm".parse().unwrap());
    let motor = bus_neighbour("motor".parse().unwrap());
    let node = Node::open(NodeConfig::vbus(bus).with_neighbour(motor).unwrap()).unwrap();
    let mut port: TypedQueuingPort<State> = node.queuing(9).typed().open().unwrap();
    let to = port.destination("motor", 7).unwrap();
    while !is_enough.load(Relaxed) {
        let state = State {
            position: [0.5, -1.0],
            mode: 65535,
        };
        // On a busy machine the receiver is not connected yet; a test that gets nothing fails by itself.
        let _not_yet = port.send(to, Priority::NORMAL, &state);
        let _not_yet = (*port).send(to, Priority::NORMAL, b"plain");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Ends the sender, also if the test fails.
pub(crate) struct EndsSender<'a>(pub(crate) &'a AtomicBool);

impl Drop for EndsSender<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// A script for Node.js beside packages of npm, ready for arguments; or says why not, where they cannot be had.
pub(crate) fn node_script(name: &str, packages: &[&str], script: &str) -> Option<Command> {
    let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-1"));
    let (file, complete) = (home.join("script.mjs"), home.join("complete"));
    if !complete.exists() {
        fs::create_dir_all(&home).unwrap();
        let install = [
            "install",
            "--no-save",
            "--no-audit",
            "--no-fund",
            "--ignore-scripts",
        ];
        let mut npm = Command::new("npm");
        npm.args(install).arg("--prefix").arg(&home).args(packages);
        let installed = npm.stdin(Stdio::null()).output();
        if !installed.is_ok_and(|output| output.status.success()) {
            println!("SKIPPED: no {name}: npm or its packages cannot be had");
            return None;
        }
        fs::write(&complete, "").unwrap();
    }
    fs::write(&file, script).unwrap();
    let mut command = Command::new("node");
    command.arg(file).stdin(Stdio::null());
    Some(command)
}
