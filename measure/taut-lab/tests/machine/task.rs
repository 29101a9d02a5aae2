//! `taut-lab task compare`, which runs the command `taut` beside it.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::common::{Scratch, text};

fn task(arguments: &[&str]) -> Output {
    let mut command = Command::new(crate::PROGRAM);
    command.arg("task").args(arguments).stdin(Stdio::null());
    command.output().unwrap()
}

#[test]
fn missed_deadlines_are_compared_without_a_partition_and_in_one() {
    let taut = crate::PROGRAM.strip_suffix("-lab").unwrap();
    if !Path::new(taut).exists() {
        println!("SKIPPED: the command taut is not beside this one (cargo build -p taut)");
        return;
    }
    let scratch = Scratch::new("task-compare");
    let json = scratch.0.join("compare.json").display().to_string();
    let file = scratch.0.join("set.toml").display().to_string();
    let one_task = "[[task]]\nname = \"one\"\nperiod = \"20ms\"\nworst_case = \"1ms\"\n";
    fs::write(&file, one_task).unwrap();
    let written = format!("--json={json}");
    let words = [
        "compare", &file, "--for", "500ms", "--load", "idle,cpu", &written,
    ];
    let output = task(&words);
    let shown = text(&output.stdout);
    assert!(output.status.success(), "{shown}{}", text(&output.stderr));
    assert!(shown.contains("one, cpu, without one"), "{shown}");
    let json: serde_json::Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    let conditions = json["conditions"].as_array().unwrap();
    assert_eq!(conditions.len(), 4);
    for one in conditions {
        let jobs = one["run"]["tasks"][0]["jobs"].as_u64();
        if one["partition"] == true && jobs.is_none() {
            println!("SKIPPED: the partition: {}", one["reason"]);
            continue;
        }
        assert!(jobs > Some(5), "{one}");
        assert_eq!(
            one["achieved"].as_array().unwrap().is_empty(),
            one["load"] == "idle"
        );
    }
}
