//! Text that others wrote, made fit to be shown; the room that a terminal has for text.

use std::io::IsTerminal;

/// The text without characters that a terminal or a reader would take for something else than text (control
/// characters, line breaks, changes of direction), each replaced by `�`, and cut after `chars_max` characters.
pub fn plain(text: &str, chars_max: usize) -> String {
    let mut shown: String = text
        .chars()
        .take(chars_max)
        .map(|one| if is_plain(one) { one } else { '\u{fffd}' })
        .collect();
    if text.chars().nth(chars_max).is_some() {
        shown.push('…');
    }
    shown
}

/// The same for text of several lines: line breaks and tabs stay.
pub fn plain_lines(text: &str) -> String {
    text.chars()
        .map(|one| {
            if is_plain(one) || matches!(one, '\n' | '\t') {
                one
            } else {
                '\u{fffd}'
            }
        })
        .collect()
}

/// Columns of the terminal that standard output goes to, if it goes to one.
pub fn terminal_columns() -> Option<usize> {
    let terminal = std::io::stdout().is_terminal();
    let size = terminal.then(terminal_size::terminal_size).flatten();
    size.map(|(width, _)| usize::from(width.0))
}

/// Neither C0, DEL nor C1 (ISO 6429), nor a line or paragraph separator, nor a change of writing direction (Unicode
/// Standard Annex 9), which reorders what stands beside it.
fn is_plain(one: char) -> bool {
    !(one.is_control()
        || matches!(
            one,
            '\u{2028}' | '\u{2029}' | '\u{200e}' | '\u{200f}' | '\u{061c}'
        )
        || ('\u{202a}'..='\u{202e}').contains(&one)
        || ('\u{2066}'..='\u{2069}').contains(&one))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_but_text_is_left() {
        assert_eq!(plain("host µs – ok", 100), "host µs – ok");
        assert_eq!(
            plain("\u{1b}[2J\r\nheld\u{9b}31m\u{7f}", 100),
            "�[2J��held�31m�"
        );
        assert_eq!(plain("\u{202e}dleh", 100), "�dleh");
        assert_eq!(plain("abcd", 4), "abcd");
        assert_eq!(plain("abcde", 4), "abcd…");
        assert_eq!(plain_lines("a\tb\nc\u{1b}"), "a\tb\nc�");
    }
}
