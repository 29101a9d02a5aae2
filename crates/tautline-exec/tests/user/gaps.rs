//! Gaps in time: a machine that sleeps, a process that is stopped, a debugger. Nothing is made up for but what a policy
//! asks for, and releases stay where they were.

use std::time::Duration;

use tautline_exec::{
    Action, Activation, Event, Executive, Machine, OverrunPolicy, Scheduling, TablePlan, Task,
    TaskSet, Window,
};

const HOUR: Duration = Duration::from_secs(3_600);

fn ms(number: u64) -> Duration {
    Duration::from_millis(number)
}

fn with(overrun: OverrunPolicy) -> Executive {
    let mut task = Task::periodic("a", ms(4), ms(1));
    task.overrun = overrun;
    let mut set = TaskSet::declare(
        Scheduling::default(),
        Machine::default(),
        Vec::new(),
        vec!["run".into(), "safe".into()],
        vec![task],
    )
    .unwrap();
    if overrun == OverrunPolicy::SafeMode {
        set = set.with_safe_mode("safe").unwrap();
    }
    Executive::new(&set, Duration::ZERO)
}

#[test]
fn a_job_before_which_hours_passed_is_followed_by_the_next_release_and_no_storm() {
    let after = HOUR * 10 + ms(1);
    let passed = 9_000_000;
    for (policy, wanted, next) in [
        (
            OverrunPolicy::Skip,
            Action::Skipped { releases: passed },
            ms(4),
        ),
        (
            OverrunPolicy::CatchUp { jobs_max: 2 },
            Action::CatchingUp {
                releases: 2,
                skipped: passed - 2,
            },
            Duration::ZERO,
        ),
    ] {
        let mut executive = with(policy);
        let job = executive.begin(0, after).unwrap();
        assert_eq!((job.number, job.deadline), (1, ms(4)), "of before the gap");
        assert_eq!(executive.finish(0, after + ms(1), ms(1)), Some(wanted));
        let next_release = executive.next_release(0, after + ms(1)).unwrap();
        assert!(next_release <= HOUR * 10 + next, "{next_release:?}");
        assert_eq!(next_release.as_nanos() % ms(4).as_nanos(), 0);
        let events: Vec<Event> = executive
            .monitor()
            .records()
            .map(|record| record.event)
            .collect();
        let overrun = Event::Overrun { releases: passed };
        assert_eq!(events, [Event::DeadlineMissed, overrun]);
    }
}

#[test]
fn a_gap_within_a_job_stops_a_task_or_brings_the_safe_mode_if_it_says_so() {
    for (policy, wanted) in [
        (OverrunPolicy::Stop, Action::Stopped),
        (OverrunPolicy::SafeMode, Action::SafeMode),
    ] {
        let mut executive = with(policy);
        executive.begin(0, Duration::ZERO).unwrap();
        assert_eq!(executive.finish(0, HOUR, ms(1)), Some(wanted));
    }
}

/// A set in its safe mode that began it once more would put off the releases of all its tasks, each time.
#[test]
fn an_overrun_in_the_safe_mode_leaves_out_releases_of_its_task_alone() {
    let mut culprit = Task::periodic("culprit", ms(1), Duration::from_micros(100));
    culprit.overrun = OverrunPolicy::SafeMode;
    let mut brake = Task::periodic("brake", ms(10), ms(1));
    brake.activation = Activation::Time { phase: ms(5) };
    let set = TaskSet::declare(
        Scheduling::default(),
        Machine::default(),
        Vec::new(),
        vec!["run".into(), "safe".into()],
        vec![culprit, brake],
    );
    let set = set.unwrap().with_safe_mode("safe").unwrap();
    let mut executive = Executive::new(&set, Duration::ZERO);
    executive.begin(0, Duration::ZERO).unwrap();
    let late = ms(2) - Duration::from_micros(1);
    assert_eq!(
        executive.finish(0, late, ms(1)),
        Some(Action::SafeMode),
        "in another mode"
    );
    assert!(executive.switch(late));
    assert_eq!(executive.next_release(1, late), Some(late + ms(5)));

    let first = executive.begin(0, late).unwrap();
    assert_eq!(first.number, 1);
    let skipped = Action::Skipped { releases: 1 };
    assert_eq!(
        executive.finish(0, late + ms(2), ms(1)),
        Some(skipped),
        "in the safe mode"
    );
    assert!(!executive.switch(late + ms(2)));
    assert_eq!(
        executive.next_release(1, late + ms(2)),
        Some(late + ms(5)),
        "the other task is released as it was going to be"
    );
}

#[test]
fn a_table_goes_on_in_its_windows_after_a_gap() {
    let tasks = vec![
        Task::periodic("a", ms(8), ms(1)),
        Task::periodic("b", ms(8), ms(1)),
    ];
    let window = |task, offset| Window {
        task,
        offset: ms(offset),
        duration: ms(2),
    };
    let plan = TablePlan {
        minor_frame: None,
        windows: vec![window(0, 0), window(1, 4)],
    };
    let machine = Machine::default();
    let set = TaskSet::declare(Scheduling::Table, machine, Vec::new(), Vec::new(), tasks);
    let set = set.unwrap().with_table(plan).unwrap();
    let mut executive = Executive::new(&set, Duration::ZERO);
    executive.begin(0, Duration::ZERO).unwrap();
    // In the middle of the other task's window, ten hours later.
    let now = HOUR * 10 + ms(5);
    assert_eq!(executive.check(0, now, ms(1)), Some(Action::Demoted));
    executive.finish(0, now, ms(1));
    assert_eq!(executive.next_release(0, now), Some(HOUR * 10 + ms(8)));
    let job = executive.begin(1, now).unwrap();
    assert_eq!(job.ready, HOUR * 10 + ms(4));
    executive.finish(1, now + ms(1), ms(1));
    assert_eq!(
        executive.next_release(1, now + ms(1)),
        Some(HOUR * 10 + ms(12))
    );
}
