//! The room that a terminal has for text.

use std::io::IsTerminal;

/// Columns of the terminal that standard output goes to, if it goes to one.
pub fn terminal_columns() -> Option<usize> {
    let terminal = std::io::stdout().is_terminal();
    let size = terminal.then(terminal_size::terminal_size).flatten();
    size.map(|(width, _)| usize::from(width.0))
}
