//! A processor in virtual time: jobs take the time that a test says, and the dispatcher decides.

use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use tautline_exec::{Action, Activation, Event, Machine, Scheduling, Task, TaskSet};

use super::Dispatcher;

const fn us(count: u64) -> Duration {
    Duration::from_micros(count)
}

const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// Runs a set until a time; the job of a task takes what `cost` says. Returns the running task in each
/// millisecond, by the first letter of its name.
fn timeline(
    dispatcher: &mut Dispatcher,
    until: Duration,
    mut cost: impl FnMut(usize, u64) -> Duration,
) -> String {
    let mut now = Duration::ZERO;
    let mut left: Vec<Option<Duration>> = vec![None; dispatcher.jobs.len()];
    let mut drawn = String::new();
    while now < until {
        let choice = dispatcher.choose(now);
        let Some(task) = choice.task else {
            let next = choice.until.unwrap_or(until).min(until);
            draw(&mut drawn, '.', next);
            now = next;
            continue;
        };
        let job = dispatcher.job(task).expect("it runs");
        let remaining = *left[task].get_or_insert_with(|| cost(task, job.number));
        let end = now + remaining;
        let next = choice.until.map_or(end, |event| event.min(end)).min(until);
        assert!(next > now, "time goes on");
        let name = dispatcher.set.tasks()[task].name.chars().next();
        draw(&mut drawn, name.expect("a name"), next);
        left[task] = Some(end - next);
        now = next;
        if now == end {
            left[task] = None;
            dispatcher.end(now);
        }
    }
    drawn
}

/// Up to a time, one letter for each millisecond that has begun.
fn draw(drawn: &mut String, letter: char, until: Duration) {
    while (drawn.len() as u128) < until.as_millis() {
        drawn.push(letter);
    }
}

#[test]
fn the_more_urgent_task_preempts_and_the_other_goes_on() {
    let set = TaskSet::new(vec![
        Task::periodic("slow", ms(10), ms(4)),
        Task::periodic("fast", ms(3), ms(1)),
    ]);
    let mut dispatcher = Dispatcher::new(set.expect("a set"), Duration::ZERO);
    let costs = [ms(4), ms(1)];
    let drawn = timeline(&mut dispatcher, ms(12), |task, _| costs[task]);
    assert_eq!(drawn, "fssfssf..fss");
    assert_eq!(dispatcher.monitor().total(), 0);
}

#[test]
fn a_job_beyond_its_budget_keeps_nobody_waiting() {
    let mut control = Task::periodic("control", ms(5), ms(1));
    control.budget = Some(ms(2));
    let set = TaskSet::new(vec![control, Task::periodic("log", ms(10), ms(2))]);
    let mut dispatcher = Dispatcher::new(set.expect("a set"), Duration::ZERO);
    // The first job hangs for 4 ms.
    let drawn = timeline(&mut dispatcher, ms(10), |task, number| {
        match (task, number) {
            (0, 1) => ms(4),
            (0, _) => ms(1),
            _ => ms(2),
        }
    });
    assert_eq!(
        drawn, "ccllcc....",
        "its second job was left out: it overran"
    );
    let records: Vec<_> = dispatcher.monitor().records().collect();
    let demoted = records.iter().any(|record| {
        record.task == 0
            && record.action == Action::Demoted
            && record.event == Event::BudgetExceeded { used: ms(2) }
    });
    assert!(demoted, "{records:?}");
}

#[test]
fn deadlines_order_jobs_and_misses_are_recorded_while_they_last() {
    let mut urgent = Task::periodic("urgent", ms(8), ms(2));
    urgent.deadline = ms(4);
    let set = TaskSet::declare(
        Scheduling::EarliestDeadline,
        Machine::default(),
        vec![],
        vec![],
        vec![Task::periodic("first", ms(8), ms(2)), urgent],
    );
    let mut dispatcher = Dispatcher::new(set.expect("a set"), Duration::ZERO);
    let drawn = timeline(&mut dispatcher, ms(6), |task, _| [ms(2), ms(5)][task]);
    assert_eq!(drawn, "uuuuuf");
    let late = dispatcher.monitor().records().next().expect("a record");
    assert_eq!((late.task, late.event), (1, Event::DeadlineMissed));
    assert_eq!(late.at, ms(4) + Duration::from_nanos(1), "as soon as it is");
}

#[test]
fn messages_activate_no_more_often_than_declared() {
    let mut answer = Task::periodic("answer", ms(4), ms(1));
    answer.activation = Activation::Message {
        port: "orders".into(),
    };
    let set = TaskSet::new(vec![answer]).expect("a set");
    let mut dispatcher = Dispatcher::new(set, Duration::ZERO);
    // At the start, in case that messages have come already.
    assert_eq!(dispatcher.choose(ms(0)).task, Some(0));
    dispatcher.end(ms(1));
    let idle = dispatcher.choose(ms(1));
    assert_eq!((idle.task, idle.until), (None, None), "nobody calls");
    dispatcher.call(ms(2));
    let early = dispatcher.choose(ms(2));
    assert_eq!((early.task, early.until), (None, Some(ms(4))));
    assert_eq!(dispatcher.choose(ms(4)).task, Some(0));
    // Called while it runs: once more afterwards.
    dispatcher.call(us(4_500));
    dispatcher.call(us(4_800));
    dispatcher.end(ms(5));
    assert_eq!(dispatcher.choose(ms(5)).until, Some(ms(8)));
    // Late, with the deadline of its release.
    assert_eq!(dispatcher.choose(ms(9)).task, Some(0));
    let job = dispatcher.job(0).expect("it has begun");
    assert_eq!((job.arrival, job.deadline), (us(4_500), ms(12)));
}

#[test]
fn a_mode_begins_when_the_jobs_of_the_other_have_ended() {
    let in_mode = |mut task: Task, mode: &str| {
        task.modes = vec![mode.into()];
        task
    };
    let set = TaskSet::declare(
        Scheduling::default(),
        Machine::default(),
        vec![],
        vec!["fly".into(), "land".into()],
        vec![
            in_mode(Task::periodic("hover", ms(4), ms(2)), "fly"),
            in_mode(Task::periodic("descend", ms(4), ms(1)), "land"),
        ],
    );
    let mut dispatcher = Dispatcher::new(set.expect("a set"), Duration::ZERO);
    assert_eq!(dispatcher.choose(ms(0)).task, Some(0));
    assert!(dispatcher.request_mode("sleep").is_err());
    assert!(dispatcher.request_mode("land").is_ok());
    assert_eq!(dispatcher.choose(ms(1)).task, Some(0), "its job goes on");
    dispatcher.end(ms(2));
    assert_eq!(dispatcher.choose(ms(2)).task, Some(1));
    assert_eq!(dispatcher.job(1).map(|job| job.release), Some(ms(2)));
}
