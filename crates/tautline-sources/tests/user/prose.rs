//! Comments and documents of the whole project: how they begin, how wide they are, and whether their links lead
//! anywhere. `STYLE.md` has the rules.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// Widest line of prose, in characters. Narrower: long identifiers and paths force odd breaks. Wider: two files no
/// longer fit beside each other on a screen.
const COLUMNS_MAX: usize = 120;

/// Longest record of a decision, in words. Longer: a newcomer does not read all of them before a change.
const RECORD_WORDS_MAX: usize = 250;

/// Longest how-to, in words. Longer: it has two tasks, or tables that belong to the reference.
const HOW_TO_WORDS_MAX: usize = 600;

/// How-tos that are longer: `troubleshooting` is a table to search in.
const NOT_YET_SHORT: &[&str] = &["troubleshooting"];

/// Directories and files that are not checked yet. Empty is the aim.
const NOT_YET: &[&str] = &[];

/// Words that no comment begins with: a summary line is a noun phrase or a verb in the third person.
const NEVER_FIRST: &[&str] = &["What", "Who", "Whose", "Whom", "Whoever", "Whatever"];

/// Words that no comment in `crates/` contains: each hides the subject (the caller, the client, another process).
const NEVER_IN_COMMENTS: &[&str] = &["nobody", "somebody", "whoever"];

/// Crates whose comments are not checked for these words yet. Empty is the aim.
const NOT_YET_IN_COMMENTS: &[&str] = &["tautline-sources"]; // has the list

/// Words that no page contains. Each leaves open who does something, or is not the field's word.
const NEVER_IN_PAGES: &[&str] = &[
    "at hand",
    "beside",
    "can be told",
    "dear",
    "for ever",
    "nobody",
    "says so",
    "somebody",
    "tells of",
    "the same, but",
    "to be had",
    "told of",
    "whoever",
    "whom",
];

/// Words that no page contains but records of decisions, which are history.
const NEVER_IN_GUIDES: &[&str] = &[
    "as ever",
    "by themselves",
    "everybody",
    "is meant",
    "looked at",
    "looks at",
    "on the way",
    "tells",
    "told",
];

/// Longest changelog of a release, in words. Longer: it repeats the pages. History is in git.
const CHANGELOG_WORDS_MAX: usize = 800;

/// Longest README, in lines. Longer: a newcomer does not reach the first command.
const README_LINES_MAX: usize = 120;

/// Words behind "is no" and "are no" that make plain English: "is no longer". Others belong to "is not a …".
const AFTER_IS_NO: &[&str] = &[
    "better", "faster", "gain", "less", "longer", "more", "newer", "slower", "way",
];

/// Pages whose language is not checked yet. Empty is the aim.
const NOT_YET_PLAIN: &[&str] = &[
    "docs/SUMMARY.md", // repeats titles
];

#[test]
fn pages_are_in_plain_english() {
    let mut found = String::new();
    for path in files(&["md"]) {
        let relative = path.strip_prefix(root()).expect("below the root");
        let is_page = relative.starts_with("docs") || relative.components().count() == 1;
        if !is_page || NOT_YET_PLAIN.iter().any(|page| relative.starts_with(page)) {
            continue;
        }
        let text = fs::read_to_string(&path).expect("a text file");
        let words = match relative.starts_with("docs/decisions") {
            true => NEVER_IN_PAGES.to_vec(),
            false => [NEVER_IN_PAGES, NEVER_IN_GUIDES].concat(),
        };
        for (number, paragraph) in paragraphs(&text) {
            for fault in faults(&paragraph, &words) {
                writeln!(found, "{}:{number}: {fault}", relative.display()).unwrap();
            }
        }
    }
    assert!(
        found.is_empty(),
        "name who does it, in the field's words:\n{found}"
    );
}

#[test]
fn faults_of_language_are_found_across_lines_and_not_in_code() {
    let page = "| The window is no\n| wider |\n\nA clock for\never. `nobody`\n\n```\nwhoever\n```\nIt is no longer.\n";
    let found: Vec<_> = paragraphs(page)
        .iter()
        .flat_map(|(number, text)| {
            let found = faults(text, NEVER_IN_PAGES).into_iter();
            found.map(move |fault| (*number, fault))
        })
        .collect();
    assert_eq!(found, [(1, "is no".to_owned()), (4, "for ever".to_owned())]);
}

/// Paragraphs outside of code, without code spans and targets of links, each as one line, with the number of its first.
fn paragraphs(text: &str) -> Vec<(usize, String)> {
    let mut paragraphs: Vec<(usize, String)> = Vec::new();
    let (mut in_code, mut is_open) = (false, false);
    for (number, line) in text.lines().enumerate() {
        let is_fence = line.trim_start().starts_with("```");
        in_code ^= is_fence;
        if is_fence || in_code || line.trim().is_empty() {
            is_open = false;
            continue;
        }
        if !is_open {
            paragraphs.push((number + 1, String::new()));
            is_open = true;
        }
        let (_, paragraph) = paragraphs.last_mut().expect("pushed above");
        paragraph.push_str(line);
        paragraph.push(' ');
    }
    for (_, paragraph) in &mut paragraphs {
        let prose: String = paragraph.split('`').step_by(2).collect();
        let mut kept = String::new();
        for (index, part) in prose.split("](").enumerate() {
            let behind = part.split_once(')').map_or(part, |(_, behind)| behind);
            kept.push_str(if index == 0 { part } else { behind });
        }
        *paragraph = kept;
    }
    paragraphs
}

fn faults(paragraph: &str, words_never: &[&str]) -> Vec<String> {
    let mut spaced = String::from(" ");
    for character in paragraph.to_lowercase().chars() {
        match character {
            '.' | ':' | ';' | '|' | '(' | ')' | '?' | '!' => spaced.push_str(" . "),
            ',' => spaced.push_str(", "),
            '-' => spaced.push('-'),
            _ if character.is_alphanumeric() => spaced.push(character),
            _ => spaced.push(' '),
        }
    }
    let plain = spaced.split_whitespace().collect::<Vec<_>>().join(" ");
    let plain = format!(" {plain} ");
    let without_commas = plain.replace(',', "");
    let mut faults: Vec<String> = Vec::new();
    for never in words_never {
        let text = match never.contains(',') {
            true => &plain,
            false => &without_commas,
        };
        if text.contains(&format!(" {never} ")) {
            faults.push((*never).to_owned());
        }
    }
    let words: Vec<&str> = without_commas.split_whitespace().collect();
    for (index, window) in words.windows(2).enumerate() {
        let is_negated = matches!(window, ["is" | "are", "no"]);
        let is_there = index > 0 && words[index - 1] == "there";
        let is_plain = words
            .get(index + 2)
            .is_some_and(|next| AFTER_IS_NO.contains(next));
        if is_negated && !is_there && !is_plain {
            faults.push(window.join(" "));
        }
    }
    faults
}

#[test]
fn no_comment_begins_with_what_or_who() {
    let mut found = String::new();
    for path in files(&["rs", "c", "h", "cpp", "hpp", "sh", "toml", "py"]) {
        let text = fs::read_to_string(&path).expect("a text file");
        let leaders = leaders(&path);
        let mut open_paragraph = false;
        for (number, line) in text.lines().enumerate() {
            let comment = comment(line, leaders);
            if let Some(words) = comment
                && !open_paragraph
                && begins_badly(words)
            {
                writeln!(found, "{}:{}: {words}", path.display(), number + 1).unwrap();
            }
            open_paragraph = comment.is_some_and(|words| !words.is_empty());
        }
    }
    assert!(
        found.is_empty(),
        "begin with a noun or a verb instead:\n{found}"
    );
}

#[test]
fn comments_name_their_subject() {
    let mut found = String::new();
    for path in files(&["rs"]) {
        let relative = path.strip_prefix(root()).expect("below the root");
        let mut parts = relative.iter().filter_map(|part| part.to_str());
        let is_checked = parts.next() == Some("crates")
            && !parts
                .next()
                .is_some_and(|name| NOT_YET_IN_COMMENTS.contains(&name));
        if !is_checked {
            continue;
        }
        let text = fs::read_to_string(&path).expect("a text file");
        for (number, line) in text.lines().enumerate() {
            let Some(words) = comment(line, leaders(&path)) else {
                continue;
            };
            let prose: String = words.split('`').step_by(2).collect();
            let mut words = prose.split(|character: char| !character.is_alphanumeric());
            if words.any(|word| NEVER_IN_COMMENTS.contains(&word.to_lowercase().as_str())) {
                writeln!(found, "{}:{}: {prose}", relative.display(), number + 1).unwrap();
            }
        }
    }
    assert!(found.is_empty(), "name the subject:\n{found}");
}

#[test]
fn no_file_has_both_sides_of_a_merge() {
    let sides = ["<".repeat(7), ">".repeat(7)];
    let mut found = String::new();
    for path in files(&["rs", "c", "h", "cpp", "hpp", "sh", "toml", "py", "md"]) {
        let text = fs::read_to_string(&path).expect("a text file");
        let begins = |line: &str| sides.iter().any(|side| line.starts_with(side.as_str()));
        if text.lines().any(begins) {
            writeln!(found, "{}", path.display()).unwrap();
        }
    }
    assert!(found.is_empty(), "keep one side:\n{found}");
}

#[test]
fn prose_is_at_most_120_columns_wide() {
    let mut found = String::new();
    for path in files(&["rs", "c", "h", "cpp", "hpp", "sh", "toml", "py", "md"]) {
        let text = fs::read_to_string(&path).expect("a text file");
        let is_document = path.extension().is_some_and(|extension| extension == "md");
        let leaders = leaders(&path);
        let mut in_code = false;
        for (number, line) in text.lines().enumerate() {
            let words = match is_document {
                true => Some(line.trim_start()),
                false => comment(line, leaders),
            };
            let Some(words) = words else { continue };
            if words.starts_with("```") {
                in_code = !in_code;
            }
            // A line of the table of contents is one link, which mdBook does not let break.
            let is_entry = words.starts_with("- [") && words.ends_with(".md)");
            let is_prose = !in_code && !is_entry && !words.starts_with('|') && words.contains(' ');
            let columns = line.chars().count();
            if is_prose && columns > COLUMNS_MAX {
                writeln!(found, "{}:{}: {columns}", path.display(), number + 1).unwrap();
            }
        }
    }
    assert!(found.is_empty(), "wider than {COLUMNS_MAX}:\n{found}");
}

#[test]
fn links_between_documents_lead_somewhere() {
    let mut found = String::new();
    for path in files(&["md"]) {
        let text = fs::read_to_string(&path).expect("a text file");
        for target in link_targets(&text) {
            let (file, anchor) = target.split_once('#').unwrap_or((&target, ""));
            let file = match file {
                "" => path.clone(),
                relative => path.parent().expect("a directory").join(relative),
            };
            let is_missing = match anchor {
                "" => !file.exists(),
                anchor => !fs::read_to_string(&file).is_ok_and(|text| has_anchor(&text, anchor)),
            };
            if is_missing {
                writeln!(found, "{}: {target}", path.display()).unwrap();
            }
        }
    }
    assert!(found.is_empty(), "links that lead nowhere:\n{found}");
}

#[test]
fn the_table_of_contents_names_every_page() {
    let contents = fs::read_to_string(root().join("docs/SUMMARY.md")).expect("docs/SUMMARY.md");
    let named = BTreeSet::from_iter(link_targets(&contents));
    for (page, _) in pages() {
        assert!(
            named.contains(&page),
            "docs/SUMMARY.md does not name {page}"
        );
    }
}

#[test]
fn the_index_of_decisions_names_every_record() {
    let index =
        fs::read_to_string(root().join("docs/decisions/README.md")).expect("docs/decisions");
    let named = BTreeSet::from_iter(link_targets(&index));
    for (page, _) in pages() {
        let record = page.strip_prefix("decisions/");
        if let Some(record) = record.filter(|name| *name != "README.md") {
            assert!(named.contains(record), "the index does not name {record}");
        }
    }
}

/// Results name the machine; other pages hold on any machine.
#[test]
fn only_results_name_a_processor() {
    for (page, text) in pages() {
        let is_result = page.starts_with("results/") || page.starts_with("decisions/");
        for name in ["EPYC", "Xeon"] {
            assert!(is_result || !text.contains(name), "{page} names {name}");
        }
    }
}

#[test]
fn how_tos_are_short() {
    for (page, text) in pages() {
        let name = page
            .strip_prefix("how-to/")
            .and_then(|page| page.strip_suffix(".md"));
        if name.is_some_and(|name| !NOT_YET_SHORT.contains(&name)) {
            let words = text.split_whitespace().count();
            assert!(words <= HOW_TO_WORDS_MAX, "{page} has {words} words");
        }
    }
}

#[test]
fn readme_and_changelog_are_short() {
    let read = |name| fs::read_to_string(root().join(name)).expect("a text file");
    let lines = read("README.md").lines().count();
    assert!(lines <= README_LINES_MAX, "README.md has {lines} lines");
    let words = read("CHANGELOG.md").split_whitespace().count();
    assert!(
        words <= CHANGELOG_WORDS_MAX,
        "CHANGELOG.md has {words} words"
    );
}

#[test]
fn records_of_decisions_are_short() {
    for (page, text) in pages() {
        let is_record = page.starts_with("decisions/0");
        let words = text.split_whitespace().count();
        assert!(
            !is_record || words <= RECORD_WORDS_MAX,
            "{page} has {words} words"
        );
    }
}

/// Rows of troubleshooting about Tautline's own words: each piece between two `…` is in a source.
#[test]
fn messages_in_troubleshooting_are_those_of_the_sources() {
    let page = fs::read_to_string(root().join("docs/how-to/troubleshooting.md")).expect("the page");
    let sources: String = files(&["rs"])
        .iter()
        .filter(|path| !path.ends_with("prose.rs"))
        .map(|path| fs::read_to_string(path).expect("a text file"))
        .collect();
    let (_, own) = page
        .split_once("## A node does not open")
        .expect("the section");
    let (mut quoted, mut found) = (0, String::new());
    for line in own.lines() {
        let first = line
            .strip_prefix("| ")
            .and_then(|row| row.split(" | ").next());
        let Some(words) = first.and_then(only_code) else {
            continue;
        };
        quoted += 1;
        for piece in words.split('…') {
            if !sources.contains(piece.trim()) {
                writeln!(found, "{words}").unwrap();
            }
        }
    }
    assert!(quoted >= 8, "{quoted} messages");
    assert!(found.is_empty(), "no source says:\n{found}");
}

/// Content of a cell that is one code span and nothing else.
fn only_code(cell: &str) -> Option<&str> {
    let fence = match cell.starts_with("``") {
        true => "``",
        false => "`",
    };
    let inner = cell.strip_prefix(fence)?.strip_suffix(fence)?;
    (!inner.contains(fence)).then(|| inner.trim())
}

/// A rendered book has nothing but its pages, so a link to another file of the project would lead nowhere there.
#[test]
fn pages_of_the_book_link_to_pages_of_the_book() {
    let mut found = String::new();
    for (page, text) in pages() {
        for target in link_targets(&text) {
            let (file, _) = target.split_once('#').unwrap_or((&target, ""));
            let depth = file.matches("../").count();
            let is_inside = depth <= page.matches('/').count();
            if !is_inside || !file.is_empty() && !file.ends_with(".md") {
                writeln!(found, "docs/{page}: {target}").unwrap();
            }
        }
    }
    assert!(found.is_empty(), "name the file as code instead:\n{found}");
}

/// Pages of the book: path below `docs`, text.
fn pages() -> Vec<(String, String)> {
    let docs = root().join("docs");
    let mut pages = Vec::new();
    for path in files(&["md"]) {
        let Ok(relative) = path.strip_prefix(&docs) else {
            continue;
        };
        let name = relative.to_str().expect("a name in UTF-8").to_owned();
        if name != "SUMMARY.md" && !name.starts_with("vectors/") {
            pages.push((name, fs::read_to_string(&path).expect("a text file")));
        }
    }
    pages
}

fn root() -> PathBuf {
    let crate_directory = Path::new(env!("CARGO_MANIFEST_DIR"));
    crate_directory
        .ancestors()
        .nth(2)
        .expect("the workspace")
        .to_owned()
}

/// The project's own files with one of these extensions, without build directories and results.
#[test]
fn every_attack_in_the_tables_of_cases_names_its_tests() {
    let cases = fs::read_to_string(root().join("docs/explanation/security.md"))
        .expect("docs/explanation/security.md");
    let sources: Vec<String> = files(&["rs"])
        .iter()
        .map(|path| fs::read_to_string(path).expect("a text file"))
        .collect();
    let is_test = |name: &str| {
        let header = format!("fn {name}(");
        sources.iter().any(|source| source.contains(&header))
    };
    let (mut rows, mut wrong, mut in_table) = (0, String::new(), false);
    for line in cases.lines() {
        in_table = line.starts_with("| attack |") || in_table && line.starts_with('|');
        if !in_table || line.starts_with("| attack |") || line.starts_with("|---") {
            continue;
        }
        rows += 1;
        let last = line
            .trim_end_matches(" |")
            .rsplit(" | ")
            .next()
            .unwrap_or_default();
        let names: Vec<&str> = last
            .split(", ")
            .map(|name| name.trim_matches('`'))
            .collect();
        if !names.iter().all(|name| is_test(name)) {
            writeln!(wrong, "{line}").unwrap();
        }
    }
    assert!(rows >= 40, "{rows} cases");
    assert!(wrong.is_empty(), "no such test:\n{wrong}");
}

fn files(extensions: &[&str]) -> Vec<PathBuf> {
    let root = root();
    let mut files = Vec::new();
    let mut directories = vec![root.clone()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).expect("a directory") {
            let path = entry.expect("an entry").path();
            let name = path
                .file_name()
                .and_then(|name| name.to_str())
                .unwrap_or(".");
            let is_made = ["target", "taut-demo", "taut-experiments", "corpus"].contains(&name)
                || name.starts_with('.');
            let relative = path.strip_prefix(&root).expect("below the root");
            let is_excused = NOT_YET.iter().any(|prefix| relative.starts_with(prefix));
            if is_made || is_excused || path.is_symlink() {
                continue;
            }
            let extension = path.extension().and_then(|extension| extension.to_str());
            if path.is_dir() {
                directories.push(path);
            } else if extension.is_some_and(|extension| extensions.contains(&extension)) {
                files.push(path);
            }
        }
    }
    assert!(!files.is_empty(), "no files below {}", root.display());
    files.sort();
    files
}

/// Character sequences that begin a comment in a file of this kind, longest first.
fn leaders(path: &Path) -> &'static [&'static str] {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("sh" | "toml" | "py") => &["#"],
        _ => &["///", "//!", "//", "/**<", "/*<", "/**", "/*", "*/", "*"],
    }
}

/// The text of a line that is a comment, or of the comment behind the code of a line.
fn comment<'l>(line: &'l str, leaders: &[&str]) -> Option<&'l str> {
    let line = line.trim();
    if let Some(text) = leaders.iter().find_map(|leader| line.strip_prefix(leader)) {
        return Some(text.trim());
    }
    let behind = leaders.contains(&"//").then(|| line.split_once(" // "))?;
    behind.map(|(_, text)| text.trim())
}

fn begins_badly(words: &str) -> bool {
    let first = words.split(|character: char| !character.is_alphabetic());
    first
        .into_iter()
        .next()
        .is_some_and(|word| NEVER_FIRST.contains(&word))
}

/// Targets of the inline links of a document, outside of code, that stay inside the project.
fn link_targets(text: &str) -> Vec<String> {
    let mut targets = Vec::new();
    let mut in_code = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        }
        if in_code {
            continue;
        }
        for part in line.split("](").skip(1) {
            let target = part.split(')').next().unwrap_or_default();
            if !target.contains("://") && !target.starts_with("mailto:") {
                targets.push(target.to_owned());
            }
        }
    }
    targets
}

/// Whether a heading of the document has this anchor, as code hosts derive it.
fn has_anchor(text: &str, anchor: &str) -> bool {
    text.lines()
        .filter(|line| line.starts_with('#'))
        .any(|line| {
            let heading = line.trim_start_matches('#').trim().to_lowercase();
            let kept = heading
                .chars()
                .filter(|character| character.is_alphanumeric() || " -_".contains(*character));
            kept.collect::<String>().replace(' ', "-") == anchor
        })
}
