//! `taut task check` as a user runs it, and its file format against `docs/executive.md`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tautline_tasks::file::parse;

mod common;
use common::Scratch;

fn check(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_taut"));
    command.args(["task", "check"]).args(arguments);
    command.stdin(Stdio::null()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
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
    for part in ["control", "298 µs", "█", "·", "holds: every deadline"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let page = fs::read_to_string(page).unwrap();
    assert!(page.contains("<svg") && page.contains("Every task holds its deadline"));
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
        shown.contains("if all execution times were 0.96 times as long"),
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
    assert_eq!(output.status.code(), Some(1));
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
        text(&output.stderr).contains("not a regular file"),
        "{}",
        text(&output.stderr)
    );
}

/// The keys of a section's table in the page.
fn documented(section: &str) -> Vec<String> {
    let page = fs::read_to_string(root().join("docs/executive.md")).unwrap();
    let part = page.split(&format!("### {section}\n")).nth(1).unwrap();
    let part = part.split("\n#").next().unwrap();
    let rows = part.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.map(|row| row.split('`').next().unwrap().to_owned())
        .collect()
}

/// The keys that the error about an unknown one lists.
fn expected(text: &str) -> Vec<String> {
    let error = parse(text, "f").unwrap_err().message;
    let list = error.split("expected one of ").nth(1).expect(&error);
    list.split(", ")
        .map(|key| key.trim_matches('`').to_owned())
        .collect()
}

#[test]
fn the_page_lists_every_key_and_no_other() {
    for (section, text) in [
        ("`[machine]`", "[machine]\nx = 1\n"),
        ("`[[receive]]`", "[[receive]]\nx = 1\n"),
        ("`[[task]]`", "[[task]]\nx = 1\n"),
        ("`[[window]]`", "[[window]]\nx = 1\n"),
    ] {
        assert_eq!(documented(section), expected(text), "{section}");
    }
    let sections = ["machine", "receive", "task", "window"];
    let top: Vec<String> = expected("x = 1\n")
        .into_iter()
        .filter(|key| !sections.contains(&key.as_str()))
        .collect();
    assert_eq!(documented("Top level"), top);
}
