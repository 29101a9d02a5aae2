//! `docs/start/tutorial.md` and the pages that go on from it, run as a newcomer runs them: every fenced command, in
//! order, in one shell.
//!
//! The shell has mount and process namespaces of its own, with an empty /run. So the tutorial's hosts cannot collide
//! with others of the same names, and its processes and hosts are gone with it, also when it fails.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The pages, in the order in which they are read.
const PAGES: [&str; 3] = [
    "docs/start/tutorial.md",
    "docs/how-to/look-inside.md",
    "docs/how-to/deadline.md",
];

/// Run before the first command, inside the namespaces.
const SETTING: &str = "set -euo pipefail
mount -t tmpfs -o mode=755 taut /run
";

#[test]
fn every_command_of_the_tutorial_does_what_the_page_says() {
    if let Some(reason) = cannot_make_hosts() {
        println!("SKIPPED: {reason}");
        return;
    }
    let pages = PAGES.map(|page| fs::read_to_string(root().join(page)).expect(page));
    // The programs of this build serve: to build others takes minutes.
    let pages = pages
        .concat()
        .replace(
            "--release --locked -p taut -p tautline",
            "--locked --workspace",
        )
        .replace("target/release", "target/debug");
    assert!(pages.contains("cargo build --locked --workspace"));
    let commands = commands(&pages);
    assert!(
        commands.len() >= 8,
        "the page has only {} blocks",
        commands.len()
    );

    let scratch = Scratch::new();
    let output = namespaces()
        .args(["bash", "-c", &(SETTING.to_owned() + &commands.concat())])
        .current_dir(root())
        .env("PATH", path_with_built_programs())
        .env("TMPDIR", &scratch.0)
        .stdin(Stdio::null())
        .output()
        .expect("unshare");
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{}\n{said}\n{errors}",
        output.status
    );

    for promised in [
        "5 sent, 5 answered",
        "name = \"controller\"",
        "(loop_controller)",
        "motor port 8 ",
        "loop_controller port ",
        "the motor is dead",
        "holds: every deadline",
        "loop.toml (process",
        "Jobs that ran",
    ] {
        assert!(
            said.contains(promised),
            "no {promised:?} in\n{said}\n{errors}"
        );
    }
    assert!(
        number_before(&said, " commands received").is_some_and(|count| count > 0),
        "{said}"
    );
    // The controller's report of the run in which the motor died.
    let last_run = &said[said.rfind("the motor is dead").expect("checked above")..];
    let stale = number_before(last_run, " of them without a valid state");
    assert!(
        stale.is_some_and(|count| count > 0),
        "the controller did not notice that the motor died\n{said}"
    );
}

fn root() -> PathBuf {
    let crate_directory = Path::new(env!("CARGO_MANIFEST_DIR"));
    crate_directory
        .ancestors()
        .nth(2)
        .expect("the workspace")
        .to_owned()
}

/// The fenced blocks of shell commands, in order.
fn commands(page: &str) -> Vec<&str> {
    let blocks = page.split("\n```sh\n").skip(1);
    blocks
        .map(|block| {
            block
                .split_inclusive("\n```")
                .next()
                .expect("an end")
                .trim_end_matches("```")
        })
        .collect()
}

/// Runs its arguments in mount and process namespaces of their own, whose processes all die with the first.
fn namespaces() -> Command {
    let mut unshare = Command::new("unshare");
    unshare.args([
        "--mount",
        "--propagation",
        "private",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
    ]);
    unshare
}

fn cannot_make_hosts() -> Option<&'static str> {
    if fs::metadata("/proc/self").map(|me| me.uid()).ok() != Some(0) {
        return Some("the tutorial makes network namespaces, which takes root");
    }
    let attempt = namespaces()
        .args([
            "bash",
            "-c",
            &(SETTING.to_owned() + "ip netns add taut-try"),
        ])
        .env("PATH", path_with_built_programs())
        .output();
    if !attempt.is_ok_and(|output| output.status.success()) {
        return Some("network namespaces cannot be made here, or unshare or ip is missing");
    }
    None
}

/// The directories of what this build has made come first, wherever the target directory is.
fn path_with_built_programs() -> String {
    let taut = Path::new(env!("CARGO_BIN_EXE_taut"));
    let programs = taut.parent().expect("a directory");
    let path = std::env::var("PATH").unwrap_or_default();
    format!(
        "{0}/examples:{0}:{path}:/usr/sbin:/sbin",
        programs.display()
    )
}

/// The number that stands directly before the words.
fn number_before(text: &str, words: &str) -> Option<u64> {
    let before = &text[..text.find(words)?];
    before
        .rsplit(|character: char| !character.is_ascii_digit())
        .next()?
        .parse()
        .ok()
}

/// A directory of this test, for the tutorial's own scratch directory.
struct Scratch(PathBuf);

impl Scratch {
    /// Makes the directory; one that is there already may be another user's.
    fn new() -> Self {
        let name = |attempt| format!("taut-tutorial-{}-{attempt}", std::process::id());
        let directories =
            (0..100).map(|attempt| Path::new(env!("CARGO_TARGET_TMPDIR")).join(name(attempt)));
        let made = directories
            .into_iter()
            .find(|directory| fs::create_dir(directory).is_ok());
        Self(made.expect("a directory below the target directory"))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
