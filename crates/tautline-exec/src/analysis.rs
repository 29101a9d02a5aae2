//! Admission: whether every task of a mode holds its deadline, by which bound, and with how much to spare.

use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use crate::demand::earliest_deadline;
use crate::error::SetError;
use crate::response::{TaskResponse, fixed_priority};
use crate::table::{Table, better_minor_frame, table_responses};
use crate::task::{Scheduling, TaskSet, ns};

/// Largest headroom that is reported, in thousandths. Lower: tiny tasks look as if they had less room. Higher: more
/// steps for a number without use.
const HEADROOM_MAX: u64 = 100_000;
const PPM: u64 = 1_000_000;

/// Analysis of one mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Analysis {
    /// Name of the mode; empty if the set declares none.
    pub mode: String,
    /// Least common multiple of the periods: the major frame of a table. `None` if it is too long to look at, which no
    /// other scheduling needs.
    pub hyperperiod: Option<Duration>,
    /// Share of the CPU that the tasks take, with early wake-ups, in millionths, rounded up.
    pub utilisation_ppm: u64,
    /// Bounds, the most urgent task first; without priorities in the order of declaration.
    pub responses: Vec<TaskResponse>,
    /// Windows, where the scheduling is a table.
    pub table: Option<Table>,
}

impl Analysis {
    /// Analyses a mode of a set.
    ///
    /// ```
    /// use core::time::Duration;
    /// use tautline_exec::{Analysis, Task, TaskSet};
    ///
    /// let us = Duration::from_micros;
    /// let set = TaskSet::new(vec![
    ///     Task::periodic("fast", us(1_000), us(400)),
    ///     Task::periodic("slow", us(2_000), us(700)),
    /// ])?;
    /// let analysis = Analysis::of(&set, "")?;
    /// assert_eq!(analysis.responses[1].response, Some(us(1_500)));
    /// assert!(analysis.is_admitted(&set));
    /// # Ok::<(), tautline_exec::SetError>(())
    /// ```
    ///
    /// # Errors
    /// A window of a table that is declared wrongly.
    pub fn of(set: &TaskSet, mode: &str) -> Result<Analysis, SetError> {
        let (responses, table) = responses(set, mode)?;
        Ok(Analysis {
            mode: mode.to_owned(),
            hyperperiod: set.hyperperiod(mode),
            utilisation_ppm: utilisation_ppm(set, mode),
            responses,
            table,
        })
    }

    /// Analyses all modes.
    ///
    /// # Errors
    /// A window of a table that is declared wrongly.
    pub fn of_all(set: &TaskSet) -> Result<Vec<Analysis>, SetError> {
        set.mode_names()
            .map(|mode| Analysis::of(set, mode))
            .collect()
    }

    /// Whether the set may run in this mode: each task holds its deadline, or says why it need not.
    #[must_use]
    pub fn is_admitted(&self, set: &TaskSet) -> bool {
        self.refusals(set).next().is_none()
    }

    /// Tasks that can miss their deadline without a reason to accept that.
    pub fn refusals<'a>(&'a self, set: &'a TaskSet) -> impl Iterator<Item = &'a TaskResponse> {
        let missed = self.responses.iter().filter(|one| !one.holds());
        missed.filter(|one| set.tasks()[one.task].accept.is_none())
    }

    /// Minor frame with which the table would be admitted, where the declared one is refused.
    #[must_use]
    pub fn better_minor_frame(&self, set: &TaskSet) -> Option<Duration> {
        let is_refused = !self.is_admitted(set);
        is_refused.then(|| better_minor_frame(set, &self.mode))?
    }

    /// Longest time from the request of another mode until its tasks start: the jobs that run then come to their end
    /// first. `None` if one of them has no bound.
    #[must_use]
    pub fn switch_time(&self) -> Option<Duration> {
        let longest = |longest: Duration, one: &TaskResponse| Some(longest.max(one.response?));
        self.responses.iter().try_fold(Duration::ZERO, longest)
    }

    /// Factor in thousandths, rounded down, by which all worst cases, budgets and critical sections together could be
    /// longer with every deadline still held; below 1,000, by which they must be shorter. Found by bisection: some
    /// twenty analyses.
    #[must_use]
    pub fn headroom_permille(&self, set: &TaskSet) -> u64 {
        let holds = |permille| {
            let scaled = set.scaled(permille);
            let found = responses(&scaled, &self.mode);
            found.is_ok_and(|(all, _)| all.iter().all(TaskResponse::holds))
        };
        // From what is known: a table may hold, and not hold with a little less.
        let (mut held, mut missed) = match self.responses.iter().all(TaskResponse::holds) {
            true => (1_000, HEADROOM_MAX + 1),
            false => (0, 1_000),
        };
        while missed - held > 1 {
            let middle = held.midpoint(missed);
            if holds(middle) {
                held = middle;
            } else {
                missed = middle;
            }
        }
        held
    }
}

/// Bounds of a mode, the most urgent task first, and the table if there is one.
fn responses(set: &TaskSet, mode: &str) -> Result<(Vec<TaskResponse>, Option<Table>), SetError> {
    if set.scheduling() == Scheduling::Table {
        let (table, responses) = table_responses(set, mode)?;
        return Ok((responses, Some(table)));
    }
    if set.scheduling() == Scheduling::EarliestDeadline {
        return Ok((earliest_deadline(set, mode), None));
    }
    let mut responses: Vec<TaskResponse> = set
        .members(mode)
        .map(|task| fixed_priority(set, mode, task))
        .collect();
    responses.sort_by_key(|one| core::cmp::Reverse(one.priority));
    Ok((responses, None))
}

fn utilisation_ppm(set: &TaskSet, mode: &str) -> u64 {
    let share = |task: usize| {
        let charged = set.charged(task) + set.early(task);
        (ns(charged) * PPM).div_ceil(ns(set.tasks()[task].period))
    };
    set.members(mode).map(share).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::Task;
    use alloc::vec;

    fn us(number: u64) -> Duration {
        Duration::from_micros(number)
    }

    #[test]
    fn headroom_is_where_the_first_deadline_is_missed() {
        // Harmonic periods: deadline-monotonic priorities use the whole CPU.
        let set = TaskSet::new(vec![
            Task::periodic("a", us(1_000), us(250)),
            Task::periodic("b", us(2_000), us(500)),
        ])
        .unwrap();
        let analysis = Analysis::of(&set, "").unwrap();
        assert_eq!(analysis.headroom_permille(&set), 2_000);
        assert_eq!(analysis.utilisation_ppm, 500_000);
        assert_eq!(analysis.hyperperiod, Some(us(2_000)));
        assert_eq!(analysis.switch_time(), Some(us(750)));
    }

    #[test]
    fn headroom_stretches_critical_sections_too() {
        let mut tasks = vec![
            Task::periodic("a", us(10_000), us(1_000)),
            Task::periodic("b", us(100_000), us(10_000)),
        ];
        tasks[0].deadline = us(2_000);
        tasks[1].critical_section = us(900);
        let set = TaskSet::new(tasks).unwrap();
        let analysis = Analysis::of(&set, "").unwrap();
        // (1,000 + 900) · 1.052 < 2,000 < (1,000 + 900) · 1.053.
        assert_eq!(analysis.headroom_permille(&set), 1_052);
    }

    #[test]
    fn rates_without_a_common_multiple_are_analysed() {
        let set = TaskSet::new(vec![
            Task::periodic("camera", Duration::from_nanos(16_666_666), us(500)),
            Task::periodic("control", us(20_000), us(400)),
        ])
        .unwrap();
        let analysis = Analysis::of(&set, "").unwrap();
        assert!(analysis.is_admitted(&set));
        assert_eq!(analysis.hyperperiod, None);
        assert_eq!(analysis.responses[1].response, Some(us(900)));
    }

    #[test]
    fn a_refusal_names_the_task_and_by_how_much_and_a_reason_lifts_it() {
        let mut tasks = vec![
            Task::periodic("a", us(1_000), us(500)),
            Task::periodic("b", us(1_500), us(600)),
        ];
        tasks[1].deadline = us(900);
        tasks[0].deadline = us(500);
        let set = TaskSet::new(tasks.clone()).unwrap();
        let analysis = Analysis::of(&set, "").unwrap();
        let refused: Vec<&TaskResponse> = analysis.refusals(&set).collect();
        assert_eq!(refused.len(), 1);
        assert_eq!(refused[0].task, 1);
        assert_eq!(refused[0].excess(), Some(us(700)));
        assert!(analysis.headroom_permille(&set) < 1_000);
        tasks[1].accept = Some("a late picture is no harm".into());
        let set = TaskSet::new(tasks).unwrap();
        assert!(Analysis::of(&set, "").unwrap().is_admitted(&set));
    }
}
