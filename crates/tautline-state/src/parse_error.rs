//! Mistakes in configuration files: their place, in the words of the file and not of the parser.

use std::fmt::Write as _;

/// Line and column, from 1, of a byte of a text. Columns count characters.
///
/// ```
/// assert_eq!(tautline_state::parse_error::position("a = 1\nb = é x", 13), (2, 7));
/// ```
#[must_use]
pub fn position(text: &str, byte: usize) -> (usize, usize) {
    let before = text.get(..byte).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (
        before.matches('\n').count() + 1,
        before[line_start..].chars().count() + 1,
    )
}

/// The message of a deserializer, which speaks of fields, variants and types of Rust, in words of the file. A message
/// of another form stays as it is.
///
/// ```
/// use tautline_state::parse_error::in_words;
/// assert_eq!(
///     in_words("unknown field `interfaces`, expected one of `interface`, `link`"),
///     "there is no key `interfaces`; is `interface` meant?"
/// );
/// assert_eq!(
///     in_words("invalid type: string \"7\", expected u16"),
///     "expected a whole number from 0 to 65535, not the text \"7\""
/// );
/// ```
#[must_use]
pub fn in_words(message: &str) -> String {
    let message = message.trim().replace('\n', ", ");
    reworded(&message).unwrap_or(message)
}

fn reworded(message: &str) -> Option<String> {
    if let Some(rest) = message.strip_prefix("unknown field `") {
        let (name, rest) = rest.split_once('`')?;
        return Some(format!("there is no key `{name}`{}", instead(name, rest)));
    }
    if let Some(rest) = message.strip_prefix("unknown variant `") {
        let (name, rest) = rest.split_once('`')?;
        return Some(format!("`{name}` is unknown{}", instead(name, rest)));
    }
    if let Some(rest) = message.strip_prefix("missing field `") {
        let name = rest.strip_suffix('`')?;
        return Some(format!("the key `{name}` is missing"));
    }
    for prefix in ["invalid type: ", "invalid value: "] {
        if let Some(rest) = message.strip_prefix(prefix) {
            let (found, expected) = rest.rsplit_once(", expected ")?;
            return Some(format!(
                "expected {}, not {}",
                expected_in_words(expected),
                found_in_words(found)?
            ));
        }
    }
    None
}

/// Names that may stand there: the one that was probably meant, or all.
fn instead(name: &str, list: &str) -> String {
    // ", expected one of `a`, `b`": every second part is a name.
    let names: Vec<&str> = list.split('`').skip(1).step_by(2).collect();
    let distances = names
        .iter()
        .map(|other| strsim::damerau_levenshtein(name, other));
    let least = distances.clone().min().unwrap_or(usize::MAX);
    let mut nearest = distances.zip(&names).filter(|(far, _)| *far == least);
    // A third of the letters wrong is still that word; one that is as near to two of them is not.
    if least <= (name.len() / 3).max(1)
        && let (Some((_, meant)), None) = (nearest.next(), nearest.next())
    {
        return format!("; is `{meant}` meant?");
    }
    if names.is_empty() {
        return String::new();
    }
    let mut listed = String::from("; expected ");
    for (place, name) in names.iter().enumerate() {
        let before = match place {
            0 => "",
            _ if place + 1 == names.len() => " or ",
            _ => ", ",
        };
        // Writing to a string does not fail.
        let _ = write!(listed, "{before}`{name}`");
    }
    listed
}

/// A value that was found, as serde names it.
fn found_in_words(found: &str) -> Option<String> {
    let kinds = [
        ("string ", "the text "),
        ("integer ", "the number "),
        ("floating point ", "the number "),
        ("boolean ", ""),
    ];
    for (prefix, ours) in kinds {
        if let Some(value) = found.strip_prefix(prefix) {
            // Of a number that is too large for any type of TOML.
            let value = value.strip_suffix(" as i128").unwrap_or(value);
            return Some(format!("{ours}{value}"));
        }
    }
    match found {
        "sequence" => Some("a list".to_owned()),
        "map" => Some("a table".to_owned()),
        _ if found.starts_with("datetime") => Some("a date".to_owned()),
        _ => None,
    }
}

/// A type that was expected, as serde names it; other texts are the project's own.
fn expected_in_words(expected: &str) -> String {
    let words = match expected {
        "a string" | "string" => "a text in quotes",
        "a boolean" | "bool" => "true or false",
        "f32" | "f64" => "a number",
        "a sequence" => "a list",
        "a map" => "a table",
        "u8" => "a whole number from 0 to 255",
        "u16" => "a whole number from 0 to 65535",
        "u32" | "u64" | "usize" => "a whole number from 0",
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number",
        _ if expected.starts_with("struct ") => "a table",
        _ => expected,
    };
    words.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_serde_says_is_said_in_words_of_the_file() {
        let cases = [
            (
                "unknown field `x`, expected one of `interface`, `link`",
                "there is no key `x`; expected `interface` or `link`",
            ),
            (
                "unknown field `x`, there are no fields",
                "there is no key `x`",
            ),
            (
                "unknown variant `sampled`, expected `sampling` or `queuing`",
                "`sampled` is unknown; expected `sampling` or `queuing`",
            ),
            (
                "unknown variant `samplin`, expected `sampling` or `queuing`",
                "`samplin` is unknown; is `sampling` meant?",
            ),
            (
                "invalid type: integer `99999999999999999999` as i128, expected u16",
                "expected a whole number from 0 to 65535, not the number `99999999999999999999`",
            ),
            ("missing field `name`", "the key `name` is missing"),
            (
                "invalid value: integer `-5`, expected u64",
                "expected a whole number from 0, not the number `-5`",
            ),
            (
                "invalid type: boolean `true`, expected a string",
                "expected a text in quotes, not `true`",
            ),
            (
                "invalid type: map, expected a sequence",
                "expected a list, not a table",
            ),
            (
                "invalid type: integer `5`, expected a time with its unit, such as \"1ms\"",
                "expected a time with its unit, such as \"1ms\", not the number `5`",
            ),
            ("something else", "something else"),
        ];
        for (said, words) in cases {
            assert_eq!(in_words(said), words);
        }
    }

    #[test]
    fn any_text_is_taken() {
        for odd in [
            "unknown field `",
            "invalid type: ",
            "missing field `a",
            "invalid type: x, expected ",
            "`",
        ] {
            assert_eq!(in_words(odd), odd.trim());
        }
        assert_eq!(position("é", 1), (1, 2), "in the middle of a letter");
        assert_eq!(position("a\n", 9), (2, 1), "behind the end");
    }
}
