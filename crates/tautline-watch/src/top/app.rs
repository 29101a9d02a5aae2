//! State of the view in a terminal, and its keys.

use std::sync::Arc;

use ratatui::crossterm::event::{KeyCode, KeyEvent};

use super::detail;
use crate::column::{ALL, Column};
use crate::keyboard::{is_end, is_interrupt};
use crate::look::{Look, Wishes};
use crate::row::{Key, Kind, Row, rows};

/// Characters of a filter. Lower: long names cannot be typed. Higher: it leaves a narrow screen.
const FILTER_CHARS_MAX: usize = 30;

/// Consequence of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reaction {
    /// The view goes on.
    Stay,
    /// The view ends.
    End,
}

/// A line that is looked into.
#[derive(Debug)]
pub(super) struct Into {
    pub(super) key: Key,
    /// First line that is shown.
    pub(super) offset: usize,
    /// `None` once the thing has gone.
    pub(super) lines: Option<Vec<String>>,
}

/// The view.
#[derive(Debug)]
pub(super) struct App {
    now: Arc<Look>,
    before: Option<Arc<Look>>,
    /// Look that totals count from.
    base: Option<Arc<Look>>,
    all: Vec<Row>,
    /// Lines that are shown, sorted.
    pub(super) rows: Vec<Row>,
    pub(super) sort: Column,
    pub(super) is_reversed: bool,
    pub(super) filter: String,
    pub(super) is_filtering: bool,
    pub(super) is_paused: bool,
    /// Whether latencies are those of the last interval.
    pub(super) is_recent: bool,
    pub(super) is_latency_wanted: bool,
    pub(super) is_helping: bool,
    selected: Option<Key>,
    /// Line of the cursor.
    pub(super) cursor: usize,
    /// First line on the screen.
    pub(super) offset: usize,
    /// Lines that the screen has for the list.
    pub(super) height: usize,
    pub(super) into: Option<Into>,
}

impl App {
    pub(super) fn new(now: Look, wishes: Wishes) -> Self {
        let mut app = Self {
            now: Arc::new(now),
            before: None,
            base: None,
            all: Vec::new(),
            rows: Vec::new(),
            sort: Column::Kind,
            is_reversed: false,
            filter: String::new(),
            is_filtering: false,
            is_paused: false,
            is_recent: true,
            is_latency_wanted: wishes.latency,
            is_helping: false,
            selected: None,
            cursor: 0,
            offset: 0,
            height: 1,
            into: None,
        };
        app.refresh();
        app
    }

    /// Takes a new look, unless the view is paused.
    pub(super) fn take(&mut self, look: Look) {
        if self.is_paused {
            return;
        }
        self.before = Some(std::mem::replace(&mut self.now, Arc::new(look)));
        self.refresh();
    }

    /// Whether nodes are to measure latencies: switched on, or a line is looked into.
    pub(super) fn wants_latency(&self) -> bool {
        self.is_latency_wanted || self.into.is_some()
    }

    /// Number of lines of a sort.
    pub(super) fn count(&self, kinds: &[Kind]) -> usize {
        let of_kinds = self.all.iter().filter(|row| kinds.contains(&row.key.kind));
        of_kinds.count()
    }

    /// Those that gave no answer.
    pub(super) fn silent(&self) -> &[String] {
        &self.now.silent
    }

    fn refresh(&mut self) {
        self.all = rows(&self.now, self.before.as_deref(), self.base.as_deref());
        self.arrange();
        if let Some(into) = &mut self.into {
            let row = self.all.iter().find(|row| row.key == into.key);
            into.lines = row.map(|row| detail::lines(&self.now, row));
        }
    }

    /// Filters and sorts the lines, and finds the cursor's again.
    fn arrange(&mut self) {
        let wanted = self.filter.to_lowercase();
        let matches = |row: &&Row| {
            let kind = row.key.kind.name();
            wanted.is_empty()
                || row.name.to_lowercase().contains(&wanted)
                || kind.contains(&wanted)
                || row
                    .process
                    .is_some_and(|process| process.to_string() == wanted)
        };
        self.rows = self.all.iter().filter(matches).cloned().collect();
        let (sort, is_recent) = (self.sort, self.is_recent);
        self.rows
            .sort_by(|one, other| sort.order(one, other, is_recent));
        if self.is_reversed {
            self.rows.reverse();
        }
        let found = self
            .rows
            .iter()
            .position(|row| Some(&row.key) == self.selected.as_ref());
        self.cursor = found
            .unwrap_or(self.cursor)
            .min(self.rows.len().saturating_sub(1));
        self.select(self.cursor);
    }

    fn select(&mut self, line: usize) {
        self.cursor = line.min(self.rows.len().saturating_sub(1));
        self.selected = self.rows.get(self.cursor).map(|row| row.key.clone());
    }

    /// Answers a key.
    pub(super) fn press(&mut self, key: KeyEvent) -> Reaction {
        if is_interrupt(key) {
            return Reaction::End;
        }
        if self.is_filtering {
            self.type_filter(key.code);
            return Reaction::Stay;
        }
        if self.is_helping {
            self.is_helping = false;
            return Reaction::Stay;
        }
        if is_end(key) {
            return Reaction::End;
        }
        match key.code {
            KeyCode::Esc if self.into.is_none() && self.filter.is_empty() => return Reaction::End,
            KeyCode::Char('?' | 'h') => self.is_helping = true,
            KeyCode::Char('r') => self.reset(),
            KeyCode::Char('l') => self.is_latency_wanted = !self.is_latency_wanted,
            KeyCode::Char('p' | ' ') => self.is_paused = !self.is_paused,
            code => self.press_in_place(code),
        }
        Reaction::Stay
    }

    /// Keys whose meaning depends on the place: the list, or a line that is looked into.
    fn press_in_place(&mut self, code: KeyCode) {
        let page = self.height.max(1);
        if let Some(into) = &mut self.into {
            let last = into.lines.as_ref().map_or(0, Vec::len).saturating_sub(1);
            match code {
                KeyCode::Esc | KeyCode::Enter | KeyCode::Backspace | KeyCode::Left => {
                    self.into = None
                }
                code => into.offset = moved(code, into.offset, page, last).unwrap_or(into.offset),
            }
            return;
        }
        match code {
            KeyCode::Esc => self.set_filter(String::new()),
            KeyCode::Char('/') => self.is_filtering = true,
            KeyCode::Char('s') => self.sort_by(1),
            KeyCode::Char('S') => self.sort_by(ALL.len() - 1),
            KeyCode::Char('o') => {
                self.is_reversed = !self.is_reversed;
                self.arrange();
            }
            KeyCode::Char('w') => {
                self.is_recent = !self.is_recent;
                self.arrange();
            }
            KeyCode::Enter | KeyCode::Right => self.look_into(),
            code => {
                let last = self.rows.len().saturating_sub(1);
                if let Some(line) = moved(code, self.cursor, page, last) {
                    self.select(line);
                }
            }
        }
    }

    fn type_filter(&mut self, code: KeyCode) {
        let mut filter = self.filter.clone();
        match code {
            KeyCode::Enter => self.is_filtering = false,
            KeyCode::Esc => {
                self.is_filtering = false;
                filter.clear();
            }
            KeyCode::Backspace => drop(filter.pop()),
            KeyCode::Char(typed) if filter.chars().count() < FILTER_CHARS_MAX => filter.push(typed),
            _ => {}
        }
        self.set_filter(filter);
    }

    fn set_filter(&mut self, filter: String) {
        self.filter = filter;
        self.arrange();
    }

    fn sort_by(&mut self, steps: usize) {
        let place = ALL
            .iter()
            .position(|column| *column == self.sort)
            .unwrap_or(0);
        self.sort = ALL[(place + steps) % ALL.len()];
        self.arrange();
    }

    /// Totals count from now on.
    fn reset(&mut self) {
        self.base = Some(Arc::clone(&self.now));
        self.refresh();
    }

    fn look_into(&mut self) {
        if let Some(row) = self.rows.get(self.cursor) {
            self.into = Some(Into {
                key: row.key.clone(),
                offset: 0,
                lines: Some(detail::lines(&self.now, row)),
            });
        }
    }
}

/// Line that a key leads to.
fn moved(code: KeyCode, line: usize, page: usize, last: usize) -> Option<usize> {
    let line = match code {
        KeyCode::Up | KeyCode::Char('k') => line.saturating_sub(1),
        KeyCode::Down | KeyCode::Char('j') => line + 1,
        KeyCode::PageUp => line.saturating_sub(page),
        KeyCode::PageDown => line + page,
        KeyCode::Home | KeyCode::Char('g') => 0,
        KeyCode::End | KeyCode::Char('G') => last,
        _ => return None,
    };
    Some(line.min(last))
}
