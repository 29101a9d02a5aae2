//! Drawing of the view.

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Cell, Paragraph, Row as TableRow, Table};

use super::app::{App, Into};
use crate::column::{Column, fitting};
use crate::row::{Kind, Row};

/// Keys, the most needed first, since a narrow screen cuts the end.
const KEYS: &str =
    "q quit  s sort  / filter  Enter look into  l latency  w last/all  r reset  p pause  ? help";

const HELP: [&str; 13] = [
    "q, Esc, ^C  end",
    "arrows, PgUp, PgDn, Home, End  move",
    "Enter  look into a line; back",
    "s, S  sort by the next, previous column",
    "o  turn the order round",
    "/  filter by name, kind or process",
    "l  measure latencies, or stop it",
    "   (a reading of the clock a message)",
    "w  latencies of the last interval,",
    "   or since their measurement began",
    "r  totals count from now on",
    "p, space  pause",
    "MAX, p50, p99: arrival to read",
];

pub(super) fn draw(frame: &mut Frame<'_>, app: &mut App) {
    let parts = Layout::vertical([
        Constraint::Length(1),
        Constraint::Min(1),
        Constraint::Length(1),
    ]);
    let [head, body, foot] = parts.areas(frame.area());
    frame.render_widget(Paragraph::new(headline(app)), head);
    if app.is_helping {
        let lines: Vec<Line<'_>> = HELP.into_iter().map(Line::from).collect();
        frame.render_widget(Paragraph::new(lines), body);
    } else if let Some(into) = &mut app.into {
        app.height = usize::from(body.height);
        draw_inside(frame, body, into);
    } else {
        draw_list(frame, body, app);
    }
    let foot_style = Style::new().add_modifier(Modifier::DIM);
    frame.render_widget(Paragraph::new(footline(app)).style(foot_style), foot);
}

/// States first, since a narrow screen cuts the end.
fn headline(app: &App) -> Line<'static> {
    let mut text = "taut top".to_owned();
    if app.is_paused {
        text += " PAUSED";
    }
    if app.is_latency_wanted {
        text += ", latency on";
    }
    if !app.silent().is_empty() {
        text += &format!(", {} silent", app.silent().len());
    }
    let counts = [
        (app.count(&[Kind::Node]), "node"),
        (
            app.count(&[Kind::Port, Kind::UdpPort, Kind::RawPort]),
            "port",
        ),
        (app.count(&[Kind::Task]), "task"),
        (app.count(&[Kind::Guest]), "guest"),
    ];
    for (count, what) in counts {
        let plural = if count == 1 { "" } else { "s" };
        text += &format!(", {count} {what}{plural}");
    }
    Line::styled(text, Style::new().add_modifier(Modifier::BOLD))
}

fn footline(app: &App) -> String {
    if app.is_filtering {
        return format!("filter: {}_", app.filter);
    }
    if app.into.is_some() {
        return "Esc back  arrows move  q quit".to_owned();
    }
    if !app.filter.is_empty() {
        return format!("filter: {}  (/ change, Esc clear)", app.filter);
    }
    KEYS.to_owned()
}

fn draw_inside(frame: &mut Frame<'_>, area: Rect, into: &mut Into) {
    let gone = ["It has gone.".to_owned()];
    let lines = into.lines.as_deref().unwrap_or(&gone);
    into.offset = into.offset.min(lines.len().saturating_sub(1));
    let shown = lines
        .iter()
        .skip(into.offset)
        .take(usize::from(area.height));
    let shown: Vec<Line<'_>> = shown.map(|line| Line::raw(line.as_str())).collect();
    frame.render_widget(Paragraph::new(shown), area);
}

fn draw_list(frame: &mut Frame<'_>, area: Rect, app: &mut App) {
    let columns = fitting(area.width, app.count(&[Kind::Task]) > 0);
    // One line is the header's.
    app.height = usize::from(area.height).saturating_sub(1);
    let last_offset = app.rows.len().saturating_sub(app.height);
    let lowest = (app.cursor + 1).saturating_sub(app.height);
    app.offset = app
        .offset
        .clamp(lowest, app.cursor.max(lowest))
        .min(last_offset);
    let shown = app
        .rows
        .iter()
        .enumerate()
        .skip(app.offset)
        .take(app.height);
    let lines = shown.map(|(line, row)| line_of(app, &columns, row, line == app.cursor));
    let widths = columns.iter().map(|column| match column {
        Column::Name => Constraint::Fill(1),
        column => Constraint::Length(column.width()),
    });
    let titles = columns.iter().map(|column| {
        let mut title = column.title().to_owned();
        if *column == app.sort && *column != Column::Kind {
            title.insert(0, if app.is_reversed { '^' } else { 'v' });
        }
        aligned(title, *column)
    });
    let header = TableRow::new(titles).style(Style::new().add_modifier(Modifier::REVERSED));
    let table = Table::new(lines, widths).header(header).column_spacing(1);
    frame.render_widget(table, area);
}

fn line_of<'a>(app: &App, columns: &[Column], row: &Row, is_cursor: bool) -> TableRow<'a> {
    let is_nested = app.sort == Column::Kind
        && matches!(row.key.kind, Kind::Port | Kind::UdpPort | Kind::RawPort);
    let cells = columns.iter().map(|column| {
        let mut text = column.cell(row, app.is_recent);
        if is_nested && *column == Column::Name {
            text.insert_str(0, "  ");
        }
        aligned(text, *column)
    });
    let mut style = Style::new();
    if row.grows || row.valid == Some(false) {
        style = style.fg(Color::Red);
    }
    if row.key.kind == Kind::Node {
        style = style.add_modifier(Modifier::BOLD);
    }
    if is_cursor {
        style = style.add_modifier(Modifier::REVERSED);
    }
    TableRow::new(cells).style(style)
}

fn aligned<'a>(text: String, column: Column) -> Cell<'a> {
    let alignment = if column.is_text() {
        Alignment::Left
    } else {
        Alignment::Right
    };
    Cell::from(Text::from(text).alignment(alignment))
}
