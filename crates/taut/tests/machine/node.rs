//! `taut node run`, `tune` and `show` with a control process, as a user runs them, on
//! interfaces of the tests' own.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use tautline_state::child::KilledOnDrop;
use tautline_state::journal::Journal;
use tautline_state::setting::Setting;

use rustix::process::Signal;
use tautline_testbed::hosts::{Host, Hosts};
use tautline_testbed::sys;

use crate::common::{Scratch, hosts};

fn taut(hosts: &Hosts, arguments: &[&str]) -> Command {
    let mut command = hosts.command(Host::A, env!("CARGO_BIN_EXE_taut"));
    command.args(arguments).stdin(Stdio::null());
    command
}

/// Exit status, standard output and standard error.
fn run(hosts: &Hosts, arguments: &[&str]) -> (Option<i32>, String, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = taut(hosts, arguments).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

/// A configuration file, gone when dropped.
struct Config(PathBuf);

impl Config {
    fn new(name: &str, text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("taut-{name}-{}.toml", std::process::id()));
        fs::write(&path, format!("interface = \"taut0\"\n{text}")).unwrap();
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Config {
    fn drop(&mut self) {
        let _gone = fs::remove_file(&self.0);
    }
}

/// A control process that serves; killed when dropped.
struct Control {
    child: KilledOnDrop,
}

impl Control {
    fn start(hosts: &Hosts, config: &Config) -> Self {
        let mut command = taut(hosts, &["node", "run", "--config", config.path()]);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let serving = lines.by_ref().map_while(Result::ok);
        assert!(
            serving
                .into_iter()
                .any(|line| line.starts_with("serving clients")),
            "it ended before it served"
        );
        // Its later output must find a reader.
        std::thread::spawn(move || lines.for_each(drop));
        Self {
            child: KilledOnDrop(child),
        }
    }

    fn end(&mut self, signal: Signal) -> Option<i32> {
        sys::signal_process(self.child.id(), signal);
        self.child.wait().unwrap().code()
    }
}

/// The values that `taut node tune` shows, without the threads' numbers.
fn in_force(hosts: &Hosts) -> Vec<String> {
    let (status, out, error) = run(hosts, &["node", "tune", "--interface", "taut0"]);
    assert_eq!(status, Some(0), "{error}");
    out.lines()
        .filter(|line| line.contains("taut0/") || line.contains(" of thread "))
        .map(|line| line.split_whitespace().last().unwrap().to_owned())
        .collect()
}

const UNTUNED: [&str; 1] = ["0"];

#[test]
fn what_run_tunes_is_undone_when_it_ends_and_after_a_kill() {
    let Some(hosts) = hosts() else { return };
    let text = "[tune]\nthreaded = true\npriority = 7\ncpu = 0\n";
    let config = Config::new("run-tunes", text);
    // The table ends with policy and CPU of the thread: `fifo 7` on 0.
    let tuned = ["1", "7", "0"];
    assert_eq!(in_force(&hosts), UNTUNED);
    let mut control = Control::start(&hosts, &config);
    assert_eq!(in_force(&hosts), tuned);
    let (status, _, error) = run(&hosts, &["node", "tune", "--undo"]);
    assert_eq!(status, Some(1));
    let pid = format!("process {}", control.child.id());
    assert!(error.contains(&pid), "{error}");
    assert_eq!(control.end(Signal::TERM), Some(0));
    assert_eq!(in_force(&hosts), UNTUNED);

    // Killed, the veth is not polled any more, and the kernel takes no such setting for it.
    let mut control = Control::start(&hosts, &config);
    control.end(Signal::KILL);
    assert_eq!(in_force(&hosts)[0], tuned[0]);
    let (status, out, error) = run(&hosts, &["node", "tune", "--undo"]);
    assert_eq!(status, Some(0), "{error}");
    assert!(out.contains("threaded set back to 0"), "{out}");
    assert_eq!(in_force(&hosts), UNTUNED);

    // Or its successor does, which wants nothing of the kind.
    let mut control = Control::start(&hosts, &config);
    control.end(Signal::KILL);
    let plain = Config::new("run-plain", "");
    let _successor = Control::start(&hosts, &plain);
    assert_eq!(in_force(&hosts), UNTUNED);
}

#[test]
fn tune_shows_before_and_after_and_undo_puts_back() {
    let Some(hosts) = hosts() else { return };
    let tune = |rest: &[&str]| {
        run(
            &hosts,
            &[&["node", "tune", "--interface", "taut0"], rest].concat(),
        )
    };
    let (status, _, error) = tune(&["--threaded"]);
    assert_eq!(status, Some(1));
    assert!(error.contains("`taut0` is not polled"), "{error}");
    // At traffic control, where it would be, the veth has no poll.
    let config = Config::new("tune", "xdp_mode = \"native\"\n");
    let _control = Control::start(&hosts, &config);
    let (status, _, error) = tune(&["--cpu", "0"]);
    assert_eq!(status, Some(1));
    assert!(error.contains("not polled in threads"), "{error}");

    let (status, out, error) = tune(&["--threaded", "--cpu", "0", "--interrupt-cpu", "0"]);
    assert_eq!(status, Some(0), "{error}");
    for expected in ["before", "fifo 10", "no interrupts of its own", "--undo"] {
        assert!(out.contains(expected), "{expected} in {out}");
    }
    let tuned = in_force(&hosts);
    assert_eq!(tuned, ["1", "10", "0"]);
    // Again, with something else: what was there before is still known.
    let (status, _, error) = tune(&["--threaded", "--priority", "20"]);
    assert_eq!(status, Some(0), "{error}");
    assert_eq!(in_force(&hosts)[..2], ["1", "20"]);
    let (status, out, error) = run(&hosts, &["node", "tune", "--undo", "--interface", "taut0"]);
    assert_eq!(status, Some(0), "{error}");
    assert!(out.contains("threaded set back to 0"), "{out}");
    assert_eq!(in_force(&hosts), UNTUNED);
    let (status, out, _) = run(&hosts, &["node", "tune", "--undo"]);
    assert_eq!((status, out.as_str()), (Some(0), "nothing is tuned\n"));
}

/// A process with a setting that anybody who may can read and write.
struct Machine(KilledOnDrop);

impl Machine {
    fn start() -> Self {
        Self(KilledOnDrop(
            Command::new("sleep").arg("1000").spawn().unwrap(),
        ))
    }

    fn setting(&self) -> String {
        format!("/proc/{}/oom_score_adj", self.0.id())
    }

    /// A change of it as it stands in a journal, from 100 to 200, and makes it.
    fn change(&self) -> serde_json::Value {
        fs::write(self.setting(), "200").unwrap();
        serde_json::json!({
            "setting": { "File": self.setting() }, "before": "100", "value": { "Exactly": "200" }, "order": 1000,
        })
    }

    fn value(&self) -> String {
        fs::read_to_string(self.setting())
            .unwrap()
            .trim()
            .to_owned()
    }
}

/// The journal of a tuned interface of host A.
fn tuned_journal(hosts: &Hosts, interface: &str) -> PathBuf {
    let namespace = hosts.inside(Host::A, tautline_state::own_network_namespace);
    let namespace = namespace.unwrap().unwrap();
    PathBuf::from(format!("/run/tautline/tune-{namespace}-{interface}.json"))
}

/// A setting of every interface, also of one that is not polled. `tune` changes only those of polled ones.
const DEFERRED: &str = "napi_defer_hard_irqs";

/// Changes it on an interface of host A, and leaves it in the journal of `tune`.
fn defer(hosts: &Hosts, interface: &str) {
    let journal = tuned_journal(hosts, interface);
    let change = || {
        let index = tautline_state::interface::index(interface).unwrap();
        let name = journal.file_name().unwrap().to_str().unwrap();
        let (mut journal, _) = Journal::open(name, "taut node").unwrap();
        let setting = Setting::of_interface(interface, Some(index), DEFERRED);
        journal.change(&setting, "3").unwrap();
        journal.keep().unwrap();
    };
    hosts.inside(Host::A, change).unwrap();
}

fn deferred(hosts: &Hosts, interface: &str) -> String {
    let read = || Setting::of_interface(interface, None, DEFERRED).read();
    hosts.inside(Host::A, read).unwrap().unwrap()
}

#[test]
fn of_an_interface_that_is_gone_the_rest_is_put_back_and_of_all_others_too() {
    let Some(hosts) = hosts() else { return };
    let ip = |words: &str| {
        let mut command = hosts.command(Host::A, "ip");
        assert!(command.args(words.split(' ')).status().unwrap().success());
    };
    ip("link add tautgone type veth peer name tautpeer");
    ip("link add tautnew type veth peer name tautmore");
    for interface in ["tautgone", "tautnew", "taut0"] {
        defer(&hosts, interface);
    }
    // Beside its own settings, one of the machine, which a network card would have changed.
    let machine = Machine::start();
    let gone = tuned_journal(&hosts, "tautgone");
    let mut journal: serde_json::Value = serde_json::from_slice(&fs::read(&gone).unwrap()).unwrap();
    journal["settings"]
        .as_array_mut()
        .unwrap()
        .push(machine.change());
    fs::write(&gone, journal.to_string()).unwrap();
    // One that cannot be read, first of all by its name.
    let broken = tuned_journal(&hosts, "taut");
    fs::write(&broken, "{").unwrap();
    ip("link del tautgone");
    ip("link set tautnew name tautold");
    // Another one of the old name, with a value of its own.
    ip("link add tautnew type veth peer name tautlast");
    let write = "mount -t sysfs taut /sys && echo 7 > /sys/class/net/tautnew/napi_defer_hard_irqs";
    let mut command = hosts.command(Host::A, "unshare");
    let command = command.args(["--mount", "sh", "-c", write]);
    assert!(command.status().unwrap().success());
    let (status, out, error) = run(&hosts, &["node", "tune", "--undo"]);
    assert_eq!(status, Some(1), "{out}{error}");
    assert!(error.contains(broken.to_str().unwrap()), "{error}");
    assert_eq!(machine.value(), "100", "{out}{error}");
    assert_eq!(
        ["taut0", "tautold", "tautnew"].map(|interface| deferred(&hosts, interface)),
        ["0", "0", "7"],
        "{out}{error}"
    );
    assert!(!gone.exists() && broken.exists());
    fs::remove_file(broken).unwrap();
}

#[test]
fn interfaces_of_one_name_in_two_network_namespaces_are_put_back_apart() {
    let (Some(first), Some(second)) = (hosts(), hosts()) else {
        return;
    };
    for hosts in [&first, &second] {
        defer(hosts, "taut0");
    }
    let undo = |hosts| {
        let (status, _, error) = run(hosts, &["node", "tune", "--undo"]);
        assert_eq!(status, Some(0), "{error}");
    };
    undo(&first);
    assert_eq!(
        [&first, &second].map(|hosts| deferred(hosts, "taut0")),
        ["0", "3"]
    );
    undo(&second);
    assert_eq!(deferred(&second, "taut0"), "0");
}

#[test]
fn a_value_that_the_kernel_refuses_undoes_the_rest() {
    let Some(hosts) = hosts() else { return };
    let config = Config::new("refused", "xdp_mode = \"native\"\n");
    let control = Control::start(&hosts, &config);
    // The CPU comes last, after threads were made and given a priority.
    let arguments = [
        "node",
        "tune",
        "--interface",
        "taut0",
        "--threaded",
        "--cpu",
        "1000",
    ];
    let (status, _, error) = run(&hosts, &arguments);
    assert_eq!(status, Some(1));
    assert!(
        error.contains("the kernel refuses `1000` for CPUs of thread"),
        "{error}"
    );
    assert!(error.contains("what was set is put back"), "{error}");
    assert_eq!(in_force(&hosts), UNTUNED);
    // In a configuration it keeps the control process from starting.
    let bad = Config::new("refused-bad", "[tune]\nthreaded = true\ncpu = 1000\n");
    drop(control);
    let (status, _, error) = run(&hosts, &["node", "run", "--config", bad.path()]);
    assert_eq!(status, Some(1));
    assert!(error.contains("the kernel refuses `1000`"), "{error}");
}

#[test]
fn two_control_processes_and_wrong_configurations_are_refused() {
    let Some(hosts) = hosts() else { return };
    let config = Config::new("two", "");
    let control = Control::start(&hosts, &config);
    let (status, _, error) = run(&hosts, &["node", "run", "--config", config.path()]);
    assert_eq!(status, Some(1));
    let first = format!(
        "`taut0` has a control process: process {} (",
        control.child.id()
    );
    assert!(error.contains(&first), "{error}");
    let unknown = Config::new(
        "unknown",
        "[[allow]]\nuser = \"taut-no-such\"\nports = [1]\n",
    );
    let (status, _, error) = run(&hosts, &["node", "run", "--config", unknown.path()]);
    assert_eq!(status, Some(2));
    assert!(
        error.contains("[[allow]] entry 1 is for user taut-no-such"),
        "{error}"
    );
    let other = Config::new("other-link", "link = \"packet\"\n");
    let (status, _, error) = run(&hosts, &["node", "run", "--config", other.path()]);
    assert_eq!(status, Some(2));
    assert!(error.contains("names link `packet`"), "{error}");
    let (status, out, _) = run(&hosts, &["status"]);
    assert_eq!(status, Some(0));
    assert!(out.contains("root only"), "{out}");
}

#[test]
fn the_service_manager_is_told_when_clients_can_come() {
    let Some(hosts) = hosts() else { return };
    let config = Config::new("notify", "");
    let path = config.0.with_extension("socket");
    let _stale = fs::remove_file(&path);
    let manager = UnixDatagram::bind(&path).unwrap();
    manager
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let mut command = taut(&hosts, &["node", "run", "--config", config.path()]);
    let command = command.env("NOTIFY_SOCKET", &path).stdout(Stdio::null());
    let child = command.spawn().unwrap();
    let mut buffer = [0; 64];
    let told = manager.recv(&mut buffer);
    let child = KilledOnDrop(child);
    let mut control = Control { child };
    let _gone = fs::remove_file(&path);
    assert_eq!(&buffer[..told.unwrap()], b"READY=1");
    assert_eq!(control.end(Signal::INT), Some(0));
}

#[test]
fn neighbours_of_the_file_are_shown_and_found_by_clients() {
    let Some(hosts) = hosts() else { return };
    let neighbours = |rest: &[&str]| run(&hosts, &[&["node", "show"], rest].concat());
    let nowhere = neighbours(&[]);
    assert_eq!(nowhere.0, Some(2));
    assert!(nowhere.2.contains("no interface has a control process"));
    let mac = "02:00:00:00:00:fe";
    let entries = format!(
        "[[neighbour]]\nname = \"drive \\\"1\\\"\"\nmac = \"{mac}\"\nip = \"10.9.0.7\"\n\
         [[neighbour]]\nname = \"arm\"\nip = \"10.9.0.8\"\n"
    );
    let config = Config::new("neigh", &entries);
    let control = Control::start(&hosts, &config);

    let (status, out, error) = neighbours(&["--json"]);
    assert_eq!(status, Some(0), "{error}");
    let table: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(table["control_process"], control.child.id());
    let drive = &table["neighbours"][0];
    assert_eq!(
        (&drive["name"], &drive["mac"]),
        (&"drive \"1\"".into(), &mac.into())
    );
    assert_eq!(table["neighbours"][1]["form"], "udp");
    let (status, out, _) = neighbours(&[]);
    assert_eq!(status, Some(0));
    assert!(out.contains(mac) && out.contains("arm"), "{out}");
    let (status, out, _) = run(&hosts, &["status"]);
    assert_eq!(status, Some(0));
    assert!(out.contains("arm") && out.contains("configured"), "{out}");

    // Clients name their peers by that table.
    let arguments = ["send", "drive \"1\"", "7", "hello", "--interface", "taut0"];
    let (status, _, error) = run(&hosts, &arguments);
    assert_eq!(status, Some(0), "{error}");
    let (status, _, error) = run(&hosts, &["ping", "nobody", "--interface", "taut0"]);
    assert_eq!(status, Some(2));
    assert!(
        error.contains("no neighbour `nobody` (there are: drive \"1\", arm)"),
        "{error}"
    );
}

#[test]
fn run_confines_itself_and_says_so_unless_told_not_to() {
    let Some(hosts) = hosts() else { return };
    for (text, expected) in [
        (
            "",
            "confined: access to files by Landlock; capabilities CAP_",
        ),
        ("[tune]\nthreaded = true\n", "CAP_SYS_NICE"),
        (
            "confine = false\n",
            "not confined: `confine = false` in the configuration",
        ),
    ] {
        let config = Config::new("confined", text);
        // With the mask of the unit: others reach the control socket all the same.
        let mut command = hosts.command(Host::A, "sh");
        let script = "umask 077; exec \"$0\" node run --config \"$1\"";
        command.args(["-c", script, env!("CARGO_BIN_EXE_taut"), config.path()]);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let found = lines.by_ref().map_while(Result::ok).find(|line| {
            line.contains("confined: ") && (line.contains(expected) || line.contains("kernel"))
        });
        let namespace = hosts.inside(Host::A, tautline_state::own_network_namespace);
        let namespace = namespace.unwrap().unwrap();
        let room = PathBuf::from(format!("/run/tautline/net-{namespace}/control"));
        let sockets = fs::read_dir(&room).unwrap().flatten();
        let modes: Vec<u32> = sockets
            .map(|entry| entry.metadata().unwrap().permissions().mode() & 0o777)
            .collect();
        let of_room = fs::metadata(&room).unwrap().permissions().mode() & 0o777;
        sys::signal_process(child.id(), Signal::TERM);
        assert!(child.wait().unwrap().success());
        let found = found.unwrap_or_else(|| panic!("no line says `{expected}`"));
        assert_eq!((of_room, &modes[..]), (0o755, &[0o666, 0o666][..]));
        if !found.contains(expected) {
            println!("SKIPPED: this kernel cannot confine: {found}");
        }
    }
}

#[test]
fn the_unit_is_rated_as_little_exposed() {
    let unit =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/systemd/taut-node@.service");
    // By itself, without the drop-in beside it.
    let scratch = Scratch::new("rating");
    let copy = scratch.0.join("taut-node@.service");
    fs::copy(unit, &copy).unwrap();
    let rating = Command::new("systemd-analyze")
        .args(["security", "--offline=true", "--threshold=20"])
        .arg(copy)
        .output();
    let Ok(output) = rating else {
        return println!("SKIPPED: systemd-analyze is not installed");
    };
    // The status says whether it is above the threshold, in tenths.
    let said = String::from_utf8_lossy(&output.stdout);
    let (complained, last) = (String::from_utf8_lossy(&output.stderr), said.lines().last());
    if complained.contains("unrecognized option") {
        return println!("SKIPPED: systemd-analyze does not rate files (systemd 250)");
    }
    assert!(output.status.success(), "{last:?} {complained}");
}

#[test]
fn the_unit_is_one_that_systemd_takes() {
    let scratch = Scratch::new("unit");
    let unit =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/systemd/taut-node@.service");
    let unit = fs::read_to_string(unit).unwrap();
    assert!(unit.contains("ExecStart=/usr/bin/taut node run"));
    // Where the command is installed is not here.
    let here = unit.replace("/usr/bin/taut", env!("CARGO_BIN_EXE_taut"));
    let path = scratch.0.join("taut-node@.service");
    fs::write(&path, here).unwrap();
    let verify = Command::new("systemd-analyze")
        .arg("verify")
        .arg(&path)
        .output();
    let Ok(output) = verify else {
        return println!("SKIPPED: systemd-analyze is not installed");
    };
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    // A setting that it does not know it passes over, and says so.
    assert!(!said.contains("taut-node@.service:"), "{said}");
}

/// The other end of the cable has a node of its own, which goes with the same cable.
#[test]
fn what_becomes_of_the_interface_is_told_and_its_end_is_an_error() {
    let Some(hosts) = hosts() else { return };
    let config = Config::new("changed-interface", "");
    let ip = |arguments: &str| {
        let mut command = hosts.command(Host::A, "ip");
        let status = command.args(arguments.split(' ')).status().unwrap();
        assert!(status.success(), "ip {arguments}");
    };
    let start = |mut command: Command| {
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        let child = command.stderr(Stdio::piped()).spawn().unwrap();
        let child = KilledOnDrop(child);
        Control { child }
    };
    let mut echo = hosts.command(Host::B, env!("CARGO_BIN_EXE_taut"));
    echo.args(["echo", "--interface", "taut0"]);
    let echo = start(echo);
    let control = start(taut(&hosts, &["node", "run", "--config", config.path()]));
    let told = |host: Host, expected: &str| {
        let give_up = Instant::now() + Duration::from_secs(20);
        loop {
            let mut command = hosts.command(host, env!("CARGO_BIN_EXE_taut"));
            let said = command.arg("status").output().unwrap();
            let said = String::from_utf8(said.stdout).unwrap();
            if said.contains(expected) {
                return said;
            }
            assert!(Instant::now() < give_up, "not `{expected}`: {said}");
        }
    };
    told(Host::A, "control process");
    assert!(!told(Host::B, "node of process").contains("changed: "));
    ip("link set taut0 address 02:00:00:00:77:01");
    told(
        Host::A,
        "  changed: the interface's MAC address is now 02:00:00:00:77:01, ",
    );
    ip("link set taut0 down");
    ip("link set taut0 name other0");
    let said = told(Host::A, "  changed: `taut0` is called `other0` now\n");
    assert!(said.contains(", interface is DOWN\n"), "{said}");
    ip("link delete other0");
    for (mut process, expected) in [
        (control, "interface `taut0` is gone"),
        (echo, "interface is gone"),
    ] {
        let mut said = String::new();
        let errors = process.child.stderr.as_mut().unwrap();
        std::io::Read::read_to_string(errors, &mut said).unwrap();
        assert_eq!(process.child.wait().unwrap().code(), Some(1), "{said}");
        assert!(
            said.contains(expected) && !said.contains("doctor"),
            "{said}"
        );
    }
}
