//! Jobs that are released by time, and what becomes of those that fail or take too long.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tautline_exec::{Action, Event, Job, Task, TaskSet};
use tautline_tasks::{Executive, RunError, WithSafeState};
use tautline_testbed::sys::in_fork;

use super::{
    compute, count_of, counter, endless_jobs, ms, options, policy, stopped, task, us, wait_until,
};

#[test]
fn tasks_run_once_a_period_and_are_counted() {
    let set = TaskSet::new(vec![task("fast", ms(2)), task("slow", ms(10))]).unwrap();
    let mut executive = Executive::new(set).unwrap();
    let last = Arc::new(AtomicU64::new(0));
    let seen = last.clone();
    let fast = move |job: &Job| {
        let before = seen.swap(job.number, Ordering::Relaxed);
        assert!(job.number > before && job.deadline - job.release == ms(2));
    };
    let (slow, body) = counter();
    executive.task("fast", fast).unwrap();
    executive.task("slow", body).unwrap();
    let running = executive.start(&options()).unwrap();
    for limit in running.limits() {
        println!("limited: {limit}");
    }
    wait_until(|| count_of(&slow) >= 20);
    let summary = stopped(running);
    assert_eq!(summary.tasks[1].jobs, count_of(&slow));
    assert!(summary.tasks[0].jobs > summary.tasks[1].jobs);
    assert!(summary.tasks[0].response.max >= summary.tasks[0].lateness.max);
    assert!(
        !summary
            .tasks
            .iter()
            .any(|task| task.is_stopped || task.is_left)
    );
}

#[test]
fn a_forked_process_leaves_the_tasks_of_its_parent_alone() {
    let mut executive = Executive::new(TaskSet::new(vec![task("fast", ms(2))]).unwrap()).unwrap();
    let (jobs, body) = counter();
    executive.task("fast", body).unwrap();
    let mut running = Some(executive.start(&options()).unwrap());
    wait_until(|| count_of(&jobs) >= 5);
    let mut stopped_or_dropped = |stops: bool| {
        let owned = running.take().unwrap();
        let results = [owned.request_mode("any"), owned.trigger("fast").map(drop)];
        let refused = results.map(|result| matches!(result, Err(RunError::OtherProcess)));
        // The threads for which it would wait are not in this process.
        let tasks = if stops {
            owned.stop(ms(1)).tasks
        } else {
            vec![]
        };
        let is_right = refused == [true; 2] && tasks.is_empty();
        let fault = format!(
            "stops: {stops}, refused: {refused:?}, tasks: {}",
            tasks.len()
        );
        (!is_right).then_some(fault).into_iter().collect()
    };
    for stops in [true, false] {
        assert_eq!(in_fork(|| stopped_or_dropped(stops)).unwrap(), [""; 0]);
        let before = count_of(&jobs);
        wait_until(|| count_of(&jobs) >= before + 5);
    }
    assert!(!stopped(running.unwrap()).tasks[0].is_stopped);
}

#[test]
fn a_panicking_task_stops_alone_and_goes_to_its_safe_state() {
    let set = TaskSet::new(vec![task("bad", ms(2)), task("good", ms(2))]).unwrap();
    let mut executive = Executive::new(set).unwrap();
    let is_safe = Arc::new(AtomicBool::new(false));
    let safe = is_safe.clone();
    let run = |job: &Job| assert!(job.number < 3, "the third job fails");
    let body = WithSafeState(run, move || safe.store(true, Ordering::Relaxed));
    executive.task("bad", body).unwrap();
    let (good, body) = counter();
    executive.task("good", body).unwrap();
    let running = executive.start(&options()).unwrap();
    wait_until(|| is_safe.load(Ordering::Relaxed));
    let before = count_of(&good);
    wait_until(|| count_of(&good) > before + 10);
    let failed = |record: &&tautline_exec::HealthRecord| record.event == Event::Failed;
    let records = running.records();
    let record = records.iter().find(failed).unwrap();
    assert_eq!((record.task, record.action), (0, Action::Stopped));
    let summary = stopped(running);
    assert!(summary.tasks[0].is_stopped && !summary.tasks[1].is_stopped);
}

#[test]
fn a_panicking_task_has_no_priority_while_it_unwinds() {
    struct Unwound(Arc<AtomicU64>);

    impl Drop for Unwound {
        fn drop(&mut self) {
            self.0.store(100 + u64::from(policy()), Ordering::Relaxed);
        }
    }

    let mut executive = Executive::new(TaskSet::new(vec![task("bad", ms(2))]).unwrap()).unwrap();
    let policies = Arc::new([AtomicU64::new(0), AtomicU64::new(0)].map(Arc::new));
    let seen = policies.clone();
    let body = move |_: &Job| {
        seen[0].store(100 + u64::from(policy()), Ordering::Relaxed);
        let _unwound = Unwound(seen[1].clone());
        panic!("on purpose");
    };
    executive.task("bad", body).unwrap();
    let running = executive.start(&options()).unwrap();
    let is_refused = running
        .limits()
        .iter()
        .any(|limit| limit.contains("SCHED_FIFO"));
    wait_until(|| count_of(&policies[1]) > 0);
    stopped(running);
    assert_eq!(count_of(&policies[1]), 100);
    if is_refused {
        println!("SKIPPED: SCHED_FIFO needs CAP_SYS_NICE");
    } else {
        assert_eq!(count_of(&policies[0]), 101, "before");
    }
}

#[test]
fn a_job_without_budget_left_is_demoted_and_the_others_go_on() {
    let mut greedy = Task::periodic("greedy", ms(5), us(500));
    greedy.budget = Some(ms(1));
    let set = TaskSet::new(vec![greedy, task("good", ms(20))]).unwrap();
    let mut executive = Executive::new(set).unwrap();
    executive.task("greedy", |_: &Job| compute(ms(12))).unwrap();
    let (good, body) = counter();
    executive.task("good", body).unwrap();
    let running = executive.start(&options().with_cpu(0)).unwrap();
    wait_until(|| count_of(&good) >= 10);
    let summary = stopped(running);
    let demoted = |record: &tautline_exec::HealthRecord| {
        matches!(record.event, Event::BudgetExceeded { used } if used >= ms(1))
            && record.action == Action::Demoted
            && record.task == 0
    };
    assert!(summary.records.iter().any(demoted), "{:?}", summary.records);
    let skipped =
        |record: &tautline_exec::HealthRecord| matches!(record.action, Action::Skipped { .. });
    assert!(summary.records.iter().any(skipped));
    assert!(summary.tasks[0].exceeded(), "it is named: {summary}");
}

#[test]
fn a_set_that_stops_during_a_job_does_not_wait_for_the_next_release() {
    let period = ms(20_000);
    let set = TaskSet::new(vec![Task::periodic("seldom", period, ms(100))]).unwrap();
    let mut executive = Executive::new(set).unwrap();
    let (tell, began) = std::sync::mpsc::channel();
    let body = move |_: &Job| {
        tell.send(()).unwrap();
        std::thread::sleep(ms(100));
    };
    executive.task("seldom", body).unwrap();
    let running = executive.start(&options()).unwrap();
    began.recv().unwrap();
    let begin = std::time::Instant::now();
    let _ = running.stop(period);
    assert!(begin.elapsed() < period / 4, "{:?}", begin.elapsed());
}

#[test]
fn a_job_that_never_returns_is_left_and_the_others_stop() {
    let mut endless = Task::periodic("endless", ms(5), us(500));
    endless.budget = Some(ms(1));
    let set = TaskSet::new(vec![endless, task("good", ms(5))]).unwrap();
    let mut executive = Executive::new(set).unwrap();
    let (is_over, body) = endless_jobs();
    executive.task("endless", body).unwrap();
    let (good, body) = counter();
    executive.task("good", body).unwrap();
    let running = executive.start(&options().with_cpu(0)).unwrap();
    wait_until(|| count_of(&good) >= 10);
    let summary = running.stop(ms(50));
    is_over.store(true, Ordering::Relaxed);
    assert!(summary.tasks[0].is_left && !summary.tasks[1].is_left);
    assert!(summary.to_string().contains("endless: 0 jobs"), "{summary}");
    assert!(
        summary.to_string().contains("its job did not return"),
        "{summary}"
    );
}

#[test]
fn sixty_four_tasks_start_and_stop() {
    let tasks: Vec<Task> = (0..64)
        .map(|index| Task::periodic(&format!("task-{index}"), ms(20 << (index % 3)), us(50)))
        .collect();
    let mut executive = Executive::new(TaskSet::new(tasks).unwrap()).unwrap();
    let counts: Vec<Arc<AtomicU64>> = (0..64)
        .map(|index| {
            let (count, body) = counter();
            executive.task(&format!("task-{index}"), body).unwrap();
            count
        })
        .collect();
    let running = executive.start(&options().without_real_time()).unwrap();
    wait_until(|| counts.iter().all(|count| count_of(count) >= 2));
    assert_eq!(stopped(running).tasks.len(), 64);
}
