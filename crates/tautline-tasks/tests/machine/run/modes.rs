//! Modes and their changes.

use std::sync::{Arc, Mutex};

use tautline_exec::{Action, Job, Machine, OverrunPolicy, Scheduling, Task, TaskSet};
use tautline_tasks::Executive;

use super::{compute, count_of, counter, ms, options, stopped, task, us, wait_until};

#[test]
fn an_overrun_stops_a_task_or_brings_the_safe_mode() {
    let mut stops = Task::periodic("stops", ms(4), us(100));
    stops.overrun = OverrunPolicy::Stop;
    stops.modes = vec!["run".into()];
    let mut safe = Task::periodic("safe", ms(4), us(100));
    safe.modes = vec!["safe".into()];
    let mut leads = Task::periodic("leads", ms(4), us(100));
    leads.overrun = OverrunPolicy::SafeMode;
    leads.modes = vec!["run".into()];
    let set = TaskSet::declare(
        Scheduling::default(),
        Machine::default(),
        Vec::new(),
        vec!["run".into(), "safe".into()],
        vec![stops, safe, leads],
    );
    let set = set.unwrap().with_safe_mode("safe").unwrap();
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
    let mut ground = task("ground", ms(2));
    ground.modes = vec!["ground".into()];
    let mut flight = task("flight", ms(2));
    flight.modes = vec!["flight".into()];
    let set = TaskSet::declare(
        Scheduling::default(),
        Machine::default(),
        Vec::new(),
        vec!["ground".into(), "flight".into()],
        vec![ground, flight],
    );
    let mut executive = Executive::new(set.unwrap()).unwrap();
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
    let of_mode = |mut task: Task, mode: &str| {
        task.modes = vec![mode.into()];
        task
    };
    let mut leads = of_mode(Task::periodic("leads", ms(200), us(100)), "run");
    leads.overrun = OverrunPolicy::SafeMode;
    let long = of_mode(Task::periodic("long", ms(100), ms(40)), "safe");
    let brief = of_mode(Task::periodic("brief", ms(50), us(100)), "safe");
    let set = TaskSet::declare(
        Scheduling::default(),
        Machine::default(),
        Vec::new(),
        vec!["run".into(), "safe".into()],
        vec![long, leads, brief],
    );
    let set = set.unwrap().with_safe_mode("safe").unwrap();
    let mut executive = Executive::new(set).unwrap();
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
