//! Text that others wrote, made fit to be shown.

use std::mem;

use serde_json::Value;

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

/// Makes text of several lines safe for display: line breaks and tabs stay.
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

/// Does the same with all texts of a document, keys too, and cuts what lies deeper than `depth_max`.
pub fn clean(value: &mut Value, chars_max: usize, depth_max: usize) {
    match value {
        Value::String(text) => *text = plain(text, chars_max),
        Value::Array(_) | Value::Object(_) if depth_max == 0 => *value = Value::Null,
        Value::Array(list) => {
            let each = list.iter_mut();
            each.for_each(|one| clean(one, chars_max, depth_max - 1));
        }
        Value::Object(map) => {
            let entries = mem::take(map);
            map.extend(entries.into_iter().map(|(key, mut value)| {
                clean(&mut value, chars_max, depth_max - 1);
                (plain(&key, chars_max), value)
            }));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
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
    use serde_json::json;

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

    #[test]
    fn a_document_is_cleaned_and_cut() {
        let mut said = json!({
            "command": "\u{1b}[2Jx\u{9b}31m", "list": ["a\nb", 7, ["too", "deep"]], "\u{202e}key": null
        });
        clean(&mut said, 6, 2);
        let shown = json!({
            "comman…": "\u{fffd}[2Jx\u{fffd}…", "list": ["a\u{fffd}b", 7, null], "\u{fffd}key": null
        });
        assert_eq!(said, shown);
    }
}
