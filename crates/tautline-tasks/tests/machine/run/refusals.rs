//! Sets that are not run.

use tautline_exec::{Job, TablePlan, Task, TaskSet};
use tautline_tasks::{Executive, RunError};

use super::{ms, options, table_of, task, us, window_at};

#[test]
fn sets_that_cannot_run_are_refused() {
    let overloaded = || {
        let vision = Task::periodic("vision", ms(10), us(4_400));
        vec![Task::periodic("control", ms(1), us(600)), vision]
    };
    let refused = Executive::new(TaskSet::new(overloaded()).unwrap())
        .err()
        .unwrap();
    assert_eq!(
        refused.to_string(),
        "`vision` can miss its deadline by 1ms or more"
    );
    let mut accepted = overloaded();
    accepted[1].accept = Some("a late picture is no harm".into());
    let mut executive = Executive::new(TaskSet::new(accepted).unwrap()).unwrap();
    assert!(matches!(
        executive.task("radar", |_: &Job| {}),
        Err(RunError::UnknownTask { .. })
    ));
    executive.task("control", |_: &Job| {}).unwrap();
    assert!(matches!(
        executive.task("control", |_: &Job| {}),
        Err(RunError::BodyRepeated { .. })
    ));
    assert!(matches!(
        executive.start(&options()).err(),
        Some(RunError::NoBody { .. })
    ));
    let overlap = TablePlan {
        minor_frame: None,
        windows: vec![window_at(0, us(0), us(100)), window_at(0, us(50), us(100))],
    };
    let table = table_of(vec![task("a", ms(1))], Vec::new(), overlap);
    let refused = Executive::new(table).err().unwrap();
    assert!(matches!(&refused, RunError::Set(_)), "{refused}");
}
