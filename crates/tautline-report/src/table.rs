//! Tables of figures for a terminal.

use comfy_table::{CellAlignment, LineStyle, Table, TableStyle};

/// Lines above, below and under the heading only: figures are compared down a column.
const STYLE: TableStyle = TableStyle::new()
    .top_border(LineStyle::none().fill('─').junction('─'))
    .header_separator(LineStyle::none().fill('─').junction('─'))
    .bottom_border(LineStyle::none().fill('─').junction('─'));

/// A table whose first column names the row and whose others are figures, aligned to the right.
pub fn figures(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(STYLE).set_header(header);
    for row in rows {
        table.add_row(row);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
        .lines()
        .map(|line| line.trim_end().to_owned() + "\n")
        .collect()
}

/// A latency in microseconds with two decimals, for columns that name the unit in their heading.
pub fn microseconds(ns: u64) -> String {
    format!("{:.2}", ns as f64 / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
