//! Our own monitor: faults that it names, what it holds, and what it needs.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use rustix::process::Signal;
use tautline_testbed::hosts::may_create;
use tautline_testbed::process_namespace::is_inside;
use tautline_testbed::sys;

use crate::bed::{
    Monitor, NOBODY, Running, guest, images, in_time, is_alive, port_number, taut, taut_file,
    unique, wait_until,
};
use crate::common::{Scratch, both, skipped_without_privilege};

const ONE_PORT: &str = "[[port]]\nnumber = 1\n";

/// Orders to do what the machine does not do, words of the end, and whether the kit's handler has its say before.
#[cfg(target_arch = "x86_64")]
const FAULTS: [(&[u8], &str, bool); 4] = [
    (b"f", "its processor stopped for a fault", true),
    (b"t", "a fault that it does not handle (rip 0x", false),
    (
        b"n",
        "it read at 0xe0000000, where nothing is (rip 0x",
        false,
    ),
    (
        b"w",
        "it wrote to Linux's half of the window, at 0xc0000000",
        false,
    ),
];
#[cfg(not(target_arch = "x86_64"))]
const FAULTS: [(&[u8], &str, bool); 4] = [
    (b"f", "its processor stopped for a fault", true),
    (
        b"n",
        "it read at 0xe0000000, where nothing is (pc 0x",
        false,
    ),
    (b"m", "it accessed 0xe0000000, where nothing is", false),
    (
        b"w",
        "it wrote to Linux's half of the window, at 0x20000000",
        false,
    ),
];

#[test]
fn faults_are_named() {
    for (order, said, is_handled) in FAULTS {
        let test = format!("fault-{}", char::from(order[0]));
        let Some(mut running) =
            Running::start(Monitor::Kvm, &test, "misbehave", Some(ONE_PORT), &[])
        else {
            return;
        };
        let (_node, mut port) = running.peer("boss", 2);
        running.order(&mut port, order);
        let output = running.output();
        assert_eq!(output.status.code(), Some(1), "{}", both(&output));
        assert!(both(&output).contains(said), "{said}: {}", both(&output));
        let console = running.console();
        assert_eq!(console.contains("guest: fault "), is_handled, "{console}");
    }
}

#[test]
fn what_a_guest_does_to_its_machine_is_its_own_affair() {
    let arguments = ["--restart", "never"];
    let Some(running) = Running::start(
        Monitor::Kvm,
        "machine",
        "misbehave",
        Some(ONE_PORT),
        &arguments,
    ) else {
        return;
    };
    let (_node, mut port) = running.peer("boss", 2);
    // All ports, and a console of 108 kB: the guest goes on.
    assert_eq!(running.ask(&mut port, b"p").as_deref(), Some(&b"done"[..]));
    let to = port
        .destination_until(&running.name, port_number(1), in_time())
        .unwrap();
    port.send(to, tautline::Priority::HIGHEST, b"c").unwrap();
    let answer = crate::bed::receive(&mut port, crate::bed::PATIENCE);
    assert_eq!(answer.as_deref(), Some(&b"done"[..]));
    wait_until("the console is written", || {
        let console = running.console();
        console.matches("again and again\n").count() >= 1_000
    });
    // It spins for ever, with its interrupts masked, and is stopped all the same.
    running.order(&mut port, b"h");
    let monitors = running.monitors();
    let output = running.stop();
    assert!(output.status.success(), "{}", both(&output));
    assert!(!monitors.into_iter().any(is_alive));
}

#[test]
fn a_monitor_holds_its_machine_and_nothing_else() {
    let Some(running) = Running::start(Monitor::Kvm, "holds", "echo", None, &[]) else {
        return;
    };
    let process = running.monitors()[0];
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    for line in [
        "CapEff:\t0000000000000000",
        "CapPrm:\t0000000000000000",
        "NoNewPrivs:\t1",
        "Seccomp:\t2",
    ] {
        assert!(status.contains(line), "{line}: {status}");
    }
    let open: Vec<String> = fs::read_dir(format!("/proc/{process}/fd"))
        .unwrap()
        .map(|entry| fs::read_link(entry.unwrap().path()).unwrap())
        .map(|target| target.display().to_string())
        .collect();
    let console = running.scratch.0.join("console");
    for target in &open {
        let kinds = [
            "socket:",
            "pipe:",
            "anon_inode:kvm-vm",
            "anon_inode:kvm-vcpu",
        ];
        let is_known = kinds.iter().any(|kind| target.starts_with(kind));
        assert!(is_known || Path::new(target) == console, "{open:?}");
    }
    // Linux's half of the window cannot be made writable, and the guest's is the one that can.
    let maps = fs::read_to_string(format!("/proc/{process}/maps")).unwrap();
    let windows: Vec<&str> = maps
        .lines()
        .filter(|line| line.contains("taut-window"))
        .collect();
    let access = |line: &&str| line.split(' ').nth(1).map(str::to_owned);
    let access: Vec<String> = windows.iter().filter_map(access).collect();
    assert!(access.contains(&"r--s".to_owned()) && access.contains(&"rw-s".to_owned()));
    assert_eq!(access.len(), 2, "{windows:?}");
    drop(running.stop());
}

/// Runs a guest with other contents of `/dev`, made by a script in a mount namespace of its own.
fn run_with(script: &str, image: &Path) -> Output {
    let taut = taut_file();
    let (name, bus) = (unique("nodev"), unique("bus-nodev"));
    let (taut, image, end) = (taut.display(), image.display(), "guest run");
    Command::new("unshare")
        .args(["--mount", "sh", "-ec"])
        .arg(format!(
            "{script} {taut} {end} {image} --name {name} --bus {bus}"
        ))
        .output()
        .unwrap()
}

#[test]
fn without_kvm_the_remedy_is_told() {
    if !cfg!(target_arch = "x86_64") {
        println!("SKIPPED: for an image for aarch64, QEMU is taken where there is no KVM");
        return;
    }
    let Some(images) = images(Monitor::Kvm) else {
        return;
    };
    if skipped_without_privilege() {
        return;
    }
    let image = images.join("echo-x86_64.elf");
    let empty = "mount -t tmpfs none /dev;";
    let denied = format!(
        "mount -t tmpfs none /dev; chmod 755 /dev; mknod -m 600 /dev/kvm c 10 232; mkdir -m 700 /dev/run; chown {NOBODY} /dev/run; exec setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups env XDG_RUNTIME_DIR=/dev/run"
    );
    let cases = [
        (empty, "this machine has no /dev/kvm", "modprobe kvm_intel"),
        (
            &denied,
            "this user may not open /dev/kvm",
            "usermod -aG kvm",
        ),
        (
            "mount --bind /dev/null /dev/kvm;",
            "/dev/kvm cannot be used",
            "ls -l /dev/kvm",
        ),
    ];
    for (script, said, remedy) in cases {
        let output = run_with(script, &image);
        assert_eq!(output.status.code(), Some(1), "{}", both(&output));
        assert!(both(&output).contains(said), "{said}: {}", both(&output));
        assert!(
            both(&output).contains(remedy),
            "{remedy}: {}",
            both(&output)
        );
    }
}

/// Memory of a guest, as a refusal names it.
const MEMORY: &str = if cfg!(target_arch = "x86_64") {
    "and the guest has 0x100000 to 0x1000000"
} else {
    "and the guest has 0x40000000 to 0x41000000"
};

#[test]
fn images_that_do_not_fit_are_refused() {
    let Some(images) = images(Monitor::Kvm) else {
        return;
    };
    let scratch = Scratch::new("guest-kvm-wrong");
    let whole = fs::read(images.join(Monitor::Kvm.image("echo"))).unwrap();
    // The second segment's header follows the first's; addresses and sizes are words of 64 bits in it.
    let second = 64 + 56;
    let put = |at: usize, value: u64| {
        let mut bytes = whole.clone();
        bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        bytes
    };
    let mut other = whole.clone();
    other[18] = 243;
    let cases = [
        (
            other,
            "another processor (ELF machine 243); guests are aarch64 (183) or x86-64 (62)",
        ),
        (whole[..whole.len() / 8].to_vec(), "truncated"),
        (put(second + 40, 1 << 30), "it needs memory from"),
        (put(second + 24, 0x1000), MEMORY),
        (
            put(24, 0x20_0000),
            "no segment has its entry point 0x200000",
        ),
    ];
    for (number, (bytes, said)) in cases.into_iter().enumerate() {
        let image = scratch.0.join(format!("{number}.elf"));
        fs::write(&image, bytes).unwrap();
        let name = unique("nofit");
        let output = guest(&[
            "run",
            image.to_str().unwrap(),
            "--name",
            &name,
            "--bus",
            &name,
        ]);
        assert_eq!(output.status.code(), Some(2), "{}", both(&output));
        assert!(both(&output).contains(said), "{said}: {}", both(&output));
    }
    let image = images.join(Monitor::Kvm.image("echo"));
    let image = image.to_str().unwrap();
    let name = unique("nopart");
    let output = guest(&["run", image, "--name", &name, "--partition", "nowhere"]);
    assert_eq!(output.status.code(), Some(1), "{}", both(&output));
    assert!(both(&output).contains("taut: there is no partition `nowhere`"));
    assert!(
        both(&output).contains("taut partition"),
        "{}",
        both(&output)
    );
}

#[test]
fn an_image_for_x86_needs_its_processor() {
    if cfg!(target_arch = "x86_64") {
        println!("SKIPPED: this processor is one");
        return;
    }
    let Some(images) = images(Monitor::Kvm) else {
        return;
    };
    let image = images.join("echo-x86_64.elf");
    let name = unique("other");
    let output = guest(&["run", image.to_str().unwrap(), "--name", &name]);
    assert_eq!(output.status.code(), Some(1), "{}", both(&output));
    let said = "build the guest for aarch64";
    assert!(both(&output).contains(said), "{}", both(&output));
}

/// Output of `taut partition`.
fn partition(arguments: &[&str]) -> Output {
    taut().arg("partition").args(arguments).output().unwrap()
}

/// Policies and priorities of a process's threads, in order; all of them may run on this CPU alone.
fn policies_on(process: u32, cpu: &str) -> Vec<(i32, i32)> {
    let mut policies: Vec<(i32, i32)> = Vec::new();
    for thread in tautline_state::process::threads(process).unwrap() {
        let status = fs::read_to_string(format!("/proc/{process}/task/{thread}/status")).unwrap();
        let allowed = format!("Cpus_allowed_list:\t{cpu}\n");
        assert!(status.contains(&allowed), "{status}");
        let stat = fs::read_to_string(format!("/proc/{process}/task/{thread}/stat")).unwrap();
        let fields: Vec<&str> = stat
            .rsplit(')')
            .next()
            .unwrap()
            .split_whitespace()
            .collect();
        // proc(5): fields 40 and 41, of which the first is behind the name.
        policies.push((fields[38].parse().unwrap(), fields[37].parse().unwrap()));
    }
    policies.sort_unstable();
    policies
}

#[test]
fn a_partition_holds_the_machine_and_its_processor() {
    if images(Monitor::Kvm).is_none() {
        return;
    }
    let cpus = tautline_tasks::partition::placement::online();
    if !tautline_testbed::sys::is_root() || !may_create() || cpus.count() < 2 {
        println!("SKIPPED: needs root with CAP_SYS_ADMIN, and two CPUs");
        return;
    }
    if !is_inside("kvm::a_partition_holds_the_machine_and_its_processor") {
        return;
    }
    let cpu = cpus.iter().last().unwrap().to_string();
    let name = unique("cell");
    let made = partition(&["create", &name, "--cpus", &cpu]);
    assert!(made.status.success(), "{}", both(&made));
    // A CPU that is another partition's is not to be had.
    let taken = partition(&["create", &unique("other"), "--cpus", &cpu]);
    assert_eq!(taken.status.code(), Some(1), "{}", both(&taken));
    assert!(both(&taken).contains(&name), "{}", both(&taken));

    let running = Running::start(Monitor::Kvm, "cell", "echo", None, &["--partition", &name]);
    let running = running.expect("there is KVM");
    let process = running.monitors()[0];
    let policies = policies_on(process, &cpu);
    // SCHED_FIFO: the guest's processor at 40, the monitor above.
    assert_eq!(
        (policies[0], *policies.last().unwrap()),
        ((1, 40), (1, 41)),
        "{policies:?}"
    );
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let locked = status.lines().find_map(|line| line.strip_prefix("VmLck:"));
    let kilobytes = locked
        .unwrap()
        .trim()
        .trim_end_matches(" kB")
        .parse::<u64>();
    assert!(kilobytes.unwrap() >= 16 << 10, "all of the guest's memory");
    let shown = both(&guest(&["show", &running.name]));
    assert!(shown.contains(&format!("in partition {name}")), "{shown}");
    assert!(!shown.contains("limit:"), "{shown}");
    let refused = partition(&["remove", &name]);
    assert!(
        both(&refused).contains("processes run"),
        "{}",
        both(&refused)
    );
    let pinged = taut()
        .args([
            "ping",
            &running.name,
            "--bus",
            &running.bus,
            "--count",
            "20",
        ])
        .output()
        .unwrap();
    assert!(pinged.status.success(), "{}", both(&pinged));
    drop(running.stop());

    // The process that passes messages on may have its place there, too, above the guest.
    let settings = Some("relay = \"partition\"\n");
    let running = Running::start(
        Monitor::Kvm,
        "relay",
        "echo",
        settings,
        &["--partition", &name],
    );
    let running = running.expect("there is KVM");
    let policies = policies_on(running.child.id(), &cpu);
    // Threads that write files or answer others keep no message waiting, and the guest does not keep them waiting.
    let (relay, others) = policies.split_last().unwrap();
    assert_eq!(relay, &(1, 42), "{policies:?}");
    assert!(others.contains(&(1, 41)), "{policies:?}");
    assert!(others.iter().all(|other| *other <= (1, 41)), "{policies:?}");
    let machine = policies_on(running.monitors()[0], &cpu);
    assert_eq!(machine[0], (1, 40), "{machine:?}");
    drop(running.stop());
    let removed = partition(&["remove", &name]);
    assert!(removed.status.success(), "{}", both(&removed));
}

#[test]
fn a_monitor_that_does_not_answer_is_not_short_of_memory() {
    let Some(images) = images(Monitor::Kvm) else {
        return;
    };
    let image = images.join(Monitor::Kvm.image("misbehave"));
    let mut command = taut();
    command
        .args(["guest", "run", "--name", &unique("late"), "--ram", "16MiB"])
        .args(["--bus", &unique("late")])
        .arg(image)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let stopped = monitor_of(child.id());
    sys::signal_process(stopped, Signal::STOP);
    let output = child.wait_with_output().unwrap();
    let said = both(&output);
    assert!(
        said.contains("did not start the guest within 20 s"),
        "{said}"
    );
    assert!(said.contains("let its process run"), "{said}");
    assert!(!said.contains("memory"), "{said}");
}

/// The monitor that a command has started, as soon as it runs its own program.
fn monitor_of(command: u32) -> u32 {
    let words = |process: u32| fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
    let children = format!("/proc/{command}/task/{command}/children");
    loop {
        let found = fs::read_to_string(&children).unwrap();
        let first = found.split_whitespace().next();
        let first = first.map(|id| id.parse::<u32>().unwrap());
        let own = words(command);
        // There are none to read while a program takes the place of another.
        let is_other = |words: &[u8]| !own.is_empty() && !words.is_empty() && words != own;
        if let Some(monitor) = first.filter(|child| is_other(&words(*child))) {
            return monitor;
        }
    }
}
