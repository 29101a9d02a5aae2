//! Tasks that are programs.

use std::time::Duration;

use tautline_exec::{Action, Event, TaskSet};
use tautline_tasks::{Executive, Program, TaskState};

use crate::watchdog::watchdogs_sleeps;

use super::{ANSWERS, count_of, counter, ms, of_shells, options, script, stopped, wait_until};

#[test]
fn programs_do_the_jobs_of_tasks_and_one_that_dies_stops_alone() {
    let (place, good) = script("good.sh", ANSWERS);
    let dies = "while read number rest; do [ $number = 3 ] && kill -9 $$; echo $number; done";
    std::fs::write(place.path().join("dies.sh"), dies).unwrap();
    let dies = Program {
        words: vec!["sh".to_owned(), "dies.sh".to_owned()],
        safe_words: Some(["touch", "is-safe"].map(str::to_owned).to_vec()),
        directory: place.path().to_owned(),
    };
    let set = TaskSet::new(vec![of_shells("dies"), of_shells("good")]).unwrap();
    let mut executive = Executive::new(set).unwrap();
    executive.program("dies", dies).unwrap();
    executive.program("good", good).unwrap();
    let running = executive.start(&options()).unwrap();
    wait_until(|| place.path().join("is-safe").exists());
    let before = running.records().len();
    std::thread::sleep(ms(200));
    let summary = stopped(running);
    assert!(before > 0);
    assert!(summary.tasks[0].is_stopped && !summary.tasks[1].is_stopped);
    assert_eq!(summary.tasks[0].jobs, 3, "the third one failed");
    assert!(summary.tasks[1].jobs > 5 && summary.tasks[1].execution.max > Duration::ZERO);
    let told = summary.limits.iter().any(|limit| {
        limit == "`dies`: its program ended (signal: 9 (SIGKILL)), and it was stopped"
    });
    assert!(told, "{:?}", summary.limits);
}

/// A program that is stopped and goes on is late, as one that slept with the machine; nothing is made up for.
#[test]
fn a_program_that_was_stopped_for_a_while_goes_on_without_a_storm() {
    let (_place, sleeps) = script(
        "stopped.sh",
        "while read number rest; do\n\
         [ $number = 3 ] && { (sleep 0.3; kill -CONT $$) & kill -STOP $$; }; echo $number; done",
    );
    let mut executive = Executive::new(TaskSet::new(vec![of_shells("sleeps")]).unwrap()).unwrap();
    executive.program("sleeps", sleeps).unwrap();
    let running = executive.start(&options()).unwrap();
    wait_until(|| running.task("sleeps").unwrap().jobs > 6);
    let summary = stopped(running);
    let left_out = |record: &&tautline_exec::HealthRecord| matches!(record.action, Action::Skipped { releases } if releases >= 10);
    assert!(
        summary.records.iter().any(|record| left_out(&record)),
        "{:?}",
        summary.records
    );
    let trace = &summary.tasks[0].trace;
    let gaps = trace
        .windows(2)
        .map(|pair| pair[1].release - pair[0].release);
    assert!(gaps.clone().all(|gap| gap >= ms(20)), "{trace:?}");
    assert!(gaps.max() >= Some(ms(220)), "{trace:?}");
}

#[test]
fn a_program_beyond_its_budget_goes_on_below_all_others_and_is_ended_with_the_set() {
    let spins = "read number rest; echo $number; read number rest; while :; do :; done";
    let (_place, spins) = script("spins.sh", spins);
    let mut task = of_shells("spins");
    task.budget = Some(ms(6));
    let set = TaskSet::new(vec![task, of_shells("good")]).unwrap();
    let mut executive = Executive::new(set).unwrap();
    executive.program("spins", spins).unwrap();
    let (good, body) = counter();
    executive.task("good", body).unwrap();
    let running = executive.start(&options()).unwrap();
    let demoted = |record: &tautline_exec::HealthRecord| record.action == Action::Demoted;
    wait_until(|| running.records().iter().any(demoted));
    let before = count_of(&good);
    wait_until(|| count_of(&good) > before + 5);
    let own: Vec<_> = tautline_tasks::runs()
        .into_iter()
        .filter(|run| run.description().process == std::process::id())
        .filter(|run| run.description().tasks[0].name == "spins")
        .collect();
    for mut run in own {
        let first = run.look().unwrap().tasks().next().unwrap();
        assert_eq!(first.state, TaskState::Demoted);
        assert!(first.running_since.is_some());
    }
    let summary = running.stop(ms(100));
    assert!(summary.tasks[0].is_left, "it did not answer in time");
}

#[test]
fn a_program_that_does_not_begin_is_an_error_with_its_task() {
    let set = || TaskSet::new(vec![of_shells("a")]).unwrap();
    for (words, reason) in [
        (["./none", ""], "No such file"),
        (["true", ""], "its program ended (exit status: 0)"),
    ] {
        let mut executive = Executive::new(set()).unwrap();
        let program = Program {
            words: words.map(str::to_owned).to_vec(),
            safe_words: None,
            directory: std::path::PathBuf::new(),
        };
        executive.program("a", program).unwrap();
        let error = executive.start(&options()).err().unwrap();
        assert!(error.to_string().contains(reason), "{error}");
        assert!(error.to_string().contains("task `a`"), "{error}");
    }
}

/// Each look takes the CPU from all tasks.
#[test]
fn the_watchdog_leaves_a_job_beyond_its_budget_alone() {
    let sleeps = "read number rest; echo $number; read number rest\n\
         count=0; while [ $count -lt 30000 ]; do count=$((count + 1)); done; touch begun; sleep 0.5; touch done\n\
         while :; do sleep 1; done";
    let (place, sleeps) = script("sleeps.sh", sleeps);
    let mut task = of_shells("sleeps");
    (task.worst_case, task.budget) = (ms(1) / 10, Some(ms(1) / 5));
    let mut executive = Executive::new(TaskSet::new(vec![task]).unwrap()).unwrap();
    executive.program("sleeps", sleeps).unwrap();
    let running = executive.start(&options().with_cpu(0)).unwrap();
    let has = |file: &str| place.path().join(file).exists();
    wait_until(|| has("begun"));
    let before = watchdogs_sleeps();
    wait_until(|| has("done"));
    let looks = watchdogs_sleeps() - before;
    // Each 10 ms, and not each 200 us.
    assert!(looks < 1_000, "{looks} looks");
    stopped(running);
}

/// The clock of another process advances at the kernel's ticks, 1 to 10 ms, unless the watchdog takes the CPU from it.
#[test]
fn the_budget_of_a_program_ends_within_a_tick() {
    let spins = "while read number rest; do count=0\n\
         [ $number = 0 ] || while [ $count -lt 30000 ]; do count=$((count + 1)); done\n\
         echo $number; done";
    let (_place, spins) = script("spins.sh", spins);
    let mut task = of_shells("spins");
    (task.period, task.deadline) = (ms(20), ms(20));
    (task.worst_case, task.budget) = (ms(1) / 10, Some(ms(1) / 5));
    let mut executive = Executive::new(TaskSet::new(vec![task]).unwrap()).unwrap();
    executive.program("spins", spins).unwrap();
    let running = executive.start(&options().with_cpu(0)).unwrap();
    if !running.limits().is_empty() {
        println!("SKIPPED: {:?}", running.limits());
        return;
    }
    let used = |records: Vec<tautline_exec::HealthRecord>| {
        let used = records.into_iter().filter_map(|record| match record.event {
            Event::BudgetExceeded { used } => Some(used),
            _ => None,
        });
        used.collect::<Vec<Duration>>()
    };
    wait_until(|| used(running.records()).len() >= 30);
    let mut used = used(stopped(running).records);
    used.sort();
    assert!(used[used.len() / 2] < ms(1) / 2, "{used:?}");
}
