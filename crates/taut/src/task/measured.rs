//! The time line of jobs that ran: who had the CPU when.
//!
//! A run records when each job began and when it ended. On one CPU, a job has it from the one to the other but for the
//! jobs of more urgent tasks in between. Among equally urgent ones, such as those of a table, it is the job that began
//! last that runs: the others are outside of their windows.

use std::cmp::Reverse;
use std::time::Duration;

use super::timeline::{DrawnJob, Slice, Timeline};
use serde_json::{Value, json};
use tautline_tasks::TracedJob;

/// A task with its recorded jobs.
#[derive(Clone, Debug)]
pub struct TracedTask {
    /// Its name.
    pub name: String,
    /// Its priority under SCHED_FIFO.
    pub priority: u8,
    /// The oldest first.
    pub jobs: Vec<TracedJob>,
}

/// The time line from `from` on, as long as the last job. Tasks have their index in `tasks`.
pub fn timeline(tasks: &[TracedTask], from: Duration, span_max: Duration) -> Timeline {
    let ends = tasks.iter().flat_map(|task| &task.jobs).map(|job| job.end);
    let last = ends.max().unwrap_or(from).saturating_sub(from);
    let span = last.min(span_max);
    let mut timeline = Timeline {
        span,
        ..Timeline::default()
    };
    let all = tasks.iter().enumerate();
    let jobs = all.flat_map(|(task, traced)| traced.jobs.iter().map(move |job| (task, job)));
    let in_sight = jobs.filter(|(_, job)| job.end > from && job.release < from + span);
    let mut in_sight: Vec<(usize, &TracedJob)> = in_sight.collect();
    in_sight.sort_by_key(|(task, job)| Reverse((tasks[*task].priority, job.begin)));
    let after = |time: Duration| time.saturating_sub(from).min(span);
    // Times for which more urgent tasks had the CPU, in order and apart from each other.
    let mut taken: Vec<(Duration, Duration)> = Vec::new();
    for equals in
        in_sight.chunk_by(|(one, _), (other, _)| tasks[*one].priority == tasks[*other].priority)
    {
        let mut own = Vec::new();
        let mut later = Vec::new();
        for (task, job) in equals {
            timeline.jobs.push(DrawnJob {
                task: *task,
                release: after(job.release),
                deadline: job.deadline.saturating_sub(from),
                end: (job.end <= from + span).then(|| after(job.end)),
            });
            for (from, to) in before_later(after(job.begin), after(job.end), &mut later) {
                own.extend(
                    without(from, to, &taken)
                        .into_iter()
                        .map(|part| (*task, part)),
                );
            }
        }
        timeline
            .slices
            .extend(own.iter().map(|(task, (from, to))| Slice {
                task: *task,
                from: *from,
                to: *to,
            }));
        taken.extend(own.iter().map(|(_, part)| *part));
        taken.sort_unstable();
    }
    timeline.slices.sort_by_key(|slice| slice.from);
    timeline.jobs.sort_by_key(|job| job.release);
    timeline
}

/// The parts of a job that no job which began later covers. `later` has the times of those, the latest first, and
/// receives this one.
fn before_later(
    from: Duration,
    to: Duration,
    later: &mut Vec<(Duration, Duration)>,
) -> Vec<(Duration, Duration)> {
    let mut parts = Vec::new();
    let (mut at, mut until) = (from, to);
    while let Some((start, end)) = later.pop_if(|(start, _)| *start < to) {
        if start > at {
            parts.push((at, start));
        }
        at = at.max(end);
        until = until.max(end);
    }
    if at < to {
        parts.push((at, to));
    }
    later.push((from, until));
    parts
}

/// The parts of a time that are not taken.
fn without(
    from: Duration,
    to: Duration,
    taken: &[(Duration, Duration)],
) -> Vec<(Duration, Duration)> {
    let mut parts = Vec::new();
    let mut at = from;
    let first = taken.partition_point(|(_, end)| *end <= from);
    for (start, end) in &taken[first..] {
        if *start >= to {
            break;
        }
        if *start > at {
            parts.push((at, *start));
        }
        at = at.max(*end);
    }
    if at < to {
        parts.push((at, to));
    }
    parts
}

/// The same jobs in the Trace Event Format, which Perfetto and `chrome://tracing` open: a thread for each task, with
/// its jobs from the beginning to the end, and an instant for each missed deadline.
pub fn trace_events(process: u32, name: &str, tasks: &[TracedTask]) -> Value {
    let us = |time: Duration| time.as_nanos() as f64 / 1e3;
    let mut events = vec![json!({
        "ph": "M", "pid": process, "name": "process_name", "args": { "name": name },
    })];
    for (index, task) in tasks.iter().enumerate() {
        let thread = index + 1;
        events.push(json!({
            "ph": "M", "pid": process, "tid": thread, "name": "thread_name", "args": { "name": task.name },
        }));
        for job in &task.jobs {
            events.push(json!({
                "ph": "X", "pid": process, "tid": thread, "name": task.name, "ts": us(job.begin),
                "dur": us(job.end.saturating_sub(job.begin)),
                "args": {
                    "lateness_us": us(job.begin.saturating_sub(job.release)),
                    "response_us": us(job.end.saturating_sub(job.release)),
                },
            }));
            if job.end > job.deadline {
                events.push(json!({
                    "ph": "i", "s": "t", "pid": process, "tid": thread, "name": "deadline missed",
                    "ts": us(job.deadline),
                }));
            }
        }
    }
    json!({ "traceEvents": events, "displayTimeUnit": "ns" })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn us(number: u64) -> Duration {
        Duration::from_micros(number)
    }

    fn job(release: u64, begin: u64, end: u64) -> TracedJob {
        TracedJob {
            release: us(release),
            deadline: us(release + 50),
            begin: us(begin),
            end: us(end),
        }
    }

    fn tasks() -> Vec<TracedTask> {
        let task = |name: &str, priority, jobs| TracedTask {
            name: name.to_owned(),
            priority,
            jobs,
        };
        vec![
            task("slow", 10, vec![job(1_000, 1_010, 1_100)]),
            task(
                "fast",
                20,
                vec![job(1_000, 1_001, 1_010), job(1_050, 1_050, 1_060)],
            ),
        ]
    }

    #[test]
    fn more_urgent_jobs_cut_the_others_in_pieces() {
        let timeline = timeline(&tasks(), us(1_000), us(1_000));
        let slices: Vec<_> = timeline
            .slices
            .iter()
            .map(|slice| (slice.task, slice.from.as_micros(), slice.to.as_micros()))
            .collect();
        assert_eq!(slices, [(1, 1, 10), (0, 10, 50), (1, 50, 60), (0, 60, 100)]);
        assert_eq!(timeline.span, us(100));
        let late: Vec<_> = timeline
            .jobs
            .iter()
            .map(|job| job.is_late(us(100)))
            .collect();
        assert_eq!(late, [false, true, false], "in order of release");
    }

    #[test]
    fn among_equals_the_job_that_began_last_runs() {
        let mut tasks = tasks();
        tasks[0].priority = 20;
        tasks[0].jobs.push(job(1_000, 1_055, 1_120));
        let timeline = timeline(&tasks, us(1_000), us(1_000));
        let slices: Vec<_> = timeline
            .slices
            .iter()
            .map(|slice| (slice.task, slice.from.as_micros(), slice.to.as_micros()))
            .collect();
        // `slow` began before `fast` each time but the last.
        assert_eq!(slices, [(1, 1, 10), (0, 10, 50), (1, 50, 55), (0, 55, 120)]);
    }

    #[test]
    fn a_time_line_begins_and_ends_where_it_should() {
        let timeline = timeline(&tasks(), us(1_040), us(15));
        let first = timeline.slices[0];
        assert_eq!((first.from, first.to), (us(0), us(10)));
        assert!(timeline.slices.iter().all(|slice| slice.to <= us(15)));
        assert_eq!(timeline.jobs.len(), 2);
        assert_eq!(super::timeline(&[], us(5), us(5)), Timeline::default());
    }

    #[test]
    fn events_have_each_job_and_each_miss() {
        let events = trace_events(7, "run", &tasks());
        let count = |kind: &str| {
            let events = events["traceEvents"].as_array().unwrap();
            events.iter().filter(|event| event["ph"] == kind).count()
        };
        assert_eq!((count("M"), count("X"), count("i")), (3, 3, 1));
    }
}
