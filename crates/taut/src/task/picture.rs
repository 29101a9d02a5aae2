//! Time lines of task sets: as text for a terminal, and as a chart for a page.

use std::fmt::Write as _;
use std::time::Duration;

use tautline_exec::{Analysis, TaskSet};

use super::timeline::Timeline;
use tautline_report::gantt::{Gantt, Row};
use tautline_report::plot::latency_text;

use crate::task::measured::{self, TracedTask};
use crate::units::ns;

/// Most jobs in a picture. Lower: a hyperperiod of 64 tasks is cut off early. Higher: bars narrower than a pixel, in
/// pages of megabytes.
const JOBS_MAX: u64 = 4_000;
/// Narrowest picture in a terminal, in columns. Narrower: jobs of different tasks share a column.
const COLUMNS_MIN: usize = 20;
/// Columns from one label of the scale to the next.
const LABEL_COLUMNS: usize = 16;

/// A time line with a row for each task.
pub struct Picture {
    /// By task.
    names: Vec<String>,
    timeline: Timeline,
    caption: String,
    /// Tasks from the top.
    rows: Vec<usize>,
}

impl Picture {
    /// The picture of an analysed mode.
    pub fn of(set: &TaskSet, analysis: &Analysis) -> Picture {
        let rate: f64 = set
            .members(&analysis.mode)
            .map(|task| 1.0 / set.tasks()[task].period.as_secs_f64())
            .sum();
        let longest = Duration::from_secs_f64(JOBS_MAX as f64 / rate);
        let span = longest.min(analysis.hyperperiod.unwrap_or(longest));
        let content = match analysis.table {
            Some(_) => "Windows of the table",
            None => "Worst-case execution times, without jitter, blocking and receive processing",
        };
        let part = match analysis.hyperperiod {
            Some(hyperperiod) if span == hyperperiod => "one hyperperiod",
            Some(_) => "the beginning of a hyperperiod",
            None => "the beginning",
        };
        Picture {
            names: set.tasks().iter().map(|task| task.name.clone()).collect(),
            timeline: Timeline::of(set, analysis, span),
            caption: format!("{content}; {part}"),
            rows: analysis.responses.iter().map(|one| one.task).collect(),
        }
    }

    /// The picture of jobs that ran, from a time on.
    pub fn of_run(tasks: &[TracedTask], from: Duration, span: Duration) -> Picture {
        let mut rows: Vec<usize> = (0..tasks.len()).collect();
        rows.sort_by_key(|task| std::cmp::Reverse(tasks[*task].priority));
        let timeline = measured::timeline(tasks, from, span);
        Picture {
            names: tasks.iter().map(|task| task.name.clone()).collect(),
            caption: format!("Jobs that ran, {} of them", timeline.jobs.len()),
            timeline,
            rows,
        }
    }

    /// Meaning and length of the picture.
    pub fn caption(&self) -> &str {
        &self.caption
    }

    /// The chart, for a page.
    pub fn chart(&self) -> Gantt {
        let span = self.timeline.span;
        let row = |task: &usize| {
            let jobs = || self.timeline.jobs.iter().filter(|job| job.task == *task);
            let slices = self.timeline.slices.iter();
            Row {
                name: self.names[*task].clone(),
                bars_ns: slices
                    .filter(|slice| slice.task == *task)
                    .map(|slice| (ns(slice.from), ns(slice.to)))
                    .collect(),
                waits_ns: jobs()
                    .map(|job| (ns(job.release), ns(job.end.unwrap_or(span))))
                    .collect(),
                deadlines_ns: jobs().map(|job| ns(job.deadline)).collect(),
                faults_ns: jobs()
                    .filter(|job| job.is_late(span))
                    .map(|job| ns(job.deadline))
                    .collect(),
            }
        };
        Gantt {
            caption: self.caption.clone(),
            span_ns: ns(span),
            rows: self.rows.iter().map(row).collect(),
        }
    }

    /// The picture in characters, at most so many columns wide: `█` runs for most of the column, `▄` for some of it,
    /// `·` waits, `!` misses its deadline.
    pub fn text(&self, width: usize) -> String {
        let chart = self.chart();
        let names = chart.rows.iter().map(|row| row.name.chars().count());
        let label = names.max().unwrap_or(0) + 2;
        let columns = width.saturating_sub(label + 1).max(COLUMNS_MIN);
        let mut text = String::new();
        for row in &chart.rows {
            let cells: String = (0..columns)
                .map(|column| cell(row, column, columns, chart.span_ns))
                .collect();
            let _ = writeln!(text, " {:<1$}{2}", row.name, label, cells.trim_end());
        }
        text + &scale(label, columns, chart.span_ns)
    }
}

/// One character of a row.
fn cell(row: &Row, column: usize, columns: usize, span_ns: u64) -> char {
    let edge = |column: usize| (u128::from(span_ns) * column as u128 / columns as u128) as u64;
    let (from, to) = (edge(column), edge(column + 1));
    let covered = |parts: &[(u64, u64)]| -> u64 {
        let inside = parts
            .iter()
            .map(|(start, end)| end.min(&to).saturating_sub(*start.max(&from)));
        inside.sum()
    };
    let running = covered(&row.bars_ns);
    if row.faults_ns.iter().any(|fault| (from..to).contains(fault)) {
        '!'
    } else if 2 * running >= to - from && running > 0 {
        '█'
    } else if running > 0 {
        '▄'
    } else if covered(&row.waits_ns) > 0 {
        '·'
    } else {
        ' '
    }
}

fn scale(label: usize, columns: usize, span_ns: u64) -> String {
    let mut line = " ".repeat(label + 1);
    let marks = (columns / LABEL_COLUMNS).max(1);
    for mark in 0..marks {
        let at = label + 1 + columns * mark / marks;
        let missing = at.saturating_sub(line.chars().count());
        line += &" ".repeat(missing);
        let ns = (u128::from(span_ns) * mark as u128 / marks as u128) as u64;
        line += &match ns {
            0 => "0".to_owned(),
            ns => latency_text(ns),
        };
    }
    let end = latency_text(span_ns);
    let missing = (label + 1 + columns).saturating_sub(line.chars().count() + end.chars().count());
    if missing > 1 {
        line += &" ".repeat(missing);
        line += &end;
    }
    line + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use tautline_exec::Task;

    fn ms(number: u64) -> Duration {
        Duration::from_millis(number)
    }

    #[test]
    fn the_text_shows_who_runs_and_who_waits() {
        let set = TaskSet::new(vec![
            Task::periodic("slow", ms(20), ms(10)),
            Task::periodic("fast", ms(10), ms(5)),
        ]);
        let set = set.unwrap();
        let analysis = Analysis::of(&set, "").unwrap();
        let picture = Picture::of(&set, &analysis);
        let text = picture.text(27);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], " fast  █████     █████");
        assert_eq!(lines[1], " slow  ·····█████·····█████");
        assert_eq!(lines[2], "       0            20.0 ms");
        assert!(picture.caption().ends_with("one hyperperiod"));
    }

    #[test]
    fn a_missed_deadline_is_marked_in_both() {
        let set = TaskSet::new(vec![
            Task::periodic("a", ms(2), ms(1)),
            Task::periodic("b", ms(4), ms(3)),
        ]);
        let set = set.unwrap();
        let picture = Picture::of(&set, &Analysis::of(&set, "").unwrap());
        assert!(!picture.chart().rows[1].faults_ns.is_empty());
        // The deadline is the end of the hyperperiod, beyond the last column; a longer one shows it.
        let mut tasks = set.tasks().to_vec();
        tasks[1].deadline = ms(3);
        let set = TaskSet::new(tasks).unwrap();
        let picture = Picture::of(&set, &Analysis::of(&set, "").unwrap());
        assert!(picture.text(60).contains('!'), "{}", picture.text(60));
    }

    #[test]
    fn long_hyperperiods_are_cut_and_say_so() {
        let set = TaskSet::new(vec![
            Task::periodic("fast", ms(1), Duration::from_micros(10)),
            Task::periodic("slow", ms(60_000), ms(1)),
        ]);
        let set = set.unwrap();
        let picture = Picture::of(&set, &Analysis::of(&set, "").unwrap());
        assert!(picture.chart().rows[0].bars_ns.len() <= JOBS_MAX as usize);
        assert!(picture.caption().contains("the beginning of a hyperperiod"));
    }
}
