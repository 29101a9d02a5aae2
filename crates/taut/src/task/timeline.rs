//! The time line of a hyperperiod: the running task at each time, if every job takes its charged time.
//!
//! For a picture. Tasks activated by messages come as often as they may. Release jitter, blocking and receive
//! processing are not in it, so no bound follows from it; the bounds are those of the analysis.

use std::collections::VecDeque;
use std::time::Duration;

use tautline_exec::{Analysis, OverrunPolicy, Scheduling, TaskSet};

/// Longest queue of releases of one task that is drawn. Lower: an overloaded set looks better than it is. Higher:
/// its picture takes longer without a difference to see.
const QUEUE_MAX: usize = 16;

/// Time for which a task runs without a break.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Index of the task in the set.
    pub task: usize,
    /// Start, from the start of the hyperperiod.
    pub from: Duration,
    /// End.
    pub to: Duration,
}

/// A job that is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrawnJob {
    /// Index of the task in the set.
    pub task: usize,
    /// Time of its release.
    pub release: Duration,
    /// Time by which it must be done.
    pub deadline: Duration,
    /// Time at which it is done; `None` if not within the time line.
    pub end: Option<Duration>,
}

impl DrawnJob {
    /// Whether it misses its deadline within a time line of this length.
    #[must_use]
    pub fn is_late(&self, span: Duration) -> bool {
        self.end
            .map_or(self.deadline <= span, |end| end > self.deadline)
    }
}

/// Running tasks and their jobs over time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    /// Length.
    pub span: Duration,
    /// Running tasks, in order of time.
    pub slices: Vec<Slice>,
    /// Jobs that are released, in order of time.
    pub jobs: Vec<DrawnJob>,
}

impl Timeline {
    /// The time line of an analysed mode, of this length at most.
    #[must_use]
    pub fn of(set: &TaskSet, analysis: &Analysis, span_max: Duration) -> Timeline {
        let span = analysis.hyperperiod.unwrap_or(span_max).min(span_max);
        match &analysis.table {
            Some(table) => {
                let windows = table.windows.iter().filter(|window| window.offset < span);
                Timeline {
                    span,
                    slices: windows
                        .map(|window| Slice {
                            task: window.task,
                            from: window.offset,
                            to: window.end(),
                        })
                        .collect(),
                    jobs: Vec::new(),
                }
            }
            None => Simulation::new(set, &analysis.mode, ns(span)).run(),
        }
    }
}

/// Jobs of one task that have been released and are not done.
struct Pending {
    task: usize,
    next: u64,
    /// Indices of the jobs, and the time that the first of them still needs.
    jobs: VecDeque<usize>,
    left: u64,
}

/// Nanoseconds of a time within the limits of a set.
fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

struct Simulation<'a> {
    set: &'a TaskSet,
    span: u64,
    /// The most urgent first.
    pending: Vec<Pending>,
    timeline: Timeline,
}

impl<'a> Simulation<'a> {
    fn new(set: &'a TaskSet, mode: &str, span: u64) -> Self {
        let mut pending: Vec<Pending> = set
            .members(mode)
            .map(|task| Pending {
                task,
                next: ns(set.tasks()[task].phase()),
                jobs: VecDeque::new(),
                left: 0,
            })
            .collect();
        pending.sort_by_key(|one| std::cmp::Reverse(set.priority(one.task)));
        let timeline = Timeline {
            span: Duration::from_nanos(span),
            ..Timeline::default()
        };
        Simulation {
            set,
            span,
            pending,
            timeline,
        }
    }

    fn run(mut self) -> Timeline {
        let mut now = 0;
        while now < self.span {
            self.release(now);
            let next = self.pending.iter().map(|one| one.next).min();
            let next = next.unwrap_or(self.span).min(self.span);
            let Some(index) = self.chosen() else {
                now = next;
                continue;
            };
            let until = next.min(now + self.pending[index].left);
            self.work(index, now, until);
            now = until;
        }
        self.timeline
    }

    /// The job that runs: the most urgent, or the one whose deadline comes first.
    fn chosen(&self) -> Option<usize> {
        let first = |one: &Pending| {
            one.jobs
                .front()
                .map(|job| self.timeline.jobs[*job].deadline)
        };
        let mut ready = (0..self.pending.len()).filter(|one| !self.pending[*one].jobs.is_empty());
        match self.set.scheduling() {
            Scheduling::EarliestDeadline => ready.min_by_key(|one| first(&self.pending[*one])),
            _ => ready.next(),
        }
    }

    fn release(&mut self, now: u64) {
        for one in self.pending.iter_mut().filter(|one| one.next <= now) {
            let task = &self.set.tasks()[one.task];
            let queue_max = match task.overrun {
                OverrunPolicy::CatchUp { .. } => QUEUE_MAX,
                _ => 1,
            };
            if one.jobs.len() < queue_max {
                if one.jobs.is_empty() {
                    one.left = ns(self.set.charged(one.task));
                }
                one.jobs.push_back(self.timeline.jobs.len());
                let release = Duration::from_nanos(one.next);
                self.timeline.jobs.push(DrawnJob {
                    task: one.task,
                    release,
                    deadline: release + task.deadline,
                    end: None,
                });
            }
            one.next += ns(task.period);
        }
    }

    fn work(&mut self, index: usize, from: u64, to: u64) {
        let one = &mut self.pending[index];
        let (start, end) = (Duration::from_nanos(from), Duration::from_nanos(to));
        match self.timeline.slices.last_mut() {
            Some(last) if last.task == one.task && last.to == start => last.to = end,
            _ => self.timeline.slices.push(Slice {
                task: one.task,
                from: start,
                to: end,
            }),
        }
        one.left -= to - from;
        if one.left == 0 {
            if let Some(job) = one.jobs.pop_front() {
                self.timeline.jobs[job].end = Some(end);
            }
            one.left = ns(self.set.charged(one.task));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tautline_exec::Task;

    fn ms(number: u64) -> Duration {
        Duration::from_millis(number)
    }

    #[test]
    fn the_most_urgent_runs_and_the_rest_waits() {
        let set = TaskSet::new(vec![
            Task::periodic("slow", ms(8), ms(4)),
            Task::periodic("fast", ms(4), ms(1)),
        ])
        .unwrap();
        let analysis = Analysis::of(&set, "").unwrap();
        let timeline = Timeline::of(&set, &analysis, ms(1_000));
        let slices: Vec<(usize, u128, u128)> = timeline
            .slices
            .iter()
            .map(|slice| (slice.task, slice.from.as_millis(), slice.to.as_millis()))
            .collect();
        assert_eq!(slices, [(1, 0, 1), (0, 1, 4), (1, 4, 5), (0, 5, 6)]);
        assert_eq!(timeline.span, ms(8));
        let slow = timeline.jobs.iter().find(|job| job.task == 0).unwrap();
        assert_eq!(slow.end, Some(ms(6)));
        assert!(!timeline.jobs.iter().any(|job| job.is_late(timeline.span)));
    }

    #[test]
    fn an_overloaded_set_is_drawn_late() {
        let set = TaskSet::new(vec![
            Task::periodic("a", ms(2), ms(1)),
            Task::periodic("b", ms(3), ms(2)),
        ])
        .unwrap();
        let analysis = Analysis::of(&set, "").unwrap();
        let timeline = Timeline::of(&set, &analysis, ms(1_000));
        assert!(
            timeline
                .jobs
                .iter()
                .any(|job| job.task == 1 && job.is_late(timeline.span))
        );
    }
}
