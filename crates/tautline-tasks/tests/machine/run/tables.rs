//! Static cyclic tables.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tautline_exec::{Action, Event, Job, OverrunPolicy, TablePlan};
use tautline_tasks::{Executive, TaskState};

use super::{
    count_of, counter, endless_jobs, in_mode, ms, of_shells, options, script, stopped, table_of,
    task, wait_until, window_at,
};

#[test]
fn a_table_runs_each_job_in_its_window() {
    let plan = TablePlan {
        minor_frame: None,
        windows: vec![
            window_at(0, ms(0), ms(4)),
            window_at(1, ms(5), ms(4)),
            window_at(0, ms(10), ms(4)),
        ],
    };
    let tasks = vec![task("fast", ms(10)), task("slow", ms(20))];
    let mut executive = Executive::new(table_of(tasks, Vec::new(), plan)).unwrap();
    let begun = Arc::new(std::sync::Mutex::new(Vec::new()));
    for name in ["fast", "slow"] {
        let jobs = begun.clone();
        let body = move |job: &Job| jobs.lock().unwrap().push((name, *job));
        executive.task(name, body).unwrap();
    }
    let running = executive.start(&options()).unwrap();
    wait_until(|| begun.lock().unwrap().len() >= 30);
    let summary = stopped(running);
    let begun = begun.lock().unwrap();
    for (name, job) in begun.iter() {
        let since_start = job.ready - summary.start;
        let offset = since_start.as_nanos() % ms(20).as_nanos();
        match *name {
            "fast" => assert!(job.ready == job.release && offset.is_multiple_of(ms(10).as_nanos())),
            _ => assert!(job.ready == job.release + ms(5) && offset == ms(5).as_nanos()),
        }
    }
    let jobs: Vec<u64> = summary.tasks.iter().map(|task| task.jobs).collect();
    assert!(jobs[0] > jobs[1] && jobs[1] > 5, "{jobs:?}");
    for (task, jobs) in summary.tasks.iter().zip(jobs) {
        assert_eq!(task.trace.len() as u64, jobs);
        assert!(task.lateness.max <= task.response.max);
    }
}

#[test]
fn a_job_of_a_table_that_never_returns_keeps_its_window_and_no_other() {
    let plan = TablePlan {
        minor_frame: None,
        windows: vec![window_at(0, ms(0), ms(4)), window_at(1, ms(4), ms(5))],
    };
    for policy in [OverrunPolicy::Skip, OverrunPolicy::Stop] {
        let mut endless = task("endless", ms(10));
        endless.overrun = policy;
        let tasks = vec![endless, task("good", ms(10))];
        let set = table_of(tasks, Vec::new(), plan.clone());
        let mut executive = Executive::new(set).unwrap();
        let (is_over, body) = endless_jobs();
        executive.task("endless", body).unwrap();
        let (good, body) = counter();
        executive.task("good", body).unwrap();
        let running = executive.start(&options().with_cpu(0)).unwrap();
        wait_until(|| count_of(&good) >= 20);
        let action = match policy {
            OverrunPolicy::Stop => Action::Stopped,
            _ => Action::Demoted,
        };
        let records = running.records();
        let used_up = |record: &&tautline_exec::HealthRecord| {
            matches!(record.event, Event::WindowsExceeded { .. }) && record.action == action
        };
        let found: Vec<_> = records.iter().filter(used_up).collect();
        assert!(found.len() == 1 && found[0].task == 0, "{records:?}");
        let state = running.task("endless").unwrap().state;
        assert_eq!(state == TaskState::Stopped, policy == OverrunPolicy::Stop);
        is_over.store(true, Ordering::Relaxed);
        let summary = stopped(running);
        assert!(!summary.tasks[0].is_left && !summary.tasks[1].is_stopped);
        assert_eq!(summary.tasks[0].is_stopped, policy == OverrunPolicy::Stop);
    }
}

#[test]
fn a_mode_of_a_table_has_windows_of_its_own_and_the_safe_mode_comes_at_once() {
    let mut endless = in_mode(task("endless", ms(10)), "run");
    endless.overrun = OverrunPolicy::SafeMode;
    let safe = in_mode(task("safe", ms(10)), "safe");
    let modes = vec!["run".to_owned(), "safe".to_owned()];
    let set = table_of(vec![endless, safe], modes, TablePlan::default());
    let mut executive = Executive::new(set.with_safe_mode("safe").unwrap()).unwrap();
    let (is_over, body) = endless_jobs();
    executive.task("endless", body).unwrap();
    let (safe, body) = counter();
    executive.task("safe", body).unwrap();
    let running = executive.start(&options().with_cpu(0)).unwrap();
    // The job that runs does not hold the change up.
    wait_until(|| count_of(&safe) >= 5);
    assert_eq!(running.mode(), "safe");
    is_over.store(true, Ordering::Relaxed);
    let summary = stopped(running);
    assert!(!summary.tasks[0].is_left);
}

#[test]
fn a_program_of_a_table_that_uses_up_its_window_is_killed_if_its_policy_is_to_stop() {
    let spins = "read number rest; echo $number; read number rest; while :; do :; done";
    let (place, mut spins) = script("spins.sh", spins);
    spins.safe_words = Some(["touch", "is-safe"].map(str::to_owned).to_vec());
    let mut task = of_shells("table-spins");
    task.overrun = OverrunPolicy::Stop;
    let set = table_of(
        vec![task, of_shells("good")],
        Vec::new(),
        TablePlan::default(),
    );
    let mut executive = Executive::new(set).unwrap();
    executive.program("table-spins", spins).unwrap();
    let (good, body) = counter();
    executive.task("good", body).unwrap();
    let running = executive.start(&options()).unwrap();
    wait_until(|| place.path().join("is-safe").exists());
    let before = count_of(&good);
    wait_until(|| count_of(&good) > before + 5);
    let summary = stopped(running);
    assert!(summary.tasks[0].is_stopped && !summary.tasks[0].is_left);
}
