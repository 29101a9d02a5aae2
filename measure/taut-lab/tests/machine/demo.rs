//! The demo as a user runs it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use tautline_testbed::sys;

use crate::common::{browse, skipped_without_privilege, text};

/// Far longer than any step takes; only ends a test that would hang.
const PATIENCE: Duration = Duration::from_secs(60);
const NOBODY: u32 = 65_534;

/// One demo at a time: each fills a cable and wants two processors.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A directory of its own that anybody may write to, removed at the end.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Directory {
        let path = std::env::temp_dir().join(format!("taut-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
        Directory(path)
    }

    fn out(&self) -> PathBuf {
        self.0.join("out")
    }

    fn json(&self) -> Value {
        serde_json::from_slice(&fs::read(self.out().join("report.json")).unwrap()).unwrap()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn demo(seconds: &str, directory: &Directory) -> Command {
    let mut command = Command::new(crate::PROGRAM);
    command
        .args(["demo", "--for", seconds, "--out"])
        .arg(directory.out())
        .stdin(Stdio::null());
    command
}

fn namespaces_of(pid: u32) -> [PathBuf; 2] {
    ["a", "b"].map(|letter| Path::new("/run/netns").join(format!("taut-{pid}-{letter}")))
}

/// Contents of every report, on whatever link.
fn check_report(json: &Value, output: &Output) {
    let rows = json["rows"].as_array().unwrap();
    let paths: Vec<&str> = rows
        .iter()
        .map(|row| row["path"].as_str().unwrap())
        .collect();
    assert_eq!(paths, ["tautline", "udp-poll", "udp-block", "tcp"]);
    for row in rows {
        let number = |key: &str| row[key].as_u64().unwrap();
        assert!(number("cycles") > 0 && number("count") > 0, "{row}");
        assert!(number("missed") <= number("cycles"), "{row}");
        let figures = ["min_ns", "p50_ns", "p99_ns", "p999_ns", "max_ns"].map(number);
        assert!(figures[0] > 0 && figures.is_sorted(), "{row}");
    }
    assert!(json["load"]["gbit_per_s"].as_f64().unwrap() > 0.0);
    assert_eq!(json["settings"]["deadline_us"], 1_000);
    assert!(json["machine"]["kernel_release"].is_string());
    assert!(json["kernel"].is_string() && json["verdict"].is_string());
    let table = text(&output.stdout);
    for word in [
        "p99.9",
        "missed",
        "Gbit/s",
        "UDP polled",
        "UDP blocking",
        "TCP polled",
        "link ",
    ] {
        assert!(table.contains(word), "{word}: {table}");
    }
}

#[test]
fn a_demo_measures_four_ways_and_removes_its_hosts() {
    if skipped_without_privilege() {
        return;
    }
    let _alone = alone();
    let directory = Directory::new("demo");
    let child = demo("2s", &directory)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let made = namespaces_of(child.id());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(!made.iter().any(|path| path.exists()));
    let json = directory.json();
    check_report(&json, &output);
    assert_ne!(json["link"]["link"], "udp", "a better one works here");
    check_somebody_else(&json, &output);
    check_page(&directory, &json);
}

/// The loop that computes: all paths, whole turns, and no more received than sent.
fn check_somebody_else(json: &Value, output: &Output) {
    let rows = json["beside"].as_array().unwrap();
    let paths: Vec<&str> = rows
        .iter()
        .map(|row| row["path"].as_str().unwrap())
        .collect();
    let expected = ["tautline", "kernel-udp", "kernel-udp-in-thread", "nothing"];
    assert_eq!(paths, expected);
    for row in rows {
        let number = |key: &str| row[key].as_u64().unwrap();
        assert!(number("cycles") > 0 && number("cycles") % 200 == 0, "{row}");
        assert!(number("missed") <= number("cycles"), "{row}");
        assert!(number("received") <= number("sent"), "{row}");
        assert_eq!(number("received") > 0, row["path"] != "nothing", "{row}");
    }
    assert!(json["other_work"]["busy"].is_number());
    let table = text(&output.stdout);
    for word in [
        "messages through",
        "148,810",
        "for somebody else",
        "received",
    ] {
        assert!(table.contains(word), "{word}: {table}");
    }
}

/// Reads the page with a browser: the figures of the result file are in it.
fn check_page(directory: &Directory, json: &Value) {
    let page = directory.out().join("report.html");
    let Some(dom) = browse(&page, &directory.0.join("browser")) else {
        return;
    };
    assert_eq!(
        dom.matches("<svg class=\"plot wide").count(),
        3,
        "all plots are drawn"
    );
    for row in json["rows"].as_array().unwrap() {
        // The column's unit is that in which its least figure can be read.
        let ns = row["p50_ns"].as_u64().unwrap() as f64;
        let cells = [1e3, 1e6].map(|unit| format!(">{:.2}</td>", ns / unit));
        assert!(
            cells.iter().any(|cell| dom.contains(cell)),
            "{cells:?} of {row}"
        );
    }
    assert!(dom.contains("A loop that computes") && dom.contains(" UTC</footer>"));
}

#[test]
fn without_privilege_it_runs_over_loopback_and_says_so() {
    let _alone = alone();
    let directory = Directory::new("demo-nobody");
    let output = match demo("2s", &directory).uid(NOBODY).gid(NOBODY).output() {
        Ok(output) => output,
        Err(error) => {
            println!("SKIPPED: cannot run the command as nobody: {error}");
            return;
        }
    };
    assert!(output.status.success(), "{}", text(&output.stderr));
    let said = text(&output.stderr);
    assert!(
        said.contains("no privilege") && said.contains("run it as root for two hosts (sudo "),
        "{said}"
    );
    assert!(text(&output.stdout).contains("Without privilege"));
    let json = directory.json();
    check_report(&json, &output);
    assert_eq!(json["link"]["link"], "udp");
    let page = fs::read_to_string(directory.out().join("report.html")).unwrap();
    assert!(page.contains("Without privilege"));
}

#[test]
fn an_interrupted_demo_leaves_nothing() {
    if skipped_without_privilege() {
        return;
    }
    let _alone = alone();
    let directory = Directory::new("demo-interrupted");
    let mut child = demo("60s", &directory)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let made = namespaces_of(child.id());
    let start = Instant::now();
    // The load is the last to start.
    while children_of(child.id()).is_empty() || !made.iter().all(|path| path.exists()) {
        assert!(start.elapsed() < PATIENCE, "waited too long");
        thread::sleep(Duration::from_millis(10));
    }
    thread::sleep(Duration::from_millis(800));
    let children = children_of(child.id());
    sys::signal_process(child.id(), Signal::INT);
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(128 + Signal::INT.as_raw()), "{status}");
    assert!(!made.iter().any(|path| path.exists()));
    let start = Instant::now();
    // Killed with their parent, but it is another process that reaps them.
    while children
        .iter()
        .any(|(pid, name)| name_of(*pid).as_ref() == Some(name))
    {
        assert!(start.elapsed() < PATIENCE, "{children:?} still run");
        thread::sleep(Duration::from_millis(10));
    }
    assert!(!directory.out().join("report.json").exists());
}

/// Processes that this one started, with their names.
fn children_of(parent: u32) -> Vec<(u32, String)> {
    let path = format!("/proc/{parent}/task/{parent}/children");
    let list = fs::read_to_string(path).unwrap_or_default();
    list.split_whitespace()
        .filter_map(|pid| {
            let pid = pid.parse().ok()?;
            Some((pid, name_of(pid)?))
        })
        .collect()
}

/// A living process's name.
fn name_of(pid: u32) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let field = |key| {
        let line = status.lines().find_map(|line| line.strip_prefix(key))?;
        Some(line.trim().to_owned())
    };
    (!field("State:")?.starts_with('Z')).then(|| field("Name:"))?
}

#[test]
fn in_a_root_directory_that_lacks_something_it_names_what_to_mount() {
    if skipped_without_privilege() {
        return;
    }
    let directory = Directory::new("demo-root");
    let said = |prepare: &str| {
        let root = directory
            .0
            .join(if prepare.is_empty() { "empty" } else { "proc" });
        make_root(&root);
        let script =
            format!("exec 2>&1; {prepare} chroot $ROOT /taut-lab demo --for 1s --out /report");
        let output = Command::new("unshare")
            .args(["--net", "--mount", "sh", "-c", &script])
            .env("ROOT", &root)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        text(&output.stdout)
    };
    let without_proc = said("");
    assert!(without_proc.contains("mount /proc"), "{without_proc}");
    assert!(!without_proc.contains("run it as root"), "{without_proc}");
    let without_dev = said("mount -t proc proc $ROOT/proc;");
    assert!(without_dev.contains("/dev/null"), "{without_dev}");
    assert!(
        without_dev.contains("mount /proc, /sys and /dev"),
        "{without_dev}"
    );
    assert!(!without_dev.contains("not installed"), "{without_dev}");
}

/// A root directory with the command, `ip`, and the libraries of both, and an empty /proc.
fn make_root(root: &Path) {
    fs::create_dir_all(root.join("proc")).unwrap();
    fs::create_dir_all(root.join("bin")).unwrap();
    fs::copy(crate::PROGRAM, root.join("taut-lab")).unwrap();
    let script = r#"for program in "$COMMAND" "$(command -v ip)"; do
            ldd "$program" | grep -o '/[^ ]*' | while read -r library; do
                mkdir -p "$ROOT$(dirname "$library")"; cp -n "$library" "$ROOT$library"
            done
        done; cp "$(command -v ip)" "$ROOT/bin/""#;
    let status = Command::new("sh")
        .args(["-c", script])
        .env("COMMAND", crate::PROGRAM)
        .env("ROOT", root)
        .status();
    assert!(status.unwrap().success());
}
