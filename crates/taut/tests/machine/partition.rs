//! `taut partition` as a user runs it, and as others attack it. Tests that move processes run in a process namespace of
//! their own, so the machine's other processes stay where they are.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::panic;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use tautline_state::child::KilledOnDrop;

use serde_json::Value;
use tautline_tasks::partition::placement::online;
use tautline_testbed::hosts::may_create;
use tautline_testbed::process_namespace::is_inside;
use tautline_testbed::settings::{differences, snapshot};
use tautline_testbed::sys;

use crate::common::{Scratch, both, has_handler};

/// Far longer than any step takes; only ends a test that would hang.
const PATIENCE: Duration = Duration::from_secs(60);

const NOBODY: u32 = 65_534;

const CPUSET_V1: &str = "/sys/fs/cgroup/cpuset";

fn taut(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_taut"));
    command
        .arg("partition")
        .args(arguments)
        .stdin(Stdio::null());
    command
}

fn run(arguments: &[&str]) -> Output {
    taut(arguments).output().unwrap()
}

/// Standard output of a command that must succeed.
fn done(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", both(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// Output of a command that must fail with this status.
fn fails(arguments: &[&str], status: i32) -> String {
    let output = run(arguments);
    assert_eq!(
        output.status.code(),
        Some(status),
        "{arguments:?}: {}",
        both(&output)
    );
    both(&output)
}

fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&done(&[arguments, &["--json"]].concat())).unwrap()
}

fn last_cpu() -> String {
    online().iter().last().unwrap().to_string()
}

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let limit = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < limit, "waited in vain until {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Whether this is the namespace in which the test is to run.
fn begin(test: &str) -> bool {
    if !sys::is_root() || !may_create() || online().count() < 2 {
        println!("SKIPPED: needs root with CAP_SYS_ADMIN, and two CPUs");
        return false;
    }
    // It fails here, outside, once nothing of it runs inside any more.
    panic::catch_unwind(|| is_inside(test)).unwrap_or_else(|failed| {
        put_back();
        panic::resume_unwind(failed)
    })
}

/// Removes the partitions that a failed test left in force.
fn put_back() {
    let shown = run(&["show", "--json"]).stdout;
    let shown: Value = serde_json::from_slice(&shown).unwrap_or_default();
    let partitions = shown["partitions"].as_array().into_iter().flatten();
    for name in partitions.filter_map(|one| one["name"].as_str()) {
        println!(
            "removed partition {name}: {}",
            both(&run(&["remove", name, "--force"]))
        );
    }
}

fn same_as(before: &BTreeMap<String, String>) {
    let found = differences(before, &snapshot());
    assert!(found.is_empty(), "{found:#?}");
}

/// A process that sleeps until it is dropped.
struct Sleeper(KilledOnDrop);

impl Sleeper {
    fn start() -> Sleeper {
        let child = Command::new("sleep").arg("100000").spawn().unwrap();
        let name = PathBuf::from(format!("/proc/{}/comm", child.id()));
        wait_until("a process sleeps", || {
            fs::read_to_string(&name).is_ok_and(|it| it == "sleep\n")
        });
        Sleeper(KilledOnDrop(child))
    }

    fn cpus(&self) -> String {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap();
        let cpus = status
            .lines()
            .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        cpus.unwrap().trim().to_owned()
    }
}

#[test]
fn a_partition_is_made_used_shown_and_removed() {
    if !begin("a_partition_is_made_used_shown_and_removed") {
        return;
    }
    let cpu = last_cpu();
    let bystander = Sleeper::start();
    let before = snapshot();
    let plan = json(&["create", "control", "--cpus", &cpu, "--dry-run"]);
    assert!(!plan["changes"].as_array().unwrap().is_empty(), "{plan:#}");
    same_as(&before);
    assert_eq!(done(&["show"]), "no partitions\n");
    let made = json(&["create", "control", "--cpus", &cpu]);
    assert_eq!(
        (&made["name"], &made["cpus"]),
        (&"control".into(), &cpu.as_str().into())
    );
    assert_eq!(made["keeps_others_away"], true, "{made:#}");
    assert!(
        !bystander.cpus().split(',').any(|one| one == cpu),
        "{}",
        bystander.cpus()
    );
    let looked = done(&[
        "run",
        "control",
        "--priority",
        "7",
        "--",
        "sh",
        "-c",
        "grep Cpus_allowed_list /proc/self/status; chrt -p $$",
    ]);
    assert!(
        looked.contains(&format!("Cpus_allowed_list:\t{cpu}\n")),
        "{looked}"
    );
    assert!(
        looked.contains("SCHED_FIFO") && looked.contains(": 7\n"),
        "{looked}"
    );
    let mut program = taut(&["run", "control", "--", "sleep", "100000"])
        .spawn()
        .unwrap();
    wait_until("the program runs", || {
        json(&["show", "control"])["processes"] == serde_json::json!([program.id()])
    });
    let shown = json(&["show", "control", "--for", "200ms"]);
    assert!(
        shown["interrupts"].is_array() && shown["threads"].is_array(),
        "{shown:#}"
    );
    let hour = ["show", "control", "--for", "1h", "--json"];
    let mut counting = taut(&hour);
    let mut counting = counting.stdout(Stdio::piped()).spawn().unwrap();
    wait_until("it can be ended in order", || {
        has_handler(counting.id(), rustix::process::Signal::INT)
    });
    sys::signal_process(counting.id(), rustix::process::Signal::INT);
    let mut counted = String::new();
    let mut said = counting.stdout.take().unwrap();
    said.read_to_string(&mut counted).unwrap();
    assert_eq!(counting.wait().unwrap().code(), Some(130));
    let counted: Value = serde_json::from_str(&counted).unwrap();
    assert!(counted["seconds"].as_f64().unwrap() < 3_600.0, "{counted}");
    let shown = done(&["show", "control"]);
    assert!(
        shown.contains("sleep") && shown.contains("stays:"),
        "{shown}"
    );
    let refused = fails(&["remove", "control"], 1);
    assert!(
        refused.contains("1 processes run") && refused.contains("--force"),
        "{refused}"
    );
    done(&["remove", "control", "--force"]);
    assert!(program.try_wait().unwrap().is_none(), "it goes on outside");
    program.kill().unwrap();
    program.wait().unwrap();
    same_as(&before);
}

#[test]
fn bad_input_is_refused_with_a_remedy_and_changes_nothing() {
    if !begin("bad_input_is_refused_with_a_remedy_and_changes_nothing") {
        return;
    }
    let cpu = last_cpu();
    let all = online().to_string();
    let before = snapshot();
    let create = |name: &str, cpus: &str, status| {
        let output = fails(&["create", name, "--cpus", cpus], status);
        assert!(
            output.contains("what to do") || output.contains("expected"),
            "{output}"
        );
        output
    };
    assert!(create("a", &all, 2).contains("no CPU would be left"));
    assert!(create("a", "4095", 2).contains("CPU 4095 is not online"));
    for cpus in ["", "x", "1-", "-1", "1,,2", "2-1", "99999999999"] {
        assert!(create("a", cpus, 2).contains("expected CPUs") || cpus == "-1");
    }
    for name in [
        "",
        ".",
        "..",
        "../a",
        "a/b",
        "a b",
        ".a",
        "\u{1b}[31m",
        &"x".repeat(33),
    ] {
        assert!(create(name, &cpu, 2).contains("invalid partition name"));
        assert!(!create(name, &cpu, 2).contains('\u{1b}'));
    }
    same_as(&before);
    for action in ["show", "remove"] {
        assert!(fails(&[action, "absent"], 1).contains("no partition `absent`"));
        fails(&[action, "../../etc/passwd"], 1);
    }
    assert!(fails(&["run", "absent", "--", "true"], 1).contains("no partition `absent`"));
    done(&["create", "a", "--cpus", &cpu]);
    assert!(create("a", &cpu, 1).contains("there is a partition `a` already"));
    assert!(create("b", &cpu, 1).contains("belongs to partition `a`"));
    let others = online().without(&cpu.parse().unwrap()).to_string();
    assert!(create("b", &others, 2).contains("no CPU would be left"));
    assert!(fails(&["run", "a", "--", "/no/such/program"], 1).contains("cannot run"));
    fails(&["run", "a", "--priority", "99", "--", "true"], 2);
    fails(&["run", "a"], 2);
    done(&["remove", "a"]);
    same_as(&before);
}

#[test]
fn a_partition_of_a_program_ends_with_it() {
    if !begin("a_partition_of_a_program_ends_with_it") {
        return;
    }
    let cpu = last_cpu();
    let before = snapshot();
    let status = |script: &str| {
        let output = run(&["run", "own", "--cpus", &cpu, "--", "sh", "-c", script]);
        output.status.code()
    };
    assert_eq!((status("exit 7"), status("true")), (Some(7), Some(0)));
    assert_eq!(status("kill -SEGV $$"), Some(128 + 11));
    assert_eq!(done(&["show"]), "no partitions\n");
    same_as(&before);
    // A program that takes its time to end gets it, and one that asks gets the signal.
    let script = "trap 'sleep 4; exit 5' TERM; touch $0; while :; do sleep 0.05; done";
    let scratch = Scratch::new("partition-signal");
    let ready = scratch.0.join("ready");
    let mut owner = taut(&["run", "own", "--cpus", &cpu, "--", "sh", "-c", script])
        .arg(&ready)
        .spawn()
        .unwrap();
    wait_until("the program runs", || ready.exists());
    let removed = fails(&["remove", "own"], 1);
    assert!(
        removed.contains(&format!("belongs to process {}", owner.id())),
        "{removed}"
    );
    sys::signal_process(owner.id(), rustix::process::Signal::TERM);
    assert_eq!(owner.wait().unwrap().code(), Some(5));
    same_as(&before);
}

#[test]
fn a_killed_owner_leaves_nothing() {
    if !begin("a_killed_owner_leaves_nothing") {
        return;
    }
    let cpu = last_cpu();
    let before = snapshot();
    for _ in 0..3 {
        let mut owner = taut(&["run", "own", "--cpus", &cpu, "--", "sleep", "3"])
            .spawn()
            .unwrap();
        wait_until("the program runs", || {
            let found = json(&["show"])["partitions"].take();
            found[0]["processes"]
                .as_array()
                .is_some_and(|all| !all.is_empty())
        });
        owner.kill().unwrap();
        owner.wait().unwrap();
        // The guard puts it back, and no other process looks.
        wait_until("the settings are back", || {
            !Path::new("/run/tautline/partition-own.json").exists()
        });
        // The program went on outside.
        wait_until("the program ended", || {
            differences(&before, &snapshot()).is_empty()
        });
    }
}

#[test]
fn making_that_is_killed_at_any_moment_is_undone_by_the_next_command() {
    if !begin("making_that_is_killed_at_any_moment_is_undone_by_the_next_command") {
        return;
    }
    let cpu = last_cpu();
    let _bystander = Sleeper::start();
    let before = snapshot();
    for step in 0..12 {
        let mut making = taut(&["create", "cut", "--cpus", &cpu])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        thread::sleep(Duration::from_millis(step * 25));
        making.kill().unwrap();
        making.wait().unwrap();
        // Killed after its end, it is there, and whole.
        let left = done(&["show"]);
        if left != "no partitions\n" {
            assert!(left.contains("cut"), "{left}");
            done(&["remove", "cut"]);
        }
        same_as(&before);
    }
}

/// A partition that is removed with its programs when dropped.
struct Removed(&'static str);

impl Drop for Removed {
    fn drop(&mut self) {
        let _removed_already = run(&["remove", self.0, "--force"]);
    }
}

#[test]
fn programs_that_leave_the_partitions_cpus_are_told() {
    if !begin("programs_that_leave_the_partitions_cpus_are_told") {
        return;
    }
    let cpu = last_cpu();
    done(&["create", "left", "--cpus", &cpu]);
    let _removed = Removed("left");
    let inside = taut(&["run", "left", "--", "sleep", "100000"]).spawn();
    let inside = Sleeper(KilledOnDrop(inside.unwrap()));
    let show = || json(&["show", "left"]);
    wait_until("it runs inside", || {
        let name = fs::read_to_string(format!("/proc/{}/comm", inside.0.id()));
        name.is_ok_and(|name| name == "sleep\n")
    });
    assert_eq!(show()["outside"], serde_json::json!([]));
    // As the kernel leaves it when a CPU was offline: other CPUs in the group, and the threads on them.
    let groups = fs::read_to_string(format!("/proc/{}/cgroup", inside.0.id())).unwrap();
    let group = groups.lines().find_map(|line| line.split_once(":cpuset:"));
    let Some((_, group)) = group.filter(|(_, group)| *group != "/") else {
        println!(
            "SKIPPED: needs groups of cgroup v1, whose CPUs can be changed beside the partition"
        );
        return;
    };
    let group = Path::new("/sys/fs/cgroup/cpuset").join(group.trim_start_matches('/'));
    fs::write(group.join("cpuset.cpu_exclusive"), "0").unwrap();
    fs::write(group.join("cpuset.cpus"), format!("0,{cpu}")).unwrap();
    let mut moved = Command::new("taskset");
    moved.args(["-a", "-c", "-p", "0", &inside.0.id().to_string()]);
    assert!(moved.stdout(Stdio::null()).status().unwrap().success());
    let told = done(&["show"]);
    assert!(
        told.contains("outside:") && told.contains("may run on CPUs 0;"),
        "{told}"
    );
    assert_eq!(show()["outside"].as_array().unwrap().len(), 1);
}

#[test]
fn without_groups_the_programs_keep_to_the_cpus() {
    if !begin("without_groups_the_programs_keep_to_the_cpus") {
        return;
    }
    without_groups();
    let cpu = last_cpu();
    let before = snapshot();
    let made = json(&["create", "control", "--cpus", &cpu]);
    assert_eq!(made["keeps_others_away"], false, "{made:#}");
    assert!(
        made["stays"].to_string().contains("Read-only file system"),
        "{made:#}"
    );
    let looked = done(&[
        "run",
        "control",
        "--",
        "grep",
        "Cpus_allowed_list",
        "/proc/self/status",
    ]);
    assert_eq!(looked, format!("Cpus_allowed_list:\t{cpu}\n"));
    done(&["remove", "control"]);
    same_as(&before);
}

/// Has no group made, as in a container: the hierarchies are to be seen, and cannot be written.
fn without_groups() {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    for mount in mounts.lines().filter_map(|line| line.split(' ').nth(1)) {
        if mount.starts_with("/sys/fs/cgroup") {
            let mut command = Command::new("mount");
            let command = command.args(["-o", "remount,bind,ro", mount]);
            assert!(command.status().unwrap().success());
        }
    }
}

#[test]
fn another_user_gets_the_reduced_form_and_nothing_of_roots() {
    if !begin("another_user_gets_the_reduced_form_and_nothing_of_roots") {
        return;
    }
    let cpu = last_cpu();
    let scratch = Scratch::new("partition-stranger");
    let own = scratch.0.join("runtime");
    fs::create_dir(&own).unwrap();
    std::os::unix::fs::chown(&own, Some(NOBODY), Some(NOBODY)).unwrap();
    fs::set_permissions(&own, fs::Permissions::from_mode(0o700)).unwrap();
    // The command as that user can reach it.
    let program = scratch.0.join("taut");
    fs::copy(env!("CARGO_BIN_EXE_taut"), &program).unwrap();
    fs::set_permissions(&scratch.0, fs::Permissions::from_mode(0o755)).unwrap();
    let stranger = |arguments: &[&str]| {
        let mut command = Command::new(&program);
        command
            .arg("partition")
            .args(arguments)
            .stdin(Stdio::null());
        command
            .env("XDG_RUNTIME_DIR", &own)
            .uid(NOBODY)
            .gid(NOBODY)
            .current_dir("/");
        command.output().unwrap()
    };
    let before = snapshot();
    let made = stranger(&["create", "mine", "--cpus", &cpu]);
    assert!(made.status.success(), "{}", both(&made));
    assert!(both(&made).contains("reduced"), "{}", both(&made));
    assert!(both(&made).contains("Permission denied"), "{}", both(&made));
    same_as(&before);
    let looked = stranger(&[
        "run",
        "mine",
        "--",
        "grep",
        "Cpus_allowed_list",
        "/proc/self/status",
    ]);
    assert_eq!(both(&looked), format!("Cpus_allowed_list:\t{cpu}\n"));
    let refused = stranger(&["run", "mine", "--priority", "5", "--", "true"]);
    assert!(
        both(&refused).contains("cannot have priority 5"),
        "{}",
        both(&refused)
    );
    assert!(stranger(&["show", "mine"]).status.success());
    let mut of_root = Command::new("sleep");
    sys::pin_command(&mut of_root, cpu.parse().unwrap());
    let mut of_root = of_root.arg("100000").spawn().unwrap();
    wait_until("root's process is on the CPU", || {
        both(&stranger(&["remove", "mine"])).contains(", of user 0")
    });
    let refused = both(&stranger(&["remove", "mine"]));
    assert!(refused.contains("have that user end them"), "{refused}");
    of_root.kill().unwrap();
    of_root.wait().unwrap();
    // Root does not see it, and is not in its way.
    assert_eq!(done(&["show"]), "no partitions\n");
    done(&["create", "roots", "--cpus", &cpu]);
    for action in ["show", "remove"] {
        let refused = stranger(&[action, "roots"]);
        assert!(
            both(&refused).contains("no partition `roots`"),
            "{}",
            both(&refused)
        );
    }
    let refused = stranger(&["create", "more", "--cpus", &cpu]);
    assert!(!refused.status.success(), "{}", both(&refused));
    assert!(stranger(&["remove", "mine"]).status.success());
    done(&["remove", "roots"]);
    same_as(&before);
    // A journal that leads elsewhere is neither read nor written.
    let precious = scratch.0.join("precious");
    fs::write(&precious, "precious").unwrap();
    let journal = own.join("tautline/partition-link.json");
    std::os::unix::fs::symlink(&precious, &journal).unwrap();
    let refused = stranger(&["show"]);
    assert!(
        both(&refused).contains("symbolic link"),
        "{}",
        both(&refused)
    );
    assert_eq!(fs::read_to_string(&precious).unwrap(), "precious");
}

#[test]
fn a_journal_that_cannot_be_read_stops_no_other_partition() {
    if !begin("a_journal_that_cannot_be_read_stops_no_other_partition") {
        return;
    }
    let cpu = last_cpu();
    let before = snapshot();
    done(&["create", "good", "--cpus", &cpu]);
    // Longer than any may be, and of another release; the first of all by their names.
    let runtime = tautline_state::runtime_directory().unwrap();
    let names = ["partition-a.json", "partition-b.json"];
    runtime
        .write(names[0], &vec![b' '; 17 << 20], 0o600)
        .unwrap();
    runtime.write(names[1], b"{\"version\":9}", 0o600).unwrap();
    let listed = run(&["show"]);
    assert!(listed.status.success(), "{}", both(&listed));
    for expected in ["good", "longer than", "version 9"].iter().chain(&names) {
        assert!(both(&listed).contains(expected), "{}", both(&listed));
    }
    let found = json(&["show"])["partitions"].take();
    assert!(found[0]["unreadable"].is_string() && found[2]["unreadable"].is_null());
    done(&["show", "good"]);
    // Its CPUs are not known, so none can be promised to another one.
    let refused = fails(&["create", "new", "--cpus", &cpu], 1);
    assert!(refused.contains(names[0]), "{refused}");
    let refused = fails(&["remove", "b"], 1);
    assert!(
        refused.contains(names[1]) && refused.contains("release"),
        "{refused}"
    );
    done(&["remove", "good"]);
    for name in names {
        runtime.remove(name).unwrap();
    }
    same_as(&before);
}

#[test]
fn a_task_set_runs_in_its_partition() {
    if !begin("a_task_set_runs_in_its_partition") {
        return;
    }
    let cpu = last_cpu();
    let scratch = Scratch::new("partition-task");
    let file = scratch.0.join("set.toml");
    let set = |lines: &str| {
        let task = "[[task]]\nname = \"loop\"\nperiod = \"20ms\"\nworst_case = \"1ms\"\naccept = \"a test\"\n";
        fs::write(
            &file,
            format!("[partition]\nname = \"tasks\"\n{lines}\n{task}"),
        )
        .unwrap();
    };
    let task = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_taut"));
        command
            .args(["task", "run"])
            .arg(&file)
            .args(arguments)
            .stdin(Stdio::null());
        command
    };
    set(&format!("cpus = \"{cpu}\""));
    let before = snapshot();
    let output = task(&["--for", "500ms", "--json"]).output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", both(&output)));
    assert_eq!(report["cpu"].to_string(), cpu, "{report:#}");
    same_as(&before);
    let mut owner = task(&["--for", "0s"])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    wait_until("the set runs in its partition", || {
        let found = json(&["show"])["partitions"].take();
        found[0]["processes"]
            .as_array()
            .is_some_and(|all| !all.is_empty())
    });
    let others = online().without(&cpu.parse().unwrap());
    let elsewhere = others.iter().next().unwrap().to_string();
    let refused = both(&task(&["--cpu", &elsewhere]).output().unwrap());
    assert!(refused.contains("is not in partition `tasks`"), "{refused}");
    owner.kill().unwrap();
    owner.wait().unwrap();
    wait_until("the guard has put it back", || {
        differences(&before, &snapshot()).is_empty()
    });
    set("cpus = \"4095\"");
    let refused = both(&task(&[]).output().unwrap());
    assert!(refused.contains("CPU 4095 is not online"), "{refused}");
}

#[test]
fn groups_of_others_are_neither_taken_nor_removed() {
    if !Path::new(CPUSET_V1).join("cpuset.cpus").exists() {
        println!("SKIPPED: needs cpusets of cgroup v1");
        return;
    }
    if !begin("groups_of_others_are_neither_taken_nor_removed") {
        return;
    }
    let cpu = last_cpu();
    let clean = snapshot();
    let group = |name: &str| {
        let path = Path::new(CPUSET_V1).join(name);
        fs::create_dir(&path).unwrap();
        RemovedAtEnd(path)
    };
    // A directory that has the name already.
    let taken = group("tautline-control");
    let refused = fails(&["create", "control", "--cpus", &cpu], 1);
    assert!(
        refused.contains("tautline-control") && refused.contains("exists"),
        "{refused}"
    );
    assert!(taken.0.exists());
    drop(taken);
    same_as(&clean);
    // A group that has the CPU for itself.
    let exclusive = group("other");
    fs::write(exclusive.0.join("cpuset.mems"), "0").unwrap();
    fs::write(exclusive.0.join("cpuset.cpus"), &cpu).unwrap();
    fs::write(exclusive.0.join("cpuset.cpu_exclusive"), "1").unwrap();
    let refused = fails(&["create", "control", "--cpus", &cpu], 1);
    assert!(refused.contains("has them for itself"), "{refused}");
    // Nested groups that share give the CPU up for as long as the partition lasts.
    fs::write(exclusive.0.join("cpuset.cpu_exclusive"), "0").unwrap();
    fs::write(exclusive.0.join("cpuset.cpus"), online().to_string()).unwrap();
    let nested = group("other/nested");
    fs::write(nested.0.join("cpuset.mems"), "0").unwrap();
    fs::write(nested.0.join("cpuset.cpus"), online().to_string()).unwrap();
    let inside = Sleeper::start();
    fs::write(nested.0.join("cgroup.procs"), inside.0.id().to_string()).unwrap();
    let before = snapshot();
    done(&["create", "control", "--cpus", &cpu]);
    assert!(
        !inside.cpus().split(',').any(|one| one == cpu),
        "{}",
        inside.cpus()
    );
    done(&["remove", "control"]);
    same_as(&before);
    assert_eq!(inside.cpus(), online().to_string());
    drop(inside);
    drop((nested, exclusive));
    same_as(&clean);
}

/// A group of the test's own.
struct RemovedAtEnd(PathBuf);

impl Drop for RemovedAtEnd {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0); // in the way of the last check if it fails
    }
}
