//! Packages of cargo: they are whole, and need no compiler for C where nobody asks for it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

mod common;
use common::{Scratch, skipped_without_tools};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Standard output of a command that must succeed.
fn said(command: &mut Command) -> String {
    let output: Output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO"));
    command
        .current_dir(root())
        .args(arguments)
        .args(["--offline", "--locked"]);
    command
}

/// The workspace's packages, as `cargo metadata` has them.
fn workspace() -> Vec<serde_json::Value> {
    let text = said(&mut cargo(&[
        "metadata",
        "--no-deps",
        "--format-version",
        "1",
    ]));
    let metadata: serde_json::Value = serde_json::from_str(&text).unwrap();
    metadata["packages"].as_array().unwrap().clone()
}

fn name(package: &serde_json::Value) -> &str {
    package["name"].as_str().unwrap()
}

fn is_published(package: &&serde_json::Value) -> bool {
    package["publish"].is_null()
}

#[test]
fn published_crates_say_what_they_are_and_need_no_unpublished_one() {
    let packages = workspace();
    let published: BTreeSet<&str> = packages.iter().filter(is_published).map(name).collect();
    assert!(
        published.contains("taut") && published.contains("tautline-bpf"),
        "{published:?}"
    );
    for package in packages.iter().filter(is_published) {
        for key in ["description", "license", "rust_version", "documentation"] {
            assert!(package[key].is_string(), "{}: no {key}", name(package));
        }
        assert!(
            !package["keywords"].as_array().unwrap().is_empty(),
            "{}",
            name(package)
        );
        let ours = package["dependencies"].as_array().unwrap().iter();
        // Those of tests that have no version are left out of the package.
        let ours = ours.filter(|one| !one["path"].is_null() && one["req"] != "*");
        for dependency in ours {
            assert!(
                published.contains(name(dependency)),
                "{} needs {}, which is not published",
                name(package),
                name(dependency)
            );
        }
    }
}

#[test]
fn published_crates_are_whole() {
    if skipped_without_tools(&[("tar", "tar")]) {
        return;
    }
    let scratch = Scratch::new("crates");
    let packages = workspace();
    let mut command = cargo(&["package", "--workspace", "--no-verify", "--allow-dirty"]);
    command.arg("--target-dir").arg(&scratch.0);
    for package in packages.iter().filter(|one| !is_published(one)) {
        command.args(["--exclude", name(package)]);
    }
    said(&mut command);
    for package in packages.iter().filter(is_published) {
        let stem = format!("{}-{}", name(package), package["version"].as_str().unwrap());
        let mut list = Command::new("tar");
        list.arg("-tzf");
        list.arg(scratch.0.join(format!("package/{stem}.crate")));
        let text = said(&mut list);
        let files: BTreeSet<&str> = text
            .lines()
            .map(|line| line.strip_prefix(&format!("{stem}/")).unwrap())
            .collect();
        for file in ["Cargo.toml", "LICENSE-MIT"] {
            assert!(files.contains(file), "{stem} has no {file}: {files:?}");
        }
        let is_object = |file: &&str| file.ends_with(".o") || file.ends_with(".so");
        assert!(!files.iter().any(is_object), "{stem}: {files:?}");
        if name(package) == "tautline-bpf" {
            for entry in fs::read_dir(root().join("bpf")).unwrap() {
                let file = entry.unwrap().file_name().into_string().unwrap();
                assert!(
                    file == "src" || files.contains(&*file),
                    "{stem} has no {file}"
                );
            }
        }
    }
}

/// Whether packages are built with the BPF programs.
fn asks_for_programs(packages: &[&str]) -> bool {
    let mut command = cargo(&["tree", "--edges", "normal", "--prefix", "none"]);
    command.args(["--format", "{p};{f}"]).args(packages);
    said(&mut command)
        .lines()
        .any(|line| line.starts_with("tautline-bpf ") && line.contains(";programs"))
}

#[test]
fn only_the_feature_bpf_asks_for_a_compiler() {
    assert!(!asks_for_programs(&[
        "--workspace",
        "--no-default-features"
    ]));
    let packages = workspace();
    let has_feature = |one: &&serde_json::Value| !one["features"]["bpf"].is_null();
    let with_feature: Vec<_> = packages.iter().filter(has_feature).map(name).collect();
    assert!(with_feature.len() >= 10, "{with_feature:?}");
    for name in with_feature {
        assert!(asks_for_programs(&["--package", name]), "{name}");
    }
    // A crate between the two must not ask by itself, or nobody could do without.
    for name in ["tautline-lab", "tautline-partition"] {
        assert!(!asks_for_programs(&["--package", name]), "{name}");
    }
}
