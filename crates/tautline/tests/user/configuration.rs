//! `docs/reference/configuration.md` against the code: every key is there and no other, the limits are the ones that
//! are enforced, the defaults are the ones that are taken, and the examples are accepted.

use std::fs;
use std::path::Path;

use tautline::config::ServiceConfig;

/// Sections of the page, in its order: the heading, the line that opens the section in a file, and the keys without
/// which an entry is refused.
const SECTIONS: &[(&str, &str, &[&str])] = &[
    ("## Top level", "", &[]),
    (
        "## Neighbours",
        "[[neighbour]]",
        &[
            "name = \"motor\"",
            "mac = \"02:00:00:00:00:02\"",
            "ip = \"10.0.0.2\"",
        ],
    ),
    (
        "## Ports",
        "[[port]]",
        &["name = \"a\"", "number = 8", "kind = \"queuing\""],
    ),
    (
        "## Types of messages",
        "[[type]]",
        &["name = \"A\"", "fields = [\"a: u8\"]"],
    ),
    ("## Send buffers", "[send_pool]", &[]),
    (
        "## Clients of a control process",
        "[[allow]]",
        &["user = \"robot\"", "ports = [7]"],
    ),
    ("## Scheduling of receive processing", "[tune]", &[]),
    (
        "## Smoothing of other traffic",
        "[smoother]",
        &["capacity_bps = 100000000"],
    ),
];

/// A row of a table of keys.
struct Row {
    key: String,
    default: String,
    limits: String,
    example: String,
}

#[test]
fn the_page_has_every_key_and_no_other() {
    for (heading, open, _) in SECTIONS {
        let mut documented: Vec<_> = rows(heading).into_iter().map(|row| row.key).collect();
        let mut known = known_keys(open);
        // The sections themselves, which have headings of their own.
        let sections = SECTIONS
            .iter()
            .map(|(_, open, _)| open.trim_matches(['[', ']']));
        let sections: Vec<_> = sections.filter(|name| !name.is_empty()).collect();
        if open.is_empty() {
            assert!(
                sections
                    .iter()
                    .all(|name| known.iter().any(|key| key == name))
            );
            known.retain(|key| !sections.contains(&key.as_str()));
        }
        documented.sort();
        known.sort();
        assert_eq!(documented, known, "{heading}");
    }
}

#[test]
fn examples_are_accepted() {
    for (heading, open, _) in SECTIONS {
        for Row { key, example, .. } in rows(heading) {
            let text = entry(heading, &key, &example);
            assert!(parses(&text), "{open} {key}: {text}");
        }
        let text = page();
        let section = section(&text, heading);
        for block in section.split("```toml\n").skip(1) {
            let block = block.split("```").next().unwrap();
            assert!(parses(block), "{heading}: {block}");
        }
    }
}

#[test]
fn limits_are_the_ones_that_are_enforced() {
    let mut checked = 0;
    for (heading, _, _) in SECTIONS {
        for Row { key, limits, .. } in rows(heading) {
            let list_of = limits.starts_with("each ");
            let in_file = |number: i64| {
                let value = if list_of {
                    format!("[{number}]")
                } else {
                    number.to_string()
                };
                parses(&entry(heading, &key, &value))
            };
            if let Some((low, high)) = bounds(limits.trim_start_matches("each ")) {
                assert!(in_file(low), "{heading}, {key}: {low} is refused");
                assert!(in_file(high), "{heading}, {key}: {high} is refused");
                assert!(!in_file(low - 1), "{heading}, {key}: {} is taken", low - 1);
                assert!(
                    !in_file(high + 1),
                    "{heading}, {key}: {} is taken",
                    high + 1
                );
                checked += 1;
            } else if limits.starts_with("`\"") {
                for value in limits.split(", ") {
                    assert!(
                        parses(&entry(heading, &key, value.trim_matches('`'))),
                        "{key}: {value}"
                    );
                }
                assert!(!parses(&entry(heading, &key, "\"nonsense\"")), "{key}");
                checked += 1;
            }
        }
    }
    assert!(
        checked >= 20,
        "only {checked} limits were found in the page"
    );
}

#[test]
fn defaults_are_the_ones_that_are_taken() {
    let mut checked = 0;
    for (heading, _, _) in SECTIONS {
        for Row { key, default, .. } in rows(heading) {
            let Some(value) = default
                .strip_prefix('`')
                .and_then(|rest| rest.strip_suffix('`'))
            else {
                continue;
            };
            let given = values(&entry(heading, &key, value));
            let left_out = values(&entry_without(heading, &key));
            assert_eq!(
                given, left_out,
                "{heading}, {key}: {value} is not the default"
            );
            checked += 1;
        }
    }
    assert!(
        checked >= 15,
        "only {checked} defaults were found in the page"
    );
}

#[test]
fn required_keys_are_those_without_which_a_file_is_refused() {
    for (heading, open, _) in SECTIONS {
        for Row { key, default, .. } in rows(heading) {
            let is_required = default == "required";
            let is_accepted = parses(&entry_without(heading, &key));
            // Keys that stand for each other, or need each other.
            let is_special = ["user", "group", "mac", "bus", "node"].contains(&key.as_str());
            assert!(is_special || is_required != is_accepted, "{open} {key}");
        }
    }
}

fn page() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/configuration.md");
    fs::read_to_string(path).expect("docs/reference/configuration.md")
}

fn section<'t>(page: &'t str, heading: &str) -> &'t str {
    let start = page.find(&format!("{heading}\n")).expect(heading);
    let section = &page[start + heading.len()..];
    section.split("\n## ").next().unwrap()
}

/// The rows of a section's table of keys.
fn rows(heading: &str) -> Vec<Row> {
    let page = page();
    let lines = section(&page, heading).lines();
    let rows = lines.filter(|line| line.starts_with("| `")).map(|line| {
        let cells: Vec<_> = line.trim_matches('|').split('|').map(str::trim).collect();
        assert_eq!(cells.len(), 6, "{line}");
        let bare = |cell: &str| cell.trim_matches('`').to_owned();
        Row {
            key: bare(cells[0]),
            default: cells[2].to_owned(),
            limits: cells[3].to_owned(),
            example: bare(cells[4]),
        }
    });
    let rows: Vec<_> = rows.collect();
    assert!(!rows.is_empty(), "{heading} has no table");
    rows
}

/// The keys that the parser names when it meets one that it does not know.
fn known_keys(open: &str) -> Vec<String> {
    let text = format!("{open}\nno_such_key = 1\n");
    let error = text.parse::<ServiceConfig>().unwrap_err().message;
    let (_, list) = error
        .split_once("expected")
        .unwrap_or_else(|| panic!("{error}"));
    list.split('`')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect()
}

/// A file with one entry in which the key has the value.
fn entry(heading: &str, key: &str, value: &str) -> String {
    let mut others = entry_without(heading, key);
    if (key, value) == ("kind", "\"raw\"") {
        others = others.replace("number = 8", "ethertype = 0x88a4");
    }
    format!("{others}{key} = {value}\n")
}

/// The same without the key.
fn entry_without(heading: &str, key: &str) -> String {
    let (_, open, required) = SECTIONS
        .iter()
        .find(|(name, _, _)| *name == heading)
        .unwrap();
    let mut lines = vec![(*open).to_owned()];
    if ["type", "sends"].contains(&key) {
        let declared = "[[type]]\nname = \"JointState\"\nfields = [\"a: u8\"]";
        lines.insert(0, declared.to_owned());
    }
    if ["readers", "follow"].contains(&key) {
        let on_bus = "link = \"vbus\"\nbus = \"cell\"\nnode = \"a\"";
        lines.insert(0, format!("{on_bus}\n[[neighbour]]\nname = \"camera\""));
    }
    let is_set = |line: &str, key: &str| line.starts_with(&format!("{key} = "));
    for line in required.iter().copied() {
        let line = match (line, key) {
            ("kind = \"queuing\"", "refresh_period_us" | "sources" | "value_bytes_max") => {
                "kind = \"sampling\""
            }
            ("kind = \"queuing\"", "ethertype") => "kind = \"raw\"",
            ("number = 8", "ethertype") => continue,
            ("user = \"robot\"", "group") => continue,
            (line, _) => line,
        };
        if !is_set(line, key) {
            lines.push(line.to_owned());
        }
    }
    // Keys that need another one.
    let also: &[&str] = match key {
        "police_burst" => &["police_rate = 1000"],
        "bus" => &["node = \"a\""],
        "node" => &["bus = \"cell\""],
        "bus_mode" | "bus_group" | "bus_wait_ms" => &["bus = \"cell\"", "node = \"a\""],
        _ => &[],
    };
    lines.extend(also.iter().map(|line| (*line).to_owned()));
    lines.join("\n") + "\n"
}

fn parses(text: &str) -> bool {
    text.parse::<ServiceConfig>().is_ok()
}

/// The values of a configuration, without the names of the keys that it has.
fn values(text: &str) -> String {
    let mut all = config(text);
    while let Some(start) = all.find("given: [") {
        let end = start + all[start..].find(']').unwrap();
        all.replace_range(start..=end, "");
    }
    all
}

fn config(text: &str) -> String {
    let config: ServiceConfig = text
        .parse()
        .unwrap_or_else(|error| panic!("{error}:\n{text}"));
    format!("{config:?}")
}

/// "`1` to `4095`", in decimal, hexadecimal or octal digits.
fn bounds(limits: &str) -> Option<(i64, i64)> {
    let (low, high) = limits.split_once(" to ")?;
    let number = |cell: &str| {
        let digits = cell.strip_prefix('`')?.split('`').next()?;
        match digits.split_at_checked(2) {
            Some(("0x", rest)) => i64::from_str_radix(rest, 16).ok(),
            Some(("0o", rest)) => i64::from_str_radix(rest, 8).ok(),
            _ => digits.parse().ok(),
        }
    };
    Some((number(low)?, number(high)?))
}
