//! Attempts of another user on the files of `taut lab`: two users, 65534 (the victim, unless it is root) and 65533 (the
//! stranger). Skipped without root.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tautline_state::TemporaryDirectory;

use crate::common::both;

const VICTIM: u32 = 65_534;
const STRANGER: u32 = 65_533;
const PRECIOUS: &str = "precious";

/// One lab at a time: a second one is refused.
fn one_lab() -> MutexGuard<'static, ()> {
    static LAB: Mutex<()> = Mutex::new(());
    LAB.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A directory where everybody may do anything, as temporary directories of old are, and a file of the victim that
/// nobody else may write.
struct Scene {
    public: TemporaryDirectory,
    own: TemporaryDirectory,
}

impl Drop for Scene {
    /// With all that other users made there, which a [`TemporaryDirectory`] leaves alone.
    fn drop(&mut self) {
        for directory in [&self.public, &self.own] {
            let _ = fs::remove_dir_all(directory.path()); // the rest of a failed test is in nobody's way
        }
    }
}

impl Scene {
    fn of(owner: u32) -> Option<Scene> {
        if !rustix::process::geteuid().is_root() {
            println!("SKIPPED: needs root, to be several users");
            return None;
        }
        let public = TemporaryDirectory::make("taut-public").unwrap();
        public.directory().set_access(0o777, None).unwrap();
        let own = TemporaryDirectory::make("taut-own").unwrap();
        own.directory().set_access(0o755, None).unwrap();
        let scene = Scene { public, own };
        fs::write(scene.precious(), PRECIOUS).unwrap();
        let documents = scene.own.path().join("documents");
        fs::create_dir(&documents).unwrap();
        fs::write(documents.join("kept"), PRECIOUS).unwrap();
        for path in [scene.own.path(), &scene.precious(), &documents] {
            std::os::unix::fs::chown(path, Some(owner), Some(owner)).unwrap();
        }
        Some(scene)
    }

    fn precious(&self) -> std::path::PathBuf {
        self.own.path().join("precious")
    }

    fn check(&self, output: &Output) {
        let text = both(output);
        let found = fs::read_to_string(self.precious()).unwrap();
        assert_eq!(found, PRECIOUS, "overwritten: {text}");
        let kept = self.own.path().join("documents/kept");
        assert!(kept.exists(), "removed: {text}");
    }

    /// A journal by which a victim that believed it would write and remove its own files.
    fn forge(&self, directory: &Path) {
        let journal = serde_json::json!({
            "version": 1, "pid": 0, "started_ticks": 0, "groups": [], "network": [], "trace_instances": [],
            "settings": [{
                "setting": {"File": self.precious()}, "before": "forged", "value": {"Exactly": PRECIOUS}, "order": 1,
            }],
            "directories": [self.own.path().join("documents")],
        });
        fs::create_dir_all(directory).unwrap();
        let file = directory.join("lab-journal.json");
        fs::write(&file, journal.to_string()).unwrap();
        for path in [directory, &file] {
            std::os::unix::fs::chown(path, Some(STRANGER), Some(STRANGER)).unwrap();
        }
        fs::set_permissions(directory, fs::Permissions::from_mode(0o777)).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
    }
}

fn taut() -> Command {
    let mut command = Command::new(crate::PROGRAM);
    command.stdin(Stdio::null()).current_dir("/");
    command
}

/// A short run as the victim; nothing if another user may not run the program where it lies.
fn run_as_victim(settings: &[(&str, &Path)]) -> Option<Output> {
    let mut command = taut();
    command
        .args(["lab", "run", "--for", "500ms", "--load", "idle"])
        .env_remove("XDG_RUNTIME_DIR")
        .uid(VICTIM)
        .gid(VICTIM);
    for (name, value) in settings {
        command.env(name, value);
    }
    match command.output() {
        Ok(output) => Some(output),
        Err(error) => {
            println!("SKIPPED: another user may not run the program: {error}");
            None
        }
    }
}

#[test]
fn a_forged_journal_in_a_temporary_directory_is_not_believed() {
    let Some(scene) = Scene::of(VICTIM) else {
        return;
    };
    let _lab = one_lab();
    let predictable = scene.public.path().join(format!("tautline-{VICTIM}"));
    scene.forge(&predictable);
    let Some(output) = run_as_victim(&[("TMPDIR", scene.public.path())]) else {
        return;
    };
    scene.check(&output);
    assert_eq!(output.status.code(), Some(0), "{}", both(&output));
    let lacking = "lacking: putting back after a kill";
    assert!(both(&output).contains(lacking), "{}", both(&output));
}

#[test]
fn a_runtime_directory_of_somebody_else_is_refused() {
    let Some(scene) = Scene::of(VICTIM) else {
        return;
    };
    let _lab = one_lab();
    let theirs = scene.public.path().join("runtime");
    scene.forge(&theirs.join("tautline"));
    std::os::unix::fs::chown(&theirs, Some(STRANGER), Some(STRANGER)).unwrap();
    let Some(output) = run_as_victim(&[("XDG_RUNTIME_DIR", &theirs)]) else {
        return;
    };
    scene.check(&output);
    assert_eq!(output.status.code(), Some(1), "{}", both(&output));
    // The first directory on the way that others can write.
    assert!(
        both(&output).contains("can be written by other users"),
        "{}",
        both(&output)
    );
}

/// Runs `taut` as root with `$$` in `prepare` being the process number that it will have.
fn with_known_number(prepare: &str, arguments: &str, scene: &Scene) -> Output {
    let script = format!("set -e; {prepare}; exec {} {arguments}", crate::PROGRAM);
    Command::new("sh")
        .args(["-c", &script])
        .current_dir(scene.public.path())
        .env("TMPDIR", scene.public.path())
        .env("PRECIOUS", scene.precious())
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

#[test]
fn a_load_does_not_write_through_links_in_a_directory_that_could_be_foreseen() {
    let Some(scene) = Scene::of(0) else { return };
    let _lab = one_lab();
    let prepare = format!(
        "mkdir taut-lab-load-$$; ln -s $PRECIOUS taut-lab-load-$$/doubling; chown -h -R {STRANGER} taut-lab-load-$$"
    );
    let output = with_known_number(
        &prepare,
        "lab run --for 1s --load disk --size 1M --builtin-loads",
        &scene,
    );
    scene.check(&output);
    assert!(
        both(&output).contains("MiB/s written and read"),
        "{}",
        both(&output)
    );
    let left = scene.public.directory().entries().unwrap();
    assert_eq!(left.len(), 1, "only the stranger's is left: {left:?}");
}

#[test]
fn a_result_is_not_written_through_a_link_under_its_temporary_name_or_its_own() {
    let Some(scene) = Scene::of(0) else { return };
    let _lab = one_lab();
    let prepare = "ln -s $PRECIOUS result.json.$$.part; ln -s $PRECIOUS result.json; ln -s $PRECIOUS lab.html";
    let output = with_known_number(
        prepare,
        "lab run --for 500ms --load idle --json result.json --html lab.html",
        &scene,
    );
    scene.check(&output);
    for file in ["result.json", "lab.html"] {
        let path = scene.public.path().join(file);
        let found = fs::symlink_metadata(&path).unwrap();
        assert!(found.is_file(), "{file} was replaced: {}", both(&output));
    }
}

#[test]
fn results_that_others_wrote_are_shown_without_control_characters() {
    let scratch = TemporaryDirectory::make("taut-results").unwrap();
    let at = |name: &str| scratch.path().join(name).to_string_lossy().into_owned();
    let made = taut()
        .args([
            "lab", "run", "--for", "500ms", "--load", "idle", "--label", "honest",
        ])
        .args(["--json", &at("honest")])
        .output();
    let made = {
        let _lab = one_lab();
        made.unwrap()
    };
    assert!(matches!(made.status.code(), Some(0)), "{}", both(&made));
    let honest = fs::read_to_string(at("honest")).unwrap();
    let mut forged: serde_json::Value = serde_json::from_str(&honest).unwrap();
    let hostile = format!(
        "\u{1b}[2J\u{1b}]0;owned\u{7}\u{9b}31m\r\n{}",
        "x".repeat(100_000)
    );
    forged["label"] = hostile.clone().into();
    forged["notes"] = vec![hostile.clone()].into();
    forged["machine"]["kernel_release"] = hostile.into();
    fs::write(at("forged"), forged.to_string()).unwrap();
    // A fault whose message quotes the file.
    forged["time"] = "\u{1b}[31mfuture".into();
    fs::write(at("malformed"), forged.to_string()).unwrap();
    for other in ["forged", "malformed"] {
        let page = at("page.html");
        for arguments in [
            vec!["lab", "compare", &at("honest"), &at(other)],
            vec!["lab", "report", &at("honest"), &at(other), "--html", &page],
        ] {
            let output = taut().args(&arguments).output().unwrap();
            let text = both(&output);
            let bad = text.chars().find(|one| one.is_control() && *one != '\n');
            assert_eq!(bad, None, "{arguments:?}");
            assert!(text.len() < 50_000, "{arguments:?}: {} bytes", text.len());
        }
    }
    fs::write(at("endless"), vec![b' '; (64 << 20) + 1]).unwrap();
    let output = taut()
        .args(["lab", "compare", &at("endless")])
        .output()
        .unwrap();
    assert!(both(&output).contains("more than"), "{}", both(&output));
}

#[test]
fn without_a_home_directory_no_kernel_is_taken_from_a_shared_place() {
    let output = Command::new(crate::PROGRAM)
        .args(["lab", "kernels"])
        .env_remove("HOME")
        .env_remove("XDG_CACHE_HOME")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{said}");
    assert!(said.contains("give one with --cache"), "{said}");
}

#[test]
fn no_program_is_run_from_a_cache_that_others_can_write() {
    let Some(scene) = Scene::of(0) else { return };
    let theirs = scene.own.path().join("theirs");
    fs::create_dir(&theirs).unwrap();
    std::os::unix::fs::chown(&theirs, Some(STRANGER), Some(STRANGER)).unwrap();
    let sticky = scene.own.path().join("sticky");
    fs::create_dir(&sticky).unwrap();
    fs::set_permissions(&sticky, fs::Permissions::from_mode(0o1777)).unwrap();
    let below = scene.public.path().join("below");
    fs::create_dir(&below).unwrap();
    let caches = [
        (&theirs, "belongs to user 65533"),
        (&sticky, "can be written by other users"),
        (&below, "can be written by other users"),
    ];
    for (cache, why) in caches {
        let mut command = taut();
        command.args(["lab", "kernels", "--kernel", "none", "--cache"]);
        let output = command.arg(cache).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", both(&output));
        assert!(both(&output).contains(why), "{}", both(&output));
    }
}
