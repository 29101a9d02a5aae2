//! Earliest deadlines.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tautline_exec::{Job, Machine, Scheduling, TaskSet};
use tautline_state::TemporaryDirectory;
use tautline_tasks::{Executive, RunError};

use super::{ANSWERS, count_of, ms, options, policy, script, stopped, task, wait_until};

#[test]
fn earliest_deadlines_are_refused_with_a_reason_where_they_cannot_be_had() {
    let set = || {
        let tasks = vec![task("one", ms(10)), task("two", ms(20))];
        let scheduling = Scheduling::EarliestDeadline;
        TaskSet::declare(
            scheduling,
            Machine::default(),
            Vec::new(),
            Vec::new(),
            tasks,
        )
        .unwrap()
    };
    let mut executive = Executive::new(set()).unwrap();
    executive.task("one", |_: &Job| {}).unwrap();
    executive.task("two", |_: &Job| {}).unwrap();
    // A thread that is pinned to one CPU of several.
    if std::thread::available_parallelism().unwrap().get() > 1 {
        let refused = executive.start(&options().with_cpu(0)).err().unwrap();
        assert!(matches!(refused, RunError::DeadlineRefused(_)), "{refused}");
        assert!(refused.remedy().contains("partition of one CPU"));
    }
    let mut executive = Executive::new(set()).unwrap();
    let (_place, program) = script("answers.sh", ANSWERS);
    executive.program("one", program).unwrap();
    executive.task("two", |_: &Job| {}).unwrap();
    let refused = executive.start(&options()).err().unwrap();
    assert!(
        matches!(refused, RunError::ProgramByDeadline { .. }),
        "{refused}"
    );
}

/// In a process of its own: the partition is entered with the whole process.
#[test]
fn earliest_deadlines_run_under_sched_deadline() {
    let file = TemporaryDirectory::make("tautline-tasks-test").unwrap();
    let path = file.path().join("deadlines.toml");
    let name = format!("taut-edf-{}", std::process::id());
    let cpu = std::thread::available_parallelism().unwrap().get() - 1;
    let text = format!(
        "schedule = \"earliest-deadline\"\n[partition]\nname = \"{name}\"\ncpus = \"{cpu}\"\n\
         [machine]\noverhead = \"500us\"\n\
         [[task]]\nname = \"one\"\nperiod = \"10ms\"\nworst_case = \"1ms\"\n\
         [[task]]\nname = \"two\"\nperiod = \"50ms\"\nworst_case = \"20ms\"\nexec = \"sh policy.sh\"\n"
    );
    // Its children have no share.
    let program =
        "while read number rest; do cut -d' ' -f41 /proc/$$/stat >> policies; echo $number; done";
    std::fs::write(file.path().join("policy.sh"), program).unwrap();
    std::fs::write(&path, text).unwrap();
    const CHILD: &str = "TAUTLINE_TEST_DEADLINES";
    if let Some(path) = std::env::var_os(CHILD) {
        let place = std::path::PathBuf::from(&path);
        let place = place.parent().unwrap();
        let mut executive = Executive::from_file(&path).unwrap();
        let policies = Arc::new(AtomicU64::new(0));
        let seen = policies.clone();
        let body = move |_: &Job| seen.store(100 + u64::from(policy()), Ordering::Relaxed);
        executive.task("one", body).unwrap();
        match executive.start(&options()) {
            Ok(running) => {
                wait_until(|| count_of(&policies) > 0 && running.task("two").unwrap().jobs > 2);
                let limits = running.limits().join("; ");
                assert!(stopped(running).tasks[0].jobs > 0);
                // 6 is SCHED_DEADLINE.
                assert_eq!(count_of(&policies), 106, "{limits}");
                let of_program = std::fs::read_to_string(place.join("policies")).unwrap();
                let of_jobs: Vec<&str> = of_program.lines().skip(1).collect();
                assert!(of_jobs.len() > 2, "{of_program}");
                assert!(
                    of_jobs.iter().all(|policy| *policy == "6"),
                    "{of_program}{limits}"
                );
                println!("ran under SCHED_DEADLINE");
            }
            Err(error) => println!("SKIPPED: {error}"),
        }
        return;
    }
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args([
        "--exact",
        "run::deadlines::earliest_deadlines_run_under_sched_deadline",
        "--nocapture",
    ]);
    let output = child.env(CHILD, &path).output().unwrap();
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{shown}");
    let line = |start: &str| {
        shown
            .lines()
            .find(|line| line.contains(start))
            .map(str::to_owned)
    };
    println!("{}", line("SKIPPED").or(line("ran under")).unwrap());
}
