//! Modes and their changes.

use std::sync::{Arc, Mutex};

use tautline_exec::{Action, Job, OverrunPolicy, Task};
use tautline_tasks::Executive;

use super::{
    compute, count_of, counter, in_mode, ms, options, set_of_modes, stopped, task, us, wait_until,
};

#[test]
fn an_overrun_stops_a_task_or_brings_the_safe_mode() {
    let of_run = |name, overrun| {
        let mut task = in_mode(Task::periodic(name, ms(4), us(100)), "run");
        task.overrun = overrun;
        task
    };
    let stops = of_run("stops", OverrunPolicy::Stop);
    let leads = of_run("leads", OverrunPolicy::SafeMode);
    let safe = in_mode(Task::periodic("safe", ms(4), us(100)), "safe");
    let set = set_of_modes(["run", "safe"], vec![stops, safe, leads]);
    let set = set.with_safe_mode("safe").unwrap();
    let mut executive = Executive::new(set).unwrap();
    let late_in_the_third = |job: &Job| {
        if job.number == 3 {
            std::thread::sleep(ms(9));
        }
    };
    executive.task("stops", late_in_the_third).unwrap();
    let (safe, body) = counter();
    executive.task("safe", body).unwrap();
    let late_in_the_tenth = |job: &Job| {
        if job.number >= 10 {
            std::thread::sleep(ms(9));
        }
    };
    executive.task("leads", late_in_the_tenth).unwrap();
    let running = executive.start(&options()).unwrap();
    wait_until(|| count_of(&safe) >= 5);
    assert_eq!(running.mode(), "safe");
    let summary = stopped(running);
    assert!(summary.tasks[0].is_stopped);
    let actions: Vec<Action> = summary.records.iter().map(|record| record.action).collect();
    assert!(
        actions.contains(&Action::SafeMode) && actions.contains(&Action::Stopped),
        "{actions:?}"
    );
}

#[test]
fn a_mode_is_requested_and_its_tasks_start() {
    let tasks = ["ground", "flight"].map(|mode| in_mode(task(mode, ms(2)), mode));
    let set = set_of_modes(["ground", "flight"], tasks.to_vec());
    let mut executive = Executive::new(set).unwrap();
    let (on_ground, body) = counter();
    executive.task("ground", body).unwrap();
    let (in_flight, body) = counter();
    executive.task("flight", body).unwrap();
    let running = executive.start(&options()).unwrap();
    wait_until(|| count_of(&on_ground) >= 5);
    assert_eq!(count_of(&in_flight), 0);
    assert!(running.request_mode("orbit").is_err());
    running.request_mode("flight").unwrap();
    wait_until(|| count_of(&in_flight) >= 5);
    let landed = count_of(&on_ground);
    wait_until(|| count_of(&in_flight) >= 10);
    assert_eq!(count_of(&on_ground), landed);
    assert_eq!(running.mode(), "flight");
    stopped(running);
}

/// The last job of the mode before ends in the least urgent thread, which wakes the others.
#[test]
fn the_most_urgent_task_of_a_mode_begins_first() {
    let mut leads = in_mode(Task::periodic("leads", ms(200), us(100)), "run");
    leads.overrun = OverrunPolicy::SafeMode;
    let long = in_mode(Task::periodic("long", ms(100), ms(40)), "safe");
    let brief = in_mode(Task::periodic("brief", ms(50), us(100)), "safe");
    let set = set_of_modes(["run", "safe"], vec![long, leads, brief]);
    let mut executive = Executive::new(set.with_safe_mode("safe").unwrap()).unwrap();
    executive
        .task("leads", |_: &Job| std::thread::sleep(ms(210)))
        .unwrap();
    let begun = Arc::new(Mutex::new(Vec::new()));
    for name in ["long", "brief"] {
        let begun = begun.clone();
        let body = move |_: &Job| {
            begun.lock().unwrap().push(name);
            compute(if name == "long" { ms(40) } else { us(50) });
        };
        executive.task(name, body).unwrap();
    }
    let running = executive.start(&options().with_cpu(0)).unwrap();
    wait_until(|| begun.lock().unwrap().len() >= 2);
    let is_real_time = running.limits().is_empty();
    stopped(running);
    if is_real_time {
        assert_eq!(begun.lock().unwrap()[..2], ["brief", "long"]);
    } else {
        println!("SKIPPED: SCHED_FIFO is refused");
    }
}
