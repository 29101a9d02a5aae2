//! Packages: those of cargo are whole and need no compiler for C unless it is asked for, and the Debian package has
//! everything that belongs to the command. `make test-packages` builds, installs and uses them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use taut::external::is_external;

use crate::common::{Scratch, skipped_without_tools};

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
    // A crate between the two must not ask by itself, or no user could do without.
    for name in ["tautline-lab", "tautline-tasks"] {
        assert!(!asks_for_programs(&["--package", name]), "{name}");
    }
}

/// Files of a package, with the mode and owner that `dpkg-deb` shows.
fn contents(package: &Path) -> BTreeMap<String, String> {
    let text = said(Command::new("dpkg-deb").arg("--contents").arg(package));
    let entry = |line: &str| {
        let mut words = line.split_whitespace();
        let (mode, owner) = (words.next()?, words.next()?);
        let path = words.nth(3)?.strip_prefix('.')?;
        Some((path.to_owned(), format!("{mode} {owner}")))
    };
    text.lines()
        .map(|line| entry(line).unwrap_or_else(|| panic!("{line}")))
        .collect()
}

/// Names of the manual pages of a command and those below it.
fn pages(command: &clap::Command, before: &str, names: &mut BTreeSet<String>) {
    let name = format!("{before}{}", command.get_name());
    names.insert(format!("/usr/share/man/man1/{name}.1.gz"));
    let shown = command.get_subcommands().filter(|one| !one.is_hide_set());
    for command in shown.filter(|one| !is_external(one.get_name())) {
        pages(command, &format!("{name}-"), names);
    }
}

/// Makes the package of this build's command, quickly.
fn packed(out: &Path) -> Vec<u8> {
    let taut = Path::new(env!("CARGO_BIN_EXE_taut"));
    let mut command = Command::new(root().join("scripts/packages.sh"));
    command
        .arg(taut.parent().unwrap())
        .arg(out)
        .arg("taut")
        .env("DPKG_DEB_COMPRESSOR_TYPE", "none");
    let line = said(&mut command);
    let file = Path::new(line.trim());
    assert_eq!(file.parent(), Some(out));
    fs::rename(file, out.join("taut.deb")).unwrap();
    fs::read(out.join("taut.deb")).unwrap()
}

#[test]
fn the_debian_package_has_all_that_belongs_to_the_command() {
    if skipped_without_tools(&[
        ("dpkg-deb", "dpkg"),
        ("dpkg-shlibdeps", "dpkg-dev"),
        ("strip", "binutils"),
    ]) {
        return;
    }
    let scratch = Scratch::new("deb");
    let first = packed(&scratch.0);
    assert!(
        first == packed(&scratch.0),
        "the same files make another package"
    );
    let package = scratch.0.join("taut.deb");

    let found = contents(&package);
    let mut expected = BTreeSet::new();
    pages(&taut::cli::grammar(), "", &mut expected);
    assert!(expected.len() > 40, "{expected:?}");
    expected.extend(
        [
            "/usr/bin/taut",
            "/usr/lib/tautline/libtautline_awake_preload.so",
            "/usr/lib/systemd/system/taut-node@.service",
            "/usr/lib/sysusers.d/tautline.conf",
            "/usr/lib/tmpfiles.d/tautline.conf",
            "/usr/share/bash-completion/completions/taut",
            "/usr/share/zsh/vendor-completions/_taut",
            "/usr/share/fish/vendor_completions.d/taut.fish",
            "/usr/share/doc/taut/copyright",
            "/usr/share/doc/taut/changelog.gz",
            "/usr/share/doc/taut/notices.gz",
            "/usr/share/doc/taut/docs/reference/configuration.md",
            "/usr/share/doc/taut/examples/taut-node@.service.d/tune.conf",
            "/etc/tautline/",
        ]
        .map(str::to_owned),
    );
    let missing: Vec<_> = expected
        .iter()
        .filter(|path| !found.contains_key(*path))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
    for (path, mode) in &found {
        let writable = mode.as_bytes()[5] == b'w' || mode.as_bytes()[8] == b'w';
        assert!(mode.ends_with(" root/root") && !writable, "{path}: {mode}");
    }
    // Pages of commands that are no more would stay unnoticed.
    let pages = found
        .keys()
        .filter(|path| path.starts_with("/usr/share/man/man1/taut"));
    let odd: Vec<_> = pages.filter(|path| !expected.contains(*path)).collect();
    assert!(odd.is_empty(), "{odd:?}");

    let field = |name: &str| {
        said(
            Command::new("dpkg-deb")
                .arg("--field")
                .arg(&package)
                .arg(name),
        )
    };
    assert_eq!(field("Version").trim(), env!("CARGO_PKG_VERSION"));
    let depends = field("Depends");
    assert!(depends.contains("libc6 (>="), "{depends}");
    for one in depends.split([',', '|']) {
        let one = one.split_whitespace().next().unwrap();
        assert!(["libc6", "libgcc-s1"].contains(&one), "{depends}");
    }
    unpacked_it_works(&package, &scratch.0.join("root"));
}

fn unpacked_it_works(package: &Path, image: &Path) {
    said(
        Command::new("dpkg-deb")
            .arg("--raw-extract")
            .arg(package)
            .arg(image),
    );
    let taut = image.join("usr/bin/taut");
    let version = said(Command::new(&taut).arg("--version"));
    assert_eq!(version.trim(), concat!("taut ", env!("CARGO_PKG_VERSION")));
    for (shell, file) in [
        ("bash", "bash-completion/completions/taut"),
        ("zsh", "zsh/vendor-completions/_taut"),
        ("fish", "fish/vendor_completions.d/taut.fish"),
    ] {
        let script = said(Command::new(&taut).args(["completions", shell]));
        let packed = fs::read_to_string(image.join("usr/share").join(file)).unwrap();
        assert_eq!(packed, script, "{shell}");
        for command in taut::cli::grammar().get_subcommands() {
            assert!(
                command.is_hide_set() || packed.contains(command.get_name()),
                "{shell}: {}",
                command.get_name()
            );
        }
    }
    // The unit starts what is there.
    let unit = image.join("usr/lib/systemd/system/taut-node@.service");
    let unit = fs::read_to_string(unit).unwrap();
    assert!(unit.contains("\nExecStart=/usr/bin/taut node run "));
    for script in ["postinst", "prerm", "postrm"] {
        let script = image.join("DEBIAN").join(script);
        assert_eq!(
            script.metadata().unwrap().permissions().mode() & 0o777,
            0o755
        );
        said(Command::new("sh").arg("-n").arg(&script));
    }
    for file in ["notices.gz", "changelog.gz"] {
        let file = image.join("usr/share/doc/taut").join(file);
        let text = said(Command::new("gzip").arg("-dc").arg(&file));
        assert!(text.len() > 1000, "{}", file.display());
        let private = root().canonicalize().unwrap();
        assert!(!text.contains(&*private.to_string_lossy()), "{text}");
    }
}

#[test]
fn the_forge_runs_targets_that_there_are() {
    let makefile = fs::read_to_string(root().join("Makefile")).unwrap();
    let workflow = root().join(".github/workflows/check.yml");
    let workflow = fs::read_to_string(workflow).unwrap();
    let mut targets = 0;
    for line in workflow.lines().filter(|line| line.contains("run: ")) {
        for (_, rest) in line
            .match_indices(" make ")
            .map(|(at, _)| line.split_at(at + 6))
        {
            let target = rest.split_whitespace().next().unwrap();
            let rule = format!("\n{target}:");
            assert!(makefile.contains(&rule), "{line}");
            targets += 1;
        }
    }
    assert!(targets >= 2, "{workflow}");
    assert!(workflow.contains(" .ci/run"));
    assert!(root().join(".ci/run").exists());
}
