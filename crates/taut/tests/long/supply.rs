//! The crates that Tautline is built from: their licences and sources are checked, and a bill of materials names them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::Scratch;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Whether cargo has this command; says so where it has not.
fn has(command: &str) -> bool {
    let found = Command::new(env!("CARGO"))
        .args([command, "--version"])
        .output()
        .is_ok_and(|output| output.status.success());
    if !found {
        println!("SKIPPED: cargo-{command} is not installed (scripts/setup.sh --for test)");
    }
    found
}

/// A package with one dependency in a directory of its own.
fn package(at: &Path, name: &str, rest: &str) {
    fs::create_dir_all(at.join("src")).unwrap();
    fs::write(at.join("src/lib.rs"), "").unwrap();
    let text =
        format!("[package]\nname = \"{name}\"\nversion = \"1.0.0\"\nedition = \"2021\"\n{rest}");
    fs::write(at.join("Cargo.toml"), text).unwrap();
}

/// Complaint of cargo-deny about a package, by our rules; `None` if it is content. `home` has what cargo has fetched.
fn complaint(at: &Path, what: &str, home: Option<&Path>) -> Option<String> {
    let output = Command::new(env!("CARGO"))
        .envs(home.map(|home| ("CARGO_HOME", home)))
        .args(["deny", "--offline", "--manifest-path"])
        .arg(at.join("Cargo.toml"))
        .arg("--config")
        .arg(root().join("deny.toml"))
        .args(["check", what])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (!output.status.success()).then_some(said)
}

#[test]
fn a_crate_of_another_licence_or_from_elsewhere_is_refused() {
    if !has("deny") {
        return;
    }
    let scratch = Scratch::new("deny");
    let (own, other) = (scratch.0.join("own"), scratch.0.join("other"));
    let depends =
        "license = \"MIT\"\n[dependencies]\nother = { path = \"../other\", version = \"1\" }\n";
    package(&own, "own", depends);
    package(
        &other,
        "other",
        "license = \"Apache-2.0 OR GPL-3.0-only\"\n",
    );
    assert_eq!(complaint(&own, "licenses", None), None);
    for licence in ["license = \"AGPL-3.0-only\"\n", ""] {
        package(&other, "other", licence);
        let said = complaint(&own, "licenses", None).expect("it is content");
        assert!(said.contains("other"), "{said}");
    }
    // A repository, though of this very machine.
    let git = |arguments: &[&str]| {
        let mut command = Command::new("git");
        command.args(["-c", "user.name=t", "-c", "user.email=t@localhost"]);
        command.current_dir(&other).args(arguments);
        command.output().is_ok_and(|output| output.status.success())
    };
    package(&other, "other", "license = \"MIT\"\n");
    if !(git(&["init", "-q"]) && git(&["add", "."]) && git(&["commit", "-qm", "other"])) {
        return println!("SKIPPED: git does not make a repository here");
    }
    let depends = format!(
        "license = \"MIT\"\n[dependencies]\nother = {{ git = \"file://{}\" }}\n",
        other.canonicalize().unwrap().display()
    );
    package(&own, "own", &depends);
    // Fetched before, since the check itself fetches nothing.
    let home = scratch.0.join("cargo");
    let fetched = Command::new(env!("CARGO"))
        .args(["fetch", "--manifest-path"])
        .arg(own.join("Cargo.toml"))
        .env("CARGO_HOME", &home)
        .output()
        .unwrap();
    assert!(
        fetched.status.success(),
        "{}",
        String::from_utf8_lossy(&fetched.stderr)
    );
    let said = complaint(&own, "sources", Some(&home)).expect("it is content");
    assert!(said.contains("git"), "{said}");
}

/// Names and versions in the output of `cargo tree`.
fn built_from() -> BTreeSet<(String, String)> {
    let output = Command::new(env!("CARGO"))
        .current_dir(root())
        .args([
            "tree",
            "--offline",
            "--locked",
            "--workspace",
            "--target",
            "all",
        ])
        .args([
            "--edges",
            "normal,build",
            "--prefix",
            "none",
            "--format",
            "{p}",
        ])
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8(output.stdout).unwrap();
    let names = text.lines().filter_map(|line| {
        let mut words = line.split(' ');
        let (name, version) = (words.next()?, words.next()?.strip_prefix('v')?);
        Some((name.to_owned(), version.to_owned()))
    });
    names.collect()
}

#[test]
fn the_bill_of_materials_names_every_crate_that_is_built() {
    if !has("cyclonedx") {
        return;
    }
    let scratch = Scratch::new("sbom");
    let output = Command::new(root().join("scripts/sbom.sh"))
        .arg(&scratch.0)
        .env("CARGO_NET_OFFLINE", "true")
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let mut named = BTreeSet::new();
    for file in fs::read_dir(&scratch.0).unwrap() {
        let bill = fs::read(file.unwrap().path()).unwrap();
        let bill: serde_json::Value = serde_json::from_slice(&bill).unwrap();
        assert_eq!(bill["bomFormat"], "CycloneDX");
        let components = bill["components"].as_array().cloned().unwrap_or_default();
        for component in components.iter().chain([&bill["metadata"]["component"]]) {
            let text = |key: &str| component[key].as_str().unwrap().to_owned();
            named.insert((text("name"), text("version")));
        }
    }
    let built = built_from();
    assert!(built.len() > 100, "{built:?}");
    let missing: Vec<_> = built.difference(&named).collect();
    assert!(missing.is_empty(), "not named: {missing:?}");
    // And each of them is in the lock file, with that version.
    let lock = fs::read_to_string(root().join("Cargo.lock")).unwrap();
    for (name, version) in &named {
        let entry = format!("name = \"{name}\"\nversion = \"{version}\"");
        assert!(
            lock.contains(&entry),
            "{name} {version} is not in Cargo.lock"
        );
    }
}
