//! Histograms of cyclictest as text (`--histogram`, `--histofall`): a line for each microsecond with a count for each
//! thread, and comments with sums, minima, maxima and overflows. With `--histofall` the last column is the sum of the
//! others. Before it can stand what cyclictest prints while it runs.

use std::path::Path;

use super::{COUNT_MAX, Thread, imported, latency_ns, refused, sum};
use crate::result::LabResult;
use crate::result_file::ResultFileError;
use tautline_machine::Machine;

/// The comment above the table.
const HEADING: &str = "# Histogram";

/// The table and the comments with figures of each column, as they stand there.
#[derive(Default)]
struct Table {
    rows: Vec<Row>,
    total: Option<Figures>,
    minima: Option<Figures>,
    averages: Option<Figures>,
    maxima: Option<Figures>,
    overflows: Option<Figures>,
}

struct Row {
    line: usize,
    latency_us: u64,
    counts: Vec<u64>,
}

/// Figures of a comment.
struct Figures {
    line: usize,
    values: Vec<u64>,
}

/// A fault, with its line.
type Fault = (usize, String);

/// Understands the text; nothing if it is something else, or has no sample.
///
/// # Errors
/// A number or a layout that cannot be right.
pub fn from_histogram(text: &str, path: &Path) -> Result<Option<LabResult>, ResultFileError> {
    let Some(table) = read(text).map_err(|(line, message)| refused(path, line, message))? else {
        return Ok(None);
    };
    let threads = table
        .threads()
        .map_err(|(line, message)| refused(path, line, message))?;
    let kind = ("cyclictest (histogram)", "microseconds");
    Ok(imported(path, kind, Machine::default(), &threads))
}

/// Reads the table; nothing if there is none.
fn read(text: &str) -> Result<Option<Table>, Fault> {
    let lines = || text.lines().map(str::trim).enumerate();
    let heading = lines().find(|(_, line)| *line == HEADING);
    let first = heading.map_or(0, |(index, _)| index);
    let mut table = Table::default();
    for (index, words) in lines().skip(first).filter(|(_, words)| !words.is_empty()) {
        let line = index + 1;
        if let Some(comment) = words.strip_prefix('#') {
            table.comment(comment.trim(), line)?;
            continue;
        }
        match row(words, line) {
            Ok(row) => table.rows.push(row),
            // Without the heading it may be any text.
            Err(_) if heading.is_none() && table.rows.is_empty() => return Ok(None),
            Err(message) => return Err((line, message)),
        }
    }
    Ok((!table.rows.is_empty()).then_some(table))
}

fn row(words: &str, line: usize) -> Result<Row, String> {
    let mut numbers = words.split_whitespace().map(number);
    let latency_us = numbers.next().ok_or("no latency")??;
    latency_ns(latency_us, 1_000)?;
    let counts = numbers.collect::<Result<Vec<u64>, String>>()?;
    if counts.is_empty() {
        return Err("a latency without a count".to_owned());
    }
    Ok(Row {
        line,
        latency_us,
        counts,
    })
}

/// A number of the table, which has digits only.
fn number(word: &str) -> Result<u64, String> {
    let is_number = word.bytes().all(|byte| byte.is_ascii_digit());
    let value = word.parse().ok().filter(|value| *value <= COUNT_MAX);
    value
        .filter(|_| is_number)
        .ok_or_else(|| format!("`{word}` is neither a count nor a latency"))
}

impl Table {
    fn comment(&mut self, comment: &str, line: usize) -> Result<(), Fault> {
        let Some((name, values)) = comment.split_once(':') else {
            return Ok(());
        };
        let place = match name {
            "Total" => &mut self.total,
            "Min Latencies" => &mut self.minima,
            "Avg Latencies" => &mut self.averages,
            "Max Latencies" => &mut self.maxima,
            "Histogram Overflows" => &mut self.overflows,
            _ => return Ok(()),
        };
        let values = values.split_whitespace().map(number);
        let values = values.collect::<Result<Vec<u64>, String>>();
        let values = values.map_err(|message| (line, message))?;
        *place = Some(Figures { line, values });
        Ok(())
    }

    /// The threads, each column but the sum.
    fn threads(&self) -> Result<Vec<Thread>, Fault> {
        let columns = self.rows[0].counts.len();
        let mut before = None;
        for row in &self.rows {
            let found = row.counts.len();
            if found != columns {
                let message = format!("{found} counts below lines of {columns}");
                return Err((row.line, message));
            }
            if before.is_some_and(|before| before >= row.latency_us) {
                let message = format!("a latency of {} µs below a greater one", row.latency_us);
                return Err((row.line, message));
            }
            before = Some(row.latency_us);
        }
        let count = self.thread_count(columns)?;
        (0..count).map(|index| self.thread(index, count)).collect()
    }

    /// The number of threads: minima and averages have no sum, and one thread has none.
    fn thread_count(&self, columns: usize) -> Result<usize, Fault> {
        let wrong = |row: &&Row| {
            let (last, others) = row.counts.split_last().unwrap_or((&0, &[]));
            others.iter().sum::<u64>() != *last
        };
        let wrong = self.rows.iter().find(wrong);
        let Some(figures) = self.minima.as_ref().or(self.averages.as_ref()) else {
            let is_sum = columns > 1 && wrong.is_none();
            return Ok(columns - usize::from(is_sum));
        };
        let threads = figures.values.len();
        match (columns.checked_sub(threads), wrong) {
            (Some(0), _) if threads > 0 => Ok(threads),
            (Some(1), None) if threads > 1 => Ok(threads),
            (Some(1), Some(row)) if threads > 1 => {
                let message = "the last count is not the sum of the others";
                Err((row.line, message.to_owned()))
            }
            _ => {
                let message = format!("figures of {threads} threads below {columns} columns");
                Err((figures.line, message))
            }
        }
    }

    fn thread(&self, index: usize, threads: usize) -> Result<Thread, Fault> {
        let figure = |figures: &Option<Figures>| match figures {
            Some(Figures { line, values }) => match values.get(index) {
                Some(value) if values.len() <= threads + 1 => Ok(Some((*line, *value))),
                _ => Err((
                    *line,
                    format!("{} figures for {threads} threads", values.len()),
                )),
            },
            None => Ok(None),
        };
        let occupied = self.rows.iter().filter(|row| row.counts[index] > 0);
        let listed = sum(occupied.clone().map(|row| row.counts[index]));
        let listed = listed.map_err(|message| (self.rows[0].line, message))?;
        if let Some((line, total)) = figure(&self.total)?.filter(|(_, total)| *total != listed) {
            let message = format!("a total of {total} below {listed} latencies of thread {index}");
            return Err((line, message));
        }
        let overflows = figure(&self.overflows)?.filter(|(_, count)| *count > 0);
        let (last, greatest) = (self.rows.last(), occupied.clone().next_back());
        let last_us = last.map_or(0, |row| row.latency_us);
        // Overflows are beyond the table, and the greatest of them is the maximum.
        let least_us = match overflows {
            Some(_) => last_us + 1,
            None => greatest.map_or(0, |row| row.latency_us),
        };
        let max_us = match (figure(&self.maxima)?, overflows) {
            (Some((line, max_us)), _) if max_us < least_us => {
                let message = format!(
                    "a maximum of {max_us} µs, though one of thread {index} is {least_us} at least"
                );
                return Err((line, message));
            }
            (Some((line, max_us)), _) => {
                latency_ns(max_us, 1_000).map_err(|message| (line, message))?;
                max_us
            }
            (None, Some((line, _))) => {
                return Err((line, "overflows without `Max Latencies`".to_owned()));
            }
            (None, None) => least_us,
        };
        Ok(Thread {
            number: index as u32,
            counts: occupied
                .map(|row| (row.latency_us * 1_000, row.counts[index]))
                .collect(),
            unplaced: overflows.map_or(0, |(_, count)| count),
            unplaced_ns: (least_us * 1_000, max_us * 1_000),
            ..Thread::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<LabResult, ResultFileError> {
        LabResult::parse(text, Path::new("old.hist"))
    }

    const WHOLE: &str = "# /dev/cpu_dma_latency set to 0us\n# Histogram\n000002 000010\t000000\n000003 000005\t000020\n\
                         # Total: 000000015 000000020\n# Min Latencies: 00002 00003\n# Avg Latencies: 00002 00003\n\
                         # Max Latencies: 00950 00003\n# Histogram Overflows: 00001 00000\n\
                         # Histogram Overflow at cycle number:\n# Thread 0: 00007\n";

    #[test]
    fn histogram_file_of_cyclictest() {
        let result = parse(WHOLE).unwrap();
        let series = &result.phases[0].series;
        assert_eq!(series.len(), 2);
        assert_eq!(
            (series[0].summary.count, series[0].summary.max_ns),
            (16, 950_000)
        );
        assert_eq!(
            (series[1].summary.count, series[1].summary.max_ns),
            (20, 3_000)
        );
    }

    #[test]
    fn a_column_that_is_the_sum_of_the_others_is_no_thread() {
        let with_sum = "# Histogram\n000002 000010\t000000\t000010\n000003 000005\t000020\t000025\n\
                        # Total: 000000015 000000020 000000035\n# Min Latencies: 00002 00003\n\
                        # Avg Latencies: 00002 00003\n# Max Latencies: 00950 00003 00950\n\
                        # Histogram Overflows: 00001 00000 00001\n";
        let bare = with_sum.lines().filter(|line| !line.starts_with("# "));
        let bare = bare.collect::<Vec<_>>().join("\n");
        for (text, count) in [(with_sum, 36), (&bare, 35)] {
            let result = parse(text).unwrap();
            assert_eq!(result.phases[0].series.len(), 2, "{text}");
            assert_eq!(result.wakeups(None, None).count(), count, "{text}");
        }
        // Two threads with the same counts are no thread and its sum.
        let alike = "# Histogram\n000002 000010\t000010\n# Min Latencies: 00002 00002\n";
        assert_eq!(parse(alike).unwrap().wakeups(None, None).count(), 20);
    }

    #[test]
    fn columns_are_threads_and_keep_their_numbers() {
        let text = "# Histogram\n000003 001000\t000000\t000000\n000005 000000\t000000\t001000\n\
                    # Total: 000001000 000000000 000001000\n# Max Latencies: 00003 00000 00005\n\
                    # Histogram Overflows: 00000 00000 00000\n";
        let result = parse(text).unwrap();
        let names = result.phases[0].series.iter().map(|series| series.name());
        assert_eq!(
            names.collect::<Vec<_>>(),
            ["imported, thread 0", "imported, thread 2"]
        );
        assert!(
            result.phases[0]
                .series
                .iter()
                .all(|series| series.cpu.is_none())
        );
        assert!(
            result
                .notes
                .contains(&"no samples: imported, thread 1".to_owned())
        );
    }

    #[test]
    fn lines_of_the_running_program_and_a_byte_order_mark_are_no_fault() {
        let printed = "policy: fifo: loadavg: 0.09 1.88 2.23 3/97 30199\n\n\
                       T: 0 (    0) P:80 I:1000 C:      0 Min:1000000 Act:    0 Avg:    0 Max:       0\n\u{1b}[4A";
        for before in ["\u{feff}", printed] {
            let text = format!("{before}{WHOLE}").replace('\n', "\r\n");
            assert_eq!(parse(&text).unwrap().wakeups(None, None).count(), 36);
        }
    }

    #[test]
    fn what_cannot_be_right_is_refused_with_its_line() {
        for (from, to, line, words) in [
            (
                "3 000005\t000020",
                "3 000005",
                4,
                "1 counts below lines of 2",
            ),
            ("000003 000005", "000001 000005", 4, "below a greater one"),
            ("000003 000005", "000003 -00005", 4, "`-00005`"),
            ("000003 000005", "000003 0x5", 4, "`0x5`"),
            ("000003 000005", "T: 0", 4, "`T:`"),
            (
                "Total: 000000015",
                "Total: 000000016",
                5,
                "a total of 16 below 15",
            ),
            (
                "Min Latencies: 00002 00003",
                "Min Latencies: 00002",
                6,
                "figures of 1 threads",
            ),
            (
                "Max Latencies: 00950",
                "Max Latencies: 00001",
                8,
                "a maximum of 1 µs",
            ),
            (
                "Max Latencies: 00950",
                "Max Latencies: 00003",
                8,
                "4 at least",
            ),
            ("# Max Latencies", "# ", 9, "overflows without"),
            (
                "Max Latencies: 00950",
                "Max Latencies: 999999999999999",
                8,
                "no latency",
            ),
            (
                "000010",
                "18446744073709551615",
                3,
                "`18446744073709551615`",
            ),
        ] {
            let text = WHOLE.replacen(from, to, 1);
            assert_ne!(text, WHOLE);
            match parse(&text) {
                Err(ResultFileError::Impossible {
                    line: found,
                    message,
                    ..
                }) => assert!(
                    found == line && message.contains(words),
                    "{found}: {message}"
                ),
                other => panic!("{to}: {other:?}"),
            }
        }
    }

    #[test]
    fn empty_and_broken_imports_are_refused() {
        for text in [
            "1 x\n",
            "# only\n",
            "# Histogram\n000001 000000\n",
            "{\"thread\": {}}",
            "{\"thread\": {\"0\": {\"histogram\": {}}}}",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
