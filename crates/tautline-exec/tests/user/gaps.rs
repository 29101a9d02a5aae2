//! Gaps in time: a machine that sleeps, a process that is stopped, a debugger. Nothing is made up for but what a policy
//! asks for, and releases stay where they were.

use std::time::Duration;

use tautline_exec::{
    Action, Activation, Executive, Machine, OverrunPolicy, Scheduling, TablePlan, Task, TaskSet,
    Window,
};

const HOUR: Duration = Duration::from_secs(3_600);

fn ms(number: u64) -> Duration {
    Duration::from_millis(number)
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
