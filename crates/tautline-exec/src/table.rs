//! Static cyclic tables: a major frame, cut into minor frames, with a window for each job.
//!
//! A task runs in its windows and nowhere else, as in ARINC 653. Windows that are not declared are found here: the
//! jobs of a hyperperiod, the nearest deadline first, go into the first minor frame that begins after their release
//! and has room for them (the cyclic executive of Baker and Shaw). A window lasts for the charged time and for
//! all that can delay it: release jitter, blocking, overhead, and the receive processing meanwhile.

use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use crate::analysis::TaskResponse;
use crate::error::{Fault, Location, SetError};
use crate::response::{fixed_point, receive_time};
use crate::task::{Activation, TaskSet, common_divisor, ns};

/// Most minor frames of a major frame. Lower: a fast task beside a slow one does not fit. Higher: a table of frames
/// that nobody can check.
pub const FRAMES_MAX: u64 = 100_000;

/// Window of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Index of the task in the set.
    pub task: usize,
    /// Start, from the start of the major frame.
    pub offset: Duration,
    /// Length.
    pub duration: Duration,
}

impl Window {
    /// End, from the start of the major frame.
    #[must_use]
    pub fn end(&self) -> Duration {
        self.offset + self.duration
    }
}

/// Declarations for a table. The default leaves everything to be found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TablePlan {
    /// Minor frame; `None` takes the greatest common divisor of periods and phases.
    pub minor_frame: Option<Duration>,
    /// Windows by start; none are found if there are any. Each mode takes those of its tasks.
    pub windows: Vec<Window>,
}

/// Table of one mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// After it the table repeats: the hyperperiod.
    pub major_frame: Duration,
    /// Distance of the moments at which the executive looks whether all windows have ended.
    pub minor_frame: Duration,
    /// Windows, by start.
    pub windows: Vec<Window>,
}

/// One job of a major frame.
struct Job {
    task: usize,
    release: u64,
    deadline: u64,
}

/// The table of a mode, and the responses of its tasks.
pub(crate) fn table_responses(
    set: &TaskSet,
    mode: &str,
) -> Result<(Table, Vec<TaskResponse>), SetError> {
    let major_frame = set.hyperperiod(mode);
    let minor_frame = minor_frame(set, mode, major_frame)?;
    let needs: Vec<Option<u64>> = (0..set.tasks().len())
        .map(|task| window_needed(set, task))
        .collect();
    let jobs = jobs(set, mode, ns(major_frame));
    let mut ends = vec![Some(0); set.tasks().len()];
    let windows = if set.plan().windows.is_empty() {
        place(&jobs, &needs, ns(major_frame), ns(minor_frame), &mut ends)
    } else {
        let windows = declared(set, mode, major_frame, minor_frame)?;
        for job in &jobs {
            let end = served(&windows, job, ns(major_frame), set);
            ends[job.task] = latest(ends[job.task], end, job.release);
        }
        windows
    };
    let responses = set
        .members(mode)
        .map(|task| response(set, task, needs[task], ends[task]))
        .collect();
    let table = Table {
        major_frame,
        minor_frame,
        windows,
    };
    Ok((table, responses))
}

fn response(set: &TaskSet, task: usize, need: Option<u64>, end: Option<u64>) -> TaskResponse {
    let need = need.unwrap_or_default();
    TaskResponse {
        task,
        priority: None,
        charged: set.charged(task),
        jitter: set.release_jitter(task),
        blocking: set.machine().blocking,
        receive: Duration::from_nanos(receive(set, need)),
        interference: Duration::from_nanos(end.unwrap_or_default().saturating_sub(need)),
        response: end.map(Duration::from_nanos),
        deadline: set.tasks()[task].deadline,
    }
}

fn minor_frame(set: &TaskSet, mode: &str, major: Duration) -> Result<Duration, SetError> {
    let at = |fault| SetError::new(Location::Set("minor_frame"), fault);
    let frame = set.plan().minor_frame.unwrap_or_else(|| {
        set.members(mode).fold(major, |frame, task| {
            let declared = &set.tasks()[task];
            let frame = common_divisor(frame, declared.period);
            common_divisor(frame, declared.phase())
        })
    });
    let frames = ns(major).checked_div(ns(frame)).unwrap_or_default();
    if !(1..=FRAMES_MAX).contains(&frames) {
        let from = Duration::from_nanos(ns(major).div_ceil(FRAMES_MAX));
        return Err(at(Fault::TimeOutOfRange {
            value: frame,
            from,
            to: major,
        }));
    }
    if !ns(major).is_multiple_of(ns(frame)) {
        return Err(at(Fault::MinorFrameUneven { hyperperiod: major }));
    }
    Ok(frame)
}

/// Jobs that are released within the major frame, the nearest deadline first.
fn jobs(set: &TaskSet, mode: &str, major: u64) -> Vec<Job> {
    let mut jobs = Vec::new();
    for task in set.members(mode) {
        let declared = &set.tasks()[task];
        debug_assert!(matches!(declared.activation, Activation::Time { .. }));
        let (period, phase) = (ns(declared.period), ns(declared.phase()));
        jobs.extend((0..major / period).map(|number| Job {
            task,
            release: phase + number * period,
            deadline: phase + number * period + ns(declared.deadline),
        }));
    }
    jobs.sort_by_key(|job| (job.deadline, job.release, job.task));
    jobs
}

fn receive(set: &TaskSet, window: u64) -> u64 {
    let all = set.receive().iter();
    all.fold(0, |sum: u64, one| {
        sum.saturating_add(receive_time(one, window))
    })
}

/// Length of the window that a whole job needs; `None` if receive processing leaves it none within its period.
fn window_needed(set: &TaskSet, task: usize) -> Option<u64> {
    let declared = &set.tasks()[task];
    let base = ns(declared.charged()) + delays(set, task);
    fixed_point(base, ns(declared.period), |window| {
        base.saturating_add(receive(set, window))
    })
}

/// Time that passes in each window of a task without its job.
fn delays(set: &TaskSet, task: usize) -> u64 {
    let machine = set.machine();
    ns(set.release_jitter(task) + machine.blocking + machine.overhead)
}

/// Puts each job into a minor frame. `ends` receives the latest end of each task's jobs, from their release.
fn place(
    jobs: &[Job],
    needs: &[Option<u64>],
    major: u64,
    minor: u64,
    ends: &mut [Option<u64>],
) -> Vec<Window> {
    let frames = major / minor;
    let mut used = vec![0; frames as usize];
    let mut windows = Vec::new();
    for job in jobs {
        let need = needs[job.task].filter(|need| *need <= minor);
        // The frames from the release on, one major frame long; the table repeats, so the last one is followed by
        // the first.
        let first = job.release.div_ceil(minor);
        let found = need.and_then(|need| {
            let mut candidates = first..first + frames;
            let frame = candidates.find(|frame| used[(frame % frames) as usize] + need <= minor)?;
            Some((frame, need))
        });
        let Some((frame, need)) = found else {
            ends[job.task] = None;
            continue;
        };
        let filled = &mut used[(frame % frames) as usize];
        windows.push(Window {
            task: job.task,
            offset: Duration::from_nanos(frame % frames * minor + *filled),
            duration: Duration::from_nanos(need),
        });
        *filled += need;
        let end = frame * minor + *filled;
        ends[job.task] = latest(ends[job.task], Some(end), job.release);
    }
    windows.sort_by_key(|window| window.offset);
    windows
}

fn latest(known: Option<u64>, end: Option<u64>, release: u64) -> Option<u64> {
    Some(known?.max(end? - release))
}

/// The declared windows of a mode, checked.
fn declared(
    set: &TaskSet,
    mode: &str,
    major: Duration,
    minor: Duration,
) -> Result<Vec<Window>, SetError> {
    let mut windows: Vec<Window> = Vec::new();
    let mut until = Duration::ZERO;
    for (index, window) in set.plan().windows.iter().enumerate() {
        let at = |key, fault| Err(SetError::new(Location::Window(index, key), fault));
        let is_member = set.members(mode).any(|task| task == window.task);
        if !is_member {
            continue;
        }
        let last = major - Duration::from_nanos(1);
        if window.offset > last {
            let (value, from, to) = (window.offset, Duration::ZERO, last);
            return at("offset", Fault::TimeOutOfRange { value, from, to });
        }
        let (from, to) = (Duration::from_nanos(1), minor);
        if !(from..=to).contains(&window.duration) {
            let value = window.duration;
            return at("duration", Fault::TimeOutOfRange { value, from, to });
        }
        if window.offset < until {
            return at("offset", Fault::WindowsOverlap { until });
        }
        let frame = |time: Duration| ns(time) / ns(minor);
        if frame(window.offset) != frame(window.end() - Duration::from_nanos(1)) {
            return at("duration", Fault::WindowCrossesFrame { minor });
        }
        until = window.end();
        windows.push(*window);
    }
    Ok(windows)
}

/// End of the window in which a job is done, from the start of the major frame in which it is released. Windows
/// before the release serve the job before. `None` if the windows of a major frame do not suffice.
fn served(windows: &[Window], job: &Job, major: u64, set: &TaskSet) -> Option<u64> {
    let mut left = ns(set.tasks()[job.task].charged());
    let own = || windows.iter().filter(|window| window.task == job.task);
    let next = job.release + ns(set.tasks()[job.task].period);
    let twice = own()
        .map(|window| (window, 0))
        .chain(own().map(|window| (window, major)))
        .chain(own().map(|window| (window, 2 * major)));
    for (window, shift) in twice {
        let start = ns(window.offset) + shift;
        if !(job.release..next).contains(&start) {
            continue;
        }
        let length = ns(window.duration);
        let lost = delays(set, job.task).saturating_add(receive(set, length));
        let useful = length.saturating_sub(lost);
        if useful >= left {
            return Some(start + length);
        }
        left -= useful;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::Analysis;
    use crate::task::{Machine, Receive, Scheduling, Task};

    fn ms(number: u64) -> Duration {
        Duration::from_millis(number)
    }

    fn us(number: u64) -> Duration {
        Duration::from_micros(number)
    }

    fn set_of(machine: Machine, receive: Vec<Receive>, plan: TablePlan) -> TaskSet {
        let mut tasks = vec![
            Task::periodic("fast", ms(5), ms(1)),
            Task::periodic("middle", ms(10), ms(2)),
            Task::periodic("slow", ms(20), ms(3)),
        ];
        tasks[2].activation = Activation::Time { phase: ms(5) };
        TaskSet::declare(Scheduling::Table, machine, receive, Vec::new(), tasks)
            .unwrap()
            .with_table(plan)
            .unwrap()
    }

    fn window(task: usize, offset: Duration, duration: Duration) -> Window {
        Window {
            task,
            offset,
            duration,
        }
    }

    fn found(set: &TaskSet) -> (Table, Vec<Option<Duration>>) {
        let (table, responses) = table_responses(set, "").unwrap();
        (table, responses.iter().map(|one| one.response).collect())
    }

    #[test]
    fn jobs_go_into_the_first_minor_frame_with_room() {
        let set = set_of(Machine::default(), Vec::new(), TablePlan::default());
        let (table, responses) = found(&set);
        assert_eq!((table.major_frame, table.minor_frame), (ms(20), ms(5)));
        assert_eq!(
            table.windows,
            [
                window(0, ms(0), ms(1)),
                window(1, ms(1), ms(2)),
                window(0, ms(5), ms(1)),
                window(2, ms(6), ms(3)),
                window(0, ms(10), ms(1)),
                window(1, ms(11), ms(2)),
                window(0, ms(15), ms(1)),
            ]
        );
        assert_eq!(responses, [Some(ms(1)), Some(ms(3)), Some(ms(4))]);
    }

    #[test]
    fn windows_that_were_found_pass_as_declared_ones() {
        let machine = Machine {
            release_jitter: us(20),
            blocking: us(10),
            overhead: us(2),
        };
        let receive = vec![Receive {
            name: "eth0".into(),
            rate: 10_000,
            burst: 8,
            worst_case: us(2),
            priority: None,
        }];
        let set = set_of(machine, receive.clone(), TablePlan::default());
        let (table, responses) = found(&set);
        let plan = TablePlan {
            minor_frame: Some(table.minor_frame),
            windows: table.windows.clone(),
        };
        let again = set_of(machine, receive, plan);
        assert_eq!(found(&again), (table, responses));
    }

    #[test]
    fn wrong_windows_are_named() {
        let fault = |windows: Vec<Window>| {
            let plan = TablePlan {
                minor_frame: None,
                windows,
            };
            let set = set_of(Machine::default(), Vec::new(), plan);
            table_responses(&set, "").unwrap_err()
        };
        let first = window(0, ms(0), ms(1));
        let overlap = fault(vec![first, window(1, us(500), ms(1))]);
        assert_eq!(overlap.location, Location::Window(1, "offset"));
        assert_eq!(overlap.fault, Fault::WindowsOverlap { until: ms(1) });
        let crosses = fault(vec![first, window(1, ms(4), ms(2))]);
        assert_eq!(crosses.fault, Fault::WindowCrossesFrame { minor: ms(5) });
        let beyond = fault(vec![window(0, ms(20), ms(1))]);
        assert_eq!(beyond.location, Location::Window(0, "offset"));
    }

    #[test]
    fn a_task_without_enough_windows_has_no_response() {
        let plan = TablePlan {
            minor_frame: None,
            windows: vec![window(0, ms(0), ms(1)), window(1, ms(1), ms(2))],
        };
        let set = set_of(Machine::default(), Vec::new(), plan);
        let analysis = Analysis::of(&set, "").unwrap();
        let refused: Vec<usize> = analysis.refusals(&set).map(|one| one.task).collect();
        assert_eq!(refused, [0, 1, 2], "each has a job without a window");
    }

    #[test]
    fn frames_are_even_and_bounded() {
        for (minor_frame, is_uneven) in [(ms(3), true), (Duration::ZERO, false), (ms(21), false)] {
            let plan = TablePlan {
                minor_frame: Some(minor_frame),
                windows: Vec::new(),
            };
            let set = set_of(Machine::default(), Vec::new(), plan);
            let error = table_responses(&set, "").unwrap_err();
            assert_eq!(error.location, Location::Set("minor_frame"));
            let uneven = matches!(error.fault, Fault::MinorFrameUneven { .. });
            assert_eq!(uneven, is_uneven, "{error}");
        }
    }
}
