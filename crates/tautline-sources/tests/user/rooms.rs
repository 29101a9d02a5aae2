//! No house and no room imports upward: the crates by their manifests and `use` lines, the rooms of the library by
//! theirs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Crates, and those of ours that each may import. An arrow that is not here points upward.
const CRATES: [(&str, &[&str]); 30] = [
    ("tautline-bpf", &[]),
    ("tautline-proto", &[]),
    ("tautline-sources", &[]),
    ("tautline-shm", &["tautline-proto"]),
    ("tautline-state", &[]),
    ("tautline-types", &[]),
    // It imports nothing: the code that it writes names the library.
    ("tautline-derive", &["tautline"]),
    ("tautline-exec", &[]),
    ("tautline-flight", &[]),
    (
        "tautline-tasks",
        &[
            "tautline-awake",
            "tautline-exec",
            "tautline-proto",
            "tautline-state",
        ],
    ),
    (
        "tautline",
        &[
            "tautline-awake",
            "tautline-bpf",
            "tautline-derive",
            "tautline-proto",
            "tautline-shm",
            "tautline-state",
            "tautline-types",
        ],
    ),
    ("tautline-kvm", &["tautline-state"]),
    (
        "tautline-guest",
        &[
            "tautline",
            "tautline-kvm",
            "tautline-tasks",
            "tautline-shm",
            "tautline-state",
        ],
    ),
    ("tautline-guest-kit", &["tautline-exec", "tautline-shm"]),
    ("tautline-testbed", &["tautline-bpf", "tautline-state"]),
    ("tautline-report", &[]),
    ("tautline-machine", &["tautline-report", "tautline-state"]),
    (
        "tautline-bridge",
        &[
            "tautline",
            "tautline-shm",
            "tautline-state",
            // For the tests of those who use it.
            "tautline-testbed",
        ],
    ),
    (
        "tautline-smoother",
        &["tautline-bpf", "tautline-proto", "tautline-state"],
    ),
    (
        "tautline-lab",
        &[
            "tautline-tasks",
            "tautline-report",
            "tautline-state",
            "tautline-testbed",
            "tautline-machine",
        ],
    ),
    (
        "tautline-watch",
        &[
            "tautline",
            "tautline-capture",
            "tautline-guest",
            "tautline-report",
            "tautline-smoother",
            "tautline-state",
            "tautline-tasks",
            "tautline-machine",
        ],
    ),
    (
        "tautline-bench",
        &[
            "tautline-bpf",
            "tautline",
            "tautline-awake",
            "tautline-lab",
            "tautline-proto",
            "tautline-report",
            "tautline-smoother",
            "tautline-state",
            "tautline-testbed",
            "tautline-machine",
        ],
    ),
    (
        "tautline-flight-runner",
        &[
            "tautline",
            "tautline-capture",
            "tautline-exec",
            "tautline-flight",
            "tautline-guest",
            "tautline-lab",
            "tautline-report",
            "tautline-state",
            "tautline-tasks",
            "tautline-testbed",
            "tautline-watch",
            "tautline-machine",
        ],
    ),
    (
        "tautline-kernel-tests",
        &["tautline-lab", "tautline-testbed"],
    ),
    ("tautline-awake", &["tautline-proto"]),
    (
        "tautline-awake-preload",
        &["tautline-awake", "tautline-proto"],
    ),
    (
        "tautline-capture",
        &[
            "tautline",
            "tautline-proto",
            "tautline-shm",
            "tautline-state",
        ],
    ),
    (
        "taut",
        &[
            "tautline",
            "tautline-awake",
            "tautline-capture",
            "tautline-exec",
            "tautline-guest",
            "tautline-proto",
            "tautline-report",
            "tautline-smoother",
            "tautline-state",
            "tautline-tasks",
            "tautline-watch",
            "tautline-machine",
        ],
    ),
    (
        "taut-lab",
        &[
            "taut",
            "tautline",
            "tautline-bench",
            "tautline-lab",
            "tautline-machine",
            "tautline-report",
            "tautline-state",
            "tautline-tasks",
            "tautline-testbed",
        ],
    ),
    (
        "taut-flight",
        &[
            "taut",
            "tautline-flight-runner",
            "tautline-lab",
            "tautline-testbed",
        ],
    ),
];

/// Houses, and their crates' directory, the lowest first: what operates never imports what measures, and neither
/// imports what shows.
const HOUSES: [&str; 3] = ["crates", "measure", "show"];

/// Rooms of `crates/tautline/src` by floor, the lowest first. A room may import those on its own floor and below.
const FLOORS: [&[&str]; 11] = [
    &["sys"],
    &[
        "address",
        "claim",
        "cycle",
        "error",
        "hidden_tags",
        "kernel",
        "keys",
        "kind",
        "latency",
        "limits",
        "memory",
        "message",
        "policing",
        "restarts",
        "runtime",
        "statistics",
        "table_state",
        "types",
    ],
    &["link"],
    &["send_pool"],
    &["status"],
    &["port"],
    &["client", "neighbours"],
    &["node"],
    &["config"],
    &["control"],
    &["lib"],
];

/// Rooms of the lab, the lowest first; each may import what stands before it or shares its line.
const LAB: [&[&str]; 6] = [
    &["measured", "sys"],
    &["load", "probe", "tuning"],
    &["trace"],
    &["kernels", "result"],
    &["compare", "cyclictest", "judge", "report", "result_file"],
    &["interrupt", "session", "lib"],
];

/// Rooms of the executive's core, likewise. No line has two: there is no circle.
const EXEC: [&[&str]; 14] = [
    &["limits"],
    &["plan"],
    &["error"],
    &["task"],
    &["response"],
    &["demand"],
    &["table"],
    &["windows"],
    &["analysis"],
    &["early"],
    &["monitor"],
    &["executive"],
    &["timeline"],
    &["lib"],
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Directory of a crate.
fn home(name: &str) -> PathBuf {
    let houses = HOUSES.map(|house| root().join(house).join(name));
    let mut homes = houses.into_iter().chain([root().join("bpf")]);
    homes
        .find(|home| home.join("Cargo.toml").is_file())
        .unwrap()
}

/// Rust files below a directory, with their paths in it.
fn sources(directory: &Path) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut left = vec![directory.to_owned()];
    while let Some(path) = left.pop() {
        for entry in fs::read_dir(&path).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                left.push(path);
            } else if path.extension().is_some_and(|ext| ext == "rs") {
                let inner = path.strip_prefix(directory).unwrap().to_owned();
                found.push((inner, code(&fs::read_to_string(&path).unwrap())));
            }
        }
    }
    found
}

/// The text without comments and without unit tests, which may look anywhere.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or("");
    let text = text
        .split("#[cfg(test)]\npub(crate) mod tests")
        .next()
        .unwrap_or("");
    let lines = text
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"));
    lines.map(|line| format!("{line}\n")).collect()
}

/// Lower-case names that follow `prefix` directly or in braces.
fn names_after(text: &str, prefix: &str) -> BTreeSet<String> {
    let name = |text: &str| -> String {
        let is_part = |one: &char| one.is_ascii_lowercase() || one.is_ascii_digit() || *one == '_';
        text.trim_start().chars().take_while(is_part).collect()
    };
    let mut names = BTreeSet::new();
    for (at, _) in text.match_indices(prefix) {
        let before = text[..at].chars().next_back();
        if before.is_some_and(|one| one.is_alphanumeric() || one == '_') {
            continue;
        }
        let rest = &text[at + prefix.len()..];
        match rest.strip_prefix('{') {
            Some(list) => {
                let mut depth = 0;
                for (index, one) in list.char_indices() {
                    match one {
                        '{' => depth += 1,
                        '}' if depth == 0 => break,
                        '}' => depth -= 1,
                        ',' if depth == 0 => {
                            names.insert(name(&list[index + 1..]));
                        }
                        _ if index == 0 => {
                            names.insert(name(list));
                        }
                        _ => {}
                    }
                }
            }
            None => {
                names.insert(name(rest));
            }
        }
    }
    names.remove("");
    names
}

/// Arrows between rooms, with the files that have them.
fn arrows(source: &Path) -> BTreeMap<(String, String), BTreeSet<String>> {
    let mut arrows: BTreeMap<(String, String), BTreeSet<String>> = BTreeMap::new();
    for (file, text) in sources(source) {
        let first = file.components().next().unwrap();
        let room = Path::new(first.as_os_str()).with_extension("");
        let room = room.to_string_lossy().into_owned();
        if room == "bin" {
            continue;
        }
        for other in names_after(&text, "crate::") {
            if other != room {
                let files = arrows.entry((room.clone(), other)).or_default();
                files.insert(file.display().to_string());
            }
        }
    }
    arrows
}

fn floor_of(floors: &[&[&str]], room: &str) -> Option<usize> {
    floors.iter().position(|floor| floor.contains(&room))
}

/// Arrows to a higher floor. Names that are no room are functions and re-exports of the root.
fn upward(source: &Path, floors: &[&[&str]]) -> BTreeMap<(String, String), BTreeSet<String>> {
    let mut found = arrows(source);
    for (from, _) in found.keys() {
        assert!(
            floor_of(floors, from).is_some(),
            "the room `{from}` of {} has no floor yet: give it one in this test",
            source.display()
        );
    }
    found.retain(|(from, to), _| floor_of(floors, to) > floor_of(floors, from));
    found
}

#[test]
fn crates_import_only_what_is_below_them() {
    for (name, allowed) in CRATES {
        let manifest = fs::read_to_string(home(name).join("Cargo.toml")).unwrap();
        let dependencies = manifest
            .split("[dev-dependencies]")
            .next()
            .unwrap()
            .lines()
            .filter_map(|line| line.split(['.', ' ', '=']).next())
            .filter(|key| key.starts_with("taut"));
        for dependency in dependencies {
            assert!(
                allowed.contains(&dependency),
                "{name} must not depend on {dependency}"
            );
        }
        for (file, text) in sources(&home(name).join("src")) {
            for (other, _) in CRATES.iter().filter(|(other, _)| *other != name) {
                let used = names_after(&text, &format!("{}::", other.replace('-', "_")));
                assert!(
                    used.is_empty() || allowed.contains(other),
                    "{name}: {} uses {other}",
                    file.display()
                );
            }
        }
    }
}

/// House of a package, by its directory; what is in none operates.
fn house(directory: &Path) -> usize {
    let inner = directory.strip_prefix(root()).unwrap();
    let first = inner.components().next().unwrap().as_os_str();
    HOUSES.iter().position(|house| first == *house).unwrap_or(0)
}

/// Manifests of ours below a directory, those of other workspaces among them.
fn manifests(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            manifests(&path, found);
        } else if name == "Cargo.toml" && directory != root() {
            found.push(path);
        }
    }
}

#[test]
fn houses_import_only_what_is_below_them() {
    let mut all = Vec::new();
    manifests(&root(), &mut all);
    let texts = all.iter().map(|path| fs::read_to_string(path).unwrap());
    let texts: Vec<String> = texts.collect();
    let name = |text: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix("name = "));
        line.unwrap().trim_matches('"').to_owned()
    };
    let places = all.iter().map(|path| house(path.parent().unwrap()));
    let houses: BTreeMap<String, usize> = texts.iter().map(|text| name(text)).zip(places).collect();
    assert!(houses.len() > CRATES.len(), "{houses:?}");
    for text in &texts {
        let own = name(text);
        for line in text.lines() {
            let key = line.split(['.', ' ', '=']).next().unwrap();
            let Some(other) = houses.get(key).filter(|_| line.contains(['.', '{'])) else {
                continue;
            };
            assert!(*other <= houses[&own], "{own} must not import {key}");
        }
    }
}

#[test]
fn what_operates_has_no_drawings_of_measurements() {
    for entry in fs::read_dir(root().join("crates")).unwrap() {
        let manifest = entry.unwrap().path().join("Cargo.toml");
        let text = fs::read_to_string(&manifest).unwrap();
        let asks = |line: &str| line.starts_with("tautline-report") && line.contains("drawings");
        assert!(!text.lines().any(asks), "{}", manifest.display());
    }
}

#[test]
fn every_crate_has_a_place() {
    let in_house = |house: &str| fs::read_dir(root().join(house)).unwrap();
    let entries = HOUSES.into_iter().flat_map(in_house);
    let there = entries.filter_map(|entry| {
        let name = entry.unwrap().file_name().into_string().unwrap();
        name.starts_with("taut").then_some(name)
    });
    let listed = CRATES.map(|(name, _)| name.to_owned());
    let with_bpf = there.chain(["tautline-bpf".to_owned()]);
    let (listed, there) = (BTreeSet::from(listed), with_bpf.collect::<BTreeSet<_>>());
    assert_eq!(there, listed);
}

#[test]
fn tests_of_the_library_need_neither_the_lab_nor_the_benchmarks() {
    for (name, allowed) in [
        ("tautline", "tautline-testbed"),
        ("tautline-shm", ""),
        ("tautline-proto", ""),
        ("tautline-exec", ""),
        ("tautline-tasks", "tautline-testbed"),
    ] {
        let manifest = fs::read_to_string(home(name).join("Cargo.toml")).unwrap();
        let tests = manifest.split("[dev-dependencies]").nth(1).unwrap_or("");
        let of_ours = tests
            .lines()
            .filter_map(|line| line.split(['.', ' ', '=']).next())
            .filter(|key| key.starts_with("taut"));
        for dependency in of_ours {
            assert_eq!(dependency, allowed, "tests of {name}");
        }
    }
}

#[test]
fn rooms_of_the_library_do_not_import_upward() {
    let found = upward(&home("tautline").join("src"), &FLOORS);
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn rooms_of_the_lab_do_not_import_upward() {
    let found = upward(&home("tautline-lab").join("src"), &LAB);
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn rooms_of_the_executive_do_not_import_upward() {
    let found = upward(&home("tautline-exec").join("src"), &EXEC);
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn names_are_found_alone_and_in_lists() {
    let text =
        "use crate::link::Link;\nuse crate::{node::{Node, a}, Port, config};\n xcrate::no::x";
    let names: Vec<String> = names_after(text, "crate::").into_iter().collect();
    assert_eq!(names, ["config", "link", "node"]);
}
