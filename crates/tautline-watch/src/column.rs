//! Columns of a live view: which fit a width, how lines are sorted by them, and their cells.

use std::cmp::Ordering;

use tautline_report::plot::latency_text;

use crate::row::{Row, Spread};

/// A column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Column {
    Kind,
    Name,
    Process,
    Messages,
    Bytes,
    Wakeups,
    Awake,
    Cpu,
    Age,
    P50,
    P99,
    Max,
    Lost,
    Full,
    Refused,
    State,
}

/// All, as they stand.
pub(crate) const ALL: [Column; 16] = [
    Column::Kind,
    Column::Name,
    Column::Process,
    Column::Messages,
    Column::Bytes,
    Column::Wakeups,
    Column::Awake,
    Column::Cpu,
    Column::Age,
    Column::P50,
    Column::P99,
    Column::Max,
    Column::Lost,
    Column::Full,
    Column::Refused,
    Column::State,
];

/// Columns in the order in which they get room. The first appear at every width.
const BY_NEED: [Column; 16] = [
    Column::Name,
    Column::Messages,
    Column::Lost,
    Column::Age,
    Column::Max,
    Column::Cpu,
    Column::P99,
    Column::Bytes,
    Column::Full,
    Column::Refused,
    Column::P50,
    Column::Kind,
    Column::State,
    Column::Process,
    Column::Awake,
    Column::Wakeups,
];

/// Least width of the name. Lower: ports of one node look alike. Higher: narrow terminals have fewer figures.
const NAME_WIDTH_MIN: u16 = 14;

impl Column {
    pub(crate) fn title(self) -> &'static str {
        match self {
            Column::Kind => "KIND",
            Column::Name => "NAME",
            Column::Process => "PID",
            Column::Messages => "MSG/s",
            Column::Bytes => "B/s",
            Column::Wakeups => "WAKE/s",
            Column::Awake => "AWAKE%",
            Column::Cpu => "CPU%",
            Column::Age => "AGE",
            Column::P50 => "p50",
            Column::P99 => "p99",
            Column::Max => "MAX",
            Column::Lost => "LOST",
            Column::Full => "FULL",
            Column::Refused => "REFUSED",
            Column::State => "STATE",
        }
    }

    pub(crate) fn width(self) -> u16 {
        match self {
            Column::Kind => 5,
            Column::Name => NAME_WIDTH_MIN,
            Column::Messages | Column::Bytes | Column::Cpu | Column::Lost | Column::Full => 5,
            Column::Wakeups | Column::Awake => 6,
            Column::Process
            | Column::Age
            | Column::P50
            | Column::P99
            | Column::Max
            | Column::Refused => 7,
            Column::State => 18,
        }
    }

    pub(crate) fn is_text(self) -> bool {
        matches!(self, Column::Kind | Column::Name | Column::State)
    }

    /// The column's cell of a line; of latencies those of the last interval, or those since the start.
    pub(crate) fn cell(self, row: &Row, is_recent: bool) -> String {
        let spread = spread(row, is_recent);
        match self {
            Column::Kind => row.key.kind.name().to_owned(),
            Column::Name => row.name.clone(),
            Column::Process => row.process.map_or_else(dash, |process| process.to_string()),
            Column::Messages => row.per_second.map_or_else(dash, short),
            Column::Bytes => row.bytes_per_second.map_or_else(dash, short),
            Column::Wakeups => row.wakeups_per_second.map_or_else(dash, short),
            Column::Awake => percent(row.awake_percent),
            Column::Cpu => percent(row.cpu_percent),
            Column::Age => match row.valid {
                // No value has come.
                Some(false) if row.age_ns.is_none() => "none".to_owned(),
                _ => time(row.age_ns),
            },
            Column::P50 => time(spread.p50_ns),
            Column::P99 => time(spread.p99_ns),
            Column::Max => time(spread.max_ns),
            Column::Lost => short(row.lost as f64),
            Column::Full => short(row.full as f64),
            Column::Refused => short(row.refused as f64),
            Column::State => match (&row.state, row.valid) {
                (Some(state), _) => state.clone(),
                (None, Some(false)) => "value not valid".to_owned(),
                (None, _) => String::new(),
            },
        }
    }

    /// Order of two lines by this column: the busiest or worst first, names from A.
    pub(crate) fn order(self, one: &Row, other: &Row, is_recent: bool) -> Ordering {
        let (a, b) = (spread(one, is_recent), spread(other, is_recent));
        match self {
            // As they stand: nodes with their ports, then the others.
            Column::Kind => Ordering::Equal,
            Column::Name => one.name.cmp(&other.name),
            Column::Process => one.process.cmp(&other.process),
            Column::State => other.state.cmp(&one.state),
            Column::Messages => number(other.per_second).total_cmp(&number(one.per_second)),
            Column::Bytes => {
                number(other.bytes_per_second).total_cmp(&number(one.bytes_per_second))
            }
            Column::Wakeups => {
                number(other.wakeups_per_second).total_cmp(&number(one.wakeups_per_second))
            }
            Column::Awake => number(other.awake_percent).total_cmp(&number(one.awake_percent)),
            Column::Cpu => number(other.cpu_percent).total_cmp(&number(one.cpu_percent)),
            Column::Age => other.age_ns.cmp(&one.age_ns),
            Column::P50 => b.p50_ns.cmp(&a.p50_ns),
            Column::P99 => b.p99_ns.cmp(&a.p99_ns),
            Column::Max => b.max_ns.cmp(&a.max_ns),
            Column::Lost => other.lost.cmp(&one.lost),
            Column::Full => other.full.cmp(&one.full),
            Column::Refused => other.refused.cmp(&one.refused),
        }
    }
}

/// Columns that fit a width with a space between them, in their order. Only tasks have a share of a CPU.
pub(crate) fn fitting(width: u16, has_tasks: bool) -> Vec<Column> {
    let mut left = width;
    let mut chosen = Vec::new();
    let needed = BY_NEED.into_iter();
    for column in needed.filter(|column| has_tasks || *column != Column::Cpu) {
        let needed = column.width() + u16::from(!chosen.is_empty());
        // The rest would stand in an order that depends on the width.
        if needed > left {
            break;
        }
        left -= needed;
        chosen.push(column);
    }
    ALL.into_iter()
        .filter(|column| chosen.contains(column))
        .collect()
}

fn spread(row: &Row, is_recent: bool) -> Spread {
    if is_recent { row.recent } else { row.ever }
}

fn number(value: Option<f64>) -> f64 {
    value.unwrap_or(-1.0)
}

fn percent(value: Option<f64>) -> String {
    value.map_or_else(dash, |percent| format!("{percent:.1}"))
}

fn dash() -> String {
    "–".to_owned()
}

/// A time in at most seven characters.
pub(crate) fn time(ns: Option<u64>) -> String {
    match ns {
        None => dash(),
        Some(ns) if ns < 1_000_000_000_000 => latency_text(ns),
        Some(ns) => format!("{} h", ns / 3_600_000_000_000),
    }
}

/// A number in at most five characters.
pub(crate) fn short(value: f64) -> String {
    const UNITS: [(f64, &str); 4] = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
    if value < 9_999.5 {
        return format!("{value:.0}");
    }
    for (size, unit) in UNITS {
        let scaled = value / size;
        if scaled >= 0.9995 {
            let digits = usize::from(scaled < 99.95);
            return match scaled < 9_999.5 {
                true => format!("{scaled:.digits$}{unit}"),
                false => ">9PT".to_owned(),
            };
        }
    }
    format!("{value:.0}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_fit() {
        for width in 1..200 {
            let chosen = fitting(width, true);
            let used: u16 = chosen.iter().map(|column| column.width() + 1).sum();
            assert!(used <= width + 1, "{width}: {chosen:?}");
        }
        assert_eq!(fitting(80, false).len(), 10);
        let of_tasks = fitting(80, true);
        assert!(of_tasks.contains(&Column::Cpu) && of_tasks.contains(&Column::P99));
        assert_eq!(fitting(200, true), ALL);
        let narrow = [Column::Name, Column::Messages, Column::Age, Column::Lost];
        assert_eq!(fitting(40, true), narrow);
    }

    #[test]
    fn numbers_stay_short() {
        let cases = [
            (0.0, "0"),
            (999.4, "999"),
            (9_999.0, "9999"),
            (10_000.0, "10.0k"),
            (123_456.0, "123k"),
            (999_949.0, "1.0M"),
            (1_000_000.0, "1.0M"),
            (u64::MAX as f64, ">9PT"),
        ];
        for (value, text) in cases {
            assert!(text.chars().count() <= 5);
            assert_eq!(short(value), text);
        }
        for ns in [0, 999, 1_234, 99_949, 999_999_999, u64::MAX] {
            assert!(time(Some(ns)).chars().count() <= 9, "{}", time(Some(ns)));
        }
    }
}
