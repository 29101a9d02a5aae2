//! A run as others see it, and the example.

use std::path::Path;
use std::process::Command;

use tautline_exec::{Job, TaskSet};
use tautline_tasks::Executive;

use super::{ms, options, stopped, task, wait_until};

#[test]
fn the_example_runs_the_set_of_its_file() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let test = std::env::current_exe().unwrap();
    let profile = test.ancestors().nth(2).unwrap();
    let program = profile.join("examples/three_rates");
    if !program.exists() {
        // Where this test was built alone.
        let mut build = Command::new(env!("CARGO"));
        build.args([
            "build",
            "-p",
            "tautline-tasks",
            "--example",
            "three_rates",
            "--target-dir",
        ]);
        let status = build
            .arg(profile.parent().unwrap())
            .current_dir(&root)
            .status();
        assert!(status.unwrap().success());
    }
    let mut example = Command::new(program);
    let output = example
        .arg(root.join("examples/three_rates.toml"))
        .arg("300")
        .output()
        .unwrap();
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{shown}");
    assert!(
        shown.contains("control: ") && shown.contains("health records"),
        "{shown}"
    );
    let missing = Executive::from_file("/nonexistent.toml").err().unwrap();
    let message = format!("{missing:?}");
    assert!(
        message.contains("cannot read /nonexistent.toml"),
        "{message}"
    );
    assert!(
        message.contains("what to do: name a file with a task set"),
        "{message}"
    );
}

#[test]
fn a_run_is_seen_from_outside_with_its_jobs() {
    let set = TaskSet::new(vec![task("seen-from-outside", ms(2))]).unwrap();
    let mut executive = Executive::new(set).unwrap();
    executive.task("seen-from-outside", |_: &Job| {}).unwrap();
    let running = executive.start(&options()).unwrap();
    if running
        .limits()
        .iter()
        .any(|limit| limit.contains("does not see"))
    {
        println!("SKIPPED: {:?}", running.limits());
        return;
    }
    let is_own =
        |run: &tautline_tasks::View| run.description().tasks[0].name == "seen-from-outside";
    let mut run = tautline_tasks::runs().into_iter().find(is_own).unwrap();
    wait_until(|| run.look().unwrap().tasks().next().unwrap().jobs > 20);
    let look = run.look().unwrap();
    let (jobs, seen) = look.trace(0, 5);
    assert_eq!(jobs.len() as u64, seen - 5);
    for job in &jobs {
        assert!(job.begin >= job.release && job.end >= job.begin, "{job:?}");
    }
    let summary = stopped(running);
    assert_eq!(summary.tasks[0].trace.len() as u64, summary.tasks[0].jobs);
    assert!(!tautline_tasks::runs().iter().any(is_own));
}
