//! Static cyclic tables: a major frame, cut into minor frames, with a window for each job.
//!
//! A task runs in its windows and nowhere else, as in ARINC 653. Windows that are not declared are found here: the jobs
//! of a hyperperiod, the nearest deadline first, go into the first minor frame that begins after their release and has
//! room for them (the cyclic executive of Baker and Shaw). Of the minor frames that divide the major one, the greatest
//! common divisor of periods and phases is taken, and another one where that does not hold. A window lasts for the
//! charged time and for all that can delay it: release jitter, blocking, overhead, and the receive processing
//! meanwhile.

use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use crate::error::{Fault, Location, SetError};
use crate::limits::HYPERPERIOD_MAX;
use crate::plan::Window;
use crate::response::{TaskResponse, fixed_point};
use crate::task::{Activation, Scheduling, TaskSet, common_divisor, ns};

/// Most minor frames of a major frame. Lower: a fast task beside a slow one does not fit. Higher: a table too long
/// to check.
pub const FRAMES_MAX: u64 = 100_000;

/// Table of one mode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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
    let work = Work::of(set, mode);
    if !set.plan().windows.is_empty() {
        return work.in_declared_windows();
    }
    if let Some(minor_frame) = set.plan().minor_frame {
        return Ok(work.in_frames(checked(minor_frame, work.major_frame)?));
    }
    let first = checked(work.common_divisor(), work.major_frame);
    let first = first.map(|minor_frame| work.in_frames(minor_frame));
    match first {
        Ok((table, responses)) if responses.iter().all(TaskResponse::holds) => {
            Ok((table, responses))
        }
        first => work.in_other_frames().map_or(first, Ok),
    }
}

/// The shortest minor frame with which every deadline of a mode holds or need not, where windows are found.
pub(crate) fn better_minor_frame(set: &TaskSet, mode: &str) -> Option<Duration> {
    let may_choose = set.scheduling() == Scheduling::Table && set.plan().windows.is_empty();
    let found = may_choose.then(|| Work::of(set, mode).in_other_frames())??;
    Some(found.0.minor_frame)
}

/// Jobs of a mode, for which a table is to be found.
struct Work<'a> {
    set: &'a TaskSet,
    mode: &'a str,
    major_frame: Duration,
    /// By task: length of the window of a whole job, if there is one.
    needs: Vec<Option<u64>>,
    jobs: Vec<Job>,
}

impl<'a> Work<'a> {
    fn of(set: &'a TaskSet, mode: &'a str) -> Work<'a> {
        // Within the limit since the set was declared.
        let major_frame = set.hyperperiod(mode).unwrap_or(HYPERPERIOD_MAX);
        let tasks = 0..set.tasks().len();
        Work {
            set,
            mode,
            major_frame,
            needs: tasks.map(|task| window_needed(set, task)).collect(),
            jobs: jobs(set, mode, ns(major_frame)),
        }
    }

    fn in_declared_windows(&self) -> Result<(Table, Vec<TaskResponse>), SetError> {
        let major = self.major_frame;
        let minor_frame = self.set.plan().minor_frame;
        let minor_frame = checked(minor_frame.unwrap_or(self.common_divisor()), major)?;
        let windows = declared(self.set, self.mode, major, minor_frame)?;
        let mut ends = vec![Some(0); self.set.tasks().len()];
        for job in &self.jobs {
            let end = served(&windows, job, ns(major), self.set);
            ends[job.task] = latest(ends[job.task], end, job.release);
        }
        Ok(self.table(minor_frame, windows, &ends))
    }

    fn in_frames(&self, minor_frame: Duration) -> (Table, Vec<TaskResponse>) {
        let (major, minor) = (ns(self.major_frame), ns(minor_frame));
        let mut ends = vec![Some(0); self.set.tasks().len()];
        let windows = place(&self.jobs, &self.needs, major, minor, &mut ends);
        self.table(minor_frame, windows, &ends)
    }

    /// The table with the shortest minor frame with which every deadline holds or need not.
    fn in_other_frames(&self) -> Option<(Table, Vec<TaskResponse>)> {
        let accepts = |one: &TaskResponse| self.set.tasks()[one.task].accept.is_some();
        let tables = self.other_frames().into_iter();
        let mut tables = tables.map(|minor_frame| self.in_frames(minor_frame));
        tables.find(|(_, all)| all.iter().all(|one| one.holds() || accepts(one)))
    }

    /// Minor frames, the shortest first, in which each task has room and a frame that begins soon enough.
    fn other_frames(&self) -> Vec<Duration> {
        let major = ns(self.major_frame);
        let counts = (1..=FRAMES_MAX.min(major)).rev();
        let frames = counts.filter(|count| major.is_multiple_of(*count));
        let frames = frames.map(|count| Duration::from_nanos(major / count));
        let fits = |frame: &Duration, task: usize| {
            let declared = &self.set.tasks()[task];
            let step = common_divisor(*frame, declared.period);
            let into = ns(declared.phase()) % ns(step);
            // The release that waits longest for the next frame.
            let wait = ns(*frame) - if into == 0 { ns(step) } else { into };
            let end = self.needs[task].map(|need| (need, wait.saturating_add(need)));
            end.is_some_and(|(need, end)| need <= ns(*frame) && end <= ns(declared.deadline))
        };
        let is_bound = |task: &usize| self.set.tasks()[*task].accept.is_none();
        let all = |frame: &Duration| {
            let mut tasks = self.set.members(self.mode).filter(is_bound);
            tasks.all(|task| fits(frame, task))
        };
        frames.filter(all).collect()
    }

    fn common_divisor(&self) -> Duration {
        let members = self.set.members(self.mode);
        members.fold(self.major_frame, |frame, task| {
            let declared = &self.set.tasks()[task];
            let frame = common_divisor(frame, declared.period);
            common_divisor(frame, declared.phase())
        })
    }

    fn table(
        &self,
        minor_frame: Duration,
        windows: Vec<Window>,
        ends: &[Option<u64>],
    ) -> (Table, Vec<TaskResponse>) {
        let members = self.set.members(self.mode);
        let response = |task: usize| response(self.set, task, self.needs[task], ends[task]);
        let table = Table {
            major_frame: self.major_frame,
            minor_frame,
            windows,
        };
        (table, members.map(response).collect())
    }
}

fn response(set: &TaskSet, task: usize, need: Option<u64>, end: Option<u64>) -> TaskResponse {
    let need = need.unwrap_or_default();
    TaskResponse {
        task,
        priority: None,
        charged: set.charged(task),
        jitter: set.release_jitter(task),
        blocking: set.machine().blocking,
        receive: Duration::from_nanos(set.time_from(None, need)),
        interference: Duration::from_nanos(end.unwrap_or_default().saturating_sub(need)),
        response: end.map(Duration::from_nanos),
        deadline: set.tasks()[task].deadline,
    }
}

/// A minor frame, if it cuts the major frame evenly and not too finely.
fn checked(frame: Duration, major: Duration) -> Result<Duration, SetError> {
    let at = |fault| SetError::new(Location::Set("minor_frame"), fault);
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

/// Length of the window that a whole job needs; `None` if receive processing leaves it none within its period.
fn window_needed(set: &TaskSet, task: usize) -> Option<u64> {
    let declared = &set.tasks()[task];
    let base = ns(declared.charged()) + delays(set, task);
    fixed_point(base, ns(declared.period), |window| {
        base.saturating_add(set.time_from(None, window))
    })
}

/// Time that passes in each window of a task without its job.
fn delays(set: &TaskSet, task: usize) -> u64 {
    ns(set.release_jitter(task) + set.machine().blocking + set.overhead(task))
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
        let lost = delays(set, job.task).saturating_add(set.time_from(None, length));
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
    use crate::plan::TablePlan;
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
    fn another_divisor_is_tried_where_the_greatest_common_one_does_not_hold() {
        // The long job does not fit into 2 ms, and 4 ms divide all periods but for a phase.
        let mut tasks = vec![
            Task::periodic("fast", ms(4), us(500)),
            Task::periodic("long", ms(12), us(2_500)),
        ];
        tasks[1].activation = Activation::Time { phase: ms(2) };
        let declare = |plan: TablePlan| {
            let machine = Machine::default();
            TaskSet::declare(
                Scheduling::Table,
                machine,
                Vec::new(),
                Vec::new(),
                tasks.clone(),
            )
            .unwrap()
            .with_table(plan)
            .unwrap()
        };
        let set = declare(TablePlan::default());
        let analysis = Analysis::of(&set, "").unwrap();
        assert!(analysis.is_admitted(&set));
        assert_eq!(analysis.table.as_ref().unwrap().minor_frame, ms(3));
        assert_eq!(analysis.better_minor_frame(&set), None);
        // A frame that the file names is taken, and a better one proposed.
        let plan = TablePlan {
            minor_frame: Some(ms(2)),
            windows: Vec::new(),
        };
        let set = declare(plan);
        let analysis = Analysis::of(&set, "").unwrap();
        assert_eq!(analysis.refusals(&set).count(), 1);
        assert_eq!(analysis.better_minor_frame(&set), Some(ms(3)));
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
