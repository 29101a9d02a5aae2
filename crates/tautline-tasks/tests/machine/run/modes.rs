//! Modes and their changes.

use tautline_exec::{Action, Job, Machine, OverrunPolicy, Scheduling, Task, TaskSet};
use tautline_tasks::Executive;

use super::{count_of, counter, ms, options, stopped, task, us, wait_until};

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
