//! Tables of figures for a terminal.

use comfy_table::{
    CellAlignment, ColumnConstraint, ContentArrangement, LineStyle, Table, TableStyle,
};

use crate::text::terminal_columns;

/// Lines above, below and under the heading only: figures are compared down a column.
const STYLE: TableStyle = TableStyle::new()
    .top_border(LineStyle::none().fill('─').junction('─'))
    .header_separator(LineStyle::none().fill('─').junction('─'))
    .bottom_border(LineStyle::none().fill('─').junction('─'));

/// A table whose first column names the row and whose others are figures, aligned to the right. On a terminal that
/// is too narrow for all columns, the rest of them follow in further tables, each with the first column.
pub fn figures(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    figures_within(header, rows, terminal_columns())
}

/// Table of cells: each column of times has one unit, named in its heading.
pub fn figures_in_one_unit(header: &[&str], rows: impl IntoIterator<Item = Vec<Cell>>) -> String {
    let rows: Vec<Vec<Cell>> = rows.into_iter().collect();
    let (header, rows) = in_one_unit(header, &rows);
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    figures(&header, rows)
}

/// Rows of words without borders, aligned to the left. On a terminal, the last column is broken into lines that fit.
pub fn words(rows: impl IntoIterator<Item = Vec<String>>) -> String {
    words_within(rows, terminal_columns())
}

fn words_within(rows: impl IntoIterator<Item = Vec<String>>, width: Option<usize>) -> String {
    let mut table = Table::new();
    table.load_style(TableStyle::new());
    for row in rows {
        table.add_row(row);
    }
    if let Some(width) = width {
        table
            .set_content_arrangement(ContentArrangement::Dynamic)
            .set_width(u16::try_from(width).unwrap_or(u16::MAX));
        let whole = table.column_count().saturating_sub(1);
        for column in table.column_iter_mut().take(whole) {
            column.set_constraint(ColumnConstraint::ContentWidth);
        }
    }
    text_of(&table)
}

fn figures_within(
    header: &[&str],
    rows: impl IntoIterator<Item = Vec<String>>,
    width_max: Option<usize>,
) -> String {
    let rows: Vec<Vec<String>> = rows.into_iter().collect();
    let whole = table_of(header, &rows);
    // A column has a space on each side, and one that parts it from the next.
    let widths: Vec<usize> = whole
        .column_max_content_widths()
        .into_iter()
        .map(|width| usize::from(width) + 3)
        .collect();
    let Some(width_max) = width_max.filter(|max| widths.iter().sum::<usize>() > *max) else {
        return text_of(&whole);
    };
    groups(&widths, width_max)
        .into_iter()
        .map(|columns| {
            let header: Vec<&str> = columns.iter().map(|index| header[*index]).collect();
            let rows: Vec<Vec<String>> = rows
                .iter()
                .map(|row| {
                    let cells = columns.iter().filter_map(|index| row.get(*index));
                    cells.cloned().collect()
                })
                .collect();
            text_of(&table_of(&header, &rows))
        })
        .collect()
}

/// Columns of each table: the first one, and as many others as fit; at least one other.
fn groups(widths: &[usize], width_max: usize) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let mut used = usize::MAX;
    for (index, width) in widths.iter().enumerate().skip(1) {
        match groups.last_mut() {
            Some(group) if used + width <= width_max => group.push(index),
            _ => {
                groups.push(vec![0, index]);
                used = widths[0];
            }
        }
        used += width;
    }
    groups
}

fn table_of(header: &[&str], rows: &[Vec<String>]) -> Table {
    let mut table = Table::new();
    table.load_style(STYLE).set_header(header);
    for row in rows {
        table.add_row(row);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn text_of(table: &Table) -> String {
    table
        .lines()
        .map(|line| line.trim_end().to_owned() + "\n")
        .collect()
}

/// Cell of a table whose columns have one unit each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cell {
    /// Words, or a figure as it is to stand there.
    Text(String),
    /// A time in nanoseconds.
    Time(u64),
    /// A time in nanoseconds that may be below zero, such as a deadline's slack.
    SignedTime(i64),
}

impl Cell {
    /// Its time in nanoseconds, if it is one.
    fn ns(&self) -> Option<f64> {
        match self {
            Cell::Time(ns) => Some(*ns as f64),
            Cell::SignedTime(ns) => Some(*ns as f64),
            Cell::Text(_) => None,
        }
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Cell {
        Cell::Text(text)
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Cell {
        Cell::Text(text.to_owned())
    }
}

/// Units of time, their nanoseconds, and the least time of a column that is shown in each. Lower: the smallest figures
/// lose their digits. Higher: large ones have more digits than can be read.
const UNITS: [(&str, f64, f64); 4] = [
    ("s", 1e9, 1e9),
    ("ms", 1e6, 1e6),
    ("µs", 1e3, 100.0),
    ("ns", 1.0, 0.0),
];

/// Heading and rows in which each column of times has one unit, which its heading names.
pub fn in_one_unit(header: &[&str], rows: &[Vec<Cell>]) -> (Vec<String>, Vec<Vec<String>>) {
    let times_of = |column: usize| {
        let cells = rows.iter().filter_map(move |row| row.get(column));
        cells.filter_map(Cell::ns).map(f64::abs)
    };
    let unit_of = |column: usize| {
        let least = times_of(column)
            .filter(|ns| *ns > 0.0)
            .reduce(f64::min)
            .or_else(|| times_of(column).next())?;
        let mut units = UNITS.into_iter();
        let (unit, size, _) = units.find(|(.., least_ns)| least >= *least_ns)?;
        Some((unit, size))
    };
    let units: Vec<Option<(&str, f64)>> = (0..header.len()).map(unit_of).collect();
    let title = |(title, unit): (&&str, &Option<(&str, f64)>)| match unit {
        Some((unit, _)) => format!("{title}, {unit}"),
        None => (*title).to_owned(),
    };
    let text = |(column, cell): (usize, &Cell)| match (cell, units.get(column)) {
        (Cell::Text(text), _) => text.clone(),
        (Cell::Time(_) | Cell::SignedTime(_), Some(Some((unit, size)))) => {
            let digits = if *unit == "ns" { 0 } else { 2 };
            format!("{:.digits$}", cell.ns().unwrap_or_default() / size)
        }
        (Cell::Time(ns), _) => format!("{ns} ns"),
        (Cell::SignedTime(ns), _) => format!("{ns} ns"),
    };
    let rows = rows
        .iter()
        .map(|row| row.iter().enumerate().map(text).collect());
    (
        header.iter().zip(&units).map(title).collect(),
        rows.collect(),
    )
}

/// A latency in microseconds with two decimals, for columns that name the unit in their heading.
pub fn microseconds(ns: u64) -> String {
    format!("{:.2}", ns as f64 / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_broken_where_the_terminal_ends() {
        let rows = || {
            let row = |words: [&str; 3]| words.map(str::to_owned).to_vec();
            [
                row(["good", "a name of six words, kept whole", "there"]),
                row(["limited", "short", "one two three four five six\n-> seven"]),
            ]
        };
        let wide = words_within(rows(), None);
        let lines: Vec<&str> = wide.lines().collect();
        assert_eq!(lines.len(), 3, "{wide}");
        assert_eq!(lines[1].find("one"), lines[0].find("there"));
        assert_eq!(lines[2].find("-> seven"), lines[0].find("there"));
        let narrow = words_within(rows(), Some(60));
        assert!(narrow.lines().all(|line| line.chars().count() <= 60));
        assert!(narrow.lines().count() > 3 && narrow.contains("kept whole"));
    }

    #[test]
    fn a_column_has_one_unit_in_which_its_least_figure_can_be_read() {
        let row = |name: &str, one, other| vec![name.into(), Cell::Time(one), Cell::Time(other)];
        let rows = [
            row("a", 582, 0),
            row("b", 180_000_000, 7_000_000),
            vec!["c".into(), "–".into(), Cell::Time(99_000_000)],
        ];
        let (header, cells) = in_one_unit(&["path", "p50", "max"], &rows);
        assert_eq!(header, ["path", "p50, µs", "max, ms"]);
        assert_eq!(cells[0], ["a", "0.58", "0.00"]);
        assert_eq!(cells[1], ["b", "180000.00", "7.00"]);
        assert_eq!(cells[2], ["c", "–", "99.00"]);
        let slack = [-5_000_000, 250_000].map(|ns| vec![Cell::SignedTime(ns)]);
        let (header, cells) = in_one_unit(&["slack"], &slack);
        assert_eq!(header, ["slack, µs"]);
        assert_eq!(cells, [["-5000.00"], ["250.00"]]);
        let (header, cells) = in_one_unit(&["max"], &[vec![Cell::Time(0)], vec![Cell::Time(40)]]);
        assert_eq!(
            (header, cells[1][0].as_str()),
            (vec!["max, ns".to_owned()], "40")
        );
    }

    #[test]
    fn figures_stand_right_aligned_below_each_other() {
        let text = figures(
            &["path", "p50 µs"],
            [
                vec!["a".to_owned(), microseconds(1_234)],
                vec!["longer".to_owned(), microseconds(123_456)],
            ],
        );
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 6);
        assert_eq!(lines[3], " a          1.23");
        assert_eq!(lines[4], " longer   123.46");
    }
    #[test]
    fn a_narrow_terminal_loses_no_column() {
        let header = ["path", "p50 µs", "p99 µs", "p99.9 µs", "max µs"];
        let row = vec![
            "queuing port".to_owned(),
            "3.62".to_owned(),
            "5.19".to_owned(),
            "10.67".to_owned(),
            "123.46".to_owned(),
        ];
        let rows = [row.clone()];
        assert_eq!(
            figures_within(&header, rows.clone(), Some(200)),
            figures_within(&header, rows.clone(), None)
        );
        for width in 1..60 {
            let text = figures_within(&header, rows.clone(), Some(width));
            for word in header
                .iter()
                .chain(&row.iter().map(String::as_str).collect::<Vec<_>>())
            {
                assert!(text.contains(word), "{word} at {width}: {text}");
            }
            let widest = text.lines().map(|line| line.chars().count()).max().unwrap();
            // The first column and the widest other one need 26.
            assert!(widest <= width.max(26), "{widest} of {width}:\n{text}");
        }
    }
}
