//! Logical execution time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tautline_exec::{Job, TaskSet};
use tautline_tasks::{Executive, Logical, RunError, TaskState};

use super::{by_messages, count_of, ms, options, stopped, task, wait_until};

/// `CLOCK_MONOTONIC`, as the executive reads it.
pub(crate) fn now() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Inputs and outputs of a task with logical execution time, as a test saw them.
#[derive(Default)]
struct Flow {
    reads: Vec<u64>,
    jobs: Vec<(Job, u64)>,
    writes: Vec<(Duration, u64)>,
}

#[test]
fn outputs_are_written_at_the_deadline_and_never_before() {
    let mut control = task("control", ms(10));
    control.deadline = ms(5);
    let set = TaskSet::new(vec![control, task("other", ms(5))]).unwrap();
    let mut executive = Executive::new(set).unwrap();
    let flow = Arc::new(std::sync::Mutex::new(Flow::default()));
    let (reads, jobs, writes) = (flow.clone(), flow.clone(), flow.clone());
    let parts = Logical {
        read: move |input: &mut u64| {
            let mut flow = reads.lock().unwrap();
            *input = flow.reads.len() as u64 + 100;
            flow.reads.push(*input);
        },
        run: move |job: &Job, input: &u64, output: &mut u64| {
            if job.number.is_multiple_of(4) {
                std::thread::sleep(ms(6)); // beyond the deadline
            }
            *output = *input;
            jobs.lock().unwrap().jobs.push((*job, *input));
        },
        write: move |output: &u64| {
            writes.lock().unwrap().writes.push((now(), *output));
        },
        safe_state: || {},
    };
    executive.logical_task("control", parts).unwrap();
    executive.task("other", |_: &Job| {}).unwrap();
    let running = executive.start(&options().with_cpu(0)).unwrap();
    wait_until(|| flow.lock().unwrap().writes.len() >= 12);
    stopped(running);
    let flow = flow.lock().unwrap();
    assert!(flow.reads.is_sorted());
    for (at, output) in &flow.writes {
        let (job, _) = flow.jobs.iter().find(|(_, input)| input == output).unwrap();
        assert!(
            *at >= job.deadline,
            "written before the deadline of {job:?}"
        );
        assert!(!job.number.is_multiple_of(4), "{job:?} was late");
    }
    let written: Vec<u64> = flow.writes.iter().map(|(_, output)| *output).collect();
    assert!(written.is_sorted_by(|one, next| one < next), "{written:?}");
}

#[test]
fn nothing_is_written_over_the_safe_values_of_a_task() {
    let mut control = task("control", ms(10));
    control.deadline = ms(9);
    let mut executive = Executive::new(TaskSet::new(vec![control]).unwrap()).unwrap();
    let output = Arc::new(AtomicU64::new(0));
    let (written, safe) = (output.clone(), output.clone());
    let parts = Logical {
        read: |_: &mut u64| {},
        run: |job: &Job, _: &u64, output: &mut u64| {
            assert!(job.number < 3, "the third job fails");
            *output = job.number;
        },
        write: move |output: &u64| written.store(*output, Ordering::Relaxed),
        safe_state: move || safe.store(1_000, Ordering::Relaxed),
    };
    executive.logical_task("control", parts).unwrap();
    let running = executive.start(&options()).unwrap();
    wait_until(|| count_of(&output) == 1_000);
    std::thread::sleep(ms(30));
    assert_eq!(count_of(&output), 1_000);
    assert!(stopped(running).tasks[0].is_stopped);
}

#[test]
fn values_that_cannot_be_exchanged_stop_their_task_alone() {
    let set = TaskSet::new(vec![task("bad", ms(5)), task("good", ms(5))]).unwrap();
    let mut executive = Executive::new(set).unwrap();
    let reads = AtomicU64::new(0);
    let parts = Logical {
        read: move |_: &mut u64| assert!(reads.fetch_add(1, Ordering::Relaxed) < 3, "no sensor"),
        run: |_: &Job, _: &u64, _: &mut u64| {},
        write: |_: &u64| {},
        safe_state: || {},
    };
    executive.logical_task("bad", parts).unwrap();
    let good_writes = Arc::new(AtomicU64::new(0));
    let written = good_writes.clone();
    let parts = Logical {
        read: |_: &mut u64| {},
        run: |_: &Job, _: &u64, _: &mut u64| {},
        write: move |_: &u64| {
            written.fetch_add(1, Ordering::Relaxed);
        },
        safe_state: || {},
    };
    executive.logical_task("good", parts).unwrap();
    let running = executive.start(&options()).unwrap();
    wait_until(|| running.task("bad").unwrap().state == TaskState::Stopped);
    let before = count_of(&good_writes);
    wait_until(|| count_of(&good_writes) > before + 5);
    assert!(!stopped(running).tasks[1].is_stopped);
}

#[test]
fn logical_execution_time_is_for_tasks_with_known_releases() {
    let set = TaskSet::new(vec![by_messages("command", ms(5))]).unwrap();
    let mut executive = Executive::new(set).unwrap();
    let parts = Logical {
        read: |_: &mut u64| {},
        run: |_: &Job, _: &u64, _: &mut u64| {},
        write: |_: &u64| {},
        safe_state: || {},
    };
    let refused = executive.logical_task("command", parts);
    assert!(matches!(refused, Err(RunError::NotByTime { .. })));
}
