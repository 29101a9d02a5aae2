//! The inside of a virtual machine: the first process of a guest. It mounts file systems, loads modules, runs the
//! programs of its orders one after the other and prints, framed, what came of each.

use std::fs;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use tautline_lab::kernels::guest::{load_module, prepare_system, send};
use tautline_testbed::sys;

use crate::orders::{Answer, Orders, Outcome, PATH, Step};

/// Bytes kept of a program's output. Lower: the reports of many failed tests are cut off. Higher: the serial console,
/// some 100 KB/s under emulation, takes longer than the tests.
const OUTPUT_BYTES_MAX: usize = 256 << 10;

/// Time between two looks whether a program has ended.
const LOOK: Duration = Duration::from_millis(50);

/// Whether this process is the first of a guest that [`crate::host`] made.
pub(crate) fn is_guest() -> bool {
    std::process::id() == 1 && Path::new(PATH).exists()
}

/// Runs the orders, and restarts the machine, which ends QEMU.
pub(crate) fn run() {
    if let Err(error) = work() {
        println!("taut lab guest: {error}");
    }
    sys::restart_machine();
}

fn work() -> io::Result<()> {
    let mut missing = Vec::new();
    prepare_system(&mut missing)?;
    // Tests and `ip netns` expect these to be file systems of their own.
    fs::create_dir_all("/sys/fs/bpf")?;
    for (kind, target) in [("tmpfs", "/run"), ("tmpfs", "/tmp"), ("bpf", "/sys/fs/bpf")] {
        sys::mount(kind, target, "")?;
    }
    let orders: Orders = serde_json::from_slice(&fs::read(PATH)?)?;
    for module in &orders.modules {
        load_module(module, &mut missing);
    }
    let about = |name| fs::read_to_string(format!("/proc/sys/kernel/{name}"));
    send(&Answer::Booted {
        release: about("osrelease")?.trim().to_owned(),
        version: about("version")?.trim().to_owned(),
        missing: missing
            .into_iter()
            .map(|one| format!("{}: {}", one.what, one.reason))
            .collect(),
    })?;
    for step in &orders.steps {
        let outcome = run_step(step).unwrap_or_else(|error| Outcome {
            status: None,
            seconds: 0.0,
            text: format!("{}: {error}", step.command[0]),
        });
        send(&Answer::Done(outcome))?;
    }
    send(&Answer::End)
}

fn run_step(step: &Step) -> io::Result<Outcome> {
    let mut command = Command::new(&step.command[0]);
    command
        .args(&step.command[1..])
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("HOME", "/tmp")
        .envs(step.environment.iter().cloned())
        .current_dir("/tmp");
    if let Some(driver) = &step.driver {
        let [one, other] = interfaces_of(driver)?;
        enlarge_ring(&one);
        enlarge_ring(&other);
        command.env("TAUTLINE_TEST_INTERFACES", format!("{one},{other}"));
    }
    let (mut reader, writer) = io::pipe()?;
    let begun = Instant::now();
    let child = command
        .stdin(Stdio::null())
        .stdout(writer.try_clone()?)
        .stderr(writer)
        .process_group(0)
        .spawn()?;
    drop(command); // its copies of the pipe's end
    let limit = Duration::from_secs(step.seconds_max);
    let watcher = thread::spawn(move || wait(child, limit));
    let mut text = Vec::new();
    reader.read_to_end(&mut text)?;
    let (status, in_time) = watcher.join().expect("waiting does not panic")?;
    if text.len() > OUTPUT_BYTES_MAX {
        let half = OUTPUT_BYTES_MAX / 2;
        text.splice(half..text.len() - half, *b"\n[...]\n");
    }
    let mut text = String::from_utf8_lossy(&text).into_owned();
    if !in_time {
        text += &format!("\nkilled after {} s\n", step.seconds_max);
    }
    Ok(Outcome {
        status,
        seconds: begun.elapsed().as_secs_f64(),
        text,
    })
}

/// Exit status, and whether the program ended by itself. Children that it left behind, which would hold its output
/// open, are killed with it.
fn wait(mut child: Child, limit: Duration) -> io::Result<(Option<i32>, bool)> {
    let begun = Instant::now();
    let mut in_time = true;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if in_time && begun.elapsed() > limit {
            in_time = false;
            kill_group(&child);
        }
        thread::sleep(LOOK);
    };
    kill_group(&child);
    Ok((status.code().filter(|_| in_time), in_time))
}

fn kill_group(child: &Child) {
    // Absent once all of it has ended.
    let _gone = kill_process_group(Pid::from_child(child), Signal::KILL);
}

/// Gives a card as many places for received frames as igb and e1000e can have. With zero-copy a burst of a thousand
/// crosses QEMU's hub at once, while the one CPU sends; what finds no place is lost.
fn enlarge_ring(interface: &str) {
    // virtio_net has as many as QEMU says, and refuses.
    let _refused = Command::new("/usr/bin/ethtool")
        .args(["-G", interface, "rx", "4096"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
}

/// The two interfaces of a driver.
fn interfaces_of(driver: &str) -> io::Result<[String; 2]> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/sys/class/net")? {
        let entry = entry?;
        let link = fs::read_link(entry.path().join("device/driver")).unwrap_or_default();
        if link.file_name().is_some_and(|name| name == driver) {
            found.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    found.sort();
    found.try_into().map_err(|found: Vec<String>| {
        let text = format!("{} interfaces of driver {driver}, not two", found.len());
        io::Error::new(io::ErrorKind::NotFound, text)
    })
}
