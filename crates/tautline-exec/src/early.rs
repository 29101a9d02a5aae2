//! Early wake-up of the most urgent task: its thread is awake before the release and spins until then, so that the
//! latency of a wake-up does not delay its job.
//!
//! Only one task of a CPU spins by itself, because its spin delays all others. They are charged for it: a job of this
//! task takes `C + E` of the CPU, from up to `E` before its release, where `E` is the longest early wake-up. A set that
//! would miss a deadline by that has a shorter one, or wakes with the timer. Not here: when to wake within `E`, which
//! the machine decides.

use core::time::Duration;

use crate::analysis::Analysis;
use crate::task::{Scheduling, TaskSet};

/// Longest early wake-up. Lower: one wake-up in a hundred takes longer on a busy virtual machine. Higher: the other
/// tasks are charged for more.
pub const EARLY_MAX: Duration = Duration::from_micros(100);
/// Parts of it that are tried, as divisors.
const EARLY_PARTS: [u32; 3] = [1, 2, 4];
/// Part of the period, as a divisor, that the early wake-up takes at most: a tenth of the CPU.
const EARLY_PART: u32 = 10;
/// Most of the CPU that a set with an early wake-up takes, in millionths. Higher: with what else runs under SCHED_FIFO,
/// the kernel's limit of 95 % stops the tasks.
const UTILISATION_PPM_MAX: u64 = 900_000;

impl TaskSet {
    /// The same set, whose most urgent task is awake before its releases for as long as the other tasks can be charged
    /// with: every deadline that holds without it holds with it. With fixed priorities only: under SCHED_DEADLINE the
    /// kernel would count the deadline from the early wake-up, and in a table it would be in the window of another
    /// task.
    ///
    /// ```
    /// use core::time::Duration;
    /// use tautline_exec::{Task, TaskSet};
    ///
    /// let us = Duration::from_micros;
    /// let set = TaskSet::new(vec![
    ///     Task::periodic("control", us(1_000), us(200)),
    ///     Task::periodic("vision", us(20_000), us(2_000)),
    /// ])?;
    /// assert_eq!(set.early(0), us(0));
    /// assert_eq!(set.awake().early(0), us(100));
    /// # Ok::<(), tautline_exec::SetError>(())
    /// ```
    #[must_use]
    pub fn awake(mut self) -> TaskSet {
        self.early = None;
        let Some(task) = self.most_urgent() else {
            return self;
        };
        let longest = EARLY_MAX.min(self.tasks()[task].period / EARLY_PART);
        let awake = EARLY_PARTS.map(|part| {
            let mut awake = self.clone();
            awake.early = Some((task, longest / part));
            awake
        });
        let held = awake
            .into_iter()
            .find(|awake| costs_no_deadline(&self, awake));
        held.unwrap_or(self)
    }

    /// Longest time by which the thread of a task is awake before a release; zero for a task that wakes with the timer.
    #[must_use]
    pub fn early(&self, task: usize) -> Duration {
        let early = self.early.filter(|(early, _)| *early == task);
        early.map_or(Duration::ZERO, |(_, longest)| longest)
    }

    /// The most urgent task that time activates, if no other has its priority.
    fn most_urgent(&self) -> Option<usize> {
        if matches!(
            self.scheduling(),
            Scheduling::EarliestDeadline | Scheduling::Table
        ) {
            return None;
        }
        let all = 0..self.tasks().len();
        let by_time = all.filter(|task| !self.tasks()[*task].is_by_message());
        let first = by_time.max_by_key(|task| self.priority(*task))?;
        let equals =
            (0..self.tasks().len()).filter(|task| self.priority(*task) == self.priority(first));
        (equals.count() == 1).then_some(first)
    }
}

/// Whether every task that holds its deadline in the one set holds it in the other as well.
fn costs_no_deadline(without: &TaskSet, with: &TaskSet) -> bool {
    let (Ok(before), Ok(after)) = (Analysis::of_all(without), Analysis::of_all(with)) else {
        return false;
    };
    let mut modes = before.iter().zip(&after);
    modes.all(|(before, after)| {
        let mut tasks = before.responses.iter().zip(&after.responses);
        after.utilisation_ppm <= UTILISATION_PPM_MAX
            && tasks.all(|(before, after)| after.holds() || !before.holds())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::{Machine, Task};
    use alloc::vec;
    use alloc::vec::Vec;

    fn us(number: u64) -> Duration {
        Duration::from_micros(number)
    }

    fn early(set: &TaskSet) -> Vec<u64> {
        let all = 0..set.tasks().len();
        all.map(|task| set.early(task).as_micros() as u64).collect()
    }

    fn of(scheduling: Scheduling, tasks: &[Task]) -> Vec<u64> {
        let (machine, tasks) = (Machine::default(), tasks.to_vec());
        let set = TaskSet::declare(scheduling, machine, Vec::new(), Vec::new(), tasks);
        early(&set.unwrap().awake())
    }

    #[test]
    fn the_others_are_charged_for_the_most_urgent_task_alone() {
        let tasks = vec![
            Task::periodic("slow", us(2_000), us(500)),
            Task::periodic("fast", us(400), us(100)),
        ];
        let set = TaskSet::new(tasks).unwrap();
        let awake = set.clone().awake();
        assert_eq!(early(&awake), [0, 40]);
        let responses = |set: &TaskSet| -> Vec<Duration> {
            let analysis = Analysis::of(set, "").unwrap();
            analysis
                .responses
                .iter()
                .filter_map(|one| one.response)
                .collect()
        };
        // slow: 500 + 2 · 100 = 700. Awake: jobs of 140 from 40 before the release: 500 + 3 · 140 = 920, and
        // ⌈(920 + 40) / 400⌉ = 3.
        assert_eq!(responses(&set), [us(100), us(700)]);
        assert_eq!(responses(&awake), [us(100), us(920)]);
        let utilisation = Analysis::of(&awake, "").unwrap().utilisation_ppm;
        assert_eq!(utilisation, 250_000 + 350_000);
    }

    #[test]
    fn a_set_without_room_wakes_with_the_timer() {
        let mut tasks = vec![
            Task::periodic("fast", us(1_000), us(400)),
            Task::periodic("slow", us(2_000), us(500)),
        ];
        // 500 + 400 and what the early wake-up takes.
        for (deadline, longest) in [(924, 0), (925, 25), (949, 25), (950, 50), (2_000, 100)] {
            tasks[1].deadline = us(deadline);
            assert_eq!(of(Scheduling::RateMonotonic, &tasks), [longest, 0]);
        }
        // More of the CPU than the kernel leaves to real-time threads.
        (tasks[0].worst_case, tasks[1].deadline) = (us(700), us(2_000));
        assert_eq!(of(Scheduling::RateMonotonic, &tasks), [0, 0]);
    }

    #[test]
    fn only_with_fixed_priorities_and_no_equal() {
        let mut tasks = vec![
            Task::periodic("one", us(1_000), us(100)),
            Task::periodic("other", us(2_000), us(100)),
        ];
        assert_eq!(of(Scheduling::EarliestDeadline, &tasks), [0, 0]);
        assert_eq!(of(Scheduling::Table, &tasks), [0, 0]);
        (tasks[0].priority, tasks[1].priority) = (Some(7), Some(7));
        assert_eq!(of(Scheduling::Declared, &tasks), [0, 0]);
        tasks[1].priority = Some(8);
        assert_eq!(of(Scheduling::Declared, &tasks), [0, 100]);
    }
}
